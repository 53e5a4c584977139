"""`holdfast memory export` and `import`: entries as lines of JSON."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.bounds import check_int
from holdfast.cli.failures import FAILED, CallInvalid
from holdfast.cli.remembering import read_input, remembering
from holdfast.cli.terminal import Terminal, one_line, printable, stderr, stdout
from holdfast.errors import MemoryConflict, UsageError
from holdfast.memory import Memory
from holdfast.names import check_name, check_string

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from holdfast.store import Store

_AUTHOR: Final = "import"
_TRIES: Final = 5


class Line(msgspec.Struct, frozen=True):
    """One entry of an export; what else stands there is for people."""

    scope: str
    key: str
    value: str
    expires: int | None = None


class _Counted(msgspec.Struct):
    written: int = 0
    unchanged: int = 0
    expired: int = 0
    left: list[str] = msgspec.field(default_factory=list[str])
    """Entries that have another text."""


class _Progress:
    """A line that grows on a terminal, and nothing elsewhere."""

    def __init__(self, err: Terminal) -> None:
        self._err = err

    def show(self, done: int) -> None:
        if self._err.live and done % 100 == 0:
            self._err.write(f"\r{done:,} entries ")

    def clear(self) -> None:
        if self._err.live:
            self._err.write("\r\x1b[K")


async def export_entries(path: Path, scope: str | None, out: Path | None) -> int:
    """Write all entries, or those of one scope."""
    progress = _Progress(stderr())
    count = 0
    damaged: list[str] = []
    async with remembering(path) as store:
        if out is None:
            async for line in _lines(store, scope, damaged):
                sys.stdout.buffer.write(line)
                count += 1
            sys.stdout.buffer.flush()
            return _told(damaged)
        beside = out.with_name(f".{out.name}.{os.getpid()}.tmp")
        number = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(number, "wb") as file:
                async for line in _lines(store, scope, damaged):
                    file.write(line)
                    count += 1
                    progress.show(count)
                file.flush()
                os.fsync(number)
            beside.replace(out)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise
    progress.clear()
    stderr().line(f"{count:,} entries")
    return _told(damaged)


def _told(damaged: list[str]) -> int:
    """Say which entries are missing, because they are damaged."""
    for name in damaged:
        stderr().line(f"left out: {one_line(name)} does not match its checksum")
    return FAILED if damaged else 0


async def _lines(store: Store, scope: str | None, damaged: list[str]) -> AsyncGenerator[bytes]:
    scopes = [found.scope for found in await store.memory_scopes()] if scope is None else [scope]
    for name in scopes:
        here: list[str] = []
        async for entry in Memory(store, name).entries(damaged=here.append):
            yield printable(msgspec.json.encode(entry).decode()).encode() + b"\n"
        damaged += [f"the memory {key!r} of {name!r}" for key in here]


async def import_entries(path: Path, file: str, *, overwrite: bool, as_json: bool) -> int:
    """Write the entries of an export; all lines are checked before the first is written."""
    lines = _read(read_input() if file == "-" else _text(Path(file)))
    counted = _Counted()
    progress = _Progress(stderr())
    async with remembering(path, writes=True) as store:
        for number, line in enumerate(lines, 1):
            await _import(store, line, counted, overwrite=overwrite)
            progress.show(number)
    progress.clear()
    out = stdout()
    if as_json:
        out.line(msgspec.json.encode(counted).decode())
    else:
        expired = f", {counted.expired:,} expired" if counted.expired else ""
        out.line(f"{counted.written:,} written, {counted.unchanged:,} there already{expired}")
    for name in counted.left:
        stderr().line(f"holdfast: {one_line(name, 400)} has another text and was left; --overwrite replaces it")
    return FAILED if counted.left else 0


def _text(file: Path) -> str:
    try:
        return file.read_bytes().decode()
    except UnicodeDecodeError as error:
        message = f"{file} is not UTF-8 text: byte {error.start:,} is 0x{error.object[error.start]:02x}"
        raise CallInvalid(message) from None


def _read(text: str) -> list[Line]:
    lines: list[Line] = []
    for number, found in enumerate(text.split("\n"), 1):
        if not found.strip():
            continue
        try:
            line = msgspec.json.decode(found.encode(), type=Line)
            check_name("memory scope", line.scope)
            check_name("memory key", line.key)
            check_string("memory value", line.value)
            if line.expires is not None:
                check_int("expires", line.expires)
        except (msgspec.DecodeError, UsageError, RecursionError) as error:
            message = f"line {number:,} is no entry of an export: {one_line(str(error), 200)}; nothing was written"
            raise CallInvalid(message) from None
        lines.append(line)
    return lines


async def _import(store: Store, line: Line, counted: _Counted, *, overwrite: bool) -> None:
    if line.expires is not None and line.expires <= store.clock.read().wall:
        counted.expired += 1
        return
    for _ in range(_TRIES):
        found = await store.memory_get(line.scope, line.key)
        if found is not None and (found.value, found.expires) == (line.value, line.expires):
            counted.unchanged += 1
            return
        if found is not None and found.value != line.value and not overwrite:
            break
        expected = 0 if found is None else found.version
        try:
            await store.memory_put(
                line.scope, line.key, line.value, expected=expected, expires=line.expires, by=_AUTHOR
            )
        except MemoryConflict:
            continue  # somebody changed it at this moment
        counted.written += 1
        return
    counted.left.append(f"{line.scope}/{line.key}")
