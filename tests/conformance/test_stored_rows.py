"""Waits, rules and spending in a file that was damaged, and how they are found there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import apsw
import pytest

import holdfast as hf
from holdfast.errors import JournalCorrupt
from holdfast.errors.store import RuleCorrupt
from holdfast.records import Started
from holdfast.store import AdmissionWindow, Spend, StoreLimits
from holdfast.store.audit import audit
from holdfast.store.spending import DailySpend
from holdfast.store.sqlite.health import examine
from holdfast.store.sqlite.key import load_seal
from holdfast.store.sqlite.rows import SqliteReader, SqliteRows, open_waits_query
from holdfast.store.sqlite.tables import IN_FORCE_QUERY, SELECT_RULES, newest_query
from holdfast.store.sqlite.writer import connect_writer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from holdfast.records import Record


async def _furnish(path: Path) -> None:
    """A question that was answered and used, one that is open, a rule, a spend, and an input that came twice."""
    terms = AdmissionWindow(duplicates="same_turn")
    async with hf.open_store(path) as store:
        await store.open_journal("a", agent="clerk")
        for name in ("asked", "used"):
            await store.open_wait("a", name, kind="approval", body=b"refund 900")
        await store.answer_wait("a", "used", "yes", rule=store.new_rule("clerk", '{"allow":"refund"}', by="ops"))
        lease = await store.claim("a")
        await store.append(lease, [Started(at=1, run="r")], head=1, consume=["used"], spend=Spend(tool_calls=1))
        for key in ("k1", "k2"):
            await store.accept("a", "hello", key=key, admission=terms)
        assert await store.examine(audit) == []


def _damage(path: Path, sql: str) -> None:
    db: Any = apsw.Connection(str(path))
    db.execute(sql)
    db.close()


@pytest.mark.parametrize(
    ("damage", "rule"),
    [
        ("UPDATE waits SET body = CAST('refund 901' AS BLOB) WHERE name = 'asked'", "checksum"),
        ("UPDATE waits SET kind = NULL WHERE name = 'asked'", "checksum"),
        ("UPDATE waits SET consumed = 0 WHERE name = 'used'", "checksum"),
        ("UPDATE waits SET consumed = 9 WHERE name = 'used'", "wait"),
        ("UPDATE rules SET body = '{}'", "checksum"),
        ("UPDATE rules SET agent = '*'", "checksum"),
        ("UPDATE spending SET tool_calls = 0 WHERE day = 0", "spending"),
        ("DELETE FROM spending WHERE day = -1", "spending"),
        ("UPDATE input_aliases SET input = 7", "input"),
    ],
)
async def test_an_audit_names_rows_that_were_changed(tmp_path: Path, damage: str, rule: str) -> None:
    path = tmp_path / "store.db"
    await _furnish(path)
    _damage(path, damage)
    async with hf.open_store(path) as store:
        assert rule in {violation.rule for violation in await store.examine(audit)}
    assert not examine(path).healthy


async def test_a_damaged_question_can_not_be_answered(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    await _furnish(path)
    _damage(path, "UPDATE waits SET body = CAST('refund 901' AS BLOB) WHERE name = 'asked'")
    async with hf.open_store(path) as store:
        with pytest.raises(JournalCorrupt):
            await store.answer_wait("a", "asked", "yes")


async def test_one_damaged_question_does_not_hide_those_of_other_journals(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    await _furnish(path)
    async with hf.open_store(path) as store:
        await store.open_journal("b")
        await store.open_wait("b", "asked", kind="approval", body=b"refund 5")
    _damage(path, "UPDATE waits SET body = CAST('refund 901' AS BLOB) WHERE name = 'asked' AND journal = 1")
    async with hf.open_store(path) as store:
        assert [wait.journal for wait in await store.open_waits("approval")] == ["b"]
        assert (await store.journal("a")).quarantine is not None


async def test_a_damaged_answer_can_not_be_used(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    await _furnish(path)
    _damage(path, "UPDATE waits SET consumed = 0 WHERE name = 'used'")
    async with hf.open_store(path) as store:
        lease = await store.claim("a")
        with pytest.raises(JournalCorrupt):
            await store.append(lease, [Started(at=1, run="q")], head=2, consume=["used"])


async def test_nothing_is_decided_by_rules_of_which_one_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    await _furnish(path)
    async with hf.open_store(path) as store:
        await store.add_rule("clerk", "1", by="ops")
    _damage(path, """UPDATE rules SET body = '{"allow":"*"}' WHERE id = 1""")
    async with hf.open_store(path) as store:
        with pytest.raises(RuleCorrupt) as caught:
            await store.rules("clerk")
        await store.remove_rule(caught.value.number, by="ops")
        assert [rule.body for rule in await store.rules("clerk")] == ["1"]


def _calls(record: Record, _: object) -> Spend | None:
    return Spend(tool_calls=1) if isinstance(record, Started) else None


async def test_damaged_spending_is_rebuilt_from_the_records(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    await _furnish(path)
    _damage(path, "UPDATE spending SET tool_calls = 77")
    assert examine(path).healthy  # whole and days agree: only the records tell
    assert not examine(path, spend_of=_calls).healthy
    async with hf.open_store(path) as store:
        await store.rebuild_spending(_calls)
        assert await store.spent("clerk") == Spend(tool_calls=1)
    assert examine(path, spend_of=_calls).healthy


async def test_spending_is_not_rebuilt_without_a_journal_that_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    await _furnish(path)
    _damage(path, "UPDATE records SET epoch = 9 WHERE seq = 2")
    async with hf.open_store(path) as store:
        with pytest.raises(JournalCorrupt):
            await store.rebuild_spending(_calls)
        assert await store.spent("clerk") == Spend(tool_calls=1)


async def test_nobody_says_what_an_agent_with_a_damaged_journal_has_spent(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    await _furnish(path)
    _damage(path, "UPDATE records SET epoch = 9 WHERE seq = 2")
    async with hf.open_store(path) as store:
        found = await store.examine(lambda reader: audit(reader, None, _calls))
        assert "spending" not in {violation.rule for violation in found}


async def _held_back(path: Path, change: Callable[[SqliteRows], None]) -> Spend:
    """What an agent has spent after a transaction in which it spent 1 before `change`."""
    async with hf.open_store(path):
        pass
    db = connect_writer(path, "process", StoreLimits(), None, 0)
    rows = SqliteRows(db, "a test", load_seal(path, db)[0])
    db.execute("BEGIN IMMEDIATE")
    rows.spending.add("clerk", 0, Spend(tasks=1))
    change(rows)
    rows.put_blob("d", b"", 1)  # something to write, whatever became of the rest
    rows.finish(1)
    db.execute("COMMIT")
    spent = SqliteReader(db, None).spending.spent("clerk", None)
    db.close()
    return spent


async def test_what_was_held_back_is_written_with_its_transaction(tmp_path: Path) -> None:
    assert await _held_back(tmp_path / "store.db", lambda _: None) == Spend(tasks=1)


async def test_what_was_held_back_is_dropped_with_its_transaction(tmp_path: Path) -> None:
    assert await _held_back(tmp_path / "store.db", lambda rows: rows.forget()) == Spend()


async def test_what_was_held_back_is_dropped_when_all_is_replaced(tmp_path: Path) -> None:
    new = (DailySpend("clerk", 0, Spend(tasks=5)),)
    assert await _held_back(tmp_path / "store.db", lambda rows: rows.spending.replace(new)) == Spend(tasks=5)


@pytest.mark.parametrize("before", [None, (5, "a", "w")])
async def test_questions_are_found_by_an_index_that_is_in_their_order(
    tmp_path: Path, before: tuple[int, str, str] | None
) -> None:
    plan = await _plan(tmp_path / "store.db", *open_waits_query("approval", 1, before, 50))
    assert "waits_asked" in plan
    assert "TEMP B-TREE" not in plan


@pytest.mark.parametrize("before", [None, 5])
@pytest.mark.parametrize("agent", [None, "clerk"])
async def test_the_history_of_rules_is_read_in_the_order_of_an_index(
    tmp_path: Path, agent: str | None, before: int | None
) -> None:
    plan = await _plan(tmp_path / "store.db", *newest_query(SELECT_RULES, {"agent = ?": agent, "id < ?": before}, 50))
    assert "TEMP B-TREE" not in plan
    assert ("rules_by_agent" in plan) == (agent is not None)


async def test_rules_in_force_are_found_by_an_index_that_holds_nothing_else(tmp_path: Path) -> None:
    assert "rules_in_force" in await _plan(tmp_path / "store.db", IN_FORCE_QUERY, ["clerk", "*"])


async def _plan(path: Path, sql: str, values: list[Any]) -> str:
    async with hf.open_store(path):
        pass
    db: Any = apsw.Connection(str(path))
    plan = " / ".join(row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {sql}", values))
    db.close()
    return plan
