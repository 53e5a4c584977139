"""A turn whose model writes programs, by workers that can be killed anywhere.

A story is a list of acts, each a process of its own on the same store: one begins and comes to a question, one answers
and drives nothing, one goes on to the end. Run as a script this serves requests with a real process each.
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
INQUIRY, ANSWERED = "inquiry", "it is so"
"""The file with the key of what somebody outside is asked for; and what they say."""
ASK, ANSWER, FINISH = "0", "1", "2"
ACTS: Final = (ASK, ANSWER, FINISH)
FIRST: Final = """
import asyncio
import random
import time

begun = time.time()
drawn = random.randint(0, 10**9)
seen = await asyncio.gather(look("a"), look("b"), look("c"))
held = []
for n in range(3):
    held.append(await reserve(f"r{n}"))
try:
    await refuse("x")
except RuntimeError as error:
    caught = str(error)

async def careful(making):
    try:
        return await making
    except RuntimeError:
        return "unknown"

async def denied():
    try:
        return await wipe("w")
    except PermissionError as error:
        return str(error)

done = await asyncio.gather(careful(pay("p")), careful(ship("s")), denied(), careful(pay("q")), inquire("i"))
assert time.time() >= begun
print("so far", len(held))
await asyncio.sleep(0.001)
len(seen)
"""
SECOND: Final = """
import asyncio
note = await pack(len(held))
end = {"seen": seen, "held": held, "caught": caught, "done": done, "note": note}
await asyncio.gather(wipe("later"), listen("nobody"), finish(end), look("never"))
"""


def make_tools(folder: Path) -> list[hf.Tool[..., Any]]:
    """Tools of every kind; each leaves its trace in the world, with what it was called with."""
    world = World(folder / "world.log")

    def act(ctx: hf.Context, repeat: hf.Repeat, what: object) -> str:
        world.act(SESSION, ctx, repeat, f"{ctx.tool} {what}")
        return f"{ctx.tool} {what}"

    @hf.tool(read_only=True)
    async def look(ctx: hf.Context, what: str) -> str:
        return act(ctx, hf.Repeat.FREE, what)

    @hf.tool(idempotent=True)
    async def reserve(ctx: hf.Context, what: str) -> str:
        return act(ctx, hf.Repeat.KEYED, what)

    @hf.tool(read_only=True)
    async def refuse(what: str) -> str:
        message = f"no {what}"
        raise LookupError(message)

    @hf.tool
    async def pay(ctx: hf.Context, what: str) -> str:
        return act(ctx, hf.Repeat.NEVER, what)

    @hf.tool
    async def ship(ctx: hf.Context, what: str) -> str:
        return act(ctx, hf.Repeat.NEVER, what)

    @hf.tool
    async def wipe(ctx: hf.Context, what: str) -> str:
        return act(ctx, hf.Repeat.NEVER, what)

    @hf.tool(idempotent=True)
    async def pack(ctx: hf.Context, count: int) -> str:
        return act(ctx, hf.Repeat.KEYED, count)

    @hf.tool(read_only=True)
    async def listen(ctx: hf.Context, name: str) -> str:
        return await ctx.wait(name)

    @hf.tool(idempotent=True)
    async def inquire(ctx: hf.Context, what: str) -> Any:
        pending: hf.Deferred[str] = await ctx.defer()
        (folder / INQUIRY).write_text(pending.key, encoding="ascii")
        act(ctx, hf.Repeat.KEYED, what)
        return pending

    return [look, reserve, refuse, pay, ship, wipe, pack, listen, inquire]


def make_agent(folder: Path) -> hf.Agent:
    def say(request: ModelRequest) -> Any:
        script = (call("run_program", source=FIRST), call("run_program", source=SECOND))
        position = position_of(request)
        return script[position] if position < len(script) else text("no more")

    rules = [hf.ask("ship"), hf.ask("wipe"), hf.ask("pay", when=lambda made: made.args["what"] == "q"), hf.allow("*")]
    return hf.Agent("shop", model=ScriptedModel(say), tools=make_tools(folder), policy=rules, mode="code")


# ---- acts ------------------------------------------------------------------------------------------------------------


async def _until(runtime: Runtime, *statuses: str) -> None:
    while True:
        version = runtime.store.version
        error = context_of(runtime).sessions.stuck(SESSION)
        if error is not None:
            raise error
        if await runtime.session(SESSION).status() in statuses and not runtime.active:
            return
        await runtime.store.changed(version, 0.05)


async def _ask(runtime: Runtime, agent: hf.Agent) -> None:
    await runtime.session(SESSION, agent=agent).send("Order item 7.", key="order")
    await _until(runtime, "waiting", "completed", "failed")


async def _answer(runtime: Runtime, key: str) -> None:
    """Somebody outside answers; and a person goes through what is open, and says no to `wipe`."""
    await runtime.resolve(key, ANSWERED)
    for shown in await runtime.approvals():
        if shown.tool == "wipe":
            await runtime.deny(shown.id, "never", by="ann")
        else:
            edited = {"what": "edited"} if shown.tool == "ship" else None
            await runtime.approve(shown.id, by="ann", arguments=edited)


async def play(folder: Path, act: str) -> None:
    """One act, to its end."""
    agent = make_agent(folder)
    async with hf.open(folder / "store.db", agents=[agent], drive=act != ANSWER, mirror=False) as runtime:
        if act == ASK:
            await _ask(runtime, agent)
        elif act == ANSWER:
            await _answer(runtime, (folder / INQUIRY).read_text(encoding="ascii"))
        else:
            await _until(runtime, "completed", "failed")


def _act(folder: Path, request: dict[str, str]) -> None:
    asyncio.run(patiently(play(folder, request["act"])))


if __name__ == "__main__":
    make_agent(Path())
    serve(_act)
