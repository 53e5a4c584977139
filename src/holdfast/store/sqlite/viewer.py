"""A store in one SQLite file, open to be read."""

from __future__ import annotations

import os
import threading
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, TypeVar

from holdfast.errors import StoreKeyMissing, StoreReadOnly
from holdfast.store.sqlite.access import check_access, check_schema
from holdfast.store.sqlite.backend import ReadConnection, SqliteBackend
from holdfast.store.sqlite.files import check_current, check_viewable, closed, connect_viewer, opening, translated
from holdfast.store.sqlite.key import load_seal

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from holdfast.store.contract import Command

T = TypeVar("T")


class SqliteViewer(SqliteBackend):
    """`Backend` that reads and never writes. It sees what other processes commit."""

    _comparing: threading.Lock
    _kept: ReadConnection
    """The connection that tells whether others have written."""
    _version: int

    def _start(self) -> None:
        self._comparing = threading.Lock()
        with translated(self.path), opening(self.path):
            check_viewable(self.path)
            # A copy that can't be written was perhaps made so that others can read it, and has no key.
            is_copy = not (self.path.stat().st_mode & 0o222 and os.access(self.path, os.W_OK))
            if not is_copy:
                check_access(self.path)
            db = connect_viewer(self.path, self.limits, self._vfs)
            try:
                check_schema(self.path, db)
                check_current(self.path, db)
                with nullcontext() if not is_copy else suppress(StoreKeyMissing):
                    self._seal, self.secret = load_seal(self.path, db, look=True)
                self._kept = ReadConnection(db, self.limits, self._seal)
                self.store_id, self._version = self._kept.store_id(), self._kept.data_version()
            except BaseException:
                db.close()
                raise

    def _connection(self) -> ReadConnection:
        return ReadConnection(connect_viewer(self.path, self.limits, self._vfs), self.limits, self._seal)

    def submit(self, command: Command[T], then: Callable[[asyncio.Future[T]], None] | None = None) -> asyncio.Future[T]:  # noqa: ARG002
        self._check_usable()
        raise StoreReadOnly(self.path)

    @property
    def shared(self) -> bool:
        return True

    def _look(self) -> None:
        if not self._closed:
            self._pool.submit(self._compare)

    def _compare(self) -> None:
        """Wake those who wait for changes if another process has committed some."""
        with translated(self.path), self._comparing:
            found = self._kept.data_version()
            changed, self._version = found != self._version, found
        if changed:
            self._answer([], True)  # noqa: FBT003

    def _stop(self) -> None:
        for connection in list(self._reading):
            connection.interrupt()
        self._pool.shutdown(wait=True)
        for connection in (*self._readers, self._kept):
            connection.close()
        closed(self.path)
