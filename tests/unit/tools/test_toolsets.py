"""Several tools as one thing."""

from __future__ import annotations

from typing import Any

import pytest

import holdfast as hf
from holdfast.effects.canonical import encode_value
from holdfast.errors import AgentInvalid, InvalidArgument, InvalidValue, ToolInvalid
from holdfast.testing import ScriptedModel
from holdfast.tools import Toolset, tool, toolset


@tool(read_only=True, timeout=3)
def read(path: str) -> str:
    """Read a file."""
    return path


@tool
def write(path: str) -> str:
    return path


def plain(path: str) -> str:
    return path


def names(*tools: Any) -> list[str]:
    return list(hf.Agent("a", model=ScriptedModel([]), tools=list(tools), policy=[hf.allow("*")]).tools)


def test_the_order_is_that_in_which_they_were_given() -> None:
    assert toolset(write, [plain, (read,)]).names == ("write", "plain", "read")


def test_a_prefix_stands_before_every_name() -> None:
    assert toolset(read, write, prefix="fs_").names == ("fs_read", "fs_write")


def test_only_some_keep_the_order_of_the_set() -> None:
    assert toolset(read, write, plain, only=["plain", "read"]).names == ("read", "plain")


def test_names_are_chosen_and_renamed_before_the_prefix() -> None:
    assert toolset(read, write, prefix="fs_", only=["read"], rename={"read": "cat"}).names == ("fs_cat",)


def test_the_methods_do_the_same() -> None:
    assert Toolset(read, write).only("read").rename(read="cat").prefix("fs_").names == ("fs_cat",)


def test_some_can_be_left_out() -> None:
    assert Toolset(read, write).without("write").names == ("read",)


def test_a_toolset_is_a_value() -> None:
    tools = Toolset(read)
    tools.prefix("x_")
    assert tools.names == ("read",)
    assert (tools == Toolset(read), hash(tools) == hash(Toolset(read)), tools == 3) == (True, True, False)
    with pytest.raises(AttributeError, match="not changed"):
        tools.tools = ()


@pytest.mark.parametrize("tools", [Toolset(), Toolset(read)], ids=len)
def test_a_toolset_can_t_be_recorded(tools: Toolset) -> None:
    with pytest.raises(InvalidValue, match="a Toolset has no JSON form"):
        encode_value(tools)


def test_two_sets_can_be_added() -> None:
    assert (Toolset(read) + Toolset(write)).names == ("read", "write")


def test_a_renamed_tool_is_the_same_in_all_but_its_name() -> None:
    (made,) = toolset(read, prefix="fs_")
    assert (made.name, made.spec.name, made.description) == ("fs_read", "fs_read", "Read a file.")
    assert (made.read_only, made.timeout, made.function) == (True, 3.0, read.function)


def test_a_renamed_tool_has_a_digest_of_its_own() -> None:
    (made,) = toolset(read, prefix="fs_")
    assert made.digest == tool("fs_read", read_only=True, timeout=3)(read.function).digest != read.digest


def test_complaints_of_a_renamed_tool_use_its_new_name() -> None:
    (made,) = toolset(read, prefix="fs_")
    assert "The arguments of fs_read" in str(made.bind({}))


@pytest.mark.parametrize("said", [{"only": ["nope"]}, {"rename": {"nope": "x"}}], ids=str)
def test_a_name_that_is_not_there_is_refused_with_those_that_are(said: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=r"'nope' is not valid: .*\(read, write\)"):
        toolset(read, write, **said)


@pytest.mark.parametrize("said", [{"prefix": "2"}, {"prefix": "x" * 64}, {"rename": {"read": "a b"}}], ids=str)
def test_a_name_that_providers_refuse_is_refused(said: dict[str, Any]) -> None:
    with pytest.raises(ToolInvalid, match="the tool 'read' is not valid: it can't be called"):
        toolset(read, **said)


def test_renaming_one_to_the_name_of_another_is_refused() -> None:
    with pytest.raises(ToolInvalid, match="another tool has this name"):
        toolset(read, write, rename={"read": "write"})


@pytest.mark.parametrize(
    ("said", "what"), [({"only": "read"}, "only"), ({"rename": ["read"]}, "rename"), ({"prefix": 3}, "prefix")]
)
def test_what_is_of_the_wrong_kind_is_refused(said: dict[str, Any], what: str) -> None:
    with pytest.raises(InvalidArgument, match=f"^{what} "):
        toolset(read, **said)


# ---- in an agent -----------------------------------------------------------------------------------------------------


def test_an_agent_takes_tools_functions_sets_and_lists_of_them() -> None:
    assert names(plain, [read, (Toolset(write).prefix("fs_"),)]) == ["plain", "read", "fs_write"]


def test_an_agent_takes_one_toolset_as_its_tools() -> None:
    assert list(hf.Agent("a", model=ScriptedModel([]), tools=Toolset(read, write), policy=[hf.allow("*")]).tools) == [
        "read",
        "write",
    ]


def test_the_same_tool_twice_is_one() -> None:
    assert names(read, [read], Toolset(read)) == ["read"]


def test_two_tools_with_one_name_are_refused() -> None:
    with pytest.raises(AgentInvalid, match="two tools called 'read'"):
        names(read, tool("read")(plain))


def test_a_list_that_contains_itself_is_refused() -> None:
    endless: list[Any] = [read]
    endless.append(endless)
    with pytest.raises(InvalidArgument, match="nested at most"):
        names(endless)


@pytest.mark.parametrize("given", [3, "read", None, {"read": read}], ids=repr)
def test_what_is_no_tool_is_refused(given: Any) -> None:
    with pytest.raises(InvalidArgument):
        names(given)


def test_too_many_tools_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="at most 1,000 tools"):
        names([read] * 1_001)
