"""A turn with sub-agents on two levels, the lowest of which waits for an approval, is cancelled by a worker.

Run as a script it serves requests (folder, crash point) with a real process each.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from forking import patiently, serve

import holdfast as hf
from holdfast.errors import ApprovalClosed, ApprovalUnknown
from holdfast.testing import ScriptedModel, World, call, text
from holdfast.testing.scripted import position_of

if TYPE_CHECKING:
    from holdfast.messages import ModelRequest
    from holdfast.runtime.runtime import Runtime

SESSION: Final = "top"
WENT_THROUGH: Final = "approved after the cancel"


def make_agent(folder: Path) -> hf.Agent:
    """A chief, whose manager has a clerk, who may pay if a person says so."""
    world = World(folder / "world.log")

    @hf.tool
    async def pay(ctx: hf.Context) -> str:
        world.act(ctx.session, ctx, hf.Repeat.NEVER, "pay")
        return "paid"

    def asks(name: str) -> Any:
        def says(request: ModelRequest) -> Any:
            first = call("pay") if name == "pay" else call(name, prompt="Pay.")
            return first if position_of(request) == 0 else text("done")

        return ScriptedModel(says)

    policy = [hf.ask("pay"), hf.allow("*")]
    clerk = hf.Agent("clerk", model=asks("pay"), tools=[pay], policy=policy)
    limits = hf.Limits(depth=3)
    manager = hf.Agent("manager", model=asks("clerk"), tools=[hf.agent_tool(clerk)], policy=policy, limits=limits)
    return hf.Agent("chief", model=asks("manager"), tools=[hf.agent_tool(manager)], policy=policy, limits=limits)


async def is_over(runtime: Runtime) -> bool:
    """Whether all sessions have ended."""
    lines = await runtime.store.journals(kind="session")
    return not any(line.status in {"idle", "running", "waiting"} for line in lines)


async def work(folder: Path) -> None:
    """All of it, from wherever an earlier process was."""
    agent = make_agent(folder)
    async with hf.open(folder / "store.db", agents=[agent]) as runtime:
        runtime.children.patience = 0.0
        turn = await runtime.session(SESSION, agent=agent).send("Pay.", key="pay")
        approvals = await runtime.approvals()
        while not approvals and not await is_over(runtime):
            await runtime.store.changed(runtime.store.version, 0.02)
            approvals = await runtime.approvals()
        await turn.cancel("enough")
        for approval in approvals:
            with suppress(ApprovalClosed, ApprovalUnknown):
                await runtime.approve(approval.id)
                (folder / WENT_THROUGH).touch()
        while not await is_over(runtime):
            await runtime.store.changed(runtime.store.version, 0.02)


def _once(folder: Path, request: dict[str, str]) -> None:
    asyncio.run(patiently(work(folder)))


if __name__ == "__main__":
    make_agent(Path())  # what is made here once is made quickly by every child
    serve(_once)
