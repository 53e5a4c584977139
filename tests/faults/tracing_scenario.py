"""A turn whose spans are exported, by workers that can be killed anywhere.

Run as a script it serves requests (folder, crash point) with a real process each. The address of the collector is in a
file beside the folder.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any, Final

from forking import patiently, serve

import holdfast as hf
from holdfast.telemetry import Telemetry
from holdfast.testing import ScriptedModel, call, text
from holdfast.testing.scripted import position_of

if TYPE_CHECKING:
    from pathlib import Path

SESSION: Final = "traced"
ADDRESS: Final = "collector"
"""The file with the address of the collector."""
FINISHED: Final = "finished"
"""The file with the name of the process that came to the end."""


def make_agent() -> hf.Agent:
    @hf.tool(read_only=True)
    async def look(item: int) -> int:
        await asyncio.sleep(0)
        return item

    @hf.tool(idempotent=True)
    async def book(ctx: hf.Context, item: int) -> str:
        await ctx.step("reserve", lambda: item)
        return await ctx.step("pay", lambda: f"booked {item}")

    script: list[Any] = [[call("look", item=1), call("look", item=2)], call("book", item=3), text("Done.")]
    model = ScriptedModel(lambda request: script[position_of(request)])
    return hf.Agent("clerk", model=model, tools=[look, book], policy=[hf.allow("*")])


async def work(folder: Path) -> None:
    """All of it, from wherever an earlier process was."""
    agent, address = make_agent(), folder.parent / ADDRESS
    to = Telemetry(endpoint=address.read_text(), metrics=False) if address.exists() else None
    async with hf.open(folder / "store.db", agents=[agent], telemetry=to) as runtime:
        await (await runtime.session(SESSION, agent=agent).send("Book item 3.", key="order")).outcome()
    (folder / FINISHED).write_text(f"pid {os.getpid()}")


def _once(folder: Path, _: dict[str, str]) -> None:
    asyncio.run(patiently(work(folder)))


if __name__ == "__main__":
    make_agent()
    serve(_once)
