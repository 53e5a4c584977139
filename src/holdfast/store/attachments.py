"""Attachments: who may read which blobs, what they are called, and which blobs nobody needs any more."""

from __future__ import annotations

import asyncio
import codecs
import hashlib
import tempfile
import threading
from typing import TYPE_CHECKING, Final, Protocol

import msgspec
from msgspec.structs import replace

from holdfast.errors import (
    BlobCorrupt,
    BlobMissing,
    InvalidArgument,
    InvalidValue,
    PayloadTooLarge,
    StoreClosed,
    StoreFull,
)
from holdfast.errors.store import AttachmentsFull, CollectionRefused
from holdfast.media import SAMPLE_BYTES, FileSample
from holdfast.names import check_id, check_int, check_string
from holdfast.store.calls import Calls
from holdfast.store.checksum import blob_digest
from holdfast.store.contract import Command

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
    from pathlib import Path

    from holdfast.store.contract import Reader, Rows
    from holdfast.store.limits import StoreLimits


NO_SESSION: Final = ""
"""The session of attachments that were put for none: whoever is host may send them to any."""
COLLECT_BATCH: Final = 500
"""How many blobs one transaction looks at, and collects at the most."""


class StoredAttachment(msgspec.Struct, frozen=True):
    """A blob with what it is, as one session may read it."""

    session: str
    digest: str
    media_type: str
    size: int
    name: str | None = None
    at: int = 0
    """When it was put, in wall milliseconds."""


class PutAttachment(Command[StoredAttachment], frozen=True):
    """Keep bytes, and let a session read them. The same bytes again are the same attachment, as it was."""

    session: str
    digest: str
    body: bytes | AttachmentSpool
    media_type: str
    name: str | None = None

    def size(self) -> int:
        return len(self.body) if isinstance(self.body, bytes) else self.body.size


class ShareAttachment(Command[StoredAttachment | None], frozen=True):
    """Let a session read what was put for none; None when there is no such attachment."""

    session: str
    digest: str


class Collected(msgspec.Struct, frozen=True):
    """What was collected, or would be."""

    blobs: int = 0
    bytes: int = 0
    dry_run: bool = False

    def __add__(self, other: Collected) -> Collected:
        return Collected(self.blobs + other.blobs, self.bytes + other.bytes, self.dry_run)


class CollectBlobs(Command[Collected], frozen=True):
    """Delete those of some blobs that nobody refers to and that were last put before `before` (wall milliseconds)."""

    before: int
    digests: tuple[str, ...]
    without_roots: bool = False
    """Also where nothing at all is referred to."""


class CollectionBasis(msgspec.Struct, frozen=True):
    """What decides whether blobs may be collected."""

    blobs: bool
    """There are some."""
    roots: bool
    """Something refers to one of them."""
    damaged: str | None = None
    """A journal that can't be trusted: what it refers to can't be seen."""


class AttachmentReads(Protocol):
    """What can be asked, inside a transaction and outside."""

    def find(self, session: str, digest: str) -> StoredAttachment | None: ...
    def grounds(self) -> CollectionBasis: ...
    def unused(self, before: int, *, after: str = "", limit: int = -1) -> list[tuple[str, int]]:
        """Blobs behind a digest to which nothing refers and that were last put before, by digest, with their sizes.

        What refers to a blob: a record, an input, and an attachment of a session that there is, or that was put or
        shared since: whoever did so is about to send it.
        """
        ...

    def unused_of(self, digests: Sequence[str], before: int) -> list[tuple[str, int]]:
        """Those of these blobs that are."""
        ...


class AttachmentRows(AttachmentReads, Protocol):
    """Attachments inside a transaction: nothing is checked here."""

    def total(self, session: str) -> tuple[int, int]:
        """How many a session has, and how many bytes."""
        ...

    def put(self, found: StoredAttachment) -> None: ...
    def forget(self, digest: str) -> None:
        """Delete a blob, with all that is kept about it."""
        ...


class AttachmentReader(AttachmentReads, Protocol):
    """Attachments as they can be read."""

    def of(self, session: str, after: str, limit: int) -> list[StoredAttachment]:
        """Those of a session, by digest."""
        ...

    def refers(self, journal: str, digest: str, upto: int | None) -> bool:
        """Whether a journal refers to a blob; within its first `upto` records, if that is given."""
        ...

    def task_refers(self, session: str, digest: str) -> bool:
        """Whether a task of a session does."""
        ...

    def raw(self) -> Iterator[StoredAttachment]:
        """All of them."""
        ...


def check_room(session: str, added: int, total: tuple[int, int], limits: StoreLimits) -> None:
    """Refuse an attachment of so many bytes for which a session has no room."""
    count, size = total
    if count >= limits.attachments:
        raise AttachmentsFull(session, "attachments", limits.attachments)
    if size + added > limits.attachments_bytes:
        raise AttachmentsFull(session, "bytes of attachments", limits.attachments_bytes)


def check_collection(grounds: CollectionBasis, *, without_roots: bool) -> None:
    """Refuse to collect where it can't be seen what is needed."""
    if grounds.damaged is not None:
        raise CollectionRefused(
            f"the journal {grounds.damaged!r} is quarantined, and what it refers to can't be seen; "
            "restore it from a backup (holdfast doctor tells more)"
        )
    if grounds.blobs and not grounds.roots and not without_roots:
        raise CollectionRefused(
            "there are blobs, and nothing at all refers to one of them; if that is how it should be, say without_roots"
        )


CHUNK: Final = 1024 * 1024
"""How many bytes are written, or told, at once."""
WINDOW: Final = 4 * CHUNK
"""How many are read at once: a store that keeps them in pages has to find its way to where they begin each time."""


class AttachmentSpool:
    """Bytes that come in parts. Close it when they are written, or not wanted: a thread that adds more ends then."""

    def __init__(self, folder: Path | None, limit: int) -> None:
        # A file without a name: whatever happens, nothing is left of it. Without a folder it stays in memory.
        kept, where = (0, None) if folder is None else (CHUNK, str(folder))
        self._file = tempfile.SpooledTemporaryFile(max_size=kept, dir=where)  # noqa: SIM115
        self._using = threading.Lock()
        self._closed = False
        self._limit = limit
        self._hash = hashlib.sha256()
        self._utf8 = codecs.getincrementaldecoder("utf-8")()
        self._text = True
        self._beginning, self._end = b"", b""
        self.size = 0

    def add(self, part: bytes) -> None:
        """Take the next bytes in."""
        if type(part) is not bytes:
            raise InvalidArgument("data", part, "parts that are bytes")
        self.size += len(part)
        if self.size > self._limit:
            raise PayloadTooLarge("the attachment", self.size, self._limit)
        self._hash.update(part)
        self._beginning += part[: SAMPLE_BYTES - len(self._beginning)]
        self._end = (self._end + part)[-SAMPLE_BYTES:] if len(part) < SAMPLE_BYTES else part[-SAMPLE_BYTES:]
        self._decode(part)
        with self._using:
            if self._closed:
                raise StoreClosed
            try:
                self._file.write(part)
            except OSError as error:
                raise StoreFull(f"{error.strerror}, for an attachment that came in parts") from error

    def _decode(self, part: bytes, *, final: bool = False) -> None:
        if self._text:
            try:
                self._utf8.decode(part, final)
            except UnicodeDecodeError:
                self._text = False

    @property
    def digest(self) -> str:
        """The digest of what has come."""
        return self._hash.hexdigest()

    def glance(self) -> FileSample:
        """What has come, as far as is needed to say what it is; nothing more is added."""
        self._decode(b"", final=True)
        return FileSample(self._beginning, self._end, self.size, lambda: self._text)

    def chunks(self) -> Iterator[bytes]:
        """All of it, from the first byte on."""
        self._file.seek(0)
        while chunk := self._file.read(CHUNK):
            yield chunk

    def whole(self) -> bytes:
        """All of it at once."""
        return b"".join(self.chunks())

    def close(self) -> None:
        """Nobody needs it any more."""
        with self._using:
            self._closed = True
            self._file.close()


class AttachmentCalls(Calls):
    """Attachments: blobs with what they are, and who may read them."""

    async def put_attachment(
        self, body: bytes | AttachmentSpool, media_type: str, *, name: str | None = None, session: str | None = None
    ) -> StoredAttachment:
        """Keep bytes once, and let a session read them; without one, until they are sent to some. Closes a `Spool`.

        The same bytes for the same session are the same attachment, called as it was. A session that has too many is an
        `AttachmentsFull`.
        """
        if not isinstance(body, AttachmentSpool):
            return await self._submit(self._put(body, media_type, name, session))
        try:
            answer = self._submit(self._put(body, media_type, name, session))
        except BaseException:
            body.close()
            raise
        # Its bytes are read when their turn has come, also if nobody waits for that any more.
        answer.add_done_callback(lambda done: (body.close(), done.cancelled() or done.exception()))
        return await asyncio.shield(answer)

    def _put(
        self, body: bytes | AttachmentSpool, media_type: str, name: str | None, session: str | None
    ) -> PutAttachment:
        size = body.size if isinstance(body, AttachmentSpool) else len(body) if type(body) is bytes else 0
        if not size:
            raise InvalidValue("$", "an attachment is bytes that are not empty")
        if size > self._largest:
            raise PayloadTooLarge("the attachment", size, self._largest)
        check_id("media type", media_type)
        if name is not None:
            check_string("file name", name)
        whose = NO_SESSION if session is None else check_id("session", session)
        digest = body.digest if isinstance(body, AttachmentSpool) else blob_digest(body)
        return PutAttachment(whose, digest, body, media_type, name)

    @property
    def _largest(self) -> int:
        limits = self._backend.limits
        return min(limits.attachment_bytes, limits.blob_bytes)

    def spool(self) -> AttachmentSpool:
        """A place for the bytes of an attachment that come in parts; give it to `put_attachment`, or close it."""
        return AttachmentSpool(self._backend.folder, self._largest)

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
        whose = NO_SESSION if session is None else check_id("session", session)
        return await self._backend.read(lambda reader: reader.attachments.find(whose, digest))

    async def attachments(
        self, session: str | None = None, *, after: str = "", limit: int | None = None
    ) -> list[StoredAttachment]:
        """The attachments of a session, or of none, by digest. Pass the last digest as `after` for more."""
        check_string("cursor", after)
        whose, page = NO_SESSION if session is None else check_id("session", session), self._page(limit)
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
            return tuple(digest for digest, _ in reader.attachments.unused(before, after=after, limit=COLLECT_BATCH))

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


class Attachments:
    """The attachments of one transaction, at one moment."""

    __slots__ = ("_limits", "_now", "_rows")

    def __init__(self, rows: Rows, limits: StoreLimits, now: int) -> None:
        self._rows = rows
        self._limits = limits
        self._now = now

    def put(self, asked: PutAttachment) -> StoredAttachment:
        found = self._rows.attachments.find(asked.session, asked.digest)
        if found is None:
            total = self._rows.attachments.total(asked.session)
            check_room(asked.session, asked.size(), total, self._limits)
            made = (asked.session, asked.digest, asked.media_type, asked.size(), asked.name, self._now)
            found = StoredAttachment(*made)
            self._rows.attachments.put(found)
        # As it was: a fork may read what was put before it began. That somebody needs the bytes now is told by these.
        self._rows.put_blob(asked.digest, asked.body, self._now)
        return found

    def share(self, asked: ShareAttachment) -> StoredAttachment | None:
        rows = self._rows.attachments
        found = rows.find(asked.session, asked.digest)
        free = rows.find(NO_SESSION, asked.digest)
        if found is not None or free is None:
            return found
        check_room(asked.session, free.size, rows.total(asked.session), self._limits)
        shared = replace(free, session=asked.session, at=self._now)
        rows.put(shared)
        return shared

    def collect(self, asked: CollectBlobs) -> Collected:
        rows = self._rows.attachments
        check_collection(rows.grounds(), without_roots=asked.without_roots)
        doomed = rows.unused_of(asked.digests, asked.before)
        for digest, _ in doomed:
            rows.forget(digest)
        return Collected(len(doomed), sum(size for _, size in doomed))


def audit_attachments(reader: Reader, blobs: Mapping[str, bool]) -> Iterator[tuple[str, str, str]]:
    """Each attachment has its bytes."""
    for found in reader.attachments.raw():
        if found.digest not in blobs:
            yield "blob", f"attachment of {found.session!r}", f"refers to {found.digest}, which is not there"
