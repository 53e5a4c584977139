"""Killing on purpose: where a process is ended, what is tried, and when enough of it has happened.

A story is played by processes, in one act or in several. Whoever is killed is started again, until all is done; then
the laws of the story are looked at. Every problem says how to repeat its case.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self, TypeVar

from forking import error_in, reached_in

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from forking import Forks

KILLED: Final = -signal.SIGKILL
ENOUGH: Final = 0.5
MAKING: Final = ("store.created", "store.migra", "store.key_")
"""Crash points of a store that is being made. `test_files` kills at every one of them, so the stories need not."""
_Case = TypeVar("_Case")
_Point = TypeVar("_Point", "str", "Kill")


@dataclass(frozen=True, slots=True)
class Kill:
    """A process is ended in this act, at this point."""

    act: str
    point: str

    @classmethod
    def read(cls, text: str) -> Self:
        return cls(*text.split("@"))

    def __str__(self) -> str:
        return f"{self.act}@{self.point}"

    @property
    def inside_the_store(self) -> bool:
        return self.point.startswith("store.")


def traced(workers: Forks, folder: Path, acts: Iterable[str], **request: str) -> list[Kill]:
    """Every crash point that a run without a kill reaches, in order."""
    found: list[Kill] = []
    for act in acts:
        trace = folder / f"trace-{act}"
        status = workers.run(folder, act=act, HOLDFAST_CRASH_TRACE=str(trace), **request)
        assert status == 0, f"the run without a kill: {request}\n{error_in(folder)}"
        found += [Kill(act, point) for point in reached_in(trace)]
    return found


def one_of_each(points: Iterable[_Point]) -> list[_Point]:
    """One crash point of each name, the middle one of those that a run reached: what the quick tests kill at.

    The points of `MAKING` are left out.
    """
    by_name: dict[str, list[_Point]] = {}
    for point in points:
        name = point.point if isinstance(point, Kill) else point
        if not name.startswith(MAKING):
            by_name.setdefault(name.partition(":")[0], []).append(point)
    return [found[len(found) // 2] for found in by_name.values()]


def check_enough(killed: int, wanted: int) -> None:
    """How the writer batches differs from run to run, so some points are not reached again: most of them must be."""
    assert killed >= ENOUGH * wanted, f"only {killed} of {wanted} kills happened"


async def try_all(
    problems: Callable[[_Case, Path], Awaitable[tuple[list[str], int]]],
    cases: Sequence[_Case],
    folder: Path,
    *,
    kills: Callable[[_Case], int],
    spare: Sequence[_Case] = (),
) -> None:
    """Every case, and then all that is wrong together. One that kills nobody is wrong, too.

    While too few processes were killed, the `spare` cases are tried as well.
    """
    assert cases
    wrong: list[str] = []
    killed, wanted = 0, sum(map(kills, cases))
    for number, case in enumerate([*cases, *spare]):
        if number >= len(cases) and killed >= ENOUGH * wanted:
            break
        found, count = await problems(case, folder / str(number))
        wrong += found
        killed += count
    assert not wrong, f"{len(wrong)} problems\n" + "\n".join(wrong)
    check_enough(killed, wanted)


@dataclass(frozen=True, slots=True)
class OneAct:
    """A story of one act, and the laws that hold when it is over."""

    variable: str
    """Names a case in the environment, for whoever wants to repeat it."""
    file: str
    wrong: Callable[[Path], Awaitable[Iterable[str]]]

    async def problems(
        self, workers: Forks, kills: Sequence[str], folder: Path, **request: str
    ) -> tuple[list[str], int]:
        """What is wrong after these kills, one after the other; and how many there were."""
        named = " ".join([*request.values(), *kills])
        repeat = f'{self.variable}="{named}" python -m pytest tests/faults/{Path(self.file).name} -k can_be_repeated'
        killed = 0
        for kill in kills:
            status = workers.run(folder, HOLDFAST_CRASH_AT=kill, **request)
            if status not in {0, KILLED}:
                return [f"{repeat}\n{error_in(folder)}"], killed
            killed += status == KILLED
        if workers.run(folder, **request) != 0:
            return [f"it can't be finished; {repeat}\n{error_in(folder)}"], killed
        return [f"{line}\n    repeat with: {repeat}" for line in await self.wrong(folder)], killed

    async def try_all(self, workers: Forks, cases: Sequence[Sequence[str]], folder: Path, **request: str) -> None:
        """Every case, each a row of kills."""

        async def problems(case: Sequence[str], place: Path) -> tuple[list[str], int]:
            return await self.problems(workers, case, place, **request)

        await try_all(problems, cases, folder, kills=len)

    def repeated(self) -> list[str]:
        """What the environment names."""
        return os.environ.get(self.variable, "").split()
