"""A process with a runtime, for tests that share one file between several of them.

Run as a script: ``python engine_workers.py DATABASE [OPTIONS as JSON]``. Tools leave a line for everything they do in
the file ``marks`` beside the database, one system call a line; they are held back until the file ``gate`` exists.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import holdfast as hf
from holdfast.testing import ScriptedModel, arm_from_environment, call, text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.testing.scripted import ScriptReply


def _say(line: str) -> None:
    os.write(1, f"{line}\n".encode())


def _agents(folder: Path, pause: float) -> Sequence[hf.Agent]:
    handle = os.open(folder / "marks", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)

    def mark(what: str, ctx: hf.Context) -> None:
        line = {"what": what, "session": ctx.session, "turn": ctx.turn, "pid": os.getpid(), "at": time.monotonic()}
        os.write(handle, f"{json.dumps(line)}\n".encode())

    async def gate() -> None:
        while not (folder / "gate").exists():  # another process opens it
            await asyncio.sleep(0.01)

    @hf.tool
    async def act(ctx: hf.Context, what: str) -> str:
        """Do something that must not happen twice."""
        mark(what, ctx)
        await asyncio.sleep(pause)
        return what

    @hf.tool(read_only=True)
    async def hold(ctx: hf.Context) -> str:
        """Look at something, for as long as the gate is closed."""
        mark("hold", ctx)
        await gate()
        return "held"

    @hf.tool
    async def charge(ctx: hf.Context) -> str:
        """Do something that must not happen twice, and be held up in the middle of it."""
        mark("charge", ctx)
        await gate()
        return "charged"

    return (
        hf.Agent(
            "short",
            model=_script(call(act, what="one"), call(act, what="two"), text("done")),
            tools=[act],
            policy=[hf.allow("*")],
        ),
        hf.Agent(
            "held",
            model=_script(call(hold), call(act, what="after"), text("done")),
            tools=[hold, act],
            policy=[hf.allow("*")],
        ),
        hf.Agent("charging", model=_script(call(charge), text("done")), tools=[charge], policy=[hf.allow("*")]),
    )


def _script(*replies: ScriptReply) -> ScriptedModel:
    """The same in every turn."""
    return ScriptedModel(lambda request: replies[(request.position or 0) % len(replies)])


async def _main(database: str, options: dict[str, Any]) -> None:
    pause = options.pop("pause", 0.0)
    agents = _agents(Path(database).parent, pause)
    async with hf.open(database, agents=agents, **options):
        _say("open")
        await asyncio.to_thread(sys.stdin.readline)
    _say("closed")


if __name__ == "__main__":
    arm_from_environment()
    asyncio.run(_main(sys.argv[1], json.loads(sys.argv[2]) if len(sys.argv) > 2 else {}))
