"""One request to one address that was checked: the name is looked up once, and nothing else is dialled."""

from __future__ import annotations

import socket
import ssl
from contextlib import asynccontextmanager
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import holdfast
from holdfast.errors import InvariantBroken
from holdfast.hands.web.errors import FetchFailed, UrlRefused
from holdfast.hands.web.inflating import ACCEPTED
from holdfast.tools.threads import in_thread

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Sequence

    import aiohttp
    from aiohttp.abc import AbstractResolver

    from holdfast.hands.web.addresses import Address
    from holdfast.hands.web.policy import Policy
    from holdfast.hands.web.urls import Url

Resolver: TypeAlias = "Callable[[str], Awaitable[Iterable[str]]]"
"""Looks up a name: gives its addresses as text, or raises an OSError."""

_ACCEPT: Final = "text/html, application/xhtml+xml, application/json, text/*, application/pdf, image/*;q=0.8, */*;q=0.5"
_MOST_ADDRESSES: Final = 16


async def system_resolver(host: str) -> list[str]:
    """Ask the system, in a thread of its own: a name server that does not answer holds up nobody else."""
    found: Any = await in_thread(socket.getaddrinfo, {"host": host, "port": None, "type": socket.SOCK_STREAM})
    return [str(entry[4][0]) for entry in found]


async def checked_addresses(url: Url, policy: Policy, resolver: Resolver) -> tuple[Address, ...]:
    """The addresses that may be dialled for `url`; all that its name has, or `UrlRefused`."""
    addresses = (url.address,) if url.address is not None else await _looked_up(url, resolver)
    policy.check_addresses(url, addresses)
    if not policy.trusts(url) and any(is_own(address) for address in addresses):
        raise UrlRefused(str(url), "it leads to this machine itself")
    return addresses[:_MOST_ADDRESSES]


async def _looked_up(url: Url, resolver: Resolver) -> tuple[Address, ...]:
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


def is_own(address: Address) -> bool:
    """Whether `address` is one of this machine: then what is sent to it would come from it, too. Sends nothing."""
    family = socket.AF_INET if isinstance(address, IPv4Address) else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((str(address), 9))
            return ip_address(str(probe.getsockname()[0]).partition("%")[0]) == address
    except OSError:  # no way leads there
        return False


@asynccontextmanager
async def answer(
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
            raise FetchFailed(str(url), _told(error)) from None
        async with response:
            yield response


async def pieces(url: Url, response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
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


async def trusted_roots() -> ssl.SSLContext:
    """What the system trusts. Read from the disk, so in a thread."""
    made: Any = await in_thread(_trusted_roots, {})
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


def _told(error: Exception) -> str:
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
