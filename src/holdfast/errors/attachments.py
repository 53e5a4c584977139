"""Attachments: not what they are said to be, not there, too many, or not to be collected."""

from __future__ import annotations

from holdfast.errors.tree import StoreError, UsageError


class MediaTypeMismatch(UsageError):
    """The bytes are of another kind than was said."""

    def __init__(self, said: str, found: str | None) -> None:
        what = f"they are {found}" if found is not None else "they do not begin as such a file does"
        super().__init__(f"the bytes are said to be {said}, but {what}; say what they are, or leave media_type out")
        self.said = said
        self.found = found


class AttachmentUnknown(UsageError):
    """There is no such attachment, or none that may be read here.

    One that is not there and one of another session look the same on purpose: whoever guesses learns nothing.
    """

    def __init__(self, digest: str, session: str | None) -> None:
        where = "in this store" if session is None else f"that the session {session!r} may read"
        super().__init__(f"there is no attachment {digest[:80]!r} {where}; put it first")
        self.digest = digest
        self.session = session


class AttachmentsFull(StoreError):
    """A session has as many attachments, or as many bytes of them, as it may have."""

    def __init__(self, session: str, what: str, limit: int) -> None:
        whose = f"the session {session!r} has" if session else "attachments that belong to no session are"
        super().__init__(
            f"{whose} at the limit of {limit:,} {what}; collect what nobody needs, or raise the limit of the store"
        )
        self.session = session
        self.what = what
        self.limit = limit


class CollectionRefused(StoreError):
    """Nothing was collected: it can't be seen what is still needed."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"nothing was collected: {reason}")
        self.reason = reason
