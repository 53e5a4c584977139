from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.errors import InvalidArgument, InvalidNumber, UsageError
from holdfast.toolkits.files.workspace import make_protection
from holdfast.toolkits.shell import CommandRefused, WorkspaceRefused, shell
from holdfast.toolkits.shell.policy import MAX_COMMAND, ShellSettings, check_command, make_environment

if TYPE_CHECKING:
    from pathlib import Path


def settings(**changed: Any) -> ShellSettings:
    given: dict[str, Any] = {
        "workspace": "/srv/agent",
        "protection": make_protection(),
        "profile": "read",
        "sandboxed": True,
        "seconds": 1.0,
        "memory": 2**30,
        "output": 1000,
        "variables": (),
        "workspace_bytes": 2**30,
        "workspace_files": 1000,
        "control_groups": (),
    }
    return ShellSettings(**{**given, **changed})


@pytest.mark.parametrize(
    "wrong",
    [
        {"profile": "admin"},
        {"profile": None},
        {"profile": ["read"]},
        {"unsafe": 1},
        {"unsafe": "yes"},
        {"timeout": "1"},
        {"timeout": True},
        {"env": "PATH"},
        {"env": ("A=b",)},
        {"env": ("",)},
        {"env": (1,)},
        {"env": ("LD_PRELOAD",)},
        {"control_groups": "/sys/fs/cgroup"},
        {"control_groups": (1,)},
    ],
)
def test_what_is_of_the_wrong_kind_is_named(tmp_path: Path, wrong: dict[str, Any]) -> None:
    given: dict[str, Any] = {"unsafe": True, **wrong}
    with pytest.raises(InvalidArgument, match=next(iter(wrong))):
        shell(tmp_path, **given)


@pytest.mark.parametrize(
    "wrong",
    [
        {"timeout": 0},
        {"timeout": -1},
        {"timeout": float("nan")},
        {"timeout": float("inf")},
        {"timeout": timedelta(days=2)},
        {"memory": 0},
        {"memory": 1.5},
        {"output_limit": 0},
        {"output_limit": 2**40},
    ],
)
def test_a_number_that_can_t_be_meant_is_named(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidNumber, match=next(iter(wrong))):
        shell(tmp_path, unsafe=True, **wrong)


def test_a_workspace_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WorkspaceRefused, match="no such folder"):
        shell(tmp_path / "none", unsafe=True)


def test_a_file_is_no_workspace(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(WorkspaceRefused, match="not a folder"):
        shell(tmp_path / "file", unsafe=True)


@pytest.mark.parametrize("path", ["/", "/usr/..", "//"])
def test_the_whole_machine_is_no_workspace(path: str) -> None:
    with pytest.raises(WorkspaceRefused, match="whole machine"):
        shell(path, unsafe=True)


@pytest.mark.parametrize("path", [None, 3, b"/tmp"])
def test_a_workspace_is_a_path(path: Any) -> None:
    with pytest.raises(InvalidArgument, match="workspace"):
        shell(path, unsafe=True)


def test_the_environment_has_only_what_every_shell_needs() -> None:
    assert set(make_environment(settings(), {"SECRET": "x", "PATH": "/evil"})) == {"PATH", "HOME", "LANG", "TERM"}


def test_the_search_path_is_not_the_host_s() -> None:
    assert "/evil" not in make_environment(settings(), {"PATH": "/evil"})["PATH"]


def test_a_variable_that_the_host_lists_is_passed_on() -> None:
    assert make_environment(settings(variables=("TZ",)), {"TZ": "UTC"})["TZ"] == "UTC"


def test_a_listed_variable_that_is_not_set_stays_unset() -> None:
    assert "TZ" not in make_environment(settings(variables=("TZ",)), {})


@pytest.mark.parametrize("command", ["", " \n\t", "a\0b", "x" * (MAX_COMMAND + 1), "\ud800"])
def test_a_command_that_no_shell_can_be_given_is_refused(command: str) -> None:
    with pytest.raises(CommandRefused, match="was not run") as raised:
        check_command(command)
    assert isinstance(raised.value, UsageError)


def test_the_longest_command_is_taken() -> None:
    assert check_command("x" * MAX_COMMAND)


@pytest.mark.parametrize(
    ("profile", "sandboxed", "writes"),
    [("read", True, False), ("write", True, True), ("network", True, True), ("read", False, True)],
)
def test_only_a_confined_reader_changes_nothing(profile: str, *, sandboxed: bool, writes: bool) -> None:
    assert settings(profile=profile, sandboxed=sandboxed).writes is writes
