"""`holdfast processes`: durable functions and what was started of them, as they are called."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.cli.finishing import finish
from holdfast.cli.groups import SHOW, Named, before, json_before
from holdfast.cli.options import DEFAULT_STORE, DryRunOption, JsonOption, OlderThanOption, StoreOption
from holdfast.cli.spans import span

app = typer.Typer(
    cls=Named, invoke_without_command=True, rich_markup_mode=None, subcommand_metavar="[ID | COMMAND ...]"
)

ProcessArgument = Annotated[
    str, typer.Argument(metavar="ID", help="A process; the beginning of its id is enough.", show_default=False)
]
ValueArgument = Annotated[str, typer.Argument(metavar="JSON", help="A JSON value.", show_default=False)]
ReasonOption = Annotated[str, typer.Option(metavar="TEXT", help="Why; it is recorded.", show_default=False)]


@app.callback()
def processes(  # noqa: PLR0913
    context: typer.Context,
    *,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Only those of this function.")] = None,
    session: Annotated[
        str | None, typer.Option("--session", "-S", metavar="ID", help="Only those that work for this session.")
    ] = None,
    status: Annotated[
        str | None,
        typer.Option(metavar="STATUS", help="Only running, waiting, completed, failed, cancelled or abandoned ones."),
    ] = None,
    limit: Annotated[int, typer.Option(metavar="N", min=1, help="How many at the most.")] = 50,
    as_json: JsonOption = False,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """List durable functions that were started, those that changed last first; or show one with what happened in it.

    'abandoned': whoever ran it is gone, nobody else may, and somebody has given it up.
    """
    if context.invoked_subcommand is not None:
        return
    from holdfast.cli import processlist  # noqa: PLC0415

    finish(processlist.listed(store, processlist.Wanted(name, session, status, limit), as_json=as_json))


@app.command(SHOW, hidden=True)
def show(
    context: typer.Context, id: ProcessArgument, *, as_json: JsonOption = False, store: StoreOption = DEFAULT_STORE
) -> None:
    """Show a process: how it stands, what it gave, and what happened in it."""
    from holdfast.cli import processlist  # noqa: PLC0415

    finish(processlist.shown(before(context, "store", store), id, as_json=json_before(context, as_json=as_json)))


@app.command()
def start(  # noqa: PLR0913
    context: typer.Context,
    function: Annotated[
        str, typer.Argument(metavar="NAME", help="file.py:name or package.module:name.", show_default=False)
    ],
    arguments: Annotated[str, typer.Argument(metavar="JSON", help="An object with the arguments.")] = "{}",
    *,
    id: Annotated[str | None, typer.Option("--id", metavar="ID", help="Its id: the same one starts once.")] = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Only write it down; whoever works on the store runs it.")
    ] = False,
    as_json: JsonOption = False,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Start a durable function and run it until it has ended or waits for something.

    Exit code 0 when it completed, 3 when it waits, 1 when it failed, 4 when it was cancelled.
    """
    from holdfast.cli import processlist  # noqa: PLC0415

    path, shown = before(context, "store", store), json_before(context, as_json=as_json)
    finish(processlist.started(path, function, arguments, id, detach=detach, as_json=shown))


@app.command()
def work(
    context: typer.Context,
    module: Annotated[
        str, typer.Argument(metavar="MODULE", help="file.py or package.module with functions.", show_default=False)
    ],
    *,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Run the processes of a store with the functions (and agents) of a module, until told to stop."""
    from holdfast.cli import processlist  # noqa: PLC0415

    finish(processlist.worked(before(context, "store", store), module))


@app.command()
def signal(  # noqa: PLR0913
    context: typer.Context,
    id: ProcessArgument,
    name: Annotated[str, typer.Argument(metavar="NAME", help="What it waits for.", show_default=False)],
    value: ValueArgument = "null",
    *,
    key: Annotated[
        str | None,
        typer.Option("--key", metavar="KEY", help="The same key again is the same signal.", show_default=False),
    ] = None,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Answer what a process waits for, or will wait for."""
    from holdfast.cli import processlist  # noqa: PLC0415

    finish(processlist.signalled(before(context, "store", store), id, name, value, key))


@app.command()
def cancel(
    context: typer.Context, id: ProcessArgument, *, reason: ReasonOption = "", store: StoreOption = DEFAULT_STORE
) -> None:
    """Cancel a process, whoever runs it; its children are cancelled with it.

    Exit code 0 when it was cancelled, 1 when that came too late.
    """
    from holdfast.cli import processlist  # noqa: PLC0415

    finish(processlist.cancelled(before(context, "store", store), id, reason))


@app.command()
def transfer(
    context: typer.Context,
    id: ProcessArgument,
    session: Annotated[
        str, typer.Argument(metavar="SESSION", help="The session that is told when it ends.", show_default=False)
    ],
    *,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Let a process work for another session: that one is told when it ends.

    Exit code 0 when that will be so, 1 when it came too late.
    """
    from holdfast.cli import processlist  # noqa: PLC0415

    finish(processlist.transferred(before(context, "store", store), id, session))


@app.command()
def abandon(
    context: typer.Context, id: ProcessArgument, *, reason: ReasonOption = "", store: StoreOption = DEFAULT_STORE
) -> None:
    """Give up a process that only one may run who is gone."""
    from holdfast.cli import processlist  # noqa: PLC0415

    finish(processlist.abandoned(before(context, "store", store), id, reason))


@app.command()
def complete(
    context: typer.Context, id: ProcessArgument, value: ValueArgument = "null", *, store: StoreOption = DEFAULT_STORE
) -> None:
    """End a process that is carried out elsewhere, with what came of it."""
    from holdfast.cli import processlist  # noqa: PLC0415

    finish(processlist.completed(before(context, "store", store), id, value))


@app.command()
def stuck(context: typer.Context, *, as_json: JsonOption = False, store: StoreOption = DEFAULT_STORE) -> None:
    """List the processes that need a person, each with the command that helps."""
    from holdfast.cli import processlist  # noqa: PLC0415

    finish(processlist.stuck(before(context, "store", store), as_json=json_before(context, as_json=as_json)))


@app.command()
def prune(  # noqa: PLR0913
    context: typer.Context,
    *,
    older_than: OlderThanOption,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Only those of this function.")] = None,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Forget processes that ended so long ago: their steps, results and signals go, how they ended stays.

    What is not over is kept, and what a process that is under way may still ask for. Their ids are never used again.
    """
    from holdfast.cli import processlist  # noqa: PLC0415

    path, shown = before(context, "store", store), json_before(context, as_json=as_json)
    named = name if name is not None else before(context, "name", name)
    finish(processlist.pruned(path, span("--older-than", older_than), named, dry_run=dry_run, as_json=shown))
