"""SIGKILL while functions and providers define a turn, and after that: each turn has one definition, to its end."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, Final

import definition_scenario as scenario
import pytest
from killing import OneAct, one_of_each

import holdfast as hf
from holdfast.runtime.replay_check import check_turns
from holdfast.testing import World, check

if TYPE_CHECKING:
    from pathlib import Path

    from forking import Forks

SAMPLE: Final = 40
"""The quick run takes one in so many of the points inside the store."""


async def _wrong(folder: Path) -> list[str]:
    """The laws, whatever was killed."""
    agent = scenario.make_agent(folder)
    async with hf.open(folder / "store.db", agents=[agent], drive=False, mirror=False) as runtime:
        problems = [str(violation) for violation in await check(runtime.store)]
        requests = await runtime.session(scenario.SESSION).requests()
        checked = await check_turns(runtime.store, scenario.SESSION, agent)
    problems += [f"{found.turn} is a {found.verdict}: {found.findings}" for found in checked if found.verdict != "ok"]
    seen: defaultdict[str, set[Any]] = defaultdict(set)
    for each in requests:
        if not each.exact:
            problems.append(f"{each.key} is not the request that was sent")
        names = tuple(tool.name for tool in each.request.tools)
        found = (each.model, each.request.instructions, names, each.request.settings.seed)
        seen[each.key.partition("/")[0]].add(found)
    problems += [f"{turn} was defined more than once: {found}" for turn, found in seen.items() if len(found) > 1]
    # A definition may have been lost before it was durable; once the model has had the recorded one, there is no other.
    for turn, ((_, instructions, names, _), *_) in seen.items():
        sent = [each[1:] for each in scenario.lines(folder / "asked.log") if f"for {turn}." in each[1]]
        recorded = [instructions, list(names)]
        if any(each != recorded for each in sent[sent.index(recorded) :]):
            problems.append(f"the model got {sent} in {turn}, and the journal has {recorded}")
    models = [(model, seed) for found in seen.values() for model, _, _, seed in found]
    if models.count(("other:model", 2)) != 1:
        problems.append(f"the models were {models}")
    done = Counter(World(folder / "world.log").done())
    least = {what: 0 if what == "pay" else 1 for what in scenario.ACTS}  # an interrupted `pay` is not repeated
    problems += [f"{what} was done {done[what]} times" for what in scenario.ACTS if not least[what] <= done[what] <= 1]
    [(_, _, names, _)] = seen["t1"]
    edition = names[-1].rpartition("_")[2]
    called = scenario.lines(folder / "called.log")
    return problems + [f"{each} is not of edition {edition}" for each in called if each[1] != edition]


STORY: Final = OneAct("DEFINITION_CRASH", __file__, _wrong)


async def test_without_a_kill_each_turn_is_defined_once(workers: Forks, tmp_path: Path) -> None:
    folder = tmp_path / "golden"
    assert (await STORY.problems(workers, (), folder))[0] == []
    assert sorted(World(folder / "world.log").done()) == sorted(scenario.ACTS)
    listed = scenario.lines(folder / "listed.log")
    assert len(listed) == len(set(listed))


async def test_a_kill_around_the_record_of_a_definition_leaves_one_definition(
    workers: Forks, points: list[str], tmp_path: Path
) -> None:
    chosen = [point for point in points if point.startswith("environment.")]
    assert {"environment.before_record:1", "environment.after_record:1"} <= set(chosen)
    await STORY.try_all(workers, [(point,) for point in chosen], tmp_path)


async def test_a_kill_elsewhere_leaves_the_definition_as_it_was(
    workers: Forks, points: list[str], tmp_path: Path
) -> None:
    await STORY.try_all(workers, [(point,) for point in one_of_each(points)], tmp_path)


async def test_a_kill_inside_the_store_leaves_the_definition_as_it_was(
    workers: Forks, points: list[str], tmp_path: Path
) -> None:
    await STORY.try_all(workers, [(point,) for point in points if point.startswith("store.")][::SAMPLE], tmp_path)


@pytest.mark.torture
@pytest.mark.timeout(3600)
async def test_a_kill_at_every_single_point_leaves_the_definition_as_it_was(
    workers: Forks, points: list[str], tmp_path: Path
) -> None:
    await STORY.try_all(workers, [(point,) for point in points], tmp_path)


@pytest.mark.skipif("DEFINITION_CRASH" not in os.environ, reason="repeats the case in DEFINITION_CRASH")
async def test_a_case_can_be_repeated(workers: Forks, tmp_path: Path) -> None:
    await STORY.try_all(workers, [STORY.repeated()], tmp_path)
