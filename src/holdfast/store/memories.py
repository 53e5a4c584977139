"""Memory: scoped, keyed texts that outlive sessions, each with a version and a history of its changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Protocol

import msgspec

from holdfast.errors import MemoryConflict, MemoryCorrupt, MemoryFull, PayloadTooLarge
from holdfast.names import check_id, check_int, check_name, check_string
from holdfast.store.calls import Calls
from holdfast.store.contract import Command

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from holdfast.store.contract import Reader, Rows
    from holdfast.store.limits import StoreLimits


ChangeKind = Literal["put", "deleted", "expired"]
TAINTED_FILES: Final = "holdfast.tainted-files."
"""How the scopes begin in which the runtime marks files that were written while tainted. They are not mirrored."""


class MemoryEntry(msgspec.Struct, frozen=True):
    """One entry. Times are wall milliseconds; `version` only grows, also when it is deleted and made again."""

    scope: str
    key: str
    version: int
    value: str
    created: int
    updated: int
    expires: int | None = None
    by: str | None = None
    """Who wrote it."""


class MemoryChange(msgspec.Struct, frozen=True):
    """One change of an entry. `value` is None where it was removed, and where what was written has expired."""

    scope: str
    key: str
    version: int
    change: ChangeKind
    value: str | None
    at: int
    by: str | None = None
    expires: int | None = None


class MemoryScope(msgspec.Struct, frozen=True):
    """A scope that has entries: how many, and their keys and values in bytes."""

    scope: str
    entries: int
    bytes: int


class MemoryKey(NamedTuple):
    """Where an entry is."""

    scope: str
    key: str


class MemoryPage(NamedTuple):
    """Entries that were asked for, and where those are that are not what was written: they are left out."""

    entries: list[MemoryEntry]
    damaged: list[MemoryKey]
    more: bool = False
    """Whether the page was full: there may be more behind the last entry."""


class PutMemory(Command[MemoryEntry], frozen=True):
    """Write an entry, if it has the version that is expected (0: it must not exist)."""

    scope: str
    key: str
    value: str
    expected: int | None = None
    expires: int | None = None
    by: str | None = None

    def size(self) -> int:
        return len(self.value)


class DeleteMemory(Command[MemoryEntry | None], frozen=True):
    """Remove an entry, if it has the version that is expected; answers what it was."""

    scope: str
    key: str
    expected: int | None = None
    by: str | None = None


class Purged(NamedTuple):
    """How many entries were removed, and whether there may be more to do."""

    entries: int
    more: bool


class PurgeMemory(Command[Purged], frozen=True):
    """Remove entries that have expired, and their values from their history; at most `limit` of each."""

    limit: int


class MemoryRows(Protocol):
    """Memory inside a transaction. Entries that have expired are there until they are purged."""

    def entry(self, scope: str, key: str) -> MemoryEntry | None: ...
    def last_version(self, scope: str, key: str) -> int: ...
    def usage(self, scope: str, now: int) -> MemoryScope:
        """Of the entries that have not expired."""
        ...

    def put(self, entry: MemoryEntry) -> None: ...
    def remove(self, scope: str, key: str) -> None: ...
    def add_change(self, change: MemoryChange, keep: int) -> None:
        """Add to the history of an entry, of which the last `keep` changes stay."""
        ...

    def expired(self, now: int, limit: int) -> list[MemoryEntry]: ...
    def forget_expired_values(self, now: int, limit: int) -> int:
        """Take values that have expired out of the history; answers how many."""
        ...


class MemoryReader(Protocol):
    """Memory as it can be read. Entries that have expired by `now` are left out."""

    def get(self, scope: str, key: str, now: int) -> MemoryEntry | None:
        """One that is damaged is a `MemoryCorrupt`."""
        ...

    def list(self, scope: str, prefix: str, after: str, now: int, limit: int) -> MemoryPage:
        """By key. Damaged ones take no room."""
        ...

    def search(self, scope: str | None, words: Sequence[str], now: int, limit: int) -> MemoryPage:
        """Those whose key or value has all the words, the best first."""
        ...

    def history(self, scope: str, key: str, now: int, limit: int) -> list[MemoryChange]:
        """Newest first."""
        ...

    def scopes(self, now: int) -> list[MemoryScope]:
        """By name; those without entries are left out."""
        ...

    def raw(self) -> Iterator[tuple[MemoryEntry, bool]]:
        """All entries, each with whether it is sound."""
        ...

    def raw_changes(self) -> Iterator[MemoryChange]: ...


def size_of(key: str, value: str) -> int:
    """What an entry takes of the room of its scope, in bytes."""
    return len(key.encode()) + len(value.encode())


def has_expired(entry: MemoryEntry | MemoryChange, now: int) -> bool:
    """Whether nobody may see it any more."""
    return entry.expires is not None and entry.expires <= now


def living(entry: MemoryEntry | None, now: int) -> MemoryEntry | None:
    """The entry, unless it has expired: then it is as if there were none."""
    return None if entry is None or has_expired(entry, now) else entry


def check_version(scope: str, key: str, entry: MemoryEntry | None, expected: int | None) -> None:
    """Whoever names a version changes that one and no other; 0 stands for none."""
    current = 0 if entry is None else entry.version
    if expected is not None and expected != current:
        raise MemoryConflict(scope, key, expected, current)


def check_room(asked: PutMemory, entry: MemoryEntry | None, used: MemoryScope, limits: StoreLimits) -> None:
    """A scope has a limit of entries and one of bytes. What the entry took before is free."""
    if entry is None and used.entries >= limits.scope_entries:
        raise MemoryFull(asked.scope, "entries", limits.scope_entries)
    before = 0 if entry is None else size_of(entry.key, entry.value)
    after = size_of(asked.key, asked.value)
    if after > before and used.bytes - before + after > limits.scope_bytes:
        raise MemoryFull(asked.scope, "bytes", limits.scope_bytes)


def written(asked: PutMemory, entry: MemoryEntry | None, last_version: int, now: int) -> MemoryEntry:
    """The entry as it will be."""
    created = now if entry is None else entry.created
    return MemoryEntry(asked.scope, asked.key, last_version + 1, asked.value, created, now, asked.expires, asked.by)


def change_of(entry: MemoryEntry, kind: ChangeKind, *, version: int, now: int, by: str | None) -> MemoryChange:
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


class MemoryCalls(Calls):
    """Memory: scoped, keyed texts that outlive sessions."""

    async def memory_put(  # noqa: PLR0913  what an entry is
        self,
        scope: str,
        key: str,
        value: str,
        *,
        expected: int | None = None,
        expires: int | None = None,
        by: str | None = None,
    ) -> MemoryEntry:
        """Write an entry; answers it with its new version.

        With `expected`, only if that is its version (0: it must not exist), else `MemoryConflict`. From `expires` on
        (wall milliseconds) it is as if it were not there. A scope that has no room for it is a `MemoryFull`.
        """
        _place(scope, key)
        size = len(check_string("memory value", value).encode())
        limit = self._backend.limits.memory_bytes
        if size > limit:
            raise PayloadTooLarge("the value", size, limit)
        if expires is not None:
            check_int("expires", expires)
        _check_terms(expected, by)
        return await self._submit(PutMemory(scope, key, value, expected, expires, by))

    async def memory_get(self, scope: str, key: str) -> MemoryEntry | None:
        """The entry as it is now; None when there is none. One that is damaged is a `MemoryCorrupt`."""
        _place(scope, key)
        now = self._wall()
        return await self._backend.read(lambda reader: reader.memories.get(scope, key, now))

    async def memory_delete(
        self, scope: str, key: str, *, expected: int | None = None, by: str | None = None
    ) -> MemoryEntry | None:
        """Remove an entry; answers what it was, None when there was none. `expected` is as in `memory_put`."""
        _place(scope, key)
        _check_terms(expected, by)
        return await self._submit(DeleteMemory(scope, key, expected, by))

    async def memory_page(
        self, scope: str, prefix: str = "", *, after: str = "", limit: int | None = None
    ) -> MemoryPage:
        """Entries of a scope whose key begins with `prefix`, by key, and where damaged ones are, which are left out.

        While there is `more`, pass the last key as `after` for the next page; no damaged one is told of twice then.
        """
        check_name("memory scope", scope)
        check_string("prefix", prefix)
        check_string("cursor", after)
        page, now = self._page(limit), self._wall()
        return await self._backend.read(lambda reader: reader.memories.list(scope, prefix, after, now, page))

    async def memory_list(
        self, scope: str, prefix: str = "", *, after: str = "", limit: int | None = None
    ) -> list[MemoryEntry]:
        """As `memory_page`, for whoever must not take one that is damaged for one that is gone: `MemoryCorrupt`."""
        page = await self.memory_page(scope, prefix, after=after, limit=limit)
        if page.damaged:
            raise MemoryCorrupt(*page.damaged[0])
        return page.entries

    async def memory_search(self, scope: str | None, words: str, limit: int | None = None) -> MemoryPage:
        """Entries (of all scopes without one) that have all these words in their key or value, the best first.

        What a word is, and whether parts of words are found, is up to the backend. Nothing in `words` is an operator.
        Damaged entries are left out; it is said where they are.
        """
        if scope is not None:
            check_name("memory scope", scope)
        wanted = words_of(check_string("words", words))
        page, now = self._page(limit), self._wall()
        if not wanted:
            return MemoryPage([], [])
        return await self._backend.read(lambda reader: reader.memories.search(scope, wanted, now, page))

    async def memory_history(self, scope: str, key: str, limit: int | None = None) -> list[MemoryChange]:
        """The changes of an entry, newest first, also of one that was deleted. A bounded number of them is kept."""
        _place(scope, key)
        page, now = self._page(limit), self._wall()
        return await self._backend.read(lambda reader: reader.memories.history(scope, key, now, page))

    async def memory_scopes(self) -> list[MemoryScope]:
        """The scopes that have entries, by name, with how much they hold."""
        now = self._wall()
        return await self._backend.read(lambda reader: reader.memories.scopes(now))

    async def memory_purge(self) -> int:
        """Remove what has expired, also from the history; answers how many entries that were."""
        entries, more = 0, True
        while more:
            step = await self._submit(PurgeMemory(self._backend.limits.page))
            entries, more = entries + step.entries, step.more
        return entries


def _place(scope: str, key: str) -> None:
    check_name("memory scope", scope)
    check_name("memory key", key)


def _check_terms(expected: int | None, by: str | None) -> None:
    if expected is not None:
        check_int("expected version", expected)
    if by is not None:
        check_id("author", by)


class Memories:
    """The memory of one transaction, at one moment."""

    __slots__ = ("_limits", "_now", "_rows")

    def __init__(self, rows: Rows, limits: StoreLimits, now: int) -> None:
        self._rows = rows
        self._limits = limits
        self._now = now

    def put(self, asked: PutMemory) -> MemoryEntry:
        rows = self._rows.memories
        found = living(rows.entry(asked.scope, asked.key), self._now)
        check_version(asked.scope, asked.key, found, asked.expected)
        check_room(asked, found, rows.usage(asked.scope, self._now), self._limits)
        entry = written(asked, found, rows.last_version(asked.scope, asked.key), self._now)
        rows.put(entry)
        self._tell(entry, "put", entry.version, asked.by)
        return entry

    def delete(self, asked: DeleteMemory) -> MemoryEntry | None:
        found = living(self._rows.memories.entry(asked.scope, asked.key), self._now)
        check_version(asked.scope, asked.key, found, asked.expected)
        if found is not None:
            self._remove(found, "deleted", asked.by)
        return found

    def purge(self, asked: PurgeMemory) -> Purged:
        rows = self._rows.memories
        expired = rows.expired(self._now, asked.limit)
        for entry in expired:
            self._remove(entry, "expired", None)
        forgotten = rows.forget_expired_values(self._now, asked.limit)
        return Purged(len(expired), asked.limit in (len(expired), forgotten))

    def _remove(self, entry: MemoryEntry, kind: ChangeKind, by: str | None) -> None:
        rows = self._rows.memories
        version = rows.last_version(entry.scope, entry.key) + 1
        rows.remove(entry.scope, entry.key)
        self._tell(entry, kind, version, by)

    def _tell(self, entry: MemoryEntry, kind: ChangeKind, version: int, by: str | None) -> None:
        change = change_of(entry, kind, version=version, now=self._now, by=by)
        self._rows.memories.add_change(change, self._limits.memory_changes)


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
