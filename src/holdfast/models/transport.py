"""How bytes get to a provider and back: a small protocol, and the one that everybody uses, over `aiohttp`.

Four times bound a call, each for itself: to connect, to the first byte, between two pieces, and the whole. A stream
that keeps coming is never ended by any of the first three, however long it takes.
"""

from __future__ import annotations

import asyncio
import threading
from functools import cache
from typing import TYPE_CHECKING, Protocol

import msgspec

from holdfast.models.retry import check_seconds

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Mapping

    from holdfast.models.lane import Lane


class Timeouts(msgspec.Struct, frozen=True, kw_only=True):
    """How long a call may take, in seconds, with the defaults."""

    connect: float = 15.0
    """Until the connection stands: name, socket, TLS."""
    first_byte: float = 300.0
    """From the request to the beginning of the answer, and from there to the first piece of its body."""
    idle: float = 120.0
    """Between two pieces of the body. Time in which nobody asks for the next one does not count."""
    rest: float = 2.0
    """For what is good to have and not waited for long: the end of a body after the provider's last word (a connection
    that ends in order can be used again, and numbers may follow), and the words of a refusal after its status."""
    total: float | None = None
    """The whole call, all tries and pauses included. None: the deadline of the turn is the only one."""

    def __post_init__(self) -> None:
        for name in ("connect", "first_byte", "idle", "rest"):
            check_seconds(f"timeout {name}", getattr(self, name), above=True)
        if self.total is not None:
            check_seconds("timeout total", self.total, above=True)


class Response(Protocol):
    """An answer, as far as its headers; the body is still to come."""

    @property
    def status(self) -> int:
        """Of HTTP."""
        ...

    @property
    def headers(self) -> Mapping[str, str]:
        """By their names in lower case."""
        ...

    def chunks(self) -> AsyncIterator[bytes]:
        """The body in pieces, as they come; to be asked for once.

        Raises a `ModelError` of the kind ``network`` or ``timeout`` when it ends before its end.
        """
        ...

    def close(self) -> None:
        """Let go. A body that was not read to its end takes its connection with it, at once."""
        ...


class Transport(Protocol):
    """Sends requests."""

    def open(self, url: str, headers: Mapping[str, str], body: bytes, timeouts: Timeouts) -> Awaitable[Response]:
        """POST `body`. Raises a `ModelError` of the kind ``network`` or ``timeout`` when no answer begins."""
        ...


# ---- aiohttp ---------------------------------------------------------------------------------------------------------


class AiohttpTransport:
    """Keeps one session with its connections for each event loop; a session ends with its loop, or with `aclose`.

    `aiohttp` is imported at the first call. Proxies are those that the environment names when a loop first asks for an
    address. Redirects are not followed: they would carry the credentials elsewhere.
    """

    def __init__(self) -> None:
        self._lanes: dict[asyncio.AbstractEventLoop, Lane] = {}
        self._lock = threading.Lock()

    def open(self, url: str, headers: Mapping[str, str], body: bytes, timeouts: Timeouts) -> Awaitable[Response]:
        """POST `body`; the answer begins, or a `ModelError` says why it does not."""
        lane = self._lanes.get(asyncio.get_running_loop())
        return self._opened(url, headers, body, timeouts) if lane is None else lane.post(url, headers, body, timeouts)

    async def _opened(self, url: str, headers: Mapping[str, str], body: bytes, timeouts: Timeouts) -> Response:
        """The same, in a loop that has nothing yet."""
        # Another call may have come first: one that was asked for before this one was awaited.
        lane = self._lanes.get(asyncio.get_running_loop()) or await self._lane()
        return await lane.post(url, headers, body, timeouts)

    async def aclose(self) -> None:
        """Close what the running loop has. The next call makes it anew."""
        lane = self._lanes.get(asyncio.get_running_loop())
        if lane is not None:
            await lane.keeper.aclose()

    async def _lane(self) -> Lane:
        from holdfast.models.lane import Lane  # noqa: PLC0415  aiohttp is heavy: only whoever makes a call pays for it

        loop = asyncio.get_running_loop()
        with self._lock:
            for other in [other for other in self._lanes if other.is_closed()]:
                self._lanes.pop(other).forget()
        lane = self._lanes[loop] = Lane(loop)
        lane.keeper = self._kept(loop, lane)
        await anext(lane.keeper)
        return lane

    async def _kept(self, loop: asyncio.AbstractEventLoop, lane: Lane) -> AsyncGenerator[None, None]:
        """An event loop that ends closes the generators that began in it: with this one goes the session."""
        try:
            yield
        finally:
            self._lanes.pop(loop, None)
            await lane.close()


@cache
def shared() -> AiohttpTransport:
    """The transport of all models that were not given one of their own."""
    return AiohttpTransport()
