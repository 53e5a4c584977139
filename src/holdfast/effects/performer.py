"""`Performer`: performs the effects of one run of one journal, or answers them from the journal, and records them.

It decides by the recorded history, checks the order, runs the effect and records its outcome. It halts for good if the
code does not fit the journal, or if the journal can't be written.

A submitted record has its place in the journal at once; no later record becomes durable without it. Wait for durability
as late as possible: before an effect that must not happen twice, and before showing the end of the run.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast

import msgspec

from holdfast import errors, records
from holdfast.clock import Stopwatch, wall_clock
from holdfast.crashpoints import crash_point
from holdfast.effects import replay
from holdfast.effects.canonical import (
    canonical,
    check_returns,
    decode_value,
    digest,
    encode_value,
    error_info,
    fits,
    plain,
)
from holdfast.effects.keys import check_key, scope_of, segment
from holdfast.effects.scopes import EffectScope, SuspensionGuard, current_scope
from holdfast.logs import log_event
from holdfast.names import check_id
from holdfast.secrets.logs import safe_cause, safe_trace
from holdfast.store.contract import Head, Lease, blob_digest
from holdfast.store.spending import DAY_MS, Spend

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence

    from holdfast.store import Notify
    from holdfast.store.client import Store
    from holdfast.telemetry.tracer import JournalTrace


MAX_BEHIND: Final = 256
"""Records of one run that may wait for the disk when the next effect begins."""
_CONFIRMATIONS: Final = 5
"""Consecutive renewals, if each answer takes longer than the term of the lease."""
Call: TypeAlias = "Callable[[str], Awaitable[Any]]"
"""Runs an effect, given its key."""
_log: Final = logging.getLogger("holdfast.effects")


_NO_SPAN: Final = nullcontext()
RECENT: Final = 64
"""Records that a drive caches for its watchers."""


class LeasedJournal:
    """The journal of a driven run: writes in order, under one lease."""

    def __init__(self, store: Store, lease: Lease, on_durable: Callable[[str], None] | None = None) -> None:
        self.journal = lease.journal
        self.birthplace = lease.born or store.id
        self.inline_bytes = store.limits.inline_bytes
        self.redactor = store.redactor
        self.put_blob, self.queue_blob, self.blob = store.put_blob, store.queue_blob, store.blob
        self._store = store
        self.epoch = lease.epoch
        self._lease = lease
        self._on_durable = on_durable
        self.now = wall_clock(store.clock)
        self.head = lease.head
        """The head with the records that are not durable yet."""
        self.behind = 0
        """Number of submitted records that are not durable yet."""
        self.recent: deque[tuple[int, records.Record]] = deque(maxlen=RECENT)
        """The newest records with their sequences, also before they are durable; saves watchers a read."""
        self.wakes = lease.wakes
        """The wake count of the journal at the last durable append."""
        self.on_wake: Callable[[int], None] | None = None
        """Called with `wakes` after an append that found new ones, before its waiters continue."""
        self.attend: Callable[[], Awaitable[None]] | None = None
        """Checks new inputs of the journal before an effect; does not return if the run must stop."""
        self.note: Callable[[records.Record], None] | None = None
        """Called with each record that the store accepts for writing."""
        self.watch: Stopwatch | None = None
        """Counts the working time of a session up to the last append."""
        self.trace: JournalTrace | None = None
        """The trace of this journal; None without telemetry."""

    def append(
        self,
        added: list[records.Record],
        *,
        patient: bool = False,
        notify: Sequence[Notify] = (),
        consume: Sequence[str] = (),
        spend: Spend | None = None,
    ) -> asyncio.Future[Head]:
        watch = self.watch
        taken = () if watch is None else [watch.take(record) for record in added]
        worked = [span for span in taken if span is not None]
        # A failure must reach the callback even if the caller does not wait: all later appends will fail too.
        then = self._appended
        future = self._store.append_own(self._lease, added, self.head, patient, notify, spend, worked, consume, then)
        if future.done() and (refusal := future.exception()) is not None:
            raise refusal  # not queued, so no later append may follow
        self.recent.extend(enumerate(added, self.head + 1))
        self.head += len(added)
        self.behind += len(added)
        if self.note is not None:
            for record in added:
                self.note(record)
        return future

    def _appended(self, future: asyncio.Future[Head]) -> None:
        if not future.cancelled() and future.exception() is None:
            durable, wakes = future.result()
            self.behind = self.head - durable
            if wakes > self.wakes:
                self.wakes = wakes
                if self.on_wake is not None:
                    self.on_wake(wakes)
        if self._on_durable is not None:
            self._on_durable(self.journal)

    async def confirm(self) -> None:
        """Raise if another driver may have taken over this journal, then attend to its inbox."""
        for _ in range(_CONFIRMATIONS):
            if self._store.surely_holds(self._lease):
                break
            await self._store.renew(self._lease)  # the answer may come after the term
        else:
            if not self._store.surely_holds(self._lease):
                message = f"the lease on {self.journal!r} runs out before the store has confirmed it"
                raise errors.StoreBusy(message)
        if self.attend is not None:
            await self.attend()

    async def past(self) -> replay.RunHistory:
        past = await read_history(self._store, self.journal)
        if past.records != self.head:
            raise errors.HeadConflict(self.journal, self.head, past.records)
        return past


class RecordedJournal:
    """The journal of a replay: refuses to write."""

    def __init__(self, store: Store, journal: str, birthplace: str) -> None:
        self.journal = journal
        self.birthplace = birthplace
        self.inline_bytes = store.limits.inline_bytes
        self.redactor = store.redactor
        self._store = store
        self.now = wall_clock(store.clock)
        self._kept: dict[str, bytes] = {}
        self.behind = 0
        self.trace: JournalTrace | None = None

    def append(self, added: list[records.Record], **_: object) -> Awaitable[object]:
        raise errors.ReplayMiss(getattr(added[0], "key", self.journal))

    async def confirm(self) -> None:
        """A replay performs nothing."""

    async def put_blob(self, body: bytes) -> records.Blob:
        return self.queue_blob(body)

    def queue_blob(self, body: bytes) -> records.Blob:
        self._kept[blob_digest(body)] = body
        return records.Blob(blob_digest(body), len(body))

    async def blob(self, digest: str) -> bytes | None:
        return self._kept.get(digest) or await self._store.blob(digest)


async def read_history(store: Store, journal: str) -> replay.RunHistory:
    """The stored history of a journal."""
    past = replay.RunHistory()
    async for entry in store.read_all(journal):
        past.add(entry.record)
    return past


JournalLedger: TypeAlias = LeasedJournal | RecordedJournal


async def call_function(function: Callable[..., Any], *args: object, **kwargs: object) -> Any:
    """Call the function of a step. A plain function runs in a thread."""
    if inspect.iscoroutinefunction(function):
        return await function(*args, **kwargs)
    value = await asyncio.to_thread(function, *args, **kwargs)
    return await value if inspect.isawaitable(value) else value


class Performer:
    """Performs the effects of one run of one journal."""

    def __init__(self, ledger: JournalLedger, past: replay.RunHistory, run: str, *, strict: bool = False) -> None:
        self.run = run
        self.past = past
        self.recorded: Callable[[str], replay.RecordedEffect | None] = past.effects.get
        """The history of a key before this drive."""
        self.now = ledger.now
        """Wall time for records."""
        self._loop = asyncio.get_running_loop()
        self._seconds = self._loop.time
        self._ledger = ledger
        self.redactor = ledger.redactor
        self.strict = strict
        """Perform nothing: an effect without a record halts the run."""
        cursor = self._cursor = replay.ReplayCursor(past, run, strict=strict)
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
        """The run is closed here; code that requests an effect after that ignored its cancellation."""
        self._sealed = False
        self._tasks: dict[asyncio.Future[Any], None] = {}  # ordered: stopped in the order of creation
        self._abandoned: list[records.Record] = []
        self._abandoned_spend: Any = None
        """The spending of those records."""
        self._gathered: list[records.Record] = []
        """Outcomes of tool calls that end in this round of the loop, each after its other records."""
        self._gathered_calls = 0
        """Number of outcomes among them."""
        self._gathered_day = 0
        """Start of the day on which the gathered calls are spent."""
        self._durable: Awaitable[object] | None = None
        """Done when all submitted records are durable."""
        self._left: set[str] = set()
        self._causes: dict[str, Exception] = {}
        self.cause: records.Cause | None = None
        """The cause of the effects from here on."""
        self.iteration: int | None = None
        """The present step of a turn, or attempt of a process."""
        self.failure: Exception | None = None
        self.journal_of: Callable[[str], str] | None = None
        """The journal that names an effect to the outside world, in the retry of another process."""
        self.birthplaces: Mapping[str, str] = {}
        """The stores in which the journals of `journal_of` were made, except that of this one."""
        self.trace = ledger.trace
        """The trace of the journal; None without telemetry."""
        self._suspension: SuspensionGuard | None = None

    async def perform(
        self,
        key: str,
        ask: records.EffectRequest,
        call: Call,
        repeat: replay.Repeat,
        returns: type[Any] | None,
        place: EffectScope,
    ) -> Any:
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
        """Let a scope do one effect at a time: the order of two would be random."""
        if place.busy:
            raise errors.ScopeBusy(place.path)
        place.busy = True
        try:
            yield
        finally:
            place.busy = False

    def request(self, key: str, kind: records.EffectKind, target: str, body: object) -> records.EffectRequest:
        """The request of an effect, as the journal records it."""
        check_key(key)
        if kind != "step":  # the target of a step is its name, which its scope has checked
            check_id("target", target)
        if self.redactor.active:
            self.redactor.check("name of an effect", key)
            body = self.redactor.value(plain(body))  # the same after a change of a secret
        elif not fits(body):
            body = plain(body)
        above = scope_of(key)
        cause = self.cause
        if "/" in above and not above.rpartition("/")[2].startswith("~"):
            cause = records.Cause("effect", above)  # inside another effect, not in the run or a branch
        return replay.make_request(kind, target, canonical(body), cause, self.iteration or 0)

    def place(self) -> EffectScope:
        place = current_scope.get()
        if place is None or place.drive is not self:
            message = "effects can only be asked for by the code that this boundary drives"
            raise errors.UsageError(message)
        return place

    def root(self) -> EffectScope:
        return EffectScope(self, segment(self.run))

    def idempotency_key(self, key: str) -> str:
        """The key that identifies an effect to the outside world in every attempt."""
        journal = self.origin(key)
        return idempotency_key(self.birthplaces.get(journal, self._ledger.birthplace), journal, key)

    def origin(self, key: str) -> str:
        """The journal that names the effect `key` to the outside world: this one, except in a retry."""
        return self._ledger.journal if self.journal_of is None else self.journal_of(key)

    # ---- deciding ----

    def decide(
        self, key: str, ask: records.EffectRequest, repeat: replay.Repeat, place: EffectScope | None = None
    ) -> replay.Decision:
        """Decide about the next effect of the scope `place` by the history; a mismatch halts the run.

        The order of effects in a scope is fixed, except inside an effect that is performed again.
        """
        if self._cursor.halted is not None or self._closed is not None:
            self.check_running()
        if not isinstance(repeat, replay.Repeat):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers may be untyped
            raise errors.InvalidArgument("repeat", repeat, "a Repeat")
        decision = self._cursor.decide(key, ask, repeat)
        if place is not None and not place.inside:
            self._cursor.follow(place.path, key)
        return decision

    # ---- carrying out ----

    async def recall(self, decision: replay.Decision) -> records.Outcome | None:
        """The recorded outcome; None if the effect must be performed. A recorded cancellation cancels it again."""
        if not isinstance(decision, replay.UseRecorded):
            return None
        if isinstance(decision.outcome, records.Cancelled):
            await self.until_cancelled()
        return decision.outcome

    async def _carry_out(
        self, decision: replay.Decision, key: str, ask: records.EffectRequest, call: Call
    ) -> records.Outcome:
        """Carry out a decision; answers the recorded outcome."""
        intended = not isinstance(decision, replay.Perform) or decision.intent
        try:
            if isinstance(decision, replay.Perform) and decision.intent:
                crash_point("effect.before_intent")
                await self.record([self.intention(key, ask)])
                crash_point("effect.after_intent")
            outcome = await self.outcome(decision, key, ask, call)
            crash_point("effect.before_outcome")
            await self.record([outcome])
            crash_point("effect.after_outcome")
            return outcome  # noqa: TRY300  the handler raises
        except asyncio.CancelledError:
            self.abandon([records.Cancelled(at=self.now(), key=key, ask=None if intended else ask)])
            raise

    async def until_cancelled(self) -> None:
        """Wait for the recorded cancellation: the same timeout or sibling cancels the effect again."""
        await asyncio.get_running_loop().create_future()

    def abandon(self, noted: list[records.Record], spend: Any = None) -> None:
        """Queue the records of an effect whose caller was cancelled; they precede the next records.

        If the whole drive is cancelled they are dropped, and the next drive performs the effect again. `spend` is the
        spending of the records.
        """
        if self._cursor.halted is None and self._closed != "cancelled" and not self.strict:
            left = tuple(f"{key}/" for key in self._left)
            kept = [record for record in noted if not getattr(record, "key", "").startswith(left)]
            self._abandoned.extend(kept)
            if kept and spend is not None:
                self._abandoned_spend = spend if self._abandoned_spend is None else self._abandoned_spend + spend

    def leave(self, key: str) -> None:
        """Leave the effect `key` for a new attempt: no effect inside it counts as cancelled."""
        self._left.add(key)

    async def outcome(
        self, decision: replay.Decision, key: str, ask: records.EffectRequest, call: Call
    ) -> records.Outcome:
        """Perform as decided; answers the outcome, unrecorded."""
        match decision:
            case replay.UseRecorded(outcome):
                return outcome
            case replay.SettleAsUnknown():
                return records.Unknown(at=self.now(), key=key)
            case replay.PerformAgain():
                await self._confirm()
                return await self.attempt(key, None, call)
            case replay.Perform(intent):
                await self._confirm()
                return await self.attempt(key, None if intent else ask, call)

    async def _confirm(self) -> None:
        """Confirm the lease before an effect: another driver may have taken over during a long pause.

        It may have performed the effect, or recorded its outcome as unknown, so this process must not perform it.
        """
        try:
            await self._ledger.confirm()
        except errors.HoldfastError as error:
            raise self.halt(error) from error
        self.check_running()

    def intention(self, key: str, ask: records.EffectRequest) -> records.Intended:
        """The record of an effect before it is performed."""
        return records.Intended(at=self.now(), key=key, ask=ask)

    def spanning(self, key: str) -> AbstractContextManager[object]:
        """Make the span of the effect `key` the current one inside the block, if there is telemetry."""
        return _NO_SPAN if self.trace is None else self.trace.current(key)

    async def attempt(self, key: str, ask: records.EffectRequest | None, call: Call) -> records.Outcome:
        """Run the effect; answers the outcome, unrecorded. Cancellation passes through."""
        crash_point("effect.before_run")
        token = current_scope.set(EffectScope(self, key, inside=True))
        begun = self._seconds()
        try:
            with self.spanning(key):
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
            # Not a cancellation of this task but of something it awaited: an ordinary failure.
            return self.failed(key, ask, RuntimeError(f"what it waited for was cancelled {error}".rstrip()), begun)
        except Exception as error:  # any error is an outcome
            return self.failed(key, ask, error, begun)
        finally:
            current_scope.reset(token)
        return await self.succeeded(key, ask, body, begun)

    def done_with(
        self,
        key: str,
        ask: records.EffectRequest | None,
        body: bytes,
        begun: float = 0.0,
        refs: tuple[records.Blob, ...] = (),
        kept: tuple[records.Blob, ...] = (),
    ) -> records.Done | None:
        """The outcome with this result and its blobs; None if the result is too large for the record."""
        if self.redactor.active:
            body = self.redactor.bytes(body, numbers=False)
        if len(body) > self._ledger.inline_bytes:
            return None
        ms = round((self._seconds() - begun) * 1000) if begun else 0
        return records.Done(at=self.now(), key=key, ask=ask, value=msgspec.Raw(body), ms=ms, refs=refs, kept=kept)

    async def succeeded(
        self,
        key: str,
        ask: records.EffectRequest | None,
        body: bytes,
        begun: float = 0.0,
        refs: tuple[records.Blob, ...] = (),
        kept: tuple[records.Blob, ...] = (),
    ) -> records.Outcome:
        """The outcome with this result; a large one becomes a blob. Without `begun` its duration is 0."""
        done = self.done_with(key, ask, body, begun, refs, kept)
        if done is not None:
            return done
        now, ms = self.now(), round((self._seconds() - begun) * 1000) if begun else 0
        try:
            body = self.redactor.bytes(body, numbers=False)
            blob = await self._ledger.put_blob(body)
            return records.Done(at=now, key=key, ask=ask, blob=blob, ms=ms, refs=refs, kept=kept)
        except errors.StoreError as error:
            # The store failed, not the effect: this must not become the recorded outcome.
            raise self.halt(error) from error
        except errors.PayloadTooLarge as error:
            # The message must say that the effect happened.
            return self.failed(key, ask, errors.ResultTooLarge("a value", error.size, error.limit), begun)
        except errors.UsageError as error:
            lost = RuntimeError(f"it ran to its end and took effect, but what it gave can't be kept: {error}")
            return self.failed(key, ask, lost, begun)

    def failed(self, key: str, ask: records.EffectRequest | None, error: Exception, begun: float) -> records.Failed:
        """The outcome of an effect that raised; its traceback is logged here, once."""
        hidden, trace = safe_cause(error, self.redactor), safe_trace(error, self.redactor)
        self._causes[key] = hidden
        info = error_info(error, self.redactor.text)
        if not isinstance(error, errors.EffectFailed):  # that was logged as the effect below failed
            said, raised = f"{info.kind}: {info.message}", error if trace else None
            fields = {"journal": self._ledger.journal, "effect": key, "error": said}
            log_event(_log, logging.WARNING, "effect failed", raised=raised, **fields)
        ms = round((self._seconds() - begun) * 1000) if begun else 0
        return records.Failed(at=self.now(), key=key, ask=ask, error=info, ms=ms, trace=trace)

    def submit(
        self,
        added: list[records.Record],
        *,
        patient: bool = False,
        notify: Sequence[Notify] = (),
        consume: Sequence[str] = (),
        spend: Spend | None = None,
    ) -> None:
        """Submit records in order.

        `patient`: no caller waits for them soon. The same commit consumes the waits `consume`, adds the notifications
        `notify` and counts `spend`.
        """
        if self._cursor.halted is not None:
            raise errors.Halted(self._cursor.halted)
        if self._sealed:
            raise errors.RunEnded(self.run)
        if self._gathered:
            if added and not self._gathered_day <= added[-1].at < self._gathered_day + DAY_MS:
                self.submit([], patient=True)
            else:
                added, self._gathered = [*self._gathered, *added], []
                calls, self._gathered_calls = Spend(tool_calls=self._gathered_calls), 0
                spend = calls if spend is None else spend + calls
        if self._abandoned:
            added, self._abandoned = [*self._abandoned, *added], []
            if self._abandoned_spend is not None:
                spend = self._abandoned_spend if spend is None else self._abandoned_spend + spend
                self._abandoned_spend = None
        if not added:
            return
        try:
            self._durable = self._ledger.append(added, patient=patient, notify=notify, consume=consume, spend=spend)
        except errors.HoldfastError as error:
            raise self.halt(error) from error

    def gather(self, outcome: records.Record, beside: Sequence[records.Record] = ()) -> None:
        """Submit the outcome of a tool call together with others of this round of the loop.

        The records `beside` it come right before it in the journal, in the same commit.
        """
        if not self._gathered:
            self._loop.call_soon(self.flush)
        if not self._gathered_day <= outcome.at < self._gathered_day + DAY_MS:
            self.flush()
            self._gathered_day = outcome.at - outcome.at % DAY_MS
        self._gathered.extend(beside)
        self._gathered.append(outcome)
        self._gathered_calls += 1

    def flush(self) -> None:
        if not self._gathered:
            return
        try:
            self.submit([], patient=True)
        except (errors.Halted, errors.HoldfastError):
            pass  # the run is halted; its next effect raises
        except Exception as error:  # nothing may continue without these records
            broken = errors.InvariantBroken(f"the results of tool calls can't be recorded: {error!r}")
            broken.__cause__ = error
            self.halt(broken)

    async def settle(self) -> None:
        """Wait until all submitted records are durable; raises a cancellation only after the commit."""
        self.flush()
        if self._durable is None:
            return
        future = self._durable = asyncio.ensure_future(self._durable)  # shared with other waiting tasks
        cancelled: asyncio.CancelledError | None = None
        while not future.done():
            try:
                await asyncio.shield(future)
            except asyncio.CancelledError as error:
                cancelled = error
            except errors.HoldfastError:
                break
        if (failure := future.exception()) is not None:
            if isinstance(failure, errors.HoldfastError):
                raise self.halt(failure) from failure
            raise failure
        if self._durable is future:
            self._durable = None
        if cancelled is not None:
            raise cancelled

    async def record(self, added: list[records.Record], *, spend: Spend | None = None) -> None:
        """Submit records and wait until they are durable. A refusal of the store halts the run."""
        self.submit(added, spend=spend)
        await self.settle()

    @property
    def is_behind(self) -> bool:
        """True if too many records wait for the disk: they are lost if the process dies."""
        return self._ledger.behind > MAX_BEHIND

    async def seal(self, *added: records.Record, notify: Sequence[Notify] = (), spend: Spend | None = None) -> None:
        """Record the end of the run, after other records; nothing follows it.

        `notify` adds notifications in the same commit, `spend` is the spending of the records.
        """
        self.submit([*added], notify=notify, spend=spend)
        self._sealed = True
        await self.settle()

    async def unwrap(self, outcome: records.Outcome, ask: records.EffectRequest, returns: type[Any] | None) -> Any:
        """The value of an outcome, or its error; the same in every replay."""
        match outcome:
            case records.Done(blob=None):
                return decode_value(bytes(outcome.value), returns)
            case records.Done():
                return decode_value(await self.large(cast("records.Blob", outcome.blob)), returns)
            case records.Failed():
                cause = self._causes.pop(outcome.key, None)
                raise errors.EffectFailed(outcome.key, outcome.error.kind, outcome.error.message) from cause
            case records.Unknown():
                raise errors.EffectUnknown(outcome.key, ask.target)
            case records.Cancelled():
                raise errors.EffectCancelled(outcome.key)

    async def keep(self, body: bytes) -> records.Blob:
        """Store bytes for an outcome."""
        try:
            return await self._ledger.put_blob(body)
        except errors.StoreError as error:
            raise self.halt(error) from error

    def keep_soon(self, body: bytes) -> records.Blob:
        """Queue bytes for the next record; both become durable together."""
        try:
            return self._ledger.queue_blob(body)
        except errors.StoreError as error:
            raise self.halt(error) from error

    async def large(self, blob: records.Blob) -> bytes:
        """The bytes of a blob; a missing blob halts the run."""
        body = await self._ledger.blob(blob.digest)
        if body is None:
            raise self.halt(errors.BlobMissing(blob.digest))
        return body

    async def read_value(self, done: records.Done) -> bytes:
        """The JSON of a recorded value, inline or from its blob."""
        return bytes(done.value) if done.blob is None else await self.large(done.blob)

    async def with_value(self, done: records.Done) -> records.Done:
        """The outcome with its value inline."""
        if done.blob is None:
            return done
        return msgspec.structs.replace(done, value=msgspec.Raw(await self.large(done.blob)), blob=None)

    # ---- stopping ----

    def check_halted(self) -> None:
        if self._cursor.halted is not None:
            raise errors.Halted(self._cursor.halted)

    def check_running(self) -> None:
        """Raise if the run was halted or cancelled, or has ended."""
        if self.over and self._closed == "cancelled":
            raise self.abandoned()
        self.check_halted()
        if self._closed == "cancelled":
            message = "the drive was cancelled"
            raise asyncio.CancelledError(message)
        if self._closed == "ended":
            raise errors.RunEnded(self.run)

    async def admit(self) -> None:
        """Raise as `check_running` does; hold code that keeps asking after that."""
        try:
            self.check_running()
        except (errors.Halted, errors.RunEnded, asyncio.CancelledError) as error:
            if self._suspension is None:
                self._suspension = SuspensionGuard()
            await self._suspension.refuse(error)

    def adopt(self, task: asyncio.Future[Any]) -> None:
        """Register a task of the driven code, which `close` cancels."""
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
        return self._closed == "cancelled"

    def abandoned(self) -> errors.CallAbandoned:
        """The error for code that continues after its run was closed here."""
        error = errors.CallAbandoned(self.run)
        _log.warning("a function of %s of %s goes on: %s", self.run, self._ledger.journal, error)
        return error

    def refuse(self) -> None:
        self._closed = "cancelled"


def idempotency_key(store: str, journal: str, key: str) -> str:
    """The idempotency key of the effect `key` of a journal that was made in this store."""
    return digest("idempotency", [store, journal, key])[:40]
