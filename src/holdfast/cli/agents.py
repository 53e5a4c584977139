"""From a reference to an agent: `file.py:name`, `package.module:name`, or without a name where there is only one."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import stat
import sys
import traceback
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from holdfast.agent import Agent
from holdfast.cli.options import AgentBroken, AgentNotFound, AgentNotRecorded, AgentUnconfirmed, ReferencesUnsafe
from holdfast.cli.output import printable, stderr
from holdfast.errors import JournalMissing

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from types import ModuleType

    from holdfast.store import Journal, Store


def load_agent(reference: str, folder: Path | None = None) -> Agent:
    """The agent that `reference` names. Its module is run, like that of any program.

    A module is looked for in `folder` first, by default in the current one.
    """
    place, name = _split(reference)
    try:
        module = load_file(reference, Path(place)) if place.endswith(".py") else load_module(reference, place, folder)
    except AgentNotFound:
        raise
    except (Exception, SystemExit) as error:
        raise AgentBroken(reference, error, _where(error)) from error
    return _only(reference, module) if name is None else _named(reference, module, name)


def _split(reference: str) -> tuple[str, str | None]:
    place, colon, name = reference.rpartition(":")
    if not colon or reference.endswith(".py"):  # a folder may have a colon in its name
        place, colon, name = reference, "", ""
    if not place or (colon and not name.isidentifier()):
        raise AgentNotFound(reference, "write file.py:name or package.module:name")
    return place, name or None


def load_file(reference: str, path: Path) -> ModuleType:
    """The module that a file holds."""
    if not path.is_file():
        raise AgentNotFound(reference, f"there is no file {path}")
    name = f"agent_file_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    if spec is None or spec.loader is None:
        raise AgentNotFound(reference, f"{path} is no Python file")
    _importable(path.resolve().parent)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def load_module(reference: str, name: str, folder: Path | None = None) -> ModuleType:
    """The module of this name, from `folder` (by default the current one) or from what is installed."""
    if not all(part.isidentifier() for part in name.split(".")):
        raise AgentNotFound(reference, "write file.py:name or package.module:name")
    _importable(folder or Path.cwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            hint = "; for a file write its name with .py" if Path(f"{name.replace('.', '/')}.py").is_file() else ""
            raise AgentNotFound(reference, f"there is no module {error.name!r}{hint}") from None
        raise


def _importable(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _agents(module: ModuleType) -> dict[str, Agent]:
    found: dict[str, Agent] = {}
    for name, value in vars(module).items():
        if isinstance(value, Agent) and not any(value is known for known in found.values()):
            found[name] = value
    return found


def _only(reference: str, module: ModuleType) -> Agent:
    agents = _agents(module)
    if not agents:
        raise AgentNotFound(reference, "the module has no holdfast.Agent")
    if len(agents) > 1:
        raise AgentNotFound(reference, f"the module has several: choose one of {', '.join(sorted(agents))}")
    return next(iter(agents.values()))


def _named(reference: str, module: ModuleType, name: str) -> Agent:
    found: object = getattr(module, name, None)
    if isinstance(found, Agent):
        return found
    agents = ", ".join(sorted(_agents(module))) or "none"
    what = "is not there" if found is None else f"is a {type(found).__name__}"
    raise AgentNotFound(reference, f"{name!r} {what}; agents of the module: {agents}")


def _where(error: BaseException) -> str:
    """The line of the agent's code that raised, if there is one."""
    if isinstance(error, SyntaxError):
        return ""  # it says so itself
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_ours(frame.filename)]
    return f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""


def _is_ours(filename: str) -> bool:
    return filename.startswith(("<frozen", str(Path(__file__).parents[1]))) or filename == importlib.__file__


SUFFIX: Final = ".agents"
KNOWN: Final = "known_agents"
MOST_BYTES: Final = 4 * 1024 * 1024
"""A larger file is rewritten with its newest entries when the next one is added."""
MOST_ENTRIES: Final = 5_000
_MOST_ANCESTORS: Final = 1_000
T = TypeVar("T")


class Reference(msgspec.Struct, frozen=True, omit_defaults=True):
    """Code that holds an agent: `/path/file.py:name`, or `package.module:name` as found from a folder."""

    agent: str
    folder: str | None = None
    """Where a module was looked for first; None for a file, whose path is absolute."""

    @classmethod
    def named(cls, given: str) -> Reference:
        """The reference that a person wrote, independent of the current folder from here on."""
        place, colon, name = given.rpartition(":")
        if not colon or given.endswith(".py"):
            place, colon, name = given, "", ""
        if place.endswith(".py"):
            return cls(f"{Path(place).resolve()}{colon}{name}")
        return cls(given, str(Path.cwd()))

    def load(self) -> Agent:
        """Run the module and give its agent."""
        return load_agent(self.agent, None if self.folder is None else Path(self.folder))

    def __str__(self) -> str:
        return self.agent if self.folder is None else f"{self.agent} (in {self.folder})"


class _Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    session: str
    agent: str
    folder: str | None = None


def note(store: Path, session: str, reference: Reference) -> None:
    """Write down that a person ran `session` with `reference`."""
    confirm(reference)
    entry = _Entry(session, reference.agent, reference.folder)
    _add(_beside(store), _Entry, entry, lambda found: found.session)


def confirm(reference: Reference) -> None:
    """Write down that this user has named the reference, or has agreed to it; where there is no place, not."""
    path = _known()
    if path is not None:
        with suppress(OSError):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _add(path, Reference, reference, lambda found: found)


async def recorded(path: Path, store: Store, line: Journal) -> Reference | None:
    """The reference that was written down for a session; for a fork without one, that of the session it began in."""
    entries = {entry.session: entry for entry in _read(_beside(path), _Entry)}
    for _ in range(_MOST_ANCESTORS):
        entry = entries.get(line.id)
        if entry is not None:
            return Reference(entry.agent, entry.folder)
        if line.parent is None:
            return None
        try:
            line = await store.journal(line.parent)
        except JournalMissing:
            return None
    return None


def chosen(session: str, given: str | None, found: Reference | None, *, yes: bool = False) -> Reference:
    """The reference to load for a session: the one given on the command line, or the recorded one once confirmed."""
    if given is not None:
        reference = Reference.named(given)
        confirm(reference)
        return reference
    if found is None:
        raise AgentNotRecorded(session)
    if found not in _read(_known(), Reference):
        if not yes and not _agreed(session, found):
            raise AgentUnconfirmed(session, str(found))
        confirm(found)
    return found


def _agreed(session: str, reference: Reference) -> bool:
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    err = stderr()
    err.line(f"{printable(session)} was run with this code, which you have not loaded before:")
    err.line(f"  {printable(str(reference))}")
    err.write("Load and run it? [y/N] ")
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def _beside(store: Path) -> Path:
    real = store.resolve()
    return real.with_name(f"{real.name}{SUFFIX}")


def _known() -> Path | None:
    configured = os.environ.get("XDG_STATE_HOME", "")
    try:
        base = Path(configured) if configured.startswith("/") else Path.home() / ".local" / "state"
    except RuntimeError:
        return None  # a user without a home: each reference is asked about again
    return base / "holdfast" / KNOWN


def _read(path: Path | None, kind: type[T]) -> list[T]:
    try:
        handle = -1 if path is None else os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return []
    if path is None:
        return []
    with open(handle, "rb") as file:  # noqa: PTH123  it is open already
        _check_owner(path, handle)
        return _entries(file.read(2 * MOST_BYTES), kind)


def _entries(data: bytes, kind: type[T]) -> list[T]:
    """The entries of whole lines; what a power cut left of a line is passed over."""
    decode, found = msgspec.json.Decoder(kind).decode, list[T]()
    for line in data.split(b"\n"):
        try:
            found.append(decode(line))
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
    return found


def _check_owner(path: Path, handle: int) -> None:
    about = os.fstat(handle)
    if not stat.S_ISREG(about.st_mode):
        raise ReferencesUnsafe(path, "it is no regular file", f"rm {path}")
    if about.st_uid != os.geteuid():
        raise ReferencesUnsafe(path, "it belongs to another user", f"rm {path}")
    if about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ReferencesUnsafe(path, "others may write to it", f"chmod 600 {path}")


def _add(path: Path, kind: type[T], entry: T, key: Callable[[T], object]) -> None:
    """Append an entry, unless it is the newest one of its key already. When this returns it is on the disk."""
    with _locked(path) as handle:
        data = os.pread(handle, 2 * MOST_BYTES, 0)
        newest = {key(found): found for found in _entries(data, kind)}
        if newest.get(key(entry)) == entry:
            return
        line = b"\n" if data and not data.endswith(b"\n") else b""
        line += msgspec.json.encode(entry) + b"\n"
        if len(data) + len(line) > MOST_BYTES:
            newest.pop(key(entry), None)
            kept = [*list(newest.values())[1 - MOST_ENTRIES :], entry]
            _replace(path, b"".join(msgspec.json.encode(found) + b"\n" for found in kept))
            return
        os.write(handle, line)
        os.fsync(handle)


@contextmanager
def _locked(path: Path) -> Generator[int]:
    """The file, open to append to; one process writes at a time."""
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    while True:
        handle = os.open(path, flags, 0o600)
        try:
            _check_owner(path, handle)
            fcntl.flock(handle, fcntl.LOCK_EX)
            if path.stat().st_ino == os.fstat(handle).st_ino:  # else another process has just replaced the file
                yield handle
                return
        finally:
            os.close(handle)


def _replace(path: Path, data: bytes) -> None:
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)
    handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(handle, "wb") as file:  # noqa: PTH123  it is open already
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
