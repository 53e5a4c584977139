"""The tool calls of one turn: each from the model's request to its outcome, and all of a reply as a batch.

A call is a value, and each step turns one state into the next:

    prepare     the request          -> PreparedCall, or SettledCall if the journal has its outcome
    authorize   PreparedCall         -> AuthorizedCall, or ParkedCall if a person is asked
    begin       AuthorizedCall       -> AuthorizedCall whose intent is recorded
    perform     AuthorizedCall       -> SettledCall, or ParkedCall if its tool waits

`ToolCallRunner.open` has a `RunningCall` for each call that has an intent or runs, and no outcome yet.

In a batch (`ToolBatch`) only read-only calls run together; any other runs alone, in order, so that a crash leaves one
call with an unknown outcome. A program is a call that runs alone and makes calls itself (`runtime.programs`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from holdfast import events
from holdfast.agent import Agent, prepare
from holdfast.crashpoints import crash_point
from holdfast.effects.canonical import canonical_json, digest_of_bytes
from holdfast.effects.replay import Decision, Perform, PerformAgain, Repeat, SettleAsUnknown, UseRecorded
from holdfast.errors import HoldfastError, Suspended
from holdfast.eventloop import call_on_first_wait, spawn
from holdfast.policy.approvals import MARK, Question
from holdfast.policy.rules import CLEAN, Taint
from holdfast.processes.state import background_answer
from holdfast.records import Cancelled, Cause, Done, EffectRequest, ErrorInfo, Failed, Handed, Unknown
from holdfast.runtime import reconciliation
from holdfast.runtime.tool_execution import SpillableCall, ToolExecutor
from holdfast.runtime.waits import DeferralSuspended
from holdfast.toolkits.agents import MAX_HANDOFF_REASON, find_handoff
from holdfast.tools.definition import AnyTool, Bound, Complaint
from holdfast.tools.results import error_for_complaint, error_for_malformed_call, error_for_unknown_tool
from holdfast.turns import keys
from holdfast.turns.conversation import answer_taint
from holdfast.turns.programs import PROGRAM
from holdfast.turns.results import result_of
from holdfast.turns.state import Results, RunTools

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence

    from holdfast.messages import ToolCall, ToolResult
    from holdfast.processes.tasks import Tasks
    from holdfast.records import InputTaint, Outcome, Record
    from holdfast.runtime.authorization import Authorizer
    from holdfast.runtime.programs import Programs
    from holdfast.runtime.session_driver import SessionDrive
    from holdfast.runtime.turn_runner import TurnRunner


# ---- the states ----


class PreparedCall(msgspec.Struct, frozen=True, eq=False):
    """A call compared with the journal and bound to its tool."""

    request: ToolCall
    """The request of the model, with the arguments that the call is made with."""
    name: str
    """The name of the call in events."""
    key: str
    ask: EffectRequest
    tool: AnyTool | None
    decision: Decision
    intended: bool
    """Its intent is recorded."""
    bound: Bound | None = None
    refused: ErrorInfo | None = None
    """The error that the call ends with instead of being made."""
    edited: bool = False
    """A person changed its arguments."""
    idempotency: str | None = None
    """The idempotency key of a background call; None: it follows from `key`."""
    nested: bool = False
    """A program made the call and gets its whole result; no model reads it."""
    output_limit: int | None = None
    """Longest text of its result; None: the limit of its tool."""
    program: Callable[[int, EffectRequest | None], Record] | None = None
    """Set for a program: gives its outcome if it is stopped at a time."""

    @property
    def alone(self) -> bool:
        """True if the call must run alone."""
        return self.tool is not None and not self.tool.read_only

    @property
    def fresh(self) -> bool:
        """True if the journal does not show that the call began."""
        return isinstance(self.decision, Perform)


class AuthorizedCall(PreparedCall, frozen=True, eq=False):
    """A call with a decision of hooks, policy and people: made, refused, or answered by a hook."""

    answer: bytes | None = None
    """The result that a hook gives in place of the call."""
    approved: bool = False
    """A person approved this very call."""
    before: tuple[Record, ...] = ()
    """Decisions that are recorded in one commit with the intent."""
    consumes: tuple[str, ...] = ()
    """Approvals that the same commit uses up."""

    @property
    def is_made(self) -> bool:
        """True if the call is neither refused nor answered by a hook."""
        return self.refused is None and self.answer is None


class ParkedCall(msgspec.Struct, frozen=True, eq=False):
    """A call that waits for a person, or for something that its tool waits for."""

    call: AuthorizedCall
    waits: tuple[str, ...]
    question: Question | None = None
    """The question that a person has to answer before the call begins."""
    expires_ms: int | None = None
    deferred: bool = False
    """Its tool has returned, and only the result from outside is missing."""


class RunningCall(msgspec.Struct, frozen=True, eq=False):
    """A call that has an intent or runs, and has no outcome."""

    call: PreparedCall
    begun: bool = False
    """Its tool was called."""
    outcome_if_stopped: Outcome | None = None
    """The outcome to record if the turn is stopped now; None: it follows from the recorded steps."""


class SettledCall(msgspec.Struct, frozen=True, eq=False):
    """A call with its outcome, including large values, and the result for the model."""

    request: ToolCall
    key: str
    outcome: Outcome
    result: ToolResult
    edited: bool = False


ToolCallState: TypeAlias = PreparedCall | AuthorizedCall | ParkedCall | RunningCall | SettledCall


def bind(request: ToolCall, tool: AnyTool | None, known: Iterable[str]) -> tuple[Bound, None] | tuple[None, ErrorInfo]:
    """The arguments of a call, bound to its tool, or the error if they don't fit; `known` names the agent's tools."""
    if tool is None:
        return None, error_for_unknown_tool(request.name, known)
    if request.arguments is None:
        return None, error_for_malformed_call(request)
    bound = tool.bind(request.arguments)
    return (None, error_for_complaint(bound)) if isinstance(bound, Complaint) else (bound, None)


def authorized(call: PreparedCall) -> AuthorizedCall:
    """The call, authorized without a decision."""
    return AuthorizedCall(*msgspec.structs.astuple(call))


def settled(call: PreparedCall, outcome: Outcome) -> SettledCall:
    """The call with its outcome; large values must have been read."""
    return SettledCall(call.request, call.key, outcome, result_of(call.request, outcome), call.edited)


# ---- the steps ----


class ToolCallRunner:
    """Takes the calls of one turn from state to state; `ToolBatch` and programs choose their order."""

    def __init__(self, host: SessionDrive, caller: TurnRunner, authorizer: Authorizer | None) -> None:
        self.spilled = 0
        """Calls of the current batch that continue in the background."""
        self.open = caller.deferrals.open_calls
        """Calls that have an intent or began here, and have no outcome yet."""
        self.settled: set[str] = set()
        self.beside: dict[str, tuple[Record, ...]] = {} if authorizer is None else authorizer.beside
        """Records that are committed together with the outcome of a call, by its key."""
        self.authorizer = authorizer
        """None where no hooks, policy or people decide about calls."""
        self._result_taints: dict[str, InputTaint] = {}
        """The taint that tools set on their results."""
        own_budget = None if caller.agent is None else caller.agent.inline_budget
        self._budget = host.context.inline_budget if own_budget is None else own_budget
        """Seconds before a call goes to the background, if its tool sets no budget."""
        self._host = host
        self._caller = caller
        self._executor = ToolExecutor(caller)
        if authorizer is not None and authorizer.sees_errors:
            self._executor.raised = {}
        self._deferrals = caller.deferrals
        self._performer = caller.performer
        self._past = caller.performer.past

    def prepare(
        self, request: ToolCall, name: str, key: str, ask: EffectRequest, tool: AnyTool | None, known: Iterable[str]
    ) -> PreparedCall | SettledCall:
        """Compare a call with the journal and bind it to its tool. `known` are the names of the agent's tools."""
        recorded = self._past.effects.get(key)
        intended = recorded is not None and recorded.intent is not None
        # A tool that is gone can't say that it is safe to repeat.
        repeat = tool.repeat if tool else Repeat.NEVER if intended else Repeat.FREE
        decision = self._performer.decide(key, ask, repeat)
        if isinstance(decision, UseRecorded):
            return SettledCall(request, key, decision.outcome, result_of(request, decision.outcome))
        if isinstance(decision, SettleAsUnknown) and reconciliation.was_suspended(self._past, key):
            decision = PerformAgain()
        elif isinstance(decision, Perform) and key in self._deferrals.deferred:
            decision = PerformAgain()  # it was allowed, and begun
        edited = False
        if self.authorizer is not None:
            decisions = self.authorizer.decisions(key)
            edited, request = decisions.edited, decisions.applied_to(request)
        bound, refused = bind(request, tool, known)
        if refused is not None and isinstance(decision, Perform) and repeat is Repeat.NEVER:
            decision = Perform(intent=False)  # it will not be performed
        return PreparedCall(request, name, key, ask, tool, decision, intended, bound, refused, edited)

    # ---- authorizing ----

    async def authorize(self, calls: Sequence[PreparedCall], taint: Taint) -> list[AuthorizedCall | ParkedCall]:
        """Let hooks, the policy and people decide about calls that have not begun."""
        authorizer = self.authorizer
        judged = [call for call in calls if call.program is None] if authorizer is not None else []
        if authorizer is None or not any(call.fresh or authorizer.decisions(call.key).questioned for call in judged):
            return [authorized(call) for call in calls]
        if self._caller.stopped:
            raise asyncio.CancelledError
        decided = dict(zip((call.key for call in judged), await authorizer.authorize(judged, taint), strict=True))
        return [decided.get(call.key) or authorized(call) for call in calls]

    # ---- beginning ----

    async def begin(self, calls: list[AuthorizedCall]) -> list[AuthorizedCall]:
        """Record the intents of calls that run next. Other sessions may go first."""
        await self.enter()
        if calls[0].alone or any(call.before for call in calls):  # otherwise they only read, as most do
            return await self.intend(calls)
        return calls

    def enter(self) -> Coroutine[Any, Any, None]:
        """A boundary between two calls: the turn may be stopped here, and other sessions may go first."""
        if self._caller.stopped:
            raise asyncio.CancelledError
        return self._host.boundary()

    async def intend(self, calls: list[AuthorizedCall]) -> list[AuthorizedCall]:
        """Record the intents of calls, together with the reply that asked for them."""
        intents = [call for call in calls if isinstance(call.decision, Perform) and call.decision.intent]
        decided = [record for call in calls for record in call.before]
        if intents or decided:
            crash_point("tool.before_intent")
            records = [*decided, *(self._performer.intention(call.key, call.ask) for call in intents)]
            # An approval is consumed in the same commit as the decision that uses it.
            self._performer.submit(records, consume=[name for call in calls for name in call.consumes])
            begun = {call.key for call in intents}
            calls = [
                msgspec.structs.replace(call, before=(), consumes=(), intended=call.intended or call.key in begun)
                for call in calls
            ]
            self.open |= {call.key: RunningCall(call) for call in calls if call.key in begun}
        if any(call.alone and call.program is None for call in calls):
            # An idempotency key belongs to one call: it must not be used before the intent of that call is durable.
            await self._performer.settle()
            crash_point("tool.after_intent")
            # Nothing runs if a request to stop was accepted before. The commit of an intent tells of all earlier
            # inputs, also of those that other processes accepted.
            if not intents or self._host.has_news:
                await self._host.attend()
        return calls

    # ---- performing ----

    async def perform(
        self, call: AuthorizedCall, recorded: Callable[[], None] | None = None
    ) -> SettledCall | ParkedCall:
        """Perform one call to its outcome, or to the waits of its tool.

        `recorded` is called once the outcome has its place in the journal.
        """
        try:
            outcome = await self._outcome(call)
            if self.authorizer is not None and call.program is None:
                outcome = await self._after_hooks(self.authorizer, call, outcome)
        except Suspended as suspended:
            return ParkedCall(call, suspended.waits, deferred=isinstance(suspended, DeferralSuspended))
        state = self._record(call, outcome, recorded)
        return state if isinstance(state, SettledCall) else await state

    async def outcome(self, call: AuthorizedCall) -> Outcome:
        """The outcome of a handoff after its hooks, not recorded yet."""
        outcome = await self._outcome(call)
        return outcome if self.authorizer is None else await self._after_hooks(self.authorizer, call, outcome)

    async def _after_hooks(self, authorizer: Authorizer, call: AuthorizedCall, outcome: Outcome) -> Outcome:
        raised = None if self._executor.raised is None else self._executor.raised.pop(call.key, None)
        return await authorizer.apply_result_hooks(call, outcome, self.open, raised)

    async def record(self, call: AuthorizedCall, outcome: Outcome, handed: Record | None = None) -> SettledCall:
        """Record the outcome of a call, with `handed` in the same commit."""
        state = self._record(call, outcome, None if handed is None else lambda: self._performer.submit([handed]))
        return state if isinstance(state, SettledCall) else await state

    def _record(
        self, call: AuthorizedCall, outcome: Outcome, recorded: Callable[[], None] | None
    ) -> SettledCall | Coroutine[Any, Any, SettledCall]:
        """Record an outcome. Returns a coroutine only if something is left to wait for: most calls save that."""
        key = call.key
        crash_point("tool.before_outcome")
        self._performer.gather(outcome, self.beside.pop(key, ()))
        if isinstance(outcome, Done | Failed) and outcome.taint is not None:
            self._result_taints[key] = outcome.taint
        if recorded is not None:
            recorded()
        self.open.pop(key, None)
        self.settled.add(key)
        if key in self._deferrals.open or (isinstance(outcome, Done) and outcome.blob is not None):
            return self._settle(call, outcome)
        return settled(call, outcome)

    async def _settle(self, call: AuthorizedCall, outcome: Outcome) -> SettledCall:
        """Close the deferral of an ended call, and read a large value."""
        await self._deferrals.withdraw(call.key)
        return settled(call, await self._performer.with_value(outcome) if isinstance(outcome, Done) else outcome)

    def _outcome(self, call: AuthorizedCall) -> Coroutine[Any, Any, Outcome]:
        if call.answer is not None:
            return self._performer.succeeded(call.key, self._executor.unrecorded_ask(call), call.answer)
        if self._caller.resumed and call.program is None:
            return self._resumed_outcome(call)
        return self._outcome_here(call)

    async def _resumed_outcome(self, call: AuthorizedCall) -> Outcome:
        # Also where it would not go to the background now: an earlier process may have decided otherwise.
        task = await self._tasks.task_for_call(self._host.session, call.key)
        if task is None:
            return await self._outcome_here(call)
        self.spilled += 1
        return await self._background_outcome(call, task)

    def _outcome_here(self, call: AuthorizedCall) -> Coroutine[Any, Any, Outcome]:
        tool = call.tool
        if call.program is not None or tool is None or call.refused is not None:
            return self._executor.execute(call, self._began)
        background, budget = tool.background, tool.inline_budget or self._budget
        if background:
            return self._start_in_background(call)
        if background is None and budget is not None and self._caller.can_spill():
            return self._executor.execute(call, self._began, budget, self._spill)
        return self._executor.execute(call, self._began)

    def _began(self, call: PreparedCall) -> None:
        self.open[call.key] = RunningCall(call, begun=True)
        fields = {"call": call.name, "tool": call.request.name}
        self._host.show(events.ToolCallStarted, self._performer.run, fields)

    # ---- calls that go to the background ----

    @property
    def _tasks(self) -> Tasks:
        return self._host.context.tasks

    @property
    def _origin(self) -> tuple[str, str, str]:
        """Session, agent and turn of the calls."""
        agent = self._caller.agent
        return self._host.session, "" if agent is None else agent.name, self._caller.run

    async def _start_in_background(self, call: AuthorizedCall) -> Outcome:
        self.spilled += 1
        return await self._background_outcome(call, await self._made_task(self._tasks.start(*self._origin, call)))

    async def _spill(self, work: SpillableCall, seconds: float) -> Outcome | None:
        if not self._caller.can_spill():  # other calls of the batch used the background slots
            return None
        self.spilled += 1
        work.handed_over = True
        call = work.call  # the task gives it another key as soon as it has begun
        try:
            task = await self._made_task(self._tasks.adopt(*self._origin, work))
        except asyncio.CancelledError:
            raise
        except BaseException:
            self.spilled -= 1
            work.handed_over = False  # it stays here
            raise
        return await self._background_outcome(call, task, seconds)

    async def _made_task(self, making: Coroutine[Any, Any, str]) -> str:
        """Create a task completely or not at all. If the turn is stopped meanwhile, the task is cancelled too."""
        made = asyncio.ensure_future(making)
        try:
            return await asyncio.shield(made)
        except asyncio.CancelledError:
            spawn(self._stop_task(made))
            raise

    async def _stop_task(self, made: asyncio.Future[str]) -> None:
        with suppress(HoldfastError):  # the task was not made
            await self._tasks.cancel(await made, "the turn that asked for it was stopped")

    async def _background_outcome(self, call: PreparedCall, task: str, seconds: float | None = None) -> Outcome:
        """The outcome of a call that continues in the background: the id of its task."""
        body = msgspec.json.encode(background_answer(task, call.request.name, seconds))
        return await self._performer.succeeded(call.key, self._executor.unrecorded_ask(call), body)

    # ---- taint ----

    def taint_after(self, agent: Agent, taint: Taint, results: Iterable[tuple[str, ToolResult]]) -> Taint:
        """The taint of the turn after these results, each with the key of its call."""
        session, files = self._host.session, {} if self.authorizer is None else self.authorizer.tainted_files
        for key, result in results:
            by_tool = self._result_taints.get(key)
            recorded = self._performer.recorded(key)
            if by_tool is None and recorded is not None and isinstance(recorded.outcome, Done | Failed):
                by_tool = recorded.outcome.taint
            read = prepare(agent).taint_after(CLEAN, [(key, result)], session) if by_tool is None else Taint.of(by_tool)
            taint = taint.joined(read)
            if key in self._deferrals.answered:
                taint = taint.joined(answer_taint(key, session))
            if key in files:
                taint = taint.joined(Taint(untrusted_input=True, untrusted_by=files[key]))
        return taint

    # ---- when the turn is stopped ----

    def interrupted(self, now: int) -> Iterator[Record]:
        """Outcomes for the open calls. Those of a program come before the program itself."""
        for running in sorted(self.open.values(), key=lambda running: running.call.program is not None):
            yield self._interrupted(running, now)

    def give_up(self, calls: Iterable[str], now: int) -> Iterator[Record]:
        """Outcomes for open calls that are abandoned while the turn continues."""
        for key in calls:
            running = self.open.pop(key, None)
            if running is not None:
                self.settled.add(key)
                yield self._interrupted(running, now)

    def _interrupted(self, running: RunningCall, now: int) -> Record:
        """The outcome of a call that began here, or was about to. A new call would bear another idempotency key."""
        call, ask = running.call, self._executor.unrecorded_ask(running.call)
        if running.outcome_if_stopped is not None:
            return running.outcome_if_stopped
        if call.program is not None:
            return call.program(now, ask)
        acts = call.tool is None or not call.tool.read_only
        if running.begun and acts and not reconciliation.has_only_waited(self._past, call.key):
            return Unknown(at=now, key=call.key, ask=ask)
        return Cancelled(at=now, key=call.key, ask=ask)


# ---- batches ----

REFUSED_ERROR: Final = "HandoffRefused"
"""The kind of the error that the model reads."""
ALREADY_TAKEN: Final = ErrorInfo(
    REFUSED_ERROR, "another agent takes the conversation over in the same step; it can't go to two"
)


class TurnHandedOver(Exception):
    """Another agent has the session now, and continues the turn."""


_TIME_SLICE: Final = 0.0005
"""Time slice for calls that finish without awaiting, in seconds."""


class TurnParked(Exception):
    """The turn can't continue until one of these waits has ended."""

    def __init__(self, waits: tuple[str, ...]) -> None:
        super().__init__(f"waiting for {', '.join(waits)}")
        self.waits = waits


class ToolBatch:
    """Performs the tool calls of one turn, batch after batch."""

    def __init__(
        self, host: SessionDrive, caller: TurnRunner, runner: ToolCallRunner, programs: Programs | None
    ) -> None:
        agent = caller.agent
        self.handed_over = False
        """Another agent has the session: nothing more is done here."""
        self._host = host
        self._agent = agent
        self._turn = caller.turn
        self._tools = {} if agent is None else prepare(agent).offered_tools
        self._has_handoffs = agent is not None and bool(prepare(agent).handoffs)
        self._performer = caller.performer
        self._runner = runner
        self._deferrals = caller.deferrals
        self._programs = programs
        self._run = caller.run
        self._loop = asyncio.get_running_loop()

    async def perform(self, effect: RunTools, taint: Taint) -> Results:
        """The results of a batch of calls, in their order. Raises `TurnParked` when one of them waits."""
        runner, programs = self._runner, self._programs
        runner.spilled = 0
        if runner.authorizer is not None:
            numbered = enumerate(effect.calls, 1)
            await runner.authorizer.recall(keys.call_key(self._run, effect.id, n, call.name) for n, call in numbered)
        # No call begins before all calls of the batch fit the journal.
        prepared = [self._prepare(effect.id, number, call) for number, call in enumerate(effect.calls, 1)]
        batch: dict[str, ToolCallState] = {call.key: call for call in prepared}
        if programs is not None:
            programs.begin_batch(batch, taint)
        todo = [call for call in prepared if isinstance(call, PreparedCall)]
        states = await runner.authorize(todo, taint)
        batch.update((call.key, state) for call, state in zip(todo, states, strict=True))
        # Calls that wait for a person do not hold up the others.
        waits = tuple([wait for state in states if isinstance(state, ParkedCall) for wait in state.waits])
        handoffs = [call.key for call in todo if find_handoff(call.tool) is not None] if self._has_handoffs else []
        for group in _groups((state for key, state in batch.items() if key not in handoffs), self._tools):
            waits += await self._perform_group(group, batch, waits)
        if waits and programs is not None and programs.over:
            for key in handoffs:  # they are not begun, even if a person approves
                if isinstance(parked := batch[key], ParkedCall) and runner.authorizer is not None:
                    batch[key] = await runner.authorizer.withdraw(parked)
            waits = ()
        if waits:
            raise TurnParked(waits)
        if handoffs and self._agent is not None:
            if programs is not None:
                taint = programs.taint
                for key in handoffs:
                    if isinstance(call := batch[key], AuthorizedCall):
                        batch[key] = programs.skipped(call)
            await self._hand_over(self._agent, handoffs, batch, taint)
        results = tuple([state.result for state in batch.values() if isinstance(state, SettledCall)])
        return Results(results) if programs is None else programs.results(results)

    def _prepare(self, number: int, ordinal: int, request: ToolCall) -> PreparedCall | SettledCall:
        key, name = keys.call_key(self._run, number, ordinal, request.name), f"{self._run}.{number}.{ordinal}"
        programs = self._programs if request.name == PROGRAM else None
        ask = self._ask(number, ordinal, request, program=programs is not None)
        call = self._runner.prepare(request, name, key, ask, self._tools.get(request.name), self._tools)
        return programs.take(call) if programs is not None and isinstance(call, PreparedCall) else call

    def _ask(self, number: int, ordinal: int, call: ToolCall, *, program: bool = False) -> EffectRequest:
        """The request of a call. The effect before its batch is the model call that asked for it."""
        cause = Cause("model", keys.effect_key(self._run, number - 1, "model"), ordinal)
        content = digest_of_bytes("call", canonical_json([call.name, call.arguments]))
        # A program does nothing itself, but by the calls that it makes.
        kind = "exec_code" if program else "tool_call"
        return EffectRequest(kind, keys.tool_name_in_key(call.name), content, cause=cause)

    # ---- performing ----

    async def _perform_group(
        self, group: list[AuthorizedCall | SettledCall], batch: dict[str, ToolCallState], waits: tuple[str, ...]
    ) -> tuple[str, ...]:
        """Perform calls that may run at once; returns the waits of deferred calls, which do not hold up the others.

        Raises `TurnParked` if a tool waits: the calls after it may depend on its next steps.
        """
        todo: list[AuthorizedCall] = []
        for state in group:
            if isinstance(state, AuthorizedCall):
                todo.append(state if self._programs is None else self._programs.skipped(state))
            elif self._programs is not None and state.request.name == PROGRAM:
                self._programs.recall(state)
        if not todo:
            return ()
        todo = await self._runner.begin(todo)
        ended = [await self._runner.perform(todo[0])] if len(todo) == 1 else await self._together(todo)
        self._performer.flush()
        batch.update((call.key, state) for call, state in zip(todo, ended, strict=True))
        parked = [state for state in ended if isinstance(state, ParkedCall)]
        if not parked:
            return ()
        deferred = tuple([wait for state in parked if state.deferred for wait in state.waits])
        left = tuple([wait for state in parked if not state.deferred for wait in state.waits])
        if left:
            raise TurnParked((*left, *waits, *deferred))
        return deferred

    async def _together(self, todo: list[AuthorizedCall]) -> list[SettledCall | ParkedCall]:
        """Perform calls concurrently. A call that finishes without awaiting runs without a task."""
        perform, context = self._runner.perform, copy_context()
        ahead, tasks = deque(todo), list[asyncio.Task[SettledCall | ParkedCall]]()
        ended: list[SettledCall | ParkedCall] = []

        def begin_others() -> None:
            # Not in the context of the waiting call: they are not part of it.
            tasks.extend(context.run(self._loop.create_task, perform(call)) for call in ahead)
            ahead.clear()

        until = self._loop.time() + _TIME_SLICE
        try:
            while ahead:
                ended.append(await call_on_first_wait(perform(ahead.popleft()), begin_others))
                if self._loop.time() > until:
                    begin_others()
            if tasks:
                await asyncio.sleep(0)  # calls that finish without awaiting are done after one round
                for task in tasks:
                    if task.done():
                        task.result()
                if left := [task for task in tasks if not task.done()]:
                    await asyncio.gather(*left)
            return [*ended, *(task.result() for task in tasks)]
        finally:
            left = [task for task in tasks if not task.done()]
            for task in left:
                task.cancel()
            if left:
                await asyncio.gather(*left, return_exceptions=True)

    async def _hand_over(
        self, agent: Agent, handoff_keys: list[str], batch: dict[str, ToolCallState], taint: Taint
    ) -> None:
        """After all other calls, perform the first handoff that is allowed; refuse the others."""
        runner, performer = self._runner, self._performer
        for key in handoff_keys:
            call = batch[key]
            if not isinstance(call, AuthorizedCall):
                continue
            found = find_handoff(call.tool)
            to = "" if found is None else found.to
            await runner.enter()
            if call.refused is None:
                call = msgspec.structs.replace(call, refused=self._handoff_refusal(agent, to))
            [call] = await runner.intend([call])
            if not call.is_made:
                batch[key] = await runner.perform(call)
                continue
            outcome = await runner.outcome(call)
            if not isinstance(outcome, Done):
                batch[key] = await runner.record(call, outcome)
                continue
            for other_key in handoff_keys:
                other = batch[other_key]
                if other_key != key and isinstance(other, AuthorizedCall):
                    if other.refused is None:
                        other = msgspec.structs.replace(other, refused=ALREADY_TAKEN)
                    [other] = await runner.intend([other])
                    batch[other_key] = await runner.perform(other)
            self._performer.flush()
            results = [(key, state.result) for key, state in batch.items() if isinstance(state, SettledCall)]
            crash_point("handoff.before")
            taint = runner.taint_after(agent, taint, results)
            arguments: dict[str, Any] = call.request.arguments or {}
            handed = Handed(
                at=performer.now(),
                run=self._run,
                key=key,
                agent=to,
                by=agent.name,
                reason=performer.redactor.text(str(arguments.get("reason", "")))[:MAX_HANDOFF_REASON],
                untrusted=taint.untrusted_input,
                private=taint.private_data,
                mode=self._host.mode_of(to),
                untrusted_by=taint.untrusted_by,
                private_by=taint.private_by,
            )
            batch[key] = await runner.record(call, outcome, handed)
            self.handed_over = True

    def _handoff_refusal(self, agent: Agent, to: str) -> ErrorInfo | None:
        """The error if the session can't go to the agent `to`; None if it can."""
        turn = self._turn
        above = () if turn.mandate is None else turn.mandate.above
        if turn.handoffs >= agent.limits.handoffs:
            said = f"this turn was handed over {turn.handoffs} times already (Limits.handoffs); answer it yourself"
        elif to in above:
            said = f"{to!r} waits for the answer to this ({' > '.join(above)}); answer it yourself"
        elif self._host.mode_of(to) is None:
            said = f"no agent {to!r} is known here; go on without it"
        else:
            return None
        return ErrorInfo(REFUSED_ERROR, said)

    # ---- when the turn is stopped ----

    def left_over(self, now: int, *, resumed: bool) -> Iterator[Record]:
        """Outcomes for the open calls of this process, and of the process before if the turn was not `resumed` yet.

        Of an earlier process these are the calls with an intent, and the first that it may have begun.
        """
        known = {*self._runner.open} | self._runner.settled
        yield from self._runner.interrupted(now)
        turn, past, tools = self._turn, self._performer.past, {} if self._agent is None else self._agent.tools
        reads = {name for name, tool in tools.items() if tool.read_only} if self._programs is not None else set[str]()
        first = True
        for ordinal, call in enumerate(turn.batch, 1):
            key = keys.call_key(self._run, turn.batch_id, ordinal, call.name)
            tool = self._tools.get(call.name)
            if ordinal in turn.results or reconciliation.has_outcome(past, key):
                continue
            if (self._programs is not None and call.name == PROGRAM) or reconciliation.has_program_records(past, key):
                left = list(reconciliation.open_program_outcomes(past, key, known, now, reads=reads))
                yield from left
                if key not in known and (first or left):
                    unknown = reconciliation.unknown_program_calls(left, key)
                    ask = self._ask(turn.batch_id, ordinal, call, program=True)
                    # A program that waits has left records; one that was killed in a call may have left none.
                    perhaps = first and not resumed and not left
                    yield reconciliation.stopped_program_outcome(
                        key, ask, now, reconciliation.finished_program_calls(past, key), unknown, perhaps=perhaps
                    )
                first = False
                continue
            if key in known:
                continue
            intended = ordinal in turn.intended
            if key in self._deferrals.deferred:  # also without an intent: the outside may know of it
                kind = Cancelled if tool and tool.read_only else Unknown
                yield kind(at=now, key=key, ask=None if intended else self._ask(turn.batch_id, ordinal, call))
                continue
            if tool and tool.read_only:
                continue
            questions = [] if intended else self._performer.below(key, MARK)
            if questions:  # the question for a person shows that it had not begun
                intents = [found.intent for found in questions if found.intent is not None and found.outcome is None]
                yield from (Cancelled(at=now, key=intent.key) for intent in intents)
                continue
            if intended and reconciliation.has_only_waited(past, key):
                yield Cancelled(at=now, key=key)
            elif intended or (first and not resumed):
                yield Unknown(at=now, key=key, ask=None if intended else self._ask(turn.batch_id, ordinal, call))
            elif reconciliation.was_suspended(
                past, key
            ):  # it waited when an earlier process ended, and did not run again
                yield Cancelled(at=now, key=key, ask=self._ask(turn.batch_id, ordinal, call))
            first = False


def _groups(states: Iterable[ToolCallState], tools: Mapping[str, AnyTool]) -> list[list[AuthorizedCall | SettledCall]]:
    """Group read-only calls to run together; any other runs alone, in order. Parked calls do not run."""
    groups: list[list[AuthorizedCall | SettledCall]] = []
    beside = False
    for state in states:
        if not isinstance(state, AuthorizedCall | SettledCall):
            continue
        tool = tools.get(state.request.name)
        alone = tool is not None and not tool.read_only
        if alone or not beside:
            groups.append([state])
        else:
            groups[-1].append(state)
        beside = not alone
    return groups
