"""`VirtualClock`: time that a test advances. What is due happens at once, in order, without real waiting."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from tests.patience import PATIENCE

import holdfast as hf
from holdfast.errors import InvalidArgument
from holdfast.testing import ScriptedModel, VirtualClock, call, cut, delayed, paced, stream, text

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path


@pytest.fixture
def clock() -> Generator[VirtualClock]:
    made = VirtualClock()
    yield made
    made.restore()


@pytest.fixture(params=["memory", "file"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return tmp_path / "store.db" if request.param == "file" else None


@hf.process
async def reminders(ctx: hf.ProcessContext) -> list[str]:
    moments: list[str] = []
    for hours in (36, 6, 1):
        await ctx.sleep(timedelta(hours=hours))
        moments.append(await ctx.step("now", lambda: "x"))
    return moments


async def test_a_process_sleeps_for_days_in_no_time(clock: VirtualClock, path: Path | None) -> None:
    begun = time.monotonic()
    async with hf.open(path, processes=[reminders], clock=clock) as runtime:
        process = await runtime.start(reminders)
        await clock.advance(days=1)
        assert await process.status() in {"running", "waiting"}
        await clock.advance(days=1)
        assert await process.result(timeout=PATIENCE) == ["x", "x", "x"]
    assert time.monotonic() - begun < PATIENCE


async def test_each_moment_comes_in_its_order_and_at_its_time(clock: VirtualClock) -> None:
    begun, seen = clock.now, list[tuple[str, float]]()

    async def sleeper(name: str, *pauses: float) -> None:
        for pause in pauses:
            await asyncio.sleep(pause)
            seen.append((name, round((clock.now - begun).total_seconds())))

    tasks = [asyncio.create_task(sleeper("a", 60, 60, 60)), asyncio.create_task(sleeper("b", 90, 3600))]
    await clock.advance(hours=1)
    assert seen == [("a", 60), ("b", 90), ("a", 120), ("a", 180)]
    await clock.advance(minutes=2)
    assert seen[4:] == [("b", 3690)]
    await asyncio.gather(*tasks)


async def test_a_schedule_fires_at_each_of_its_times(clock: VirtualClock, path: Path | None) -> None:
    ran: list[str] = []

    @hf.process
    async def digest(ctx: hf.ProcessContext, day: str) -> str:
        ran.append(day)
        return day

    async with hf.open(path, processes=[digest], clock=clock) as runtime:
        await runtime.every("digest", hf.cron("0 6 * * *", tz="UTC"), digest, day="{date}")
        start = clock.now
        await clock.advance(days=3)
    days = [(start + timedelta(days=number)).date().isoformat() for number in range(5)]
    assert len(ran) == 3
    assert ran == [day for day in days if day in ran]


async def test_an_approval_expires(clock: VirtualClock, path: Path | None) -> None:
    @hf.tool
    def refund(order_id: str) -> str:
        """Refund."""
        return order_id

    model = ScriptedModel([call("refund", order_id="7"), text("Nobody answered.")])
    policy = [hf.ask("refund", expires=timedelta(hours=24))]
    agent = hf.Agent("a", model=model, tools=[refund], policy=policy)
    async with hf.open(path, agents=[agent], clock=clock) as runtime:
        turn = await runtime.session("s", agent=agent).send("go")
        await clock.advance(hours=23)
        assert len(await runtime.approvals()) == 1
        await clock.advance(hours=2)
        assert await runtime.approvals() == []
        assert (await turn.outcome(timeout=PATIENCE)).text == "Nobody answered."


async def test_a_deadline_ends_a_turn_whose_model_is_slow(clock: VirtualClock, path: Path | None) -> None:
    agent = hf.Agent("a", model=ScriptedModel([delayed(7200, text("late"))]))
    async with hf.open(path, agents=[agent], clock=clock) as runtime:
        turn = await runtime.session("s", agent=agent).send("go", deadline=timedelta(hours=1))
        await clock.advance(hours=1, seconds=1)
        outcome = await turn.outcome(timeout=PATIENCE)
    assert (outcome.status, outcome.code) == ("limit", "deadline")


async def test_a_delayed_reply_comes_when_its_time_has_come(clock: VirtualClock, path: Path | None) -> None:
    agent = hf.Agent("a", model=ScriptedModel([delayed(7200, text("late"))]))
    async with hf.open(path, agents=[agent], clock=clock) as runtime:
        turn = await runtime.session("s", agent=agent).send("go")
        await clock.advance(hours=1)
        assert await turn.status() == "running"
        await clock.advance(hours=1)
        assert (await turn.outcome(timeout=PATIENCE)).text == "late"


async def test_a_tool_is_retried_after_its_pauses(clock: VirtualClock, path: Path | None) -> None:
    tries: list[float] = []
    begun = clock.now

    @hf.tool(read_only=True, retry=hf.ToolRetryPolicy(attempts=3, pause=60, longest=300))
    def flaky() -> str:
        """Fails twice."""
        tries.append(round((clock.now - begun).total_seconds()))
        if len(tries) < 3:
            raise ConnectionError
        return "ok"

    agent = hf.Agent("a", model=ScriptedModel([call(flaky), text("done")]), tools=[flaky])
    async with hf.open(path, agents=[agent], clock=clock) as runtime:
        turn = await runtime.session("s", agent=agent).send("go")
        await clock.advance(minutes=10)
        assert (await turn.outcome(timeout=PATIENCE)).ok
    assert tries == [0, 60, 180]


async def test_the_lease_of_a_working_turn_outlives_days(clock: VirtualClock, path: Path | None) -> None:
    agent = hf.Agent("a", model=ScriptedModel([delayed(86_400 * 30, text("at last"))]))
    async with hf.open(path, agents=[agent], clock=clock) as runtime:
        turn = await runtime.session("s", agent=agent).send("go")
        await clock.advance(days=31)
        outcome = await turn.outcome(timeout=PATIENCE)
    assert (outcome.text, outcome.steps) == ("at last", 1)


async def test_time_can_be_advanced_to_a_moment(clock: VirtualClock) -> None:
    moment = datetime(2100, 1, 1, tzinfo=UTC)
    await clock.advance(to=moment)
    assert moment <= clock.now < moment + timedelta(seconds=PATIENCE)
    with pytest.raises(InvalidArgument, match="past"):
        await clock.advance(to=datetime(2000, 1, 1, tzinfo=UTC))
    with pytest.raises(InvalidArgument, match="past"):
        await clock.advance(days=-1)


async def test_the_loop_gets_its_own_time_back(clock: VirtualClock) -> None:
    loop = asyncio.get_running_loop()
    before = loop.time()
    await clock.advance(days=1)
    assert loop.time() > before + 86_000
    timer = loop.call_later(60, lambda: None)
    clock.restore()
    assert loop.time() < before + PATIENCE
    assert timer.when() < loop.time() + 61
    timer.cancel()


async def test_the_pieces_of_a_paced_reply_come_one_by_one(clock: VirtualClock) -> None:
    begun, seen = clock.now, list[tuple[str, int]]()
    agent = hf.Agent("a", model=ScriptedModel([paced(10, stream("one ", "two ", "three"))]))
    async with hf.open(None, agents=[agent], clock=clock) as runtime:
        turn = await runtime.session("s", agent=agent).send("go")

        async def watch() -> None:
            async for event in turn.events():
                if isinstance(event, hf.TextDelta):
                    seen.append((event.text, round((clock.now - begun).total_seconds())))

        watching = asyncio.create_task(watch())
        await clock.advance(seconds=25)
        assert seen == [("one ", 10), ("two ", 20)]
        await clock.advance(seconds=10)
        await watching
        assert (await turn.outcome()).text == "one two three"


async def test_a_paced_stream_that_is_cut_fails_as_a_cut_one(clock: VirtualClock) -> None:
    agent = hf.Agent("a", model=ScriptedModel(lambda _: paced(60, cut("half"))))
    async with hf.open(None, agents=[agent], clock=clock) as runtime:
        turn = await runtime.session("s", agent=agent).send("go")
        await clock.advance(minutes=30)
        assert (await turn.outcome(timeout=PATIENCE)).status == "failed"
