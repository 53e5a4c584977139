"""A session that goes from one agent to another and back, by workers that can be killed anywhere.

Run as a script it serves requests (folder, crash point) with a real process each.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from forking import patiently, serve

import holdfast as hf
from holdfast.testing import ScriptedModel, World, call, text
from holdfast.testing.scripted import position_of

if TYPE_CHECKING:
    from holdfast.messages import ModelRequest

SESSION: Final = "golden"
ANSWER: Final = "Both are done."

SCRIPT: Final = [
    [call("note", what="one"), call("transfer_to_billing", reason="Money.")],
    call("pay"),
    [call("transfer_to_desk", reason="Paid."), call("transfer_to_desk", reason="Twice.")],
    call("note", what="two"),
    text(ANSWER),
]
"""What is said in the conversation, whoever says it."""


def make_agents(folder: Path) -> list[hf.Agent]:
    """A desk that takes notes, and billing, which pays; each hands over to the other."""
    world = World(folder / "world.log")

    @hf.tool
    async def pay(ctx: hf.Context) -> str:
        world.act(ctx.session, ctx, hf.Repeat.NEVER, "pay")
        await asyncio.sleep(0)
        return "paid"

    @hf.tool
    async def note(ctx: hf.Context, what: str) -> str:
        world.act(ctx.session, ctx, hf.Repeat.NEVER, f"note {what}")
        await asyncio.sleep(0)
        return "noted"

    def says(request: ModelRequest) -> Any:
        return SCRIPT[position_of(request)]

    return [
        hf.Agent(name, model=ScriptedModel(says), tools=[own, hf.handoff(other)], policy=[hf.allow("*")])
        for name, own, other in (("desk", note, "billing"), ("billing", pay, "desk"))
    ]


async def work(folder: Path) -> None:
    """All of it, from wherever an earlier process was."""
    agents = make_agents(folder)
    async with hf.open(folder / "store.db", agents=agents) as runtime:
        turn = await runtime.session(SESSION, agent="desk").send("Pay for item 7.", key="order")
        await turn.outcome()


def _once(folder: Path, request: dict[str, str]) -> None:
    asyncio.run(patiently(work(folder)))


if __name__ == "__main__":
    make_agents(Path())  # what is made here once is made quickly by every child
    serve(_once)
