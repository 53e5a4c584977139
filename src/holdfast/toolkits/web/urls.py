"""URLs, parsed strictly, and the policy that decides which ones may be fetched. Pure.

A URL that can be read in two ways is refused, because the next reader may choose the other one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_network
from typing import ClassVar, Final, TypeAlias
from urllib.parse import quote, urljoin

from holdfast.errors import HoldfastError, InvalidArgument, UsageError, WorldError
from holdfast.names import check_int

# ---- addresses ----

Address: TypeAlias = IPv4Address | IPv6Address


@dataclass(frozen=True, slots=True)
class AddressRange:
    """Addresses that are not fetched from, and the reason."""

    what: str
    inside: bool = False
    """True if ordinary servers have such addresses. A trusted name may lead to such a range, but to no other."""


_INSIDE: Final = {
    "a private address": "10.0.0.0/8 172.16.0.0/12 192.168.0.0/16 fc00::/7",
    "a loopback address": "127.0.0.0/8 ::1/128",
    "an address shared by a carrier (CGNAT)": "100.64.0.0/10",
}
# 168.63.129.16 is public by its number, but of the host's platform.
# IPv6 addresses that embed an IPv4 address are refused, whichever it is: a public server has a plain one as well.
_OUTSIDE: Final = {
    "a metadata service of a cloud": (
        "100.100.100.200/32 168.63.129.16/32 169.254.169.254/32 fd00:ec2::254/128 fd20:ce::254/128"
    ),
    "an unspecified address": "0.0.0.0/8 ::/128",
    "a link-local address": "169.254.0.0/16 fe80::/10",
    "a site-local address": "fec0::/10",
    "an address reserved for protocols": "192.0.0.0/24 2001::/23",
    "an address reserved for documentation": "192.0.2.0/24 198.51.100.0/24 203.0.113.0/24 2001:db8::/32 3fff::/20",
    "an address reserved for benchmarks": "198.18.0.0/15",
    "an address that discards what it gets": "100::/64",
    "a 6to4 relay": "192.88.99.0/24",
    "a multicast address": "224.0.0.0/4 ff00::/8",
    "a broadcast address": "255.255.255.255/32",
    "a reserved address": "240.0.0.0/4",
    "an IPv4 address in IPv6 clothes (mapped)": "::ffff:0:0/96",
    "an IPv4 address in IPv6 clothes (translated)": "::ffff:0:0:0/96",
    "an IPv4 address in IPv6 clothes (compatible)": "::/96",
    "an IPv4 address in IPv6 clothes (NAT64)": "64:ff9b::/96 64:ff9b:1::/48",
    "an IPv4 address in IPv6 clothes (Teredo)": "2001::/32",
    "an IPv4 address in IPv6 clothes (6to4)": "2002::/16",
}
_CLOSED: Final = [
    (ip_network(network), AddressRange(what, inside=what in _INSIDE))
    for what, networks in (_INSIDE | _OUTSIDE).items()
    for network in networks.split()
]
_CLOSED.sort(key=lambda entry: -entry[0].prefixlen)  # the narrowest range names an address
_PUBLIC_6: Final = IPv6Network("2000::/3")


def find_closed_range(address: Address) -> AddressRange | None:
    """The range that forbids `address`; None for an address of the public internet."""
    found = next((closed for network, closed in _CLOSED if address in network), None)
    if found is not None or isinstance(address, IPv4Address):
        return found
    if address not in _PUBLIC_6:
        return AddressRange("not an address of the public internet")
    isatap = (int(address) >> 32) & 0xFFFF_FFFF in {0x0000_5EFE, 0x0200_5EFE}
    return AddressRange("an IPv4 address in IPv6 clothes (ISATAP)") if isatap else None


def parse_ipv4(host: str) -> IPv4Address | str | None:
    """The address that C libraries and browsers read in a host that ends in a number; None for a name.

    Returns a text with the reason if it is neither: a name can't end in a number, so it must not be looked up.
    """
    parts = host.removesuffix(".").split(".")
    if _parse_number(parts[-1]) is None and not parts[-1].isdigit():
        return None
    numbers = [_parse_number(part) for part in parts]
    if len(numbers) > 4:
        return "it ends in a number, but has too many parts for an address"
    known = [number for number in numbers if number is not None]
    if len(known) < len(numbers):
        return "it ends in a number, but is no address"
    if any(number > 255 for number in known[:-1]) or known[-1] >= 256 ** (5 - len(known)):
        return "its numbers are too large for an address"
    return IPv4Address(sum(number << (24 - 8 * n) for n, number in enumerate(known[:-1])) + known[-1])


def _parse_number(part: str) -> int | None:
    """A part of an address: decimal, octal after a 0, hexadecimal after 0x."""
    if not part.isascii() or len(part) > 40:
        return None
    digits, base = part.lower(), 10
    if digits.startswith("0x"):
        digits, base = digits[2:] or "0", 16
    elif len(digits) > 1 and digits.startswith("0"):
        base = 8
    allowed = "0123456789abcdef"[:base]
    return int(digits, base) if digits and all(digit in allowed for digit in digits) else None


# ---- errors ----


class UrlError(HoldfastError):
    """An error about one URL. `text` is its message."""

    text: ClassVar[str]

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(self.text.format(url=quote_url(url), reason=reason))
        self.url = url
        self.reason = reason


class UrlInvalid(UrlError, UsageError):
    """The text is not a URL, or one that is written to be misread."""

    text = "{url} is not a valid URL: {reason}"


class UrlRefused(UrlError, UsageError):
    """The policy forbids this URL. Nothing was sent there."""

    text = "{url} must not be fetched: {reason}"


class FetchFailed(UrlError, WorldError):
    """There is no complete response: the name, the connection, the encryption, the time or the body failed."""

    text = "{url} could not be fetched: {reason}"


class PageFailed(UrlError, WorldError):
    """The server answered with an error status."""

    text = "{url} answered {reason}"

    def __init__(self, url: str, status: int, phrase: str, said: str) -> None:
        words = f"{status} {phrase}".strip()
        super().__init__(url, f"{words}. The page says: {said}" if said else words)
        self.status = status
        self.said = said


class ContentRefused(UrlError, WorldError):
    """The response has a kind or a size that a model can't use."""

    text = "{url} was fetched, but can't be shown: {reason}"


def quote_url(url: str) -> str:
    """A URL for a message: at most 200 characters, escaped."""
    text = ascii(url)[1:-1]
    return text if len(text) <= 200 else f"{text[:160]}... ({len(url):,} characters)"


# ---- URLs ----

MAX_URL: Final = 8_000
"""Longest URL, in characters."""
PORTS: Final = {"http": 80, "https": 443}
"""The schemes, with their default ports."""
_LABEL: Final = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_MAX_NAME: Final = 253
_SAFE_CHARACTERS: Final = "/%:@!$&'()*+,;=~-._"


@dataclass(frozen=True, slots=True)
class Url:
    """A URL in its canonical form, without a fragment and without credentials."""

    scheme: str
    host: str
    """A name in lower-case ASCII, or an address."""
    address: Address | None
    """The host, if it is an address."""
    port: int
    path: str
    """Includes the query; begins with a slash; only ASCII."""

    @property
    def authority(self) -> str:
        """The host, with the port if it is not the scheme's default."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == PORTS[self.scheme] else f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{self.path}"


def parse_url(text: str) -> Url:
    """Parse a URL; `UrlInvalid` names the error."""
    given = text.strip(" \t\r\n")
    _check_characters(given)
    scheme = re.match("([a-zA-Z][a-zA-Z0-9+.-]*):", given)
    if scheme is None or not given.startswith("//", scheme.end()):
        raise UrlInvalid(given, "it must begin with a scheme, such as https://")
    name = scheme[1].lower()
    if name not in PORTS:
        raise UrlInvalid(given, f"only {' and '.join(sorted(PORTS))} can be fetched, not {name}")
    rest = given[scheme.end() + 2 :].partition("#")[0]
    authority = re.split("[/?]", rest, maxsplit=1)[0]
    host, port = _read_authority(given, authority)
    found = _parse_host(given, host)
    path, mark, query = rest[len(authority) :].partition("?")
    whole = quote(path or "/", safe=_SAFE_CHARACTERS) + mark + quote(query, safe=_SAFE_CHARACTERS + "?")
    address = None if isinstance(found, str) else found
    return Url(name, str(found), address, port or PORTS[name], re.sub("%(?![0-9a-fA-F]{2})", "%25", whole))


def parse_host(text: str) -> str:
    """The canonical form of a host, for rules: a name in ASCII, or an address."""
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    return str(_parse_host(text, f"[{bare}]" if ":" in bare else bare))


def _check_characters(text: str) -> None:
    if len(text) > MAX_URL:
        raise UrlInvalid(text, f"it is {len(text):,} characters long, the limit is {MAX_URL:,}")
    odd = next((char for char in text if char < " " or "\x7f" <= char < "\xa0" or "\ud800" <= char <= "\udfff"), None)
    if odd is not None:
        raise UrlInvalid(text, f"it has a control character in it ({odd!a})")


def _read_authority(url: str, authority: str) -> tuple[str, int | None]:
    if "@" in authority:
        raise UrlInvalid(
            url, "it has a user name before the host; credentials are never sent, leave out what is before @"
        )
    host, bracket, after = authority.rpartition("]")
    host, colon, port = (host + bracket, after[:1], after[1:]) if bracket else authority.partition(":")
    if colon not in {"", ":"}:
        raise UrlInvalid(url, "there is something between the address and the port")
    if not port:
        return host, None
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 65_536):
        raise UrlInvalid(url, "the port must be a number from 1 to 65535")
    return host, int(port)


def _parse_host(url: str, host: str) -> str | Address:
    if host.startswith("["):
        inner = host[1:-1] if host.endswith("]") else ""
        if "%" in inner:
            raise UrlInvalid(url, "an address with a zone is of this machine only")
        try:
            return IPv6Address(inner)
        except ValueError:
            raise UrlInvalid(url, "what is in brackets is no IPv6 address") from None
    if host.isascii():
        name = host.lower().removesuffix(".")
    elif len(host) > _MAX_NAME:  # the longer, the slower to encode; and no shorter name can come of it
        raise UrlInvalid(url, "its host is too long")
    else:
        import idna  # only for names that need it

        try:
            name = idna.encode(host, uts46=True).decode("ascii").lower().removesuffix(".")
        except UnicodeError as error:
            raise UrlInvalid(url, f"its host is no valid international name: {str(error)[:120]}") from None
    if not name:
        raise UrlInvalid(url, "it has no host")
    if len(name) > _MAX_NAME or not all(_LABEL.fullmatch(label) for label in name.split(".")):
        raise UrlInvalid(url, "its host is no valid name: letters, digits and hyphens between single dots")
    meant = parse_ipv4(name)
    if isinstance(meant, str):
        raise UrlInvalid(url, meant)
    if meant is not None and str(meant) != name:
        raise UrlInvalid(url, f"it is an odd way to write the address {meant}; write that, if it is meant")
    return meant or name


# ---- the policy ----

DEFAULT_PORTS: Final = (80, 443, 8080, 8443)
"""Ports of the public web. Others belong to mail, databases and the like: an agent that was tricked must not scan
them, nor send them words that they might read as commands."""


@dataclass(frozen=True, slots=True)
class HostRule:
    """One host, or with `below` all hosts under it, without itself."""

    host: str
    below: bool

    def __str__(self) -> str:
        return f"*.{self.host}" if self.below else self.host

    def matches(self, host: str) -> bool:
        """True if the rule covers `host`, in canonical form."""
        return host.endswith(f".{self.host}") if self.below else host == self.host


class UrlPolicy:
    """The rules that decide which URLs may be fetched, from the options of `web(...)`; an error names a wrong one."""

    def __init__(
        self,
        *,
        allow: Iterable[str] | None,
        deny: Iterable[str],
        allow_private: Iterable[str],
        schemes: Iterable[str],
        ports: Iterable[int],
        downgrade: bool,
    ) -> None:
        if type(downgrade) is not bool:
            raise InvalidArgument("downgrade", downgrade, "True or False")
        self.downgrade: Final = downgrade
        """True if a redirect may lead from https to http."""
        self.schemes: Final = frozenset(_check_texts("schemes", schemes))
        if not self.schemes or not self.schemes <= PORTS.keys():
            raise InvalidArgument("schemes", schemes, "some of 'https' and 'http'")
        if isinstance(ports, str | bytes | int):
            raise InvalidArgument("ports", ports, "a list of numbers")
        self.ports: Final = frozenset(check_int("port", port, least=1, most=65_535) for port in ports)
        self.allow: Final = None if allow is None else _parse_rules("allow", allow)
        """None: every host that is not denied."""
        self.deny: Final = _parse_rules("deny", deny)
        self.private: Final = frozenset(map(_parse_private, _check_texts("allow_private", allow_private)))
        """Hosts with a port that may be inside the network, listed by the author of the agent."""

    def trusts(self, url: Url) -> bool:
        """True if the author of the agent allows this host and port to be inside the network."""
        return (url.host, url.port) in self.private

    def check(self, url: Url) -> None:
        """Raise `UrlRefused` unless the text of `url` allows fetching it."""
        if url.scheme not in self.schemes:
            raise UrlRefused(str(url), f"only {' and '.join(sorted(self.schemes))} is allowed here")
        if any(rule.matches(url.host) for rule in self.deny):
            raise UrlRefused(str(url), f"the host {url.host} is denied here")
        if not self.trusts(url):
            if self.allow is not None and not any(rule.matches(url.host) for rule in self.allow):
                raise UrlRefused(str(url), f"the host {url.host} is not among those that are allowed here")
            if url.port not in self.ports:
                listed = ", ".join(str(port) for port in sorted(self.ports)[:10])
                raise UrlRefused(str(url), f"the port {url.port} is not among those that are allowed here ({listed})")
        if url.address is not None:
            self.check_addresses(url, [url.address])

    def follow(self, before: Url, location: str) -> Url:
        """The target of a redirect; `UrlRefused` unless `before` may lead there."""
        try:
            _check_characters(location)
            after = parse_url(urljoin(str(before), location))
        except (UrlInvalid, ValueError) as error:
            reason = error.reason if isinstance(error, UrlInvalid) else f"it can't be joined to this URL: {error}"
            raise UrlRefused(str(before), f"it redirects to what is not a valid URL: {reason}") from None
        if before.scheme == "https" and after.scheme != "https" and not self.downgrade:
            raise UrlRefused(str(after), f"{before.authority} redirects to it, from https to {after.scheme}")
        self.check(after)
        return after

    def check_addresses(self, url: Url, addresses: Sequence[Address]) -> None:
        """Raise `UrlRefused` unless all addresses of the host may be dialled.

        One forbidden address is enough: an attacker may hide an inside address among others.
        """
        for address in addresses:
            closed = find_closed_range(address)
            if closed is None or (self.trusts(url) and (closed.inside or url.address is not None)):
                continue
            # The message hides the inside address from the model.
            raise UrlRefused(str(url), f"{'it is' if url.address is not None else 'its host leads to'} {closed.what}")


def _check_texts(what: str, given: Iterable[str]) -> list[str]:
    # A single string would count as a list of its letters.
    if isinstance(given, str | bytes):
        raise InvalidArgument(what, given, "a list of texts")
    listed = list(given)
    for text in listed:
        if type(text) is not str:
            raise InvalidArgument(what, text, "text")
    return listed


def _parse_rules(what: str, given: Iterable[str]) -> tuple[HostRule, ...]:
    return tuple(_parse_rule(what, text) for text in _check_texts(what, given))


def _parse_rule(what: str, text: str) -> HostRule:
    below = text.startswith("*.")
    try:
        return HostRule(parse_host(text[2:] if below else text), below)
    except UrlInvalid:
        raise InvalidArgument(what, text, "a host such as 'example.com', or '*.example.com' for all below it") from None


def _parse_private(text: str) -> tuple[str, int]:
    try:
        host, port = _read_authority(text, text)
        name = str(_parse_host(text, host))
    except UrlInvalid:
        name, port = "", None
    if port is None:
        raise InvalidArgument("allow_private", text, "a host with a port, such as '127.0.0.1:8080'")
    return name, port
