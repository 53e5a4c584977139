"""The front matter of a SKILL.md: the part of YAML that such files need, read strictly. Pure.

    ---
    name: pdf-forms
    description: Fills in PDF forms. Use it when somebody asks for one.
    ---
    The instructions, which are not read before somebody asks for them.

`name` and `description` are text: plain on one or more lines, in quotes on one line, or a block after ``>`` or ``|``.
What YAML would take for something else is refused and not guessed at. Other fields may be there; nobody reads them.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from typing import Final

import msgspec

from holdfast.hands.skills.errors import SkillInvalid

MAX_NAME: Final = 64
MAX_DESCRIPTION: Final = 1_024

_FRONT: Final = re.compile(
    rb"\A(?:\xef\xbb\xbf)?---[ \t]*\r?\n(?P<fields>.*?)^---[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE
)
_BREAK: Final = re.compile(r"\r\n|\n|\r")
_FIELD: Final = re.compile(r"(?P<name>[A-Za-z][A-Za-z0-9_-]*):(?:[ \t]+(?P<value>.*))?")
_NAME: Final = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_BLOCK: Final = re.compile(r"[|>][+-]?")
_SPECIAL: Final = re.compile(r"[\[\]{}&*!|>%@`#,'\"]|[-?:](?:\s|\Z)")
"""How something begins that is not plain text in YAML."""
_AMBIGUOUS: Final = re.compile(r":(?:\s|\Z)|\s#")
_NOTHING: Final = frozenset(("", "~", "null", "Null", "NULL"))
_QUOTE_IT: Final = "put the text in double quotes"
_HIDDEN: Final = frozenset("\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""What turns the direction of writing: a list that shows it may be read as another one."""


@dataclass(frozen=True, slots=True)
class Front:
    """What a skill says of itself before it is loaded. `size` is where its body begins, in bytes."""

    name: str
    description: str
    size: int


@dataclass(frozen=True, slots=True)
class _Field:
    line: int
    value: str
    below: tuple[str, ...]
    """The indented lines that follow."""


def read_front(data: bytes, place: str, folder: str) -> Front:
    """The front matter at the beginning of `data`; `SkillInvalid` says what is wrong with it."""
    found = _FRONT.match(data)
    if found is None:
        raise SkillInvalid(place, "it does not begin with a front matter between two lines of '---', or it is too long")
    try:
        text = found["fields"].decode()
    except UnicodeDecodeError as error:
        raise SkillInvalid(place, "its front matter is not UTF-8 text") from error
    fields = _fields(text, place)
    name = _text(fields, "name", place)
    if len(name) > MAX_NAME or not _NAME.fullmatch(name):
        raise SkillInvalid(place, f"its name has small letters, digits and single dashes, at most {MAX_NAME} of them")
    if name != folder:
        raise SkillInvalid(
            place, f"its name is {name!r}, that of its folder is {folder[:MAX_NAME]!r}; make them the same"
        )
    return Front(name, _described(_text(fields, "description", place), place), found.end())


def _described(text: str, place: str) -> str:
    if len(text) > MAX_DESCRIPTION:
        raise SkillInvalid(place, f"its description has {len(text):,} characters, the limit is {MAX_DESCRIPTION:,}")
    for char in text:
        if char in _HIDDEN or unicodedata.category(char) in {"Cc", "Cs", "Cn", "Co"}:
            raise SkillInvalid(place, f"its description has the character U+{ord(char):04X}; take it out")
    return text


def _fields(text: str, place: str) -> dict[str, _Field]:
    lines = _BREAK.split(text)
    found: dict[str, _Field] = {}
    at = 0
    while at < len(lines):
        line, number = lines[at], at + 2  # the first line of the file is the fence
        at += 1
        if not line.strip() or line.startswith("#"):
            continue
        match = _FIELD.fullmatch(line.rstrip())
        if match is None:
            raise _objection(place, number, "a field such as 'name: value' is wanted")
        if match["name"] in found:
            raise _objection(place, number, f"the field {match['name']!r} is there twice")
        begin = at
        while at < len(lines) and _is_below(lines[at]):
            at += 1
        found[match["name"]] = _Field(number, (match["value"] or "").strip(), tuple(lines[begin:at]))
    return found


def _is_below(line: str) -> bool:
    """Whether a line belongs to the field before it. A list may stand there without being indented."""
    return not line.strip() or line[0] in " \t" or line.startswith("- ")


def _text(fields: dict[str, _Field], name: str, place: str) -> str:
    """A field as text on one line."""
    field = fields.get(name)
    if field is None:
        raise SkillInvalid(place, f"its front matter has no field {name!r}")
    value, below = field.value, [line for line in field.below if line.strip()]
    if any(line[0] != " " for line in below):
        raise _objection(place, field.line, f"{name!r} is text; lines that go on with it begin with spaces")
    if value[:1] in {"'", '"'}:
        if below:
            raise _objection(place, field.line, "text in quotes stands on one line here; use '>' for more lines")
        text = _unquoted(value, place, field.line)
    elif _BLOCK.fullmatch(value):
        text = " ".join(below)
    else:
        text = _plain(value, below, place, field.line)
    text = " ".join(text.split())
    if not text:
        raise _objection(place, field.line, f"{name!r} is empty")
    return text


def _plain(value: str, below: list[str], place: str, line: int) -> str:
    if value in _NOTHING:
        if below:
            raise _objection(place, line, "text is wanted, not a list or a map")
        return ""
    text = " ".join((value, *(more.strip() for more in below)))
    if _SPECIAL.match(value) or _AMBIGUOUS.search(text):
        raise _objection(place, line, f"it has signs that mean something else in YAML; {_QUOTE_IT}")
    return text


def _unquoted(value: str, place: str, line: int) -> str:
    if value[0] == '"':
        try:
            return msgspec.json.decode(value, type=str)
        except (msgspec.DecodeError, UnicodeEncodeError) as error:
            raise _objection(place, line, "what is in double quotes is written as in JSON") from error
    inner = value[1:-1]
    if len(value) < 2 or value[-1] != "'" or "'" in inner.replace("''", ""):
        raise _objection(place, line, f"the quotes do not match; {_QUOTE_IT}")
    return inner.replace("''", "'")


def _objection(place: str, line: int, reason: str) -> SkillInvalid:
    return SkillInvalid(place, f"line {line:,}: {reason}")
