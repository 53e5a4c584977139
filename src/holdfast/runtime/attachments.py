"""`runtime.attachments`: bytes that are stored once under their digest, and the sessions that may read them."""

from __future__ import annotations

import asyncio
import mimetypes
from collections.abc import AsyncGenerator, AsyncIterable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from holdfast import errors, media, names
from holdfast.messages import Attachment
from holdfast.policy.rules import milliseconds
from holdfast.store.attachments import CHUNK, AttachmentSpool

if TYPE_CHECKING:
    from holdfast.store import Collected, Store, StoredAttachment


COLLECT_GRACE: Final = timedelta(days=1)
"""Default age at which unreferenced bytes are collected."""
MIN_COLLECT_GRACE: Final = timedelta(minutes=10)
"""Least grace period: another process may be about to send what it has just put."""


class Attachments:
    """The attachments of a store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def put(
        self,
        data: bytes | Path | str | AsyncIterable[bytes],
        *,
        media_type: str | None = None,
        name: str | None = None,
        session: str | None = None,
    ) -> Attachment:
        """Store bytes, or the file at a path, once. When this returns they are durable; pass the result to `send`.

        Files and async iterables of bytes are streamed, not held in memory. The media type is detected from the
        content; a `media_type` that contradicts it raises `MediaTypeMismatch`. With `session`, only that session may
        read the bytes. Otherwise any session may, and `collect` deletes them if none refers to them.
        """
        if isinstance(data, Path | str):
            name = Path(data).name if name is None else name
        guessed = None if type(name) is not str else mimetypes.guess_type(name)[0]
        if isinstance(data, bytes):
            # `File` checks the arguments.
            kind = media.media_type_of(data, media_type, guessed) if data else media_type or "application/octet-stream"
            data = media.File(data, kind, name=name).data
            return as_attachment(await self._store.put_attachment(data, kind, name=name, session=session))
        if not isinstance(data, Path | str | AsyncIterable):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers may be untyped
            raise errors.InvalidArgument("data", data, "bytes, the path of a file, or an async iterable of bytes")
        spool = self._store.spool()
        try:
            if isinstance(data, AsyncIterable):
                await _fill_spool(spool, data)
            else:
                await asyncio.to_thread(_read_file, spool, Path(data))
            if not spool.size:
                raise errors.InvalidArgument("file", b"", "bytes that are not empty")  # the spool is closed below
            kind = media.check_media_type(media.media_type_of(spool.sample(), media_type, guessed), name)
        except BaseException:
            spool.close()  # ends a thread that still writes to it
            raise
        return as_attachment(await self._store.put_attachment(spool, kind, name=name, session=session))

    async def get(self, attachment: Attachment | str, *, session: str | None = None) -> bytes:
        """The bytes of an attachment or digest.

        Raises `AttachmentUnknown` if they are missing, or the given `session` may not read them.
        """
        digest = _digest_of(attachment)
        if session is None or await self._store.may_read(session, digest):
            body = await self._store.blob(digest)
            if body is not None:
                return body
        raise errors.AttachmentUnknown(digest, session)

    async def stream(self, attachment: Attachment | str, *, session: str | None = None) -> AsyncGenerator[bytes]:
        """Yield the bytes in parts: ``async for part in runtime.attachments.stream(picture)``.

        Damaged bytes raise `BlobCorrupt` before the last part.
        """
        digest = _digest_of(attachment)
        if session is not None and not await self._store.may_read(session, digest):
            raise errors.AttachmentUnknown(digest, session)
        begun = False
        try:
            async for chunk in self._store.blob_chunks(digest):
                begun = True
                yield chunk
        except errors.BlobMissing:
            if begun:  # collected meanwhile
                raise
            raise errors.AttachmentUnknown(digest, session) from None

    async def of(self, session: str | None = None) -> list[Attachment]:
        """The attachments put for a session or sent to it; without a session, those of none."""
        found: list[StoredAttachment] = []
        while page := await self._store.attachments(session, after=found[-1].digest if found else ""):
            found += page
        return [as_attachment(one) for one in found]

    async def collect(
        self, *, older_than: timedelta | float = COLLECT_GRACE, dry_run: bool = False, without_roots: bool = False
    ) -> Collected:
        """Delete unreferenced bytes: those that no record, input, fork, task, process or session refers to.

        Bytes that were put within `older_than` (a day; ten minutes at least) stay: they may be about to be sent. Raises
        `CollectionRefused` if references can't be read. With `dry_run` it only counts.
        """
        age = milliseconds(older_than)
        if age < milliseconds(MIN_COLLECT_GRACE):
            raise errors.InvalidArgument("older_than", older_than, f"{MIN_COLLECT_GRACE} or more")
        return await self._store.collect_unused(unused_ms=age, without_roots=without_roots, dry_run=dry_run)

    async def of_input(self, given: media.File | Attachment, session: str) -> Attachment:
        """The stored attachment of an input; raises `AttachmentUnknown` if it may not be sent to this session."""
        if isinstance(given, media.File):
            put = await self._store.put_attachment(given.data, given.media_type, name=given.name, session=session)
            return Attachment(put.digest, given.media_type, put.size, given.name)
        digest = _digest_of(given)
        put = await self._store.attachment(digest, session=session)
        put = put or await self._store.share_attachment(digest, session)
        if put is not None:
            return as_attachment(put)
        if not await self._store.may_read(session, digest) or (body := await self._store.blob(digest)) is None:
            raise errors.AttachmentUnknown(digest, session)
        return Attachment(digest, given.media_type, len(body), given.name)


def as_attachment(put: StoredAttachment) -> Attachment:
    """The attachment of a stored row."""
    return Attachment(put.digest, put.media_type, put.size, put.name)


def _digest_of(given: object) -> str:
    return names.check_id("digest", given.digest if isinstance(given, Attachment) else given)


def _read_file(spool: AttachmentSpool, path: Path) -> None:
    try:
        with path.open("rb") as file:
            while part := file.read(CHUNK):
                spool.add(part)
    except OSError as error:
        raise errors.InvalidArgument("file", str(path), f"one that can be read ({error.strerror})") from error


async def _fill_spool(spool: AttachmentSpool, parts: AsyncIterable[bytes]) -> None:
    """Write parts to a spool. Small parts are gathered, because each call of a thread costs more than their bytes."""
    gathered: list[bytes] = []
    size = 0
    async for part in parts:
        if type(part) is not bytes:
            raise errors.InvalidArgument("data", part, "parts that are bytes")
        gathered.append(part)
        size += len(part)
        if size >= CHUNK:
            await asyncio.to_thread(spool.add, b"".join(gathered))
            gathered, size = [], 0
    await asyncio.to_thread(spool.add, b"".join(gathered))
