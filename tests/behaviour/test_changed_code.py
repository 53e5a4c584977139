"""Replay is checked: a program that is not the recorded one is stopped before it does anything new."""

from __future__ import annotations

import asyncio
import gc
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

import holdfast as hf
from holdfast.effects.drive import drive, replay
from holdfast.errors import OrderUnknown

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Generator

    from holdfast.effects.drive import Boundary, EffectContext
    from holdfast.store import Store

Body = "Callable[[Boundary], Awaitable[Any]]"


@pytest.fixture
async def store() -> AsyncGenerator[Store]:
    async with hf.open_store(None) as opened:
        yield opened


class Stop(BaseException):
    """The process ends here, as far as the driven code can tell."""


performed: list[object] = []


# When the first branch is refused, gather never gets to await the others.
pytestmark = pytest.mark.filterwarnings("ignore:coroutine")


@pytest.fixture(autouse=True)
def _nothing_performed() -> Generator[None]:
    performed.clear()
    yield
    gc.collect()


async def act(value: object) -> object:
    await asyncio.sleep(0)
    performed.append(value)
    return value


async def _recorded(store: Store, body: Callable[[Boundary], Awaitable[Any]]) -> None:
    async def once(ctx: Boundary) -> object:
        await body(ctx)
        raise Stop

    with suppress(Stop):
        await drive(store, "j", once)
    performed.clear()


async def _refused(store: Store, body: Callable[[Boundary], Awaitable[Any]], match: str) -> None:
    with pytest.raises(hf.ReplayMismatch, match=match):
        await drive(store, "j", body)
    assert performed == [], "something was performed although the code had changed"


# ---- branches --------------------------------------------------------------------------------------------------------


async def test_a_renamed_branch_function_is_a_mismatch_and_nothing_is_performed_again(store: Store) -> None:
    async def pay_order(ctx: Boundary, number: int) -> object:
        return await ctx.step("charge", act, number)

    async def pay_one(ctx: Boundary, number: int) -> object:
        return await ctx.step("charge", act, number)

    await _recorded(store, lambda ctx: asyncio.gather(*[pay_order(ctx, n) for n in range(3)]))
    await _refused(
        store, lambda ctx: asyncio.gather(*[pay_one(ctx, n) for n in range(3)]), 'recorded "pay_order", asked "pay_one"'
    )


async def test_a_branch_inserted_before_others_is_a_mismatch(store: Store) -> None:
    async def a(ctx: Boundary) -> object:
        return await ctx.step("s", act, "a")

    async def b(ctx: Boundary) -> object:
        return await ctx.step("s", act, "b")

    await _recorded(store, lambda ctx: asyncio.gather(a(ctx)))
    await _refused(store, lambda ctx: asyncio.gather(b(ctx), a(ctx)), 'recorded "a", asked "b"')


async def test_as_completed_is_refused_because_it_starts_its_tasks_in_no_order(store: Store) -> None:
    async def body(ctx: Boundary) -> object:
        for done in asyncio.as_completed([ctx.step("s", act, n) for n in range(3)]):
            await done
        return None

    with pytest.raises(hf.errors.RunFailed, match="create the tasks first") as caught:
        await drive(store, "j", body)
    assert isinstance(caught.value.__cause__, OrderUnknown)
    assert performed == []


async def test_as_completed_over_tasks_that_were_created_in_order_is_fine(store: Store) -> None:
    async def body(ctx: Boundary) -> object:
        tasks = [asyncio.create_task(ctx.step("s", act, n)) for n in range(3)]
        return sorted([await done for done in asyncio.as_completed(tasks)])

    assert await drive(store, "j", body) == [0, 1, 2]


async def test_a_wrapped_task_factory_does_not_count_branches_twice(store: Store) -> None:
    async def branch(ctx: Boundary) -> object:
        return await ctx.step("charge", act, 1)

    async def body(ctx: Boundary) -> object:
        return await asyncio.create_task(branch(ctx))

    await _recorded(store, body)
    loop = asyncio.get_running_loop()
    ours = loop.get_task_factory()
    assert ours is not None

    def traced(loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> Any:  # as tracing libraries do
        return ours(loop, coro, **options)

    loop.set_task_factory(traced)
    assert await drive(store, "j", body) == 1
    assert performed == []


# ---- effects that are missing, or of another kind --------------------------------------------------------------------


async def test_a_step_that_was_removed_at_the_end_is_a_mismatch(store: Store) -> None:
    async def both(ctx: Boundary) -> object:
        await ctx.step("charge", act, 1)
        return await ctx.step("refund", act, 2)

    await _recorded(store, both)
    await _refused(store, lambda ctx: ctx.step("charge", act, 1), 'recorded "main/refund", asked null')
    assert (await store.journal("j")).status == "running"


async def test_a_check_only_replay_finds_a_step_that_was_removed(store: Store) -> None:
    async def both(ctx: Boundary) -> object:
        await ctx.step("charge", act, 1)
        await ctx.step("refund", act, 2)
        return 1

    await drive(store, "j", both)
    with pytest.raises(hf.ReplayMismatch, match="main/refund"):
        await replay(store, "j", lambda ctx: ctx.step("charge", act, 1))


async def test_sub_steps_of_an_effect_that_is_performed_again_may_come_in_another_order(store: Store) -> None:
    def upload(names: list[str], *, stop: bool) -> Callable[[EffectContext], Awaitable[object]]:
        async def run(effect: EffectContext) -> object:
            for name in names:
                await effect.step(name, act, name)
            if stop:
                raise Stop
            return "uploaded"

        return run

    def body(names: list[str], *, stop: bool) -> Callable[[Boundary], Awaitable[object]]:
        run = upload(names, stop=stop)
        return lambda ctx: ctx.effect("tool_call", "upload", run, repeat=hf.Repeat.KEYED)

    with suppress(Stop):
        await drive(store, "j", body(["a", "b"], stop=True))
    performed.clear()
    assert await drive(store, "j", body(["b", "a", "c"], stop=False)) == "uploaded"
    assert performed == ["c"]
