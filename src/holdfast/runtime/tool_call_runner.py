"""One tool call of a turn, whoever made it: a model, or a program that a model wrote.

It is answered from the journal, or authorised, intended, performed and recorded, under the key that it was given.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast import events
from holdfast.crashpoints import crash_point
from holdfast.effects.canonical import canonical_json, digest_of_bytes
from holdfast.effects.replay import Perform, PerformAgain, Repeat, SettleAsUnknown, UseRecorded
from holdfast.errors import Suspended
from holdfast.eventloop import spawn
from holdfast.policy.rules import CLEAN, Taint
from holdfast.processes.state import background_answer
from holdfast.records import Cancelled, Cause, Done, EffectRequest, Failed, Unknown
from holdfast.runtime.reconciliation import has_only_waited, was_suspended
from holdfast.runtime.tool_call import Call
from holdfast.runtime.tool_execution import ToolExecutor
from holdfast.turns import keys
from holdfast.turns.conversation import answer_taint

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Iterator

    from holdfast.agent import Agent
    from holdfast.effects.performer import Performer
    from holdfast.messages import ToolCall, ToolResult
    from holdfast.records import InputTaint, Outcome, Record
    from holdfast.runtime.authorization import Authorizer
    from holdfast.runtime.context import TurnHost
    from holdfast.runtime.deferrals import Deferrals
    from holdfast.runtime.recorder import Recorder
    from holdfast.runtime.tool_call import SpillableCall
    from holdfast.tools.context import CallHost
    from holdfast.tools.definition import AnyTool


class ToolCallRunner:
    """Carries out the calls of one turn, each by itself. In which order, and beside which, others decide."""

    def __init__(  # noqa: PLR0913
        self,
        host: TurnHost,
        caller: CallHost,
        performer: Performer,
        recorder: Recorder,
        deferring: Deferrals,
        *,
        authorising: Authorizer | None = None,
        budget: float | None = None,
        spills: Callable[[], bool] = lambda: True,
        resumed: bool = False,
        reads_on: bool = False,
    ) -> None:
        self.spilled = 0
        """How many calls of the batch under way go on in the background."""
        self.open: dict[str, Call] = deferring.calls
        """Calls that were intended or begun here and have no outcome yet."""
        self.settled: set[str] = set()
        self._brought: dict[str, str] = {}
        """Calls that read a file that was written while tainted, with the record that wrote it."""
        self._told: dict[str, InputTaint] = {}
        """What the results of calls bring with them, where their tools have said so."""
        self.judges = authorising is not None
        """Whether hooks, a policy or people decide about calls."""
        self._spills = spills
        """Whether one more call may go on in the background."""
        self._authorising = authorising
        self._budget = budget
        """How many seconds a model waits for a call, where the tool says nothing; then it goes on in the background."""
        self._resumed = resumed
        """A process before this one may have begun calls, and let them go on in the background."""
        self._host = host
        self._caller = caller
        self._invoker = ToolExecutor(caller, performer, recorder, deferring, reads_on=reads_on)
        self._deferring = deferring
        self._performer = performer
        self._past = performer.past
        self._recorder = recorder
        self._run = performer.run
        self._loop = asyncio.get_running_loop()

    # ---- before ----

    async def recall(self, known: Iterable[str]) -> None:
        """Read what was decided about the calls with these keys before."""
        if self._authorising is not None:
            await self._authorising.recall(known)

    def prepare(  # noqa: PLR0913, PLR0917
        self, call: ToolCall, name: str, key: str, ask: EffectRequest, tool: AnyTool | None, known: Iterable[str]
    ) -> Call:
        """What is to be done about a call. `known` are the names of the tools that there are."""
        recorded = self._past.effects.get(key)
        intended = recorded is not None and recorded.intent is not None
        # A tool that is gone can't say that it is safe to repeat.
        repeat = tool.repeat if tool else Repeat.NEVER if intended else Repeat.FREE
        decision = self._performer.decide(key, ask, repeat)
        prepared = Call(call, name, key, ask, tool, decision, intended, tool is not None and not tool.read_only)
        if isinstance(decision, UseRecorded):
            prepared.end(decision.outcome)
            return prepared
        if isinstance(decision, SettleAsUnknown) and was_suspended(self._past, key):
            prepared.decision = PerformAgain()
        elif isinstance(decision, Perform) and self._deferring.begun(key):
            prepared.decision = PerformAgain()  # it was allowed, and begun
        if self._authorising is not None:
            decided = self._authorising.decided(key)
            prepared.edited = decided.edited
            prepared.call = decided.call(call)
        prepared.bind(known)
        if prepared.refused is not None and isinstance(prepared.decision, Perform) and repeat is Repeat.NEVER:
            prepared.decision = Perform(intent=False)  # it will not be performed
        return prepared

    async def authorise(self, calls: list[Call], taint: Taint) -> None:
        """Let hooks, the policy and people decide about calls that are not known to have begun."""
        calls = [call for call in calls if call.result is None and not call.program]
        authorising = self._authorising
        if authorising is None or not any(call.fresh or authorising.decided(call.key).questioned for call in calls):
            return
        if self._caller.stopped:
            raise asyncio.CancelledError
        await authorising.authorise(calls, taint)
        for call in calls:
            _decline(call)
            await self._look_at_files(call, taint)

    async def _look_at_files(self, call: Call, taint: Taint) -> None:
        """Mark files that a tainted turn is about to write, and note that it is about to read one that was marked."""
        tool = call.tool
        if tool is None or not tool.reach.paths or tool.reach.base is None:
            return
        if (
            call.waits
            or call.refused is not None
            or call.given is not None
            or not call.fresh
            or self._authorising is None
        ):
            return
        subject = self._authorising.subject(call)
        name = keys.record_name(self._host.session, call.key)
        if not tool.read_only and taint.untrusted_input:
            await self._host.mark_written(subject, f"{name}, after {taint.untrusted_by or 'untrusted input'}")
        elif tool.read_only and (by := await self._host.writer_of(subject)) is not None:
            self._brought[call.key] = by
            value = msgspec.Raw(msgspec.json.encode(by))
            ask = EffectRequest("sample", "taint", digest_of_bytes("taint", call.key.encode()))
            done = Done(at=self._performer.now(), key=f"{call.key}/{keys.TAINTED}", ask=ask, value=value)
            call.beside += (done,)

    async def reconsider(self, call: Call, taint: Taint) -> None:
        """Look whether a person has decided about a call that waits for that."""
        if self._authorising is not None:
            await self._authorising.reconsider(call, taint)
            _decline(call)
            await self._look_at_files(call, taint)

    async def drop(self, calls: Iterable[Call]) -> None:
        """Take back the questions about calls that are not going to be made."""
        for call in calls:
            waits, call.waits = call.waits, ()
            call.before += tuple(Cancelled(at=self._performer.now(), key=wait) for wait in waits)
            for wait in waits:
                await self._host.waits.close_wait(wait)

    async def begin(self, todo: list[Call]) -> None:
        """Record what is about to be done. Others may go first."""
        await self.enter()
        if todo[0].alone or any(call.before for call in todo):  # otherwise they only read, as most do
            await self.intend(todo)

    def enter(self) -> Coroutine[Any, Any, None]:
        """A place between two calls: the turn may be stopped here, and others may go first."""
        if self._caller.stopped:
            raise asyncio.CancelledError
        return self._host.boundary()

    async def intend(self, todo: list[Call]) -> None:
        """Record what is about to be done, together with the reply that asked for it."""
        intending = [call for call in todo if call.intends]
        decided = [record for call in todo for record in call.before]
        if intending or decided:
            crash_point("tool.before_intent")
            intents = [self._performer.intention(call.key, call.ask) for call in intending]
            # An approval is used up in the commit that says what it is used for.
            consumed = [name for call in todo for name in call.consumes]
            self._recorder.submit([*decided, *intents], consume=consumed)
            for call in todo:
                call.before, call.consumes = (), ()
        for call in intending:
            call.intended = True
            self.open[call.key] = call
        if any(call.alone and not call.program for call in todo):
            # An idempotency key stands for one call: it must not be used before that call is known for good.
            await self._recorder.settle()
            crash_point("tool.after_intent")
            # A request to stop that was accepted before this intent was committed is known by now: then nothing runs.
            await self._host.attend()

    # ---- performing ----

    async def perform(self, prepared: Call) -> None:
        """One call, to its outcome; or to the waits at which it was left."""
        try:
            outcome = await self._outcome(prepared)
            if self._authorising is not None and not prepared.program:
                outcome = await self._authorising.told(prepared, outcome)
        except Suspended as suspended:
            prepared.waits = suspended.waits
            return
        left = self._record(prepared, outcome, None)
        if left is not None:
            await left

    async def told(self, prepared: Call) -> Outcome:
        """The outcome of a call, as hooks let it be."""
        outcome = await self._outcome(prepared)
        if self._authorising is None or prepared.program:
            return outcome
        return await self._authorising.told(prepared, outcome)

    async def record(self, prepared: Call, outcome: Outcome, handed: Record | None = None) -> None:
        """Record the outcome of a call; `handed` in the same commit."""
        left = self._record(prepared, outcome, handed)
        if left is not None:
            await left

    def _record(self, prepared: Call, outcome: Outcome, handed: Record | None) -> Coroutine[Any, Any, None] | None:
        """Record the outcome of a call; gives what is to be waited for after that, where something is."""
        crash_point("tool.before_outcome")
        self._recorder.gather(outcome, prepared.beside)
        if isinstance(outcome, Done | Failed) and outcome.taint is not None:
            self._told[prepared.key] = outcome.taint
        if handed is not None:
            self._recorder.submit([handed])
        if prepared.recorded is not None:
            prepared.recorded()
        self.open.pop(prepared.key, None)
        self.settled.add(prepared.key)
        if self._deferring.opened(prepared.key) or (isinstance(outcome, Done) and outcome.blob is not None):
            return self._end(prepared, outcome)
        prepared.end(outcome)
        return None

    async def _end(self, prepared: Call, outcome: Outcome) -> None:
        """End a call that leaves a deferral behind, or gave a large value."""
        await self._deferring.withdraw(prepared.key)
        if isinstance(outcome, Done) and outcome.blob is not None:
            body = await self._performer.large(outcome.blob)
            outcome = msgspec.structs.replace(outcome, value=msgspec.Raw(body), blob=None)
        prepared.end(outcome)

    def _outcome(self, prepared: Call) -> Coroutine[Any, Any, Outcome]:
        if prepared.given is not None:
            return self._performer.succeeded(prepared.key, prepared.asked, prepared.given, self._loop.time())
        if self._resumed and not prepared.program:
            return self._resumed_outcome(prepared)
        return self._outcome_here(prepared)

    async def _resumed_outcome(self, prepared: Call) -> Outcome:
        # Also where it would not go to the background now: a process before this one may have thought otherwise.
        known = await self._host.task_for_call(prepared.key)
        if known is None:
            return await self._outcome_here(prepared)
        self.spilled += 1
        return await self._answered(prepared, known, None)

    def _outcome_here(self, prepared: Call) -> Coroutine[Any, Any, Outcome]:
        tool = prepared.tool
        if prepared.program or tool is None or prepared.refused is not None:
            return self._invoker.outcome(prepared, self._began)
        background, budget = tool.terms.background, tool.terms.inline_budget or self._budget
        if background:
            return self._in_background(prepared)
        if background is None and budget is not None and self._spills():
            return self._invoker.outcome(prepared, self._began, budget, self._spill)
        return self._invoker.outcome(prepared, self._began)

    async def _in_background(self, prepared: Call) -> Outcome:
        self.spilled += 1
        return await self._answered(prepared, await self._handed_over(self._host.start_task(prepared)), None)

    async def _spill(self, work: SpillableCall, seconds: float) -> Outcome | None:
        if not self._spills():  # calls beside it were quicker to be slow
            return None
        self.spilled += 1
        work.handed_over = True
        call = work.call  # the task calls it by another name as soon as it has begun
        try:
            task = await self._handed_over(self._host.adopt_task(work))
        except asyncio.CancelledError:
            raise
        except BaseException:
            self.spilled -= 1
            work.handed_over = False  # it stays here
            raise
        return await self._answered(call, task, seconds)

    async def _handed_over(self, making: Coroutine[Any, Any, str]) -> str:
        """A task is made whole or not at all. If the turn is stopped meanwhile, so is the task: one call, one story."""
        made = asyncio.ensure_future(making)
        try:
            return await asyncio.shield(made)
        except asyncio.CancelledError:
            spawn(self._host.stop_task(made))
            raise

    async def _answered(self, prepared: Call, task: str, seconds: float | None) -> Outcome:
        """The call goes on in the background: that is its outcome here."""
        body = msgspec.json.encode(background_answer(task, prepared.call.name, seconds))
        return await self._performer.succeeded(prepared.key, prepared.asked, body, self._loop.time())

    def _began(self, prepared: Call) -> None:
        fields = {"call": prepared.name, "tool": prepared.call.name}
        self._host.show(events.ToolCallStarted, self._run, fields)

    # ---- what came in with them ----

    def taint_after(self, agent: Agent, taint: Taint, results: Iterable[tuple[str, ToolResult]]) -> Taint:
        """The taint of the turn with the results of these calls, each with its key."""
        session = self._host.session
        for key, result in results:
            told = self._told.get(key) or self._told_before(key)
            read = agent.taint_after(CLEAN, [(key, result)], session) if told is None else Taint.of(told)
            taint = taint.joined(read)
            if self._deferring.answered(key):
                taint = taint.joined(answer_taint(key, session))
            if key in self._brought:
                taint = taint.joined(Taint(untrusted_input=True, untrusted_by=self._brought[key]))
        return taint

    def _told_before(self, key: str) -> InputTaint | None:
        """What a recorded result brings, where its record says so."""
        recorded = self._past.effects.get(key)
        outcome = None if recorded is None else recorded.outcome
        return outcome.taint if isinstance(outcome, Done | Failed) else None

    # ---- when the turn is stopped ----

    def interrupted(self, now: int) -> Iterator[Record]:
        """Outcomes for the calls that were under way here. Those of a program come before the program itself."""
        for prepared in sorted(self.open.values(), key=lambda call: call.program):
            yield self._interrupted(prepared, now)

    def given_up(self, calls: Iterable[Call], now: int) -> Iterator[Record]:
        """Outcomes for calls that were left to wait, and that nobody waits for any more though the turn goes on."""
        for call in calls:
            if self.open.pop(call.key, None) is not None:
                self.settled.add(call.key)
                yield self._interrupted(call, now)

    def _interrupted(self, prepared: Call, now: int) -> Record:
        """A call that was begun here, or was about to be. A new call would bear another idempotency key."""
        if prepared.stopped is not None:
            return prepared.stopped(now)
        acts = prepared.tool is None or not prepared.tool.read_only
        if prepared.begun and acts and not has_only_waited(self._past, prepared.key):
            return Unknown(at=now, key=prepared.key, ask=prepared.asked)
        return Cancelled(at=now, key=prepared.key, ask=prepared.asked)


def _decline(call: Call) -> None:
    """A call that was refused, or answered for, will not be performed."""
    if (call.refused is not None or call.given is not None) and call.fresh:
        call.decision = Perform(intent=False)


def tool_call_ask(call: ToolCall, cause: Cause, *, program: bool = False) -> EffectRequest:
    """What a call asks for, as the journal keeps it. A program does nothing itself, but by the calls that it makes."""
    content = digest_of_bytes("call", canonical_json([call.name, call.arguments]))
    kind = "exec_code" if program else "tool_call"
    return EffectRequest(kind, keys.shown(call.name), content, cause=cause)
