"""SIGKILL anywhere while a process fails and is retried, then restart: one retry, and each outside effect once."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING, Final

import pytest
import retry_scenario as scenario
from killing import OneAct, one_of_each

import holdfast as hf
from holdfast.testing import World, check

if TYPE_CHECKING:
    from pathlib import Path

    from forking import Forks

SAMPLE: Final = 40
"""The quick run takes one in so many of the points inside the store."""


async def _wrong(folder: Path) -> list[str]:
    """The laws, whatever was killed."""
    async with hf.open(folder / "store.db", drive=False) as runtime:
        problems = [str(violation) for violation in await check(runtime.store)]
        lines = {line.id: line for line in await runtime.processes.list()}
        old = lines.pop(scenario.PROCESS)
        if old.status != "failed":
            problems.append(f"the old one is {old.status}")
        if [(line.status, line.retry_of) for line in lines.values()] != [("completed", scenario.PROCESS)]:
            problems.append(f"its retries are {lines}")
    world = World(folder / "world.log")
    done, tried = Counter(world.done()), Counter(attempt.what for attempt in world.attempts())
    # One that must not be repeated may have been interrupted before it reached the world.
    least = {what: 0 if what == "paid" else 1 for what in scenario.ACTS}
    wrong = [what for what in scenario.ACTS if not least[what] <= done[what] <= 1]
    problems += [f"{what} was done {done[what]} times" for what in wrong]
    if tried["paid"] > 1:
        problems.append(f"paid was tried {tried['paid']} times")
    return problems


STORY: Final = OneAct("RETRY_CRASH", __file__, _wrong)


async def test_without_a_kill_every_act_is_done_once(workers: Forks, tmp_path: Path) -> None:
    assert (await STORY.problems(workers, (), tmp_path / "golden"))[0] == []
    assert sorted(World(tmp_path / "golden" / "world.log").done()) == sorted(scenario.ACTS)


async def test_a_kill_around_the_beginning_of_a_retry_leaves_one_retry(
    workers: Forks, points: list[str], tmp_path: Path
) -> None:
    chosen = [point for point in points if "_second_chance" in point]
    assert {"process.before_second_chance:1", "process.after_second_chance:1"} <= set(chosen)
    await STORY.try_all(workers, [(point,) for point in chosen], tmp_path)


async def test_a_kill_elsewhere_leaves_the_same_result(workers: Forks, points: list[str], tmp_path: Path) -> None:
    await STORY.try_all(workers, [(point,) for point in one_of_each(points)], tmp_path)


async def test_a_kill_inside_the_store_leaves_the_same_result(
    workers: Forks, points: list[str], tmp_path: Path
) -> None:
    await STORY.try_all(workers, [(point,) for point in points if point.startswith("store.")][::SAMPLE], tmp_path)


@pytest.mark.torture
@pytest.mark.timeout(3600)
async def test_a_kill_at_every_single_point_leaves_the_same_result(
    workers: Forks, points: list[str], tmp_path: Path
) -> None:
    await STORY.try_all(workers, [(point,) for point in points], tmp_path)


@pytest.mark.skipif("RETRY_CRASH" not in os.environ, reason="repeats the case in RETRY_CRASH")
async def test_a_case_can_be_repeated(workers: Forks, tmp_path: Path) -> None:
    await STORY.try_all(workers, [STORY.repeated()], tmp_path)
