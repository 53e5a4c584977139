"""SIGKILL anywhere between the end of a task and the turn that hears of it: told once, acknowledged once, no gap."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import delivery_scenario as scenario
import pytest
from forking import error_in
from killing import KILLED, check_enough, one_of_each

import holdfast as hf
from holdfast.testing import check

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from forking import Forks


async def _verify(folder: Path, repro: str) -> None:
    async with hf.open_store(folder / "store.db") as store:
        assert await check(store) == [], repro
        found = await store.notifications()
        assert sorted(notice.title for notice in found) == [f"{task} is done" for task in scenario.TASKS], repro
        assert {notice.state for notice in found} == {"acknowledged"}, repro
        assert sorted(notice.attempts for notice in found) == [1, 2, 2], repro
        assert {line.status for line in await store.journals()} == {"completed"}, repro
        assert await store.work() == [], repro
        assert [entry.version for entry in await store.memory_list("done")] == [1, 1, 1], repro


async def _kill_at(workers: Forks, points: list[str], numbers: Sequence[int], tmp_path: Path) -> None:
    statuses: Counter[int] = Counter()
    for number in numbers:
        folder = tmp_path / str(number)
        repro = f"killed at point {number} of {len(points)}"
        status = workers.run(folder, HOLDFAST_CRASH_AT=str(number))
        assert status in (0, KILLED), f"{repro}\n{error_in(folder)}"
        statuses[status] += 1
        if status == KILLED:
            assert workers.run(folder) == 0, f"{repro}\n{error_in(folder)}"
        await _verify(folder, repro)
    check_enough(statuses[KILLED], statuses.total())


async def test_a_kill_on_the_way_of_a_notification_loses_and_repeats_nothing(
    workers: Forks, points: list[str], tmp_path: Path
) -> None:
    await _kill_at(workers, points, [points.index(point) + 1 for point in one_of_each(points)], tmp_path)


@pytest.mark.torture
@pytest.mark.timeout(900)
async def test_a_kill_at_any_point_of_the_way_of_a_notification_loses_and_repeats_nothing(
    workers: Forks, points: list[str], tmp_path: Path
) -> None:
    await _kill_at(workers, points, range(1, len(points) + 1), tmp_path)
