"""The open turn of a session, and the newest one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tests.behaviour.stage import SOON, agent_of

import holdfast as hf
from holdfast.testing import ScriptedModel, call, error, text

if TYPE_CHECKING:
    from pathlib import Path

    from tests.behaviour.stage import Stage


def id_of(turn: hf.Turn | None) -> str | None:
    return None if turn is None else turn.id


async def test_the_open_turn_is_the_one_that_runs_and_the_last_one_the_newest_in_the_queue(stage: Stage) -> None:
    agent = agent_of(stage, [call("acts"), text("Done."), text("Again.")])
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        first = await session.send("first")
        await asyncio.wait_for(stage.reached.wait(), SOON)
        assert id_of(await session.last_turn()) == first.id
        second = await session.send("second")
        assert (id_of(await session.open_turn()), id_of(await session.last_turn())) == (first.id, second.id)
        stage.go_on.set()
        await second.outcome(timeout=SOON)
        assert (await session.open_turn(), id_of(await session.last_turn())) == (None, second.id)


async def test_the_open_turn_of_a_session_that_no_process_drives_is_the_first_in_the_queue(tmp_path: Path) -> None:
    agent = hf.Agent("agent", model=ScriptedModel([text("never")]))
    async with hf.open(tmp_path / "s.db", agents=[agent], drive=False) as runtime:
        session = runtime.session("s", agent=agent)
        first, second = await session.send("first"), await session.send("second")
        found = await session.open_turn()
        assert found is not None
        assert (found.id, await found.status()) == (first.id, "queued")
        assert id_of(await session.last_turn()) == second.id


async def test_a_turn_that_waits_for_a_person_is_open() -> None:
    @hf.tool
    def pay() -> str:
        """Pay."""
        return "paid"

    agent = hf.Agent("agent", model=ScriptedModel([call("pay")]), tools=[pay], policy=[hf.ask("pay")])
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        turn = await session.send("go")
        async for event in turn.events():
            if isinstance(event, hf.TurnWaiting):
                break
        found = await session.open_turn()
        assert found is not None
        assert (found.id, await found.status()) == (turn.id, "waiting")


async def test_the_last_turn_is_the_newest_try_of_a_request() -> None:
    answers = [error("no", kind="overloaded"), text("Done.")]
    agent = hf.Agent("agent", model=ScriptedModel(lambda _: answers.pop(0)))
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        turn = await session.send("go", key="k")
        assert (await turn.outcome(timeout=SOON)).status == "failed"
        retry = await turn.retry()
        found = await session.last_turn()
        assert found is not None
        assert found.id == retry.id
        assert (await found.outcome(timeout=SOON)).text == "Done."


async def test_a_new_fork_has_no_turns_of_its_own() -> None:
    agent = hf.Agent("agent", model=ScriptedModel(lambda _: text("Done.")))
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        await (await session.send("one")).outcome(timeout=SOON)
        fork = await session.fork()
        assert (await fork.open_turn(), await fork.last_turn()) == (None, None)
        turn = await fork.send("two")
        await turn.outcome(timeout=SOON)
        assert id_of(await fork.last_turn()) == turn.id
