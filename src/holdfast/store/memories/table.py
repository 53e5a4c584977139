"""Memory of a store that keeps nothing on a disk: the rows of a transaction and the reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from holdfast.store.memories.contract import MemoryPage, MemoryScope
from holdfast.store.memories.decisions import contains, has_expired, living, seen_at, size_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from holdfast.store.memories.contract import MemoryChange, Remembered


class MemoryTable:
    """`MemoryRows` and `MemoryReader`."""

    def __init__(self) -> None:
        self._entries: dict[tuple[str, str], Remembered] = {}
        self._changes: dict[tuple[str, str], list[MemoryChange]] = {}

    # ---- inside a transaction ----

    def entry(self, scope: str, key: str) -> Remembered | None:
        return self._entries.get((scope, key))

    def last_version(self, scope: str, key: str) -> int:
        changes = self._changes.get((scope, key))
        return changes[-1].version if changes else 0

    def usage(self, scope: str, now: int) -> MemoryScope:
        sizes = [size_of(entry.key, entry.value) for entry in self._living(now) if entry.scope == scope]
        return MemoryScope(scope, len(sizes), sum(sizes))

    def put(self, entry: Remembered) -> None:
        self._entries[entry.scope, entry.key] = entry

    def remove(self, scope: str, key: str) -> None:
        del self._entries[scope, key]

    def add_change(self, change: MemoryChange, keep: int) -> None:
        changes = self._changes.setdefault((change.scope, change.key), [])
        changes.append(change)
        del changes[:-keep]

    def expired(self, now: int, limit: int) -> list[Remembered]:
        return [entry for entry in self._entries.values() if has_expired(entry, now)][:limit]

    def forget_expired_values(self, now: int, limit: int) -> int:
        forgotten = 0
        for changes in self._changes.values():
            for place, change in enumerate(changes):
                if change.value is not None and has_expired(change, now) and forgotten < limit:
                    changes[place] = replace(change, value=None)
                    forgotten += 1
        return forgotten

    def _living(self, now: int) -> list[Remembered]:
        return [self._entries[place] for place in sorted(self._entries) if not has_expired(self._entries[place], now)]

    # ---- reading ----

    def get(self, scope: str, key: str, now: int) -> Remembered | None:
        return living(self.entry(scope, key), now)

    def list(self, scope: str, prefix: str, after: str, now: int, limit: int) -> MemoryPage:
        chosen = (entry for entry in self._living(now) if entry.scope == scope and entry.key > after)
        return _page([entry for entry in chosen if entry.key.startswith(prefix)], limit)

    def search(self, scope: str | None, words: Sequence[str], now: int, limit: int) -> MemoryPage:
        chosen = (entry for entry in self._living(now) if scope in (None, entry.scope))
        return _page([entry for entry in chosen if contains(entry, words)], limit)

    def history(self, scope: str, key: str, now: int, limit: int) -> list[MemoryChange]:
        changes = self._changes.get((scope, key), [])
        return [seen_at(change, now) for change in reversed(changes)][:limit]

    def scopes(self, now: int) -> list[MemoryScope]:
        names = dict.fromkeys(entry.scope for entry in self._living(now))
        return [self.usage(name, now) for name in names]

    def raw(self) -> Iterator[tuple[Remembered, bool]]:
        for place in sorted(self._entries):
            yield self._entries[place], True

    def raw_changes(self) -> Iterator[MemoryChange]:
        for place in sorted(self._changes):
            yield from self._changes[place]


def _page(entries: list[Remembered], limit: int) -> MemoryPage:
    """Nothing is ever damaged here."""
    return MemoryPage(entries[:limit], [], len(entries) >= limit)
