"""SIGKILL anywhere while a session is forgotten: it is there whole or gone whole, and its bytes go with it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import forgetting_scenario as scenario
import pytest
from forking import error_in
from killing import OneAct, one_of_each

import holdfast as hf
from holdfast.errors import JournalForgotten
from holdfast.testing import check

if TYPE_CHECKING:
    from pathlib import Path

    from forking import Forks


async def _wrong(folder: Path) -> list[str]:
    """The laws, whatever was killed."""
    async with hf.open(folder / "store.db", agents=[scenario.agent()], drive=False) as runtime:
        found = [str(violation) for violation in await check(runtime.store)]
        left = sorted(line.id for line in await runtime.sessions() if line.session is None)
        if left != ["stays"] or len(await runtime.sessions()) != 2:
            found.append(f"left: {left}")
        if len(await runtime.session("stays").history()) != 6:
            found.append("the other session is not whole")
        try:
            await runtime.session(scenario.SESSION).history()
        except JournalForgotten:
            pass
        else:
            found.append("its id is not refused")
        spent = await runtime.store.spent("clerk")
        if spent.model_calls != 6:
            found.append(f"{spent.model_calls} model calls are counted")
    return found + [f"its id is still in {path.name}" for path in _files_with(folder, scenario.SESSION.encode())]


def _files_with(folder: Path, said: bytes) -> list[Path]:
    return [path for path in folder.rglob("store.db*") if path.is_file() and said in path.read_bytes()]


STORY: Final = OneAct("FORGETTING_CRASH", __file__, _wrong)


async def test_without_a_kill_the_session_is_gone(workers: Forks, tmp_path: Path) -> None:
    assert workers.run(tmp_path / "golden") == 0, error_in(tmp_path / "golden")
    assert await _wrong(tmp_path / "golden") == []


def test_the_scenario_reaches_the_crash_points_of_forgetting(points: list[str]) -> None:
    assert {"store.before_wipe:1", "store.wiped:1"} <= set(points)


async def test_a_kill_around_a_wipe_leaves_nothing_behind(workers: Forks, points: list[str], tmp_path: Path) -> None:
    around = points[points.index("store.before_wipe:1") - 4 :]
    await STORY.try_all(workers, [(point,) for point in one_of_each(around)], tmp_path)


@pytest.mark.torture
@pytest.mark.timeout(3600)
async def test_a_kill_at_every_single_point_leaves_nothing_behind(
    workers: Forks, points: list[str], tmp_path: Path
) -> None:
    await STORY.try_all(workers, [(point,) for point in points], tmp_path)


@pytest.mark.skipif("FORGETTING_CRASH" not in os.environ, reason="repeats the case in FORGETTING_CRASH")
async def test_a_case_can_be_repeated(workers: Forks, tmp_path: Path) -> None:
    await STORY.try_all(workers, [STORY.repeated()], tmp_path)
