"""All values that are hidden at one moment, prepared for looking through texts. Pure."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from holdfast.secrets.forms import Needle
from holdfast.secrets.spans import marker, merged, places_of
from holdfast.secrets.views import BREAKS, CUT, DASHES, readings, squeezed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from holdfast.secrets.forms import Code, Forms
    from holdfast.secrets.spans import Span
    from holdfast.secrets.views import Decoder, View

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
