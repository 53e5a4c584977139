"""The command line: `holdfast`, or `python -m holdfast`."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast import __version__
from holdfast.cli import doctor

app = typer.Typer(
    name="holdfast",
    no_args_is_help=True,
    invoke_without_command=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("doctor")(doctor.doctor)


def _version(*, wanted: bool) -> None:
    if wanted:
        typer.echo(f"holdfast {__version__}")
        raise typer.Exit


@app.callback()
def options(
    *,
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.", is_eager=True)] = False,
) -> None:
    """A runtime for agents that can't lose their place."""
    _version(wanted=version)


def main() -> None:
    """Run the command line."""
    app()
