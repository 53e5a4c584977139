"""Memory: texts under a scope and a key that outlive sessions, each with a version and a history."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import msgspec

from holdfast.errors import MemoryConflict, MemoryFull
from holdfast.store.contract import Command, Reader, StoreLimits

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.store.transaction import Transaction


ChangeKind = Literal["put", "deleted", "expired"]
TAINTED_FILES: Final = "holdfast.tainted-files."
"""Prefix of the scopes where the runtime marks files written while tainted; not mirrored."""


class MemoryEntry(msgspec.Struct, frozen=True):
    """One entry. Times are wall milliseconds. `version` only grows, also across deletion."""

    scope: str
    key: str
    version: int
    value: str
    created: int
    updated: int
    expires: int | None = None
    by: str | None = None
    """The author."""


class MemoryChange(msgspec.Struct, frozen=True):
    """One change of an entry. `value` is None for a removal, and for a value that has expired."""

    scope: str
    key: str
    version: int
    change: ChangeKind
    value: str | None
    at: int
    by: str | None = None
    expires: int | None = None


class MemoryScope(msgspec.Struct, frozen=True):
    """A scope: its number of entries, and the bytes of their keys and values."""

    scope: str
    entries: int
    bytes: int


class MemoryKey(NamedTuple):
    """Scope and key of an entry."""

    scope: str
    key: str


class MemoryPage(NamedTuple):
    """A page of entries. Damaged entries are left out; `damaged` has their keys."""

    entries: list[MemoryEntry]
    damaged: list[MemoryKey]
    more: bool = False
    """The page is full: there may be more after the last entry."""


class PutMemory(Command[MemoryEntry], frozen=True):
    """Write an entry if it has the `expected` version (0: it must not exist)."""

    scope: str
    key: str
    value: str
    expected: int | None = None
    expires: int | None = None
    by: str | None = None

    def apply(self, tx: Transaction) -> MemoryEntry:
        table, now = tx.rows.memories, tx.now.wall
        found = unexpired(table.entry(self.scope, self.key), now)
        check_version(self.scope, self.key, found, self.expected)
        check_room(self, found, table.usage(self.scope, now), tx.limits)
        version = table.last_version(self.scope, self.key) + 1
        created = now if found is None else found.created
        entry = MemoryEntry(self.scope, self.key, version, self.value, created, now, self.expires, self.by)
        table.put(entry)
        change = MemoryChange(self.scope, self.key, version, "put", self.value, now, self.by, self.expires)
        table.add_change(change, tx.limits.memory_changes)
        return entry


class DeleteMemory(Command[MemoryEntry | None], frozen=True):
    """Remove an entry if it has the `expected` version; answers the removed entry."""

    scope: str
    key: str
    expected: int | None = None
    by: str | None = None

    def apply(self, tx: Transaction) -> MemoryEntry | None:
        found = unexpired(tx.rows.memories.entry(self.scope, self.key), tx.now.wall)
        check_version(self.scope, self.key, found, self.expected)
        if found is not None:
            remove_entry(tx, found, "deleted", self.by)
        return found


# ---- decisions ----


def size_of(key: str, value: str) -> int:
    """Bytes of an entry that count against the limit of its scope."""
    return len(key.encode()) + len(value.encode())


def has_expired(entry: MemoryEntry | MemoryChange, now: int) -> bool:
    """True from the expiry time on."""
    return entry.expires is not None and entry.expires <= now


def unexpired(entry: MemoryEntry | None, now: int) -> MemoryEntry | None:
    """The entry, or None if it has expired."""
    return None if entry is None or has_expired(entry, now) else entry


def check_version(scope: str, key: str, entry: MemoryEntry | None, expected: int | None) -> None:
    """Raise `MemoryConflict` if the entry does not have the expected version (0: no entry)."""
    current = 0 if entry is None else entry.version
    if expected is not None and expected != current:
        raise MemoryConflict(scope, key, expected, current)


def check_room(command: PutMemory, entry: MemoryEntry | None, used: MemoryScope, limits: StoreLimits) -> None:
    """Raise `MemoryFull` if the scope has no room; the replaced entry counts as free."""
    if entry is None and used.entries >= limits.scope_entries:
        raise MemoryFull(command.scope, "entries", limits.scope_entries)
    before = 0 if entry is None else size_of(entry.key, entry.value)
    after = size_of(command.key, command.value)
    if after > before and used.bytes - before + after > limits.scope_bytes:
        raise MemoryFull(command.scope, "bytes", limits.scope_bytes)


def seen_at(change: MemoryChange, now: int) -> MemoryChange:
    """The change; without its value if that has expired."""
    if change.value is None or not has_expired(change, now):
        return change
    return MemoryChange(change.scope, change.key, change.version, change.change, None, change.at, change.by)


def words_of(text: str) -> tuple[str, ...]:
    """The words to search for, each once. No character is an operator."""
    printable = (character if character.isprintable() else " " for character in text)
    return tuple(dict.fromkeys("".join(printable).split()))


def remove_entry(tx: Transaction, entry: MemoryEntry, kind: ChangeKind, by: str | None) -> None:
    """Remove an entry and add the removal to its history."""
    table = tx.rows.memories
    version = table.last_version(entry.scope, entry.key) + 1
    table.remove(entry.scope, entry.key)
    change = MemoryChange(entry.scope, entry.key, version, kind, None, tx.now.wall, by)
    table.add_change(change, tx.limits.memory_changes)


def audit_memories(reader: Reader) -> Iterator[tuple[str, str, str]]:
    """Violated invariants of the memory: rule, place, finding."""
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
