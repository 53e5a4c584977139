"""Attachments that are put, sent and collected, by workers that can be killed anywhere."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from approval_scenario import Later
from forking import patiently, serve

import holdfast as hf
from holdfast.testing import ScriptedModel, text

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

SESSION: Final = "golden"
LATER: Final = 2 * 86_400_000
PUT, COLLECT = "0", "1"
ACTS: Final = (PUT, COLLECT)
SENT: Final = (b"sent first", b"sent second")
GIVEN: Final = b"put for the session, in parts. " * 50_000
LEFT: Final = (b"left first", b"left second")


def make_agent() -> hf.Agent:
    return hf.Agent("shop", model=ScriptedModel(lambda _: text("seen")))


async def _parts(body: bytes) -> AsyncGenerator[bytes]:
    for start in range(0, len(body), 100_000):
        yield body[start : start + 100_000]


async def play(folder: Path, act: str) -> None:
    """One act, to its end."""
    agent = make_agent()
    clock = Later(LATER if act == COLLECT else 0)
    async with hf.open(folder / "store.db", agents=[agent], clock=clock, mirror=False, drive=act == PUT) as runtime:
        attachments = runtime.attachments
        if act == COLLECT:
            await attachments.collect()
            return
        for data in LEFT:
            await attachments.put(data)
        session = runtime.session(SESSION, agent=agent)
        sent = [await attachments.put(data) for data in SENT]
        turn = await session.send(["look", *sent], key="k")
        await attachments.put(_parts(GIVEN), session=SESSION)
        await turn.outcome()


def _act(folder: Path, request: dict[str, str]) -> None:
    asyncio.run(patiently(play(folder, request["act"])))


if __name__ == "__main__":
    make_agent()
    serve(_act)
