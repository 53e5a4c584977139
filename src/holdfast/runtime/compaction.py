"""Compaction: makes the context of a model call fit, before the call or after the provider has refused it.

A compaction is recorded below its model call, and the turn continues with the compacted context. A failed summary never
fails the turn: the oldest messages are dropped without one, and after three failures no summary is tried for a while.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec.structs import replace

from holdfast import errors, events, messages
from holdfast.agent import Agent, prepare
from holdfast.crashpoints import crash_point
from holdfast.effects.canonical import digest_of_bytes, printable
from holdfast.models import Model, respond
from holdfast.models import model as named
from holdfast.policy.hooks import HookRequest
from holdfast.records import Cancelled, Cause, Done, EffectRequest, Record
from holdfast.runtime import budgets, context
from holdfast.tools.results import RESULT_READER, describe_error
from holdfast.turns import machine, results
from holdfast.turns.compaction import plan
from holdfast.turns.compaction.budget import ESTIMATOR, Careful, ContextBudget, Counter, Gauge, Why
from holdfast.turns.compaction.summary import Refused, accept_summary, chunks, prior_of, repair_request, summary_request

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from holdfast.effects.replay import RecordedEffect
    from holdfast.runtime.model_call import ModelHooks
    from holdfast.runtime.session_driver import SessionDrive
    from holdfast.turns import conversation
    from holdfast.turns.state import Thread


_NO_USAGE: Final = messages.Usage()
MAX_CHUNKS: Final = 4
"""Most requests for one summary."""
_MAX_MODEL_NAME: Final = 200
"""Longest name of a model in a record."""
_MAX_LOGGED: Final = 500
"""Longest reason in the log."""
_CHARACTERS_PER_TOKEN: Final = 8
"""Bounds a refused summary that is shown to the model again."""
_log: Final = logging.getLogger("holdfast.compaction")


class Compactor:
    """Compacts the context of one turn."""

    def __init__(self, host: SessionDrive, agent: Agent, turn: conversation.OpenTurn, model_hooks: ModelHooks) -> None:
        self._host = host
        self._agent = agent
        self._turn = turn
        self._performer = model_hooks.performer
        self._model_hooks = model_hooks
        self._breaker = turn.breaker
        given = agent.compaction.counter
        self._counter: Counter = ESTIMATOR if given is None else Careful(given)
        self._gauge: Gauge | None = None
        self._retry_at = 0
        """After a compaction that changed nothing, the token count that triggers the next one."""
        self._made_here: dict[str, int] = {}
        """Compactions made by this process, counted by the key of their model call."""
        self._summary: tuple[str, _SummaryDraft] | None = None
        """The key of the model call whose summary is being written, and the summary."""
        self.failed_summary: messages.ModelReply | None = None
        """Usage of the failed summary of a user's request; None if it used nothing."""
        self._requests: list[bytes] = []
        """Encoded requests of the summary under way."""
        self.usage = _NO_USAGE
        """Usage of compaction for the call under way."""
        self.cost: float | None = 0.0

    # ---- recorded compactions and usage ----

    def apply_recorded(self, recorded: Iterable[RecordedEffect], thread: Thread) -> Thread:
        """The context of a model call after its recorded compactions."""
        self.usage, self.cost = _NO_USAGE, 0.0
        for found in recorded:
            if isinstance(found.outcome, Done):
                made = plan.decode_compaction(bytes(found.outcome.value))
                thread = made.apply_to(thread)
                self._breaker = made.breaker_after(self._breaker, found.outcome.at)
                self._count(made)
        return thread

    @property
    def has_usage(self) -> bool:
        """True if compaction for the current call used anything, or an unknown amount."""
        return self.usage.total > 0 or self.cost != 0.0

    def take_usage(self) -> tuple[messages.Usage, float | None]:
        """Return the usage and cost so far, and count from zero again."""
        taken = self.usage, self.cost
        self.usage, self.cost = _NO_USAGE, 0.0
        return taken

    def _count(self, made: plan.RecordedCompaction) -> None:
        self.usage += made.usage
        self.cost = machine.added(self.cost, made.cost)

    def note_reported_tokens(self, thread: Thread, reply: messages.ModelReply) -> None:
        """Learn from the token count of the provider."""
        if self._gauge is not None:
            self._gauge = self._gauge.read(thread).reported(messages.context_tokens(reply))

    # ---- compacting ----

    def exceeds(self, thread: Thread, room: ContextBudget) -> bool:
        """True if the context must be compacted before it is sent."""
        gauge = self._gauge = (self._gauge or Gauge(self._counter, room.fixed)).read(thread)
        return gauge.needs(room) and gauge.tokens >= self._retry_at

    async def make_fit(self, key: str, thread: Thread, room: ContextBudget) -> Thread:
        """The context, compacted as far as possible."""
        tokens = 0 if self._gauge is None else self._gauge.tokens
        made = await self.compact(key, thread, room, "full")
        if made is not None:
            self._retry_at = 0
            return made
        # Again after a tenth more, and at the latest when the context no longer fits.
        more = tokens * 11 // 10
        self._retry_at = min(more, room.room + 1) if tokens <= room.room else more
        return thread

    async def compact(
        self, key: str, thread: Thread, room: ContextBudget | None, why: Why, refused: messages.ModelReply | None = None
    ) -> Thread | None:
        """Compact the context; None if nothing can be removed.

        A reply that `refused` the context as too long was paid for: its usage counts with the compaction. If the
        summary that a user asked for fails, raises `ModelError`. Then nothing changes: the context fits already.
        """
        if room is None:  # a guess for an unknown window: three quarters of this context
            fixed = prepare(self._agent).fixed_tokens
            total = fixed + sum(map(self._counter.tokens, thread.messages))
            room = self._agent.compaction.room(max(total * 3 // 4, 2_000), fixed)
        known = None if self._gauge is None else self._gauge.known
        first = self._turn.said[0].id if self._turn.said else ""
        reader = RESULT_READER if RESULT_READER in self._agent.tools else ""
        made = plan.plan(thread, room, self._counter, known, first, pinned=self._turn.pinned, reader=reader, why=why)
        if made is None or not await self._model_hooks.before_compaction(key, thread, made.before):
            return None
        begun = asyncio.get_running_loop().time()
        self._requests.clear()
        done = await self._carry_out(key, thread, made)
        compaction = await self._record(key, done if refused is None else done.paying(refused), begun)
        if compaction is None:
            return None
        self._count(compaction)
        self._gauge = None
        await self._model_hooks.hook_runner.observe("after_compaction", compaction.summary)
        return compaction.apply_to(thread)

    async def _record(self, key: str, made: plan.RecordedCompaction, begun: float) -> plan.RecordedCompaction | None:
        """Record a compaction; returns it without secrets, or None if it is too large for the store."""
        place = self._next_key(key)
        self._made_here[key] = self._made_here.get(key, 0) + 1
        if self._requests:
            made = replace(made, asked=tuple(map(self._performer.keep_soon, self._requests)))
            self._requests.clear()
        body = self._performer.redactor.bytes(msgspec.json.encode(made), numbers=False)
        kept = plan.decode_compaction(body)
        ask = self._ask(key, kept.model or kept.plan.way, body)
        crash_point("turn.before_compaction")
        outcome = await self._performer.succeeded(place, ask, body, begun, kept.asked)
        if not isinstance(outcome, Done):
            return None
        self._performer.submit([outcome], patient=True, spend=budgets.compaction_spend(kept))
        return kept

    def _ask(self, key: str, target: str, content: bytes) -> EffectRequest:
        cause, step = Cause("model", key), self._performer.iteration or 0
        return EffectRequest("direct", target, digest_of_bytes("compaction", content), cause=cause, iteration=step)

    def _next_key(self, key: str) -> str:
        return f"{key}{plan.MARK}{1 + len(self._performer.below(key, plan.MARK)) + self._made_here.get(key, 0)}"

    # ---- the summary ----

    def left_over(self, now: int) -> Iterator[Record]:
        """Records of an unfinished summary when the turn is stopped."""
        if self._summary is None:
            return
        key, summary = self._summary
        if summary.tries:
            ask = self._ask(key, "summary", key.encode())
            detail = msgspec.Raw(self._performer.redactor.bytes(messages.encode(summary.tries), numbers=False))
            cancelled = Cancelled(at=now, key=self._next_key(key), ask=ask, detail=detail)
            wasted = results.paid_tries(summary.tries)
            if wasted is not None:
                cost = self._host.price(wasted, wasted.model)
                self.usage, self.cost = self.usage + wasted.usage, machine.added(self.cost, cost)
                # Recorded below the model call: records below a compaction are read as compactions.
                yield results.paid_for(replace(wasted, cost=cost), replace(cancelled, key=key))
            yield cancelled

    async def _carry_out(self, key: str, thread: Thread, made: plan.Plan) -> plan.RecordedCompaction:
        if made.way != "summary":
            return plan.RecordedCompaction(plan=made)
        now = self._performer.now()
        if made.why != "asked" and not self._breaker.allows(now):
            return plan.RecordedCompaction(plan=plan.fallback(thread, made))
        summary = _SummaryDraft()
        self._summary = key, summary
        try:
            await self._summarise(key, thread, made, summary)
        except BaseException as error:
            if context.is_control_flow(error):
                raise
            summary.failure = describe_error(error, self._performer.redactor.text)  # before it is cut
        self._summary = None
        if summary.failure and made.why == "asked":
            self.failed_summary = summary.paid()
            raise errors.ModelError(summary.failure, kind="no_summary")
        if summary.failure:
            dropped = plan.fallback(thread, made)
            gone = 0 if dropped.span is None else dropped.span.count
            _log.warning(
                "session %s: no summary could be had (%s); %d messages are dropped from the context of the model and "
                "stay in the history",
                *(self._host.session, summary.failure[:_MAX_LOGGED], gone),
            )
            self._breaker = self._breaker.failed(now)
            if self._breaker.opened_at is not None:
                fields = {"failures": self._breaker.failures, "reason": summary.failure}
                self._host.show(events.CompactionPaused, self._turn.run, fields)
            return summary.compaction(dropped, None)
        self._breaker = plan.Breaker()
        if summary.lost:
            _log.warning(
                "session %s: the summary tells nothing of %d messages (%s); they stay in the history",
                *(self._host.session, summary.lost, summary.trouble[:_MAX_LOGGED]),
            )
            made = replace(made, gone=made.gone + summary.lost)
        return summary.compaction(made, summary.text)

    async def _summarise(self, key: str, thread: Thread, made: plan.Plan, summary: _SummaryDraft) -> None:
        asked = self._agent.compaction
        model = self._agent.model if asked.model is None else named(asked.model)
        prior = prior_of(thread, made)
        parts = chunks(thread, made, max(made.after, 2_000), most=MAX_CHUNKS)
        written = False
        for number, chunk in enumerate(parts):
            try:
                question = summary_request(chunk.text, prior, made.cap)
                prior = await self._extend_summary(key, model, question, made, summary)
                written = True
            except errors.ModelError as error:
                # One failed chunk does not fail the summary. After the second failure no further chunk is sent to the
                # model.
                last = number == len(parts) - 1
                if summary.lost or (last and not written):
                    if not written:
                        raise
                    summary.lost += sum(left.messages for left in parts[number:])
                    break
                summary.lost = chunk.messages
                summary.trouble = describe_error(error, self._performer.redactor.text)
        summary.text = prior

    async def _extend_summary(
        self, key: str, model: Model, question: messages.ModelRequest, made: plan.Plan, summary: _SummaryDraft
    ) -> str:
        """Extend the summary by one chunk of the transcript. The model may repair an unusable answer once."""
        request = replace(question, ledger=summary.tries)
        for last in (False, True):
            try:
                reply = await self._ask_model(key, model, request, summary)
            except errors.ModelError as error:
                if last or not error.retryable:
                    raise
                continue
            found = accept_summary(reply.text, reply.finish, made.cap, self._counter)
            if not isinstance(found, Refused):
                return found
            if last:
                raise errors.ModelError(found.detail, kind=found.reason)
            said = reply.text[: _CHARACTERS_PER_TOKEN * (question.settings.max_output_tokens or 0)].strip()
            refused = (messages.AssistantMessage("summary.refused", (messages.Text(said),)),) if said else ()
            complaint = messages.UserMessage("summary.repair", (messages.Text(repair_request(found)),), "holdfast")
            request = replace(request, messages=(*question.messages, *refused, complaint))
        raise errors.InvariantBroken("a summary was asked for twice and neither given nor refused")

    async def _ask_model(
        self, key: str, model: Model, request: messages.ModelRequest, summary: _SummaryDraft
    ) -> messages.ModelReply:
        """The reply of the model, or of a hook in its place. Usage counts even if the reply is rejected."""
        asked = HookRequest(self._model_hooks.hook_runner.turn, request, "summary")
        question = digest_of_bytes("summary", messages.encode([model.name, request.instructions, request.messages]))
        given = await self._model_hooks.before(key, asked, question)
        if given is not None:
            summary.count(given, 0.0, "hook")
            return await self._model_hooks.after(asked, given)
        begun = len(summary.tries)
        clean = self._performer.redactor.bytes
        self._requests.append(plan.encode_asked(model.name, request, lambda body: clean(body, numbers=False)))
        try:
            said = messages.encode(await respond(model, request))
        except errors.ModelError as error:
            summary.tries[begun:] = error.attempts or summary.tries[begun:]
            wasted = results.paid_tries(summary.tries[begun:])
            if wasted is not None:
                summary.count(wasted, self._host.price(wasted, model.name), model.name)
            raise
        reply = messages.decode_reply(said)  # a custom model may have put anything into it
        summary.tries[begun:] = reply.attempts or summary.tries[begun:]
        summary.count(reply, self._host.price(reply, model.name), model.name)
        return await self._model_hooks.after(asked, reply)


@dataclass(repr=False, slots=True)
class _SummaryDraft:
    text: str | None = None
    failure: str = ""
    model: str = ""
    calls: int = 0
    usage: messages.Usage = _NO_USAGE
    cost: float | None = 0.0
    tries: list[messages.Attempt] = field(default_factory=list["messages.Attempt"])
    lost: int = 0
    """Number of messages that it leaves out because a chunk failed."""
    trouble: str = ""
    """The reason why the chunk failed."""

    def count(self, reply: messages.ModelReply, price: float | None, model: str) -> None:
        self.model = printable((reply.model or model)[:_MAX_MODEL_NAME])
        self.calls += 1
        self.usage += reply.usage
        self.cost = machine.added(self.cost, reply.cost if reply.cost is not None else price)

    def paid(self) -> messages.ModelReply | None:
        """Its usage, as a reply without text; None if it used nothing."""
        if not self.calls or not self.usage.total:
            return None
        return messages.ModelReply((), "cancelled", self.usage, self.model, attempts=tuple(self.tries), cost=self.cost)

    def compaction(self, made: plan.Plan, text: str | None) -> plan.RecordedCompaction:
        failure = "" if text is not None else printable(self.failure[:500])
        paid: dict[str, Any] = {"model": self.model, "calls": self.calls, "usage": self.usage, "cost": self.cost}
        return plan.RecordedCompaction(plan=made, summary=text, failure=failure, **paid, attempts=tuple(self.tries))
