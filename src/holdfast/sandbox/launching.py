"""What a worker is started from: its own program, as it was installed, within bubblewrap.

The script and the filter are sealed files in memory: nobody can change them, and nothing is left behind.
"""

from __future__ import annotations

import errno
import fcntl
import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Final

from holdfast.errors.programs import ProgramsUnavailable, WorkerFailed
from holdfast.hands.shell import SandboxUnavailable
from holdfast.hands.shell.sandbox import require_sandbox, shell_program, shown_tree, trusted
from holdfast.hands.shell.syscalls import program
from holdfast.sandbox.confining import Cage, candidates, script

RUNTIME: Final = "pydantic-monty-runtime"
"""The package that has the worker in it."""
_INSTALL: Final = "pip install 'holdfast[code]'"
_MFD_EXEC: Final = 0x10
_SEALS: Final = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


def programs_problem() -> str | None:
    """Why no program can be run on this machine, or None when it can."""
    try:
        require_programs()
    except ProgramsUnavailable as error:
        return error.reason
    return None


def require_programs(*, confined: bool = True) -> None:
    """`ProgramsUnavailable` if no program can be run on this machine."""
    worker_binary()
    if confined:
        try:
            require_sandbox()
        except SandboxUnavailable as error:
            raise ProgramsUnavailable(error.reason, error.next_step) from error


def worker_binary() -> str:
    """The worker's program as its package installed it. Never what the environment or PATH say."""
    try:
        files = metadata.distribution(RUNTIME).files or ()
    except metadata.PackageNotFoundError:
        raise ProgramsUnavailable("pydantic-monty is not installed", _INSTALL) from None
    for file in files:
        path = Path(os.path.realpath(str(file.locate())))
        if file.name == "monty" and path.is_file():
            return str(path)
    raise ProgramsUnavailable("the package of pydantic-monty has no worker in it", f"{_INSTALL} again")


class Launcher:
    """The file that a worker is started from. It must be kept for as long as workers are to be started."""

    __slots__ = ("_open", "_owner", "path")

    def __init__(self, memory: int, *, confined: bool = True) -> None:
        self._open: list[int] = []
        self._owner = os.getpid()
        self.path = self._confined(memory) if confined else worker_binary()

    def fits(self) -> bool:
        """Whether it is of this process: after a fork, its files can't be found any more."""
        return self._owner == os.getpid()

    def close(self) -> None:
        """No worker is started from it any more."""
        while self._open:
            os.close(self._open.pop())

    def _confined(self, memory: int) -> str:
        bwrap = trusted("bwrap")
        if bwrap is None:  # it was there when the sandbox was made
            raise ProgramsUnavailable("bubblewrap (bwrap) is gone", "install it again")
        try:
            found = self._file("filter", program(platform.machine()), 0o400)
            cage = Cage(
                shell=shell_program(),
                bwrap=bwrap,
                binary=worker_binary(),
                tree=shown_tree("read"),
                libraries=tuple(path for path in candidates() if Path(path).is_dir()),
                filter=found,
                memory=memory,
            )
            return self._file("worker", script(cage).encode(), 0o500)
        except OSError as error:
            self.close()
            raise WorkerFailed(f"its files could not be made ({error.strerror})") from error

    def _file(self, name: str, content: bytes, mode: int) -> str:
        descriptor = _in_memory(f"holdfast-{name}")
        self._open.append(descriptor)
        os.write(descriptor, content)
        os.fchmod(descriptor, mode)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
        return f"/proc/{os.getpid()}/fd/{descriptor}"


def _in_memory(name: str) -> int:
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        return os.memfd_create(name, flags | _MFD_EXEC)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return os.memfd_create(name, flags)  # a kernel that needs no such mark
