"""Triggers that are removed, and what they forget: nothing that they had is started a second time."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from tests.behaviour.talk import until
from tests.behaviour.triggering import HOUR, SECRET, START, Slow, later, prompts, said, signed, started, writer

import holdfast as hf
from holdfast.errors.caller import TriggerUnknown
from holdfast.testing import ManualClock, check

if TYPE_CHECKING:
    from pathlib import Path

    from tests.behaviour.shell import Shell

    from holdfast.runtime.runtime import Runtime


async def test_a_removed_trigger_is_not_there_and_starts_nothing() -> None:
    clock, agent = ManualClock(START), writer()
    async with hf.open(None, agents=[agent], clock=clock) as runtime:
        await runtime.every("pulse", hf.interval(timedelta(hours=1)), agent, prompt="{time}")
        await runtime.triggers.remove("pulse", by="ops")
        later(runtime, clock, 5 * HOUR)
        await runtime.every("other", hf.event("x"), agent, prompt="{payload}")
        await runtime.emit_event("x", "said")
        assert await said(runtime, 1) == ["said"]
        assert [status.name for status in await runtime.triggers.list()] == ["other"]
        with pytest.raises(TriggerUnknown):
            await runtime.triggers.get("pulse")
        assert await check(runtime.store) == []


async def test_a_trigger_that_was_removed_comes_back_as_its_next_revision() -> None:
    agent = writer()
    async with hf.open(None, agents=[agent]) as runtime:
        await runtime.every("paid", hf.event("paid"), agent, prompt="{payload}")
        await runtime.emit_event("paid", "one", key="k")
        await started(runtime, "paid", 1)
        await runtime.triggers.remove("paid")
        await runtime.every("paid", hf.event("paid"), agent, prompt="{payload}")
        assert (await runtime.triggers.get("paid")).revision == 2
        await runtime.emit_event("paid", "one", key="k")  # it had this one
        await runtime.emit_event("paid", "two", key="k2")
        assert await said(runtime, 2) == ["one", "two"]


async def test_what_was_reserved_is_dropped_with_its_trigger() -> None:
    gate = Slow()
    one = hf.TriggerOptions(concurrency=1)
    async with hf.open(None, agents=[gate.agent]) as runtime:
        await runtime.every("paid", hf.event("paid"), gate.agent, prompt="{payload}", options=one)
        for n in range(3):
            await runtime.emit_event("paid", f"{n}")
        await gate.reached.wait()
        await runtime.triggers.remove("paid")
        gate.open.set()

        async def taken() -> bool:
            return not await runtime.store.pending("trigger/paid") and runtime.active == 0

        await until(taken)
        assert await prompts(runtime) == ["0"]
        assert await check(runtime.store) == []


async def _month_of_hours(runtime: Runtime, clock: ManualClock, agent: hf.Agent) -> None:
    await runtime.every("paid", hf.event("paid"), agent, prompt="{payload}")
    for n in range(8):
        await runtime.emit_event("paid", f"{n}", key=f"k{n}")
        await started(runtime, "paid", n + 1)
        clock.advance(24 * HOUR)

    async def at_rest() -> bool:
        return runtime.active == 0 and not await runtime.store.work()

    await until(at_rest)  # whoever has started the last one still writes it down


async def test_a_pruned_trigger_is_shorter_and_stands_as_it_stood(tmp_path: Path) -> None:
    clock, agent = ManualClock(START), writer()
    async with hf.open(tmp_path / "s.db", agents=[agent], clock=clock) as runtime:
        await _month_of_hours(runtime, clock, agent)
        before = await runtime.triggers.get("paid")
        length = len([1 async for _ in runtime.store.read_all("trigger/paid")])
        dry = await runtime.triggers.prune(older_than=timedelta(days=2), dry_run=True)

        async def pruned() -> bool:
            return not (await runtime.triggers.prune("paid", older_than=timedelta(days=2)))[0].problem

        await until(pruned)
        assert len([1 async for _ in runtime.store.read_all("trigger/paid")]) == length - dry[0].records
        assert dry[0].payloads == 6
        assert await runtime.triggers.get("paid") == before
        assert await check(runtime.store) == []
    async with hf.open(tmp_path / "s.db", agents=[agent], clock=clock) as runtime:
        await runtime.every("paid", hf.event("paid"), agent, prompt="{payload}")
        await runtime.emit_event("paid", "new", key="new")
        assert (await started(runtime, "paid", 9)).started == 9


async def test_an_event_that_comes_again_after_pruning_starts_nothing() -> None:
    clock, agent = ManualClock(START), writer()
    async with hf.open(None, agents=[agent], clock=clock) as runtime:
        await _month_of_hours(runtime, clock, agent)

        async def pruned() -> bool:
            return not (await runtime.triggers.prune(older_than=0.001))[0].problem

        await until(pruned)
        assert not (await runtime.emit_event("paid", "0", key="k0")).fresh
        await runtime.emit_event("paid", "new", key="new")
        assert len(await said(runtime, 9)) == 9


async def test_a_webhook_that_is_sent_again_after_pruning_is_a_duplicate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_WEBHOOK_SECRET", SECRET)
    clock, agent = ManualClock(START), writer()
    async with hf.open(None, agents=[agent], clock=clock) as runtime:
        await runtime.every("push", hf.webhook("github"), agent, prompt="{payload.ref}")
        body = b'{"ref": "main"}'
        assert (await runtime.deliver_webhook("push", signed(body, "d-1"), body)).status == "accepted"
        await started(runtime, "push", 1)
        clock.advance(1_000)

        async def pruned() -> bool:
            return not (await runtime.triggers.prune(older_than=0.5))[0].problem

        await until(pruned)
        for delivery in ("d-1", "d-2"):  # the same id, and the same content under another one within the window
            assert (await runtime.deliver_webhook("push", signed(body, delivery), body)).status == "duplicate"


def test_the_command_line_removes_and_prunes_triggers(shell: Shell) -> None:
    async def declared() -> None:
        agent = writer()
        async with hf.open(shell.folder / ".holdfast" / "holdfast.db", agents=[agent]) as runtime:
            await runtime.every("paid", hf.event("paid"), agent, prompt="{payload}")
            await runtime.emit_event("paid", "one")
            await started(runtime, "paid", 1)

    asyncio.run(declared())
    told = shell.json("triggers", "prune", "--older-than", "30d", "--dry-run")
    assert [(one["name"], one["records"], one["problem"]) for one in told] == [("paid", 0, "")]
    assert shell("triggers", "remove", "paid").stdout == "paid is removed\n"
    assert shell("triggers").stdout == "no triggers\n"
    assert shell("triggers", "prune", "--older-than", "soon").returncode == 2
