"""The memory backend keeps the store contract."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
from tests.conformance import store_laws

from holdfast.errors import HoldfastError
from holdfast.records import Started
from holdfast.store import Store, StoreLimits
from holdfast.store.contract import Command
from holdfast.store.transaction import OpenJournal
from holdfast.testing import MemoryBackend, MemoryDisk
from holdfast.testing.conformance import Case, cases
from holdfast.testing.conformance.suite import cases_in

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from holdfast.clock import Clock


class _MemoryStores:
    def __init__(self) -> None:
        self._disk = MemoryDisk()

    @asynccontextmanager
    async def open(self, clock: Clock) -> AsyncGenerator[Store]:
        async with Store(MemoryBackend(self._disk, clock=clock)) as store:
            yield store


@pytest.mark.parametrize("case", [*cases(), *cases_in(store_laws)], ids=str)
async def test_the_memory_backend_keeps_the_contract(case: Case) -> None:
    await case.run(_MemoryStores())


async def test_a_page_of_a_memory_store_ends_at_the_limit_in_bytes() -> None:
    async with Store(MemoryBackend(limits=StoreLimits(page_bytes=1_000))) as store:
        await store.open_journal("j")
        lease = await store.claim("j")
        await store.append(lease, [Started(at=1, run="r" * 800) for _ in range(3)], head=1)
        assert [entry.seq for entry in await store.read("j")] == [1, 2]
        assert [entry.seq async for entry in store.read_all("j")] == [1, 2, 3, 4]


async def test_a_command_that_breaks_the_transaction_is_answered_alone() -> None:
    backend = MemoryBackend()
    async with Store(backend) as store:
        before = backend.submit(OpenJournal("before", "session", None))
        broken = backend.submit(Command[None]())  # no such command: a bug
        after = backend.submit(OpenJournal("after", "session", None))
        with pytest.raises(HoldfastError):
            await broken
        await before
        await after
        assert await store.heads(["before", "after"]) == {"before": 1, "after": 1}
