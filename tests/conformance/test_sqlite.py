"""The SQLite backend keeps the store contract."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
from tests.conformance import store_laws

from holdfast.store import Store
from holdfast.store.sqlite.backend import SqliteBackend
from holdfast.testing.conformance import Case, cases
from holdfast.testing.conformance.suite import cases_in

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from holdfast.clock import Clock
    from holdfast.store import Durability


class _SqliteStores:
    def __init__(self, path: Path, durability: Durability) -> None:
        self._path = path
        self._durability: Durability = durability

    @asynccontextmanager
    async def open(self, clock: Clock) -> AsyncGenerator[Store]:
        async with Store(await SqliteBackend.open(self._path, durability=self._durability, clock=clock)) as store:
            yield store


@pytest.mark.parametrize("case", [*cases(), *cases_in(store_laws)], ids=str)
async def test_the_sqlite_backend_keeps_the_contract(case: Case, tmp_path: Path) -> None:
    await case.run(_SqliteStores(tmp_path / "store.db", "power"))
