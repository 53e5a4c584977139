"""The calls of a host, by workers that can be killed anywhere: one that may be repeated, one that a person approves.

Run as a script it serves requests (folder, crash point) with a real process each.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Final

from forking import patiently, serve

import holdfast as hf
from holdfast.testing import ScriptedModel, World, text

if TYPE_CHECKING:
    from holdfast.runtime.host_call import HostCall
    from holdfast.runtime.runtime import Runtime

SESSION: Final = "s"
CALLS: Final = ("look", "reserve", "pay", "burn")


def make_agent(folder: Path) -> hf.Agent:
    world = World(folder / "world.log")

    @hf.tool(read_only=True)
    async def look(ctx: hf.Context) -> str:
        world.act(SESSION, ctx, hf.Repeat.FREE, "look")
        return "looked"

    @hf.tool(idempotent=True)
    async def reserve(ctx: hf.Context) -> str:
        world.act(SESSION, ctx, hf.Repeat.KEYED, "reserve")
        return "reserved"

    @hf.tool
    async def pay(ctx: hf.Context, cents: int) -> str:
        world.act(SESSION, ctx, hf.Repeat.NEVER, "pay")
        return f"paid {cents}"

    @hf.tool
    async def burn(ctx: hf.Context) -> str:
        world.act(SESSION, ctx, hf.Repeat.NEVER, "burn")
        return "burnt"

    policy = [hf.ask("pay"), hf.deny("burn"), hf.allow("*")]
    tools = [look, reserve, pay, burn]
    return hf.Agent("a", model=ScriptedModel(lambda _: text("noted")), tools=tools, policy=policy)


async def make_calls(runtime: Runtime) -> dict[str, HostCall[str]]:
    """Every call, under a key of its own."""
    return {
        tool: await runtime.call(tool, {"cents": 5} if tool == "pay" else {}, session=SESSION, key=tool, notify=True)
        for tool in CALLS
    }


async def work(folder: Path) -> None:
    """All of it, from wherever an earlier process was."""
    agent = make_agent(folder)
    async with hf.open(folder / "store.db", agents=[agent]) as runtime:
        turn = await runtime.session(SESSION, agent=agent).send("hello", key="hello")
        await turn.outcome()
        calls = await make_calls(runtime)
        for approval in await runtime.approvals():
            await runtime.approve(approval.id)
        while {"running", "waiting"} & {await each.status() for each in calls.values()}:
            await runtime.store.changed(runtime.store.version, 0.02)
        while await runtime.store.notifications(SESSION, "queued") or await runtime.store.pending(SESSION):
            await runtime.store.changed(runtime.store.version, 0.02)


def _once(folder: Path, request: dict[str, str]) -> None:
    asyncio.run(patiently(work(folder)))


if __name__ == "__main__":
    make_agent(Path())  # what is made here once is made quickly by every child
    serve(_once)
