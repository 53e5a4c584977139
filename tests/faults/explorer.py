"""A crash-state explorer: from the system calls of a real run to the files that a crash could leave behind.

`trace` runs a worker under strace, `parse` turns the log into operations on files and names, and `States` rebuilds what
may be on the disk if the machine goes down after any of them. The model is strict:

- what was written to a file is certain once a sync of that file began after the write and has returned;
- a new or removed name is certain once a sync of its directory has;
- everything else may be there, be missing, be there in part (in sectors of 512 bytes), or be garbage, in any mixture.

A kill of the process alone loses nothing that was written. A call that changes a file in a way that is not modelled
stops the explorer, so that it can't pass because it has not looked.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

import apsw
import workers

from holdfast import open_store
from holdfast.testing import check

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from random import Random
    from typing import Any

    from holdfast.store import Store

SECTOR: Final = 512
_UNMODELLED: Final = (
    "pwritev,pwritev2,writev,truncate,fallocate,rename,renameat,renameat2,creat,copy_file_range,sendfile,splice,link,"
    "linkat,open,sync_file_range"
)
_TRACED: Final = f"pwrite64,write,fsync,fdatasync,ftruncate,unlink,unlinkat,openat,mmap,{_UNMODELLED}"
_CALL: Final = re.compile(r"^(\w+)\((.*)\)\s+= (-?\d+|0x[0-9a-f]+)")
_BEGUN: Final = re.compile(r"^(\w+)\((.*) <unfinished \.\.\.>$")
_RESUMED: Final = re.compile(r"^<\.\.\. (\w+) resumed>(.*)$")
_QUOTED: Final = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')
_HANDLE: Final = re.compile(r"^(?:\d+|AT_FDCWD)<([^>]*)>")


# ---- operations ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Write:
    file: int
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Truncate:
    file: int
    size: int


@dataclass(frozen=True, slots=True)
class Create:
    name: str
    file: int


@dataclass(frozen=True, slots=True)
class Unlink:
    name: str


@dataclass(frozen=True, slots=True)
class Sync:
    """Makes certain what was done to `file` (None: to the names) among the first `covers` operations."""

    file: int | None
    covers: int


@dataclass(frozen=True, slots=True)
class Ack:
    words: tuple[str, ...]


KEY: Final = "5a" * 32
"""The key of the store, which is on no disk here."""

Op: TypeAlias = Write | Truncate | Create | Unlink | Sync | Ack
Files: TypeAlias = dict[str, bytes]


# ---- from a run to its operations ------------------------------------------------------------------------------------


def trace(log: Path, command: list[str]) -> None:
    """Run a worker to its end and keep its system calls."""
    done = subprocess.run(
        ["strace", "-f", "-y", "-xx", "-s", "200000", "-o", str(log), "-e", f"trace={_TRACED}", *command],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env=workers.environment(HOLDFAST_STORE_KEY=KEY),
    )
    assert done.returncode == 0, done.stderr[-2_000:]


def parse(log: Path, database: Path) -> list[Op]:
    """The operations of a traced run, in the order in which they returned."""
    parser = _Parser(database)
    begun: dict[str, tuple[str, int]] = {}
    with log.open(encoding="ascii") as file:
        for line in file:
            thread, _, text = line.rstrip("\n").partition(" ")
            text = text.strip()
            covers = len(parser.ops)
            if found := _BEGUN.match(text):
                begun[thread] = (f"{found[1]}({found[2]}", covers)
                continue
            if found := _RESUMED.match(text):
                head, covers = begun.pop(thread)
                text = head + found[2]
            if found := _CALL.match(text):
                parser.add(found[1], found[2], int(found[3], 0), covers)
    assert any(isinstance(op, Write) for op in parser.ops), "the trace has nothing about the store"
    return parser.ops


class _Parser:
    def __init__(self, database: Path) -> None:
        self._database = str(database)
        self._directory = str(database.parent)
        self._names: dict[str, int] = {}
        self._files = 0
        self.ops: list[Op] = []

    def add(self, call: str, arguments: str, result: int, covers: int) -> None:
        if result < 0:
            return
        if call == "write" and (said := _acknowledged(arguments)):
            self.ops.append(Ack(said))
            return
        path = self._path(call, arguments)
        if call in {"fsync", "fdatasync"} and path == self._directory:
            self.ops.append(Sync(None, covers))
        if path is None or not path.startswith(self._database) or path.endswith("-shm"):
            return  # the shared memory is made anew by the first one who opens
        self._file(call, path, arguments, result, covers)

    def _path(self, call: str, arguments: str) -> str | None:
        if call in {"openat", "unlink", "unlinkat"} or call in _UNMODELLED.split(","):
            quoted = _QUOTED.findall(arguments)
            return os.path.normpath(_plain(quoted[0])) if quoted else None
        if call == "mmap":
            found = re.search(r"\d+<([^>]*)>", arguments)
            return _plain(found[1]) if found and "MAP_SHARED" in arguments and "PROT_WRITE" in arguments else None
        found = _HANDLE.match(arguments)
        return _plain(found[1]) if found else None

    def _file(self, call: str, path: str, arguments: str, result: int, covers: int) -> None:
        if call == "openat":
            if "O_CREAT" in arguments and path not in self._names:
                self._files += 1
                self._names[path] = self._files
                self.ops.append(Create(Path(path).name, self._files))
            assert "O_TRUNC" not in arguments, "opening with O_TRUNC is not modelled"
        elif call in {"unlink", "unlinkat"}:
            del self._names[path]
            self.ops.append(Unlink(Path(path).name))
        elif call == "pwrite64":
            offset = int(arguments.rpartition(",")[2])
            found = _QUOTED.search(arguments)
            assert found is not None
            self.ops.append(Write(self._names[path], offset, _bytes(found[1])[:result]))
        elif call == "ftruncate":
            self.ops.append(Truncate(self._names[path], int(arguments.rpartition(",")[2])))
        elif call in {"fsync", "fdatasync"}:
            self.ops.append(Sync(self._names[path], covers))
        else:
            message = f"{call} on {path} is not modelled"
            raise AssertionError(message)


def _acknowledged(arguments: str) -> tuple[str, ...]:
    found = _QUOTED.search(arguments)
    text = _bytes(found[1]) if found and arguments.startswith("1<") else b""
    return tuple(text.decode().split()) if text.startswith(b"ACK ") else ()


def _bytes(hexed: str) -> bytes:
    return bytes.fromhex(hexed.replace("\\x", ""))


def _plain(text: str) -> str:
    return _bytes(text).decode() if text.startswith("\\x") else text


# ---- from operations to what may be on the disk ----------------------------------------------------------------------

POWER: Final = ("nothing", "all but the last", "torn", "subset", "sectors", "garbage", "no names")
KILL: Final = ("kill", "kill in a write")


class States:
    """The files that a crash after the first `cut` operations may leave."""

    def __init__(self, ops: list[Op]) -> None:
        self._ops = ops

    def after(self, cut: int, variant: str, seed: Random) -> Files:
        """One such state; the seed decides where the variant leaves a choice."""
        done = self._ops[:cut]
        if variant in KILL:
            kept = [op for op in done if not isinstance(op, Sync | Ack)]
            if variant == "kill in a write" and done and isinstance(last := done[-1], Write):
                kept[-1] = _torn(last, seed)  # it had not returned yet
            return _build(kept)
        return _build(self._power(done, variant, seed))

    def _power(self, done: list[Op], variant: str, seed: Random) -> list[Op]:
        certain = _certain(done)
        loose = [
            at for at, op in enumerate(done) if isinstance(op, Write | Truncate | Create | Unlink) and at not in certain
        ]
        survivors = {at: done[at] for at in certain}
        match variant:
            case "nothing":
                pass
            case "all but the last":
                survivors |= {at: done[at] for at in loose[:-1]}
            case "no names":
                survivors |= {at: done[at] for at in loose if isinstance(done[at], Write | Truncate)}
            case "torn":
                survivors |= {at: done[at] for at in loose}
                if loose and isinstance(last := done[loose[-1]], Write):
                    survivors[loose[-1]] = _torn(last, seed)
            case "subset":
                survivors |= {at: done[at] for at in loose if seed.random() < 0.5}
            case "sectors":
                return _sectors(done, survivors, loose, seed)
            case "garbage":
                survivors |= {at: done[at] for at in loose if seed.random() < 0.7}
                writes = [at for at in loose if isinstance(done[at], Write)]
                if writes:
                    hit = seed.choice(writes)
                    survivors[hit] = _garbled(done[hit], seed)
            case "first sector":
                survivors |= {at: done[at] for at in loose}
                if loose and isinstance(last := done[loose[-1]], Write):
                    survivors[loose[-1]] = _garbled(last, seed, sector=0)
            case _:
                raise AssertionError(variant)
        return [survivors[at] for at in sorted(survivors)]


def _certain(done: list[Op]) -> set[int]:
    """What no power cut can undo."""
    covered: dict[int | None, int] = {}
    for op in done:
        if isinstance(op, Sync):
            covered[op.file] = max(covered.get(op.file, 0), op.covers)
    certain: set[int] = set()
    for at, op in enumerate(done):
        match op:
            case Write() | Truncate():
                if at < covered.get(op.file, 0):
                    certain.add(at)
            case Create() | Unlink():
                if at < covered.get(None, 0):
                    certain.add(at)
            case _:
                pass
    return certain


def _pieces(write: Write) -> list[Write]:
    """The write, cut where the sectors of the disk begin."""
    pieces: list[Write] = []
    at, end = write.offset, write.offset + len(write.data)
    while at < end:
        until = min(end, (at // SECTOR + 1) * SECTOR)
        pieces.append(Write(write.file, at, write.data[at - write.offset : until - write.offset]))
        at = until
    return pieces


def _torn(write: Write, seed: Random) -> Write:
    pieces = _pieces(write)
    kept = pieces[: seed.randrange(len(pieces) + 1)]
    return Write(write.file, write.offset, b"".join(piece.data for piece in kept))


def _sectors(done: list[Op], survivors: dict[int, Op], loose: list[int], seed: Random) -> list[Op]:
    """Each sector of each uncertain write by itself; names and sizes as a whole."""
    result: list[Op] = []
    uncertain = set(loose)
    for at, op in enumerate(done):
        if at in survivors:
            result.append(op)
        elif at in uncertain and isinstance(op, Write):
            result.extend(piece for piece in _pieces(op) if seed.random() < 0.6)
        elif at in uncertain and seed.random() < 0.5:
            result.append(op)
    return result


def _garbled(op: Op, seed: Random, sector: int | None = None) -> Op:
    assert isinstance(op, Write)
    pieces = _pieces(op)
    hit = seed.randrange(len(pieces)) if sector is None else sector
    pieces[hit] = Write(op.file, pieces[hit].offset, seed.randbytes(len(pieces[hit].data)))
    return Write(op.file, op.offset, b"".join(piece.data for piece in pieces))


def _build(ops: Sequence[Op]) -> Files:
    contents: dict[int, bytearray] = {}
    names: dict[str, int] = {}
    for op in ops:
        match op:
            case Create():
                names[op.name] = op.file
            case Unlink():
                names.pop(op.name, None)
            case Write():
                held = contents.setdefault(op.file, bytearray())
                held.extend(bytes(max(0, op.offset - len(held))))
                held[op.offset : op.offset + len(op.data)] = op.data
            case Truncate():
                held = contents.setdefault(op.file, bytearray())
                del held[op.size :]
                held.extend(bytes(op.size - len(held)))
            case _:
                pass
    return {name: bytes(contents.get(file, b"")) for name, file in names.items()}


# ---- what a state is worth -------------------------------------------------------------------------------------------


@dataclass
class Observed:
    """What an opened state holds."""

    problems: list[str] = field(default_factory=list[str])
    heads: dict[str, int] = field(default_factory=dict[str, int])
    inputs: dict[str, int] = field(default_factory=dict[str, int])
    blobs: set[str] = field(default_factory=set[str])

    def lost(self, promised: Promised) -> list[str]:
        """What was acknowledged and is not there."""
        missing = [f"blob {digest[:12]}" for digest in promised.blobs - self.blobs]
        for what, there, due in (("head", self.heads, promised.heads), ("input", self.inputs, promised.inputs)):
            missing += [
                f"{what} {name}: {there.get(name, 0)} of {n}" for name, n in due.items() if there.get(name, 0) < n
            ]
        return missing


@dataclass
class Promised:
    """What was acknowledged before the crash."""

    heads: dict[str, int] = field(default_factory=dict[str, int])
    inputs: dict[str, int] = field(default_factory=dict[str, int])
    blobs: set[str] = field(default_factory=set[str])


def promised(ops: list[Op], cut: int) -> Promised:
    """Everything that was acknowledged by the first `cut` operations."""
    result = Promised()
    for op in ops[:cut]:
        match op:
            case Ack(("ACK", "head", journal, number)):
                result.heads[journal] = int(number)
            case Ack(("ACK", "input", journal, number)):
                result.inputs[journal] = int(number)
            case Ack(("ACK", "blob", digest, _)):
                result.blobs.add(digest)
            case _:
                pass
    return result


class Examiner:
    """Opens states as a restarted process would. A state that was seen before is not opened again."""

    def __init__(self, directory: Path, database: str) -> None:
        self._directory = directory
        self._database = directory / database
        self._seen: dict[bytes, Observed] = {}

    @property
    def opened(self) -> int:
        """How many different states were opened."""
        return len(self._seen)

    async def examine(self, state: Files) -> Observed:
        digest = hashlib.blake2b(digest_size=16)
        for name, body in sorted(state.items()):
            digest.update(f"{name}\0{len(body)}\0".encode())
            digest.update(body)
        key = digest.digest()
        if key not in self._seen:
            self._seen[key] = await self._open(state)
        return self._seen[key]

    async def _open(self, state: Files) -> Observed:
        shutil.rmtree(self._directory, ignore_errors=True)
        self._directory.mkdir()
        for name, body in state.items():
            (self._directory / name).touch(0o600)
            (self._directory / name).write_bytes(body)
        observed = Observed()
        os.environ["HOLDFAST_STORE_KEY"] = KEY
        try:
            async with open_store(self._database) as store:
                observed.problems += map(str, await check(store))
                await _look(store, observed)
        except Exception as error:  # a control leaves files that are damaged beyond our words for it
            observed.problems.append(f"{type(error).__name__}: {error}")
        else:
            observed.problems += _integrity(self._database)
        finally:
            del os.environ["HOLDFAST_STORE_KEY"]
        return observed


async def _look(store: Store, observed: Observed) -> None:
    observed.blobs.update(await store.examine(lambda reader: [digest for digest, sound in reader.raw_blobs() if sound]))
    for line in await store.journals():
        observed.heads[line.id] = line.head
        inputs = [given.input for given in await store.pending(line.id)]
        observed.inputs[line.id] = len(inputs)
        if inputs != list(range(1, len(inputs) + 1)):
            observed.problems.append(f"{line.id} has the inputs {inputs}")
        async for entry in store.read_all(line.id, after=1):
            if entry.record != workers.record_with_blob(line.id, entry.seq):
                observed.problems.append(f"{line.id}/{entry.seq} is not what was written")


def _integrity(database: Path) -> Iterator[str]:
    connection: Any = apsw.Connection(str(database), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        found = connection.pragma("integrity_check")
        if found != "ok":
            yield f"integrity_check: {found}"
    except apsw.Error as error:
        yield f"integrity_check: {error}"
    finally:
        connection.close()
