"""Cancels, deadlines and steering that come at the worst moment: while the store is slow, full or out of order."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest
from tests.behaviour.talk import SOON, is_now, until

import holdfast as hf
from holdfast.errors import StoreFailed
from holdfast.records import Ended, Parked
from holdfast.runtime.runtime import Runtime, context_of
from holdfast.store.client import Store
from holdfast.store.contract import StoreLimits
from holdfast.testing import MemoryBackend, ScriptedModel, call, text

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence

    from holdfast.records import Record
    from holdfast.store.client import WorkOverview
    from holdfast.store.contract import Head, Input, Lease

A_MOMENT = 0.2


class _Slow(Store):
    """A store that does something else before it answers, where a test wants it to."""

    def __init__(self, limits: StoreLimits | None = None) -> None:
        super().__init__(MemoryBackend(limits=limits))
        self.on_pending: Callable[[list[Input]], Awaitable[None]] | None = None
        self.on_release: Callable[[], Awaitable[None]] | None = None
        self.holds: Callable[[Sequence[Record]], bool] = _nothing
        self.fails: Callable[[Sequence[Record]], bool] = _nothing
        self.held = asyncio.Event()
        self.let_go = asyncio.Event()
        self.looks = 0
        self.tells = 0

    async def pending(self, journal: str, limit: int | None = None, *, after: int = 0) -> list[Input]:
        found = await super().pending(journal, limit, after=after)
        if self.on_pending is not None:
            await self.on_pending(found)
        return found

    def append_own(self, lease: Lease, added: Sequence[Record], *options: Any, **named: Any) -> asyncio.Future[Head]:
        if self.fails(added):
            self.fails = _nothing
            failed: asyncio.Future[Head] = asyncio.get_running_loop().create_future()
            failed.set_exception(StoreFailed("one write failed"))
            return failed
        answer = super().append_own(lease, added, *options, **named)
        if not self.holds(added):
            return answer
        self.holds = _nothing
        return asyncio.ensure_future(self._later(answer))

    async def _later(self, answer: asyncio.Future[Head]) -> Head:
        head = await answer
        self.held.set()
        await self.let_go.wait()
        return head

    def release(self, lease: Lease, *, seen: int | None = None) -> asyncio.Future[None]:
        return asyncio.ensure_future(self._released(super().release(lease, seen=seen)))

    async def _released(self, answer: asyncio.Future[None]) -> None:
        await answer
        hold, self.on_release = self.on_release, None
        if hold is not None:
            await hold()

    async def poll_work(self, driven: Sequence[str]) -> WorkOverview:
        found = await super().poll_work(driven)
        self.looks += 1
        self.tells += 1
        return found


def _nothing(_: Sequence[Record]) -> bool:
    return False


def _parks(added: Sequence[Record]) -> bool:
    return any(isinstance(record, Parked) for record in added)


def _ends(added: Sequence[Record]) -> bool:
    return any(isinstance(record, Ended) for record in added)


def _cancels(found: list[Input]) -> list[Input]:
    return [one for one in found if one.key.startswith("holdfast/cancel/")]


class _Stage:
    """Tools that hold where a test wants them, and a store in which a race can be arranged."""

    def __init__(self, limits: StoreLimits | None = None) -> None:
        self.store = _Slow(limits)
        self.reached = asyncio.Event()
        self.go_on = asyncio.Event()

    def agent(self, script: Any, name: str = "a", **options: Any) -> hf.Agent:
        @hf.tool(read_only=True)
        async def reads() -> str:
            self.reached.set()
            await self.go_on.wait()
            return "read"

        @hf.tool
        async def asks(ctx: hf.Context) -> str:
            return str(await ctx.wait("go"))

        return hf.Agent(name, model=ScriptedModel(script), tools=[reads, asks], policy=[hf.allow("*")], **options)

    async def running(self) -> None:
        await asyncio.wait_for(self.reached.wait(), SOON)

    async def told(self) -> None:
        """The engine has told those who drive what came from elsewhere."""
        before = self.store.tells
        await until(lambda: _at_least(self, before + 1))

    @asynccontextmanager
    async def opened(self, *agents: hf.Agent, **options: Any) -> AsyncGenerator[hf.Runtime]:
        async with Runtime(self.store, agents, **options) as runtime:
            yield runtime
            self.go_on.set()
            self.store.let_go.set()


@pytest.fixture
async def stage() -> AsyncIterator[_Stage]:
    made = _Stage()
    async with made.store:
        yield made


async def _within(seconds: float, condition: asyncio.Event) -> None:
    """Wait for what may never be, but not for long."""
    with suppress(TimeoutError):
        await asyncio.wait_for(condition.wait(), seconds)


async def _at_least(stage: _Stage, tells: int) -> bool:
    return stage.store.tells >= tells


# ---- a look at the inbox that is overtaken by its turn ---------------------------------------------------------------


class _SlowReading:
    """The tool of the first turn ends while the inbox is being read; the turn must not go on before that is over."""

    def __init__(self, stage: _Stage) -> None:
        self.stage = stage
        self.asked_again = asyncio.Event()
        self.agent = stage.agent([call("reads"), self._again])

    async def _again(self, request: hf.ModelRequest) -> Any:
        self.asked_again.set()
        return text("second")

    async def happens(self) -> None:
        self.stage.store.on_pending = None
        self.stage.go_on.set()
        await _within(A_MOMENT, self.asked_again)
        assert not self.asked_again.is_set()


async def test_a_cancel_that_is_being_read_as_a_tool_ends_stops_its_turn_and_not_the_next_one(stage: _Stage) -> None:
    race = _SlowReading(stage)

    async def on_pending(found: list[Input]) -> None:
        if _cancels(found):
            await race.happens()

    async with stage.opened(race.agent) as runtime:
        session = runtime.session("s", agent=race.agent)
        first = await session.send("one")
        await stage.running()
        second = await session.send("two")
        stage.store.on_pending = on_pending
        await first.cancel("in time")
        assert (await first.outcome(timeout=SOON)).message == "in time"
        assert (await second.outcome(timeout=SOON)).text == "second"


async def test_a_cancel_that_is_being_read_as_a_tool_ends_does_not_strand_the_session(stage: _Stage) -> None:
    race = _SlowReading(stage)

    async def on_pending(found: list[Input]) -> None:
        if _cancels(found):
            await race.happens()

    async with stage.opened(race.agent) as runtime:
        first = await runtime.session("s", agent=race.agent).send("one")
        await stage.running()
        stage.store.on_pending = on_pending
        await first.cancel("in time")
        following = await runtime.session("s").send("two")
        assert (await following.outcome(timeout=SOON)).text == "second"


async def test_a_deadline_that_passes_as_the_inbox_is_read_stops_its_turn_and_not_the_next_one(stage: _Stage) -> None:
    race = _SlowReading(stage)

    async def on_pending(found: list[Input]) -> None:
        if stage.store.clock.read().wall >= due:
            await race.happens()

    async with stage.opened(race.agent) as runtime:
        session = runtime.session("s", agent=race.agent)
        due = stage.store.clock.read().wall + 300
        first = await session.send("one", deadline=0.3)
        await stage.running()
        second = await session.send("two")
        stage.store.on_pending = on_pending
        assert (await first.outcome(timeout=SOON)).status == "limit"
        assert (await second.outcome(timeout=SOON)).text == "second"


# ---- a cancel while something else is being written ------------------------------------------------------------------


@pytest.mark.parametrize("where", ["here", "elsewhere"])
async def test_a_cancel_that_comes_while_the_turn_parks_is_honoured(stage: _Stage, where: str) -> None:
    agent = stage.agent([call("asks"), text("never")])
    looked = asyncio.Event()

    async def on_pending(found: list[Input]) -> None:
        if _cancels(found):
            looked.set()

    stage.store.holds, stage.store.on_pending = _parks, on_pending
    async with stage.opened(agent) as runtime, stage.opened(drive=False) as other:
        turn = await runtime.session("s", agent=agent).send("go")
        await asyncio.wait_for(stage.store.held.wait(), SOON)
        asking = runtime if where == "here" else other
        assert await asking.session("s").turn("t1").cancel("enough") == "requested"
        await _within(A_MOMENT, looked)
        stage.store.let_go.set()
        assert (await turn.outcome(timeout=SOON)).message == "enough"


async def test_a_cancel_that_comes_while_a_queued_turn_is_being_ended_is_honoured(stage: _Stage) -> None:
    agent = stage.agent([call("reads"), text("never")])
    async with stage.opened(agent) as runtime:
        session = runtime.session("s", agent=agent)
        running = await session.send("one")
        await stage.running()
        queued = await session.send("two")
        stage.store.holds = _ends
        await queued.cancel("all")
        await asyncio.wait_for(stage.store.held.wait(), SOON)
        await running.cancel("all")
        await stage.told()
        stage.store.let_go.set()
        assert (await running.outcome(timeout=SOON)).message == "all"


async def test_a_cancel_that_stands_behind_pages_of_inputs_is_honoured() -> None:
    stage = _Stage(StoreLimits(page=5))
    agent = stage.agent([call("reads"), text("never")])
    async with stage.store, stage.opened(agent) as runtime:
        session = runtime.session("s", agent=agent)
        running = await session.send("one")
        await stage.running()
        queued = [await session.send(f"and {number}") for number in range(12)]
        for turn in (*queued, running):
            await turn.cancel("all")
        assert (await running.outcome(timeout=SOON)).message == "all"


async def test_a_cancel_gets_into_an_inbox_that_is_full() -> None:
    stage = _Stage(StoreLimits(pending_inputs=3))
    agent = stage.agent([call("reads"), *[text("next")] * 3])
    async with stage.store, stage.opened(agent) as runtime:
        session = runtime.session("s", agent=agent)
        running = await session.send("one")
        await stage.running()
        for number in range(3):
            await session.send(f"and {number}")
        assert await running.cancel("enough") == "requested"
        assert (await running.outcome(timeout=SOON)).message == "enough"


async def test_a_cancel_is_not_forgotten_when_the_inbox_can_not_be_read(stage: _Stage) -> None:
    agent = stage.agent([call("reads"), text("never")])
    failures: list[StoreFailed] = []

    async def on_pending(found: list[Input]) -> None:
        if _cancels(found) and not failures:
            failures.append(StoreFailed("one read failed"))
            raise failures[0]

    async with stage.opened(agent) as runtime, stage.opened(drive=False) as other:
        turn = await runtime.session("s", agent=agent).send("one")
        await stage.running()
        stage.store.on_pending = on_pending
        await other.session("s").turn("t1").cancel("enough")
        assert (await turn.outcome(timeout=SOON)).message == "enough"


# ---- steering --------------------------------------------------------------------------------------------------------


async def test_steering_that_is_cancelled_as_a_checkpoint_comes_enters_once_or_never(stage: _Stage) -> None:
    asked = asyncio.Event()
    asks: list[hf.ModelRequest] = []

    def second(request: hf.ModelRequest) -> Any:
        asks.append(request)
        asked.set()
        return text("done")

    agent = stage.agent([call("reads"), second, text("done")])
    async with stage.opened(agent) as runtime, stage.opened(drive=False) as other:
        session = runtime.session("s", agent=agent)
        running = await session.send("one")
        await stage.running()
        queued = [await session.send("two"), await session.send("three"), await session.send("steer", steer=True)]
        stage.store.holds = _ends
        await asyncio.gather(*(other.session("s").turn(turn.id).cancel("all") for turn in queued))
        await asyncio.wait_for(stage.store.held.wait(), SOON)
        stage.go_on.set()
        await _within(A_MOMENT, asked)
        stage.store.let_go.set()
        assert ((await running.outcome(timeout=SOON)).text, len(asks)) == ("done", 1)
        assert [(await turn.outcome(timeout=SOON)).message for turn in queued] == ["all"] * 3


async def test_a_cancel_of_steering_that_has_entered_stops_the_turn_that_it_entered(stage: _Stage) -> None:
    entered = asyncio.Event()

    async def second(request: hf.ModelRequest) -> Any:
        entered.set()
        await asyncio.Event().wait()

    agent = stage.agent([call("reads"), second])
    async with stage.opened(agent) as runtime:
        session = runtime.session("s", agent=agent)
        running = await session.send("one")
        await stage.running()
        steering = await session.send("steer", steer=True)
        stage.go_on.set()
        await asyncio.wait_for(entered.wait(), SOON)
        await context_of(runtime).sessions.request_stop("s", steering.id, "by its own name")
        assert (await running.outcome(timeout=SOON)).message == "by its own name"


async def test_steering_is_over_at_its_deadline_while_the_turn_is_in_a_tool(stage: _Stage) -> None:
    agent = stage.agent([call("reads"), text("done")])
    async with stage.opened(agent) as runtime:
        session = runtime.session("s", agent=agent)
        await session.send("one")
        await stage.running()
        steering = await session.send("hurry", steer=True, deadline=0.1)
        assert (await steering.outcome(timeout=SOON)).code == "deadline"


# ---- no room, no peace -----------------------------------------------------------------------------------------------


async def test_a_turn_that_waits_for_a_free_slot_can_be_cancelled(stage: _Stage) -> None:
    agent = stage.agent([call("reads"), text("done")])
    async with stage.opened(agent, concurrency=1) as runtime:
        await runtime.session("busy", agent=agent).send("go")
        await stage.running()
        waiting = await runtime.session("waiting", agent=agent).send("go")
        await waiting.cancel("enough")
        assert (await waiting.outcome(timeout=SOON)).message == "enough"


async def test_a_turn_that_waits_for_a_free_slot_is_over_at_its_deadline(stage: _Stage) -> None:
    agent = stage.agent([call("reads"), text("done")])
    async with stage.opened(agent, concurrency=1) as runtime:
        await runtime.session("busy", agent=agent).send("go")
        await stage.running()
        waiting = await runtime.session("waiting", agent=agent).send("go", deadline=0.1)
        assert (await waiting.outcome(timeout=SOON)).code == "deadline"


async def test_a_stop_without_a_free_slot_leaves_the_next_input_of_its_session_in_the_queue(stage: _Stage) -> None:
    agent = stage.agent([call("reads"), text("done")])
    quick = stage.agent([text("quick")], "quick")
    async with stage.opened(agent, quick, concurrency=1) as runtime:
        await runtime.session("busy", agent=agent).send("go")
        await stage.running()
        session = runtime.session("waiting", agent=quick)
        cancelled, kept = await session.send("one"), await session.send("two")
        await cancelled.cancel("enough")
        await cancelled.outcome(timeout=SOON)
        assert await kept.status() == "queued"
        stage.go_on.set()
        assert (await kept.outcome(timeout=SOON)).text == "quick"


async def test_a_turn_whose_end_could_not_be_written_keeps_its_deadline(stage: _Stage) -> None:
    failed = asyncio.Event()

    def fails(added: Sequence[Record]) -> bool:
        if _ends(added):
            failed.set()
        return failed.is_set()

    agent = stage.agent([call("asks"), text("done"), call("asks"), text("all done")])
    async with stage.opened(agent) as runtime:
        session = runtime.session("s", agent=agent)
        turn = await session.send("one", deadline=60)
        await until(lambda: is_now(turn, "waiting"))
        stage.store.fails = fails
        (wait,) = await runtime.waits("s")
        await runtime.resolve(runtime.wait_token("s", wait.name), 1)
        await asyncio.wait_for(failed.wait(), SOON)
        await session.send("and more", steer=True)
        await until(lambda: _waits_for(runtime, "t1/7.tools/1.asks/go"))
        (deadline,) = [found for found in await stage.store.waits("s") if "deadline" in found.name]
        assert deadline.state == "open"


async def _waits_for(runtime: hf.Runtime, name: str) -> bool:
    return name in [wait.name for wait in await runtime.waits("s")]


async def test_what_comes_between_the_release_of_a_lease_and_the_end_of_its_drive_is_driven_then(stage: _Stage) -> None:
    released, go_on = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        released.set()
        await go_on.wait()

    agent = stage.agent([text("one"), text("two")])
    async with stage.opened(agent) as runtime:
        session = runtime.session("s", agent=agent)
        stage.store.on_release = hold
        await session.send("first")
        await asyncio.wait_for(released.wait(), SOON)
        second = await session.send("second")
        before = stage.store.looks
        await until(lambda: stage.store.looks > before)  # the engine has seen the work, and the drive that still ends
        go_on.set()
        assert (await second.outcome(timeout=SOON)).text == "two"


async def test_two_runtimes_on_one_store_leave_each_other_in_peace(stage: _Stage) -> None:
    agent = stage.agent([call("reads"), text("done")])
    async with stage.opened(agent) as one, stage.opened(agent):
        turn = await one.session("s", agent=agent).send("go")
        await stage.running()
        before = stage.store.looks
        with pytest.raises(TimeoutError):
            await turn.outcome(timeout=0.5)
        assert stage.store.looks - before < 10
        stage.go_on.set()
        await turn.outcome(timeout=SOON)
