"""What can be wrong with a call of the command line, and the exit code that any error stands for."""

from __future__ import annotations

import traceback
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from holdfast.errors import HoldfastError, InvariantBroken, UsageError

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

FAILED: Final = 1
USAGE: Final = 2
WAITING: Final = 3
CANCELLED: Final = 4
LIMIT: Final = 5
INTERRUPTED: Final = 130
TERMINATED: Final = 143

EXITS: Final = {"completed": 0, "failed": FAILED, "cancelled": CANCELLED, "limit": LIMIT}
"""The exit code for how a turn ended."""
_CANDIDATES: Final = 8


class CallInvalid(UsageError):
    """Options or arguments that do not go together."""


class StoreMissing(UsageError):
    """There is no store where one was looked for."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"there is no store at {path}; name one with --store PATH or HOLDFAST_STORE")
        self.path = path


class StoreNotMoved(UsageError):
    """The store of this folder is still where earlier releases kept it, in reach of the tools of agents."""

    def __init__(self, found: Path, wanted: Path) -> None:
        super().__init__(
            f"the store {found} is where earlier releases kept it, and stores are kept in {wanted.parent}/ now, which "
            f"no tool of an agent reaches; when nothing uses it, move it with: mkdir -m 700 -p {wanted.parent} && "
            f"mv {found}* {wanted.parent}/ (or name it with --store {found})"
        )
        self.found = found
        self.wanted = wanted


class LogUnusable(UsageError):
    """The log of detached runs can't be written to, or something else stands in its place."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"nothing is run in the background: its log {path} can't be used: {reason}; remove it")
        self.path = path
        self.reason = reason


class AgentNotFound(UsageError):
    """The reference leads to no agent."""

    def __init__(self, reference: str, reason: str) -> None:
        super().__init__(f"{reference!r} names no agent: {reason}")
        self.reference = reference
        self.reason = reason


class AgentBroken(UsageError):
    """The module of the agent can't be loaded."""

    def __init__(self, reference: str, error: BaseException, place: str) -> None:
        said = " ".join(str(error).split())
        super().__init__(f"{reference!r} can't be loaded: {type(error).__name__}: {said}{place}")
        self.reference = reference
        self.error = error


class AgentNotRecorded(UsageError):
    """The command line has not written down which code a session was run with."""

    def __init__(self, session: str) -> None:
        super().__init__(
            f"{session} was not begun with 'holdfast run' or 'chat' on this store, so nothing says where its agent is: "
            "name it with --agent file.py:name"
        )
        self.session = session


class AgentUnconfirmed(UsageError):
    """The recorded code was never named by this user, and nobody has agreed to load it. Nothing was loaded."""

    def __init__(self, session: str, reference: str) -> None:
        super().__init__(
            f"{session} was run with {reference}, which you have not loaded before: look at that code, then give --yes "
            "to load it, or name the agent yourself with --agent file.py:name"
        )
        self.session = session
        self.reference = reference


class ReferencesUnsafe(UsageError):
    """A file that names code can have been written by somebody else. It is not read."""

    def __init__(self, path: Path, reason: str, remedy: str) -> None:
        super().__init__(f"{path} says which code to load, and is not trusted: {reason}; '{remedy}' repairs it")
        self.path = path
        self.reason = reason
        self.remedy = remedy


class SessionUnknown(UsageError):
    """No session has an id that begins like this."""

    def __init__(self, given: str) -> None:
        super().__init__(f"no session is called {given!r}, nor begins so; 'holdfast ps -a' lists them all")
        self.given = given


class NotASession(UsageError):
    """An id of something else: a background call, a durable function, a trigger."""

    def __init__(self, given: str, what: str, command: str) -> None:
        super().__init__(f"{given!r} is no session, it is {what}; look at it with: {command}")
        self.given = given
        self.command = command


class SessionAmbiguous(UsageError):
    """Several sessions have ids that begin like this."""

    def __init__(self, given: str, candidates: Sequence[str]) -> None:
        shown = ", ".join(candidates[:_CANDIDATES])
        more = f" and {len(candidates) - _CANDIDATES:,} more" if len(candidates) > _CANDIDATES else ""
        super().__init__(f"{given!r} may be any of {shown}{more}; give more of the id")
        self.given = given
        self.candidates = tuple(candidates)


class WaitNotOpen(UsageError):
    """The session does not wait for this."""

    def __init__(self, session: str, name: str, names: Sequence[str]) -> None:
        choice = f"it waits for {', '.join(names)}" if names else "it waits for nothing"
        super().__init__(f"{session!r} does not wait for {name!r}: {choice}")
        self.session = session
        self.name = name
        self.names = tuple(names)


class ApprovalNotResolved(UsageError):
    """An approval is not answered with a value. Nothing was changed."""

    def __init__(self, session: str, id: str) -> None:
        super().__init__(
            f"{id!r} of {session!r} is an approval, and no value answers it: "
            f"use 'holdfast approve {id}' or 'holdfast deny {id}'"
        )
        self.session = session
        self.id = id


class CommandBroken(InvariantBroken):
    """A command met something that it was not made for."""

    def __init__(self, error: Exception) -> None:
        frames = traceback.extract_tb(error.__traceback__)
        place = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
        super().__init__(f"unexpected {type(error).__name__}: {error}{place}; please report it")
        self.error = error


@contextmanager
def explained() -> Generator[None]:
    """Whatever goes wrong inside is an error that can be told in one line."""
    try:
        yield
    except (HoldfastError, OSError):
        raise
    except Exception as error:
        raise CommandBroken(error) from error


def exit_code(error: HoldfastError) -> int:
    """2 where the caller can act, 1 otherwise."""
    return USAGE if isinstance(error, UsageError) else FAILED
