"""Work that is left behind: by a process that is gone, and by a file that was damaged."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import apsw
import msgspec
import pytest

import holdfast as hf
from holdfast.records import Started
from holdfast.store import Store
from holdfast.store.audit import audit
from holdfast.store.sqlite.backend import SqliteBackend
from holdfast.testing import MemoryBackend, MemoryDisk

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path


@asynccontextmanager
async def _two_openings(path: Path | None) -> AsyncGenerator[tuple[Store, Store]]:
    """Two openings of one storage; the process of the first one is not there any more."""
    disk = MemoryDisk()
    backends = [MemoryBackend(disk) if path is None else await SqliteBackend.open(path) for _ in range(2)]
    # The same process id with another start time: a process that has ended, and whose number was given away again.
    backends[0].owner = msgspec.structs.replace(backends[0].owner, started=backends[0].owner.started + 1)
    async with Store(backends[0]) as gone, Store(backends[1]) as here:
        yield gone, here


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_the_work_of_a_process_that_is_gone_can_be_claimed_at_once(tmp_path: Path, kind: str) -> None:
    async with _two_openings(tmp_path / "store.db" if kind == "sqlite" else None) as (gone, here):
        await gone.open_journal("a")
        lease = await gone.claim("a", ttl_ms=600_000)
        await gone.append(lease, [Started(at=1, run="r")], head=1)
        (found,) = await here.work()
        assert found.holder is not None
        assert found.holder == lease.owner
        assert found.left_ms > 0
        assert here.owner_gone(found.holder)
        assert (await here.claim("a")).epoch == lease.epoch + 1


@pytest.mark.parametrize(
    ("damage", "rule"),
    [
        ("UPDATE journals SET wakes = 0 WHERE id = 'a'", "wakes"),
        ("UPDATE journals SET seen = 9 WHERE id = 'a'", "wakes"),
        ("UPDATE journals SET parent = NULL, parent_seq = 0 WHERE id = 'b'", "list"),
        ("UPDATE journals SET parent = 'a', parent_seq = 1 WHERE id = 'c'", "list"),
        ("UPDATE journals SET id = 'z' WHERE id = 'c'", "fork"),
        ("UPDATE journals SET role = 'task' WHERE id = 'c'", "list"),
        ("UPDATE journals SET session = 'a' WHERE id = 'c'", "list"),
        ("UPDATE journals SET notices = 1 WHERE id = 'c'", "notification"),
    ],
)
async def test_an_audit_names_rows_that_do_not_fit_their_records(tmp_path: Path, damage: str, rule: str) -> None:
    path = tmp_path / "store.db"
    async with hf.open_store(path) as store:
        await store.accept_into("a", "session", None, 1, key="k")
        await store.open_journal("c")
        await store.fork("b", "c", 1)
        assert await store.examine(audit) == []
    db: Any = apsw.Connection(str(path))
    db.execute(damage)
    db.close()
    async with hf.open_store(path) as store:
        assert rule in {violation.rule for violation in await store.examine(audit)}
