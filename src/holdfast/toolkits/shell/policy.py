"""The sandbox of a command as data: settings, the arguments of bubblewrap, and the filter of system calls. Pure.

The command sees the system's programs, a private `/tmp` and `/proc`, and the workspace; all but the workspace is
read-only or new. It sees no `/home`, `/root`, `/run` or `/sys`, and only the part of `/etc` that programs need to
start.
"""

from __future__ import annotations

import errno
import math
import re
import struct
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, cast

from holdfast.errors import InvalidArgument, InvalidNumber, UsageError, WorldError
from holdfast.errors.fields import ErrorFields

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from holdfast.toolkits.files.workspace import Protection


# ---- errors ----


class SandboxUnavailable(ErrorFields, UsageError):
    """This machine can't confine commands, so none runs. `next_step` is the remedy."""

    reason: str
    next_step: str
    _message = """commands can't be confined here: {reason}; {next_step}, or leave the shell out. Only unsafe=True runs
        commands without a sandbox"""


class WorkspaceRefused(ErrorFields, UsageError):
    """No command may run in this workspace."""

    path: str
    reason: str
    _message = "the workspace {path!r} can't be used: {reason}"


class ControlGroupRefused(ErrorFields, UsageError):
    """No control group can be made in this folder."""

    folder: str
    reason: str
    _message = "the control group {folder!r} can't be used: {reason}"


class CommandRefused(ErrorFields, UsageError):
    """No shell can run this command. It was not run."""

    reason: str
    _message = "the command was not run: {reason}"


class SandboxFailed(ErrorFields, WorldError):
    """The sandbox did not start. The command was not run."""

    reason: str
    _message = "the command was not run, its sandbox did not start: {reason}"


# ---- settings ----

Profile = Literal["read", "write", "network"]
WORKSPACE: Final = "/workspace"
"""Path of the workspace inside the sandbox."""
HOME: Final = "/tmp"  # noqa: S108  a folder inside the sandbox, made anew for each command
MAX_COMMAND: Final = 100_000
"""Longest command, in bytes: the kernel takes no argument over 128 KiB."""
MAX_SECONDS: Final = 24 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellSettings:
    """Settings for all commands of one shell."""

    workspace: str
    """The real path of the folder in which commands work."""
    protection: Protection
    """The names in it that commands can't change."""
    profile: Profile
    sandboxed: bool
    seconds: float
    memory: int
    output: int
    """Bytes of output that a result shows."""
    variables: tuple[str, ...]
    """Environment variables of the host that commands get."""
    workspace_bytes: int
    """Largest size of the workspace; a command that exceeds it is killed."""
    workspace_files: int
    """Most files and folders in the workspace; a command that exceeds it is killed."""
    control_groups: tuple[str, ...]
    """Folders below which each command gets a control group."""

    @property
    def writes(self) -> bool:
        """True if a command can change anything that outlives it."""
        return not self.sandboxed or self.profile != "read"


def check_timeout(timeout: object) -> float:
    """The longest time of a command in seconds."""
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise InvalidArgument("timeout", timeout, "a number of seconds or a timedelta")
    if not (math.isfinite(seconds) and 0 < seconds <= MAX_SECONDS):
        raise InvalidNumber("timeout", timeout, f"it must be more than 0 and at most {MAX_SECONDS:,.0f} seconds")
    return float(seconds)


def check_env(names: object) -> tuple[str, ...]:
    """The names of variables that commands get, sorted, each once."""
    if isinstance(names, str) or not isinstance(names, tuple | list | set | frozenset):
        raise InvalidArgument("env", names, "a tuple of names of variables")
    found: set[str] = set()
    for name in cast("Iterable[object]", names):
        if not isinstance(name, str) or not re.fullmatch("[A-Za-z_][A-Za-z0-9_]{0,127}", name):
            raise InvalidArgument("env", name, "names of variables (their values are read from the environment)")
        if name == "HOLDFAST_STORE_KEY":  # a command that has it could make approvals
            raise InvalidArgument("env", name, "a variable that is not the key of the store")
        if name.startswith("LD_"):  # bubblewrap itself would obey it too, outside the sandbox
            raise InvalidArgument("env", name, "a variable that does not change how programs are loaded")
        found.add(name)
    return tuple(sorted(found))


def make_environment(settings: ShellSettings, host: Mapping[str, str]) -> dict[str, str]:
    """The environment of a command: the variables every shell needs, and those that the host lists."""
    variables = {name: host[name] for name in settings.variables if name in host}
    home = HOME if settings.sandboxed else settings.workspace
    path = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
    return {"PATH": path, "HOME": home, "LANG": "C.UTF-8", "TERM": "dumb", **variables}


def check_command(command: str) -> str:
    """The command, or `CommandRefused` in words for a model."""
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


# ---- the arguments of bubblewrap ----

SANDBOX_USER: Final = 1000
"""The user inside the sandbox; outside it is the user of this process, without capabilities."""
TMPFS_FOLDERS: Final = (HOME, "/dev/shm")  # noqa: S108  inside the sandbox
"""Folders in memory, new for each command; together they hold as much as one process may."""
# bubblewrap starts once its process group is watched. If this process dies before, the line never comes.
_LAUNCH: Final = 'read -r go <"$0" && exec "$@"'
# The command waits for a line. If this process dies first, the line never comes and the command does not run.
_BEGIN: Final = 'read -r go && exec </dev/null && exec "$0" -c "$1"'


@dataclass(frozen=True, slots=True)
class HostTree:
    """The files of the host that a sandbox shows."""

    folders: tuple[str, ...]
    links: tuple[tuple[str, str], ...]
    """Links, with their targets."""


class SandboxDescriptors(NamedTuple):
    """Open files of bubblewrap."""

    filter: int
    status: int
    hold: int
    accounts: int
    groups: int


CoverKind = Literal["stand-in", "kept", "pinned"]


@dataclass(frozen=True, slots=True)
class NameCover:
    """A mount over one path in the workspace: an empty folder, the path itself read-only, or itself to pin it down."""

    path: str
    """From the top of the workspace."""
    kind: CoverKind
    descriptor: int | None = None
    """The open file that is bound, so that it can't be replaced meanwhile; None to bind by path."""


def isolation_arguments(tree: HostTree, *, network: bool) -> list[str]:
    """The arguments of bubblewrap that separate any sandbox from the host, except for the files in `tree`."""
    user = str(SANDBOX_USER)
    return [
        # Each namespace by name: with --unshare-all, bubblewrap continues even without a user namespace.
        *("--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"),
        *(() if network else ("--unshare-net",)),
        *("--die-with-parent", "--new-session", "--cap-drop", "ALL"),
        *("--uid", user, "--gid", user, "--hostname", "sandbox"),
        *(argument for folder in tree.folders for argument in ("--ro-bind", folder, folder)),
        *(argument for name, target in tree.links for argument in ("--symlink", target, name)),
    ]


def bwrap_arguments(
    shell: str,
    command: str,
    *,
    bwrap: str,
    tree: HostTree,
    workspace: str,
    profile: Profile,
    covers: Sequence[NameCover],
    memory: int,
    descriptors: SandboxDescriptors,
    hidden: Sequence[str] = (),
) -> list[str]:
    """The whole command line of bubblewrap for one command.

    `covers` are mounts that protect names in the workspace, outer ones first. `hidden` are folders at its top that
    appear empty.
    """
    size = str(memory // len(TMPFS_FOLDERS))
    accounts, groups = str(descriptors.accounts), str(descriptors.groups)
    return [
        *("/bin/sh", "-c", _LAUNCH, f"/proc/self/fd/{descriptors.hold}"),
        bwrap,
        *isolation_arguments(tree, network=profile == "network"),
        *("--ro-bind-data", accounts, "/etc/passwd", "--ro-bind-data", groups, "/etc/group"),
        *("--proc", "/proc", "--dev", "/dev"),
        *(part for folder in TMPFS_FOLDERS for part in ("--size", size, "--perms", "1777", "--tmpfs", folder)),
        *_workspace_arguments(workspace, covers, hidden, read_only=profile == "read"),
        # Root outside is root to /proc/sys, with or without capabilities: a core_pattern would be run by the kernel.
        *("--remount-ro", "/proc", "--remount-ro", "/dev", "--remount-ro", "/"),
        *("--chdir", WORKSPACE),
        *("--json-status-fd", str(descriptors.status), "--block-fd", str(descriptors.hold)),
        *("--seccomp", str(descriptors.filter)),
        "--",
        *shell_arguments(shell, command),
    ]


def shell_arguments(shell: str, command: str) -> list[str]:
    """A shell that waits for a line on its standard input, and then becomes the command, with empty input."""
    return ["/bin/sh", "-c", _BEGIN, shell, command]


def _workspace_arguments(
    workspace: str, covers: Sequence[NameCover], hidden: Sequence[str], *, read_only: bool
) -> list[str]:
    made = ["--ro-bind" if read_only else "--bind", workspace, WORKSPACE]
    # A tmpfs costs bubblewrap a quarter of a bind. Its contents end with the command.
    empty = ("--size", "4096", "--perms", "0555", "--tmpfs")
    for cover in () if read_only else covers:
        place = f"{WORKSPACE}/{cover.path}"
        bind = "--ro-bind" if cover.kind == "kept" else "--bind"
        if cover.kind == "stand-in":
            made += (*empty, place)
        elif cover.descriptor is None:
            made += (bind, f"{workspace}/{cover.path}", place)
        else:
            made += (f"{bind}-fd", str(cover.descriptor), place)
    for name in hidden:  # a mount can't be renamed or removed from inside
        made += (*empty, f"{WORKSPACE}/{name}", "--remount-ro", f"{WORKSPACE}/{name}")
    return made


# ---- the filter of system calls: a BPF program for seccomp ----

_LOAD: Final = 0x20  # BPF_LD | BPF_W | BPF_ABS
_AND: Final = 0x54  # BPF_ALU | BPF_AND | BPF_K
_EQUAL: Final = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
_AT_LEAST: Final = 0x35  # BPF_JMP | BPF_JGE | BPF_K
_MORE: Final = 0x25  # BPF_JMP | BPF_JGT | BPF_K
_ANY_BIT: Final = 0x45  # BPF_JMP | BPF_JSET | BPF_K
_RETURN: Final = 0x06  # BPF_RET | BPF_K
_ALLOW: Final = 0x7FFF0000
_KILL: Final = 0x80000000
_ERROR: Final = 0x00050000
# CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET
_NEW_NAMESPACES: Final = 0x7E020000
# TIOCSTI types into a terminal, TIOCLINUX pastes into a console.
_TERMINAL_INPUT: Final = (0x5412, 0x541C)
# AF_INET, AF_INET6, AF_NETLINK. Not AF_UNIX: a socket file in the workspace may lead to a service of the host.
_FAMILIES: Final = (2, 10, 16)
# SOCK_STREAM, SOCK_SEQPACKET. A pair of datagram sockets can be turned to any socket file.
_PAIRS: Final = (1, 5)
Instruction = tuple[int, int, int, int]
_ALLOWED: Final[Instruction] = (_RETURN, 0, 0, _ALLOW)


# The column of each machine in the tables below, and its number for the kernel.
_MACHINES: Final = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
# Each call with its number on x86_64 and on aarch64; None where there is no such call.
_REFUSED: Final[dict[str, tuple[int | None, int | None]]] = {
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "pidfd_getfd": (438, 438), "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    "bpf": (321, 280), "userfaultfd": (323, 282), "perf_event_open": (298, 241), "fanotify_init": (300, 262),
    "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265), "mount": (165, 40), "umount2": (166, 39),
    "pivot_root": (155, 41), "chroot": (161, 51), "open_tree": (428, 428), "move_mount": (429, 429),
    "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433),
    "mount_setattr": (442, 442), "open_tree_attr": (467, 467), "setns": (308, 268), "unshare": (272, 97),
    "swapon": (167, 224), "swapoff": (168, 225), "quotactl": (179, 60), "quotactl_fd": (443, 443), "acct": (163, 89),
    "reboot": (169, 142), "kexec_load": (246, 104), "kexec_file_load": (320, 294), "init_module": (175, 105),
    "finit_module": (313, 273), "delete_module": (176, 106), "settimeofday": (164, 170), "adjtimex": (159, 171),
    "clock_settime": (227, 112), "clock_adjtime": (305, 266), "sethostname": (170, 161), "setdomainname": (171, 162),
    "syslog": (103, 116), "personality": (135, 92), "lookup_dcookie": (212, 18), "nfsservctl": (180, 42),
    "vhangup": (153, 58), "migrate_pages": (256, 238), "move_pages": (279, 239), "iopl": (172, None),
    "ioperm": (173, None), "modify_ldt": (154, None), "uselib": (134, None), "_sysctl": (156, None),
}  # fmt: skip
# Programs probe for these and have a fallback.
_ABSENT: Final[dict[str, tuple[int | None, int | None]]] = {
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    # The flags of clone3 and the mode of openat2 are in memory, where this program can't look.
    "clone3": (435, 435), "openat2": (437, 437), "memfd_secret": (447, 447),
}  # fmt: skip
_SET_ID: Final = 0o6000
_MAKES: Final = 0o100 | 0o20000000  # O_CREAT, __O_TMPFILE: without them, the mode is an arbitrary register value
# Calls that give a file its mode, with the positions of the mode and of the flags that announce it.
_MODES: Final[tuple[tuple[tuple[int | None, int | None], int, int | None], ...]] = (
    ((90, None), 1, None),  # chmod
    ((91, 52), 1, None),  # fchmod
    ((268, 53), 2, None),  # fchmodat
    ((452, 452), 2, None),  # fchmodat2
    ((85, None), 1, None),  # creat
    ((133, None), 1, None),  # mknod
    ((259, 33), 2, None),  # mknodat
    ((2, None), 2, 1),  # open
    ((257, 56), 3, 2),  # openat
)


def is_supported(machine: str) -> bool:
    """True if the system calls of this machine (its `uname` name) are known."""
    return machine in _MACHINES


def denied_calls(machine: str, segment: int | None = 0) -> dict[str, tuple[int, int]]:
    """The calls that always fail on `machine`, each with its number and error."""
    column, _ = _MACHINES[machine]
    absent = _ABSENT if segment is None else _ABSENT | {"memfd_create": (319, 279)}
    return {
        name: (number, error)
        for calls, error in ((_REFUSED, errno.EPERM), (absent, errno.ENOSYS))
        for name, numbers in calls.items()
        if (number := numbers[column]) is not None
    }


def seccomp_program(machine: str, segment: int | None = 0) -> bytes:
    """The filter for `machine`, in the kernel's format.

    `segment` is the largest piece of shared memory in one request; memfd files are denied then, since no limit of a
    process counts them. None allows both, for a control group that counts all memory.
    """
    column, architecture = _MACHINES[machine]
    parts = [
        (_LOAD, 0, 0, 4),  # where struct seccomp_data has the architecture; it begins with the number of the call
        (_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, 0),
    ]
    if machine == "x86_64":  # x32: the same calls under other numbers
        parts += [(_AT_LEAST, 0, 1, 0x40000000), _fail(errno.ENOSYS)]
    for number, error in denied_calls(machine, segment).values():
        parts += _when(number, [_fail(error)])
    namespaces = [*_argument(0), (_ANY_BIT, 0, 1, _NEW_NAMESPACES), _fail(errno.EPERM), _ALLOWED]
    terminal = [*_argument(1), *_jump_over_next(_TERMINAL_INPUT), _ALLOWED, _fail(errno.EPERM)]
    parts += _when((56, 220)[column], namespaces)  # clone
    parts += _when((16, 29)[column], terminal)  # ioctl
    parts += _when((41, 198)[column], [*_argument(0), *_one_of(_FAMILIES, errno.EAFNOSUPPORT)])  # socket
    parts += _when((53, 199)[column], [*_argument(1), (_AND, 0, 0, 0xF), *_one_of(_PAIRS, errno.EPERM)])  # socketpair
    if segment is not None:
        parts += _when((29, 194)[column], [*_above(1, segment, errno.ENOMEM), _ALLOWED])  # shmget
    for numbers, mode, flags in _MODES:
        number = numbers[column]
        if number is not None:
            given = [] if flags is None else [*_argument(flags), (_ANY_BIT, 1, 0, _MAKES), _ALLOWED]
            parts += _when(number, [*given, *_argument(mode), (_ANY_BIT, 0, 1, _SET_ID), _fail(errno.EPERM), _ALLOWED])
    parts.append(_ALLOWED)
    return b"".join(struct.pack("=HBBI", *part) for part in parts)


def _fail(error: int) -> Instruction:
    return (_RETURN, 0, 0, _ERROR | error)


def _argument(place: int) -> list[Instruction]:
    # The low half: the arguments that are looked at here are 32 bits wide, the kernel drops the rest.
    return [(_LOAD, 0, 0, 16 + 8 * place)]


def _above(place: int, most: int, error: int) -> list[Instruction]:
    """Fail if a 64-bit argument is more than `most`, which has 32 bits."""
    high = (_LOAD, 0, 0, 20 + 8 * place)
    return [high, (_EQUAL, 1, 0, 0), _fail(error), *_argument(place), (_MORE, 0, 1, min(most, 2**32 - 1)), _fail(error)]


def _when(number: int, then: list[Instruction]) -> list[Instruction]:
    """`then`, which must end in a return, for the call with this number; other calls skip it."""
    return [(_EQUAL, 0, len(then), number), *then]


def _one_of(values: tuple[int, ...], error: int) -> list[Instruction]:
    return [*_jump_over_next(values), _fail(error), _ALLOWED]


def _jump_over_next(values: tuple[int, ...]) -> list[Instruction]:
    """Skip the instruction after these if the loaded value is one of `values`."""
    return [(_EQUAL, len(values) - place, 0, value) for place, value in enumerate(values)]
