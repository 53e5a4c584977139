"""Long replies take no more time than their length, and what comes in pieces is put together as it was."""

from __future__ import annotations

import json
import time
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from hypothesis import given
from hypothesis import strategies as st

from holdfast.messages import Reasoning
from holdfast.models.chat import ObjectEndDetector, ReasoningDetails
from holdfast.models.dialect import Endpoint, Frame
from holdfast.models.json_values import parse_arguments
from holdfast.models.registry import load_dialect

if TYPE_CHECKING:
    from collections.abc import Iterable

CPU_SECONDS = 8.0
"""More than a reply of 16 MB takes on a slow machine, and less than one that is read anew with each piece."""


START = {"type": "message_start", "message": {"id": "x", "model": "m"}}


def at(name: str, *flags: str) -> Endpoint:
    return Endpoint(provider="here", dialect=name, base_url="https://here", flags=frozenset(flags))


def begun(block: dict[str, Any]) -> dict[str, Any]:
    return {"type": "content_block_start", "index": 0, "content_block": block}


# ---- as long as they are ---------------------------------------------------------------------------------------------

PIECE = "x" * 4_000
PIECES = 4_000


def fold_for(name: str, frames: Iterable[dict[str, Any]], *flags: str) -> float:
    """The time that frames take."""
    reader = load_dialect(name).reader(at(name, *flags), "m")
    begin = time.process_time()
    for frame in frames:
        reader.feed(Frame("", json.dumps(frame).encode()))
        taken = time.process_time() - begin
        if taken > CPU_SECONDS:
            break
    return time.process_time() - begin


def chunk(**delta: Any) -> dict[str, Any]:
    return {"id": "r", "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}


def test_arguments_whose_call_is_named_with_each_piece_are_not_read_anew_with_each_piece() -> None:
    frames = (
        chunk(tool_calls=[{"index": 0, "function": {"name": "f", "arguments": PIECE if at else '{"a":"'}}])
        for at in range(PIECES)
    )
    assert fold_for("chat", frames) < CPU_SECONDS


def test_details_of_reasoning_are_not_copied_with_each_piece() -> None:
    detail = {"type": "reasoning.text", "text": PIECE, "index": 0}
    frames = (chunk(reasoning_details=[detail]) for _ in range(PIECES))
    assert fold_for("chat", frames, "send_reasoning_details") < CPU_SECONDS


def test_a_block_that_nobody_understands_is_not_copied_with_each_piece() -> None:
    delta = {"type": "content_block_delta", "index": 0, "delta": {"type": "new_delta", "content": PIECE}}
    frames = [START, begun({"type": "new", "content": ""}), *[delta] * (3 * PIECES)]
    assert fold_for("anthropic", frames) < CPU_SECONDS


def test_a_block_that_nobody_understands_is_kept_whole() -> None:
    deltas = ({"a": "1", "b": [1]}, {"a": "2", "b": [2]}, {"c": 3, "a": "3"})
    frames = [{"type": "content_block_delta", "index": 0, "delta": {"type": "new_delta", **delta}} for delta in deltas]
    reader = load_dialect("anthropic").reader(at("anthropic"), "m")
    ended = ({"type": "message_delta", "delta": {"stop_reason": "end_turn"}}, {"type": "message_stop"})
    for frame in (START, begun({"type": "new", "a": "0"}), *frames, *ended):
        reader.feed(Frame("", json.dumps(frame).encode()))
    (part,) = reader.finish().parts
    assert isinstance(part, Reasoning)
    assert part.replay == {"type": "new", "a": "0123", "b": [1, 2], "c": 3}


# ---- whether an object has ended -------------------------------------------------------------------------------------


def cut_up(text: str, places: list[int]) -> list[str]:
    marks = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [text[begin:end] for begin, end in pairwise(marks)]


TEXTS = st.one_of(
    st.dictionaries(st.text(), st.recursive(st.text() | st.integers(), st.lists, max_leaves=5)).map(json.dumps),
    st.text(alphabet='{}[]"\\: ,a1nul', max_size=20),
)


@given(TEXTS, st.lists(st.integers(0, 200), max_size=5))
def test_an_object_has_ended_when_it_can_be_read(text: str, places: list[int]) -> None:
    end, came = ObjectEndDetector(), list[str]()
    for piece in cut_up(text, places):
        came.append(piece)
        joined = "".join(came)
        if joined.strip() and len(came) <= 4:
            assert end.reached(came) == (parse_arguments(joined)[0] is not None)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.none() | st.text(max_size=3)), max_size=6))
def test_details_are_joined_as_if_each_were_added_to_the_last(said: list[tuple[str, str | None]]) -> None:
    details = ReasoningDetails()
    for id, text in said:
        details.add({"type": "reasoning.text", "id": id, "text": text})
    wanted: list[dict[str, Any]] = []
    for id, text in said:
        if wanted and wanted[-1]["id"] == id:
            before = wanted[-1]["text"]
            wanted[-1]["text"] = before if text is None else (before or "") + text
        else:
            wanted.append({"type": "reasoning.text", "id": id, "text": text})
    assert details.all() == wanted
