"""Memory for people and agents: the handle on one scope, and its mirror as readable files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.memory.errors import MirrorBusy, MirrorTooLarge, MirrorUnavailable
from holdfast.memory.handle import Memory

if TYPE_CHECKING:
    from holdfast.memory.mirror import Mirror as Mirror
    from holdfast.memory.report import MirrorReport as MirrorReport
    from holdfast.memory.report import Refused as Refused

__all__ = ["Memory", "MirrorBusy", "MirrorTooLarge", "MirrorUnavailable"]
