"""Finding sessions from the shell: by any unambiguous beginning of their id, in a store that must be there."""

from __future__ import annotations

import secrets
import shlex
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from holdfast.cli.agents import chosen, recorded
from holdfast.cli.options import FAILED, CallInvalid, NotASession, SessionAmbiguous, SessionUnknown, StoreMissing
from holdfast.cli.output import diff_line, duration, one_line, printable, status_table, stdout, tell
from holdfast.errors import ApprovalUnknown, InvalidId, JournalMissing, StoreError, TurnUnknown
from holdfast.policy.approvals import MARK
from holdfast.policy.mandates import ROLE
from holdfast.processes.state import id_of, is_process_journal, is_task_id, journal_of
from holdfast.runtime import Runtime
from holdfast.runtime.replay_check import check_turns
from holdfast.runtime.session_records import read_conversation
from holdfast.store import open_store, view_store
from holdfast.triggers.definition import PREFIX, is_trigger_id
from holdfast.turns import keys
from holdfast.turns.conversation import Said, deadline_wait, input_of
from holdfast.turns.programs import is_pause

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator, Sequence
    from pathlib import Path

    from holdfast.cli.output import Terminal
    from holdfast.runtime.approvals import Approval
    from holdfast.runtime.replay_check import TurnCheck
    from holdfast.store import Journal, Store, Work


class Target(NamedTuple):
    """A session, or one turn of it."""

    line: Journal
    turn: str | None

    @property
    def id(self) -> str:
        """The id of the session."""
        return self.line.id


def require_store(path: Path) -> None:
    """Refuse to go on where there is no store; none is made."""
    if not path.exists():
        raise StoreMissing(path)


@asynccontextmanager
async def looking(path: Path) -> AsyncGenerator[Runtime]:
    """The store as it is, open to read: nothing in it is changed, also where it could be."""
    require_store(path)
    async with view_store(path) as store, Runtime(store, (), drive=False) as runtime:
        yield runtime


@asynccontextmanager
async def changing(path: Path) -> AsyncGenerator[Runtime]:
    """The store, to change something in it: nothing is driven here, and no store is made."""
    require_store(path)
    async with open_store(path) as store, Runtime(store, (), drive=False) as runtime:
        yield runtime


async def find(store: Store, given: str, *, others: bool = False) -> Target:
    """What `given` names: a session, or `session/t3`; the id may be cut short where that is unambiguous.

    A whole id goes before the beginning of another one, whatever it is the id of. With `others`, also background calls,
    durable functions and triggers are found, by their whole ids.
    """
    splits = list(_splits(given))
    for id, turn in splits:
        try:
            found = await store.journal(id)
        except JournalMissing:
            continue
        if not others:
            _require_session(id)
        return Target(found, turn)
    other = await _other(store, given)
    if other is not None:
        if not others:
            _require_session(other.id)
        return Target(other, None)
    lines = await all_sessions(store)
    for id, turn in splits:
        found = [line for line in lines if line.id.startswith(id)]
        if len(found) > 1:
            raise SessionAmbiguous(id, [line.id for line in found])
        if found:
            return Target(found[0], turn)
    raise SessionUnknown(given)


async def _other(store: Store, given: str) -> Journal | None:
    """What has this very id and is no session: a durable function, a background call, or a trigger."""
    for name_of in (journal_of, "task-{}".format, f"{PREFIX}{{}}".format):
        with suppress(JournalMissing, InvalidId):
            return await store.journal(name_of(given))
    return None


def _require_session(id: str) -> None:
    if is_task_id(id):
        raise NotASession(id, "a background call", f"holdfast tasks {id}")
    if is_process_journal(id):
        raise NotASession(id, "a durable function", f"holdfast processes {shlex.quote(id_of(id))}")
    if is_trigger_id(id):
        raise NotASession(id, "a trigger", f"holdfast triggers {id.removeprefix(PREFIX)}")


async def find_session(store: Store, given: str, *, others: bool = False) -> Journal:
    """The session that `given` names; a turn can't be meant."""
    found = await find(store, given, others=others)
    if found.turn is not None:
        message = f"{given!r} names a turn; the id of a session is wanted: {found.id}"
        raise CallInvalid(message)
    return found.line


def _splits(given: str) -> Iterator[tuple[str, str | None]]:
    yield given, None
    head, slash, last = given.rpartition("/")
    if slash and keys.input_of(last) is not None:
        yield head, last


async def find_approval(runtime: Runtime, given: str) -> Approval:
    """The approval that `given` names; its id may be cut short, and need not begin with 'a-'."""
    found = await runtime.approvals()
    for approval in found:
        if approval.id == given:
            return approval
    begin = [approval for approval in found if given and approval.id.startswith((given, f"a-{given}"))]
    if len(begin) > 1:
        raise SessionAmbiguous(given, [approval.id for approval in begin])
    if not begin:
        raise ApprovalUnknown(given, "it was answered, or its time was up, or there never was one")
    return begin[0]


async def all_sessions(store: Store) -> list[Journal]:
    """Every session, those that changed last first."""
    lines: list[Journal] = []
    while True:
        page = await store.journals(kind="session", before=lines[-1] if lines else None, limit=store.limits.page)
        lines += page
        if len(page) < store.limits.page:
            return lines


async def new_id(store: Store) -> str:
    """An id that no session has: short, because people type it."""
    while True:
        id = secrets.token_hex(4)
        try:
            await store.journal(id)
        except JournalMissing:
            return id


async def last_turn(store: Store, session: str) -> str | None:
    """The turn that is left to do last: of what waits in the inbox, or the one under way; None when all is done."""
    queued = [found.input for found in await store.pending(session) if isinstance(input_of(found.body), Said)]
    if queued:
        return keys.run_of(max(queued))
    turn = (await read_conversation(store, session)).turn
    return None if turn is None else turn.run


async def open_waits(store: Store, session: str) -> tuple[str, ...]:
    """What a session waits for that only somebody outside can give; empty when it runs, or is about to go on."""
    line = await store.journal(session)
    if line.status != "waiting":
        return ()
    turn = (await read_conversation(store, session)).turn
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


class AskedCall(NamedTuple):
    """A call that waits for an approval, as far as the name of the wait tells."""

    id: str
    """That of the approval."""
    tool: str


def approval_in(name: str) -> AskedCall | None:
    """The approval that a wait stands for; None when it is another wait."""
    effect, mark, digest = name.rpartition(MARK)
    return AskedCall(f"a-{digest}", effect.rpartition("/")[2].partition(".")[2]) if mark else None


def wait_label(name: str) -> str:
    """The tool's own name for a wait, without the place where it was asked; of an approval, its id and the tool.

    The result of a call that was deferred is called by the tool.
    """
    asked = approval_in(name)
    if asked is not None:
        return f"approval {asked.id} of {asked.tool}"
    if is_pause(name):
        return "the end of a pause"
    called, _, last = name.rpartition("/")
    if last == keys.DEFERRAL:
        tool = called.rpartition("/")[2]
        return f"result:{tool.partition('.')[2] or tool}"
    return last


def wait_told(name: str) -> str:
    """The same for a place with room: an approval with the command that answers it."""
    asked = approval_in(name)
    return wait_label(name) if asked is None else f"approval of {asked.tool}: holdfast approve {asked.id}"


MIDDLE: Final = "|- "
LAST: Final = "`- "
_BESIDE: Final = "|  "
_BELOW: Final = "   "


class Placed(NamedTuple):
    """A line, and what is drawn before its id."""

    drawn: str
    line: Line


def arranged(lines: Sequence[Line]) -> list[Placed]:
    """The lines with those below them, otherwise in the order they have. One whose parent is not there is on top."""
    known = {line.id for line in lines}
    below: dict[str, list[Line]] = {}
    for line in lines:
        if line.parent is not None and line.parent in known:
            below.setdefault(line.parent, []).append(line)
    tops = [line for line in lines if line.parent is None or line.parent not in known]
    placed = [each for top in tops for each in (Placed("", top), *_children(top, below, ""))]
    shown = {each.line.id for each in placed}
    # Sessions that work for each other in a circle are below none that is on top: a tampered store may have such.
    return [*placed, *(Placed("", line) for line in lines if line.id not in shown)]


def _children(line: Line, below: dict[str, list[Line]], before: str) -> Iterator[Placed]:
    """What is below a line, at any depth."""
    todo = [(iter(enumerate(below.get(line.id, []), 1)), len(below.get(line.id, [])), before)]
    while todo:
        children, count, before = todo[-1]
        number, child = next(children, (0, None))
        if child is None:
            todo.pop()
            continue
        yield Placed(before + (LAST if number == count else MIDDLE), child)
        found = below.get(child.id, [])
        todo.append((iter(enumerate(found, 1)), len(found), before + (_BELOW if number == count else _BESIDE)))


_HEADINGS: Final = ["SESSION", "AGENT", "STATUS", "RECORDS", "CHANGED", "BY"]
_TOTALS: Final = ["SESSION", "AGENT", "STATUS", "RECORDS", "TOKENS", "COST", "CHANGED", "BY"]
"""As a tree: what a session used stands with what those below it used."""
_WHOLE: Final = 24
"""Ids up to this length are shown whole."""
_ACTIVE: Final = frozenset(("running", "interrupted", "waiting", "queued", "quarantined"))


class Line(msgspec.Struct, frozen=True):
    """One session, as it stands."""

    id: str
    agent: str | None
    status: str
    """As in the journal; or `interrupted` (it ran, and nobody drives it), `queued` (nobody has begun), `quarantined`"""
    records: int
    created: int
    updated: int
    pid: int | None = None
    """The process that drives it."""
    waits: tuple[str, ...] = ()
    queued: int = 0
    """Inputs that wait for their turn."""
    parent: str | None = None
    """The session that it works for, where it is that of a sub-agent."""
    total_tokens: int | None = None
    """What it used, with its sub-agents on all levels. None: not counted, as only a tree does, or not readable."""
    total_cost: float | None = None
    """In US dollars; None where a price is not known."""
    metadata: dict[str, Any] = {}
    """What the application said about it."""


async def ps(path: Path, *, every: bool, as_json: bool, tree: bool = False) -> int:
    """List the sessions of a store, those that changed last first; as a tree, sub-agents below their parents."""
    async with looking(path) as runtime:
        lines = await read_lines(runtime.store, every=every)
        lines = [await _counted(runtime, line) for line in lines] if tree else lines
        now = runtime.store.clock.read().wall
    placed = arranged(lines) if tree else [Placed("", line) for line in lines]
    nothing = "no sessions" if every else "nothing runs or waits ('holdfast ps -a' lists all sessions)"
    tell(lines, lambda out: _rows(out, placed, now, totals=tree), nothing=nothing, as_json=as_json)
    return 0


async def _counted(runtime: Runtime, line: Line) -> Line:
    """The line, with what the session has used and those below it."""
    try:
        found = await runtime.children.whole(await runtime.store.journal(line.id))
    except StoreError:  # one that is damaged, here or below, must not hide the others
        return line
    return msgspec.structs.replace(line, total_tokens=found.total.total, total_cost=found.cost)


async def read_lines(store: Store, *, every: bool) -> list[Line]:
    """All sessions, or those that run or wait."""
    work = await _work(store)
    lines: list[Line] = []
    for line in await all_sessions(store):
        found = work.get(line.id)
        if every or found is not None or line.status in _ACTIVE or line.quarantine is not None:
            lines.append(await _line(store, line, found))
    return lines if every else [line for line in lines if line.status in _ACTIVE]


async def _work(store: Store) -> dict[str, Work]:
    found: dict[str, Work] = {}
    after = 0
    while page := await store.work(after):
        found |= {work.journal: work for work in page}
        after = page[-1].no
    return found


async def read_line(store: Store, line: Journal) -> Line:
    """One session, as it stands."""
    return await _line(store, line, (await _work(store)).get(line.id))


async def _line(store: Store, line: Journal, work: Work | None) -> Line:
    holder = None if work is None or work.holder is None or store.owner_gone(work.holder) else work.holder
    trusted = line.quarantine is None
    waits = await store.waits(line.id) if line.status == "waiting" and trusted else []
    queued = len(await store.pending(line.id)) if work is not None and trusted else 0
    return Line(
        id=line.id,
        agent=line.agent,
        status=standing(line, held=holder is not None, queued=queued),
        records=line.head,
        created=line.created,
        updated=line.updated,
        pid=None if holder is None else holder.pid,
        waits=tuple(
            wait.name
            for wait in waits
            if wait.state == "open" and wait.name != deadline_wait(wait.name.partition("/")[0])
        ),
        queued=queued,
        parent=line.session if line.role == ROLE else None,
        metadata=line.metadata,
    )


def standing(line: Journal, *, held: bool, queued: int) -> str:
    """How a session stands, in one word."""
    if line.quarantine is not None:
        return "quarantined"
    if line.status == "running":
        return "running" if held else "interrupted"
    if line.status == "waiting" or not queued:
        return line.status
    return "running" if held else "queued"


def _rows(out: Terminal, lines: list[Placed], now: int, *, totals: bool = False) -> list[str]:
    short = _short_ids([line.id for _, line in lines]) if out.live else {}
    rows = [
        [
            drawn + short.get(line.id, line.id),
            one_line(line.agent or "-", 24),
            line.status,
            f"{line.records:,}",
            *(_used(line) if totals else ()),
            f"{duration(max(now - line.updated, 0))} ago",
            _by(line),
        ]
        for drawn, line in lines
    ]
    return status_table(out, _TOTALS if totals else _HEADINGS, rows)


def _used(line: Line) -> tuple[str, str]:
    tokens = "-" if line.total_tokens is None else f"{line.total_tokens:,}"
    return tokens, "-" if line.total_cost is None else f"${line.total_cost:.4f}"


def _by(line: Line) -> str:
    parts = [] if line.pid is None else [f"pid {line.pid}"]
    if line.waits:
        parts.append(f"waits for {one_line(', '.join(map(wait_told, line.waits)), 80)}")
    if line.queued and line.status != "queued":
        parts.append(f"{line.queued} queued")
    return ", ".join(parts) or "-"


def _short_ids(ids: list[str]) -> dict[str, str]:
    """Long ids, cut to where they can still be told apart."""
    found: dict[str, str] = {}
    for id in ids:
        length = _WHOLE
        while length < len(id) and sum(other.startswith(id[:length]) for other in ids) > 1:
            length += 1
        found[id] = id[:length]
    return found


_PATIENCE = 2.0
"""How long `cancel` waits for the end, in seconds."""


async def cancel(path: Path, given: str, reason: str) -> int:
    """Cancel a turn; carried out here if nobody drives the session."""
    out = stdout()
    async with changing(path) as runtime:
        target = await find(runtime.store, given)
        name = await _turn_to_cancel(runtime, target)
        if name is None:
            out.line(f"too late: {target.id} has nothing to cancel ({target.line.status})")
            return FAILED
        turn = runtime.session(target.id).turn(name)
        asked = await turn.cancel(reason)
        if asked != "too_late":
            await runtime.settle(target.id)
        try:
            outcome = await turn.outcome(timeout=_PATIENCE)
        except TimeoutError:
            line = await read_line(runtime.store, target.line)
            who = f"process {line.pid}" if line.pid else "whoever opens the store next"
            out.line(f"asked for: {who} has yet to stop {target.id}/{name}")
            return FAILED
    if outcome.status == "cancelled" and asked != "too_late":
        out.line(f"cancelled {target.id}/{outcome.turn}")
        return 0
    out.line(f"too late: {target.id}/{outcome.turn} had ended ({outcome.status})")
    return FAILED


async def _turn_to_cancel(runtime: Runtime, target: Target) -> str | None:
    """The turn that is meant: the one that was named, the open one, or the first that is queued."""
    store = runtime.store
    conversation = await read_conversation(store, target.id)
    queued = [found.input for found in await store.pending(target.id) if isinstance(input_of(found.body), Said)]
    if target.turn is not None:
        known = target.turn in conversation.endings or keys.input_of(target.turn) in queued
        if not known and (conversation.turn is None or conversation.turn.run != target.turn):
            raise TurnUnknown(target.id, target.turn)
        return target.turn
    if conversation.turn is not None:
        return conversation.turn.run
    return keys.run_of(min(queued)) if queued else None


async def compact(path: Path, given: str) -> int:
    """Ask for a summary of the older part of a conversation; whoever works on the session writes it."""
    out = stdout()
    async with changing(path) as runtime:
        line = await find_session(runtime.store, given)
        turn = await runtime.session(line.id).compact()
        try:
            outcome = await turn.outcome(timeout=_PATIENCE)
        except TimeoutError:
            out.line(
                f"asked for: {line.id}/{turn.id} is done by whoever works on it next ('holdfast resume {line.id}')"
            )
            return 0
    if outcome.ok:
        out.line(f"compacted {line.id}/{turn.id}, {outcome.usage.total:,} tokens")
        return 0
    out.line(f"not compacted: {line.id}/{turn.id} has {outcome.status} ({out.clean(outcome.message or outcome.code)})")
    return FAILED


async def fork(path: Path, given: str, at: int, as_id: str | None) -> int:
    """Begin another session where this one was at a record; prints its id."""
    async with changing(path) as runtime:
        line = await find_session(runtime.store, given)
        branch = await runtime.session(line.id).fork(at, id=as_id)
    stdout().line(branch.id)
    return 0


async def replay(  # noqa: PLR0913
    path: Path, given: str, agent: str | None, *, check: bool, as_json: bool, yes: bool = False
) -> int:
    """Drive the turns of a session again from its records; exit code 1 when one takes another way."""
    if not check:
        message = "replay performs nothing and only checks: say so with --check"
        raise CallInvalid(message)
    async with looking(path) as runtime:
        target = await find(runtime.store, given)
        reference = chosen(target.id, agent, await recorded(path, runtime.store, target.line), yes=yes)
        checks = await check_turns(runtime.store, target.id, reference.load())
    if target.turn is not None:
        checks = [found for found in checks if found.turn == target.turn]
        if not checks:
            raise TurnUnknown(target.id, target.turn)
    out = stdout()
    if as_json:
        out.line(msgspec.json.encode(checks).decode())
    else:
        for found in checks:
            out.write("".join(f"{text}\n" for text in _lines(out, found)))
        if not checks:
            out.line(f"{target.id} has no turns yet")
    return FAILED if any(found.verdict == "divergence" for found in checks) else 0


def _lines(out: Terminal, check: TurnCheck) -> list[str]:
    said = {
        "ok": "",
        "drift": ": a prompt has changed; the recorded answer is kept",
        "divergence": ": the code takes another way than the record",
    }
    lines = [f"{check.turn}  {out.status(check.verdict)} ({check.status or 'under way'}){said[check.verdict]}"]
    for finding in check.findings:
        lines.append(f"  {finding.key}")
        if finding.changes:
            lines += [f"    {diff_line(out, text)}" for text in finding.changes]
            continue
        for place in finding.divergence.first:
            lines += [
                out.paint(f"    - {place.path}: {printable(place.recorded)}", "red"),
                out.paint(f"    + {place.path}: {printable(place.asked)}", "green"),
            ]
        more = finding.divergence.total - len(finding.divergence.first)
        if more:
            lines.append(f"    and {more:,} more")
    return lines
