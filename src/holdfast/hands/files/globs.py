"""Globs: ``*``, ``?``, ``[a-z]``, ``**`` and ``{a,b}``, matched in time that no pattern can blow up. Pure.

No regular expression is made of a glob: a pattern with many stars would then take for ever.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from holdfast.hands.files.errors import PatternInvalid

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MAX_GLOB: Final = 500
MAX_ALTERNATIVES: Final = 64

_WILD: Final = frozenset("*?[")


@dataclass(frozen=True, slots=True)
class Glob:
    """A pattern of paths. One without '/' is about the name, at any depth."""

    choices: tuple[tuple[str, ...], ...]

    def matches(self, parts: Sequence[str]) -> bool:
        """Whether a path, as its parts, fits."""
        return any(
            _fits(parts[-1:] if len(choice) == 1 and choice != ("**",) else parts, choice, _name_fits, "**")
            for choice in self.choices
        )


def read_glob(given: str) -> Glob:
    """The glob that was written; `PatternInvalid` says what is wrong with it."""
    if len(given) > MAX_GLOB:
        raise PatternInvalid("glob", given, f"it has more than {MAX_GLOB} characters")
    if given.startswith("/") or ".." in given.split("/"):
        raise PatternInvalid("glob", given, "it matches paths below the directory that is searched")
    written = _alternatives(given)
    return Glob(tuple(tuple(part for part in one.split("/") if part not in {"", "."}) for one in written))


def match_name(name: str, pattern: str) -> bool:
    """Whether one name fits ``*``, ``?`` and ``[...]``."""
    if not _WILD.intersection(pattern):
        return name == pattern
    return _fits(name, _tokens(pattern), _char_fits, "*")


def _name_fits(name: str, pattern: str) -> bool:
    return match_name(name, pattern)


def _fits(given: Sequence[str], pattern: Sequence[str], fits: Callable[[str, str], bool], star: str) -> bool:
    # Only the last star is ever tried anew: an earlier one that took more could not help.
    at = step = mark = 0
    back = -1
    while at < len(given):
        if step < len(pattern) and pattern[step] == star:
            back, mark, step = step, at, step + 1
        elif step < len(pattern) and fits(given[at], pattern[step]):
            at, step = at + 1, step + 1
        elif back >= 0:
            mark += 1
            at, step = mark, back + 1
        else:
            return False
    return all(rest == star for rest in pattern[step:])


def _tokens(pattern: str) -> list[str]:
    found: list[str] = []
    at = 0
    while at < len(pattern):
        end = _class_end(pattern, at) if pattern[at] == "[" else at
        found.append(pattern[at : end + 1])
        at = end + 1
    return found


def _class_end(pattern: str, at: int) -> int:
    begin = at + 2 if pattern[at + 1 : at + 2] in {"!", "^"} else at + 1
    end = pattern.find("]", begin + 1)
    return at if end < 0 else end  # a bracket that is never closed stands for itself


def _char_fits(char: str, wanted: str) -> bool:
    if wanted == "?":
        return True
    if len(wanted) < 3:
        return char == wanted
    inside = wanted[1:-1]
    negated = inside[0] in "!^"
    return _in_class(char, inside[1:] if negated else inside) is not negated


def _in_class(char: str, inside: str) -> bool:
    at = 0
    while at < len(inside):
        if inside[at + 1 : at + 2] == "-" and at + 2 < len(inside):
            if inside[at] <= char <= inside[at + 2]:
                return True
            at += 3
        else:
            if inside[at] == char:
                return True
            at += 1
    return False


def _alternatives(given: str) -> list[str]:
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
