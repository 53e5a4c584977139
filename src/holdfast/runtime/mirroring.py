"""The mirror of memory while a runtime is open: there as soon as there is memory, and not before."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from holdfast.store.beside import memory_folder

if TYPE_CHECKING:
    from holdfast.memory import Memory, Mirror
    from holdfast.store import Store

PATIENCE: Final = 1.0
"""How long the last comparison may take when a runtime is closed, in seconds."""


class Mirroring:
    """Gives out memory, and keeps its files beside the store; `path` is None where nothing is mirrored.

    Memory is imported when it is first used: most runtimes have none.
    """

    def __init__(self, store: Store, path: Path | str | None) -> None:
        self._store = store
        self._path = None if path is None else Path(path)
        self._mirror: Mirror | None = None

    def memory(self, scope: str, by: str | None = None) -> Memory:
        """The memory of a scope."""
        from holdfast.memory import Memory  # noqa: PLC0415

        return Memory(self._store, scope, by=by, changed=self._changed)

    async def begin(self) -> None:
        """Mirror what there is, and take in what was written into the files meanwhile."""
        if self._path is None:
            return
        if await asyncio.to_thread(memory_folder(self._path).exists) or await self._store.memory_scopes():
            self._start(self._path)

    def _start(self, path: Path) -> Mirror:
        from holdfast.memory import Mirror  # noqa: PLC0415

        if self._mirror is None:
            self._mirror = Mirror(self._store, memory_folder(path))
            self._mirror.start()
        return self._mirror

    def _changed(self) -> None:
        if self._path is not None:
            self._start(self._path).changed()

    async def stop(self) -> None:
        """Write what is left, and look no more."""
        if self._mirror is not None:
            with suppress(TimeoutError):  # another process has it: that one writes it, or whoever opens next
                async with asyncio.timeout(PATIENCE):
                    await self._mirror.stop()
