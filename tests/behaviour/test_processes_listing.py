"""Lists of processes, and signals that have a key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.behaviour.talk import SOON, is_now, until

import holdfast as hf
from holdfast.errors import InvalidId, KeyConflict
from holdfast.store import StoreLimits
from holdfast.testing import ManualClock, ScriptedModel, check

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.processes.lists import ProcessLine


@hf.process
async def asks(ctx: hf.ProcessContext) -> Any:
    return await ctx.wait("editor")


@hf.process
async def hears(ctx: hf.ProcessContext, count: int) -> list[Any]:
    return [await ctx.wait("said") for _ in range(count)]


@hf.process(retry=hf.ToolRetryPolicy(attempts=2, pause=0.01))
async def long(ctx: hf.ProcessContext) -> None:
    for n in range(60):
        await ctx.step(f"step {n}", int)
    await ctx.wait("go")
    if ctx.attempt == 1:
        raise RuntimeError
    await ctx.wait("go")


# ---- signals ---------------------------------------------------------------------------------------------------------


async def test_the_same_signal_under_the_same_key_is_one_signal() -> None:
    async with hf.open(None, processes=[hears]) as runtime:
        process = await runtime.start(hears, 2, id="h")
        told = [await runtime.signal("h", "said", 1, key="k") for _ in range(2)]
        await process.signal("said", 2, key="other")
        assert await process.result(timeout=SOON) == [1, 2]
        assert told == ["signalled", "already_signalled"]


async def test_another_signal_under_the_same_key_is_a_conflict() -> None:
    async with hf.open(None, processes=[hears]) as runtime:
        process = await runtime.start(hears, 2, id="h")
        await process.signal("said", 1, key="k")
        with pytest.raises(KeyConflict):
            await process.signal("said", 2, key="k")


async def test_a_key_is_known_after_a_restart(tmp_path: Path) -> None:
    async with hf.open(tmp_path / "s.db", processes=[hears]) as runtime:
        await (await runtime.start(hears, 2, id="h")).signal("said", 1, key="k")
    async with hf.open(tmp_path / "s.db", processes=[hears]) as runtime:
        assert await runtime.signal("h", "said", 1, key="k") == "already_signalled"
        await runtime.signal("h", "said", 2)
        assert await runtime.processes.handle("h").result(timeout=SOON) == [1, 2]


async def test_a_signal_after_the_end_is_too_late() -> None:
    async with hf.open(None, processes=[asks]) as runtime:
        process = await runtime.start(asks, id="a")
        await process.signal("editor", 1)
        await process.result(timeout=SOON)
        assert await process.signal("editor", 1, key="k") == "too_late"


async def test_keys_of_holdfast_are_not_for_others() -> None:
    async with hf.open(None, processes=[asks]) as runtime:
        await runtime.start(asks, id="a")
        with pytest.raises(InvalidId):
            await runtime.signal("a", "editor", 1, key="holdfast/x")


# ---- lists -----------------------------------------------------------------------------------------------------------


async def test_a_long_process_is_listed_as_it_stands() -> None:
    async with hf.open(None, processes=[long]) as runtime:
        process = await runtime.start(long, id="l")
        await until(lambda: is_now(process, "waiting"))
        first = (await runtime.processes.list())[0]
        await process.signal("go")

        async def again() -> bool:
            line = await process.line()
            return line.attempt == 2 and line.waits == ("signal go",)

        await until(again)
        second = (await runtime.processes.list())[0]
    assert (first.status, first.waits, first.attempt, first.name) == ("waiting", ("signal go",), 1, "long")
    assert (second.status, second.waits, second.attempt) == ("waiting", ("signal go",), 2)


async def test_processes_are_listed_page_by_page() -> None:
    clock = ManualClock()
    async with hf.open(None, processes=[asks], clock=clock) as runtime:
        for n in range(7):
            await runtime.start(asks, id=f"p{n}")
            clock.advance(1)
        await until(lambda: _all_wait(runtime, 7))
        found: list[ProcessLine] = []
        while page := await runtime.processes.list(before=found[-1] if found else None, limit=3, status="waiting"):
            found += page
    assert sorted(line.id for line in found) == [f"p{n}" for n in range(7)]


async def _all_wait(runtime: hf.Runtime, count: int) -> bool:
    """Whether so many wait, and nobody drives one of them any more."""
    return len(await runtime.processes.list(status="waiting")) == count and not runtime.active


async def test_a_session_has_those_that_were_started_for_it_or_given_to_it() -> None:
    agent = hf.Agent("a", model=ScriptedModel([]))
    async with hf.open(None, agents=[agent], processes=[asks]) as runtime:
        for session in ("s", "t"):
            await runtime.store.open_journal(session, "session", "a")
        for id, session in (("mine", "s"), ("given", "t"), ("gone", "s"), ("other", None)):
            await runtime.start(asks, id=id, session=session)
        await until(lambda: _all_wait(runtime, 4))
        await runtime.processes.transfer("given", "s")
        await runtime.processes.transfer("gone", "t")

        async def moved() -> bool:
            return (await runtime.processes.line("gone")).session == "t"

        await until(moved)
        assert sorted(line.id for line in await runtime.processes.list(session="s")) == ["given", "mine"]
        assert sorted(line.id for line in await runtime.processes.list(session="t")) == ["gone"]


async def test_a_session_that_was_given_more_than_a_page_of_them_has_them_all() -> None:
    agent = hf.Agent("a", model=ScriptedModel([]))
    ids = [f"p{n}" for n in range(7)]
    async with hf.open(None, agents=[agent], processes=[asks], limits=StoreLimits(page=3)) as runtime:
        for session in ("s", "t"):
            await runtime.store.open_journal(session, "session", "a")
        for id in ids:
            await runtime.start(asks, id=id, session="s")
            await runtime.processes.transfer(id, "t")

        async def moved() -> bool:
            return all([(await runtime.processes.line(id)).session == "t" for id in ids])

        await until(moved)
        assert sorted(line.id for line in await runtime.processes.list(session="t")) == ids


async def test_a_list_goes_on_behind_a_process_that_was_pruned_meanwhile() -> None:
    clock = ManualClock()
    async with hf.open(None, processes=[asks], clock=clock) as runtime:
        for n in range(3):
            process = await runtime.start(asks, id=f"p{n}")
            await process.signal("editor", n)
            await process.result(timeout=SOON)
            clock.advance(1_000)
        last = (await runtime.processes.list(limit=2))[-1]

        async def pruned() -> bool:
            return (await runtime.processes.prune(0.001)).kept == 0

        await until(pruned)
        assert await runtime.processes.list(before=last) == []
        assert await check(runtime.store) == []


async def test_children_are_listed_by_their_parent() -> None:
    @hf.process
    async def parent(ctx: hf.ProcessContext) -> None:
        for n in range(3):
            await ctx.start(asks, id=f"c{n}")
        await ctx.wait("go")

    async with hf.open(None, processes=[asks, parent]) as runtime:
        await runtime.start(parent, id="p")
        await until(lambda: _all_wait(runtime, 4))
        assert sorted(line.id for line in await runtime.processes.list(parent="p")) == ["c0", "c1", "c2"]


async def test_of_many_that_sleep_the_one_that_needs_a_person_is_found() -> None:
    @hf.process
    async def sleeps(ctx: hf.ProcessContext) -> None:
        await ctx.sleep(3_600)

    async with hf.open(None, processes=[asks, sleeps]) as runtime:
        for n in range(20):
            await runtime.start(sleeps, id=f"s{n}")
        await runtime.start(asks, id="a")
        await until(lambda: _all_wait(runtime, 21))
        assert [stuck.id for stuck in await runtime.processes.stuck()] == ["a"]
        assert len(await runtime.processes.stuck(limit=1)) == 1
