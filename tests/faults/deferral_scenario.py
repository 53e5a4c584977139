"""Calls whose result is given later, by workers that can be killed anywhere.

A story is a list of acts, each a process of its own on the same store: one asks, one answers what has reached the
outside and drives nothing, one goes on to the end, a week later. Run as a script this serves requests (folder, story,
act, crash point) with a real process each.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from approval_scenario import Later
from forking import patiently, serve
from turn_scenario import note, notes

import holdfast as hf
from holdfast.crashpoints import crash_point
from holdfast.runtime.runtime import context_of
from holdfast.testing import ScriptedModel, call, text
from holdfast.testing.scripted import position_of

if TYPE_CHECKING:
    from holdfast.messages import ModelRequest
    from holdfast.runtime.runtime import Runtime

SESSION: Final = "golden"
LATER: Final = 8 * 86_400_000
ASK, ANSWER, FINISH = "0", "1", "2"
ACTS: Final = (ASK, ANSWER, FINISH)
TOOLS: Final = {"calls": ("look", "order", "ask", "beg"), "background": ("fetch",)}
"""The tools that the model of each story calls, all in one step."""
NEVER: Final = frozenset(("ask", "beg", "fetch"))


def make_tools(folder: Path) -> list[hf.Tool[..., Any]]:
    """Tools of every kind; each tells the outside its key."""

    async def tell(ctx: hf.Context) -> Any:
        pending = await ctx.defer()
        crash_point("outside.before_told")
        note(folder / "told.log", [ctx.tool, pending.key])
        crash_point("outside.told")
        return pending

    @hf.tool(read_only=True)
    async def look(ctx: hf.Context) -> str:
        return await tell(ctx)

    @hf.tool(idempotent=True)
    async def order(ctx: hf.Context) -> str:
        return await tell(ctx)

    @hf.tool
    async def ask(ctx: hf.Context) -> str:
        return await tell(ctx)

    @hf.tool
    async def beg(ctx: hf.Context) -> str:
        return await tell(ctx)

    @hf.tool(background=True)
    async def fetch(ctx: hf.Context) -> str:
        return await tell(ctx)

    return [look, order, ask, beg, fetch]


def make_agent(folder: Path, story: str) -> hf.Agent:
    def say(request: ModelRequest) -> Any:
        return [call(name) for name in TOOLS[story]] if position_of(request) == 0 else text("noted")

    return hf.Agent("shop", model=ScriptedModel(say), tools=make_tools(folder), policy=[hf.allow("*")])


def told(folder: Path) -> list[tuple[str, str]]:
    """What has reached the outside: each tool with its key, as often as it came."""
    return [(tool, key) for tool, key in notes(folder / "told.log")]


# ---- acts ------------------------------------------------------------------------------------------------------------


async def _until_quiet(runtime: Runtime) -> None:
    """Until nothing goes on by itself any more."""
    while True:
        version = runtime.store.version
        tasks = [found.id for found in await runtime.tasks.list(session=SESSION)]
        for id in [SESSION, *tasks]:
            error = context_of(runtime).sessions.stuck(id)
            if error is not None:
                raise error
        states = [await runtime.session(SESSION).status()]
        states += [(await runtime.tasks.task(id)).status for id in tasks]
        if not runtime.active and not {"created", "running", "idle"} & set(states):
            return
        await runtime.store.changed(version, 0.02)


async def _answer(runtime: Runtime, folder: Path) -> None:
    """Whoever was told answers the first key that came, and then once more."""
    for tool, key in dict(reversed(told(folder))).items():
        await runtime.resolve(key, f"{tool} is answered")
        assert not (await runtime.resolve(key, "something else")).won


async def _finish(runtime: Runtime) -> None:
    await runtime.session(SESSION).turn("t1").outcome()
    while not await _is_over(runtime):
        await runtime.store.changed(runtime.store.version, 0.02)
    await _until_quiet(runtime)


async def _is_over(runtime: Runtime) -> bool:
    """Whether every task has ended, and the session has been told of all of them."""
    tasks = [await runtime.tasks.task(found.id) for found in await runtime.tasks.list(session=SESSION)]
    store = runtime.store
    left = [*await store.notifications(SESSION, "queued"), *await store.notifications(SESSION, "claimed")]
    return all(task.over for task in tasks) and not left


async def play(folder: Path, story: str, act: str) -> None:
    """One act, to its end."""
    agent = make_agent(folder, story)
    clock = Later(LATER if act == FINISH else 0)
    async with hf.open(folder / "store.db", agents=[agent], drive=act != ANSWER, clock=clock, mirror=False) as runtime:
        if act == ASK:
            await runtime.session(SESSION, agent=agent).send("Order item 7.", key="order")
            await _until_quiet(runtime)
        elif act == ANSWER:
            await _answer(runtime, folder)
        else:
            await _finish(runtime)


def _act(folder: Path, request: dict[str, str]) -> None:
    asyncio.run(patiently(play(folder, request["story"], request["act"])))


if __name__ == "__main__":
    for known in TOOLS:
        make_agent(Path(), known)  # what is made here once is made quickly by every child
    serve(_act)
