"""A task can be cancelled at any time: once, with one terminal record and one notification, without resurrection."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from tests.behaviour.background import (
    BUDGET,
    SESSION,
    Held,
    Stubborn,
    agent_with,
    asked,
    ended_task,
    result,
    the_task,
    told,
)
from tests.behaviour.talk import SOON, states, until

import holdfast as hf
from holdfast.errors import HoldfastError, TaskUnknown
from holdfast.records import Cancelled, Ended, Unknown
from holdfast.runtime.runtime import context_of
from holdfast.testing import check

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from holdfast.runtime.runtime import Runtime

KINDS: dict[str, dict[str, Any]] = {"acting": {}, "idempotent": {"idempotent": True}, "reading": {"read_only": True}}
THREADS = 8
ROUNDS = 3
CLEAN_UP = 0.2
"""How long a tool cleans up, in seconds: less than the grace of half a second."""


@pytest.fixture
async def held() -> Held:
    return Held()


@pytest.fixture
async def stubborn() -> AsyncGenerator[Stubborn]:
    made = Stubborn()
    yield made
    made.free = True
    await asyncio.sleep(2 * BUDGET)


async def _spilled(runtime: Runtime, agent: hf.Agent) -> str:
    await asked(runtime, agent)
    return (await the_task(runtime)).id


# ---- while it runs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
async def test_a_task_that_is_cancelled_is_stopped_and_ends_as_cancelled(held: Held, kind: str) -> None:
    agent = agent_with(held.tool(**KINDS[kind]))
    async with hf.open(None, agents=[agent]) as runtime:
        id = await _spilled(runtime, agent)
        assert await runtime.tasks.cancel(id, "no longer wanted") == "requested"
        task = await ended_task(runtime)
        assert (task.status, held.ended) == ("cancelled", ["cancelled"])


async def test_the_reason_of_a_cancelled_task_is_recorded(held: Held) -> None:
    agent = agent_with(held.tool())
    async with hf.open(None, agents=[agent]) as runtime:
        await runtime.tasks.cancel(await _spilled(runtime, agent), "no longer wanted")
        error = (await ended_task(runtime)).error
        assert error is not None
        assert error.message == "no longer wanted"


async def test_the_session_learns_once_that_its_task_was_cancelled(held: Held) -> None:
    agent = agent_with(held.tool())
    async with hf.open(None, agents=[agent]) as runtime:
        await runtime.tasks.cancel(await _spilled(runtime, agent))
        assert [notice.kind for notice in await told(runtime.store)] == ["task_cancelled"]


@pytest.mark.parametrize(("kind", "outcome"), [("acting", Unknown), ("idempotent", Unknown), ("reading", Cancelled)])
async def test_of_a_call_that_acts_nobody_says_that_it_had_no_effect(
    held: Held, kind: str, outcome: type[object]
) -> None:
    agent = agent_with(held.tool(**KINDS[kind]))
    async with hf.open(None, agents=[agent]) as runtime:
        await runtime.tasks.cancel(await _spilled(runtime, agent))
        assert isinstance((await ended_task(runtime)).outcome, outcome)


async def test_the_second_request_to_cancel_changes_nothing(held: Held) -> None:
    agent = agent_with(held.tool())
    async with hf.open(None, agents=[agent]) as runtime:
        id = await _spilled(runtime, agent)
        answers = await asyncio.gather(runtime.tasks.cancel(id, "first"), runtime.tasks.cancel(id, "second"))
        assert answers == ["requested", "already_requested"]


async def test_the_first_reason_counts(held: Held) -> None:
    agent = agent_with(held.tool())
    async with hf.open(None, agents=[agent]) as runtime:
        id = await _spilled(runtime, agent)
        await asyncio.gather(*(runtime.tasks.cancel(id, f"reason {number}") for number in range(5)))
        error = (await ended_task(runtime)).error
        assert error is not None
        assert error.message == "reason 0"


async def test_a_task_that_comes_to_its_end_although_it_is_cancelled_keeps_what_it_gave() -> None:
    @hf.tool(inline_budget=BUDGET)
    async def swallows() -> str:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(SOON)
        return "as if nothing had happened"

    agent = agent_with(swallows)
    async with hf.open(None, agents=[agent]) as runtime:
        await runtime.tasks.cancel(await _spilled(runtime, agent))
        task = await ended_task(runtime)
        assert (task.status, await runtime.tasks.result(task)) == ("succeeded", b'"as if nothing had happened"')


async def test_a_task_that_does_not_listen_is_given_up_when_it_is_cancelled(stubborn: Stubborn) -> None:
    agent = agent_with(stubborn.tool(inline_budget=BUDGET))
    async with hf.open(None, agents=[agent]) as runtime:
        await runtime.tasks.cancel(await _spilled(runtime, agent))
        assert (await ended_task(runtime)).status == "cancelled"


@pytest.mark.parametrize("options", [{}, {"timeout": 60}], ids=["untimed", "timed"])
async def test_a_cancelled_task_has_time_to_clean_up(options: dict[str, Any], tmp_path: Path) -> None:
    """Longer than the engine takes to look at the store again, and other news of the task does not cut it off."""
    cleaned: list[str] = []

    @hf.tool(inline_budget=BUDGET, **options)
    async def tidy() -> str:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(CLEAN_UP)
            cleaned.append("done")
        return "never"

    agent = agent_with(tidy)
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        id = await _spilled(runtime, agent)
        await runtime.tasks.cancel(id)
        await asyncio.sleep(CLEAN_UP / 2)
        await runtime.tasks.cancel(id)
        assert (await ended_task(runtime)).status == "cancelled"
        assert cleaned == ["done"]


async def test_a_task_in_a_thread_is_given_up_when_it_is_cancelled() -> None:
    free = threading.Event()

    @hf.tool(inline_budget=BUDGET)
    def blocks() -> str:
        free.wait(2 * SOON)
        return "unblocked"

    agent = agent_with(blocks)
    async with hf.open(None, agents=[agent]) as runtime:
        await runtime.tasks.cancel(await _spilled(runtime, agent))
        assert (await ended_task(runtime)).status == "cancelled"
        free.set()


async def test_a_thread_can_see_that_its_task_was_cancelled() -> None:
    seen = threading.Event()

    @hf.tool(inline_budget=BUDGET)
    def listens(ctx: hf.Context) -> str:
        for _ in range(1_000):
            if ctx.cancelled:
                seen.set()
                return "stopped"
            threading.Event().wait(0.005)
        return "never"

    agent = agent_with(listens)
    async with hf.open(None, agents=[agent]) as runtime:
        await runtime.tasks.cancel(await _spilled(runtime, agent))
        assert await asyncio.to_thread(seen.wait, SOON)


async def test_cancelling_one_task_leaves_the_others_alone() -> None:
    one, other = Held(), Held()
    first, second = one.tool(read_only=True), other.tool(read_only=True)
    from holdfast.tools import toolset

    agent = agent_with(first, *toolset(second, prefix="other_"))
    async with hf.open(None, agents=[agent]) as runtime:
        await asked(runtime, agent)
        tasks = [await runtime.tasks.task(found.id) for found in await runtime.tasks.list()]
        (mine,) = [task for task in tasks if task.call is not None and task.call.tool == "slow"]
        await runtime.tasks.cancel(mine.id)
        await told(runtime.store)
        other.go.set()
        found = await told(runtime.store, count=2)
        assert [notice.kind for notice in found] == ["task_cancelled", "task_succeeded"]


# ---- before, after, elsewhere ----------------------------------------------------------------------------------------


async def test_an_inline_call_is_cancelled_with_its_turn_and_leaves_no_task(held: Held) -> None:
    agent = agent_with(held.tool(inline_budget=SOON))
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await runtime.session(SESSION, agent=agent).send("go")
        await held.begun.wait()
        await turn.cancel("no longer wanted")
        assert (await turn.outcome(timeout=SOON)).status == "cancelled"
        assert (await runtime.tasks.list(), await runtime.store.notifications()) == ([], [])


async def test_a_stubborn_inline_call_with_a_budget_does_not_hold_up_the_cancelling_of_its_turn(
    stubborn: Stubborn,
) -> None:
    agent = agent_with(stubborn.tool(inline_budget=2 * SOON))
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await runtime.session(SESSION, agent=agent).send("go")
        await stubborn.begun.wait()
        await turn.cancel("no longer wanted")
        assert (await turn.outcome(timeout=SOON)).status == "cancelled"


async def test_a_task_goes_on_when_the_turn_that_began_it_is_cancelled(held: Held) -> None:
    at_model = asyncio.Event()

    async def thinks(request: Any) -> Any:
        at_model.set()
        await asyncio.Event().wait()

    from holdfast.testing import call

    agent = agent_with(held.tool(), script=[call("slow"), thinks])
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await runtime.session(SESSION, agent=agent).send("go")
        await at_model.wait()
        await turn.cancel()
        await turn.outcome(timeout=SOON)
        held.go.set()
        assert (await ended_task(runtime)).status == "succeeded"


@pytest.mark.parametrize("kind", ["acting", "reading"])
async def test_a_turn_cancelled_while_its_call_goes_to_the_background_has_one_story(kind: str, tmp_path: Path) -> None:
    """Either the call went on as a task and its turn says so, or there is no task that anybody would carry out."""
    await asyncio.gather(*(_cancelled_on_its_way(kind, number, tmp_path / f"{number}.db") for number in range(ROUNDS)))


async def _cancelled_on_its_way(kind: str, number: int, path: Path) -> None:
    """In each round, a little later than in the one before."""
    held = Held()
    agent = agent_with(held.tool(**KINDS[kind]))
    async with hf.open(path, agents=[agent], lease_ms=1_000) as runtime:
        turn = await runtime.session(SESSION, agent=agent).send("go")
        async with asyncio.timeout(SOON):
            while not await runtime.store.journals(role="task"):
                await asyncio.sleep(0)
        for _ in range(number):
            await asyncio.sleep(0)
        await turn.cancel("no longer wanted")
        await turn.outcome(timeout=SOON)
        await asyncio.sleep(1.3)  # longer than a lease that nobody renews
        (state,) = states(await runtime.session(SESSION).history())
        task = await the_task(runtime)
        assert len(held.keys) == 1, f"round {number}: {state}, the task is {task.status}, and it was begun again"
        assert state == "ok" or task.over, f"round {number}: {state}, but the task is {task.status}"
        held.go.set()


async def test_a_finished_task_is_not_cancelled_any_more(held: Held) -> None:
    agent = agent_with(held.tool())
    async with hf.open(None, agents=[agent]) as runtime:
        id = await _spilled(runtime, agent)
        held.go.set()
        before = (await ended_task(runtime)).records
        assert await runtime.tasks.cancel(id) == "too_late"
        assert (await the_task(runtime)).records == before


async def test_a_finished_task_tells_nothing_more(held: Held) -> None:
    agent = agent_with(held.tool())
    async with hf.open(None, agents=[agent]) as runtime:
        id = await _spilled(runtime, agent)
        held.go.set()
        await told(runtime.store)
        await runtime.tasks.cancel(id)
        assert len(await runtime.store.notifications(SESSION)) == 1


async def test_a_task_that_is_not_there_can_not_be_cancelled() -> None:
    async with hf.open(None) as runtime:
        with pytest.raises(TaskUnknown):
            await runtime.tasks.cancel("task-none")


@pytest.mark.parametrize("reason", [None, 7, "caf\udce9"], ids=["none", "number", "odd"])
async def test_a_bad_reason_has_a_named_error_and_changes_nothing(held: Held, reason: Any) -> None:
    agent = agent_with(held.tool())
    async with hf.open(None, agents=[agent]) as runtime:
        id = await _spilled(runtime, agent)
        with pytest.raises(HoldfastError):
            await runtime.tasks.cancel(id, reason)
        assert (await the_task(runtime)).status == "running"
        held.go.set()


async def test_a_task_is_cancelled_from_another_runtime_of_the_store(held: Held, tmp_path: Path) -> None:
    agent = agent_with(held.tool())
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        id = await _spilled(runtime, agent)
        async with hf.open(tmp_path / "s.db", drive=False) as other:
            assert await other.tasks.cancel(id, "from elsewhere") == "requested"
        task = await ended_task(runtime)
        assert (task.status, held.ended) == ("cancelled", ["cancelled"])


async def test_a_task_is_cancelled_from_another_runtime_that_drives(held: Held, tmp_path: Path) -> None:
    agent = agent_with(held.tool())
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        id = await _spilled(runtime, agent)
        async with hf.open(tmp_path / "s.db", agents=[agent_with(Held().tool())]) as other:
            assert await other.tasks.cancel(id, "from elsewhere") == "requested"
            assert (await ended_task(runtime)).status == "cancelled"
            assert (await other.tasks.task(id)).status == "cancelled"
            assert context_of(other).sessions.stuck(id) is None


@pytest.mark.parametrize("kind", KINDS)
async def test_a_task_that_nobody_drives_is_cancelled_when_somebody_does(tmp_path: Path, kind: str) -> None:
    first, second = Held(), Held()
    agent = agent_with(first.tool(**KINDS[kind]))
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        id = await _spilled(runtime, agent)
        await runtime.close(grace=0)
    async with hf.open(tmp_path / "s.db", drive=False) as other:
        assert await other.tasks.cancel(id) == "requested"
    async with hf.open(tmp_path / "s.db", agents=[agent_with(second.tool(**KINDS[kind]))]) as runtime:
        assert (await ended_task(runtime)).status == "cancelled"
        assert second.keys == []


# ---- all at once -----------------------------------------------------------------------------------------------------


async def test_of_completing_cancelling_and_reporting_at_once_one_wins(tmp_path: Path) -> None:
    """Eight threads: some report, some let it complete, some cancel it."""
    problems: list[str] = []
    for number in range(ROUNDS):
        go, contexts = asyncio.Event(), list[hf.Context]()
        agent = agent_with(_contested(go, contexts))
        async with hf.open(tmp_path / f"{number}.db", agents=[agent]) as runtime:
            id = await _spilled(runtime, agent)
            await _contend(runtime, id, contexts[0], go)
            await ended_task(runtime)
            await told(runtime.store)
            problems += [f"round {number}: {problem}" for problem in await _disputes(runtime, id)]
    assert problems == []


async def _contend(runtime: Runtime, id: str, context: hf.Context, go: asyncio.Event) -> None:
    """Complete, cancel and report, all at the same moment."""
    loop, barrier = asyncio.get_running_loop(), threading.Barrier(THREADS)

    def act(which: int) -> None:
        barrier.wait(SOON)
        if which % 4 == 0:
            loop.call_soon_threadsafe(go.set)
        elif which % 4 == 1:
            asyncio.run_coroutine_threadsafe(runtime.tasks.cancel(id, f"by {which}"), loop).result(SOON)
        else:
            for report in range(20):
                context.progress(f"{which}: {report}")

    with ThreadPoolExecutor(THREADS) as threads:
        await asyncio.gather(*(loop.run_in_executor(threads, act, which) for which in range(THREADS)))


async def _disputes(runtime: Runtime, id: str) -> list[str]:
    """What does not agree about a task that is over."""
    task = await runtime.tasks.task(id)
    entries = [entry async for entry in runtime.store.read_all(id)]
    ends = [entry for entry in entries if isinstance(entry.record, Ended)]
    found = [str(violation) for violation in await check(runtime.store)]
    if [entry.seq for entry in entries] != list(range(1, len(entries) + 1)):
        found.append("there is a gap")
    if len(ends) != 1 or ends[0] is not entries[-1]:
        found.append(f"{len(ends)} ends, the last record is {entries[-1].record}")
    kinds = [notice.kind for notice in await runtime.store.notifications(SESSION)]
    if kinds != [f"task_{task.status}"] or task.status not in {"succeeded", "cancelled"}:
        found.append(f"{task.status}, and {kinds} was told")
    return found


def _contested(go: asyncio.Event, contexts: list[hf.Context]) -> hf.Tool[..., Any]:
    @hf.tool("contested", inline_budget=BUDGET, idempotent=True)
    async def contested(ctx: hf.Context) -> str:
        contexts.append(ctx)
        await go.wait()
        return "done"

    return contested


async def test_reports_after_the_end_are_dropped() -> None:
    contexts: list[hf.Context] = []

    @hf.tool(background=True)
    async def leaves(ctx: hf.Context) -> str:
        contexts.append(ctx)
        return "done"

    agent = agent_with(leaves)
    async with hf.open(None, agents=[agent]) as runtime:
        await asked(runtime, agent)
        before = (await ended_task(runtime)).records
        contexts[0].progress("too late")
        await told(runtime.store)
        assert (await the_task(runtime)).records == before


async def test_a_result_is_never_lost_to_a_cancel_that_came_too_late() -> None:
    """Whoever is told `too_late` finds a result; whoever is told `requested` finds either, and one notification."""
    for number in range(ROUNDS):
        held = Held()
        agent = agent_with(held.tool())
        async with hf.open(None, agents=[agent]) as runtime:
            id = await _spilled(runtime, agent)
            held.go.set()
            for _ in range(3 * number):
                await asyncio.sleep(0)
            answer = await runtime.tasks.cancel(id)
            task = await ended_task(runtime)
            assert answer == "requested" or task.status == "succeeded", number
            assert len(await told(runtime.store)) == 1


async def test_the_call_of_a_cancelled_task_keeps_its_answer_in_the_conversation(held: Held) -> None:
    agent = agent_with(held.tool())
    async with hf.open(None, agents=[agent]) as runtime:
        id = await _spilled(runtime, agent)
        before = await result(runtime)
        await runtime.tasks.cancel(id)
        await told(runtime.store)
        assert await result(runtime) == before


async def test_cancelled_tasks_leave_nothing_under_way(held: Held) -> None:
    agent = agent_with(held.tool())
    async with hf.open(None, agents=[agent]) as runtime:
        await runtime.tasks.cancel(await _spilled(runtime, agent))
        await told(runtime.store)

        async def rests() -> bool:
            return runtime.active == 0

        await until(rests)
