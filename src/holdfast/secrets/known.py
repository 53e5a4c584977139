"""All values that are hidden at one moment, prepared for looking through texts. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from holdfast.secrets.spans import marker, spans_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from holdfast.secrets.forms import Forms, Needle
    from holdfast.secrets.spans import Span


class Known(NamedTuple):
    """What is looked for."""

    needles: tuple[Needle, ...]
    anchors: tuple[str, ...]
    """One of these is in every text that has one of the needles."""
    byte_anchors: tuple[str, ...]
    """The bytes of the anchors, each as one character: texts are searched faster than bytes are."""
    markers: tuple[str, ...]
    longest: int
    """How long the longest needle is."""
    by_first: Mapping[str, tuple[str, ...]]
    """The needles by their first character."""

    def spans(self, text: str) -> list[Span]:
        """What is to be hidden in a text, from the left."""
        if not any(map(text.__contains__, self.anchors)):
            return []
        return spans_of(text, self.needles, self.markers)

    def in_bytes(self, body: bytes) -> bool:
        """Whether there may be something to hide in these bytes."""
        return any(map(body.decode("latin-1").__contains__, self.byte_anchors))

    def begun(self, text: str) -> int:
        """From where on the end of a text may be the beginning of a needle; its length when none begins there."""
        by_first = self.by_first
        for at in range(max(len(text) - self.longest + 1, 0), len(text)):
            needles = by_first.get(text[at])
            if needles is not None and _begins(needles, text[at:]):
                return at
        return len(text)

    def masked(self, body: bytes) -> bytes:
        """Bytes that are no text: each secret becomes as many stars, so that whatever counts bytes still can."""
        spans: list[tuple[int, int]] = []
        for needle in self.needles:
            found = needle.text.encode()
            at = body.find(found)
            while at >= 0:
                spans.append((at, at + len(found)))
                at = body.find(found, at + 1)
        hidden = bytearray(body)
        for start, end in spans:
            hidden[start:end] = b"*" * (end - start)
        return bytes(hidden)


def _begins(needles: tuple[str, ...], tail: str) -> bool:
    return any(len(needle) > len(tail) and needle.startswith(tail) for needle in needles)


def known_of(values: Mapping[str, Mapping[str, Forms]]) -> Known:
    """What to look for because of these values of these secrets. The first to have a value gives it its name."""
    forms = [found for own in values.values() for found in own.values()]
    by_text = {needle.text: needle for found in reversed(forms) for needle in found.needles}
    needles = tuple(by_text.values())
    anchors = _shortest(anchor for found in forms for anchor in found.anchors)
    by_first: dict[str, tuple[str, ...]] = {}
    for text in by_text:
        by_first[text[0]] = (*by_first.get(text[0], ()), text)
    encoded = tuple(anchor.encode().decode("latin-1") for anchor in anchors)
    return Known(needles, anchors, encoded, tuple(map(marker, values)), max(map(len, by_text), default=0), by_first)


def _shortest(anchors: Iterable[str]) -> tuple[str, ...]:
    """Those that have no other one in them: where a longer one is, the shorter one is, too."""
    kept: list[str] = []
    for anchor in sorted(set(anchors), key=lambda text: (len(text), text)):
        if not any(short in anchor for short in kept):
            kept.append(anchor)
    return tuple(kept)
