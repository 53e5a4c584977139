"""Errors of the store: busy, full, refused, damaged, fenced."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.errors.base import StoreError
from holdfast.errors.fields import ErrorFields

if TYPE_CHECKING:
    from pathlib import Path


class StoreClosed(ErrorFields, StoreError):
    """The store was closed."""

    _message = "this store is closed; open it again"


class StoreBusy(ErrorFields, StoreError):
    """Another process held the write lock for too long, or too much is queued."""

    reason: str
    _message = "the store is busy: {reason}; try again"


class StoreFull(ErrorFields, StoreError):
    """The disk is full. Nothing of this write was kept; reads go on, and writes do once there is room."""

    detail: str
    _message = "the store has no room to write ({detail}); nothing was written. Free some space and go on"


class WalPinned(StoreFull):
    """A reader outside Holdfast pins the write-ahead log, which has reached its limit."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(
            f"the write-ahead log is {size:,} bytes, the limit is {limit:,}, and a long read transaction of another "
            "program keeps it from being reset; end that transaction"
        )
        self.size = size
        self.limit = limit


class StoreFailed(ErrorFields, StoreError):
    """The write failed. Nothing of it was kept."""

    detail: str
    _message = "the store could not write ({detail}); nothing was written. Check the disk, then go on"


class CommitUnknown(ErrorFields, StoreError):
    """A commit failed, and it is unknown whether it reached the disk."""

    detail: str
    _message = """a commit failed and it could not be established whether it took effect ({detail}); read the journal
        again before relying on it"""


class StoreRefused(ErrorFields, StoreError):
    """The file was not opened and not touched."""

    path: Path | str
    reason: str
    _message = "{path} was not opened: {reason}"


class StoreForeign(StoreRefused):
    """The file is not a Holdfast store."""


class StoreTooNew(StoreRefused):
    """The store was written by a newer release."""


class StoreUnsafe(StoreRefused):
    """The file system or the SQLite library can't keep the promises."""


class StoreUntrusted(StoreRefused):
    """Another user can change the store, or could have. `remedy` is the command that repairs it."""

    def __init__(self, path: Path | str, reason: str, remedy: str) -> None:
        super().__init__(path, f"{reason}; if you trust what is in it, run: {remedy}")
        self.remedy = remedy


class StoreKeyMissing(StoreRefused):
    """The key file of the store is missing. Nothing is lost: the sealed data is still in the store."""

    def __init__(self, path: Path | str, key: Path) -> None:
        super().__init__(
            path,
            f"its key {key} is missing, which goes along when a store is copied or moved; put it back, or set "
            f"HOLDFAST_STORE_KEY; if it is lost, 'holdfast doctor --new-key {path}' makes another one",
        )
        self.key = key


class StoreKeyWrong(StoreRefused):
    """The key belongs to another store, or the store is a copy from before it had a key."""

    def __init__(self, path: Path | str, reason: str, remedy: str) -> None:
        super().__init__(path, f"{reason}; {remedy}")
        self.remedy = remedy


class StoreReadOnly(ErrorFields, StoreError):
    """The store is open for reading only. Nothing was changed."""

    path: Path | str
    _message = "{path} is open to be read, so nothing in it can be changed; hf.open() opens it to work on it"


class SocketsUnusable(ErrorFields, StoreError):
    """Processes that have the store open can't reach each other. Everything works except live events between them."""

    path: Path | str
    reason: str
    remedy: str
    _message = "live events of {path} don't reach other processes: {reason}; {remedy}"


class PeerRefused(ErrorFields, StoreError):
    """A process at a socket of the store did not prove that it may open the store, or broke the protocol.

    It got nothing and was disconnected; live events of that process are missing.
    """

    path: Path | str
    reason: str
    _message = """the process at the other end of a socket of {path} was refused: {reason}; if it is not one of yours,
        find out which process it is and stop it"""


class StoreDamaged(ErrorFields, StoreError):
    """SQLite cannot read the file."""

    path: Path | str
    detail: str
    _message = "{path} is damaged ({detail}); run 'holdfast doctor {path}' and restore from a backup"


class BlobMissing(ErrorFields, StoreError):
    """A record refers to bytes that are not in the store."""

    digest: str
    _message = "the attachment {digest} is not in this store; put it before the record that refers to it"


class BlobCorrupt(ErrorFields, StoreError):
    """Stored bytes do not match their digest."""

    digest: str
    _message = "the attachment {digest} does not match its digest; restore it from a backup"


class SiblingBegun(ErrorFields, StoreError):
    """Another journal of this role was begun for the session meanwhile. Nothing was written."""

    journal: str
    youngest: str
    """The one that was begun last."""
    _message = "{journal!r} was not begun: {youngest!r} is the youngest now; look at what is left, and begin it then"


class Fenced(StoreError):
    """Another worker holds the lease of the journal now. The work of this one was dropped."""

    def __init__(self, journal: str, epoch: int, current: int, holder: str | None) -> None:
        who = f"held by {holder}" if holder else "held by no process"
        super().__init__(
            f"the lease on {journal!r} is no longer yours: you hold epoch {epoch}, the journal is at {current}, {who}"
        )
        self.journal = journal
        self.epoch = epoch
        self.current = current
        self.holder = holder


class LeaseHeld(StoreError):
    """Another worker holds the lease of the journal."""

    def __init__(self, journal: str, holder: str, expires_in_ms: int) -> None:
        super().__init__(
            f"{journal!r} is being advanced by {holder}; its lease ends in {expires_in_ms / 1000:.1f} s unless renewed"
        )
        self.journal = journal
        self.holder = holder
        self.expires_in_ms = expires_in_ms


class PumpHeld(ErrorFields, StoreError):
    """Another pump holds the notifications of the session."""

    session: str
    holder: str
    expires_in_ms: int
    _message = """the notifications of {session!r} are pumped by {holder}; close that pump, or wait until its process
        has ended or its lease lapses, in {expires_in_ms} ms unless renewed"""


class HeadConflict(ErrorFields, StoreError):
    """The journal has more records than the writer expected."""

    journal: str
    expected: int
    actual: int
    _message = "{journal!r} ends at record {actual}, the writer expected {expected}; read it again"


class JournalCorrupt(ErrorFields, StoreError):
    """A record is damaged. Its journal is quarantined; others go on."""

    journal: str
    seq: int
    reason: str
    _message = """journal {journal!r} is corrupt at record {seq}: {reason}; it is quarantined, the others go on.
        Restore it from a backup"""


class JournalQuarantined(ErrorFields, StoreError):
    """The journal was found damaged before and makes no progress."""

    journal: str
    reason: str
    _message = "journal {journal!r} is quarantined: {reason}; restore it from a backup"


class JournalMoved(JournalQuarantined):
    """The journal was exported to go on in another store. Here it can only be read."""

    _message = """{journal!r} was moved away ({reason}); go on in the store that imported its file. To bring it back,
        remove it here ('holdfast rm'), then import the file"""


MOVED: Final = "export "
"""Prefix of the reasons for which a moved journal is not served."""


def not_served(journal: str, reason: str) -> JournalQuarantined:
    """The error for a journal that is not served: it was moved away, or is damaged."""
    return (JournalMoved if reason.startswith(MOVED) else JournalQuarantined)(journal, reason)


class InboxFull(ErrorFields, StoreError):
    """Too many inputs wait for this journal."""

    journal: str
    limit: int
    _message = "{limit:,} inputs already wait for {journal!r}; let it catch up, or raise the limit"


class InputTaken(StoreError):
    """The input is already in its journal."""

    def __init__(self, journal: str, number: int) -> None:
        super().__init__(f"input {number} of {journal!r} does not wait any more; read the journal again")
        self.journal = journal
        self.input = number


class RecordUnreadable(ErrorFields, StoreError):
    """A record has an unknown kind or a newer format."""

    reason: str
    _message = "the record can't be read: {reason}; it may come from a newer release"


class MemoryFull(ErrorFields, StoreError):
    """A scope of memory has reached its limit of entries or of bytes."""

    scope: str
    what: str
    limit: int
    _message = "the memory of {scope!r} has room for {limit:,} {what}; remove something, or raise the limit"


class MemoryCorrupt(ErrorFields, StoreError):
    """An entry of memory does not match its checksum. Others go on."""

    scope: str
    key: str
    _message = "the memory {key!r} of {scope!r} does not match its checksum; write it anew, or restore it from a backup"


class AttachmentsFull(StoreError):
    """The session has reached its limit of attachments or of their bytes."""

    def __init__(self, session: str, what: str, limit: int) -> None:
        whose = f"the session {session!r} has" if session else "attachments that belong to no session are"
        super().__init__(
            f"{whose} at the limit of {limit:,} {what}; collect unused ones, or raise the limit of the store"
        )
        self.session = session
        self.what = what
        self.limit = limit


class CollectionRefused(ErrorFields, StoreError):
    """Nothing was deleted: the store cannot tell which attachments are still in use."""

    reason: str
    _message = "nothing was collected: {reason}"


class NotificationsFull(ErrorFields, StoreError):
    """Too many notifications wait for this journal."""

    journal: str
    limit: int
    _message = "{limit:,} notifications already wait for {journal!r}; let it catch up, or raise the limit"


class RulesFull(ErrorFields, StoreError):
    """Too many rules are stored for this agent."""

    agent: str
    limit: int
    _message = "{limit:,} rules are already stored for {agent!r}; remove unused ones, or raise the limit"


class RuleCorrupt(ErrorFields, StoreError):
    """A stored rule is damaged, so no stored rule of its agent decides anything."""

    number: int
    agent: str
    _message = """the stored rule {number} for {agent!r} does not match its checksum or its seal; remove it and store
        it anew, or restore it from a backup"""


class TriggersFull(ErrorFields, StoreError):
    """The store has reached its limit of triggers."""

    limit: int
    _message = "there are {limit:,} triggers already; disable and reuse one, or use several stores"


class WaitConsumed(StoreError):
    """The answer of the wait was used before, or there is none. Nothing was appended.

    `state` is that of the wait, "consumed" when the answer was used, "unknown" when there is no such wait.
    """

    def __init__(self, journal: str, name: str, state: str) -> None:
        why = "its answer was used before" if state == "consumed" else f"it is {state}, not resolved"
        super().__init__(
            f"the wait {name!r} of {journal!r} can't be used: {why}; nothing was appended. Ask again under another name"
        )
        self.journal = journal
        self.name = name
        self.state = state
