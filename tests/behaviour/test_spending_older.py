"""What was spent before a store counted it: counted journal by journal, once, whatever others do meanwhile."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import apsw
import msgspec
from tests.patience import PATIENCE

import holdfast as hf
from holdfast.records import Done, EffectRequest
from holdfast.runtime.budgets import count_older_spending, spend_of_record
from holdfast.store import Spend
from holdfast.turns import keys

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from holdfast.records import Record
    from holdfast.store import Lease, Store
    from holdfast.store.spending import ReadBlob

JOURNALS = 4
CALLS = 3
ALL = JOURNALS * CALLS
ONE = Spend(tool_calls=1)


def called(number: int) -> Done:
    """A call of a tool that was made."""
    key = keys.call_key("t1", number, 1, "look")
    return Done(at=1, key=key, ask=EffectRequest("tool_call", "look", "0" * 64), value=msgspec.Raw(b'"x"'))


async def opened(store: Store, journal: str) -> Lease:
    await store.open_journal(journal, "session", "a")
    return await store.claim(journal)


async def uncounted(path: Path) -> None:
    """A store as it is when it was just brought up from a schema that did not count."""
    async with hf.open_store(path) as store:
        for journal in range(JOURNALS):
            lease = await opened(store, f"s{journal}")
            await store.append(lease, [called(number) for number in range(CALLS)], head=1, checked=False)
    db: Any = apsw.Connection(str(path))
    db.execute("DELETE FROM spending")
    db.execute(
        "INSERT OR REPLACE INTO meta(key, value)"
        " SELECT 'spending_since', CAST(CAST(max(pos) AS TEXT) AS BLOB) FROM records"
    )
    db.close()


async def test_older_spending_is_counted_in_as_many_reads_as_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.store.spending._READ_S", -1.0)  # no read goes on to a second journal
    await uncounted(tmp_path / "s.db")
    async with hf.open_store(tmp_path / "s.db") as store:
        await count_older_spending(store)
        assert (await store.spent("a")).tool_calls == ALL


async def test_older_spending_is_counted_though_others_record_all_the_time(tmp_path: Path) -> None:
    await uncounted(tmp_path / "s.db")
    loop, recorded = asyncio.get_running_loop(), 0
    async with hf.open_store(tmp_path / "s.db") as store, hf.open_store(tmp_path / "s.db") as other:
        lease = await opened(other, "other")

        async def record() -> None:
            nonlocal recorded
            await other.append(lease, [called(recorded)], head=1 + recorded, checked=False, spend=ONE)
            recorded += 1

        def counted(found: Record, read: ReadBlob) -> Spend | None:
            """Whenever a record is counted, in the thread of the read, another one comes."""
            asyncio.run_coroutine_threadsafe(record(), loop).result(PATIENCE)
            return spend_of_record(found, read)

        assert await store.count_older_spending(counted)
        assert (await store.spent("a")).tool_calls == ALL + recorded
        assert recorded >= ALL


async def test_older_spending_that_somebody_else_was_quicker_to_count_is_counted_once(tmp_path: Path) -> None:
    await uncounted(tmp_path / "s.db")
    loop, did = asyncio.get_running_loop(), list[bool]()
    async with hf.open_store(tmp_path / "s.db") as store, hf.open_store(tmp_path / "s.db") as other:

        def counted(found: Record, read: ReadBlob) -> Spend | None:
            """While the first record is counted, in the thread of the read, another one counts them all."""
            if not did:
                counting = other.count_older_spending(spend_of_record)
                did.append(asyncio.run_coroutine_threadsafe(counting, loop).result(PATIENCE))
            return spend_of_record(found, read)

        assert not await store.count_older_spending(counted)
        assert ((await store.spent("a")).tool_calls, did) == (ALL, [True])
