"""Questions that are answered by another process while this one holds the lease, and clocks that are set back."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any

import pytest
from tests.behaviour.approving import ASKING, CALL, Shop, asked_once, ended, parked, sent, told
from tests.behaviour.background import SESSION
from tests.behaviour.talk import SOON, until
from tests.patience import PATIENCE

import holdfast as hf
from holdfast.errors import ApprovalClosed, ApprovalUnknown
from holdfast.messages import Usage
from holdfast.testing import ManualClock, ScriptedModel, call, check, reply, text

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from holdfast.runtime.runtime import Runtime

MINUTE = 60_000
HOUR = 60 * MINUTE


@pytest.fixture
def shop() -> Shop:
    return Shop()


class Busy:
    """A session that works on one call while it asks about another: its process holds the lease all the time."""

    def __init__(self, shop: Shop) -> None:
        self.go = asyncio.Event()
        self.begun = asyncio.Event()

        @hf.tool(read_only=True)
        async def hold() -> str:
            """Work until somebody lets it end."""
            self.begun.set()
            await self.go.wait()
            return "held"

        tools = [*shop.tools(), hold]
        self.agent = shop.agent([CALL, call("hold")], tools=tools, policy=ASKING)

    async def asks(self, runtime: Runtime) -> hf.Approval:
        await sent(runtime, self.agent)
        async with asyncio.timeout(PATIENCE):
            await self.begun.wait()
        found: list[hf.Approval] = []

        async def is_asked() -> bool:
            found[:] = await runtime.approvals(SESSION)
            return bool(found)

        await until(is_asked)
        return found[0]


async def holdfast(*arguments: str) -> int:
    """Run the command line in a process of its own."""
    command = (sys.executable, "-m", "holdfast", *arguments)
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.DEVNULL)
    async with asyncio.timeout(PATIENCE):
        return await process.wait()


@pytest.mark.parametrize(
    ("answer", "done", "state"),
    [(("approve", "--yes"), [("7", 900)], "ok"), (("deny", "--reason", "no"), [], "error")],
    ids=["approved", "denied"],
)
async def test_another_process_answers_while_this_one_holds_the_lease(
    shop: Shop, tmp_path: Path, answer: tuple[str, ...], done: list[Any], state: str
) -> None:
    busy = Busy(shop)
    async with hf.open(tmp_path / "s.db", agents=[busy.agent], mirror=False) as runtime:
        asked = await busy.asks(runtime)
        command, *options = answer
        assert await holdfast(command, asked.id, *options, "--by", "ops", "--store", str(tmp_path / "s.db")) == 0
        assert (await runtime.session(SESSION).status(), shop.done) == ("running", [])
        busy.go.set()
        results = await told(runtime)
        assert ([result.state for result in results], shop.done) == ([state, "ok"], done)
        assert await check(runtime.store) == []


@pytest.fixture
async def other(tmp_path: Path) -> AsyncIterator[Runtime]:
    """Another opening of the store that knows no agent and drives nothing."""
    async with hf.open(tmp_path / "s.db", drive=False) as runtime:
        yield runtime


async def test_of_two_processes_that_answer_one_wins_while_the_lease_is_held(
    shop: Shop, tmp_path: Path, other: Runtime
) -> None:
    busy = Busy(shop)
    async with hf.open(tmp_path / "s.db", agents=[busy.agent], mirror=False) as runtime:
        asked = await busy.asks(runtime)
        answers = (other.deny(asked.id, "no", by="far"), runtime.approve(asked.id, by="near"))
        told_to = await asyncio.gather(*answers, return_exceptions=True)
        assert [isinstance(found, ApprovalClosed | ApprovalUnknown) for found in told_to].count(True) == 1
        busy.go.set()
        (result, _) = await told(runtime)
        assert (result.state == "ok") == (shop.done == [("7", 900)])


async def test_a_process_that_may_not_drive_does_not_make_the_call_it_approves(
    shop: Shop, tmp_path: Path, other: Runtime
) -> None:
    agent = shop.agent()
    async with hf.open(tmp_path / "s.db", agents=[agent], mirror=False) as runtime:
        asked = await asked_once(runtime, agent)
    await other.approve(asked.id, by="far")
    assert shop.done == []
    async with hf.open(tmp_path / "s.db", agents=[agent], mirror=False) as runtime:
        await ended(runtime)
        assert shop.done == [("7", 900)]


async def test_two_processes_use_one_budget(tmp_path: Path) -> None:
    def made() -> hf.Agent:
        said = reply(text("done"), usage=Usage(input=10))
        return hf.Agent("a", model=ScriptedModel([said] * 9), limits=hf.Limits(total=hf.Budget(tokens=30)))

    codes: list[str] = []
    one, two = made(), made()
    async with hf.open(tmp_path / "s.db", agents=[one]) as first, hf.open(tmp_path / "s.db", agents=[two]) as second:
        for number in range(4):
            runtime, agent = ((first, one), (second, two))[number % 2]
            turn = await runtime.session(f"s{number}", agent=agent).send("go")
            codes.append((await turn.outcome(timeout=SOON)).code)
    assert codes == ["", "", "", "total_tokens"]


# ---- clocks ----------------------------------------------------------------------------------------------------------


async def test_a_clock_that_is_set_back_denies_nothing_and_approves_nothing(shop: Shop, tmp_path: Path) -> None:
    clock = ManualClock()
    agent = shop.agent(policy=[hf.ask("refund", expires=60)])
    async with hf.open(tmp_path / "s.db", agents=[agent], clock=clock) as runtime:
        asked = await asked_once(runtime, agent)
    clock.jump(-HOUR)
    async with hf.open(tmp_path / "s.db", agents=[agent], clock=clock) as runtime:
        (still,) = await parked(runtime)
        assert (still.id, still.expires, shop.done) == (asked.id, asked.expires, [])
        await runtime.approve(asked.id, by="ops")
        await ended(runtime)
        assert shop.done == [("7", 900)]


async def test_a_question_whose_time_was_up_stays_closed_when_the_clock_is_set_back(shop: Shop, tmp_path: Path) -> None:
    clock = ManualClock()
    agent = shop.agent(policy=[hf.ask("refund", expires=60)])
    async with hf.open(tmp_path / "s.db", agents=[agent], clock=clock) as runtime:
        asked = await asked_once(runtime, agent)
    clock.advance(2 * MINUTE)
    async with hf.open(tmp_path / "s.db", agents=[agent], clock=clock) as runtime:
        (result,) = await told(runtime)
        clock.jump(-HOUR)
        with pytest.raises(ApprovalUnknown):
            await runtime.approve(asked.id, by="ops")
        assert (result.state, shop.done) == ("error", [])


async def test_an_answer_that_came_in_time_counts_when_the_clock_is_set_back_before_it_is_used(
    shop: Shop, tmp_path: Path
) -> None:
    clock = ManualClock()
    agent = shop.agent(policy=[hf.ask("refund", expires=60)])
    async with hf.open(tmp_path / "s.db", agents=[agent], clock=clock) as runtime:
        asked = await asked_once(runtime, agent)
    async with hf.open(tmp_path / "s.db", drive=False, clock=clock) as far:
        await far.approve(asked.id, by="ops")
    clock.jump(-HOUR)
    async with hf.open(tmp_path / "s.db", agents=[agent], clock=clock) as runtime:
        await ended(runtime)
        assert shop.done == [("7", 900)]


async def test_a_day_that_comes_twice_goes_on_with_its_budget() -> None:
    clock = ManualClock(wall=20_000 * 24 * HOUR + MINUTE)
    said = reply(text("done"), usage=Usage(input=10))
    agent = hf.Agent("a", model=ScriptedModel([said] * 9), limits=hf.Limits(daily=hf.Budget(tokens=10)))
    codes: list[str] = []
    async with hf.open(None, agents=[agent], clock=clock) as runtime:
        for jump in (0, -2 * MINUTE, 2 * MINUTE):
            clock.jump(jump)
            turn = await runtime.session("s", agent=agent).send("go")
            codes.append((await turn.outcome(timeout=SOON)).code)
    assert codes == ["", "", "daily_tokens"]
