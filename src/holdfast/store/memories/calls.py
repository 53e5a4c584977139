"""The part of the door to a store that is about memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.bounds import check_int
from holdfast.errors import MemoryCorrupt, PayloadTooLarge
from holdfast.names import check_id, check_name, check_string
from holdfast.store.calls import Calls
from holdfast.store.memories.contract import DeleteMemory, MemoryPage, PurgeMemory, PutMemory
from holdfast.store.memories.decisions import words_of

if TYPE_CHECKING:
    from holdfast.store.memories.contract import MemoryChange, MemoryScope, Remembered


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
    ) -> Remembered:
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

    async def memory_get(self, scope: str, key: str) -> Remembered | None:
        """The entry as it is now; None when there is none. One that is damaged is a `MemoryCorrupt`."""
        _place(scope, key)
        now = self._wall()
        return await self._backend.read(lambda reader: reader.memories.get(scope, key, now))

    async def memory_delete(
        self, scope: str, key: str, *, expected: int | None = None, by: str | None = None
    ) -> Remembered | None:
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
    ) -> list[Remembered]:
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
