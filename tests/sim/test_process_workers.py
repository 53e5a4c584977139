"""Seeded lives of workers that stop, start, are killed and lose their leases: no process is forgotten, or run by two.

A failure names its seed; ``PROCESS_WORKERS_SEED=n`` repeats it alone. Time is virtual: nothing sleeps.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

import holdfast as hf
from holdfast.effects.performer import idempotency_key
from holdfast.records import Done, Failed, Unknown
from holdfast.runtime.runtime import Runtime
from holdfast.store import Store
from holdfast.testing import MemoryBackend, MemoryDisk, SimulatedClock, SimulatedLoop, check, simulate

if TYPE_CHECKING:
    from random import Random

LEASE_MS = 1_000
STALL = (1.0, 3.0)
QUICK = 30
ALL = 2_000
PROCESSES = 4
PATIENCE = 3_600
NOTICED = LEASE_MS / 1000 / 3 + 2 * STALL[1] + 0.5
"""How long a worker that has lost a lease may go on until it must have noticed, in seconds."""


@dataclass
class Plan:
    """What one process does, step by step."""

    id: str
    steps: list[str]

    def expected(self) -> list[str]:
        """What each of its steps gives; of one that must not be repeated, "paid" may also be "unknown"."""
        return [_gives(self.id, n, what) for n, what in enumerate(self.steps)]


def _gives(id: str, number: int, what: str) -> str:
    match what:
        case "step" | "twice":
            return f"{id}.{number}"
        case "pay":
            return "paid"
        case "wait":
            return f"signal {number}"
        case "child":
            return f"child of {id}.{number}"
        case _:
            return "slept"


def _plan(id: str, choose: Random) -> Plan:
    kinds = ["step", "step", "twice", "pay", "sleep", "wait", "child"]
    return Plan(id, [choose.choice(kinds) for _ in range(choose.randrange(2, 7))])


@dataclass
class Machine:
    """One simulated machine with a disk, and workers that come and go."""

    loop: SimulatedLoop
    plans: dict[str, Plan] = field(default_factory=dict[str, Plan])
    seen: Counter[str] = field(default_factory=Counter[str])
    done: Counter[str] = field(default_factory=Counter[str])
    problems: list[str] = field(default_factory=list[str])
    held: dict[tuple[str, str], float] = field(default_factory=dict[tuple[str, str], float])
    """When a worker was last seen to hold a process, by its instance and the journal."""

    def __post_init__(self) -> None:
        self.clock = SimulatedClock(self.loop)
        self.disk = MemoryDisk()

    def delay(self) -> float:
        """How long a commit takes; now and then a worker stalls for longer than its lease."""
        if self.loop.random.random() < 0.04:
            self.seen["stall"] += 1
            return self.loop.random.uniform(*STALL)
        return self.loop.random.uniform(0.0005, 0.01)

    async def act(self, worker: Store, id: str, key: str) -> None:
        """Something is done to the world, by whoever runs the process here; now and then it takes long."""
        self._look(worker, id)
        if key in self._recorded(id):
            self.problems.append(f"an effect of {id} was performed again, although its outcome was recorded")
        self.done[f"{id} {key}"] += 1
        slow = self.loop.random.random() < 0.1
        await asyncio.sleep(self.loop.random.uniform(1, 4) if slow else self.loop.random.uniform(0, 0.05))
        self._look(worker, id)

    def _recorded(self, id: str) -> set[str]:
        """The effects of a process that have an outcome, by their idempotency keys."""
        journal = f"process/{id}"
        outcomes = [entry.record for entry in self.disk.reader.records(journal, 0, 10_000)]
        keys = [record.key for record in outcomes if isinstance(record, Done | Failed | Unknown)]
        return {idempotency_key(self.disk.store_id, journal, key) for key in keys}

    def _look(self, worker: Store, id: str) -> None:
        """Whoever runs a process holds it, or has lost it so lately that it can't have noticed."""
        place = (worker.owner.instance, id)
        row = self.disk.reader.row(f"process/{id}")
        now = self.loop.time()
        if row is not None and row.owner == worker.owner:
            self.held[place] = now
            return
        self.seen["stale"] += 1
        since = now - self.held.get(place, now)
        if since > NOTICED:
            self.problems.append(f"{id} was run by one who had lost it {since:.1f} s before")

    # ---- functions ----

    def functions(self, worker: Store) -> list[Any]:
        """The functions of one worker: the same code, which knows by whom it is run."""

        @hf.process
        async def child(ctx: hf.ProcessContext, name: str) -> str:
            await self._paid(ctx, worker, 0)
            await ctx.sleep(0.05)
            return f"child of {name}"

        async def one(ctx: hf.ProcessContext, number: int, what: str) -> str:
            match what:
                case "step":
                    return await self._stepped(ctx, worker, number)
                case "twice":
                    found = await asyncio.gather(*[self._stepped(ctx, worker, number) for _ in range(2)])
                    return found[0]
                case "pay":
                    return await self._paid(ctx, worker, number)
                case "wait":
                    return await ctx.wait(f"go {number}")
                case "child":
                    return await (await ctx.start(child, f"{ctx.id}.{number}")).result()
                case _:
                    await ctx.sleep(0.5)
                    return "slept"

        @hf.process
        async def planned(ctx: hf.ProcessContext, steps: list[str]) -> list[str]:
            return [await one(ctx, number, what) for number, what in enumerate(steps)]

        return [planned, child]

    async def _stepped(self, ctx: hf.ProcessContext, worker: Store, number: int) -> str:
        async def work() -> str:
            key = ctx.idempotency_key
            await self.act(worker, ctx.id, key)
            return f"{ctx.id}.{number}"

        return await ctx.step("step", work)

    async def _paid(self, ctx: hf.ProcessContext, worker: Store, number: int) -> str:
        async def pay() -> str:
            key = ctx.idempotency_key
            await self.act(worker, ctx.id, key)
            if self.done[f"{ctx.id} {key}"] > 1:
                self.problems.append(f"step {number} of {ctx.id} was paid twice")
            return "paid"

        try:
            return await ctx.step("pay", pay, repeat=hf.Repeat.NEVER)
        except hf.EffectUnknown:
            self.seen["unknown"] += 1
            return "paid"

    # ---- workers ----

    async def worker(self, life: float | None) -> None:
        """Open the store and work; at the end it is closed in order, or killed where it is."""
        backend = MemoryBackend(self.disk, clock=self.clock, delay=self.delay)
        store = Store(backend)
        runtime = Runtime(store, (), lease_ms=LEASE_MS, processes=self.functions(store))
        await runtime.__aenter__()
        killed = life is None or self.loop.random.random() < 0.5
        try:
            if life is None:
                await asyncio.Event().wait()
            else:
                await asyncio.sleep(life)
        finally:
            if killed:
                backend.crash()
            self.seen["killed" if killed else "stopped"] += 1
            with suppress(hf.StoreError):
                await runtime.close(grace=0)
            if not killed:
                await store.close()


async def _signals(machine: Machine, host: Runtime) -> None:
    """Every signal is sent once or twice, at any time, under its key."""
    choose = machine.loop.random
    for plan in machine.plans.values():
        for number, what in enumerate(plan.steps):
            for _ in range(choose.randrange(1, 3) if what == "wait" else 0):
                await asyncio.sleep(choose.uniform(0, 0.3))
                await host.signal(plan.id, f"go {number}", f"signal {number}", key=f"{plan.id}/{number}")


async def _lives(machine: Machine) -> None:
    """Workers come and go, alone and several at once."""
    choose = machine.loop.random
    for _ in range(choose.randrange(1, 6)):
        longest = choose.choice([0.3, 1.5, 8.0])
        lives = [choose.uniform(0.01, longest) for _ in range(choose.randrange(1, 4))]
        ends = await asyncio.gather(*[machine.worker(life) for life in lives], return_exceptions=True)
        for end in ends:
            if isinstance(end, BaseException) and not isinstance(end, hf.StoreError):
                raise end


async def _world_of(loop: SimulatedLoop) -> Machine:
    machine = Machine(loop)
    machine.plans = {f"p{n}": _plan(f"p{n}", loop.random) for n in range(PROCESSES)}
    store = Store(MemoryBackend(machine.disk, clock=machine.clock))
    planned = machine.functions(store)[0]
    async with Runtime(store, (), drive=False, processes=[planned]) as host:
        for plan in machine.plans.values():
            await host.start(planned, plan.steps, id=plan.id)
        signalling = asyncio.ensure_future(_signals(machine, host))
        await _lives(machine)
        last = asyncio.ensure_future(machine.worker(None))
        try:
            for plan in machine.plans.values():
                result = await host.processes.handle(plan.id).result(timeout=PATIENCE)
                assert result == plan.expected(), f"{plan.id}: {result}, not {plan.expected()}"
            await signalling
        finally:
            last.cancel()
            signalling.cancel()
            with suppress(asyncio.CancelledError, hf.StoreError):
                await last
        assert await check(store) == []
        assert await host.processes.list(status="running") == await host.processes.list(status="waiting") == []
    assert machine.problems == []
    return machine


def _run(seeds: range) -> Counter[str]:
    seen: Counter[str] = Counter()
    for seed in seeds:
        try:
            seen += simulate(seed, _world_of).seen
        except BaseException as error:
            repeat = f"PROCESS_WORKERS_SEED={seed} python -m pytest tests/sim/test_process_workers.py -k repeated"
            error.add_note(f"seed {seed}; repeat with: {repeat}")
            raise
    return seen


def test_workers_that_come_and_go_forget_no_process_and_run_none_twice() -> None:
    seen = _run(range(QUICK))
    assert min(seen[what] for what in ("stall", "killed", "stopped", "stale", "unknown")) > 0, seen


@pytest.mark.torture
@pytest.mark.timeout(3600)
def test_two_thousand_lives_of_workers_forget_no_process_and_run_none_twice() -> None:
    print(_run(range(ALL)))


@pytest.mark.skipif("PROCESS_WORKERS_SEED" not in os.environ, reason="repeats the seed in PROCESS_WORKERS_SEED")
def test_a_seed_can_be_repeated() -> None:
    seed = int(os.environ["PROCESS_WORKERS_SEED"])
    _run(range(seed, seed + 1))
