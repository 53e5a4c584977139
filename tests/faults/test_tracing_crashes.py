"""SIGKILL anywhere in a traced turn, then restart: one trace, each span exported with one content."""

from __future__ import annotations

import os
from collections import defaultdict
from typing import TYPE_CHECKING, Final

import pytest
import tracing_scenario as scenario
from killing import OneAct, one_of_each
from tests.behaviour.collector import Collector, Received, collecting

from holdfast.records import Record, Resumed, Started
from holdfast.store import open_store
from holdfast.telemetry.journals import read_trace

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from forking import Forks

    from holdfast.telemetry.spans import Span

SAMPLE: Final = 20
"""The quick run takes one in so many of the points inside the store."""
_collector: Collector


@pytest.fixture(autouse=True)
def collector(tmp_path: Path) -> Iterator[Collector]:
    global _collector
    with collecting() as _collector:
        (tmp_path / scenario.ADDRESS).write_text(_collector.url)
        yield _collector


def _shown(span: Received | Span) -> str:
    return (
        f"{span.name} {span.id} below {span.parent or 'nothing'} in {span.trace} with {span.attributes}, {span.links}"
    )


async def _laws(folder: Path) -> list[str]:
    async with open_store(folder / "store.db") as store:
        later = await read_trace(store, scenario.SESSION)
        records = [entry async for entry in store.read_all(scenario.SESSION)]
    return list(
        _wrong(later, [(entry.seq, entry.record) for entry in records], (folder / scenario.FINISHED).read_text())
    )


def _wrong(later: list[Span], records: list[tuple[int, Record]], finished: str) -> Iterator[str]:
    """The laws, whatever was killed."""
    traces = {span.trace for span in later}
    if len(traces) != 1:
        yield f"there are {len(traces)} traces: {traces}"
    exported = defaultdict[str, list[Received]](list)
    for span in _collector.spans:
        if span.trace in traces:
            exported[span.id].append(span)
    for found in exported.values():
        if any(span != found[0] for span in found):
            yield f"one span has several contents: {found}"
    if unknown := exported.keys() - {span.id for span in later}:
        yield f"the journal knows nothing of {unknown}"
    # The last drive exports all of it, unless it was killed after the end of the turn: nobody comes back to that.
    begun, by = max((seq, record.by) for seq, record in records if isinstance(record, Started | Resumed))
    for span in later:
        if span.id not in exported and (by == finished or span.seq < begun):
            yield f"nobody has exported {_shown(span)}"
    dead = [record for _, record in records if isinstance(record, Resumed)]
    before = [span for span in later if span.seq < begun and span.operation != "invoke_agent"]
    after = [span for span in later if span.seq > begun and span.operation != "invoke_agent"]
    for span in after if dead and before else ():
        if not any(link.reason == "interrupted" for link in span.links):
            yield f"{_shown(span)} is not linked to the process that died"


STORY: Final = OneAct("TRACING_CRASH", __file__, _laws)


async def test_without_a_kill_each_span_is_exported_once(workers: Forks, collector: Collector, tmp_path: Path) -> None:
    found, _ = await STORY.problems(workers, (), tmp_path / "golden")
    assert found == []
    assert sorted(span.name for span in collector.spans) == [
        *["chat model"] * 3,
        *("execute_tool book", "execute_tool look", "execute_tool look"),
        *("invoke_agent clerk", "step pay", "step reserve"),
    ]


async def test_a_kill_in_a_turn_leaves_one_trace(workers: Forks, points: list[str], tmp_path: Path) -> None:
    around = [point for point in points if point.startswith(("turn.", "model.", "tool.", "effect."))]
    await STORY.try_all(workers, [(point,) for point in one_of_each(around)], tmp_path)


async def test_a_kill_in_the_last_tool_leaves_one_trace(workers: Forks, points: list[str], tmp_path: Path) -> None:
    last = [point for point in points if point.startswith(("tool.before_run", "effect.before_run"))][-2:]
    await STORY.try_all(workers, [(point,) for point in last], tmp_path)


async def test_a_kill_inside_the_store_leaves_one_trace(workers: Forks, points: list[str], tmp_path: Path) -> None:
    await STORY.try_all(workers, [(point,) for point in points if point.startswith("store.")][::SAMPLE], tmp_path)


@pytest.mark.torture
@pytest.mark.timeout(3600)
async def test_a_kill_at_every_single_point_leaves_one_trace(workers: Forks, points: list[str], tmp_path: Path) -> None:
    await STORY.try_all(workers, [(point,) for point in points], tmp_path)


@pytest.mark.skipif("TRACING_CRASH" not in os.environ, reason="repeats the case in TRACING_CRASH")
async def test_a_case_can_be_repeated(workers: Forks, tmp_path: Path) -> None:
    await STORY.try_all(workers, [STORY.repeated()], tmp_path)
