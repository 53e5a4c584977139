"""The skill tools of some folders."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from holdfast.errors import InvalidArgument
from holdfast.hands.skills.errors import SkillFolderInvalid
from holdfast.hands.skills.limits import SkillLimits
from holdfast.hands.skills.shelf import SECONDS, Shelf
from holdfast.hands.skills.words import offered
from holdfast.tools import tool
from holdfast.tools.declared import MOST_OUTPUT
from holdfast.tools.reach import Reach

if TYPE_CHECKING:
    from holdfast.tools import AnyTool

_LINES: Final = 400
_SLACK: Final = 20.0
"""Beyond what a look into a folder may take: for a disk that does not answer."""
_AROUND: Final = 500
"""Characters that stand around a skill and for each of its files when it is loaded."""


def skills(*folders: Path | str, limits: SkillLimits | None = None, hard_links: bool = False) -> tuple[AnyTool, ...]:
    """Tools that load skills on demand: the folders in `folders` that have a ``SKILL.md``.

    The model sees names and descriptions, as they are when this is called; instructions and files are read when it asks
    for them, as they are then. What is in these folders is trusted like the instructions of the agent, so the agent
    should not be able to write there. The kernel keeps every open below the folder; a file with several names is
    refused unless `hard_links` is set.
    """
    if not folders:
        raise InvalidArgument("folders", folders, "at least one path of a folder")
    for folder in folders:
        if not isinstance(folder, (str, Path)):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers may be untyped
            raise InvalidArgument("folder", folder, "the path of a folder")
    bounds = SkillLimits() if limits is None else limits
    if not isinstance(bounds, SkillLimits):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers may be untyped
        raise InvalidArgument("limits", limits, "SkillLimits")
    shelf = Shelf([Path(folder) for folder in folders], bounds, hard_links=hard_links)
    offer = offered(shelf.fronts)
    if len(offer) > bounds.list_chars:
        reason = f"the list of skills has {len(offer):,} characters, the limit is {bounds.list_chars:,}"
        raise SkillFolderInvalid(str(folders[-1]), f"{reason}; write shorter descriptions, or offer fewer skills")
    return _tools(shelf, offer, bounds)


def _tools(shelf: Shelf, offer: str, limits: SkillLimits) -> tuple[AnyTool, ...]:
    whole = limits.skill_bytes + _AROUND * (limits.files + 1)
    reach = Reach(workspaces=shelf.folders, hides_store=True)

    @tool(
        read_only=True, timeout=SECONDS + _SLACK, description=offer, output_limit=min(whole, MOST_OUTPUT), reach=reach
    )
    def load_skill(name: str) -> str:
        """Load a skill.

        Args:
            name: The name of the skill, as it stands in the list.
        """
        return shelf.load(name)

    @tool(read_only=True, timeout=SECONDS + _SLACK, reach=reach)
    def read_skill_file(name: str, path: str, start: int = 1, lines: int = _LINES) -> str:
        """Read a text file that belongs to a skill. Each line begins with its number and a tab.

        A long file comes in pages; the answer says where to go on. load_skill lists the files of a skill.

        Args:
            name: The name of the skill.
            path: The file, relative to the folder of the skill.
            start: The number of the first line to read. The first line of a file is 1.
            lines: How many lines to read.
        """
        return shelf.page(name, path, start, lines)

    return load_skill, read_skill_file
