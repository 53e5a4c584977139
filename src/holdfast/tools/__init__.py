"""Tools: functions that a model may call.

The toolkits of Holdfast are reachable here and loaded on first use: ``files``, ``shell``, ``web``, ``memory``,
``tasks``, ``timers``, ``skills``, ``project`` and ``plan``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

from holdfast.tools.definition import (
    AnyTool,
    Bound,
    Complaint,
    NotDone,
    Tool,
    ToolRetry,
    ToolRetryPolicy,
    Toolset,
    tool,
    toolset,
)

if TYPE_CHECKING:
    from holdfast.toolkits.files import files
    from holdfast.toolkits.memory import memory
    from holdfast.toolkits.planning import plan
    from holdfast.toolkits.project import project
    from holdfast.toolkits.shell import shell
    from holdfast.toolkits.skills import skills
    from holdfast.toolkits.tasks import tasks
    from holdfast.toolkits.timers import timers
    from holdfast.toolkits.web import web
    from holdfast.tools.functions import Abandoned, abandoned


__all__ = ["Abandoned", "AnyTool", "Bound", "Complaint", "NotDone", "Tool", "ToolRetry", "ToolRetryPolicy", "Toolset"]
__all__ += ["abandoned", "tool", "toolset"]
__all__ += ["files", "memory", "plan", "project", "shell", "skills", "tasks", "timers", "web"]


TOOLKITS: Final = ("files", "memory", "plan", "project", "shell", "skills", "tasks", "timers", "web")
"""Functions that make the tools of one toolkit; each has its own module."""
_CALLS: Final = ("Abandoned", "abandoned")
"""Names about running calls, loaded on first use too."""
if not TYPE_CHECKING:  # type checkers see only the imports above

    def __getattr__(name: str) -> object:
        if name in TOOLKITS:
            module = f"toolkits.{'planning' if name == 'plan' else name}"
        elif name in _CALLS:
            module = "tools.functions"
        else:
            raise AttributeError(f"module 'holdfast.tools' has no attribute {name!r}")
        value = getattr(import_module(f"holdfast.{module}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *TOOLKITS, *_CALLS})
