"""The turn machine, alone: what it asks for, what it makes of the answers, and that it never changes its mind."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pytest
from tests.every import every

from holdfast.errors import InvariantBroken
from holdfast.messages import (
    AssistantMessage,
    FinishReason,
    ModelReply,
    Part,
    Reasoning,
    Refusal,
    ResultState,
    Text,
    ToolCall,
    ToolMessage,
    ToolResult,
    Usage,
    UserMessage,
)
from holdfast.turns.machine import CUT_OFF, EMPTY, MAX_EMPTY, Ending, answer_of, poll, respond, start
from holdfast.turns.state import (
    CallModel,
    Checkpoint,
    Finish,
    Inputs,
    ModelCallFailed,
    Replied,
    Results,
    Rules,
    RunTools,
    Thread,
    TurnState,
)

if TYPE_CHECKING:
    from holdfast.turns.state import Response

SAID: Final = UserMessage("t3.i3", (Text("go"),))
STEER: Final = UserMessage("t3.i4", (Text("and also"),))


def _reply(*parts: Part, finish: FinishReason | None = None, usage: Usage | None = None) -> Replied:
    default: FinishReason = "tool_calls" if any(isinstance(part, ToolCall) for part in parts) else "stop"
    return Replied(ModelReply(parts, finish or default, usage or Usage(1, 2), "scripted"))


def _text(words: str, finish: FinishReason = "stop") -> Replied:
    return _reply(Text(words), finish=finish)


def _calls(*names: str) -> Replied:
    return _reply(*(ToolCall(f"call-{name}", name, {}) for name in names))


def _results(*states: ResultState, name: str = "a") -> Results:
    return Results(tuple(ToolResult(f"call-{name}", name, state, state) for state in states))


def _start(rules: Rules | None = None, history: Thread | None = None, position: int = 0) -> TurnState:
    return start("t3", rules or Rules(), history or Thread(), (SAID,), position)


def _after(state: TurnState, *responses: Response) -> TurnState:
    """The state after these outcomes, each of the effect that was awaited."""
    for response in responses:
        state = respond(state, poll(state).id, response)
    return state


def _ending(state: TurnState) -> Ending:
    effect = poll(state)
    assert isinstance(effect, Finish), effect
    return effect.ending


def _note(state: TurnState) -> str | None:
    effect = poll(state)
    assert isinstance(effect, Checkpoint), effect
    return effect.note


# ---- pure ------------------------------------------------------------------------------------------------------------

STATES: Final[dict[str, tuple[tuple[Response, ...], Response]]] = {
    "asking the model": ((), _text("done")),
    "running tools": ((_calls("a"),), _results("ok")),
    "after work": ((_calls("a"), _results("ok")), Inputs((STEER,))),
    "before completion": ((_text("done"),), Inputs()),
    "telling the model": ((_text(""),), Inputs()),
}
each_state = pytest.mark.parametrize(("before", "answer"), list(STATES.values()), ids=list(STATES))


@each_state
def test_polling_twice_asks_for_the_same_effect(before: tuple[Response, ...], answer: Response) -> None:
    state = _after(_start(), *before)
    assert poll(state) is poll(state)


@each_state
@pytest.mark.parametrize("step", [-1, 1, 100], ids=["stale", "next", "foreign"])
def test_an_outcome_of_another_effect_changes_nothing(
    step: int, before: tuple[Response, ...], answer: Response
) -> None:
    state = _after(_start(), *before)
    assert respond(state, poll(state).id + step, answer) is state


@each_state
def test_an_outcome_does_not_touch_the_state_that_it_was_given_to(
    before: tuple[Response, ...], answer: Response
) -> None:
    state = _after(_start(), *before)
    seen = copy.copy(state), state.thread.messages, state.thread.chain
    _after(state, answer)
    assert (state, state.thread.messages, state.thread.chain) == seen


@each_state
def test_the_same_outcome_gives_the_same_state(before: tuple[Response, ...], answer: Response) -> None:
    state = _after(_start(), *before)
    assert _after(state, answer) == _after(state, answer)


@each_state
def test_an_outcome_that_comes_twice_counts_once(before: tuple[Response, ...], answer: Response) -> None:
    state = _after(_start(), *before)
    once = respond(state, poll(state).id, answer)
    assert respond(once, poll(state).id, answer) is once


@each_state
def test_an_outcome_of_the_wrong_kind_is_our_own_bug(before: tuple[Response, ...], answer: Response) -> None:
    state = _after(_start(), *before)
    wrong = Results(()) if not isinstance(answer, Results) else Inputs()
    with pytest.raises(InvariantBroken):
        _after(state, wrong)


def test_two_answers_to_one_state_do_not_see_each_other() -> None:
    state = _start()
    one, two = _after(state, _text("one")), _after(state, _text("two"))
    assert [said.text for said in (one.thread.last, two.thread.last) if isinstance(said, AssistantMessage)] == [
        "one",
        "two",
    ]
    assert len(state.thread) == 1


def test_a_state_can_not_be_changed() -> None:
    with pytest.raises(AttributeError):
        _start().steps = 7  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("late", [_text("more"), ModelCallFailed("x", "y"), _results("ok"), Inputs((STEER,))], ids=repr)
def test_a_turn_that_has_ended_stays_as_it_is(late: Response) -> None:
    state = _after(_start(), _text("done"), Inputs())
    with pytest.raises(InvariantBroken):
        respond(state, poll(state).id, late)
    assert respond(state, poll(state).id - 1, late) is state


# ---- ids -------------------------------------------------------------------------------------------------------------


def test_effects_are_numbered_without_gaps() -> None:
    state = _start()
    numbers = [poll(state).id]
    for response in (_calls("a"), _results("ok"), Inputs(), _text("done"), Inputs()):
        state = _after(state, response)
        numbers.append(poll(state).id)
    assert numbers == [1, 2, 3, 4, 5, 6]


def test_messages_are_named_after_the_effects_that_made_them() -> None:
    thought = _reply(Reasoning("hm"))
    state = _after(_start(), _calls("a"), _results("ok"), Inputs((STEER,)), thought, Inputs(), _text("done"))
    assert [said.id for said in state.thread.messages] == ["t3.i3", "t3.1", "t3.2", "t3.i4", "t3.4", "t3.5", "t3.6"]


def test_the_first_request_is_what_was_said_after_all_that_was_said_before() -> None:
    history = Thread().add(UserMessage("t1.i1", (Text("before"),)), AssistantMessage("t1.1", (Text("yes"),)))
    effect = poll(_start(history=history))
    assert isinstance(effect, CallModel)
    assert [said.id for said in effect.thread.messages] == ["t1.i1", "t1.1", "t3.i3"]


def test_model_calls_count_from_where_the_conversation_was() -> None:
    state = _start(position=7)
    positions = [effect.position for effect in [poll(state)] if isinstance(effect, CallModel)]
    state = _after(state, _calls("a"), _results("ok"), Inputs())
    positions += [effect.position for effect in [poll(state)] if isinstance(effect, CallModel)]
    assert positions == [7, 8]


# ---- tools -----------------------------------------------------------------------------------------------------------


def test_calls_are_in_the_conversation_before_any_of_them_is_run() -> None:
    state = _after(_start(), _calls("a", "b"))
    last = state.thread.last
    assert isinstance(last, AssistantMessage)
    assert [call.name for call in last.calls] == ["a", "b"]


def test_all_calls_of_a_reply_are_one_effect_in_their_order() -> None:
    effect = poll(_after(_start(), _calls("b", "a", "c")))
    assert isinstance(effect, RunTools)
    assert [call.name for call in effect.calls] == ["b", "a", "c"]


def test_the_results_of_a_batch_are_one_message() -> None:
    state = _after(_start(), _calls("a", "b"), _results("ok", "error"))
    last = state.thread.last
    assert isinstance(last, ToolMessage)
    assert [result.state for result in last.results] == ["ok", "error"]


def test_one_checkpoint_follows_a_batch() -> None:
    state = _after(_start(), _calls("a", "b", "c"), _results("ok", "ok", "ok"))
    assert poll(state) == Checkpoint(3, "after_work")


@pytest.mark.parametrize("states", [(), ("ok",), ("ok", "ok", "ok")], ids=len)
def test_another_number_of_results_than_of_calls_is_our_own_bug(states: tuple[ResultState, ...]) -> None:
    with pytest.raises(InvariantBroken):
        _after(_start(), _calls("a", "b"), _results(*states))


@pytest.mark.parametrize("state", ["error", "unknown", "cancelled", "skipped"])
def test_a_call_that_failed_is_told_to_the_model_and_the_turn_goes_on(state: ResultState) -> None:
    effect = poll(_after(_start(), _calls("a"), _results(state), Inputs()))
    assert isinstance(effect, CallModel)


def test_calls_beside_words_are_run() -> None:
    effect = poll(_after(_start(), _reply(Text("let me look"), ToolCall("c", "a", {}))))
    assert isinstance(effect, RunTools)


@pytest.mark.parametrize("finish", ["stop", "tool_calls", "output_limit"])
def test_calls_are_run_whatever_the_provider_says_about_the_end(finish: FinishReason) -> None:
    effect = poll(_after(_start(), _reply(ToolCall("c", "a", {}), finish=finish)))
    assert isinstance(effect, RunTools)


# ---- how a reply ends ------------------------------------------------------------------------------------------------


def test_an_answer_completes_the_turn_when_nothing_came_meanwhile() -> None:
    ending = _ending(_after(_start(), _text("done"), Inputs()))
    assert ending == Ending("completed", answer="t3.1", steps=1, usage=Usage(1, 2))


@every("finish", ["refusal", "content_filter", "context_overflow"])
@every("parts", [(), (Refusal("no"),), (ToolCall("c", "a", {}),)], ids=["empty", "words", "a call"])
def test_a_reply_that_the_provider_stopped_fails_the_turn(parts: tuple[Part, ...], finish: FinishReason) -> None:
    ending = _ending(_after(_start(), _reply(*parts, finish=finish)))
    assert (ending.status, ending.code, ending.blame) == ("failed", finish, "model")


def test_a_reply_that_was_broken_off_cancels_the_turn() -> None:
    ending = _ending(_after(_start(), _text("half a", finish="cancelled")))
    assert (ending.status, ending.answer) == ("cancelled", "t3.1")


def test_a_model_that_fails_fails_the_turn_with_its_own_words() -> None:
    ending = _ending(_after(_start(), ModelCallFailed("overloaded", "try later")))
    assert (ending.status, ending.code, ending.message, ending.blame) == ("failed", "overloaded", "try later", "model")


def test_a_provider_that_fails_is_followed_by_no_checkpoint() -> None:
    state = _after(_start(), ModelCallFailed("overloaded", ""))
    assert poll(state).id == 2


def test_an_empty_reply_is_asked_for_again() -> None:
    assert _note(_after(_start(), _text("  \n"))) == EMPTY


def test_a_reply_of_thoughts_alone_is_empty() -> None:
    assert _note(_after(_start(), _reply(Reasoning("hm")))) == EMPTY


def test_too_many_empty_replies_fail_the_turn() -> None:
    state = _start()
    for _ in range(MAX_EMPTY):
        state = _after(state, _text(""), Inputs())
    ending = _ending(_after(state, _text("")))
    assert (ending.status, ending.code, ending.blame) == ("failed", "empty_response", "model")


@pytest.mark.parametrize("reply", [_reply(), _text(""), _text(" \n")], ids=["no parts", "no words", "spaces"])
def test_a_reply_without_words_leaves_no_message(reply: Replied) -> None:
    state = _after(_start(), reply, Inputs())
    assert [said.id for said in state.thread.messages] == ["t3.i3", "t3.2"]


@pytest.mark.parametrize("reply", [_reply(), _text(""), _text("\n"), _reply(Reasoning("hm"))], ids=repr)
def test_an_empty_reply_after_tools_is_how_a_model_says_that_it_is_done(reply: Replied) -> None:
    state = _after(_start(), _calls("a"), _results("ok"), Inputs(), reply, Inputs())
    assert _ending(state).status == "completed"


def test_an_empty_reply_after_tools_is_no_answer_where_one_was_asked_for() -> None:
    rules = Rules(check=lambda _: None)
    assert _note(_after(_start(rules), _calls("a"), _results("ok"), Inputs(), _text(""))) == EMPTY


def test_an_empty_reply_to_a_steer_after_tools_is_asked_for_again() -> None:
    assert _note(_after(_start(), _calls("a"), _results("ok"), Inputs((STEER,)), _text(""))) == EMPTY


# ---- the output limit ------------------------------------------------------------------------------------------------


def test_an_answer_that_was_cut_off_is_continued() -> None:
    assert _note(_after(_start(), _text("once upon", finish="output_limit"))) == CUT_OFF


def test_the_pieces_of_a_continued_answer_are_one_answer() -> None:
    state = _after(
        _start(),
        _text("once ", finish="output_limit"),
        Inputs(),
        _text("upon ", finish="output_limit"),
        Inputs(),
        _text("a time"),
        Inputs(),
    )
    assert answer_of(state.thread, _ending(state).answer or "") == "once upon a time"


def test_an_answer_that_is_cut_off_too_often_reaches_a_limit() -> None:
    cut = _text("more ", finish="output_limit")
    ending = _ending(_after(_start(Rules(continuations=1)), cut, Inputs(), cut))
    assert (ending.status, ending.code, ending.blame, ending.answer) == ("limit", "output_limit", "limit", "t3.3")


def test_no_word_before_the_output_limit_is_a_context_that_is_full() -> None:
    ending = _ending(_after(_start(), _reply(finish="output_limit")))
    assert (ending.status, ending.code) == ("failed", "context_overflow")


def test_reasoning_that_used_up_the_output_without_a_word_is_an_output_limit() -> None:
    ending = _ending(_after(_start(), _reply(finish="output_limit", usage=Usage(output=64, reasoning=64))))
    assert (ending.status, ending.code, ending.blame) == ("limit", "output_limit", "limit")


def test_the_whole_of_a_continued_answer_is_checked() -> None:
    checked: list[str] = []
    rules = Rules(check=checked.append)
    _after(_start(rules), _text('{"a":', finish="output_limit"), Inputs(), _text("1}"))
    assert checked == ['{"a":1}']


def test_the_answer_of_an_earlier_turn_is_not_part_of_this_one() -> None:
    history = Thread().add(
        UserMessage("t1.i1", (Text("before"),)), AssistantMessage("t1.1", (Text("cut"),), "output_limit")
    )
    state = _after(_start(history=history), _text("done"), Inputs())
    assert answer_of(state.thread, "t3.1") == "done"


def test_an_answer_that_is_not_there_has_no_words() -> None:
    assert answer_of(Thread().add(SAID), "t9.1") == ""


# ---- the shape of the answer -----------------------------------------------------------------------------------------

STRICT: Final = Rules(repairs=2, check=lambda answer: None if answer == "ok" else f"{answer!r} is not ok")


def test_an_answer_of_the_wrong_shape_is_sent_back_with_what_is_wrong() -> None:
    assert _note(_after(_start(STRICT), _text("bad"))) == "'bad' is not ok"


def test_what_is_wrong_is_told_as_a_message_of_ours() -> None:
    state = _after(_start(STRICT), _text("bad"), Inputs())
    assert state.thread.last == UserMessage("t3.2", (Text("'bad' is not ok"),), "holdfast")


def test_an_answer_that_was_repaired_completes_the_turn() -> None:
    ending = _ending(_after(_start(STRICT), _text("bad"), Inputs(), _text("ok"), Inputs()))
    assert (ending.status, ending.typed, ending.answer) == ("completed", True, "t3.3")


def test_an_answer_of_no_shape_is_not_typed() -> None:
    assert not _ending(_after(_start(), _text("ok"), Inputs())).typed


def test_repairs_are_bounded() -> None:
    state = _start(STRICT)
    for _ in range(2):
        state = _after(state, _text("bad"), Inputs())
    ending = _ending(_after(state, _text("bad")))
    assert (ending.status, ending.code, ending.blame) == ("failed", "invalid_output", "model")


def test_an_answer_is_checked_again_after_a_steer() -> None:
    state = _after(_start(STRICT), _text("ok"), Inputs((STEER,)), _text("bad"))
    assert _note(state) == "'bad' is not ok"


# ---- checkpoints -----------------------------------------------------------------------------------------------------


def test_what_enters_after_work_is_read_with_the_results() -> None:
    effect = poll(_after(_start(), _calls("a"), _results("ok"), Inputs((STEER,))))
    assert isinstance(effect, CallModel)
    assert effect.thread.last == STEER


def test_what_enters_before_completion_keeps_the_turn_going() -> None:
    effect = poll(_after(_start(), _text("done"), Inputs((STEER,))))
    assert isinstance(effect, CallModel)
    assert effect.thread.last == STEER


def test_what_we_have_to_say_comes_before_what_entered() -> None:
    state = _after(_start(), _text(""), Inputs((STEER,)))
    assert [said.id for said in state.thread.tail(2)] == ["t3.2", "t3.i4"]


def test_several_inputs_enter_in_their_order() -> None:
    more = replace_id(STEER, "t3.i5")
    state = _after(_start(), _text("done"), Inputs((STEER, more)))
    assert [said.id for said in state.thread.tail(2)] == ["t3.i4", "t3.i5"]


def replace_id(message: UserMessage, id: str) -> UserMessage:
    return UserMessage(id, message.parts)


def test_a_turn_that_was_steered_again_and_again_ends_with_its_last_step() -> None:
    state = _start(Rules(steps=3))
    for _ in range(2):
        state = _after(state, _text("done"), Inputs((STEER,)))
    ending = _ending(_after(state, _text("done")))
    assert (ending.status, ending.steps) == ("completed", 3)


# ---- budgets ---------------------------------------------------------------------------------------------------------


def test_the_last_step_may_be_the_answer() -> None:
    assert _ending(_after(_start(Rules(steps=1)), _text("done"))).status == "completed"


def test_nothing_enters_where_no_step_is_left_to_answer_it() -> None:
    assert isinstance(poll(_after(_start(Rules(steps=1)), _text("done"))), Finish)
    assert isinstance(poll(_after(_start(Rules(steps=2)), _text("done"))), Checkpoint)


def test_the_steps_are_used_up_when_the_last_one_asks_for_tools() -> None:
    ending = _ending(_after(_start(Rules(steps=1)), _calls("a")))
    assert (ending.status, ending.code, ending.blame, ending.steps) == ("limit", "steps", "limit", 1)


def test_without_a_bound_steps_do_not_end_a_turn() -> None:
    state = _start(Rules(steps=None))
    for _ in range(200):
        state = _after(state, _calls("a"), _results("ok"), Inputs())
    assert (state.steps, type(poll(state))) == (200, CallModel)


def test_steps_that_lead_to_nothing_end_the_turn() -> None:
    state = _start(Rules(stalls=3))
    for _ in range(2):
        state = _after(state, _calls("a"), _results("error"), Inputs())
    ending = _ending(_after(state, _calls("a"), _results("unknown")))
    assert (ending.status, ending.code, ending.blame) == ("limit", "no_progress", "limit")


def test_one_call_that_succeeds_is_progress() -> None:
    state = _start(Rules(stalls=2))
    for _ in range(5):
        state = _after(state, _calls("a"), _results("error"), Inputs(), _calls("a", "b"), _results("error", "ok"))
        state = _after(state, Inputs())
    assert state.stalls == 0


def test_a_model_that_goes_nowhere_in_other_ways_stalls_too() -> None:
    rules = replace(STRICT, stalls=2, repairs=10)
    state = _after(_start(rules), _text("bad"), Inputs())
    assert _ending(_after(state, _text("bad"))).code == "no_progress"


def test_the_default_bounds_are_those_of_the_design() -> None:
    assert (Rules().steps, Rules().stalls, Rules().repairs, Rules().continuations) == (50, 12, 3, 2)


def test_the_usage_of_a_turn_is_that_of_all_its_replies() -> None:
    state = _after(
        _start(),
        _reply(ToolCall("c", "a", {}), usage=Usage(1, 2, 3, 4, 1)),
        _results("ok"),
        Inputs(),
        _reply(usage=Usage(10, 20, 30, 40, 10)),
        Inputs(),
    )
    assert _ending(state).usage == Usage(11, 22, 33, 44, 11)


def test_a_turn_that_fails_still_says_what_it_used() -> None:
    ending = _ending(_after(_start(), _calls("a"), _results("ok"), Inputs(), ModelCallFailed("x", "")))
    assert (ending.steps, ending.usage) == (1, Usage(1, 2))


# ---- threads ---------------------------------------------------------------------------------------------------------


def test_a_thread_that_grows_does_not_change_the_one_it_grew_from() -> None:
    short = Thread().add(SAID)
    short.add(STEER)
    assert (short.messages, len(short), short.last) == ((SAID,), 1, SAID)


def test_two_threads_that_grow_from_one_are_two() -> None:
    short = Thread().add(SAID)
    one, two = short.add(STEER), short.add(replace_id(STEER, "t3.i9"))
    assert [said.id for said in one.messages] == ["t3.i3", "t3.i4"]
    assert [said.id for said in two.messages] == ["t3.i3", "t3.i9"]


def test_threads_with_the_same_messages_have_the_same_digest() -> None:
    assert Thread().add(SAID, STEER).chain == Thread().add(SAID).add(STEER).chain


def test_threads_with_other_messages_have_another_digest() -> None:
    threads = [Thread().add(*said) for said in ((SAID,), (STEER,), (SAID, STEER), (STEER, SAID), ())]
    assert len({thread.chain for thread in threads}) == 5


def test_a_thread_can_be_read_from_its_end() -> None:
    thread = Thread().add(SAID, STEER)
    assert (list(thread.backwards()), thread.tail(1), thread.tail(9)) == ([STEER, SAID], [STEER], [SAID, STEER])
    assert Thread().last is None
