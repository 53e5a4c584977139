"""Background work as tools: an agent lists, reads and cancels the tasks of its session, and reads long results."""

from __future__ import annotations

from holdfast.hands.tasks.family import tasks

__all__ = ["tasks"]
