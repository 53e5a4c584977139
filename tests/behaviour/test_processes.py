"""Durable functions: started once by id, each step recorded once, the same result whoever goes on with them."""

from __future__ import annotations

import asyncio
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import BaseModel
from tests.behaviour.talk import SOON, is_now, until

import holdfast as hf
from holdfast.testing import check

if TYPE_CHECKING:
    from pathlib import Path


class Order(BaseModel):
    number: int
    day: date


class Shop:
    """Counts what was done to the world."""

    def __init__(self) -> None:
        self.done: list[Any] = []
        self.keys: list[str] = []

    async def note(self, what: object) -> Any:
        await asyncio.sleep(0)
        self.done.append(what)
        return what


@pytest.fixture
def shop() -> Shop:
    return Shop()


@hf.process
async def adds(ctx: hf.ProcessContext, a: int, b: int = 2) -> int:
    return await ctx.step("add", lambda: a + b)


async def test_a_process_gives_what_its_function_returns() -> None:
    async with hf.open(None, processes=[adds]) as runtime:
        assert await (await runtime.start(adds, 1)).result(timeout=SOON) == 3


async def test_the_same_id_and_arguments_are_the_same_process(shop: Shop) -> None:
    @hf.process
    async def once(ctx: hf.ProcessContext, n: int) -> int:
        return await ctx.step("note", shop.note, n)

    async with hf.open(None, processes=[once]) as runtime:
        first = await runtime.start(once, 1, id="p")
        await first.result(timeout=SOON)
        await (await runtime.start(once, n=1, id="p")).result(timeout=SOON)
    assert shop.done == [1]


async def test_the_same_id_with_other_arguments_is_a_conflict() -> None:
    async with hf.open(None, processes=[adds]) as runtime:
        await runtime.start(adds, 1, id="p")
        with pytest.raises(hf.errors.ProcessConflict, match="'p' was started before"):
            await runtime.start(adds, 2, id="p")


async def test_the_same_id_with_another_function_is_a_conflict() -> None:
    @hf.process
    async def other(ctx: hf.ProcessContext, a: int) -> int:
        return a

    async with hf.open(None, processes=[adds, other]) as runtime:
        await runtime.start(adds, 1, id="p")
        with pytest.raises(hf.errors.ProcessConflict):
            await runtime.start(other, 1, id="p")


async def test_arguments_that_do_not_fit_are_refused_before_anything_is_written() -> None:
    async with hf.open(None, processes=[adds]) as runtime:
        with pytest.raises(hf.errors.ProcessInvalid, match="a: Input should be a valid integer"):
            await runtime.start(adds, "one", id="p")
        assert await runtime.processes.list() == []


async def test_an_argument_that_is_not_there_is_refused() -> None:
    async with hf.open(None, processes=[adds]) as runtime:
        with pytest.raises(hf.errors.ProcessInvalid, match="can't be called like that"):
            await runtime.start(adds, 1, c=3)  # pyright: ignore[reportCallIssue]


async def test_arguments_come_as_the_types_that_the_function_asks_for() -> None:
    @hf.process
    async def shows(ctx: hf.ProcessContext, order: Order, span: timedelta) -> str:
        return f"{type(order).__name__} {order.day.year} {span.total_seconds():g}"

    async with hf.open(None, processes=[shows]) as runtime:
        order = Order(number=7, day=date(2026, 1, 2))
        assert await (await runtime.start(shows, order, timedelta(seconds=5))).result(timeout=SOON) == "Order 2026 5"


def test_a_plain_function_can_not_be_a_process() -> None:
    with pytest.raises(hf.errors.ProcessInvalid, match="async def"):

        @hf.process  # pyright: ignore[reportArgumentType]
        def plain(ctx: hf.ProcessContext) -> None: ...


def test_a_function_without_a_context_can_not_be_a_process() -> None:
    with pytest.raises(hf.errors.ProcessInvalid, match="first parameter"):

        @hf.process  # pyright: ignore[reportArgumentType]
        async def bare() -> None: ...


async def test_a_name_that_no_function_has_is_told_with_those_that_there_are() -> None:
    async with hf.open(None, processes=[adds]) as runtime:
        with pytest.raises(hf.errors.FunctionUnknown, match="it has: adds"):
            await runtime.start("subtracts", 1)


async def test_two_functions_of_one_name_are_refused() -> None:
    @hf.process(name="adds")
    async def other(ctx: hf.ProcessContext) -> None: ...

    with pytest.raises(hf.errors.ProcessInvalid, match="another function has this name"):
        async with hf.open(None, processes=[adds, other]):
            pass


async def test_a_function_that_raises_fails_its_process() -> None:
    @hf.process
    async def breaks(ctx: hf.ProcessContext) -> None:
        raise ValueError("no such order")

    async with hf.open(None, processes=[breaks]) as runtime:
        process = await runtime.start(breaks)
        with pytest.raises(hf.ProcessFailed, match="ValueError: no such order"):
            await process.result(timeout=SOON)
        assert await process.status() == "failed"


async def test_a_step_that_failed_can_be_caught() -> None:
    def refuse() -> None:
        raise OSError("closed")

    @hf.process
    async def tries(ctx: hf.ProcessContext) -> str:
        try:
            await ctx.step("ask", refuse)
        except hf.EffectFailed as error:
            return error.message
        return "open"

    async with hf.open(None, processes=[tries]) as runtime:
        assert await (await runtime.start(tries)).result(timeout=SOON) == "closed"


async def test_a_result_without_a_json_form_fails_its_process() -> None:
    @hf.process
    async def odd(ctx: hf.ProcessContext) -> object:
        return object()

    async with hf.open(None, processes=[odd]) as runtime:
        with pytest.raises(hf.ProcessFailed, match="no JSON form"):
            await (await runtime.start(odd)).result(timeout=SOON)


async def test_a_large_result_comes_back_whole() -> None:
    @hf.process
    async def large(ctx: hf.ProcessContext) -> str:
        return "x" * 100_000

    async with hf.open(None, processes=[large]) as runtime:
        assert len(await (await runtime.start(large)).result(timeout=SOON)) == 100_000


async def test_a_process_that_was_interrupted_goes_on_and_repeats_no_step(tmp_path: Path, shop: Shop) -> None:
    gate = asyncio.Event()

    @hf.process
    async def long(ctx: hf.ProcessContext) -> list[Any]:
        first = await ctx.step("first", shop.note, 1)
        await ctx.step("gate", gate.wait)
        return [first, await ctx.step("second", shop.note, 2)]

    async with hf.open(tmp_path / "s.db", processes=[long]) as runtime:
        await runtime.start(long, id="p")
        await until(lambda: _has(runtime, "p", "process/first"))
        await runtime.close(grace=0)
    gate.set()
    async with hf.open(tmp_path / "s.db", processes=[long]) as runtime:
        assert await runtime.processes.handle("p").result(timeout=SOON) == [1, 2]
        assert await check(runtime.store) == []
    assert shop.done == [1, 2]


async def _has(runtime: hf.Runtime, id: str, key: str) -> bool:
    return any(event.key == key for event in await runtime.processes.handle(id).timeline())


async def test_a_step_that_is_repeated_has_the_same_idempotency_key(tmp_path: Path) -> None:
    keys: list[str] = []
    gate = asyncio.Event()

    @hf.process
    async def pays(ctx: hf.ProcessContext) -> str:
        async def pay() -> str:
            keys.append(ctx.idempotency_key)
            await gate.wait()
            return "paid"

        return await ctx.step("pay", pay)

    async with hf.open(tmp_path / "s.db", processes=[pays]) as runtime:
        await runtime.start(pays, id="p")
        await until(lambda: _true(keys))
        await runtime.close(grace=0)
    gate.set()
    async with hf.open(tmp_path / "s.db", processes=[pays]) as runtime:
        await runtime.processes.handle("p").result(timeout=SOON)
    assert len(keys) == 2
    assert keys[0] == keys[1]


async def _true(value: object) -> bool:
    await asyncio.sleep(0)
    return bool(value)


async def test_two_steps_have_different_idempotency_keys() -> None:
    @hf.process
    async def pays(ctx: hf.ProcessContext) -> list[str]:
        async def key() -> str:
            await asyncio.sleep(0)
            return ctx.idempotency_key

        return [await ctx.step("pay", key), await ctx.step("pay", key)]

    async with hf.open(None, processes=[pays]) as runtime:
        first, second = await (await runtime.start(pays)).result(timeout=SOON)
    assert first != second


async def test_a_step_that_must_not_be_repeated_ends_as_unknown_after_an_interruption(tmp_path: Path) -> None:
    gate = asyncio.Event()

    @hf.process
    async def pays(ctx: hf.ProcessContext) -> str:
        try:
            await ctx.step("pay", gate.wait, repeat=hf.Repeat.NEVER)
        except hf.EffectUnknown:
            return "nobody knows"
        return "paid"

    async with hf.open(tmp_path / "s.db", processes=[pays]) as runtime:
        await runtime.start(pays, id="p")
        await until(lambda: _has(runtime, "p", "process/pay"))
        await runtime.close(grace=0)
    async with hf.open(tmp_path / "s.db", processes=[pays]) as runtime:
        assert await runtime.processes.handle("p").result(timeout=SOON) == "nobody knows"
        assert await check(runtime.store) == []


async def test_code_that_asks_for_another_step_stops_with_both_sides(tmp_path: Path) -> None:
    @hf.process(name="orders")
    async def old(ctx: hf.ProcessContext) -> None:
        await ctx.step("reserve", lambda: 1)
        await ctx.wait("go")

    @hf.process(name="orders")
    async def new(ctx: hf.ProcessContext) -> None:
        await ctx.step("charge", lambda: 1)
        await ctx.wait("go")

    async with hf.open(tmp_path / "s.db", processes=[old]) as runtime:
        process = await runtime.start(old, id="p")
        await until(lambda: is_now(process, "waiting"))
    async with hf.open(tmp_path / "s.db", processes=[new]) as runtime:
        process = runtime.processes.handle("p")
        await process.signal("go")
        with pytest.raises(hf.ReplayMismatch, match=r"reserve.*charge"):
            await process.result(timeout=SOON)


async def _changed(path: Path, old: Any, new: Any, told: str) -> None:
    """Begin with the old code, go on with the new one: it stops, and says what differs."""
    async with hf.open(path, processes=[old]) as runtime:
        process = await runtime.start(old, id="p")
        await until(lambda: is_now(process, "waiting"))
    async with hf.open(path, processes=[new]) as runtime:
        process = runtime.processes.handle("p")
        await process.signal("go")
        with pytest.raises(hf.ReplayMismatch, match=told):
            await process.result(timeout=SOON)
        assert [stuck.id for stuck in await runtime.processes.stuck()] == ["p"]


async def test_code_that_leaves_out_a_recorded_step_stops_before_it_ends(tmp_path: Path) -> None:
    @hf.process(name="orders")
    async def old(ctx: hf.ProcessContext) -> None:
        await ctx.wait("go")

    @hf.process(name="orders")
    async def new(ctx: hf.ProcessContext) -> None:
        await asyncio.sleep(0)

    await _changed(tmp_path / "s.db", old, new, "process/go")


async def test_code_that_gives_a_recorded_step_other_arguments_stops(tmp_path: Path) -> None:
    @hf.process(name="orders")
    async def old(ctx: hf.ProcessContext) -> None:
        await ctx.step("reserve", abs, -1)
        await ctx.wait("go")

    @hf.process(name="orders")
    async def new(ctx: hf.ProcessContext) -> None:
        await ctx.step("reserve", abs, -2)
        await ctx.wait("go")

    await _changed(tmp_path / "s.db", old, new, "-2")


async def test_branches_of_a_plain_gather_get_their_own_results_after_a_restart(tmp_path: Path) -> None:
    ran: list[str] = []

    @hf.process
    async def gathers(ctx: hf.ProcessContext) -> list[str]:
        async def branch(n: int) -> str:
            def first() -> str:
                ran.append(f"{n}")
                return f"{n}a"

            found = await ctx.step("same", first)
            return found + str(await ctx.wait(f"go {n}"))

        return list(await asyncio.gather(*[branch(n) for n in range(3)]))

    async with hf.open(tmp_path / "s.db", processes=[gathers]) as runtime:
        process = await runtime.start(gathers, id="p")
        await until(lambda: is_now(process, "waiting"))
    async with hf.open(tmp_path / "s.db", processes=[gathers]) as runtime:
        for n in (2, 0, 1):
            await runtime.signal("p", f"go {n}", n)
        assert await runtime.processes.handle("p").result(timeout=SOON) == ["0a0", "1a1", "2a2"]
    assert sorted(ran) == ["0", "1", "2"]


async def test_a_version_in_a_branch_is_told_apart_from_that_of_another(tmp_path: Path) -> None:
    @hf.process(name="branches")
    async def old(ctx: hf.ProcessContext) -> list[bool]:
        async def branch(n: int) -> bool:
            if n == 0:
                await ctx.step("same", int)
            await ctx.wait(f"go {n}")
            return False

        return list(await asyncio.gather(*[branch(n) for n in range(2)]))

    @hf.process(name="branches")
    async def new(ctx: hf.ProcessContext) -> list[bool]:
        async def branch(n: int) -> bool:
            changed = n == 0 and await ctx.version("new")
            if n == 0:
                await ctx.step("same", int)
            await ctx.wait(f"go {n}")
            return changed if n == 0 else await ctx.version("new")

        return list(await asyncio.gather(*[branch(n) for n in range(2)]))

    async with hf.open(tmp_path / "s.db", processes=[old]) as runtime:
        process = await runtime.start(old, id="p")
        await until(lambda: is_now(process, "waiting"))
    async with hf.open(tmp_path / "s.db", processes=[new]) as runtime:
        for n in range(2):
            await runtime.signal("p", f"go {n}", n)
        assert await runtime.processes.handle("p").result(timeout=SOON) == [False, True]


async def test_a_version_lets_processes_that_run_go_on_as_they_began(tmp_path: Path) -> None:
    @hf.process(name="sends")
    async def old(ctx: hf.ProcessContext) -> str:
        await ctx.step("mail", lambda: 1)
        await ctx.wait("go")
        return "old"

    @hf.process(name="sends")
    async def new(ctx: hf.ProcessContext) -> str:
        by_post = await ctx.version("by-post")
        await ctx.step("post" if by_post else "mail", lambda: 1)
        await ctx.wait("go")
        return "new" if by_post else "as before"

    async with hf.open(tmp_path / "s.db", processes=[old]) as runtime:
        process = await runtime.start(old, id="p")
        await until(lambda: is_now(process, "waiting"))
    async with hf.open(tmp_path / "s.db", processes=[new]) as runtime:
        begun = runtime.processes.handle("p")
        fresh = await runtime.start(new, id="q")
        await begun.signal("go")
        await fresh.signal("go")
        assert [await begun.result(timeout=SOON), await fresh.result(timeout=SOON)] == ["as before", "new"]


async def test_a_version_that_was_asked_for_is_the_same_after_a_restart(tmp_path: Path) -> None:
    @hf.process
    async def sends(ctx: hf.ProcessContext) -> bool:
        new = await ctx.version("by-post")
        await ctx.wait("go")
        return new

    async with hf.open(tmp_path / "s.db", processes=[sends]) as runtime:
        process = await runtime.start(sends, id="p")
        await until(lambda: is_now(process, "waiting"))
    async with hf.open(tmp_path / "s.db", processes=[sends]) as runtime:
        await runtime.processes.handle("p").signal("go")
        assert await runtime.processes.handle("p").result(timeout=SOON) is True


async def test_time_chance_and_uuids_are_the_same_after_the_process_was_parked() -> None:
    seen: list[list[Any]] = []

    @hf.process
    async def samples(ctx: hf.ProcessContext) -> None:
        seen.append([await ctx.now(), await ctx.random(), await ctx.uuid()])
        await ctx.sleep(0.01)

    async with hf.open(None, processes=[samples]) as runtime:
        await (await runtime.start(samples)).result(timeout=SOON)
    assert len(seen) == 2
    assert seen[0] == seen[1]


async def test_a_function_is_tried_again_as_a_whole_where_it_says_so() -> None:
    tried: list[int] = []

    @hf.process(retry=hf.ToolRetryPolicy(attempts=3, pause=0.01))
    async def flaky(ctx: hf.ProcessContext) -> int:
        tried.append(ctx.attempt)
        if ctx.attempt < 3:
            raise OSError("not yet")
        return ctx.attempt

    async with hf.open(None, processes=[flaky]) as runtime:
        assert await (await runtime.start(flaky)).result(timeout=SOON) == 3
        assert await check(runtime.store) == []
    assert tried == [1, 2, 3]


async def test_a_function_that_fails_too_often_fails_its_process() -> None:
    @hf.process(retry=hf.ToolRetryPolicy(attempts=2, pause=0.01))
    async def broken(ctx: hf.ProcessContext) -> None:
        raise OSError(f"attempt {ctx.attempt}")

    async with hf.open(None, processes=[broken]) as runtime:
        process = await runtime.start(broken)
        with pytest.raises(hf.ProcessFailed, match="attempt 2"):
            await process.result(timeout=SOON)
        assert (await process.line()).attempt == 2


async def test_a_process_waits_for_a_runtime_that_knows_its_function(tmp_path: Path) -> None:
    async with hf.open(tmp_path / "s.db", processes=[adds], drive=False) as runtime:
        await runtime.start(adds, 1, id="p")
    async with hf.open(tmp_path / "s.db", processes=[]) as runtime:
        process = runtime.processes.handle("p")
        assert await process.status() == "running"
        runtime.processes.add(adds)
        assert await process.result(timeout=SOON) == 3


async def test_events_tell_what_happens_until_the_end() -> None:
    async with hf.open(None, processes=[adds]) as runtime:
        process = await runtime.start(adds, 1)
        told = [event.what async for event in process.events()]
    assert told == ["created", "registered", "started", "done", "completed"]


async def test_events_go_on_from_a_cursor() -> None:
    async with hf.open(None, processes=[adds]) as runtime:
        process = await runtime.start(adds, 1)
        await process.result(timeout=SOON)
        assert [event.what async for event in process.events(after=3)] == ["done", "completed"]


async def test_changes_tell_of_every_process_once_from_a_cursor() -> None:
    async with hf.open(None, processes=[adds]) as runtime:
        for n in range(3):
            await (await runtime.start(adds, n, id=f"p{n}")).result(timeout=SOON)
        first = await runtime.processes.changes(limit=5)
        rest = await runtime.processes.changes(after=first.cursor)
        told = [(event.process, event.what) for event in (*first.changed, *rest.changed)]
    assert told == [(f"p{n}", what) for n in range(3) for what in ("created", "started", "completed")]


async def test_processes_are_listed_by_name_and_by_status() -> None:
    @hf.process
    async def rests(ctx: hf.ProcessContext) -> None:
        await ctx.wait("go")

    async with hf.open(None, processes=[adds, rests]) as runtime:
        await (await runtime.start(adds, 1, id="a")).result(timeout=SOON)
        resting = await runtime.start(rests, id="r")
        await until(lambda: is_now(resting, "waiting"))
        by_name = [line.id for line in await runtime.processes.list(name="adds")]
        by_status = [(line.id, line.waits) for line in await runtime.processes.list(status="waiting")]
    assert by_name == ["a"]
    assert by_status == [("r", ("signal go",))]


async def test_an_id_that_no_process_has_is_told() -> None:
    async with hf.open(None) as runtime:
        with pytest.raises(hf.errors.ProcessUnknown, match="'x'"):
            await runtime.processes.get("x")


async def test_no_session_can_have_the_name_of_the_journal_of_a_process() -> None:
    async with hf.open(None) as runtime:
        with pytest.raises(hf.UsageError, match="processes"):
            runtime.session("process/x")


async def test_secrets_are_lent_and_stay_out_of_the_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_TOKEN", "sk-very-secret-value-1")

    @hf.process
    async def uses(ctx: hf.ProcessContext) -> str:
        return await ctx.step("use", lambda: f"with {ctx.secrets['TOKEN']}")

    async with hf.open(None, processes=[uses], secrets={"TOKEN": "env:SHOP_TOKEN"}) as runtime:
        result = await (await runtime.start(uses)).result(timeout=SOON)
    assert "very-secret" not in result
