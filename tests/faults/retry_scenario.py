"""A process that fails, and its retry, by workers that can be killed.

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

PROCESS: Final = "order"
KEY: Final = "after the repair"
EXPECTED: Final = ["found", "paid", ["shipped", "told"], "yes"]
ACTS: Final = ("found", "paid", "shipped", "told")


class _Key:
    """An effect, as far as the world needs it."""

    def __init__(self, key: str) -> None:
        self.key = self.idempotency_key = key


def make_process(folder: Path) -> Any:
    world = World(folder / "world.log")

    def acting(ctx: hf.ProcessContext, what: str, repeat: hf.Repeat = hf.Repeat.KEYED) -> Any:
        async def act() -> str:
            if what == "shipped" and not (folder / "repaired").exists():
                raise OSError("the van is broken")
            effect: EffectContext = _Key(ctx.idempotency_key)  # pyright: ignore[reportAssignmentType]
            world.act(ctx.id, effect, repeat, what)
            await asyncio.sleep(0)
            return what

        return act

    @hf.process
    async def orders(ctx: hf.ProcessContext) -> Any:
        found = await ctx.step("find", acting(ctx, "found"))
        try:
            paid = await ctx.step("pay", acting(ctx, "paid", hf.Repeat.NEVER), repeat=hf.Repeat.NEVER)
        except hf.EffectUnknown:
            paid = "paid"  # nobody knows: it was not repeated
        sent = await ctx.gather(ctx.step("ship", acting(ctx, "shipped")), ctx.step("tell", acting(ctx, "told")))
        return [found, paid, sent, await ctx.wait("editor")]

    return orders


async def work(folder: Path) -> None:
    """All of it, from wherever an earlier process was."""
    orders = make_process(folder)
    async with hf.open(folder / "store.db", processes=[orders]) as runtime:
        process = await runtime.start(orders, id=PROCESS)
        try:
            await process.result()
        except hf.ProcessFailed:
            (folder / "repaired").touch()
            retry = await process.retry(key=KEY)
            await retry.signal("editor", "yes", key="msg-1")
            result = await retry.result()
            if result != EXPECTED:
                raise AssertionError(result) from None
        else:
            raise AssertionError("it must fail before it is repaired")


def _once(folder: Path, request: dict[str, str]) -> None:
    asyncio.run(patiently(work(folder)))


if __name__ == "__main__":
    make_process(Path())
    serve(_once)
