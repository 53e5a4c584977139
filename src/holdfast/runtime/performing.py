"""Performing one turn: the effects that the machine asks for, answered from the journal or done for the first time.

What is recorded is never waited for longer than it must: a record is in its place as soon as it is submitted, and what
is submitted later can't be durable without it. Durability is awaited before anything happens to the world that must
not happen twice under another name, and before anybody is told how the turn ended.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

import msgspec

from holdfast import events
from holdfast.agent import Agent, milliseconds
from holdfast.attachments import File
from holdfast.crashpoints import crash_point
from holdfast.effects.canonical import canonical_json, digest_of_bytes
from holdfast.effects.divergence import diverge
from holdfast.effects.envelope import segment
from holdfast.effects.performer import Performer, bounded, printable
from holdfast.effects.replay import Again, Answer, Begin, Decision, Repeat, SettleUnknown, fold
from holdfast.effects.scopes import Place, current
from holdfast.effects.values import decode_value
from holdfast.errors import (
    Halted,
    HoldfastError,
    InvariantBroken,
    ModelError,
    ReplayMismatch,
    StreamCut,
    Suspended,
    WaitEnded,
    WaitExpired,
)
from holdfast.messages import (
    Attachment,
    CallChunk,
    CallStart,
    ModelReply,
    Reasoning,
    ReasoningChunk,
    StreamEnd,
    StreamNote,
    StreamReset,
    Text,
    TextChunk,
    ToolCall,
    ToolMessage,
    ToolResult,
    UserMessage,
    decode_reply,
    encode,
)
from holdfast.names import check_id
from holdfast.records import (
    ABSENT,
    Admitted,
    Ask,
    Blob,
    Cancelled,
    Done,
    Ended,
    ErrorInfo,
    Failed,
    Intended,
    Parked,
    Unknown,
)
from holdfast.tools.context import Context
from holdfast.tools.definition import Bound, Complaint, NotDone
from holdfast.tools.results import complained, malformed, raised, timed_out, unknown_tool
from holdfast.turns import (
    CallModel,
    Checkpoint,
    Ending,
    Finish,
    Inputs,
    ModelFailed,
    OpenTurn,
    Replied,
    Results,
    RunTools,
    keys,
    poll,
    respond,
    start,
)
from holdfast.turns.answers import result_of
from holdfast.turns.conversation import Entered, checkpoint_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from datetime import timedelta

    from holdfast.effects.performer import Ledger
    from holdfast.messages import Message, ModelRequest, StreamEvent
    from holdfast.records import Outcome, Record
    from holdfast.store.contract import Wait
    from holdfast.tools.definition import AnyTool
    from holdfast.turns.machine import Response, TurnState
    from holdfast.turns.thread import Thread


_FILES_DEPTH: Final = 4
"""How deep in what a tool returns files are looked for."""
LOOK: Final = "%reconcile-"
"""What the places below a call begin with in which `reconcile` works; no name of a step or a wait can look like it."""


class Surroundings(Protocol):
    """What a turn needs from whoever drives it."""

    session: str

    def show(self, kind: type[events.LiveEvent], run: str, **fields: Any) -> None:  # noqa: ANN401
        """Show a live event to whoever watches."""
        ...

    async def steering(self) -> list[tuple[Admitted, UserMessage]]:
        """Inputs that want to enter the running turn now."""
        ...

    async def boundary(self) -> None:
        """A place between two effects: others may go first, and the drive may be stopped here."""
        ...

    async def open_wait(self, name: str, deadline: int | None) -> Wait:
        """The wait as it now is."""
        ...

    def token(self, name: str) -> str:
        """The secret that resolves a wait."""
        ...

    def price(self, reply: ModelReply, asked: str) -> float | None:
        """What a reply cost, if anybody knows: by the name of who gave it, or of who was asked."""
        ...


class Park(Exception):
    """Nothing more can be done in this turn until one of these waits is settled."""

    def __init__(self, waits: tuple[str, ...]) -> None:
        super().__init__(f"waiting for {', '.join(waits)}")
        self.waits = waits


@dataclass(slots=True)
class _Call:
    """One call of a batch, on its way to a result."""

    call: ToolCall
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


class TurnRun:
    """One turn, driven from its beginning or from where its records end."""

    def __init__(
        self, around: Surroundings, agent: Agent | None, turn: OpenTurn, ledger: Ledger, *, strict: bool = False
    ) -> None:
        self.session = around.session
        self.run = turn.run
        self.deadline = turn.deadline
        self.stopped = False
        """The turn was cancelled, or its deadline has passed."""
        self.performer = Performer(ledger, fold(turn.records), turn.run, strict=strict)
        self._around = around
        self._maybe_agent = agent
        self._turn = turn
        self._state: TurnState | None = None
        self._strict = strict
        self._recorded = _numbers(turn)
        self._last = max(self._recorded, default=0)
        self._durable: Awaitable[object] | None = None
        self._open: dict[str, _Call] = {}
        """Calls that were intended or begun here and have no outcome yet."""
        self._settled: set[str] = set()
        self._gathered: list[Record] = []
        self._files: dict[str, bytes] = {}
        self._searched = 0
        self._loop = asyncio.get_running_loop()
        self._partial: tuple[str, Ask, list[Text | Reasoning]] | None = None

    @property
    def _agent(self) -> Agent:
        if self._maybe_agent is None:
            message = f"the turn {self.run!r} can't be run without its agent"
            raise InvariantBroken(message)
        return self._maybe_agent

    def so_far(self) -> dict[str, Any]:
        """How many steps the turn took, what it used, and the last words of an answer that was broken off."""
        counted = self._state or self._turn
        if self._partial is None or not self._partial[2]:
            return {"steps": counted.steps, "usage": counted.usage, "cost": counted.cost}
        answer = self._partial[0].replace("/", ".").removesuffix(".model")
        # What a reply cost that was broken off nobody says.
        return {"steps": counted.steps + 1, "usage": counted.usage, "cost": None, "answer": answer}

    async def finish(self) -> Ending:
        """Drive the turn to its end; answers how it ended. Raises `Park` when it has to wait for somebody."""
        turn = self._turn
        state = start(turn.run, self._agent.rules, turn.before, turn.said, turn.position)
        while True:
            if self.stopped:  # a tool may have swallowed the cancellation; the turn goes no further
                raise asyncio.CancelledError
            effect = poll(state)
            match effect:
                case Finish(ending=ending):
                    self.performer.check_complete()
                    return ending
                case CallModel():
                    response: Response = await self._model(effect)
                case RunTools():
                    response = Results(await self._tools(effect))
                case Checkpoint():
                    response = await self._checkpoint(effect)
            state = self._state = respond(state, effect.id, response)

    # ---- what is recorded ----

    def _expect(self, number: int, name: keys.EffectName) -> str:
        """The key of an effect, after a look at what is recorded in its place. A difference stops the turn."""
        key = keys.effect_key(self.run, number, name)
        recorded = self._recorded.get(number)
        if recorded is None and number < self._last and name != "checkpoint":
            recorded = "nothing"  # a checkpoint at which nothing entered leaves no record
        if recorded is not None and recorded != name:
            divergence = diverge({"effect": recorded}, {"effect": name})
            raise self.performer.halt(ReplayMismatch(key, divergence, self._turn.started.code))
        return key

    def _submit(self, added: list[Record]) -> None:
        """Put records into their place in the journal; durable with the next that is waited for."""
        gathered, self._gathered = self._gathered, []
        _, self._durable = self.performer.submit([*gathered, *added])

    def _gather(self, outcome: Record) -> None:
        """Submit an outcome together with those of other calls that end in the same round of the loop."""
        if not self._gathered:
            asyncio.get_running_loop().call_soon(self._flush)
        self._gathered.append(outcome)

    def _flush(self) -> None:
        if self._gathered:
            try:
                self._submit([])
            except (Halted, HoldfastError):
                pass  # the turn is halted: it hears of it with its next effect
            except Exception as error:  # noqa: BLE001  nothing may go on without these records
                broken = InvariantBroken(f"what a tool gave can't be recorded: {error!r}")
                broken.__cause__ = error
                self.performer.halt(broken)

    async def settle(self) -> None:
        """Wait until everything that was submitted is durable."""
        self._flush()
        if self._durable is not None:
            pending, self._durable = self._durable, None
            await self.performer.durable(pending)

    # ---- the model ----

    async def _model(self, effect: CallModel) -> Response:
        key = self._expect(effect.id, "model")
        content = digest_of_bytes("request", self._agent.prefix.encode() + effect.thread.chain)
        ask = Ask("model_call", self._agent.name, content)
        decision = self.performer.decide(key, ask, Repeat.FREE)
        if not isinstance(decision, Answer):
            return await self._ask_model(effect, key, ask)
        outcome = decision.outcome
        match outcome:
            case Done():
                return Replied(decode_reply(bytes(outcome.value)))
            case Failed():
                return ModelFailed(outcome.error.kind, outcome.error.message)
            case _:
                return ModelFailed("interrupted", "the model call was interrupted")

    async def _ask_model(self, effect: CallModel, key: str, ask: Ask) -> Response:
        await self._around.boundary()
        model = self._agent.model
        request = self._agent.request(effect.thread, effect.position, await self._attached(effect.thread))
        self._show(events.ContextBuilt, messages=len(request.messages))
        self._show(events.ModelStarted, model=model.name, step=effect.position + 1)
        loop = asyncio.get_running_loop()
        begun = loop.time()
        crash_point("model.before_call")
        try:
            body = encode(self._priced(await self._stream(key, ask, request)))
            reply = decode_reply(body)  # a model of somebody's own may have put anything into it
        except ModelError as error:
            self._partial = None
            info = ErrorInfo(printable(error.kind[:100]), bounded(error.message))
            ms = round((loop.time() - begun) * 1000)
            detail = msgspec.Raw(encode(error.attempts)) if error.attempts else ABSENT
            failed = Failed(at=self.performer.now(), key=key, ask=ask, error=info, ms=ms, detail=detail)
        except BaseException as error:
            if _passes(error):
                raise
            self._partial = None
            broken = error if isinstance(error, Exception) else RuntimeError(f"{type(error).__name__}: {error}")
            failed = self.performer.failed(key, ask, broken, begun)
        else:
            crash_point("model.after_reply")
            outcome = await self.performer.succeeded(key, ask, body, begun)
            if not isinstance(outcome, Failed):
                self._submit([outcome])
                return Replied(reply)
            failed = outcome
        self._submit([failed])
        return ModelFailed(failed.error.kind, failed.error.message)

    def _priced(self, reply: ModelReply) -> ModelReply:
        """A reply with what it cost, by the prices of today."""
        if reply.cost is not None:
            return reply
        return msgspec.structs.replace(reply, cost=self._around.price(reply, self._agent.model.name))

    async def _attached(self, thread: Thread) -> dict[str, bytes]:
        """The bytes of all attachments of the conversation; each is read once in a turn."""
        for message in thread.tail(len(thread) - self._searched):
            for digest in _attachments(message):
                if digest not in self._files:
                    self._files[digest] = await self.performer.large(Blob(digest, 0))
        self._searched = len(thread)
        return self._files

    async def _stream(self, key: str, ask: Ask, request: ModelRequest) -> ModelReply:
        model = self._agent.model
        said: list[Text | Reasoning] = []
        self._partial = (key, ask, said)
        stream = model.stream(request)
        try:
            async for event in stream:
                if isinstance(event, StreamEnd):
                    self._partial = None
                    reply = event.reply
                    return reply if reply.model else msgspec.structs.replace(reply, model=model.name)
                self._streamed(event, said)
        finally:
            await _closed(stream)
        self._partial = None
        raise StreamCut(model.name)

    def _streamed(self, event: StreamEvent, said: list[Text | Reasoning]) -> None:
        """Show a piece of the reply."""
        match event:
            case TextChunk(text=text):
                said.append(Text(text))
                self._show(events.TextDelta, text=text)
                crash_point("model.mid_stream")
            case ReasoningChunk(text=text):
                self._show(events.ReasoningDelta, text=text)
            case CallStart():
                self._show(events.ToolCallStarted, call_id=event.id, tool=event.name)
            case CallChunk():
                self._show(events.ToolCallDelta, call_id=event.id, arguments=event.arguments)
            case StreamNote():
                self._show(events.ModelNote, what=event.kind, detail=event.detail)
            case StreamReset(reason=reason):
                said.clear()
                self._show(events.AttemptReset, reason=reason)
            case _:
                pass

    # ---- tools ----

    async def _tools(self, effect: RunTools) -> tuple[ToolResult, ...]:
        self._expect(effect.id, "tools")
        calls = [self._prepare(effect.id, number, call) for number, call in enumerate(effect.calls, 1)]
        for group in _groups(calls):
            todo = [call for call in group if call.result is None]
            if not todo:
                continue
            if self.stopped:
                raise asyncio.CancelledError
            await self._around.boundary()
            await self._intend(todo)
            if len(todo) == 1:
                await self._perform(todo[0])
            else:
                await self._together(todo)
            self._flush()
            waits = tuple(call.wait for call in group if call.wait is not None)
            if waits:
                raise Park(waits)
        return tuple(call.result for call in calls if call.result is not None)

    def _prepare(self, number: int, ordinal: int, call: ToolCall) -> _Call:
        """What is to be done about a call. Nothing is done before all calls of the batch fit what is recorded."""
        tool = self._agent.tools.get(call.name)
        key = keys.call_key(self.run, number, ordinal, call.name)
        ask = Ask("tool_call", key.rpartition(".")[2], _content(call))
        recorded = self.performer.recorded(key)
        intended = recorded is not None and recorded.intent is not None
        # A tool that is gone can't say that it is safe to repeat.
        repeat = tool.repeat if tool else Repeat.NEVER if intended else Repeat.FREE
        decision = self.performer.decide(key, ask, repeat)
        prepared = _Call(call, key, ask, tool, decision, intended)
        if isinstance(decision, Answer):
            prepared.result = result_of(call, decision.outcome)
        else:
            self._bind(prepared, repeat)
        return prepared

    def _bind(self, prepared: _Call, repeat: Repeat) -> None:
        call, tool = prepared.call, prepared.tool
        if isinstance(prepared.decision, SettleUnknown) and self._left_by_itself(prepared.key):
            prepared.decision = Again()
        if tool is None:
            prepared.refused = unknown_tool(call.name, self._agent.tools)
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

    def _left_by_itself(self, key: str) -> bool:
        """Whether the call was left in order, to wait: then nothing of it was interrupted, and it may run again."""
        waiting = False
        for name, found in self.performer.past.effects.items():
            if _within(name, key) and found.ask().kind == "await_event":
                waiting = found.outcome is None
        return waiting

    async def _intend(self, todo: list[_Call]) -> None:
        """Record what is about to be done, together with the reply that asked for it."""
        intents: list[Record] = [
            self.performer.intention(call.key, call.ask)
            for call in todo
            if isinstance(call.decision, Begin) and call.decision.intent
        ]
        if intents:
            crash_point("tool.before_intent")
            self._submit(intents)
        for call in todo:
            if isinstance(call.decision, Begin) and call.decision.intent:
                call.intended = True
                self._open[call.key] = call
        if any(call.tool is not None and not call.tool.read_only for call in todo):
            # An idempotency key stands for one call: it must not be used before that call is known for good.
            await self.settle()
            crash_point("tool.after_intent")

    async def _together(self, todo: list[_Call]) -> None:
        tasks = [asyncio.ensure_future(self._perform(call)) for call in todo]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _perform(self, prepared: _Call) -> None:
        """One call, to its outcome; or to the wait at which it was left."""
        try:
            outcome = await self._outcome(prepared)
        except Suspended as suspended:
            prepared.wait = suspended.wait
            return
        crash_point("tool.before_outcome")
        self._gather(outcome)
        self._open.pop(prepared.key, None)
        self._settled.add(prepared.key)
        prepared.result = await self._result(prepared.call, outcome)

    async def _outcome(self, prepared: _Call) -> Outcome:
        if isinstance(prepared.decision, SettleUnknown):
            return await self._reconcile(prepared)
        if prepared.refused is not None:
            return self._failed(prepared, prepared.refused, 0)
        self._show(events.ToolExecutionStarted, call=self._name(prepared), tool=prepared.call.name)
        self._open[prepared.key] = prepared
        prepared.begun = True
        return await self._invoke(prepared)

    async def _result(self, call: ToolCall, outcome: Outcome) -> ToolResult:
        if isinstance(outcome, Done) and outcome.blob is not None:
            body = await self.performer.large(outcome.blob)
            return result_of(call, msgspec.structs.replace(outcome, value=msgspec.Raw(body), blob=None))
        return result_of(call, outcome)

    async def _invoke(self, prepared: _Call) -> Outcome:
        tool, bound = prepared.tool, prepared.bound
        if tool is None or bound is None:
            message = f"{prepared.key!r} can't be performed"
            raise InvariantBroken(message)
        context = Context(self, prepared.key, prepared.call.id, tool.name)
        begun = asyncio.get_running_loop().time()
        token = current.set(Place(self.performer, prepared.key, inside=True))
        timer = asyncio.timeout(tool.timeout)
        crash_point("tool.before_run")
        try:
            async with timer:
                value = await tool.call(bound, context)
            crash_point("tool.after_run")
            refs: list[Blob] = []
            body = tool.as_json(await self._kept(value, refs))
        except BaseExceptionGroup as group:
            self._unwrap(group)
            return self._failed(prepared, raised(group), begun)
        except BaseException as error:
            if _passes(error):
                raise
            self.performer.check_halted()
            if isinstance(error, asyncio.CancelledError):
                info = ErrorInfo("CancelledError", f"what it waited for was cancelled {error}".rstrip())
                return self._failed(prepared, info, begun)
            if timer.expired() and isinstance(error, TimeoutError):
                return self._timed_out(prepared, tool, begun)
            return self._failed(prepared, raised(error), begun)
        finally:
            current.reset(token)
        ask = None if prepared.intended else prepared.ask
        return await self.performer.succeeded(prepared.key, ask, body, begun, tuple(refs))

    async def _kept(self, value: object, refs: list[Blob], depth: int = 0) -> object:
        """What a tool gave, with files replaced by references to bytes that the store has."""
        if isinstance(value, File):
            blob = await self.performer.keep(value.data)
            refs.append(blob)
            return Attachment(blob.digest, value.media_type, blob.size, value.name)
        if depth < _FILES_DEPTH and isinstance(value, list | tuple):
            return [await self._kept(item, refs, depth + 1) for item in cast("list[object]", value)]
        if depth < _FILES_DEPTH and type(value) is dict:
            items = cast("dict[object, object]", value).items()
            return {key: await self._kept(item, refs, depth + 1) for key, item in items}
        return value

    def _timed_out(self, prepared: _Call, tool: AnyTool, begun: float) -> Outcome:
        """It was stopped. Of a call that must not be repeated, nobody can say whether it took effect."""
        if not tool.read_only:
            return Unknown(at=self.performer.now(), key=prepared.key, ask=None if prepared.intended else prepared.ask)
        return self._failed(prepared, timed_out(tool.name, tool.timeout or 0), begun)

    def _unwrap(self, group: BaseExceptionGroup[BaseException]) -> None:
        """A task group wraps what one of its tasks was left with."""
        self.performer.check_halted()
        for error in _leaves(group):
            if isinstance(error, Suspended | KeyboardInterrupt):
                raise error

    def _failed(self, prepared: _Call, error: ErrorInfo, begun: float) -> Failed:
        ms = round((asyncio.get_running_loop().time() - begun) * 1000) if begun else 0
        ask = None if prepared.intended else prepared.ask
        return Failed(at=self.performer.now(), key=prepared.key, ask=ask, error=error, ms=ms)

    async def _reconcile(self, prepared: _Call) -> Outcome:
        """Find out what came of an interrupted call, if the tool knows how; otherwise nobody can say."""
        tool, bound = prepared.tool, prepared.bound
        if tool is None or tool.reconcile is None or bound is None:
            return Unknown(at=self.performer.now(), key=prepared.key)
        look = self._next_look(prepared.key)
        context = Context(self, prepared.key, prepared.call.id, tool.name, scope=look)
        begun = self._loop.time()
        token = current.set(Place(self.performer, look, inside=True))
        try:
            async with asyncio.timeout(tool.timeout):
                body = await tool.find_out(bound, context)
        except NotDone:
            pass
        except BaseException as error:
            if _passes(error) or isinstance(error, Suspended):
                raise
            self.performer.check_halted()
            return Unknown(at=self.performer.now(), key=prepared.key)
        else:
            return await self.performer.succeeded(prepared.key, None, body, begun)
        finally:
            current.reset(token)
        # What it found is used up with the run that follows: if that is interrupted too, it looks anew.
        ask = Ask("sample", "reconcile", digest_of_bytes("look", look.encode()))
        self._submit([Done(at=self.performer.now(), key=look, ask=ask, value=msgspec.Raw(b"false"))])
        await self.settle()
        prepared.decision = Again()
        return await self._outcome(prepared)

    def _next_look(self, key: str) -> str:
        """The place of the next attempt to find out what came of a call."""
        number = 1
        while self._recorded_outcome(f"{key}/{LOOK}{number}"):
            number += 1
        return f"{key}/{LOOK}{number}"

    # ---- checkpoints ----

    async def _checkpoint(self, effect: Checkpoint) -> Response:
        key = self._expect(effect.id, "checkpoint")
        ask = Ask("checkpoint", effect.moment, digest_of_bytes("checkpoint", (effect.note or "").encode()))
        if effect.id in self._recorded:
            decision = self.performer.decide(key, ask, Repeat.FREE)
            if isinstance(decision, Answer) and isinstance(decision.outcome, Done):
                entered = checkpoint_of(decision.outcome)
                return Inputs(tuple(self._turn.inputs[number] for number in entered.inputs))
        if effect.id < self._last or self._strict:
            return Inputs()
        entering = await self._around.steering()
        if entering or effect.note is not None:
            entered = Entered(tuple(record.input for record, _ in entering), effect.note)
            crash_point("turn.before_checkpoint")
            done = Done(at=self.performer.now(), key=key, ask=ask, value=msgspec.Raw(msgspec.json.encode(entered)))
            self._submit([done, *(record for record, _ in entering)])
        return Inputs(tuple(message for _, message in entering))

    # ---- waiting for somebody outside ----

    def _wait_key(self, key: str, name: str, occurrence: int) -> tuple[str, str]:
        """The key of a wait, and the name under which the store knows it."""
        below = f"{key}/{segment(check_id('wait', name), occurrence)}"
        known = below if len(below) <= 200 else f"{below[:150]}~{digest_of_bytes('wait', below.encode())[:40]}"
        return below, known

    def token(self, key: str, name: str, occurrence: int) -> str:
        return self._around.token(self._wait_key(key, name, occurrence)[1])

    async def wait(self, key: str, name: str, occurrence: int, timeout: timedelta | float | None) -> Any:  # noqa: ANN401
        below, known = self._wait_key(key, name, occurrence)
        ask = Ask("await_event", known, digest_of_bytes("wait", known.encode()))
        decision = self.performer.decide(below, ask, Repeat.FREE)
        if isinstance(decision, Answer):
            return await self._answer(name, decision.outcome)
        deadline = None if timeout is None else self.performer.now() + milliseconds(timeout)
        wait = await self._around.open_wait(known, deadline)
        if wait.state == "open":
            self.performer.leave(key)  # what is cancelled in the call from here on was not: it runs again
            if isinstance(decision, Begin):
                self._submit([Intended(at=self.performer.now(), key=below, ask=ask)])
            raise Suspended(known)
        asked = ask if isinstance(decision, Begin) else None
        if wait.state == "resolved":
            outcome = await self.performer.succeeded(below, asked, wait.payload or b"null", self._loop.time())
        else:
            info = ErrorInfo(wait.state, f"the wait was {wait.state}")
            outcome = Failed(at=self.performer.now(), key=below, ask=asked, error=info)
        self._submit([outcome])
        # From here on the tool may act on the answer: if it is interrupted now, it was not left by itself.
        await self.settle()
        return await self._answer(name, outcome)

    async def _answer(self, name: str, outcome: Outcome) -> Any:  # noqa: ANN401  whatever somebody outside answered
        if isinstance(outcome, Done):
            body = bytes(outcome.value) if outcome.blob is None else await self.performer.large(outcome.blob)
            return decode_value(body)
        state = outcome.error.kind if isinstance(outcome, Failed) else "cancelled"
        if state == "expired":
            raise WaitExpired(name)
        raise WaitEnded(name, state)

    # ---- how it ends ----

    def park(self, waits: tuple[str, ...]) -> Parked:
        """Record that the turn waits."""
        crash_point("turn.before_park")
        parked = Parked(at=self.performer.now(), run=self.run, waits=waits)
        self._submit([parked])
        return parked

    async def seal(self, ending: Ending, before: list[Record] | None = None) -> None:
        """Record how the turn ended; nothing is recorded in its name after that."""
        self._flush()
        now = self.performer.now()
        value = msgspec.Raw(msgspec.json.encode(ending))
        crash_point("turn.before_end")
        await self.performer.seal(Ended(at=now, run=self.run, status=ending.status, value=value), before)
        crash_point("turn.after_end")

    def left_over(self) -> Iterator[Record]:
        """Outcomes for what was under way when the turn was stopped: the words so far, and calls that were begun."""
        now = self.performer.now()
        if self._partial is not None:
            key, ask, said = self._partial
            words = "".join(part.text for part in said)
            if words:
                reply = ModelReply((Text(words),), "cancelled", model=self._agent.model.name)
                yield Done(at=now, key=key, ask=ask, value=msgspec.Raw(encode(reply)))
        for prepared in self._open.values():
            yield self._interrupted(prepared, now)
        yield from self._left_before(now)

    def _interrupted(self, prepared: _Call, now: int) -> Record:
        """A call that was begun here, or was about to be. A new call would bear another idempotency key."""
        ask = None if prepared.intended else prepared.ask
        acts = prepared.tool is None or not prepared.tool.read_only
        if prepared.begun and acts and not self._only_waits(prepared.key):
            return Unknown(at=now, key=prepared.key, ask=ask)
        return Cancelled(at=now, key=prepared.key, ask=ask)

    def _left_before(self, now: int) -> Iterator[Record]:
        """Calls that a process before this one may have begun: those it intended, and the first that it may have."""
        turn, known = self._turn, self._settled | {*self._open}
        first = True
        for ordinal, call in enumerate(turn.batch, 1):
            key = keys.call_key(self.run, turn.batch_id, ordinal, call.name)
            tool = None if self._maybe_agent is None else self._maybe_agent.tools.get(call.name)
            if ordinal in turn.results or key in known or self._recorded_outcome(key) or (tool and tool.read_only):
                continue
            intended = ordinal in turn.intended
            if intended and self._only_waits(key):
                yield Cancelled(at=now, key=key)
            elif intended or (first and self._state is None):
                ask = None if intended else Ask("tool_call", key.rpartition(".")[2], _content(call))
                yield Unknown(at=now, key=key, ask=ask)
            first = False

    def _recorded_outcome(self, key: str) -> bool:
        found = self.performer.recorded(key)
        return found is not None and found.outcome is not None

    def _only_waits(self, key: str) -> bool:
        """Whether a call did nothing that is recorded but wait, and nobody has answered it."""
        below = [found for name, found in self.performer.past.effects.items() if name.startswith(f"{key}/")]
        if any(f"{key}/{LOOK}" in name for name in self.performer.past.effects):
            return False  # it was interrupted once, and somebody is finding out
        waits = [found for found in below if found.ask().kind == "await_event" and found.outcome is None]
        return bool(waits) and len(waits) == len(below)

    # ---- what tools may use ----

    def progress(self, key: str, note: str | None, fraction: float | None) -> None:
        try:
            asyncio.get_running_loop()
        except RuntimeError:  # a plain function, in a thread
            self._loop.call_soon_threadsafe(self.progress, key, note, fraction)
            return
        parsed = keys.parse(key)
        if parsed is not None:
            tool = key.rpartition("/")[2].partition(".")[2]
            self._show(
                events.ToolExecutionProgress, call=events.call_name(parsed), tool=tool, note=note, fraction=fraction
            )

    def _name(self, prepared: _Call) -> str:
        parsed = keys.parse(prepared.key)
        return prepared.key if parsed is None else events.call_name(parsed)

    def _show(self, kind: type[events.LiveEvent], **fields: Any) -> None:  # noqa: ANN401
        self._around.show(kind, self.run, **fields)


def _numbers(turn: OpenTurn) -> dict[int, str]:
    """Which effect is recorded under which number."""
    found: dict[int, str] = {}
    for record in turn.records:
        key = keys.parse(getattr(record, "key", ""))
        if key is not None:
            found[key.number] = key.name
    return found


def _attachments(message: Message) -> Iterator[str]:
    """Digests of the attachments that a message speaks of."""
    if isinstance(message, UserMessage):
        yield from (part.digest for part in message.parts if isinstance(part, Attachment))
    elif isinstance(message, ToolMessage):
        yield from (digest for result in message.results for digest in result.files)


def _within(name: str, key: str) -> bool:
    """Whether `name` was asked by the tool itself, and not by what finds out about it."""
    return name.startswith(f"{key}/") and not name.startswith(f"{key}/{LOOK}")


def _content(call: ToolCall) -> str:
    return digest_of_bytes("call", canonical_json([call.name, call.arguments]))


def _groups(calls: list[_Call]) -> Iterator[list[_Call]]:
    """Calls that only read run side by side; any other runs alone, in its place."""
    group: list[_Call] = []
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


async def _closed(stream: object) -> None:
    """Let go of a stream at once, wherever it is."""
    close: Callable[[], Awaitable[None]] | None = getattr(stream, "aclose", None)
    if close is not None:
        await close()


def _passes(error: BaseException) -> bool:
    """Whether an error is not about what was called: the turn is stopped, waits, or the process is to end.

    A cancellation that nobody asked us for is: something that it awaited was cancelled.
    """
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is None or task.cancelling() > 0
    return isinstance(error, Halted | Suspended | KeyboardInterrupt | GeneratorExit)


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(cast("BaseExceptionGroup[BaseException]", error))
        else:
            yield error
