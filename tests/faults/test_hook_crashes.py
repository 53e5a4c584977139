"""SIGKILL around what hooks decide, then restart: what is recorded is decided, and nobody asks again."""

from __future__ import annotations

import signal
from collections import Counter
from typing import TYPE_CHECKING, Final

import hook_scenario as scenario
import pytest
from forking import Forks, error_in, reached_in
from killing import one_of_each
from turn_scenario import notes

import holdfast as hf
from holdfast.records import Done
from holdfast.runtime.authorization import HOOK_SUFFIX
from holdfast.runtime.replay_check import check_turns
from holdfast.testing import check

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

KILLED: Final = -signal.SIGKILL
AROUND: Final = ("hook.", "model.", "tool.")
"""The points that are tried: those around a decision."""


async def _decided(folder: Path) -> set[int | str]:
    """The questions and the calls about which a decision is on the disk."""
    if not (folder / "store.db").exists():
        return set()
    async with hf.open_store(folder / "store.db") as store:
        if not [line for line in await store.journals() if line.id == scenario.SESSION]:
            return set()
        keys = [entry.record.key for entry in await store.read(scenario.SESSION) if isinstance(entry.record, Done)]
    about = {"t1/1.model": 0, "t1/2.tools": "look", "t1/4.model": 1}
    return {about["/".join(key.split("/")[:2])] for key in keys if HOOK_SUFFIX in key}


async def _problems(workers: Forks, story: str, point: str, folder: Path) -> list[str]:
    status = workers.run(folder, story=story, HOLDFAST_CRASH_AT=point)
    if status not in {0, KILLED}:
        return [f"{story}@{point}: {error_in(folder)}"]
    decided, before = await _decided(folder), Counter(notes(folder / "hook.log"))
    made = {what for what, log in (("look", "tool.log"), (0, "model.log")) if notes(folder / log)}
    found = [f"{story}@{point}: {what} was made before it was decided" for what in made - decided]
    if workers.run(folder, story=story) != 0:
        return [f"{story}@{point} can't go on: {error_in(folder)}"]
    after = Counter(notes(folder / "hook.log"))
    found += [f"{story}@{point}: decided again about {at}" for at in decided if after[at] != before[at]]
    if 1 in notes(folder / "model.log"):
        found.append(f"{story}@{point}: the model was asked though a hook had decided")
    async with hf.open_store(folder / "store.db") as store:
        found += [f"{story}@{point}: {violation}" for violation in await check(store)]
        checks = await check_turns(store, scenario.SESSION, scenario.agent_in(folder, story))
        found += [f"{story}@{point}: {turn}" for turn in checks if turn.verdict != "ok"]
    return found


async def _all(workers: Forks, story: str, tmp_path: Path, chosen: Callable[[list[str]], list[str]]) -> None:
    trace = tmp_path / "trace.txt"
    (tmp_path / "count").mkdir()
    assert workers.run(tmp_path / "count", story=story, HOLDFAST_CRASH_TRACE=str(trace)) == 0
    points = [point for point in reached_in(trace) if point.startswith(AROUND)]
    assert {"hook.before_decision:2", "hook.after_decision:2"} <= set(points)
    problems = [
        problem
        for at in chosen(points)
        for problem in await _problems(workers, story, at, tmp_path / at.replace(":", "-"))
    ]
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("story", scenario.STORIES)
async def test_what_hooks_decided_holds_after_a_kill_at_each_named_point(
    workers: Forks, story: str, tmp_path: Path
) -> None:
    await _all(workers, story, tmp_path, one_of_each)


@pytest.mark.torture
@pytest.mark.parametrize("story", scenario.STORIES)
async def test_what_hooks_decided_holds_wherever_the_process_is_killed(
    workers: Forks, story: str, tmp_path: Path
) -> None:
    await _all(workers, story, tmp_path, list)
