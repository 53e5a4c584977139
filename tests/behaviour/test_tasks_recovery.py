"""When a process is gone its tasks are not: repeatable ones are begun again, others are found out about or reported."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from tests.behaviour.background import (
    BUDGET,
    SESSION,
    Held,
    agent_with,
    asked,
    ended_task,
    notices,
    the_task,
    told,
)
from tests.behaviour.talk import SOON, until

import holdfast as hf
from holdfast.processes.keys import CALL_KEY, task_id
from holdfast.processes.state import TaskCall
from holdfast.records import Resumed, Started, Unknown
from holdfast.testing import ManualClock, call, check

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from holdfast.runtime.runtime import Runtime

REPEATABLE: dict[str, dict[str, Any]] = {"idempotent": {"idempotent": True}, "reading": {"read_only": True}}
KINDS: dict[str, dict[str, Any]] = {"acting": {}, **REPEATABLE}
BACKGROUND: dict[str, dict[str, Any]] = {"spilled": {}, "background": {"inline_budget": None, "background": True}}


async def _left(path: Path, agent: hf.Agent, held: Held) -> str:
    """A task that was under way when its runtime was closed."""
    async with hf.open(path, agents=[agent]) as runtime:
        await asked(runtime, agent)
        await held.begun.wait()
        id = (await the_task(runtime)).id
        await runtime.close(grace=0)
    return id


@asynccontextmanager
async def _next(path: Path, tool: hf.Tool[..., Any], **options: Any) -> AsyncGenerator[Runtime]:
    async with hf.open(path, agents=[agent_with(tool)], **options) as runtime:
        yield runtime


async def _never_begun(path: Path) -> None:
    """A task that was taken in, and that nobody has begun."""
    described = TaskCall("slow", {}, "call_0_0", "t1", "t1/2.tools/1.slow", "key-1")
    id, content = task_id(SESSION, described.key), msgspec.to_builtins(described)
    async with hf.open_store(path) as store:
        await store.open_journal(SESSION, "session", "a")
        await store.accept_into(id, "process", "a", content, key=CALL_KEY, role="task", session=SESSION)


# ---- after the process -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", BACKGROUND)
@pytest.mark.parametrize("kind", REPEATABLE)
async def test_a_repeatable_task_is_begun_again_under_the_same_key(tmp_path: Path, kind: str, how: str) -> None:
    first, second = Held(), Held()
    options = {**REPEATABLE[kind], **BACKGROUND[how]}
    await _left(tmp_path / "s.db", agent_with(first.tool(**options)), first)
    second.go.set()
    async with _next(tmp_path / "s.db", second.tool("again", **options)) as runtime:
        (notice,) = await told(runtime.store)
        assert (notice.kind, notice.body) == ("task_succeeded", "again")
        assert second.keys == first.keys


@pytest.mark.parametrize("how", BACKGROUND)
async def test_a_task_that_acts_is_reported_as_interrupted_and_not_begun_again(tmp_path: Path, how: str) -> None:
    first, second = Held(), Held()
    await _left(tmp_path / "s.db", agent_with(first.tool(**BACKGROUND[how])), first)
    async with _next(tmp_path / "s.db", second.tool(**BACKGROUND[how])) as runtime:
        (notice,) = await told(runtime.store)
        assert (notice.kind, second.keys) == ("task_interrupted", [])
        assert (await the_task(runtime)).status == "interrupted"


@pytest.mark.parametrize("kind", KINDS)
async def test_a_restart_after_the_end_tells_nothing_again(tmp_path: Path, kind: str) -> None:
    held = Held()
    held.go.set()
    tool = held.tool(**KINDS[kind], **BACKGROUND["background"])
    agent = agent_with(tool)
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        await asked(runtime, agent)
        await told(runtime.store)
    for _ in range(2):
        async with _next(tmp_path / "s.db", tool) as runtime:
            await asyncio.sleep(BUDGET)
            assert len(await notices(runtime)) == len(await runtime.store.notifications()) == len(held.keys) == 1


async def test_a_task_that_was_begun_again_says_so(tmp_path: Path) -> None:
    first, second = Held(), Held()
    await _left(tmp_path / "s.db", agent_with(first.tool(read_only=True)), first)
    second.go.set()
    async with _next(tmp_path / "s.db", second.tool(read_only=True)) as runtime:
        task = await ended_task(runtime)
        begun = [type(record) for record in task.records if isinstance(record, Started | Resumed)]
        assert (begun, task.starts) == ([Started, Resumed], 2)


async def test_a_task_that_is_interrupted_again_and_again_is_told_once(tmp_path: Path) -> None:
    first = Held()
    await _left(tmp_path / "s.db", agent_with(first.tool(read_only=True)), first)
    for _ in range(3):
        again = Held()
        async with _next(tmp_path / "s.db", again.tool(read_only=True)) as runtime:
            await asyncio.wait_for(again.begun.wait(), SOON)
            await runtime.close(grace=0)
    last = Held()
    last.go.set()
    async with _next(tmp_path / "s.db", last.tool(read_only=True)) as runtime:
        assert len(await told(runtime.store)) == 1
        assert (await the_task(runtime)).starts == 5


async def test_a_task_that_was_written_down_and_not_begun_is_begun_by_whoever_comes_next(tmp_path: Path) -> None:
    """The process ended right after the model was told that the call goes on."""
    held = Held()
    held.go.set()
    await _never_begun(tmp_path / "s.db")
    async with _next(tmp_path / "s.db", held.tool(background=True, inline_budget=None)) as runtime:
        (notice,) = await told(runtime.store)
        assert (notice.kind, held.keys) == ("task_succeeded", ["key-1"])


async def test_steps_of_a_task_are_not_repeated(tmp_path: Path) -> None:
    stepped: list[str] = []
    first, second = asyncio.Event(), asyncio.Event()

    def tool_with(reached: asyncio.Event, *, go: bool) -> hf.Tool[..., Any]:
        @hf.tool(idempotent=True, background=True)
        async def steps(ctx: hf.Context) -> str:
            value = await ctx.step("one", lambda: stepped.append("one") or "stepped")
            reached.set()
            if not go:
                await asyncio.Event().wait()
            return value

        return steps

    agent = agent_with(tool_with(first, go=False))
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        await asked(runtime, agent)
        await first.wait()
        await runtime.close(grace=0)
    async with _next(tmp_path / "s.db", tool_with(second, go=True)) as runtime:
        (notice,) = await told(runtime.store)
        assert (notice.body, stepped) == ("stepped", ["one"])


async def test_a_waiting_task_goes_on_after_a_restart(tmp_path: Path) -> None:
    @hf.tool(background=True)
    async def asks(ctx: hf.Context) -> str:
        return f"signed by {await ctx.wait('signature')}"

    agent = agent_with(asks)
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        await asked(runtime, agent)

        async def waits() -> bool:
            return (await the_task(runtime)).status == "waiting"

        await until(waits)
    async with hf.open(tmp_path / "s.db", drive=False) as other:
        task = await the_task(other)
        (wait,) = await other.waits(task.id)
        await other.resolve(other.wait_token(task.id, wait.name), "Ann")
    async with _next(tmp_path / "s.db", asks) as runtime:
        (notice,) = await told(runtime.store)
        assert (notice.kind, notice.body) == ("task_succeeded", "signed by Ann")


# ---- finding out -----------------------------------------------------------------------------------------------------


def _found(ctx: hf.Context) -> str:
    return f"found {ctx.idempotency_key}"


def _not_done(ctx: hf.Context) -> str:
    raise hf.NotDone


def _cant_tell(ctx: hf.Context) -> str:
    raise OSError("the other side does not answer")


@pytest.mark.parametrize("how", BACKGROUND)
async def test_what_reconcile_finds_is_the_result_of_the_task(tmp_path: Path, how: str) -> None:
    first, second = Held(), Held()
    await _left(tmp_path / "s.db", agent_with(first.tool(reconcile=_found, **BACKGROUND[how])), first)
    async with _next(tmp_path / "s.db", second.tool(reconcile=_found, **BACKGROUND[how])) as runtime:
        (notice,) = await told(runtime.store)
        assert (notice.kind, notice.body, second.keys) == ("task_succeeded", f"found {first.keys[0]}", [])


@pytest.mark.parametrize("how", BACKGROUND)
async def test_a_task_of_which_nothing_came_is_begun_again(tmp_path: Path, how: str) -> None:
    first, second = Held(), Held()
    second.go.set()
    await _left(tmp_path / "s.db", agent_with(first.tool(reconcile=_not_done, **BACKGROUND[how])), first)
    async with _next(tmp_path / "s.db", second.tool("again", reconcile=_not_done, **BACKGROUND[how])) as runtime:
        (notice,) = await told(runtime.store)
        assert (notice.body, second.keys) == ("again", first.keys)


async def test_a_task_of_which_nobody_can_tell_is_interrupted(tmp_path: Path) -> None:
    first, second = Held(), Held()
    await _left(tmp_path / "s.db", agent_with(first.tool(reconcile=_cant_tell)), first)
    async with _next(tmp_path / "s.db", second.tool(reconcile=_cant_tell)) as runtime:
        (notice,) = await told(runtime.store)
        assert (notice.kind, second.keys) == ("task_interrupted", [])


# ---- when the code has changed ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
async def test_a_task_whose_tool_is_not_here_is_left_to_a_process_that_has_it(tmp_path: Path, kind: str) -> None:
    first = Held()
    id = await _left(tmp_path / "s.db", agent_with(first.tool(**KINDS[kind])), first)
    async with hf.open(tmp_path / "s.db", agents=[agent_with(script=[])]) as runtime:
        await until(lambda: runtime.processes.is_left(id))
        assert [report.action for report in await runtime.recover()] == ["left"]
        await until(lambda: not runtime.active)
        assert (await the_task(runtime)).status == "running"
        assert await runtime.store.notifications(SESSION) == []


async def test_a_task_that_was_left_goes_on_in_the_process_that_has_its_tool(tmp_path: Path) -> None:
    first, second = Held(), Held()
    id = await _left(tmp_path / "s.db", agent_with(first.tool(idempotent=True)), first)
    async with hf.open(tmp_path / "s.db", agents=[agent_with(script=[])]) as runtime:
        await until(lambda: runtime.processes.is_left(id))
        second.go.set()
        async with _next(tmp_path / "s.db", second.tool(idempotent=True)) as other:
            assert (await ended_task(other)).status == "succeeded"


@pytest.mark.parametrize("kind", KINDS)
async def test_a_task_that_is_left_too_long_ends_as_interrupted(tmp_path: Path, kind: str) -> None:
    first = Held()
    await _left(tmp_path / "s.db", agent_with(first.tool(**KINDS[kind])), first)
    async with hf.open(tmp_path / "s.db", agents=[agent_with(script=[])], missing_tool_deadline=0.2) as runtime:
        (notice,) = await told(runtime.store)
        task = await the_task(runtime)
        assert (notice.kind, type(task.outcome)) == ("task_interrupted", Unknown)
        assert task.error is not None
        assert "has the tool 'slow'" in task.error.message


async def test_the_deadline_of_a_task_that_is_left_passes_while_nobody_is_there(tmp_path: Path) -> None:
    first, clock = Held(), ManualClock()
    id = await _left(tmp_path / "s.db", agent_with(first.tool()), first)
    async with hf.open(tmp_path / "s.db", agents=[agent_with(script=[])], clock=clock) as runtime:
        await until(lambda: runtime.processes.is_left(id))
    clock.advance(25 * 3_600_000)
    async with hf.open(tmp_path / "s.db", agents=[agent_with(script=[])], clock=clock) as runtime:
        assert (await ended_task(runtime)).status == "interrupted"


async def test_of_a_task_that_was_never_begun_and_left_too_long_the_session_learns_so(tmp_path: Path) -> None:
    await _never_begun(tmp_path / "s.db")
    async with hf.open(tmp_path / "s.db", agents=[agent_with(script=[])], missing_tool_deadline=0.2) as runtime:
        (notice,) = await told(runtime.store)
        assert (notice.kind, "never begun" in notice.body) == ("task_failed", True)


@pytest.mark.parametrize("by", ["this runtime", "another runtime"])
async def test_a_task_that_is_left_can_be_cancelled(tmp_path: Path, by: str) -> None:
    first = Held()
    id = await _left(tmp_path / "s.db", agent_with(first.tool()), first)
    async with hf.open(tmp_path / "s.db", agents=[agent_with(script=[])]) as runtime:
        await until(lambda: runtime.processes.is_left(id))
        async with hf.open(tmp_path / "s.db", drive=False) as other:
            await (runtime if by == "this runtime" else other).tasks.cancel(id, "no longer wanted")
        assert (await ended_task(runtime)).status == "cancelled"


async def test_a_task_whose_arguments_do_not_fit_any_more_ends(tmp_path: Path) -> None:
    begun = asyncio.Event()

    @hf.tool("add", idempotent=True, background=True)
    async def before(a: int) -> int:
        begun.set()
        await asyncio.Event().wait()
        return a

    @hf.tool("add", idempotent=True, background=True)
    async def after(b: str) -> str:
        return b

    agent = agent_with(before, script=[call("add", a=1)])
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        await asked(runtime, agent)
        await begun.wait()
        await runtime.close(grace=0)
    async with _next(tmp_path / "s.db", after) as runtime:
        (notice,) = await told(runtime.store)
        assert notice.kind == "task_failed"


async def test_a_task_of_an_agent_that_is_not_here_waits_for_it(tmp_path: Path) -> None:
    first, second = Held(), Held()
    await _left(tmp_path / "s.db", agent_with(first.tool(read_only=True)), first)
    async with hf.open(tmp_path / "s.db") as runtime:
        await asyncio.sleep(2 * BUDGET)
        assert (await the_task(runtime)).status == "running"
        second.go.set()
        runtime.register(agent_with(second.tool(read_only=True)))
        assert (await ended_task(runtime)).status == "succeeded"


# ---- closing ---------------------------------------------------------------------------------------------------------


async def test_closing_lets_a_short_task_finish(tmp_path: Path) -> None:
    held = Held()
    agent = agent_with(held.tool())
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        await asked(runtime, agent)
        asyncio.get_running_loop().call_later(0.1, held.go.set)
    async with hf.open_store(tmp_path / "s.db") as store:
        assert [notice.kind for notice in await store.notifications(SESSION)] == ["task_succeeded"]


@pytest.mark.torture
async def test_closing_a_runtime_with_a_long_task_takes_less_than_five_seconds(tmp_path: Path) -> None:
    held = Held()
    agent = agent_with(held.tool())
    loop = asyncio.get_running_loop()
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        await asked(runtime, agent)
        begun = loop.time()
    assert loop.time() - begun < 5


async def test_a_call_that_goes_to_the_background_while_its_runtime_closes_does_not_outlive_it(tmp_path: Path) -> None:
    held = Held()
    agent = agent_with(held.tool(inline_budget=0.1))
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        await runtime.session(SESSION, agent=agent).send("go")
        await held.begun.wait()
        await runtime.close(grace=0.5)
    assert held.ended == ["cancelled"]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_call_that_goes_to_the_background_while_its_runtime_closes_is_not_lost(
    tmp_path: Path, kind: str
) -> None:
    """What comes next finds it at once: nobody holds it any more."""
    first, second = Held(), Held()
    agent = agent_with(first.tool(inline_budget=0.1, **KINDS[kind]))
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        await runtime.session(SESSION, agent=agent).send("go")
        await first.begun.wait()
        await runtime.close(grace=0.5)
    second.go.set()
    async with _next(tmp_path / "s.db", second.tool(inline_budget=0.1, **KINDS[kind])) as runtime:

        async def rests() -> bool:
            return await runtime.session(SESSION).status() == "completed" and runtime.active == 0

        await until(rests)
        found = await runtime.store.notifications(SESSION)
        wanted = "task_interrupted" if kind == "acting" else "task_succeeded"
        if await runtime.tasks.list():
            assert [notice.kind for notice in found] == [wanted]
        else:
            assert found == []


# ---- beside each other -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
async def test_a_second_runtime_in_the_process_leaves_live_tasks_alone(tmp_path: Path, kind: str) -> None:
    first, second = Held(), Held()
    agent = agent_with(first.tool(**KINDS[kind]))
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        await asked(runtime, agent)
        async with _next(tmp_path / "s.db", second.tool(**KINDS[kind])) as other:
            assert await other.recover() == []
            await asyncio.sleep(0.4)
            assert ((await the_task(other)).status, second.keys) == ("running", [])
        first.go.set()
        (notice,) = await told(runtime.store)
        assert (notice.kind, first.ended) == ("task_succeeded", ["done"])


async def test_a_runtime_that_is_replaced_in_the_process_hands_its_tasks_over(tmp_path: Path) -> None:
    """Other tools are wanted: a second runtime is opened, then the first is closed."""
    first, second = Held(), Held()
    agent = agent_with(first.tool(read_only=True))
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        await asked(runtime, agent)
        async with _next(tmp_path / "s.db", second.tool(read_only=True)) as other:
            await runtime.close(grace=0)
            second.go.set()
            (notice,) = await told(other.store)
            assert notice.kind == "task_succeeded"


# ---- the report ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "action"),
    [({}, "interrupted"), ({"read_only": True}, "rerun"), ({"reconcile": _found}, "reconcile")],
    ids=["acting", "reading", "reconciled"],
)
async def test_recover_tells_what_becomes_of_each_task(tmp_path: Path, options: dict[str, Any], action: str) -> None:
    first = Held()
    id = await _left(tmp_path / "s.db", agent_with(first.tool(**options)), first)
    async with _next(tmp_path / "s.db", Held().tool(**options), drive=False) as runtime:
        (report,) = await runtime.recover()
        assert (report.task, report.session, report.tool, report.action) == (id, SESSION, "slow", action)


async def test_recover_right_after_opening_tells_of_what_was_interrupted(tmp_path: Path) -> None:
    first, second = Held(), Held()
    id = await _left(tmp_path / "s.db", agent_with(first.tool(read_only=True)), first)
    async with _next(tmp_path / "s.db", second.tool(read_only=True)) as runtime:
        await asyncio.wait_for(second.begun.wait(), SOON)
        second.go.set()
        assert [report.task for report in await runtime.recover()] == [id]


async def test_recover_finds_nothing_where_nothing_was_left(tmp_path: Path) -> None:
    held = Held()
    held.go.set()
    agent = agent_with(held.tool(**BACKGROUND["background"]))
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        await asked(runtime, agent)
        await told(runtime.store)
        assert await runtime.recover() == []


# ---- room ------------------------------------------------------------------------------------------------------------


async def test_a_session_is_served_while_its_task_takes_the_only_place(tmp_path: Path) -> None:
    held = Held()
    agent = agent_with(held.tool())
    async with hf.open(tmp_path / "s.db", agents=[agent], concurrency=1) as runtime:
        await asked(runtime, agent)
        assert (await asked(runtime, agent, "are you there?")).status == "completed"
        held.go.set()


async def test_tasks_that_find_no_room_after_a_restart_are_done_one_after_the_other(tmp_path: Path) -> None:
    go: list[bool] = []

    @hf.tool(read_only=True, background=True)
    async def looks(at: int) -> int:
        if not go:
            await asyncio.Event().wait()
        return at

    agent = agent_with(looks, script=[[call("looks", at=number) for number in range(4)]])
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        await asked(runtime, agent)
        await asyncio.sleep(BUDGET)
        await runtime.close(grace=0)
    go.append(True)
    async with _next(tmp_path / "s.db", looks, concurrency=1) as runtime:
        found = await told(runtime.store, count=4)
        assert sorted(notice.body for notice in found) == ["0", "1", "2", "3"]
        assert await check(runtime.store) == []
