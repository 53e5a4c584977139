"""What is to be done about one file and its entry, from what was mirrored last, the file, and the entry. Pure.

| file since then | entry since then | what is done |
|---|---|---|
| as it was | as it was | nothing |
| as it was | changed | the file is written |
| as it was | gone | the file is removed |
| edited, or new | as it was, or never there | the text is taken in |
| edited | gone | the text is taken in: an edit counts more than a removal |
| edited, or new | changed, or new | same text: nothing; else the entry stays, and the file's text is kept beside it |
| removed | as it was | the entry is removed |
| removed | changed | the file is written again: a change counts more than a removal |
| removed | gone | it is forgotten |
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from holdfast.errors import InvalidId, WorldError
from holdfast.names import check_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.store import MemoryChange


AUTHOR: Final = "mirror"
"""Who wrote the entries that were taken in from files."""


@dataclass(frozen=True, slots=True)
class Copy:
    """A file that holds one version of an entry: digests of the value and of the bytes."""

    version: int
    value: str
    file: str


@dataclass(frozen=True, slots=True)
class Base:
    """What was mirrored last, and what was about to be: a crash may have come before or after it was written."""

    mirrored: Copy | None = None
    writing: Copy | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """A file: digests of its bytes, and of the text that they are."""

    file: str
    value: str


@dataclass(frozen=True, slots=True)
class Present:
    """An entry."""

    version: int
    value: str


@dataclass(frozen=True, slots=True)
class Absent:
    """No entry; the last change that is known of it was `version`, 0 if there never was one."""

    version: int = 0


Entry: TypeAlias = Present | Absent


@dataclass(frozen=True, slots=True)
class Keep:
    """Nothing is to be done but to remember this; None forgets."""

    base: Base | None


@dataclass(frozen=True, slots=True)
class Take:
    """The file's text becomes the entry, which must be at `expected`."""

    expected: int


@dataclass(frozen=True, slots=True)
class Drop:
    """The entry is removed, if it is at `expected`."""

    expected: int


@dataclass(frozen=True, slots=True)
class Write:
    """The entry becomes the file, in place of one with the digest `over`, or where there is none."""

    over: str | None


@dataclass(frozen=True, slots=True)
class Erase:
    """The file is removed, if it has this digest."""

    over: str


@dataclass(frozen=True, slots=True)
class Conflict:
    """The file's text is kept under a name of its own, then the entry becomes the file."""

    version: int
    over: str


Decision: TypeAlias = Keep | Take | Drop | Write | Erase | Conflict


def digest_of(data: bytes) -> str:
    """What tells one text from another."""
    return hashlib.sha256(data).hexdigest()


def decide(base: Base | None, file: Seen | None, entry: Entry) -> Decision:
    """What is to be done; see the table above."""
    known = base or Base()
    base = _trusted(known, entry)
    # A write that may not have come to its end leaves the place unsure, also if it was of a version that is gone.
    sure = base.mirrored is not None and base.mirrored.version == entry.version and known.writing is None
    if file is None:
        return _removed(entry, sure=sure)
    for copy in (base.writing, base.mirrored):
        if copy is not None and copy.file == file.file:
            return _as_it_was(copy, entry)
    return _edited(file, entry, sure=sure)


def _trusted(base: Base, entry: Entry) -> Base:
    """Without copies of versions that this store never had: it was put back to an earlier state meanwhile."""
    return Base(_had(base.mirrored, entry), _had(base.writing, entry))


def _had(copy: Copy | None, entry: Entry) -> Copy | None:
    if copy is None or copy.version > entry.version:
        return None
    changed = isinstance(entry, Present) and copy.version == entry.version and copy.value != entry.value
    return None if changed else copy


def _removed(entry: Entry, *, sure: bool) -> Decision:
    if isinstance(entry, Absent):
        return Keep(None)
    # Only what is known to have been there can have been removed.
    return Drop(entry.version) if sure else Write(None)


def _as_it_was(copy: Copy, entry: Entry) -> Decision:
    if isinstance(entry, Absent):
        return Erase(copy.file)
    if copy.value == entry.value:
        return Keep(Base(Copy(entry.version, entry.value, copy.file)))
    return Write(copy.file)


def _edited(file: Seen, entry: Entry, *, sure: bool) -> Decision:
    if isinstance(entry, Absent):
        return Take(0)
    if file.value == entry.value:
        return Keep(Base(Copy(entry.version, entry.value, file.file)))
    # After a crash nobody knows whether the text was edited before or after the entry was written there.
    return Take(entry.version) if sure else Conflict(entry.version, file.file)


def informed(base: Base | None, file: Seen | None, changes: Sequence[MemoryChange]) -> Base | None:
    """What was mirrored last, as the history of the entry (newest first) knows it better.

    A copy that the history contradicts is of another store, or of a future that was taken back. A text that was taken
    in before a crash, or that is found without anything being known of it, is an old copy if the history has it.
    """
    values = {change.version: digest_of(change.value.encode()) for change in changes if change.value is not None}
    known = base or Base()
    known = Base(*(None if copy is None or _contradicted(copy, values) else copy for copy in _copies(known)))
    if file is None or any(copy is not None and copy.file == file.file for copy in _copies(known)):
        return known
    newest = max((copy.version for copy in _copies(known) if copy is not None), default=0)
    for change in changes:
        ours = newest == 0 or change.by == AUTHOR
        if change.version > newest and ours and values.get(change.version) == file.value:
            return Base(Copy(change.version, file.value, file.file))
    return known


def _copies(base: Base) -> tuple[Copy | None, Copy | None]:
    return base.mirrored, base.writing


def _contradicted(copy: Copy, values: dict[int, str]) -> bool:
    return values.get(copy.version, copy.value) != copy.value


NAME: Final = ".holdfast-index.json"
MAX_BYTES: Final = 256 * 1024 * 1024
_FORMAT: Final = 1
Place: TypeAlias = tuple[str, str]
"""A scope and a key."""


class _Row(msgspec.Struct, frozen=True, array_like=True):
    scope: str
    key: str
    mirrored: tuple[int, str, str] | None
    writing: tuple[int, str, str] | None


class _Index(msgspec.Struct, frozen=True):
    format: int
    store: str
    rows: list[_Row]


def encode_index(store: str, bases: dict[Place, Base]) -> bytes:
    """The file."""
    rows = [_Row(*place, _plain(base.mirrored), _plain(base.writing)) for place, base in sorted(bases.items())]
    return msgspec.json.encode(_Index(_FORMAT, store, rows))


def decode_index(store: str, data: bytes) -> dict[Place, Base] | None:
    """What was known; None where the file says nothing that can be trusted for this store."""
    try:
        found = msgspec.json.decode(data, type=_Index)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    if found.format != _FORMAT or found.store != store:
        return None
    rows = [row for row in found.rows if _is_name(row.scope) and _is_name(row.key)]
    return {(row.scope, row.key): Base(_copy(row.mirrored), _copy(row.writing)) for row in rows}


def _is_name(name: str) -> bool:
    """Whether it can be one: what stands in the folder may be written by anybody."""
    try:
        check_name("name", name)
    except InvalidId:
        return False
    return True


def _plain(copy: Copy | None) -> tuple[int, str, str] | None:
    return None if copy is None else (copy.version, copy.value, copy.file)


def _copy(row: tuple[int, str, str] | None) -> Copy | None:
    return None if row is None else Copy(*row)


@dataclass(frozen=True, slots=True)
class Refused:
    """A file, a folder or an entry that was left alone, and why."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class MirrorReport:
    """Paths are below the folder of the mirror."""

    written: tuple[str, ...] = ()
    """Files that were written."""
    erased: tuple[str, ...] = ()
    """Files that were removed, because their entries were."""
    taken: tuple[str, ...] = ()
    """Files whose text was taken in."""
    dropped: tuple[str, ...] = ()
    """Files that were removed by somebody, and their entries with them."""
    conflicts: tuple[str, ...] = ()
    """Files that hold a text that lost against a change of its entry."""
    refused: tuple[Refused, ...] = ()
    again: bool = False
    """Whether something moved meanwhile, so that another look is due."""


class MirrorUnavailable(WorldError):
    """The folder can't be used at all. Memory itself goes on."""

    def __init__(self, folder: str, reason: str) -> None:
        super().__init__(f"memory can't be mirrored in {folder}: {reason}")
        self.folder = folder
        self.reason = reason


class MirrorBusy(WorldError):
    """Another process compares the same folder with memory, for longer than anybody waits."""

    def __init__(self, folder: str) -> None:
        super().__init__(f"another process is at work in {folder}; try again")
        self.folder = folder


class MirrorTooLarge(WorldError):
    """More files than one look at a folder takes."""

    def __init__(self, folder: str, limit: int) -> None:
        super().__init__(f"{folder} has more than {limit:,} entries; take out what is no memory")
        self.folder = folder
        self.limit = limit
