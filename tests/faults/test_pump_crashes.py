"""SIGKILL anywhere in the life of a pump, then restart: each notification reaches the host and is acknowledged once."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING, Final

import pump_scenario as scenario
import pytest
from killing import OneAct, one_of_each

import holdfast as hf
from holdfast.testing import check

if TYPE_CHECKING:
    from pathlib import Path

    from forking import Forks

NAMED: Final = {"pump.opened", "pump.claimed", "pump.delivered", "pump.settled", "pump.closing"}


def _lines(path: Path) -> list[int]:
    return [int(line) for line in path.read_text().split()] if path.exists() else []


async def _laws(folder: Path) -> list[str]:
    async with hf.open(folder / "store.db", drive=False) as runtime:
        problems = [str(found) for found in await check(runtime.store)]
        found = await runtime.notifications.list(scenario.SESSION)
        turns = [each for each in await runtime.session(scenario.SESSION).history() if isinstance(each, hf.UserMessage)]
    ids = {each.title: each.id for each in found}
    if sorted(ids) != sorted((*scenario.TITLES, scenario.LAST)) or {each.state for each in found} != {"acknowledged"}:
        problems.append(f"they ended as {[(each.title, each.state, each.reason) for each in found]}")
    shown, acknowledged = Counter(_lines(folder / scenario.SHOWN)), Counter(_lines(folder / scenario.ACKNOWLEDGED))
    if any(not shown[ids[title]] for title in scenario.TITLES if title in ids):
        problems.append(f"the host was shown only {shown} of {ids}")
    if any(count > 1 for count in acknowledged.values()):
        problems.append(f"one was acknowledged twice: {acknowledged}")
    carried = [each for each in turns if any(title in each.text for title in scenario.TITLES)]
    if carried or len(turns) != 2 or (scenario.LAST in ids and shown[ids[scenario.LAST]]):
        problems.append(f"the turns carried {[each.text for each in turns]}, and the pump {shown} of {ids}")
    return problems


STORY: Final = OneAct("PUMP_CRASH", __file__, _laws)


async def test_without_a_kill_every_law_holds(workers: Forks, tmp_path: Path) -> None:
    found, _ = await STORY.problems(workers, (), tmp_path / "golden")
    assert found == []


def test_the_scenario_reaches_the_crash_points_of_pumps(points: list[str]) -> None:
    assert {point.partition(":")[0] for point in points} >= NAMED


async def test_a_kill_at_each_point_of_a_pump_leaves_one_end(workers: Forks, points: list[str], tmp_path: Path) -> None:
    cases = [(point,) for point in points if point.startswith("pump.")]
    await STORY.try_all(workers, cases, tmp_path)


async def test_a_kill_of_the_recovery_of_a_pump_leaves_one_end(workers: Forks, tmp_path: Path) -> None:
    await STORY.try_all(
        workers, [("pump.delivered:2", "pump.recovery:1"), ("pump.claimed:1", "pump.opened:1")], tmp_path
    )


async def test_a_kill_after_the_end_of_the_pump_leaves_the_rest_to_a_turn(
    workers: Forks, points: list[str], tmp_path: Path
) -> None:
    after = points[points.index("pump.closing:1") :]
    claims = [point for point in points if point.startswith("drive.claimed:")]  # their number differs under load
    cases = dict.fromkeys([*claims, *(point for point in after if point.startswith(("model.", "turn.")))])
    await STORY.try_all(workers, [(point,) for point in cases], tmp_path)


async def test_a_kill_at_each_named_point_leaves_one_end(workers: Forks, points: list[str], tmp_path: Path) -> None:
    others = [point for point in one_of_each(points) if not point.startswith("pump.")]
    await STORY.try_all(workers, [(point,) for point in others], tmp_path)


@pytest.mark.torture
@pytest.mark.timeout(3600)
async def test_a_kill_at_every_single_point_leaves_one_end(workers: Forks, points: list[str], tmp_path: Path) -> None:
    await STORY.try_all(workers, [(point,) for point in points], tmp_path)


@pytest.mark.skipif("PUMP_CRASH" not in os.environ, reason="repeats the case in PUMP_CRASH")
async def test_a_case_can_be_repeated(workers: Forks, tmp_path: Path) -> None:
    await STORY.try_all(workers, [STORY.repeated()], tmp_path)
