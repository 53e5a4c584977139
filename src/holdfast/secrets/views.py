"""A text as it reads after its escapes are decoded, or without what stands between coded digits. Pure.

A secret may be written so that its letters are not there as they are: every character as an escape of JSON, as a
numeric HTML entity, percent-encoded, with NULs between (UTF-16), or as base64 or hex digits that are broken into lines
or set apart by colons. Each view is another reading of the same text; it knows where its characters come from.
"""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS: Final = 3
"""How often escapes inside escapes are decoded."""
_SIMPLE: Final = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f"}
_HIGH_SURROGATE: Final = range(0xD800, 0xDC00)


class View(NamedTuple):
    """One reading of a text."""

    text: str
    starts: tuple[int, ...] | None = None
    """Where each character begins in the text itself; None where the text is as it is."""
    ends: tuple[int, ...] | None = None

    def place(self, start: int, end: int) -> tuple[int, int]:
        """Where a piece of this reading stands in the text itself."""
        if self.starts is None or self.ends is None:
            return start, end
        return self.starts[start], self.ends[end - 1]


class Decoder(NamedTuple):
    """What is decoded, and by what to see that there is none of it."""

    signs: tuple[str, ...]
    pattern: re.Pattern[str]
    decode: Callable[[re.Match[str]], str]

    def reads(self, text: str) -> bool:
        return any(sign in text for sign in self.signs)

    def text(self, text: str) -> str:
        return self.pattern.sub(self.decode, text)

    def view(self, view: View) -> View:
        """The reading of another reading, with the places of its characters."""
        parts: list[str] = []
        starts: list[int] = []
        ends: list[int] = []
        at = 0
        for found in (*self.pattern.finditer(view.text), None):
            start, end = (len(view.text), len(view.text)) if found is None else found.span()
            parts.append(view.text[at:start])
            starts += range(at, start)
            ends += range(at + 1, start + 1)
            at = end
            if found is not None:
                decoded = self.decode(found)
                parts.append(decoded)
                starts += [start] * len(decoded)
                ends += [end] * len(decoded)
        if view.starts is not None and view.ends is not None:
            starts, ends = [view.starts[place] for place in starts], [view.ends[place - 1] for place in ends]
        return View("".join(parts), tuple(starts), tuple(ends))


def _bytes(digits: str) -> str:
    """Hex digits of bytes as the text that they are."""
    data = bytes.fromhex(digits)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.decode("latin-1")


def _escape(found: re.Match[str]) -> str:
    said = found[0]
    if said[1] in "uU":
        units = [int(digits, 16) for digits in re.findall(r"[0-9a-fA-F]{2,8}", said)]
        if len(units) > 1:  # the two halves of one character
            return chr(0x10000 + ((units[0] - 0xD800) << 10) + (units[1] - 0xDC00))
        return chr(units[0]) if units[0] <= 0x10FFFF else said
    if said[1] == "x":
        return _bytes(said.replace("\\x", ""))
    if said[1].isdigit():
        return chr(int(said[1:], 8))
    return _SIMPLE.get(said[1], said[1])


def _entity(found: re.Match[str]) -> str:
    return html.unescape(found[0])


def _percents(found: re.Match[str]) -> str:
    return _bytes(found[0].replace("%", ""))


def _nothing(_: re.Match[str]) -> str:
    return ""


ESCAPES: Final = Decoder(
    ("\\u", "\\x", "\\U", "\\0", "\\1"),
    re.compile(
        r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\u\{[0-9a-fA-F]{2,6}\}"
        r"|\\U[0-9a-fA-F]{8}|(?:\\x[89a-fA-F][0-9a-fA-F])+|\\x[0-7][0-9a-fA-F]|\\[0-3][0-7]{2}|\\[\"'\\/nrtbf]"
    ),
    _escape,
)
ENTITIES: Final = Decoder(
    ("&#", "&amp", "&AMP"),
    re.compile(r"&(?:#0*[0-9]{1,7}|#[xX]0*[0-9a-fA-F]{1,6});?|&(?:amp|lt|gt|quot|apos);", re.IGNORECASE),
    _entity,
)
PERCENTS: Final = Decoder(
    ("%",),
    re.compile(r"(?:%[89a-fA-F][0-9a-fA-F])+|%[0-7][0-9a-fA-F]"),
    _percents,
)
NULS: Final = Decoder(("\0",), re.compile("\0"), _nothing)
BREAKS: Final = Decoder((), re.compile(r"\\{1,2}[nrt]|[ \t\n\r\v\f:]+"), _nothing)
DASHES: Final = Decoder((), re.compile("-+"), _nothing)
_DECODERS: Final = (ESCAPES, ENTITIES, PERCENTS, NULS)
_BETWEEN: Final = " \t\n\r\v\f:"
_DELETED: Final = str.maketrans("", "", _BETWEEN)
_ESCAPED_BREAKS: Final = ("\\\\n", "\\\\r", "\\\\t", "\\n", "\\r", "\\t")

CUT: Final = re.compile(
    r"(?:%[0-9a-fA-F]?|(?:%[89a-fA-F][0-9a-fA-F])+%?[0-9a-fA-F]?"
    r"|&(?:#?[xX]?[0-9a-fA-F]{0,8}|[a-zA-Z]{0,4})"
    r"|\\+u[dD][89abAB][0-9a-fA-F]{2}(?:\\+(?:u[0-9a-fA-F]{0,3})?)?|\\+u\{?[0-9a-fA-F]{0,6}|\\+U[0-9a-fA-F]{0,7}"
    r"|(?:\\+x[89a-fA-F][0-9a-fA-F])+(?:\\+(?:x[0-9a-fA-F]?)?)?|\\+x[0-9a-fA-F]?|\\+[0-3]?[0-7]?)\Z"
)
"""The end of a text that may be the beginning of an escape."""
_TAIL: Final = Decoder(("%", "&", "\\"), CUT, _nothing)
_WHOLE_DECODERS: Final = (ESCAPES, _TAIL, ENTITIES, _TAIL, PERCENTS, _TAIL, NULS)


class Reading(NamedTuple):
    """A text after some decoders: what it says, and how to get it with the places of its characters."""

    text: str
    decoders: tuple[Decoder, ...]
    of: str

    def view(self, *more: Decoder) -> View:
        """With the places of its characters, after `more` decoders."""
        found = View(self.of)
        for decoder in (*self.decoders, *more):
            found = decoder.view(found)
        return found


def readings(text: str, *, cut: bool = False) -> list[Reading]:
    """All readings of a text, itself first, that of all decoders last.

    Of a text that is `cut` more will come: what may be the beginning of an escape is not decoded.
    """
    found = [Reading(text, (), text)]
    if "%" not in text and "&" not in text and "\\" not in text and "\0" not in text:
        return found
    chain: list[Decoder] = []
    now = text
    for _ in range(ROUNDS):
        before = now
        for decoder in _WHOLE_DECODERS if cut else _DECODERS:
            if decoder.reads(now) and (decoded := decoder.text(now)) != now:
                chain.append(decoder)
                now = decoded
                found.append(Reading(now, tuple(chain), text))
        if now is before:
            break
    # One of them alone: a secret may look like an escape itself.
    alone = (Reading(decoder.text(text), (decoder,), text) for decoder in dict.fromkeys(chain[1:]))
    return [found[0], *alone, *found[1:]]


def squeezed(text: str) -> str:
    """A text without line breaks, blanks and colons: base64 and hex digits that they set apart stand together."""
    if "\\" in text:
        for escaped in _ESCAPED_BREAKS:
            text = text.replace(escaped, "")
    if text.isascii():
        return text.translate(_DELETED)
    for character in _BETWEEN:
        text = text.replace(character, "")
    return text
