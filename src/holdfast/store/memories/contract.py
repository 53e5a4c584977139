"""What an entry of memory is, the commands that change it, and what a backend keeps of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Protocol

import msgspec

from holdfast.store.contract import Command

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ChangeKind = Literal["put", "deleted", "expired"]


TAINTED_FILES: Final = "holdfast.tainted-files."
"""How the scopes begin in which the runtime marks files that were written while tainted. They are not mirrored."""


class Remembered(msgspec.Struct, frozen=True):
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


class MemoryPlace(NamedTuple):
    """Where an entry is."""

    scope: str
    key: str


class MemoryPage(NamedTuple):
    """Entries that were asked for, and where those are that are not what was written: they are left out."""

    entries: list[Remembered]
    damaged: list[MemoryPlace]
    more: bool = False
    """Whether the page was full: there may be more behind the last entry."""


# ---- commands --------------------------------------------------------------------------------------------------------


class PutMemory(Command[Remembered], frozen=True):
    """Write an entry, if it has the version that is expected (0: it must not exist)."""

    scope: str
    key: str
    value: str
    expected: int | None = None
    expires: int | None = None
    by: str | None = None

    def size(self) -> int:
        return len(self.value)


class DeleteMemory(Command[Remembered | None], frozen=True):
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


# ---- what a backend provides -----------------------------------------------------------------------------------------


class MemoryRows(Protocol):
    """Memory inside a transaction. Entries that have expired are there until they are purged."""

    def entry(self, scope: str, key: str) -> Remembered | None: ...
    def last_version(self, scope: str, key: str) -> int: ...
    def usage(self, scope: str, now: int) -> MemoryScope:
        """Of the entries that have not expired."""
        ...

    def put(self, entry: Remembered) -> None: ...
    def remove(self, scope: str, key: str) -> None: ...
    def add_change(self, change: MemoryChange, keep: int) -> None:
        """Add to the history of an entry, of which the last `keep` changes stay."""
        ...

    def expired(self, now: int, limit: int) -> list[Remembered]: ...
    def forget_expired_values(self, now: int, limit: int) -> int:
        """Take values that have expired out of the history; answers how many."""
        ...


class MemoryReader(Protocol):
    """Memory as it can be read. Entries that have expired by `now` are left out."""

    def get(self, scope: str, key: str, now: int) -> Remembered | None:
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

    def raw(self) -> Iterator[tuple[Remembered, bool]]:
        """All entries, each with whether it is sound."""
        ...

    def raw_changes(self) -> Iterator[MemoryChange]: ...
