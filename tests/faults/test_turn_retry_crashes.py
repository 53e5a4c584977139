"""SIGKILL anywhere while a turn fails and is retried, then restart: one retry of each kind, and one refund."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import pytest
import turn_retry_scenario as scenario
from killing import OneAct, one_of_each

import holdfast as hf
from holdfast.testing import World, check
from holdfast.turns.results import message_text

if TYPE_CHECKING:
    from pathlib import Path

    from forking import Forks


async def _wrong(folder: Path) -> list[str]:
    """The laws, whatever was killed."""
    async with hf.open(folder / "store.db", drive=False) as runtime:
        problems = [str(violation) for violation in await check(runtime.store)]
        sessions = [line.id for line in await runtime.sessions()]
        ends = [message_text((await runtime.session(id).history())[-1]) for id in sessions]
    if ends != ["done", "done"] or scenario.SESSION not in sessions:
        problems.append(f"not one session and its fork, both done: {sessions} {ends}")
    refunds = World(folder / "world.log").done()
    return problems if refunds == ["refunded"] else [*problems, f"the refunds are {refunds}"]


STORY: Final = OneAct("TURN_RETRY_CRASH", __file__, _wrong)


async def test_a_kill_around_the_beginning_of_a_retry_leaves_one_of_each(
    workers: Forks, points: list[str], tmp_path: Path
) -> None:
    assert "turn.retry_forked:1" in points
    await STORY.try_all(workers, [("turn.retry_forked:1",)], tmp_path)


async def test_a_kill_elsewhere_leaves_one_of_each(workers: Forks, points: list[str], tmp_path: Path) -> None:
    chosen = [point for point in points if not point.startswith("store.")]
    await STORY.try_all(workers, [(point,) for point in one_of_each(chosen)], tmp_path)


@pytest.mark.torture
@pytest.mark.timeout(3600)
async def test_a_kill_at_every_single_point_leaves_one_of_each(
    workers: Forks, points: list[str], tmp_path: Path
) -> None:
    await STORY.try_all(workers, [(point,) for point in points], tmp_path)


@pytest.mark.skipif("TURN_RETRY_CRASH" not in os.environ, reason="repeats the case in TURN_RETRY_CRASH")
async def test_a_case_can_be_repeated(workers: Forks, tmp_path: Path) -> None:
    await STORY.try_all(workers, [STORY.repeated()], tmp_path)
