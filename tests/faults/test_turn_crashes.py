"""SIGKILL at every crash point of golden turns, then restart: the laws hold, and the table of rulings is right.

A case is a story with the kills it suffers: ``steer 0@tool.before_run:3`` kills the process of act 0 when it comes to
``tool.before_run`` for the third time. Any case can be repeated from the environment; every failure tells how.
"""

from __future__ import annotations

import os
import random
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import pytest
import turn_laws
import turn_scenario as scenario
from forking import error_in
from killing import KILLED, Kill, one_of_each, traced, try_all

import holdfast.runtime

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from forking import Forks
    from turn_laws import Facts, Finish

FIRST_SEED: Final = int(os.environ.get("TORTURE_SEED", "1"))
HISTORIES: Final = 200
STORE_SAMPLE: Final = 45
"""The quick run takes one in so many of the points inside the store, and one of each name outside of it."""


@dataclass(frozen=True, slots=True)
class Case:
    """A story, and the kills that it suffers, one after the other."""

    story: str
    kills: tuple[Kill, ...]

    @classmethod
    def read(cls, text: str) -> Self:
        story, *kills = text.split()
        return cls(story, tuple(map(Kill.read, kills)))

    def __str__(self) -> str:
        return " ".join([self.story, *map(str, self.kills)])

    @property
    def command(self) -> str:
        return f'TURN_CRASH="{self}" python -m pytest tests/faults/test_turn_crashes.py -k can_be_repeated'


@pytest.fixture(scope="module")
def points(workers: Forks, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Kill]]:
    """Every crash point that a golden run reaches, by story, in order."""
    return {name: _trace(workers, name, tmp_path_factory.mktemp(name)) for name in scenario.STORIES}


def _acts(name: str) -> list[str]:
    return [str(act) for act in range(len(scenario.STORIES[name].acts))]


def _trace(workers: Forks, name: str, folder: Path) -> list[Kill]:
    acts = scenario.STORIES[name].acts
    found = traced(workers, folder, _acts(name), story=name)
    return [kill for kill in found if acts[int(kill.act)] is not scenario.settle]


@dataclass(frozen=True, slots=True)
class Told:
    """What came of a case: what was on disk at each kill, and at the end."""

    kills: tuple[Facts, ...]
    finish: Finish


async def tell(workers: Forks, case: Case, folder: Path) -> Told:
    """Play the story with its kills: whoever is killed is started again."""
    left = list(case.kills)
    facts: list[Facts] = []
    for act in _acts(case.story):
        while left and left[0].act <= act:
            status = workers.run(folder, story=case.story, act=act, HOLDFAST_CRASH_AT=left.pop(0).point)
            assert status in {0, KILLED}, f"{case.command}\n{error_in(folder)}"
            if status == KILLED:
                facts.append(await turn_laws.at_the_kill(folder))
        status = workers.run(folder, story=case.story, act=act)
        assert status == 0, f"act {act} can't be finished; repeat with: {case.command}\n{error_in(folder)}"
    return Told(tuple(facts), await turn_laws.at_the_end(folder))


def wrong(case: Case, told: Told) -> list[str]:
    """What breaks a law, or differs from the ruling."""
    found = list(turn_laws.laws(case.story, told.finish, told.kills))
    if len(case.kills) == len(told.kills) == 1:
        label = turn_laws.row_of(case.story, int(case.kills[0].act), case.kills[0].point)
        found.extend(turn_laws.rulings(case.story, turn_laws.read_table()[label], told.finish))
    return [f"{line}\n    repeat with: {case.command}" for line in found]


async def all_of(workers: Forks, cases: list[Case], folder: Path, spare: Sequence[Case] = ()) -> None:

    async def problems(case: Case, place: Path) -> tuple[list[str], int]:
        try:
            told = await tell(workers, case, place)
        except AssertionError as error:
            return [str(error)], 0
        return wrong(case, told), len(told.kills)

    await try_all(problems, cases, folder, kills=lambda case: len(case.kills), spare=spare)


# ---- the golden runs -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", scenario.STORIES)
async def test_without_a_crash_every_law_holds_and_every_call_is_made_once(
    workers: Forks, name: str, tmp_path: Path
) -> None:
    told = await tell(workers, Case(name, ()), tmp_path / "golden")
    assert wrong(Case(name, ()), told) == []
    attempts = told.finish.facts.attempts
    assert set(attempts.values()) <= {1}, attempts


def _steered_again(workers: Forks, folder: Path) -> Iterator[Kill]:
    """What more of the story reaches that depends on when an input comes: on a busy machine it enters elsewhere."""
    for again in range(3):
        yield from _trace(workers, "steer", folder / str(again))


def test_every_crash_point_of_the_golden_runs_has_a_ruling(
    workers: Forks, points: dict[str, list[Kill]], tmp_path: Path
) -> None:
    rows = set(turn_laws.read_table())
    reached = {turn_laws.row_of(name, int(kill.act), kill.point) for name, kills in points.items() for kill in kills}
    if reached < rows:
        again = _steered_again(workers, tmp_path)
        reached |= {turn_laws.row_of("steer", int(kill.act), kill.point) for kill in again}
    assert reached == rows


def test_the_golden_runs_reach_every_crash_point_of_the_runtime(
    workers: Forks, points: dict[str, list[Kill]], tmp_path: Path
) -> None:
    source = Path(holdfast.runtime.__file__).parent
    named = {name for path in source.glob("*.py") for name in re.findall(r'crash_point\("(.+?)"\)', path.read_text())}
    # These have crash tests of their own: tasks, compaction, processes, triggers, handoffs, deferrals, programs, hooks,
    # sub-agents, folds, retried turns, cancelled calls, definitions of turns, pumps, exports and imports.
    others = (
        *("task.", "turn.before_compaction", "process.", "trigger.", "handoff.", "defer.", "program.", "hook."),
        *("delegate.", "fold.", "turn.retry_forked", "cancel.call_accepted", "tool.before_stopped"),
        *("environment.", "pump.", "export.", "import."),
    )
    named = {name for name in named if not name.startswith(others)}
    assert named
    reached = {kill.point.partition(":")[0] for kills in points.values() for kill in kills}
    if not named <= reached:
        reached |= {kill.point.partition(":")[0] for kill in _steered_again(workers, tmp_path)}
    assert named <= reached


# ---- one kill --------------------------------------------------------------------------------------------------------


@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", scenario.STORIES)
async def test_a_kill_at_any_point_of_a_turn_keeps_every_law_and_its_ruling(
    workers: Forks, points: dict[str, list[Kill]], name: str, tmp_path: Path
) -> None:
    outside = [kill for kill in points[name] if not kill.inside_the_store]
    await all_of(workers, [Case(name, (kill,)) for kill in one_of_each(outside)], tmp_path)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", scenario.STORIES)
async def test_a_kill_inside_the_store_keeps_every_law_and_its_ruling(
    workers: Forks, points: dict[str, list[Kill]], name: str, tmp_path: Path
) -> None:
    inside = [Case(name, (kill,)) for kill in points[name] if kill.inside_the_store]
    begin = list(scenario.STORIES).index(name) % STORE_SAMPLE  # not the same ones in every story
    sample = inside[begin::STORE_SAMPLE]
    await all_of(workers, sample, tmp_path, spare=[case for case in inside if case not in sample])


@pytest.mark.timeout(60)
async def test_a_case_can_be_repeated_by_its_name(workers: Forks, tmp_path: Path) -> None:
    case = Case.read(os.environ.get("TURN_CRASH", "steer 0@tool.after_run:4 0@model.mid_stream:1"))
    told = await tell(workers, case, tmp_path / "repeated")
    assert wrong(case, told) == []
    assert len(told.kills) == len(case.kills), "not every kill was reached"


# ---- more than one ---------------------------------------------------------------------------------------------------


def history(seed: int, points: dict[str, list[Kill]]) -> Case:
    """Two or three kills of one story, at random points; a process that was killed comes less far the next time."""
    choose = random.Random(seed)
    name = choose.choice(sorted(scenario.STORIES))
    kills = choose.choices(points[name], k=choose.choice((2, 3)))
    return Case(name, tuple(sorted(kills, key=lambda kill: kill.act)))


async def _histories(workers: Forks, points: dict[str, list[Kill]], seeds: range, folder: Path) -> None:
    problems: list[str] = []
    kills: Counter[int] = Counter()
    for seed in seeds:
        case = history(seed, points)
        try:
            told = await tell(workers, case, folder / str(seed))
        except AssertionError as error:
            problems.append(f"seed {seed}: {error}")
            continue
        problems.extend(f"seed {seed}: {line}" for line in wrong(case, told))
        kills[len(told.kills)] += 1
    assert not problems, f"{len(problems)} problems\n" + "\n".join(problems)
    assert kills[2] + kills[3] >= len(seeds) / 4, f"the histories must have several kills in them: {kills}"


@pytest.mark.timeout(240)
async def test_a_second_and_a_third_kill_keep_every_law(
    workers: Forks, points: dict[str, list[Kill]], tmp_path: Path
) -> None:
    await _histories(workers, points, range(1, 5), tmp_path)


@pytest.mark.torture
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", scenario.STORIES)
async def test_a_kill_at_every_single_point_keeps_every_law_and_its_ruling(
    workers: Forks, points: dict[str, list[Kill]], name: str, tmp_path: Path
) -> None:
    await all_of(workers, [Case(name, (kill,)) for kill in points[name]], tmp_path)


@pytest.mark.torture
@pytest.mark.timeout(3600)
async def test_hundreds_of_histories_of_several_kills_keep_every_law(
    workers: Forks, points: dict[str, list[Kill]], tmp_path: Path
) -> None:
    await _histories(workers, points, range(FIRST_SEED, FIRST_SEED + HISTORIES), tmp_path)
