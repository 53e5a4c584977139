"""The waits of a running durable function: for timers, signals, deferrals, children and turns of agents."""

from __future__ import annotations

import asyncio
import contextvars
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import msgspec

from holdfast import errors
from holdfast.effects.canonical import decode_value, encode_value
from holdfast.effects.replay import Perform, Repeat
from holdfast.effects.scopes import current_scope
from holdfast.eventloop import spawn
from holdfast.processes.keys import process_id_of, timer_wait
from holdfast.processes.state import TERMINAL_STATUSES, ProcessState
from holdfast.records import Cancelled, Done, ErrorInfo, Failed, Intended
from holdfast.runtime.turn import TurnReader
from holdfast.runtime.waits import JournalWaits

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator

    from holdfast.effects.performer import Performer
    from holdfast.effects.scopes import EffectScope
    from holdfast.processes.service import Processes
    from holdfast.records import EffectRequest, Outcome
    from holdfast.store import Store
    from holdfast.store.contract import Wait


QUIET_ROUNDS: Final = 32
"""Rounds without activity that count as quiet, on event loops that hide their queues."""
TIMER_PAUSE: Final = 0.02
"""Pause before the next look at code that has set a timer of its own, in seconds."""
LOOK_INTERVAL: Final = 0.5
"""Interval at which waits are checked while other branches of the function work, in seconds."""


@dataclass(slots=True)
class _PendingWait:
    source: WaitSource
    came: asyncio.Future[WaitAnswer]
    alarm: asyncio.TimerHandle | None = None


class ProcessWaits:
    """The open waits of one run of a durable function."""

    def __init__(self, performer: Performer) -> None:
        self._performer = performer
        self._loop = asyncio.get_running_loop()
        self.pending: dict[str, _PendingWait] = {}
        """By the key of the effect that waits."""
        self.busy = 0
        """The number of branches that do something else than wait."""
        self.moved = asyncio.Event()
        """Set when a branch begins to wait, or ends to work beside one that waits."""
        self._looking: asyncio.Task[None] | None = None

    @property
    def waits(self) -> tuple[str, ...]:
        """The names of the open waits."""
        return tuple(pending.source.label for pending in self.pending.values())

    @property
    def quiet(self) -> bool:
        """Whether the function does nothing but wait at this moment."""
        if not self.pending or self.busy or any(pending.came.done() for pending in self.pending.values()):
            return False
        return self._next_activity() is None

    def _next_activity(self) -> Literal["run", "wake"] | None:
        """The next thing that the function will do: run, wake by a timer of its own, or nothing."""
        loop: Any = asyncio.get_running_loop()
        for queue in ("_ready", "held", "_scheduled"):  # a simulated loop holds back what it does not run yet
            for handle in getattr(loop, queue, ()):
                context = getattr(handle, "_context", None)
                place = None if context is None or handle.cancelled() else context.get(current_scope)
                if place is not None and place.drive is self._performer:
                    return "wake" if queue == "_scheduled" else "run"
        return None

    async def _only_waits(self) -> bool:
        """Whether the function does nothing but wait. If it is active this pauses a moment before it answers."""
        shown = hasattr(asyncio.get_running_loop(), "_ready")
        for _ in range(1 if shown else QUIET_ROUNDS):
            found = self._next_activity()
            if found is not None:
                await asyncio.sleep(0 if found == "run" else TIMER_PAUSE)
                return False
            if not shown:
                await asyncio.sleep(0)
        return True

    async def idle(self) -> None:
        """Return when the function does nothing but wait. Until then, check its waits now and then."""
        while True:
            self.moved.clear()
            if self.pending and not self.busy:
                if await self._only_waits() and self.quiet:
                    return
                continue
            with suppress(TimeoutError):
                await asyncio.wait_for(self.moved.wait(), LOOK_INTERVAL if self.pending else None)
            self.look()

    def look(self) -> None:
        """Check all open waits in the background."""
        if self.pending and (self._looking is None or self._looking.done()):
            self._looking = spawn(self._look())

    async def _look(self) -> None:
        for pending in list(self.pending.values()):
            try:
                found = await pending.source.look()
            except errors.StoreError:
                return  # it is looked at again
            if found is not None and not pending.came.done():
                pending.came.set_result(found)

    async def close(self) -> None:
        """Stop checking."""
        for pending in self.pending.values():
            if pending.alarm is not None:
                pending.alarm.cancel()
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    @contextmanager
    def at_work(self) -> Generator[None]:
        self.busy += 1
        try:
            yield
        finally:
            self.busy -= 1
            if self.pending:
                self.moved.set()

    async def seek(
        self, place: EffectScope, key: str, ask: EffectRequest, source: WaitSource, *, intend: bool = False
    ) -> Outcome:
        """The outcome of a wait: recorded before, or the answer when it comes."""
        performer = self._performer
        await performer.admit()
        with performer.occupied(place), self.at_work():
            decision = performer.decide(key, ask, Repeat.FREE, place)
            recorded = await performer.recall(decision)
            if recorded is not None:
                return recorded
            if intend and isinstance(decision, Perform):
                performer.submit([Intended(at=performer.now(), key=key, ask=ask)], patient=True)
            asked = None if intend else ask
            try:
                begun = self._loop.time()
                found = await self.halting(source.begin())
                if found is None:
                    found = await self._wait_in_memory(key, source)
                if found.error is not None:
                    outcome: Outcome = Failed(at=performer.now(), key=key, ask=asked, error=found.error)
                else:
                    outcome = await performer.succeeded(key, asked, found.body, begun)
                await performer.record([outcome])
            except asyncio.CancelledError:
                try:
                    performer.check_running()
                except (errors.Halted, errors.RunEnded, asyncio.CancelledError):
                    pass  # nothing is withdrawn when the whole run stops
                else:
                    performer.abandon([Cancelled(at=performer.now(), key=key, ask=asked)])
                    with suppress(errors.StoreError):
                        await asyncio.shield(source.withdraw())
                raise
            return outcome

    async def halting(self, work: Awaitable[Any]) -> Any:
        """Await `work`; an error of the store halts the run instead of failing the wait."""
        try:
            return await work
        except errors.StoreError as error:
            raise self._performer.halt(error) from error

    async def _wait_in_memory(self, key: str, source: WaitSource) -> WaitAnswer:
        pending = self.pending[key] = _PendingWait(source, self._loop.create_future())
        if source.due is not None:
            delay = max(0.0, (source.due - self._performer.now()) / 1000)
            pending.alarm = self._loop.call_later(min(delay, 30.0), self.look, context=contextvars.Context())
        self.busy -= 1
        self.moved.set()
        try:
            return await pending.came
        finally:
            self.busy += 1
            del self.pending[key]
            if pending.alarm is not None:
                pending.alarm.cancel()


def raise_unless_completed(id: str, told: dict[str, Any]) -> None:
    """Raise the error for the end of a process that did not complete."""
    match told["status"]:
        case "completed":
            return
        case "cancelled":
            raise errors.ProcessCancelled(id, told["message"])
        case "abandoned":
            raise errors.ProcessAbandoned(id, told["message"])
        case _:
            raise errors.ProcessFailed(id, told["kind"], told["message"])


async def wait_value(performer: Performer, outcome: Outcome, returns: type[Any] | None = None) -> Any:
    """The answer of a wait; `WaitEnded` if there is none."""
    if isinstance(outcome, Done):
        return decode_value(await performer.read_value(outcome), returns)
    raise errors.WaitEnded(outcome.key, outcome.error.kind if isinstance(outcome, Failed) else "cancelled")


TURN_WAIT_KIND: Final = "turn"
"""The kind of the waits for turns of agents."""
TURN_RECHECK_MS: Final = 300_000
"""Interval at which a process checks a turn by itself, in case the runtime that would answer is gone."""


@dataclass(frozen=True, slots=True)
class WaitAnswer:
    """The answer of a wait: a JSON value, or an error."""

    body: bytes = b"null"
    error: ErrorInfo | None = None


class StoreWait:
    """A wait in the store: a timer, a signal, or a deferral."""

    def __init__(
        self,
        store: Store,
        journal: str,
        name: str,
        deadline: int | None,
        resend: Callable[[bytes], Awaitable[None]] | None = None,
    ) -> None:
        self.label = name
        self.due = deadline
        self._store = store
        self._journal = journal
        self._resend = resend
        """Sends an answer again that came after the wait was withdrawn; None for timers."""

    async def begin(self) -> WaitAnswer | None:
        wait = await JournalWaits(self._store, self._journal).open(self.label, self.due)
        self.due = wait.deadline  # the first one counts
        return self._found(wait)

    async def look(self) -> WaitAnswer | None:
        wait = await self._store.wait(self._journal, self.label)
        if wait is None:
            return None
        if wait.state == "open" and wait.deadline is not None and wait.deadline <= self._store.clock.read().wall:
            wait = (await self._store.expire_wait(self._journal, self.label)).wait
        return self._found(wait)

    async def withdraw(self) -> None:
        wait = (await self._store.cancel_wait(self._journal, self.label)).wait
        if wait.state == "resolved" and self._resend is not None:
            await self._resend(wait.payload or b"null")

    def _found(self, wait: Wait) -> WaitAnswer | None:
        if wait.state == "open":
            return None
        if wait.state == "resolved":
            return WaitAnswer(wait.payload or b"null")
        if wait.state == "expired" and self._resend is None:
            return WaitAnswer()
        return WaitAnswer(error=ErrorInfo(wait.state, f"the wait was {wait.state}"))


async def drop_answer(payload: bytes) -> None:
    """Drop an answer that came too late."""


class ChildWait:
    """The end of a child process."""

    due: int | None = None

    def __init__(self, store: Store, child: str, processes: Processes) -> None:
        self.label = child
        self._store = store
        self._processes = processes

    async def begin(self) -> WaitAnswer | None:
        return await self.look()

    async def look(self) -> WaitAnswer | None:
        try:
            line = await self._store.journal(self.label)
        except errors.JournalMissing:
            return WaitAnswer(error=ErrorInfo("ProcessUnknown", f"there is no process {process_id_of(self.label)!r}"))
        if line.status not in TERMINAL_STATUSES:
            return None
        return WaitAnswer(encode_value(await process_end(self._store, await self._processes.read(self.label))))

    async def withdraw(self) -> None:
        """The child goes on."""


async def process_end(store: Store, state: ProcessState) -> dict[str, Any]:
    """The end of a process as plain JSON."""
    if state.status == "completed":
        return {"status": "completed", "value": await process_value(store, state)}
    error = state.error
    return {
        "status": state.status,
        "kind": "" if error is None else error.kind,
        "message": "" if error is None else error.message,
    }


async def process_value(store: Store, state: ProcessState) -> Any:  # whatever the function gave
    """The result of a process."""
    if state.blob is None:
        return decode_value(state.value or b"null")
    body = await store.blob(state.blob.digest)
    if body is None:
        raise errors.BlobMissing(state.blob.digest)
    return decode_value(body)


class AwaitedTurn(msgspec.Struct, frozen=True):
    """The turn that a wait is about, as the body of the wait."""

    session: str
    input: int


class TurnWait:
    """The end of a turn. The runtime answers the wait; the process also checks by itself now and then."""

    def __init__(self, store: Store, journal: str, key: str, turn: AwaitedTurn, processes: Processes) -> None:
        now = store.clock.read().wall
        self.due: int | None = now + TURN_RECHECK_MS
        self.label = f"{timer_wait(key)}~{now // TURN_RECHECK_MS}"  # one for each period between its own checks
        self._store = store
        self._journal = journal
        self._turn = turn
        self._processes = processes

    async def begin(self) -> WaitAnswer | None:
        found = await self.look()
        if found is None:
            body = msgspec.json.encode(self._turn)
            await self._store.open_wait(self._journal, self.label, deadline=self.due, kind=TURN_WAIT_KIND, body=body)
            self._processes.answer_on_end(self._turn, self._journal, self.label)
        return found

    async def look(self) -> WaitAnswer | None:
        reader = TurnReader(self._store, self._turn.session, self._turn.input, 0, known=True)
        ending = await reader.read()
        if ending is None:
            return None
        outcome = reader.outcome(ending, None)
        told = {
            "turn": outcome.turn,
            "status": outcome.status,
            "text": outcome.text,
            "value": outcome.value,
            "typed": ending.typed,
            "agent": ending.agent,
            "message": outcome.message or outcome.code,
        }
        return WaitAnswer(encode_value(told))

    async def withdraw(self) -> None:
        await self._store.cancel_wait(self._journal, self.label)


WaitSource: TypeAlias = StoreWait | ChildWait | TurnWait
"""The source of an answer. Its `label` is the name in the record, `due` the time of the next check at the latest."""
