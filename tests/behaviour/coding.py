"""Agents in code mode: a shop whose model writes programs, and what it really did."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from tests.behaviour.background import SESSION, results, talkative
from tests.behaviour.talk import SOON

import holdfast as hf
from holdfast.testing import call

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.messages import ToolResult
    from holdfast.runtime.runtime import Runtime
    from holdfast.testing.scripted import ScriptedCall, ScriptItem

ASKING = (hf.ask("refund"), hf.deny("wipe"), hf.allow("*"))
"""Refunds are asked about, nothing is ever wiped, everything else is allowed."""


def program(source: str) -> ScriptedCall:
    """The model writes this program."""
    return call("run_program", source=source)


class Shop:
    """Looks things up, refunds, and breaks. `done` is all that it ever did."""

    def __init__(self) -> None:
        self.done: list[Any] = []
        self.begun = asyncio.Event()
        self.go = asyncio.Event()

    def tools(self) -> list[hf.Tool[..., Any]]:
        @hf.tool(read_only=True)
        async def price(title: str) -> int:
            """The price of a book."""
            self.done.append(title)
            return len(title)

        @hf.tool
        async def refund(order: str, cents: int = 100) -> dict[str, Any]:
            """Refund an order."""
            self.done.append((order, cents))
            return {"order": order, "cents": cents}

        @hf.tool
        async def wipe(what: str) -> str:
            """Wipe something."""
            self.done.append(f"wiped {what}")
            return what

        @hf.tool(read_only=True)
        async def broken(what: str) -> str:
            """Always fails."""
            message = f"no {what} today"
            raise LookupError(message)

        @hf.tool(read_only=True)
        async def slow(what: str) -> str:
            """Takes its time."""
            self.begun.set()
            await self.go.wait()
            return what

        @hf.tool
        async def work(what: str) -> str:
            """Does something, and takes its time."""
            self.done.append(what)
            self.begun.set()
            await self.go.wait()
            return what

        return [price, refund, wipe, broken, slow, work]

    def agent(self, *script: ScriptItem | str, **options: Any) -> hf.Agent:
        """An agent whose model writes these programs, one after the other, and has a word for whatever comes then."""
        said = [program(item) if isinstance(item, str) else item for item in script]
        given: dict[str, Any] = {"tools": self.tools(), "policy": ASKING, **options}
        return hf.Agent("shop", model=talkative(*said), mode="code", **given)


async def came_to(agent: hf.Agent, *, prompts: Sequence[str] = ("go",)) -> list[ToolResult]:
    """What the model reads of its programs, in a store in memory."""
    async with hf.open(None, agents=[agent]) as runtime:
        for words in prompts:
            await said(runtime, agent, words)
        return results(await runtime.session(SESSION).history())


async def said(runtime: Runtime, agent: hf.Agent, words: str = "go") -> hf.TurnOutcome:
    """Say something to the session; answers how the turn ended."""
    turn = await runtime.session(SESSION, agent=agent).send(words)
    return await turn.outcome(timeout=2 * SOON)
