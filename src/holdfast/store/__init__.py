"""The store: journals, leases, inbox, waits, notifications, memory, rules, spending and blobs, and their backends."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from holdfast.store.attachments import StoredAttachment
from holdfast.store.client import Store
from holdfast.store.contract import (
    Durability,
    Entry,
    Input,
    Journal,
    Lease,
    Owner,
    Receipt,
    Settlement,
    StoreLimits,
    Wait,
    Work,
)
from holdfast.store.inbox import AdmissionWindow
from holdfast.store.memories import MemoryChange, MemoryEntry, MemoryKey, MemoryPage, MemoryScope
from holdfast.store.notifications import Notification, Notify
from holdfast.store.retention import Collected
from holdfast.store.spending import Spend
from holdfast.store.waits import StoredRule

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from holdfast.clock import Clock


__all__ = [
    "AdmissionWindow",
    "Collected",
    "Durability",
    "Entry",
    "Input",
    "Journal",
    "Lease",
    "MemoryChange",
    "MemoryEntry",
    "MemoryKey",
    "MemoryPage",
    "MemoryScope",
    "Notification",
    "Notify",
    "Owner",
    "Receipt",
    "Settlement",
    "Spend",
    "Store",
    "StoreLimits",
    "StoredAttachment",
    "StoredRule",
    "Wait",
    "Work",
    "open_store",
]


@asynccontextmanager
async def open_store(
    path: Path | str | None,
    *,
    durability: Durability = "power",
    clock: Clock | None = None,
    limits: StoreLimits | None = None,
) -> AsyncGenerator[Store]:
    """Open the store in the file at `path`, or create one; None gives a store in memory.

    With `durability="power"`, the default, acknowledged changes survive a power cut. With `"process"` they survive the
    end of the process, but the last moments may be lost when the machine goes down.
    """
    if path is None:
        from holdfast.store.sqlite.backend import MemoryBackend  # loads apsw only for an open store

        store = Store(MemoryBackend(clock=clock, limits=limits))
    else:
        from holdfast.store.sqlite.backend import SqliteBackend  # loads apsw only for an open store

        store = Store(await SqliteBackend.open(path, durability=durability, clock=clock, limits=limits))
    async with store:
        yield store


@asynccontextmanager
async def view_store(path: Path | str) -> AsyncGenerator[Store]:
    """Open the store at `path` to read it, also without write permission; changes no byte of it.

    A method that would write raises `StoreReadOnly`.
    """
    from holdfast.store.sqlite.backend import SqliteViewer  # loads apsw only for an open file

    async with Store(await SqliteViewer.open(path)) as store:
        yield store
