"""How a call failed, in words that the model can act on, as the journal keeps them. Pure."""

from __future__ import annotations

import difflib
import unicodedata
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final, cast

import msgspec

from holdfast.effects.values import printable
from holdfast.records import ErrorInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from holdfast.messages import ToolCall
    from holdfast.tools.definition import Complaint


MAX_TEXT: Final = 2_000
"""Longest text about a failed call, in characters."""
MAX_NAMES: Final = 50
"""How many tools are listed to a model that asked for one that is not there."""
MAX_MEMBERS: Final = 20
"""How many errors of a group are told."""
MAX_NAME: Final = 100
"""Longest name of a kind of error, in characters."""
_SHOWN: Final = 200


def raised(error: BaseException, clean: Callable[[str], str] = str) -> ErrorInfo:
    """What the tool raised: its kind and its message on one line, without the traceback.

    A group of errors is told as its members; what holds them together means nothing to a model.
    """
    found = leaves(error)
    first = next(found)
    rest = list(islice(found, MAX_MEMBERS - 1))
    if not rest:
        return ErrorInfo(_kind(first), _message(first, clean))
    more = sum(1 for _ in found)
    said = [said_by(leaf, clean) for leaf in (first, *rest)]
    told = shorten("; ".join(said), MAX_TEXT - 100)
    return ErrorInfo(_kind(error), f"{told}; and {more:,} more" if more else told)


def said_by(error: BaseException, clean: Callable[[str], str] = str) -> str:
    """An error on one line, whatever it does when it is asked."""
    return f"{_kind(error)}: {_message(error, clean)}".removesuffix(": ")


def leaves(error: BaseException) -> Iterator[BaseException]:
    """The errors in a group, however deep; or the error itself."""
    left = [error]
    while left:
        here = left.pop()
        if isinstance(here, BaseExceptionGroup):
            left.extend(reversed(cast("BaseExceptionGroup[BaseException]", here).exceptions))
        else:
            yield here


def complained(complaint: Complaint) -> ErrorInfo:
    """The arguments do not fit."""
    return ErrorInfo("InvalidArguments", shorten(complaint.text, MAX_TEXT))


def malformed(call: ToolCall) -> ErrorInfo:
    """The arguments are no JSON object at all."""
    came = f": {shorten(call.malformed, _SHOWN)!r}" if call.malformed else ""
    said = f"The arguments of {shorten(call.name, 64)} are not a JSON object{came}. Call it again with one."
    return ErrorInfo("InvalidArguments", said)


def unknown_tool(name: str, known: Iterable[str]) -> ErrorInfo:
    """No tool has this name: the model is told which there are, and which one it may have meant."""
    names = list(known)
    if not names:
        return ErrorInfo("ToolUnknown", f"There is no tool {shorten(name, 64)!r}: there are no tools.")
    close = difflib.get_close_matches(name[:64], names, n=1)
    meant = f" Did you mean {close[0]!r}?" if close else ""
    more = f" and {len(names) - MAX_NAMES:,} more" if len(names) > MAX_NAMES else ""
    listed = shorten(", ".join(names[:MAX_NAMES]), MAX_TEXT - _SHOWN) + more
    return ErrorInfo("ToolUnknown", f"There is no tool {shorten(name, 64)!r}.{meant} The tools are: {listed}.")


def timed_out(name: str, seconds: float, *, left: bool = False) -> ErrorInfo:
    """A tool that may be repeated took longer than it may and was stopped; or it could not be, and was `left`."""
    late = f"{name} did not finish within {seconds:g} s"
    ended = "could not be stopped: it goes on by itself, nobody waits for it, and it starts no more processes"
    said = f"{late} and {ended if left else 'was stopped'}. It is safe to call it again."
    return ErrorInfo("ToolTimeout", said)


def shorten(text: str, limit: int) -> str:
    """`text`, or its beginning with the count of what is missing, within `limit` characters."""
    if len(text) <= limit:
        return text
    end = f"... ({len(text):,} characters)"
    return text[: max(limit - len(end), 0)] + end


def _kind(error: BaseException) -> str:
    # Not `__name__` as the class gives it: a metaclass may answer anything.
    name = cast("str", type.__dict__["__name__"].__get__(type(error)))
    return printable(name[:MAX_NAME])


def _message(error: BaseException, clean: Callable[[str], str]) -> str:
    try:
        text = clean(str(error))  # before it is cut: half a secret is one, too
        # A subclass of `str` may do anything in its methods, so it is made a plain one.
        text = str.__getitem__(text, slice(0, 4 * MAX_TEXT)) if type(text) is not str else text[: 4 * MAX_TEXT]
    except BaseException:  # noqa: BLE001  an error that can't even be shown must not hide that it happened
        return ""
    if not text and isinstance(error, MemoryError):
        return "it ran out of memory"
    # No traceback; a huge message is not split into words before it is cut.
    return printable(shorten(" ".join(text.split()), MAX_TEXT - 100))


_ROOM: Final = 400
"""For the note in the middle, in characters."""
_BACK: Final = 32
"""How many characters one seen character may have; more is noise, and is cut."""
_LONGEST_RUN: Final = 65_536
_JOINER: Final = "\u200d"
_MODIFIERS: Final = range(0x1F3FB, 0x1F400)  # skin tones
_FLAGS: Final = range(0x1F1E6, 0x1F200)  # two make one flag
_HIGH: Final = range(0xD800, 0xDC00)
_LOW: Final = range(0xDC00, 0xE000)


@dataclass(frozen=True, slots=True)
class Whole:
    """Where the whole text can be read."""

    id: str
    """Of the attachment that holds it."""
    reader: str
    """The tool that reads it."""


@dataclass(frozen=True, slots=True)
class Lost:
    """The whole text is larger than what is kept of one result; sizes in bytes."""

    size: int
    limit: int


@dataclass(frozen=True, slots=True)
class Cut:
    """A text that was cut, and what is missing from it."""

    text: str
    characters: int
    """Of the whole."""
    missing: int
    """Characters that were left out."""


def cut(text: str, limit: int, whole: Whole | Lost | None = None, *, total: int | None = None) -> Cut | None:
    """`text` within `limit` characters; None if it fits as it is.

    `total` is the number of characters there were where `text` itself is only the beginning of them.
    """
    length = len(text)
    total = length if total is None else total
    if length <= limit and total <= length:
        return None
    room = max(limit - _ROOM, 2)
    begin = _head(text, room // 2)
    end = max(_tail(text, length - (room - room // 2)), begin)
    missing = total - begin - (length - end)
    head, tail = text[:begin], text[end:]
    note = _note(text, begin, end, missing, whole)
    gap = "" if head.endswith("\n") or not head else "\n"
    return Cut(f"{head}{gap}{note}\n{tail}", total, missing)


def is_boundary(text: str, at: int) -> bool:
    """Whether `text` may be cut before the character at `at` without breaking what is seen as one character."""
    if at <= 0 or at >= len(text):
        return True
    before, after = text[at - 1], text[at]
    if before == "\r" and after == "\n":
        return False
    code, left = ord(after), ord(before)
    if (code in _LOW and left in _HIGH) or _JOINER in (before, after) or code in _MODIFIERS:
        return False
    if code in _FLAGS and left in _FLAGS:
        return _flags_before(text, at) % 2 == 0
    # Marks that sit on the character before them; among them are the selectors of a variant.
    return not unicodedata.category(after).startswith("M")


def _head(text: str, most: int) -> int:
    """Where the beginning ends: after the last line that fits, or within it if it is most of what there is."""
    line = text.rfind("\n", most // 2, most) + 1
    return line or _back(text, most)


def _tail(text: str, least: int) -> int:
    """Where the end begins."""
    if text[least - 1 : least] == "\n":
        return least
    half = least + (len(text) - least) // 2
    line = text.find("\n", least, half) + 1
    return line or _forth(text, least)


def _back(text: str, at: int) -> int:
    return next((place for place in range(at, max(at - _BACK, 0), -1) if is_boundary(text, place)), at)


def _forth(text: str, at: int) -> int:
    return next((place for place in range(at, min(at + _BACK, len(text))) if is_boundary(text, place)), at)


def _flags_before(text: str, at: int) -> int:
    count = 0
    while count < at and count < _LONGEST_RUN and ord(text[at - count - 1]) in _FLAGS:
        count += 1
    return count


def _note(text: str, begin: int, end: int, missing: int, whole: Whole | Lost | None) -> str:
    """What is missing, and how to read it."""
    lines = text.count("\n", begin, end)
    of_lines = f" ({lines:,} lines)" if lines else ""
    said = f"[... {missing:,} characters{of_lines} are left out here."
    if whole is None:
        return f"{said} You have no tool that reads them: ask for less.]"
    if isinstance(whole, Lost):
        kept = f"the whole result is {whole.size:,} bytes, and at most {whole.limit:,} are kept"
        return f"{said} They are gone: {kept}. Ask for less.]"
    start = text.count("\n", 0, begin) + 1
    line = text.rfind("\n", 0, begin) + 1
    skip = len(text[line:begin].encode("utf-8", "backslashreplace"))
    within = f", skip={skip}" if skip else ""
    return f'{said} Read them with {whole.reader}(id="{whole.id}", start={start}{within}).]'


SHARE: Final = 0.1
"""How much of what is called text may be bytes that no text has."""
_LOOKED_AT: Final = 65_536
_CONTROLS: Final = bytes({*range(32)} - {*b"\t\n\r\f\b\x1b"})


@dataclass(frozen=True, slots=True)
class Long:
    """A text that is too long for the model."""

    text: str
    limit: int

    def body(self) -> bytes:
        """The bytes to keep. What no encoding knows is written as its escape."""
        return self.text.encode("utf-8", "backslashreplace")

    def told(self, whole: Whole | Lost | None) -> Cut:
        """What the model gets; `whole` is where the rest was kept, or why it was not; None if nothing reads it."""
        made = cut(self.text, self.limit, whole)
        return made if made is not None else Cut(self.text, len(self.text), 0)


def as_text(value: object) -> object:
    """Bytes as the text that they hold, and text as text that can be stored; everything else as it is."""
    if isinstance(value, str):
        return _storable(value if type(value) is str else str.__str__(value))
    if isinstance(value, bytes | bytearray | memoryview):
        return _decoded(bytes(cast("bytes", value)))
    return value


def long_text(value: object, limit: int) -> Long | None:
    """`value`, if it is text of more than `limit` characters. Nothing is copied."""
    return Long(value, limit) if type(value) is str and len(value) > limit else None


def long_json(body: bytes, limit: int) -> Long | None:
    """The JSON in `body` as text to read, if it has more than `limit` characters: a line for each thing in it."""
    if len(body) <= limit or body[:1] == b'"':
        return None
    if len(body) <= 4 * limit and len(body.decode()) <= limit:
        return None
    return Long(msgspec.json.format(body, indent=1).decode(), limit)


def _storable(text: str) -> str:
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:  # a name of a file in another encoding, half of a pair
        return printable(text)
    return text


def _decoded(data: bytes) -> str:
    sample = data[:_LOOKED_AT]
    if _is_binary(sample):
        said = "return holdfast.File(data, media_type) to hand it over as a file"
        return f"[{len(data):,} bytes that are not text; {said}]"
    return data.decode("utf-8", "backslashreplace")


def _is_binary(sample: bytes) -> bool:
    """Whether much of it is what no text has: zeros, control characters, bytes of no encoding."""
    if not sample:
        return False
    strange = len(sample) - len(sample.translate(None, _CONTROLS))
    wrong = sample.decode("utf-8", "replace").count("\ufffd")
    return strange + wrong > SHARE * len(sample)


READER: Final = "read_result"
"""What the tool is called."""
MAX_LINES: Final = 2_000
"""Most lines of one page."""
PAGE_BYTES: Final = 40_000
"""Most bytes of one page; what it says around them fits into the limit of a result as well."""
_CONTINUES: Final = range(0x80, 0xC0)  # a byte that is not the first of its character
_LONGEST_CHARACTER: Final = 4


@dataclass(frozen=True, slots=True)
class Page:
    """Some lines of a text."""

    text: str
    start: int
    """The number of its first line, from 1."""
    stop: int
    """The number of its last line; `start - 1` if there is none."""
    lines: int
    """How many lines there are."""
    next_start: int | None
    """The line to go on with; None at the end."""
    next_skip: int = 0
    """How many bytes of that line were on this page."""


def page(data: bytes, start: int, lines: int, skip: int = 0, room: int = PAGE_BYTES) -> Page:
    """Up to `lines` lines of `data` from line `start`, of which the first `skip` bytes are left out.

    A page holds whole lines, if they fit into `room` bytes; of a line that does not, it holds the part that does. Only
    the page is decoded. Bytes that are not UTF-8 are shown as their escapes.
    """
    count = data.count(b"\n") + (1 if data and not data.endswith(b"\n") else 0)
    if start > count:
        return Page("", start, start - 1, count, None)
    begin = _line_at(data, start)
    ending = data.find(b"\n", begin)
    begin = _aligned(data, min(begin + skip, len(data) if ending < 0 else ending))
    end = _end_of(data, begin, lines)
    if end - begin > room:
        line = data.rfind(b"\n", begin, begin + room) + 1
        end = line or _aligned_back(data, begin + room, begin)
    text = data[begin:end].decode("utf-8", "backslashreplace")
    passed = data.count(b"\n", begin, end)
    if end >= len(data):
        return Page(text, start, count, count, None)
    if data[end - 1 : end] == b"\n":
        return Page(text, start, start + passed - 1, count, start + passed)
    here = data.rfind(b"\n", 0, end) + 1
    return Page(text, start, start + passed, count, start + passed, end - here)


def shown(found: Page, id: str, tool: str = READER) -> str:
    """A page as a model reads it: which lines these are, the lines, and how to go on with `tool`."""
    if found.stop < found.start:
        return f"[There are only {found.lines:,} lines.]"
    head = f"[Lines {found.start:,} to {found.stop:,} of {found.lines:,}]"
    end = "" if found.text.endswith("\n") else "\n"
    if found.next_start is None:
        return f"{head}\n{found.text}{end}[That is the end.]"
    skip = f", skip={found.next_skip}" if found.next_skip else ""
    return f'{head}\n{found.text}{end}[Go on with {tool}(id="{id}", start={found.next_start}{skip}).]'


def _line_at(data: bytes, number: int) -> int:
    """Where line `number` begins. Halves are counted, so that it takes one pass and no copy."""
    if number == 1:
        return 0
    low, high, left = 0, len(data), number - 1
    while high - low > 1:
        middle = (low + high) // 2
        before = data.count(b"\n", low, middle)
        if before >= left:
            high = middle
        else:
            left -= before
            low = middle
    return high


def _end_of(data: bytes, begin: int, lines: int) -> int:
    end = begin
    for _ in range(lines):
        found = data.find(b"\n", end)
        if found < 0:
            return len(data)
        end = found + 1
    return end


def _aligned(data: bytes, at: int) -> int:
    """The next place from `at` on where a character begins."""
    return next((n for n in range(at, min(at + _LONGEST_CHARACTER, len(data))) if data[n] not in _CONTINUES), at)


def _aligned_back(data: bytes, at: int, least: int) -> int:
    places = range(at, max(at - _LONGEST_CHARACTER, least), -1)
    return next((n for n in places if data[n : n + 1] and data[n] not in _CONTINUES), at)
