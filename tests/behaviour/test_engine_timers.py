"""Waits with a timeout, and what a parked or idle session costs: nothing."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import TYPE_CHECKING

from tests.behaviour.talk import at_rest
from tests.patience import PATIENCE, processor_at_rest, stopwatch

import holdfast as hf
from holdfast.runtime.runtime import context_of
from holdfast.testing import ManualClock, ScriptedModel, call, text

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from holdfast.testing.scripted import ScriptReply


@hf.tool
async def ask_editor(ctx: hf.Context, seconds: float) -> str:
    """Ask somebody, who may not answer."""
    try:
        return await ctx.wait("editor", timeout=seconds)
    except hf.WaitExpired:
        return "nobody answered"


def _agent(seconds: float) -> hf.Agent:
    def reply(request: hf.ModelRequest) -> ScriptReply:
        last = request.messages[-1]
        if isinstance(last, hf.ToolMessage):
            return text(f"editor: {last.results[0].content}")
        return call(ask_editor, seconds=seconds)

    return hf.Agent("asking", model=ScriptedModel(reply), tools=[ask_editor], policy=[hf.allow("*")])


async def test_a_wait_that_nobody_answers_expires_and_the_turn_goes_on(tmp_path: Path) -> None:
    agent = _agent(0.3)
    async with hf.open(tmp_path / "store.db", agents=[agent]) as runtime:
        began = time.monotonic()
        async with stopwatch() as watch:
            outcome = await (await runtime.session("s", agent=agent).send("go")).outcome(timeout=PATIENCE)
        took = time.monotonic() - began
    assert outcome.text == "editor: nobody answered"
    assert took > 0.25
    assert watch.seconds < 1.5


async def test_many_waits_expire_each_at_its_time(tmp_path: Path) -> None:
    @hf.tool
    async def wait_for(ctx: hf.Context, seconds: float) -> str:
        """Wait in vain."""
        try:
            return await ctx.wait("nobody", timeout=seconds)
        except hf.WaitExpired:
            return f"{seconds}"

    def reply(request: hf.ModelRequest) -> ScriptReply:
        said = request.messages[0]
        assert isinstance(said, hf.UserMessage)
        return call(wait_for, seconds=float(said.text)) if len(request.messages) == 1 else text("done")

    agent = hf.Agent("waiting", model=ScriptedModel(reply), tools=[wait_for], policy=[hf.allow("*")])
    async with hf.open(tmp_path / "store.db", agents=[agent]) as runtime, stopwatch() as watch:

        async def ask(name: str) -> None:
            began = time.monotonic()
            await (await runtime.session(name, agent=agent).send(name)).outcome(timeout=PATIENCE)
            assert time.monotonic() - began > float(name) - 0.05
            assert watch.seconds < float(name) + 1

        await asyncio.gather(*(ask(name) for name in ("1.5", "0.9", "0.3")))


async def test_a_wait_that_expired_while_no_process_ran_ends_at_the_next_opening(tmp_path: Path) -> None:
    agent, clock = _agent(3600), ManualClock()
    async with hf.open(tmp_path / "store.db", agents=[agent], clock=clock) as runtime:
        await runtime.session("s", agent=agent).send("go")
        await at_rest(runtime, "s")
    clock.advance(round(timedelta(days=2) / timedelta(milliseconds=1)))
    async with hf.open(tmp_path / "store.db", agents=[agent], clock=clock) as runtime:
        outcome = await runtime.session("s").turn("t1").outcome(timeout=PATIENCE)
    assert outcome.text == "editor: nobody answered"


async def test_a_wait_keeps_its_deadline_over_a_restart(tmp_path: Path) -> None:
    agent, clock = _agent(3600), ManualClock()
    async with hf.open(tmp_path / "store.db", agents=[agent], clock=clock) as runtime:
        await runtime.session("s", agent=agent).send("go")
        await at_rest(runtime, "s")
        (before,) = await runtime.waits("s")
    clock.advance(1_000_000)
    async with hf.open(tmp_path / "store.db", agents=[agent], clock=clock) as runtime:
        await at_rest(runtime, "s")
        assert [wait.deadline for wait in await runtime.waits("s")] == [before.deadline]


async def test_a_wait_that_was_answered_while_no_process_drove_goes_on_at_the_next_opening(tmp_path: Path) -> None:
    agent = _agent(3600)
    async with hf.open(tmp_path / "store.db", agents=[agent]) as runtime:
        await runtime.session("s", agent=agent).send("go")
        await at_rest(runtime, "s")
    async with hf.open(tmp_path / "store.db", drive=False) as looking:
        (wait,) = await looking.waits("s")
        await looking.resolve(looking.wait_token("s", wait.name), "yes")
    async with hf.open(tmp_path / "store.db", agents=[agent]) as runtime:
        assert (await runtime.session("s").turn("t1").outcome(timeout=PATIENCE)).text == "editor: yes"


async def test_an_answer_given_elsewhere_wakes_the_session_here(tmp_path: Path) -> None:
    agent = _agent(3600)
    async with (
        hf.open(tmp_path / "store.db", agents=[agent]) as runtime,
        hf.open(tmp_path / "store.db", drive=False) as other,
    ):
        turn = await runtime.session("s", agent=agent).send("go")
        await at_rest(runtime, "s")
        (wait,) = await other.waits("s")
        async with stopwatch() as watch:
            await other.resolve(other.wait_token("s", wait.name), "yes")
            assert (await turn.outcome(timeout=PATIENCE)).text == "editor: yes"
        assert watch.seconds < 1


async def _tasks() -> int:
    """Tasks that are there when nothing is about to happen."""
    counts: list[int] = []
    while len(counts) < 5 or len(set(counts[-5:])) > 1:
        counts.append(len(asyncio.all_tasks()))
        assert len(counts) < 500, counts
        await asyncio.sleep(0.01)
    return counts[-1]


async def _open_many(runtime: hf.Runtime, agent: hf.Agent) -> AsyncIterator[hf.Turn]:
    for number in range(30):
        yield await runtime.session(f"s{number}", agent=agent).send("go")


async def test_parked_sessions_hold_no_task(tmp_path: Path) -> None:
    agent = _agent(3600)
    async with hf.open(tmp_path / "store.db", agents=[agent]) as runtime:
        before = await _tasks()
        turns = [turn async for turn in _open_many(runtime, agent)]
        await at_rest(runtime, *(turn.session for turn in turns))
        assert await _tasks() <= before


async def test_parked_sessions_hold_no_lease(tmp_path: Path) -> None:
    agent = _agent(3600)
    async with hf.open(tmp_path / "store.db", agents=[agent]) as runtime:
        turns = [turn async for turn in _open_many(runtime, agent)]
        await at_rest(runtime, *(turn.session for turn in turns))
        leases = [await runtime.store.claim(turn.session) for turn in turns]  # LeaseHeld if anybody had one
        for lease in leases:
            await runtime.store.release(lease)


async def test_parked_sessions_are_no_work(tmp_path: Path) -> None:
    agent = _agent(3600)
    async with hf.open(tmp_path / "store.db", agents=[agent]) as runtime:
        turns = [turn async for turn in _open_many(runtime, agent)]
        await at_rest(runtime, *(turn.session for turn in turns))
        assert await runtime.store.work() == []


async def test_parked_sessions_keep_no_live_events(tmp_path: Path) -> None:
    agent = _agent(3600)
    async with hf.open(tmp_path / "store.db", agents=[agent]) as runtime:
        turns = [turn async for turn in _open_many(runtime, agent)]
        await at_rest(runtime, *(turn.session for turn in turns))
        assert context_of(runtime).changes.buffers == {}


async def test_idle_sessions_hold_no_task_and_no_lease(tmp_path: Path) -> None:
    agent = hf.Agent("plain", model=ScriptedModel([text("done")]))
    async with hf.open(tmp_path / "store.db", agents=[agent]) as runtime:
        before = await _tasks()
        turns = [turn async for turn in _open_many(runtime, agent)]
        for turn in turns:
            await turn.outcome(timeout=PATIENCE)
        await at_rest(runtime)
        assert await _tasks() <= before + 1  # one look at the store may serve all who waited
        assert (runtime.active, await runtime.store.work()) == (0, [])


async def test_a_runtime_without_work_burns_no_cpu(tmp_path: Path) -> None:
    agent = _agent(3600)
    async with hf.open(tmp_path / "store.db", agents=[agent]) as runtime:
        await runtime.session("s", agent=agent).send("go")
        await at_rest(runtime, "s")
        await _tasks()
        assert await processor_at_rest() < 0.1
