"""Calls that go on in the background, as their results tell it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from holdfast.tasks.state import is_task_id
from holdfast.tasks.words import continues

if TYPE_CHECKING:
    from holdfast.messages import ToolResult


def started(result: ToolResult) -> bool:
    """Whether the call became a task. A tool that says the same of itself is counted too: it only takes from itself."""
    content = result.content
    if result.state != "ok" or type(content) is not dict:
        return False
    said = cast("dict[str, Any]", content)
    task = said.get("task")
    return type(task) is str and is_task_id(task) and said.keys() == continues(task, "", None).keys()
