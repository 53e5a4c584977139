"""Options that several commands share."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final, TypeAlias

import typer

from holdfast.cli.failures import StoreNotMoved
from holdfast.names import STORE_FOLDER

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
