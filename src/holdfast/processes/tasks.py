"""Background calls: processes that make one tool call each, after its turn has got an answer.

A task that never began is begun. An interrupted one is repeated if its tool allows it; otherwise `reconcile` finds the
outcome, or the task ends as interrupted. Its end and the notification of its session are one commit.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, cast, get_args

import msgspec

from holdfast import errors, records
from holdfast.agent import prepare
from holdfast.crashpoints import crash_point
from holdfast.effects.canonical import printable
from holdfast.effects.performer import LeasedJournal, Performer, idempotency_key
from holdfast.effects.replay import Perform, PerformAgain, Repeat, SettleAsUnknown, fold_history
from holdfast.eventloop import cancel_and_wait
from holdfast.logs import log_event
from holdfast.messages import ToolCall
from holdfast.names import MAX_INT, check_choice, check_int
from holdfast.policy.hooks import TurnContext
from holdfast.processes import keys, lists
from holdfast.processes import state as process_state
from holdfast.processes.driver import ProcessDrive
from holdfast.processes.state import ProcessState, TaskCall, TaskStatus
from holdfast.processes.sub_agents import agent_under_mandate
from holdfast.runtime.authorization import DENIED_ERROR, Authorizer
from holdfast.runtime.deferrals import Deferrals
from holdfast.runtime.hooks import HookRunner, current_hooks
from holdfast.runtime.reconciliation import has_only_waited, was_suspended
from holdfast.runtime.session_records import read_conversation
from holdfast.runtime.taint import taint_of_session
from holdfast.runtime.tool_call import AuthorizedCall, ParkedCall, PreparedCall, bind
from holdfast.runtime.tool_execution import SpillableCall, ToolExecutor
from holdfast.runtime.tool_host import ToolHost
from holdfast.runtime.waits import JournalWaits, ToolWaits, wait_name
from holdfast.store import Notify
from holdfast.store.spending import Spend
from holdfast.tools.results import shorten
from holdfast.turns.conversation import UserInput, deadline_wait, decode_input
from holdfast.turns.keys import DEFERRAL, RETURNED, input_number

if TYPE_CHECKING:
    import builtins
    from collections.abc import Mapping, Sequence

    from holdfast.processes.service import Requested
    from holdfast.runtime.context import RuntimeContext
    from holdfast.store.contract import Journal, Lease
    from holdfast.tools.definition import AnyTool


_log: Final = logging.getLogger("holdfast.tasks")
PROGRESS_INTERVAL: Final = 0.02
"""Least time between two recorded progress reports, in seconds. The newest report counts."""
MAX_NOTE: Final = 2_000
"""Longest recorded note of a report, in characters."""
NOT_REPEATED: Final = "it was interrupted or took too long, and it must not be repeated"
TOOL_MISSING_ERROR: Final = "tool_missing"
"""Error kind of calls that never began because no runtime had their tool."""


class TaskDrive(ProcessDrive):
    """One drive of a background call. `work` is its running task, if any; `lease` was claimed for it."""

    def __init__(
        self, context: RuntimeContext, id: str, *, lease: Lease | None = None, work: SpillableCall | None = None
    ) -> None:
        super().__init__(context, id, lease)
        self._work = work

    async def run(self) -> None:
        """Drive the call until it ends or has to wait."""
        try:
            await super().run()
        finally:
            if self._work is not None:
                self._work.task.cancel()

    async def _go_on(self, lease: Lease) -> bool:
        state, call = self._state, cast("TaskCall", self._state.call)
        tool = self._context.tasks.find_tool(state.name, call)
        await self._look()
        if self._interruption is None:
            waits = JournalWaits(self._store, self.session)
            if (state.name or "") not in self._context.agents:
                return False  # another process may know it
            if state.status == "waiting" and not await waits.any_ended(state.waits):
                return True
            if tool is None and await self._is_left(call, waits, lease.wakes):
                return False
        if lease.head == 1:
            self._append(process_state.task_start_records(call, 1, self._ledger.now()))
        run = TaskRun(self._context, state, self._ledger, await self._metadata(call.turn))
        self._performer = run.performer
        try:
            await self._carry_out(run, tool, call)
        finally:
            await run.performer.close("ended")
            self._body = None
        return True

    async def _is_left(self, call: TaskCall, waits: JournalWaits, wakes: int) -> bool:
        """Leave the call to a runtime that has its tool until a stored deadline; False once that has passed.

        The deadline counts from the first runtime without the tool after the last start.
        """
        if await self._ends_with_answer(call):
            return False
        name = deadline_wait(f"{records.TASK_RUN}-{self._state.starts}")
        wait = await waits.open(name, self._store.clock.read().wall + self._context.missing_tool_ms)
        if wait.state != "open" or wait.deadline is None:
            return False
        self._context.processes.leave(self.session, wakes)
        self._context.tasks.note_recovery(self._state)
        left = datetime.fromtimestamp(wait.deadline / 1000, UTC).isoformat(timespec="seconds")
        said = "the agent %r has no tool %r here: the background call %s is left to another process until %s"
        _log.warning(said, self._state.name, call.tool, self.session, left)
        return True

    async def _ends_with_answer(self, call: TaskCall) -> bool:
        """True if the answer to a deferral ends the call without its tool."""
        returned = f"{keys.task_key(call.tool)}/{RETURNED}"
        if any(isinstance(record, records.Done) and record.key == returned for record in self._state.records):
            return True
        wait = await self._store.wait(self.session, wait_name(f"{keys.task_key(call.tool)}/{DEFERRAL}"))
        return wait is not None and wait.state == "resolved"

    async def _metadata(self, turn: str) -> dict[str, Any]:
        """The host's metadata of the calling session, and of the input of the calling turn."""
        session, number = self._state.session, input_number(turn) if turn else 0
        if session is None or number is None:
            return {}
        try:
            line = await self._store.journal(session)
            found = await self._store.input(session, number) if number else None
        except errors.HoldfastError:  # the session is missing or damaged: the call goes on without
            return {}
        said = None if found is None else decode_input(found.body)
        return {**line.metadata, **((said.metadata or {}) if isinstance(said, UserInput) else {})}

    async def _carry_out(self, run: TaskRun, tool: AnyTool | None, call: TaskCall) -> None:
        work = self._work
        begun = self._state.begun and work is None
        authorizer = await run.authorizer() if call.host else None
        prepared = run.prepare(tool, begun=begun, authorizer=authorizer)
        if self._interruption is not None and work is None:
            await run.end(_outcome_when_cancelled(run, prepared, begun=begun), self._reason)
            return
        if tool is None and not await self._ends_with_answer(call):
            self._context.tasks.note_recovery(self._state, "interrupted" if begun else "left")
            # Unknown if it was begun, failed if it was not.
            now, key = run.performer.now(), prepared.key
            said = f"no process whose agent has the tool {call.tool!r} went on with it until its deadline"
            info = records.ErrorInfo(TOOL_MISSING_ERROR, f"it was never begun: {said}")
            outcome = records.Unknown(at=now, key=key) if begun else records.Failed(at=now, key=key, error=info)
            await run.end(outcome, interrupted=said)
            return
        decided: list[records.Record] = []
        consumed: tuple[str, ...] = ()
        if authorizer is not None:
            state = await run.authorize(authorizer, prepared)
            if isinstance(state, ParkedCall):
                await run.park(state.waits)
                return
            prepared, decided, consumed = state, [*state.before], state.consumes
            if self._news:
                await self._look()
            if self._interruption is not None and not begun:
                await run.end(_outcome_when_cancelled(run, prepared, begun=False), self._reason)
                return
            if not state.is_made and not begun:  # nothing begins that an interruption could leave unknown
                run.performer.submit(decided, consume=consumed)
                await run.end(await run.outcome(prepared, None, authorizer))
                return
        if work is None:
            if begun and self._state.status == "running":
                self._context.tasks.note_recovery(self._state)
            kind = records.Resumed if begun else records.Started
            entered = kind(at=run.performer.now(), run=records.TASK_RUN, by=self._context.process)
            crash_point("task.before_begin")
            # An approval is consumed in the same commit as the decision that uses it, and the begin of the call.
            run.performer.submit([*decided, entered], consume=consumed)
            facts = {"task": self._state.id, "tool": call.tool, "session": self._state.session}
            log_event(_log, logging.INFO, "task resumed" if begun else "task started", **facts)
            await run.performer.settle()
        else:
            work.context.move(run, prepared.key)
            run.call_began = True
        self._work = None
        body = self._begin(run.performer, run.outcome(prepared, work, authorizer))
        try:
            if self._interruption is not None:
                await asyncio.sleep(0)  # a task that is cancelled before its first step never reaches its call
            await asyncio.wait({body, self._stopped}, return_when=asyncio.FIRST_COMPLETED)
            if not body.done():  # it is to be cancelled, and gets a moment to clean up
                run.stopped = True
                if not await cancel_and_wait(body):
                    _log.warning("the tool of %s does not end although it is cancelled; it is left alone", self.session)
        except asyncio.CancelledError:
            await self._leave(run.performer, body)
            raise
        run.performer.check_halted()
        # A result counts although the call was to be cancelled.
        ended = body.done() and not body.cancelled() and body.exception() is None
        if self._interruption is not None and not ended:
            await run.end(_outcome_when_cancelled(run, prepared, begun=run.call_began), self._reason)
            return
        try:
            outcome = body.result()
        except errors.Suspended as suspended:
            await run.park(suspended.waits)
        except asyncio.CancelledError:
            info = records.ErrorInfo("CancelledError", "the tool cancelled the task that ran it")
            await run.end(records.Failed(at=run.performer.now(), key=prepared.key, error=info))
        else:
            await run.end(outcome)


@dataclass(frozen=True, slots=True)
class HostCallOwner:
    """The caller of a host call, for the authorizer: its waits are in its own journal."""

    context: RuntimeContext
    session: str
    waits: JournalWaits
    host_call: str


class TaskRun:
    """One run of a background call, for its tool."""

    def __init__(
        self, context: RuntimeContext, state: ProcessState, ledger: LeasedJournal, metadata: dict[str, Any]
    ) -> None:
        call = self._call = cast("TaskCall", state.call)
        self.session = state.session or state.id
        self.metadata: Mapping[str, Any] = metadata
        self.host = ToolHost(context, self.session, state.name)
        self.run = call.turn
        self.deadline: int | None = None
        self.stopped = False
        self.call_began = False
        self.performer = Performer(ledger, fold_history(state.records), records.TASK_RUN)
        self._context = context
        self._state = state
        self._loop = asyncio.get_running_loop()
        waits = self._waits = JournalWaits(context.store, state.id)
        self.waits = ToolWaits(waits, self.performer)
        self.deferrals = Deferrals(waits, self.performer)
        self.agent = context.agents.get(state.name or "")
        self._executor = ToolExecutor(self)
        self._report: tuple[str | None, float | None] | None = None
        self._report_timer: asyncio.TimerHandle | None = None

    async def authorizer(self) -> Authorizer | None:
        """The authorizer of a host call; None if the agent is unknown here."""
        if self.agent is None:
            return None
        conversation = await read_conversation(self._context.store, self.session)
        agent = agent_under_mandate(self.agent, conversation.mandate, self._context.agents)
        if agent is None:
            return None
        owner = HostCallOwner(self._context, self.session, self._waits, self._state.id)
        made = Authorizer(owner, agent, self.performer, self._hook_runner())
        await made.recall([keys.task_key(self._call.tool)])
        return made

    async def authorize(self, authorizer: Authorizer, prepared: PreparedCall) -> AuthorizedCall | ParkedCall:
        """Check a host call with hooks, policy and people, and with the current taint of its session."""
        taint = await taint_of_session(self._context.store, self._context.agents, self.session)
        [state] = await authorizer.authorize([prepared], taint)
        return state

    def prepare(self, tool: AnyTool | None, *, begun: bool, authorizer: Authorizer | None = None) -> PreparedCall:
        """Decide whether to begin the call, repeat it, or reconcile it."""
        call, key = self._call, keys.task_key(self._call.tool)
        past = self.performer.past
        ask = past.effects[key].ask()
        repeat = Repeat.NEVER if tool is None else tool.repeat  # a tool that is gone can't say that it is safe
        decision = self.performer.decide(key, ask, repeat) if begun else Perform(intent=False)
        if isinstance(decision, SettleAsUnknown) and was_suspended(past, key):
            decision = PerformAgain()
        sent = ToolCall(call.call_id, call.tool, call.arguments)
        edited = False
        if authorizer is not None:
            decisions = authorizer.decisions(key)
            edited, sent = decisions.edited, decisions.applied_to(sent)
        bound, refused = bind(sent, tool, () if self.agent is None else self.agent.tools)
        if not begun and tool is not None and not _is_approved(call, tool):
            said = f"{call.tool} is not what it was when a person approved this call; it was not made"
            refused = records.ErrorInfo(DENIED_ERROR, said)
        return PreparedCall(
            sent,
            self._state.id,
            key,
            ask,
            tool,
            decision,
            intended=True,
            bound=bound,
            refused=refused,
            edited=edited,
            idempotency=call.idempotency,
            nested=call.host,
            output_limit=MAX_INT if call.host else None,
        )

    def _hook_runner(self) -> HookRunner:
        turn: TurnContext[Any] = TurnContext(
            self.session, self._state.name or "", self.run, self.metadata, self.host.deps
        )
        hooks, clean = () if self.agent is None else self.agent.hooks, self.performer.redactor.text
        return HookRunner(hooks, turn, guards=self._context.hooks, clean=clean)

    async def outcome(
        self, prepared: PreparedCall, work: SpillableCall | None, authorizer: Authorizer | None = None
    ) -> records.Outcome:
        """Make the call, or wait for the running one. Hooks see the result of a host call."""
        outcome = await self._outcome(prepared, work)
        if authorizer is None or not isinstance(prepared, AuthorizedCall):
            return outcome
        beside = authorizer.beside.pop(prepared.key, ())
        if beside:
            self.performer.submit([*beside], patient=True)
        return await authorizer.apply_result_hooks(prepared, outcome, {})

    async def _outcome(self, prepared: PreparedCall, work: SpillableCall | None) -> records.Outcome:
        current_hooks.set(self._hook_runner())
        if isinstance(prepared, AuthorizedCall) and prepared.answer is not None:
            return await self.performer.succeeded(prepared.key, None, prepared.answer)
        if work is not None:
            work.call = prepared
            return await self._executor.finish(work)

        def began(_: PreparedCall) -> None:
            self.call_began = True

        return await self._executor.execute(prepared, began)

    async def park(self, waits: tuple[str, ...]) -> None:
        """Record that the task waits for an answer from outside."""
        self._flush()
        crash_point("task.before_park")
        self.performer.submit([records.Parked(at=self.performer.now(), run=records.TASK_RUN, waits=waits)])
        await self.performer.settle()

    async def end(
        self, outcome: records.Outcome, cancelled: str | None = None, interrupted: str = NOT_REPEATED
    ) -> None:
        """Record how the task ended and notify its session, in one commit."""
        self._flush()
        if cancelled is not None:
            await self._context.processes.stop_below(self._state, cancelled)
        status, error = _end_status(outcome, cancelled, interrupted)
        ended = records.Ended(at=self.performer.now(), run=records.TASK_RUN, status=status, error=error)
        notices: list[Notify] = []
        if self._state.session is not None and not self._call.is_silent:
            word, about, text = process_state.task_status(ended), self._state.id, ""
            if isinstance(outcome, records.Done):
                given = await self.performer.read_value(outcome)
                value = msgspec.json.decode(given)
                text = value if isinstance(value, str) else given.decode()
            title, said = process_state.task_end_title(self._call, word), process_state.task_end_text(outcome, text)
            notices.append(Notify(self._state.session, f"task_{word}", title, said, source=about, key=f"task/{about}"))
        crash_point("task.before_end")
        await self.performer.seal(outcome, ended, notify=notices)
        crash_point("task.after_end")
        said = None if error is None else f"{error.kind}: {error.message}"
        facts = {"task": self._state.id, "tool": self._call.tool, "session": self._state.session}
        log_event(_log, logging.INFO, "task ended", **facts, status=process_state.task_status(ended), error=said)

    # ---- what tools may use ----

    def note(self, record: records.Record) -> None:
        self.performer.submit([record], patient=True)

    def progress(self, key: str, note: str | None, fraction: float | None) -> None:  # there is one call
        try:
            asyncio.get_running_loop()
        except RuntimeError:  # a plain function, in a thread
            self._loop.call_soon_threadsafe(self._take_report, note, fraction)
        else:
            self._take_report(note, fraction)

    def _take_report(self, note: str | None, fraction: float | None) -> None:
        if note is not None:
            note = printable(shorten(self.performer.redactor.text(str(note)), MAX_NOTE))
        self._report = note, fraction if fraction is not None and 0 <= fraction <= 1 else None
        if self._report_timer is None:
            self._record_report()
            self._report_timer = self._loop.call_later(PROGRESS_INTERVAL, self._report_again)

    def _report_again(self) -> None:
        self._report_timer = None
        if self._report is not None:
            self._take_report(*self._report)

    def _flush(self) -> None:
        """Record the newest report before the end."""
        if self._report_timer is not None:
            self._report_timer.cancel()
            self._report_timer = None
        self._record_report()

    def _record_report(self) -> None:
        if self._report is None:
            return
        (note, fraction), self._report = self._report, None
        try:
            record = records.Progressed(at=self.performer.now(), run=records.TASK_RUN, note=note, fraction=fraction)
            self.performer.submit([record], patient=True)
        except errors.Halted:
            pass  # it is over here
        except errors.HoldfastError as error:
            _log.warning("progress of %s could not be recorded: %s", self._state.id, error)


def _is_approved(call: TaskCall, tool: AnyTool) -> bool:
    """True if the call needed no approval, or the approved tool has not changed."""
    return call.definition is None or (
        call.definition == tool.digest and call.implementation in {None, tool.implementation}
    )


def _outcome_when_cancelled(run: TaskRun, prepared: PreparedCall, *, begun: bool) -> records.Outcome:
    """The outcome of a cancelled call: unknown for a tool that acts and had begun."""
    now = run.performer.now()
    acts = prepared.tool is None or not prepared.tool.read_only
    if begun and acts and not has_only_waited(run.performer.past, prepared.key):
        return records.Unknown(at=now, key=prepared.key)
    return records.Cancelled(at=now, key=prepared.key)


def _end_status(
    outcome: records.Outcome, cancelled: str | None, interrupted: str
) -> tuple[records.EndStatus, records.ErrorInfo | None]:
    if cancelled is not None:
        return "cancelled", records.ErrorInfo("cancelled", cancelled)
    match outcome:
        case records.Done():
            return "completed", None
        case records.Failed(error=error):
            return "failed", error
        case records.Unknown():
            return "failed", records.ErrorInfo(process_state.INTERRUPTED_ERROR, interrupted)
        case records.Cancelled():
            return "cancelled", None


# ---- the background calls of a store ----

RecoveryAction = Literal["rerun", "reconcile", "asked", "interrupted", "left", "damaged"]
TASK_SPEND: Final = Spend(tasks=1)
"""Tasks count when accepted, so waiting ones can't exceed a budget."""
MAX_REMEMBERED: Final = 10_000
"""Most recovered tasks kept for the next call of `recover`."""


class RecoveredTask(NamedTuple):
    """A task whose process is gone, and its recovery."""

    task: str
    session: str | None
    tool: str
    by: str | None
    action: RecoveryAction


class Tasks:
    """The background calls of one store."""

    def __init__(self, context: RuntimeContext) -> None:
        self._context = context
        self._store = context.store
        self._recovered: list[RecoveredTask] = []

    # ---- for their drives ----

    def note_recovery(self, state: ProcessState, action: RecoveryAction | None = None) -> None:
        """Keep a recovered task for the next call of `recover`."""
        if len(self._recovered) < MAX_REMEMBERED:
            found = self._recovery(state)
            self._recovered.append(found if action is None else found._replace(action=action))

    # ---- for turns ----

    async def task_for_call(self, session: str, key: str) -> str | None:
        """The task that continues the call `key` of a session, if any."""
        id = keys.task_id(session, key)
        try:
            await self._store.journal(id)
        except errors.JournalMissing:
            return None
        return id

    async def start(self, session: str, agent: str, turn: str, call: AuthorizedCall) -> str:
        """Make a call in the background; returns the id of its task once that is durable."""
        id = await self._accept(session, agent, self._task_call(session, turn, call, begun=False))
        self._context.processes.begin_drive(id)
        return id

    async def adopt(self, session: str, agent: str, turn: str, work: SpillableCall) -> str:
        """Move a running call to the background; returns the id of its task once that is durable."""
        call = self._task_call(session, turn, work.call, begun=True)
        claiming = self._claim(keys.task_id(session, call.key))
        # Both commands are in one commit if all goes well: no other process finds the task before it is ours.
        id, lease = await asyncio.gather(self._accept(session, agent, call, patient=True), claiming)
        now = self._store.clock.read().wall
        opening = process_state.task_start_records(call, 1, now)
        opening.append(records.Started(at=now, run=records.TASK_RUN, by=self._context.process))
        head = await self._store.append(lease, opening, head=lease.head)
        drive = TaskDrive(self._context, id, lease=msgspec.structs.replace(lease, head=head), work=work)
        engine = self._context.engine
        if engine is None or not engine.begin_task(id, drive, under_way=True):
            # The runtime is being closed: the next one that opens the store goes on with it.
            work.task.cancel()
            await self._store.release(lease)
        return id

    async def _claim(self, id: str) -> Lease:
        return await self._store.claim(id, ttl_ms=self._context.lease_ms)  # submitted when this runs: after the accept

    async def start_host_call(self, id: str, agent: str, call: TaskCall, session: str) -> None:
        """Make a host call; returns once it is durable."""
        try:
            await self._context.processes.accept(id, agent, call, session)
        except (errors.KeyConflict, errors.JournalConflict):
            if (await self.task(id)).call != call:  # another process made it in the same moment
                raise errors.CallConflict(call.call_id.removeprefix(keys.host_call_key("")), id) from None
        crash_point("call.accepted")
        self._context.processes.begin_drive(id)

    async def _accept(self, session: str, agent: str, call: TaskCall, *, patient: bool = False) -> str:
        id = keys.task_id(session, call.key)
        with suppress(errors.KeyConflict):  # a process before this one has written it
            await self._context.processes.accept(id, agent, call, session, patient=patient)
        return id

    def _task_call(self, session: str, turn: str, call: PreparedCall, *, begun: bool) -> TaskCall:
        sent, approved = call.request, isinstance(call, AuthorizedCall) and call.approved
        tool = call.tool if approved else None
        version = (None, None) if tool is None else (tool.digest, tool.implementation)
        idempotency = call.idempotency or idempotency_key(self._store.leased_birthplace(session), session, call.key)
        provided: dict[str, Any] | None = None
        if call.tool is not None and call.tool.provided is not None:
            from holdfast.tools.providers import chosen_tool  # only where agents have providers

            provided = msgspec.to_builtins(chosen_tool(call.tool))
        given = sent.name, sent.arguments or {}, sent.id, turn, call.key, idempotency
        return TaskCall(*given, begun, *version, provided=provided)

    # ---- for hosts and for tools ----

    async def list(
        self,
        *,
        session: str | None = None,
        status: TaskStatus | None = None,
        before: Journal | None = None,
        limit: int = 50,
    ) -> Sequence[Journal]:
        """Tasks, the last changed first; `status` is a status word of tasks."""
        if status is not None:
            check_choice("task status", status, get_args(TaskStatus))
        most = min(check_int("limit", limit, least=1), self._store.limits.page)
        stored = None if status is None else lists.stored_status(status)
        found: list[Journal] = []
        async for page in lists.journal_pages(
            self._store, keys.TASK_ROLE, size=most, status=stored, session=session, before=before
        ):
            ends: dict[str, str] = {}
            if stored == "failed":  # the store does not tell interrupted tasks from failed ones
                previews = await lists.preview_processes(self._store, [line.id for line in page])
                ends = {each.line.id: lists.state_of_preview(each).status for each in previews if each.tail is not None}
            found += [line for line in page if stored != "failed" or ends.get(line.id, "failed") == status]
            if len(found) >= most:
                break
        return found[:most]

    async def under_way(self, session: str) -> builtins.list[str]:
        """The ids of the tasks of a session that have not ended."""
        return [
            line.id
            for status in ("idle", "running", "waiting")
            async for page in lists.journal_pages(self._store, keys.TASK_ROLE, session=session, status=status)
            for line in page
            if line.quarantine is None
        ]

    async def task(self, id: str) -> ProcessState:
        """One task; `TaskUnknown` when there is none."""
        try:
            state = await lists.read_process(self._store, id)
        except errors.JournalMissing:
            raise errors.TaskUnknown(id) from None
        if state.call is None:
            raise errors.TaskUnknown(id)
        return state

    async def result(self, state: ProcessState) -> bytes | None:
        """The result of a task as JSON; None without one."""
        outcome = state.outcome
        if not isinstance(outcome, records.Done):
            return None
        return bytes(outcome.value) if outcome.blob is None else await self._store.blob(outcome.blob.digest)

    async def cancel(self, id: str, reason: str = "") -> Requested:
        """Request the cancellation of a task and its sub-agent. The first request counts.

        One after the end is too late. On return the request is durable for all sub-agents below, too.
        """
        await self.task(id)
        return await self._context.processes.cancel(id, reason, reason)

    async def recover(self) -> list[RecoveredTask]:
        """Tasks whose process is gone, with their recovery here. Leaves out tasks of live processes.

        Includes tasks that this runtime recovered since the last call.
        """
        found, self._recovered = self._recovered, []
        known = {one.task for one in found}
        async for work, holder in lists.all_work(self._store):
            idle = work.role == keys.TASK_ROLE and work.status == "running" and holder is None
            if idle and work.journal not in known:
                try:
                    found.append(self._recovery(await self.task(work.journal)))
                except errors.StoreError:
                    found.append(RecoveredTask(work.journal, None, "", None, "damaged"))
        return found

    def _recovery(self, state: ProcessState) -> RecoveredTask:
        name = "" if state.call is None else state.call.tool
        tool = None if state.call is None else self.find_tool(state.name, state.call)
        action: RecoveryAction = "left"
        if tool is not None and tool.repeat is not Repeat.NEVER:
            action = "rerun"
        elif tool is not None and tool.reconcile is not None:
            action = "reconcile"
        elif tool is not None:
            action = "asked" if tool.on_interrupt == "ask" else "interrupted"
        return RecoveredTask(state.id, state.session, name, state.by, action)

    def find_tool(self, agent: str | None, call: TaskCall) -> AnyTool | None:
        """The tool of a call, if the agent has it here."""
        known = self._context.agents.get(agent or "")
        if known is None or call.provided is None:
            return None if known is None else known.tools.get(call.tool)
        from holdfast.tools.providers import ChosenTool, tool_of_record  # only where agents have providers

        chosen, providers = msgspec.convert(call.provided, ChosenTool), prepare(known).providers
        return tool_of_record(chosen, known.tools, providers) if chosen.provider in providers else None
