"""Searches of file contents, and lists of directories."""

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
from typing import IO, TYPE_CHECKING, Any, Final, Self, TypeAlias, cast

from holdfast.errors import HoldfastError, InvalidNumber, UsageError, WorldError
from holdfast.errors.fields import ErrorFields
from holdfast.toolkits.files import regex_worker, workspace

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from pathlib import PurePosixPath


# ---- errors ----


class PatternInvalid(UsageError):
    """An invalid regular expression or glob."""

    def __init__(self, what: str, pattern: str, reason: str) -> None:
        super().__init__(f"the {what} {pattern[:200]!r} is not valid: {reason}")
        self.pattern = pattern
        self.reason = reason


class SearchStopped(ErrorFields, WorldError):
    """The search reached its limit of time or memory before it found a match."""

    reason: str
    _message = "{reason}; nothing was found until then. Narrow it with path and glob, or use a simpler pattern"


class SearchUnavailable(ErrorFields, WorldError):
    """A search needs a separate Python process, and none can be started here."""

    reason: str
    _message = "files can't be searched here: {reason}; read_file and list_files still work"


# ---- globs ----

MAX_GLOB: Final = 500
MAX_ALTERNATIVES: Final = 64


PathTest: TypeAlias = "Callable[[Sequence[str]], bool]"
"""True for a path in parts that matches a glob."""


def read_glob(given: str) -> PathTest:
    """Parse a glob; `PatternInvalid` if it is not valid. One without '/' matches the name, at any depth."""
    if len(given) > MAX_GLOB:
        raise PatternInvalid("glob", given, f"it has more than {MAX_GLOB} characters")
    if given.startswith("/") or ".." in given.split("/"):
        raise PatternInvalid("glob", given, "it matches paths below the directory that is searched")
    choices = [[part for part in one.split("/") if part not in {"", "."}] for one in _expand_braces(given)]

    def matches(parts: Sequence[str]) -> bool:
        return any(
            _match_parts(parts[-1:] if len(choice) == 1 and choice != ["**"] else parts, choice) for choice in choices
        )

    return matches


def _match_parts(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    # Only the last `**` is tried again: a longer match of an earlier one could not help.
    at = step = mark = 0
    back = -1
    while at < len(parts):
        if step < len(pattern) and pattern[step] == "**":
            back, mark, step = step, at, step + 1
        elif step < len(pattern) and workspace.match_name(parts[at], pattern[step]):
            at, step = at + 1, step + 1
        elif back >= 0:
            mark += 1
            at, step = mark, back + 1
        else:
            return False
    return all(rest == "**" for rest in pattern[step:])


def _expand_braces(given: str) -> list[str]:
    done: list[str] = []
    todo = [given]
    while todo:
        one = todo.pop(0)
        close = one.find("}")
        begin = one.rfind("{", 0, close) if close >= 0 else -1
        if begin < 0:
            done.append(one)
        else:
            todo.extend(one[:begin] + choice + one[close + 1 :] for choice in one[begin + 1 : close].split(","))
        if len(done) + len(todo) > MAX_ALTERNATIVES:
            raise PatternInvalid("glob", given, f"its braces make more than {MAX_ALTERNATIVES} patterns")
    return done


# ---- the matching process ----

MAX_PATTERN: Final = 1_000
MATCHER_MEMORY: Final = 1024 * 1024 * 1024  # bytes of address space
"""The address space of the matching process, in bytes."""


class MatcherStopped(Exception):
    """The process was ended because it took too much time or memory; the message says which."""


class RegexMatcher:
    """A process that matches one pattern. It ends with the `with` block."""

    def __init__(self, pattern: str, until: float, *, ignore_case: bool, context: int, chars: int) -> None:
        if len(pattern) > MAX_PATTERN:
            raise PatternInvalid("pattern", pattern, f"it has more than {MAX_PATTERN:,} characters")
        self._query = {"pattern": pattern, "ignore_case": ignore_case, "context": context, "chars": chars}
        self._until = until
        self._late = False

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
        self._pipes = cast("tuple[IO[bytes], IO[bytes]]", (self._process.stdin, self._process.stdout))
        left = max(self._until - time.monotonic(), 0.001)
        # Not a timeout of the read: the process may also stop while it is written to, or within a line.
        self._alarm = threading.Timer(left, self._end)
        self._alarm.daemon = True
        self._alarm.start()
        try:
            asked = {**self._query, "seconds": math.ceil(left) + 1, "memory": MATCHER_MEMORY}
            answer = self._ask(json.dumps(asked).encode() + b"\n")
            if "invalid" in answer:
                raise PatternInvalid("pattern", str(self._query["pattern"]), answer["invalid"])
        except MatcherStopped as error:
            self.__exit__()
            if self._late:
                raise SearchStopped(str(error)) from error
            raise SearchUnavailable("the process that matches ended at once") from error
        except BaseException:
            self.__exit__()
            raise
        return self

    def _end(self) -> None:
        self._late = True
        self._process.kill()

    def __exit__(self, *_: object) -> None:
        self._alarm.cancel()
        self._process.kill()
        self._process.wait()
        for pipe in self._pipes:
            with suppress(OSError):  # unwritten data is dropped
                pipe.close()

    def find(self, data: bytes, room: int) -> dict[str, Any] | None:
        """The answer of `regex_worker.find_lines` for one text; None if it is not text.

        Raises `MatcherStopped` if it takes too long.
        """
        answer = self._ask(json.dumps([len(data), room]).encode() + b"\n", data)
        if answer.get("memory"):
            raise MatcherStopped("the pattern took too much memory")
        return None if answer.get("text") is False else answer

    def _ask(self, *parts: bytes) -> dict[str, Any]:
        # One request, one answer: otherwise each side could wait for the other to empty a full pipe.
        requests, answers = self._pipes
        try:
            for part in parts:
                requests.write(part)
            requests.flush()
            line = answers.readline()
        except OSError:
            line = b""
        if not line.endswith(b"\n"):
            raise MatcherStopped("the pattern took too long" if self._late else "the pattern took too much")
        return cast("dict[str, Any]", json.loads(line))


# ---- searches and lists ----

MAX_CONTEXT: Final = 10


class FileSearch:
    """One search and its matches so far."""

    def __init__(self, root: workspace.Workspace, limits: workspace.FileLimits, skip: Collection[str]) -> None:
        self._root = root
        self._limits = limits
        self._walk = workspace.DirectoryWalk(root, skip, limits.seconds, limits.visited)
        self._lines: list[str] = []
        self._room = limits.page_chars
        self._hits = 0
        self._searched = 0
        self._more = False
        self._context = 0
        self._stopped: str | None = None
        self._skipped: Counter[str] = Counter()

    def run(self, place: PurePosixPath, pattern: str, glob: str, *, ignore_case: bool, context: int) -> str:
        """Every matching line, as ``path:number: text``."""
        if not 0 <= context <= MAX_CONTEXT:
            raise InvalidNumber("context", context, f"0 to {MAX_CONTEXT} lines are shown around a match")
        chars = min(300, self._limits.line_chars)
        matcher = RegexMatcher(pattern, self._walk.until, ignore_case=ignore_case, context=context, chars=chars)
        wanted = read_glob(glob) if glob else None
        self._context = context
        try:
            with matcher:
                try:
                    with self._root.directory(str(place).encode(), str(place)) as below:
                        self._search_directory(below, place, wanted, matcher)
                except workspace.WrongKind:  # a single file
                    with self._root.file(str(place).encode(), str(place)) as number:
                        self._search_file(number, str(place), matcher)
        except MatcherStopped as error:
            self._stopped = str(error)
        return self._render()

    def _search_directory(
        self, below: int, place: PurePosixPath, wanted: PathTest | None, matcher: RegexMatcher
    ) -> None:
        for entry in self._walk.entries(below, recursive=True):
            if not stat.S_ISREG(entry.mode) or (wanted is not None and not wanted(entry.shown.split("/"))):
                continue
            label = str(place / entry.shown)
            try:
                with self._root.file(entry.path, label, below=below, follow=False) as number:
                    self._search_file(number, label, matcher)
            except workspace.FileTooLarge:
                self._skipped["too large"] += 1
            except workspace.PathRefused:
                self._skipped["linked elsewhere"] += 1
            except HoldfastError:
                self._skipped["not readable"] += 1
            if self._more:
                break
        self._skipped["directories not readable"] += self._walk.unread

    def _search_file(self, number: int, label: str, matcher: RegexMatcher) -> None:
        data = workspace.read_bytes(number, label, self._limits.search_bytes, "it is too large to be searched")
        try:
            found = matcher.find(data, self._limits.matches - self._hits)
        except MatcherStopped as error:
            raise MatcherStopped(f"{error} in {label}") from error
        self._searched += 1
        if found is None:
            self._skipped["not UTF-8 text"] += 1
            return
        last = None
        self._more = found["more"]
        for line, matches, shown in found["lines"]:
            mark = ":" if matches else "-"
            text = f"{label}{mark}{line}{mark} {shown}"
            if last is not None and line != last + 1 and self._context:
                text = f"--\n{text}"
            last = line
            self._room -= len(text) + 1
            if self._room < 0:
                self._more = True
                return
            self._hits += matches
            self._lines.append(text)

    def _render(self) -> str:
        ended = self._stopped or self._walk.over
        if ended and not self._lines:
            raise SearchStopped(ended)
        searched = f"{self._searched:,} file{'' if self._searched == 1 else 's'}"
        counted = f"{self._hits:,} match{'' if self._hits == 1 else 'es'}" if self._lines else "no match"
        notes = [f"({counted} in {searched})"]
        if self._more:
            notes.append("(There are more matches; narrow it with path, glob or a longer pattern.)")
        if ended:
            notes.append(f"(Not everything was searched: {ended}; narrow it with path and glob.)")
        passed = [f"{count:,} {why}" for why, count in self._skipped.items() if count]
        if passed:
            notes.append(f"(Passed over: {', '.join(passed)}.)")
        return "\n".join([*self._lines, *notes])


def list_directory(
    root: workspace.Workspace,
    limits: workspace.FileLimits,
    skip: Collection[str],
    place: PurePosixPath,
    glob: str,
    *,
    recursive: bool,
) -> str:
    """One line for each entry: directories end in '/', files have their size."""
    wanted = read_glob(glob) if glob else None
    walk = workspace.DirectoryWalk(root, skip, limits.seconds, limits.visited)
    lines: list[str] = []
    room, more = limits.page_chars, False
    with root.directory(str(place).encode(), str(place)) as below:
        for entry in walk.entries(below, recursive=recursive or "/" in glob or "**" in glob):
            if wanted is not None and not wanted(entry.shown.split("/")):
                continue
            path = str(place / entry.shown)
            kind = f"{entry.size:,} bytes" if stat.S_ISREG(entry.mode) else workspace.describe_kind(entry.mode)
            line = f"{path}/" if stat.S_ISDIR(entry.mode) else f"{path} ({kind})"
            room -= len(line) + 1
            more = len(lines) >= limits.entries or room < 0
            if more:
                break
            lines.append(line)
    notes: list[str] = []
    if more:
        notes.append(f"(There are more than these {len(lines):,}; narrow it with path or glob.)")
    if walk.over:
        notes.append(f"(Not everything was looked at: {walk.over}; narrow it with path.)")
    if walk.unread:
        notes.append(f"({walk.unread:,} directories could not be read.)")
    if not lines and not notes:
        notes.append("(nothing matches)" if wanted is not None else "(the directory is empty)")
    return "\n".join([*lines, *notes])
