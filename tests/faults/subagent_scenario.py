"""A session with a sub-agent that is waited for and one in the background, by workers that can be killed anywhere.

Run as a script it serves requests (folder, crash point) with a real process each.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from forking import patiently, serve

import holdfast as hf
from holdfast.policy.limits import ROLE
from holdfast.runtime.runtime import context_of
from holdfast.testing import ScriptedModel, World, call, text
from holdfast.testing.scripted import position_of

if TYPE_CHECKING:
    from holdfast.messages import ModelRequest
    from holdfast.runtime.runtime import Runtime

SESSION: Final = "golden"
ANSWER: Final = "All is done."


def make_agent(folder: Path) -> hf.Agent:
    """A chief with a clerk, who pays, and a scout, who works in the background."""
    world = World(folder / "world.log")

    @hf.tool
    async def pay(ctx: hf.Context) -> str:
        world.act(ctx.session, ctx, hf.Repeat.NEVER, "pay")
        await asyncio.sleep(0)
        return "paid"

    @hf.tool(read_only=True)
    async def look(ctx: hf.Context) -> str:
        world.act(ctx.session, ctx, hf.Repeat.FREE, "look")
        await asyncio.sleep(0)
        return "looked"

    def clerk_says(request: ModelRequest) -> Any:
        return call("pay") if position_of(request) == 0 else text("paid for it")

    def scout_says(request: ModelRequest) -> Any:
        return call("look") if position_of(request) == 0 else text("seen it")

    clerk = hf.Agent("clerk", model=ScriptedModel(clerk_says), tools=[pay], policy=[hf.allow("*")])
    scout = hf.Agent("scout", model=ScriptedModel(scout_says), tools=[look])

    def says(request: ModelRequest) -> Any:
        if position_of(request) == 0:
            return [call("scout", prompt="Look around."), call("clerk", prompt="Pay for item 7.")]
        return text(ANSWER)

    tools = [hf.agent_tool(clerk), hf.agent_tool(scout, background=True)]
    return hf.Agent("chief", model=ScriptedModel(says), tools=tools, policy=[hf.allow("*")])


async def is_over(runtime: Runtime) -> bool:
    """Whether everything has ended, and the session has been told of all of it and rests."""
    store = runtime.store
    tasks = [await runtime.tasks.task(found.id) for found in await runtime.tasks.list(session=SESSION)]
    if not all(task.over for task in tasks):
        return False
    lines = await store.journals(role=ROLE, session=SESSION)
    if any(line.status in {"idle", "running", "waiting"} for line in lines):
        return False
    if await store.pending(SESSION) or await runtime.session(SESSION).status() in {"running", "waiting"}:
        return False
    return not (await store.notifications(SESSION, "queued") or await store.notifications(SESSION, "claimed"))


async def work(folder: Path, *, parks: bool) -> None:
    """All of it, from wherever an earlier process was."""
    agent = make_agent(folder)
    async with hf.open(folder / "store.db", agents=[agent]) as runtime:
        if parks:
            runtime.children.patience = 0.0
        turn = await runtime.session(SESSION, agent=agent).send("Order item 7.", key="order")
        await turn.outcome()
        while not await is_over(runtime):
            await runtime.store.changed(runtime.store.version, 0.02)
            lines = await runtime.store.journals(role=ROLE, session=SESSION)
            for id in [SESSION, *(line.id for line in lines)]:
                error = context_of(runtime).sessions.stuck(id)
                if error is not None:
                    raise error


def _once(folder: Path, request: dict[str, str]) -> None:
    asyncio.run(patiently(work(folder, parks=request.get("parks") == "yes")))


if __name__ == "__main__":
    make_agent(Path())  # what is made here once is made quickly by every child
    serve(_once)
