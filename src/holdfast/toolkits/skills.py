"""`skills(...)`: tools that load instructions on demand. The model sees one line of each skill until it loads it.

In this order: errors and limits, the front matter of a skill, the library of skills, the tools.
"""

from __future__ import annotations

import os
import re
import stat
import unicodedata
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from itertools import islice
from pathlib import Path
from typing import Final

import msgspec

from holdfast.errors import HoldfastError, InvalidArgument, UsageError
from holdfast.names import check_int
from holdfast.toolkits.files import pages, workspace
from holdfast.tools.definition import MAX_OUTPUT_LIMIT, AnyTool, Reach, tool


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillLimits:
    """The limits of the skill tools."""

    skills: int = 64
    list_chars: int = 16_000
    """Longest list of skills, which the model reads with every request."""
    entries: int = 10_000
    """Most entries of a folder that are visited."""
    front_bytes: int = 16 * 1024
    """Longest front matter of a SKILL.md."""
    skill_bytes: int = 64 * 1024
    """Largest SKILL.md."""
    files: int = 100
    """Most files of a skill that are listed with it."""
    file_bytes: int = 16 * 1024 * 1024
    """Largest file of a skill that is read in pages."""
    page_lines: int = 1_000
    """Most lines of a file in one answer."""
    page_chars: int = 40_000
    """Most characters of a file in one answer."""

    def __post_init__(self) -> None:
        for field in fields(self):
            check_int(field.name, getattr(self, field.name), least=1, most=64 * 1024 * 1024)


_MAX_LISTED: Final = 50
"""Most names that an error lists."""


class SkillFolderInvalid(UsageError):
    """The folder can't be offered as skills."""

    def __init__(self, folder: str, reason: str) -> None:
        super().__init__(f"the folder {workspace.quote_path(folder)} can't be offered as skills: {reason}")
        self.folder = folder
        self.reason = reason


class SkillInvalid(UsageError):
    """A skill is invalid."""

    def __init__(self, place: str, reason: str) -> None:
        super().__init__(f"the skill {workspace.quote_path(place)} can't be used: {reason}")
        self.place = place
        self.reason = reason


class SkillClash(UsageError):
    """Two folders have a skill of the same name."""

    def __init__(self, name: str, folders: tuple[str, str]) -> None:
        first, second = map(workspace.quote_path, folders)
        super().__init__(f"the skill {name!r} is in {first} and in {second}; rename or remove one of them")
        self.name = name
        self.folders = folders


class SkillUnknown(UsageError):
    """There is no skill of this name."""

    def __init__(self, name: str, known: Sequence[str]) -> None:
        more = f" and {len(known) - _MAX_LISTED:,} more" if len(known) > _MAX_LISTED else ""
        super().__init__(
            f"there is no skill {workspace.quote_path(name)}; there are {', '.join(known[:_MAX_LISTED])}{more}"
        )
        self.name = name
        self.known = tuple(known)


class SkillFileMissing(UsageError):
    """A skill has no such file."""

    def __init__(self, name: str, path: str) -> None:
        super().__init__(
            f"the skill {name!r} has no file {workspace.quote_path(path)}; load_skill lists the files it has"
        )
        self.name = name
        self.path = path


# ---- front matter: the few lines of YAML at the top of a SKILL.md ----

MAX_NAME: Final = 64
MAX_DESCRIPTION: Final = 1_024
_FRONT: Final = re.compile(
    rb"\A(?:\xef\xbb\xbf)?---[ \t]*\r?\n(?P<fields>.*?)^---[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE
)
_FIELD: Final = re.compile(r"(?P<name>[A-Za-z][A-Za-z0-9_-]*):(?:[ \t]+(?P<value>.*))?")
_SPECIAL: Final = re.compile(r"[\[\]{}&*!|>%@`#,'\"]|[-?:](?:\s|\Z)")
"""The beginning of a value that is not plain text in YAML."""
_AMBIGUOUS: Final = re.compile(r":(?:\s|\Z)|\s#")
_NOTHING: Final = frozenset(("", "~", "null", "Null", "NULL"))
_QUOTE_IT: Final = "put the text in double quotes"
_HIDDEN: Final = frozenset("\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Direction marks, which could make a list read as another one."""


@dataclass(frozen=True, slots=True)
class FrontMatter:
    """The front matter of a skill. `size` is the offset of its body, in bytes."""

    name: str
    description: str
    size: int


@dataclass(frozen=True, slots=True)
class _FrontField:
    line: int
    value: str
    below: tuple[str, ...]
    """The indented lines that follow."""


def parse_front_matter(data: bytes, place: str, folder: str) -> FrontMatter:
    """Parse the front matter at the beginning of `data`; `SkillInvalid` names the error."""
    found = _FRONT.match(data)
    if found is None:
        raise SkillInvalid(place, "it does not begin with a front matter between two lines of '---', or it is too long")
    try:
        text = found["fields"].decode()
    except UnicodeDecodeError as error:
        raise SkillInvalid(place, "its front matter is not UTF-8 text") from error
    fields = _parse_fields(text, place)
    name = _field_text(fields, "name", place)
    if len(name) > MAX_NAME or not re.fullmatch(r"[a-z0-9]+(?:-[a-z0-9]+)*", name):
        raise SkillInvalid(place, f"its name has small letters, digits and single dashes, at most {MAX_NAME} of them")
    if name != folder:
        raise SkillInvalid(
            place, f"its name is {name!r}, that of its folder is {folder[:MAX_NAME]!r}; make them the same"
        )
    description = _field_text(fields, "description", place)
    if len(description) > MAX_DESCRIPTION:
        reason = f"its description has {len(description):,} characters, the limit is {MAX_DESCRIPTION:,}"
        raise SkillInvalid(place, reason)
    for char in description:
        if char in _HIDDEN or unicodedata.category(char) in {"Cc", "Cs", "Cn", "Co"}:
            raise SkillInvalid(place, f"its description has the character U+{ord(char):04X}; take it out")
    return FrontMatter(name, description, found.end())


def _parse_fields(text: str, place: str) -> dict[str, _FrontField]:
    lines = re.split(r"\r\n|\n|\r", text)
    found: dict[str, _FrontField] = {}
    at = 0
    while at < len(lines):
        line, number = lines[at], at + 2  # the first line of the file is the fence
        at += 1
        if not line.strip() or line.startswith("#"):
            continue
        match = _FIELD.fullmatch(line.rstrip())
        if match is None:
            raise _line_error(place, number, "a field such as 'name: value' is wanted")
        if match["name"] in found:
            raise _line_error(place, number, f"the field {match['name']!r} is there twice")
        begin = at
        # Indented lines belong to the field before them. The items of a list need no indentation.
        while at < len(lines) and (not lines[at].strip() or lines[at].startswith((" ", "\t", "- "))):
            at += 1
        found[match["name"]] = _FrontField(number, (match["value"] or "").strip(), tuple(lines[begin:at]))
    return found


def _field_text(fields: dict[str, _FrontField], name: str, place: str) -> str:
    field = fields.get(name)
    if field is None:
        raise SkillInvalid(place, f"its front matter has no field {name!r}")
    value, below = field.value, [line for line in field.below if line.strip()]
    if any(line[0] != " " for line in below):
        raise _line_error(place, field.line, f"{name!r} is text; lines that go on with it begin with spaces")
    if value[:1] in {"'", '"'}:
        if below:
            raise _line_error(place, field.line, "quoted text takes one line here; use '>' for more lines")
        text = _unquote(value, place, field.line)
    elif re.fullmatch("[|>][+-]?", value):
        text = " ".join(below)
    elif value in _NOTHING:
        if below:
            raise _line_error(place, field.line, "text is wanted, not a list or a map")
        text = ""
    else:
        text = " ".join((value, *(more.strip() for more in below)))
        if _SPECIAL.match(value) or _AMBIGUOUS.search(text):
            raise _line_error(place, field.line, f"it has signs that mean something else in YAML; {_QUOTE_IT}")
    text = " ".join(text.split())
    if not text:
        raise _line_error(place, field.line, f"{name!r} is empty")
    return text


def _unquote(value: str, place: str, line: int) -> str:
    if value[0] == '"':
        try:
            return msgspec.json.decode(value, type=str)
        except (msgspec.DecodeError, UnicodeEncodeError) as error:
            raise _line_error(place, line, "what is in double quotes is written as in JSON") from error
    inner = value[1:-1]
    if len(value) < 2 or value[-1] != "'" or "'" in inner.replace("''", ""):
        raise _line_error(place, line, f"the quotes do not match; {_QUOTE_IT}")
    return inner.replace("''", "'")


def _line_error(place: str, line: int, reason: str) -> SkillInvalid:
    return SkillInvalid(place, f"line {line:,}: {reason}")


# ---- the library ----

SKILL_FILE: Final = "SKILL.md"
WALK_SECONDS: Final = 10.0
"""Longest walk through a folder."""


@dataclass(frozen=True, slots=True)
class Skill:
    """One skill. `folder` is the open directory that contains the skill's directory."""

    front: FrontMatter
    folder: workspace.Workspace
    given: str
    """The folder as the host named it."""


class SkillLibrary:
    """All skills, by name. Instructions and files are read from the disk each time."""

    def __init__(self, folders: Sequence[Path], limits: SkillLimits, *, hard_links: bool) -> None:
        self._limits: Final = limits
        self._page_limits: Final = workspace.FileLimits(
            read_bytes=limits.file_bytes, page_lines=limits.page_lines, page_chars=limits.page_chars
        )
        found: dict[str, Skill] = {}
        for given in map(str, folders):
            try:
                folder = workspace.Workspace(given, hard_links=hard_links)
            except InvalidArgument as error:
                raise SkillFolderInvalid(given, "it is no directory that exists and can be read") from error
            names = self._names(folder, given)
            if not names:
                raise SkillFolderInvalid(given, f"it has no folder with a {SKILL_FILE} in it")
            for name in names:
                skill = Skill(self._read_front_matter(folder, name, f"{given}/{name}/{SKILL_FILE}"), folder, given)
                other = found.setdefault(name, skill)
                if other is not skill:
                    raise SkillClash(name, (other.given, given))
                if len(found) > limits.skills:
                    raise SkillFolderInvalid(given, f"there are more than {limits.skills:,} skills")
        self.skills: Final = dict(sorted(found.items()))

    def load(self, name: str) -> str:
        """The current instructions of a skill, and its other files."""
        skill = self._require(name)
        label = f"{name}/{SKILL_FILE}"
        with _as_skill_error(label):
            with skill.folder.file(label.encode(), label) as number:
                advice = "make it shorter, with files beside it"
                data = workspace.read_bytes(number, label, self._limits.skill_bytes, advice)
            front = parse_front_matter(data, label, name)
            body = "".join(pages.decode_text([data[front.size :]], label))
            walk = workspace.DirectoryWalk(skill.folder, workspace.SKIPPED, WALK_SECONDS, self._limits.entries)
            with skill.folder.directory(name.encode(), name) as below:
                entries = (entry for entry in walk.entries(below, recursive=True) if stat.S_ISREG(entry.mode))
                shown = (f"- {each.shown} ({each.size:,} bytes)" for each in entries if each.shown != SKILL_FILE)
                files = list(islice(shown, self._limits.files + 1))
        head = f"The skill {name!r}, written by the author of this agent. Follow it for the task that it fits. "
        head += "It allows nothing that is not allowed to you anyway."
        parts = [head, body.strip() or "(it has no instructions)"]
        if files:
            if len(files) > self._limits.files or walk.over is not None:
                files[self._limits.files :] = ["(There are more.)"]
            parts.append("\n".join(["Its other files, for read_skill_file:", *files]))
        return "\n\n".join(parts)

    def page(self, name: str, path: str, start: int, lines: int) -> str:
        """A page of a file of a skill, with numbered lines."""
        skill, place = self._require(name), workspace.parse_file_path(path)
        inside, label = f"{name}/{place}".encode(), str(place)
        try:
            advice = "it is too large to be read here"
            return pages.read_file_page(skill.folder, inside, label, start, lines, self._page_limits, advice)
        except workspace.FileMissing as error:
            raise SkillFileMissing(name, label) from error

    def _require(self, name: str) -> Skill:
        skill = self.skills.get(name)
        if skill is None:
            raise SkillUnknown(name, tuple(self.skills))
        return skill

    def _names(self, folder: workspace.Workspace, label: str) -> list[str]:
        """The subfolders of a folder. Files and hidden folders are not skills."""
        walk = workspace.DirectoryWalk(folder, (), WALK_SECONDS, self._limits.entries)
        with folder.directory(b".", label) as below:
            entries = [entry for entry in walk.entries(below, recursive=False) if not entry.shown.startswith(".")]
        if walk.over is not None:
            raise SkillFolderInvalid(label, f"not everything in it was looked at: {walk.over}")
        return [entry.shown for entry in entries if _is_folder(folder, entry, label)]

    def _read_front_matter(self, folder: workspace.Workspace, name: str, place: str) -> FrontMatter:
        """The front matter of a skill, without its body."""
        limits = self._limits
        with _as_skill_error(place), folder.file(f"{name}/{SKILL_FILE}".encode(), place) as number:
            size = os.fstat(number).st_size
            if size > limits.skill_bytes:
                raise SkillInvalid(place, f"it has {size:,} bytes, the limit is {limits.skill_bytes:,}")
            head = b""
            while len(head) < limits.front_bytes and (piece := os.read(number, limits.front_bytes - len(head))):
                head += piece
        return parse_front_matter(head, place, name)


def _is_folder(folder: workspace.Workspace, entry: workspace.WalkEntry, label: str) -> bool:
    """True if an entry is a folder, or a link to one that stays inside."""
    if not stat.S_ISLNK(entry.mode):
        return stat.S_ISDIR(entry.mode)
    place = f"{label}/{entry.shown}"
    with _as_skill_error(place), suppress(workspace.WrongKind), folder.directory(entry.path, entry.shown):
        return True
    return False


@contextmanager
def _as_skill_error(place: str) -> Generator[None]:
    try:
        yield
    except SkillInvalid:
        raise
    except workspace.FileMissing as error:
        raise SkillInvalid(place, f"there is no {SKILL_FILE}; write one, or take the folder away") from error
    except HoldfastError as error:
        raise SkillInvalid(place, error.reason if isinstance(error, workspace.PathRefused) else str(error)) from error


# ---- the tools ----

_OFFER: Final = (
    "Load a skill: instructions that the author of this agent wrote for a kind of task. "
    "Load one before you begin a task that its description fits, and follow it. Load none that does not fit.\n\n"
    "The skills are:"
)
_SLACK: Final = 20.0
"""Seconds beyond a walk, for a disk that does not answer."""
_AROUND: Final = 500
"""Characters around a skill, and for each of its files."""


def skills(*folders: Path | str, limits: SkillLimits | None = None, hard_links: bool = False) -> tuple[AnyTool, ...]:
    """Tools that load skills on demand: the folders in `folders` that have a ``SKILL.md``.

    The model sees the current names and descriptions; the tools read instructions and files when the model asks for
    them. The agent trusts these folders like its own instructions, so it should not be able to write there. The kernel
    keeps every open below the folder; a file with several names is refused unless `hard_links` is set.
    """
    if not folders:
        raise InvalidArgument("folders", folders, "at least one path of a folder")
    for folder in folders:
        if not isinstance(folder, (str, Path)):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers may be untyped
            raise InvalidArgument("folder", folder, "the path of a folder")
    bounds = SkillLimits() if limits is None else limits
    if not isinstance(bounds, SkillLimits):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers may be untyped
        raise InvalidArgument("limits", limits, "SkillLimits")
    library = SkillLibrary([Path(folder) for folder in folders], bounds, hard_links=hard_links)
    listed = (f"- {skill.front.name}: {skill.front.description}" for skill in library.skills.values())
    description = "\n".join([_OFFER, *listed])
    if len(description) > bounds.list_chars:
        reason = f"the list of skills has {len(description):,} characters, the limit is {bounds.list_chars:,}"
        raise SkillFolderInvalid(str(folders[-1]), f"{reason}; write shorter descriptions, or offer fewer skills")
    whole = bounds.skill_bytes + _AROUND * (bounds.files + 1)
    paths = dict.fromkeys(skill.folder.path for skill in library.skills.values())
    reach = Reach(workspaces=tuple(paths), hides_store=True)

    @tool(
        read_only=True,
        timeout=WALK_SECONDS + _SLACK,
        description=description,
        output_limit=min(whole, MAX_OUTPUT_LIMIT),
        reach=reach,
    )
    def load_skill(name: str) -> str:
        """Load a skill.

        Args:
            name: The name of the skill, as it stands in the list.
        """
        return library.load(name)

    @tool(read_only=True, timeout=WALK_SECONDS + _SLACK, reach=reach)
    def read_skill_file(name: str, path: str, start: int = 1, lines: int = 400) -> str:
        """Read a text file that belongs to a skill. Each line begins with its number and a tab.

        A long file comes in pages; the answer says where to go on. load_skill lists the files of a skill.

        Args:
            name: The name of the skill.
            path: The file, relative to the folder of the skill.
            start: The number of the first line to read. The first line of a file is 1.
            lines: How many lines to read.
        """
        return library.page(name, path, start, lines)

    return load_skill, read_skill_file
