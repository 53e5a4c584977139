from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from holdfast.toolkits.shell import ControlGroupRefused, sandbox_problem, shell
from holdfast.toolkits.shell.sandbox import check_control_groups, group_limits

PIDS = Path("/sys/fs/cgroup/pids")
MEMORY = Path("/sys/fs/cgroup/memory")
needs_sandbox = pytest.mark.skipif(sandbox_problem() is not None, reason=f"no sandbox: {sandbox_problem()}")


def test_version_1_is_limited_in_two_trees() -> None:
    assert group_limits(["cgroup.procs", "memory.limit_in_bytes"], 2**30) == {"memory.limit_in_bytes": 2**30}
    assert group_limits(["cgroup.procs", "pids.max"], 2**30) == {"pids.max": 512}


def test_version_2_is_limited_in_one() -> None:
    assert group_limits(["memory.max", "pids.max", "cpu.max"], 2**30) == {"memory.max": 2**30, "pids.max": 512}


def test_a_folder_that_hands_nothing_down_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ControlGroupRefused, match="neither memory nor pids"):
        check_control_groups((str(tmp_path),), 2**30)


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ControlGroupRefused, match="no group can be made"):
        check_control_groups((str(tmp_path / "none"),), 2**30)


@needs_sandbox
def test_a_shell_with_a_group_that_can_t_be_used_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(ControlGroupRefused):
        shell(tmp_path, control_groups=(tmp_path / "none",))


def test_groups_that_a_killed_process_left_behind_are_taken_away(tmp_path: Path) -> None:
    left = tmp_path / "holdfast-999999999-1"
    left.mkdir()
    with pytest.raises(ControlGroupRefused):
        check_control_groups((str(tmp_path),), 2**30)
    assert not left.exists()


def test_groups_of_living_processes_stay(tmp_path: Path) -> None:
    living = tmp_path / f"holdfast-{os.getpid()}-1000000"
    living.mkdir()
    with pytest.raises(ControlGroupRefused):
        check_control_groups((str(tmp_path),), 2**30)
    assert living.exists()


@needs_sandbox
@pytest.mark.skipif(not os.access(PIDS / "cgroup.procs", os.W_OK), reason="no control groups of version 1 to write to")
async def test_a_command_runs_in_a_bounded_group_below_the_one_that_was_handed_over(tmp_path: Path) -> None:
    mine = PIDS / f"holdfast-test-{os.getpid()}"
    mine.mkdir()
    try:
        (tool,) = shell(tmp_path, control_groups=(mine,))
        command = asyncio.create_task(tool.function(None, "until [ -e go ]; do sleep 0.02; done"))
        async with asyncio.timeout(10):
            while not (found := list(mine.glob("*/cgroup.procs"))) or not found[0].read_text():  # another process
                await asyncio.sleep(0.01)
        assert (found[0].parent / "pids.max").read_text() == "512\n"
        (tmp_path / "go").touch()
        assert (await command)["exit_code"] == 0
        assert list(mine.glob("*/")) == []
    finally:
        mine.rmdir()


@needs_sandbox
@pytest.mark.skipif(
    not os.access(MEMORY / "cgroup.procs", os.W_OK), reason="no control groups of version 1 to write to"
)
async def test_files_in_memory_can_be_had_where_a_group_counts_them(tmp_path: Path) -> None:
    mine = MEMORY / f"holdfast-test-{os.getpid()}"
    mine.mkdir()
    try:
        (tool,) = shell(tmp_path, control_groups=(mine,), memory=2**27)
        code = "import os; file = os.memfd_create('x'); print('made'); os.write(file, bytes(2**24)); print('written'); "
        code += "[os.write(file, bytes(2**24)) for _ in range(16)]; print('too much')"
        found = await tool.function(None, f'python3 -uc "{code}"')
        assert found["output"].startswith("made\nwritten\n")
        assert "too much" not in found["output"]
    finally:
        mine.rmdir()
