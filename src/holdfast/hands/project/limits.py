"""How much of a project's instructions is shown. Pure."""

from __future__ import annotations

from dataclasses import dataclass, fields

from holdfast.bounds import check_int
from holdfast.tools.declared import MOST_OUTPUT


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectLimits:
    """Every bound of the tool for project instructions."""

    file_bytes: int = 32 * 1024
    """The largest file that is shown."""
    total_chars: int = 48_000
    """How much text one answer has. Files that are further away are left out first."""

    def __post_init__(self) -> None:
        for field in fields(self):
            check_int(field.name, getattr(self, field.name), least=1, most=MOST_OUTPUT // 2)
