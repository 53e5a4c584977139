"""Two calls of a turn are cancelled by a worker that can be killed anywhere: one runs, one waits for an approval.

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

SESSION: Final = "s"
ACKNOWLEDGED: Final = "cancelled before the answer"


def make_agent(folder: Path) -> hf.Agent:
    """Looks something up, which never ends by itself, and pays, if a person says so."""
    world = World(folder / "world.log")

    @hf.tool(read_only=True)
    async def look() -> str:
        await asyncio.get_running_loop().create_future()
        return "never"

    @hf.tool
    async def pay(ctx: hf.Context) -> str:
        world.act(SESSION, ctx, hf.Repeat.NEVER, "pay")
        return "paid"

    def says(request: ModelRequest) -> Any:
        return [call("look"), call("pay")] if position_of(request) == 0 else text("done")

    return hf.Agent("a", model=ScriptedModel(says), tools=[look, pay], policy=[hf.ask("pay"), hf.allow("*")])


async def _questions(runtime: Runtime) -> list[str]:
    return [found.id for found in await runtime.approvals()]


async def work(folder: Path) -> None:
    """All of it, from wherever an earlier process was."""
    agent = make_agent(folder)
    async with hf.open(folder / "store.db", agents=[agent]) as runtime:
        session = runtime.session(SESSION, agent=agent)
        turn = await session.send("Pay.", key="pay")
        while not (questions := await _questions(runtime)) and await turn.status() not in {"completed", "failed"}:
            if (folder / ACKNOWLEDGED).exists():
                break
            await runtime.store.changed(runtime.store.version, 0.02)
        await turn.cancel_call("t1.2.2", "enough")
        (folder / ACKNOWLEDGED).touch()
        for question in questions:
            with suppress(ApprovalClosed, ApprovalUnknown):
                await runtime.approve(question)
        await turn.cancel_call("t1.2.1", "enough")
        await turn.outcome()


def _once(folder: Path, request: dict[str, str]) -> None:
    asyncio.run(patiently(work(folder)))


if __name__ == "__main__":
    make_agent(Path())  # what is made here once is made quickly by every child
    serve(_once)
