"""What must always be true of tombstones, checked over the raw rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from holdfast.store.contract import JournalRow, Reader
    from holdfast.store.spending.fold import Tally


def audit_tombstones(
    reader: Reader, rows: Iterable[JournalRow], tally: Tally | None = None
) -> Iterator[tuple[str, str, str]]:
    """Every violated invariant: which, where, and what was found. What they say was spent is counted."""
    alive = {row.id for row in rows}
    last = reader.last_position()
    for stone, sound in reader.pruning.raw():
        where = f"{stone.journal}/tombstone"
        if not sound:
            yield "checksum", where, "the tombstone does not match its checksum"
            if tally is not None:
                tally.doubt(stone.agent)
            continue
        if stone.journal in alive:
            yield "tombstone", where, "it was pruned, but it is there"
        if not 0 < stone.pos <= last:
            yield "tombstone", where, f"its last record stood at {stone.pos}, but the store has come to {last}"
        if tally is not None:
            tally.add_pruned(stone)
