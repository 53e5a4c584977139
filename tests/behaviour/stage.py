"""A stage: tools that wait where a test wants them, and an agent that calls them."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

from tests.patience import PATIENCE

import holdfast as hf
from holdfast.testing import ScriptedModel

if TYPE_CHECKING:
    from datetime import datetime

    from holdfast.testing.scripted import ScriptItem

SOON = PATIENCE
A_SECOND = 1.0


class Stage:
    """Where the tools of a test wait, and what they were seen doing."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.go_on = asyncio.Event()
        self.free = threading.Event()
        self.done: list[str] = []
        self.deadlines: list[datetime | None] = []
        self.loop = asyncio.get_running_loop()

    def tools(self) -> list[hf.Tool[..., Any]]:
        @hf.tool(read_only=True)
        async def quick(what: str = "quick") -> str:
            self.done.append(what)
            return what

        @hf.tool(read_only=True)
        async def reads(ctx: hf.Context) -> str:
            self.deadlines.append(ctx.deadline)
            self.reached.set()
            await self.go_on.wait()
            return "read"

        @hf.tool
        async def acts() -> str:
            self.reached.set()
            await self.go_on.wait()
            self.done.append("acts")
            return "acted"

        @hf.tool(read_only=True)
        def blocks() -> str:
            self.loop.call_soon_threadsafe(self.reached.set)
            self.free.wait(SOON)
            return "unblocked"

        @hf.tool(read_only=True)
        def listens(ctx: hf.Context) -> str:
            while not (ctx.cancelled or self.free.wait(0.01)):
                pass
            self.done.append("heard")
            return "stopped"

        @hf.tool
        async def swallows() -> str:
            self.reached.set()
            try:
                await self.go_on.wait()
            except asyncio.CancelledError:
                self.done.append("swallowed")
            return "as if nothing had happened"

        @hf.tool
        async def stubborn() -> str:
            self.reached.set()
            while not self.go_on.is_set():
                try:
                    await self.go_on.wait()
                except asyncio.CancelledError:
                    self.done.append("ignored")
            return "at last"

        @hf.tool
        async def asks(ctx: hf.Context) -> str:
            return str(await ctx.wait("approval"))

        return [quick, reads, acts, blocks, listens, swallows, stubborn, asks]


def agent_of(stage: Stage, script: list[ScriptItem], **options: Any) -> hf.Agent:
    return hf.Agent("agent", model=ScriptedModel(script), tools=stage.tools(), policy=[hf.allow("*")], **options)
