"""Watching folders for triggers: what has settled is accepted, once, under a key that names the file as it is.

Every process that declared the trigger looks; the store takes each file once. What was accepted before a restart is
found under its key, and what came meanwhile is found because all that is there is looked at.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, Protocol

from holdfast.errors import HoldfastError, InboxFull, StoreClosed
from holdfast.triggers.folders import Settling, content_digest, file_key, payload_of, scan, text_of
from holdfast.triggers.sources import WatchSource

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from holdfast.triggers.folders import Found, Listing
    from holdfast.triggers.sources import Source

_log: Final = logging.getLogger("holdfast.triggers")

OFF: Final = 1.0
"""Between two looks at whether a trigger that is off is on again, in seconds."""


class Inbox(Protocol):
    """Where files are told."""

    async def watched(self, name: str) -> Source | None:
        """What a trigger watches now; None while it is off."""
        ...

    async def occurred(self, name: str, key: str, payload: object) -> bool:
        """Take an occurrence in; whether it is new."""
        ...


class Lookout:
    """Looks at the folder of one trigger, again and again."""

    def __init__(
        self,
        name: str,
        inbox: Inbox,
        mono: Callable[[], int],
        in_thread: Callable[[WatchSource], Awaitable[Listing]] | None = None,
    ) -> None:
        self._name = name
        self._inbox = inbox
        self._mono = mono
        self._scan = in_thread or _scan_in_thread
        self._source: WatchSource | None = None
        self._settling = Settling(0)
        self.problem = ""
        """Why not all files can be seen, if so."""

    async def run(self) -> None:
        """Look until cancelled, or until the store is closed."""
        while True:
            try:
                await self.look()
            except StoreClosed:
                return
            except HoldfastError as error:
                self._tell(str(error))
            await asyncio.sleep(OFF if self._source is None else self._source.poll_ms / 1000)

    async def look(self) -> int:
        """Look once; how many files were taken in."""
        source = await self._inbox.watched(self._name)
        if not isinstance(source, WatchSource):
            self._source = None
            return 0
        if source != self._source:
            self._source, self._settling = source, Settling(source.settle_ms)
        listing = await self._scan(source)
        self._tell(listing.problem)
        taken = 0
        for found in self._settling.look(listing.files, self._mono()):
            try:
                taken += await self._told(source, found)
            except InboxFull:
                break  # the rest is told when there is room
        return taken

    async def _told(self, source: WatchSource, found: Found) -> bool:
        content = ""
        if source.identity == "content":
            try:
                content = await asyncio.to_thread(content_digest, source, found)
            except OSError as error:
                self._tell(f"{text_of(found.path)}: {error.strerror}")
                return False
        key = file_key(source, found, content)
        fresh = await self._inbox.occurred(self._name, key, payload_of(source, found, content))
        self._settling.told(found)
        return fresh

    def _tell(self, problem: str) -> None:
        if problem and problem != self.problem:
            _log.warning("the trigger %r does not see all files: %s", self._name, problem)
        self.problem = problem


async def _scan_in_thread(source: WatchSource) -> Listing:
    return await asyncio.to_thread(scan, source)
