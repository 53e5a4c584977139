"""Attachments as a host uses them: bytes kept once under their digest, and who may read them."""

from __future__ import annotations

import asyncio
import mimetypes
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from holdfast.agent import milliseconds
from holdfast.attachments import File
from holdfast.errors import AttachmentUnknown, InvalidArgument, PayloadTooLarge
from holdfast.media import media_type_of
from holdfast.messages import Attachment
from holdfast.names import check_id

if TYPE_CHECKING:
    from holdfast.store import Collected, Store, StoredAttachment

GRACE: Final = timedelta(days=1)
"""How long ago bytes must have been put that nobody refers to, before they are collected."""
LEAST_GRACE: Final = timedelta(minutes=10)
"""The shortest such time: what another process has just put must not be taken before it has sent it."""


class Attachments:
    """The attachments of a store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def put(
        self,
        data: bytes | Path | str,
        *,
        media_type: str | None = None,
        name: str | None = None,
        session: str | None = None,
    ) -> Attachment:
        """Keep bytes, or the file at a path, once. When this returns they are durable; `session.send` takes it.

        What they are is seen by how they begin; a `media_type` that says something else is a `MediaTypeMismatch`. With
        a `session`, only that one may read them. Otherwise they can be sent to any, and are collected when nobody has.
        """
        body, known = await self._read(data)
        name = known if name is None else name
        guessed = None if name is None else mimetypes.guess_type(name)[0]
        # `File` checks what was given, in the words that it has for that.
        kind = media_type_of(body, media_type, guessed) if body else media_type or "application/octet-stream"
        file = File(body, kind, name=name)
        return told(await self._store.put_attachment(file.data, kind, name=name, session=session))

    async def _read(self, data: bytes | Path | str) -> tuple[bytes, str | None]:
        if isinstance(data, bytes):
            return data, None
        if not isinstance(data, Path | str):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers may be untyped
            raise InvalidArgument("data", data, "bytes, or the path of a file")
        return await asyncio.to_thread(_file, Path(data), self._store.limits.attachment_bytes)

    async def get(self, attachment: Attachment | str, *, session: str | None = None) -> bytes:
        """The bytes of an attachment, or of a digest; with a `session`, only if that one may read them.

        `AttachmentUnknown` when there are none, and for a session also when they are another one's.
        """
        digest = _digest(attachment)
        if session is None or await self._store.may_read(session, digest):
            body = await self._store.blob(digest)
            if body is not None:
                return body
        raise AttachmentUnknown(digest, session)

    async def of(self, session: str | None = None) -> list[Attachment]:
        """The attachments that were put for a session or sent to it, or those of none."""
        found: list[StoredAttachment] = []
        while page := await self._store.attachments(session, after=found[-1].digest if found else ""):
            found += page
        return [told(one) for one in found]

    async def collect(
        self, *, older_than: timedelta | float = GRACE, dry_run: bool = False, without_roots: bool = False
    ) -> Collected:
        """Delete bytes to which nothing refers: no record, input, fork, task or process, and no session.

        Bytes that were put within `older_than` (a day; ten minutes at the least) stay: somebody may be about to send
        them. `CollectionRefused` where it can't be seen what is needed. With `dry_run` it is only counted.
        """
        age = milliseconds(older_than)
        if age < milliseconds(LEAST_GRACE):
            raise InvalidArgument("older_than", older_than, f"{LEAST_GRACE} or more")
        return await self._store.collect_unused(unused_ms=age, without_roots=without_roots, dry_run=dry_run)

    async def keep(self, file: File, session: str) -> Attachment:
        """Keep a file that is being sent to a session."""
        put = await self._store.put_attachment(file.data, file.media_type, name=file.name, session=session)
        return Attachment(put.digest, file.media_type, put.size, file.name)

    async def sendable(self, attachment: Attachment, session: str) -> Attachment:
        """An attachment as it was put, if it may be sent to this session."""
        digest = _digest(attachment)
        put = await self._store.attachment(digest, session=session)
        put = put or await self._store.share_attachment(digest, session)
        if put is not None:
            return told(put)
        if not await self._store.may_read(session, digest) or (body := await self._store.blob(digest)) is None:
            raise AttachmentUnknown(digest, session)
        return Attachment(digest, attachment.media_type, len(body), attachment.name)


def told(put: StoredAttachment) -> Attachment:
    """An attachment as people send it."""
    return Attachment(put.digest, put.media_type, put.size, put.name)


def _digest(given: object) -> str:
    return check_id("digest", given.digest if isinstance(given, Attachment) else given)


def _file(path: Path, limit: int) -> tuple[bytes, str]:
    try:
        with path.open("rb") as file:
            body = file.read(limit + 1)
            size = path.stat().st_size if len(body) > limit else len(body)
    except OSError as error:
        raise InvalidArgument("file", str(path), f"one that can be read ({error.strerror})") from error
    if size > limit:
        raise PayloadTooLarge("the attachment", size, limit)
    return body, path.name
