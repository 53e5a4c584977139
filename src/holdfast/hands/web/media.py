"""What an answer is, by what its header says and by how its bytes begin; and its text, by its character set. Pure."""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

Kind: TypeAlias = Literal["page", "text", "file"]

_TEXTUAL: Final = frozenset(
    f"application/{name}"
    for name in (
        *("json", "xml", "javascript", "ecmascript", "x-javascript", "x-ndjson", "ndjson", "jsonl", "yaml", "x-yaml"),
        *("toml", "sql", "graphql", "x-sh", "rtf", "x-www-form-urlencoded", "x-httpd-php", "typescript", "x-tex"),
    )
)
_PAGES: Final = frozenset(("text/html", "application/xhtml+xml"))
_UNSAID: Final = frozenset(("", "application/octet-stream", "binary/octet-stream", "application/unknown"))
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

# The character sets of the web. Python knows others, of which some are slow and some are no character sets at all.
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
class Found:
    """An answer that can be shown: how, and as what."""

    kind: Kind
    media_type: str


@dataclass(frozen=True, slots=True)
class Unfit:
    """An answer that can't."""

    reason: str


def media_type_of(header: str) -> str:
    """The media type in a Content-Type header, in lower case; empty when there is none."""
    named = header.partition(";")[0].strip().lower()
    return named if re.fullmatch(r"[\w.+-]{1,100}/[\w.+-]{1,100}", named, re.ASCII) else ""


def judge(header: str, head: bytes) -> Found | Unfit:
    """What the answer is, by its Content-Type and its first bytes.

    The bytes have the last word about files and binaries: what is shown to a model as an image is one.
    """
    named = media_type_of(header)
    magic = next((kind for pattern, kind in _MAGIC if pattern.match(head)), None)
    if magic is not None:
        return Found("file", magic)
    if named in _FILES:
        return Unfit(f"it says that it is {named}, but it is not")
    if named in _UNSAID or _is_textual(named):
        return _judge_text(header, named, head)
    return Unfit(f"it is {named}; pages, text, JSON, PDF, PNG, JPEG, GIF and WebP can be shown")


def _is_textual(named: str) -> bool:
    return named.startswith("text/") or named in _TEXTUAL or named.endswith(("+json", "+xml", "+yaml"))


def _judge_text(header: str, named: str, head: bytes) -> Found | Unfit:
    start = head[:_SNIFFED]
    wide = any(start.startswith(mark) for mark, _ in _MARKS) or (_said(header) or "").startswith("utf-16")
    if b"\0" in start and not wide:
        return Unfit(f"it is binary, of no kind that can be shown{f', though it says {named}' if named else ''}")
    if named in _PAGES or (named in _UNSAID and _LOOKS_LIKE_PAGE.match(start)):
        return Found("page", named if named in _PAGES else "text/html")
    return Found("text", "text/plain" if named in _UNSAID else named)


# ---- character sets --------------------------------------------------------------------------------------------------


def decoded(data: bytes, header: str, *, page: bool, whole: bool) -> str:
    """The text in `data`. What is not in its character set is shown as a replacement character, never an error.

    `whole` is False for a body that was cut: a character that was cut in two is then left out.
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
    if marked or (said := _said(header)) is None:
        meta = _META.search(data[:_META_WITHIN]) if page and not marked else None
        named = _known(meta[1].decode("ascii", "replace")) if meta else None
        # Whoever could read the tag byte by byte did not read UTF-16.
        return marked or ("utf-8" if named and named.startswith("utf-16") else named)
    return said


def _said(header: str) -> str | None:
    found = _CHARSET.search(header)
    return _known(found[1]) if found else None


def _known(label: str) -> str | None:
    return _CHARSETS.get(re.sub(r"[\W_]", "", label.lower()))


def _is_mostly_utf8(data: bytes) -> bool:
    """Whether a text with a broken character or two is UTF-8 all the same."""
    start = data[:65_536].decode("utf-8", "replace")
    return start.count("\ufffd") * 100 < sum(char > "\x7f" for char in start)
