"""The part of an apsw connection that Holdfast uses, with types for every supported Python."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, Self, cast
from urllib.parse import quote

import apsw

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path


class DbCursor(Protocol):
    """The rows that a statement gives."""

    @property
    def get(self) -> Any:  # noqa: ANN401  whatever the columns hold
        """The first value of the first row (or the row, if it has several columns); None without rows."""
        ...

    def close(self, force: bool = ...) -> None:  # noqa: FBT001
        """Let go of rows that were not fetched; until then the statement keeps its snapshot."""
        ...

    def fetchall(self) -> list[Any]:
        """All rows."""
        ...

    def __iter__(self) -> Iterator[Any]: ...


class OpenBlob(Protocol):
    """The bytes of one value, read or written a part at a time."""

    def length(self) -> int: ...
    def seek(self, offset: int, /) -> None: ...
    def read(self, length: int = ..., /) -> bytes: ...
    def write(self, data: bytes, /) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *error: object) -> bool | None: ...


class Db(Protocol):
    """An open connection."""

    @property
    def in_transaction(self) -> bool: ...
    def execute(self, statements: str, bindings: Sequence[Any] = ..., /) -> DbCursor: ...
    def executemany(self, statements: str, bindings: Iterable[Sequence[Any]], /) -> DbCursor: ...
    def pragma(self, name: str) -> Any: ...  # noqa: ANN401
    def changes(self) -> int: ...
    def last_insert_rowid(self) -> int: ...
    def blob_open(self, database: str, table: str, column: str, rowid: int, writeable: bool, /) -> OpenBlob: ...  # noqa: FBT001
    def set_busy_timeout(self, milliseconds: int) -> None: ...
    def set_wal_hook(self, callable: Callable[[Any, str, int], int] | None) -> None: ...
    def set_progress_handler(self, callable: Callable[[], bool] | None, nsteps: int = ...) -> None: ...
    def wal_checkpoint(self, dbname: str | None = ..., mode: int = ...) -> tuple[int, int]: ...
    def close(self, force: bool = ...) -> None: ...  # noqa: FBT001


def connect(path: Path, flags: int, vfs: str | None = None) -> Db:
    """Open a file that exists."""
    return cast("Db", apsw.Connection(str(path), flags=flags, vfs=vfs))


def connect_unchanging(path: Path, vfs: str | None = None) -> Db:
    """Open a file that does not change while it is open: without locks, and without files beside it."""
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    return cast("Db", apsw.Connection(f"file:{quote(str(path))}?immutable=1", flags=flags, vfs=vfs))


def page(db: Db, sql: str, values: Sequence[Any], column: int, limit: int, also: int | None = None) -> list[Any]:
    """Rows until one column, or two, have `limit` bytes or characters; at least one row."""
    rows: list[Any] = []
    taken = 0
    cursor = db.execute(sql, values)
    for row in cursor:
        taken += len(row[column] or b"")
        if also is not None:
            taken += len(row[also] or b"")
        if rows and taken > limit:
            break
        rows.append(row)
    cursor.close(True)  # noqa: FBT003  a page that ends early must not keep its snapshot
    return rows


def after_prefix(prefix: str) -> str:
    """The first text after all that begin with this prefix."""
    return prefix[:-1] + chr(ord(prefix[-1]) + 1)
