"""`@tool`: from a function to what a model sees, and from what a model sends to a call."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, field_validator
from tests.every import every

from holdfast.effects.replay import Repeat
from holdfast.errors import InvalidValue, ToolInvalid
from holdfast.messages import ToolCall, ToolResult
from holdfast.records import ErrorInfo, Failed
from holdfast.tools import AnyTool, Bound, Complaint, Tool, ToolRetry, Toolset, results, tool
from holdfast.tools.context import Context
from holdfast.tools.definition import read_docstring
from holdfast.tools.schema import check_result
from holdfast.turns.results import result_of

if TYPE_CHECKING:
    from decimal import Decimal

CONTEXT = cast("Context", object())  # a tool gets it as it is


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Line(BaseModel):
    title: str
    cents: int = Field(ge=0)


class Strange(BaseModel):
    value: str

    @field_validator("value")
    @classmethod
    def _broken(cls, value: str) -> str:
        return cast("dict[str, str]", {})[value]


@dataclass
class Order:
    id: str
    when: date


class Receipt(msgspec.Struct):
    order: str
    cents: int


class Plain:
    pass


@tool
def add(a: int, b: int = 2) -> int:
    """Add two numbers."""
    return a + b


@tool(timeout=30)
async def refund(ctx: Context, order_id: str, cents: int) -> Receipt:
    """Refund an order.

    The money goes back to the card.

    Args:
        ctx: not for the model.
        order_id: The order, as `find_order`
            gave it.
        cents (int): How much.

    Returns:
        A receipt.
    """
    assert ctx is CONTEXT
    return Receipt(order_id, cents)


@tool
def line_up(lines: list[Line], colour: Colour = Colour.RED, note: str | None = None) -> str:
    return f"{lines!r} {colour} {note}"


def bound(of: AnyTool, **arguments: Any) -> dict[str, Any]:
    made = of.bind(arguments)
    assert isinstance(made, Bound), made
    return made.kwargs


def complaint(of: AnyTool, **arguments: Any) -> str:
    made = of.bind(arguments)
    assert isinstance(made, Complaint), made
    return made.text


# ---- what the model sees ---------------------------------------------------------------------------------------------


def test_the_schema_is_a_plain_object_without_titles() -> None:
    assert add.parameters == {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer", "description": "Default: 2."}},
        "required": ["a"],
        "additionalProperties": False,
    }


def test_the_keys_of_a_schema_have_one_order() -> None:
    assert list(line_up.parameters) == ["type", "properties", "required", "additionalProperties"]


def test_a_tool_without_parameters_has_an_empty_object() -> None:
    @tool
    def now() -> str:
        return ""

    assert now.parameters == {"type": "object", "properties": {}, "additionalProperties": False}


def test_a_property_called_title_stays_where_titles_go() -> None:
    assert line_up.parameters["properties"]["lines"]["items"] == {
        "type": "object",
        "properties": {"title": {"type": "string"}, "cents": {"type": "integer", "minimum": 0}},
        "required": ["title", "cents"],
        "additionalProperties": False,
    }


def test_the_args_section_describes_the_parameters() -> None:
    assert refund.parameters["properties"] == {
        "order_id": {"type": "string", "description": "The order, as `find_order` gave it."},
        "cents": {"type": "integer", "description": "How much."},
    }


def test_the_description_is_the_docstring_without_its_args_section() -> None:
    assert refund.description == ("Refund an order.\n\nThe money goes back to the card.\n\nReturns:\n    A receipt.")


def test_a_description_that_is_given_wins_over_the_docstring() -> None:
    assert tool(add.function, description="Sum.").description == "Sum."


def test_an_empty_description_is_allowed() -> None:
    assert line_up.description == ""


def test_the_description_of_a_field_wins_over_the_docstring() -> None:
    @tool
    def find(email: Annotated[str, Field(description="from the field")]) -> None:
        """Find.

        Args:
            email: from the docstring.
        """

    assert find.parameters["properties"]["email"]["description"] == "from the field"


@given(st.text())
def test_any_docstring_can_be_read(doc: str) -> None:
    read_docstring(doc)


def test_parameters_may_have_the_names_that_pydantic_keeps_for_itself() -> None:
    @tool
    def odd(json: str, copy: int, model_config: bool, _private: str) -> list[object]:
        return [json, copy, model_config, _private]

    sent = {"json": "{}", "copy": 1, "model_config": True, "_private": "x"}
    assert bound(odd, **sent) == sent


def test_an_alias_is_the_name_that_the_model_uses() -> None:
    @tool
    def mail(from_: Annotated[str, Field(alias="from")]) -> str:
        return from_

    assert bound(mail, **{"from": "a@b.c"}) == {"from_": "a@b.c"}


def test_two_parameters_with_one_alias_are_refused() -> None:
    def mail(to: str, other: Annotated[str, Field(alias="to")]) -> str:
        return to + other

    with pytest.raises(ToolInvalid, match="another parameter is shown as 'to' too"):
        tool(mail)


def test_a_default_without_a_json_form_is_left_out_of_the_schema() -> None:
    missing = cast("str", object())

    @tool
    def find(email: str = missing) -> str:
        return email

    assert find.parameters["properties"] == {"email": {"type": "string"}}


def test_a_default_of_a_field_is_used() -> None:
    @tool
    def find(limit: int = Field(default=5, le=10)) -> int:
        return limit

    assert bound(find) == {"limit": 5}


def test_a_type_that_only_the_return_annotation_names_need_not_exist_at_run_time() -> None:
    @tool
    def price(order: str) -> Decimal:
        raise NotImplementedError(order)

    assert list(price.parameters["properties"]) == ["order"]


# ---- the context -----------------------------------------------------------------------------------------------------


def test_the_context_is_not_part_of_the_schema() -> None:
    assert "ctx" not in refund.parameters["properties"]


@pytest.mark.parametrize(
    "annotation", [Context, "Context", Context | None, "Context | None", Annotated[Context, "mine"]], ids=str
)
def test_the_context_is_known_by_its_annotation(annotation: object) -> None:
    def look(anything: object) -> object:
        return anything

    look.__annotations__["anything"] = annotation
    assert tool(look).accepts.context == "anything"


@pytest.mark.parametrize("annotation", ["hf.Context", "holdfast.Context"])
def test_the_context_is_known_through_the_door_also_without_an_import_at_run_time(annotation: str) -> None:
    def look(anything: object) -> object:
        return anything

    look.__annotations__["anything"] = annotation
    assert tool(look).accepts.context == "anything"


def test_a_type_of_ones_own_that_is_called_context_is_not_the_context() -> None:
    space: dict[str, Any] = {"BaseModel": BaseModel}
    code = "class Context(BaseModel):\n    page: int\ndef look(ctx: 'Context') -> int:\n    return ctx.page\n"
    exec(code, space)  # noqa: S102  a module with a name of its own
    look = cast("Callable[..., Any]", space["look"])
    assert tool(look).accepts.context is None


def test_a_second_context_is_refused() -> None:
    def look(one: Context, two: Context) -> None:
        pass

    with pytest.raises(ToolInvalid, match=r"parameter 'two' of the tool 'look' .*'one' is the context already"):
        tool(look)


# ---- the value -------------------------------------------------------------------------------------------------------


def test_a_tool_can_still_be_called() -> None:
    assert add(1, b=5) == 6


def test_a_bare_decoratortakes_the_name_of_the_function() -> None:
    assert add.name == "add"


def test_a_name_can_be_given() -> None:
    assert tool("plus")(add.function).name == tool(name="plus")(add.function).name == "plus"


def test_what_the_model_sees_is_made_once() -> None:
    assert refund.spec is refund.spec
    assert (refund.spec.name, refund.spec.parameters) == ("refund", refund.parameters)


@pytest.mark.parametrize(
    ("said", "repeat"),
    [
        ({}, Repeat.NEVER),
        ({"idempotent": True}, Repeat.KEYED),
        ({"read_only": True}, Repeat.FREE),
        ({"read_only": True, "idempotent": True}, Repeat.FREE),
        ({"destructive": True}, Repeat.NEVER),
    ],
    ids=str,
)
def test_the_annotations_say_whether_a_call_may_be_repeated(said: dict[str, Any], repeat: Repeat) -> None:
    assert tool(add.function, **said).repeat is repeat


@pytest.mark.parametrize("timeout", [90, 90.0, timedelta(seconds=90)], ids=repr)
def test_a_timeout_is_kept_in_seconds(timeout: float | timedelta) -> None:
    assert tool(add.function, timeout=timeout).timeout == 90.0


def test_the_same_definition_gives_equal_tools() -> None:
    again = tool(add.function)
    assert (again, hash(again)) == (add, hash(add))


def test_tools_that_differ_in_an_annotation_are_not_equal() -> None:
    assert tool(add.function, read_only=True) != add


@pytest.mark.parametrize(
    "said", [{"read_only": True}, {"idempotent": True}, {"destructive": False}, {"description": "Other."}], ids=str
)
def test_the_digest_differs_with_what_was_said(said: dict[str, Any]) -> None:
    assert tool(add.function, **said).digest != add.digest


def test_the_digest_is_the_same_in_every_process() -> None:
    code = (
        "from holdfast.tools import tool\n@tool\ndef add(a: int, b: int = 2) -> int:\n"
        "    'Add two numbers.'\n    return a + b\nprint(add.digest)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == add.digest


def test_importing_the_tools_does_not_load_pydantic() -> None:
    code = "import sys, holdfast.tools, holdfast.tools.results; print('pydantic' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_bound_method_can_be_a_tool() -> None:
    class Shop:
        def stock(self, item: str) -> str:
            return item

    assert list(tool(Shop().stock).parameters["properties"]) == ["item"]


# ---- partials and objects --------------------------------------------------------------------------------------------


def pay(ctx: Context, account: str, to: str, cents: int = 5) -> str:
    """Pay.

    Args:
        account: The account that pays.
        to: The one who gets it.
    """
    assert ctx is CONTEXT
    return f"{account} pays {to} {cents}"


async def pay_later(account: str, to: str) -> str:
    return f"{account} pays {to} later"


@dataclass
class Shelf:
    """A shelf."""

    books: list[str]

    def __call__(self, part: str) -> list[str]:
        """Search the shelf."""
        return [book for book in self.books if part in book]


class Ask:
    """Ask the editor."""

    async def __call__(self, question: str, urgent: bool = False) -> str:
        return f"{question}{'!' * urgent}"


def test_a_partial_has_the_name_and_the_docstring_of_its_function() -> None:
    made = tool(functools.partial(pay, account="mine"))
    assert (made.name, made.description) == ("pay", "Pay.")


def test_what_a_partial_binds_is_not_offered() -> None:
    made = tool(functools.partial(pay, account="mine"))
    assert made.parameters["properties"] == {
        "to": {"type": "string", "description": "The one who gets it."},
        "cents": {"type": "integer", "description": "Default: 5."},
    }
    assert made.accepts.context == "ctx"


def test_what_a_partial_binds_can_not_be_given() -> None:
    said = complaint(tool(functools.partial(pay, account="mine")), account="yours", to="x")
    assert "- account: there is no such argument; there are: to, cents" in said


@pytest.mark.parametrize(
    ("function", "sent", "value"),
    [
        (functools.partial(pay, account="mine"), {"to": "you"}, "mine pays you 5"),
        (functools.partial(pay, CONTEXT, "mine"), {"to": "you", "cents": 1}, "mine pays you 1"),
        (functools.partial(functools.partial(pay, account="mine"), cents=7), {"to": "you"}, "mine pays you 7"),
        (functools.partial(pay_later, "mine"), {"to": "you"}, "mine pays you later"),
        (Shelf(["Emma", "Ulysses"]), {"part": "mm"}, ["Emma"]),
        (Ask(), {"question": "Now", "urgent": True}, "Now!"),
        (functools.partial(Ask(), urgent=True), {"question": "Now"}, "Now!"),
    ],
    ids=["by name", "by place", "twice", "async", "object", "async object", "partial of an object"],
)
async def test_a_partial_or_an_object_is_called_with_what_it_binds_and_what_is_sent(
    function: Callable[..., Any], sent: dict[str, Any], value: object
) -> None:
    assert await invoke(tool(function), **sent) == value


@pytest.mark.parametrize(
    ("function", "on_loop"),
    [(functools.partial(pay_later, "a"), True), (Ask(), True), (functools.partial(Ask()), True), (Shelf([]), False)],
    ids=["partial", "object", "partial of an object", "plain object"],
)
def test_what_is_async_inside_runs_on_the_event_loop(function: Callable[..., Any], on_loop: bool) -> None:
    assert tool(function).on_loop is on_loop


def test_an_object_is_called_after_its_class() -> None:
    assert (tool(Shelf([])).name, tool(Ask()).name, tool("ask")(Ask()).name) == ("Shelf", "Ask", "ask")


def test_an_object_is_described_by_its_call_or_by_its_class() -> None:
    assert (tool(Shelf([])).description, tool(Ask()).description) == ("Search the shelf.", "Ask the editor.")


def test_an_object_gives_the_same_tool_each_time() -> None:
    shelf = Shelf([])
    assert tool(shelf) == tool(shelf)


def test_a_partial_or_an_object_in_a_list_of_tools_becomes_a_tool() -> None:
    given: list[Any] = [functools.partial(pay, account="mine"), Ask()]
    assert Toolset(*given).names == ("pay", "Ask")


def test_the_result_of_a_partial_is_checked_against_the_type_of_its_function() -> None:
    assert check_result(functools.partial(pay, account="mine"), b"3") == "Input should be a valid string"


# ---- docstrings ------------------------------------------------------------------------------------------------------

NUMPY = """Find books.

The newest first.

Parameters
----------
title, author : str
    Words, in any order.

    Case does not count.
limit : {1, 2}, optional
    How many: at most.
*rest

Returns
-------
list
    The books.

Other Parameters
----------------
**more : int
    Anything else.
"""
SPHINX = """Find books.

The newest first.

:param title: Words,
    in any order.
:type title: str
:param int limit: How many: at most.
:param dict[str, int] more: Anything else.
:returns: The books.
:rtype: list
"""


def test_a_docstring_in_numpy_style_describes_the_parameters() -> None:
    text, descriptions = read_docstring(NUMPY)
    assert text == "Find books.\n\nThe newest first.\n\nReturns\n-------\nlist\n    The books."
    words = "Words, in any order. Case does not count."
    limit, more = "How many: at most.", "Anything else."
    assert descriptions == {"title": words, "author": words, "limit": limit, "rest": "", "more": more}


def test_a_docstring_in_sphinx_style_describes_the_parameters() -> None:
    text, descriptions = read_docstring(SPHINX)
    assert text == "Find books.\n\nThe newest first.\n\n:returns: The books.\n:rtype: list"
    words = "Words, in any order."
    assert descriptions == {"title": words, "limit": "How many: at most.", "more": "Anything else."}


@every(
    "doc",
    [
        "Parameters\n\nThere are none.",
        "A table.\n\nName\n----\nx : int",
        "Use `:param` with care: it is old.",
        "Text with: a colon",
        "Parameters\n----------\n",
    ],
)
def test_a_docstring_that_describes_no_parameter_is_all_text(doc: str) -> None:
    assert read_docstring(doc) == (doc.strip(), {})


def test_a_text_in_the_annotation_wins_over_the_docstring() -> None:
    @tool
    def find(email: Annotated[str, "from the annotation"]) -> None:
        """Find.

        Args:
            email: from the docstring.
        """

    assert find.parameters["properties"]["email"]["description"] == "from the annotation"


# ---- what can't be a tool --------------------------------------------------------------------------------------------


def takes_many(*many: int) -> None: ...
def takes_any(**any_of: int) -> None: ...
def takes_by_position(first: int, /) -> None: ...
def takes_anything(what: int) -> None: ...
def takes_object(what: Plain) -> None: ...
def takes_function(what: Callable[[int], int]) -> None: ...
def takes_unknown(what: int) -> None: ...
def takes_wrong_pattern(good: str, what: Annotated[str, Field(pattern="(")]) -> None: ...
def takes_infinity(what: float = float("inf")) -> None: ...


# Annotations that no type checker would let pass.
del takes_anything.__annotations__["what"]
takes_unknown.__annotations__["what"] = "Nowhere"


class _Shop:
    def stock(self, item: str) -> str:
        return item


@every(
    ("function", "parameter", "reason"),
    [
        (takes_many, "*many", "name each parameter"),
        (takes_any, "**any_of", "name each parameter"),
        (takes_by_position, "first", "positional-only"),
        (takes_anything, "what", "no annotation"),
        (_Shop.stock, "self", "no annotation; make a tool of the bound method instead"),
        (takes_object, "what", "no JSON schema can be made of Plain"),
        (takes_function, "what", "no JSON schema can be made of"),
        (takes_unknown, "what", "'Nowhere' is not defined; import or define it at the top of the module"),
        (takes_wrong_pattern, "what", "no JSON schema can be made of"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_parameter_that_no_model_could_fill_in_is_named(
    function: Callable[..., Any], parameter: str, reason: str
) -> None:
    with pytest.raises(ToolInvalid) as caught:
        tool(function)
    assert (caught.value.function, caught.value.parameter) == (function.__name__, parameter)
    assert reason in str(caught.value)


def _numbers(upto: int) -> Iterator[int]:
    yield from range(upto)


async def _async_numbers(upto: int) -> AsyncIterator[int]:
    for n in range(upto):
        yield n


@pytest.mark.parametrize("function", [_numbers, _async_numbers])
def test_a_generator_is_refused(function: Callable[..., Any]) -> None:
    with pytest.raises(ToolInvalid, match="generator"):
        tool(name="numbers")(function)


@pytest.mark.parametrize(
    "function",
    [3, Plain, Plain(), len, functools.partial(len), functools.partial(Plain)],
    ids=["number", "class", "object", "built-in", "partial of a built-in", "partial of a class"],
)
def test_what_is_not_a_function_is_refused(function: Any) -> None:
    with pytest.raises(ToolInvalid, match="a function is wanted"):
        tool(name="it")(function)


def test_a_tool_is_not_made_a_tool_again() -> None:
    with pytest.raises(ToolInvalid, match="it is a tool already"):
        tool(add)


@every("name", ["", "2fast", "a b", "é", "x" * 65, "<lambda>", "a\n"])
def test_a_name_that_providers_refuse_is_refused(name: str) -> None:
    with pytest.raises(ToolInvalid, match="begins with a letter"):
        tool(name)(add.function)


@every("timeout", [0, -1, float("nan"), float("inf"), timedelta(0), True, "30"], ids=repr)
def test_a_timeout_that_can_not_be_meant_is_refused(timeout: Any) -> None:
    with pytest.raises(ToolInvalid, match="timeout"):
        tool(timeout=timeout)(add.function)


@pytest.mark.parametrize(
    "said",
    [{"read_only": True, "destructive": True}, {"reconcile": "later"}, {"read_only": 1}, {"description": 3}],
    ids=str,
)
def test_what_can_not_be_said_of_a_tool_is_refused(said: dict[str, Any]) -> None:
    with pytest.raises(ToolInvalid, match="the tool 'add' is not valid"):
        tool(**said)(add.function)


def test_a_default_that_json_has_no_number_for_is_not_told() -> None:
    assert tool(name="wait")(takes_infinity).parameters["properties"] == {"what": {"type": "number"}}


# ---- arguments -------------------------------------------------------------------------------------------------------


def test_arguments_become_the_types_that_the_function_asks_for() -> None:
    made = bound(line_up, lines=[{"title": "x", "cents": 1}], colour="blue")
    assert made == {"lines": [Line(title="x", cents=1)], "colour": Colour.BLUE, "note": None}


def test_arguments_are_read_as_json() -> None:
    @tool
    def store(order: Order, at: datetime, exactly: Annotated[date, Field(strict=True)]) -> None:
        pass

    made = bound(store, order={"id": "7", "when": "2026-01-02"}, at="2026-01-02T03:04:05Z", exactly="2026-01-02")
    day = date(2026, 1, 2)
    assert made == {"order": Order("7", day), "at": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), "exactly": day}


def test_a_mutable_default_is_not_shared_between_calls() -> None:
    @tool
    def gather(into: list[int] = []) -> list[int]:  # noqa: B006  that is the point
        return into

    bound(gather)["into"].append(1)
    assert bound(gather) == {"into": []}


def test_a_complaint_says_which_argument_what_is_wrong_and_what_was_expected() -> None:
    assert complaint(refund, order_id="7", cents="ten") == (
        "The arguments of refund are not valid.\n"
        "- cents: Input should be a valid integer, unable to parse string as an integer "
        '(got "ten"; expected {"type":"integer"})\n'
        "Correct them and call it again."
    )


def test_a_missing_argument_is_named() -> None:
    assert '- order_id: it is missing (expected {"type":"string"})' in complaint(refund, cents=1)


def test_an_argument_that_is_not_there_is_named_with_those_that_are() -> None:
    assert "- order: there is no such argument; there are: order_id, cents" in complaint(refund, order="7")


def test_a_complaint_gives_the_place_in_nested_arguments() -> None:
    said = complaint(line_up, lines=[{"title": "x", "cents": 1}, {"title": "y", "cents": -1}])
    assert "- lines[1].cents: Input should be greater than or equal to 0 (got -1;" in said


def test_the_members_of_a_union_are_told_under_the_name_of_the_argument() -> None:
    @tool
    def pick(what: int | list[int]) -> None:
        pass

    said = complaint(pick, what="x")
    assert said.count("- what: Input should be a valid") == 2


def _told(error: ErrorInfo) -> ToolResult:
    """What the model reads about a call that failed so."""
    return result_of(CALL, Failed(at=1, key="t1/2.tools/1.x", error=error))


def test_the_choices_of_an_enum_are_told() -> None:
    assert '"enum":["red","blue"]' in complaint(line_up, lines=[], colour="green")


def test_the_choices_of_a_literal_are_told() -> None:
    @tool
    def pick(what: Literal["a", "b"]) -> None:
        pass

    assert "Input should be 'a' or 'b'" in complaint(pick, what="c")


def test_a_complaint_has_no_addresses() -> None:
    assert "http" not in complaint(line_up, lines="x", colour=3, other=1)


def test_a_complaint_is_bounded() -> None:
    said = complaint(line_up, lines=[{"title": "x" * 10_000, "cents": "y" * 10_000}] * 1_000)
    assert len(said) <= results.MAX_TEXT
    assert "- and 992 more" in said


def test_arguments_that_are_nested_too_deep_are_a_complaint() -> None:
    deep: list[Any] = []
    for _ in range(100):
        deep = [deep]
    assert "nested deeper than" in complaint(line_up, lines=deep)


def test_a_validator_that_breaks_is_a_complaint() -> None:
    @tool
    def strange(what: Strange) -> None:
        pass

    assert "they could not be checked: KeyError: 'x'" in complaint(strange, what={"value": "x"})


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(st.dictionaries(st.sampled_from(["lines", "colour", "note", "other"]), json_values))
def test_no_arguments_make_bind_raise(arguments: dict[str, Any]) -> None:
    assert isinstance(line_up.bind(arguments), Bound | Complaint)


# ---- the call --------------------------------------------------------------------------------------------------------


async def invoke(of: AnyTool, **arguments: Any) -> Any:
    return await of.invoke(Bound(bound(of, **arguments)), CONTEXT)


async def test_an_async_tool_gets_its_context_and_gives_plain_json() -> None:
    assert await invoke(refund, order_id="7", cents=100) == {"order": "7", "cents": 100}


async def test_a_plain_function_runs_in_a_thread() -> None:
    @tool
    def where() -> int:
        return threading.get_ident()

    assert await invoke(where) != threading.get_ident()


async def test_a_plain_function_sees_the_context_variables_of_its_caller() -> None:
    who = contextvars.ContextVar("who", default="nobody")

    @tool
    def ask() -> str:
        return who.get()

    who.set("me")
    assert await invoke(ask) == "me"


async def test_an_async_function_behind_a_plain_wrapper_is_awaited() -> None:
    async def inner(n: int) -> int:
        await asyncio.sleep(0)
        return n

    @functools.wraps(inner)
    def outer(*args: Any, **kwargs: Any) -> Any:
        return inner(*args, **kwargs)

    assert await invoke(tool(outer), n=3) == 3


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (Line(title="x", cents=1), {"title": "x", "cents": 1}),
        ([Order("7", date(2026, 1, 2))], [{"id": "7", "when": "2026-01-02"}]),
        (Receipt("7", 1), {"order": "7", "cents": 1}),
        ((1, Colour.RED), [1, "red"]),
        (None, None),
    ],
    ids=repr,
)
async def test_what_a_tool_returns_comes_back_as_plain_json(value: object, plain: object) -> None:
    @tool
    async def give() -> object:
        return value

    assert await invoke(give) == plain


async def test_a_result_without_a_json_form_says_that_the_tool_ran() -> None:
    @tool
    async def give() -> object:
        return {1, 2}

    with pytest.raises(InvalidValue, match=r"a set has no JSON form .*the tool 'give' ran to its end"):
        await invoke(give)


async def test_what_a_tool_raises_comes_through() -> None:
    @tool
    def fail(n: int) -> int:
        raise ValueError(n)

    with pytest.raises(ValueError, match="3"):
        await invoke(fail, n=3)


async def test_stop_iteration_in_a_thread_does_not_hang() -> None:
    @tool
    def first() -> int:
        return next(iter(cast("list[int]", [])))

    with pytest.raises(RuntimeError, match="StopIteration"):
        await asyncio.wait_for(invoke(first), 5)


def _leave() -> None:
    sys.exit(3)


async def _leave_async() -> None:
    sys.exit(3)


@pytest.mark.parametrize("function", [_leave, _leave_async])
async def test_a_tool_can_not_end_the_process(function: Callable[..., Any]) -> None:
    with pytest.raises(RuntimeError, match="asked to end the process"):
        await invoke(tool(name="leave")(function))


# ---- what the model reads --------------------------------------------------------------------------------------------

CALL = ToolCall("call_1", "refund", {"cents": 1})


def test_an_exception_is_one_line() -> None:
    made = _told(results.error_from_exception(ValueError("no\n  such\tthing")))
    assert (made.content, made.state) == ("ValueError: no such thing", "error")


def test_an_exception_without_a_message_is_its_kind() -> None:
    assert _told(results.error_from_exception(KeyError())).content == "KeyError"


def test_what_an_exception_says_is_bounded() -> None:
    made = _told(results.error_from_exception(ValueError("x" * 1_000_000)))
    assert len(made.content) <= results.MAX_TEXT


def test_an_exception_that_can_not_be_shown_is_its_kind() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert results.error_from_exception(Mute()) == ErrorInfo("Mute", "")


def test_a_group_of_exceptions_is_told_as_its_members() -> None:
    group = ExceptionGroup("many", [ValueError("a"), ExceptionGroup("more", [KeyError("b"), OSError()])])
    assert results.error_from_exception(group) == ErrorInfo("ExceptionGroup", "ValueError: a; KeyError: 'b'; OSError")


def test_a_group_of_one_is_told_as_that_one() -> None:
    assert results.error_from_exception(ExceptionGroup("many", [ValueError("a")])) == ErrorInfo("ValueError", "a")


def test_a_tool_that_asks_for_better_arguments_is_quoted() -> None:
    made = _told(results.error_from_exception(ToolRetry("Give the year with four digits.")))
    assert made.content == "Give the year with four digits."


def test_a_complaint_is_read_as_it_is() -> None:
    assert _told(results.error_for_complaint(Complaint("- cents: wrong"))).content == "- cents: wrong"


def test_a_long_complaint_is_cut() -> None:
    assert len(results.error_for_complaint(Complaint("x" * 10_000)).message) <= results.MAX_TEXT


def test_arguments_that_are_no_object_are_shown() -> None:
    said = results.error_for_malformed_call(ToolCall("c", "refund", None, malformed='{"cents": ')).message
    assert said == "The arguments of refund are not a JSON object: '{\"cents\": '. Call it again with one."


def test_an_unknown_tool_is_answered_with_the_closest_and_all_names() -> None:
    said = results.error_for_unknown_tool("find_orders", ["refund", "find_order"]).message
    assert said == ("There is no tool 'find_orders'. Did you mean 'find_order'? The tools are: refund, find_order.")


def test_an_unknown_tool_where_there_are_none() -> None:
    assert results.error_for_unknown_tool("x", []).message == "There is no tool 'x': there are no tools."


def test_the_list_of_tools_is_bounded() -> None:
    said = results.error_for_unknown_tool("zzz", [f"tool_{n}" for n in range(10_000)]).message
    assert len(said) <= results.MAX_TEXT
    assert "and 9,950 more" in said


def test_a_timeout_of_a_call_that_may_be_repeated_says_so() -> None:
    assert "safe to call it again" in results.error_for_timeout("find", 30).message


def test_a_tool_is_a_tool() -> None:
    assert isinstance(add, Tool)
    assert repr(add) == "Tool('add')"
