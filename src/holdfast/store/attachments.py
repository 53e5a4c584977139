"""Attachments: blobs with a media type and a name, and the sessions that may read them."""

from __future__ import annotations

import codecs
import hashlib
import tempfile
import threading
from typing import TYPE_CHECKING, Final, Self

import msgspec
from msgspec.structs import replace

from holdfast.errors import AttachmentsFull, InvalidArgument, PayloadTooLarge, StoreClosed, StoreFull
from holdfast.media import SAMPLE_BYTES, FileSample
from holdfast.store.contract import Command, Reader, StoreLimits, blob_digest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from holdfast.secrets.redactor import Redactor
    from holdfast.store.transaction import Transaction


NO_SESSION: Final = ""
"""The session of attachments without one; the host may share them with any session."""


class StoredAttachment(msgspec.Struct, frozen=True):
    """A blob as an attachment of one session."""

    session: str
    digest: str
    media_type: str
    size: int
    name: str | None = None
    at: int = 0
    """Wall milliseconds of its first put."""


class PutAttachment(Command[StoredAttachment], frozen=True):
    """Store bytes and let a session read them. The same bytes again are the same attachment."""

    session: str
    digest: str
    body: bytes | AttachmentSpool
    media_type: str
    name: str | None = None

    def size(self) -> int:
        return len(self.body) if isinstance(self.body, bytes) else self.body.size

    def redact(self, redactor: Redactor) -> Self:
        redactor.check("media type", self.media_type)
        clean = super().redact(redactor)
        whole = self.body if isinstance(self.body, bytes) else self.body.whole()
        body = clean.body if isinstance(clean.body, bytes) else redactor.bytes(whole, numbers=False)
        return clean if body is whole else replace(clean, digest=blob_digest(body), body=body)

    def apply(self, tx: Transaction) -> StoredAttachment:
        table, now = tx.rows.attachments, tx.now.wall
        _check_here(tx, self.session)
        found = table.find(self.session, self.digest)
        if found is None:
            check_room(self.session, self.size(), table.total(self.session), tx.limits)
            found = StoredAttachment(self.session, self.digest, self.media_type, self.size(), self.name, now)
            table.put(found)
        # Keep the attachment's time: forks may read only attachments older than they are. Renew the blob's time, so
        # that it is not collected now.
        tx.rows.put_blob(self.digest, self.body, now)
        return found


class ShareAttachment(Command[StoredAttachment | None], frozen=True):
    """Let a session read an attachment without a session; answers None if there is none."""

    session: str
    digest: str

    def apply(self, tx: Transaction) -> StoredAttachment | None:
        table = tx.rows.attachments
        _check_here(tx, self.session)
        found = table.find(self.session, self.digest)
        free = table.find(NO_SESSION, self.digest)
        if found is not None or free is None:
            return found
        check_room(self.session, free.size, table.total(self.session), tx.limits)
        shared = replace(free, session=self.session, at=tx.now.wall)
        table.put(shared)
        return shared


def _check_here(tx: Transaction, session: str) -> None:
    row = tx.rows.journal(session)
    if row is not None:
        row.check_here()


def check_room(session: str, added: int, total: tuple[int, int], limits: StoreLimits) -> None:
    """Raise `AttachmentsFull` without room for `added` more bytes."""
    count, size = total
    if count >= limits.attachments:
        raise AttachmentsFull(session, "attachments", limits.attachments)
    if size + added > limits.attachments_bytes:
        raise AttachmentsFull(session, "bytes of attachments", limits.attachments_bytes)


CHUNK: Final = 1024 * 1024
"""Bytes written, or handed to a caller, at a time."""
WINDOW: Final = 4 * CHUNK
"""Bytes read at a time: SQLite walks from the first page of a blob to each offset."""


class AttachmentSpool:
    """The bytes of an attachment that arrive in parts. After `close`, `add` in another thread raises."""

    def __init__(self, folder: Path | None, limit: int) -> None:
        # The file has no name, so a crash leaves nothing behind. Without a folder it stays in memory.
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
        """The digest of the parts so far."""
        return self._hash.hexdigest()

    def sample(self) -> FileSample:
        """The parts for media type detection. Call it after the last part."""
        self._decode(b"", final=True)
        return FileSample(self._beginning, self._end, self.size, lambda: self._text)

    def chunks(self) -> Iterator[bytes]:
        self._file.seek(0)
        while chunk := self._file.read(CHUNK):
            yield chunk

    def whole(self) -> bytes:
        return b"".join(self.chunks())

    def close(self) -> None:
        with self._using:
            self._closed = True
            self._file.close()


def may_read(reader: Reader, session: str, digest: str) -> bool:
    """True if a session may read a blob. A fork may read the blobs that its parent could read when it was made."""
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


def audit_attachments(reader: Reader, blobs: Mapping[str, bool]) -> Iterator[tuple[str, str, str]]:
    """Attachments whose blob is missing: rule, place, finding."""
    for found in reader.attachments.raw():
        if found.digest not in blobs:
            yield "blob", f"attachment of {found.session!r}", f"refers to {found.digest}, which is not there"
