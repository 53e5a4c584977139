"""Reading sessions from a store: records with their large values, and the conversation that they tell."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from holdfast.errors import BlobMissing, JournalCorrupt, StoreReadOnly
from holdfast.records import DECODE_ERRORS, Admitted, Done, Opened
from holdfast.turns import Conversation, keys
from holdfast.turns.compaction.apply import is_compaction
from holdfast.turns.programs import is_finish, is_kept

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from holdfast.records import Blob, Record
    from holdfast.store import Input, Notification, Store
    from holdfast.store.contract import Lease


async def fetched(store: Store, record: Record) -> Record:
    """The record with the value that it refers to, where a conversation needs it."""
    if isinstance(record, Done) and record.blob is not None:
        key = keys.parse(record.key)
        if key is not None and (not key.inner or _is_told(record.key)):
            return msgspec.structs.replace(record, value=msgspec.Raw(await _bytes(store, record.blob)), blob=None)
    if isinstance(record, Admitted) and record.blob is not None:
        return msgspec.structs.replace(record, body=msgspec.Raw(await _bytes(store, record.blob)), blob=None)
    return record


def _is_told(key: str) -> bool:
    """Whether a conversation needs to know it, although it is below a call."""
    return is_compaction(key) or is_kept(key) or is_finish(key)


async def _bytes(store: Store, blob: Blob) -> bytes:
    body = await store.blob(blob.digest)
    if body is None:
        raise BlobMissing(blob.digest)
    return body


async def read_page(store: Store, journal: str, after: int) -> list[tuple[int, Record]]:
    """The next records above `after`, each with its sequence and its large value; none when there are no more."""
    return [(entry.seq, await fetched(store, entry.record)) for entry in await store.read(journal, after=after)]


async def read_records(store: Store, journal: str, *, after: int = 0) -> AsyncIterator[tuple[int, Record]]:
    """All records above `after`, each with its sequence and its large value."""
    while page := await read_page(store, journal, after):
        for found in page:
            yield found
        after = page[-1][0]


async def read_conversation(store: Store, journal: str, *, upto: int | None = None) -> Conversation:
    """What was said in a session (until record `upto`), with all that was said before it was forked."""
    conversation = Conversation()
    await _read(store, journal, upto, conversation)
    return conversation


async def read_session(store: Store, lease: Lease) -> tuple[Conversation, list[Input], list[Notification]]:
    """What was said in a session that was claimed, what waits in its inbox, and what may be delivered to it."""
    conversation, journal, head = Conversation(), lease.journal, lease.head
    if lease.made is not None:
        conversation.add(head, lease.made.opened)
        return conversation, [] if lease.made.input is None else [lease.made.input], []
    entries, pending, ready = await store.read_with_inbox(journal)
    opened = entries[0].record if entries else None
    if isinstance(opened, Opened) and opened.parent is not None:
        await _read(store, journal, head, conversation)
        return conversation, pending, ready
    for entry in entries:
        await _fold(store, journal, conversation, entry.seq, await fetched(store, entry.record))
    if conversation.seq < head:
        await read_on(store, journal, conversation, head)
    return conversation, pending, ready


async def _read(store: Store, journal: str, upto: int | None, conversation: Conversation) -> None:
    """Fold a journal, its ancestors first."""
    lineage: dict[str, int | None] = {}
    line = await store.journal(journal)
    lineage[line.id] = upto
    while line.parent is not None:
        if line.parent in lineage:
            raise await _quarantined(store, journal, 1, f"it is its own ancestor, by {line.id!r}")
        lineage[line.parent] = line.parent_seq
        line = await store.journal(line.parent)
    for number, (name, end) in enumerate(reversed(lineage.items())):
        if number:
            conversation.cut()
            conversation.endings.clear()  # turns of the parent; their ids may come again
        conversation.seq = 0
        await read_on(store, name, conversation, end)


async def _fold(store: Store, journal: str, conversation: Conversation, seq: int, record: Record) -> None:
    """Add a record to a conversation. One whose value can't be read quarantines the journal."""
    try:
        conversation.add(seq, record)
    except DECODE_ERRORS as error:
        raise await _quarantined(store, journal, seq, str(error)) from error


async def _quarantined(store: Store, journal: str, seq: int, reason: str) -> JournalCorrupt:
    with suppress(StoreReadOnly):  # whoever opens it to work on it finds the same
        await store.quarantine(journal, f"record {seq}: {reason}")
    return JournalCorrupt(journal, seq, reason)


async def read_on(store: Store, journal: str, conversation: Conversation, upto: int | None = None) -> None:
    """Bring a conversation up to date with its journal (until record `upto`)."""
    while page := await read_page(store, journal, conversation.seq):
        for seq, record in page:
            if upto is not None and seq > upto:
                return
            await _fold(store, journal, conversation, seq, record)
