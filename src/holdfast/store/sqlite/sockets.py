"""The sockets of a store file: how the processes that have it open reach each other, for live events.

Each driving process listens on a Unix socket (mode 0600) with a random name, in the folder ``<store>.live`` (mode 0700)
beside the store. This module knows addresses, not what is said: a store without a file serves the same methods by
another transport. A socket is opened through the descriptor of its folder, as the address of a Unix socket has only 108
bytes, and as no other user can put another folder in its place between check and use.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shlex
import socket
import stat
import struct
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from holdfast.errors import SocketsUnusable
from holdfast.store.paths import live_folder

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path


BACKLOG: Final = 64
"""Connections that wait to be accepted."""
_NAME: Final = re.compile(r"[0-9a-f]{12}\Z", re.ASCII)
_DESCRIPTORS: Final = "/proc/self/fd"
_MAX_ADDRESS: Final = 100
_ATTEMPTS: Final = 5
_BEYOND_OWNER: Final = 0o077
_CREDENTIALS: Final = struct.Struct("3i")


class Listener(NamedTuple):
    """A socket that listens, not blocking, and its name."""

    name: str
    socket: socket.socket


class StoreSockets:
    """Listens for processes that have the same store open, and connects to them. `key` is the secret they share."""

    def __init__(self, store: Path, key: bytes) -> None:
        self.store = store
        self.key = key
        self._folder = live_folder(store)

    def listen(self) -> Listener:
        """Listen under a new name; raises `SocketsUnusable`. Removes the sockets of processes that were killed."""
        for _ in range(_ATTEMPTS):
            try:
                with suppress(FileExistsError):
                    self._folder.mkdir(0o700)
                with self._opened() as folder:
                    self._remove_dead(folder)
                    return self._bind(folder)
            except FileNotFoundError:  # the last process that left has just removed the folder
                continue
            except OSError as error:
                reason = f"{self._folder}: {error.strerror or error}"
                raise self._unusable(
                    reason, "keep the store on a file system with sockets, where you may write"
                ) from error
        raise self._unusable("its folder is removed again and again", "see which program does that")

    def _bind(self, folder: int) -> Listener:
        """A socket is bound under another name first: one that has its name and refuses connections is dead."""
        name = secrets.token_hex(6)
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            made.setblocking(False)
            made.bind(self._address(folder, f".{name}"))
            os.chmod(f".{name}", 0o600, dir_fd=folder)
            made.listen(BACKLOG)
            os.rename(f".{name}", name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            made.close()
            raise
        return Listener(name, made)

    def close(self, listener: Listener) -> None:
        """Stop listening; the last process removes the folder."""
        listener.socket.close()
        with suppress(OSError, SocketsUnusable):
            with self._opened() as folder:
                os.unlink(listener.name, dir_fd=folder)
            self._folder.rmdir()

    def names(self) -> set[str]:
        """The names of the processes that listen; some may have ended. Raises `SocketsUnusable`."""
        try:
            with self._opened() as folder:
                return {name for name in os.listdir(folder) if _NAME.match(name)}
        except FileNotFoundError:
            return set()

    async def connect(self, name: str) -> socket.socket | None:
        """A connection, not blocking; None if that process has ended or has no room. Raises `SocketsUnusable`."""
        try:
            with self._opened() as folder:
                return self._connect(folder, name)
        except OSError:
            return None

    def own_user(self, peer: socket.socket) -> bool:
        """True if the process at the other end runs as our user, as far as the system says."""
        option = getattr(socket, "SO_PEERCRED", None)
        if option is None:
            return True
        _, user, _ = _CREDENTIALS.unpack(peer.getsockopt(socket.SOL_SOCKET, option, _CREDENTIALS.size))
        return user == os.geteuid()

    def _connect(self, folder: int, name: str) -> socket.socket:
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            made.setblocking(False)
            made.connect(self._address(folder, name))  # a Unix socket answers at once
        except BaseException as error:
            made.close()
            if isinstance(error, ConnectionRefusedError):
                with suppress(OSError):  # its process was killed
                    os.unlink(name, dir_fd=folder)
            raise
        return made

    def _remove_dead(self, folder: int) -> None:
        for name in os.listdir(folder):
            if _NAME.match(name.removeprefix(".")):
                with suppress(OSError):
                    self._connect(folder, name).close()

    @contextmanager
    def _opened(self) -> Generator[int]:
        """The descriptor of the folder, which only our user can enter."""
        quoted = shlex.quote(str(self._folder))
        try:
            handle = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            if error.errno not in {errno.ENOTDIR, errno.ELOOP}:
                raise
            raise self._unusable(f"{self._folder} is no folder", f"run: mv {quoted} {quoted}.away") from error
        try:
            found = os.fstat(handle)
            if found.st_uid != os.geteuid():
                raise self._unusable(f"{self._folder} belongs to user {found.st_uid}", f"run: rm -r {quoted}")
            if found.st_mode & _BEYOND_OWNER:
                mode = stat.S_IMODE(found.st_mode)
                raise self._unusable(f"others may enter {self._folder} (mode {mode:04o})", f"run: chmod 700 {quoted}")
            yield handle
        finally:
            os.close(handle)

    def _address(self, folder: int, name: str) -> str:
        """The address of a socket: by the descriptor of the folder where the system has such paths."""
        if os.path.isdir(f"{_DESCRIPTORS}/{folder}"):  # noqa: PTH112  a descriptor
            return f"{_DESCRIPTORS}/{folder}/{name}"
        path = str(self._folder / name)
        if len(os.fsencode(path)) > _MAX_ADDRESS:
            raise self._unusable(f"the path {path} is too long for a socket", "move the store to a shorter path")
        return path

    def _unusable(self, reason: str, remedy: str) -> SocketsUnusable:
        return SocketsUnusable(self.store, reason, remedy)
