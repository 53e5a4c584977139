"""What all parts of the door to a store share: the backend behind it, and how large a page may be."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.errors import JournalCorrupt, StoreReadOnly
from holdfast.names import check_int
from holdfast.secrets.redactor import Redactor
from holdfast.store.contract import Quarantine

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.errors import HoldfastError
    from holdfast.store.contract import Backend, Command, Reader


T = TypeVar("T")


class Calls:
    """Calls that are carried out by a backend."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.redactor = Redactor()
        """What is hidden in all that is written here."""

    def _submit(
        self, command: Command[T], then: Callable[[asyncio.Future[T]], None] | None = None
    ) -> asyncio.Future[T]:
        """Queue a command: the one way to the backend, and nothing gets by here that holds a secret."""
        if self.redactor.active:
            from holdfast.store.redaction import redact_command  # noqa: PLC0415  it imports the commands of every topic

            command = redact_command(command, self.redactor)
        return self._backend.submit(command, then)

    def _page(self, limit: int | None) -> int:
        page = self._backend.limits.page
        if limit is None:
            return page
        if type(limit) is int and limit > page:
            return page
        return check_int("limit", limit, least=1)

    def _wall(self) -> int:
        return self._backend.clock.read().wall

    async def _guarded(self, journal: str, query: Callable[[Reader], T]) -> T:
        """Read, and quarantine the journal if what was read can't be trusted."""
        try:
            return await self._backend.read(query)
        except JournalCorrupt as error:
            where = f"record {error.seq}: " if error.seq else ""
            with suppress(StoreReadOnly):  # whoever opens it to work on it finds the same
                await self._submit(Quarantine(journal, f"{where}{error.reason}"))
            raise


def refused(error: HoldfastError) -> asyncio.Future[Any]:
    """What was refused before it could be queued, told like all that is refused later."""
    refused: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    refused.set_exception(error)
    return refused


class Versions:
    """A version that grows. Who has seen version n and waits for more can't miss version n+1."""

    def __init__(self) -> None:
        self.current = 0
        self._next = asyncio.Event()

    def advance(self) -> None:
        """Something changed: wake everyone who waits."""
        self.current += 1
        self._next.set()
        self._next = asyncio.Event()

    async def after(self, version: int, timeout: float | None) -> int:
        """The first version above `version`, or the present one when the time is up."""
        try:
            async with asyncio.timeout(timeout):
                while self.current <= version:
                    await self._next.wait()
        except TimeoutError:
            pass
        return self.current
