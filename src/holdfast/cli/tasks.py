"""`holdfast tasks`: the tool calls that go on in the background, as they are called."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.cli.finishing import finish
from holdfast.cli.groups import SHOW, Named, before, json_before
from holdfast.cli.options import DEFAULT_STORE, JsonOption, StoreOption

app = typer.Typer(cls=Named, invoke_without_command=True, rich_markup_mode=None, subcommand_metavar="[ID | cancel ID]")

TaskArgument = Annotated[
    str, typer.Argument(metavar="ID", help="A task; the beginning of its id is enough.", show_default=False)
]


@app.callback()
def tasks(  # noqa: PLR0913
    context: typer.Context,
    *,
    session: Annotated[
        str | None, typer.Option("--session", "-S", metavar="ID", help="Only those of this session; a cut id is fine.")
    ] = None,
    status: Annotated[
        str | None,
        typer.Option(
            metavar="STATUS",
            help="Only created, running, waiting, succeeded, failed, cancelled or interrupted ones.",
        ),
    ] = None,
    limit: Annotated[int, typer.Option(metavar="N", min=1, help="How many at the most.")] = 50,
    as_json: JsonOption = False,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """List the tool calls that go on in the background, those that changed last first; or show one with its result.

    'interrupted': its process ended, and it must not be repeated. A task that runs and is driven by nobody is seen to
    by whoever opens the store with its agent.
    """
    if context.invoked_subcommand is not None:
        return
    from holdfast.cli import tasklist  # noqa: PLC0415

    finish(tasklist.listed(store, session, status, limit, as_json=as_json))


@app.command(SHOW, hidden=True)
def show(
    context: typer.Context, id: TaskArgument, *, as_json: JsonOption = False, store: StoreOption = DEFAULT_STORE
) -> None:
    """Show a task: what it was asked, how it stands, and what it gave."""
    from holdfast.cli import tasklist  # noqa: PLC0415

    as_json = json_before(context, as_json=as_json)
    finish(tasklist.shown(before(context, "store", store), id, as_json=as_json))


@app.command()
def cancel(
    context: typer.Context,
    id: TaskArgument,
    *,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why; it is recorded.", show_default=False)] = "",
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Cancel a task, whoever works on it; its session is told.

    Exit code 0 when it was cancelled, 1 when that came too late.
    """
    from holdfast.cli import tasklist  # noqa: PLC0415

    finish(tasklist.cancelled(before(context, "store", store), id, reason))
