"""The sandbox on this machine: the probe of bubblewrap, and the files and control groups of one command."""

from __future__ import annotations

import logging
import os
import platform
import re
import resource
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, Self, cast

from holdfast.toolkits.shell import policy

# ---- is there a sandbox? ----

MAX_PROCESSES: Final = 512
"""Most processes and threads of one command."""
MAX_FILE_BYTES: Final = 8 * 2**30
"""Largest file that a command may write."""
MAX_SEGMENTS: Final = 4096
"""The kernel's default limit of shared memory segments in one namespace."""
# Never from PATH: a workspace may be on it, and its programs would run unconfined.
_PROGRAMS: Final = ("/usr/bin", "/bin", "/usr/local/bin", "/run/wrappers/bin", "/run/current-system/sw/bin")
_ROOT_FOLDERS: Final = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
"""Names at the root that lead to programs: links into /usr on most machines."""
_ETC_FILES: Final = (
    *("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives", "/etc/localtime"),
    *("/etc/nsswitch.conf", "/etc/ssl/certs", "/etc/ssl/openssl.cnf", "/etc/ca-certificates", "/etc/pki/tls/certs"),
    *("/etc/mime.types", "/etc/protocols", "/etc/services"),
)
_RESOLVER_FILES: Final = ("/etc/hosts", "/etc/resolv.conf", "/etc/gai.conf")
"""Files for name resolution; only with the network."""
_PROBE_SECONDS: Final = 15
_log: Final = logging.getLogger("holdfast.shell")


def sandbox_problem() -> str | None:
    """The reason why commands can't be confined on this machine; None if they can. Probed once."""
    found = _probe()
    return None if found is None else found[0]


def require_sandbox() -> str:
    """The path of bubblewrap; raises `SandboxUnavailable` if commands can't be confined on this machine."""
    found = _probe()
    if found is not None:
        raise policy.SandboxUnavailable(*found)
    return cast("str", find_trusted_program("bwrap"))


@cache
def _probe() -> tuple[str, str] | None:
    """The missing part, and advice; None if nothing is missing."""
    if sys.platform != "linux":
        return f"bubblewrap needs Linux, this is {sys.platform}", "use a Linux machine"
    if not policy.is_supported(platform.machine()):
        return f"the system calls of {platform.machine()} are not known", "use an x86_64 or aarch64 machine"
    bwrap = find_trusted_program("bwrap")
    if bwrap is None:
        return "bubblewrap (bwrap) is not installed where only root can change it", "install the package bubblewrap"
    advice = "allow unprivileged user namespaces for bwrap (a sysctl, an AppArmor profile or the container's settings)"
    try:
        with TemporaryDirectory(prefix="holdfast-probe-") as folder, SandboxFiles() as files:
            line = policy.bwrap_arguments(
                shell_program(),
                "exit 42",
                bwrap=bwrap,
                tree=visible_tree("read"),
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
                    line,
                    input=b"\n",
                    env={},
                    pass_fds=files.descriptors,
                    capture_output=True,
                    timeout=_PROBE_SECONDS,
                    check=False,
                )
            except (OSError, subprocess.SubprocessError) as error:
                return f"bubblewrap could not be run ({type(error).__name__}: {error})", advice
    except policy.SandboxFailed as error:
        return f"the files that bubblewrap needs can't be made ({error.reason})", "run it outside of other sandboxes"
    if ran.returncode != 42:
        stderr = " ".join(ran.stderr.decode(errors="replace").split())[:300]
        return f"bubblewrap does not work here ({stderr or f'exit code {ran.returncode}'})", advice
    return None


@cache
def find_trusted_program(name: str) -> str | None:
    """The program of this name in a system folder, if only root can change it."""
    for folder in _PROGRAMS:
        path = shutil.which(name, path=folder)
        if path is not None:
            real = Path(path).resolve()
            found = (real.stat(), real.parent.stat())
            if all(each.st_uid == 0 and not each.st_mode & (stat.S_IWGRP | stat.S_IWOTH) for each in found):
                return path
    return None


@cache
def binds_open_files(bwrap: str) -> bool:
    """True if this bubblewrap can bind open files as well as paths."""
    try:
        asked = subprocess.run([bwrap, "--help"], env={}, capture_output=True, timeout=_PROBE_SECONDS, check=False)  # noqa: S603  a program that only root can change
    except (OSError, subprocess.SubprocessError):
        return False
    able = b"--ro-bind-fd" in asked.stdout + asked.stderr
    if not able:
        _log.warning("this bubblewrap has no --ro-bind-fd: protected names deeper down in a workspace can be written")
    return able


@cache
def shell_program() -> str:
    """The shell for commands: bash, which models write for, or /bin/sh."""
    return find_trusted_program("bash") or "/bin/sh"


@cache
def visible_tree(profile: policy.Profile) -> policy.HostTree:
    """The files of this machine that a command may see."""
    wanted = ["/usr", "/nix/store", "/gnu/store", *_ETC_FILES, *(_RESOLVER_FILES if profile == "network" else ())]
    folders = [path for path in wanted if Path(path).exists()]
    links: list[tuple[str, str]] = []
    for name in _ROOT_FOLDERS:
        if Path(name).is_symlink():
            links.append((name, str(Path(name).readlink())))
        elif Path(name).is_dir():
            folders.append(name)
    return policy.HostTree(tuple(folders), tuple(links))


def limit_process(process: int, memory: int, file_size: int = MAX_FILE_BYTES) -> None:
    """Limit a process and its children, each by itself. Control groups limit them together."""
    bounds = (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_DATA, memory),
        (resource.RLIMIT_FSIZE, file_size),
        (resource.RLIMIT_NOFILE, 4096),
        (resource.RLIMIT_NPROC, MAX_PROCESSES),
        (resource.RLIMIT_MSGQUEUE, 0),
    )
    for what, value in bounds:
        _, hard = resource.prlimit(process, what)
        most = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.prlimit(process, what, (most, most))


# ---- open files of one sandbox ----


class SandboxFiles:
    """The open files that one sandbox needs. Leaving the block closes those still open here."""

    def __init__(self, segment: int | None = 0) -> None:
        """`segment` is the largest piece of shared memory in one request, None for any."""
        self._open: set[int] = set()
        self._segment = segment

    def __enter__(self) -> Self:
        user = policy.SANDBOX_USER
        try:
            self.status, written = self._pipe()
            held, self._hold = self._pipe()
            self.descriptors = policy.SandboxDescriptors(
                filter=self._file("filter", policy.seccomp_program(platform.machine(), self._segment)),
                status=written,
                hold=held,
                accounts=self._file("passwd", f"sandbox:x:{user}:{user}::{policy.HOME}:/bin/sh\n".encode()),
                groups=self._file("group", f"sandbox:x:{user}:\n".encode()),
            )
        except OSError as error:
            self._close(*self._open)
            raise policy.SandboxFailed(f"no more files can be opened ({error.strerror})") from error
        return self

    def __exit__(self, *_: object) -> None:
        self._close(*self._open)

    def handed_over(self) -> None:
        """Close this process's ends of the sandbox's files, so that it sees when the sandbox closes them."""
        self._close(*self.descriptors)

    def begin(self) -> None:
        """Let the process that waits on `hold` continue: first the launcher, then the sandbox."""
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


# ---- control groups ----

_numbers: Final = count(1)


def group_limits(files: Iterable[str], memory: int) -> dict[str, int]:
    """The limits to write into a new group, by its files: cgroup versions 1 and 2 differ. Pure."""
    known = {"memory.max": memory, "memory.limit_in_bytes": memory, "pids.max": MAX_PROCESSES}
    return {name: known[name] for name in files if name in known}


class ControlGroup:
    """The control groups of one command."""

    def __init__(self, within: tuple[str, ...], memory: int) -> None:
        name = f"holdfast-{os.getpid()}-{next(_numbers)}"
        self.bounds_memory = False
        """True if all memory of the command counts together, including shared memory and files in memory."""
        self._folders: list[Path] = []
        for above in within:
            folder = Path(above) / name
            try:
                folder.mkdir()
                self._folders.append(folder)
                bounds = group_limits(os.listdir(folder), memory)  # only names are wanted
                if not bounds:
                    raise policy.ControlGroupRefused(str(folder.parent), "it hands down neither memory nor pids")
                for file, value in bounds.items():
                    (folder / file).write_text(str(value))
                    self.bounds_memory = self.bounds_memory or file.startswith("memory.")
            except OSError as error:
                self.remove()
                raise policy.ControlGroupRefused(above, f"no group can be made in it ({error.strerror})") from error

    def take_in(self, process: int) -> None:
        """Move a process in, with all processes that it starts from now on."""
        for folder in self._folders:
            (folder / "cgroup.procs").write_text(str(process))

    def remove(self, patience: float = 2.0) -> None:
        """Remove the groups. The kernel may need a moment after the last process has ended."""
        until = time.monotonic() + patience
        for folder in self._folders:
            while not _remove_group(folder) and time.monotonic() < until:
                time.sleep(0.002)
        self._folders.clear()


def check_control_groups(within: tuple[str, ...], memory: int) -> None:
    """Raise `ControlGroupRefused` if no group can be made there. Removes groups of killed processes."""
    for folder in within:
        with suppress(OSError):
            for name in os.listdir(folder):  # only names are wanted
                found = re.fullmatch(r"holdfast-(\d+)-\d+", name)
                if found is not None and not Path(f"/proc/{found[1]}").exists():
                    _remove_group(Path(folder) / name)
    ControlGroup(within, memory).remove()


def _remove_group(folder: Path) -> bool:
    try:
        folder.rmdir()  # only an empty group can be removed
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
