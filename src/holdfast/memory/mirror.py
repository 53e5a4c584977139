"""The mirror of memory: readable files beside the store, whose edits become memory."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from holdfast.errors import HoldfastError, InvalidNumber
from holdfast.eventloop import spawn
from holdfast.memory.folder import DigestCache, MirrorFolder
from holdfast.memory.sync import MirrorSync, run_to_end

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from holdfast.memory.decisions import MirrorReport, RefusedFile
    from holdfast.store import Store


# Closed after writing, moved away or here, created or removed; only folders, no links.
_MASK: Final = 0x8 | 0x40 | 0x80 | 0x100 | 0x200 | 0x01000000 | 0x02000000


class FolderWatch:
    """Calls `tell` soon after a change in the folder or in a folder below it."""

    def __init__(self, folder: Path, tell: Callable[[], None]) -> None:
        self._folder = folder
        self._tell = tell
        self._loop = asyncio.get_running_loop()
        self._libc: ctypes.CDLL | None = None
        self._fd = -1
        try:
            self._libc = ctypes.CDLL(None, use_errno=True)
            self._fd = int(self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
            if self._fd >= 0:
                self._loop.add_reader(self._fd, self._on_event)
        except (AttributeError, OSError, NotImplementedError):  # not on this system, or not in this event loop
            self.close()

    def refresh(self) -> frozenset[Path]:
        """Watch all current folders; returns the watched ones, none if the system can't watch."""
        if self._libc is None or self._fd < 0:
            return frozenset()
        try:
            folders = [self._folder, *(inner for inner in self._folder.iterdir() if not inner.name.startswith("."))]
        except OSError:
            return frozenset()
        # Also the watched ones: they may have been replaced under the same name.
        watch = self._libc.inotify_add_watch
        return frozenset(folder for folder in folders if watch(self._fd, os.fsencode(folder), _MASK) >= 0)

    def close(self) -> None:
        """Stop watching."""
        if self._fd >= 0:
            with suppress(NotImplementedError):
                self._loop.remove_reader(self._fd)
            os.close(self._fd)
        self._fd = -1

    def _on_event(self) -> None:
        try:
            while os.read(self._fd, 65_536):
                pass
        except BlockingIOError:
            pass
        self._tell()


SETTLE_SECONDS: Final = 0.2
"""A change on the disk counts once the file has not changed for so long."""
POLL_SECONDS: Final = 0.5
"""Interval of comparisons if the system does not report changes."""
WATCHED_POLL_SECONDS: Final = 30.0
"""Interval of comparisons if the system reports changes."""
_ROUNDS: Final = 5
_SHARE: Final = 20
"""Comparing takes at most one part in so many of the time, unless it takes long."""
_LONGEST_PAUSE: Final = 5.0
"""Longest pause after a slow comparison, in seconds."""
_log: Final = logging.getLogger("holdfast.memory")


class Mirror:
    """Keeps the folder and the memory of a store the same, whichever side changes.

    `sync` compares once and is enough for a short process. `start` compares now and after each change, until `stop`.
    Several processes may mirror the same store. No text is lost: if both sides changed, the entry keeps its name, and
    the text of the file becomes an entry `<key>.conflict-<version>`.
    """

    def __init__(
        self, store: Store, folder: Path, *, settle: float = SETTLE_SECONDS, poll: float = POLL_SECONDS
    ) -> None:
        for what, value in (("settle", settle), ("poll", poll)):
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 3600:  # pyright: ignore[reportUnnecessaryIsInstance]
                raise InvalidNumber(what, value, "seconds from 0 to 3,600 are wanted")
        self.folder = folder
        self.problem: HoldfastError | OSError | None = None
        """The error of the last comparison, if it failed; the mirror tries again."""
        self.report: MirrorReport | None = None
        """The report of the last comparison."""
        self._store = store
        self._settle = settle
        self._poll = poll
        self._worked = 0.0
        """Working time of the last comparison in seconds, without waiting for others and for files to settle."""
        self._logged: frozenset[RefusedFile] = frozenset()
        self._digests = DigestCache()
        self._one = asyncio.Lock()
        self._due = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._watch: FolderWatch | None = None

    async def sync(self) -> MirrorReport:
        """Compare until both sides are the same, at most a few times; returns everything that was done."""
        async with self._one:
            self._worked = 0.0
            reports: list[MirrorReport] = []
            while len(reports) < _ROUNDS and (not reports or reports[-1].again):
                reports.append(await self._sync_once())
            self.report = _merge_reports(reports)
            return self.report

    async def _sync_once(self) -> MirrorReport:
        opening = asyncio.ensure_future(
            asyncio.to_thread(MirrorFolder, self.folder, self._store.limits.memory_bytes, self._digests)
        )
        try:
            folder = await asyncio.shield(opening)
        except asyncio.CancelledError:
            await asyncio.wait([opening])
            if opening.exception() is None:
                opening.result().close()
            raise
        sync, begun = MirrorSync(self._store, folder, self._settle), time.monotonic()
        try:
            return await sync.run()
        finally:
            self._worked += time.monotonic() - begun - sync.slept
            await run_to_end(folder.close)

    def start(self) -> None:
        """Begin to follow changes on both sides."""
        if self._tasks:
            return
        self._watch = FolderWatch(self.folder, self.changed)
        self._due.set()
        self._tasks = [spawn(self._follow_store()), spawn(self._run())]

    async def stop(self) -> None:
        """Compare once more, then stop following. It does not raise: `problem` has the error."""
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
        """Report a change of memory or of the folder: the mirror compares soon."""
        self._due.set()

    async def _run(self) -> None:
        while True:
            self._due.clear()
            watched = await self._watch_all()
            await self._try()
            watched_now = await self._watch_all()
            # A folder that was not watched before may have changed meanwhile.
            if watched_now - watched or (self.report is not None and self.report.again):
                self._due.set()
            await asyncio.sleep(max(self._settle, min(self._worked * _SHARE, _LONGEST_PAUSE)))
            try:
                async with asyncio.timeout(WATCHED_POLL_SECONDS if watched_now else self._poll):
                    await self._due.wait()
            except TimeoutError:
                pass

    async def _watch_all(self) -> frozenset[Path]:
        return frozenset() if self._watch is None else await run_to_end(self._watch.refresh)

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
            refused = frozenset(report.refused)
            for one in sorted(refused - self._logged, key=lambda one: one.path):  # once for each reason
                _log.warning("%s in %s is left alone: %s", one.path, self.folder, one.reason)
            self._logged = refused


def _merge_reports(reports: list[MirrorReport]) -> MirrorReport:
    """Everything that was done, and the files that are still refused."""
    kinds = ("written", "erased", "taken", "dropped", "conflicts")
    paths = {kind: tuple(dict.fromkeys(path for report in reports for path in getattr(report, kind))) for kind in kinds}
    return replace(reports[-1], **paths)
