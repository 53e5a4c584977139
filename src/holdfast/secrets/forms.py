"""The forms in which a secret value may stand in a text. Pure.

A value that a tool was lent may come back as it is, but also in JSON, in an address, in base64, as hex digits, or in
the `repr` of something. Each form becomes a needle; forms that have no fixed letters are found by `views`. For each
needle there is an anchor: a part that it shares with others, so that a text without secrets is looked through with few
searches.
"""

from __future__ import annotations

import html
import json
import re
from base64 import b64encode
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias, cast
from urllib.parse import quote, quote_plus

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

SHORTEST: Final = 6
"""Values with fewer characters can't be told from ordinary text."""
SHORTEST_PART: Final = 20
"""A line of a value, or a text in a value that is JSON, counts by itself from so many characters on."""
MAX_PARTS: Final = 256
"""How many parts of one value count by themselves."""
_SHORTEST_CODED: Final = 7
"""The shortest form in base64 or hex that is looked for."""
_SHORTEST_ANCHOR: Final = 5
_JS_SAFE: Final = "!'()*"
"""What JavaScript leaves as it is in an address, besides what all do."""
_PERCENT: Final = re.compile(r"%[0-9A-F]{2}")
_RUN: Final = re.compile(r"[A-Za-z0-9._~-]+", re.ASCII)
"""Characters that are the same in JSON, in addresses and in HTML."""
_CODED_RUN: Final = re.compile(r"[A-Za-z0-9]+", re.ASCII)
"""Characters that are the same in both alphabets of base64."""


Code: TypeAlias = Literal["base64", "hex"]


class Needle(NamedTuple):
    """One form of one secret."""

    text: str
    name: str
    alone: bool = False
    """It only counts where no letter or digit stands beside it."""
    code: Code | None = None
    """It is made of base64 or hex digits, which may be broken into lines."""


class Forms(NamedTuple):
    """What to look for because of one value, and by what to see that none of it is there."""

    needles: tuple[Needle, ...]
    anchors: tuple[str, ...]
    """Of the needles that are no digits."""
    base64_anchors: tuple[str, ...]
    hex_anchors: tuple[str, ...]
    wide: tuple[str, ...] = ()
    """The value as UTF-16, each byte as one character: for bytes that are no text."""


def forms_of(name: str, value: str, *, short: bool = False) -> Forms:
    """All that is to be looked for because of `value`. One that is `short` counts where it stands alone."""
    bare = value.strip()
    alone = short and len(bare) < SHORTEST
    needles: dict[str, Needle] = {}
    anchors: dict[Code | None, dict[str, None]] = {None: {}, "base64": {}, "hex": {}}

    def add(code: Code | None, texts: Iterable[str], run: re.Pattern[str]) -> None:
        kept: dict[str, None] = {}
        _add(kept, anchors[code], texts, run)
        for text in kept:
            needles.setdefault(text, Needle(text, name, alone, code))

    for part in (bare, *_parts(value)):
        for texts, run in _written(part):
            add(None, texts, run)
    for data in (bare.encode(), *_wide(bare)):
        for texts, run in _base64_forms(data):
            add("base64", texts, run)
        for texts, run in _hex_forms(data):
            add("hex", texts, run)
    wide = tuple(data.decode("latin-1") for data in _wide(bare))
    written, base64, hexed = (tuple(anchors[code]) for code in (None, "base64", "hex"))
    return Forms(tuple(needles.values()), written, base64, hexed, wide)


def _add(needles: dict[str, None], anchors: dict[str, None], texts: Iterable[str], run: re.Pattern[str]) -> None:
    """Needles that are forms of one another, and the longest run of characters that all of them have."""
    kept = dict.fromkeys(texts)
    needles.update(kept)
    common = max(run.findall(min(kept, key=len)), key=len, default="") if kept else ""
    if len(common) >= _SHORTEST_ANCHOR and all(common in text for text in kept):
        anchors[common] = None
    else:  # also as they stand in the JSON of a record
        anchors.update(kept)
        anchors.update(dict.fromkeys(_escaped(text, ascii_only=only) for text in kept for only in (False, True)))


def _written(value: str) -> Iterator[tuple[list[str], re.Pattern[str]]]:
    """The value as it is, and as JSON, addresses, HTML and Python write it."""
    texts = [value, html.escape(value), repr(value)[1:-1], repr(value.encode())[2:-1]]
    texts += [value.replace("'", "''"), value.replace('"', '""')]
    once = [_escaped(text, ascii_only=only) for text in dict.fromkeys(texts) for only in (False, True)]
    twice = [_escaped(text, ascii_only=only) for text in dict.fromkeys(once) for only in (False, True)]
    texts += [*once, *twice, *(text.replace("/", "\\/") for text in once)]  # JSON, and JSON in a string of JSON
    addresses = (quote(value), quote(value, safe=""), quote(value, safe=_JS_SAFE), quote_plus(value))
    yield [*texts, *_both_cases(addresses)], _RUN


def _both_cases(addresses: Iterable[str]) -> Iterator[str]:
    """What stands in an address, with its hex digits as capitals and as small letters."""
    for text in addresses:
        yield text
        yield _PERCENT.sub(lambda found: found[0].lower(), text)


def _escaped(value: str, *, ascii_only: bool) -> str:
    return json.dumps(value, ensure_ascii=ascii_only)[1:-1]


def _wide(value: str) -> list[bytes]:
    """The value as UTF-16. What both orders of bytes have in common is enough where it is ASCII."""
    little = value.encode("utf-16-le")
    return [little[:-1]] if value.isascii() else [little, value.encode("utf-16-be")]


def _base64_forms(data: bytes) -> Iterator[tuple[list[str], re.Pattern[str]]]:
    """Bytes in base64, whatever stands before and after them."""
    for shift in range(3):
        inner, *ending = _base64(data, shift)
        if len(inner) >= _SHORTEST_CODED:
            plain = [inner, *ending]
            texts = [*plain, *(text.replace("+", "-").replace("/", "_") for text in plain)]
            texts += [text.replace("/", "\\/") for text in plain]
            yield [*texts, *_both_cases(quote(text, safe="") for text in plain)], _CODED_RUN


def _hex_forms(data: bytes) -> Iterator[tuple[list[str], re.Pattern[str]]]:
    for digits in (data.hex(), data.hex().upper()):
        if len(digits) >= _SHORTEST_CODED:
            yield [digits], _CODED_RUN


def _base64(data: bytes, shift: int) -> tuple[str, str, str]:
    """The digits that depend on nothing but `data` when `shift` bytes stand before it and anything after.

    Then the same where nothing stands after it, without and with the padding.
    """
    padded = b64encode(bytes(shift) + data).decode()
    first, whole = -(-shift * 8 // 6), (shift + len(data)) * 8 // 6
    return padded[first:whole], padded[first:].rstrip("="), padded[first:]


def _parts(value: str) -> list[str]:
    """Lines of a key in many lines, and texts in a value that is JSON: each of them tells enough."""
    found: dict[str, None] = {}
    for text in (value, *_leaves(value)):
        lines = text.splitlines()
        if text is not value:
            found[text] = None
        if len(lines) > 1:
            found.update(dict.fromkeys(line.strip() for line in lines if not line.lstrip().startswith("-----")))
    parts = [part for part in found if len(part) >= SHORTEST_PART]
    return parts[:MAX_PARTS]


def _leaves(value: str) -> list[str]:
    """The texts in a value that is a JSON object, without addresses: those are no secrets."""
    if not value.lstrip().startswith("{"):
        return []
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        return []
    fields = cast("dict[str, Any]", found).values() if isinstance(found, dict) else ()
    return [item for item in fields if isinstance(item, str) and "://" not in item]
