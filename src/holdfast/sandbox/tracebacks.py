"""Exceptions of a program, rendered as Python does. Pure."""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.sandbox.wire import LENGTH, read_fields

_MAX_REPEATED: Final = 3
"""Lines of a recursion that are shown."""


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
        """Its class and message."""
        return self.kind if self.message is None else f"{self.kind}: {self.message}"

    def display(self) -> str:
        """With its traceback."""
        shown = ["Traceback (most recent call last):\n"] if self.frames else []
        at = 0
        while at < len(self.frames):
            frame = self.frames[at]
            stop = at + 1
            while stop < len(self.frames) and _same(frame, self.frames[stop]):
                stop += 1
            shown_count = min(stop - at, _MAX_REPEATED)
            shown += [_render_frame(each) for each in self.frames[at : at + shown_count]]
            if stop - at > shown_count:
                shown.append(f"  [Previous line repeated {stop - at - shown_count} more times]\n")
            at = stop
        return "".join((*shown, self.summary()))


def _same(one: TracebackFrame, other: TracebackFrame) -> bool:
    return one.file == other.file and one.line == other.line and one.name == other.name


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
    # Keep the mark within the line: the worker's numbers are not trusted.
    before = min(max(frame.column - (len(frame.source) - len(trimmed)) - 1, 0), len(trimmed))
    marked = min(max(frame.end_column - frame.column, 1), max(len(trimmed) - before, 1))
    return f"{shown}{' ' * (4 + before)}{'~' * marked}\n"


def read_error(data: bytes, at: int, end: int) -> ProgramError:
    """Decode an exception from a worker."""
    kind, message = "Exception", None
    frames: list[TracebackFrame] = []
    for tag, start, stop in read_fields(data, at, end):
        if tag == 1 << 3 | LENGTH:
            kind = data[start:stop].decode()
        elif tag == 2 << 3 | LENGTH:
            message = data[start:stop].decode()
        elif tag == 3 << 3 | LENGTH:
            frames.append(_read_frame(data, start, stop))
    return ProgramError(kind, message, tuple(frames))


def _read_frame(data: bytes, at: int, end: int) -> TracebackFrame:
    texts: dict[int, str] = {}
    flags: dict[int, bool] = {}
    places = {2: (1, 1), 3: (1, 1)}
    for tag, start, stop in read_fields(data, at, end):
        field = tag >> 3
        if field in places:
            places[field] = _read_position(data, start, stop)
        elif tag & 7 == LENGTH:
            texts[field] = data[start:stop].decode()
        else:
            flags[field] = bool(start)
    return TracebackFrame(
        texts.get(1, ""),
        *places[2],
        *places[3],
        texts.get(4),
        texts.get(5),
        flags.get(6, False),
        flags.get(7, False),
    )


def _read_position(data: bytes, at: int, end: int) -> tuple[int, int]:
    found = {tag >> 3: value for tag, value, _ in read_fields(data, at, end)}
    return found.get(1, 0), found.get(2, 0)
