"""What passes between a host and a worker, as bytes: values that come and go, and bytes that nobody should trust."""

from __future__ import annotations

import datetime as dt
import math
import random
from typing import Any

import pytest
from tests.every import every

from holdfast.sandbox import protocol
from holdfast.sandbox.contract import CallError, CallValue, ForeignValue, NotJson, to_json
from holdfast.sandbox.protocol import (
    AllWaiting,
    CodeCompleted,
    CodeRaised,
    FunctionCall,
    MalformedMessage,
    SystemCall,
    bytes_field,
    is_unwanted_answer,
    number_field,
    read_event,
    read_printed,
    text_field,
)

ROOM = 1_000_000
TOO_LARGE = object()

# As a worker sent them: a call with a number and a text, the wait for two calls, and a value.
CALLED = (
    b"\x12@\n\x05fetch\x12\x01\x00\x1a\x04\x08\x01\x10\x02 \x010\x01:\x12\x08\x03\x12\x02(\x02\x12\x05B\x03tag"
    b"\x12\x03B\x01xB\x16\n\x10<python-input-1>\x104\x18E\xa0\x01.\xb0\x01\xe8\x07\xc0\x01)"
)
WAITS = bytes_field(5, bytes_field(1, b"\x04\x05"))
COMPLETED = b"2\x08\x12\x06\x08\x01\x12\x02(\x00\xa0\x01\x04\xb0\x01\xe8\x07\xc0\x01\x04"


def said(message: bytes, room: int = ROOM) -> protocol.WorkerEvent:
    return read_event(protocol.frame_message(message), 4, room)


def back(value: object, room: int = ROOM) -> Any:
    """A value that was written as a host writes it, read as a host reads it."""
    made, root = protocol.encode_value(value)
    found = protocol.decode_values(made, 0, len(made), room)
    return TOO_LARGE if found is None else found[root]


# ---- values ----------------------------------------------------------------------------------------------------------


@every(
    "value",
    [
        None,
        True,
        False,
        0,
        63,
        64,
        -1,
        2**63 - 1,
        -(2**63),
        2**63,
        2**64 - 1,
        -(2**70),
        0.0,
        -1.5,
        math.inf,
        "",
        "ü" * 200,
        [],
        {},
        (),
        [1, [2, [3, "x" * 300]], {"a": [None, {"b": -7}]}],
        {"k": (1, 2), "": ""},
        list(range(400)),
    ],
    ids=lambda value: f"{type(value).__name__} {value!r}"[:30],
)
def test_a_value_comes_back_as_it_was_given(value: object) -> None:
    found = back(value)
    assert (type(found), found) == (type(value), value)


def test_what_no_program_can_have_is_refused() -> None:
    with pytest.raises(TypeError, match="set"):
        protocol.encode_value([{1}])


def test_a_date_is_nothing_that_json_has_a_word_for() -> None:
    made = protocol.encode_datetime(dt.datetime(2026, 1, 2, 3, 4, 5, 6, dt.timezone(dt.timedelta(hours=-2))), "X")
    (found,) = protocol.decode_values(made, 0, len(made), ROOM) or [None]
    assert isinstance(found, ForeignValue)
    with pytest.raises(NotJson, match="it has a datetime"):
        to_json(found, ROOM)


def test_a_value_is_given_up_before_it_is_read_if_it_is_surely_too_large() -> None:
    assert back(["x"] * 10_000, room=100) is TOO_LARGE


@pytest.mark.parametrize(
    "value",
    [[None] * 300, {str(n): n for n in range(200)}, [{"": None}] * 200, [""] * 300],
    ids=["nothing", "an object", "objects", "texts"],
)
def test_a_value_that_just_fits_is_never_given_up(value: object) -> None:
    size = to_json(value, ROOM)[1]
    assert back(value, room=size) == value


def test_what_is_held_twice_is_one_thing() -> None:
    # A list of the same list, many times over: it is written once.
    inner = bytes_field(2, bytes_field(11, bytes_field(1, b"\x00" * 100)))
    made = bytes_field(2, number_field(5, 2)) + inner + bytes_field(2, bytes_field(11, bytes_field(1, b"\x01" * 100)))
    found = protocol.decode_values(made, 0, len(made), ROOM) or []
    assert len({id(each) for each in found[2]}) == 1


# ---- events ----------------------------------------------------------------------------------------------------------


def test_a_call_is_read() -> None:
    assert said(CALLED) == FunctionCall(1, "fetch", (1,), {"tag": "x"}, eager=True)


def test_the_arguments_of_a_call_that_are_too_large_are_left_out() -> None:
    made, root = protocol.encode_value("x" * 9_000)
    found = said(
        bytes_field(2, text_field(1, "fetch") + bytes_field(2, protocol.encode_number(root)) + bytes_field(7, made)),
        room=10,
    )
    assert found == FunctionCall(0, "fetch", None, {}, eager=False)


def test_calls_that_are_waited_for_are_read() -> None:
    assert said(WAITS) == AllWaiting([4, 5])


def test_the_end_is_read() -> None:
    assert said(COMPLETED) == CodeCompleted(0, too_large=False)


@every(
    ("field", "content", "expected"),
    [
        (23, b"", SystemCall(7, "today")),
        (26, bytes_field(1, b"time.time"), SystemCall(7, "time")),
        (24, b"", SystemCall(7, "now")),
        (24, bytes_field(1, number_field(1, 2**64 - 3600) + text_field(2, "X")), SystemCall(7, "now", 0.0, -3600, "X")),
        (27, b"\x09" + b"\0\0\0\0\0\0\xf8?", SystemCall(7, "sleep", 1.5)),
        (28, b"", SystemCall(7, "pause")),
        (8, b"/etc/passwd", SystemCall(7, "")),
    ],
    ids=["today", "time", "now", "now in a zone", "sleep", "pause", "a file"],
)
def test_what_is_asked_of_the_system_is_read(field: int, content: bytes, expected: SystemCall) -> None:
    assert said(bytes_field(3, number_field(1, 7) + bytes_field(field, content))) == expected


def test_an_answer_that_nobody_wants_is_known_from_an_error_of_the_program() -> None:
    def threw(kind: str, message: str) -> protocol.WorkerEvent:
        return said(bytes_field(7, bytes_field(1, text_field(1, kind) + text_field(2, message))))

    assert is_unwanted_answer(threw("RuntimeError", "protocol violation: ResumeFutures without suspended futures"))
    assert not is_unwanted_answer(threw("ValueError", "protocol violation: odd"))
    assert not is_unwanted_answer(said(COMPLETED))


def test_an_exception_is_shown_as_python_shows_it() -> None:
    def place(line: int, column: int) -> bytes:
        return number_field(1, line) + number_field(2, column)

    def frame(line: int, name: str, source: str, start: int, stop: int) -> bytes:
        where = text_field(1, "program.py") + bytes_field(2, place(line, start)) + bytes_field(3, place(line, stop))
        return bytes_field(3, where + (text_field(4, name) if name else b"") + text_field(5, source))

    deep = b"".join(frame(2, "f", "    return f()", 12, 15) for _ in range(5))
    found = said(
        bytes_field(
            7, bytes_field(1, text_field(1, "ValueError") + text_field(2, "odd") + frame(4, "", "f()", 1, 4) + deep)
        )
    )
    assert isinstance(found, CodeRaised)
    assert found.error.display() == (
        "Traceback (most recent call last):\n"
        '  File "program.py", line 4, in <module>\n    f()\n    ~~~\n'
        + '  File "program.py", line 2, in f\n    return f()\n           ~~~\n' * 3
        + "  [Previous line repeated 2 more times]\nValueError: odd"
    )


def test_what_was_printed_is_read_in_its_order() -> None:
    segments = bytes_field(1, number_field(1, 1) + bytes_field(2, b"one ")) + bytes_field(
        1, number_field(1, 2) + bytes_field(2, b"two")
    )
    assert read_printed(protocol.frame_message(bytes_field(1, segments)), 4) == b"one two"


# ---- bytes that nobody should trust ----------------------------------------------------------------------------------


@pytest.mark.parametrize("whole", [CALLED, WAITS, COMPLETED], ids=["call", "wait", "end"])
def test_a_message_that_is_cut_off_anywhere_is_refused_or_read_without_its_end(whole: bytes) -> None:
    for size in range(len(whole)):
        try:
            said(whole[:size])
        except MalformedMessage:
            continue


def test_bytes_without_a_meaning_are_refused_and_nothing_else() -> None:
    rng = random.Random(7)
    messages = [
        CALLED,
        WAITS,
        COMPLETED,
        bytes_field(3, number_field(1, 7) + bytes_field(24, bytes_field(1, text_field(2, "X")))),
    ]
    for _ in range(3_000):
        broken = bytearray(rng.choice(messages))
        for _ in range(rng.randrange(1, 4)):
            broken[rng.randrange(len(broken))] = rng.randrange(256)
        try:
            said(bytes(broken))
        except MalformedMessage:
            continue


@every(
    "message",
    [
        b"\xff\xff\xff",
        bytes_field(2, bytes_field(2, b"\x09") + bytes_field(7, b"")),
        bytes_field(2, text_field(1, "x") + bytes_field(5, b"id")),
        bytes_field(
            6, bytes_field(2, bytes_field(2, bytes_field(14, bytes_field(1, number_field(1, 0) + number_field(2, 0)))))
        ),
        bytes_field(
            6,
            bytes_field(
                2,
                bytes_field(2, bytes_field(11, b""))
                + bytes_field(2, bytes_field(14, bytes_field(1, number_field(1, 0) + number_field(2, 0)))),
            ),
        ),
        bytes_field(2, bytes_field(2, b"\0" * (2**20 + 1))),
        bytes_field(4, b"\x18\x00" * 100_002),
        bytes_field(20, b""),
    ],
    ids=["noise", "no such node", "an object", "itself", "a list as a key", "too many", "too many fields", "unknown"],
)
def test_what_no_worker_says_is_refused(message: bytes) -> None:
    with pytest.raises(MalformedMessage):
        said(message)


# ---- requests --------------------------------------------------------------------------------------------------------


def test_a_request_stands_behind_its_length() -> None:
    made = protocol.result_request(300, CallValue("x" * 300))
    assert int.from_bytes(made[:4], "little") == len(made) - 4


def test_a_text_that_is_no_unicode_is_sent_all_the_same() -> None:
    assert b"odd ?" in protocol.result_request(1, CallError("odd \ud800"))


# ---- a worker that wants to hurt its host ----------------------------------------------------------------------------


def test_the_marks_below_a_line_are_never_longer_than_the_line() -> None:
    frame = (
        text_field(1, "program.py")
        + bytes_field(2, number_field(1, 1) + number_field(2, 1))
        + bytes_field(3, number_field(1, 1) + number_field(2, 2**60))
    )
    threw = said(bytes_field(7, bytes_field(1, text_field(1, "E") + bytes_field(3, frame + text_field(5, "x = 1")))))
    assert isinstance(threw, CodeRaised)
    assert "    ~~~~~\n" in threw.error.display()


def test_a_key_that_holds_itself_twice_at_each_level_is_not_hashed() -> None:
    made = [bytes_field(2, bytes_field(2, b""))]
    made += [bytes_field(2, bytes_field(12, bytes_field(1, protocol.encode_number(level) * 2))) for level in range(100)]
    made.append(bytes_field(2, bytes_field(14, bytes_field(1, number_field(1, 100) + number_field(2, 0)))))
    completed = said(bytes_field(6, number_field(1, 101) + bytes_field(2, b"".join(made))))
    assert isinstance(completed, CodeCompleted)
    with pytest.raises(NotJson, match="a key of the type tuple"):
        to_json(completed.value, ROOM)


def test_keys_that_are_numbers_are_not_hashed() -> None:
    (key,) = back({2**61 - 1: "x"})
    assert isinstance(key, ForeignValue)
    assert key.name == "int"


def test_an_argument_has_a_text_for_its_name() -> None:
    arena, _ = protocol.encode_values(1)
    with pytest.raises(MalformedMessage):
        said(
            bytes_field(
                2,
                text_field(1, "fetch")
                + bytes_field(3, number_field(1, 0) + number_field(2, 0))
                + number_field(4, 1)
                + bytes_field(7, arena),
            )
        )


def test_what_is_printed_has_few_fields_in_each_piece() -> None:
    with pytest.raises(MalformedMessage):
        read_printed(bytes_field(1, bytes_field(1, b"\x0a\x00" * 100)), 0)


@pytest.mark.parametrize("offset", [86_400, 2**63 - 1, 2**64 - 86_400], ids=["a day", "ages", "a day back"])
def test_a_time_zone_is_less_than_a_day_off(offset: int) -> None:
    with pytest.raises(MalformedMessage):
        said(bytes_field(3, number_field(1, 1) + bytes_field(24, bytes_field(1, number_field(1, offset)))))
