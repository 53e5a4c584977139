"""Calls that wait for a person, by workers that can be killed anywhere.

A story is a list of acts, each a process of its own on the same store: one asks, one answers and drives nothing, one
goes on to the end. Run as a script this serves requests (folder, story, act, crash point) with a real process each.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from forking import patiently, serve
from turn_scenario import note

import holdfast as hf
from holdfast.clock import Instant, SystemClock
from holdfast.runtime.runtime import context_of
from holdfast.testing import ScriptedModel, World, call, text
from holdfast.testing.scripted import position_of

if TYPE_CHECKING:
    from holdfast.messages import ModelRequest
    from holdfast.policy.hooks import ToolDecision
    from holdfast.runtime.runtime import Runtime

SESSION: Final = "golden"
WEEK: Final = 7 * 86_400_000
ASK, ANSWER, FINISH = "0", "1", "2"
ACTS: Final = (ASK, ANSWER, FINISH)
TOOLS: Final = {
    "answered": ("look", "pay", "wipe", "reserve", "ship", "peek"),
    "hooked": ("pay", "wipe", "ship"),
    "background": ("pay", "wipe", "send"),
    "expired": ("look", "pay", "reserve"),
}
"""The tools that the model of each story calls, all in one step. `look` is the only one that nobody is asked about."""
EDITED: Final = {"what": "edited"}
"""What a person makes of the arguments of `ship`."""


class Later:
    """The clock of this machine, so many milliseconds later."""

    def __init__(self, shift: int) -> None:
        self._clock = SystemClock()
        self._shift = shift

    def read(self) -> Instant:
        now = self._clock.read()
        return Instant(now.wall + self._shift, now.mono, now.boot)


class Noting(hf.Hooks):
    """Asks a person about everything that acts, and writes down each time that it is asked itself."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def before_tool(self, call: hf.HookCall) -> ToolDecision | None:
        note(self._folder / "hook.log", call.tool)
        await asyncio.sleep(0)
        return call.ask("the hook wants to know")


def make_tools(folder: Path) -> list[hf.Tool[..., Any]]:
    """Tools of every kind; each leaves its trace in the world, with what it was called with."""
    world = World(folder / "world.log")

    def act(ctx: hf.Context, repeat: hf.Repeat, what: str) -> str:
        world.act(SESSION, ctx, repeat, f"{ctx.tool} {what}")
        return f"{ctx.tool} {what}"

    @hf.tool(read_only=True)
    async def look(ctx: hf.Context, what: str = "here") -> str:
        return act(ctx, hf.Repeat.FREE, what)

    @hf.tool(read_only=True)
    async def peek(ctx: hf.Context, what: str = "here") -> str:
        return act(ctx, hf.Repeat.FREE, what)

    @hf.tool(idempotent=True)
    async def reserve(ctx: hf.Context, what: str = "here") -> str:
        return act(ctx, hf.Repeat.KEYED, what)

    @hf.tool
    async def pay(ctx: hf.Context, what: str = "here") -> str:
        return act(ctx, hf.Repeat.NEVER, what)

    @hf.tool
    async def wipe(ctx: hf.Context, what: str = "here") -> str:
        return act(ctx, hf.Repeat.NEVER, what)

    @hf.tool
    async def ship(ctx: hf.Context, what: str = "here") -> str:
        return act(ctx, hf.Repeat.NEVER, what)

    @hf.tool(background=True)
    async def send(ctx: hf.Context, what: str = "here") -> str:
        return act(ctx, hf.Repeat.NEVER, what)

    return [look, peek, reserve, pay, wipe, ship, send]


def make_agent(folder: Path, story: str) -> hf.Agent:
    def say(request: ModelRequest) -> Any:
        return [call(name) for name in TOOLS[story]] if position_of(request) == 0 else text("noted")

    hooked = story == "hooked"
    return hf.Agent(
        "shop",
        model=ScriptedModel(say),
        tools=make_tools(folder),
        policy=[hf.allow("*")] if hooked else [hf.allow("look"), hf.ask("*")],
        hooks=[Noting(folder)] if hooked else [],
    )


# ---- acts ------------------------------------------------------------------------------------------------------------


async def _until(runtime: Runtime, *statuses: str) -> None:
    while True:
        version = runtime.store.version
        for id in [SESSION, *(found.id for found in await runtime.tasks.list(session=SESSION))]:
            error = context_of(runtime).sessions.stuck(id)
            if error is not None:
                raise error
        if await runtime.session(SESSION).status() in statuses and not runtime.active:
            return
        await runtime.store.changed(version, 0.05)


async def _ask(runtime: Runtime, agent: hf.Agent) -> None:
    await runtime.session(SESSION, agent=agent).send("Order item 7.", key="order")
    await _until(runtime, "waiting", "completed", "failed")


async def _answer(runtime: Runtime) -> None:
    """A person goes through what is open, and says no to `wipe`."""
    for shown in await runtime.approvals():
        if shown.tool == "wipe":
            await runtime.deny(shown.id, "never", by="ann")
        else:
            await runtime.approve(shown.id, by="ann", arguments=EDITED if shown.tool == "ship" else None)


async def _finish(runtime: Runtime) -> None:
    await runtime.session(SESSION).turn("t1").outcome()
    while not await _is_over(runtime):
        await runtime.store.changed(runtime.store.version, 0.02)
    await _until(runtime, "completed", "failed")


async def _is_over(runtime: Runtime) -> bool:
    """Whether every task has ended, and the session has been told of all of them."""
    tasks = [await runtime.tasks.task(found.id) for found in await runtime.tasks.list(session=SESSION)]
    store = runtime.store
    left = [*await store.notifications(SESSION, "queued"), *await store.notifications(SESSION, "claimed")]
    return all(task.over for task in tasks) and not left


async def play(folder: Path, story: str, act: str) -> None:
    """One act, to its end."""
    agent = make_agent(folder, story)
    clock = Later(WEEK if story == "expired" and act != ASK else 0)
    async with hf.open(folder / "store.db", agents=[agent], drive=act != ANSWER, clock=clock, mirror=False) as runtime:
        if act == ASK:
            await _ask(runtime, agent)
        elif act == ANSWER:
            await _answer(runtime)
        else:
            await _finish(runtime)


def _act(folder: Path, request: dict[str, str]) -> None:
    asyncio.run(patiently(play(folder, request["story"], request["act"])))


def _make_all() -> None:
    """What is made here once is made quickly by every child."""
    for story in TOOLS:
        make_agent(Path(), story)


if __name__ == "__main__":
    _make_all()
    serve(_act)
