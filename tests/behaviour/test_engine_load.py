"""Many sessions at once: within a bound, all of them in the end, and those that talk to each other."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final

import pytest
from tests.patience import PATIENCE, stopwatch

import holdfast as hf
from holdfast.errors import InvalidNumber
from holdfast.runtime.drive import TURNSTILE_WIDTH
from holdfast.runtime.runtime import MAX_RUNTIMES
from holdfast.testing import ScriptedModel, call, check, text

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.testing.scripted import ScriptReply

BOUND: Final = 4


class Crowd:
    """An agent that counts how many of its sessions are being driven at once; the first wait for so many `together`."""

    def __init__(self, together: int = 1) -> None:
        self.now = 0
        self.most = 0
        met = asyncio.Event()

        async def reply(_: hf.ModelRequest) -> ScriptReply:
            self.now += 1
            self.most = max(self.most, self.now)
            if self.now == together:
                met.set()
            await asyncio.wait_for(met.wait(), PATIENCE)
            await asyncio.sleep(0.005)
            self.now -= 1
            return text("done")

        self.agent = hf.Agent("crowd", model=ScriptedModel(reply))


async def _all_done(runtime: hf.Runtime, agent: hf.Agent, count: int) -> list[hf.TurnOutcome]:
    turns = await asyncio.gather(*(runtime.session(f"s{number}", agent=agent).send("go") for number in range(count)))
    return await asyncio.gather(*(turn.outcome(timeout=3 * PATIENCE) for turn in turns))


async def test_never_more_sessions_than_the_bound_are_driven_at_once(tmp_path: Path) -> None:
    crowd = Crowd(BOUND)
    async with hf.open(tmp_path / "store.db", agents=[crowd.agent], concurrency=BOUND) as runtime:
        await _all_done(runtime, crowd.agent, 40)
    assert crowd.most == BOUND


async def test_sessions_above_the_bound_wait_and_are_all_done(tmp_path: Path) -> None:
    crowd = Crowd()
    async with hf.open(tmp_path / "store.db", agents=[crowd.agent], concurrency=BOUND) as runtime:
        outcomes = await _all_done(runtime, crowd.agent, 40)
    assert [outcome.text for outcome in outcomes] == ["done"] * 40


async def test_what_was_accepted_before_the_opening_is_driven_within_the_bound(tmp_path: Path) -> None:
    crowd = Crowd(BOUND)
    async with hf.open(tmp_path / "store.db", agents=[crowd.agent], drive=False) as accepting:
        for number in range(30):
            await accepting.session(f"s{number}", agent=crowd.agent).send("go")
    async with hf.open(tmp_path / "store.db", agents=[crowd.agent], concurrency=BOUND) as runtime:
        for number in range(30):
            assert (await runtime.session(f"s{number}").turn("t1").outcome(timeout=3 * PATIENCE)).ok
    assert crowd.most == BOUND


async def test_more_sessions_than_one_page_of_work_are_all_driven(tmp_path: Path) -> None:
    crowd, limits = Crowd(), hf.StoreLimits(page=7)
    async with hf.open(tmp_path / "store.db", agents=[crowd.agent], drive=False) as accepting:
        for number in range(30):
            await accepting.session(f"s{number}", agent=crowd.agent).send("go")
    async with hf.open(tmp_path / "store.db", agents=[crowd.agent], concurrency=BOUND, limits=limits) as runtime:
        for number in range(30):
            assert (await runtime.session(f"s{number}").turn("t1").outcome(timeout=3 * PATIENCE)).ok


async def test_sessions_of_other_agents_ahead_of_ours_do_not_hide_them(tmp_path: Path) -> None:
    crowd, theirs = Crowd(), hf.Agent("elsewhere", model=ScriptedModel([]))
    limits = hf.StoreLimits(page=5)
    async with hf.open(tmp_path / "store.db", agents=[crowd.agent, theirs], drive=False) as accepting:
        for number in range(20):
            await accepting.session(f"a{number}", agent=theirs).send("go")
        await accepting.session("ours", agent=crowd.agent).send("go")
    async with hf.open(tmp_path / "store.db", agents=[crowd.agent], concurrency=1, limits=limits) as runtime:
        assert (await runtime.session("ours").turn("t1").outcome(timeout=PATIENCE)).ok


async def test_a_parked_session_gives_its_place_to_the_next(tmp_path: Path) -> None:
    @hf.tool
    async def ask(ctx: hf.Context) -> str:
        """Ask somebody."""
        return str(await ctx.wait("answer"))

    asking = hf.Agent("asking", model=ScriptedModel([call(ask), text("done")]), tools=[ask], policy=[hf.allow("*")])
    crowd = Crowd()
    async with hf.open(tmp_path / "store.db", agents=[asking, crowd.agent], concurrency=1) as runtime:
        parked = [await runtime.session(f"p{number}", agent=asking).send("go") for number in range(3)]
        assert all(outcome.ok for outcome in await _all_done(runtime, crowd.agent, 3))
        for turn in parked:
            while not (waits := await runtime.waits(turn.session)):  # there is no event for this
                await asyncio.sleep(0.01)
            await runtime.resolve(runtime.wait_token(turn.session, waits[0].name), "yes")
            assert (await turn.outcome(timeout=PATIENCE)).ok


@pytest.mark.parametrize("bound", [0, -1, True, 1.5], ids=str)
def test_a_bound_that_is_no_number_above_zero_is_refused(bound: object) -> None:
    async def attempt() -> None:
        async with hf.open(None, concurrency=bound):  # pyright: ignore[reportArgumentType]
            pass

    with pytest.raises(InvalidNumber):
        asyncio.run(attempt())


@pytest.mark.parametrize("lease", [0, 1, True, 2.5], ids=str)
def test_a_lease_that_is_too_short_is_refused(lease: object) -> None:
    async def attempt() -> None:
        async with hf.open(None, lease_ms=lease):  # pyright: ignore[reportArgumentType]
            pass

    with pytest.raises(InvalidNumber):
        asyncio.run(attempt())


async def test_turns_of_one_session_are_driven_in_the_order_of_their_inputs(tmp_path: Path) -> None:
    model = ScriptedModel(lambda request: text(f"answer {request.position}"))
    agent = hf.Agent("plain", model=model)
    async with hf.open(tmp_path / "store.db", agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        turns = [await session.send(f"question {number}") for number in range(10)]
        outcomes = [await turn.outcome(timeout=PATIENCE) for turn in turns]
    assert [outcome.text for outcome in outcomes] == [f"answer {number}" for number in range(10)]


# ---- sessions that talk to each other --------------------------------------------------------------------------------


class Letters:
    """An agent that writes to a session: to another one, or to its own."""

    def __init__(self, *, waits: bool = False) -> None:
        self.runtime: hf.Runtime | None = None

        @hf.tool
        async def write(ctx: hf.Context, to: str) -> str:
            """Write to a session."""
            assert self.runtime is not None
            turn = await self.runtime.session(to, agent="reader").send("a letter", key=ctx.idempotency_key)
            return (await turn.outcome(timeout=PATIENCE)).text if waits else turn.id

        def reply(request: hf.ModelRequest) -> ScriptReply:
            last = request.messages[-1]
            if isinstance(last, hf.UserMessage) and last.text.startswith("write to "):
                return call(write, to=last.text.removeprefix("write to "))
            return text(f"read: {last.text}" if isinstance(last, hf.UserMessage) else "written")

        self.agent = hf.Agent("reader", model=ScriptedModel(reply), tools=[write], policy=[hf.allow("*")])


async def test_a_tool_may_write_to_another_session(tmp_path: Path) -> None:
    letters = Letters()
    async with hf.open(tmp_path / "store.db", agents=[letters.agent]) as runtime:
        letters.runtime = runtime
        await (await runtime.session("a", agent="reader").send("write to b")).outcome(timeout=PATIENCE)
        assert (await runtime.session("b").turn("t1").outcome(timeout=PATIENCE)).text == "read: a letter"


async def test_a_tool_may_wait_for_the_answer_of_another_session(tmp_path: Path) -> None:
    letters = Letters(waits=True)
    async with hf.open(tmp_path / "store.db", agents=[letters.agent]) as runtime:
        letters.runtime = runtime
        await (await runtime.session("a", agent="reader").send("write to b")).outcome(timeout=PATIENCE)
        (results,) = [said for said in await runtime.session("a").history() if isinstance(said, hf.ToolMessage)]
    assert results.results[0].content == "read: a letter"


async def test_a_tool_may_write_to_its_own_session_which_answers_in_its_next_turn(tmp_path: Path) -> None:
    letters = Letters()
    async with hf.open(tmp_path / "store.db", agents=[letters.agent]) as runtime:
        letters.runtime = runtime
        first = await runtime.session("a", agent="reader").send("write to a")
        assert (await first.outcome(timeout=PATIENCE)).text == "written"
        assert (await runtime.session("a").turn("t2").outcome(timeout=PATIENCE)).text == "read: a letter"


async def test_what_a_tool_began_in_another_session_outlives_the_turn_of_the_tool(tmp_path: Path) -> None:
    """The other session is driven on its own behalf: cancelling the writer does not stop it."""
    letters, go_on, entered = Letters(waits=True), asyncio.Event(), asyncio.Event()

    async def slow(request: hf.ModelRequest) -> ScriptReply:
        last = request.messages[-1]
        if isinstance(last, hf.UserMessage) and last.text.startswith("write to "):
            return call("write", to="b")
        entered.set()
        await go_on.wait()
        return text("read")

    agent = hf.Agent(
        "reader", model=ScriptedModel(slow), tools=list(letters.agent.tools.values()), policy=[hf.allow("*")]
    )
    async with hf.open(tmp_path / "store.db", agents=[agent]) as runtime:
        letters.runtime = runtime
        writing = await runtime.session("a", agent=agent).send("write to b")
        await entered.wait()
        await writing.cancel("enough")
        assert (await writing.outcome(timeout=PATIENCE)).status == "cancelled"
        go_on.set()
        assert (await runtime.session("b").turn("t1").outcome(timeout=PATIENCE)).text == "read"


# ---- smoke -----------------------------------------------------------------------------------------------------------


async def test_five_hundred_sessions_of_one_turn_each_are_done_in_good_time(tmp_path: Path) -> None:
    @hf.tool
    async def note(ctx: hf.Context) -> str:
        """Remember who was here."""
        noted.append(ctx.session)
        return "noted"

    noted: list[str] = []
    agent = hf.Agent("noting", model=ScriptedModel([call(note), text("done")]), tools=[note], policy=[hf.allow("*")])
    async with hf.open(tmp_path / "store.db", agents=[agent]) as runtime:
        began = time.process_time()  # of our own: others use this machine, too
        outcomes = await _all_done(runtime, agent, 500)
        took = time.process_time() - began
        assert await check(runtime.store) == []
    assert {outcome.status for outcome in outcomes} == {"completed"}
    assert sorted(noted) == sorted(f"s{number}" for number in range(500))
    assert took < 15


async def test_a_message_sent_right_after_an_outcome_does_not_wait_for_the_next_look_at_the_store(
    tmp_path: Path,
) -> None:
    """The notice reaches a drive that is past its last look: the engine looks again when that drive has ended."""
    agent = hf.Agent("quick", model=ScriptedModel(lambda _: text("done")))
    turns = 20
    async with hf.open(tmp_path / "store.db", agents=[agent]) as runtime, stopwatch() as watch:
        session = runtime.session("s", agent=agent)
        for _ in range(turns):
            await (await session.send("go")).outcome(timeout=PATIENCE)
    assert watch.seconds < turns * 0.04  # each would wait for 0.05 s


async def test_many_runs_at_once_leave_the_event_loop_to_others() -> None:
    """Each `hf.run` opens a runtime of its own; together they take no more steps in a round than sessions of one."""
    rounds, replies = 0, Counter[int]()

    async def count_rounds() -> None:
        nonlocal rounds
        while True:
            rounds += 1
            await asyncio.sleep(0)

    def reply(_: hf.ModelRequest) -> ScriptReply:
        replies[rounds] += 1
        return text("done")

    agent = hf.Agent("quick", model=ScriptedModel(reply))
    counting = asyncio.create_task(count_rounds())
    outcomes = await asyncio.gather(*(hf.run(agent, "go") for _ in range(100)))
    counting.cancel()
    assert all(outcome.ok for outcome in outcomes)
    assert max(replies.values()) <= TURNSTILE_WIDTH


async def test_many_runtimes_of_one_process_on_one_store_get_their_work_done(tmp_path: Path) -> None:
    agent = hf.Agent("quick", model=ScriptedModel(lambda _: text("done")))

    async def ask(number: int) -> hf.TurnOutcome:
        async with hf.open(tmp_path / "store.db", agents=[agent]) as runtime:
            return await runtime.run(agent, "go", session=f"s{number}")

    outcomes = await asyncio.wait_for(asyncio.gather(*map(ask, range(MAX_RUNTIMES))), 3 * PATIENCE)
    assert all(outcome.ok for outcome in outcomes)


async def test_one_runtime_too_many_on_one_store_is_refused_by_name(tmp_path: Path) -> None:
    async with AsyncExitStack() as opened:
        for _ in range(MAX_RUNTIMES):
            await opened.enter_async_context(hf.open(tmp_path / "store.db"))
        await opened.enter_async_context(hf.open(tmp_path / "store.db", drive=False))
        with pytest.raises(hf.errors.TooManyRuntimes, match="open it once and share the runtime"):
            await opened.enter_async_context(hf.open(tmp_path / "store.db"))
    async with hf.open(tmp_path / "store.db"):
        pass  # those that were closed do not count
