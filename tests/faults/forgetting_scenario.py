"""A session that is forgotten by a worker that can be killed: it is there whole, or gone whole.

Run as a script it serves requests (folder, crash point) with a real process each.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from forking import patiently, serve

import holdfast as hf
from holdfast.testing import ScriptedModel, call, text

if TYPE_CHECKING:
    from pathlib import Path

WORD: Final = "wombat"
"""In everything that the session has."""
SESSION: Final = "secret-session"


@hf.tool(read_only=True)
async def look(what: str) -> str:
    """Look something up."""
    return f"{what} " * 10_000


def agent() -> hf.Agent:
    helper = hf.Agent("helper", model=ScriptedModel([text(WORD)]))
    said = [call("helper", prompt=WORD), call("look", what=WORD), text(WORD)]
    return hf.Agent("clerk", model=ScriptedModel(said), tools=[look, hf.agent_tool(helper)])


async def work(folder: Path) -> None:
    """Have the sessions answered, and one of them forgotten."""
    clerk = agent()
    async with hf.open(folder / "store.db", agents=[clerk]) as runtime:
        if not (folder / "answered").exists():
            for name in (SESSION, "stays"):
                await (await runtime.session(name, agent=clerk).send("hello", key="k")).outcome()
            await runtime.memory(SESSION).put("note", WORD)
            (folder / "answered").touch()
        if SESSION in {line.id for line in await runtime.sessions()}:
            await runtime.forget(SESSION, keep_hash=True)


def _once(folder: Path, _: dict[str, str]) -> None:
    asyncio.run(patiently(work(folder)))


if __name__ == "__main__":
    agent()
    serve(_once)
