"""Processes that drive or follow a session whose model writes for a long time, for tests that kill them.

Run as a script: ``python live_workers.py drive|follow DATABASE``. The model writes numbers, one after the other, until
the file ``gate`` exists beside the database. A process says ``ready`` when it has begun, and a follower prints events.
"""

from __future__ import annotations

import asyncio
import os
import sys
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import holdfast as hf
from holdfast.events import TERMINAL, encode
from holdfast.messages import ModelReply, StreamEnd, StreamStart, TextChunk

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class Writer:
    """A model that writes numbers until the gate is open."""

    name = "writer:model"

    def __init__(self, gate: Path) -> None:
        self._gate = gate

    async def stream(self, request: hf.ModelRequest) -> AsyncIterator[hf.StreamEvent]:
        yield StreamStart(self.name)
        for number in count():
            if os.path.exists(self._gate):  # noqa: ASYNC240, PTH110  another process opens it
                break
            yield TextChunk(f"{os.getpid()}:{number} ")
            await asyncio.sleep(0.002)
        yield StreamEnd(ModelReply((hf.Text("Done."),), "stop", model=self.name))


def writer(path: Path) -> hf.Agent:
    return hf.Agent("writer", model=Writer(path.with_name("gate")))


async def _drive(path: Path) -> None:
    agent = writer(path)
    async with hf.open(path, agents=[agent], lease_ms=1_000) as runtime:
        await runtime.session("s", agent=agent).send("Write.", key="once")
        os.write(1, b"ready\n")
        await runtime.serve()


async def _follow(path: Path) -> None:
    async with hf.open(path, drive=False) as runtime:
        os.write(1, b"ready\n")
        async for event in runtime.session("s").events():
            os.write(1, encode(event) + b"\n")
            if isinstance(event, TERMINAL):
                return


if __name__ == "__main__":
    asyncio.run({"drive": _drive, "follow": _follow}[sys.argv[1]](Path(sys.argv[2])))
