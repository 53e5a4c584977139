"""Memory as readable files beside the store, and edits of these files as memory."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from holdfast.errors import HoldfastError, InvalidNumber
from holdfast.eventloop import spawn
from holdfast.memory.decisions import MirrorReport, Refused
from holdfast.memory.folder import Digests, Folder
from holdfast.memory.sync import Sync, in_thread
from holdfast.store.paths import memory_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from holdfast.memory.handle import Memory
    from holdfast.store import Store


# A file was closed after writing, moved away or here, made or removed; only folders are watched, and no links followed.
_MASK: Final = 0x8 | 0x40 | 0x80 | 0x100 | 0x200 | 0x01000000 | 0x02000000


class FolderWatch:
    """Calls `tell` soon after something changed in the folder or in a folder below it."""

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
        """Watch all folders that are there now; answers which are watched, none where nobody will tell."""
        if self._libc is None or self._fd < 0:
            return frozenset()
        try:
            folders = [self._folder, *(inner for inner in self._folder.iterdir() if not inner.name.startswith("."))]
        except OSError:
            return frozenset()
        # Again for those that are watched already: they may have been made anew under the same name.
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


PATIENCE: Final = 1.0
"""How long the last comparison may take when a runtime is closed, in seconds."""


class Mirroring:
    """Gives out memory, and keeps its files beside the store; `path` is None where nothing is mirrored.

    Memory is imported when it is first used: most runtimes have none.
    """

    def __init__(self, store: Store, path: Path | str | None) -> None:
        self._store = store
        self._path = None if path is None else Path(path)
        self._mirror: Mirror | None = None

    def memory(self, scope: str, by: str | None = None) -> Memory:
        """The memory of a scope."""
        from holdfast.memory import Memory  # noqa: PLC0415

        return Memory(self._store, scope, by=by, changed=self._changed)

    async def begin(self) -> None:
        """Mirror what there is, and take in what was written into the files meanwhile."""
        if self._path is None:
            return
        if await asyncio.to_thread(memory_folder(self._path).exists) or await self._store.memory_scopes():
            self._start(self._path)

    def _start(self, path: Path) -> Mirror:
        from holdfast.memory import Mirror  # noqa: PLC0415

        if self._mirror is None:
            self._mirror = Mirror(self._store, memory_folder(path))
            self._mirror.start()
        return self._mirror

    def _changed(self) -> None:
        if self._path is not None:
            self._start(self._path).changed()

    async def stop(self) -> None:
        """Write what is left, and look no more."""
        if self._mirror is not None:
            with suppress(TimeoutError):  # another process has it: that one writes it, or whoever opens next
                async with asyncio.timeout(PATIENCE):
                    await self._mirror.stop()
