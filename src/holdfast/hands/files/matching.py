"""The process that matches: started for one search, fed text by text, ended at the deadline."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self, cast

from holdfast.hands.files import regex_worker
from holdfast.hands.files.errors import PatternInvalid, SearchStopped, SearchUnavailable

if TYPE_CHECKING:
    from types import TracebackType

MAX_PATTERN: Final = 1_000
MEMORY: Final = 1024 * 1024 * 1024
"""The address space of the process, in bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is looked for."""

    pattern: str
    ignore_case: bool
    context: int
    chars: int


@dataclass(frozen=True, slots=True)
class Shown:
    """One line of an answer."""

    number: int
    matches: bool
    text: str


@dataclass(frozen=True, slots=True)
class Found:
    """What is in one text; `text` is False where it is none."""

    lines: tuple[Shown, ...] = ()
    hits: int = 0
    more: bool = False
    text: bool = True


class TimeUp(Exception):
    """The process was ended because it took too long, or too much."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Matcher:
    """A process that matches one pattern. It is gone when the `with` block ends, however that is."""

    def __init__(self, question: Question, until: float) -> None:
        if len(question.pattern) > MAX_PATTERN:
            raise PatternInvalid("pattern", question.pattern, f"it has more than {MAX_PATTERN:,} characters")
        self._question = question
        self._until = until
        self._late = threading.Event()

    def __enter__(self) -> Self:
        if not sys.executable:
            raise SearchUnavailable("this Python does not know its own program")
        command = [sys.executable, "-I", "-S", "-X", "utf8", str(regex_worker.__file__)]
        try:
            self._process = subprocess.Popen(  # noqa: S603  our own interpreter and our own file
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env={}, cwd="/"
            )
        except OSError as error:
            raise SearchUnavailable(f"no process can be started ({error.strerror})") from error
        left = max(self._until - time.monotonic(), 0.001)
        self._alarm = threading.Timer(left, self._end)
        self._alarm.daemon = True
        self._alarm.start()
        try:
            self._begin(left)
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def find(self, data: bytes, room: int) -> Found:
        """The lines of one text that match; `TimeUp` where that takes too long."""
        said = self._ask(json.dumps([len(data), room]).encode() + b"\n", data)
        if said.get("memory"):
            raise TimeUp("the pattern took too much memory")
        if said.get("text") is False:
            return Found(text=False)
        lines = tuple(Shown(number, matches, text) for number, matches, text in said["lines"])
        return Found(lines, said["hits"], said["more"])

    def _begin(self, left: float) -> None:
        question = self._question
        asked = {
            "pattern": question.pattern,
            "ignore_case": question.ignore_case,
            "context": question.context,
            "chars": question.chars,
            "seconds": math.ceil(left) + 1,
            "memory": MEMORY,
        }
        try:
            said = self._ask(json.dumps(asked).encode() + b"\n")
        except TimeUp as error:
            if self._late.is_set():
                raise SearchStopped(error.reason) from error
            raise SearchUnavailable("the process that matches ended at once") from error
        if "invalid" in said:
            raise PatternInvalid("pattern", question.pattern, said["invalid"])

    def _ask(self, *parts: bytes) -> dict[str, Any]:
        # One question, one answer: neither side ever waits for room in a pipe that nobody reads.
        source, sink = self._process.stdin, self._process.stdout
        if source is None or sink is None:
            raise SearchUnavailable("the process has no pipes")
        try:
            for part in parts:
                source.write(part)
            source.flush()
            line = sink.readline()
        except OSError:
            line = b""
        if not line.endswith(b"\n"):
            raise TimeUp("the pattern took too long" if self._late.is_set() else "the pattern took too much")
        return cast("dict[str, Any]", json.loads(line))

    def _end(self) -> None:
        self._late.set()
        self._process.kill()

    def _stop(self) -> None:
        self._alarm.cancel()
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):  # what was not written yet has nobody to go to
                    pipe.close()
