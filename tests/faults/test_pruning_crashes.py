"""SIGKILL anywhere while processes and triggers are pruned: what is gone is gone whole, and nothing runs again."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING, Final

import pruning_scenario as scenario
import pytest
from forking import error_in
from killing import OneAct, one_of_each

import holdfast as hf
from holdfast.testing import World, check

if TYPE_CHECKING:
    from pathlib import Path

    from forking import Forks


async def _wrong(folder: Path) -> list[str]:
    """The laws, whatever was killed."""
    async with hf.open(folder / "store.db", drive=False) as runtime:
        found = [str(violation) for violation in await check(runtime.store)]
        left = [line.id for line in await runtime.processes.list()]
        stones = {stone.journal: stone.detail for stone in await runtime.store.tombstones()}
    done = Counter(World(folder / "world.log").done())
    found += [f"{what} was done {done[what]} times" for what in scenario.ACTS if done[what] != 1]
    if left or len(stones) != len(scenario.ACTS) + 1 or set(stones.values()) != {"completed"}:
        found.append(f"left: {left}, pruned: {stones}")
    return found


STORY: Final = OneAct("PRUNING_CRASH", __file__, _wrong)


async def test_without_a_kill_all_is_pruned_and_nothing_is_done_twice(workers: Forks, tmp_path: Path) -> None:
    assert workers.run(tmp_path / "golden") == 0, error_in(tmp_path / "golden")
    assert await _wrong(tmp_path / "golden") == []


def test_the_scenario_reaches_the_crash_points_of_pruning(points: list[str]) -> None:
    wanted = ("process.before_prune", "process.after_prune", "trigger.before_prune", "trigger.trimmed")
    assert {f"{name}:1" for name in wanted} <= set(points)


async def test_a_kill_around_a_pruning_leaves_nothing_half_forgotten(
    workers: Forks, points: list[str], tmp_path: Path
) -> None:
    around = [point for point in points if "_prune:" in point or point.startswith("trigger.trimmed")]
    await STORY.try_all(workers, [(point,) for point in one_of_each(around)], tmp_path)


@pytest.mark.torture
@pytest.mark.timeout(3600)
async def test_a_kill_at_every_single_point_leaves_nothing_half_forgotten(
    workers: Forks, points: list[str], tmp_path: Path
) -> None:
    await STORY.try_all(workers, [(point,) for point in points], tmp_path)


@pytest.mark.skipif("PRUNING_CRASH" not in os.environ, reason="repeats the case in PRUNING_CRASH")
async def test_a_case_can_be_repeated(workers: Forks, tmp_path: Path) -> None:
    await STORY.try_all(workers, [STORY.repeated()], tmp_path)
