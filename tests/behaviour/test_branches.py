"""Keys are paths: parallel branches that do the same thing never get each other's results."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

import holdfast as hf
from holdfast.effects.drive import drive
from holdfast.store import Store
from holdfast.testing import MemoryBackend, MemoryDisk, SimulatedClock, SimulatedLoop, check, simulate

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from holdfast.effects.drive import Boundary

BRANCHES = 3
STEPS = 4
WANTED = [[[branch, step] for step in range(STEPS)] for branch in range(BRANCHES)]


def program(
    pause: Callable[[], float], performed: list[tuple[int, int]], starter: str
) -> Callable[[Boundary], Awaitable[object]]:
    """Three branches of four steps with the same names and arguments: only the branch tells them apart."""

    async def branch(ctx: Boundary, number: int) -> list[object]:
        async def act(step: int) -> list[int]:
            await asyncio.sleep(pause())
            performed.append((number, step))
            await asyncio.sleep(pause())
            return [number, step]

        return [await ctx.step("same", act, step) for step in range(STEPS)]

    async def run(ctx: Boundary) -> object:
        if starter == "gather":
            return await asyncio.gather(*[branch(ctx, number) for number in range(BRANCHES)])
        if starter == "create_task":
            tasks = [asyncio.create_task(branch(ctx, number)) for number in range(BRANCHES)]
            return [await task for task in tasks]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(branch(ctx, number)) for number in range(BRANCHES)]
        return [task.result() for task in tasks]

    return run


async def schedule(loop: SimulatedLoop) -> int:
    """Run, kill at a random moment, resume; answers how many steps had been recorded before the kill."""
    starter = loop.random.choice(["gather", "create_task", "task group"])
    disk = MemoryDisk()
    clock = SimulatedClock(loop)
    performed: list[tuple[int, int]] = []
    body = program(lambda: loop.random.uniform(0, 0.01), performed, starter)

    first = MemoryBackend(disk, clock=clock, delay=lambda: loop.random.uniform(0, 0.002))
    task = asyncio.create_task(drive(Store(first), "j", body, lease_ms=50))
    await asyncio.sleep(loop.random.uniform(0, 0.09))
    first.crash()
    task.cancel()
    with suppress(asyncio.CancelledError, hf.StoreError):
        await task
    await asyncio.sleep(0.1)

    store = Store(MemoryBackend(disk, clock=clock))
    recorded = max(disk.reader.last_position() - 2, 0)
    assert await drive(store, "j", body, lease_ms=50) == WANTED
    assert await check(store) == []
    return recorded


@pytest.mark.timeout(120)
@pytest.mark.parametrize("seeds", [150, pytest.param(1_000, marks=pytest.mark.torture)])
def test_no_branch_gets_the_result_of_another_in_any_seeded_schedule(seeds: int) -> None:
    resumed = 0
    for seed in range(seeds):
        try:
            resumed += 0 < simulate(seed, schedule) < BRANCHES * STEPS
        except BaseException:
            print(f"\nseed {seed}: simulate({seed}, schedule) in {__name__}", flush=True)
            raise
    assert resumed > 0.4 * seeds, "many schedules must be killed in the middle, or they prove nothing"


@pytest.mark.parametrize("starter", ["gather", "create_task", "task group"])
@pytest.mark.parametrize("seed", range(4))
async def test_branches_resume_right_on_the_sqlite_store(tmp_path: Path, starter: str, seed: int) -> None:
    choose = random.Random(seed)
    performed: list[tuple[int, int]] = []
    body = program(lambda: choose.uniform(0, 0.003), performed, starter)
    interrupt_after = choose.randrange(2, 10)

    async with hf.open_store(tmp_path / "store.db") as store:
        task = asyncio.create_task(drive(store, "j", body))
        while len(performed) < interrupt_after:  # the condition is a list, and the test has a timeout
            await asyncio.sleep(0.001)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        assert await drive(store, "j", body) == WANTED, f"seed {seed}"
        assert await check(store) == []


async def test_a_branch_is_named_when_its_task_is_created_not_when_it_first_runs() -> None:
    async def second(ctx: Boundary) -> object:
        return await ctx.step("s", _echo, "second")

    async def first(ctx: Boundary, gate: asyncio.Event) -> object:
        await gate.wait()
        return await ctx.step("s", _echo, "first")

    async def body(ctx: Boundary) -> object:
        gate = asyncio.Event()
        slow = asyncio.create_task(first(ctx, gate))
        quick = asyncio.create_task(second(ctx))
        await quick
        gate.set()
        await slow
        return None

    async with hf.open_store(None) as store:
        await drive(store, "j", body)
        keys = [getattr(entry.record, "key", "") for entry in await store.read("j")]
    assert [key.rpartition(".")[2] for key in keys if key] == ["second/s", "first/s"]


async def test_two_effects_at_once_in_one_scope_are_refused_when_tasks_have_no_scope_of_their_own() -> None:
    async def body(ctx: Boundary) -> object:
        loop = asyncio.get_running_loop()
        factory = loop.get_task_factory()
        loop.set_task_factory(None)  # a library that replaces the factory takes the branches away
        try:
            return await asyncio.gather(*[ctx.step("same", _echo, number) for number in range(2)])
        finally:
            loop.set_task_factory(factory)

    async with hf.open_store(None) as store:
        with pytest.raises(hf.errors.RunFailed, match="two effects run at once"):
            await drive(store, "j", body)


async def _echo(value: object) -> object:
    await asyncio.sleep(0)
    return value
