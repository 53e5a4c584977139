"""Small promises of a store, in memory and in a file."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.errors import HoldfastError, StoreBusy
from holdfast.store import Store, StoreLimits
from holdfast.store.sqlite.backend import MemoryBackend, MemoryDisk, SqliteBackend

if TYPE_CHECKING:
    from pathlib import Path


async def test_a_store_in_memory_bounds_the_bytes_in_its_queue() -> None:
    async with Store(MemoryBackend(limits=StoreLimits(queued_bytes=10))) as store:
        first = asyncio.ensure_future(store.put_blob(b"12345678"))
        await asyncio.sleep(0)
        with pytest.raises(StoreBusy, match="8 bytes wait for the writer"):
            await store.put_blob(b"abcdefgh")
        await first
        await store.put_blob(b"abcdefgh")


async def test_of_several_wrong_arguments_the_first_is_named() -> None:
    async with Store(MemoryBackend()) as store:
        put: Any = store.memory_put
        with pytest.raises(HoldfastError, match="value"):
            await put("notes", "key", b"5", expires=-1, expected=-1, by="")
        with pytest.raises(HoldfastError, match="expires"):
            await put("notes", "key", "x", expires=-1, expected=-1, by="")


async def test_a_store_in_memory_knows_of_others_on_its_disk() -> None:
    disk = MemoryDisk()
    async with Store(MemoryBackend(disk)) as first:
        assert not first.shared
        async with Store(MemoryBackend(disk)) as second:
            assert first.shared
            assert second.shared


async def test_a_store_in_a_file_knows_of_others_after_a_commit(tmp_path: Path) -> None:
    async with Store(await SqliteBackend.open(tmp_path / "store.db")) as first:
        await first.open_journal("a")
        assert not first.shared
        async with Store(await SqliteBackend.open(tmp_path / "store.db")) as second:
            await second.open_journal("b")
            await first.open_journal("c")
            assert first.shared
            assert second.shared
        await first.open_journal("d")
        assert not first.shared
