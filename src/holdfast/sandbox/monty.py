"""The sandbox of Holdfast: Monty, an interpreter without access to the system, in a worker confined by bubblewrap."""

from __future__ import annotations

import asyncio
import secrets
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, Self

from holdfast.errors import InvalidArgument
from holdfast.errors.caller import AnswerRefused, ProgramOver
from holdfast.errors.world import SandboxFull, WorkerFailed
from holdfast.names import check_int
from holdfast.sandbox.contract import CallResult, PendingCalls, ProgramLimits, ProgramStep
from holdfast.sandbox.execution import (
    ProgramExecution,
    ProgramPlan,
    SnapshotPosition,
    WrongGuess,
    check_plan,
    make_plan,
    snapshot_key,
    unseal,
)
from holdfast.sandbox.worker import Launcher, Worker, require_programs, spawn_in_thread

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from holdfast.sandbox.stubs import Stub


MAX_PROGRAMS: Final = 64
"""Most programs of one sandbox with a process at a time."""
PARK_AFTER: Final = 0.5
"""Seconds after which a waiting program may lose its process to another: a restart takes time."""
_FULL_PAUSE: Final = 0.05
"""Seconds between attempts to get a process in a full sandbox."""
_DEFAULTS: Final = ProgramLimits()


class MontySandbox:
    """Runs programs in Monty. `key` is a secret of the store: only snapshots sealed with it are opened.

    Raises `ProgramsUnavailable` if programs can't be confined. Only ``unsafe=True`` runs the worker without bubblewrap;
    even then, the interpreter itself has no access to files, network or other processes.
    """

    def __init__(self, *, key: bytes | None = None, unsafe: bool = False, max_programs: int = MAX_PROGRAMS) -> None:
        if type(unsafe) is not bool:
            raise InvalidArgument("unsafe", unsafe, "True or False")
        if key is not None and (type(key) is not bytes or len(key) < 16):
            raise InvalidArgument("key", "(not shown)", "at least 16 bytes")
        self._most = check_int("max_programs", max_programs, least=1)
        require_programs(confined=not unsafe)
        self._confined = not unsafe
        self._key = snapshot_key(key or secrets.token_bytes(32))
        self._launchers: dict[int, Launcher] = {}
        self._programs: dict[MontyProgram, None] = {}
        """Programs with a worker, in the order of its start."""
        self._leaving: set[Worker] = set()
        """Workers that have not completely ended."""
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(
        self,
        source: str,
        *,
        tools: Sequence[Stub] = (),
        globals: Mapping[str, Any] | None = None,
        limits: ProgramLimits | None = None,
        seed: str = "",
        snapshot: bytes | None = None,
    ) -> MontyProgram:
        if self._closed:
            raise ProgramOver("its sandbox was closed")
        bounds = limits or _DEFAULTS
        plan = make_plan(source, tuple(tools), dict(globals or {}), bounds, seed)
        opened = None if snapshot is None else unseal(self._key, snapshot)
        start = partial(self._start_worker, memory=bounds.memory)
        return MontyProgram(plan, opened, self._key, start, self._programs)

    async def close(self) -> None:
        self._closed = True
        for program in tuple(self._programs):
            await program.close()
        for worker in tuple(self._leaving):
            await worker.end()
        while self._launchers:
            self._launchers.popitem()[1].close()

    async def _start_worker(self, program: MontyProgram, memory: int, printed: Callable[[bytes], None]) -> Worker:
        if self._closed:
            raise ProgramOver("its sandbox was closed")
        if len(self._programs) >= self._most:
            # A program may wait for its host for long, even for the end of this new program.
            idle = max(self._programs, key=MontyProgram.waited)
            if idle.waited() < PARK_AFTER:
                raise SandboxFull(self._most)
            idle.park()
        launcher = self._launchers.get(memory)
        if launcher is None or not launcher.fits():
            launcher = self._launchers[memory] = Launcher(memory, confined=self._confined)
        self._programs[program] = None  # reserves the place while the worker starts
        try:
            made = await spawn_in_thread(launcher.path, confined=self._confined)
        except BaseException:
            self._programs.pop(program, None)
            raise
        worker = Worker(made, memory, printed, self._leaving.discard)
        self._leaving.add(worker)
        return worker


class MontyProgram:
    """One program in its own worker, which ends with it.

    In a full sandbox, a program that has waited for a while gives its worker up. Its next answer replays it in a new
    one.
    """

    def __init__(
        self,
        plan: ProgramPlan,
        opened: tuple[SnapshotPosition, bytes] | None,
        key: bytes,
        start: Callable[..., Awaitable[Worker]],
        running: dict[MontyProgram, None],
    ) -> None:
        self._plan = plan
        self._opened = opened
        self._key = key
        self._start = start
        self._all = running
        self._state: Literal["new", "running", "waiting", "parked", "over"] = "new"
        self._asked: tuple[str, ...] = ()
        """Calls without a result."""
        self._since = 0.0
        """Begin of its wait."""
        self._worker: Worker | None = None
        self._execution = ProgramExecution(plan)

    @property
    def digest(self) -> str:
        return self._plan.digest

    async def run(self, recorded: Sequence[CallResult] = (), *, begun: bool = False) -> ProgramStep:
        self._expect("new", "it was run already")
        refused = check_plan(self._plan)
        if refused is not None:
            self._state = "over"
            return refused
        return await self._replay(recorded, begun=begun)

    async def _replay(self, recorded: Sequence[CallResult], *, begun: bool) -> ProgramStep:
        """Replay to the first step without a result."""
        try:
            return await self._begin(recorded, begun=begun)
        except WrongGuess:
            if self._worker is not None:
                await self._worker.end()
            self._check_open()
            self._state = "new"
            self._execution = ProgramExecution(self._plan, ahead=False)
            return await self._begin(recorded, begun=begun)

    async def _begin(self, recorded: Sequence[CallResult], *, begun: bool) -> ProgramStep:
        before, self._state = self._state, "running"
        try:
            worker = await self._start(self, printed=self._execution.printed.add)
        except SandboxFull:
            self._state = before
            raise
        except BaseException:
            self._state = "over"
            raise
        self._worker = worker
        if self._state != "running":  # closed meanwhile
            await self.close()
            raise ProgramOver("it was closed")
        return await self._take_step(worker, self._execution.start(worker, tuple(recorded), self._opened, begun=begun))

    async def answer(self, results: Sequence[CallResult]) -> ProgramStep:
        if self._state != "parked":
            self._expect("waiting", "it does not wait for an answer")
        worker = self._require_worker()
        if not results:
            raise AnswerRefused("", "there is none")
        self._execution.calls.check_answers(results)
        if self._state == "parked":
            return await self._replay_parked(results)
        return await self._take_step(worker, self._execution.answer(results))

    def waited(self) -> float:
        """Seconds that its worker has waited for an answer; negative while it works."""
        return time.monotonic() - self._since if self._state == "waiting" else -1.0

    def park(self) -> None:
        self._state = "parked"
        self._require_worker().kill()
        self._all.pop(self, None)

    async def _replay_parked(self, results: Sequence[CallResult]) -> ProgramStep:
        """Continue in a new worker, without repeating earlier calls."""
        known = frozenset(self._asked)
        given = (*self._execution.calls.given, *results)
        self._execution = ProgramExecution(self._plan)
        self._state = "running"
        while True:
            try:
                step = await self._replay(given, begun=True)
                break
            except SandboxFull:  # another program soon ends, or can soon be parked
                await asyncio.sleep(_FULL_PAUSE)
                self._check_open()
        if not isinstance(step, PendingCalls):
            return step
        return PendingCalls(tuple(call for call in step.calls if call.id not in known), step.waiting)

    async def snapshot(self) -> bytes | None:
        if self._state == "parked":
            return None
        self._expect("waiting", "there are snapshots only of a program that waits")
        self._require_worker()
        self._state = "running"
        try:
            return await self._execution.sealed(self._key)
        except BaseException:  # a late answer of the worker would pass for the next one
            await self.close()
            raise
        finally:
            if self._state == "running":
                self._state = "waiting"

    async def close(self) -> None:
        self._state = "over"
        if self._worker is not None:
            await self._worker.end()
        self._all.pop(self, None)

    async def _take_step(self, worker: Worker, going: Awaitable[ProgramStep]) -> ProgramStep:
        self._state = "running"
        try:
            step = await going
        except WrongGuess:
            self._all.pop(self, None)
            raise
        except BaseException as error:
            closed = worker.closed
            await self.close()
            if closed and isinstance(error, WorkerFailed):  # killed during its start
                raise ProgramOver("it was closed") from error
            raise
        if self._state != "running":  # closed meanwhile
            raise ProgramOver("it was closed")
        if isinstance(step, PendingCalls):
            self._state = "waiting"
            self._asked = step.waiting
            self._since = time.monotonic()
        else:
            self._state = "over"
            worker.kill()
            self._all.pop(self, None)
        return step

    def _expect(self, state: str, otherwise: str) -> None:
        if self._state == "over":
            raise ProgramOver("it has ended")
        if self._state != state:
            raise ProgramOver(otherwise if self._state != "running" else "a step of it is under way")

    def _check_open(self) -> None:
        if self._state == "over":
            raise ProgramOver("it was closed")

    def _require_worker(self) -> Worker:
        if self._worker is None:
            raise ProgramOver("it was never run")
        return self._worker
