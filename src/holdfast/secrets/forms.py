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
from bisect import bisect_right
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias, cast
from urllib.parse import quote, quote_plus

import msgspec
from msgspec import inspect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence


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


_OPENING: Final = "[secret "


class Span(NamedTuple):
    """A piece of a text that is to be hidden: secrets that overlap are hidden together."""

    start: int
    end: int
    name: str


def marker(name: str) -> str:
    """What stands in the place of a secret."""
    return f"{_OPENING}{name}]"


def places_of(view: View, needles: Iterable[Needle]) -> Iterator[tuple[int, int, Needle]]:
    """Where needles stand in a text, by one reading of it."""
    for needle in needles:
        for start in _places(view.text, needle.text):
            end = start + len(needle.text)
            if not needle.alone or _stands_alone(view.text, start, end):
                yield *view.place(start, end), needle


def merged(text: str, found: Iterable[tuple[int, int, Needle]], markers: Iterable[str] = ()) -> list[Span]:
    """What is to be hidden, from the left. A word inside of one of the `markers` is none: it was hidden before.

    Where needles overlap all of it is one span, named after the longest of them.
    """
    starts, ends = _marked(text, markers)
    joined: list[Span] = []
    longest = 0
    for start, end, needle in sorted(found):
        before = bisect_right(starts, start)
        if before and end <= ends[before - 1]:
            continue
        if joined and start < joined[-1].end:
            last = joined[-1]
            name = needle.name if end - start > longest else last.name
            joined[-1] = Span(last.start, max(last.end, end), name)
            longest = max(longest, end - start)
        else:
            joined.append(Span(start, end, needle.name))
            longest = end - start
    return joined


def replaced(text: str, spans: Sequence[Span]) -> str:
    """The text with a marker in the place of each span; the same text when there is none."""
    if not spans:
        return text
    kept: list[str] = []
    at = 0
    for span in spans:
        kept += (text[at : span.start], marker(span.name))
        at = span.end
    return "".join((*kept, text[at:]))


def _places(text: str, needle: str) -> Iterator[int]:
    at = text.find(needle)
    while at >= 0:
        yield at
        at = text.find(needle, at + 1)


def _stands_alone(text: str, start: int, end: int) -> bool:
    return not any(
        character.isalnum() or character == "_" for character in text[max(start - 1, 0) : start] + text[end : end + 1]
    )


def _marked(text: str, markers: Iterable[str]) -> tuple[list[int], list[int]]:
    """Where markers begin and end, from the left. No marker has another one in it."""
    if _OPENING not in text:
        return [], []
    places = sorted((at, at + len(found)) for found in markers for at in _places(text, found))
    return [start for start, _ in places], [end for _, end in places]


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


_ESCAPED: Final = 12
"""So many characters of a text may stand for one of a secret."""


class Known(NamedTuple):
    """What is looked for.

    Needles that are base64 or hex digits are looked for in a text without what may set them apart, all others in each
    of its readings. One of the anchors is in every text that has one of the needles.
    """

    needles: Mapping[Code | None, tuple[Needle, ...]]
    anchors: Mapping[Code | None, tuple[str, ...]]
    markers: tuple[str, ...]
    longest: int
    """How long the longest needle is."""
    by_first: Mapping[Code | None, Mapping[str, tuple[str, ...]]]
    """The needles by their first character."""
    binary: Known | None = None
    """The same for bytes that are no text, each of them as one character."""

    def spans(self, text: str) -> list[Span]:
        """What is to be hidden in a text, from the left."""
        found = [place for code, view in self.views(text) for place in places_of(view(), self.needles[code])]
        return merged(text, found, self.markers) if found else []

    def in_bytes(self, body: bytes) -> bool:
        """Whether there may be something to hide in these bytes."""
        text, known = self._reading(body)
        return any(True for _ in known.views(text))

    def begun(self, text: str) -> int:
        """From where on the end of a text may be the beginning of a secret; its length when none begins there."""
        cut = CUT.search(text)
        whole = text if cut is None else text[: cut.start()]
        begins = [len(whole)]
        for reading in readings(whole, cut=True):
            for code, said, more in _looked_through(reading.text):
                at = self._begun_in(code, said)
                if at < len(said):
                    begins.append(reading.view(*more).place(at, at + 1)[0])
        return max(min(begins), len(text) - _ESCAPED * self.longest)

    def masked(self, body: bytes) -> bytes:
        """Bytes that are no text: each secret becomes as many stars, so that whatever counts bytes still can."""
        known = self if self.binary is None else self.binary
        hidden = bytearray(body)
        for span in known.spans(body.decode("latin-1")):
            hidden[span.start : span.end] = b"*" * (span.end - span.start)
        return bytes(hidden)

    def _reading(self, body: bytes) -> tuple[str, Known]:
        try:
            if b"\0" not in body:
                return body.decode(), self
        except UnicodeDecodeError:
            pass
        return body.decode("latin-1"), self if self.binary is None else self.binary

    def views(self, text: str) -> Iterator[tuple[Code | None, Callable[[], View]]]:
        """The readings of a text that may have a secret in them, and which needles."""
        for reading in readings(text):
            for code, said, more in _looked_through(reading.text):
                if any(map(said.__contains__, self.anchors[code])):
                    yield code, partial(reading.view, *more)

    def _begun_in(self, code: Code | None, text: str) -> int:
        """The same in one reading, which may end within an escape, too."""
        cut = CUT.search(text)
        end = len(text) if cut is None else cut.start()
        by_first = self.by_first[code]
        for at in range(max(end - self.longest + 1, 0), end):
            needles = by_first.get(text[at])
            if needles is not None and _begins(needles, text[at:end]):
                return at
        return end


def _looked_through(text: str) -> Iterator[tuple[Code | None, str, tuple[Decoder, ...]]]:
    """A text as each kind of needles is looked for in it, and by which decoders it is that."""
    yield None, text, ()
    digits = squeezed(text)
    yield "base64", digits, (BREAKS,)
    yield "hex", digits.replace("-", ""), (BREAKS, DASHES)


def _begins(needles: tuple[str, ...], tail: str) -> bool:
    return any(len(needle) > len(tail) and needle.startswith(tail) for needle in needles)


def known_of(values: Mapping[str, Mapping[str, Forms]]) -> Known:
    """What to look for because of these values of these secrets. The first to have a value gives it its name."""
    named = [(name, found) for name, own in values.items() for found in own.values()]
    forms = [found for _, found in named]
    markers = tuple(map(marker, values))
    by_text = {needle.text: needle for found in reversed(forms) for needle in found.needles}
    written = _shortest(anchor for found in forms for anchor in found.anchors)
    digits: dict[Code | None, tuple[str, ...]] = {
        "base64": _shortest(anchor for found in forms for anchor in found.base64_anchors),
        "hex": _shortest(anchor for found in forms for anchor in found.hex_anchors),
    }
    wide = {text: Needle(text, name) for name, found in reversed(named) for text in found.wide}
    in_bytes = {_latin(text): needle._replace(text=_latin(text)) for text, needle in by_text.items()} | wide
    byte_anchors = _shortest((*map(_latin, written), *wide))
    binary = _known(in_bytes, {None: byte_anchors, **digits}, markers, None)
    return _known(by_text, {None: written, **digits}, markers, binary)


def _known(
    by_text: Mapping[str, Needle],
    anchors: Mapping[Code | None, tuple[str, ...]],
    markers: tuple[str, ...],
    binary: Known | None,
) -> Known:
    needles: dict[Code | None, tuple[Needle, ...]] = {
        code: tuple(needle for needle in by_text.values() if needle.code == code) for code in anchors
    }
    by_first: dict[Code | None, dict[str, tuple[str, ...]]] = {}
    for code, own in needles.items():
        first = by_first[code] = {}
        for needle in own:
            first[needle.text[0]] = (*first.get(needle.text[0], ()), needle.text)
    return Known(needles, anchors, markers, max(map(len, by_text), default=0), by_first, binary)


def _latin(text: str) -> str:
    """The bytes of a text, each as one character."""
    return text.encode().decode("latin-1")


def _shortest(anchors: Iterable[str]) -> tuple[str, ...]:
    """Those that have no other one in them: where a longer one is, the shorter one is, too."""
    kept: list[str] = []
    for anchor in sorted(set(anchors), key=lambda text: (len(text), text)):
        if not any(short in anchor for short in kept):
            kept.append(anchor)
    return tuple(kept)


def words_of(*types: Any) -> frozenset[str]:  # noqa: ANN401  structs, or unions of them
    """The names of fields, the tags and the choices of these types and of all that they are made of."""
    found: set[str] = set()
    seen: set[Any] = set()
    left: list[Any] = list(inspect.multi_type_info(types))
    while left:
        node = left.pop()
        if isinstance(node, inspect.StructType):
            if node.cls in seen:
                continue
            seen.add(node.cls)
            found.update(word for word in (node.tag, node.tag_field) if isinstance(word, str))
            found.update(field.encode_name for field in node.fields)
            left += [field.type for field in node.fields]
        elif isinstance(node, inspect.LiteralType):
            found.update(value for value in node.values if isinstance(value, str))
        else:
            left += _inside(node)
    return frozenset(found)


def _inside(node: Any) -> Iterator[Any]:  # noqa: ANN401  a type as msgspec tells of it
    """The types that another one is made of."""
    for field in msgspec.structs.fields(node):
        part: Any = getattr(node, field.name)
        parts = cast("tuple[Any, ...]", part) if isinstance(part, tuple) else (part,)
        yield from (item for item in parts if isinstance(item, inspect.Type))
