"""A fold and the records after it give the same conversation as all records, at every record."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.behaviour.long import KINDS, OF_READING, agent_of, play_all, state_of
from tests.examples import examples

import holdfast as hf
from holdfast.clock import Stopwatch
from holdfast.errors import InvariantBroken
from holdfast.messages import Text, Usage, UserMessage
from holdfast.policy.limits import Mandate
from holdfast.policy.rules import Taint
from holdfast.records import Opened, Started
from holdfast.runtime.session_records import read_records
from holdfast.turns.compaction.plan import Breaker
from holdfast.turns.conversation import Conversation, UsageTotal
from holdfast.turns.fold import FORMAT, decode_fold, encode_fold

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.records import Record


async def _journal(kinds: Sequence[str]) -> list[tuple[int, Record]]:
    """The records of a session with turns of these kinds."""
    async with hf.open(None, agents=[agent_of()]) as runtime:
        session = runtime.session("s", agent="a")
        await play_all(session, kinds)
        return [found async for found in read_records(runtime.store, session.id)]


def _decoded(body: bytes) -> Conversation:
    found = decode_fold(body)
    assert found is not None
    return found


@settings(max_examples=examples(60), deadline=None)
@given(kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=12))
def test_a_fold_and_its_tail_are_the_whole_at_every_record(kinds: list[str]) -> None:
    whole = Conversation()
    folded: list[Conversation] = []
    for seq, record in asyncio.run(_journal(kinds)):
        for each in (whole, *folded):
            each.add(seq, record)
        expected = state_of(whole)
        for each in folded:
            assert state_of(each) == expected, f"record {seq} of {kinds}"
        if whole.turn is None:
            folded.append(_decoded(encode_fold(whole)))
            assert encode_fold(folded[-1]) == encode_fold(whole)
    assert len(folded) > len(kinds)


def test_a_journal_with_compactions_and_refused_turns_is_folded_from_the_middle() -> None:
    records = asyncio.run(_journal(["look"] * 12 + ["filter", "look", "stranger", "compact", "talk"]))
    whole = Conversation()
    for seq, record in records:
        whole.add(seq, record)
    assert len(whole.context) < len(whole.thread), "the story has no compaction"
    found = _decoded(encode_fold(whole))
    assert found.thread.messages == whole.context.messages
    with pytest.raises(InvariantBroken):
        _ = found.history


def _full() -> Conversation:
    """A conversation in which nothing has its default value."""
    found = Conversation()
    found.add(1, Opened(at=1, kind="session", format=1, agent="a"))
    found.seq, found.position, found.steps, found.agent, found.handoffs = 9, 4, 3, "b", 2
    found.last = "t1"
    found.taint = Taint(untrusted_input=True, private_data=True, untrusted_by="x", private_by="y")
    found.mandate = Mandate(session="p", turn="t1", key="k", call="c", above=("boss",), depth=2)
    found.usage = {("m", "turn"): UsageTotal(3, Usage(5, 6), 0.25), ("m", "direct"): UsageTotal(1, Usage(1), None)}
    found.tool_calls, found.background, found.unpriced, found.watch = 5, 1, 1, Stopwatch(1234)
    found.pinned, found.breaker = {"t1.i1"}, Breaker(2, 77)
    found.heard, found.noticed = {"look": "t1/2.tools/1.look"}, True
    found.variables, found.environments = {"n": [1, {"x": None}]}, {"a": "digest"}
    found.metadata = {"customer": "42"}
    found.thread = found.thread.add(UserMessage("t1.i1", (Text("hello"),)))
    return found


def test_a_fold_keeps_every_attribute_of_a_conversation() -> None:
    full, empty = _full(), Conversation()
    same = {name for name, value in state_of(full).items() if state_of(empty).get(name) == value}
    assert same == {"turn", "whole"}, "give it a value here, and carry it in the fold"
    assert state_of(_decoded(encode_fold(full))) == state_of(full)
    assert vars(full).keys() >= OF_READING


def test_an_open_turn_has_no_fold() -> None:
    found = _full()
    found.add(10, Started(at=2, run="t2", code="", by=""))
    with pytest.raises(InvariantBroken):
        encode_fold(found)


def _changed(body: bytes, **fields: Any) -> bytes:
    return msgspec.json.encode({**msgspec.json.decode(body), **fields})


def test_a_fold_of_another_format_or_a_damaged_one_is_none() -> None:
    body = encode_fold(_full())
    assert decode_fold(_changed(body)) is not None
    damaged = [body[:-1], b"", b"[]", b"\xff", _changed(body, format=f"{FORMAT}x"), _changed(body, position="four")]
    assert [decode_fold(each) for each in damaged] == [None] * len(damaged)
