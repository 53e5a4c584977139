"""One comparison of the folder with memory: look at both, decide, take in, write out."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from holdfast.crashpoints import crash_point
from holdfast.errors import (
    HoldfastError,
    MemoryConflict,
    MemoryCorrupt,
    MemoryFull,
    PayloadTooLarge,
    UsageError,
    WorldError,
)
from holdfast.memory.decisions import (
    AUTHOR,
    Absent,
    Base,
    Conflict,
    Copy,
    Drop,
    Erase,
    Keep,
    MirrorReport,
    Present,
    Refused,
    Take,
    Write,
    decide,
    digest_of,
    informed,
)
from holdfast.memory.folder import Folder, Found, Outcome, path_of
from holdfast.memory.names import conflict_key, is_conflict_key
from holdfast.store.memories import TAINTED_FILES
from holdfast.toolkits.files.workspace import FileMissing

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.memory.decisions import Decision, Place, Seen
    from holdfast.store import MemoryEntry, Store


T = TypeVar("T")
_AT_ONCE: Final = 64


async def in_thread(work: Callable[..., T], *given: object) -> T:
    """Call it in a thread, and do not leave before it has ended: it works on what the caller closes."""
    running = asyncio.ensure_future(asyncio.to_thread(work, *given))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        raise


@dataclass(slots=True)
class _Done:
    written: list[str] = field(default_factory=list[str])
    erased: list[str] = field(default_factory=list[str])
    taken: list[str] = field(default_factory=list[str])
    dropped: list[str] = field(default_factory=list[str])
    conflicts: list[str] = field(default_factory=list[str])
    refused: list[Refused] = field(default_factory=list[Refused])
    again: bool = False

    def report(self) -> MirrorReport:
        return MirrorReport(
            written=tuple(self.written),
            erased=tuple(self.erased),
            taken=tuple(self.taken),
            dropped=tuple(self.dropped),
            conflicts=tuple(self.conflicts),
            refused=tuple(sorted(self.refused, key=lambda refused: refused.path)),
            again=self.again,
        )


@dataclass(frozen=True, slots=True)
class _Held:
    """An entry, without its text: all texts of a store may be more than fits into memory."""

    version: int
    value: str
    """Its digest."""
    expires: int | None

    @classmethod
    def of(cls, entry: MemoryEntry) -> _Held:
        return cls(entry.version, digest_of(entry.value.encode()), entry.expires)


@dataclass(frozen=True, slots=True)
class _SetAside:
    """The file gets the name of another key, then the entry is written."""

    key: str


_Todo: TypeAlias = Write | Erase | _SetAside


class Sync:
    """One comparison, with the folder locked."""

    def __init__(self, store: Store, folder: Folder, settle: float) -> None:
        self._store = store
        self._folder = folder
        self._settle = settle
        self._entries: dict[Place, _Held] = {}
        self._bases: dict[Place, Base] = {}
        self._noted: dict[Place, Base] | None = None
        self._damaged: set[str] = set()
        self._todo: dict[Place, _Todo] = {}
        self._done = _Done()
        self.slept = 0.0
        """Seconds that went by while it waited for files to settle."""

    async def run(self) -> MirrorReport:
        """Compare once. What moves meanwhile is left to the next time, and the report says so."""
        self._noted = await in_thread(self._folder.bases, self._store.id)
        self._bases = dict(self._noted or {})
        await in_thread(self._folder.recover, self._bases)
        await self._read_entries()
        found, moving = await self._look()
        crash_point("mirror.looked")
        self._done.refused += found.refused
        self._done.again = bool(moving)
        decided, unclear = await in_thread(self._sort_out, found, moving)
        decided += [(place, await self._decide(place, found.files.get(place))) for place in unclear]
        crash_point("mirror.decided")
        for begin in range(0, len(decided), _AT_ONCE):
            part = decided[begin : begin + _AT_ONCE]
            taking = (self._take_in(place, decision, found) for place, decision in part)
            # All have ended before the first error is raised: the folder is closed then.
            for failed in await asyncio.gather(*taking, return_exceptions=True):
                if failed is not None:
                    raise failed
        crash_point("mirror.taken")
        await self._write_out()
        return self._done.report()

    def _is_left(self, place: Place, found: Found) -> bool:
        return place[0] in self._damaged or found.is_blocked(place)

    # ---- looking ----

    async def _read_entries(self) -> None:
        for scope in await self._store.memory_scopes():
            if scope.scope.startswith(TAINTED_FILES):
                continue  # marks of tainted files are for the runtime alone
            after = ""
            try:
                while page := await self._store.memory_list(scope.scope, after=after):
                    await in_thread(self._hold, page)
                    after = page[-1].key
            except MemoryCorrupt as error:
                self._damaged.add(scope.scope)
                self._done.refused.append(Refused(path_of((error.scope, error.key)), str(error)))

    def _hold(self, page: list[MemoryEntry]) -> None:
        self._entries.update({(entry.scope, entry.key): _Held.of(entry) for entry in page})

    async def _look(self) -> tuple[Found, set[Place]]:
        """What is in the folder, and what is being changed at this moment.

        Editors remove a file before they write it anew, or write it in pieces: what differs from what we know is looked
        at a second time, and counts only if it is still the same.
        """
        known = {**self._bases, **self._entries}
        first = await in_thread(self._folder.look, known)
        changed = {place for place in {*self._bases, *first.files} if self._differs(place, first.files.get(place))}
        if not changed or not self._settle:
            return first, set()
        begun = time.monotonic()
        await asyncio.sleep(self._settle)
        self.slept += time.monotonic() - begun
        second = await in_thread(self._folder.look, known)
        places = {*changed, *first.files, *second.files}
        return second, {place for place in places if first.files.get(place) != second.files.get(place)}

    def _differs(self, place: Place, file: Seen | None) -> bool:
        base = self._bases.get(place)
        mirrored = None if base is None else base.mirrored
        return (None if mirrored is None else mirrored.file) != (None if file is None else file.file)

    def _sort_out(self, found: Found, moving: set[Place]) -> tuple[list[tuple[Place, Decision]], list[Place]]:
        """What is to be done, as far as it is clear, and what the history has to be asked about."""
        decided: list[tuple[Place, Decision]] = []
        unclear: list[Place] = []
        for place in sorted({*self._entries, *self._bases, *found.files}):
            if place in moving or self._is_left(place, found):
                continue  # what is known of it stays known
            base, file, entry = self._bases.get(place), found.files.get(place), self._present(place)
            if not _says_all(base, file, entry):
                unclear.append(place)
                continue
            decision = decide(base, file, entry or Absent())
            if decision != Keep(base):
                decided.append((place, decision))
        return decided, unclear

    async def _decide(self, place: Place, file: Seen | None) -> Decision:
        base, entry = self._bases.get(place), self._present(place)
        changes = await self._store.memory_history(*place)
        last = Absent(changes[0].version if changes else 0)
        return decide(informed(base, file, changes), file, entry or last)

    def _present(self, place: Place) -> Present | None:
        entry = self._entries.get(place)
        return None if entry is None else Present(entry.version, entry.value)

    # ---- into memory ----

    async def _take_in(self, place: Place, decision: Decision, found: Found) -> None:
        try:
            match decision:
                case Take(expected):
                    await self._take(place, expected, found.files[place])
                case Drop(expected):
                    await self._drop(place, expected)
                case Conflict():
                    await self._keep_both(place, decision, found.files[place])
                case Keep(base):
                    self._remember(place, base)
                case Write() | Erase():
                    self._todo[place] = decision
        except MemoryConflict:
            self._done.again = True  # somebody changed it meanwhile
        except (UsageError, WorldError, MemoryFull) as error:
            self._refuse(place, error)

    def _refuse(self, place: Place, error: HoldfastError) -> None:
        self._done.refused.append(Refused(path_of(place), str(error)))

    def _remember(self, place: Place, base: Base | None) -> None:
        if base is None:
            self._bases.pop(place, None)
        else:
            self._bases[place] = base

    async def _drop(self, place: Place, expected: int) -> None:
        await self._store.memory_delete(*place, expected=expected, by=AUTHOR)
        crash_point("mirror.dropped")
        del self._entries[place], self._bases[place]
        self._done.dropped.append(path_of(place))

    async def _take(self, place: Place, expected: int, file: Seen) -> None:
        text = await self._text(place, file)
        if text is None:
            return
        known = self._entries.get(place)
        expires = None if known is None else known.expires
        entry = await self._store.memory_put(*place, text, expected=expected, expires=expires, by=AUTHOR)
        crash_point("mirror.put")
        self._entries[place] = _Held(entry.version, file.value, expires)
        self._bases[place] = Base(Copy(entry.version, file.value, file.file))
        self._done.taken.append(path_of(place))

    async def _text(self, place: Place, file: Seen) -> str | None:
        """The text of a file; None if it is not what was decided about any more."""
        try:
            seen, text = await in_thread(self._folder.read, place)
        except FileMissing:
            seen, text = None, ""
        if seen != file:
            self._done.again = True
            return None
        return text

    async def _keep_both(self, place: Place, conflict: Conflict, file: Seen) -> None:
        """The file's text becomes an entry of its own; where there is no room for one, a file that is left alone."""
        text = await self._text(place, file)
        if text is None:
            return
        scope, key = place
        others = {other: entry.value for (known, other), entry in self._entries.items() if known == scope}
        same = (other for other in others if others[other] == file.value and is_conflict_key(other, key))
        taken = {other for other in others if others[other] != file.value}
        # The entry may have changed again before the file could be written: the text is kept once.
        beside = next(same, None) or conflict_key(key, conflict.version, file.value, taken)
        self._done.again = True  # what is kept wants a file, or to be told of
        try:
            if beside not in others:
                kept = await self._store.memory_put(scope, beside, text, expected=0, by=AUTHOR)
                self._entries[scope, beside] = _Held.of(kept)
        except (MemoryFull, PayloadTooLarge):
            self._todo[place] = _SetAside(beside)
            return
        crash_point("mirror.kept")
        self._todo[place] = Write(conflict.over)
        self._done.conflicts.append(path_of((scope, beside)))

    # ---- onto the disk ----

    async def _write_out(self) -> None:
        before = dict(self._bases)
        for place, todo in self._todo.items():
            if not isinstance(todo, Erase):
                self._bases[place] = Base(before.get(place, Base()).mirrored, self._copy(place))
        await in_thread(self._note)
        places = list(self._todo)
        for begin in range(0, len(places), _AT_ONCE):
            part = places[begin : begin + _AT_ONCE]
            values = {place: await self._value(place) for place in part}
            await in_thread(self._carry_out_all, values, before)
        await in_thread(self._note)

    async def _value(self, place: Place) -> str | None:
        """What is to be written; None if the entry is not what was decided about any more."""
        if isinstance(self._todo[place], Erase):
            return None
        try:
            entry = await self._store.memory_get(*place)
        except MemoryCorrupt as error:
            self._refuse(place, error)
            return None
        return None if entry is None or entry.version != self._entries[place].version else entry.value

    def _carry_out_all(self, values: dict[Place, str | None], before: dict[Place, Base]) -> None:
        for place, value in values.items():
            try:
                after = self._carry_out(place, value, before.get(place))
            except HoldfastError as error:
                self._refuse(place, error)  # whether it was written is not known, and stays so
            else:
                self._remember(place, after)

    def _carry_out(self, place: Place, value: str | None, before: Base | None) -> Base | None:
        """Change one file; answers what is mirrored then."""
        todo, aside = self._todo[place], self._aside(place, before)
        if isinstance(todo, Erase):
            if not self._folder.erase(place, todo.over, aside):
                self._done.again = True
            self._done.erased.append(path_of(place))
            return None
        if value is None:
            self._done.again = True
            return before
        over = None
        if isinstance(todo, _SetAside):
            kept = self._folder.set_aside(place, todo.key)
            self._done.conflicts += [] if kept is None else [kept]
        else:
            over = todo.over
        outcome = self._folder.write(place, value, over, aside)
        if outcome is not Outcome.WRITTEN:
            self._done.again = True
        if outcome is Outcome.IN_THE_WAY:
            return before
        self._done.written.append(path_of(place))
        return Base(self._copy(place))

    def _aside(self, place: Place, before: Base | None) -> str:
        """The key for a text that somebody writes while we write."""
        entry = self._entries.get(place)
        mirrored = None if before is None else before.mirrored
        version = entry.version if entry is not None else 0 if mirrored is None else mirrored.version
        return conflict_key(place[1], version, "", ())

    def _copy(self, place: Place) -> Copy:
        entry = self._entries[place]
        return Copy(entry.version, entry.value, entry.value)

    def _note(self) -> None:
        if self._noted != self._bases:
            self._folder.note(self._store.id, self._bases)
            self._noted = dict(self._bases)


def _says_all(base: Base | None, file: Seen | None, entry: Present | None) -> bool:
    """Whether the history has nothing to add: nothing is known but one side, or the entry is as it was."""
    if base is None:
        return file is None or entry is None or file.value == entry.value
    same = entry is not None and base.mirrored is not None and base.mirrored.version == entry.version
    return same and base.writing is None
