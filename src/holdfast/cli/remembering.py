"""`holdfast memory ls`, `get`, `set` and `rm`."""

from __future__ import annotations

import os
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.cli.failures import FAILED, CallInvalid
from holdfast.cli.sessions import require_store
from holdfast.cli.terminal import duration, one_line, printable, stderr, stdout, table
from holdfast.errors import HoldfastError, MemoryCorrupt
from holdfast.memory import Memory
from holdfast.memory.mirror import Mirror
from holdfast.store import MemoryPlace, open_store, view_store
from holdfast.store.beside import memory_folder

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence
    from pathlib import Path

    from holdfast.store import MemoryChange, MemoryScope, Remembered, Store

AUTHOR: Final = "cli"


@asynccontextmanager
async def remembering(path: Path, *, writes: bool = False) -> AsyncGenerator[Store]:
    """The store, with the edits of the files beside it taken in; what is changed here is mirrored, too.

    Where memory is not mirrored, no folder is made, and a command that only looks writes nothing; nor where it can't.
    """
    require_store(path)
    mirrored = memory_folder(path).is_dir()
    if not writes and not (mirrored and os.access(path, os.W_OK)):
        async with view_store(path) as store:
            yield store
        return
    async with open_store(path) as store:
        mirror = Mirror(store, memory_folder(path)) if mirrored else None
        await _sync(mirror)
        yield store
        if writes:
            await _sync(mirror)


async def _sync(mirror: Mirror | None) -> None:
    """Compare the folder with memory; that it can't be done is no reason not to do what was asked."""
    if mirror is None:
        return
    err = stderr()
    try:
        report = await mirror.sync()
    except (HoldfastError, OSError) as error:
        err.line(f"holdfast: the files of memory were left alone: {one_line(str(error), 300)}")
        return
    for path in report.conflicts:
        err.line(f"holdfast: both sides were changed; one text is kept as {printable(path)}")
    for refused in report.refused:
        err.line(f"holdfast: left alone: {printable(refused.path)}: {one_line(refused.reason, 300)}")


async def ls(path: Path, scope: str | None, prefix: str, search: str, *, as_json: bool) -> int:
    """List scopes or entries. Those that are damaged are named, and the exit code says that there are some."""
    if prefix and search:
        raise CallInvalid("--prefix and --search do not go together")
    if prefix and scope is None:
        raise CallInvalid("--prefix needs a SCOPE")
    async with remembering(path) as store:
        now = store.clock.read().wall
        if scope is None and not search:
            _show_scopes(await store.memory_scopes(), as_json=as_json)
            return 0
        if search:
            entries, damaged, _ = await store.memory_search(scope, search)
        else:
            memory, keys = Memory(store, scope or ""), list[str]()
            entries = [entry async for entry in memory.entries(prefix, damaged=keys.append)]
            damaged = [MemoryPlace(memory.scope, key) for key in keys]
    _show_entries(entries, now, as_json=as_json, scoped=scope is not None)
    for place in damaged:
        stderr().line(f"holdfast: left out: {one_line(str(MemoryCorrupt(*place)), 600)}")
    return FAILED if damaged else 0


def _show_scopes(scopes: Sequence[MemoryScope], *, as_json: bool) -> None:
    out = stdout()
    if as_json:
        out.line(msgspec.json.encode(scopes).decode())
    elif not scopes:
        out.line("nothing is remembered")
    else:
        rows = [["SCOPE", "ENTRIES", "BYTES"]]
        rows += [[printable(scope.scope), f"{scope.entries:,}", f"{scope.bytes:,}"] for scope in scopes]
        out.write("".join(f"{line}\n" for line in table(rows, rows)))


def _show_entries(entries: list[Remembered], now: int, *, as_json: bool, scoped: bool) -> None:
    out = stdout()
    if as_json:
        out.line(msgspec.json.encode(entries).decode())
        return
    if not entries:
        out.line("no entries")
        return
    rows = [["KEY" if scoped else "SCOPE/KEY", "VERSION", "CHANGED", "EXPIRES", "TEXT"]]
    for entry in entries:
        name = entry.key if scoped else f"{entry.scope}/{entry.key}"
        expires = "-" if entry.expires is None else f"in {duration(max(entry.expires - now, 0))}"
        changed = f"{duration(max(now - entry.updated, 0))} ago"
        rows.append([printable(name), str(entry.version), changed, expires, one_line(entry.value, 50)])
    out.write("".join(f"{line}\n" for line in table(rows, rows)))


async def get(path: Path, scope: str, key: str, *, history: bool, as_json: bool) -> int:
    """Print an entry, or its history."""
    async with remembering(path) as store:
        memory = Memory(store, scope)
        entry = await memory.get(key)
        changes = await memory.history(key) if history else []
    out = stdout()
    if history and changes:
        _show_changes(changes, as_json=as_json)
        return 0
    if entry is None:
        stderr().line(f"holdfast: {scope!r} has no entry {key!r}")
        return FAILED
    if as_json:
        out.line(msgspec.json.encode(entry).decode())
    else:
        # To the byte where a program reads it; on a terminal the prompt begins on a line of its own.
        if out.live:
            out.write(out.clean(entry.value))
        else:
            out.exactly(entry.value)
        if out.live and not entry.value.endswith("\n"):
            out.line()
    return 0


def _show_changes(changes: list[MemoryChange], *, as_json: bool) -> None:
    out = stdout()
    if as_json:
        out.line(msgspec.json.encode(changes).decode())
        return
    rows = [["VERSION", "CHANGE", "BY", "TEXT"]]
    for change in changes:
        text = "-" if change.value is None else one_line(change.value, 60)
        rows.append([str(change.version), change.change, one_line(change.by or "-", 40), text])
    out.write("".join(f"{line}\n" for line in table(rows, rows)))


async def put(  # noqa: PLR0913
    path: Path, scope: str, key: str, value: str, *, expect: int | None, ttl: float | None, as_json: bool
) -> int:
    """Write an entry."""
    async with remembering(path, writes=True) as store:
        text = read_input() if value == "-" else value
        entry = await Memory(store, scope, by=AUTHOR).put(key, text, expected=expect, ttl=ttl)
    said = msgspec.json.encode(entry).decode() if as_json else f"{scope}/{key} is at version {entry.version}"
    stdout().line(said)
    return 0


def read_input() -> str:
    """All of standard input, as text."""
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        message = f"standard input is not UTF-8 text: byte {error.start:,} is 0x{error.object[error.start]:02x}"
        raise CallInvalid(message) from None


async def rm(path: Path, scope: str, keys: Sequence[str], *, expect: int | None, as_json: bool) -> int:
    """Remove entries."""
    if expect is not None and len(keys) > 1:
        raise CallInvalid("--expect goes with one KEY")
    async with remembering(path, writes=True) as store:
        memory = Memory(store, scope, by=AUTHOR)
        removed = [key for key in keys if await memory.delete(key, expected=expect) is not None]
    missing = [key for key in keys if key not in removed]
    if as_json:
        stdout().line(msgspec.json.encode({"removed": removed, "missing": missing}).decode())
    for key in missing:
        stderr().line(f"holdfast: {scope!r} has no entry {key!r}")
    return FAILED if missing else 0
