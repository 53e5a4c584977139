"""Model calls: those of a turn (`ModelCaller`) and direct completions (`DirectCaller`), with the hooks around them.

A call is answered from the journal if its outcome is recorded. Otherwise the request goes to the model, and its reply
is streamed.
"""

from __future__ import annotations

import asyncio
import secrets as chance
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from operator import is_not
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast

import msgspec

from holdfast import errors, events, messages, names
from holdfast.agent import Agent, Output, prepare
from holdfast.crashpoints import crash_point
from holdfast.effects.canonical import bounded, canonical, digest_of_bytes, plain, printable
from holdfast.effects.drive import Boundary, drive, replay
from holdfast.effects.replay import Drift, Repeat, UseRecorded
from holdfast.models import Model
from holdfast.models import model as named
from holdfast.models.contract import respond, stream_batches
from holdfast.models.prices import Price, context_window, reply_cost
from holdfast.policy import limits
from holdfast.policy.hooks import Answer, Deny, HookRequest, ModelDecision, RequestKind, TurnContext
from holdfast.processes.keys import FIRST_RUN
from holdfast.records import ABSENT, Blob, Cancelled, Cause, Done, EffectRequest, ErrorInfo, Failed, Outcome, Record
from holdfast.runtime import authorization, compaction, hooks
from holdfast.runtime.context import RuntimeContext, is_control_flow
from holdfast.secrets.logs import safe_cause
from holdfast.store.spending import Spend, model_spend
from holdfast.turns import environment, machine, results
from holdfast.turns.compaction.plan import MARK as COMPACTED
from holdfast.turns.state import CallModel, Compacted, ModelCallFailed, Replied, Thread, UsedUp

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence

    from holdfast.effects.performer import Performer
    from holdfast.effects.scopes import EffectScope
    from holdfast.runtime.session_driver import SessionDrive
    from holdfast.secrets.redactor import StreamRedactor
    from holdfast.turns.compaction.budget import ContextBudget
    from holdfast.turns.conversation import OpenTurn

    BudgetCheck = Callable[[limits.Consumption, limits.Consumption], Awaitable[limits.OutOf | None]]
    _HookKind: TypeAlias = RequestKind | Literal["compaction"]


@dataclass(repr=False, eq=False, slots=True)
class PartialReply:
    """A reply that is being streamed, with the text so far."""

    key: str
    ask: EffectRequest
    attempts: list[messages.Attempt] | None
    """Attempts that have ended."""
    paid: int = 0
    """Number of attempts, from the first, with usage that is already counted."""
    words: list[str] = field(default_factory=list[str])
    usage: messages.Usage | None = None
    """Usage that the provider has reported so far."""
    whole: messages.ModelReply | None = None
    """The complete reply while `after_model` hooks judge it: paid for, but its text must not be used yet."""

    @property
    def answer(self) -> str:
        """Id of the message made of this reply if the turn is stopped now."""
        return self.key.replace("/", ".").removesuffix(".model")

    def reply(self, model: str) -> messages.ModelReply | None:
        """The text so far as a reply, without text while hooks judge it; None if nothing has arrived."""
        reply, attempts = self.whole, tuple(self.attempts or ())
        if reply is not None:
            attempts = max(attempts, reply.attempts, key=len)  # ours include those before the compaction
            return msgspec.structs.replace(reply, parts=(), finish="cancelled", attempts=attempts)
        if not any(self.words):
            return None
        # Models that keep a ledger have the running attempt in it. For others, use the last reported usage.
        counted = messages.total_usage(attempts[self.paid :]), self.usage or messages.Usage()
        usage = max(counted, key=lambda usage: usage.total)
        return messages.ModelReply((messages.Text("".join(self.words)),), "cancelled", usage, model, attempts=attempts)

    @property
    def wasted(self) -> messages.ModelReply | None:
        """Usage of attempts that brought no text; None if they used nothing."""
        unpaid = (self.attempts or [])[self.paid :]
        return None if self.whole is not None or any(self.words) else results.paid_tries(unpaid)

    def outcome(self, model: str, now: int) -> Done | Cancelled:
        """The record of this reply: the text so far with all attempts, or the attempts alone."""
        reply = self.reply(model)
        if reply is None:
            tried = msgspec.Raw(messages.encode(self.attempts or ()))
            return Cancelled(at=now, key=self.key, ask=self.ask, detail=tried)
        return Done(at=now, key=self.key, ask=self.ask, value=msgspec.Raw(messages.encode(reply)))


class _ContextOverflow(Exception):
    """The provider refused the request as too long. If a `reply` says so, it is paid for."""

    def __init__(
        self, reply: messages.ModelReply | None = None, error: errors.ModelError | None = None, begun: float = 0.0
    ) -> None:
        super().__init__()
        self.reply = reply
        self.error = error
        self.begun = begun
        self.tries: tuple[messages.Attempt, ...] = () if (source := reply or error) is None else source.attempts


class ModelCaller:
    """Calls the model of one turn."""

    def __init__(
        self, host: SessionDrive, agent: Agent, turn: OpenTurn, performer: Performer, hook_runner: hooks.HookRunner
    ) -> None:
        self._host = host
        self.agent = agent
        self._prepared = prepare(agent)
        self._run = turn.run
        self._performer = performer
        self._hook_runner = hook_runner
        self._model_hooks = ModelHooks(performer, hook_runner)
        self.compactor: compaction.Compactor | None = None
        """Made when it is needed: most conversations fit."""
        self._turn = turn
        self._redactor = performer.redactor
        self._held_streams: dict[Any, StreamRedactor] = {}
        self._tools: tuple[tuple[messages.ToolSpec, ...], object, tuple[messages.ToolSpec, ...]] | None = None
        """Tool specifications, the secrets known when they were redacted, and the redacted ones."""
        self._loop = asyncio.get_running_loop()
        self._files: dict[str, bytes] = {}
        self._searched = 0
        self._partial: PartialReply | None = None
        self._earlier: tuple[messages.Attempt, ...] = ()
        """Attempts of this call before its context was compacted."""
        self._unpaid: tuple[messages.Attempt, ...] = ()
        """Those of them with uncounted usage."""
        self._environment_id = turn.environments.get(agent.name)
        """The environment of the agent that was recorded last."""
        self._faithful = getattr(agent.model, "faithful", False)
        """Replies of this model decode to equal values: no second decoding is needed."""

    @property
    def unfinished(self) -> tuple[str, messages.ModelReply | None]:
        """The unfinished reply as it would be recorded now, with the id of its message; without text only its usage."""
        found = self._partial
        reply = None if found is None else found.reply(self.agent.model.name)
        return ("", self._wasted) if found is None or reply is None else (found.answer, reply)

    def left_over(self, now: int) -> Iterator[Record]:
        """Records of an unfinished reply and summary when the turn is stopped."""
        if self.compactor is not None:
            yield from self.compactor.left_over(now)
        found = self._partial
        if found is not None and (any(found.words) or found.whole or found.attempts):
            outcome = found.outcome(self.agent.model.name, now)
            if isinstance(outcome, Cancelled) and (wasted := self._wasted) is not None:
                yield results.paid_for(wasted, outcome)
            yield outcome

    @property
    def _wasted(self) -> messages.ModelReply | None:
        """Usage of the attempts of the current call if they brought no text."""
        found = None if self._partial is None else self._partial.wasted
        return None if found is None else self._with_cost(found)

    async def respond(
        self, effect: CallModel, key: str, check_budget: BudgetCheck
    ) -> Replied | ModelCallFailed | UsedUp:
        """Get the next reply of the model. `check_budget` finds a budget that compaction has used up."""
        performer, thread = self._performer, effect.thread
        self._earlier = self._unpaid = ()
        performer.below(key, environment.MARK)  # recorded by an interrupted call
        if compacted := performer.below(key, COMPACTED):
            thread = self._get_compactor().apply_recorded(compacted, thread)
        known = performer.recorded(key)
        if known is None or known.outcome is None:
            await self._host.boundary()
            # A strict replay asks for no summary, and a call that a hook answers needs no room.
            room = None if performer.strict else self._room
            if room is not None and key in performer.past.order:
                decided = await self._model_hooks.is_decided(key, self._effect_request(thread).content)
                room = None if decided else room
            if room is not None and self._get_compactor().exceeds(thread, room):
                thread = await self._get_compactor().make_fit(key, thread, room)
            if (out := await self._find_exhausted_budget(check_budget)) is not None:
                return out
        ask = self._effect_request(thread)
        decision = performer.decide(key, ask, Repeat.FREE)
        if isinstance(decision, UseRecorded):
            return self._with_context(self._recorded_response(key, decision.outcome), effect.thread, thread)
        try:
            response = await self._call_model(effect, thread, key, ask, again=True)
        except _ContextOverflow as overflow:
            self._reset_shown("context_overflow")
            shorter = await self._get_compactor().compact(key, thread, self._room, "overflow", overflow.reply)
            if shorter is None and overflow.error is not None:
                failed = failed_call(self._performer, key, ask, overflow.error, overflow.begun, self._earlier)
                response = await self._record_failure(failed, self._paid_attempts(overflow.error))
            else:
                if (out := await self._find_exhausted_budget(check_budget)) is not None:
                    return out
                thread = thread if shorter is None else shorter
                self._earlier = overflow.tries
                self._unpaid = () if overflow.reply is not None else overflow.tries
                response = await self._call_model(effect, thread, key, self._effect_request(thread), again=False)
        self._model_hooks.forget(key)
        return self._with_context(response, effect.thread, thread)

    async def compact(self, effect: CallModel, key: str) -> Compacted | ModelCallFailed:
        """Compact the context at a user's request. If the summary fails, the context is unchanged."""
        compactor, performer = self._get_compactor(), self._performer
        self._earlier = self._unpaid = ()
        known = performer.recorded(key)
        if known is not None and known.outcome is not None:
            performer.decide(key, self._effect_request(effect.thread), Repeat.FREE)
            failed = self._recorded_response(key, known.outcome)
            return failed if isinstance(failed, ModelCallFailed) else Compacted(effect.thread)
        thread = compactor.apply_recorded(performer.below(key, COMPACTED), effect.thread)
        if thread is effect.thread and not performer.strict:
            await self._host.boundary()
            begun = self._loop.time()
            try:
                thread = await compactor.compact(key, thread, self._room, "asked") or thread
            except errors.ModelError as error:
                failure = failed_call(performer, key, self._effect_request(thread), error, begun)
                return await self._record_failure(failure, compactor.failed_summary, error)
        return Compacted(thread, *compactor.take_usage())

    def _recorded_response(self, key: str, outcome: Outcome) -> Replied | ModelCallFailed:
        match outcome:
            case Done():
                return Replied(messages.decode_reply(bytes(outcome.value)))
            case Failed():
                found = [found.outcome for found in self._performer.below(key, results.MARK)]
                paid = [messages.decode_reply(bytes(each.value)) for each in found if isinstance(each, Done)]
                return _call_failed(outcome, paid[0] if paid else None)
            case _:
                return ModelCallFailed("interrupted", "the model call was interrupted")

    def _get_compactor(self) -> compaction.Compactor:
        if self.compactor is None:
            self.compactor = compaction.Compactor(self._host, self.agent, self._turn, self._model_hooks)
        return self.compactor

    async def _find_exhausted_budget(self, check_budget: BudgetCheck) -> UsedUp | None:
        compactor = self.compactor
        if compactor is None or not compactor.has_usage:
            return None
        usage, cost = compactor.usage, compactor.cost
        within = limits.Consumption(0, usage.total, cost or 0.0, unpriced=cost is None)
        if (out := await check_budget(within, limits.ONE_STEP)) is None:
            return None
        return UsedUp(out, *compactor.take_usage())

    @cached_property
    def _room(self) -> ContextBudget | None:
        """The room of a request; None if the window of the model is unknown, or compaction is disabled."""
        asked = self.agent.compaction
        if not asked.enabled:
            return None
        # In a fallback list the smallest window counts.
        found = [asked.window] if asked.window else map(context_window, self.agent.model.name.split(" | "))
        window = min((window for window in found if window is not None), default=None)
        return None if window is None else asked.room(window, self._prepared.fixed_tokens)

    def _effect_request(self, thread: Thread) -> EffectRequest:
        content, performer = digest_of_bytes("request", self._prepared.prefix.encode() + thread.chain), self._performer
        step = performer.iteration or 0
        return EffectRequest("model_call", self.agent.name, content, cause=performer.cause, iteration=step)

    def _with_context(
        self, response: Replied | ModelCallFailed, whole: Thread, seen: Thread
    ) -> Replied | ModelCallFailed:
        """The response, with the compacted thread that the model saw and the usage of the compaction."""
        if seen is whole:
            return response
        usage, cost = self._get_compactor().take_usage()
        if isinstance(response, ModelCallFailed):
            cost = machine.added(response.cost, cost)
            return ModelCallFailed(response.code, response.message, response.usage + usage, cost)
        return Replied(response.reply, seen, usage, cost)

    async def _call_model(
        self, effect: CallModel, thread: Thread, key: str, ask: EffectRequest, *, again: bool
    ) -> Replied | ModelCallFailed:
        """Call the model and record the outcome. With `again`, a context overflow is raised instead of recorded."""
        for digest in self._missing_attachments(thread, anew=thread is not effect.thread):
            self._files[digest] = await self._performer.large(Blob(digest, 0))
        if self._environment_id != self._prepared.environment_id:
            self._record_environment(key)
        request = self._build_request(effect, thread)
        begun = self._loop.time()
        crash_point("model.before_call")
        try:
            partial = PartialReply(key, ask, request.ledger, len(self._earlier) - len(self._unpaid))
            with self._performer.spanning(key):
                if self._model_hooks.is_idle(key):
                    answer = self._with_cost(await self._stream(partial, request))
                else:
                    answer = await self._call_with_hooks(partial, request)
            if self._earlier:
                answer = msgspec.structs.replace(answer, attempts=(*self._earlier, *answer.attempts))
                if (wasted := results.paid_tries(self._unpaid)) is not None:
                    usage, cost = answer.usage + wasted.usage, machine.added(answer.cost, self._with_cost(wasted).cost)
                    answer = msgspec.structs.replace(answer, usage=usage, cost=cost)
            said = messages.encode(answer)
            body = self._redactor.bytes(said, numbers=False) if self._redactor.active else said
            # A custom model may have put anything into the reply.
            reply = answer if self._faithful and body is said else messages.decode_reply(body)
        except errors.ModelError as error:
            if again and error.kind == "context_overflow":
                self._partial = None
                raise _ContextOverflow(error=error, begun=begun) from error
            failed = failed_call(self._performer, key, ask, error, begun, self._earlier)
            paid, said_by = self._paid_attempts(error), error if self._hook_runner.has("on_error") else None
        except BaseException as error:
            if is_control_flow(error):
                raise
            # No local variable keeps the error: with its traceback that would be a reference cycle.
            raised = error if isinstance(error, Exception) else RuntimeError(f"{type(error).__name__}: {error}")
            failed, paid = self._performer.failed(key, ask, raised, begun), None
            said_by = raised if self._hook_runner.has("on_error") else None
            del raised
        else:
            if again and reply.finish == "context_overflow":
                raise _ContextOverflow(reply)
            crash_point("model.after_reply")
            done = self._performer.done_with(key, ask, body, begun)
            outcome = done or await self._performer.succeeded(key, ask, body, begun)
            if not isinstance(outcome, Failed):
                if self.compactor is not None:
                    self.compactor.note_reported_tokens(thread, reply)
                self._performer.submit([outcome], patient=True, spend=model_spend(reply.usage, reply.cost))
                return Replied(reply)
            return await self._record_failure(outcome, reply)  # it is too large for the store
        try:
            return await self._record_failure(failed, paid, said_by)
        finally:
            said_by = None

    def _paid_attempts(self, error: errors.ModelError) -> messages.ModelReply | None:
        """Usage of a call that ended with an error."""
        wasted = results.paid_tries((*self._unpaid, *error.attempts))
        if wasted is None and error.usage is not None and error.usage.total and not error.attempts:
            wasted = messages.ModelReply((), "cancelled", error.usage, self.agent.model.name)
        return None if wasted is None else self._with_cost(wasted)

    def _record_environment(self, key: str) -> None:
        """Record instructions, tools and settings that are new or have changed since the last record."""
        prepared, performer = self._prepared, self._performer
        body = prepared.environment_body
        if self._redactor.active:
            body = self._redactor.bytes(body, numbers=False)
        place = f"{key}{environment.MARK}{1 + len(performer.below(key, environment.MARK))}"
        self._environment_id = id = prepared.environment_id
        prefix, step = msgspec.Raw(msgspec.json.encode({"prefix": prepared.prefix})), performer.iteration or 0
        ask = EffectRequest("sync_environment", self.agent.name, id, prefix, cause=Cause("model", key), iteration=step)
        small = len(body) <= environment.INLINE
        value, blob = (msgspec.Raw(body), None) if small else (ABSENT, performer.keep_soon(body))
        performer.submit([Done(at=performer.now(), key=place, ask=ask, value=value, blob=blob)], patient=True)

    def _build_request(self, effect: CallModel, thread: Thread) -> messages.ModelRequest:
        request = self._prepared.request(thread, effect.position, self._files)
        if self._earlier and request.ledger is not None:
            request.ledger.extend(self._earlier)
        if self._redactor.active:
            instructions = self._redactor.text(request.instructions)
            tools = self._redacted_tools(request.tools)
            request = msgspec.structs.replace(request, instructions=instructions, tools=tools)
        self._show(events.ContextBuilt, messages=len(request.messages))
        self._show(events.ModelStarted, model=self.agent.model.name, step=effect.position + 1)
        return request

    def _redacted_tools(self, tools: tuple[messages.ToolSpec, ...]) -> tuple[messages.ToolSpec, ...]:
        """The tool specifications without secrets; computed again only when a new secret is known."""
        seen = (tools, self._redactor.finder)
        if self._tools is None or self._tools[0] is not tools or self._tools[1] is not seen[1]:
            bodies = [(spec, msgspec.json.encode(spec)) for spec in tools]
            cleaned = [(spec, body, self._redactor.bytes(body, numbers=False)) for spec, body in bodies]
            clean = tuple(
                spec if body is kept else msgspec.json.decode(kept, type=messages.ToolSpec)
                for spec, body, kept in cleaned
            )
            self._tools = (*seen, clean if any(map(is_not, clean, tools)) else tools)
        return self._tools[2]

    async def _record_failure(
        self, failed: Failed, paid: messages.ModelReply | None = None, raised: Exception | None = None
    ) -> ModelCallFailed:
        """Record that the call failed, and the cost of a reply that is rejected; tell `on_error` hooks what raised."""
        found, self._partial = self._partial, None
        if found is not None and found.whole is not None:
            paid = found.whole
        records, spend = failure_records(failed, paid)
        self._performer.submit(records, spend=spend)
        if self._hook_runner.has("on_error"):
            known = errors.EffectFailed(failed.key, failed.error.kind, failed.error.message)
            await self._hook_runner.observe("on_error", known if raised is None else safe_cause(raised, self._redactor))
        return _call_failed(failed, paid)

    async def _call_with_hooks(self, partial: PartialReply, request: messages.ModelRequest) -> messages.ModelReply:
        """The reply of the model, or of a hook in its place; `after_model` hooks may change it."""
        asked = HookRequest(self._hook_runner.turn, request)
        given = await self._model_hooks.before(partial.key, asked, partial.ask.content)
        if given is not None:
            return await self._model_hooks.after(asked, given)
        reply = self._with_cost(await self._stream(partial, request))
        if not self._model_hooks.judges_replies:
            return reply
        partial.words.clear()
        partial.whole = reply
        self._partial = partial  # it is paid for: a stop must record it
        try:
            judged = await self._model_hooks.after(asked, reply)
        except errors.ModelError:
            self._reset_shown("hook")
            raise
        if judged is not reply:
            self._reset_shown("hook")
        self._partial = None
        return judged

    def _with_cost(self, reply: messages.ModelReply) -> messages.ModelReply:
        if reply.cost is not None:
            return reply
        asked = reply.attempts[-1].model if reply.attempts else self.agent.model.name
        cost = self._host.price(reply, asked)
        return reply if cost is None else msgspec.structs.replace(reply, cost=cost)

    def _missing_attachments(self, thread: Thread, *, anew: bool) -> list[str]:
        """Digests of attachments in the thread whose bytes are not read yet.

        Only new messages are searched; after a compaction, the new thread is searched `anew`.
        """
        before = self._files
        if anew:
            self._searched, self._files = 0, {}
        added = thread.tail(len(thread) - self._searched)
        self._searched = len(thread)
        found = [digest for message in added for digest in messages.attachment_digests(message)]
        self._files.update({digest: before[digest] for digest in found if digest in before})
        return [digest for digest in found if digest not in self._files]

    async def _stream(self, partial: PartialReply, request: messages.ModelRequest) -> messages.ModelReply:
        model = self.agent.model
        self._partial = partial
        stream = stream_batches(model, request)
        try:
            async for batch in stream:
                for event in batch:
                    kind = type(event)
                    if kind is messages.StreamEnd:
                        self._show_held_back()
                        self._partial = None
                        reply = cast("messages.StreamEnd", event).reply
                        return reply if reply.model else msgspec.structs.replace(reply, model=model.name)
                    if kind is messages.StreamUsage:
                        partial.usage = cast("messages.StreamUsage", event).usage
                    else:
                        self._show_event(event, partial.words)
        finally:
            await stream.aclose()
        raise errors.StreamCut(model.name)

    def _show_event(self, event: messages.StreamEvent, said: list[str]) -> None:
        """Show what a stream event tells; its start and the end of a call tell nothing."""
        if type(event) is messages.TextChunk:
            said.append(event.text)
            self._show_delta(events.TextDelta, "text", event.text)
            crash_point("model.mid_stream")
        elif type(event) is messages.CallChunk:
            self._show_delta(events.ToolCallDelta, "arguments", event.arguments, call_id=event.id)
        elif type(event) is messages.CallStart:
            self._host.show(events.ToolCallAnnounced, self._run, {"call_id": event.id, "tool": event.name})
        elif type(event) is messages.ReasoningChunk:
            self._show_delta(events.ReasoningDelta, "text", event.text)
        elif type(event) is messages.StreamNote:
            self._show(events.ModelNote, what=event.kind, detail=event.detail)
        elif type(event) is messages.StreamReset:
            said.clear()
            self._held_streams.clear()
            self._show(events.AttemptReset, reason=event.reason)

    def _show_delta(self, kind: type[events.LiveEvent], name: str, piece: str, **fields: str) -> None:
        """Show a part of a text. A possible beginning of a secret is held back until the next part rules it out."""
        if not self._redactor.active:
            fields[name] = piece
            self._host.show(kind, self._run, fields)
            return
        place = (kind, name, *fields.items())
        stream = self._held_streams.get(place)
        if stream is None:
            self._show_held_back()  # another text begins: the rest of the one before comes first
            stream = self._held_streams[place] = self._redactor.stream()
        shown = stream.feed(piece)
        if shown:
            self._show(kind, **fields, **{name: shown})

    def _reset_shown(self, reason: str) -> None:
        self._held_streams.clear()
        self._show(events.AttemptReset, reason=reason)

    def _show_held_back(self) -> None:
        if not self._held_streams:
            return
        pieces, self._held_streams = self._held_streams, {}
        for (kind, name, *fields), stream in pieces.items():
            if held := stream.end():
                self._show(kind, **dict(fields), **{name: held})

    def _show(self, kind: type[events.LiveEvent], **fields: Any) -> None:
        self._host.show(kind, self._run, fields)


def _call_failed(failed: Failed, paid: messages.ModelReply | None) -> ModelCallFailed:
    usage, cost = (messages.Usage(), 0.0) if paid is None else (paid.usage, paid.cost)
    return ModelCallFailed(failed.error.kind, failed.error.message, usage, cost)


_decision_decoder: Final = msgspec.json.Decoder(list[ModelDecision])


@dataclass(frozen=True, slots=True)
class _HookDecision:
    """A recorded decision of hooks about one request; `decided` is None if they let it pass."""

    target: str
    content: str
    decided: ModelDecision | None


class ModelHooks:
    """Asks the hooks of one run about model requests, replies and compactions, and records their decisions."""

    def __init__(self, performer: Performer, hook_runner: hooks.HookRunner) -> None:
        self.performer = performer
        self.hook_runner = hook_runner
        self._judges_requests = hook_runner.has("before_model")
        self.judges_replies = hook_runner.has("after_model")
        """A hook has `after_model`."""
        self._known: dict[str, list[_HookDecision]] = {}
        """Decisions by the key of the effect under way."""

    def is_idle(self, key: str) -> bool:
        """True if no hook watches this call, and no decision is recorded below `key`."""
        return not self._judges_requests and not self.judges_replies and key not in self.performer.past.order

    def forget(self, key: str) -> None:
        """Forget the decisions about an effect that has its outcome."""
        self._known.pop(key, None)

    async def is_decided(self, key: str, content: str) -> bool:
        """True if a recorded decision answers or denies the step `key` with this content."""
        found = _find_decision(await self._read_decisions(key), "turn", content)
        return found is not None and found.decided is not None

    async def before(self, key: str, asked: HookRequest, content: str) -> messages.ModelReply | None:
        """The reply of a hook in place of the model; None to ask the model. A denial raises `ModelError`."""
        known = await self._read_decisions(key)
        found = _find_decision(known, asked.kind, content)
        if found is None and self._judges_requests:
            said = await self.hook_runner.before_model(asked)
            found = await self._record_decision(key, known, asked.kind, content, said)
        match None if found is None else found.decided:
            case Deny(reason):
                raise errors.ModelError(reason, kind="denied")
            case Answer(value):
                return messages.ModelReply((messages.Text(str(value)),), "stop", messages.Usage(), "hook", cost=0.0)
            case None:
                return None

    async def before_compaction(self, key: str, thread: Thread, tokens: int) -> bool:
        """True if hooks let the context of the step `key` be compacted."""
        # The number of tokens is no part of the content: after a restart it is estimated anew.
        content = digest_of_bytes("compaction", thread.chain)
        known = await self._read_decisions(key)
        found = _find_decision(known, "compaction", content)
        if found is None and self.hook_runner.has("before_compaction"):
            said = await self.hook_runner.before_compaction(len(thread), tokens)
            found = await self._record_decision(key, known, "compaction", content, said)
        return found is None or found.decided is None

    async def after(self, asked: HookRequest, reply: messages.ModelReply) -> messages.ModelReply:
        """The reply after the `after_model` hooks: itself, or a replacement. A denial raises `ModelError`."""
        if not self.judges_replies:
            return reply
        redactor, shown = self.performer.redactor, reply
        if redactor.active:
            shown = messages.decode_reply(redactor.bytes(messages.encode(reply), numbers=False))
        judged = await self.hook_runner.after_model(asked, shown)
        if isinstance(judged, Deny):
            denied = errors.ModelError(judged.reason, kind="denied")
            denied.attempts = reply.attempts
            raise denied
        return reply if judged is shown else judged

    async def _read_decisions(self, key: str) -> list[_HookDecision]:
        if key not in self._known:
            known = list[_HookDecision]()
            for found in self.performer.below(key, authorization.HOOK_SUFFIX):
                if isinstance(found.outcome, Done):
                    decided = _decision_decoder.decode(await self.performer.read_value(found.outcome))
                    ask = found.ask()
                    known.append(_HookDecision(ask.target, ask.content, decided[0] if decided else None))
            self._known[key] = known
        return self._known[key]

    async def _record_decision(
        self, key: str, known: list[_HookDecision], kind: _HookKind, content: str, said: ModelDecision | None
    ) -> _HookDecision:
        place = f"{key}{authorization.HOOK_SUFFIX}-{len(known) + 1}"
        ask = EffectRequest("sample", f"hook.{kind}", content)
        decided, record = await authorization.hook_record(self.performer, place, ask, [] if said is None else [said])
        crash_point("hook.before_decision")
        await self.performer.record([record])
        crash_point("hook.after_decision")
        # A decision that can't be recorded was replaced by a denial.
        found = next((each for each in decided if isinstance(each, Deny | Answer)), None)
        known.append(_HookDecision(ask.target, content, found))
        return known[-1]


def _find_decision(known: list[_HookDecision], kind: _HookKind, content: str) -> _HookDecision | None:
    for each in reversed(known):
        same = each.content == content or (kind == "turn" and isinstance(each.decided, Deny))
        if same and each.target == f"hook.{kind}":
            return each
    return None


COMPLETE = "complete"
"""Name of the effect of a direct completion in the journal."""


class CompletionRequest:
    """One model request outside of any conversation, and the type of its answer."""

    def __init__(self, model: Model | str, prompt: str, output: Any = None, instructions: str = "") -> None:
        if not isinstance(model, (str, Model)):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers may be untyped
            raise errors.InvalidArgument("model", model, "a model, or a name such as 'provider:model'")
        self.model = named(model)
        self.output = None if output is None else Output(output)
        self._prompt = names.check_string("prompt", prompt)
        if not prompt.strip():
            raise errors.InvalidArgument("prompt", prompt, "a question")
        self.request = messages.ModelRequest(
            messages=(messages.UserMessage("u1", (messages.Text(prompt),)),),
            instructions=names.check_string("instructions", instructions),
            output=None if self.output is None else self.output.spec,
        )

    @property
    def body(self) -> dict[str, Any]:
        """The request as the journal compares it."""
        spec = self.request.output
        asked = None if spec is None else {"name": spec.name, "schema": spec.schema}
        return {"prompt": self._prompt, "instructions": self.request.instructions, "output": asked}


class DirectCaller:
    """Makes one direct completion of a run."""

    def __init__(
        self, performer: Performer, prices: Mapping[str, Price], hooked: hooks.HookRunner, question: CompletionRequest
    ) -> None:
        self._performer = performer
        self._prices = prices
        self._model_hooks = ModelHooks(performer, hooked)
        self._question = question
        self._tried: list[messages.Attempt] = []
        self._paid: messages.ModelReply | None = None
        """The reply of the model, or the usage of its attempts."""

    async def answer(self, place: EffectScope, key: str) -> Any:
        """Get the value of the reply, from the journal if it is recorded."""
        performer, question = self._performer, self._question
        await performer.admit()
        ask = performer.request(key, "direct", question.model.name, question.body)
        with performer.occupied(place):
            outcome = await performer.recall(performer.decide(key, ask, Repeat.FREE, place))
            if outcome is not None:
                return await self._value(outcome)
            if not ask.body:  # too long for the record
                body = canonical(performer.redactor.value(plain(question.body)))
                ask = msgspec.structs.replace(ask, blob=performer.keep_soon(body))
            try:
                outcome = await self._call_model(key, ask)
            except asyncio.CancelledError:
                cancelled = Cancelled(at=performer.now(), key=key, ask=ask, detail=_attempts_detail(self._tried))
                performer.abandon(*failure_records(cancelled, self._waste(self._tried)))
                raise
            return await self._value(outcome)

    async def _call_model(self, key: str, ask: EffectRequest) -> Outcome:
        """Call the model, or a hook in its place, and record the outcome."""
        performer, model_hooks, model = self._performer, self._model_hooks, self._question.model
        begun = asyncio.get_running_loop().time()
        crash_point("model.before_call")
        try:
            request = msgspec.structs.replace(self._question.request, ledger=self._tried)
            asked = HookRequest(model_hooks.hook_runner.turn, request, "direct")
            reply = await model_hooks.before(key, asked, ask.content)
            if reply is None:
                with performer.spanning(key):
                    reply = self._paid = self._with_cost(await respond(model, request))
            reply = await model_hooks.after(asked, reply)
            body = performer.redactor.bytes(messages.encode(reply), numbers=False)
        except errors.ModelError as error:
            self._paid = self._paid or self._waste(error.attempts)
            outcome: Outcome = failed_call(performer, key, ask, error, begun)
        except Exception as error:  # a custom model may raise anything
            outcome = performer.failed(key, ask, error, begun)
        else:
            crash_point("model.after_reply")
            outcome = await performer.succeeded(key, ask, body, begun)
            if not isinstance(outcome, Failed):
                await performer.record([outcome], spend=model_spend(reply.usage, reply.cost))
                return outcome
        records, spend = failure_records(outcome, self._paid)
        await performer.record(records, spend=spend)
        return outcome

    def _with_cost(self, reply: messages.ModelReply) -> messages.ModelReply:
        asked = self._question.model.name
        reply = reply if reply.model else msgspec.structs.replace(reply, model=asked)
        if reply.cost is not None or (not reply.raw_usage and not reply.usage.total):
            return reply
        return msgspec.structs.replace(reply, cost=reply_cost(reply, asked, self._prices))

    def _waste(self, tried: Sequence[messages.Attempt]) -> messages.ModelReply | None:
        """Usage of attempts without a reply."""
        wasted = results.paid_tries(tried)
        return None if wasted is None else self._with_cost(wasted)

    async def _value(self, outcome: Outcome) -> Any:
        match outcome:
            case Done():
                reply = messages.decode_reply(await self._performer.read_value(outcome))
            case Failed(error=error):
                raise errors.ModelError(error.message, kind=error.kind)
            case _:
                raise errors.EffectFailed(outcome.key, "interrupted", "the model call was interrupted")
        output = self._question.output
        if output is None:
            return reply.text
        if (complaint := output.complaint(reply.text)) is not None:
            raise errors.ModelError(complaint, kind="invalid_output")
        return output.load(reply.text)


def failed_call(
    performer: Performer,
    key: str,
    ask: EffectRequest,
    error: errors.ModelError,
    begun: float,
    earlier: Sequence[messages.Attempt] = (),
) -> Failed:
    """The record of a model call that ended with an error, with its attempts and the `earlier` ones."""
    info = ErrorInfo(printable(error.kind[:100]), bounded(performer.redactor.text(error.message)))
    ms = round((asyncio.get_running_loop().time() - begun) * 1000)
    detail = _attempts_detail((*earlier, *error.attempts))
    return Failed(at=performer.now(), key=key, ask=ask, error=info, ms=ms, detail=detail)


def failure_records(failed: Failed | Cancelled, paid: messages.ModelReply | None) -> tuple[list[Record], Spend | None]:
    """The records of a call without a usable reply, and the spend of the unusable one (`paid`)."""
    if paid is None:
        return [failed], None
    return [results.paid_for(paid, failed), failed], model_spend(paid.usage, paid.cost, steps=0)


def _attempts_detail(tried: Sequence[messages.Attempt]) -> msgspec.Raw:
    return msgspec.Raw(messages.encode(tried)) if tried else ABSENT


async def complete_once(context: RuntimeContext, question: CompletionRequest, key: str | None) -> Any:
    """Ask a model once, in a separate journal. The same `key` with another request raises `KeyConflict`."""
    journal = f"direct/{chance.token_hex(12) if key is None else names.check_id('key', key)}"

    async def body(boundary: Boundary) -> None:
        performer = boundary.performer
        place = performer.place()
        caller = DirectCaller(performer, context.prices, hooked, question)
        answers.append(await caller.answer(place, place.next(COMPLETE)))
        others.extend(performer.drifts)

    answers: list[Any] = []
    others: list[Drift] = []
    """Differences to the request that is recorded under this key."""
    # Inside a tool, the hooks of the turn apply and its agent is charged.
    clean = context.store.redactor.text
    outside: TurnContext[Any] = TurnContext("", "", "", given_deps=context.deps)
    hooked = hooks.current_hooks.get() or hooks.HookRunner((), outside, guards=context.hooks, clean=clean)
    agent = hooked.turn.agent or question.model.name
    with suppress(errors.JournalMissing):
        agent = (await context.store.journal(journal)).agent or agent
    try:
        lease_ms, tracer = context.lease_ms, context.changes.tracer
        await drive(context.store, journal, body, run=FIRST_RUN, agent=agent, lease_ms=lease_ms, tracer=tracer)
    except (errors.JournalConflict, errors.ReplayMismatch) as error:
        raise errors.KeyConflict(journal, key or "") from error
    except errors.RunFailed as error:
        if isinstance(error.__cause__, errors.ModelError):
            raise error.__cause__ from None
        raise errors.ModelError(error.message, kind=error.kind) from error
    if not answers:  # the journal has the answer
        try:
            await replay(context.store, journal, body, run=FIRST_RUN)
        except (errors.RunFailed, errors.ReplayMismatch) as error:
            raise errors.KeyConflict(journal, key or "") from error
    if others:
        raise errors.KeyConflict(journal, key or "")
    return answers[0]
