"""What `holdfast processes` does: finding processes in a store, telling of them, and telling them things."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import msgspec

from holdfast.agent import Agent
from holdfast.cli.failures import CANCELLED, FAILED, WAITING, AgentNotFound, CallInvalid, SessionAmbiguous
from holdfast.cli.loading import load_file, load_module
from holdfast.cli.sessions import changing, looking
from holdfast.cli.tables import status_table, tell
from holdfast.cli.terminal import duration, one_line, stdout
from holdfast.errors import JournalMissing
from holdfast.errors.journals import JournalPruned
from holdfast.errors.processes import ProcessPruned, ProcessUnknown
from holdfast.processes.definition import AnyProcedure, Procedure
from holdfast.processes.ids import ROLE, id_of, journal_of
from holdfast.processes.timeline import ProcessEvent, ProcessLine  # noqa: TC001  msgspec reads the annotations
from holdfast.runtime import Runtime
from holdfast.runtime import open as open_runtime
from holdfast.runtime.seeking import value_of

if TYPE_CHECKING:
    from datetime import timedelta
    from types import ModuleType

    from holdfast.cli.terminal import Terminal
    from holdfast.processes.state import ProcessStatus
    from holdfast.runtime.process_handle import Process
    from holdfast.store import Journal, Store

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


async def stuck(path: Path, *, as_json: bool) -> int:
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


# ---- reading what was given ------------------------------------------------------------------------------------------


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


# ---- for people ------------------------------------------------------------------------------------------------------


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
