"""SIGKILL anywhere in the life of sub-agents, then restart: each is begun once, and each call is told its answer."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pytest
import subagent_scenario as scenario
from killing import OneAct, one_of_each

import holdfast as hf
from holdfast.messages import AssistantMessage, ToolMessage
from holdfast.policy.limits import ROLE
from holdfast.testing import World, check

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from forking import Forks

    from holdfast.messages import Message, ToolResult
    from holdfast.store import Journal

SAMPLE: Final = 90
"""The quick run takes one in so many of the points inside the store, and one in a few of the others."""


@dataclass(frozen=True, slots=True)
class Finish:
    """What a store holds when all is over."""

    problems: tuple[str, ...]
    children: Sequence[Journal]
    results: dict[str, ToolResult]
    answers: dict[str | None, str]
    paid: int


async def _finish(folder: Path) -> Finish:
    async with hf.open(folder / "store.db", drive=False) as runtime:
        history = await runtime.session(scenario.SESSION).history()
        lines = await runtime.store.journals(role=ROLE, session=scenario.SESSION)
        said = {line.agent: _last(await runtime.session(line.id).history()) for line in lines}
        return Finish(
            tuple(map(str, await check(runtime.store))),
            lines,
            {found.name: found for each in history if isinstance(each, ToolMessage) for found in each.results},
            {**said, "chief": next(each.text for each in history if isinstance(each, AssistantMessage) and each.text)},
            sum(attempt.what == "pay" for attempt in World(folder / "world.log").attempts()),
        )


def _last(history: Sequence[Message]) -> str:
    found = history[-1]
    return found.text if isinstance(found, AssistantMessage) else ""


def _wrong(finish: Finish) -> Iterator[str]:
    """The laws, whatever was killed."""
    yield from finish.problems
    if sorted(line.agent or "" for line in finish.children) != ["clerk", "scout"]:
        yield f"the sub-agents are {finish.children}"
    if any(line.status != "completed" for line in finish.children):
        yield f"not all sub-agents have completed: {finish.children}"
    if finish.answers != {"clerk": "paid for it", "scout": "seen it", "chief": scenario.ANSWER}:
        yield f"the answers are {finish.answers}"
    if finish.results["clerk"].content != "paid for it":
        yield f"the chief was told {finish.results['clerk']}"
    told: Any = finish.results["scout"].content
    if not (isinstance(told, dict) and "task" in told):
        yield f"the chief was told {told} of what goes on in the background"
    if finish.paid > 1:
        yield f"it was paid {finish.paid} times"


async def _laws(folder: Path) -> list[str]:
    return list(_wrong(await _finish(folder)))


STORY: Final = OneAct("SUBAGENT_CRASH", __file__, _laws)


async def test_without_a_kill_every_law_holds(workers: Forks, tmp_path: Path) -> None:
    found, _ = await STORY.problems(workers, (), tmp_path / "golden", parks="no")
    assert found == []


async def test_a_kill_around_a_call_leaves_one_story(workers: Forks, points: list[str], tmp_path: Path) -> None:
    await STORY.try_all(workers, [(point,) for point in points if point.startswith("tool.")][::5], tmp_path)


async def test_a_kill_around_a_turn_leaves_one_story(workers: Forks, points: list[str], tmp_path: Path) -> None:
    around = [point for point in points if point.startswith(("turn.", "task.", "model."))]
    await STORY.try_all(workers, [(point,) for point in one_of_each(around)], tmp_path)


async def test_a_kill_inside_the_store_leaves_one_story(workers: Forks, points: list[str], tmp_path: Path) -> None:
    await STORY.try_all(workers, [(point,) for point in points if point.startswith("store.")][::SAMPLE], tmp_path)


async def test_a_kill_of_parents_that_wait_without_being_in_memory_leaves_one_story(
    workers: Forks, points: list[str], tmp_path: Path
) -> None:
    around = [point for point in points if point.startswith(("turn.", "tool.after", "task."))]
    await STORY.try_all(workers, [(point,) for point in around[::6]], tmp_path, parks="yes")


async def test_a_second_kill_while_recovering_leaves_one_story(
    workers: Forks, points: list[str], tmp_path: Path
) -> None:
    ends = [point for point in points if point.startswith("turn.before_end")]
    await STORY.try_all(workers, [(point, "store.committed:2") for point in ends[:2]], tmp_path)


@pytest.mark.torture
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("parks", ["no", "yes"])
async def test_a_kill_at_every_single_point_leaves_one_story(
    workers: Forks, points: list[str], tmp_path: Path, parks: str
) -> None:
    await STORY.try_all(workers, [(point,) for point in points], tmp_path, parks=parks)


@pytest.mark.skipif("SUBAGENT_CRASH" not in os.environ, reason="repeats the case in SUBAGENT_CRASH")
async def test_a_case_can_be_repeated(workers: Forks, tmp_path: Path) -> None:
    parks, *kills = STORY.repeated()
    await STORY.try_all(workers, [kills], tmp_path, parks=parks)
