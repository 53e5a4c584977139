"""A worker of a session that saves a fold every few records, and is compacted meanwhile.

Run as a script it serves requests (folder, crash point) with a real process each.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any, Final

from forking import serve

import holdfast as hf
from holdfast.messages import ToolMessage, Usage
from holdfast.runtime import session_records
from holdfast.testing import ScriptedModel, call, reply, text

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.messages import ModelRequest

SESSION: Final = "s"
TURNS: Final = 9
RECORDS: Final = 10
"""Records between two folds."""
SUMMARY: Final = "## Goal\nLook.\n## Decisions\nnone\n## Facts\nthe key is 7\n## Files\nnone\n## Open points\nnone"


@hf.tool(read_only=True)
async def look(at: int) -> str:
    """Look."""
    return f"at {at}: " + "word " * 150


def agent_in(folder: Path) -> hf.Agent:
    """Looks once in each turn, and notes what it was asked."""

    def say(request: ModelRequest) -> Any:
        _note(folder, "summary" if request.position is None else f"step {request.position}")
        if request.position is None:
            return reply(text(SUMMARY), usage=Usage(output=9))
        done = isinstance(request.messages[-1], ToolMessage)
        return reply(text("done") if done else call(look, at=request.position), usage=Usage(output=2))

    return hf.Agent("a", model=ScriptedModel(say, keep=0), tools=[look], compaction=hf.Compaction(window=2_500))


def _note(folder: Path, line: str) -> None:
    """Write one line at once: a kill leaves all of it or nothing."""
    handle = os.open(folder / "asked.txt", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    try:
        os.write(handle, f"{line}\n".encode())
    finally:
        os.close(handle)


async def work(folder: Path) -> None:
    """All turns, to their ends; whatever was interrupted goes on."""
    session_records.FOLD_RECORDS = RECORDS  # a fold every other turn
    session_records._RECORD_BYTES = 10**9  # pyright: ignore[reportPrivateUsage]
    agent = agent_in(folder)
    async with hf.open(folder / "store.db", agents=[agent], mirror=False, lease_ms=1_000) as runtime:
        session = runtime.session(SESSION, agent=agent)
        for number in range(TURNS):
            outcome = await (await session.send("Look.", key=f"input {number}")).outcome(timeout=20)
            assert outcome.status == "completed", outcome


if __name__ == "__main__":
    serve(lambda folder, _: asyncio.run(work(folder)))
