"""Performing effects: the machinery behind the boundary.

One `Performer` drives one run of one journal. It decides by what is recorded, checks the order, runs what has to be
run, and records how it ended. It stops for good when the journal does not fit the code or can't be written.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, cast

import msgspec

from holdfast.crashpoints import crash_point
from holdfast.effects.canonical import digest
from holdfast.effects.divergence import Divergence, diverge
from holdfast.effects.envelope import Command, Envelope, Scope, Subject, scope_of, segment
from holdfast.effects.replay import (
    Again,
    Answer,
    Begin,
    Decision,
    Mismatch,
    Miss,
    Past,
    Recorded,
    Repeat,
    SettleUnknown,
    decide_effect,
)
from holdfast.effects.scopes import Place, current
from holdfast.effects.values import decode_value, encode_value, plain
from holdfast.errors import (
    BlobMissing,
    EffectCancelled,
    EffectFailed,
    EffectRepeated,
    EffectUnknown,
    Halted,
    HoldfastError,
    InvalidArgument,
    InvariantBroken,
    ReplayMismatch,
    ReplayMiss,
    ScopeBusy,
    StoreError,
    UsageError,
)
from holdfast.records import (
    Ask,
    Cancelled,
    Done,
    EffectKind,
    ErrorInfo,
    Failed,
    Intended,
    Outcome,
    Record,
    Unknown,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator

    from holdfast.records import Blob

MAX_ERROR: Final = 4_096
"""Longest error message that is recorded, in characters."""


Call: TypeAlias = "Callable[[str], Awaitable[Any]]"
"""What runs an effect, given its key."""


class Ledger(Protocol):
    """The journal as the boundary needs it: written under a lease, in order."""

    journal: str
    store_id: str
    inline_bytes: int

    def now(self) -> int:
        """Wall time in milliseconds."""
        ...

    def append(self, added: list[Record]) -> tuple[int, Awaitable[object]]:
        """Queue records now; answers the sequence of the last one, and what to await for durability."""
        ...

    async def put_blob(self, body: bytes) -> Blob:
        """Keep large bytes."""
        ...

    async def blob(self, digest: str) -> bytes | None:
        """Large bytes that were kept."""
        ...


@dataclass(frozen=True, slots=True)
class Drift:
    """A replayed effect whose content differs from its record, and whose kind keeps what was recorded."""

    key: str
    divergence: Divergence


class Performer:
    """Performs the effects of one run of one journal."""

    def __init__(self, ledger: Ledger, past: Past, run: str, *, strict: bool = False) -> None:
        self.run = run
        self.past = past
        self.drifts: list[Drift] = []
        self._ledger = ledger
        self._strict = strict
        self._asked: set[str] = set()
        self._consumed: dict[str, int] = {}
        self._busy: set[str] = set()
        self._halted: HoldfastError | None = None

    async def perform(self, envelope: Envelope, call: Call, repeat: Repeat, returns: type[Any] | None) -> Any:  # noqa: ANN401
        """Answer from the journal, or perform and record: the whole of the promise is in this method."""
        key = envelope.key
        if envelope.scope.journal != self._ledger.journal:
            message = f"the effect {key!r} belongs to the journal {envelope.scope.journal!r}, not to this one"
            raise UsageError(message)
        ask = envelope.ask()
        with self.occupied(key):
            decision = self.decide(envelope, ask, repeat)
            self.check_order(key)
            outcome = await self._carry_out(decision, key, ask, call)
            return await self.unwrap(outcome, ask, returns)

    @contextmanager
    def occupied(self, key: str) -> Generator[None]:
        """A scope does one thing at a time; a second one at once would make the order a matter of luck."""
        scope = scope_of(key)
        if scope in self._busy:
            raise ScopeBusy(scope)
        self._busy.add(scope)
        try:
            yield
        finally:
            self._busy.discard(scope)

    def envelope(self, key: str, kind: EffectKind, name: str, target: str, body: object) -> Envelope:
        """The envelope of an effect of this run."""
        command = Command(target, plain(body))
        return Envelope(Scope(self._ledger.journal, self.run), Subject(name, kind), key, command)

    def place(self) -> Place:
        """The scope of the running code."""
        place = current.get()
        if place is None or place.drive is not self:
            message = "effects can only be asked for by the code that this boundary drives"
            raise UsageError(message)
        return place

    def root(self) -> Place:
        """The scope in which the run begins."""
        return Place(self, segment(self.run))

    def idempotency_key(self, key: str) -> str:
        """What makes an effect recognisable to the outside world, whoever attempts it, however often."""
        return digest("idempotency", [self._ledger.store_id, self._ledger.journal, key])[:40]

    # ---- deciding ----

    def decide(self, envelope: Envelope, ask: Ask, repeat: Repeat) -> Decision:
        """What the journal says; a difference, or an effect that must not be performed here, stops the run."""
        self.check_running()
        if not isinstance(repeat, Repeat):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers may be untyped
            raise InvalidArgument("repeat", repeat, "a Repeat")
        key = envelope.key
        if key in self._asked:
            raise EffectRepeated(key)
        self._asked.add(key)
        decision = decide_effect(self.past.effects.get(key), ask, repeat, strict=self._strict)
        match decision:
            case Mismatch(divergence):
                raise self.halt(ReplayMismatch(key, divergence, self._code()))
            case Miss():
                raise self.halt(ReplayMiss(key))
            case Answer(drift=Divergence() as divergence):
                self.drifts.append(Drift(key, divergence))
            case _:
                pass
        return decision

    def check_order(self, key: str) -> None:
        """The n-th effect of a scope is always the same one; anything else is another program."""
        scope = scope_of(key)
        recorded = self.past.order.get(scope)
        if recorded is None:
            return
        index = self._consumed.get(scope, 0)
        self._consumed[scope] = index + 1
        if index < len(recorded) and recorded[index] != key:
            raise self.halt(ReplayMismatch(key, diverge({"effect": recorded[index]}, {"effect": key}), self._code()))

    def recorded(self, key: str) -> Recorded | None:
        """What the journal had about `key` when this drive began."""
        return self.past.effects.get(key)

    def _code(self) -> str | None:
        started = self.past.started.get(self.run)
        return started.code if started else None

    # ---- carrying out ----

    async def _carry_out(self, decision: Decision, key: str, ask: Ask, call: Call) -> Outcome:
        """Do what was decided; answers the recorded outcome."""
        if isinstance(decision, Answer):
            return decision.outcome
        if isinstance(decision, Begin) and decision.intent:
            crash_point("effect.before_intent")
            await self.record([self.intention(key, ask)])
            crash_point("effect.after_intent")
        return await self._settle(await self.outcome(decision, key, ask, call))

    async def outcome(self, decision: Decision, key: str, ask: Ask, call: Call) -> Outcome:
        """Perform what was decided; answers an outcome that is not recorded yet."""
        match decision:
            case Answer(outcome):
                return outcome
            case SettleUnknown():
                return Unknown(at=self._ledger.now(), key=key)
            case Again():
                return await self._attempt(key, None, call)
            case Begin(intent):
                return await self._attempt(key, None if intent else ask, call)
            case Mismatch() | Miss():
                message = f"{decision!r} must have stopped the run"
                raise InvariantBroken(message)

    def intention(self, key: str, ask: Ask) -> Intended:
        """The record that says an effect is about to be performed."""
        return Intended(at=self._ledger.now(), key=key, ask=ask)

    async def _attempt(self, key: str, ask: Ask | None, call: Call) -> Outcome:
        """Run the effect; its end becomes an outcome that is not recorded yet. Cancellation passes through."""
        crash_point("effect.before_run")
        token = current.set(Place(self, key))
        try:
            value = await call(key)
            crash_point("effect.after_run")
            body = encode_value(value)
            if len(body) <= self._ledger.inline_bytes:
                return Done(at=self._ledger.now(), key=key, ask=ask, value=msgspec.Raw(body))
            return Done(at=self._ledger.now(), key=key, ask=ask, blob=await self._ledger.put_blob(body))
        except StoreError as error:
            # Not the world's failure but ours: it must not become the recorded outcome of the effect.
            raise self.halt(error) from error
        except Exception as error:  # noqa: BLE001  whatever the effect raised is its outcome
            return Failed(at=self._ledger.now(), key=key, ask=ask, error=error_info(error))
        finally:
            current.reset(token)

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

    def submit(self, added: list[Record]) -> tuple[int, Awaitable[object]]:
        """Append without waiting: the place in the journal is fixed now, durability comes with the awaitable."""
        self.check_running()
        try:
            return self._ledger.append(added)
        except HoldfastError as error:
            raise self.halt(error) from error

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

    async def unwrap(self, outcome: Outcome, ask: Ask, returns: type[Any] | None) -> Any:  # noqa: ANN401
        """The value of an outcome, or the error it stands for: the same at the first time and at every replay."""
        match outcome:
            case Done(blob=None):
                return decode_value(bytes(outcome.value), returns)
            case Done():
                return decode_value(await self._large(cast("Blob", outcome.blob)), returns)
            case Failed():
                raise EffectFailed(outcome.key, outcome.error.kind, outcome.error.message)
            case Unknown():
                raise EffectUnknown(outcome.key, ask.target)
            case Cancelled():
                raise EffectCancelled(outcome.key)

    async def _large(self, blob: Blob) -> bytes:
        body = await self._ledger.blob(blob.digest)
        if body is None:
            raise self.halt(BlobMissing(blob.digest))
        return body

    # ---- stopping ----

    def check_running(self) -> None:
        """A halted run performs nothing any more."""
        if self._halted is not None:
            raise Halted(self._halted)

    def halt(self, reason: HoldfastError) -> Halted:
        """Stop this run for good; the first reason stays."""
        if self._halted is None:
            self._halted = reason
        return Halted(self._halted)

    def now(self) -> int:
        """Wall time for records."""
        return self._ledger.now()


def error_info(error: Exception) -> ErrorInfo:
    """An error as it is recorded: bounded, and without anything that would have to be revived."""
    message = str(error)
    if len(message) > MAX_ERROR:
        message = f"{message[:MAX_ERROR]}... ({len(message):,} characters)"
    return ErrorInfo(type(error).__name__, message)
