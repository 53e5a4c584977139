"""`holdfast memory`: look at what agents remember, and change it."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

import msgspec
import typer

from holdfast.cli.options import DEFAULT_STORE, FAILED, CallInvalid, JsonOption, StoreOption, finish
from holdfast.cli.output import Terminal, duration, one_line, printable, stderr, stdout, table
from holdfast.cli.sessions import require_store
from holdfast.errors import HoldfastError, MemoryConflict, MemoryCorrupt, UsageError
from holdfast.memory import Memory
from holdfast.memory.decisions import digest_of
from holdfast.memory.mirror import Mirror
from holdfast.memory.names import SUFFIX, conflict_key, written_name
from holdfast.names import check_int, check_name, check_string
from holdfast.store import MemoryKey, open_store, view_store
from holdfast.store.paths import memory_folder

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator, Sequence

    from holdfast.store import MemoryChange, MemoryEntry, MemoryScope, Store


app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Look at what agents remember, and change it. Edits of the files beside the store are taken in first.",
)
ScopeArgument: TypeAlias = Annotated[
    str, typer.Argument(metavar="SCOPE", help="Whose memory, as 'holdfast memory ls' lists it.", show_default=False)
]
SomeScopeArgument: TypeAlias = Annotated[
    str | None, typer.Argument(metavar="[SCOPE]", help="Whose memory; all without one.", show_default=False)
]
KeyArgument: TypeAlias = Annotated[str, typer.Argument(metavar="KEY", help="Which entry.", show_default=False)]
ExpectOption: TypeAlias = Annotated[
    int | None,
    typer.Option("--expect", metavar="VERSION", min=0, help="Only if this is its version; 0: only if there is none."),
]


@app.command()
def ls(
    scope: SomeScopeArgument = None,
    *,
    prefix: Annotated[str, typer.Option(metavar="TEXT", help="Only keys that begin so.", show_default=False)] = "",
    search: Annotated[str, typer.Option(metavar="WORDS", help="Only entries with all words.", show_default=False)] = "",
    as_json: JsonOption = False,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """List the scopes, or the entries of one."""
    finish(remembering_ls(store, scope, prefix, search, as_json=as_json))


@app.command()
def get(
    scope: ScopeArgument,
    key: KeyArgument,
    *,
    history: Annotated[bool, typer.Option("--history", help="All changes that are kept, newest first.")] = False,
    as_json: JsonOption = False,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Print an entry as it is. Exit code 1 when there is none."""
    finish(remembering_get(store, scope, key, history=history, as_json=as_json))


@app.command("set")
def put(  # noqa: PLR0913
    scope: ScopeArgument,
    key: KeyArgument,
    value: Annotated[
        str, typer.Argument(help="The text; without one, or for '-', standard input.", show_default=False)
    ] = "-",
    *,
    expect: ExpectOption = None,
    ttl: Annotated[float | None, typer.Option(metavar="SECONDS", help="It is gone after this time.")] = None,
    as_json: JsonOption = False,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Write an entry."""
    finish(remembering_put(store, scope, key, value, expect=expect, ttl=ttl, as_json=as_json))


@app.command()
def rm(
    scope: ScopeArgument,
    keys: Annotated[list[str], typer.Argument(metavar="KEY...", help="Which entries.", show_default=False)],
    *,
    expect: ExpectOption = None,
    as_json: JsonOption = False,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Remove entries; their history stays. Exit code 1 when one was not there."""
    finish(remembering_rm(store, scope, keys, expect=expect, as_json=as_json))


@app.command()
def edit(scope: ScopeArgument, key: KeyArgument, *, store: StoreOption = DEFAULT_STORE) -> None:
    """Open an entry, or a new one, in $VISUAL or $EDITOR, and write what it becomes.

    If somebody else changes it meanwhile, your text is kept as an entry of its own. Exit code 1 then.
    """
    finish(editing_edit(store, scope, key))


@app.command("export")
def export_entries(
    scope: SomeScopeArgument = None,
    *,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Where to; otherwise standard output.")
    ] = None,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Write entries as JSON, one object to a line, for 'import'."""
    finish(transferring_export_entries(store, scope, out))


@app.command("import")
def import_entries(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="What 'export' wrote; '-' is standard input.", show_default=False)
    ],
    *,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Also where another text is there.")] = False,
    as_json: JsonOption = False,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Write the entries of an export.

    All lines are checked first. An entry that has another text is left as it is, and exit code 1 says that there was
    one; its history keeps what is overwritten.
    """
    finish(transferring_import_entries(store, file, overwrite=overwrite, as_json=as_json))


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


async def remembering_ls(path: Path, scope: str | None, prefix: str, search: str, *, as_json: bool) -> int:
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
            damaged = [MemoryKey(memory.scope, key) for key in keys]
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


def _show_entries(entries: list[MemoryEntry], now: int, *, as_json: bool, scoped: bool) -> None:
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


async def remembering_get(path: Path, scope: str, key: str, *, history: bool, as_json: bool) -> int:
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


async def remembering_put(  # noqa: PLR0913
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


async def remembering_rm(path: Path, scope: str, keys: Sequence[str], *, expect: int | None, as_json: bool) -> int:
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


_USUAL: Final = "vi"


class TextLeft(UsageError):
    """What a person wrote could not be used. It is still in the file."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{reason}; your text is in {path}")
        self.path = path
        self.reason = reason


class Draft:
    """A text in a file of its own, to be edited as often as it takes."""

    def __init__(self, name: str, text: str) -> None:
        self._editor = editor_command()
        self._folder = Path(tempfile.mkdtemp(prefix="holdfast-"))
        self.file = self._folder / name
        self.file.write_bytes(text.encode())

    def edit(self) -> str:
        """Let the person edit it; answers the text."""
        with _undisturbed():
            code = subprocess.run([*self._editor, str(self.file)], check=False).returncode  # noqa: S603  their own editor
        if code:
            raise self.left(f"the editor ended with code {code}, so nothing was done")
        try:
            return self.file.read_bytes().decode()
        except (OSError, UnicodeDecodeError) as error:
            raise self.left(f"what the editor left can't be read as UTF-8 text ({error})") from error

    def left(self, reason: str) -> TextLeft:
        """The error that says why the text was not used, and where it is."""
        return TextLeft(self.file, reason)

    def done(self) -> None:
        """The text is needed no more."""
        shutil.rmtree(self._folder, ignore_errors=True)


@contextmanager
def _undisturbed() -> Generator[None]:
    """Ctrl-C is for the editor. A handler, other than being ignored, is not inherited by it."""

    def nothing(_number: int, _frame: object) -> None:
        return

    before = signal.signal(signal.SIGINT, nothing)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def editor_command() -> list[str]:
    """The editor of whoever calls, as a command; an error where there is none."""
    given = os.environ.get("VISUAL") or os.environ.get("EDITOR") or _USUAL
    try:
        command = shlex.split(given)
    except ValueError as error:
        message = f"$VISUAL or $EDITOR is no command: {error}"
        raise CallInvalid(message) from None
    if not command or shutil.which(command[0]) is None:
        message = f"there is no editor {given!r}; set $EDITOR to one"
        raise CallInvalid(message)
    return command


class EditLeft(UsageError):
    """What a person wrote could not be stored. It is still in the file."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{reason}; your text is in {path}")
        self.path = path
        self.reason = reason


async def editing_edit(path: Path, scope: str, key: str) -> int:
    """Let a person edit an entry, and write what it becomes."""
    editor = editor_command()
    async with remembering(path) as store:
        before = await Memory(store, scope).get(key)
        await store.memory_history(scope, key, 1)  # a key that can't be one is told before anybody writes
    folder = Path(tempfile.mkdtemp(prefix="holdfast-"))
    file = folder / f"{written_name(key)}{SUFFIX}"
    old = "" if before is None else before.value
    file.write_bytes(old.encode())
    # The store is not kept open meanwhile: a person may take days.
    code = await _run(editor, file)
    try:
        text = file.read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        raise EditLeft(file, f"what the editor left can't be read as UTF-8 text ({error})") from error
    if text == old:
        shutil.rmtree(folder)
        stdout().line("nothing was changed")
        return 0
    if code:
        raise EditLeft(file, f"the editor ended with code {code}, so nothing was stored")
    try:
        said, result = await _store(path, scope, key, before, text)
    except BaseException:
        stderr().line(f"holdfast: your text is in {file}")
        raise
    shutil.rmtree(folder)
    stdout().line(said)
    return result


async def _run(editor: list[str], file: Path) -> int:
    process = await asyncio.create_subprocess_exec(*editor, str(file))
    return await process.wait()


async def _store(path: Path, scope: str, key: str, before: MemoryEntry | None, text: str) -> tuple[str, int]:
    """Write the text; if the entry was changed meanwhile, as an entry of its own. Answers what to say, and the code."""
    async with remembering(path, writes=True) as store:
        memory = Memory(store, scope, by=AUTHOR)
        while True:
            try:
                if before is None:
                    entry = await memory.put(key, text, expected=0)
                else:
                    entry = await memory.rewrite(before, text)
            except MemoryConflict as conflict:
                if conflict.current == 0:
                    before = None  # it was removed: an edit counts more
                    continue
                return await _keep_beside(memory, key, conflict.current, text)
            return f"{scope}/{key} is at version {entry.version}", 0


async def _keep_beside(memory: Memory, key: str, version: int, text: str) -> tuple[str, int]:
    current = await memory.get(key)
    if current is not None and current.value == text:
        return f"{memory.scope}/{key} is at version {current.version}: somebody wrote the same", 0
    taken: set[str] = set()
    async for entry in memory.entries(damaged=taken.add):
        taken.add(entry.key)
    beside = conflict_key(key, version, digest_of(text.encode()), taken)
    await memory.put(beside, text, expected=0)
    said = f"{key!r} was changed meanwhile and is at version {version}; your text is kept as {memory.scope}/{beside}"
    return said, FAILED


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


async def transferring_export_entries(path: Path, scope: str | None, out: Path | None) -> int:
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


async def transferring_import_entries(path: Path, file: str, *, overwrite: bool, as_json: bool) -> int:
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
