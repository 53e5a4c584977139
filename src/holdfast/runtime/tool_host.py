"""`ToolHost`: the part of the runtime that Holdfast's own tools may use (``ctx.host``).

Tasks, reminders, memory, attachments and stored results of the session of the call, never of another one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from holdfast import errors, messages, records
from holdfast.effects.canonical import decode_value, encode_value
from holdfast.processes.lists import glance_process
from holdfast.runtime import attachments, session_records
from holdfast.turns import keys
from holdfast.turns.compaction.plan import ResultPosition, place_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Sequence
    from pathlib import Path

    from holdfast.memory import Memory
    from holdfast.processes.state import ProcessState
    from holdfast.runtime.context import RuntimeContext
    from holdfast.store import Notification, contract


class ToolHost:
    """The runtime as the tools of one session see it."""

    def __init__(self, context: RuntimeContext, session: str, agent: str | None = None) -> None:
        self.store = context.store
        self.session = session
        self.agent = agent
        self._tasks = context.tasks
        self.children = context.children
        """Sub-agents."""
        self.secrets = context.secrets
        self.deps: Any = context.deps
        """The dependencies of the runtime; `NO_DEPS` if it has none."""
        self._memories = context.memories
        self._attachments = attachments.Attachments(context.store)

    def memory(self, scope: str) -> Memory:
        return self._memories.memory(scope)

    @property
    def now(self) -> int:
        """Wall time in milliseconds."""
        return self.store.clock.read().wall

    # ---- tasks ----

    async def tasks(self, limit: int = 20) -> Sequence[contract.Journal]:
        """The tasks of the session, the last changed first, without host calls of which the model is not told."""
        found: list[contract.Journal] = []
        before: contract.Journal | None = None
        while len(found) < limit and (page := await self._tasks.list(session=self.session, before=before, limit=limit)):
            states = [(line, await self.glance_task(line.id)) for line in page]
            found += [line for line, state in states if state.call is None or not state.call.is_silent]
            before = page[-1]
        return found[:limit]

    async def task(self, id: str) -> ProcessState:
        """One task of the session; raises `TaskUnknown` for any other."""
        state = await self._tasks.task(id)
        if state.session != self.session or (state.call is not None and state.call.is_silent):
            raise errors.TaskUnknown(id)
        return state

    async def glance_task(self, id: str) -> ProcessState:
        """One task for a list. For a long one, its starts and reports come from its last records only."""
        return await glance_process(self.store, id)

    async def task_result(self, state: ProcessState) -> bytes | None:
        return await self._tasks.result(state)

    async def cancel_task(self, id: str, reason: str) -> Literal["requested", "already_requested", "too_late"]:
        """Request that a task of the session is cancelled."""
        await self.task(id)
        return await self._tasks.cancel(id, reason)

    # ---- notifications ----

    async def remind(self, kind: str, title: str, body: str, *, due: int, key: str) -> Notification:
        """Notify the session at the time `due`."""
        found, _ = await self.store.notify(self.session, kind=kind, title=title, body=body, due=due, key=key)
        return found

    async def reminders(self, kind: str) -> list[Notification]:
        """Queued notifications of a kind, the next one first."""
        queued = await self.store.notifications(self.session, "queued", limit=self.store.limits.page)
        return sorted((found for found in queued if found.kind == kind), key=lambda found: (found.due, found.no))

    async def forget_reminder(self, kind: str, id: int) -> bool:
        """Cancel a reminder; returns True if this call did it."""
        if not any(found.id == id for found in await self.reminders(kind)):
            return False
        found, decided = await self.store.settle_notification(id, "cancelled")
        return decided and found.state == "cancelled"

    # ---- attachments ----

    async def attachment(self, digest: str) -> bytes:
        """The bytes of an attachment that this session may read; raises `AttachmentUnknown` for any other."""
        return await self._attachments.get(digest, session=self.session)

    async def attach(
        self, data: bytes | Path | str | AsyncIterable[bytes], media_type: str | None, name: str | None
    ) -> messages.Attachment:
        """Store bytes, or a file, for this session."""
        return await self._attachments.put(data, media_type=media_type, name=name, session=self.session)

    async def attached(self, given: messages.Attachment) -> messages.Attachment:
        """An attachment that this session may read, with its true size; raises `AttachmentUnknown` for any other."""
        return messages.Attachment(given.digest, given.media_type, len(await self.attachment(given.digest)), given.name)

    # ---- stored results ----

    async def kept(self, digest: str) -> bytes | None:
        """A large or clipped result of this session or of its tasks; None for any other digest."""
        await self.store.read_position()  # include all that was submitted before
        place = place_of(digest)
        if place is not None:
            return await self._result_at(place)
        if await self._has_blob(self.session, digest):
            return await self.store.blob(digest)
        for line in await self._tasks.list(session=self.session, limit=self.store.limits.page):
            if await self._has_blob(line.id, digest):
                return await self.store.blob(digest)
        return None

    async def _result_at(self, place: ResultPosition) -> bytes | None:
        """The result of a call of the conversation, in this session or in one from which it was forked."""
        journal: str | None = self.session
        seen: set[str] = set()
        while journal is not None and journal not in seen:
            seen.add(journal)
            async for record in session_records.read_turn(self.store, journal, place.run):
                key = keys.parse_key(record.key) if isinstance(record, records.Done) else None
                if key is not None and not (key.inner or key.nested) and (key.run, key.number, key.call) == place:
                    value = decode_value(bytes(record.value)) if isinstance(record, records.Done) else None
                    return value.encode() if isinstance(value, str) else encode_value(value)
            journal = (await self.store.journal(journal)).parent
        return None

    async def _has_blob(self, journal: str, digest: str) -> bool:
        try:
            async for entry in self.store.read_all(journal):
                if isinstance(entry.record, records.Done) and any(blob.digest == digest for blob in entry.record.kept):
                    return True
        except errors.StoreError:
            pass  # a damaged journal must not hide the others
        return False
