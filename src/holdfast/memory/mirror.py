"""The mirror of memory: readable files beside the store, whose edits become memory.

First one comparison of the folder with memory (read both, decide, take texts, write files), then the mirror, which
compares whenever one of them changes.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import time
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

import msgspec

from holdfast import errors
from holdfast.crashpoints import crash_point
from holdfast.errors import HoldfastError, MemoryConflict, MemoryCorrupt
from holdfast.eventloop import spawn
from holdfast.memory import decisions
from holdfast.memory.decisions import AUTHOR, EntryPlace, EntryState, FileDigests, MirrorBase, RefusedFile
from holdfast.memory.folder import FolderContents, KnownDigests, MirrorFolder, WriteOutcome, entry_path
from holdfast.memory.front_matter import FileContent, file_text, max_file_bytes
from holdfast.store.memories import TAINTED_FILES
from holdfast.toolkits.files.workspace import FileMissing

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence
    from pathlib import Path

    from holdfast.store import MemoryEntry, Store


T = TypeVar("T")
_BATCH_SIZE: Final = 64
_PATHS: Final = ("written", "erased", "taken", "dropped", "conflicts")
"""Fields of a report."""


async def run_to_end(work: Callable[..., T], *given: object) -> T:
    """Run `work` in a thread and wait for its end even if cancelled: the caller closes the files that it uses."""
    running = asyncio.ensure_future(asyncio.to_thread(work, *given))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        raise


class _SetAside(msgspec.Struct, frozen=True):
    """Rename the file to that of another key, then write the entry."""

    key: str


_Todo: TypeAlias = decisions.WriteFile | decisions.EraseFile | _SetAside


def _state_of(entry: MemoryEntry) -> EntryState:
    return EntryState(entry.version, decisions.digest_of(file_text(entry).encode()), entry.expires)


class MirrorSync:
    """One comparison, with the folder locked."""

    def __init__(self, store: Store, folder: MirrorFolder, settle: float) -> None:
        self._store = store
        self._folder = folder
        self._settle = settle
        self._entries: dict[EntryPlace, EntryState] = {}
        self._bases: dict[EntryPlace, MirrorBase] = {}
        self._noted: dict[EntryPlace, MirrorBase] | None = None
        self._damaged: set[str] = set()
        self._todo: dict[EntryPlace, _Todo] = {}
        self._paths: dict[str, list[str]] = {kind: [] for kind in _PATHS}
        self._refused: list[RefusedFile] = []
        self._again = False
        self.slept = 0.0
        """Seconds of waiting for files to settle."""

    async def run(self) -> decisions.MirrorReport:
        """Compare once. Files that change meanwhile wait for the next comparison; the report tells so."""
        self._noted = await run_to_end(self._folder.bases, self._store.id)
        self._bases = dict(self._noted or {})
        await run_to_end(self._folder.recover, self._bases)
        await self._read_entries()
        found, moving = await self._look()
        crash_point("mirror.looked")
        self._refused += found.refused
        self._again = bool(moving)
        decided, unclear = await run_to_end(self._sort_out, found, moving)
        decided += [(place, await self._decide(place, found.files.get(place))) for place in unclear]
        crash_point("mirror.decided")
        for begin in range(0, len(decided), _BATCH_SIZE):
            part = decided[begin : begin + _BATCH_SIZE]
            taking = (self._take_in(place, decision, found) for place, decision in part)
            # Wait for all before raising: the caller then closes the folder.
            for failed in await asyncio.gather(*taking, return_exceptions=True):
                if failed is not None:
                    raise failed
        crash_point("mirror.taken")
        await self._write_out()
        paths = {kind: tuple(found) for kind, found in self._paths.items()}
        refused = sorted(self._refused, key=lambda one: one.path)
        return decisions.MirrorReport(**paths, refused=tuple(refused), again=self._again)

    async def _read_entries(self) -> None:
        for scope in await self._store.memory_scopes():
            if scope.scope.startswith(TAINTED_FILES):
                continue  # marks of tainted files are internal
            after = ""
            try:
                while page := await self._store.memory_list(scope.scope, after=after):
                    await run_to_end(self._add_entries, page)
                    after = page[-1].key
            except MemoryCorrupt as error:
                self._damaged.add(scope.scope)
                self._refused.append(RefusedFile(entry_path((error.scope, error.key)), str(error)))

    def _add_entries(self, page: list[MemoryEntry]) -> None:
        self._entries.update({(entry.scope, entry.key): _state_of(entry) for entry in page})

    async def _look(self) -> tuple[FolderContents, set[EntryPlace]]:
        """The files in the folder, and the places that are changing now.

        Editors remove a file before they write it again, or write it in pieces. So a changed file is read twice, and
        counts only if it is still the same.
        """
        known = {**self._bases, **self._entries}
        first = await run_to_end(self._folder.look, known)
        mirrored = {place: base.mirrored.file for place, base in self._bases.items() if base.mirrored is not None}
        files = {place: file.file for place, file in first.files.items()}
        changed = {place for place in {*self._bases, *files} if mirrored.get(place) != files.get(place)}
        if not changed or not self._settle:
            return first, set()
        begun = time.monotonic()
        await asyncio.sleep(self._settle)
        self.slept += time.monotonic() - begun
        second = await run_to_end(self._folder.look, known)
        places = {*changed, *first.files, *second.files}
        return second, {place for place in places if first.files.get(place) != second.files.get(place)}

    def _sort_out(
        self, found: FolderContents, moving: set[EntryPlace]
    ) -> tuple[list[tuple[EntryPlace, decisions.MirrorDecision]], list[EntryPlace]]:
        """The clear decisions, and the places that need their history."""
        decided: list[tuple[EntryPlace, decisions.MirrorDecision]] = []
        unclear: list[EntryPlace] = []
        for place in sorted({*self._entries, *self._bases, *found.files}):
            if place in moving or place[0] in self._damaged or found.is_blocked(place):
                continue  # keep its base
            base, file, entry = self._bases.get(place), found.files.get(place), self._entries.get(place)
            # The history adds nothing if only one side exists, or the entry is unchanged.
            if base is None:
                clear = file is None or entry is None or file.value == entry.value
            else:
                same = entry is not None and base.mirrored is not None and base.mirrored.version == entry.version
                clear = same and base.writing is None
            if not clear:
                unclear.append(place)
                continue
            decision = decisions.decide(base, file, entry or EntryState())
            if decision != decisions.KeepBase(base):
                decided.append((place, decision))
        return decided, unclear

    async def _decide(self, place: EntryPlace, file: FileDigests | None) -> decisions.MirrorDecision:
        changes = await self._store.memory_history(*place)
        last = EntryState(changes[0].version if changes else 0)
        return decisions.decide(
            decisions.correct_base(self._bases.get(place), file, changes), file, self._entries.get(place, last)
        )

    # ---- into memory ----

    async def _take_in(self, place: EntryPlace, decision: decisions.MirrorDecision, found: FolderContents) -> None:
        try:
            match decision:
                case decisions.TakeFile(expected):
                    await self._take(place, expected, found.files[place])
                case decisions.DropEntry(expected):
                    await self._store.memory_delete(*place, expected=expected, by=AUTHOR)
                    crash_point("mirror.dropped")
                    del self._entries[place], self._bases[place]
                    self._paths["dropped"].append(entry_path(place))
                case decisions.KeepBoth():
                    await self._keep_both(place, decision, found.files[place])
                case decisions.KeepBase(base):
                    self._remember(place, base)
                case decisions.WriteFile() | decisions.EraseFile():
                    self._todo[place] = decision
        except MemoryConflict:
            self._again = True  # changed meanwhile
        except (errors.UsageError, errors.WorldError, errors.MemoryFull) as error:
            self._refuse(place, error)

    def _refuse(self, place: EntryPlace, error: HoldfastError) -> None:
        self._refused.append(RefusedFile(entry_path(place), str(error)))

    def _remember(self, place: EntryPlace, base: MirrorBase | None) -> None:
        if base is None:
            self._bases.pop(place, None)
        else:
            self._bases[place] = base

    async def _take(self, place: EntryPlace, expected: int, file: FileDigests) -> None:
        found = await self._content(place, file)
        if found is None:
            return
        known = self._entries.get(place)
        expires = None if known is None else known.expires
        entry = await self._put(place, found, expected, expires)
        crash_point("mirror.put")
        self._entries[place] = EntryState(entry.version, file.value, expires)
        self._bases[place] = MirrorBase(decisions.MirroredCopy(entry.version, file.value, file.file))
        self._paths["taken"].append(entry_path(place))

    async def _put(self, place: EntryPlace, found: FileContent, expected: int, expires: int | None) -> MemoryEntry:
        return await self._store.memory_put(
            *(*place, found.value),
            summary=found.summary,
            metadata=found.metadata,
            expected=expected,
            expires=expires,
            by=AUTHOR,
        )

    async def _content(self, place: EntryPlace, file: FileDigests) -> FileContent | None:
        """The entry in a file; None if it has changed since the decision."""
        try:
            seen, found = await run_to_end(self._folder.read, place)
        except FileMissing:
            seen, found = None, None
        if seen != file:
            self._again = True
            return None
        return found

    async def _keep_both(self, place: EntryPlace, conflict: decisions.KeepBoth, file: FileDigests) -> None:
        """Put the file's text into its own entry; if there is no room, into a file of its own."""
        found = await self._content(place, file)
        if found is None:
            return
        scope, key = place
        others = {other: entry.value for (known, other), entry in self._entries.items() if known == scope}
        same = (other for other in others if others[other] == file.value and decisions.is_conflict_key(other, key))
        taken = {other for other in others if others[other] != file.value}
        # The entry may have changed again before the file was written: keep the text once.
        beside = next(same, None) or decisions.conflict_key(key, conflict.version, file.value, taken)
        self._again = True  # the kept text needs a file or a report
        try:
            if beside not in others:
                kept = await self._put((scope, beside), found, 0, None)
                self._entries[scope, beside] = _state_of(kept)
        except (errors.MemoryFull, errors.PayloadTooLarge):
            self._todo[place] = _SetAside(beside)
            return
        crash_point("mirror.kept")
        self._todo[place] = decisions.WriteFile(conflict.over)
        self._paths["conflicts"].append(entry_path((scope, beside)))

    async def _write_out(self) -> None:
        before = dict(self._bases)
        for place, todo in self._todo.items():
            if not isinstance(todo, decisions.EraseFile):
                self._bases[place] = MirrorBase(before.get(place, MirrorBase()).mirrored, self._copy(place))
        await run_to_end(self._note)
        places = list(self._todo)
        for begin in range(0, len(places), _BATCH_SIZE):
            part = places[begin : begin + _BATCH_SIZE]
            values = {place: await self._value(place) for place in part}
            await run_to_end(self._carry_out_all, values, before)
        await run_to_end(self._note)

    async def _value(self, place: EntryPlace) -> str | None:
        """The text to write; None if the entry has changed since the decision."""
        if isinstance(self._todo[place], decisions.EraseFile):
            return None
        try:
            entry = await self._store.memory_get(*place)
        except MemoryCorrupt as error:
            self._refuse(place, error)
            return None
        return None if entry is None or entry.version != self._entries[place].version else file_text(entry)

    def _carry_out_all(self, values: dict[EntryPlace, str | None], before: dict[EntryPlace, MirrorBase]) -> None:
        for place, value in values.items():
            try:
                after = self._carry_out(place, value, before.get(place))
            except HoldfastError as error:
                self._refuse(place, error)  # unknown whether it was written, as the base says
            else:
                self._remember(place, after)

    def _carry_out(self, place: EntryPlace, value: str | None, before: MirrorBase | None) -> MirrorBase | None:
        """Change one file; returns its new base."""
        todo, aside = self._todo[place], self._aside(place, before)
        if isinstance(todo, decisions.EraseFile):
            if not self._folder.erase(place, todo.over, aside):
                self._again = True
            self._paths["erased"].append(entry_path(place))
            return None
        if value is None:
            self._again = True
            return before
        over = None
        if isinstance(todo, _SetAside):
            kept = self._folder.set_aside(place, todo.key)
            self._paths["conflicts"] += [] if kept is None else [kept]
        else:
            over = todo.over
        outcome = self._folder.write(place, value, over, aside)
        if outcome is not WriteOutcome.WRITTEN:
            self._again = True
        if outcome is WriteOutcome.IN_THE_WAY:
            return before
        self._paths["written"].append(entry_path(place))
        return MirrorBase(self._copy(place))

    def _aside(self, place: EntryPlace, before: MirrorBase | None) -> str:
        """The key for a text that a user writes during the write."""
        entry = self._entries.get(place)
        mirrored = None if before is None else before.mirrored
        version = entry.version if entry is not None else 0 if mirrored is None else mirrored.version
        return decisions.conflict_key(place[1], version, "", ())

    def _copy(self, place: EntryPlace) -> decisions.MirroredCopy:
        entry = self._entries[place]
        digest = entry.value or ""  # never None here
        return decisions.MirroredCopy(entry.version, digest, digest)

    def _note(self) -> None:
        if self._noted != self._bases:
            self._folder.note(self._store.id, self._bases)
            self._noted = dict(self._bases)


@asynccontextmanager
async def without_scopes(store: Store, folder: Path, scopes: Sequence[str]) -> AsyncGenerator[None]:
    """Remove the files of these scopes, and keep all mirrors of the folder out of it inside the block."""
    opened = await run_to_end(MirrorFolder, folder, max_file_bytes(store.limits), {})
    try:
        await run_to_end(opened.remove_scopes, store.id, frozenset(scopes))
        yield
    finally:
        await run_to_end(opened.close)


# ---- following changes ----

# Closed after writing, moved, created or removed; only folders, no links.
_MASK: Final = 0x8 | 0x40 | 0x80 | 0x100 | 0x200 | 0x01000000 | 0x02000000


class FolderWatch:
    """Calls `tell` soon after a change in the folder or in a subfolder."""

    def __init__(self, folder: Path, tell: Callable[[], None]) -> None:
        self._folder = folder
        self._tell = tell
        self._loop = asyncio.get_running_loop()
        self._libc = ctypes.CDLL(None)
        self._fd = -1
        try:
            self._fd = int(self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
            if self._fd >= 0:
                self._loop.add_reader(self._fd, self._on_event)
        except (AttributeError, OSError, NotImplementedError):  # unsupported by the system or the event loop
            self.close()

    def refresh(self) -> frozenset[Path]:
        """Watch all current folders; returns the watched ones, none if the system can't watch."""
        if self._fd < 0:
            return frozenset()
        try:
            folders = [self._folder, *(inner for inner in self._folder.iterdir() if not inner.name.startswith("."))]
        except OSError:
            return frozenset()
        # Also the watched ones: they may have been replaced under the same name.
        watch = self._libc.inotify_add_watch
        return frozenset(folder for folder in folders if watch(self._fd, os.fsencode(folder), _MASK) >= 0)

    def close(self) -> None:
        if self._fd >= 0:
            with suppress(NotImplementedError):
                self._loop.remove_reader(self._fd)
            os.close(self._fd)
        self._fd = -1

    def _on_event(self) -> None:
        with suppress(BlockingIOError):
            while os.read(self._fd, 65_536):
                pass
        self._tell()


SETTLE_SECONDS: Final = 0.2
"""A changed file counts once it has not changed for this long."""
POLL_SECONDS: Final = 0.5
"""Interval of comparisons without reports of changes."""
WATCHED_POLL_SECONDS: Final = 30.0
"""Interval of comparisons with reports of changes."""
_ROUNDS: Final = 5
_SHARE: Final = 20
"""Least ratio of pause to working time, up to the longest pause."""
_LONGEST_PAUSE: Final = 5.0
"""Longest pause after a slow comparison, in seconds."""
_log: Final = logging.getLogger("holdfast.memory")


class Mirror:
    """Keeps the folder and the memory of a store the same, whichever side changes.

    `sync` compares once, enough for a short process. `start` compares now and after each change, until `stop`. Several
    processes may mirror the same store. No text is lost: if both sides changed, the entry keeps its name, and the text
    of the file becomes an entry `<key>.conflict-<version>`.
    """

    def __init__(
        self, store: Store, folder: Path, *, settle: float = SETTLE_SECONDS, poll: float = POLL_SECONDS
    ) -> None:
        for what, value in (("settle", settle), ("poll", poll)):
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 3600:  # pyright: ignore[reportUnnecessaryIsInstance]
                raise errors.InvalidNumber(what, value, "seconds from 0 to 3,600 are wanted")
        self.folder = folder
        self.problem: HoldfastError | OSError | None = None
        """The error of the last comparison, if it failed; the mirror tries again."""
        self.report: decisions.MirrorReport | None = None
        self._store = store
        self._settle = settle
        self._poll = poll
        self._worked = 0.0
        """Working time of the last comparison in seconds, without waiting for others and for files to settle."""
        self._logged: frozenset[RefusedFile] = frozenset()
        self._digests: KnownDigests = {}
        self._one = asyncio.Lock()
        self._due = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._watch: FolderWatch | None = None

    async def sync(self) -> decisions.MirrorReport:
        """Compare until both sides are the same, at most a few times; returns all changes."""
        async with self._one:
            self._worked = 0.0
            reports: list[decisions.MirrorReport] = []
            while len(reports) < _ROUNDS and (not reports or reports[-1].again):
                reports.append(await self._sync_once())
            changes = {
                kind: tuple(dict.fromkeys(path for each in reports for path in getattr(each, kind))) for kind in _PATHS
            }
            self.report = msgspec.structs.replace(reports[-1], **changes)
            return self.report

    async def _sync_once(self) -> decisions.MirrorReport:
        opening = asyncio.ensure_future(
            asyncio.to_thread(MirrorFolder, self.folder, max_file_bytes(self._store.limits), self._digests)
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
        self._tasks = [spawn(each, upkeep=True) for each in (self._follow_store(), self._run())]

    async def stop(self) -> None:
        """Compare once more, then stop following. Does not raise: `problem` has the error."""
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
        """Report a change of memory or of the folder; the mirror compares soon."""
        self._due.set()

    async def _run(self) -> None:
        while True:
            self._due.clear()
            watched = await self._watch_all()
            await self._try()
            watched_now = await self._watch_all()
            # An unwatched folder may have changed meanwhile.
            if watched_now - watched or (self.report is not None and self.report.again):
                self._due.set()
            await asyncio.sleep(max(self._settle, min(self._worked * _SHARE, _LONGEST_PAUSE)))
            with suppress(TimeoutError):
                async with asyncio.timeout(WATCHED_POLL_SECONDS if watched_now else self._poll):
                    await self._due.wait()

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
