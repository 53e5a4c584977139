"""Tools: functions that a model may call, and what it reads about how a call ended."""

from __future__ import annotations

from holdfast.tools.decorator import tool
from holdfast.tools.definition import AnyTool, Bound, Complaint, Tool
from holdfast.tools.retries import ToolRetryPolicy
from holdfast.tools.signals import NotDone, ToolRetry
from holdfast.tools.threads import Abandoned, abandoned
from holdfast.tools.toolset import Toolset, toolset

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
    "tool",
    "toolset",
]
