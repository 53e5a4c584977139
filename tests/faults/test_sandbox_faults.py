"""Programs that are interrupted: workers that die, and replay from every point."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from tests import proc
from tests.sandboxed import NOW, TOOLS, driven, needs_sandbox, spec

from holdfast.errors.caller import ProgramDiverged, ProgramOver
from holdfast.errors.world import WorkerFailed
from holdfast.sandbox import (
    CallError,
    CallResult,
    CallValue,
    LimitHit,
    MontySandbox,
    PendingCalls,
    ProgramEnd,
    ProgramLimits,
    call_number,
    replay,
    stubs_of,
    worker,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from holdfast.sandbox import CallOutcome, HostCall, Program, ProgramStep

pytestmark = needs_sandbox

# Loops, branches that settle in any order, an exception, the clock, a pause, random numbers and output.
SOURCE = """
import asyncio, random, time
order = []
async def part(n: int):
    first = await fetch(n)
    order.append(n)
    if n == 2:
        began = time.time()
    try:
        second = await fetch(first + 100)
    except ValueError as error:
        second = len(str(error))
    order.append(n)
    return first * second
parts = await asyncio.gather(*[part(n) for n in range(4)])
print("parts", parts)
await asyncio.sleep(5)
total = sum(parts) + random.randrange(1000)
await save([total], note=f"at {time.time()}")
[list(parts), order, total]
"""


@pytest.fixture
async def sandbox() -> AsyncGenerator[MontySandbox]:
    async with MontySandbox() as made:
        yield made


def outcome(call: HostCall) -> CallOutcome:
    if call.kind == "clock":
        return CallValue(NOW)
    if call.name == "fetch":
        asked = call.arguments["n"]
        return CallError("odd", "ValueError") if asked == 102 else CallValue(asked * 7 % 11)
    return CallValue()


async def start(sandbox: MontySandbox) -> Program:
    return await sandbox.start(SOURCE, tools=TOOLS, seed="turn-1")


async def one_by_one(program: Program, recorded: list[CallResult]) -> tuple[ProgramStep, list[CallResult]]:
    """Drive it with one answer at a time, the newest call first; all results."""
    results = list(recorded)
    open_calls: dict[str, HostCall] = {}
    step = await program.run(recorded)
    while isinstance(step, PendingCalls):
        open_calls |= {call.id: call for call in step.calls}
        call = open_calls.pop(step.waiting[-1])
        results.append(CallResult(call.id, outcome(call), call.digest))
        step = await program.answer(results[-1:])
    return step, results


async def whole(sandbox: MontySandbox) -> tuple[ProgramEnd, list[CallResult]]:
    step, results = await one_by_one(await start(sandbox), [])
    assert isinstance(step, ProgramEnd), step
    return step, results


async def test_a_program_goes_on_from_every_recorded_prefix_and_ends_the_same(sandbox: MontySandbox) -> None:
    ended, results = await whole(sandbox)
    assert len(results) >= 12
    for size in range(len(results) + 1):
        step, again = await one_by_one(await start(sandbox), results[:size])
        assert (step, again) == (ended, results), size


async def test_the_results_given_at_once_lead_to_the_same_end(sandbox: MontySandbox) -> None:
    ended, results = await whole(sandbox)
    assert await replay(sandbox, SOURCE, results, tools=TOOLS, seed="turn-1") == ended


@pytest.mark.parametrize("seed", range(8))
async def test_calls_that_settle_in_any_order_are_replayed_in_that_order(sandbox: MontySandbox, seed: int) -> None:
    rng = random.Random(seed)
    program = await start(sandbox)
    step = await program.run()
    results: list[CallResult] = []
    open_calls: dict[str, HostCall] = {}
    while isinstance(step, PendingCalls):
        open_calls |= {call.id: call for call in step.calls}
        chosen = rng.sample(step.waiting, rng.randint(1, len(step.waiting)))
        given = [CallResult(call, outcome(open_calls[call]), open_calls[call].digest) for call in chosen]
        results += given
        step = await program.answer(given)
    cut = rng.randrange(len(results))
    part = await replay(sandbox, SOURCE, results[:cut], tools=TOOLS, seed="turn-1")
    assert isinstance(part, PendingCalls)
    assert {*part.waiting}.isdisjoint(result.id for result in results[:cut])
    assert await replay(sandbox, SOURCE, results, tools=TOOLS, seed="turn-1") == step


async def test_a_record_of_other_calls_stops_the_replay(sandbox: MontySandbox) -> None:
    _, results = await whole(sandbox)
    swapped = [CallResult(results[0].id, results[0].outcome, results[-1].digest), *results[1:]]
    with pytest.raises(ProgramDiverged) as raised:
        await replay(sandbox, SOURCE, swapped, tools=TOOLS, seed="turn-1")
    assert raised.value.call == results[0].id


async def test_a_record_of_calls_that_are_not_made_stops_the_replay(sandbox: MontySandbox) -> None:
    _, results = await whole(sandbox)
    prefix = results[0].id.partition("/")[0]
    with pytest.raises(ProgramDiverged):
        await replay(sandbox, SOURCE, [*results, CallResult(f"{prefix}/99", CallValue())], tools=TOOLS, seed="turn-1")


async def test_a_program_that_raises_before_a_recorded_call_stops_the_replay(sandbox: MontySandbox) -> None:
    source = "x = await fetch(1)\ny = 1 // x\nawait fetch(2)"
    prefix = (await sandbox.start(source)).digest[:16]
    with pytest.raises(ProgramDiverged):
        await replay(sandbox, source, [CallResult(f"{prefix}/{n}", CallValue(0)) for n in range(2)], tools=TOOLS)


# ---- answers that are sent ahead of the calls ------------------------------------------------------------------------

LOOP = """
import asyncio, time
seen = []
for n in range(40):
    seen.append(await fetch(n))
    {odd}
seen
"""
ODD = {
    "nothing": "pass",
    "a call that is refused": "if n == 17:\n        try:\n            await save(b'')\n"
    "        except TypeError as error:\n            seen.append(str(error))",
    "two at once": "if n % 9 == 4:\n        seen.append(list(await asyncio.gather(fetch(n), fetch(100 + n))))",
    "the clock": "if n % 7 == 3:\n        seen.append(time.time())",
    "a pause": "if n % 7 == 3:\n        await asyncio.sleep(1)",
    "a pause that blocks": "if n % 7 == 3:\n        time.sleep(1)",
    "a long answer": "if n % 11 == 5:\n        seen.append(await save([n]))",
    "a call for later": "later = fetch(n)\n    seen.append(await fetch(100))\n    seen.append(await later)",
}
ANY = stubs_of([*(spec(name, ("x",), x={}) for name in ("fetch", "save"))])


def answered(call: HostCall) -> CallOutcome:
    if call.kind == "clock":
        return CallValue(NOW + call_number(call.id))
    return CallValue("x" * 5_000 if call.name == "save" else call.arguments.get("x"))


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
async def test_a_long_program_is_replayed_to_the_same_end(sandbox: MontySandbox, odd: str) -> None:
    source = LOOP.format(odd=odd)
    ended, results = await driven(await sandbox.start(source, tools=ANY), answered)
    assert isinstance(ended, ProgramEnd), ended
    for size in (len(results), len(results) - 3, 25):
        step, again = await driven(await sandbox.start(source, tools=ANY), answered, results[:size])
        assert (step, again) == (ended, results), size


async def test_a_long_program_that_asks_for_something_else_is_stopped_there(sandbox: MontySandbox) -> None:
    source = LOOP.format(odd="pass")
    _, results = await driven(await sandbox.start(source, tools=ANY), answered)
    results[30] = CallResult(results[30].id, results[30].outcome, "f" * 64)
    program = await sandbox.start(source, tools=ANY)
    with pytest.raises(ProgramDiverged) as caught:
        await program.run(results)
    assert caught.value.call == results[30].id


async def test_large_values_pass_in_both_directions(sandbox: MontySandbox) -> None:
    source = "found = await fetch(list(range(20_000)))\nfound[::-1]"
    ended, _ = await driven(await sandbox.start(source, tools=ANY), answered)
    assert isinstance(ended, ProgramEnd), ended
    assert ended.value == list(range(20_000))[::-1]


async def test_a_worker_is_heard_where_the_event_loop_does_not_wait_for_it(
    sandbox: MontySandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.sandbox.worker._SELECTABLE", 0)  # as with very many open files
    ended, results = await whole(sandbox)
    assert await replay(sandbox, SOURCE, results, tools=TOOLS, seed="turn-1") == ended


# ---- workers that die ------------------------------------------------------------------------------------------------


def _worker() -> int:
    (number,) = proc.named("worker")
    return number


async def test_a_worker_that_dies_while_it_waits_is_a_result(sandbox: MontySandbox) -> None:
    program = await start(sandbox)
    step = await program.run()
    assert isinstance(step, PendingCalls)
    os.kill(_worker(), signal.SIGKILL)
    stopped = await program.answer([CallResult(step.calls[0].id, CallValue(1))])
    assert isinstance(stopped, LimitHit)
    assert stopped.which == "worker"


async def test_a_worker_that_dies_while_it_works_is_a_result(sandbox: MontySandbox) -> None:
    program = await sandbox.start("await fetch(1)\nwhile True:\n    pass", tools=TOOLS)
    step = await program.run()
    assert isinstance(step, PendingCalls)
    worker = _worker()
    asyncio.get_running_loop().call_later(0.1, os.kill, worker, signal.SIGKILL)
    stopped = await program.answer([CallResult(step.calls[0].id, CallValue(1))])
    assert isinstance(stopped, LimitHit)
    assert stopped.which == "worker"


async def test_a_worker_that_hangs_is_a_result(sandbox: MontySandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.sandbox.monty._GRACE", 0.1)
    program = await sandbox.start("await fetch(1)", tools=TOOLS, limits=ProgramLimits(step_seconds=0.3))
    step = await program.run()
    assert isinstance(step, PendingCalls)
    worker = _worker()
    os.kill(worker, signal.SIGSTOP)
    async with asyncio.timeout(10):
        while proc.states(worker) != {"T"}:  # it is about another process
            await asyncio.sleep(0.005)
    stopped = await program.answer([CallResult(step.calls[0].id, CallValue(1))])
    assert isinstance(stopped, LimitHit)
    assert stopped.which == "time"


async def test_the_next_program_goes_on_where_a_dead_worker_stood(sandbox: MontySandbox) -> None:
    ended, results = await whole(sandbox)
    program = await start(sandbox)
    await program.run(results[:4])
    os.kill(_worker(), signal.SIGKILL)
    await program.close()
    step, _ = await one_by_one(await start(sandbox), results[:4])
    assert step == ended


async def test_a_worker_that_can_t_be_started_is_told(
    sandbox: MontySandbox, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\nexit 125\n", encoding="utf-8")
    broken.chmod(0o755)

    def confined(_launcher: worker.Launcher, _memory: int) -> list[str]:
        return [str(broken)]

    monkeypatch.setattr(worker.Launcher, "_confined", confined)
    program = await start(sandbox)
    with pytest.raises(WorkerFailed):
        await program.run()
    with pytest.raises(ProgramOver):
        await program.run()


async def test_a_program_that_is_cancelled_while_its_worker_starts_leaves_nothing(sandbox: MontySandbox) -> None:
    others = set(proc.descendants(os.getpid()))  # of tests that ran before
    running = asyncio.ensure_future((await start(sandbox)).run())
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    async with asyncio.timeout(10):
        while set(proc.descendants(os.getpid())) - others:  # it is about another process
            await asyncio.sleep(0.005)


async def test_a_program_that_is_closed_while_its_worker_starts_leaves_nothing(sandbox: MontySandbox) -> None:
    others = set(proc.descendants(os.getpid()))
    program = await start(sandbox)
    running = asyncio.ensure_future(program.run())
    await asyncio.sleep(0)
    await program.close()
    with pytest.raises(ProgramOver):
        await running
    assert set(proc.descendants(os.getpid())) <= others


HOST = """
import asyncio, sys
from holdfast.sandbox import MontySandbox
async def main():
    sandbox = MontySandbox()
    program = await sandbox.start("while True:\\n    pass")
    run = asyncio.ensure_future(program.run())
    while program._worker is None or program._worker._pidfd is None:
        await asyncio.sleep(0.01)
    print("running", flush=True)
    await run
asyncio.run(main())
"""


async def test_no_worker_survives_when_we_are_killed() -> None:
    host = subprocess.Popen([sys.executable, "-c", HOST], stdout=subprocess.PIPE)  # noqa: ASYNC220  it is to be killed
    try:
        assert host.stdout is not None
        assert host.stdout.readline() == b"running\n"
        family = proc.descendants(host.pid)
        assert family
    finally:
        host.kill()
        host.wait()
        if host.stdout is not None:
            host.stdout.close()
    async with asyncio.timeout(10):
        while any(proc.lives(number) for number in family):  # it is about another process
            await asyncio.sleep(0.01)


KILLED_AT_START = """
import ctypes, os, sys, time
from holdfast.sandbox.worker import Launcher
from holdfast.sandbox.worker import discard_process, spawn

ctypes.CDLL(None).prctl(36, 1)  # what is left of a process becomes a child of this one
launcher = Launcher(2**26)
for number in range(100):
    made = spawn(launcher)
    time.sleep(number / 10000)
    discard_process(made)
def left():
    for number in filter(str.isdigit, os.listdir("/proc")):
        try:
            name, _, rest = open(f"/proc/{number}/stat").read().rpartition(")")
        except OSError:
            continue
        state, parent = rest.split()[:2]
        if name.endswith("(bwrap") and state != "Z" and int(parent) == os.getpid():
            yield int(number)
until = time.monotonic() + 5
while (found := [*left()]) and time.monotonic() < until:
    time.sleep(0.01)
for number in found:
    os.kill(number, 9)
print(len(found))
"""


def test_no_worker_is_left_that_is_ended_while_it_starts() -> None:
    done = subprocess.run([sys.executable, "-c", KILLED_AT_START], capture_output=True, text=True, check=False)
    assert done.stdout == "0\n", done.stderr
