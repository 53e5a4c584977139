"""What the tools of Holdfast itself may use of the runtime: tasks, notifications, memory, results that were kept.

A tool gets it as ``ctx.host``. All of it is about the session of the call: a tool never sees the work of another one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.effects.values import decode_value, encode_value
from holdfast.errors import StoreError, TaskUnknown
from holdfast.messages import Attachment
from holdfast.records import Done
from holdfast.runtime.attachments import Attachments
from holdfast.runtime.session_records import read_records
from holdfast.turns import keys
from holdfast.turns.compaction import place_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Sequence
    from pathlib import Path
    from typing import Literal

    from holdfast.memory import Memory
    from holdfast.processes.state import TaskState
    from holdfast.runtime.context import RuntimeContext
    from holdfast.store import Notification
    from holdfast.store.contract import Journal
    from holdfast.turns.compaction.plan import Place


class ToolHost:
    """The runtime as the tools of one session see it."""

    def __init__(self, context: RuntimeContext, session: str, agent: str | None = None) -> None:
        self.store = context.store
        self.session = session
        self.agent = agent
        """Who calls."""
        self._desk = context.tasks
        self.children = context.children
        """Sub-agents."""
        self.secrets = context.secrets
        """What is lent to a call as ``ctx.secrets``."""
        self._mirroring = context.memories
        self._attachments = Attachments(context.store)

    def memory(self, scope: str) -> Memory:
        """The memory of a scope."""
        return self._mirroring.memory(scope)

    @property
    def now(self) -> int:
        """Wall time in milliseconds."""
        return self.store.clock.read().wall

    # ---- tasks ----

    async def tasks(self, limit: int = 20) -> Sequence[Journal]:
        """The tasks of the session, those that changed last first."""
        return await self._desk.list(session=self.session, limit=limit)

    async def task(self, id: str) -> TaskState:
        """One task of the session; `TaskUnknown` for any other."""
        state = await self._desk.task(id)
        if state.session != self.session:
            raise TaskUnknown(id)
        return state

    async def task_result(self, state: TaskState) -> bytes | None:
        """The JSON of what a task gave."""
        return await self._desk.result(state)

    async def cancel_task(self, id: str, reason: str) -> Literal["requested", "already_requested", "too_late"]:
        """Ask for a task of the session to be cancelled."""
        await self.task(id)
        return await self._desk.cancel(id, reason)

    # ---- notifications ----

    async def remind(self, kind: str, title: str, body: str, *, due: int, key: str) -> Notification:
        """Notify the session at a time to come."""
        found, _ = await self.store.notify(self.session, kind=kind, title=title, body=body, due=due, key=key)
        return found

    async def reminders(self, kind: str) -> list[Notification]:
        """Notifications of a kind whose time is to come, the next one first."""
        queued = await self.store.notifications(self.session, "queued", limit=self.store.limits.page)
        return sorted((found for found in queued if found.kind == kind), key=lambda found: (found.due, found.no))

    async def forget_reminder(self, kind: str, id: int) -> bool:
        """Cancel one of them; whether this has decided it."""
        if not any(found.id == id for found in await self.reminders(kind)):
            return False
        found, decided = await self.store.settle_notification(id, "cancelled")
        return decided and found.state == "cancelled"

    # ---- attachments ----

    async def attachment(self, digest: str) -> bytes:
        """The bytes of an attachment that this session may read; `AttachmentUnknown` for any other."""
        return await self._attachments.get(digest, session=self.session)

    async def attach(
        self, data: bytes | Path | str | AsyncIterable[bytes], media_type: str | None, name: str | None
    ) -> Attachment:
        """Keep bytes, or a file, for this session."""
        return await self._attachments.put(data, media_type=media_type, name=name, session=self.session)

    async def attached(self, given: Attachment) -> Attachment:
        """An attachment that this session may read, with its true size; `AttachmentUnknown` for any other."""
        return Attachment(given.digest, given.media_type, len(await self.attachment(given.digest)), given.name)

    # ---- results that were too long ----

    async def kept(self, digest: str) -> bytes | None:
        """A result that was kept apart, if it is one of this session or of its tasks; or one that was clipped."""
        await self.store.mark()  # what was submitted before is there
        place = place_of(digest)
        if place is not None:
            return await self._result_at(place)
        if await self._is_kept(self.session, digest):
            return await self.store.blob(digest)
        for line in await self._desk.list(session=self.session, limit=self.store.limits.page):
            if await self._is_kept(line.id, digest):
                return await self.store.blob(digest)
        return None

    async def _result_at(self, place: Place) -> bytes | None:
        """What the call at this place of the conversation gave, in this session or in those that it is a fork of."""
        journal: str | None = self.session
        seen: set[str] = set()
        while journal is not None and journal not in seen:
            seen.add(journal)
            async for _, record in read_records(self.store, journal):
                key = keys.parse(record.key) if isinstance(record, Done) else None
                if key is not None and not (key.inner or key.nested) and (key.run, key.number, key.call) == place:
                    value = decode_value(bytes(record.value)) if isinstance(record, Done) else None
                    return value.encode() if isinstance(value, str) else encode_value(value)
            journal = (await self.store.journal(journal)).parent
        return None

    async def _is_kept(self, journal: str, digest: str) -> bool:
        try:
            async for entry in self.store.read_all(journal):
                if isinstance(entry.record, Done) and any(blob.digest == digest for blob in entry.record.kept):
                    return True
        except StoreError:
            pass  # damaged: it must not hide the others
        return False
