"""Drives one process: a durable function here, a background tool call in `processes.tasks`.

A function that only waits is unwound and parked. The next drive runs it again from its beginning and gives it its
recorded answers. Its end, the message to its parent and the notification of its session are one commit.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import msgspec

from holdfast import errors
from holdfast.crashpoints import crash_point
from holdfast.effects.canonical import encode_value, error_info
from holdfast.effects.performer import Performer
from holdfast.effects.replay import fold_history
from holdfast.effects.scopes import GuardedCoroutine, current_scope
from holdfast.eventloop import UNWIND_TIMEOUT, cancel_and_wait, ignore_result, spawn
from holdfast.logs import log_event
from holdfast.processes import keys
from holdfast.processes import state as process_state
from holdfast.processes.context import ProcessContext, ProcessWaits, StoreWait, process_value, wait_value
from holdfast.processes.lists import read_process
from holdfast.records import ABSENT, Admitted, Cancelled, Cause, Ended, ErrorInfo, Parked, Resumed, Started, Unknown
from holdfast.runtime.drive import JournalDrive
from holdfast.secrets.logs import safe_trace
from holdfast.store import Notification, Notify
from holdfast.store.inbox import STOP_KEY
from holdfast.turns.conversation import TRIGGERED

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from holdfast.processes.definition import AnyProcess
    from holdfast.processes.state import ProcessState, Registration
    from holdfast.records import Blob, EndStatus, Record
    from holdfast.runtime.context import RuntimeContext
    from holdfast.store.contract import Head, Input, Lease


T = TypeVar("T")
_log: Final = logging.getLogger("holdfast.processes")


class ProcessDrive(JournalDrive):
    """One drive of one process: the part that durable functions and background calls share."""

    _state: ProcessState

    def __init__(self, context: RuntimeContext, journal: str, lease: Lease | None = None) -> None:
        super().__init__(context, journal, lease)
        self._context = context
        self._performer: Performer | None = None
        self._body: asyncio.Task[Any] | None = None
        """The running function or call."""
        self._interruption: Admitted | None = None
        self._stopped: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def _on_news(self) -> None:
        if self._body is not None:
            self._look_soon()

    def _on_loss(self, error: errors.HoldfastError) -> None:
        if self._performer is not None:
            self._performer.halt(error)
        if self._body is not None:
            self._body.cancel()

    async def _drive(self, lease: Lease, lost: asyncio.Future[errors.HoldfastError]) -> None:
        self._state = await read_process(self._store, self.session)
        self._ledger.note = self._state.note
        if self._state.over or not self._state.registered:
            await self._after_end()
            self._seen = lease.wakes
        elif await self._go_on(lease):
            self._seen = lease.wakes

    async def _go_on(self, lease: Lease) -> bool:
        """Continue a process that has not ended; False if another runtime has to."""
        raise NotImplementedError

    async def _after_end(self) -> None:
        """Clean up after a process that has ended."""

    async def _take_inbox(self, pending: list[Input], seen: int) -> None:
        """Handle a request to cancel the process. The first one counts."""
        for found in pending:
            if found.key == STOP_KEY and self._interruption is None:
                self._interruption = _admit_input(found, self._ledger.now())
                self._stopped.set_result(None)

    @property
    def _reason(self) -> str:
        asked = self._interruption
        return "" if asked is None else str(msgspec.json.decode(bytes(asked.body)).get("cancel", ""))

    def _append(self, records: list[Record]) -> asyncio.Future[Head]:
        durable = self._ledger.append(records, patient=True)
        self._state.records += records
        return durable

    def _begin(self, performer: Performer, code: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        self._performer = performer
        body = self._body = spawn(code)
        ignore_result(body)
        if self._news:
            self._look_soon()
        return body

    async def _leave(self, performer: Performer, body: asyncio.Task[Any]) -> None:
        """Unwind the body because the runtime closes. Records nothing: the next drive continues."""
        performer.refuse()
        if body.cancelling():  # it is cleaning up already: a second cancel would cut that off
            await asyncio.wait({body}, timeout=UNWIND_TIMEOUT)
        else:
            await cancel_and_wait(body)
        if not body.done():
            _log.warning("the code of %s does not end although its runtime is closed; it is left alone", self.session)
        performer.check_halted()


class FunctionDrive(ProcessDrive):
    """One drive of a durable function or of external work."""

    def __init__(self, context: RuntimeContext, journal: str) -> None:
        super().__init__(context, journal)
        self._processes = context.processes
        self._me = context.store.owner.describe()
        self._waits: ProcessWaits | None = None
        self._abandoned: Admitted | None = None
        """The request to abandon the process."""
        self._transferred: set[int] = set()
        """Inputs already handled: progress reports and transfers to another session."""
        self._ending = False
        """The end is being recorded. A session that takes over the process now is notified afterwards."""
        self._notifications: list[Notification] = []
        """Notifications for the process, read before its journal."""

    def _on_news(self) -> None:
        if self._waits is not None:
            self._waits.look()
        super()._on_news()

    async def _drive(self, lease: Lease, lost: asyncio.Future[errors.HoldfastError]) -> None:
        crash_point("process.claimed")
        self._notifications = await self._store.next_notifications(self.session)
        await super()._drive(lease, lost)
        if self._seen is not None:
            for notification in self._notifications:
                await self._store.settle_notification(notification.id, "acknowledged")

    async def _go_on(self, lease: Lease) -> bool:
        made = cast("Registration", self._state.registration)
        if lease.head == 1:  # the registration enters the journal; durable with what is recorded next
            found = await self._store.input(self.session, 1)
            if found is not None and found.key == keys.CALL_KEY:
                self._append([_admit_input(found, self._ledger.now())])
        await self._look()
        if self._abandoned is not None or self._interruption is not None:
            await (self._end_cancelled() if self._abandoned is None else self._end_abandoned(self._abandoned))
            return True
        if self._is_foreign(made):  # only its owner may go on with it
            self._processes.leave(self.session, lease.wakes)
            return False
        if await self._is_orphan(made):
            await self._end("cancelled", error=ErrorInfo("cancelled", "the process that started it has ended"))
            return True
        procedure = self._processes.functions.get(made.name)
        if procedure is None and made.recovery != "external":
            return False  # another process may know it
        if self._state.status == "waiting" and not self._notifications and not await self._is_answered():
            return True
        await self._run_function(made, procedure)
        return True

    def _is_foreign(self, made: Registration) -> bool:
        """True if only another operating-system process, its owner, may continue it."""
        return made.recovery == "owner" and self._state.starts > 0 and self._state.by != self._me

    async def _is_orphan(self, made: Registration) -> bool:
        """True if its parent was cancelled, or ended before this process began."""
        parent = made.parent or (None if made.item is None else made.item.parent_process)
        if parent is None or made.on_parent_end != "cancel":
            return False
        try:
            status = (await self._store.journal(parent)).status
        except errors.JournalMissing:
            return not self._state.starts
        # One that was cancelled may not have known of this one: a crash came before it could record it.
        return status == "cancelled" or (status in process_state.TERMINAL_STATUSES and not self._state.starts)

    async def _is_answered(self) -> bool:
        now = self._store.clock.read().wall
        for name in self._state.waits:
            wait = await self._store.wait(self.session, name)  # None: the end of a child, which tells of it
            if wait is not None and (wait.state != "open" or (wait.deadline is not None and wait.deadline <= now)):
                return True
        return False

    # ---- the inbox ----

    async def _take_inbox(self, pending: list[Input], seen: int) -> None:
        await super()._take_inbox(pending, seen)
        for found in pending:
            told = found.key.startswith((keys.TRANSFER_PREFIX, keys.CHILD_PREFIX))
            given = told and found.input not in self._transferred
            if found.key == keys.ABANDON_KEY and self._abandoned is None:
                self._abandoned = _admit_input(found, self._ledger.now())
            elif found.key.startswith(keys.PROGRESS_PREFIX) and found.input not in self._transferred:
                if not (self._ending or self._state.over):
                    self._transferred.add(found.input)
                    self._append([_admit_input(found, self._ledger.now())])
            elif given and not self._ending:
                self._transferred.add(found.input)
                self._append([_admit_input(found, self._ledger.now())])

    # ---- the function ----

    async def _run_function(self, made: Registration, procedure: AnyProcess | None) -> None:
        name, now = keys.attempt_run(self._state.attempt), self._ledger.now()
        begun = any(isinstance(record, Started) and record.run == name for record in self._state.records)
        code = None if procedure is None else procedure.version
        facts = {"process": self._state.id, "function": self._state.name, "attempt": self._state.attempt}
        if begun:
            before = self._state.by if self._state.status == "running" and self._state.by != self._me else None
            event = "process resumed" if before is None else "took over from a dead process"
            log_event(_log, logging.INFO, event, **facts, before=before)
            self._append([Resumed(at=now, run=name, by=self._me)])
        else:
            log_event(_log, logging.INFO, "process started", **facts)
            durable = self._append([Started(at=now, run=name, code=code, by=self._me)])
            if made.recovery == "owner":
                await durable  # from here on no other process may begin it
        performer = Performer(self._ledger, fold_history(self._state.history), name)
        if self._state.inherited is not None:
            performer.journal_of = self._state.inherited.journal_of
            performer.birthplaces = self._state.inherited.birthplaces
        performer.iteration = self._state.attempt
        if made.parent is not None:
            performer.cause = Cause("process", keys.process_id_of(made.parent))
        else:
            id = self._state.id
            performer.cause = Cause("trigger", id) if id.startswith(TRIGGERED) else Cause("input", "1")
        waits = self._waits = ProcessWaits(performer)
        crash_point("process.begun")
        body = self._begin(performer, self._call(performer, waits, made, procedure))
        idle = spawn(waits.idle(), upkeep=True)
        try:
            await asyncio.wait({body, idle, self._stopped}, return_when=asyncio.FIRST_COMPLETED)
            while not (body.done() or self._stopped.done() or waits.quiet):  # something has come since
                idle = spawn(waits.idle(), upkeep=True)
                await asyncio.wait({body, idle, self._stopped}, return_when=asyncio.FIRST_COMPLETED)
            await self._finish(performer, waits, body)
        except asyncio.CancelledError:
            await self._leave(performer, body)
            raise
        finally:
            idle.cancel()
            await waits.close()
            await performer.close("ended")
            self._body = None

    async def _call(
        self, performer: Performer, waits: ProcessWaits, made: Registration, procedure: AnyProcess | None
    ) -> Any:  # the result of the function
        root = performer.root()
        current_scope.set(root)
        if made.recovery == "external":
            key = root.next("outside")
            ask = performer.request(key, "process", "outside", None)
            span = None if made.item is None else made.item.span_ms
            due = None if span is None else self._state.created + span
            source = StoreWait(self._store, self.session, keys.external_wait(performer.run), due)
            try:
                told = await wait_value(performer, await waits.seek(root, key, ask, source))
            except errors.WaitEnded as ended:
                if ended.state != "expired":
                    raise
                late = "it was not completed before its deadline"
                raise errors.ProcessFailed(self._state.id, "deadline", late) from None
            told = process_state.outside_answer(told)
            if "error" in told:
                raise errors.ProcessFailed(self._state.id, "outside", str(told["error"]))
            return told.get("value")
        if procedure is None:
            raise errors.FunctionUnknown(made.name, ())
        context = ProcessContext(self._context, self._state, performer, waits)
        code = procedure.function(context, **procedure.values(made.arguments))
        return await GuardedCoroutine(code, procedure.name)

    async def _finish(self, performer: Performer, waiting: ProcessWaits, body: asyncio.Task[Any]) -> None:
        if not body.done():
            waits = tuple(pending.source.label for pending in waiting.pending.values())
            performer.refuse()
            await cancel_and_wait(body)
            await performer.close("cancelled")
            performer.check_halted()
            error = body.exception() if body.done() and not body.cancelled() else None
            swallowed = error if isinstance(error, errors.SuspensionSwallowed) else None
            if swallowed is not None:
                _log.error("the process %r was stopped: %s", self._state.id, swallowed)
            if self._interruption is not None:
                await self._end_cancelled()
            elif swallowed is not None:
                await self._end("failed", error=error_info(swallowed, performer.redactor.text))
            else:
                crash_point("process.before_park")
                await performer.record([Parked(at=self._ledger.now(), run=performer.run, waits=waits)])
                crash_point("process.after_park")
                said = ", ".join(map(keys.wait_label, waits))
                log_event(_log, logging.INFO, "process waits", process=self._state.id, waits=said)
            return
        await performer.close("ended")
        performer.submit([], patient=True)  # what was abandoned is settled before what is left over is looked at
        error = RuntimeError("it cancelled the task that ran it") if body.cancelled() else body.exception()
        if isinstance(error, errors.StoreError):
            raise performer.halt(error) from error
        if error is not None and not isinstance(error, Exception):
            raise error
        performer.check_complete()
        if error is not None:
            await self._end_or_retry(performer, error)
            return
        try:
            result = performer.redactor.bytes(encode_value(body.result()))
            blob = await performer.keep(result) if len(result) > self._ledger.inline_bytes else None
        except errors.PayloadTooLarge as large:
            await self._end_or_retry(performer, errors.ResultTooLarge("a value", large.size, large.limit))
        except errors.HoldfastError as invalid:
            await self._end_or_retry(performer, invalid)
        else:
            await self._end("completed", result=result, blob=blob)

    async def _end_or_retry(self, performer: Performer, error: Exception) -> None:
        """Park the process until its next attempt if its retry policy allows one; otherwise end it."""
        info, attempt = error_info(error, performer.redactor.text), self._state.attempt
        trace = safe_trace(error, performer.redactor)
        procedure = self._processes.functions.get(self._state.name or "")
        policy = None if procedure is None else procedure.retry
        pause = None if policy is None else policy.pause_after(attempt, error)
        if pause is None:
            self._log_failure("process failed", error, info, trace)
            await self._end("failed", error=info, trace=trace)
            return
        self._log_failure("process attempt failed", error, info, trace)
        following, now = keys.attempt_run(attempt + 1), self._ledger.now()
        wait = keys.retry_wait(following)
        await self._store.open_wait(self.session, wait, deadline=now + round(pause * 1000))
        ended = Ended(at=now, run=performer.run, status="failed", error=info, trace=trace)
        parked = Parked(at=now, run=following, waits=(wait,))
        crash_point("process.before_retry")
        await performer.record([*self._left_over(performer.run), ended, parked])

    def _log_failure(self, event: str, error: Exception, info: ErrorInfo, trace: str) -> None:
        # The error of a step was logged with the step.
        raised = error if trace and not isinstance(error, errors.EffectFailed) else None
        fields = {"process": self._state.id, "function": self._state.name, "attempt": self._state.attempt}
        log_event(_log, logging.WARNING, event, raised=raised, **fields, error=f"{info.kind}: {info.message}")

    # ---- the end -----------------------------------------------------------------------------------------------------

    async def _is_settled_outside(self) -> bool:
        """End external work that was completed before the request to stop it; False if it was not.

        This closes the wait: `complete` reports later completions as late.
        """
        made = self._state.registration
        if made is None or made.recovery != "external":
            return False
        name = keys.external_wait(keys.attempt_run(self._state.attempt))
        await self._store.open_wait(self.session, name)
        wait = (await self._store.cancel_wait(self.session, name)).wait
        crash_point("external.withdrawn")
        if wait.state != "resolved":
            return False
        told = process_state.outside_answer(msgspec.json.decode(wait.payload or b"null"))
        if "error" in told:
            await self._end("failed", error=ErrorInfo("ProcessFailed", str(told["error"])))
            return True
        result = encode_value(told.get("value"))
        blob = await self._ledger.put_blob(result) if len(result) > self._ledger.inline_bytes else None
        await self._end("completed", result=result, blob=blob)
        return True

    async def _end_cancelled(self) -> None:
        if await self._is_settled_outside():
            return
        asked = cast("Admitted", self._interruption)
        await self._end("cancelled", first=[asked], error=ErrorInfo("cancelled", self._reason))

    async def _end_abandoned(self, asked: Admitted) -> None:
        if await self._is_settled_outside():
            return
        said = msgspec.json.decode(bytes(asked.body))
        who, why = said.get("by") or "a person", said.get("reason") or "no reason was given"
        made = self._state.registration
        gone = f"{self._state.by} ran it and is gone; " if made is not None and self._is_foreign(made) else ""
        evidence = f"{gone}{who} gave it up: {why}"
        await self._end("failed", first=[asked], error=ErrorInfo(process_state.ABANDONED_ERROR, evidence))

    async def _end(
        self,
        status: EndStatus,
        *,
        first: Sequence[Record] = (),
        error: ErrorInfo | None = None,
        trace: str = "",
        result: bytes = b"",
        blob: Blob | None = None,
    ) -> None:
        """Record the end and notify parent and session, in one commit."""
        name = keys.attempt_run(self._state.attempt)
        value = ABSENT if blob is not None or not result else msgspec.Raw(result)
        now = self._ledger.now()
        end = Ended(at=now, run=name, status=status, error=error, value=value, blob=blob, trace=trace)
        try:
            await self._look()  # the session that it was given to is notified of its end
        except errors.StoreError as trouble:
            _log.warning("the inbox of %r can't be read: %s", self.session, trouble)
        records: list[Record] = [*first, *self._left_over(name)]
        self._ending = True
        crash_point("process.before_end")
        if self._performer is None:
            await self._ledger.append([*records, end], notify=self._end_notices(end, result))
        else:
            await self._performer.seal(*records, end, notify=self._end_notices(end, result))
        crash_point("process.after_end")
        log_event(
            *(_log, logging.INFO, "process ended"),
            process=self._state.id,
            function=self._state.name,
            status=self._state.status,
            ms=now - (self._state.started or now),
            error=None if error is None else f"{error.kind}: {error.message}",
        )
        self._context.changes.ended(self.session, self._state)
        await self._stop_children()

    def _left_over(self, run: str) -> list[Record]:
        """Make outcomes for open intents of a run that ends: cancelled for waits, unknown for other effects."""
        now = self._ledger.now()
        return [
            Cancelled(at=now, key=key) if ask.kind in {"await_event", "sleep"} else Unknown(at=now, key=key)
            for key, ask in self._state.open.items()
            if key.startswith(f"{run}/")
        ]

    def _end_notices(self, end: Ended, said: bytes) -> list[Notify]:
        made, status = self._state.registration, process_state.process_status(end)
        notices: list[Notify] = []
        if made is not None and made.parent is not None:
            title = f"{keys.process_id_of(self.session)} {status}"
            notices.append(Notify(made.parent, "child_ended", title, "", key=f"child/{self.session}"))
        if self._state.session is not None:
            told = said.decode() if end.error is None else f"{end.error.kind}: {end.error.message}"
            notices.append(self._session_notice(self._state.session, status, told))
        return notices

    def _session_notice(self, session: str, status: str, told: str) -> Notify:
        body = process_state.notice_text(told)
        made = self._state.registration
        name = self._state.name if made is None or made.item is None else made.item.title
        title = f"The process {keys.process_id_of(self.session)} ({name}) is {status}"
        key = f"process/{keys.process_id_of(self.session)}"
        return Notify(session, f"process_{status}", title, body, source=self.session, key=key)

    async def _after_end(self) -> None:
        state, error = self._state, self._state.error
        pending = await self._store.pending(self.session)
        for found in pending:
            if found.key.startswith(keys.CHILD_PREFIX):  # it was put below the process while that was ending
                await self._ledger.append([_admit_input(found, self._ledger.now())])
        late = [found for found in pending if found.key.startswith(keys.TRANSFER_PREFIX)]
        if late and state.over:  # it was given to these sessions while its end was being recorded
            said = await process_value(self._store, state) if error is None else None
            told = encode_value(said).decode() if error is None else f"{error.kind}: {error.message}"
            for found in late:
                session = process_state.transferred_to(found.body)
                notice = self._session_notice(session, state.status, told)
                await self._ledger.append([_admit_input(found, self._ledger.now())], notify=[notice])
        await self._stop_children()

    async def _stop_children(self) -> None:
        """Cancel the children that end with the process. The next drive repeats this if it was interrupted."""
        if self._state.status == "cancelled":
            await self._processes.stop_below(self._state, f"the process {self._state.id} was cancelled")
        for child in self._state.children:
            why = f"the process {self._state.id} that started it has ended"
            await self._processes.end_child(child, why, self.session)
        crash_point("process.children_told")


def _admit_input(found: Input, now: int) -> Admitted:
    return Admitted(at=now, input=found.input, key=found.key, body=msgspec.Raw(found.body))
