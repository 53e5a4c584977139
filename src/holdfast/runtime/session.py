"""The handle of a session, and the admission of its inputs."""

from __future__ import annotations

import logging
import secrets
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from holdfast.effects.canonical import check as check_json
from holdfast.errors import (
    DuplicateInput,
    EmptyInput,
    HoldfastError,
    InboxFull,
    InputTooLarge,
    InvalidArgument,
    InvalidId,
    JournalConflict,
    KeyConflict,
    PayloadTooLarge,
    RateExceeded,
    StoreError,
    TurnUnknown,
)
from holdfast.media import File
from holdfast.messages import Attachment, Message, Text, Usage
from holdfast.names import check_id, check_int, check_text
from holdfast.policy.admission import decode_admission, encode_admission, find_input_error
from holdfast.policy.rules import milliseconds
from holdfast.processes import is_process_journal
from holdfast.processes.state import is_task_id
from holdfast.records import InputTaint, Opened, metadata_of
from holdfast.runtime.changes import follow_session, session_cursor
from holdfast.runtime.session_records import RecordedRequest, read_conversation, read_requests
from holdfast.runtime.turn import Turn
from holdfast.store.admission import AdmissionWindow
from holdfast.triggers.definition import is_trigger_id
from holdfast.turns import keys
from holdfast.turns.conversation import UserInput, decode_input
from holdfast.turns.machine import added
from holdfast.turns.results import mentions

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence
    from datetime import timedelta

    from holdfast.agent import Agent
    from holdfast.events import Event
    from holdfast.messages import InputPart
    from holdfast.policy.admission import Admission as Terms
    from holdfast.records import Status
    from holdfast.runtime.runtime import Runtime
    from holdfast.runtime.turn import CancelStatus
    from holdfast.store import Store
    from holdfast.turns.conversation import Source


REFUSALS: Final = (
    *(DuplicateInput, EmptyInput, InboxFull, InputTooLarge),
    *(KeyConflict, PayloadTooLarge, RateExceeded),
)
"""Errors of well-formed inputs that are refused: these refusals are recorded."""


def store_admission(terms: Terms) -> AdmissionWindow | None:
    """The admission rules that the store enforces; None if they need no look at earlier inputs."""
    if not terms.looks_back_ms:
        return None
    return AdmissionWindow(
        terms.per_window,
        milliseconds(terms.window),
        terms.duplicates,
        milliseconds(terms.duplicate_window),
    )


def check_shape(terms: Terms, session: str, parts: Sequence[InputPart | File]) -> None:
    """Raise the error of an input that is empty or too large."""
    wrong = find_input_error(terms, session, parts)
    if wrong is not None:
        raise wrong


def turn_deadline_ms(agent: Agent | None, said: UserInput) -> int | None:
    """Time that a turn may take from now on: the input's own deadline, or else the agent's."""
    if said.deadline_from_start:
        return None
    if said.deadline_ms is None and agent is not None and agent.limits.deadline is not None:
        return milliseconds(agent.limits.deadline)
    return said.deadline_ms


class UsageLine(msgspec.Struct, frozen=True):
    """Usage of one model in a session. `source` is the kind of request."""

    model: str
    source: Source
    calls: int
    usage: Usage
    cost: float | None = None
    """In US dollars; None where a price is not known."""


class UsageTotal(msgspec.Struct, frozen=True):
    """Usage of a session in all, with its sub-agents on all levels."""

    calls: int = 0
    usage: Usage = Usage()
    cost: float | None = 0.0
    """In US dollars; None where a price is not known."""


class Session:
    """A durable conversation with one agent. The handle is cheap and holds nothing: make one wherever you need it."""

    def __init__(
        self,
        runtime: Runtime,
        id: str,
        agent: str | None,
        metadata: dict[str, Any] | None = None,
        *,
        under: tuple[str, str] | None = None,
        from_start: bool = False,
    ) -> None:
        self._from_start = from_start
        """Deadlines count from the start of the turn, not from the acceptance of its input."""
        self._under = under
        """The process or call for which inputs are sent: see `Store.accept_into`."""
        self.id = check_id("session", id)
        if is_task_id(id) or is_process_journal(id) or is_trigger_id(id):
            raise InvalidId("session", id, "ids like this are those of tasks, processes and triggers")
        self._runtime = runtime
        self._agent = agent
        self._metadata = None if metadata is None else _check_metadata(metadata)

    def __repr__(self) -> str:
        return f"Session({self.id!r})"

    async def send(
        self,
        content: str | Text | File | Attachment | Sequence[str | Text | File | Attachment],
        *,
        key: str | None = None,
        steer: bool = False,
        pin: bool = False,
        deadline: timedelta | float | None = None,
        metadata: dict[str, Any] | None = None,
        untrusted: bool = False,
    ) -> Turn:
        """Send an input. When this returns it is accepted and durable, and will be answered.

        The same `key` with the same content gives the same turn. With `steer` the input enters the running turn at its
        next safe point; if none is running, it begins one like any other input. `deadline` bounds the turn, from now
        on. A pinned input (`pin`) stays in the context of the model through all compactions. Files are `hf.File`
        values, or results of `runtime.attachments.put`. `metadata` is a JSON object about the input for tools, hooks,
        events and the history; the model does not see it. `untrusted` says that strangers wrote the input (a mail, a
        form): it taints the session like a page that a tool has read.
        """
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
            taint=InputTaint(f"the input {key!r} of {self.id}" if key else f"an input of {self.id}")
            if untrusted
            else None,
        )
        try:
            receipt = await self._runtime.accept(self.id, agent, said, key, under=self._under, metadata=self._metadata)
        except JournalConflict:
            if self._agent is not None or (now := await self.agent()) == agent:
                raise
            # The session was handed over a moment ago.
            receipt = await self._runtime.accept(self.id, now, said, key, under=self._under, metadata=self._metadata)
        after = receipt.head if receipt.fresh and not steer else 0
        return Turn(self._runtime, self.id, receipt.input, after, begins=not steer, fresh=receipt.fresh)

    async def compact(self, *, key: str | None = None) -> Turn:
        """Summarise the older part of the conversation now, before it would no longer fit.

        When this returns the request is accepted and durable. It is a turn without an input: after the turns that are
        queued, the model of the agent writes the summary, and the outcome has its usage. If there is nothing worth
        taking away the turn completes without a model call; if the summary fails, the turn fails with the code
        ``no_summary`` and the context stays as it is. The history always stays. The same `key` is the same
        request.
        """
        await self._runtime.store.journal(self.id)  # raises if the session does not exist: there is nothing to compact
        receipt = await self._runtime.accept(self.id, await self._named_agent(), UserInput(parts=(), compact=True), key)
        after = receipt.head if receipt.fresh else 0
        return Turn(self._runtime, self.id, receipt.input, after, begins=True, fresh=receipt.fresh)

    async def _store_files(
        self, given: list[Text | File | Attachment], agent: str, key: str | None
    ) -> tuple[Text | Attachment, ...]:
        """Store the files of an input; returns its parts with attachments in their place."""
        texts = tuple(part for part in given if isinstance(part, Text))
        if len(texts) == len(given):
            return texts
        await self._check_shape(given, agent, key)  # before files go into the store
        parts: list[Text | Attachment] = []
        for part in given:
            if isinstance(part, File):
                parts.append(await self._runtime.attachments.keep(part, self.id))
            elif isinstance(part, Attachment):
                parts.append(await self._runtime.attachments.sendable(part, self.id))
            else:
                parts.append(part)
        return tuple(parts)

    async def _check_shape(self, given: list[Text | File | Attachment], agent: str, key: str | None) -> None:
        gate = self._runtime.gate
        try:
            check_shape(await gate.terms(await self._runtime.holder(self.id, agent)), self.id, given)
        except REFUSALS as error:
            await gate.refused(self.id, agent, key if isinstance(key, str) else None, error)
            raise

    async def _named_agent(self) -> str:
        return self._agent if self._agent is not None else await self.agent()

    def turn(self, id: str) -> Turn:
        """The turn with this id."""
        number = keys.input_number(id) if isinstance(id, str) else None  # pyright: ignore[reportUnnecessaryIsInstance]
        if number is None:
            raise TurnUnknown(self.id, str(id))
        return Turn(self._runtime, self.id, number)

    async def agent(self) -> str:
        """The name of the agent that has the session: the first one, or the one it was handed over to."""
        line = await self._runtime.store.journal(self.id)
        if line.agent is None:
            raise InvalidArgument("session", self.id, "the id of a session with an agent")
        return line.agent

    async def metadata(self) -> dict[str, Any]:
        """The metadata with which the session was opened."""
        first = await self._runtime.store.read(self.id, limit=1)
        opened = first[0].record if first else None
        return metadata_of(opened) if isinstance(opened, Opened) else {}

    async def status(self) -> Status:
        """The status: idle, running, waiting, or how the last turn ended."""
        return (await self._runtime.store.journal(self.id)).status

    async def cancel(self, reason: str = "") -> CancelStatus:
        """Stop the running turn, or else the next one; `too_late` if there is none."""
        reason = check_text("reason", reason)
        conversation = await read_conversation(self._runtime.store, self.id)
        if conversation.turn is not None:
            return await self._runtime.request_stop(self.id, conversation.turn.run, reason)
        for found in await self._runtime.store.pending(self.id):
            if isinstance(decode_input(found.body), UserInput):
                return await self._runtime.request_stop(self.id, keys.turn_id(found.input), reason)
        return "too_late"

    async def history(self, *, at: int | None = None) -> list[Message]:
        """All messages, oldest first, with those of the running turn; `at` shows them as of a record."""
        if at is not None:
            check_int("record", at, least=1)
        return (await read_conversation(self._runtime.store, self.id, upto=at)).history

    async def context(self) -> list[Message]:
        """The messages that the model sees: after compaction fewer than `history`."""
        return list((await read_conversation(self._runtime.store, self.id)).context.messages)

    async def requests(self) -> list[RecordedRequest]:
        """The requests to models in this session, rebuilt from its journal: no code of its agents is needed."""
        return await read_requests(self._runtime.store, self.id)

    async def search(self, words: str) -> list[Message]:
        """The messages of `history` that contain these words, oldest first, with compacted ones."""
        wanted = check_text("words", words)
        return [message for message in await self.history() if mentions(message, wanted)]

    async def usage(self) -> list[UsageLine]:
        """Usage by model and source; the source "child" is the usage of all sub-agents.

        A line without a model stands for sub-agents whose journals are damaged.
        """
        found = await read_conversation(self._runtime.store, self.id)
        below = await self._runtime.children.below(self.id)
        lines = [
            UsageLine(model, source, found.calls[model, source], usage, found.costs[model, source])
            for (model, source), usage in found.usage.items()
        ]
        lines += [
            UsageLine(model, "child", below.calls.get(model, 0), below.usage.get(model, Usage()), cost)
            for model, cost in below.costs.items()
        ]
        return sorted(lines, key=lambda line: (line.model, line.source))

    async def total_usage(self) -> UsageTotal:
        """The sum of `usage`: all models, with sub-agents on all levels."""
        total = UsageTotal()
        for line in await self.usage():
            total = UsageTotal(total.calls + line.calls, total.usage + line.usage, added(total.cost, line.cost))
        return total

    async def events(self, after: int | str = 0) -> AsyncGenerator[Event]:
        """Yield the events of this session, from its start or after a cursor, until the runtime is closed."""
        cursor = session_cursor(after, self.id)
        runtime = self._runtime
        with runtime.changes.until_closed():
            async for event in follow_session(runtime.store, runtime.changes, runtime.live_events, self.id, cursor):
                yield event

    async def fork(self, at: int | None = None, *, id: str | None = None) -> Session:
        """Make a session that begins where this one was at record `at`; nothing is copied, and this one stays.

        A turn that was under way at that point does not go on in the fork: its open calls are unknown there.
        """
        line = await self._runtime.store.journal(self.id)
        name = f"{self.id[:240]}~{secrets.token_hex(4)}" if id is None else check_id("session", id)
        fork = await self._runtime.store.fork(name, self.id, line.head if at is None else at)
        return Session(self._runtime, name, fork.agent)


def _check_metadata(given: object) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise InvalidArgument("metadata", given, "a dictionary")
    found = cast("dict[str, Any]", given)
    check_json(found)
    return found


def _input_parts(content: object) -> list[Text | File | Attachment]:
    given = [content] if isinstance(content, str | Text | File | Attachment) else content
    if not isinstance(given, list | tuple):
        raise InvalidArgument("content", content, "text")
    parts: list[Text | File | Attachment] = []
    for part in cast("Sequence[object]", given):
        if isinstance(part, str):
            parts.append(Text(part))
        elif isinstance(part, File | Attachment) or (isinstance(part, Text) and type(part.text) is str):
            parts.append(part)
        else:
            raise InvalidArgument("content", part, "text")
    return parts


_log: Final = logging.getLogger("holdfast")


class AdmissionGate:
    """The admission rules of the agents of one store, and the record of refused inputs."""

    def __init__(self, store: Store, agents: Mapping[str, Agent]) -> None:
        self._store = store
        self._agents = agents
        self._stored_rules: dict[str, str | None] = {}
        """The rules of our agents as the store has them."""

    async def open(self) -> None:
        """Write the rules of our agents to the store: other processes apply them, too."""
        found = await self._store.terms()
        self._stored_rules = {name: found.get(name) for name in self._agents}
        for name in self._agents:
            await self._store_rules(name)

    async def terms(self, agent: str) -> Terms:
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
        except StoreError as error:  # this process applies it all the same
            _log.warning("the admission rules of agent %r can't be stored for other processes: %s", agent, error)
        self._stored_rules[agent] = body

    async def refused(self, session: str, agent: str | None, key: str | None, error: HoldfastError) -> None:
        """Record that an input was refused. A failure to record it changes nothing about the refusal."""
        _log.info("an input of %r was refused: %s", session, error)
        with suppress(HoldfastError):
            await self._store.note_refusal(
                session, agent=agent, key=key, error=type(error).__name__, message=str(error)
            )
