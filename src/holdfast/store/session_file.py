"""The file of an exported session: one JSON object to a line, which a person can read and a program can check.

The first line says what the file is, the last one has the digest of all lines before it, and its MAC under the key of
the store that wrote it. Each line ends with a checksum that covers it and, through that of the line before, its place.

    {"t":"session", ...}                       the header
    {"t":"blob", ...} {"t":"part", ...}        bytes that records and attachments refer to
    {"t":"journal", ...}                       a journal; its inputs, waits and records follow
    {"t":"tombstone" | "notification" | "refusal" | "attachment" | "memory" | "change", ...}
    {"t":"end", ...}
"""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections import Counter
from contextlib import contextmanager
from hmac import compare_digest
from typing import IO, TYPE_CHECKING, Annotated, Final, TypeAlias
from zlib import crc32

import msgspec

from holdfast import records
from holdfast.errors import HoldfastError, SessionFileDamaged, SessionFileNewer, StoreFull
from holdfast.names import MAX_INT, check_id, check_name
from holdfast.records import JournalKind, Status  # noqa: TC001  msgspec reads the annotations
from holdfast.store.attachments import CHUNK, StoredAttachment
from holdfast.store.audit import JournalAudit
from holdfast.store.contract import InputRow, JournalRow, RawRecord, StoreLimits, Wait, input_digest
from holdfast.store.inbox import RefusedInput  # noqa: TC001  msgspec reads the annotations
from holdfast.store.memories import MemoryChange, MemoryEntry  # noqa: TC001  msgspec reads the annotations
from holdfast.store.notifications import OPEN, Notification
from holdfast.store.retention import Tombstone  # noqa: TC001  msgspec reads the annotations

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from pathlib import Path


FORMAT: Final = 1
"""The version of the format; it grows when an older release could not read the file."""
MAX_LINE: Final = 16 * 1024 * 1024
"""Longest line, in bytes."""
PART: Final = 3 * CHUNK // 4
"""Bytes of a blob on one line: a megabyte of text."""
Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_INT)]


class _Line(msgspec.Struct, frozen=True, tag_field="t", omit_defaults=True):
    pass


class Header(_Line, frozen=True, tag="session"):
    """What the file is."""

    format: int
    export: str
    """The id of the export; that of a move stays when it is written again."""
    session: str
    store: str
    """The id of the store that wrote it."""
    holdfast: str
    at: Count
    move: bool
    """The session goes on where the file is imported. If not, the file is a copy of a session at rest."""
    journals: Count
    records: Count
    blobs: Count


class _FormatOnly(msgspec.Struct):
    t: str
    format: int


class BlobLine(_Line, frozen=True, tag="blob"):
    """Bytes under their digest; their parts follow."""

    digest: str
    size: Count


class PartLine(_Line, frozen=True, tag="part"):
    """The next bytes of the blob before it."""

    data: bytes


class JournalLine(_Line, frozen=True, tag="journal"):
    """A journal, without its lease; its inputs, waits and records follow."""

    id: str
    kind: JournalKind
    agent: str | None
    status: Status
    head: Count
    created: Count
    updated: Count
    epoch: Count
    revoked: bool = False
    wakes: Count = 0
    seen: Count = 0
    parent: str | None = None
    parent_seq: Count = 0
    inputs: Count = 0
    role: str | None = None
    session: str | None = None
    notices: Count = 0
    base: Count = 0
    attached: tuple[str, ...] = ()
    """Blobs that its inputs refer to."""
    born: str = ""
    """The store in which it was made, which its idempotency keys name."""


class InputLine(_Line, frozen=True, tag="input"):
    """An input of the journal before it."""

    input: InputRow
    aliases: tuple[str, ...] = ()
    """Further keys of this input."""


class WaitLine(_Line, frozen=True, tag="wait"):
    """A wait of the journal before it."""

    wait: Wait


class RecordLine(_Line, frozen=True, tag="record"):
    """A record of the journal before it."""

    seq: Count
    epoch: Count
    body: msgspec.Raw
    """Its bytes, as they are in the journal."""


class TombstoneLine(_Line, frozen=True, tag="tombstone"):
    """What is left of a pruned process of the session."""

    tombstone: Tombstone


class NotificationLine(_Line, frozen=True, tag="notification"):
    """A notification for one of the journals."""

    notification: Notification


class RefusalLine(_Line, frozen=True, tag="refusal"):
    """A refused input of one of the journals."""

    refusal: RefusedInput


class AttachmentLine(_Line, frozen=True, tag="attachment"):
    """An attachment of one of the sessions."""

    attachment: StoredAttachment


class MemoryLine(_Line, frozen=True, tag="memory"):
    """An entry of memory."""

    entry: MemoryEntry


class ChangeLine(_Line, frozen=True, tag="change"):
    """A change in the history of memory."""

    change: MemoryChange


class EndLine(_Line, frozen=True, tag="end"):
    """The last line."""

    lines: Count
    digest: str
    """SHA-256 of all lines before this one."""
    mac: str
    """The MAC of the digest under the key of the store that wrote the file."""


Line: TypeAlias = (
    Header
    | BlobLine
    | PartLine
    | JournalLine
    | InputLine
    | WaitLine
    | RecordLine
    | TombstoneLine
    | NotificationLine
    | RefusalLine
    | AttachmentLine
    | MemoryLine
    | ChangeLine
    | EndLine
)
_ORDER: Final[dict[type, int]] = {
    kind: place
    for place, kinds in enumerate(
        (
            (BlobLine, PartLine),
            (JournalLine, InputLine, WaitLine, RecordLine),
            (TombstoneLine,),
            (NotificationLine,),
            (RefusalLine,),
            (AttachmentLine,),
            (MemoryLine,),
            (ChangeLine,),
            (EndLine,),
        )
    )
    for kind in kinds
}
_WITHIN: Final[dict[type, int]] = {JournalLine: 0, InputLine: 1, WaitLine: 2, RecordLine: 3}
_encode: Final = msgspec.json.Encoder().encode
_decoder: Final = msgspec.json.Decoder(Line)
_CHECKSUM: Final = re.compile(rb',"crc":"([0-9a-f]{8})"\}\n\Z')
_HEX: Final = re.compile(r"[0-9a-f]{64}")
_ID: Final = re.compile(r"[0-9a-f]{32}")


# ---- writing ----


class SessionFileWriter:
    """Writes the lines of a session file."""

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write = write
        self._hash = hashlib.sha256()
        self._crc = 0
        self.lines = 0
        self.bytes = 0

    def add(self, line: Line) -> None:
        body = _encode(line)[:-1]
        self._crc = crc32(body, self._crc)
        text = b'%b,"crc":"%08x"}\n' % (body, self._crc)
        self._hash.update(text)
        self._write(text)
        self.lines += 1
        self.bytes += len(text)

    def end(self, mac_of: Callable[[bytes], str]) -> None:
        """Write the last line."""
        self.add(EndLine(self.lines, self._hash.hexdigest(), mac_of(self._hash.digest())))


# ---- reading ----


class SessionFile:
    """A session file that was read to its end and found whole: a copy of it without a name, which nobody changes."""

    def __init__(self, folder: Path | None) -> None:
        self._copy: IO[bytes] = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
        self.header: Header
        self.end: EndLine
        self.journals: dict[str, JournalLine] = {}
        self.pruned: list[str] = []
        """The processes of which a tombstone is left."""
        self.digests: list[str] = []
        self.scopes: dict[str, None] = {}
        """The scopes of memory."""

    def close(self) -> None:
        self._copy.close()

    def lines(self) -> Iterator[Line]:
        """All lines between the first and the last."""
        self._copy.seek(0)
        self._copy.readline(MAX_LINE)
        while type(line := _decoder.decode(self._copy.readline(MAX_LINE))) is not EndLine:
            yield line

    def blobs(self) -> Iterator[SpooledBlob]:
        """The blobs. Each must be read before the next."""
        self._copy.seek(0)
        self._copy.readline(MAX_LINE)
        while type(line := _decoder.decode(self._copy.readline(MAX_LINE))) is BlobLine:
            start = self._copy.tell()
            yield SpooledBlob(self._copy, start, line)
            self._copy.seek(start)
            for _ in range(_parts(line.size)):
                self._copy.readline(MAX_LINE)

    @classmethod
    def read(cls, source: IO[bytes], name: str, folder: Path | None, limits: StoreLimits) -> SessionFile:
        """Read a file to its end, and check everything that can be checked without a store."""
        made = cls(folder)
        try:
            _Check(made, name, limits).run(source)
        except BaseException:
            made.close()
            raise
        return made

    def keep(self, line: bytes) -> None:
        """Add a line to the copy."""
        try:
            self._copy.write(line)
        except OSError as error:
            raise StoreFull(f"{error.strerror}, for the copy of a session file") from error


class SpooledBlob:
    """The bytes of a blob in a session file, for the store."""

    def __init__(self, file: IO[bytes], start: int, line: BlobLine) -> None:
        self._file = file
        self._start = start
        self.digest = line.digest
        self.size = line.size

    def chunks(self) -> Iterator[bytes]:
        self._file.seek(self._start)
        for _ in range(_parts(self.size)):
            line = _decoder.decode(self._file.readline(MAX_LINE))
            if isinstance(line, PartLine):
                yield line.data


def _parts(size: int) -> int:
    return -(-size // PART)


class _Anything:
    """The references of an import: the store lists them from the records themselves."""

    def __contains__(self, _: object) -> bool:
        return True


class _Check:
    """Reads the lines in their order, and compares each with those before."""

    def __init__(self, file: SessionFile, name: str, limits: StoreLimits) -> None:
        self._file = file
        self._name = name
        self._limits = limits
        self._source: IO[bytes]
        self._no = 0
        self._crc = 0
        self._hash = hashlib.sha256()
        self._digest = self._hash.copy()
        """Of all lines before the present one."""
        self._ahead: Line | None = None
        self._blobs: dict[str, bool] = {}
        self._inputs: dict[str, dict[int, bool]] = {}
        self._records = 0
        self._notices: Counter[str] = Counter()

    def run(self, source: IO[bytes]) -> None:
        self._source = source
        header = self._next()
        if not isinstance(header, Header):
            raise self._wrong("it is no session file: the first line says what it is")
        self._file.header = header
        if not (_ID.fullmatch(header.export) and _ID.fullmatch(header.store)):
            raise self._wrong("an export and a store have ids of 32 hexadecimal digits")
        place = 0
        while True:
            line = self._next()
            known = _ORDER.get(type(line), -1)
            if known < place:
                raise self._wrong(f"a line of the kind {_kind(line)!r} can't come here")
            place = known
            if isinstance(line, EndLine):
                break
            with self._located():
                self._check(line)
        self._check_end(line)

    def _next(self) -> Line:
        if self._ahead is not None:
            line, self._ahead = self._ahead, None
            return line
        self._no += 1
        try:
            text = self._source.readline(MAX_LINE + 1)
        except OSError as error:
            raise self._wrong(f"it can't be read: {error.strerror or error}") from error
        if len(text) > MAX_LINE:
            raise self._wrong(f"it is longer than {MAX_LINE:,} bytes")
        if not text.endswith(b"\n"):
            raise self._wrong("the file was cut short" if self._no > 1 or text else "the file is empty")
        found = _CHECKSUM.search(text)
        if found is None and self._no == 1:
            raise self._wrong("it is no session file: the first line says what it is")
        crc = 0 if found is None else crc32(text[: found.start()], self._crc)
        if found is None or int(found[1], 16) != crc:
            raise self._wrong("it does not match its checksum, or is not at its place")
        self._crc, self._digest = crc, self._hash.copy()
        self._hash.update(text)
        if self._no == 1:
            self._check_format(text)
        try:
            line = _decoder.decode(text)
        except records.DECODE_ERRORS as error:
            raise self._wrong(f"it can't be read: {error}") from error
        self._file.keep(text)
        return line

    def _check_format(self, text: bytes) -> None:
        """Look at the version first: a newer header may not be readable otherwise."""
        try:
            said = msgspec.json.decode(text, type=_FormatOnly)
        except records.DECODE_ERRORS as error:
            raise self._wrong(f"it is no session file: {error}") from error
        if said.t != Header.__struct_config__.tag:
            raise self._wrong("it is no session file: the first line says what it is")
        if said.format > FORMAT:
            raise SessionFileNewer(self._name, said.format, FORMAT)

    def _wrong(self, reason: str) -> SessionFileDamaged:
        return SessionFileDamaged(self._name, self._no, reason)

    @contextmanager
    def _located(self) -> Generator[None]:
        """Name the line of an id or a number that no store would have."""
        try:
            yield
        except SessionFileDamaged:
            raise
        except HoldfastError as error:
            raise self._wrong(str(error)) from error

    def _check(self, line: Line) -> None:
        match line:
            case BlobLine():
                self._check_blob(line)
            case JournalLine():
                self._check_journal(line)
            case NotificationLine(notification=found):
                self._own(found.journal)
                self._notices[found.journal] += found.state in OPEN
                if found.state == "claimed" and found.input is None:
                    raise self._wrong(
                        f"the notification {found.id} is in the hands of a pump, which is not in the file"
                    )
            case TombstoneLine(tombstone=stone):
                check_id("journal id", stone.journal)
                if stone.journal in self._file.journals or stone.session not in self._file.journals:
                    raise self._wrong(f"the tombstone of {stone.journal!r} is not of this session")
                self._file.pruned.append(stone.journal)
            case RefusalLine(refusal=refused):
                self._own(refused.journal)
            case AttachmentLine(attachment=found):
                self._own(found.session)
                if not self._blobs.get(found.digest):
                    raise self._wrong(f"the bytes of the attachment {found.digest} are not in the file")
            case MemoryLine(entry=said) | ChangeLine(change=said):
                self._file.scopes[check_name("memory scope", said.scope)] = None
                check_name("memory key", said.key)
            case _:
                raise self._wrong(f"a line of the kind {_kind(line)!r} can't come here")

    def _own(self, journal: str) -> None:
        if journal not in self._file.journals:
            raise self._wrong(f"{journal!r} is not in the file")

    def _check_blob(self, line: BlobLine) -> None:
        if line.size > max(self._limits.blob_bytes, self._limits.attachment_bytes):
            raise self._wrong(f"the blob has {line.size:,} bytes, which is above the limit of this store")
        hashed, left = hashlib.sha256(), line.size
        while left:
            part = self._next()
            if not isinstance(part, PartLine) or len(part.data) != min(left, PART):
                raise self._wrong(f"a part of the blob {line.digest} is missing")
            hashed.update(part.data)
            left -= len(part.data)
        if hashed.hexdigest() != line.digest or line.digest in self._blobs:
            raise self._wrong(f"the bytes of the blob {line.digest} do not match its digest")
        self._blobs[line.digest] = True
        self._file.digests.append(line.digest)

    def _check_journal(self, line: JournalLine) -> None:
        for what, id in (("journal id", line.id), ("agent", line.agent), ("role", line.role)):
            if id is not None:
                check_id(what, id)
        if line.id in self._file.journals or not _ID.fullmatch(line.born):
            raise self._wrong(f"{line.id!r} comes twice, or was made in no store")
        above = None if line.parent is None else self._file.journals.get(line.parent)
        if line.parent is not None and (above is None or not 1 <= line.parent_seq <= above.head):
            raise self._wrong(f"{line.id!r} goes on after a record of {line.parent!r} that is not in the file")
        if not all(map(self._blobs.get, line.attached)):
            raise self._wrong(f"the bytes of an attachment of {line.id!r} are not in the file")
        first = not self._file.journals
        if first != (line.id == self._file.header.session) or (first and line.kind != "session"):
            raise self._wrong("the first journal is that of the session")
        self._file.journals[line.id] = line
        inputs: dict[int, bool] = {}
        self._read_inbox(line, inputs)
        audit = JournalAudit(journal_row(line), self._blobs, _Anything(), inputs)
        for rule, where, detail in audit.run(self._raw_records(line)):
            raise self._wrong(f"{where}: {detail} ({rule})")

    def _read_inbox(self, journal: JournalLine, inputs: dict[int, bool]) -> None:
        keys: set[str] = set()
        names: set[str] = set()
        last = 0
        while type(line := self._next()) in _WITHIN and type(line) is not JournalLine:
            if _WITHIN[type(line)] < last:
                raise self._wrong(f"a line of the kind {_kind(line)!r} can't come here")
            last = _WITHIN[type(line)]
            with self._located():
                match line:
                    case InputLine(input=found):
                        for key in (found.key, *line.aliases):
                            if check_id("input key", key) in keys:
                                raise self._wrong(f"the key {key!r} comes twice")
                            keys.add(key)
                        emptied = not found.body and not found.pending
                        if found.input in inputs or not (emptied or input_digest(found.body) == found.digest):
                            raise self._wrong(f"the input {found.input} comes twice, or does not match its digest")
                        inputs[found.input] = found.pending
                    case WaitLine(wait=wait):
                        if wait.journal != journal.id or wait.name in names or wait.consumed > journal.head:
                            raise self._wrong(f"the wait {wait.name!r} is not of {journal.id!r}, or comes twice")
                        names.add(check_id("wait", wait.name))
                    case _:
                        break
        self._ahead = line

    def _raw_records(self, journal: JournalLine) -> Iterator[RawRecord]:
        while type(line := self._next()) is RecordLine:
            self._records += 1
            body = bytes(line.body)
            if len(body) > self._limits.record_bytes:
                raise self._wrong(f"the record has {len(body):,} bytes, which is above the limit of this store")
            yield RawRecord(line.seq, line.seq, line.epoch, True, body)
        self._ahead = line

    def _check_end(self, line: EndLine) -> None:
        header = self._file.header
        if self._source.read(1):
            raise self._wrong("more follows after the last line")
        if any(line.notices != self._notices[line.id] for line in self._file.journals.values()):
            raise self._wrong("a notification is missing")
        counted = (len(self._file.journals), self._records, len(self._blobs))
        if counted != (header.journals, header.records, header.blobs) or line.lines != self._no - 1:
            raise self._wrong("the file has not as many lines as it says")
        if line.digest != self._digest.hexdigest():
            raise self._wrong("the file does not match its digest")
        self._file.end = line


def _kind(line: Line) -> str:
    return str(line.__struct_config__.tag)


def journal_row(line: JournalLine) -> JournalRow:
    """The row of a journal in a file; nobody holds its lease."""
    given = {name: getattr(line, name) for name in line.__struct_fields__ if name in JournalRow.__struct_fields__}
    return JournalRow(no=0, **given)


def proves(seal_mac: str, end: EndLine) -> bool:
    """True if the file carries this MAC."""
    return compare_digest(seal_mac, end.mac)
