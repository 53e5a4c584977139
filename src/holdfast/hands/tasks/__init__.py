"""Background work as tools: an agent lists, reads and cancels the tasks of its session, and reads long results."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.tools import AnyTool

__all__ = ["tasks"]


def tasks() -> tuple[AnyTool, ...]:
    """Tools that list, read and cancel the background work of the session, and read results that were too long.

    An agent sees the tasks of its own session and no others.
    """
    from holdfast.hands.tasks.family import TOOLS  # noqa: PLC0415  pydantic only when tools are made

    return TOOLS
