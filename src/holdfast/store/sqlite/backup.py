"""A copy of a store that is in use: one file with one state of it, taken in steps, while writers go on."""

from __future__ import annotations

import os
import secrets
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any, Final, cast

import apsw
import msgspec

from holdfast.crashpoints import crash_point
from holdfast.errors import BackupRefused
from holdfast.plainfiles import read_plain_file, sync_folder, write_new_file
from holdfast.store.paths import key_file
from holdfast.store.sqlite import files
from holdfast.store.sqlite.health import examine

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from holdfast.store.contract import StoreLimits
    from holdfast.store.spending import SpendOf


STEP_PAGES: Final = 256
"""Pages that are copied before the copy looks if it is to stop: a megabyte."""
_KEY_BYTES: Final = 1_024


class BackupReport(msgspec.Struct, frozen=True):
    """A finished backup, as `holdfast doctor` finds it."""

    path: str
    bytes: int
    journals: int
    records: int
    key: str | None
    """The file with the key of the store; None if it was left out, or is in the environment."""
    healthy: bool
    problems: tuple[str, ...] = ()
    """Problems of the backup. The store has the same ones."""


def copy_store(
    source: Path,
    target: Path,
    limits: StoreLimits,
    spend_of: SpendOf | None,
    stopped: Callable[[], bool],
    *,
    with_key: bool,
) -> BackupReport | None:
    """Copy the store at `source` into the new file `target`, and check the copy; None if it was `stopped`.

    The copy gets its name once it is complete, synced and checked. It has no lease holders.
    """
    target = target.absolute()
    wanted = [target, *([key_file(target)] if with_key else [])]
    for path in wanted:
        if os.path.lexists(path):
            raise BackupRefused(target, f"{path} exists already; name another file, or move that one away")
    part = target.with_name(f"{target.name}.{secrets.token_hex(4)}.part")
    made = [part, key_file(part)]
    try:
        os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        with files.translated(source):
            if not _copy(source, part, limits, stopped):
                return None
        if with_key and key_file(source).exists():
            write_new_file(key_file(part), read_plain_file(key_file(source), _KEY_BYTES)[1])
        crash_point("backup.copied")
        health = examine(part, None, spend_of)
        if stopped():
            return None
        named = None
        if key_file(part).exists():
            os.link(key_file(part), key_file(target))
            named = str(key_file(target))
        os.link(part, target)  # never over another file
        crash_point("backup.named")
        sync_folder(target.parent)
    except FileExistsError as error:
        raise BackupRefused(target, f"{error.filename2 or error.filename} exists already; name another file") from error
    except OSError as error:
        raise BackupRefused(target, f"{error.strerror or error}: {error.filename}") from error
    finally:
        for path in (*made, part.with_name(f"{part.name}-wal"), part.with_name(f"{part.name}-shm")):
            with suppress(OSError):
                path.unlink()
    problems = health.problems if with_key else tuple(one for one in health.problems if not one.startswith("key:"))
    journals = sum(health.journals.values())
    return BackupReport(str(target), health.bytes, journals, health.records, named, not problems, problems)


def _copy(source: Path, part: Path, limits: StoreLimits, stopped: Callable[[], bool]) -> bool:
    """Copy one state of the store; False if it was stopped."""
    with closing(files.connect_viewer(source, limits)) as original, files.snapshot(original):
        original.execute("SELECT count(*) FROM meta").fetchall()  # all steps copy this state, without later commits
        with closing(files.connect(part, apsw.SQLITE_OPEN_READWRITE)) as made:
            with cast("Any", made).backup("main", original, "main") as copy:
                while not copy.done:
                    if stopped():
                        return False
                    copy.step(STEP_PAGES)
                    crash_point("backup.step")
            # One file without a log; the processes that hold leases of the store hold none of the copy.
            made.execute("PRAGMA locking_mode = EXCLUSIVE; PRAGMA journal_mode = DELETE; PRAGMA synchronous = FULL")
            made.execute("UPDATE journals SET owner = NULL, expires = 0, mono_expires = 0 WHERE owner IS NOT NULL")
            made.execute("DELETE FROM writers")
    number = os.open(part, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(number)
    finally:
        os.close(number)
    return True
