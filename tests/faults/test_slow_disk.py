"""A disk that can't keep up: a turn waits for it, and does not pile up in memory what a crash would lose."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import apsw

import holdfast as hf
from holdfast.effects.performer import MAX_BEHIND
from holdfast.testing import ScriptedModel, call, text

if TYPE_CHECKING:
    from pathlib import Path

STEPS = 600
PER_STEP = 2
"""Records of a step: what the model said, and what the tool gave."""
IDLE = 2_000
"""Rounds of the loop in which a turn that may go on has gone on."""


async def test_a_turn_waits_for_a_disk_that_is_far_behind(tmp_path: Path) -> None:
    lock: Any = apsw.Connection(str(tmp_path / "s.db"))
    lock.set_busy_timeout(5_000)
    asked = 0

    @hf.tool(read_only=True)
    async def look() -> str:
        """Look."""
        return "seen"

    def say(request: hf.ModelRequest) -> Any:
        nonlocal asked
        asked = (request.position or 0) + 1
        if asked == 1:
            lock.execute("BEGIN IMMEDIATE")  # from now on nothing is written
        return call(look) if asked <= STEPS else text("done")

    agent = hf.Agent("a", model=ScriptedModel(say), tools=[look], limits=hf.Limits(steps=None, repeats=None))
    async with hf.open(tmp_path / "s.db", agents=[agent], mirror=False) as runtime:
        turn = await runtime.session("s", agent=agent).send("go")
        seen, idle = 0, 0
        while idle < IDLE:
            await asyncio.sleep(0)
            seen, idle = (asked, 0) if asked != seen or not asked else (seen, idle + 1)
        lock.execute("ROLLBACK")
        assert seen <= MAX_BEHIND // PER_STEP + 2
        assert (await turn.outcome(timeout=30)).steps == STEPS + 1
    lock.close()
