"""SIGKILL anywhere while files are put, sent and collected: what is needed stays, what is not goes, nothing is half."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attachment_scenario as scenario
import pytest
from forking import error_in
from killing import KILLED, Kill, traced

import holdfast as hf
from holdfast.testing import check

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from forking import Forks


@pytest.fixture(scope="module")
def points(workers: Forks, tmp_path_factory: pytest.TempPathFactory) -> list[Kill]:
    """Every crash point that a run without a kill reaches, with the act in which it does."""
    return traced(workers, tmp_path_factory.mktemp("traced"), scenario.ACTS)


async def _problems(workers: Forks, kill: Kill, folder: Path) -> list[str]:
    for act in scenario.ACTS:
        if act == kill.act:
            status = workers.run(folder, act=act, HOLDFAST_CRASH_AT=kill.point)
            assert status in {0, KILLED}, error_in(folder)
        assert workers.run(folder, act=act) == 0, error_in(folder)
    async with hf.open(folder / "store.db", drive=False, mirror=False) as runtime:
        found = [str(problem) for problem in await check(runtime.store)]
        bodies = {body async for body in _bodies(runtime)}
    kept = {*scenario.SENT, scenario.GIVEN}
    if bodies != kept:
        shown = [sorted(body[:50] for body in bodies) for bodies in (bodies - kept, kept - bodies)]
        found.append(f"{shown[0]} were not collected, {shown[1]} were")
    found += [f"{left} was left" for left in files_in(folder) if left.startswith("tmp")]
    return [f"{kill}: {problem}" for problem in found]


def files_in(folder: Path) -> list[str]:
    return [found.name for found in folder.iterdir()]


async def _bodies(runtime: hf.Runtime):  # noqa: ANN202
    for digest, _ in await runtime.store.examine(lambda reader: list(reader.raw_blobs())):
        yield await runtime.attachments.get(digest)


async def _all(workers: Forks, kills: Sequence[Kill], tmp_path: Path) -> None:
    assert kills
    found = [
        problem
        for number, kill in enumerate(kills)
        for problem in await _problems(workers, kill, tmp_path / str(number))
    ]
    assert found == []


@pytest.mark.timeout(240)
async def test_a_kill_while_collecting_takes_nothing_that_is_needed(
    workers: Forks, points: list[Kill], tmp_path: Path
) -> None:
    await _all(workers, [kill for kill in points if kill.act == scenario.COLLECT][::3], tmp_path)


@pytest.mark.timeout(240)
async def test_a_kill_while_putting_and_sending_loses_nothing_that_was_sent(
    workers: Forks, points: list[Kill], tmp_path: Path
) -> None:
    await _all(workers, [kill for kill in points if kill.act == scenario.PUT][::18], tmp_path)


@pytest.mark.torture
@pytest.mark.timeout(3600)
async def test_a_kill_at_every_single_point_loses_nothing_that_was_sent(
    workers: Forks, points: list[Kill], tmp_path: Path
) -> None:
    await _all(workers, points, tmp_path)
