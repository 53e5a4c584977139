"""The instructions of a project as a tool: ``AGENTS.md`` files, read when they are needed, as data of the workspace."""

from __future__ import annotations

from holdfast.hands.project.family import project
from holdfast.hands.project.limits import ProjectLimits

__all__ = ["ProjectLimits", "project"]
