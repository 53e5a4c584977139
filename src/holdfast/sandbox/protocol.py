"""What a worker says to its host, from bytes that nobody trusts. Pure."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from holdfast.sandbox import wire
from holdfast.sandbox.contract import Raised
from holdfast.sandbox.tracebacks import Thrown, thrown
from holdfast.sandbox.wire import (
    FIXED,
    LENGTH,
    MOST_FIELDS,
    Malformed,
    counted,
    fields,
    framed,
    numbers,
    part,
    read_number,
    read_part,
    text,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.sandbox.contract import Outcome


_MOST_ARGUMENTS: Final = 2**20
"""How many bytes may name the arguments of a call."""
OUT_OF_MEMORY: Final = 65
"""The status with which a worker ends that has no more memory."""
PRINTED: Final = 1 << 3 | LENGTH
"""The first byte of a message with what a program printed."""
_MOST_OF_PRINTED: Final = 8
"""How many fields one piece of what is printed may have: it is read by the event loop itself."""
_DOUBLE: Final = struct.Struct("<d")


class Called(msgspec.Struct, gc=False):
    """A function of the host was called."""

    number: int
    name: str
    args: tuple[Any, ...] | None
    """None: they are larger than they may be."""
    kwargs: dict[str, Any]
    eager: bool
    """It is awaited at once, and nothing else of the program can run before it is settled."""


class System(msgspec.Struct, gc=False):
    """Something of the system was asked for."""

    number: int
    name: str
    """`sleep`, `pause` for one that is awaited, `time`, `now`, `today`, or nothing that is known here."""
    seconds: float = 0.0
    offset: int | None = None
    """Of the time zone in which the time is wanted, in seconds."""
    zone: str | None = None
    """The name of that time zone."""
    eager: bool = False
    """As that of a call."""


class Lookup(msgspec.Struct, gc=False):
    """A name was read that the program does not have."""

    name: str
    routed: bool
    """It is an attribute of something, and not a name."""


class Waits(msgspec.Struct, gc=False):
    """Everything in the program waits for one of these calls."""

    pending: list[int]


class Completed(msgspec.Struct):
    """The code came to its end."""

    value: Any
    too_large: bool


class Threw(msgspec.Struct):
    """The code ended with an exception, or the worker did not like what it was asked."""

    error: Thrown


class Rejected(msgspec.Struct, gc=False):
    """The code was not run: its types are wrong."""

    text: str


class Dumped(msgspec.Struct, gc=False):
    """Where the worker stands."""

    state: bytes


class Ready(msgspec.Struct, gc=False):
    """It was done."""


class Fatal(msgspec.Struct, gc=False):
    """The worker ends."""

    message: str


Event: TypeAlias = Called | System | Lookup | Waits | Completed | Threw | Rejected | Dumped | Ready | Fatal
SUSPENDED: Final = (Called, System, Lookup, Waits)


def unwanted(said: Event) -> bool:
    """Whether this is what a worker says to an answer that it does not wait for. It stands where it stood."""
    return (
        isinstance(said, Threw)
        and said.error.kind == "RuntimeError"
        and (said.error.message or "").startswith("protocol violation: ")
    )


def event(data: bytes, at: int, room: int) -> Event:
    """What a worker says. `room` is how many bytes of JSON a value may have; `Malformed` for what it never says."""
    try:
        start, end = read_part(data, at + 1, len(data))
        return _READERS[data[at]](data, start, end, room)
    except (IndexError, KeyError, ValueError, TypeError, OverflowError, struct.error) as error:
        raise Malformed(str(error)) from error


def printed(data: bytes, at: int) -> bytes:
    """What a program printed, of a message that begins with `PRINTED`."""
    try:
        start, end = read_part(data, at + 1, len(data))
        segments = [(begin, stop) for tag, begin, stop in fields(data, start, end) if tag == 1 << 3 | LENGTH]
        found: list[bytes] = []
        for first, last in segments:
            parts = fields(data, first, last)
            if len(parts) > _MOST_OF_PRINTED:
                raise Malformed("more fields than anything printed has")
            found += [data[begin:stop] for tag, begin, stop in parts if tag == 2 << 3 | LENGTH]
        return b"".join(found)
    except IndexError as error:
        raise Malformed("what was printed can't be read") from error


def _called(data: bytes, at: int, end: int, room: int) -> Event:  # noqa: PLR0912  one branch for each field
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
            if tag == _PAIR and len(pairs) < MOST_FIELDS:
                pairs.append(wire.pair(data, start, at))
            elif tag == _NODES:
                found = _values(data, start, at, room)
            elif tag == _NAME:
                name = data[start:at].decode()
            elif tag == _ARGS:
                args = _indexes(data, start, at)
            elif tag == _OBJECT:
                routed = True
        else:
            value, at = read_number(data, at + 1)
            if tag == _CALL:
                call = value
            elif tag == _EAGER:
                eager = value != 0
    if routed:
        raise Malformed("a call of an object that no program was given")
    if found is None:
        return Called(call, name, None, {}, eager)
    kwargs = {_keyword(found[key]): found[value] for key, value in pairs} if pairs else {}
    return Called(call, name, tuple([found[index] for index in args]), kwargs, eager)


def _keyword(found: object) -> str:
    if type(found) is not str:
        raise Malformed("an argument whose name is no text")
    return found


_ONE_BYTE: Final = 0x7F
_NAME: Final = 1 << 3 | LENGTH
_ARGS: Final = 2 << 3 | LENGTH
_PAIR: Final = 3 << 3 | LENGTH
_CALL: Final = 4 << 3
_OBJECT: Final = 5 << 3 | LENGTH
_EAGER: Final = 6 << 3
_NODES: Final = 7 << 3 | LENGTH


def _indexes(data: bytes, at: int, end: int) -> list[int]:
    if end - at > _MOST_ARGUMENTS:
        raise Malformed("more than anybody can mean")
    return numbers(data, at, end)


def _values(data: bytes, at: int, end: int, room: int) -> list[Any] | None:
    try:
        return wire.values(data, at, end, room)
    except wire.TooLarge:
        return None


_SYSTEM: Final = {23: "today", 24: "now", 26: "time", 27: "sleep", 28: "pause"}
_MOST_SYSTEM: Final = 49
_PROMPT: Final = 51 << 3


def _system(data: bytes, at: int, end: int, _room: int) -> Event:
    call, field, start, stop, eager = 0, 0, 0, 0, False
    for tag, first, last in fields(data, at, end):
        if tag == 1 << 3:
            call = first
        elif tag == _PROMPT:
            eager = first != 0
        elif 1 < tag >> 3 <= _MOST_SYSTEM:
            field, start, stop = tag >> 3, first, last
    name = _SYSTEM.get(field, "")
    if name in {"sleep", "pause"}:
        found = [data[first:last] for tag, first, last in fields(data, start, stop) if tag == 1 << 3 | FIXED]
        return System(call, name, _DOUBLE.unpack(found[0])[0] if found else 0.0, eager=eager)
    if name == "now":
        for tag, first, last in fields(data, start, stop):
            if tag == 1 << 3 | LENGTH:
                return _zoned(call, data, first, last)
    return System(call, name)


_DAY: Final = 86_400


def _zoned(call: int, data: bytes, at: int, end: int) -> System:
    offset, zone = 0, None
    for tag, start, stop in fields(data, at, end):
        if tag == 1 << 3:
            offset = start if start < 2**63 else start - 2**64
        elif tag == 2 << 3 | LENGTH:
            zone = data[start:stop].decode()
    if abs(offset) >= _DAY:
        raise Malformed("a time zone that is no time zone")
    return System(call, "now", 0.0, offset, zone)


def _lookup(data: bytes, at: int, end: int, _room: int) -> Event:
    name, routed = "", False
    for tag, start, stop in fields(data, at, end):
        if tag == 1 << 3 | LENGTH:
            name = data[start:stop].decode()
        elif tag == 2 << 3 | LENGTH:
            routed = True
    return Lookup(name, routed)


def _waits(data: bytes, at: int, end: int, _room: int) -> Event:
    for tag, start, stop in fields(data, at, end):
        if tag == 1 << 3 | LENGTH:
            return Waits(_indexes(data, start, stop))
    return Waits([])


def _completed(data: bytes, at: int, end: int, room: int) -> Event:
    root, found = 0, None
    for tag, start, stop in fields(data, at, end):
        if tag == 1 << 3:
            root = start
        elif tag == 2 << 3 | LENGTH:
            found = _values(data, start, stop, room)
    return Completed(None, too_large=True) if found is None else Completed(found[root], too_large=False)


def _threw(data: bytes, at: int, end: int, _room: int) -> Event:
    for tag, start, stop in fields(data, at, end):
        if tag == 1 << 3 | LENGTH:
            return Threw(thrown(data, start, stop))
    return Threw(Thrown("Exception", None, ()))


def _rejected(data: bytes, at: int, end: int, _room: int) -> Event:
    return Rejected(_content(data, at, end).decode())


def _dumped(data: bytes, at: int, end: int, _room: int) -> Event:
    return Dumped(_content(data, at, end))


def _ready(_data: bytes, _at: int, _end: int, _room: int) -> Event:
    return Ready()


def _fatal(data: bytes, at: int, end: int, _room: int) -> Event:
    return Fatal(_content(data, at, end).decode(errors="replace"))


def _content(data: bytes, at: int, end: int) -> bytes:
    for tag, start, stop in fields(data, at, end):
        if tag == 1 << 3 | LENGTH:
            return data[start:stop]
    return b""


_READERS: Final = {
    field << 3 | LENGTH: reader
    for field, reader in {
        2: _called,
        3: _system,
        4: _lookup,
        5: _waits,
        6: _completed,
        7: _threw,
        8: _rejected,
        9: _dumped,
        10: _ready,
        11: _fatal,
    }.items()
}

VERSION: Final = 6
_MICRO: Final = 1_000_000
_CONCISE: Final = 2


class Bounds(msgspec.Struct, frozen=True):
    """What a worker itself sees to."""

    memory: int
    recursion: int
    feed_seconds: float
    """For one piece of code, all in all."""
    turn_seconds: float
    """Between two things that it asks its host for."""
    suspensions: int
    """How often it may ask. The host itself counts."""


def configure(bounds: Bounds, stubs: str, seed: str) -> bytes:
    """The first request: what the program may take, and what is checked before it runs."""
    limits = (
        counted(2, bounds.memory)
        + counted(4, bounds.recursion)
        + counted(5, bounds.suspensions)
        + counted(6, round(bounds.feed_seconds * _MICRO))
        + counted(7, round(bounds.turn_seconds * _MICRO))
        + counted(8, 0)
    )
    nothing = b""
    policy = (
        part(2, nothing)  # the clock is asked for
        + part(4, part(1, nothing))  # UTC
        + part(5, part(2, nothing))  # pauses are asked for
        + part(8, text(3, seed))
        + part(9, nothing)  # no clock of the processor
    )
    content = (
        text(1, "program.py")
        + part(2, limits)
        + counted(3, 1)
        + text(4, stubs)
        + counted(7, _CONCISE)
        + counted(9, VERSION)
        + part(11, policy)
    )
    return framed(part(1, content))


def feed(code: str, variables: Mapping[str, Any], *, unchecked: bool) -> bytes:
    """Run this code. `unchecked`: its types are not looked at."""
    made, roots = wire.arena(*variables.values())
    named = b"".join([part(2, text(1, name) + counted(2, root)) for name, root in zip(variables, roots, strict=True)])
    return framed(part(3, text(1, code) + named + part(3, made) + counted(4, int(unchecked))))


def deferred(call: int) -> bytes:
    """The result of this call comes later."""
    return framed(part(4, counted(1, call) + part(2, counted(3, call))))


def answered(call: int, value: object) -> bytes:
    """The value of a call that can't wait."""
    made, root = wire.one(value)
    return framed(part(4, counted(1, call) + part(2, counted(1, root)) + part(3, made)))


def answered_with(call: int, made: bytes) -> bytes:
    """The same, where the value was made already: the only node."""
    return framed(part(4, counted(1, call) + part(2, counted(1, 0)) + part(3, made)))


def refused(call: int, kind: str, message: str) -> bytes:
    """The call fails with this exception, where it was made."""
    return framed(part(4, counted(1, call) + part(2, _failure(kind, message))))


def not_handled(call: int) -> bytes:
    """There is nobody who would do this for a program."""
    return framed(part(4, counted(1, call) + part(2, part(5, b""))))


def settled(call: int, outcome: Outcome) -> bytes:
    """The result of a call that is awaited."""
    if isinstance(outcome, Raised):
        return framed(part(6, part(1, counted(1, call) + part(2, _failure(outcome.kind, outcome.message)))))
    made, root = wire.one(outcome.value)
    return framed(part(6, part(1, counted(1, call) + part(2, counted(1, root))) + part(2, made)))


def function(name: str) -> bytes:
    """The name that was looked up is a function of the host."""
    return framed(part(5, part(1, wire.function(name)) + counted(2, 0)))


def load(state: bytes) -> bytes:
    """Go on where a worker stood when it gave this."""
    return framed(part(8, part(1, state)))


UNDEFINED: Final = framed(part(5, part(3, b"")))
"""The name that was looked up is none."""
DUMP: Final = framed(part(7, b""))
"""Say where you stand."""


def _failure(kind: str, message: str) -> bytes:
    return part(2, text(1, kind) + text(2, message))
