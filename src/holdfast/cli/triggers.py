"""`holdfast triggers`: what starts work by itself, when it did last, and when it will."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003  typer looks at the annotation at run time
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer

from holdfast.cli.options import (
    DEFAULT_STORE,
    SHOW,
    CallInvalid,
    DryRunOption,
    JsonOption,
    Named,
    OlderThanOption,
    StoreOption,
    before,
    finish,
    json_before,
    span,
)

if TYPE_CHECKING:
    from datetime import timedelta

    from holdfast.cli.output import Terminal
    from holdfast.triggers.service import TriggerStatus
    from holdfast.triggers.state import Told


_HEADINGS: Final = ["NAME", "STATE", "SOURCE", "TARGET", "LAST", "NEXT", "WAITING", "RUNNING"]
app = typer.Typer(
    cls=Named,
    invoke_without_command=True,
    rich_markup_mode=None,
    subcommand_metavar="[NAME | fire NAME | enable NAME | disable NAME | remove NAME | prune [NAME]]",
)
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="A trigger.", show_default=False)]
ByOption = Annotated[str, typer.Option("--by", metavar="WHO", help="Who says so; it is recorded.", show_default=False)]


@app.callback()
def triggers(context: typer.Context, *, as_json: JsonOption = False, store: StoreOption = DEFAULT_STORE) -> None:
    """List triggers: what starts work at a time, for a file, a webhook or an event; or show one, and what it skipped.

    They are driven by the processes that declare them with runtime.every. What is said here counts for all of them.
    """
    if context.invoked_subcommand is None:
        finish(_list(store, as_json=as_json))


@app.command(SHOW, hidden=True)
def show(
    context: typer.Context, name: NameArgument, *, as_json: JsonOption = False, store: StoreOption = DEFAULT_STORE
) -> None:
    """Show a trigger: how it stands, and what became of its last occurrences."""
    finish(_show(before(context, "store", store), name, as_json=json_before(context, as_json=as_json)))


@app.command()
def fire(  # noqa: PLR0913
    context: typer.Context,
    name: NameArgument,
    *,
    payload: Annotated[
        str, typer.Option("--payload", metavar="JSON", help="What it is told.", show_default=False)
    ] = "null",
    key: Annotated[
        str | None,
        typer.Option("--key", metavar="KEY", help="The same key again is the same occurrence.", show_default=False),
    ] = None,
    as_json: JsonOption = False,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Let a trigger go off now. When this returns it will be started, as soon as a process that declares it runs."""
    as_json = json_before(context, as_json=as_json)
    finish(_fire(before(context, "store", store), name, payload, key, as_json=as_json))


@app.command()
def enable(
    context: typer.Context,
    name: NameArgument,
    *,
    by: ByOption = "",
    as_json: JsonOption = False,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Let a trigger go on. Times that passed while it was off are not made up for."""
    as_json = json_before(context, as_json=as_json)
    finish(_switch(before(context, "store", store), name, by, enabled=True, as_json=as_json))


@app.command()
def disable(
    context: typer.Context,
    name: NameArgument,
    *,
    by: ByOption = "",
    as_json: JsonOption = False,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Let a trigger take nothing new in. What it has reserved is started all the same."""
    as_json = json_before(context, as_json=as_json)
    finish(_switch(before(context, "store", store), name, by, enabled=False, as_json=as_json))


@app.command()
def remove(
    context: typer.Context,
    name: NameArgument,
    *,
    by: ByOption = "",
    as_json: JsonOption = False,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Remove a trigger: nothing new comes in, and what is reserved is dropped. What it started goes on.

    A process whose code still declares it brings it back when it starts, as its next revision.
    """
    as_json = json_before(context, as_json=as_json)
    finish(_remove(before(context, "store", store), name, by, as_json=as_json))


@app.command()
def prune(  # noqa: PLR0913
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="One trigger.", show_default=False)] = None,
    *,
    older_than: OlderThanOption,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Forget what triggers recorded so long ago. How they stand stays, and every key: nothing starts a second time."""
    as_json = json_before(context, as_json=as_json)
    age = span("--older-than", older_than)
    finish(_prune(before(context, "store", store), name, age, dry_run=dry_run, as_json=as_json))


async def _list(path: Path, *, as_json: bool) -> None:
    from holdfast.cli.output import tell  # noqa: PLC0415
    from holdfast.cli.sessions import looking  # noqa: PLC0415

    async with looking(path) as runtime:
        found = await runtime.triggers.list()
        now = runtime.store.clock.read().wall
    tell(found, lambda out: _rows(out, found, now), nothing="no triggers", as_json=as_json)


async def _show(path: Path, name: str, *, as_json: bool) -> None:
    from holdfast.cli.output import stdout  # noqa: PLC0415
    from holdfast.cli.sessions import looking  # noqa: PLC0415

    async with looking(path) as runtime:
        found = await runtime.triggers.get(name)
        now = runtime.store.clock.read().wall
    out = stdout()
    if as_json:
        out.line(msgspec.json.encode(found).decode())
        return
    out.write("".join(f"{line}\n" for line in _rows(out, [found], now)))
    counts = f"{found.started:,} started, {found.skipped:,} skipped, {found.failed:,} failed"
    out.line(f"revision {found.revision} of {found.owner}: {counts}")
    for told in reversed(found.recent):
        out.line(out.clean(f"  {_moment(told.at)}  {told.what:8} {told.id}  {' '.join(told.why.split())}"))


async def _fire(path: Path, name: str, payload: str, key: str | None, *, as_json: bool) -> None:
    from holdfast.cli.output import stdout  # noqa: PLC0415
    from holdfast.cli.sessions import changing  # noqa: PLC0415

    try:
        said = msgspec.json.decode(payload)
    except msgspec.DecodeError as error:
        raise CallInvalid(f"--payload is not JSON: {error}; quote texts, such as '\"a text\"'") from None
    async with changing(path) as runtime:
        occurrence = await runtime.triggers.fire(name, said, key=key)
    told = {"trigger": name, "occurrence": occurrence}
    stdout().line(msgspec.json.encode(told).decode() if as_json else f"{name}: {occurrence} is reserved")


async def _switch(path: Path, name: str, by: str, *, enabled: bool, as_json: bool) -> None:
    from holdfast.cli.output import stdout  # noqa: PLC0415
    from holdfast.cli.sessions import changing  # noqa: PLC0415

    async with changing(path) as runtime:
        switch = runtime.triggers.enable if enabled else runtime.triggers.disable
        found = await switch(name, by=by)
    waiting = f"; {found.reserved:,} reserved will be started" if found.reserved else ""
    said = f"{name} is {'enabled' if found.enabled else 'disabled'}{waiting}"
    stdout().line(msgspec.json.encode(found).decode() if as_json else said)


async def _remove(path: Path, name: str, by: str, *, as_json: bool) -> None:
    from holdfast.cli.output import stdout  # noqa: PLC0415
    from holdfast.cli.sessions import changing  # noqa: PLC0415

    async with changing(path) as runtime:
        await runtime.triggers.remove(name, by=by)
    told = {"trigger": name, "removed": True}
    stdout().line(msgspec.json.encode(told).decode() if as_json else f"{name} is removed")


async def _prune(path: Path, name: str | None, older_than: timedelta, *, dry_run: bool, as_json: bool) -> None:
    from holdfast.cli.output import stdout  # noqa: PLC0415
    from holdfast.cli.sessions import changing  # noqa: PLC0415

    async with changing(path) as runtime:
        found = await runtime.triggers.prune(name, older_than=older_than, dry_run=dry_run)
    out = stdout()
    if as_json:
        out.line(msgspec.json.encode(found).decode())
        return
    for one in found:
        counts = f"{one.records:,} records, {one.payloads:,} payloads, {one.alarms:,} alarms"
        out.line(out.clean(f"{one.name}: {one.problem or (('would forget ' if dry_run else 'forgot ') + counts)}"))
    if not found:
        out.line("no triggers")


def _rows(out: Terminal, found: list[TriggerStatus], now: int) -> list[str]:
    from holdfast.cli.output import (  # noqa: PLC0415
        one_line,
        status_table,
    )

    rows = [
        [
            one_line(line.name, 32),
            "problem" if line.problem else "enabled" if line.enabled else "disabled",
            one_line(line.source, 40),
            one_line(line.target, 32),
            _last(line.last, now),
            _next(line.next, now),
            str(line.reserved),
            str(line.running),
        ]
        for line in found
    ]
    problems = [f"{line.name}: {one_line(line.problem, 200)}" for line in found if line.problem]
    return [*status_table(out, _HEADINGS, rows, column=1), *problems]


def _last(told: Told | None, now: int) -> str:
    from holdfast.cli.output import duration  # noqa: PLC0415

    return "never" if told is None else f"{told.what} {duration(max(now - told.at, 0))} ago"


def _next(due: int | None, now: int) -> str:
    from holdfast.cli.output import duration  # noqa: PLC0415

    if due is None:
        return "-"
    return f"in {duration(due - now)}" if due > now else "now"


def _moment(at: int) -> str:
    from holdfast.triggers.schedules import to_datetime  # noqa: PLC0415

    return to_datetime(at).strftime("%Y-%m-%d %H:%M:%SZ")
