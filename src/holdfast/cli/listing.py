"""`holdfast ps`: which sessions run or wait, and who works on them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.cli.sessions import all_sessions, looking, wait_told
from holdfast.cli.tables import status_table, tell
from holdfast.cli.terminal import duration, one_line
from holdfast.cli.tree import Placed, arranged
from holdfast.errors import StoreError
from holdfast.policy.mandates import ROLE
from holdfast.turns.conversation import deadline_wait

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.cli.terminal import Terminal
    from holdfast.runtime.runtime import Runtime
    from holdfast.store import Journal, Store, Work

_HEADINGS: Final = ["SESSION", "AGENT", "STATUS", "RECORDS", "CHANGED", "BY"]
_TOTALS: Final = ["SESSION", "AGENT", "STATUS", "RECORDS", "TOKENS", "COST", "CHANGED", "BY"]
"""As a tree: what a session used stands with what those below it used."""
_WHOLE: Final = 24
"""Ids up to this length are shown whole."""
_ACTIVE: Final = frozenset(("running", "interrupted", "waiting", "queued", "quarantined"))


class Line(msgspec.Struct, frozen=True):
    """One session, as it stands."""

    id: str
    agent: str | None
    status: str
    """As in the journal; or `interrupted` (it ran, and nobody drives it), `queued` (nobody has begun), `quarantined`"""
    records: int
    created: int
    updated: int
    pid: int | None = None
    """The process that drives it."""
    waits: tuple[str, ...] = ()
    queued: int = 0
    """Inputs that wait for their turn."""
    parent: str | None = None
    """The session that it works for, where it is that of a sub-agent."""
    total_tokens: int | None = None
    """What it used, with its sub-agents on all levels. None: not counted, as only a tree does, or not readable."""
    total_cost: float | None = None
    """In US dollars; None where a price is not known."""
    metadata: dict[str, Any] = {}
    """What the application said about it."""


async def ps(path: Path, *, every: bool, as_json: bool, tree: bool = False) -> int:
    """List the sessions of a store, those that changed last first; as a tree, sub-agents below their parents."""
    async with looking(path) as runtime:
        lines = await read_lines(runtime.store, every=every)
        lines = [await _counted(runtime, line) for line in lines] if tree else lines
        now = runtime.store.clock.read().wall
    placed = arranged(lines) if tree else [Placed("", line) for line in lines]
    nothing = "no sessions" if every else "nothing runs or waits ('holdfast ps -a' lists all sessions)"
    tell(lines, lambda out: _rows(out, placed, now, totals=tree), nothing=nothing, as_json=as_json)
    return 0


async def _counted(runtime: Runtime, line: Line) -> Line:
    """The line, with what the session has used and those below it."""
    try:
        found = await runtime.children.whole(await runtime.store.journal(line.id))
    except StoreError:  # one that is damaged, here or below, must not hide the others
        return line
    return msgspec.structs.replace(line, total_tokens=found.total.total, total_cost=found.cost)


async def read_lines(store: Store, *, every: bool) -> list[Line]:
    """All sessions, or those that run or wait."""
    work = await _work(store)
    lines: list[Line] = []
    for line in await all_sessions(store):
        found = work.get(line.id)
        if every or found is not None or line.status in _ACTIVE or line.quarantine is not None:
            lines.append(await _line(store, line, found))
    return lines if every else [line for line in lines if line.status in _ACTIVE]


async def _work(store: Store) -> dict[str, Work]:
    found: dict[str, Work] = {}
    after = 0
    while page := await store.work(after):
        found |= {work.journal: work for work in page}
        after = page[-1].no
    return found


async def read_line(store: Store, line: Journal) -> Line:
    """One session, as it stands."""
    return await _line(store, line, (await _work(store)).get(line.id))


async def _line(store: Store, line: Journal, work: Work | None) -> Line:
    holder = None if work is None or work.holder is None or store.owner_gone(work.holder) else work.holder
    trusted = line.quarantine is None
    waits = await store.waits(line.id) if line.status == "waiting" and trusted else []
    queued = len(await store.pending(line.id)) if work is not None and trusted else 0
    return Line(
        id=line.id,
        agent=line.agent,
        status=standing(line, held=holder is not None, queued=queued),
        records=line.head,
        created=line.created,
        updated=line.updated,
        pid=None if holder is None else holder.pid,
        waits=tuple(
            wait.name
            for wait in waits
            if wait.state == "open" and wait.name != deadline_wait(wait.name.partition("/")[0])
        ),
        queued=queued,
        parent=line.session if line.role == ROLE else None,
        metadata=line.metadata,
    )


def standing(line: Journal, *, held: bool, queued: int) -> str:
    """How a session stands, in one word."""
    if line.quarantine is not None:
        return "quarantined"
    if line.status == "running":
        return "running" if held else "interrupted"
    if line.status == "waiting" or not queued:
        return line.status
    return "running" if held else "queued"


def _rows(out: Terminal, lines: list[Placed], now: int, *, totals: bool = False) -> list[str]:
    short = _short_ids([line.id for _, line in lines]) if out.live else {}
    rows = [
        [
            drawn + short.get(line.id, line.id),
            one_line(line.agent or "-", 24),
            line.status,
            f"{line.records:,}",
            *(_used(line) if totals else ()),
            f"{duration(max(now - line.updated, 0))} ago",
            _by(line),
        ]
        for drawn, line in lines
    ]
    return status_table(out, _TOTALS if totals else _HEADINGS, rows)


def _used(line: Line) -> tuple[str, str]:
    tokens = "-" if line.total_tokens is None else f"{line.total_tokens:,}"
    return tokens, "-" if line.total_cost is None else f"${line.total_cost:.4f}"


def _by(line: Line) -> str:
    parts = [] if line.pid is None else [f"pid {line.pid}"]
    if line.waits:
        parts.append(f"waits for {one_line(', '.join(map(wait_told, line.waits)), 80)}")
    if line.queued and line.status != "queued":
        parts.append(f"{line.queued} queued")
    return ", ".join(parts) or "-"


def _short_ids(ids: list[str]) -> dict[str, str]:
    """Long ids, cut to where they can still be told apart."""
    found: dict[str, str] = {}
    for id in ids:
        length = _WHOLE
        while length < len(id) and sum(other.startswith(id[:length]) for other in ids) > 1:
            length += 1
        found[id] = id[:length]
    return found
