"""The tool calls of one turn: answered from the journal, or performed for the first time.

Only calls that read run side by side; any other runs alone, in its place, so that a crash leaves one call of which
nobody knows, and not a batch.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from holdfast import events
from holdfast.attachments import File
from holdfast.crashpoints import crash_point
from holdfast.effects.canonical import canonical_json, digest_of_bytes
from holdfast.effects.replay import Again, Answer, Begin, Decision, Repeat, SettleUnknown
from holdfast.effects.scopes import Place, current
from holdfast.errors import InvariantBroken, Suspended
from holdfast.messages import Attachment, ToolCall, ToolResult
from holdfast.records import Ask, Blob, Cancelled, Done, ErrorInfo, Failed, Unknown
from holdfast.runtime.interrupted import has_outcome, left_by_itself, next_look, only_waits
from holdfast.runtime.surroundings import passes
from holdfast.tools.context import Context
from holdfast.tools.definition import Bound, Complaint, NotDone
from holdfast.tools.results import complained, malformed, raised, timed_out, unknown_tool
from holdfast.turns import keys
from holdfast.turns.answers import result_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from holdfast.effects.performer import Performer
    from holdfast.records import Outcome, Record
    from holdfast.runtime.recording import Recorder
    from holdfast.runtime.surroundings import Surroundings
    from holdfast.tools.context import Caller
    from holdfast.tools.definition import AnyTool
    from holdfast.turns import OpenTurn, RunTools

_FILES_DEPTH: Final = 4
"""How deep in what a tool returns files are looked for."""


class Park(Exception):
    """Nothing more can be done in this turn until one of these waits is settled."""

    def __init__(self, waits: tuple[str, ...]) -> None:
        super().__init__(f"waiting for {', '.join(waits)}")
        self.waits = waits


@dataclass(slots=True)
class Call:
    """One call of a batch, on its way to a result."""

    call: ToolCall
    name: str
    """How events name it."""
    key: str
    ask: Ask
    tool: AnyTool | None
    decision: Decision
    intended: bool
    bound: Bound | None = None
    refused: ErrorInfo | None = None
    result: ToolResult | None = None
    wait: str | None = None
    begun: bool = False

    @property
    def alone(self) -> bool:
        """Whether it must not run beside others."""
        return self.tool is not None and not self.tool.read_only

    @property
    def asked(self) -> Ask | None:
        """What its outcome must say about it; nothing where its intent has."""
        return None if self.intended else self.ask

    @property
    def intends(self) -> bool:
        """Whether what it is about to do is recorded before it does it."""
        return isinstance(self.decision, Begin) and self.decision.intent


class Calling:
    """Performs the tool calls of one turn."""

    def __init__(
        self,
        around: Surroundings,
        caller: Caller,
        tools: Mapping[str, AnyTool],
        performer: Performer,
        recorder: Recorder,
    ) -> None:
        self._around = around
        self._caller = caller
        self._tools = tools
        self._performer = performer
        self._recorder = recorder
        self._run = performer.run
        self._loop = asyncio.get_running_loop()
        self._open: dict[str, Call] = {}
        """Calls that were intended or begun here and have no outcome yet."""
        self._settled: set[str] = set()

    async def perform(self, effect: RunTools) -> tuple[ToolResult, ...]:
        """The results of a batch of calls, in their order. Raises `Park` when one of them waits for somebody."""
        calls = [self._prepare(effect.id, number, call) for number, call in enumerate(effect.calls, 1)]
        for group in _groups(calls):
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
            waits = tuple(call.wait for call in group if call.wait is not None)
            if waits:
                raise Park(waits)
        return tuple(call.result for call in calls if call.result is not None)

    # ---- before ----

    def _prepare(self, number: int, ordinal: int, call: ToolCall) -> Call:
        """What is to be done about a call. Nothing is done before all calls of the batch fit what is recorded."""
        tool = self._tools.get(call.name)
        key = keys.call_key(self._run, number, ordinal, call.name)
        ask = Ask("tool_call", key.rpartition(".")[2], _content(call))
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
        call, tool = prepared.call, prepared.tool
        if isinstance(prepared.decision, SettleUnknown) and left_by_itself(self._performer.past, prepared.key):
            prepared.decision = Again()
        if tool is None:
            prepared.refused = unknown_tool(call.name, self._tools)
        elif call.arguments is None:
            prepared.refused = malformed(call)
        else:
            bound = tool.bind(call.arguments)
            if isinstance(bound, Complaint):
                prepared.refused = complained(bound)
            else:
                prepared.bound = bound
        if prepared.refused is not None and isinstance(prepared.decision, Begin) and repeat is Repeat.NEVER:
            prepared.decision = Begin(intent=False)  # it will not be performed

    async def _intend(self, todo: list[Call]) -> None:
        """Record what is about to be done, together with the reply that asked for it."""
        intending = [call for call in todo if call.intends]
        if intending:
            crash_point("tool.before_intent")
            self._recorder.submit([self._performer.intention(call.key, call.ask) for call in intending])
        for call in intending:
            call.intended = True
            self._open[call.key] = call
        if any(call.alone for call in todo):
            # An idempotency key stands for one call: it must not be used before that call is known for good.
            await self._recorder.settle()
            crash_point("tool.after_intent")

    # ---- performing ----

    async def _together(self, todo: list[Call]) -> None:
        first, *others = todo
        tasks = [asyncio.ensure_future(self._perform(call)) for call in others]
        try:
            await self._perform(first)  # needs no task of its own
            await asyncio.gather(*tasks)
        finally:
            left = [task for task in tasks if not task.done()]
            for task in left:
                task.cancel()
            if left:
                await asyncio.gather(*left, return_exceptions=True)

    async def _perform(self, prepared: Call) -> None:
        """One call, to its outcome; or to the wait at which it was left."""
        try:
            outcome = await self._outcome(prepared)
        except Suspended as suspended:
            prepared.wait = suspended.wait
            return
        crash_point("tool.before_outcome")
        self._recorder.gather(outcome)
        self._open.pop(prepared.key, None)
        self._settled.add(prepared.key)
        if isinstance(outcome, Done) and outcome.blob is not None:
            body = await self._performer.large(outcome.blob)
            outcome = msgspec.structs.replace(outcome, value=msgspec.Raw(body), blob=None)
        prepared.result = result_of(prepared.call, outcome)

    async def _outcome(self, prepared: Call) -> Outcome:
        if isinstance(prepared.decision, SettleUnknown):
            return await self._reconcile(prepared)
        if prepared.refused is not None:
            return self._failed(prepared, prepared.refused, 0)
        fields = {"call": prepared.name, "tool": prepared.call.name}
        self._around.show(events.ToolExecutionStarted, self._run, fields)
        self._open[prepared.key] = prepared
        prepared.begun = True
        return await self._invoke(prepared)

    async def _invoke(self, prepared: Call) -> Outcome:
        tool, bound = _ready(prepared)
        context = Context(self._caller, prepared.key, prepared.call.id, tool.name)
        begun = self._loop.time()
        token = current.set(Place(self._performer, prepared.key, inside=True))
        timer: asyncio.Timeout | None = None
        crash_point("tool.before_run")
        try:
            if tool.timeout is None:
                value = await tool.call(bound, context)
            else:
                timer = asyncio.timeout(tool.timeout)
                async with timer:
                    value = await tool.call(bound, context)
            crash_point("tool.after_run")
            refs: list[Blob] = []
            if _holds_file(value):
                value = await self._kept(value, refs)
            body = tool.as_json(value)
        except BaseExceptionGroup as group:
            self._unwrap(group)
            return self._failed(prepared, raised(group), begun)
        except BaseException as error:
            if passes(error):
                raise
            self._performer.check_halted()
            if isinstance(error, asyncio.CancelledError):
                info = ErrorInfo("CancelledError", f"what it waited for was cancelled {error}".rstrip())
                return self._failed(prepared, info, begun)
            if timer is not None and timer.expired() and isinstance(error, TimeoutError):
                return self._timed_out(prepared, tool, begun)
            return self._failed(prepared, raised(error), begun)
        finally:
            current.reset(token)
        return await self._performer.succeeded(prepared.key, prepared.asked, body, begun, tuple(refs))

    async def _kept(self, value: object, refs: list[Blob], depth: int = 0) -> object:
        """What a tool gave, with files replaced by references to bytes that the store has."""
        if isinstance(value, File):
            blob = await self._performer.keep(value.data)
            refs.append(blob)
            return Attachment(blob.digest, value.media_type, blob.size, value.name)
        if depth < _FILES_DEPTH and isinstance(value, list | tuple):
            return [await self._kept(item, refs, depth + 1) for item in cast("list[object]", value)]
        if depth < _FILES_DEPTH and type(value) is dict:
            items = cast("dict[object, object]", value).items()
            return {key: await self._kept(item, refs, depth + 1) for key, item in items}
        return value

    def _timed_out(self, prepared: Call, tool: AnyTool, begun: float) -> Outcome:
        """It was stopped. Of a call that must not be repeated, nobody can say whether it took effect."""
        if not tool.read_only:
            return Unknown(at=self._performer.now(), key=prepared.key, ask=prepared.asked)
        return self._failed(prepared, timed_out(tool.name, tool.timeout or 0), begun)

    def _unwrap(self, group: BaseExceptionGroup[BaseException]) -> None:
        """A task group wraps what one of its tasks was left with."""
        self._performer.check_halted()
        for error in _leaves(group):
            if isinstance(error, Suspended | KeyboardInterrupt):
                raise error

    def _failed(self, prepared: Call, error: ErrorInfo, begun: float) -> Failed:
        ms = round((self._loop.time() - begun) * 1000) if begun else 0
        return Failed(at=self._performer.now(), key=prepared.key, ask=prepared.asked, error=error, ms=ms)

    async def _reconcile(self, prepared: Call) -> Outcome:
        """Find out what came of an interrupted call, if the tool knows how; otherwise nobody can say."""
        tool, bound = prepared.tool, prepared.bound
        if tool is None or tool.reconcile is None or bound is None:
            return Unknown(at=self._performer.now(), key=prepared.key)
        look = next_look(self._performer.past, prepared.key)
        context = Context(self._caller, prepared.key, prepared.call.id, tool.name, scope=look)
        begun = self._loop.time()
        token = current.set(Place(self._performer, look, inside=True))
        try:
            async with asyncio.timeout(tool.timeout):
                body = await tool.find_out(bound, context)
        except NotDone:
            pass
        except BaseException as error:
            if passes(error) or isinstance(error, Suspended):
                raise
            self._performer.check_halted()
            return Unknown(at=self._performer.now(), key=prepared.key)
        else:
            return await self._performer.succeeded(prepared.key, None, body, begun)
        finally:
            current.reset(token)
        # What it found is used up with the run that follows: if that is interrupted too, it looks anew.
        ask = Ask("sample", "reconcile", digest_of_bytes("look", look.encode()))
        self._recorder.submit([Done(at=self._performer.now(), key=look, ask=ask, value=msgspec.Raw(b"false"))])
        await self._recorder.settle()
        prepared.decision = Again()
        return await self._outcome(prepared)

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
            if ordinal in turn.results or key in known or has_outcome(past, key) or (tool and tool.read_only):
                continue
            intended = ordinal in turn.intended
            if intended and only_waits(past, key):
                yield Cancelled(at=now, key=key)
            elif intended or (first and not resumed):
                ask = None if intended else Ask("tool_call", key.rpartition(".")[2], _content(call))
                yield Unknown(at=now, key=key, ask=ask)
            first = False


def _ready(prepared: Call) -> tuple[AnyTool, Bound]:
    if prepared.tool is None or prepared.bound is None:
        message = f"{prepared.key!r} can't be performed"
        raise InvariantBroken(message)
    return prepared.tool, prepared.bound


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


def _holds_file(value: Any, depth: int = 0) -> bool:  # noqa: ANN401  whatever a tool gave
    if isinstance(value, File):
        return True
    if depth == _FILES_DEPTH:
        return False
    if isinstance(value, list | tuple):
        return any(_holds_file(item, depth + 1) for item in cast("list[object]", value))
    return type(value) is dict and any(
        _holds_file(item, depth + 1) for item in cast("dict[object, object]", value).values()
    )


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(cast("BaseExceptionGroup[BaseException]", error))
        else:
            yield error
