"""A session that is moved to another store by a worker that can be killed: one side or the other has it, never both.

Run as a script it serves requests (folder, crash point) with a real process each.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from forking import patiently, serve

import holdfast as hf
from holdfast.testing import ScriptedModel, call, text

if TYPE_CHECKING:
    from pathlib import Path

SESSION: Final = "moves"


@hf.tool(read_only=True)
async def look(what: str) -> str:
    """Look something up."""
    return f"{what} " * 10_000


def agent(folder: Path) -> hf.Agent:
    @hf.tool(idempotent=True)
    async def pay(ctx: hf.Context, cents: int) -> str:
        """Pay."""
        with (folder / "paid").open("a") as log:
            log.write(f"{ctx.idempotency_key}\n")
        return f"paid {cents}"

    script = ScriptedModel([call("look", what="wombat"), call("pay", cents=5), text("done")])
    return hf.Agent("clerk", model=script, tools=[look, pay], policy=[hf.ask("pay"), hf.allow("*")])


async def work(folder: Path) -> None:
    """Have the session wait for an approval, move it, and have it go on in the other store."""
    clerk, file = agent(folder), folder / "session.jsonl"
    if not (folder / "moved").exists():
        async with hf.open(folder / "store.db", agents=[clerk], mirror=False) as runtime:
            if not file.exists():
                if not (folder / "begun").exists():
                    await runtime.session(SESSION, agent=clerk).send("hello", key="k")
                    while not await runtime.approvals():
                        await asyncio.sleep(0.005)
                    await runtime.memory(SESSION).put("note", "wombat")
                    (folder / "begun").touch()
                await runtime.export_session(SESSION, file, move=True)
        async with hf.open(folder / "other.db", agents=[clerk], mirror=False, drive=False) as runtime:
            await runtime.import_session(file, key=folder / "store.db.key")
        (folder / "moved").touch()
    async with hf.open(folder / "other.db", agents=[clerk], mirror=False) as runtime:
        for approval in await runtime.approvals():
            await runtime.approve(approval.id)
        await (await runtime.session(SESSION).send("hello", key="k")).outcome()


def _once(folder: Path, _: dict[str, str]) -> None:
    asyncio.run(patiently(work(folder)))


if __name__ == "__main__":
    serve(_once)
