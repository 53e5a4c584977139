"""The sandbox on this machine: whether it works, and one command's files for it."""

from __future__ import annotations

import logging
import os
import platform
import resource
import shutil
import stat
import subprocess
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final, Self

from holdfast.hands.shell.confinement import (
    ACCOUNTS,
    GROUPS,
    NAMING,
    ROOTS,
    SETTINGS,
    SYSTEM,
    Confinement,
    Descriptors,
    Tree,
    arguments,
)
from holdfast.hands.shell.errors import SandboxFailed, SandboxUnavailable
from holdfast.hands.shell.syscalls import program, supported

if TYPE_CHECKING:
    from holdfast.hands.shell.settings import Profile

MAX_PROCESSES: Final = 512
"""How many processes and threads one command may have at once."""

MAX_FILE: Final = 8 * 2**30
"""Largest file that a command may write, in bytes."""
MAX_SEGMENTS: Final = 4096
"""How many pieces of shared memory the kernel gives to one namespace, unless somebody has changed that."""

# Never from PATH: a workspace may be on it, and what is found there would run unconfined.
_PROGRAMS: Final = ("/usr/bin", "/bin", "/usr/local/bin", "/run/wrappers/bin", "/run/current-system/sw/bin")
_PROBE_SECONDS: Final = 15
_INSTALL: Final = "install the package bubblewrap"
_OPEN_FILES: Final = 4096
_log: Final = logging.getLogger("holdfast.shell")


def sandbox_problem() -> str | None:
    """Why commands can't be confined on this machine, or None when they can. Found out once."""
    found = _found_out()
    return None if found is None else found[0]


def require_sandbox() -> None:
    """`SandboxUnavailable` if commands can't be confined on this machine."""
    found = _found_out()
    if found is not None:
        raise SandboxUnavailable(*found)


@cache
def _found_out() -> tuple[str, str] | None:
    """What is missing, and what to do about it."""
    if sys.platform != "linux":
        return f"bubblewrap needs Linux, this is {sys.platform}", "use a Linux machine"
    if not supported(platform.machine()):
        return f"the system calls of {platform.machine()} are not known", "use an x86_64 or aarch64 machine"
    bwrap = trusted("bwrap")
    if bwrap is None:
        return "bubblewrap (bwrap) is not installed where only root can change it", _INSTALL
    try:
        return _tried(bwrap)
    except SandboxFailed as error:
        return f"the files that bubblewrap needs can't be made ({error.reason})", "run it outside of other sandboxes"


def _tried(bwrap: str) -> tuple[str, str] | None:
    advice = "allow unprivileged user namespaces for bwrap (a sysctl, an AppArmor profile or the container's settings)"
    with TemporaryDirectory(prefix="holdfast-probe-") as folder, Files() as files:
        confinement = Confinement(
            bwrap=bwrap,
            tree=shown_tree("read"),
            workspace=os.path.realpath(folder),
            profile="read",
            covers=(),
            memory=2**26,
            descriptors=files.descriptors,
        )
        files.begin()
        files.begin()
        try:
            ran = subprocess.run(  # noqa: S603  a program that only root can change
                arguments(confinement, shell_program(), "exit 42"),
                input=b"\n",
                env={},
                pass_fds=files.descriptors.all(),
                capture_output=True,
                timeout=_PROBE_SECONDS,
                check=False,
            )
        except (OSError, subprocess.SubprocessError) as error:
            return f"bubblewrap could not be run ({type(error).__name__}: {error})", advice
    if ran.returncode != 42:
        said = " ".join(ran.stderr.decode(errors="replace").split())[:300]
        return f"bubblewrap does not work here ({said or f'exit code {ran.returncode}'})", advice
    return None


@cache
def trusted(name: str) -> str | None:
    """The program of this name in a folder of the system, if nobody but root can change it."""
    for folder in _PROGRAMS:
        path = shutil.which(name, path=folder)
        if path is not None and _only_root_writes(Path(path).resolve()):
            return path
    return None


@cache
def binds_open_files(bwrap: str) -> bool:
    """Whether this bubblewrap can bind what is open already, and not only what has a name."""
    try:
        asked = subprocess.run([bwrap, "--help"], env={}, capture_output=True, timeout=_PROBE_SECONDS, check=False)  # noqa: S603  a program that only root can change
    except (OSError, subprocess.SubprocessError):
        return False
    able = b"--ro-bind-fd" in asked.stdout + asked.stderr
    if not able:
        _log.warning("this bubblewrap has no --ro-bind-fd: protected names deeper down in a workspace can be written")
    return able


def _only_root_writes(path: Path) -> bool:
    found = (path.stat(), path.parent.stat())
    return all(each.st_uid == 0 and not each.st_mode & (stat.S_IWGRP | stat.S_IWOTH) for each in found)


@cache
def shell_program() -> str:
    """The shell that reads commands: bash, which models write for, or the one that every system has."""
    return trusted("bash") or "/bin/sh"


@cache
def shown_tree(profile: Profile) -> Tree:
    """What of this machine's files a command may see."""
    wanted = [*SYSTEM, *SETTINGS, *(NAMING if profile == "network" else ())]
    folders = [path for path in wanted if Path(path).exists()]
    links: list[tuple[str, str]] = []
    for name in ROOTS:
        if Path(name).is_symlink():
            links.append((name, str(Path(name).readlink())))
        elif Path(name).is_dir():
            folders.append(name)
    return Tree(tuple(folders), tuple(links))


def limit(process: int, memory: int, file_size: int = MAX_FILE) -> None:
    """Bound what a process, and each that it starts, may take. Groups bound them together, where there are any."""
    bounds = (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_DATA, memory),
        (resource.RLIMIT_FSIZE, file_size),
        (resource.RLIMIT_NOFILE, _OPEN_FILES),
        (resource.RLIMIT_NPROC, MAX_PROCESSES),
        (resource.RLIMIT_MSGQUEUE, 0),
    )
    for what, value in bounds:
        _, hard = resource.prlimit(process, what)
        most = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.prlimit(process, what, (most, most))


class Files:
    """The open files that one sandbox needs. Leaving the block closes those that are still ours."""

    __slots__ = ("_hold", "_open", "_segment", "descriptors", "status")

    def __init__(self, segment: int | None = 0) -> None:
        """`segment` is the largest piece of shared memory that a command can ask for, None for any."""
        self._open: set[int] = set()
        self._segment = segment

    def __enter__(self) -> Self:
        try:
            self.status, written = self._pipe()
            held, self._hold = self._pipe()
            self.descriptors = Descriptors(
                filter=self._file("filter", program(platform.machine(), self._segment)),
                status=written,
                hold=held,
                accounts=self._file("passwd", ACCOUNTS.encode()),
                groups=self._file("group", GROUPS.encode()),
            )
        except OSError as error:
            self._close(*self._open)
            raise SandboxFailed(f"no more files can be opened ({error.strerror})") from error
        return self

    def __exit__(self, *_: object) -> None:
        self._close(*self._open)

    def handed_over(self) -> None:
        """Close our ends of what the sandbox has now, so that we see when it closes them."""
        self._close(*self.descriptors.all())

    def begin(self) -> None:
        """Let what waits on `hold` go on: first the launcher, then the sandbox."""
        with suppress(BrokenPipeError):  # it ended already; its status says how
            os.write(self._hold, b"\n")

    def _close(self, *descriptors: int) -> None:
        for descriptor in descriptors:
            self._open.discard(descriptor)
            os.close(descriptor)

    def _pipe(self) -> tuple[int, int]:
        ends = os.pipe()
        self._open.update(ends)
        return ends

    def _file(self, name: str, content: bytes) -> int:
        descriptor = os.memfd_create(f"holdfast-{name}")
        self._open.add(descriptor)
        os.write(descriptor, content)
        os.lseek(descriptor, 0, os.SEEK_SET)
        return descriptor
