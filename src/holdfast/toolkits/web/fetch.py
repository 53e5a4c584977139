"""A fetch: hop by hop to the answer, its body within bounds, and what a model gets of it."""

from __future__ import annotations

import asyncio
import socket
import ssl
import zlib
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias
from urllib.parse import unquote

import holdfast
from holdfast.errors import InvariantBroken
from holdfast.media import File
from holdfast.toolkits.web.page import (
    FetchReport,
    UnshowableContent,
    WebPage,
    classify_content,
    decode_body,
    one_line_excerpt,
    render_html,
)
from holdfast.toolkits.web.urls import (
    ContentRefused,
    FetchFailed,
    PageFailed,
    UrlInvalid,
    UrlRefused,
    parse_url,
    resolve_redirect,
)
from holdfast.tools.functions import run_in_thread

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Sequence

    import aiohttp
    from aiohttp.abc import AbstractResolver

    from holdfast.toolkits.web.page import ShowableContent
    from holdfast.toolkits.web.urls import Address, Url, UrlPolicy


ACCEPTED: Final = "gzip, deflate"
"""What a request says that it can take."""
MAX_MEMBERS: Final = 1_000
"""How many gzip members one body may have: each costs time, also when it holds nothing."""
_STEP: Final = 256 * 1024


class BodyBroken(ValueError):
    """Bytes that are not what their encoding says."""


class BodyDecoder(Protocol):
    """Takes the bytes of the wire, gives those that are meant."""

    def feed(self, data: bytes, room: int) -> bytes:
        """At most `room` bytes and one more of what `data` adds; the one more tells that there was no room."""
        ...

    def end(self) -> None:
        """Raise `BodyBroken` when something is missing."""
        ...


def choose_decoder(encoding: str) -> BodyDecoder | None:
    """What reads a body with this Content-Encoding; None when it is one that was not asked for."""
    match encoding.strip().lower():
        case "" | "identity":
            return _IdentityDecoder()
        case "gzip" | "x-gzip":
            return _ZlibDecoder(gzip=True)
        case "deflate":
            return _ZlibDecoder(gzip=False)
        case _:
            return None


class _Inflater(Protocol):
    """What `zlib.decompressobj` gives."""

    @property
    def eof(self) -> bool: ...
    @property
    def unconsumed_tail(self) -> bytes: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


class _IdentityDecoder:
    def feed(self, data: bytes, room: int) -> bytes:
        return data[: room + 1]

    def end(self) -> None:
        return


class _ZlibDecoder:
    """gzip with any number of members, or deflate with or without the header that it should have."""

    def __init__(self, *, gzip: bool) -> None:
        self._gzip = gzip
        self._members = 0
        self._inflater: _Inflater | None = None
        self._padding = False

    def feed(self, data: bytes, room: int) -> bytes:
        found: list[bytes] = []
        size, full = 0, False
        # A step that came out full may have left something in the inflater, also when it took all input.
        while (data or full) and size <= room and not self._over(data):
            inflater = self._inflater or self._begin(data)
            asked = min(_STEP, room + 1 - size)
            try:
                piece = inflater.decompress(data, asked)
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
        if self._inflater is not None:
            raise BodyBroken("it ends in the middle")

    def _begin(self, data: bytes) -> _Inflater:
        self._members += 1
        if self._members > MAX_MEMBERS:
            raise BodyBroken("it is compressed in too many pieces")
        headed = self._gzip or data[0] & 0x0F == 8
        self._inflater = zlib.decompressobj((16 * self._gzip + zlib.MAX_WBITS) * (1 if headed else -1))
        return self._inflater

    def _over(self, data: bytes) -> bool:
        """Whether only padding follows, which everybody ignores."""
        if self._inflater is None and self._members:
            self._padding = self._padding or not self._gzip or not data.startswith(b"\x1f")
        return self._padding


Resolver: TypeAlias = "Callable[[str], Awaitable[Iterable[str]]]"
"""Looks up a name: gives its addresses as text, or raises an OSError."""
_ACCEPT: Final = "text/html, application/xhtml+xml, application/json, text/*, application/pdf, image/*;q=0.8, */*;q=0.5"
_MOST_ADDRESSES: Final = 16


async def system_resolver(host: str) -> list[str]:
    """Ask the system, in a thread of its own: a name server that does not answer holds up nobody else."""
    found: Any = await run_in_thread(socket.getaddrinfo, {"host": host, "port": None, "type": socket.SOCK_STREAM})
    return [str(entry[4][0]) for entry in found]


async def resolve_host(url: Url, policy: UrlPolicy, resolver: Resolver) -> tuple[Address, ...]:
    """The addresses that may be dialled for `url`; all that its name has, or `UrlRefused`."""
    addresses = (url.address,) if url.address is not None else await _look_up(url, resolver)
    policy.check_addresses(url, addresses)
    if not policy.trusts(url) and any(is_own_address(address) for address in addresses):
        raise UrlRefused(str(url), "it leads to this machine itself")
    return addresses[:_MOST_ADDRESSES]


async def _look_up(url: Url, resolver: Resolver) -> tuple[Address, ...]:
    try:
        found = list(await resolver(url.host))
        addresses = tuple(dict.fromkeys(ip_address(text.partition("%")[0]) for text in found))
    except (OSError, UnicodeError) as error:
        said = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
        raise FetchFailed(
            str(url), f"the name {url.host} could not be looked up ({said}); is it spelt right?"
        ) from None
    except ValueError as error:
        raise FetchFailed(str(url), f"the lookup of {url.host} gave something that is no address: {error}") from None
    if not addresses:
        raise FetchFailed(str(url), f"the name {url.host} has no address")
    return addresses


def is_own_address(address: Address) -> bool:
    """Whether `address` is one of this machine: then what is sent to it would come from it, too. Sends nothing."""
    family = socket.AF_INET if isinstance(address, IPv4Address) else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((str(address), 9))
            return ip_address(str(probe.getsockname()[0]).partition("%")[0]) == address
    except OSError:  # no way leads there
        return False


@asynccontextmanager
async def open_response(
    url: Url, addresses: Sequence[Address], tls: ssl.SSLContext | None, user_agent: str
) -> AsyncGenerator[aiohttp.ClientResponse, None]:
    """The answer to a GET of `url` from one of `addresses`, its body still to come; `FetchFailed` when none begins.

    No cookies, no credentials, no proxy, nothing from the environment; redirects are not followed and bodies not
    decompressed. The certificate is checked against the name in the URL.
    """
    import aiohttp  # noqa: PLC0415  heavy: only whoever makes a call pays for it
    from yarl import URL  # noqa: PLC0415

    headers = {"User-Agent": user_agent, "Accept": _ACCEPT, "Accept-Encoding": ACCEPTED}
    connector = aiohttp.TCPConnector(
        ssl=True if tls is None else tls,
        resolver=_pinned(url, addresses),
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
            raise FetchFailed(str(url), _describe_failure(error)) from None
        async with response:
            yield response


async def read_pieces(url: Url, response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """The body as it comes; `FetchFailed` when it ends before its end."""
    import aiohttp  # noqa: PLC0415

    while True:
        try:
            piece = await response.content.readany()
        except (aiohttp.ClientError, OSError) as error:
            raise FetchFailed(str(url), f"the answer broke off ({type(error).__name__})") from None
        if not piece:
            return
        yield piece


def default_user_agent() -> str:
    """How requests name their sender unless the host says otherwise."""
    return f"holdfast/{holdfast.__version__}"


async def load_tls_context() -> ssl.SSLContext:
    """What the system trusts. Read from the disk, so in a thread."""
    made: Any = await run_in_thread(_trusted_roots, {})
    return made


def _trusted_roots() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


def _pinned(url: Url, addresses: Sequence[Address]) -> AbstractResolver:
    from aiohttp.abc import AbstractResolver, ResolveResult  # noqa: PLC0415

    class Pinned(AbstractResolver):
        """Knows one name."""

        async def resolve(
            self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
        ) -> list[ResolveResult]:
            del family
            if host != url.host:
                raise InvariantBroken(f"a lookup of {host!r} while {url.host!r} was fetched")
            return [
                ResolveResult(
                    hostname=host,
                    host=str(address),
                    port=port,
                    family=socket.AF_INET6 if isinstance(address, IPv6Address) else socket.AF_INET,
                    proto=0,
                    flags=socket.AI_NUMERICHOST,
                )
                for address in addresses
            ]

        async def close(self) -> None:
            return

    return Pinned()


def _guarded(addresses: frozenset[Address]) -> Callable[[Any], socket.socket]:
    """Makes the sockets. Whatever way led here, no other address than those that were checked gets one."""

    def make(info: tuple[Any, ...]) -> socket.socket:
        family, kind, proto, _, place = info
        if ip_address(str(place[0]).partition("%")[0]) not in addresses:
            raise InvariantBroken(f"{place[0]} was about to be dialled without having been checked")
        return socket.socket(family, kind, proto)

    return make


def _describe_failure(error: Exception) -> str:
    import aiohttp  # noqa: PLC0415

    match error:
        case aiohttp.ClientConnectorCertificateError():
            said = getattr(error.certificate_error, "verify_message", "") or "it is not valid"
            return f"its certificate can't be trusted ({said})"
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


_REDIRECTS: Final = frozenset((301, 302, 303, 307, 308))
_EXCERPT: Final = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchLimits:
    """How much one fetch may take."""

    timeout: float
    """Seconds for all of it."""
    limit: int
    """Bytes of a body, on the wire and decompressed."""
    characters: int
    """Of text that one call shows."""
    redirects: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _HttpAnswer:
    url: Url
    hops: int
    status: int
    phrase: str
    content_type: str
    retry_after: str
    body: bytes
    cut: bool


class Fetcher:
    """Fetches within a policy and bounds."""

    def __init__(self, policy: UrlPolicy, bounds: FetchLimits, resolver: Resolver, user_agent: str) -> None:
        self._policy = policy
        self._bounds = bounds
        self._resolver = resolver
        self._user_agent = user_agent
        self._tls: ssl.SSLContext | None = None

    async def fetch(self, text: str, *, start: int, raw: bool) -> str | File:
        """What is at the URL in `text`: its text from character `start` on, or the file that it is."""
        url = parse_url(text)
        self._policy.check(url)
        timer = asyncio.timeout(self._bounds.timeout)
        try:
            async with timer:
                found = await self._followed(url)
                return await self._shown(found, start=start, raw=raw)
        except TimeoutError:
            if not timer.expired():
                raise
        raise FetchFailed(str(url), f"it took longer than {self._bounds.timeout:g} s")

    # ---- the way there ----

    async def _followed(self, url: Url) -> _HttpAnswer:
        for hops in range(self._bounds.redirects + 1):
            found = await self._asked(url, hops)
            if isinstance(found, _HttpAnswer):
                return found
            url = found
        raise FetchFailed(str(url), f"there were more than {self._bounds.redirects} redirects on the way to it")

    async def _asked(self, url: Url, hops: int) -> _HttpAnswer | Url:
        """The answer, or where it sends us; that was checked as far as its text tells."""
        if self._tls is None and url.scheme == "https":
            self._tls = await load_tls_context()
        addresses = await resolve_host(url, self._policy, self._resolver)
        async with open_response(url, addresses, self._tls, self._user_agent) as response:
            location = response.headers.get("Location")
            if response.status in _REDIRECTS and location is not None:
                return self._redirected(url, location)
            body, cut = await self._body(url, response)
            return _HttpAnswer(
                url=url,
                hops=hops,
                status=response.status,
                phrase=_phrase(response.status),
                content_type=response.headers.get("Content-Type", ""),
                retry_after=response.headers.get("Retry-After", ""),
                body=body,
                cut=cut,
            )

    def _redirected(self, url: Url, location: str) -> Url:
        try:
            after = resolve_redirect(url, location)
        except UrlInvalid as error:
            raise UrlRefused(str(url), f"it redirects to what is not a valid URL: {error.reason}") from None
        self._policy.check_redirect(url, after)
        return after

    async def _body(self, url: Url, response: aiohttp.ClientResponse) -> tuple[bytes, bool]:
        """The body, decompressed, and whether it was cut at the limit."""
        encoding = response.headers.get("Content-Encoding", "")
        reading = choose_decoder(encoding)
        if reading is None:
            raise ContentRefused(str(url), f"it came compressed as {encoding[:40]!a}, which was not asked for")
        limit, wire, size = self._bounds.limit, 0, 0
        kept: list[bytes] = []
        try:
            async for piece in read_pieces(url, response):
                wire += len(piece)
                more = reading.feed(piece, limit - size)
                kept.append(more)
                size += len(more)
                if size > limit or wire > limit:
                    return b"".join(kept)[:limit], True
            reading.end()
        except BodyBroken as error:
            raise FetchFailed(str(url), f"its body is damaged: {error}") from None
        return b"".join(kept), False

    # ---- what is shown ----

    async def _shown(self, found: _HttpAnswer, *, start: int, raw: bool) -> str | File:
        kind = classify_content(found.content_type, found.body)
        if found.status >= HTTPStatus.MULTIPLE_CHOICES:
            raise await self._failed(found, kind)
        if not found.body:
            return FetchReport(url=str(found.url), hops=found.hops, media_type="", title="", text="").told(0, 1)
        if isinstance(kind, UnshowableContent):
            raise ContentRefused(str(found.url), kind.reason)
        if kind.kind == "file":
            return self._file(found, kind)
        page = await _read(found, kind, raw=raw)
        report = FetchReport(
            url=str(found.url),
            hops=found.hops,
            media_type=kind.media_type,
            title=page.title,
            text=page.text,
            cut_at=self._bounds.limit if found.cut else None,
            longer=page.cut,
        )
        return report.told(start, self._bounds.characters)

    async def _failed(self, found: _HttpAnswer, kind: ShowableContent | UnshowableContent) -> PageFailed:
        said = ""
        if not isinstance(kind, UnshowableContent) and kind.kind != "file":
            said = one_line_excerpt((await _read(found, kind, raw=False)).text, _EXCERPT)
        waits = f" (try again after {found.retry_after[:40]!a})" if found.retry_after else ""
        return PageFailed(str(found.url), found.status, found.phrase + waits, said)

    def _file(self, found: _HttpAnswer, kind: ShowableContent) -> File:
        if found.cut:
            raise ContentRefused(str(found.url), f"it is {kind.media_type} of more than {self._bounds.limit:,} bytes")
        return File(found.body, kind.media_type, name=_name(found.url))


async def _read(found: _HttpAnswer, kind: ShowableContent, *, raw: bool) -> WebPage:
    # A long page takes a while: not on the event loop.
    given = {"found": found, "kind": kind, "raw": raw}
    page: Any = await run_in_thread(_render_answer, given)
    return page


def _render_answer(found: _HttpAnswer, kind: ShowableContent, *, raw: bool) -> WebPage:
    page = kind.kind == "page"
    text = decode_body(found.body, found.content_type, page=page, whole=not found.cut)
    if page and not raw:
        return render_html(text, str(found.url))
    return WebPage("", text, cut=False)


def _phrase(status: int) -> str:
    """Our own words for a status: those of the server are its own to choose."""
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""


def _name(url: Url) -> str | None:
    last = unquote(url.path.partition("?")[0].rpartition("/")[2], errors="replace")[:200]
    return last if last and last.isprintable() else None
