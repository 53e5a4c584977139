"""Sub-agents from the shell: `holdfast ps --tree`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import holdfast as hf
from holdfast.cli.options import Shell
from holdfast.cli.sessions import ps
from holdfast.testing import ScriptedModel, call, text

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


async def _made(path: Path) -> None:
    low = hf.Agent("low", model=ScriptedModel([text("done")]))
    script = [call("low", prompt="Go."), text("x")]
    high = hf.Agent("high", model=ScriptedModel(script), tools=[hf.agent_tool(low)])
    async with hf.open(path, agents=[high]) as runtime:
        await runtime.run("high", "Go.", session="top")


async def test_the_tree_shows_a_sub_agent_below_its_parent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    await _made(tmp_path / "s.db")
    await ps(Shell(store=tmp_path / "s.db"), every=True, tree=True)
    _, first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("top ")
    assert second.startswith("`- top~low~")


async def test_the_list_names_the_parent_for_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    await _made(tmp_path / "s.db")
    await ps(Shell(as_json=True, store=tmp_path / "s.db"), every=True)
    found = {line["agent"]: line["parent"] for line in json.loads(capsys.readouterr().out)}
    assert found == {"high": None, "low": "top"}
