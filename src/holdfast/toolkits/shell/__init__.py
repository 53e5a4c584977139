"""A shell for agents: one command at a time, in a sandbox of its own that nothing of it outlives."""

from __future__ import annotations

from holdfast.toolkits.shell.policy import (
    CommandRefused,
    ControlGroupRefused,
    SandboxFailed,
    SandboxUnavailable,
    WorkspaceRefused,
)
from holdfast.toolkits.shell.sandbox import sandbox_problem
from holdfast.toolkits.shell.tool import shell

__all__ = [
    "CommandRefused",
    "ControlGroupRefused",
    "SandboxFailed",
    "SandboxUnavailable",
    "WorkspaceRefused",
    "sandbox_problem",
    "shell",
]
