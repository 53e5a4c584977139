"""The command line: `holdfast`, or `python -m holdfast`."""

from __future__ import annotations

import typer

from holdfast import __version__
from holdfast.cli import doctor

app = typer.Typer(
    name="holdfast",
    help="A runtime for agents that can't lose their place.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("doctor")(doctor.doctor)


def _version(wanted: bool) -> None:  # noqa: FBT001  typer calls it so
    if wanted:
        typer.echo(f"holdfast {__version__}")
        raise typer.Exit


@app.callback()
def _options(  # pyright: ignore[reportUnusedFunction]  # registered by the decorator
    version: bool = typer.Option(False, "--version", help="Show the version and exit.", callback=_version, is_eager=True),  # noqa: FBT001, FBT003
) -> None:
    _ = version


def main() -> None:
    """Run the command line."""
    app()
