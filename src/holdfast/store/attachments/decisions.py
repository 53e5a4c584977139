"""What is decided about attachments. Pure, and shared by every backend."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.errors.attachments import AttachmentsFull, CollectionRefused

if TYPE_CHECKING:
    from holdfast.store.attachments.contract import Grounds
    from holdfast.store.limits import StoreLimits


def check_room(session: str, added: int, total: tuple[int, int], limits: StoreLimits) -> None:
    """Refuse an attachment of so many bytes for which a session has no room."""
    count, size = total
    if count >= limits.attachments:
        raise AttachmentsFull(session, "attachments", limits.attachments)
    if size + added > limits.attachments_bytes:
        raise AttachmentsFull(session, "bytes of attachments", limits.attachments_bytes)


def check_collection(grounds: Grounds, *, without_roots: bool) -> None:
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
