"""A turn of a long session costs what a turn of a short one does, and nothing depends on the folds that make it so."""

from __future__ import annotations

import random
import shutil
from typing import TYPE_CHECKING, Any

import apsw
import pytest
from tests.behaviour.long import KINDS, agent_of, fold_often, play, play_all
from tests.behaviour.talk import at_rest

import holdfast as hf
from holdfast.records import Ended
from holdfast.runtime.session_records import (
    FOLD_RECORDS,
    MOST_RECENT,
    MOST_RECENT_BYTES,
    RecentConversations,
    read_conversation,
)
from holdfast.store.paths import key_file
from holdfast.store.sqlite.rows import SqliteReader
from holdfast.testing import ScriptedModel, call, check, text
from holdfast.turns.conversation import Conversation

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from holdfast.store.contract import Entry

MANY = 60
TAMPERING: dict[str, str] = {
    "drop all": "DELETE FROM folds",
    "drop the newest": "DELETE FROM folds WHERE id = (SELECT max(id) FROM folds)",
    "damage": "UPDATE folds SET body = CAST(x'00' || substr(body, 2) AS BLOB)",
    "put one in the place of another": "UPDATE folds SET body = (SELECT body FROM folds ORDER BY id LIMIT 1)",
    "move them": "UPDATE folds SET seq = seq + 1000",
    "forge the seal": "UPDATE folds SET mac = zeroblob(16)",
    "leave them": "SELECT 1",
}


def _change(path: Path, sql: str) -> int:
    """Change a closed store; answers how many rows."""
    db: Any = apsw.Connection(str(path))
    db.execute(sql)
    changed = db.changes()
    db.close()
    return changed


def _folds(path: Path) -> list[int]:
    """The records after which a closed store has folds."""
    db: Any = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    found = [seq for (seq,) in db.execute("SELECT seq FROM folds ORDER BY seq")]
    db.close()
    return found


async def _told(runtime: hf.Runtime, id: str = "s") -> tuple[Any, ...]:
    """What a session says of itself, without its times."""
    session = runtime.session(id)
    return await session.history(), await session.context(), await session.usage(), await session.status()


@pytest.mark.parametrize("seed", range(3))
async def test_folds_that_are_dropped_or_damaged_at_random_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    chance = random.Random(seed)
    kinds = chance.choices(KINDS, k=24)
    asked: list[Any] = []
    async with hf.open(None, agents=[agent_of(asked)]) as runtime:
        played = await play_all(runtime.session("s", agent="a"), kinds)
        expected = played, await _told(runtime), list(asked)

    fold_often(monkeypatch)
    asked.clear()
    path, done = tmp_path / "store.db", 0
    statuses: list[str] = []
    told: tuple[Any, ...] = ()
    tampered = dict.fromkeys(TAMPERING, 0)
    while done < len(kinds):
        step = chance.randint(1, 4)
        async with hf.open(path, agents=[agent_of(asked)]) as runtime:
            session = runtime.session("s", agent="a")
            for kind in kinds[done : done + step]:
                statuses.append(await play(session, "talk" if not done and kind == "compact" else kind))
                done += 1
            told = await _told(runtime)
        how = chance.choice([*TAMPERING])
        tampered[how] += _change(path, TAMPERING[how])
    assert (statuses, told, asked) == expected, f"seed {seed}: {tampered}"
    assert sum(tampered.values()) > 0
    async with hf.open_store(path) as store:
        assert await check(store) == []


async def test_a_fold_ahead_of_a_journal_that_was_cut_short_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fold_often(monkeypatch)
    path = tmp_path / "store.db"
    async with hf.open(path, agents=[agent_of()]) as runtime:
        await play_all(runtime.session("s", agent="a"), ["talk"] * 6)
        store = runtime.store
        ends = [entry.seq async for entry in store.read_all("s") if type(entry.record) is Ended]
    _change(path, f"DELETE FROM records WHERE seq > {ends[2]}; UPDATE journals SET head = {ends[2]}")
    assert max(_folds(path)) > ends[2]
    asked: list[Any] = []
    async with hf.open(path, agents=[agent_of(asked)]) as runtime:
        session = runtime.session("s", agent="a")
        assert await session.context() == await session.history()
        await play(session, "look")
        said = [message.text for message in asked[0] if type(message) is hf.messages.UserMessage]
        assert said == [*["talk"] * 3, "look"]
        await play_all(session, ["look"] * 4)
        assert await session.context() == list((await read_conversation(runtime.store, "s")).context.messages)


async def test_a_fold_of_another_format_is_ignored_and_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fold_often(monkeypatch)
    path = tmp_path / "store.db"
    async with hf.open(path, agents=[agent_of()]) as runtime:
        session = runtime.session("s", agent="a")
        await play_all(session, ["talk", "look", "talk"])
        expected = await _told(runtime)
    async with hf.open_store(path) as store:
        lease = await store.claim("s")
        newest = await store.fold("s")
        assert newest is not None
        await store.save_fold(lease, newest.seq, newest.body.replace(b'"format":"', b'"format":"0-'))
        await store.release(lease)
    async with hf.open(path, agents=[agent_of()]) as runtime:
        assert await _told(runtime) == expected
        await play(runtime.session("s", agent="a"), "talk")
        await at_rest(runtime)  # the fold is written at the end of the drive
        newest = await runtime.store.fold("s")
        assert newest is not None
        assert b'"format":"0-' not in newest.body


async def test_a_session_whose_store_lost_its_folds_saves_one_at_its_next_turn(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with hf.open(path, agents=[agent_of()]) as runtime:
        await play_all(runtime.session("s", agent="a"), ["talk"] * MANY)
    _change(path, "DELETE FROM folds")
    async with hf.open(path, agents=[agent_of()]) as runtime:
        await play(runtime.session("s", agent="a"), "talk")
    assert len(_folds(path)) == 1


async def test_a_forgotten_session_leaves_no_folds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fold_often(monkeypatch)
    path = tmp_path / "store.db"
    async with hf.open(path, agents=[agent_of()]) as runtime:
        await play_all(runtime.session("s", agent="a"), ["talk"] * 3)
        assert await runtime.store.fold("s") is not None
        await runtime.forget("s")
    assert _folds(path) == []


# ---- what is read ----------------------------------------------------------------------------------------------------


class Counted:
    """Counts the records that reads give."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.records = 0
        inner: Callable[[SqliteReader, str, int, int], list[Entry]] = SqliteReader.records

        def records(reader: SqliteReader, journal: str, after: int, limit: int) -> list[Entry]:
            found = inner(reader, journal, after, limit)
            self.records += len(found)
            return found

        monkeypatch.setattr(SqliteReader, "records", records)

    async def during(self, work: Any) -> int:
        """How many records are read meanwhile."""
        before = self.records
        await work
        return self.records - before


@pytest.fixture
async def long_store(tmp_path: Path) -> Path:
    """A store with a session of many turns, which is more than a few folds."""
    path = tmp_path / "store.db"
    async with hf.open(path, agents=[agent_of()]) as runtime:
        session = runtime.session("s", agent="a")
        await play_all(session, ["talk"] * MANY)
        assert (await runtime.store.journal("s")).head > 3 * FOLD_RECORDS
    return path


FEW = 2 * FOLD_RECORDS


async def test_after_a_restart_a_turn_reads_only_the_records_since_the_last_fold(
    long_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = Counted(monkeypatch)
    async with hf.open(long_store, agents=[agent_of()]) as runtime:
        session = runtime.session("s", agent="a")
        assert await counted.during(play(session, "talk")) < FEW
        assert await counted.during(play(session, "talk")) < 20, "the next one reads on"


READERS: dict[str, Callable[[hf.Session], Any]] = {
    "context": lambda session: session.context(),
    "usage": lambda session: session.usage(),
    "total usage": lambda session: session.total_usage(),
    "cancel": lambda session: session.cancel(),
    "status": lambda session: session.status(),
    "metadata": lambda session: session.metadata(),
    "fork": lambda session: _fork(session, None),
    "fork in the middle": lambda session: _fork(session, 150),
}


@pytest.mark.parametrize("name", READERS)
async def test_a_reader_of_the_present_does_not_read_the_whole_journal(
    long_store: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    counted = Counted(monkeypatch)
    async with hf.open(long_store, agents=[agent_of()]) as runtime:
        assert await counted.during(READERS[name](runtime.session("s"))) < FEW


TURN_READERS: dict[str, Callable[[hf.Turn], Any]] = {
    "outcome": lambda turn: turn.outcome(),
    "status": lambda turn: turn.status(),
    "cancel": lambda turn: turn.cancel(),
    "events": lambda turn: _all(turn.events()),
}


@pytest.mark.parametrize("name", TURN_READERS)
async def test_a_handle_of_a_turn_reads_from_where_its_input_was_accepted(
    long_store: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    counted = Counted(monkeypatch)
    async with hf.open(long_store, agents=[agent_of()], limits=hf.StoreLimits(page=10)) as runtime:
        assert 0 < await counted.during(TURN_READERS[name](runtime.session("s").turn("t45"))) <= 40


async def _all(events: Any) -> None:
    async for _ in events:
        pass


async def _fork(session: hf.Session, at: int | None) -> None:
    assert await play(await session.fork(at=at), "talk") == "completed"


async def test_a_fork_below_a_fold_continues_what_was_said_by_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fold_often(monkeypatch)
    path = tmp_path / "store.db"
    async with hf.open(path, agents=[agent_of()]) as runtime:
        session = runtime.session("s", agent="a")
        await play_all(session, [*KINDS, "look", "talk"])
        head = (await runtime.store.journal("s")).head
    for at in range(1, head + 1, 3):
        copy = tmp_path / f"copy-{at}.db"
        shutil.copy2(path, copy)
        shutil.copy2(key_file(path), key_file(copy))
        told: list[Any] = []
        for forget in (False, True):
            if forget:
                _change(copy, "DELETE FROM folds")
            async with hf.open(copy, agents=[agent_of()]) as runtime:
                fork = await runtime.session("s").fork(at=at, id=f"fork-{forget}")
                await play(fork, "look")
                told.append(await _told(runtime, fork.id))
        assert told[0] == told[1], f"a fork at record {at}"


# ---- handles of turns ------------------------------------------------------------------------------------------------


async def test_an_input_that_steered_a_turn_tells_the_whole_answer_later() -> None:
    steered: list[hf.Turn] = []

    @hf.tool(read_only=True)
    async def steer(ctx: hf.Context) -> str:
        """Send an input into the running turn."""
        steered.append(await runtime.session("s").send("And this.", steer=True))
        return "sent"

    agent = hf.Agent("a", model=ScriptedModel([text("Hello."), call("steer"), text("Both.")]), tools=[steer])
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        await (await session.send("Hello?")).outcome(timeout=20)
        turn = await session.send("Do this.")
        expected = await turn.outcome(timeout=20)
        (handle,) = steered
        for each in (handle, session.turn(handle.id)):
            assert (await each.outcome(timeout=20)) == expected
            assert await each.status() == "completed"
            assert [event.turn async for event in each.events()] == [event.turn async for event in turn.events()]


# ---- what is kept in memory ------------------------------------------------------------------------------------------


def _conversation(size: int = 0) -> Conversation:
    found = Conversation()
    found.pos = 1
    found.thread = found.thread.add(hf.messages.UserMessage("m", (hf.messages.Text("x" * size),)))
    return found


def test_only_the_last_conversations_stay_in_memory() -> None:
    recent = RecentConversations()
    for number in range(MOST_RECENT + 1):
        recent.keep(str(number), _conversation())
    assert recent.take("0") is None
    assert [recent.take(str(number)) is None for number in range(1, MOST_RECENT + 1)] == [False] * MOST_RECENT
    third = MOST_RECENT_BYTES // 3
    for number in range(4):
        recent.keep(str(number), _conversation(third))
    assert [recent.take(str(number)) is None for number in range(4)] == [True, True, False, False]
    recent.keep("huge", _conversation(MOST_RECENT_BYTES + 1))
    assert recent.take("huge") is None
