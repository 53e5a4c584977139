"""The files of a store: access checks, the library, the file system, header and version, and read-only connections."""

from __future__ import annotations

import fcntl
import grp
import os
import pwd
import secrets
import shlex
import stat
import struct
import threading
from collections import Counter
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, cast
from urllib.parse import quote

import apsw

from holdfast import errors
from holdfast.crashpoints import crash_point
from holdfast.plainfiles import sync_folder
from holdfast.store.paths import FOLDER
from holdfast.store.sqlite.schema import APPLICATION_ID, VERSION

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Sequence

    from holdfast.store.contract import StoreLimits


_BEYOND_OWNER: Final = 0o177
_SUFFIXES: Final = ("", "-wal", "-shm", "-journal")


def check_access(path: Path) -> None:
    """Raise `StoreUntrusted` if other users can read or change the files of the store at `path`."""
    real = Path(os.path.realpath(path))
    for folder in dict.fromkeys((path.parent, real.parent)):
        _check_folder(path, folder)
    for suffix in _SUFFIXES:
        check_file(path, real.with_name(real.name + suffix))


def check_file(path: Path, file: Path) -> None:
    """Raise `StoreUntrusted` if other users can access this file of the store; it may be missing."""
    try:
        found = file.lstat()
    except FileNotFoundError:
        return
    quoted = shlex.quote(str(file))
    if not stat.S_ISREG(found.st_mode):
        raise errors.StoreUntrusted(path, f"{file} is no regular file", f"mv {quoted} {quoted}.away")
    _check_owner(path, file, found)
    if found.st_mode & _BEYOND_OWNER:
        reason = f"others may read or write {file} (mode {stat.S_IMODE(found.st_mode):04o})"
        raise errors.StoreUntrusted(path, reason, f"chmod 600 {quoted}")
    if found.st_nlink > 1:
        mount = next(folder for folder in file.absolute().parents if os.path.ismount(folder))
        # Do not replace the file by a copy: a process that has it open would go on writing to the old one.
        reason = (
            f"{file} has {found.st_nlink} names (hard links), and tools may reach it by another one; rm every other "
            "name that the command lists"
        )
        raise errors.StoreUntrusted(path, reason, f"find {shlex.quote(str(mount))} -xdev -inum {found.st_ino}")


def _check_folder(path: Path, folder: Path) -> None:
    found = folder.stat()
    _check_owner(path, folder, found)
    if found.st_mode & stat.S_IWOTH or (found.st_mode & stat.S_IWGRP and not _is_own_group(found)):
        aside = "" if not found.st_mode & stat.S_ISVTX else ", or keep the store in a folder of its own"
        reason = f"others may write to its folder {folder} (mode {stat.S_IMODE(found.st_mode):04o})"
        raise errors.StoreUntrusted(path, reason, f"chmod go-w {shlex.quote(str(folder))}{aside}")


def _check_owner(path: Path, place: Path, found: os.stat_result) -> None:
    own = os.geteuid()
    if found.st_uid not in {own, 0}:
        reason = f"{place} belongs to another user ({found.st_uid})"
        raise errors.StoreUntrusted(path, reason, f"chown {own} {shlex.quote(str(place))}")


def _is_own_group(found: os.stat_result) -> bool:
    """True if the owner is the only member of the group, as on systems with a group for each user."""
    try:
        user, group = pwd.getpwuid(found.st_uid), grp.getgrgid(found.st_gid)
    except KeyError:
        return False
    return user.pw_gid == group.gr_gid and user.pw_name == group.gr_name and set(group.gr_mem) <= {user.pw_name}


def check_schema(path: Path, connection: Db) -> None:
    """Raise `StoreUntrusted` if the schema has triggers or views: Holdfast makes none, and SQLite would run them."""
    found = connection.execute("SELECT type, name FROM sqlite_schema WHERE type IN ('trigger', 'view') LIMIT 1").get
    if found is not None:
        kind, name = found
        shown = name if isinstance(name, str) and name.isprintable() else ascii(name)
        drop = f'DROP {kind.upper()} "{shown}"'
        raise errors.StoreUntrusted(
            path,
            f"it has a {kind} {shown!r}, which Holdfast did not make",
            f"sqlite3 {shlex.quote(str(path))} {shlex.quote(drop)}",
        )


class Db(Protocol):
    """The part of `apsw.Connection` that the store uses; apsw's own annotations are incomplete."""

    @property
    def in_transaction(self) -> bool: ...
    def execute(self, statements: str, bindings: Sequence[Any] = ..., /) -> Any: ...
    def executemany(self, statements: str, bindings: Iterable[Sequence[Any]], /) -> Any: ...
    def pragma(self, name: str) -> Any: ...
    def changes(self) -> int: ...
    def last_insert_rowid(self) -> int: ...
    def blob_open(self, database: str, table: str, column: str, rowid: int, writeable: bool, /) -> Any: ...
    def set_busy_timeout(self, milliseconds: int) -> None: ...
    def set_wal_hook(self, callable: Callable[[Any, str, int], int] | None) -> None: ...
    def set_progress_handler(self, callable: Callable[[], bool] | None, nsteps: int = ...) -> None: ...
    def wal_checkpoint(self, dbname: str | None = ..., mode: int = ...) -> tuple[int, int]: ...
    def close(self, force: bool = ...) -> None: ...


def connect(path: Path, flags: int, vfs: str | None = None) -> Db:
    """Open an existing file."""
    return cast("Db", apsw.Connection(str(path), flags=flags, vfs=vfs))


def after_prefix(prefix: str) -> str:
    """The first text after all with this prefix."""
    return prefix[:-1] + chr(ord(prefix[-1]) + 1)


MIN_SQLITE: Final = (3, 51, 3)
"""Older libraries can corrupt a write-ahead log that two connections reset at the same moment."""
_MAGIC: Final = b"SQLite format 3\x00"
_JOURNAL_MAGIC: Final = bytes.fromhex("d9d505f920a163d7")
_HEADER: Final = 100
# Network and host-shared file systems whose locks or shared memory can't be trusted (statfs f_type).
_REMOTE: Final = {
    0x6969: "NFS",
    0xFF534D42: "CIFS",
    0xFE534D42: "SMB2",
    0x517B: "SMB",
    0x01021997: "9p",
    0x00C36400: "Ceph",
    0x5346414F: "AFS",
    0x0BD00BD0: "Lustre",
    0x47504653: "GPFS",
}
_STATFS_TYPE: Final = struct.Struct("@l")


def check_library(version: tuple[int, ...]) -> str | None:
    """The reason to refuse this SQLite library, or None."""
    if version < MIN_SQLITE:
        found = ".".join(map(str, version))
        return f"SQLite {found} can corrupt a write-ahead log; install apsw with SQLite 3.51.3 or newer"
    return None


def check_filesystem(kind: int | None, *, locks_work: bool) -> str | None:
    """The reason to refuse this file system, or None."""
    if kind in _REMOTE:
        return f"it lies on {_REMOTE[kind]}, where locks and shared memory can't be trusted; use a local disk"
    if not locks_work:
        return "file locks do not work on this file system; use a local disk"
    return None


def prepare(path: Path) -> None:
    """Make sure that `path` is a store or can become one. A refusal changes nothing."""
    library = tuple(map(int, apsw.sqlite_lib_version().split(".")))
    if (reason := check_library(library)) is not None:
        raise errors.StoreUnsafe(path, reason)
    if path.is_dir():
        raise errors.StoreForeign(path, "it is a directory")
    if not path.parent.is_dir() and path.parent.exists():
        raise errors.StoreRefused(path, f"{path.parent} is not a directory")
    exists = path.exists()
    if exists:
        check_header(path)
    _make_directory(path.parent)
    if exists and not path.stat().st_size and path.stat().st_uid == os.geteuid():
        path.chmod(0o600)  # an empty file that is about to become a store
    check_access(path)
    if (reason := check_filesystem(_filesystem(path.parent), locks_work=_locks_work(path.parent))) is not None:
        raise errors.StoreUnsafe(path, reason)
    if not exists:
        with suppress(FileExistsError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))
        sync_folder(path.parent)
        crash_point("store.created")


_open_files: Final[Counter[tuple[int, int]]] = Counter()
_opening: Final = threading.RLock()


@contextmanager
def opening(path: Path) -> Generator[None]:
    """Open one store at a time in this process: two that create the same file would conflict."""
    with _opening:
        yield
        _open_files[_inode(path)] += 1


def closed(path: Path) -> None:
    """Count an open store as closed."""
    with _opening:
        _open_files[_inode(path)] -= 1


def _inode(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError:
        return 0, 0
    return found.st_dev, found.st_ino


def _read_header(path: Path) -> bytes | None:
    """The first bytes of the file; None if this process has the store open, and so has checked them before.

    POSIX drops all locks of a process on a file when it closes *any* descriptor of it, so reading the file of an open
    store would drop the locks of its connections.
    """
    with _opening:
        if _open_files[_inode(path)] > 0:
            return None
        with path.open("rb") as file:
            return file.read(_HEADER)


def check_header(path: Path) -> None:
    """Check the first bytes without SQLite, which might change the file on opening."""
    header = _read_header(path)
    if header is None:
        return
    if not header:
        if path.with_name(path.name + "-wal").exists() and path.with_name(path.name + "-wal").stat().st_size:
            raise errors.StoreDamaged(path, "the file is empty, but it has a write-ahead log")
        return
    application, version = _identity(header)
    if application != APPLICATION_ID and not _can_be_healed(path):
        known = header.startswith(_MAGIC) and len(header) >= _HEADER
        reason = "it is a SQLite database of another program" if known else "it is not a SQLite database"
        raise errors.StoreForeign(path, reason)
    if application == APPLICATION_ID:
        check_version(path, version)


def _identity(page: bytes) -> tuple[int, int]:
    """Application id and schema version in the first page of a database; zeros for another file."""
    if not page.startswith(_MAGIC) or len(page) < _HEADER:
        return 0, 0
    return struct.unpack_from(">i", page, 68)[0], struct.unpack_from(">i", page, 60)[0]


def _can_be_healed(path: Path) -> bool:
    """True if a damaged first page belongs to a store, and SQLite will repair it.

    A power cut can tear the first page while it is written. Then the log still has the whole page, or a rollback
    journal shows that the file was empty before and about to become a store.
    """
    if _log_has_store(path.with_name(path.name + "-wal")):
        return True
    try:
        with path.with_name(path.name + "-journal").open("rb") as file:
            header = file.read(28)
    except FileNotFoundError:
        return False
    return len(header) == 28 and header[:8] == _JOURNAL_MAGIC and struct.unpack_from(">I", header, 16)[0] == 0


def _log_has_store(log: Path) -> bool:
    if not log.exists():
        return False
    with log.open("rb") as file:
        header = file.read(32)
        if len(header) < 32 or header[:3] != b"\x37\x7f\x06":
            return False
        size = struct.unpack_from(">I", header, 8)[0]
        while len(frame := file.read(24 + size)) == 24 + size:
            if struct.unpack_from(">I", frame)[0] == 1 and _identity(frame[24:])[0] == APPLICATION_ID:
                return True
    return False


def check_version(path: Path, version: int) -> None:
    """Refuse a store of a newer release."""
    if version > VERSION:
        reason = f"its schema is version {version}, this release knows {VERSION}; update Holdfast"
        raise errors.StoreTooNew(path, reason)


def _make_directory(directory: Path) -> None:
    missing = [parent for parent in (directory, *directory.parents) if not parent.exists()]
    for parent in reversed(missing):
        with suppress(FileExistsError):
            parent.mkdir(mode=0o700)
            if parent.name == FOLDER:  # in a project: keep the store and its key out of version control
                (parent / ".gitignore").write_text("*\n", encoding="ascii")
        sync_folder(parent.parent)
    if directory.name == FOLDER and not directory.stat().st_mode & stat.S_IWUSR:
        directory.chmod(0o700)  # an empty placeholder made by a running shell command


def _filesystem(directory: Path) -> int | None:
    """The magic number of the file system; None if unknown."""
    import ctypes  # needed once, at open

    buffer = ctypes.create_string_buffer(256)
    try:
        found = ctypes.CDLL(None, use_errno=True).statfs(os.fsencode(directory), buffer)
    except (AttributeError, OSError):
        return None
    if found != 0 or os.uname().sysname != "Linux":
        return None
    return int(_STATFS_TYPE.unpack_from(buffer)[0]) & 0xFFFFFFFF


def _locks_work(directory: Path) -> bool:
    """True if a lock of the file excludes a second opening of it."""
    if not hasattr(fcntl, "F_OFD_SETLK"):
        return True
    probe = directory / f".holdfast-probe-{secrets.token_hex(8)}"
    handles = [os.open(probe, flags | os.O_RDWR | os.O_CLOEXEC, 0o600) for flags in (os.O_CREAT | os.O_EXCL, 0)]
    probe.unlink()
    try:
        return _try_lock(handles[0]) and not _try_lock(handles[1])
    finally:
        for handle in handles:
            os.close(handle)


def _try_lock(handle: int) -> bool:
    """Lock the first byte for this opening of the file (not for the process, whose locks never exclude each other)."""
    request = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
    try:
        fcntl.fcntl(handle, fcntl.F_OFD_SETLK, request)
    except OSError:
        return False
    return True


def connect_reader(path: Path, limits: StoreLimits, vfs: str | None = None) -> Db:
    """A read-only connection."""
    connection = connect(path, apsw.SQLITE_OPEN_READONLY, vfs)
    connection.set_busy_timeout(limits.busy_ms)
    connection.execute("PRAGMA trusted_schema = OFF; PRAGMA cell_size_check = ON; PRAGMA query_only = ON")
    return connection


def connect_viewer(path: Path, limits: StoreLimits) -> Db:
    """A connection that reads a store and leaves no file beside it.

    Even a read-only connection makes SQLite create a log and its index, which that connection can't remove. So if the
    store is writable, open a connection that could write and forbid it to. If it is not and has no log, open it as
    immutable. A log with content is read as it is, and stays.
    """
    log = path.with_name(f"{path.name}-wal")
    logged = log.exists() and log.stat().st_size > 0
    writable = os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)
    if logged:
        if not writable and not path.with_name(f"{path.name}-shm").exists():
            reason = f"it has a log ({log.name}) that can't be read where nothing may be written; copy both elsewhere"
            raise errors.StoreRefused(path, reason)
        connection = connect(path, apsw.SQLITE_OPEN_READONLY)
    elif writable:
        connection = connect(path, apsw.SQLITE_OPEN_READWRITE)
    else:
        # Immutable: without locks, and without files beside it.
        flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
        connection = cast("Db", apsw.Connection(f"file:{quote(str(path))}?immutable=1", flags=flags))
    connection.set_busy_timeout(limits.busy_ms)
    connection.execute("PRAGMA trusted_schema = OFF; PRAGMA cell_size_check = ON; PRAGMA query_only = ON")
    return connection


def check_viewable(path: Path) -> None:
    """Make sure that `path` is a readable store. Changes nothing."""
    if path.is_dir():
        raise errors.StoreForeign(path, "it is a directory")
    if not path.exists():
        raise errors.StoreRefused(path, "there is no such file")
    check_header(path)
    if not path.stat().st_size:
        raise errors.StoreForeign(path, "it is empty: no store was made of it yet")


def check_current(path: Path, connection: Db) -> None:
    """Refuse an older store: it has other tables, and reading must not migrate it."""
    found = int(connection.pragma("user_version"))
    if found < VERSION:
        reason = f"its schema is version {found}, and {VERSION} is wanted; open it once to bring it up to date"
        raise errors.StoreRefused(path, reason)


@contextmanager
def snapshot(connection: Db) -> Generator[None]:
    """Read from one snapshot. Concurrent commits are not seen."""
    connection.execute("BEGIN")
    try:
        yield
    finally:
        connection.execute("ROLLBACK")


@contextmanager
def translated(path: Path) -> Generator[None]:
    """Translate errors of SQLite."""
    try:
        yield
    except (apsw.Error, UnicodeDecodeError) as error:
        raise translate(path, error) from error


def translate(path: Path, error: Exception) -> errors.HoldfastError:
    """The store error for an error of SQLite; any other error is a bug, and becomes `InvariantBroken`."""
    detail = str(error) or type(error).__name__
    match error:
        case errors.HoldfastError():
            return error
        case UnicodeDecodeError():  # the store writes only UTF-8
            return errors.StoreDamaged(path, f"a text in it can't be read: {error.reason}")
        case apsw.FullError():
            return errors.StoreFull(detail)
        case apsw.IOError() if getattr(error, "extendedresult", 0) == apsw.SQLITE_IOERR_SHMSIZE:
            return errors.StoreFull(f"{detail}: the shared memory of the store can't grow")
        case apsw.BusyError() | apsw.LockedError():
            return errors.StoreBusy("another process holds the write lock")
        case apsw.CorruptError() | apsw.NotADBError():
            return errors.StoreDamaged(path, detail)
        case apsw.CantOpenError() | apsw.PermissionsError() | apsw.ReadOnlyError():
            return errors.StoreRefused(path, f"it can't be opened for writing ({detail})")
        case apsw.InterruptError():
            return errors.StoreBusy("the read took too long and was stopped")
        case apsw.Error():
            return errors.StoreFailed(detail)
        case _:
            broken = errors.InvariantBroken(f"a command failed in a way it must not: {error!r}")
            broken.__cause__ = error
            return broken
