"""What a text becomes by an insertion, and which lines are to be shown. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.hands.files.edits import Edited, Refused, replace

if TYPE_CHECKING:
    from collections.abc import Sequence


def replaced(text: str, old: str | None, new: str | None) -> str | Refused:
    """The text with `old` replaced by `new`, at the only place where it is."""
    if not old:
        return Refused("old_str is missing; give the exact text to replace")
    done = replace(text, old, new or "", every=False)
    return done.text if isinstance(done, Edited) else done


def inserted(text: str, line: int | None, new: str | None) -> str | Refused:
    """The text with a line after line `line`; 0 is its beginning."""
    if line is None or new is None:
        return Refused("insert needs insert_line and insert_text")
    lines = text.split("\n")
    count = len(lines) - 1 if text.endswith("\n") or not text else len(lines)
    if not 0 <= line <= count:
        return Refused(f"insert_line is {line}, and it must be from 0 to {count}")
    lines[line:line] = new.removesuffix("\n").split("\n")
    return "\n".join(lines)


def read_range(given: Sequence[int] | None) -> tuple[int, int | None] | Refused:
    """The first and the last line that are wanted; None is the end."""
    if not given:
        return 1, None
    if len(given) != 2:
        return Refused("view_range is two line numbers, such as [1, 20]; -1 is the last line")
    first, last = given
    if first < 1 or (last != -1 and last < first):
        return Refused("view_range begins at line 1 or later, and ends there or later; -1 is the last line")
    return first, None if last == -1 else last
