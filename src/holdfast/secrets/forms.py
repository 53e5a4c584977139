"""The forms of a secret in a text, and how to find them. Pure.

A secret may appear as it is, in JSON, in a URL, in base64, as hex digits, or in a `repr`. Each form becomes a needle.
Forms with free spelling, such as escapes, are found in decoded versions of the text (`decoded_texts`). Needles share
anchors, short parts of them, so that a text without secrets needs few searches.
"""

from __future__ import annotations

import html
import json
import re
from base64 import b64encode
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, Final, Literal, NamedTuple, TypeAlias, cast
from urllib.parse import quote, quote_plus

import msgspec
from msgspec import inspect

MIN_SECRET: Final = 6
"""Shorter values look like ordinary text."""
_SHORTEST_PART: Final = 20
"""From this length on, a line of a value or a text in a JSON value is a secret of its own."""
_MOST_PARTS: Final = 256
"""Most parts of one value that are secrets of their own."""
_SHORTEST_CODED: Final = 7
"""Shortest base64 or hex form to search."""
_SHORTEST_ANCHOR: Final = 5
_RUN: Final = re.compile(r"[A-Za-z0-9._~-]+", re.ASCII)
"""Characters that are the same in JSON, URLs and HTML."""
_CODED_RUN: Final = re.compile(r"[A-Za-z0-9]+", re.ASCII)
"""Characters that are the same in both alphabets of base64."""
Code: TypeAlias = Literal["base64", "hex"]


# ---- the forms of a value ----


class Needle(NamedTuple):
    """One form of one secret."""

    text: str
    name: str
    alone: bool = False
    """Matches only between characters that are no letters or digits."""
    code: Code | None = None
    """Base64 or hex digits, which may be broken into lines."""


class SecretForms(NamedTuple):
    """The needles of one value, and their anchors: a text without an anchor has none of the needles."""

    needles: tuple[Needle, ...]
    anchors: Mapping[Code | None, Iterable[str]]
    wide: tuple[str, ...] = ()
    """The value as UTF-16, each byte as one character: for binary data."""


def secret_forms(name: str, value: str, *, short: bool = False) -> SecretForms:
    """All forms of `value`. A `short` one matches only as a whole word."""
    bare = value.strip()
    alone = short and len(bare) < MIN_SECRET
    little = bare.encode("utf-16-le", "surrogatepass")
    # For ASCII, the common part of both byte orders is enough.
    wide = [little[:-1]] if bare.isascii() else [little, bare.encode("utf-16-be", "surrogatepass")]
    needles: dict[str, Needle] = {}
    anchors: dict[Code | None, set[str]] = {None: set(), "base64": set(), "hex": set()}

    def add(code: Code | None, texts: list[str]) -> None:
        anchors[code].update(_anchors(texts, _RUN if code is None else _CODED_RUN))
        for text in texts:
            needles.setdefault(text, Needle(text, name, alone, code))

    for part in (bare, *_parts(value)):
        add(None, _text_forms(part))
    for data in (_utf8(bare), *wide):
        for texts in _base64_forms(data):
            add("base64", texts)
        for digits in (data.hex(), data.hex().upper()):
            if len(digits) >= _SHORTEST_CODED:
                add("hex", [digits])
    return SecretForms(tuple(needles.values()), anchors, tuple(data.decode("latin-1") for data in wide))


def _anchors(texts: list[str], run: re.Pattern[str]) -> list[str]:
    """The longest run that all of these related needles share, or else the needles themselves."""
    common = max(run.findall(min(texts, key=len)), key=len, default="")
    if len(common) >= _SHORTEST_ANCHOR and all(common in text for text in texts):
        return [common]
    return [*texts, *_escaped(texts)]  # also as in the JSON of a record


def _text_forms(value: str) -> list[str]:
    """The value as it is, and as JSON, URLs, HTML and Python write it."""
    texts = [value, html.escape(value), repr(value)[1:-1], repr(_utf8(value))[2:-1]]
    texts += [value.replace("'", "''"), value.replace('"', '""')]
    once = _escaped(texts)
    texts += [*once, *_escaped(once), *(text.replace("/", "\\/") for text in once)]  # JSON, and JSON in a JSON string
    # JavaScript leaves some characters of a URL unescaped.
    data = _utf8(value)
    addresses = (quote(data), quote(data, safe=""), quote(data, safe="!'()*"), quote_plus(data))
    return [*texts, *_both_cases(addresses)]


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")  # JSON may hold lone surrogates


def _both_cases(addresses: Iterable[str]) -> Iterator[str]:
    for text in addresses:
        yield text
        yield re.sub(r"%[0-9A-F]{2}", lambda found: found[0].lower(), text)


def _escaped(texts: Iterable[str]) -> list[str]:
    """Texts as JSON writes them, with and without escapes of non-ASCII."""
    return [json.dumps(text, ensure_ascii=only)[1:-1] for text in dict.fromkeys(texts) for only in (False, True)]


def _base64_forms(data: bytes) -> Iterator[list[str]]:
    """The base64 forms of bytes, with anything before and after them."""
    for shift in range(3):
        plain = _base64(data, shift)
        if len(plain[0]) >= _SHORTEST_CODED:
            texts = [*plain, *(text.replace("+", "-").replace("/", "_") for text in plain)]
            texts += [text.replace("/", "\\/") for text in plain]
            yield [*texts, *_both_cases(quote(text, safe="") for text in plain)]


def _base64(data: bytes, shift: int) -> tuple[str, str, str]:
    """The digits that depend only on `data`, with `shift` bytes before it and anything after.

    Then the same with nothing after it, without and with padding.
    """
    padded = b64encode(bytes(shift) + data).decode()
    first, whole = -(-shift * 8 // 6), (shift + len(data)) * 8 // 6
    return padded[first:whole], padded[first:].rstrip("="), padded[first:]


def _parts(value: str) -> list[str]:
    """The lines of a multi-line key, and the texts of a JSON value: each is a secret of its own."""
    found: dict[str, None] = {}
    for text in (value, *_json_texts(value)):
        lines = text.splitlines()
        if text is not value:
            found[text] = None
        if len(lines) > 1:
            found.update(dict.fromkeys(line.strip() for line in lines if not line.lstrip().startswith("-----")))
    return [part for part in found if len(part) >= _SHORTEST_PART][:_MOST_PARTS]


def _json_texts(value: str) -> list[str]:
    """The texts of a JSON object, except URLs, which are no secrets."""
    if not value.lstrip().startswith("{"):
        return []
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        return []
    fields = cast("dict[str, Any]", found).values() if isinstance(found, dict) else ()
    return [item for item in fields if isinstance(item, str) and "://" not in item]


# ---- decoded versions of a text ----


class TextView(NamedTuple):
    """A decoded text with the positions of its characters in the original."""

    text: str
    starts: Sequence[int]
    """Start of each character in the original."""
    ends: Sequence[int]

    def original(self, start: int, end: int) -> tuple[int, int]:
        """The range in the original for a range of this view."""
        return self.starts[start], self.ends[end - 1]


class EscapeDecoder(NamedTuple):
    """Decodes one kind of escapes. A text without any of the `signs` has none."""

    signs: tuple[str, ...]
    pattern: re.Pattern[str]
    decode: Callable[[str], str]
    """Decodes one match of the pattern."""

    def text(self, text: str) -> str:
        return self.pattern.sub(lambda found: self.decode(found[0]), text)

    def view(self, view: TextView) -> TextView:
        """Decode a view, and keep the positions of its characters."""
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
                decoded = self.decode(found[0])
                parts.append(decoded)
                starts += [start] * len(decoded)
                ends += [end] * len(decoded)
        if not isinstance(view.starts, range):  # not the original, whose positions these are
            starts, ends = [view.starts[place] for place in starts], [view.ends[place - 1] for place in ends]
        return TextView("".join(parts), starts, ends)


def _decode_hex(said: str) -> str:
    data = bytes.fromhex(said.replace("\\x", "").replace("%", ""))
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.decode("latin-1")


def _escape(said: str) -> str:
    if said[1] in "uU":
        units = [int(digits, 16) for digits in re.findall(r"[0-9a-fA-F]{2,8}", said)]
        if len(units) > 1:  # the two halves of one character
            return chr(0x10000 + ((units[0] - 0xD800) << 10) + (units[1] - 0xDC00))
        return chr(units[0]) if units[0] <= 0x10FFFF else said
    if said[1] == "x":
        return _decode_hex(said)
    if said[1].isdigit():
        return chr(int(said[1:], 8))
    return {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f"}.get(said[1], said[1])


def _delete(_: str) -> str:
    return ""


ESCAPES: Final = EscapeDecoder(
    ("\\u", "\\x", "\\U", "\\0", "\\1"),
    re.compile(
        r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\u\{[0-9a-fA-F]{2,6}\}"
        r"|\\U[0-9a-fA-F]{8}|(?:\\x[89a-fA-F][0-9a-fA-F])+|\\x[0-7][0-9a-fA-F]|\\[0-3][0-7]{2}|\\[\"'\\/nrtbf]"
    ),
    _escape,
)
ENTITIES: Final = EscapeDecoder(
    ("&#", "&amp", "&AMP"),
    re.compile(r"&(?:#0*[0-9]{1,7}|#[xX]0*[0-9a-fA-F]{1,6});?|&(?:amp|lt|gt|quot|apos);", re.IGNORECASE),
    html.unescape,
)
PERCENTS: Final = EscapeDecoder(("%",), re.compile(r"(?:%[89a-fA-F][0-9a-fA-F])+|%[0-7][0-9a-fA-F]"), _decode_hex)
NULS: Final = EscapeDecoder(("\0",), re.compile("\0"), _delete)
BREAKS: Final = EscapeDecoder((), re.compile(r"\\{1,2}[nrt]|[ \t\n\r\v\f:]+"), _delete)
DASHES: Final = EscapeDecoder((), re.compile("-+"), _delete)
_DECODERS: Final = (ESCAPES, ENTITIES, PERCENTS, NULS)
_BETWEEN: Final = " \t\n\r\v\f:"
_DELETED: Final = str.maketrans("", "", _BETWEEN)
_ESCAPED_BREAKS: Final = ("\\\\n", "\\\\r", "\\\\t", "\\n", "\\r", "\\t")
CUT_ESCAPE: Final = re.compile(
    r"(?:%[0-9a-fA-F]?|(?:%[89a-fA-F][0-9a-fA-F])+%?[0-9a-fA-F]?"
    r"|&(?:#?[xX]?[0-9a-fA-F]{0,8}|[a-zA-Z]{0,4})"
    r"|\\+u[dD][89abAB][0-9a-fA-F]{2}(?:\\+(?:u[0-9a-fA-F]{0,3})?)?|\\+u\{?[0-9a-fA-F]{0,6}|\\+U[0-9a-fA-F]{0,7}"
    r"|(?:\\+x[89a-fA-F][0-9a-fA-F])+(?:\\+(?:x[0-9a-fA-F]?)?)?|\\+x[0-9a-fA-F]?|\\+[0-3]?[0-7]?)\Z"
)
"""An end of a text that may begin an escape."""
_TAIL: Final = EscapeDecoder(("%", "&", "\\"), CUT_ESCAPE, _delete)
_WHOLE_DECODERS: Final = (ESCAPES, _TAIL, ENTITIES, _TAIL, PERCENTS, _TAIL, NULS)


class DecodedText(NamedTuple):
    """A text after some decoders. `view` repeats the decoding with the positions of characters."""

    text: str
    decoders: tuple[EscapeDecoder, ...]
    original: str

    def view(self, *more: EscapeDecoder) -> TextView:
        found = TextView(self.original, range(len(self.original)), range(1, len(self.original) + 1))
        for decoder in (*self.decoders, *more):
            found = decoder.view(found)
        return found


def decoded_texts(text: str, *, cut: bool = False) -> list[DecodedText]:
    """All decoded versions of a text: first itself, last that of all decoders.

    With `cut` the text continues, so an unfinished escape at its end is not decoded.
    """
    found = [DecodedText(text, (), text)]
    if "%" not in text and "&" not in text and "\\" not in text and "\0" not in text:
        return found
    chain: list[EscapeDecoder] = []
    now = text
    for _ in range(3):  # levels of nested escapes
        before = now
        for decoder in _WHOLE_DECODERS if cut else _DECODERS:
            if any(sign in now for sign in decoder.signs) and (decoded := decoder.text(now)) != now:
                chain.append(decoder)
                now = decoded
                found.append(DecodedText(now, tuple(chain), text))
        if now is before:
            break
    # Each decoder alone as well: a secret may look like an escape itself.
    alone = (DecodedText(decoder.text(text), (decoder,), text) for decoder in dict.fromkeys(chain[1:]))
    return [found[0], *alone, *found[1:]]


def join_digits(text: str) -> str:
    """Remove line breaks, blanks and colons, which may separate base64 and hex digits."""
    if "\\" in text:
        for escaped in _ESCAPED_BREAKS:
            text = text.replace(escaped, "")
    if text.isascii():
        return text.translate(_DELETED)
    for character in _BETWEEN:
        text = text.replace(character, "")
    return text


# ---- the secrets in a text ----


_OPENING: Final = "[secret "


class SecretSpan(NamedTuple):
    """A piece of a text to redact. Overlapping secrets are one span."""

    start: int
    end: int
    name: str


def secret_marker(name: str) -> str:
    """The text that replaces a secret."""
    return f"{_OPENING}{name}]"


def merge_spans(text: str, found: Iterable[tuple[int, int, Needle]], markers: Iterable[str]) -> list[SecretSpan]:
    """Merge overlapping matches into spans from the left, each named after its longest needle.

    A match inside one of the `markers` does not count: it is redacted already.
    """
    places: list[tuple[int, int]] = []
    if _OPENING in text:  # markers do not overlap
        places = sorted((at, at + len(marker)) for marker in markers for at in _find_all(text, marker))
    joined: list[SecretSpan] = []
    longest = 0
    for start, end, needle in sorted(found):
        before = bisect_right(places, start, key=itemgetter(0))
        if before and end <= places[before - 1][1]:
            continue
        if joined and start < joined[-1].end:
            last = joined[-1]
            name = needle.name if end - start > longest else last.name
            joined[-1] = SecretSpan(last.start, max(last.end, end), name)
            longest = max(longest, end - start)
        else:
            joined.append(SecretSpan(start, end, needle.name))
            longest = end - start
    return joined


def replace_spans(text: str, spans: Sequence[SecretSpan]) -> str:
    """Replace each span by its marker; the same text if there is none."""
    if not spans:
        return text
    kept: list[str] = []
    at = 0
    for span in spans:
        kept += (text[at : span.start], secret_marker(span.name))
        at = span.end
    return "".join((*kept, text[at:]))


def _find_all(text: str, needle: str) -> Iterator[int]:
    at = text.find(needle)
    while at >= 0:
        yield at
        at = text.find(needle, at + 1)


_WORD: Final = re.compile(r"\w")
_MAX_ESCAPE: Final = 12
"""Most characters of a text that encode one character of a secret."""


class SecretFinder(NamedTuple):
    """Finds all forms of all secrets.

    It searches base64 and hex needles in texts without separators, all others in each decoded version of the text.
    Every text with a needle has one of the anchors.
    """

    needles: Mapping[Code | None, tuple[Needle, ...]]
    anchors: Mapping[Code | None, tuple[str, ...]]
    markers: tuple[str, ...]
    longest: int
    """Length of the longest needle."""
    by_first: Mapping[Code | None, Mapping[str, tuple[str, ...]]]
    """Needles by first character."""
    binary: SecretFinder | None = None
    """The finder for binary data, with each byte as one character."""

    def spans(self, text: str) -> list[SecretSpan]:
        """Find the secrets in a text, from the left."""
        found: list[tuple[int, int, Needle]] = []
        for code, make in self.views(text):
            view = make()
            for needle in self.needles[code]:
                for start in _find_all(view.text, needle.text):
                    end = start + len(needle.text)
                    around = view.text[max(start - 1, 0) : start] + view.text[end : end + 1]
                    if not needle.alone or not _WORD.search(around):
                        found.append((*view.original(start, end), needle))
        return merge_spans(text, found, self.markers) if found else []

    def may_match(self, body: bytes) -> bool:
        text, known = self._as_text(body)
        return any(True for _ in known.views(text))

    def begin_of_partial(self, text: str) -> int:
        """The position from which the end of a text may begin a secret; its length if none."""
        cut = CUT_ESCAPE.search(text)
        whole = text if cut is None else text[: cut.start()]
        begins = [len(whole)]
        for reading in decoded_texts(whole, cut=True):
            for code, said, more in _search_texts(reading.text):
                at = self._partial_in(code, said)
                if at < len(said):
                    begins.append(reading.view(*more).original(at, at + 1)[0])
        return max(min(begins), len(text) - _MAX_ESCAPE * self.longest)

    def mask(self, body: bytes) -> bytes:
        """Redact binary data: asterisks replace each secret, so that lengths stay."""
        known = self if self.binary is None else self.binary
        hidden = bytearray(body)
        for span in known.spans(body.decode("latin-1")):
            hidden[span.start : span.end] = b"*" * (span.end - span.start)
        return bytes(hidden)

    def _as_text(self, body: bytes) -> tuple[str, SecretFinder]:
        try:
            if b"\0" not in body:
                return body.decode(), self
        except UnicodeDecodeError:
            pass
        return body.decode("latin-1"), self if self.binary is None else self.binary

    def views(self, text: str) -> Iterator[tuple[Code | None, Callable[[], TextView]]]:
        """The decoded versions of a text that have an anchor, and the kind of needles to search."""
        for reading in decoded_texts(text):
            for code, said, more in _search_texts(reading.text):
                if any(map(said.__contains__, self.anchors[code])):
                    yield code, partial(reading.view, *more)

    def _partial_in(self, code: Code | None, text: str) -> int:
        cut = CUT_ESCAPE.search(text)
        end = len(text) if cut is None else cut.start()
        by_first = self.by_first[code]
        for at in range(max(end - self.longest + 1, 0), end):
            needles = by_first.get(text[at])
            if needles is None:
                continue
            tail = text[at:end]
            if any(len(needle) > len(tail) and needle.startswith(tail) for needle in needles):
                return at
        return end


def _search_texts(text: str) -> Iterator[tuple[Code | None, str, tuple[EscapeDecoder, ...]]]:
    """The text as each kind of needles is searched in it, with the decoders that lead to it."""
    yield None, text, ()
    digits = join_digits(text)
    yield "base64", digits, (BREAKS,)
    yield "hex", digits.replace("-", ""), (BREAKS, DASHES)


def make_finder(values: Mapping[str, Mapping[str, SecretForms]]) -> SecretFinder:
    """The finder of the values of secrets. If two secrets have the same value, the first one names it."""
    named = [(name, found) for name, own in values.items() for found in own.values()]
    markers = tuple(map(secret_marker, values))
    by_text = {needle.text: needle for _, found in reversed(named) for needle in found.needles}
    anchors: dict[Code | None, tuple[str, ...]] = {
        code: _minimal_anchors(text for _, found in named for text in found.anchors[code])
        for code in (None, "base64", "hex")
    }
    wide = {text: Needle(text, name) for name, found in reversed(named) for text in found.wide}
    in_bytes = {
        text: needle._replace(text=text) for needle in by_text.values() for text in [_bytes_as_text(needle.text)]
    }
    byte_anchors: dict[Code | None, tuple[str, ...]] = {
        **anchors,
        None: _minimal_anchors((*map(_bytes_as_text, anchors[None]), *wide)),
    }
    binary = _build_finder(in_bytes | wide, byte_anchors, markers, None)
    return _build_finder(by_text, anchors, markers, binary)


def _build_finder(
    by_text: Mapping[str, Needle],
    anchors: Mapping[Code | None, tuple[str, ...]],
    markers: tuple[str, ...],
    binary: SecretFinder | None,
) -> SecretFinder:
    needles: dict[Code | None, tuple[Needle, ...]] = {
        code: tuple(needle for needle in by_text.values() if needle.code == code) for code in anchors
    }
    by_first: dict[Code | None, dict[str, tuple[str, ...]]] = {}
    for code, own in needles.items():
        first = by_first[code] = {}
        for needle in own:
            first[needle.text[0]] = (*first.get(needle.text[0], ()), needle.text)
    return SecretFinder(needles, anchors, markers, max(map(len, by_text), default=0), by_first, binary)


def _bytes_as_text(text: str) -> str:
    return _utf8(text).decode("latin-1")


def _minimal_anchors(anchors: Iterable[str]) -> tuple[str, ...]:
    kept: list[str] = []
    for anchor in sorted(set(anchors), key=lambda text: (len(text), text)):
        if not any(short in anchor for short in kept):
            kept.append(anchor)
    return tuple(kept)


def schema_words(*types: Any) -> frozenset[str]:  # structs, or unions of them
    """The field names, tags and literals of these types and of all types inside them."""
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
            for part in msgspec.structs.astuple(node):
                parts = cast("tuple[Any, ...]", part) if isinstance(part, tuple) else (part,)
                left += [item for item in parts if isinstance(item, inspect.Type)]
    return frozenset(found)
