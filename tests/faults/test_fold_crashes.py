"""SIGKILL around the write of a fold: it is there whole or not at all, and the session goes on as if it were not."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import fold_scenario as scenario
import pytest
from forking import error_in
from killing import KILLED, check_enough

import holdfast as hf
from holdfast.runtime.session_records import read_conversation, read_present
from holdfast.testing import check
from holdfast.turns.fold import decode_fold

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from forking import Forks

POINTS = ("fold.before_save", "store.fold_part")
AROUND = 2
"""So many crash points before and after each write of a fold are tried."""


@dataclass(frozen=True)
class Told:
    """What a store holds in the end."""

    history: tuple[Any, ...]
    context: tuple[Any, ...]
    asked: list[str]
    folds: int


async def _told(folder: Path, repro: str) -> Told:
    async with hf.open_store(folder / "store.db") as store:
        assert await check(store) == [], repro
        whole, present = [await read(store, scenario.SESSION) for read in (read_conversation, read_present)]
        assert present.context == whole.context, repro
        assert (present.usage, present.used, present.position) == (whole.usage, whole.used, whole.position), repro
        head = (await store.journal(scenario.SESSION)).head
        folds = [await store.fold(scenario.SESSION, upto=seq) for seq in range(1, head + 1)]
        found = {fold.seq: decode_fold(fold.body) for fold in folds if fold is not None}
        assert None not in found.values(), repro
    asked = (folder / "asked.txt").read_text().splitlines()
    return Told(whole.thread.messages, whole.context.messages, asked, len(found))


@pytest.fixture
async def golden(workers: Forks, tmp_path: Path) -> Told:
    assert workers.run(tmp_path / "golden") == 0, error_in(tmp_path / "golden")
    return await _told(tmp_path / "golden", "without a kill")


def test_the_scenario_saves_folds_and_compacts(golden: Told, points: list[str]) -> None:
    assert golden.folds >= 3
    assert "summary" in golden.asked
    assert {point.partition(":")[0] for point in points} >= {*POINTS}


async def _kill_at(workers: Forks, numbers: Iterable[int], golden: Told, folder: Path) -> None:
    statuses: Counter[int] = Counter()
    for number in numbers:
        here, repro = folder / str(number), f"killed at point {number}"
        status = workers.run(here, HOLDFAST_CRASH_AT=str(number))
        assert status in (0, KILLED), f"{repro}\n{error_in(here)}"
        statuses[status] += 1
        if status == KILLED:
            assert workers.run(here) == 0, f"{repro}\n{error_in(here)}"
        told = await _told(here, repro)
        assert (told.history, told.context) == (golden.history, golden.context), repro
    check_enough(statuses[KILLED], statuses.total())


def _around(points: list[str]) -> list[int]:
    """The numbers of the points around the writes of folds, from 1 on."""
    places = [number for number, point in enumerate(points, 1) if point.partition(":")[0] in POINTS]
    near = {place + step for place in places for step in range(-AROUND, AROUND + 1)}
    return sorted(number for number in near if 1 <= number <= len(points))


@pytest.mark.timeout(120)
async def test_a_kill_around_the_write_of_a_fold_changes_nothing(
    workers: Forks, points: list[str], golden: Told, tmp_path: Path
) -> None:
    await _kill_at(workers, _around(points)[::2], golden, tmp_path)


@pytest.mark.torture
@pytest.mark.timeout(1_800)
async def test_a_kill_at_any_point_of_a_session_with_folds_changes_nothing(
    workers: Forks, points: list[str], golden: Told, tmp_path: Path
) -> None:
    await _kill_at(workers, range(1, len(points) + 1), golden, tmp_path)
