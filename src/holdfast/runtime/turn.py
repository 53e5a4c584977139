"""The handle of a turn, its outcome, and the reader that waits for its end."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import cached_property
from secrets import token_hex
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeGuard

import msgspec

from holdfast import errors, messages, names, records
from holdfast.agent import Agent, OutputT_co, parse_answer, prepare
from holdfast.crashpoints import crash_point
from holdfast.effects.canonical import digest
from holdfast.eventloop import release_call_slot
from holdfast.events import TERMINAL, Event, InputAccepted
from holdfast.policy.rules import milliseconds
from holdfast.runtime.changes import Cursor, Expectation, TurnEnded, follow_session, session_cursor
from holdfast.runtime.session_records import read_conversation, read_page, read_present
from holdfast.turns import keys, machine
from holdfast.turns.conversation import CancelRequest, Conversation, UserInput, decode_input
from holdfast.turns.programs import PROGRAM
from holdfast.turns.retries import StepsOfTurn, retry_input

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from datetime import timedelta

    from holdfast.runtime.context import RuntimeContext
    from holdfast.store import Store


class TurnOutcome(msgspec.Struct, Generic[OutputT_co], frozen=True, kw_only=True):
    """The outcome of a turn. `text` is the answer; `value` is the answer as the agent's `output` type."""

    session: str
    turn: str
    status: records.EndStatus
    text: str = ""
    value: OutputT_co | None = None
    code: str = ""
    """Code of the reason why the turn did not complete."""
    message: str = ""
    """The reason why the turn did not complete, as a sentence."""
    blame: machine.Blame | None = None
    """The party that can act: caller, model, tool, code, or the owner of the limit."""
    steps: int = 0
    usage: messages.Usage = messages.Usage()
    cost: float | None = None
    """In US dollars; None where no price is known."""
    allowed: int | float | None = None
    """The value of the limit that was reached, where one was."""
    used: int | float | None = None
    """Usage of that limit."""
    children: messages.Usage = messages.Usage()
    """Usage of the sub-agents of the turn; of background ones, so far."""
    children_cost: float | None = 0.0
    """In US dollars; None where a price is not known."""
    agent: str | None = None
    """The agent at the end of the turn; None if the turn never began."""
    handoffs: int = 0
    """Number of handoffs to other agents."""

    @property
    def ok(self) -> bool:
        """True if the turn completed."""
        return self.status == "completed"

    @property
    def total_usage(self) -> messages.Usage:
        """Usage of the turn with its sub-agents on all levels."""
        return self.usage + self.children

    @property
    def total_cost(self) -> float | None:
        """In US dollars, with sub-agents; None where a price is not known."""
        return machine.added(self.cost, self.children_cost)


_SHARED_FIELDS: Final = frozenset(TurnOutcome.__struct_fields__).intersection(machine.Ending.__struct_fields__)


class TurnReader:
    """Reads the journal of a session until the turn that input `number` entered has ended."""

    def __init__(self, store: Store, session: str, number: int, after: int, *, known: bool) -> None:
        self.session = session
        self.run: str | None = None
        """The turn, once it is known: a steering input may enter a running turn instead of beginning one."""
        self._store = store
        self._number = number
        self._known = known
        self._steers = False
        """The input has entered a turn that began earlier."""
        self.after = after
        """The turn begins after this record."""
        self._text: str | None = None
        """The text of the answer, if the drive handed it over."""

    @cached_property
    def _conversation(self) -> Conversation:
        """The conversation since the input was accepted; not read when the drive hands over the end."""
        conversation = Conversation(whole=self.after == 0)
        conversation.seq = self.after
        return conversation

    async def read(self) -> machine.Ending | None:
        """Read all records so far; returns the ending, or None if the turn has not ended."""
        if not self._known:
            await self._check()
        conversation = self._conversation
        while page := await read_page(self._store, self.session, conversation.seq):
            for seq, record in page:
                conversation.add(seq, record)
                if isinstance(record, records.Admitted) and record.input == self._number:
                    self.run = record.run
                    if record.run not in {None, keys.turn_id(self._number)} and not self._steers:
                        await self._begin_before(record.run or "")
                        return await self.read()
                if isinstance(record, records.Ended) and record.run == self.run:
                    return conversation.endings[record.run]
        return None

    async def _check(self) -> None:
        try:
            found = await self._store.input(self.session, self._number)
        except errors.JournalMissing:
            found = None
        if found is None or isinstance(decode_input(found.body), CancelRequest):
            raise errors.TurnUnknown(self.session, keys.turn_id(self._number))
        self._known = True
        self._read_after(max(self.after, found.head))

    async def _begin_before(self, run: str) -> None:
        """Read again from the acceptance of the turn `run`, which the input has entered."""
        self._steers = True
        number = keys.input_number(run)
        begun = None if number is None else await self._store.input(self.session, number)
        self._read_after(0 if begun is None else begun.head)

    def _read_after(self, seq: int) -> None:
        self.after = seq
        self.__dict__.pop("_conversation", None)

    async def ended_at(self) -> Cursor | None:
        """Position of the last event of an ended turn."""
        ending = await self.read()
        return None if ending is None else Cursor(self._conversation.seq, int(ending.code == "no_progress"))

    async def wait(
        self, context: RuntimeContext, expected: Expectation | None = None, *, needs_agent: bool = False
    ) -> machine.Ending:
        """Wait for the end of the turn. With `expected`, from before the input was accepted, nothing is read first.

        Raises the error of a session that is not driven, or with `needs_agent` has no agent here, instead of waiting.
        """
        if expected is not None and self.is_end(ended := await expected.news):
            return ended.ending
        while True:
            with context.changes.expecting(self.session, self._conversation.seq, ends=True) as found:
                if (ending := await self.read()) is not None:
                    return ending
                error = context.sessions.stuck(self.session)
                if error is None and needs_agent:
                    error = await context.sessions.agent_missing(self.session)
                if error is not None:
                    raise error
                found.head = self._conversation.seq
                ended = await found.news
            if self.is_end(ended):
                return ended.ending

    def is_end(self, ended: object) -> TypeGuard[TurnEnded]:
        """True if `ended`, handed over by the drive, is the end of this turn: nothing has to be read then."""
        if not isinstance(ended, TurnEnded) or self._number not in ended.inputs:
            return False
        self.run, self._text = ended.run, ended.text
        return True

    def outcome(self, ending: machine.Ending, agent: Agent[Any, Any] | None) -> TurnOutcome[Any]:
        """The outcome: the ending with the text and the typed value of the answer."""
        text = self._text
        if text is None:
            text = "" if ending.answer is None else machine.answer_of(self._conversation.thread, ending.answer)
        value = None
        if ending.typed:  # plain JSON if the agent is unknown here, or has another output type by now
            output = None if agent is None else agent.output
            value = parse_answer(text) if output is None or output.complaint(text) is not None else output.load(text)
        turn, same = self.run or keys.turn_id(self._number), {name: getattr(ending, name) for name in _SHARED_FIELDS}
        return TurnOutcome(session=self.session, turn=turn, text=text, value=value, **same)


TurnStatus = Literal["queued", "running", "waiting", "no_agent", "completed", "failed", "cancelled", "limit"]
CancelStatus = Literal["requested", "already_requested", "too_late"]


class Turn(Generic[OutputT_co]):
    """The turn that answers one input of a session. The handle has no state and costs nothing."""

    def __init__(
        self,
        context: RuntimeContext,
        session: str,
        number: int,
        after: int = 0,
        *,
        begins: bool = False,
        expected: Expectation | None = None,
    ) -> None:
        self.session = session
        self.id = keys.turn_id(number)
        """The turn that the input begins; one that steers may enter another turn instead."""
        self._context = context
        self._number = number
        self._after = after
        self._begins = begins
        """The input was accepted and begins its own turn: no lookup is needed."""
        self._expected = expected
        """The end of the turn, if the caller expected it before the input was accepted; used once."""
        self._ended: TurnEnded | None = None
        """The end, if this process recorded it and its event was read here."""

    def __repr__(self) -> str:
        return f"Turn({self.session!r}, {self.id!r})"

    async def outcome(
        self, *, timeout: float | None = None, wait_for_agent: timedelta | float | None = None
    ) -> TurnOutcome[OutputT_co]:
        """Wait for the outcome. After `timeout` seconds, raises `TimeoutError`; the turn continues.

        Raises `AgentMissing` if this runtime does not have the agent and no other process drives the session: at once,
        or if none has come within `wait_for_agent`.
        """
        async with asyncio.timeout(timeout):
            return await self._outcome(0 if wait_for_agent is None else milliseconds(wait_for_agent) / 1000)

    async def _outcome(self, patience: float) -> TurnOutcome[OutputT_co]:
        release_call_slot()  # a tool that waits here must not keep the other turn from calling tools
        reader, ending = self._reader(), None
        expected, self._expected = self._expected, None
        if expected is not None:
            expected.head = self._after
        if self._ended is not None and reader.is_end(self._ended):
            ending = self._ended.ending
        elif patience > 0 and await self._context.sessions.agent_missing(self.session) is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(patience):
                    ending = await reader.wait(self._context)
        if ending is None:
            ending = await reader.wait(self._context, expected, needs_agent=True)
        agents = self._context.agents
        agent = None
        if ending.typed:
            agent = agents.get(ending.agent) if ending.agent else await self._context.sessions.agent_of(self.session)
        outcome = reader.outcome(ending, agent)
        # Skip the lookup if the agent is here and no agent of this runtime has sub-agents.
        alone = (
            ending.agent in agents
            and not ending.handoffs
            and not any(prepare(each).sub_agents for each in agents.values())
        )
        if alone:
            return outcome
        below = await self._context.children.below(self.session, outcome.turn)
        if not below.models:
            return outcome
        return msgspec.structs.replace(outcome, children=below.total.usage, children_cost=below.total.cost)

    async def status(self) -> TurnStatus:
        """The current status.

        `no_agent`: this runtime does not have the agent, and no other process drives the session.
        """
        reader = self._reader()
        ending = await reader.read()
        if ending is not None:
            return ending.status
        if await self._context.sessions.agent_missing(self.session) is not None:
            return "no_agent"
        if reader.run is None:
            return "queued"
        line = await self._context.store.journal(self.session)
        return "waiting" if line.status == "waiting" else "running"

    def events(self, after: int | str | None = None) -> AsyncGenerator[Event]:
        """Yield the events of this turn, from its start or after a cursor, until it ends or the runtime is closed."""
        return self._follow(None if after is None else session_cursor(after, self.session))

    async def _follow(self, given: Cursor | None) -> AsyncGenerator[Event]:
        changes = self._context.changes
        with changes.until_closed():
            reader = self._reader()
            ended = None if self._begins and self._after and given is None else await reader.ended_at()
            cursor = Cursor(reader.after) if given is None else given
            run = self.id if self._begins else reader.run
            if given is not None and ended is not None and given >= ended:
                return
            buffer = None  # of the drive of the turn: by the end of the turn it may be over
            async for event in follow_session(changes, self.session, cursor):
                buffer = changes.buffers.get(self.session, buffer)
                turn = event.turn
                if run is None:
                    if not (isinstance(event, InputAccepted) and event.input == self._number):
                        continue
                    run = turn  # a steering input is part of the turn from here on
                if turn is not None and turn != run:
                    continue
                if turn is not None and type(event) in TERMINAL:
                    self._ended = None if buffer is None else buffer.end_of(run, event.seq)
                    yield event
                    return
                yield event

    async def cancel(self, reason: str = "") -> CancelStatus:
        """Request that the turn is stopped, wherever it is. The first request counts; one after the end is too late."""
        reason = names.check_text("reason", reason)
        reader = self._reader()
        ending = await reader.read()
        if ending is not None:
            return "too_late"
        return await self._context.sessions.request_stop(self.session, reader.run or self.id, reason)

    async def retry(
        self, *, from_step: int | None = None, key: str | None = None, repeat_unknown: bool = False
    ) -> Turn[OutputT_co]:
        """Try an ended turn again; returns the turn that does. When this returns, the request is durable.

        A turn that failed, was cancelled or reached a limit goes on where it stopped, as the next turn of its session:
        the model sees the request and all results so far. It must be the last one, else `RetryRefused`. With
        `from_step` the turn, also a completed one, is done again from that model call on, counted from 1: in a fork of
        the session, which has nothing of the later steps. Calls of these steps that may have taken effect are refused
        without `repeat_unknown`. This turn stays as it is. The same `key` is the same retry; with another `from_step`
        it raises `KeyConflict`.
        """
        if key is not None:
            names.check_id("key", key)
        reader, store = self._reader(), self._context.store
        ending = await reader.read()
        name = f"{self.session}/{reader.run or self.id}"
        if ending is None or reader.run is None:
            raise errors.RetryRefused(name, "it has not ended; cancel it first")
        first = await store.input(self.session, keys.input_number(reader.run) or self._number)
        given = None if first is None else decode_input(first.body)
        if first is None or not isinstance(given, UserInput) or given.compact:
            raise errors.RetryRefused(name, "it has only compacted the context; do that again")
        if key is not None:
            await self._check_retry_key(reader.run, key, forks=from_step is not None)
        if from_step is not None:
            ending, session = None, await self._fork_before(reader.run, first.head, from_step, key, repeat_unknown)
        elif ending.status == "completed":
            raise errors.RetryRefused(name, "it has completed; from_step=1 (--from 1) does it again, in a fork")
        else:
            session = self.session
            known = None if key is None else await store.find_input(session, key)
            if known is None and (successor := await self._successor(reader.run)):
                advice = "send the input again, or begin at a step: from_step (--from) does it again in a fork"
                raise errors.RetryRefused(name, f"{successor!r} comes after it; {advice}")
        agent = (await store.journal(session)).agent or ""
        receipt = await self._context.sessions.accept(session, agent, retry_input(reader.run, given, ending), key)
        return Turn(self._context, session, receipt.input, receipt.head if receipt.fresh else 0, begins=True)

    async def _check_retry_key(self, run: str, key: str, *, forks: bool) -> None:
        """Refuse the key of a retry in the session for one in a fork, and the other way round."""
        store = self._context.store
        other = await store.find_input(self.session, key) if forks else await store.heads([self._fork_id(run, key)])
        if other:
            raise errors.KeyConflict(self.session, key)

    def _fork_id(self, run: str, key: str | None) -> str:
        mark = token_hex(6) if key is None else digest("retry", [self.session, run, key])[:12]
        return f"{self.session[:200]}~{run}-{mark}"

    async def _successor(self, run: str) -> str:
        """The turn that has begun, or will, after the turn `run`; "" without one."""
        store = self._context.store
        conversation = await read_present(store, self.session)
        last = conversation.last if conversation.turn is None else conversation.turn.run
        if last != run:
            return last
        inputs = [
            each.input for each in await store.pending(self.session) if isinstance(decode_input(each.body), UserInput)
        ]
        return keys.turn_id(inputs[0]) if inputs else ""

    async def _fork_before(self, run: str, accepted: int, step: int, key: str | None, repeat_unknown: bool) -> str:
        """Fork the session just before a step of the turn `run`; returns the id of the fork."""
        store, after = self._context.store, accepted
        names.check_int("from_step", step, least=1)
        steps, name = StepsOfTurn(run), f"{self.session}/{run}"
        while page := await read_page(store, self.session, after):
            steps.take(page)
            after = page[-1][0]
        if step > len(steps.starts):
            raise errors.RetryRefused(name, f"it has no step {step}, only {len(steps.starts)}")
        unknown = steps.unknown_from(step)
        if unknown and not repeat_unknown:
            reason = f"the outcome of these is unknown: {', '.join(unknown)[:2_000]}"
            advice = "find out, then retry with repeat_unknown=True (--repeat-unknown), or from a later step"
            raise errors.RetryRefused(name, f"{reason}; {advice}")
        fork = self._fork_id(run, key)
        try:
            await store.fork(fork, self.session, steps.starts[step - 1][1] - 1)
        except errors.JournalConflict:
            raise errors.KeyConflict(self.session, key or fork) from None  # the key was used for another step
        crash_point("turn.retry_forked")
        return fork

    async def cancel_call(self, call: str, reason: str = "") -> CancelStatus:
        """Request that one tool call of the turn is cancelled, wherever it is; the others go on.

        `call` is its name in events, such as ``t3.2.1``. The model reads that the call was cancelled, and why; or, if
        it had begun and may have taken effect, that its outcome is unknown. A call in the background is cancelled
        there, also after the end of the turn. The first request counts; one after the result is too late.
        """
        reason, store = names.check_text("reason", reason), self._context.store
        await store.read_position()  # a reply that is being recorded is seen
        reader = self._reader()
        await reader.read()
        run, conversation = reader.run or self.id, await read_conversation(store, self.session)
        key = self._call_key(conversation, run, call)
        if conversation.turn is not None and conversation.turn.is_open_call(key):
            return await self._context.sessions.request_call_stop(self.session, run, key, reason)
        task = await self._context.tasks.task_for_call(self.session, key)
        return "too_late" if task is None else await self._context.tasks.cancel(task, reason)

    def _call_key(self, conversation: Conversation, run: str, call: str) -> str:
        """The key of a call of the turn `run`, by its name in events."""
        place = keys.parse_call_name(names.check_string("call", call))
        if place is None or place.run != run:
            raise errors.CallUnknown(self.session, call, f"the turn {run!r} has no such call; events name each call")
        said = reversed(conversation.thread.messages)  # a fork has a turn of the same name before it
        asked = next((message for message in said if message.id == f"{run}.{place.number - 1}"), None)
        requests = asked.calls if isinstance(asked, messages.AssistantMessage) else ()
        if place.call > len(requests):
            raise errors.CallUnknown(self.session, call, f"the turn {run!r} has no such call; events name each call")
        tool = requests[place.call - 1].name
        if tool == PROGRAM:
            raise errors.CallUnknown(self.session, call, "it is a program, which ends with its turn; cancel the turn")
        return keys.call_key(run, place.number, place.call, tool)

    def _reader(self) -> TurnReader:
        known = self._begins and self._after > 0  # else an input that was accepted before: the store knows where
        return TurnReader(self._context.store, self.session, self._number, self._after, known=known)
