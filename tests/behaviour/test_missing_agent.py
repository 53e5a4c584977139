"""A session whose agent this runtime does not have: whoever waits is told, and it is listed."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import pytest
from tests.behaviour.talk import SOON

import holdfast as hf
from holdfast.errors import AgentMissing
from holdfast.testing import ScriptedModel, text

if TYPE_CHECKING:
    from pathlib import Path


def agent() -> hf.Agent:
    return hf.Agent("absent", model=ScriptedModel([text("here")]))


async def accepted(path: Path) -> None:
    """A session with an input that nobody has answered."""
    async with hf.open(path, agents=[made := agent()], drive=False) as runtime:
        await runtime.session("s", agent=made).send("hello")


async def test_whoever_waits_for_the_outcome_is_told_at_once(tmp_path: Path) -> None:
    await accepted(tmp_path / "store.db")
    async with hf.open(tmp_path / "store.db") as runtime:
        with pytest.raises(AgentMissing) as raised:
            await asyncio.wait_for(runtime.session("s").turn("t1").outcome(), SOON)
        assert (raised.value.session, raised.value.agent) == ("s", "absent")


async def test_whoever_sends_to_it_and_waits_is_told_at_once(tmp_path: Path) -> None:
    await accepted(tmp_path / "store.db")
    async with hf.open(tmp_path / "store.db") as runtime:
        turn = await runtime.session("s").send("and this?")
        with pytest.raises(AgentMissing):
            await asyncio.wait_for(turn.outcome(), SOON)


async def test_an_agent_that_comes_in_time_answers(tmp_path: Path) -> None:
    await accepted(tmp_path / "store.db")
    async with hf.open(tmp_path / "store.db") as runtime:
        waiting = asyncio.ensure_future(runtime.session("s").turn("t1").outcome(wait_for_agent=SOON))
        await asyncio.sleep(0.05)
        runtime.register(agent())
        assert (await asyncio.wait_for(waiting, SOON)).text == "here"


async def test_whoever_waits_for_the_agent_is_told_when_none_has_come(tmp_path: Path) -> None:
    await accepted(tmp_path / "store.db")
    async with hf.open(tmp_path / "store.db") as runtime:
        with pytest.raises(AgentMissing):
            await asyncio.wait_for(runtime.session("s").turn("t1").outcome(wait_for_agent=0.1), SOON)


async def test_a_turn_that_has_ended_is_told_without_its_agent(tmp_path: Path) -> None:
    async with hf.open(tmp_path / "store.db", agents=[made := agent()]) as runtime:
        await runtime.run(made, "hello", session="s")
    async with hf.open(tmp_path / "store.db") as runtime:
        assert (await runtime.session("s").turn("t1").outcome(timeout=SOON)).text == "here"


async def test_its_status_says_so(tmp_path: Path) -> None:
    await accepted(tmp_path / "store.db")
    async with hf.open(tmp_path / "store.db") as runtime:
        assert await runtime.session("s").turn("t1").status() == "no_agent"


async def test_a_runtime_that_leaves_the_work_to_others_waits_for_them(tmp_path: Path) -> None:
    await accepted(tmp_path / "store.db")
    async with hf.open(tmp_path / "store.db", drive=False) as runtime:
        assert await runtime.session("s").turn("t1").status() == "queued"


async def test_it_is_listed_with_what_helps(tmp_path: Path) -> None:
    await accepted(tmp_path / "store.db")
    async with hf.open(tmp_path / "store.db") as runtime:
        (stuck,) = await runtime.processes.stuck()
        assert (stuck.id, stuck.name) == ("s", "absent")
        assert "open the store with the agent 'absent'" in stuck.command


async def test_a_warning_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    await accepted(tmp_path / "store.db")
    with caplog.at_level(logging.WARNING, logger="holdfast.runtime"):
        async with hf.open(tmp_path / "store.db") as runtime:
            for _ in range(2):
                with pytest.raises(AgentMissing):
                    await asyncio.wait_for(runtime.session("s").turn("t1").outcome(), SOON)
    assert len([record for record in caplog.records if "'absent'" in record.message]) == 1
