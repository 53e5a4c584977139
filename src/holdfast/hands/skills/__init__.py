"""Skills as tools: instructions for kinds of tasks, of which a model sees a line each until it loads one."""

from __future__ import annotations

from holdfast.hands.skills.errors import SkillClash, SkillFileMissing, SkillFolderInvalid, SkillInvalid, SkillUnknown
from holdfast.hands.skills.family import skills
from holdfast.hands.skills.limits import SkillLimits

__all__ = [
    "SkillClash",
    "SkillFileMissing",
    "SkillFolderInvalid",
    "SkillInvalid",
    "SkillLimits",
    "SkillUnknown",
    "skills",
]
