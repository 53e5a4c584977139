"""Where an agent may go: schemes, names, ports, addresses. Pure; asked before anything is sent, at every hop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from holdfast.bounds import check_int
from holdfast.errors import InvalidArgument
from holdfast.hands.web.addresses import closed_range
from holdfast.hands.web.errors import UrlInvalid, UrlRefused
from holdfast.hands.web.urls import PORTS, read_host, read_place

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from holdfast.hands.web.addresses import Address
    from holdfast.hands.web.urls import Url

DEFAULT_PORTS: Final = (80, 443, 8080, 8443)
"""Where the public web is. Behind the others are mail, databases and the like: not to be knocked at, one by one, by
somebody who was talked into it, nor to be sent words that they could take for commands of their own."""


@dataclass(frozen=True, slots=True)
class HostRule:
    """One host, or with `below` all hosts under it and not itself."""

    host: str
    below: bool

    def matches(self, host: str) -> bool:
        """Whether `host`, in canonical form, is meant; compared label by label."""
        return host.endswith(f".{self.host}") if self.below else host == self.host


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Everything that decides whether a URL may be fetched."""

    schemes: frozenset[str]
    ports: frozenset[int]
    allow: tuple[HostRule, ...] | None
    """None: every host that is not denied."""
    deny: tuple[HostRule, ...]
    private: frozenset[tuple[str, int]]
    """Hosts with a port that may lie inside: written by the host of the agent, one by one."""
    downgrade: bool
    """Whether a redirect may lead from https to http."""

    def trusts(self, url: Url) -> bool:
        """Whether the host of the agent wrote this place down as one that may lie inside."""
        return (url.host, url.port) in self.private

    def check(self, url: Url) -> None:
        """Raise `UrlRefused` unless `url` may be asked for, as far as its text tells."""
        if url.scheme not in self.schemes:
            raise UrlRefused(str(url), f"only {' and '.join(sorted(self.schemes))} is allowed here")
        if any(rule.matches(url.host) for rule in self.deny):
            raise UrlRefused(str(url), f"the host {url.host} is denied here")
        if not self.trusts(url):
            self._check_place(url)
        if url.address is not None:
            self.check_addresses(url, [url.address])

    def check_redirect(self, before: Url, after: Url) -> None:
        """Raise `UrlRefused` unless `before` may lead to `after`."""
        if before.scheme == "https" and after.scheme != "https" and not self.downgrade:
            raise UrlRefused(str(after), f"{before.authority} redirects to it, from https to {after.scheme}")
        self.check(after)

    def check_addresses(self, url: Url, addresses: Sequence[Address]) -> None:
        """Raise `UrlRefused` unless all addresses of the host may be dialled.

        One that may not is enough: whoever answers with an inside address among others hopes that it is taken.
        """
        for address in addresses:
            closed = closed_range(address)
            if closed is None or (self.trusts(url) and (closed.inside or url.address is not None)):
                continue
            # Which address a name has inside is nothing that a model needs to know.
            raise UrlRefused(str(url), f"{'it is' if url.address is not None else 'its host leads to'} {closed.what}")

    def _check_place(self, url: Url) -> None:
        if self.allow is not None and not any(rule.matches(url.host) for rule in self.allow):
            raise UrlRefused(str(url), f"the host {url.host} is not among those that are allowed here")
        if url.port not in self.ports:
            listed = ", ".join(str(port) for port in sorted(self.ports)[:10])
            raise UrlRefused(str(url), f"the port {url.port} is not among those that are allowed here ({listed})")


def make_policy(  # noqa: PLR0913  one keyword for each thing that can be said
    *,
    allow: Iterable[str] | None,
    deny: Iterable[str],
    allow_private: Iterable[str],
    schemes: Iterable[str],
    ports: Iterable[int],
    downgrade: bool,
) -> Policy:
    """The policy that these words mean, or an error that names the word that means nothing."""
    if type(downgrade) is not bool:
        raise InvalidArgument("downgrade", downgrade, "True or False")
    known = frozenset(_listed("schemes", schemes))
    if not known or not known <= PORTS.keys():
        raise InvalidArgument("schemes", schemes, "some of 'https' and 'http'")
    if isinstance(ports, str | bytes | int):
        raise InvalidArgument("ports", ports, "a list of numbers")
    return Policy(
        schemes=known,
        ports=frozenset(check_int("port", port, least=1, most=65_535) for port in ports),
        allow=None if allow is None else tuple(_rule("allow", text) for text in _listed("allow", allow)),
        deny=tuple(_rule("deny", text) for text in _listed("deny", deny)),
        private=frozenset(_place(text) for text in _listed("allow_private", allow_private)),
        downgrade=downgrade,
    )


def _listed(what: str, given: Iterable[str]) -> list[str]:
    # A lone text is a list of its letters, and would allow nothing of what it says.
    if isinstance(given, str | bytes):
        raise InvalidArgument(what, given, "a list of texts")
    listed = list(given)
    for text in listed:
        if type(text) is not str:
            raise InvalidArgument(what, text, "text")
    return listed


def _rule(what: str, text: str) -> HostRule:
    below = text.startswith("*.")
    try:
        return HostRule(read_host(text[2:] if below else text), below)
    except UrlInvalid:
        raise InvalidArgument(what, text, "a host such as 'example.com', or '*.example.com' for all below it") from None


def _place(text: str) -> tuple[str, int]:
    try:
        return read_place(text)
    except UrlInvalid:
        raise InvalidArgument("allow_private", text, "a host with a port, such as '127.0.0.1:8080'") from None
