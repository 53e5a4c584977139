"""Searching the text of files."""

from __future__ import annotations

import stat
from collections import Counter
from typing import TYPE_CHECKING, Final

from holdfast.errors import HoldfastError, InvalidNumber
from holdfast.hands.files.errors import FileTooLarge, PathRefused, SearchStopped, WrongKind
from holdfast.hands.files.globs import Glob, read_glob
from holdfast.hands.files.matching import Found, Matcher, Question, TimeUp
from holdfast.hands.files.walking import Budget, Walk
from holdfast.hands.files.workspace import read_all

if TYPE_CHECKING:
    from collections.abc import Collection

    from holdfast.hands.files.limits import FileLimits
    from holdfast.hands.files.paths import Place
    from holdfast.hands.files.workspace import Workspace

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
