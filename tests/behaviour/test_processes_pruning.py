"""Pruning: what is over is forgotten, how it ended is not, and no id is used again."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import apsw
import msgspec
import pytest
from tests.behaviour.talk import SOON, is_now, until

import holdfast as hf
from holdfast.errors.caller import ProcessConflict, ProcessPruned
from holdfast.processes.keys import PROCESS_ROLE
from holdfast.records import Done, EffectRequest, Ended, Started
from holdfast.runtime import retention
from holdfast.testing import ManualClock, ScriptedModel, check, text

if TYPE_CHECKING:
    from pathlib import Path

DAY = 86_400_000
MONTH = timedelta(days=30)


class Counted:
    """Counts how often functions ran."""

    def __init__(self) -> None:
        self.runs = 0

    def function(self) -> Any:
        @hf.process
        async def adds(ctx: hf.ProcessContext, n: int) -> int:
            self.runs += 1
            return await ctx.step("add", lambda: n + 1)

        return adds


@hf.process
async def asks(ctx: hf.ProcessContext) -> Any:
    return await ctx.wait("editor")


@hf.process
async def waits_for_child(ctx: hf.ProcessContext) -> Any:
    child = await ctx.start(asks, id="child")
    await ctx.wait("go")
    return await child.result()


@hf.process(on_parent_end="abandon")
async def goes_on(ctx: hf.ProcessContext) -> Any:
    return await ctx.wait("editor")


@hf.process
async def leaves_a_child(ctx: hf.ProcessContext) -> None:
    await ctx.start(goes_on, id="left")


async def _ended(runtime: hf.Runtime, *ids: str) -> None:
    """They are over, and nobody holds them."""

    async def over() -> bool:
        held = {work.journal for work in await runtime.store.work()}
        done = [await runtime.processes.handle(id).status() not in {"running", "waiting"} for id in ids]
        return all(done) and runtime.active == 0 and not held & {f"process/{id}" for id in ids}

    await until(over)


async def test_a_process_that_ended_long_ago_is_pruned_and_a_newer_one_is_kept() -> None:
    clock, adds = ManualClock(), Counted().function()
    async with hf.open(None, processes=[adds], clock=clock) as runtime:
        await (await runtime.start(adds, 1, id="old")).result(timeout=SOON)
        await _ended(runtime, "old")
        clock.advance(31 * DAY)
        await (await runtime.start(adds, 2, id="new")).result(timeout=SOON)
        await _ended(runtime, "new")
        report = await runtime.processes.prune(MONTH)
        assert (report.pruned, [one.id for one in report.processes]) == (1, ["old"])
        assert [line.id for line in await runtime.processes.list()] == ["new"]
        assert await check(runtime.store) == []


async def test_a_dry_run_says_what_would_go_and_lets_it_stay() -> None:
    clock, adds = ManualClock(), Counted().function()
    async with hf.open(None, processes=[adds], clock=clock) as runtime:
        await (await runtime.start(adds, 1, id="old")).result(timeout=SOON)
        await _ended(runtime, "old")
        clock.advance(31 * DAY)
        report = await runtime.processes.prune(MONTH, dry_run=True)
        assert (report.pruned, report.dry_run) == (1, True)
        assert [line.id for line in await runtime.processes.list()] == ["old"]


async def test_a_process_whose_bytes_are_damaged_is_kept_and_the_others_go(tmp_path: Path) -> None:
    clock, adds = ManualClock(), Counted().function()

    @hf.process
    async def answers(ctx: hf.ProcessContext) -> str:
        return await ctx.complete(ScriptedModel([text("yes" * 20_000)]), "May I?")

    async with hf.open(tmp_path / "s.db", processes=[adds, answers], clock=clock, mirror=False) as runtime:
        for n in range(2):
            await (await runtime.start(adds, n, id=f"p{n}")).result(timeout=SOON)
        await (await runtime.start(answers, id="damaged")).result(timeout=SOON)
        await _ended(runtime, "p0", "p1", "damaged")
        db: Any = apsw.Connection(str(tmp_path / "s.db"))
        db.execute("UPDATE blobs SET body = x'00'")
        db.close()
        clock.advance(31 * DAY)
        report = await runtime.processes.prune(MONTH)
        assert (report.pruned, [one.id for one in report.reasons]) == (2, ["damaged"])


async def test_a_process_whose_record_makes_no_sense_is_kept_and_the_others_go() -> None:
    clock, adds = ManualClock(), Counted().function()
    async with hf.open(None, processes=[adds], clock=clock) as runtime:
        await (await runtime.start(adds, 1, id="good")).result(timeout=SOON)
        await _ended(runtime, "good")
        store = runtime.store
        await store.open_journal("process/odd", "process", "adds", role=PROCESS_ROLE)
        lease = await store.claim("process/odd")
        answer = Done(
            at=1, key="process/1.ask", ask=EffectRequest("direct", "m", "0" * 64), value=msgspec.Raw(b'"no reply"')
        )
        over = Ended(at=1, run="process", status="completed", value=msgspec.Raw(b"1"))
        await store.append(lease, [Started(at=1, run="process"), answer, over], head=1)
        await store.release(lease, seen=lease.wakes)
        clock.advance(31 * DAY)
        report = await runtime.processes.prune(MONTH)
        assert ([one.id for one in report.processes], [one.id for one in report.reasons]) == (["good"], ["odd"])


async def _pruned(path: Path | None, counted: Counted, clock: ManualClock) -> Any:
    adds = counted.function()
    async with hf.open(path, processes=[adds], clock=clock) as runtime:
        await (await runtime.start(adds, 1, id="old")).result(timeout=SOON)
        await _ended(runtime, "old")
        clock.advance(31 * DAY)
        assert (await runtime.processes.prune(MONTH)).pruned == 1
    return adds


async def test_the_same_start_after_pruning_runs_nothing_and_tells_how_it_ended(tmp_path: Path) -> None:
    counted, clock = Counted(), ManualClock()
    adds = await _pruned(tmp_path / "s.db", counted, clock)
    async with hf.open(tmp_path / "s.db", processes=[adds], clock=clock) as runtime:
        again = await runtime.start(adds, 1, id="old")
        assert (await again.status(), counted.runs) == ("completed", 1)
        assert (await again.line()).pruned is not None


async def test_another_start_under_a_pruned_id_is_a_conflict(tmp_path: Path) -> None:
    counted, clock = Counted(), ManualClock()
    adds = await _pruned(tmp_path / "s.db", counted, clock)
    async with hf.open(tmp_path / "s.db", processes=[adds, asks], clock=clock) as runtime:
        for attempt in (runtime.start(adds, 2, id="old"), runtime.start(asks, id="old")):
            with pytest.raises(ProcessConflict):
                await attempt


async def test_the_result_of_a_pruned_process_is_gone_and_says_so(tmp_path: Path) -> None:
    counted, clock = Counted(), ManualClock()
    adds = await _pruned(tmp_path / "s.db", counted, clock)
    async with hf.open(tmp_path / "s.db", processes=[adds], clock=clock) as runtime:
        process = await runtime.processes.get("old")
        with pytest.raises(ProcessPruned, match="ended as completed") as caught:
            await process.result(timeout=SOON)
        assert caught.value.status == "completed"
        assert (await process.cancel(), await process.signal("x")) == ("too_late", "too_late")


async def test_what_is_not_over_is_never_pruned() -> None:
    clock = ManualClock()
    async with hf.open(None, processes=[asks], clock=clock) as runtime:
        process = await runtime.start(asks, id="a")
        await until(lambda: is_now(process, "waiting"))
        clock.advance(400 * DAY)
        assert (await runtime.processes.prune(MONTH)).pruned == 0
        await process.signal("editor", "yes")
        assert await process.result(timeout=SOON) == "yes"


async def test_a_child_is_kept_while_its_parent_may_ask_for_it() -> None:
    clock = ManualClock()
    async with hf.open(None, processes=[asks, waits_for_child], clock=clock) as runtime:
        parent = await runtime.start(waits_for_child, id="parent")
        await until(lambda: is_now(parent, "waiting"))
        await runtime.signal("child", "editor", "yes")
        await _ended(runtime, "child")
        clock.advance(31 * DAY)
        report = await runtime.processes.prune(MONTH)
        assert [(kept.id, "parent started it" in kept.reason) for kept in report.reasons] == [("child", True)]
        await parent.signal("go")
        assert await parent.result(timeout=SOON) == "yes"
        await _ended(runtime, "parent")
        clock.advance(31 * DAY)
        assert (await runtime.processes.prune(MONTH)).pruned == 2
        assert await check(runtime.store) == []


async def test_a_parent_is_kept_while_a_child_goes_on_by_itself() -> None:
    clock = ManualClock()
    async with hf.open(None, processes=[goes_on, leaves_a_child], clock=clock) as runtime:
        await (await runtime.start(leaves_a_child, id="parent")).result(timeout=SOON)
        await _ended(runtime, "parent")
        clock.advance(31 * DAY)
        report = await runtime.processes.prune(MONTH)
        assert [(kept.id, "left, which it started" in kept.reason) for kept in report.reasons] == [("parent", True)]


async def test_a_reader_of_the_changes_who_was_behind_is_told_of_what_was_pruned(tmp_path: Path) -> None:
    clock, adds = ManualClock(), Counted().function()
    async with hf.open(tmp_path / "s.db", processes=[adds], clock=clock) as runtime:
        await (await runtime.start(adds, 1, id="seen")).result(timeout=SOON)
        await _ended(runtime, "seen")
        cursor = (await runtime.processes.changes()).cursor
        await (await runtime.start(adds, 2, id="missed")).result(timeout=SOON)
        await _ended(runtime, "missed")
        clock.advance(31 * DAY)
        assert (await runtime.processes.prune(MONTH)).pruned == 2
    async with hf.open(tmp_path / "s.db", processes=[adds], clock=clock) as runtime:
        changes = await runtime.processes.changes(after=cursor)
        assert [(event.process, event.what, event.detail) for event in changes.changed] == [
            ("missed", "pruned", "completed")
        ]
        await (await runtime.start(adds, 3, id="later")).result(timeout=SOON)
        rest = await runtime.processes.changes(after=changes.cursor)
        assert [event.process for event in rest.changed] == ["later"] * 3


async def test_changes_are_told_once_page_by_page_also_where_some_were_pruned() -> None:
    clock, adds = ManualClock(), Counted().function()
    async with hf.open(None, processes=[adds], clock=clock) as runtime:
        for n in range(6):
            await (await runtime.start(adds, n, id=f"p{n}")).result(timeout=SOON)
            await _ended(runtime, f"p{n}")
            clock.advance(DAY)
        assert (await runtime.processes.prune(timedelta(days=3))).pruned == 3
        told: list[tuple[str, str]] = []
        cursor = 0
        while (page := await runtime.processes.changes(after=cursor, limit=2)).cursor != cursor:
            cursor = page.cursor
            told += [(event.process, event.what) for event in page.changed]
    kept = [(f"p{n}", what) for n in (3, 4, 5) for what in ("created", "started", "completed")]
    assert told == [*[(f"p{n}", "pruned") for n in (0, 1, 2)], *kept]


async def test_retention_prunes_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "PRUNE_INTERVAL", 0.01)
    clock, adds = ManualClock(), Counted().function()
    async with hf.open(None, processes=[adds], clock=clock, retention=MONTH) as runtime:
        await (await runtime.start(adds, 1, id="old")).result(timeout=SOON)
        clock.advance(31 * DAY)

        async def gone() -> bool:
            return await runtime.processes.list() == []

        await until(gone)


async def test_what_a_pruned_process_spent_stays_counted() -> None:
    clock = ManualClock()

    @hf.process
    async def answers(ctx: hf.ProcessContext) -> str:
        return await ctx.complete(ScriptedModel([text("yes")]), "May I?")

    async with hf.open(None, processes=[answers], clock=clock) as runtime:
        await (await runtime.start(answers, id="a")).result(timeout=SOON)
        await _ended(runtime, "a")
        before = await runtime.store.spent("answers")
        clock.advance(31 * DAY)
        assert (await runtime.processes.prune(MONTH)).pruned == 1
        assert await runtime.store.spent("answers") == before
        assert before.model_calls == 1
        assert await check(runtime.store) == []


async def test_two_prunings_at_once_do_no_harm() -> None:
    clock, adds = ManualClock(), Counted().function()
    async with hf.open(None, processes=[adds], clock=clock) as runtime:
        for n in range(20):
            await (await runtime.start(adds, n, id=f"p{n}")).result(timeout=SOON)
        await _ended(runtime, *[f"p{n}" for n in range(20)])
        clock.advance(31 * DAY)
        await asyncio.gather(*[runtime.processes.prune(MONTH) for _ in range(3)])
        assert await runtime.processes.list() == []
        assert await check(runtime.store) == []
