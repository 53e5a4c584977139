"""Second chances: an ended process is retried from its failure or from a step, and does nothing twice by itself."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from tests.behaviour.talk import SOON, until

import holdfast as hf
from holdfast.effects.performer import idempotency_key
from holdfast.testing import ManualClock, check

if TYPE_CHECKING:
    from pathlib import Path

    from tests.behaviour.shell import Shell

    from holdfast.runtime.runtime import Runtime


class World:
    """Counts what was done, with the idempotency keys, and fails where a test wants it."""

    def __init__(self) -> None:
        self.done: Counter[str] = Counter()
        self.keys: dict[str, list[str]] = {}
        self.broken: set[str] = set()

    def act(self, ctx: hf.ProcessContext, what: str) -> Any:
        async def act() -> str:
            await asyncio.sleep(0)
            self.done[what] += 1
            self.keys.setdefault(what, []).append(ctx.idempotency_key)
            if what in self.broken:
                raise OSError(f"{what} is out of order")
            return what

        return act


@pytest.fixture
def world() -> World:
    return World()


def _ordering(world: World) -> Any:
    @hf.process
    async def orders(ctx: hf.ProcessContext, book: str = "Emma") -> list[str]:
        found = await ctx.step("find", world.act(ctx, "find"))
        paid = await ctx.step("pay", world.act(ctx, "pay"))
        return [found, paid, await ctx.step("ship", world.act(ctx, "ship"))]

    return orders


async def _failed(runtime: Runtime, process: Any, *args: Any, id: str = "p") -> hf.Process:
    started = await runtime.start(process, *args, id=id)
    with pytest.raises((hf.ProcessFailed, hf.errors.ProcessCancelled)):
        await started.result(timeout=SOON)
    return started


async def test_a_retry_does_only_what_failed_and_what_came_after(world: World) -> None:
    orders, world.broken = _ordering(world), {"pay"}
    async with hf.open(None, processes=[orders]) as runtime:
        old = await _failed(runtime, orders)
        world.broken.clear()
        retry = await old.retry()
        assert await retry.result(timeout=SOON) == ["find", "pay", "ship"]
        assert world.done == {"find": 1, "pay": 2, "ship": 1}
        assert await check(runtime.store) == []


async def test_a_retry_survives_a_restart_and_replays_its_own_history(world: World, tmp_path: Path) -> None:
    @hf.process
    async def waits(ctx: hf.ProcessContext) -> list[str]:
        first = await ctx.step("find", world.act(ctx, "find"))
        paid = await ctx.step("pay", world.act(ctx, "pay"))
        return [first, paid, await ctx.wait("editor")]

    world.broken = {"pay"}
    async with hf.open(tmp_path / "s.db", processes=[waits]) as runtime:
        old = await _failed(runtime, waits)
        world.broken.clear()
        retry = await old.retry()

        async def parked() -> bool:
            return await retry.status() == "waiting"

        await until(parked)
    async with hf.open(tmp_path / "s.db", processes=[waits]) as runtime:
        await runtime.signal(retry.id, "editor", "yes")
        assert await runtime.processes.handle(retry.id).result(timeout=SOON) == ["find", "pay", "yes"]
    assert world.done == {"find": 1, "pay": 2}


async def test_only_what_is_done_again_has_a_new_idempotency_key(world: World) -> None:
    orders, world.broken = _ordering(world), {"pay"}
    async with hf.open(None, processes=[orders]) as runtime:
        old = await _failed(runtime, orders)
        world.broken = {"ship"}
        second = await old.retry()
        with pytest.raises(hf.ProcessFailed):
            await second.result(timeout=SOON)
        world.broken.clear()
        assert await (await second.retry()).result(timeout=SOON) == ["find", "pay", "ship"]
        of_the_first_run = idempotency_key(runtime.store.id, "process/p", "process/ship")
    assert world.done == {"find": 1, "pay": 2, "ship": 2}
    assert len({*world.keys["pay"], *world.keys["ship"], *world.keys["find"]}) == 5
    assert world.keys["ship"][0] == of_the_first_run  # it was never done there


async def test_a_step_that_was_interrupted_by_a_cancel_keeps_its_idempotency_key(world: World) -> None:
    reached, go_on = asyncio.Event(), asyncio.Event()
    seen: list[str] = []

    @hf.process
    async def slow(ctx: hf.ProcessContext) -> str:
        async def act() -> str:
            seen.append(ctx.idempotency_key)
            reached.set()
            await go_on.wait()
            return "done"

        return await ctx.step("act", act)

    async with hf.open(None, processes=[slow]) as runtime:
        old = await runtime.start(slow, id="p")
        await asyncio.wait_for(reached.wait(), SOON)
        await old.cancel("enough")
        with pytest.raises(hf.errors.ProcessCancelled):
            await old.result(timeout=SOON)
        go_on.set()
        assert await (await old.retry()).result(timeout=SOON) == "done"
    assert len(seen) == 2
    assert len(set(seen)) == 1


async def test_a_retry_from_a_step_does_that_and_all_later_ones_again(world: World) -> None:
    orders, world.broken = _ordering(world), {"ship"}
    async with hf.open(None, processes=[orders]) as runtime:
        old = await _failed(runtime, orders)
        world.broken.clear()
        retry = await old.retry(from_step="pay")
        await retry.result(timeout=SOON)
    assert world.done == {"find": 1, "pay": 2, "ship": 2}


async def test_branches_that_succeeded_beside_the_failure_are_not_done_again(world: World) -> None:
    failed = asyncio.Event()

    @hf.process
    async def both(ctx: hf.ProcessContext) -> list[str]:
        async def fails() -> str:
            try:
                return await ctx.step("left", world.act(ctx, "left"))
            finally:
                failed.set()

        async def works() -> str:
            await failed.wait()  # its step begins after the other one has failed
            return await ctx.step("right", world.act(ctx, "right"))

        return await ctx.gather(fails(), works())

    world.broken = {"left"}
    async with hf.open(None, processes=[both]) as runtime:
        old = await _failed(runtime, both)
        world.broken.clear()
        assert await (await old.retry()).result(timeout=SOON) == ["left", "right"]
    assert world.done == {"left": 2, "right": 1}


async def test_a_failure_that_the_function_handled_stays_handled(world: World) -> None:
    @hf.process
    async def copes(ctx: hf.ProcessContext) -> list[str]:
        with suppress(hf.EffectFailed):
            await ctx.step("mail", world.act(ctx, "mail"))
        return await ctx.gather(*[ctx.step(f"call {n}", world.act(ctx, f"call {n}")) for n in range(2)])

    world.broken = {"mail", "call 1"}
    async with hf.open(None, processes=[copes]) as runtime:
        old = await _failed(runtime, copes)
        world.broken.clear()
        assert await (await old.retry()).result(timeout=SOON) == ["call 0", "call 1"]
    assert world.done == {"mail": 1, "call 0": 1, "call 1": 2}


async def test_a_branch_that_was_begun_before_the_failure_keeps_its_results(world: World) -> None:
    begun, failed = asyncio.Event(), asyncio.Event()

    @hf.process
    async def mixed(ctx: hf.ProcessContext) -> list[str]:
        async def beside() -> list[str]:
            first = await ctx.step("first", world.act(ctx, "first"))
            begun.set()
            await failed.wait()
            return [first, await ctx.step("second", world.act(ctx, "second"))]

        task = asyncio.create_task(beside())
        await begun.wait()
        try:
            own = await ctx.step("own", world.act(ctx, "own"))
        finally:
            failed.set()
            done = await task
        return [own, *done]

    world.broken = {"own"}
    async with hf.open(None, processes=[mixed]) as runtime:
        old = await _failed(runtime, mixed)
        world.broken.clear()
        assert await (await old.retry()).result(timeout=SOON) == ["own", "first", "second"]
    assert world.done == {"own": 2, "first": 1, "second": 1}


async def test_a_function_that_failed_in_its_own_code_uses_all_results_again(world: World) -> None:
    bugs = ["a bug"]

    @hf.process
    async def buggy(ctx: hf.ProcessContext) -> str:
        found = await ctx.step("find", world.act(ctx, "find"))
        if bugs:
            raise ValueError(bugs[0])
        return found

    async with hf.open(None, processes=[buggy]) as runtime:
        old = await _failed(runtime, buggy)
        bugs.clear()
        assert await (await old.retry()).result(timeout=SOON) == "find"
    assert world.done == {"find": 1}


async def test_an_effect_of_unknown_outcome_is_asked_about_and_not_repeated(world: World) -> None:
    reached = asyncio.Event()

    @hf.process
    async def pays(ctx: hf.ProcessContext) -> str:
        async def pay() -> str:
            world.done["pay"] += 1
            if not reached.is_set():
                reached.set()
                await asyncio.Event().wait()
            return "paid"

        return await ctx.step("pay", pay, repeat=hf.Repeat.NEVER)

    async with hf.open(None, processes=[pays]) as runtime:
        old = await runtime.start(pays, id="p")
        await asyncio.wait_for(reached.wait(), SOON)
        await old.cancel()
        with pytest.raises(hf.errors.ProcessCancelled):
            await old.result(timeout=SOON)
        with pytest.raises(hf.errors.RetryRefused, match=r"nobody knows.*process/pay"):
            await old.retry()
        assert world.done == {"pay": 1}
        assert await (await old.retry(repeat_unknown=True)).result(timeout=SOON) == "paid"


async def test_the_same_key_gives_the_same_retry(world: World) -> None:
    orders, world.broken = _ordering(world), {"pay"}
    async with hf.open(None, processes=[orders]) as runtime:
        old = await _failed(runtime, orders)
        world.broken.clear()
        first = await old.retry(key="k")
        await first.result(timeout=SOON)
        assert (await old.retry(key="k")).id == first.id
        with pytest.raises(hf.KeyConflict):
            await old.retry(key="k", from_step="pay")
    assert world.done["pay"] == 2


async def test_two_callers_at_once_start_one_retry(world: World) -> None:
    orders, world.broken = _ordering(world), {"pay"}
    async with hf.open(None, processes=[orders]) as runtime:
        old = await _failed(runtime, orders)
        world.broken.clear()
        first, second = await asyncio.gather(old.retry(), old.retry())
        assert first.id == second.id
        await first.result(timeout=SOON)
    assert world.done["pay"] == 2


async def test_the_old_run_and_its_retry_name_each_other(world: World) -> None:
    orders, world.broken = _ordering(world), {"pay"}
    async with hf.open(None, processes=[orders]) as runtime:
        old = await _failed(runtime, orders)
        world.broken.clear()
        retry = await old.retry()
        await retry.result(timeout=SOON)
        before, after = await old.line(), await retry.line()
    assert (before.status, before.retries, before.retry_of) == ("failed", (retry.id,), None)
    assert (after.status, after.retry_of, after.reused) == ("completed", "p", 1)


async def test_what_runs_or_has_completed_is_not_retried(world: World) -> None:
    @hf.process
    async def waits(ctx: hf.ProcessContext) -> Any:
        return await ctx.wait("editor")

    async with hf.open(None, processes=[waits]) as runtime:
        process = await runtime.start(waits, id="p")
        with pytest.raises(hf.errors.RetryRefused, match="has not ended"):
            await process.retry()
        await process.signal("editor", 1)
        await process.result(timeout=SOON)
        with pytest.raises(hf.errors.RetryRefused, match="has completed"):
            await process.retry()
        with pytest.raises(hf.errors.ProcessUnknown):
            await runtime.processes.handle("nothing").retry()


async def test_a_process_whose_retry_goes_on_is_not_retried_again(world: World) -> None:
    @hf.process
    async def waits(ctx: hf.ProcessContext) -> Any:
        await ctx.step("act", world.act(ctx, "act"))
        return await ctx.wait("editor")

    world.broken = {"act"}
    async with hf.open(None, processes=[waits]) as runtime:
        old = await _failed(runtime, waits)
        world.broken.clear()
        retry = await old.retry()
        with pytest.raises(hf.errors.RetryRefused, match="is its retry and has not ended"):
            await old.retry()
        assert await old.signal("editor", "yes") == "signalled"  # it reaches the retry
        assert await retry.result(timeout=SOON) == "yes"


async def test_an_unknown_step_is_refused_with_the_known_ones(world: World) -> None:
    orders, world.broken = _ordering(world), {"pay"}
    async with hf.open(None, processes=[orders]) as runtime:
        old = await _failed(runtime, orders)
        with pytest.raises(hf.errors.RetryRefused, match=r"no step 'fly'.*process/find, process/pay"):
            await old.retry(from_step="fly")


async def test_a_child_that_failed_is_started_again_by_the_retry_of_its_parent(world: World) -> None:
    orders = _ordering(world)

    @hf.process
    async def parent(ctx: hf.ProcessContext) -> Any:
        await ctx.step("begin", world.act(ctx, "begin"))
        child = await ctx.start(orders)
        return await child.result()

    world.broken = {"ship"}
    async with hf.open(None, processes=[orders, parent]) as runtime:
        old = await _failed(runtime, parent)
        world.broken.clear()
        assert await (await old.retry()).result(timeout=SOON) == ["find", "pay", "ship"]
    assert world.done["begin"] == 1
    assert world.done["find"] == 2  # the child is another one


async def test_the_retry_of_a_child_is_not_awaited_by_its_parent(world: World) -> None:
    orders = _ordering(world)

    @hf.process
    async def parent(ctx: hf.ProcessContext) -> str:
        child = await ctx.start(orders, id="child")
        try:
            return str(await child.result())
        except hf.ProcessFailed:
            return "without it"

    world.broken = {"ship"}
    async with hf.open(None, processes=[orders, parent]) as runtime:
        assert await (await runtime.start(parent, id="p")).result(timeout=SOON) == "without it"
        world.broken.clear()
        retry = await runtime.processes.handle("child").retry()
        assert await retry.result(timeout=SOON) == ["find", "pay", "ship"]
        assert (await retry.line()).parent is None
        assert await runtime.processes.handle("p").result() == "without it"


async def test_a_process_that_has_a_retry_is_kept_until_the_retry_is_pruned(world: World) -> None:
    orders, world.broken, clock = _ordering(world), {"pay"}, ManualClock()
    async with hf.open(None, processes=[orders], clock=clock) as runtime:
        old = await _failed(runtime, orders)
        world.broken.clear()
        retry = await old.retry()
        await retry.result(timeout=SOON)
        clock.advance(100_000)
        pruned: list[str] = []

        async def both() -> bool:
            pruned.extend(one.id for one in (await runtime.processes.prune(1)).processes)
            return len(pruned) == 2

        await until(both)
    assert pruned == [retry.id, old.id]


FLOWS = """
from pathlib import Path

import holdfast as hf


def pay():
    if not Path("money").exists():
        raise OSError("no money")
    return "paid"


@hf.process
async def pays(ctx: hf.ProcessContext) -> str:
    await ctx.step("find", lambda: 1)
    return await ctx.step("pay", pay)
"""


def test_a_process_is_retried_from_the_shell(shell: Shell) -> None:
    (shell.folder / "flows.py").write_text(FLOWS)
    assert shell("processes", "start", "flows.py:pays", "--id", "p").returncode == 1
    (shell.folder / "money").touch()
    retry = shell("processes", "retry", "p", "--key", "k").stdout.strip()
    assert shell("processes", "retry", "p", "--key", "k").stdout.strip() == retry
    work = shell.start("processes", "work", "flows.py")
    shell.until(lambda: shell.json("processes", retry)["process"]["status"] == "completed")
    os.kill(work.pid, signal.SIGTERM)
    shown = shell("processes", retry).stdout
    assert "retry of  p, from its failure; 1 result used again" in shown
    assert f"retried as {retry}" in shell("processes", "p").stdout


def test_a_retry_that_is_refused_says_why_in_the_shell(shell: Shell) -> None:
    (shell.folder / "flows.py").write_text(FLOWS)
    shell("processes", "start", "flows.py:pays", "--id", "p")
    done = shell("processes", "retry", "p", "--from", "fly")
    assert done.returncode == 2
    assert "it has no step 'fly'" in done.stderr
