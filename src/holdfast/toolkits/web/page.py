"""Responses as text for a model: media types and charsets, HTML as readable text, and the final report. Pure.

In this order: the tokens of HTML, the reader that lays them out as text, media types, the report. Invisible content is
left out: scripts, styles, comments, hidden elements. An attacker would hide text from a person there.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from html import unescape
from typing import Final, Literal
from urllib.parse import urljoin

from holdfast.toolkits.web.urls import MAX_URL

# ---- tokens of HTML ----

_VOID: Final = frozenset(
    ("area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "param", "source", "track", "wbr")
)
"""Elements without an end tag."""
_MARKUP: Final = re.compile(r"<(?=[a-zA-Z/!?])")
_NAME: Final = re.compile(r"[a-zA-Z][^ \t\n\r\f/>]*")
_SPACES: Final = r"[ \t\n\r\f]*"
_ATTRIBUTE: Final = re.compile(
    rf"""[ \t\n\r\f/]*(?P<name>=?[^ \t\n\r\f/>=]*)"""
    rf"""(?:{_SPACES}={_SPACES}(?:(?P<quote>["'])(?P<quoted>.*?)(?P=quote)|(?P<bare>[^ \t\n\r\f>]*)))?""",
    re.DOTALL,
)
_REFERENCE: Final = re.compile(r"&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[a-zA-Z][a-zA-Z0-9]{1,31});")
# The content of these elements is raw text; some of them resolve character references.
_RAW: Final = ("script", "style", "xmp", "iframe", "noembed", "noframes", "textarea", "title")
_END_OF_RAW: Final = {name: re.compile(rf"</{name}(?=[ \t\n\r\f/>])", re.IGNORECASE) for name in _RAW}


@dataclass(frozen=True, slots=True)
class _Tag:
    name: str
    attributes: dict[str, str] | None = None
    """None for an end tag."""
    closed: bool = False
    """Written as ``<name/>``."""

    def attribute(self, name: str) -> str:
        return (self.attributes or {}).get(name, "")


def _tokenize(source: str) -> Iterator[_Tag | str]:
    """The tags and texts of a page, in order. Skips comments and declarations; never raises."""
    place = 0
    while place < len(source):
        found = _MARKUP.search(source, place)
        begin = len(source) if found is None else found.start()
        if begin > place:
            yield _resolve_references(source[place:begin])
        if found is None:
            return
        if source.startswith("<!--", begin):
            place = _after(source, "-->", begin + 2)
        elif (name := _NAME.match(source, begin + 1)) is not None:
            tag, place = _read_start_tag(source, name[0].lower(), name.end())
            if tag is not None:
                yield tag
            if tag is not None and tag.name in _END_OF_RAW:
                found = _END_OF_RAW[tag.name].search(source, place)
                text = source[place:] if found is None else source[place : found.start()]
                place = len(source) if found is None else _after(source, ">", found.end())
                yield _resolve_references(text) if tag.name in {"textarea", "title"} else text
                yield _Tag(tag.name)
        elif source.startswith("/", begin + 1) and (name := _NAME.match(source, begin + 2)) is not None:
            place = _after(source, ">", name.end())
            yield _Tag(name[0].lower())
        else:
            place = _after(source, ">", begin + 1)


def _resolve_references(text: str) -> str:
    # No character has a number of a hundred digits, and `unescape` fails on thousands of them.
    return unescape(re.sub("&#[0-9]{100,};?", "\ufffd", text)) if "&" in text else text


def _after(source: str, mark: str, begin: int) -> int:
    found = source.find(mark, begin)
    return len(source) if found < 0 else found + len(mark)


def _read_start_tag(source: str, name: str, place: int) -> tuple[_Tag | None, int]:
    """The tag and the position after it; None if the page ends inside the tag."""
    attributes: dict[str, str] = {}
    while found := _ATTRIBUTE.match(source, place):
        place, bare = found.end(), found["bare"] or ""
        if bare.startswith(('"', "'")):  # a quote that is never closed
            break
        if found["name"]:
            # In a URL, `&copy=1` is a parameter: only references with a semicolon count.
            value = _REFERENCE.sub(lambda reference: unescape(reference[0]), found["quoted"] or bare)
            attributes.setdefault(found["name"].lower(), value)
        if source.startswith(">", place):
            return _Tag(name, attributes, source[place - 1] == "/"), place + 1
        if place >= len(source):
            break
    return None, len(source)


# ---- HTML as text ----

MAX_TEXT: Final = 1_000_000
"""Longest text of a page, in characters; the rest is not read."""
_DEEPEST: Final = 8
"""Deepest indentation of lists and quotes."""
_SPACE: Final = re.compile(r"[ \t\n\r\f\x0b\xa0]+")
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
_HEADINGS: Final = frozenset(("h1", "h2", "h3", "h4", "h5", "h6"))
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
_LONGEST_LINK: Final = 2_000
_LONGEST_TITLE: Final = 300
_MAX_TOKENS: Final = 500_000  # a page of many tags and few words is slow, too


@dataclass(frozen=True, slots=True)
class WebPage:
    """The text of a page."""

    title: str
    """On one line; empty if the page has none."""
    text: str
    cut: bool
    """True if the page was longer than `MAX_TEXT`."""


def render_html(source: str, base: str, *, most: int = MAX_TEXT) -> WebPage:
    """The text of the HTML in `source`, with links relative to `base`."""
    reader = _HtmlReader(base)
    for number, token in enumerate(_tokenize(source)):
        if isinstance(token, str):
            reader.chars(token)
        elif token.attributes is None:
            reader.end(token.name)
        else:
            reader.start(token)
        if reader.size > most or number > _MAX_TOKENS:
            return WebPage(reader.title, reader.finish()[:most], cut=True)
    text = reader.finish()
    return WebPage(reader.title, text[:most], cut=len(text) > most)


@dataclass(slots=True)
class _HtmlTable:
    rows: list[list[str]] = field(default_factory=list[list[str]])
    in_cell: bool = False
    plain: bool = False
    """A table for layout only: its cells hold blocks, which are shown one after another."""


class _HtmlReader:
    """Tracks open elements, and writes blocks of text, one below the other. `size` is about the length of the text."""

    def __init__(self, base: str) -> None:
        self.size = 0
        self.title = ""
        self._base = base
        self._open: list[str] = []
        self._places: dict[str, list[int]] = {}
        """The positions of each name in `_open`, so that lookups stay fast in a deep page."""
        self._invisible_from: int | None = None
        """The depth from which content is invisible."""
        self._out: list[str] = []
        self._inline: list[str] = []
        self._lists: list[int | None] = []
        """The next number of each open list; None for one without numbers."""
        self._quotes = 0
        self._last_quotes = 0
        self._marker = ""
        self._loose = True
        """True if a blank line comes before the next block."""
        self._code: list[str] | None = None
        self._tables: list[_HtmlTable] = []
        self._link: tuple[int, str | None] | None = None
        """The beginning of the open link in `_inline`, and its target."""

    def finish(self) -> str:
        self._leave_to(0)  # closes code and tables
        self._end_block()
        return "\n".join(self._out).strip("\n")

    # ---- elements ----

    def chars(self, text: str) -> None:
        if self._open and self._open[-1] == "title" and self._last(_WALLS) < 0:
            self.title = self.title or " ".join(strip_invisible(text[: 10 * _LONGEST_TITLE]).split())[:_LONGEST_TITLE]
        elif self._invisible_from is None:
            text = strip_invisible(text)  # its white space collapses unless it is code
            self._add(text if self._code is not None else _SPACE.sub(" ", text))

    def start(self, tag: _Tag) -> None:
        name, attributes = tag.name, tag.attributes or {}
        if name in _BLOCKS and self._open and self._open[-1] == "p":
            self._leave()
        if name in _ENDS:
            ending, unless = _ENDS[name]
            place = self._last(ending)
            if place > self._last(unless | _WALLS):
                self._leave_to(place)
        if name in _VOID:
            if self._invisible_from is None:
                self._enter(tag)
            return
        if tag.closed and name in {"svg", "math"}:
            return
        self._places.setdefault(name, []).append(len(self._open))
        self._open.append(name)
        if self._invisible_from is not None:
            return
        hidden = attributes.get("hidden", "until-found") != "until-found" or _HIDDEN.search(tag.attribute("style"))
        # `html` and `body` may be hidden until a script shows them.
        if name in _INVISIBLE_ELEMENTS or (hidden and name not in {"html", "body"}):
            self._invisible_from = len(self._open) - 1
        else:
            self._enter(tag)

    def end(self, name: str) -> None:
        place = self._last(frozenset((name,)))
        if place > self._last((_WALLS if name in _TABLE else _INNER_WALLS) - {name}):
            self._leave_to(place)

    def _last(self, names: frozenset[str]) -> int:
        """The position of the innermost open element with one of these names; -1 if none is open."""
        return max((places[-1] for name in names if (places := self._places.get(name))), default=-1)

    def _leave_to(self, place: int) -> None:
        while len(self._open) > place:
            self._leave()

    def _enter(self, tag: _Tag) -> None:
        name = tag.name
        if name in _BLOCKS:
            self._end_block()
        match name:
            case "br":
                self._add("\n")
            case "hr" if not self._in_text_cell():
                self._loose = True
                self._put(["---"])
            case "img":
                said = " ".join(strip_invisible(tag.attribute("alt"))[:500].split())
                self._add(f" [image: {said}] " if said else " ")
            case "base":
                self._base = _join_link(self._base, tag.attribute("href")) or self._base
            case "h1" | "h2" | "h3" | "h4" | "h5" | "h6":
                self._leave_cells()
                self._marker, self._loose = "#" * int(name[1]) + " ", True
            case "ul" | "menu" | "dir":
                self._lists.append(None)
            case "ol":
                first = tag.attribute("start")
                self._lists.append(int(first) if first.isascii() and first.isdigit() and len(first) < 8 else 1)
            case "li":
                number = self._lists[-1] if self._lists else None
                if number is not None:
                    self._lists[-1] = number + 1
                self._marker = "- " if number is None else f"{number}. "
                self._loose = self._loose and len(self._lists) <= 1
            case "dd":  # the definition of the block before
                self._marker, self._loose = ": ", False
            case "blockquote":
                self._quotes += 1
                self._loose = True
            case "pre":
                self._leave_cells()
                self._code = self._code or []
            case "code" | "kbd" | "samp" if self._code is None:
                self._add("`")
            case "a":
                href = tag.attribute("href")
                self._close_link()
                self._link = len(self._inline), None if href.lstrip().startswith("#") else _join_link(self._base, href)
            case "table":  # within a cell, it makes the outer one a layout table
                self._leave_cells()
                self._tables.append(_HtmlTable())
            case "tr" if self._tables and (not self._tables[-1].rows or self._tables[-1].rows[-1]):
                self._tables[-1].rows.append([])
            case "td" | "th" if self._tables:
                self._tables[-1].in_cell = True
            case _:
                pass

    def _leave(self) -> None:
        name = self._open.pop()
        self._places[name].pop()
        if self._invisible_from is not None:
            if len(self._open) <= self._invisible_from:
                self._invisible_from = None
            return
        match name:
            case "td" | "th":
                self._close_cell()
            case "table":
                self._close_cell()
                self._end_block()
                self._show(self._tables.pop())
            case "pre" if self._code is not None:
                text, self._code = "".join(self._code).replace("\r\n", "\n").strip("\n"), None
                if text.strip():
                    fence = "`" * max((len(ticks) + 1 for ticks in re.findall("`{3,}", text)), default=3)
                    self._put([fence, *text.split("\n"), fence])
            case "pre":
                pass  # of another one, which is closed
            case "code" | "kbd" | "samp" if self._code is None:
                self._add("`")
            case "a":
                self._close_link()
            case _ if name in _BLOCKS:
                self._end_block()
                if name == "blockquote":
                    self._quotes, self._loose = max(self._quotes - 1, 0), True
                elif name in _LISTS:
                    del self._lists[-1:]
                    self._marker, self._loose = "", not self._lists
                elif name in {"li", "dd"} or name in _HEADINGS:
                    self._marker = ""  # even if it was empty
            case _:
                pass

    def _close_link(self) -> None:
        if self._link is not None:
            self._wrap(*self._link)
            self._link = None

    # ---- tables ----

    def _in_text_cell(self) -> bool:
        return bool(self._tables) and self._tables[-1].in_cell and not self._tables[-1].plain

    def _close_cell(self) -> None:
        if not self._tables or not self._tables[-1].in_cell:
            return
        table = self._tables[-1]
        if table.plain:
            self._end_block()
        else:
            table.rows = table.rows or [[]]
            table.rows[-1].append(self._take_inline().replace("\n", " ").replace("|", "\\|"))
        table.in_cell = False

    def _leave_cells(self) -> None:
        """Turn the table around a block that no cell can hold into a layout table."""
        if not self._tables or self._tables[-1].plain:
            return
        table = self._tables[-1]
        said = self._take_inline() if table.in_cell else ""
        table.plain = True
        self._show(table)
        table.rows = []
        if said:
            self._put(said.split("\n"))

    def _show(self, table: _HtmlTable) -> None:
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

    def _add(self, text: str) -> None:
        (self._inline if self._code is None else self._code).append(text)
        self.size += len(text)

    def _end_block(self) -> None:
        if self._code is not None:
            return
        if self._in_text_cell():
            self._add(" ")
        elif text := self._take_inline():
            self._put(text.split("\n"))

    def _take_inline(self) -> str:
        """The text since the last block, as lines without superfluous white space."""
        if self._link is not None:
            self._link = 0, None if self._wrap(*self._link) else self._link[1]
        said, self._inline = "".join(self._inline), []
        lines = [" ".join(line.split()) for line in said.split("\n")]
        return "\n".join(line for line in lines if line)

    def _wrap(self, begin: int, target: str | None) -> bool:
        """Add the target to the words of a link, unless it has none yet; returns True if it did."""
        said = "".join(self._inline[begin:])
        words = " ".join(said.split())
        if target is None or not words:
            return False
        before, after = " " * said[:1].isspace(), " " * said[-1:].isspace()
        self._inline[begin:] = [f"{before}[{words}]({target}){after}"]
        self.size += len(target) + 4
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


def _join_link(base: str, href: str) -> str | None:
    given = "".join(strip_invisible(href[:_LONGEST_LINK]).split())
    try:
        found = urljoin(base, given) if given else ""
    except ValueError:
        return None
    whole = len(href) <= _LONGEST_LINK and len(found) <= MAX_URL
    return found if whole and found.lower().startswith(("http://", "https://", "mailto:")) else None


# Control characters, direction marks, zero-width characters, and tags that spell invisible ASCII.
_INVISIBLE: Final = re.compile(
    "[\x00-\x08\x0b\x0e-\x1f\x7f-\x9f\u00ad\u200b\u202a-\u202e\u2060-\u2069\ufeff\U000e0000-\U000e0fff]"
)


def strip_invisible(text: str) -> str:
    """Text without characters that a model sees and a reader does not."""
    return text if text.isascii() and text.isprintable() else _INVISIBLE.sub("", text)


# ---- media types and charsets ----

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
# The charsets of the web. Python knows others; some are slow, some are not charsets at all.
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

    kind: Literal["page", "text", "file"]
    media_type: str


def media_type_of(header: str) -> str:
    """The media type in a Content-Type header, in lower case; empty if it has none."""
    named = header.partition(";")[0].strip().lower()
    return named if re.fullmatch(r"[\w.+-]{1,100}/[\w.+-]{1,100}", named, re.ASCII) else ""


def classify_content(header: str, head: bytes) -> ShowableContent | str:
    """The kind of a body, by its Content-Type and its first bytes; or the reason why it can't be shown.

    The bytes decide about files and binaries, so that an image for a model really is one.
    """
    named = media_type_of(header)
    magic = next((kind for pattern, kind in _MAGIC if pattern.match(head)), None)
    if magic is not None:
        return ShowableContent("file", magic)
    if named in _FILES:
        return f"it says that it is {named}, but it is not"
    unspecified = named in _UNSPECIFIED_TYPES
    textual = named.startswith("text/") or named in _TEXTUAL or named.endswith(("+json", "+xml", "+yaml"))
    if not unspecified and not textual:
        return f"it is {named}; pages, text, JSON, PDF, PNG, JPEG, GIF and WebP can be shown"
    start = head[:1024]
    wide = any(start.startswith(mark) for mark, _ in _MARKS) or (_declared_charset(header) or "").startswith("utf-16")
    if b"\0" in start and not wide:
        though = f", though it says {named}" if named else ""
        return f"it is binary, of no kind that can be shown{though}"
    if named in _PAGES or (unspecified and _LOOKS_LIKE_PAGE.match(start)):
        return ShowableContent("page", named if named in _PAGES else "text/html")
    return ShowableContent("text", "text/plain" if unspecified else named)


def decode_body(data: bytes, header: str, *, page: bool, whole: bool) -> str:
    """The text in `data`. Bytes outside its charset become replacement characters, never an error.

    `whole` is False for a truncated body: a character cut in two is then left out.
    """
    charset = next((charset for mark, charset in _MARKS if data.startswith(mark)), None) or _declared_charset(header)
    if charset is None and page and (meta := _META.search(data[:2048])) is not None:
        charset = _known_charset(meta[1].decode("ascii", "replace"))
        if charset is not None and charset.startswith("utf-16"):
            charset = "utf-8"  # the tag was read byte by byte
    if charset is None:
        try:
            return _decode(data, "utf-8", "strict", final=whole)
        except UnicodeDecodeError:
            # A text with a few broken characters is UTF-8.
            start = data[:65_536].decode("utf-8", "replace")
            is_utf8 = start.count("\ufffd") * 100 < sum(char > "\x7f" for char in start)
            charset = "utf-8" if is_utf8 else "cp1252"
    return _decode(data, charset, "replace", final=whole)


def _decode(data: bytes, charset: str, errors: str, *, final: bool) -> str:
    return codecs.getincrementaldecoder(charset)(errors).decode(data, final).removeprefix("\ufeff")


def _declared_charset(header: str) -> str | None:
    found = _CHARSET.search(header)
    return _known_charset(found[1]) if found else None


def _known_charset(label: str) -> str | None:
    return _CHARSETS.get(re.sub(r"[\W_]", "", label.lower()))


# ---- the report for the model ----


def render_page(
    url: str, hops: int, media_type: str, page: WebPage, *, start: int, most: int, cut_at: int | None = None
) -> str:
    """At most `most` characters of a page from `start` on, below URL, title, type and extent.

    `url` is the one after all redirects, `cut_at` the limit in bytes if the body was longer.
    """
    whole = len(page.text)
    begin = min(start, whole)
    part = page.text[begin : begin + most]
    end = begin + len(part)
    if end < whole:
        line = part.rfind("\n") + 1
        # The part ends at a line end, unless that drops more than a fifth of it.
        part = part[:line] if line and (len(part) - line) * 5 <= len(part) else part
        end = begin + len(part)
    redirects = f" (after {hops} redirect{'s' if hops > 1 else ''})" if hops else ""
    lines = [f"URL: {url}{redirects}"]
    lines += [f"Title: {page.title}"] if page.title else []
    lines += [f"Type: {media_type}"] if media_type else []
    cut = f"; only the first {cut_at:,} bytes were read" if cut_at is not None else ""
    cut += "; the page goes on, but no further than this is read" if page.cut else ""
    if not whole:
        lines.append("It is empty.")
    elif begin == 0 and end == whole:
        lines.append(f"Characters: {whole:,}{cut}")
    elif begin >= whole:
        lines.append(f"Characters: {whole:,}{cut}; there is nothing from {begin:,} on")
    else:
        more = f"; go on with start={end}" if end < whole else ""
        lines.append(f"Characters: {begin:,} to {end:,} of {whole:,}{cut}{more}")
    return "\n".join(lines) + f"\n\n{part}".rstrip()
