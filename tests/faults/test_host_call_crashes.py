"""SIGKILL anywhere while a host makes calls, then restart: each is made once, as it was approved, or not at all."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING, Final

import host_call_scenario as scenario
import pytest
from killing import OneAct, one_of_each

import holdfast as hf
from holdfast.runtime.host_call import call_status
from holdfast.testing import World, check

if TYPE_CHECKING:
    from pathlib import Path

    from forking import Forks

ENDS: Final = {"look": {"completed"}, "reserve": {"completed"}, "pay": {"completed", "unknown"}, "burn": {"denied"}}


async def _laws(folder: Path) -> list[str]:
    async with hf.open(folder / "store.db", drive=False) as runtime:
        problems = [str(found) for found in await check(runtime.store)]
        tasks = [await runtime.tasks.task(line.id) for line in await runtime.tasks.list(session=scenario.SESSION)]
        ends = {task.call.tool: call_status(task) for task in tasks if task.call is not None}
        told = Counter(found.source for found in await runtime.store.notifications(scenario.SESSION))
        if await runtime.approvals():
            problems.append("somebody is still asked")
    made = Counter(attempt.what for attempt in World(folder / "world.log").attempts())
    if len(tasks) != len(scenario.CALLS) or any(ends.get(tool) not in ENDS[tool] for tool in scenario.CALLS):
        problems.append(f"the calls ended as {ends}")
    if made["pay"] > 1 or made["burn"] or (ends.get("pay") == "completed" and not made["pay"]):
        problems.append(f"it was done: {made}")
    if set(told.values()) != {1} or len(told) != len(tasks):
        problems.append(f"the session was notified {told}")
    return problems


STORY: Final = OneAct("HOST_CALL_CRASH", __file__, _laws)


async def test_without_a_kill_every_law_holds(workers: Forks, tmp_path: Path) -> None:
    found, _ = await STORY.problems(workers, (), tmp_path / "golden")
    assert found == []


def test_the_scenario_reaches_the_crash_points_of_host_calls(points: list[str]) -> None:
    named = {point.partition(":")[0] for point in points}
    assert {"call.accepted", "task.before_begin", "task.before_park", "task.before_end", "task.after_end"} <= named


async def test_a_kill_at_each_named_point_makes_no_call_twice(
    workers: Forks, points: list[str], tmp_path: Path
) -> None:
    await STORY.try_all(workers, [(point,) for point in one_of_each(points)], tmp_path)


@pytest.mark.torture
@pytest.mark.timeout(3600)
async def test_a_kill_at_every_single_point_makes_no_call_twice(
    workers: Forks, points: list[str], tmp_path: Path
) -> None:
    await STORY.try_all(workers, [(point,) for point in points], tmp_path)


@pytest.mark.skipif("HOST_CALL_CRASH" not in os.environ, reason="repeats the case in HOST_CALL_CRASH")
async def test_a_case_can_be_repeated(workers: Forks, tmp_path: Path) -> None:
    await STORY.try_all(workers, [STORY.repeated()], tmp_path)
