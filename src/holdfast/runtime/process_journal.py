"""The journal of a process: read as a whole, and written with an eye on what was intended and has no outcome."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.driving import LeasedJournal
from holdfast.processes.ids import CALL
from holdfast.processes.state import ProcessState, decode_registration
from holdfast.records import Cancelled, Done, Failed, Intended, Unknown

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from holdfast.records import Ask, Record
    from holdfast.store import Notify, Store
    from holdfast.store.contract import Head
    from holdfast.store.spending.contract import Spend


async def read_process(store: Store, journal: str) -> ProcessState:
    """A process as its journal tells it; `JournalMissing` when there is none."""
    state = ProcessState(journal)
    async for entry in store.read_all(journal):
        state.add(entry.record)
    if state.registration is None and (found := await store.input(journal, 1)) is not None and found.key == CALL:
        state.registration = decode_registration(found.body)
    return state


class ProcessJournal(LeasedJournal):
    """A journal that remembers which intents have no outcome yet."""

    open: dict[str, Ask]

    def begin(self, state: ProcessState) -> None:
        """Take in what is recorded."""
        self.open = {}
        self._note(state.records)

    def _note(self, added: Sequence[Record]) -> None:
        for record in added:
            match record:
                case Intended():
                    self.open[record.key] = record.ask
                case Done() | Failed() | Unknown() | Cancelled():
                    self.open.pop(record.key, None)
                    for below in [key for key in self.open if key.startswith(f"{record.key}/")]:
                        del self.open[below]
                case _:
                    pass

    def append(
        self,
        added: list[Record],
        *,
        patient: bool = False,
        notify: Sequence[Notify] = (),
        consume: Sequence[str] = (),
        spend: Spend | None = None,
    ) -> tuple[int, asyncio.Future[Head]]:
        self._note(added)
        return super().append(added, patient=patient, notify=notify, consume=consume, spend=spend)

    def left_over(self, run: str) -> list[Record]:
        """What settles those that have none when a run ends: what only waited is cancelled, of others nobody knows."""
        now = self.now()
        records: list[Record] = []
        for key, ask in list(self.open.items()):
            if not key.startswith(f"{run}/"):
                continue
            waits = ask.kind in {"await_event", "sleep"}
            records.append(Cancelled(at=now, key=key) if waits else Unknown(at=now, key=key))
        return records
