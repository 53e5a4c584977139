"""One run of a durable function: its effects, its waits, and its journal."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import secrets as chance
import uuid
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeVar, cast

import msgspec

from holdfast.effects.canonical import as_declared, check_returns, decode_value, digest, encode_value, return_type
from holdfast.effects.drive import LeasedJournal
from holdfast.effects.envelope import segment
from holdfast.effects.performer import EffectScope, Performer, current_scope
from holdfast.effects.replay import Perform, Repeat, UseRecorded, fold_history
from holdfast.errors import (
    BlobMissing,
    Halted,
    HoldfastError,
    InvalidArgument,
    JournalMissing,
    RunEnded,
    StopRequested,
    StoreError,
    WaitEnded,
    WaitExpired,
    WaitFailed,
)
from holdfast.errors.caller import ProcessInvalid, ProcessUnknown
from holdfast.errors.world import AgentTurnFailed, ProcessAbandoned, ProcessCancelled, ProcessFailed
from holdfast.eventloop import spawn
from holdfast.names import check_id, check_string
from holdfast.policy.hooks import HookTurn
from holdfast.policy.rules import milliseconds
from holdfast.processes.lists import CANCEL_KEY
from holdfast.processes.state import (
    RESERVED_PREFIX,
    TERMINAL_STATUSES,
    ProcessState,
    Registration,
    attempt_run,
    check_process_id,
    child_id,
    external_wait,
    process_id_of,
    process_journal,
    signal_name,
    signal_number,
    signal_prefix,
    signal_wait,
    timer_wait,
    turn_wait,
)
from holdfast.records import Cancelled, Cause, Done, ErrorInfo, Failed, Intended, Unknown
from holdfast.runtime.deferrals import DEFERRAL_KIND
from holdfast.runtime.hooks import HookRunner
from holdfast.runtime.model_call import COMPLETE as MODEL_CALL_NAME
from holdfast.runtime.model_call import CompletionRequest, DirectCaller
from holdfast.runtime.turn import TurnReader
from holdfast.runtime.waits import JournalWaits, failure_reason, wait_name
from holdfast.tools.definition import Deferred
from holdfast.turns.conversation import TRIGGERED
from holdfast.turns.keys import DEFERRAL

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
    from datetime import timedelta

    from holdfast.agent import Agent
    from holdfast.effects.envelope import JournalLedger
    from holdfast.effects.performer import ScopeDriver
    from holdfast.models import Model
    from holdfast.processes.context import Child
    from holdfast.processes.definition import AnyProcess
    from holdfast.processes.lists import ProcessLine
    from holdfast.processes.service import Processes
    from holdfast.records import EffectKind, EffectRequest, Outcome, Record
    from holdfast.runtime.context import RuntimeContext
    from holdfast.store import Notify, Store
    from holdfast.store.contract import Head, Wait
    from holdfast.store.spending import Spend


QUIET_ROUNDS: Final = 32
"""Rounds without activity that count as quiet, on event loops that hide their queues."""
TIMER_PAUSE: Final = 0.02
"""Pause before the next look at code that has set a timer of its own, in seconds."""


def next_activity(drive: ScopeDriver) -> Literal["run", "wake"] | None:
    """The next thing that the code of `drive` will do: run, wake by a timer of its own, or nothing."""
    loop: Any = asyncio.get_running_loop()
    for queue in ("_ready", "held"):  # a simulated loop holds back what it does not run in this round
        if _any_handle_of(getattr(loop, queue, ()), drive):
            return "run"
    return "wake" if _any_handle_of(getattr(loop, "_scheduled", ()), drive) else None


def _any_handle_of(handles: Iterable[Any], drive: ScopeDriver) -> bool:
    for handle in handles:
        context = getattr(handle, "_context", None)
        if context is None or handle.cancelled():
            continue
        place = context.get(current_scope)
        if place is not None and place.drive is drive:
            return True
    return False


async def only_waits(drive: ScopeDriver) -> bool:
    """Whether the code does nothing but wait. If it is active this pauses a moment before it answers."""
    shown = hasattr(asyncio.get_running_loop(), "_ready")
    for _ in range(1 if shown else QUIET_ROUNDS):
        found = next_activity(drive)
        if found is not None:
            await asyncio.sleep(0 if found == "run" else TIMER_PAUSE)
            return False
        if not shown:
            await asyncio.sleep(0)
    return True


LOOK_INTERVAL: Final = 0.5
"""Interval at which waits are checked while other branches of the function work, in seconds."""


@dataclass(slots=True)
class _PendingWait:
    source: WaitSource
    came: asyncio.Future[WaitAnswer]
    alarm: asyncio.TimerHandle | None = None


class ProcessWaits:
    """The open waits of one run."""

    def __init__(self, performer: Performer) -> None:
        self._performer = performer
        self._loop = asyncio.get_running_loop()
        self._pending: dict[str, _PendingWait] = {}
        self._busy = 0
        """The number of branches that do something else than wait."""
        self._moved = asyncio.Event()
        self._looking: asyncio.Task[None] | None = None

    @property
    def waits(self) -> tuple[str, ...]:
        """The names of the open waits."""
        return tuple(pending.source.label for pending in self._pending.values())

    @property
    def quiet(self) -> bool:
        """Whether the function does nothing but wait at this moment."""
        if not self._pending or self._busy or any(pending.came.done() for pending in self._pending.values()):
            return False
        return next_activity(self._performer) is None

    async def idle(self) -> None:
        """Return when the function does nothing but wait. Until then, check its waits now and then."""
        while True:
            self._moved.clear()
            if self._pending and not self._busy:
                if await only_waits(self._performer) and self.quiet:
                    return
                continue
            with suppress(TimeoutError):
                await asyncio.wait_for(self._moved.wait(), LOOK_INTERVAL if self._pending else None)
            self.look()

    def look(self) -> None:
        """Check all open waits in the background."""
        if self._pending and (self._looking is None or self._looking.done()):
            self._looking = spawn(self._look())

    async def _look(self) -> None:
        for pending in list(self._pending.values()):
            try:
                found = await pending.source.look()
            except StoreError:
                return  # it is looked at again
            if found is not None and not pending.came.done():
                pending.came.set_result(found)

    async def close(self) -> None:
        """Stop checking."""
        for pending in self._pending.values():
            if pending.alarm is not None:
                pending.alarm.cancel()
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    @contextmanager
    def at_work(self) -> Generator[None]:
        self._busy += 1
        try:
            yield
        finally:
            self._busy -= 1
            self._moved.set()

    async def seek(
        self, place: EffectScope, key: str, ask: EffectRequest, source: WaitSource, *, intend: bool = False
    ) -> Outcome:
        """The outcome of a wait: recorded before, or the answer when it comes."""
        performer = self._performer
        await performer.admit()
        with performer.occupied(place), self.at_work():
            decision = performer.decide(key, ask, Repeat.FREE)
            performer.check_order(place, key)
            if isinstance(decision, UseRecorded):
                if isinstance(decision.outcome, Cancelled):
                    await performer.until_cancelled()
                return decision.outcome
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
                await self._withdraw(source, Cancelled(at=performer.now(), key=key, ask=asked))
                raise
            return outcome

    async def halting(self, work: Awaitable[Any]) -> Any:  # noqa: ANN401
        """Await `work`; an error of the store halts the run instead of failing the wait."""
        try:
            return await work
        except StoreError as error:
            raise self._performer.halt(error) from error

    async def _wait_in_memory(self, key: str, source: WaitSource) -> WaitAnswer:
        pending = self._pending[key] = _PendingWait(source, self._loop.create_future())
        if source.due is not None:
            delay = max(0.0, (source.due - self._performer.now()) / 1000)
            pending.alarm = self._loop.call_later(min(delay, 30.0), self.look, context=contextvars.Context())
        self._busy -= 1
        self._moved.set()
        try:
            return await pending.came
        finally:
            self._busy += 1
            del self._pending[key]
            if pending.alarm is not None:
                pending.alarm.cancel()

    async def _withdraw(self, source: WaitSource, cancelled: Cancelled) -> None:
        """Withdraw a wait whose branch was cancelled. Nothing is withdrawn when the whole run stops."""
        try:
            self._performer.check_running()
        except (Halted, RunEnded, asyncio.CancelledError):
            return
        self._performer.abandon([cancelled])
        with suppress(StoreError):
            await asyncio.shield(source.withdraw())


class ChildHandle:
    """A child process, for the function that started it."""

    __slots__ = ("_run", "id")

    def __init__(self, run: ProcessRun, id: str) -> None:
        self._run = run
        self.id = id

    def __repr__(self) -> str:
        return f"Child({self.id!r})"

    async def result(self) -> Any:  # noqa: ANN401
        return await self._run.ended(self.id)

    async def status(self) -> ProcessLine:
        return await self._run.glance(self.id)

    async def signal(self, name: str, value: object = None) -> None:
        await self._run.signal(self.id, name, value)

    async def cancel(self, reason: str = "") -> None:
        await self._run.cancel(self.id, reason)


def raise_unless_completed(id: str, told: dict[str, Any]) -> None:
    """Raise the error for the end of a process that did not complete."""
    match told["status"]:
        case "completed":
            return
        case "cancelled":
            raise ProcessCancelled(id, told["message"])
        case "abandoned":
            raise ProcessAbandoned(id, told["message"])
        case _:
            raise ProcessFailed(id, told["kind"], told["message"])


DEFER_EFFECT: Final = "defer"
"""Name and target of the effect that opens a deferral."""
ANSWER_EFFECT: Final = "deferred answer"
"""Name of the effect that waits for the answer."""


class DeferredAnswer(Deferred[Any]):
    """A deferral key that a durable function gave out, and its answer."""

    __slots__ = ("_answer",)

    def __init__(self, key: str, due: int, name: str, answer: Callable[[type[Any] | None], Awaitable[Any]]) -> None:
        super().__init__(key, due, name)
        self._answer = answer

    async def answer(self, *, returns: type[Any] | None = None) -> Any:  # noqa: ANN401  whatever was answered
        """What was given for the key, as soon as it is; nothing is held in memory meanwhile.

        Raises `WaitExpired` when nobody answered in time, `WaitFailed` when somebody said that there is no answer.
        """
        return await self._answer(returns)


def deferral_wait(key: str) -> str:
    """The wait of the deferral that the effect `key` opened."""
    return wait_name(f"{key}/{DEFERRAL}")


async def open_deferral(store: Store, journal: str, name: str, due: int) -> int:
    """Open the wait of a deferral; answers its deadline, which is the first that was given."""
    wait = await store.open_wait(journal, name, deadline=due, kind=DEFERRAL_KIND)
    return due if wait.deadline is None else wait.deadline


async def deferral_answer(
    outcome: Outcome, read_value: Callable[[Done], Awaitable[bytes]], returns: type[Any] | None
) -> Any:  # noqa: ANN401
    """The answer of a deferral, or its error."""
    if isinstance(outcome, Done):
        body = await read_value(outcome)
        failure = failure_reason(body)
        if failure is not None:
            raise WaitFailed(ANSWER_EFFECT, failure)
        return decode_value(body, returns)
    state = outcome.error.kind if isinstance(outcome, Failed) else "cancelled"
    if state == "expired":
        raise WaitExpired(ANSWER_EFFECT)
    raise WaitEnded(ANSWER_EFFECT, state)


TURN_WAIT_KIND: Final = "turn"
"""The kind of the waits for turns of agents."""
TURN_RECHECK_MS: Final = 300_000
"""Interval at which a process checks a turn by itself, in case the runtime that would answer is gone."""


@dataclass(frozen=True, slots=True)
class WaitAnswer:
    """The answer of a wait: a JSON value, or an error."""

    body: bytes = b"null"
    error: ErrorInfo | None = None


class WaitSource(Protocol):
    """The source of an answer: a store wait, a child, a turn."""

    @property
    def label(self) -> str:
        """The name in the record: that of the store wait, if there is one."""
        ...

    @property
    def due(self) -> int | None:
        """Time of the next check at the latest, in wall milliseconds."""
        ...

    async def begin(self) -> WaitAnswer | None:
        """Begin to wait; answers at once if the answer is there."""
        ...

    async def look(self) -> WaitAnswer | None:
        """The answer, if it is there."""
        ...

    async def withdraw(self) -> None:
        """Stop waiting."""
        ...


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


class ChildWait:
    """The end of a child process."""

    due: int | None = None

    def __init__(self, store: Store, child: str, read: Callable[[str], Awaitable[ProcessState]]) -> None:
        self.label = child
        self._store = store
        self._read = read

    async def begin(self) -> WaitAnswer | None:
        return await self.look()

    async def look(self) -> WaitAnswer | None:
        try:
            line = await self._store.journal(self.label)
        except JournalMissing:
            return WaitAnswer(error=ErrorInfo("ProcessUnknown", f"there is no process {process_id_of(self.label)!r}"))
        if line.status not in TERMINAL_STATUSES:
            return None
        return WaitAnswer(encode_value(await process_end(self._store, await self._read(self.label))))

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


async def process_value(store: Store, state: ProcessState) -> Any:  # noqa: ANN401  whatever the function gave
    """The result of a process."""
    if state.blob is None:
        return decode_value(state.value or b"null")
    body = await store.blob(state.blob.digest)
    if body is None:
        raise BlobMissing(state.blob.digest)
    return decode_value(body)


class AwaitedTurn(msgspec.Struct, frozen=True):
    """The turn that a wait is about, as the body of the wait."""

    session: str
    input: int


class TurnWait:
    """The end of a turn. The runtime answers the wait; the process also checks by itself now and then."""

    def __init__(
        self,
        store: Store,
        journal: str,
        key: str,
        turn: AwaitedTurn,
        watch: Callable[[str, str, AwaitedTurn], None],
    ) -> None:
        now = store.clock.read().wall
        self.due: int | None = now + TURN_RECHECK_MS
        self.label = turn_wait(key, now // TURN_RECHECK_MS)
        self._store = store
        self._journal = journal
        self._turn = turn
        self._watch = watch

    async def begin(self) -> WaitAnswer | None:
        found = await self.look()
        if found is None:
            body = msgspec.json.encode(self._turn)
            await self._store.open_wait(self._journal, self.label, deadline=self.due, kind=TURN_WAIT_KIND, body=body)
            self._watch(self._journal, self.label, self._turn)
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


T = TypeVar("T")
MAX_DEPTH: Final = 16
"""Deepest nesting of processes."""
_current_step: Final[contextvars.ContextVar[str | None]] = contextvars.ContextVar("holdfast_step", default=None)


def _cause_of_process(state: ProcessState) -> Cause:
    """The cause of a process: its parent, a trigger, or the input that started it."""
    made = state.registration
    if made is not None and made.parent is not None:
        return Cause("process", process_id_of(made.parent))
    return Cause("trigger", state.id) if state.id.startswith(TRIGGERED) else Cause("input", "1")


class ProcessRun:
    """One run of a durable function, as its context sees it."""

    def __init__(
        self, context: RuntimeContext, processes: Processes, state: ProcessState, ledger: JournalLedger
    ) -> None:
        self.id = state.id
        self.attempt = state.attempt
        self.run = attempt_run(state.attempt)
        self.secrets = context.secrets
        self.performer = Performer(ledger, fold_history(state.records), self.run)
        self.performer.iteration = state.attempt
        self.performer.cause = _cause_of_process(state)
        self._context = context
        self._store = context.store
        self._processes = processes
        self._state = state
        self._loop = asyncio.get_running_loop()
        turn, clean = HookTurn(state.session or "", "", ""), self.performer.redactor.text
        hooked = HookRunner((), turn, guards=context.hooks, clean=clean)
        self._completing = DirectCaller(self.performer, context.prices, hooked)
        self.waiting = ProcessWaits(self.performer)
        self._reached: set[str] = set()
        self._versions: dict[str, bool] = {}
        self._slots = self._recorded_slots()

    async def _value(self, outcome: Outcome, returns: type[Any] | None = None) -> Any:  # noqa: ANN401
        if isinstance(outcome, Done):
            return decode_value(await self.performer.read_value(outcome), returns)
        error = outcome.error.kind if isinstance(outcome, Failed) else "cancelled"
        raise WaitEnded(outcome.key, error)

    def _next_key(self, name: str) -> tuple[EffectScope, str]:
        place = self.performer.place()
        key = place.next(check_id("effect name", name))
        self._reached.add(key)
        return place, key

    def _ask(self, key: str, kind: EffectKind, name: str, target: str, body: object) -> EffectRequest:
        return self.performer.envelope(key, kind, name, target, body).ask()

    # ---- steps -------------------------------------------------------------------------------------------------------

    def idempotency_key(self) -> str:
        return self.performer.idempotency_key(_current_step.get() or segment(self.run))

    async def step(
        self,
        name: str,
        function: Callable[..., Any],
        args: tuple[object, ...],
        kwargs: dict[str, object],
        repeat: Repeat,
        returns: type[Any] | None,
    ) -> Any:  # noqa: ANN401
        if not callable(function):
            raise InvalidArgument("function", function, "something to call")

        async def call(key: str) -> Any:  # noqa: ANN401
            _current_step.set(key)
            if inspect.iscoroutinefunction(function):
                return await function(*args, **kwargs)
            value = await asyncio.to_thread(function, *args, **kwargs)
            return await value if inspect.isawaitable(value) else value

        body: object = {"args": list(args), "kwargs": kwargs} if kwargs else list(args)
        value = await self._effect("step", name, name, body, call, repeat, returns)
        wanted = None if returns is not None else return_type(function)
        return value if wanted is None else as_declared(value, wanted)

    async def _effect(
        self,
        kind: EffectKind,
        name: str,
        target: str,
        body: object,
        call: Callable[[str], Awaitable[Any]],
        repeat: Repeat = Repeat.KEYED,
        returns: type[Any] | None = None,
        at: tuple[EffectScope, str] | None = None,
    ) -> Any:  # noqa: ANN401
        place, key = self._next_key(name) if at is None else at
        envelope = self.performer.envelope(key, kind, name, target, body)
        outer = _current_step.get()
        with self.waiting.at_work():
            try:
                return await self.performer.perform(envelope, call, repeat, returns, place)
            finally:
                _current_step.set(outer)

    async def sample(self, what: str) -> Any:  # noqa: ANN401
        async def call(_: str) -> Any:  # noqa: ANN401
            match what:
                case "now":
                    return self.performer.now()
                case "random":
                    return chance.randbits(53) / 2**53
                case _:
                    return str(uuid.uuid4())

        value = await self._effect("sample", what, what, None, call, Repeat.FREE)
        match what:
            case "now":
                return datetime.fromtimestamp(value / 1000, UTC)
            case "random":
                return value
            case _:
                return uuid.UUID(value)

    async def version(self, name: str) -> bool:
        place = self.performer.place()
        key = f"{place.path}/~version.{segment(check_id('version', name))}"
        known = self._versions.get(key)
        if known is not None:
            return known
        recorded = self.performer.recorded(key)
        if recorded is None and not place.inside and self._goes_on_behind(place):
            self._versions[key] = False  # it has passed here before this was in its code
            return False

        async def call(_: str) -> bool:
            return True

        self._reached.add(key)
        self._versions[key] = True
        return await self._effect("sample", name, name, None, call, Repeat.FREE, at=(place, key))

    def _goes_on_behind(self, place: EffectScope) -> bool:
        """Whether the journal has effects of this scope that the function has not reached yet."""
        return any(key not in self._reached for key in self.performer.past.order.get(place.path, ()))

    # ---- waiting -----------------------------------------------------------------------------------------------------

    async def sleep(self, span: timedelta | float) -> None:
        ms = milliseconds(span)
        place, key = self._next_key("sleep")
        ask = self._ask(key, "sleep", "sleep", "sleep", {"ms": ms})
        deadline = self.performer.now() + ms
        await self.waiting.seek(place, key, ask, StoreWait(self._store, self._state.journal, timer_wait(key), deadline))

    async def wait(self, name: str, timeout: timedelta | float | None, returns: type[Any] | None) -> Any:  # noqa: ANN401
        deadline = None if timeout is None else self.performer.now() + milliseconds(timeout)
        check_returns(returns)
        place, key = self._next_key(name)
        slot = self._slot(key, name)
        ask = self._ask(key, "await_event", name, slot, None)
        outcome = await self.waiting.seek(place, key, ask, self._signal(slot, name, deadline), intend=True)
        if isinstance(outcome, Failed) and outcome.error.kind == "expired":
            raise WaitExpired(name)
        self.performer.cause = Cause("signal", name)
        return await self._value(outcome, returns)

    def _signal(self, slot: str, name: str, deadline: int | None) -> StoreWait:
        again = f"{RESERVED_PREFIX}again/{digest('again', slot)[:40]}"

        async def resend(payload: bytes) -> None:
            # Under a key: whoever goes on after a crash gives it back again.
            await self._processes.send_signal(self.id, name, decode_value(payload), again)

        return StoreWait(self._store, self._state.journal, slot, deadline, resend)

    def _slot(self, key: str, name: str) -> str:
        """The store wait of a signal: the recorded one, or the next number of that name."""
        recorded = self.performer.recorded(key)
        prefix = signal_prefix(self.run, name)
        if recorded is not None and recorded.ask().target.startswith(prefix):
            return recorded.ask().target
        number = self._slots[prefix] = self._slots.get(prefix, 0) + 1
        return signal_wait(self.run, name, number)

    def _recorded_slots(self) -> dict[str, int]:
        slots: dict[str, int] = {}
        for recorded in self.performer.past.effects.values():
            asked = recorded.ask()
            if asked.kind == "await_event":
                prefix = asked.target.rpartition("/")[0] + "/"
                slots[prefix] = max(slots.get(prefix, 0), signal_number(asked.target))
        return slots

    async def defer(self, timeout: timedelta | float) -> DeferredAnswer:
        span, journal = milliseconds(timeout), self._state.journal
        place, key = self._next_key(DEFER_EFFECT)
        name = deferral_wait(key)

        async def call(_: str) -> int:
            return await self.waiting.halting(open_deferral(self._store, journal, name, self.performer.now() + span))

        due: int = await self._effect("process", DEFER_EFFECT, DEFER_EFFECT, {"ms": span}, call, at=(place, key))
        return DeferredAnswer(
            self._store.wait_token(journal, name), due, name, partial(self._wait_for_answer, name, due)
        )

    async def _wait_for_answer(self, name: str, due: int, returns: type[Any] | None) -> Any:  # noqa: ANN401
        check_returns(returns)
        place, key = self._next_key(ANSWER_EFFECT)
        ask = self._ask(key, "process", ANSWER_EFFECT, name, None)
        source = StoreWait(self._store, self._state.journal, name, due, _drop_answer)
        return await deferral_answer(
            await self.waiting.seek(place, key, ask, source), self.performer.read_value, returns
        )

    async def outside(self) -> Any:  # noqa: ANN401
        """Wait for the result of a process that is carried out elsewhere."""
        place, key = self._next_key("outside")
        ask = self._ask(key, "process", "outside", "outside", None)
        source = StoreWait(self._store, self._state.journal, external_wait(self.run), None, _drop_answer)
        told = cast("dict[str, Any]", await self._value(await self.waiting.seek(place, key, ask, source)))
        if "error" in told:
            raise ProcessFailed(self.id, "outside", str(told["error"]))
        return told.get("value")

    # ---- several at once ---------------------------------------------------------------------------------------------

    async def gather(self, work: tuple[Awaitable[Any], ...]) -> list[Any]:
        await self._admit(work)
        tasks = _tasks_of(work)
        try:
            if tasks:
                await asyncio.wait(tasks)
        except asyncio.CancelledError:
            await _cancel_all(tasks)
            raise
        self.performer.check_halted()
        return [task.result() for task in tasks]

    async def _admit(self, work: tuple[Awaitable[Any], ...]) -> None:
        try:
            await self.performer.admit()
        except BaseException:
            _close_unused(work)
            raise

    async def race(self, work: tuple[Awaitable[Any], ...]) -> tuple[int, Any]:
        if not work:
            raise InvalidArgument("race", work, "one or more things to wait for")
        await self._admit(work)
        performer = self.performer
        place, key = self._next_key("race")
        ask = self._ask(key, "process", "race", "race", {"of": len(work)})
        with performer.occupied(place):
            decision = performer.decide(key, ask, Repeat.FREE)
            performer.check_order(place, key)
            if isinstance(decision, UseRecorded):
                _close_unused(work)
                await self._withdraw_below(key)
                if isinstance(decision.outcome, Cancelled):
                    await performer.until_cancelled()
                outcome = decision.outcome
            else:
                outcome = await self._run_race(key, ask, work)
            index, value = await performer.unwrap(outcome, ask, None)
            return index, value

    async def _run_race(self, key: str, ask: EffectRequest, work: tuple[Awaitable[Any], ...]) -> Outcome:
        performer = self.performer
        token = current_scope.set(
            EffectScope(performer, key)
        )  # its branches hang below it: once it has an outcome, none is asked
        try:
            tasks = _tasks_of(work)
        finally:
            current_scope.reset(token)
        begun = self._loop.time()
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            with self.waiting.at_work():
                performer.check_halted()
                outcome = await self._first_outcome(key, ask, tasks, begun)
                await performer.record([outcome])
                await _cancel_all(tasks)
        except asyncio.CancelledError:
            await _cancel_all(tasks)
            performer.abandon([Cancelled(at=performer.now(), key=key, ask=ask)])
            raise
        performer.check_halted()
        return outcome

    async def _first_outcome(
        self, key: str, ask: EffectRequest, tasks: list[asyncio.Future[Any]], begun: float
    ) -> Outcome:
        index, first = next((index, task) for index, task in enumerate(tasks) if task.done())
        if first.cancelled():
            return self.performer.failed(key, ask, RuntimeError("the first branch was cancelled"), begun)
        error = first.exception()
        if error is None:
            body = self.performer.redactor.bytes(encode_value([index, first.result()]))
            return await self.performer.succeeded(key, ask, body, begun)
        if isinstance(error, Exception):
            return self.performer.failed(key, ask, error, begun)
        raise error

    async def _withdraw_below(self, key: str) -> None:
        """Withdraw waits of losing branches that a crash left open."""
        prefix = f"{key}/"
        for name, recorded in self.performer.past.effects.items():
            if name.startswith(prefix) and recorded.intent is not None and recorded.outcome is None:
                asked = recorded.intent.ask
                if asked.kind == "await_event":
                    await self.waiting.halting(self._signal(asked.target, signal_name(asked.target), None).withdraw())

    # ---- other processes, and agents ---------------------------------------------------------------------------------

    async def start(
        self, procedure: AnyProcess | str, args: tuple[Any, ...], kwargs: dict[str, Any], id: str | None
    ) -> Child:
        made = self._processes.procedure(procedure)
        depth = 1 + (0 if self._state.registration is None else self._state.registration.depth)
        if depth > MAX_DEPTH:
            raise ProcessInvalid(
                made.name, f"it would be the {depth}th process above one another, {MAX_DEPTH} are allowed"
            )
        arguments = made.stored(args, kwargs)
        place, key = self._next_key(made.name)
        child = child_id(made.name, self._state.journal, key) if id is None else check_process_id(id)
        registration = Registration(
            *(made.name, arguments, made.recovery, made.on_parent_end, self._state.journal, key, depth),
            taint=None if self._state.registration is None else self._state.registration.taint,
        )

        async def stop(_: str) -> None:
            await self._processes.end_child(child, f"the process {self.id} was cancelled")

        async def call(_: str) -> dict[str, str]:
            registering = spawn(self._processes.register(child, registration, self._state.session))
            return {"id": await self._begin_elsewhere(registering, stop)}

        body = {"id": child, "name": made.name, "arguments": arguments}
        told = await self._effect("process", made.name, "start", body, call, at=(place, key))
        return ChildHandle(self, told["id"])

    async def _begin_elsewhere(self, beginning: asyncio.Task[T], stop: Callable[[T], Awaitable[None]]) -> T:
        """Begin a child or a turn. If this process is cancelled meanwhile, that is stopped too."""
        try:
            return await asyncio.shield(beginning)
        except StopRequested:
            await self.performer.until_cancelled()  # this process is being stopped
            raise
        except asyncio.CancelledError:
            spawn(self._stop_if_cancelled(beginning, stop))
            raise

    async def _stop_if_cancelled(self, beginning: asyncio.Task[T], stop: Callable[[T], Awaitable[None]]) -> None:
        with suppress(HoldfastError):
            begun = await beginning
            if await self._store.find_input(self._state.journal, CANCEL_KEY) is not None:
                await stop(begun)

    async def ended(self, id: str) -> Any:  # noqa: ANN401  what the child gave
        """The result of a child, when it has ended."""
        place, key = self._next_key("result")
        ask = self._ask(key, "process", "result", "await", {"id": id})
        source = ChildWait(self._store, process_journal(id), self._processes.read)
        outcome = await self.waiting.seek(place, key, ask, source)
        if isinstance(outcome, Failed):
            raise ProcessUnknown(id)
        told = cast("dict[str, Any]", await self._value(outcome))
        raise_unless_completed(id, told)
        return told["value"]

    async def signal(self, id: str, name: str, value: object) -> None:
        signal_prefix(self.run, name)

        async def call(key: str) -> None:
            # Under a key: one that was sent and not recorded before a crash is not sent twice.
            await self._processes.send_signal(
                id, name, value, f"{RESERVED_PREFIX}sent/{self.performer.idempotency_key(key)}"
            )

        await self._effect("process", f"signal {name}", "signal", {"id": id, "name": name, "value": value}, call)

    async def cancel(self, id: str, reason: str) -> None:
        """Ask for a child to be cancelled."""

        async def call(_: str) -> None:
            await self._processes.request_cancel(id, reason)

        await self._effect("process", "cancel", "cancel", {"id": id, "reason": reason}, call)

    async def glance(self, id: str) -> ProcessLine:
        """The list line of a child."""
        from holdfast.processes.lists import ProcessLine  # noqa: PLC0415

        async def call(_: str) -> Any:  # noqa: ANN401
            return msgspec.to_builtins(await self._processes.line(id))

        told = await self._effect("process", "status", "status", {"id": id}, call, Repeat.FREE)
        return msgspec.convert(told, ProcessLine)

    async def run_agent(
        self, agent: Agent | str, prompt: str, session: str | None, deadline: timedelta | float | None
    ) -> Any:  # noqa: ANN401
        name = agent if isinstance(agent, str) else agent.name
        check_string("prompt", prompt)
        place, key = self._next_key(f"agent {name}"[:200])
        known = self.performer.idempotency_key(key)
        asked = f"{self.id}.{known[:12]}" if session is None else check_id("session", session)

        async def stop(sent: AwaitedTurn) -> None:
            await self._processes.stop_turn(sent.session, sent.input, f"the process {self.id} was cancelled")

        async def call(_: str) -> Any:  # noqa: ANN401
            journal = self._state.journal
            made = self._state.registration
            untrusted = made is not None and made.taint is not None
            sending = self._processes.send(
                agent, asked, prompt, f"process/{known}", deadline, under=journal, untrusted=untrusted
            )
            return msgspec.to_builtins(await self._begin_elsewhere(spawn(sending), stop))

        body = {"agent": name, "prompt": prompt, "session": session}
        sent = msgspec.convert(
            await self._effect("process", f"agent {name}"[:200], "agent", body, call, at=(place, key)), AwaitedTurn
        )
        place, key = self._next_key("answer")
        ask = self._ask(key, "process", "answer", "turn", {"session": sent.session, "input": sent.input})
        source = TurnWait(self._store, self._state.journal, key, sent, self._processes.watch_turn)
        told = cast("dict[str, Any]", await self._value(await self.waiting.seek(place, key, ask, source)))
        if told["status"] != "completed":
            raise AgentTurnFailed(sent.session, told["turn"], told["status"], told["message"])
        return self._answer(agent, told) if told["typed"] else told["text"]

    def _answer(self, agent: Agent | str, told: dict[str, Any]) -> Any:  # noqa: ANN401  a value of the agent's output
        """The answer as the output type of its agent; plain JSON if the agent is not known here."""
        given_by = told.get("agent") or (agent if isinstance(agent, str) else agent.name)
        known = self._context.agents.get(given_by)
        if known is None and not isinstance(agent, str) and agent.name == given_by:
            known = agent
        output = None if known is None else known.output
        if output is None or output.complaint(told["text"]) is not None:
            return told["value"]
        return output.load(told["text"])

    async def complete(self, model: Model | str, prompt: str, output: Any, instructions: str) -> Any:  # noqa: ANN401
        question = CompletionRequest(model, prompt, output, instructions)
        place, key = self._next_key(MODEL_CALL_NAME)
        with self.waiting.at_work():
            return await self._completing.answer(place, key, question)


async def _drop_answer(payload: bytes) -> None:
    """Drop an answer that came too late."""


def _tasks_of(work: tuple[Awaitable[Any], ...]) -> list[asyncio.Future[Any]]:
    return [asyncio.ensure_future(each) for each in work]


def _close_unused(work: tuple[Awaitable[Any], ...]) -> None:
    """Close coroutines that will never run, so that Python does not warn about them."""
    for each in work:
        if inspect.iscoroutine(each):
            each.close()


async def _cancel_all(tasks: list[asyncio.Future[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class ProcessJournal(LeasedJournal):
    """A journal that tracks intents without an outcome."""

    open: dict[str, EffectRequest]

    def begin(self, state: ProcessState) -> None:
        """Take in what is recorded."""
        self.open = {}
        self._note(state.records)

    def _note(self, added: Sequence[Record]) -> None:
        for record in added:
            match record:
                case Intended():
                    self.open[record.key] = record.ask
                case Done() | Failed() | Unknown() | Cancelled():
                    self.open.pop(record.key, None)
                    for below in [key for key in self.open if key.startswith(f"{record.key}/")]:
                        del self.open[below]
                case _:
                    pass

    def append(
        self,
        added: list[Record],
        *,
        patient: bool = False,
        notify: Sequence[Notify] = (),
        consume: Sequence[str] = (),
        spend: Spend | None = None,
    ) -> tuple[int, asyncio.Future[Head]]:
        self._note(added)
        return super().append(added, patient=patient, notify=notify, consume=consume, spend=spend)

    def left_over(self, run: str) -> list[Record]:
        """Outcomes for open intents when a run ends: waits are cancelled, other effects are unknown."""
        now = self.now()
        records: list[Record] = []
        for key, ask in list(self.open.items()):
            if not key.startswith(f"{run}/"):
                continue
            waits = ask.kind in {"await_event", "sleep"}
            records.append(Cancelled(at=now, key=key) if waits else Unknown(at=now, key=key))
        return records
