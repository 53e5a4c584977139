"""`holdfast processes`: durable functions and what was started of them, as they are called."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, cast, get_args

import msgspec
import typer

from holdfast.agent import Agent
from holdfast.cli.agents import load_file, load_module
from holdfast.cli.options import (
    CANCELLED,
    DEFAULT_STORE,
    FAILED,
    SHOW,
    WAITING,
    AgentNotFound,
    CallInvalid,
    DryRunOption,
    JsonOption,
    Named,
    OlderThanOption,
    SessionAmbiguous,
    StoreOption,
    before,
    finish,
    json_before,
    span,
)
from holdfast.cli.output import duration, one_line, status_table, stdout, tell
from holdfast.cli.sessions import changing, find_session, looking
from holdfast.errors import JournalMissing, TaskUnknown
from holdfast.errors.caller import JournalPruned, ProcessPruned, ProcessUnknown
from holdfast.names import check_choice
from holdfast.processes.definition import AnyProcedure, Procedure
from holdfast.processes.run import value_of
from holdfast.processes.state import ROLE, TaskState, TaskStatus, id_of, journal_of
from holdfast.processes.tasks import ROLE as TASKS_ROLE
from holdfast.runtime import Runtime
from holdfast.runtime import open as open_runtime
from holdfast.toolkits.tasks import describe_progress, read_task_summary, result_as_lines

if TYPE_CHECKING:
    from datetime import timedelta
    from types import ModuleType

    from holdfast.cli.output import Terminal
    from holdfast.processes.handle import Process
    from holdfast.processes.lists import ProcessEvent, ProcessLine
    from holdfast.processes.state import ProcessStatus
    from holdfast.store import Journal, Store


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

    finish(listed(store, Wanted(name, session, status, limit), as_json=as_json))


@app.command(SHOW, hidden=True)
def show(
    context: typer.Context, id: ProcessArgument, *, as_json: JsonOption = False, store: StoreOption = DEFAULT_STORE
) -> None:
    """Show a process: how it stands, what it gave, and what happened in it."""
    finish(shown(before(context, "store", store), id, as_json=json_before(context, as_json=as_json)))


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
    path, shown = before(context, "store", store), json_before(context, as_json=as_json)
    finish(started(path, function, arguments, id, detach=detach, as_json=shown))


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
    finish(worked(before(context, "store", store), module))


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
    finish(signalled(before(context, "store", store), id, name, value, key))


@app.command()
def cancel(
    context: typer.Context, id: ProcessArgument, *, reason: ReasonOption = "", store: StoreOption = DEFAULT_STORE
) -> None:
    """Cancel a process, whoever runs it; its children are cancelled with it.

    Exit code 0 when it was cancelled, 1 when that came too late.
    """
    finish(cancelled(before(context, "store", store), id, reason))


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
    finish(transferred(before(context, "store", store), id, session))


@app.command()
def abandon(
    context: typer.Context, id: ProcessArgument, *, reason: ReasonOption = "", store: StoreOption = DEFAULT_STORE
) -> None:
    """Give up a process that only one may run who is gone."""
    finish(abandoned(before(context, "store", store), id, reason))


@app.command()
def complete(
    context: typer.Context, id: ProcessArgument, value: ValueArgument = "null", *, store: StoreOption = DEFAULT_STORE
) -> None:
    """End a process that is carried out elsewhere, with what came of it."""
    finish(completed(before(context, "store", store), id, value))


@app.command()
def stuck(context: typer.Context, *, as_json: JsonOption = False, store: StoreOption = DEFAULT_STORE) -> None:
    """List the processes that need a person, each with the command that helps."""
    finish(processlist_stuck(before(context, "store", store), as_json=json_before(context, as_json=as_json)))


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
    path, shown = before(context, "store", store), json_before(context, as_json=as_json)
    named = name if name is not None else before(context, "name", name)
    finish(pruned(path, span("--older-than", older_than), named, dry_run=dry_run, as_json=shown))


_PATIENCE: Final = 2.0
"""How long `cancel` waits for the end, in seconds."""
_HEADINGS: Final = ["PROCESS", "FUNCTION", "STATUS", "WAITS FOR", "CHANGED", "ATTEMPT"]
_EXITS: Final = {"completed": 0, "waiting": WAITING, "cancelled": CANCELLED}


class Wanted(NamedTuple):
    """Which processes are listed."""

    name: str | None
    session: str | None
    status: str | None
    limit: int


class Whole(msgspec.Struct, frozen=True):
    """One process with what happened in it."""

    process: ProcessLine
    arguments: dict[str, Any]
    timeline: list[ProcessEvent]
    result: Any = None


async def listed(path: Path, wanted: Wanted, *, as_json: bool) -> int:
    """List processes, those that changed last first."""
    async with looking(path) as runtime:
        status = cast("ProcessStatus | None", wanted.status)
        lines = await runtime.processes.list(
            name=wanted.name, session=wanted.session, status=status, limit=wanted.limit
        )
        now = runtime.store.clock.read().wall
    tell(lines, lambda out: _rows(out, lines, now), nothing="no processes", as_json=as_json)
    return 0


async def shown(path: Path, given: str, *, as_json: bool) -> int:
    """Show one process with what happened in it."""
    async with looking(path) as runtime:
        id = await find_process(runtime.store, given)
        whole = await _whole(runtime, id)
    out = stdout()
    if as_json:
        out.line(msgspec.json.encode(whole).decode())
        return 0
    for line in _story(out, whole):
        out.line(line)
    return 0


async def _whole(runtime: Runtime, id: str) -> Whole:
    state = await runtime.processes.read(journal_of(id))
    process = runtime.processes.handle(id)
    made = state.registration
    return Whole(
        process=await process.line(),
        arguments={} if made is None else made.arguments,
        timeline=await process.timeline(),
        result=await value_of(runtime.store, state) if state.status == "completed" else None,
    )


async def started(  # noqa: PLR0913
    path: Path, function: str, text: str, id: str | None, *, detach: bool, as_json: bool
) -> int:
    """Start a function; run it here until it has ended or waits."""
    arguments = _value(text)
    if not isinstance(arguments, dict):
        message = f'{text!r} is no JSON object; write the arguments by name: \'{{"day": "2026-11-15"}}\''
        raise CallInvalid(message)
    procedure, functions, agents = _found(function)
    async with open_runtime(path, agents=agents, processes=functions, drive=not detach) as runtime:
        kwargs = cast("dict[str, Any]", arguments)
        process = await runtime.processes.start(procedure, (), kwargs, id=id)
        if not detach:
            await _until_at_rest(runtime, process)
        whole = await _whole(runtime, process.id)
    out = stdout()
    line = whole.process
    if as_json:
        out.line(msgspec.json.encode(whole).decode())
    elif line.status == "completed":
        out.line(out.clean(msgspec.json.format(msgspec.json.encode(whole.result), indent=2).decode()))
    elif detach:
        out.line(line.id)
    else:
        out.line(one_line(": ".join(filter(None, (line.id, line.status, line.error, ", ".join(line.waits)))), 400))
    return 0 if detach else _EXITS.get(line.status, FAILED)


async def _until_at_rest(runtime: Runtime, process: Process) -> None:
    """Wait until it has ended, or waits for something that may take long."""
    while True:
        version = runtime.store.version
        line = await process.line()
        error = runtime.stuck(journal_of(process.id))
        if error is not None:
            raise error
        if line.status not in {"running", "waiting"}:
            return
        if line.status == "waiting" and not runtime.active and not await _has_work(runtime.store, process.id):
            return
        await runtime.store.changed(version, 0.1)


async def _has_work(store: Store, id: str) -> bool:
    """Whether something has come that nobody has seen to."""
    after = 0
    while page := await store.work(after):
        if any(work.journal == journal_of(id) for work in page):
            return True
        after = page[-1].no
    return False


async def worked(path: Path, reference: str) -> int:
    """Run what there is to run, until the process is told to stop."""
    functions, agents = _contents(_module(reference))
    if not functions:
        message = f"{reference!r} has no function made with @hf.process"
        raise CallInvalid(message)
    async with open_runtime(path, agents=agents, processes=functions) as runtime:
        stdout().line(f"working on {path}: {', '.join(sorted(each.name for each in functions))}")
        await runtime.serve()
    return 0


async def signalled(path: Path, given: str, name: str, text: str, key: str | None = None) -> int:
    """Answer what a process waits for."""
    value = _value(text)
    async with changing(path) as runtime:
        id = await find_process(runtime.store, given)
        told = await runtime.signal(id, name, value, key=key)
        line = await runtime.processes.line(id)
    if told == "too_late":
        stdout().line(f"too late: {id} had ended ({line.status})")
        return FAILED
    stdout().line(f"{told.replace('_', ' ')} {name!r} to {id}")
    return 0


async def pruned(path: Path, older_than: timedelta, name: str | None, *, dry_run: bool, as_json: bool) -> int:
    """Forget processes that are over."""
    async with changing(path) as runtime:
        report = await runtime.processes.prune(older_than, name=name, dry_run=dry_run)
    out = stdout()
    if as_json:
        out.line(msgspec.json.encode(report).decode())
        return 0
    out.line(f"{'would prune' if dry_run else 'pruned'} {report.pruned:,}, kept {report.kept:,}")
    for one in report.processes if dry_run else ():
        out.line(out.clean(f"  {one.id} ({one.name}): {one.status}"))
    for kept in report.reasons:
        out.line(out.clean(f"  kept {kept.id} ({kept.name}): {one_line(kept.reason, 200)}"))
    return 0


async def cancelled(path: Path, given: str, reason: str) -> int:
    """Cancel a process; carried out here if nobody runs it."""
    async with changing(path) as runtime:
        id = await find_process(runtime.store, given)
        asked = await runtime.processes.request_cancel(id, reason)
        if asked != "too_late":
            await runtime.processes.settle(id)
        line = await _awaited(runtime, id)
    return _told(id, line, asked, "cancelled")


async def transferred(path: Path, given: str, session: str) -> int:
    """Give a process to another session; carried out here if nobody runs it."""
    async with changing(path) as runtime:
        id = await find_process(runtime.store, given)
        asked = await runtime.processes.transfer(id, session)
        if asked != "too_late":
            await runtime.processes.settle(id)
        line = await runtime.processes.line(id)
    if asked == "too_late":
        stdout().line(f"too late: {id} had ended ({line.status})")
        return FAILED
    stdout().line(f"{id} works for {one_line(session, 160)}")
    return 0


async def abandoned(path: Path, given: str, reason: str) -> int:
    """Give a process up; carried out here if nobody runs it."""
    async with changing(path) as runtime:
        id = await find_process(runtime.store, given)
        asked = await runtime.processes.abandon(id, reason, by="the command line")
        if asked != "too_late":
            await runtime.processes.settle(id)
        line = await _awaited(runtime, id)
    return _told(id, line, asked, "abandoned")


async def completed(path: Path, given: str, text: str) -> int:
    """End a process that is carried out elsewhere."""
    value = _value(text)
    async with changing(path) as runtime:
        id = await find_process(runtime.store, given)
        won = await runtime.processes.settle_outside(id, {"value": value})
        if won:
            await runtime.processes.settle(id)
        line = await _awaited(runtime, id)
    return _told(id, line, "requested" if won else "too_late", "completed")


async def processlist_stuck(path: Path, *, as_json: bool) -> int:
    """List what needs a person."""
    async with looking(path) as runtime:
        found = await runtime.processes.stuck()
    out = stdout()
    if as_json:
        out.line(msgspec.json.encode(found).decode())
        return 0
    if not found:
        out.line("nothing is stuck")
    for one in found:
        out.line(f"{out.paint(one.id, 'bold')} ({one.name}): {one_line(one.reason, 300)}")
        out.line(f"  {one.command}")
    return 0


def _told(id: str, line: ProcessLine, asked: str, wanted: str) -> int:
    out = stdout()
    if line.status in {"running", "waiting"}:
        out.line(f"asked for: {id} is {line.status}; whoever runs it has yet to see to it")
        return FAILED
    if line.status == wanted and asked != "too_late":
        out.line(f"{wanted} {id}")
        return 0
    out.line(f"too late: {id} had ended ({line.status})")
    return FAILED


async def _awaited(runtime: Runtime, id: str) -> ProcessLine:
    """The process when it is over, or as it is when that takes too long."""
    line = await runtime.processes.line(id)
    try:
        async with asyncio.timeout(_PATIENCE):
            while line.status in {"running", "waiting"}:
                version = runtime.store.version
                line = await runtime.processes.line(id)
                if line.status in {"running", "waiting"}:
                    await runtime.store.changed(version, None)
    except TimeoutError:
        pass
    return line


async def find_process(store: Store, given: str) -> str:
    """The id of the process that `given` names; it may be cut short."""
    try:
        if (await store.journal(journal_of(given))).role == ROLE:
            return given
    except JournalPruned as error:
        raise ProcessPruned(given, error.status, error.at) from None
    except JournalMissing:
        pass
    known: list[str] = []
    last: Journal | None = None
    while page := await store.journals(role=ROLE, before=last, limit=store.limits.page):
        known += [id_of(line.id) for line in page if id_of(line.id).startswith(given)]
        last = page[-1]
    if len(known) > 1:
        raise SessionAmbiguous(given, known)
    if not known:
        raise ProcessUnknown(given)
    return known[0]


def _value(text: str) -> Any:  # noqa: ANN401  any JSON value
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError):
        message = f"{text!r} is no JSON; quote it for the shell: true, 42, '\"words\"', '{{\"ok\": true}}'"
        raise CallInvalid(message) from None


def _module(reference: str) -> ModuleType:
    try:
        if reference.endswith(".py"):
            return load_file(reference, Path(reference))
        return load_module(reference, reference)
    except AgentNotFound as error:
        message = f"{reference!r} can't be loaded: {error.reason}"
        raise CallInvalid(message) from None


def _contents(module: ModuleType) -> tuple[list[AnyProcedure], list[Agent]]:
    functions: dict[str, AnyProcedure] = {}
    agents: dict[str, Agent] = {}
    for value in vars(module).values():
        if isinstance(value, Procedure):
            made = cast("AnyProcedure", value)
            functions.setdefault(made.name, made)
        elif isinstance(value, Agent):
            agents.setdefault(value.name, value)
    return list(functions.values()), list(agents.values())


def _found(reference: str) -> tuple[AnyProcedure, list[AnyProcedure], list[Agent]]:
    """The function that is meant, with all others of its module: it may start them."""
    place, colon, name = reference.rpartition(":")
    if not colon:
        message = f"{reference!r} names no function; write file.py:name or package.module:name"
        raise CallInvalid(message)
    module = _module(place)
    functions, agents = _contents(module)
    found: object = getattr(module, name, None)
    if isinstance(found, Procedure):
        return cast("AnyProcedure", found), functions, agents
    by_name = next((each for each in functions if each.name == name), None)
    if by_name is None:
        choice = ", ".join(sorted(each.name for each in functions)) or "none"
        message = f"{reference!r} names no function made with @hf.process; the module has: {choice}"
        raise CallInvalid(message)
    return by_name, functions, agents


def _rows(out: Terminal, lines: list[ProcessLine], now: int) -> list[str]:
    rows = [
        [
            one_line(line.id, 48),
            one_line(line.name or "-", 32),
            line.status,
            one_line(", ".join(line.waits) or ("-" if line.stuck is None else f"stuck: {line.stuck}"), 40),
            f"{duration(max(now - line.updated, 0))} ago",
            str(line.attempt),
        ]
        for line in lines
    ]
    return status_table(out, _HEADINGS, rows)


def _story(out: Terminal, whole: Whole) -> list[str]:
    line = whole.process
    head = (out.paint(one_line(line.id, 160), "bold"), one_line(line.name or "-", 64), out.status(line.status))
    lines = [", ".join(head)]
    lines.append(f"  arguments {one_line(msgspec.json.encode(whole.arguments).decode(), 400)}")
    for label, told in (("session", line.session), ("parent", line.parent), ("error", line.error)):
        if told is not None:
            lines.append(f"  {label:<9} {one_line(told, 400)}")
    if line.waits:
        lines.append(f"  waits for {one_line(', '.join(line.waits), 300)}")
    if line.children:
        lines.append(f"  children  {one_line(', '.join(line.children), 300)}")
    if line.status == "completed":
        lines.append(f"  result    {one_line(msgspec.json.encode(whole.result).decode(), 1_000)}")
    lines.append("")
    for event in whole.timeline:
        at = datetime.fromtimestamp(event.at / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
        told = "" if event.detail is None else one_line(msgspec.json.encode(event.detail).decode(), 120)
        what = " ".join(filter(None, (event.what, event.key or "", event.kind or "", told)))
        lines.append(f"  {event.seq:>5} {at} {one_line(what, 200)}")
    return lines


tasks_app = typer.Typer(
    cls=Named, invoke_without_command=True, rich_markup_mode=None, subcommand_metavar="[ID | cancel ID]"
)
TaskArgument = Annotated[
    str, typer.Argument(metavar="ID", help="A task; the beginning of its id is enough.", show_default=False)
]


@tasks_app.callback()
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

    finish(tasklist_listed(store, session, status, limit, as_json=as_json))


@tasks_app.command(SHOW, hidden=True)
def tasks_show(
    context: typer.Context, id: TaskArgument, *, as_json: JsonOption = False, store: StoreOption = DEFAULT_STORE
) -> None:
    """Show a task: what it was asked, how it stands, and what it gave."""
    as_json = json_before(context, as_json=as_json)
    finish(tasklist_shown(before(context, "store", store), id, as_json=as_json))


@tasks_app.command()
def tasks_cancel(
    context: typer.Context,
    id: TaskArgument,
    *,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why; it is recorded.", show_default=False)] = "",
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Cancel a task, whoever works on it; its session is told.

    Exit code 0 when it was cancelled, 1 when that came too late.
    """
    finish(tasklist_cancelled(before(context, "store", store), id, reason))


"""How long `cancel` waits for the end, in seconds."""
_TASKLIST_HEADINGS: Final = ["TASK", "TOOL", "STATUS", "SESSION", "CHANGED", "BY"]


class Line(msgspec.Struct, frozen=True):
    """One task, as it stands. Times are wall milliseconds."""

    id: str
    tool: str | None
    status: TaskStatus
    session: str | None
    agent: str | None
    created: int
    updated: int
    ended: int | None = None
    note: str | None = None
    """What was reported last."""
    fraction: float | None = None
    error: str | None = None
    pid: int | None = None
    """The process that carries it out."""


class TasklistWhole(msgspec.Struct, frozen=True):
    """One task with what it was asked and what it gave."""

    task: Line
    arguments: dict[str, Any]
    turn: str | None
    reports: int
    starts: int
    waits: tuple[str, ...]
    result: msgspec.Raw | None = None


async def tasklist_listed(path: Path, session: str | None, status: str | None, limit: int, *, as_json: bool) -> int:
    """List tasks, those that changed last first."""
    if status is not None:
        check_choice("task status", status, get_args(TaskStatus))
    wanted = cast("TaskStatus | None", status)
    async with looking(path) as runtime:
        journal = None if session is None else (await find_session(runtime.store, session)).id
        lines = await _lines(runtime, journal, wanted, limit)
        now = runtime.store.clock.read().wall
    tell(lines, lambda out: _tasklist_rows(out, lines, now), nothing="no tasks", as_json=as_json)
    return 0


async def tasklist_shown(path: Path, given: str, *, as_json: bool) -> int:
    """Show one task with its result."""
    async with looking(path) as runtime:
        id = await find_task(runtime.store, given)
        state = await runtime.tasks.task(id)
        result = await runtime.tasks.result(state)
        line = _line(state, (await _workers(runtime.store)).get(id))
        now = runtime.store.clock.read().wall
    out = stdout()
    call = state.call
    whole = TasklistWhole(
        task=line,
        arguments={} if call is None else call.arguments,
        turn=None if call is None else call.turn,
        reports=state.reports,
        starts=state.starts,
        waits=state.waits,
        result=None if result is None else msgspec.Raw(result),
    )
    if as_json:
        out.line(msgspec.json.encode(whole).decode())
        return 0
    out.write("".join(f"{text}\n" for text in _tasklist_story(out, whole, state, now)))
    if result is not None:
        out.line()
        out.line(out.clean(result_as_lines(result).decode()))
    return 0


async def tasklist_cancelled(path: Path, given: str, reason: str) -> int:
    """Cancel a task; carried out here if nobody works on it."""
    out = stdout()
    async with changing(path) as runtime:
        id = await find_task(runtime.store, given)
        asked = await runtime.tasks.cancel(id, reason)
        if asked != "too_late":
            await runtime.tasks.settle(id)
        state = await _tasklist_awaited(runtime, id)
        pid = (await _workers(runtime.store)).get(id)
    if not state.over:
        who = f"process {pid}" if pid else "whoever opens the store next"
        out.line(f"asked for: {who} has yet to stop {id}")
        return FAILED
    if state.status == "cancelled" and asked != "too_late":
        out.line(f"cancelled {id}")
        return 0
    out.line(f"too late: {id} had ended ({_end(state)})")
    return FAILED


def _end(state: TaskState) -> str:
    """How a task ended, and why if it did not end well."""
    error = state.error
    told = () if error is None else (part for part in (error.kind, error.message) if part not in {"", state.status})
    return ": ".join((state.status, *(one_line(part, 200) for part in told)))


async def _tasklist_awaited(runtime: Runtime, id: str) -> TaskState:
    """The task when it is over, or as it is when that takes too long."""
    state = await runtime.tasks.task(id)
    try:
        async with asyncio.timeout(_PATIENCE):
            while not state.over:
                version = runtime.store.version
                state = await runtime.tasks.task(id)
                if not state.over:
                    await runtime.store.changed(version, None)
    except TimeoutError:
        pass
    return state


async def find_task(store: Store, given: str) -> str:
    """The id of the task that `given` names; it may be cut short, and need not begin with 'task-'."""
    candidates = (given, f"task-{given}")
    for id in candidates:
        try:
            line = await store.journal(id)
        except JournalMissing:
            continue
        if line.role == TASKS_ROLE:
            return id
    known: list[str] = []
    last: Journal | None = None
    while page := await store.journals(role=TASKS_ROLE, before=last, limit=store.limits.page):
        known += [line.id for line in page if line.id.startswith(candidates)]
        last = page[-1]
    if len(known) > 1:
        raise SessionAmbiguous(given, known)
    if not known:
        raise TaskUnknown(given)
    return known[0]


async def _lines(runtime: Runtime, session: str | None, status: TaskStatus | None, limit: int) -> list[Line]:
    workers = await _workers(runtime.store)
    found: list[Line] = []
    last: Journal | None = None
    while len(found) < limit:
        size = min(max(limit - len(found), 50), runtime.store.limits.page)
        page = await runtime.tasks.list(session=session, status=status, before=last, limit=size)
        found += [
            _line(await read_task_summary(runtime.store, journal.id), workers.get(journal.id))
            for journal in page
            if journal.quarantine is None  # what can't be trusted is for `doctor`
        ]
        if len(page) < size:
            break
        last = page[-1]
    return found[:limit]


async def _workers(store: Store) -> dict[str, int]:
    """The processes that carry out tasks."""
    found: dict[str, int] = {}
    after = 0
    while page := await store.work(after):
        for work in page:
            if work.role == TASKS_ROLE and work.holder is not None and not store.owner_gone(work.holder):
                found[work.journal] = work.holder.pid
        after = page[-1].no
    return found


def _line(state: TaskState, pid: int | None) -> Line:
    told = state.progress
    return Line(
        id=state.id,
        tool=None if state.call is None else state.call.tool,
        status=state.status,
        session=state.session,
        agent=state.agent,
        created=state.created,
        updated=state.updated,
        ended=state.ended,
        note=None if told is None else told.note,
        fraction=None if told is None else told.fraction,
        error=None if state.error is None else f"{state.error.kind}: {state.error.message}",
        pid=None if state.over else pid,
    )


def _tasklist_rows(out: Terminal, lines: list[Line], now: int) -> list[str]:
    rows = [
        [
            line.id,
            one_line(line.tool or "-", 32),
            line.status,
            one_line(line.session or "-", 24),
            f"{duration(max(now - line.updated, 0))} ago",
            _by(line),
        ]
        for line in lines
    ]
    return status_table(out, _TASKLIST_HEADINGS, rows)


def _by(line: Line) -> str:
    if line.status in ("running", "created"):
        return "nobody" if line.pid is None else f"pid {line.pid}"
    return "-"


def _tasklist_story(out: Terminal, whole: TasklistWhole, state: TaskState, now: int) -> list[str]:
    line = whole.task
    parts = [out.paint(line.id, "bold"), one_line(line.tool or "-", 64), out.status(line.status)]
    if line.pid is not None:
        parts.append(f"pid {line.pid}")
    elif line.status == "running":
        parts.append("driven by nobody")
    end = now if state.ended is None else state.ended
    if state.started is not None:
        parts.append(duration(max(end - state.started, 0)))
    lines = [", ".join(parts)]
    lines.append(f"  session   {one_line(line.session or '-', 100)}{f'/{whole.turn}' if whole.turn else ''}")
    lines.append(f"  arguments {one_line(msgspec.json.encode(whole.arguments).decode(), 400)}")
    if whole.starts > 1:
        lines.append(f"  begun     {whole.starts} times")
    if state.progress is not None:
        lines.append(f"  progress  {one_line(describe_progress(state.progress), 200)} (report {whole.reports:,})")
    if whole.waits:
        lines.append(f"  waits for {one_line(', '.join(whole.waits), 200)}")
    if line.error is not None:
        lines.append(f"  error     {one_line(line.error, 400)}")
    return lines
