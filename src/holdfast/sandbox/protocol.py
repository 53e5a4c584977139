"""The messages between host and worker: events from the worker, and requests to it. Pure.

The format is that of the interpreter, which is foreign code: protocol buffers whose fields hold trees of values.
Messages of a worker are untrusted: anything invalid is a `MalformedMessage`, and nothing is read past its end.
"""

from __future__ import annotations

import struct
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from holdfast.sandbox.contract import CallError, CallOutcome, ForeignValue, ProgramLimits

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Mapping


# ---- fields ----

VARINT: Final = 0
FIXED: Final = 1
LENGTH: Final = 2
_SMALL: Final = 0x80
_MAX_BITS: Final = 70
_FIXED32: Final = 5
MAX_FIELDS: Final = 100_000
"""Most fields of a message: decoded, they take far more room."""


class MalformedMessage(Exception):
    """Bytes that no correct worker sends."""


def encode_number(value: int) -> bytes:
    """Encode a number of at least 0."""
    if value < _SMALL:
        return _BYTES[value]
    made = bytearray()
    while value >= _SMALL:
        made.append(value & 0x7F | _SMALL)
        value >>= 7
    made.append(value)
    return bytes(made)


def number_field(field: int, value: int) -> bytes:
    """A field with a number."""
    return encode_number(field << 3) + encode_number(value)


def bytes_field(field: int, content: bytes) -> bytes:
    """A field with bytes, a text or a message."""
    return encode_number(field << 3 | LENGTH) + encode_number(len(content)) + content


def text_field(field: int, value: str) -> bytes:
    """A field with a text. Half of a surrogate pair becomes a question mark."""
    return bytes_field(field, value.encode(errors="replace"))


def frame_message(message: bytes) -> bytes:
    """A message with its length before it."""
    return len(message).to_bytes(4, "little") + message


_BYTES: Final = tuple(bytes((value,)) for value in range(_SMALL))


def read_number(data: bytes, at: int) -> tuple[int, int]:
    """Decode a number; returns it and the offset after it."""
    value = data[at]
    at += 1
    if value < _SMALL:
        return value, at
    value &= 0x7F
    shift = 7
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < _SMALL:
            return value, at
        shift += 7
        if shift > _MAX_BITS:
            raise MalformedMessage("a number without an end")


def read_part(data: bytes, at: int, end: int) -> tuple[int, int]:
    """The begin and end of a field's content, from the offset after its tag."""
    size = data[at]
    at += 1
    if size >= _SMALL:
        size, at = read_number(data, at - 1)
    stop = at + size
    if stop > end:
        raise MalformedMessage("a field that is longer than its message")
    return at, stop


def read_fields(data: bytes, at: int, end: int) -> list[tuple[int, int, int]]:
    """The fields of a message: the tag, and its number and 0, or the begin and end of its content."""
    found: list[tuple[int, int, int]] = []
    while at < end:
        tag, at = read_number(data, at)
        kind = tag & 7
        if kind == VARINT:
            value, at = read_number(data, at)
            found.append((tag, value, 0))
        elif kind == LENGTH:
            start, at = read_part(data, at, end)
            found.append((tag, start, at))
        elif kind in {FIXED, _FIXED32}:
            start, at = at, at + (8 if kind == FIXED else 4)
            found.append((tag, start, at))
        else:
            raise MalformedMessage("a field of an unknown kind")
        if len(found) > MAX_FIELDS:
            raise MalformedMessage("more fields than any message has")
    if at != end:
        raise MalformedMessage("a field that is longer than its message")
    return found


class Fields:
    """The fields of a message by number; of a repeated one the last."""

    __slots__ = ("_data", "_found")

    def __init__(self, data: bytes, at: int, end: int) -> None:
        self._data = data
        self._found = {tag: (start, stop) for tag, start, stop in read_fields(data, at, end)}

    def number(self, field: int) -> int:
        return self._found.get(field << 3, (0,))[0]

    def part(self, field: int) -> tuple[int, int] | None:
        """The begin and end of a field's content, which may be a message."""
        return self._found.get(field << 3 | LENGTH)

    def content(self, field: int) -> bytes | None:
        found = self.part(field)
        return None if found is None else self._data[found[0] : found[1]]

    def text(self, field: int) -> str | None:
        found = self.content(field)
        return None if found is None else found.decode()


def read_numbers(data: bytes, at: int, end: int) -> list[int]:
    """Decode packed numbers."""
    chunk = data[at:end]
    if chunk.isascii():  # each number is one byte
        return list(chunk)
    found: list[int] = []
    while at < end:
        value, at = read_number(data, at)
        found.append(value)
    if at != end:
        raise MalformedMessage("numbers that are longer than their field")
    return found


# ---- values: a list of nodes, which refer to earlier nodes by index ----

_INT_LIMIT: Final = 2**63
_DOUBLE: Final = struct.Struct("<d")
_MAX_EXPANSION: Final = 8
"""Most times that the size of a value here may exceed its JSON size."""
_SPARE: Final = 1024


_NONE: Final = bytes_field(2, b"")
_TRUE: Final = number_field(4, 1)
_FALSE: Final = number_field(4, 0)
_SMALL_INTS: Final = tuple(bytes_field(2, number_field(5, value << 1)) for value in range(64))
_ONE_NODE: Final = number_field(1, 1)


def encode_values(*values: object) -> tuple[bytes, list[int]]:
    """The nodes of these values, and the index of each; `TypeError` for a value that a program can't have."""
    nodes: list[bytes] = []
    roots = [_add_node(value, nodes) for value in values]
    return number_field(1, len(nodes)) + b"".join(nodes), roots


def encode_value(value: object) -> tuple[bytes, int]:
    """The nodes of one value, and its index."""
    if type(value) is int and 0 <= value < len(_SMALL_INTS):
        return _ONE_NODE + _SMALL_INTS[value], 0
    made, roots = encode_values(value)
    return made, roots[0]


def _add_node(value: Any, nodes: list[bytes]) -> int:  # hosts may pass anything
    kind: type[object] = type(value)  # pyright: ignore[reportUnknownVariableType]  # any type
    if kind is str:
        made = bytes_field(8, value.encode(errors="replace"))
    elif kind is int:
        made = _encode_int(value)
    elif kind is dict:
        pairs = [
            bytes_field(1, number_field(1, _add_node(key, nodes)) + number_field(2, _add_node(item, nodes)))
            for key, item in value.items()
        ]
        made = bytes_field(14, b"".join(pairs))
    elif kind is list or kind is tuple:
        items = b"".join([encode_number(_add_node(item, nodes)) for item in value])
        made = bytes_field(11 if kind is list else 12, bytes_field(1, items) if items else b"")
    elif value is None:
        made = _NONE
    elif kind is bool:
        made = _TRUE if value else _FALSE
    elif kind is float:
        made = encode_number(7 << 3 | FIXED) + _DOUBLE.pack(value)
    else:
        message = f"a {kind.__name__} can't be given to a program"
        raise TypeError(message)
    nodes.append(bytes_field(2, made))
    return len(nodes) - 1


def _encode_int(value: int) -> bytes:
    if -_INT_LIMIT <= value < _INT_LIMIT:
        return number_field(5, value << 1 if value >= 0 else ~(value << 1))
    size = abs(value)
    magnitude = bytes_field(2, size.to_bytes((size.bit_length() + 7) // 8, "big"))
    return bytes_field(6, number_field(1, 1) + magnitude if value < 0 else magnitude)


def encode_date(value: dt.date) -> bytes:
    """The nodes of a date."""
    return _ONE_NODE + bytes_field(2, bytes_field(17, _numbers(value.year, value.month, value.day)))


def encode_datetime(value: dt.datetime, zone: str | None) -> bytes:
    """The nodes of a datetime; `zone` is the name of its time zone."""
    made = _numbers(value.year, value.month, value.day, value.hour, value.minute, value.second, value.microsecond)
    offset = value.utcoffset()
    if offset is not None:
        made += number_field(8, round(offset.total_seconds()) % 2**64)
        made += b"" if zone is None else text_field(9, zone)
    return _ONE_NODE + bytes_field(2, bytes_field(19, made))


def _numbers(*values: int) -> bytes:
    return b"".join(number_field(field, value) for field, value in enumerate(values, 1))


def decode_values(data: bytes, at: int, end: int, room: int) -> list[Any] | None:
    """Decode nodes; None if they surely take more than `room` bytes of JSON."""
    if end - at > _MAX_EXPANSION * room + _SPARE:
        return None
    built: list[Any] = []
    while at < end:
        tag = data[at]
        if tag != _NODE:
            _, at = read_number(data, at + 1)  # their number
            if tag != _COUNT:
                raise MalformedMessage("something that is no node among nodes")
            continue
        start, at = at + 2, at + 2 + data[at + 1]
        if at > start + _ONE_BYTE or at > end:
            start, at = read_part(data, start - 1, end)
        kind = data[start]
        start += 1
        if kind == _STR:
            begin, stop = read_part(data, start, at)
            built.append(data[begin:stop].decode())
        elif kind == _INT:
            value = data[start]
            if value > _ONE_BYTE:
                value, _ = read_number(data, start)
            built.append(value >> 1 if not value & 1 else ~(value >> 1))
        elif kind == _DICT:
            built.append(_read_pairs(data, *read_part(data, start, at), built))
        elif kind == _LIST:
            built.append(_read_items(data, *read_part(data, start, at), built))
        elif kind == _NOTHING:
            built.append(None)
        elif kind == _BOOL:
            built.append(data[start] != 0)
        elif kind == _FLOAT:
            built.append(_DOUBLE.unpack_from(data[start:at])[0])
        elif kind == _TUPLE:
            built.append(tuple(_read_items(data, *read_part(data, start, at), built)))
        else:
            built.append(_decode_other(data, start - 1, at, built))
    return built


_ONE_BYTE: Final = 0x7F
_NODE: Final = 2 << 3 | LENGTH
_COUNT: Final = 1 << 3
_STR: Final = 8 << 3 | LENGTH
_INT: Final = 5 << 3
_DICT: Final = 14 << 3 | LENGTH
_LIST: Final = 11 << 3 | LENGTH
_TUPLE: Final = 12 << 3 | LENGTH
_NOTHING: Final = 2 << 3 | LENGTH
_BOOL: Final = 4 << 3
_FLOAT: Final = 7 << 3 | FIXED
_PACKED: Final = 1 << 3 | LENGTH
_KEY: Final = 1 << 3
_VALUE: Final = 2 << 3


def _read_items(data: bytes, at: int, end: int, built: list[Any]) -> list[Any]:
    if at == end:
        return []
    if data[at] != _PACKED:
        raise MalformedMessage("a list of something else than nodes")
    begin, stop = read_part(data, at + 1, end)
    return [built[index] for index in read_numbers(data, begin, stop)]


def _read_pairs(data: bytes, at: int, end: int, built: list[Any]) -> dict[Any, Any]:
    made: dict[Any, Any] = {}
    while at < end:
        if data[at] != _PACKED:
            raise MalformedMessage("an object of something else than pairs")
        begin, at = read_part(data, at + 1, end)
        index, value = read_pair(data, begin, at)
        key = built[index]
        if type(key) is not str and not isinstance(key, ForeignValue):
            if isinstance(key, list | dict):
                raise MalformedMessage("a key that no object can have")
            # JSON keys are texts only. Hashing nested tuples, or many chosen numbers, might take very long.
            key = ForeignValue(type(key).__name__)
        made[key] = built[value]
    return made


def read_pair(data: bytes, at: int, end: int) -> tuple[int, int]:
    """The indexes of a key and a value; index 0 may be omitted."""
    key = value = 0
    while at < end:
        tag = data[at]
        found, at = read_number(data, at + 1)
        if tag == _KEY:
            key = found
        elif tag == _VALUE:
            value = found
        else:
            raise MalformedMessage("a pair of something else than nodes")
    return key, value


_KINDS: Final = {
    1: "ellipsis",
    3: "NotImplementedType",
    9: "bytes",
    15: "set",
    16: "frozenset",
    17: "date",
    18: "time",
    19: "datetime",
    20: "timedelta",
    21: "timezone",
    23: "type",
    26: "builtin_function_or_method",
    27: "PurePosixPath",
    28: "file",
    31: "complex",
    32: "module",
    33: "Decimal",
}
_BIG, _NAMED_TUPLE, _EXCEPTION, _TYPE, _INSTANCE, _FUNCTION, _REPR, _CYCLE = 6, 13, 22, 23, 24, 25, 29, 30


def _decode_other(data: bytes, at: int, end: int, built: list[Any]) -> Any:  # a branch for each kind
    """Decode values without a JSON form, large integers, and texts that describe values."""
    tag, start, stop = read_fields(data, at, end)[0]
    kind = tag >> 3
    if kind in {_REPR, _CYCLE}:
        return data[start:stop].decode()
    if kind not in {_BIG, _FUNCTION, _NAMED_TUPLE, _EXCEPTION, _TYPE, _INSTANCE}:
        return ForeignValue(_KINDS.get(kind, "value"))
    fields = Fields(data, start, stop)
    if kind == _BIG:
        size = int.from_bytes(fields.content(2) or b"", "big")
        return -size if fields.number(1) else size
    if kind == _INSTANCE:
        found = built[fields.number(1)]
        return ForeignValue(found.of if isinstance(found, ForeignValue) else "object")
    name = fields.text(1) or ""
    if kind == _FUNCTION:
        return name
    return ForeignValue("type", name) if kind == _TYPE else ForeignValue(name.rpartition(".")[2])


_MAX_ARGUMENT_BYTES: Final = 2**20
"""Most bytes of argument indexes in a call."""
OUT_OF_MEMORY_STATUS: Final = 65
"""Exit status of a worker without memory."""
PRINTED_TAG: Final = 1 << 3 | LENGTH
"""First byte of a message with printed text."""
_MAX_PRINTED_FIELDS: Final = 8
"""Most fields of one piece of printed text, which the event loop itself decodes."""


# ---- exceptions of a program, rendered as Python does ----

_MAX_REPEATED: Final = 3
"""Shown lines of a recursion."""


class TracebackFrame(msgspec.Struct, frozen=True, gc=False):
    """One frame of a traceback."""

    file: str
    line: int
    column: int
    end_line: int
    end_column: int
    name: str | None
    source: str | None
    hide_caret: bool
    hide_name: bool


class ProgramError(msgspec.Struct, frozen=True):
    """An exception that ended a program."""

    kind: str
    message: str | None
    frames: tuple[TracebackFrame, ...]

    def summary(self) -> str:
        return self.kind if self.message is None else f"{self.kind}: {self.message}"

    def display(self) -> str:
        shown = ["Traceback (most recent call last):\n"] if self.frames else []
        for _, repeated in groupby(self.frames, lambda frame: (frame.file, frame.line, frame.name)):
            frames = list(repeated)
            shown += map(_render_frame, frames[:_MAX_REPEATED])
            if len(frames) > _MAX_REPEATED:
                shown.append(f"  [Previous line repeated {len(frames) - _MAX_REPEATED} more times]\n")
        return "".join((*shown, self.summary()))


def _render_frame(frame: TracebackFrame) -> str:
    where = f'  File "{frame.file}", line {frame.line}'
    if not frame.hide_name:
        where += f", in {'<module>' if frame.name is None else frame.name}"
    if frame.source is None:
        return f"{where}\n"
    if frame.line != frame.end_line:
        return "".join((f"{where}\n", *(f"    {line}\n" for line in frame.source.splitlines())))
    trimmed = frame.source.lstrip()
    shown = f"{where}\n    {trimmed}\n"
    if frame.hide_caret:
        return shown
    # Keep the mark within the line: the worker's numbers are untrusted.
    before = min(max(frame.column - (len(frame.source) - len(trimmed)) - 1, 0), len(trimmed))
    marked = min(max(frame.end_column - frame.column, 1), max(len(trimmed) - before, 1))
    return f"{shown}{' ' * (4 + before)}{'~' * marked}\n"


# ---- events ----


class FunctionCall(msgspec.Struct, gc=False):
    """A call of a host function."""

    number: int
    name: str
    args: tuple[Any, ...] | None
    """None if they exceed the limit."""
    kwargs: dict[str, Any]
    eager: bool
    """The program awaits it at once, and no other code can run before."""


class SystemCall(msgspec.Struct, gc=False):
    """A request for time or a pause."""

    number: int
    name: str
    """`sleep`, `pause` for an awaited one, `time`, `now`, `today`, or empty for an unknown request."""
    seconds: float = 0.0
    offset: int | None = None
    """Offset of the requested time zone, in seconds."""
    zone: str | None = None
    """Name of the requested time zone."""
    eager: bool = False
    """As in `FunctionCall`."""


class NameLookup(msgspec.Struct, gc=False):
    """A read of an unknown name."""

    name: str
    routed: bool
    """An attribute of an object, not a name."""


class AllWaiting(msgspec.Struct, gc=False):
    """All code of the program waits for one of these calls."""

    pending: list[int]


class CodeCompleted(msgspec.Struct):
    """The code ended."""

    value: Any
    too_large: bool


class CodeRaised(msgspec.Struct):
    """The code raised, or the worker refused the request."""

    error: ProgramError


class CodeRejected(msgspec.Struct, gc=False):
    """The code did not run: its types are wrong."""

    text: str


class WorkerReady(msgspec.Struct, gc=False):
    """The worker carried out the request."""


class WorkerFatal(msgspec.Struct, gc=False):
    """The worker ends."""

    message: str


WorkerEvent: TypeAlias = (
    FunctionCall
    | SystemCall
    | NameLookup
    | AllWaiting
    | CodeCompleted
    | CodeRaised
    | CodeRejected
    | WorkerReady
    | WorkerFatal
)


def is_unwanted_answer(event: WorkerEvent) -> bool:
    """True if the worker refused an answer that it did not wait for. Its state is unchanged."""
    error = event.error if isinstance(event, CodeRaised) else None
    return error is not None and error.summary().startswith("RuntimeError: protocol violation: ")


def read_event(data: bytes, at: int, room: int) -> WorkerEvent:
    """Decode an event; `MalformedMessage` if it is invalid. `room` limits the JSON bytes of a value."""
    try:
        start, end = read_part(data, at + 1, len(data))
        return _READERS[data[at]](data, start, end, room)
    except (IndexError, KeyError, ValueError, TypeError, OverflowError, struct.error) as error:
        raise MalformedMessage(str(error)) from error


def read_printed(data: bytes, at: int) -> bytes:
    """The printed text in a message that begins with `PRINTED_TAG`."""
    try:
        start, end = read_part(data, at + 1, len(data))
        segments = [(begin, stop) for tag, begin, stop in read_fields(data, start, end) if tag == 1 << 3 | LENGTH]
        found: list[bytes] = []
        for first, last in segments:
            parts = read_fields(data, first, last)
            if len(parts) > _MAX_PRINTED_FIELDS:
                raise MalformedMessage("more fields than anything printed has")
            found += [data[begin:stop] for tag, begin, stop in parts if tag == 2 << 3 | LENGTH]
        return b"".join(found)
    except IndexError as error:
        raise MalformedMessage("what was printed can't be read") from error


def _read_function_call(data: bytes, at: int, end: int, room: int) -> WorkerEvent:
    name, call, eager, routed = "", 0, False, False
    args: list[int] = []
    pairs: list[tuple[int, int]] = []
    found: list[Any] | None = []
    while at < end:
        tag = data[at]
        if tag & 7 == LENGTH:
            start, at = at + 2, at + 2 + data[at + 1]
            if at > start + _ONE_BYTE or at > end:
                start, at = read_part(data, start - 1, end)
            if tag == _PAIR and len(pairs) < MAX_FIELDS:
                pairs.append(read_pair(data, start, at))
            elif tag == _NODES:
                found = decode_values(data, start, at, room)
            elif tag == _NAME:
                name = data[start:at].decode()
            elif tag == _ARGS:
                args = _read_indexes(data, start, at)
            elif tag == _OBJECT:
                routed = True
        else:
            value, at = read_number(data, at + 1)
            if tag == _CALL:
                call = value
            elif tag == _EAGER:
                eager = value != 0
    if routed:
        raise MalformedMessage("a call of an object that no program was given")
    if found is None:
        return FunctionCall(call, name, None, {}, eager)
    kwargs: dict[str, Any] = {}
    for key, value in pairs:
        keyword = found[key]
        if type(keyword) is not str:
            raise MalformedMessage("an argument whose name is no text")
        kwargs[keyword] = found[value]
    return FunctionCall(call, name, tuple([found[index] for index in args]), kwargs, eager)


_NAME: Final = 1 << 3 | LENGTH
_ARGS: Final = 2 << 3 | LENGTH
_PAIR: Final = 3 << 3 | LENGTH
_CALL: Final = 4 << 3
_OBJECT: Final = 5 << 3 | LENGTH
_EAGER: Final = 6 << 3
_NODES: Final = 7 << 3 | LENGTH


def _read_indexes(data: bytes, at: int, end: int) -> list[int]:
    if end - at > _MAX_ARGUMENT_BYTES:
        raise MalformedMessage("more than anybody can mean")
    return read_numbers(data, at, end)


def _read_system_call(data: bytes, at: int, end: int, _room: int) -> WorkerEvent:
    names = {23: "today", 24: "now", 26: "time", 27: "sleep", 28: "pause"}
    call, field, start, stop, eager = 0, 0, 0, 0, False
    for tag, first, last in read_fields(data, at, end):
        if tag == 1 << 3:
            call = first
        elif tag == 51 << 3:
            eager = first != 0
        elif 1 < tag >> 3 <= 49:
            field, start, stop = tag >> 3, first, last
    name = names.get(field, "")
    if name in {"sleep", "pause"}:
        found = [data[first:last] for tag, first, last in read_fields(data, start, stop) if tag == 1 << 3 | FIXED]
        return SystemCall(call, name, _DOUBLE.unpack(found[0])[0] if found else 0.0, eager=eager)
    zone = Fields(data, start, stop).part(1) if name == "now" else None
    if zone is None:
        return SystemCall(call, name)
    fields = Fields(data, *zone)
    offset = fields.number(1)
    offset -= 2**64 if offset >= 2**63 else 0
    if abs(offset) >= 86_400:
        raise MalformedMessage("a time zone that is no time zone")
    return SystemCall(call, name, 0.0, offset, fields.text(2))


def _read_lookup(data: bytes, at: int, end: int, _room: int) -> WorkerEvent:
    fields = Fields(data, at, end)
    return NameLookup(fields.text(1) or "", routed=fields.part(2) is not None)


def _read_waiting(data: bytes, at: int, end: int, _room: int) -> WorkerEvent:
    pending = Fields(data, at, end).part(1)
    return AllWaiting([] if pending is None else _read_indexes(data, *pending))


def _read_completed(data: bytes, at: int, end: int, room: int) -> WorkerEvent:
    fields = Fields(data, at, end)
    nodes = fields.part(2)
    found = None if nodes is None else decode_values(data, *nodes, room)
    if found is None:
        return CodeCompleted(None, too_large=True)
    return CodeCompleted(found[fields.number(1)], too_large=False)


def _read_raised(data: bytes, at: int, end: int, _room: int) -> WorkerEvent:
    error = Fields(data, at, end).part(1) or (end, end)
    fields = Fields(data, *error)
    parts = [(start, stop) for tag, start, stop in read_fields(data, *error) if tag == 3 << 3 | LENGTH]
    frames = tuple(_read_frame(data, start, stop) for start, stop in parts)
    return CodeRaised(ProgramError(fields.text(1) or "Exception", fields.text(2), frames))


def _read_frame(data: bytes, at: int, end: int) -> TracebackFrame:
    fields = Fields(data, at, end)
    places = [
        (1, 1) if part is None else (Fields(data, *part).number(1), Fields(data, *part).number(2))
        for part in (fields.part(2), fields.part(3))
    ]
    texts, hidden = (fields.text(4), fields.text(5)), (bool(fields.number(6)), bool(fields.number(7)))
    return TracebackFrame(fields.text(1) or "", *places[0], *places[1], *texts, *hidden)


def _read_content(data: bytes, at: int, end: int) -> bytes:
    return Fields(data, at, end).content(1) or b""


_READERS: Final[dict[int, Callable[[bytes, int, int, int], WorkerEvent]]] = {
    2 << 3 | LENGTH: _read_function_call,
    3 << 3 | LENGTH: _read_system_call,
    4 << 3 | LENGTH: _read_lookup,
    5 << 3 | LENGTH: _read_waiting,
    6 << 3 | LENGTH: _read_completed,
    7 << 3 | LENGTH: _read_raised,
    8 << 3 | LENGTH: lambda data, at, end, _: CodeRejected(_read_content(data, at, end).decode()),
    10 << 3 | LENGTH: lambda _data, _at, _end, _: WorkerReady(),
    11 << 3 | LENGTH: lambda data, at, end, _: WorkerFatal(_read_content(data, at, end).decode(errors="replace")),
}

# ---- requests ----


def configure_request(limits: ProgramLimits, seconds: tuple[float, float], stubs: str, seed: str) -> bytes:
    """The first request: limits of the program, and the stubs for its type check.

    `seconds`: for all of its code, and between two requests to its host.
    """
    bounds = (
        number_field(2, limits.memory)
        + number_field(4, limits.recursion)
        + number_field(5, most_suspensions(limits))
        + number_field(6, round(seconds[0] * 1_000_000))
        + number_field(7, round(seconds[1] * 1_000_000))
        + number_field(8, 0)
    )
    policy = (
        bytes_field(2, b"")  # ask the host for the clock
        + bytes_field(4, bytes_field(1, b""))  # UTC
        + bytes_field(5, bytes_field(2, b""))  # ask the host for pauses
        + bytes_field(8, text_field(3, seed))
        + bytes_field(9, b"")  # no processor clock
    )
    content = (
        text_field(1, "program.py")
        + bytes_field(2, bounds)
        + number_field(3, 1)
        + text_field(4, stubs)
        + number_field(7, 2)  # concise errors of the type check
        + number_field(9, 6)  # the version of the protocol
        + bytes_field(11, policy)
    )
    return frame_message(bytes_field(1, content))


def most_suspensions(limits: ProgramLimits) -> int:
    """Most requests of a program to its host: two for each call, one for a name lookup."""
    return 4 * limits.calls + 1_000


def feed_request(code: str, variables: Mapping[str, Any], *, unchecked: bool) -> bytes:
    """Run this code; `unchecked` skips the type check."""
    made, roots = encode_values(*variables.values())
    pairs = zip(variables, roots, strict=True)
    named = b"".join([bytes_field(2, text_field(1, name) + number_field(2, root)) for name, root in pairs])
    content = text_field(1, code) + named + bytes_field(3, made) + number_field(4, int(unchecked))
    return frame_message(bytes_field(3, content))


def defer_request(call: int) -> bytes:
    """The result of this call follows later."""
    return frame_message(bytes_field(4, number_field(1, call) + bytes_field(2, number_field(3, call))))


def answer_request(call: int, made: bytes, root: int = 0) -> bytes:
    """The value of a call that can't wait: encoded nodes and their index."""
    return _answer(call, number_field(1, root), bytes_field(3, made))


def error_request(call: int, kind: str, message: str) -> bytes:
    """Raise this exception at the call."""
    return _answer(call, _error_part(kind, message))


def unhandled_request(call: int) -> bytes:
    """The host does not support this call."""
    return _answer(call, bytes_field(5, b""))


def _answer(call: int, result: bytes, nodes: bytes = b"") -> bytes:
    return frame_message(bytes_field(4, number_field(1, call) + bytes_field(2, result) + nodes))


def result_request(call: int, outcome: CallOutcome) -> bytes:
    """The result of an awaited call."""
    if isinstance(outcome, CallError):
        result, nodes = _error_part(outcome.kind, outcome.message), b""
    else:
        made, root = encode_value(outcome.value)
        result, nodes = number_field(1, root), bytes_field(2, made)
    return frame_message(bytes_field(6, bytes_field(1, number_field(1, call) + bytes_field(2, result)) + nodes))


def function_request(name: str) -> bytes:
    """The unknown name is a host function."""
    function = _ONE_NODE + bytes_field(2, bytes_field(25, bytes_field(1, name.encode())))
    return frame_message(bytes_field(5, bytes_field(1, function) + number_field(2, 0)))


UNDEFINED_REQUEST: Final = frame_message(bytes_field(5, bytes_field(3, b"")))
"""The unknown name is undefined."""


def _error_part(kind: str, message: str) -> bytes:
    return bytes_field(2, text_field(1, kind) + text_field(2, message))
