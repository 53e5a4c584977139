"""Options that several commands share."""

from __future__ import annotations

import re
import traceback
from contextlib import contextmanager
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, TypeAlias, TypeVar, cast

import typer
from typer.core import TyperGroup

from holdfast.errors import HoldfastError, InvariantBroken, UsageError
from holdfast.names import STORE_FOLDER

if TYPE_CHECKING:
    from collections.abc import Coroutine, Generator, Sequence


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


DEFAULT_STORE: Final = Path(STORE_FOLDER, "holdfast.db")
ENVIRONMENT: Final = "HOLDFAST_STORE"
_FORMER_STORE: Final = Path("holdfast.db")


def check_default(path: Path) -> Path:
    """The path of the store; `StoreNotMoved` if only a store at the former default place is here."""
    if path == DEFAULT_STORE and not path.exists() and _FORMER_STORE.is_file():
        raise StoreNotMoved(_FORMER_STORE, DEFAULT_STORE)
    return path


class Format(StrEnum):
    """How a turn is shown."""

    text = "text"
    json = "json"
    events = "events"


FormatOption: TypeAlias = Annotated[
    Format,
    typer.Option(
        "--output",
        "-o",
        help="text: the answer (as it comes, on a terminal); json: the outcome as one object; "
        "events: one JSON object to a line, as they come.",
    ),
]
StoreOption: TypeAlias = Annotated[
    Path,
    typer.Option("--store", "-s", envvar=ENVIRONMENT, metavar="PATH", help="The store file.", callback=check_default),
]
IdArgument: TypeAlias = Annotated[
    str, typer.Argument(metavar="ID", help="A session; the beginning of its id is enough.", show_default=False)
]
PlaceArgument: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="ID[/TURN]", help="A session, or one turn of it such as 9f3a/t2; cut ids are fine.", show_default=False
    ),
]
AgentArgument: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="AGENT",
        help="file.py:name or package.module:name; without a name where there is only one agent.",
        show_default=False,
    ),
]
AgentOption: TypeAlias = Annotated[
    str | None,
    typer.Option("--agent", metavar="AGENT", help="The agent, if not the one that the session was run with."),
]
YesOption: TypeAlias = Annotated[
    bool,
    typer.Option("--yes", "-y", help="Load the recorded agent without asking, also if you never loaded it before."),
]
SessionOption: TypeAlias = Annotated[
    str | None, typer.Option("--session", "-S", metavar="ID", help="Continue this session; a cut id is fine.")
]
AsOption: TypeAlias = Annotated[
    str | None,
    typer.Option("--as", metavar="ID", help="The exact id of the session, which is made if there is none."),
]
JsonOption: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
OlderThanOption = Annotated[
    str, typer.Option("--older-than", metavar="SPAN", help="How long ago it was: 30d, 12h, 90m, 45s.")
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only say what would be forgotten.")]

_SPAN: Final = re.compile(r"(\d{1,9})\s*([smhdw])", re.ASCII)
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def span(option: str, text: str) -> timedelta:
    """``30d``, ``12h``, ``90m``, ``45s`` or ``2w``."""
    found = _SPAN.fullmatch(text.strip())
    if found is None:
        message = f"{option} {text!r} is no span of time; write a number and a unit: 30d, 12h, 90m, 45s"
        raise CallInvalid(message)
    try:
        return timedelta(**{_UNITS[found[2]]: int(found[1])})
    except OverflowError:
        message = f"{option} {text!r} is longer than there is time; write a smaller number"
        raise CallInvalid(message) from None


SHOW: Final = "show"
_T = TypeVar("_T")


class Named(TyperGroup):
    """Takes a name where a command may stand: that of a thing, which is then shown."""

    about_one: ClassVar[str] = SHOW
    """The command that a name stands for."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # noqa: ANN401  typer does not name the types
        if args and args[0] not in self.commands:
            args = [self.about_one, *args]
        return super().resolve_command(ctx, args)


def before(context: typer.Context, name: str, own: _T) -> _T:
    """What an option is where it was not given here: what was said before the name, or before the command, counts.

    The environment and the profile have been asked there already.
    """
    source = context.get_parameter_source(name)
    if context.parent is None or (source is not None and source.name == "COMMANDLINE"):
        return own
    return cast("_T", context.parent.params[name])


def json_before(context: typer.Context, *, as_json: bool) -> bool:
    """Whether JSON was asked for, here or before the command."""
    return as_json or before(context, "as_json", as_json)


def finish(work: Coroutine[None, None, int | None]) -> None:
    """Do the work of a command, and end with its exit code; 0 where it has none."""
    import asyncio  # noqa: PLC0415  `--help` needs no event loop

    with explained():
        code = asyncio.run(work)
    raise typer.Exit(code or 0)
