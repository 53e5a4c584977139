"""Tools: functions that a model may call, and what it reads about how a call ended."""

from __future__ import annotations

from holdfast.tools.definition import AnyTool, Bound, Complaint, NotDone, Tool, ToolRetry, tool

__all__ = ["AnyTool", "Bound", "Complaint", "NotDone", "Tool", "ToolRetry", "tool"]
