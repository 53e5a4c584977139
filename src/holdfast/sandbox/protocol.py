"""The messages between host and worker: events from the worker, which are not trusted, and requests to it. Pure."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from holdfast.sandbox import wire
from holdfast.sandbox.contract import CallError
from holdfast.sandbox.tracebacks import ProgramError, read_error
from holdfast.sandbox.wire import (
    FIXED,
    LENGTH,
    MAX_FIELDS,
    MalformedMessage,
    bytes_field,
    frame_message,
    number_field,
    read_fields,
    read_number,
    read_numbers,
    read_part,
    text_field,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.sandbox.contract import CallOutcome


_MAX_ARGUMENT_BYTES: Final = 2**20
"""Most bytes of argument indexes in a call."""
OUT_OF_MEMORY_STATUS: Final = 65
"""Exit status of a worker without memory."""
PRINTED_TAG: Final = 1 << 3 | LENGTH
"""First byte of a message with printed text."""
_MAX_PRINTED_FIELDS: Final = 8
"""Most fields of one piece of printed text: the event loop itself decodes it."""
_DOUBLE: Final = struct.Struct("<d")


# ---- events ----


class FunctionCall(msgspec.Struct, gc=False):
    """A call of a host function."""

    number: int
    name: str
    args: tuple[Any, ...] | None
    """None: they exceed the limit."""
    kwargs: dict[str, Any]
    eager: bool
    """The program awaits it at once, and nothing else in it can run before."""


class SystemCall(msgspec.Struct, gc=False):
    """A request for time or a pause."""

    number: int
    name: str
    """`sleep`, `pause` for one that is awaited, `time`, `now`, `today`, or empty for an unknown request."""
    seconds: float = 0.0
    offset: int | None = None
    """Offset of the requested time zone, in seconds."""
    zone: str | None = None
    """Name of the requested time zone."""
    eager: bool = False
    """As in `FunctionCall`."""


class NameLookup(msgspec.Struct, gc=False):
    """The program read an unknown name."""

    name: str
    routed: bool
    """It is an attribute of an object, not a name."""


class AllWaiting(msgspec.Struct, gc=False):
    """Everything in the program waits for one of these calls."""

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


class StateDump(msgspec.Struct, gc=False):
    """The state of the worker."""

    state: bytes


class WorkerReady(msgspec.Struct, gc=False):
    """The request was carried out."""


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
    | StateDump
    | WorkerReady
    | WorkerFatal
)
SUSPENDED_EVENTS: Final = (FunctionCall, SystemCall, NameLookup, AllWaiting)


def is_unwanted_answer(event: WorkerEvent) -> bool:
    """Whether the worker refused an answer that it did not wait for. Its state is unchanged."""
    return (
        isinstance(event, CodeRaised)
        and event.error.kind == "RuntimeError"
        and (event.error.message or "").startswith("protocol violation: ")
    )


def read_event(data: bytes, at: int, room: int) -> WorkerEvent:
    """Decode an event. `room` limits the JSON bytes of a value; `MalformedMessage` if it is invalid."""
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
                pairs.append(wire.read_pair(data, start, at))
            elif tag == _NODES:
                found = _read_values(data, start, at, room)
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
    kwargs = {_keyword(found[key]): found[value] for key, value in pairs} if pairs else {}
    return FunctionCall(call, name, tuple([found[index] for index in args]), kwargs, eager)


def _keyword(found: object) -> str:
    if type(found) is not str:
        raise MalformedMessage("an argument whose name is no text")
    return found


_ONE_BYTE: Final = 0x7F
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


def _read_values(data: bytes, at: int, end: int, room: int) -> list[Any] | None:
    try:
        return wire.decode_values(data, at, end, room)
    except wire.ValueTooLarge:
        return None


_SYSTEM: Final = {23: "today", 24: "now", 26: "time", 27: "sleep", 28: "pause"}
_MOST_SYSTEM: Final = 49
_PROMPT: Final = 51 << 3


def _read_system_call(data: bytes, at: int, end: int, _room: int) -> WorkerEvent:
    call, field, start, stop, eager = 0, 0, 0, 0, False
    for tag, first, last in read_fields(data, at, end):
        if tag == 1 << 3:
            call = first
        elif tag == _PROMPT:
            eager = first != 0
        elif 1 < tag >> 3 <= _MOST_SYSTEM:
            field, start, stop = tag >> 3, first, last
    name = _SYSTEM.get(field, "")
    if name in {"sleep", "pause"}:
        found = [data[first:last] for tag, first, last in read_fields(data, start, stop) if tag == 1 << 3 | FIXED]
        return SystemCall(call, name, _DOUBLE.unpack(found[0])[0] if found else 0.0, eager=eager)
    if name == "now":
        for tag, first, last in read_fields(data, start, stop):
            if tag == 1 << 3 | LENGTH:
                return _read_zone(call, data, first, last)
    return SystemCall(call, name)


_DAY: Final = 86_400


def _read_zone(call: int, data: bytes, at: int, end: int) -> SystemCall:
    offset, zone = 0, None
    for tag, start, stop in read_fields(data, at, end):
        if tag == 1 << 3:
            offset = start if start < 2**63 else start - 2**64
        elif tag == 2 << 3 | LENGTH:
            zone = data[start:stop].decode()
    if abs(offset) >= _DAY:
        raise MalformedMessage("a time zone that is no time zone")
    return SystemCall(call, "now", 0.0, offset, zone)


def _read_lookup(data: bytes, at: int, end: int, _room: int) -> WorkerEvent:
    name, routed = "", False
    for tag, start, stop in read_fields(data, at, end):
        if tag == 1 << 3 | LENGTH:
            name = data[start:stop].decode()
        elif tag == 2 << 3 | LENGTH:
            routed = True
    return NameLookup(name, routed)


def _read_waiting(data: bytes, at: int, end: int, _room: int) -> WorkerEvent:
    for tag, start, stop in read_fields(data, at, end):
        if tag == 1 << 3 | LENGTH:
            return AllWaiting(_read_indexes(data, start, stop))
    return AllWaiting([])


def _read_completed(data: bytes, at: int, end: int, room: int) -> WorkerEvent:
    root, found = 0, None
    for tag, start, stop in read_fields(data, at, end):
        if tag == 1 << 3:
            root = start
        elif tag == 2 << 3 | LENGTH:
            found = _read_values(data, start, stop, room)
    return CodeCompleted(None, too_large=True) if found is None else CodeCompleted(found[root], too_large=False)


def _read_raised(data: bytes, at: int, end: int, _room: int) -> WorkerEvent:
    for tag, start, stop in read_fields(data, at, end):
        if tag == 1 << 3 | LENGTH:
            return CodeRaised(read_error(data, start, stop))
    return CodeRaised(ProgramError("Exception", None, ()))


def _read_rejected(data: bytes, at: int, end: int, _room: int) -> WorkerEvent:
    return CodeRejected(_read_content(data, at, end).decode())


def _read_dump(data: bytes, at: int, end: int, _room: int) -> WorkerEvent:
    return StateDump(_read_content(data, at, end))


def _read_ready(_data: bytes, _at: int, _end: int, _room: int) -> WorkerEvent:
    return WorkerReady()


def _read_fatal(data: bytes, at: int, end: int, _room: int) -> WorkerEvent:
    return WorkerFatal(_read_content(data, at, end).decode(errors="replace"))


def _read_content(data: bytes, at: int, end: int) -> bytes:
    for tag, start, stop in read_fields(data, at, end):
        if tag == 1 << 3 | LENGTH:
            return data[start:stop]
    return b""


_READERS: Final = {
    field << 3 | LENGTH: reader
    for field, reader in {
        2: _read_function_call,
        3: _read_system_call,
        4: _read_lookup,
        5: _read_waiting,
        6: _read_completed,
        7: _read_raised,
        8: _read_rejected,
        9: _read_dump,
        10: _read_ready,
        11: _read_fatal,
    }.items()
}

# ---- requests ----

VERSION: Final = 6
_MICRO: Final = 1_000_000
_CONCISE: Final = 2


class WorkerLimits(msgspec.Struct, frozen=True):
    """Limits that the worker enforces."""

    memory: int
    recursion: int
    feed_seconds: float
    """For one piece of code in all."""
    turn_seconds: float
    """Between two requests to its host."""
    suspensions: int
    """Requests to its host. The host counts as well."""


def configure_request(bounds: WorkerLimits, stubs: str, seed: str) -> bytes:
    """The first request: limits of the program, and the stubs for its type check."""
    limits = (
        number_field(2, bounds.memory)
        + number_field(4, bounds.recursion)
        + number_field(5, bounds.suspensions)
        + number_field(6, round(bounds.feed_seconds * _MICRO))
        + number_field(7, round(bounds.turn_seconds * _MICRO))
        + number_field(8, 0)
    )
    nothing = b""
    policy = (
        bytes_field(2, nothing)  # the clock is asked for
        + bytes_field(4, bytes_field(1, nothing))  # UTC
        + bytes_field(5, bytes_field(2, nothing))  # pauses are asked for
        + bytes_field(8, text_field(3, seed))
        + bytes_field(9, nothing)  # no clock of the processor
    )
    content = (
        text_field(1, "program.py")
        + bytes_field(2, limits)
        + number_field(3, 1)
        + text_field(4, stubs)
        + number_field(7, _CONCISE)
        + number_field(9, VERSION)
        + bytes_field(11, policy)
    )
    return frame_message(bytes_field(1, content))


def feed_request(code: str, variables: Mapping[str, Any], *, unchecked: bool) -> bytes:
    """Run this code. `unchecked`: without a type check."""
    made, roots = wire.encode_values(*variables.values())
    named = b"".join(
        [
            bytes_field(2, text_field(1, name) + number_field(2, root))
            for name, root in zip(variables, roots, strict=True)
        ]
    )
    return frame_message(
        bytes_field(3, text_field(1, code) + named + bytes_field(3, made) + number_field(4, int(unchecked)))
    )


def defer_request(call: int) -> bytes:
    """The result of this call comes later."""
    return frame_message(bytes_field(4, number_field(1, call) + bytes_field(2, number_field(3, call))))


def answer_request(call: int, value: object) -> bytes:
    """The value of a call that can't wait."""
    made, root = wire.encode_value(value)
    return frame_message(
        bytes_field(4, number_field(1, call) + bytes_field(2, number_field(1, root)) + bytes_field(3, made))
    )


def answer_node_request(call: int, made: bytes) -> bytes:
    """The same, with an encoded value."""
    return frame_message(
        bytes_field(4, number_field(1, call) + bytes_field(2, number_field(1, 0)) + bytes_field(3, made))
    )


def error_request(call: int, kind: str, message: str) -> bytes:
    """The call raises this exception, where it was made."""
    return frame_message(bytes_field(4, number_field(1, call) + bytes_field(2, _error_part(kind, message))))


def unhandled_request(call: int) -> bytes:
    """The host does not support this request."""
    return frame_message(bytes_field(4, number_field(1, call) + bytes_field(2, bytes_field(5, b""))))


def result_request(call: int, outcome: CallOutcome) -> bytes:
    """The result of an awaited call."""
    if isinstance(outcome, CallError):
        return frame_message(
            bytes_field(
                6, bytes_field(1, number_field(1, call) + bytes_field(2, _error_part(outcome.kind, outcome.message)))
            )
        )
    made, root = wire.encode_value(outcome.value)
    return frame_message(
        bytes_field(
            6, bytes_field(1, number_field(1, call) + bytes_field(2, number_field(1, root))) + bytes_field(2, made)
        )
    )


def function_request(name: str) -> bytes:
    """The unknown name is a host function."""
    return frame_message(bytes_field(5, bytes_field(1, wire.encode_function(name)) + number_field(2, 0)))


def load_request(state: bytes) -> bytes:
    """Restore the state of a `StateDump`."""
    return frame_message(bytes_field(8, bytes_field(1, state)))


UNDEFINED_REQUEST: Final = frame_message(bytes_field(5, bytes_field(3, b"")))
"""The unknown name is undefined."""
DUMP_REQUEST: Final = frame_message(bytes_field(7, b""))
"""Request a `StateDump`."""


def _error_part(kind: str, message: str) -> bytes:
    return bytes_field(2, text_field(1, kind) + text_field(2, message))
