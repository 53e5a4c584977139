"""Attachments in memory: the rows of a transaction and the reads of a store that keeps nothing on a disk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from holdfast.store.attachments.contract import Grounds

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from holdfast.store.attachments.contract import StoredAttachment
    from holdfast.store.contract import JournalRow


class Disk(Protocol):
    """What else the store has."""

    blobs: dict[str, tuple[int, bytes]]
    """Each with when it was put."""

    @property
    def journal_rows(self) -> Mapping[str, JournalRow]: ...
    @property
    def references(self) -> Iterable[tuple[str, int, int]]: ...


class AttachmentTable:
    """`AttachmentRows` and `AttachmentReader`."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._kept: dict[tuple[str, str], StoredAttachment] = {}

    # ---- inside a transaction ----

    def total(self, session: str) -> tuple[int, int]:
        mine = [found.size for found in self._kept.values() if found.session == session]
        return len(mine), sum(mine)

    def put(self, found: StoredAttachment) -> None:
        self._kept[found.session, found.digest] = found

    def forget(self, digest: str) -> None:
        self._disk.blobs.pop(digest, None)
        self._kept = {place: found for place, found in self._kept.items() if found.digest != digest}

    def names(self, digest: str) -> bool:
        """Whether a session may read these bytes, or anybody has put them."""
        return any(found == digest for _, found in self._kept)

    # ---- both ----

    def find(self, session: str, digest: str) -> StoredAttachment | None:
        return self._kept.get((session, digest))

    def grounds(self) -> Grounds:
        damaged = [row.id for row in self._disk.journal_rows.values() if row.quarantine is not None]
        return Grounds(bool(self._disk.blobs), bool(self._roots()), min(damaged, default=None))

    def unused(self, before: int, *, after: str = "", limit: int = -1) -> list[tuple[str, int]]:
        behind = sorted(digest for digest in self._disk.blobs if digest > after)
        found = self.unused_of(behind, before)
        return found if limit < 0 else found[:limit]

    def unused_of(self, digests: Sequence[str], before: int) -> list[tuple[str, int]]:
        roots = self._roots() | {found.digest for found in self._kept.values() if found.at >= before}
        there = [(digest, self._disk.blobs[digest]) for digest in digests if digest in self._disk.blobs]
        return [(digest, len(body)) for digest, (at, body) in there if at < before and digest not in roots]

    def _roots(self) -> set[str]:
        rows = self._disk.journal_rows
        referred = {digest for digest, _, _ in self._disk.references}
        return referred | {found.digest for found in self._kept.values() if found.session in rows}

    # ---- reading ----

    def of(self, session: str, after: str, limit: int) -> list[StoredAttachment]:
        mine = [found for (whose, digest), found in sorted(self._kept.items()) if whose == session and digest > after]
        return mine[:limit]

    def refers(self, journal: str, digest: str, upto: int | None) -> bool:
        row = self._disk.journal_rows.get(journal)
        return row is not None and any(
            (one, no) == (digest, row.no) and (upto is None or 0 < seq <= upto)
            for one, no, seq in self._disk.references
        )

    def task_refers(self, session: str, digest: str) -> bool:
        tasks = [row.id for row in self._disk.journal_rows.values() if (row.session, row.role) == (session, "task")]
        return any(self.refers(id, digest, None) for id in tasks)

    def raw(self) -> Iterator[StoredAttachment]:
        yield from self._kept.values()
