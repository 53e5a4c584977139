"""The limits of programs, and what a program begins with."""

from __future__ import annotations

from importlib import metadata
from typing import Any

import pytest
from tests.every import every
from tests.sandboxed import TOOLS

from holdfast.errors import InvalidArgument, InvalidNumber
from holdfast.errors.caller import ProgramsUnavailable
from holdfast.sandbox import LimitHit, MontySandbox, ProgramFailure, ProgramLimits, worker
from holdfast.sandbox.monty import check_plan, make_plan
from holdfast.sandbox.worker import bwrap_command, launch_script
from holdfast.toolkits.shell import SandboxUnavailable
from holdfast.toolkits.shell.policy import HostTree

LIMITS = ProgramLimits()


@every(
    "given",
    [
        {"seconds": 0},
        {"seconds": float("inf")},
        {"seconds": "1"},
        {"step_seconds": True},
        {"memory": 1},
        {"memory": 2**40},
        {"calls": -1},
        {"calls": 1.5},
        {"recursion": 100_000},
        {"source": 0},
        {"value": 0},
        {"variables": 2**40},
        {"output": 1},
        {"error": 0},
    ],
)
def test_a_limit_that_means_nothing_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidNumber):
        ProgramLimits(**given)


def test_a_program_must_be_text() -> None:
    with pytest.raises(InvalidArgument):
        make_plan(b"x = 1", (), {}, LIMITS, "")


@pytest.mark.parametrize("variables", [{"a b": 1}, {"x": {1}}, {"x": "y" * 2**21}])
def test_variables_that_no_program_can_begin_with_are_refused(variables: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        make_plan("1", (), variables, LIMITS, "")


def test_a_variable_does_not_hide_a_tool() -> None:
    assert make_plan("1", TOOLS, {"fetch": 1, "x": 2}, LIMITS, "").variables == {"x": 2}


def test_two_functions_of_one_name_are_refused() -> None:
    with pytest.raises(InvalidArgument):
        make_plan("1", (TOOLS[0], TOOLS[0]), {}, LIMITS, "")


def test_a_program_that_is_too_long_is_not_begun() -> None:
    found = check_plan(make_plan("x" * 11, (), {}, ProgramLimits(source=10), ""))
    assert isinstance(found, LimitHit)
    assert found.which == "source"


def test_a_program_that_is_no_unicode_is_not_begun() -> None:
    assert isinstance(check_plan(make_plan("'\ud800'", (), {}, LIMITS, "")), ProgramFailure)


def test_other_programs_are_begun() -> None:
    assert check_plan(make_plan("1", (), {}, LIMITS, "")) is None


# ---- the script that starts a worker ---------------------------------------------------------------------------------

TREE = HostTree(("/usr", "/etc/ld.so.cache", "/etc/ssl/certs"), (("/lib", "usr/lib"), ("/bin", "usr/bin")))
CAGE = bwrap_command("/usr/bin/bwrap", "/a folder/monty", TREE, ["/usr/lib"])
SCRIPT = launch_script(CAGE, "/proc/1/fd/3", 2**20)


def test_a_worker_sees_libraries_and_itself_and_nothing_else() -> None:
    words = SCRIPT.split(" -- ")[0].split()
    shown = [words[n + 2] for n, word in enumerate(words) if word in {"--ro-bind", "--symlink"}]
    assert shown == ["/etc/ld.so.cache", "/usr/lib", "/lib", "folder/monty'"]


def test_nothing_in_a_worker_s_sandbox_can_be_written() -> None:
    words = SCRIPT.split()
    assert not {"--bind", "--tmpfs", "--dev", "--proc", "--dev-bind"} & {*words}
    assert "--remount-ro" in words


def test_a_worker_has_no_network() -> None:
    assert "--unshare-net" in SCRIPT


def test_a_path_with_a_blank_stays_one_word() -> None:
    assert "'/a folder/monty'" in SCRIPT


# ---- machines where no program can be run ----------------------------------------------------------------------------


def test_a_machine_without_the_interpreter_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: str) -> None:
        raise metadata.PackageNotFoundError

    monkeypatch.setattr(metadata, "distribution", missing)
    with pytest.raises(ProgramsUnavailable, match=r"pip install 'holdfast\[code\]'"):
        MontySandbox()


def test_a_machine_without_bubblewrap_runs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> None:
        raise SandboxUnavailable("bubblewrap does not work here", "install it")

    monkeypatch.setattr(worker, "require_sandbox", none)
    monkeypatch.setattr(worker, "worker_binary", lambda: "/worker")
    with pytest.raises(ProgramsUnavailable, match="bubblewrap does not work here; install it"):
        MontySandbox()
    assert worker.programs_problem() == "bubblewrap does not work here"
