"""Forgetting processes that are over. Each goes in one commit, and leaves a tombstone: its id is never used again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.crashpoints import crash_point
from holdfast.errors import BlobCorrupt, JournalMissing, JournalQuarantined, RecordUnreadable
from holdfast.errors.journals import JournalCorrupt, JournalInUse
from holdfast.processes.ids import CALL, ROLE, id_of, journal_of
from holdfast.processes.pruning import TOLD, KeptProcess, PrunedProcess, PruneReport, why_kept
from holdfast.processes.state import decode_registration
from holdfast.records import Done
from holdfast.runtime.process_journal import read_process
from holdfast.runtime.spending import spend_of
from holdfast.store.spending.fold import by_day

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from holdfast.processes.state import ProcessState
    from holdfast.store import Journal, Spend, Store

_OVER = ("completed", "failed", "cancelled")
_DAMAGED = (BlobCorrupt, JournalCorrupt, JournalQuarantined, RecordUnreadable, ValueError)
"""What one process can't be understood with; the errors of msgspec are ValueErrors."""


class Pruner:
    """One pruning of the processes of a store."""

    def __init__(self, store: Store, before: int, name: str | None, *, dry_run: bool) -> None:
        self._store = store
        self._before = before
        self._name = name
        self._dry_run = dry_run
        self._pruned: list[PrunedProcess] = []
        self._kept: list[KeptProcess] = []
        self._counts = [0, 0]

    async def run(self, limit: int | None = None) -> PruneReport:
        """Prune all that is old enough, or so many."""
        async for line in self._old():
            if limit is not None and self._counts[0] >= limit:
                break
            try:
                reason = await self._see_to(line)
            except JournalInUse as error:
                reason = error.reason
            except JournalMissing:  # somebody else was quicker
                continue
            except _DAMAGED as error:  # it is kept, and the others go all the same
                reason = str(error)
            if reason is not None:
                self._counts[1] += 1
                if len(self._kept) < TOLD:
                    self._kept.append(KeptProcess(id_of(line.id), line.agent, reason))
        pruned, kept = self._counts
        return PruneReport(pruned, kept, self._dry_run, tuple(self._pruned), tuple(self._kept))

    async def _old(self) -> AsyncGenerator[Journal]:
        """Processes that are over and have not changed since; parents come before the children that ended earlier."""
        for status in _OVER:
            last: Journal | None = None
            while page := await self._store.journals(
                role=ROLE,
                agent=self._name,
                status=status,
                before=last,
                changed_before=self._before,
                limit=self._store.limits.page,
            ):
                for line in page:
                    yield line
                last = page[-1]

    async def _see_to(self, line: Journal) -> str | None:
        """Why it is kept; None when it was pruned."""
        first = await self._store.input(line.id, 1)
        parent = None if first is None or first.key != CALL else decode_registration(first.body).parent
        if parent is not None and (await self._statuses([parent])).get(parent) in {"running", "waiting", "idle"}:
            return f"{id_of(parent)} started it, is under way, and may ask for it"
        state = await read_process(self._store, line.id)
        reason = why_kept(state, await self._statuses([journal_of(id) for id in state.children]))
        if reason is not None:
            return reason
        if not self._dry_run:
            spent = await self._spent(state)
            crash_point("process.before_prune")
            await self._store.prune_journal(line.id, head=state.head, detail=state.status, key=CALL, spent=spent)
            crash_point("process.after_prune")
        self._counts[0] += 1
        if len(self._pruned) < TOLD:
            self._pruned.append(PrunedProcess(state.id, state.name, state.status, state.ended))
        return None

    async def _statuses(self, journals: list[str]) -> dict[str, str]:
        """How these stand that are there."""
        found: dict[str, str] = {}
        for journal in journals:
            try:
                found[journal] = (await self._store.journal(journal)).status
            except JournalMissing:
                continue
        return found

    async def _spent(self, state: ProcessState) -> dict[int, Spend]:
        """What its records say was spent: it was counted, and stays so when they are gone."""
        bodies: dict[str, bytes | None] = {}
        for record in state.records:
            if not isinstance(record, Done) or record.blob is None:
                continue
            if record.ask is not None and record.ask.kind == "direct":
                bodies[record.blob.digest] = await self._store.blob(record.blob.digest)
        return by_day(state.records, spend_of, lambda blob: bodies.get(blob.digest))
