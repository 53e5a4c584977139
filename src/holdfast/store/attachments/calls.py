"""The part of the door to a store that is about attachments."""

from __future__ import annotations

import asyncio
import hashlib
from typing import TYPE_CHECKING

from holdfast.bounds import check_int
from holdfast.errors import BlobCorrupt, BlobMissing, InvalidValue, PayloadTooLarge
from holdfast.names import check_id, check_string
from holdfast.store.attachments.contract import BATCH, NOBODY, CollectBlobs, Collected, PutAttachment, ShareAttachment
from holdfast.store.attachments.decisions import check_collection
from holdfast.store.calls import Calls
from holdfast.store.digests import blob_digest
from holdfast.store.spooling import CHUNK, WINDOW, Spool

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from holdfast.store.attachments.contract import StoredAttachment
    from holdfast.store.contract import Reader


class AttachmentCalls(Calls):
    """Attachments: blobs with what they are, and who may read them."""

    async def put_attachment(
        self, body: bytes | Spool, media_type: str, *, name: str | None = None, session: str | None = None
    ) -> StoredAttachment:
        """Keep bytes once, and let a session read them; without one, until they are sent to some. Closes a `Spool`.

        The same bytes for the same session are the same attachment, called as it was. A session that has too many is an
        `AttachmentsFull`.
        """
        if not isinstance(body, Spool):
            return await self._submit(self._put(body, media_type, name, session))
        try:
            answer = self._submit(self._put(body, media_type, name, session))
        except BaseException:
            body.close()
            raise
        # Its bytes are read when their turn has come, also if nobody waits for that any more.
        answer.add_done_callback(lambda done: (body.close(), done.cancelled() or done.exception()))
        return await asyncio.shield(answer)

    def _put(self, body: bytes | Spool, media_type: str, name: str | None, session: str | None) -> PutAttachment:
        size = body.size if isinstance(body, Spool) else len(body) if type(body) is bytes else 0
        if not size:
            raise InvalidValue("$", "an attachment is bytes that are not empty")
        if size > self._largest:
            raise PayloadTooLarge("the attachment", size, self._largest)
        check_id("media type", media_type)
        if name is not None:
            check_string("file name", name)
        whose = NOBODY if session is None else check_id("session", session)
        digest = body.digest if isinstance(body, Spool) else blob_digest(body)
        return PutAttachment(whose, digest, body, media_type, name)

    @property
    def _largest(self) -> int:
        limits = self._backend.limits
        return min(limits.attachment_bytes, limits.blob_bytes)

    def spool(self) -> Spool:
        """A place for the bytes of an attachment that come in parts; give it to `put_attachment`, or close it."""
        return Spool(self._backend.folder, self._largest)

    async def blob_chunks(self, digest: str) -> AsyncGenerator[bytes]:
        """The bytes under `digest`, a part at a time; `BlobMissing` when there are none, or no more.

        Whoever gets the last part has got what was put: bytes that do not match their digest end as a `BlobCorrupt`
        before it.
        """
        check_id("digest", digest)
        seen, start = hashlib.sha256(), 0
        window = await self._window(digest, 0)
        while window:
            seen.update(window)
            start += len(window)
            ends = (len(window) - 1) // CHUNK * CHUNK
            for at in range(0, ends, CHUNK):
                yield window[at : at + CHUNK]
            last, window = window[ends:], b""
            window = await self._window(digest, start)
            if not window and seen.hexdigest() != digest:
                raise BlobCorrupt(digest)
            yield last

    async def _window(self, digest: str, start: int) -> bytes:
        found = await self._backend.read(lambda reader: reader.blob_part(digest, start, WINDOW))
        if found is None:
            raise BlobMissing(digest)
        return found

    async def share_attachment(self, digest: str, session: str) -> StoredAttachment | None:
        """Let a session read what was put for it or for none; None when there is no such attachment."""
        return await self._submit(ShareAttachment(check_id("session", session), check_id("digest", digest)))

    async def attachment(self, digest: str, *, session: str | None = None) -> StoredAttachment | None:
        """What is known of the attachment of a session, or of those of none."""
        check_id("digest", digest)
        whose = NOBODY if session is None else check_id("session", session)
        return await self._backend.read(lambda reader: reader.attachments.find(whose, digest))

    async def attachments(
        self, session: str | None = None, *, after: str = "", limit: int | None = None
    ) -> list[StoredAttachment]:
        """The attachments of a session, or of none, by digest. Pass the last digest as `after` for more."""
        check_string("cursor", after)
        whose, page = NOBODY if session is None else check_id("session", session), self._page(limit)
        return await self._backend.read(lambda reader: reader.attachments.of(whose, after, page))

    async def may_read(self, session: str, digest: str) -> bool:
        """Whether a session may read a blob: it was put for it, or its records, inputs or tasks refer to it.

        A fork may read what its parent could when it began.
        """
        check_id("session", session)
        check_id("digest", digest)
        return await self._backend.read(lambda reader: _may_read(reader, session, digest))

    async def collect_blobs(self, *, unused_ms: int = 3_600_000, without_roots: bool = False) -> int:
        """Delete blobs to which nothing refers and that were last put `unused_ms` ago; answers how many.

        Where it can't be seen what is needed, that is a `CollectionRefused`: a journal is quarantined, or nothing at
        all refers to a blob (unless `without_roots`).
        """
        return (await self.collect_unused(unused_ms=unused_ms, without_roots=without_roots)).blobs

    async def collect_unused(
        self, *, unused_ms: int = 3_600_000, without_roots: bool = False, dry_run: bool = False
    ) -> Collected:
        """The same; answers how many and how large. With `dry_run` nothing is deleted."""
        check_int("age", unused_ms)
        before = self._wall() - unused_ms
        if dry_run:
            return await self._backend.read(lambda reader: _would_collect(reader, before, without_roots))
        collected = Collected()
        found = await self._some_unused(before, "", without_roots=without_roots)
        while found:
            collected += await self._submit(CollectBlobs(before, found, without_roots))
            found = await self._some_unused(before, found[-1], without_roots=without_roots)
        return collected

    async def _some_unused(self, before: int, after: str, *, without_roots: bool) -> tuple[str, ...]:
        """Blobs behind a digest that could be collected: looked for here, where nobody waits for the writer."""

        def look(reader: Reader) -> tuple[str, ...]:
            check_collection(reader.attachments.grounds(), without_roots=without_roots)
            return tuple(digest for digest, _ in reader.attachments.unused(before, after=after, limit=BATCH))

        return await self._backend.read(look)


def _would_collect(reader: Reader, before: int, without_roots: bool) -> Collected:  # noqa: FBT001
    check_collection(reader.attachments.grounds(), without_roots=without_roots)
    found = reader.attachments.unused(before)
    return Collected(len(found), sum(size for _, size in found), dry_run=True)


def _may_read(reader: Reader, session: str, digest: str) -> bool:
    attachments = reader.attachments
    if attachments.find(session, digest) is not None or attachments.task_refers(session, digest):
        return True
    journal: str | None = session
    upto: int | None = None
    began: int | None = None
    while journal is not None:
        put = None if began is None else attachments.find(journal, digest)
        if attachments.refers(journal, digest, upto) or (put is not None and began is not None and put.at <= began):
            return True
        row = reader.row(journal)
        if row is None:
            return False
        journal, upto, began = row.parent, row.parent_seq, row.created
    return False
