"""Processes: definitions that can't be run, ids that are taken or unknown, and how one ended that did not complete."""

from __future__ import annotations

from holdfast.errors.tree import UsageError, WorldError


class ProcessInvalid(UsageError):
    """A function that can't be a process, or arguments that it does not take."""

    def __init__(self, process: str, reason: str) -> None:
        super().__init__(f"the process {process!r} is not valid: {reason}")
        self.process = process
        self.reason = reason


class ProcessUnknown(UsageError):
    """There is no process with this id."""

    def __init__(self, process: str) -> None:
        super().__init__(f"there is no process {process!r}; `holdfast processes` lists them")
        self.process = process


class ProcessPruned(ProcessUnknown):
    """The process is over and was pruned: how it ended is known, its result and its story are gone."""

    def __init__(self, process: str, status: str, at: int) -> None:
        UsageError.__init__(
            self,
            f"the process {process!r} ended as {status} and was pruned since; prune later where results are asked for",
        )
        self.process = process
        self.status = status
        """How it ended."""
        self.at = at
        """When it was pruned, in wall milliseconds."""


class ProcessConflict(UsageError):
    """The id belongs to a process that was started with another function or other arguments. Nothing was started."""

    def __init__(self, process: str, asked: str) -> None:
        super().__init__(
            f"the process {process!r} was started before, and not as {asked}; ids are never used again, choose another"
        )
        self.process = process
        self.asked = asked


class FunctionUnknown(UsageError):
    """This runtime does not know the function of a process."""

    def __init__(self, name: str, known: tuple[str, ...]) -> None:
        choice = ", ".join(known) or "none"
        super().__init__(f"this runtime has no process {name!r}; it has: {choice}. Pass it to open(processes=[...])")
        self.name = name
        self.known = known


class ProcessFailed(WorldError):
    """The function of a process raised. Everybody who asks is told the same."""

    def __init__(self, process: str, kind: str, message: str) -> None:
        super().__init__(f"the process {process!r} failed: {kind}: {message}")
        self.process = process
        self.kind = kind
        self.message = message


class ProcessCancelled(WorldError):
    """The process was cancelled before it could complete."""

    def __init__(self, process: str, reason: str) -> None:
        super().__init__(f"the process {process!r} was cancelled" + (f": {reason}" if reason else ""))
        self.process = process
        self.reason = reason


class ProcessAbandoned(WorldError):
    """The process was given up: whoever ran it is gone, and nobody else may. `evidence` says who, when and why."""

    def __init__(self, process: str, evidence: str) -> None:
        super().__init__(f"the process {process!r} was abandoned: {evidence}")
        self.process = process
        self.evidence = evidence


class AgentTurnFailed(WorldError):
    """A turn that a process waited for did not complete."""

    def __init__(self, session: str, turn: str, status: str, message: str) -> None:
        super().__init__(
            f"the turn {turn} of session {session!r} ended as {status}: {message or 'no reason was given'}"
        )
        self.session = session
        self.turn = turn
        self.status = status
        self.message = message
