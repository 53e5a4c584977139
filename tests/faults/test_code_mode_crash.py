"""SIGKILL anywhere in a program with loops, gather, exceptions and approvals: the same result, each effect once."""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import program_scenario as scenario
import pytest
from forking import error_in
from killing import KILLED, Kill, traced, try_all

import holdfast as hf
import holdfast.runtime
from holdfast.messages import ToolMessage
from holdfast.sandbox import programs_problem
from holdfast.testing import World, check

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forking import Forks

pytestmark = pytest.mark.skipif(programs_problem() is not None, reason=str(programs_problem()))
NAMED: Final = re.compile(r'crash_point\("(.+?)"\)')
QUICK: Final = 18
"""The quick run takes one in so many of the points of turns, tools and programs."""
EXPECTED: Final[dict[str, Any]] = {
    "seen": ["look a", "look b", "look c"],
    "held": ["reserve r0", "reserve r1", "reserve r2"],
    "caught": "LookupError: no x",
    "done": [
        "pay p",
        "ship edited",
        "Denied: A person (ann) did not allow this call of wipe: never",
        "pay q",
        scenario.ANSWERED,
    ],
    "note": "pack 3",
}


@pytest.fixture(scope="module")
def points(workers: Forks, tmp_path_factory: pytest.TempPathFactory) -> list[Kill]:
    """Every crash point that a run without a kill reaches, in order."""
    return traced(workers, tmp_path_factory.mktemp("points"), scenario.ACTS)


async def _wrong(folder: Path, *, over: bool) -> list[str]:
    """What must hold at any time, and what must hold when all is `over`."""
    world = World(folder / "world.log")
    if not (folder / "store.db").exists():
        return []
    async with hf.open(folder / "store.db", drive=False, mirror=False) as runtime:
        found = [str(problem) for problem in await check(runtime.store, world)]
        done = Counter(world.done())
        found += [f"{what} happened {count} times" for what, count in done.items() if count > 1]
        found += [
            f"{what} happened although nobody allowed it"
            for what in done
            if what.startswith(("wipe", "ship s", "look n"))
        ]
        if over:
            found += await _wrong_at_the_end(runtime, done)
    return found


async def _wrong_at_the_end(runtime: Any, done: Counter[str]) -> list[str]:
    found: list[str] = []
    outcome = await runtime.session(scenario.SESSION).turn("t1").outcome(timeout=5)
    history = await runtime.session(scenario.SESSION).history()
    results = [result for message in history if isinstance(message, ToolMessage) for result in message.results]
    if [result.state for result in results] != ["ok", "ok"]:
        found.append(f"the programs ended as {results}")
    if outcome.status != "completed":
        return [*found, f"the turn ended as {outcome}"]
    told = msgspec.json.decode(outcome.text)
    for n, what in enumerate(told["done"]):
        # Killed between its intent and its outcome, nobody knows whether a call took effect.
        if what == "unknown" and n in {0, 1, 3}:
            told["done"][n] = EXPECTED["done"][n]
        elif n in {0, 1, 3} and not done[what]:
            found.append(f"{what} is told, and did not happen")
    if told != EXPECTED:
        found.append(f"the turn came to {told}")
    return found


async def _problems(workers: Forks, kills: Sequence[Kill], folder: Path) -> tuple[list[str], int]:
    repeat = f'PROGRAM_CRASH="{" ".join(map(str, kills))}" pytest tests/faults/test_code_mode_crash.py -k by_its_name'
    left, found, killed = list(kills), list[str](), 0
    for act in scenario.ACTS:
        while left and left[0].act <= act:
            status = workers.run(folder, act=act, HOLDFAST_CRASH_AT=left.pop(0).point)
            if status not in {0, KILLED}:
                return [f"{repeat}\n{error_in(folder)}"], killed
            killed += status == KILLED
            found += await _wrong(folder, over=False)
        if workers.run(folder, act=act) != 0:
            return [f"act {act} can't be finished; {repeat}\n{error_in(folder)}"], killed
    found += await _wrong(folder, over=True)
    return [f"{line}\n    repeat with: {repeat}" for line in found], killed


async def _all(workers: Forks, cases: Sequence[Sequence[Kill]], folder: Path) -> None:
    async def problems(kills: Sequence[Kill], place: Path) -> tuple[list[str], int]:
        return await _problems(workers, kills, place)

    await try_all(problems, cases, folder, kills=len)


async def test_without_a_kill_a_program_comes_to_its_end(workers: Forks, tmp_path: Path) -> None:
    found, _ = await _problems(workers, (), tmp_path / "golden")
    assert found == []


def test_the_run_without_a_kill_reaches_every_crash_point_of_programs(points: list[Kill]) -> None:
    source = Path(holdfast.runtime.__file__).parent
    named = {name for path in source.glob("program*.py") for name in NAMED.findall(path.read_text(encoding="utf-8"))}
    assert named
    assert named <= {kill.point.partition(":")[0] for kill in points}


@pytest.mark.timeout(240)
@pytest.mark.parametrize("act", [scenario.ASK, scenario.FINISH])
async def test_a_program_that_was_killed_goes_on_at_the_very_call_it_was_at(
    workers: Forks, points: list[Kill], act: str, tmp_path: Path
) -> None:
    kills = [kill for kill in points if kill.act == act and not kill.point.startswith(("store.", "blob."))]
    await _all(workers, [(kill,) for kill in kills[::QUICK]], tmp_path)


@pytest.mark.timeout(120)
async def test_a_program_that_was_killed_around_a_deferral_gets_its_answer(
    workers: Forks, points: list[Kill], tmp_path: Path
) -> None:
    kills = [kill for kill in points if kill.point.startswith("defer.")]
    assert {kill.point.partition(":")[0] for kill in kills} == {
        "defer.before_open",
        "defer.after_open",
        "defer.returned",
    }
    await _all(workers, [(kill,) for kill in kills], tmp_path)


@pytest.mark.timeout(120)
async def test_a_program_that_is_killed_again_and_again_acts_once(
    workers: Forks, points: list[Kill], tmp_path: Path
) -> None:
    kills = [kill for kill in points if kill.point.startswith(("program.", "tool.")) and kill.act != scenario.ANSWER]
    await _all(workers, [kills[n :: len(kills) // 6][:6] for n in (2, 5)], tmp_path)


@pytest.mark.torture
@pytest.mark.timeout(7200)
async def test_a_kill_at_every_single_point_of_a_program_keeps_every_law(
    workers: Forks, points: list[Kill], tmp_path: Path
) -> None:
    await _all(workers, [(kill,) for kill in points], tmp_path)


@pytest.mark.timeout(60)
async def test_a_crash_of_a_program_can_be_repeated_by_its_name(workers: Forks, tmp_path: Path) -> None:
    kills = os.environ.get("PROGRAM_CRASH", "0@tool.after_intent:2 2@program.before_answer:2").split()
    found, _ = await _problems(workers, [*map(Kill.read, kills)], tmp_path / "repeated")
    assert found == []
