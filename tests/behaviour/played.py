"""A model that plays stream events, with places at which it stops."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tests.patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import holdfast as hf


class Gate:
    """A place at which a played model stops until a test lets it go on."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.opened = asyncio.Event()

    async def passed(self) -> None:
        self.reached.set()
        await self.opened.wait()

    async def wait(self) -> None:
        async with asyncio.timeout(PATIENCE):
            await self.reached.wait()


class PlayedModel:
    """A model that plays stream events as they are given, and stops at the gates between them."""

    name = "played:model"

    def __init__(self, *played: hf.StreamEvent | Gate) -> None:
        self._played = played

    async def stream(self, request: hf.ModelRequest) -> AsyncIterator[hf.StreamEvent]:
        for item in self._played:
            if isinstance(item, Gate):
                await item.passed()
            else:
                yield item
