"""Transports: the protocol, and the one over `aiohttp` that models use by default.

Four timeouts bound a call independently: to connect, to the first byte, between two pieces, and the whole call. None of
the first three ends a stream that keeps coming, however long it takes.
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
from holdfast.models.json_values import clip_text
from holdfast.names import check_number

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Mapping

    from aiohttp.abc import AbstractStreamWriter
    from aiohttp.client_reqrep import ClientResponse
    from aiohttp.connector import Connection


class Timeouts(msgspec.Struct, frozen=True, kw_only=True):
    """Timeouts of a call, in seconds."""

    connect: float = 15.0
    """Until the connection is open: name, socket, TLS."""
    first_byte: float = 300.0
    """From the request to the headers of the answer, and from there to the first piece of its body."""
    idle: float = 120.0
    """Between two pieces of the body, while the reader waits for one."""
    rest: float = 2.0
    """For the end of a body after the terminal frame (usage may follow, and the connection can then be reused), and for
    the body of an error response.
    """
    total: float | None = None
    """The whole call with all attempts and delays. None: only the deadline of the turn counts."""

    def __post_init__(self) -> None:
        for name in ("connect", "first_byte", "idle", "rest"):
            check_number(f"timeout {name}", getattr(self, name), above=True)
        if self.total is not None:
            check_number("timeout total", self.total, above=True)


class HttpResponse(Protocol):
    """A response with received headers; its body is still to come."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers by lower-case names."""
        ...

    def chunks(self) -> AsyncIterator[bytes]:
        """Yield the pieces of the body. Call it once.

        Raises a `ModelError` of the kind ``network`` or ``timeout`` if the connection ends before the body.
        """
        ...

    def close(self) -> None:
        """Release the connection; close it at once if the body was not read to its end."""
        ...


class Transport(Protocol):
    """Sends the requests of a model."""

    def open(self, url: str, headers: Mapping[str, str], body: bytes, timeouts: Timeouts) -> Awaitable[HttpResponse]:
        """POST `body`. Raises a `ModelError` of the kind ``network`` or ``timeout`` if no answer begins."""
        ...


class AiohttpTransport:
    """Keeps a client with its connections for each event loop, until the loop ends or `aclose` is called.

    Proxies come from the environment, when a loop first asks for an address. Redirects are not followed: they would
    carry the credentials elsewhere.
    """

    def __init__(self) -> None:
        self._clients: dict[asyncio.AbstractEventLoop, LoopClient] = {}
        self._lock = threading.Lock()

    def open(self, url: str, headers: Mapping[str, str], body: bytes, timeouts: Timeouts) -> Awaitable[HttpResponse]:
        """POST `body`. Raises a `ModelError` if no answer begins."""
        client = self._clients.get(asyncio.get_running_loop())
        if client is None:
            return self._open_first(url, headers, body, timeouts)
        return client.post(url, headers, body, timeouts)

    async def aclose(self) -> None:
        """Close the connections of the running loop. The next call opens new ones."""
        client = self._clients.get(asyncio.get_running_loop())
        if client is not None:
            await client.closer.aclose()

    async def _open_first(self, url: str, headers: Mapping[str, str], body: bytes, timeouts: Timeouts) -> HttpResponse:
        loop = asyncio.get_running_loop()
        client = self._clients.get(loop)  # another first call may have made it before this one was awaited
        if client is None:
            with self._lock:
                for other in [other for other in self._clients if other.is_closed()]:
                    self._clients.pop(other).abandon()
            client = self._clients[loop] = LoopClient(loop)
            client.closer = self._close_with_loop(loop, client)
            await anext(client.closer)
        return await client.post(url, headers, body, timeouts)

    async def _close_with_loop(self, loop: asyncio.AbstractEventLoop, client: LoopClient) -> AsyncGenerator[None, None]:
        """Close the client when the event loop ends, since a loop then closes its generators."""
        try:
            yield
        finally:
            self._clients.pop(loop, None)
            await client.close()


@cache
def shared_transport() -> AiohttpTransport:
    """Return the transport of all models without one of their own."""
    return AiohttpTransport()


CLIENT_ERRORS: Final = (aiohttp.ClientError, OSError, TimeoutError, RuntimeError, ValueError, ModelError)
"""Raised by aiohttp when the network or the address is at fault."""
_FOREVER: Final = float("inf")
READ_PAUSE: Final = 0.008
"""Longest pause before the next piece of a quick stream is read, in seconds: half a frame of a screen."""
SMALL_PIECE: Final = 4_096
"""Most bytes of a piece after which the reader may pause. A fast download is read as it comes."""


class TimeoutWatch:
    """Checks the timeouts of all exchanges of one event loop with a single timer."""

    __slots__ = ("_due", "_loop", "_open", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._open: set[HttpExchange] = set()
        self._due = _FOREVER
        """Time of the next check: no exchange can be late before it."""
        self._timer: asyncio.TimerHandle | None = None

    def add(self, exchange: HttpExchange, due: float) -> None:
        """Watch an exchange, which can't be late before `due`."""
        self._open.add(exchange)
        if due < self._due:
            self._arm(due)

    def remove(self, exchange: HttpExchange) -> None:
        self._open.discard(exchange)

    def close(self) -> None:
        """End responses that are being read. aiohttp ends those that have not begun."""
        for exchange in tuple(self._open):
            exchange.disconnect()
        if not self._open:
            self._arm(_FOREVER)

    def _arm(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._due = due
        self._timer = None if due == _FOREVER else self._loop.call_at(due, self._check)

    def _check(self) -> None:
        now = self._loop.time()
        self._arm(min([exchange.check(now) for exchange in tuple(self._open)], default=_FOREVER))


class HttpExchange:
    """One request and its response, with its timeouts."""

    __slots__ = (
        *("_allowed", "_cancelling", "_content", "_deadline", "_is_late", "_is_quick", "_loop", "_pause", "_raw"),
        *("_read", "_task", "_timeouts", "_url", "_waiting_since", "_watch", "headers", "status"),
    )

    status: int
    headers: Mapping[str, str]

    def __init__(self, loop: asyncio.AbstractEventLoop, watch: TimeoutWatch, url: str, timeouts: Timeouts) -> None:
        now = loop.time()
        self._loop = loop
        self._watch = watch
        self._url = url
        self._timeouts = timeouts
        self._deadline = _FOREVER if timeouts.total is None else now + timeouts.total
        # aiohttp measures the time to connect exactly; this limit also ends an upload that the server does not accept.
        self._allowed = timeouts.connect + timeouts.first_byte
        self._waiting_since: float | None = now
        """Start of the current wait; None while the reader does not wait."""
        self._read = 0
        self._is_quick = False
        """The last piece was small, and the reader waited less than `READ_PAUSE` for it."""
        self._pause: asyncio.Future[None] | None = None
        """The newest pause of the reader."""
        self._is_late = False
        self._task = asyncio.current_task()
        self._cancelling = 0 if self._task is None else self._task.cancelling()
        self._raw: aiohttp.ClientResponse | None = None
        """The answer, once it has begun. `status`, `headers` and `_content` are set with it."""
        watch.add(self, min(now + timeouts.first_byte, now + timeouts.idle, self._deadline))

    def mark_sent(self) -> None:
        """Start the wait for the response."""
        if self._raw is None:
            self._allowed = self._timeouts.first_byte
            self._waiting_since = self._loop.time()

    def begin_response(self, raw: aiohttp.ClientResponse) -> None:
        self._raw = raw
        self._content = raw.content
        self.status = raw.status
        self.headers = raw.headers
        self._allowed = self._timeouts.first_byte
        self._waiting_since = None
        if raw.content.is_eof():  # the whole body is here, and the reader will not wait
            self._watch.remove(self)

    def explain_failure(self, error: BaseException) -> ModelError | None:
        """Translate the error of a request without a response; None for the caller's own cancellation and for bugs."""
        self._watch.remove(self)
        if isinstance(error, asyncio.CancelledError):
            if not self._is_late or self._task is None or self._task.uncancel() > self._cancelling:
                return None
            error = TimeoutError()
        return _to_model_error(error, self._url) if isinstance(error, CLIENT_ERRORS) else None

    def chunks(self) -> AsyncIterator[bytes]:
        return self

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        content = self._content
        failure: ModelError | None = None
        try:
            if content.is_eof():
                chunk = content.read_nowait()
            else:
                if self._is_quick:
                    await self._let_pieces_gather()
                since = self._waiting_since = self._loop.time()
                chunk = await content.readany()
                self._waiting_since = None
                may_pause = IS_KNOWN_AIOHTTP and len(chunk) <= SMALL_PIECE
                self._is_quick = may_pause and self._loop.time() - since < READ_PAUSE
        except CLIENT_ERRORS as error:
            failure = _to_model_error(error, self._url)
            # aiohttp shows only the error. Pieces of the last pause come first; the next call gets the error again.
            chunk = content._read_nowait(-1) if self._is_quick else b""  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
            self._waiting_since, self._is_quick = None, False
        if not chunk:
            raise StopAsyncIteration if failure is None else failure
        self._read += len(chunk)
        self._allowed = self._timeouts.idle  # from now on, between two pieces
        return chunk

    async def _let_pieces_gather(self) -> None:
        """Pause until the body ends, at most for `READ_PAUSE`: reading several pieces costs little more than one."""
        if self._pause is None:
            self._content.on_eof(self._end_pause)
        self._pause = self._loop.create_future()
        timer = self._loop.call_later(READ_PAUSE, self._end_pause)
        try:
            await self._pause
        finally:
            timer.cancel()

    def _end_pause(self) -> None:
        if self._pause is not None and not self._pause.done():
            self._pause.set_result(None)

    def close(self) -> None:
        self._watch.remove(self)
        if self._raw is not None and not self._raw.closed:
            self._raw.close()

    def disconnect(self) -> None:
        """Fail the reader and close the connection: aiohttp does not fail readers when it closes connections itself."""
        if self._raw is not None:
            message = f"the connection to {_host(self._url)} was closed on this side"
            self._content.set_exception(ModelError(message, kind="network", retryable=True))
            self.close()

    def check(self, now: float) -> float:
        """End the exchange if it is late; return the time of the next check."""
        since = self._waiting_since
        raw = self._raw
        if since is None or (raw is not None and self._content.total_bytes != self._read):
            # The reader is not waiting, or a busy loop ran this check before the reader took a piece that has arrived.
            since = now
        due = min(since + self._allowed, self._deadline)
        if now < due:
            # A new wait may begin at any time, so check no later than it could end.
            return min(due, now + self._timeouts.idle, now + self._timeouts.first_byte)
        self._watch.remove(self)
        if raw is None:
            self._is_late = True
            if self._task is not None:
                self._task.cancel()
        else:
            # The reader gets the error now, or when it reads next; the connection is closed at once.
            host = _host(self._url)
            late = ModelError(f"nothing came from {host} for {self._allowed:g} seconds", kind="timeout", retryable=True)
            if now >= self._deadline:
                late = ModelError(f"the answer of {host} took longer than the whole call may take", kind="timeout")
            self._content.set_exception(late)
            raw.close()
        return _FOREVER


class RequestBody(aiohttp.Payload):
    """The body of a request. It notifies the exchange when it is sent, because then the connection is open."""

    def __init__(self, body: bytes, exchange: HttpExchange) -> None:
        super().__init__(body)
        self._size = len(body)
        self._exchange = exchange

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return self._value.decode(encoding, errors)

    async def write(self, writer: AbstractStreamWriter) -> None:
        await writer.write(self._value)
        await writer.drain()
        self._exchange.mark_sent()


def _to_model_error(error: Exception, url: str) -> ModelError:
    if isinstance(error, ModelError):
        return error
    host = _host(url)
    # Only the text of the error, without the data of request and response.
    said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    why = clip_text(f"{type(error).__name__}: {said}" if said else type(error).__name__, 300)
    kind, retryable = "network", True
    match error:
        case aiohttp.ConnectionTimeoutError():
            message, kind = f"no connection to {host} in time", "timeout"
        case TimeoutError():
            message, kind = f"{host} did not begin to answer in time", "timeout"
        case aiohttp.ClientSSLError():  # a bad certificate is a ValueError, too
            message, retryable = f"no safe connection to {host}: {why}", False
        case aiohttp.InvalidURL() | ValueError():
            message, kind, retryable = f"the request can't be sent to {host}: {why}", "bad_request", False
        case aiohttp.ClientConnectorError():
            message = f"no connection to {host}: {why}"
        case _:
            message = f"the connection to {host} failed: {why}"
    return ModelError(message, kind=kind, retryable=retryable)


def _host(url: str) -> str:
    with suppress(ValueError):
        place = urlsplit(url)
        return place.netloc.rpartition("@")[2] or "an address without a host"
    return "an address that can't be read"


_INLINE_BYTES: Final = 32_768
"""A request of this size fits into the buffer of a connection, and can be written without waiting."""


class _InlineRequest(aiohttp.ClientRequest):
    """Writes a small request at once, instead of in a separate task."""

    async def send(self, conn: Connection) -> ClientResponse:
        protocol, body = conn.protocol, self._body
        size = None if body is None or self.proxy is not None or self._continue is not None else body.size
        if size is None or size > _INLINE_BYTES or protocol is None or protocol.writing_paused:
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


# `_InlineRequest` and the pauses of a reader rely on aiohttp's inner workings, so only known releases use them.
IS_KNOWN_AIOHTTP: Final = aiohttp.__version__.startswith("3.14.")
REQUEST_CLASS: Final[type[aiohttp.ClientRequest]] = (
    _InlineRequest if IS_KNOWN_AIOHTTP and sys.version_info < (3, 12) else aiohttp.ClientRequest
)


class _Proxy(NamedTuple):
    url: str | None = None
    headers: dict[str, str] | None = None
    """The login, for a proxy that opens a tunnel."""
    request_headers: dict[str, str] | None = None
    """The login, for a proxy that reads the request: aiohttp sends `headers` only with a tunnel."""


class LoopClient:
    """Sends the requests of one event loop."""

    __slots__ = ("_loop", "_proxies", "_session", "_watch", "closer")

    closer: AsyncGenerator[None, None]
    """Closes the client when it is closed."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),  # `CallLimits` bounds the calls
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None),
            request_class=REQUEST_CLASS,
        )
        self._proxies: dict[str, _Proxy] = {}
        self._watch = TimeoutWatch(loop)

    async def post(self, url: str, headers: Mapping[str, str], body: bytes, timeouts: Timeouts) -> HttpExchange:
        """POST `body`. Raises a `ModelError` if no answer begins."""
        exchange = HttpExchange(self._loop, self._watch, url, timeouts)
        try:
            end = url.find("/", url.find("//") + 2)
            origin = url if end < 0 else url[:end]
            proxy = self._proxies.get(origin)
            if proxy is None:
                proxy = self._proxies[origin] = _environment_proxy(origin)
            raw = await self._session.post(
                url,
                data=RequestBody(body, exchange),
                headers=headers if proxy.request_headers is None else {**headers, **proxy.request_headers},
                allow_redirects=False,
                proxy=proxy.url,
                proxy_headers=proxy.headers,
                timeout=_client_timeout(timeouts.connect),
            )
        except BaseException as error:
            failure = exchange.explain_failure(error)
            if failure is None:
                raise
        else:
            exchange.begin_response(raw)
            return exchange
        # Raised outside of the handler, so that no traceback leads to a request with its credentials.
        raise failure

    async def close(self) -> None:
        self._watch.close()
        await self._session.close()

    def abandon(self) -> None:
        """Mark the session of a dead event loop as closed: awaiting is impossible there."""
        closing: Any = self._session.close()
        with suppress(StopIteration, RuntimeError):
            closing.send(None)
        closing.close()


@cache
def _client_timeout(connect: float) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=None, connect=connect)  # the watch checks all other timeouts


def _environment_proxy(origin: str) -> _Proxy:
    target = urlsplit(origin)
    proxies = getproxies()
    found = proxies.get(target.scheme) or proxies.get("all")
    if not found or proxy_bypass(target.netloc.rpartition("@")[2]):
        return _Proxy()
    proxy = urlsplit(found if "://" in found else f"http://{found}")
    clean = proxy._replace(netloc=proxy.netloc.rpartition("@")[2]).geturl()
    if proxy.username is None:
        return _Proxy(clean)
    user = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}".encode()
    login = {"Proxy-Authorization": f"Basic {b64encode(user).decode()}"}
    return _Proxy(clean, request_headers=login) if target.scheme == "http" else _Proxy(clean, login)
