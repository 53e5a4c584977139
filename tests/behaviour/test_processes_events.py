"""What observers see of durable functions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import holdfast as hf

if TYPE_CHECKING:
    from pathlib import Path


@hf.process
async def greeted(ctx: hf.ProcessContext, name: str) -> str:
    answer = await ctx.wait("answer")
    return await ctx.step("greet", lambda: f"Hello {name}, {answer}")


async def test_a_process_is_seen_from_its_start_to_its_end(tmp_path: Path) -> None:
    seen: list[str] = []
    async with hf.open(tmp_path / "s.db", processes=[greeted]) as runtime:
        started = await runtime.start(greeted, "Ada", id="one")
        async for event in runtime.events(0):
            if isinstance(event, hf.events.ProcessStarted | hf.events.ProcessWaiting | hf.events.ProcessEnded):
                seen.append(type(event).__name__)
            if isinstance(event, hf.events.ProcessWaiting):
                await started.signal("answer", "bye")
            if isinstance(event, hf.events.ProcessEnded):
                break
        assert (await started.result(), seen[0], seen[-1]) == ("Hello Ada, bye", "ProcessStarted", "ProcessEnded")
        assert "ProcessWaiting" in seen
