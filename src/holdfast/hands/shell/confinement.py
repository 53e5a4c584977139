"""What the sandbox of a command is made of: the arguments of bubblewrap. Pure.

The command sees the system's programs, a `/tmp` and a `/proc` of its own, and the workspace; all but the workspace
is read-only or made anew. There is no `/home`, no `/root`, no `/run`, no `/sys`, and of `/etc` only what programs need
to start.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from holdfast.hands.shell.settings import HOME, WORKSPACE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.hands.shell.protecting import Cover
    from holdfast.hands.shell.settings import Profile

USER: Final = 1000
"""Who the command believes it is; outside it is whoever runs us, with no capability."""
ACCOUNTS: Final = f"sandbox:x:{USER}:{USER}::{HOME}:/bin/sh\n"
GROUPS: Final = f"sandbox:x:{USER}:\n"

SYSTEM: Final = ("/usr", "/nix/store", "/gnu/store")
"""Folders with programs."""
ROOTS: Final = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
"""Names at the root that lead to programs: links into /usr on most machines."""
SETTINGS: Final = (
    *("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives", "/etc/localtime"),
    *("/etc/nsswitch.conf", "/etc/ssl/certs", "/etc/ssl/openssl.cnf", "/etc/ca-certificates", "/etc/pki/tls/certs"),
    *("/etc/mime.types", "/etc/protocols", "/etc/services"),
)
NAMING: Final = ("/etc/hosts", "/etc/resolv.conf", "/etc/gai.conf")
"""What finds other machines by name; only with the network."""

IN_MEMORY: Final = (HOME, "/dev/shm")  # noqa: S108  inside the sandbox
"""Folders that are made anew for each command and lie in memory; together they hold as much as one process may."""
_STAND_IN_BYTES: Final = 4096
_BY_NAME: Final = {"kept": "--ro-bind", "pinned": "--bind"}
_BY_DESCRIPTOR: Final = {True: "--bind-fd", False: "--ro-bind-fd"}

# bubblewrap is started when its process group is watched. If we die before, the line never comes.
_LAUNCH: Final = 'read -r go <"$0" && exec "$@"'
# The command waits until it is told to begin. If we die before, the line never comes and it is not run.
_BEGIN: Final = 'read -r go && exec </dev/null && exec "$0" -c "$1"'


@dataclass(frozen=True, slots=True)
class Tree:
    """What of the host's files there is to show."""

    folders: tuple[str, ...]
    links: tuple[tuple[str, str], ...]
    """Names that are links, with where they lead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Descriptors:
    """Open files that bubblewrap reads from and writes to."""

    filter: int
    status: int
    hold: int
    accounts: int
    groups: int

    def all(self) -> tuple[int, ...]:
        """Each of them, to be passed on."""
        return self.filter, self.status, self.hold, self.accounts, self.groups


@dataclass(frozen=True, slots=True)
class Bind:
    """A place in the workspace that is bound over itself by an open file: nobody can move or replace it."""

    path: str
    """From the top of the workspace."""
    descriptor: int
    writable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Confinement:
    """One command's sandbox."""

    bwrap: str
    tree: Tree
    workspace: str
    profile: Profile
    covers: tuple[Cover, ...]
    """What is laid over names at the top of the workspace, so that they stay as they are."""
    memory: int
    descriptors: Descriptors
    hidden: tuple[str, ...] = ()
    """Folders at the top of the workspace that are shown empty."""
    deeper: tuple[Bind, ...] = ()
    """Places deeper down in the workspace that stay where they are; outer ones first."""


def arguments(confinement: Confinement, shell: str, command: str) -> list[str]:
    """The whole command line."""
    fds = confinement.descriptors
    return [
        *("/bin/sh", "-c", _LAUNCH, f"/proc/self/fd/{fds.hold}"),
        confinement.bwrap,
        *_apart(confinement.profile),
        *_system(confinement.tree),
        *("--ro-bind-data", str(fds.accounts), "/etc/passwd", "--ro-bind-data", str(fds.groups), "/etc/group"),
        *_made_anew(confinement.memory),
        *_workspace(confinement),
        # Root outside is root to /proc/sys, with or without capabilities: a core_pattern would be run by the kernel.
        *("--remount-ro", "/proc", "--remount-ro", "/dev", "--remount-ro", "/"),
        *("--chdir", WORKSPACE),
        *("--json-status-fd", str(fds.status), "--block-fd", str(fds.hold), "--seccomp", str(fds.filter)),
        "--",
        *beginning(shell, command),
    ]


def beginning(shell: str, command: str) -> list[str]:
    """A shell that waits for a line on its standard input, and then becomes the command, with nothing to read."""
    return ["/bin/sh", "-c", _BEGIN, shell, command]


def _apart(profile: Profile) -> Sequence[str]:
    # Each namespace by name: with --unshare-all, bubblewrap goes on without a user namespace where it can't have one.
    namespaces = ["--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    if profile != "network":
        namespaces.append("--unshare-net")
    identity = ("--uid", str(USER), "--gid", str(USER), "--hostname", "sandbox")
    return [*namespaces, "--die-with-parent", "--new-session", "--cap-drop", "ALL", *identity]


def _system(tree: Tree) -> Sequence[str]:
    shown = [argument for folder in tree.folders for argument in ("--ro-bind", folder, folder)]
    return [*shown, *(argument for name, target in tree.links for argument in ("--symlink", target, name))]


def _made_anew(memory: int) -> Sequence[str]:
    size = str(memory // len(IN_MEMORY))
    shown = [argument for folder in IN_MEMORY for argument in ("--size", size, "--perms", "1777", "--tmpfs", folder)]
    return ["--proc", "/proc", "--dev", "/dev", *shown]


def _workspace(confinement: Confinement) -> Sequence[str]:
    hidden = [argument for name in confinement.hidden for argument in _emptied(f"{WORKSPACE}/{name}")]
    if confinement.profile == "read":
        return ["--ro-bind", confinement.workspace, WORKSPACE, *hidden]
    covers = [argument for cover in confinement.covers for argument in _cover(confinement.workspace, cover)]
    deeper = [
        argument
        for bind in confinement.deeper
        for argument in (_BY_DESCRIPTOR[bind.writable], str(bind.descriptor), f"{WORKSPACE}/{bind.path}")
    ]
    return ["--bind", confinement.workspace, WORKSPACE, *covers, *deeper, *hidden]


def _emptied(folder: str) -> Sequence[str]:
    """Lay an empty folder over this one. A mount can't be renamed or removed from inside."""
    return ["--size", "4096", "--perms", "0555", "--tmpfs", folder, "--remount-ro", folder]


def _cover(workspace: str, cover: Cover) -> Sequence[str]:
    place = f"{WORKSPACE}/{cover.path}"
    if cover.kind == "stand-in":
        # A file system of its own costs bubblewrap a quarter of a bind. What is put there is gone with the command.
        return ("--size", str(_STAND_IN_BYTES), "--perms", "0555", "--tmpfs", place)
    return (_BY_NAME[cover.kind], f"{workspace}/{cover.path}", place)
