"""The lists are quick, and they are nothing but a fold of the journals."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import apsw
import msgspec
import pytest

import holdfast as hf
from holdfast.records import Done, Ended, Opened, Parked, Started, Status, next_status, touches_lists
from holdfast.store.contract import JournalFilter
from holdfast.store.sqlite.rows import WORK_QUERY, list_query

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.records import Record

FILTERS = [
    dict(zip(("kind", "status", "agent", "before"), chosen, strict=True))
    for chosen in itertools.product((None, "session"), (None, "waiting"), (None, "support"), (False, True))
]
FAMILIES = [
    dict(zip(("status", "role", "session", "before"), chosen, strict=True))
    for chosen in itertools.product((None, "waiting"), (None, "task"), (None, "s"), (None, (50, "x")))
    if chosen[1] or chosen[2]
]


async def _fill(store: hf.Store) -> None:
    histories: dict[str, list[Record]] = {
        "done": [Started(at=10, run="t"), Ended(at=20, run="t", status="completed")],
        "running": [Started(at=30, run="t")],
        "waiting": [Started(at=40, run="t"), Parked(at=50, run="t", waits=("w",))],
        "resumed": [Started(at=60, run="t"), Parked(at=70, run="t"), Done(at=80, key="k", value=msgspec.Raw(b"1"))],
        "failed": [Started(at=90, run="t"), Ended(at=95, run="t", status="failed")],
    }
    for name, added in histories.items():
        await store.open_journal(name, "session", "support")
        lease = await store.claim(name)
        await store.append(lease, added, head=lease.head)


async def test_the_lists_can_be_rebuilt_from_the_journals(tmp_path: Path) -> None:
    async with hf.open_store(tmp_path / "store.db") as store:
        await _fill(store)
        listed = {
            line.id: (line.kind, line.agent, line.status, line.head, line.updated) for line in await store.journals()
        }
        rebuilt: dict[str, tuple[Any, ...]] = {}
        for name in listed:
            status: Status = "idle"
            updated = head = 0
            first: Opened | None = None
            async for entry in store.read_all(name):
                if isinstance(entry.record, Opened):
                    first = entry.record
                status = next_status(status, entry.record)
                updated = entry.record.at if touches_lists(entry.record) else updated
                head = entry.seq
            assert first is not None
            rebuilt[name] = (first.kind, first.agent, status, head, updated)
    assert rebuilt == listed
    assert {name: line[2] for name, line in listed.items()} == {
        "done": "completed",
        "running": "running",
        "waiting": "waiting",
        "resumed": "running",
        "failed": "failed",
    }


@pytest.mark.parametrize("chosen", FILTERS, ids=str)
async def test_every_list_is_served_by_an_index_in_its_order(tmp_path: Path, chosen: dict[str, Any]) -> None:
    async with hf.open_store(tmp_path / "store.db") as store:
        await _fill(store)
    cursor = (50, "x") if chosen["before"] else None
    sql, values = list_query(JournalFilter(chosen["kind"], chosen["status"], chosen["agent"], cursor), 50)
    db: Any = apsw.Connection(str(tmp_path / "store.db"))
    plan = " / ".join(row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {sql}", values))
    db.close()
    assert "INDEX journals" in plan
    assert "TEMP B-TREE" not in plan, plan
    wanted = [column for column in ("kind", "status") if chosen[column] is not None]
    if chosen["agent"] is None:
        assert all(f"{column}=?" in plan for column in wanted), plan
    else:
        assert "agent=?" in plan, plan
        assert chosen["status"] is None or "status=?" in plan, plan


@pytest.mark.parametrize("chosen", FAMILIES, ids=str)
async def test_every_list_of_a_role_or_a_session_is_served_by_an_index_in_its_order(
    tmp_path: Path, chosen: dict[str, Any]
) -> None:
    async with hf.open_store(tmp_path / "store.db") as store:
        await _fill(store)
    sql, values = list_query(JournalFilter(**chosen), 50)
    db: Any = apsw.Connection(str(tmp_path / "store.db"))
    plan = " / ".join(row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {sql}", values))
    db.close()
    assert "INDEX journals" in plan
    assert "TEMP B-TREE" not in plan, plan
    assert all(f"{column}=?" in plan for column in ("status", "role", "session") if chosen[column]), plan


async def test_work_is_found_by_an_index_that_holds_nothing_else(tmp_path: Path) -> None:
    async with hf.open_store(tmp_path / "store.db") as store:
        await _fill(store)
        assert [found.journal for found in await store.work()] == ["running", "resumed"]
    db: Any = apsw.Connection(str(tmp_path / "store.db"))
    plan = " / ".join(row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {WORK_QUERY}", (1, 50)))
    db.close()
    assert plan == "SEARCH journals USING INDEX journals_with_work (no>?)"
