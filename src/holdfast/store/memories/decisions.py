"""Every rule of memory, as pure functions of what is stored, a request and the time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.errors import MemoryConflict, MemoryFull
from holdfast.store.memories.contract import MemoryChange, Remembered

if TYPE_CHECKING:
    from holdfast.store.limits import StoreLimits
    from holdfast.store.memories.contract import ChangeKind, MemoryScope, PutMemory


def size_of(key: str, value: str) -> int:
    """What an entry takes of the room of its scope, in bytes."""
    return len(key.encode()) + len(value.encode())


def has_expired(entry: Remembered | MemoryChange, now: int) -> bool:
    """Whether nobody may see it any more."""
    return entry.expires is not None and entry.expires <= now


def living(entry: Remembered | None, now: int) -> Remembered | None:
    """The entry, unless it has expired: then it is as if there were none."""
    return None if entry is None or has_expired(entry, now) else entry


def check_version(scope: str, key: str, entry: Remembered | None, expected: int | None) -> None:
    """Whoever names a version changes that one and no other; 0 stands for none."""
    current = 0 if entry is None else entry.version
    if expected is not None and expected != current:
        raise MemoryConflict(scope, key, expected, current)


def check_room(asked: PutMemory, entry: Remembered | None, used: MemoryScope, limits: StoreLimits) -> None:
    """A scope has a limit of entries and one of bytes. What the entry took before is free."""
    if entry is None and used.entries >= limits.scope_entries:
        raise MemoryFull(asked.scope, "entries", limits.scope_entries)
    before = 0 if entry is None else size_of(entry.key, entry.value)
    after = size_of(asked.key, asked.value)
    if after > before and used.bytes - before + after > limits.scope_bytes:
        raise MemoryFull(asked.scope, "bytes", limits.scope_bytes)


def written(asked: PutMemory, entry: Remembered | None, last_version: int, now: int) -> Remembered:
    """The entry as it will be."""
    created = now if entry is None else entry.created
    return Remembered(asked.scope, asked.key, last_version + 1, asked.value, created, now, asked.expires, asked.by)


def change_of(entry: Remembered, kind: ChangeKind, *, version: int, now: int, by: str | None) -> MemoryChange:
    """What the history of an entry says about a change."""
    if kind == "put":
        return MemoryChange(entry.scope, entry.key, version, kind, entry.value, now, by, entry.expires)
    return MemoryChange(entry.scope, entry.key, version, kind, None, now, by)


def seen_at(change: MemoryChange, now: int) -> MemoryChange:
    """A change as it may be shown: without a value that has expired."""
    if change.value is None or not has_expired(change, now):
        return change
    return MemoryChange(change.scope, change.key, change.version, change.change, None, change.at, change.by)


def words_of(text: str) -> tuple[str, ...]:
    """The words to search for, each once. No character of them means anything but itself."""
    return tuple(dict.fromkeys("".join(map(_word_character, text)).split()))


def _word_character(character: str) -> str:
    return character if character.isprintable() else " "
