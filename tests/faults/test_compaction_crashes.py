"""SIGKILL around a compaction: the same context after a restart, no other way, nothing that is recorded asked again."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import compaction_scenario as scenario
import pytest
from forking import error_in
from killing import KILLED, check_enough

import holdfast as hf
from holdfast.records import Done
from holdfast.runtime.budgets import spend_of_record
from holdfast.runtime.replay_check import check_turns
from holdfast.runtime.session_records import read_conversation
from holdfast.testing import check
from holdfast.turns.compaction.plan import decode_compaction, is_compaction

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from forking import Forks

SUMMARIES = 5
"""How often a summary is asked for without a kill: of the second turn none can be had, and each is asked for twice."""
AROUND = 3
"""So many crash points before and after a compaction are tried at each."""


@dataclass(frozen=True)
class Told:
    """What a store holds in the end."""

    history: tuple[Any, ...]
    context: tuple[Any, ...]
    compactions: tuple[Any, ...]
    asked: list[str]


@dataclass(frozen=True)
class Known:
    """What was on disk when a process was killed."""

    steps: int
    summaries: int
    asked: int
    """How much had been asked by then."""

    def asked_again(self, asked: list[str]) -> list[str]:
        """What was asked after the kill, though the answer was recorded."""
        after = asked[self.asked :]
        steps = [line for line in after if line.startswith("step") and int(line.split()[1]) < self.steps]
        left = SUMMARIES - self.summaries
        return steps + ["summary"] * max(after.count("summary") - left, 0)


def _asked(folder: Path) -> list[str]:
    path = folder / "asked.txt"
    return path.read_text().splitlines() if path.exists() else []


async def _known(folder: Path) -> Known:
    asked = len(_asked(folder))
    if not asked:
        return Known(0, 0, 0)
    async with hf.open_store(folder / "store.db") as store:
        found = await read_conversation(store, scenario.SESSION)
        summaries = sum(total.calls for (_, source), total in found.usage.items() if source == "direct")
        return Known(found.position, summaries, asked)


async def _told(folder: Path, repro: str) -> Told:
    agent = scenario.agent_in(folder)
    async with hf.open_store(folder / "store.db") as store:
        assert await check(store) == [], repro
        checks = await check_turns(store, scenario.SESSION, agent)
        assert [found.verdict for found in checks] == ["ok", "ok"], f"{repro}: {checks}"
        found = await read_conversation(store, scenario.SESSION)
        made = [
            decode_compaction(bytes(entry.record.value))
            async for entry in store.read_all(scenario.SESSION)
            if isinstance(entry.record, Done) and is_compaction(entry.record.key)
        ]
        before = await store.spent("a")
        await store.rebuild_spending(spend_of_record)
        assert await store.spent("a") == before, repro
    return Told(found.thread.messages, found.context.messages, tuple(made), _asked(folder))


@pytest.fixture
async def golden(workers: Forks, tmp_path: Path) -> Told:
    assert workers.run(tmp_path / "golden") == 0, error_in(tmp_path / "golden")
    return await _told(tmp_path / "golden", "without a kill")


def test_the_scenario_has_every_kind_of_compaction(golden: Told) -> None:
    assert golden.asked.count("summary") == SUMMARIES
    kinds = {(made.plan.why, made.plan.way, bool(made.failure)) for made in golden.compactions}
    assert kinds == {("full", "summary", False), ("full", "drop", True), ("overflow", "drop", True)}


async def _kill_at(workers: Forks, numbers: Iterable[int], golden: Told, folder: Path) -> None:
    statuses: Counter[int] = Counter()
    for number in numbers:
        here = folder / str(number)
        repro = f"killed at point {number}"
        status = workers.run(here, HOLDFAST_CRASH_AT=str(number))
        assert status in (0, KILLED), f"{repro}\n{error_in(here)}"
        statuses[status] += 1
        known = await _known(here) if status == KILLED else None
        if known is not None:
            assert workers.run(here) == 0, f"{repro}\n{error_in(here)}"
            assert known.asked_again(_asked(here)) == [], repro
        told = await _told(here, repro)
        assert told.history == golden.history, repro
        assert told.context == golden.context, repro
        assert [made.plan for made in told.compactions] == [made.plan for made in golden.compactions], repro
        assert sum(made.calls for made in told.compactions) == golden.asked.count("summary"), repro
    check_enough(statuses[KILLED], statuses.total())


def _around(points: list[str]) -> list[int]:
    """The numbers of the points around compactions, from 1 on. Those inside the store are another test's."""
    outside = [number for number, point in enumerate(points, 1) if not point.startswith("store.")]
    places = [at for at, number in enumerate(outside) if points[number - 1].startswith("turn.before_compaction:")]
    near = {at + step for at in places for step in range(-AROUND, AROUND + 1)}
    return [outside[at] for at in sorted(near) if 0 <= at < len(outside)]


@pytest.mark.timeout(120)
async def test_a_kill_around_a_compaction_changes_nothing(
    workers: Forks, points: list[str], golden: Told, tmp_path: Path
) -> None:
    await _kill_at(workers, _around(points)[::3], golden, tmp_path)


async def _kill_twice(workers: Forks, first: int, second: int, golden: Told, folder: Path) -> int:
    """Kill at one point, and whoever goes on at another; the third one comes to the end. Answers how many died."""
    here = folder / f"{first}-{second}"
    repro = f"killed at point {first}, then at {second}"
    known: list[Known] = []
    for point in (first, second):
        status = workers.run(here, HOLDFAST_CRASH_AT=str(point))
        assert status in (0, KILLED), f"{repro}\n{error_in(here)}"
        if status == KILLED:
            known.append(await _known(here))
    assert workers.run(here) == 0, f"{repro}\n{error_in(here)}"
    told = await _told(here, repro)
    # Whoever goes on asks for nothing that was recorded when it began. What it does not get to record itself, the next
    # one may ask for again.
    ends = [*(each.asked for each in known[1:]), len(told.asked)]
    lives = zip(known, ends, strict=False)  # both points may lie behind the end: then none was killed
    assert [again for each, until in lives for again in each.asked_again(told.asked[:until])] == [], repro
    assert (told.history, told.context) == (golden.history, golden.context), repro
    assert [made.plan for made in told.compactions] == [made.plan for made in golden.compactions], repro
    return len(known)


SECONDS = (10, 25)
"""Points of the process that goes on: before it has found its place again, and in what it does then."""


@pytest.mark.timeout(120)
async def test_two_kills_around_a_compaction_change_nothing(
    workers: Forks, points: list[str], golden: Told, tmp_path: Path
) -> None:
    died = [
        await _kill_twice(workers, first, second, golden, tmp_path)
        for first in _around(points)[AROUND :: 4 * AROUND]
        for second in SECONDS
    ]
    assert max(died) == 2


@pytest.mark.torture
@pytest.mark.timeout(1_800)
async def test_two_kills_at_any_points_around_a_compaction_change_nothing(
    workers: Forks, points: list[str], golden: Told, tmp_path: Path
) -> None:
    for first in _around(points)[::3]:
        for second in range(2, 40, 4):
            await _kill_twice(workers, first, second, golden, tmp_path)


@pytest.mark.torture
@pytest.mark.timeout(1_800)
async def test_a_kill_at_any_point_of_a_session_that_is_compacted_changes_nothing(
    workers: Forks, points: list[str], golden: Told, tmp_path: Path
) -> None:
    await _kill_at(workers, range(1, len(points) + 1), golden, tmp_path)
