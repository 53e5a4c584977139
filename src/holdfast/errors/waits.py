"""Waits: unknown, over, or not answered in time."""

from __future__ import annotations

from holdfast.errors.tree import UsageError, WorldError


class WaitUnknown(UsageError):
    """The wait token is not valid.

    Tampered, never issued and revoked look the same on purpose: a bearer of a bad token learns nothing.
    """

    def __init__(self) -> None:
        super().__init__("this wait is unknown or was revoked")


class WaitExpired(WorldError):
    """Nobody answered in time."""

    def __init__(self, name: str) -> None:
        super().__init__(f"nobody answered {name!r} in time")
        self.name = name


class WaitEnded(WorldError):
    """The wait was cancelled or revoked: nobody can answer it any more."""

    def __init__(self, name: str, state: str) -> None:
        super().__init__(f"the wait {name!r} was {state}; nobody can answer it any more")
        self.name = name
        self.state = state
