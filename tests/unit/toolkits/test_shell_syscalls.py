"""The filter of system calls, run as the kernel runs it: one program, one call, one verdict."""

from __future__ import annotations

import errno
import re
import struct
from pathlib import Path

import pytest
from tests.every import every

from holdfast.toolkits.shell.policy import denied_calls, is_supported, seccomp_program

ALLOW, KILL, ERROR = 0x7FFF0000, 0x80000000, 0x00050000
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
CLONE = {"x86_64": 56, "aarch64": 220}
IOCTL = {"x86_64": 16, "aarch64": 29}
SOCKET = {"x86_64": 41, "aarch64": 198}
SOCKETPAIR = {"x86_64": 53, "aarch64": 199}
READ = {"x86_64": 0, "aarch64": 63}
MACHINES = sorted(ARCHITECTURES)
HEADERS = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")


def verdict(
    machine: str, number: int, *arguments: int, architecture: int | None = None, segment: int | None = 0
) -> int:
    """What the program of `machine` says to a call."""
    wide = [*arguments, *([0] * (6 - len(arguments)))]
    data = struct.pack("=IIQ6Q", number, architecture or ARCHITECTURES[machine], 0, *wide)
    code = seccomp_program(machine, segment)
    steps = [struct.unpack_from("=HBBI", code, place) for place in range(0, len(code), 8)]
    here, held = 0, 0
    while True:
        kind, yes, no, value = steps[here]
        here += 1
        if kind == 0x20:
            held = struct.unpack_from("=I", data, value)[0]
        elif kind == 0x54:
            held &= value
        elif kind == 0x06:
            return value
        else:
            test = {0x15: held == value, 0x25: held > value, 0x35: held >= value, 0x45: bool(held & value)}[kind]
            here += yes if test else no


@pytest.mark.parametrize("machine", MACHINES)
def test_an_ordinary_call_is_allowed(machine: str) -> None:
    assert verdict(machine, READ[machine]) == ALLOW


@pytest.mark.parametrize("machine", MACHINES)
def test_every_denied_call_gets_its_error_whatever_its_arguments(machine: str) -> None:
    found = {
        name: verdict(machine, number, 2**64 - 1, 2**64 - 1) for name, (number, _) in denied_calls(machine).items()
    }
    assert found == {name: ERROR | error for name, (_, error) in denied_calls(machine).items()}


@every("machine", MACHINES)
@every("name", ["ptrace", "bpf", "mount", "unshare", "setns", "keyctl", "open_by_handle_at"])
def test_dangerous_calls_are_not_permitted(machine: str, name: str) -> None:
    assert denied_calls(machine)[name][1] == errno.EPERM


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", ["clone3", "io_uring_setup"])
def test_calls_that_programs_can_do_without_seem_not_to_exist(machine: str, name: str) -> None:
    assert denied_calls(machine)[name][1] == errno.ENOSYS


@pytest.mark.parametrize("machine", MACHINES)
def test_a_call_of_another_architecture_ends_the_process(machine: str) -> None:
    assert verdict(machine, READ[machine], architecture=0x40000003) == KILL


@pytest.mark.parametrize("number", [0x40000000, 0x40000000 | 101, 0xFFFFFFFF])
def test_a_call_under_an_x32_number_does_not_exist(number: int) -> None:
    assert verdict("x86_64", number) == ERROR | errno.ENOSYS


@every("machine", MACHINES)
@every("flag", [0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000])
def test_a_process_with_a_namespace_of_its_own_is_not_permitted(machine: str, flag: int) -> None:
    assert verdict(machine, CLONE[machine], flag | 17) == ERROR | errno.EPERM


@every("machine", MACHINES)
@every("flags", [17, 0x4111, 0x3D0F00])
def test_processes_and_threads_are_allowed(machine: str, flags: int) -> None:
    assert verdict(machine, CLONE[machine], flags) == ALLOW


@every("machine", MACHINES)
@every("family", [0, 1, 17, 38, 40, 2**32 - 1])
def test_sockets_that_lead_to_services_of_the_host_are_refused(machine: str, family: int) -> None:
    assert verdict(machine, SOCKET[machine], family) == ERROR | errno.EAFNOSUPPORT


@every("machine", MACHINES)
@every("family", [2, 10, 16])
def test_sockets_of_the_internet_are_allowed(machine: str, family: int) -> None:
    assert verdict(machine, SOCKET[machine], family) == ALLOW


@pytest.mark.parametrize("machine", MACHINES)
def test_a_family_is_read_as_the_kernel_reads_it(machine: str) -> None:
    assert verdict(machine, SOCKET[machine], 2**32 | 1) == ERROR | errno.EAFNOSUPPORT


@every("machine", MACHINES)
@every("kind", [1, 5, 1 | 0o2000000, 1 | 0o4000])
def test_pairs_of_connected_sockets_are_allowed(machine: str, kind: int) -> None:
    assert verdict(machine, SOCKETPAIR[machine], 1, kind) == ALLOW


@every("machine", MACHINES)
@every("kind", [2, 3, 2 | 0o2000000])
def test_pairs_that_could_be_turned_elsewhere_are_not_permitted(machine: str, kind: int) -> None:
    assert verdict(machine, SOCKETPAIR[machine], 1, kind) == ERROR | errno.EPERM


@every("machine", MACHINES)
@every("request_", [0x5412, 0x541C, 2**32 | 0x5412])
def test_typing_into_a_terminal_is_not_permitted(machine: str, request_: int) -> None:
    assert verdict(machine, IOCTL[machine], 0, request_) == ERROR | errno.EPERM


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("request_", [0x5401, 0x5413])
def test_asking_about_a_terminal_is_allowed(machine: str, request_: int) -> None:
    assert verdict(machine, IOCTL[machine], 0, request_) == ALLOW


def test_a_machine_whose_calls_are_not_known_is_not_supported() -> None:
    assert not is_supported("riscv64")


@pytest.mark.skipif(not HEADERS.exists(), reason="the kernel's headers for x86_64 are not installed")
def test_the_numbers_are_those_of_the_kernel() -> None:
    known = dict(re.findall(r"#define __NR_(\w+)\s+(\d+)", HEADERS.read_text(encoding="utf-8")))
    wrong = {
        name: number
        for name, (number, _) in denied_calls("x86_64").items()
        if name in known and number != int(known[name])  # a new call is not in old headers
    }
    assert wrong == {}


CHMOD = {"x86_64": 91, "aarch64": 52}
OPENAT = {"x86_64": 257, "aarch64": 56}
SHMGET = {"x86_64": 29, "aarch64": 194}
MEMFD = {"x86_64": 319, "aarch64": 279}


@pytest.mark.parametrize("machine", MACHINES)
def test_a_mode_that_runs_a_file_as_its_owner_or_group_is_refused(machine: str) -> None:
    for mode in (0o4755, 0o2755, 0o6000):
        assert verdict(machine, CHMOD[machine], 3, mode) == ERROR | errno.EPERM
        assert verdict(machine, OPENAT[machine], 3, 0, 0o100 | 1, mode) == ERROR | errno.EPERM
    assert verdict(machine, CHMOD[machine], 3, 0o1777) == ALLOW


@pytest.mark.parametrize("machine", MACHINES)
def test_the_mode_of_an_open_that_makes_no_file_means_nothing(machine: str) -> None:
    assert verdict(machine, OPENAT[machine], 3, 0, 0o2000000, 0o6777) == ALLOW


@pytest.mark.parametrize("machine", MACHINES)
def test_shared_memory_is_bounded_where_no_group_counts_it(machine: str) -> None:
    asked = {size: verdict(machine, SHMGET[machine], 0, size, segment=4096) for size in (1, 4096, 4097, 2**32, 2**40)}
    assert [size for size, said in asked.items() if said == ALLOW] == [1, 4096]
    assert verdict(machine, SHMGET[machine], 0, 2**40, segment=None) == ALLOW
    assert verdict(machine, MEMFD[machine], 0, 0, segment=4096) == ERROR | errno.ENOSYS
    assert verdict(machine, MEMFD[machine], 0, 0, segment=None) == ALLOW
