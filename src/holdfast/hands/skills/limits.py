"""How many skills there may be, and how large. Pure."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

from holdfast.bounds import check_int

_MOST: Final = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillLimits:
    """Every bound of the skill tools."""

    skills: int = 64
    """How many skills are offered."""
    list_chars: int = 16_000
    """How long the list of skills is that the model reads with every request."""
    entries: int = 10_000
    """How many entries of a folder are looked at."""
    front_bytes: int = 16 * 1024
    """The longest front matter of a SKILL.md."""
    skill_bytes: int = 64 * 1024
    """The largest SKILL.md."""
    files: int = 100
    """How many files of a skill are listed with it."""
    file_bytes: int = 16 * 1024 * 1024
    """The largest file of a skill that is read in pages."""
    page_lines: int = 1_000
    """How many lines of a file one answer has."""
    page_chars: int = 40_000
    """How much text of a file one answer has."""

    def __post_init__(self) -> None:
        for field in fields(self):
            check_int(field.name, getattr(self, field.name), least=1, most=_MOST)
