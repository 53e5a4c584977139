"""The context of a durable function, and its waits. Every effect goes through the context and is recorded.

In this order: the sources of answers (timers, signals, deferrals, children, turns of agents), the open waits of one
run, and the context.
"""

# The handles of children and deferrals belong to their context.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import asyncio
import contextvars
import inspect
import secrets as chance
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, ParamSpec, TypeAlias, TypeVar, cast, overload
from uuid import UUID, uuid4

import msgspec

from holdfast import errors
from holdfast.agent import OutputT_co
from holdfast.deps import NO_DEPS, DepsT
from holdfast.effects.canonical import as_declared, check_returns, decode_value, digest, encode_value, return_type
from holdfast.effects.keys import segment
from holdfast.effects.performer import call_function
from holdfast.effects.replay import Perform, Repeat
from holdfast.effects.scopes import EffectScope, current_scope
from holdfast.eventloop import cancel_all, spawn, upkeep_context
from holdfast.names import agent_session, check_id, check_string
from holdfast.policy.hooks import TurnContext
from holdfast.policy.rules import milliseconds
from holdfast.processes import keys
from holdfast.processes.lists import ProcessLine
from holdfast.processes.state import TERMINAL_STATUSES, ProcessState, Registration
from holdfast.records import Cancelled, Cause, Done, EffectKind, EffectRequest, ErrorInfo, Failed, Intended, Outcome
from holdfast.runtime.deferrals import DEFERRAL_KIND
from holdfast.runtime.hooks import HookRunner
from holdfast.runtime.model_call import COMPLETE as MODEL_CALL_NAME
from holdfast.runtime.model_call import CompletionRequest, DirectCaller
from holdfast.runtime.session_records import read_blob
from holdfast.runtime.turn import TurnReader
from holdfast.runtime.waits import JournalWaits, failure_reason, wait_name
from holdfast.store.inbox import STOP_KEY
from holdfast.tools.definition import DEFERRAL_TIMEOUT, Deferred
from holdfast.turns.keys import DEFERRAL, input_number, turn_id

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator

    from holdfast.agent import Agent, OutputT
    from holdfast.effects.performer import Performer
    from holdfast.models import Model
    from holdfast.processes.definition import ProcessDefinition
    from holdfast.processes.service import Processes
    from holdfast.runtime.context import RuntimeContext
    from holdfast.secrets.sources import SecretAccess
    from holdfast.store import Store
    from holdfast.store.contract import Wait


P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
MAX_DEPTH: Final = 16
"""Deepest nesting of processes."""
_DEFER: Final = "defer"
"""Name and target of the effect that opens a deferral."""
_ANSWER: Final = "deferred answer"
"""Name of the effect that waits for the answer of a deferral."""
_current_step: Final[contextvars.ContextVar[str | None]] = contextvars.ContextVar("holdfast_step", default=None)


# ---- the sources of answers ------------------------------------------------------------------------------------------

TURN_WAIT_KIND: Final = "turn"
"""The kind of the waits for turns of agents."""
TURN_RECHECK_MS: Final = 300_000
"""Interval at which a process checks a turn itself, in case the runtime that would answer is gone."""


@dataclass(frozen=True, slots=True)
class WaitAnswer:
    """The answer of a wait: a JSON value, or an error."""

    body: bytes = b"null"
    error: ErrorInfo | None = None


@dataclass(slots=True)
class StoreWait:
    """A wait in the store: a timer, a signal, or a deferral."""

    store: Store
    journal: str
    label: str
    due: int | None = None
    resend: Callable[[bytes], Awaitable[None]] | None = None
    """Sends an answer again that came after the withdrawal; without it, the answer is dropped."""
    timer: bool = False
    """The deadline answers it."""

    async def begin(self) -> WaitAnswer | None:
        wait = await JournalWaits(self.store, self.journal).open(self.label, self.due)
        self.due = wait.deadline  # the first one counts
        return self._answer(wait)

    async def look(self) -> WaitAnswer | None:
        wait = await self.store.wait(self.journal, self.label)
        if wait is None:
            return None
        if wait.state == "open" and wait.deadline is not None and wait.deadline <= self.store.clock.read().wall:
            wait = (await self.store.expire_wait(self.journal, self.label)).wait
        return self._answer(wait)

    async def withdraw(self) -> None:
        wait = (await self.store.cancel_wait(self.journal, self.label)).wait
        if wait.state == "resolved" and self.resend is not None:
            await self.resend(wait.payload or b"null")

    def _answer(self, wait: Wait) -> WaitAnswer | None:
        if wait.state == "open":
            return None
        if wait.state == "resolved":
            return WaitAnswer(wait.payload or b"null")
        if wait.state == "expired" and self.timer:
            return WaitAnswer()
        return WaitAnswer(error=ErrorInfo(wait.state, f"the wait was {wait.state}"))


@dataclass(slots=True)
class ChildWait:
    """The end of a child process."""

    store: Store
    label: str
    processes: Processes
    due: int | None = None

    async def begin(self) -> WaitAnswer | None:
        return await self.look()

    async def look(self) -> WaitAnswer | None:
        try:
            line = await self.store.journal(self.label)
        except errors.JournalMissing:
            said = f"there is no process {keys.process_id_of(self.label)!r}"
            return WaitAnswer(error=ErrorInfo("ProcessUnknown", said))
        if line.status not in TERMINAL_STATUSES and line.moved:
            said = f"the process {keys.process_id_of(self.label)!r} was moved to another store"
            return WaitAnswer(error=ErrorInfo("JournalMoved", said))
        if line.status not in TERMINAL_STATUSES:
            return None
        return WaitAnswer(encode_value(await process_end(self.store, await self.processes.read(self.label))))

    async def withdraw(self) -> None:
        """The child continues."""


class AwaitedTurn(msgspec.Struct, frozen=True):
    """The body of a wait for a turn."""

    session: str
    input: int


class TurnWait:
    """The end of a turn. The runtime answers the wait; the process also polls the turn."""

    def __init__(self, store: Store, journal: str, key: str, turn: AwaitedTurn, processes: Processes) -> None:
        now = store.clock.read().wall
        self.due: int | None = now + TURN_RECHECK_MS
        self.label = f"{keys.timer_wait(key)}~{now // TURN_RECHECK_MS}"  # one for each period between its own checks
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
        ending, gone = None, "its session was forgotten"
        try:
            ending = await reader.read()
            if ending is None and not (await self._store.watch([self._turn.session]))[1]:
                return None
            gone = "its session was moved to another store"
        except errors.JournalMissing:
            pass
        if ending is None:
            told = {"turn": turn_id(self._turn.input), "status": "failed", "text": "", "value": None, "typed": False}
            return WaitAnswer(encode_value(told | {"message": gone}))
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
"""The source of an answer. `label` is its name in the record, `due` the latest time of the next check."""


async def process_end(store: Store, state: ProcessState) -> dict[str, Any]:
    """The end of a process as plain JSON."""
    if state.status == "completed":
        return {"status": "completed", "value": await process_value(store, state)}
    error = state.error or ErrorInfo("", "")
    return {"status": state.status, "kind": error.kind, "message": error.message}


async def process_value(store: Store, state: ProcessState) -> Any:  # the result of the function
    """The result of a process."""
    return decode_value((state.value or b"null") if state.blob is None else await read_blob(store, state.blob.digest))


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


# ---- the open waits of one run ---------------------------------------------------------------------------------------

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
        """Open waits, by effect key."""
        self.busy = 0
        """The number of branches that do not wait."""
        self.moved = asyncio.Event()
        """Set when a branch begins to wait, or stops working beside one that waits."""
        self._looking: asyncio.Task[None] | None = None

    @property
    def quiet(self) -> bool:
        """True if all branches wait."""
        if not self.pending or self.busy or any(pending.came.done() for pending in self.pending.values()):
            return False
        return self._next_activity() is None

    def _next_activity(self) -> Literal["run", "wake"] | None:
        """The next activity of the function: running now, a timer of its own, or none."""
        loop: Any = asyncio.get_running_loop()
        for queue in ("_ready", "held", "_scheduled"):  # a simulated loop holds back what it does not run yet
            for handle in getattr(loop, queue, ()):
                context = getattr(handle, "_context", None)
                place = None if context is None or handle.cancelled() else context.get(current_scope)
                if place is not None and place.drive is self._performer:
                    return "wake" if queue == "_scheduled" else "run"
        return None

    async def _only_waits(self) -> bool:
        """True if the function only waits. Pauses a moment first if it is active."""
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
        """Return when the function only waits. Until then, check its waits now and then."""
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
        await cancel_all([] if self._looking is None else [self._looking])

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
        """The outcome of a wait: the recorded one, or the answer when it arrives."""
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
            pending.alarm = self._loop.call_later(min(delay, 30.0), self.look, context=upkeep_context())
        self.busy -= 1
        self.moved.set()
        try:
            return await pending.came
        finally:
            self.busy += 1
            del self.pending[key]
            if pending.alarm is not None:
                pending.alarm.cancel()


# ---- the context -----------------------------------------------------------------------------------------------------


class Child(Generic[OutputT_co]):
    """A child process, for the function that started it."""

    __slots__ = ("_context", "_name", "id")

    def __init__(self, context: ProcessContext, id: str, name: str) -> None:
        self._context = context
        self._name = name
        self.id = id

    def __repr__(self) -> str:
        return f"Child({self.id!r})"

    async def result(self) -> OutputT_co:
        """Wait for the end and return the result as the declared type. A parked wait holds no memory."""
        return await self._context._child_result(self.id, self._name)  # noqa: SLF001

    async def status(self) -> ProcessLine:
        """Its line in lists. A replay returns the recorded line."""
        return await self._context._child_line(self.id)  # noqa: SLF001

    async def signal(self, name: str, value: object = None) -> None:
        """Send a signal that it waits for, or will wait for."""
        await self._context.signal(self.id, name, value)

    async def cancel(self, reason: str = "") -> None:
        """Request its cancellation."""
        await self._context._cancel_child(self.id, reason)  # noqa: SLF001


class Awaited(Deferred[Any]):
    """A deferral: a key to hand out, and the answer to it."""

    __slots__ = ("_context",)

    def __init__(self, key: str, due: int, wait: str, context: ProcessContext) -> None:
        super().__init__(key, due, wait)
        self._context = context

    async def answer(self, *, returns: type[Any] | None = None) -> Any:  # the answer
        """Wait for the answer to the key. A parked wait holds no memory.

        Raises `WaitExpired` when no answer came in time, `WaitFailed` when the answer is an error.
        """
        return await self._context._deferral_answer(self.call, self.due, returns)  # noqa: SLF001


class ProcessContext(Generic[DepsT]):
    """The first argument of a durable function.

    Each call is recorded under a key that is a path, so code in plain `asyncio.gather` or `TaskGroup` branches works. A
    function that runs again after a crash gets its recorded answers. Anything outside the context (a request, a file,
    the clock) is repeated each time.
    """

    def __init__(self, context: RuntimeContext, state: ProcessState, performer: Performer, waits: ProcessWaits) -> None:
        self._runtime = context
        self._store = context.store
        self._processes = context.processes
        self._state = state
        self._performer = performer
        self._waits = waits
        self._reached: set[str] = set()
        self._versions: dict[str, bool] = {}
        self._signals: dict[str, int] = {}
        """Number of the last signal consumed, by name."""
        inherited = (
            () if state.inherited is None else {getattr(record, "key", "") for record in state.inherited.records}
        )
        for key, recorded in performer.past.effects.items():
            if key in inherited:  # the waits of a retry are its own
                continue
            asked = recorded.ask()
            if asked.kind == "await_event":
                prefix = asked.target.rpartition("/")[0] + "/"
                self._signals[prefix] = max(self._signals.get(prefix, 0), keys.signal_number(asked.target))

    @property
    def id(self) -> str:
        """The id of the process; in a retry, that of the first run. Signals to it reach the newest retry."""
        inherited = self._state.inherited
        return self._state.id if inherited is None else keys.process_id_of(inherited.origin)

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1."""
        return self._performer.iteration or 1

    @property
    def idempotency_key(self) -> str:
        """Inside a step: a key that stays the same when the step is repeated. Outside: the key of the process."""
        return self._performer.idempotency_key(_current_step.get() or segment(self._performer.run))

    @property
    def secrets(self) -> SecretAccess:
        """``ctx.secrets["NAME"]``. Values are redacted in journals and logs."""
        return self._runtime.secrets

    @property
    def deps(self) -> DepsT:
        """The dependencies of the runtime: ``hf.open(..., deps=...)``."""
        if self._runtime.deps is NO_DEPS:
            raise errors.DepsMissing(f"the process {self.id!r}")
        return cast("DepsT", self._runtime.deps)

    # ---- effects -----------------------------------------------------------------------------------------------------

    def _next_key(self, name: str) -> tuple[EffectScope, str]:
        place = self._performer.place()
        key = place.next(name)
        self._reached.add(key)
        return place, key

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
    ) -> Any:
        """Perform an effect under the next key for `name`, or under `at`."""
        place, key = self._next_key(name) if at is None else at
        performer, waits, outer = self._performer, self._waits, _current_step.get()
        ask = performer.request(key, kind, target, body)
        waits.busy += 1
        try:
            return await performer.perform(key, ask, call, repeat, returns, place)
        finally:
            _current_step.set(outer)
            waits.busy -= 1
            if waits.pending:  # without open waits there is nothing to wake
                waits.moved.set()

    @overload
    async def step(self, name: str, function: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs) -> R: ...

    @overload
    async def step(self, name: str, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...

    @overload
    async def step(
        self, name: str, function: Callable[..., Any], /, *args: object, returns: type[R], **kwargs: Any
    ) -> R: ...

    @overload
    async def step(
        self, name: str, function: Callable[..., Awaitable[R]], /, *args: object, repeat: Repeat, **kwargs: Any
    ) -> R: ...

    @overload
    async def step(
        self, name: str, function: Callable[..., R], /, *args: object, repeat: Repeat, **kwargs: Any
    ) -> R: ...

    async def step(
        self,
        name: str,
        function: Callable[..., Any],
        /,
        *args: object,
        repeat: Repeat = Repeat.KEYED,
        returns: type[Any] | None = None,
        **kwargs: object,
    ) -> Any:  # the result, decoded from JSON
        """Call `function(*args, **kwargs)` once and record its result.

        An interrupted step runs again with the same `idempotency_key`, unless `repeat` is `Repeat.NEVER`: then it ends
        as `EffectUnknown`. A plain function runs in a thread. The arguments are recorded, so never pass secrets. The
        result is decoded as `returns`, or as the declared return type of the function.
        """
        if not callable(function):
            raise errors.InvalidArgument("function", function, "something to call")

        async def call(key: str) -> Any:
            _current_step.set(key)
            return await call_function(function, *args, **kwargs)

        body: object = {"args": list(args), "kwargs": kwargs} if kwargs else list(args)
        value = await self._effect("step", name, name, body, call, repeat, returns)
        return value if returns is not None else as_declared(value, return_type(function))

    async def _sample(self, what: str, take: Callable[[], Any], at: tuple[EffectScope, str] | None = None) -> Any:
        async def call(_: str) -> Any:
            return take()

        return await self._effect("sample", what, what, None, call, Repeat.FREE, at=at)

    async def now(self) -> datetime:
        """The time in UTC. A replay returns the recorded time."""
        return datetime.fromtimestamp(await self._sample("now", self._performer.now) / 1000, UTC)

    async def random(self) -> float:
        """A recorded random number from 0 to 1."""
        return await self._sample("random", lambda: chance.randbits(53) / 2**53)

    async def uuid(self) -> UUID:
        """A recorded random UUID."""
        return UUID(await self._sample("uuid", lambda: str(uuid4())))

    async def version(self, name: str) -> bool:
        """True if changed code may take its new path; False in a process that passed here before the change.

        ``if await ctx.version("send-by-post"): ... else: ...`` keeps running processes on the old path.
        """
        place, past = self._performer.place(), self._performer.past
        key = f"{place.path}/~version.{segment(check_id('version', name))}"
        if key in self._versions:
            return self._versions[key]
        known = key in past.effects or place.inside
        if not known and any(later not in self._reached for later in past.order.get(place.path, ())):
            self._versions[key] = False  # it has passed here before this was in its code
            return False

        self._reached.add(key)
        self._versions[key] = True
        return await self._sample(name, lambda: True, (place, key))

    # ---- waiting -----------------------------------------------------------------------------------------------------

    async def sleep(self, span: timedelta | float) -> None:
        """Sleep for a timedelta or for seconds. Any runtime may continue the process afterwards."""
        ms = milliseconds(span)
        place, key = self._next_key("sleep")
        ask = self._performer.request(key, "sleep", "sleep", {"ms": ms})
        due = self._performer.now() + ms
        timer = StoreWait(self._store, self._state.journal, keys.timer_wait(key), due, timer=True)
        await self._waits.seek(place, key, ask, timer)

    async def wait(
        self, name: str, timeout: timedelta | float | None = None, *, returns: type[Any] | None = None
    ) -> Any:  # the value of the signal
        """The next signal called `name`, or one already received; `WaitExpired` if none arrives in time."""
        performer = self._performer
        deadline = None if timeout is None else performer.now() + milliseconds(timeout)
        check_returns(returns)
        place, key = self._next_key(name)
        recorded, prefix = performer.recorded(key), keys.signal_prefix(performer.run, name)
        if recorded is not None and recorded.ask().target.startswith(prefix):
            wait = recorded.ask().target
        else:
            number = self._signals[prefix] = self._signals.get(prefix, 0) + 1
            wait = keys.signal_wait(performer.run, name, number)
        ask = performer.request(key, "await_event", wait, None)
        outcome = await self._waits.seek(place, key, ask, self._signal_wait(wait, name, deadline), intend=True)
        if isinstance(outcome, Failed) and outcome.error.kind == "expired":
            raise errors.WaitExpired(name)
        performer.cause = Cause("signal", name)
        return await wait_value(performer, outcome, returns)

    def _signal_wait(self, wait: str, name: str, deadline: int | None) -> StoreWait:
        async def resend(payload: bytes) -> None:
            # Under a key: after a crash, the next drive returns it again.
            again = f"{keys.RESERVED_PREFIX}again/{digest('again', wait)[:40]}"
            await self._processes.send_signal(self._state.id, name, decode_value(payload), again)

        return StoreWait(self._store, self._state.journal, wait, deadline, resend)

    async def defer(self, *, timeout: timedelta | float = DEFERRAL_TIMEOUT) -> Awaited:
        """Open a key that is answered once from outside, with `runtime.resolve(key, value)`.

        ``pending = await ctx.defer(timeout=timedelta(days=2))``, pass ``pending.key`` on in a step, and then ``await
        pending.answer()``: `WaitExpired` without an answer within `timeout` (7 days).
        """
        span, journal = milliseconds(timeout), self._state.journal
        place, key = self._next_key(_DEFER)
        name = wait_name(f"{key}/{DEFERRAL}")

        async def call(_: str) -> int:
            due = self._performer.now() + span
            opening = self._store.open_wait(journal, name, deadline=due, kind=DEFERRAL_KIND)
            wait = await self._waits.halting(opening)
            return due if wait.deadline is None else wait.deadline  # that of the first time

        due: int = await self._effect("process", _DEFER, _DEFER, {"ms": span}, call, at=(place, key))
        return Awaited(self._store.wait_token(journal, name), due, name, self)

    async def _deferral_answer(self, name: str, due: int, returns: type[Any] | None) -> Any:
        check_returns(returns)
        place, key = self._next_key(_ANSWER)
        ask = self._performer.request(key, "process", name, None)
        source = StoreWait(self._store, self._state.journal, name, due)
        outcome = await self._waits.seek(place, key, ask, source)
        if isinstance(outcome, Done):
            body = await self._performer.read_value(outcome)
            failure = failure_reason(body)
            if failure is not None:
                raise errors.WaitFailed(_ANSWER, failure)
            return decode_value(body, returns)
        state = outcome.error.kind if isinstance(outcome, Failed) else "cancelled"
        raise errors.WaitExpired(_ANSWER) if state == "expired" else errors.WaitEnded(_ANSWER, state)

    # ---- several at once ---------------------------------------------------------------------------------------------

    async def _admit(self, work: tuple[Awaitable[Any], ...]) -> None:
        try:
            await self._performer.admit()
        except BaseException:
            _close_unused(work)
            raise

    async def gather(self, *work: Awaitable[Any]) -> list[Any]:
        """Run branches at once and return their values in order. All of them end before the first failure is raised."""
        await self._admit(work)
        tasks = [asyncio.ensure_future(each) for each in work]
        try:
            if tasks:
                await asyncio.wait(tasks)
        except asyncio.CancelledError:
            await cancel_all(tasks)
            raise
        self._performer.check_halted()
        return [task.result() for task in tasks]

    async def race(self, *work: Awaitable[Any]) -> tuple[int, Any]:
        """Run branches at once; returns the index and value of the first to finish, and cancels the others.

        The winner is recorded, so a replay returns the same one.
        """
        if not work:
            raise errors.InvalidArgument("race", work, "one or more things to wait for")
        await self._admit(work)
        performer = self._performer
        place, key = self._next_key("race")
        ask = performer.request(key, "process", "race", {"of": len(work)})
        with performer.occupied(place):
            decision = performer.decide(key, ask, Repeat.FREE, place)
            outcome = getattr(decision, "outcome", None)
            if outcome is None:
                outcome = await self._run_race(key, ask, work)
            else:
                _close_unused(work)
                await self._withdraw_below(key)
                await performer.recall(decision)
            index, value = await performer.unwrap(outcome, ask, None)
            return index, value

    async def _run_race(self, key: str, ask: EffectRequest, work: tuple[Awaitable[Any], ...]) -> Outcome:
        performer, loop = self._performer, asyncio.get_running_loop()
        # Its branches hang below it: once it has an outcome, none is asked for again.
        token = current_scope.set(EffectScope(performer, key))
        try:
            tasks = [asyncio.ensure_future(each) for each in work]
        finally:
            current_scope.reset(token)
        begun = loop.time()
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            with self._waits.at_work():
                performer.check_halted()
                index, first = next((index, task) for index, task in enumerate(tasks) if task.done())
                error = RuntimeError("the first branch was cancelled") if first.cancelled() else first.exception()
                if error is None:
                    body = performer.redactor.bytes(encode_value([index, first.result()]))
                    outcome: Outcome = await performer.succeeded(key, ask, body, begun)
                elif isinstance(error, Exception):
                    outcome = performer.failed(key, ask, error, begun)
                else:
                    raise error
                await performer.record([outcome])
                await cancel_all(tasks)
        except asyncio.CancelledError:
            await cancel_all(tasks)
            performer.abandon([Cancelled(at=performer.now(), key=key, ask=ask)])
            raise
        performer.check_halted()
        return outcome

    async def _withdraw_below(self, key: str) -> None:
        """Withdraw the waits of losing branches after a crash."""
        for name, recorded in self._performer.past.effects.items():
            if name.startswith(f"{key}/") and recorded.intent is not None and recorded.outcome is None:
                asked = recorded.intent.ask
                if asked.kind == "await_event":
                    wait = self._signal_wait(asked.target, keys.signal_name(asked.target), None)
                    await self._waits.halting(wait.withdraw())

    # ---- other processes, and agents ---------------------------------------------------------------------------------

    @overload
    async def start(self, process: ProcessDefinition[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Child[R]: ...

    @overload
    async def start(
        self, process: ProcessDefinition[..., R], /, *args: Any, id: str | None, **kwargs: Any
    ) -> Child[R]: ...

    @overload
    async def start(self, process: str, /, *args: Any, **kwargs: Any) -> Child[Any]: ...

    async def start(self, process: Any, /, *args: Any, id: str | None = None, **kwargs: Any) -> Child[Any]:
        """Start another process, once."""
        made, own = self._processes.procedure(process), self._state.registration
        depth = 1 + (0 if own is None else own.depth)
        if depth > MAX_DEPTH:
            reason = f"it would be the {depth}th process above one another, {MAX_DEPTH} are allowed"
            raise errors.ProcessInvalid(made.name, reason)
        arguments = made.stored(args, kwargs)
        place, key = self._next_key(made.name)
        origin = self._performer.origin(key)  # the retry of a process begins the same child with the same effect
        child = keys.child_id(made.name, origin, key) if id is None else keys.check_process_id(id)
        registration = Registration(
            *(made.name, arguments, made.recovery, made.on_parent_end, self._state.journal, key, depth),
            taint=None if own is None else own.taint,
        )

        async def stop(_: str) -> None:
            await self._processes.end_child(child, f"the process {self.id} was cancelled", self._state.journal)

        async def call(_: str) -> dict[str, str]:
            registering = spawn(self._processes.register(child, registration, self._state.session))
            return {"id": await self._begin_elsewhere(registering, stop)}

        body = {"id": child, "name": made.name, "arguments": arguments}
        told = await self._effect("process", made.name, "start", body, call, at=(place, key))
        return Child(self, told["id"], made.name)

    async def _begin_elsewhere(self, beginning: asyncio.Task[T], stop: Callable[[T], Awaitable[None]]) -> T:
        """Begin a child or a turn. A cancellation of this process meanwhile stops it, too."""

        async def stop_if_cancelled() -> None:
            with suppress(errors.HoldfastError):
                begun = await beginning
                if await self._store.find_input(self._state.journal, STOP_KEY) is not None:
                    await stop(begun)

        try:
            return await asyncio.shield(beginning)
        except errors.StopRequested:
            await self._performer.until_cancelled()  # this process is being stopped
            raise
        except asyncio.CancelledError:
            spawn(stop_if_cancelled())
            raise

    async def _child_result(self, id: str, name: str) -> Any:
        place, key = self._next_key("result")
        ask = self._performer.request(key, "process", "await", {"id": id})
        source = ChildWait(self._store, keys.process_journal(id), self._processes)
        outcome = await self._waits.seek(place, key, ask, source)
        if isinstance(outcome, Failed):
            raise errors.ProcessUnknown(id)
        told = await wait_value(self._performer, outcome)
        raise_unless_completed(id, told)
        return self._processes.as_declared(name, told["value"])

    async def _cancel_child(self, id: str, reason: str) -> None:
        async def call(_: str) -> None:
            await self._processes.request_cancel(id, reason)

        await self._effect("process", "cancel", "cancel", {"id": id, "reason": reason}, call)

    async def _child_line(self, id: str) -> ProcessLine:
        async def call(_: str) -> Any:
            return msgspec.to_builtins(await self._processes.line(id))

        told = await self._effect("process", "status", "status", {"id": id}, call, Repeat.FREE)
        return msgspec.convert(told, ProcessLine)

    async def signal(self, id: str, name: str, value: object = None) -> None:
        """Signal another process, once."""
        keys.signal_prefix(self._performer.run, name)  # refuses a wrong name

        async def call(key: str) -> None:
            # Under a key: one that was sent and not recorded before a crash is not sent twice.
            known = f"{keys.RESERVED_PREFIX}sent/{self._performer.idempotency_key(key)}"
            await self._processes.send_signal(id, name, value, known)

        await self._effect("process", f"signal {name}", "signal", {"id": id, "name": name, "value": value}, call)

    async def run_agent(
        self,
        agent: Agent[Any, OutputT] | str,
        prompt: str,
        *,
        session: str | None = None,
        deadline: timedelta | float | None = None,
    ) -> OutputT:
        """Ask an agent and wait for its answer, in a new session unless you name one.

        The answer is text, or a value of the agent's `output` type. `AgentTurnFailed` when the turn did not complete.
        """
        name = agent if isinstance(agent, str) else agent.name
        check_string("prompt", prompt)
        place, key = self._next_key(f"agent {name}"[:200])
        known = self._performer.idempotency_key(key)
        asked = agent_session(self._state.id, known) if session is None else check_id("session", session)
        made = self._state.registration
        untrusted = made is not None and made.taint is not None

        async def send() -> AwaitedTurn:
            handle = self._runtime.sessions.handle(asked, agent, under=(self._state.journal, STOP_KEY))
            turn = await handle.send(prompt, key=f"process/{known}", deadline=deadline, untrusted=untrusted)
            return AwaitedTurn(asked, input_number(turn.id) or 0)

        async def stop(sent: AwaitedTurn) -> None:
            await self._processes.stop_turn(sent.session, sent.input, f"the process {self.id} was cancelled")

        async def call(_: str) -> Any:
            return msgspec.to_builtins(await self._begin_elsewhere(spawn(send()), stop))

        body = {"agent": name, "prompt": prompt, "session": session}
        told = await self._effect("process", f"agent {name}"[:200], "agent", body, call, at=(place, key))
        sent = msgspec.convert(told, AwaitedTurn)
        place, key = self._next_key("answer")
        ask = self._performer.request(key, "process", "turn", {"session": sent.session, "input": sent.input})
        source = TurnWait(self._store, self._state.journal, key, sent, self._processes)
        told = await wait_value(self._performer, await self._waits.seek(place, key, ask, source))
        if told["status"] != "completed":
            raise errors.AgentTurnFailed(sent.session, told["turn"], told["status"], told["message"])
        if not told["typed"]:
            return told["text"]
        given_by = told.get("agent") or name
        answered = self._runtime.agents.get(given_by)
        if answered is None and not isinstance(agent, str) and agent.name == given_by:
            answered = agent
        output = None if answered is None else answered.output
        if output is None or output.complaint(told["text"]) is not None:
            return told["value"]  # plain JSON: the agent is not known here, or has another type by now
        return output.load(told["text"])

    async def complete(
        self,
        model: Model | str,
        prompt: str,
        *,
        output: Any = None,  # a type or a schema
        instructions: str = "",
    ) -> Any:  # text, or a value of the type that was asked for
        """Ask a model once, without a session. The reply is recorded with its usage."""
        question = CompletionRequest(model, prompt, output, instructions)
        place, key = self._next_key(MODEL_CALL_NAME)
        turn: TurnContext[Any] = TurnContext(self._state.session or "", "", "", given_deps=self._runtime.deps)
        clean = self._performer.redactor.text
        hooked = HookRunner((), turn, guards=self._runtime.hooks, clean=clean)
        with self._waits.at_work():
            return await DirectCaller(self._performer, self._runtime.prices, hooked, question).answer(place, key)


def _close_unused(work: tuple[Awaitable[Any], ...]) -> None:
    """Close coroutines that will never run, so that Python does not warn about them."""
    for each in work:
        if inspect.iscoroutine(each):
            each.close()
