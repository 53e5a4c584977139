"""Git repositories that a command makes: git on the host must not run what their configuration names."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from tests.behaviour.talk import until
from tests.every import every

from holdfast.toolkits.files import files
from holdfast.toolkits.files.workspace import PROTECTED_NAMES, PathProtected, make_protection
from holdfast.toolkits.shell import WorkspaceRefused, sandbox_problem, shell
from holdfast.toolkits.shell.guard import MAX_SCANNED_FOLDERS

pytestmark = pytest.mark.skipif(sandbox_problem() is not None, reason=f"no sandbox: {sandbox_problem()}")
needs_git = pytest.mark.skipif(shutil.which("git", path="/usr/bin:/bin") is None, reason="git is not installed")

CONFIG = r"printf '[core]\nrepositoryformatversion=0\nworktree={tree}\nfsmonitor=touch {mark};true\n' > {at}/config"
HEADED = "mkdir -p {at}; echo 'ref: refs/heads/main' > {at}/HEAD; "
BARE = HEADED + "mkdir {at}/objects {at}/refs; " + CONFIG
SHARED = (
    f"{HEADED} mkdir -p {{at}}/../common/objects {{at}}/../common/refs; echo ../common > {{at}}/commondir; "
    + CONFIG.replace("{at}/config", "{at}/../common/config")
)
LINKED = BARE.replace("echo 'ref: refs/heads/main' > {at}/HEAD", "ln -s refs/heads/main {at}/HEAD")
NAMED = BARE.replace("{at}", "{at}/.git")
POINTED = BARE.replace("{at}", "{at}/hidden") + "; echo 'gitdir: hidden' > {at}/.git"


async def ran(workspace: Path, command: str, **given: Any) -> dict[str, Any]:
    said: dict[str, Any] = {"profile": "write", **given}
    (tool,) = shell(workspace, **said)
    _pass_a_tick(workspace.parent / "probe")
    return await tool.function(None, command)


def _pass_a_tick(probe: Path) -> None:
    """Change times move in ticks of a few milliseconds: what is there must be older than the command."""
    probe.touch()
    begun = probe.stat().st_ctime_ns
    while probe.stat().st_ctime_ns <= begun:
        probe.touch()


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    return folder


def git_runs(folder: Path, mark: Path) -> bool:
    """Whether git on the host, in this folder, runs what a command has put into its configuration."""
    subprocess.run(["git", "status"], cwd=folder, capture_output=True, check=False)
    return mark.exists()


def made(shape: str, at: str, mark: Path) -> str:
    return shape.replace("{at}", at).replace("{mark}", str(mark)).replace("{tree}", str(mark.parent))


@needs_git
@pytest.mark.parametrize("at", ["evil", "a/b/evil", "node_modules/evil"])
@pytest.mark.parametrize("shape", [BARE, SHARED, LINKED, NAMED, POINTED])
async def test_git_on_the_host_runs_nothing_of_a_repository_that_a_command_made(
    workspace: Path, tmp_path: Path, shape: str, at: str
) -> None:
    mark = tmp_path / "run"
    await ran(workspace, made(shape, at, mark))
    assert not git_runs(workspace / at, mark)


@needs_git
@pytest.mark.parametrize("shape", [BARE, LINKED, NAMED, POINTED])
def test_git_on_the_host_would_run_what_such_a_repository_names(workspace: Path, tmp_path: Path, shape: str) -> None:
    mark = tmp_path / "run"
    subprocess.run(["sh", "-c", made(shape, "evil", mark)], cwd=workspace, check=True)
    assert git_runs(workspace / "evil", mark)


@needs_git
async def test_the_top_of_a_workspace_can_t_be_made_a_repository(workspace: Path, tmp_path: Path) -> None:
    mark = tmp_path / "run"
    await ran(workspace, made(BARE, ".", mark))
    assert not (workspace / "HEAD").exists()
    assert not git_runs(workspace, mark)


async def test_the_result_tells_which_repositories_were_disarmed(workspace: Path) -> None:
    found = await ran(workspace, made(BARE, "evil", workspace) + "; " + made(NAMED, "sub", workspace))
    assert sorted(found["disarmed"]) == ["evil", "sub/.git"]
    assert "git repositories appeared and were disarmed" in found["note"]


async def test_a_disarmed_repository_can_be_armed_again_by_a_person(workspace: Path) -> None:
    await ran(workspace, made(BARE, "evil", workspace))
    assert (workspace / "evil" / "HEAD.disarmed").read_text(encoding="utf-8") == "ref: refs/heads/main\n"


async def test_the_result_tells_which_protected_names_appeared(workspace: Path) -> None:
    found = await ran(workspace, "mkdir -p sub/.vscode; echo x > sub/AGENTS.md; echo x > sub/plain; mkdir notes.git")
    assert sorted(found["appeared"]) == ["notes.git", "sub/.vscode", "sub/AGENTS.md"]
    assert "protected names appeared" in found["note"]


async def test_a_command_that_makes_nothing_of_the_kind_is_told_nothing(workspace: Path) -> None:
    (workspace / "sub").mkdir()
    (workspace / "sub" / "AGENTS.md").touch()
    assert await ran(workspace, "touch sub/plain") == {"exit_code": 0, "output": ""}


async def test_a_repository_that_is_made_in_two_commands_is_disarmed(workspace: Path) -> None:
    await ran(workspace, "mkdir evil; echo 'ref: refs/heads/main' > evil/HEAD; echo > evil/config")
    found = await ran(workspace, "mkdir evil/objects evil/refs")
    assert found["disarmed"] == ["evil"]


async def test_a_command_can_t_keep_a_repository_armed_by_taking_the_new_name(workspace: Path) -> None:
    found = await ran(workspace, made(BARE, "evil", workspace) + "; mkdir -p evil/HEAD.disarmed/x; chmod 555 evil")
    assert found["disarmed"] == ["evil"]
    assert not (workspace / "evil" / "HEAD").exists()


CLOSED = """
import asyncio, os, sys
from holdfast.toolkits.shell import sandbox, sandbox_problem, shell
if os.getuid() == 0:  # root may enter every folder
    asyncio.run(shell(sys.argv[1])[0].function(None, "true"))  # all modules are loaded now
    sandbox._probe.cache_clear()
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
if sandbox_problem() is not None:
    sys.exit(77)
(tool,) = shell(sys.argv[1], profile="write")
found = asyncio.run(tool.function(None, sys.argv[2]))
print(found.get("disarmed"), os.path.lexists(sys.argv[1] + "/closed/evil/HEAD"))
"""


def test_a_command_can_t_hide_a_repository_in_a_folder_that_it_closes_to_its_own_user() -> None:
    command = made(BARE, "closed/evil", Path("/none")) + "; chmod 111 closed/evil closed"
    with tempfile.TemporaryDirectory() as workspace:  # pytest's own are closed to other users
        Path(workspace).chmod(0o777)
        done = subprocess.run(
            [sys.executable, "-c", CLOSED, workspace, command], capture_output=True, text=True, check=False
        )
    if done.returncode == 77:
        pytest.skip("only root has a sandbox here")
    assert done.stdout == "['closed/evil'] False\n", done.stderr


async def test_a_repository_that_was_there_without_the_name_stays_as_it_is(workspace: Path) -> None:
    repository = workspace / "mirror"
    for name in ("objects", "refs", "hooks"):
        (repository / name).mkdir(parents=True)
    (repository / "HEAD").write_text("ref: refs/heads/main\n", encoding="utf-8")
    found = await ran(workspace, "echo x > mirror/config; touch mirror/hooks/x; mv mirror old; rm -rf mirror")
    assert sorted(os.listdir(repository)) == ["HEAD", "hooks", "objects", "refs"]
    assert "disarmed" not in found


@pytest.fixture
def beyond(workspace: Path) -> Path:
    """A person's repository, farther down than repositories are bound read-only."""
    for number in range(MAX_SCANNED_FOLDERS):
        (workspace / f"a{number:03}").mkdir()
    repository = workspace / "z" / "deep" / "mine" / ".git"
    for name in ("objects", "refs", "hooks"):
        (repository / name).mkdir(parents=True)
    (repository / "HEAD").write_text("ref: refs/heads/main\n", encoding="utf-8")
    (repository / "config").write_text("[core]\n\tbare = false\n", encoding="utf-8")
    (repository / "hooks" / "pre-commit").write_text("exit 0\n", encoding="utf-8")
    return repository


@pytest.mark.parametrize(
    "command",
    [
        "echo 'ref: refs/heads/other' > HEAD.lock; mv HEAD.lock HEAD",
        "touch index objects/x refs/y",
        "touch config hooks/pre-commit",
        "cp config config.lock; mv config.lock config",
    ],
)
async def test_a_repository_that_was_there_stays_one_while_what_git_runs_in_it_is_the_same(
    workspace: Path, beyond: Path, command: str
) -> None:
    found = await ran(workspace, f"cd z/deep/mine/.git; {command}")
    assert (beyond / "HEAD").exists()
    assert "disarmed" not in found


async def test_a_repository_that_was_there_and_changed_is_told(workspace: Path, beyond: Path) -> None:
    found = await ran(workspace, "touch z/deep/mine/.git/index")
    assert found["appeared"] == ["z/deep/mine/.git"]
    assert (beyond / "index").exists()


@pytest.mark.parametrize(
    "command",
    [
        "echo '[core]' >> config",
        "echo '[core]' > config.worktree",
        "echo ../other > commondir",
        "echo 'touch x' > hooks/pre-commit",
        "chmod +x hooks/pre-commit",
        "echo 'touch x' > hooks/post-checkout",
        "mv hooks old; ln -s ../../hooks hooks",
        "head -c 2000000 /dev/zero > config",
        "rm config; mkfifo config",
        "cd ..; mv .git old; cp -r old .git; echo x >> .git/config",
    ],
)
async def test_a_repository_that_was_there_is_disarmed_when_what_git_runs_in_it_changed(
    workspace: Path, beyond: Path, command: str
) -> None:
    found = await ran(workspace, f"cd z/deep/mine/.git; {command}")
    assert not (beyond / "HEAD").exists()
    assert "z/deep/mine/.git" in found["disarmed"]


async def test_a_file_that_leads_to_a_repository_stays_while_it_leads_to_the_same(
    workspace: Path, beyond: Path
) -> None:
    place = beyond.parent.parent / "tree" / ".git"
    place.parent.mkdir()
    place.write_text("gitdir: ../mine/.git\n", encoding="utf-8")
    assert "disarmed" not in await ran(workspace, "touch z/deep/tree/.git")
    assert (await ran(workspace, "echo x > z/deep/tree/.git"))["disarmed"] == ["z/deep/tree/.git"]


async def test_a_repository_among_other_peoples_code_stays_one_when_only_its_head_changed(workspace: Path) -> None:
    repository = workspace / ".venv" / "src" / "mine" / ".git"
    for name in ("objects", "refs"):
        (repository / name).mkdir(parents=True)
    (repository / "HEAD").write_text("ref: refs/heads/main\n", encoding="utf-8")
    assert "disarmed" not in await ran(workspace, "echo 'ref: refs/heads/x' > .venv/src/mine/.git/HEAD")
    assert (repository / "HEAD").exists()


async def test_the_note_tells_how_to_undo_it(workspace: Path) -> None:
    found = await ran(workspace, made(BARE, "evil", workspace))
    assert "mv HEAD.disarmed HEAD" in found["note"]


async def test_a_workspace_that_is_itself_such_a_repository_is_refused(workspace: Path) -> None:
    for name in ("objects", "refs"):
        (workspace / name).mkdir()
    (workspace / "HEAD").write_text("ref: refs/heads/main\n", encoding="utf-8")
    with pytest.raises(WorkspaceRefused, match="without a working tree"):
        await ran(workspace, "true")


async def test_a_host_can_let_repositories_be_made(workspace: Path) -> None:
    found = await ran(workspace, made(NAMED, "sub", workspace), unprotect=("*.git",))
    assert "disarmed" not in found
    assert (workspace / "sub" / ".git" / "HEAD").exists()


async def test_a_repository_of_a_command_whose_process_was_killed_is_disarmed_when_a_shell_is_made(
    workspace: Path,
) -> None:
    code = (
        "import asyncio, sys; from holdfast.toolkits.shell import shell; "
        "asyncio.run(shell(sys.argv[1], profile='write')[0].function(None, sys.argv[2]))"
    )
    command = made(BARE, "evil", workspace) + "; touch made; sleep 60"
    with subprocess.Popen([sys.executable, "-c", code, workspace, command]) as host:  # noqa: ASYNC220
        await until((workspace / "made").exists)
        host.kill()
    assert (workspace / "evil" / "HEAD").exists()
    shell(workspace, profile="write")
    assert not (workspace / "evil" / "HEAD").exists()
    assert sorted(os.listdir(workspace)) == ["evil", "made"]


def test_the_file_tools_write_into_no_repository_that_shares_its_objects(workspace: Path) -> None:
    (workspace / "shared").mkdir()
    (workspace / "shared" / "HEAD").write_text("ref: refs/heads/main\n", encoding="utf-8")
    (workspace / "shared" / "commondir").write_text("../other\n", encoding="utf-8")
    write = next(tool for tool in files(workspace) if tool.name == "write_file")
    with pytest.raises(PathProtected, match="a git directory"):
        write.function("shared/config", "x")


@every("rule", PROTECTED_NAMES)
async def test_the_shell_and_the_file_tools_protect_the_same_names(rule: str) -> None:
    """Each rule has a name that the shell can put something in the place of."""
    literals = make_protection().literals
    path = tuple(rule.split("/"))
    if "*" not in rule:
        assert path in literals
    else:
        guard = make_protection(unprotect=tuple(other for other in PROTECTED_NAMES if other != rule))
        assert any(guard.rule_for(other) for other in literals) or rule in {"git~*", "AGENTS.*.md", "holdfast.db-*"}
