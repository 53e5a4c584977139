"""Leases: `LeaseHolder` holds one while a journal is driven, `Owner` identifies its process."""

from __future__ import annotations

import asyncio
import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from holdfast.clock import boot_id
from holdfast.errors import Fenced, HoldfastError, JournalMissing, StoreError
from holdfast.eventloop import spawn, upkeep_context
from holdfast.store.contract import Lease, Owner

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.store.client import Store


_RENEWALS_PER_TERM: Final = 3


class LeaseHolder:
    """Holds the lease of a journal while a block runs: claims, renews and releases it, also after a cancellation.

    The constructor queues the claim, after all earlier commands to the store. `seen` gives the number of handled wakes
    at the end. `claimed` is a lease that the caller already has.
    """

    lease: Lease
    lost: asyncio.Future[HoldfastError]
    """Gets the reason if the lease is lost; never done after a release."""

    def __init__(
        self,
        store: Store,
        journal: str,
        lease_ms: int,
        seen: Callable[[], int | None] | None = None,
        claimed: Lease | None = None,
    ) -> None:
        self._store = store
        self._seen = seen
        self._claim = None if claimed is not None else store.claim(journal, ttl_ms=lease_ms)
        self._loop = asyncio.get_running_loop()
        if claimed is not None:
            self.lease = claimed
        self._timer: asyncio.TimerHandle
        self._renewing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        if self._claim is not None:
            try:
                self.lease = await asyncio.shield(self._claim)
            except asyncio.CancelledError:
                await asyncio.shield(_release_claim(self._store, self._claim))
                raise
        self.lost = self._loop.create_future()
        self._renew_later()
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            self._timer.cancel()
            if self._renewing is not None:
                self._renewing.cancel()
                with suppress(asyncio.CancelledError):
                    await self._renewing
        finally:
            with suppress(HoldfastError):  # lost meanwhile: nothing to release
                seen = None if self._seen is None else self._seen()
                await self._store.release(self.lease, seen=seen)  # queued at once, also if this is cancelled

    def _renew_later(self) -> None:
        def renew() -> None:
            self._renewing = spawn(self._renew(), upkeep=True)

        pause = self.lease.ttl_ms / 1000 / _RENEWALS_PER_TERM
        self._timer = self._loop.call_later(pause, renew, context=upkeep_context())

    async def _renew(self) -> None:
        try:
            await self._store.renew(self.lease)
        except (Fenced, JournalMissing) as error:  # missing: it was forgotten
            if not self.lost.done():
                self.lost.set_result(error)
            return
        except StoreError:
            pass  # busy or full: the lease still runs, and no other process can write either
        self._renew_later()


async def _release_claim(store: Store, claim: asyncio.Future[Lease]) -> None:
    with suppress(HoldfastError):  # refused: nothing to release
        await store.release(await claim)


def current_owner(boot: str) -> Owner:
    """A new owner for one opening of a store by this process, in this `boot` of the machine."""
    pid = os.getpid()
    stat = _stat(pid)
    started = stat[1] if stat else 0
    return Owner(secrets.token_hex(6), pid, started, _pid_namespace(), boot)


def is_gone(owner: Owner | None) -> bool:
    """True only if the process of this owner has certainly ended."""
    if owner is None or not owner.started or not owner.boot:
        return False
    if owner.boot != boot_id() or owner.namespace != _pid_namespace():
        return False
    stat = _stat(owner.pid)
    if stat is None:
        return not Path(f"/proc/{owner.pid}").exists()
    state, started = stat
    return started != owner.started or state in "ZX"


def _stat(pid: int) -> tuple[str, int] | None:
    """State and start time (in ticks since boot) of a process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The name in parentheses may hold spaces and parentheses: count from the last one.
    fields = text.rpartition(")")[2].split()
    return fields[0], int(fields[19])


def _pid_namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""
