"""A worker that does everything an effect boundary can do, and can be killed anywhere.

Run as a script it serves requests (folder, crash point) with a real process each.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from forking import serve

import holdfast as hf
from holdfast.effects.drive import drive
from holdfast.testing import World

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from holdfast.effects.drive import Boundary, EffectContext

JOURNAL = "golden"
LARGE = 40_000
EXPECTED = {
    "first": "pay rent",
    "branches": [["b0 a", "b0 b"], ["b1 a", "b1 b"], ["b2 a", "b2 b"]],
    "group": ["pay left", "pay right"],
    "all": ["m0", "m1", "m2"],
    "both": ["pay tax", "pay toll"],
    "failed": "ValueError: broken",
    "nested": ["inner one", "inner two"],
    "large": LARGE,
    "last": "pay last",
}
WORLD = sorted(
    [
        "pay rent",
        "pay tax",
        "pay toll",
        "pay left",
        "pay right",
        "pay last",
        "inner one",
        "inner two",
    ]
    + [f"b{branch} {step}" for branch in range(3) for step in "ab"]
    + [f"m{member}" for member in range(3)]
)


class Scenario:
    """Sequential, parallel, nested and grouped effects; some may be repeated, some never."""

    def __init__(self, ctx: Boundary, world: World) -> None:
        self._ctx = ctx
        self._world = world

    def acting(self, what: str, repeat: hf.Repeat) -> Callable[[EffectContext], Awaitable[str]]:
        async def act(effect: EffectContext) -> str:
            await asyncio.sleep(0)
            self._world.act(JOURNAL, effect, repeat, what)
            await asyncio.sleep(0)
            return what

        return act

    async def keyed(self, name: str, what: str) -> str:
        return await self._ctx.effect(
            "tool_call", name, self.acting(what, hf.Repeat.KEYED), body={"what": what}, repeat=hf.Repeat.KEYED
        )

    async def pay(self, what: str) -> str:
        """Must not happen twice: when nobody can say whether it did, look, and only then do it again."""
        run = self.acting(what, hf.Repeat.NEVER)
        while True:
            try:
                return await self._ctx.effect("tool_call", "pay", run, target="bank", body={"what": what})
            except hf.EffectUnknown:
                if await self.paid(what):
                    return what

    async def paid(self, what: str) -> bool:
        async def look(_: EffectContext) -> bool:
            await asyncio.sleep(0)
            return what in self._world.done()

        return await self._ctx.effect("step", "look", look, body=what, repeat=hf.Repeat.FREE)

    async def pay_both(self, *whats: str) -> list[str]:
        """Both at once, neither twice."""
        return await asyncio.gather(*[self.pay(what) for what in whats])

    async def branch(self, number: int) -> list[str]:
        return [await self.keyed("same", f"b{number} a"), await self.keyed("same", f"b{number} b")]

    async def nested(self) -> list[str]:
        async def outer(effect: EffectContext) -> list[str]:
            return [await self.keyed("inner", "inner one"), await effect.step("plain", _identity, "inner two")]

        async def also(effect: EffectContext) -> list[str]:
            answer = await outer(effect)
            await self.keyed("inner", "inner two")
            return answer

        return await self._ctx.effect("exec_code", "outer", also, repeat=hf.Repeat.KEYED)

    async def failing(self) -> str:
        try:
            await self._ctx.effect("step", "broken", _broken, repeat=hf.Repeat.FREE)
        except hf.EffectFailed as error:
            return f"{error.kind}: {error.message}"
        return "did not fail"

    async def run(self) -> dict[str, Any]:
        first = await self.pay("pay rent")
        branches = await asyncio.gather(*[self.branch(number) for number in range(3)])
        async with asyncio.TaskGroup() as group:
            left = group.create_task(self.pay("pay left"))
            right = group.create_task(self.pay("pay right"))
        return {
            "first": first,
            "branches": branches,
            "group": [left.result(), right.result()],
            "all": await asyncio.gather(*[self.keyed(f"m{n}", f"m{n}") for n in range(3)]),
            "both": await self.pay_both("pay tax", "pay toll"),
            "failed": await self.failing(),
            "nested": await self.nested(),
            "large": len(await self._ctx.step("large", _large)),
            "last": await self.pay("pay last"),
        }


async def _broken(_: EffectContext) -> str:
    await asyncio.sleep(0)
    raise ValueError("broken")


async def _identity(value: str) -> str:
    await asyncio.sleep(0)
    return value


async def _large() -> str:
    await asyncio.sleep(0)
    return "x" * LARGE


async def work(folder: Path) -> dict[str, Any]:
    """Drive the scenario on the store in `folder`, to its end."""
    world = World(folder / "world.log")
    async with hf.open_store(folder / "store.db") as store:
        return await drive(store, JOURNAL, lambda ctx: Scenario(ctx, world).run(), code="scenario-1")


def _once(folder: Path, _request: dict[str, str]) -> None:
    (folder / "result.json").write_text(json.dumps(asyncio.run(work(folder))))


if __name__ == "__main__":
    serve(_once)
