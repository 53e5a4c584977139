"""One request over `aiohttp` and its response, and who looks after the time that both take."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import aiohttp

from holdfast.errors import ModelError
from holdfast.models.wire import bounded

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from aiohttp.abc import AbstractStreamWriter

    from holdfast.models.transport import Timeouts

FAILURES: Final = (aiohttp.ClientError, OSError, TimeoutError, RuntimeError, ValueError, ModelError)
"""What aiohttp raises when the world is at fault, or the address."""
_EXCERPT: Final = 300
_FOREVER: Final = float("inf")


class Watch:
    """Looks after the times of all exchanges of one event loop, with one timer for all of them."""

    __slots__ = ("_due", "_loop", "_open", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._open: set[Exchange] = set()
        self._due = _FOREVER
        """When it looks next: not later than anything that is open could be late."""
        self._timer: asyncio.TimerHandle | None = None

    def add(self, exchange: Exchange, due: float) -> None:
        """Look after an exchange, at `due` for the first time."""
        self._open.add(exchange)
        if due < self._due:
            self._arm(due)

    def remove(self, exchange: Exchange) -> None:
        """Nobody waits for it any more."""
        self._open.discard(exchange)

    def close(self) -> None:
        """The session goes: end the answers that are being read. Who waits for one to begin is told by aiohttp."""
        for exchange in tuple(self._open):
            exchange.cut()
        if not self._open:
            self._arm(_FOREVER)

    def _arm(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._due = due
        self._timer = None if due == _FOREVER else self._loop.call_at(due, self._look)

    def _look(self) -> None:
        now = self._loop.time()
        self._arm(min([exchange.look(now) for exchange in tuple(self._open)], default=_FOREVER))


class Exchange:
    """One request and its response. It is looked at from time to time, whether somebody has waited too long."""

    __slots__ = (
        *("_allowed", "_cancelling", "_content", "_late", "_loop", "_over", "_raw", "_since", "_taken", "_task"),
        *("_timeouts", "_url", "_watch", "headers", "status"),
    )

    status: int
    headers: Mapping[str, str]

    def __init__(self, loop: asyncio.AbstractEventLoop, watch: Watch, url: str, timeouts: Timeouts) -> None:
        now = loop.time()
        self._loop = loop
        self._watch = watch
        self._url = url
        self._timeouts = timeouts
        self._over = _FOREVER if timeouts.total is None else now + timeouts.total
        # The exact time to connect is kept by aiohttp; this one also ends an upload that nobody takes.
        self._allowed = timeouts.connect + timeouts.first_byte
        self._since: float | None = now
        """When the wait for what comes next began; None while nobody waits."""
        self._taken = 0
        self._late = False
        self._task = asyncio.current_task()
        self._cancelling = 0 if self._task is None else self._task.cancelling()
        self._raw: aiohttp.ClientResponse | None = None
        """The answer, as soon as it has begun. What else there is of it is set with it."""
        watch.add(self, min(now + timeouts.first_byte, now + timeouts.idle, self._over))

    # ---- the request ----

    def sent(self) -> None:
        """The request is on its way."""
        if self._raw is None:
            self._allowed = self._timeouts.first_byte
            self._since = self._loop.time()

    def answered(self, raw: aiohttp.ClientResponse) -> None:
        """The answer has begun."""
        self._raw = raw
        self._content = raw.content
        self.status = raw.status
        self.headers = raw.headers
        self._allowed = self._timeouts.first_byte
        self._since = None
        if raw.content.is_eof():  # all of it is here, and nobody will wait
            self._watch.remove(self)

    def broken(self, error: BaseException) -> ModelError | None:
        """No answer has begun: why; None where that is not for us to say, as somebody else wants it to end."""
        self._watch.remove(self)
        if isinstance(error, asyncio.CancelledError):
            if not self._late or self._task is None or self._task.uncancel() > self._cancelling:
                return None
            return _told(TimeoutError(), _host(self._url))
        return _meaning(error, self._url) if isinstance(error, FAILURES) else None

    # ---- the response ----

    def chunks(self) -> AsyncIterator[bytes]:
        return self

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        content = self._content
        try:
            if content.is_eof():
                chunk = content.read_nowait()
            else:
                self._since = self._loop.time()
                chunk = await content.readany()
                self._since = None
        except FAILURES as error:
            failure = _meaning(error, self._url)
        else:
            if not chunk:
                raise StopAsyncIteration
            self._taken += len(chunk)
            self._allowed = self._timeouts.idle  # from now on the pauses between pieces count
            return chunk
        raise failure

    def close(self) -> None:
        self._watch.remove(self)
        if self._raw is not None and not self._raw.closed:
            self._raw.close()

    def cut(self) -> None:
        """The connection goes: whoever reads is told. aiohttp tells nobody where it closes connections itself."""
        if self._raw is not None:
            message = f"the connection to {_host(self._url)} was closed on this side"
            self._content.set_exception(ModelError(message, kind="network", retryable=True))
            self.close()

    # ---- the time ----

    def look(self, now: float) -> float:
        """End it where it is late; when to look again otherwise."""
        since = self._since
        raw = self._raw
        if since is None or (raw is not None and self._content.total_bytes != self._taken):
            # Nobody waits; or a loop that was held up came here before the reader, who has his piece already.
            since = now
        due = min(since + self._allowed, self._over)
        if now < due:
            # Not later than what comes next could be late, if it came now.
            return min(due, now + self._timeouts.idle, now + self._timeouts.first_byte)
        self._watch.remove(self)
        if raw is None:
            self._late = True
            if self._task is not None:
                self._task.cancel()
        else:
            # Whoever waits for the body gets the error, or whoever asks for it next; the connection goes at once.
            self._content.set_exception(self._too_late(ended=now >= self._over))
            raw.close()
        return _FOREVER

    def _too_late(self, *, ended: bool) -> ModelError:
        host = _host(self._url)
        if ended:
            return ModelError(f"the answer of {host} took longer than the whole call may take", kind="timeout")
        return ModelError(f"nothing came from {host} for {self._allowed:g} seconds", kind="timeout", retryable=True)


class Body(aiohttp.Payload):
    """The body of a request, which tells when it is on its way: then the connection stands."""

    def __init__(self, body: bytes, exchange: Exchange) -> None:
        super().__init__(body)
        self._size = len(body)
        self._exchange = exchange

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return self._value.decode(encoding, errors)

    async def write(self, writer: AbstractStreamWriter) -> None:
        await writer.write(self._value)
        await writer.drain()
        self._exchange.sent()


# ---- what went wrong -------------------------------------------------------------------------------------------------


def _meaning(error: Exception, url: str) -> ModelError:
    if isinstance(error, ModelError):
        return error
    return _told(error, _host(url))


def _told(error: Exception, host: str) -> ModelError:
    match error:
        case aiohttp.ConnectionTimeoutError():
            return ModelError(f"no connection to {host} in time", kind="timeout", retryable=True)
        case TimeoutError():
            return ModelError(f"{host} did not begin to answer in time", kind="timeout", retryable=True)
        case aiohttp.ClientSSLError():  # a bad certificate is a ValueError, too
            return ModelError(f"no safe connection to {host}: {_words(error)}", kind="network")
        case aiohttp.InvalidURL() | ValueError():
            return ModelError(f"the request can't be sent to {host}: {_words(error)}", kind="bad_request")
        case aiohttp.ClientConnectorError():
            return ModelError(f"no connection to {host}: {_words(error)}", kind="network", retryable=True)
        case _:
            return ModelError(f"the connection to {host} failed: {_words(error)}", kind="network", retryable=True)


def _words(error: Exception) -> str:
    """What an error says, without what a response or a request holds."""
    said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return bounded(f"{type(error).__name__}: {said}" if said else type(error).__name__, _EXCERPT)


def _host(url: str) -> str:
    with suppress(ValueError):
        place = urlsplit(url)
        return place.netloc.rpartition("@")[2] or "an address without a host"
    return "an address that can't be read"
