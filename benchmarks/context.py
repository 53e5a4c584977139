"""The bars of context: one turn of thousands of steps in a small window, which is compacted again and again.

`python benchmarks/context.py figures` measures these bars alone, `... steps N` tells of one run of N steps.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from bars import Bar
from baselines import fresh

import holdfast as hf
from holdfast.messages import ModelReply, StreamEnd, Text, ToolCall, Usage
from holdfast.turns.compaction.budget import Estimator

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from holdfast.messages import ModelRequest, StreamEvent

STEPS = 5_000
SPAN = 500
"""Steps of which the time is compared, at the beginning and at the end."""
WARM = 100
WINDOW = 32_000
LOOK_EACH = 50
"""How often a request is measured; that takes time which is not counted."""
SUMMARY = (
    "## Goal\nLook at every place.\n## Decisions\nin their order\n## Facts\n"
    + "".join(f"- place {number} is as it should be\n" for number in range(40))
    + "## Files\nnone\n## Open points\nthe places that follow"
)


@hf.tool(read_only=True)
async def look(place: int) -> str:
    """What is at a place."""
    return f"place {place}: " + "a few words of what is there " * (8 + 5 * (place % 13))


@dataclass
class Figures:
    """What one run tells."""

    steps: int = 0
    summaries: int = 0
    first_ms: float = 0.0
    last_ms: float = 0.0
    early_mb: float = 0.0
    late_mb: float = 0.0
    largest: int = 0
    """Tokens of the largest request, about."""
    seconds: float = 0.0


@dataclass
class Walker:
    """A model that looks at one place after the other, and at the clock and the memory while it does."""

    steps: int
    name: str = "scripted:walker"
    figures: Figures = field(default_factory=Figures)
    _asked: int = 0
    _cpu: dict[int, float] = field(default_factory=dict[int, float])
    _aside: float = 0.0
    """CPU that went into measuring."""

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamEvent]:
        if request.position is None:
            self.figures.summaries += 1
            yield StreamEnd(ModelReply((Text(SUMMARY),), "stop", Usage(4_000, 400), "walker"))
            return
        at = self._asked = self._asked + 1
        self._look(at, request)
        if at <= self.steps:
            parts = (Text(f"Now I look at place {at}, as it was asked for."), ToolCall(f"c{at}", "look", {"place": at}))
            yield StreamEnd(ModelReply(parts, "tool_calls", Usage(0, 30), "walker"))
        else:
            yield StreamEnd(ModelReply((Text("I have seen all."),), "stop", Usage(0, 5), "walker"))

    def _look(self, at: int, request: ModelRequest) -> None:
        begun = time.process_time()
        if at % LOOK_EACH == 0:
            self.figures.largest = max(self.figures.largest, sum(map(Estimator().tokens, request.messages)))
        if at in {WARM, WARM + SPAN, self.steps - SPAN, self.steps}:
            self._cpu[at] = begun - self._aside
        if at == SPAN:
            self.figures.early_mb = _resident()
        if at == self.steps:
            self.figures.late_mb = _resident()
            self.figures.first_ms = (self._cpu[WARM + SPAN] - self._cpu[WARM]) * 1000 / SPAN
            self.figures.last_ms = (self._cpu[at] - self._cpu[at - SPAN]) * 1000 / SPAN
        self._aside += time.process_time() - begun


def _resident() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1e6


async def _walked(path: Path, steps: int) -> Figures:
    model = Walker(steps)
    agent = hf.Agent(
        "walker",
        model=model,
        instructions="Look at every place.",
        tools=[look],
        limits=hf.Limits(steps=None),
        compaction=hf.Compaction(window=WINDOW),
    )
    begun = time.perf_counter()
    async with hf.open(path, agents=[agent]) as runtime:
        outcome = await runtime.run(agent, "Look at every place, please.", session="s")
        said = len(await runtime.session("s").history())
    figures = model.figures
    figures.seconds, figures.steps = time.perf_counter() - begun, outcome.steps
    room = WINDOW * 3 // 4
    if (outcome.status, said) != ("completed", 2 * steps + 2) or figures.largest > room or not figures.summaries:
        message = f"the run is not what it should be: {outcome}, {said} messages, {figures}"
        raise RuntimeError(message)
    return figures


def long_turn(folder: Path) -> list[Bar]:
    """In a process of its own: what others have left in memory would hide what grows."""
    path = fresh(folder / "context.db")
    command = [sys.executable, __file__, "steps", str(STEPS), str(path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    print(".", end="", file=sys.stderr, flush=True)
    told = Figures(**json.loads(done.stdout))
    cpu = f"{told.last_ms:.2f} of {told.first_ms:.2f} ms; {told.summaries:,} summaries, {told.seconds:.0f} s"
    memory = f"{told.late_mb:.0f} of {told.early_mb:.0f} MB; requests up to {told.largest:,} tokens"
    name = f"{STEPS:,} steps in one turn, {WINDOW // 1000}k window"
    return [
        Bar(f"{name}: CPU at the end", told.last_ms / told.first_ms, 1.3, "at most", "x", cpu),
        Bar(f"{name}: memory", told.late_mb / told.early_mb, 1.25, "at most", "x", memory),
    ]


def main(asked: list[str]) -> None:
    match asked:
        case ["figures"]:
            with tempfile.TemporaryDirectory(prefix=".bench-", dir=Path(__file__).parent) as name:
                found = long_turn(Path(name))
            print(*["", *[bar.line() for bar in found]], sep="\n")
        case ["steps", steps, *where]:
            with tempfile.TemporaryDirectory(prefix=".bench-", dir=Path(__file__).parent) as name:
                path = Path(where[0]) if where else Path(name) / "context.db"
                print(json.dumps(asdict(asyncio.run(_walked(path, max(int(steps), WARM + 2 * SPAN))))))
        case _:
            sys.exit("python benchmarks/context.py figures | steps N")


if __name__ == "__main__":
    main(sys.argv[1:])
