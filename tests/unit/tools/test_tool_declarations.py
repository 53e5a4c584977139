"""What can be said about a tool, and what can't be meant."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from tests.every import every

from holdfast.errors import InvalidArgument, InvalidNumber, ToolInvalid
from holdfast.policy.rules import Reach, Subject
from holdfast.tools import NotDone, ToolRetry, ToolRetryPolicy, tool
from holdfast.tools.definition import MIN_OUTPUT_LIMIT, OUTPUT_LIMIT


def work(n: int, text: str = "") -> str:
    return text * n


def test_a_tool_of_which_nothing_is_said_has_the_defaults() -> None:
    made = tool(work)
    assert (made.timeout, made.inline_budget, made.max_parallel, made.retry, made.background) == (None,) * 5
    assert (made.output_limit, made.on_interrupt, made.untrusted) == (OUTPUT_LIMIT, "unknown", False)


@pytest.mark.parametrize("span", [0.3, timedelta(milliseconds=300)], ids=repr)
def test_a_budget_is_kept_in_seconds(span: float | timedelta) -> None:
    assert tool(work, inline_budget=span).inline_budget == 0.3


def test_the_reach_of_a_tool_is_a_value_and_no_call() -> None:
    given = Reach(family="notes", paths=("text",))
    assert tool(work, reach=replace(given, private=True)).reach == Reach(family="notes", paths=("text",), private=True)
    assert hash(given) == hash(replace(given))
    with pytest.raises(ToolInvalid, match="reach is a Reach, not a Subject"):
        tool(work, reach=Subject(tool="work", args={}))


def test_a_number_of_attempts_is_a_policy() -> None:
    assert tool(work, read_only=True, retry=5).retry == ToolRetryPolicy(attempts=5)


@every(
    ("said", "reason"),
    [
        ({"inline_budget": 0}, "inline_budget must be more than 0 seconds"),
        ({"inline_budget": "1"}, "inline_budget is seconds or a timedelta"),
        ({"inline_budget": 1, "background": True}, "background=True goes there at once; leave inline_budget out"),
        ({"inline_budget": 1, "background": False}, "background=False goes there never; leave inline_budget out"),
        ({"background": 1}, "background is True or False, not 1"),
        ({"untrusted": None}, "untrusted is True or False, not None"),
        ({"max_parallel": 0}, "max_parallel is a whole number from 1"),
        ({"max_parallel": True}, "max_parallel is a whole number from 1"),
        ({"max_parallel": 1.0}, "max_parallel is a whole number from 1"),
        ({"output_limit": MIN_OUTPUT_LIMIT - 1}, "output_limit is a whole number from 1,000"),
        ({"output_limit": "many"}, "output_limit is a whole number"),
        ({"on_interrupt": "retry"}, "on_interrupt is 'unknown' or 'ask', not 'retry'"),
        ({"on_interrupt": "ask", "read_only": True}, "on_interrupt='ask' means nothing for a read_only tool"),
        ({"retry": 3}, "retry is for tools that are read_only or idempotent"),
        ({"retry": 0, "read_only": True}, "retry attempts 0 is not valid: it must be from 1 to 10"),
        ({"retry": "3", "idempotent": True}, "the number of attempts or a ToolRetryPolicy is wanted"),
        ({"retry": True, "idempotent": True}, "the number of attempts or a ToolRetryPolicy is wanted"),
    ],
    ids=str,
)
def test_what_can_not_be_meant_is_refused_with_the_function_and_the_parameter(
    said: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ToolInvalid) as caught:
        tool(**said)(work)
    assert caught.value.function == "work"
    assert reason in str(caught.value)


def test_tools_that_differ_in_how_they_are_carried_out_are_not_equal() -> None:
    assert tool(work, output_limit=2_000) != tool(work)


def test_how_it_is_carried_out_is_no_business_of_the_model() -> None:
    assert tool(work, output_limit=2_000).digest == tool(work).digest


# ---- reconcile -------------------------------------------------------------------------------------------------------


def finds_out(ctx: object, n: int, text: str) -> str:
    return f"{ctx}{n}{text}"


def finds_out_anything(ctx: object, **arguments: object) -> str:
    return f"{ctx}{arguments}"


def misses_one(ctx: object, n: int) -> str:
    return f"{ctx}{n}"


def wants_more(ctx: object, n: int, text: str, more: int) -> str:
    return f"{ctx}{n}{text}{more}"


@pytest.mark.parametrize("function", [finds_out, finds_out_anything])
def test_a_reconcile_function_that_takes_the_arguments_is_accepted(function: Any) -> None:
    assert tool(work, reconcile=function).reconcile is function


@pytest.mark.parametrize("function", [misses_one, wants_more], ids=["misses", "wants"])
def test_a_reconcile_function_that_could_not_be_called_is_refused_at_once(function: Any) -> None:
    with pytest.raises(ToolInvalid, match=r"reconcile is called with \(ctx, n, text\) by name"):
        tool(work, reconcile=function)


# ---- retries ---------------------------------------------------------------------------------------------------------


def test_pauses_grow_up_to_the_longest() -> None:
    policy = ToolRetryPolicy(attempts=6, pause=1, factor=3, longest=10)
    assert [policy.pause_after(n, OSError()) for n in range(1, 6)] == [1, 3, 9, 10, 10]


def test_after_the_last_attempt_there_is_no_other() -> None:
    assert ToolRetryPolicy(attempts=2).pause_after(2, OSError()) is None


def test_only_errors_of_the_named_kinds_are_tried_again() -> None:
    policy = ToolRetryPolicy(on=(OSError,))
    assert (policy.pause_after(1, ConnectionError()), policy.pause_after(1, ValueError())) == (1.0, None)


@pytest.mark.parametrize("error", [ToolRetry("better"), NotDone(), KeyboardInterrupt(), GeneratorExit()], ids=repr)
def test_what_is_not_about_the_call_is_never_tried_again(error: BaseException) -> None:
    assert ToolRetryPolicy().pause_after(1, error) is None


@every(
    "said",
    [
        {"attempts": 0},
        {"attempts": 11},
        {"pause": -1},
        {"pause": float("nan")},
        {"pause": "1"},
        {"factor": 0.5},
        {"longest": 301},
        {"on": ()},
        {"on": (BaseException,)},
        {"on": OSError},
    ],
    ids=str,
)
def test_a_policy_that_can_not_be_meant_is_refused(said: dict[str, Any]) -> None:
    with pytest.raises((InvalidArgument, InvalidNumber)):
        ToolRetryPolicy(**said)


def test_pauses_that_overflow_are_the_longest() -> None:
    policy = ToolRetryPolicy(attempts=10, pause=300, factor=100, longest=300)
    assert policy.pause_after(9, OSError()) == 300
