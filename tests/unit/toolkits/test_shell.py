"""The shell as a model and a host see it."""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import subprocess
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from tests.behaviour.talk import until
from tests.patience import PATIENCE

import holdfast as hf
from holdfast.testing import ScriptedModel, call, text
from holdfast.toolkits.shell import CommandRefused, sandbox_problem, shell
from holdfast.tools import Bound

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(sandbox_problem() is not None, reason=f"no sandbox: {sandbox_problem()}")


async def ran(workspace: Path, command: str, **given: Any) -> dict[str, Any]:
    (tool,) = shell(workspace, **given)
    bound = tool.bind({"command": command})
    assert isinstance(bound, Bound)
    return await tool.invoke(bound)


async def test_a_command_gives_its_exit_code_and_its_output(tmp_path: Path) -> None:
    assert await ran(tmp_path, "echo hello") == {"exit_code": 0, "output": "hello\n"}


async def test_an_exit_code_is_data(tmp_path: Path) -> None:
    assert (await ran(tmp_path, "exit 42"))["exit_code"] == 42


async def test_both_streams_come_in_their_order(tmp_path: Path) -> None:
    assert (await ran(tmp_path, "echo a; echo b >&2; echo c"))["output"] == "a\nb\nc\n"


@pytest.mark.parametrize(("signal", "code"), [("SEGV", 139), ("KILL", 137), ("TERM", 143)])
async def test_a_command_that_dies_of_a_signal_has_the_code_that_shells_give(
    tmp_path: Path, signal: str, code: int
) -> None:
    assert (await ran(tmp_path, f"kill -{signal} $$"))["exit_code"] == code


async def test_a_program_that_is_not_there_is_a_result(tmp_path: Path) -> None:
    found = await ran(tmp_path, "no-such-program")
    assert found["exit_code"] == 127
    assert "not found" in found["output"]


async def test_standard_input_is_empty(tmp_path: Path) -> None:
    assert await ran(tmp_path, "cat; read x; echo $?") == {"exit_code": 0, "output": "1\n"}


async def test_the_workspace_is_the_working_folder(tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("here", encoding="utf-8")
    assert (await ran(tmp_path, "pwd; cat note.txt"))["output"] == "/workspace\nhere"


async def test_a_command_with_the_write_profile_changes_the_workspace(tmp_path: Path) -> None:
    await ran(tmp_path, "mkdir a && echo new > a/b", profile="write")
    assert (tmp_path / "a" / "b").read_text(encoding="utf-8") == "new\n"


@pytest.mark.skipif(shutil.which("git", path="/usr/bin:/bin") is None, reason="git is not installed")
async def test_a_repository_can_be_read_with_git(tmp_path: Path) -> None:
    (tmp_path / "new").touch()
    await ran(tmp_path, "git init -q .", unsafe=True)
    found = await ran(tmp_path, "git status --short", profile="write")
    assert found == {"exit_code": 0, "output": "?? new\n"}


async def test_a_workspace_behind_a_link_is_the_folder_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    await ran(tmp_path / "link", "touch made", profile="write")
    assert (tmp_path / "real" / "made").exists()


async def test_calls_share_nothing_but_the_workspace(tmp_path: Path) -> None:
    (tool,) = shell(tmp_path)
    await tool.function(None, "touch /tmp/left; export LEFT=1; cd /")
    assert (await tool.function(None, "ls /tmp; echo $LEFT; pwd"))["output"] == "\n/workspace\n"


async def test_what_bash_has_works(tmp_path: Path) -> None:
    command = "echo to-stderr > /dev/stderr; cat <(echo a) <<< b; echo {1..3}; set -o pipefail; false | true"
    assert await ran(tmp_path, command) == {"exit_code": 1, "output": "to-stderr\na\n1 2 3\n"}


async def test_a_command_that_takes_too_long_is_killed_and_what_it_said_is_kept(tmp_path: Path) -> None:
    found = await ran(tmp_path, "trap '' TERM INT HUP; echo begun; sleep 60", timeout=2)
    assert found["exit_code"] is None
    assert found["output"] == "begun\n"
    assert "killed after 2 s" in found["note"]


async def test_the_model_may_ask_for_less_time(tmp_path: Path) -> None:
    (tool,) = shell(tmp_path, timeout=60)
    assert "killed after 1 s" in (await tool.function(None, "sleep 60", 1))["note"]


async def test_the_model_can_t_have_more_time_than_the_host_gives(tmp_path: Path) -> None:
    (tool,) = shell(tmp_path, timeout=0.3)
    assert "killed after 0.3 s" in (await tool.function(None, "sleep 60", 1000))["note"]


async def test_a_process_in_the_background_does_not_keep_the_result_waiting(tmp_path: Path) -> None:
    async with asyncio.timeout(PATIENCE):
        assert (await ran(tmp_path, "sleep 600 & echo done"))["output"] == "done\n"


async def test_long_output_is_cut_in_the_middle(tmp_path: Path) -> None:
    found = await ran(tmp_path, "seq 100000", output_limit=1000)
    assert found["output"].startswith("1\n2\n")
    assert found["output"].endswith("99999\n100000\n")
    assert "left out" in found["note"]


async def test_output_that_is_not_utf_8_is_told(tmp_path: Path) -> None:
    found = await ran(tmp_path, r"printf 'a\377b'")
    assert found["output"] == "a\ufffdb"
    assert "not UTF-8" in found["note"]


def test_a_gigabyte_of_output_takes_little_memory_of_ours(tmp_path: Path) -> None:
    code = (
        "import asyncio, resource, sys\n"
        "from holdfast.toolkits.shell import shell\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "(tool,) = shell(sys.argv[1])\n"
        "asyncio.run(tool.function(None, 'true'))\n"
        "before = peak()\n"
        "ran = asyncio.run(tool.function(None, 'yes | head -c 1000000000'))\n"
        "assert '1,000,000,000 bytes' in ran['note'], ran['note']\n"
        "print(peak() - before)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 20_000  # kilobytes


async def test_output_is_told_as_it_comes(tmp_path: Path) -> None:
    """The command goes on only when its first line was seen as progress."""
    (tool,) = shell(tmp_path)
    command = "echo half way; until [ -e seen ]; do sleep 0.02; done; echo done"
    agent = hf.Agent(
        "a", model=ScriptedModel([call("shell", command=command), text("ok")]), tools=[tool], policy=[hf.allow("*")]
    )
    notes: list[str | None] = []
    async with hf.open(None, agents=[agent]) as runtime, asyncio.timeout(PATIENCE):
        turn = await runtime.session("s", agent=agent).send("x")
        async for event in turn.events():
            if isinstance(event, hf.events.ToolCallProgress):
                notes.append(event.note)
                (tmp_path / "seen").touch()
    assert notes == ["half way", "done"]


async def test_a_model_that_calls_it_reads_the_result(tmp_path: Path) -> None:
    model = ScriptedModel([call("shell", command="echo 4; exit 3"), text("ok")])
    agent = hf.Agent("a", model=model, tools=shell(tmp_path), policy=[hf.allow("*")])
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await runtime.session("s", agent=agent).send("x")
        assert [event async for event in turn.events()]
    assert "'exit_code': 3" in str(model.requests[-1].messages[-1])


@pytest.mark.parametrize("command", ["", "a\0b"])
async def test_a_command_that_can_t_be_run_is_an_error_in_words(tmp_path: Path, command: str) -> None:
    with pytest.raises(CommandRefused, match="was not run"):
        await ran(tmp_path, command)


async def test_cancelling_ends_the_command_before_it_returns(tmp_path: Path) -> None:
    command = asyncio.create_task(ran(tmp_path, "touch begun; sleep 600", profile="write"))
    await until((tmp_path / "begun").exists)
    command.cancel()
    with pytest.raises(asyncio.CancelledError):
        await command
    # The stand-ins of protected names go when the command has ended.
    assert os.listdir(tmp_path) == ["begun"]


async def test_commands_run_side_by_side(tmp_path: Path) -> None:
    """Each waits for a file that the other makes."""
    (tool,) = shell(tmp_path, profile="write")
    commands = ("touch a; until [ -e b ]; do sleep 0.01; done", "touch b; until [ -e a ]; do sleep 0.01; done")
    async with asyncio.timeout(PATIENCE):
        found = await asyncio.gather(*(tool.function(None, command) for command in commands))
    assert [one["exit_code"] for one in found] == [0, 0]


async def test_the_event_loop_goes_on_while_a_command_runs(tmp_path: Path) -> None:
    (tool,) = shell(tmp_path)
    command = asyncio.create_task(tool.function(None, "until [ -e go ]; do sleep 0.01; done"))
    for _ in range(100):
        await asyncio.sleep(0.001)
    assert not command.done()
    (tmp_path / "go").touch()
    await command


async def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    (tool,) = shell(tmp_path, profile="write", timeout=0.3)
    await tool.function(None, "true")
    before = len(os.listdir("/proc/self/fd"))
    for command in ("true", "exit 1", "sleep 60"):
        await tool.function(None, command)
    assert len(os.listdir("/proc/self/fd")) <= before


@pytest.mark.skipif(resource.getrlimit(resource.RLIMIT_NOFILE)[0] < 1300, reason="not enough files can be opened here")
async def test_a_host_with_thousands_of_open_files_can_run_commands(tmp_path: Path) -> None:
    with ExitStack() as stack:
        for _ in range(1100):
            stack.enter_context(open(os.devnull, "rb"))  # noqa: ASYNC230, PTH123
        assert (await ran(tmp_path, "echo fine"))["output"] == "fine\n"


def test_the_read_profile_declares_that_it_changes_nothing(tmp_path: Path) -> None:
    (tool,) = shell(tmp_path)
    assert (tool.read_only, tool.idempotent, tool.destructive) == (True, True, False)


@pytest.mark.parametrize("given", [{"profile": "write"}, {"profile": "network"}, {"unsafe": True}])
def test_every_other_declares_that_it_may_destroy(tmp_path: Path, given: dict[str, Any]) -> None:
    (tool,) = shell(tmp_path, **given)
    assert (tool.read_only, tool.idempotent, tool.destructive) == (False, False, True)


def test_the_schema_has_no_unions(tmp_path: Path) -> None:
    (tool,) = shell(tmp_path)
    assert {name: kind["type"] for name, kind in tool.parameters["properties"].items()} == {
        "command": "string",
        "timeout": "integer",
    }


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "can only be read"),
        ({"profile": "write"}, "no network"),
        ({"profile": "network"}, "network can be reached"),
        ({"unsafe": True}, "no sandbox"),
    ],
)
def test_the_description_says_what_a_command_can_reach(tmp_path: Path, given: dict[str, Any], said: str) -> None:
    (tool,) = shell(tmp_path, **given)
    assert said in tool.description


# ---- without a sandbox -----------------------------------------------------------------------------------------------


async def test_unsafe_runs_in_the_workspace_itself(tmp_path: Path) -> None:
    assert (await ran(tmp_path, "pwd", unsafe=True))["output"] == f"{tmp_path}\n"


async def test_unsafe_has_the_same_empty_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANARY", "sings")
    assert "sings" not in (await ran(tmp_path, "env", unsafe=True))["output"]


async def test_unsafe_kills_what_takes_too_long(tmp_path: Path) -> None:
    assert "killed after" in (await ran(tmp_path, "sleep 60 & sleep 60", unsafe=True, timeout=0.3))["note"]


async def test_unsafe_does_not_wait_for_a_process_that_keeps_the_output_open(tmp_path: Path) -> None:
    async with asyncio.timeout(PATIENCE):
        found = await ran(tmp_path, "setsid sleep 2 & echo done", unsafe=True)
    assert found["exit_code"] == 0


async def test_unsafe_bounds_memory(tmp_path: Path) -> None:
    command = f"{sys.executable} -c 'bytearray(2**30)' 2>&1 | tail -1"
    assert (await ran(tmp_path, command, unsafe=True, memory=2**28))["output"] == "MemoryError\n"
