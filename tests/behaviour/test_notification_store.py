"""Notifications and memory in a file: quick however many there are, and never silently damaged."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING, Any

import apsw
import pytest
from msgspec.structs import replace

import holdfast as hf
from holdfast.errors import JournalCorrupt, JournalQuarantined, MemoryCorrupt, MemoryFull, StoreError
from holdfast.records import Admitted, Ended, Started
from holdfast.store import Notify, StoreLimits
from holdfast.store.audit import audit
from holdfast.store.sqlite.health import examine
from holdfast.store.sqlite.tables import (
    LIST_MEMORY_QUERY,
    NEXT_NOTIFICATIONS_QUERY,
    PURGE_NOTIFICATIONS_QUERY,
    SELECT_NOTIFICATIONS,
    SqliteTables,
    newest_query,
)
from holdfast.testing import ManualClock, check

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

MANY = 100_000
FILTERS = list(itertools.product((None, "s"), (None, "dead"), (None, 50)))


def _plan(path: Path, sql: str, values: Any) -> str:
    db: Any = apsw.Connection(str(path))
    plan = " / ".join(row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {sql}", values))
    db.close()
    return plan


def _change(path: Path, sql: str) -> None:
    db: Any = apsw.Connection(str(path))
    db.execute(sql)
    db.close()


async def _best(call: Callable[[], Awaitable[object]]) -> float:
    """The shortest of a few attempts: others use this machine, too."""
    times: list[float] = []
    for _ in range(10):
        begun = time.perf_counter()
        await call()
        times.append(time.perf_counter() - begun)
    return min(times)


async def _opened(path: Path) -> None:
    async with hf.open_store(path):
        pass


@pytest.fixture
async def path(tmp_path: Path) -> Path:
    """A store with a session that has one notification of each kind, and a memory."""
    file = tmp_path / "store.db"
    async with hf.open_store(file) as store:
        await store.open_journal("s")
        await store.notify("s", kind="task", title="first", body="hello")
        lease = await store.claim("s")
        ended = [Started(at=1, run="r"), Ended(at=2, run="r", status="completed")]
        await store.append(lease, ended, head=1, notify=[Notify("ghost", "task", "nobody")])
        await store.memory_put("team", "greeting", "hello")
        await store.memory_put("team", "other", "kept")
    return file


# ---- speed ----


async def test_a_hundred_thousand_finished_notifications_slow_nothing_down(path: Path) -> None:
    db: Any = apsw.Connection(str(path))
    table = SqliteTables(db, None).notifications
    one = table.find(1)
    assert one is not None
    db.execute("PRAGMA synchronous = OFF; BEGIN")
    for _ in range(MANY):
        table.add(replace(one, state="acknowledged"))
    db.execute("COMMIT")
    db.close()
    assert await _best(lambda: _opened(path)) < 0.2
    async with hf.open_store(path) as store:
        await store.notify("s", kind="task", title="next")
        assert await _best(lambda: store.next_notifications("s", 1)) < 0.005
        assert await _best(store.notifications) < 0.005
        assert await _best(lambda: store.notifications("s", "acknowledged")) < 0.005
        assert await _best(lambda: store.notifications(state="dead")) < 0.005
        assert await _best(store.next_due) < 0.005
        assert await _best(store.ripen) < 0.1  # a write: the disk decides


@pytest.mark.parametrize(("journal", "state", "before"), FILTERS)
def test_every_list_of_notifications_is_served_by_an_index_in_its_order(
    path: Path, journal: str | None, state: Any, before: int | None
) -> None:
    filters = {"journal = ?": journal, "state = ?": state, "id < ?": before}
    plan = _plan(path, *newest_query(SELECT_NOTIFICATIONS, filters, 50))
    assert "TEMP B-TREE" not in plan, plan
    assert all(f"{column}=?" in plan for column, value in (("journal", journal), ("state", state)) if value), plan


def test_what_is_next_is_found_by_an_index_that_holds_nothing_else(path: Path) -> None:
    plan = _plan(path, NEXT_NOTIFICATIONS_QUERY, ("s", 1, 1, 50))
    assert plan == "SEARCH notifications USING INDEX notifications_queued (journal=?)"


def test_what_may_be_forgotten_is_found_by_an_index_that_holds_nothing_else(path: Path) -> None:
    plan = _plan(path, PURGE_NOTIFICATIONS_QUERY, (1, 50))
    assert plan == "SEARCH notifications USING INDEX notifications_finished (updated<?)"


def test_a_scope_is_listed_in_the_order_of_an_index(path: Path) -> None:
    plan = _plan(path, LIST_MEMORY_QUERY, ("team", "", "", "z", 1))
    assert plan == "SEARCH m USING INDEX memories_by_key (scope=? AND key>? AND key<?)"


async def test_a_purge_that_finds_nothing_writes_nothing(path: Path) -> None:
    async with hf.open_store(path) as store:
        log = path.with_name(path.name + "-wal")
        before = log.stat().st_size
        await store.purge_notifications()
        assert log.stat().st_size == before


# ---- damage ----


@pytest.mark.parametrize("column", ["title", "body"])
async def test_a_damaged_notification_stops_its_session_and_no_other(path: Path, column: str) -> None:
    async with hf.open_store(path) as store:
        await store.open_journal("t")
        await store.notify("t", kind="task", title="fine")
    _change(path, f"UPDATE notifications SET {column} = 'hallo' WHERE id = 1")
    async with hf.open_store(path) as store:
        with pytest.raises(JournalCorrupt, match="the notification 1 does not match its checksum"):
            await store.next_notifications("s")
        with pytest.raises(JournalQuarantined):
            await store.notify("s", kind="task", title="more")
        assert [found.title for found in await store.next_notifications("t")] == ["fine"]


async def test_a_damaged_notification_is_not_shown_by_its_number(path: Path) -> None:
    _change(path, "UPDATE notifications SET body = 'hallo'")
    async with hf.open_store(path) as store:
        for number in (1, 2):
            with pytest.raises(JournalCorrupt):
                await store.notification(number)
        assert (await store.journal("s")).quarantine == "a notification does not match its checksum"


async def test_a_list_leaves_damaged_notifications_out_and_stops_their_session(path: Path) -> None:
    _change(path, "UPDATE notifications SET body = 'hallo'")
    async with hf.open_store(path) as store:
        assert await store.notifications() == []
        assert (await store.journal("s")).quarantine == "a notification does not match its checksum"


@pytest.mark.parametrize("column", ["title", "body"])
async def test_a_session_is_stopped_also_by_a_notification_that_is_no_text_any_more(path: Path, column: str) -> None:
    _change(path, f"UPDATE notifications SET {column} = CAST(x'ff' AS TEXT) WHERE id = 1")
    async with hf.open_store(path) as store:
        await store.quarantine("s", "a test")
    db: Any = apsw.Connection(str(path))
    assert db.execute("SELECT state FROM notifications WHERE id = 1").get == "dead"
    db.close()


DAMAGES = ["value = 'hallo'", "value = CAST(x'ff' AS TEXT)", "author = CAST(x'ff' AS TEXT)", "version = 7", "crc = 0"]


@pytest.fixture(params=DAMAGES)
def damaged(path: Path, request: pytest.FixtureRequest) -> Path:
    """The store, with one entry that is not what was written."""
    _change(path, f"UPDATE memories SET {request.param} WHERE key = 'greeting'")
    return path


async def test_a_damaged_memory_is_not_shown_and_can_be_written_anew(damaged: Path) -> None:
    async with hf.open_store(damaged) as store:
        for attempt in (store.memory_get("team", "greeting"), store.memory_list("team")):
            with pytest.raises(MemoryCorrupt) as caught:
                await attempt
            assert isinstance(caught.value, StoreError)
            assert (caught.value.scope, caught.value.key) == ("team", "greeting")
        assert await store.memory_get("team", "other") is not None
        await store.memory_put("team", "greeting", "anew")
        assert len(await store.memory_list("team")) == 2


async def test_a_damaged_memory_does_not_hide_the_others_of_its_scope(damaged: Path) -> None:
    async with hf.open_store(damaged) as store:
        page = await store.memory_page("team")
        assert ([entry.key for entry in page.entries], page.damaged) == (["other"], [("team", "greeting")])


async def test_a_search_leaves_damaged_memories_out_and_says_which(damaged: Path) -> None:
    async with hf.open_store(damaged) as store:
        await store.memory_put("team", "third", "hello hello")
        for scope in ("team", None):
            page = await store.memory_search(scope, "hello")
            assert ([entry.key for entry in page.entries], page.damaged) == (["third"], [("team", "greeting")])


async def test_a_report_counts_damaged_memories(damaged: Path) -> None:
    health = examine(damaged)
    assert (health.healthy, health.memories, health.memories_damaged) == (False, 2, 1)


async def _every_second_is_damaged(path: Path) -> None:
    async with hf.open_store(path) as store:
        for n in range(8):
            await store.memory_put("s", f"k{n}", "apple")
    _change(path, "UPDATE memories SET crc = 0 WHERE scope = 's' AND key IN ('k0', 'k1', 'k3', 'k5', 'k7')")


@pytest.mark.parametrize("limits", [StoreLimits(), StoreLimits(page_bytes=1), StoreLimits(page_bytes=12)])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 50])
async def test_damaged_memories_end_no_page_early_and_are_told_once(path: Path, size: int, limits: StoreLimits) -> None:
    await _every_second_is_damaged(path)
    entries, damaged, more = list[str](), list[str](), True
    async with hf.open_store(path, limits=limits) as store:
        while more:
            page = await store.memory_page("s", after=entries[-1] if entries else "", limit=size)
            entries += [entry.key for entry in page.entries]
            damaged += [place.key for place in page.damaged]
            more = page.more
    assert (entries, damaged) == (["k2", "k4", "k6"], ["k0", "k1", "k3", "k5", "k7"])


async def test_damaged_memories_take_no_room_in_a_search(path: Path) -> None:
    await _every_second_is_damaged(path)
    async with hf.open_store(path) as store:
        assert [entry.key for entry in (await store.memory_search("s", "apple", 2)).entries] == ["k2", "k4"]


@pytest.mark.parametrize(
    ("damage", "rule"),
    [
        ("UPDATE notifications SET body = 'x' WHERE id = 1", "checksum"),
        ("UPDATE notifications SET state = 'acknowledged' WHERE id = 1", "notification"),
        ("UPDATE notifications SET state = 'queued' WHERE journal = 'ghost'", "notification"),
        ("UPDATE notifications SET state = 'claimed', input = 7 WHERE id = 1", "notification"),
        ("DELETE FROM notifications WHERE id = 1", "notification"),
        ("UPDATE journals SET quarantine = 'by hand' WHERE id = 's'", "notification"),
        ("UPDATE memories SET value = 'x'", "checksum"),
        ("DELETE FROM memories WHERE key = 'other'", "memory"),
        ("DELETE FROM memory_changes WHERE key = 'other'", "memory"),
        ("UPDATE memory_changes SET version = 9 WHERE key = 'other'", "memory"),
    ],
)
async def test_an_audit_names_what_does_not_fit(path: Path, damage: str, rule: str) -> None:
    async with hf.open_store(path) as store:
        assert await store.examine(audit) == []
    _change(path, damage)
    async with hf.open_store(path) as store:
        assert rule in {violation.rule for violation in await store.examine(audit)}
    assert not examine(path).healthy


async def test_an_audit_names_notifications_that_are_out_of_their_order(path: Path) -> None:
    async with hf.open_store(path) as store:
        await store.notify("s", kind="task", title="second")
    _change(path, "UPDATE notifications SET id = 99 WHERE id = 1")
    async with hf.open_store(path) as store:
        (violation,) = await store.examine(audit)
        assert violation.detail == "is number 1 of its journal, after 2"


@pytest.mark.parametrize("damage", ["UPDATE notifications SET run = 't1'", "UPDATE notifications SET run = NULL"])
async def test_an_audit_names_what_nobody_would_ever_give_back(path: Path, damage: str) -> None:
    async with hf.open_store(path) as store:
        lease = await store.claim("s")
        receipt = await store.deliver_notifications(lease, [1], "news")
        assert receipt is not None
        head = (await store.journal("s")).head
        admitted = Admitted(at=1, input=receipt.input, key=receipt.key, run="t1")
        await store.append(lease, [Started(at=1, run="t1"), admitted], head=head)
        assert await store.examine(audit) == []
        await store.append(lease, [Ended(at=2, run="t1", status="completed")], head=head + 2)
    _change(path, f"{damage}, state = 'claimed' WHERE id = 1")
    async with hf.open_store(path) as store:
        assert "notification" in {violation.rule for violation in await store.examine(audit)}


async def test_a_report_counts_notifications_and_memories(path: Path) -> None:
    health = examine(path)
    assert health.healthy
    assert (health.notifications, health.memories) == ({"dead": 1, "queued": 1}, 2)
    assert (health.memory_scopes, health.memories_damaged) == (1, 0)


async def test_a_secret_is_found_in_notifications_and_memory(path: Path) -> None:
    async with hf.open_store(path) as store:
        assert {violation.where for violation in await check(store, canaries=[b"hello"])} == {
            *("notifications", "memories", "memory_changes")
        }
        assert {violation.where for violation in await check(store, canaries=[b"nobody"])} == {"notifications"}


# ---- limits ----


async def test_how_long_finished_notifications_are_kept_is_settable(tmp_path: Path) -> None:
    clock = ManualClock()
    limits = StoreLimits(notification_kept_ms=1_000)
    async with hf.open_store(tmp_path / "store.db", clock=clock, limits=limits) as store:
        await store.open_journal("s")
        found, _ = await store.notify("s", kind="task", title="x")
        await store.settle_notification(found.id, "acknowledged")
        clock.advance(999)
        assert (await store.purge_notifications()).removed == 0
        clock.advance(1)
        assert (await store.purge_notifications()).removed == 1


async def test_the_number_of_entries_of_a_scope_is_limited(tmp_path: Path) -> None:
    async with hf.open_store(tmp_path / "store.db", limits=StoreLimits(scope_entries=2)) as store:
        for key in ("a", "b"):
            await store.memory_put("s", key, "")
        with pytest.raises(MemoryFull, match="2 entries"):
            await store.memory_put("s", "c", "")
        await store.memory_put("s", "a", "again")
        await store.memory_delete("s", "b")
        await store.memory_put("s", "c", "")


async def test_ripening_and_purging_go_on_until_all_is_done(tmp_path: Path) -> None:
    async with hf.open_store(tmp_path / "store.db", limits=StoreLimits(page=2)) as store:
        now = store.clock.read().wall
        for n in range(5):
            await store.open_journal(f"s{n}")
            await store.notify(f"s{n}", kind="task", title="x")
            await store.release(await store.claim(f"s{n}"), seen=1)
            await store.memory_put("s", f"k{n}", "x", expires=now)
        assert await store.ripen(again=True) == [f"s{n}" for n in range(5)]
        assert await store.memory_purge() == 5


async def test_a_word_is_found_by_its_beginning_and_without_its_accents(tmp_path: Path) -> None:
    async with hf.open_store(tmp_path / "store.db") as store:
        await store.memory_put("s", "k", "Der Kaffee in der Brücke")
        for words in ("kaff", "brucke", "BRÜCKE kaffee"):
            assert [found.key for found in (await store.memory_search("s", words)).entries] == ["k"], words
