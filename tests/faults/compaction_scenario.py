"""A worker whose context is compacted: before it is full, when the provider refuses it, and without a summary.

Run as a script it serves requests (folder, crash point) with a real process each.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any, Final

from forking import serve

import holdfast as hf
from holdfast.messages import Usage
from holdfast.testing import ScriptedModel, call, error, reply, text

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.messages import ModelRequest

SESSION: Final = "s"
INPUTS: Final = ("Look everywhere.", "And once more.")
STEPS: Final = 13
REFUSED: Final = 22
"""The place at which the provider refuses a request with more messages than this:"""
MOST: Final = 10
SUMMARY: Final = "## Goal\nLook.\n## Decisions\nnone\n## Facts\nthe key is 7\n## Files\nnone\n## Open points\nnone"
COMPACTION: Final = hf.Compaction(window=3_000)


@hf.tool(read_only=True)
async def look(at: int) -> str:
    """Look."""
    return f"at {at}: " + "word " * 150


def agent_in(folder: Path) -> hf.Agent:
    """Looks so many times in each turn, and notes what it was asked. What it says follows from that alone."""

    def say(request: ModelRequest) -> Any:
        at = request.position
        _note(folder, "summary" if at is None else f"step {at}")
        if at is None:
            # Of the second turn no summary can be had.
            return reply(text("" if "And once more" in str(request.messages) else SUMMARY), usage=Usage(output=9))
        if at == REFUSED and len(request.messages) > MOST:
            return error("too long", kind="context_overflow")
        done = at % (STEPS + 1) == STEPS
        return reply(text("done") if done else call(look, at=at), usage=Usage(output=2))

    limits = hf.Limits(steps=None)
    return hf.Agent("a", model=ScriptedModel(say, keep=0), tools=[look], limits=limits, compaction=COMPACTION)


def _note(folder: Path, line: str) -> None:
    """Write one line at once: a kill leaves all of it or nothing."""
    handle = os.open(folder / "asked.txt", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    try:
        os.write(handle, f"{line}\n".encode())
    finally:
        os.close(handle)


async def work(folder: Path) -> None:
    """Both turns, to their ends; whatever was interrupted goes on."""
    agent = agent_in(folder)
    async with hf.open(folder / "store.db", agents=[agent], mirror=False, lease_ms=1_000) as runtime:
        session = runtime.session(SESSION, agent=agent)
        for number, words in enumerate(INPUTS):
            outcome = await (await session.send(words, key=f"input {number}")).outcome(timeout=20)
            assert outcome.status == "completed", outcome


if __name__ == "__main__":
    serve(lambda folder, _: asyncio.run(work(folder)))
