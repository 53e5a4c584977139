"""What passes between a program and the journal, and what the model reads of its end. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.records import Done, ErrorInfo, Failed
from holdfast.sandbox.limits import MOST_BYTES
from holdfast.sandbox.steps import Ended, LimitHit, Raised, Returned
from holdfast.sandbox.steps import Failed as Broken
from holdfast.sandbox.values import NotPlain, plain
from holdfast.turns.programs import FAILED, LIMIT

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from holdfast.messages import ToolResult
    from holdfast.policy.limits import OutOf
    from holdfast.records import Outcome
    from holdfast.sandbox.steps import ErrorKind, Kept
    from holdfast.sandbox.steps import Outcome as Given

NAMES: Final = 50
"""How many variables are named to a model whose program was refused."""
PRINTED: Final = 8_000
"""How much of what a program printed stands beside its error, in characters."""
_KINDS: Final[dict[str, ErrorKind]] = {
    "Denied": "PermissionError",
    "ToolTimeout": "TimeoutError",
    "TimeoutError": "TimeoutError",
    "InvalidArguments": "ValueError",
    "ValueError": "ValueError",
    "TypeError": "TypeError",
    "PermissionError": "PermissionError",
}
FINISHED: Final = "The program ended the turn with finish()."
SKIPPED: Final = "This call was not begun: a program before it ended the turn."


def given_to(result: ToolResult, outcome: Outcome) -> Given:
    """What a program gets of a call that ended so: a value, or an exception with the words for a model."""
    if isinstance(outcome, Done):
        try:
            return Returned(plain(result.content, MOST_BYTES)[0])
        except NotPlain as reason:
            said = f"{result.name} took effect, but what it gave can't be used in a program: {reason}"
            return Raised(said, "ValueError")
    kind = _KINDS.get(outcome.error.kind, "RuntimeError") if isinstance(outcome, Failed) else "RuntimeError"
    return Raised(str(result.content), kind)


def told_of(ended: Ended, notes: Iterable[str]) -> dict[str, Any]:
    """What the model reads of a program that came to its end."""
    told: dict[str, Any] = {"value": ended.value}
    if ended.printed:
        told["printed"] = ended.printed
    if ended.kept is None:
        told["variables"] = "They could not be read at the end of the program, and are what they were before it."
    elif ended.kept.dropped:
        told["dropped"] = dict(ended.kept.dropped)
    if noted := list(notes):
        told["notes"] = noted
    return told


def told_of_finish(printed: str, notes: Iterable[str]) -> dict[str, Any]:
    """What stands in the conversation of a program that ended the turn."""
    told: dict[str, Any] = {"finished": FINISHED}
    if printed:
        told["printed"] = printed
    if noted := list(notes):
        told["notes"] = noted
    return told


def broken(step: Broken | LimitHit, variables: Mapping[str, Any], notes: Iterable[str]) -> ErrorInfo:
    """What the model reads of a program that raised, was refused, or was stopped by a limit of its own."""
    said = [step.error]
    if isinstance(step, Broken) and step.phase == "check":
        said[0] = f"The program was not run; nothing of it was done.\n{step.error}"
        if variables:
            said.append(f"Variables that live on: {_named(variables)}.")
    if isinstance(step, Broken) and step.kept is not None and step.kept.dropped:
        said.append(f"Not kept: {_dropped(step.kept)}")
    said += notes
    if step.printed:
        said.append(f"It had printed:\n{_shortened(step.printed)}")
    return ErrorInfo(FAILED, "\n".join(said))


def left_no_room(out: OutOf) -> tuple[ErrorInfo, bytes]:
    """The end of a program for whose next calls a limit left no room, and the limit as it is recorded."""
    said = f"The program was stopped: {out.message}. What it had done stays done."
    return ErrorInfo(LIMIT, said), msgspec.json.encode(out)


def _named(variables: Mapping[str, Any]) -> str:
    names = sorted(variables)
    more = f" and {len(names) - NAMES:,} more" if len(names) > NAMES else ""
    return ", ".join(names[:NAMES]) + more


def _dropped(kept: Kept) -> str:
    return "; ".join(f"{name} ({why})" for name, why in kept.dropped.items())


def _shortened(text: str) -> str:
    if len(text) <= PRINTED:
        return text
    half = PRINTED // 2
    return f"{text[:half]}\n[{len(text) - 2 * half:,} characters left out]\n{text[-half:]}"
