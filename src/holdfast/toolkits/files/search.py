"""Searching the text of files."""

from __future__ import annotations

import json
import math
import stat
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self, cast

from holdfast.errors import HoldfastError, InvalidNumber
from holdfast.toolkits.files import regex_worker
from holdfast.toolkits.files.workspace import (
    Budget,
    Entry,
    FileTooLarge,
    Glob,
    PathRefused,
    PatternInvalid,
    SearchStopped,
    SearchUnavailable,
    Walk,
    WrongKind,
    kind_of,
    read_all,
    read_glob,
)

if TYPE_CHECKING:
    from collections.abc import Collection
    from types import TracebackType

    from holdfast.toolkits.files.workspace import FileLimits, Place, Workspace


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


MAX_CONTEXT: Final = 10
_SHOWN: Final = 300


class Search:
    """One search, and what it has found so far."""

    def __init__(self, workspace: Workspace, limits: FileLimits, skip: Collection[str]) -> None:
        self._workspace = workspace
        self._limits = limits
        self._skip = skip
        self._budget = Budget(limits.seconds, limits.visited)
        self._lines: list[str] = []
        self._room = limits.page_chars
        self._hits = 0
        self._searched = 0
        self._more = False
        self._context = 0
        self._stopped: str | None = None
        self._passed: Counter[str] = Counter()

    def run(self, place: Place, pattern: str, glob: str, *, ignore_case: bool, context: int) -> str:
        """Every line that matches, as ``path:number: text``."""
        if not 0 <= context <= MAX_CONTEXT:
            raise InvalidNumber("context", context, f"0 to {MAX_CONTEXT} lines are shown around a match")
        chars = min(_SHOWN, self._limits.line_chars)
        question = Question(pattern=pattern, ignore_case=ignore_case, context=context, chars=chars)
        wanted = read_glob(glob) if glob else None
        self._context = context
        try:
            with Matcher(question, self._budget.until) as matcher:
                self._through(place, wanted, matcher)
        except TimeUp as error:
            self._stopped = error.reason
        return self._told()

    def _through(self, place: Place, wanted: Glob | None, matcher: Matcher) -> None:
        try:
            with self._workspace.directory(place.encoded(), str(place)) as below:
                self._below(below, place, wanted, matcher)
        except WrongKind:
            # Not a directory: a file that is searched by itself, which may be refused for its own reasons.
            with self._workspace.file(place.encoded(), str(place)) as number:
                self._one(number, str(place), matcher)

    def _below(self, below: int, place: Place, wanted: Glob | None, matcher: Matcher) -> None:
        walk = Walk(self._workspace, below, self._skip, self._budget)
        for entry in walk.entries(recursive=True):
            if not stat.S_ISREG(entry.mode) or (wanted is not None and not wanted.matches(entry.shown.split("/"))):
                continue
            label = f"{place}/{entry.shown}" if place.parts else entry.shown
            try:
                with self._workspace.file(entry.path, label, below=below, follow=False) as number:
                    self._one(number, label, matcher)
            except FileTooLarge:
                self._passed["too large"] += 1
            except PathRefused:
                self._passed["linked elsewhere"] += 1
            except HoldfastError:
                self._passed["not readable"] += 1
            if self._more:
                break
        self._passed["directories not readable"] += walk.unread

    def _one(self, number: int, label: str, matcher: Matcher) -> None:
        data = read_all(number, label, self._limits.search_bytes, "it is too large to be searched")
        try:
            found = matcher.find(data, self._limits.matches - self._hits)
        except TimeUp as error:
            raise TimeUp(f"{error.reason} in {label}") from error
        self._searched += 1
        if not found.text:
            self._passed["not UTF-8 text"] += 1
        self._keep(found, label)

    def _keep(self, found: Found, label: str) -> None:
        last = None
        self._more = found.more
        for line in found.lines:
            mark = ":" if line.matches else "-"
            text = f"{label}{mark}{line.number}{mark} {line.text}"
            if last is not None and line.number != last + 1 and self._context:
                text = f"--\n{text}"
            last = line.number
            self._room -= len(text) + 1
            if self._room < 0:
                self._more = True
                return
            self._hits += line.matches
            self._lines.append(text)

    def _told(self) -> str:
        ended = self._stopped or self._budget.over
        if ended and not self._lines:
            raise SearchStopped(ended)
        searched = f"{self._searched:,} {_some('file', 'files', self._searched)}"
        counted = f"{self._hits:,} {_some('match', 'matches', self._hits)}" if self._lines else "no match"
        notes = [f"({counted} in {searched})"]
        if self._more:
            notes.append("(There are more matches; narrow it with path, glob or a longer pattern.)")
        if ended:
            notes.append(f"(Not everything was searched: {ended}; narrow it with path and glob.)")
        passed = [f"{count:,} {why}" for why, count in self._passed.items() if count]
        if passed:
            notes.append(f"(Passed over: {', '.join(passed)}.)")
        return "\n".join([*self._lines, *notes])


def _some(one: str, several: str, count: int) -> str:
    return one if count == 1 else several


@dataclass(frozen=True, slots=True)
class Lister:
    """Lists below one workspace, within limits."""

    workspace: Workspace
    limits: FileLimits
    skip: Collection[str]

    def entries(self, place: Place, glob: str, *, recursive: bool) -> str:
        """One line for each entry: directories end in '/', files have their size."""
        wanted = read_glob(glob) if glob else None
        budget = Budget(self.limits.seconds, self.limits.visited)
        lines: list[str] = []
        room, more = self.limits.page_chars, False
        with self.workspace.directory(place.encoded(), str(place)) as below:
            walk = Walk(self.workspace, below, self.skip, budget)
            for entry in walk.entries(recursive=recursive or "/" in glob or "**" in glob):
                if wanted is not None and not wanted.matches(entry.shown.split("/")):
                    continue
                line = _line(place, entry)
                room -= len(line) + 1
                more = len(lines) >= self.limits.entries or room < 0
                if more:
                    break
                lines.append(line)
        return "\n".join([*lines, *_notes(lines, walk, budget, more=more, filtered=wanted is not None)])


def _line(place: Place, entry: Entry) -> str:
    path = f"{place}/{entry.shown}" if place.parts else entry.shown
    if stat.S_ISDIR(entry.mode):
        return f"{path}/"
    if stat.S_ISREG(entry.mode):
        return f"{path} ({entry.found.st_size:,} bytes)"
    return f"{path} ({kind_of(entry.mode)})"


def _notes(lines: list[str], walk: Walk, budget: Budget, *, more: bool, filtered: bool) -> list[str]:
    notes: list[str] = []
    if more:
        notes.append(f"(There are more than these {len(lines):,}; narrow it with path or glob.)")
    if budget.over:
        notes.append(f"(Not everything was looked at: {budget.over}; narrow it with path.)")
    if walk.unread:
        notes.append(f"({walk.unread:,} directories could not be read.)")
    if not lines and not notes:
        notes.append("(nothing matches)" if filtered else "(the directory is empty)")
    return notes
