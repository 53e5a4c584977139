"""Reading sessions: records with their large values, conversations, and the requests that models were sent."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import msgspec

from holdfast import records
from holdfast.crashpoints import crash_point
from holdfast.effects.canonical import digest_of_bytes
from holdfast.errors import BlobMissing, JournalCorrupt, StoreReadOnly
from holdfast.messages import Message, ModelRequest, OutputSpec, Settings, Text, UserMessage, attachment_digests
from holdfast.turns import keys, programs
from holdfast.turns.compaction.plan import decode_asked, decode_compaction, is_compaction
from holdfast.turns.conversation import Conversation, ending_of_record
from holdfast.turns.environment import Environment, decode_environment, is_environment, prefix_of
from holdfast.turns.fold import decode_fold, encode_fold

if TYPE_CHECKING:
    from asyncio import Future
    from collections.abc import AsyncIterator, Iterable, Sequence

    from holdfast.store import Input, Notification, Store, contract
    from holdfast.turns.machine import Ending


async def fetch_value(store: Store, record: records.Record) -> records.Record:
    """The record with its large value inline, if a conversation needs that."""
    if not isinstance(record, records.Done | records.Admitted) or record.blob is None:
        return record
    if isinstance(record, records.Done):
        key = keys.parse_key(record.key)
        # Of the records below a call, only these belong to the conversation.
        shown = is_compaction(record.key) or programs.is_kept(record.key) or programs.is_finish(record.key)
        if key is None or (key.inner and not shown):
            return record
    value = msgspec.Raw(await read_blob(store, record.blob.digest))
    return msgspec.structs.replace(
        record, **{"value" if isinstance(record, records.Done) else "body": value}, blob=None
    )


async def read_blob(store: Store, digest: str) -> bytes:
    """The bytes of a blob; a missing one is damage."""
    body = await store.blob(digest)
    if body is None:
        raise BlobMissing(digest)
    return body


async def read_page(store: Store, journal: str, after: int) -> list[tuple[int, records.Record]]:
    """The next page of records above `after`, each with its sequence; empty at the end."""
    return [(entry.seq, await fetch_value(store, entry.record)) for entry in await store.read(journal, after=after)]


async def read_records(store: Store, journal: str, *, after: int = 0) -> AsyncIterator[tuple[int, records.Record]]:
    """Yield all records above `after`, each with its sequence."""
    while page := await read_page(store, journal, after):
        for found in page:
            yield found
        after = page[-1][0]


async def read_conversation(store: Store, journal: str, *, upto: int | None = None) -> Conversation:
    """Read the conversation of a session up to record `upto`, with its fork ancestors."""
    conversation = Conversation()
    await _read_lineage(store, await _lineage(store, journal, upto), conversation)
    return conversation


async def read_present(store: Store, journal: str) -> Conversation:
    """Read the conversation of a session as it is now, without its history: at the same cost for each length.

    It may lack the endings of earlier turns, too.
    """
    return await _read_present(store, journal, None)


async def _read_present(store: Store, journal: str, upto: int | None) -> Conversation:
    lineage = await _lineage(store, journal, upto)
    for number, (line, end) in reversed(list(enumerate(lineage))):
        fold = await store.fold(line.id, upto=end)
        conversation = None if fold is None else decode_fold(fold.body)
        if conversation is not None:
            await read_further(store, line.id, conversation, end)
            await _read_lineage(store, lineage[number + 1 :], conversation)
            return conversation
    conversation = Conversation()
    await _read_lineage(store, lineage, conversation)
    return conversation


MOST_RECENT: Final = 64
"""Conversations that `RecentConversations` keeps."""
MOST_RECENT_BYTES: Final = 8 * 1024 * 1024
"""Bytes of the messages that they have together."""


class RecentConversations:
    """The conversations of the sessions that were driven last: their next drives read on from there."""

    def __init__(self) -> None:
        self._kept: dict[str, Conversation] = {}
        self._bytes = 0

    def take(self, session: str) -> Conversation | None:
        """Remove a conversation, to go on with it."""
        found = self._kept.pop(session, None)
        if found is not None:
            self._bytes -= found.thread.size
        return found

    def keep(self, session: str, conversation: Conversation) -> None:
        """Keep a conversation between two turns, without its history, in place of older ones."""
        self.take(session)
        if conversation.turn is not None or not conversation.pos or conversation.context.size > MOST_RECENT_BYTES:
            return
        conversation.forget_history()
        self._kept[session] = conversation
        self._bytes += conversation.thread.size
        while len(self._kept) > MOST_RECENT or self._bytes > MOST_RECENT_BYTES:
            self.take(next(iter(self._kept)))


FOLD_RECORDS: Final = 64
"""Least records between two folds of a session."""
_RECORD_BYTES: Final = 256
"""Another record in so many bytes of the last fold: folds together are not much larger than the records."""


def save_fold(store: Store, lease: contract.Lease, conversation: Conversation) -> None:
    """Save the fold of a conversation with the next commit, if enough records have come since the newest one.

    A failure to save it is ignored.
    """
    due = max(FOLD_RECORDS, conversation.fold_size // _RECORD_BYTES)
    if conversation.turn is not None or conversation.unsaved < due:
        return
    body = encode_fold(conversation)
    conversation.unsaved, conversation.fold_size = 0, len(body)
    conversation.forget_history()
    crash_point("fold.before_save")
    store.save_fold(lease, conversation.seq, body).add_done_callback(_ignore_failure)


def _ignore_failure(done: Future[None]) -> None:
    if not done.cancelled():
        done.exception()


async def read_ending(store: Store, journal: str, run: str) -> Ending | None:
    """The ending of a turn, read from its beginning; None without one."""
    async for record in read_turn(store, journal, run):
        if isinstance(record, records.Ended) and record.run == run:
            return ending_of_record(record)
    return None


async def read_turn(store: Store, journal: str, run: str) -> AsyncIterator[records.Record]:
    """Yield the records of a journal from the acceptance of a turn on, up to its end; none if the turn is unknown."""
    number = keys.input_number(run)
    begun = None if number is None else await store.input(journal, number)
    if begun is None:
        return
    async for _, record in read_records(store, journal, after=begun.head):
        yield record
        if isinstance(record, records.Ended) and record.run == run:
            return


async def read_session(
    store: Store, lease: contract.Lease, known: Conversation | None = None
) -> tuple[Conversation, list[Input], list[Notification]]:
    """Read a claimed session: its conversation, its inbox, and the notifications that may be delivered.

    The conversation begins with `known`, an earlier state of it, or with its newest fold.
    """
    journal, head = lease.journal, lease.head
    if lease.made is not None:
        conversation = Conversation()
        conversation.add(head, lease.made.opened)
        return conversation, [] if lease.made.input is None else [lease.made.input], []
    if known is not None:
        page = await store.read_with_inbox(journal, after=known.seq - 1)
        last = page.entries[0] if page.entries else None
        if last is not None and (last.seq, last.pos) == (known.seq, known.pos):  # else it is another journal
            await _add_entries(store, journal, known, page.entries[1:], head)
            return known, page.pending, page.ready
    page = await store.read_with_inbox(journal)
    fold, opened = page.fold, page.entries[0].record if page.entries else None
    conversation = Conversation() if fold is None else decode_fold(fold.body)
    if conversation is None or (isinstance(opened, records.Opened) and opened.parent is not None):
        conversation = await _read_present(store, journal, head)
    else:
        await _add_entries(store, journal, conversation, page.entries, head)
    return conversation, page.pending, page.ready


async def _read_lineage(
    store: Store, lineage: Sequence[tuple[contract.Journal, int | None]], conversation: Conversation
) -> None:
    """Read journals, each forked from the one before, into a conversation."""
    for line, end in lineage:
        if line.parent is not None:
            conversation.cut()
        conversation.seq = 0
        await read_further(store, line.id, conversation, end)


async def _lineage(store: Store, journal: str, upto: int | None = None) -> list[tuple[contract.Journal, int | None]]:
    """A journal after its fork ancestors, each with its last record that counts."""
    line = await store.journal(journal)
    found = [(line, upto)]
    while line.parent is not None:
        if any(line.parent == younger.id for younger, _ in found):
            raise await _quarantine(store, journal, 1, f"it is its own ancestor, by {line.id!r}")
        end = line.parent_seq
        line = await store.journal(line.parent)
        found.append((line, end))
    return found[::-1]


async def _add_entries(
    store: Store, journal: str, conversation: Conversation, entries: Sequence[contract.Entry], upto: int
) -> None:
    """Add the first page of records, and those after it up to record `upto`."""
    for entry in entries:
        await _add_record(store, journal, conversation, entry)
    if conversation.seq < upto:
        await read_further(store, journal, conversation, upto)


async def _add_record(store: Store, journal: str, conversation: Conversation, entry: contract.Entry) -> None:
    """Add a record to a conversation; a value that can't be decoded quarantines the journal."""
    record = await fetch_value(store, entry.record)
    try:
        conversation.add(entry.seq, record, entry.pos)
    except records.DECODE_ERRORS as error:
        raise await _quarantine(store, journal, entry.seq, str(error)) from error


async def _quarantine(store: Store, journal: str, seq: int, reason: str) -> JournalCorrupt:
    with suppress(StoreReadOnly):  # a process that may write finds the same
        await store.quarantine(journal, f"record {seq}: {reason}")
    return JournalCorrupt(journal, seq, reason)


async def read_further(store: Store, journal: str, conversation: Conversation, upto: int | None = None) -> None:
    """Add the newer records of the journal to a conversation, up to record `upto`."""
    while upto is None or conversation.seq < upto:
        left = None if upto is None else upto - conversation.seq
        page = await store.read(journal, after=conversation.seq, limit=left)
        for entry in page:
            await _add_record(store, journal, conversation, entry)
        if not page:
            return


class RecordedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request to a model, rebuilt from the journal."""

    journal: str
    number: int
    """Number of the request in the journal, from 1."""
    seq: int
    """Sequence of its outcome."""
    at: int
    key: str
    kind: Literal["turn", "summary", "direct"]
    """A step of a turn, a summary for compaction, or a direct completion."""
    agent: str
    """The agent of the step; of a direct completion, its model."""
    model: str
    request: ModelRequest
    exact: bool
    """The request has the recorded digest. False for journals of older releases, which lack instructions, tools and
    settings: then `request` has the messages alone."""


async def read_requests(store: Store, journal: str) -> list[RecordedRequest]:
    """Rebuild all requests of a journal, in the order of their outcomes."""
    reader = _RequestReader(store)
    await reader.read(journal)
    return reader.found


async def environments_of(store: Store, entries: Iterable[tuple[int, records.Record]]) -> dict[int, Environment]:
    """The recorded environments, by the sequence of the record."""
    return {
        seq: await _read_environment(store, record)
        for seq, record in entries
        if isinstance(record, records.Done) and is_environment(record)
    }


async def _read_environment(store: Store, record: records.Done) -> Environment:
    body = bytes(record.value) if record.blob is None else await read_blob(store, record.blob.digest)
    return decode_environment(body)


_Found: TypeAlias = tuple[Literal["turn", "summary", "direct"], str, str, ModelRequest, bool]


class _RequestReader:
    def __init__(self, store: Store) -> None:
        self.found: list[RecordedRequest] = []
        self._store = store
        self._conversation = Conversation()
        self._environments: dict[str, tuple[str, Environment]] = {}
        """The last recorded environment of each agent, and its prefix."""
        self._files: dict[str, bytes] = {}

    async def read(self, journal: str) -> None:
        """Read a journal, after those from which it was forked."""
        for number, (line, end) in enumerate(await _lineage(self._store, journal)):
            if number:
                self._conversation.cut()
                self.found.clear()
            async for seq, record in read_records(self._store, line.id):
                if end is not None and seq > end:
                    break
                await self._take(line, seq, record)

    async def _take(self, line: contract.Journal, seq: int, record: records.Record) -> None:
        if isinstance(record, records.Done | records.Failed | records.Cancelled) and record.ask is not None:
            async for kind, agent, model, request, exact in self._requests_of(record, record.ask):
                place: dict[str, Any] = {"journal": line.id, "number": len(self.found) + 1, "seq": seq, "at": record.at}
                asked: dict[str, Any] = {"kind": kind, "agent": agent, "model": model, "request": request}
                self.found.append(RecordedRequest(key=record.key, exact=exact, **place, **asked))
        if line.kind == "session":
            self._conversation.add(seq, record)

    async def _requests_of(self, record: records.Outcome, ask: records.EffectRequest) -> AsyncIterator[_Found]:
        """Yield kind, agent, model, request, and True if the request has the recorded digest."""
        key = keys.parse_key(record.key)
        if isinstance(record, records.Done) and is_environment(record):
            self._environments[ask.target] = prefix_of(bytes(ask.body)), await _read_environment(self._store, record)
        elif ask.kind == "model_call" and key is not None and not key.inner:
            thread = self._conversation.context
            prefix, told = self._environments.get(ask.target, ("", Environment("")))
            request = ModelRequest(
                messages=thread.messages,
                instructions=told.instructions,
                tools=told.tools,
                output=told.output,
                position=self._conversation.position,
                settings=told.asked_settings(),
                files=await self._attached(thread.messages),
            )
            exact = digest_of_bytes("request", prefix.encode() + thread.chain) == ask.content
            yield "turn", ask.target, told.model, request, exact
        elif is_compaction(record.key):
            made = decode_compaction(bytes(record.value)) if isinstance(record, records.Done) else None
            for blob in () if made is None else made.asked:
                kept = decode_asked(await read_blob(self._store, blob.digest))
                told, settings = kept.environment, kept.environment.asked_settings()
                request = ModelRequest(messages=kept.messages, instructions=told.instructions, settings=settings)
                yield "summary", self._conversation.agent or "", told.model, request, True
        elif ask.kind == "direct":
            body = bytes(ask.body) if ask.blob is None else await read_blob(self._store, ask.blob.digest)
            asked: dict[str, Any] = msgspec.json.decode(body) if body else {}
            spec = asked.get("output")
            request = ModelRequest(
                messages=(UserMessage("u1", (Text(asked.get("prompt", "")),)),),
                instructions=asked.get("instructions", ""),
                output=None if spec is None else msgspec.convert(spec, OutputSpec),
                settings=Settings(),
            )
            yield "direct", ask.target, ask.target, request, digest_of_bytes("content", body) == ask.content

    async def _attached(self, messages: tuple[Message, ...]) -> dict[str, bytes]:
        wanted = [digest for message in messages for digest in attachment_digests(message)]
        for digest in wanted:
            if digest not in self._files:
                self._files[digest] = await read_blob(self._store, digest)
        return {digest: self._files[digest] for digest in wanted}
