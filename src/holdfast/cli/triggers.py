"""`holdfast triggers`: triggers with their last and next occurrences."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, TypeAlias

import msgspec
import typer

from holdfast.cli import options
from holdfast.cli.options import DEFAULT_STORE, CallInvalid, CommandGroup, NamedGroup, argument, option, parse_span
from holdfast.cli.output import Columns, Terminal, ago, one_line, print_result, printable, table_of, time_left
from holdfast.cli.sessions import edit_runtime, view_runtime
from holdfast.clock import wall_time
from holdfast.triggers.schedules import to_datetime
from holdfast.triggers.service import TriggerStatus

triggers = CommandGroup(
    cls=NamedGroup,
    invoke_without_command=True,
    subcommand_metavar="[NAME | fire NAME | enable NAME | disable NAME | remove NAME | prune [NAME]]",
)
NameArgument: TypeAlias = Annotated[str, argument("NAME", "A trigger.")]
ByOption: TypeAlias = Annotated[str, option("WHO", "Your name; it is recorded.", "--by", show_default=False)]


@triggers.callback()
async def list_triggers(
    context: typer.Context, *, as_json: options.Json = False, store: options.Store = DEFAULT_STORE
) -> None:
    """List triggers, which start work at a time, for a file, a webhook or an event; or show one of them.

    The processes that declare them with runtime.every drive them. These commands count for all of those processes.
    """
    if context.invoked_subcommand is not None:
        return
    async with view_runtime(store) as runtime:
        found = await runtime.triggers.list()
    print_result(found, lambda out: _table(out, found), nothing="no triggers", as_json=as_json)


@triggers.command(options.SHOW, hidden=True)
async def show(name: NameArgument, *, as_json: options.Json = False, store: options.Store = DEFAULT_STORE) -> None:
    """Show a trigger and its last occurrences."""
    async with view_runtime(store) as runtime:
        found = await runtime.triggers.get(name)

    def lines(out: Terminal) -> Iterator[str]:
        yield from _table(out, [found])
        counts = f"{found.started:,} started, {found.skipped:,} skipped, {found.failed:,} failed"
        yield f"revision {found.revision} of {found.owner}: {counts}"
        for last in reversed(found.recent):
            at = to_datetime(last.at).strftime("%Y-%m-%d %H:%M:%SZ")
            yield printable(f"  {at}  {last.what:8} {last.id}  {' '.join(last.why.split())}")

    print_result(found, lines, as_json=as_json)


@triggers.command()
async def fire(
    name: NameArgument,
    *,
    payload: Annotated[str, option("JSON", "The payload of the occurrence.", "--payload", show_default=False)] = "null",
    key: Annotated[str | None, option("KEY", "The same key again is the same occurrence.")] = None,
    as_json: options.Json = False,
    store: options.Store = DEFAULT_STORE,
) -> None:
    """Fire a trigger now. The occurrence is durable when this returns; a process that declares it starts the work."""
    try:
        value = msgspec.json.decode(payload)
    except msgspec.DecodeError as error:
        raise CallInvalid(f"--payload is not JSON: {error}; quote texts, such as '\"a text\"'") from None
    async with edit_runtime(store) as runtime:
        occurrence = await runtime.triggers.fire(name, value, key=key)
    report = {"trigger": name, "occurrence": occurrence}
    print_result(report, f"{name}: {occurrence} is reserved", as_json=as_json)


@triggers.command()
async def enable(
    name: NameArgument, *, by: ByOption = "", as_json: options.Json = False, store: options.Store = DEFAULT_STORE
) -> None:
    """Enable a trigger. Times that passed while it was disabled are not made up for."""
    await _switch(store, name, by, enabled=True, as_json=as_json)


@triggers.command()
async def disable(
    name: NameArgument, *, by: ByOption = "", as_json: options.Json = False, store: options.Store = DEFAULT_STORE
) -> None:
    """Disable a trigger: it takes no new occurrences. Reserved ones are still started."""
    await _switch(store, name, by, enabled=False, as_json=as_json)


async def _switch(store: Path, name: str, by: str, *, enabled: bool, as_json: bool) -> None:
    async with edit_runtime(store) as runtime:
        switch = runtime.triggers.enable if enabled else runtime.triggers.disable
        found = await switch(name, by=by)
    waiting = f"; {found.reserved:,} reserved will be started" if found.reserved else ""
    print_result(found, f"{name} is {'enabled' if found.enabled else 'disabled'}{waiting}", as_json=as_json)


@triggers.command()
async def remove(
    name: NameArgument, *, by: ByOption = "", as_json: options.Json = False, store: options.Store = DEFAULT_STORE
) -> None:
    """Remove a trigger and drop its reserved occurrences. Work that it has started goes on.

    A process whose code still declares it brings it back when it starts, as its next revision.
    """
    async with edit_runtime(store) as runtime:
        await runtime.triggers.remove(name, by=by)
    print_result({"trigger": name, "removed": True}, f"{name} is removed", as_json=as_json)


@triggers.command()
async def prune(
    name: Annotated[str | None, argument("[NAME]", "One trigger.")] = None,
    *,
    older_than: options.OlderThan,
    dry_run: options.DryRun = False,
    as_json: options.Json = False,
    store: options.Store = DEFAULT_STORE,
) -> None:
    """Delete old records of triggers. Their state stays, and every key: no occurrence starts a second time."""
    age = parse_span("--older-than", older_than)
    async with edit_runtime(store) as runtime:
        found = await runtime.triggers.prune(name, older_than=age, dry_run=dry_run)

    def lines(_: Terminal) -> Iterator[str]:
        for one in found:
            counts = f"{one.records:,} records, {one.payloads:,} payloads, {one.alarms:,} alarms"
            yield printable(f"{one.name}: {one.problem or (('would forget ' if dry_run else 'forgot ') + counts)}")

    print_result(found, lines, nothing="no triggers", as_json=as_json)


def _table(out: Terminal, found: list[TriggerStatus]) -> list[str]:
    columns: Columns[TriggerStatus] = {
        "NAME": lambda line: one_line(line.name, 32),
        "STATE": lambda line: "problem" if line.problem else "enabled" if line.enabled else "disabled",
        "SOURCE": lambda line: one_line(line.source, 40),
        "TARGET": lambda line: one_line(line.target, 32),
        "LAST": lambda line: "never" if line.last is None else f"{line.last.what} {ago(line.last.at)}",
        "NEXT": _next,
        "WAITING": lambda line: str(line.reserved),
        "RUNNING": lambda line: str(line.running),
    }
    problems = [f"{line.name}: {one_line(line.problem, 200)}" for line in found if line.problem]
    return [*table_of(out, found, columns), *problems]


def _next(line: TriggerStatus) -> str:
    if line.next is None:
        return "-"
    return f"in {time_left(line.next)}" if line.next > wall_time() else "now"
