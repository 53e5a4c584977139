"""Finding sessions from the shell: by any unambiguous beginning of their id, in a store that must be there."""

from __future__ import annotations

import secrets
import shlex
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, NamedTuple

from holdfast.cli.failures import CallInvalid, NotASession, SessionAmbiguous, SessionUnknown, StoreMissing
from holdfast.errors import ApprovalUnknown, InvalidId, JournalMissing
from holdfast.policy.approvals import MARK
from holdfast.processes.ids import id_of, is_process_journal, journal_of
from holdfast.runtime import Runtime
from holdfast.runtime.reading import read_conversation
from holdfast.store import open_store, view_store
from holdfast.tasks import is_task_id
from holdfast.triggers.definition import PREFIX, is_trigger_id
from holdfast.turns import keys
from holdfast.turns.conversation import Said, deadline_wait, input_of
from holdfast.turns.programs import is_pause

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator
    from pathlib import Path

    from holdfast.runtime.approving import Approval
    from holdfast.store import Journal, Store


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
