"""So many calls run at once, of all tools together; what waits can be cancelled, and nothing waits for ever."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest
from tests.behaviour.background import BUDGET, SESSION, agent_with, asked
from tests.behaviour.talk import SOON, until

import holdfast as hf
from holdfast.errors import InvalidNumber
from holdfast.testing import call
from holdfast.tools.functions import calls_here, limit_calls

if TYPE_CHECKING:
    from collections.abc import Iterator


class Crowd:
    """Counts the calls that run at once, until a test lets them go."""

    def __init__(self) -> None:
        self.inside = 0
        self.most = 0
        self.go = asyncio.Event()

    async def pass_through(self) -> None:
        self.inside += 1
        self.most = max(self.most, self.inside)
        try:
            await self.go.wait()
        finally:
            self.inside -= 1

    def tool(self, name: str, **options: Any) -> hf.Tool[..., Any]:
        said: dict[str, Any] = {"read_only": True, **options}

        @hf.tool(name, **said)
        async def crowds() -> str:
            await self.pass_through()
            return name

        return crowds

    async def settled(self, count: int) -> None:
        async def are_inside() -> bool:
            return self.inside == count

        await until(are_inside)
        for _ in range(20):  # whoever else could come in would by now
            await asyncio.sleep(0)


@pytest.fixture
def free() -> Iterator[threading.Event]:
    """Lets threads go that a test has left hanging."""
    made = threading.Event()
    yield made
    made.set()


async def test_calls_of_different_tools_share_the_places() -> None:
    crowd = Crowd()
    agent = agent_with(*(crowd.tool(name) for name in "abc"))
    with limit_calls(2):
        async with hf.open(None, agents=[agent]) as runtime:
            turn = await runtime.session(SESSION, agent=agent).send("go")
            await crowd.settled(2)
            crowd.go.set()
            assert (await turn.outcome(timeout=SOON)).status == "completed"
    assert crowd.most == 2


@pytest.mark.parametrize("how", [{"background": True}, {"inline_budget": BUDGET}], ids=["background", "spilled"])
async def test_background_calls_share_them_too_and_come_to_their_end(how: dict[str, Any]) -> None:
    crowd = Crowd()
    agent = agent_with(*(crowd.tool(name, **how) for name in "abc"))
    with limit_calls(1):
        async with hf.open(None, agents=[agent]) as runtime:
            await asked(runtime, agent)
            await crowd.settled(1)
            crowd.go.set()

            async def all_ended() -> bool:
                return len(await runtime.tasks.list(status="succeeded")) == 3

            await until(all_ended)
    assert crowd.most == 1


async def test_a_turn_whose_call_waits_for_a_place_can_be_cancelled() -> None:
    crowd = Crowd()
    first, second = crowd.tool("first"), crowd.tool("second")
    one, other = (
        agent_with(first),
        hf.Agent("b", model=agent_with(second).model, tools=[second], policy=[hf.allow("*")]),
    )
    with limit_calls(1):
        async with hf.open(None, agents=[one, other]) as runtime:
            holds = await runtime.session(SESSION, agent=one).send("go")
            await crowd.settled(1)
            waits = await runtime.session("other", agent=other).send("go")
            await crowd.settled(1)
            await waits.cancel("enough")
            assert (await waits.outcome(timeout=SOON)).status == "cancelled"
            crowd.go.set()
            assert (await holds.outcome(timeout=SOON)).status == "completed"


async def test_a_place_that_was_given_to_a_call_that_is_cancelled_goes_to_the_next() -> None:
    tool = hf.tool(read_only=True)(nothing)

    async def use() -> None:
        with await calls_here().place_for(tool):
            pass

    with limit_calls(1):
        with await calls_here().place_for(tool):
            gone, stays = asyncio.ensure_future(use()), asyncio.ensure_future(use())
            await asyncio.sleep(0)
        gone.cancel()  # after it was let in, before it could run
        await asyncio.wait_for(stays, SOON)
    assert gone.cancelled()


async def test_a_tool_that_takes_steps_needs_no_other_place() -> None:
    @hf.tool(read_only=True)
    async def steps(ctx: hf.Context) -> str:
        return await ctx.step("inner", nothing)

    with limit_calls(1):
        agent = agent_with(steps)
        async with hf.open(None, agents=[agent]) as runtime:
            assert (await asked(runtime, agent)).status == "completed"


async def test_a_call_that_waits_for_a_person_keeps_no_place() -> None:
    @hf.tool
    async def asks(ctx: hf.Context) -> str:
        return str(await ctx.wait("approval"))

    agent, other = (
        agent_with(asks),
        hf.Agent("b", model=agent_with(hf.tool(nothing)).model, tools=[hf.tool(nothing)], policy=[hf.allow("*")]),
    )
    with limit_calls(1):
        async with hf.open(None, agents=[agent, other]) as runtime:
            await runtime.session(SESSION, agent=agent).send("go")

            async def parked() -> bool:
                return bool(await runtime.waits(SESSION)) and not runtime.active

            await until(parked)
            assert (await asked(runtime, other, session="other")).status == "completed"


async def test_a_thread_that_hangs_keeps_no_place_among_all_calls(free: threading.Event) -> None:
    @hf.tool(read_only=True, timeout=0.05)
    def hangs() -> str:
        free.wait(2 * SOON)
        return "never"

    agent = agent_with(hangs, script=[call(hangs), call("nothing")])
    agent = hf.Agent("c", model=agent.model, tools=[hangs, hf.tool(read_only=True)(nothing)], policy=[hf.allow("*")])
    with limit_calls(1):
        async with hf.open(None, agents=[agent]) as runtime:
            assert (await asked(runtime, agent)).status == "completed"


async def test_a_call_that_waits_for_its_own_tool_takes_no_place_of_others() -> None:
    crowd = Crowd()
    narrow = crowd.tool("narrow", max_parallel=1)
    agent = agent_with(narrow, script=[[call(narrow), call(narrow), call("nothing")]])
    agent = hf.Agent("d", model=agent.model, tools=[narrow, hf.tool(read_only=True)(nothing)], policy=[hf.allow("*")])
    with limit_calls(2):
        async with hf.open(None, agents=[agent]) as runtime:
            turn = await runtime.session(SESSION, agent=agent).send("go")

            async def got_through() -> bool:
                line = await runtime.store.tail(SESSION, 5)
                return any(getattr(entry.record, "key", "").endswith("nothing") for entry in line)

            await until(got_through)
            crowd.go.set()
            assert (await turn.outcome(timeout=SOON)).status == "completed"


async def test_of_two_bounds_the_lower_one_holds_until_it_is_over() -> None:
    crowd = Crowd()
    tool = crowd.tool("a")

    async def use() -> None:
        with await calls_here().place_for(tool):
            await crowd.pass_through()

    with limit_calls(2):
        with limit_calls(1):
            users = [asyncio.ensure_future(use()) for _ in range(3)]
            await crowd.settled(1)
        await crowd.settled(2)
        crowd.go.set()
        await asyncio.gather(*users)


@pytest.mark.parametrize("count", [0, -1, 1.5, "many", None, True])
async def test_a_bound_that_can_not_be_meant_is_refused(count: Any) -> None:
    with pytest.raises(InvalidNumber, match="max_calls"), limit_calls(count):
        pass


async def nothing() -> str:
    return "nothing"
