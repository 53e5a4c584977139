"""URLs, read strictly: what can be read in two ways is refused, as the next reader may choose the other one. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from typing import Final
from urllib.parse import quote, urljoin

from holdfast.hands.web.addresses import Address, read_numbers
from holdfast.hands.web.errors import UrlInvalid

MAX_URL: Final = 8_000
"""Longest URL, in characters."""
PORTS: Final = {"http": 80, "https": 443}
"""The schemes there are, with the ports they have unless another is written."""

_SCHEME: Final = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*):")
_LABEL: Final = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_MAX_NAME: Final = 253
_KEPT: Final = "/%:@!$&'()*+,;=~-._"
_PERCENT: Final = re.compile(r"%(?![0-9a-fA-F]{2})")


@dataclass(frozen=True, slots=True)
class Url:
    """A URL in its one canonical form, without a fragment and without credentials."""

    scheme: str
    host: str
    """A name in lower-case ASCII, or an address."""
    address: Address | None
    """The host, where it is an address."""
    port: int
    path: str
    """With the query; begins with a slash; only ASCII."""

    @property
    def authority(self) -> str:
        """The host as a URL writes it, with the port where it is not that of the scheme."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == PORTS[self.scheme] else f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{self.path}"


def read_url(text: str) -> Url:
    """The URL that `text` is, or `UrlInvalid` with what is wrong with it."""
    given = text.strip(" \t\r\n")
    _check_characters(given)
    scheme = _SCHEME.match(given)
    if scheme is None or not given.startswith("//", scheme.end()):
        raise UrlInvalid(given, "it must begin with a scheme, such as https://")
    name = scheme[1].lower()
    if name not in PORTS:
        raise UrlInvalid(given, f"only {' and '.join(sorted(PORTS))} can be fetched, not {name}")
    rest = given[scheme.end() + 2 :].partition("#")[0]
    cut = re.search(r"[/?]", rest)
    authority, tail = (rest, "") if cut is None else (rest[: cut.start()], rest[cut.start() :])
    host, port = _read_authority(given, authority)
    found = _host(given, host)
    address = None if isinstance(found, str) else found
    return Url(name, str(found), address, PORTS[name] if port is None else port, _path(tail))


def follow(url: Url, location: str) -> Url:
    """Where a redirect from `url` leads."""
    _check_characters(location)
    try:
        joined = urljoin(str(url), location)
    except ValueError as error:
        raise UrlInvalid(location, f"it can't be joined to {url.authority}: {error}") from None
    return read_url(joined)


def read_host(text: str) -> str:
    """A host as the canonical form of a URL would have it: a name in ASCII, or an address. For rules."""
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    return str(_host(text, f"[{bare}]" if ":" in bare else bare))


def read_place(text: str) -> tuple[str, int]:
    """A ``host:port``, in canonical form. For rules."""
    host, port = _read_authority(text, text)
    if port is None:
        raise UrlInvalid(text, "a port is missing: write host:port")
    return str(_host(text, host)), port


# ---- the parts -------------------------------------------------------------------------------------------------------


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


def _host(url: str, host: str) -> str | Address:
    if host.startswith("["):
        return _bracketed(url, host)
    name = _as_ascii(url, host).removesuffix(".")
    if not name:
        raise UrlInvalid(url, "it has no host")
    if len(name) > _MAX_NAME or not all(_LABEL.fullmatch(label) for label in name.split(".")):
        raise UrlInvalid(url, "its host is no valid name: letters, digits and hyphens between single dots")
    return _plain_address(url, name) or name


def _bracketed(url: str, host: str) -> IPv6Address:
    inner = host[1:-1] if host.endswith("]") else ""
    if "%" in inner:
        raise UrlInvalid(url, "an address with a zone is of this machine only")
    try:
        return IPv6Address(inner)
    except ValueError:
        raise UrlInvalid(url, "what is in brackets is no IPv6 address") from None


def _plain_address(url: str, name: str) -> IPv4Address | None:
    meant = read_numbers(name)
    if isinstance(meant, str):
        raise UrlInvalid(url, meant)
    if meant is not None and str(meant) != name:
        raise UrlInvalid(url, f"it is an odd way to write the address {meant}; write that, if it is meant")
    return meant


def _as_ascii(url: str, host: str) -> str:
    if host.isascii():
        return host.lower()
    import idna  # noqa: PLC0415  only for names that need it

    if len(host) > _MAX_NAME:  # the longer, the slower; and no shorter name can come of it
        raise UrlInvalid(url, "its host is too long")
    try:
        return idna.encode(host, uts46=True).decode("ascii").lower()
    except UnicodeError as error:
        raise UrlInvalid(url, f"its host is no valid international name: {str(error)[:120]}") from None


def _path(tail: str) -> str:
    path, mark, query = tail.partition("?")
    whole = quote(path or "/", safe=_KEPT) + mark + quote(query, safe=_KEPT + "?")
    return _PERCENT.sub("%25", whole)
