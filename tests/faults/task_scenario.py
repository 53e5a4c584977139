"""A session whose calls go on in the background, by workers that can be killed anywhere.

Run as a script it serves requests (folder, crash point) with a real process each.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from forking import patiently, serve

import holdfast as hf
from holdfast.runtime.runtime import context_of
from holdfast.testing import ScriptedModel, World, call, text
from holdfast.testing.scripted import position_of

if TYPE_CHECKING:
    from holdfast.messages import ModelRequest
    from holdfast.runtime.runtime import Runtime

SESSION: Final = "golden"
BUDGET: Final = 0.01
TOOLS: Final = ("look", "reserve", "pay", "ship")


def make_tools(folder: Path, budget: float | None = BUDGET) -> list[hf.Tool[..., Any]]:
    """One tool of every kind: spilled past a budget, or in the background from the beginning."""
    world = World(folder / "world.log")

    @hf.tool(read_only=True, inline_budget=budget)
    async def look(ctx: hf.Context) -> str:
        world.act(SESSION, ctx, hf.Repeat.FREE, "look")
        await asyncio.sleep(4 * BUDGET)
        ctx.progress("nearly there", fraction=0.9)
        return "looked"

    @hf.tool(idempotent=True, background=True)
    async def reserve(ctx: hf.Context) -> str:
        world.act(SESSION, ctx, hf.Repeat.KEYED, "reserve")
        await asyncio.sleep(0)
        return "reserved"

    @hf.tool(inline_budget=budget)
    async def pay(ctx: hf.Context) -> str:
        world.act(SESSION, ctx, hf.Repeat.NEVER, "pay")
        await asyncio.sleep(4 * BUDGET)
        return "paid"

    async def shipped(ctx: hf.Context) -> str:
        await asyncio.sleep(0)
        if any(attempt.idempotency_key == ctx.idempotency_key for attempt in world.attempts()):
            return "found"
        raise hf.NotDone

    @hf.tool(background=True, reconcile=shipped)
    async def ship(ctx: hf.Context) -> str:
        world.act(SESSION, ctx, hf.Repeat.NEVER, "ship")
        await asyncio.sleep(0)
        return "shipped"

    return [look, reserve, pay, ship]


def _say(request: ModelRequest) -> Any:
    return [call(name) for name in TOOLS] if position_of(request) == 0 else text("noted")


def make_agent(folder: Path, budget: float | None = BUDGET) -> hf.Agent:
    return hf.Agent("shop", model=ScriptedModel(_say), tools=make_tools(folder, budget), policy=[hf.allow("*")])


async def _is_over(runtime: Runtime) -> bool:
    """Whether every task has ended, and the session has been told of all of them and rests."""
    store = runtime.store
    tasks = [await runtime.tasks.task(found.id) for found in await runtime.tasks.list(session=SESSION)]
    if not all(task.over for task in tasks):
        return False
    if await store.pending(SESSION) or await runtime.session(SESSION).status() in {"running", "waiting"}:
        return False
    return not (await store.notifications(SESSION, "queued") or await store.notifications(SESSION, "claimed"))


async def work(folder: Path, budget: float | None) -> None:
    """All of it, from wherever an earlier process was."""
    agent = make_agent(folder, budget)
    async with hf.open(folder / "store.db", agents=[agent]) as runtime:
        await runtime.recover()
        turn = await runtime.session(SESSION, agent=agent).send("Order item 7.", key="order")
        await turn.outcome()
        while not await _is_over(runtime):
            await runtime.store.changed(runtime.store.version, 0.02)
            for id in [SESSION, *(found.id for found in await runtime.tasks.list(session=SESSION))]:
                error = context_of(runtime).sessions.stuck(id)
                if error is not None:
                    raise error


def _once(folder: Path, request: dict[str, str]) -> None:
    budget = None if request.get("budget") == "none" else BUDGET
    asyncio.run(patiently(work(folder, budget)))


def _make_all() -> None:
    """What is made here once is made quickly by every child."""
    make_agent(Path())


if __name__ == "__main__":
    _make_all()
    serve(_once)
