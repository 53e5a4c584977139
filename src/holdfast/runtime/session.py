"""`Session`, the handle for users, and `Sessions` for the parts of the runtime: admission, stop requests, agents."""

from __future__ import annotations

import asyncio
import logging
import secrets
import shlex
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Generic, cast

import msgspec

from holdfast import errors, media, names
from holdfast.agent import Agent, OutputT_co, prepare
from holdfast.crashpoints import crash_point
from holdfast.effects.canonical import check as check_json
from holdfast.messages import Attachment, Message, Settings, Text, Usage
from holdfast.models.registry import check_model_name
from holdfast.policy.admission import Admission, decode_admission, encode_admission, find_input_error
from holdfast.policy.limits import ROLE
from holdfast.policy.rules import milliseconds
from holdfast.processes.lists import StuckProcess, all_work
from holdfast.records import InputTaint, Opened, Status, metadata_of
from holdfast.runtime import session_driver, session_records
from holdfast.runtime.attachments import Attachments
from holdfast.runtime.changes import Cursor, Expectation, follow_session, session_cursor
from holdfast.runtime.turn import CancelStatus, Turn
from holdfast.store.inbox import AdmissionWindow, stop_call_key, stop_key
from holdfast.turns import keys, results
from holdfast.turns.conversation import (
    CancelRequest,
    Conversation,
    UsageTotal,
    UserInput,
    deadline_wait,
    decode_input,
    input_blobs,
)
from holdfast.turns.programs import PROGRAM

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence
    from datetime import timedelta

    from holdfast.events import Event
    from holdfast.runtime.context import RuntimeContext
    from holdfast.store.contract import Receipt
    from holdfast.turns.conversation import Source


REFUSALS: Final = (
    *(errors.DuplicateInput, errors.EmptyInput, errors.InboxFull, errors.InputTooLarge),
    *(errors.KeyConflict, errors.PayloadTooLarge, errors.RateExceeded),
)
"""Errors of well-formed inputs that are refused: these refusals are recorded."""


class AbortedCall(msgspec.Struct, frozen=True):
    """A tool call that `abort_calls` has asked to cancel."""

    call: str
    """Its name in events, such as ``t3.2.1``; in the background, the id of its task."""
    tool: str
    status: CancelStatus


class UsageLine(msgspec.Struct, frozen=True):
    """Usage of one model in a session. `source` is the kind of request."""

    model: str
    source: Source
    calls: int
    usage: Usage
    cost: float | None = None
    """In US dollars; None where a price is not known."""


class Session(Generic[OutputT_co]):
    """A durable conversation with one agent. The handle is cheap and has no state: make one wherever you need it."""

    def __init__(
        self,
        context: RuntimeContext,
        id: str,
        agent: str | None,
        metadata: dict[str, Any] | None = None,
        *,
        under: tuple[str, str] | None = None,
        from_start: bool = False,
        expected: Expectation | None = None,
    ) -> None:
        self._from_start = from_start
        """Deadlines count from the start of the turn, not from the acceptance of its input."""
        self._expected = expected
        """The end of the turn that the next input begins, expected before the input is accepted."""
        self._under = under
        """The process or call for which inputs are sent: see `Store.accept_into`."""
        self.id = names.check_id("session", id)
        if not names.is_session_id(id):
            raise errors.InvalidId("session", id, "ids like this are those of tasks, processes and triggers")
        self._context = context
        self._agent = agent
        self._metadata = None if metadata is None else _check_metadata(metadata)

    def __repr__(self) -> str:
        return f"Session({self.id!r})"

    async def send(
        self,
        content: str | Text | media.File | Attachment | Sequence[str | Text | media.File | Attachment],
        *,
        key: str | None = None,
        steer: bool = False,
        pin: bool = False,
        deadline: timedelta | float | None = None,
        metadata: dict[str, Any] | None = None,
        untrusted: bool = False,
        model: str | None = None,
        settings: Settings | None = None,
    ) -> Turn[OutputT_co]:
        """Send an input. When this returns, it is durable and will be answered.

        The same `key` with the same content gives the same turn. With `steer` the input enters the running turn at its
        next safe point; if none is running, it begins one like any other input. `deadline` bounds the turn, from now
        on. A pinned input (`pin`) stays in the context of the model through all compactions. Files are `hf.File`
        values, or results of `runtime.attachments.put`. `metadata` is a JSON object about the input for tools, hooks,
        events and the history; the model does not see it. `untrusted` says that strangers wrote the input (a mail, a
        form): it taints the session like a page that a tool has read.

        `model` is the name of a model for this turn, in place of the agent's; each of the `settings` that you set
        replaces that of the agent. Both hold for the whole turn, also after a handoff or a restart, and not for
        sub-agents; an input that steers can't have them.
        """
        requested = _check_request(model, settings, steer=steer)
        if metadata is not None:
            metadata = _check_metadata(metadata)
        agent = await self._named_agent()
        given = _input_parts(content)
        said = UserInput(
            parts=await self._store_files(given, agent, key),
            steer=bool(steer),
            pin=bool(pin),
            deadline_ms=None if deadline is None else milliseconds(deadline),
            deadline_from_start=self._from_start and deadline is not None,
            metadata=metadata,
            model=model,
            settings=requested,
            caller="" if (tracer := self._context.changes.tracer) is None else tracer.export.caller(),
            taint=InputTaint(f"{f'the input {key!r}' if key else 'an input'} of {self.id}") if untrusted else None,
        )
        accept = self._context.sessions.accept
        try:
            receipt = await accept(self.id, agent, said, key, under=self._under, metadata=self._metadata)
        except errors.JournalConflict:
            if self._agent is not None or (now := await self.agent()) == agent:
                raise
            # The session was handed over a moment ago.
            receipt = await accept(self.id, now, said, key, under=self._under, metadata=self._metadata)
        if not receipt.fresh or steer:
            return Turn(self._context, self.id, receipt.input, begins=not steer)
        return Turn(self._context, self.id, receipt.input, receipt.head, begins=True, expected=self._expected)

    async def compact(self, *, key: str | None = None) -> Turn:
        """Summarise the older part of the conversation now. When this returns, the request is durable.

        The request is a turn without an input: after the queued turns, the model of the agent writes the summary, and
        the outcome has its usage. If the summary would save nothing, the turn completes without a model call; if the
        summary fails, the turn fails with the code ``no_summary`` and the context is unchanged. The history is never
        changed. The same `key` is the same request.
        """
        await self._context.store.journal(self.id)  # raises if the session does not exist: there is nothing to compact
        receipt = await self._context.sessions.accept(
            self.id, await self._named_agent(), UserInput(parts=(), compact=True), key
        )
        after = receipt.head if receipt.fresh else 0
        return Turn(self._context, self.id, receipt.input, after, begins=True)

    async def _store_files(
        self, given: list[Text | media.File | Attachment], agent: str, key: str | None
    ) -> tuple[Text | Attachment, ...]:
        """Store the files of an input; returns its parts with attachments in their place."""
        texts = tuple(part for part in given if isinstance(part, Text))
        if len(texts) == len(given):
            return texts
        sessions = self._context.sessions
        terms = await sessions.terms(await sessions.holder(self.id, agent))
        if wrong := find_input_error(terms, self.id, given):  # before files go into the store
            await sessions.record_refusal(self.id, agent, key if isinstance(key, str) else None, wrong)
            raise wrong
        attachments = Attachments(self._context.store)
        return tuple([part if isinstance(part, Text) else await attachments.of_input(part, self.id) for part in given])

    async def _named_agent(self) -> str:
        return self._agent if self._agent is not None else await self.agent()

    def turn(self, id: str) -> Turn[OutputT_co]:
        """The turn with this id."""
        number = keys.input_number(id) if isinstance(id, str) else None  # pyright: ignore[reportUnnecessaryIsInstance]
        if number is None:
            raise errors.TurnUnknown(self.id, str(id))
        return Turn(self._context, self.id, number)

    async def agent(self) -> str:
        """The name of the session's current agent: the first one, or the target of the last handoff."""
        line = await self._context.store.journal(self.id)
        if line.agent is None:
            raise errors.InvalidArgument("session", self.id, "the id of a session with an agent")
        return line.agent

    async def metadata(self) -> dict[str, Any]:
        """The metadata with which the session was opened."""
        first = await self._context.store.read(self.id, limit=1)
        opened = first[0].record if first else None
        return metadata_of(opened) if isinstance(opened, Opened) else {}

    async def status(self) -> Status:
        """The status: idle, running, waiting, or how the last turn ended."""
        return (await self._context.store.journal(self.id)).status

    async def open_turn(self) -> Turn[OutputT_co] | None:
        """The turn that runs or waits, or else the next in the queue; None if all turns have ended."""
        conversation, queued = await self._read_turns()
        if conversation.turn is not None:
            return self.turn(conversation.turn.run)
        return self.turn(queued[0]) if queued else None

    async def last_turn(self) -> Turn[OutputT_co] | None:
        """The newest turn, also one in the queue or the retry of another; None in a fork that has none of its own."""
        conversation, queued = await self._read_turns()
        last = conversation.last if conversation.turn is None else conversation.turn.run
        if queued:
            return self.turn(queued[-1])
        own = last and await self._context.store.input(self.id, keys.input_number(last) or 0)  # else of the parent
        return self.turn(last) if own else None

    async def _read_turns(self) -> tuple[Conversation, list[str]]:
        """The conversation, and the turns in the queue."""
        store = self._context.store
        while True:
            conversation = await session_records.read_present(store, self.id)
            queued, after = list[str](), 0
            while page := await store.pending(self.id, after=after):
                queued += [keys.turn_id(each.input) for each in page if isinstance(decode_input(each.body), UserInput)]
                after = page[-1].input
            if conversation.turn or queued or (await store.journal(self.id)).head == conversation.seq:
                return conversation, queued  # else a turn may have begun between the two reads

    async def cancel(self, reason: str = "") -> CancelStatus:
        """Stop the running turn, or else the next one; returns `too_late` if there is none."""
        reason = names.check_text("reason", reason)
        turn = await self.open_turn()
        return "too_late" if turn is None else await self._context.sessions.request_stop(self.id, turn.id, reason)

    async def history(self, *, at: int | None = None) -> list[Message]:
        """All messages, oldest first, including those of the running turn; `at` shows them as of a record."""
        if at is not None:
            names.check_int("record", at, least=1)
        return (await session_records.read_conversation(self._context.store, self.id, upto=at)).history

    async def context(self) -> list[Message]:
        """The messages that the model sees: after compaction fewer than `history`."""
        return list((await session_records.read_present(self._context.store, self.id)).context.messages)

    async def requests(self) -> list[session_records.RecordedRequest]:
        """The model requests of this session, rebuilt from its journal without its agents' code."""
        return await session_records.read_requests(self._context.store, self.id)

    async def search(self, words: str) -> list[Message]:
        """The messages of `history` that contain these words, oldest first, with compacted ones."""
        wanted = names.check_text("words", words)
        return [message for message in await self.history() if results.mentions(message, wanted)]

    async def usage(self) -> list[UsageLine]:
        """Usage by model and source; the source "child" is the usage of all sub-agents.

        A line without a model is the usage of sub-agents with damaged journals.
        """
        found = await session_records.read_present(self._context.store, self.id)
        below = await self._context.children.below(self.id)
        totals: dict[tuple[str, Source], UsageTotal] = {**found.usage}
        totals |= {(model, "child"): total for model, total in below.models.items()}
        return [
            UsageLine(model, source, total.calls, total.usage, total.cost)
            for (model, source), total in sorted(totals.items(), key=lambda item: item[0])
        ]

    async def total_usage(self) -> UsageTotal:
        """The sum of `usage`: all models, with sub-agents on all levels."""
        return sum([UsageTotal(line.calls, line.usage, line.cost) for line in await self.usage()], UsageTotal())

    def events(self, after: int | str = 0) -> AsyncGenerator[Event]:
        """Yield the events of this session, from its start or after a cursor, until the runtime is closed."""
        return self._follow(session_cursor(after, self.id))  # a bad cursor is refused now, not with the first event

    async def _follow(self, cursor: Cursor) -> AsyncGenerator[Event]:
        changes = self._context.changes
        with changes.until_closed():
            async for event in follow_session(changes, self.id, cursor):
                yield event

    async def fork(self, at: int | None = None, *, id: str | None = None) -> Session[OutputT_co]:
        """Make a session that begins where this one was at record `at`; nothing is copied, and this one stays.

        A turn that was under way at that point does not continue in the fork: its open calls are unknown there.
        """
        line = await self._context.store.journal(self.id)
        name = f"{self.id[:240]}~{secrets.token_hex(4)}" if id is None else names.check_id("session", id)
        fork = await self._context.store.fork(name, self.id, line.head if at is None else at)
        return Session(self._context, name, fork.agent)


def _check_metadata(given: object) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise errors.InvalidArgument("metadata", given, "a dictionary")
    found = cast("dict[str, Any]", given)
    check_json(found)
    return found


def _check_request(model: object, settings: object, *, steer: bool) -> dict[str, Any] | None:
    """The settings that an input asks for, as it keeps them. An unknown model is refused here."""
    if model is not None:
        check_model_name(names.check_string("model", model))
    if steer and (model is not None or settings is not None):
        raise errors.InvalidArgument("steer", steer, "False where a model or settings are given: they are for a turn")
    if settings is None:
        return None
    if not isinstance(settings, Settings):
        raise errors.InvalidArgument("settings", settings, "a Settings")
    given: dict[str, Any] = msgspec.to_builtins(settings)
    check_json(given)
    return given or None


def _input_parts(content: object) -> list[Text | media.File | Attachment]:
    given = [content] if isinstance(content, str | Text | media.File | Attachment) else content
    if not isinstance(given, list | tuple):
        raise errors.InvalidArgument("content", content, "text")
    parts: list[Text | media.File | Attachment] = []
    for part in cast("Sequence[object]", given):
        if isinstance(part, str):
            parts.append(Text(part))
        elif isinstance(part, media.File | Attachment) or (isinstance(part, Text) and type(part.text) is str):
            parts.append(part)
        else:
            raise errors.InvalidArgument("content", part, "text")
    return parts


_log: Final = logging.getLogger("holdfast")
_runtime_log: Final = logging.getLogger("holdfast.runtime")
RESERVED_KEY_PREFIX: Final = "holdfast/"
"""Prefix of the input keys of Holdfast itself."""


class Sessions:
    """The sessions of one runtime, for its inner parts: admission, stop requests, missing agents.

    Users work with `Session` and `Turn`.
    """

    def __init__(self, context: RuntimeContext, register: Callable[[Agent], Agent]) -> None:
        self._context = context
        self._store = context.store
        self._agents = context.agents
        self._register = register
        self.loop: asyncio.AbstractEventLoop | None = None
        """The event loop in which the runtime was opened."""
        self.closed = False
        self._stored_rules: dict[str, str | None] = {}
        """The admission rules of our agents as the store has them."""
        self._warned: set[str] = set()
        """Missing agents that were logged already."""

    def check_open(self) -> None:
        self.check_loop()
        if self.closed:
            raise errors.RuntimeStopped

    def check_loop(self) -> None:
        if self.loop is not None and asyncio.get_running_loop() is not self.loop:
            raise errors.ForeignLoop

    # ---- handles and agents ----

    def handle(
        self,
        id: str,
        agent: Agent | str | None = None,
        metadata: dict[str, Any] | None = None,
        *,
        under: tuple[str, str] | None = None,
        from_start: bool = False,
        expected: Expectation | None = None,
    ) -> Session:
        """A handle of a session. `under` (see `Store.accept_into`) is for processes, `from_start` for a `Control`."""
        name = None if agent is None else self._agent_name(agent)
        return Session(self._context, id, name, metadata, under=under, from_start=from_start, expected=expected)

    def _agent_name(self, agent: Agent | str) -> str:
        if isinstance(agent, Agent):
            return self._register(agent).name
        names.check_id("agent", agent)
        if agent not in self._agents:
            raise errors.AgentUnknown(agent, tuple(self._agents))
        return agent

    async def agent_of(self, session: str) -> Agent | None:
        """The agent of a session, if this runtime has it."""
        return self._agents.get(await self._holder_of(session) or "")

    async def _holder_of(self, session: str) -> str | None:
        """The name of the session's current agent; None if the session does not exist."""
        with suppress(errors.JournalMissing):
            return (await self._store.journal(session)).agent or ""
        return None

    async def agent_missing(self, session: str) -> errors.AgentMissing | None:
        """The error for a session whose agent is unknown here and that no other process drives; None otherwise."""
        if self._context.engine is None or self._context.engine.drives(session):
            return None
        name = await self._holder_of(session)
        if name is None or name in self._agents or await self._store.holder(session) is not None:
            return None
        self.warn_missing(name, session)
        return errors.AgentMissing(session, name, tuple(self._agents))

    def warn_missing(self, agent: str, session: str) -> None:
        if agent not in self._warned:
            self._warned.add(agent)
            message = "the session %r waits: this runtime does not have its agent %r, nor does a process that drives it"
            _runtime_log.warning(message, session, agent)

    async def without_agent(self) -> list[StuckProcess]:
        """Sessions with work whose agents are unknown here and that no other process drives."""
        found: list[StuckProcess] = []
        if self._context.engine is None:
            return found
        async for work, holder in all_work(self._store):
            if work.kind == "session" and holder is None and (name := work.agent or "") not in self._agents:
                self.warn_missing(name, work.journal)
                helps = f"open the store with the agent {name!r}, or: holdfast cancel {shlex.quote(work.journal)}"
                found.append(StuckProcess(work.journal, name, f"no agent {name!r} is here to go on with it", helps))
        return found

    # ---- admission ----

    async def open(self) -> None:
        """Write the rules of our agents to the store: other processes apply them, too."""
        found = await self._store.terms()
        self._stored_rules = {name: found.get(name) for name in self._agents}
        for name in self._agents:
            await self._store_rules(name)

    async def terms(self, agent: str) -> Admission:
        """The admission rules of an agent, also of one that only other processes have."""
        known = self._agents.get(agent)
        if known is None:
            return decode_admission((await self._store.terms()).get(agent))
        if agent not in self._stored_rules:  # registered later
            self._stored_rules[agent] = (await self._store.terms()).get(agent)
            await self._store_rules(agent)
        return known.admission

    async def _store_rules(self, agent: str) -> None:
        body = encode_admission(self._agents[agent].admission)
        if body == self._stored_rules[agent]:
            return
        try:
            await self._store.set_terms(agent, body)
        except errors.StoreError as error:  # this process applies it all the same
            _log.warning("the admission rules of agent %r can't be stored for other processes: %s", agent, error)
        self._stored_rules[agent] = body

    async def record_refusal(
        self, session: str, agent: str | None, key: str | None, error: errors.HoldfastError
    ) -> None:
        """Record that an input was refused. A failure to record it is ignored."""
        _log.info("an input of %r was refused: %s", session, error)
        with suppress(errors.HoldfastError):
            await self._store.note_refusal(
                session, agent=agent, key=key, error=type(error).__name__, message=str(error)
            )

    async def accept(
        self,
        session: str,
        agent: str,
        said: UserInput,
        key: str | None,
        *,
        youngest: str | None = None,
        under: tuple[str, str] | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> Receipt:
        """Accept an input durably, and have the session driven. `youngest`, `under`: see `Store.accept_into`."""
        self.check_open()
        if key is not None and names.check_id("key", key).startswith(RESERVED_KEY_PREFIX):
            raise errors.InvalidId("key", key, f"keys that begin with {RESERVED_KEY_PREFIX!r} are Holdfast's own")
        try:
            body = msgspec.to_builtins(said)
            holder = await self.holder(session, agent)
            terms = await self.terms(holder)
            if said.origin == "user" and not said.compact and (wrong := find_input_error(terms, session, said.parts)):
                raise wrong
            due = None if said.deadline_from_start else session_driver.turn_span(said, self._agents.get(holder))
            window = None  # rules that need no look at earlier inputs are not for the store
            if terms.looks_back_ms:
                window_ms, duplicate_ms = milliseconds(terms.window), milliseconds(terms.duplicate_window)
                window = AdmissionWindow(terms.per_window, window_ms, terms.duplicates, duplicate_ms)
            engine = self._context.engine
            accepting = self._store.accept_into(
                session,
                "session",
                agent,
                body,
                key=key,
                refs=input_blobs(said),
                patient=due is None and engine is not None,
                role=None if said.mandate is None else ROLE,
                session=None if said.mandate is None else said.mandate.session,
                admission=window,
                youngest=youngest,
                under=under,
                metadata=metadata,
            )
            # The drive of an idle session begins at once: its lease is claimed in the same commit.
            begun = due is None and engine is not None and engine.begin_early(session)
            receipt = await accepting
            if receipt.fresh and due is not None:
                # The deadline counts while the input is queued, too; then no drive watches it.
                timer = deadline_wait(keys.turn_id(receipt.input))
                await self._store.open_wait(session, timer, deadline=receipt.at + due)
            if not begun and (session, key) not in self._context.held_inputs:
                self._context.poke(session)
        except REFUSALS as error:
            await self.record_refusal(session, agent, key, error)
            raise
        return receipt

    async def holder(self, session: str, agent: str) -> str:
        """The current agent of a session opened with `agent`: that one, or the target of the last handoff."""
        known = self._agents.get(agent)
        if known is not None and not prepare(known).handoffs:
            return agent
        return await self._holder_of(session) or agent

    # ---- stopping, holding back ----

    async def request_stop(self, session: str, run: str, reason: str) -> CancelStatus:
        """Request that a turn and its sub-agents are cancelled; the first request counts.

        When this returns, the request is durable for all of them: none begins anything more, and their approvals can't
        be answered any more.
        """
        self.check_loop()
        body = msgspec.to_builtins(CancelRequest(run, reason))
        try:
            fresh = (await self._store.accept(session, body, key=stop_key(run), urgent=True)).fresh
        except errors.KeyConflict:
            fresh = False
        if self._context.engine is not None:
            self._context.engine.retry(session)
        crash_point("cancel.accepted")
        # From here on the turn begins no sub-agent. An earlier request may have been interrupted at this point.
        await self._context.children.stop_turn(session, run, reason)
        await self._context.processes.stop_items(session, run, reason)
        return "requested" if fresh else "already_requested"

    async def request_call_stop(self, session: str, run: str, call: str, reason: str) -> CancelStatus:
        """Request that one call of a turn, by its key, is cancelled; the first request counts. It is durable then."""
        self.check_loop()
        body = msgspec.to_builtins(CancelRequest(run, reason, call))
        try:
            fresh = (await self._store.accept(session, body, key=stop_call_key(call), urgent=True)).fresh
        except errors.KeyConflict:
            fresh = False
        if self._context.engine is not None:
            self._context.engine.retry(session)
        crash_point("cancel.call_accepted")
        return "requested" if fresh else "already_requested"

    async def abort_calls(self, session: str, reason: str) -> list[AbortedCall]:
        """Request that all calls under way of a session are cancelled, in its turn and in the background."""
        reason = names.check_text("reason", reason)
        await self._store.read_position()  # calls that are being recorded are seen
        found = await session_records.read_conversation(self._store, session)
        aborted: list[AbortedCall] = []
        turn = found.turn
        for ordinal, call in enumerate(() if turn is None else turn.batch, 1):
            if turn is None or call.name == PROGRAM or ordinal in turn.results:
                continue
            key = keys.call_key(turn.run, turn.batch_id, ordinal, call.name)
            status = await self.request_call_stop(session, turn.run, key, reason)
            aborted.append(AbortedCall(f"{turn.run}.{turn.batch_id}.{ordinal}", call.name, status))
        tasks = self._context.tasks
        for id in await tasks.under_way(session):
            call = (await tasks.task(id)).call
            aborted.append(AbortedCall(id, "" if call is None else call.tool, await tasks.cancel(id, reason)))
        return aborted

    async def settle(self, session: str) -> None:
        """Carry out the stop requests of a session that no runtime drives."""
        await session_driver.SessionDrive(self._context, session).run()

    def hold_back(self, session: str, key: str) -> Callable[[], None]:
        """Begin no turn with this input until the returned function is called. Other processes may begin it."""
        engine, held = self._context.engine, self._context.held_inputs
        if engine is None:
            return lambda: None
        held[session, key] += 1
        engine.hold(session)

        def let_go() -> None:
            held[session, key] -= 1
            if held[session, key] <= 0:
                del held[session, key]
            engine.let_go(session)

        return let_go

    def stuck(self, session: str) -> errors.HoldfastError | None:
        """The error for which the engine has given up a session, if any."""
        return None if self._context.engine is None else self._context.engine.stuck.get(session)

    @property
    def crowded(self) -> bool:
        """True if sessions wait for room: then a call that only waits should be parked rather than kept in memory."""
        return self.closed or (self._context.engine is not None and self._context.engine.crowded)
