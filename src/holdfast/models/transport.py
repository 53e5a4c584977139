"""How bytes get to a provider and back: a small protocol, and the one that everybody uses, over `aiohttp`.

Four times bound a call, each for itself: to connect, to the first byte, between two pieces, and the whole. A stream
that keeps coming is never ended by any of the first three, however long it takes.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from base64 import b64encode
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
import msgspec
from aiohttp.http import StreamWriter

from holdfast.errors import ModelError
from holdfast.models.dialect import clip_text
from holdfast.models.retry import check_seconds

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Mapping

    from aiohttp.abc import AbstractStreamWriter
    from aiohttp.client_reqrep import ClientResponse
    from aiohttp.connector import Connection


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


class HttpResponse(Protocol):
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

    def open(self, url: str, headers: Mapping[str, str], body: bytes, timeouts: Timeouts) -> Awaitable[HttpResponse]:
        """POST `body`. Raises a `ModelError` of the kind ``network`` or ``timeout`` when no answer begins."""
        ...


class AiohttpTransport:
    """Keeps one session with its connections for each event loop; a session ends with its loop, or with `aclose`.

    `aiohttp` is imported at the first call. Proxies are those that the environment names when a loop first asks for an
    address. Redirects are not followed: they would carry the credentials elsewhere.
    """

    def __init__(self) -> None:
        self._lanes: dict[asyncio.AbstractEventLoop, LoopClient] = {}
        self._lock = threading.Lock()

    def open(self, url: str, headers: Mapping[str, str], body: bytes, timeouts: Timeouts) -> Awaitable[HttpResponse]:
        """POST `body`; the answer begins, or a `ModelError` says why it does not."""
        lane = self._lanes.get(asyncio.get_running_loop())
        return self._opened(url, headers, body, timeouts) if lane is None else lane.post(url, headers, body, timeouts)

    async def _opened(self, url: str, headers: Mapping[str, str], body: bytes, timeouts: Timeouts) -> HttpResponse:
        """The same, in a loop that has nothing yet."""
        # Another call may have come first: one that was asked for before this one was awaited.
        lane = self._lanes.get(asyncio.get_running_loop()) or await self._lane()
        return await lane.post(url, headers, body, timeouts)

    async def aclose(self) -> None:
        """Close what the running loop has. The next call makes it anew."""
        lane = self._lanes.get(asyncio.get_running_loop())
        if lane is not None:
            await lane.keeper.aclose()

    async def _lane(self) -> LoopClient:

        loop = asyncio.get_running_loop()
        with self._lock:
            for other in [other for other in self._lanes if other.is_closed()]:
                self._lanes.pop(other).forget()
        lane = self._lanes[loop] = LoopClient(loop)
        lane.keeper = self._kept(loop, lane)
        await anext(lane.keeper)
        return lane

    async def _kept(self, loop: asyncio.AbstractEventLoop, lane: LoopClient) -> AsyncGenerator[None, None]:
        """An event loop that ends closes the generators that began in it: with this one goes the session."""
        try:
            yield
        finally:
            self._lanes.pop(loop, None)
            await lane.close()


@cache
def shared_transport() -> AiohttpTransport:
    """The transport of all models that were not given one of their own."""
    return AiohttpTransport()


CLIENT_ERRORS: Final = (aiohttp.ClientError, OSError, TimeoutError, RuntimeError, ValueError, ModelError)
"""What aiohttp raises when the world is at fault, or the address."""
_EXCERPT: Final = 300
_FOREVER: Final = float("inf")


class TimeoutWatch:
    """Looks after the times of all exchanges of one event loop, with one timer for all of them."""

    __slots__ = ("_due", "_loop", "_open", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._open: set[HttpExchange] = set()
        self._due = _FOREVER
        """When it looks next: not later than anything that is open could be late."""
        self._timer: asyncio.TimerHandle | None = None

    def add(self, exchange: HttpExchange, due: float) -> None:
        """Look after an exchange, at `due` for the first time."""
        self._open.add(exchange)
        if due < self._due:
            self._arm(due)

    def remove(self, exchange: HttpExchange) -> None:
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


class HttpExchange:
    """One request and its response. It is looked at from time to time, whether somebody has waited too long."""

    __slots__ = (
        *("_allowed", "_cancelling", "_content", "_late", "_loop", "_over", "_raw", "_since", "_taken", "_task"),
        *("_timeouts", "_url", "_watch", "headers", "status"),
    )

    status: int
    headers: Mapping[str, str]

    def __init__(self, loop: asyncio.AbstractEventLoop, watch: TimeoutWatch, url: str, timeouts: Timeouts) -> None:
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
        return _meaning(error, self._url) if isinstance(error, CLIENT_ERRORS) else None

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
        except CLIENT_ERRORS as error:
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


class RequestBody(aiohttp.Payload):
    """The body of a request, which tells when it is on its way: then the connection stands."""

    def __init__(self, body: bytes, exchange: HttpExchange) -> None:
        super().__init__(body)
        self._size = len(body)
        self._exchange = exchange

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return self._value.decode(encoding, errors)

    async def write(self, writer: AbstractStreamWriter) -> None:
        await writer.write(self._value)
        await writer.drain()
        self._exchange.sent()


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
    return clip_text(f"{type(error).__name__}: {said}" if said else type(error).__name__, _EXCERPT)


def _host(url: str) -> str:
    with suppress(ValueError):
        place = urlsplit(url)
        return place.netloc.rpartition("@")[2] or "an address without a host"
    return "an address that can't be read"


_AT_ONCE: Final = 32_768
"""A request of at most so many bytes is never held up on its way out: it fits what a connection buffers."""


class _InlineRequest(aiohttp.ClientRequest):
    """Written before anybody waits for the answer."""

    async def send(self, conn: Connection) -> ClientResponse:
        protocol, body = conn.protocol, self._body
        size = None if body is None or self.proxy is not None or self._continue is not None else body.size
        if size is None or size > _AT_ONCE or protocol is None or protocol.writing_paused:
            return await super().send(conn)
        writer = StreamWriter(protocol, self.loop)
        await writer.write_headers(f"{self.method} {self.url.raw_path_qs} HTTP/1.1", self.headers)
        await self.write_bytes(writer, conn)
        self.response = self.response_class(
            self.method,
            self.original_url,
            writer=None,
            continue100=None,
            timer=self._timer,
            request_info=self.request_info,
            traces=self._traces,
            loop=self.loop,
            session=self.session,
            stream_writer=writer,
        )
        return self.response


# It is written for what aiohttp does inside, so it is used with the releases for which that is known.
IS_KNOWN_AIOHTTP: Final = aiohttp.__version__.startswith("3.14.")
REQUEST_CLASS: Final[type[aiohttp.ClientRequest]] = (
    _InlineRequest if IS_KNOWN_AIOHTTP and sys.version_info < (3, 12) else aiohttp.ClientRequest
)
"""What a session makes its requests of."""


class _Proxy(NamedTuple):
    url: str | None = None
    headers: dict[str, str] | None = None
    """Its login, where it is asked for a tunnel."""
    beside: dict[str, str] | None = None
    """Its login, where it reads the request itself: aiohttp sends the other one with a tunnel alone."""


_NO_PROXY: Final = _Proxy()


class LoopClient:
    """Carries the requests of one event loop."""

    __slots__ = ("_loop", "_proxies", "_session", "_watch", "keeper")

    keeper: AsyncGenerator[None, None]
    """What closes it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),  # how many at once is for the limits of the endpoint to say
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None),
            request_class=REQUEST_CLASS,
        )
        self._proxies: dict[str, _Proxy] = {}
        self._watch = TimeoutWatch(loop)

    async def post(self, url: str, headers: Mapping[str, str], body: bytes, timeouts: Timeouts) -> HttpExchange:
        """POST `body`; the answer begins, or a `ModelError` says why it does not."""
        exchange = HttpExchange(self._loop, self._watch, url, timeouts)
        try:
            proxy = _proxy(self._proxies, url)
            raw = await self._session.post(
                url,
                data=RequestBody(body, exchange),
                headers=headers if proxy.beside is None else {**headers, **proxy.beside},
                allow_redirects=False,
                proxy=proxy.url,
                proxy_headers=proxy.headers,
                timeout=_client_timeout(timeouts.connect),
            )
        except BaseException as error:
            failure = exchange.broken(error)
            if failure is None:
                raise
        else:
            exchange.answered(raw)
            return exchange
        # Raised out here, so that no trace leads to a request with its credentials.
        raise failure

    async def close(self) -> None:
        """Close all connections."""
        self._watch.close()
        await self._session.close()

    def forget(self) -> None:
        """Mark the session as closed, whose loop ended without closing it; there is nobody left to wait for."""
        closing: Any = self._session.close()
        with suppress(StopIteration, RuntimeError):
            closing.send(None)
        closing.close()


@cache
def _client_timeout(connect: float) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=None, connect=connect)  # all other times are kept by the watch


def _proxy(known: dict[str, _Proxy], url: str) -> _Proxy:
    end = url.find("/", url.find("//") + 2)
    origin = url if end < 0 else url[:end]
    if origin not in known:
        known[origin] = _environment_proxy(origin)
    return known[origin]


def _environment_proxy(origin: str) -> _Proxy:
    place = urlsplit(origin)
    proxies = getproxies()
    found = proxies.get(place.scheme) or proxies.get("all")
    if not found or proxy_bypass(place.netloc.rpartition("@")[2]):
        return _NO_PROXY
    found = found if "://" in found else f"http://{found}"
    through = urlsplit(found)
    clean = through._replace(netloc=through.netloc.rpartition("@")[2]).geturl()
    if through.username is None:
        return _Proxy(clean)
    words = f"{unquote(through.username)}:{unquote(through.password or '')}".encode()
    login = {"Proxy-Authorization": f"Basic {b64encode(words).decode()}"}
    return _Proxy(clean, beside=login) if place.scheme == "http" else _Proxy(clean, login)
