"""Protected names deeper down: what a hostile command tries with repositories inside a workspace, and does not get."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.toolkits.files.workspace import choose_opener, make_protection
from holdfast.toolkits.shell import sandbox_problem, shell
from holdfast.toolkits.shell.guard import (
    MAX_BOUND_NAMES,
    MAX_SCANNED_FOLDERS,
    WorkspaceGuard,
    choose_covers,
    scan_names,
)
from holdfast.toolkits.shell.policy import NameCover
from holdfast.toolkits.shell.sandbox import binds_open_files, find_trusted_program

if TYPE_CHECKING:
    from pathlib import Path

_BWRAP = find_trusted_program("bwrap")
pytestmark = pytest.mark.skipif(
    sandbox_problem() is not None or _BWRAP is None or not binds_open_files(_BWRAP),
    reason="no sandbox that binds open files",
)


async def ran(workspace: Path, command: str, **given: Any) -> dict[str, Any]:
    said: dict[str, Any] = {"profile": "write", **given}
    (tool,) = shell(workspace, **said)
    return await tool.function(None, command)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    (folder / "sub" / ".git" / "hooks").mkdir(parents=True)
    (folder / "sub" / ".git" / "config").write_text("old", encoding="utf-8")
    (folder / "sub" / "code.py").write_text("old", encoding="utf-8")
    (folder / "plain" / "deep").mkdir(parents=True)
    return folder


def _tree(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize("profile", ["write", "network"])
@pytest.mark.parametrize(
    "attack",
    [
        "echo x > sub/.git/hooks/pre-commit",
        "echo x > sub/.git/config",
        "rm -rf sub/.git; mkdir -p sub/.git/hooks; touch sub/.git/hooks/pre-commit",
        "mv sub/.git old; mkdir -p sub/.git/hooks",
        "mv sub old; mkdir -p sub/.git/hooks; touch sub/.git/hooks/pre-commit",
        "rm -rf sub; mkdir -p sub/.git/hooks; touch sub/.git/hooks/pre-commit",
        "ln -sfn /tmp sub; mkdir evil; mv -T --exchange evil sub; mv -T evil sub",
    ],
)
async def test_a_repository_within_the_workspace_stays_as_it_is(workspace: Path, attack: str, profile: str) -> None:
    await ran(workspace, attack, profile=profile)
    assert [path for path in _tree(workspace / "sub") if path.startswith(".git")] == [
        ".git",
        ".git/config",
        ".git/hooks",
    ]
    assert (workspace / "sub" / ".git" / "config").read_text(encoding="utf-8") == "old"


async def test_other_files_beside_such_a_repository_can_be_written(workspace: Path) -> None:
    await ran(workspace, "echo new > sub/code.py; touch sub/other; mv sub/other sub/moved; touch top; rm -r plain/deep")
    assert (workspace / "sub" / "code.py").read_text(encoding="utf-8") == "new\n"
    assert ((workspace / "sub" / "moved").exists(), (workspace / "top").exists()) == (True, True)
    assert not (workspace / "plain" / "deep").exists()


@pytest.mark.parametrize("name", [".envrc", "AGENTS.md", ".claude", ".npmrc", ".gitmodules", "CLAUDE.local.md", "HEAD"])
async def test_what_agents_and_editors_obey_deeper_down_stays_as_it_is(workspace: Path, name: str) -> None:
    (workspace / "plain" / "deep" / name).write_text("old", encoding="utf-8")
    await ran(workspace, f"echo new > plain/deep/{name}; rm plain/deep/{name}; mv plain/deep/{name} plain/x")
    assert (workspace / "plain" / "deep" / name).read_text(encoding="utf-8") == "old"


async def test_a_link_deeper_down_shows_nothing_of_the_host(workspace: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / ".git").mkdir(parents=True)
    (outside / ".git" / "secret").write_text("canary", encoding="utf-8")
    (workspace / "away").symlink_to(outside)
    (workspace / "plain" / ".git").symlink_to(outside / ".git")
    found = await ran(workspace, "cat away/.git/secret plain/.git/secret; find . -name secret")
    assert "canary" not in found["output"]
    assert os.listdir(outside / ".git") == ["secret"]


async def test_a_command_gets_no_open_file_of_the_host(workspace: Path) -> None:
    found = await ran(workspace, "ls /proc/self/fd; ls /proc/$$/fd")
    assert set(found["output"].split()) <= {"0", "1", "2", "3", "255"}
    alone = await ran(workspace, "python3 -c 'import os; print(sorted(os.listdir(\"/proc/self/fd\")))'")
    assert alone["output"].strip() == "['0', '1', '2', '3']"


async def test_nothing_is_left_behind(workspace: Path) -> None:
    before, open_files = _tree(workspace), len(os.listdir("/proc/self/fd"))
    await ran(workspace, "true")
    assert _tree(workspace) == before
    assert len(os.listdir("/proc/self/fd")) <= open_files  # what tests before left may be closed meanwhile


async def test_a_repository_that_a_command_makes_is_told(workspace: Path, caplog: pytest.LogCaptureFixture) -> None:
    await ran(workspace, "mkdir -p plain/.git/hooks")
    assert "have appeared" in caplog.text
    assert "plain/.git" in caplog.text


async def test_what_was_there_before_is_not_told(workspace: Path, caplog: pytest.LogCaptureFixture) -> None:
    await ran(workspace, "touch sub/other")
    assert "have appeared" not in caplog.text


async def test_a_workspace_with_too_many_such_names_protects_repositories_first(
    workspace: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(MAX_BOUND_NAMES + 5):
        (workspace / f"a{number}").mkdir()
        (workspace / f"a{number}" / "AGENTS.md").touch()
    guard = WorkspaceGuard(str(workspace), make_protection(), deep=True)
    try:
        kept = [cover.path for cover in guard.covers if cover.kind == "kept"]
    finally:
        guard.close()
    assert "sub/.git" in kept
    assert "not all protected names" in caplog.text


def test_folders_of_other_peoples_code_are_not_looked_through(workspace: Path) -> None:
    (workspace / "node_modules" / "x" / ".git").mkdir(parents=True)
    root = os.open(workspace, os.O_RDONLY)
    try:
        assert scan_names(root, choose_opener(root), make_protection()).names == ("sub/.git",)
    finally:
        os.close(root)


def test_so_many_folders_are_looked_into_and_no_more(workspace: Path) -> None:
    for number in range(MAX_SCANNED_FOLDERS):
        (workspace / "plain" / f"f{number}").mkdir()
    root = os.open(workspace, os.O_RDONLY)
    try:
        seen = scan_names(root, choose_opener(root), make_protection())
    finally:
        os.close(root)
    assert (seen.whole, seen.names) == (False, ("sub/.git",))


def test_outer_places_are_bound_before_those_within_them() -> None:
    assert choose_covers(["a/b/.git", "a/AGENTS.md", "c/CLAUDE.md"], {"a/b/.git"}) == [
        NameCover("a", "pinned"),
        NameCover("a/b", "pinned"),
        NameCover("a/AGENTS.md", "kept"),
        NameCover("c/CLAUDE.md", "kept"),
        NameCover("a/b/.git", "kept"),
    ]
