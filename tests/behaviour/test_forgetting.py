"""Forgetting a session: everything that belongs to it goes in one transaction, and nothing else does."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from tests.behaviour.talk import SOON, at_rest, until

import holdfast as hf
from holdfast.errors import ForgetRefused, InvalidId, JournalForgotten, JournalMissing, MemoryConflict, SessionForked
from holdfast.messages import UserMessage
from holdfast.policy.limits import ROLE
from holdfast.runtime import retention
from holdfast.runtime.budgets import spend_of_record
from holdfast.store.audit import audit
from holdfast.testing import ManualClock, ScriptedModel, call, check, reply, text

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LONG = "zebrafish " * 5_000
DAY = 86_400_000


@hf.tool(read_only=True)
async def look(what: str) -> str:
    """Look something up."""
    return f"{what}: {LONG}"


def clerk(*script: Any, **options: Any) -> hf.Agent:
    said = script or (call("look", what="quagga"), text("It is an okapi."))
    options.setdefault("tools", [look])
    return hf.Agent("clerk", model=ScriptedModel([*said]), **options)


def bytes_in(folder: Path) -> bytes:
    """All bytes of the store and of the files beside it."""
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


async def rows_of(runtime: hf.Runtime, session: str) -> list[Any]:
    return [entry async for entry in runtime.store.read_all(session)]


async def test_nothing_of_a_forgotten_session_is_left_in_the_file_or_its_log(tmp_path: Path) -> None:
    child = hf.Agent("helper", model=ScriptedModel([text("A numbat.")]))
    script = (call("helper", prompt="Which wombat?"), call("look", what="quagga"), text("It is an okapi."))
    agent = clerk(*script, tools=[look, hf.agent_tool(child)])
    words = (b"wombat", b"numbat", b"quagga", b"okapi", b"zebrafish", b"axolotl", b"dugong", b"secret-one")
    async with hf.open(tmp_path / "store.db", agents=[agent], mirror=False) as runtime:
        session = runtime.session("secret-one", agent=agent, metadata={"who": "axolotl"})
        await (await session.send(["hello", hf.File(b"a dugong", "text/plain", name="dugong.txt")])).outcome()
        await runtime.memory("secret-one").put("note", "a dugong")
        await runtime.memory("secret-one").put(
            "note", {"kept": ["an axolotl"]}, summary="an axolotl", metadata={"of": "an axolotl"}
        )
        await runtime.notify("secret-one", "dugong", "axolotl", expires=None, key="secret-one")
        assert [word for word in words if word not in bytes_in(tmp_path)] == []
    async with hf.open(tmp_path / "store.db", agents=[agent], mirror=False) as runtime:
        forgotten = await runtime.forget("secret-one")
        assert forgotten.wiped
        assert [word for word in words if word in bytes_in(tmp_path)] == []
        assert await check(runtime.store) == []


async def test_forgetting_says_what_went(tmp_path: Path) -> None:
    agent = clerk()
    async with hf.open(tmp_path / "store.db", agents=[agent], mirror=False) as runtime:
        await (await runtime.session("s", agent=agent).send("hello")).outcome()
        await runtime.memory("s").put("note", "blue")
        records = len(await rows_of(runtime, "s"))
        forgotten = await runtime.forget("s")
        assert (forgotten.journals, forgotten.records) == (("s",), records)
        assert forgotten.attachments > 0
        assert (forgotten.memories, forgotten.dry_run) == (1, False)


async def test_a_dry_run_says_what_would_go_and_removes_nothing() -> None:
    agent = clerk()
    async with hf.open(None, agents=[agent]) as runtime:
        await (await runtime.session("s", agent=agent).send("hello")).outcome()
        await runtime.memory("s").put("note", "blue")
        before = await rows_of(runtime, "s")
        forgotten = await runtime.forget("s", dry_run=True)
        assert (forgotten.records, forgotten.memories, forgotten.dry_run) == (len(before), 1, True)
        assert await rows_of(runtime, "s") == before
        assert await runtime.memory("s").get("note") is not None


async def test_other_sessions_stay_as_they_are() -> None:
    agent = clerk(call("look", what="quagga"), text("one"), call("look", what="quagga"), text("two"))
    async with hf.open(None, agents=[agent]) as runtime:
        for name in ("gone", "stays"):
            await (await runtime.session(name, agent=agent).send("hello")).outcome()
            await runtime.memory(name).put("note", "blue")
        before, asked = await rows_of(runtime, "stays"), await runtime.requests("stays")
        await runtime.forget("gone")
        assert await rows_of(runtime, "stays") == before
        assert await runtime.requests("stays") == asked  # with the large result that both had
        assert await runtime.memory("stays").get("note") is not None
        assert [line.id for line in await runtime.sessions()] == ["stays"]
        assert await check(runtime.store) == []


async def test_an_attachment_stays_as_long_as_another_session_has_it() -> None:
    agent = clerk(*[text("seen")] * 3)
    async with hf.open(None, agents=[agent]) as runtime:
        for name in ("one", "two"):
            await (
                await runtime.session(name, agent=agent).send(["see", hf.File(b"a map", "text/plain", name="map")])
            ).outcome()
        digest = (await runtime.store.attachments("two"))[0].digest
        await runtime.forget("one")
        assert await runtime.store.blob(digest) == b"a map"
        await runtime.forget("two")
        assert await runtime.store.blob(digest) is None


async def test_a_session_with_forks_is_refused_and_names_them() -> None:
    agent = clerk(*[text("seen")] * 3)
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        await (await session.send("hello")).outcome()
        await (await session.fork(id="branch")).fork(id="twig")
        with pytest.raises(SessionForked) as refused:
            await runtime.forget("s")
        assert refused.value.forks == ("branch", "twig")
        assert len(await runtime.sessions()) == 3


async def test_forks_go_too_when_they_are_meant() -> None:
    agent = clerk(*[text("seen")] * 3)
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        await (await session.send("hello")).outcome()
        await (await session.fork(id="branch")).fork(id="twig")
        assert sorted((await runtime.forget("s", forks=True)).journals) == ["branch", "s", "twig"]
        assert await runtime.sessions() == []
        assert await check(runtime.store) == []


async def test_a_fork_is_forgotten_without_its_parent() -> None:
    agent = clerk(*[text("seen")] * 3)
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        await (await session.send("hello")).outcome()
        await session.fork(id="branch")
        await runtime.forget("branch")
        assert [line.id for line in await runtime.sessions()] == ["s"]


async def test_sub_agents_go_with_their_session_and_not_without_it() -> None:
    child = hf.Agent("helper", model=ScriptedModel([text("blue")]))
    agent = clerk(call("helper", prompt="Which colour?"), text("Blue."), tools=[hf.agent_tool(child)])
    async with hf.open(None, agents=[agent]) as runtime:
        await (await runtime.session("s", agent=agent).send("hello")).outcome()
        (below,) = await runtime.store.journals(role=ROLE, session="s")
        with pytest.raises(ForgetRefused, match="works for 's'"):
            await runtime.forget(below.id)
        assert set((await runtime.forget("s")).journals) == {"s", below.id}
        assert await runtime.store.journals() == []


async def test_processes_of_a_session_go_with_the_sessions_in_which_they_asked_agents() -> None:
    helper = hf.Agent("helper", model=ScriptedModel([text("blue")] * 2))

    @hf.process
    async def child(ctx: hf.ProcessContext) -> str:
        return await ctx.run_agent(helper, "Which colour?")

    @hf.process
    async def parent(ctx: hf.ProcessContext) -> str:
        await ctx.run_agent(helper, "Which colour?", session="named")  # a session of its own right
        return await (await ctx.start(child)).result()

    agent = clerk(text("hello"))
    async with hf.open(None, agents=[agent, helper], processes=[parent, child]) as runtime:
        await (await runtime.session("s", agent=agent).send("hello")).outcome()
        assert await (await runtime.start(parent, id="p", session="s")).result(timeout=SOON) == "blue"
        forgotten = await runtime.forget("s")
        assert len(forgotten.journals) == 4
        assert [line.id for line in await runtime.store.journals()] == ["named"]
        assert await check(runtime.store) == []


async def test_a_process_that_was_given_to_the_session_goes_too() -> None:
    @hf.process
    async def waits(ctx: hf.ProcessContext) -> Any:
        return await ctx.wait("editor")

    agent = clerk(text("hello"))
    async with hf.open(None, agents=[agent], processes=[waits]) as runtime:
        await (await runtime.session("s", agent=agent).send("hello")).outcome()
        process = await runtime.start(waits, id="p")
        await process.transfer("s")
        await until(lambda: _works_for(runtime, "p", "s"))
        assert set((await runtime.forget("s")).journals) == {"s", "process/p"}


async def _works_for(runtime: hf.Runtime, process: str, session: str) -> bool:
    return (await runtime.processes.line(process)).session == session


async def test_what_pruning_left_of_processes_goes_too() -> None:
    @hf.process
    async def adds(ctx: hf.ProcessContext) -> int:
        return await ctx.step("add", lambda: 1)

    agent, clock = clerk(text("hello")), ManualClock()
    async with hf.open(None, agents=[agent], processes=[adds], clock=clock) as runtime:
        await (await runtime.session("s", agent=agent).send("hello")).outcome()
        process = await runtime.start(adds, id="p", session="s")
        await process.result(timeout=SOON)
        clock.advance(DAY)
        await until(lambda: _pruned(runtime))
        assert len(await runtime.store.tombstones()) == 1
        await runtime.forget("s")
        assert await runtime.store.tombstones() == []
        assert await check(runtime.store) == []


async def _pruned(runtime: hf.Runtime) -> bool:
    return (await runtime.processes.prune(1)).pruned == 1


# ---- while something goes on -----------------------------------------------------------------------------------------


class Held:
    """A tool that is under way until it is let go."""

    def __init__(self) -> None:
        self.begun, self.go, self.cancelled = asyncio.Event(), asyncio.Event(), False

    def tool(self) -> Any:
        @hf.tool
        async def hold() -> str:
            """Hold on."""
            self.begun.set()
            try:
                await self.go.wait()
            except asyncio.CancelledError:
                self.cancelled = True
                raise
            return "held"

        return hold


async def test_a_session_that_is_being_driven_is_stopped_and_forgotten(tmp_path: Path) -> None:
    held = Held()
    agent = clerk(call("hold"), text("done"), tools=[held.tool()], policy=[hf.allow("*")])
    async with hf.open(tmp_path / "store.db", agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        turn = await session.send("hello")
        ending: asyncio.Task[Any] = asyncio.create_task(turn.outcome())
        seen: asyncio.Task[Any] = asyncio.create_task(_all_events(session))
        await asyncio.wait_for(held.begun.wait(), SOON)
        await runtime.forget("s")
        assert held.cancelled
        for waiting in (ending, seen):
            with pytest.raises(JournalMissing):
                await asyncio.wait_for(waiting, SOON)
        assert await runtime.sessions() == []
        # The id may be used again, at once and here: nothing of the old session gets into the new one.
        held.go.set()
        outcome = await (await session.send("hello again")).outcome()
        assert outcome.text == "done"
        assert [said.text for said in await session.history() if isinstance(said, UserMessage)] == ["hello again"]
        assert await check(runtime.store) == []


async def _all_events(session: hf.Session) -> None:
    async for _ in session.events():
        pass


async def test_a_session_that_another_runtime_drives_is_fenced_off(tmp_path: Path) -> None:
    held = Held()
    agent = clerk(call("hold"), text("done"), tools=[held.tool()], policy=[hf.allow("*")])
    async with hf.open(tmp_path / "store.db", agents=[agent], lease_ms=600) as driving:
        turn = await driving.session("s", agent=agent).send("hello")
        ending = asyncio.create_task(turn.outcome())
        await asyncio.wait_for(held.begun.wait(), SOON)
        async with hf.open(tmp_path / "store.db", drive=False) as other:
            await other.forget("s")
            with pytest.raises(JournalMissing):
                await asyncio.wait_for(ending, SOON)
            assert held.cancelled
            assert await other.store.journals() == []
            assert await check(other.store) == []


async def test_an_approval_that_is_waited_for_goes_with_its_session() -> None:
    agent = clerk(call("look", what="quagga"), text("done"), policy=[hf.ask("look")])
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await runtime.session("s", agent=agent).send("hello")
        await at_rest(runtime, "s")
        (approval,) = await runtime.approvals()
        ending = asyncio.create_task(turn.outcome())
        await asyncio.sleep(0)
        await runtime.forget("s")
        with pytest.raises(JournalMissing):
            await asyncio.wait_for(ending, SOON)
        assert await runtime.approvals() == []
        with pytest.raises(hf.errors.ApprovalUnknown):
            await runtime.approve(approval.id)


async def test_a_background_call_that_is_under_way_goes_with_its_session() -> None:
    held = Held()
    agent = clerk(call("hold"), text("later"), tools=[held.tool()], policy=[hf.allow("*")], inline_budget=0.01)
    async with hf.open(None, agents=[agent]) as runtime:
        await (await runtime.session("s", agent=agent).send("hello")).outcome()
        assert len((await runtime.forget("s")).journals) == 2
        await until(lambda: held.cancelled)
        assert await runtime.store.journals() == []
        assert await runtime.store.notifications() == []


async def test_a_process_that_waits_for_a_turn_learns_that_its_session_was_forgotten() -> None:
    held = Held()
    agent = clerk(call("hold"), text("done"), tools=[held.tool()], policy=[hf.allow("*")])

    @hf.process
    async def waits(ctx: hf.ProcessContext) -> str:
        try:
            await ctx.run_agent(agent, "Hold on.", session="s")
        except hf.errors.AgentTurnFailed as error:
            return str(error)
        return "answered"

    async with hf.open(None, agents=[agent], processes=[waits]) as runtime:
        process = await runtime.start(waits, id="p")
        await asyncio.wait_for(held.begun.wait(), SOON)
        await until(lambda: _waits(process))
        await runtime.forget("s")
        assert "forgotten" in await process.result(timeout=SOON)


async def _waits(process: Any) -> bool:
    return await process.status() == "waiting"


async def test_a_new_session_with_a_forgotten_id_has_no_usage_of_the_old_one() -> None:
    used = iter([hf.Usage(input=500, output=700), hf.Usage(input=5, output=7)])
    agent = hf.Agent("clerk", model=ScriptedModel(lambda _: reply(text("hello"), usage=next(used))))
    async with hf.open(None, agents=[agent]) as runtime:
        await (await runtime.session("s", agent=agent).send("hello")).outcome()
        assert (await runtime.children.whole(await runtime.store.journal("s"))).total.usage.total == 1_200
        await runtime.forget("s")
        await (await runtime.session("s", agent=agent).send("hello")).outcome()
        assert (await runtime.children.whole(await runtime.store.journal("s"))).total.usage.total == 12


# ---- what stays ------------------------------------------------------------------------------------------------------


async def test_what_a_forgotten_session_has_spent_stays_counted() -> None:
    agent = clerk(call("look", what="a"), text("one"), call("look", what="b"), text("two"))
    async with hf.open(None, agents=[agent]) as runtime:
        for name in ("one", "two"):
            await (await runtime.session(name, agent=agent).send("hello")).outcome()
        spent = await runtime.store.spent("clerk")
        await runtime.forget("one")
        assert await runtime.store.spent("clerk") == spent
        assert await runtime.store.examine(lambda reader: audit(reader, None, spend_of_record)) == []
        await runtime.store.rebuild_spending(spend_of_record)
        assert await runtime.store.spent("clerk") == spent


async def test_an_id_is_free_again_unless_its_hash_is_kept(tmp_path: Path) -> None:
    agent = clerk(*[text("seen")] * 4)
    async with hf.open(tmp_path / "store.db", agents=[agent]) as runtime:
        for name in ("free-again", "never-again"):
            await (await runtime.session(name, agent=agent).send("hello")).outcome()
            await runtime.forget(name, keep_hash=name == "never-again")
        await (await runtime.session("free-again", agent=agent).send("hello")).outcome()
        with pytest.raises(JournalForgotten):
            await runtime.session("never-again", agent=agent).send("hello")
        with pytest.raises(JournalForgotten):
            await runtime.session("free-again").fork(id="never-again")
        with pytest.raises(JournalForgotten):
            await runtime.session("never-again").history()
    assert b"never-again" not in bytes_in(tmp_path)
    async with hf.open(tmp_path / "store.db", agents=[agent]) as runtime:
        with pytest.raises(JournalForgotten):
            await runtime.session("never-again", agent=agent).send("hello")


async def test_memory_of_other_scopes_stays_and_scopes_can_be_named() -> None:
    agent = clerk(*[text("seen")] * 2)
    async with hf.open(None, agents=[agent]) as runtime:
        for name in ("s", "customer", "team"):
            await runtime.memory(name).put("note", "blue")
        await (await runtime.session("s", agent=agent).send("hello")).outcome()
        assert (await runtime.forget("s", memory=["customer"])).memories == 1
        assert [scope.scope for scope in await runtime.store.memory_scopes()] == ["s", "team"]
        assert [found.scope for found in (await runtime.store.memory_search(None, "blue")).entries] == ["s", "team"]


async def test_the_mirrored_files_of_a_scope_go_and_do_not_come_back(tmp_path: Path) -> None:
    agent = clerk(*[text("seen")] * 2)
    folder = tmp_path / "store.db.memory"
    async with hf.open(tmp_path / "store.db", agents=[agent]) as runtime:
        await (await runtime.session("s", agent=agent).send("hello")).outcome()
        for name in ("s", "team"):
            await runtime.memory(name).put("note", "blue")
        await until(lambda: (folder / "s" / "note.md").exists() and (folder / "team" / "note.md").exists())
        await runtime.forget("s")
        assert not (folder / "s").exists()
        await runtime.memory("team").put("other", "red")
        await until((folder / "team" / "other.md").exists)
    async with hf.open(tmp_path / "store.db", agents=[agent]) as runtime:
        assert [scope.scope for scope in await runtime.store.memory_scopes()] == ["team"]
        with pytest.raises(MemoryConflict):  # it is not there, in no version
            await runtime.memory("s").put("note", "green", expected=2)
    assert not (folder / "s").exists()


async def test_what_is_not_there_or_no_session_is_refused() -> None:
    @hf.process
    async def adds(ctx: hf.ProcessContext) -> int:
        return await ctx.step("add", lambda: 1)

    async with hf.open(None, processes=[adds]) as runtime:
        await (await runtime.start(adds, id="p")).result(timeout=SOON)
        with pytest.raises(JournalMissing):
            await runtime.forget("nobody")
        with pytest.raises(ForgetRefused, match="no session"):
            await runtime.forget("process/p")
        with pytest.raises(InvalidId):
            await runtime.forget("")


async def test_bytes_that_a_foreign_reader_keeps_in_the_log_go_when_it_is_done(
    tmp_path: Path, begin_reading: Callable[[Path], Any]
) -> None:
    agent = clerk(*[text("seen")] * 3)
    async with hf.open(tmp_path / "store.db", agents=[agent], limits=hf.StoreLimits(busy_ms=100)) as runtime:
        await (await runtime.session("s", agent=agent).send("wombat")).outcome()
        reader = begin_reading(tmp_path / "store.db")
        assert not (await runtime.forget("s")).wiped
        reader.execute("ROLLBACK")
        reader.close()
        await (await runtime.session("t", agent=agent).send("hello")).outcome()
        assert b"wombat" not in bytes_in(tmp_path)


@pytest.fixture
def begin_reading() -> Callable[[Path], Any]:
    """Opens a read transaction of another program."""
    import apsw

    def begin(path: Path) -> Any:
        reader: Any = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        reader.execute("BEGIN; SELECT count(*) FROM journals")
        return reader

    return begin


# ---- pruning ---------------------------------------------------------------------------------------------------------


async def test_sessions_that_ended_long_ago_are_pruned_and_others_kept() -> None:
    agent, clock = clerk(*[text("seen")] * 5), ManualClock()
    asks = hf.Agent("asks", model=ScriptedModel([call("look", what="x")]), tools=[look], policy=[hf.ask("look")])
    async with hf.open(None, agents=[agent, asks], clock=clock) as runtime:
        for name in ("old", "forked", "branch-of"):
            await (await runtime.session(name, agent=agent).send("hello")).outcome()
        await runtime.session("forked").fork(id="branch")
        await runtime.memory("old").put("note", "blue")
        clock.advance(40 * DAY)
        for name in ("young", "other"):
            await (await runtime.session(name, agent=agent).send("hello")).outcome()
        await runtime.session("waits", agent=asks).send("hello")
        await at_rest(runtime, "waits")
        report = await runtime.prune_sessions(timedelta(days=30), dry_run=True)
        assert (report.pruned, report.kept, len(await runtime.sessions())) == (3, 1, 7)
        report = await runtime.prune_sessions(timedelta(days=30))
        assert set(report.sessions) >= {"old", "branch-of", "branch"}
        while report.kept:
            report = await runtime.prune_sessions(timedelta(days=30))
        assert {line.id for line in await runtime.sessions()} == {"young", "other", "waits"}
        assert await runtime.memory("old").get("note") is not None
        clock.advance(400 * DAY)
        await runtime.prune_sessions(timedelta(days=30))
        assert {line.id for line in await runtime.sessions()} == {"waits"}


async def test_a_session_with_background_work_is_not_pruned() -> None:
    held, clock = Held(), ManualClock()
    agent = clerk(call("hold"), text("later"), tools=[held.tool()], policy=[hf.allow("*")], inline_budget=0.01)
    async with hf.open(None, agents=[agent], clock=clock) as runtime:
        await (await runtime.session("s", agent=agent).send("hello")).outcome()
        clock.advance(40 * DAY)
        report = await runtime.prune_sessions(timedelta(days=30))
        assert (report.pruned, report.kept) == (0, 1)
        assert "running" in report.reasons[0].reason
        held.go.set()


async def test_session_retention_prunes_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "PRUNE_INTERVAL", 0.01)
    agent, clock = clerk(*[text("seen")] * 2), ManualClock()
    async with hf.open(None, agents=[agent], clock=clock, session_retention=timedelta(days=30)) as runtime:
        await (await runtime.session("s", agent=agent).send("hello")).outcome()
        clock.advance(31 * DAY)

        async def gone() -> bool:
            return not await runtime.sessions()

        await until(gone)
