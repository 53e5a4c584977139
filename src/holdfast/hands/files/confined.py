"""The one open of this package: from a directory downwards, never out of it, whatever others rename meanwhile.

`open_by_kernel` lets the kernel resolve the whole path in one call and refuse what leads out. `open_by_walk` takes the
path name by name from open directories, for systems that have no such call; a link is read and walked in the same way.
Both answer with the same errors: EXDEV for a path that leads out, ELOOP for a link where none is followed.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import platform
import stat
import sys
from collections import deque
from contextlib import suppress
from typing import Any, ClassVar, Final, Protocol

from holdfast.hands.files.errors import ConfinementUnavailable
from holdfast.hands.files.protected import folded
from holdfast.store.beside import FOLDER, in_store_folder

MAX_LINKS: Final = 40

_NO_MAGIC_LINKS: Final = 0x02
_NO_SYMLINKS: Final = 0x04
_BENEATH: Final = 0x08
_TRIES: Final = 64
_GET_PATH: Final = getattr(fcntl, "F_GETPATH", 50)
# Not blocking: a pipe without a writer, or a device without a medium, must not keep the thread for ever.
_ALWAYS: Final = os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
_PASSING: Final = getattr(os, "O_PATH", os.O_RDONLY) | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)


class Opener(Protocol):
    """Opens `path` below the directory `root`. With `follow` links are followed as long as they stay below."""

    def __call__(self, root: int, path: bytes, flags: int, *, follow: bool, mode: int = 0) -> int:
        """A new descriptor; `OSError` with EXDEV where the path leads out."""
        ...


def choose(root: int) -> Opener:
    """The strictest way that works here; `ConfinementUnavailable` where none does."""
    if _kernel_can(root):
        return open_by_kernel
    missing = [name for name in ("O_NOFOLLOW", "O_DIRECTORY") if not hasattr(os, name)]
    missing += [call.__name__ for call in (os.open, os.readlink, os.stat) if call not in os.supports_dir_fd]
    if missing:
        raise ConfinementUnavailable(f"there is neither openat2() nor {', '.join(missing)} for directories")
    return open_by_walk


# ---- but for the folder of the store ---------------------------------------------------------------------------------


class StoreFolder(OSError):
    """The path leads into a folder in which stores are kept."""

    def __init__(self) -> None:
        super().__init__(errno.EACCES, os.strerror(errno.EACCES))


def outside_store(opener: Opener) -> Opener:
    """The same opener, but `StoreFolder` for every path that leads into a store folder, also by a link."""

    def open_outside(root: int, path: bytes, flags: int, *, follow: bool, mode: int = 0) -> int:
        if _leads_to_store(os.fsdecode(path)):
            raise StoreFolder
        number = opener(root, path, flags, follow=follow, mode=mode)
        try:
            if follow and _leads_to_store(_real_path(number)):
                raise StoreFolder
        except OSError:
            os.close(number)
            raise
        return number

    return open_outside


def _leads_to_store(path: str) -> bool:
    if path.isascii() and FOLDER not in path.lower():
        return False  # nearly all paths: comparing names as every file system might takes a while
    return in_store_folder("/".join(folded(name) for name in path.split("/")))


def _real_path(number: int) -> str:
    """Where an open file is, links resolved. `StoreFolder` where the system can't tell: nobody knows where it leads."""
    with suppress(OSError):
        return os.readlink(f"/proc/self/fd/{number}")  # noqa: PTH115
    try:
        return os.fsdecode(fcntl.fcntl(number, _GET_PATH, bytes(1024)).rstrip(b"\0"))
    except OSError:
        raise StoreFolder from None


# ---- by the kernel ---------------------------------------------------------------------------------------------------


class _How(ctypes.Structure):
    _fields_: ClassVar[list[tuple[str, Any]]] = [  # pyright: ignore[reportIncompatibleVariableOverride]
        ("flags", ctypes.c_uint64),
        ("mode", ctypes.c_uint64),
        ("resolve", ctypes.c_uint64),
    ]


def open_by_kernel(root: int, path: bytes, flags: int, *, follow: bool, mode: int = 0) -> int:
    """Open by openat2(): the path is resolved below `root`, in one step that no rename can come between."""
    resolve = _BENEATH | _NO_MAGIC_LINKS | (0 if follow else _NO_SYMLINKS)
    how = _How(flags | _ALWAYS, mode, resolve)
    for _ in range(_TRIES):
        number = _openat2(root, path, how)
        if number >= 0:
            return number
        failed = ctypes.get_errno()
        # EAGAIN: a directory on the way was renamed at this moment, so the kernel can't vouch for a '..' in a link.
        if failed not in {errno.EAGAIN, errno.EINTR}:
            raise OSError(failed, os.strerror(failed))
    raise OSError(errno.EAGAIN, "the directories on the way do not keep still")


def _openat2(root: int, path: bytes, how: _How) -> int:
    call = ctypes.c_long(_number())
    size = ctypes.c_size_t(ctypes.sizeof(how))
    return int(_libc().syscall(call, ctypes.c_int(root), ctypes.c_char_p(path), ctypes.byref(how), size))


def _number() -> int:
    return 547 if platform.machine() == "alpha" else 437  # the same everywhere else


_LIBC: Final[list[ctypes.CDLL]] = []


def _libc() -> ctypes.CDLL:
    if not _LIBC:
        library = ctypes.CDLL(None, use_errno=True)
        library.syscall.restype = ctypes.c_long
        _LIBC.append(library)
    return _LIBC[0]


def _kernel_can(root: int) -> bool:
    if not sys.platform.startswith("linux"):
        return False
    try:
        number = open_by_kernel(root, b".", os.O_RDONLY | os.O_DIRECTORY, follow=False)
    except (OSError, AttributeError):
        return False  # an old kernel, or a sandbox that does not know the call
    os.close(number)
    return True


# ---- name by name ----------------------------------------------------------------------------------------------------


def open_by_walk(root: int, path: bytes, flags: int, *, follow: bool, mode: int = 0) -> int:
    """Open name by name, from one open directory to the next, and never through a link that the system follows."""
    walk = _Walk(root, follow=follow)
    try:
        return walk.open(path, flags | _ALWAYS, mode)
    finally:
        walk.close()


class _Walk:
    def __init__(self, root: int, *, follow: bool) -> None:
        self._root = root
        self._follow = follow
        self._held: list[int] = []
        self._links = 0
        self._todo: deque[bytes] = deque()

    def close(self) -> None:
        while self._held:
            os.close(self._held.pop())

    def open(self, path: bytes, flags: int, mode: int) -> int:
        if path.startswith(b"/"):
            raise _leads_out()
        self._todo.extend(_names(path))
        while self._todo:
            name = self._todo.popleft()
            if name == b"..":
                self._up()
                continue
            # The system says what it finds, so that a link is seen at the moment at which it would be used.
            wanted = _PASSING if self._todo else flags | os.O_NOFOLLOW
            try:
                number = os.open(name, wanted | os.O_CLOEXEC, mode, dir_fd=self._here)
            except OSError as error:
                self._follow_link(name, error)
                continue
            if not self._todo:
                return number
            self._held.append(number)
        return os.open(b".", flags, mode, dir_fd=self._here)

    @property
    def _here(self) -> int:
        return self._held[-1] if self._held else self._root

    def _up(self) -> None:
        # Back to where the walk came from, not to what the system would call the parent by now.
        if not self._held:
            raise _leads_out()
        os.close(self._held.pop())

    def _follow_link(self, name: bytes, error: OSError) -> None:
        if error.errno not in {errno.ELOOP, errno.EMLINK, errno.ENOTDIR}:
            raise error
        target: bytes | None = None
        with suppress(OSError):
            target = os.readlink(name, dir_fd=self._here)
        self._links += 1
        if target is None:
            self._again(name, error)
            return
        if not self._follow or self._links > MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        if target.startswith(b"/"):
            raise _leads_out()
        self._todo.extendleft(reversed(_names(target)))

    def _again(self, name: bytes, error: OSError) -> None:
        """Try a name once more if somebody put a directory in the place of a link at this moment."""
        found = os.stat(name, dir_fd=self._here, follow_symlinks=False)
        if not stat.S_ISDIR(found.st_mode) or self._links > MAX_LINKS:
            raise error
        self._todo.appendleft(name)


def _names(path: bytes) -> list[bytes]:
    names = [name for name in path.split(b"/") if name not in {b"", b"."}]
    # What ends in a slash is a directory, or nothing.
    return [*names, b"."] if names and path.endswith((b"/", b"/.")) else names


def _leads_out() -> OSError:
    return OSError(errno.EXDEV, os.strerror(errno.EXDEV))
