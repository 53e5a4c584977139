"""`holdfast memory`: read and change the memory of agents."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final, cast

import msgspec
import typer

from holdfast import errors, names
from holdfast.cli import options, output
from holdfast.cli.options import DEFAULT_STORE, CallInvalid, CommandGroup, Shell, argument, flag, option
from holdfast.cli.output import Columns, ago, one_line, printable, stderr, stdout, time_left
from holdfast.effects import canonical
from holdfast.memory import Memory
from holdfast.memory.decisions import SUFFIX, conflict_key, digest_of, file_name_of
from holdfast.memory.front_matter import FileContent, FrontMatterInvalid, file_text, parse_file, parse_json
from holdfast.memory.mirror import Mirror
from holdfast.store import MemoryChange, MemoryEntry, MemoryKey, MemoryScope, Store, open_store, view_store
from holdfast.store.paths import memory_folder

memory = CommandGroup(
    no_args_is_help=True,
    help="Read and change the memory of agents. Edits of the files beside the store are taken in first.",
)
ScopeArgument = Annotated[str, argument("SCOPE", "Whose memory, as 'holdfast memory ls' lists it.")]
SomeScopeArgument = Annotated[str | None, argument("[SCOPE]", "Whose memory; all without one.")]
KeyArgument = Annotated[str, argument("KEY", "Which entry.")]
ExpectOption = Annotated[int | None, option("VERSION", "Only if this is its version; 0: only if there is none.", min=0)]
_AUTHOR: Final = "cli"


@asynccontextmanager
async def _open_memory(path: Path, *, writes: bool = False) -> AsyncGenerator[Store]:
    """Open the store, take in edits of the mirror's files, and write changes to them.

    A missing folder of files is not created. A command that only reads works without write permission.
    """
    options.require_store(path)
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
    """Compare the folder with the store. A failure is only printed."""
    if mirror is None:
        return
    err = stderr()
    try:
        report = await mirror.sync()
    except (errors.HoldfastError, OSError) as error:
        err.line(f"holdfast: the files of memory were left alone: {one_line(str(error), 300)}")
        return
    for path in report.conflicts:
        err.line(f"holdfast: both sides were changed; one text is kept as {printable(path)}")
    for refused in report.refused:
        err.line(f"holdfast: left alone: {printable(refused.path)}: {one_line(refused.reason, 300)}")


# ---- reading ---------------------------------------------------------------------------------------------------------


@memory.command()
async def ls(
    shell: Shell,
    scope: SomeScopeArgument = None,
    *,
    prefix: Annotated[str, option("TEXT", "Only keys that begin so.", show_default=False)] = "",
    search: Annotated[str, option("WORDS", "Only entries with all words.", show_default=False)] = "",
) -> int:
    """List the scopes, or the entries of one. Exit code 1 if entries are damaged; those are named."""
    if prefix and search:
        raise CallInvalid("--prefix and --search do not go together")
    if prefix and scope is None:
        raise CallInvalid("--prefix needs a SCOPE")
    async with _open_memory(shell.store) as opened:
        if scope is None and not search:
            scopes = await opened.memory_scopes()
            of_scope: Columns[MemoryScope] = {
                "SCOPE": lambda found: printable(found.scope),
                "ENTRIES": lambda found: f"{found.entries:,}",
                "BYTES": lambda found: f"{found.bytes:,}",
            }
            shell.print_table(scopes, of_scope, nothing="nothing is remembered")
            return 0
        if search:
            entries, damaged, _ = await opened.memory_search(scope, search)
        else:
            handle, keys = Memory(opened, scope or ""), list[str]()
            entries = [entry async for entry in handle.entries(prefix, damaged=keys.append)]
            damaged = [MemoryKey(handle.scope, key) for key in keys]
    return _print_entries(shell, scope, entries, damaged)


@memory.command()
async def search(
    shell: Shell,
    words: Annotated[str, argument("WORDS", "The words, in any order; the beginning of a word is enough.")],
    scope: Annotated[str | None, option("SCOPE", "Only entries of this scope.", "--scope")] = None,
    limit: options.Limit = 20,
) -> int:
    """Find the entries with all these words, the best match first. Exit code 1 if damaged ones were left out."""
    async with _open_memory(shell.store) as opened:
        entries, damaged, _ = await opened.memory_search(scope, words, limit)
    return _print_entries(shell, scope, entries, damaged)


def _print_entries(shell: Shell, scope: str | None, entries: list[MemoryEntry], damaged: Sequence[MemoryKey]) -> int:
    """Print entries, with their scope if they may be of several; name damaged ones, and answer the exit code."""
    name, whose = ("KEY", "") if scope is not None else ("SCOPE/KEY", "{}/")
    columns: Columns[MemoryEntry] = {
        name: lambda entry: printable(whose.format(entry.scope) + entry.key),
        "VERSION": lambda entry: str(entry.version),
        "CHANGED": lambda entry: ago(entry.updated),
        "EXPIRES": lambda entry: "-" if entry.expires is None else f"in {time_left(entry.expires)}",
        "TEXT": lambda entry: one_line(entry.summary or entry.text, 50),
    }
    shell.print_table(entries, columns, nothing="no entries")
    for place in damaged:
        stderr().line(f"holdfast: left out: {one_line(str(errors.MemoryCorrupt(*place)), 600)}")
    return options.FAILED if damaged else 0


@memory.command()
async def get(
    shell: Shell,
    scope: ScopeArgument,
    key: KeyArgument,
    *,
    history: Annotated[bool, flag("All changes that are kept, newest first.", "--history")] = False,
) -> int:
    """Print an entry as it is. Exit code 1 if there is none."""
    async with _open_memory(shell.store) as opened:
        handle = Memory(opened, scope)
        entry = await handle.get(key)
        changes = await handle.history(key) if history else []
    out = stdout()
    if changes:
        columns: Columns[MemoryChange] = {
            "VERSION": lambda change: str(change.version),
            "CHANGE": lambda change: change.change,
            "BY": lambda change: one_line(change.by or "-", 40),
            "TEXT": lambda change: "-" if change.text is None else one_line(change.summary or change.text, 60),
        }
        shell.print_table(changes, columns, nothing="")
        return 0
    if entry is None:
        stderr().line(f"holdfast: {scope!r} has no entry {key!r}")
        return options.FAILED
    if shell.as_json:
        out.json(entry)
    elif out.live:
        out.write(printable(entry.text))
        if not entry.text.endswith("\n"):
            out.line()
    else:
        out.write_raw(entry.text)  # to the byte, for a program
    return 0


# ---- writing ---------------------------------------------------------------------------------------------------------


@memory.command("set")
async def put(
    shell: Shell,
    scope: ScopeArgument,
    key: KeyArgument,
    value: Annotated[
        str, typer.Argument(help="The text; without one, or for '-', standard input.", show_default=False)
    ] = "-",
    *,
    parse: Annotated[bool, flag("The text is JSON: store its value.", "--parse")] = False,
    summary: Annotated[str, option("TEXT", "One line about it, for lists.", show_default=False)] = "",
    metadata: Annotated[str | None, option("OBJECT", "A JSON object of yours.")] = None,
    expect: ExpectOption = None,
    ttl: Annotated[float | None, option("SECONDS", "It expires after this time.")] = None,
) -> None:
    """Write an entry. A summary and metadata that are not given are empty afterwards."""
    more: object = {} if metadata is None else _parse_value(metadata, "--metadata")
    if not isinstance(more, dict):
        raise CallInvalid("--metadata is no JSON object")
    async with _open_memory(shell.store, writes=True) as opened:
        text = _read_input() if value == "-" else value
        found = _parse_value(text, "VALUE") if parse else text
        entry = await Memory(opened, scope, by=_AUTHOR).put(
            key, found, summary=summary, metadata=cast("dict[str, Any]", more), expected=expect, ttl=ttl
        )
    shell.print(entry, f"{scope}/{key} is at version {entry.version}")


@memory.command()
async def rm(
    shell: Shell,
    scope: ScopeArgument,
    keys: Annotated[list[str], argument("KEY...", "Which entries.")],
    *,
    expect: ExpectOption = None,
) -> int:
    """Remove entries; their history stays. Exit code 1 if one was not there."""
    if expect is not None and len(keys) > 1:
        raise CallInvalid("--expect goes with one KEY")
    async with _open_memory(shell.store, writes=True) as opened:
        handle = Memory(opened, scope, by=_AUTHOR)
        removed = [key for key in keys if await handle.delete(key, expected=expect) is not None]
    missing = [key for key in keys if key not in removed]
    if shell.as_json:
        stdout().json({"removed": removed, "missing": missing})
    for key in missing:
        stderr().line(f"holdfast: {scope!r} has no entry {key!r}")
    return options.FAILED if missing else 0


@memory.command()
async def edit(scope: ScopeArgument, key: KeyArgument, *, store: options.Store = DEFAULT_STORE) -> int:
    """Open an entry, or a new one, in $VISUAL or $EDITOR, and write the result.

    A JSON value, a summary and metadata are shown as in the files of memory: in a front matter before the text. If the
    entry changes meanwhile, your text becomes an entry of its own, and the exit code is 1.
    """
    async with _open_memory(store) as opened:
        before = await Memory(opened, scope).get(key)  # refuses an invalid key before the person writes anything
    old = "" if before is None else file_text(before)
    draft = Draft(f"{file_name_of(key)}{SUFFIX}", old)
    text = draft.edit(may_fail=True)  # the store is not open meanwhile: a person may take days
    if text == old:
        draft.remove()
        stdout().line("nothing was changed")
        return 0
    try:
        message, code = await _store_edit(store, scope, key, before, parse_file(text))
    except BaseException:
        stderr().line(f"holdfast: your text is in {draft.file}")
        raise
    draft.remove()
    stdout().line(message)
    return code


async def _store_edit(
    path: Path, scope: str, key: str, before: MemoryEntry | None, edited: FileContent
) -> tuple[str, int]:
    """Write the entry; if it changed meanwhile, as another entry. Returns a message and the exit code."""
    async with _open_memory(path, writes=True) as store:
        handle = Memory(store, scope, by=_AUTHOR)
        value, summary, metadata = edited
        while True:
            try:
                if before is None:
                    entry = await handle.put(key, value, summary=summary, metadata=metadata, expected=0)
                else:
                    entry = await handle.rewrite(before, value, summary=summary, metadata=metadata)
            except errors.MemoryConflict as conflict:
                version = conflict.current
            else:
                return f"{scope}/{key} is at version {entry.version}", 0
            if version:
                break
            before = None  # it was removed: the edit wins
        current = await handle.get(key)
        if current is not None and file_text(current) == edited.text:
            return f"{scope}/{key} is at version {current.version}: somebody wrote the same", 0
        taken: set[str] = set()
        async for entry in handle.entries(damaged=taken.add):
            taken.add(entry.key)
        beside = conflict_key(key, version, digest_of(edited.text.encode()), taken)
        await handle.put(beside, value, summary=summary, metadata=metadata, expected=0)
    message = f"{key!r} was changed meanwhile and is at version {version}; your text is kept as {scope}/{beside}"
    return message, options.FAILED


# ---- editing a text in $VISUAL or $EDITOR ---------------------------------------------------------------------------


class Draft:
    """A text in a temporary file, to be edited repeatedly."""

    def __init__(self, name: str, text: str) -> None:
        self._editor = editor_command()
        self._folder = Path(tempfile.mkdtemp(prefix="holdfast-"))
        self._text = text
        self.file = self._folder / name
        self.file.write_bytes(text.encode())

    def edit(self, *, may_fail: bool = False) -> str:
        """Run the editor, and return the text. Raises an error if the editor failed.

        With `may_fail` an editor may fail if it left the text unchanged.
        """
        # Leave Ctrl-C to the editor. It would inherit SIG_IGN, but does not inherit a handler.
        before = signal.signal(signal.SIGINT, lambda _number, _frame: None)
        try:
            code = subprocess.run([*self._editor, str(self.file)], check=False).returncode  # noqa: S603  their own editor
        finally:
            signal.signal(signal.SIGINT, before)
        try:
            text = self.file.read_bytes().decode()
        except (OSError, UnicodeDecodeError) as error:
            raise self.left(f"what the editor left can't be read as UTF-8 text ({error})") from error
        if code and not (may_fail and text == self._text):
            raise self.left(f"the editor ended with code {code}, so nothing was done")
        return text

    def left(self, reason: str) -> CallInvalid:
        """The error for a rejected text, which stays in the file."""
        return CallInvalid(f"{reason}; your text is in {self.file}")

    def remove(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


def editor_command() -> list[str]:
    """The command of the user's editor; `CallInvalid` if it does not exist."""
    given = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    try:
        command = shlex.split(given)
    except ValueError as error:
        raise CallInvalid(f"$VISUAL or $EDITOR is no command: {error}") from None
    if not command or shutil.which(command[0]) is None:
        raise CallInvalid(f"there is no editor {given!r}; set $EDITOR to one")
    return command


# ---- export and import -----------------------------------------------------------------------------------------------


class ExportedEntry(msgspec.Struct, frozen=True):
    """The fields of an exported line that `import` reads."""

    scope: str
    key: str
    value: Any
    expires: int | None = None
    summary: str = ""
    metadata: dict[str, Any] = {}

    def is_same(self, entry: MemoryEntry) -> bool:
        """True if the entry has this value, summary and metadata."""
        return file_text(entry) == FileContent(self.value, self.summary, self.metadata).text


class _ImportReport(msgspec.Struct):
    written: int = 0
    unchanged: int = 0
    expired: int = 0
    left: list[str] = msgspec.field(default_factory=list[str])
    """Entries that have another value, summary or metadata."""


@memory.command("export")
async def export_entries(
    scope: SomeScopeArgument = None,
    *,
    out: Annotated[Path | None, option("FILE", "Write to this file instead of standard output.", "--out", "-o")] = None,
    store: options.Store = DEFAULT_STORE,
) -> int:
    """Write entries as JSON, one object to a line, for 'import'."""
    progress, count, damaged = output.ProgressLine("{:,} entries"), 0, list[str]()
    async with _open_memory(store) as opened:
        scopes = [found.scope for found in await opened.memory_scopes()] if scope is None else [scope]
        with _open_export(out) as file:
            for name in scopes:
                here: list[str] = []
                async for entry in Memory(opened, name).entries(damaged=here.append):
                    file.write(printable(output.json_text(entry)).encode() + b"\n")
                    count += 1
                    if out is not None:
                        progress.show(count)
                damaged += [f"the memory {key!r} of {name!r}" for key in here]
    if out is not None:
        progress.clear()
        stderr().line(f"{count:,} entries")
    for name in damaged:
        stderr().line(f"left out: {one_line(name)} does not match its checksum")
    return options.FAILED if damaged else 0


@contextmanager
def _open_export(out: Path | None) -> Generator[BinaryIO]:
    """Standard output, or a file that appears complete or not at all."""
    if out is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    beside = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    number = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(number, "wb") as file:
            yield file
            file.flush()
            os.fsync(number)
        beside.replace(out)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


@memory.command("import")
async def import_entries(
    shell: Shell,
    file: Annotated[str, argument("FILE", "What 'export' wrote; '-' is standard input.")],
    *,
    overwrite: Annotated[bool, flag("Also replace entries with another value.", "--overwrite")] = False,
) -> int:
    """Write the entries of an export. All lines are checked before the first is written.

    An entry that has another value, summary or metadata stays, and the exit code is 1. The history of an entry keeps an
    overwritten one.
    """
    lines = _parse_export(
        _read_input() if file == "-" else _decode(file, await asyncio.to_thread(Path(file).read_bytes))
    )
    report, progress = _ImportReport(), output.ProgressLine("{:,} entries")
    async with _open_memory(shell.store, writes=True) as opened:
        for number, line in enumerate(lines, 1):
            await _import(opened, line, report, overwrite=overwrite)
            progress.show(number)
    progress.clear()
    expired = f", {report.expired:,} expired" if report.expired else ""
    shell.print(report, f"{report.written:,} written, {report.unchanged:,} there already{expired}")
    for name in report.left:
        stderr().line(f"holdfast: {one_line(name, 400)} has another value and was left; --overwrite replaces it")
    return options.FAILED if report.left else 0


def _parse_value(text: str, name: str) -> Any:
    """The value of some JSON, or `CallInvalid`."""
    try:
        return parse_json(text, name)
    except FrontMatterInvalid as error:
        raise CallInvalid(error.reason) from None


def _read_input() -> str:
    return _decode("standard input", sys.stdin.buffer.read())


def _decode(source: str, data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise CallInvalid(f"{source} is not UTF-8 text: byte {error.start:,} is 0x{data[error.start]:02x}") from None


def _parse_export(text: str) -> list[ExportedEntry]:
    lines: list[ExportedEntry] = []
    for number, found in enumerate(text.split("\n"), 1):
        if not found.strip():
            continue
        try:
            line = msgspec.json.decode(found.encode(), type=ExportedEntry)
            names.check_name("memory scope", line.scope)
            names.check_name("memory key", line.key)
            if line.value is None:
                raise errors.InvalidArgument("memory value", None, "a text or a JSON value other than null")
            canonical.check(line.value)
            canonical.check(line.metadata)
            names.check_line("summary", line.summary)
            if line.expires is not None:
                names.check_int("expires", line.expires)
        except (msgspec.DecodeError, errors.UsageError, RecursionError) as error:
            raise CallInvalid(
                f"line {number:,} is no entry of an export: {one_line(str(error), 200)}; nothing was written"
            ) from None
        lines.append(line)
    return lines


async def _import(store: Store, line: ExportedEntry, report: _ImportReport, *, overwrite: bool) -> None:
    if line.expires is not None and line.expires <= store.clock.read().wall:
        report.expired += 1
        return
    for _ in range(5):
        found = await store.memory_get(line.scope, line.key)
        same = found is not None and line.is_same(found)
        if found is not None and same and found.expires == line.expires:
            report.unchanged += 1
            return
        if found is not None and not same and not overwrite:
            break
        expected = 0 if found is None else found.version
        try:
            await store.memory_put(
                *(line.scope, line.key, line.value),
                summary=line.summary,
                metadata=line.metadata,
                expected=expected,
                expires=line.expires,
                by="import",
            )
        except errors.MemoryConflict:
            continue  # another writer was faster
        report.written += 1
        return
    report.left.append(f"{line.scope}/{line.key}")
