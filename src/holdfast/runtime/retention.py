"""Forgetting sessions: one by name with all that belongs to it, or those that ended long ago."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final

import msgspec

from holdfast import errors
from holdfast.names import check_id, check_int, check_name, is_session_id
from holdfast.policy.rules import milliseconds
from holdfast.runtime.budgets import spend_of_record
from holdfast.store.paths import memory_folder

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence
    from datetime import timedelta
    from pathlib import Path

    from holdfast.processes.service import Processes
    from holdfast.records import Status
    from holdfast.runtime.context import RuntimeContext
    from holdfast.store.contract import Journal
    from holdfast.store.retention import Forgotten
    from holdfast.triggers.service import Triggers


_log: Final = logging.getLogger("holdfast.retention")
PRUNE_INTERVAL: Final = 600.0
"""Pause between two rounds, in seconds."""
PRUNE_BATCH: Final = 500
"""Processes, and sessions, that one round prunes at most."""
NEXT_BATCH_DELAY: Final = 1.0
MAX_REPORTED: Final = 1_000
"""Most sessions listed in a report. Its counts cover all."""
_AT_REST: Final[tuple[Status, ...]] = ("idle", "completed", "failed", "cancelled")


class KeptSession(msgspec.Struct, frozen=True):
    """A session that was not pruned, and why."""

    id: str
    reason: str


class SessionPruneReport(msgspec.Struct, frozen=True):
    """The result of one round of pruning."""

    pruned: int
    kept: int
    dry_run: bool
    sessions: tuple[str, ...] = ()
    """The first of the pruned ones."""
    reasons: tuple[KeptSession, ...] = ()
    """The first of those that were kept."""


async def forget_session(
    context: RuntimeContext,
    session: str,
    *,
    forks: bool = False,
    memory: Sequence[str] | None = None,
    keep_hash: bool = False,
    dry_run: bool = False,
    idle_since: int | None = None,
) -> Forgotten:
    """Forget a session; see `Runtime.forget`. Its drives in this process have stopped when this returns."""
    check_id("session", session)
    store = context.store
    # Before anything is removed: a refusal, and the family with its scopes of memory.
    found = await store.forget_session(
        *(session, spend_of_record), forks=forks, memory=memory, idle_since=idle_since, dry_run=True
    )
    if dry_run:
        return found
    async with AsyncExitStack() as files:
        scopes = [id for id in found.journals if is_session_id(id)] if memory is None else memory
        if store.path is not None and scopes:
            await _erase_files(files, context, store.path, scopes, stored=found.memories > 0)
        forgotten = await store.forget_session(
            *(session, spend_of_record), forks=forks, memory=memory, keep_hash=keep_hash, idle_since=idle_since
        )
    for journal in forgotten.journals:
        gone = errors.JournalMissing(journal)
        if context.engine is not None:
            await context.engine.drop(journal, gone)
        context.children.drop(journal)
        context.changes.ended(journal)
    _log.info("a session was forgotten: %d journals, %d records", len(forgotten.journals), forgotten.records)
    return forgotten


async def _erase_files(
    files: AsyncExitStack, context: RuntimeContext, store: Path, scopes: Sequence[str], *, stored: bool
) -> None:
    """Remove the mirrored files of these scopes. No mirror writes them again before `files` is closed."""
    folder = memory_folder(store)
    # The mirror of this runtime may be about to make the folder.
    if not (stored and context.memories.mirrored) and not await asyncio.to_thread(folder.exists):
        return
    from holdfast.memory.mirror import without_scopes  # most stores have no memory

    named: list[str] = []
    for scope in scopes:
        try:
            named.append(check_name("memory scope", scope))
        except errors.InvalidId:
            continue  # the id of a session that can't be a scope
    await files.enter_async_context(without_scopes(context.store, folder, named))


async def prune_sessions(
    context: RuntimeContext, older_than: timedelta | float, *, dry_run: bool = False, limit: int | None = None
) -> SessionPruneReport:
    """Forget old sessions; see `Runtime.prune_sessions`."""
    if limit is not None:
        check_int("limit", limit, least=1)
    before = context.store.clock.read().wall - milliseconds(older_than)
    pruned: list[str] = []
    kept: list[KeptSession] = []
    counts = {True: 0, False: 0}
    async for line in _sessions_at_rest(context, before):
        if limit is not None and counts[True] >= limit:
            break
        reason = None
        try:
            await forget_session(context, line.id, memory=(), idle_since=before, dry_run=dry_run)
        except errors.JournalMissing:  # another process was quicker
            continue
        except (errors.JournalInUse, errors.ForgetRefused, errors.JournalQuarantined) as error:
            reason = str(error)
        counts[reason is None] += 1
        if reason is None and len(pruned) < MAX_REPORTED:
            pruned.append(line.id)
        elif reason is not None and len(kept) < MAX_REPORTED:
            kept.append(KeptSession(line.id, reason))
    return SessionPruneReport(counts[True], counts[False], dry_run, tuple(pruned), tuple(kept))


async def _sessions_at_rest(context: RuntimeContext, before: int) -> AsyncGenerator[Journal]:
    """Sessions unchanged since a time, without those of sub-agents."""
    for status in _AT_REST:
        last: Journal | None = None
        while page := await context.store.journals(
            kind="session", status=status, changed_before=before, before=last, limit=context.store.limits.page
        ):
            for line in page:
                if line.session is None:
                    yield line
            last = page[-1]


async def prune_regularly(
    context: RuntimeContext,
    processes: Processes,
    triggers: Triggers,
    seconds: float | None,
    session_seconds: float | None,
) -> None:
    """Prune older processes, trigger records and sessions while the runtime is open; None keeps all."""
    while True:
        more = False
        try:
            if seconds is not None:
                more = (await processes.prune(seconds, limit=PRUNE_BATCH)).pruned >= PRUNE_BATCH
                await triggers.prune(older_than=seconds)
            if session_seconds is not None:
                report = await prune_sessions(context, session_seconds, limit=PRUNE_BATCH)
                more = more or report.pruned >= PRUNE_BATCH
        except errors.StoreClosed:
            return
        except Exception as error:  # the next round tries again
            _log.warning("pruning failed, the next round tries again: %s", error)
        await asyncio.sleep(NEXT_BATCH_DELAY if more else PRUNE_INTERVAL)
