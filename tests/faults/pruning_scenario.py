"""Processes and a trigger that are pruned by workers that can be killed: nothing is done twice or half forgotten.

Run as a script it serves requests (folder, crash point) with a real process each.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from forking import patiently, serve

import holdfast as hf
from holdfast.testing import World

if TYPE_CHECKING:
    from holdfast.effects.drive import EffectContext

ONES: Final = ("one", "two", "three")
EVENTS: Final = ("red", "blue")
ACTS: Final = (*ONES, *EVENTS, "child")
A_MOMENT: Final = 0.001


class _Key:
    """An effect, as far as the world needs it."""

    def __init__(self, key: str) -> None:
        self.key = self.idempotency_key = key


def make_processes(folder: Path) -> list[Any]:
    world = World(folder / "world.log")

    @hf.process
    async def acts(ctx: hf.ProcessContext, what: str) -> str:
        async def act() -> str:
            effect: EffectContext = _Key(ctx.idempotency_key)  # pyright: ignore[reportAssignmentType]
            world.act(ctx.id, effect, hf.Repeat.KEYED, what)
            await asyncio.sleep(0)
            return what * 20_000  # large enough to be kept apart

        return await ctx.step("act", act)

    @hf.process
    async def family(ctx: hf.ProcessContext) -> None:
        await (await ctx.start(acts, "child", id="child")).result()

    return [acts, family]


async def work(folder: Path) -> None:
    """All of it, from wherever an earlier process was."""
    acts, family = make_processes(folder)
    async with hf.open(folder / "store.db", processes=[acts, family]) as runtime:
        await runtime.every("paid", hf.event("paid"), acts, what="{payload}")
        started = [await runtime.start(acts, what, id=what) for what in ONES]
        started.append(await runtime.start(family, id="family"))
        for what in EVENTS:
            await runtime.emit_event("paid", what, key=what)
        await _over(runtime, [process.id for process in started] + [_id_of(what) for what in EVENTS])
        while await runtime.processes.list():
            await runtime.processes.prune(A_MOMENT)
        pruned = await runtime.triggers.prune(older_than=A_MOMENT)
        while any(one.problem for one in pruned):  # it is being driven
            pruned = await runtime.triggers.prune(older_than=A_MOMENT)
        # Whoever asks for the same again gets no second run.
        for what in ONES:
            assert await (await runtime.start(acts, what, id=what)).status() == "completed"
        for what in EVENTS:
            assert not (await runtime.emit_event("paid", what, key=what)).fresh


def _id_of(what: str) -> str:
    return f"trigger/paid/1/event/{what}"


async def _over(runtime: hf.Runtime, ids: list[str]) -> None:
    for id in ids:
        while True:
            version = runtime.store.version
            try:
                if await runtime.processes.handle(id).status() == "completed":
                    break
            except hf.errors.ProcessUnknown:
                pass  # its trigger has yet to start it
            await runtime.store.changed(version, 0.05)


def _once(folder: Path, _: dict[str, str]) -> None:
    asyncio.run(patiently(work(folder)))


if __name__ == "__main__":
    make_processes(Path())
    serve(_once)
