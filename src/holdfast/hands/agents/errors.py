"""What can go wrong with a sub-agent, as its parent is told."""

from __future__ import annotations

from holdfast.errors import UsageError, WorldError


class SubAgentRefused(UsageError):
    """A sub-agent was not started: it would be too deep, its own ancestor, or there is nothing left to pay it with."""

    def __init__(self, agent: str, reason: str) -> None:
        super().__init__(f"{agent!r} was not asked: {reason}")
        self.agent = agent
        self.reason = reason


class SubAgentFailed(WorldError):
    """A sub-agent did not come to an answer."""

    def __init__(self, agent: str, session: str, status: str, message: str) -> None:
        super().__init__(
            f"{agent!r} {_ENDED.get(status, status)}: {message} "
            f"(what it did: session {session!r}). Go on without it, or ask for less."
        )
        self.agent = agent
        self.session = session
        self.status = status


_ENDED = {"failed": "failed", "cancelled": "was stopped", "limit": "reached a limit"}
