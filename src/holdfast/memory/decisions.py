"""The decisions of the mirror from its base (the last mirrored state), file and entry; file names and index. Pure.

| file since then | entry since then | decision |
|---|---|---|
| unchanged | unchanged | nothing |
| unchanged | changed | write the file |
| unchanged | gone | remove the file |
| edited, or new | unchanged, or never there | take the text in |
| edited | gone | take the text in: an edit counts more than a removal |
| edited, or new | changed, or new | same text: nothing; else keep the entry, and the file's text beside it |
| removed | unchanged | remove the entry |
| removed | changed | write the file again: a change counts more than a removal |
| removed | gone | forget the base |
"""

from __future__ import annotations

import hashlib
import re
from contextlib import suppress
from operator import itemgetter
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from holdfast.errors import InvalidId, WorldError
from holdfast.errors.fields import ErrorFields
from holdfast.memory.front_matter import file_text
from holdfast.names import MAX_NAME, check_name

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence

    from holdfast.store import MemoryChange


AUTHOR: Final = "mirror"
"""Author of entries taken from files."""


class MirroredCopy(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A file with one version of an entry: digests of the text that the mirror writes for it, and of the bytes."""

    version: int
    value: str
    file: str


class MirrorBase(msgspec.Struct, frozen=True):
    """The last mirrored copy, and the one being written before a possible crash."""

    mirrored: MirroredCopy | None = None
    writing: MirroredCopy | None = None


class FileDigests(msgspec.Struct, frozen=True):
    """Digests of a file's bytes, and of the text that the mirror would write for its entry."""

    file: str
    value: str


class EntryState(msgspec.Struct, frozen=True):
    """An entry without its text: the texts of a store may not fit into memory."""

    version: int = 0
    """The version of its last known change; 0 without one."""
    value: str | None = None
    """The digest of the text of its file; None if there is no entry."""
    expires: int | None = None


class KeepBase(msgspec.Struct, frozen=True):
    """Only remember this base; None forgets it."""

    base: MirrorBase | None


class TakeFile(msgspec.Struct, frozen=True):
    """Put the file's text into the entry, if it is still at `expected`."""

    expected: int


class DropEntry(msgspec.Struct, frozen=True):
    """Remove the entry, if it is still at `expected`."""

    expected: int


class WriteFile(msgspec.Struct, frozen=True):
    """Write the entry to the file, over one with the digest `over` or as a new file."""

    over: str | None


class EraseFile(msgspec.Struct, frozen=True):
    """Remove the file, if it has this digest."""

    over: str


class KeepBoth(msgspec.Struct, frozen=True):
    """Keep the file's text under another key, then write the entry to the file."""

    version: int
    over: str


MirrorDecision: TypeAlias = KeepBase | TakeFile | DropEntry | WriteFile | EraseFile | KeepBoth


def digest_of(data: bytes) -> str:
    """SHA-256 of a text."""
    return hashlib.sha256(data).hexdigest()


def decide(base: MirrorBase | None, file: FileDigests | None, entry: EntryState) -> MirrorDecision:
    """Decide by the table above."""
    known = base or MirrorBase()
    mirrored, writing = _trusted_copy(known.mirrored, entry), _trusted_copy(known.writing, entry)
    # After an interrupted write the state of the file is unknown, even if that version is gone.
    sure = mirrored is not None and mirrored.version == entry.version and known.writing is None
    if file is None:
        if entry.value is None:
            return KeepBase(None)
        # A file can have been removed only if it is known to have existed.
        return DropEntry(entry.version) if sure else WriteFile(None)
    copy = next((copy for copy in (writing, mirrored) if copy is not None and copy.file == file.file), None)
    if entry.value is None:
        return TakeFile(0) if copy is None else EraseFile(copy.file)
    if (file if copy is None else copy).value == entry.value:
        return KeepBase(MirrorBase(MirroredCopy(entry.version, entry.value, file.file)))
    if copy is not None:
        return WriteFile(copy.file)
    # After a crash, the text may have been edited before or after the entry was written.
    return TakeFile(entry.version) if sure else KeepBoth(entry.version, file.file)


def _trusted_copy(copy: MirroredCopy | None, entry: EntryState) -> MirroredCopy | None:
    """The copy; None if this store never had its version, because it was restored to an earlier state."""
    if copy is None or copy.version > entry.version:
        return None
    changed = copy.version == entry.version and copy.value != entry.value
    return None if changed and entry.value is not None else copy


def correct_base(
    base: MirrorBase | None, file: FileDigests | None, changes: Sequence[MemoryChange]
) -> MirrorBase | None:
    """The base, corrected by the history of the entry (newest first).

    A copy that the history contradicts is of another store, or of a future that was rolled back. A text that was taken
    in before a crash, or that has no base, is an old copy if the history contains it.
    """
    values = {change.version: digest_of(file_text(change).encode()) for change in changes if change.value is not None}
    known = base or MirrorBase()
    mirrored, writing = (
        None if copy is None or values.get(copy.version, copy.value) != copy.value else copy
        for copy in (known.mirrored, known.writing)
    )
    copies = [copy for copy in (mirrored, writing) if copy is not None]
    if file is not None and all(copy.file != file.file for copy in copies):
        newest = max((copy.version for copy in copies), default=0)
        for change in changes:
            ours = newest == 0 or change.by == AUTHOR
            if change.version > newest and ours and values.get(change.version) == file.value:
                return MirrorBase(MirroredCopy(change.version, file.value, file.file))
    return MirrorBase(mirrored, writing)


# ---- the index: a file in the folder with all bases ----

INDEX_NAME: Final = ".holdfast-index.json"
MAX_INDEX_BYTES: Final = 256 * 1024 * 1024
_FORMAT: Final = 1
EntryPlace: TypeAlias = tuple[str, str]
"""A scope and a key."""


class _Index(msgspec.Struct, frozen=True):
    format: int
    store: str
    rows: list[tuple[str, str, MirroredCopy | None, MirroredCopy | None]]


def encode_index(store: str, bases: dict[EntryPlace, MirrorBase]) -> bytes:
    """The content of the index file."""
    rows = [(*place, base.mirrored, base.writing) for place, base in sorted(bases.items(), key=itemgetter(0))]
    return msgspec.json.encode(_Index(_FORMAT, store, rows))


def decode_index(store: str, data: bytes) -> dict[EntryPlace, MirrorBase] | None:
    """The bases in the index file; None if it is not valid for this store."""
    try:
        found = msgspec.json.decode(data, type=_Index)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    if found.format != _FORMAT or found.store != store:
        return None
    bases: dict[EntryPlace, MirrorBase] = {}
    for scope, key, mirrored, writing in found.rows:
        with suppress(InvalidId):  # anyone may write into the folder
            bases[check_name("scope", scope), check_name("key", key)] = MirrorBase(mirrored, writing)
    return bases


# ---- reports and errors ----


class RefusedFile(msgspec.Struct, frozen=True):
    """A file, a folder or an entry that the mirror did not touch, and the reason."""

    path: str
    reason: str


class MirrorReport(msgspec.Struct, frozen=True):
    """The result of a comparison. Paths are relative to the folder of the mirror."""

    written: tuple[str, ...] = ()
    """Files that were written."""
    erased: tuple[str, ...] = ()
    """Files that were removed with their entries."""
    taken: tuple[str, ...] = ()
    """Files whose text was taken into memory."""
    dropped: tuple[str, ...] = ()
    """Files that a user removed, and their entries with them."""
    conflicts: tuple[str, ...] = ()
    """Files whose text lost against a change of the entry."""
    refused: tuple[RefusedFile, ...] = ()
    again: bool = False
    """Something changed meanwhile, so another comparison is due."""


class MirrorUnavailable(ErrorFields, WorldError):
    """The folder is unusable. Memory itself works."""

    folder: str
    reason: str
    _message = "memory can't be mirrored in {folder}: {reason}"


class MirrorBusy(ErrorFields, WorldError):
    """Another process locks the folder for too long."""

    folder: str
    _message = "another process is at work in {folder}; try again"


class MirrorTooLarge(ErrorFields, WorldError):
    """The folder has too many files."""

    folder: str
    limit: int
    _message = "{folder} has more than {limit:,} entries; take out what is no memory"


# ---- file names ----
#
# The file name is the key and `.md`. A key that is too long for file systems, or looks shortened itself, is shortened
# and ends in ``~`` and the beginning of its digest, so that no two keys share a file.

SUFFIX: Final = ".md"
OWN_PREFIX: Final = ".holdfast-"
"""Prefix of the mirror's own files; no key can begin with a dot."""
_CONFLICT: Final = ".conflict-"
_MAX_BYTES: Final = 240
_SHORTENED: Final = re.compile(r"~[0-9a-f]{16}\Z")


class StrayFile(msgspec.Struct, frozen=True):
    """A file without an entry; the reason is empty for files that need no report."""

    reason: str


def file_name_of(name: str) -> str:
    """The file or folder name of a key or scope, without suffix."""
    if len(name.encode()) <= _MAX_BYTES and not _SHORTENED.search(name):
        return name
    mark = hashlib.sha256(name.encode()).hexdigest()[:16]
    head = name.encode()[: _MAX_BYTES - 17].decode("utf-8", "ignore")
    return f"{head}~{mark}"


def parse_file_name(found: bytes, known: Mapping[str, str], suffix: str = SUFFIX) -> str | StrayFile:
    """The scope or key of a file name. `known` has the shortened names."""
    if found.startswith(b".") or (suffix and (found.endswith(b"~") or found[:1] == found[-1:] == b"#")):
        return StrayFile("")  # a file of the mirror, or a backup of an editor
    try:
        name = found.decode()
    except UnicodeDecodeError:
        return StrayFile("its name is not UTF-8")
    if not name.endswith(suffix):
        return StrayFile(f"its name does not end in {suffix}")
    name = name.removesuffix(suffix)
    if name in known:
        return known[name]
    try:
        check_name("name", name)
    except InvalidId as error:
        return StrayFile(f"its name can't be a key: {error.reason}")
    return name if file_name_of(name) == name else StrayFile("its name looks shortened, and no entry has it")


def conflict_key(key: str, version: int, digest: str, taken: Container[str]) -> str:
    """A free key for a text that lost against `version` of an entry."""
    begin = f"{_CONFLICT}{version}"
    for end in (begin, f"{begin}-{digest[:8]}", f"{begin}-{digest[:32]}"):
        made = key[: MAX_NAME - len(end)].rstrip(" .") + end
        if made not in taken:
            break
    return made


def is_conflict_key(made: str, key: str) -> bool:
    """True if `made` is a key for a text that lost against some version of the entry `key`."""
    head, mark, _ = made.rpartition(_CONFLICT)
    return bool(mark) and (head == key or (len(made) == MAX_NAME and key.startswith(head)))
