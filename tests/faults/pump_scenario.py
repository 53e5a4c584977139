"""A host that pumps the notifications of a session and shows each to a person, in workers that can be killed anywhere.

Run as a script it serves requests (folder, crash point) with a real process each.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from forking import patiently, serve

import holdfast as hf
from holdfast.testing import ScriptedModel, text

if TYPE_CHECKING:
    from pathlib import Path

SESSION: Final = "s"
SHOWN: Final = "shown.txt"
ACKNOWLEDGED: Final = "acknowledged.txt"
TITLES: Final = ("one", "two", "busy")
LAST: Final = "for the driver"


def make_agent() -> hf.Agent:
    return hf.Agent("a", model=ScriptedModel(lambda _: text("noted")), policy=[hf.allow("*")])


def _write(path: Path, line: object) -> None:
    with path.open("a") as file:
        file.write(f"{line}\n")


async def _pump(folder: Path, runtime: hf.Runtime) -> None:
    # One read: between two, the engine may return what a killed pump had. LAST is for a turn, also after a kill.
    found = await runtime.notifications.list(SESSION)
    left = {each.id for each in found if each.state in {"queued", "claimed"} and each.title != LAST}
    if not left:
        return
    pump = runtime.notifications.pump(SESSION, can_deliver=lambda _: True)
    async for item in pump:
        _write(folder / SHOWN, item.id)
        if item.title == "busy" and item.attempts == 1:
            await item.requeue(0.05)
            continue
        if await item.ack():
            _write(folder / ACKNOWLEDGED, item.id)
        left.discard(item.id)
        if not left:
            break
    await pump.aclose()


async def work(folder: Path) -> None:
    """All of it, from wherever an earlier process was."""
    agent = make_agent()
    async with hf.open(folder / "store.db", agents=[agent], can_deliver=lambda _: False) as runtime:
        await (await runtime.session(SESSION, agent=agent).send("hello", key="hello")).outcome()
        for title in TITLES:
            await runtime.notify(SESSION, title, key=title)
        await _pump(folder, runtime)
    async with hf.open(folder / "store.db", agents=[agent]) as runtime:  # no pump: a turn carries what comes now
        await runtime.notify(SESSION, LAST, key=LAST)
        while any(found.state != "acknowledged" for found in await runtime.notifications.list(SESSION)):
            await runtime.store.changed(runtime.store.version, 0.02)


def _once(folder: Path, request: dict[str, str]) -> None:
    asyncio.run(patiently(work(folder)))


if __name__ == "__main__":
    make_agent()
    serve(_once)
