"""`holdfast.testing.context`: a tool is called directly, with a context of its own."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import holdfast as hf
from holdfast.errors import DepsMissing, WaitExpired
from holdfast.testing import WaitUnanswered, context


async def test_the_context_has_what_the_test_gives_it() -> None:
    @hf.tool(read_only=True)
    async def whoami(ctx: hf.Context) -> list[Any]:
        return [ctx.session, ctx.tool, ctx.metadata["user"], ctx.secrets["API_KEY"], ctx.cancelled, ctx.deadline]

    due = datetime(2027, 1, 1, tzinfo=UTC)
    async with context(
        tool="whoami", session="customer-42", metadata={"user": "ann"}, secrets={"API_KEY": "k-1"}, deadline=due
    ) as ctx:
        assert await whoami(ctx) == ["customer-42", "whoami", "ann", "k-1", False, due]
        ctx.cancel()
        assert ctx.cancelled


async def test_deps_are_those_of_the_test() -> None:
    @hf.tool(read_only=True)
    async def look(ctx: hf.Context[list[str]]) -> int:
        return len(ctx.deps)

    async with context(deps=["a", "b"]) as ctx:
        assert await look(ctx) == 2
    async with context() as ctx:
        with pytest.raises(DepsMissing):
            await look(ctx)


async def test_steps_run_and_are_remembered_by_the_next_attempt() -> None:
    calls: list[str] = []

    async def charge(cents: int) -> str:
        calls.append(f"charge {cents}")
        return f"paid {cents}"

    async def buy(ctx: hf.Context) -> str:
        receipt = await ctx.step("charge", charge, 100)
        return f"{receipt}, {await ctx.step('charge', charge, 200)}"

    async with context() as ctx:
        first = await buy(ctx)
        again = await ctx.again()
        assert await buy(again) == first == "paid 100, paid 200"
        assert calls == ["charge 100", "charge 200"]
        assert again.idempotency_key == ctx.idempotency_key


async def test_an_attempt_that_failed_goes_on_where_it_was() -> None:
    calls: list[str] = []

    def note(name: str) -> str:
        calls.append(name)
        return name

    async def work(ctx: hf.Context, *, fails: bool) -> str:
        await ctx.step("first", note, "first")
        if fails:
            raise ConnectionError("lost")
        return await ctx.step("second", note, "second")

    async with context() as ctx:
        with pytest.raises(ConnectionError):
            await work(ctx, fails=True)
        assert await work(await ctx.again(), fails=False) == "second"
    assert calls == ["first", "second"]


async def test_steps_in_tasks_of_the_tool_are_told_apart() -> None:
    calls: list[int] = []

    async def double(number: int) -> int:
        calls.append(number)
        await asyncio.sleep(0)
        return 2 * number

    async def one(ctx: hf.Context, number: int) -> int:
        return await ctx.step("double", double, number)

    async def both(ctx: hf.Context) -> list[int]:
        return list(await asyncio.gather(one(ctx, 3), one(ctx, 4)))

    async with context() as ctx:
        assert await both(ctx) == await both(await ctx.again()) == [6, 8]
    assert calls == [3, 4]


async def test_a_fixture_may_make_the_context_in_another_task() -> None:
    made = context()
    ctx = await asyncio.create_task(made.__aenter__())
    assert await ctx.step("length", len, "abc") == 3
    await asyncio.create_task(made.__aexit__(None, None, None))


async def test_waits_have_the_answers_of_the_test() -> None:
    async def publish(ctx: hf.Context) -> list[Any]:
        return [await ctx.wait("editor", timeout=timedelta(days=2)), await ctx.wait("count"), await ctx.wait("count")]

    numbers = iter((1, 2, 3, 4))
    async with context(answers={"editor": {"by": "Ann"}, "count": lambda: next(numbers)}) as ctx:
        assert await publish(ctx) == [{"by": "Ann"}, 1, 2]
        assert await publish(await ctx.again()) == [{"by": "Ann"}, 1, 2]  # the first answer counts


async def test_a_wait_may_end_in_the_error_of_the_test() -> None:
    async def publish(ctx: hf.Context) -> str:
        try:
            return await ctx.wait("editor", timeout=3600)
        except WaitExpired:
            return "nobody answered"

    async with context(answers={"editor": WaitExpired("editor")}) as ctx:
        assert await publish(ctx) == "nobody answered"


async def test_a_wait_without_an_answer_names_what_is_missing() -> None:
    async with context() as ctx:
        with pytest.raises(WaitUnanswered, match=r"answers=.*editor"):
            await ctx.wait("editor")


async def test_progress_attachments_and_memory_are_those_of_the_call() -> None:
    async def draw(ctx: hf.Context) -> Any:
        ctx.progress("half", fraction=0.5)
        kept = await ctx.attach(b"png", name="a.png")
        return await ctx.attachment(kept)

    async with context() as ctx:
        assert await draw(ctx) == b"png"
        assert ctx.reports == [("half", 0.5)]
        await ctx.runtime.memory("notes").put("colour", "blue")
        entry = await ctx.host.memory("notes").get("colour")
        assert entry is not None
        assert entry.value == "blue"


async def test_a_deferral_has_a_key_that_the_runtime_accepts() -> None:
    async with context() as ctx:
        pending = await ctx.defer(timeout=60)
        settlement = await ctx.runtime.resolve(pending.key, "done")
        assert settlement.won


def test_a_plain_function_is_called_in_a_test_that_is_not_async() -> None:
    @hf.tool(read_only=True)
    def look(ctx: hf.Context, page: int) -> str:
        return f"{ctx.session} {page} {ctx.secrets['TOKEN']}"

    with context(session="s", secrets={"TOKEN": "t-1"}) as ctx:
        assert look(ctx, 3) == "s 3 t-1"


async def test_secrets_do_not_reach_the_records_of_steps() -> None:
    def ask(key: str) -> str:
        return f"asked with {key}"

    async with context(secrets={"KEY": "sk-very-secret-1"}) as ctx:
        await ctx.step("ask", ask, ctx.secrets["KEY"])
        again = await ctx.again()
        assert "sk-very-secret-1" not in await again.step("ask", ask, again.secrets["KEY"])


def test_a_deadline_needs_a_time_zone() -> None:
    with pytest.raises(hf.UsageError, match="time zone"):
        context(deadline=datetime(2027, 1, 1))  # noqa: DTZ001  the mistake that is meant
