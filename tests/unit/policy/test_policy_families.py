"""The tools that come with Holdfast, under rules as people write them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import holdfast as hf
from holdfast.agent import prepare
from holdfast.policy.rules import CLEAN, Policy, Taint, allow, ask, decide, deny, within
from holdfast.testing import ScriptedModel, text

if TYPE_CHECKING:
    from pathlib import Path

BOTH = Taint(untrusted_input=True, private_data=True)


@hf.tool
def refund(cents: int) -> str:
    """Refund an order."""
    return f"{cents}"


def agent(folder: Path, *rules: Any) -> hf.Agent:
    tools = [hf.tools.files(folder), hf.tools.web(), hf.tools.shell(folder, unsafe=True), hf.tools.timers(), refund]
    return hf.Agent("clerk", model=ScriptedModel([text("Hello.")]), tools=tools, policy=Policy(rules))


def verdict(who: hf.Agent, tool: str, taint: Taint = CLEAN, /, **args: Any) -> str:
    return decide(who.policy, prepare(who).subject(tool, args), taint).verdict


@pytest.fixture
def clerk(tmp_path: Path) -> hf.Agent:
    rules = [deny("shell"), ask("refund", when={"cents": {"above": 5000}}), allow("files.read*"), within(tmp_path)]
    return agent(tmp_path, *rules, allow("web", domains=["example.com"]), allow("refund"))


@pytest.mark.parametrize(
    ("tool", "args", "expected"),
    [
        ("shell", {"command": "ls"}, "deny"),
        ("refund", {"cents": 9000}, "ask"),
        ("refund", {"cents": 900}, "allow"),
        ("read_file", {"path": "a.txt"}, "allow"),
        ("read_file", {"path": "../a.txt"}, "deny"),
        ("write_file", {"path": "a.txt", "content": "x"}, "deny"),
        ("fetch", {"url": "https://EXAMPLE.com/a"}, "allow"),
        ("fetch", {"url": "https://example.com@evil.com/"}, "deny"),
        ("list_timers", {}, "deny"),
    ],
)
def test_a_few_lines_say_what_an_agent_may_do(clerk: hf.Agent, tool: str, args: dict[str, Any], expected: str) -> None:
    assert verdict(clerk, tool, **args) == expected


def test_the_shell_takes_a_string_so_no_allow_of_words_covers_it(tmp_path: Path) -> None:
    assert verdict(agent(tmp_path, allow("shell", argv=["ls"])), "shell", command="ls") == "deny"


@pytest.mark.parametrize(
    ("tool", "args", "expected"),
    [
        ("fetch", {"url": "https://example.com/"}, "ask"),
        ("shell", {"command": "ls"}, "ask"),
        ("refund", {"cents": 1}, "ask"),
        ("read_file", {"path": "a.txt"}, "allow"),
        ("write_file", {"path": "a.txt", "content": "x"}, "allow"),
        ("set_timer", {"when": "in 5 minutes", "message": "x"}, "allow"),
    ],
)
def test_what_could_leave_a_tainted_turn_asks(tmp_path: Path, tool: str, args: dict[str, Any], expected: str) -> None:
    assert verdict(agent(tmp_path, allow("*")), tool, BOTH, **args) == expected


def test_a_page_and_a_file_together_taint_a_turn(clerk: hf.Agent) -> None:
    page = prepare(clerk).subject("fetch", {"url": "https://example.com/"})
    file = prepare(clerk).subject("read_file", {"path": "a.txt"})
    assert CLEAN.after(page).after(file) == BOTH
