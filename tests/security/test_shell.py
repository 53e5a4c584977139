"""What a hostile command tries, and does not get."""

from __future__ import annotations

import asyncio
import os
import platform
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.behaviour.talk import until
from tests.patience import PATIENCE

from holdfast.toolkits.files.workspace import make_protection
from holdfast.toolkits.shell import SandboxUnavailable, WorkspaceRefused, sandbox_problem, shell
from holdfast.toolkits.shell.guard import StandIns
from holdfast.toolkits.shell.policy import seccomp_program

if TYPE_CHECKING:
    from collections.abc import Generator

pytestmark = pytest.mark.skipif(sandbox_problem() is not None, reason=f"no sandbox: {sandbox_problem()}")
PROTECTED = tuple("/".join(path) for path in make_protection().literals)
CANARY = "Canary7Qx83Zk2Lm9Wv4Rt6Yp1"


async def ran(workspace: Path, command: str, **given: Any) -> dict[str, Any]:
    (tool,) = shell(workspace, **given)
    return await tool.function(None, command)


async def python(workspace: Path, code: str, **given: Any) -> str:
    """What a Python program says in the sandbox."""
    found = await ran(workspace, f"python3 - <<'END' 2>&1\n{code}\nEND", **given)
    return found["output"].strip()


def processes(mark: str) -> list[int]:
    """The processes of this machine that have `mark` in their command line."""
    found: list[int] = []
    for number in filter(str.isdigit, os.listdir("/proc")):
        try:
            line = Path(f"/proc/{number}/cmdline").read_bytes()
        except OSError:
            continue
        if mark.encode() in line and int(number) != os.getpid():
            found.append(int(number))
    return found


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    return folder


# ---- files -----------------------------------------------------------------------------------------------------------


async def test_the_read_profile_can_t_write_the_workspace(workspace: Path) -> None:
    (workspace / "file").write_text("old", encoding="utf-8")
    found = await ran(workspace, "echo new > file; rm file; touch other; mv file moved; chmod 777 .")
    assert found["output"].count("Read-only file system") == 5
    assert (workspace / "file").read_text(encoding="utf-8") == "old"


@pytest.mark.parametrize("profile", ["read", "write", "network"])
async def test_files_beside_the_workspace_are_not_there(workspace: Path, profile: str) -> None:
    (workspace.parent / "secret").write_text(CANARY, encoding="utf-8")
    found = await ran(workspace, f"cat ../secret {workspace.parent}/secret; ls /home /root /var /run", profile=profile)
    assert CANARY not in found["output"]
    assert found["output"].count("No such file") == 6


async def test_a_link_that_leads_out_of_the_workspace_leads_nowhere(workspace: Path) -> None:
    (workspace.parent / "secret").write_text(CANARY, encoding="utf-8")
    (workspace / "link").symlink_to(workspace.parent / "secret")
    (workspace / "up").symlink_to("..")
    assert CANARY not in (await ran(workspace, "cat link up/secret", profile="write"))["output"]


async def test_a_link_that_a_command_makes_is_not_followed_to_write_outside(workspace: Path) -> None:
    outside = workspace.parent / "outside"
    await ran(workspace, f"ln -s {outside} link; echo x > link", profile="write")
    assert not outside.exists()


@pytest.mark.parametrize("name", ["/etc/shadow", "/etc/passwd-", "/etc/sudoers", "/etc/ssh", "/proc/1/root/root"])
async def test_secrets_of_the_machine_are_not_there(workspace: Path, name: str) -> None:
    assert (await ran(workspace, f"cat {name} || ls {name}"))["exit_code"] != 0


@pytest.mark.parametrize("place", ["/x", "/usr/x", "/etc/x", "/dev/x", "/proc/x", "/bin/x", "/workspace/../x"])
async def test_nothing_outside_can_be_written_in_any_profile(workspace: Path, place: str) -> None:
    assert (await ran(workspace, f"touch {place}", profile="network"))["exit_code"] != 0


async def test_nothing_in_proc_can_be_written_not_even_for_root(workspace: Path) -> None:
    code = """
import os
found = []
for folder, _, names in os.walk("/proc"):
    for name in names:
        path = os.path.join(folder, name)
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
        except OSError:
            continue
        found.append(path)
print([path for path in found if "/fd/" not in path])
"""
    assert await python(workspace, code, profile="network") == "[]"


# ---- names that others obey ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("profile", ["write", "network"])
async def test_protected_names_that_are_absent_can_t_be_made(workspace: Path, profile: str) -> None:
    tries = "; ".join(
        f"(mkdir -p $(dirname {name}); echo x > {name}) || (rm -rf {name}; mkdir -p {name}/hooks)" for name in PROTECTED
    )
    await ran(workspace, f"{tries}; git init; touch ok", profile=profile)
    assert os.listdir(workspace) == ["ok"]


async def test_a_hook_can_t_be_put_into_a_repository(workspace: Path) -> None:
    (workspace / ".git" / "hooks").mkdir(parents=True)
    await ran(
        workspace, "echo x > .git/hooks/pre-commit; echo x > .git/config; echo x > .git/commondir", profile="write"
    )
    assert [path.name for path in (workspace / ".git").rglob("*")] == ["hooks"]


@pytest.mark.parametrize(
    "attack",
    [
        "mv .git old; mkdir -p .git/hooks; touch .git/hooks/pre-commit",
        "rm -rf .git; mkdir -p .git/hooks; touch .git/hooks/pre-commit",
        "mkdir -p evil/hooks; touch evil/hooks/pre-commit; mv -T --exchange evil .git; mv -T evil .git",
        "mkdir -p evil/hooks; touch evil/hooks/pre-commit; ln -sfn evil .git; ln -sfT evil .git",
        "umount .git; touch .git/hooks/pre-commit",
        "mkdir -p evil/hooks; touch evil/hooks/pre-commit; mount --bind evil .git",
    ],
)
async def test_a_repository_can_t_be_swapped_for_another(workspace: Path, attack: str) -> None:
    (workspace / ".git" / "hooks").mkdir(parents=True)
    await ran(workspace, attack, profile="write")
    assert (workspace / ".git").is_dir()
    assert not (workspace / ".git").is_symlink()
    assert not (workspace / ".git" / "hooks" / "pre-commit").exists()


async def test_a_start_up_file_that_is_there_keeps_its_content(workspace: Path) -> None:
    (workspace / ".bashrc").write_text("old", encoding="utf-8")
    await ran(workspace, "echo x >> .bashrc; mv .bashrc b; rm -f .bashrc; ln -sf /tmp/x .bashrc", profile="write")
    assert (workspace / ".bashrc").read_text(encoding="utf-8") == "old"


async def test_a_workspace_in_which_a_protected_name_is_a_link_is_refused(workspace: Path) -> None:
    (workspace / "elsewhere").mkdir()
    (workspace / ".git").symlink_to("elsewhere")
    with pytest.raises(WorkspaceRefused, match="symbolic link"):
        await ran(workspace, "touch ran", profile="write")
    assert sorted(os.listdir(workspace)) == [".git", "elsewhere"]


async def test_the_first_of_two_commands_to_end_does_not_unprotect_the_other(workspace: Path) -> None:
    attack = "touch begun; until [ -e go ]; do sleep 0.01; done; mkdir .git .git/hooks; touch .git/hooks/pre-commit"
    slow = asyncio.create_task(ran(workspace, attack, profile="write"))
    await until((workspace / "begun").exists)
    await ran(workspace, "true", profile="write")
    (workspace / "go").touch()
    await slow
    assert not (workspace / ".git").exists()


async def test_what_a_killed_process_left_to_stand_in_is_taken_away_by_the_next_command(workspace: Path) -> None:
    (workspace / ".git").mkdir(mode=0o555)
    await ran(workspace, "true", profile="write")
    assert os.listdir(workspace) == []


async def test_a_folder_of_the_user_that_looks_like_a_stand_in_is_kept_with_what_it_holds(workspace: Path) -> None:
    (workspace / ".git").mkdir()
    (workspace / ".git" / "config").touch()
    (workspace / ".git").chmod(0o555)
    await ran(workspace, "true", profile="write")
    assert (workspace / ".git" / "config").exists()


def test_stand_ins_outlast_any_number_of_commands_but_the_last(workspace: Path) -> None:
    """Threads protect and let go at once; whoever is protected finds the name there."""
    missing: list[str] = []
    root = os.open(workspace, os.O_RDONLY | os.O_DIRECTORY)

    def work() -> None:
        for _ in range(30):
            held = StandIns(str(workspace), root, make_protection().literals)
            missing.extend(name for name in PROTECTED if not (workspace / name.partition("/")[0]).is_dir())
            held.release()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert missing == []
    StandIns(str(workspace), root, make_protection().literals).release()
    os.close(root)
    assert os.listdir(workspace) == []


# ---- privileges ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("process", ["self", "1"])
async def test_no_process_of_the_sandbox_has_a_privilege(workspace: Path, process: str) -> None:
    # The first process puts on its own filter while the command, which came with one, is already running.
    filtered = "for _ in $(seq 500); do grep -q '^Seccomp:.2' /proc/1/status && break; sleep 0.01; done"
    found = (await ran(workspace, f"{filtered}; cat /proc/{process}/status"))["output"]
    said = dict(line.split(":\t", 1) for line in found.splitlines() if ":\t" in line)
    assert {said[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0000000000000000"}
    assert (said["NoNewPrivs"], said["Seccomp"]) == ("1", "2")


@pytest.mark.parametrize("flag", [0x10000000, 0x20000, 0x40000000])
async def test_a_command_can_t_make_namespaces(workspace: Path, flag: int) -> None:
    code = f"import ctypes; c = ctypes.CDLL(None, use_errno=True); print(c.unshare({flag}), ctypes.get_errno())"
    assert await python(workspace, code) == "-1 1"


async def test_a_command_can_t_trace_its_own_children(workspace: Path) -> None:
    code = "import ctypes; c = ctypes.CDLL(None, use_errno=True); print(c.ptrace(0, 0, 0, 0), ctypes.get_errno())"
    assert await python(workspace, code) == "-1 1"


@pytest.mark.skipif(platform.machine() != "x86_64", reason="x32 is a matter of x86_64")
async def test_a_call_under_its_x32_number_does_not_exist(workspace: Path) -> None:
    code = "import ctypes; c = ctypes.CDLL(None, use_errno=True); print(c.syscall(0x40000027), ctypes.get_errno())"
    assert await python(workspace, code) == "-1 38"


async def test_processes_of_the_host_can_t_be_seen(workspace: Path) -> None:
    found = await ran(workspace, "ls /proc | grep -cE '^[0-9]+$'")
    assert int(found["output"]) < 8


# ---- the environment -------------------------------------------------------------------------------------------------


async def test_the_environment_of_the_host_is_not_passed_on(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_KEY", CANARY)
    found = await ran(workspace, "env; cat /proc/*/environ | tr '\\0' '\\n'", profile="network")
    assert CANARY not in found["output"]


async def test_only_what_the_host_lists_is_passed_on(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LISTED", "yes")
    assert (await ran(workspace, "echo $LISTED", env=("LISTED",)))["output"] == "yes\n"


async def test_the_value_of_a_listed_variable_is_in_no_command_line(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LISTED", CANARY)
    command = "touch begun; until [ -e go ]; do sleep 0.01; done"
    running = asyncio.create_task(ran(workspace, command, env=("LISTED",), profile="write"))
    await until((workspace / "begun").exists)
    assert processes(CANARY) == []
    (workspace / "go").touch()
    await running


# ---- the network -----------------------------------------------------------------------------------------------------


@contextmanager
def listening() -> Generator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.mark.parametrize(("profile", "reached"), [("read", False), ("write", False), ("network", True)])
async def test_only_the_network_profile_reaches_a_server(workspace: Path, profile: str, *, reached: bool) -> None:
    with listening() as port:
        command = f"exec 3<>/dev/tcp/127.0.0.1/{port} && echo reached"
        assert ("reached" in (await ran(workspace, command, profile=profile))["output"].splitlines()) is reached


@pytest.mark.parametrize("profile", ["read", "write", "network"])
@pytest.mark.parametrize("kind", ["STREAM", "DGRAM"])
async def test_a_socket_file_in_the_workspace_can_t_be_reached(workspace: Path, profile: str, kind: str) -> None:
    code = f"""
import socket
kind = socket.SOCK_{kind}
for make in (lambda: socket.socket(socket.AF_UNIX, kind), lambda: socket.socketpair(type=kind)[0]):
    try:
        end = make()
        end.connect("/workspace/s")
        print("reached")
    except OSError as error:
        print("refused")
"""
    # Under a short name: the path of a socket has little room.
    with (
        socket.socket(socket.AF_UNIX, getattr(socket, f"SOCK_{kind}")) as server,
        tempfile.TemporaryDirectory() as name,
    ):
        server.bind(f"{name}/s")
        if kind == "STREAM":
            server.listen()
        assert await python(Path(name), code, profile=profile) == "refused\nrefused"


# ---- nothing survives ------------------------------------------------------------------------------------------------


DAEMON = "setsid nohup sh -c '(sleep {mark} &) ; exec sleep {mark}' >/dev/null 2>&1 & "


async def test_a_daemon_ends_with_its_command(workspace: Path) -> None:
    mark = f"60{os.getpid()}.101"
    await ran(workspace, DAEMON.format(mark=mark) + "until pgrep sleep >/dev/null; do :; done; echo ok")
    assert processes(mark) == []


async def test_a_daemon_ends_when_the_time_is_over(workspace: Path) -> None:
    mark = f"60{os.getpid()}.102"
    await ran(workspace, DAEMON.format(mark=mark) + "trap '' TERM; sleep 60", timeout=0.5)
    assert processes(mark) == []


async def test_a_daemon_ends_when_the_call_is_cancelled(workspace: Path) -> None:
    mark = f"60{os.getpid()}.103"
    command = asyncio.create_task(ran(workspace, DAEMON.format(mark=mark) + "sleep 60"))
    await until(lambda: len(processes(f"sleep\0{mark}")) == 2)
    command.cancel()
    with pytest.raises(asyncio.CancelledError):
        await command
    assert processes(mark) == []


@pytest.mark.parametrize("profile", ["read", "network"])
async def test_nothing_survives_when_we_are_killed(workspace: Path, profile: str) -> None:
    mark = f"60{os.getpid()}.104"
    code = (
        "import asyncio, sys; from holdfast.toolkits.shell import shell; "
        "asyncio.run(shell(sys.argv[1], profile=sys.argv[3])[0].function(None, sys.argv[2]))"
    )
    command = DAEMON.format(mark=mark) + "trap '' TERM HUP; sleep 60"
    with subprocess.Popen([sys.executable, "-c", code, workspace, command, profile]) as host:  # noqa: ASYNC220
        await until(lambda: len(processes(f"sleep\0{mark}")) == 2)
        host.send_signal(signal.SIGKILL)
    await until(lambda: processes(mark) == [])


KILLED_AT_START = """
import os, signal, sys, threading, time
from holdfast.toolkits.files.workspace import make_protection
from holdfast.toolkits.shell import run as running
from holdfast.toolkits.shell.sandbox import require_sandbox
from holdfast.toolkits.shell.policy import ShellSettings

require_sandbox()
settings = ShellSettings(
    workspace=sys.argv[1], protection=make_protection(), profile="read", sandboxed=True, seconds=60.0, memory=2**28,
    output=1000, variables=(), workspace_bytes=2**30, workspace_files=1000, control_groups=(),
)
for number in range(40):
    host = os.fork()
    if host == 0:
        def kill(delay=number / 2000):
            time.sleep(delay)
            os.kill(os.getpid(), signal.SIGKILL)
        threading.Thread(target=kill, daemon=True).start()
        running.run_command(settings, "sleep 1000", 60.0, print, threading.Event())
    os.waitpid(host, 0)
"""


async def test_nothing_survives_when_we_are_killed_while_a_sandbox_starts(workspace: Path) -> None:
    done = await asyncio.create_subprocess_exec(sys.executable, "-c", KILLED_AT_START, workspace)
    assert await done.wait() == 0
    await until(lambda: processes(str(workspace)) == [])


async def test_a_flood_of_processes_is_ended(workspace: Path) -> None:
    found = await ran(workspace, "for i in $(seq 600); do sleep 60 & done; wait", timeout=PATIENCE)
    # Where the kernel itself refuses more of them, the command gets an error instead.
    assert "more than 512 processes" in found.get("note", "") or "Resource temporarily" in found["output"]


async def test_a_process_can_t_take_more_memory_than_it_may(workspace: Path) -> None:
    assert (await python(workspace, "bytearray(2**30)", memory=2**28)).endswith("MemoryError")


@pytest.mark.parametrize("folder", ["/tmp", "/dev/shm"])  # noqa: S108  those of the sandbox
async def test_folders_in_memory_are_bounded(workspace: Path, folder: str) -> None:
    found = await ran(workspace, f"head -c 100000000 /dev/zero > {folder}/big", memory=2**25)
    assert "No space left" in found["output"]


# ---- never without a sandbox -----------------------------------------------------------------------------------------


REFUSED = """
import asyncio, sys
from holdfast.toolkits.shell import SandboxUnavailable, shell
try:
    (tool,) = shell(sys.argv[1], profile="write")
    asyncio.run(tool.function(None, "touch ran"))
except SandboxUnavailable as error:
    print(error.reason)
"""


def refused(workspace: Path, *arrangement: str, passed: tuple[int, ...] = ()) -> str:
    """Why there is no shell on a machine that is arranged like this."""
    base = ["bwrap", "--die-with-parent", "--dev-bind", "/", "/", *arrangement]
    done = subprocess.run(
        [*base, sys.executable, "-c", REFUSED, workspace], capture_output=True, text=True, check=False, pass_fds=passed
    )
    assert done.returncode == 0, done.stderr
    assert os.listdir(workspace) == []
    return done.stdout


def test_without_bubblewrap_there_is_no_shell(workspace: Path) -> None:
    assert "not installed" in refused(workspace, "--ro-bind", "/dev/null", "/usr/bin/bwrap")


@pytest.mark.parametrize("segment", [None, 0])
def test_without_user_namespaces_there_is_no_shell(workspace: Path, segment: int | None) -> None:
    with tempfile.TemporaryFile() as file:
        file.write(seccomp_program(platform.machine(), segment))
        file.seek(0)
        number = file.fileno()
        assert "bubblewrap" in refused(workspace, "--seccomp", str(number), passed=(number,))


def test_the_error_says_what_to_do(workspace: Path) -> None:
    error = SandboxUnavailable("bubblewrap is not installed", "install it")
    assert str(error) == (
        "commands can't be confined here: bubblewrap is not installed; install it, or leave the shell out. "
        "Only unsafe=True runs commands without a sandbox"
    )


def test_a_bubblewrap_from_the_search_path_is_never_used(workspace: Path) -> None:
    fake = workspace / "bwrap"
    fake.write_text(f"#!/bin/sh\ntouch {workspace}/fooled\n", encoding="utf-8")
    fake.chmod(0o755)
    code = (
        "import asyncio, sys; from holdfast.toolkits.shell import shell; "
        "print(asyncio.run(shell(sys.argv[1])[0].function(None, 'echo fine')))"
    )
    path = f"{workspace}:{os.environ['PATH']}"
    done = subprocess.run(
        [sys.executable, "-c", code, workspace],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "fine" in done.stdout
    assert not (workspace / "fooled").exists()
