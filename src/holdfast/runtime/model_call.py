"""The model calls of one turn: answered from the journal, or asked for the first time and shown while they come."""

from __future__ import annotations

import asyncio
import secrets as chance
from dataclasses import dataclass
from functools import cached_property
from operator import is_not
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast

import msgspec

from holdfast import events
from holdfast.agent import Output
from holdfast.crashpoints import crash_point
from holdfast.effects.canonical import canonical, digest_of_bytes
from holdfast.effects.drive import drive, replay
from holdfast.effects.replay import Repeat
from holdfast.effects.replay import UseRecorded as Recorded
from holdfast.effects.values import bounded, printable
from holdfast.errors import (
    EffectFailed,
    InvalidArgument,
    JournalConflict,
    JournalMissing,
    KeyConflict,
    ModelError,
    ReplayMismatch,
    RunFailed,
    StreamCut,
)
from holdfast.messages import (
    CallChunk,
    CallEnd,
    CallStart,
    ModelReply,
    ModelRequest,
    ReasoningChunk,
    StreamEnd,
    StreamNote,
    StreamReset,
    StreamStart,
    StreamUsage,
    Text,
    TextChunk,
    ToolSpec,
    Usage,
    UserMessage,
    attachments_of,
    decode_reply,
    encode,
    used_by,
)
from holdfast.models import Model
from holdfast.models import model as named
from holdfast.models.contract import respond, stream_batches
from holdfast.models.prices import reply_cost
from holdfast.names import check_id, check_string
from holdfast.policy.hooks import Answer, Deny, HookRequest, HookTurn, ModelDecision
from holdfast.processes.state import RUN
from holdfast.records import ABSENT, Blob, Cancelled, Cause, Done, EffectRequest, ErrorInfo, Failed
from holdfast.runtime.authorization import HOOK_SUFFIX, hook_record, read_value
from holdfast.runtime.budgets import model_call_spend, unused_reply_spend
from holdfast.runtime.context import is_control_flow
from holdfast.runtime.hooks import HookRunner, current_hooks
from holdfast.turns import Compacted, ModelFailed, Replied, UsedUp
from holdfast.turns.environment import INLINE, Prefix
from holdfast.turns.environment import MARK as ENVIRONMENT
from holdfast.turns.machine import added
from holdfast.turns.results import MARK as PAID
from holdfast.turns.results import paid_for, paid_tries

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence

    from holdfast.agent import Agent
    from holdfast.effects.boundary import Boundary
    from holdfast.effects.performer import Performer
    from holdfast.effects.replay import Drift
    from holdfast.effects.scopes import EffectScope
    from holdfast.messages import Attempt, StreamEvent
    from holdfast.models.prices import Price
    from holdfast.policy.hooks import RequestKind
    from holdfast.policy.limits import OutOf
    from holdfast.records import Outcome, Record
    from holdfast.runtime.compaction import Compactor
    from holdfast.runtime.context import RuntimeContext, TurnHost
    from holdfast.runtime.recorder import Recorder
    from holdfast.secrets.redactor import RedactedStream
    from holdfast.turns import CallModel
    from holdfast.turns.thread import Thread

    Judge = Callable[[Usage, float | None], Awaitable[OutOf | None]]
    _Kind: TypeAlias = RequestKind | Literal["compaction"]
    Keep: TypeAlias = Callable[[list[Record]], Awaitable[object]]


_HIDDEN_EVENTS: Final = frozenset((StreamStart, CallEnd))
"""Events of a stream that nobody is shown."""


class PartialReply:
    """A reply that is under way, and its words so far."""

    __slots__ = ("_settled", "ask", "key", "said", "tried", "used", "whole")

    def __init__(self, key: str, ask: EffectRequest, tried: list[Attempt] | None, settled: int = 0) -> None:
        self._settled = settled
        """How many tries, the first ones, are paid for already."""
        self.key = key
        self.ask = ask
        self.said: list[str] = []
        self.used: Usage | None = None
        """What the provider has counted so far."""
        self.tried = tried
        """The tries that are over."""
        self.whole: ModelReply | None = None
        """The reply, when it is whole and paid for, and hooks have not let it pass yet: its words are not told."""

    @property
    def answer(self) -> str:
        """The id of the message that these words become if the turn is broken off now."""
        return self.key.replace("/", ".").removesuffix(".model")

    def reply(self, model: str) -> ModelReply | None:
        """The words so far as a reply; without any where hooks have not let it pass. None where nothing came."""
        reply, tried = self.whole, tuple(self.tried or ())
        if reply is not None:
            attempts = max(tried, reply.attempts, key=len)  # those before room was made are among the former
            return msgspec.structs.replace(reply, parts=(), finish="cancelled", attempts=attempts)
        if not any(self.said):
            return None
        # A model that keeps a ledger has the try under way in it by now; of others the last count is all there is.
        used = max(used_by(tried[self._settled :]), self.used or Usage(), key=_total)
        return ModelReply((Text("".join(self.said)),), "cancelled", used, model, attempts=tried)

    @property
    def wasted(self) -> ModelReply | None:
        """What the tries took, where no word came of them; None where they took nothing."""
        return None if self.whole is not None or any(self.said) else paid_tries((self.tried or [])[self._settled :])

    def outcome(self, model: str, now: int) -> Done | Cancelled:
        """The words so far as the recorded reply, with every try; the tries alone where nothing was said."""
        reply = self.reply(model)
        if reply is None:
            return Cancelled(at=now, key=self.key, ask=self.ask, detail=msgspec.Raw(encode(self.tried or ())))
        return Done(at=now, key=self.key, ask=self.ask, value=msgspec.Raw(encode(reply)))


def _total(usage: Usage) -> int:
    return usage.total


class _ContextOverflow(Exception):
    """The provider says that the request is longer than the model's window. A `reply` that says so was paid for."""

    def __init__(self, reply: ModelReply | None = None, error: ModelError | None = None, begun: float = 0.0) -> None:
        super().__init__()
        self.reply = reply
        self.error = error
        self.begun = begun
        self.tries: tuple[Attempt, ...] = () if (told := reply or error) is None else told.attempts


class ModelCaller:
    """Asks the model of one turn."""

    def __init__(  # noqa: PLR0913, PLR0917
        self,
        host: TurnHost,
        run: str,
        agent: Agent,
        performer: Performer,
        recorder: Recorder,
        hooked: HookRunner,
        consulting: ModelHooks,
        compacting: Compactor,
        environments: Mapping[str, str],
    ) -> None:
        self._host = host
        self._compacting = compacting
        self._hooked = hooked
        self._consulting = consulting
        self._run = run
        self._agent = agent
        self._performer = performer
        self._redactor = performer.redactor
        self._pieces: dict[Any, RedactedStream] = {}
        self._tools: tuple[tuple[ToolSpec, ...], object, tuple[ToolSpec, ...]] | None = None
        """The tools that were looked through for secrets, what was known then, and what was found."""
        self._recorder = recorder
        self._loop = asyncio.get_running_loop()
        self._files: dict[str, bytes] = {}
        self._searched = 0
        self._unfinished: PartialReply | None = None
        self._before: tuple[Attempt, ...] = ()
        """The tries that the question took before room was made for it."""
        self._unpaid: tuple[Attempt, ...] = ()
        """Those of them that nobody has counted yet."""
        self.rules = agent.rules
        self._synced = environments.get(agent.name)
        """The environment of the agent that the journal tells last."""
        self._faithful = getattr(agent.model, "faithful", False)
        """Whether the replies of the model are known to read back as they are."""

    @property
    def unfinished(self) -> tuple[str, ModelReply] | None:
        """The reply that is under way, as it would be recorded now, and the id of its message."""
        found = self._unfinished
        reply = None if found is None else found.reply(self._agent.model.name)
        return None if found is None or reply is None else (found.answer, reply)

    def left_over(self, now: int) -> Iterator[Record]:
        """What is recorded of a reply that is under way when the turn is stopped, and of a summary."""
        yield from self._compacting.left_over(now)
        found = self._unfinished
        if found is not None and (any(found.said) or found.whole or found.tried):
            outcome = found.outcome(self._agent.model.name, now)
            wasted = self.wasted
            if wasted is not None and isinstance(outcome, Cancelled):
                yield paid_for(wasted, outcome)
            yield outcome

    @property
    def wasted(self) -> ModelReply | None:
        """What the tries of the question under way took, where no word came of them."""
        found = None if self._unfinished is None else self._unfinished.wasted
        return None if found is None else self._priced(found)

    async def respond(self, effect: CallModel, key: str, judge: Judge) -> Replied | ModelFailed | UsedUp:
        """What the model says to the conversation. `judge` tells whether what making room took leaves enough for it."""
        compacting, performer = self._compacting, self._performer
        self._before = self._unpaid = ()
        performer.below(key, ENVIRONMENT)  # of a call that was interrupted
        thread = compacting.recorded(key, effect.thread)
        known = performer.recorded(key)
        if known is None or known.outcome is None:
            await self._host.boundary()
            # Under a strict replay nothing is asked, a summary neither; and what hooks have settled needs no room.
            if not performer.strict and (key not in performer.past.order or await self._open(key, thread)):
                room = compacting.needed(thread)
                if room is not None:
                    thread = await compacting.fitting(key, thread, room)
            if compacting.took and (out := await self._judged(judge)) is not None:
                return out
        ask = self._question(thread)
        decision = performer.decide(key, ask, Repeat.FREE)
        if isinstance(decision, Recorded):
            return self._seen(self._recorded(key, decision.outcome), effect.thread, thread)
        try:
            response = await self._asked(effect, thread, key, ask, again=True)
        except _ContextOverflow as overflow:
            self._begin_anew("context_overflow")
            shorter = await compacting.overflown(key, thread, overflow.reply)
            if shorter is None and overflow.error is not None:
                failed = self._failed(key, ask, overflow.error, overflow.begun)
                response = await self._told(failed, self._paid(overflow.error))
            else:
                if compacting.took and (out := await self._judged(judge)) is not None:
                    return out
                thread = thread if shorter is None else shorter
                self._before = overflow.tries
                self._unpaid = () if overflow.reply is not None else overflow.tries
                response = await self._asked(effect, thread, key, self._question(thread), again=False)
        self._consulting.forget(key)
        if isinstance(response, Replied):
            compacting.reported(thread, response.reply)
        return self._seen(response, effect.thread, thread)

    async def compact(self, effect: CallModel, key: str) -> Compacted | ModelFailed:
        """Make room in the context because somebody asked for it. Without a summary it stays as it is."""
        compacting, performer = self._compacting, self._performer
        self._before = self._unpaid = ()
        known = performer.recorded(key)
        if known is not None and known.outcome is not None:
            failed = self._recorded(key, known.outcome)
            return failed if isinstance(failed, ModelFailed) else Compacted(effect.thread)
        thread = compacting.recorded(key, effect.thread)
        if thread is effect.thread and not performer.strict:
            await self._host.boundary()
            begun = self._loop.time()
            try:
                thread = await compacting.asked(key, thread) or thread
            except ModelError as error:
                paid = compacting.paid_in_vain()
                return await self._told(self._failed(key, self._question(thread), error, begun), paid)
        return Compacted(thread, *compacting.handed_over())

    def _recorded(self, key: str, outcome: Outcome) -> Replied | ModelFailed:
        """What is recorded to have come of it."""
        match outcome:
            case Done():
                return Replied(decode_reply(bytes(outcome.value)))
            case Failed():
                for found in self._performer.below(key, PAID):
                    if isinstance(found.outcome, Done):
                        paid = decode_reply(bytes(found.outcome.value))
                        return ModelFailed(outcome.error.kind, outcome.error.message, paid.usage, paid.cost)
                return ModelFailed(outcome.error.kind, outcome.error.message)
            case _:
                return ModelFailed("interrupted", "the model call was interrupted")

    async def _open(self, key: str, thread: Thread) -> bool:
        """Whether the model is still to be asked, by what is recorded of hooks."""
        return not await self._consulting.settled(key, self._question(thread).content)

    @property
    def room(self) -> tuple[Usage, float | None]:
        """What making room took and cost for the call under way, as far as nobody has counted it."""
        return self._compacting.usage, self._compacting.cost

    async def _judged(self, judge: Judge) -> UsedUp | None:
        """How the turn ends if making room took the rest of a budget."""
        out = await judge(self._compacting.usage, self._compacting.cost)
        return None if out is None else UsedUp(out, *self._compacting.handed_over())

    @cached_property
    def _prefix(self) -> bytes:
        """What stands before the conversation, in each question."""
        return self._agent.prefix.encode()

    def _question(self, thread: Thread) -> EffectRequest:
        """What is asked, in one digest."""
        content = digest_of_bytes("request", self._prefix + thread.chain)
        performer = self._performer
        step = performer.iteration or 0
        return EffectRequest("model_call", self._agent.name, content, cause=performer.cause, iteration=step)

    def _seen(self, response: Replied | ModelFailed, whole: Thread, seen: Thread) -> Replied | ModelFailed:
        """What came of it, with what the model saw, where that was less than all, and what making room took."""
        if seen is whole:
            return response
        usage, cost = self._compacting.handed_over()
        if isinstance(response, ModelFailed):
            cost = added(response.cost, cost)
            return ModelFailed(response.code, response.message, response.usage + usage, cost)
        return Replied(response.reply, seen, usage, cost)

    async def _asked(
        self, effect: CallModel, thread: Thread, key: str, ask: EffectRequest, *, again: bool
    ) -> Replied | ModelFailed:
        """Ask, and record what came of it. With `again`, a request that does not fit is not recorded: it is retried."""
        for digest in self._unread(thread, anew=thread is not effect.thread):
            self._files[digest] = await self._performer.large(Blob(digest, 0))
        if self._synced != self._agent.environment_id:
            self._sync(key)
        request = self._request(effect, thread)
        begun = self._loop.time()
        crash_point("model.before_call")
        try:
            unfinished = PartialReply(key, ask, request.ledger, len(self._before) - len(self._unpaid))
            if self._consulting.idle(key):
                answer = self._priced(await self._stream(unfinished, request))
            else:
                answer = await self._consulted(unfinished, request)
            if self._before:
                answer = self._with_tries_before(answer)
            said = encode(answer)
            body = self._redactor.bytes(said, numbers=False)
            # A model of somebody's own may have put anything into it.
            reply = answer if self._faithful and body is said else decode_reply(body)
        except ModelError as error:
            if again and error.kind == "context_overflow":
                self._unfinished = None
                raise _ContextOverflow(error=error, begun=begun) from error
            failed, paid = self._failed(key, ask, error, begun), self._paid(error)
        except BaseException as error:
            if is_control_flow(error):
                raise
            # No local keeps the error: it keeps this frame, and that would be a cycle for the collector.
            failed, paid = self._performer.failed(key, ask, _as_exception(error), begun), None
        else:
            if again and reply.finish == "context_overflow":
                raise _ContextOverflow(reply)
            crash_point("model.after_reply")
            done = self._performer.done_with(key, ask, body, begun)
            outcome = done or await self._performer.succeeded(key, ask, body, begun)
            if not isinstance(outcome, Failed):
                self._recorder.submit([outcome], patient=True, spend=model_call_spend(reply.usage, reply.cost))
                return Replied(reply)
            return await self._told(outcome, reply)  # it can't be kept
        return await self._told(failed, paid)

    def _with_tries_before(self, answer: ModelReply) -> ModelReply:
        """An answer with the tries before room was made for it, and what those took that nobody has counted."""
        wasted = paid_tries(self._unpaid)
        attempts = (*self._before, *answer.attempts)
        if wasted is None:
            return msgspec.structs.replace(answer, attempts=attempts)
        usage, cost = answer.usage + wasted.usage, added(answer.cost, self._priced(wasted).cost)
        return msgspec.structs.replace(answer, attempts=attempts, usage=usage, cost=cost)

    def _paid(self, error: ModelError) -> ModelReply | None:
        """What was paid for a question that brought an error."""
        wasted = paid_tries((*self._unpaid, *error.attempts))
        if wasted is None and error.usage is not None and error.usage.total and not error.attempts:
            wasted = ModelReply((), "cancelled", error.usage, self._agent.model.name)
        return None if wasted is None else self._priced(wasted)

    def _sync(self, key: str) -> None:
        """Record what the model is told besides the conversation: it is new, or has changed since the last time."""
        agent, performer = self._agent, self._performer
        body = self._redactor.bytes(agent.environment_body, numbers=False)
        place = f"{key}{ENVIRONMENT}{1 + len(performer.below(key, ENVIRONMENT))}"
        prefix = msgspec.Raw(msgspec.json.encode(Prefix(agent.prefix)))
        step = performer.iteration or 0
        cause = Cause("model", key)
        ask = EffectRequest("sync_environment", agent.name, agent.environment_id, prefix, cause=cause, iteration=step)
        if len(body) <= INLINE:
            synced = Done(at=performer.now(), key=place, ask=ask, value=msgspec.Raw(body))
        else:
            synced = Done(at=performer.now(), key=place, ask=ask, blob=performer.keep_soon(body))
        self._recorder.submit([synced], patient=True)
        self._synced = agent.environment_id

    def _request(self, effect: CallModel, thread: Thread) -> ModelRequest:
        """What the model is asked, shown to whoever watches."""
        agent, show = self._agent, self._host.show
        request = agent.request(thread, effect.position, self._files)
        if self._before and request.ledger is not None:
            request.ledger.extend(self._before)
        instructions = self._redactor.text(request.instructions)
        tools = self._cleaned_tools(request.tools) if self._redactor.active else request.tools
        if instructions is not request.instructions or tools is not request.tools:
            request = msgspec.structs.replace(request, instructions=instructions, tools=tools)
        show(events.ContextBuilt, self._run, {"messages": len(request.messages)})
        show(events.ModelStarted, self._run, {"model": agent.model.name, "step": effect.position + 1})
        return request

    def _cleaned_tools(self, tools: tuple[ToolSpec, ...]) -> tuple[ToolSpec, ...]:
        """The tools as the model sees them, without secrets; looked through once for each secret that is learnt."""
        seen = (tools, self._redactor.known)
        if self._tools is None or self._tools[0] is not tools or self._tools[1] is not seen[1]:
            bodies = [(spec, msgspec.json.encode(spec)) for spec in tools]
            cleaned = [(spec, body, self._redactor.bytes(body, numbers=False)) for spec, body in bodies]
            clean = tuple(
                spec if body is kept else msgspec.json.decode(kept, type=ToolSpec) for spec, body, kept in cleaned
            )
            self._tools = (*seen, clean if any(map(is_not, clean, tools)) else tools)
        return self._tools[2]

    async def _told(self, failed: Failed, paid: ModelReply | None = None) -> ModelFailed:
        """Record that the model could not answer; also what was paid for an answer that must not be used."""
        found, self._unfinished = self._unfinished, None
        if found is not None and found.whole is not None:
            paid = found.whole
        if paid is not None:
            spend = unused_reply_spend(paid.usage, paid.cost)
            self._recorder.submit([paid_for(paid, failed), failed], spend=spend)
        else:
            self._recorder.submit([failed])
        if self._hooked.has("on_error"):
            await self._hooked.on_error(EffectFailed(failed.key, failed.error.kind, failed.error.message))
        if paid is None:
            return ModelFailed(failed.error.kind, failed.error.message)
        return ModelFailed(failed.error.kind, failed.error.message, paid.usage, paid.cost)

    async def _consulted(self, unfinished: PartialReply, request: ModelRequest) -> ModelReply:
        """What the model says, or a hook in its place."""
        asked = HookRequest(self._hooked.turn, request)
        given = await self._consulting.before(unfinished.key, asked, unfinished.ask.content)
        if given is not None:
            return await self._consulting.after(asked, given)
        reply = self._priced(await self._stream(unfinished, request))
        if self._consulting.judges:
            unfinished.said.clear()
            unfinished.whole = reply
            self._unfinished = unfinished  # until it is decided: it was paid for
            reply = await self._judged_by_hooks(asked, reply)
            self._unfinished = None
        return reply

    async def _judged_by_hooks(self, asked: HookRequest, reply: ModelReply) -> ModelReply:
        """The reply as hooks let it be. Where that is another one, what was shown of it does not count."""
        try:
            told = await self._consulting.after(asked, reply)
        except ModelError:
            self._begin_anew("hook")
            raise
        if told is not reply:
            self._begin_anew("hook")
        return told

    def _failed(self, key: str, ask: EffectRequest, error: ModelError, begun: float) -> Failed:
        info = ErrorInfo(printable(error.kind[:100]), bounded(self._redactor.text(error.message)))
        ms = round((self._loop.time() - begun) * 1000)
        tries = (*self._before, *error.attempts)
        detail = msgspec.Raw(encode(tries)) if tries else ABSENT
        return Failed(at=self._performer.now(), key=key, ask=ask, error=info, ms=ms, detail=detail)

    def _priced(self, reply: ModelReply) -> ModelReply:
        """A reply with what it cost, by the prices of today."""
        if reply.cost is not None:
            return reply
        asked = reply.attempts[-1].model if reply.attempts else self._agent.model.name
        cost = self._host.price(reply, asked)
        return reply if cost is None else msgspec.structs.replace(reply, cost=cost)

    def _unread(self, thread: Thread, *, anew: bool) -> list[str]:
        """The attachments of the conversation whose bytes are not here; each is read once as long as it is in it.

        It is looked through `anew` where it is another one, since room was made in it.
        """
        before = self._files
        if anew:
            self._searched, self._files = 0, {}
        added = thread.tail(len(thread) - self._searched)
        self._searched = len(thread)
        found = [digest for message in added for digest in attachments_of(message)]
        self._files.update({digest: before[digest] for digest in found if digest in before})
        return [digest for digest in found if digest not in self._files]

    async def _stream(self, unfinished: PartialReply, request: ModelRequest) -> ModelReply:
        model = self._agent.model
        self._unfinished = unfinished
        stream = stream_batches(model, request)
        try:
            async for batch in stream:
                for event in batch:
                    kind = type(event)
                    if kind is StreamEnd:
                        self._show_held()
                        self._unfinished = None
                        reply = cast("StreamEnd", event).reply
                        return reply if reply.model else msgspec.structs.replace(reply, model=model.name)
                    if kind is StreamUsage:
                        unfinished.used = cast("StreamUsage", event).usage
                    elif kind not in _HIDDEN_EVENTS:
                        self._streamed(event, unfinished.said)
        finally:
            await stream.aclose()
        raise StreamCut(model.name)

    def _streamed(self, event: StreamEvent, said: list[str]) -> None:
        """Show a piece of the reply."""
        if type(event) is TextChunk:
            said.append(event.text)
            self._piece(events.TextDelta, "text", event.text)
            crash_point("model.mid_stream")
        elif type(event) is CallChunk:
            self._piece(events.ToolCallDelta, "arguments", event.arguments, call_id=event.id)
        elif type(event) is CallStart:
            self._host.show(events.ToolCallAnnounced, self._run, {"call_id": event.id, "tool": event.name})
        elif type(event) is ReasoningChunk:
            self._piece(events.ReasoningDelta, "text", event.text)
        elif type(event) is StreamNote:
            self._show(events.ModelNote, what=event.kind, detail=event.detail)
        elif type(event) is StreamReset:
            said.clear()
            self._pieces.clear()
            self._show(events.AttemptReset, reason=event.reason)

    def _piece(self, kind: type[events.LiveEvent], field: str, piece: str, **fields: str) -> None:
        """Show a piece of a text; the beginning of a secret is held back until it is known not to be one."""
        if not self._redactor.active:
            fields[field] = piece
            self._host.show(kind, self._run, fields)
            return
        place = (kind, field, *fields.items())
        stream = self._pieces.get(place)
        if stream is None:
            self._show_held()  # another text begins: what was held back of the one before belongs before it
            stream = self._pieces[place] = self._redactor.stream()
        shown = stream.feed(piece)
        if shown:
            self._show(kind, **fields, **{field: shown})

    def _begin_anew(self, reason: str) -> None:
        """What was shown of a reply does not count."""
        self._pieces.clear()
        self._show(events.AttemptReset, reason=reason)

    def _show_held(self) -> None:
        if not self._pieces:
            return
        pieces, self._pieces = self._pieces, {}
        for (kind, field, *fields), stream in pieces.items():
            if held := stream.end():
                self._show(kind, **dict(fields), **{field: held})

    def _show(self, kind: type[events.LiveEvent], **fields: Any) -> None:  # noqa: ANN401
        self._host.show(kind, self._run, fields)


def _as_exception(error: BaseException) -> Exception:
    return error if isinstance(error, Exception) else RuntimeError(f"{type(error).__name__}: {error}")


_decision_decoder: Final = msgspec.json.Decoder(list[ModelDecision])


@dataclass(frozen=True, slots=True)
class _HookDecision:
    """What was decided about one question; nothing, where hooks let it pass."""

    target: str
    content: str
    decided: ModelDecision | None

    def holds(self, kind: _Kind, content: str) -> bool:
        if self.target != f"hook.{kind}":
            return False
        return self.content == content or (kind == "turn" and isinstance(self.decided, Deny))


class ModelHooks:
    """Puts questions to the hooks of one run. `keep` makes records durable."""

    def __init__(self, performer: Performer, hooked: HookRunner, keep: Keep) -> None:
        self._performer = performer
        self._hooked = hooked
        self._keep = keep
        self._asks = hooked.has("before_model")
        self.judges = hooked.has("after_model")
        """Whether anybody has a say about replies."""
        self._known: dict[str, list[_HookDecision]] = {}
        """What was decided, by the effect that is under way."""

    def idle(self, key: str) -> bool:
        """Whether nobody has a say about questions and replies, and nothing that they said is recorded below `key`."""
        return not self._asks and not self.judges and key not in self._performer.past.order

    def forget(self, key: str) -> None:
        """The effect has its outcome: what was decided about it is not needed any more."""
        self._known.pop(key, None)

    async def settled(self, key: str, content: str) -> bool:
        """Whether it is recorded that the model is not to be asked in the step `key`, with this content."""
        found = _find_decision(await self._recall(key), "turn", content)
        return found is not None and found.decided is not None

    async def before(self, key: str, asked: HookRequest, content: str) -> ModelReply | None:
        """What a hook says in place of the model; None: it is to be asked. A denial is a `ModelError`."""
        known = await self._recall(key)
        found = _find_decision(known, asked.kind, content)
        if found is None and self._asks:
            said = await self._hooked.before_model(asked)
            found = await self._note(key, known, asked.kind, content, said)
        match None if found is None else found.decided:
            case Deny(reason):
                raise ModelError(reason, kind="denied")
            case Answer(value):
                return ModelReply((Text(str(value)),), "stop", Usage(), "hook", cost=0.0)
            case None:
                return None

    async def before_compaction(self, key: str, thread: Thread, tokens: int) -> bool:
        """Whether the context of the step `key` may be shortened."""
        # Of how many tokens it is, is not known as well after a restart.
        content = digest_of_bytes("compaction", thread.chain)
        known = await self._recall(key)
        found = _find_decision(known, "compaction", content)
        if found is None and self._hooked.has("before_compaction"):
            said = await self._hooked.before_compaction(len(thread), tokens)
            found = await self._note(key, known, "compaction", content, said)
        return found is None or found.decided is None

    async def after(self, asked: HookRequest, reply: ModelReply) -> ModelReply:
        """A reply that was paid for, as hooks let it be: itself, or what one says in its place.

        A denial is a `ModelError`.
        """
        if not self.judges:
            return reply
        shown = self._cleaned(reply)
        told = await self._hooked.after_model(asked, shown)
        if isinstance(told, Deny):
            denied = ModelError(told.reason, kind="denied")
            denied.attempts = reply.attempts
            raise denied
        return reply if told is shown else told

    def _cleaned(self, reply: ModelReply) -> ModelReply:
        """A reply without secrets."""
        redactor = self._performer.redactor
        if not redactor.active:
            return reply
        return decode_reply(redactor.bytes(encode(reply), numbers=False))

    async def _recall(self, key: str) -> list[_HookDecision]:
        known = self._known.get(key)
        if known is not None:
            return known
        known = list[_HookDecision]()
        for found in self._performer.below(key, HOOK_SUFFIX):
            if isinstance(found.outcome, Done):
                decided = _decision_decoder.decode(await read_value(self._performer, found.outcome))
                ask = found.ask()
                known.append(_HookDecision(ask.target, ask.content, decided[0] if decided else None))
        self._known[key] = known
        return known

    async def _note(
        self, key: str, known: list[_HookDecision], kind: _Kind, content: str, said: ModelDecision | None
    ) -> _HookDecision:
        """Make what was decided durable."""
        place = f"{key}{HOOK_SUFFIX}-{len(known) + 1}"
        ask = EffectRequest("sample", f"hook.{kind}", content)
        decided, record = await hook_record(self._performer, place, ask, [] if said is None else [said])
        crash_point("hook.before_decision")
        await self._keep([record])
        crash_point("hook.after_decision")
        # What takes the place of a decision that can't be recorded is a denial, and no other kind is given here.
        found = next((each for each in decided if isinstance(each, Deny | Answer)), None)
        known.append(_HookDecision(ask.target, content, found))
        return known[-1]


def _find_decision(known: list[_HookDecision], kind: _Kind, content: str) -> _HookDecision | None:
    return next((each for each in reversed(known) if each.holds(kind, content)), None)


COMPLETE = "complete"
"""What such a call is called in the journal."""


class CompletionRequest:
    """One question to a model, and what its answer stands for."""

    def __init__(self, model: Model | str, prompt: str, output: Any = None, instructions: str = "") -> None:  # noqa: ANN401
        if not isinstance(model, (str, Model)):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers may be untyped
            raise InvalidArgument("model", model, "a model, or a name such as 'provider:model'")
        self.model = named(model)
        self.output = None if output is None else Output(output)
        self._prompt = check_string("prompt", prompt)
        if not prompt.strip():
            raise InvalidArgument("prompt", prompt, "a question")
        self.request = ModelRequest(
            messages=(UserMessage("u1", (Text(prompt),)),),
            instructions=check_string("instructions", instructions),
            output=None if self.output is None else self.output.spec,
        )

    @property
    def body(self) -> dict[str, Any]:
        """What is asked, as the journal compares it."""
        spec = self.request.output
        asked = None if spec is None else {"name": spec.name, "schema": spec.schema}
        return {"prompt": self._prompt, "instructions": self.request.instructions, "output": asked}

    def value(self, reply: ModelReply) -> Any:  # noqa: ANN401  text, or a value of the type that was asked for
        """What a reply stands for."""
        text = "".join(part.text for part in reply.parts if isinstance(part, Text))
        return text if self.output is None else self.output.load(text)

    def complaint(self, reply: ModelReply) -> str | None:
        """Why a reply is not what was asked for."""
        text = "".join(part.text for part in reply.parts if isinstance(part, Text))
        return None if self.output is None else self.output.complaint(text)


class DirectCaller:
    """Asks questions in the name of one run."""

    def __init__(self, performer: Performer, prices: Mapping[str, Price], hooked: HookRunner) -> None:
        self._performer = performer
        self._prices = prices
        self._hooked = hooked
        self._consulting = ModelHooks(performer, hooked, performer.record)

    async def answer(self, place: EffectScope, key: str, question: CompletionRequest) -> Any:  # noqa: ANN401
        """The value of the reply; the recorded one after it was given once."""
        performer = self._performer
        await performer.admit()
        envelope = performer.envelope(key, "direct", COMPLETE, question.model.name, question.body)
        ask = envelope.ask()
        with performer.occupied(place):
            decision = performer.decide(key, ask, Repeat.FREE)
            performer.check_order(place, key)
            if isinstance(decision, Recorded):
                if isinstance(decision.outcome, Cancelled):
                    await performer.until_cancelled()
                return await self._value(question, decision.outcome)
            if not ask.body:  # too long to stand in the record
                ask = msgspec.structs.replace(ask, blob=performer.keep_soon(canonical(envelope.command.body)))
            tried: list[Attempt] = []
            try:
                outcome = await self._asked(key, ask, question, tried)
            except asyncio.CancelledError:
                cancelled = Cancelled(at=performer.now(), key=key, ask=ask, detail=_attempts_detail(tried))
                wasted = paid_tries(tried)
                if wasted is None:
                    performer.abandon([cancelled])
                else:
                    wasted = self._priced(wasted, question.model.name)
                    spend = unused_reply_spend(wasted.usage, wasted.cost)
                    performer.abandon([paid_for(wasted, cancelled), cancelled], spend)
                raise
            finally:
                self._consulting.forget(key)
            return await self._value(question, outcome)

    async def _asked(self, key: str, ask: EffectRequest, question: CompletionRequest, tried: list[Attempt]) -> Outcome:
        begun = asyncio.get_running_loop().time()
        crash_point("model.before_call")
        spend = None
        paid: list[ModelReply] = []
        try:
            request = msgspec.structs.replace(question.request, ledger=tried)
            reply = await self._replied(key, ask, question.model, request, paid)
            body = self._performer.redactor.bytes(encode(reply), numbers=False)
        except ModelError as error:
            info = ErrorInfo(error.kind[:100], self._performer.redactor.text(error.message))
            ms = round((asyncio.get_running_loop().time() - begun) * 1000)
            detail = _attempts_detail(error.attempts)
            if not paid and (wasted := paid_tries(error.attempts)) is not None:
                paid.append(self._priced(wasted, question.model.name))
            outcome: Outcome = Failed(at=self._performer.now(), key=key, ask=ask, error=info, ms=ms, detail=detail)
        except Exception as error:  # noqa: BLE001  a model of somebody's own may raise anything
            outcome = self._performer.failed(key, ask, error, begun)
        else:
            crash_point("model.after_reply")
            outcome = await self._performer.succeeded(key, ask, body, begun)
            spend = model_call_spend(reply.usage, reply.cost) if isinstance(outcome, Done) else None
        unused: list[Record] = []
        if isinstance(outcome, Failed) and paid:  # it must not be used, and what it took counts nevertheless
            unused.append(paid_for(paid[0], outcome))
            spend = unused_reply_spend(paid[0].usage, paid[0].cost)
        _, durable = self._performer.submit([*unused, outcome], spend=spend)
        await self._performer.durable(durable)
        return outcome

    async def _replied(
        self, key: str, ask: EffectRequest, model: Model, request: ModelRequest, paid: list[ModelReply]
    ) -> ModelReply:
        """What the model says, or a hook in its place. What the model says is `paid` for, whatever hooks make of it."""
        asked = HookRequest(self._hooked.turn, request, "direct")
        given = await self._consulting.before(key, asked, ask.content)
        if given is not None:
            return await self._consulting.after(asked, given)
        reply = self._priced(await respond(model, request), model.name)
        paid.append(reply)
        return await self._consulting.after(asked, reply)

    def _priced(self, reply: ModelReply, asked: str) -> ModelReply:
        told = reply if reply.model else msgspec.structs.replace(reply, model=asked)
        if told.cost is not None or (not told.raw_usage and not told.usage.total):
            return told
        return msgspec.structs.replace(told, cost=reply_cost(told, asked, self._prices))

    async def _value(self, question: CompletionRequest, outcome: Outcome) -> Any:  # noqa: ANN401
        match outcome:
            case Done():
                body = bytes(outcome.value) if outcome.blob is None else await self._performer.large(outcome.blob)
                reply = decode_reply(body)
            case Failed(error=error):
                raise ModelError(error.message, kind=error.kind)
            case _:
                raise EffectFailed(outcome.key, "interrupted", "the model call was interrupted")
        complaint = question.complaint(reply)
        if complaint is not None:
            raise ModelError(complaint, kind="invalid_output")
        return question.value(reply)


def _attempts_detail(tried: Sequence[Attempt]) -> msgspec.Raw:
    """The tries of a call that has no reply, as a record holds them."""
    return msgspec.Raw(encode(tried)) if tried else ABSENT


async def _recorded_agent(context: RuntimeContext, journal: str) -> str | None:
    """For whom a question counts that was asked before."""
    try:
        return (await context.store.journal(journal)).agent
    except JournalMissing:
        return None


async def complete_once(context: RuntimeContext, question: CompletionRequest, key: str | None) -> Any:  # noqa: ANN401
    """Ask outside of any process, in a journal of its own; the same `key` is the same question, or a `KeyConflict`."""
    journal = f"direct/{chance.token_hex(12) if key is None else check_id('key', key)}"

    async def body(boundary: Boundary) -> None:
        performer = boundary.performer
        place = performer.place()
        told.append(await DirectCaller(performer, context.prices, hooked).answer(place, place.next(COMPLETE), question))
        others.extend(performer.drifts)

    told: list[Any] = []
    others: list[Drift] = []
    """What was asked under this key before, where it was something else."""
    # Asked by a tool, it is a question of the turn around that, and counts for its agent.
    clean = context.store.redactor.text
    hooked = current_hooks.get() or HookRunner((), HookTurn("", "", ""), guards=context.hooks, clean=clean)
    agent = await _recorded_agent(context, journal) or hooked.turn.agent or question.model.name
    try:
        await drive(context.store, journal, body, run=RUN, agent=agent, lease_ms=context.lease_ms)
    except (JournalConflict, ReplayMismatch) as error:
        raise KeyConflict(journal, key or "") from error
    except RunFailed as error:
        if isinstance(error.__cause__, ModelError):
            raise error.__cause__ from None
        raise ModelError(error.message, kind=error.kind) from error
    if not told:  # it was answered before
        try:
            await replay(context.store, journal, body, run=RUN)
        except (RunFailed, ReplayMismatch) as error:
            raise KeyConflict(journal, key or "") from error
    if others:
        raise KeyConflict(journal, key or "")
    return told[0]
