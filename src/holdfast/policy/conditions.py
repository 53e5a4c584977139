"""What a rule asks of the arguments of a call. Pure, but for the function that says where a path really leads.

An answer is yes, no, or unclear: an argument that is missing or of another kind, a command that is one shell string, a
URL that can be read in two ways. What is unclear counts against the call: no permission covers it, every refusal does.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast

from holdfast.errors.base import UsageError, excerpt
from holdfast.errors.caller import PolicyInvalid

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.policy.rules import Subject


_WANTED: Final = "write one such as 'example.com', or '*.example.com' for all below it, without a scheme or a port"
# Whoever is named before the host says nothing about the host, and the reader takes none. Only what every reader takes
# for a user is left out; what is still odd after that is refused.
_USER: Final = re.compile(r"\A(https?://)[\w.~!$&'()*+,;=:%-]*@", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class HostPattern:
    """One host, or with `below` all hosts under it and not itself."""

    name: str
    below: bool

    def __str__(self) -> str:
        return f"*.{self.name}" if self.below else self.name

    def covers(self, place: UrlHost) -> bool:
        """Whether it means the host of a URL; nothing is below an address."""
        if self.below:
            return not place.address and place.host.endswith(f".{self.name}")
        return place.host == self.name


@dataclass(frozen=True, slots=True)
class UrlHost:
    """The host of a URL, in its one canonical form."""

    host: str
    address: bool


def parse_url_host(url: str) -> UrlHost | str:
    """Where a URL leads; or, as text, why nobody can say."""
    from holdfast.toolkits.web.urls import (  # noqa: PLC0415
        UrlInvalid,
        parse_url,
    )

    try:
        found = parse_url(_USER.sub(r"\1", url.strip(" \t\r\n")))
    except UrlInvalid as error:
        return error.reason[:200]
    return UrlHost(found.host, found.address is not None)


def parse_host_pattern(text: str) -> HostPattern:
    """The hosts that `text` means, or `PolicyInvalid`."""
    from holdfast.toolkits.web.urls import (  # noqa: PLC0415
        parse_host,
        parse_ipv4,
    )

    below = text.startswith("*.")
    try:
        name = parse_host(text[2:] if below else text)
    except UsageError:
        raise PolicyInvalid(f"{excerpt(text)} is no host; {_WANTED}", key="domains") from None
    if below and (":" in name or parse_ipv4(name) is not None):
        raise PolicyInvalid(f"{excerpt(text)}: nothing is below an address; {_WANTED}", key="domains")
    return HostPattern(name, below)


WILD: Final = frozenset("*?")


def matches_wildcards(text: str, pattern: str) -> bool:
    """Whether the whole of `text` fits."""
    at = step = mark = 0
    back = -1
    while at < len(text):
        if step < len(pattern) and pattern[step] == "*":
            back, mark, step = step, at, step + 1
        elif step < len(pattern) and pattern[step] in ("?", text[at]):
            at, step = at + 1, step + 1
        elif back >= 0:  # only the last star is tried anew: an earlier one that took more could not help
            mark += 1
            at, step = mark, back + 1
        else:
            return False
    return not pattern[step:].strip("*")


def is_literal(pattern: str) -> bool:
    """Whether it stands for itself alone."""
    return not WILD.intersection(pattern)


def count_literal_characters(pattern: str) -> int:
    """How many characters of it are no wildcards."""
    return sum(char not in WILD for char in pattern)


Real: TypeAlias = Callable[[str, "str | None"], str]
"""Where a path really leads, and from which folder on; raises OSError or ValueError where nobody can say."""
Scalar: TypeAlias = str | int | float | bool
State: TypeAlias = Literal["yes", "no", "unclear", "failed"]


@dataclass(frozen=True, slots=True)
class Finding:
    """Whether a condition holds, and what is to be said about it."""

    state: State
    why: str = ""


YES: Final = Finding("yes")
NO: Final = Finding("no")


def all_of(findings: Iterable[Finding]) -> Finding:
    """All of them: one "no" is enough for "no", then what failed, then what is unclear."""
    found = list(findings)
    for state in ("no", "failed", "unclear"):
        first = next((finding for finding in found if finding.state == state), None)
        if first is not None:
            return first
    return YES


def _unclear(why: str) -> Finding:
    return Finding("unclear", why)


@dataclass(frozen=True, slots=True)
class Equals:
    """It is this value."""

    value: Scalar


@dataclass(frozen=True, slots=True)
class OneOf:
    """It is one of these values."""

    values: tuple[Scalar, ...]


@dataclass(frozen=True, slots=True)
class Above:
    """It is a number, and larger."""

    limit: float


@dataclass(frozen=True, slots=True)
class Below:
    """It is a number, and smaller."""

    limit: float


@dataclass(frozen=True, slots=True)
class Matches:
    """It is text that fits a pattern as a whole."""

    pattern: str


@dataclass(frozen=True, slots=True)
class Inside:
    """It is a path, or a list of paths, that all really lead into one of these folders."""

    roots: tuple[str, ...]


Test: TypeAlias = Equals | OneOf | Above | Below | Matches | Inside


@dataclass(frozen=True, slots=True)
class ArgumentTest:
    """What one argument must be: all of `tests`."""

    argument: str
    tests: tuple[Test, ...]

    def find(self, subject: Subject, real: Real) -> Finding:
        """Whether the argument of this call is so."""
        value: Any = subject.args.get(self.argument)
        if value is None:
            return _unclear(f"the argument {self.argument!r} is missing")
        return all_of(self._one(test, value, subject, real) for test in self.tests)

    def _one(self, test: Test, value: object, subject: Subject, real: Real) -> Finding:
        match test:
            case Equals(wanted):
                return self._compare(value, (wanted,))
            case OneOf(values):
                return self._compare(value, values)
            case Above(limit) | Below(limit):
                if _kind(value) != "a number":
                    return self._odd("a number")
                number = cast("float", value)
                return _said(number > limit if isinstance(test, Above) else number < limit)
            case Matches(pattern):
                return _said(matches_wildcards(value, pattern)) if isinstance(value, str) else self._odd("text")
            case Inside(roots):
                return self._locate(value, roots, subject.base, real)

    def _compare(self, value: object, wanted: tuple[Scalar, ...]) -> Finding:
        """Unclear for a value of another kind than those it is compared with, such as a list of them."""
        kinds = dict.fromkeys(_kind(one) or "" for one in wanted)
        kind = _kind(value)
        if kind not in kinds:
            return self._odd(" or ".join(kinds))
        return _said(any(kind == _kind(one) and value == one for one in wanted))

    def _locate(self, value: object, roots: tuple[str, ...], base: str | None, real: Real) -> Finding:
        """Yes if all paths are inside, no if all are outside; unclear if they differ or one can't be resolved."""
        paths = paths_in(value)
        if not paths:
            return self._odd("a path")
        inside: set[bool] = set()
        for path in paths:
            try:
                inside.add(is_inside(path, roots, base, real))
            except (OSError, ValueError) as error:
                return _unclear(f"a path of the argument {self.argument!r} can't be resolved ({_reason(error)})")
        if len(inside) > 1:
            return _unclear(f"some paths of the argument {self.argument!r} are within {', '.join(roots)}, others not")
        return _said(inside.pop())

    def _odd(self, wanted: str) -> Finding:
        return _unclear(f"the argument {self.argument!r} is not {wanted}")


def _said(answer: bool) -> Finding:  # noqa: FBT001  it is what was found
    return YES if answer else NO


def _kind(value: object) -> str | None:
    """The JSON kind of a scalar; None for anything else, and for NaN, which compares with nothing."""
    if isinstance(value, bool):  # before numbers: True is not 1 in JSON
        return "true or false"
    if isinstance(value, str):
        return "text"
    return "a number" if isinstance(value, int | float) and value == value else None  # noqa: PLR0124  NaN


def paths_in(value: object) -> tuple[str, ...]:
    """The paths that an argument names; none where it is no path and no list of paths."""
    listed: list[object] = cast("list[object]", list(value)) if isinstance(value, list | tuple) else [value]  # pyright: ignore[reportUnknownArgumentType]  # of anything
    texts = tuple(path for path in listed if isinstance(path, str) and path)
    return texts if len(texts) == len(listed) else ()


def why_outside(path: str, roots: Iterable[str], base: str | None, real: Real) -> str | None:
    """Why a path is in none of the roots; None where it is in one."""
    try:
        return None if is_inside(path, roots, base, real) else "it leads elsewhere"
    except (OSError, ValueError) as error:
        return f"nobody can say where it leads ({_reason(error)})"


def is_inside(path: str, roots: Iterable[str], base: str | None, real: Real) -> bool:
    """Whether a path is in one of the roots. Names are compared whole, links followed; raises what `real` raises."""
    parts = PurePosixPath(real(path, base)).parts
    tops = [PurePosixPath(real(root, None)).parts for root in roots]
    return any(parts[: len(top)] == top for top in tops)


def _reason(error: OSError | ValueError) -> str:
    said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return said[:100]


Prefix: TypeAlias = tuple[tuple[str, ...], ...]
"""The words that a command begins with; each may be any of several."""


def find_prefix(prefix: Prefix, subject: Subject, *, named: bool) -> Finding:
    """Whether the command of a call begins with these words.

    Only a list of words has a beginning: a shell string may do anything, whatever it begins with. A tool without a
    command is none of the business of a rule for all tools, and unclear where it was `named`.
    """
    if subject.command is None:
        return _unclear("the tool does not say which argument is its command") if named else NO
    value: object = subject.args.get(subject.command)
    if isinstance(value, str):
        return _unclear("the command is one shell string, which can do anything; only a list of words can be matched")
    words = cast("list[object]", list(value)) if isinstance(value, list | tuple) else []  # pyright: ignore[reportUnknownArgumentType]  # of anything
    if not words or not all(isinstance(word, str) for word in words):
        return _unclear("the command is not a list of words")
    return _said(len(words) >= len(prefix) and all(word in choice for word, choice in zip(words, prefix, strict=False)))


def find_host(domains: tuple[HostPattern, ...], subject: Subject, *, named: bool) -> Finding:
    """Whether the URL of a call leads to one of these hosts."""
    if subject.url is None:
        return _unclear("the tool does not say which argument is its URL") if named else NO
    value: object = subject.args.get(subject.url)
    if not isinstance(value, str):
        return _unclear(f"the argument {subject.url!r} is not a URL")
    place = parse_url_host(value)
    if isinstance(place, str):
        return _unclear(f"the URL can't be read: {place}")
    return _said(any(host.covers(place) for host in domains))


def real_path(path: str, base: str | None) -> str:
    """The real path of `path`, which begins at `base` unless it is absolute. What is not there yet is fine.

    Raises OSError or ValueError where nobody can say: a loop of links, or ``..`` after something that is not there,
    which could still become a link to anywhere.
    """
    if path.startswith("~"):
        raise ValueError("it begins with '~', which some programs take for the home folder")
    whole = os.path.join(os.getcwd() if base is None else base, path)  # noqa: PTH118, PTH109  a path that does not tidy up '..'
    parts = whole.split("/")
    known = len(parts) - parts[::-1].index("..") if ".." in parts else 0
    head = os.path.realpath("/".join(parts[:known]), strict=True) if known else ""
    found = os.path.realpath("/".join([head, *parts[known:]] if known else parts))
    if os.path.islink(found):  # noqa: PTH114
        raise OSError("it is a loop of links")
    return found


def absolute_path(path: str) -> str:
    """The path from the top, as it is written now. Links stay: they are followed when a call is decided."""
    return os.path.abspath(path)  # noqa: PTH100  Path.absolute keeps '..'
