"""Where background work is given out, listed, read and cancelled."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Protocol, get_args

import msgspec

from holdfast.bounds import check_int
from holdfast.crashpoints import crash_point
from holdfast.effects.performer import idempotency_key
from holdfast.errors import JournalMissing, KeyConflict, StoreError, TaskUnknown
from holdfast.hands.tasks.glance import glance
from holdfast.names import check_choice, check_text
from holdfast.records import TASK, Done, Started
from holdfast.runtime.working import TaskDrive, read_task
from holdfast.store.decisions import STOP
from holdfast.store.spending.contract import Spend
from holdfast.tasks.state import CALL, RUN, TaskCall, TaskStatus, first_records, task_id

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.records import Status
    from holdfast.runtime.call import Call, Work
    from holdfast.runtime.surroundings import Surround
    from holdfast.store.contract import Journal, Lease
    from holdfast.tasks.state import TaskState
    from holdfast.tools.definition import AnyTool

Action = Literal["rerun", "reconcile", "asked", "interrupted", "left", "damaged"]

ROLE = TASK
"""The role of the journal of a background call."""
_TASK: Final = Spend(tasks=1)
"""What a task counts from the moment it is taken in, so that those who wait to be begun can't pass a budget."""
TOLD = 10_000
"""How many tasks that went on here are remembered until somebody asks."""
_LISTED: Final[dict[TaskStatus, Status]] = {
    "created": "idle",
    "running": "running",
    "waiting": "waiting",
    "succeeded": "completed",
    "failed": "failed",
    "cancelled": "cancelled",
    "interrupted": "failed",
}
"""How the lists of the store call a status of a task. They know no difference between the last one and a failure."""
_SHARED: Final = frozenset(("failed", "interrupted"))
_AT_ONCE: Final = 50
"""How many lines are read at once where not every one is wanted."""


class Drives(Protocol):
    """The engine, as far as tasks need it."""

    def begin_task(self, id: str, drive: TaskDrive, *, under_way: bool = False) -> bool:
        """Drive a task from now on; False when nothing more is begun here."""
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
    action: Action


class Desk:
    """The tasks of one store."""

    def __init__(self, around: Surround) -> None:
        self._around = around
        self._store = around.store
        self.drives: Drives | None = None
        self._taken_over: list[Recovered] = []
        self._left: dict[str, tuple[str, str, int]] = {}
        """Tasks whose tool is not here: agent, tool, and up to which wake this process has looked at them."""

    def took_over(self, state: TaskState, action: Action | None = None) -> None:
        """A task whose process is gone was seen to here: `recover` tells of it."""
        if len(self._taken_over) < TOLD:
            found = self._recovered(state)
            self._taken_over.append(found if action is None else found._replace(action=action))

    def leave(self, state: TaskState, wakes: int) -> None:
        """The tool of a task is not here: it is left to a process that has it, until something comes for it."""
        if state.call is not None:
            self._left[state.id] = state.agent or "", state.call.tool, wakes
            self.took_over(state)

    def is_left(self, id: str, wakes: int = 0) -> bool:
        """Whether a task is left to another process: nothing came for it (a cancel, its deadline) since it was."""
        if id not in self._left:
            return False
        agent, tool, seen = self._left[id]
        if self._tool(agent, tool) is None and wakes <= seen:
            return True
        del self._left[id]
        return False

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
        described = self._described(session, turn, call, begun=False)
        id = await self._accepted(session, agent, described)
        if self.drives is not None:
            self.drives.begin_task(id, TaskDrive(self._around, id))
        return id

    async def adopt(self, session: str, agent: str, turn: str, work: Work) -> str:
        """Let a call that is under way go on in the background."""
        described = self._described(session, turn, work.call, begun=True)
        # Both commands are in one commit if all goes well: nobody finds the task before it is ours.
        accepting = asyncio.ensure_future(self._accepted(session, agent, described, patient=True))
        claiming = asyncio.ensure_future(self._claimed(session, described))
        id, lease = await asyncio.gather(accepting, claiming)
        now = self._store.clock.read().wall
        records = [*first_records(described, 1, now), Started(at=now, run=RUN, by=self._around.me)]
        head = await self._store.append(lease, records, head=lease.head)
        drive = TaskDrive(self._around, id, lease=msgspec.structs.replace(lease, head=head), work=work)
        if self.drives is None or not self.drives.begin_task(id, drive, under_way=True):
            # The runtime is being closed: whoever opens the store next sees to it.
            work.task.cancel()
            await self._store.release(lease)
        return id

    async def _claimed(self, session: str, call: TaskCall) -> Lease:
        return await self._store.claim(task_id(session, call.key), ttl_ms=self._around.lease_ms)

    async def _accepted(self, session: str, agent: str, call: TaskCall, *, patient: bool = False) -> str:
        """Make the journal of a task together with its call: neither is ever there without the other."""
        id = task_id(session, call.key)
        content = msgspec.to_builtins(call)
        with suppress(KeyConflict):  # a process before this one has written it
            await self._store.accept_into(
                id, "process", agent, content, key=CALL, role=ROLE, session=session, patient=patient, spend=_TASK
            )
        return id

    def _described(self, session: str, turn: str, call: Call, *, begun: bool) -> TaskCall:
        sent = call.call
        known = self._idempotency(session, call)
        tool = call.tool if call.approved else None
        definition, implementation = (None, None) if tool is None else (tool.digest, tool.implementation)
        return TaskCall(
            sent.name, sent.arguments or {}, sent.id, turn, call.key, known, begun, definition, implementation
        )

    def _idempotency(self, session: str, call: Call) -> str:
        return call.idempotency or idempotency_key(self._store.id, session, call.key)

    # ---- for hosts and for tools ----

    async def list(
        self,
        *,
        session: str | None = None,
        status: TaskStatus | None = None,
        before: Journal | None = None,
        limit: int = 50,
    ) -> Sequence[Journal]:
        """Tasks, those that changed last first; `status` is one of the words that tasks have."""
        if status is not None:
            check_choice("task status", status, get_args(TaskStatus))
        known = None if status is None else _LISTED[status]
        if status not in _SHARED:
            return await self._store.journals(role=ROLE, session=session, status=known, before=before, limit=limit)
        most = min(check_int("limit", limit, least=1), self._store.limits.page)
        size = min(max(most, _AT_ONCE), self._store.limits.page)
        found: list[Journal] = []
        while True:
            page = await self._store.journals(role=ROLE, session=session, status=known, before=before, limit=size)
            found += [line for line in page if await self._status(line) == status]
            if len(page) < size or len(found) >= most:
                return found[:most]
            before = page[-1]

    async def _status(self, line: Journal) -> TaskStatus:
        """How a task ended that the store lists as failed. One that can't be read any more is no other."""
        try:
            return (await glance(self._store, line.id)).status
        except StoreError:
            return "failed"

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
        """Ask for a task to be cancelled, and its sub-agent. The first request counts; one after the end is too late.

        When this returns the request is durable for all sub-agents below, too.
        """
        check_text("reason", reason)
        state = await self.task(id)
        if state.over:
            return "too_late"
        try:
            fresh = (await self._store.accept(id, {"cancel": reason}, key=STOP, urgent=True)).fresh
        except KeyConflict:
            fresh = False
        if self.drives is not None:
            self.drives.retry(id)
        crash_point("cancel.accepted")
        if state.call is not None and state.session is not None:
            await self._around.children.stop_call(state.session, state.call.idempotency, reason)
        return "requested" if fresh else "already_requested"

    async def settle(self, id: str) -> None:
        """Carry out what was asked of a task that nobody drives: end it if it is to be cancelled."""
        await TaskDrive(self._around, id).run()

    async def recover(self) -> list[Recovered]:
        """The tasks whose process is gone, and what becomes of them here. Live work is never touched.

        Those that went on here since the last call are told, too.
        """
        found, self._taken_over = self._taken_over, []
        told = {one.task for one in found}
        after = 0
        while page := await self._store.work(after):
            for work in page:
                gone = work.holder is None or self._store.owner_gone(work.holder)
                if work.role == ROLE and gone and work.status == "running" and work.journal not in told:
                    found.append(await self._looked_at(work.journal))
            after = page[-1].no
        return found

    async def _looked_at(self, id: str) -> Recovered:
        try:
            return self._recovered(await self.task(id))
        except StoreError:
            return Recovered(id, None, "", None, "damaged")

    def _recovered(self, state: TaskState) -> Recovered:
        name = "" if state.call is None else state.call.tool
        tool = self._tool(state.agent or "", name)
        action: Action
        if tool is None:
            action = "left"
        elif tool.read_only or tool.idempotent:
            action = "rerun"
        else:
            action = "asked" if tool.on_interrupt == "ask" else "interrupted"
            action = "reconcile" if tool.reconcile is not None else action
        return Recovered(state.id, state.session, name, state.by, action)

    def _tool(self, agent: str, name: str) -> AnyTool | None:
        known = self._around.agents.get(agent)
        return None if known is None else known.tools.get(name)
