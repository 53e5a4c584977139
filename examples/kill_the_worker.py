"""The promise, to look at: a worker is killed again and again, and loses nothing and does nothing twice.

A worker process handles the orders of a shop, several at a time. For each order it charges a card, packs a parcel and
sends a mail; each is an effect in a journal. This program kills the worker with SIGKILL at random moments, starts
another one, and at the end compares what the outside world saw with what the journal says.

    python examples/kill_the_worker.py [--kills 6] [--orders 8] [--seed N]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import holdfast as hf
from holdfast.testing import World, check

JOURNAL = "shop/friday"
ACTIONS = ("charge", "pack", "mail")
LANES = 3
PATIENCE = 60.0


# ---- the worker: ordinary asyncio code, run from the top by every new process ----------------------------------------


async def handle(ctx: hf.Boundary, world: World, order: int) -> str:
    """One order: three effects, one after the other."""

    async def act(effect: hf.EffectContext, name: str, repeat: hf.Repeat) -> str:
        await asyncio.sleep(random.uniform(0.01, 0.04))
        world.act(JOURNAL, effect, repeat, f"{name} {order} {os.getpid()}")
        await asyncio.sleep(random.uniform(0.01, 0.04))
        return f"{name} {order}"

    # The bank and the warehouse honour idempotency keys: after a crash it is safe to ask again with the same key.
    for name in ("charge", "pack"):
        await ctx.effect(
            "tool_call", name, lambda e, n=name: act(e, n, hf.Repeat.KEYED), body=order, repeat=hf.Repeat.KEYED
        )
    # The mail server does not. If the worker died while sending, nobody can say whether the mail went out: look first.
    while True:
        try:
            await ctx.effect("tool_call", "mail", lambda e: act(e, "mail", hf.Repeat.NEVER), body=order)
            break
        except hf.EffectUnknown:
            if await ctx.step("look in the sent folder", was_sent, str(world.path), order, repeat=hf.Repeat.FREE):
                break
    return f"order {order} done"


def was_sent(path: str, order: int) -> bool:
    """Whether a mail for this order has left the house."""
    return any(what.startswith(f"mail {order} ") for what in World(path).done())


async def work(folder: Path, orders: int) -> None:
    """Handle all orders, a few at a time."""
    world = World(folder / "world.log")

    async def lane(ctx: hf.Boundary, number: int) -> list[str]:
        return [await handle(ctx, world, order) for order in range(1 + number, orders + 1, LANES)]

    async def shop(ctx: hf.Boundary) -> list[list[str]]:
        return await asyncio.gather(*[lane(ctx, number) for number in range(LANES)])

    async with hf.open_store(folder / "shop.db") as store:
        await hf.drive(store, JOURNAL, shop)


# ---- the demo: start, kill, start again, compare ---------------------------------------------------------------------


def start(folder: Path, orders: int) -> subprocess.Popen[bytes]:
    """A worker in a process of its own."""
    arguments = [sys.executable, __file__, "--worker", str(folder), "--orders", str(orders)]
    return subprocess.Popen(arguments)


def run_and_kill(folder: Path, orders: int, after: int, linger: float) -> str:
    """Start a worker and kill it `linger` seconds after it has touched the world `after` times."""
    world = World(folder / "world.log")
    before = len(world.attempts())
    worker = start(folder, orders)
    begun = time.monotonic()
    while worker.poll() is None and len(world.attempts()) < before + after:
        time.sleep(0.002)
        if time.monotonic() - begun > PATIENCE:
            break
    time.sleep(linger)
    if worker.poll() is None:
        worker.send_signal(signal.SIGKILL)
    worker.wait()
    acted = len(world.attempts()) - before
    end = "killed with SIGKILL" if worker.returncode == -signal.SIGKILL else f"ended by itself ({worker.returncode})"
    return f"process {worker.pid}: {acted:>2} calls to the outside world, then {end}"


async def compare(folder: Path, orders: int) -> bool:
    """Print what the world saw beside what is promised; True when they agree."""
    world = World(folder / "world.log")
    attempts = Counter(_effect(attempt.what) for attempt in world.attempts())
    done = Counter(_effect(what) for what in world.done())
    pids = list(dict.fromkeys(attempt.what.split()[2] for attempt in world.attempts()))
    names = {pid: chr(ord("A") + number) for number, pid in enumerate(pids)}
    first = {_effect(attempt.what): names[attempt.what.split()[2]] for attempt in reversed(world.attempts())}
    print("\nEach cell: how often it was done (x), and by which worker (A, B, ...).")
    print("'asked 2x' = a worker died before it could note the answer, and the next asked again with the same key.\n")
    print(f"  {'order':<7}" + "".join(f"{action:<20}" for action in ACTIONS).rstrip())
    for order in range(1, orders + 1):
        cells = [
            _cell(done[action, order], attempts[action, order], first.get((action, order), "-")) for action in ACTIONS
        ]
        print(f"  {order:<7}" + "".join(f"{cell:<20}" for cell in cells))
    wanted = [(action, order) for order in range(1, orders + 1) for action in ACTIONS]
    lost = [effect for effect in wanted if done[effect] == 0]
    repeated = [effect for effect in wanted if done[effect] > 1]
    async with hf.open_store(folder / "shop.db") as store:
        violations = await check(store, world)
        records = await store.last_position()
    print(f"\n  {len(wanted)} effects by {len(pids)} processes: {len(lost)} lost, {len(repeated)} done twice.")
    print(f"  {records} records in the journal, {len(violations)} violated invariants.")
    for violation in violations:
        print(f"  {violation}")
    return not (lost or repeated or violations)


def _effect(what: str) -> tuple[str, int]:
    action, order, _ = what.split()
    return action, int(order)


def _cell(done: int, asked: int, by: str) -> str:
    return f"{done}x by {by}" + (f" (asked {asked}x)" if asked > done else "")


def demo(orders: int, kills: int, seed: int) -> int:
    """Kill, restart, compare; the exit code says whether the promise was kept."""
    choose = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="holdfast-demo-") as name:
        folder = Path(name)
        print(f"{orders} orders, 3 effects each, {LANES} at a time.")
        print(f"The worker will be killed {kills} times (seed {seed}).\n")
        for _ in range(kills):
            print("  " + run_and_kill(folder, orders, choose.randrange(2, 7), choose.uniform(0, 0.04)), flush=True)
        last = start(folder, orders)
        status = last.wait(timeout=PATIENCE)
        print(f"  process {last.pid}: left alone, finished with exit code {status}")
        kept = asyncio.run(compare(folder, orders)) and status == 0
    print("\n  Every effect exactly once." if kept else f"\n  BROKEN. Again with: --seed {seed}")
    return 0 if kept else 1


def main() -> int:
    """Parse the arguments; be the demo, or one of its workers."""
    parser = argparse.ArgumentParser(description="Kill a worker again and again; see that nothing is lost or repeated.")
    parser.add_argument("--orders", type=int, default=8, help="how many orders the shop has (default 8)")
    parser.add_argument("--kills", type=int, default=6, help="how often the worker is killed (default 6)")
    parser.add_argument("--seed", type=int, default=None, help="repeat the same choice of moments")
    parser.add_argument("--worker", type=Path, default=None, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker is not None:
        asyncio.run(work(arguments.worker, arguments.orders))
        return 0
    seed = random.randrange(10_000) if arguments.seed is None else arguments.seed
    return demo(arguments.orders, arguments.kills, seed)


if __name__ == "__main__":
    sys.exit(main())
