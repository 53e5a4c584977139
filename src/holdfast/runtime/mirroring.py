"""The mirror of memory while a runtime is open: there as soon as there is memory, and not before."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from holdfast.memory import Memory, Mirror, folder_beside

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.store import Store

PATIENCE: Final = 1.0
"""How long the last comparison may take when a runtime is closed, in seconds."""


class Mirroring:
    """Gives out memory, and keeps its files beside the store; `path` is None where nothing is mirrored."""

    def __init__(self, store: Store, path: Path | str | None) -> None:
        self._store = store
        self._mirror = None if path is None else Mirror(store, folder_beside(path))
        self._started = False

    def memory(self, scope: str, by: str | None = None) -> Memory:
        """The memory of a scope."""
        return Memory(self._store, scope, by=by, changed=self._changed)

    async def begin(self) -> None:
        """Mirror what there is, and take in what was written into the files meanwhile."""
        if self._mirror is None:
            return
        if await asyncio.to_thread(self._mirror.folder.exists) or await self._store.memory_scopes():
            self._start(self._mirror)

    def _start(self, mirror: Mirror) -> None:
        if not self._started:
            self._started = True
            mirror.start()

    def _changed(self) -> None:
        if self._mirror is not None:
            self._start(self._mirror)
            self._mirror.changed()

    async def stop(self) -> None:
        """Write what is left, and look no more."""
        if self._mirror is not None and self._started:
            with suppress(TimeoutError):  # another process has it: that one writes it, or whoever opens next
                async with asyncio.timeout(PATIENCE):
                    await self._mirror.stop()
