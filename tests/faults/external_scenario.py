"""Work items that are reported, completed, failed and cancelled, by workers that can be killed anywhere.

Run as a script it serves requests (folder, crash point) with a real process each.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from forking import patiently, serve

import holdfast as hf
from holdfast.testing import ScriptedModel, text

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.processes.work_item import ExternalWork

SESSION: Final = "s"
COMPLETED: Final = "acknowledged as completed"
KEYS: Final = ("done", "lost", "both")
BELOW: Final = "below"


@hf.process
async def parent(ctx: hf.ProcessContext) -> object:
    return await ctx.wait("editor")


def make_agent() -> hf.Agent:
    return hf.Agent("a", model=ScriptedModel(lambda _: text("noted")), policy=[hf.allow("*")])


async def _end(folder: Path, key: str, item: ExternalWork) -> None:
    if key == "lost":
        await item.fail("lost on the way")
    elif key == "done":
        await item.complete("shipped")
    else:
        completed, _ = await asyncio.gather(item.complete("shipped"), item.cancel("too late"))
        if completed:
            (folder / COMPLETED).touch()


async def work(folder: Path) -> None:
    """All of it, from wherever an earlier process was."""
    agent = make_agent()
    async with hf.open(folder / "store.db", agents=[agent], processes=[parent]) as runtime:
        await (await runtime.session(SESSION, agent=agent).send("hello", key="hello")).outcome()
        items: dict[str, Any] = {}
        for key in KEYS:
            items[key] = await runtime.processes.external(title=key, key=key, session=SESSION)
            await items[key].progress("begun", 0.5)
            await _end(folder, key, items[key])
        above = await runtime.start(parent, id="p")
        items[BELOW] = await runtime.processes.external(title=BELOW, key=BELOW, parent=above)
        await above.cancel("enough")
        items["p"] = above
        while {"running", "waiting"} & {await item.status() for item in items.values()}:
            await runtime.store.changed(runtime.store.version, 0.02)
        while await runtime.store.notifications(SESSION, "queued") or await runtime.store.pending(SESSION):
            await runtime.store.changed(runtime.store.version, 0.02)


def _once(folder: Path, request: dict[str, str]) -> None:
    asyncio.run(patiently(work(folder)))


if __name__ == "__main__":
    make_agent()
    serve(_once)
