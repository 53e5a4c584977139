"""Approvals: answers that do nothing."""

from __future__ import annotations

from holdfast.errors.tree import UsageError


class ApprovalUnknown(UsageError):
    """Nothing of this id waits for a person. Nothing was changed."""

    def __init__(self, id: str, reason: str) -> None:
        super().__init__(f"no approval {id!r} waits: {reason}. Nothing was changed; 'holdfast inbox' lists what waits")
        self.id = id
        self.reason = reason


class ApprovalClosed(UsageError):
    """Somebody else was quicker, or the time was up. This answer does nothing."""

    def __init__(self, id: str, state: str) -> None:
        how = {"resolved": "somebody has answered it", "expired": "its time was up"}.get(state, f"it was {state}")
        super().__init__(f"the approval {id!r} is closed: {how}. This answer changes nothing")
        self.id = id
        self.state = state
