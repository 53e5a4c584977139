"""Memory: texts and JSON values under a scope and a key, which outlive sessions, with versions and a history."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Generic, Literal, NamedTuple

import msgspec
from typing_extensions import TypeVar

from holdfast.effects.canonical import canonical_json
from holdfast.errors import MemoryConflict, MemoryFull
from holdfast.store.contract import Command, Reader, StoreLimits

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.store.transaction import Transaction


ValueT = TypeVar("ValueT", default=Any)
ChangeKind = Literal["put", "deleted", "expired"]
TAINTED_FILES: Final = "holdfast.tainted-files."
"""Prefix of the scopes where the runtime marks files written while tainted; not mirrored."""


class MemoryEntry(msgspec.Struct, Generic[ValueT], frozen=True):
    """One entry. Times are wall milliseconds. `version` only grows, also across deletion."""

    scope: str
    key: str
    version: int
    value: ValueT
    """A text, or any other JSON value."""
    created: int
    updated: int
    expires: int | None = None
    by: str | None = None
    """The author."""
    summary: str = ""
    """One line about the value, for lists."""
    metadata: dict[str, Any] = {}
    """A JSON object of the host. The memory tool does not show it."""

    @property
    def text(self) -> str:
        """The value as a text: itself, or its JSON."""
        return text_of(self.value)


class MemoryChange(msgspec.Struct, frozen=True):
    """One change of an entry. `value` is None for a removal, and for a value that has expired."""

    scope: str
    key: str
    version: int
    change: ChangeKind
    value: Any
    at: int
    by: str | None = None
    expires: int | None = None
    summary: str = ""
    metadata: dict[str, Any] = {}

    @property
    def text(self) -> str | None:
        """The value as a text, None without one."""
        return None if self.value is None else text_of(self.value)


class MemoryScope(msgspec.Struct, frozen=True):
    """A scope: its number of entries, and the bytes of their keys, values, summaries and metadata."""

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
    """Write an entry if it has the `expected` version (0: it must not exist). Bytes are the JSON of a value."""

    scope: str
    key: str
    value: str | bytes
    expected: int | None = None
    expires: int | None = None
    by: str | None = None
    summary: str = ""
    metadata: bytes | None = None

    def apply(self, tx: Transaction) -> MemoryEntry:
        table, now = tx.rows.memories, tx.now.wall
        found = unexpired(table.entry(self.scope, self.key), now)
        check_version(self.scope, self.key, found, self.expected)
        version = table.last_version(self.scope, self.key) + 1
        entry: MemoryEntry = MemoryEntry(
            self.scope,
            self.key,
            version,
            self.value if isinstance(self.value, str) else msgspec.json.decode(self.value),
            created=now if found is None else found.created,
            updated=now,
            expires=self.expires,
            by=self.by,
            summary=self.summary,
            metadata={} if self.metadata is None else msgspec.json.decode(self.metadata),
        )
        check_room(entry, found, table.usage(self.scope, now), tx.limits)
        table.put(entry)
        change = MemoryChange(
            *(self.scope, self.key, version, "put", entry.value, now, self.by, self.expires),
            summary=entry.summary,
            metadata=entry.metadata,
        )
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


def text_of(value: object) -> str:
    """A value as people and models read it: a text as it is, and any other value as indented JSON."""
    return value if isinstance(value, str) else msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def size_of(entry: MemoryEntry) -> int:
    """Bytes of an entry that count against the limit of its scope."""
    metadata = canonical_json(entry.metadata) if entry.metadata else b""
    return len(f"{entry.key}{entry.text}{entry.summary}".encode()) + len(metadata)


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


def check_room(entry: MemoryEntry, replaced: MemoryEntry | None, used: MemoryScope, limits: StoreLimits) -> None:
    """Raise `MemoryFull` if the scope has no room for the entry; the one that it replaces counts as free."""
    if replaced is None and used.entries >= limits.scope_entries:
        raise MemoryFull(entry.scope, "entries", limits.scope_entries)
    before = 0 if replaced is None else size_of(replaced)
    after = size_of(entry)
    if after > before and used.bytes - before + after > limits.scope_bytes:
        raise MemoryFull(entry.scope, "bytes", limits.scope_bytes)


def seen_at(change: MemoryChange, now: int) -> MemoryChange:
    """The change; without its value, summary and metadata if they have expired."""
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
