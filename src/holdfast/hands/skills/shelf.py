"""The skills in some folders: found when the tools are made, read when somebody asks for one."""

from __future__ import annotations

import os
import stat
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from holdfast.errors import HoldfastError, InvalidArgument, InvalidNumber
from holdfast.hands.files.errors import FileMissing, PathRefused, WrongKind
from holdfast.hands.files.pages import cut_page, told
from holdfast.hands.files.paths import Place, file_place
from holdfast.hands.files.reading import decoded
from holdfast.hands.files.walking import SKIPPED, Budget, Entry, Walk
from holdfast.hands.files.workspace import Workspace, chunks, read_all
from holdfast.hands.skills.errors import SkillClash, SkillFileMissing, SkillFolderInvalid, SkillInvalid, SkillUnknown
from holdfast.hands.skills.front import read_front
from holdfast.hands.skills.words import loaded

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence
    from pathlib import Path

    from holdfast.hands.skills.front import Front
    from holdfast.hands.skills.limits import SkillLimits

FILE: Final = "SKILL.md"
SECONDS: Final = 10.0
"""How long one look into a folder may take."""
_LINE_CHARS: Final = 2_000


@dataclass(frozen=True, slots=True)
class Skill:
    """A skill that is offered. `folder` is the open directory in which it has its own."""

    front: Front
    folder: Workspace
    given: str
    """The folder as the host named it."""


class Shelf:
    """All skills that are offered, by name. What is on the disk is read anew each time."""

    def __init__(self, folders: Sequence[Path], limits: SkillLimits, *, hard_links: bool) -> None:
        self._limits: Final = limits
        found: dict[str, Skill] = {}
        for folder in folders:
            for skill in self._skills(folder, hard_links=hard_links):
                other = found.setdefault(skill.front.name, skill)
                if other is not skill:
                    raise SkillClash(skill.front.name, (other.given, skill.given))
                if len(found) > limits.skills:
                    raise SkillFolderInvalid(skill.given, f"there are more than {limits.skills:,} skills")
        self.skills: Final = dict(sorted(found.items()))

    @property
    def fronts(self) -> tuple[Front, ...]:
        """What the skills said of themselves when the tools were made, by name."""
        return tuple(skill.front for skill in self.skills.values())

    @property
    def folders(self) -> tuple[str, ...]:
        """Real paths of the folders that the skills are in."""
        return tuple(dict.fromkeys(skill.folder.path for skill in self.skills.values()))

    def load(self, name: str) -> str:
        """The instructions of a skill as they are now, and the files it has beside them."""
        skill = self._known(name)
        label = f"{name}/{FILE}"
        with _refused(label), skill.folder.file(label.encode(), label) as number:
            data = read_all(number, label, self._limits.skill_bytes, "make it shorter, with files beside it")
            front = read_front(data, label, name)
            body = "".join(decoded([data[front.size :]], label))
        with _refused(label):
            files, more = self._files(skill)
        return loaded(name, body, files, more=more)

    def page(self, name: str, path: str, start: int, lines: int) -> str:
        """A page of a file of a skill, with numbered lines."""
        skill, place = self._known(name), file_place(path)
        if start < 1 or lines < 1:
            raise InvalidNumber("start" if start < 1 else "lines", min(start, lines), "it must be 1 or more")
        limits, label = self._limits, str(place)
        try:
            with skill.folder.file(Place((name, *place.parts)).encoded(), label) as number:
                pieces = chunks(number, label, limits.file_bytes, "it is too large to be read here")
                count = min(lines, limits.page_lines)
                texts = decoded(pieces, label)
                page = cut_page(texts, start, count, line_chars=_LINE_CHARS, room=limits.page_chars)
        except FileMissing as error:
            raise SkillFileMissing(name, label) from error
        if page.total and start > page.total:
            raise InvalidNumber("start", start, f"the file has {page.total:,} lines")
        return told(page)

    def _known(self, name: str) -> Skill:
        skill = self.skills.get(name)
        if skill is None:
            raise SkillUnknown(name, tuple(self.skills))
        return skill

    def _files(self, skill: Skill) -> tuple[list[str], bool]:
        """The files of a skill but its SKILL.md, and whether there are more than may be listed."""
        name = skill.front.name
        budget = Budget(SECONDS, self._limits.entries)
        found: list[str] = []
        with skill.folder.directory(name.encode(), name) as below:
            for entry in Walk(skill.folder, below, SKIPPED, budget).entries(recursive=True):
                if not stat.S_ISREG(entry.mode) or entry.shown == FILE:
                    continue
                if len(found) >= self._limits.files:
                    return found, True
                found.append(f"{entry.shown} ({entry.found.st_size:,} bytes)")
        return found, budget.over is not None

    # ---- when the tools are made ----

    def _skills(self, given: Path, *, hard_links: bool) -> Iterator[Skill]:
        label = str(given)
        try:
            folder = Workspace(given, hard_links=hard_links)
        except InvalidArgument as error:
            raise SkillFolderInvalid(label, "it is no directory that exists and can be read") from error
        names = self._names(folder, label)
        if not names:
            raise SkillFolderInvalid(label, f"it has no folder with a {FILE} in it")
        for name in names:
            yield Skill(self._front(folder, name, f"{label}/{name}/{FILE}"), folder, label)

    def _names(self, folder: Workspace, label: str) -> list[str]:
        """The folders in a folder. Files beside them, and what is hidden, are no skills."""
        budget = Budget(SECONDS, self._limits.entries)
        with folder.directory(b".", label) as below:
            entries = list(Walk(folder, below, (), budget).entries(recursive=False))
        if budget.over is not None:
            raise SkillFolderInvalid(label, f"not everything in it was looked at: {budget.over}")
        return [
            entry.shown for entry in entries if not entry.shown.startswith(".") and _is_folder(folder, entry, label)
        ]

    def _front(self, folder: Workspace, name: str, place: str) -> Front:
        """What a skill says of itself. Its body is not read."""
        limits = self._limits
        with _refused(place), folder.file(f"{name}/{FILE}".encode(), place) as number:
            size = os.fstat(number).st_size
            if size > limits.skill_bytes:
                raise SkillInvalid(place, f"it has {size:,} bytes, the limit is {limits.skill_bytes:,}")
            head = b""
            while len(head) < limits.front_bytes and (piece := os.read(number, limits.front_bytes - len(head))):
                head += piece
        return read_front(head, place, name)


def _is_folder(folder: Workspace, entry: Entry, label: str) -> bool:
    """Whether an entry is a folder, or a link to one that stays inside."""
    if not stat.S_ISLNK(entry.mode):
        return stat.S_ISDIR(entry.mode)
    try:
        with folder.directory(entry.path, entry.shown):
            return True
    except WrongKind:
        return False
    except HoldfastError as error:
        raise _invalid(f"{label}/{entry.shown}", error) from error


@contextmanager
def _refused(place: str) -> Generator[None]:
    """What can't be read of a skill is told as what is wrong with it."""
    try:
        yield
    except (SkillInvalid, SkillUnknown):
        raise
    except HoldfastError as error:
        raise _invalid(place, error) from error


def _invalid(place: str, error: HoldfastError) -> SkillInvalid:
    if isinstance(error, FileMissing):
        return SkillInvalid(place, f"there is no {FILE}; write one, or take the folder away")
    return SkillInvalid(place, error.reason if isinstance(error, PathRefused) else str(error))
