"""What is over is gone: nothing of a turn waits for the garbage collector, which would stop the process for long."""

from __future__ import annotations

import gc
from collections import Counter

from tests.behaviour.talk import until

import holdfast as hf
from holdfast.testing import ScriptedModel, call, text


@hf.tool(read_only=True)
async def look(item: int) -> int:
    """How many there are of an item."""
    return item


def alive() -> Counter[str]:
    """What there is of turns and of those who drive them."""
    kinds = ("SessionDrive", "TurnRun", "Performer", "Calling", "Carrying", "Invoker", "Asking", "LeasedJournal")
    return Counter(name for name in (type(each).__name__ for each in gc.get_objects()) if name in kinds)


async def test_nothing_of_a_turn_that_is_over_waits_for_the_collector() -> None:
    script = [[call(look, item=1), call(look, item=2)], text("done")]
    agent = hf.Agent("a", model=ScriptedModel(script * 3), tools=[look])
    gc.collect()
    before = alive()
    gc.disable()
    try:
        async with hf.open(None, agents=[agent]) as runtime:
            for number in range(3):
                assert (await runtime.run(agent, "go", session=f"s{number}")).ok
            await until(lambda: alive() == before)
    finally:
        gc.enable()
