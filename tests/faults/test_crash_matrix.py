"""SIGKILL at every crash point of the scenario, then restart, until it is done: nothing lost, nothing done twice."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING

import pytest
import scenario
from forking import error_in
from killing import KILLED, check_enough, one_of_each

import holdfast as hf
from holdfast.testing import World, check

if TYPE_CHECKING:
    from pathlib import Path

    from forking import Forks

RESTARTS = 60


async def verify(folder: Path, repro: str) -> None:
    """The result is the one without a crash, every invariant holds, and the world is exact."""
    assert json.loads((folder / "result.json").read_text()) == scenario.EXPECTED, repro
    world = World(folder / "world.log")
    async with hf.open_store(folder / "store.db") as store:
        assert await check(store, world) == [], repro
        (line,) = await store.journals()
        assert line.status == "completed", repro
    assert sorted(world.done()) == scenario.WORLD, repro


def finish(workers: Forks, folder: Path, repro: str) -> None:
    status = workers.run(folder)
    assert status == 0, f"{repro}\n{error_in(folder)}"


async def test_without_a_crash_the_scenario_gives_the_expected_result(workers: Forks, tmp_path: Path) -> None:
    finish(workers, tmp_path, "plain run")
    await verify(tmp_path, "plain run")


def test_the_scenario_reaches_every_kind_of_crash_point(points: list[str]) -> None:
    reached = {point.partition(":")[0] for point in points}
    assert reached >= {
        *("store.begun", "store.written", "store.committed", "store.before_answer", "store.answered"),
        *("effect.before_intent", "effect.after_intent", "effect.before_run", "effect.after_run"),
        *("effect.before_outcome", "effect.after_outcome"),
        *("drive.before_end", "drive.after_end"),
    }


async def _kill_at(workers: Forks, point: str, folder: Path) -> bool:
    """Kill once, and finish; answers whether the point was reached."""
    folder.mkdir()  # noqa: ASYNC240  nothing else runs
    repro = f"HOLDFAST_CRASH_AT={point}"
    status = workers.run(folder, HOLDFAST_CRASH_AT=point)
    assert status in (0, KILLED), f"{repro}\n{error_in(folder)}"
    if status == KILLED:
        finish(workers, folder, repro)
    await verify(folder, repro)
    return status == KILLED


async def test_a_kill_at_each_named_crash_point_changes_nothing(
    workers: Forks, points: list[str], tmp_path: Path
) -> None:
    """One kill for each name. Torture takes every point."""
    for number, point in enumerate(one_of_each(points)):
        name = point.partition(":")[0]
        # The writer batches differently from run to run: the middle one may not come again, but the first does.
        reached = await _kill_at(workers, point, tmp_path / str(number))
        assert reached or await _kill_at(workers, f"{name}:1", tmp_path / f"{number}-first"), f"{name} is not reached"


@pytest.mark.torture
@pytest.mark.timeout(600)
async def test_a_kill_at_every_single_crash_point_changes_nothing(
    workers: Forks, points: list[str], tmp_path: Path
) -> None:
    killed = [await _kill_at(workers, point, tmp_path / str(number)) for number, point in enumerate(points)]
    check_enough(sum(killed), len(killed))


async def _history(workers: Forks, points: list[str], seed: int, folder: Path) -> int:
    """Kill at random points, again and again, until the scenario is done; answers how often it was killed."""
    choose = random.Random(seed)
    for kills in range(RESTARTS):
        repro = f"seed {seed}, restart {kills}"
        crash = {} if kills == RESTARTS - 1 else {"HOLDFAST_CRASH_AT": str(choose.randrange(1, len(points) // 2))}
        status = workers.run(folder, **crash)
        if status == 0:
            await verify(folder, repro)
            return kills
        assert status == KILLED, f"{repro}\n{error_in(folder)}"
    pytest.fail(f"seed {seed}: not done after {RESTARTS} restarts")


@pytest.mark.timeout(240)
async def test_random_histories_of_many_kills_change_nothing(workers: Forks, points: list[str], tmp_path: Path) -> None:
    kills = 0
    for seed in range(2):
        folder = tmp_path / str(seed)
        folder.mkdir()
        kills += await _history(workers, points, seed, folder)
    assert kills >= 4, "the histories must have crashes in them"


@pytest.mark.torture
@pytest.mark.timeout(3600)
async def test_hundreds_of_random_histories_change_nothing(workers: Forks, points: list[str], tmp_path: Path) -> None:
    for seed in range(1_000, 1_300):
        folder = tmp_path / str(seed)
        folder.mkdir()
        print(f"seed {seed}: {await _history(workers, points, seed, folder)} kills", flush=True)
