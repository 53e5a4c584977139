"""A page of HTML as text that reads well: headings, paragraphs, links, lists, tables, code. Pure.

What a reader would not see is left out: scripts, styles, comments, elements that are hidden. Text that is there for
machines only is where somebody would write what a person should not notice.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final, assert_never
from urllib.parse import urljoin

from holdfast.hands.web.layout import Layout
from holdfast.hands.web.markup import VOID, Chars, End, Start, tokens
from holdfast.hands.web.urls import MAX_URL

MAX_TEXT: Final = 1_000_000
"""How long the text of a page may become, in characters; what is behind is not read."""

_UNSEEN: Final = frozenset(
    (
        *("script", "style", "template", "svg", "math", "canvas", "audio", "video", "object", "iframe", "noembed"),
        *("noframes", "select", "datalist", "map", "applet"),
    )
)
_BLOCKS: Final = frozenset(
    (
        *("address", "article", "aside", "body", "caption", "center", "details", "dialog", "dir", "div", "dl", "dd"),
        *("dt", "fieldset", "figcaption", "figure", "footer", "form", "header", "hgroup", "html", "legend", "main"),
        *("menu", "nav", "p", "section", "summary", "tbody", "tfoot", "thead", "head", "search", "h1", "h2", "h3"),
        *("h4", "h5", "h6", "ul", "ol", "li", "blockquote", "pre", "table", "tr", "td", "th", "hr", "option"),
    )
)
_HEADINGS: Final = {f"h{level}": level for level in range(1, 7)}
_LISTS: Final = frozenset(("ul", "ol", "menu", "dir"))
_CELLS: Final = frozenset(("td", "th"))
_TABLE: Final = frozenset(("table", "tr", "tbody", "thead", "tfoot", "caption", *_CELLS))
# An end tag never reaches out of these; those of tables only not out of the first.
_WALLS: Final = frozenset(("template", "svg", "math", "object"))
_INNER_WALLS: Final = _WALLS | {"table", "caption", *_CELLS}
# An element that begins ends an open one of these, unless the element named behind was opened in between.
_ENDS: Final = {
    "li": (frozenset(("li",)), _LISTS),
    "dt": (frozenset(("dt", "dd")), frozenset(("dl",))),
    "dd": (frozenset(("dt", "dd")), frozenset(("dl",))),
    "td": (_CELLS, frozenset(("table",))),
    "th": (_CELLS, frozenset(("table",))),
    "tr": (frozenset(("tr",)), frozenset(("table",))),
    "a": (frozenset(("a",)), _CELLS),
}
_HIDDEN: Final = re.compile(r"(?:^|;)\s*(?:display\s*:\s*none|visibility\s*:\s*hidden)\b", re.IGNORECASE)
_LINKED: Final = ("http://", "https://", "mailto:")
_LONGEST_LINK: Final = 2_000
_LONGEST_TITLE: Final = 300
_MOST_TOKENS: Final = 500_000  # a page of many tags and few words takes long, too


@dataclass(frozen=True, slots=True)
class Page:
    """What a page says."""

    title: str
    """On one line; empty when there is none."""
    text: str
    cut: bool
    """Whether there was more than is read of any page."""


def read_page(source: str, base: str, *, most: int = MAX_TEXT) -> Page:
    """The text of the HTML in `source`, with links relative to `base`."""
    reader = _Reader(base)
    for number, token in enumerate(tokens(source)):
        match token:
            case Start():
                reader.start(token)
            case End():
                reader.end(token.name)
            case Chars():
                reader.chars(token.text)
            case _:
                assert_never(token)
        if reader.layout.size > most or number > _MOST_TOKENS:
            return Page(reader.title, reader.finish()[:most], cut=True)
    text = reader.finish()
    return Page(reader.title, text[:most], cut=len(text) > most)


@dataclass(slots=True)
class _Open:
    """The elements that are open, with the places of each kind, so that no question takes longer in a deep page."""

    names: list[str] = field(default_factory=list[str])
    places: dict[str, list[int]] = field(default_factory=dict[str, list[int]])

    def push(self, name: str) -> None:
        self.places.setdefault(name, []).append(len(self.names))
        self.names.append(name)

    def pop(self) -> str:
        name = self.names.pop()
        self.places[name].pop()
        return name

    def last(self, names: frozenset[str]) -> int:
        """Where the innermost of these is; -1 when none is open."""
        return max((places[-1] for name in names if (places := self.places.get(name))), default=-1)


class _Reader:
    """Knows which elements are open, and tells the layout what they mean."""

    def __init__(self, base: str) -> None:
        self.layout = Layout()
        self.title = ""
        self._base = base
        self._open = _Open()
        self._unseen: int | None = None
        """From which depth on nothing is seen."""

    def finish(self) -> str:
        while self._open.names:
            self._leave()
        return self.layout.finish()

    def chars(self, text: str) -> None:
        names = self._open.names
        if names and names[-1] == "title" and self._open.last(_WALLS) < 0:
            self.title = self.title or " ".join(visible(text[: 10 * _LONGEST_TITLE]).split())[:_LONGEST_TITLE]
        elif self._unseen is None:
            self.layout.chars(visible(text))

    def start(self, tag: Start) -> None:
        self._close_implied(tag.name)
        if tag.name in VOID:
            if self._unseen is None:
                self._void(tag)
            return
        if tag.closed and tag.name in {"svg", "math"}:
            return
        self._open.push(tag.name)
        if self._unseen is not None:
            return
        if _is_unseen(tag):
            self._unseen = len(self._open.names) - 1
            return
        self._enter(tag)

    def end(self, name: str) -> None:
        place = self._open.last(frozenset((name,)))
        wall = self._open.last(_WALLS - {name} if name in _TABLE else _INNER_WALLS - {name})
        if place > wall:
            self._leave_to(place)

    def _close_implied(self, name: str) -> None:
        names = self._open.names
        if name in _BLOCKS and names and names[-1] == "p":
            self._leave()
        ending, unless = _ENDS.get(name, (None, None))
        if ending is not None and unless is not None:
            place = self._open.last(ending)
            if place > self._open.last(unless | _WALLS):
                self._leave_to(place)

    def _leave_to(self, place: int) -> None:
        while len(self._open.names) > place:
            self._leave()

    def _leave(self) -> None:
        name = self._open.pop()
        if self._unseen is None:
            self._exit(name)
        elif len(self._open.names) <= self._unseen:
            self._unseen = None

    # ---- what elements mean ----

    def _void(self, tag: Start) -> None:
        match tag.name:
            case "br":
                self.layout.line_break()
            case "hr":
                self.layout.rule()
            case "img":
                said = " ".join(visible(tag.attributes.get("alt", ""))[:500].split())
                self.layout.chars(f" [image: {said}] " if said else " ")
            case "base":
                self._base = _joined(self._base, tag.attributes.get("href", "")) or self._base
            case _:
                pass

    def _enter(self, tag: Start) -> None:
        name, layout = tag.name, self.layout
        if name in _BLOCKS:
            layout.block()
        if name in _HEADINGS:
            layout.heading(_HEADINGS[name])
        elif name in _LISTS:
            layout.open_list(_first_number(tag) if name == "ol" else None)
        elif name in _CELLS:
            layout.open_cell()
        else:
            self._enter_other(tag)

    def _enter_other(self, tag: Start) -> None:
        layout = self.layout
        match tag.name:
            case "li":
                layout.item()
            case "dd":
                layout.definition()
            case "blockquote":
                layout.open_quote()
            case "pre":
                layout.open_code()
            case "code" | "kbd" | "samp":
                layout.tick()
            case "table":
                layout.open_table()
            case "tr":
                layout.row()
            case "a":
                layout.open_link(self._link(tag.attributes.get("href", "")))
            case _:
                pass

    def _exit(self, name: str) -> None:
        layout = self.layout
        match name:
            case "ul" | "ol" | "menu" | "dir":
                layout.close_list()
            case "td" | "th":
                layout.close_cell()
            case "table":
                layout.close_table()
            case "blockquote":
                layout.close_quote()
            case "pre":
                layout.close_code()
            case "code" | "kbd" | "samp":
                layout.tick()
            case "a":
                layout.close_link()
            case "li" | "dd" | "h1" | "h2" | "h3" | "h4" | "h5" | "h6":
                layout.end_block()
            case _ if name in _BLOCKS:
                layout.block()
            case _:
                pass

    def _link(self, href: str) -> str | None:
        """Where a link leads, if that is worth telling."""
        return None if href.lstrip().startswith("#") else _joined(self._base, href)


def _joined(base: str, href: str) -> str | None:
    given = "".join(visible(href[:_LONGEST_LINK]).split())
    try:
        found = urljoin(base, given) if given else ""
    except ValueError:
        return None
    whole = len(href) <= _LONGEST_LINK and len(found) <= MAX_URL
    return found if whole and found.lower().startswith(_LINKED) else None


def _is_unseen(tag: Start) -> bool:
    if tag.name in _UNSEEN:
        return True
    if tag.name in {"html", "body"}:  # hidden until a script shows them
        return False
    said = tag.attributes
    return ("hidden" in said and said["hidden"] != "until-found") or _HIDDEN.search(said.get("style", "")) is not None


def _first_number(tag: Start) -> int:
    given = tag.attributes.get("start", "")
    return int(given) if given.isascii() and given.isdigit() and len(given) < 8 else 1


# Control characters; those that turn the direction of text; those that nobody sees and that spell ASCII.
_INVISIBLE: Final = re.compile(
    "[\x00-\x08\x0b\x0e-\x1f\x7f-\x9f\u00ad\u200b\u202a-\u202e\u2060-\u2069\ufeff\U000e0000-\U000e0fff]"
)


def visible(text: str) -> str:
    """Text without the characters that a reader can't see and a model can."""
    return text if text.isascii() and text.isprintable() else _INVISIBLE.sub("", text)
