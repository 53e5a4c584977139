"""Triggers: what can't be meant, what is not there, and what was refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.errors.tree import StoreError, UsageError, WorldError, excerpt

if TYPE_CHECKING:
    from collections.abc import Sequence


class ScheduleInvalid(UsageError):
    """A schedule that can't be meant."""

    def __init__(self, written: object, reason: str) -> None:
        super().__init__(f"the schedule {excerpt(written)} is not valid: {reason}")
        self.written = written
        self.reason = reason


class TemplateInvalid(UsageError):
    """A text with places that nothing can be put into."""

    def __init__(self, template: str, reason: str) -> None:
        super().__init__(
            f"the template {excerpt(template)} is not valid: {reason}; write {{{{ and }}}} for braces that stay"
        )
        self.template = template
        self.reason = reason


class TemplateUnfilled(WorldError):
    """An occurrence lacks what its trigger wants to put into a text."""

    def __init__(self, place: str, reason: str) -> None:
        super().__init__(f"the place {{{place}}} can't be filled: {reason}; change the template or what is sent")
        self.place = place
        self.reason = reason


class TriggerInvalid(UsageError):
    """A trigger that can't be meant."""

    def __init__(self, name: object, reason: str) -> None:
        super().__init__(f"the trigger {excerpt(name)} is not valid: {reason}")
        self.name = name
        self.reason = reason


class TriggerUnknown(UsageError):
    """No trigger has this name."""

    def __init__(self, name: str, known: Sequence[str] = ()) -> None:
        shown = f"; there are {', '.join(known[:10])}" if known else "; declare it with runtime.every"
        super().__init__(f"there is no trigger {name!r}{shown}")
        self.name = name
        self.known = tuple(known)


class TriggerConflict(UsageError):
    """A trigger of this name belongs to somebody else, or is being changed by somebody else."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"the trigger {name!r} can't be changed: {reason}")
        self.name = name
        self.reason = reason


class TriggerDisabled(UsageError):
    """A trigger that is switched off takes nothing in."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the trigger {name!r} is disabled; 'holdfast triggers enable {name}' lets it go on")
        self.name = name


class TriggersFull(StoreError):
    """A store has as many triggers as it may have."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"there are {limit:,} triggers already; disable and reuse one, or use several stores")
        self.limit = limit
