"""Work items: external work of a person or another system, which the host begins and ends."""

from __future__ import annotations

import math
import secrets
from typing import TYPE_CHECKING, Any, Final, cast

from holdfast import errors
from holdfast.crashpoints import crash_point
from holdfast.effects.canonical import check as check_json
from holdfast.effects.canonical import digest, encode_value
from holdfast.names import check_id, check_string, check_text
from holdfast.policy.rules import milliseconds
from holdfast.processes import keys
from holdfast.processes.service import Process, Processes
from holdfast.processes.state import TERMINAL_STATUSES, Registration, WorkItem

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from holdfast.processes.service import Requested
    from holdfast.runtime.context import RuntimeContext


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

    async def begin(self, item: WorkItem, key: str | None, session: str | None) -> ExternalWork:
        """Begin a work item; returns once it is durable. The same key with the same content is the same item."""
        suffix = secrets.token_hex(8) if key is None else digest("external", check_id("key", key))[:20]
        if session is not None:
            await self._context.store.journal(check_id("session", session))  # it must exist: it is notified
        registration = Registration(keys.WORK_ITEM, {}, "external", "abandon", item=item)
        id = await self._processes.register(f"{keys.WORK_ITEM}-{suffix}", registration, session)
        crash_point("external.accepted")
        return self.handle(id)

    def handle(self, id: str) -> ExternalWork:
        """The handle of an item, by its id or token. Reads nothing."""
        name = check_string("id", id)
        if not name.startswith(f"{keys.WORK_ITEM}-"):
            journal, wait = self._context.store.wait_of(name)
            if wait != keys.external_wait(keys.FIRST_RUN):
                raise errors.WaitUnknown
            name = keys.process_id_of(journal)
        return ExternalWork(self._context, self._processes, name)


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
