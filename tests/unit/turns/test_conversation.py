"""The conversation as a fold of the journal: it tells the same as the machine that made the records, at every point."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from holdfast.errors import InvariantBroken
from holdfast.messages import (
    AssistantMessage,
    FinishReason,
    Message,
    ModelReply,
    Part,
    Reasoning,
    Text,
    ToolCall,
    ToolMessage,
    ToolResult,
    Usage,
    UserMessage,
    decode_reply,
    encode,
)
from holdfast.records import (
    Admitted,
    Cancelled,
    Done,
    EffectRequest,
    Ended,
    EndStatus,
    ErrorInfo,
    Failed,
    Intended,
    Opened,
    Outcome,
    Parked,
    Record,
    Resumed,
    Started,
    Unknown,
)
from holdfast.turns import keys
from holdfast.turns.conversation import (
    CancelRequest,
    CheckpointOutcome,
    Conversation,
    OpenTurn,
    UserInput,
    decode_checkpoint,
    decode_input,
    ending_of_record,
)
from holdfast.turns.machine import Ending, poll, respond, start
from holdfast.turns.results import result_of
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
    TurnState,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.turns.state import Response

Batch = list[Record]
"""Records that are committed together."""
ASK: Final = EffectRequest("model_call", "agent", "digest")


# ---- a script: what the world answers, by the place in the turn ------------------------------------------------------


@dataclass(frozen=True)
class Script:
    """All that happens to one turn. What is not said goes well, and comes to an end."""

    rules: Rules
    replies: tuple[ModelReply | ErrorInfo, ...]
    outcomes: tuple[str, ...]
    steers: tuple[int, ...]
    backwards: bool
    """The calls of a batch settle from the last to the first."""

    def reply(self, step: int) -> ModelReply | ErrorInfo:
        return self.replies[step] if step < len(self.replies) else ModelReply((Text("ok, that is all"),), "stop")

    def outcome(self, number: int, call: int) -> str:
        return self.outcomes[(number + call) % len(self.outcomes)] if self.outcomes else "done"

    def steering(self, number: int) -> int:
        return self.steers[number] if number < len(self.steers) else 0


def _wants_ok(answer: str) -> str | None:
    return None if "ok" in answer else f"{answer!r} is not ok"


finishes: st.SearchStrategy[FinishReason] = st.sampled_from(
    ("stop", "stop", "tool_calls", "output_limit", "refusal", "content_filter", "context_overflow", "cancelled")
)
words = st.sampled_from(("", " ", "ok", "more words", "ünï¢ode ✓"))
calls = st.builds(ToolCall, st.sampled_from(("c1", "c2", "c3")), st.sampled_from(("find", "pay", "a/b")), st.just({}))
parts: st.SearchStrategy[Part] = st.one_of(calls, st.builds(Text, words), st.builds(Reasoning, words), calls)
counts = st.integers(0, 9)
replies = st.builds(
    ModelReply,
    st.lists(parts, max_size=4).map(tuple),
    finishes,
    st.builds(Usage, counts, counts, counts, counts, counts),
    st.sampled_from(("one", "two")),
)
scripts = st.builds(
    Script,
    st.builds(
        Rules,
        st.sampled_from((1, 2, 5, None)),
        st.integers(1, 4),
        st.integers(0, 2),
        st.integers(0, 2),
        st.sampled_from((None, _wants_ok)),
    ),
    st.lists(st.one_of(replies, replies, replies, st.just(ErrorInfo("overloaded", "later"))), max_size=7).map(tuple),
    st.lists(st.sampled_from(("done", "failed", "unknown", "cancelled")), max_size=4).map(tuple),
    st.lists(st.sampled_from((0, 0, 1, 2)), max_size=14).map(tuple),
    st.booleans(),
)
sessions = st.lists(scripts, min_size=1, max_size=3)


# ---- a driver without a clock, a store or a loop ---------------------------------------------------------------------


class Pen:
    """Drives turns by hand, and writes what a driver would write."""

    def __init__(self, batches: Iterable[Batch] = ()) -> None:
        self.conversation = Conversation()
        self.batches: list[Batch] = []
        for batch in batches:
            self.write(*batch)

    def write(self, *records: Record) -> None:
        self.batches.append(list(records))
        for record in records:
            self.conversation.add(self.conversation.seq + 1, record)

    def session(self, scripts: list[Script]) -> list[TurnState]:
        """Take a session from wherever it is to its end; answers how the machine left each turn that was driven."""
        if not self.batches:
            self.write(Opened(at=0, kind="session", format=1, agent="agent"))
        return [self.turn(n, script) for n, script in enumerate(scripts) if _run(n) not in self.conversation.endings]

    def turn(self, n: int, script: Script) -> TurnState:
        run = _run(n)
        if self.conversation.turn is None:
            self.write(Started(at=0, run=run), _admitted(_first(n), run))
        turn = self.conversation.turn
        assert turn is not None
        state = start(run, script.rules, turn.before, turn.said, turn.position)
        past = {key: record for record in turn.records if (key := getattr(record, "key", None)) is not None}
        inputs = dict(turn.inputs)
        while True:
            effect = poll(state)
            match effect:
                case Finish(ending=ending):
                    self.write(_ended(run, ending))
                    return state
                case CallModel():
                    response = self._model(effect, past, run, script.reply(state.steps))
                case RunTools():
                    response = self._tools(effect, past, run, script)
                case Checkpoint():
                    response = self._checkpoint(effect, past, inputs, run, _steers(n, effect.id, script))
            state = respond(state, effect.id, response)

    def _model(self, effect: CallModel, past: dict[str, Any], run: str, answer: ModelReply | ErrorInfo) -> Response:
        key = keys.effect_key(run, effect.id, "model")
        record = past.get(key)
        if record is None:
            if isinstance(answer, ModelReply):
                record = Done(at=0, key=key, ask=ASK, value=msgspec.Raw(encode(answer)))
            else:
                record = Failed(at=0, key=key, ask=ASK, error=answer)
            self.write(record)
        if isinstance(record, Done):
            return Replied(decode_reply(bytes(record.value)))
        return ModelCallFailed(record.error.kind, record.error.message)

    def _tools(self, effect: RunTools, past: dict[str, Any], run: str, script: Script) -> Response:
        results: dict[int, ToolResult] = {}
        numbered = list(enumerate(effect.calls, 1))
        for number, call in reversed(numbered) if script.backwards else numbered:
            key = keys.call_key(run, effect.id, number, call.name)
            record = past.get(key)
            if not isinstance(record, Outcome):
                record = _outcome(key, script.outcome(effect.id, number))
                self.write(record)
            results[number] = result_of(call, record)
        return Results(tuple(results[number] for number, _ in numbered))

    def _checkpoint(
        self, effect: Checkpoint, past: dict[str, Any], inputs: dict[int, UserMessage], run: str, steers: list[int]
    ) -> Response:
        key = keys.effect_key(run, effect.id, "checkpoint")
        record = past.get(key)
        if record is not None:
            return Inputs(tuple(inputs[number] for number in decode_checkpoint(record).inputs))
        if any(found.number > effect.id for name in past if (found := keys.parse_key(name)) is not None):
            return Inputs()  # a checkpoint at which nothing entered leaves no record
        admitted = [_admitted(number, run) for number in steers]
        if admitted or effect.note is not None:
            entered = msgspec.Raw(msgspec.json.encode(CheckpointOutcome(tuple(steers), effect.note)))
            self.write(Done(at=0, key=key, ask=ASK, value=entered), *admitted)
        return Inputs(tuple(_message(number, run) for number in steers))


def _first(n: int) -> int:
    """The input that begins a turn; those that steer it come after it."""
    return 100 * n + 1


def _run(n: int) -> str:
    return keys.turn_id(_first(n))


def _steers(n: int, number: int, script: Script) -> list[int]:
    return [_first(n) + 3 * number + k for k in range(script.steering(number))]


def _words(number: int) -> tuple[Text, ...]:
    return (Text(f"input {number}"),)


def _message(number: int, run: str) -> UserMessage:
    return UserMessage(f"{run}.i{number}", _words(number))


def _admitted(number: int, run: str) -> Admitted:
    body = msgspec.Raw(msgspec.json.encode(UserInput(_words(number))))
    return Admitted(at=0, input=number, key=f"k{number}", body=body, run=run)


def _outcome(key: str, kind: str) -> Outcome:
    match kind:
        case "done":
            return Done(at=0, key=key, ask=ASK, value=msgspec.Raw(b'{"found": 1}'))
        case "failed":
            return Failed(at=0, key=key, ask=ASK, error=ErrorInfo("ValueError", "no such order"))
        case "unknown":
            return Unknown(at=0, key=key)
        case _:
            return Cancelled(at=0, key=key)


def _ended(run: str, ending: Ending) -> Ended:
    return Ended(at=0, run=run, status=ending.status, value=msgspec.Raw(msgspec.json.encode(ending)))


def _folded(batches: list[Batch]) -> Conversation:
    return Pen(batches).conversation


def _replies(state: TurnState) -> int:
    """Model calls of the conversation: a failed one counts, though the machine does not count it as a step."""
    effect = poll(state)
    assert isinstance(effect, Finish)
    return state.position + (effect.ending.code == "overloaded")


# ---- the same story --------------------------------------------------------------------------------------------------


@given(sessions)
def test_the_fold_of_the_records_has_the_messages_of_the_machine(scripts: list[Script]) -> None:
    pen = Pen()
    for n, script in enumerate(scripts):
        state = pen.turn(n, script)
        folded, told = pen.conversation.thread.messages, state.thread.messages
        assert folded[: len(told)] == told
        left = folded[len(told) :]  # calls that the end of the turn left without a result
        assert all(isinstance(said, ToolMessage) for said in left)
        assert {result.state for said in left if isinstance(said, ToolMessage) for result in said.results} <= {
            "skipped"
        }
        if not left:
            assert pen.conversation.thread.chain == state.thread.chain


@given(sessions)
def test_the_fold_of_the_records_is_as_far_as_the_machine(scripts: list[Script]) -> None:
    pen = Pen()
    states = pen.session(scripts)
    assert pen.conversation.position == _replies(states[-1])
    assert [pen.conversation.endings[_run(n)] for n in range(len(scripts))] == [
        effect.ending for state in states if isinstance(effect := poll(state), Finish)
    ]


@given(sessions)
def test_the_usage_of_a_session_is_the_sum_of_its_turns(scripts: list[Script]) -> None:
    pen = Pen()
    pen.session(scripts)
    by_model, by_turn = Usage(), Usage()
    for used in pen.conversation.usage.values():
        by_model += used.usage
    for ending in pen.conversation.endings.values():
        by_turn += ending.usage
    assert by_model == by_turn


@given(sessions)
def test_folding_twice_gives_the_same(scripts: list[Script]) -> None:
    pen = Pen()
    pen.session(scripts)
    again = _folded(pen.batches)
    assert (again.thread.messages, again.thread.chain, again.position, again.endings, again.usage) == (
        pen.conversation.thread.messages,
        pen.conversation.thread.chain,
        pen.conversation.position,
        pen.conversation.endings,
        pen.conversation.usage,
    )


@given(sessions)
def test_no_two_messages_have_one_id(scripts: list[Script]) -> None:
    pen = Pen()
    pen.session(scripts)
    ids = [said.id for said in pen.conversation.thread.messages]
    assert len(set(ids)) == len(ids)


@given(sessions)
def test_no_two_outcomes_have_one_key(scripts: list[Script]) -> None:
    pen = Pen()
    pen.session(scripts)
    found = [record.key for batch in pen.batches for record in batch if isinstance(record, Outcome)]
    assert len(set(found)) == len(found)


@settings(max_examples=examples(60))
@given(sessions)
def test_a_session_that_is_cut_anywhere_goes_on_to_the_same_end(scripts: list[Script]) -> None:
    whole = Pen()
    whole.session(scripts)
    for cut in range(len(whole.batches)):
        resumed = Pen(whole.batches[:cut])
        resumed.session(scripts)
        assert resumed.batches == whole.batches
        assert resumed.conversation.thread.chain == whole.conversation.thread.chain
        assert resumed.conversation.endings == whole.conversation.endings


@settings(max_examples=examples(60))
@given(sessions)
def test_the_conversation_of_a_cut_session_is_the_beginning_of_the_whole_one(scripts: list[Script]) -> None:
    whole = Pen()
    whole.session(scripts)
    told = whole.conversation.thread.messages
    for cut in range(len(whole.batches)):
        folded = _folded(whole.batches[:cut]).thread.messages
        assert folded == told[: len(folded)]


# ---- every call has a result -----------------------------------------------------------------------------------------


def _unanswered(messages: Iterable[Message]) -> list[str]:
    """Messages with calls that are not followed by one result for each call, in order."""
    found: list[str] = []
    for said, then in pairwise([*messages, None]):
        wanted = [call.id for call in said.calls] if isinstance(said, AssistantMessage) else []
        given = [result.call_id for result in then.results] if isinstance(then, ToolMessage) else []
        if (wanted and wanted != given) or (isinstance(then, ToolMessage) and not wanted):
            found.append(said.id if said is not None else "")
    return found


@given(sessions)
def test_every_call_of_a_turn_that_has_ended_has_exactly_one_result(scripts: list[Script]) -> None:
    pen = Pen()
    pen.session(scripts)
    assert _unanswered(pen.conversation.thread.messages) == []


@settings(max_examples=examples(60))
@given(sessions, st.sampled_from(("cancelled", "limit", "failed")))
def test_every_call_has_exactly_one_result_wherever_the_turn_was_broken_off(
    scripts: list[Script], status: EndStatus
) -> None:
    whole = Pen()
    whole.session(scripts)
    for cut in range(len(whole.batches)):
        broken = Pen(whole.batches[:cut])
        if broken.conversation.turn is not None:
            broken.write(_ended(broken.conversation.turn.run, Ending(status)))
        assert _unanswered(broken.conversation.thread.messages) == []


@settings(max_examples=examples(60))
@given(sessions)
def test_every_call_has_exactly_one_result_wherever_the_session_was_forked(scripts: list[Script]) -> None:
    whole = Pen()
    whole.session(scripts)
    records = [record for batch in whole.batches for record in batch]
    for cut in range(len(records)):
        forked = _folded([[record] for record in records[:cut]])
        forked.cut()
        assert _unanswered(forked.thread.messages) == []
        assert forked.turn is None


# ---- one by one ------------------------------------------------------------------------------------------------------


def _open_turn(*records: Record) -> Pen:
    pen = Pen()
    pen.write(Opened(at=0, kind="session", format=1, agent="agent"))
    pen.write(Started(at=0, run="t1", deadline=99), _admitted(1, "t1"))
    for record in records:
        pen.write(record)
    return pen


def _replied(number: int, *said: Part, finish: FinishReason = "stop") -> Done:
    reply = ModelReply(said, finish, Usage(1, 2), "scripted")
    return Done(at=0, key=f"t1/{number}.model", ask=ASK, value=msgspec.Raw(encode(reply)))


TWO_CALLS: Final = _replied(1, ToolCall("c1", "find", {}), ToolCall("c2", "pay", {}), finish="tool_calls")


def _turn(pen: Pen) -> OpenTurn:
    assert pen.conversation.turn is not None
    return pen.conversation.turn


def test_the_first_record_names_the_agent() -> None:
    assert _open_turn().conversation.agent == "agent"


def test_a_turn_that_has_begun_is_open_with_what_began_it() -> None:
    turn = _turn(_open_turn())
    assert (turn.run, turn.said, turn.deadline, turn.position) == ("t1", (_message(1, "t1"),), 99, 0)


def test_a_message_of_ours_is_marked_as_ours() -> None:
    note = msgspec.Raw(msgspec.json.encode(CheckpointOutcome((), "go on")))
    pen = _open_turn(Done(at=0, key="t1/2.checkpoint", ask=ASK, value=note))
    assert pen.conversation.thread.last == UserMessage("t1.2", (Text("go on"),), "holdfast")


def test_results_are_not_told_before_all_of_them_are_there() -> None:
    pen = _open_turn(TWO_CALLS, Done(at=0, key="t1/2.tools/2.pay", ask=ASK, value=msgspec.Raw(b"1")))
    assert isinstance(pen.conversation.thread.last, AssistantMessage)


def test_results_come_in_the_order_of_the_calls_however_they_settled() -> None:
    pen = _open_turn(TWO_CALLS, _outcome("t1/2.tools/2.pay", "done"), _outcome("t1/2.tools/1.find", "failed"))
    last = pen.conversation.thread.last
    assert isinstance(last, ToolMessage)
    assert [(result.call_id, result.state) for result in last.results] == [("c1", "error"), ("c2", "ok")]


def test_what_a_tool_does_inside_is_not_a_result() -> None:
    inside = Done(at=0, key="t1/2.tools/1.find/look", ask=ASK, value=msgspec.Raw(b"1"))
    assert _turn(_open_turn(TWO_CALLS, inside)).results == {}


def test_a_cancellation_after_an_outcome_does_not_change_it() -> None:
    pen = _open_turn(
        TWO_CALLS,
        _outcome("t1/2.tools/1.find", "done"),
        _outcome("t1/2.tools/1.find", "cancelled"),
        _outcome("t1/2.tools/2.pay", "done"),
    )
    last = pen.conversation.thread.last
    assert isinstance(last, ToolMessage)
    assert [result.state for result in last.results] == ["ok", "ok"]


def test_an_intent_alone_is_no_result() -> None:
    pen = _open_turn(TWO_CALLS, Intended(at=0, key="t1/2.tools/1.find", ask=ASK))
    assert (_turn(pen).results, len(_turn(pen).records)) == ({}, 2)


@pytest.mark.parametrize("status", ["completed", "failed", "cancelled", "limit"])
def test_a_call_that_was_never_begun_says_why(status: EndStatus) -> None:
    pen = _open_turn(TWO_CALLS, _outcome("t1/2.tools/1.find", "done"), _ended("t1", Ending(status)))
    last = pen.conversation.thread.last
    assert isinstance(last, ToolMessage)
    assert [result.state for result in last.results] == ["ok", "skipped"]


def test_a_call_that_was_begun_and_has_no_outcome_at_the_end_is_unknown() -> None:
    intended = Intended(at=0, key="t1/2.tools/1.find", ask=ASK)
    pen = _open_turn(TWO_CALLS, intended, _ended("t1", Ending("cancelled")))
    last = pen.conversation.thread.last
    assert isinstance(last, ToolMessage)
    assert [result.state for result in last.results] == ["unknown", "skipped"]


def test_a_failed_model_call_counts_as_one_of_the_conversation() -> None:
    pen = _open_turn(Failed(at=0, key="t1/1.model", ask=ASK, error=ErrorInfo("overloaded", "")))
    assert pen.conversation.position == 1


def test_a_parked_turn_is_open_until_somebody_goes_on_with_it() -> None:
    pen = _open_turn(Parked(at=0, run="t1", waits=("w",)))
    assert _turn(pen).parked == Parked(at=0, run="t1", waits=("w",))
    pen.write(Resumed(at=0, run="t1", by="somebody"))
    assert _turn(pen).parked is None


def test_the_request_to_cancel_is_not_part_of_the_conversation() -> None:
    body = msgspec.Raw(msgspec.json.encode(CancelRequest("t1", "enough")))
    pen = _open_turn(Admitted(at=0, input=2, key="cancel:t1", body=body, run="t1"))
    assert [said.id for said in pen.conversation.thread.messages] == ["t1.i1"]


def test_a_turn_that_ended_before_it_began_is_not_part_of_the_conversation() -> None:
    ended = msgspec.structs.replace(_ended("t2", Ending("cancelled")), unstarted=True)
    pen = _open_turn(_admitted(2, "t2"), ended)
    assert [said.id for said in pen.conversation.thread.messages] == ["t1.i1"]
    assert _turn(pen).run == "t1"
    assert pen.conversation.endings["t2"].status == "cancelled"


def test_the_record_of_another_turn_does_not_enter_the_open_one() -> None:
    pen = _open_turn(Done(at=0, key="t9/1.model", ask=ASK, value=msgspec.Raw(encode(ModelReply((Text("x"),))))))
    assert [said.id for said in pen.conversation.thread.messages] == ["t1.i1"]


def test_an_input_is_something_said_or_a_request_to_stop() -> None:
    said, stop = UserInput((Text("go"),), steer=True, deadline_ms=5, metadata={"a": 1}), CancelRequest("t3", "enough")
    assert [decode_input(msgspec.json.encode(found)) for found in (said, stop)] == [said, stop]


def test_something_said_about_cancelling_is_still_something_said() -> None:
    said = UserInput((Text('{"cancel": "t1"}'),), metadata={"cancel": "t1"})
    assert decode_input(msgspec.json.encode(said)) == said


def test_an_end_without_words_is_told_by_its_error() -> None:
    record = Ended(at=0, run="t1", status="failed", error=ErrorInfo("KeyError", "x"))
    assert ending_of_record(record) == Ending("failed", "KeyError", "x", "code")


def test_an_end_that_says_nothing_is_our_own_bug() -> None:
    with pytest.raises(InvariantBroken):
        ending_of_record(Ended(at=0, run="t1", status="failed"))
