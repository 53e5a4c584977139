"""Handoffs and totals from the shell: `show`, `ps --tree`, `logs`, `resume`, `replay --check`."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest

import holdfast as hf
from holdfast.cli.agents import load_agent
from holdfast.cli.options import FAILED, Shell
from holdfast.cli.run import resume
from holdfast.cli.sessions import ps, replay
from holdfast.cli.show import describe_event, show
from holdfast.errors import JournalConflict
from holdfast.messages import Usage
from holdfast.testing import ScriptedModel, call, reply, text

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

AGENTS = """
import holdfast as hf
from holdfast.testing import ScriptedModel, call, text


@hf.tool
async def ask(ctx: hf.Context) -> str:
    return str(await ctx.wait("approval"))


billing = hf.Agent(
    "billing",
    model=ScriptedModel([text("?"), call("ask"), text("You owe nothing.")]),
    tools=[ask],
    policy=[hf.allow("*")],
)
desk = hf.Agent(
    "desk",
    model=ScriptedModel([call("transfer_to_billing", reason="It is about money.")]),
    tools=[hf.handoff(billing)],
)
stranger = hf.Agent("stranger", model=ScriptedModel([text("hi")]))
"""


@pytest.fixture
def agents(tmp_path: Path) -> Iterator[str]:
    """A file with agents, as the command line names it."""
    (tmp_path / "handing_agents.py").write_text(AGENTS)
    yield str(tmp_path / "handing_agents.py")
    sys.modules.pop("agent_file_handing_agents", None)


async def waiting(path: Path, agents: str) -> None:
    """The session "s", which billing has, and which was answered while nobody drove it."""
    desk = load_agent(f"{agents}:desk")
    async with hf.open(path, agents=[desk]) as runtime:
        turn = await runtime.session("s", agent=desk).send("What do I owe?")
        async for event in turn.events():
            if isinstance(event, hf.TurnWaiting):
                break
    async with hf.open(path, drive=False) as runtime:
        (wait,) = await runtime.waits("s")
        await runtime.resolve(runtime.wait_token("s", wait.name), value=True)


async def test_a_session_that_was_handed_over_is_resumed_with_the_agent_that_had_it_first(
    tmp_path: Path, agents: str, capsys: pytest.CaptureFixture[str]
) -> None:
    await waiting(tmp_path / "s.db", agents)
    code = await resume("s", agent=f"{agents}:desk", store=tmp_path / "s.db")
    assert (code, capsys.readouterr().out.strip()) == (0, "You owe nothing.")


async def test_a_session_that_was_handed_over_is_not_resumed_with_a_stranger(tmp_path: Path, agents: str) -> None:
    await waiting(tmp_path / "s.db", agents)
    with pytest.raises(JournalConflict):
        await resume("s", agent=f"{agents}:stranger", store=tmp_path / "s.db")


async def test_show_tells_who_had_the_turn_and_why_it_was_handed_over(
    tmp_path: Path, agents: str, capsys: pytest.CaptureFixture[str]
) -> None:
    await waiting(tmp_path / "s.db", agents)
    await show(Shell(store=tmp_path / "s.db"), "s")
    shown = capsys.readouterr().out
    assert "desk > billing" in shown
    assert any(
        "handoff" in line and "to billing" in line and "It is about money." in line for line in shown.split("\n")
    )


async def test_show_tells_programs_who_spoke(tmp_path: Path, agents: str, capsys: pytest.CaptureFixture[str]) -> None:
    await waiting(tmp_path / "s.db", agents)
    await show(Shell(as_json=True, store=tmp_path / "s.db"), "s")
    told = json.loads(capsys.readouterr().out)
    (turn,) = told["turns"]
    assert told["session"]["agent"] == "billing"
    assert turn["agents"] == ["desk", "billing"]
    assert [step["agent"] for step in turn["steps"] if step["kind"] == "model"] == ["desk", "billing"]


async def test_each_agent_is_checked_in_what_it_did(
    tmp_path: Path, agents: str, capsys: pytest.CaptureFixture[str]
) -> None:
    await waiting(tmp_path / "s.db", agents)
    await resume("s", agent=f"{agents}:desk", store=tmp_path / "s.db")
    capsys.readouterr()
    assert await replay(Shell(as_json=True, store=tmp_path / "s.db"), "s", agent=f"{agents}:desk", check=True) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["turn"], found["verdict"], found["status"]) == ("t1", "ok", "completed")


async def test_an_agent_that_would_not_go_on_where_it_took_over_takes_another_way(
    tmp_path: Path, agents: str, capsys: pytest.CaptureFixture[str]
) -> None:
    await waiting(tmp_path / "s.db", agents)
    await resume("s", agent=f"{agents}:desk", store=tmp_path / "s.db")
    changed = AGENTS.replace("tools=[ask],", "tools=[ask], limits=hf.Limits(steps=1),")
    (tmp_path / "handing_agents.py").write_text(changed)
    sys.modules.pop("agent_file_handing_agents", None)
    capsys.readouterr()
    assert await replay(Shell(as_json=True, store=tmp_path / "s.db"), "s", agent=f"{agents}:desk", check=True) == FAILED


async def test_a_list_shows_who_has_it(tmp_path: Path, agents: str, capsys: pytest.CaptureFixture[str]) -> None:
    await waiting(tmp_path / "s.db", agents)
    await ps(Shell(as_json=True, store=tmp_path / "s.db"), every=True)
    assert [line["agent"] for line in json.loads(capsys.readouterr().out)] == ["billing"]


async def test_a_session_whose_agent_nobody_here_knows_is_listed_as_interrupted(
    tmp_path: Path, agents: str, capsys: pytest.CaptureFixture[str]
) -> None:
    await waiting(tmp_path / "s.db", agents)
    async with hf.open(tmp_path / "s.db", agents=[hf.Agent("desk", model=ScriptedModel([text("hi")]))]):
        pass
    await ps(Shell(as_json=True, store=tmp_path / "s.db"), every=False)
    assert [(line["agent"], line["status"]) for line in json.loads(capsys.readouterr().out)] == [("billing", "waiting")]


def test_the_log_has_a_line_for_it() -> None:
    event = hf.events.HandedOff(
        session="s", turn="t1", at=0, seq=7, cursor="7", agent="billing", by="desk", call="t1.2.1", reason="Money."
    )
    assert describe_event(event) == "handed over to billing: Money."


# ---- totals ----------------------------------------------------------------------------------------------------------


async def family(path: Path) -> None:
    low = hf.Agent("low", model=ScriptedModel([reply(text("done"), usage=Usage(99, 1))]))
    script = [reply(call("low", prompt="Go."), usage=Usage(9, 1)), reply(text("x"), usage=Usage(19, 1))]
    high = hf.Agent("high", model=ScriptedModel(script), tools=[hf.agent_tool(low)])
    async with hf.open(path, agents=[high], prices={"scripted:model": hf.Price(input=1, output=1)}) as runtime:
        await runtime.run("high", "Go.", session="top")


async def test_the_tree_has_what_each_used_with_those_below_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await family(tmp_path / "s.db")
    await ps(Shell(store=tmp_path / "s.db"), every=True, tree=True)
    headings, top, below = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert headings[4:6] == ["TOKENS", "COST"]
    assert top[4:6] == ["130", "$0.0001"]
    assert below[5:7] == ["100", "$0.0001"]


async def test_the_tree_has_them_for_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    await family(tmp_path / "s.db")
    await ps(Shell(as_json=True, store=tmp_path / "s.db"), every=True, tree=True)
    found = {line["agent"]: line["total_tokens"] for line in json.loads(capsys.readouterr().out)}
    assert found == {"high": 130, "low": 100}


async def test_show_tells_what_a_turn_used_with_its_sub_agents(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await family(tmp_path / "s.db")
    await show(Shell(store=tmp_path / "s.db"), "top")
    assert "28 + 2 tokens, with sub-agents 127 + 3 tokens" in capsys.readouterr().out
