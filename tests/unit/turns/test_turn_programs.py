"""Programs in a turn, as the journal has them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.effects.replay import fold_history
from holdfast.messages import AssistantMessage, ModelReply, Text, ToolCall, ToolMessage, ToolResult, UserMessage
from holdfast.policy.limits import Consumption, OutOf
from holdfast.records import Cancelled, Done, EffectRequest, ErrorInfo, Failed, Intended, Unknown
from holdfast.runtime.programs import limit_error
from holdfast.runtime.reconciliation import (
    finished_program_calls,
    has_program_records,
    open_program_outcomes,
    stopped_program_outcome,
)
from holdfast.turns.machine import poll, respond, start
from holdfast.turns.programs import (
    aside_key,
    changed_variables,
    decode_changed_variables,
    is_finish,
    is_kept,
    is_pause,
    limit_in_program,
    number_of,
)
from holdfast.turns.state import Checkpoint, Finish, Inputs, Replied, Results, Rules, RunTools, Thread

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text("ab", max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=2), inner, max_size=3),
    max_leaves=6,
)
variables = st.dictionaries(st.sampled_from(["a", "b", "c", "d"]), values)
PROGRAM = "t1/2.tools/1.run_program"
ASK = EffectRequest("tool_call", "pay", "0" * 64)


@given(variables, variables)
def test_what_a_program_changed_leads_from_one_set_of_variables_to_the_other(
    before: dict[str, Any], after: dict[str, Any]
) -> None:
    recorded = decode_changed_variables(msgspec.json.encode(changed_variables(before, after)))
    assert msgspec.json.encode(recorded.after(before), order="sorted") == msgspec.json.encode(after, order="sorted")


def test_what_has_not_changed_is_not_recorded_again() -> None:
    assert msgspec.json.encode(changed_variables({"a": 1, "b": 2}, {"a": 1, "b": 2})) == b"{}"


def test_a_number_that_becomes_a_truth_has_changed() -> None:
    assert changed_variables({"a": 1}, {"a": True}).set == {"a": True}


@pytest.mark.parametrize("what", ["now", "sleep", "finish"])
def test_the_number_of_what_a_program_asked_for_is_in_its_key(what: Any) -> None:
    key = aside_key(PROGRAM, 17, what)
    assert (number_of(key), is_finish(key), is_pause(key)) == (17, what == "finish", what == "sleep")


@pytest.mark.parametrize("key", [PROGRAM, f"{PROGRAM}/%hook", f"{PROGRAM}/step", f"{PROGRAM}/%sleep-x"])
def test_other_keys_have_no_number(key: str) -> None:
    assert (number_of(key), is_kept(key), is_finish(key)) == (0, False, False)


# ---- the machine -----------------------------------------------------------------------------------------------------


def _calling() -> Any:
    state = start("t1", Rules(), Thread(), (UserMessage("t1.i1", (Text("go"),)),), 0)
    reply = ModelReply((ToolCall("c", "run_program", {"source": "1"}),), "tool_calls")
    state = respond(state, 1, Replied(reply))
    assert isinstance(poll(state), RunTools)
    return state


RESULT = (ToolResult("c", "run_program", {"value": 1}),)


def test_a_program_that_ends_the_turn_has_the_last_word() -> None:
    state = respond(_calling(), 2, Results(RESULT, answer="that is all"))
    assert isinstance(poll(state), Checkpoint)
    state = respond(state, 3, Inputs())
    effect = poll(state)
    assert isinstance(effect, Finish)
    assert (effect.ending.status, effect.ending.answer) == ("completed", "t1.2.finish")
    assert [type(message) for message in state.thread.tail(2)] == [ToolMessage, AssistantMessage]


def test_a_limit_that_was_reached_in_a_program_ends_the_turn() -> None:
    effect = poll(respond(_calling(), 2, Results(RESULT, out=OutOf("tool_calls", "enough", 4, 4))))
    assert isinstance(effect, Finish)
    assert (effect.ending.status, effect.ending.code, effect.ending.allowed) == ("limit", "tool_calls", 4)


def test_calls_of_programs_are_used_up_with_the_batch() -> None:
    state = respond(_calling(), 2, Results(RESULT, Consumption(tool_calls=7)))
    assert state.used.tool_calls == 8


def test_the_limit_that_ended_a_program_is_read_from_its_outcome() -> None:
    out = OutOf("tool_calls", "enough", 4, 4)
    error, detail = limit_error(out)
    assert limit_in_program(Failed(at=1, key=PROGRAM, ask=ASK, error=error, detail=msgspec.Raw(detail))) == out


def test_no_other_outcome_of_a_program_is_a_limit() -> None:
    assert limit_in_program(Failed(at=1, key=PROGRAM, ask=ASK, error=ErrorInfo("ProgramFailed", "no"))) is None
    assert limit_in_program(Done(at=1, key=PROGRAM, ask=ASK, value=msgspec.Raw(b"1"))) is None


# ---- what is left of a program that was stopped ----------------------------------------------------------------------


def _past() -> Any:
    pay, ship = f"{PROGRAM}/%call-2.pay", f"{PROGRAM}/%call-3.ship"
    return fold_history(
        [
            Done(at=1, key=f"{PROGRAM}/%call-1.look", ask=ASK, value=msgspec.Raw(b"1")),
            Intended(at=1, key=pay, ask=ASK),
            Intended(at=1, key=f"{ship}/%approval-1", ask=EffectRequest("await_event", "x", "0" * 64)),
            Intended(at=1, key=f"{PROGRAM}/%sleep-4", ask=EffectRequest("sleep", "sleep", "0" * 64)),
        ]
    )


def test_of_a_call_that_was_begun_in_a_program_nobody_knows_and_questions_are_closed() -> None:
    found = [(type(record), record.key.rpartition("/")[2]) for record in open_program_outcomes(_past(), PROGRAM, (), 2)]
    assert found == [(Unknown, "%call-2.pay"), (Cancelled, "%approval-1"), (Cancelled, "%sleep-4")]


def test_what_has_ended_here_is_not_ended_again() -> None:
    known = {f"{PROGRAM}/%call-2.pay", f"{PROGRAM}/%call-3.ship", f"{PROGRAM}/%sleep-4"}
    assert list(open_program_outcomes(_past(), PROGRAM, known, 2)) == []


def test_a_program_that_was_stopped_tells_what_it_had_done() -> None:
    past = _past()
    told = stopped_program_outcome(PROGRAM, ASK, 2, finished_program_calls(past, PROGRAM), [f"{PROGRAM}/%call-2.pay"])
    assert "What it had done stays done: look." in told.error.message
    assert "not known whether they took effect: pay." in told.error.message


def test_a_call_with_steps_of_its_own_is_no_program() -> None:
    past = fold_history(
        [Done(at=1, key="t1/2.tools/1.run/step", ask=EffectRequest("step", "step", "0" * 64), value=msgspec.Raw(b"1"))]
    )
    assert (has_program_records(past, "t1/2.tools/1.run"), has_program_records(_past(), PROGRAM)) == (False, True)
