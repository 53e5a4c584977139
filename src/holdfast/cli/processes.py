"""`holdfast processes` and `holdfast tasks`: durable functions, and tool calls that run in the background."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from types import ModuleType
from typing import Annotated, Any, Final, cast, get_args

import msgspec

from holdfast import clock, errors, names
from holdfast.agent import Agent
from holdfast.cli import options, output, sessions
from holdfast.cli.agents import AgentNotFound, load_module, module_deps
from holdfast.cli.options import DEFAULT_STORE, CallInvalid, CommandGroup, Shell, argument, flag, option
from holdfast.cli.output import Terminal, duration, json_text, one_line, printable, stdout
from holdfast.processes.context import process_value
from holdfast.processes.definition import AnyProcess, ProcessDefinition
from holdfast.processes.keys import PROCESS_ROLE, TASK_ROLE, process_id_of, process_journal
from holdfast.processes.lists import ProcessEvent, ProcessLine, StuckProcess, glance_process, read_pages
from holdfast.processes.service import Process
from holdfast.processes.state import ProcessState, TaskStatus
from holdfast.runtime.open import open as open_runtime
from holdfast.runtime.runtime import Runtime, context_of
from holdfast.store import Store
from holdfast.toolkits.tasks import describe_progress, result_as_lines

_CANCEL_TIMEOUT: Final = 2.0
"""Seconds that `cancel` waits for the end."""

_UNDER_WAY: Final = frozenset(("running", "waiting"))

processes = CommandGroup(cls=options.NamedGroup, subcommand_metavar="[ID | COMMAND ...]")
ProcessArgument = Annotated[str, argument("ID", "A process; the beginning of its id is enough.")]
ValueArgument = Annotated[str, argument("JSON", "A JSON value.")]
FunctionOption = Annotated[str | None, option("NAME", "Only those of this function.")]


# ---- processes: list and show ----------------------------------------------------------------------------------------


class ProcessReport(msgspec.Struct, frozen=True):
    """One process with its arguments, result and timeline."""

    process: ProcessLine
    arguments: dict[str, Any]
    timeline: list[ProcessEvent]
    result: Any = None


@processes.listing()
async def list_processes(
    shell: Shell,
    *,
    name: FunctionOption = None,
    session: Annotated[str | None, option("ID", "Only those that work for this session.", "--session", "-S")] = None,
    status: Annotated[
        str | None, option("STATUS", "Only running, waiting, completed, failed, cancelled or abandoned ones.")
    ] = None,
    tag: Annotated[str | None, option("TAG", "Only work items with this tag.")] = None,
    parent: Annotated[
        str | None, option("ID", "Only those that belong to this process, session or turn (SESSION/t3).")
    ] = None,
    limit: options.Limit = 50,
) -> None:
    """List the processes (durable functions and work items), last changed first; or show one.

    'abandoned': only one worker could run it, that worker is gone, and a person has given the process up.
    """
    async with sessions.view_runtime(shell.store) as runtime:
        wanted = cast("Any", status)  # the list refuses an unknown one
        lines = await runtime.processes.list(
            name=name, session=session, parent=parent, status=wanted, tag=tag, limit=limit
        )
    columns: output.Columns[ProcessLine] = {
        "PROCESS": lambda line: one_line(line.id, 48),
        "FUNCTION": lambda line: one_line(line.title or line.name or "-", 32),
        "STATUS": lambda line: line.status,
        "WAITS FOR": lambda line: one_line(
            ", ".join(line.waits) or ("-" if line.stuck is None else f"stuck: {line.stuck}"), 40
        ),
        "CHANGED": lambda line: output.ago(line.updated),
        "ATTEMPT": lambda line: str(line.attempt),
    }
    shell.print_table(lines, columns, nothing="no processes")


@processes.command(options.SHOW, hidden=True)
async def show(shell: Shell, id: ProcessArgument) -> None:
    """Show a process: its status, its result, and its timeline."""
    async with sessions.view_runtime(shell.store) as runtime:
        report = await _read_report(runtime, await find_process(runtime.store, id))
    shell.print(report, lambda out: _report_lines(out, report))


async def _read_report(runtime: Runtime, id: str) -> ProcessReport:
    state = await runtime.processes.read(process_journal(id))
    process = runtime.processes.handle(id)
    return ProcessReport(
        process=await process.line(),
        arguments={} if state.registration is None else state.registration.arguments,
        timeline=await process.timeline(),
        result=await process_value(runtime.store, state) if state.status == "completed" else None,
    )


def _report_lines(out: Terminal, report: ProcessReport) -> Iterator[str]:
    line = report.process
    name = out.paint(one_line(line.id, 160), "bold")
    yield f"{name}, {one_line(line.name or '-', 64)}, {out.status(line.status)}"
    yield f"  arguments {one_line(json_text(report.arguments), 400)}"
    done = "" if line.fraction is None else f"{line.fraction:.0%} "
    facts = {"title": line.title, "progress": f"{done}{line.note or ''}".strip(), "tags": ", ".join(line.tags)}
    facts |= {"asked by": line.requested_by, "session": line.session, "parent": line.parent, "error": line.error}
    facts |= {"waits for": ", ".join(line.waits), "children": ", ".join(line.children)}
    if line.retry_of is not None:
        begun = "its failure" if line.retry_step is None else f"the step {line.retry_step}"
        facts["retry of"] = f"{line.retry_of}, from {begun}; {output.count_noun(line.reused, 'result')} used again"
    facts["retried as"] = ", ".join(line.retries)
    yield from (f"  {label:<9} {one_line(text, 400)}" for label, text in facts.items() if text)
    if line.status == "completed":
        yield f"  result    {one_line(json_text(report.result), 1_000)}"
    yield ""
    for event in report.timeline:
        at = datetime.fromtimestamp(event.at / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
        detail = "" if event.detail is None else one_line(json_text(event.detail), 120)
        text = " ".join(filter(None, (event.what, event.key or "", event.kind or "", detail)))
        yield f"  {event.seq:>5} {at} {one_line(text, 200)}"


@processes.command()
async def stuck(shell: Shell) -> None:
    """List the processes that need a person, each with the command that helps."""
    async with sessions.view_runtime(shell.store) as runtime:
        found = await runtime.processes.stuck()

    def lines(out: Terminal, one: StuckProcess) -> Iterator[str]:
        yield f"{out.paint(one.id, 'bold')} ({one.name}): {one_line(one.reason, 300)}"
        yield f"  {one.command}"

    shell.print_each(found, lines, nothing="nothing is stuck")


# ---- processes: start and work ---------------------------------------------------------------------------------------


@processes.command()
async def start(
    shell: Shell,
    function: Annotated[str, argument("NAME", "file.py:name or package.module:name.")],
    arguments: Annotated[str, argument("JSON", "An object with the arguments.", show_default=True)] = "{}",
    *,
    id: Annotated[str | None, option("ID", "Its id: the same one starts once.")] = None,
    detach: Annotated[
        bool, flag("Only record it; a worker of the store runs it ('processes work').", "--detach")
    ] = False,
) -> int:
    """Start a durable function and run it until it has ended or waits for something.

    Exit code 0 when it completed, 3 when it waits, 1 when it failed, 4 when it was cancelled.
    """
    try:
        kwargs = options.parse_json(arguments)
    except CallInvalid:
        kwargs = None
    if not isinstance(kwargs, dict):
        raise CallInvalid(f'{arguments!r} is no JSON object; write the arguments by name: \'{{"day": "2026-11-15"}}\'')
    procedure, functions, agents, deps = _load_function(function)
    async with open_runtime(shell.store, agents=agents, processes=functions, deps=deps, drive=not detach) as runtime:
        process = await runtime.processes.start(procedure, (), cast("dict[str, Any]", kwargs), id=id)
        if not detach:
            await _run_until_idle(runtime, process)
        report = await _read_report(runtime, process.id)
    line = report.process
    if line.status == "completed":
        text = printable(msgspec.json.format(json_text(report.result), indent=2))
    elif detach:
        text = line.id
    else:
        text = one_line(": ".join(filter(None, (line.id, line.status, line.error, ", ".join(line.waits)))), 400)
    shell.print(report, text)
    exits = {"completed": 0, "waiting": options.WAITING, "cancelled": options.CANCELLED}
    return 0 if detach else exits.get(line.status, options.FAILED)


async def _run_until_idle(runtime: Runtime, process: Process) -> None:
    """Wait until the process has ended, or waits for an answer, signal or distant time."""
    while True:
        version = runtime.store.version
        line = await process.line()
        error = context_of(runtime).sessions.stuck(process_journal(process.id))
        if error is not None:
            raise error
        if line.status not in _UNDER_WAY:
            return
        idle = line.status == "waiting" and not runtime.active
        if idle and process_journal(process.id) not in await sessions.read_drivers(runtime.store):
            return
        await runtime.store.changed(version, 0.1)


@processes.command()
async def work(
    module: Annotated[str, argument("MODULE", "file.py or package.module with functions.")],
    *,
    store: options.Store = DEFAULT_STORE,
) -> None:
    """Run the processes of a store with the functions (and agents) of a module, until a signal stops it."""
    loaded = _load(module)
    functions, agents = _contents(loaded)
    if not functions:
        raise CallInvalid(f"{module!r} has no function made with @hf.process")
    async with open_runtime(store, agents=agents, processes=functions, deps=module_deps(loaded)) as runtime:
        stdout().line(f"working on {store}: {', '.join(sorted(each.name for each in functions))}")
        await runtime.serve()


def _load_function(reference: str) -> tuple[AnyProcess, list[AnyProcess], list[Agent], object]:
    """Load a function, the other functions of its module (it may start them), its agents and its dependencies."""
    place, colon, name = reference.rpartition(":")
    if not colon:
        raise CallInvalid(f"{reference!r} names no function; write file.py:name or package.module:name")
    module = _load(place)
    functions, agents = _contents(module)
    found: object = getattr(module, name, None)
    if not isinstance(found, ProcessDefinition):
        found = next((each for each in functions if each.name == name), None)
    if found is None:
        choice = ", ".join(sorted(each.name for each in functions)) or "none"
        raise CallInvalid(f"{reference!r} names no function made with @hf.process; the module has: {choice}")
    return cast("AnyProcess", found), functions, agents, module_deps(module)


def _load(reference: str) -> ModuleType:
    try:
        return load_module(reference, reference)
    except AgentNotFound as error:
        raise CallInvalid(f"{reference!r} can't be loaded: {error.reason}") from None


def _contents(module: ModuleType) -> tuple[list[AnyProcess], list[Agent]]:
    functions: dict[str, AnyProcess] = {}
    agents: dict[str, Agent] = {}
    for value in vars(module).values():
        if isinstance(value, ProcessDefinition):
            made = cast("AnyProcess", value)
            functions.setdefault(made.name, made)
        elif isinstance(value, Agent):
            agents.setdefault(value.name, cast("Agent", value))
    return list(functions.values()), list(agents.values())


# ---- processes: change one -------------------------------------------------------------------------------------------


@processes.command()
async def signal(
    id: ProcessArgument,
    name: Annotated[str, argument("NAME", "The name of the signal.")],
    value: ValueArgument = "null",
    *,
    key: Annotated[str | None, option("KEY", "The same key again is the same signal.")] = None,
    store: options.Store = DEFAULT_STORE,
) -> int:
    """Send a signal for which a process waits, or will wait."""
    payload = options.parse_json(value)
    async with sessions.edit_runtime(store) as runtime:
        found = await find_process(runtime.store, id)
        answer = await runtime.signal(found, name, payload, key=key)
        line = await runtime.processes.line(found)
    if answer == "too_late":
        return sessions.print_end(found, "", line.status, in_time=False)
    stdout().line(f"{answer.replace('_', ' ')} {name!r} to {found}")
    return 0


@processes.command()
async def cancel(id: ProcessArgument, *, reason: options.Reason = "", store: options.Store = DEFAULT_STORE) -> int:
    """Cancel a process and its children, in whichever worker it runs.

    Exit code 0 if it was cancelled, 1 if it was too late.
    """
    async with sessions.edit_runtime(store) as runtime:
        found = await find_process(runtime.store, id)
        asked = await runtime.processes.request_cancel(found, reason)
        return await _settle(runtime, process_journal(found), "cancelled", in_time=asked != "too_late")


@processes.command()
async def retry(
    id: ProcessArgument,
    *,
    from_step: Annotated[
        str | None, option("STEP", "Begin at this step or key; all later ones are done again.", "--from")
    ] = None,
    key: Annotated[str | None, option("KEY", "The same key again is the same retry.")] = None,
    repeat_unknown: Annotated[bool, flag("Also repeat effects with an unknown outcome.", "--repeat-unknown")] = False,
    store: options.Store = DEFAULT_STORE,
) -> None:
    """Start a process that failed, was cancelled or given up again, from its failure or from a step.

    The retry is a new process: its id is printed, and a worker of the store runs it ('processes work').
    """
    async with sessions.edit_runtime(store) as runtime:
        found = await find_process(runtime.store, id)
        process = await runtime.processes.handle(found).retry(
            from_step=from_step, key=key, repeat_unknown=repeat_unknown
        )
    stdout().line(process.id)


@processes.command()
async def abandon(id: ProcessArgument, *, reason: options.Reason = "", store: options.Store = DEFAULT_STORE) -> int:
    """Give up a process that only one worker may run, if that worker is gone."""
    async with sessions.edit_runtime(store) as runtime:
        found = await find_process(runtime.store, id)
        asked = await runtime.processes.abandon(found, reason, by="the command line")
        return await _settle(runtime, process_journal(found), "abandoned", in_time=asked != "too_late")


@processes.command()
async def complete(id: ProcessArgument, value: ValueArgument = "null", *, store: options.Store = DEFAULT_STORE) -> int:
    """End a process that is carried out elsewhere, with its result."""
    result = options.parse_json(value)
    async with sessions.edit_runtime(store) as runtime:
        found = await find_process(runtime.store, id)
        won = await runtime.processes.settle_outside(found, {"value": result})
        return await _settle(runtime, process_journal(found), "completed", in_time=won)


@processes.command()
async def fail(id: ProcessArgument, reason: options.Reason = "", *, store: options.Store = DEFAULT_STORE) -> int:
    """End a process that is carried out elsewhere, with a failure."""
    async with sessions.edit_runtime(store) as runtime:
        found = await find_process(runtime.store, id)
        won = await runtime.processes.settle_outside(found, {"error": reason or "no reason was given"})
        return await _settle(runtime, process_journal(found), "failed", in_time=won)


@processes.command()
async def external(
    title: Annotated[str, argument("TITLE", "What is to be done.")],
    *,
    instructions: Annotated[str, option("TEXT", "How it is to be done.")] = "",
    tag: Annotated[list[str] | None, option("TAG", "A word to find it by; may be given several times.")] = None,
    requested_by: Annotated[str | None, option("NAME", "Who wants it.")] = None,
    key: Annotated[str | None, option("KEY", "The same key is the same item.")] = None,
    session: Annotated[str | None, option("ID", "The session to notify of its end.", "--session", "-S")] = None,
    parent: Annotated[
        str | None, option("ID", "What it belongs to, and ends with: SESSION, SESSION/TURN or process/ID.")
    ] = None,
    store: options.Store = DEFAULT_STORE,
) -> None:
    """Begin a work item: work of a person or another system. Prints its id; end it with 'complete' or 'fail'."""
    async with open_runtime(store, drive=False) as runtime:
        terms: dict[str, Any] = {"requested_by": requested_by, "key": key, "session": session, "parent": parent}
        item = await runtime.processes.external(title=title, instructions=instructions, tags=tag or [], **terms)
        await runtime.processes.settle(process_journal(item.id))
    output.stdout().line(item.id)


@processes.command()
async def progress(
    id: ProcessArgument,
    note: Annotated[str, argument("NOTE", "What has been done.")] = "",
    *,
    fraction: Annotated[float | None, option("PART", "The part that is done, from 0 to 1.")] = None,
    store: options.Store = DEFAULT_STORE,
) -> int:
    """Report progress of a work item."""
    async with sessions.edit_runtime(store) as runtime:
        found = await find_process(runtime.store, id)
        asked = await runtime.processes.find_external(found).progress(note, fraction)
        if asked != "too_late":
            await runtime.processes.settle(process_journal(found))
    output.stdout().line("too late: it has ended" if asked == "too_late" else f"reported for {found}")
    return options.FAILED if asked == "too_late" else 0


async def _settle(runtime: Runtime, journal: str, wanted: str, *, in_time: bool) -> int:
    """Act on the request here if no worker runs the process; print the process's end, and return the exit code."""
    store, id = runtime.store, process_id_of(journal)
    if in_time:
        await runtime.processes.settle(journal)
    version, state = store.version, await runtime.processes.read(journal)
    with suppress(TimeoutError):
        async with asyncio.timeout(_CANCEL_TIMEOUT):
            while not state.over:
                await store.changed(version, None)
                version, state = store.version, await runtime.processes.read(journal)
    if not state.over:
        pid = (await sessions.read_drivers(store)).get(journal)
        who = f"process {pid}" if pid else "the next runtime that opens the store"
        stdout().line(f"asked for: {who} has yet to stop {id}, which is {state.status}")
        return options.FAILED
    reasons = () if state.error is None else (one_line(text, 200) for text in (state.error.kind, state.error.message))
    return sessions.print_end(id, wanted, state.status, *reasons, in_time=in_time)


@processes.command()
async def transfer(
    id: ProcessArgument,
    session: Annotated[str, argument("SESSION", "The session that is notified when it ends.")],
    *,
    store: options.Store = DEFAULT_STORE,
) -> int:
    """Let a process work for another session, which is then notified when it ends.

    Exit code 0 if the session will be notified, 1 if it was too late.
    """
    async with sessions.edit_runtime(store) as runtime:
        found = await find_process(runtime.store, id)
        asked = await runtime.processes.transfer(found, session)
        if asked != "too_late":
            await runtime.processes.settle(process_journal(found))
        line = await runtime.processes.line(found)
    if asked == "too_late":
        return sessions.print_end(found, "", line.status, in_time=False)
    stdout().line(f"{found} works for {one_line(session, 160)}")
    return 0


@processes.command()
async def prune(
    shell: Shell, *, older_than: options.OlderThan, name: FunctionOption = None, dry_run: options.DryRun = False
) -> None:
    """Delete the steps, results and signals of processes that ended long ago; their final status stays.

    Processes that have not ended are kept, and those whose result another one may still need. Ids are never used again.
    """
    age = options.parse_span("--older-than", older_than)
    async with sessions.edit_runtime(shell.store) as runtime:
        report = await runtime.processes.prune(age, name=name, dry_run=dry_run)
    lines = [f"{'would prune' if dry_run else 'pruned'} {report.pruned:,}, kept {report.kept:,}"]
    lines += [f"  {one.id} ({one.name}): {one.status}" for one in report.processes if dry_run]
    lines += [f"  kept {one.id} ({one.name}): {one_line(one.reason, 200)}" for one in report.reasons]
    shell.print(report, lambda _: map(printable, lines))


async def find_process(store: Store, given: str, role: str = PROCESS_ROLE) -> str:
    """The id of the process or task with the id `given`, or the only one that begins so; 'task-' may be left out."""
    beginnings = (given,) if role == PROCESS_ROLE else (given, f"task-{given}")
    for id in beginnings:
        try:
            if (await store.journal(process_journal(id) if role == PROCESS_ROLE else id)).role == role:
                return id
        except errors.JournalPruned as error:
            raise errors.ProcessPruned(given, error.status, error.at) from None
        except errors.JournalMissing:
            continue
    ids = [process_id_of(line.id) async for line in read_pages(store.journals, role=role)]
    found = sessions.match_beginning(ids, *beginnings)
    if found is None:
        raise errors.ProcessUnknown(given) if role == PROCESS_ROLE else errors.TaskUnknown(given)
    return found


# ---- tasks: the processes that are background calls ------------------------------------------------------------------

tasks = CommandGroup(cls=options.NamedGroup, subcommand_metavar="[ID | cancel ID]")
TaskArgument = Annotated[str, argument("ID", "A task; the beginning of its id is enough.")]


class TaskLine(msgspec.Struct, frozen=True):
    """One task of the list. Times are wall milliseconds."""

    id: str
    tool: str | None
    status: TaskStatus
    session: str | None
    agent: str | None
    created: int
    updated: int
    ended: int | None = None
    note: str | None = None
    """The last progress report."""
    fraction: float | None = None
    error: str | None = None
    pid: int | None = None
    """The operating system process that runs it."""


@tasks.listing()
async def list_tasks(
    shell: Shell,
    *,
    session: options.OfSession = None,
    status: Annotated[
        str | None,
        option("STATUS", "Only created, running, waiting, succeeded, failed, cancelled or interrupted ones."),
    ] = None,
    limit: options.Limit = 50,
) -> None:
    """List the tool calls that run in the background, last changed first; or show one with its result.

    'interrupted': its process ended, and the call must not be repeated. A running task that no process drives is
    continued by the next process that opens the store with its agent.
    """
    if status is not None:
        names.check_choice("task status", status, get_args(TaskStatus))
    async with sessions.view_runtime(shell.store) as runtime:
        journal = None if session is None else (await sessions.find_session(runtime.store, session)).id
        wanted, pids = cast("TaskStatus | None", status), await sessions.read_drivers(runtime.store)
        lines: list[TaskLine] = []
        async for task in read_pages(runtime.tasks.list, session=journal, status=wanted, limit=max(limit, 50)):
            if task.quarantine is None:  # `doctor` names damaged journals
                lines.append(_task_line(await glance_process(runtime.store, task.id), pids.get(task.id)))
            if len(lines) == limit:
                break
    columns: output.Columns[TaskLine] = {
        "TASK": lambda line: line.id,
        "TOOL": lambda line: one_line(line.tool or "-", 32),
        "STATUS": lambda line: line.status,
        "SESSION": lambda line: one_line(line.session or "-", 24),
        "CHANGED": lambda line: output.ago(line.updated),
        "BY": lambda line: (
            "-" if line.status not in {"running", "created"} else "none" if line.pid is None else f"pid {line.pid}"
        ),
    }
    shell.print_table(lines, columns, nothing="no tasks")


def _task_line(state: ProcessState, pid: int | None) -> TaskLine:
    report = state.progress
    return TaskLine(
        id=state.id,
        tool=None if state.call is None else state.call.tool,
        status=cast("TaskStatus", state.status),
        session=state.session,
        agent=state.name,
        created=state.created,
        updated=state.updated,
        ended=state.ended,
        note=None if report is None else report.note,
        fraction=None if report is None else report.fraction,
        error=None if state.error is None else f"{state.error.kind}: {state.error.message}",
        pid=None if state.over else pid,
    )


@tasks.command(options.SHOW, hidden=True)
async def show_task(shell: Shell, id: TaskArgument) -> None:
    """Show a task: its arguments, its status and its result."""
    async with sessions.view_runtime(shell.store) as runtime:
        found = await find_process(runtime.store, id, TASK_ROLE)
        state = await runtime.tasks.task(found)
        result = await runtime.tasks.result(state)
        line = _task_line(state, (await sessions.read_drivers(runtime.store)).get(found))
    call = state.call
    arguments, turn = ({}, None) if call is None else (call.arguments, call.turn)
    report = {"task": line, "arguments": arguments, "turn": turn, "reports": state.reports, "starts": state.starts}
    report |= {"waits": state.waits, "result": None if result is None else msgspec.Raw(result)}

    def lines(out: Terminal) -> Iterator[str]:
        parts = [out.paint(line.id, "bold"), one_line(line.tool or "-", 64), out.status(line.status)]
        if line.pid is not None:
            parts.append(f"pid {line.pid}")
        elif line.status == "running":
            parts.append("not driven")
        if state.started is not None:
            parts.append(duration(max((state.ended or clock.wall_time()) - state.started, 0)))
        yield ", ".join(parts)
        yield f"  session   {one_line(line.session or '-', 100)}{f'/{turn}' if turn else ''}"
        yield f"  arguments {one_line(json_text(arguments), 400)}"
        if state.starts > 1:
            yield f"  begun     {state.starts} times"
        if state.progress is not None:
            yield f"  progress  {one_line(describe_progress(state.progress), 200)} (report {state.reports:,})"
        if state.waits:
            yield f"  waits for {one_line(', '.join(state.waits), 200)}"
        if line.error is not None:
            yield f"  error     {one_line(line.error, 400)}"
        if result is not None:
            yield ""
            yield printable(result_as_lines(result).decode())

    shell.print(report, lines)


@tasks.command("cancel")
async def cancel_task(id: TaskArgument, *, reason: options.Reason = "", store: options.Store = DEFAULT_STORE) -> int:
    """Cancel a task, in whichever process it runs; its session is notified.

    Exit code 0 if it was cancelled, 1 if it was too late.
    """
    async with sessions.edit_runtime(store) as runtime:
        found = await find_process(runtime.store, id, TASK_ROLE)
        asked = await runtime.tasks.cancel(found, reason)
        return await _settle(runtime, found, "cancelled", in_time=asked != "too_late")
