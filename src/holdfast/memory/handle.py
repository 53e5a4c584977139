"""The handle on the memory of one scope, for hosts and tools."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar, overload

import msgspec
from msgspec.structs import replace

from holdfast.effects.canonical import canonical_json, check_returns
from holdfast.errors import InvalidNumber, MemoryCorrupt, MemoryMisfit
from holdfast.names import check_id, check_name

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping

    from holdfast.store import MemoryChange, MemoryEntry, Store


T = TypeVar("T")


class Memory:
    """Keyed texts and JSON values of one scope that outlive sessions.

    Scopes and keys are names of 1 to 200 characters without separators, control characters, or dots at their ends. `by`
    is the author of changes through this handle, named in entries and their history. `changed` is called after each
    durable change through this handle.
    """

    __slots__ = ("_by", "_changed", "_store", "scope")

    def __init__(
        self, store: Store, scope: str, *, by: str | None = None, changed: Callable[[], None] | None = None
    ) -> None:
        self._store = store
        self.scope = check_name("memory scope", scope)
        self._by = None if by is None else check_id("author", by)
        self._changed = changed

    def __repr__(self) -> str:
        return f"Memory({self.scope!r})"

    def written_by(self, by: str) -> Memory:
        """The same memory for another author."""
        return Memory(self._store, self.scope, by=by, changed=self._changed)

    @overload
    async def get(self, key: str, *, returns: None = None) -> MemoryEntry | None: ...

    @overload
    async def get(self, key: str, *, returns: type[T]) -> MemoryEntry[T] | None: ...

    async def get(self, key: str, *, returns: type[Any] | None = None) -> MemoryEntry | None:
        """The entry; None without one. Its value has the type `returns`, by default a text or plain JSON types.

        `MemoryMisfit` if the value can't be read as that type.
        """
        entry = await self._store.memory_get(self.scope, key)
        if entry is None or returns is None:
            return entry
        decode = check_returns(returns)
        try:
            return replace(entry, value=decode(canonical_json(entry.value)))
        except (msgspec.MsgspecError, TypeError, ValueError) as error:
            wanted = getattr(returns, "__qualname__", repr(returns))
            raise MemoryMisfit(self.scope, key, wanted, str(error)) from error

    async def put(
        self,
        key: str,
        value: object,
        *,
        summary: str = "",
        metadata: Mapping[str, object] | None = None,
        expected: int | None = None,
        ttl: timedelta | float | None = None,
    ) -> MemoryEntry:
        """Write an entry, a text or a value with a JSON form; returns it with its new version.

        `summary` is one line about it, for lists; `metadata` a JSON object of yours. With `expected`, only if that is
        its version (0: it must not exist), else `MemoryConflict`. The entry expires after `ttl` (seconds or a
        timedelta). What is not given is empty afterwards, whatever the entry had before. `MemoryFull` if the scope has
        no room.
        """
        expires = None if ttl is None else self._store.clock.read().wall + _milliseconds(ttl)
        return await self._write(key, value, summary, metadata, expected, expires)

    async def rewrite(
        self,
        entry: MemoryEntry,
        value: object,
        *,
        summary: str | None = None,
        metadata: Mapping[str, object] | None = None,
    ) -> MemoryEntry:
        """Replace the value of an entry if its version is still that of `entry`; keep its expiry.

        Also keep its summary and metadata, unless others are given.
        """
        summary = entry.summary if summary is None else summary
        metadata = entry.metadata if metadata is None else metadata
        return await self._write(entry.key, value, summary, metadata, entry.version, entry.expires)

    async def copy(self, entry: MemoryEntry, key: str) -> MemoryEntry:
        """Write the value of `entry` under a free key, with the same expiry, summary and metadata."""
        return await self._write(key, entry.value, entry.summary, entry.metadata, 0, entry.expires)

    async def _write(
        self,
        key: str,
        value: object,
        summary: str,
        metadata: Mapping[str, object] | None,
        expected: int | None,
        expires: int | None,
    ) -> MemoryEntry:
        entry = await self._store.memory_put(
            *(self.scope, key, value),
            summary=summary,
            metadata=metadata,
            expected=expected,
            expires=expires,
            by=self._by,
        )
        self._tell()
        return entry

    async def delete(self, key: str, *, expected: int | None = None) -> MemoryEntry | None:
        """Remove an entry; returns it, or None without one. Its history stays."""
        gone = await self._store.memory_delete(self.scope, key, expected=expected, by=self._by)
        if gone is not None:
            self._tell()
        return gone

    async def list(self, prefix: str = "", *, after: str = "", limit: int | None = None) -> list[MemoryEntry]:
        """Entries whose key begins with `prefix`, by key. Pass the last key as `after` for the next page.

        Leaves out damaged entries; `damaged` lists them.
        """
        return (await self._store.memory_page(self.scope, prefix, after=after, limit=limit)).entries

    async def entries(
        self, prefix: str = "", *, damaged: Callable[[str], object] | None = None
    ) -> AsyncGenerator[MemoryEntry]:
        """All entries whose key begins with `prefix`, by key, read page by page.

        `damaged` is called with the key of each entry with a wrong checksum. Without it, such an entry raises
        `MemoryCorrupt`, so that it is not taken for a missing one.
        """
        after, more = "", True
        while more:
            page = await self._store.memory_page(self.scope, prefix, after=after)
            for place in page.damaged:
                if damaged is None:
                    raise MemoryCorrupt(*place)
                damaged(place.key)
            for entry in page.entries:
                yield entry
                after = entry.key
            more = page.more

    async def damaged(self, prefix: str = "") -> list[str]:
        """The keys of entries with a wrong checksum. Write them again, or restore them from a backup."""
        keys: list[str] = []
        async for _ in self.entries(prefix, damaged=keys.append):
            pass
        return keys

    async def search(self, words: str, limit: int | None = None) -> list[MemoryEntry]:
        """Entries that contain all these words in key, value or summary, best first. No word is an operator.

        Leaves out damaged entries.
        """
        return (await self._store.memory_search(self.scope, words, limit)).entries

    async def history(self, key: str, limit: int | None = None) -> list[MemoryChange]:
        """The changes of an entry, newest first, also of a deleted one. The store keeps a limited number."""
        return await self._store.memory_history(self.scope, key, limit)

    def _tell(self) -> None:
        if self._changed is not None:
            self._changed()


def _milliseconds(ttl: timedelta | float) -> int:
    seconds = ttl.total_seconds() if isinstance(ttl, timedelta) else ttl
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidNumber("ttl", ttl, "seconds or a timedelta are wanted")
    if not math.isfinite(seconds) or not 0 < seconds < 1e13:
        raise InvalidNumber("ttl", ttl, "it must be above 0, and finite")
    return max(round(seconds * 1000), 1)
