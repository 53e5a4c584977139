"""Results of tool calls as models read them: errors in words, long texts cut, and pages of a kept result. Pure."""

from __future__ import annotations

import difflib
import unicodedata
from codecs import getincrementaldecoder
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Final, cast

import msgspec

from holdfast.effects.canonical import printable
from holdfast.records import ErrorInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from holdfast.messages import ToolCall
    from holdfast.tools.definition import Complaint


# ---- errors ----

MAX_TEXT: Final = 2_000
"""Longest text about a failed call, in characters."""
MAX_NAMES: Final = 50
"""Most tools listed to a model that called an unknown one."""
MAX_MEMBERS: Final = 20
"""Most errors of a group that a model reads."""
MAX_NAME: Final = 100
"""Longest name of an error's class, in characters."""
_LONGEST_VALUE: Final = 200


def error_from_exception(error: BaseException, clean: Callable[[str], str] = str) -> ErrorInfo:
    """The error that a tool raised, for the model: class and message on one line, without the traceback.

    A group becomes its members. `clean` removes secrets.
    """
    found = leaf_errors(error)
    first = next(found)
    rest = list(islice(found, MAX_MEMBERS - 1))
    if not rest:
        return ErrorInfo(_class_name(first), _message(first, clean))
    more = sum(1 for _ in found)
    said = [describe_error(leaf, clean) for leaf in (first, *rest)]
    told = shorten("; ".join(said), MAX_TEXT - 100)
    return ErrorInfo(_class_name(error), f"{told}; and {more:,} more" if more else told)


def describe_error(error: BaseException, clean: Callable[[str], str] = str) -> str:
    """An error on one line. Never raises, even if the error's own methods do."""
    return f"{_class_name(error)}: {_message(error, clean)}".removesuffix(": ")


def leaf_errors(error: BaseException) -> Iterator[BaseException]:
    """The errors of a group, at any depth; or the error itself."""
    left = [error]
    while left:
        here = left.pop()
        if isinstance(here, BaseExceptionGroup):
            left.extend(reversed(cast("BaseExceptionGroup[BaseException]", here).exceptions))
        else:
            yield here


def error_for_complaint(complaint: Complaint) -> ErrorInfo:
    """The arguments are not valid."""
    return ErrorInfo("InvalidArguments", shorten(complaint.text, MAX_TEXT))


def error_for_malformed_call(call: ToolCall) -> ErrorInfo:
    """The arguments are not a JSON object."""
    came = f": {shorten(call.malformed, _LONGEST_VALUE)!r}" if call.malformed else ""
    said = f"The arguments of {shorten(call.name, 64)} are not a JSON object{came}. Call it again with one."
    return ErrorInfo("InvalidArguments", said)


def error_for_unknown_tool(name: str, known: Iterable[str]) -> ErrorInfo:
    """No tool has this name: list the tools, and the closest name."""
    names = list(known)
    if not names:
        return ErrorInfo("ToolUnknown", f"There is no tool {shorten(name, 64)!r}: there are no tools.")
    close = difflib.get_close_matches(name[:64], names, n=1)
    meant = f" Did you mean {close[0]!r}?" if close else ""
    more = f" and {len(names) - MAX_NAMES:,} more" if len(names) > MAX_NAMES else ""
    listed = shorten(", ".join(names[:MAX_NAMES]), MAX_TEXT - _LONGEST_VALUE) + more
    return ErrorInfo("ToolUnknown", f"There is no tool {shorten(name, 64)!r}.{meant} The tools are: {listed}.")


def error_for_timeout(name: str, seconds: float, *, left: bool = False) -> ErrorInfo:
    """A repeatable tool exceeded its timeout and was stopped. `left`: it could not be stopped."""
    late = f"{name} did not finish within {seconds:g} s"
    ended = "could not be stopped: it goes on by itself, its result is dropped, and it starts no more processes"
    said = f"{late} and {ended if left else 'was stopped'}. It is safe to call it again."
    return ErrorInfo("ToolTimeout", said)


def shorten(text: str, limit: int) -> str:
    """`text` within `limit` characters; a longer one ends with its full length."""
    if len(text) <= limit:
        return text
    end = f"... ({len(text):,} characters)"
    return text[: max(limit - len(end), 0)] + end


def _class_name(error: BaseException) -> str:
    # Not `error.__class__.__name__`: a metaclass may return anything.
    name = cast("str", type.__dict__["__name__"].__get__(type(error)))
    return printable(name[:MAX_NAME])


def _message(error: BaseException, clean: Callable[[str], str]) -> str:
    try:
        text = clean(str(error))  # before it is cut: half a secret is one, too
        # A subclass of `str` may do anything in its methods, so it is made a plain one.
        text = str.__getitem__(text, slice(0, 4 * MAX_TEXT)) if type(text) is not str else text[: 4 * MAX_TEXT]
    except BaseException:  # an error that can't even be shown must not hide that it happened
        return ""
    if not text and isinstance(error, MemoryError):
        return "it ran out of memory"
    # No traceback; a huge message is not split into words before it is cut.
    return printable(shorten(" ".join(text.split()), MAX_TEXT - 100))


# ---- cutting of long texts ----

_NOTE_ROOM: Final = 400
"""Characters for the note in the middle."""
_LONGEST_GLYPH: Final = 32
"""Most code points of one visible character; a longer one is noise, and is cut."""
_MAX_FLAGS: Final = 65_536
_FLAGS: Final = range(0x1F1E6, 0x1F200)  # two make one flag


class KeptResult(msgspec.Struct, frozen=True):
    """The attachment that keeps the whole text."""

    id: str
    reader: str
    """The tool that reads it."""


class OversizedResult(msgspec.Struct, frozen=True):
    """The whole text was too large to be kept; sizes in bytes."""

    size: int
    limit: int


def cut_text(text: str, limit: int, whole: KeptResult | OversizedResult | None = None) -> str:
    """Cut `text` in its middle to `limit` characters; a text that fits is unchanged.

    `whole` is the place of the full text, or the reason why it is not kept; None if the model has no tool to read it.
    """
    length = len(text)
    if length <= limit:
        return text
    room = max(limit - _NOTE_ROOM, 2)
    begin = _head_end(text, room // 2)
    end = max(_tail_start(text, length - (room - room // 2)), begin)
    head, tail = text[:begin], text[end:]
    gap = "" if head.endswith("\n") or not head else "\n"
    return f"{head}{gap}{_note(text, begin, end, whole)}\n{tail}"


def is_boundary(text: str, at: int) -> bool:
    """True if a cut before the character at `at` leaves every visible character whole."""
    if at <= 0 or at >= len(text):
        return True
    before, after = text[at - 1], text[at]
    if before == "\r" and after == "\n":
        return False
    code, left = ord(after), ord(before)
    if 0xD800 <= left < 0xDC00 <= code < 0xE000:  # two halves of one character
        return False
    if "\u200d" in (before, after) or 0x1F3FB <= code < 0x1F400:  # a joiner, a skin tone
        return False
    if code in _FLAGS and left in _FLAGS:
        count = 1
        while count < at and count < _MAX_FLAGS and ord(text[at - count - 1]) in _FLAGS:
            count += 1
        return count % 2 == 0
    # Marks that sit on the character before them; among them are the selectors of a variant.
    return not unicodedata.category(after).startswith("M")


def _head_end(text: str, most: int) -> int:
    """The end of the last line within `most` characters; inside a line if that line is more than half of them."""
    line = text.rfind("\n", most // 2, most) + 1
    places = range(most, max(most - _LONGEST_GLYPH, 0), -1)
    return line or next((at for at in places if is_boundary(text, at)), most)


def _tail_start(text: str, least: int) -> int:
    if text[least - 1 : least] == "\n":
        return least
    line = text.find("\n", least, least + (len(text) - least) // 2) + 1
    places = range(least, min(least + _LONGEST_GLYPH, len(text)))
    return line or next((at for at in places if is_boundary(text, at)), least)


def _note(text: str, begin: int, end: int, whole: KeptResult | OversizedResult | None) -> str:
    lines = text.count("\n", begin, end)
    of_lines = f" ({lines:,} lines)" if lines else ""
    said = f"[... {end - begin:,} characters{of_lines} are left out here."
    if whole is None:
        return f"{said} You have no tool that reads them: ask for less.]"
    if isinstance(whole, OversizedResult):
        kept = f"the whole result is {whole.size:,} bytes, and at most {whole.limit:,} are kept"
        return f"{said} They are gone: {kept}. Ask for less.]"
    start = text.count("\n", 0, begin) + 1
    line = text.rfind("\n", 0, begin) + 1
    skip = len(text[line:begin].encode("utf-8", "backslashreplace"))
    within = f", skip={skip}" if skip else ""
    return f'{said} Read them with {whole.reader}(id="{whole.id}", start={start}{within}).]'


# ---- output that comes in pieces: only its beginning and its end are kept ----


class ShownOutput(msgspec.Struct, frozen=True):
    """The part of an output that is shown."""

    text: str
    size: int
    """Bytes of the whole output."""
    left_out: int
    """Bytes that are not shown."""
    replaced: bool
    """True if some shown bytes were not UTF-8."""


class OutputClip:
    """Collects output and keeps about three times `limit` bytes of it at most: its beginning and its end."""

    __slots__ = ("_head", "_lines", "_room", "_size", "_tail")

    def __init__(self, limit: int) -> None:
        self._room = limit // 2
        self._head = bytearray()
        self._tail = bytearray()
        self._size = 0
        self._lines = 0

    def add(self, chunk: bytes) -> None:
        self._size += len(chunk)
        self._lines += chunk.count(b"\n")
        free = self._room - len(self._head)
        if free > 0:
            self._head += chunk[:free]
            chunk = chunk[free:]
        self._tail += chunk[-self._room :] if len(chunk) > self._room else chunk
        if len(self._tail) > 2 * self._room:  # not with every chunk: each time costs a copy
            del self._tail[: -self._room]

    def shown(self) -> ShownOutput:
        """The kept output, with a line in place of the missing middle."""
        tail = bytes(self._tail[-self._room :]) if len(self._tail) > self._room else bytes(self._tail)
        head = bytes(self._head)
        if len(head) + len(tail) == self._size:
            text, replaced = _decode_output(head + tail)
            return ShownOutput(text, self._size, 0, replaced)
        head = _trim_head(head)
        # From the first line of the tail; one long line is cut between two characters.
        line = tail.find(b"\n") + 1
        tail = tail[line:] if 0 < line < len(tail) else tail[_next_character(tail, 0) :]
        left_out = self._size - len(head) - len(tail)
        lines = self._lines - head.count(b"\n") - tail.count(b"\n")
        before, spoiled = _decode_output(head)
        after, also = _decode_output(tail)
        gap = "" if before.endswith("\n") else "\n"
        marker = f"{gap}[... {left_out:,} bytes, {lines:,} line ends left out ...]\n"
        return ShownOutput(before + marker + after, self._size, left_out, spoiled or also)


class OutputNotes:
    """Output as progress notes: whole lines, or a part of a line that does not end."""

    __slots__ = ("_data", "_limit")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._data = b""

    def add(self, chunk: bytes) -> None:
        """Add the next bytes; only the last ones are kept."""
        self._data = (self._data + chunk)[-4 * self._limit :]

    def take(self) -> str | None:
        """The output since the last note, at most the newest part; None if there is nothing to report."""
        end = self._data.rfind(b"\n") + 1
        if not end:
            if len(self._data) < self._limit:
                return None
            end = len(_trim_head(self._data))
        text, self._data = self._data[:end], self._data[end:]
        return self._note(text)

    def rest(self) -> str | None:
        text, self._data = self._data, b""
        return self._note(text)

    def _note(self, data: bytes) -> str | None:
        return _decode_output(data)[0].rstrip("\n")[-self._limit :] or None


def _decode_output(data: bytes) -> tuple[str, bool]:
    try:
        return data.decode(), False
    except UnicodeDecodeError:
        return data.decode(errors="replace"), True


def _trim_head(head: bytes) -> bytes:
    """The head up to the end of its last line; one long line is cut between two characters."""
    end = head.rfind(b"\n") + 1
    if end:
        return head[:end]
    decoder = getincrementaldecoder("utf-8")("replace")
    decoder.decode(head[-_LONGEST_CHARACTER:])
    return head[: len(head) - len(decoder.getstate()[0])]  # without the bytes of an incomplete character


# ---- text in results of tools ----

_CONTROLS: Final = bytes({*range(32)} - {*b"\t\n\r\f\b\x1b"})


def as_text(value: object) -> object:
    """Bytes as their text, and text in a storable form; other values unchanged."""
    if isinstance(value, str):
        text = value if type(value) is str else str.__str__(value)
        try:
            text.encode()
        except UnicodeEncodeError:  # a name of a file in another encoding, half of a pair
            return printable(text)
        return text
    if isinstance(value, bytes | bytearray | memoryview):
        data = bytes(cast("bytes", value))
        sample = data[:65_536]
        strange = len(sample) - len(sample.translate(None, _CONTROLS))
        # Bytes that never occur in text: of a text, they are at most a tenth.
        if strange + sample.decode("utf-8", "replace").count("\ufffd") > 0.1 * len(sample):
            said = "return holdfast.File(data, media_type) to hand it over as a file"
            return f"[{len(data):,} bytes that are not text; {said}]"
        return data.decode("utf-8", "backslashreplace")
    return value


def long_json(body: bytes, limit: int) -> str | None:
    """The JSON in `body`, indented, if it has more than `limit` characters."""
    if len(body) <= limit or body[:1] == b'"':
        return None
    if len(body) <= 4 * limit and len(body.decode()) <= limit:
        return None
    return msgspec.json.format(body, indent=1).decode()


# ---- pages of a kept result ----

RESULT_READER: Final = "read_result"
"""The name of the tool that reads a kept result."""
MAX_LINES: Final = 2_000
"""Most lines of one page."""
PAGE_BYTES: Final = 40_000
"""Most bytes of one page. With the words around it, a page fits into the limit of a result."""
_CONTINUATION_BYTES: Final = range(0x80, 0xC0)  # a byte that is not the first of its character
_LONGEST_CHARACTER: Final = 4


class ResultPage(msgspec.Struct, frozen=True):
    """Some lines of a kept result."""

    text: str
    start: int
    """Number of its first line, from 1."""
    stop: int
    """Number of its last line; `start - 1` if it is empty."""
    lines: int
    """Lines of the whole."""
    next_start: int | None
    """Line of the next page; None at the end."""
    next_skip: int = 0
    """Bytes of that line which this page already holds."""


def read_page(data: bytes, start: int, lines: int, skip: int = 0, room: int = PAGE_BYTES) -> ResultPage:
    """Read up to `lines` lines of `data` from line `start`, without the first `skip` bytes of that line.

    A page holds whole lines if they fit into `room` bytes, else part of one line. Only the page is decoded; bytes that
    are not UTF-8 become escapes.
    """
    count = data.count(b"\n") + bool(data and not data.endswith(b"\n"))
    if start > count:
        return ResultPage("", start, start - 1, count, None)
    begin = _after_lines(data, 0, start - 1, len(data))
    ending = data.find(b"\n", begin)
    begin = _next_character(data, min(begin + skip, len(data) if ending < 0 else ending))
    end = _after_lines(data, begin, lines, begin + room + 1)  # one byte too many: then the page is cut
    if end - begin > room:
        line = data.rfind(b"\n", begin, begin + room) + 1
        # The start of a character.
        places = range(begin + room, max(begin + room - _LONGEST_CHARACTER, begin), -1)
        end = line or next((at for at in places if data[at] not in _CONTINUATION_BYTES), begin + room)
    text = data[begin:end].decode("utf-8", "backslashreplace")
    passed = data.count(b"\n", begin, end)
    if end >= len(data):
        return ResultPage(text, start, count, count, None)
    if data[end - 1 : end] == b"\n":
        return ResultPage(text, start, start + passed - 1, count, start + passed)
    here = data.rfind(b"\n", 0, end) + 1
    return ResultPage(text, start, start + passed, count, start + passed, end - here)


def render_page(found: ResultPage, id: str, tool: str = RESULT_READER) -> str:
    """A page for the model: the line numbers, the lines, and the call of `tool` for the next page."""
    if found.stop < found.start:
        return f"[There are only {found.lines:,} lines.]"
    head = f"[Lines {found.start:,} to {found.stop:,} of {found.lines:,}]"
    end = "" if found.text.endswith("\n") else "\n"
    if found.next_start is None:
        return f"{head}\n{found.text}{end}[That is the end.]"
    skip = f", skip={found.next_skip}" if found.next_skip else ""
    return f'{head}\n{found.text}{end}[Go on with {tool}(id="{id}", start={found.next_start}{skip}).]'


def _after_lines(data: bytes, begin: int, lines: int, most: int) -> int:
    """Offset after `lines` line ends from `begin` on, up to the offset `most`. Counts in halves: one pass, no copy."""
    low, high, left = begin, min(most, len(data)), lines
    while left and high - low > 1:
        middle = (low + high) // 2
        before = data.count(b"\n", low, middle)
        if before >= left:
            high = middle
        else:
            left -= before
            low = middle
    return high if left else begin


def _next_character(data: bytes, at: int) -> int:
    return next(
        (n for n in range(at, min(at + _LONGEST_CHARACTER, len(data))) if data[n] not in _CONTINUATION_BYTES), at
    )


# ---- times ----

_LAST_SECOND: Final = 253_402_300_799_000  # the last second that has a date, in wall milliseconds
_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"))


def format_time(wall: int) -> str:
    """A wall time as a date in UTC, to the second."""
    at = datetime.fromtimestamp(min(max(wall, 0), _LAST_SECOND) // 1000, tz=UTC)
    return at.isoformat().replace("+00:00", "Z")


def format_duration(ms: float) -> str:
    """A duration in its two largest units."""
    seconds = max(ms, 0) / 1000
    if seconds < 60:
        return f"{seconds:.1f}".removesuffix(".0") + " s"
    rest = int(seconds)
    parts: list[str] = []
    for size, unit in _UNITS:
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count:,} {unit}")
    if rest:
        parts.append(f"{rest} s")
    return " ".join(parts[:2])
