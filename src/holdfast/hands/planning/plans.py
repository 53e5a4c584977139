"""A plan: steps, and how each of them stands. What tools return about it is what it is made of again. Pure.

Each call that changes a plan returns the change as data. The plan is the fold of these results, in the order in which
they are in the journal of the session: nothing else is kept, so nothing else can be lost, and a fork has its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, get_args

import msgspec
from msgspec.structs import replace

if TYPE_CHECKING:
    from collections.abc import Iterable

StepStatus: TypeAlias = Literal["pending", "in_progress", "done", "dropped"]
STATUSES: Final[tuple[StepStatus, ...]] = get_args(StepStatus)
MOST_STEPS: Final = 100
LONGEST: Final = 500
"""Longest text of a step and of a note, in characters."""

_MARKS: Final[dict[StepStatus, str]] = {"pending": "[ ]", "in_progress": "[>]", "done": "[x]", "dropped": "[-]"}


class Step(msgspec.Struct, frozen=True, omit_defaults=True):
    """One step of a plan."""

    text: str
    status: StepStatus = "pending"
    note: str = ""


class Plan(msgspec.Struct, frozen=True):
    """Steps, in their order. They are numbered from 1."""

    steps: tuple[Step, ...] = ()

    @property
    def open(self) -> int:
        """How many steps are left to do."""
        return sum(step.status in {"pending", "in_progress"} for step in self.steps)

    def shown(self) -> str:
        """The plan as a list of lines."""
        lines = [
            f"{number}. {_MARKS[step.status]} {step.text}" + (f" ({step.note})" if step.note else "")
            for number, step in enumerate(self.steps, 1)
        ]
        return "\n".join(lines) or "There is no plan."


class Made(msgspec.Struct, frozen=True, tag="made", tag_field="plan"):
    """There is a plan from here on, in place of any other."""

    steps: tuple[Step, ...]


class Moved(msgspec.Struct, frozen=True, tag="moved", tag_field="plan", omit_defaults=True):
    """A step stands otherwise from here on."""

    step: int
    status: StepStatus
    note: str = ""


Change: TypeAlias = Made | Moved

_decode: Final = msgspec.json.Decoder(Made | Moved).decode


def read_change(value: bytes) -> Change | None:
    """The change that a tool returned; None when it is something else."""
    try:
        return _decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def applied(plan: Plan, change: Change) -> Plan:
    """The plan after a change. A step that is not there is no change."""
    match change:
        case Made(steps):
            return Plan(steps)
        case Moved(step, status, note):
            if not 1 <= step <= len(plan.steps):
                return plan
            before = plan.steps[step - 1]
            after = replace(before, status=status, note=note or before.note)
            return Plan((*plan.steps[: step - 1], after, *plan.steps[step:]))


def fold(changes: Iterable[Change]) -> Plan:
    """The plan that these changes make, one after the other."""
    plan = Plan()
    for change in changes:
        plan = applied(plan, change)
    return plan


def told(change: Change, plan: Plan) -> dict[str, Any]:
    """What the model reads after a change: the change, and the plan as it now is."""
    return {**msgspec.to_builtins(change), "now": plan.shown()}
