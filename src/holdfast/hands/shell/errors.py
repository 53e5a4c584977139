"""What can be wrong with a shell, by who can act."""

from __future__ import annotations

from holdfast.errors import UsageError, WorldError


class SandboxUnavailable(UsageError):
    """This machine can't confine a command, so none is run. `reason` says why, `next_step` what helps."""

    def __init__(self, reason: str, next_step: str) -> None:
        super().__init__(
            f"commands can't be confined here: {reason}; {next_step}, or leave the shell out. "
            "Only unsafe=True runs commands without a sandbox"
        )
        self.reason = reason
        self.next_step = next_step


class WorkspaceRefused(UsageError):
    """A workspace in which no command may run."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"the workspace {path!r} can't be used: {reason}")
        self.path = path
        self.reason = reason


class ControlGroupRefused(UsageError):
    """A folder that was handed over for control groups, and in which none can be made."""

    def __init__(self, folder: str, reason: str) -> None:
        super().__init__(f"the control group {folder!r} can't be used: {reason}")
        self.folder = folder
        self.reason = reason


class CommandRefused(UsageError):
    """A command that no shell can be given. It was not run."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the command was not run: {reason}")
        self.reason = reason


class SandboxFailed(WorldError):
    """The sandbox did not come up. The command was not run."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the command was not run, its sandbox did not start: {reason}")
        self.reason = reason
