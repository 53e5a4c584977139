"""SIGKILL anywhere while single calls are cancelled, then restart: each ends cancelled, once, and the turn goes on."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import call_cancel_scenario as scenario
import pytest
from killing import OneAct, one_of_each

import holdfast as hf
from holdfast.testing import World, check

if TYPE_CHECKING:
    from pathlib import Path

    from forking import Forks


async def _laws(folder: Path) -> list[str]:
    async with hf.open(folder / "store.db", drive=False) as runtime:
        problems = [str(found) for found in await check(runtime.store)]
        session = runtime.session(scenario.SESSION)
        history = await session.history()
        states = [result.state for said in history if isinstance(said, hf.ToolMessage) for result in said.results]
        if states != ["cancelled", "cancelled"]:
            problems.append(f"the calls ended as {states}")
        if await session.status() != "completed":
            problems.append(f"the turn is {await session.status()}")
        if await runtime.store.pending(scenario.SESSION) or await runtime.approvals():
            problems.append("a request or a question is left")
    if World(folder / "world.log").attempts():
        problems.append("it was paid after the cancel was acknowledged")
    return problems


STORY: Final = OneAct("CALL_CANCEL_CRASH", __file__, _laws)


async def test_without_a_kill_every_law_holds(workers: Forks, tmp_path: Path) -> None:
    found, _ = await STORY.problems(workers, (), tmp_path / "golden")
    assert found == []


def test_the_scenario_reaches_the_crash_points_of_cancelled_calls(points: list[str]) -> None:
    assert {"cancel.call_accepted", "tool.before_stopped"} <= {point.partition(":")[0] for point in points}


async def test_a_kill_at_each_named_point_leaves_both_cancelled(
    workers: Forks, points: list[str], tmp_path: Path
) -> None:
    await STORY.try_all(workers, [(point,) for point in one_of_each(points)], tmp_path)


@pytest.mark.torture
@pytest.mark.timeout(3600)
async def test_a_kill_at_every_single_point_leaves_both_cancelled(
    workers: Forks, points: list[str], tmp_path: Path
) -> None:
    await STORY.try_all(workers, [(point,) for point in points], tmp_path)


@pytest.mark.skipif("CALL_CANCEL_CRASH" not in os.environ, reason="repeats the case in CALL_CANCEL_CRASH")
async def test_a_case_can_be_repeated(workers: Forks, tmp_path: Path) -> None:
    await STORY.try_all(workers, [STORY.repeated()], tmp_path)
