"""Cancellation at every await: the journal stays whole, nothing is done twice, nothing leaks."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import holdfast as hf
from holdfast.effects.drive import drive
from holdfast.store import Store
from holdfast.testing import MemoryBackend, MemoryDisk, SimulatedClock, SimulatedLoop, World, check, simulate

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from holdfast.effects.drive import Boundary, EffectContext

EXPECTED = ["kept", "checked", ["left", "right"], ["m0", "m1"], "quick", "inner"]


def program(world: World) -> Callable[[Boundary], Awaitable[object]]:
    def acting(what: str, repeat: hf.Repeat = hf.Repeat.KEYED) -> Callable[[EffectContext], Awaitable[str]]:
        async def act(effect: EffectContext) -> str:
            await asyncio.sleep(0.01)
            world.act("j", effect, repeat, what)
            await asyncio.sleep(0.01)
            return what

        return act

    async def nested(effect: EffectContext) -> object:
        return await effect.step("inner", _echo, "inner")

    async def body(ctx: Boundary) -> object:
        async def branch(what: str) -> str:
            return await ctx.effect("tool_call", "branch", acting(what), body=what, repeat=hf.Repeat.KEYED)

        try:
            kept = await ctx.effect("tool_call", "pay", acting("kept", hf.Repeat.NEVER))
        except hf.EffectUnknown:
            kept = "kept"
        try:
            checked = await ctx.step("check", _echo, "checked")
        finally:
            await ctx.step("tidy", _echo, "tidied")
        return [
            kept,
            checked,
            await asyncio.gather(branch("left"), branch("right")),
            await asyncio.gather(branch("m0"), branch("m1")),
            await branch("quick"),
            await ctx.effect("exec_code", "nested", nested, repeat=hf.Repeat.KEYED),
        ]

    return body


async def _echo(value: str) -> str:
    await asyncio.sleep(0)
    return value


async def _interrupted(loop: SimulatedLoop, at: int, again: int | None) -> bool:
    """Cancel the drive at its `at`-th turn (and once more `again` turns later), then drive to the end."""
    disk = MemoryDisk()
    world = World()
    store = Store(MemoryBackend(disk, clock=SimulatedClock(loop), delay=lambda: 0.003))
    task = asyncio.create_task(drive(store, "j", program(world)))
    cancelled: list[bool] = []
    loop.on_turn[loop.turns + 1 + at] = lambda: cancelled.append(task.cancel())
    if again is not None:
        loop.on_turn[loop.turns + 1 + at + again] = task.cancel
    try:
        result = await task
    except asyncio.CancelledError:
        result = None
    loop.on_turn.clear()
    leaked = asyncio.all_tasks() - {asyncio.current_task()}
    while leaked:  # the lease may still be on its way back
        await asyncio.wait(leaked, timeout=1)
        assert all(task.done() for task in leaked), f"left behind: {leaked}"
        leaked = asyncio.all_tasks() - {asyncio.current_task()}
    if result is None:
        if disk.reader.row("j") is not None:
            assert await check(store, world) == []
        result = await drive(store, "j", program(world))
    assert result == EXPECTED
    assert await check(store, world) == []
    done = world.done()
    assert sorted(done) == sorted(set(done)), f"done twice: {done}"
    return bool(cancelled) and cancelled[0]


def _cancel_everywhere(seed: int, again: int | None) -> int:
    """Cancel at every turn of the loop, until the program is done before; answers how many turns there were."""
    for at in range(2_000):
        try:
            cancelled = simulate(seed, lambda loop, at=at: _interrupted(loop, at, again))
        except BaseException:
            print(f"\nseed {seed}, cancelled at turn {at}, again after {again}, in {__name__}", flush=True)
            raise
        if not cancelled:
            return at
    pytest.fail("the program did not end")


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.torture) for seed in (1, 2, 3))])
def test_a_cancellation_at_any_moment_leaves_a_journal_that_goes_on(seed: int) -> None:
    assert _cancel_everywhere(seed, None) > 100


@pytest.mark.parametrize("again", [2, *(pytest.param(again, marks=pytest.mark.torture) for again in (1, 5))])
def test_a_second_cancellation_during_the_first_changes_nothing(again: int) -> None:
    assert _cancel_everywhere(again, again) > 100


async def test_an_outcome_that_is_being_recorded_is_recorded_although_the_caller_is_cancelled() -> None:
    async with hf.open_store(None) as store:
        world = World()

        async def body(ctx: Boundary) -> object:
            async def act(effect: EffectContext) -> str:
                world.act("j", effect, hf.Repeat.NEVER, "once")
                task.cancel()  # arrives while the outcome is on its way into the journal
                return "once"

            return await ctx.effect("tool_call", "pay", act)

        task = asyncio.create_task(drive(store, "j", body))
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await drive(store, "j", body) == "once"
        assert len(world.attempts()) == 1


def _kinds(disk: MemoryDisk) -> list[str]:
    return [type(entry.record).__name__ for entry in disk.reader.records("j", 0, 100)]


def test_a_cancellation_is_raised_only_after_the_commit_has_ended() -> None:
    async def main(loop: SimulatedLoop) -> list[str]:
        disk = MemoryDisk()
        on_disk: list[str] = []

        async def body(ctx: Boundary) -> object:
            async def act(_: EffectContext) -> str:
                loop.call_later(0.001, task.cancel)  # arrives while the outcome is on its way into the journal
                return "once"

            try:
                return await ctx.effect("tool_call", "pay", act, repeat=hf.Repeat.KEYED)
            finally:
                on_disk.extend(_kinds(disk))

        store = Store(MemoryBackend(disk, clock=SimulatedClock(loop), delay=lambda: 0.05))
        task = asyncio.create_task(drive(store, "j", body))
        with pytest.raises(asyncio.CancelledError):
            await task
        return on_disk

    assert "Done" in simulate(3, main)


def test_branches_answer_only_with_outcomes_that_are_on_the_disk() -> None:
    async def main(loop: SimulatedLoop) -> None:
        disk = MemoryDisk()

        async def succeed(_: EffectContext) -> str:
            await asyncio.sleep(loop.random.choice([0, 0.01, 0.03, 0.05]))
            return "yes"

        async def body(ctx: Boundary) -> None:
            await asyncio.gather(*[ctx.effect("step", "m", succeed, repeat=hf.Repeat.KEYED) for _ in range(2)])
            assert _kinds(disk).count("Done") == 2

        store = Store(MemoryBackend(disk, clock=SimulatedClock(loop), delay=lambda: loop.random.choice([0.001, 0.02])))
        await drive(store, "j", body)

    for seed in range(100):
        try:
            simulate(seed, main)
        except BaseException:
            print(f"\nseed {seed}: simulate({seed}, main) in {__name__}", flush=True)
            raise
