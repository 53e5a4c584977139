"""Performing effects: the machinery behind the boundary.

One `Performer` drives one run of one journal. It decides by what is recorded, checks the order, runs what has to be
run, and records how it ended. It stops for good when the journal does not fit the code or can't be written.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast

import msgspec

from holdfast.crashpoints import crash_point
from holdfast.effects.canonical import digest
from holdfast.effects.envelope import EffectCommand, EffectSubject, Envelope, RunScope, scope_of, segment
from holdfast.effects.replay import (
    Decision,
    HaltSwitch,
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
from holdfast.effects.scopes import EffectScope, current_scope
from holdfast.effects.suspension import SuspensionGuard
from holdfast.effects.values import check_returns, decode_value, encode_value, error_info, plain
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
    PayloadTooLarge,
    ResultTooLarge,
    RunEnded,
    ScopeBusy,
    StoreError,
    UsageError,
)
from holdfast.records import (
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
    from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence

    from holdfast.effects.envelope import JournalLedger
    from holdfast.effects.replay import Drift
    from holdfast.records import Blob


Call: TypeAlias = "Callable[[str], Awaitable[Any]]"
"""What runs an effect, given its key."""
_log: Final = logging.getLogger("holdfast.effects")


class Performer:
    """Performs the effects of one run of one journal."""

    def __init__(self, ledger: JournalLedger, past: RunHistory, run: str, *, strict: bool = False) -> None:
        self.run = run
        self.past = past
        self.recorded: Callable[[str], RecordedEffect | None] = past.effects.get
        """What the journal had about a key when this drive began."""
        self.now = ledger.now
        """Wall time for records."""
        self._seconds = asyncio.get_running_loop().time
        self._ledger = ledger
        self.redactor = ledger.redactor
        self.strict = strict
        """Nothing is performed: what is not recorded stops the run."""
        self.halt: Callable[[HoldfastError], Halted]
        """Stop this run for good; the first reason stays."""
        self.halt = self._halted = HaltSwitch()
        self._retraced = ReplayCursor(past, run, self._halted, strict=strict)
        self._closed: Literal["cancelled", "ended"] | None = None
        self.over = False
        """Nothing of this run is left here: code that still asks for something did not end when it was cancelled."""
        self._sealed = False
        self._tasks: dict[asyncio.Future[Any], None] = {}  # ordered: they are stopped in the order of creation
        self._abandoned: list[Record] = []
        self._abandoned_spend: Any = None
        """What those records say was used."""
        self._left: set[str] = set()
        self._causes: dict[str, Exception] = {}
        self.cause: Cause | None = None
        """What led to the effects that the run asks for from here on."""
        self.iteration: int | None = None
        """The step of a turn, or the attempt of a process, that is under way."""
        self.failure: Exception | None = None
        self._suspension: SuspensionGuard | None = None

    async def perform(
        self, envelope: Envelope, call: Call, repeat: Repeat, returns: type[Any] | None, place: EffectScope | None
    ) -> Any:  # noqa: ANN401
        """Answer from the journal, or perform and record: the whole of the promise is in this method.

        `place` is the scope whose next effect this is; None for a key of the caller's own choice, which has no order.
        """
        if self._closed is not None or self._halted.reason is not None:
            await self.admit()
        self._check_scope(envelope)
        check_returns(returns)
        ask = envelope.ask()
        with self.occupied(place):
            decision = self.decide(envelope.key, ask, repeat)
            if place is not None:
                self.check_order(place, envelope.key)
            outcome = await self._carry_out(decision, envelope.key, ask, call)
            return await self.unwrap(outcome, ask, returns)

    def _check_scope(self, envelope: Envelope) -> None:
        scope, prefix = envelope.scope, f"{segment(self.run)}/"
        if (scope.journal, scope.run) != (self._ledger.journal, self.run) or not envelope.key.startswith(prefix):
            message = (
                f"the effect {envelope.key!r} of run {scope.run!r} of {scope.journal!r} can't be performed by run "
                f"{self.run!r} of {self._ledger.journal!r}; its key must begin with {prefix!r}"
            )
            raise UsageError(message)

    @contextmanager
    def occupied(self, place: EffectScope | None) -> Generator[None]:
        """A scope does one thing at a time; a second one at once would make the order a matter of luck."""
        if place is None:
            yield
            return
        if place.busy:
            raise ScopeBusy(place.path)
        place.busy = True
        try:
            yield
        finally:
            place.busy = False

    def envelope(self, key: str, kind: EffectKind, name: str, target: str, body: object) -> Envelope:
        """The envelope of an effect of this run."""
        self.redactor.check("name of an effect", key)
        command = EffectCommand(target, self.redactor.value(plain(body)))  # the same after a secret was changed
        scope = RunScope(self._ledger.journal, self.run, self.iteration)
        return Envelope(scope, EffectSubject(name, kind), key, command, self._led_to(key))

    def _led_to(self, key: str) -> Cause | None:
        """What led to an effect: the one within which it is asked for, or what the run is about."""
        above = scope_of(key)
        if above == segment(self.run):
            return self.cause
        branch = above.rpartition("/")[2]
        return self.cause if branch.startswith("~") else Cause("effect", above)

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
        """What makes an effect recognisable to the outside world, whoever attempts it, however often."""
        return idempotency_key(self._ledger.store_id, self._ledger.journal, key)

    # ---- deciding ----

    def decide(self, key: str, ask: EffectRequest, repeat: Repeat) -> Decision:
        """What the journal says; a difference, or an effect that must not be performed here, stops the run."""
        if self._halted.reason is not None or self._closed is not None:
            self.check_running()
        if not isinstance(repeat, Repeat):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers may be untyped
            raise InvalidArgument("repeat", repeat, "a Repeat")
        return self._retraced.decide(key, ask, repeat)

    def check_order(self, place: EffectScope, key: str) -> None:
        """The n-th effect of a scope is always the same one. Within an effect that is performed again, it need not."""
        if not place.inside:
            self._retraced.follow(place.path, key)

    def ask_group(self, place: EffectScope, key: str) -> None:
        """A group is asked for: it has a place in the order of its scope, like an effect."""
        self._retraced.took((key,))
        self.check_order(place, key)

    def check_complete(self) -> None:
        """All that was recorded was asked for again, or this is another program."""
        self._retraced.check_complete()

    def enter_branch(self, parent: str, ordinal: int, name: str) -> None:
        """A branch that left records must be the same one again."""
        self._retraced.enter_branch(parent, ordinal, name)

    def mismatch(self, key: str, recorded: dict[str, Any], asked: dict[str, Any]) -> Halted:
        """Something else is recorded than what is asked for: the run stops for good."""
        return self._retraced.mismatch(key, recorded, asked)

    @property
    def drifts(self) -> list[Drift]:
        """Replayed effects whose content differs from their records, and whose kind keeps what was recorded."""
        return self._retraced.drifts

    def below(self, key: str, mark: str) -> list[RecordedEffect]:
        """What the journal had right below `key` in places that begin with `mark`. It counts as asked for again."""
        return self._retraced.below(key, mark) if key in self.past.order else []

    def settled_below(self, key: str) -> list[tuple[str, RecordedEffect]]:
        """What the journal had right below `key` that has an outcome, in the order in which it got it.

        It counts as asked for again once somebody `took` it.
        """
        return self._retraced.settled_below(key)

    def took(self, keys: Iterable[str]) -> None:
        """What is recorded under these keys was used, or found to be of no use: it counts as asked for again."""
        self._retraced.took(keys)

    # ---- carrying out ----

    async def _carry_out(self, decision: Decision, key: str, ask: EffectRequest, call: Call) -> Outcome:
        """Do what was decided; answers the recorded outcome."""
        if isinstance(decision, UseRecorded):
            if isinstance(decision.outcome, Cancelled):
                await self.until_cancelled()
            return decision.outcome
        intended = not isinstance(decision, Perform) or decision.intent
        try:
            if isinstance(decision, Perform) and decision.intent:
                crash_point("effect.before_intent")
                await self.record([self.intention(key, ask)])
                crash_point("effect.after_intent")
            return await self._settle(await self.outcome(decision, key, ask, call))
        except asyncio.CancelledError:
            self.abandon([Cancelled(at=self.now(), key=key, ask=None if intended else ask)])
            raise

    async def until_cancelled(self) -> None:
        """Wait for the cancellation that came when this was performed: by the same timeout, the same sibling."""
        await asyncio.get_running_loop().create_future()

    def abandon(self, noted: list[Record], spend: Any = None) -> None:  # noqa: ANN401
        """The code that asked was cancelled, and may go on: what it left goes into the journal before what comes next.

        When the whole drive is cancelled nothing goes on here, and whoever drives next begins it again. `spend` is what
        the records say was used.
        """
        if self._halted.reason is None and self._closed != "cancelled" and not self.strict:
            kept = [record for record in noted if not self._is_left(getattr(record, "key", ""))]
            self._abandoned.extend(kept)
            if kept and spend is not None:
                self._abandoned_spend = spend if self._abandoned_spend is None else self._abandoned_spend + spend

    def leave(self, key: str) -> None:
        """The effect `key` is left in order, to be performed again: nothing in it counts as cancelled."""
        self._left.add(key)

    def _is_left(self, key: str) -> bool:
        return any(key.startswith(f"{left}/") for left in self._left)

    async def outcome(self, decision: Decision, key: str, ask: EffectRequest, call: Call) -> Outcome:
        """Perform what was decided; answers an outcome that is not recorded yet."""
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
        """Begin nothing here if this was stopped for so long that somebody else may have taken over.

        That one may have done it by now; or it has found an intent without an outcome, and told that nobody knows:
        then it must not happen later.
        """
        try:
            await self._ledger.confirm()
        except HoldfastError as error:
            raise self.halt(error) from error
        self.check_running()

    def intention(self, key: str, ask: EffectRequest) -> Intended:
        """The record that says an effect is about to be performed."""
        return Intended(at=self.now(), key=key, ask=ask)

    async def attempt(self, key: str, ask: EffectRequest | None, call: Call) -> Outcome:
        """Run the effect; its end becomes an outcome that is not recorded yet. Cancellation passes through."""
        crash_point("effect.before_run")
        token = current_scope.set(EffectScope(self, key, inside=True))
        begun = self._seconds()
        try:
            value = call(key)
            if inspect.isawaitable(value):
                value = await value
            crash_point("effect.after_run")
            body = self.redactor.bytes(encode_value(value))
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # Nobody cancelled us: something that the effect awaited was cancelled, which is a failure like others.
            return self.failed(key, ask, RuntimeError(f"what it waited for was cancelled {error}".rstrip()), begun)
        except Exception as error:  # noqa: BLE001  whatever the effect raised is its outcome
            return self.failed(key, ask, error, begun)
        finally:
            current_scope.reset(token)
        return await self.succeeded(key, ask, body, begun)

    def done_with(  # noqa: PLR0913, PLR0917
        self,
        key: str,
        ask: EffectRequest | None,
        body: bytes,
        begun: float,
        refs: tuple[Blob, ...] = (),
        kept: tuple[Blob, ...] = (),
    ) -> Done | None:
        """The outcome of an effect that gave `body`, with blobs that it speaks of; None where `body` is kept apart."""
        if self.redactor.active:
            body = self.redactor.bytes(body, numbers=False)
        if len(body) > self._ledger.inline_bytes:
            return None
        ms = round((self._seconds() - begun) * 1000)
        return Done(at=self.now(), key=key, ask=ask, value=msgspec.Raw(body), ms=ms, refs=refs, kept=kept)

    async def succeeded(  # noqa: PLR0913, PLR0917
        self,
        key: str,
        ask: EffectRequest | None,
        body: bytes,
        begun: float,
        refs: tuple[Blob, ...] = (),
        kept: tuple[Blob, ...] = (),
    ) -> Outcome:
        """The outcome of an effect that gave `body`, however large that is."""
        done = self.done_with(key, ask, body, begun, refs, kept)
        if done is not None:
            return done
        now, ms = self.now(), round((self._seconds() - begun) * 1000)
        try:
            body = self.redactor.bytes(body, numbers=False)
            blob = await self._ledger.put_blob(body)
            return Done(at=now, key=key, ask=ask, blob=blob, ms=ms, refs=refs, kept=kept)
        except StoreError as error:
            # Not the world's failure but ours: it must not become the recorded outcome of the effect.
            raise self.halt(error) from error
        except PayloadTooLarge as error:
            # Whoever reads this must not take it for an effect that did nothing.
            return self.failed(key, ask, ResultTooLarge("a value", error.size, error.limit), begun)
        except UsageError as error:
            lost = RuntimeError(f"it ran to its end and took effect, but what it gave can't be kept: {error}")
            return self.failed(key, ask, lost, begun)

    def failed(self, key: str, ask: EffectRequest | None, error: Exception, begun: float) -> Failed:
        """The outcome of an effect that raised."""
        hidden = safe_cause(error, self.redactor)
        self._causes[key] = hidden
        info = error_info(error, self.redactor.text)
        ms = round((self._seconds() - begun) * 1000)
        return Failed(at=self.now(), key=key, ask=ask, error=info, ms=ms)

    async def _settle(self, outcome: Outcome) -> Outcome:
        """Record an outcome. Once begun, this finishes even if the caller is cancelled."""
        crash_point("effect.before_outcome")
        await self.record([outcome])
        crash_point("effect.after_outcome")
        return outcome

    async def record(self, added: list[Record]) -> int:
        """Append, durably; answers the sequence of the last record. A store that refuses halts the run."""
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
        """Append without waiting: the place in the journal is fixed now, durability comes with the awaitable."""
        if self._halted.reason is not None:
            raise Halted(self._halted.reason)
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
        """Record how the run ended, after what is left to be said. Nothing is recorded in its name after that.

        `notify` are notifications that belong into the same commit, `spend` is what the records say was used.
        """
        _, durable = self.submit([*(before or ()), ended], notify=notify, spend=spend)
        self._sealed = True
        await self.durable(durable)

    async def durable(self, pending: Awaitable[object]) -> None:
        """Wait for durability, shielded: a cancellation is raised only after the commit has ended."""
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
        """The value of an outcome, or the error it stands for: the same at the first time and at every replay."""
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
        """Keep bytes that an outcome will speak of."""
        try:
            return await self._ledger.put_blob(body)
        except StoreError as error:
            raise self.halt(error) from error

    def keep_soon(self, body: bytes) -> Blob:
        """Keep bytes that the next record speaks of: they are queued before it, and durable when it is."""
        try:
            return self._ledger.queue_blob(body)
        except StoreError as error:
            raise self.halt(error) from error

    async def large(self, blob: Blob) -> bytes:
        """Bytes that were kept apart."""
        body = await self._ledger.blob(blob.digest)
        if body is None:
            raise self.halt(BlobMissing(blob.digest))
        return body

    # ---- stopping ----

    def check_halted(self) -> None:
        """A halted run is over here, whatever the code makes of it."""
        if self._halted.reason is not None:
            raise Halted(self._halted.reason)

    def check_running(self) -> None:
        """A run that was halted, cancelled or has ended performs nothing any more."""
        if self.over and self._closed == "cancelled":
            raise self.abandoned()
        self.check_halted()
        if self._closed == "cancelled":
            message = "the drive was cancelled"
            raise asyncio.CancelledError(message)
        if self._closed == "ended":
            raise RunEnded(self.run)

    async def admit(self) -> None:
        """Let driven code ask for something, if its run goes on; code that asks again and again after that is held."""
        try:
            self.check_running()
        except (Halted, RunEnded, asyncio.CancelledError) as error:
            if self._suspension is None:
                self._suspension = SuspensionGuard()
            await self._suspension.refuse(error)

    def adopt(self, task: asyncio.Future[Any]) -> None:
        """Remember a task of the driven code, so that none outlives the run."""
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))

    async def close(self, how: Literal["cancelled", "ended"]) -> None:
        """No new effects from now on; tasks that are left are cancelled, and awaited."""
        self._closed = self._closed or how
        while self._tasks:
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        self.over = True
        self._causes.clear()  # an exception keeps the frames that it passed, and these keep the performer

    @property
    def cancelled(self) -> bool:
        """Whether the drive is being cancelled, or was."""
        return self._closed == "cancelled"

    def abandoned(self) -> CallAbandoned:
        """The error for code that goes on although nothing of this run is left here."""
        error = CallAbandoned(self.run)
        _log.warning("a function of %s of %s goes on: %s", self.run, self._ledger.journal, error)
        return error

    def refuse(self) -> None:
        """No new effects from now on: the drive is being cancelled."""
        self._closed = "cancelled"

    @property
    def behind(self) -> int:
        """How many records were submitted and are not durable yet."""
        return self._ledger.behind


def idempotency_key(store: str, journal: str, key: str) -> str:
    """What makes the effect `key` of a journal recognisable to the outside world."""
    return digest("idempotency", [store, journal, key])[:40]
