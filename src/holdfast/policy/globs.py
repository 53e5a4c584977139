"""Patterns with ``*`` (any characters, or none) and ``?`` (one character), matched in time that none can blow up. Pure.

No regular expression is made of them: a pattern with many stars would then take for ever.
"""

from __future__ import annotations

from typing import Final

WILD: Final = frozenset("*?")


def fits(text: str, pattern: str) -> bool:
    """Whether the whole of `text` fits."""
    at = step = mark = 0
    back = -1
    while at < len(text):
        if step < len(pattern) and pattern[step] == "*":
            back, mark, step = step, at, step + 1
        elif step < len(pattern) and pattern[step] in ("?", text[at]):
            at, step = at + 1, step + 1
        elif back >= 0:  # only the last star is tried anew: an earlier one that took more could not help
            mark += 1
            at, step = mark, back + 1
        else:
            return False
    return not pattern[step:].strip("*")


def is_literal(pattern: str) -> bool:
    """Whether it stands for itself alone."""
    return not WILD.intersection(pattern)


def letters(pattern: str) -> int:
    """How many characters of it are no wildcards."""
    return sum(char not in WILD for char in pattern)
