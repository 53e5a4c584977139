"""SIGKILL anywhere between the question, the answer and the effect, then restart: nothing unapproved, nothing twice."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import approval_scenario as scenario
import pytest
from forking import error_in
from killing import KILLED, Kill, traced, try_all
from turn_scenario import notes

import holdfast as hf
from holdfast.messages import ToolMessage
from holdfast.records import Done, Intended
from holdfast.testing import World, check

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from forking import Forks

    from holdfast.runtime.runtime import Runtime
    from holdfast.store.contract import Wait

SAMPLE: Final = 120
"""The quick run takes one in so many of the points inside the store."""
NEVER: Final = ("pay", "wipe", "ship")
"""Tools whose calls have an intent in the journal of the session."""
REFUSED: Final = {"answered": {"wipe"}, "hooked": {"wipe"}, "background": {"wipe"}, "expired": {"pay", "reserve"}}
"""What nobody has allowed, by story."""


@pytest.fixture(scope="module")
def points(workers: Forks, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Kill]]:
    """Every crash point that a run without a kill reaches, by story, in order."""
    return {
        story: traced(workers, tmp_path_factory.mktemp(story), scenario.ACTS, story=story) for story in scenario.TOOLS
    }


# ---- what came of it -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Facts:
    """What was on disk when a process had been killed, or when all was over."""

    problems: tuple[str, ...]
    waits: dict[str, Wait]
    """Questions, by the tool that they are about."""
    intended: frozenset[str]
    decided: frozenset[str]
    """Tools about whose call the last decision of a hook is recorded."""
    results: dict[str, str]
    attempts: tuple[str, ...]
    hooked: Counter[str]


async def _facts(folder: Path, story: str) -> Facts:
    world = World(folder / "world.log")
    async with hf.open(folder / "store.db", drive=False, mirror=False) as runtime:
        # A call in the background acts in a journal of its own, under the key that it has there.
        problems = await check(runtime.store, None if story == "background" else world)
        known = [line.id for line in await runtime.sessions()]
        records = [entry.record for entry in await runtime.store.read(scenario.SESSION)] if known else []
        return Facts(
            tuple(map(str, problems)),
            {_tool(wait.name): wait for wait in await _questions(runtime)} if known else {},
            frozenset(_tool(r.key) for r in records if isinstance(r, Intended) and r.ask.kind == "tool_call"),
            frozenset(_tool(r.key) for r in records if isinstance(r, Done) and _is_last_decision(r.key)),
            await _results(runtime) if known else {},
            tuple(attempt.what for attempt in world.attempts()),
            Counter(notes(folder / "hook.log")),
        )


async def _questions(runtime: Runtime) -> list[Wait]:
    return [wait for wait in await runtime.store.waits(scenario.SESSION) if wait.kind == "approval"]


async def _results(runtime: Runtime) -> dict[str, str]:
    history = await runtime.session(scenario.SESSION).history()
    found = [result for message in history if isinstance(message, ToolMessage) for result in message.results]
    return {result.name: result.state for result in found}


def _is_last_decision(key: str) -> bool:
    """Whether a key is of the last decision of hooks about a call. A person edits `ship`, and hooks judge that."""
    place = key.rpartition("/")[2]
    return place.startswith("%hook-edit-") or (place == "%hook" and _tool(key) != "ship")


def _tool(key: str) -> str:
    """The tool of whose call a key is, or hangs below."""
    return key.split("/")[2].partition(".")[2]


# ---- the laws --------------------------------------------------------------------------------------------------------


def _wrong(story: str, facts: Facts) -> Iterator[str]:
    """What holds at any time, whoever was killed where."""
    yield from facts.problems
    called = Counter(what.partition(" ")[0] for what in facts.attempts)
    for tool in REFUSED[story]:
        if called[tool]:
            yield f"{tool} was made although nobody allowed it"
    for tool in (*NEVER, "send"):
        if called[tool] > 1:
            yield f"{tool} was made {called[tool]} times"
    for tool, wait in facts.waits.items():
        if called[tool] and wait.state != "resolved":
            yield f"{tool} was made while its question was {wait.state}"
    for tool in {*NEVER, "send"} & facts.waits.keys() - REFUSED[story]:
        if bool(facts.waits[tool].consumed) != (tool in facts.intended):
            yield f"{tool}: the approval is used up without the intent of the call, or the other way round"
    for what in facts.attempts:
        tool, _, given = what.partition(" ")
        if given != ("edited" if tool == "ship" else "here"):
            yield f"{tool} was made with {given!r}"


def _wrong_at_the_end(story: str, facts: Facts) -> Iterator[str]:
    yield from _wrong(story, facts)
    calls = scenario.TOOLS[story]
    if set(facts.results) != set(calls):
        yield f"not every call has a result: {facts.results}"
    asked = {tool for tool in calls if tool != "look"}
    if set(facts.waits) != asked:
        yield f"asked about {sorted(facts.waits)}, not about {sorted(asked)}"
    for tool in asked:
        wait, state = facts.waits.get(tool), facts.results.get(tool)
        allowed = {"error"} if tool in REFUSED[story] else {"ok", "unknown"} if tool in NEVER else {"ok"}
        if state not in allowed:
            yield f"{tool} ended as {state}"
        if wait is not None and wait.state == "resolved" and not wait.consumed:
            yield f"the answer about {tool} was not used up"


def _wrong_since(kill: Facts, later: Facts) -> Iterator[str]:
    """What a process must not do after another one was killed."""
    for tool in kill.decided:
        if later.hooked[tool] != kill.hooked[tool]:
            yield f"a hook decided about {tool} again"
    for tool, wait in kill.waits.items():
        if wait.state == "resolved" and later.waits[tool].payload != wait.payload:
            yield f"the answer about {tool} has changed"
        if wait.consumed and later.waits[tool].consumed != wait.consumed:
            yield f"the answer about {tool} was used again"


async def _problems(workers: Forks, story: str, kills: Sequence[Kill], folder: Path) -> tuple[list[str], int]:
    """What is wrong after these kills, one after the other; and how many there were."""
    named = " ".join([story, *map(str, kills)])
    repeat = f'APPROVAL_CRASH="{named}" python -m pytest tests/faults/test_approval_crashes.py -k can_be_repeated'
    left, found, seen = list(kills), list[str](), list[Facts]()
    for act in scenario.ACTS:
        while left and left[0].act <= act:
            status = workers.run(folder, story=story, act=act, HOLDFAST_CRASH_AT=left.pop(0).point)
            if status not in {0, KILLED}:
                return [f"{repeat}\n{error_in(folder)}"], len(seen)
            if status == KILLED and (folder / "store.db").exists():
                seen.append(await _facts(folder, story))
                found += _wrong(story, seen[-1])
        if workers.run(folder, story=story, act=act) != 0:
            return [f"act {act} can't be finished; {repeat}\n{error_in(folder)}"], len(seen)
    finish = await _facts(folder, story)
    found += _wrong_at_the_end(story, finish)
    found += [line for facts in seen for line in _wrong_since(facts, finish)]
    return [f"{line}\n    repeat with: {repeat}" for line in found], len(seen)


async def _all(workers: Forks, story: str, cases: Sequence[Sequence[Kill]], folder: Path) -> None:
    async def problems(kills: Sequence[Kill], place: Path) -> tuple[list[str], int]:
        return await _problems(workers, story, kills, place)

    await try_all(problems, cases, folder, kills=len)


# ---- the tests -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("story", scenario.TOOLS)
async def test_without_a_kill_every_allowed_call_is_made_once(workers: Forks, story: str, tmp_path: Path) -> None:
    found, _ = await _problems(workers, story, (), tmp_path / "golden")
    facts = await _facts(tmp_path / "golden", story)
    assert found == []
    made = sorted(what.partition(" ")[0] for what in facts.attempts)
    assert made == sorted(set(scenario.TOOLS[story]) - REFUSED[story])


@pytest.mark.timeout(240)
@pytest.mark.parametrize("story", scenario.TOOLS)
async def test_a_kill_while_a_question_is_asked_makes_no_call(
    workers: Forks, points: dict[str, list[Kill]], story: str, tmp_path: Path
) -> None:
    kills = [kill for kill in points[story] if kill.act == scenario.ASK and not kill.inside_the_store]
    await _all(workers, story, [(kill,) for kill in kills[::12]], tmp_path)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("story", scenario.TOOLS)
async def test_a_kill_between_the_answer_and_the_effect_makes_no_call_twice_and_none_that_was_denied(
    workers: Forks, points: dict[str, list[Kill]], story: str, tmp_path: Path
) -> None:
    kills = [kill for kill in points[story] if kill.act == scenario.FINISH and not kill.inside_the_store]
    between = [kill for kill in kills if kill.point.startswith("tool.after_intent")]
    others = [kill for kill in kills if kill not in between]
    await _all(workers, story, [(kill,) for kill in (*between, *others[::12])], tmp_path)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("story", ["answered", "expired"])
async def test_a_kill_inside_the_store_leaves_every_answer_used_once(
    workers: Forks, points: dict[str, list[Kill]], story: str, tmp_path: Path
) -> None:
    kills = [kill for kill in points[story] if kill.inside_the_store]
    await _all(workers, story, [(kill,) for kill in kills[::SAMPLE]], tmp_path)


@pytest.mark.timeout(120)
async def test_a_kill_of_whoever_answers_leaves_whole_answers(
    workers: Forks, points: dict[str, list[Kill]], tmp_path: Path
) -> None:
    kills = [kill for kill in points["answered"] if kill.act == scenario.ANSWER]
    await _all(workers, "answered", [(kill,) for kill in kills[:: max(1, len(kills) // 2)]], tmp_path)


@pytest.mark.timeout(120)
async def test_a_second_kill_while_recovering_makes_no_call_twice(
    workers: Forks, points: dict[str, list[Kill]], tmp_path: Path
) -> None:
    kills = [kill for kill in points["answered"] if kill.act == scenario.FINISH and kill.point.startswith("tool.")]
    await _all(
        workers, "answered", [(kill, Kill(scenario.FINISH, "tool.before_run:1")) for kill in kills[::18]], tmp_path
    )


@pytest.mark.torture
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("story", scenario.TOOLS)
async def test_a_kill_at_every_single_point_keeps_every_law(
    workers: Forks, points: dict[str, list[Kill]], story: str, tmp_path: Path
) -> None:
    await _all(workers, story, [(kill,) for kill in points[story]], tmp_path)


@pytest.mark.timeout(60)
async def test_a_case_can_be_repeated_by_its_name(workers: Forks, tmp_path: Path) -> None:
    story, *kills = os.environ.get("APPROVAL_CRASH", "answered 0@turn.before_park:1 2@tool.before_run:2").split()
    found, _ = await _problems(workers, story, [*map(Kill.read, kills)], tmp_path / "repeated")
    assert found == []
