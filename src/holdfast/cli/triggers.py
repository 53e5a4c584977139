"""`holdfast triggers`: triggers with their last and next occurrences."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import msgspec

from holdfast.cli import options, output, sessions
from holdfast.cli.options import CallInvalid, CommandGroup, Shell, argument, option
from holdfast.clock import wall_time
from holdfast.triggers.schedules import to_datetime
from holdfast.triggers.service import PrunedTrigger, TriggerStatus

triggers = CommandGroup(
    cls=options.NamedGroup,
    subcommand_metavar="[NAME | fire NAME | enable NAME | disable NAME | remove NAME | prune [NAME]]",
)
NameArgument = Annotated[str, argument("NAME", "A trigger.")]
ByOption = Annotated[str, option("WHO", "Your name; it is recorded.", "--by", show_default=False)]


@triggers.listing()
async def list_triggers(shell: Shell) -> None:
    """List triggers, which start work at a time, for a file, a webhook or an event; or show one of them.

    The processes that declare them with runtime.every drive them. These commands count for all of those processes.
    """
    async with sessions.view_runtime(shell.store) as runtime:
        found = await runtime.triggers.list()
    shell.print(found, lambda out: _table(out, found), nothing="no triggers")


@triggers.command(options.SHOW, hidden=True)
async def show(shell: Shell, name: NameArgument) -> None:
    """Show a trigger and its last occurrences."""
    async with sessions.view_runtime(shell.store) as runtime:
        found = await runtime.triggers.get(name)

    def lines(out: output.Terminal) -> Iterator[str]:
        yield from _table(out, [found])
        counts = f"{found.started:,} started, {found.skipped:,} skipped, {found.failed:,} failed"
        yield f"revision {found.revision} of {found.owner}: {counts}"
        for last in reversed(found.recent):
            at = to_datetime(last.at).strftime("%Y-%m-%d %H:%M:%SZ")
            yield output.printable(f"  {at}  {last.what:8} {last.id}  {' '.join(last.why.split())}")

    shell.print(found, lines)


@triggers.command()
async def fire(
    shell: Shell,
    name: NameArgument,
    *,
    payload: Annotated[str, option("JSON", "The payload of the occurrence.", "--payload", show_default=False)] = "null",
    key: Annotated[str | None, option("KEY", "The same key again is the same occurrence.")] = None,
) -> None:
    """Fire a trigger now. The occurrence is durable when this returns; a process that declares it starts the work."""
    try:
        value = msgspec.json.decode(payload)
    except msgspec.DecodeError as error:
        raise CallInvalid(f"--payload is not JSON: {error}; quote texts, such as '\"a text\"'") from None
    async with sessions.edit_runtime(shell.store) as runtime:
        occurrence = await runtime.triggers.fire(name, value, key=key)
    shell.print({"trigger": name, "occurrence": occurrence}, f"{name}: {occurrence} is reserved")


@triggers.command()
async def enable(shell: Shell, name: NameArgument, *, by: ByOption = "") -> None:
    """Enable a trigger. Times that passed while it was disabled are not made up for."""
    await _switch(shell, name, by, enabled=True)


@triggers.command()
async def disable(shell: Shell, name: NameArgument, *, by: ByOption = "") -> None:
    """Disable a trigger: it takes no new occurrences. Reserved ones are still started."""
    await _switch(shell, name, by, enabled=False)


async def _switch(shell: Shell, name: str, by: str, *, enabled: bool) -> None:
    async with sessions.edit_runtime(shell.store) as runtime:
        switch = runtime.triggers.enable if enabled else runtime.triggers.disable
        found = await switch(name, by=by)
    waiting = f"; {found.reserved:,} reserved will be started" if found.reserved else ""
    shell.print(found, f"{name} is {'enabled' if found.enabled else 'disabled'}{waiting}")


@triggers.command()
async def remove(shell: Shell, name: NameArgument, *, by: ByOption = "") -> None:
    """Remove a trigger and drop its reserved occurrences. Work that it has started goes on.

    A process whose code still declares it brings it back when it starts, as its next revision.
    """
    async with sessions.edit_runtime(shell.store) as runtime:
        await runtime.triggers.remove(name, by=by)
    shell.print({"trigger": name, "removed": True}, f"{name} is removed")


@triggers.command()
async def prune(
    shell: Shell,
    name: Annotated[str | None, argument("[NAME]", "One trigger.")] = None,
    *,
    older_than: options.OlderThan,
    dry_run: options.DryRun = False,
) -> None:
    """Delete old records of triggers. Their state stays, and every key: no occurrence starts a second time."""
    age = options.parse_span("--older-than", older_than)
    async with sessions.edit_runtime(shell.store) as runtime:
        found = await runtime.triggers.prune(name, older_than=age, dry_run=dry_run)

    def line(one: PrunedTrigger) -> str:
        counts = f"{one.records:,} records, {one.payloads:,} payloads, {one.alarms:,} alarms"
        return output.printable(f"{one.name}: {one.problem or (('would forget ' if dry_run else 'forgot ') + counts)}")

    shell.print(found, lambda _: map(line, found), nothing="no triggers")


def _table(out: output.Terminal, found: list[TriggerStatus]) -> list[str]:
    columns: output.Columns[TriggerStatus] = {
        "NAME": lambda line: output.one_line(line.name, 32),
        "STATE": lambda line: "problem" if line.problem else "enabled" if line.enabled else "disabled",
        "SOURCE": lambda line: output.one_line(line.source, 40),
        "TARGET": lambda line: output.one_line(line.target, 32),
        "LAST": lambda line: "never" if line.last is None else f"{line.last.what} {output.ago(line.last.at)}",
        "NEXT": _next,
        "WAITING": lambda line: str(line.reserved),
        "RUNNING": lambda line: str(line.running),
    }
    problems = [f"{line.name}: {output.one_line(line.problem, 200)}" for line in found if line.problem]
    return [*output.table_of(out, found, columns), *problems]


def _next(line: TriggerStatus) -> str:
    if line.next is None:
        return "-"
    return f"in {output.time_left(line.next)}" if line.next > wall_time() else "now"
