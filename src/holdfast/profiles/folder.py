"""The folder of profiles: a file of mode 0600 for each, in a folder of mode 0700, written atomically."""

from __future__ import annotations

import fcntl
import os
import secrets
import stat
import time
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from holdfast.crashpoints import crash_point
from holdfast.errors import InvalidId
from holdfast.names import check_name, check_string
from holdfast.profiles.profile import (
    KeyringUnavailable,
    NoProfilesFolder,
    Profile,
    ProfileInvalid,
    ProfilesBusy,
    ProfilesUnsafe,
    ProfileUnknown,
    SecretMissing,
    check_profile,
    decode_profile,
    encode_profile,
    parse_reference,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

    from holdfast.profiles.profile import SecretReference


FOLDER_VARIABLE: Final = "HOLDFAST_PROFILES"
"""Environment variable that names another folder."""
_SUFFIX: Final = ".json"
_DEFAULT: Final = ".default"  # no profile can be called so: names do not begin with a dot
_LOCK: Final = ".lock"
_NEW_PREFIX: Final = ".new-"
_MAX_BYTES: Final = 256 * 1024
_MAX_NAME: Final = 200
"""Longest name, in bytes, as file systems count."""
_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH
_PATIENCE: Final = 5.0
_PAUSE: Final = 0.01


def profiles_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder of profiles: the one of the environment, or the user's configuration folder."""
    named = environ.get(FOLDER_VARIABLE, "")
    configured = environ.get("XDG_CONFIG_HOME", "")
    try:
        if named:
            return Path(named).expanduser().absolute()
        base = Path(configured) if configured.startswith("/") else Path.home() / ".config"
    except RuntimeError:
        raise NoProfilesFolder from None
    return base / "holdfast" / "profiles"


def check_profile_name(name: object) -> str:
    """Check a name, which becomes the name of a file."""
    found = check_name("profile", name)
    size = len(found.encode())
    if size > _MAX_NAME:
        raise InvalidId("profile", name, f"it has {size:,} bytes, the limit is {_MAX_NAME}")
    return found


class Profiles:
    """The profiles in one folder. Nothing is cached."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def names(self) -> list[str]:
        """List all profiles by name."""
        self._trust_folder()
        try:
            entries = [entry.name for entry in self.folder.iterdir()]
        except FileNotFoundError:
            return []
        found: list[str] = []
        for entry in entries:
            if entry.endswith(_SUFFIX):
                with suppress(InvalidId):  # not a profile
                    found.append(check_profile_name(entry.removesuffix(_SUFFIX)))
        return sorted(found)

    def get(self, name: str) -> Profile:
        """Read a profile."""
        self._trust_folder()
        data = _read(self._file(name), name)
        if data is None:
            raise ProfileUnknown(name, self.names())
        return decode_profile(name, data)

    def default(self) -> str | None:
        """Return the name of the default profile, if there is one."""
        data = _read(self.folder / _DEFAULT, _DEFAULT)
        if data is None:
            return None
        self._trust_folder()
        try:
            return check_profile_name(data.decode().removesuffix("\n"))
        except (InvalidId, UnicodeError):
            raise ProfileInvalid(_DEFAULT, "it names no profile; 'holdfast profiles default NAME' names one") from None

    def save(self, name: str, profile: Profile) -> None:
        """Create or replace a profile durably."""
        self.change(name, lambda _: profile)

    def change(self, name: str, change: Callable[[Profile | None], Profile]) -> Profile:
        """Replace a profile by `change(profile)`, under a lock; a new one by `change(None)`."""
        path = self._file(name)
        with self._lock():
            data = _read(path, name)
            if data is None:
                self._refuse_twin(name)
            made = check_profile(name, change(None if data is None else decode_profile(name, data)))
            self._write(path, encode_profile(made))
        return made

    def remove(self, name: str) -> None:
        """Remove a profile, and the default if it was this one."""
        path = self._file(name)
        with self._lock():
            if not os.path.lexists(path):
                raise ProfileUnknown(name, self.names())
            with suppress(ProfileInvalid):
                if self.default() == name:
                    (self.folder / _DEFAULT).unlink()
            path.unlink()
            _sync(self.folder)

    def set_default(self, name: str | None) -> None:
        """Set the default profile; None: no default."""
        path = None if name is None else self._file(name)
        with self._lock():
            if path is None:
                (self.folder / _DEFAULT).unlink(missing_ok=True)
                _sync(self.folder)
            elif not path.exists():
                raise ProfileUnknown(str(name), self.names())
            else:
                self._write(self.folder / _DEFAULT, f"{name}\n".encode())

    def _file(self, name: str) -> Path:
        return self.folder / f"{check_profile_name(name)}{_SUFFIX}"

    def _refuse_twin(self, name: str) -> None:
        # On some file systems two names that differ only in case are one file.
        twin = next((known for known in self.names() if known.casefold() == name.casefold()), None)
        if twin is not None:
            raise ProfileInvalid(name, f"there is {twin!r}, which differs from it only in case")

    def _trust_folder(self) -> None:
        with suppress(FileNotFoundError):
            _check_owner(self.folder, self.folder.stat(), "chmod 700")

    @contextmanager
    def _lock(self) -> Generator[None]:
        """Hold the lock of the folder."""
        _make_folder(self.folder)
        self._trust_folder()
        lock = os.open(self.folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            end = time.monotonic() + _PATIENCE
            while not _try_lock(lock):
                if time.monotonic() > end:
                    raise ProfilesBusy(self.folder)
                time.sleep(_PAUSE)
            for left in self.folder.glob(f"{_NEW_PREFIX}*"):  # of a killed writer; live ones wait for the lock
                left.unlink(missing_ok=True)
            yield
        finally:
            os.close(lock)

    def _write(self, path: Path, data: bytes) -> None:
        new = self.folder / f"{_NEW_PREFIX}{secrets.token_hex(8)}"
        handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            with open(handle, "wb") as file:  # noqa: PTH123  it is open already
                os.fchmod(file.fileno(), 0o600)
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            crash_point("profiles.written")
            new.replace(path)
        except BaseException:
            new.unlink(missing_ok=True)
            raise
        crash_point("profiles.renamed")
        _sync(self.folder)


def _read(path: Path, name: str) -> bytes | None:
    """Read a file, if it exists. Raises `ProfilesUnsafe` if another user can write to it."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except FileNotFoundError:
        return None
    try:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise ProfileInvalid(name, "it is no regular file")
        _check_owner(path, found, "chmod 600")
        data = b""
        while len(data) <= _MAX_BYTES and (part := os.read(handle, _MAX_BYTES)):
            data += part
    finally:
        os.close(handle)
    if len(data) > _MAX_BYTES:
        raise ProfileInvalid(name, f"its file is larger than {_MAX_BYTES:,} bytes")
    return data


def _check_owner(path: Path, found: os.stat_result, remedy: str) -> None:
    if found.st_uid not in {os.geteuid(), 0}:
        raise ProfilesUnsafe(path, "it belongs to another user", f"name a folder of your own with {FOLDER_VARIABLE}")
    if found.st_mode & _OTHERS:
        raise ProfilesUnsafe(path, "others may write to it", f"{remedy} makes it yours alone")


def _make_folder(folder: Path) -> None:
    missing = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    for parent in reversed(missing):
        with suppress(FileExistsError):
            parent.mkdir(mode=0o700)
        _sync(parent.parent)


def _try_lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def missing_secrets(profile: Profile, environ: Mapping[str, str]) -> dict[str, SecretReference]:
    """Return the variables of a profile that are not set, with their references."""
    return {
        variable: parse_reference(reference)
        for variable, reference in profile.secrets.items()
        if not environ.get(variable, "").strip()
    }


def read_secret(reference: SecretReference, wanted_as: str, environ: Mapping[str, str]) -> str:
    """Read a secret. Raises `SecretMissing` if there is none."""
    found = environ.get(reference.name, "") if reference.place == "env" else _from_keyring(reference)
    if not found.strip():
        raise SecretMissing(str(reference), wanted_as)
    try:
        check_string(wanted_as, found)
    except InvalidId:
        found = "\0"
    if "\0" in found:
        raise KeyringUnavailable(str(reference), "what it holds is no text")
    return found


def _from_keyring(reference: SecretReference) -> str:
    try:
        keyring: Any = import_module("keyring")
    except ImportError:
        raise KeyringUnavailable(str(reference), "the package 'keyring' is not installed") from None
    failed = ""
    found: object = None
    try:
        found = keyring.get_password(reference.service, reference.name)
    except Exception as error:  # noqa: BLE001  each keyring has errors of its own
        failed = type(error).__name__
    if failed:  # raised outside of the handler, because the keyring's own exception may hold secrets
        raise KeyringUnavailable(str(reference), f"the keyring failed with {failed}")
    return found if isinstance(found, str) else ""
