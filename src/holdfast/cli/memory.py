"""`holdfast memory`: look at what agents remember, and change it."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003  typer looks at the annotation at run time
from typing import Annotated, TypeAlias

import typer

from holdfast.cli.finishing import finish
from holdfast.cli.options import DEFAULT_STORE, JsonOption, StoreOption

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
    from holdfast.cli import remembering  # noqa: PLC0415

    finish(remembering.ls(store, scope, prefix, search, as_json=as_json))


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
    from holdfast.cli import remembering  # noqa: PLC0415

    finish(remembering.get(store, scope, key, history=history, as_json=as_json))


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
    from holdfast.cli import remembering  # noqa: PLC0415

    finish(remembering.put(store, scope, key, value, expect=expect, ttl=ttl, as_json=as_json))


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
    from holdfast.cli import remembering  # noqa: PLC0415

    finish(remembering.rm(store, scope, keys, expect=expect, as_json=as_json))


@app.command()
def edit(scope: ScopeArgument, key: KeyArgument, *, store: StoreOption = DEFAULT_STORE) -> None:
    """Open an entry, or a new one, in $VISUAL or $EDITOR, and write what it becomes.

    If somebody else changes it meanwhile, your text is kept as an entry of its own. Exit code 1 then.
    """
    from holdfast.cli import editing  # noqa: PLC0415

    finish(editing.edit(store, scope, key))


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
    from holdfast.cli import transferring  # noqa: PLC0415

    finish(transferring.export_entries(store, scope, out))


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
    from holdfast.cli import transferring  # noqa: PLC0415

    finish(transferring.import_entries(store, file, overwrite=overwrite, as_json=as_json))
