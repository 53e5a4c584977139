"""Work items: external work of a person or another system, which the host begins and ends."""

from __future__ import annotations

import math
import secrets
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from holdfast import errors
from holdfast.crashpoints import crash_point
from holdfast.effects.canonical import check as check_json
from holdfast.effects.canonical import digest, encode_value
from holdfast.names import check_id, check_string, check_text, is_process_journal, is_session_id, is_turn_id
from holdfast.policy.rules import milliseconds
from holdfast.processes import keys
from holdfast.processes.service import Process, Processes
from holdfast.processes.state import TERMINAL_STATUSES, Registration, WorkItem
from holdfast.runtime.turn import TurnReader
from holdfast.store.inbox import STOP_KEY, stop_key
from holdfast.turns.keys import input_number

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from holdfast.processes.service import Requested
    from holdfast.runtime.context import RuntimeContext
    from holdfast.runtime.session import Session
    from holdfast.runtime.turn import Turn


MAX_TITLE: Final = 500
MAX_INSTRUCTIONS: Final = 100_000
MAX_NOTE: Final = 2_000
"""Longest note of a progress report, in characters."""
MAX_TAGS: Final = 50


class ExternalWork(Process[Any]):
    """A work item. Any process with its id or token can report progress, complete it or fail it."""

    @property
    def token(self) -> str:
        """A secret token for `Processes.find_external` in another process."""
        wait = keys.external_wait(keys.FIRST_RUN)
        return self._context.store.wait_token(keys.process_journal(self.id), wait)

    async def item(self) -> WorkItem:
        """Its title, instructions, tags and metadata."""
        made = (await self._processes.read(keys.process_journal(self.id))).registration
        if made is None or made.item is None:
            raise errors.ProcessInvalid(self.id, "it is not a work item of runtime.processes.external")
        return made.item

    async def progress(self, note: str = "", fraction: float | None = None) -> Requested:
        """Report progress: a note, and the fraction done, from 0 to 1. Returns ``"too_late"`` after the end."""
        note = check_text("progress", note, MAX_NOTE)
        good = fraction is None or (type(fraction) in (int, float) and math.isfinite(fraction) and 0 <= fraction <= 1)
        if not good:
            raise errors.InvalidNumber("fraction", fraction, "it must be from 0 to 1")
        await self.item()
        journal, key = keys.process_journal(self.id), f"{keys.PROGRESS_PREFIX}{secrets.token_hex(8)}"
        try:
            if (await self._processes.find(journal)).status in TERMINAL_STATUSES:
                return "too_late"
            await self._context.store.accept(journal, {"note": note, "fraction": fraction}, key=key)
        except (errors.ProcessPruned, errors.JournalPruned):
            return "too_late"
        crash_point("external.progressed")
        self._context.poke(journal)
        return "requested"


class WorkItems:
    """Makes and finds the work items of one store."""

    def __init__(self, context: RuntimeContext, processes: Processes) -> None:
        self._context = context
        self._processes = processes

    async def begin(
        self,
        item: WorkItem,
        key: str | None,
        session: str | None,
        parent: Session[Any] | Turn[Any] | Process[Any] | str | None = None,
    ) -> ExternalWork:
        """Begin a work item; returns once it is durable. The same key with the same content is the same item."""
        suffix = secrets.token_hex(8) if key is None else digest("external", check_id("key", key))[:20]
        id, under = f"{keys.WORK_ITEM}-{suffix}", None
        store = self._context.store
        if session is not None:
            await store.journal(check_id("session", session))  # it must exist: it is notified
        if parent is not None:
            journal, turn = await self._find_parent(parent)
            item = msgspec.structs.replace(item, parent=journal, turn=turn)
            session, under = await self._enter(id, journal, turn, session)
        ends = "abandon" if item.parent_process is None else "cancel"
        registration = Registration(keys.WORK_ITEM, {}, "external", ends, item=item)
        await self._processes.register(id, registration, session, under)
        crash_point("external.accepted")
        return self.handle(id)

    async def _find_parent(self, given: Session[Any] | Turn[Any] | Process[Any] | str) -> tuple[str, str | None]:
        """The journal of a parent, and its turn."""
        if isinstance(given, Process):
            return keys.process_journal(given.id), None
        if not isinstance(given, str):
            session = getattr(given, "session", None)
            if session is None:
                return check_id("parent", getattr(given, "id", given)), None
            reader = TurnReader(self._context.store, session, input_number(given.id) or 0, 0, known=True)
            await reader.read()
            return session, reader.run or given.id  # an input may have entered the turn of another one
        store, name = self._context.store, check_id("parent", given)
        head, _, turn = name.rpartition("/")
        if head and is_turn_id(turn):
            with suppress(errors.JournalMissing):
                return (await store.journal(name)).id, None  # a session may be called so
            return head, turn
        return name, None

    async def _enter(
        self, id: str, parent: str, turn: str | None, session: str | None
    ) -> tuple[str | None, tuple[str, str] | None]:
        """Let a parent know of an item; returns the session to notify, and the request that would stop the parent."""
        store = self._context.store
        if is_process_journal(parent):
            with suppress(errors.JournalMissing, errors.JournalPruned):  # the parent knows of it, and may have ended
                known = await store.journal(keys.process_journal(id))
                return _session_of_item(session, known.session), (parent, STOP_KEY)
            state = await self._processes.read(parent)
            if state.over:
                raise errors.ProcessInvalid(state.id, f"it has ended ({state.status}), and can't be a parent any more")
            notified = _session_of_item(session, state.session)
            await store.accept(parent, {"child": id}, key=f"{keys.CHILD_PREFIX}{id}")
            crash_point("external.adopted")
            self._context.poke(parent)
            return notified, (parent, STOP_KEY)
        if not is_session_id(parent) or (await store.journal(parent)).kind != "session":
            raise errors.InvalidArgument("parent", parent, "a session, a turn (session/t3) or a process (process/ID)")
        session = _session_of_item(session, parent)
        if turn is None:
            return session, None
        if await store.input(parent, input_number(turn) or 0) is None:
            raise errors.TurnUnknown(parent, turn)
        return session, (parent, stop_key(turn))

    def handle(self, id: str) -> ExternalWork:
        """The handle of an item, by its id or token. Reads nothing."""
        name = check_string("id", id)
        if not name.startswith(f"{keys.WORK_ITEM}-"):
            journal, wait = self._context.store.wait_of(name)
            if wait != keys.external_wait(keys.FIRST_RUN):
                raise errors.WaitUnknown
            name = keys.process_id_of(journal)
        return ExternalWork(self._context, self._processes, name)


def _session_of_item(given: str | None, of_parent: str | None) -> str | None:
    """The session to notify; `InvalidArgument` if the host names another one than that of the parent."""
    if given is not None and of_parent is not None and given != of_parent:
        wanted = f"{of_parent!r}, the session of its parent, or none (begin it, then transfer it)"
        raise errors.InvalidArgument("session", given, wanted)
    return of_parent or given


def check_work_item(
    title: str,
    instructions: str,
    tags: Sequence[str],
    requested_by: str | None,
    metadata: dict[str, Any] | None,
    deadline: timedelta | float | None,
) -> WorkItem:
    """Check the fields of a work item and make it."""
    if not check_text("title", title, MAX_TITLE).strip():
        raise errors.InvalidArgument("title", title, "words that say what is to be done")
    check_string("instructions", instructions)
    if len(instructions) > MAX_INSTRUCTIONS:
        raise errors.PayloadTooLarge("the instructions", len(instructions), MAX_INSTRUCTIONS)
    if not isinstance(tags, list | tuple) or len(tags) > MAX_TAGS:
        raise errors.InvalidArgument("tags", tags, f"a list of at most {MAX_TAGS} words")
    if requested_by is not None:
        check_text("requested_by", requested_by, 200)
    given = {} if metadata is None else metadata
    if type(given) is not dict:
        raise errors.InvalidArgument("metadata", metadata, "a dictionary")
    check_json(given)
    encode_value(given)
    return WorkItem(
        title,
        instructions,
        tuple(check_id("tag", tag) for tag in cast("Sequence[str]", tags)),
        requested_by,
        given,
        None if deadline is None else milliseconds(deadline),
    )
