"""The part of the door to a store that is about forgetting."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.bounds import check_int
from holdfast.errors import InvalidArgument
from holdfast.names import check_id
from holdfast.store.calls import Calls
from holdfast.store.pruning.contract import EmptyInputs, PruneJournal, RemoveWaits, TrimJournal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.store.contract import Lease
    from holdfast.store.pruning.contract import Tombstone
    from holdfast.store.spending.contract import Spend


class PruningCalls(Calls):
    """Pruning: what is over goes, and a tombstone stays, so that no id is ever used again."""

    async def prune_journal(
        self, journal: str, *, head: int, detail: str, key: str, spent: Mapping[int, Spend] | None = None
    ) -> Tombstone:
        """Remove a process that is over, with its records, inputs, waits and references; answers its tombstone.

        `head` is where it ended when it was looked at, `detail` what its end is called, `key` that of the input it
        began with, `spent` what its records say was spent, by day. `JournalInUse` says why it is kept. Blobs that
        nobody else refers to go with it, or with a later `collect_blobs` if they were put within the last hour.
        """
        check_id("journal id", journal)
        check_int("head", head)
        check_id("detail", detail)
        check_id("input key", key)
        return await self._submit(PruneJournal(journal, head, detail, key, tuple(sorted((spent or {}).items()))))

    async def trim_journal(self, lease: Lease, seq: int) -> int:
        """Remove the records of a journal up to `seq`; answers how many there were. The last one always stays."""
        check_int("record", seq)
        return await self._submit(TrimJournal(lease, seq))

    async def empty_inputs(self, lease: Lease, before: int, spare: Sequence[int] = ()) -> int:
        """Forget what was said in admitted inputs that came before `before`, but for those to `spare`.

        Their keys and digests stay: what was accepted once is never accepted again. Answers how many.
        """
        check_int("before", before)
        if isinstance(spare, str):
            raise InvalidArgument("spare", spare, "a list of numbers of inputs")
        return await self._submit(EmptyInputs(lease, before, tuple(check_int("input", number) for number in spare)))

    async def remove_waits(self, lease: Lease, prefix: str, before: int) -> int:
        """Remove waits whose names begin so, that are settled and were opened before `before`; answers how many."""
        check_id("prefix", f"{prefix}1")
        check_int("before", before)
        return await self._submit(RemoveWaits(lease, prefix, before))

    async def count_old(self, journal: str, before: int, spare: Sequence[int], prefix: str) -> tuple[int, int]:
        """How many inputs `empty_inputs` and how many waits `remove_waits` would forget."""
        check_id("journal id", journal)
        check_int("before", before)
        return await self._backend.read(lambda reader: reader.pruning.old(journal, before, tuple(spare), prefix))

    async def tombstone(self, journal: str) -> Tombstone | None:
        """What is left of a journal that was pruned; None when none of this id was."""
        check_id("journal id", journal)
        return await self._backend.read(lambda reader: reader.pruning.find(journal))

    async def tombstones(self, *, after: int = 0, role: str | None = None, limit: int | None = None) -> list[Tombstone]:
        """Journals that were pruned and whose last record stood above the position `after`, in that order."""
        check_int("cursor", after)
        if role is not None:
            check_id("role", role)
        page = self._page(limit)
        return await self._backend.read(lambda reader: reader.pruning.after(after, role, page))
