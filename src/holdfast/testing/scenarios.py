"""Running a scenario that is killed at every crash point, and resumed; and runtimes on one store, for tests."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import signal
import sys
import time
import traceback
import warnings
from collections import Counter
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from holdfast import crashpoints
from holdfast.effects.replay import Repeat
from holdfast.errors import InvalidArgument
from holdfast.names import check_int, is_task_id
from holdfast.runtime.open import RuntimeOpening
from holdfast.runtime.open import open as open_runtime
from holdfast.runtime.sync import SyncRuntime, open_sync
from holdfast.store import open_store
from holdfast.testing.crashes import CrashTrigger
from holdfast.testing.world import World, check

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

    from holdfast.agent import Agent
    from holdfast.clock import Clock
    from holdfast.tools.context import Context


_KILLED: Final = -signal.SIGKILL
_TICK: Final = 0.002


class RuntimeFactory:
    """Opens runtimes on one store, one after the other: what the first did not finish, the next one resumes."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self.path = path
        """The file of the store."""
        self.clock = clock

    def __call__(
        self,
        *,
        agents: Sequence[Agent] = (),
        memory: bool = False,
        **options: Any,  # those of `hf.open`
    ) -> RuntimeOpening:
        """The result of `hf.open`, with the clock of the test; with `memory`, on a new store in memory."""
        given: dict[str, Any] = {"clock": self.clock, "durability": "process", **options}
        return open_runtime(None if memory else self.path, agents=agents, **given)

    def sync(
        self,
        *,
        agents: Sequence[Agent] = (),
        memory: bool = False,
        **options: Any,  # those of `hf.open_sync`
    ) -> SyncRuntime:
        """The same for a test that is not async; ``clock.advance_sync(runtime, days=2)`` advances its clock."""
        given: dict[str, Any] = {"clock": self.clock, "durability": "process", **options}
        return open_sync(None if memory else self.path, agents=agents, **given)


@dataclass(frozen=True, slots=True)
class CrashStage:
    """The store and the world of a scenario, for each of its processes. The world remembers effects."""

    folder: Path
    """Files here survive the process."""

    @property
    def path(self) -> Path:
        """The file of the store."""
        return self.folder / "holdfast.db"

    @property
    def world(self) -> World:
        return World(self.folder / "world.jsonl")

    def act(self, ctx: Context, what: str = "", *, repeat: Repeat | None = None) -> None:
        """Perform the effect of a tool: call it where the tool would change the world.

        `repeat` says how often a crash may make it happen: by default once, at most.
        """
        self.world.act(ctx.session, ctx, repeat or Repeat.NEVER, what or ctx.tool)


@dataclass(frozen=True, slots=True)
class CrashReport:
    """The result of a crash run."""

    seed: int
    points: tuple[str, ...]
    """The crash points at which a process was to be killed, as ``name:count``."""
    killed: int
    """Number of processes killed. It can vary: a run may not reach every point."""


class CrashRunner:
    """Runs a scenario that is killed at every crash point, each time in a new process on a new store, and resumed.

    After each, the scenario must come to its end, every invariant of the store must hold, no effect that must not be
    repeated may have happened twice, and none may be lost.
    """

    def __init__(self, folder: Path, name: str = "") -> None:
        self._folder = folder
        self._name = name

    def __call__(
        self, scenario: Callable[[CrashStage], Awaitable[object]], *, most: int | None = None, timeout: float = 60.0
    ) -> CrashReport:
        """Kill at every crash point that a run reaches; with `most`, at so many of them, chosen by the seed.

        `scenario` is an async function that opens a runtime on ``stage.path`` and works to the end. It runs again after
        each kill, so it sends its inputs with keys. Raises `AssertionError` with all problems; each says how to repeat
        its case.
        """
        if not callable(scenario):
            raise InvalidArgument("scenario", scenario, "an async function that takes a CrashStage")
        if most is not None:
            check_int("most", most, least=1)
        seed = int(os.environ.get("HOLDFAST_CRASH_SEED") or random.SystemRandom().randrange(1_000_000))
        print(f"crash scenario {self._name}: HOLDFAST_CRASH_SEED={seed}")  # noqa: T201  to repeat the run
        _load_runtime()
        golden = _Kill(CrashStage(self._folder / "golden"), scenario, timeout)
        if (problem := golden.run(trace=True)) is not None:
            raise AssertionError(f"the run without a kill fails:\n{problem}")
        acted = {_tool_of(attempt.key) for attempt in golden.stage.world.attempts()}
        points = self._choose(golden.reached(), most, seed)
        problems: list[str] = []
        killed = 0
        for number, point in enumerate(points):
            case = _Kill(CrashStage(self._folder / str(number)), scenario, timeout, frozenset(acted))
            problem = case.run(at=point)
            killed += case.killed
            problem = problem or case.run(verify=True)
            if problem is not None:
                problems.append(f"killed at {point}: {problem}\n    {self._repeat(point, seed)}")
        if problems:
            raise AssertionError(f"{len(problems)} of {len(points)} crashes went wrong\n" + "\n".join(problems))
        return CrashReport(seed, tuple(points), killed)

    @staticmethod
    def _choose(reached: list[str], most: int | None, seed: int) -> list[str]:
        wanted = os.environ.get("HOLDFAST_CRASH_AT", "")
        if wanted:
            return [wanted]
        if most is None or most >= len(reached):
            return reached
        chosen = set(random.Random(seed).sample(range(len(reached)), most))
        return [point for number, point in enumerate(reached) if number in chosen]

    def _repeat(self, point: str, seed: int) -> str:
        return f"repeat with: HOLDFAST_CRASH_AT={point} HOLDFAST_CRASH_SEED={seed} pytest '{self._name}'"


class _Kill:
    def __init__(
        self,
        stage: CrashStage,
        scenario: Callable[[CrashStage], Awaitable[object]],
        timeout: float,
        acted: frozenset[str] = frozenset(),
    ) -> None:
        self.stage = stage
        self.killed = False
        self._scenario = scenario
        self._timeout = timeout
        self._acted = acted
        self._trace = stage.folder / "trace"
        self._error = stage.folder / "error"
        stage.folder.mkdir(parents=True)

    def run(self, *, at: str = "", trace: bool = False, verify: bool = False) -> str | None:
        """Run the scenario in a process of its own; returns the problem, if any."""
        status = self._fork(at, str(self._trace) if trace else "", verify=verify)
        if at and status == _KILLED:
            self.killed = True
            return None
        if status == 0:
            return None
        if status is None:
            return f"it did not end within {self._timeout:g} s"
        said = self._error.read_text(encoding="utf-8").rstrip() if self._error.exists() else "it says nothing"
        return f"its process ended with {status}: {said}"

    def reached(self) -> list[str]:
        """The crash points of the traced run, each with its count."""
        counts = Counter[str]()
        found: list[str] = []
        for name in self._trace.read_text(encoding="utf-8").splitlines():
            counts[name] += 1
            found.append(f"{name}:{counts[name]}")
        return found

    def _fork(self, at: str, trace: str, *, verify: bool) -> int | None:
        sys.stdout.flush()
        sys.stderr.flush()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads: the child uses none of the parent
            pid = os.fork()
        if pid == 0:
            os._exit(self._child(at, trace, verify=verify))
        until = time.monotonic() + self._timeout
        while True:
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                return os.waitstatus_to_exitcode(status)
            if time.monotonic() > until:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                return None
            time.sleep(_TICK)

    def _child(self, at: str, trace: str, *, verify: bool) -> int:
        try:
            gc.freeze()  # nothing that the parent made is finalized here
            asyncio._set_running_loop(None)  # the test may be async
            if at or trace:
                crashpoints.arm(CrashTrigger(at, trace))
            asyncio.run(self._play(verify=verify))
        except BaseException:
            self._error.write_text(traceback.format_exc(), encoding="utf-8")
            return 1
        return 0

    async def _play(self, *, verify: bool) -> None:
        await self._scenario(self.stage)
        if not verify:
            return
        async with open_store(self.stage.path) as store:
            found = await check(store, self.stage.world)
        wrong = [one for one in found if one.rule != "lost" or self._is_lost(one.where)]
        assert not wrong, "\n".join(map(str, wrong))

    def _is_lost(self, where: str) -> bool:
        """True if a tool that acts on the world did not: others are not expected there."""
        journal, _, key = where.partition("/")
        return _tool_of(key) in self._acted and not is_task_id(journal)


def _load_runtime() -> None:
    """Import heavy modules once, before the processes fork."""
    for module in ("pydantic", "holdfast.runtime.runtime", "holdfast.store.sqlite.backend", "holdfast.tools.schema"):
        import_module(module)


def _tool_of(key: str) -> str:
    return key.rpartition("/")[2].partition(".")[2].partition("#")[0]
