"""Reading the plan of a session from its journal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.hands.planning.plans import Plan, fold, read_change
from holdfast.records import Done, Opened
from holdfast.turns import keys

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from holdfast.hands.planning.plans import Change
    from holdfast.store import Store

CHANGING: Final = ("set_plan", "update_step")
"""The tools that change a plan."""


async def plan_of(store: Store, session: str, *, prefix: str = "") -> Plan:
    """The plan of a session, as it is recorded; `prefix` stands before the names of its tools, if anything does."""
    await store.mark()  # what was submitted before is there
    names = frozenset(f"{prefix}{name}" for name in CHANGING)
    return fold([change async for change in _changes(store, session, names, None)])


async def _changes(store: Store, journal: str, names: frozenset[str], upto: int | None) -> AsyncIterator[Change]:
    """All changes, those before a fork first."""
    async for entry in store.read_all(journal):
        if upto is not None and entry.seq > upto:
            return
        record = entry.record
        if isinstance(record, Opened) and record.parent is not None:
            async for change in _changes(store, record.parent, names, record.parent_seq):
                yield change
        if isinstance(record, Done) and _tool(record.key) in names:
            body = bytes(record.value) if record.blob is None else await store.blob(record.blob.digest)
            found = None if body is None else read_change(body)
            if found is not None:
                yield found


def _tool(key: str) -> str:
    """The tool that a key of a call names; empty for any other key."""
    parsed = keys.parse(key)
    if parsed is None or parsed.inner or parsed.name != "tools" or not parsed.call:
        return ""
    return key.rpartition("/")[2].partition(".")[2]
