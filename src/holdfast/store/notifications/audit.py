"""What must always be true of notifications, checked over the raw rows."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from holdfast.store.notifications.decisions import OPEN

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from holdfast.store.contract import JournalRow, Reader
    from holdfast.store.notifications.contract import Notification


class Surroundings(NamedTuple):
    """What notifications must fit to: the journals, their inputs (and whether each waits), the runs that have ended."""

    rows: Iterable[JournalRow]
    inputs: Mapping[str, Mapping[int, bool]]
    ended: Mapping[str, set[str]]


def audit_notifications(reader: Reader, around: Surroundings) -> Iterator[tuple[str, str, str]]:
    """Every violated invariant: which, where, and what was found."""
    waiting: Counter[str] = Counter()
    last: dict[str, int] = {}
    stopped = {row.id: row.quarantine is not None for row in around.rows}
    for found, sound in reader.notifications.raw():
        where = f"{found.journal}/notification {found.id}"
        if not sound:
            yield "checksum", where, "the notification does not match its checksum"
            continue
        if found.no <= last.get(found.journal, 0):  # there are gaps where some were purged
            yield "notification", where, f"is number {found.no} of its journal, after {last.get(found.journal, 0)}"
        last[found.journal] = found.no
        if found.state in OPEN:
            waiting[found.journal] += 1
            if stopped.get(found.journal, True):
                what = "is quarantined" if found.journal in stopped else "is not there"
                yield "notification", where, f"is {found.state}, but its journal {what}"
        if found.state == "claimed":
            for detail in _unanswered(found, around):
                yield "notification", where, detail
    for row in around.rows:
        if row.notices != waiting[row.id]:
            detail = f"{row.notices} notifications are said to wait, but {waiting[row.id]} do"
            yield "notification", row.id, detail


def _unanswered(found: Notification, around: Surroundings) -> Iterator[str]:
    """What is claimed must be in an input that waits or a turn that has not ended: nobody else would free it."""
    waits = around.inputs.get(found.journal, {}).get(found.input or 0)
    if waits is None:
        yield f"is claimed by input {found.input}, which is not there"
    elif found.run is None and not waits:
        yield f"is claimed by input {found.input}, which was admitted, but by no run"
    elif found.run is not None and found.run in around.ended.get(found.journal, ()):
        yield f"is claimed by the run {found.run!r}, which has ended"
