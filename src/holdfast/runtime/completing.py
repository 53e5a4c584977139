"""Direct completions: one model call outside any conversation, recorded with its usage."""

from __future__ import annotations

import asyncio
import secrets as chance
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.crashpoints import crash_point
from holdfast.driving import drive, replay
from holdfast.effects.canonical import canonical
from holdfast.effects.replay import Answer, Repeat
from holdfast.errors import (
    EffectFailed,
    InvalidArgument,
    JournalConflict,
    JournalMissing,
    KeyConflict,
    ModelError,
    ReplayMismatch,
    RunFailed,
)
from holdfast.messages import ModelReply, ModelRequest, Text, UserMessage, decode_reply, encode
from holdfast.models import Model
from holdfast.models import model as named
from holdfast.models.contract import respond
from holdfast.models.prices import reply_cost
from holdfast.names import check_id, check_string
from holdfast.output import Output
from holdfast.policy.hooks import HookRequest, HookTurn
from holdfast.processes.ids import RUN
from holdfast.records import ABSENT, Cancelled, Done, ErrorInfo, Failed
from holdfast.runtime.consulting import Consulting
from holdfast.runtime.hooking import Hooked, around_call
from holdfast.runtime.spending import spent_on, spent_unused
from holdfast.turns.unused import paid_for, paid_tries

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.effects.boundary import Boundary
    from holdfast.effects.performer import Drift, Performer
    from holdfast.effects.scopes import Place
    from holdfast.messages import Attempt
    from holdfast.models.prices import Price
    from holdfast.records import Ask, Outcome, Record
    from holdfast.runtime.surroundings import Surround

NAME = "complete"
"""What such a call is called in the journal."""


class Question:
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


class Completing:
    """Asks questions in the name of one run."""

    def __init__(self, performer: Performer, prices: Mapping[str, Price], hooked: Hooked) -> None:
        self._performer = performer
        self._prices = prices
        self._hooked = hooked
        self._consulting = Consulting(performer, hooked, performer.record)

    async def answer(self, place: Place, key: str, question: Question) -> Any:  # noqa: ANN401
        """The value of the reply; the recorded one after it was given once."""
        performer = self._performer
        await performer.admit()
        envelope = performer.envelope(key, "direct", NAME, question.model.name, question.body)
        ask = envelope.ask()
        with performer.occupied(place):
            decision = performer.decide(key, ask, Repeat.FREE)
            performer.check_order(place, key)
            if isinstance(decision, Answer):
                if isinstance(decision.outcome, Cancelled):
                    await performer.until_cancelled()
                return await self._value(question, decision.outcome)
            if not ask.body:  # too long to stand in the record
                ask = msgspec.structs.replace(ask, blob=performer.keep_soon(canonical(envelope.command.body)))
            tried: list[Attempt] = []
            try:
                outcome = await self._asked(key, ask, question, tried)
            except asyncio.CancelledError:
                cancelled = Cancelled(at=performer.now(), key=key, ask=ask, detail=_told(tried))
                wasted = paid_tries(tried)
                if wasted is None:
                    performer.abandon([cancelled])
                else:
                    wasted = self._priced(wasted, question.model.name)
                    spend = spent_unused(wasted.usage, wasted.cost)
                    performer.abandon([paid_for(wasted, cancelled), cancelled], spend)
                raise
            finally:
                self._consulting.forget(key)
            return await self._value(question, outcome)

    async def _asked(self, key: str, ask: Ask, question: Question, tried: list[Attempt]) -> Outcome:
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
            detail = _told(error.attempts)
            if not paid and (wasted := paid_tries(error.attempts)) is not None:
                paid.append(self._priced(wasted, question.model.name))
            outcome: Outcome = Failed(at=self._performer.now(), key=key, ask=ask, error=info, ms=ms, detail=detail)
        except Exception as error:  # noqa: BLE001  a model of somebody's own may raise anything
            outcome = self._performer.failed(key, ask, error, begun)
        else:
            crash_point("model.after_reply")
            outcome = await self._performer.succeeded(key, ask, body, begun)
            spend = spent_on(reply.usage, reply.cost) if isinstance(outcome, Done) else None
        unused: list[Record] = []
        if isinstance(outcome, Failed) and paid:  # it must not be used, and what it took counts nevertheless
            unused.append(paid_for(paid[0], outcome))
            spend = spent_unused(paid[0].usage, paid[0].cost)
        _, durable = self._performer.submit([*unused, outcome], spend=spend)
        await self._performer.durable(durable)
        return outcome

    async def _replied(
        self, key: str, ask: Ask, model: Model, request: ModelRequest, paid: list[ModelReply]
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

    async def _value(self, question: Question, outcome: Outcome) -> Any:  # noqa: ANN401
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


def _told(tried: Sequence[Attempt]) -> msgspec.Raw:
    """The tries of a call that has no reply, as a record holds them."""
    return msgspec.Raw(encode(tried)) if tried else ABSENT


async def _asker(around: Surround, journal: str) -> str | None:
    """For whom a question counts that was asked before."""
    try:
        return (await around.store.journal(journal)).agent
    except JournalMissing:
        return None


async def complete_once(around: Surround, question: Question, key: str | None) -> Any:  # noqa: ANN401
    """Ask outside of any process, in a journal of its own; the same `key` is the same question, or a `KeyConflict`."""
    journal = f"direct/{chance.token_hex(12) if key is None else check_id('key', key)}"

    async def body(boundary: Boundary) -> None:
        performer = boundary.performer
        place = performer.place()
        told.append(await Completing(performer, around.prices, hooked).answer(place, place.next(NAME), question))
        others.extend(performer.drifts)

    told: list[Any] = []
    others: list[Drift] = []
    """What was asked under this key before, where it was something else."""
    # Asked by a tool, it is a question of the turn around that, and counts for its agent.
    clean = around.store.redactor.text
    hooked = around_call.get() or Hooked((), HookTurn("", "", ""), guards=around.hooks, clean=clean)
    agent = await _asker(around, journal) or hooked.turn.agent or question.model.name
    try:
        await drive(around.store, journal, body, run=RUN, agent=agent, lease_ms=around.lease_ms)
    except (JournalConflict, ReplayMismatch) as error:
        raise KeyConflict(journal, key or "") from error
    except RunFailed as error:
        if isinstance(error.__cause__, ModelError):
            raise error.__cause__ from None
        raise ModelError(error.message, kind=error.kind) from error
    if not told:  # it was answered before
        try:
            await replay(around.store, journal, body, run=RUN)
        except (RunFailed, ReplayMismatch) as error:
            raise KeyConflict(journal, key or "") from error
    if others:
        raise KeyConflict(journal, key or "")
    return told[0]
