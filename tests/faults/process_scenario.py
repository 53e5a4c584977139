"""A process with steps, branches, sleeps, a signal, a child, a race and a retry, by workers that can be killed.

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

PROCESS: Final = "golden"
CHILD: Final = "packing"
EXPECTED: Final = {
    "order": "ordered",
    "branches": [["b0.0", "b0.1"], ["b1.0", "b1.1"], ["b2.0", "b2.1"]],
    "editor": "yes",
    "child": "packed",
    "race": [1, "quick"],
    "paid": "paid",
}
ACTS: Final = ("ordered", "packed", "paid", *(f"b{n}.{step}" for n in range(3) for step in range(2)))


class _Key:
    """An effect, as far as the world needs it."""

    def __init__(self, key: str) -> None:
        self.key = self.idempotency_key = key


def make_processes(folder: Path) -> list[Any]:
    world = World(folder / "world.log")

    def acting(ctx: hf.ProcessContext, what: str, repeat: hf.Repeat = hf.Repeat.KEYED) -> Any:
        async def act() -> str:
            effect: EffectContext = _Key(ctx.idempotency_key)  # pyright: ignore[reportAssignmentType]
            world.act(ctx.id, effect, repeat, what)
            await asyncio.sleep(0)
            return what

        return act

    @hf.process(retry=hf.ToolRetryPolicy(attempts=2, pause=0.01))
    async def packs(ctx: hf.ProcessContext) -> str:
        if ctx.attempt == 1:
            raise OSError("no boxes")
        await ctx.sleep(0.01)
        return await ctx.step("pack", acting(ctx, "packed"))

    async def branch(ctx: hf.ProcessContext, n: int) -> list[str]:
        found: list[str] = []
        for step in range(2):
            found.append(await ctx.step("same", acting(ctx, f"b{n}.{step}")))
            await ctx.sleep(0.002 * (n + 1))
        return found

    @hf.process
    async def golden(ctx: hf.ProcessContext) -> Any:
        order = await ctx.step("order", acting(ctx, "ordered"))
        branches = await asyncio.gather(*[branch(ctx, n) for n in range(3)])
        editor = await ctx.wait("editor")
        child = await (await ctx.start(packs, id=CHILD)).result()
        race = await ctx.race(ctx.wait("never"), ctx.step("quick", lambda: "quick"))
        try:
            paid = await ctx.step("pay", acting(ctx, "paid", hf.Repeat.NEVER), repeat=hf.Repeat.NEVER)
        except hf.EffectUnknown:
            paid = "paid"  # nobody knows: it was not repeated
        return {
            "order": order,
            "branches": branches,
            "editor": editor,
            "child": child,
            "race": race,
            "paid": paid,
        }

    return [golden, packs]


async def work(folder: Path) -> None:
    """All of it, from wherever an earlier process was."""
    functions = make_processes(folder)
    async with hf.open(folder / "store.db", processes=functions) as runtime:
        process = await runtime.start(functions[0], id=PROCESS)
        await process.signal("editor", "yes")
        result = await process.result()
        if result != EXPECTED:
            raise AssertionError(result)


def _once(folder: Path, request: dict[str, str]) -> None:
    asyncio.run(patiently(work(folder)))


if __name__ == "__main__":
    make_processes(Path())
    serve(_once)
