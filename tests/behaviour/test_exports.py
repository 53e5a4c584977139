"""Sessions in files: a copy of one at rest, and a move of one in the middle of its work."""

from __future__ import annotations

import asyncio
import json
import stat
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from tests.behaviour.talk import SOON, at_rest, until

import holdfast as hf
from holdfast.effects.performer import idempotency_key
from holdfast.errors import (
    AgentTurnFailed,
    ApprovalUnknown,
    ExportRefused,
    ImportRefused,
    JournalMoved,
    JournalPruned,
    ProcessFailed,
    ProcessPruned,
    SessionFileUntrusted,
)
from holdfast.runtime.budgets import spend_of_record
from holdfast.store.audit import audit
from holdfast.testing import ManualClock, ScriptedModel, call, text

if TYPE_CHECKING:
    from pathlib import Path

LONG = "zebrafish " * 5_000


class World:
    """What was paid, under which idempotency keys; a payment is under way until it is let go."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.begun, self.go, self.cancelled = asyncio.Event(), asyncio.Event(), 0

    def tool(self, **options: Any) -> Any:
        @hf.tool(**options)
        async def pay(ctx: hf.Context, cents: int) -> str:
            """Pay."""
            self.keys.append(ctx.idempotency_key)
            self.begun.set()
            try:
                await self.go.wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
            return f"paid {cents}"

        return pay

    def agent(self, *policy: Any, **options: Any) -> hf.Agent:
        script = ScriptedModel([call("pay", cents=5), text("done")])
        return hf.Agent("clerk", model=script, tools=[self.tool(**options)], policy=[*policy, hf.allow("*")])


@pytest.fixture
def world() -> World:
    return World()


async def problems(runtime: hf.Runtime) -> list[str]:
    """What `holdfast doctor` would say."""
    found = await runtime.store.examine(lambda reader: audit(reader, spend_of=spend_of_record))
    return [str(violation) for violation in found]


def lines_of(file: Path) -> list[dict[str, Any]]:
    """The lines, without what differs from export to export."""
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    return [{name: said for name, said in line.items() if name not in {"crc", "born"}} for line in lines[1:-1]]


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def mode_of(file: Path) -> int:
    return stat.S_IMODE(file.stat().st_mode)


# ---- copies ----------------------------------------------------------------------------------------------------------


@hf.tool(read_only=True)
async def look(what: str) -> str:
    """Look something up."""
    return f"{what}: {LONG}"


async def play_everything(runtime: hf.Runtime) -> None:
    """A session with a bit of everything that can belong to one, at rest."""
    session = runtime.session("s", agent="clerk", metadata={"who": "axolotl"})
    await (await session.send(["hello", hf.File(b"\x00dugong" * 200_000, "image/png", name="d.png")])).outcome()
    await (await session.fork(id="branch")).fork(id="twig")
    await runtime.memory("s").put("note", "a dugong")
    await runtime.memory("s").put("note", "an axolotl")
    await (await runtime.start(adds, id="p", session="s")).result(timeout=SOON)
    await until(lambda: _has_said(session, "Noted."))
    await until(lambda: not runtime.active)
    later = datetime.now(UTC) + timedelta(days=1)
    notice = await runtime.notify("s", "told", "something", key="n", payload={"x": [1]}, at=later)
    await runtime.store.settle_notification(notice.id, "cancelled")


async def _has_said(session: hf.Session, words: str) -> bool:
    last = (await session.history())[-1]
    return isinstance(last, hf.AssistantMessage) and last.text == words


@hf.process
async def adds(ctx: hf.ProcessContext) -> int:
    return await ctx.step("add", lambda: 1)


def clerk() -> hf.Agent:
    helper = hf.Agent("helper", model=ScriptedModel([text("A numbat.")]))
    script = [call("helper", prompt="Which?"), call("look", what="quagga"), text("It is an okapi.")]
    script += [text("Noted."), text("More.")]
    return hf.Agent("clerk", model=ScriptedModel(script), tools=[look, hf.agent_tool(helper)])


async def test_a_copy_is_the_same_in_the_other_store_to_the_byte(tmp_path: Path) -> None:
    one, two = tmp_path / "one.jsonl", tmp_path / "two.jsonl"
    async with hf.open(tmp_path / "one.db", agents=[clerk()], processes=[adds], mirror=False) as runtime:
        await play_everything(runtime)
        made = await runtime.export_session("s", one)
        assert (made.move, len(made.journals), made.bytes) == (False, 5, one.stat().st_size)
    async with hf.open(tmp_path / "two.db", agents=[clerk()], processes=[adds], mirror=False) as runtime:
        found = await runtime.import_session(one, key=tmp_path / "one.db.key")
        assert (found.fresh, found.journals, found.records) == (True, made.journals, made.records)
        assert await problems(runtime) == []
        await runtime.export_session("s", two)
        assert lines_of(one) == lines_of(two)
        assert {line["t"] for line in lines_of(one)} >= {"blob", "journal", "input", "record", "attachment", "memory"}
        assert (await (await runtime.session("s").send("more")).outcome()).text == "More."
        assert [entry.key for entry in (await runtime.store.memory_search("s", "axolotl")).entries] == ["note"]


async def test_a_file_is_for_the_owner_alone_and_never_written_over_another_one(tmp_path: Path) -> None:
    file = tmp_path / "s.jsonl"
    async with hf.open(None, agents=[clerk()], processes=[adds]) as runtime:
        await play_everything(runtime)
        file.write_text("mine")
        with pytest.raises(ExportRefused, match="exists already"):
            await runtime.export_session("s", file)
        assert file.read_text() == "mine"
        await runtime.export_session("s", file, force=True)
        assert mode_of(file) == 0o600
        assert names_in(tmp_path) == ["s.jsonl"]


async def test_a_copy_goes_on_under_keys_of_its_own(tmp_path: Path, world: World) -> None:
    file = tmp_path / "s.jsonl"
    agent = hf.Agent("clerk", model=ScriptedModel([text("hello"), call("pay", cents=5), text("done")]))
    agent = agent.replace(tools=[world.tool()], policy=[hf.allow("*")])
    world.go.set()
    stores: list[str] = []
    async with hf.open(tmp_path / "one.db", agents=[agent], mirror=False) as runtime:
        await (await runtime.session("s", agent=agent).send("hello")).outcome()
        await runtime.export_session("s", file)
        await (await runtime.session("s").send("pay")).outcome()
        stores.append(runtime.store.id)
    async with hf.open(tmp_path / "two.db", agents=[agent], mirror=False) as runtime:
        await runtime.import_session(file, trust=True)
        await (await runtime.session("s").send("pay")).outcome()
        stores.append(runtime.store.id)
    assert world.keys == [idempotency_key(store, "s", "t2/2.tools/1.pay") for store in stores]


async def test_a_session_that_has_something_to_do_is_not_copied(tmp_path: Path, world: World) -> None:
    async with hf.open(None, agents=[world.agent(hf.ask("pay"))]) as runtime:
        await runtime.session("s", agent="clerk").send("hello")
        await at_rest(runtime, "s")
        with pytest.raises(ExportRefused, match=r"'s' is waiting.*--move"):
            await runtime.export_session("s", tmp_path / "s.jsonl")
        assert names_in(tmp_path) == []


async def test_a_session_that_works_for_another_one_is_not_exported_alone(tmp_path: Path) -> None:
    async with hf.open(None, agents=[clerk()], processes=[adds]) as runtime:
        await play_everything(runtime)
        for id in [line.id for line in await runtime.store.journals() if line.id != "s"]:
            with pytest.raises(ExportRefused):
                await runtime.export_session(id, tmp_path / "s.jsonl", move=True)
        assert all(line.quarantine is None for line in await runtime.store.journals())


async def test_a_session_stays_when_its_file_can_not_be_written(tmp_path: Path, world: World) -> None:
    async with hf.open(tmp_path / "one.db", agents=[world.agent(hf.ask("pay"))], mirror=False) as runtime:
        await runtime.session("s", agent="clerk").send("hello")
        await at_rest(runtime, "s")
        for place in (tmp_path, tmp_path / "none" / "s.jsonl", tmp_path / "one.db", tmp_path / "one.db.key"):
            with pytest.raises(ExportRefused):
                await runtime.export_session("s", place, move=True, force=True)
        assert [line.moved for line in await runtime.sessions()] == [False]


# ---- moves -----------------------------------------------------------------------------------------------------------


async def test_a_session_that_waits_for_an_approval_goes_on_elsewhere_with_the_same_key(
    tmp_path: Path, world: World
) -> None:
    file = tmp_path / "s.jsonl"
    world.go.set()
    async with hf.open(tmp_path / "one.db", agents=[world.agent(hf.ask("pay"))], mirror=False) as runtime:
        await runtime.session("s", agent="clerk").send("hello", key="k")
        await at_rest(runtime, "s")
        (approval,) = await runtime.approvals()
        store = runtime.store.id
        assert (await runtime.export_session("s", file, move=True)).move
        with pytest.raises(ApprovalUnknown):
            await runtime.approve(approval.id)
        assert await problems(runtime) == []
    async with hf.open(tmp_path / "two.db", agents=[world.agent(hf.ask("pay"))], mirror=False) as runtime:
        await runtime.import_session(file, key=tmp_path / "one.db.key")
        (approval,) = await runtime.approvals()
        await runtime.approve(approval.id)
        turn = await runtime.session("s").send("hello", key="k")
        assert (await turn.outcome()).text == "done"
        assert await problems(runtime) == []
    assert world.keys == [idempotency_key(store, "s", "t1/2.tools/1.pay")]


async def test_a_turn_that_is_moved_while_a_tool_runs_stops_here_and_repeats_the_call_there(
    tmp_path: Path, world: World
) -> None:
    file = tmp_path / "s.jsonl"
    async with hf.open(tmp_path / "one.db", agents=[world.agent(idempotent=True)], mirror=False) as runtime:
        session = runtime.session("s", agent="clerk")
        turn = await session.send("hello", key="k")
        ending: asyncio.Task[Any] = asyncio.create_task(turn.outcome())
        seen: asyncio.Task[Any] = asyncio.create_task(_all_events(session))
        await asyncio.wait_for(world.begun.wait(), SOON)
        await runtime.export_session("s", file, move=True)
        assert world.cancelled == 1
        for waiting in (ending, seen):
            with pytest.raises(JournalMoved):
                await asyncio.wait_for(waiting, SOON)
        with pytest.raises(JournalMoved):
            await asyncio.wait_for(turn.outcome(), SOON)
        with pytest.raises(JournalMoved):
            await session.send("more")
        assert len(await session.history()) == 2  # it can still be read
    world.go.set()
    async with hf.open(tmp_path / "two.db", agents=[world.agent(idempotent=True)], mirror=False) as runtime:
        await runtime.import_session(file, trust=True)
        turn = await runtime.session("s").send("hello", key="k")
        assert (await turn.outcome()).text == "done"
        assert await problems(runtime) == []
    assert len(world.keys) == 2
    assert len(set(world.keys)) == 1


async def _all_events(session: hf.Session) -> None:
    async for _ in session.events():
        pass


async def test_a_background_call_goes_on_elsewhere_with_the_same_key(tmp_path: Path, world: World) -> None:
    file = tmp_path / "s.jsonl"
    options: dict[str, Any] = {"idempotent": True, "background": True, "inline_budget": None}
    async with hf.open(tmp_path / "one.db", agents=[world.agent(**options)], mirror=False) as runtime:
        await (await runtime.session("s", agent="clerk").send("hello")).outcome()
        await asyncio.wait_for(world.begun.wait(), SOON)
        assert len((await runtime.export_session("s", file, move=True)).journals) == 2
        assert world.cancelled == 1
        with pytest.raises(JournalMoved):
            await runtime.call("pay", {"cents": 1}, session="s", key="c")
    world.go.set()
    async with hf.open(tmp_path / "two.db", agents=[world.agent(**options)], mirror=False) as runtime:
        await runtime.import_session(file, trust=True)
        await until(lambda: _succeeded(runtime))
        assert await problems(runtime) == []
    assert len(world.keys) == 2
    assert len(set(world.keys)) == 1


async def _succeeded(runtime: hf.Runtime) -> bool:
    return [line.status for line in await runtime.store.journals(role="task")] == ["completed"]


def _sleeper(world: World, broken: list[bool]) -> Any:
    @hf.process
    async def sleeper(ctx: hf.ProcessContext) -> str:
        async def act() -> str:
            world.keys.append(ctx.idempotency_key)
            if broken:
                raise OSError("out of order")
            return "acted"

        await ctx.sleep(timedelta(hours=1))
        return await ctx.step("act", act, repeat=hf.Repeat.NEVER)

    return sleeper


async def test_a_sleeping_process_wakes_elsewhere_and_its_retry_keeps_the_keys_too(
    tmp_path: Path, world: World
) -> None:
    file, clock, broken = tmp_path / "s.jsonl", ManualClock(), [True]
    sleeper = _sleeper(world, broken)
    options: dict[str, Any] = {"agents": [clerk()], "processes": [sleeper, adds], "clock": clock, "mirror": False}
    async with hf.open(tmp_path / "one.db", **options) as runtime:
        await play_everything(runtime)
        process = await runtime.start(sleeper, id="sleeps", session="s")
        await until(lambda: _waits(process))
        await runtime.export_session("s", file, move=True)
        store = runtime.store.id
        with pytest.raises(JournalMoved):
            await process.result(timeout=SOON)
        with pytest.raises(JournalMoved):
            await runtime.start(adds, id="new", session="s")
    async with hf.open(tmp_path / "two.db", **options) as runtime:
        await runtime.import_session(file, trust=True)
        clock.advance(3_600_000)
        with pytest.raises(ProcessFailed):
            await (await runtime.processes.get("sleeps")).result(timeout=SOON)
        assert world.keys == [idempotency_key(store, "process/sleeps", "process/act")]
        assert await runtime.store.birthplace("process/sleeps") == store
        assert await problems(runtime) == []


async def _waits(process: Any) -> bool:
    return await process.status() == "waiting"


async def test_a_step_that_is_interrupted_by_a_move_keeps_its_key_in_a_retry_elsewhere(
    tmp_path: Path, world: World
) -> None:
    file = tmp_path / "s.jsonl"

    @hf.process
    async def pays(ctx: hf.ProcessContext) -> str:
        async def act() -> str:
            world.keys.append(ctx.idempotency_key)
            world.begun.set()
            await world.go.wait()
            return "paid"

        return await ctx.step("act", act, repeat=hf.Repeat.NEVER)

    options: dict[str, Any] = {"agents": [clerk()], "processes": [pays, adds], "mirror": False}
    async with hf.open(tmp_path / "one.db", **options) as runtime:
        await play_everything(runtime)
        await runtime.start(pays, id="pays", session="s")
        await asyncio.wait_for(world.begun.wait(), SOON)
        await runtime.export_session("s", file, move=True)
        store = runtime.store.id
    world.go.set()
    async with hf.open(tmp_path / "two.db", **options) as runtime:
        await runtime.import_session(file, trust=True)
        process = await runtime.processes.get("pays")
        with pytest.raises(ProcessFailed):
            await process.result(timeout=SOON)  # nobody knows whether it was paid
        again = await process.retry(repeat_unknown=True)
        assert await again.result(timeout=SOON) == "paid"
        assert runtime.store.id != store
    assert world.keys == [idempotency_key(store, "process/pays", "process/act")] * 2


async def test_a_session_that_another_runtime_drives_is_moved_when_its_lease_is_over(
    tmp_path: Path, world: World
) -> None:
    async with hf.open(tmp_path / "one.db", agents=[world.agent()], lease_ms=600, mirror=False) as driving:
        turn = await driving.session("s", agent="clerk").send("hello")
        ending = asyncio.create_task(turn.outcome())
        await asyncio.wait_for(world.begun.wait(), SOON)
        async with hf.open(tmp_path / "one.db", drive=False, mirror=False) as other:
            await other.export_session("s", tmp_path / "s.jsonl", move=True)
            assert world.cancelled == 1  # before the file was there
        with pytest.raises(JournalMoved):
            await asyncio.wait_for(ending, SOON)


async def test_the_same_move_writes_the_same_file_again(tmp_path: Path, world: World) -> None:
    async with hf.open(None, agents=[world.agent(hf.ask("pay"))]) as runtime:
        await runtime.session("s", agent="clerk").send("hello")
        await at_rest(runtime, "s")
        one = await runtime.export_session("s", tmp_path / "one.jsonl", move=True)
        two = await runtime.export_session("s", tmp_path / "two.jsonl", move=True)
        assert one.export == two.export
        assert lines_of(tmp_path / "one.jsonl") == lines_of(tmp_path / "two.jsonl")


async def test_a_moved_session_comes_home_with_its_keys_after_it_was_forgotten_here(
    tmp_path: Path, world: World
) -> None:
    there, back = tmp_path / "there.jsonl", tmp_path / "back.jsonl"
    world.go.set()
    agents = [world.agent(hf.ask("pay"))]
    async with (
        hf.open(tmp_path / "one.db", agents=agents, mirror=False) as one,
        hf.open(tmp_path / "two.db", agents=agents, mirror=False) as two,
    ):
        await one.session("s", agent="clerk").send("hello", key="k")
        await at_rest(one, "s")
        await one.export_session("s", there, move=True)
        await two.import_session(there, trust=True)
        await two.export_session("s", back, move=True)
        with pytest.raises(ImportRefused, match="moved away from here"):
            await one.import_session(back, trust=True)
        await one.forget("s")
        await one.import_session(back, trust=True)
        (approval,) = await one.approvals()
        await one.approve(approval.id)
        assert (await (await one.session("s").send("hello", key="k")).outcome()).text == "done"
        assert world.keys == [idempotency_key(one.store.id, "s", "t1/2.tools/1.pay")]
        assert await problems(one) == await problems(two) == []


async def test_what_a_pruned_process_was_called_stays_refused_elsewhere(tmp_path: Path) -> None:
    file, clock = tmp_path / "s.jsonl", ManualClock()
    options: dict[str, Any] = {"agents": [clerk()], "processes": [adds], "clock": clock, "mirror": False}
    async with hf.open(tmp_path / "one.db", **options) as runtime:
        await play_everything(runtime)
        clock.advance(86_400_000)
        assert (await runtime.processes.prune(1)).pruned == 1
        await runtime.export_session("s", file)
    async with hf.open(tmp_path / "two.db", **options) as runtime:
        await runtime.import_session(file, trust=True)
        assert await problems(runtime) == []
        with pytest.raises((JournalPruned, ProcessPruned)):
            await (await runtime.processes.get("p")).result(timeout=SOON)


# ---- what is refused -------------------------------------------------------------------------------------------------


async def test_the_same_file_again_does_nothing_even_when_the_session_has_gone_on(tmp_path: Path) -> None:
    file = tmp_path / "s.jsonl"
    async with hf.open(None, agents=[clerk()], processes=[adds]) as runtime:
        await play_everything(runtime)
        await runtime.export_session("s", file)
    async with hf.open(None, agents=[clerk()], processes=[adds]) as runtime:
        would = await runtime.import_session(file, trust=True, dry_run=True)
        assert (would.fresh, would.dry_run, await runtime.store.journals()) == (True, True, [])
        await runtime.import_session(file, trust=True)
        await (await runtime.session("s").send("more")).outcome()
        before = [entry async for entry in runtime.store.read_all("s")]
        assert not (await runtime.import_session(file, trust=True)).fresh
        assert [entry async for entry in runtime.store.read_all("s")] == before


async def test_an_id_that_is_here_is_refused_and_nothing_is_stored(tmp_path: Path) -> None:
    file = tmp_path / "s.jsonl"
    async with hf.open(None, agents=[clerk()], processes=[adds]) as runtime:
        await play_everything(runtime)
        await runtime.export_session("s", file)
        with pytest.raises(ImportRefused, match="'s' is here already"):
            await runtime.import_session(file)
    async with hf.open(None, agents=[clerk()], processes=[adds]) as runtime:
        await (await runtime.start(adds, id="p")).result(timeout=SOON)  # not the session, but a process of it
        with pytest.raises(ImportRefused, match="'process/p' is here already"):
            await runtime.import_session(file, trust=True)
        assert [line.id for line in await runtime.store.journals()] == ["process/p"]
    async with hf.open(None, agents=[clerk()], processes=[adds]) as runtime:
        await runtime.memory("s").put("other", "mine")
        with pytest.raises(ImportRefused, match="memory scope 's'"):
            await runtime.import_session(file, trust=True)
        assert await runtime.store.journals() == []


async def test_a_file_proves_its_store_by_its_key_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "s.jsonl"
    async with hf.open(tmp_path / "one.db", agents=[clerk()], processes=[adds], mirror=False) as runtime:
        await play_everything(runtime)
        await runtime.export_session("s", file)
        await runtime.forget("s", forks=True)
        await runtime.import_session(file)  # its own
    async with hf.open(tmp_path / "two.db", agents=[clerk()], processes=[adds], mirror=False) as runtime:
        with pytest.raises(SessionFileUntrusted):
            await runtime.import_session(file)
        with pytest.raises(SessionFileUntrusted):
            await runtime.import_session(file, key=tmp_path / "two.db.key")
        assert await runtime.store.journals() == []
        await runtime.import_session(file, key=tmp_path / "one.db.key")
    monkeypatch.setenv("HOLDFAST_STORE_KEY", (tmp_path / "one.db.key").read_text().strip())
    async with hf.open(tmp_path / "three.db", agents=[clerk()], processes=[adds], mirror=False) as runtime:
        await runtime.import_session(file)  # all stores of this host share a key


async def test_a_process_that_waits_for_a_turn_of_a_moved_session_learns_it(tmp_path: Path, world: World) -> None:
    @hf.process
    async def waits(ctx: hf.ProcessContext) -> str:
        return await ctx.run_agent("clerk", "hello", session="s")

    async with hf.open(None, agents=[world.agent()], processes=[waits]) as runtime:
        process = await runtime.start(waits, id="p")
        await asyncio.wait_for(world.begun.wait(), SOON)
        await runtime.export_session("s", tmp_path / "s.jsonl", move=True)
        with pytest.raises((AgentTurnFailed, ProcessFailed, JournalMoved)):
            await process.result(timeout=SOON)


def test_a_session_is_exported_and_imported_without_await(tmp_path: Path) -> None:
    with hf.open_sync(None, agents=[clerk()], processes=[adds]) as runtime:
        runtime.session("s", agent="clerk").send("hello").outcome()
        runtime.export_session("s", tmp_path / "s.jsonl")
    with hf.open_sync(None, agents=[clerk()], processes=[adds]) as runtime:
        assert runtime.import_session(tmp_path / "s.jsonl", trust=True).fresh
        assert len(runtime.session("s").history()) > 0
