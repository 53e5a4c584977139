"""Exports and imports of sessions: the files, and the drives that a move ends."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import sys
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from msgspec.structs import replace

from holdfast import errors
from holdfast.crashpoints import crash_point
from holdfast.errors.store import MOVED
from holdfast.names import check_id
from holdfast.plainfiles import sync_folder
from holdfast.runtime.budgets import spend_of_record
from holdfast.store.paths import real_places

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.runtime.context import RuntimeContext
    from holdfast.store.exports import MovedAway, SessionReport


_log: Final = logging.getLogger("holdfast.exports")
STREAM: Final = "-"
"""The path that stands for the standard input or output."""
_POLL: Final = 0.05


async def export_session(
    context: RuntimeContext,
    session: str,
    path: Path | str,
    *,
    move: bool = False,
    force: bool = False,
    memory: Sequence[str] | None = None,
) -> SessionReport:
    """Write a session into a file; see `Runtime.export_session`."""
    check_id("session", session)
    target = _path_of(path)
    if target is None:
        made = await _write(context, session, sys.stdout.buffer, memory, move=move)
        sys.stdout.buffer.flush()
    else:
        await asyncio.to_thread(_check_target, context, session, target, force=force)
        made = await _write_file(context, session, target, memory, move=move, force=force)
    what = "was moved" if made.move else "was copied"
    _log.info("a session %s into a file: %d journals, %d records", what, len(made.journals), made.records)
    return replace(made, path=str(path))


def _path_of(path: Path | str) -> Path | None:
    if not isinstance(path, str | Path) or not str(path) or "\0" in str(path):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise errors.InvalidArgument("path", path, "a path that a file can have")
    return None if str(path) == STREAM else Path(path).absolute()


def _check_target(context: RuntimeContext, session: str, target: Path, *, force: bool) -> None:
    if context.store.path is not None and os.path.realpath(target) in real_places(context.store.path):
        raise errors.ExportRefused(session, f"{target} belongs to the store; name another file")
    if not force and os.path.lexists(target):
        raise errors.ExportRefused(session, f"{target} exists already; name another file, or overwrite it (--force)")
    if target.is_dir():
        raise errors.ExportRefused(session, f"{target} is a folder; name a file")
    if not target.parent.is_dir():
        raise errors.ExportRefused(session, f"there is no folder {target.parent}")


async def _write(
    context: RuntimeContext, session: str, file: IO[bytes], memory: Sequence[str] | None, *, move: bool
) -> SessionReport:
    if move:
        away = await context.store.move_away(session)
        crash_point("export.moved")
        await _end_drives(context, away)
    return await context.store.export_session(session, file.write, memory=memory)


async def _end_drives(context: RuntimeContext, away: MovedAway) -> None:
    """Stop what drives the session in this process, and wait until no other process can do anything for it."""
    for journal in away.journals:
        moved = errors.JournalMoved(journal, f"{MOVED}{away.export}")
        context.changes.fail(journal, moved)
        if context.engine is not None:
            await context.engine.drop(journal, moved)
        context.children.drop(journal)
    until = context.store.clock.read().mono + away.left_ms
    while context.store.clock.read().mono < until:
        await asyncio.sleep(_POLL)


async def _write_file(
    context: RuntimeContext, session: str, target: Path, memory: Sequence[str] | None, *, move: bool, force: bool
) -> SessionReport:
    """Write a file that only this user may read; it gets its name when it is whole and on the disk.

    It is made before a session is moved: where none can be made, the session stays.
    """
    part = target.with_name(f"{target.name}.{secrets.token_hex(4)}.part")
    try:
        number = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(number, "wb") as file:
            made = await _write(context, session, file, memory, move=move)
            crash_point("export.written")
            file.flush()
            await asyncio.to_thread(os.fsync, file.fileno())
        if force:
            part.replace(target)
        else:
            os.link(part, target)  # never over another file
        crash_point("export.named")
        sync_folder(target.parent)
    except FileExistsError as error:
        raise errors.ExportRefused(session, f"{target} exists already; name another file") from error
    except OSError as error:
        raise errors.ExportRefused(session, f"{error.strerror or error}: {error.filename or target}") from error
    finally:
        with suppress(OSError):
            part.unlink()
    return made


async def import_session(
    context: RuntimeContext,
    path: Path | str,
    *,
    key: Path | str | None = None,
    trust: bool = False,
    dry_run: bool = False,
) -> SessionReport:
    """Store the session of a file; see `Runtime.import_session`."""
    source, name = _path_of(path), str(path)
    key_file = None if key is None else _path_of(key)
    if source is None:
        return await _import(context, sys.stdin.buffer, name, key_file, trust=trust, dry_run=dry_run)
    try:
        file = await asyncio.to_thread(_open, source)
    except OSError as error:
        raise errors.SessionFileDamaged(name, 1, f"it can't be read: {error.strerror or error}") from error
    with file:
        return await _import(context, file, name, key_file, trust=trust, dry_run=dry_run)


def _open(source: Path) -> IO[bytes]:
    """Open a file, or a pipe that somebody writes; never wait for a writer."""
    number = os.open(source, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    os.set_blocking(number, True)
    return os.fdopen(number, "rb")


async def _import(
    context: RuntimeContext, source: IO[bytes], name: str, key: Path | None, *, trust: bool, dry_run: bool
) -> SessionReport:
    file = await context.store.read_session_file(source, name)
    try:
        crash_point("import.read")
        made = await context.store.import_session(file, name, spend_of_record, key=key, trust=trust, dry_run=dry_run)
    finally:
        file.close()
    crash_point("import.done")
    if made.fresh and not dry_run:
        _log.info("a session was imported: %d journals, %d records", len(made.journals), made.records)
    return made
