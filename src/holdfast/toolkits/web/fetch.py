"""A fetch: hop by hop to the response, its body within limits, and the result for a model."""

from __future__ import annotations

import asyncio
import socket
import ssl
import zlib
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast
from urllib.parse import unquote

from holdfast import errors, media
from holdfast.toolkits.web import urls
from holdfast.toolkits.web.page import ShowableContent, WebPage, classify_content, decode_body, render_html, render_page
from holdfast.tools.functions import run_in_thread

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence

    import aiohttp
    from aiohttp.abc import AbstractResolver, ResolveResult


# ---- bodies ----

ACCEPTED: Final = "gzip, deflate"
"""The Accept-Encoding header."""
MAX_MEMBERS: Final = 1_000
"""Most gzip members of one body: each costs time, even an empty one."""


class BodyBroken(ValueError):
    """Bytes that do not match their encoding."""


def choose_decoder(encoding: str) -> BodyDecoder | None:
    """The decoder for this Content-Encoding; None if it was not requested."""
    known = {"": "", "identity": "", "gzip": "gzip", "x-gzip": "gzip", "deflate": "deflate"}
    kind = known.get(encoding.strip().lower())
    return None if kind is None else BodyDecoder(kind)


class BodyDecoder:
    """Decodes a body piece by piece: gzip with any number of members, or deflate with or without its header."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._members = 0
        self._inflater: Any = None
        self._padding = False

    def feed(self, data: bytes, room: int) -> bytes:
        """Decode `data` to at most `room` bytes and one more, which shows that the limit was exceeded."""
        if not self._kind:
            return data[: room + 1]
        found: list[bytes] = []
        size, full = 0, False
        # After a full step, the inflater may still hold output, even if it consumed all input.
        while (data or full) and size <= room and not self._over(data):
            inflater = self._inflater or self._begin(data)
            asked = min(256 * 1024, room + 1 - size)
            try:
                piece: bytes = inflater.decompress(data, asked)
            except zlib.error as error:
                raise BodyBroken(f"it can't be decompressed ({error})") from None
            found.append(piece)
            size += len(piece)
            data, full = inflater.unconsumed_tail, len(piece) == asked
            if inflater.eof:
                data, full = inflater.unused_data, False
                self._inflater = None
        return b"".join(found)

    def end(self) -> None:
        """Raise `BodyBroken` if the body is incomplete."""
        if self._inflater is not None:
            raise BodyBroken("it ends in the middle")

    def _begin(self, data: bytes) -> Any:  # the type of `zlib.decompressobj()` has no public name
        self._members += 1
        if self._members > MAX_MEMBERS:
            raise BodyBroken("it is compressed in too many pieces")
        gzip = self._kind == "gzip"
        self._inflater = zlib.decompressobj((16 * gzip + zlib.MAX_WBITS) * (1 if gzip or data[0] & 0x0F == 8 else -1))
        return self._inflater

    def _over(self, data: bytes) -> bool:
        """True if only padding follows, which every client ignores."""
        if self._inflater is None and self._members:
            self._padding = self._padding or self._kind != "gzip" or not data.startswith(b"\x1f")
        return self._padding


# ---- connections: only to checked addresses ----

Resolver: TypeAlias = "Callable[[str], Awaitable[Iterable[str]]]"
"""Looks up a name: returns its addresses as text, or raises an OSError."""
_ACCEPT: Final = "text/html, application/xhtml+xml, application/json, text/*, application/pdf, image/*;q=0.8, */*;q=0.5"


async def system_resolver(host: str) -> list[str]:
    """Ask the system's resolver, in a thread: a slow name server delays no other call."""
    found: Any = await run_in_thread(socket.getaddrinfo, {"host": host, "port": None, "type": socket.SOCK_STREAM})
    return [str(entry[4][0]) for entry in found]


async def resolve_host(url: urls.Url, policy: urls.UrlPolicy, resolver: Resolver) -> tuple[urls.Address, ...]:
    """The addresses to dial for `url`; raises `UrlRefused` if any address of its name is forbidden."""
    if url.address is not None:
        addresses: tuple[urls.Address, ...] = (url.address,)
    else:
        try:
            found = list(await resolver(url.host))
            addresses = tuple(dict.fromkeys(ip_address(text.partition("%")[0]) for text in found))
        except (OSError, UnicodeError) as error:
            words = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
            reason = f"the name {url.host} could not be looked up ({words}); is it spelt right?"
            raise urls.FetchFailed(str(url), reason) from None
        except ValueError as error:
            reason = f"the lookup of {url.host} gave something that is no address: {error}"
            raise urls.FetchFailed(str(url), reason) from None
        if not addresses:
            raise urls.FetchFailed(str(url), f"the name {url.host} has no address")
    policy.check_addresses(url, addresses)
    if not policy.trusts(url) and any(is_own_address(address) for address in addresses):
        raise urls.UrlRefused(str(url), "it leads to this machine itself")
    return addresses[:16]


def is_own_address(address: urls.Address) -> bool:
    """True if `address` belongs to this machine: then a request to it would also come from it. Sends no packet."""
    family = socket.AF_INET if isinstance(address, IPv4Address) else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((str(address), 9))
            return ip_address(str(probe.getsockname()[0]).partition("%")[0]) == address
    except OSError:  # no way leads there
        return False


@asynccontextmanager
async def open_response(
    url: urls.Url, addresses: Sequence[urls.Address], tls: ssl.SSLContext | None, user_agent: str
) -> AsyncGenerator[aiohttp.ClientResponse, None]:
    """The response to a GET of `url` from one of `addresses`, before its body; raises `FetchFailed` if none begins.

    It sends no cookies or credentials, ignores proxies and the environment, and neither follows redirects nor
    decompresses. The certificate is checked against the name in the URL.
    """
    import aiohttp  # heavy: loaded with the first call
    from yarl import URL

    headers = {"User-Agent": user_agent, "Accept": _ACCEPT, "Accept-Encoding": ACCEPTED}
    connector = aiohttp.TCPConnector(
        ssl=True if tls is None else tls,
        resolver=cast("AbstractResolver", _PinnedResolver(url.host, addresses)),
        socket_factory=_guarded(frozenset(addresses)),
        use_dns_cache=False,
        force_close=True,
    )
    session = aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None),  # the whole fetch has one
        auto_decompress=False,
        trust_env=False,
    )
    async with session:
        try:
            response = await session.get(URL(str(url), encoded=True), headers=headers, allow_redirects=False)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise urls.FetchFailed(str(url), _describe_failure(error)) from None
        async with response:
            yield response


class _PinnedResolver:
    """Resolves one name, to the checked addresses."""

    def __init__(self, name: str, addresses: Sequence[urls.Address]) -> None:
        self._name = name
        self._addresses = addresses

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        del family
        if host != self._name:
            raise errors.InvariantBroken(f"a lookup of {host!r} while {self._name!r} was fetched")
        return [
            {
                "hostname": host,
                "host": str(address),
                "port": port,
                "family": socket.AF_INET6 if isinstance(address, IPv6Address) else socket.AF_INET,
                "proto": 0,
                "flags": socket.AI_NUMERICHOST,
            }
            for address in self._addresses
        ]

    async def close(self) -> None:
        return


def _guarded(addresses: frozenset[urls.Address]) -> Callable[[Any], socket.socket]:
    """A factory of sockets that refuses every unchecked address."""

    def make(info: tuple[Any, ...]) -> socket.socket:
        family, kind, proto, _, place = info
        if ip_address(str(place[0]).partition("%")[0]) not in addresses:
            raise errors.InvariantBroken(f"{place[0]} was about to be dialled without having been checked")
        return socket.socket(family, kind, proto)

    return make


def _describe_failure(error: Exception) -> str:
    import aiohttp

    match error:
        case aiohttp.ClientConnectorCertificateError():
            words = getattr(error.certificate_error, "verify_message", "") or "it is not valid"
            return f"its certificate can't be trusted ({words})"
        case aiohttp.ClientSSLError() | ssl.SSLError():
            return "no encrypted connection could be made; it may not speak https on this port"
        case aiohttp.ClientConnectorError():
            return f"no connection could be made ({error.os_error.strerror or type(error.os_error).__name__})"
        case aiohttp.ServerDisconnectedError() | ConnectionError():
            return "the server closed the connection before it answered"
        case aiohttp.ClientResponseError():
            return f"the server did not answer in proper HTTP ({type(error).__name__})"
        case _:
            return f"the connection failed ({type(error).__name__})"


# ---- the fetch ----

_MOST_SAID: Final = 600
"""Most characters of an error page that are shown."""
_REDIRECTS: Final = frozenset((301, 302, 303, 307, 308))


@dataclass(frozen=True, slots=True)
class _HttpAnswer:
    url: urls.Url
    hops: int
    status: int
    headers: Mapping[str, str]
    body: bytes
    cut: bool

    def read(self, kind: ShowableContent, *, raw: bool) -> WebPage:
        """The body as text. A long page takes time: call it in a thread."""
        is_page = kind.kind == "page"
        text = decode_body(self.body, self.headers.get("Content-Type", ""), page=is_page, whole=not self.cut)
        return render_html(text, str(self.url)) if is_page and not raw else WebPage("", text, cut=False)


@dataclass(slots=True, kw_only=True)
class Fetcher:
    """Fetches within a policy and limits."""

    policy: urls.UrlPolicy
    resolver: Resolver
    user_agent: str
    timeout: float
    """Seconds, all redirects included."""
    limit: int
    """Bytes of a body, on the wire and decompressed."""
    characters: int
    """Characters of text that one call shows."""
    redirects: int
    _tls: ssl.SSLContext | None = None

    async def fetch(self, text: str, *, start: int, raw: bool) -> str | media.File:
        """The text at the URL from character `start` on, or the file."""
        url = urls.parse_url(text)
        self.policy.check(url)
        timer = asyncio.timeout(self.timeout)
        try:
            async with timer:
                for hops in range(self.redirects + 1):
                    found = await self._request(url, hops)
                    if isinstance(found, _HttpAnswer):
                        return await self._present(found, start=start, raw=raw)
                    url = found
                raise urls.FetchFailed(str(url), f"there were more than {self.redirects} redirects on the way to it")
        except TimeoutError:
            if not timer.expired():
                raise
        raise urls.FetchFailed(str(urls.parse_url(text)), f"it took longer than {self.timeout:g} s")

    async def _request(self, url: urls.Url, hops: int) -> _HttpAnswer | urls.Url:
        """The response, or the next URL, checked as text only."""
        if self._tls is None and url.scheme == "https":
            # The system's trusted roots are on the disk.
            self._tls = cast("ssl.SSLContext", await run_in_thread(ssl.create_default_context, {}))
            self._tls.set_alpn_protocols(["http/1.1"])
        addresses = await resolve_host(url, self.policy, self.resolver)
        async with open_response(url, addresses, self._tls, self.user_agent) as response:
            location = response.headers.get("Location")
            if response.status in _REDIRECTS and location is not None:
                return self.policy.follow(url, location)
            return _HttpAnswer(url, hops, response.status, response.headers, *await self._body(url, response))

    async def _body(self, url: urls.Url, response: aiohttp.ClientResponse) -> tuple[bytes, bool]:
        """The decompressed body; True if it was cut at the limit."""
        encoding = response.headers.get("Content-Encoding", "")
        decoder = choose_decoder(encoding)
        if decoder is None:
            raise urls.ContentRefused(str(url), f"it came compressed as {encoding[:40]!a}, which was not asked for")
        import aiohttp

        limit, wire, size = self.limit, 0, 0
        parts: list[bytes] = []
        try:
            while piece := await response.content.readany():
                wire += len(piece)
                more = decoder.feed(piece, limit - size)
                parts.append(more)
                size += len(more)
                if size > limit or wire > limit:
                    return b"".join(parts)[:limit], True
            decoder.end()
        except BodyBroken as error:
            raise urls.FetchFailed(str(url), f"its body is damaged: {error}") from None
        except (aiohttp.ClientError, OSError) as error:
            raise urls.FetchFailed(str(url), f"the answer broke off ({type(error).__name__})") from None
        return b"".join(parts), False

    async def _present(self, found: _HttpAnswer, *, start: int, raw: bool) -> str | media.File:
        kind = classify_content(found.headers.get("Content-Type", ""), found.body)
        url = str(found.url)
        if found.status >= HTTPStatus.MULTIPLE_CHOICES:
            # Our phrase for the status: a server could choose any words for its own.
            phrase = HTTPStatus(found.status).phrase if found.status in set(HTTPStatus) else ""
            later = found.headers.get("Retry-After", "")
            waits = f" (try again after {later[:40]!a})" if later else ""
            words = ""
            if not isinstance(kind, str) and kind.kind != "file":
                page = cast("WebPage", await run_in_thread(found.read, {"kind": kind, "raw": False}))
                words = " ".join(page.text[: 4 * _MOST_SAID].split())
                words = words if len(words) <= _MOST_SAID else f"{words[:_MOST_SAID]}..."
            raise urls.PageFailed(url, found.status, phrase + waits, words)
        if not found.body:
            return render_page(url, found.hops, "", WebPage("", "", cut=False), start=0, most=1)
        if isinstance(kind, str):
            raise urls.ContentRefused(url, kind)
        if kind.kind == "file":
            if found.cut:
                raise urls.ContentRefused(url, f"it is {kind.media_type} of more than {self.limit:,} bytes")
            name = unquote(found.url.path.partition("?")[0].rpartition("/")[2], errors="replace")[:200]
            return media.File(found.body, kind.media_type, name=name if name and name.isprintable() else None)
        page = cast("WebPage", await run_in_thread(found.read, {"kind": kind, "raw": raw}))
        cut_at = self.limit if found.cut else None
        return render_page(url, found.hops, kind.media_type, page, start=start, most=self.characters, cut_at=cut_at)
