"""What can go wrong with skills, in words that a host or a model can act on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.errors import UsageError
from holdfast.hands.files.errors import shown_path

if TYPE_CHECKING:
    from collections.abc import Sequence

_SHOWN: Final = 50
"""How many names an error lists."""


class SkillFolderInvalid(UsageError):
    """A folder that can't be offered as skills."""

    def __init__(self, folder: str, reason: str) -> None:
        super().__init__(f"the folder {shown_path(folder)} can't be offered as skills: {reason}")
        self.folder = folder
        self.reason = reason


class SkillInvalid(UsageError):
    """One skill that can't be used as it is written."""

    def __init__(self, place: str, reason: str) -> None:
        super().__init__(f"the skill {shown_path(place)} can't be used: {reason}")
        self.place = place
        self.reason = reason


class SkillClash(UsageError):
    """Two folders have a skill of the same name."""

    def __init__(self, name: str, folders: tuple[str, str]) -> None:
        first, second = map(shown_path, folders)
        super().__init__(f"the skill {name!r} is in {first} and in {second}; rename or remove one of them")
        self.name = name
        self.folders = folders


class SkillUnknown(UsageError):
    """No skill has this name."""

    def __init__(self, name: str, known: Sequence[str]) -> None:
        more = f" and {len(known) - _SHOWN:,} more" if len(known) > _SHOWN else ""
        super().__init__(f"there is no skill {shown_path(name)}; there are {', '.join(known[:_SHOWN])}{more}")
        self.name = name
        self.known = tuple(known)


class SkillFileMissing(UsageError):
    """A skill has no such file."""

    def __init__(self, name: str, path: str) -> None:
        super().__init__(f"the skill {name!r} has no file {shown_path(path)}; load_skill lists the files it has")
        self.name = name
        self.path = path
