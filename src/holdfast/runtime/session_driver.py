"""The drive of one session: all work that this process does for it while it holds the lease.

Read the inbox; continue the open turn, or begin the next one; stop when the inbox is empty, when the turn waits for an
answer, or when the runtime closes. Cancellation and deadlines stop a turn at any point.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast import errors, eventloop, messages, names
from holdfast.agent import Agent, prepare
from holdfast.crashpoints import crash_point
from holdfast.effects.canonical import canonical, error_info
from holdfast.errors.caller import GateInvalid, NotASession
from holdfast.logs import log_event
from holdfast.models.prices import reply_cost
from holdfast.policy import rules
from holdfast.processes.sub_agents import agent_under_mandate
from holdfast.records import ABSENT, Admitted, Cancelled, Ended, Parked, Record, Resumed, Started, Unknown
from holdfast.runtime import drive, session_records, tool_call, turn_runner
from holdfast.runtime.changes import LiveEventBuffer, TurnEnded
from holdfast.runtime.context import RuntimeClosing, RuntimeContext
from holdfast.runtime.taint import taint_of_notices
from holdfast.runtime.tool_host import ToolHost
from holdfast.runtime.waits import JournalWaits
from holdfast.secrets.logs import safe_trace
from holdfast.store.contract import Input, Lease
from holdfast.turns import keys, machine, notices, results
from holdfast.turns.conversation import CancelRequest, OpenTurn, UserInput, deadline_wait, decode_input, input_blobs

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from holdfast import events
    from holdfast.policy import limits
    from holdfast.store import Notification
    from holdfast.turns.conversation import Conversation


@dataclass(frozen=True, slots=True)
class InboxInput:
    """An input that waits in the inbox."""

    input: Input
    said: UserInput | CancelRequest

    @property
    def run(self) -> str:
        """The turn that it begins, if it begins one."""
        return keys.turn_id(self.input.input)

    def deadline(self, agent: Agent | None, begun: int | None = None) -> int | None:
        """The deadline of the turn that it begins. `begun` is the start; without it such deadlines are None."""
        if not isinstance(self.said, UserInput):
            return None
        span = turn_span(self.said, agent)
        since = begun if self.said.deadline_from_start else self.input.at
        return None if span is None or since is None else since + span


def turn_span(said: UserInput, agent: Agent | None) -> int | None:
    """Most milliseconds of the turn of an input: its own limit, or else that of the agent."""
    if said.deadline_ms is not None or agent is None or agent.limits.deadline is None:
        return said.deadline_ms
    return rules.milliseconds(agent.limits.deadline)


@dataclass(frozen=True, slots=True)
class Interruption:
    """The ending of a turn that must stop, or ends before it begins, with the request for it; or a late request."""

    ending: machine.Ending
    stop: InboxInput | None = None
    waiting: InboxInput | None = None
    """The input of the turn that does not begin."""


_DEADLINE_ENDING: Final = machine.Ending("limit", "deadline", "the deadline of the turn has passed", "limit")
GATE_SECONDS: Final = 1.0
"""Time that an async `can_deliver` has to answer; without an answer the gate is closed."""
MAX_NOTIFICATIONS: Final = 32
"""Most notifications that are read for one input."""


def check_gate(given: Callable[[str], bool | Awaitable[bool]] | None) -> Callable[[str], Awaitable[bool]]:
    """Wrap the host's `can_deliver`, a plain or an async function; raises `GateInvalid` for anything else.

    Any answer but a bool raises, instead of counting as a yes, and so does one that takes longer than `GATE_SECONDS`.
    """
    if given is not None and not callable(given):
        raise GateInvalid(given, f"it is a {type(given).__name__}")
    if given is not None and inspect.isasyncgenfunction(given):
        raise GateInvalid(given, "it is an async generator")

    async def ask(session: str) -> bool:
        if given is None:
            return True
        said: object = given(session)
        if inspect.isawaitable(said):
            try:
                async with asyncio.timeout(GATE_SECONDS):
                    said = await said
            except TimeoutError:
                raise GateInvalid(given, f"it did not answer within {GATE_SECONDS:g} s") from None
        if type(said) is bool:
            return said
        raise GateInvalid(given, f"it answered with a {type(said).__name__}")

    return ask


async def is_gate_open(gate: Callable[[str], Awaitable[bool]], session: str) -> bool:
    """The answer of the host's `can_deliver`. The turn may go on or end meanwhile."""
    try:
        return await gate(session)
    except Exception:  # the host's own function: nothing is lost over it, the next look asks again
        _log.exception("can_deliver failed for session %r; its notifications wait", session)
        return False


def check_session_id(id: str) -> str:
    """Return the id, or raise `NotASession` for a task, which never reads notifications."""
    if isinstance(id, str) and names.is_task_id(id):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers may be untyped
        raise NotASession(id)
    return id


def wall_milliseconds(at: datetime | None) -> int | None:
    """A time in wall milliseconds, as the store keeps it."""
    if at is None:
        return None
    if not isinstance(at, datetime):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers may be untyped
        raise errors.InvalidArgument("time", at, "a datetime")
    return round(at.timestamp() * 1000)


_log: Final = logging.getLogger("holdfast.driver")
_turn_log: Final = logging.getLogger("holdfast.runtime")
TIME_BUDGET_CHECK_MS: Final = 30_000
"""Interval at which time budgets are checked during an effect, in milliseconds."""


class SessionDrive(drive.JournalDrive):
    """One drive of one session, and the session as its turn sees it.

    Without its agent, or with `stops_only` (no room for another turn), only stop requests take effect.
    """

    def __init__(self, context: RuntimeContext, session: str, *, stops_only: bool = False) -> None:
        super().__init__(context, session)
        self._agent: Agent | None = None
        """The agent that has the session, if this runtime has it."""
        self._open: OpenTurn | None = None
        """The turn under way."""
        self.show: Callable[[type[events.LiveEvent], str, dict[str, Any]], None]
        """Publish a live event."""
        self._claimed = self._claim()  # at once, after the writes that are under way for the session
        self._agent_name: str | None = None
        """The session's current agent, also if this runtime does not have it."""
        self._stops_only = stops_only
        self._mandate: limits.Mandate | None = None
        self._finished = False
        self._handed = False
        """The session was handed to another agent, which continues the turn."""
        # Inputs from outside.
        self._listener: Callable[[], None] | None = None
        self._inbox: list[InboxInput] = []
        self.stopped_calls: dict[str, InboxInput] = {}
        """Requests to stop single calls of the open turn, by the key of the call; `admit_call_stop` takes one."""
        self._tried_stops: set[int] = set()
        """Such requests that a run of the turn has seen: a call that only waits is resumed once for each."""
        self._taken: set[int] = set()
        """Inputs that entered the journal here; their record may not be durable yet."""
        self._alarm: asyncio.TimerHandle | None = None
        self._held_back = False
        """Notifications were held back by the open turn, or by inputs that wait to enter it."""
        # The turn that is under way, and the reason why it must stop.
        self._turn: turn_runner.TurnRunner | None = None
        self._work: asyncio.Task[machine.Ending] | None = None
        self._look_at: int | None = None
        """Time of the next check of time budgets during an effect."""
        self._interruption: Interruption | None = None
        self._concluded: asyncio.Event | None = None
        """Set when the turn has ended or must stop."""
        self._lease: Lease
        self._live_events: LiveEventBuffer

    @property
    def waits(self) -> JournalWaits:
        """The waits of the session; most turns have none."""
        return JournalWaits(self._store, self.session)

    # ---- the drive ----

    def _on_news(self) -> None:
        if self._listener is not None:
            self._listener()
        if self._work is not None:
            self._look_soon()

    def _last_seen(self) -> int | None:
        # A process that knows the agent, has room, or opens the store next, must still find the inputs left here.
        if any(map(self._is_held, self._inbox)):
            return None
        return self._seen if self._finished and self._agent is not None and not self._stops_only else None

    async def _drive(self, lease: Lease, lost: asyncio.Future[errors.HoldfastError]) -> None:
        crash_point("drive.claimed")
        await self.context.turnstile.enter()
        self._lease = lease
        self._live_events = LiveEventBuffer(self._ledger, self.context.changes)
        self.show = self._live_events.publish
        self.context.changes.add_buffer(self._live_events)
        try:
            if lease.made is None:
                self._news = False  # news from here on may not be in the page that is read now
            # Else nothing is read, and all that came since the lease was claimed is news.
            seen = self._heard if lease.made is None else lease.wakes
            known = self.context.conversations.take(self.session)
            conversation, pending, ready = await session_records.read_session(self._store, lease, known)
            if conversation.seq != lease.head:
                raise errors.HeadConflict(self.session, lease.head, conversation.seq)
            self._ledger.watch = replace(conversation.watch)
            self._agent = self._agent_of(conversation, pending)
            await self._serve(conversation, pending, ready, seen)
            session_records.save_fold(self._store, lease, conversation)
            if self._open is None:  # a parked session takes no memory
                self.context.conversations.keep(self.session, conversation)
        finally:
            if self._alarm is not None:
                self._alarm.cancel()
            self.context.changes.remove_buffer(self._live_events)

    async def _serve(
        self, conversation: Conversation, pending: list[Input], ready: list[Notification], seen: int
    ) -> None:
        self._open = conversation.turn
        if len(pending) < self._store.limits.page:
            await self._act_on(pending, ready, seen)
        else:
            await self._look()
        while not self._stopping:
            turn, first = await self._begin(conversation)
            if turn is not None:
                self.context.changes.ended(self.session, await self._carry_on(turn, first))
            if not await self._goes_on(turn):
                await self._rest()
                return
            await session_records.read_further(self._store, self.session, conversation)
            session_records.save_fold(self._store, self._lease, conversation)
            self._open = conversation.turn
            if self._handed:
                self._agent = self._agent_of(conversation, [])
            await self._look()

    async def _goes_on(self, turn: OpenTurn | None) -> bool:
        """True if there is more to do after `turn` ended or was parked."""
        if self._looking is not None:
            await asyncio.gather(self._looking, return_exceptions=True)
        if self._news or self._interruption is not None or self._handed:
            return True
        if any(found.input.input not in self._tried_stops for found in self.stopped_calls.values()):
            return True  # for a call that was parked before the request came, or of a turn that has just ended
        if self._held_back and (turn is None or turn.parked is None):
            self._held_back = False
            return turn is not None  # inputs that waited behind it can be delivered now
        if turn is None or self._stops_only:
            return False
        if turn.parked is not None:
            return await self.waits.any_ended(turn.parked.waits)
        return any(self._may_begin(found) for found in self._inbox)

    async def _rest(self) -> None:
        """End the drive. Inputs behind a parked turn get waits for their deadlines."""
        if self._mandate is not None and self._open is None:
            await self.context.children.ended(self._mandate)
        if self._stopping:
            return
        for found in self._inbox:
            due = found.deadline(self._agent)
            if due is not None:
                await self._store.open_wait(self.session, deadline_wait(found.run), deadline=due)
        self._finished = not self._news

    def _agent_of(self, conversation: Conversation, pending: list[Input]) -> Agent | None:
        """The agent of the session, within the mandate of its parents."""
        mandate = conversation.mandate
        if mandate is None and not conversation.position and pending:
            said = decode_input(pending[0].body)
            mandate = said.mandate if isinstance(said, UserInput) else None
        self._mandate = mandate
        self._agent_name = conversation.agent
        self.__dict__.pop("tool_host", None)  # it knows the agent before
        return self._known_agent(conversation.agent or "")

    def _known_agent(self, name: str) -> Agent | None:
        agents = self.context.agents
        found = agents.get(name)
        return found if self._mandate is None else agent_under_mandate(found, self._mandate, agents)

    # ---- which turn ----

    async def _begin(self, conversation: Conversation) -> tuple[OpenTurn | None, list[Record]]:
        """The open or the next turn with its first records; None if it has to wait."""
        turn = conversation.turn
        if turn is None:
            return await self._next(conversation)
        handed, self._handed = self._handed, False
        before = turn.by or turn.started.by
        taken_over = turn.parked is None and before != self.context.process
        if self._interruption is None:
            idle = self._agent is None or self._stops_only
            self._tried_stops.update(found.input.input for found in self.stopped_calls.values())
            if idle or (turn.parked is not None and not await self._is_answered(turn, turn.parked)):
                return None, []
        if handed:  # the same process continues with it
            return turn, []
        event = "took over from a dead process" if taken_over else "turn resumed"
        log_event(
            *(_turn_log, logging.INFO, event),
            session=self.session,
            turn=turn.run,
            before=before if taken_over else None,
        )
        return turn, [Resumed(at=self._ledger.now(), run=turn.run, by=self.context.process)]

    async def _is_answered(self, turn: OpenTurn, parked: Parked) -> bool:
        """True if a wait of a parked turn has ended, or one of its waiting calls is to be stopped."""
        return any(turn.is_open_call(key) for key in self.stopped_calls) or await self.waits.any_ended(parked.waits)

    async def _next(self, conversation: Conversation) -> tuple[OpenTurn | None, list[Record]]:
        """The next turn, begun by the oldest input that waits, steering or not."""
        waiting = next((found for found in self._inbox if self._may_begin(found)), None)
        said = None if waiting is None else waiting.said
        if waiting is None or not isinstance(said, UserInput) or self._agent is None or self._stops_only:
            return None, []
        self._inbox.remove(waiting)
        admitted = await self._admit(waiting, waiting.run)
        now, agent, by = self._ledger.now(), self._agent, self.context.process
        due = waiting.deadline(agent, now)
        started = Started(at=now, run=waiting.run, code=agent.version, by=by, deadline=due, mode=agent.mode)
        log_event(_turn_log, logging.INFO, "turn started", session=self.session, turn=waiting.run, agent=agent.name)
        turn = conversation.opening(started)
        turn.enter(waiting.input.input, waiting.input.key, said, conversation.metadata)
        return turn, [started, admitted]

    def _may_begin(self, waiting: InboxInput) -> bool:
        """True if an input may begin a turn. A `Control` without room holds it back."""
        return isinstance(waiting.said, UserInput) and not self._is_held(waiting)

    def _is_held(self, waiting: InboxInput) -> bool:
        return (self.session, waiting.input.key) in self.context.held_inputs

    async def _admit(self, waiting: InboxInput, run: str | None = None) -> Admitted:
        """The record that admits an input to the turn `run`, or a request to stop."""
        found, said, now = waiting.input, waiting.said, self._ledger.now()
        self._taken.add(found.input)
        large = len(found.body) > self._ledger.inline_bytes
        blob = await self._ledger.put_blob(found.body) if large else None
        body = ABSENT if large else msgspec.Raw(found.body)
        refs = input_blobs(said) if isinstance(said, UserInput) else ()
        return Admitted(at=now, input=found.input, key=found.key, body=body, blob=blob, run=run, refs=refs)

    # ---- the inbox ----

    async def _look(self) -> None:
        await super()._look()
        turn, due = self._turn, self._look_at
        if turn is None or due is None or due > self._ledger.now() or self._interruption is not None:
            return
        out = await turn.out_of_time()  # a budget of time may be used up in the middle of an effect
        if out is not None and turn is self._turn and self._work is not None:
            ending = machine.Ending("limit", out.code, out.message, "limit", allowed=out.allowed, used=out.used)
            self._interrupt(Interruption(ending))

    async def _take_inbox(self, pending: list[Input], seen: int) -> None:
        await self._act_on(pending, await self._store.next_notifications(self.session, MAX_NOTIFICATIONS), seen)

    async def _act_on(self, pending: list[Input], ready: list[Notification], seen: int) -> None:
        """Sort the inbox: stop the open turn, end queued turns that are over, deliver notifications.

        Uses the turn that is open now, not the one that was open when the inbox was read.
        """
        self._inbox = [
            InboxInput(found, decode_input(found.body)) for found in pending if found.input not in self._taken
        ]
        self._stop_open()
        self._stop_calls()
        ends = self._unstarted_turns()
        self._set_alarm()
        if ends:
            await self._ledger.append([record for end in ends for record in await self._end_records(end)])
            self.context.changes.ended(self.session)
        if (
            ready
            and self._may_deliver()
            and await is_gate_open(self.context.can_deliver, self.session)
            and self._may_deliver()
        ):
            await self._deliver(ready)
        self._seen = seen

    async def _deliver(self, ready: list[Notification]) -> None:
        idle = self._open is None and not any(isinstance(found.said, UserInput) for found in self._inbox)
        # A notification that an earlier turn took and did not acknowledge gets its own turn: if its text makes turns
        # fail, it fails no other notification and no turn of a person.
        alone = idle and ready[0].attempts > 0
        picked = (ready[0],) if alone else notices.choose_notices([found for found in ready if not found.attempts])
        if len(picked) < len(ready):
            self._held_back = True  # the rest is looked at after the next turn
        if not picked:
            return
        reads = self._agent is not None and notices.READER in self._agent.tools
        taint = await taint_of_notices(self._store, self.context.agents, picked)
        notes = messages.Text(notices.format_notices(picked, reads=reads))
        said = UserInput(parts=(notes,), steer=not alone, origin="holdfast", taint=taint)
        content = msgspec.to_builtins(said)
        try:
            receipt = await self._store.deliver_notifications(self._lease, [found.id for found in picked], content)
        except errors.InboxFull:
            return  # they wait until there is room
        if receipt is not None:  # else none of them can be claimed any more
            found = Input(receipt.input, receipt.key, canonical(content), receipt.at)
            self._inbox.append(InboxInput(found, said))

    def _may_deliver(self) -> bool:
        """True if notifications may enter now, into the running turn or as a new one."""
        if self._agent is None or self._stops_only or self._stopping:
            return False
        if self._open is not None and (self._open.parked is not None or self._interruption is not None):
            self._held_back = True  # it would wait behind a turn that waits
            return False
        if any(isinstance(found.said, UserInput) and found.said.origin == "holdfast" for found in self._inbox):
            self._held_back = True  # those before it have not entered yet
            return False
        return True

    def _stop_open(self) -> None:
        """Interrupt the open turn if a stop request names it, or its deadline has passed."""
        turn = self._open
        if turn is None or self._interruption is not None:
            return
        for found in self._inbox:
            if isinstance(found.said, CancelRequest) and _stops_turn(found.said, turn):
                self._interrupt(Interruption(machine.Ending("cancelled", "cancelled", found.said.reason), found))
                return
        if turn.deadline is not None and turn.deadline <= self._ledger.now():
            self._interrupt(Interruption(_DEADLINE_ENDING))

    def _stop_calls(self) -> None:
        """Stop single calls of the open turn that requests name. A call that has not begun is not begun any more."""
        turn, run = self._open, self._turn
        self.stopped_calls = {}
        for found in self._inbox:
            stop = found.said
            if not isinstance(stop, CancelRequest) or stop.tool_call is None or turn is None or stop.cancel != turn.run:
                continue
            if run is None or not run.has_settled(stop.tool_call):
                self.stopped_calls[stop.tool_call] = found
                if run is not None:
                    run.stop_call(stop.tool_call)

    def _interrupt(self, found: Interruption) -> None:
        """Stop the open turn. The first reason wins."""
        if self._interruption is None:
            self._interruption = found
        if self._concluded is not None:
            self._concluded.set()

    def _unstarted_turns(self) -> list[Interruption]:
        """Remove from the inbox, in one pass, turns that end unstarted and stop requests that change nothing."""
        turn, now, stops = self._open, self._ledger.now(), {found.input.input for found in self.stopped_calls.values()}
        queued = {found.run: found for found in self._inbox if isinstance(found.said, UserInput)}
        ends: list[Interruption] = []
        for found in self._inbox:
            if not isinstance(found.said, CancelRequest) or found.input.input in stops:
                continue
            if not (turn is not None and _stops_turn(found.said, turn)):
                ending = machine.Ending("cancelled", "cancelled", found.said.reason)
                late = found.said.tool_call is not None
                ends.append(Interruption(ending, found, None if late else queued.pop(found.said.cancel, None)))
        for waiting in queued.values():
            due = waiting.deadline(self._agent)
            if due is not None and due <= now:
                ends.append(Interruption(_DEADLINE_ENDING, None, waiting))
        for gone in [gone for end in ends for gone in (end.stop, end.waiting) if gone is not None]:
            self._taken.add(gone.input.input)
            self._inbox.remove(gone)
        return ends

    async def _end_records(self, end: Interruption) -> list[Record]:
        if end.stop is not None:
            await self._stop_task(end.stop.said)
        records: list[Record] = [] if end.stop is None else [await self._admit(end.stop)]
        if end.waiting is not None:
            run, value = end.waiting.run, msgspec.Raw(msgspec.json.encode(end.ending))
            records.append(await self._admit(end.waiting, run))
            status = end.ending.status
            records.append(Ended(at=self._ledger.now(), run=run, status=status, value=value, unstarted=True))
        return records

    async def _stop_task(self, stop: UserInput | CancelRequest) -> None:
        """Cancel the background task of a call that went to the background before the request to stop it was read."""
        if not isinstance(stop, CancelRequest) or stop.tool_call is None:
            return
        task = await self.context.tasks.task_for_call(self.session, stop.tool_call)
        if task is not None:
            await self.context.tasks.cancel(task, stop.reason)

    def _set_alarm(self) -> None:
        """Schedule the next look at the inbox for the next deadline."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        stopped = self._interruption is not None  # its own time is up, or does not matter any more
        dues = [found.deadline(self._agent) for found in self._inbox]
        if not stopped:
            dues += [self._look_at, None if self._open is None else self._open.deadline]
        due = min((due for due in dues if due is not None), default=None)
        if due is not None:
            delay = max(0.0, (due - self._ledger.now()) / 1000)
            context = eventloop.upkeep_context()
            self._alarm = asyncio.get_running_loop().call_later(min(delay, 30.0), self.notify, context=context)

    # ---- one turn ----

    async def _carry_on(self, turn: OpenTurn, first: list[Record]) -> TurnEnded | None:
        """Run a turn until it ends or parks; returns its end unless it was stopped."""
        turn.parked = None
        self._open = turn
        run = self._turn = turn_runner.TurnRunner(self, self._agent, turn, self._ledger)
        run.performer.submit(first)
        self._stop_open()  # news that came while the turn was created
        self._set_alarm()
        ended: TurnEnded | None = None
        try:
            if self._interruption is not None:
                await self._break_off(run, self._interruption)
            else:
                ended = await self._work_on(run, turn)
        finally:
            await run.close()
            self._turn, self._look_at = None, None
        if turn.parked is None and not self._handed:  # else a request to stop it must still find it
            self._open, self._interruption = None, None
        return ended

    async def _work_on(self, run: turn_runner.TurnRunner, turn: OpenTurn) -> TurnEnded | None:
        trace = ""
        work = self._work = eventloop.spawn(run.finish())
        concluded = self._concluded = asyncio.Event()
        work.add_done_callback(lambda _: concluded.set())  # abandoned work may end long after the drive
        if self._news:
            self._look_soon()
        try:
            await concluded.wait()
            stopped = self._interruption if not work.done() else None
            if stopped is not None:
                run.stopped = True
                await self._unwind(run, work)
            elif work.cancelled():
                message = "a tool or the model cancelled the task of the turn itself"
                stopped = Interruption(machine.Ending("failed", "cancelled_within", message, "tool"))
            if stopped is not None:
                run.performer.check_halted()
                await self._break_off(run, stopped)
                return None
            # Not raised here: a traceback with this frame, and so with `work`, would be a cycle for the collector.
            match work.exception():
                case None:
                    ending = work.result()
                case tool_call.TurnParked(waits=waits):
                    await self._park(run, waits)
                    return None
                case tool_call.TurnHandedOver():
                    await run.performer.settle()
                    crash_point("handoff.after")
                    self._handed = True
                    return None
                case BaseException() as error:
                    expected = isinstance(error, errors.HoldfastError | RuntimeClosing)
                    if expected or not isinstance(error, Exception | GeneratorExit):
                        raise error
                    run.performer.check_halted()  # unexpected; the session continues
                    info = error_info(error, run.performer.redactor.text)
                    ending = machine.Ending("failed", info.kind, info.message, "code", **run.so_far())
                    trace = safe_trace(error, run.performer.redactor)
                    fields = {"session": self.session, "turn": turn.run, "error": f"{info.kind}: {info.message}"}
                    log_event(_log, logging.ERROR, "turn failed", raised=error, **fields)
        except asyncio.CancelledError:
            # The drive itself is cancelled: nothing is recorded, and the next drive continues the turn.
            run.performer.refuse()
            await self._unwind(run, work)
            run.performer.check_halted()
            raise
        finally:
            self._work = self._concluded = None
        ended = self._live_events.ended = TurnEnded(turn.run, turn.inputs.keys(), ending, run.answer(ending))
        await run.seal(ending, trace=trace)
        return ended

    async def _unwind(self, run: turn_runner.TurnRunner, work: asyncio.Task[machine.Ending]) -> None:
        if not await eventloop.cancel_and_wait(work):
            said = "a tool or the model of turn %s of %r does not end although it is cancelled; it is left alone"
            _log.warning(said, run.run, self.session)

    async def _break_off(self, run: turn_runner.TurnRunner, interruption: Interruption) -> None:
        """End the turn at once. Calls under way are recorded as cancelled or unknown."""
        asked: list[Record] = [] if interruption.stop is None else [await self._admit(interruption.stop)]
        if self._agent is None or prepare(self._agent).sub_agents:
            await self.context.children.stop_turn(self.session, run.run, interruption.ending.message)
        await self.context.processes.stop_items(self.session, run.run, interruption.ending.message)
        why = results.stop_reason(interruption.ending.status, interruption.ending.message)
        left = [
            msgspec.structs.replace(record, why=why)
            if isinstance(record, Unknown | Cancelled) and not record.why
            else record
            for record in run.left_over()
        ]
        ending = msgspec.structs.replace(interruption.ending, **run.so_far())
        await run.seal(ending, [*asked, *left])

    async def _park(self, run: turn_runner.TurnRunner, waits: tuple[str, ...]) -> None:
        if run.deadline is not None:
            name = deadline_wait(run.run)
            alarm = await self._store.open_wait(self.session, name, deadline=run.deadline)
            if alarm.state == "open":
                waits = (*waits, name)
        parked = run.park(waits)
        await run.performer.settle()
        said = ", ".join(name.removeprefix(f"{run.run}/") for name in waits)
        log_event(_turn_log, logging.INFO, "turn waits", session=self.session, turn=run.run, waits=said)
        if self._open is not None:
            self._open.parked = parked

    def _on_loss(self, error: errors.HoldfastError) -> None:
        if self._turn is not None:
            self._turn.performer.halt(error)
        if self._work is not None:
            self._work.cancel()

    # ---- used by the turn ----

    host_call = None

    @cached_property
    def tool_host(self) -> ToolHost:
        """The runtime as tools see it (``ctx.host``)."""
        return ToolHost(self.context, self.session, self._agent_name)

    def price(self, reply: messages.ModelReply, asked: str) -> float | None:
        """Cost of a reply in US dollars, by the model that replied or else the one requested; None if unknown."""
        return reply_cost(reply, asked, self.context.prices)

    def show_late(self, kind: type[events.LiveEvent], run: str, fields: dict[str, Any]) -> None:
        """Publish an event that may come after this drive: by the buffer of the running drive, or by a new one."""
        changes = self.context.changes
        if (buffer := changes.buffers.get(self.session)) is not None:
            buffer.publish(kind, run, fields)
            return
        buffer = LiveEventBuffer(self._ledger, changes)
        changes.add_buffer(buffer)
        buffer.publish(kind, run, fields)
        changes.remove_buffer(buffer)

    @property
    def quiet(self) -> bool:
        """True if `steering` would find nothing new."""
        return not (self.has_news or self._inbox or self._store.shared)

    async def steering(self) -> list[tuple[Admitted, messages.UserMessage]]:
        """Take the inputs that enter the running turn now."""
        await self.attend()
        turn = self._open
        if turn is None or not self._inbox:
            return []
        entering = [(found, said) for found in self._inbox if isinstance(said := found.said, UserInput) and said.steer]
        for found, _ in entering:  # before the first await: no other task can take them
            self._inbox.remove(found)
            self._taken.add(found.input.input)
        admitted = [await self._admit(found, turn.run) for found, _ in entering]
        return [
            (record, turn.enter(record.input, record.key, said, {}))
            for record, (_, said) in zip(admitted, entering, strict=True)
        ]

    async def admit_call_stop(self, key: str) -> tuple[Admitted, str]:
        """The record that takes in the request to stop the call `key`, and the reason for the model."""
        found = self.stopped_calls.pop(key)
        self._inbox = [each for each in self._inbox if each.input.input != found.input.input]
        record = await self._admit(found)
        return record, results.call_stop_reason(found.said.reason if isinstance(found.said, CancelRequest) else "")

    def mode_of(self, agent: str) -> str | None:
        """The mode of a handoff target; None if the session can't be handed to this agent."""
        found = self._known_agent(agent)
        return None if found is None else found.mode

    def listen(self, heard: Callable[[], None] | None) -> None:
        """Call `heard` whenever something comes for the session; None ends that."""
        self._listener = heard

    def let_run(self, ms: int | None) -> None:
        """Check budgets of time again after so many milliseconds; None: no more."""
        if ms is None and self._look_at is None:
            return
        # Others may use it up sooner.
        self._look_at = None if ms is None else self._ledger.now() + min(ms, TIME_BUDGET_CHECK_MS)
        self._set_alarm()

    def worked(self) -> tuple[int, int]:
        """Milliseconds of work on the session up to its last work record, and the time of that record."""
        now, watch = self._ledger.now(), self._ledger.watch
        return (0, now) if watch is None else (watch.total, watch.last(now))


def _stops_turn(stop: CancelRequest, turn: OpenTurn) -> bool:
    """True if a stop request names `turn`, or an input that has entered it, and not only a call of it."""
    return stop.tool_call is None and (stop.cancel == turn.run or keys.input_number(stop.cancel) in turn.inputs)
