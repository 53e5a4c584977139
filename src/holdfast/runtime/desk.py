"""Where background work is given out, listed, read and cancelled."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from holdfast.effects.canonical import digest_of_bytes
from holdfast.effects.performer import idempotency_key
from holdfast.errors import JournalMissing, KeyConflict, TaskUnknown
from holdfast.names import check_text
from holdfast.records import Ask, Done, Intended, Started
from holdfast.runtime.working import TaskDrive, read_task
from holdfast.tasks.state import RUN, TaskCall, task_id, task_key

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Literal

    from holdfast.records import Record, Status
    from holdfast.runtime.invoking import Call, Work
    from holdfast.runtime.surroundings import Surround
    from holdfast.store.contract import Journal
    from holdfast.tasks.state import TaskState

ROLE = "task"
"""The role of the journal of a background call."""


class Drives(Protocol):
    """The engine, as far as tasks need it."""

    def begin_task(self, id: str, drive: TaskDrive) -> None:
        """Drive a task from now on."""
        ...

    def retry(self, session: str) -> None:
        """See to a session or a task at once."""
        ...


class Recovered(NamedTuple):
    """A task whose process is gone, and what becomes of it."""

    task: str
    session: str | None
    tool: str
    by: str | None
    action: Literal["rerun", "reconcile", "interrupted", "left"]


class Desk:
    """The tasks of one store."""

    def __init__(self, around: Surround) -> None:
        self._around = around
        self._store = around.store
        self.drives: Drives | None = None

    # ---- for turns ----

    async def spilled(self, session: str, key: str) -> str | None:
        """The task in which the call `key` of a session goes on, if there is one."""
        id = task_id(session, key)
        try:
            await self._store.journal(id)
        except JournalMissing:
            return None
        return id

    async def start(self, session: str, agent: str, turn: str, call: Call) -> str:
        """Carry out a call in the background."""
        id, _ = await self._written(session, agent, turn, call, begun=False)
        if self.drives is not None:
            self.drives.begin_task(id, TaskDrive(self._around, id))
        return id

    async def adopt(self, session: str, agent: str, turn: str, work: Work) -> str:
        """Let a call that is under way go on in the background."""
        id, drive = await self._written(session, agent, turn, work.call, begun=True, work=work)
        if self.drives is not None and drive is not None:
            self.drives.begin_task(id, drive)
        return id

    async def _written(  # noqa: PLR0913
        self, session: str, agent: str, turn: str, call: Call, *, begun: bool, work: Work | None = None
    ) -> tuple[str, TaskDrive | None]:
        """Make the journal of a task, with its call; of one that is under way, with the lease that it keeps."""
        id = task_id(session, call.key)
        await self._store.open_journal(id, "process", agent, role=ROLE, session=session)
        lease = await self._store.claim(id, ttl_ms=self._around.lease_ms)
        now = self._store.clock.read().wall
        described = TaskCall(
            call.call.name, call.call.arguments or {}, call.call.id, turn, call.key, self._idempotency(session, call)
        )
        body = msgspec.json.encode(described)
        ask = Ask("tool_call", call.call.name, digest_of_bytes("task", body), msgspec.Raw(body))
        records: list[Record] = [Intended(at=now, key=task_key(call.call.name), ask=ask)]
        if begun:
            records.append(Started(at=now, run=RUN, by=self._around.me))
        if lease.head == 1:  # otherwise a process before this one has written it
            head = await self._store.append(lease, records, head=lease.head)
            lease = msgspec.structs.replace(lease, head=head)
        if work is not None:
            return id, TaskDrive(self._around, id, lease=lease, work=work)
        await self._store.release(lease)
        return id, None

    def _idempotency(self, session: str, call: Call) -> str:
        return call.idempotency or idempotency_key(self._store.id, session, call.key)

    # ---- for hosts and for tools ----

    async def list(
        self,
        *,
        session: str | None = None,
        status: Status | None = None,
        before: Journal | None = None,
        limit: int = 50,
    ) -> Sequence[Journal]:
        """Tasks, those that changed last first."""
        return await self._store.journals(role=ROLE, session=session, status=status, before=before, limit=limit)

    async def task(self, id: str) -> TaskState:
        """One task; `TaskUnknown` when there is none."""
        try:
            state = await read_task(self._store, id)
        except JournalMissing:
            raise TaskUnknown(id) from None
        if state.call is None:
            raise TaskUnknown(id)
        return state

    async def result(self, state: TaskState) -> bytes | None:
        """The JSON of what a task gave; None when it gave nothing."""
        outcome = state.outcome
        if not isinstance(outcome, Done):
            return None
        return bytes(outcome.value) if outcome.blob is None else await self._store.blob(outcome.blob.digest)

    async def cancel(self, id: str, reason: str = "") -> Literal["requested", "already_requested", "too_late"]:
        """Ask for a task to be cancelled. The first request counts; one after the end is too late."""
        check_text("reason", reason)
        if (await self.task(id)).over:
            return "too_late"
        try:
            receipt = await self._store.accept(id, {"cancel": reason}, key="holdfast/cancel", urgent=True)
        except KeyConflict:
            return "already_requested"
        if self.drives is not None:
            self.drives.retry(id)
        return "requested" if receipt.fresh else "already_requested"

    async def settle(self, id: str) -> None:
        """Carry out what was asked of a task that nobody drives: end it if it is to be cancelled."""
        await TaskDrive(self._around, id).run()

    async def recover(self) -> list[Recovered]:
        """The tasks whose process is gone, and what becomes of them here. Live work is never touched."""
        found: list[Recovered] = []
        after = 0
        while page := await self._store.work(after):
            for work in page:
                gone = work.holder is None or self._store.owner_gone(work.holder)
                if work.role == ROLE and gone and work.status == "running":
                    found.append(await self._recovered(work.journal))
            after = page[-1].no
        return found

    async def _recovered(self, id: str) -> Recovered:
        state = await self.task(id)
        agent = self._around.agents.get(state.agent or "")
        name = "" if state.call is None else state.call.tool
        tool = None if agent is None else agent.tools.get(name)
        if tool is None:
            action = "left"
        elif tool.read_only or tool.idempotent:
            action = "rerun"
        else:
            action = "reconcile" if tool.reconcile is not None else "interrupted"
        return Recovered(id, state.session, name, state.by, action)
