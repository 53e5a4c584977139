"""The durable functions of a runtime and the processes of its store: started, listed, and told things."""

from __future__ import annotations

import asyncio
import logging
import secrets
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, get_args

import msgspec

from holdfast.bounds import check_int
from holdfast.errors import (
    HoldfastError,
    InvalidArgument,
    JournalConflict,
    JournalMissing,
    KeyConflict,
    PayloadTooLarge,
    StoreError,
    WaitUnknown,
)
from holdfast.errors.processes import FunctionUnknown, ProcessConflict, ProcessInvalid, ProcessUnknown
from holdfast.names import check_choice, check_id, check_text
from holdfast.processes.definition import AnyProcedure, Procedure
from holdfast.processes.ids import (
    ABANDON,
    CALL,
    CANCEL,
    ROLE,
    TRANSFER,
    check_process_id,
    external_wait,
    id_of,
    is_process_journal,
    journal_of,
    number_of,
    run_of,
    signal_prefix,
    signal_wait,
)
from holdfast.processes.state import LISTED, TERMINAL, ProcessStatus, Registration
from holdfast.processes.stuck import Stuck, why_stuck
from holdfast.processes.timeline import ProcessEvent, ProcessLine, event_of, line_of
from holdfast.records import touches_lists
from holdfast.runtime.outcome import TurnReader
from holdfast.runtime.process_handle import Process
from holdfast.runtime.process_journal import read_process
from holdfast.runtime.processing import ProcessDrive
from holdfast.runtime.seeking import TURN, AwaitedTurn
from holdfast.spawning import spawn
from holdfast.turns import keys

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence
    from datetime import timedelta

    from holdfast.agent import Agent
    from holdfast.processes.state import ProcessState
    from holdfast.runtime.runtime import Runtime
    from holdfast.runtime.surroundings import Surround
    from holdfast.store.contract import Journal, Work

_log: Final = logging.getLogger("holdfast.processes")

MAX_REGISTRATION: Final = 256 * 1024
"""Longest arguments of a process, as JSON, in bytes."""
MAX_SIGNALS: Final = 10_000
"""How many signals of one name may wait for a process."""
_SHARED: Final = frozenset(("failed", "abandoned"))


class Engine(Protocol):
    """The engine, as far as processes need it."""

    def begin_task(self, id: str, drive: ProcessDrive, *, under_way: bool = False) -> bool: ...
    def poke(self, session: str, *, again: bool = False) -> None: ...
    def retry(self, session: str) -> None: ...
    def stuck(self, session: str) -> HoldfastError | None: ...
    def wake(self) -> None: ...


class Changes(NamedTuple):
    """What changed, and the cursor to go on from."""

    cursor: int
    changed: Sequence[ProcessEvent]


class Processes:
    """The processes of one store, and the functions that this runtime can run."""

    def __init__(self, runtime: Runtime, around: Surround, given: Sequence[AnyProcedure] = ()) -> None:
        self.engine: Engine | None = None
        self._runtime = runtime
        self._around = around
        self._store = around.store
        self._functions: dict[str, AnyProcedure] = {}
        self._left: set[str] = set()
        """Processes that only somebody else may go on with."""
        self._turns: dict[tuple[str, str], asyncio.Task[None]] = {}
        if not isinstance(given, list | tuple):
            raise InvalidArgument("processes", given, "a list of functions made with @hf.process")
        for procedure in given:
            self.add(procedure)

    # ---- functions ---------------------------------------------------------------------------------------------------

    def add(self, procedure: AnyProcedure) -> AnyProcedure:
        """Let `procedure` run here."""
        if not isinstance(procedure, Procedure):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers may be untyped
            raise InvalidArgument("process", procedure, "a function made with @hf.process")
        known = self._functions.setdefault(procedure.name, procedure)
        if known is not procedure:
            raise ProcessInvalid(procedure.name, "another function has this name here; give one of them another name")
        if self.engine is not None:
            self.engine.wake()  # what was left alone until now can go on
        return procedure

    def known(self, name: str) -> AnyProcedure | None:
        """The function with this name, if it is here."""
        return self._functions.get(name)

    def procedure(self, given: AnyProcedure | str) -> AnyProcedure:
        """The function that is meant; one that is given becomes known."""
        if isinstance(given, str):
            found = self._functions.get(given)
            if found is None:
                raise FunctionUnknown(given, tuple(self._functions))
            return found
        return self.add(given)

    # ---- starting ----------------------------------------------------------------------------------------------------

    async def start(
        self,
        procedure: AnyProcedure | str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        id: str | None = None,
        session: str | None = None,
    ) -> Process:
        """Start a process. When this returns it is durable, and will come to an end whatever happens."""
        made = self.procedure(procedure)
        registration = Registration(made.name, made.stored(args, kwargs), made.recovery, made.on_parent_end)
        chosen = f"{made.name[:100]}-{secrets.token_hex(6)}" if id is None else check_process_id(id)
        return self.handle(await self.register(chosen, registration, session))

    async def register(self, id: str, made: Registration, session: str | None) -> str:
        """Write down that a process is to run. The same registration again finds it as it is."""
        journal = journal_of(id)
        content = msgspec.to_builtins(made)
        size = len(msgspec.json.encode(content))
        if size > MAX_REGISTRATION:
            raise PayloadTooLarge("the arguments of a process", size, MAX_REGISTRATION)
        try:
            receipt = await self._store.accept_into(
                journal, "process", made.name, content, key=CALL, role=ROLE, session=session
            )
        except (KeyConflict, JournalConflict):
            asked = f"{made.name}({msgspec.json.encode(made.arguments).decode()[:200]})"
            raise ProcessConflict(id, asked) from None
        if receipt.fresh and self.engine is not None:
            self.engine.begin_task(journal, ProcessDrive(self._around, self, journal))
        return id

    def drive_of(self, work: Work | str, only: str | None) -> ProcessDrive | None:
        """What drives a process here, if its function is known or somebody asked for it."""
        if isinstance(work, str):
            return ProcessDrive(self._around, self, work)
        if only is not None and work.session != only:
            return None
        if work.journal in self._left or (work.agent or "") not in self._functions:
            return None
        return ProcessDrive(self._around, self, work.journal)

    def leave(self, journal: str) -> None:
        """Only somebody else may go on with it: it is not looked at again until somebody asks."""
        self._left.add(journal)

    # ---- finding -----------------------------------------------------------------------------------------------------

    def handle(self, id: str) -> Process:
        """A process as a handle; nothing is read."""
        return Process(self._runtime, self, id)

    async def get(self, id: str) -> Process:
        """The process with this id; `ProcessUnknown` when there is none."""
        await self._line(journal_of(id))
        return self.handle(id)

    async def _line(self, journal: str) -> Journal:
        try:
            return await self._store.journal(journal)
        except JournalMissing:
            raise ProcessUnknown(id_of(journal)) from None

    async def read(self, journal: str) -> ProcessState:
        """A process with all of its records; `ProcessUnknown` when there is none."""
        try:
            return await read_process(self._store, journal)
        except JournalMissing:
            raise ProcessUnknown(id_of(journal)) from None

    async def line(self, id: str) -> ProcessLine:
        """How a process stands."""
        return line_of(await self.read(journal_of(id)))

    async def list(  # noqa: PLR0913
        self,
        *,
        status: ProcessStatus | None = None,
        name: str | None = None,
        session: str | None = None,
        parent: str | None = None,
        before: ProcessLine | None = None,
        limit: int = 50,
    ) -> list[ProcessLine]:
        """Processes, those that changed last first. Pass the last one as `before` for the next page."""
        if status is not None:
            check_choice("process status", status, get_args(ProcessStatus))
        check_int("limit", limit, least=1)
        last = None if before is None else await self._line(journal_of(before.id))
        found: list[ProcessLine] = []
        listed = None if status is None else LISTED[status]
        # A status that the lists do not know, and what they can't tell, is looked for in the journals.
        exact = status not in _SHARED and session is None and parent is None
        while len(found) < limit:
            size = min(limit - len(found) if exact else max(limit, 50), self._store.limits.page)
            page = await self._store.journals(role=ROLE, agent=name, status=listed, before=last, limit=size)
            for each in page:
                if each.quarantine is not None:
                    continue
                line = line_of(await self.read(each.id))
                fits = session in {None, line.session} and parent in {None, line.parent}
                if fits and (exact or status in {None, line.status}):
                    found.append(line)
            if len(page) < size:
                break
            last = page[-1]
        return found[:limit]

    async def stuck(self) -> list[Stuck]:
        """What needs a person, and the command that helps."""
        driven = await self._driven()
        found: list[Stuck] = []
        for status in ("running", "waiting", "idle"):
            last: Journal | None = None
            while page := await self._store.journals(
                role=ROLE, status=status, before=last, limit=self._store.limits.page
            ):
                reasons = [await self._why(each, each.id in driven) for each in page]
                found += [reason for reason in reasons if reason is not None]
                last = page[-1]
        return found

    async def _why(self, line: Journal, driven: bool) -> Stuck | None:  # noqa: FBT001
        id = id_of(line.id)
        if line.quarantine is not None:
            return Stuck(id, line.agent, f"its journal is damaged: {line.quarantine}", "holdfast doctor")
        state = await self.read(line.id)
        error = None if self.engine is None else self.engine.stuck(line.id)
        waits = await self._store.waits(line.id, state="open")
        timed = any(wait.deadline is not None or wait.kind == TURN for wait in waits)
        known = None if not self._functions else line.agent in self._functions
        return why_stuck(state, driven=driven, known=known, error=None if error is None else str(error), timed=timed)

    async def _driven(self) -> set[str]:
        """Processes that somebody alive drives now."""
        found: set[str] = set()
        after = 0
        while page := await self._store.work(after):
            for work in page:
                if work.role == ROLE and work.holder is not None and not self._store.owner_gone(work.holder):
                    found.add(work.journal)
            after = page[-1].no
        return found

    async def changes(self, after: int = 0, limit: int | None = None) -> Changes:
        """Processes that began, went on, waited or ended, in the order in which they did, from a cursor on."""
        entries = await self._store.feed(after=after, limit=limit)
        changed = [
            event_of(entry.journal, entry.seq, entry.record)
            for entry in entries
            if entry.record is not None and is_process_journal(entry.journal) and touches_lists(entry.record)
        ]
        return Changes(entries[-1].pos if entries else after, changed)

    async def events(self, id: str, after: int = 0) -> AsyncGenerator[ProcessEvent]:
        """What happens in a process, from its beginning or from a cursor, until it has ended."""
        journal = journal_of(id)
        await self._line(journal)
        while True:
            version = self._store.version
            over = (await self._line(journal)).status in TERMINAL
            async for entry in self._store.read_all(journal, after=after):
                after = entry.seq
                yield event_of(journal, entry.seq, entry.record)
            if over:
                return
            await self._around.watch.beyond(journal, after, version)

    # ---- telling them things -----------------------------------------------------------------------------------------

    async def send_signal(self, id: str, name: str, value: object) -> None:
        """Answer what a process waits for, or will wait for. Each signal answers one wait, in the order they came."""
        journal = journal_of(id)
        state = await self.read(journal)
        if state.over:
            return
        run = run_of(state.attempt)
        number = await self._next_slot(journal, signal_prefix(run, name))
        while number <= MAX_SIGNALS:
            token = self._store.wait_token(journal, signal_wait(run, name, number))
            if (await self._store.resolve(token, value)).won:
                self._poke(journal)
                return
            number += 1
        raise PayloadTooLarge("the signals of one name that a process gets", number, MAX_SIGNALS)

    async def _next_slot(self, journal: str, prefix: str) -> int:
        """The number of the first wait for a signal that may be open."""
        number, after = 1, prefix
        while page := await self._store.waits(journal, after=after):
            for wait in page:
                if not wait.name.startswith(prefix):
                    return number
                if wait.state == "open":
                    return number_of(wait.name)
                number = number_of(wait.name) + 1
            after = page[-1].name
        return number

    async def settle_outside(self, id: str, told: dict[str, Any]) -> bool:
        """End a process that is carried out elsewhere; whether this has decided it."""
        journal = journal_of(id)
        state = await self.read(journal)
        if state.registration is None or state.registration.recovery != "external":
            raise ProcessInvalid(id, "it is not carried out elsewhere; only recovery='external' is completed by hand")
        if state.over:
            return False
        token = self._store.wait_token(journal, external_wait(run_of(state.attempt)))
        with suppress(WaitUnknown):
            won = (await self._store.resolve(token, told)).won
            self._poke(journal)
            return won
        return False

    async def request_cancel(self, id: str, reason: str) -> str:
        """Ask for a process to be cancelled. The first request counts; one after the end is too late."""
        return await self._request(id, CANCEL, {"cancel": check_text("reason", reason)})

    async def abandon(self, id: str, reason: str = "", *, by: str = "") -> str:
        """Give up a process that only one may run who is gone. It ends as abandoned, with who and why."""
        said = {"abandon": True, "reason": check_text("reason", reason), "by": check_text("by", by, 200)}
        return await self._request(id, ABANDON, said)

    async def transfer(self, id: str, session: str) -> None:
        """Let a process work for another session: that one is told when it ends."""
        await self._store.journal(check_id("session", session))
        key = f"{TRANSFER}{secrets.token_hex(8)}"
        await self._request(id, key, {"session": session})

    async def _request(self, id: str, key: str, said: dict[str, Any]) -> str:
        journal = journal_of(id)
        if (await self._line(journal)).status in TERMINAL:
            return "too_late"
        try:
            receipt = await self._store.accept(journal, said, key=key, urgent=True)
        except KeyConflict:
            return "already_requested"
        self._left.discard(journal)
        if self.engine is not None:
            self.engine.retry(journal)
        return "requested" if receipt.fresh else "already_requested"

    async def end_child(self, id: str, reason: str) -> None:
        """A process has ended that started this one: it is cancelled, unless it is to go on by itself."""
        try:
            state = await self.read(journal_of(id))
        except (ProcessUnknown, StoreError):
            return
        if not state.over and state.registration is not None and state.registration.on_parent_end == "cancel":
            await self.request_cancel(id, reason)

    async def settle(self, id: str) -> None:
        """Carry out what was asked of a process that nobody drives."""
        await ProcessDrive(self._around, self, journal_of(id)).run()

    def _poke(self, journal: str) -> None:
        if self.engine is not None:
            self.engine.poke(journal)

    # ---- turns of agents ---------------------------------------------------------------------------------------------

    async def send(
        self, agent: Agent | str, session: str, prompt: str, key: str, deadline: timedelta | float | None
    ) -> AwaitedTurn:
        """Ask an agent, once."""
        turn = await self._runtime.session(session, agent=agent).send(prompt, key=key, deadline=deadline)
        return AwaitedTurn(session, keys.input_of(turn.id) or 0)

    async def stop_turn(self, session: str, number: int, reason: str) -> None:
        """A process that asked for this turn was cancelled."""
        with suppress(HoldfastError):
            await self._runtime.session(session).turn(keys.run_of(number)).cancel(reason)

    def watch_turn(self, journal: str, wait: str, turn: AwaitedTurn) -> None:
        """Tell a process when a turn has ended."""
        place = (journal, wait)
        if place not in self._turns:
            task = self._turns[place] = spawn(self._tell(journal, wait, turn))
            task.add_done_callback(lambda _: self._turns.pop(place, None))

    async def _tell(self, journal: str, wait: str, turn: AwaitedTurn) -> None:
        try:
            reader = TurnReader(self._store, turn.session, turn.input, 0, known=True)
            await reader.wait(self._around.watch, self._runtime.stuck)
            await self._store.answer_wait(journal, wait, value=True)
            self._poke(journal)
        except HoldfastError as error:  # the process looks by itself after a while
            _log.debug("nobody tells %r of its turn: %s", journal, error)

    async def begin(self) -> None:
        """Tell processes of turns that they waited for before this runtime was opened."""
        if self.engine is None:
            return
        last = None
        while page := await self._store.open_waits(TURN, before=last):
            for wait in page:
                self.watch_turn(wait.journal, wait.name, msgspec.json.decode(wait.body or b"", type=AwaitedTurn))
            last = page[-1]

    async def close(self) -> None:
        """Nobody is told any more."""
        tasks = list(self._turns.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
