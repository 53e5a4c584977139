"""SIGKILL anywhere between a key, its way outside, the answer and the result: one key, one answer, no call twice."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING, Final

import deferral_scenario as scenario
import pytest
from forking import error_in
from killing import KILLED, Kill, one_of_each, traced, try_all

import holdfast as hf
from holdfast.messages import ToolMessage
from holdfast.testing import check

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from forking import Forks

SAMPLE: Final = 90
"""The quick run takes one in so many of the points inside the store, and one of each name around deferrals."""


@pytest.fixture(scope="module")
def points(workers: Forks, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Kill]]:
    """Every crash point that a run without a kill reaches, by story, in order."""
    return {
        story: traced(workers, tmp_path_factory.mktemp(story), scenario.ACTS, story=story) for story in scenario.TOOLS
    }


# ---- the laws --------------------------------------------------------------------------------------------------------


def _wrong_outside(folder: Path) -> Iterator[str]:
    """What holds at any time, whoever was killed where."""
    told = scenario.told(folder)
    for tool, times in Counter(tool for tool, _ in told).items():
        if tool in scenario.NEVER and times > 1:
            yield f"{tool} was called {times} times"
        if len({key for named, key in told if named == tool}) > 1:
            yield f"{tool} has told several keys"


async def _wrong_at_the_end(folder: Path, story: str) -> list[str]:
    async with hf.open(folder / "store.db", drive=False, mirror=False) as runtime:
        found = [str(problem) for problem in await check(runtime.store)]
        told = {tool for tool, _ in scenario.told(folder)}
        results = await _results(runtime)
        for tool in scenario.TOOLS[story]:
            state, content = results.get(tool, ("none", ""))
            answered = state == "ok" and content == f"{tool} is answered"
            # Of a call that must not be repeated and whose key nobody got, nobody can say what came of it.
            unknown = tool in scenario.NEVER and tool not in told and state == "unknown"
            if not answered and not unknown:
                found.append(f"{tool} ended as {state}: {content}")
        for journal in [scenario.SESSION, *(line.id for line in await runtime.tasks.list(session=scenario.SESSION))]:
            found += [f"{wait.name} is open" for wait in await runtime.store.waits(journal, state="open")]
    return found


async def _results(runtime: hf.Runtime) -> dict[str, tuple[str, object]]:
    history = await runtime.session(scenario.SESSION).history()
    found = [result for message in history if isinstance(message, ToolMessage) for result in message.results]
    results = {result.name: (result.state, result.content) for result in found}
    for line in await runtime.tasks.list(session=scenario.SESSION):
        task = await runtime.tasks.task(line.id)
        assert task.call is not None
        value = bytes(getattr(task.outcome, "value", b"null")).decode().strip('"')
        state = {"succeeded": "ok", "interrupted": "unknown"}.get(task.status, task.status)
        results[task.call.tool] = (state, value)
    return results


async def _problems(workers: Forks, story: str, kills: Sequence[Kill], folder: Path) -> tuple[list[str], int]:
    """What is wrong after these kills, one after the other; and how many there were."""
    named = " ".join([story, *map(str, kills)])
    repeat = f'DEFERRAL_CRASH="{named}" python -m pytest tests/faults/test_deferral_crashes.py -k can_be_repeated'
    left, found, count, told = list(kills), list[str](), 0, 0
    for act in scenario.ACTS:
        while left and left[0].act <= act:
            status = workers.run(folder, story=story, act=act, HOLDFAST_CRASH_AT=left.pop(0).point)
            if status not in {0, KILLED}:
                return [f"{repeat}\n{error_in(folder)}"], count
            count += status == KILLED
            found += _wrong_outside(folder)
        if workers.run(folder, story=story, act=act) != 0:
            return [f"act {act} can't be finished; {repeat}\n{error_in(folder)}"], count
        told = len(scenario.told(folder)) if act == scenario.ASK else told
    if len(scenario.told(folder)) != told:
        found.append("a tool was called again although it had returned")
    found += [*_wrong_outside(folder), *await _wrong_at_the_end(folder, story)]
    return [f"{line}\n    repeat with: {repeat}" for line in found], count


async def _all(workers: Forks, story: str, cases: Sequence[Sequence[Kill]], folder: Path) -> None:
    async def problems(kills: Sequence[Kill], place: Path) -> tuple[list[str], int]:
        return await _problems(workers, story, kills, place)

    await try_all(problems, cases, folder, kills=len)


# ---- tests -----------------------------------------------------------------------------------------------------------


def _around_deferrals(kill: Kill) -> bool:
    return kill.point.startswith(("defer.", "outside.", "tool.after_run", "turn.before_park"))


@pytest.mark.timeout(240)
@pytest.mark.parametrize("story", scenario.TOOLS)
async def test_a_kill_around_a_deferral_loses_no_answer_and_calls_no_tool_twice(
    workers: Forks, points: dict[str, list[Kill]], story: str, tmp_path: Path
) -> None:
    kills = [kill for kill in points[story] if _around_deferrals(kill)]
    await _all(workers, story, [(kill,) for kill in one_of_each(kills)], tmp_path)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("story", scenario.TOOLS)
async def test_a_kill_elsewhere_loses_no_answer_and_calls_no_tool_twice(
    workers: Forks, points: dict[str, list[Kill]], story: str, tmp_path: Path
) -> None:
    others = [kill for kill in points[story] if not _around_deferrals(kill) and not kill.inside_the_store]
    inside = [kill for kill in points[story] if kill.inside_the_store]
    await _all(workers, story, [(kill,) for kill in (*others[::16], *inside[::SAMPLE])], tmp_path)


@pytest.mark.torture
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("story", scenario.TOOLS)
async def test_a_kill_at_every_single_point_keeps_every_law(
    workers: Forks, points: dict[str, list[Kill]], story: str, tmp_path: Path
) -> None:
    await _all(workers, story, [(kill,) for kill in points[story]], tmp_path)


@pytest.mark.timeout(60)
async def test_a_case_can_be_repeated_by_its_name(workers: Forks, tmp_path: Path) -> None:
    story, *kills = os.environ.get("DEFERRAL_CRASH", "calls 0@outside.told:3 2@turn.before_end:1").split()
    found, _ = await _problems(workers, story, [*map(Kill.read, kills)], tmp_path / "repeated")
    assert found == []
