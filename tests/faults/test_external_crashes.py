"""SIGKILL anywhere in the life of work items, then restart: each has one end, the one that was acknowledged."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING, Final

import external_scenario as scenario
import pytest
from killing import OneAct, one_of_each

import holdfast as hf
from holdfast.testing import check

if TYPE_CHECKING:
    from pathlib import Path

    from forking import Forks


async def _laws(folder: Path) -> list[str]:
    async with hf.open(folder / "store.db", drive=False) as runtime:
        problems = [str(found) for found in await check(runtime.store)]
        lines = {line.title: line for line in await runtime.processes.list(name="external")}
        above = await runtime.processes.line("p")
        told = Counter(found.source for found in await runtime.store.notifications(scenario.SESSION))
    ends = {title: line.status for title, line in lines.items()}
    allowed = {"completed"} if (folder / scenario.COMPLETED).exists() else {"completed", "cancelled"}
    if (ends["done"], ends["lost"]) != ("completed", "failed") or ends["both"] not in allowed:
        problems.append(f"they ended as {ends}")
    if len(told) != len(scenario.KEYS) or set(told.values()) != {1}:
        problems.append(f"the session was notified {told}")
    below = lines.pop(scenario.BELOW)
    if (above.status, below.status, above.children, below.parent) != ("cancelled", "cancelled", (below.id,), "p"):
        problems.append(f"the parent ended as {above}, its item as {below}")
    if any(line.fraction != 0.5 for title, line in lines.items() if title != "both"):
        problems.append("progress was lost")
    return problems


STORY: Final = OneAct("EXTERNAL_CRASH", __file__, _laws)
OWN: Final = ("external.", "process.", "cancel.", "store.committed")
"""The crash points that tell about work items; at those of turns and of the store, other stories kill."""


async def test_without_a_kill_every_law_holds(workers: Forks, tmp_path: Path) -> None:
    found, _ = await STORY.problems(workers, (), tmp_path / "golden")
    assert found == []


def test_the_scenario_reaches_the_crash_points_of_work_items(points: list[str]) -> None:
    named = {point.partition(":")[0] for point in points}
    assert {"external.accepted", "external.adopted", "external.progressed", "process.before_end"} <= named


async def test_a_kill_at_each_named_point_of_work_items_leaves_one_end(
    workers: Forks, points: list[str], tmp_path: Path
) -> None:
    own = [point for point in points if point.startswith(OWN)]
    await STORY.try_all(workers, [(point,) for point in one_of_each(own)], tmp_path)


@pytest.mark.torture
@pytest.mark.timeout(3600)
async def test_a_kill_at_every_single_point_leaves_one_end(workers: Forks, points: list[str], tmp_path: Path) -> None:
    await STORY.try_all(workers, [(point,) for point in points], tmp_path)


@pytest.mark.skipif("EXTERNAL_CRASH" not in os.environ, reason="repeats the case in EXTERNAL_CRASH")
async def test_a_case_can_be_repeated(workers: Forks, tmp_path: Path) -> None:
    await STORY.try_all(workers, [STORY.repeated()], tmp_path)
