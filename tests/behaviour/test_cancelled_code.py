"""Cancel and timeout inside driven code: what was stopped is honest in the journal, and a replay takes the same way."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

import holdfast as hf
from holdfast.effects.drive import drive
from holdfast.errors import RunEnded
from holdfast.records import Ended
from holdfast.store import Lease
from holdfast.testing import World, check

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from holdfast.effects.drive import Boundary, EffectContext
    from holdfast.store import Store


@pytest.fixture
async def store() -> AsyncGenerator[Store]:
    async with hf.open_store(None) as opened:
        yield opened


class Stop(BaseException):
    """The process ends here, as far as the driven code can tell."""


async def _echo(value: object) -> object:
    await asyncio.sleep(0)
    return value


async def _forever(_: EffectContext) -> object:
    await asyncio.Event().wait()
    return None


class Clockwork:
    """A time limit that passes when the effect within it has begun, and soon where that is only replayed."""

    def __init__(self) -> None:
        self.begun = False

    def limit(self) -> asyncio.Timeout:
        self._limit = asyncio.timeout(0.02 if self.begun else None)
        return self._limit

    async def forever(self, effect: EffectContext) -> object:
        self.begun = True
        self._limit.reschedule(asyncio.get_running_loop().time())
        return await _forever(effect)


async def _kinds(store: Store) -> list[str]:
    return [type(entry.record).__name__ for entry in await store.read("j")]


async def test_clean_up_code_of_a_cancelled_drive_performs_nothing_and_the_next_drive_goes_on(store: Store) -> None:
    cleaned: list[str] = []
    entered = asyncio.Event()

    async def work(_: EffectContext) -> str:
        if not entered.is_set():
            entered.set()
            await asyncio.Event().wait()
        return "worked"

    async def clean(value: str) -> str:
        cleaned.append(value)
        return await asyncio.sleep(0, value)

    async def body(ctx: Boundary) -> object:
        try:
            return await ctx.effect("tool_call", "work", work, repeat=hf.Repeat.KEYED)
        finally:
            await ctx.step("cleanup", clean, "up")

    task = asyncio.create_task(drive(store, "j", body))
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert cleaned == []
    assert await drive(store, "j", body) == "worked"
    assert cleaned == ["up"]
    assert await check(store) == []


@pytest.mark.parametrize("repeat", [hf.Repeat.KEYED, hf.Repeat.NEVER])
async def test_a_timeout_around_an_effect_takes_the_same_way_on_replay(store: Store, repeat: hf.Repeat) -> None:
    stop, time = True, Clockwork()

    async def body(ctx: Boundary) -> object:
        try:
            async with time.limit():
                return await ctx.effect("tool_call", "slow", time.forever, repeat=repeat)
        except TimeoutError:
            answer = await ctx.step("fallback", _echo, "fallback")
        if stop:
            raise Stop
        return answer

    with suppress(Stop):
        await drive(store, "j", body)
    stop = False
    assert await drive(store, "j", body) == "fallback"
    assert "Cancelled" in await _kinds(store)
    assert await check(store) == []


async def test_the_sibling_of_a_failing_task_is_cancelled_the_same_way_on_replay(store: Store) -> None:
    stop = True

    async def fail(_: EffectContext) -> object:
        await asyncio.sleep(0.01)
        raise ValueError("no")

    async def failing(ctx: Boundary) -> object:
        return await ctx.effect("tool_call", "fail", fail, repeat=hf.Repeat.KEYED)

    async def waiting(ctx: Boundary) -> object:
        try:
            return await ctx.effect("tool_call", "wait", _forever, repeat=hf.Repeat.KEYED)
        finally:
            await ctx.step("undo", _echo, "undone")

    async def body(ctx: Boundary) -> object:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(failing(ctx))
                group.create_task(waiting(ctx))
        except* hf.EffectFailed:
            pass
        if stop:
            raise Stop
        return "recovered"

    with suppress(Stop):
        await drive(store, "j", body)
    stop = False
    assert await drive(store, "j", body) == "recovered"
    assert await check(store) == []


async def test_something_cancelled_inside_an_effect_is_a_failure_of_the_effect(store: Store) -> None:
    async def act(_: EffectContext) -> object:
        inner = asyncio.get_running_loop().create_future()
        inner.cancel()
        return await inner

    async def body(ctx: Boundary) -> object:
        try:
            return await ctx.effect("tool_call", "odd", act)
        except hf.EffectFailed as error:
            return error.message

    assert "cancelled" in str(await drive(store, "j", body))


async def test_no_task_outlives_its_run(store: Store) -> None:
    world = World()
    left: list[asyncio.Task[object]] = []

    async def late(effect: EffectContext) -> object:
        await asyncio.sleep(0.05)
        world.act("j", effect, hf.Repeat.KEYED, "too late")
        return None

    async def body(ctx: Boundary) -> object:
        left.append(asyncio.create_task(ctx.effect("tool_call", "late", late, repeat=hf.Repeat.KEYED)))
        await asyncio.sleep(0)
        return await ctx.step("now", _echo, "done")

    assert await drive(store, "j", body) == "done"
    assert left[0].cancelled()
    assert world.attempts() == []
    assert isinstance((await store.tail("j", 1))[0].record, Ended)
    assert await check(store, world) == []


async def test_a_boundary_that_was_kept_after_the_end_performs_nothing(store: Store) -> None:
    kept: list[Boundary] = []

    async def body(ctx: Boundary) -> object:
        kept.append(ctx)
        return 1

    await drive(store, "j", body)
    with pytest.raises(hf.UsageError):
        await kept[0].step("late", _echo, 1)
    with pytest.raises(RunEnded):
        kept[0].performer.check_running()


async def test_code_that_swallows_the_loss_of_its_lease_performs_nothing_more(store: Store) -> None:
    performed: list[str] = []

    async def act(_: EffectContext) -> str:
        performed.append("again")
        return await asyncio.sleep(0, "again")

    async def body(ctx: Boundary) -> object:
        await store.release(Lease("j", 1, store.owner, 60, 0))  # as if it had expired
        await store.claim("j")
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(10)  # the renewal finds out meanwhile
        return await ctx.effect("tool_call", "pay", act, repeat=hf.Repeat.KEYED)

    with pytest.raises(hf.errors.Fenced):
        await drive(store, "j", body, lease_ms=60)
    assert performed == []


@pytest.mark.parametrize("message", ["a lone \udcff surrogate", "x" * 100_000])
async def test_an_error_with_any_message_can_be_recorded(store: Store, message: str) -> None:
    async def act(_: EffectContext) -> object:
        await asyncio.sleep(0)
        raise ValueError(message)

    for _ in range(2):
        with pytest.raises(hf.errors.RunFailed):
            await drive(store, "j", lambda ctx: ctx.effect("tool_call", "odd", act))
    assert (await store.journal("j")).status == "failed"


async def test_an_error_that_can_not_say_what_it_is_is_recorded_too(store: Store) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    async def act(_: EffectContext) -> object:
        await asyncio.sleep(0)
        raise Mute

    with pytest.raises(hf.errors.RunFailed, match="can't be read"):
        await drive(store, "j", lambda ctx: ctx.effect("tool_call", "mute", act))


async def test_the_original_error_is_the_cause_the_first_time(store: Store) -> None:
    async def body(_: Boundary) -> object:
        await asyncio.sleep(0)
        raise KeyError("typo")

    with pytest.raises(hf.errors.RunFailed) as caught:
        await drive(store, "j", body)
    assert isinstance(caught.value.__cause__, KeyError)


async def test_a_plain_function_can_be_an_effect(store: Store) -> None:
    def pay(effect: EffectContext) -> str:
        return f"paid with {len(effect.idempotency_key)} characters"

    run: Callable[[EffectContext], Awaitable[str]] = pay  # pyright: ignore[reportAssignmentType]
    assert await drive(store, "j", lambda ctx: ctx.effect("tool_call", "pay", run)) == "paid with 40 characters"


async def test_a_task_that_is_stopped_with_its_run_leaves_no_open_intent(store: Store) -> None:
    async def body(ctx: Boundary) -> object:
        left = asyncio.create_task(ctx.effect("tool_call", "pay", _forever))
        while "Intended" not in await _kinds(store):  # the condition is in the journal
            await asyncio.sleep(0)
        assert not left.done()
        return await ctx.step("now", _echo, "done")

    assert await drive(store, "j", body) == "done"
    assert (await _kinds(store))[-2:] == ["Cancelled", "Ended"]
    assert await check(store) == []


async def test_a_task_that_an_effect_started_for_others_lives_on(store: Store) -> None:
    pool: list[asyncio.Task[None]] = []

    async def connect(_: EffectContext) -> str:
        pool.append(asyncio.create_task(asyncio.sleep(60)))
        return await asyncio.sleep(0, "connected")

    assert await drive(store, "j", lambda ctx: ctx.effect("tool_call", "connect", connect)) == "connected"
    assert not pool[0].done()
    pool[0].cancel()
