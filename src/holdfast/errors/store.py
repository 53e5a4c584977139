"""The store: busy, full, refused, damaged."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.errors.tree import StoreError

if TYPE_CHECKING:
    from pathlib import Path


class StoreClosed(StoreError):
    """The store was closed."""

    def __init__(self) -> None:
        super().__init__("this store is closed; open it again")


class StoreBusy(StoreError):
    """Another process held the write lock for too long, or too much is queued."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the store is busy: {reason}; try again")
        self.reason = reason


class StoreFull(StoreError):
    """No room on the disk. Nothing of this write was kept; readers go on, and so do writes when there is room."""

    def __init__(self, detail: str) -> None:
        super().__init__(f"the store has no room to write ({detail}); nothing was written. Free some space and go on")
        self.detail = detail


class WalPinned(StoreFull):
    """A reader outside Holdfast pins the write-ahead log, which has reached its limit."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(
            f"the write-ahead log is {size:,} bytes, the limit is {limit:,}, and a long read transaction of another "
            "program keeps it from being reset; end that transaction"
        )
        self.size = size
        self.limit = limit


class StoreFailed(StoreError):
    """The store could not write. Nothing of this write was kept."""

    def __init__(self, detail: str) -> None:
        super().__init__(f"the store could not write ({detail}); nothing was written. Check the disk, then go on")
        self.detail = detail


class CommitUnknown(StoreError):
    """A commit failed and nobody can say whether it is on the disk."""

    def __init__(self, detail: str) -> None:
        super().__init__(
            f"a commit failed and it could not be established whether it took effect ({detail}); "
            "read the journal again before relying on it"
        )
        self.detail = detail


class StoreRefused(StoreError):
    """The file was not opened, and not touched."""

    def __init__(self, path: Path | str, reason: str) -> None:
        super().__init__(f"{path} was not opened: {reason}")
        self.path = path
        self.reason = reason


class StoreForeign(StoreRefused):
    """The file is not a Holdfast store."""


class StoreTooNew(StoreRefused):
    """The store was written by a newer release."""


class StoreUnsafe(StoreRefused):
    """The file system or the SQLite library can't keep the promises."""


class StoreUntrusted(StoreRefused):
    """Somebody other than its owner can change the store, or may have. `remedy` is the command that repairs it."""

    def __init__(self, path: Path | str, reason: str, remedy: str) -> None:
        super().__init__(path, f"{reason}; if you trust what is in it, run: {remedy}")
        self.remedy = remedy


class StoreKeyMissing(StoreRefused):
    """The key file of the store is not there. Nothing is lost: what is sealed with it is still in the store."""

    def __init__(self, path: Path | str, key: Path) -> None:
        super().__init__(
            path,
            f"its key {key} is missing, which goes along when a store is copied or moved; put it back, or set "
            f"HOLDFAST_STORE_KEY; if it is lost, 'holdfast doctor --new-key {path}' makes another one",
        )
        self.key = key


class StoreKeyWrong(StoreRefused):
    """The key is that of another store, or the store was set back to before it had one."""

    def __init__(self, path: Path | str, reason: str, remedy: str) -> None:
        super().__init__(path, f"{reason}; {remedy}")
        self.remedy = remedy


class StoreReadOnly(StoreError):
    """The store was opened to be read; nothing was changed."""

    def __init__(self, path: Path | str) -> None:
        super().__init__(
            f"{path} is open to be read, so nothing in it can be changed; hf.open() opens it to work on it"
        )
        self.path = path


class StoreDamaged(StoreError):
    """SQLite can't read the file."""

    def __init__(self, path: Path | str, detail: str) -> None:
        super().__init__(f"{path} is damaged ({detail}); run 'holdfast doctor {path}' and restore from a backup")
        self.path = path
        self.detail = detail


class BlobMissing(StoreError):
    """A record refers to bytes that are not in the store."""

    def __init__(self, digest: str) -> None:
        super().__init__(f"the attachment {digest} is not in this store; put it before the record that refers to it")
        self.digest = digest


class BlobCorrupt(StoreError):
    """Stored bytes do not match their digest."""

    def __init__(self, digest: str) -> None:
        super().__init__(f"the attachment {digest} does not match its digest; restore it from a backup")
        self.digest = digest
