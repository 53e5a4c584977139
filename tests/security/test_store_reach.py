"""A store out of reach: no tool of an agent gets at the file with its approvals, or at what lies beside it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

import holdfast as hf
from holdfast.errors import HoldfastError, InvalidArgument, StoreInWorkspace
from holdfast.testing import ScriptedModel, call, text
from holdfast.toolkits.files.workspace import PathRefused
from holdfast.toolkits.shell import sandbox_problem
from holdfast.toolkits.shell.policy import WorkspaceRefused
from holdfast.toolkits.skills import SkillFolderInvalid

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from holdfast.tools import AnyTool

needs_sandbox = pytest.mark.skipif(sandbox_problem() is not None, reason=f"no sandbox: {sandbox_problem()}")


def _skills(folder: Path) -> tuple[AnyTool, ...]:
    skill = folder / "tidy"
    skill.mkdir(exist_ok=True)
    (skill / "SKILL.md").write_text("---\nname: tidy\ndescription: Tidy up.\n---\nTidy.\n")
    return hf.tools.skills(folder)


HIDING: dict[str, Callable[[Path], tuple[AnyTool, ...]]] = {
    "files": hf.tools.files,
    "reading files": lambda folder: hf.tools.files(folder, write=False),
    "project": hf.tools.project,
    "skills": _skills,
}
SHELLS: dict[str, Callable[[Path], tuple[AnyTool, ...]]] = {
    profile: lambda folder, profile=profile: hf.tools.shell(folder, profile=profile)
    for profile in ("read", "write", "network")
}
BARE: dict[str, Callable[[Path], tuple[AnyTool, ...]]] = {
    "unsafe shell": lambda folder: hf.tools.shell(folder, unsafe=True)
}
if sandbox_problem() is None:
    HIDING.update(SHELLS)


def agent(tools: Any, name: str = "clerk") -> hf.Agent:
    return hf.Agent(name, model=ScriptedModel([text("Done.")]), tools=tools, policy=[hf.allow("*")])


async def refusal(store: Path, *agents: hf.Agent) -> StoreInWorkspace:
    with pytest.raises(StoreInWorkspace) as raised:
        async with hf.open(store, agents=agents):
            pass
    return raised.value


@pytest.mark.parametrize("family", [*HIDING, *BARE])
async def test_a_store_in_the_workspace_of_a_tool_is_refused_before_there_is_a_file(
    tmp_path: Path, family: str
) -> None:
    made = (HIDING | BARE)[family](tmp_path)
    refused = await refusal(tmp_path / "deep" / "shop.db", agent(made))
    assert str(tmp_path) in str(refused)
    assert str(tmp_path / "deep" / "shop.db") in str(refused)
    assert (refused.tool, refused.workspace) == (made[0].name, str(tmp_path))
    assert not (tmp_path / "deep").exists()


@pytest.mark.parametrize("family", HIDING)
async def test_a_store_in_the_store_folder_at_the_top_of_a_workspace_is_opened(tmp_path: Path, family: str) -> None:
    async with hf.open(tmp_path / ".holdfast" / "shop.db", agents=[agent(HIDING[family](tmp_path))]) as runtime:
        assert (await runtime.run("clerk", "Go on.")).text == "Done."


async def test_a_shell_without_a_sandbox_is_refused_also_with_the_store_folder(tmp_path: Path) -> None:
    refused = await refusal(tmp_path / ".holdfast" / "shop.db", agent(BARE["unsafe shell"](tmp_path)))
    assert "out of that folder" in refused.remedy


async def test_a_store_folder_deeper_down_is_refused_since_its_parent_could_be_renamed(tmp_path: Path) -> None:
    await refusal(tmp_path / "deep" / ".holdfast" / "shop.db", agent(hf.tools.files(tmp_path)))


async def test_the_refusal_shows_the_command_that_moves_the_store(tmp_path: Path) -> None:
    refused = await refusal(tmp_path / "shop.db", agent(hf.tools.files(tmp_path)))
    assert f"mkdir -m 700 -p {tmp_path}/.holdfast && mv {tmp_path}/shop.db* {tmp_path}/.holdfast/" in refused.remedy


async def test_a_store_is_refused_whose_real_file_is_in_a_workspace(tmp_path: Path) -> None:
    workspace = tmp_path / "work"
    workspace.mkdir()
    (tmp_path / "link.db").symlink_to(workspace / "real.db")
    refused = await refusal(tmp_path / "link.db", agent(hf.tools.files(workspace)))
    assert refused.place.startswith(str(workspace / "real.db"))


async def test_a_store_is_refused_that_is_named_by_a_link_in_a_workspace(tmp_path: Path) -> None:
    workspace = tmp_path / "work"
    workspace.mkdir()
    (workspace / "link.db").symlink_to(tmp_path / "real.db")
    await refusal(workspace / "link.db", agent(hf.tools.files(workspace)))


@pytest.mark.parametrize("suffix", ["-wal", ".memory", ".log", ".key"])
async def test_a_file_beside_the_store_that_leads_into_a_workspace_is_refused(tmp_path: Path, suffix: str) -> None:
    workspace = tmp_path / "work"
    workspace.mkdir()
    (tmp_path / f"shop.db{suffix}").symlink_to(workspace / "elsewhere")
    refused = await refusal(tmp_path / "shop.db", agent(hf.tools.files(workspace)))
    assert refused.place == str(workspace / "elsewhere")


async def test_a_workspace_in_the_mirror_of_the_store_is_refused(tmp_path: Path) -> None:
    scope = tmp_path / "shop.db.memory" / "notes"
    scope.mkdir(parents=True)
    await refusal(tmp_path / "shop.db", agent(hf.tools.files(scope)))


async def test_a_tool_of_a_sub_agent_is_looked_at_too(tmp_path: Path) -> None:
    helper = agent(hf.tools.files(tmp_path), "helper")
    refused = await refusal(tmp_path / "shop.db", agent([hf.agent_tool(helper)], "boss"))
    assert refused.agent == "helper"


async def test_an_agent_that_is_added_later_is_looked_at_too(tmp_path: Path) -> None:
    async with hf.open(tmp_path / "shop.db") as runtime:
        with pytest.raises(StoreInWorkspace):
            runtime.session("s", agent=agent(hf.tools.files(tmp_path)))
        assert runtime.agents == {}


@pytest.mark.parametrize("family", [*HIDING, *BARE])
def test_no_toolkit_works_inside_a_store_folder(tmp_path: Path, family: str) -> None:
    inside = tmp_path / ".holdfast" / "work"
    inside.mkdir(parents=True)
    with pytest.raises((InvalidArgument, WorkspaceRefused, SkillFolderInvalid)):
        (HIDING | BARE)[family](inside)


# ---- the folder of the store, from inside of a workspace -------------------------------------------------------------


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / ".holdfast"
    folder.mkdir(mode=0o700)
    (folder / "holdfast.db").write_text("what is kept")
    (tmp_path / "notes.txt").write_text("what is shown")
    return tmp_path


@pytest.mark.parametrize(
    "path",
    [".holdfast/holdfast.db", ".HoldFast/holdfast.db", "link/holdfast.db", "file", "deep/up", ".holdfast\u200b/x"],
)
def test_no_file_tool_reads_in_a_store_folder(workspace: Path, path: str) -> None:
    (workspace / "link").symlink_to(".holdfast")
    (workspace / "file").symlink_to(".holdfast/holdfast.db")
    (workspace / "deep").mkdir()
    (workspace / "deep" / "up").symlink_to("../link/holdfast.db")
    read = {tool.name: tool for tool in hf.tools.files(workspace)}["read_file"]
    with pytest.raises(PathRefused, match="where stores are kept"):
        read.function(path=path)


def test_no_file_tool_writes_in_a_store_folder(workspace: Path) -> None:
    write = {tool.name: tool for tool in hf.tools.files(workspace, unprotect=(".holdfast",))}["write_file"]
    with pytest.raises(HoldfastError):
        write.function(path=".holdfast/holdfast.db", content="mine")
    assert (workspace / ".holdfast" / "holdfast.db").read_text() == "what is kept"


def test_lists_and_searches_pass_a_store_folder_over(workspace: Path) -> None:
    tools = {tool.name: tool for tool in hf.tools.files(workspace)}
    assert tools["list_files"].function(recursive=True).split()[::3] == ["notes.txt"]
    assert "holdfast.db" not in tools["search_files"].function(pattern="what is")


def test_project_instructions_in_a_store_folder_are_not_shown(workspace: Path) -> None:
    (workspace / ".holdfast" / "AGENTS.md").write_text("obey")
    (project,) = hf.tools.project(workspace)
    assert "obey" not in project.function(path=".holdfast")


@needs_sandbox
@pytest.mark.parametrize("profile", ["read", "write"])
async def test_a_command_finds_the_store_folder_empty_and_can_not_put_another_in_its_place(
    workspace: Path, profile: Any
) -> None:
    (shell,) = hf.tools.shell(workspace, profile=profile)
    command = (
        "ls -A .holdfast; cat .holdfast/holdfast.db; mv .holdfast away; rmdir .holdfast; touch .holdfast/x; "
        "umount .holdfast; ls -d .holdfast"
    )
    said = await shell.function(None, command)
    assert "what is kept" not in said["output"]
    assert said["output"].splitlines()[-1] == ".holdfast"
    assert [path.name for path in (workspace / ".holdfast").iterdir()] == ["holdfast.db"]


@needs_sandbox
async def test_a_command_of_a_running_agent_finds_no_store(tmp_path: Path) -> None:
    command = "find / -name '*.db' 2>/dev/null; ls -A .holdfast"
    model = ScriptedModel([call("shell", command=command), text("Done.")])
    made = hf.Agent("clerk", model=model, tools=hf.tools.shell(tmp_path, profile="write"), policy=[hf.allow("*")])
    async with hf.open(tmp_path / ".holdfast" / "shop.db", agents=[made]) as runtime:
        turn = await runtime.session("s", agent=made).send("Go on.")
        await turn.outcome()
        history = json.dumps([str(entry) for entry in await runtime.session("s").history()])
    assert "shop.db" not in history
