from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.every import every

from holdfast.toolkits.shell.policy import HostTree, NameCover, SandboxDescriptors, bwrap_arguments

if TYPE_CHECKING:
    from holdfast.toolkits.shell.policy import Profile

PROFILES: tuple[Profile, ...] = ("read", "write", "network")


def line(
    profile: Profile, command: str = "true", covers: tuple[NameCover, ...] = (NameCover(".git", "kept"),)
) -> list[str]:
    return bwrap_arguments(
        "/bin/bash",
        command,
        bwrap="/usr/bin/bwrap",
        tree=HostTree(("/usr",), (("/bin", "usr/bin"),)),
        workspace="/srv/agent",
        profile=profile,
        covers=covers,
        memory=2**30,
        descriptors=SandboxDescriptors(filter=3, status=4, hold=5, accounts=6, groups=7),
    )


def has(found: list[str], *wanted: str) -> bool:
    return any(tuple(found[place : place + len(wanted)]) == wanted for place in range(len(found)))


@every("profile", PROFILES)
@every(
    "flag",
    ["--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--die-with-parent", "--new-session"],
)
def test_every_profile_is_apart_from_the_host(profile: Profile, flag: str) -> None:
    assert flag in line(profile)


@pytest.mark.parametrize("profile", PROFILES)
def test_no_profile_keeps_a_capability(profile: Profile) -> None:
    assert has(line(profile), "--cap-drop", "ALL")


@pytest.mark.parametrize("profile", PROFILES)
def test_every_profile_has_the_filter_of_system_calls(profile: Profile) -> None:
    assert has(line(profile), "--seccomp", "3")


@every("profile", PROFILES)
@every("place", ["/", "/proc", "/dev"])
def test_what_is_made_for_the_command_can_only_be_read(profile: Profile, place: str) -> None:
    assert has(line(profile), "--remount-ro", place)


@pytest.mark.parametrize(("profile", "apart"), [("read", True), ("write", True), ("network", False)])
def test_only_the_network_profile_has_the_network(profile: Profile, *, apart: bool) -> None:
    assert ("--unshare-net" in line(profile)) is apart


def test_the_read_profile_has_the_workspace_read_only() -> None:
    assert has(line("read"), "--ro-bind", "/srv/agent", "/workspace")


def test_the_read_profile_binds_nothing_that_can_be_written() -> None:
    assert "--bind" not in line("read")


@pytest.mark.parametrize("profile", ["write", "network"])
def test_protected_names_lie_read_only_over_the_workspace(profile: Profile) -> None:
    found = line(profile)
    assert has(found, "--ro-bind", "/srv/agent/.git", "/workspace/.git")
    assert found.index("/workspace") < found.index("/workspace/.git")


@pytest.mark.parametrize("command", ["--bind / /x", "; rm -rf /", "$(id)", "'\"\n\\"])
def test_a_command_is_one_argument_whatever_it_holds(command: str) -> None:
    found = line("read", command)
    assert found[-1] == command
    assert found[found.index("--") + 1] == "/bin/sh"
