"""The tool calls of one turn: answered from the journal, or performed for the first time.

Only calls that read run side by side; any other runs alone, in its place, so that a crash leaves one call of which
nobody knows, and not a batch.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast import events
from holdfast.crashpoints import crash_point
from holdfast.effects.canonical import canonical_json, digest_of_bytes
from holdfast.effects.replay import Again, Answer, Begin, Repeat, SettleUnknown
from holdfast.errors import Suspended
from holdfast.policy.approvals import MARK
from holdfast.records import Ask, Cancelled, Done, Unknown
from holdfast.runtime.handing import TAKEN, hands_over
from holdfast.runtime.interrupted import has_outcome, left_by_itself, only_waits
from holdfast.runtime.invoking import Call, Invoker
from holdfast.spawning import spawn
from holdfast.tasks.words import continues
from holdfast.tools.paging import READER
from holdfast.turns import keys
from holdfast.turns.answers import result_of

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Mapping

    from holdfast.effects.performer import Performer
    from holdfast.messages import ToolCall, ToolResult
    from holdfast.policy.subject import Taint
    from holdfast.records import Outcome, Record
    from holdfast.runtime.authorising import Authorising
    from holdfast.runtime.deferring import Deferring
    from holdfast.runtime.handing import Handing
    from holdfast.runtime.invoking import Work
    from holdfast.runtime.recording import Recorder
    from holdfast.runtime.surroundings import Surroundings
    from holdfast.tools.context import Caller
    from holdfast.tools.definition import AnyTool
    from holdfast.turns import OpenTurn, RunTools


class Park(Exception):
    """Nothing more can be done in this turn until one of these waits is settled."""

    def __init__(self, waits: tuple[str, ...]) -> None:
        super().__init__(f"waiting for {', '.join(waits)}")
        self.waits = waits


class Calling:
    """Performs the tool calls of one turn."""

    def __init__(  # noqa: PLR0913, PLR0917
        self,
        around: Surroundings,
        caller: Caller,
        tools: Mapping[str, AnyTool],
        performer: Performer,
        recorder: Recorder,
        deferring: Deferring,
        *,
        authorising: Authorising | None = None,
        handing: Handing | None = None,
        budget: float | None = None,
        spills: Callable[[], bool] = lambda: True,
        resumed: bool = False,
    ) -> None:
        self._spills = spills
        """Whether one more call may go on in the background."""
        self.spilled = 0
        """How many calls of the batch under way do."""
        self._authorising = authorising
        self._handing = handing
        self.handed = False
        """The session was handed over: nothing more is done here."""
        self._budget = budget
        """How many seconds a model waits for a call, where the tool says nothing; then it goes on in the background."""
        self._resumed = resumed
        """A process before this one may have begun calls, and let them go on in the background."""
        self._around = around
        self._caller = caller
        self._invoker = Invoker(caller, performer, recorder, deferring, reads_on=READER in tools)
        self._deferring = deferring
        self._tools = tools
        self._performer = performer
        self._recorder = recorder
        self._run = performer.run
        self._loop = asyncio.get_running_loop()
        self._open: dict[str, Call] = {}
        """Calls that were intended or begun here and have no outcome yet."""
        self._settled: set[str] = set()

    async def perform(self, effect: RunTools, taint: Taint) -> tuple[ToolResult, ...]:
        """The results of a batch of calls, in their order. Raises `Park` when one of them waits for somebody."""
        self.spilled = 0
        if self._authorising is not None:
            numbered = enumerate(effect.calls, 1)
            await self._authorising.recall(keys.call_key(self._run, effect.id, n, call.name) for n, call in numbered)
        calls = [self._prepare(effect.id, number, call) for number, call in enumerate(effect.calls, 1)]
        if self._authorising is not None:
            await self._authorise(calls, taint)
        # Those about which a person is asked do not hold up the others.
        asked = tuple(call.wait for call in calls if call.wait is not None)
        handoffs = [call for call in calls if hands_over(call)]
        for group in _groups([call for call in calls if call.wait is None and not hands_over(call)]):
            todo = [call for call in group if call.result is None]
            if not todo:
                continue
            if self._caller.stopped:
                raise asyncio.CancelledError
            await self._around.boundary()
            await self._intend(todo)
            if len(todo) == 1:
                await self._perform(todo[0])
            else:
                await self._together(todo)
            self._recorder.flush()
            # Nothing runs of a call whose result is given from outside: it does not hold up the others either.
            asked += tuple(call.wait for call in group if call.wait is not None and call.deferred)
            waits = tuple(call.wait for call in group if call.wait is not None and not call.deferred)
            if waits:
                raise Park((*waits, *asked))
        if asked:
            raise Park(asked)
        await self._hand_over(handoffs, calls, taint)
        return tuple(call.result for call in calls if call.result is not None)

    # ---- before ----

    async def _authorise(self, calls: list[Call], taint: Taint) -> None:
        if self._authorising is None or not any(call.fresh and call.result is None for call in calls):
            return
        if self._caller.stopped:
            raise asyncio.CancelledError
        await self._authorising.authorise([call for call in calls if call.result is None], taint)
        for call in calls:
            if call.refused is not None or call.given is not None:
                call.decision = Begin(intent=False) if call.fresh else call.decision  # it will not be performed

    def _prepare(self, number: int, ordinal: int, call: ToolCall) -> Call:
        """What is to be done about a call. Nothing is done before all calls of the batch fit what is recorded."""
        tool = self._tools.get(call.name)
        key = keys.call_key(self._run, number, ordinal, call.name)
        ask = Ask("tool_call", _target(key), _content(call))
        recorded = self._performer.recorded(key)
        intended = recorded is not None and recorded.intent is not None
        # A tool that is gone can't say that it is safe to repeat.
        repeat = tool.repeat if tool else Repeat.NEVER if intended else Repeat.FREE
        decision = self._performer.decide(key, ask, repeat)
        prepared = Call(call, f"{self._run}.{number}.{ordinal}", key, ask, tool, decision, intended)
        if isinstance(decision, Answer):
            prepared.result = result_of(call, decision.outcome)
        else:
            self._bind(prepared, repeat)
        return prepared

    def _bind(self, prepared: Call, repeat: Repeat) -> None:
        if isinstance(prepared.decision, SettleUnknown) and left_by_itself(self._performer.past, prepared.key):
            prepared.decision = Again()
        if isinstance(prepared.decision, Begin) and self._deferring.begun(prepared.key):
            prepared.decision = Again()  # it was allowed, and begun
        if self._authorising is not None:
            decided = self._authorising.decided(prepared.key)
            prepared.edited = decided.edited
            prepared.call = decided.call(prepared.call)
        prepared.bind(self._tools)
        if prepared.refused is not None and isinstance(prepared.decision, Begin) and repeat is Repeat.NEVER:
            prepared.decision = Begin(intent=False)  # it will not be performed

    async def _intend(self, todo: list[Call]) -> None:
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
                call.before, call.consumes = [], []
        for call in intending:
            call.intended = True
            self._open[call.key] = call
        if any(call.alone for call in todo):
            # An idempotency key stands for one call: it must not be used before that call is known for good.
            await self._recorder.settle()
            crash_point("tool.after_intent")

    # ---- handing over ----

    async def _hand_over(self, handoffs: list[Call], calls: list[Call], taint: Taint) -> None:
        """Let the first one take the session over that may, when all else is done; then no other one does."""
        for call in handoffs:
            if call.result is not None or self._handing is None:
                continue
            if self._caller.stopped:
                raise asyncio.CancelledError
            await self._around.boundary()
            call.refused = call.refused or self._handing.refusal(call)
            await self._intend([call])
            if call.refused is not None or call.given is not None:
                await self._perform(call)
                continue
            outcome = await self._told(call)
            if not isinstance(outcome, Done):
                await self._record(call, outcome)
                continue
            for other in handoffs:
                if other.result is None and other is not call:
                    other.refused = other.refused or TAKEN
                    await self._intend([other])
                    await self._perform(other)
            self._recorder.flush()
            results = [found.result for found in calls if found.result is not None]
            crash_point("handoff.before")
            await self._record(call, outcome, self._handing.record(call, taint, results))
            self.handed = True

    # ---- performing ----

    async def _together(self, todo: list[Call]) -> None:
        first, *others = todo
        tasks = [self._loop.create_task(self._perform(call)) for call in others]
        try:
            await self._perform(first)  # needs no task of its own
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

    async def _perform(self, prepared: Call) -> None:
        """One call, to its outcome; or to the wait at which it was left."""
        try:
            outcome = await self._told(prepared)
        except Suspended as suspended:
            prepared.wait = suspended.wait
            return
        await self._record(prepared, outcome)

    async def _told(self, prepared: Call) -> Outcome:
        """The outcome of a call, as hooks let it be."""
        outcome = await self._outcome(prepared)
        return outcome if self._authorising is None else await self._authorising.told(prepared, outcome)

    async def _record(self, prepared: Call, outcome: Outcome, handed: Record | None = None) -> None:
        """Record the outcome of a call; `handed` in the same commit."""
        crash_point("tool.before_outcome")
        self._recorder.gather(outcome)
        if handed is not None:
            self._recorder.submit([handed])
        self._open.pop(prepared.key, None)
        self._settled.add(prepared.key)
        await self._deferring.withdraw(prepared.key)
        if isinstance(outcome, Done) and outcome.blob is not None:
            body = await self._performer.large(outcome.blob)
            outcome = msgspec.structs.replace(outcome, value=msgspec.Raw(body), blob=None)
        prepared.result = result_of(prepared.call, outcome)

    async def _outcome(self, prepared: Call) -> Outcome:
        tool = prepared.tool
        if prepared.given is not None:
            return await self._performer.succeeded(prepared.key, prepared.asked, prepared.given, self._loop.time())
        # Also where it would not go to the background now: a process before this one may have thought otherwise.
        known = await self._around.spilled(prepared.key) if self._resumed else None
        if known is not None:
            self.spilled += 1
            return await self._answered(prepared, known, None)
        if tool is None or prepared.refused is not None or not self._may_spill(tool):
            return await self._invoker.outcome(prepared, self._began)
        if tool.background:
            self.spilled += 1
            return await self._answered(prepared, await self._handed_over(self._around.start_task(prepared)), None)
        budget = tool.inline_budget or self._budget
        return await self._invoker.outcome(prepared, self._began, budget, self._spill)

    def _may_spill(self, tool: AnyTool) -> bool:
        if tool.background is not None:
            return tool.background
        if not self._spills():
            return False
        return tool.inline_budget is not None or self._budget is not None

    async def _spill(self, work: Work, seconds: float) -> Outcome | None:
        if not self._spills():  # calls beside it were quicker to be slow
            return None
        self.spilled += 1
        work.handed_over = True
        try:
            task = await self._handed_over(self._around.adopt_task(work))
        except asyncio.CancelledError:
            raise
        except BaseException:
            self.spilled -= 1
            work.handed_over = False  # it stays here
            raise
        return await self._answered(work.call, task, seconds)

    async def _handed_over(self, making: Coroutine[Any, Any, str]) -> str:
        """A task is made whole or not at all. If the turn is stopped meanwhile, so is the task: one call, one story."""
        made = asyncio.ensure_future(making)
        try:
            return await asyncio.shield(made)
        except asyncio.CancelledError:
            spawn(self._around.stop_task(made))
            raise

    async def _answered(self, prepared: Call, task: str, seconds: float | None) -> Outcome:
        """The call goes on in the background: that is its outcome here."""
        body = msgspec.json.encode(continues(task, prepared.call.name, seconds))
        return await self._performer.succeeded(prepared.key, prepared.asked, body, self._loop.time())

    def _began(self, prepared: Call) -> None:
        fields = {"call": prepared.name, "tool": prepared.call.name}
        self._around.show(events.ToolExecutionStarted, self._run, fields)
        self._open[prepared.key] = prepared

    # ---- when the turn is stopped ----

    def left_over(self, turn: OpenTurn, now: int, *, resumed: bool) -> Iterator[Record]:
        """Outcomes for calls that were under way here, and, if it was not `resumed` yet, in the process before."""
        for prepared in self._open.values():
            yield self._interrupted(prepared, now)
        yield from self._left_before(turn, now, resumed=resumed)

    def _interrupted(self, prepared: Call, now: int) -> Record:
        """A call that was begun here, or was about to be. A new call would bear another idempotency key."""
        acts = prepared.tool is None or not prepared.tool.read_only
        if prepared.begun and acts and not only_waits(self._performer.past, prepared.key):
            return Unknown(at=now, key=prepared.key, ask=prepared.asked)
        return Cancelled(at=now, key=prepared.key, ask=prepared.asked)

    def _left_before(self, turn: OpenTurn, now: int, *, resumed: bool) -> Iterator[Record]:
        """Calls that a process before this one may have begun: those it intended, and the first that it may have."""
        past, known = self._performer.past, self._settled | {*self._open}
        first = True
        for ordinal, call in enumerate(turn.batch, 1):
            key = keys.call_key(self._run, turn.batch_id, ordinal, call.name)
            tool = self._tools.get(call.name)
            if ordinal in turn.results or key in known or has_outcome(past, key):
                continue
            intended = ordinal in turn.intended
            if self._deferring.begun(key):  # also where it has no intent: somebody outside may know of it
                kind = Cancelled if tool and tool.read_only else Unknown
                yield kind(at=now, key=key, ask=None if intended else Ask("tool_call", _target(key), _content(call)))
                continue
            if tool and tool.read_only:
                continue
            questions = [] if intended else self._performer.below(key, MARK)
            if questions:  # a person was asked about it, and it was not begun
                intents = [found.intent for found in questions if found.intent is not None and found.outcome is None]
                yield from (Cancelled(at=now, key=intent.key) for intent in intents)
                continue
            if intended and only_waits(past, key):
                yield Cancelled(at=now, key=key)
            elif intended or (first and not resumed):
                ask = None if intended else Ask("tool_call", _target(key), _content(call))
                yield Unknown(at=now, key=key, ask=ask)
            first = False


def _target(key: str) -> str:
    return key.rpartition(".")[2]


def _content(call: ToolCall) -> str:
    return digest_of_bytes("call", canonical_json([call.name, call.arguments]))


def _groups(calls: list[Call]) -> Iterator[list[Call]]:
    """Calls that only read run side by side; any other runs alone, in its place."""
    group: list[Call] = []
    for call in calls:
        if call.alone:
            if group:
                yield group
            yield [call]
            group = []
        else:
            group.append(call)
    if group:
        yield group
