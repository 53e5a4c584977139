"""Tools: functions that a model may call, and what it reads about how a call ended.

The families that come with Holdfast are here as well, and loaded when one is first used: ``files``, ``shell``, ``web``,
``memory``, ``tasks``, ``timers``, ``skills``, ``project`` and ``plan``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

from holdfast.tools.decorator import tool
from holdfast.tools.definition import AnyTool, Bound, Complaint, Tool
from holdfast.tools.retries import ToolRetryPolicy
from holdfast.tools.signals import NotDone, ToolRetry
from holdfast.tools.threads import Abandoned, abandoned
from holdfast.tools.toolset import Toolset, toolset

if TYPE_CHECKING:
    from holdfast.hands.files import files
    from holdfast.hands.memory import memory
    from holdfast.hands.planning import plan
    from holdfast.hands.project import project
    from holdfast.hands.shell import shell
    from holdfast.hands.skills import skills
    from holdfast.hands.tasks import tasks
    from holdfast.hands.timers import timers
    from holdfast.hands.web import web

__all__ = [
    "Abandoned",
    "AnyTool",
    "Bound",
    "Complaint",
    "NotDone",
    "Tool",
    "ToolRetry",
    "ToolRetryPolicy",
    "Toolset",
    "abandoned",
    "files",
    "memory",
    "plan",
    "project",
    "shell",
    "skills",
    "tasks",
    "timers",
    "tool",
    "toolset",
    "web",
]

FAMILIES: Final = ("files", "memory", "plan", "project", "shell", "skills", "tasks", "timers", "web")
"""Functions that give the tools of one kind; each is at home in a package of its own."""


if not TYPE_CHECKING:  # type checkers see the imports above, and nothing else

    def __getattr__(name: str) -> object:
        if name not in FAMILIES:
            message = f"module 'holdfast.tools' has no attribute {name!r}"
            raise AttributeError(message)
        home = "planning" if name == "plan" else name
        value = getattr(import_module(f"holdfast.hands.{home}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *FAMILIES})
