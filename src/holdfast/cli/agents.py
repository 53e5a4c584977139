"""References to agents, like `file.py:name`: loading them, and recording the one that a session was run with.

The file `STORE.agents` next to a store has the reference of each session. Loading a reference runs code, so each user
confirms it once: the user's own state folder has the confirmed ones.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import stat
import sys
import traceback
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Final, cast

import msgspec

from holdfast.agent import Agent
from holdfast.cli.options import CallInvalid
from holdfast.cli.output import printable, stderr
from holdfast.deps import NO_DEPS
from holdfast.errors import JournalMissing, UsageError
from holdfast.plainfiles import read_plain_file, sync_folder, write_new_file
from holdfast.store import Journal, Store


class AgentUnavailable(UsageError):
    """The agent of a session can't be loaded, or must not be."""


class AgentNotFound(AgentUnavailable):
    """The reference names no agent."""

    def __init__(self, reference: str, reason: str) -> None:
        super().__init__(f"{reference!r} names no agent: {reason}")
        self.reason = reason


# ---- loading ---------------------------------------------------------------------------------------------------------


def load_agent(reference: str, folder: Path | None = None) -> Agent:
    """Load the agent that `reference` names; this runs its module.

    A module is searched in `folder` first, by default the current one.
    """
    place, name = _split(reference)
    if not place or (name is not None and not name.isidentifier()):
        raise AgentNotFound(reference, "write file.py:name or package.module:name")
    try:
        module = load_module(reference, place, folder)
    except AgentNotFound:
        raise
    except (Exception, SystemExit) as error:
        said = f"{type(error).__name__}: {' '.join(str(error).split())}{_raising_line(error)}"
        raise AgentUnavailable(f"{reference!r} can't be loaded: {said}") from error
    agents: dict[str, Agent] = {}
    for known, value in vars(module).items():
        if isinstance(value, Agent) and not any(value is other for other in agents.values()):
            agents[known] = value
    names = ", ".join(sorted(agents))
    if name is not None:
        found: object = getattr(module, name, None)
        if isinstance(found, Agent):
            return cast("Agent", found)
        what = "is not there" if found is None else f"is a {type(found).__name__}"
        raise AgentNotFound(reference, f"{name!r} {what}; agents of the module: {names or 'none'}")
    if len(agents) == 1:
        return next(iter(agents.values()))
    raise AgentNotFound(
        reference, f"the module has several: choose one of {names}" if agents else "the module has no holdfast.Agent"
    )


def _split(reference: str) -> tuple[str, str | None]:
    """The file or module, and the name of the agent, if the reference has one."""
    place, colon, name = reference.rpartition(":")
    return (place, name) if colon and not reference.endswith(".py") else (reference, None)  # folders may have colons


def load_module(reference: str, place: str, folder: Path | None = None) -> ModuleType:
    """Load a file, or import a module from `folder` (by default the current one), or an installed one."""
    if place.endswith(".py"):
        return _load_file(reference, Path(place))
    if not all(part.isidentifier() for part in place.split(".")):
        raise AgentNotFound(reference, "write file.py:name or package.module:name")
    _add_to_path(folder or Path.cwd())
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name is not None and (place == error.name or place.startswith(f"{error.name}.")):
            hint = "; for a file write its name with .py" if Path(f"{place.replace('.', '/')}.py").is_file() else ""
            raise AgentNotFound(reference, f"there is no module {error.name!r}{hint}") from None
        raise


def module_deps(module: ModuleType | None) -> object:
    """The value of the name `deps` in a module of agents or functions."""
    return getattr(module, "deps", NO_DEPS)


def _file_module(path: Path) -> str:
    return f"agent_file_{path.stem}"


def _load_file(reference: str, path: Path) -> ModuleType:
    if not path.is_file():
        raise AgentNotFound(reference, f"there is no file {path}")
    name = _file_module(path)
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    if spec is None or spec.loader is None:
        raise AgentNotFound(reference, f"{path} is no Python file")
    _add_to_path(path.resolve().parent)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _add_to_path(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _raising_line(error: BaseException) -> str:
    if isinstance(error, SyntaxError):
        return ""  # its message names the line
    ours = ("<frozen", str(Path(__file__).parents[1]))
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(ours) and frame.filename != importlib.__file__
    ]
    return f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""


# ---- recording -------------------------------------------------------------------------------------------------------

_MOST_BYTES: Final = 4 * 1024 * 1024
"""A larger file keeps its newest entries when the next one is added."""
_MOST_ENTRIES: Final = 5_000
_MOST_ANCESTORS: Final = 1_000


class AgentReference(msgspec.Struct, frozen=True, omit_defaults=True):
    """Code that holds an agent: `/path/file.py:name`, or `package.module:name` as found from a folder."""

    agent: str
    folder: str | None = None
    """The folder that is searched first for a module; None for a file, which has an absolute path."""
    session: str | None = None
    """The session that was run with it, in the file next to a store."""

    @classmethod
    def parse(cls, given: str) -> AgentReference:
        """Make a reference that a person wrote independent of the current folder."""
        place, name = _split(given)
        if place.endswith(".py"):
            return cls(f"{Path(place).resolve()}{'' if name is None else f':{name}'}")
        return cls(given, str(Path.cwd()))

    def load(self) -> Agent:
        """Run the module, and return its agent."""
        return load_agent(self.agent, None if self.folder is None else Path(self.folder))

    def deps(self) -> object:
        """The source of the dependencies that the loaded module names `deps`, as for ``hf.open(deps=...)``."""
        place, _ = _split(self.agent)
        return module_deps(sys.modules.get(_file_module(Path(place)) if place.endswith(".py") else place))

    def __str__(self) -> str:
        return self.agent if self.folder is None else f"{self.agent} (in {self.folder})"


def record_reference(store: Path, session: str, reference: AgentReference) -> None:
    """Record that a person ran `session` with `reference`, which confirms it."""
    _confirm(reference)
    _add(_references_of(store), msgspec.structs.replace(reference, session=session))


def _confirm(reference: AgentReference) -> None:
    """Record, if possible, that this user has typed the reference or agreed to it."""
    path = _confirmed_references()
    if path is not None:
        with suppress(OSError):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _add(path, reference)


async def recorded_reference(path: Path, store: Store, line: Journal) -> AgentReference | None:
    """The recorded reference of a session; a fork without one has its parent's."""
    entries = {entry.session: entry for entry in _read(_references_of(path))}
    with suppress(JournalMissing):
        for _ in range(_MOST_ANCESTORS):
            if line.id in entries:
                return msgspec.structs.replace(entries[line.id], session=None)
            if line.parent is None:
                break
            line = await store.journal(line.parent)
    return None


def choose_reference(
    session: str, given: str | None, recorded: AgentReference | None, *, yes: bool = False
) -> AgentReference:
    """The reference to load for a session: the one of the command line, or the recorded one once it is confirmed."""
    if given is not None:
        reference = AgentReference.parse(given)
        _confirm(reference)
        return reference
    if recorded is None:
        raise AgentUnavailable(
            f"{session} was not begun with 'holdfast run' or 'chat' on this store, so nothing says where its agent is: "
            "name it with --agent file.py:name"
        )
    confirmed = _confirmed_references()
    if confirmed is None or recorded not in _read(confirmed):
        if not yes and not _ask_user(session, recorded):
            raise AgentUnavailable(
                f"{session} was run with {recorded}, which you have not loaded before: look at that code, then give "
                "--yes to load it, or name the agent yourself with --agent file.py:name"
            )
        _confirm(recorded)
    return recorded


def _ask_user(session: str, reference: AgentReference) -> bool:
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    err = stderr()
    err.line(f"{printable(session)} was run with this code, which you have not loaded before:")
    err.line(f"  {printable(str(reference))}")
    err.write("Load and run it? [y/N] ")
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def _references_of(store: Path) -> Path:
    real = store.resolve()
    return real.with_name(f"{real.name}.agents")


def _confirmed_references() -> Path | None:
    configured = os.environ.get("XDG_STATE_HOME", "")
    try:
        base = Path(configured) if configured.startswith("/") else Path.home() / ".local" / "state"
    except RuntimeError:
        return None  # a user without a home must confirm each time
    return base / "holdfast" / "known_agents"


def _read(path: Path) -> list[AgentReference]:
    try:
        found, data = read_plain_file(path, 2 * _MOST_BYTES, follow=False)
    except FileNotFoundError:
        return []
    _check_owner(path, found)
    return _parse_entries(data)


def _parse_entries(data: bytes) -> list[AgentReference]:
    """Parse the entries. An earlier release may have left part of a line at a power cut, which is skipped."""
    found: list[AgentReference] = []
    for line in data.split(b"\n"):
        with suppress(msgspec.DecodeError, UnicodeDecodeError):
            found.append(msgspec.json.decode(line, type=AgentReference))
    return found


def _check_owner(path: Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        reason, remedy = "it is no regular file", "rm"
    elif found.st_uid != os.geteuid():
        reason, remedy = "it belongs to another user", "rm"
    elif found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        reason, remedy = "others may write to it", "chmod 600"
    else:
        return
    raise CallInvalid(f"{path} says which code to load, and is not trusted: {reason}; '{remedy} {path}' repairs it")


def _add(path: Path, entry: AgentReference) -> None:
    """Add an entry durably, unless it is the newest of its session or, without a session, already present."""
    with _lock(path) as handle:
        newest = {found.session or found: found for found in _parse_entries(os.pread(handle, 2 * _MOST_BYTES, 0))}
        if newest.pop(entry.session or entry, None) == entry:
            return
        lines = [msgspec.json.encode(found) + b"\n" for found in (*newest.values(), entry)]
        if sum(map(len, lines)) > _MOST_BYTES:
            lines = lines[-_MOST_ENTRIES:]
        new = path.with_name(f"{path.name}.new")
        new.unlink(missing_ok=True)
        write_new_file(new, b"".join(lines))
        new.replace(path)
        sync_folder(path.parent)


@contextmanager
def _lock(path: Path) -> Generator[int]:
    """Open the file to replace it; one process writes at a time."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    while True:
        handle = os.open(path, flags, 0o600)
        try:
            _check_owner(path, os.fstat(handle))
            fcntl.flock(handle, fcntl.LOCK_EX)
            if path.stat().st_ino == os.fstat(handle).st_ino:  # else another process has just replaced the file
                yield handle
                return
        finally:
            os.close(handle)
