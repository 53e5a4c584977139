"""What a command can't have more of than it may: files that run as others, memory that is shared, and the workspace."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
from tests.patience import PATIENCE

from holdfast.errors import InvalidNumber
from holdfast.toolkits.shell import sandbox_problem, shell
from holdfast.toolkits.shell.run import FolderSize, measure_folder

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(sandbox_problem() is not None, reason=f"no sandbox: {sandbox_problem()}")


async def ran(workspace: Path, command: str, **given: Any) -> dict[str, Any]:
    said: dict[str, Any] = {"profile": "write", "timeout": PATIENCE, **given}
    (tool,) = shell(workspace, **said)
    return await tool.function(None, command)


async def python(workspace: Path, code: str, **given: Any) -> dict[str, Any]:
    return await ran(workspace, f"python3 - <<'END' 2>&1\n{code}\nEND", **given)


# ---- files that run as others ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["4755", "2755", "6711"])
@pytest.mark.parametrize(
    "call",
    [
        "os.chmod('file', 0o{mode})",
        "os.fchmod(os.open('file', os.O_RDONLY), 0o{mode})",
        "os.chmod('file', 0o{mode}, dir_fd=os.open('.', os.O_RDONLY))",
        "os.open('new', os.O_CREAT | os.O_WRONLY, 0o{mode})",
        "os.open('.', os.O_TMPFILE | os.O_WRONLY, 0o{mode})",
        "os.mknod('new', 0o10{mode})",
        "libc.creat(b'new', 0o{mode}) >= 0 or fail()",
        "libc.syscall(452, -100, b'file', 0o{mode}, 0) >= 0 or fail()",
        "libc.syscall(437, -100, b'new', how, 24) >= 0 or fail()",
    ],
)
async def test_no_call_lets_a_file_run_as_its_owner_or_group(tmp_path: Path, mode: str, call: str) -> None:
    (tmp_path / "file").touch()
    code = f"""
import ctypes, os, struct
os.umask(0)
libc = ctypes.CDLL(None, use_errno=True)
how = struct.pack("QQQ", os.O_CREAT | os.O_WRONLY, 0o{mode}, 0)
def fail(): raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
try:
    {call.replace("{mode}", mode)}
    print("done")
except OSError as error:
    print(error.strerror)
"""
    said = (await python(tmp_path, code))["output"].strip()
    assert said in {"Operation not permitted", "Function not implemented"}
    assert [name for name in os.listdir(tmp_path) if (tmp_path / name).stat().st_mode & 0o6000] == []


async def test_other_modes_can_be_given(tmp_path: Path) -> None:
    found = await ran(tmp_path, "touch a; chmod 755 a; install -m 750 a b; mkdir -m 1777 c; stat -c %a a b c")
    assert found == {"exit_code": 0, "output": "755\n750\n1777\n"}


# ---- memory that is shared -------------------------------------------------------------------------------------------


async def test_files_in_memory_that_no_limit_counts_can_t_be_had(tmp_path: Path) -> None:
    assert "Function not implemented" in (await python(tmp_path, "import os; os.memfd_create('x')"))["output"]


async def test_shared_memory_of_the_kernel_comes_in_pieces_that_together_are_within_the_limit(tmp_path: Path) -> None:
    code = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
libc.shmget.argtypes = (ctypes.c_int, ctypes.c_size_t, ctypes.c_int)
for size in (2**16, 2**16 + 1, 2**28, 2**33):
    print(libc.shmget(0, size, 0o600) >= 0, end=" ")
"""
    assert (await python(tmp_path, code, memory=2**28))["output"] == "True False False False "


@pytest.mark.parametrize("given", ["-1, 2**28", "os.open('/dev/zero', os.O_RDWR), 2**28"])
async def test_a_command_that_shares_more_memory_than_it_may_is_killed(tmp_path: Path, given: str) -> None:
    code = f"import mmap, os, time; held = mmap.mmap({given}); time.sleep(600)"
    found = await python(tmp_path, code, memory=2**27, profile="read")
    assert "it shared more than 134,217,728 bytes of memory" in found["note"]


async def test_less_shared_memory_can_be_had(tmp_path: Path) -> None:
    code = "import mmap, time; held = mmap.mmap(-1, 2**26); held[0] = 1; time.sleep(1); print('done')"
    assert (await python(tmp_path, code, memory=2**27))["output"] == "done\n"


async def test_the_folders_in_memory_together_hold_no_more_than_a_process_may(tmp_path: Path) -> None:
    found = await ran(tmp_path, "head -c 300M /dev/zero > /tmp/a; head -c 300M /dev/zero > /dev/shm/b", memory=2**28)
    assert found["output"].count("No space left") == 2
    sizes = await ran(tmp_path, "df -B1 --output=size /tmp /dev/shm | tail -n +2", memory=2**28)
    assert [int(size) for size in sizes["output"].split()] == [2**27, 2**27]


async def test_a_command_that_fills_the_memory_with_empty_files_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.toolkits.shell.run.MAX_TEMPORARY_FILES", 2_000)
    found = await ran(tmp_path, "cd /tmp; seq 4000 | xargs touch; sleep 600", profile="read")
    assert "it had more than 2,000 files in /tmp and /dev/shm" in found["note"]


# ---- the workspace ---------------------------------------------------------------------------------------------------


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.toolkits.shell.run._STEP_BYTES", 2**20)
    monkeypatch.setattr("holdfast.toolkits.shell.run._STEP_FILES", 100)


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize(
    "command",
    [
        "for i in $(seq 40); do head -c 1M /dev/urandom > $i; done; sync; sleep 600",
        "exec 3> gone; rm gone; head -c 40M /dev/urandom >&3; sync; sleep 600",
    ],
)
async def test_a_command_that_makes_the_workspace_too_large_is_killed(tmp_path: Path, command: str) -> None:
    found = await ran(tmp_path, command, workspace_bytes=2**25)
    assert found["exit_code"] is None or "File size limit" in found["output"] or "File too large" in found["output"]


@pytest.mark.usefixtures("small_steps")
async def test_the_result_says_which_limit_of_the_workspace_it_was(tmp_path: Path) -> None:
    command = "for i in $(seq 40); do head -c 1M /dev/urandom > $i; done; sync; sleep 600"
    found = await ran(tmp_path, command, workspace_bytes=2**25)
    assert "the workspace had more than 33,554,432 bytes" in found["note"]


@pytest.mark.usefixtures("small_steps")
async def test_a_command_that_makes_too_many_files_is_killed(tmp_path: Path) -> None:
    found = await ran(tmp_path, "seq 3000 | xargs touch; sync; sleep 600", workspace_files=1000)
    assert "the workspace had more than 1,000 files and folders" in found["note"]


async def test_no_file_is_larger_than_the_workspace_may_be(tmp_path: Path) -> None:
    found = await ran(tmp_path, "truncate -s 3M sparse", workspace_bytes=2 * 2**20)
    assert "File too large" in found["output"] or found["exit_code"] != 0
    assert (tmp_path / "sparse").stat().st_size == 0


@pytest.mark.usefixtures("small_steps")
async def test_a_command_that_adds_little_to_a_workspace_that_was_too_large_before_is_let_be(tmp_path: Path) -> None:
    with (tmp_path / "old").open("wb") as old:
        os.posix_fallocate(old.fileno(), 0, 2**29)
    command = "head -c 2M /dev/urandom > new; sync; sleep 1; echo done"
    assert (await ran(tmp_path, command, workspace_bytes=2**25))["output"] == "done\n"


def test_a_folder_is_measured_with_each_file_once(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    before = measure_folder(str(tmp_path))
    (tmp_path / "sub" / "a").write_bytes(b"x" * 100_000)
    (tmp_path / "b").hardlink_to(tmp_path / "sub" / "a")
    (tmp_path / "out").symlink_to("/usr")
    after = measure_folder(str(tmp_path))
    assert (before.files, after.files) == (1, 4)
    assert 100_000 <= after.bytes - before.bytes < 200_000
    assert isinstance(after, FolderSize)


@pytest.mark.parametrize("given", [{"workspace_bytes": 0}, {"workspace_files": 0}, {"workspace_bytes": 1.5}])
def test_limits_of_a_workspace_that_mean_nothing_are_refused(tmp_path: Path, given: dict[str, Any]) -> None:
    with pytest.raises(InvalidNumber):
        shell(tmp_path, **given)
