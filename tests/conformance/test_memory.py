"""The memory backend keeps the store contract."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from holdfast.store import Store
from holdfast.testing import MemoryBackend, MemoryDisk
from holdfast.testing.conformance import Case, cases

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


@pytest.mark.parametrize("case", cases(), ids=str)
async def test_the_memory_backend_keeps_the_contract(case: Case) -> None:
    await case.run(_MemoryStores())
