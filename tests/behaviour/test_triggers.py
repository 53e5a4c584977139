"""Triggers: whatever makes one go off, it starts its work once."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from tests.behaviour.talk import until
from tests.behaviour.triggering import HOUR, SECRET, START, Slow, later, said, signed, started, writer

import holdfast as hf
from holdfast.errors.caller import TriggerConflict, TriggerDisabled, TriggerInvalid, TriggerUnknown
from holdfast.profiles import SecretMissing
from holdfast.testing import ManualClock, check
from holdfast.triggers.schedules import to_wall

if TYPE_CHECKING:
    from pathlib import Path

    from tests.behaviour.shell import Shell

    from holdfast.runtime.runtime import Runtime


# ---- times -----------------------------------------------------------------------------------------------------------


async def test_a_cron_trigger_asks_its_agent_at_the_time_and_knows_the_next_one() -> None:
    clock = ManualClock(START)
    async with hf.open(None, agents=[writer()], clock=clock) as runtime:
        source = hf.cron("30 2 * * *", tz="Europe/Rome")
        trigger = await runtime.every("digest", source, _agent_of(runtime), prompt="For {date} at {time}")
        assert (await trigger.status()).next == to_wall(datetime(2026, 3, 29, 1, tzinfo=UTC))
        later(runtime, clock, 13 * HOUR)
        assert await said(runtime, 1) == ["For 2026-03-29 at 03:00"]
        status = await started(runtime, "digest", 1)
        assert status.next == to_wall(datetime(2026, 3, 30, 0, 30, tzinfo=UTC))
        assert await check(runtime.store) == []


def _agent_of(runtime: Runtime) -> hf.Agent:
    return next(iter(runtime.agents.values()))


async def test_an_interval_goes_off_again_and_again_in_a_session_that_is_named() -> None:
    clock = ManualClock(START)
    async with hf.open(None, agents=[writer()], clock=clock) as runtime:
        every = hf.interval(timedelta(hours=1))
        await runtime.every("pulse", every, _agent_of(runtime), prompt="It is {time}", session="pulse-{date}")
        for count in (1, 2, 3):
            later(runtime, clock, HOUR)
            await started(runtime, "pulse", count)
        assert await said(runtime, 3) == ["It is 13:00", "It is 14:00", "It is 15:00"]
        assert [line.id for line in await runtime.sessions()] == ["pulse-2026-03-28"]


async def test_times_that_were_missed_while_nobody_ran_are_made_up_for_after_a_restart(tmp_path: Path) -> None:
    clock = ManualClock(START)
    source = hf.cron("0 * * * *", misfire="all")
    async with hf.open(tmp_path / "s.db", agents=[writer()], clock=clock) as runtime:
        await runtime.every("hourly", source, _agent_of(runtime), prompt="{time}")
    clock.advance(3 * HOUR)
    async with hf.open(tmp_path / "s.db", agents=[writer()], clock=clock) as runtime:
        await runtime.every("hourly", source, _agent_of(runtime), prompt="{time}")
        assert await said(runtime, 3) == ["13:00", "14:00", "15:00"]


async def test_a_clock_that_jumps_back_and_forth_starts_nothing_twice() -> None:
    clock = ManualClock(START)
    async with hf.open(None, agents=[writer()], clock=clock) as runtime:
        await runtime.every("hourly", hf.cron("0 * * * *"), _agent_of(runtime), prompt="{time}")
        later(runtime, clock, HOUR)
        await started(runtime, "hourly", 1)
        clock.jump(-HOUR)
        later(runtime, clock, HOUR)
        clock.jump(-HOUR // 2)
        later(runtime, clock, HOUR + HOUR // 2)
        await started(runtime, "hourly", 2)
        assert await said(runtime, 2) == ["13:00", "14:00"]


async def test_two_processes_with_the_same_trigger_start_each_occurrence_once(tmp_path: Path) -> None:
    clock = ManualClock(START)
    first, second = (hf.open(tmp_path / "s.db", agents=[writer()], clock=clock) for _ in range(2))
    async with first as one, second as two:
        for runtime in (one, two):
            await runtime.every("hourly", hf.cron("0 * * * *"), _agent_of(runtime), prompt="{time}")
        for count in range(1, 6):
            clock.advance(HOUR)
            one.gate_changed()
            two.gate_changed()
            await started(one, "hourly", count)
        assert await said(one, 5) == ["13:00", "14:00", "15:00", "16:00", "17:00"]
        assert await check(one.store) == []


# ---- revisions -------------------------------------------------------------------------------------------------------


async def test_the_same_declaration_again_changes_nothing_and_another_is_the_next_revision() -> None:
    async with hf.open(None, agents=[writer()]) as runtime:
        for prompt in ("One.", "One.", "Two.", "One."):
            await runtime.every("paid", hf.event("paid"), _agent_of(runtime), prompt=prompt)
        assert (await runtime.triggers.get("paid")).revision == 3


async def test_a_new_revision_is_what_new_occurrences_get() -> None:
    async with hf.open(None, agents=[writer()]) as runtime:
        await runtime.every("paid", hf.event("paid"), _agent_of(runtime), prompt="Old {payload}")
        await runtime.emit_event("paid", 1)
        await runtime.every("paid", hf.event("paid"), _agent_of(runtime), prompt="New {payload}")
        await runtime.emit_event("paid", 2)
        assert await said(runtime, 2) == ["New 2", "Old 1"]


async def test_a_trigger_of_another_owner_is_not_changed() -> None:
    async with hf.open(None, agents=[writer()]) as runtime:
        await runtime.every("paid", hf.event("paid"), _agent_of(runtime), prompt="Mine.")
        with pytest.raises(TriggerConflict, match="host"):
            await runtime.every(
                "paid", hf.event("paid"), _agent_of(runtime), options=hf.TriggerOptions(owner="other"), prompt="Theirs."
            )


@pytest.mark.parametrize(
    ("target", "arguments"),
    [
        ("agent", {}),
        ("agent", {"prompt": " "}),
        ("agent", {"prompt": "x", "day": "{date}"}),
        ("session", {"prompt": "x", "session": "y"}),
        (None, {"prompt": "x"}),
        (5, {"prompt": "x"}),
        ("process", {"day": "{date}"}),
        ("process", {"day": "{date}", "deep": {}, "dep": {}}),
    ],
)
async def test_what_can_not_be_started_is_refused_when_it_is_declared(target: Any, arguments: dict[str, Any]) -> None:
    async with hf.open(None, agents=[writer()]) as runtime:
        known: dict[Any, Any] = {
            "agent": _agent_of(runtime),
            "session": runtime.session("ops", agent=_agent_of(runtime)),
            "process": nightly,
        }
        with pytest.raises(hf.UsageError):
            runtime.every("x", hf.event("paid"), known.get(target, target), **arguments)


# ---- events and firing by hand ---------------------------------------------------------------------------------------


async def test_an_event_reaches_every_trigger_that_wants_it_once() -> None:
    async with hf.open(None, agents=[writer()]) as runtime:
        for name in ("mail", "books"):
            await runtime.every(name, hf.event("order.paid"), _agent_of(runtime), prompt="{trigger} {payload.id}")
        await runtime.every("other", hf.event("order.sent"), _agent_of(runtime), prompt="no")
        first = await runtime.emit_event("order.paid", {"id": 7}, key="k-1")
        again = await runtime.emit_event("order.paid", {"id": 7}, key="k-1")
        assert (first.triggers, first.fresh, again.fresh) == (("books", "mail"), True, False)
        assert await said(runtime, 2) == ["books 7", "mail 7"]


async def test_an_event_is_an_input_to_a_session_that_was_given() -> None:
    async with hf.open(None, agents=[writer()]) as runtime:
        session = runtime.session("ops", agent=_agent_of(runtime))
        await runtime.every("paid", hf.event("paid"), session, prompt="Paid: {payload}")
        await runtime.emit_event("paid", 7)
        await said(runtime, 1)
        assert [line.id for line in await runtime.sessions()] == ["ops"]


@hf.process
async def nightly(ctx: hf.ProcessContext, day: str, deep: dict[str, int]) -> str:
    return f"{day} {deep['at']}"


async def test_a_process_is_started_with_its_arguments_under_an_id_that_names_the_occurrence() -> None:
    clock = ManualClock(START)
    async with hf.open(None, clock=clock) as runtime:
        await runtime.every("digest", hf.cron("0 * * * *"), nightly, day="{date}", deep={"at": "{timestamp}"})
        later(runtime, clock, HOUR)
        await started(runtime, "digest", 1)
        process = await runtime.processes.get("trigger/digest/1/at/2026-03-28T13:00:00Z")
        assert await process.result() == f"2026-03-28 {(START + HOUR) // 1000}"


async def test_no_more_processes_are_under_way_than_may_be() -> None:
    clock = ManualClock(START)
    async with hf.open(None, clock=clock) as runtime:
        options = hf.TriggerOptions(concurrency=1)
        trigger = await runtime.every("digest", hf.event("go"), waits, options=options)
        for key in ("a", "b"):
            await trigger.fire(key=key)
        assert (await started(runtime, "digest", 1)).reserved == 1
        first = await runtime.processes.get("trigger/digest/1/fire/a")
        await first.signal("go", None)
        assert (await started(runtime, "digest", 2)).reserved == 0


@hf.process
async def waits(ctx: hf.ProcessContext) -> None:
    await ctx.wait("go")


async def test_the_same_key_fires_once_and_no_key_fires_each_time() -> None:
    async with hf.open(None, agents=[writer()]) as runtime:
        trigger = await runtime.every("digest", hf.cron("0 6 * * *"), _agent_of(runtime), prompt="{payload.n}")
        for _ in range(2):
            await trigger.fire({"n": 1}, key="k")
            await trigger.fire({"n": 2})
        assert await said(runtime, 3) == ["1", "2", "2"]


async def test_an_occurrence_that_lacks_what_its_prompt_needs_fails_and_says_why() -> None:
    async with hf.open(None, agents=[writer()]) as runtime:
        trigger = await runtime.every("paid", hf.event("paid"), _agent_of(runtime), prompt="{payload.id}")
        await trigger.fire({"no": "id"})
        await trigger.fire({"id": "fine"})
        status = await started(runtime, "paid", 1)
        assert (status.started, status.failed) == (1, 1)
        assert "{payload.id}" in status.recent[0].why


async def test_a_trigger_that_is_not_there_is_a_named_error() -> None:
    async with hf.open(None, agents=[writer()]) as runtime:
        await runtime.every("paid", hf.event("paid"), _agent_of(runtime), prompt="x")
        with pytest.raises(TriggerUnknown, match="paid"):
            await runtime.triggers.fire("payed")


# ---- on and off ------------------------------------------------------------------------------------------------------


async def test_a_disabled_trigger_takes_nothing_in_and_goes_on_when_it_is_enabled() -> None:
    async with hf.open(None, agents=[writer()]) as runtime:
        trigger = await runtime.every("paid", hf.event("paid"), _agent_of(runtime), prompt="{payload}")
        assert not (await runtime.triggers.disable("paid", by="ops")).enabled
        assert (await runtime.emit_event("paid", 1)).triggers == ()
        with pytest.raises(TriggerDisabled):
            await trigger.fire(2)
        await runtime.triggers.enable("paid")
        await runtime.emit_event("paid", 3)
        assert await said(runtime, 1) == ["3"]


async def test_what_was_said_last_counts_however_quickly_it_is_said(tmp_path: Path) -> None:
    async with hf.open(tmp_path / "s.db", agents=[writer()], durability="process") as runtime:
        await runtime.every("paid", hf.event("paid"), _agent_of(runtime), prompt="x")
        for _ in range(40):
            assert not (await runtime.triggers.disable("paid")).enabled
            assert (await runtime.triggers.enable("paid")).enabled


async def test_declaring_it_again_does_not_switch_it_on() -> None:
    async with hf.open(None, agents=[writer()]) as runtime:
        await runtime.every("paid", hf.event("paid"), _agent_of(runtime), prompt="x")
        await runtime.triggers.disable("paid")
        await runtime.every("paid", hf.event("paid"), _agent_of(runtime), prompt="y")
        assert not (await runtime.triggers.get("paid")).enabled


async def test_what_was_reserved_before_it_was_disabled_is_started(tmp_path: Path) -> None:
    async with hf.open(tmp_path / "s.db", agents=[writer()], drive=False) as runtime:
        await runtime.every("paid", hf.event("paid"), _agent_of(runtime), prompt="{payload}")
        await runtime.emit_event("paid", 1)
        await runtime.triggers.disable("paid")
    async with hf.open(tmp_path / "s.db", agents=[writer()]) as runtime:
        await runtime.every("paid", hf.event("paid"), _agent_of(runtime), prompt="{payload}")
        assert await said(runtime, 1) == ["1"]


async def test_a_trigger_that_nobody_declares_any_more_starts_nothing(tmp_path: Path) -> None:
    clock = ManualClock(START)
    async with hf.open(tmp_path / "s.db", agents=[writer()], clock=clock) as runtime:
        await runtime.every("hourly", hf.cron("0 * * * *"), _agent_of(runtime), prompt="{time}")
    async with hf.open(tmp_path / "s.db", agents=[writer()], clock=clock) as runtime:
        await runtime.every("other", hf.cron("0 * * * *"), _agent_of(runtime), prompt="other")
        later(runtime, clock, HOUR)
        await started(runtime, "other", 1)
        assert (await runtime.triggers.get("hourly")).started == 0


# ---- how much --------------------------------------------------------------------------------------------------------


async def test_no_more_are_under_way_than_may_be_and_the_others_follow() -> None:
    gate = Slow()
    async with hf.open(None, agents=[gate.agent]) as runtime:
        options = hf.TriggerOptions(concurrency=1)
        await runtime.every("paid", hf.event("paid"), gate.agent, options=options, prompt="{payload}")
        for number in range(3):
            await runtime.emit_event("paid", number)
        await gate.reached.wait()
        status = await started(runtime, "paid", 1)
        assert (status.started, status.running) == (1, 1)
        gate.open.set()
        await started(runtime, "paid", 3)


async def test_a_run_that_has_ended_is_not_counted_although_nothing_waits_for_its_place() -> None:
    slow = Slow()
    async with hf.open(None, agents=[slow.agent], processes=[waits]) as runtime:
        options = hf.TriggerOptions(concurrency=2)
        await runtime.every("t", hf.event("go"), slow.agent, options=options, prompt="Go.")
        await runtime.every("p", hf.event("go"), waits, options=options)
        await runtime.emit_event("go", key="one")
        assert [(await started(runtime, name, 1)).running for name in ("t", "p")] == [1, 1]

        slow.open.set()
        await runtime.signal("trigger/p/1/event/one", "go")

        async def over() -> bool:
            return not any(status.running for status in await runtime.triggers.list())

        await until(over)


async def test_what_is_too_much_is_skipped_where_that_is_wanted() -> None:
    gate = Slow()
    async with hf.open(None, agents=[gate.agent]) as runtime:
        options = hf.TriggerOptions(concurrency=1, overflow="skip")
        await runtime.every("paid", hf.event("paid"), gate.agent, options=options, prompt="{payload}")
        await runtime.emit_event("paid", 0)
        await started(runtime, "paid", 1)
        await runtime.emit_event("paid", 1)

        async def skipped() -> bool:
            return (await runtime.triggers.get("paid")).skipped == 1

        await until(skipped)
        assert (await runtime.triggers.get("paid")).recent[-1].why == "too many are under way"
        gate.open.set()


async def test_a_rate_spreads_what_comes_at_once() -> None:
    clock = ManualClock(START)
    async with hf.open(None, agents=[writer()], clock=clock) as runtime:
        options = hf.TriggerOptions(per_window=2, window=timedelta(hours=1))
        await runtime.every("paid", hf.event("paid"), _agent_of(runtime), options=options, prompt="{payload}")
        for number in range(3):
            await runtime.emit_event("paid", number)
        assert (await started(runtime, "paid", 2)).reserved == 1
        later(runtime, clock, HOUR)
        assert await said(runtime, 3) == ["0", "1", "2"]


# ---- files -----------------------------------------------------------------------------------------------------------


def _inbox(folder: Path) -> Any:
    quick = timedelta(milliseconds=20)
    return hf.watch(f"{folder}/*.pdf", settle=quick, poll=quick)


async def test_each_file_is_told_once_also_after_a_restart_and_again_when_it_changes(tmp_path: Path) -> None:
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    (inbox / "a.pdf").write_text("a")
    (inbox / "a.txt").write_text("not this")
    async with hf.open(tmp_path / "s.db", agents=[writer()]) as runtime:
        await runtime.every("scan", _inbox(inbox), _agent_of(runtime), prompt="Read {file}")
        assert await said(runtime, 1) == ["Read a.pdf"]
    (inbox / "b.pdf").write_text("b")
    async with hf.open(tmp_path / "s.db", agents=[writer()]) as runtime:
        await runtime.every("scan", _inbox(inbox), _agent_of(runtime), prompt="Read {file}")
        assert await said(runtime, 2) == ["Read a.pdf", "Read b.pdf"]
        (inbox / "a.pdf").write_text("longer")
        assert await said(runtime, 3) == ["Read a.pdf", "Read a.pdf", "Read b.pdf"]
        assert await check(runtime.store) == []


async def test_files_that_come_while_it_is_off_are_told_when_it_is_on_again(tmp_path: Path) -> None:
    async with hf.open(tmp_path / "s.db", agents=[writer()]) as runtime:
        await runtime.every("scan", _inbox(tmp_path), _agent_of(runtime), prompt="Read {file}")
        await runtime.triggers.disable("scan")
        (tmp_path / "a.pdf").write_text("a")
        await runtime.triggers.enable("scan")
        assert await said(runtime, 1) == ["Read a.pdf"]


async def test_a_folder_that_is_not_there_is_a_problem_that_is_shown_until_it_is(tmp_path: Path) -> None:
    async with hf.open(tmp_path / "s.db", agents=[writer()]) as runtime:
        await runtime.every("scan", _inbox(tmp_path / "later"), _agent_of(runtime), prompt="Read {file}")

        async def shown() -> bool:
            return "No such file" in (await runtime.triggers.get("scan")).problem

        await until(shown)
        (tmp_path / "later").mkdir()
        (tmp_path / "later" / "a.pdf").write_text("a")
        assert await said(runtime, 1) == ["Read a.pdf"]


# ---- webhooks --------------------------------------------------------------------------------------------------------


@pytest.fixture
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOK_SECRET", SECRET)


async def _hooked(runtime: Runtime) -> None:
    source = hf.webhook("github", secret="env:HOOK_SECRET")  # noqa: S106
    await runtime.every("push", source, _agent_of(runtime), prompt="Ref {payload.ref}")


async def test_a_webhook_whose_secret_holds_no_key_takes_nothing_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOK_SECRET", "whsec_")
    async with hf.open(None, agents=[writer()]) as runtime:
        source = hf.webhook("standard", secret="env:HOOK_SECRET")  # noqa: S106
        await runtime.every("push", source, _agent_of(runtime), prompt="Ref {payload.ref}")
        with pytest.raises(TriggerInvalid, match="env:HOOK_SECRET"):
            await runtime.deliver_webhook("push", {}, b"{}")


@pytest.mark.usefixtures("secret")
async def test_a_signed_request_is_accepted_once() -> None:
    async with hf.open(None, agents=[writer()]) as runtime:
        await _hooked(runtime)
        body = b'{"ref": "main"}'
        first = await runtime.deliver_webhook("push", signed(body, "d-1"), body)
        again = await runtime.deliver_webhook("push", signed(body, "d-1"), body)
        assert [(found.status, found.code) for found in (first, again)] == [("accepted", 202), ("duplicate", 200)]
        assert await said(runtime, 1) == ["Ref main"]


@pytest.mark.usefixtures("secret")
async def test_the_same_request_under_another_delivery_id_is_a_replay() -> None:
    async with hf.open(None, agents=[writer()]) as runtime:
        await _hooked(runtime)
        body = b'{"ref": "main"}'
        await runtime.deliver_webhook("push", signed(body, "d-1"), body)
        assert (await runtime.deliver_webhook("push", signed(body, "d-2"), body)).status == "duplicate"


@pytest.mark.usefixtures("secret")
async def test_another_body_under_the_same_delivery_id_is_refused() -> None:
    async with hf.open(None, agents=[writer()]) as runtime:
        await _hooked(runtime)
        for body, status in ((b'{"ref": "a"}', "accepted"), (b'{"ref": "b"}', "refused")):
            assert (await runtime.deliver_webhook("push", signed(body, "d-1"), body)).status == status


@pytest.mark.usefixtures("secret")
async def test_a_request_that_is_not_signed_starts_nothing() -> None:
    async with hf.open(None, agents=[writer()]) as runtime:
        await _hooked(runtime)
        found = await runtime.deliver_webhook("push", {**signed(b"other", "d-1")}, b'{"ref": "main"}')
        assert (found.status, found.code) == ("refused", 401)
        assert (await runtime.triggers.get("push")).reserved == 0


@pytest.mark.usefixtures("secret")
async def test_a_webhook_of_a_disabled_trigger_is_refused_so_that_it_is_sent_again() -> None:
    async with hf.open(None, agents=[writer()]) as runtime:
        await _hooked(runtime)
        await runtime.triggers.disable("push")
        assert (await runtime.deliver_webhook("push", signed(b"{}", "d-1"), b"{}")).code == 503


async def test_a_secret_that_is_not_there_is_an_error_of_whoever_runs_it() -> None:
    async with hf.open(None, agents=[writer()]) as runtime:
        await _hooked(runtime)
        with pytest.raises(SecretMissing):
            await runtime.deliver_webhook("push", signed(b"{}", "d-1"), b"{}")


async def test_a_webhook_for_something_else_is_a_named_error() -> None:
    async with hf.open(None, agents=[writer()]) as runtime:
        await runtime.every("paid", hf.event("paid"), _agent_of(runtime), prompt="x")
        with pytest.raises(TriggerInvalid):
            await runtime.deliver_webhook("paid", {}, b"")


@pytest.mark.usefixtures("secret")
async def test_the_secret_of_a_webhook_is_nowhere_in_the_store(tmp_path: Path) -> None:
    async with hf.open(tmp_path / "s.db", agents=[writer()]) as runtime:
        await _hooked(runtime)
        await runtime.deliver_webhook("push", signed(b'{"ref": "main"}', "d-1"), b'{"ref": "main"}')
        await said(runtime, 1)
    kept = [path.read_bytes() for path in tmp_path.iterdir() if path.is_file()]  # noqa: ASYNC240  nothing else runs
    assert b"env:HOOK_SECRET" in b"".join(kept)
    assert SECRET.encode() not in b"".join(kept)


# ---- around ----------------------------------------------------------------------------------------------------------


async def test_observers_see_what_was_started_and_nothing_of_the_books() -> None:
    async with hf.open(None, agents=[writer()]) as runtime:
        await runtime.every("paid", hf.event("paid"), _agent_of(runtime), prompt="x")
        await runtime.emit_event("paid", 1, key="k")
        seen: list[Any] = []
        async for event in runtime.events(after=0):
            seen.append(event)
            if isinstance(event, hf.TurnCompleted):
                break
        assert {event.session for event in seen} == {"trigger/paid/1/event/k"}


async def test_no_session_is_called_like_a_trigger() -> None:
    async with hf.open(None, agents=[writer()]) as runtime:
        with pytest.raises(hf.UsageError):
            runtime.session("trigger/paid", agent=_agent_of(runtime))


def test_the_command_line_lists_fires_and_switches_triggers(shell: Shell) -> None:
    async def declare() -> None:
        async with hf.open(shell.folder / ".holdfast" / "holdfast.db", agents=[writer()]) as runtime:
            await runtime.every("digest", hf.cron("0 6 * * *"), _agent_of(runtime), prompt="{payload.n}")
            await _settled(runtime)

    async def drive() -> list[str]:
        async with hf.open(shell.folder / ".holdfast" / "holdfast.db", agents=[writer()]) as runtime:
            await runtime.every("digest", hf.cron("0 6 * * *"), _agent_of(runtime), prompt="{payload.n}")
            return await said(runtime, 1)

    asyncio.run(declare())
    assert "cron 0 6 * * * UTC" in shell("triggers").stdout
    fired = shell("triggers", "fire", "digest", "--payload", '{"n": "by hand"}', "--key", "k", "--json")
    assert json.loads(fired.stdout) == {"trigger": "digest", "occurrence": "fire/k"}
    assert "1 reserved will be started" in shell("triggers", "disable", "digest").stdout
    assert shell("triggers", "fire", "digest").returncode == 2
    assert json.loads(shell("triggers", "--json").stdout)[0]["enabled"] is False
    shell("triggers", "enable", "digest", "--by", "ops")
    assert asyncio.run(drive()) == ["by hand"]
    assert "fire/k" in shell("triggers", "digest").stdout


def test_the_command_line_names_what_is_wrong(shell: Shell) -> None:
    async def declare() -> None:
        async with hf.open(shell.folder / ".holdfast" / "holdfast.db", agents=[writer()]) as runtime:
            await runtime.every("digest", hf.event("paid"), _agent_of(runtime), prompt="x")

    asyncio.run(declare())
    assert "is not JSON" in shell("triggers", "fire", "digest", "--payload", "{").stderr
    assert "there is no trigger 'nobody'" in shell("triggers", "nobody").stderr


async def _settled(runtime: Runtime) -> None:
    """Wait until a trigger that was declared knows when it is due."""

    async def known() -> bool:
        return (await runtime.triggers.get("digest")).next is not None

    await until(known)
