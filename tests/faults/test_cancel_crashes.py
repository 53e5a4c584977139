"""SIGKILL anywhere in the cancel of a tree, then restart: whatever was acknowledged, nothing below it acts."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import cancel_scenario as scenario
import pytest
from killing import OneAct

import holdfast as hf
from holdfast.testing import World, check

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from forking import Forks

SAMPLE: Final = 50
"""The quick run takes one in so many of the points that are not about the cancel."""


async def _laws(folder: Path) -> list[str]:
    async with hf.open(folder / "store.db", drive=False) as runtime:
        problems = [str(found) for found in await check(runtime.store)]
        lines = await runtime.store.journals(kind="session")
    return [*problems, *_wrong(folder, {line.id: line.status for line in lines})]


def _wrong(folder: Path, status: dict[str, str]) -> Iterator[str]:
    if World(folder / "world.log").attempts():
        yield "it was paid"
    if (folder / scenario.WENT_THROUGH).exists():
        yield "an approval was answered after the cancel was acknowledged"
    if set(status.values()) != {"cancelled"}:
        yield f"not everything was cancelled: {status}"


STORY: Final = OneAct("CANCEL_CRASH", __file__, _laws)


async def test_without_a_kill_every_law_holds(workers: Forks, tmp_path: Path) -> None:
    found, _ = await STORY.problems(workers, (), tmp_path / "golden")
    assert found == []


async def test_a_kill_on_each_level_of_the_cancel_leaves_nothing_that_acts(
    workers: Forks, points: list[str], tmp_path: Path
) -> None:
    levels = [point for point in points if point.startswith("cancel.")]
    assert len(levels) >= 3
    await STORY.try_all(workers, [(point,) for point in levels[:3]], tmp_path)


async def test_a_kill_elsewhere_leaves_nothing_that_acts(workers: Forks, points: list[str], tmp_path: Path) -> None:
    await STORY.try_all(workers, [(point,) for point in points[::SAMPLE]], tmp_path)


@pytest.mark.torture
@pytest.mark.timeout(3600)
async def test_a_kill_at_every_single_point_leaves_nothing_that_acts(
    workers: Forks, points: list[str], tmp_path: Path
) -> None:
    await STORY.try_all(workers, [(point,) for point in points], tmp_path)


@pytest.mark.skipif("CANCEL_CRASH" not in os.environ, reason="repeats the case in CANCEL_CRASH")
async def test_a_case_can_be_repeated(workers: Forks, tmp_path: Path) -> None:
    await STORY.try_all(workers, [STORY.repeated()], tmp_path)
