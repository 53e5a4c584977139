"""How bytes get to a provider and back: a small protocol, and the one that everybody uses, over `aiohttp`.

Four times bound a call, each for itself: to connect, to the first byte, between two pieces, and the whole. A stream
that keeps coming is never ended by any of the first three, however long it takes.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol
from urllib.parse import urlsplit

import msgspec

from holdfast.errors import ModelError
from holdfast.models.retry import check_seconds
from holdfast.models.wire import bounded

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Mapping

    import aiohttp

_EXCERPT: Final = 300
_AT_ONCE: Final = 32_768
"""A request of at most so many bytes is never held up on its way out: it fits what a connection buffers."""
_FOREVER: Final = float("inf")


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

    async def open(self, url: str, headers: Mapping[str, str], body: bytes, timeouts: Timeouts) -> Response:
        """POST `body`. Raises a `ModelError` of the kind ``network`` or ``timeout`` when no answer begins."""
        ...


# ---- aiohttp ---------------------------------------------------------------------------------------------------------


class _Lane(NamedTuple):
    """What one event loop has: a session, and what closes it."""

    session: aiohttp.ClientSession
    keeper: AsyncGenerator[None, None]
    proxies: dict[str, _Proxy | None]


class _Proxy(NamedTuple):
    url: str
    headers: dict[str, str] | None


class AiohttpTransport:
    """Keeps one session with its connections for each event loop; a session ends with its loop, or with `aclose`.

    `aiohttp` is imported at the first call. Proxies are those that the environment names when a loop first asks for an
    address. Redirects are not followed: they would carry the credentials elsewhere.
    """

    def __init__(self) -> None:
        self._lanes: dict[asyncio.AbstractEventLoop, _Lane] = {}
        self._lock = threading.Lock()

    async def open(self, url: str, headers: Mapping[str, str], body: bytes, timeouts: Timeouts) -> Response:
        """POST `body`; the answer begins, or a `ModelError` says why it does not."""
        loop = asyncio.get_running_loop()
        lane = self._lanes.get(loop) or await self._lane(loop)
        over = _FOREVER if timeouts.total is None else loop.time() + timeouts.total
        try:
            if timeouts.total is None and len(body) <= _AT_ONCE:
                raw = await _posted(lane, url, headers, body, timeouts)
            else:
                # The exact times are kept by aiohttp; this one also ends an upload that nobody takes.
                async with asyncio.timeout(min(timeouts.connect + timeouts.first_byte, over - loop.time())):
                    raw = await _posted(lane, url, headers, body, timeouts)
        except _failures() as error:
            failure = _meaning(error, url)
        else:
            return _AiohttpResponse(loop, raw, url, timeouts, over)
        # Raised out here, so that no trace leads to a request with its credentials.
        raise failure

    async def aclose(self) -> None:
        """Close what the running loop has. The next call makes it anew."""
        lane = self._lanes.get(asyncio.get_running_loop())
        if lane is not None:
            await lane.keeper.aclose()

    async def _lane(self, loop: asyncio.AbstractEventLoop) -> _Lane:
        import aiohttp  # noqa: PLC0415  heavy: only whoever makes a call pays for it

        with self._lock:
            for other in [other for other in self._lanes if other.is_closed()]:
                _forget(self._lanes.pop(other).session)
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),  # how many at once is for the limits of the endpoint to say
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None),
        )
        keeper = self._kept(loop, session)
        lane = self._lanes[loop] = _Lane(session, keeper, {})
        await anext(keeper)
        return lane

    async def _kept(
        self, loop: asyncio.AbstractEventLoop, session: aiohttp.ClientSession
    ) -> AsyncGenerator[None, None]:
        """An event loop that ends closes the generators that began in it: with this one goes the session."""
        try:
            yield
        finally:
            self._lanes.pop(loop, None)
            await session.close()


@cache
def shared() -> AiohttpTransport:
    """The transport of all models that were not given one of their own."""
    return AiohttpTransport()


async def _posted(
    lane: _Lane, url: str, headers: Mapping[str, str], body: bytes, timeouts: Timeouts
) -> aiohttp.ClientResponse:
    proxy = _proxy(lane.proxies, url)
    raw = await lane.session.post(
        url,
        data=body,
        headers=headers,
        allow_redirects=False,
        proxy=None if proxy is None else proxy.url,
        proxy_headers=None if proxy is None else proxy.headers,
        timeout=_client_timeout(timeouts.connect, timeouts.first_byte),
    )
    connection = raw.connection
    if connection is not None and connection.protocol is not None:
        # From here on the response watches the time itself, once in a while instead of at every piece.
        connection.protocol.read_timeout = None
        connection.protocol.start_timeout()
    return raw


@cache
def _client_timeout(connect: float, first_byte: float) -> aiohttp.ClientTimeout:
    import aiohttp  # noqa: PLC0415

    return aiohttp.ClientTimeout(total=None, connect=connect, sock_read=first_byte)


class _AiohttpResponse:
    """One response. A timer looks from time to time whether somebody has waited too long."""

    __slots__ = (
        "_allowed",
        "_content",
        "_due",
        "_idle",
        "_loop",
        "_over",
        "_raw",
        "_since",
        "_taken",
        "_timer",
        "_url",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        raw: aiohttp.ClientResponse,
        url: str,
        timeouts: Timeouts,
        over: float,
    ) -> None:
        self._loop = loop
        self._raw = raw
        self._content = raw.content
        self._url = url
        self._idle = timeouts.idle
        self._allowed = timeouts.first_byte
        self._over = over
        self._taken = 0
        self._since: float | None = None
        """When the wait for the next piece began; None while nobody waits."""
        # The first look comes early enough for both times, so that a stream that flows needs no other timer.
        self._due = min(loop.time() + min(self._allowed, self._idle), over)
        self._timer: asyncio.TimerHandle | None = None
        if not raw.content.is_eof():  # otherwise all of it is here, and nobody will wait
            self._arm(self._due)

    @property
    def status(self) -> int:
        return self._raw.status

    @property
    def headers(self) -> Mapping[str, str]:
        return self._raw.headers

    def chunks(self) -> AsyncIterator[bytes]:
        return self

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        self._since = self._loop.time()
        try:
            chunk = await self._content.readany()
        except _failures() as error:
            failure = _meaning(error, self._url)
        else:
            self._since = None
            if not chunk:
                raise StopAsyncIteration
            self._taken += len(chunk)
            if self._allowed is not self._idle:
                self._began()
            return chunk
        raise failure

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._raw.close()

    def _began(self) -> None:
        """The first piece is here: from now on the pauses between pieces count."""
        self._allowed = self._idle
        due = min(self._loop.time() + self._idle, self._over)
        if due < self._due and self._timer is not None:
            self._timer.cancel()
            self._arm(due)

    def _arm(self, due: float) -> None:
        self._due = due
        self._timer = self._loop.call_at(due, self._look)

    def _look(self) -> None:
        now = self._loop.time()
        since = self._since
        if since is None or self._content.total_bytes != self._taken:
            # Nobody waits; or a loop that was held up came here before the reader, who has his piece already.
            since = now
        due = min(since + self._allowed, self._over)
        if now < due:
            self._arm(due)
            return
        self._timer = None
        # Whoever waits for the body gets the error, or whoever asks for it next; the connection goes at once.
        self._content.set_exception(self._late(ended=now >= self._over))
        self._raw.close()

    def _late(self, *, ended: bool) -> ModelError:
        host = _host(self._url)
        if ended:
            return ModelError(f"the answer of {host} took longer than the whole call may take", kind="timeout")
        return ModelError(f"nothing came from {host} for {self._allowed:g} seconds", kind="timeout", retryable=True)


# ---- what went wrong -------------------------------------------------------------------------------------------------


@cache
def _failures() -> tuple[type[Exception], ...]:
    """What aiohttp raises when the world is at fault, or the address."""
    import aiohttp  # noqa: PLC0415

    return (aiohttp.ClientError, OSError, TimeoutError, RuntimeError, ValueError, ModelError)


def _meaning(error: Exception, url: str) -> ModelError:
    if isinstance(error, ModelError):
        return error
    return _told(error, _host(url))


def _told(error: Exception, host: str) -> ModelError:
    import aiohttp  # noqa: PLC0415

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


def _forget(session: aiohttp.ClientSession) -> None:
    """Mark a session as closed whose loop ended without closing it; there is nobody left to wait for."""
    closing: Any = session.close()
    with suppress(StopIteration, RuntimeError):
        closing.send(None)
    closing.close()


# ---- proxies ---------------------------------------------------------------------------------------------------------


def _proxy(known: dict[str, _Proxy | None], url: str) -> _Proxy | None:
    end = url.find("/", url.find("//") + 2)
    origin = url if end < 0 else url[:end]
    if origin not in known:
        known[origin] = _environment_proxy(origin)
    return known[origin]


def _environment_proxy(origin: str) -> _Proxy | None:
    from base64 import b64encode  # noqa: PLC0415  once for each address
    from urllib.parse import unquote  # noqa: PLC0415
    from urllib.request import getproxies, proxy_bypass  # noqa: PLC0415

    place = urlsplit(origin)
    proxies = getproxies()
    found = proxies.get(place.scheme) or proxies.get("all")
    if not found or proxy_bypass(place.netloc.rpartition("@")[2]):
        return None
    found = found if "://" in found else f"http://{found}"
    through = urlsplit(found)
    clean = through._replace(netloc=through.netloc.rpartition("@")[2]).geturl()
    if through.username is None:
        return _Proxy(clean, None)
    login = f"{unquote(through.username)}:{unquote(through.password or '')}".encode()
    return _Proxy(clean, {"Proxy-Authorization": f"Basic {b64encode(login).decode()}"})
