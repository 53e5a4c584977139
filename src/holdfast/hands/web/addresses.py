"""Which addresses are part of the public internet, and which are somebody's inside. Pure.

The ranges are written down here, and not left to `ipaddress`, whose answers differ between releases of Python.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Final, TypeAlias

Address: TypeAlias = IPv4Address | IPv6Address


@dataclass(frozen=True, slots=True)
class Range:
    """Addresses that are not fetched from, and why."""

    network: IPv4Network | IPv6Network
    what: str
    inside: bool = False
    """Whether ordinary servers live there. A name that the host trusts may lead to such a range, but to no other."""


def _v4(network: str, what: str, *, inside: bool = False) -> Range:
    return Range(IPv4Network(network), what, inside)


def _v6(network: str, what: str, *, inside: bool = False) -> Range:
    return Range(IPv6Network(network), what, inside)


# The first that holds an address names it, so the narrow ones come first.
_CLOSED_4: Final = (
    _v4("0.0.0.0/8", "an unspecified address"),
    _v4("10.0.0.0/8", "a private address", inside=True),
    _v4("100.100.100.200/32", "a metadata service of a cloud"),
    _v4("100.64.0.0/10", "an address shared by a carrier (CGNAT)", inside=True),
    _v4("127.0.0.0/8", "a loopback address", inside=True),
    _v4("168.63.129.16/32", "a metadata service of a cloud"),  # public by its number, but only a host's own platform
    _v4("169.254.169.254/32", "a metadata service of a cloud"),
    _v4("169.254.0.0/16", "a link-local address"),
    _v4("172.16.0.0/12", "a private address", inside=True),
    _v4("192.0.0.0/24", "an address reserved for protocols"),
    _v4("192.0.2.0/24", "an address reserved for documentation"),
    _v4("192.88.99.0/24", "a 6to4 relay"),
    _v4("192.168.0.0/16", "a private address", inside=True),
    _v4("198.18.0.0/15", "an address reserved for benchmarks"),
    _v4("198.51.100.0/24", "an address reserved for documentation"),
    _v4("203.0.113.0/24", "an address reserved for documentation"),
    _v4("224.0.0.0/4", "a multicast address"),
    _v4("255.255.255.255/32", "a broadcast address"),
    _v4("240.0.0.0/4", "a reserved address"),
)
# Addresses that carry an IPv4 address are refused whatever they carry: a public server has a plain one as well.
_CLOSED_6: Final = (
    _v6("::/128", "an unspecified address"),
    _v6("::1/128", "a loopback address", inside=True),
    _v6("::ffff:0:0/96", "an IPv4 address in IPv6 clothes (mapped)"),
    _v6("::ffff:0:0:0/96", "an IPv4 address in IPv6 clothes (translated)"),
    _v6("::/96", "an IPv4 address in IPv6 clothes (compatible)"),
    _v6("64:ff9b::/96", "an IPv4 address in IPv6 clothes (NAT64)"),
    _v6("64:ff9b:1::/48", "an IPv4 address in IPv6 clothes (NAT64)"),
    _v6("100::/64", "an address that discards what it gets"),
    _v6("2001::/32", "an IPv4 address in IPv6 clothes (Teredo)"),
    _v6("2001::/23", "an address reserved for protocols"),
    _v6("2001:db8::/32", "an address reserved for documentation"),
    _v6("2002::/16", "an IPv4 address in IPv6 clothes (6to4)"),
    _v6("3fff::/20", "an address reserved for documentation"),
    _v6("fd00:ec2::254/128", "a metadata service of a cloud"),
    _v6("fd20:ce::254/128", "a metadata service of a cloud"),
    _v6("fc00::/7", "a private address", inside=True),
    _v6("fe80::/10", "a link-local address"),
    _v6("fec0::/10", "a site-local address"),
    _v6("ff00::/8", "a multicast address"),
)
_PUBLIC_6: Final = IPv6Network("2000::/3")
_REST_6: Final = _v6("::/0", "not an address of the public internet")
_ISATAP: Final = _v6("::/0", "an IPv4 address in IPv6 clothes (ISATAP)")
_ISATAP_MARKS: Final = (0x0000_5EFE, 0x0200_5EFE)


def closed_range(address: Address) -> Range | None:
    """The range that keeps `address` from being fetched from; None for one of the public internet."""
    if isinstance(address, IPv4Address):
        return next((closed for closed in _CLOSED_4 if address in closed.network), None)
    found = next((closed for closed in _CLOSED_6 if address in closed.network), None)
    if found is not None:
        return found
    if address not in _PUBLIC_6:
        return _REST_6
    return _ISATAP if (int(address) >> 32) & 0xFFFF_FFFF in _ISATAP_MARKS else None


def read_numbers(host: str) -> IPv4Address | str | None:
    """What a host that ends in a number means to those who read it as an address, as C libraries and browsers do.

    None when it is a name. Text tells why it is neither: names can't end in a number, so it must not be looked up.
    """
    parts = host.removesuffix(".").split(".")
    if _number(parts[-1]) is None and not parts[-1].isdigit():
        return None
    numbers = [_number(part) for part in parts]
    if len(numbers) > 4:
        return "it ends in a number, but has too many parts for an address"
    known = [number for number in numbers if number is not None]
    if len(known) < len(numbers):
        return "it ends in a number, but is no address"
    rest = 256 ** (5 - len(known))
    if any(number > 255 for number in known[:-1]) or known[-1] >= rest:
        return "its numbers are too large for an address"
    whole = sum(number << (24 - 8 * n) for n, number in enumerate(known[:-1])) + known[-1]
    return IPv4Address(whole)


def _number(part: str) -> int | None:
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
