"""What the sandbox around a worker is made of: the script that starts it in bubblewrap. Pure.

A worker sees its own program and the libraries of the system, read-only, and nothing else: no `/proc`, no `/dev`, no
`/tmp`, no network, no other process. It talks over the two pipes that it was started with.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from holdfast.hands.shell.confinement import USER

if TYPE_CHECKING:
    from holdfast.hands.shell.confinement import Tree

PROGRAM: Final = "/worker"
"""Where a worker finds its own program."""
_LIBRARIES: Final = ("/usr", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/gnu/store", "/etc/ld.so.cache")
_UNDER_USR: Final = ("/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/libx32", "/usr/local/lib")
_FILTER: Final = 9  # the highest number that every shell can redirect
_CLOSES: Final = "02000000"  # O_CLOEXEC
_OPEN_FILES: Final = 64
_OVERHEAD: Final = 512 * 2**20
"""What a worker takes beside the program's own memory: its type checker, above all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cage:
    """All that the script has to know."""

    shell: str
    bwrap: str
    binary: str
    """The worker's program on this machine."""
    tree: Tree
    """What of this machine there is to show; of it, only libraries are."""
    libraries: tuple[str, ...]
    """Those of `candidates()` that are there."""
    filter: str
    """A file with the filter of system calls."""
    memory: int


def candidates() -> tuple[str, ...]:
    """Folders below /usr that may hold libraries."""
    return _UNDER_USR


def script(cage: Cage) -> str:
    """A script that becomes the worker. What it is called with, the worker gets."""
    line = shlex.join(_arguments(cage))
    return (
        f"#!{cage.shell}\n"
        # The line comes when the process group is watched: bubblewrap that is killed at its start leaves a process.
        "read -r go || exit 125\n"
        # Files that this process has open without the mark that closes them: a worker must not have them.
        "for place in /proc/self/fd/*; do\n"
        "  number=${place##*/}\n"
        "  case $number in 0|1|2) continue ;; esac\n"
        "  [ -e $place ] || continue\n"
        "  while read -r key flags; do\n"
        "    [ $key = flags: ] && break\n"
        "  done </proc/self/fdinfo/$number\n"
        f'  [ $((flags & {_CLOSES})) = 0 ] && {{ eval "exec $number>&-" || exit 125; }}\n'
        "done\n"
        f"ulimit -c 0 && ulimit -f 0 && ulimit -n {_OPEN_FILES} && ulimit -d {_kilobytes(cage)} || exit 125\n"
        f"exec {_FILTER}<{shlex.quote(cage.filter)} || exit 125\n"
        f'exec {line} "$@" 2>/dev/null\n'
    )


def _kilobytes(cage: Cage) -> int:
    return (cage.memory + _OVERHEAD) // 1024


def _arguments(cage: Cage) -> list[str]:
    # Each namespace by name: with --unshare-all, bubblewrap goes on without a user namespace where it can't have one.
    apart = [
        "--unshare-user",
        "--unshare-pid",
        "--unshare-ipc",
        "--unshare-uts",
        "--unshare-cgroup-try",
        "--unshare-net",
    ]
    identity = ["--uid", str(USER), "--gid", str(USER), "--hostname", "sandbox"]
    return [
        cage.bwrap,
        *apart,
        *("--die-with-parent", "--new-session", "--cap-drop", "ALL", "--clearenv"),
        *identity,
        *_shown(cage),
        *("--ro-bind", cage.binary, PROGRAM, "--remount-ro", "/", "--chdir", "/"),
        *("--seccomp", str(_FILTER), "--", PROGRAM),
    ]


def _shown(cage: Cage) -> list[str]:
    whole = [path for path in cage.tree.folders if path in _LIBRARIES and path != "/usr"]
    shown = [argument for path in (*whole, *cage.libraries) for argument in ("--ro-bind", path, path)]
    links = [(name, target) for name, target in cage.tree.links if name in _LIBRARIES]
    return [*shown, *(argument for name, target in links for argument in ("--symlink", target, name))]
