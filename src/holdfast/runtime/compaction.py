"""Making room in the context of a model call, before it is asked or when the provider says that it does not fit.

What is decided is recorded below the model call, and from then on the turn goes on with what the model has seen. A
summary that can't be had never fails a turn: the oldest messages go without one, and after three failures nobody tries
for a while.
"""

from __future__ import annotations

import asyncio
import logging
from functools import cached_property
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

from holdfast import events
from holdfast.crashpoints import crash_point
from holdfast.effects.canonical import digest_of_bytes
from holdfast.effects.values import printable
from holdfast.errors import InvariantBroken, ModelError
from holdfast.messages import (
    AssistantMessage,
    ModelReply,
    ModelRequest,
    Settings,
    Text,
    Usage,
    UserMessage,
    context_tokens,
    decode_reply,
    encode,
)
from holdfast.models import model as named
from holdfast.models import prices, respond
from holdfast.policy.hooks import HookRequest
from holdfast.records import Cancelled, Cause, Done, EffectRequest
from holdfast.runtime.budgets import compaction_spend
from holdfast.runtime.context import is_control_flow
from holdfast.tools.results import RESULT_READER, describe_error
from holdfast.turns.compaction import Budget as Room
from holdfast.turns.compaction import (
    Careful,
    Estimator,
    Gauge,
    Plan,
    Refused,
    accept_summary,
    counted_chunks,
    fallback,
    plan,
    prior_of,
    repair_request,
    summary_request,
)
from holdfast.turns.compaction.apply import MARK, Compaction, decode_compaction, encode_asked
from holdfast.turns.machine import added
from holdfast.turns.results import paid_for, paid_tries

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from holdfast.agent import Agent
    from holdfast.effects.performer import Performer
    from holdfast.messages import Attempt, Message
    from holdfast.models import Model
    from holdfast.records import Record
    from holdfast.runtime.context import TurnHost
    from holdfast.runtime.hooks import HookRunner
    from holdfast.runtime.model_call import ModelHooks
    from holdfast.runtime.recorder import Recorder
    from holdfast.turns import OpenTurn, Thread
    from holdfast.turns.compaction import Counter, Request, Why


_NO_USAGE: Final = Usage()
MAX_CHUNKS: Final = 4
"""How many questions one summary may take."""
_MAX_MODEL_NAME: Final = 200
"""Most characters of the name of a model."""
_MAX_LOGGED: Final = 500
"""Most characters of a reason in the log."""
_CHARACTERS_PER_TOKEN: Final = 8
"""Most characters for a token of an answer that is shown to the model again."""
_log: Final = logging.getLogger("holdfast.compaction")


class Compactor:
    """Makes room in the context of one turn."""

    def __init__(  # noqa: PLR0913, PLR0917
        self,
        host: TurnHost,
        agent: Agent,
        turn: OpenTurn,
        performer: Performer,
        recorder: Recorder,
        hooked: HookRunner,
        consulting: ModelHooks,
    ) -> None:
        self._host = host
        self._agent = agent
        self._turn = turn
        self._performer = performer
        self._recorder = recorder
        self._hooked = hooked
        self._consulting = consulting
        self._breaker = turn.breaker
        given = agent.compaction.counter
        self._counter: Counter = Estimator() if given is None else Careful(given)
        self._gauge: Gauge | None = None
        self._again = 0
        """Where no room could be made, it is not tried again before there are so many tokens."""
        self._here: dict[str, int] = {}
        """Compactions that were made here, by the call that needed them."""
        self._summary: tuple[str, _SummaryDraft] | None = None
        """The summary that is under way, and the call that needs it."""
        self._vain: _SummaryDraft | None = None
        """The summary that somebody asked for and that could not be had."""
        self._asked: list[bytes] = []
        """The requests for the summary under way, as they are kept."""
        self.usage = _NO_USAGE
        """What making room for the call under way took."""
        self.cost: float | None = 0.0

    # ---- what was done before ----

    def recorded(self, key: str, thread: Thread) -> Thread:
        """The context of a model call, with the room that is recorded to have been made for it."""
        self.usage, self.cost = _NO_USAGE, 0.0
        for found in self._performer.below(key, MARK):
            if isinstance(found.outcome, Done):
                made = decode_compaction(bytes(found.outcome.value))
                thread = made.applied(thread)
                self._breaker = made.judged(self._breaker, found.outcome.at)
                self._count(made)
        return thread

    @property
    def took(self) -> bool:
        """Whether making room for the call under way took anything, or nobody knows what."""
        return self.usage.total > 0 or self.cost != 0.0

    def handed_over(self) -> tuple[Usage, float | None]:
        """What making room took; it is counted by whoever asks."""
        taken = self.usage, self.cost
        self.usage, self.cost = _NO_USAGE, 0.0
        return taken

    def _count(self, made: Compaction) -> None:
        self.usage += made.usage
        self.cost = added(self.cost, made.cost)

    def reported(self, thread: Thread, reply: ModelReply) -> None:
        """The provider has counted what it was asked."""
        if self._gauge is not None:
            self._gauge = self._gauge.read(thread).reported(context_tokens(reply))

    # ---- making room ----

    def needed(self, thread: Thread) -> Room | None:
        """The room that the context must be made to fit; None where it does, or where nobody knows the window."""
        room = self._room
        if room is None:
            return None
        gauge = self._gauge = (self._gauge or Gauge(self._counter, room.fixed)).read(thread)
        return room if gauge.needs(room) and gauge.tokens >= self._again else None

    async def fitting(self, key: str, thread: Thread, room: Room) -> Thread:
        """The context, made to fit as far as that can be."""
        tokens = 0 if self._gauge is None else self._gauge.tokens
        made = await self._compacted(key, thread, room, "full")
        self._again = 0 if made is not None else _retry_threshold(tokens, room)
        return made or thread

    async def overflown(self, key: str, thread: Thread, refused: ModelReply | None = None) -> Thread | None:
        """The context after the provider has refused it as too long; None where no room can be made.

        A reply that only says that it was `refused` is paid for with what making room takes.
        """
        room = self._room or self._guessed(thread)
        return await self._compacted(key, thread, room, "overflow", refused)

    async def asked(self, key: str, thread: Thread) -> Thread | None:
        """The context after a compaction that somebody asked for; None where there is nothing to take away.

        A `ModelError` says why no summary can be had. Then nothing changes: the context fits as it is.
        """
        return await self._compacted(key, thread, self._room or self._guessed(thread), "asked")

    def paid_in_vain(self) -> ModelReply | None:
        """What a summary took that somebody asked for and that could not be had; None where it took nothing."""
        summary, self._vain = self._vain, None
        return None if summary is None else summary.paid()

    @cached_property
    def _room(self) -> Room | None:
        """The room of a request, where the window is known."""
        asked = self._agent.compaction
        if not asked.enabled:
            return None
        window = asked.window or _context_window(self._agent.model.name)
        return None if window is None else asked.room(window, self._fixed)

    def _guessed(self, thread: Thread) -> Room:
        """The window is not known, but less than this: so much that a part of it will do."""
        total = self._fixed + sum(map(self._counter.tokens, thread.messages))
        return self._agent.compaction.room(max(total * 3 // 4, 2_000), self._fixed)

    @property
    def _fixed(self) -> int:
        return self._agent.fixed_tokens

    async def _compacted(
        self, key: str, thread: Thread, room: Room, why: Why, refused: ModelReply | None = None
    ) -> Thread | None:
        known = None if self._gauge is None else self._gauge.known
        first = self._turn.said[0].id if self._turn.said else ""
        reader = RESULT_READER if RESULT_READER in self._agent.tools else ""
        made = plan(thread, room, self._counter, known, first, pinned=self._turn.pinned, reader=reader, why=why)
        if not isinstance(made, Plan):
            return None
        if not await self._consulting.before_compaction(key, thread, made.before):
            return None
        begun = asyncio.get_running_loop().time()
        self._asked.clear()
        done = await self._carried_out(key, thread, made)
        compaction = await self._recorded(key, done if refused is None else done.paying(refused), begun)
        if compaction is None:
            return None
        self._count(compaction)
        self._gauge = None
        if self._hooked.has("after_compaction"):
            await self._hooked.after_compaction(compaction.summary)
        return compaction.applied(thread)

    async def _recorded(self, key: str, made: Compaction, begun: float) -> Compaction | None:
        """The compaction as the journal has it, with nothing secret in it; None when the store can't keep it."""
        place = self._next(key)
        self._here[key] = self._here.get(key, 0) + 1
        if self._asked:
            made = replace(made, asked=tuple(map(self._performer.keep_soon, self._asked)))
            self._asked.clear()
        body = self._performer.redactor.bytes(msgspec.json.encode(made), numbers=False)
        kept = decode_compaction(body)
        cause, step = Cause("model", key), self._performer.iteration or 0
        content = digest_of_bytes("compaction", body)
        ask = EffectRequest("direct", kept.model or kept.plan.way, content, cause=cause, iteration=step)
        crash_point("turn.before_compaction")
        outcome = await self._performer.succeeded(place, ask, body, begun, kept.asked)
        if not isinstance(outcome, Done):
            return None
        self._recorder.submit([outcome], patient=True, spend=compaction_spend(kept))
        return kept

    def _next(self, key: str) -> str:
        """Where the next compaction for the call `key` is recorded."""
        return f"{key}{MARK}{1 + len(self._performer.below(key, MARK)) + self._here.get(key, 0)}"

    # ---- the summary ----

    def left_over(self, now: int) -> Iterator[Record]:
        """What is recorded of a summary that is under way when the turn is stopped: whom it was asked of so far."""
        if self._summary is None:
            return
        key, summary = self._summary
        if summary.tries:
            cause, step = Cause("model", key), self._performer.iteration or 0
            ask = EffectRequest(
                "direct", "summary", digest_of_bytes("compaction", key.encode()), cause=cause, iteration=step
            )
            detail = msgspec.Raw(self._performer.redactor.bytes(encode(summary.tries), numbers=False))
            cancelled = Cancelled(at=now, key=self._next(key), ask=ask, detail=detail)
            wasted = paid_tries(summary.tries)
            if wasted is not None:
                cost = self._host.price(wasted, wasted.model)
                self.usage, self.cost = self.usage + wasted.usage, added(self.cost, cost)
                # It stands below the model call: what stands below a compaction is read as one.
                yield paid_for(replace(wasted, cost=cost), replace(cancelled, key=key))
            yield cancelled

    async def _carried_out(self, key: str, thread: Thread, made: Plan) -> Compaction:
        if made.way != "summary":
            return Compaction(plan=made)
        now = self._performer.now()
        if made.why != "asked" and not self._breaker.allows(now):
            return Compaction(plan=fallback(thread, made))
        summary = _SummaryDraft()
        self._summary = key, summary
        try:
            await self._summarise(key, thread, made, summary)
        except BaseException as error:
            if is_control_flow(error):
                raise
            summary.failure = describe_error(error, self._performer.redactor.text)  # before it is cut
        self._summary = None
        if summary.failure and made.why == "asked":
            self._vain = summary
            raise ModelError(summary.failure, kind="no_summary")
        if summary.failure:
            dropped = fallback(thread, made)
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
        self._breaker = self._breaker.succeeded()
        if summary.lost:
            _log.warning(
                "session %s: the summary tells nothing of %d messages (%s); they stay in the history",
                *(self._host.session, summary.lost, summary.trouble[:_MAX_LOGGED]),
            )
            made = replace(made, gone=made.gone + summary.lost)
        return summary.compaction(made, summary.text)

    async def _summarise(self, key: str, thread: Thread, made: Plan, summary: _SummaryDraft) -> None:
        asked = self._agent.compaction
        model = self._agent.model if asked.model is None else named(asked.model)
        prior = prior_of(thread, made)
        pieces = counted_chunks(thread, made, max(made.after, 2_000), most=MAX_CHUNKS)
        written = False
        for number, piece in enumerate(pieces):
            try:
                prior = await self._extended(key, model, summary_request(piece.text, prior, made.cap), made, summary)
                written = True
            except ModelError as error:
                # One piece that fails does not take the others with it; who fails twice is not asked again.
                last = number == len(pieces) - 1
                if summary.lost or (last and not written):
                    if not written:
                        raise
                    summary.lost += sum(left.messages for left in pieces[number:])
                    break
                summary.lost = piece.messages
                summary.trouble = describe_error(error, self._performer.redactor.text)
        summary.text = prior

    async def _extended(self, key: str, model: Model, question: Request, made: Plan, summary: _SummaryDraft) -> str:
        """The summary with one more piece of the transcript. An answer that can't be used is repaired once."""
        asked = UserMessage("summary", (Text(question.prompt),), "holdfast")
        messages: tuple[Message, ...] = (asked,)
        for last in (False, True):
            request = ModelRequest(
                messages=messages,
                instructions=question.instructions,
                settings=Settings(max_output_tokens=question.max_output_tokens),
                ledger=summary.tries,
            )
            try:
                reply = await self._replied(key, model, request, summary)
            except ModelError as error:
                if last or not error.retryable:
                    raise
                continue
            found = accept_summary(reply.text, reply.finish, made.cap, self._counter)
            if not isinstance(found, Refused):
                return found
            if last:
                raise ModelError(found.detail, kind=found.reason)
            said = reply.text[: _CHARACTERS_PER_TOKEN * question.max_output_tokens].strip()
            complaint = UserMessage("summary.repair", (Text(repair_request(found)),), "holdfast")
            messages = (asked, *((AssistantMessage("summary.refused", (Text(said),)),) if said else ()), complaint)
        raise InvariantBroken("a summary was asked for twice and neither given nor refused")

    async def _replied(self, key: str, model: Model, request: ModelRequest, summary: _SummaryDraft) -> ModelReply:
        """What the model says, or a hook in its place. What was paid counts, also where it must not be used."""
        asked = HookRequest(self._hooked.turn, request, "summary")
        question = digest_of_bytes("summary", encode([model.name, request.instructions, request.messages]))
        given = await self._consulting.before(key, asked, question)
        if given is not None:
            summary.count(given, 0.0, "hook")
            return await self._consulting.after(asked, given)
        begun = len(summary.tries)
        clean = self._performer.redactor.bytes
        self._asked.append(encode_asked(model.name, request, lambda body: clean(body, numbers=False)))
        try:
            said = encode(await respond(model, request))
        except ModelError as error:
            summary.tried(begun, error.attempts)
            wasted = paid_tries(summary.tries[begun:])
            if wasted is not None:
                summary.count(wasted, self._host.price(wasted, model.name), model.name)
            raise
        reply = decode_reply(said)  # a model of somebody's own may have put anything into it
        summary.tried(begun, reply.attempts)
        summary.count(reply, self._host.price(reply, model.name), model.name)
        return await self._consulting.after(asked, reply)


def _context_window(name: str) -> int | None:
    """The window of a model; of several, where one stands in for another, the smallest that is known."""
    found = map(prices.context_window, name.split(" | "))
    return min((window for window in found if window is not None), default=None)


def _retry_threshold(tokens: int, room: Room) -> int:
    """A tenth more, so that looking in vain costs the same for each message; and once when it does not fit any more."""
    more = tokens * 11 // 10
    return min(more, room.room + 1) if tokens <= room.room else more


class _SummaryDraft:
    """A summary while it is being made, and what that takes."""

    def __init__(self) -> None:
        self.text: str | None = None
        self.failure = ""
        self._model = ""
        self._calls = 0
        self._usage = Usage()
        self._cost: float | None = 0.0
        self.tries: list[Attempt] = []
        """Whom it was asked of, and how that went."""
        self.lost = 0
        """How many messages it tells nothing of, since a piece of the transcript failed."""
        self.trouble = ""
        """Why that piece failed."""

    def tried(self, begun: int, told: Sequence[Attempt]) -> None:
        """A question has an end: its tries are those that it tells, or else those that were noted on the way."""
        self.tries[begun:] = told or self.tries[begun:]

    def count(self, reply: ModelReply, price: float | None, model: str) -> None:
        self._model = printable((reply.model or model)[:_MAX_MODEL_NAME])
        self._calls += 1
        self._usage += reply.usage
        self._cost = added(self._cost, reply.cost if reply.cost is not None else price)

    def paid(self) -> ModelReply | None:
        """What it took, as a reply without words."""
        if not self._calls or not self._usage.total:
            return None
        return ModelReply((), "cancelled", self._usage, self._model, attempts=tuple(self.tries), cost=self._cost)

    def compaction(self, made: Plan, text: str | None) -> Compaction:
        failure = "" if text is not None else printable(self.failure[:500])
        told = Compaction(plan=made, summary=text, failure=failure, model=self._model, calls=self._calls)
        return replace(told, usage=self._usage, cost=self._cost, attempts=tuple(self.tries))
