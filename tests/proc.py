"""What the kernel says about processes: each of them may end between two questions."""

from __future__ import annotations

import os
from pathlib import Path

GONE = ""


def descendants(number: int) -> list[int]:
    """The processes that come from this one, also those that its threads have started."""
    found: list[int] = []
    for thread in _listed(f"/proc/{number}/task"):
        told = _read(f"/proc/{number}/task/{thread}/children").split()
        found += [each for child in map(int, told) for each in (child, *descendants(child))]
    return found


def named(name: str) -> list[int]:
    """The processes that come from us and have this name."""
    return [number for number in descendants(os.getpid()) if name_of(number) == name]


def name_of(number: int) -> str:
    """The name of a process; `GONE` if the kernel remembers none."""
    return _read(f"/proc/{number}/comm").strip()


def state(number: int) -> str:
    """The state of a process, like R, S, T or Z; `GONE` if the kernel remembers none."""
    return _state(f"/proc/{number}/stat")


def states(number: int) -> set[str]:
    """The states of the threads of a process."""
    return {_state(f"/proc/{number}/task/{thread}/stat") for thread in _listed(f"/proc/{number}/task")} - {GONE}


def lives(number: int) -> bool:
    """Whether a process has not ended, be it that somebody has taken notice of that or not."""
    return state(number) not in {GONE, "Z"}


def worked(number: int) -> float:
    """The processor time that a process has used itself, in seconds."""
    return sum(map(int, _fields(f"/proc/{number}/stat")[11:13])) / os.sysconf("SC_CLK_TCK")


def _state(stat: str) -> str:
    return next(iter(_fields(stat)), GONE)


def _fields(stat: str) -> list[str]:
    return _read(stat).rpartition(")")[2].split()


def _listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _read(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8")
    except OSError:
        return GONE
