"""`holdfast ps`, `cancel`, `compact`, `fork` and `replay`; and how commands find sessions, turns and their waits."""

from __future__ import annotations

import secrets
import shlex
from collections import defaultdict
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import msgspec

from holdfast.cli import agents, options
from holdfast.cli.options import DEFAULT_STORE, FAILED, CallInvalid, IdAmbiguous, Shell, flag, option, require_store
from holdfast.cli.output import Columns, Terminal, ago, diff_line, one_line, printable, reason_text, stdout, table_of
from holdfast.errors import ApprovalUnknown, InvalidId, JournalMissing, StoreError, TurnUnknown
from holdfast.names import PROCESS_PREFIX, TRIGGER_PREFIX, check_id, is_process_journal, is_task_id, is_trigger_id
from holdfast.policy.approvals import MARK
from holdfast.policy.limits import ROLE
from holdfast.processes.keys import WORK_ITEM, process_id_of
from holdfast.processes.lists import ProcessLine, all_work, read_pages
from holdfast.runtime.approvals import Approval
from holdfast.runtime.replay_check import TurnCheck, check_turns
from holdfast.runtime.runtime import Runtime, context_of
from holdfast.runtime.session_records import read_ending, read_present
from holdfast.store import Journal, Store, open_store, view_store
from holdfast.turns import keys
from holdfast.turns.conversation import CancelRequest, UserInput, deadline_wait, decode_input
from holdfast.turns.programs import is_pause


@asynccontextmanager
async def view_runtime(path: Path, *, write: bool = False) -> AsyncGenerator[Runtime]:
    """Open an existing store, for reading or also for writing. Drives nothing."""
    require_store(path)
    async with (open_store if write else view_store)(path) as store, Runtime(store, (), drive=False) as runtime:
        yield runtime


edit_runtime = partial(view_runtime, write=True)


# ---- ps --------------------------------------------------------------------------------------------------------------

_WHOLE_ID: Final = 24
"""Ids up to this length are shown whole."""
_ACTIVE: Final = frozenset(("running", "interrupted", "waiting", "queued", "quarantined"))


class SessionLine(msgspec.Struct, frozen=True):
    """One session of the list."""

    id: str
    agent: str | None
    status: str
    """The status in the journal; or `interrupted` (no process drives it), `queued` (it has not begun),
    `moved` (to another store) or `quarantined`.
    """
    records: int
    created: int
    updated: int
    pid: int | None = None
    """The operating system process that drives it."""
    waits: tuple[str, ...] = ()
    queued: int = 0
    """Inputs that wait for their turn."""
    parent: str | None = None
    """The parent session, if this is the session of a sub-agent."""
    total_tokens: int | None = None
    """Tokens used, with all sub-agents. None: unreadable, or not counted (only a tree counts)."""
    total_cost: float | None = None
    """In US dollars; None where a price is not known."""
    metadata: dict[str, Any] = {}
    item: str | None = None
    """The work, if this is no session but a work item of a tree."""


async def ps(
    shell: Shell,
    *,
    every: Annotated[bool, flag("All sessions, also those with nothing to do.", "--all", "-a")] = False,
    tree: Annotated[bool, flag("Sub-agents and work items below the sessions that they work for.", "--tree")] = False,
) -> None:
    """List the sessions that run or wait, last changed first.

    'interrupted': it ran, and no process drives it; 'holdfast resume ID' continues it. 'queued': no process has begun.
    """
    async with view_runtime(shell.store) as runtime:
        drivers = await read_drivers(runtime.store)
        found = [line async for line in read_pages(runtime.store.journals, kind="session")]
        lines = [
            await read_session_line(runtime.store, line, drivers)
            for line in found
            if every or line.id in drivers or line.status in _ACTIVE or line.quarantine is not None
        ]
        lines = [line for line in lines if every or line.status in _ACTIVE]
        for number, line in enumerate(lines if tree else ()):
            with suppress(StoreError):  # a damaged session, or one below it, must not hide the others
                total = (await runtime.children.whole(await runtime.store.journal(line.id))).total
                lines[number] = msgspec.structs.replace(line, total_tokens=total.usage.total, total_cost=total.cost)
        if tree:
            items = await runtime.processes.list(name=WORK_ITEM, limit=runtime.store.limits.page)
            known = {line.id for line in lines}
            lines += [_item_line(item) for item in items if item.session in known and (every or item.ended is None)]
    rows = arrange_tree(lines) if tree else [TreeRow("", line) for line in lines]
    nothing = "no sessions" if every else "nothing runs or waits ('holdfast ps -a' lists all sessions)"

    def table(out: Terminal) -> list[str]:
        short = _short_ids([line.id for line in lines]) if out.live else {}
        used: Columns[TreeRow] = {
            "TOKENS": lambda row: "-" if row.line.total_tokens is None else f"{row.line.total_tokens:,}",
            "COST": lambda row: "-" if row.line.total_cost is None else f"${row.line.total_cost:.4f}",
        }
        columns: Columns[TreeRow] = {
            "SESSION": lambda row: row.drawn + short.get(row.line.id, row.line.id),
            "AGENT": lambda row: one_line(row.line.agent or "-", 24) if row.line.item is None else "work item",
            "STATUS": lambda row: row.line.status,
            "RECORDS": lambda row: f"{row.line.records:,}",
            **(used if tree else {}),
            "CHANGED": lambda row: ago(row.line.updated),
            "BY": lambda row: _driver(row.line),
        }
        return table_of(out, rows, columns)

    shell.print(lines, table, nothing=nothing)


async def read_session_line(store: Store, line: Journal, drivers: dict[str, int | None] | None = None) -> SessionLine:
    """Read one session. `drivers` are those of the store, if they were read before."""
    drivers = await read_drivers(store) if drivers is None else drivers
    pid = drivers.get(line.id)
    trusted = line.quarantine is None
    waits = await store.waits(line.id) if line.status == "waiting" and trusted else []
    queued = len(await store.pending(line.id)) if line.id in drivers and trusted else 0
    status = line.status
    if line.quarantine is not None:
        status = "moved" if line.moved else "quarantined"
    elif status == "running" or (status != "waiting" and queued):
        status = "running" if pid is not None else "interrupted" if status == "running" else "queued"
    return SessionLine(
        id=line.id,
        agent=line.agent,
        status=status,
        records=line.head,
        created=line.created,
        updated=line.updated,
        pid=pid,
        waits=tuple(
            wait.name
            for wait in waits
            if wait.state == "open" and wait.name != deadline_wait(wait.name.partition("/")[0])
        ),
        queued=queued,
        parent=line.session if line.role == ROLE else None,
        metadata=line.metadata,
    )


async def read_drivers(store: Store) -> dict[str, int | None]:
    """The journals with work, and the operating system process that drives each, if any."""
    return {work.journal: None if owner is None else owner.pid async for work, owner in all_work(store)}


def _item_line(item: ProcessLine) -> SessionLine:
    return SessionLine(
        id=item.id,
        agent=None,
        status=item.status,
        records=0,
        created=item.created,
        updated=item.updated,
        parent=item.session,
        item=describe_item(item),
    )


def describe_item(item: ProcessLine) -> str:
    """A work item in one line: what is to be done, how far it is, and for which turn or process."""
    done = "" if item.fraction is None else f"{item.fraction:.0%} "
    parts = [one_line(item.title or "-", 80), item.status, f"{done}{one_line(item.note or '', 80)}".strip()]
    below = item.parent if item.parent != item.session else None
    return ", ".join(filter(None, [*parts, f"for {one_line(below, 80)}" if below else ""]))


def _driver(line: SessionLine) -> str:
    if line.item is not None:
        return line.item
    parts = [] if line.pid is None else [f"pid {line.pid}"]
    if line.waits:
        parts.append(f"waits for {one_line(', '.join(map(wait_description, line.waits)), 80)}")
    if line.queued and line.status != "queued":
        parts.append(f"{line.queued} queued")
    return ", ".join(parts) or "-"


def _short_ids(ids: list[str]) -> dict[str, str]:
    """Shorten long ids as far as they stay distinct."""
    found: dict[str, str] = {}
    for id in ids:
        length = _WHOLE_ID
        while length < len(id) and sum(other.startswith(id[:length]) for other in ids) > 1:
            length += 1
        found[id] = id[:length]
    return found


class TreeRow(NamedTuple):
    """A session of a tree, and the branches that are drawn before its id."""

    drawn: str
    line: SessionLine


def arrange_tree(lines: Sequence[SessionLine]) -> list[TreeRow]:
    """Put sessions below their parents, otherwise in the given order. One with a missing parent is on top."""
    known = {line.id for line in lines}
    below: defaultdict[str | None, list[SessionLine]] = defaultdict(list)
    for line in lines:
        below[line.parent if line.parent in known else None].append(line)
    rows: dict[str, TreeRow] = {}
    left = [("", "", line) for line in reversed(below[None])]  # not recursive: deeper than Python's stack may be
    while left:
        drawn, before, line = left.pop()
        rows[line.id] = TreeRow(before + drawn, line)
        before += {"|- ": "|  ", "`- ": "   "}.get(drawn, "")
        children = below[line.id]
        left += [("`- " if child is children[-1] else "|- ", before, child) for child in reversed(children)]
    # A store that was tampered with may have sessions that work for each other in a circle, with none on top.
    return [*rows.values(), *(TreeRow("", line) for line in lines if line.id not in rows)]


# ---- cancel, compact, fork -------------------------------------------------------------------------------------------

_PATIENCE: Final = 2.0
"""Seconds that `cancel` and `compact` wait for the end of the turn."""


_Call = Annotated[str | None, options.option("CALL", "only this tool call, by its name in events: t3.2.1")]


async def cancel(
    id: options.TurnId,
    *,
    call: _Call = None,
    reason: options.Reason = "",
    store: options.Store = DEFAULT_STORE,
) -> int:
    """Cancel the turn that is under way, in whichever process it runs; with --call, one tool call of it.

    Exit code 0 if it was cancelled, 1 if it was too late. The cancel of a call is only asked for: the process that
    drives its session carries it out.
    """
    out = stdout()
    async with edit_runtime(store) as runtime:
        target = await find_target(runtime.store, id)
        if call is not None:
            turn = runtime.session(target.id).turn(target.turn or call.partition(".")[0])
            asked = await turn.cancel_call(call, reason)
            late = asked == "too_late"
            out.line(f"too late: {call} has its result" if late else f"asked for: {target.id}/{call} is to stop")
            return FAILED if late else 0
        name = await _turn_to_cancel(runtime.store, target)
        if name is None:
            out.line(f"too late: {target.id} has nothing to cancel ({target.line.status})")
            return FAILED
        turn = runtime.session(target.id).turn(name)
        asked = await turn.cancel(reason)
        if asked != "too_late":
            await context_of(runtime).sessions.settle(target.id)
        try:
            outcome = await turn.outcome(timeout=_PATIENCE)
        except TimeoutError:
            line = await read_session_line(runtime.store, target.line)
            who = f"process {line.pid}" if line.pid else "the next runtime that opens the store"
            out.line(f"asked for: {who} has yet to stop {target.id}/{name}")
            return FAILED
    return print_end(f"{target.id}/{outcome.turn}", "cancelled", outcome.status, in_time=asked != "too_late")


def print_end(id: str, wanted: str, status: str, *reasons: str, in_time: bool = True) -> int:
    """Print whether a request has ended something as wanted, or was too late; returns the exit code."""
    if in_time and status == wanted:
        stdout().line(f"{wanted} {id}")
        return 0
    stdout().line(f"too late: {id} had ended ({reason_text(status, status, *reasons)})")
    return FAILED


async def _turn_to_cancel(store: Store, target: TurnTarget) -> str | None:
    """The named turn, or else the open one, or the first queued one."""
    conversation = await read_present(store, target.id)
    queued = await _queued_inputs(store, target.id)
    if target.turn is not None:
        known = keys.input_number(target.turn) in queued
        known = known or (conversation.turn is not None and conversation.turn.run == target.turn)
        if not known and await read_ending(store, target.id, target.turn) is None:
            raise TurnUnknown(target.id, target.turn)
        return target.turn
    if conversation.turn is not None:
        return conversation.turn.run
    return keys.turn_id(min(queued)) if queued else None


async def compact(id: options.SessionId, *, store: options.Store = DEFAULT_STORE) -> int:
    """Have the older part of a conversation summarised, before it is too long for the model.

    The request is durable when this ends; the process that drives the session carries it out. The history stays.
    """
    out = stdout()
    async with edit_runtime(store) as runtime:
        line = await find_session(runtime.store, id)
        turn = await runtime.session(line.id).compact()
        try:
            outcome = await turn.outcome(timeout=_PATIENCE)
        except TimeoutError:
            later = f"is done by the next runtime that works on it ('holdfast resume {line.id}')"
            out.line(f"asked for: {line.id}/{turn.id} {later}")
            return 0
    if outcome.ok:
        out.line(f"compacted {line.id}/{turn.id}, {outcome.usage.total:,} tokens")
        return 0
    out.line(f"not compacted: {line.id}/{turn.id} has {outcome.status} ({printable(outcome.message or outcome.code)})")
    return FAILED


async def fork(
    id: options.SessionId,
    *,
    at: Annotated[int, option("SEQ", "The last record that the new session shares.")],
    as_id: Annotated[str | None, option("ID", "The id of the new session.", "--as")] = None,
    store: options.Store = DEFAULT_STORE,
) -> None:
    """Start another session from a record of this one, and print its id. This one stays as it is."""
    async with edit_runtime(store) as runtime:
        line = await find_session(runtime.store, id)
        branch = await runtime.session(line.id).fork(at, id=as_id)
    stdout().line(branch.id)


# ---- replay ----------------------------------------------------------------------------------------------------------


async def replay(
    shell: Shell,
    id: options.TurnId,
    *,
    check: Annotated[bool, flag("Compare what the code would do with the record.", "--check")] = False,
    agent: options.Agent = None,
    yes: options.Yes = False,
) -> int:
    """Drive the turns of a session again from its records, without doing anything.

    Exit code 1 if the code diverges from the record; a prompt that has changed is only reported.
    """
    if not check:
        raise CallInvalid("replay performs nothing and only checks: say so with --check")
    async with view_runtime(shell.store) as runtime:
        target = await find_target(runtime.store, id)
        recorded = await agents.recorded_reference(shell.store, runtime.store, target.line)
        loaded = agents.choose_reference(target.id, agent, recorded, yes=yes).load()
        checks = await check_turns(runtime.store, target.id, loaded)
    if target.turn is not None:
        checks = [found for found in checks if found.turn == target.turn]
        if not checks:
            raise TurnUnknown(target.id, target.turn)
    shell.print_each(checks, _check_lines, nothing=f"{target.id} has no turns yet")
    return FAILED if any(found.verdict == "divergence" for found in checks) else 0


def _check_lines(out: Terminal, check: TurnCheck) -> Iterator[str]:
    explanations = {
        "ok": "",
        "drift": ": a prompt has changed; the recorded answer is kept",
        "divergence": ": the code takes another way than the record",
    }
    verdict = f"{out.status(check.verdict)} ({check.status or 'under way'}){explanations[check.verdict]}"
    yield f"{check.turn}  {verdict}"
    for finding in check.findings:
        yield f"  {finding.key}"
        if finding.changes:
            yield from (f"    {diff_line(out, text)}" for text in finding.changes)
            continue
        for place in finding.divergence.first:
            yield out.paint(f"    - {place.path}: {printable(place.recorded)}", "red")
            yield out.paint(f"    + {place.path}: {printable(place.asked)}", "green")
        more = finding.divergence.total - len(finding.divergence.first)
        if more:
            yield f"    and {more:,} more"


# ---- finding sessions and turns --------------------------------------------------------------------------------------


class TurnTarget(NamedTuple):
    """A session, or one turn of it."""

    line: Journal
    turn: str | None

    @property
    def id(self) -> str:
        return self.line.id


async def find_target(store: Store, given: str, *, others: bool = False) -> TurnTarget:
    """Find a session or a turn, `session/t3`, by the beginning of its id if that is unambiguous.

    A whole id goes before the beginning of another one. With `others`, background calls, durable functions and triggers
    are also found, by their whole ids.
    """
    check_id("journal id", given)
    splits: list[tuple[str, str | None]] = [(given, None)]
    head, slash, last = given.rpartition("/")
    if slash and keys.input_number(last) is not None:
        splits.append((head, last))
    prefixed = [(f"{prefix}{given}", None) for prefix in (PROCESS_PREFIX, "task-", TRIGGER_PREFIX)]
    for id, turn in [*splits, *prefixed]:
        with suppress(JournalMissing, InvalidId):
            found = await store.journal(id)
            if not others:
                _require_session(id)
            return TurnTarget(found, turn)
    lines = {line.id: line async for line in read_pages(store.journals, kind="session")}
    for id, turn in splits:
        if found := match_beginning(lines, id):
            return TurnTarget(lines[found], turn)
    raise CallInvalid(f"no session is called {given!r}, nor begins so; 'holdfast ps -a' lists them all")


def match_beginning(ids: Iterable[str], *beginnings: str) -> str | None:
    """The only id that begins so; `IdAmbiguous` if there are several."""
    found = [id for id in ids if id.startswith(beginnings)]
    if len(found) > 1:
        raise IdAmbiguous(beginnings[0], found)
    return found[0] if found else None


def _require_session(id: str) -> None:
    if is_task_id(id):
        what, command = "a background call", f"tasks {id}"
    elif is_process_journal(id):
        what, command = "a durable function", f"processes {shlex.quote(process_id_of(id))}"
    elif is_trigger_id(id):
        what, command = "a trigger", f"triggers {id.removeprefix(TRIGGER_PREFIX)}"
    else:
        return
    raise CallInvalid(f"{id!r} is no session, it is {what}; look at it with: holdfast {command}")


async def find_session(store: Store, given: str, *, others: bool = False) -> Journal:
    """Find a session; refuse a turn."""
    found = await find_target(store, given, others=others)
    if found.turn is not None:
        raise CallInvalid(f"{given!r} names a turn; the id of a session is wanted: {found.id}")
    return found.line


async def new_session_id(store: Store) -> str:
    """An id that no session has: short, because people type it."""
    while True:
        id = secrets.token_hex(4)
        try:
            await store.journal(id)
        except JournalMissing:
            return id


async def last_open_turn(store: Store, session: str) -> str | None:
    """The last queued turn, or else the open one; None if the session has no work."""
    queued = await _queued_inputs(store, session)
    if queued:
        return keys.turn_id(max(queued))
    turn = (await read_present(store, session)).turn
    return None if turn is None else turn.run


async def _queued_inputs(store: Store, session: str) -> list[int]:
    return [found.input for found in await store.pending(session) if isinstance(decode_input(found.body), UserInput)]


# ---- waits and approvals ---------------------------------------------------------------------------------------------


async def open_waits(store: Store, session: str) -> tuple[str, ...]:
    """The waits that need an answer from outside; empty if the session runs, or is about to."""
    line = await store.journal(session)
    if line.status != "waiting":
        return ()
    turn = (await read_present(store, session)).turn
    if turn is None or turn.parked is None:
        return ()
    now = store.clock.read().wall
    names: list[str] = []
    for name in turn.parked.waits:
        wait = await store.wait(session, name)
        if wait is None or wait.state != "open" or (wait.deadline is not None and wait.deadline <= now):
            return ()
        if name != deadline_wait(turn.run) and not is_pause(name):
            names.append(name)
    return tuple(names)


async def is_stop_requested(store: Store, session: str) -> bool:
    """True if a request to cancel a turn or a call waits for the next drive of the session."""
    return any(isinstance(decode_input(each.body), CancelRequest) for each in await store.pending(session))


async def find_approval(runtime: Runtime, given: str) -> Approval:
    """Find an approval by its id or the beginning of it, with or without the 'a-'."""
    known = {approval.id: approval for approval in await runtime.approvals()}
    found = given if given in known else match_beginning(known, given, f"a-{given}") if given else None
    if found is None:
        raise ApprovalUnknown(given, "it was answered, or its time was up, or there never was one")
    return known[found]


class AwaitedApproval(NamedTuple):
    """An approval, as far as the name of its wait tells."""

    id: str
    tool: str


def approval_of_wait(name: str) -> AwaitedApproval | None:
    """The approval for which a wait was opened; None for another wait."""
    effect, mark, digest = name.rpartition(MARK)
    return AwaitedApproval(f"a-{digest}", effect.rpartition("/")[2].partition(".")[2]) if mark else None


def wait_label(name: str) -> str:
    """A short name of a wait for people: the tool's own name for it, or the approval, or the deferred call."""
    approval = approval_of_wait(name)
    if approval is not None:
        return f"approval {approval.id} of {approval.tool}"
    if is_pause(name):
        return "the end of a pause"
    called, _, last = name.rpartition("/")
    if last == keys.DEFERRAL:
        tool = called.rpartition("/")[2]
        return f"result:{tool.partition('.')[2] or tool}"
    return last


def wait_description(name: str) -> str:
    """The label of a wait; for an approval, with the command that answers it."""
    approval = approval_of_wait(name)
    return wait_label(name) if approval is None else f"approval of {approval.tool}: holdfast approve {approval.id}"
