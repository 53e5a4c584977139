"""One session's trouble is its own: unknown agents, changed code, damaged records."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import apsw
import pytest
from tests.behaviour.talk import at_rest
from tests.patience import PATIENCE, processor_at_rest

import holdfast as hf
from holdfast.errors import JournalCorrupt, JournalMissing, JournalQuarantined
from holdfast.testing import ManualClock, ScriptedModel, call, text

if TYPE_CHECKING:
    from pathlib import Path


def _plain(name: str = "plain") -> hf.Agent:
    return hf.Agent(name, model=ScriptedModel(lambda _: text("done")))


# ---- agents that are not known here ----------------------------------------------------------------------------------


async def test_a_session_whose_agent_is_not_known_here_is_left_alone(tmp_path: Path) -> None:
    async with hf.open(tmp_path / "store.db", agents=[_plain("elsewhere")], drive=False) as accepting:
        await accepting.session("theirs", agent="elsewhere").send("go")
    async with hf.open(tmp_path / "store.db", agents=[_plain()]) as runtime:
        before = (await runtime.store.journal("theirs")).head
        assert (await (await runtime.session("ours", agent="plain").send("go")).outcome(timeout=PATIENCE)).ok
        assert (await runtime.store.journal("theirs")).head == before
        assert await runtime.session("theirs").turn("t1").status() == "no_agent"


async def test_a_session_whose_agent_is_not_known_here_is_driven_where_it_is(tmp_path: Path) -> None:
    async with hf.open(tmp_path / "store.db", agents=[_plain("elsewhere")], drive=False) as accepting:
        await accepting.session("theirs", agent="elsewhere").send("go")
    async with hf.open(tmp_path / "store.db", agents=[_plain()]) as runtime:
        assert (await (await runtime.session("ours", agent="plain").send("go")).outcome(timeout=PATIENCE)).ok
    async with hf.open(tmp_path / "store.db", agents=[_plain("elsewhere")]) as runtime:
        assert (await runtime.session("theirs").turn("t1").outcome(timeout=PATIENCE)).ok


async def test_an_input_for_an_agent_that_another_process_knows_is_not_lost(tmp_path: Path) -> None:
    """It is accepted where the agent is not known; the session exists."""
    async with hf.open(tmp_path / "store.db", agents=[_plain("elsewhere")]) as runtime:
        await (await runtime.session("theirs", agent="elsewhere").send("go")).outcome(timeout=PATIENCE)
    async with hf.open(tmp_path / "store.db", agents=[_plain()]) as runtime:
        await runtime.session("theirs").send("again")
        assert (await (await runtime.session("ours", agent="plain").send("go")).outcome(timeout=PATIENCE)).ok
    async with hf.open(tmp_path / "store.db", agents=[_plain("elsewhere")]) as runtime:
        assert (await runtime.session("theirs").turn("t2").outcome(timeout=PATIENCE)).ok


async def test_sessions_of_unknown_agents_do_not_keep_the_engine_busy(tmp_path: Path) -> None:
    async with hf.open(tmp_path / "store.db", agents=[_plain("elsewhere")], drive=False) as accepting:
        for number in range(10):
            await accepting.session(f"s{number}", agent="elsewhere").send("go")
    async with hf.open(tmp_path / "store.db", agents=[_plain()], concurrency=1) as runtime:
        for number in range(3):
            assert (await (await runtime.session(f"o{number}", agent="plain").send("go")).outcome(timeout=PATIENCE)).ok
        assert await processor_at_rest() < 0.2


async def test_an_agent_that_is_registered_later_is_driven_then(tmp_path: Path) -> None:
    late = _plain("late")
    async with hf.open(tmp_path / "store.db", agents=[late], drive=False) as accepting:
        await accepting.session("s", agent="late").send("go")
    async with hf.open(tmp_path / "store.db", agents=[_plain()]) as runtime:
        await processor_at_rest()  # the engine has looked, and looks no more until something happens
        runtime.register(late)
        assert (await runtime.session("s").turn("t1").outcome(timeout=PATIENCE)).ok


async def test_a_session_handle_of_an_unknown_agent_is_refused_by_name(tmp_path: Path) -> None:
    async with hf.open(tmp_path / "store.db", agents=[_plain()]) as runtime:
        with pytest.raises(hf.errors.AgentUnknown):
            runtime.session("s", agent="nobody")


# ---- code that no longer fits ----------------------------------------------------------------------------------------


@hf.tool(read_only=True)
async def look_up() -> str:
    """Look something up."""
    return "found"


@hf.tool
async def ask_editor(ctx: hf.Context) -> str:
    """Ask somebody."""
    return str(await ctx.wait("editor", timeout=86_400))


def _asking(steps: int = 50) -> hf.Agent:
    """Two steps with tools, and an answer. With fewer steps allowed, this code ends where the journal goes on."""
    script = ScriptedModel([call(look_up), call(ask_editor), text("done")])
    return hf.Agent(
        "asking", model=script, tools=[look_up, ask_editor], policy=[hf.allow("*")], limits=hf.Limits(steps=steps)
    )


async def _answered(database: Path) -> None:
    """A session in the middle of a turn that can go on: what it waited for is there."""
    agent = _asking()
    async with hf.open(database, agents=[agent]) as runtime:
        await runtime.session("s", agent=agent).send("go")
        await at_rest(runtime, "s")
        (wait,) = await runtime.waits("s")
        token = runtime.wait_token("s", wait.name)
    async with hf.open(database, drive=False) as looking:
        await looking.resolve(token, "yes")


async def test_whoever_waits_for_a_turn_whose_code_does_not_fit_is_told_why(tmp_path: Path) -> None:
    await _answered(tmp_path / "store.db")
    async with hf.open(tmp_path / "store.db", agents=[_asking(steps=1)]) as runtime:
        with pytest.raises(hf.ReplayMismatch):
            await runtime.session("s").turn("t1").outcome(timeout=PATIENCE)


async def test_whoever_waited_already_is_told_why_too() -> None:
    """In memory, where nothing takes time."""
    async with hf.open_store(None) as store:
        async with hf.Runtime(store, [_asking()]) as runtime:
            await runtime.session("s", agent="asking").send("go")
            await at_rest(runtime, "s")
        async with hf.Runtime(store, [_asking(steps=1)]) as runtime:
            (wait,) = await runtime.waits("s")
            waiting = asyncio.create_task(runtime.session("s").turn("t1").outcome(timeout=PATIENCE))
            await at_rest(runtime, "s")
            await runtime.resolve(runtime.wait_token("s", wait.name), "yes")
            with pytest.raises(hf.ReplayMismatch):
                await waiting


async def test_other_sessions_go_on_beside_one_whose_code_does_not_fit(tmp_path: Path) -> None:
    await _answered(tmp_path / "store.db")
    async with hf.open(tmp_path / "store.db", agents=[_asking(steps=1), _plain()]) as runtime:
        with pytest.raises(hf.ReplayMismatch):
            await runtime.session("s").turn("t1").outcome(timeout=PATIENCE)
        assert (await (await runtime.session("other", agent="plain").send("go")).outcome(timeout=PATIENCE)).ok


async def test_a_session_whose_code_does_not_fit_is_not_tried_again_and_again(tmp_path: Path) -> None:
    await _answered(tmp_path / "store.db")
    async with hf.open(tmp_path / "store.db", agents=[_asking(steps=1), _plain()]) as runtime:
        with pytest.raises(hf.ReplayMismatch):
            await runtime.session("s").turn("t1").outcome(timeout=PATIENCE)
        head = (await runtime.store.journal("s")).head
        for number in range(3):
            assert (await (await runtime.session(f"o{number}", agent="plain").send("go")).outcome(timeout=PATIENCE)).ok
        assert (await runtime.store.journal("s")).head == head


async def test_an_input_for_a_session_whose_code_does_not_fit_is_kept(tmp_path: Path) -> None:
    await _answered(tmp_path / "store.db")
    async with hf.open(tmp_path / "store.db", agents=[_asking(steps=1)]) as runtime:
        with pytest.raises(hf.ReplayMismatch):
            await runtime.session("s").turn("t1").outcome(timeout=PATIENCE)
        second = await runtime.session("s").send("and then?")
        with pytest.raises(hf.ReplayMismatch):
            await second.outcome(timeout=PATIENCE)
        assert await second.status() == "queued"


async def test_a_session_that_was_stuck_goes_on_with_the_code_that_fits(tmp_path: Path) -> None:
    await _answered(tmp_path / "store.db")
    async with hf.open(tmp_path / "store.db", agents=[_asking(steps=1)]) as runtime:
        with pytest.raises(hf.ReplayMismatch):
            await runtime.session("s").turn("t1").outcome(timeout=PATIENCE)
    async with hf.open(tmp_path / "store.db", agents=[_asking()]) as runtime:
        assert (await runtime.session("s").turn("t1").outcome(timeout=PATIENCE)).text == "done"


async def test_a_stuck_session_can_be_cancelled(tmp_path: Path) -> None:
    await _answered(tmp_path / "store.db")
    async with hf.open(tmp_path / "store.db", agents=[_asking(steps=1)]) as runtime:
        turn = runtime.session("s").turn("t1")
        with pytest.raises(hf.ReplayMismatch):
            await turn.outcome(timeout=PATIENCE)
        await turn.cancel("give up")
        assert (await turn.outcome(timeout=PATIENCE)).status == "cancelled"


# ---- damage ----------------------------------------------------------------------------------------------------------


def _damage(database: Path, session: str) -> None:
    """Flip a bit in the last record of a session, behind the store's back."""
    db: Any = apsw.Connection(str(database))
    pos, body = db.execute(
        "SELECT pos, body FROM records WHERE journal = (SELECT no FROM journals WHERE id = ?) ORDER BY seq DESC",
        (session,),
    ).fetchone()
    flipped = bytearray(body)
    flipped[len(flipped) // 2] ^= 1
    db.execute("UPDATE records SET body = ? WHERE pos = ?", (bytes(flipped), pos))
    db.close()


async def _damaged(database: Path) -> None:
    """A session whose turn could go on, if one of its records were not damaged."""
    await _answered(database)
    _damage(database, "s")


async def test_a_damaged_session_stops_with_a_named_error(tmp_path: Path) -> None:
    await _damaged(tmp_path / "store.db")
    async with hf.open(tmp_path / "store.db", agents=[_asking()]) as runtime:
        with pytest.raises((JournalCorrupt, JournalQuarantined)):
            await runtime.session("s").turn("t1").outcome(timeout=PATIENCE)


async def test_other_sessions_go_on_beside_a_damaged_one(tmp_path: Path) -> None:
    await _damaged(tmp_path / "store.db")
    async with hf.open(tmp_path / "store.db", agents=[_asking(), _plain()]) as runtime:
        with pytest.raises((JournalCorrupt, JournalQuarantined)):
            await runtime.session("s").turn("t1").outcome(timeout=PATIENCE)
        assert (await (await runtime.session("other", agent="plain").send("go")).outcome(timeout=PATIENCE)).ok


async def _idle_and_damaged(database: Path) -> hf.Agent:
    """A session without an open turn: the damage is found only when the next one is driven."""
    agent = _plain()
    async with hf.open(database, agents=[agent]) as runtime:
        await (await runtime.session("s", agent=agent).send("first")).outcome(timeout=PATIENCE)
    _damage(database, "s")
    return agent


async def test_whoever_waits_for_a_turn_that_turns_out_to_be_damaged_is_told(tmp_path: Path) -> None:
    agent = await _idle_and_damaged(tmp_path / "store.db")
    async with hf.open(tmp_path / "store.db", agents=[agent]) as runtime:
        with pytest.raises((JournalCorrupt, JournalQuarantined)):
            await (await runtime.session("s").send("second")).outcome(timeout=PATIENCE)


async def test_a_damaged_session_does_not_keep_the_engine_busy(tmp_path: Path) -> None:
    agent = await _idle_and_damaged(tmp_path / "store.db")
    async with hf.open(tmp_path / "store.db", agents=[agent]) as runtime:
        with suppress(JournalQuarantined):  # the engine may have found the damage before
            await runtime.session("s").send("second")
        await _quarantined(runtime, "s")
        assert await processor_at_rest() < 0.2


async def test_a_damaged_session_whose_wait_is_due_does_not_keep_the_engine_busy(tmp_path: Path) -> None:
    database, clock = tmp_path / "store.db", ManualClock()
    async with hf.open(database, agents=[_asking()], clock=clock) as runtime:
        await runtime.session("s", agent="asking").send("go")
        await at_rest(runtime, "s")
        await runtime.store.quarantine("s", "somebody found it damaged")
    clock.advance(2 * 86_400_000)
    async with hf.open(database, agents=[_asking()], clock=clock):
        assert await processor_at_rest() < 0.2


async def test_other_sessions_wait_and_go_on_beside_a_damaged_one_whose_wait_is_due(tmp_path: Path) -> None:
    database, clock = tmp_path / "store.db", ManualClock()
    async with hf.open(database, agents=[_asking()], clock=clock) as runtime:
        for session in ("s", "other"):
            await runtime.session(session, agent="asking").send("go")
            await at_rest(runtime, session)
        await runtime.store.quarantine("s", "somebody found it damaged")
    clock.advance(2 * 86_400_000)
    async with hf.open(database, agents=[_asking()], clock=clock) as runtime:
        assert (await runtime.session("other").turn("t1").outcome(timeout=PATIENCE)).text == "done"


async def _quarantined(runtime: hf.Runtime, session: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while (await runtime.store.journal(session)).quarantine is None:
        assert time.monotonic() < deadline, "the damage was not found"
        await asyncio.sleep(0.005)


# ---- handles ---------------------------------------------------------------------------------------------------------


async def test_a_session_handle_reads_and_writes_nothing(tmp_path: Path) -> None:
    async with hf.open(tmp_path / "store.db", agents=[_plain()]) as runtime:
        before = runtime.store.version
        sessions = [runtime.session(f"s{number}", agent="plain") for number in range(1_000)]
        assert runtime.store.version == before
        assert await runtime.sessions() == []
        with pytest.raises(JournalMissing):
            await sessions[0].status()


async def test_a_session_handle_can_be_made_while_the_store_is_closed(tmp_path: Path) -> None:
    async with hf.open(tmp_path / "store.db", agents=[_plain()]) as runtime:
        pass
    assert runtime.session("s", agent="plain").id == "s"
