"""The truth after a COMMIT that fails, whichever way it failed.

SQLite itself rarely lets a commit take effect and then reports an error, so the connection is wrapped by one that does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, cast

import apsw
import pytest

from holdfast.errors import CommitUnknown, HeadConflict, StoreFailed
from holdfast.records import Parked
from holdfast.store import Store
from holdfast.store.sqlite.backend import SqliteBackend
from holdfast.testing import check

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.store.sqlite.files import Db
    from holdfast.store.sqlite.key import Seal

Fault = Literal["after", "before", "for good"]


class Faults:
    """What goes wrong next: an error after the commit, before it, or a store that can't be opened again either."""

    def __init__(self) -> None:
        self.armed: Fault | None = None
        self.openings_refused = 0

    def connect(self, real: Db) -> Db:
        if self.openings_refused:
            self.openings_refused -= 1
            real.close()
            raise apsw.IOError("the disk is gone")
        return cast("Db", FaultyDb(real, self))


class FaultyDb:
    """A connection whose next COMMIT can fail."""

    def __init__(self, real: Db, faults: Faults) -> None:
        self._real = real
        self._faults = faults

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def execute(self, statements: str, *bindings: Any) -> Any:
        fault = self._faults.armed
        if statements != "COMMIT" or fault is None:
            return self._real.execute(statements, *bindings)
        self._faults.armed = None
        if fault != "before":
            self._real.execute(statements)
        if fault == "for good":
            self._faults.openings_refused = 1
        raise apsw.IOError("disk I/O error")


class FaultyBackend(SqliteBackend):
    """The SQLite backend on such a connection."""

    faults: Faults

    def connect_writer(self) -> tuple[Db, Seal]:
        connection, seal = super().connect_writer()
        return self.faults.connect(connection), seal


async def _open(path: Path) -> tuple[Store, Faults]:
    FaultyBackend.faults = Faults()
    return Store(await FaultyBackend.open(path)), FaultyBackend.faults


@pytest.mark.parametrize("records", [1, 3])
async def test_a_commit_that_took_effect_is_acknowledged_although_it_reported_an_error(
    tmp_path: Path, records: int
) -> None:
    store, faults = await _open(tmp_path / "store.db")
    async with store:
        await store.open_journal("j")
        lease = await store.claim("j")
        faults.armed = "after"
        added = [Parked(at=1, run="r")] * records
        assert await store.append(lease, added, head=1) == 1 + records
        assert len(await store.read("j")) == 1 + records
        assert await store.append(lease, added, head=1 + records) == 1 + 2 * records
        assert await check(store) == []


async def test_a_commit_without_records_that_took_effect_is_acknowledged_too(tmp_path: Path) -> None:
    store, faults = await _open(tmp_path / "store.db")
    async with store:
        await store.open_journal("j")
        faults.armed = "after"
        receipt = await store.accept("j", "hello", key="k")
        assert receipt.fresh
        assert not (await store.accept("j", "hello", key="k")).fresh
        assert len(await store.pending("j")) == 1


@pytest.mark.parametrize("command", ["append", "accept"])
async def test_a_commit_that_did_not_take_effect_is_refused_and_nothing_is_there(tmp_path: Path, command: str) -> None:
    store, faults = await _open(tmp_path / "store.db")
    async with store:
        await store.open_journal("j")
        lease = await store.claim("j")
        faults.armed = "before"
        appended = store.append(lease, [Parked(at=1, run="r")], head=1) if command == "append" else None
        attempt = appended or store.accept("j", "hello", key="k")
        with pytest.raises(StoreFailed, match="nothing was written"):
            await attempt
        assert len(await store.read("j")) == 1
        assert await store.pending("j") == []
        assert await store.append(lease, [Parked(at=1, run="r")], head=1) == 2


async def test_when_the_truth_can_not_be_established_the_caller_is_told_so_and_the_store_comes_back(
    tmp_path: Path,
) -> None:
    store, faults = await _open(tmp_path / "store.db")
    async with store:
        await store.open_journal("j")
        lease = await store.claim("j")
        faults.armed = "for good"
        with pytest.raises(CommitUnknown, match="read the journal again"):
            await store.append(lease, [Parked(at=1, run="r")], head=1)
        # The disk is back. What the caller reads now is the truth; here the commit had taken effect.
        with pytest.raises(HeadConflict):
            await store.append(lease, [Parked(at=1, run="r")], head=1)
        assert len(await store.read("j")) == 2


async def test_a_refusal_in_the_same_transaction_stays_a_refusal(tmp_path: Path) -> None:
    store, faults = await _open(tmp_path / "store.db")
    async with store:
        await store.open_journal("j")
        lease = await store.claim("j")
        faults.armed = "before"
        good = store.append(lease, [Parked(at=1, run="r")], head=1)
        wrong = store.append(lease, [Parked(at=1, run="r")], head=7)
        with pytest.raises(StoreFailed):
            await good
        with pytest.raises((HeadConflict, StoreFailed)):
            await wrong
