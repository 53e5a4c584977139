"""The conversation of a session that is handed over: each agent goes on where the one before had come to."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.turns.test_conversation import ASK, Pen, Script, scripts

from holdfast.errors import RecordUnreadable
from holdfast.messages import ModelReply, Text, ToolCall, Usage, encode
from holdfast.policy.rules import Taint
from holdfast.records import Admitted, Done, Handed, Opened, Started
from holdfast.turns import keys
from holdfast.turns.conversation import Conversation, UserInput
from holdfast.turns.machine import go_on, poll, respond, start
from holdfast.turns.state import CallModel, Checkpoint, Finish, Rules, RunTools, TurnState

if TYPE_CHECKING:
    from holdfast.records import Record
    from holdfast.turns.conversation import OpenTurn

RUN = keys.turn_id(1)


class Team(Pen):
    """Drives one turn that is handed over after some of its steps, to agents with the same rules."""

    def relay(self, script: Script, after: frozenset[int]) -> TurnState:
        if not self.batches:
            self.write(Opened(at=0, kind="session", format=1, agent="a0"))
            self.begin()
        while True:
            state = self._part(script, after)
            if isinstance(poll(state), Finish):
                return state

    def begin(self) -> None:
        self.write(Started(at=0, run=RUN), _said(1))

    def _part(self, script: Script, after: frozenset[int]) -> TurnState:
        """What one agent does: until the turn ends, or it hands it over."""
        turn = self.conversation.turn
        assert turn is not None
        state = _opening(turn, script.rules)
        past = {key: record for record in turn.records if (key := getattr(record, "key", None)) is not None}
        inputs = dict(turn.inputs)
        while True:
            effect = poll(state)
            match effect:
                case Finish():
                    return state
                case CallModel():
                    response = self._model(effect, past, RUN, script.reply(state.steps))
                case RunTools():
                    response = self._tools(effect, past, RUN, script)
                    if effect.id in after:
                        self._hand(effect, turn.handoffs)
                        return state
                case Checkpoint():
                    response = self._checkpoint(effect, past, inputs, RUN, [])
            state = respond(state, effect.id, response)

    def _hand(self, effect: RunTools, handoffs: int) -> None:
        key = keys.call_key(RUN, effect.id, 1, effect.calls[0].name)
        self.write(Handed(at=0, run=RUN, key=key, agent=f"a{handoffs + 1}", by=f"a{handoffs}"))


def _opening(turn: OpenTurn, rules: Rules) -> TurnState:
    if not turn.goes_on:
        return start(turn.run, rules, turn.before, turn.said, turn.position)
    state = start(turn.run, rules, turn.before, (), turn.position)
    return go_on(msgspec.structs.replace(state, **msgspec.structs.asdict(turn.carried)), turn.goes_on)


def _said(number: int) -> Record:
    body = msgspec.Raw(msgspec.json.encode(UserInput((Text("go"),))))
    return Admitted(at=0, input=number, key=f"k{number}", body=body, run=RUN)


def _patient(script: Script) -> Script:
    """Without what is counted for each agent anew."""
    rules = Rules(script.rules.steps, 99, 99, 99, script.rules.check, repeats=None)
    return replace(script, rules=rules, steers=())


places = st.frozensets(st.sampled_from((2, 5, 8, 11)))


@given(scripts, places)
def test_whoever_has_the_turn_it_comes_to_the_same_end(script: Script, after: frozenset[int]) -> None:
    script = _patient(script)
    alone, team = Team(), Team()
    one, other = alone.relay(script, frozenset()), team.relay(script, after)
    assert poll(one) == poll(other)
    assert (one.used, one.steps, one.usage, one.cost, one.position) == (
        *(other.used, other.steps, other.usage, other.cost, other.position),
    )
    assert alone.conversation.thread.messages == team.conversation.thread.messages


@given(scripts, places)
def test_a_turn_that_is_handed_over_and_cut_anywhere_goes_on_to_the_same_end(
    script: Script, after: frozenset[int]
) -> None:
    script = _patient(script)
    whole = Team()
    end = whole.relay(script, after)
    for cut in range(2, len(whole.batches) + 1):
        again = Team(whole.batches[:cut])
        assert poll(again.relay(script, after)) == poll(end)
        assert again.batches == whole.batches


def _open(*records: Record) -> Conversation:
    conversation = Conversation()
    opened = Opened(at=0, kind="session", format=1, agent="desk")
    for seq, record in enumerate((opened, Started(at=0, run=RUN), _said(1), *records), 1):
        conversation.add(seq, record)
    return conversation


def _replied() -> Done:
    reply = ModelReply((ToolCall("c1", "give", {}), ToolCall("c2", "find", {})), "tool_calls", Usage(1, 2), "scripted")
    return Done(at=0, key=f"{RUN}/1.model", ask=ASK, value=msgspec.Raw(encode(reply)))


def _done(call: int, tool: str) -> Done:
    return Done(at=0, key=f"{RUN}/2.tools/{call}.{tool}", ask=ASK, value=msgspec.Raw(b"1"))


HANDED = Handed(at=0, run=RUN, key=f"{RUN}/2.tools/1.give", agent="billing", by="desk", untrusted=True)


def test_who_has_it_goes_on_after_the_step_with_what_was_used() -> None:
    found = _open(_replied(), _done(2, "find"), _done(1, "give"), HANDED)
    turn = found.turn
    assert turn is not None
    assert (found.agent, turn.goes_on, turn.handoffs, turn.records) == ("billing", 3, 1, [])
    assert (turn.carried.steps, turn.carried.usage, turn.carried.used.tool_calls) == (1, Usage(1, 2), 2)
    assert turn.before.messages == found.thread.messages


def test_what_was_taken_in_stays_with_the_conversation() -> None:
    back = Handed(at=0, run="t9", key="t9/2.tools/1.give", agent="desk", by="billing", private=True)
    found = _open(_replied(), _done(2, "find"), _done(1, "give"), HANDED, back)
    assert (found.taint, found.handoffs) == (Taint(untrusted_input=True, private_data=True), 2)


@pytest.mark.parametrize("key", [f"{RUN}/2.tools/1.give", "nonsense"])
def test_a_handoff_in_the_middle_of_a_step_can_not_be_understood(key: str) -> None:
    with pytest.raises(RecordUnreadable):
        _open(_replied(), _done(1, "give"), msgspec.structs.replace(HANDED, key=key))
