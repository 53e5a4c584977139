"""A call that waits for a person, as the person sees it: in full, with why it is asked and how much time is left."""

from __future__ import annotations

import difflib
import shutil
from typing import TYPE_CHECKING, Any, Final

from holdfast.cli.escaping import as_json, escaped, fenced
from holdfast.cli.following import hint
from holdfast.cli.terminal import duration, one_line
from holdfast.errors import PolicyInvalid
from holdfast.policy.always import read_stored

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from holdfast.cli.terminal import Style, Terminal
    from holdfast.runtime.approving import Approval

MOST: Final = 2_000
"""How much of a call a list shows, in characters. Whoever saw no more than that has not seen a longer one."""
_INDENT: Final = "  "
_STYLES: Final[dict[str, Style]] = {"+": "green", "-": "red"}


def call_text(approval: Approval) -> str:
    """The call as it will run."""
    return f"{escaped(approval.tool)} {as_json(approval.arguments)}"


def is_long(approval: Approval) -> bool:
    """Whether a list shows only the beginning of the call."""
    return len(call_text(approval)) > MOST


def title(out: Terminal, approval: Approval, now: int) -> str:
    """Which call, of whom, since when, and for how long."""
    whose = f"{one_line(approval.session, 60)}  {one_line(approval.tool, 64)} (agent {one_line(approval.agent, 40)})"
    ago = f"{duration(max(now - approval.asked, 0))} ago"
    left = "" if approval.expires is None else f", {duration(max(approval.expires - now, 0))} left"
    return f"{out.paint('approval', 'bold')}  {whose}, {ago}{left}"


def described(out: Terminal, approval: Approval, path: Path, *, whole: bool) -> Iterator[str]:
    """The call behind bars, then why it is asked. Where it is not shown whole, what shows the rest."""
    text = call_text(approval)
    shown = text if whole else text[:MOST]
    yield from _fenced(out, shown.split("\n"))
    if len(shown) < len(text):
        rest = hint(path, "approve", approval.id, "--show")
        yield f"{_INDENT}... {len(text) - len(shown):,} more characters, shown by: {rest}"
    if approval.sandbox is not None:
        yield f"{_INDENT}sandbox  {escaped(approval.sandbox)}"
    yield f"{_INDENT}rule     {escaped(approval.rule)}"
    yield f"{_INDENT}why      {escaped(approval.why)}"


def answers(approval: Approval, path: Path) -> tuple[str, str]:
    """The command that says yes, and the one that says no."""
    return hint(path, "approve", approval.id), hint(path, "deny", approval.id, "--reason", "TEXT")


def difference(out: Terminal, before: dict[str, Any], after: dict[str, Any]) -> Iterator[str]:
    """What was changed in the arguments, line by line."""
    for name in {**before, **after}:
        old, new = _lines(name, before), _lines(name, after)
        changes = difflib.unified_diff(old, new, n=max(len(old), len(new)), lineterm="")
        for line in [f" {same}" for same in new] if old == new else [*changes][3:]:
            for part in _fenced(out, [line]):
                style = _STYLES.get(line[:1])
                yield part if style is None else out.paint(part, style)


def rule_text(body: str) -> str:
    """A rule that was stored, or would be, in words; as it is where it can't be read."""
    try:
        return escaped(read_stored(body).written)
    except PolicyInvalid:
        return f"{escaped(body)} (can't be read, and allows nothing)"


def _lines(name: str, arguments: dict[str, Any]) -> list[str]:
    """One argument, if it is there."""
    return f"{as_json(name)}: {as_json(arguments[name])}".split("\n") if name in arguments else []


def _fenced(out: Terminal, lines: list[str]) -> Iterator[str]:
    columns = shutil.get_terminal_size().columns - len(_INDENT) if out.live else None
    for line in fenced(lines, columns):
        yield f"{_INDENT}{line}"
