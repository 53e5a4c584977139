"""A process that carries out background calls on a store that others share, until it is told to end or is killed.

Run as a script: ``task_workers.py STORE FOLDER NAME [ask SESSION]``. What its tools do it writes to files of FOLDER;
a tool goes on when there is a file `go`.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import holdfast as hf
from holdfast.testing import ScriptedModel, call, text
from holdfast.testing.scripted import position_of

TOOLS = ("looks", "pays")
POLL = 0.01


def note(folder: Path, name: str, line: str) -> None:
    """Write one line at once: a kill leaves all of it or nothing."""
    handle = os.open(folder / name, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    os.write(handle, f"{line}\n".encode())
    os.close(handle)


def _say(request: Any) -> Any:
    return [call(name) for name in TOOLS] if position_of(request) == 0 else text("noted")


def make_agent(folder: Path, name: str) -> hf.Agent:
    """An agent whose tools say which process they run in."""

    async def held(ctx: hf.Context) -> str:
        note(folder, "runs", f"{ctx.tool} {name} {ctx.idempotency_key}")
        while not (folder / "go").exists():  # another process makes it
            await asyncio.sleep(POLL)
        return f"by {name}"

    @hf.tool(read_only=True, inline_budget=POLL)
    async def looks(ctx: hf.Context) -> str:
        return await held(ctx)

    @hf.tool(inline_budget=POLL)
    async def pays(ctx: hf.Context) -> str:
        return await held(ctx)

    return hf.Agent("shop", model=ScriptedModel(_say), tools=[looks, pays], policy=[hf.allow("*")])


async def main(store: Path, folder: Path, name: str, session: str | None) -> None:
    """Serve, and perhaps ask something first."""
    agent = make_agent(folder, name)
    async with hf.open(store, agents=[agent], lease_ms=60_000) as runtime:
        if session is not None:
            await (await runtime.session(session, agent=agent).send("go")).outcome()
        note(folder, "ready", name)
        await runtime.serve()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[5] if len(sys.argv) > 4 else None))
