"""Responses as text for a model: media types and charsets, HTML as readable text, and the final report. Pure.

In this order: the layout of text blocks, the tokens of HTML, the reader that joins both, media types, the report.
Invisible content is left out: scripts, styles, comments, hidden elements. There, an attacker would hide text from a
person.
"""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass, field
from html import unescape
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, assert_never
from urllib.parse import urljoin

from holdfast.toolkits.web.urls import MAX_URL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


# ---- layout: headings, paragraphs, links, lists, tables, code ----

_DEEPEST: Final = 8
"""Deepest indentation of lists and quotes."""
_SPACE: Final = re.compile(r"[ \t\n\r\f\x0b\xa0]+")
_TICKS: Final = re.compile(r"`{3,}")


@dataclass(slots=True)
class _Table:
    rows: list[list[str]] = field(default_factory=list[list[str]])
    in_cell: bool = False
    plain: bool = False
    """A table for layout only: its cells hold blocks, so they are shown one after another."""


@dataclass(slots=True)
class _Link:
    begin: int
    target: str | None


class TextLayout:
    """Blocks of text, one below the other. `size` is about the length of the text."""

    def __init__(self) -> None:
        self.size = 0
        self._out: list[str] = []
        self._inline: list[str] = []
        self._lists: list[int | None] = []
        """The next number of each open list; None for one without numbers."""
        self._quotes = 0
        self._marker = ""
        self._loose = True
        """Whether a blank line comes before the next block."""
        self._code: list[str] | None = None
        self._tables: list[_Table] = []
        self._link: _Link | None = None
        self._last_quotes = 0

    def finish(self) -> str:
        """The whole text."""
        self.close_code()
        while self._tables:
            self.close_table()
        self.block()
        return "\n".join(self._out).strip("\n")

    # ---- inside a line ----

    def chars(self, text: str) -> None:
        """Add text; its white space collapses unless it is code."""
        self.size += len(text)
        if self._code is not None:
            self._code.append(text)
        else:
            self._inline.append(_SPACE.sub(" ", text))

    def line_break(self) -> None:
        """Begin a new line."""
        self._piece("\n")

    def tick(self) -> None:
        """Begin or end inline code."""
        if self._code is None:
            self._piece("`")

    def open_link(self, target: str | None) -> None:
        """Begin a link to `target`."""
        self.close_link()
        self._link = _Link(len(self._inline), target)

    def close_link(self) -> None:
        """End the link."""
        if self._link is not None:
            self._wrap(self._link)
            self._link = None

    # ---- blocks ----

    def block(self) -> None:
        """End the current block."""
        if self._code is not None:
            return
        if self._tables and self._tables[-1].in_cell and not self._tables[-1].plain:
            self._piece(" ")
            return
        text = self._take_inline()
        if text:
            self._put(text.split("\n"))

    def end_block(self) -> None:
        """End the current block, and drop the marker announced for it, even if it is empty."""
        self.block()
        self._marker = ""

    def heading(self, level: int) -> None:
        """Make the next block a heading."""
        self._leave_cells()
        self._marker = "#" * level + " "
        self._loose = True

    def definition(self) -> None:
        """Make the next block the definition of the one before."""
        self._marker = ": "
        self._loose = False

    def rule(self) -> None:
        """Add a horizontal line."""
        self.block()
        if self._tables and self._tables[-1].in_cell and not self._tables[-1].plain:
            return
        self._loose = True
        self._put(["---"])

    def open_list(self, first: int | None) -> None:
        """Begin a list, with numbers from `first` on or without."""
        self._lists.append(first)

    def item(self) -> None:
        """Make the next block an item of the innermost list."""
        number = self._lists[-1] if self._lists else None
        if number is not None:
            self._lists[-1] = number + 1
        self._marker = "- " if number is None else f"{number}. "
        self._loose = self._loose and len(self._lists) <= 1

    def close_list(self) -> None:
        """End the innermost list."""
        self.block()
        if self._lists:
            self._lists.pop()
        self._marker = ""
        self._loose = not self._lists

    def open_quote(self) -> None:
        """Begin a quote."""
        self._quotes += 1
        self._loose = True

    def close_quote(self) -> None:
        """End the quote."""
        self.block()
        self._quotes = max(self._quotes - 1, 0)
        self._loose = True

    def open_code(self) -> None:
        """Begin a code block, which keeps its lines and white space."""
        self._leave_cells()
        if self._code is None:
            self._code = []

    def close_code(self) -> None:
        """End the code block."""
        if self._code is None:
            return
        text, self._code = "".join(self._code).replace("\r\n", "\n").strip("\n"), None
        if not text.strip():
            return
        fence = "`" * max((len(ticks) + 1 for ticks in _TICKS.findall(text)), default=3)
        self._put([fence, *text.split("\n"), fence])

    # ---- tables ----

    def open_table(self) -> None:
        """Begin a table. A table within a cell makes the outer one a layout table."""
        self._leave_cells()
        self._tables.append(_Table())

    def row(self) -> None:
        """Begin a row."""
        if self._tables and (not self._tables[-1].rows or self._tables[-1].rows[-1]):
            self._tables[-1].rows.append([])

    def open_cell(self) -> None:
        """Begin a cell."""
        if self._tables:
            self.block()
            self._tables[-1].in_cell = True

    def close_cell(self) -> None:
        """End the cell."""
        if not self._tables or not self._tables[-1].in_cell:
            return
        table = self._tables[-1]
        if table.plain:
            self.block()
        else:
            table.rows = table.rows or [[]]
            table.rows[-1].append(self._take_inline().replace("\n", " ").replace("|", "\\|"))
        table.in_cell = False

    def close_table(self) -> None:
        """End the innermost table and show it."""
        self.close_cell()
        self.block()
        if self._tables:
            self._show(self._tables.pop())

    def _leave_cells(self) -> None:
        """A block that no cell can hold turns the table around it into a layout table."""
        if not self._tables or self._tables[-1].plain:
            return
        table = self._tables[-1]
        said = self._take_inline() if table.in_cell else ""
        table.plain = True
        self._show(table)
        table.rows = []
        if said:
            self._put(said.split("\n"))

    def _show(self, table: _Table) -> None:
        rows = [row for row in table.rows if any(row)]
        if not rows:
            return
        width = max(len(row) for row in rows)
        self._loose = True
        if width == 1 or table.plain or len(rows) == 1:
            for row in rows:
                self._put([" ".join(cell for cell in row if cell)])
                self._loose = False
        else:
            # Short rows are not padded: a page could have one long row and very many short ones.
            lines = [f"| {' | '.join(row)} |" for row in rows]
            self._put([lines[0], f"|{' --- |' * width}", *lines[1:]])
        self._loose = True

    # ---- lines ----

    def _piece(self, text: str) -> None:
        if self._code is not None:
            self._code.append(text)
        else:
            self._inline.append(text)
        self.size += len(text)

    def _take_inline(self) -> str:
        """The text since the last block, as lines without needless white space."""
        if self._link is not None:
            is_wrapped = self._wrap(self._link)
            self._link = _Link(0, None if is_wrapped else self._link.target)
        said, self._inline = "".join(self._inline), []
        lines = [" ".join(line.split()) for line in said.split("\n")]
        return "\n".join(line for line in lines if line)

    def _wrap(self, link: _Link) -> bool:
        """Add the target to the words of a link, if there are any yet; a target appears once."""
        said = "".join(self._inline[link.begin :])
        words = " ".join(said.split())
        if link.target is None or not words:
            return False
        before = " " if said[:1].isspace() else ""
        after = " " if said[-1:].isspace() else ""
        self._inline[link.begin :] = [f"{before}[{words}]({link.target}){after}"]
        self.size += len(link.target) + 4
        return True

    def _put(self, lines: list[str]) -> None:
        quotes, depth = min(self._quotes, _DEEPEST), min(len(self._lists), _DEEPEST)
        quote, hanging = "> " * quotes, "  " * depth
        marker, self._marker = self._marker, ""
        if marker.startswith("#"):
            lines = [" ".join(lines)]
        if self._loose and self._out:
            self._out.append(("> " * min(quotes, self._last_quotes)).rstrip())
        self._out.append(f"{quote}{hanging[2:] if marker else hanging}{marker}{lines[0]}")
        self._out.extend(f"{quote}{hanging}{line}".rstrip() for line in lines[1:])
        self.size += len(quote) + len(hanging)
        self._last_quotes = quotes
        self._loose = not self._lists


# ---- tokens of HTML ----

VOID: Final = frozenset(
    ("area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "param", "source", "track", "wbr")
)
"""Elements without an end tag."""
_MARKUP: Final = re.compile(r"<(?=[a-zA-Z/!?])")
_NAME: Final = re.compile(r"[a-zA-Z][^ \t\n\r\f/>]*")
_BETWEEN: Final = re.compile(r"[ \t\n\r\f/]*")
_ATTRIBUTE: Final = re.compile(r"=?[^ \t\n\r\f/>=]*")
_EQUALS: Final = re.compile(r"[ \t\n\r\f]*=[ \t\n\r\f]*")
_BARE: Final = re.compile(r"[^ \t\n\r\f>]*")
_LONG_NUMBER: Final = re.compile(r"&#[0-9]{100,};?")
_REFERENCE: Final = re.compile(r"&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[a-zA-Z][a-zA-Z0-9]{1,31});")
# The content of these elements is raw text; some of them resolve character references.
_RAW: Final = frozenset(("script", "style", "xmp", "iframe", "noembed", "noframes", "textarea", "title"))
_REFERENCES_COUNT: Final = frozenset(("textarea", "title"))
_END_OF_RAW: Final = {name: re.compile(rf"</{name}(?=[ \t\n\r\f/>])", re.IGNORECASE) for name in _RAW}


@dataclass(frozen=True, slots=True)
class StartTag:
    """A start tag."""

    name: str
    attributes: dict[str, str] = field(default_factory=dict[str, str])
    closed: bool = False
    """Written as ``<name/>``."""


@dataclass(frozen=True, slots=True)
class EndTag:
    """An end tag."""

    name: str


@dataclass(frozen=True, slots=True)
class TextToken:
    """Text, with its references resolved."""

    text: str


HtmlToken: TypeAlias = StartTag | EndTag | TextToken


def tokenize_html(source: str) -> Iterator[HtmlToken]:
    """The tags and texts of a page, in order. Comments and declarations are skipped; nothing is ever an error."""
    place: int | None = 0
    while place is not None and place < len(source):
        found = _MARKUP.search(source, place)
        begin = len(source) if found is None else found.start()
        if begin > place:
            yield TextToken(resolve_references(source[place:begin]))
        if found is None:
            return
        token, place = _read_tag(source, begin)
        if token is not None:
            yield token
        if isinstance(token, StartTag) and token.name in _RAW and place is not None:
            text, place = _read_raw_text(source, token.name, place)
            yield TextToken(text)
            yield EndTag(token.name)


def resolve_references(text: str) -> str:
    """Text with its character references resolved."""
    # No character has a number of a hundred digits, and `unescape` fails on thousands of them.
    return unescape(_LONG_NUMBER.sub("\ufffd", text)) if "&" in text else text


def _read_tag(source: str, begin: int) -> tuple[HtmlToken | None, int | None]:
    """The tag at `begin`, if it is one, and where to go on; None at the end of the page."""
    if source.startswith("<!--", begin):
        return None, _after(source, "-->", begin + 2)
    if (name := _NAME.match(source, begin + 1)) is not None:
        return _read_start_tag(source, name[0].lower(), name.end())
    if source.startswith("/", begin + 1) and (name := _NAME.match(source, begin + 2)) is not None:
        return EndTag(name[0].lower()), _after(source, ">", name.end())
    return None, _after(source, ">", begin + 1)


def _after(source: str, mark: str, begin: int) -> int | None:
    found = source.find(mark, begin)
    return None if found < 0 else found + len(mark)


def _read_start_tag(source: str, name: str, place: int) -> tuple[StartTag | None, int | None]:
    attributes: dict[str, str] = {}
    while True:
        between = _BETWEEN.match(source, place)
        place = place if between is None else between.end()
        if place >= len(source):
            return None, None
        if source[place] == ">":
            return StartTag(name, attributes, source[place - 1] == "/"), place + 1
        named = _ATTRIBUTE.match(source, place)
        key = "" if named is None else named[0]
        place += len(key)
        equals = _EQUALS.match(source, place)
        value = ""
        if equals is not None:
            ended = _read_value(source, equals.end())
            if ended is None:
                return None, None
            value, place = ended
        attributes.setdefault(key.lower(), value)


def _read_value(source: str, place: int) -> tuple[str, int] | None:
    quote = source[place : place + 1]
    if quote in {'"', "'"}:
        end = source.find(quote, place + 1)
        return None if end < 0 else (_attribute_text(source[place + 1 : end]), end + 1)
    bare = _BARE.match(source, place)
    text = "" if bare is None else bare[0]
    return _attribute_text(text), place + len(text)


def _attribute_text(text: str) -> str:
    # In a URL, `&copy=1` is a parameter: only references with a semicolon count.
    return _REFERENCE.sub(lambda found: unescape(found[0]), text) if "&" in text else text


def _read_raw_text(source: str, name: str, place: int) -> tuple[str, int | None]:
    found = _END_OF_RAW[name].search(source, place)
    text = source[place:] if found is None else source[place : found.start()]
    after = None if found is None else _after(source, ">", found.end())
    return (resolve_references(text) if name in _REFERENCES_COUNT else text), after


# ---- HTML as text ----

MAX_TEXT: Final = 1_000_000
"""Longest text of a page, in characters; the rest is not read."""
_INVISIBLE_ELEMENTS: Final = frozenset(
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
# An end tag never closes elements outside of these; end tags of tables respect only the first set.
_WALLS: Final = frozenset(("template", "svg", "math", "object"))
_INNER_WALLS: Final = _WALLS | {"table", "caption", *_CELLS}
# A start tag closes an open element of the first set, unless one of the second set was opened in between.
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
_MAX_TOKENS: Final = 500_000  # a page of many tags and few words is slow, too


@dataclass(frozen=True, slots=True)
class WebPage:
    """The text of a page."""

    title: str
    """On one line; empty if there is none."""
    text: str
    cut: bool
    """Whether the page was longer than `MAX_TEXT`."""


def render_html(source: str, base: str, *, most: int = MAX_TEXT) -> WebPage:
    """The text of the HTML in `source`, with links relative to `base`."""
    reader = _HtmlReader(base)
    for number, token in enumerate(tokenize_html(source)):
        match token:
            case StartTag():
                reader.start(token)
            case EndTag():
                reader.end(token.name)
            case TextToken():
                reader.chars(token.text)
            case _:
                assert_never(token)
        if reader.layout.size > most or number > _MAX_TOKENS:
            return WebPage(reader.title, reader.finish()[:most], cut=True)
    text = reader.finish()
    return WebPage(reader.title, text[:most], cut=len(text) > most)


@dataclass(slots=True)
class _OpenElements:
    """The open elements, with the positions of each name, so that lookups stay fast in a deep page."""

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
        """The position of the innermost of these; -1 if none is open."""
        return max((places[-1] for name in names if (places := self.places.get(name))), default=-1)


_OPENERS: Final[dict[str, Callable[[TextLayout], None]]] = {
    "li": TextLayout.item,
    "dd": TextLayout.definition,
    "blockquote": TextLayout.open_quote,
    "pre": TextLayout.open_code,
    **dict.fromkeys(("code", "kbd", "samp"), TextLayout.tick),
    "table": TextLayout.open_table,
    "tr": TextLayout.row,
}
_CLOSERS: Final[dict[str, Callable[[TextLayout], None]]] = {
    **dict.fromkeys(_BLOCKS, TextLayout.block),
    **dict.fromkeys(_LISTS, TextLayout.close_list),
    **dict.fromkeys(_CELLS, TextLayout.close_cell),
    "table": TextLayout.close_table,
    "blockquote": TextLayout.close_quote,
    "pre": TextLayout.close_code,
    **dict.fromkeys(("code", "kbd", "samp"), TextLayout.tick),
    "a": TextLayout.close_link,
    **dict.fromkeys(("li", "dd", *_HEADINGS), TextLayout.end_block),
}


class _HtmlReader:
    """Tracks open elements, and drives the layout."""

    def __init__(self, base: str) -> None:
        self.layout = TextLayout()
        self.title = ""
        self._base = base
        self._open = _OpenElements()
        self._invisible_from: int | None = None
        """The depth from which content is invisible."""

    def finish(self) -> str:
        while self._open.names:
            self._leave()
        return self.layout.finish()

    def chars(self, text: str) -> None:
        names = self._open.names
        if names and names[-1] == "title" and self._open.last(_WALLS) < 0:
            self.title = self.title or " ".join(strip_invisible(text[: 10 * _LONGEST_TITLE]).split())[:_LONGEST_TITLE]
        elif self._invisible_from is None:
            self.layout.chars(strip_invisible(text))

    def start(self, tag: StartTag) -> None:
        self._close_implied(tag.name)
        if tag.name in VOID:
            if self._invisible_from is None:
                self._void(tag)
            return
        if tag.closed and tag.name in {"svg", "math"}:
            return
        self._open.push(tag.name)
        if self._invisible_from is not None:
            return
        if _is_invisible(tag):
            self._invisible_from = len(self._open.names) - 1
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
        if self._invisible_from is None:
            if name in _CLOSERS:
                _CLOSERS[name](self.layout)
        elif len(self._open.names) <= self._invisible_from:
            self._invisible_from = None

    def _void(self, tag: StartTag) -> None:
        match tag.name:
            case "br":
                self.layout.line_break()
            case "hr":
                self.layout.rule()
            case "img":
                said = " ".join(strip_invisible(tag.attributes.get("alt", ""))[:500].split())
                self.layout.chars(f" [image: {said}] " if said else " ")
            case "base":
                self._base = _join_link(self._base, tag.attributes.get("href", "")) or self._base
            case _:
                pass

    def _enter(self, tag: StartTag) -> None:
        name, layout = tag.name, self.layout
        if name in _BLOCKS:
            layout.block()
        if name in _HEADINGS:
            layout.heading(_HEADINGS[name])
        elif name in _LISTS:
            layout.open_list(_first_number(tag) if name == "ol" else None)
        elif name in _CELLS:
            layout.open_cell()
        elif name == "a":
            href = tag.attributes.get("href", "")
            layout.open_link(None if href.lstrip().startswith("#") else _join_link(self._base, href))
        elif name in _OPENERS:
            _OPENERS[name](layout)


def _join_link(base: str, href: str) -> str | None:
    given = "".join(strip_invisible(href[:_LONGEST_LINK]).split())
    try:
        found = urljoin(base, given) if given else ""
    except ValueError:
        return None
    whole = len(href) <= _LONGEST_LINK and len(found) <= MAX_URL
    return found if whole and found.lower().startswith(_LINKED) else None


def _is_invisible(tag: StartTag) -> bool:
    if tag.name in _INVISIBLE_ELEMENTS:
        return True
    if tag.name in {"html", "body"}:  # hidden until a script shows them
        return False
    said = tag.attributes
    return ("hidden" in said and said["hidden"] != "until-found") or _HIDDEN.search(said.get("style", "")) is not None


def _first_number(tag: StartTag) -> int:
    given = tag.attributes.get("start", "")
    return int(given) if given.isascii() and given.isdigit() and len(given) < 8 else 1


# Control characters, direction marks, zero-width characters, and tags that spell invisible ASCII.
_INVISIBLE: Final = re.compile(
    "[\x00-\x08\x0b\x0e-\x1f\x7f-\x9f\u00ad\u200b\u202a-\u202e\u2060-\u2069\ufeff\U000e0000-\U000e0fff]"
)


def strip_invisible(text: str) -> str:
    """Text without characters that a model sees and a reader does not."""
    return text if text.isascii() and text.isprintable() else _INVISIBLE.sub("", text)


# ---- media types and charsets ----

ContentKind: TypeAlias = Literal["page", "text", "file"]
_TEXTUAL: Final = frozenset(
    f"application/{name}"
    for name in (
        *("json", "xml", "javascript", "ecmascript", "x-javascript", "x-ndjson", "ndjson", "jsonl", "yaml", "x-yaml"),
        *("toml", "sql", "graphql", "x-sh", "rtf", "x-www-form-urlencoded", "x-httpd-php", "typescript", "x-tex"),
    )
)
_PAGES: Final = frozenset(("text/html", "application/xhtml+xml"))
_UNSPECIFIED_TYPES: Final = frozenset(("", "application/octet-stream", "binary/octet-stream", "application/unknown"))
_MAGIC: Final = (
    (re.compile(rb"%PDF-"), "application/pdf"),
    (re.compile(rb"\x89PNG\r\n\x1a\n"), "image/png"),
    (re.compile(rb"\xff\xd8\xff"), "image/jpeg"),
    (re.compile(rb"GIF8[79]a"), "image/gif"),
    (re.compile(rb"RIFF....WEBP", re.DOTALL), "image/webp"),
)
_FILES: Final = frozenset(kind for _, kind in _MAGIC)
_LOOKS_LIKE_PAGE: Final = re.compile(
    rb"\s*(?:<!--.{0,400}?-->\s*)?<(?:!doctype html|html|head|body)\b", re.IGNORECASE | re.DOTALL
)
_CHARSET: Final = re.compile(r""";\s*charset\s*=\s*["']?([\w.:-]{1,40})""", re.IGNORECASE)
_META: Final = re.compile(rb"""<meta\b[^>]{0,200}?\bcharset\s*=\s*["']?\s*([\w.:-]{1,40})""", re.IGNORECASE)
_META_WITHIN: Final = 2048
_SNIFFED: Final = 1024
# The charsets of the web. Python knows others, some of them slow, some of them no charsets at all.
_CHARSETS: Final = {
    "utf8": "utf-8", "utf16": "utf-16-le", "utf16le": "utf-16-le", "utf16be": "utf-16-be",
    "ascii": "cp1252", "usascii": "cp1252", "iso88591": "cp1252", "latin1": "cp1252", "l1": "cp1252",
    **{f"iso8859{n}": f"iso8859-{n}" for n in (2, 3, 4, 5, 6, 7, 8, 10, 13, 14, 15, 16)}, "iso88599": "cp1254",
    "latin2": "iso8859-2", "latin9": "iso8859-15",
    **{f"windows{n}": f"cp{n}" for n in (874, *range(1250, 1259))}, **{f"cp{n}": f"cp{n}" for n in range(1250, 1259)},
    "koi8r": "koi8-r", "koi8u": "koi8-u", "macintosh": "mac-roman", "ibm866": "cp866", "tis620": "cp874",
    "gb2312": "gb18030", "gbk": "gb18030", "gb18030": "gb18030", "big5": "big5hkscs", "big5hkscs": "big5hkscs",
    "eucjp": "euc_jp", "shiftjis": "cp932", "sjis": "cp932", "windows31j": "cp932", "iso2022jp": "iso2022_jp",
    "euckr": "cp949", "ksc56011987": "cp949",
}  # fmt: skip
_MARKS: Final = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))


@dataclass(frozen=True, slots=True)
class ShowableContent:
    """A body that can be shown."""

    kind: ContentKind
    media_type: str


@dataclass(frozen=True, slots=True)
class UnshowableContent:
    """A body that can't be shown."""

    reason: str


def media_type_of(header: str) -> str:
    """The media type in a Content-Type header, in lower case; empty if there is none."""
    named = header.partition(";")[0].strip().lower()
    return named if re.fullmatch(r"[\w.+-]{1,100}/[\w.+-]{1,100}", named, re.ASCII) else ""


def classify_content(header: str, head: bytes) -> ShowableContent | UnshowableContent:
    """The kind of a body, by its Content-Type and its first bytes.

    The bytes decide about files and binaries: an image for a model is really one.
    """
    named = media_type_of(header)
    magic = next((kind for pattern, kind in _MAGIC if pattern.match(head)), None)
    if magic is not None:
        return ShowableContent("file", magic)
    if named in _FILES:
        return UnshowableContent(f"it says that it is {named}, but it is not")
    if named in _UNSPECIFIED_TYPES or _is_textual(named):
        return _judge_text(header, named, head)
    return UnshowableContent(f"it is {named}; pages, text, JSON, PDF, PNG, JPEG, GIF and WebP can be shown")


def _is_textual(named: str) -> bool:
    return named.startswith("text/") or named in _TEXTUAL or named.endswith(("+json", "+xml", "+yaml"))


def _judge_text(header: str, named: str, head: bytes) -> ShowableContent | UnshowableContent:
    start = head[:_SNIFFED]
    wide = any(start.startswith(mark) for mark, _ in _MARKS) or (_declared_charset(header) or "").startswith("utf-16")
    if b"\0" in start and not wide:
        return UnshowableContent(
            f"it is binary, of no kind that can be shown{f', though it says {named}' if named else ''}"
        )
    if named in _PAGES or (named in _UNSPECIFIED_TYPES and _LOOKS_LIKE_PAGE.match(start)):
        return ShowableContent("page", named if named in _PAGES else "text/html")
    return ShowableContent("text", "text/plain" if named in _UNSPECIFIED_TYPES else named)


def decode_body(data: bytes, header: str, *, page: bool, whole: bool) -> str:
    """The text in `data`. Bytes outside its charset become replacement characters, never an error.

    `whole` is False for a body that was cut: a character cut in two is then left out.
    """
    charset = _charset(data, header, page=page)
    if charset is None:
        try:
            return _decode(data, "utf-8", "strict", final=whole)
        except UnicodeDecodeError:
            charset = "utf-8" if _is_mostly_utf8(data) else "cp1252"
    return _decode(data, charset, "replace", final=whole)


def _decode(data: bytes, charset: str, errors: str, *, final: bool) -> str:
    return codecs.getincrementaldecoder(charset)(errors).decode(data, final).removeprefix("\ufeff")


def _charset(data: bytes, header: str, *, page: bool) -> str | None:
    marked = next((charset for mark, charset in _MARKS if data.startswith(mark)), None)
    if marked or (said := _declared_charset(header)) is None:
        meta = _META.search(data[:_META_WITHIN]) if page and not marked else None
        named = _known_charset(meta[1].decode("ascii", "replace")) if meta else None
        # The tag was read byte by byte, so the page is not UTF-16.
        return marked or ("utf-8" if named and named.startswith("utf-16") else named)
    return said


def _declared_charset(header: str) -> str | None:
    found = _CHARSET.search(header)
    return _known_charset(found[1]) if found else None


def _known_charset(label: str) -> str | None:
    return _CHARSETS.get(re.sub(r"[\W_]", "", label.lower()))


def _is_mostly_utf8(data: bytes) -> bool:
    """Whether a text with a few broken characters is UTF-8."""
    start = data[:65_536].decode("utf-8", "replace")
    return start.count("\ufffd") * 100 < sum(char > "\x7f" for char in start)


# ---- the report for the model ----

_TOLERATED: Final = 5
"""A part ends at a line end, unless that drops more than one in so many of its characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchReport:
    """The text of a fetch, for a model."""

    url: str
    """The URL after all redirects."""
    hops: int
    media_type: str
    title: str
    text: str
    cut_at: int | None = None
    """The limit in bytes, if the body was longer."""
    longer: bool = False
    """Whether the text was longer than `MAX_TEXT`."""

    def render(self, start: int, most: int) -> str:
        """At most `most` characters of the text from `start` on, below URL, title, type and extent."""
        begin = min(start, len(self.text))
        part = self.text[begin : begin + most]
        end = begin + len(part)
        if end < len(self.text):
            part = trim_to_line(part)
            end = begin + len(part)
        redirects = f" (after {self.hops} redirect{'s' if self.hops > 1 else ''})" if self.hops else ""
        lines = [f"URL: {self.url}{redirects}"]
        if self.title:
            lines.append(f"Title: {self.title}")
        lines += [f"Type: {self.media_type}"] if self.media_type else []
        lines.append(self._extent(begin, end))
        return "\n".join(lines) + f"\n\n{part}".rstrip()

    def _extent(self, begin: int, end: int) -> str:
        whole = len(self.text)
        if not whole:
            return "It is empty."
        cut = f"; only the first {self.cut_at:,} bytes were read" if self.cut_at is not None else ""
        cut += "; the page goes on, but no further than this is read" if self.longer else ""
        if begin == 0 and end == whole:
            return f"Characters: {whole:,}{cut}"
        if begin >= whole:
            return f"Characters: {whole:,}{cut}; there is nothing from {begin:,} on"
        more = f"; go on with start={end}" if end < whole else ""
        return f"Characters: {begin:,} to {end:,} of {whole:,}{cut}{more}"


def trim_to_line(part: str) -> str:
    """`part` up to its last line end, unless that is far from its end."""
    cut = part.rfind("\n") + 1
    return part[:cut] if cut and (len(part) - cut) * _TOLERATED <= len(part) else part


def one_line_excerpt(text: str, most: int) -> str:
    """The beginning of a text, on one line."""
    line = " ".join(text[: 4 * most].split())
    return line if len(line) <= most else f"{line[:most]}..."
