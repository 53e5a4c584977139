"""HTML as a stream of tags and text, in time that grows with the length of the page and no faster. Pure.

The parser of the standard library goes over the same text again and again on pages that were made to make it do so,
and fails on some. This one never goes back: whatever it looks for is found, or the page ends there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from html import unescape
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator

VOID: Final = frozenset(
    ("area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "param", "source", "track", "wbr")
)
"""Elements without an end."""

_MARKUP: Final = re.compile(r"<(?=[a-zA-Z/!?])")
_NAME: Final = re.compile(r"[a-zA-Z][^ \t\n\r\f/>]*")
_BETWEEN: Final = re.compile(r"[ \t\n\r\f/]*")
_ATTRIBUTE: Final = re.compile(r"=?[^ \t\n\r\f/>=]*")
_EQUALS: Final = re.compile(r"[ \t\n\r\f]*=[ \t\n\r\f]*")
_BARE: Final = re.compile(r"[^ \t\n\r\f>]*")
_LONG_NUMBER: Final = re.compile(r"&#[0-9]{100,};?")
_REFERENCE: Final = re.compile(r"&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[a-zA-Z][a-zA-Z0-9]{1,31});")
# What is between these and their end is text, whatever it looks like; in some of them, references count.
_RAW: Final = frozenset(("script", "style", "xmp", "iframe", "noembed", "noframes", "textarea", "title"))
_REFERENCES_COUNT: Final = frozenset(("textarea", "title"))
_END_OF_RAW: Final = {name: re.compile(rf"</{name}(?=[ \t\n\r\f/>])", re.IGNORECASE) for name in _RAW}


@dataclass(frozen=True, slots=True)
class Start:
    """A tag that begins an element."""

    name: str
    attributes: dict[str, str] = field(default_factory=dict[str, str])
    closed: bool = False
    """Written as ``<name/>``."""


@dataclass(frozen=True, slots=True)
class End:
    """A tag that ends one."""

    name: str


@dataclass(frozen=True, slots=True)
class Chars:
    """Text, with its references resolved."""

    text: str


Token: TypeAlias = Start | End | Chars


def tokens(source: str) -> Iterator[Token]:
    """The tags and the text of a page, in order. Comments and declarations are left out; nothing is ever an error."""
    place: int | None = 0
    while place is not None and place < len(source):
        found = _MARKUP.search(source, place)
        begin = len(source) if found is None else found.start()
        if begin > place:
            yield Chars(resolved(source[place:begin]))
        if found is None:
            return
        token, place = _tag(source, begin)
        if token is not None:
            yield token
        if isinstance(token, Start) and token.name in _RAW and place is not None:
            text, place = _raw(source, token.name, place)
            yield Chars(text)
            yield End(token.name)


def resolved(text: str) -> str:
    """Text with its character references resolved."""
    if "&" not in text:
        return text
    return unescape(
        _LONG_NUMBER.sub("\ufffd", text)
    )  # a number that no character has; thousands of digits are an error


def _tag(source: str, begin: int) -> tuple[Token | None, int | None]:
    """The tag at `begin`, if it is one, and where to go on; None at the end of the page."""
    if source.startswith("<!--", begin):
        return None, _after(source, "-->", begin + 2)
    if (name := _NAME.match(source, begin + 1)) is not None:
        return _start(source, name[0].lower(), name.end())
    if source.startswith("/", begin + 1) and (name := _NAME.match(source, begin + 2)) is not None:
        return End(name[0].lower()), _after(source, ">", name.end())
    return None, _after(source, ">", begin + 1)


def _after(source: str, mark: str, begin: int) -> int | None:
    found = source.find(mark, begin)
    return None if found < 0 else found + len(mark)


def _start(source: str, name: str, place: int) -> tuple[Start | None, int | None]:
    attributes: dict[str, str] = {}
    while True:
        between = _BETWEEN.match(source, place)
        place = place if between is None else between.end()
        if place >= len(source):
            return None, None
        if source[place] == ">":
            return Start(name, attributes, source[place - 1] == "/"), place + 1
        named = _ATTRIBUTE.match(source, place)
        key = "" if named is None else named[0]
        place += len(key)
        equals = _EQUALS.match(source, place)
        value = ""
        if equals is not None:
            ended = _value(source, equals.end())
            if ended is None:
                return None, None
            value, place = ended
        attributes.setdefault(key.lower(), value)


def _value(source: str, place: int) -> tuple[str, int] | None:
    quote = source[place : place + 1]
    if quote in {'"', "'"}:
        end = source.find(quote, place + 1)
        return None if end < 0 else (_attribute_text(source[place + 1 : end]), end + 1)
    bare = _BARE.match(source, place)
    text = "" if bare is None else bare[0]
    return _attribute_text(text), place + len(text)


def _attribute_text(text: str) -> str:
    # In an address, `&copy=1` is a parameter: only references that are ended count.
    return _REFERENCE.sub(lambda found: unescape(found[0]), text) if "&" in text else text


def _raw(source: str, name: str, place: int) -> tuple[str, int | None]:
    found = _END_OF_RAW[name].search(source, place)
    text = source[place:] if found is None else source[place : found.start()]
    after = None if found is None else _after(source, ">", found.end())
    return (resolved(text) if name in _REFERENCES_COUNT else text), after
