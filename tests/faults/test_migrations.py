"""Old stores open: one that an older release wrote is brought up to date in one transaction, with all that is in it."""

from __future__ import annotations

import os
import shutil
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import apsw
import opening_scenario as scenario
import pytest
from forking import error_in
from killing import KILLED

import holdfast as hf
from holdfast.errors import JournalCorrupt, StoreRefused
from holdfast.errors.caller import RateExceeded
from holdfast.records import Started
from holdfast.runtime.budgets import spend_of_record
from holdfast.store import AdmissionWindow, Spend
from holdfast.store.audit import audit
from holdfast.store.paths import key_file
from holdfast.store.sqlite.health import examine
from holdfast.store.sqlite.schema import APPLICATION_ID, MIGRATIONS, SEALED, VERSION
from holdfast.store.waits import mint_token
from holdfast.testing import ManualClock, ScriptedModel, call, check, reply, text

if TYPE_CHECKING:
    from pathlib import Path

    from forking import Forks

    from holdfast.records import Record

SECRET = bytes(range(32))
"""The key of wait tokens, which older schemas had in the store."""
TABLES = ("meta", "journals", "records", "inputs", "waits", "blobs", "refs")
"""What the first schema had, and all others have."""


async def _store_of_schema(version: int, path: Path) -> None:
    """A store as an older schema had it: a session with one input that nobody has answered."""
    async with hf.open_store(path) as store:
        await store.accept_into("s", "session", "a", {"parts": [{"type": "text", "text": "hello"}]}, key="k")
        await store.open_journal("idle", "session", "a")
        await store.open_journal("driven", "process")
        await store.append(await store.claim("driven"), [Started(at=1, run="r")], head=1)
        await store.open_wait("s", "timer", deadline=5)
        await store.resolve(store.wait_token("s", "early"), "yes")
    _as_of_schema(version, path)


def _as_of_schema(version: int, path: Path, *tables: str) -> None:
    """Put all that a store has, or what it has in these tables, into those of an older schema, beside it."""
    connection: Any = apsw.Connection(str(path))
    old: Any = apsw.Connection(str(path.with_suffix(".old")))
    for script in MIGRATIONS[:version]:
        old.execute(script)
    for table in tables or TABLES:
        columns = [row[1] for row in old.execute(f"PRAGMA table_info({table})")]
        listed, places = ", ".join(columns), ", ".join("?" * len(columns))
        for row in connection.execute(f"SELECT {listed} FROM {table}"):
            old.execute(f"INSERT OR REPLACE INTO {table} ({listed}) VALUES ({places})", row)
    if version < SEALED:
        old.execute("DELETE FROM meta WHERE key IN ('key_check', 'tokens')")
        old.execute("INSERT INTO meta (key, value) VALUES ('secret', ?)", (SECRET,))
    else:
        shutil.copyfile(key_file(path), key_file(path.with_suffix(".old")))
        key_file(path.with_suffix(".old")).chmod(0o600)
    old.execute(f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {version}; PRAGMA journal_mode = WAL")
    old.close()
    connection.close()
    path.with_suffix(".old").chmod(0o600)
    if version >= SEALED:
        shutil.copy2(key_file(path), key_file(path.with_suffix(".old")))


def _schema(path: Path) -> set[tuple[str, str, str]]:
    """All tables and indexes, with the statements that make them; how a column came to be there does not matter."""
    db: Any = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    found: set[tuple[str, str, str]] = set()
    for kind, name, sql in db.execute("SELECT type, name, coalesce(sql, '') FROM sqlite_schema"):
        columns = sorted(row[1:] for row in db.execute(f"PRAGMA table_xinfo('{name}')")) if kind == "table" else sql
        found.add((kind, name, str(columns)))
    db.close()
    return found


OLD = range(1, VERSION)
BEFORE_4 = range(1, 4)
"""Those that did not know questions, and counted no spending."""
BEFORE_5 = range(1, 5)
"""Those that did not count the time of turns."""


@pytest.mark.parametrize("version", OLD)
async def test_an_older_store_opens_and_is_sound(tmp_path: Path, version: int) -> None:
    await _store_of_schema(version, tmp_path / "store.db")
    async with hf.open_store(tmp_path / "store.old") as store:
        assert await check(store) == []
        assert {line.id for line in await store.journals()} == {"s", "idle", "driven"}
        assert {(line.role, line.session) for line in await store.journals()} == {(None, None)}


@pytest.mark.parametrize("version", OLD)
async def test_an_older_store_gets_the_tables_of_a_new_one(tmp_path: Path, version: int) -> None:
    await _store_of_schema(version, tmp_path / "store.db")
    async with hf.open_store(tmp_path / "store.old"):
        pass
    assert _schema(tmp_path / "store.old") == _schema(tmp_path / "store.db")


@pytest.mark.parametrize("version", OLD)
async def test_work_of_an_older_store_is_found(tmp_path: Path, version: int) -> None:
    await _store_of_schema(version, tmp_path / "store.db")
    async with hf.open_store(tmp_path / "store.old") as store:
        assert [(found.journal, found.kind, found.role) for found in await store.work()] == [("s", "session", None)]


@pytest.mark.parametrize("version", OLD)
async def test_an_older_store_takes_notifications_and_memory(tmp_path: Path, version: int) -> None:
    await _store_of_schema(version, tmp_path / "store.db")
    async with hf.open_store(tmp_path / "store.old") as store:
        await store.notify("idle", kind="task", title="done")
        await store.memory_put("team", "greeting", "hello there")
        await store.open_journal("task", "process", role="task", session="idle")
    async with hf.open_store(tmp_path / "store.old") as store:
        assert [found.title for found in await store.next_notifications("idle")] == ["done"]
        assert [found.key for found in (await store.memory_search(None, "hello")).entries] == ["greeting"]
        assert [line.id for line in await store.journals(session="idle", role="task")] == ["task"]
        assert await check(store) == []


@pytest.mark.parametrize("version", range(3, 9))
async def test_texts_in_the_memory_of_an_older_store_stay_sound_and_are_found(tmp_path: Path, version: int) -> None:
    async with hf.open_store(tmp_path / "store.db") as store:
        await store.memory_put("team", "greeting", "hello\\nothing", by="clerk")
        before = await store.memory_put("team", "greeting", "hello there", expected=1)
    _as_of_schema(version, tmp_path / "store.db", *TABLES, "memories", "memory_changes")
    async with hf.open_store(tmp_path / "store.old") as store:
        assert await store.memory_get("team", "greeting") == before
        assert (await store.memory_search(None, "hello there")).entries == [before]
        assert [change.value for change in await store.memory_history("team", "greeting")] == [
            "hello there",
            "hello\\nothing",
        ]
        await store.memory_put("team", "greeting", {"say": "hello"}, summary="a greeting", expected=2)
        assert len((await store.memory_search(None, "say hello greeting")).entries) == 1
        assert (await store.memory_search(None, "there")).entries == []
        assert await check(store) == []


@pytest.mark.parametrize("version", BEFORE_4)
async def test_waits_of_an_older_store_are_sound_and_ask_nothing(tmp_path: Path, version: int) -> None:
    await _store_of_schema(version, tmp_path / "store.db")
    async with hf.open_store(tmp_path / "store.old") as store:
        found = [(wait.name, wait.state, wait.payload) for wait in await store.waits("s")]
        assert found == [("early", "resolved", b'"yes"'), ("timer", "open", None)]
        new = {(wait.kind, wait.body, wait.at, wait.consumed) for wait in await store.waits("s")}
        assert new == {(None, None, 0, 0)}
        assert [wait.name for wait in await store.due()] == ["timer"]


@pytest.mark.parametrize("version", OLD)
async def test_an_older_store_takes_questions_rules_and_admissions(tmp_path: Path, version: int) -> None:
    await _store_of_schema(version, tmp_path / "store.db")
    once = AdmissionWindow(per_window=1)
    async with hf.open_store(tmp_path / "store.old") as store:
        await store.open_wait("s", "may I", kind="approval", body=b"refund 900")
        await store.accept("s", "again", admission=once)
        await store.answer_wait("s", "may I", "yes", rule=store.new_rule("a", "{}", by="ops"))
        await store.append(await store.claim("s"), [Started(at=1, run="t1")], head=1, consume=["may I"])
    async with hf.open_store(tmp_path / "store.old") as store:
        assert [rule.body for rule in await store.rules("a")] == ["{}"]
        with pytest.raises(RateExceeded):
            await store.accept("s", "once more", admission=once)
        assert await check(store) == []


@pytest.mark.parametrize("version", BEFORE_4)
async def test_spending_of_an_older_store_counts_from_its_migration(tmp_path: Path, version: int) -> None:
    await _store_of_schema(version, tmp_path / "store.db")
    async with hf.open_store(tmp_path / "store.old") as store:
        await store.append(await store.claim("s"), [Started(at=1, run="t1")], head=1, spend=Spend(tasks=1))
        assert await store.spent("a") == Spend(tasks=1)
        assert await store.examine(lambda reader: audit(reader, None, _spend_of)) == []


@pytest.mark.parametrize("version", BEFORE_4)
async def test_all_spending_of_an_older_store_can_be_counted_afterwards(tmp_path: Path, version: int) -> None:
    await _store_of_schema(version, tmp_path / "store.db")
    async with hf.open_store(tmp_path / "store.old") as store:
        await store.rebuild_spending(_spend_of)
    async with hf.open_store(tmp_path / "store.old") as store:
        assert await store.spent(None) == Spend(tasks=1)
        assert await store.examine(lambda reader: audit(reader, None, _spend_of)) == []


@pytest.mark.parametrize("version", OLD)
async def test_an_older_store_takes_attachments(tmp_path: Path, version: int) -> None:
    await _store_of_schema(version, tmp_path / "store.db")
    async with hf.open_store(tmp_path / "store.old") as store:
        put = await store.put_attachment(b"hello", "text/plain", session="s")
    async with hf.open_store(tmp_path / "store.old") as store:
        assert await store.attachments("s") == [put]
        assert await check(store) == []


def _spend_of(record: Record, _: object) -> Spend | None:
    return Spend(tasks=1) if isinstance(record, Started) else None


async def _spent_before(path: Path, clock: ManualClock, version: int) -> Spend:
    """What an agent spent in a store that is one of an older schema afterwards."""
    async with hf.open(path, agents=[_spender(clock)], mirror=False, clock=clock) as runtime:
        assert (await runtime.run("a", "go", session="s")).status == "completed"
        spent = await runtime.store.spent("a")
    _as_of_schema(version, path)
    return spent


def _spender(clock: ManualClock, **limits: Any) -> hf.Agent:
    @hf.tool(read_only=True)
    async def look() -> str:
        """Look for a while."""
        clock.advance(1_000)
        return "seen"

    def say(request: hf.ModelRequest) -> Any:
        said = text("done") if isinstance(request.messages[-1], hf.ToolMessage) else call(look)
        return reply(said, usage=hf.Usage(input=8, output=2))

    return hf.Agent("a", model=ScriptedModel(say), tools=[look], limits=hf.Limits(**limits))


@pytest.mark.parametrize("version", BEFORE_5)
async def test_a_runtime_counts_what_was_spent_in_an_older_store(tmp_path: Path, version: int) -> None:
    clock = ManualClock()
    spent = await _spent_before(tmp_path / "store.db", clock, version)
    assert spent == Spend(2, 1, 16, 4, 0, 2, 0, 1_000)
    async with hf.open(tmp_path / "store.old", agents=[_spender(clock)], mirror=False, clock=clock) as runtime:
        assert await runtime.store.spent("a") == spent
        assert await runtime.store.examine(lambda reader: audit(reader, None, spend_of_record)) == []


@pytest.mark.parametrize(
    ("budget", "code"),
    [(hf.Budget(tokens=20), "total_tokens"), (hf.Budget(wall_time=timedelta(seconds=1)), "total_wall_time")],
    ids=["tokens", "time"],
)
async def test_a_budget_that_was_used_up_in_an_older_store_is_used_up(
    tmp_path: Path, budget: hf.Budget, code: str
) -> None:
    clock = ManualClock()
    await _spent_before(tmp_path / "store.db", clock, 3)
    agent = _spender(clock, total=budget)
    async with hf.open(tmp_path / "store.old", agents=[agent], mirror=False, clock=clock) as runtime:
        outcome = await runtime.run(agent, "go", session="other")
        assert (outcome.code, outcome.steps) == (code, 0)


async def test_a_runtime_that_died_before_it_had_counted_leaves_it_to_the_next(tmp_path: Path) -> None:
    clock = ManualClock()
    spent = await _spent_before(tmp_path / "store.db", clock, 3)
    async with hf.open_store(tmp_path / "store.old", clock=clock) as store:  # brought up to date, and nothing counted
        assert await store.spent("a") == Spend()
    async with hf.open(tmp_path / "store.old", agents=[_spender(clock)], mirror=False, clock=clock) as runtime:
        assert await runtime.store.spent("a") == spent
        assert not await runtime.store.count_older_spending(spend_of_record)


async def test_damage_in_an_older_store_does_not_keep_the_rest_from_being_counted(tmp_path: Path) -> None:
    clock = ManualClock()
    spent = await _spent_before(tmp_path / "store.db", clock, 3)
    old: Any = apsw.Connection(str(tmp_path / "store.old"))
    old.execute("UPDATE records SET body = zeroblob(10) WHERE pos = (SELECT max(pos) FROM records)")
    old.close()
    async with hf.open(tmp_path / "store.old", agents=[_spender(clock)], mirror=False, clock=clock) as runtime:
        assert await runtime.store.spent("a") == spent


@pytest.mark.parametrize("version", OLD)
async def test_a_report_about_an_older_store_is_refused_and_changes_nothing(tmp_path: Path, version: int) -> None:
    await _store_of_schema(version, tmp_path / "store.db")
    old = tmp_path / "store.old"
    before = old.read_bytes()
    with pytest.raises(StoreRefused, match=f"version {version}, and {VERSION} is wanted"):
        examine(old)
    assert old.read_bytes() == before


@pytest.mark.parametrize("version", OLD)
async def test_an_input_that_waited_in_an_older_store_is_answered(tmp_path: Path, version: int) -> None:
    await _store_of_schema(version, tmp_path / "store.db")
    agent = hf.Agent("a", model=ScriptedModel([text("welcome")]))
    async with hf.open(tmp_path / "store.old", agents=[agent]) as runtime:
        assert (await runtime.session("s").turn("t1").outcome(timeout=10)).text == "welcome"


@pytest.mark.parametrize("version", OLD)
async def test_inputs_count_on_in_an_older_store(tmp_path: Path, version: int) -> None:
    await _store_of_schema(version, tmp_path / "store.db")
    async with hf.open_store(tmp_path / "store.old") as store:
        assert (await store.accept("s", "again")).input == 2


async def test_what_waited_for_a_session_in_quarantine_is_given_up_in_a_store_of_schema_3(tmp_path: Path) -> None:
    await _store_of_schema(3, tmp_path / "store.db")
    async with hf.open_store(tmp_path / "store.db") as store:
        await store.notify("idle", kind="task", title="never told")
        await store.notify("s", kind="task", title="waits")
    connection: Any = apsw.Connection(str(tmp_path / "store.db"))
    old: Any = apsw.Connection(str(tmp_path / "store.old"))
    columns = ", ".join(row[1] for row in old.execute("PRAGMA table_info(notifications)"))
    rows = connection.execute(f"SELECT {columns} FROM notifications").fetchall()
    connection.close()
    places = ", ".join("?" * len(rows[0]))
    old.executemany(f"INSERT INTO notifications ({columns}) VALUES ({places})", rows)
    old.execute("UPDATE journals SET notices = 1 WHERE id IN ('s', 'idle')")
    old.execute("UPDATE journals SET quarantine = 'damaged' WHERE id = 'idle'")
    old.close()
    async with hf.open_store(tmp_path / "store.old") as store:
        (found,) = await store.notifications("idle")
        assert (found.state, "quarantined: damaged" in (found.reason or "")) == ("dead", True)
        assert [found.state for found in await store.notifications("s")] == ["queued"]
        assert await check(store) == []


# ---- schema 6: seals -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(1, SEALED))
async def test_tokens_of_an_older_store_are_good_for_ever(tmp_path: Path, version: int) -> None:
    await _store_of_schema(version, tmp_path / "store.db")
    token = mint_token(SECRET, "s", "late")
    for _ in range(2):
        async with hf.open_store(tmp_path / "store.old") as store:
            assert store.wait_token("s", "late") == token
            assert (await store.resolve(token, "yes")).wait.payload == b'"yes"'


@pytest.mark.parametrize("version", range(1, SEALED))
async def test_the_key_of_tokens_leaves_an_older_store_when_it_is_brought_up_to_date(
    tmp_path: Path, version: int
) -> None:
    await _store_of_schema(version, tmp_path / "store.db")
    async with hf.open_store(tmp_path / "store.old"):
        pass
    assert SECRET not in _content(tmp_path / "store.old")
    assert key_file(tmp_path / "store.old").stat().st_mode & 0o777 == 0o600


async def test_a_wait_that_was_damaged_in_an_older_store_is_not_sealed(tmp_path: Path) -> None:
    await _store_of_schema(5, tmp_path / "store.db")
    db: Any = apsw.Connection(str(tmp_path / "store.old"))
    db.execute("UPDATE waits SET deadline = 6 WHERE name = 'timer'")
    db.close()
    async with hf.open_store(tmp_path / "store.old") as store:
        with pytest.raises(JournalCorrupt, match="checksum"):
            await store.wait("s", "timer")


@pytest.mark.parametrize(
    "point", ["store.key_made", "store.migration.before_commit", "store.migration.committed", "store.key_named"]
)
async def test_an_opening_that_is_killed_while_it_seals_is_taken_up_by_the_next(
    workers: Forks, tmp_path: Path, point: str
) -> None:
    await _store_of_schema(5, tmp_path / "store.db")
    assert workers.run(tmp_path, store=scenario.OLD, HOLDFAST_CRASH_AT=f"{point}:1") == KILLED, error_in(tmp_path)
    async with hf.open_store(tmp_path / scenario.OLD) as store:
        assert store.wait_token("s", "timer") == mint_token(SECRET, "s", "timer")
        assert await check(store) == []
    assert sorted(name for name in os.listdir(tmp_path) if ".old.key" in name) == ["store.old.key"]


def _content(path: Path) -> bytes:
    return path.read_bytes()
