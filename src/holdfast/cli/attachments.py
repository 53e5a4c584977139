"""`holdfast attachments`: files that go with what is said: put, list, get, collect."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003  typer looks at the annotation at run time
from typing import Annotated, TypeAlias

import typer

from holdfast.cli.finishing import finish
from holdfast.cli.options import DEFAULT_STORE, JsonOption, StoreOption

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Files that go with what is said. Their bytes are kept once, under their digest.",
)

WhoseOption: TypeAlias = Annotated[
    str | None, typer.Option("--session", "-S", metavar="ID", help="The whole id of the session that may read it.")
]


@app.command()
def put(  # noqa: PLR0913
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file.", show_default=False)],
    *,
    media_type: Annotated[
        str | None, typer.Option("--type", metavar="TYPE", help="What it is, such as image/png; it is checked.")
    ] = None,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="What it is called, if not as the file.")] = None,
    session: WhoseOption = None,
    as_json: JsonOption = False,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Keep a file; prints its digest. Without a session it can be sent to any, and is collected when nobody has."""
    from holdfast.cli import attaching  # noqa: PLC0415

    finish(attaching.put(store, file, media_type, name, session, as_json=as_json))


@app.command("list")
def ls(
    session: Annotated[
        str | None, typer.Argument(metavar="[SESSION]", help="Whose; without one, those of none.", show_default=False)
    ] = None,
    *,
    as_json: JsonOption = False,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """List the attachments of a session, or those that nobody has sent yet."""
    from holdfast.cli import attaching  # noqa: PLC0415

    finish(attaching.ls(store, session, as_json=as_json))


@app.command()
def get(
    digest: Annotated[str, typer.Argument(metavar="DIGEST", help="As 'list' shows it.", show_default=False)],
    *,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="Where to write it; else to standard output."),
    ] = None,
    session: WhoseOption = None,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Write the bytes of an attachment; with --session, only if that one may read it."""
    from holdfast.cli import attaching  # noqa: PLC0415

    finish(attaching.get(store, digest, out, session))


@app.command()
def collect(
    *,
    hours: Annotated[
        float, typer.Option("--older-than", metavar="HOURS", help="Only what was last put so long ago.")
    ] = 24.0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count what would be deleted.")] = False,
    without_roots: Annotated[
        bool, typer.Option("--without-roots", help="Also where nothing at all is referred to.")
    ] = False,
    as_json: JsonOption = False,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Delete bytes that nobody refers to: no session, fork, task, process or input.

    Exit code 1, and nothing deleted, where it can't be seen what is needed.
    """
    from holdfast.cli import attaching  # noqa: PLC0415

    finish(attaching.collect(store, hours, dry_run=dry_run, without_roots=without_roots, as_json=as_json))
