"""SIGKILL anywhere in the life of a background call, then restart: status, result, and one notification agree."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pytest
import task_scenario as scenario
from forking import error_in
from killing import KILLED, OneAct, one_of_each

import holdfast as hf
from holdfast.messages import ToolMessage, UserMessage
from holdfast.processes.lists import read_process
from holdfast.records import Ended
from holdfast.testing import World, check

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from forking import Forks

    from holdfast.messages import ToolResult
    from holdfast.processes.state import ProcessState
    from holdfast.runtime.runtime import Runtime
    from holdfast.store import Notification

SAMPLE: Final = 90
"""The quick run takes one in so many of the points inside the store."""
RESULTS: Final = {"look": {"looked"}, "reserve": {"reserved"}, "pay": {"paid"}, "ship": {"shipped", "found"}}


# ---- what came of it -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Finish:
    """What a store holds when all is over."""

    problems: tuple[str, ...]
    tasks: dict[str, ProcessState]
    ends: dict[str, int]
    notices: Sequence[Notification]
    results: dict[str, ToolResult]
    heard: str
    attempts: Counter[str]


async def _finish(folder: Path) -> Finish:
    async with hf.open(folder / "store.db", drive=False) as runtime:
        tasks = await _tasks(runtime)
        history = await runtime.session(scenario.SESSION).history()
        results = [found for message in history if isinstance(message, ToolMessage) for found in message.results]
        told = [
            message.text for message in history if isinstance(message, UserMessage) and message.origin == "holdfast"
        ]
        world = World(folder / "world.log")
        return Finish(
            tuple(map(str, await check(runtime.store))),
            tasks,
            {name: sum(isinstance(record, Ended) for record in task.records) for name, task in tasks.items()},
            await runtime.store.notifications(scenario.SESSION),
            {found.name: found for found in results},
            "\n".join(told),
            Counter(attempt.what for attempt in world.attempts()),
        )


async def _tasks(runtime: Runtime) -> dict[str, ProcessState]:
    found: dict[str, ProcessState] = {}
    for line in await runtime.tasks.list(session=scenario.SESSION):
        task = await read_process(runtime.store, line.id)
        assert task.call is not None, "a task without its call"
        found[task.call.tool] = task
    return found


def _wrong(finish: Finish) -> Iterator[str]:
    """The laws, whatever was killed."""
    yield from finish.problems
    if set(finish.results) != set(scenario.TOOLS):
        yield f"not every call has a result: {sorted(finish.results)}"
    for name, given in finish.results.items():
        content: Any = given.content
        told = isinstance(content, dict) and "task" in content
        # A quick worker may be done within the budget: then there is a result and no task.
        true = told if name in finish.tasks else given.state != "ok" or content in RESULTS[name]
        if not true:
            yield f"{name}: the model reads {given.state} {content}, but the task is {finish.tasks.get(name)}"
    for name, task in finish.tasks.items():
        yield from _wrong_task(name, task, finish)
    if len(finish.notices) != len(finish.tasks):
        yield f"{len(finish.notices)} notifications of {len(finish.tasks)} tasks"
    for name in ("pay", "ship"):
        if finish.attempts[name] > 1:
            yield f"{name} reached the world {finish.attempts[name]} times"


def _wrong_task(name: str, task: ProcessState, finish: Finish) -> Iterator[str]:
    if not task.over or finish.ends[name] != 1:
        yield f"{name} is {task.status} with {finish.ends[name]} ends"
    if task.status != "succeeded" and not (name == "pay" and task.status == "interrupted"):
        yield f"{name} ended as {task.status}: {task.error}"
    about = [notice for notice in finish.notices if notice.source == task.id]
    if [(notice.kind, notice.state, notice.attempts) for notice in about] != [
        (f"task_{task.status}", "acknowledged", 1)
    ]:
        yield f"{name} is {task.status}, its notifications are {about}"
    if task.status == "succeeded" and about and about[0].body not in RESULTS[name]:
        yield f"{name} told {about[0].body!r}"
    if finish.heard.count(f'task="{task.id}"') != 1:
        yield f"the model has heard of {name} {finish.heard.count(task.id)} times"


async def _laws(folder: Path) -> list[str]:
    return list(_wrong(await _finish(folder)))


STORY: Final = OneAct("TASK_CRASH", __file__, _laws)


# ---- the tests -------------------------------------------------------------------------------------------------------


async def test_without_a_kill_every_law_holds_and_every_call_is_made_once(workers: Forks, tmp_path: Path) -> None:
    found, _ = await STORY.problems(workers, (), tmp_path / "golden")
    finish = await _finish(tmp_path / "golden")
    assert found == []
    assert {task.status for task in finish.tasks.values()} == {"succeeded"}
    assert set(finish.attempts.values()) == {1}


def test_the_scenario_reaches_the_crash_points_of_tasks(points: list[str]) -> None:
    assert {"task.before_end:4", "task.after_end:4"} <= set(points)


async def test_a_kill_around_the_end_of_a_task_leaves_one_story(
    workers: Forks, points: list[str], tmp_path: Path
) -> None:
    await STORY.try_all(workers, [(point,) for point in one_of_each(points) if point.startswith("task.")], tmp_path)


async def test_a_kill_around_a_call_that_goes_to_the_background_leaves_one_story(
    workers: Forks, points: list[str], tmp_path: Path
) -> None:
    await STORY.try_all(workers, [(point,) for point in points if point.startswith("tool.")][1::4], tmp_path)


async def test_a_kill_inside_the_store_leaves_one_story(workers: Forks, points: list[str], tmp_path: Path) -> None:
    await STORY.try_all(workers, [(point,) for point in points if point.startswith("store.")][::SAMPLE], tmp_path)


async def test_a_second_kill_while_recovering_leaves_one_story(
    workers: Forks, points: list[str], tmp_path: Path
) -> None:
    ends = [point for point in points if point.startswith("task.before_end")]
    await STORY.try_all(workers, [(point, "store.committed:2") for point in ends[:2]], tmp_path)


async def test_a_call_that_went_to_the_background_is_left_there_when_the_next_process_has_no_budget(
    workers: Forks, tmp_path: Path
) -> None:
    folder = tmp_path / "killed"
    assert workers.run(folder, HOLDFAST_CRASH_AT="tool.before_outcome:1") == KILLED
    assert workers.run(folder, budget="none") == 0, error_in(folder)
    assert list(_wrong(await _finish(folder))) == []


@pytest.mark.torture
@pytest.mark.timeout(3600)
async def test_a_kill_at_every_single_point_leaves_one_story(workers: Forks, points: list[str], tmp_path: Path) -> None:
    await STORY.try_all(workers, [(point,) for point in points], tmp_path)


@pytest.mark.skipif("TASK_CRASH" not in os.environ, reason="repeats the case in TASK_CRASH")
async def test_a_case_can_be_repeated(workers: Forks, tmp_path: Path) -> None:
    await STORY.try_all(workers, [STORY.repeated()], tmp_path)
