"""Where a URL leads, for rules about hosts: read by the one reader that the web tools use. Pure.

Two readers would be two opinions about a URL that is written to be misread.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from holdfast.errors.policy import PolicyInvalid
from holdfast.errors.tree import UsageError, excerpt

_WANTED: Final = "write one such as 'example.com', or '*.example.com' for all below it, without a scheme or a port"
# Whoever is named before the host says nothing about the host, and the reader takes none. Only what every reader takes
# for a user is left out; what is still odd after that is refused.
_USER: Final = re.compile(r"\A(https?://)[\w.~!$&'()*+,;=:%-]*@", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Host:
    """One host, or with `below` all hosts under it and not itself."""

    name: str
    below: bool

    def __str__(self) -> str:
        return f"*.{self.name}" if self.below else self.name

    def covers(self, place: Place) -> bool:
        """Whether it means the host of a URL; nothing is below an address."""
        if self.below:
            return not place.address and place.host.endswith(f".{self.name}")
        return place.host == self.name


@dataclass(frozen=True, slots=True)
class Place:
    """The host of a URL, in its one canonical form."""

    host: str
    address: bool


def read_place(url: str) -> Place | str:
    """Where a URL leads; or, as text, why nobody can say."""
    from holdfast.hands.web.errors import UrlInvalid  # noqa: PLC0415  only for rules about hosts
    from holdfast.hands.web.urls import read_url  # noqa: PLC0415

    try:
        found = read_url(_USER.sub(r"\1", url.strip(" \t\r\n")))
    except UrlInvalid as error:
        return error.reason[:200]
    return Place(found.host, found.address is not None)


def read_rule(text: str) -> Host:
    """The hosts that `text` means, or `PolicyInvalid`."""
    from holdfast.hands.web.addresses import read_numbers  # noqa: PLC0415  only for rules about hosts
    from holdfast.hands.web.urls import read_host  # noqa: PLC0415

    below = text.startswith("*.")
    try:
        name = read_host(text[2:] if below else text)
    except UsageError:
        raise PolicyInvalid(f"{excerpt(text)} is no host; {_WANTED}", key="domains") from None
    if below and (":" in name or read_numbers(name) is not None):
        raise PolicyInvalid(f"{excerpt(text)}: nothing is below an address; {_WANTED}", key="domains")
    return Host(name, below)
