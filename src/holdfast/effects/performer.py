"""`Performer`: performs the effects of one run of one journal, or answers them from the journal.

It decides by the recorded history, checks the order, runs the effect and records its outcome. It halts for good if the
code does not fit the journal, or if the journal can't be written.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
from collections import Counter, deque
from collections.abc import Coroutine
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn, TypeAlias, TypeVar, cast

import msgspec

from holdfast.crashpoints import crash_point
from holdfast.effects.canonical import (
    as_declared,
    canonical,
    check_returns,
    decode_value,
    digest,
    encode_value,
    error_info,
    fits,
    plain,
    return_type,
)
from holdfast.effects.envelope import branch_segment, check_key, make_request, scope_of, segment
from holdfast.effects.replay import (
    Decision,
    Mismatch,
    Miss,
    Perform,
    PerformAgain,
    RecordedEffect,
    Repeat,
    ReplayCursor,
    RunHistory,
    SettleAsUnknown,
    UseRecorded,
)
from holdfast.errors import (
    BlobMissing,
    CallAbandoned,
    EffectCancelled,
    EffectFailed,
    EffectUnknown,
    Halted,
    HoldfastError,
    InvalidArgument,
    InvariantBroken,
    OrderUnknown,
    PayloadTooLarge,
    ResultTooLarge,
    RunEnded,
    ScopeBusy,
    StoreError,
    SuspensionSwallowed,
    UsageError,
)
from holdfast.names import check_choice, check_id
from holdfast.records import (
    EFFECT_KINDS,
    Cancelled,
    Cause,
    Done,
    EffectKind,
    EffectRequest,
    Ended,
    Failed,
    Intended,
    Outcome,
    Record,
    Unknown,
)
from holdfast.secrets.logs import safe_cause

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Sequence

    from holdfast.effects.drive import JournalLedger
    from holdfast.effects.replay import Drift
    from holdfast.records import Blob


T = TypeVar("T")
_MARK: Final = "_holdfast_branches"


class EffectScope:
    """A scope: its path, and how often each name was used in it."""

    __slots__ = ("_branches", "_counts", "busy", "drive", "inside", "path")

    def __init__(self, drive: Performer, path: str, *, inside: bool = False) -> None:
        self.drive = drive
        self.path = path
        self.inside = inside
        """Inside the code of an effect, which may run differently when it is performed again."""
        self.busy = False
        self._counts: dict[str, int] = {}
        self._branches = 0

    def next(self, name: str) -> str:
        """The key of the next use of `name` in this scope."""
        count = self._counts[name] = self._counts.get(name, 0) + 1
        return f"{self.path}/{segment(name, count)}"

    def branch(self, name: str) -> EffectScope:
        """The scope of the next task, which runs the coroutine called `name`."""
        self._branches += 1
        if not self.inside:
            self.drive.enter_branch(self.path, self._branches, segment(name))
        return EffectScope(
            self.drive, f"{self.path}/{branch_segment(self._branches, segment(name))}", inside=self.inside
        )


current_scope: Final[contextvars.ContextVar[EffectScope | None]] = contextvars.ContextVar(
    "holdfast_place", default=None
)
_made_for: Final[contextvars.ContextVar[int]] = contextvars.ContextVar("holdfast_made_for", default=0)


def install_task_factory(loop: asyncio.AbstractEventLoop) -> None:
    """Let `loop` give every task of driven code its own scope. Tasks of other code are not touched."""
    previous = loop.get_task_factory()
    if getattr(previous, _MARK, False):
        return

    def create(
        loop: asyncio.AbstractEventLoop,
        coro: Coroutine[Any, Any, Any] | Generator[Any, None, Any],
        **options: Any,  # noqa: ANN401  whatever this Python passes to a task factory
    ) -> asyncio.Future[Any]:
        place = current_scope.get()
        given: contextvars.Context | None = options.get("context")
        # If another library wraps our factory, and ours wraps that again, each task still gets one branch.
        if place is not None and (given is None or given.get(_made_for) != id(coro)):
            context = options["context"] = _branch_context(place, coro, given)
            if not place.inside and inspect.iscoroutine(coro):
                coro = GuardedCoroutine(coro, getattr(coro, "__qualname__", "a branch"))  # so that it can be ended
                context.run(_made_for.set, id(coro))
        task: asyncio.Future[Any] = (
            asyncio.Task(coro, loop=loop, **options) if previous is None else previous(loop, coro, **options)
        )
        if place is not None and not place.inside:
            # A task that an effect starts may serve others too, such as a connection pool. Only tasks of the driven
            # code end with the run.
            place.drive.adopt(task)
        return task

    setattr(create, _MARK, True)
    loop.set_task_factory(create)


def _branch_context(
    place: EffectScope, coro: Coroutine[Any, Any, Any] | Generator[Any, None, Any], given: contextvars.Context | None
) -> contextvars.Context:
    """The context of a new task: its usual one, with a scope of its own. `asyncio.as_completed` gets none."""
    frame = inspect.currentframe()
    try:
        for _ in range(8):
            if frame is None:
                break
            unordered = frame.f_code.co_qualname.startswith(("as_completed", "_AsCompletedIterator"))
            if unordered and frame.f_globals.get("__name__") == "asyncio.tasks":
                raise OrderUnknown  # noqa: TRY301  closed like one that the history refuses
            frame = frame.f_back
        branch = place.branch(getattr(coro, "__name__", "task"))
    except BaseException:
        coro.close()  # it will never run: no warning that it was never awaited
        raise
    context = contextvars.copy_context() if given is None else given.copy()
    context.run(current_scope.set, branch)
    context.run(_made_for.set, id(coro))
    return context


# ---- suspension ----

REFUSALS: Final = 16
"""Refusals of one task of suspended code before it is held."""
REFUSALS_IN_ALL: Final = 1_000
"""Refusals of all tasks of suspended code together."""
_released_code: Final[deque[Coroutine[Any, Any, Any]]] = deque(maxlen=1_000)
"""Held code. Garbage collection would run its exception handlers once more."""


class _NeverDone(asyncio.Future[NoReturn]):
    """The future that held code awaits."""


class SuspensionGuard:
    """Refuses effects to suspended code, and holds code that keeps asking."""

    __slots__ = ("_asked",)

    def __init__(self) -> None:
        self._asked: Counter[int] = Counter()

    async def refuse(self, error: BaseException) -> NoReturn:
        """Raise `error` in suspended code; hold the code if it keeps asking."""
        task = id(asyncio.current_task())
        self._asked[task] += 1
        if self._asked[task] > REFUSALS or self._asked.total() > REFUSALS_IN_ALL:
            await _NeverDone()
        raise error


def release_if_held(pending: object, code: Coroutine[Any, Any, Any], name: str) -> None:
    """Raise `SuspensionSwallowed` for code that is held, and keep the code from garbage collection."""
    if type(pending) is _NeverDone:
        _released_code.append(code)
        raise SuspensionSwallowed(name)


class GuardedCoroutine(Coroutine[Any, Any, T]):
    """A coroutine that ends with `SuspensionSwallowed` once its code is held; the code itself never goes on."""

    def __init__(self, code: Coroutine[Any, Any, T], name: str) -> None:
        self._code = code
        self._name = name

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  what a debugger asks of a coroutine
        return getattr(self._code, name)

    def send(self, value: Any, /) -> Any:  # noqa: ANN401
        """Resume the code."""
        pending = self._code.send(value)
        release_if_held(pending, self._code, self._name)
        return pending

    def throw(self, *error: Any) -> Any:  # noqa: ANN401
        """Resume the code with an error."""
        try:
            pending = self._code.throw(*error)
        finally:
            del error  # its traceback refers to this frame: avoid a reference cycle
        release_if_held(pending, self._code, self._name)
        return pending

    def close(self) -> None:
        """Close the code."""
        self._code.close()

    def __await__(self) -> Generator[Any, Any, T]:
        try:
            pending = self.send(None)
            while True:
                try:
                    given = yield pending
                except BaseException as error:  # noqa: BLE001  whatever it is, it is meant for the code
                    pending = self.throw(error)
                else:
                    pending = self.send(given)
        except StopIteration as ended:
            return ended.value


Call: TypeAlias = "Callable[[str], Awaitable[Any]]"
"""Runs an effect, given its key."""
_log: Final = logging.getLogger("holdfast.effects")


class Performer:
    """Performs the effects of one run of one journal."""

    def __init__(self, ledger: JournalLedger, past: RunHistory, run: str, *, strict: bool = False) -> None:
        self.run = run
        self.past = past
        self.recorded: Callable[[str], RecordedEffect | None] = past.effects.get
        """The history of a key when this drive began."""
        self.now = ledger.now
        """Wall time for records."""
        self._seconds = asyncio.get_running_loop().time
        self._ledger = ledger
        self.redactor = ledger.redactor
        self.strict = strict
        """Perform nothing: an effect that is not recorded halts the run."""
        cursor = self._cursor = ReplayCursor(past, run, strict=strict)
        self.halt = cursor.halt
        self.drifts = cursor.drifts
        self.below = cursor.below
        self.settled_below = cursor.settled_below
        self.took = cursor.took
        self.mismatch = cursor.mismatch
        self.check_complete = cursor.check_complete
        self.enter_branch = cursor.enter_branch
        self._closed: Literal["cancelled", "ended"] | None = None
        self.over = False
        """The run is closed here; code that still asks for an effect ignored its cancellation."""
        self._sealed = False
        self._tasks: dict[asyncio.Future[Any], None] = {}  # ordered: they are stopped in the order of creation
        self._abandoned: list[Record] = []
        self._abandoned_spend: Any = None
        """The spending of those records."""
        self._left: set[str] = set()
        self._causes: dict[str, Exception] = {}
        self.cause: Cause | None = None
        """The cause of the effects from here on."""
        self.iteration: int | None = None
        """The present step of a turn, or attempt of a process."""
        self.failure: Exception | None = None
        self._suspension: SuspensionGuard | None = None

    async def perform(
        self,
        key: str,
        ask: EffectRequest,
        call: Call,
        repeat: Repeat,
        returns: type[Any] | None,
        place: EffectScope,
    ) -> Any:  # noqa: ANN401
        """Answer from the journal, or perform and record. `place` is the scope of the effect."""
        if self._closed is not None or self._cursor.halted is not None:
            await self.admit()
        check_returns(returns)
        with self.occupied(place):
            decision = self.decide(key, ask, repeat, place)
            outcome = await self.recall(decision) or await self._carry_out(decision, key, ask, call)
            return await self.unwrap(outcome, ask, returns)

    @contextmanager
    def occupied(self, place: EffectScope) -> Generator[None]:
        """Let a scope do one effect at a time: the order of two at once would be random."""
        if place.busy:
            raise ScopeBusy(place.path)
        place.busy = True
        try:
            yield
        finally:
            place.busy = False

    def request(self, key: str, kind: EffectKind, target: str, body: object) -> EffectRequest:
        """The request of an effect of this run, as the journal records it."""
        check_key(key)
        check_id("target", target)
        if self.redactor.active:
            self.redactor.check("name of an effect", key)
            body = self.redactor.value(plain(body))  # stable when a secret changes
        elif not fits(body):
            body = plain(body)
        above = scope_of(key)
        cause = self.cause
        if "/" in above and not above.rpartition("/")[2].startswith("~"):
            cause = Cause("effect", above)  # it lies inside another effect, not in the run or a branch of it
        return make_request(kind, target, canonical(body), cause, self.iteration or 0)

    def place(self) -> EffectScope:
        """The scope of the running code."""
        place = current_scope.get()
        if place is None or place.drive is not self:
            message = "effects can only be asked for by the code that this boundary drives"
            raise UsageError(message)
        return place

    def root(self) -> EffectScope:
        """The scope in which the run begins."""
        return EffectScope(self, segment(self.run))

    def idempotency_key(self, key: str) -> str:
        """The key that identifies an effect to the outside world in every attempt."""
        return idempotency_key(self._ledger.store_id, self._ledger.journal, key)

    # ---- deciding ----

    def decide(self, key: str, ask: EffectRequest, repeat: Repeat, place: EffectScope | None = None) -> Decision:
        """The decision by the recorded history, for an effect of the scope `place`; a mismatch halts the run.

        The n-th effect of a scope is always the same one, except inside an effect that is performed again.
        """
        if self._cursor.halted is not None or self._closed is not None:
            self.check_running()
        if not isinstance(repeat, Repeat):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers may be untyped
            raise InvalidArgument("repeat", repeat, "a Repeat")
        decision = self._cursor.decide(key, ask, repeat)
        if place is not None and not place.inside:
            self._cursor.follow(place.path, key)
        return decision

    # ---- carrying out ----

    async def recall(self, decision: Decision) -> Outcome | None:
        """The recorded outcome; None if the effect has to be performed. One that was cancelled is cancelled again."""
        if not isinstance(decision, UseRecorded):
            return None
        if isinstance(decision.outcome, Cancelled):
            await self.until_cancelled()
        return decision.outcome

    async def _carry_out(self, decision: Decision, key: str, ask: EffectRequest, call: Call) -> Outcome:
        """Carry out a decision; answers the recorded outcome."""
        intended = not isinstance(decision, Perform) or decision.intent
        try:
            if isinstance(decision, Perform) and decision.intent:
                crash_point("effect.before_intent")
                await self.record([self.intention(key, ask)])
                crash_point("effect.after_intent")
            outcome = await self.outcome(decision, key, ask, call)
            crash_point("effect.before_outcome")
            await self.record([outcome])
            crash_point("effect.after_outcome")
            return outcome  # noqa: TRY300  its handler raises
        except asyncio.CancelledError:
            self.abandon([Cancelled(at=self.now(), key=key, ask=None if intended else ask)])
            raise

    async def until_cancelled(self) -> None:
        """Wait for the cancellation that ended this effect before: the same timeout or sibling cancels it again."""
        await asyncio.get_running_loop().create_future()

    def abandon(self, noted: list[Record], spend: Any = None) -> None:  # noqa: ANN401
        """Queue the records of an effect whose caller was cancelled, to be written before the next records.

        If the whole drive is cancelled they are dropped: the next drive performs the effect again. `spend` is the
        spending of the records.
        """
        if self._cursor.halted is None and self._closed != "cancelled" and not self.strict:
            left = tuple(f"{key}/" for key in self._left)
            kept = [record for record in noted if not getattr(record, "key", "").startswith(left)]
            self._abandoned.extend(kept)
            if kept and spend is not None:
                self._abandoned_spend = spend if self._abandoned_spend is None else self._abandoned_spend + spend

    def leave(self, key: str) -> None:
        """Leave the effect `key` to be performed again: no effect inside it counts as cancelled."""
        self._left.add(key)

    async def outcome(self, decision: Decision, key: str, ask: EffectRequest, call: Call) -> Outcome:
        """Perform as decided; answers an outcome that is not recorded yet."""
        match decision:
            case UseRecorded(outcome):
                return outcome
            case SettleAsUnknown():
                return Unknown(at=self.now(), key=key)
            case PerformAgain():
                await self._confirm()
                return await self.attempt(key, None, call)
            case Perform(intent):
                await self._confirm()
                return await self.attempt(key, None if intent else ask, call)
            case Mismatch() | Miss():
                message = f"{decision!r} must have stopped the run"
                raise InvariantBroken(message)

    async def _confirm(self) -> None:
        """Make sure of the lease before an effect: another driver may have taken over during a long pause.

        That driver may have performed the effect, or recorded its outcome as unknown; then it must not happen later.
        """
        try:
            await self._ledger.confirm()
        except HoldfastError as error:
            raise self.halt(error) from error
        self.check_running()

    def intention(self, key: str, ask: EffectRequest) -> Intended:
        """The record of an effect that is about to be performed."""
        return Intended(at=self.now(), key=key, ask=ask)

    async def attempt(self, key: str, ask: EffectRequest | None, call: Call) -> Outcome:
        """Run the effect; answers an outcome that is not recorded yet. Cancellation passes through."""
        crash_point("effect.before_run")
        token = current_scope.set(EffectScope(self, key, inside=True))
        begun = self._seconds()
        try:
            value = call(key)
            if inspect.isawaitable(value):
                value = await value
            crash_point("effect.after_run")
            body = encode_value(value)
            if self.redactor.active:
                body = self.redactor.bytes(body)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # This task was not cancelled: something that the effect awaited was, which is an ordinary failure.
            return self.failed(key, ask, RuntimeError(f"what it waited for was cancelled {error}".rstrip()), begun)
        except Exception as error:  # noqa: BLE001  whatever the effect raised is its outcome
            return self.failed(key, ask, error, begun)
        finally:
            current_scope.reset(token)
        return await self.succeeded(key, ask, body, begun)

    def done_with(
        self,
        key: str,
        ask: EffectRequest | None,
        body: bytes,
        begun: float = 0.0,
        refs: tuple[Blob, ...] = (),
        kept: tuple[Blob, ...] = (),
    ) -> Done | None:
        """The outcome of an effect with this result and its blobs; None if the result is too large for the record."""
        if self.redactor.active:
            body = self.redactor.bytes(body, numbers=False)
        if len(body) > self._ledger.inline_bytes:
            return None
        ms = round((self._seconds() - begun) * 1000) if begun else 0
        return Done(at=self.now(), key=key, ask=ask, value=msgspec.Raw(body), ms=ms, refs=refs, kept=kept)

    async def succeeded(
        self,
        key: str,
        ask: EffectRequest | None,
        body: bytes,
        begun: float = 0.0,
        refs: tuple[Blob, ...] = (),
        kept: tuple[Blob, ...] = (),
    ) -> Outcome:
        """The outcome of an effect with this result; a large one becomes a blob. Without `begun` it took no time."""
        done = self.done_with(key, ask, body, begun, refs, kept)
        if done is not None:
            return done
        now, ms = self.now(), round((self._seconds() - begun) * 1000) if begun else 0
        try:
            body = self.redactor.bytes(body, numbers=False)
            blob = await self._ledger.put_blob(body)
            return Done(at=now, key=key, ask=ask, blob=blob, ms=ms, refs=refs, kept=kept)
        except StoreError as error:
            # A failure of the store, not of the effect: it must not become the recorded outcome.
            raise self.halt(error) from error
        except PayloadTooLarge as error:
            # The message must say that the effect has happened.
            return self.failed(key, ask, ResultTooLarge("a value", error.size, error.limit), begun)
        except UsageError as error:
            lost = RuntimeError(f"it ran to its end and took effect, but what it gave can't be kept: {error}")
            return self.failed(key, ask, lost, begun)

    def failed(self, key: str, ask: EffectRequest | None, error: Exception, begun: float) -> Failed:
        """The outcome of an effect that raised."""
        hidden = safe_cause(error, self.redactor)
        self._causes[key] = hidden
        info = error_info(error, self.redactor.text)
        ms = round((self._seconds() - begun) * 1000) if begun else 0
        return Failed(at=self.now(), key=key, ask=ask, error=info, ms=ms)

    async def record(self, added: list[Record]) -> int:
        """Append and wait for durability; answers the last sequence. A refusal of the store halts the run."""
        seq, durable = self.submit(added)
        await self.durable(durable)
        return seq

    def submit(
        self,
        added: list[Record],
        *,
        patient: bool = False,
        notify: Sequence[Any] = (),
        consume: Sequence[str] = (),
        spend: Any = None,  # noqa: ANN401
    ) -> tuple[int, Awaitable[object]]:
        """Append without waiting; answers the last sequence, and an awaitable for durability."""
        if self._cursor.halted is not None:
            raise Halted(self._cursor.halted)
        if self._sealed:
            raise RunEnded(self.run)
        if self._abandoned:
            noted, self._abandoned = self._abandoned, []
            added = [*noted, *added]
            if self._abandoned_spend is not None:
                spend = self._abandoned_spend if spend is None else self._abandoned_spend + spend
                self._abandoned_spend = None
        try:
            return self._ledger.append(added, patient=patient, notify=notify, consume=consume, spend=spend)
        except HoldfastError as error:
            raise self.halt(error) from error

    async def seal(
        self,
        ended: Ended,
        before: list[Record] | None = None,
        *,
        notify: Sequence[Any] = (),
        spend: Any = None,  # noqa: ANN401
    ) -> None:
        """Record the end of the run, after the records `before`. The run records nothing after that.

        `notify` adds notifications in the same commit, `spend` is the spending of the records.
        """
        _, durable = self.submit([*(before or ()), ended], notify=notify, spend=spend)
        self._sealed = True
        await self.durable(durable)

    async def durable(self, pending: Awaitable[object]) -> None:
        """Wait for durability; a cancellation is raised only after the commit."""
        future = asyncio.ensure_future(pending)
        cancelled: asyncio.CancelledError | None = None
        while not future.done():
            try:
                await asyncio.shield(future)
            except asyncio.CancelledError as error:
                cancelled = error
            except HoldfastError:
                break
        if (failure := future.exception()) is not None:
            if isinstance(failure, HoldfastError):
                raise self.halt(failure) from failure
            raise failure
        if cancelled is not None:
            raise cancelled

    async def unwrap(self, outcome: Outcome, ask: EffectRequest, returns: type[Any] | None) -> Any:  # noqa: ANN401
        """The value of an outcome, or its error; the same in every replay."""
        match outcome:
            case Done(blob=None):
                return decode_value(bytes(outcome.value), returns)
            case Done():
                return decode_value(await self.large(cast("Blob", outcome.blob)), returns)
            case Failed():
                cause = self._causes.pop(outcome.key, None)
                raise EffectFailed(outcome.key, outcome.error.kind, outcome.error.message) from cause
            case Unknown():
                raise EffectUnknown(outcome.key, ask.target)
            case Cancelled():
                raise EffectCancelled(outcome.key)

    async def keep(self, body: bytes) -> Blob:
        """Store bytes that an outcome will refer to."""
        try:
            return await self._ledger.put_blob(body)
        except StoreError as error:
            raise self.halt(error) from error

    def keep_soon(self, body: bytes) -> Blob:
        """Queue bytes that the next record refers to; they are durable when it is."""
        try:
            return self._ledger.queue_blob(body)
        except StoreError as error:
            raise self.halt(error) from error

    async def large(self, blob: Blob) -> bytes:
        """The bytes of a blob; a missing blob halts the run."""
        body = await self._ledger.blob(blob.digest)
        if body is None:
            raise self.halt(BlobMissing(blob.digest))
        return body

    async def read_value(self, done: Done) -> bytes:
        """The JSON of a recorded value, inline or from its blob."""
        return bytes(done.value) if done.blob is None else await self.large(done.blob)

    async def with_value(self, done: Done) -> Done:
        """The outcome with its value inline, as code reads it."""
        if done.blob is None:
            return done
        return msgspec.structs.replace(done, value=msgspec.Raw(await self.large(done.blob)), blob=None)

    # ---- stopping ----

    def check_halted(self) -> None:
        """Raise `Halted` if the run is halted."""
        if self._cursor.halted is not None:
            raise Halted(self._cursor.halted)

    def check_running(self) -> None:
        """Raise if the run was halted or cancelled, or has ended."""
        if self.over and self._closed == "cancelled":
            raise self.abandoned()
        self.check_halted()
        if self._closed == "cancelled":
            message = "the drive was cancelled"
            raise asyncio.CancelledError(message)
        if self._closed == "ended":
            raise RunEnded(self.run)

    async def admit(self) -> None:
        """Raise as `check_running` does; code that keeps asking after that is held."""
        try:
            self.check_running()
        except (Halted, RunEnded, asyncio.CancelledError) as error:
            if self._suspension is None:
                self._suspension = SuspensionGuard()
            await self._suspension.refuse(error)

    def adopt(self, task: asyncio.Future[Any]) -> None:
        """Register a task of the driven code; `close` cancels it."""
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))

    async def close(self, how: Literal["cancelled", "ended"]) -> None:
        """Refuse new effects; cancel the remaining tasks and wait for them."""
        self._closed = self._closed or how
        while self._tasks:
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        self.over = True
        self._causes.clear()  # an exception keeps the frames that it passed, and these keep the performer

    @property
    def cancelled(self) -> bool:
        """True if the drive was cancelled."""
        return self._closed == "cancelled"

    def abandoned(self) -> CallAbandoned:
        """The error for code that goes on after its run was closed here."""
        error = CallAbandoned(self.run)
        _log.warning("a function of %s of %s goes on: %s", self.run, self._ledger.journal, error)
        return error

    def refuse(self) -> None:
        """Refuse new effects, because the drive is being cancelled."""
        self._closed = "cancelled"

    @property
    def behind(self) -> int:
        """Number of submitted records that are not durable yet."""
        return self._ledger.behind


def idempotency_key(store: str, journal: str, key: str) -> str:
    """The idempotency key of the effect `key` of a journal."""
    return digest("idempotency", [store, journal, key])[:40]


class EffectContext:
    """The context of the code that performs an effect."""

    __slots__ = ("_boundary", "key")

    def __init__(self, boundary: Boundary, key: str) -> None:
        self._boundary = boundary
        self.key = key

    @property
    def idempotency_key(self) -> str:
        """The same in every attempt of this effect, and different from every other effect of any store."""
        return self._boundary.performer.idempotency_key(self.key)

    async def step(self, name: str, function: Callable[..., Any], *args: object, **options: Any) -> Any:  # noqa: ANN401
        """Run a sub-step once, under a key that does not depend on the attempt."""
        return await self._boundary.step(name, function, *args, **options)


class Boundary:
    """Performs effects for driven code."""

    def __init__(self, performer: Performer) -> None:
        self.performer = performer
        """Internal; not for driven code."""

    @property
    def drifts(self) -> Sequence[Drift]:
        """Effects so far whose content differs from their record; their kinds keep the recorded outcome."""
        return self.performer.drifts

    async def step(
        self,
        name: str,
        function: Callable[..., Any],
        *args: object,
        repeat: Repeat = Repeat.FREE,
        returns: type[Any] | None = None,
    ) -> Any:  # noqa: ANN401  whatever the function gives, after its way through JSON
        """Call `function(*args)` once and record its value; after a crash the recorded value is the answer.

        An interrupted step runs again from its beginning, unless `repeat` is `Repeat.NEVER`. The function gets no
        idempotency key: use `effect` for what must not happen twice in the world. A plain function runs in a thread.
        The value has the type `returns`, or the declared return type of the function.
        """
        if not callable(function):
            raise InvalidArgument("function", function, "something to call")

        async def call(_: EffectContext) -> Any:  # noqa: ANN401
            if inspect.iscoroutinefunction(function):
                return await function(*args)
            value = await asyncio.to_thread(function, *args)
            return await value if inspect.isawaitable(value) else value

        value = await self.effect("step", name, call, body=list(args), repeat=repeat, returns=returns)
        wanted = None if returns is not None else return_type(function)
        return value if wanted is None else as_declared(value, wanted)

    async def effect(
        self,
        kind: EffectKind,
        name: str,
        run: Callable[[EffectContext], Awaitable[Any]],
        *,
        target: str | None = None,
        body: object = None,
        repeat: Repeat = Repeat.NEVER,
        returns: type[Any] | None = None,
    ) -> Any:  # noqa: ANN401
        """Perform the next effect called `name` in the scope of the running code."""
        performer = self.performer
        place = performer.place()
        key = place.next(check_id("effect name", name))
        check_choice("effect kind", kind, EFFECT_KINDS)
        ask = performer.request(key, kind, name if target is None else target, body)
        return await performer.perform(key, ask, self._call(run), repeat, returns, place)

    def _call(self, run: Callable[[EffectContext], Awaitable[Any]]) -> Call:
        if not callable(run):
            raise InvalidArgument("effect", run, "something to call")
        return lambda key: run(EffectContext(self, key))
