"""Noticing that a journal has grown, whoever wrote it.

Sessions that are driven here say so themselves. For all others one look at the store, at most every few milliseconds
and only when something was committed, serves everybody who waits.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from holdfast.errors import StoreClosed

if TYPE_CHECKING:
    from holdfast.store import Store

ANY: Final = ""
"""Stands for all journals together."""
_PAUSE: Final = 0.02


class Watch:
    """Who waits for which journal."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: dict[str, list[tuple[int, asyncio.Future[None]]]] = {}
        self._looking: asyncio.Task[None] | None = None
        self._closed = False
        self.local: set[str] = set()
        """Journals that are driven here: whoever drives them says when they have grown."""

    def touch(self, journal: str) -> None:
        """Something about `journal` has changed here: whoever waits for it should look again."""
        for name in (journal, ANY):
            for _, waiter in self._waiting.pop(name, ()):
                if not waiter.done():
                    waiter.set_result(None)

    async def beyond(self, journal: str, head: int, version: int) -> None:
        """Wait until `journal` has records above `head` (for `ANY`: the store has positions above it), or is touched.

        `version` is the version of the store when the caller last looked.
        """
        if self._closed:
            raise StoreClosed
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (head, waiter)
        self._waiting.setdefault(journal, []).append(entry)
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        try:
            if self._store.version != version:
                await self._compare([journal])  # what came between the caller's look and now
            await waiter
        finally:
            with suppress(ValueError, KeyError):
                self._waiting[journal].remove(entry)
                if not self._waiting[journal]:
                    del self._waiting[journal]

    async def _look(self) -> None:
        """Compare what people wait for with what is there, as long as anybody waits."""
        try:
            while self._waiting:
                version = self._store.version
                await self._compare([name for name in self._waiting if name not in self.local])
                if not self._waiting:
                    return
                await self._store.changed(version, None)
                await asyncio.sleep(_PAUSE)
        except StoreClosed:
            self._fail(StoreClosed())
        except Exception as error:  # noqa: BLE001  whoever waits must hear of it
            self._fail(error)

    async def _compare(self, journals: list[str]) -> None:
        names = [name for name in journals if name != ANY]
        heads = await self._store.heads(names) if names else {}
        if ANY in journals:
            heads[ANY] = await self._store.last_position()
        for name, head in heads.items():
            for known, waiter in list(self._waiting.get(name, ())):
                if head > known and not waiter.done():
                    waiter.set_result(None)

    def _fail(self, error: Exception) -> None:
        waiting, self._waiting = self._waiting, {}
        for entries in waiting.values():
            for _, waiter in entries:
                if not waiter.done():
                    waiter.set_exception(error)

    async def close(self) -> None:
        """Nobody waits any more."""
        self._closed = True
        if self._looking is not None:
            self._looking.cancel()
            with suppress(asyncio.CancelledError):
                await self._looking
        self._fail(StoreClosed())
