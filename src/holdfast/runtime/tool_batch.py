"""The tool calls of one turn, in batches: answered from the journal, or performed for the first time.

Only read-only calls run together; any other runs alone, in order, so that a crash leaves one call with an unknown
outcome instead of a batch. A program is a call that runs alone and makes calls itself (`runtime.programs`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.agent import prepare
from holdfast.crashpoints import crash_point
from holdfast.effects.canonical import canonical_json, digest_of_bytes
from holdfast.eventloop import call_on_first_wait
from holdfast.policy.approvals import MARK
from holdfast.records import Cancelled, Cause, Done, EffectRequest, ErrorInfo, Handed, Unknown
from holdfast.runtime.reconciliation import (
    finished_program_calls,
    has_only_waited,
    has_outcome,
    has_program_records,
    open_program_outcomes,
    stopped_program_outcome,
    unknown_program_calls,
    was_suspended,
)
from holdfast.runtime.tool_call import AuthorizedCall, ParkedCall, PreparedCall, SettledCall
from holdfast.toolkits.agents import MAX_HANDOFF_REASON, find_handoff
from holdfast.turns import keys
from holdfast.turns.programs import PROGRAM
from holdfast.turns.state import Results

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from holdfast.agent import Agent
    from holdfast.effects.performer import Performer
    from holdfast.messages import ToolCall
    from holdfast.policy.rules import Taint
    from holdfast.records import Record
    from holdfast.runtime.deferrals import Deferrals
    from holdfast.runtime.programs import Programs
    from holdfast.runtime.session_driver import SessionDrive
    from holdfast.runtime.tool_call import ToolCallRunner, ToolCallState
    from holdfast.tools.definition import AnyTool
    from holdfast.turns.conversation import OpenTurn
    from holdfast.turns.state import RunTools


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
        self,
        host: SessionDrive,
        agent: Agent | None,
        turn: OpenTurn,
        performer: Performer,
        runner: ToolCallRunner,
        deferrals: Deferrals,
        programs: Programs | None = None,
    ) -> None:
        self.handed_over = False
        """Another agent has the session: nothing more is done here."""
        self._host = host
        self._agent = agent
        self._turn = turn
        self._tools = {} if agent is None else prepare(agent).offered_tools
        self._has_handoffs = agent is not None and prepare(agent).has_handoffs
        self._performer = performer
        self._runner = runner
        self._deferrals = deferrals
        self._programs = programs
        self._run = performer.run
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
            if ordinal in turn.results or has_outcome(past, key):
                continue
            if (self._programs is not None and call.name == PROGRAM) or has_program_records(past, key):
                left = list(open_program_outcomes(past, key, known, now, reads=reads))
                yield from left
                if key not in known and (first or left):
                    unknown = unknown_program_calls(left, key)
                    ask = self._ask(turn.batch_id, ordinal, call, program=True)
                    # A program that waits has left records; one that was killed in a call may have left none.
                    perhaps = first and not resumed and not left
                    yield stopped_program_outcome(
                        key, ask, now, finished_program_calls(past, key), unknown, perhaps=perhaps
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
            if intended and has_only_waited(past, key):
                yield Cancelled(at=now, key=key)
            elif intended or (first and not resumed):
                yield Unknown(at=now, key=key, ask=None if intended else self._ask(turn.batch_id, ordinal, call))
            elif was_suspended(past, key):  # it waited when an earlier process ended, and did not run again
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
