"""What must always be true of memory, checked over the raw rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.store.contract import Reader
    from holdfast.store.memories.contract import MemoryChange


def audit_memories(reader: Reader) -> Iterator[tuple[str, str, str]]:
    """Every violated invariant: which, where, and what was found."""
    newest: dict[tuple[str, str], MemoryChange] = {}
    for change in reader.memories.raw_changes():
        before = newest.get((change.scope, change.key))
        if before is not None and change.version != before.version + 1:
            yield "memory", f"{change.scope}/{change.key}", f"version {change.version} follows {before.version}"
        newest[change.scope, change.key] = change
    present: set[tuple[str, str]] = set()
    for entry, sound in reader.memories.raw():
        where = f"{entry.scope}/{entry.key}"
        present.add((entry.scope, entry.key))
        if not sound:
            yield "checksum", where, "the memory does not match its checksum"
            continue
        last = newest.get((entry.scope, entry.key))
        if last is None or (last.version, last.change) != (entry.version, "put"):
            yield "memory", where, f"is at version {entry.version}, its history does not say so"
    for place, change in newest.items():
        if change.change == "put" and place not in present:
            yield "memory", "/".join(place), f"was written as version {change.version}, but is not there"
