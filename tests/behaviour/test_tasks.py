"""A slow tool does not hold up its model: it goes on as a task, and the session learns once how it ended."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from tests.behaviour.background import (
    BUDGET,
    SESSION,
    Held,
    agent_with,
    asked,
    ended_task,
    heard,
    notices,
    result,
    the_task,
    titles,
    told,
)
from tests.behaviour.talk import SOON, until

import holdfast as hf
from holdfast.errors import TaskUnknown
from holdfast.records import Admitted, Done, Ended, Intended, Opened, Progressed, Started
from holdfast.testing import call, check, text

if TYPE_CHECKING:
    from pathlib import Path

LONG = 60.0


@pytest.fixture
async def held() -> Held:
    return Held()


# ---- past the budget -------------------------------------------------------------------------------------------------


async def test_a_call_past_its_budget_is_answered_at_once_and_goes_on_as_a_task(held: Held) -> None:
    agent = agent_with(held.tool())
    async with hf.open(None, agents=[agent]) as runtime:
        assert (await asked(runtime, agent)).status == "completed"
        assert (await the_task(runtime)).status == "running"
        held.go.set()


async def test_the_answer_names_the_task_and_says_that_it_goes_on(held: Held) -> None:
    agent = agent_with(held.tool())
    async with hf.open(None, agents=[agent]) as runtime:
        await asked(runtime, agent)
        task = await the_task(runtime)
        answer = (await result(runtime)).content
        assert answer == {
            "task": task.id,
            "status": "running",
            "message": (
                f"The call of slow takes longer than 20 ms. It goes on as task {task.id}, and a notification will tell "
                "when it has ended. Do not call it again for the same thing; go on with something else, or end your "
                "turn."
            ),
        }
        held.go.set()


async def test_the_answer_is_a_result_that_is_in_order(held: Held) -> None:
    agent = agent_with(held.tool())
    async with hf.open(None, agents=[agent]) as runtime:
        await asked(runtime, agent)
        assert (await result(runtime)).state == "ok"
        held.go.set()


async def test_a_call_that_goes_on_is_not_begun_a_second_time(held: Held) -> None:
    agent = agent_with(held.tool())
    async with hf.open(None, agents=[agent]) as runtime:
        await asked(runtime, agent)
        held.go.set()
        await told(runtime.store)
        assert held.ended == ["done"]


async def test_the_agent_goes_on_by_itself_when_the_task_has_ended(held: Held) -> None:
    agent = agent_with(held.tool())
    async with hf.open(None, agents=[agent]) as runtime:
        await asked(runtime, agent)
        held.go.set()
        await told(runtime.store)
        history = await runtime.session(SESSION).history()
        assert isinstance(history[-1], hf.AssistantMessage)
        assert titles(heard(history)[-1]) == ["The background call of slow has completed"]


async def test_the_notification_tells_the_result_and_names_the_task(held: Held) -> None:
    agent = agent_with(held.tool("forty-two"))
    async with hf.open(None, agents=[agent]) as runtime:
        await asked(runtime, agent)
        held.go.set()
        await told(runtime.store)
        (notice,) = await notices(runtime)
        assert "| forty-two\n" in notice
        assert f'task="{(await the_task(runtime)).id}"' in notice


async def test_the_result_of_a_task_can_be_read(held: Held) -> None:
    agent = agent_with(held.tool({"rows": [1, 2]}))
    async with hf.open(None, agents=[agent]) as runtime:
        await asked(runtime, agent)
        held.go.set()
        task = await ended_task(runtime)
        assert json.loads(await runtime.tasks.result(task) or b"") == {"rows": [1, 2]}


async def test_a_task_has_one_record_for_each_thing_that_happened(held: Held) -> None:
    agent = agent_with(held.tool())
    async with hf.open(None, agents=[agent]) as runtime:
        await asked(runtime, agent)
        held.go.set()
        task = await ended_task(runtime)
        assert [type(record) for record in task.records] == [Opened, Admitted, Intended, Started, Done, Ended]


async def test_a_task_tells_its_session_its_agent_its_call_and_who_carries_it_out() -> None:
    @hf.tool(background=True)
    async def add(a: int, b: int) -> int:
        return a + b

    agent = agent_with(add, script=[call("add", a=1, b=2)])
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await asked(runtime, agent)
        task = await ended_task(runtime)
        assert task.call is not None
        assert (task.session, task.name, task.call.turn) == (SESSION, "a", turn.turn)
        assert (task.call.tool, task.call.arguments, task.call.call_id) == ("add", {"a": 1, "b": 2}, "call_0_0")
        assert (task.starts, (task.by or "").startswith("pid ")) == (1, True)


async def test_the_budget_of_the_agent_counts_for_tools_that_say_nothing(held: Held) -> None:
    agent = agent_with(held.tool(inline_budget=None), inline_budget=BUDGET)
    async with hf.open(None, agents=[agent]) as runtime:
        await asked(runtime, agent)
        assert (await the_task(runtime)).status == "running"
        held.go.set()


async def test_a_budget_of_the_tool_goes_before_that_of_the_agent(held: Held) -> None:
    agent = agent_with(held.tool(), inline_budget=LONG)
    async with hf.open(None, agents=[agent]) as runtime:
        await asked(runtime, agent)
        assert "longer than 20 ms" in str((await result(runtime)).content)
        held.go.set()


async def test_without_a_budget_nothing_goes_to_the_background(held: Held) -> None:
    agent = agent_with(held.tool(inline_budget=None))
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await runtime.session(SESSION, agent=agent).send("go")
        await held.begun.wait()
        await asyncio.sleep(3 * BUDGET)
        held.go.set()
        await turn.outcome(timeout=SOON)
        assert await runtime.tasks.list() == []


async def test_a_tool_that_must_not_go_to_the_background_does_not(held: Held) -> None:
    agent = agent_with(held.tool(inline_budget=None, background=False), inline_budget=BUDGET)
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await runtime.session(SESSION, agent=agent).send("go")
        await held.begun.wait()
        await asyncio.sleep(3 * BUDGET)
        held.go.set()
        await turn.outcome(timeout=SOON)
        assert (await result(runtime)).content == "the answer"


async def test_several_slow_calls_of_one_step_go_on_as_tasks_of_their_own() -> None:
    go = asyncio.Event()

    @hf.tool(read_only=True, inline_budget=BUDGET)
    async def look(at: str) -> str:
        await go.wait()
        return f"{at} is there"

    agent = agent_with(look, script=[[call("look", at="a"), call("look", at="b"), call("look", at="c")]])
    async with hf.open(None, agents=[agent]) as runtime:
        await asked(runtime, agent)
        assert len({found.id for found in await runtime.tasks.list(session=SESSION)}) == 3
        go.set()
        found = await told(runtime.store, count=3)
        assert sorted(notice.body for notice in found) == ["a is there", "b is there", "c is there"]


async def test_a_call_that_acts_goes_to_the_background_before_the_next_one_begins(held: Held) -> None:
    ran: list[str] = []

    @hf.tool
    async def other() -> str:
        ran.append("other")
        return "done"

    agent = agent_with(held.tool(), other)
    async with hf.open(None, agents=[agent]) as runtime:
        await asked(runtime, agent)
        assert ran == ["other"]
        held.go.set()


async def test_a_plain_function_goes_on_in_its_thread() -> None:
    import threading

    free = threading.Event()

    @hf.tool(inline_budget=BUDGET)
    def plain() -> str:
        free.wait(SOON)
        return "from a thread"

    agent = agent_with(plain)
    async with hf.open(None, agents=[agent]) as runtime:
        await asked(runtime, agent)
        free.set()
        (notice,) = await told(runtime.store)
        assert notice.body == "from a thread"


# ---- within the budget -----------------------------------------------------------------------------------------------


async def test_a_call_within_its_budget_is_answered_with_its_result() -> None:
    @hf.tool(inline_budget=LONG)
    async def quick() -> str:
        return "here"

    agent = agent_with(quick)
    async with hf.open(None, agents=[agent]) as runtime:
        await asked(runtime, agent)
        assert (await result(runtime)).content == "here"


async def test_a_call_within_its_budget_makes_no_task_and_no_notification() -> None:
    @hf.tool(inline_budget=LONG)
    async def quick() -> str:
        return "here"

    agent = agent_with(quick)
    async with hf.open(None, agents=[agent]) as runtime:
        await asked(runtime, agent)
        assert (await runtime.tasks.list(), await runtime.store.notifications()) == ([], [])


async def test_a_call_that_is_done_when_its_budget_is_over_is_no_task() -> None:
    """It blocks the loop for longer than its budget: both are over when anybody looks."""
    import time

    @hf.tool(inline_budget=BUDGET)
    async def rude() -> str:
        time.sleep(3 * BUDGET)  # noqa: ASYNC251
        return "here"

    agent = agent_with(rude)
    async with hf.open(None, agents=[agent]) as runtime:
        await asked(runtime, agent)
        assert (await result(runtime)).content == "here"
        assert await runtime.tasks.list() == []


async def test_a_call_that_fails_within_its_budget_is_an_error_and_no_task() -> None:
    @hf.tool(inline_budget=LONG)
    async def breaks() -> str:
        raise ValueError("boom")

    agent = agent_with(breaks)
    async with hf.open(None, agents=[agent]) as runtime:
        await asked(runtime, agent)
        assert ((await result(runtime)).state, await runtime.tasks.list()) == ("error", [])


async def test_arguments_that_do_not_fit_make_no_task() -> None:
    @hf.tool(background=True)
    async def add(a: int) -> int:
        return a

    agent = agent_with(add, script=[call("add", a="many")])
    async with hf.open(None, agents=[agent]) as runtime:
        await asked(runtime, agent)
        assert ((await result(runtime)).state, await runtime.tasks.list()) == ("error", [])


# ---- always in the background ----------------------------------------------------------------------------------------


async def test_a_background_tool_is_answered_before_it_has_begun(held: Held) -> None:
    agent = agent_with(held.tool(inline_budget=None, background=True))
    async with hf.open(None, agents=[agent]) as runtime:
        await asked(runtime, agent)
        assert "The call of slow runs in the background." in str((await result(runtime)).content)
        held.go.set()
        assert (await ended_task(runtime)).status == "succeeded"


async def test_a_quick_background_tool_is_a_task_too() -> None:
    @hf.tool(background=True)
    async def quick() -> str:
        return "here"

    agent = agent_with(quick)
    async with hf.open(None, agents=[agent]) as runtime:
        await asked(runtime, agent)
        (notice,) = await told(runtime.store)
        assert (notice.kind, notice.body) == ("task_succeeded", "here")


async def test_a_background_tool_is_told_in_the_order_in_which_it_ended() -> None:
    gates = {"first": asyncio.Event(), "second": asyncio.Event()}

    @hf.tool(background=True)
    async def wait_for(which: str) -> str:
        await gates[which].wait()
        return which

    agent = agent_with(wait_for, script=[[call("wait_for", which="first"), call("wait_for", which="second")]])
    async with hf.open(None, agents=[agent]) as runtime:
        await asked(runtime, agent)
        gates["second"].set()
        await told(runtime.store)
        gates["first"].set()
        assert [notice.body for notice in await told(runtime.store, count=2)] == ["second", "first"]


# ---- how it ends -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("boom"), "ValueError: boom"),
        (SystemExit(3), "RuntimeError: the function asked to end the process (exit code 3); it was not ended"),
        (hf.ToolRetry("another order number"), "another order number"),
    ],
    ids=["error", "exit", "retry"],
)
async def test_a_task_that_fails_tells_its_session_why(error: BaseException, said: str) -> None:
    go = asyncio.Event()

    @hf.tool(inline_budget=BUDGET)
    async def breaks() -> str:
        await go.wait()
        raise error

    agent = agent_with(breaks)
    async with hf.open(None, agents=[agent]) as runtime:
        await asked(runtime, agent)
        go.set()
        (notice,) = await told(runtime.store)
        assert notice.kind == "task_failed"
        assert said in notice.body
        assert (await the_task(runtime)).status == "failed"


def tried_again(go: asyncio.Event) -> hf.Tool[..., Any]:
    """A tool that is slow to fail, and works when it is tried again."""
    attempts: list[int] = []

    @hf.tool(read_only=True, inline_budget=BUDGET, retry=hf.ToolRetryPolicy(attempts=2, pause=0.0))
    async def looks() -> str:
        attempts.append(1)
        await go.wait()
        if len(attempts) == 1:
            raise OSError("not now")
        return "found"

    return looks


async def test_a_call_that_fails_after_its_turn_is_over_is_tried_again() -> None:
    go = asyncio.Event()
    agent = agent_with(tried_again(go))
    async with hf.open(None, agents=[agent]) as runtime:
        await asked(runtime, agent)
        go.set()
        (notice,) = await told(runtime.store)
        assert (notice.kind, notice.body) == ("task_succeeded", "found")


async def test_attempts_in_the_background_are_recorded_in_the_task() -> None:
    go, goes_on = asyncio.Event(), asyncio.Event()

    @hf.tool(read_only=True)
    async def lets_it_fail() -> None:
        go.set()
        await goes_on.wait()

    agent = agent_with(tried_again(go), lets_it_fail, script=[call("looks"), call("lets_it_fail")])
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await runtime.session(SESSION, agent=agent).send("go")
        task = await ended_task(runtime)
        goes_on.set()
        assert (await turn.outcome()).ok
        here = [getattr(entry.record, "key", "") for entry in await runtime.store.read(SESSION)]
        there = [getattr(entry.record, "key", "") for entry in await runtime.store.read(task.id)]
        assert ([key for key in here if "attempt" in key], [key for key in there if "attempt" in key]) == (
            [],
            ["task/looks/%attempt-1"],
        )


async def test_a_task_that_fails_shows_no_traceback_to_the_model() -> None:
    @hf.tool(background=True)
    async def breaks() -> str:
        raise ValueError("boom")

    agent = agent_with(breaks)
    async with hf.open(None, agents=[agent]) as runtime:
        await asked(runtime, agent)
        (notice,) = await told(runtime.store)
        assert "Traceback" not in notice.body
        assert ".py" not in notice.body


async def test_a_task_of_a_tool_that_was_cancelled_from_within_fails() -> None:
    @hf.tool(background=True)
    async def gives_up() -> str:
        raise asyncio.CancelledError

    agent = agent_with(gives_up)
    async with hf.open(None, agents=[agent]) as runtime:
        await asked(runtime, agent)
        (notice,) = await told(runtime.store)
        assert notice.kind == "task_failed"


async def test_a_hard_timeout_counts_in_the_background_too() -> None:
    @hf.tool(read_only=True, inline_budget=BUDGET, timeout=0.1)
    async def hangs() -> str:
        await asyncio.sleep(LONG)
        return "never"

    agent = agent_with(hangs)
    async with hf.open(None, agents=[agent]) as runtime:
        await asked(runtime, agent)
        (notice,) = await told(runtime.store)
        assert notice.kind == "task_failed"
        assert "0.1 s" in notice.body


async def test_the_end_of_a_task_and_its_notification_are_one_commit(held: Held) -> None:
    agent = agent_with(held.tool())
    async with hf.open(None, agents=[agent], can_deliver=lambda _: False) as runtime:
        await asked(runtime, agent)
        held.go.set()
        await ended_task(runtime)
        (notice,) = await runtime.store.notifications(SESSION)
        assert (notice.state, notice.source) == ("queued", (await the_task(runtime)).id)


async def test_a_store_with_tasks_has_nothing_wrong(tmp_path: Path) -> None:
    @hf.tool(background=True)
    async def quick(n: int) -> int:
        return n

    agent = agent_with(quick, script=[[call("quick", n=n) for n in range(5)]])
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        await asked(runtime, agent)
        await told(runtime.store, count=5)
    async with hf.open_store(tmp_path / "s.db") as store:
        assert await check(store) == []


async def test_nothing_is_under_way_when_all_tasks_have_ended(tmp_path: Path) -> None:
    @hf.tool(inline_budget=BUDGET)
    async def naps(n: int) -> int:
        await asyncio.sleep(2 * BUDGET * (n % 2))
        return n

    agent = agent_with(naps, script=[[call("naps", n=n) for n in range(6)]])
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        await asked(runtime, agent)
        await told(runtime.store, count=3)

        async def rests() -> bool:
            return runtime.active == 0

        await until(rests)


# ---- what the host can ask -------------------------------------------------------------------------------------------


async def test_a_task_that_is_not_there_has_an_error_of_its_own() -> None:
    async with hf.open(None) as runtime:
        with pytest.raises(TaskUnknown):
            await runtime.tasks.task("task-none")


async def test_a_session_is_no_task() -> None:
    @hf.tool
    async def acts() -> str:
        return "done"

    agent = agent_with(acts)
    async with hf.open(None, agents=[agent]) as runtime:
        await asked(runtime, agent)
        with pytest.raises(TaskUnknown):
            await runtime.tasks.task(SESSION)


async def test_a_session_is_not_cancelled_as_a_task() -> None:
    @hf.tool
    async def acts() -> str:
        return "done"

    agent = agent_with(acts)
    async with hf.open(None, agents=[agent]) as runtime:
        await asked(runtime, agent)
        with pytest.raises(TaskUnknown):
            await runtime.tasks.cancel(SESSION)


async def test_tasks_are_no_sessions(held: Held) -> None:
    agent = agent_with(held.tool())
    async with hf.open(None, agents=[agent]) as runtime:
        await asked(runtime, agent)
        assert [found.id for found in await runtime.sessions()] == [SESSION]
        held.go.set()


async def test_tasks_of_other_sessions_are_not_listed(held: Held) -> None:
    agent = agent_with(held.tool())
    async with hf.open(None, agents=[agent]) as runtime:
        await asked(runtime, agent)
        assert await runtime.tasks.list(session="another") == []
        held.go.set()


async def test_observers_see_a_task_begin_and_end(held: Held) -> None:
    agent = agent_with(held.tool())
    seen: list[tuple[str, str]] = []
    async with hf.open(None, agents=[agent]) as runtime:

        def note(event: Any) -> None:
            seen.append((type(event).__name__, event.session))

        runtime.on(hf.events.TaskStarted, note)
        await asked(runtime, agent)
        task = await the_task(runtime)
        held.go.set()
        await told(runtime.store)

        async def is_seen() -> bool:
            return ("TaskStarted", task.id) in seen

        await until(is_seen)


# ---- what a call has in the background -------------------------------------------------------------------------------


async def test_a_task_can_tell_how_far_it_is() -> None:
    go = asyncio.Event()

    @hf.tool(background=True)
    async def counts(ctx: hf.Context) -> str:
        ctx.progress("half of it", fraction=0.5)
        await go.wait()
        return "all of it"

    agent = agent_with(counts)
    async with hf.open(None, agents=[agent]) as runtime:
        await asked(runtime, agent)

        async def is_told() -> bool:
            return (await the_task(runtime)).progress is not None

        await until(is_told)
        found = (await the_task(runtime)).progress
        assert isinstance(found, Progressed)
        assert (found.note, found.fraction) == ("half of it", 0.5)
        go.set()


async def test_the_last_report_of_a_task_is_never_lost() -> None:
    @hf.tool(background=True)
    async def counts(ctx: hf.Context) -> str:
        for number in range(1_000):
            ctx.progress(f"{number}")
        return "done"

    agent = agent_with(counts)
    async with hf.open(None, agents=[agent]) as runtime:
        await asked(runtime, agent)
        task = await ended_task(runtime)
        assert task.progress is not None
        assert task.progress.note == "999"


async def test_the_code_of_a_tool_is_read_only_for_a_call_that_a_person_approved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read: list[object] = []

    def code_digest(function: object) -> str:
        read.append(function)
        return "digest"

    monkeypatch.setattr("holdfast.tools.definition.code_digest", code_digest)

    @hf.tool(background=True)
    async def works() -> str:
        return "done"

    agent = agent_with(works)
    async with hf.open(None, agents=[agent]) as runtime:
        await asked(runtime, agent)
        assert (await ended_task(runtime)).status == "succeeded"
    assert read == []


async def test_progress_from_a_thread_is_recorded() -> None:
    @hf.tool(background=True)
    def counts(ctx: hf.Context) -> str:
        ctx.progress("from a thread")
        return "done"

    agent = agent_with(counts)
    async with hf.open(None, agents=[agent]) as runtime:
        await asked(runtime, agent)
        task = await ended_task(runtime)
        assert task.progress is not None
        assert task.progress.note == "from a thread"


async def test_progress_after_the_budget_is_recorded_in_the_task() -> None:
    spilled, go = asyncio.Event(), asyncio.Event()

    @hf.tool(inline_budget=BUDGET)
    async def counts(ctx: hf.Context) -> str:
        await spilled.wait()
        ctx.progress("in the background")
        await go.wait()
        return "done"

    agent = agent_with(counts)
    async with hf.open(None, agents=[agent]) as runtime:
        await asked(runtime, agent)
        await _is_carried(runtime)
        spilled.set()
        await until(lambda: _has_progress(runtime))
        go.set()


@pytest.mark.parametrize(
    ("note", "fraction"),
    [("caf\udce9", None), ("x" * 2_000_000, None), ("y", float("nan")), ("y", float("inf")), ("\x00", -1.0)],
    ids=["unprintable", "huge", "nan", "infinite", "negative"],
)
async def test_odd_progress_does_not_harm_its_task(note: str, fraction: float | None) -> None:
    @hf.tool(background=True)
    async def counts(ctx: hf.Context) -> str:
        ctx.progress(note, fraction=fraction)
        await asyncio.sleep(0)
        return "done"

    agent = agent_with(counts)
    async with hf.open(None, agents=[agent]) as runtime:
        await asked(runtime, agent)
        (notice,) = await told(runtime.store)
        assert (notice.kind, notice.body) == ("task_succeeded", "done")


async def test_a_call_keeps_its_idempotency_key_when_it_goes_to_the_background() -> None:
    seen: list[str] = []
    go = asyncio.Event()

    @hf.tool(inline_budget=BUDGET, idempotent=True)
    async def acts(ctx: hf.Context) -> str:
        seen.append(ctx.idempotency_key)
        await go.wait()
        seen.append(ctx.idempotency_key)
        return "done"

    agent = agent_with(acts)
    async with hf.open(None, agents=[agent]) as runtime:
        await asked(runtime, agent)
        await _is_carried(runtime)
        go.set()
        await ended_task(runtime)
        assert len(seen) == 2
        assert len(set(seen)) == 1


async def test_a_call_knows_its_session_and_its_turn_in_the_background() -> None:
    seen: list[tuple[str, str, str]] = []

    @hf.tool(background=True)
    async def acts(ctx: hf.Context) -> str:
        seen.append((ctx.session, ctx.turn, ctx.call_id))
        return "done"

    agent = agent_with(acts)
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await asked(runtime, agent)
        await ended_task(runtime)
        assert seen == [(SESSION, turn.turn, "call_0_0")]


async def test_a_step_before_the_budget_keeps_the_call_in_its_turn() -> None:
    go = asyncio.Event()

    @hf.tool(inline_budget=BUDGET)
    async def steps(ctx: hf.Context) -> str:
        first = await ctx.step("one", lambda: "stepped")
        await go.wait()
        return first

    agent = agent_with(steps)
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await runtime.session(SESSION, agent=agent).send("go")
        await asyncio.sleep(3 * BUDGET)
        go.set()
        await turn.outcome(timeout=SOON)
        assert ((await result(runtime)).content, await runtime.tasks.list()) == ("stepped", [])


async def test_a_step_in_the_background_is_recorded_in_the_task() -> None:
    go = asyncio.Event()

    @hf.tool(inline_budget=BUDGET)
    async def steps(ctx: hf.Context) -> str:
        await go.wait()
        return await ctx.step("one", lambda: "stepped")

    agent = agent_with(steps)
    async with hf.open(None, agents=[agent]) as runtime:
        await asked(runtime, agent)
        await _is_carried(runtime)
        go.set()
        task = await ended_task(runtime)
        keys = [record.key for record in task.records if isinstance(record, Done)]
        assert keys == ["task/steps/one", "task/steps"]


async def test_a_step_at_the_moment_of_going_to_the_background_is_recorded_in_the_task() -> None:
    """Between the budget and the first record of the task lie several commits."""
    runtimes: list[Any] = []

    @hf.tool(inline_budget=BUDGET)
    async def steps(ctx: hf.Context) -> str:
        async with asyncio.timeout(SOON):
            while not await runtimes[0].store.journals(role="task"):
                await asyncio.sleep(0)
        return await ctx.step("one", lambda: "stepped")

    agent = agent_with(steps)
    async with hf.open(None, agents=[agent]) as runtime:
        runtimes.append(runtime)
        await asked(runtime, agent)
        task = await ended_task(runtime)
        in_session = [
            entry.record.key async for entry in runtime.store.read_all(SESSION) if isinstance(entry.record, Done)
        ]
        assert (task.status, [key for key in in_session if key.endswith("/one")]) == ("succeeded", [])


async def test_a_wait_in_a_task_is_answered_by_somebody_outside(tmp_path: Path) -> None:
    runs: list[str] = []

    @hf.tool(background=True)
    async def asks(ctx: hf.Context) -> str:
        runs.append("run")
        return f"signed by {await ctx.wait('signature')}"

    agent = agent_with(asks)
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        await asked(runtime, agent)
        task = await the_task(runtime)

        async def waits() -> bool:
            return (await runtime.tasks.task(task.id)).status == "waiting" and runtime.active == 0

        await until(waits)
        (wait,) = await runtime.waits(task.id)
        await runtime.resolve(runtime.wait_token(task.id, wait.name), "Ann")
        (notice,) = await told(runtime.store)
        assert (notice.kind, notice.body, runs) == ("task_succeeded", "signed by Ann", ["run", "run"])


async def test_a_wait_after_the_budget_parks_the_task() -> None:
    go = asyncio.Event()

    @hf.tool(inline_budget=BUDGET)
    async def asks(ctx: hf.Context) -> str:
        await go.wait()
        return f"signed by {await ctx.wait('signature')}"

    agent = agent_with(asks)
    async with hf.open(None, agents=[agent]) as runtime:
        await asked(runtime, agent)
        await _is_carried(runtime)
        go.set()

        async def waits() -> bool:
            return (await the_task(runtime)).status == "waiting"

        await until(waits)


async def test_a_wait_in_a_task_that_nobody_answers_expires() -> None:
    @hf.tool(background=True)
    async def asks(ctx: hf.Context) -> str:
        try:
            return str(await ctx.wait("signature", timeout=0.1))
        except hf.WaitExpired:
            return "nobody signed"

    agent = agent_with(asks)
    async with hf.open(None, agents=[agent]) as runtime:
        await asked(runtime, agent)
        (notice,) = await told(runtime.store)
        assert notice.body == "nobody signed"


async def test_a_waiting_task_can_be_cancelled() -> None:
    @hf.tool(background=True)
    async def asks(ctx: hf.Context) -> str:
        return str(await ctx.wait("signature"))

    agent = agent_with(asks)
    async with hf.open(None, agents=[agent]) as runtime:
        await asked(runtime, agent)
        task = await the_task(runtime)

        async def waits() -> bool:
            return (await runtime.tasks.task(task.id)).status == "waiting" and runtime.active == 0

        await until(waits)
        assert await runtime.tasks.cancel(task.id, "no longer wanted") == "requested"
        assert (await ended_task(runtime)).status == "cancelled"


async def test_a_task_never_asks_a_model_itself() -> None:
    """A task is no conversation, whatever wakes it."""

    @hf.tool(background=True)
    async def asks(ctx: hf.Context) -> str:
        return str(await ctx.wait("signature"))

    agent = agent_with(asks, script=[call("asks"), text("that is all")])
    async with hf.open(None, agents=[agent], can_deliver=lambda _: False) as runtime:
        await asked(runtime, agent)
        task = await the_task(runtime)

        async def waits() -> bool:
            return (await runtime.tasks.task(task.id)).status == "waiting" and runtime.active == 0

        await until(waits)
        (wait,) = await runtime.waits(task.id)
        await runtime.resolve(runtime.wait_token(task.id, wait.name), "Ann")
        await ended_task(runtime)
        keys = [getattr(record, "key", "") for record in (await the_task(runtime)).records]
        assert not [key for key in keys if key.endswith(".model")]


async def _is_carried(runtime: Any) -> None:
    """Until the task drives the call itself: its context has moved."""

    async def carried() -> bool:
        found = await runtime.tasks.list(session=SESSION)
        return bool(found) and found[0].status == "running" and runtime.active >= 1

    await until(carried)
    await asyncio.sleep(BUDGET)


async def _has_progress(runtime: Any) -> bool:
    return (await the_task(runtime)).progress is not None
