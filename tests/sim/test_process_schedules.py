"""Seeded schedules of processes: branches with steps of the same name, killed and resumed; workers that come and go.

A failure names its seed; the same seed gives the same history.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

import holdfast as hf
from holdfast.runtime.runtime import Runtime
from holdfast.store import Store
from holdfast.testing import MemoryBackend, MemoryDisk, SimulatedClock, SimulatedLoop, check, simulate

if TYPE_CHECKING:
    from collections.abc import Sequence

BRANCHES = 4
STEPS = 3
LEASE_MS = 1_000
QUICK = 25
ALL = 1_000
PROCESSES = ("a", "b")


class Machine:
    """One simulated machine with a disk, and workers that come and go."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self.loop = loop
        self.clock = SimulatedClock(loop)
        self.disk = MemoryDisk()
        self.seen: Counter[str] = Counter()
        self.effects: Counter[str] = Counter()

    def delay(self) -> float:
        """How long a commit takes; now and then a worker stalls for longer than its lease."""
        if self.loop.random.random() < 0.01:
            self.seen["stall"] += 1
            return self.loop.random.uniform(1.0, 3.0)
        return self.loop.random.uniform(0.0005, 0.01)

    def function(self) -> Any:
        choose = self.loop.random

        async def act(ctx: hf.ProcessContext, what: str) -> str:
            await asyncio.sleep(choose.uniform(0, 0.03))
            self.effects[f"{ctx.idempotency_key} {ctx.id} {what}"] += 1
            await asyncio.sleep(choose.uniform(0, 0.03))
            return f"{ctx.id} {what}"

        async def branch(ctx: hf.ProcessContext, n: int) -> list[str]:
            found: list[str] = []
            for step in range(STEPS):
                if choose.random() < 0.5:
                    await asyncio.sleep(0)  # branches overtake each other
                what = f"{n}.{step}"

                async def same(what: str = what) -> str:
                    return await act(ctx, what)

                found.append(await ctx.step("same", same))
                if step == 1:
                    await ctx.sleep(0.05 * (1 + n % 2))
            return found

        @hf.process
        async def branches(ctx: hf.ProcessContext, way: str) -> list[list[str]]:
            match way:
                case "gather":
                    return list(await asyncio.gather(*[branch(ctx, n) for n in range(BRANCHES)]))
                case "group":
                    async with asyncio.TaskGroup() as group:
                        tasks = [group.create_task(branch(ctx, n)) for n in range(BRANCHES)]
                    return [task.result() for task in tasks]
                case _:
                    return await ctx.gather(*[branch(ctx, n) for n in range(BRANCHES)])

        return branches

    async def worker(self, functions: Sequence[Any], life: float | None) -> None:
        """Open the store, work for a while, and be killed: nothing is closed in order."""
        backend = MemoryBackend(self.disk, clock=self.clock, delay=self.delay)
        runtime = Runtime(Store(backend), (), lease_ms=LEASE_MS, processes=functions)
        await runtime.__aenter__()
        try:
            if life is None:
                await asyncio.Event().wait()
            else:
                await asyncio.sleep(life)
        finally:
            backend.crash()
            self.seen["kill"] += 1
            await runtime.close(grace=0)


def _expected(id: str) -> list[list[str]]:
    return [[f"{id} {n}.{step}" for step in range(STEPS)] for n in range(BRANCHES)]


async def _world_of(loop: SimulatedLoop) -> Machine:
    machine = Machine(loop)
    function = machine.function()
    choose = loop.random
    ways = {id: choose.choice(["gather", "group", "ours"]) for id in PROCESSES}
    store = Store(MemoryBackend(machine.disk, clock=machine.clock))
    async with Runtime(store, (), drive=False, processes=[function]) as host:
        for id, way in ways.items():
            await host.start(function, way, id=id)
        for _ in range(choose.randrange(1, 6)):
            lives = [choose.uniform(0.01, 0.4) for _ in range(choose.randrange(1, 3))]
            ends = await asyncio.gather(*[machine.worker([function], life) for life in lives], return_exceptions=True)
            for end in ends:
                if isinstance(end, BaseException) and not isinstance(end, hf.StoreError):
                    raise end
        last = asyncio.ensure_future(machine.worker([function], None))
        try:
            for id in PROCESSES:
                result = await host.processes.handle(id).result(timeout=600)
                assert result == _expected(id), f"{id} by {ways[id]}: {result}"
        finally:
            last.cancel()
            with suppress(asyncio.CancelledError, hf.StoreError):
                await last
        assert await check(store) == []
    _check_effects(machine)
    return machine


def _check_effects(machine: Machine) -> None:
    """Each effect has one idempotency key, whoever performed it; and no two share one."""
    by_key: dict[str, set[str]] = {}
    for line in machine.effects:
        key, _, what = line.partition(" ")
        by_key.setdefault(key, set()).add(what)
    assert all(len(found) == 1 for found in by_key.values()), by_key
    assert len(by_key) == len(PROCESSES) * BRANCHES * STEPS


def _run(seeds: range) -> Counter[str]:
    seen: Counter[str] = Counter()
    for seed in seeds:
        try:
            seen += simulate(seed, _world_of).seen
        except BaseException:
            print(f"\nseed {seed}; again with: SIM_SEED={seed} make torture", flush=True)
            raise
    return seen


@pytest.mark.timeout(120)
def test_no_branch_is_handed_the_result_of_another_whatever_is_killed() -> None:
    seen = _run(range(QUICK))
    assert seen["kill"] > QUICK  # a run without faults would prove nothing
    assert seen["stall"] > 0


@pytest.mark.torture
@pytest.mark.timeout(7200)
def test_a_thousand_schedules_hand_every_branch_its_own_results() -> None:
    first = int(os.environ.get("SIM_SEED", "0"))
    print(_run(range(first, first + (1 if "SIM_SEED" in os.environ else ALL))))
