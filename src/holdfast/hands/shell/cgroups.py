"""A control group for each command, below folders that the host hands over: it bounds the whole tree of processes.

Nothing is looked for: the group that this process is in belongs to whoever started it, and a process that is moved out
of it is lost to them. Where the host hands nothing over, the limits of single processes are all there is.
"""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Final

from holdfast.hands.shell.errors import ControlGroupRefused

if TYPE_CHECKING:
    from collections.abc import Iterable

_MINE: Final = re.compile(r"holdfast-(\d+)-\d+")
_numbers: Final = count(1)


def limits(files: Iterable[str], memory: int, processes: int) -> dict[str, int]:
    """What is written to which file of a new group, by the files that it has: version 1 and 2 differ. Pure."""
    known = {"memory.max": memory, "memory.limit_in_bytes": memory, "pids.max": processes}
    return {name: known[name] for name in files if name in known}


class Group:
    """The groups of one command: made, joined by its first process, and taken away when it has ended."""

    __slots__ = ("_folders", "bounds_memory")

    def __init__(self, within: tuple[str, ...], memory: int, processes: int) -> None:
        name = f"holdfast-{os.getpid()}-{next(_numbers)}"
        self.bounds_memory = False
        """Whether all memory of the command is bounded together, what it shares and files in memory included."""
        self._folders: list[Path] = []
        for folder in within:
            try:
                self._make(Path(folder) / name, memory, processes)
            except OSError as error:
                self.remove()
                raise ControlGroupRefused(folder, f"no group can be made in it ({error.strerror})") from error

    def take_in(self, process: int) -> None:
        """Move a process in; what it starts from now on is in as well."""
        for folder in self._folders:
            (folder / "cgroup.procs").write_text(str(process))

    def remove(self, patience: float = 2.0) -> None:
        """Take the groups away. The kernel may need a moment after the last process has ended."""
        until = time.monotonic() + patience
        for folder in self._folders:
            while not _removed(folder) and time.monotonic() < until:
                time.sleep(0.002)
        self._folders.clear()

    def _make(self, folder: Path, memory: int, processes: int) -> None:
        folder.mkdir()
        self._folders.append(folder)
        bounds = limits(os.listdir(folder), memory, processes)  # noqa: PTH208  only names are wanted
        if not bounds:
            raise ControlGroupRefused(str(folder.parent), "it hands down neither memory nor pids")
        for name, value in bounds.items():
            (folder / name).write_text(str(value))
            self.bounds_memory = self.bounds_memory or name.startswith("memory.")


def check(within: tuple[str, ...], memory: int, processes: int) -> None:
    """`ControlGroupRefused` if no group can be made there. Takes away what killed processes left behind."""
    for folder in within:
        with suppress(OSError):
            for name in os.listdir(folder):  # noqa: PTH208  only names are wanted
                found = _MINE.fullmatch(name)
                if found is not None and not Path(f"/proc/{found[1]}").exists():
                    _removed(Path(folder) / name)
    Group(within, memory, processes).remove()


def _removed(folder: Path) -> bool:
    try:
        folder.rmdir()  # only an empty group can be removed
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
