"""`files(...)`: tools that list, read, search, write and edit the files of one directory, confined by the kernel."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from holdfast.errors import InvalidArgument
from holdfast.toolkits.files.edits import EditMismatch as EditMismatch
from holdfast.toolkits.files.edits import FileChanged as FileChanged
from holdfast.toolkits.files.edits import FileWriter
from holdfast.toolkits.files.pages import read_file_page
from holdfast.toolkits.files.search import FileSearch, list_directory
from holdfast.toolkits.files.search import PatternInvalid as PatternInvalid
from holdfast.toolkits.files.search import SearchStopped as SearchStopped
from holdfast.toolkits.files.search import SearchUnavailable as SearchUnavailable
from holdfast.toolkits.files.workspace import PROTECTED_NAMES as PROTECTED_NAMES
from holdfast.toolkits.files.workspace import SKIPPED as SKIPPED
from holdfast.toolkits.files.workspace import ConfinementUnavailable as ConfinementUnavailable
from holdfast.toolkits.files.workspace import FileFailed as FileFailed
from holdfast.toolkits.files.workspace import FileLimits as FileLimits
from holdfast.toolkits.files.workspace import FileMissing as FileMissing
from holdfast.toolkits.files.workspace import FileTooLarge as FileTooLarge
from holdfast.toolkits.files.workspace import NotText as NotText
from holdfast.toolkits.files.workspace import PathProtected as PathProtected
from holdfast.toolkits.files.workspace import PathRefused as PathRefused
from holdfast.toolkits.files.workspace import Workspace, make_protection, parse_file_path, parse_path
from holdfast.toolkits.files.workspace import WrongKind as WrongKind
from holdfast.tools.definition import AnyTool, Reach, tool

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.tools.context import Context


_SLACK: Final = 25.0  # beyond the deadline of a search: for a disk that does not answer
_LINES: Final = 400


def files(
    root: Path | str,
    *,
    write: bool = True,
    protect: Sequence[str] = (),
    unprotect: Sequence[str] = (),
    skip: Sequence[str] = SKIPPED,
    hard_links: bool = False,
    limits: FileLimits | None = None,
) -> tuple[AnyTool, ...]:
    """Tools that list, read, search, write and edit only the files below `root`.

    The kernel keeps every open below `root`, also while other processes rename directories or replace them by links.
    `write=False` leaves only the reading tools. Names on which other programs act are never written (`PROTECTED_NAMES`:
    git hooks, start-up files of shells, configuration of agents and builds); `protect` adds names and `unprotect`
    removes some. Lists and searches do not enter directories in `skip` unless asked for one by name. A file with
    several names (hard links) is refused unless `hard_links` is set, because the other names may be elsewhere.
    """
    if isinstance(skip, str):
        raise InvalidArgument("skip", skip, "a sequence of names")
    bounds = FileLimits() if limits is None else limits
    workspace = Workspace(root, hard_links=hard_links)
    writer = FileWriter(workspace, make_protection(protect, unprotect, Path(workspace.path).parts), bounds)
    skipped, timeout, folder = tuple(skip), bounds.seconds + _SLACK, workspace.path
    writes = Reach(family="files", external=False, paths=("path",), base=folder, workspaces=(folder,), hides_store=True)
    reads = replace(writes, private=True)

    @tool(read_only=True, timeout=timeout, reach=reads)
    def list_files(path: str = ".", glob: str = "", recursive: bool = False) -> str:  # for models
        """List the files and directories in a directory of the workspace.

        Directories end in '/'. Links are shown, not followed. Directories such as .git and node_modules are shown, but
        listed only when path leads there.

        Args:
            path: The directory, relative to the workspace. '.' is the workspace itself.
            glob: Only what matches, such as '*.py' or 'src/**/*.{ts,tsx}'. A glob with '/' also looks into directories.
            recursive: Also list what is in the directories below.
        """
        return list_directory(workspace, bounds, skipped, parse_path(path), glob, recursive=recursive)

    @tool(read_only=True, timeout=timeout, reach=reads)
    def read_file(path: str, start: int = 1, lines: int = _LINES) -> str:
        """Read a text file of the workspace. Each line begins with its number and a tab, which are not in the file.

        A long file comes in pages; the answer says where to go on. Very long lines are cut.

        Args:
            path: The file, relative to the workspace.
            start: The number of the first line to read. The first line of a file is 1.
            lines: How many lines to read.
        """
        place = parse_file_path(path)
        advice = "use search_files to find the part that you need"
        return read_file_page(workspace, str(place).encode(), str(place), start, lines, bounds, advice)

    @tool(read_only=True, timeout=timeout, reach=reads)
    def search_files(
        pattern: str,
        path: str = ".",
        glob: str = "",
        ignore_case: bool = False,  # for models
        context: int = 0,
    ) -> str:
        r"""Find lines that match a regular expression in the text files of the workspace.

        Answers lines such as 'src/app.py:12: text'. Each line is matched by itself. The search has a deadline.

        Args:
            pattern: A regular expression in Python's syntax. Escape what is meant literally: 'main\(\)'.
            path: The directory or the file to search, relative to the workspace.
            glob: Only files that match, such as '*.py' or 'src/**/*.{ts,tsx}'.
            ignore_case: Whether upper and lower case are the same.
            context: How many lines to show before and after each match, 0 to 10.
        """
        search = FileSearch(workspace, bounds, skipped)
        return search.run(parse_path(path), pattern, glob, ignore_case=ignore_case, context=context)

    if not write:
        return list_files, read_file, search_files

    @tool(idempotent=True, destructive=True, reach=writes)
    def write_file(path: str, content: str) -> str:
        """Create a file in the workspace, or replace all of it. Directories on the way are created.

        To change a part of a file use edit_file. Some names are protected and can't be written.

        Args:
            path: The file, relative to the workspace.
            content: The whole text of the file.
        """
        return writer.write(parse_file_path(path), content)

    def reconcile(ctx: Context, path: str, old: str, new: str, all: bool = False) -> str:  # noqa: ARG001
        return writer.find_out(parse_file_path(path), old, new)

    @tool(destructive=True, reconcile=reconcile, reach=writes)
    def edit_file(path: str, old: str, new: str, all: bool = False) -> str:  # for models
        """Replace a piece of a text file in the workspace, exactly.

        The old text must be in the file once, to the last space and line break, so give enough of what is around it.
        Nothing is changed if it is not there, or there more than once and all is false.

        Args:
            path: The file, relative to the workspace.
            old: The text to replace, without line numbers.
            new: The text to put in its place. An empty text deletes.
            all: Replace every occurrence.
        """
        return writer.edit(parse_file_path(path), old, new, every=all)

    return list_files, read_file, search_files, write_file, edit_file
