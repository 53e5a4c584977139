"""Reading sessions from a store: records with their large values, and the conversation that they tell."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from holdfast.errors import BlobMissing
from holdfast.records import Admitted, Done
from holdfast.turns import Conversation, keys

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from holdfast.records import Blob, Record
    from holdfast.store import Store


async def fetched(store: Store, record: Record) -> Record:
    """The record with the value that it refers to, where a conversation needs it."""
    if isinstance(record, Done) and record.blob is not None:
        key = keys.parse(record.key)
        if key is not None and not key.inner:
            return msgspec.structs.replace(record, value=msgspec.Raw(await _bytes(store, record.blob)), blob=None)
    if isinstance(record, Admitted) and record.blob is not None:
        return msgspec.structs.replace(record, body=msgspec.Raw(await _bytes(store, record.blob)), blob=None)
    return record


async def _bytes(store: Store, blob: Blob) -> bytes:
    body = await store.blob(blob.digest)
    if body is None:
        raise BlobMissing(blob.digest)
    return body


async def read_records(store: Store, journal: str, *, after: int = 0) -> AsyncIterator[tuple[int, Record]]:
    """All records above `after`, each with its sequence and its large value."""
    async for entry in store.read_all(journal, after=after):
        record = entry.record
        if getattr(record, "blob", None) is not None:
            record = await fetched(store, record)
        yield entry.seq, record


async def read_conversation(store: Store, journal: str, *, upto: int | None = None) -> Conversation:
    """What was said in a session (until record `upto`), with all that was said before it was forked."""
    lineage: list[tuple[str, int | None]] = []
    name, end = journal, upto
    while True:
        lineage.append((name, end))
        line = await store.journal(name)
        if line.parent is None:
            break
        name, end = line.parent, line.parent_seq
    conversation = Conversation()
    for depth, (name, end) in enumerate(reversed(lineage)):
        if depth:
            conversation.cut()
            conversation.endings.clear()  # turns of the parent; their ids may come again
        conversation.seq = 0
        async for seq, record in read_records(store, name):
            if end is not None and seq > end:
                break
            conversation.add(seq, record)
    return conversation


async def read_on(store: Store, journal: str, conversation: Conversation) -> None:
    """Bring a conversation up to date with its journal."""
    async for seq, record in read_records(store, journal, after=conversation.seq):
        conversation.add(seq, record)
