"""Which system calls a confined command may not make, as the program that the kernel runs before each. Pure.

It is a list of what is denied: namespaces and capabilities confine the command, and this closes doors that they leave
open: parts of the kernel that a command has no use for, new namespaces, other processes' memory, sockets by which
something outside could be asked to act, files that run as their owner or group, and memory that no limit counts.
"""

from __future__ import annotations

import errno
import struct
from dataclasses import dataclass
from typing import Final

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

_NUMBER: Final = 0  # where struct seccomp_data has the number of the call
_ARCHITECTURE: Final = 4
_X32: Final = 0x40000000

# CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET
_NEW_NAMESPACES: Final = 0x7E020000
# TIOCSTI types into a terminal, TIOCLINUX pastes into a console.
_TERMINAL_INPUT: Final = (0x5412, 0x541C)
# AF_INET, AF_INET6, AF_NETLINK. Not AF_UNIX: a socket file in the workspace may lead to a service of the host.
_FAMILIES: Final = (2, 10, 16)
# SOCK_STREAM, SOCK_SEQPACKET. A pair of datagram sockets can be turned to any socket file.
_PAIRS: Final = (1, 5)
_TYPE: Final = 0xF

Instruction = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class _Machine:
    architecture: int
    column: int
    x32: bool


_MACHINES: Final = {
    "x86_64": _Machine(0xC000003E, 0, x32=True),
    "aarch64": _Machine(0xC00000B7, 1, x32=False),
}

# Each call with its number on x86_64 and on aarch64; None where there is no such call.
_REFUSED: Final[dict[str, tuple[int | None, int | None]]] = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "userfaultfd": (323, 282),
    "perf_event_open": (298, 241),
    "fanotify_init": (300, 262),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "open_tree_attr": (467, 467),
    "setns": (308, 268),
    "unshare": (272, 97),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "acct": (163, 89),
    "reboot": (169, 142),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "settimeofday": (164, 170),
    "adjtimex": (159, 171),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "syslog": (103, 116),
    "personality": (135, 92),
    "lookup_dcookie": (212, 18),
    "nfsservctl": (180, 42),
    "vhangup": (153, 58),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    "iopl": (172, None),
    "ioperm": (173, None),
    "modify_ldt": (154, None),
    "uselib": (134, None),
    "_sysctl": (156, None),
}
# Programs ask whether the kernel has these, and have another way when it says no.
_ABSENT: Final[dict[str, tuple[int | None, int | None]]] = {
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "clone3": (435, 435),  # its flags are in memory, where this program can't look
    "openat2": (437, 437),  # its mode is, too
    "memfd_secret": (447, 447),
}
_MEMFD: Final[dict[str, tuple[int | None, int | None]]] = {"memfd_create": (319, 279)}
_CLONE: Final = (56, 220)
_IOCTL: Final = (16, 29)
_SOCKET: Final = (41, 198)
_SOCKETPAIR: Final = (53, 199)
_SHMGET: Final = (29, 194)

_SET_ID: Final = 0o6000
_MAKES: Final = 0o100 | 0o20000000  # O_CREAT, __O_TMPFILE: without them, the mode is whatever lies in the register
# Calls that give a file its mode, with the places of the mode and of the flags that say whether there is one.
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


def supported(machine: str) -> bool:
    """Whether the calls of this machine, as `uname` names it, are known here."""
    return machine in _MACHINES


def denied(machine: str, segment: int | None = 0) -> dict[str, tuple[int, int]]:
    """The calls that always fail on `machine`: the number of each, and the error that it gives."""
    column = _MACHINES[machine].column
    found: dict[str, tuple[int, int]] = {}
    uncounted = {} if segment is None else _MEMFD
    for calls, error in ((_REFUSED, errno.EPERM), (_ABSENT, errno.ENOSYS), (uncounted, errno.ENOSYS)):
        for name, numbers in calls.items():
            number = numbers[column]
            if number is not None:
                found[name] = number, error
    return found


def program(machine: str, segment: int | None = 0) -> bytes:
    """The filter for `machine`, as the kernel takes it.

    `segment` is the largest piece of shared memory that can be asked for at once; files in memory can't be had then,
    since no limit of a process counts them. None allows both, for where a control group counts all memory.
    """
    this = _MACHINES[machine]
    parts = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, this.architecture),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
    ]
    if this.x32:  # the same calls under other numbers
        parts += [(_AT_LEAST, 0, 1, _X32), _fail(errno.ENOSYS)]
    for number, error in denied(machine, segment).values():
        parts += _when(number, [_fail(error)])
    parts += _when(
        _CLONE[this.column], [*_argument(0), (_ANY_BIT, 0, 1, _NEW_NAMESPACES), _fail(errno.EPERM), _allow()]
    )
    parts += _when(_IOCTL[this.column], [*_argument(1), *_none_of(_TERMINAL_INPUT, errno.EPERM)])
    parts += _when(_SOCKET[this.column], [*_argument(0), *_one_of(_FAMILIES, errno.EAFNOSUPPORT)])
    kind = [*_argument(1), (_AND, 0, 0, _TYPE)]
    parts += _when(_SOCKETPAIR[this.column], [*kind, *_one_of(_PAIRS, errno.EPERM)])
    if segment is not None:
        parts += _when(_SHMGET[this.column], [*_above(1, segment, errno.ENOMEM), _allow()])
    for numbers, mode, flags in _MODES:
        number = numbers[this.column]
        if number is not None:
            given = [] if flags is None else [*_argument(flags), (_ANY_BIT, 1, 0, _MAKES), _allow()]
            parts += _when(number, [*given, *_argument(mode), (_ANY_BIT, 0, 1, _SET_ID), _fail(errno.EPERM), _allow()])
    parts.append(_allow())
    return b"".join(struct.pack("=HBBI", *part) for part in parts)


def _allow() -> Instruction:
    return (_RETURN, 0, 0, _ALLOW)


def _fail(error: int) -> Instruction:
    return (_RETURN, 0, 0, _ERROR | error)


def _argument(place: int) -> list[Instruction]:
    # The low half: the arguments that are looked at here are 32 bits wide, the kernel drops the rest.
    return [(_LOAD, 0, 0, 16 + 8 * place)]


def _above(place: int, most: int, error: int) -> list[Instruction]:
    """Fail if an argument of 64 bits is more than `most`, which has 32."""
    high = (_LOAD, 0, 0, 20 + 8 * place)
    return [high, (_EQUAL, 1, 0, 0), _fail(error), *_argument(place), (_MORE, 0, 1, min(most, 2**32 - 1)), _fail(error)]


def _when(number: int, then: list[Instruction]) -> list[Instruction]:
    """`then`, which must end in a return, for the call with this number; every other call goes past it."""
    return [(_EQUAL, 0, len(then), number), *then]


def _one_of(values: tuple[int, ...], error: int) -> list[Instruction]:
    tests = [(_EQUAL, len(values) - place, 0, value) for place, value in enumerate(values)]
    return [*tests, _fail(error), _allow()]


def _none_of(values: tuple[int, ...], error: int) -> list[Instruction]:
    tests = [(_EQUAL, len(values) - place, 0, value) for place, value in enumerate(values)]
    return [*tests, _allow(), _fail(error)]
