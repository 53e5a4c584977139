"""Processes that wait: for a time, for signals, for the first of several. Nothing of them stays in memory."""

from __future__ import annotations

import asyncio
import gc
import weakref
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from tests.behaviour.talk import SOON, is_now, until

import holdfast as hf
from holdfast.testing import check

if TYPE_CHECKING:
    from pathlib import Path


class Kept:
    """Something that a function holds."""


@hf.process
async def asks(ctx: hf.ProcessContext) -> Any:
    return await ctx.wait("editor")


async def _at_rest(runtime: hf.Runtime) -> bool:
    await asyncio.sleep(0)
    return runtime.active == 0


async def test_a_signal_answers_a_wait() -> None:
    async with hf.open(None, processes=[asks]) as runtime:
        process = await runtime.start(asks)
        await until(lambda: is_now(process, "waiting"))
        await process.signal("editor", {"ok": True})
        assert await process.result(timeout=SOON) == {"ok": True}


async def test_a_signal_that_comes_early_is_kept() -> None:
    async with hf.open(None, processes=[asks], drive=False) as runtime:
        process = await runtime.start(asks, id="p")
        await process.signal("editor", 1)
        await runtime.processes.settle("process/p")
        assert await process.result(timeout=SOON) == 1


async def test_signals_answer_waits_in_the_order_in_which_they_came() -> None:
    @hf.process
    async def three(ctx: hf.ProcessContext) -> list[int]:
        return [await ctx.wait("n") for _ in range(3)]

    async with hf.open(None, processes=[three]) as runtime:
        process = await runtime.start(three)
        for n in range(3):
            await process.signal("n", n)
        assert await process.result(timeout=SOON) == [0, 1, 2]


async def test_branches_that_wait_for_the_same_name_get_one_signal_each() -> None:
    @hf.process
    async def two(ctx: hf.ProcessContext) -> list[Any]:
        return sorted(await asyncio.gather(ctx.wait("n"), ctx.wait("n")))

    async with hf.open(None, processes=[two]) as runtime:
        process = await runtime.start(two)
        await until(lambda: is_now(process, "waiting"))
        await process.signal("n", 1)
        await until(lambda: is_now(process, "waiting"))
        await process.signal("n", 2)
        assert await process.result(timeout=SOON) == [1, 2]


async def test_a_wait_that_nobody_answers_in_time_expires() -> None:
    @hf.process
    async def hurries(ctx: hf.ProcessContext) -> str:
        try:
            return await ctx.wait("editor", timeout=0.02)
        except hf.WaitExpired:
            return "nobody"

    async with hf.open(None, processes=[hurries]) as runtime:
        assert await (await runtime.start(hurries)).result(timeout=SOON) == "nobody"


async def test_a_signal_after_the_time_is_up_is_for_the_next_wait() -> None:
    @hf.process
    async def twice(ctx: hf.ProcessContext) -> Any:
        with pytest.raises(hf.WaitExpired):
            await ctx.wait("editor", timeout=0.01)
        await ctx.wait("go")
        return await ctx.wait("editor")

    async with hf.open(None, processes=[twice]) as runtime:
        process = await runtime.start(twice)
        await until(lambda: _waits(process, "signal go"))
        await process.signal("editor", "late")
        await process.signal("go")
        assert await process.result(timeout=SOON) == "late"


async def _waits(process: hf.Process, *names: str) -> bool:
    return (await process.line()).waits == names


async def test_a_process_that_only_waits_holds_nothing_in_memory() -> None:
    held: weakref.WeakSet[Kept] = weakref.WeakSet()

    @hf.process
    async def keeps(ctx: hf.ProcessContext) -> Any:
        kept = Kept()
        held.add(kept)
        return [await ctx.wait("editor"), repr(kept)]

    async with hf.open(None, processes=[keeps]) as runtime:
        process = await runtime.start(keeps)
        await until(lambda: is_now(process, "waiting"))
        await until(lambda: _at_rest(runtime))
        gc.collect()
        assert not held


async def test_a_sleep_is_over_in_another_runtime(tmp_path: Path) -> None:
    @hf.process
    async def naps(ctx: hf.ProcessContext) -> str:
        await ctx.sleep(timedelta(milliseconds=200))
        return "rested"

    async with hf.open(tmp_path / "s.db", processes=[naps]) as runtime:
        process = await runtime.start(naps, id="p")
        await until(lambda: is_now(process, "waiting"))
    async with hf.open(tmp_path / "s.db", processes=[naps]) as runtime:
        assert await runtime.processes.handle("p").result(timeout=SOON) == "rested"


async def test_branches_that_work_go_on_beside_one_that_waits() -> None:
    done: list[int] = []

    @hf.process
    async def both(ctx: hf.ProcessContext) -> Any:
        async def works() -> None:
            for n in range(3):
                await asyncio.sleep(0.005)
                await ctx.step("work", done.append, n)

        answer, _ = await asyncio.gather(ctx.wait("editor"), works())
        return answer

    async with hf.open(None, processes=[both]) as runtime:
        process = await runtime.start(both)
        await until(lambda: is_now(process, "waiting"))
        assert done == [0, 1, 2]
        await process.signal("editor", "fine")
        assert await process.result(timeout=SOON) == "fine"
    assert done == [0, 1, 2]


async def test_a_signal_is_heard_while_another_branch_works() -> None:
    gate = asyncio.Event()

    @hf.process
    async def both(ctx: hf.ProcessContext) -> Any:
        async def opens() -> None:
            await ctx.wait("open")
            await ctx.step("open", gate.set)

        return await asyncio.gather(ctx.step("work", gate.wait), opens())

    async with hf.open(None, processes=[both]) as runtime:
        process = await runtime.start(both)
        await process.signal("open")
        assert await process.result(timeout=SOON) == [True, None]


async def test_a_sleep_ends_while_another_branch_works() -> None:
    gate = asyncio.Event()

    @hf.process
    async def both(ctx: hf.ProcessContext) -> Any:
        async def opens() -> None:
            await ctx.sleep(0.02)
            await ctx.step("open", gate.set)

        return await asyncio.gather(ctx.step("work", gate.wait), opens())

    async with hf.open(None, processes=[both]) as runtime:
        assert await (await runtime.start(both)).result(timeout=SOON) == [True, None]


async def test_a_task_group_inside_a_process_replays_right() -> None:
    @hf.process
    async def grouped(ctx: hf.ProcessContext) -> list[str]:
        async def branch(n: int) -> str:
            first = await ctx.step("same", lambda: f"{n}a")
            await ctx.sleep(0.01 * n)
            return first + await ctx.step("same", lambda: f"{n}b")

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(branch(n)) for n in range(1, 4)]
        return [task.result() for task in tasks]

    async with hf.open(None, processes=[grouped]) as runtime:
        assert await (await runtime.start(grouped)).result(timeout=SOON) == ["1a1b", "2a2b", "3a3b"]
        assert await check(runtime.store) == []


async def test_gather_gives_all_values_in_the_order_given() -> None:
    @hf.process
    async def gathers(ctx: hf.ProcessContext) -> list[Any]:
        return await ctx.gather(ctx.wait("a"), ctx.step("b", lambda: "b"), ctx.sleep(0.01))

    async with hf.open(None, processes=[gathers]) as runtime:
        process = await runtime.start(gathers)
        await process.signal("a", "a")
        assert await process.result(timeout=SOON) == ["a", "b", None]


async def test_a_race_is_won_by_the_first_and_stays_so() -> None:
    runs: list[tuple[int, Any]] = []

    @hf.process
    async def races(ctx: hf.ProcessContext) -> list[Any]:
        won = await ctx.race(ctx.wait("editor"), ctx.sleep(0.01))
        runs.append(won)
        await ctx.sleep(0.01)
        return list(won)

    async with hf.open(None, processes=[races]) as runtime:
        process = await runtime.start(races)
        assert await process.result(timeout=SOON) == [1, None]
        assert await check(runtime.store) == []
    assert set(runs) == {(1, None)}


async def test_a_wait_that_lost_a_race_takes_no_signal() -> None:
    @hf.process
    async def races(ctx: hf.ProcessContext) -> Any:
        await ctx.race(ctx.wait("editor"), ctx.sleep(0.01))
        await ctx.wait("go")
        return await ctx.wait("editor")

    async with hf.open(None, processes=[races]) as runtime:
        process = await runtime.start(races)
        await until(lambda: _waits(process, "signal go"))
        await process.signal("editor", "mine")
        await process.signal("go")
        assert await process.result(timeout=SOON) == "mine"


async def test_a_race_of_steps_gives_the_value_of_the_winner() -> None:
    never = asyncio.Event()

    @hf.process
    async def races(ctx: hf.ProcessContext) -> list[Any]:
        return list(await ctx.race(ctx.step("slow", never.wait), ctx.step("quick", lambda: "done")))

    async with hf.open(None, processes=[races]) as runtime:
        assert await (await runtime.start(races)).result(timeout=SOON) == [1, "done"]
        assert await check(runtime.store) == []


async def test_cancel_ends_a_process_that_waits() -> None:
    async with hf.open(None, processes=[asks]) as runtime:
        process = await runtime.start(asks)
        await until(lambda: is_now(process, "waiting"))
        assert await process.cancel("not needed") == "requested"
        with pytest.raises(hf.errors.ProcessCancelled, match="not needed"):
            await process.result(timeout=SOON)
        assert await check(runtime.store) == []


async def test_cancel_ends_a_process_that_works() -> None:
    begun = asyncio.Event()

    @hf.process
    async def works(ctx: hf.ProcessContext) -> None:
        async def forever() -> None:
            begun.set()
            await asyncio.Event().wait()

        await ctx.step("forever", forever, repeat=hf.Repeat.NEVER)

    async with hf.open(None, processes=[works]) as runtime:
        process = await runtime.start(works)
        await asyncio.wait_for(begun.wait(), SOON)
        await process.cancel("enough")
        with pytest.raises(hf.errors.ProcessCancelled, match="enough"):
            await process.result(timeout=SOON)
        assert await check(runtime.store) == []


async def test_a_second_request_to_cancel_and_one_after_the_end_are_told() -> None:
    async with hf.open(None, processes=[asks], drive=False) as runtime:
        process = await runtime.start(asks, id="p")
        await process.cancel("first")
        assert await process.cancel("second") == "already_requested"
        await runtime.processes.settle("process/p")
        assert await process.cancel("third") == "too_late"


async def test_a_process_that_waits_for_a_person_is_listed_with_the_command_that_helps() -> None:
    async with hf.open(None, processes=[asks]) as runtime:
        process = await runtime.start(asks, id="p")
        await until(lambda: is_now(process, "waiting"))
        await until(lambda: _at_rest(runtime))
        (stuck,) = await runtime.processes.stuck()
        assert stuck.command == "holdfast processes signal p editor JSON"


async def test_a_process_that_sleeps_is_not_stuck() -> None:
    @hf.process
    async def naps(ctx: hf.ProcessContext) -> None:
        await ctx.sleep(timedelta(days=1))

    async with hf.open(None, processes=[naps]) as runtime:
        process = await runtime.start(naps)
        await until(lambda: is_now(process, "waiting"))
        await until(lambda: _at_rest(runtime))
        assert await runtime.processes.stuck() == []


async def test_a_process_that_is_carried_out_elsewhere_ends_when_somebody_says_so() -> None:
    @hf.process(recovery="external")
    async def outside(ctx: hf.ProcessContext, order: int) -> Any: ...

    async with hf.open(None, processes=[outside]) as runtime:
        process = await runtime.start(outside, 7)
        assert await process.complete("shipped") is True
        assert await process.result(timeout=SOON) == "shipped"
        assert await process.complete("again") is False


async def test_a_process_that_failed_elsewhere_fails() -> None:
    @hf.process(recovery="external")
    async def outside(ctx: hf.ProcessContext) -> Any: ...

    async with hf.open(None, processes=[outside]) as runtime:
        process = await runtime.start(outside)
        await process.fail("lost on the way")
        with pytest.raises(hf.ProcessFailed, match="lost on the way"):
            await process.result(timeout=SOON)


async def test_only_a_process_that_is_carried_out_elsewhere_can_be_completed_by_hand() -> None:
    async with hf.open(None, processes=[asks]) as runtime:
        process = await runtime.start(asks)
        with pytest.raises(hf.errors.ProcessInvalid, match="external"):
            await process.complete(1)


async def test_a_process_of_an_owner_that_is_gone_is_left_alone_until_somebody_gives_it_up(tmp_path: Path) -> None:
    begun: list[int] = []

    @hf.process(recovery="owner")
    async def owned(ctx: hf.ProcessContext) -> None:
        async def forever() -> None:
            begun.append(1)
            await asyncio.Event().wait()

        await ctx.step("hold", forever)

    async with hf.open(tmp_path / "s.db", processes=[owned]) as runtime:
        await runtime.start(owned, id="p")
        await until(lambda: _true(begun))
        await runtime.close(grace=0)
    async with hf.open(tmp_path / "s.db", processes=[owned]) as runtime:
        await until(lambda: _stuck(runtime))
        assert await runtime.processes.handle("p").status() == "running"
        await runtime.processes.abandon("p", "the machine burnt", by="ops")
        with pytest.raises(hf.errors.ProcessAbandoned, match=r"is gone; ops gave it up: the machine burnt"):
            await runtime.processes.handle("p").result(timeout=SOON)
        assert [line.id for line in await runtime.processes.list(status="abandoned")] == ["p"]
    assert begun == [1]


async def test_a_process_of_an_owner_that_is_gone_is_given_up_by_a_runtime_that_only_looks(tmp_path: Path) -> None:
    begun = asyncio.Event()

    @hf.process(recovery="owner")
    async def owned(ctx: hf.ProcessContext) -> None:
        begun.set()
        await ctx.step("hold", asyncio.sleep, 2 * SOON)

    async with hf.open(tmp_path / "s.db", processes=[owned]) as runtime:
        await runtime.start(owned, id="p")
        await begun.wait()
        await runtime.close(grace=0)
    async with hf.open(tmp_path / "s.db", processes=[owned]) as runtime:
        await until(lambda: runtime.processes.is_left("process/p"))
        async with hf.open(tmp_path / "s.db", drive=False) as other:
            await other.processes.abandon("p", "the machine burnt")
        with pytest.raises(hf.errors.ProcessAbandoned):
            await runtime.processes.handle("p").result(timeout=SOON)


async def _true(value: object) -> bool:
    await asyncio.sleep(0)
    return bool(value)


async def _stuck(runtime: hf.Runtime) -> bool:
    return any("abandon" in one.command for one in await runtime.processes.stuck())


# ---- who waits for a process -----------------------------------------------------------------------------------------

MOMENT = 0.03
"""Longer than the pause between two looks at a store for those who wait, in seconds."""


async def test_waiting_for_the_result_does_not_read_the_store_at_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[str] = []

    @hf.process
    async def walks(ctx: hf.ProcessContext) -> str:
        for number in range(10):
            await ctx.step(f"step {number}", asyncio.sleep, MOMENT)
        return "there"

    async with hf.open(None, processes=[walks]) as runtime:
        journal = runtime.store.journal

        async def counted(id: str) -> Any:
            reads.append(id)
            return await journal(id)

        monkeypatch.setattr(runtime.store, "journal", counted)
        process = await runtime.start(walks)
        assert await process.result(timeout=SOON) == "there"
    assert len(reads) <= 2, reads


async def test_the_result_of_a_process_that_another_runtime_drives_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    async with hf.open(path, processes=[asks]) as driver, hf.open(path, drive=False) as other:
        process = await driver.start(asks, id="p")
        waiting = asyncio.ensure_future(other.processes.handle("p").result(timeout=SOON))
        await until(lambda: is_now(process, "waiting"))
        await process.signal("editor", 1)
        assert await waiting == 1


async def test_many_wait_for_one_process_and_all_get_its_result() -> None:
    async with hf.open(None, processes=[asks]) as runtime:
        process = await runtime.start(asks)
        waiting = [asyncio.ensure_future(process.result(timeout=SOON)) for _ in range(5)]
        await until(lambda: is_now(process, "waiting"))
        await process.signal("editor", 1)
        assert await asyncio.gather(*waiting) == [1] * 5
