"""The tool calls of one turn: answered from the journal, or performed for the first time.

Only calls that read run side by side; any other runs alone, in its place, so that a crash leaves one call of which
nobody knows, and not a batch. A program is a call that runs alone, and makes calls of its own (`runtime.programs`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextvars import copy_context
from typing import TYPE_CHECKING, Final

from holdfast.crashpoints import crash_point
from holdfast.eventloop import call_on_first_wait
from holdfast.policy.approvals import MARK
from holdfast.records import Cancelled, Cause, Done, Unknown
from holdfast.runtime.handoff import ALREADY_TAKEN, is_handoff
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
from holdfast.runtime.tool_call_runner import tool_call_ask
from holdfast.turns import Results, keys
from holdfast.turns.programs import PROGRAM

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping

    from holdfast.effects.performer import Performer
    from holdfast.messages import ToolCall
    from holdfast.policy.rules import Taint
    from holdfast.records import EffectRequest, Record
    from holdfast.runtime.deferrals import Deferrals
    from holdfast.runtime.handoff import Handoffs
    from holdfast.runtime.programs import Programs
    from holdfast.runtime.recorder import Recorder
    from holdfast.runtime.tool_call import Call
    from holdfast.runtime.tool_call_runner import ToolCallRunner
    from holdfast.tools.definition import AnyTool
    from holdfast.turns import OpenTurn, RunTools


_TIME_SLICE: Final = 0.0005
"""How many seconds calls that wait for nothing follow each other, before others have their turn."""


class TurnParked(Exception):
    """Nothing more can be done in this turn until one of these waits is settled."""

    def __init__(self, waits: tuple[str, ...]) -> None:
        super().__init__(f"waiting for {', '.join(waits)}")
        self.waits = waits


class ToolBatch:
    """Performs the tool calls of one turn, batch after batch. `tools` are those that its model sees."""

    def __init__(  # noqa: PLR0913
        self,
        tools: Mapping[str, AnyTool],
        performer: Performer,
        recorder: Recorder,
        carrying: ToolCallRunner,
        deferring: Deferrals,
        *,
        handing: Handoffs | None = None,
        programs: Programs | None = None,
        reads: Container[str] = (),
    ) -> None:
        self.handed = False
        """The session was handed over: nothing more is done here."""
        self._tools = tools
        self._performer = performer
        self._recorder = recorder
        self._carrying = carrying
        self._deferring = deferring
        self._handing = handing
        self._hands_over = handing is not None and handing.able
        self._programs = programs
        self._reads = reads
        """Tools that only read, also those that only programs see."""
        self._run = performer.run
        self._loop = asyncio.get_running_loop()

    async def perform(self, effect: RunTools, taint: Taint) -> Results:
        """The results of a batch of calls, in their order. Raises `Park` when one of them waits for somebody."""
        carrying, programs = self._carrying, self._programs
        carrying.spilled = 0
        if carrying.judges:
            numbered = enumerate(effect.calls, 1)
            await carrying.recall(keys.call_key(self._run, effect.id, n, call.name) for n, call in numbered)
        # Nothing is done before all calls of the batch fit what is recorded.
        calls = [self._prepare(effect.id, number, call) for number, call in enumerate(effect.calls, 1)]
        if programs is not None:
            programs.begin(calls, taint)
        if carrying.judges:
            await carrying.authorise(calls, taint)
        # Those about which a person is asked do not hold up the others.
        asked = tuple([wait for call in calls for wait in call.waits])
        handoffs = [call for call in calls if is_handoff(call)] if self._hands_over else []
        for group in _groups([call for call in calls if not call.waits and not (handoffs and is_handoff(call))]):
            if programs is not None:
                programs.pass_over(group)
            todo = [call for call in group if call.result is None]
            if not todo:
                continue
            await carrying.begin(todo)
            if len(todo) == 1:
                await carrying.perform(todo[0])
            else:
                await self._together(todo)
            self._recorder.flush()
            asked += _left_open(group, asked)
        if asked and programs is not None and programs.over:
            await carrying.drop(handoffs)  # they are not begun, whatever a person says
            asked = ()
        if asked:
            raise TurnParked(asked)
        if programs is not None:
            programs.pass_over(handoffs)
        if handoffs:
            await self._hand_over(handoffs, calls, taint if programs is None else programs.taint)
        results = tuple([call.result for call in calls if call.result is not None])
        return Results(results) if programs is None else programs.results(results)

    def _prepare(self, number: int, ordinal: int, call: ToolCall) -> Call:
        key = keys.call_key(self._run, number, ordinal, call.name)
        tool = self._tools.get(call.name)
        name = f"{self._run}.{number}.{ordinal}"
        ask = self._ask(number, ordinal, call, program=self._is_program(call))
        prepared = self._carrying.prepare(call, name, key, ask, tool, self._tools)
        if self._programs is not None:
            self._programs.take(prepared)
        return prepared

    def _ask(self, number: int, ordinal: int, call: ToolCall, *, program: bool = False) -> EffectRequest:
        """What a call asks for. The effect before its batch is the model call whose reply has it."""
        cause = Cause("model", keys.effect_key(self._run, number - 1, "model"), ordinal)
        return tool_call_ask(call, cause, program=program)

    def _is_program(self, call: ToolCall) -> bool:
        return self._programs is not None and call.name == PROGRAM

    async def _together(self, todo: list[Call]) -> None:
        """Perform calls side by side. One that waits for nothing needs no task of its own, and holds nobody up."""
        perform, context = self._carrying.perform, copy_context()
        ahead, tasks = deque(todo), list[asyncio.Task[None]]()

        def begin_others() -> None:
            # Not in the context of the call that waits: what they do is no part of it.
            tasks.extend(context.run(self._loop.create_task, perform(call)) for call in ahead)
            ahead.clear()

        until = self._loop.time() + _TIME_SLICE
        try:
            while ahead:
                await call_on_first_wait(perform(ahead.popleft()), begin_others)
                if self._loop.time() > until:
                    begin_others()
            if tasks:
                await asyncio.sleep(0)  # those that wait for nothing are done after one round
                for task in tasks:
                    if task.done():
                        task.result()
                if left := [task for task in tasks if not task.done()]:
                    await asyncio.gather(*left)
        finally:
            left = [task for task in tasks if not task.done()]
            for task in left:
                task.cancel()
            if left:
                await asyncio.gather(*left, return_exceptions=True)

    # ---- handing over ----

    async def _hand_over(self, handoffs: list[Call], calls: list[Call], taint: Taint) -> None:
        """Let the first one take the session over that may, when all else is done; then no other one does."""
        carrying = self._carrying
        for call in handoffs:
            if call.result is not None or self._handing is None:
                continue
            await carrying.enter()
            call.refused = call.refused or self._handing.refusal(call)
            await carrying.intend([call])
            if call.refused is not None or call.given is not None:
                await carrying.perform(call)
                continue
            outcome = await carrying.told(call)
            if not isinstance(outcome, Done):
                await carrying.record(call, outcome)
                continue
            for other in handoffs:
                if other.result is None and other is not call:
                    other.refused = other.refused or ALREADY_TAKEN
                    await carrying.intend([other])
                    await carrying.perform(other)
            self._recorder.flush()
            results = [(found.key, found.result) for found in calls if found.result is not None]
            crash_point("handoff.before")
            await carrying.record(call, outcome, self._handing.record(call, taint, results))
            self.handed = True

    # ---- when the turn is stopped ----

    def left_over(self, turn: OpenTurn, now: int, *, resumed: bool) -> Iterator[Record]:
        """Outcomes for calls that were under way here, and, if it was not `resumed` yet, in the process before."""
        here = {*self._carrying.open}
        yield from self._carrying.interrupted(now)
        yield from self._left_before(turn, now, here, resumed=resumed)

    def _left_before(self, turn: OpenTurn, now: int, here: set[str], *, resumed: bool) -> Iterator[Record]:
        """Calls that a process before this one may have begun: those it intended, and the first that it may have."""
        past, known = self._performer.past, self._carrying.settled | here
        first = True
        for ordinal, call in enumerate(turn.batch, 1):
            key = keys.call_key(self._run, turn.batch_id, ordinal, call.name)
            tool = self._tools.get(call.name)
            if ordinal in turn.results or has_outcome(past, key):
                continue
            if self._is_program(call) or has_program_records(past, key):
                left = list(open_program_outcomes(past, key, known, now, reads=self._reads))
                yield from left
                if key not in known and (first or left):
                    unknown = unknown_program_calls(left, key)
                    ask = self._ask(turn.batch_id, ordinal, call, program=True)
                    # One that waits has left word of that; one that was killed in a call may have left none.
                    perhaps = first and not resumed and not left
                    yield stopped_program_outcome(
                        key, ask, now, finished_program_calls(past, key), unknown, perhaps=perhaps
                    )
                first = False
                continue
            if key in known:
                continue
            intended = ordinal in turn.intended
            if self._deferring.begun(key):  # also where it has no intent: somebody outside may know of it
                kind = Cancelled if tool and tool.read_only else Unknown
                yield kind(at=now, key=key, ask=None if intended else self._ask(turn.batch_id, ordinal, call))
                continue
            if tool and tool.read_only:
                continue
            questions = [] if intended else self._performer.below(key, MARK)
            if questions:  # a person was asked about it, and it was not begun
                intents = [found.intent for found in questions if found.intent is not None and found.outcome is None]
                yield from (Cancelled(at=now, key=intent.key) for intent in intents)
                continue
            if intended and has_only_waited(past, key):
                yield Cancelled(at=now, key=key)
            elif intended or (first and not resumed):
                yield Unknown(at=now, key=key, ask=None if intended else self._ask(turn.batch_id, ordinal, call))
            elif was_suspended(past, key):  # it waited when a process before this one ended, and did not run again
                yield Cancelled(at=now, key=key, ask=self._ask(turn.batch_id, ordinal, call))
            first = False


def _left_open(group: list[Call], asked: tuple[str, ...]) -> tuple[str, ...]:
    """What calls of a group are left to wait for that do not hold up the others; raises `Park` for any other.

    Nothing runs of a call whose result is given from outside, as of one about which a person is `asked`.
    """
    waiting = [call for call in group if call.waits]
    if not waiting:
        return ()
    later = tuple([wait for call in waiting for wait in call.waits if call.deferred])
    waits = tuple([wait for call in waiting for wait in call.waits if not call.deferred])
    if waits:
        raise TurnParked((*waits, *asked, *later))
    return later


def _groups(calls: list[Call]) -> list[list[Call]]:
    """Calls that only read run side by side; any other runs alone, in its place."""
    groups: list[list[Call]] = []
    beside = False
    for call in calls:
        if call.alone:
            groups.append([call])
            beside = False
        elif beside:
            groups[-1].append(call)
        else:
            groups.append([call])
            beside = True
    return groups
