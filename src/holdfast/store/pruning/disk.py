"""Forgetting in memory: what goes from the disk of a store that keeps nothing on one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from holdfast.store.pruning.contract import UNUSED_MS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.store.attachments.table import AttachmentTable
    from holdfast.store.contract import InputRow, JournalRow, Wait
    from holdfast.store.notifications.table import NotificationTable
    from holdfast.store.pruning.contract import Tombstone
    from holdfast.store.pruning.table import TombstoneTable


class Forgetting:
    """The part of a disk in memory that removes rows."""

    stones: TombstoneTable
    notifications: NotificationTable
    _journals: dict[str, JournalRow]
    _feed: list[Any]
    _positions: dict[int, list[int]]
    _inputs: dict[int, dict[int, InputRow]]
    _aliases: dict[tuple[int, str], int]
    _waits: dict[int, dict[str, Wait]]
    blobs: dict[str, tuple[int, bytes]]
    attachments: AttachmentTable
    _refs: set[tuple[str, int, int]]

    def last_position_of(self, row: JournalRow) -> int:
        """The position of the last record of a journal."""
        return self._positions[row.no][-1]

    def has_forks(self, row: JournalRow) -> bool:
        """Whether others go on from its records."""
        return any(other.parent == row.id for other in self._journals.values())

    def remove_blobs(self, row: JournalRow, before: int) -> None:
        """Remove old blobs that nobody but this journal refers to."""
        mine = {digest for digest, no, _ in self._refs if no == row.no}
        for digest in mine - {digest for digest, no, _ in self._refs if no != row.no}:
            if digest in self.blobs and self.blobs[digest][0] < before and not self.attachments.names(digest):
                del self.blobs[digest]

    def remove(self, row: JournalRow) -> None:
        """Remove a journal with all that belongs to it."""
        self.trim(row, row.head)
        del self._journals[row.id], self._positions[row.no], self._inputs[row.no], self._waits[row.no]
        self._aliases = {place: number for place, number in self._aliases.items() if place[0] != row.no}
        self._refs = {ref for ref in self._refs if ref[1] != row.no}
        self.notifications.remove(row.id)

    def trim(self, row: JournalRow, seq: int) -> int:
        """Remove records up to `seq`; how many there were."""
        doomed = self._positions[row.no][row.base : seq]
        for pos in doomed:
            self._feed[pos - 1] = None
        self._refs = {ref for ref in self._refs if ref[1] != row.no or not 1 <= ref[2] <= seq}
        return len(doomed)

    def empty_inputs(self, row: JournalRow, before: int, spare: Sequence[int]) -> int:
        """Forget what was said in old inputs."""
        emptied = self._old_inputs(row, before, spare)
        for one in emptied:
            self._inputs[row.no][one.input] = replace(one, body=b"")
        return len(emptied)

    def _old_inputs(self, row: JournalRow, before: int, spare: Sequence[int]) -> list[InputRow]:
        found = (one for one in self._inputs[row.no].values() if not one.pending and one.at < before and one.body)
        return [one for one in found if one.input not in spare]

    def remove_waits(self, row: JournalRow, prefix: str, before: int) -> int:
        """Remove old waits that are settled."""
        doomed = self._old_waits(row, prefix, before)
        for name in doomed:
            del self._waits[row.no][name]
        return len(doomed)

    def _old_waits(self, row: JournalRow, prefix: str, before: int) -> list[str]:
        waits = self._waits[row.no].values()
        settled = [wait for wait in waits if wait.state != "open" and 0 < wait.at < before]
        return [wait.name for wait in settled if wait.name.startswith(prefix)]

    def old(self, journal: str, before: int, spare: Sequence[int], prefix: str) -> tuple[int, int]:
        """How much would be forgotten."""
        row = self._journals[journal]
        return len(self._old_inputs(row, before, spare)), len(self._old_waits(row, prefix, before))


class MemoryPruning:
    """`PruningRows` and `PruningReader`."""

    def __init__(self, disk: Forgetting) -> None:
        self._disk = disk
        self.find = disk.stones.find
        self.after = disk.stones.after
        self.raw = disk.stones.raw
        self.last_position_of = disk.last_position_of
        self.has_forks = disk.has_forks
        self.trim = disk.trim
        self.empty_inputs = disk.empty_inputs
        self.remove_waits = disk.remove_waits
        self.old = disk.old

    def bury(self, row: JournalRow, stone: Tombstone) -> None:
        self._disk.remove_blobs(row, stone.at - UNUSED_MS)
        self._disk.remove(row)
        self._disk.stones.keep(stone)
