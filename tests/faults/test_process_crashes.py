"""SIGKILL anywhere in the life of a durable function, then restart: the same result, each outside effect once."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING, Final

import process_scenario as scenario
import pytest
from killing import OneAct, one_of_each

import holdfast as hf
from holdfast.records import Ended
from holdfast.testing import World, check

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from forking import Forks

SAMPLE: Final = 90
"""The quick run takes one in so many of the points inside the store, and one of each name outside of it."""


async def _wrong(folder: Path) -> list[str]:
    """The laws, whatever was killed."""
    async with hf.open(folder / "store.db", drive=False) as runtime:
        problems = [str(violation) for violation in await check(runtime.store)]
        for id in (scenario.PROCESS, scenario.CHILD):
            state = await runtime.processes.read(f"process/{id}")
            last = [record for record in state.records if isinstance(record, Ended)][-1]
            if state.status != "completed" or state.records[-1] is not last:
                problems.append(f"{id} is {state.status}")
    return [*problems, *_acts(World(folder / "world.log"))]


def _acts(world: World) -> Iterator[str]:
    done = Counter(world.done())
    tried = Counter(attempt.what for attempt in world.attempts())
    for what in scenario.ACTS:
        # One that must not be repeated may have been interrupted before it reached the world.
        least = 0 if what == "paid" else 1
        if not least <= done[what] <= 1:
            yield f"{what} was done {done[what]} times"
    if tried["paid"] > 1:
        yield f"paid was tried {tried['paid']} times"


STORY: Final = OneAct("PROCESS_CRASH", __file__, _wrong)


async def test_without_a_kill_every_act_is_done_once(workers: Forks, tmp_path: Path) -> None:
    assert (await STORY.problems(workers, (), tmp_path / "golden"))[0] == []
    done = World(tmp_path / "golden" / "world.log").done()
    assert sorted(done) == sorted(scenario.ACTS)


def test_the_scenario_reaches_the_crash_points_of_processes(points: list[str]) -> None:
    wanted = ("claimed", "begun", "before_park", "after_park", "before_retry", "before_end", "after_end")
    assert {f"process.{name}:1" for name in wanted} <= set(points)


async def test_a_kill_around_parking_and_ending_leaves_the_same_result(
    workers: Forks, points: list[str], tmp_path: Path
) -> None:
    await STORY.try_all(workers, [(point,) for point in one_of_each(points) if point.startswith("process.")], tmp_path)


async def test_a_kill_around_a_step_leaves_the_same_result(workers: Forks, points: list[str], tmp_path: Path) -> None:
    await STORY.try_all(workers, [(point,) for point in one_of_each(points) if point.startswith("effect.")], tmp_path)


async def test_a_kill_inside_the_store_leaves_the_same_result(
    workers: Forks, points: list[str], tmp_path: Path
) -> None:
    await STORY.try_all(workers, [(point,) for point in points if point.startswith("store.")][::SAMPLE], tmp_path)


async def test_a_second_kill_while_recovering_leaves_the_same_result(
    workers: Forks, points: list[str], tmp_path: Path
) -> None:
    ends = [point for point in points if point.startswith(("process.before_end", "process.before_park"))]
    await STORY.try_all(workers, [(point, "store.committed:2") for point in ends[:3]], tmp_path)


@pytest.mark.torture
@pytest.mark.timeout(3600)
async def test_a_kill_at_every_single_point_leaves_the_same_result(
    workers: Forks, points: list[str], tmp_path: Path
) -> None:
    await STORY.try_all(workers, [(point,) for point in points], tmp_path)


@pytest.mark.skipif("PROCESS_CRASH" not in os.environ, reason="repeats the case in PROCESS_CRASH")
async def test_a_case_can_be_repeated(workers: Forks, tmp_path: Path) -> None:
    await STORY.try_all(workers, [STORY.repeated()], tmp_path)
