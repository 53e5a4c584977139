"""What one event loop has for its calls: a session of `aiohttp` with its connections, and proxies."""

from __future__ import annotations

from base64 import b64encode
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp

from holdfast.models.exchange import Body, Exchange, Watch
from holdfast.models.sending import REQUEST

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncGenerator, Mapping

    from holdfast.models.transport import Timeouts


class _Proxy(NamedTuple):
    url: str | None = None
    headers: dict[str, str] | None = None
    """Its login, where it is asked for a tunnel."""
    beside: dict[str, str] | None = None
    """Its login, where it reads the request itself: aiohttp sends the other one with a tunnel alone."""


_NO_PROXY: Final = _Proxy()


class Lane:
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
            request_class=REQUEST,
        )
        self._proxies: dict[str, _Proxy] = {}
        self._watch = Watch(loop)

    async def post(self, url: str, headers: Mapping[str, str], body: bytes, timeouts: Timeouts) -> Exchange:
        """POST `body`; the answer begins, or a `ModelError` says why it does not."""
        exchange = Exchange(self._loop, self._watch, url, timeouts)
        try:
            proxy = _proxy(self._proxies, url)
            raw = await self._session.post(
                url,
                data=Body(body, exchange),
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


# ---- proxies ---------------------------------------------------------------------------------------------------------


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
