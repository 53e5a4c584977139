"""Who can be told something, and who decides when."""

from __future__ import annotations

from holdfast.errors.tree import UsageError, excerpt


class GateInvalid(UsageError):
    """`can_deliver` is no function that can say yes or no at once."""

    def __init__(self, gate: object, reason: str) -> None:
        super().__init__(
            f"can_deliver {excerpt(gate)} is not valid: {reason}; give a plain function of the session's id that says "
            "True or False, and call runtime.gate_changed() when it may say otherwise"
        )
        self.gate = gate
        self.reason = reason


class NotASession(UsageError):
    """Only a session can be told something, and this is the id of a task."""

    def __init__(self, id: str) -> None:
        super().__init__(
            f"{id!r} is a task, and tasks are told nothing; notify its session, which "
            "`(await runtime.tasks.task(id)).session` names"
        )
        self.id = id
