"""Whatever a tool does, inline or in the background, comes to a result within its bounds; each attempt is on record."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest
from tests.behaviour.background import (
    BUDGET,
    SESSION,
    Stubborn,
    agent_with,
    asked,
    ended_task,
    result,
    results,
    the_task,
    told,
)
from tests.behaviour.talk import SOON, until

import holdfast as hf
from holdfast.testing import call
from holdfast.tools import ToolRetryPolicy, abandoned

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator

    from holdfast.messages import ToolResult
    from holdfast.runtime.runtime import Runtime

AT_ONCE = ToolRetryPolicy(attempts=3, pause=0.0)
BRIEF = 0.1
HOW: dict[str, dict[str, Any]] = {
    "inline": {},
    "spilled": {"inline_budget": BUDGET},
    "background": {"background": True},
}


@pytest.fixture
def free() -> Iterator[threading.Event]:
    """Lets threads go that a test has left hanging."""
    made = threading.Event()
    yield made
    made.set()


@pytest.fixture
async def stubborn() -> AsyncGenerator[Stubborn]:
    made = Stubborn()
    yield made
    made.free = True
    await asyncio.sleep(2 * BUDGET)


async def _said(tool: hf.Tool[..., Any], **arguments: Any) -> ToolResult:
    agent = agent_with(tool, script=[call(tool, **arguments)])
    async with hf.open(None, agents=[agent]) as runtime:
        assert (await asked(runtime, agent)).status == "completed"
        return await result(runtime)


async def _words(runtime: Runtime, how: str) -> str:
    """What the model has read of the one call, in the end."""
    if how == "inline":
        return str((await result(runtime)).content)
    (notice,) = await told(runtime.store)
    return notice.body


# ---- time ------------------------------------------------------------------------------------------------------------


async def test_a_reading_tool_that_hangs_is_stopped_and_the_model_is_told_after_how_long() -> None:
    @hf.tool(read_only=True, timeout=BRIEF)
    async def hangs() -> str:
        await asyncio.Event().wait()
        return "never"

    found = await _said(hangs)
    assert (found.state, "0.1 s" in str(found.content)) == ("error", True)


async def test_an_acting_tool_that_hangs_is_stopped_and_its_outcome_is_unknown() -> None:
    @hf.tool(timeout=BRIEF)
    async def hangs() -> str:
        await asyncio.Event().wait()
        return "never"

    assert (await _said(hangs)).state == "unknown"


async def test_a_thread_that_hangs_is_given_up_and_named(free: threading.Event) -> None:
    @hf.tool(read_only=True, timeout=BRIEF)
    def hangs_in_a_thread() -> str:
        free.wait(2 * SOON)
        return "never"

    before = abandoned().total
    assert (await _said(hangs_in_a_thread)).state == "error"
    assert (abandoned().total, "hangs_in_a_thread" in abandoned().running) == (before + 1, True)


async def test_a_tool_that_ignores_its_timeout_does_not_hold_up_its_turn(stubborn: Stubborn) -> None:
    assert (await _said(stubborn.tool(read_only=True, timeout=BRIEF))).state == "error"


async def test_a_hanging_tool_does_not_hold_up_other_sessions() -> None:
    at, go = asyncio.Event(), asyncio.Event()

    @hf.tool(read_only=True)
    async def hangs() -> str:
        at.set()
        await go.wait()
        return "done"

    agent = agent_with(hangs)
    quick = hf.Agent("quick", model=agent_with(script=[]).model)
    async with hf.open(None, agents=[agent, quick]) as runtime:
        turn = await runtime.session(SESSION, agent=agent).send("go")
        await at.wait()
        assert (await asked(runtime, quick, session="other")).status == "completed"
        go.set()
        await turn.outcome(timeout=SOON)


# ---- what it raises and gives ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("boom"), "ValueError: boom"),
        (SystemExit(1), "asked to end the process"),
        (RecursionError("deep"), "RecursionError"),
        (MemoryError(), "MemoryError"),
        (ExceptionGroup("both", [ValueError("a"), KeyError("b")]), "ValueError: a"),
        (ValueError("caf\udce9"), "ValueError"),
        (ValueError("z" * 3_000_000), "zzz"),
    ],
    ids=["error", "exit", "recursion", "memory", "group", "unprintable", "huge"],
)
async def test_what_a_tool_raises_is_told_and_nothing_breaks(how: str, error: BaseException, said: str) -> None:
    @hf.tool(read_only=True, **HOW[how])
    async def raises() -> str:
        await asyncio.sleep(0 if how == "inline" else 2 * BUDGET)
        raise error

    agent = agent_with(raises)
    async with hf.open(None, agents=[agent]) as runtime:
        await asked(runtime, agent)
        assert said in await _words(runtime, how)
        assert (await asked(runtime, agent, "and now?")).status == "completed"


@pytest.mark.parametrize("how", HOW)
async def test_bytes_that_are_not_utf8_are_a_result(how: str) -> None:
    @hf.tool(read_only=True, **HOW[how])
    async def gives() -> bytes:
        await asyncio.sleep(0 if how == "inline" else 2 * BUDGET)
        return b"caf\xe9 \xff\xfe"

    agent = agent_with(gives)
    async with hf.open(None, agents=[agent]) as runtime:
        await asked(runtime, agent)
        assert "7 bytes that are not text" in await _words(runtime, how)


@pytest.mark.parametrize("how", HOW)
async def test_a_result_without_a_json_form_is_an_error_that_the_model_can_read(how: str) -> None:
    @hf.tool(read_only=True, **HOW[how])
    async def gives() -> Any:
        await asyncio.sleep(0 if how == "inline" else 2 * BUDGET)
        return object()

    agent = agent_with(gives)
    async with hf.open(None, agents=[agent]) as runtime:
        await asked(runtime, agent)
        assert "object" in await _words(runtime, how)


@pytest.mark.parametrize("how", HOW)
async def test_a_long_result_is_cut_for_the_model_and_kept_whole(how: str) -> None:
    whole = "\n".join(f"line {number}" for number in range(20_000))

    @hf.tool(read_only=True, output_limit=1_000, **HOW[how])
    async def gives() -> str:
        await asyncio.sleep(0 if how == "inline" else 2 * BUDGET)
        return whole

    agent = agent_with(gives)
    async with hf.open(None, agents=[agent]) as runtime:
        await asked(runtime, agent)
        words = await _words(runtime, how)
        assert len(words) < 2_500
        assert "line 0" in words
        journal = SESSION if how == "inline" else (await the_task(runtime)).id
        kept = [
            blob async for entry in runtime.store.read_all(journal) for blob in getattr(entry.record, "kept", ()) or ()
        ]
        assert [await runtime.store.blob(blob.digest) for blob in kept] == [whole.encode()]


@pytest.mark.parametrize("how", HOW)
async def test_a_file_that_a_tool_gives_is_kept(how: str) -> None:
    @hf.tool(read_only=True, **HOW[how])
    async def draws() -> hf.File:
        await asyncio.sleep(0 if how == "inline" else 2 * BUDGET)
        return hf.File(b"\x89PNG picture", "image/png", name="p.png")

    agent = agent_with(draws)
    async with hf.open(None, agents=[agent]) as runtime:
        await asked(runtime, agent)
        journal = SESSION
        if how != "inline":
            journal = (await ended_task(runtime)).id
        refs = [
            blob async for entry in runtime.store.read_all(journal) for blob in getattr(entry.record, "refs", ()) or ()
        ]
        assert [await runtime.store.blob(blob.digest) for blob in refs] == [b"\x89PNG picture"]


@pytest.mark.torture
@pytest.mark.timeout(120)
@pytest.mark.parametrize("how", HOW)
async def test_a_gigabyte_of_output_is_a_result(how: str) -> None:
    @hf.tool(read_only=True, **HOW[how])
    def gives() -> str:
        return "x" * (1 << 30)

    agent = agent_with(gives)
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await runtime.session(SESSION, agent=agent).send("go")
        assert (await turn.outcome(timeout=100)).status == "completed"
        if how != "inline":
            async with asyncio.timeout(100):
                while not (await the_task(runtime)).over:
                    await asyncio.sleep(0.1)
        assert len(await _words(runtime, how)) < 100_000


# ---- trying again ----------------------------------------------------------------------------------------------------


class Failing:
    """A tool that fails so many times, and then does not."""

    def __init__(self, times: int) -> None:
        self.left = times
        self.keys: list[str] = []

    def tool(self, **options: Any) -> hf.Tool[..., Any]:
        @hf.tool(idempotent=True, **options)
        async def flaky(ctx: hf.Context) -> str:
            self.keys.append(ctx.idempotency_key)
            self.left -= 1
            if self.left >= 0:
                raise OSError(f"number {len(self.keys)}")
            return f"at attempt {len(self.keys)}"

        return flaky


async def test_a_tool_is_tried_again_only_where_it_says_so() -> None:
    failing = Failing(1)
    assert ((await _said(failing.tool())).state, len(failing.keys)) == ("error", 1)


async def test_a_tool_that_fails_twice_and_may_be_tried_three_times_works() -> None:
    failing = Failing(2)
    assert (await _said(failing.tool(retry=AT_ONCE))).content == "at attempt 3"


async def test_every_attempt_has_the_same_idempotency_key() -> None:
    failing = Failing(2)
    await _said(failing.tool(retry=AT_ONCE))
    assert (len(failing.keys), len(set(failing.keys))) == (3, 1)


async def test_a_tool_that_fails_every_time_is_an_error_with_the_last_reason() -> None:
    failing = Failing(9)
    found = await _said(failing.tool(retry=AT_ONCE))
    assert (found.state, "number 3" in str(found.content), len(failing.keys)) == ("error", True, 3)


async def test_an_acting_tool_can_not_be_declared_to_be_tried_again() -> None:
    with pytest.raises(hf.errors.ToolInvalid):

        @hf.tool(retry=3)
        async def acts() -> str:
            return "done"


@pytest.mark.parametrize("how", ["inline", "background"])
async def test_each_attempt_is_recorded(how: str) -> None:
    agent = agent_with(Failing(3).tool(retry=ToolRetryPolicy(attempts=4, pause=0.0), **HOW[how]))
    async with hf.open(None, agents=[agent]) as runtime:
        await asked(runtime, agent)
        journal = SESSION if how == "inline" else (await ended_task(runtime)).id
        recorded = repr([entry.record async for entry in runtime.store.read_all(journal)])
        assert [f"number {attempt}" in recorded for attempt in (1, 2, 3)] == [True, True, True]


async def test_a_pause_between_attempts_ends_when_the_turn_is_cancelled() -> None:
    failing = Failing(9)
    agent = agent_with(failing.tool(retry=ToolRetryPolicy(attempts=3, pause=60.0, longest=60.0)))
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await runtime.session(SESSION, agent=agent).send("go")

        async def has_failed() -> bool:
            return bool(failing.keys)

        await until(has_failed)
        await turn.cancel()
        assert (await turn.outcome(timeout=SOON)).status == "cancelled"
        assert len(failing.keys) == 1


# ---- how many at once ------------------------------------------------------------------------------------------------


class Crowd:
    """How many calls run at once."""

    def __init__(self) -> None:
        self.now = 0
        self.most = 0

    def tool(self, **options: Any) -> hf.Tool[..., Any]:
        @hf.tool(read_only=True, **options)
        async def works(n: int) -> int:
            self.now += 1
            self.most = max(self.most, self.now)
            await asyncio.sleep(BUDGET)
            self.now -= 1
            return n

        return works


@pytest.mark.parametrize("how", ["inline", "background"])
async def test_no_more_calls_of_a_tool_run_at_once_than_it_says(how: str) -> None:
    crowd = Crowd()
    agent = agent_with(
        crowd.tool(max_parallel=2, **HOW[how]), script=[[call("works", n=number) for number in range(8)]]
    )
    async with hf.open(None, agents=[agent]) as runtime:
        await asked(runtime, agent)
        if how == "background":
            await told(runtime.store, count=8)
        assert crowd.most == 2


async def test_calls_that_only_read_run_side_by_side_without_a_bound() -> None:
    crowd = Crowd()
    agent = agent_with(crowd.tool(), script=[[call("works", n=number) for number in range(8)]])
    async with hf.open(None, agents=[agent]) as runtime:
        await asked(runtime, agent)
        assert crowd.most == 8
        assert [found.content for found in results(await runtime.session(SESSION).history())] == list(range(8))


async def test_waiting_for_a_place_counts_towards_the_budget_and_not_towards_the_timeout() -> None:
    crowd = Crowd()
    agent = agent_with(
        crowd.tool(max_parallel=1, timeout=5 * BUDGET, inline_budget=2 * BUDGET),
        script=[[call("works", n=number) for number in range(8)]],
    )
    async with hf.open(None, agents=[agent]) as runtime:
        await asked(runtime, agent)
        found = await runtime.tasks.list(session=SESSION)
        assert found
        assert {notice.kind for notice in await told(runtime.store, count=len(found))} == {"task_succeeded"}


async def test_a_cancelled_task_gives_its_place_back() -> None:
    begun: list[int] = []
    go = asyncio.Event()

    @hf.tool(read_only=True, background=True, max_parallel=1)
    async def works(n: int) -> int:
        begun.append(n)
        await go.wait()
        return n

    agent = agent_with(works, script=[[call("works", n=number) for number in range(2)]])
    async with hf.open(None, agents=[agent]) as runtime:
        await asked(runtime, agent)

        async def has_begun() -> bool:
            return bool(begun)

        await until(has_begun)
        for found in await runtime.tasks.list(session=SESSION):
            task = await runtime.tasks.task(found.id)
            if task.call is not None and task.call.arguments["n"] == begun[0]:
                await runtime.tasks.cancel(found.id)

        async def both_begun() -> bool:
            return len(begun) == 2

        await until(both_begun)
        go.set()
        assert {notice.kind for notice in await told(runtime.store, count=2)} == {"task_cancelled", "task_succeeded"}
