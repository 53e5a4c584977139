"""What a host gives a shell, checked once. Pure."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final, Literal, cast, get_args

from holdfast.bounds import check_int
from holdfast.errors import InvalidArgument, InvalidNumber
from holdfast.hands.shell.errors import CommandRefused

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from holdfast.hands.files.protected import Protection

Profile = Literal["read", "write", "network"]

WORKSPACE: Final = "/workspace"
"""Where a command finds the workspace."""
HOME: Final = "/tmp"  # noqa: S108  a folder inside the sandbox, made anew for each command
MAX_COMMAND: Final = 100_000
"""Longest command, in bytes: the kernel takes no argument over 128 KiB."""
MAX_SECONDS: Final = 24 * 3600.0

_LEAST_MEMORY: Final = 32 * 2**20
_LEAST_WORKSPACE: Final = 2**20
_LEAST_OUTPUT: Final = 500
_MOST_OUTPUT: Final = 10_000_000
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What every command of one shell gets."""

    workspace: str
    """The real path of the folder that commands work in."""
    protection: Protection
    """The names in it that stay as they are."""
    profile: Profile
    sandboxed: bool
    seconds: float
    memory: int
    output: int
    """How much of its output a command's result shows, in bytes."""
    variables: tuple[str, ...]
    """Names of variables of the host that commands get."""
    workspace_bytes: int
    """How much a workspace may hold before a command that adds to it is killed."""
    workspace_files: int
    """How many files and folders, in the same way."""
    control_groups: tuple[str, ...]
    """Folders below which each command gets a control group."""

    @property
    def writes(self) -> bool:
        """Whether a command can change anything that outlives it."""
        return not self.sandboxed or self.profile != "read"


def checked_profile(profile: object) -> Profile:
    """The profile itself, or `InvalidArgument`."""
    if profile not in get_args(Profile):
        raise InvalidArgument("profile", profile, "'read', 'write' or 'network'")
    return cast("Profile", profile)


def checked_seconds(timeout: object) -> float:
    """How long a command may run."""
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise InvalidArgument("timeout", timeout, "a number of seconds or a timedelta")
    if not (math.isfinite(seconds) and 0 < seconds <= MAX_SECONDS):
        raise InvalidNumber("timeout", timeout, f"it must be more than 0 and at most {MAX_SECONDS:,.0f} seconds")
    return float(seconds)


def checked_memory(memory: object) -> int:
    """How much memory a command may take, in bytes."""
    return check_int("memory", memory, least=_LEAST_MEMORY)


def checked_workspace_bytes(most: object) -> int:
    """How much a workspace may hold, in bytes."""
    return check_int("workspace_bytes", most, least=_LEAST_WORKSPACE)


def checked_workspace_files(most: object) -> int:
    """How many files and folders a workspace may hold."""
    return check_int("workspace_files", most, least=1)


def checked_output(limit: object) -> int:
    """How much of its output is shown, in bytes."""
    return check_int("output_limit", limit, least=_LEAST_OUTPUT, most=_MOST_OUTPUT)


def checked_variables(names: object) -> tuple[str, ...]:
    """The names of variables that commands get, in order, each once."""
    if isinstance(names, str) or not isinstance(names, tuple | list | set | frozenset):
        raise InvalidArgument("env", names, "a tuple of names of variables")
    found = cast("Iterable[object]", names)
    return tuple(sorted({_checked_variable(name) for name in found}))


def _checked_variable(name: object) -> str:
    if not isinstance(name, str) or not _VARIABLE.fullmatch(name):
        raise InvalidArgument("env", name, "names of variables (their values are read from the environment)")
    if name == "HOLDFAST_STORE_KEY":  # a command that has it could make approvals
        raise InvalidArgument("env", name, "a variable that is not the key of the store")
    if name.startswith("LD_"):  # the program that makes the sandbox would obey it too, outside
        raise InvalidArgument("env", name, "a variable that does not change how programs are loaded")
    return name


def environment(settings: Settings, host: Mapping[str, str]) -> dict[str, str]:
    """All that a command's environment holds: what every shell needs, and what the host lists."""
    told = {name: host[name] for name in settings.variables if name in host}
    home = HOME if settings.sandboxed else settings.workspace
    path = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
    return {"PATH": path, "HOME": home, "LANG": "C.UTF-8", "TERM": "dumb", **told}


def checked_command(command: str) -> str:
    """The command itself, or `CommandRefused` in words that a model can act on."""
    if not command.strip():
        raise CommandRefused("it is empty")
    if "\0" in command:
        raise CommandRefused("it has a NUL character in it; write such bytes with printf '\\0'")
    try:
        size = len(command.encode())
    except UnicodeEncodeError:
        raise CommandRefused("it is not valid Unicode: it has half of a surrogate pair in it") from None
    if size > MAX_COMMAND:
        raise CommandRefused(f"it is {size:,} bytes, the limit is {MAX_COMMAND:,}; do it in several commands")
    return command
