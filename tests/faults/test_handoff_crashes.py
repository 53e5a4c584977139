"""SIGKILL anywhere in a turn that is handed over and back, then restart: handed over once each, nothing done twice."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import handoff_scenario as scenario
import pytest
from forking import PATIENCE
from killing import OneAct

import holdfast as hf
from holdfast.messages import ToolMessage
from holdfast.records import Handed
from holdfast.runtime.replay_check import check_turns
from holdfast.testing import World, check

if TYPE_CHECKING:
    from pathlib import Path

    from forking import Forks

SAMPLE: Final = 12
"""The quick run takes one in so many of the points inside the store."""


async def _wrong(folder: Path) -> list[str]:
    """The laws, whatever was killed."""
    async with hf.open(folder / "store.db", drive=False) as runtime:
        store, session = runtime.store, runtime.session(scenario.SESSION)
        wrong = [str(problem) for problem in await check(store)]
        handed = [entry.record async for entry in store.read_all(session.id) if isinstance(entry.record, Handed)]
        if [(found.by, found.agent) for found in handed] != [("desk", "billing"), ("billing", "desk")]:
            wrong.append(f"it was handed over so: {handed}")
        if await session.agent() != "desk":
            wrong.append(f"{await session.agent()} has it")
        outcome = await session.turn("t1").outcome(timeout=PATIENCE)
        if (outcome.text, outcome.agent, outcome.steps) != (scenario.ANSWER, "desk", len(scenario.SCRIPT)):
            wrong.append(f"it ended so: {outcome}")
        results = [found for each in await session.history() if isinstance(each, ToolMessage) for found in each.results]
        if len(results) != sum(len(step) if isinstance(step, list) else 1 for step in scenario.SCRIPT[:-1]):
            wrong.append(f"not every call has a result: {results}")
        done = [attempt.what for attempt in World(folder / "world.log").attempts()]
        if sorted(set(done)) != sorted(done):
            wrong.append(f"something was done twice: {done}")
        desk, billing = scenario.make_agents(folder)
        (fits,) = await check_turns(store, session.id, desk, [billing])
        if fits.verdict != "ok":
            wrong.append(f"it does not fit its records: {fits}")
        return wrong


STORY: Final = OneAct("HANDOFF_CRASH", __file__, _wrong)


async def test_without_a_kill_every_law_holds(workers: Forks, tmp_path: Path) -> None:
    found, _ = await STORY.problems(workers, (), tmp_path / "golden")
    assert found == []


async def test_a_kill_around_a_handoff_hands_over_once(workers: Forks, points: list[str], tmp_path: Path) -> None:
    handoffs = [point for point in points if point.startswith("handoff.")]
    around = [point for point in points if point.startswith(("tool.before_outcome", "drive."))]
    assert handoffs
    await STORY.try_all(workers, [(point,) for point in (*handoffs, *around[::3])], tmp_path)


async def test_a_kill_inside_the_store_hands_over_once(workers: Forks, points: list[str], tmp_path: Path) -> None:
    await STORY.try_all(workers, [(point,) for point in points if point.startswith("store.")][::SAMPLE], tmp_path)


async def test_a_second_kill_while_recovering_hands_over_once(
    workers: Forks, points: list[str], tmp_path: Path
) -> None:
    ends = [point for point in points if point.startswith("handoff.")]
    await STORY.try_all(workers, [(point, "handoff.before:1", "store.committed:2") for point in ends], tmp_path)


@pytest.mark.torture
@pytest.mark.timeout(3600)
async def test_a_kill_at_every_single_point_hands_over_once(workers: Forks, points: list[str], tmp_path: Path) -> None:
    await STORY.try_all(workers, [(point,) for point in points], tmp_path)


@pytest.mark.skipif("HANDOFF_CRASH" not in os.environ, reason="repeats the case in HANDOFF_CRASH")
async def test_a_case_can_be_repeated(workers: Forks, tmp_path: Path) -> None:
    await STORY.try_all(workers, [STORY.repeated()], tmp_path)
