"""Shared parts of commands: declaration, exit codes, errors, and common options."""

from __future__ import annotations

import inspect
import os
import re
import shlex
import traceback
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from holdfast.errors import HoldfastError, InvariantBroken, UsageError
from holdfast.names import STORE_FOLDER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from holdfast.cli.output import Columns, Terminal

FAILED: Final = 1
USAGE: Final = 2
WAITING: Final = 3
CANCELLED: Final = 4
LIMIT: Final = 5
INTERRUPTED: Final = 130
TERMINATED: Final = 143
EXITS: Final = {"completed": 0, "failed": FAILED, "cancelled": CANCELLED, "limit": LIMIT}
"""Exit codes by the status of a turn that has ended."""


# ---- declaring commands ----------------------------------------------------------------------------------------------

T = TypeVar("T")
Function = TypeVar("Function", bound="Callable[..., Any]")


class CommandGroup(typer.Typer):
    """Commands that are declared once, by the function that has the options and does the work.

    It may be a coroutine function. It returns the exit code; None is 0. The decorators return it unchanged. The fields
    of a parameter of the type `Shell` or `Printer` are options of the command.
    """

    def __init__(self, **settings: Any) -> None:  # those of typer
        super().__init__(rich_markup_mode=None, add_completion=False, **settings)

    def command(self, name: str | None = None, **settings: Any) -> Callable[[Function], Function]:
        register = super().command(name, cls=_GroupedCommand, **settings)
        return lambda function: _declare(register, function)

    def callback(self, **settings: Any) -> Callable[[Function], Function]:
        register = super().callback(**settings)
        return lambda function: _declare(register, function)

    def listing(self) -> Callable[[Function], Function]:
        """Declare the function of the group when no command follows."""
        register = super().callback(invoke_without_command=True)
        return lambda function: _declare(register, function, alone=True)


def _declare(register: Callable[[Callable[..., None]], object], function: Function, *, alone: bool = False) -> Function:
    signature = inspect.signature(function, eval_str=True)
    parameters = list(signature.parameters.values())
    bundle = next((each for each in parameters if each.annotation in {Printer, Shell}), None)
    fields = {} if bundle is None else dict(inspect.signature(bundle.annotation, eval_str=True).parameters)

    @wraps(function)
    def run(**options: Any) -> None:
        if alone and options.pop("_context").invoked_subcommand is not None:
            return
        if bundle is not None:
            options[bundle.name] = bundle.annotation(**{field: options.pop(field) for field in fields})
        try:
            code = function(**options)
            if inspect.iscoroutine(code):
                import asyncio  # `--help` needs no event loop

                code = asyncio.run(code)
        except (HoldfastError, OSError, typer.Exit):
            raise
        except Exception as error:  # one line instead of a traceback
            frames = traceback.extract_tb(error.__traceback__)
            place = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
            raise InvariantBroken(f"unexpected {type(error).__name__}: {error}{place}; please report it") from error
        if code:
            raise typer.Exit(code)

    parameters = [*(each for each in parameters if each is not bundle), *fields.values()]
    if alone:
        parameters.append(inspect.Parameter("_context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context))
    run.__dict__["__signature__"] = signature.replace(parameters=parameters)  # typer reads the options from it
    register(run)
    return function


class _GroupedCommand(TyperCommand):
    """A command that takes over options of its group: `holdfast processes --store PATH show ID`."""

    def invoke(self, ctx: Any) -> Any:  # typer does not export the type
        for name in ctx.params.keys() & ctx.parent.params.keys() if ctx.parent else ():
            if ctx.get_parameter_source(name).name != "COMMANDLINE":
                ctx.params[name] = ctx.parent.params[name]
        return super().invoke(ctx)


SHOW: Final = "show"


class NamedGroup(TyperGroup):
    """A group that takes a name in place of a command: `holdfast processes ID` is `holdfast processes show ID`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # typer does not export the types
        if args and args[0] not in self.commands:
            args = [SHOW, *args]
        return super().resolve_command(ctx, args)


# ---- errors ----------------------------------------------------------------------------------------------------------


class CallInvalid(UsageError):
    """The options or arguments do not go together."""


class IdAmbiguous(UsageError):
    """Several ids begin like the given one."""

    def __init__(self, given: str, candidates: list[str]) -> None:
        shown, most = ", ".join(candidates[:8]), 8
        more = f" and {len(candidates) - most:,} more" if len(candidates) > most else ""
        super().__init__(f"{given!r} may be any of {shown}{more}; give more of the id")


# ---- the store -------------------------------------------------------------------------------------------------------

DEFAULT_STORE: Final = Path(STORE_FOLDER, "holdfast.db")
STORE_VARIABLE: Final = "HOLDFAST_STORE"
_FORMER_STORE: Final = Path("holdfast.db")


def check_default(path: Path) -> Path:
    """The path of the store; an error if a store exists only at the former default path."""
    if path == DEFAULT_STORE and not path.exists() and _FORMER_STORE.is_file():
        found, folder = _FORMER_STORE, DEFAULT_STORE.parent
        raise CallInvalid(
            f"the store {found} is where earlier releases kept it, and stores are kept in {folder}/ now, which "
            f"no tool of an agent reaches; when nothing uses it, move it with: mkdir -m 700 -p {folder} && "
            f"mv {found}* {folder}/ (or name it with --store {found})"
        )
    return path


def require_store(path: Path) -> None:
    """Raise an error if the store does not exist: commands that only read never make one."""
    if not path.exists():
        raise CallInvalid(f"there is no store at {path}; name one with --store PATH or HOLDFAST_STORE")


def hint(path: Path, command: str, *rest: str) -> str:
    """A command to type next, on the same store."""
    words = ["holdfast", command, *rest]
    if path != DEFAULT_STORE and not os.environ.get(STORE_VARIABLE):
        words += ["--store", str(path)]
    return shlex.join(words)


# ---- options and arguments -------------------------------------------------------------------------------------------


def argument(metavar: str, help: str, *, show_default: bool = False, **settings: Any) -> Any:
    """An argument of a command."""
    return typer.Argument(metavar=metavar, help=help, show_default=show_default, **settings)


def option(metavar: str, help: str, *names: str, **settings: Any) -> Any:  # those of typer
    """An option of a command that takes a value."""
    return typer.Option(*names, metavar=metavar, help=help, **settings)


def flag(help: str, *names: str, **settings: Any) -> Any:  # those of typer
    """An option of a command without a value, or with a choice."""
    return typer.Option(*names, help=help, **settings)


class Format(StrEnum):
    """The formats in which a turn is printed."""

    text = "text"
    json = "json"
    events = "events"


_FORMATS: Final = (
    "text: the answer (as it comes, on a terminal); json: the outcome as one object; "
    "events: one JSON object to a line, as they come."
)
Output = Annotated[Format, flag(_FORMATS, "--output", "-o")]
Store = Annotated[
    Path, option("PATH", "The store file.", "--store", "-s", envvar=STORE_VARIABLE, callback=check_default)
]
SessionId = Annotated[str, argument("ID", "A session; the beginning of its id is enough.")]
TurnId = Annotated[
    str, argument("ID[/TURN]", "A session, or one of its turns such as 9f3a/t2; the beginning of the id is enough.")
]
AgentName = Annotated[
    str, argument("AGENT", "file.py:name or package.module:name; without a name where there is only one agent.")
]
Agent = Annotated[str | None, option("AGENT", "The agent, if not the one that the session was run with.")]
Yes = Annotated[
    bool, flag("Load the recorded agent without asking, also if you never loaded it before.", "--yes", "-y")
]
Session = Annotated[
    str | None, option("ID", "Continue this session; the beginning of its id is enough.", "--session", "-S")
]
OfSession = Annotated[
    str | None,
    option("ID", "Only those of this session; the beginning of its id is enough.", "--session", "-S"),
]
As = Annotated[str | None, option("ID", "The exact id of the session, which is made if there is none.", "--as")]
Json = Annotated[bool, flag("Print JSON, for scripts.", "--json")]
Limit = Annotated[int, option("N", "Print at most this many.", min=1)]
Reason = Annotated[str, option("TEXT", "Why; it is recorded.", show_default=False)]
OlderThan = Annotated[str, option("SPAN", "Only what is older than this: 30d, 12h, 90m, 45s.")]
DryRun = Annotated[bool, flag("Only print what would be deleted.", "--dry-run")]


@dataclass(frozen=True, kw_only=True)
class Printer:
    """Prints the answer of a command, as text or as JSON."""

    as_json: Json = False

    def print(self, found: object, text: str | Callable[[Terminal], Iterable[str]], *, nothing: str = "") -> None:
        """Print a result as JSON, or as `text`: a line, or a function that makes the lines.

        An empty result prints the text `nothing`, if that is set.
        """
        from holdfast.cli.output import stdout  # not for `--help`

        out = stdout()
        if self.as_json:
            out.json(found)
        elif nothing and not found:
            out.line(nothing)
        else:
            out.lines([text] if isinstance(text, str) else text(out))

    def print_each(
        self, found: Sequence[T], lines_of: Callable[[Terminal, T], Iterable[str]], *, nothing: str = ""
    ) -> None:
        """Print a list as JSON, or the lines of each item; print `nothing` if it is empty."""
        self.print(found, lambda out: (line for one in found for line in lines_of(out, one)), nothing=nothing)

    def print_table(self, found: Sequence[T], columns: Columns[T], *, nothing: str) -> None:
        """Print a list as JSON, or as a table with a column for each heading; print `nothing` if it is empty."""
        from holdfast.cli.output import table_of

        self.print(found, lambda out: table_of(out, found, columns), nothing=nothing)


@dataclass(frozen=True, kw_only=True)
class Shell(Printer):
    """The store of a command, and the printer of its answer."""

    store: Store = DEFAULT_STORE


_SPAN: Final = re.compile(r"(\d{1,9})\s*([smhdw])", re.ASCII)
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def parse_span(option: str, text: str) -> timedelta:
    """Parse ``30d``, ``12h``, ``90m``, ``45s`` or ``2w``."""
    found = _SPAN.fullmatch(text.strip())
    if found is None:
        raise CallInvalid(f"{option} {text!r} is no span of time; write a number and a unit: 30d, 12h, 90m, 45s")
    try:
        return timedelta(**{_UNITS[found[2]]: int(found[1])})
    except OverflowError:
        raise CallInvalid(f"{option} {text!r} is longer than there is time; write a smaller number") from None


def parse_json(text: str) -> Any:  # any JSON value
    """Parse a JSON value that was typed into a shell."""
    import msgspec  # `--help` does without it

    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError):
        raise CallInvalid(
            f"{text!r} is no JSON; quote it for the shell: true, 42, '\"words\"', '{{\"ok\": true}}'"
        ) from None
