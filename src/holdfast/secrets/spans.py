"""Where secrets stand in a text, and the text without them. Pure."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from holdfast.secrets.forms import Needle
    from holdfast.secrets.views import View

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
