"""Memory as readable files beside the store, and edits of these files as memory."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Final

from holdfast.errors import HoldfastError, InvalidNumber
from holdfast.memory.folder import Digests, Folder
from holdfast.memory.report import MirrorReport, Refused
from holdfast.memory.syncing import Sync, in_thread
from holdfast.memory.watching import FolderWatch
from holdfast.spawning import spawn

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from holdfast.store import Store

SETTLE: Final = 0.2
"""How long a change on the disk must stand before it counts, in seconds."""
POLL: Final = 0.5
"""How often the folder is looked at where the system does not tell of changes, in seconds."""
TICK: Final = 30.0
"""How often it is looked at where the system does."""

_ROUNDS: Final = 5
_SHARE: Final = 20
"""Comparing takes at most one part in so many of the time, unless it takes long."""
_LONGEST: Final = 5.0
"""How long nothing is compared after it took long, in seconds."""
_log: Final = logging.getLogger("holdfast.memory")


class Mirror:
    """Keeps the folder and the memory of a store the same, whoever changes either.

    `sync` compares once and is enough for a short process. `start` compares now and then whenever one of them changes,
    until `stop`. Several processes may mirror the same store. Nothing is ever lost: where both sides were changed, the
    entry keeps its name, and the file's text becomes an entry `<key>.conflict-<version>`.
    """

    def __init__(self, store: Store, folder: Path, *, settle: float = SETTLE, poll: float = POLL) -> None:
        for what, value in (("settle", settle), ("poll", poll)):
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 3600:  # pyright: ignore[reportUnnecessaryIsInstance]
                raise InvalidNumber(what, value, "seconds from 0 to 3,600 are wanted")
        self.folder = folder
        self.problem: HoldfastError | OSError | None = None
        """Why the last comparison failed, if it did; it is tried again."""
        self.report: MirrorReport | None = None
        """What the last comparison did."""
        self._store = store
        self._settle = settle
        self._poll = poll
        self._worked = 0.0
        """Seconds of work of the last comparison, without what it waited for others and for files to settle."""
        self._logged: frozenset[Refused] = frozenset()
        self._digests = Digests()
        self._one = asyncio.Lock()
        self._due = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._watch: FolderWatch | None = None

    async def sync(self) -> MirrorReport:
        """Compare until both sides are the same, a few times at the most; answers all that was done."""
        async with self._one:
            self._worked = 0.0
            reports: list[MirrorReport] = []
            while len(reports) < _ROUNDS and (not reports or reports[-1].again):
                reports.append(await self._sync_once())
            self.report = _together(reports)
            return self.report

    async def _sync_once(self) -> MirrorReport:
        opening = asyncio.ensure_future(
            asyncio.to_thread(Folder, self.folder, self._store.limits.memory_bytes, self._digests)
        )
        try:
            folder = await asyncio.shield(opening)
        except asyncio.CancelledError:
            await asyncio.wait([opening])
            if opening.exception() is None:
                opening.result().close()
            raise
        sync, begun = Sync(self._store, folder, self._settle), time.monotonic()
        try:
            return await sync.run()
        finally:
            self._worked += time.monotonic() - begun - sync.slept
            await in_thread(folder.close)

    # ---- while it runs ----

    def start(self) -> None:
        """Begin to follow changes on both sides."""
        if self._tasks:
            return
        self._watch = FolderWatch(self.folder, self.changed)
        self._due.set()
        self._tasks = [spawn(self._follow_store()), spawn(self._run())]

    async def stop(self) -> None:
        """Compare once more, then stop following. It does not raise: `problem` says what went wrong."""
        tasks, self._tasks = self._tasks, []
        if not tasks:
            return
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        await self._try()

    def changed(self) -> None:
        """Say that memory or the folder has changed: it will be compared soon."""
        self._due.set()

    async def _run(self) -> None:
        while True:
            self._due.clear()
            watched = await self._watch_all()
            await self._try()
            told = await self._watch_all()
            # Where nobody watched before, somebody may have written meanwhile.
            if told - watched or (self.report is not None and self.report.again):
                self._due.set()
            await asyncio.sleep(max(self._settle, min(self._worked * _SHARE, _LONGEST)))
            try:
                async with asyncio.timeout(TICK if told else self._poll):
                    await self._due.wait()
            except TimeoutError:
                pass

    async def _watch_all(self) -> frozenset[Path]:
        return frozenset() if self._watch is None else await in_thread(self._watch.refresh)

    async def _follow_store(self) -> None:
        version = self._store.version
        while True:
            version = await self._store.changed(version)
            self._due.set()
            await asyncio.sleep(self._settle)

    async def _try(self) -> None:
        try:
            report = await self.sync()
        except (HoldfastError, OSError) as error:
            if str(error) != str(self.problem):
                _log.warning("memory could not be compared with its files, it is tried again: %s", error)
            self.problem = error
        else:
            self.problem = None
            self._log_refused(report)

    def _log_refused(self, report: MirrorReport) -> None:
        """Log each file that is left alone, once for each reason."""
        refused = frozenset(report.refused)
        for one in sorted(refused - self._logged, key=lambda one: one.path):
            _log.warning("%s in %s is left alone: %s", one.path, self.folder, one.reason)
        self._logged = refused


def _together(reports: list[MirrorReport]) -> MirrorReport:
    """All that was done, and what is refused still."""
    return MirrorReport(
        written=_once(path for report in reports for path in report.written),
        erased=_once(path for report in reports for path in report.erased),
        taken=_once(path for report in reports for path in report.taken),
        dropped=_once(path for report in reports for path in report.dropped),
        conflicts=_once(path for report in reports for path in report.conflicts),
        refused=reports[-1].refused,
        again=reports[-1].again,
    )


def _once(paths: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(paths))
