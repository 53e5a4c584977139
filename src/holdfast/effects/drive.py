"""Drive a journal: claim the lease, fold the records, run the code, record its end.

Driving is idempotent and resumable: after a crash, the next drive runs the same code from the top, gets the recorded
outcomes, and continues from there. For an ended run it only answers the result.
"""

from __future__ import annotations

import asyncio
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from holdfast.crashpoints import crash_point
from holdfast.effects.canonical import as_declared, decode_value, encode_value, error_info, return_type
from holdfast.effects.performer import (
    JournalLedger,
    LeasedJournal,
    Performer,
    RecordedJournal,
    call_function,
    read_history,
)
from holdfast.effects.replay import Repeat, diverge
from holdfast.effects.scopes import GuardedCoroutine, current_scope, install_task_factory
from holdfast.errors import BlobMissing, Halted, HoldfastError, InvalidArgument, ReplayMismatch, RunFailed, StoreError
from holdfast.eventloop import ignore_result
from holdfast.names import check_choice, check_id, check_int
from holdfast.policy.limits import LEASE_MS
from holdfast.records import EFFECT_KINDS, EffectKind, Ended, JournalKind, Started
from holdfast.secrets.logs import safe_cause
from holdfast.store.client import MIN_LEASE_MS, Store
from holdfast.store.lease import LeaseHolder

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from holdfast.telemetry.tracer import Tracer


T = TypeVar("T")


class EffectContext:
    """The context of the code that performs an effect."""

    __slots__ = ("_boundary", "key")

    def __init__(self, boundary: Boundary, key: str) -> None:
        self._boundary = boundary
        self.key = key

    @property
    def idempotency_key(self) -> str:
        """The same in every attempt of this effect, and unique among the effects of all stores."""
        return self._boundary.performer.idempotency_key(self.key)

    async def step(self, name: str, function: Callable[..., Any], *args: object, **options: Any) -> Any:
        """Run a sub-step once, under a key that is the same in each attempt."""
        return await self._boundary.step(name, function, *args, **options)


class Boundary:
    """Performs effects for driven code."""

    def __init__(self, performer: Performer) -> None:
        self.performer = performer
        """Internal; not for driven code."""

    async def step(
        self,
        name: str,
        function: Callable[..., Any],
        *args: object,
        repeat: Repeat = Repeat.FREE,
        returns: type[Any] | None = None,
    ) -> Any:  # any value, after a round trip through JSON
        """Call `function(*args)` once and record its value; after a crash, answer the recorded value.

        An interrupted step runs again from its beginning, unless `repeat` is `Repeat.NEVER`. The function gets no
        idempotency key: use `effect` for actions that must not happen twice. A plain function runs in a thread. The
        value has the type `returns`, by default the declared return type of the function.
        """
        if not callable(function):
            raise InvalidArgument("function", function, "something to call")

        async def call(_: EffectContext) -> Any:
            return await call_function(function, *args)

        value = await self.effect("step", name, call, body=list(args), repeat=repeat, returns=returns)
        return value if returns is not None else as_declared(value, return_type(function))

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
    ) -> Any:
        """Perform the next effect called `name` in the scope of the running code."""
        performer = self.performer
        place = performer.place()
        key = place.next(name)
        check_choice("effect kind", kind, EFFECT_KINDS)
        ask = performer.request(key, kind, name if target is None else target, body)
        if not callable(run):
            raise InvalidArgument("effect", run, "something to call")
        return await performer.perform(key, ask, lambda key: run(EffectContext(self, key)), repeat, returns, place)


async def drive(
    store: Store,
    journal: str,
    body: Callable[[Boundary], Awaitable[T]],
    *,
    run: str = "main",
    kind: JournalKind = "process",
    agent: str | None = None,
    code: str | None = None,
    lease_ms: int = LEASE_MS,
    tracer: Tracer | None = None,
) -> T:
    """Run `body` durably under the id `journal`; answers its value, also of an ended run.

    `body` touches the world only through its boundary. `code` names the version of the code in the journal. Raises
    `LeaseHeld` if another process drives this journal, `Fenced` if one took over meanwhile, `ReplayMismatch` if the
    code does not fit the journal, and `RunFailed` if `body` raised.
    """
    check_id("run", run)
    check_int("lease time", lease_ms, least=MIN_LEASE_MS)
    if code is not None:
        check_id("code version", code)
    if not callable(body):
        raise InvalidArgument("body", body, "a function that takes the boundary")
    await store.open_journal(journal, kind, agent)
    try:
        async with LeaseHolder(store, journal, lease_ms) as held:
            ledger = LeasedJournal(store, held.lease, None if tracer is None else tracer.touch)
            past = await ledger.past()
            ended = past.ended.get(run)
            if ended is not None:
                return await _result(ledger, ended)
            async with nullcontext() if tracer is None else tracer.following(ledger, held.lease):
                performer = Performer(ledger, past, run)
                return await _result(ledger, await _run(performer, ledger, body, held.lost, code), performer.failure)
    except Halted as halted:
        raise halted.reason from halted.reason.__cause__


async def replay(store: Store, journal: str, body: Callable[[Boundary], Awaitable[T]], *, run: str = "main") -> T:
    """Run `body` against the recorded outcomes; performs and writes nothing, answers its value.

    Raises `ReplayMismatch` if the code or the result does not fit the journal, and `ReplayMiss` at the end of the
    records. It needs no lease, so another process may drive the journal meanwhile.
    """
    check_id("run", run)
    past = await read_history(store, journal)
    ledger = RecordedJournal(store, journal, await store.birthplace(journal))
    performer = Performer(ledger, past, run, strict=True)
    install_task_factory(asyncio.get_running_loop())
    try:
        try:
            ended = await asyncio.ensure_future(_body(performer, ledger, body))
        finally:
            await performer.close("ended")
        performer.check_complete()
        recorded = past.ended.get(run)
        if recorded is not None and _ending(recorded) != _ending(ended):  # it must end the same way
            raise performer.halt(ReplayMismatch(run, diverge(_ending(recorded), _ending(ended))))
    except Halted as halted:
        raise halted.reason from halted.reason.__cause__
    return await _result(ledger, ended)


def _ending(ended: Ended) -> dict[str, object]:
    value: object = None
    if ended.blob is not None:
        value = {"sha256": ended.blob.digest}
    elif ended.value:
        value = decode_value(bytes(ended.value))
    error = None if ended.error is None else [ended.error.kind, ended.error.message]
    return {"status": ended.status, "value": value, "error": error}


async def _run(
    performer: Performer,
    ledger: LeasedJournal,
    body: Callable[[Boundary], Awaitable[Any]],
    lost: asyncio.Future[HoldfastError],
    code: str | None,
) -> Ended:
    install_task_factory(asyncio.get_running_loop())
    if performer.run not in performer.past.started:
        performer.submit([Started(at=ledger.now(), run=performer.run, code=code)])
    work = asyncio.ensure_future(_body(performer, ledger, body))

    def halt(_: object) -> None:
        if not lost.cancelled():
            performer.halt(lost.result())
            work.cancel()

    lost.add_done_callback(halt)
    try:
        ended = await asyncio.shield(work)
    except asyncio.CancelledError:
        # Unwind the code. Its clean-up gets no effects; the next drive performs them.
        performer.refuse()
        ignore_result(work)
        work.cancel()
        while not work.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([work])
        performer.check_halted()
        raise
    finally:
        await performer.close("ended")
    performer.check_complete()
    crash_point("drive.before_end")
    await performer.seal(ended)
    crash_point("drive.after_end")
    return ended


async def _called(body: Callable[[Boundary], Awaitable[T]], boundary: Boundary) -> T:
    return await body(boundary)


async def _body(performer: Performer, ledger: JournalLedger, body: Callable[[Boundary], Awaitable[Any]]) -> Ended:
    """Run the code in its own scope; answers the record of its end, unwritten."""
    current_scope.set(performer.root())
    try:
        name = getattr(body, "__qualname__", "body")
        value = ledger.redactor.bytes(encode_value(await GuardedCoroutine(_called(body, Boundary(performer)), name)))
        if len(value) > ledger.inline_bytes:
            return Ended(at=ledger.now(), run=performer.run, status="completed", blob=await ledger.put_blob(value))
        return Ended(at=ledger.now(), run=performer.run, status="completed", value=msgspec.Raw(value))
    except StoreError as error:
        raise performer.halt(error) from error
    except Exception as error:  # any error of the code ends the run
        performer.check_halted()
        performer.failure = safe_cause(error, ledger.redactor)
        info = error_info(error, ledger.redactor.text)
        return Ended(at=ledger.now(), run=performer.run, status="failed", error=info)
    except BaseExceptionGroup:
        performer.check_halted()  # a task group wraps `Halted` of one of its tasks
        raise


async def _result(ledger: JournalLedger, ended: Ended, cause: Exception | None = None) -> Any:
    if ended.error is not None:
        raise RunFailed(ledger.journal, ended.run, ended.error.kind, ended.error.message) from cause
    if ended.blob is None:
        return decode_value(bytes(ended.value))
    body = await ledger.blob(ended.blob.digest)
    if body is None:
        raise BlobMissing(ended.blob.digest)
    return decode_value(body)
