"""Carries out the commands of attachments: decide, then write. Shared by every backend."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from holdfast.store.attachments import decisions
from holdfast.store.attachments.contract import NOBODY, Collected, StoredAttachment

if TYPE_CHECKING:
    from holdfast.store.attachments.contract import CollectBlobs, PutAttachment, ShareAttachment
    from holdfast.store.contract import Rows
    from holdfast.store.limits import StoreLimits


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
            decisions.check_room(asked.session, asked.size(), total, self._limits)
            made = (asked.session, asked.digest, asked.media_type, asked.size(), asked.name, self._now)
            found = StoredAttachment(*made)
            self._rows.attachments.put(found)
        # As it was: a fork may read what was put before it began. That somebody needs the bytes now is told by these.
        self._rows.put_blob(asked.digest, asked.body, self._now)
        return found

    def share(self, asked: ShareAttachment) -> StoredAttachment | None:
        rows = self._rows.attachments
        found = rows.find(asked.session, asked.digest)
        free = rows.find(NOBODY, asked.digest)
        if found is not None or free is None:
            return found
        decisions.check_room(asked.session, free.size, rows.total(asked.session), self._limits)
        shared = replace(free, session=asked.session, at=self._now)
        rows.put(shared)
        return shared

    def collect(self, asked: CollectBlobs) -> Collected:
        rows = self._rows.attachments
        decisions.check_collection(rows.grounds(), without_roots=asked.without_roots)
        doomed = rows.unused_of(asked.digests, asked.before)
        for digest, _ in doomed:
            rows.forget(digest)
        return Collected(len(doomed), sum(size for _, size in doomed))
