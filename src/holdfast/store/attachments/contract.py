"""What is kept about attachments, and the commands that change it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from holdfast.store.command import Command

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from holdfast.store.spooling import Spool

NOBODY: Final = ""
"""The session of attachments that were put for none: whoever is host may send them to any."""
BATCH: Final = 500
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
    body: bytes | Spool
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


# ---- what a backend provides -----------------------------------------------------------------------------------------


class Grounds(msgspec.Struct, frozen=True):
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
    def grounds(self) -> Grounds: ...
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
