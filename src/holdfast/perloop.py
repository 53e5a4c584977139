"""One value for each event loop: made when it is first asked for, gone with its loop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Generic, TypeVar
from weakref import WeakKeyDictionary, ref

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class PerLoop(Generic[T]):
    """What `make` makes, once for each event loop."""

    __slots__ = ("_last", "_made", "_make")

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._made: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, T]] = WeakKeyDictionary()
        self._last: tuple[ref[asyncio.AbstractEventLoop], T] | None = None

    def here(self) -> T:
        """That of the running loop."""
        loop = asyncio.get_running_loop()
        last = self._last
        return last[1] if last is not None and last[0]() is loop else self.of(loop)

    def of(self, loop: asyncio.AbstractEventLoop) -> T:
        """That of `loop`."""
        last = self._last
        if last is not None and last[0]() is loop:  # as nearly always: most processes have one loop
            return last[1]
        found = self._made.get(loop)
        if found is None:
            found = self._made[loop] = self._make()
        self._last = (ref(loop), found)
        return found
