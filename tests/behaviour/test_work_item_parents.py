"""What a work item belongs to: a session, a turn or a process. It is shown, cancelled and forgotten with that."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.behaviour.background import talkative
from tests.behaviour.talk import SOON, until

import holdfast as hf
from holdfast.errors import (
    InvalidArgument,
    JournalMissing,
    ProcessConflict,
    ProcessInvalid,
    ProcessUnknown,
    StopRequested,
    TurnUnknown,
)
from holdfast.processes.keys import CHILD_PREFIX
from holdfast.store.inbox import STOP_KEY
from holdfast.testing import call, check

if TYPE_CHECKING:
    from pathlib import Path


@hf.process
async def waits(ctx: hf.ProcessContext) -> Any:
    return await ctx.wait("editor")


def make_agent(*tools: hf.Tool[..., Any], first: Any = ()) -> hf.Agent:
    return hf.Agent("a", model=talkative(*first), tools=list(tools), policy=[hf.allow("*")])


async def ends(item: hf.Process[Any], status: str) -> None:
    async def is_so() -> bool:
        return await item.status() == status

    await until(is_so)


async def test_a_session_and_a_turn_as_parents_are_shown_and_notified() -> None:
    agent = make_agent()
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        turn = await session.send("hello")
        await turn.outcome()
        given: list[Any] = [session, "s", turn, "s/t1"]
        items = [await runtime.processes.external(title=f"{number}", parent=one) for number, one in enumerate(given)]
        assert [(await item.line()).parent for item in items] == ["s", "s", "s/t1", "s/t1"]
        assert [(await item.item()).turn for item in items] == [None, None, "t1", "t1"]
        assert {(await item.line()).session for item in items} == {"s"}
        listed = [line.title for line in await runtime.processes.list(parent="s")]
        assert sorted(filter(None, listed)) == ["0", "1", "2", "3"]
        assert sorted(line.title or "" for line in await runtime.processes.list(parent="s/t1")) == ["2", "3"]
        await items[0].complete("done")

        async def told() -> bool:
            found = await runtime.notifications.list("s")
            return [each.source for each in found] == [f"process/{items[0].id}"]

        await until(told)
        assert await check(runtime.store) == []


async def test_an_item_is_cancelled_with_its_turn_and_not_with_another() -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    @hf.tool
    async def slow(ctx: hf.Context) -> str:
        begun.set()
        await go.wait()
        return "done"

    agent = make_agent(slow, first=[call("slow")])
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await runtime.session("s", agent=agent).send("go")
        await begun.wait()
        item = await runtime.processes.external(title="of the turn", parent=turn)
        other = await runtime.processes.external(title="of the session", parent="s")
        await ends(item, "waiting")
        assert await turn.cancel("enough") == "requested"
        with pytest.raises(StopRequested):
            await runtime.processes.external(title="too late", parent=turn)
        await ends(item, "cancelled")
        assert "s/t1 was stopped" in ((await item.line()).error or "")
        assert await other.status() == "waiting"
        assert (await turn.outcome()).status == "cancelled"
        assert await check(runtime.store) == []


async def test_an_item_is_cancelled_when_its_turn_runs_out_of_time() -> None:
    begun = asyncio.Event()

    @hf.tool
    async def slow(ctx: hf.Context) -> str:
        begun.set()
        await asyncio.sleep(SOON)
        return "done"

    agent = make_agent(slow, first=[call("slow")])
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await runtime.session("s", agent=agent).send("go", deadline=0.3)
        await begun.wait()
        item = await runtime.processes.external(title="of the turn", parent=turn)
        assert (await turn.outcome()).status == "limit"
        await ends(item, "cancelled")


async def test_an_item_below_a_process_is_its_child_and_ends_with_it() -> None:
    agent = make_agent()
    async with hf.open(None, agents=[agent], processes=[waits]) as runtime:
        await runtime.run(agent, "hello", session="s")
        process = await runtime.start(waits, id="p", session="s")
        item = await runtime.processes.external(title="child", parent=process, key="k")
        again = await runtime.processes.external(title="child", parent="process/p", key="k")
        assert again.id == item.id
        assert ((await item.line()).parent, (await item.line()).session) == ("p", "s")

        async def is_known() -> bool:
            return (await process.line()).children == (item.id,)

        await until(is_known)
        assert [line.id for line in await runtime.processes.list(parent="p")] == [item.id]
        assert await process.cancel("enough") == "requested"
        await ends(item, "cancelled")
        with pytest.raises(ProcessInvalid, match="has ended"):
            await runtime.processes.external(title="another", parent=process)
        assert (await runtime.processes.external(title="child", parent=process, key="k")).id == item.id
        assert await check(runtime.store) == []


async def test_a_process_that_completes_takes_its_open_items_with_it_and_leaves_the_completed_ones() -> None:
    async with hf.open(None, processes=[waits]) as runtime:
        process = await runtime.start(waits, id="p")
        left, done = [await runtime.processes.external(title=title, parent=process) for title in ("left", "done")]
        assert await done.complete(7)
        await process.signal("editor", "yes")
        assert await process.result(timeout=SOON) == "yes"
        await ends(left, "cancelled")
        assert await done.result(timeout=SOON) == 7


async def test_a_process_that_no_worker_runs_takes_its_new_items_with_it_when_it_is_cancelled(tmp_path: Path) -> None:
    async with hf.open(tmp_path / "store.db", processes=[waits]) as runtime:
        await (await runtime.start(waits, id="p")).status()
        await ends(runtime.processes.handle("p"), "waiting")
    async with hf.open(tmp_path / "store.db", drive=False) as host:
        item = await host.processes.external(title="child", parent="process/p")
        assert await host.processes.handle("p").cancel("enough") == "requested"
        pending = await host.store.pending(f"process/{item.id}")
        assert STOP_KEY in [found.key for found in pending]  # durable when the cancel returns
        with pytest.raises(StopRequested):
            await host.processes.external(title="another", parent="process/p")
    async with hf.open(tmp_path / "store.db", processes=[waits]) as runtime:
        await ends(runtime.processes.handle(item.id), "cancelled")
        await ends(runtime.processes.handle("p"), "cancelled")
        assert await check(runtime.store) == []


async def test_another_process_with_the_same_key_takes_nothing_over() -> None:
    async with hf.open(None, processes=[waits]) as runtime:
        one, two = [await runtime.start(waits, id=id) for id in "pq"]
        item = await runtime.processes.external(title="child", parent=one, key="k")
        with pytest.raises(ProcessConflict):
            await runtime.processes.external(title="child", parent=two, key="k")
        # A host that was refused in the same moment may have told its own parent already.
        await runtime.store.accept("process/q", {"child": item.id}, key=f"{CHILD_PREFIX}{item.id}")
        await two.cancel()
        await ends(two, "cancelled")
        assert await item.status() in {"running", "waiting"}


async def test_items_are_forgotten_with_the_session_of_their_parent() -> None:
    agent = make_agent()
    async with hf.open(None, agents=[agent], processes=[waits]) as runtime:
        await runtime.run(agent, "hello", session="s")
        process = await runtime.start(waits, id="p", session="s")
        parents: list[Any] = ["s", "s/t1", process]
        items = [await runtime.processes.external(title="t", parent=one) for one in parents]
        forgotten = await runtime.forget("s")
        assert {f"process/{item.id}" for item in items} <= set(forgotten.journals)
        for item in items:
            with pytest.raises(ProcessUnknown):
                await item.line()
        assert await check(runtime.store) == []


async def test_a_parent_that_is_none_is_refused() -> None:
    agent = make_agent()
    async with hf.open(None, agents=[agent], processes=[waits]) as runtime:
        await runtime.run(agent, "hello", session="s")
        await runtime.run(agent, "hello", session="other")
        wrong: list[tuple[Any, type[Exception]]] = [
            ("nobody", JournalMissing),
            ("nobody/t1", JournalMissing),
            ("s/t9", TurnUnknown),
            ("process/nobody", ProcessUnknown),
            ("trigger/x", InvalidArgument),
            (7, hf.errors.InvalidId),
        ]
        for parent, error in wrong:
            with pytest.raises(error):
                await runtime.processes.external(title="t", parent=parent)
        with pytest.raises(InvalidArgument, match="session of its parent"):
            await runtime.processes.external(title="t", parent="s", session="other")
        assert await runtime.processes.list(name="external") == []


async def test_a_host_without_a_driver_reports_and_ends_what_it_holds(tmp_path: Path) -> None:
    agent = make_agent()
    async with (
        hf.open(tmp_path / "store.db", agents=[agent]) as worker,
        hf.open(tmp_path / "store.db", drive=False) as host,
    ):
        await worker.run(agent, "hello", session="s")
        item = await host.processes.external(title="t", parent="s/t1", metadata={"n": 1}, requested_by="ada")
        assert await host.processes.find_external(item.token).progress("half", 0.5) == "requested"

        async def is_noted() -> bool:
            return (await item.line()).fraction == 0.5

        await until(is_noted)
        assert await host.processes.find_external(item.id).complete({"ok": True}) is True
        assert await item.result(timeout=SOON) == {"ok": True}


def test_a_plain_caller_gives_a_turn_as_the_parent(tmp_path: Path) -> None:
    agent = make_agent()
    with hf.open_sync(tmp_path / "store.db", agents=[agent]) as runtime:
        turn = runtime.session("s", agent=agent).send("hello")
        turn.outcome()
        item = runtime.processes.external(title="t", parent=turn, tags=["x"])
        assert (item.line().parent, item.progress("half", 0.5)) == ("s/t1", "requested")
        assert item.complete(1)
        assert item.result(timeout=SOON) == 1
