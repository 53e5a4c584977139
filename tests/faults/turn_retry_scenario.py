"""A turn that fails after a refund, and its retries, in the session and in a fork, by workers that can be killed.

Run as a script it serves requests (folder, crash point) with a real process each.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Final

from forking import patiently, serve

import holdfast as hf
from holdfast.testing import ScriptedModel, World, call, error, text

SESSION: Final = "desk"
KEY: Final = "after the repair"


def make_agent(folder: Path) -> hf.Agent:
    world = World(folder / "world.log")

    @hf.tool(idempotent=True)
    async def refund(ctx: hf.Context) -> str:
        world.act(ctx.session, ctx, hf.Repeat.KEYED, "refunded")
        return "refunded"

    def answer(request: hf.ModelRequest) -> Any:
        if not any(isinstance(message, hf.ToolMessage) for message in request.messages):
            return call("refund")
        return text("done") if (folder / "repaired").exists() else error("no credit", kind="billing")

    return hf.Agent("desk", model=ScriptedModel(answer), tools=[refund], policy=[hf.allow("*")])


async def work(folder: Path) -> None:
    """All of it, from wherever an earlier process was."""
    agent = make_agent(folder)
    async with hf.open(folder / "store.db", agents=[agent]) as runtime:
        turn = await runtime.session(SESSION, agent=agent).send("refund it", key="first")
        outcome = await turn.outcome()
        if outcome.code != "billing":
            raise AssertionError(outcome)
        (folder / "repaired").touch()
        for step in (None, 2):
            retry = await turn.retry(from_step=step, key=f"{KEY} {step}")
            outcome = await retry.outcome()
            if outcome.text != "done":
                raise AssertionError((step, outcome))


def _once(folder: Path, request: dict[str, str]) -> None:
    asyncio.run(patiently(work(folder)))


if __name__ == "__main__":
    make_agent(Path())
    serve(_once)
