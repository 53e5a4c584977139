"""A month of a cron trigger with two workers, clock jumps and a change of the clocks, killed anywhere: each once."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import pytest
import trigger_scenario as scenario
from forking import error_in
from killing import OneAct

import holdfast as hf
from holdfast.records import Done, Intended
from holdfast.testing import check
from holdfast.triggers.driver import read_trigger

if TYPE_CHECKING:
    from pathlib import Path

    from forking import Forks

    from holdfast.runtime.runtime import Runtime


async def _wrong(folder: Path) -> list[str]:
    """The laws, whatever was killed."""
    async with hf.open(folder / "store.db", drive=False) as runtime:
        found = [str(violation) for violation in await check(runtime.store)]
        begun = await _inputs(runtime)
        wanted = {key: [f"For {day}"] for key, day in scenario.expected().items()}
        found += [f"{key}: {begun.get(key)}, not {said}" for key, said in wanted.items() if begun.get(key) != said]
        found += [f"{key} was never due" for key in begun.keys() - wanted.keys()]
        state, _ = await read_trigger(runtime.store, scenario.JOURNAL)
        if (state.started, state.skipped, state.failed, state.queue) != (scenario.DAYS, 0, 0, ()):
            found.append(f"the state is {state}")
        return found + await _story(runtime)


async def _inputs(runtime: Runtime) -> dict[str, list[str]]:
    """What was said in each session: all of it is still in the inbox."""
    found: dict[str, list[str]] = {}
    for line in await runtime.sessions(limit=1_000):
        pending = await runtime.store.pending(line.id)
        found[line.id] = [said.body.decode().partition('"text":"')[2].partition('"')[0] for said in pending]
    return found


async def _story(runtime: Runtime) -> list[str]:
    """Every occurrence is reserved once, and started once, in the journal; in the order in which they were due."""
    intended: list[str] = []
    done: list[str] = []
    async for entry in runtime.store.read_all(scenario.JOURNAL):
        match entry.record:
            case Intended(key=key):
                intended.append(key)
            case Done(key=key) if "/books" not in key:
                done.append(key)
            case _:
                pass
    if intended != done or intended != sorted(set(intended)) or len(intended) != scenario.DAYS:
        return [f"reserved {intended}, started {done}"]
    return []


STORY: Final = OneAct("TRIGGER_CRASH", __file__, _wrong)


async def test_without_a_kill_every_occurrence_of_the_month_is_started_once(workers: Forks, tmp_path: Path) -> None:
    assert workers.run(tmp_path / "golden") == 0, error_in(tmp_path / "golden")
    assert await _wrong(tmp_path / "golden") == []


def test_the_month_reaches_the_crash_points_of_triggers(points: list[str]) -> None:
    named = {point.partition(":")[0] for point in points}
    places = {"before_books", "after_books", "before_start", "after_start", "before_park"}
    assert {f"trigger.{place}" for place in places} <= named


async def test_a_kill_around_a_start_leaves_one_start(workers: Forks, points: list[str], tmp_path: Path) -> None:
    await STORY.try_all(workers, [(point,) for point in points if point.startswith("trigger.")][3::74], tmp_path)


async def test_a_kill_inside_the_store_leaves_one_start(workers: Forks, points: list[str], tmp_path: Path) -> None:
    await STORY.try_all(workers, [(point,) for point in points if point.startswith("store.")][7::700], tmp_path)


async def test_one_kill_after_the_other_leaves_one_start(workers: Forks, tmp_path: Path) -> None:
    kills = ["trigger.after_start:3", "trigger.before_books:2", "store.committed:4", "trigger.after_books:9"]
    await STORY.try_all(workers, [kills], tmp_path)


@pytest.mark.torture
@pytest.mark.timeout(7200)
async def test_a_kill_at_every_single_point_leaves_one_start(workers: Forks, points: list[str], tmp_path: Path) -> None:
    await STORY.try_all(workers, [(point,) for point in points], tmp_path)


@pytest.mark.skipif("TRIGGER_CRASH" not in os.environ, reason="repeats the case in TRIGGER_CRASH")
async def test_a_case_can_be_repeated(workers: Forks, tmp_path: Path) -> None:
    await STORY.try_all(workers, [STORY.repeated()], tmp_path)
