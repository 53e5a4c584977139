"""The durable functions of a runtime and the processes of its store: start, list, signal, cancel, prune."""

from __future__ import annotations

import asyncio
import logging
import secrets
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeVar, get_args, overload

import msgspec

from holdfast import errors
from holdfast.agent import OutputT_co
from holdfast.crashpoints import crash_point
from holdfast.deps import check_deps
from holdfast.effects.canonical import as_declared, decode_value, encode_value, return_type
from holdfast.errors.store import not_served
from holdfast.eventloop import cancel_all, spawn
from holdfast.logs import log_event
from holdfast.names import check_choice, check_id, check_int, check_text, is_process_journal, is_task_id, is_turn_id
from holdfast.policy.rules import milliseconds
from holdfast.processes import keys, lists
from holdfast.processes.context import TURN_WAIT_KIND, AwaitedTurn, process_end, raise_unless_completed
from holdfast.processes.definition import AnyProcess, ProcessDefinition
from holdfast.processes.driver import FunctionDrive
from holdfast.processes.retries import RunEffects, large_values
from holdfast.processes.state import TERMINAL_STATUSES, ProcessState, ProcessStatus, Registration, Retry, TaskCall
from holdfast.processes.tasks import TASK_SPEND, TaskDrive
from holdfast.records import ErrorInfo, InputTaint, touches_lists
from holdfast.runtime.session_records import read_blob
from holdfast.runtime.turn import TurnReader
from holdfast.store.contract import Journal, JournalPreview, Receipt, Settlement, Work
from holdfast.store.inbox import STOP_KEY
from holdfast.tools.results import shorten
from holdfast.turns.keys import turn_id

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
    from datetime import timedelta

    from holdfast.processes.work_item import ExternalWork
    from holdfast.runtime.context import RuntimeContext
    from holdfast.runtime.session import Session
    from holdfast.runtime.turn import Turn


T = TypeVar("T")
Requested = Literal["requested", "already_requested", "too_late"]
Signalled = Literal["signalled", "already_signalled", "too_late"]


class Process(Generic[OutputT_co]):
    """A process that was started. The handle holds nothing and reads only what you ask for."""

    def __init__(self, context: RuntimeContext, processes: Processes, id: str) -> None:
        self.id = keys.check_process_id(id)
        self._context = context
        self._processes = processes

    def __repr__(self) -> str:
        return f"Process({self.id!r})"

    @overload
    async def result(self, *, timeout: float | None = None, returns: None = None) -> OutputT_co: ...

    @overload
    async def result(self, *, timeout: float | None = None, returns: type[T]) -> T: ...

    async def result(self, *, timeout: float | None = None, returns: type[Any] | None = None) -> Any:
        """Wait for the end, and return the result as the type `returns`, or as the one that the function declares.

        `ProcessFailed`, `ProcessCancelled` or `ProcessAbandoned` where it did not complete. A process that can't go on
        here raises why. A `TimeoutError` after `timeout` seconds leaves it alone.
        """
        try:
            async with asyncio.timeout(timeout):
                state = await self._wait_for_end()
        except errors.JournalPruned as error:  # while this was waiting
            raise errors.ProcessPruned(self.id, error.status, error.at) from None
        told = await process_end(self._context.store, state)
        raise_unless_completed(self.id, told)
        if returns is not None:
            return decode_value(encode_value(told["value"]), returns)
        return self._processes.as_declared(state.name, told["value"])

    async def _wait_for_end(self) -> ProcessState:
        """Wait for the end. A drive in this runtime reports it without a read."""
        context, journal = self._context, keys.process_journal(self.id)
        # Also before the first step of the drive, when nothing is claimed.
        driven = context.engine is not None and context.engine.drives(journal)
        head = 0
        while True:
            with context.changes.expecting(journal, head, ends=True) as found:
                if not driven and journal not in context.changes.local:
                    line = await self._processes.find(journal)
                    if line.status in TERMINAL_STATUSES:
                        return await self._processes.read(journal)
                    if line.quarantine is not None and line.moved:
                        raise not_served(line.id, line.quarantine)
                    error = context.sessions.stuck(journal)
                    if error is not None:
                        raise error
                    head = found.head = line.head
                driven, end = False, await found.news
                if isinstance(end, ProcessState) and end.over:
                    return end

    async def status(self) -> ProcessStatus:
        """Its status."""
        return (await self.line()).status

    async def line(self) -> lists.ProcessLine:
        """Its line in lists."""
        return await self._processes.line(self.id)

    async def signal(self, name: str, value: object = None, *, key: str | None = None) -> Signalled:
        """Send a signal that it waits for, or will wait for. After its end it is too late.

        The same value under the same `key` again is the same signal; another one is a `KeyConflict`.
        """
        return await self._processes.send_signal(self.id, name, value, keys.check_signal_key(key))

    async def cancel(self, reason: str = "") -> Requested:
        """Ask for it to be stopped, wherever it is. The first request counts; one after the end is too late."""
        return await self._processes.request_cancel(self.id, reason)

    async def complete(self, value: object = None) -> bool:
        """End a process that is carried out elsewhere; False if it had ended before."""
        return await self._processes.settle_outside(self.id, {"value": value})

    async def fail(self, message: str) -> bool:
        """End it with a failure."""
        return await self._processes.settle_outside(self.id, {"error": message})

    async def retry(
        self, *, from_step: str | None = None, key: str | None = None, repeat_unknown: bool = False
    ) -> Process:
        """Start it again from its failure, or from a step, as a new process that uses the results before.

        It must have ended without completing, else `RetryRefused`; it stays as it is. Done again are the effects with
        which it failed, or `from_step` and all later ones. The same `key` gives the same retry. Effects that may have
        taken effect are not repeated unless `repeat_unknown` says so.
        """
        return await self._processes.retry(self.id, from_step=from_step, key=key, repeat_unknown=repeat_unknown)

    async def transfer(self, session: str) -> Requested:
        """Let it work for another session, which is notified of its end. After the end it is too late."""
        return await self._processes.transfer(self.id, session)

    def events(self, after: int = 0) -> AsyncGenerator[lists.ProcessEvent]:
        """Its events from the beginning or after a cursor (`seq`), until it has ended."""
        return self._processes.events(self.id, after)

    async def timeline(self) -> list[lists.ProcessEvent]:
        """Its events so far."""
        state = await self._processes.read(keys.process_journal(self.id))
        return [lists.process_event(state.journal, seq, record) for seq, record in enumerate(state.records, 1)]


_log: Final = logging.getLogger("holdfast.processes")
MAX_REGISTRATION: Final = 256 * 1024
"""Longest arguments of a process, as JSON, in bytes."""
MAX_ERROR: Final = 10_000
"""Longest recorded reason why a process is stuck, in characters."""
MAX_RETRIES: Final = 100
"""Longest chain of retries, each of the one before."""
MAX_SIGNALS: Final = 10_000
"""Most signals of one name that may wait for a process."""


@contextmanager
def _process_errors(journal: str) -> Generator[None]:
    """Raise `ProcessUnknown` or `ProcessPruned` for a journal that is not there."""
    try:
        yield
    except errors.JournalPruned as error:
        raise errors.ProcessPruned(keys.process_id_of(journal), error.status, error.at) from None
    except errors.JournalMissing:
        raise errors.ProcessUnknown(keys.process_id_of(journal)) from None


@dataclass(slots=True)
class _StoreView:
    """Who drives what in the store, at one moment."""

    driven: set[str] = field(default_factory=set[str])
    """Journals whose lease a live process holds."""
    woken: set[str] = field(default_factory=set[str])
    """Journals that have work and no live holder."""
    stopped: dict[str, tuple[int | None, ErrorInfo]] = field(default_factory=dict[str, tuple[int | None, ErrorInfo]])
    """The error that stopped a journal, with its head at that time; the head is None for errors of this runtime."""


class Processes:
    """The processes of one store, and the functions that this runtime can run."""

    def __init__(self, context: RuntimeContext, given: Sequence[AnyProcess] = ()) -> None:
        self._context = context
        self._store = context.store
        self.functions: dict[str, AnyProcess] = {}
        """The functions that can run here, by name."""
        self._left: dict[str, int] = {}
        """Processes that another worker must resume, with the wakes up to which this runtime has looked."""
        self._turns: dict[str, asyncio.Task[None]] = {}
        """Turns that are waited for, by the name or the token of the wait."""
        self._noting: set[asyncio.Task[None]] = set()
        """Tasks that record why processes are stuck."""
        if not isinstance(given, list | tuple):
            raise errors.InvalidArgument("processes", given, "a list of functions made with @hf.process")
        for procedure in given:
            self.add(procedure)

    # ---- functions ---------------------------------------------------------------------------------------------------

    def add(self, procedure: AnyProcess) -> AnyProcess:
        """Let `procedure` run here."""
        if not isinstance(procedure, ProcessDefinition):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers may be untyped
            raise errors.InvalidArgument("process", procedure, "a function made with @hf.process")
        if procedure.name == keys.WORK_ITEM:
            raise errors.ProcessInvalid(procedure.name, "work items have this name; give the function another one")
        if self._context.engine is not None:
            check_deps(self._context.deps, procedure.deps, f"the process {procedure.name!r}")
        known = self.functions.setdefault(procedure.name, procedure)
        if known is not procedure:
            reason = "another function has this name here; give one of them another name"
            raise errors.ProcessInvalid(procedure.name, reason)
        if self._context.engine is not None:
            self._context.engine.wake()  # what was left alone until now can go on
        return procedure

    def procedure(self, given: AnyProcess | str) -> AnyProcess:
        """The function by name. A function that is passed itself gets registered."""
        if isinstance(given, str):
            found = self.functions.get(given)
            if found is None:
                raise errors.FunctionUnknown(given, tuple(self.functions))
            return found
        return self.add(given)

    def as_declared(self, name: str | None, value: object) -> Any:
        """The result of a function as the type that it declares, if the function is known here."""
        function = self.functions.get(name or "")
        wanted = None if function is None else return_type(function.function)
        return value if wanted is None else as_declared(value, wanted)

    # ---- starting ----------------------------------------------------------------------------------------------------

    async def start(
        self,
        procedure: AnyProcess | str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        id: str | None = None,
        session: str | None = None,
        untrusted: bool = False,
    ) -> Process:
        """Start a process. When this returns it is durable, and will come to an end whatever happens.

        `untrusted`: strangers wrote its arguments.
        """
        made = self.procedure(procedure)
        chosen = f"{made.name[:100]}-{secrets.token_hex(6)}" if id is None else keys.check_process_id(id)
        taint = InputTaint(f"the arguments of the process {chosen}") if untrusted else None
        registration = Registration(
            made.name, made.stored(args, kwargs), made.recovery, made.on_parent_end, taint=taint
        )
        return self.handle(await self.register(chosen, registration, session))

    async def external(
        self,
        *,
        title: str,
        instructions: str = "",
        tags: Sequence[str] = (),
        requested_by: str | None = None,
        metadata: dict[str, Any] | None = None,
        key: str | None = None,
        session: str | None = None,
        deadline: timedelta | float | None = None,
        parent: Session[Any] | Turn[Any] | Process[Any] | str | None = None,
    ) -> ExternalWork:
        """Begin a work item: a process that a person or another system carries out. It is durable when this returns.

        Whoever has its id or its token ends it with `complete` or `fail`, in any process. The same `key` with the same
        content is the same item; with other content it raises `ProcessConflict`. The `session` is notified of its end.
        After `deadline` (a timedelta or seconds) it fails.

        The `parent` is what it belongs to: a session, a turn or a process, or the name of one (``"s"``, ``"s/t3"``,
        ``"process/p"``). Its session is notified of the end, and the item is forgotten with it. The item is cancelled
        with the turn, and ends with the process.
        """
        from holdfast.processes.work_item import WorkItems, check_work_item  # it needs this module

        self._context.sessions.check_open()
        item = check_work_item(title, instructions, tags, requested_by, metadata, deadline)
        return await WorkItems(self._context, self).begin(item, key, session, parent)

    def find_external(self, id: str) -> ExternalWork:
        """The handle of a work item, by its id or its token. This reads nothing."""
        from holdfast.processes.work_item import WorkItems

        return WorkItems(self._context, self).handle(id)

    async def register(
        self, id: str, made: Registration, session: str | None, under: tuple[str, str] | None = None
    ) -> str:
        """Record that a process is to run. The same registration again finds the same process.

        `under` is the journal that it belongs to, and the key of the request that stops that.
        """
        journal = keys.process_journal(id)
        size = len(msgspec.json.encode(made))
        if size > MAX_REGISTRATION:
            raise errors.PayloadTooLarge("the arguments of a process", size, MAX_REGISTRATION)
        try:
            receipt = await self.accept(journal, made.name, made, session, under=under)
        except errors.JournalPruned as error:
            if error.same:
                return id  # it has run, and does not run again
            raise self._conflict(id, made, session) from None
        except (errors.KeyConflict, errors.JournalConflict):
            raise self._conflict(id, made, session) from None
        if receipt.fresh:
            self.begin_drive(journal)
        return id

    async def accept(
        self,
        journal: str,
        name: str,
        call: Registration | TaskCall,
        session: str | None,
        *,
        patient: bool = False,
        old: str | None = None,
        under: tuple[str, str] | None = None,
    ) -> Receipt:
        """Make the journal of a process together with its call: neither is ever there without the other.

        `name` is that of the function, or of the agent of a background call. `patient`: another command follows. `old`
        is the journal of which it is the retry.
        """
        is_task = isinstance(call, TaskCall)
        parent = None if is_task or call.on_parent_end != "cancel" else call.parent
        above = None if parent is None else (parent, STOP_KEY)
        return await self._store.accept_into(
            journal,
            "process",
            name,
            msgspec.to_builtins(call),
            key=keys.CALL_KEY,
            role=keys.TASK_ROLE if is_task else keys.PROCESS_ROLE,
            session=session,
            under=under or above,
            spend=TASK_SPEND if is_task else None,
            patient=patient,
            parent=old,
        )

    # ---- second chances ----------------------------------------------------------------------------------------------

    async def retry(self, id: str, *, from_step: str | None, key: str | None, repeat_unknown: bool) -> Process:
        """Start an ended process again, from its failure or from a step. See `Process.retry`."""
        journal = keys.process_journal(id)
        old = await self.read(journal)
        made = old.registration
        if made is None or not old.over:
            raise errors.RetryRefused(id, f"it has not ended, it is {old.status}; cancel it first")
        if old.status == "completed":
            raise errors.RetryRefused(id, "it has completed; start another process")
        known = [keys.process_id_of(each) for each in await self._store.forks(journal)]
        if key is None:
            for successor in known:
                if not (await self._glance(keys.process_journal(successor))).over:
                    raise errors.RetryRefused(id, f"{successor!r} is its retry and has not ended")
        named = f"#{len(known) + 1}" if key is None else f"key {check_id('key', key)}"
        chosen = keys.retry_id(old.name or id, journal, named)
        if chosen in known:
            before = (await self.read(keys.process_journal(chosen))).registration
            if key is not None and (before is None or before.retry is None or before.retry.step != from_step):
                raise errors.KeyConflict(id, key)
            return self.handle(chosen)
        number = 1 if made.retry is None else made.retry.number + 1
        if number > MAX_RETRIES:
            raise errors.RetryRefused(id, f"it is the {number}th retry in a row, {MAX_RETRIES} are allowed; start anew")
        again = await self._effects_to_repeat(old, from_step, repeat_unknown=repeat_unknown)
        retry = Retry(id, tuple(again), from_step, old.attempt, number)
        # Nobody waits for it: its parent has had the end of the old one.
        new = msgspec.structs.replace(made, parent=None, key=None, retry=retry)
        crash_point("process.before_second_chance")
        try:
            receipt = await self.accept(keys.process_journal(chosen), made.name, new, old.session, old=journal)
        except (errors.KeyConflict, errors.JournalConflict):
            raise errors.KeyConflict(id, key or named) from None  # another caller was quicker, with another step
        crash_point("process.after_second_chance")
        if receipt.fresh:
            log_event(_log, logging.INFO, "process retried", process=id, retry=chosen, step=from_step)
            self.begin_drive(keys.process_journal(chosen))
        return self.handle(chosen)

    async def _effects_to_repeat(self, old: ProcessState, step: str | None, *, repeat_unknown: bool) -> list[str]:
        """The effects with which a retry begins: those that failed or the named step, and work that never ended."""
        bodies = {blob.digest: await read_blob(self._store, blob.digest) for blob in large_values(old.history)}
        effects = RunEffects(old.history, keys.attempt_run(old.attempt), bodies)
        if step is None:
            again = effects.ended_badly(old.error)
        else:
            again = effects.named(step)
            if len(again) != 1:
                found = ", ".join(again or effects.found) or "none"
                why = f"several of its effects have the name {step!r}" if again else f"it has no step {step!r}"
                raise errors.RetryRefused(old.id, f"{why}; name one of these keys: {found[:2_000]}")
        gone = effects.left_out(again, whole=step is not None)
        begun = [(key, kind, told) for key, kind, told in effects.begun_elsewhere() if key not in gone]
        again += [key for key, kind, told in begun if not await self._has_completed(kind, told)]
        gone = effects.left_out(again, whole=step is not None)
        unknown = effects.unknown(gone)
        if unknown and not repeat_unknown:
            said = ", ".join(unknown)[:2_000]
            reason = f"nobody knows whether these took effect: {said}; find out, then retry with repeat_unknown=True"
            raise errors.RetryRefused(old.id, f"{reason} (--repeat-unknown), or from a later step")
        return again

    async def _has_completed(self, kind: str, told: dict[str, Any]) -> bool:
        """Whether a child or a turn that a process began has completed: only then its result is used again."""
        try:
            if kind == "start":
                return (await self._glance(keys.process_journal(told["id"]))).status == "completed"
            if kind == "agent":
                reader = TurnReader(self._store, told["session"], told["input"], 0, known=True)
                ending = await reader.read()
                return ending is not None and ending.status == "completed"
        except errors.ProcessPruned as error:
            return error.status == "completed"
        except (errors.ProcessUnknown, errors.JournalMissing):
            pass
        return False

    def begin_drive(self, journal: str) -> None:
        """Drive a process that was accepted, if this runtime drives any."""
        if self._context.engine is not None:
            self._context.engine.begin_task(journal, self._drive(journal))

    def _drive(self, journal: str) -> FunctionDrive | TaskDrive:
        return (TaskDrive if is_task_id(journal) else FunctionDrive)(self._context, journal)

    def _conflict(self, id: str, made: Registration, session: str | None) -> errors.ProcessConflict:
        working = "" if session is None else f" for the session {session!r}"
        return errors.ProcessConflict(id, f"{made.name}({msgspec.json.encode(made.arguments).decode()[:200]}){working}")

    def drive_of(self, work: Work | str, only: str | None) -> FunctionDrive | TaskDrive | None:
        """The drive of a process, if its function or agent is here or the host asked for it; `only` of one session."""
        if isinstance(work, str):
            return None if only is not None and is_task_id(work) else self._drive(work)
        journal, known = work.journal, self._context.agents if is_task_id(work.journal) else self.functions
        if (only is not None and work.session != only) or self.is_left(journal, work.wakes):
            return None
        if work.agent not in known and (work.agent != keys.WORK_ITEM or is_task_id(journal)):
            return None
        return self._drive(journal)

    def leave(self, journal: str, wakes: int) -> None:
        """Leave a process to another worker (its owner, or one that has its tool) until something comes for it."""
        self._left[journal] = wakes

    def is_left(self, journal: str, wakes: int = 0) -> bool:
        """Whether a process is left to another worker, and nothing (a cancel, a deadline) came for it since."""
        if wakes <= self._left.get(journal, -1):
            return True
        self._left.pop(journal, None)
        return False

    # ---- finding -----------------------------------------------------------------------------------------------------

    def handle(self, id: str) -> Process:
        """The handle of a process. This reads nothing."""
        return Process(self._context, self, id)

    async def get(self, id: str) -> Process:
        """The process with this id, also one that was pruned; `ProcessUnknown` when there never was one."""
        with suppress(errors.ProcessPruned):
            await self.find(keys.process_journal(id))
        return self.handle(id)

    async def find(self, journal: str) -> Journal:
        """The journal of a process; `ProcessUnknown` when there is none, `ProcessPruned` when there was."""
        with _process_errors(journal):
            return await self._store.journal(journal)

    async def read(self, journal: str) -> ProcessState:
        """A process with all of its records; `ProcessUnknown` when there is none, `ProcessPruned` when there was."""
        with _process_errors(journal):
            return await lists.read_process(self._store, journal)

    async def _glance(self, journal: str) -> ProcessState:
        with _process_errors(journal):
            return await lists.glance_process(self._store, journal)

    async def line(self, id: str) -> lists.ProcessLine:
        """The list line of a process, also of a pruned one, with its retries."""
        try:
            line = lists.process_line(await self.read(keys.process_journal(id)))
            retries = tuple(map(keys.process_id_of, await self._store.forks(keys.process_journal(id))))
            return msgspec.structs.replace(line, retries=retries) if retries else line
        except errors.ProcessPruned:
            stone = await self._store.tombstone(keys.process_journal(id))
            if stone is None:
                raise
            return lists.tombstone_line(stone)

    async def list(
        self,
        *,
        status: ProcessStatus | None = None,
        name: str | None = None,
        session: str | None = None,
        parent: str | None = None,
        tag: str | None = None,
        before: lists.ProcessLine | None = None,
        limit: int = 50,
    ) -> list[lists.ProcessLine]:
        """Processes, those that changed last first. Pass the last one as `before` for the next page.

        Of long ones, `by`, `starts` and `children` are told as far as the last records say; `line` knows all.
        """
        if status is not None:
            check_choice("process status", status, get_args(ProcessStatus))
        check_int("limit", limit, least=1)
        last = None if before is None else await self._position(before)
        stored = None if status is None else lists.stored_status(status)
        pages = partial(lists.journal_pages, self._store, keys.PROCESS_ROLE, agent=name, status=stored, session=session)
        if parent is not None:
            candidates = self._children(parent, last)
        elif session is not None:
            candidates = self._of_session(pages, last)
        else:
            candidates = pages(size=limit, before=last)
        wanted = (status, name, session)
        found: list[lists.ProcessLine] = []
        async for journals in candidates:
            for line in await self._lines(journals):
                known = (line.status, line.name, line.session)
                fits = all(one is None or one == other for one, other in zip(wanted, known, strict=True))
                fits = fits and (parent is None or parent in {line.parent, _session_of(line.parent)})
                if fits and (tag is None or tag in line.tags):
                    found.append(line)
            if len(found) >= limit:
                break
        return found[:limit]

    async def _position(self, line: lists.ProcessLine) -> Journal:
        """The position of a line in the list, even if its process was pruned meanwhile."""
        try:
            return await self._store.journal(keys.process_journal(line.id))
        except errors.JournalMissing:
            stone = await self._store.tombstone(keys.process_journal(line.id))
            updated = line.updated if stone is None else stone.updated
            return Journal(keys.process_journal(line.id), "process", line.name, "completed", 1, line.created, updated)

    async def _journals(self, ids: Sequence[str]) -> list[Journal]:
        return [each.line for each in await lists.preview_processes(self._store, ids, tail=1)]

    async def _children(self, parent: str, last: Journal | None) -> AsyncGenerator[list[Journal]]:
        """The children of a process, as its state names them."""
        try:
            state = await lists.read_process(self._store, keys.process_journal(parent))
        except (errors.JournalMissing, errors.InvalidId):  # a session, or one of its turns
            head, _, turn = parent.rpartition("/")
            for session in [parent, *([head] if head and is_turn_id(turn) else [])]:
                listed = lists.journal_pages(self._store, keys.PROCESS_ROLE, agent=keys.WORK_ITEM, session=session)
                async for page in listed:
                    yield _lines_after(page, last)
            return
        yield _lines_after(await self._journals([keys.process_journal(id) for id in state.children]), last)

    async def _of_session(
        self, pages: Callable[..., AsyncGenerator[list[Journal]]], last: Journal | None
    ) -> AsyncGenerator[list[Journal]]:
        """Processes that were started for a session, and all that were ever transferred."""
        left: dict[str, Journal] = {}
        after = ""
        while ids := await self._store.transferred(keys.TRANSFER_PREFIX, after=after):
            left |= {line.id: line for line in await self._journals(ids)}
            after = ids[-1]
        async for page in pages(before=last):
            own = [line for line in page if line.id not in left]
            end = _list_position(page[-1])
            late = _lines_after([line for line in left.values() if _list_position(line) > end], last)
            yield sorted([*own, *late], key=_list_position, reverse=True)
            last = page[-1]
        yield _lines_after(list(left.values()), last)

    async def _lines(self, listed: Sequence[Journal]) -> list[lists.ProcessLine]:
        """The lines of these journals, without quarantined ones."""
        ids = [line.id for line in listed if line.quarantine is None]
        found = await lists.preview_processes(self._store, ids)
        states = [(each, lists.state_of_preview(each)) for each in found if each.tail is not None]
        view = None if all(state.over for _, state in states) else await self._view()
        told: list[lists.ProcessLine] = []
        for each, state in states:
            stuck = None if view is None or state.over else await self._reason(each, view)
            line = lists.process_line(state)
            told.append(line if stuck is None else msgspec.structs.replace(line, stuck=stuck.reason))
        return told

    # ---- what needs a person -----------------------------------------------------------------------------------------

    async def stuck(self, limit: int | None = None) -> list[lists.StuckProcess]:
        """Processes that need a person, with the command that helps."""
        if limit is not None:
            check_int("limit", limit, least=1)
        view = await self._view()
        found: dict[str, lists.StuckProcess] = {}
        async for page in self._candidates_for_stuck(view):
            undriven = [line for line in page if line.id not in view.driven]
            for line in undriven:
                if line.quarantine is not None:
                    id, told = keys.process_id_of(line.id), f"its journal is damaged: {line.quarantine}"
                    found.setdefault(id, lists.StuckProcess(id, line.agent, told, "holdfast doctor"))
            sound = [line.id for line in undriven if line.quarantine is None]
            for each in await lists.preview_processes(self._store, sound):
                if (reason := await self._reason(each, view)) is not None:
                    found.setdefault(reason.id, reason)
            if limit is not None and len(found) >= limit:
                break
        return [*found.values(), *await self._context.sessions.without_agent()][:limit]

    async def _candidates_for_stuck(self, view: _StoreView) -> AsyncGenerator[list[Journal]]:
        """Candidates: stopped, woken, running and idle processes, and waiting ones without a deadline."""
        if stopped := list({**view.stopped, **dict.fromkeys(view.woken)}):
            yield await self._journals(stopped)
        for status in ("running", "waiting", "idle"):
            untimed = status == "waiting"
            async for page in lists.journal_pages(self._store, keys.PROCESS_ROLE, status=status, untimed=untimed):
                yield page

    async def _reason(self, each: JournalPreview, view: _StoreView) -> lists.StuckProcess | None:
        state, journal = lists.state_of_preview(each), each.line.id
        owned = state.registration is not None and state.registration.recovery == "owner"
        if owned and state.status == "running" and state.by is None and each.line.head > lists.PREVIEW_RECORDS:
            state = await lists.read_process(self._store, journal)  # who ran it stands further up
        at, stopped = view.stopped.get(journal, (0, None))
        error = stopped if at is None or at == each.line.head else None  # it has not grown since
        woken = journal in view.woken
        found = lists.why_stuck(
            state,
            driven=journal in view.driven,
            woken=woken,
            known=state.name in self.functions,
            works=self._context.engine is not None,
            error=error,
        )
        if found is not None and state.status == "waiting" and error is None and not woken:
            waits = await self._store.waits(journal, state="open")
            return None if any(wait.deadline is not None for wait in waits) else found
        return found

    async def _view(self) -> _StoreView:
        view = _StoreView()
        async for work, holder in lists.all_work(self._store):
            if work.role == keys.PROCESS_ROLE:
                (view.woken if holder is None else view.driven).add(work.journal)
        async for wait in lists.all_open_waits(self._store, keys.STUCK_KIND):
            error = msgspec.json.decode(wait.body or b"", type=ErrorInfo)
            view.stopped.setdefault(wait.journal, (keys.stuck_head(wait.name), error))
        if self._context.engine is not None:
            for journal, stopped in self._context.engine.stuck.items():
                if is_process_journal(journal):
                    view.stopped[journal] = (None, ErrorInfo(type(stopped).__name__, str(stopped)))
        return view

    # ---- changes -----------------------------------------------------------------------------------------------------

    async def changes(self, after: int = 0, limit: int | None = None) -> lists.ProcessChanges:
        """Processes that began, went on, waited or ended, in the order in which they did, from a cursor on.

        A process that was pruned is told once, in its place, with how it ended, to whoever has not come to its end.
        """
        entries = await self._store.feed(after=after, limit=limit)
        if not entries:
            return lists.ProcessChanges(after, [])
        end = entries[-1].pos
        stones = await self._store.tombstones(after=after, role=keys.PROCESS_ROLE, limit=limit)
        if len(stones) >= min(limit or self._store.limits.page, self._store.limits.page):
            end = min(end, stones[-1].pos)  # there may be more of them: the next call goes on behind this one
        changed = [
            (entry.pos, lists.process_event(entry.journal, entry.seq, entry.record))
            for entry in entries
            if entry.pos <= end and entry.record is not None
            if is_process_journal(entry.journal) and touches_lists(entry.record)
        ]
        changed += [(stone.pos, lists.tombstone_event(stone)) for stone in stones if stone.pos <= end]
        return lists.ProcessChanges(end, [event for _, event in sorted(changed, key=lambda one: one[0])])

    async def prune(
        self, older_than: timedelta | float, *, name: str | None = None, dry_run: bool = False, limit: int | None = None
    ) -> lists.PruneReport:
        """Forget processes that ended so long ago, with all that belongs to them. A tombstone of each stays for ever.

        What is not over stays, and what a process that is under way may still ask for. `name` is that of the function;
        with `dry_run`, nothing is done but the report.
        """
        if name is not None:
            check_id("process", name)
        if limit is not None:
            check_int("limit", limit, least=1)
        before = self._store.clock.read().wall - milliseconds(older_than)
        return await lists.prune_processes(self._store, before, name=name, dry_run=bool(dry_run), limit=limit)

    async def events(self, id: str, after: int = 0) -> AsyncGenerator[lists.ProcessEvent]:
        """What happens in a process, from its beginning or from a cursor, until it has ended."""
        journal = keys.process_journal(id)
        await self.find(journal)
        while True:
            version = self._store.version
            over = (await self.find(journal)).status in TERMINAL_STATUSES
            async for entry in self._store.read_all(journal, after=after):
                after = entry.seq
                yield lists.process_event(journal, entry.seq, entry.record)
            if over:
                return
            await self._context.changes.beyond(journal, after, version)

    # ---- telling them things -----------------------------------------------------------------------------------------

    async def send_signal(self, id: str, name: str, value: object, key: str | None = None) -> Signalled:
        """Answer what a process waits for, or will wait for. Each signal answers one wait, in the order they came.

        The same value under the same `key` again is the same signal, another one a `KeyConflict`.
        """
        journal, attempt, told = keys.process_journal(id), 0, None
        while True:
            try:
                state = await self._glance(journal)
                if state.over or state.attempt == attempt:
                    break
                attempt = state.attempt  # each has its own signals; the one that was told may have failed meanwhile
                prefix = keys.signal_prefix(keys.attempt_run(attempt), name)
                told = await self._store.answer_next(journal, prefix, value, most=MAX_SIGNALS, key=key)
            except (errors.ProcessPruned, errors.JournalMissing):
                break
            if told.won:
                self._context.poke(journal)
        if told is None:
            with suppress(errors.JournalMissing):
                if retries := await self._store.forks(journal):
                    return await self.send_signal(keys.process_id_of(retries[-1]), name, value, key)
            return "too_late"
        return "signalled" if told.won else "already_signalled"

    async def settle_outside(self, id: str, told: dict[str, Any]) -> bool:
        """End a process that is carried out elsewhere; False if it had ended before."""
        journal = keys.process_journal(id)
        try:
            state = await self.read(journal)
        except errors.ProcessPruned:
            return False
        if state.registration is None or state.registration.recovery != "external":
            reason = "it is not carried out elsewhere; only recovery='external' is completed by hand"
            raise errors.ProcessInvalid(id, reason)
        if state.over:
            return False
        token = self._store.wait_token(journal, keys.external_wait(keys.attempt_run(state.attempt)))
        with suppress(errors.WaitUnknown):
            won = (await self._store.resolve(token, told)).won
            self._context.poke(journal)
            return won
        return False

    async def request_cancel(self, id: str, reason: str) -> Requested:
        """Ask for a process to be cancelled. The first request counts; one after the end is too late.

        When this returns the request is durable for the turns and processes below it, too: none begins anything more.
        """
        return await self.cancel(keys.process_journal(id), reason, f"the process {id} was cancelled")

    async def cancel(self, journal: str, reason: str, reason_below: str) -> Requested:
        """Ask for a durable function or a background call to be cancelled, with all below it."""
        asked = await self._request(journal, STOP_KEY, {"cancel": check_text("reason", reason)})
        if asked != "too_late":
            crash_point("cancel.accepted")
            with suppress(errors.ProcessPruned):
                await self.stop_below(await self.read(journal), reason_below)
        return asked

    async def stop_below(self, state: ProcessState, reason: str) -> None:
        """Stop what a cancelled process has begun.

        That is the sub-agent of a background call, turns in sessions of its own, and processes that end with it.
        """
        if state.call is not None and state.session is not None:
            await self._context.children.stop_call(state.session, state.call.idempotency, reason)
        for session, number in state.turns:
            await self.stop_turn(session, number, reason)
        new = [found.key for found in await self._store.pending(state.journal)]
        below = [key.removeprefix(keys.CHILD_PREFIX) for key in new if key.startswith(keys.CHILD_PREFIX)]
        for child in (*state.children, *below):
            await self.end_child(child, reason, state.journal)

    async def stop_items(self, session: str, turn: str, reason: str) -> None:
        """Cancel the work items that belong to a turn."""
        for status in ("idle", "running", "waiting"):
            pages = lists.journal_pages(
                self._store, keys.PROCESS_ROLE, agent=keys.WORK_ITEM, session=session, status=status
            )
            async for page in pages:
                for found in await lists.preview_processes(self._store, [line.id for line in page], tail=1):
                    state = lists.state_of_preview(found)
                    item = None if state.registration is None else state.registration.item
                    if item is not None and (item.parent, item.turn) == (session, turn):
                        with suppress(*lists.DAMAGE):  # then it does not go on either
                            await self.request_cancel(state.id, f"the turn {session}/{turn} was stopped: {reason}")

    def tell_stuck(self, journal: str, error: errors.HoldfastError) -> None:
        """Record in the background why a process is stuck here, so that `stuck` reports it everywhere."""
        task = spawn(self._note_stuck(journal, error))
        self._noting.add(task)
        task.add_done_callback(self._noting.discard)

    async def _note_stuck(self, journal: str, error: errors.HoldfastError) -> None:
        with suppress(errors.HoldfastError):
            state = await self._glance(journal)
            before = [wait for wait in await self._store.waits(journal, state="open") if wait.kind == keys.STUCK_KIND]
            name = keys.stuck_wait(keys.attempt_run(state.attempt), state.head)
            body = msgspec.json.encode(ErrorInfo(type(error).__name__, shorten(str(error), MAX_ERROR)))
            await self._store.open_wait(journal, name, kind=keys.STUCK_KIND, body=body)
            for wait in before:
                if wait.name != name:
                    await self._store.cancel_wait(journal, wait.name)

    async def abandon(self, id: str, reason: str = "", *, by: str = "") -> Requested:
        """Give up a process that can't go on. It ends as abandoned, with who and why.

        `ProcessInvalid` for one that somebody runs, or that only waits: those are cancelled.
        """
        await self._check_given_up(id)
        said = {"abandon": True, "reason": check_text("reason", reason), "by": check_text("by", by, 200)}
        return await self._request(keys.process_journal(id), keys.ABANDON_KEY, said)

    async def _check_given_up(self, id: str) -> None:
        journal = keys.process_journal(id)
        try:
            state = await self.read(journal)
        except errors.ProcessPruned:
            return
        if state.over:
            return
        holders = (holder async for work, holder in lists.all_work(self._store) if work.journal == journal)
        made, holder = state.registration, await anext(holders, None)
        foreign = made is not None and made.recovery == "owner" and state.starts > 0
        if holder is not None and not (foreign and holder.describe() != state.by):
            raise errors.ProcessInvalid(id, "a process runs it now; cancel it instead")
        waits = state.status == "waiting" and made is not None and made.recovery == "rerunnable"
        if waits and not [one for one in await self._store.waits(journal, state="open") if one.kind == keys.STUCK_KIND]:
            raise errors.ProcessInvalid(id, "it waits, and goes on when that comes; cancel it instead")

    async def transfer(self, id: str, session: str) -> Requested:
        """Let a process work for another session, which is notified of its end. After the end it is too late."""
        await self._store.journal(check_id("session", session))
        key = f"{keys.TRANSFER_PREFIX}{secrets.token_hex(8)}"
        return await self._request(keys.process_journal(id), key, {"session": session})

    async def _request(self, journal: str, key: str, said: dict[str, Any]) -> Requested:
        """Put a request into the inbox of a process, and drive it even if it is stuck. The first under a key counts."""
        try:
            if (await self.find(journal)).status in TERMINAL_STATUSES:
                return "too_late"
            fresh = (await self._store.accept(journal, said, key=key, urgent=True)).fresh
        except (errors.ProcessPruned, errors.JournalPruned):
            return "too_late"
        except errors.KeyConflict:
            fresh = False
        if self._context.engine is not None:
            self._context.engine.retry(journal)
        return "requested" if fresh else "already_requested"

    async def end_child(self, id: str, reason: str, parent: str) -> None:
        """Cancel a child whose parent has ended, unless it is to go on by itself."""
        try:
            state = await self.read(keys.process_journal(id))
        except (errors.ProcessUnknown, errors.StoreError):
            return
        made = state.registration
        if state.over or made is None or made.on_parent_end != "cancel":
            return
        if made.item is None or made.item.parent == parent:
            await self.request_cancel(id, reason)

    async def settle(self, journal: str) -> None:
        """Drive a process once: carry out requests in its inbox."""
        await self._drive(journal).run()

    # ---- turns of agents ---------------------------------------------------------------------------------------------

    async def stop_turn(self, session: str, number: int, reason: str) -> None:
        """Cancel a turn because the process that asked for it was cancelled."""
        with suppress(errors.HoldfastError):
            await self._context.sessions.handle(session).turn(turn_id(number)).cancel(reason)

    def answer_on_end(self, turn: AwaitedTurn, journal: str, wait: str) -> None:
        """Answer the wait of a process when a turn has ended."""
        self.watch_turn(turn, f"{journal} {wait}", partial(self._store.answer_wait, journal, wait, value=True))

    def watch_turn(self, turn: AwaitedTurn, wait: str, answer: Callable[[], Awaitable[Settlement]]) -> None:
        """Answer a wait when a turn has ended. `wait` names it among all that are watched."""
        if wait not in self._turns:
            task = self._turns[wait] = spawn(self._answer_turn(turn, answer))
            task.add_done_callback(lambda _: self._turns.pop(wait, None))

    async def _answer_turn(self, turn: AwaitedTurn, answer: Callable[[], Awaitable[Settlement]]) -> None:
        try:
            reader = TurnReader(self._store, turn.session, turn.input, 0, known=True)
            with suppress(errors.JournalMissing, errors.JournalMoved):  # forgotten, or moved: that is an end, too
                await reader.wait(self._context)
            self._context.poke((await answer()).wait.journal)
        except errors.HoldfastError as error:  # whoever waits looks by itself after a while
            _log.debug("nobody tells of the end of a turn of %r: %s", turn.session, error)

    async def begin(self) -> None:
        """Watch the turns that processes waited for before this runtime was opened."""
        if self._context.engine is None:
            return
        async for wait in lists.all_open_waits(self._store, TURN_WAIT_KIND):
            turn = msgspec.json.decode(wait.body or b"", type=AwaitedTurn)
            self.answer_on_end(turn, wait.journal, wait.name)

    async def close(self) -> None:
        """Stop watching turns."""
        await asyncio.gather(*self._noting, return_exceptions=True)
        await cancel_all(list(self._turns.values()))


def _session_of(parent: str | None) -> str | None:
    """The session of a turn that a work item belongs to."""
    head, _, turn = (parent or "").rpartition("/")
    return head if head and is_turn_id(turn) else None


def _list_position(line: Journal) -> tuple[int, str]:
    return line.updated, line.id


def _lines_after(lines: Sequence[Journal], last: Journal | None) -> list[Journal]:
    """The lines after `last`, in list order."""
    later = [line for line in lines if last is None or _list_position(line) < _list_position(last)]
    return sorted(later, key=_list_position, reverse=True)
