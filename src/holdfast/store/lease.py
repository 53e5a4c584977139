"""Holding the lease on a journal: claimed, renewed as long as somebody works on it, and given back whatever happens."""

from __future__ import annotations

import asyncio
import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from holdfast.clock import boot_id
from holdfast.errors import Fenced, HoldfastError, StoreError
from holdfast.eventloop import spawn
from holdfast.store.contract import Owner

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from holdfast.store.client import Store
    from holdfast.store.contract import Lease


_RENEWALS_PER_TERM: Final = 3


class LeaseHolder:
    """The lease on a journal, as long as a block runs. It is given back also when cancelled meanwhile.

    It is claimed at once, behind whatever was asked of the store before, so begin the block before anything is awaited.
    `seen` tells at the end up to which wake the holder has looked. `given` is a lease that was claimed before.
    """

    lease: Lease
    lost: asyncio.Future[HoldfastError]
    """Done with the reason when the lease can't be kept; never when it was given back."""

    def __init__(
        self,
        store: Store,
        journal: str,
        lease_ms: int,
        seen: Callable[[], int | None] | None = None,
        given: Lease | None = None,
    ) -> None:
        self._store = store
        self._seen = seen
        self._claim = None if given is not None else store.claim(journal, ttl_ms=lease_ms)
        self._loop = asyncio.get_running_loop()
        if given is not None:
            self.lease = given
        self._timer: asyncio.TimerHandle
        self._renewing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        if self._claim is not None:
            self.lease = await self._claimed(self._claim)
        self.lost = self._loop.create_future()
        self._renew_later()
        return self

    async def _claimed(self, claim: asyncio.Future[Lease]) -> Lease:
        try:
            return await asyncio.shield(claim)
        except asyncio.CancelledError:
            await asyncio.shield(_given_back(self._store, claim))
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._timer.cancel()
            if self._renewing is not None:
                self._renewing.cancel()
                with suppress(asyncio.CancelledError):
                    await self._renewing
        finally:
            with suppress(HoldfastError):  # lost meanwhile: there is nothing to give back
                seen = None if self._seen is None else self._seen()
                await self._store.release(self.lease, seen=seen)  # it is queued, also if nobody waits for it

    def _renew_later(self) -> None:
        self._timer = self._loop.call_later(self.lease.ttl_ms / 1000 / _RENEWALS_PER_TERM, self._renew_now)

    def _renew_now(self) -> None:
        self._renewing = spawn(self._renewed())

    async def _renewed(self) -> None:
        try:
            await self._store.renew(self.lease)
        except Fenced as error:
            if not self.lost.done():
                self.lost.set_result(error)
            return
        except StoreError:
            pass  # busy or full: the lease still runs, and nobody else can write either
        self._renew_later()


async def _given_back(store: Store, claim: asyncio.Future[Lease]) -> None:
    """Give back what was claimed for somebody who is gone."""
    with suppress(HoldfastError):  # refused: there is nothing to give back
        await store.release(await claim)


def current_owner(boot: str) -> Owner:
    """A new owner identity for one opening of a store by this process, under the clock that names this `boot`."""
    pid = os.getpid()
    stat = _stat(pid)
    return Owner(
        instance=secrets.token_hex(6),
        pid=pid,
        started=stat[1] if stat else 0,
        namespace=_pid_namespace(),
        boot=boot,
    )


def is_gone(owner: Owner | None) -> bool:
    """True only if that very process certainly does not run any more."""
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
    # The name in parentheses may hold anything, also spaces and parentheses: count from the last one.
    fields = text.rpartition(")")[2].split()
    return fields[0], int(fields[19])


def _pid_namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""
