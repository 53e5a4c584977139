"""`holdfast resolve`: the answer to what a session waits for, or the result of a call that was deferred."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.cli.failures import FAILED, ApprovalNotResolved, CallInvalid, WaitNotOpen
from holdfast.cli.following import hint
from holdfast.cli.listing import read_line
from holdfast.cli.sessions import approval_in, changing, find, wait_label
from holdfast.cli.terminal import stderr, stdout
from holdfast.processes.ids import is_process_journal
from holdfast.store.tokens import is_token
from holdfast.tasks import is_task_id

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from holdfast.runtime.runtime import Runtime
    from holdfast.store import Journal, Settlement


async def resolve(path: Path, given: Sequence[str], error: str | None, as_json: bool) -> int:  # noqa: FBT001
    """Answer a wait with a JSON value, or with an error."""
    place, value = _read(given, error)
    async with changing(path) as runtime:
        key = place[0] if is_token(place[0]) else await _key_of(runtime, place[0], place[1])
        settlement = await runtime.resolve(key, value, error=error)
        journal = settlement.wait.journal
        found = await runtime.store.journal(journal)
        line = await read_line(runtime.store, found)
    if as_json:
        stdout().line(msgspec.json.encode(_told(settlement)).decode())
        return 0 if settlement.won else FAILED
    label = wait_label(settlement.wait.name)
    if not settlement.won:
        stderr().line(f"too late: {label!r} was {settlement.wait.state} before")
        return FAILED
    stdout().line(f"answered {label!r} of {journal}")
    if line.pid is None:
        stderr().line(f"go on with: {_go_on(path, found)}")
    return 0


def _go_on(path: Path, found: Journal) -> str:
    if is_process_journal(found.id):
        return hint(path, "processes", "work", "MODULE")
    return hint(path, "resume", (found.session if is_task_id(found.id) else None) or found.id)


def _told(settlement: Settlement) -> dict[str, Any]:
    wait = settlement.wait
    return {"won": settlement.won, "state": wait.state, "session": wait.journal, "wait": wait.name}


def _read(given: Sequence[str], error: str | None) -> tuple[list[str], Any]:
    """What is answered (a key, or a session and the name of a wait), and the value."""
    wanted = (1 if is_token(given[0]) else 2) + (error is None)
    if len(given) != wanted:
        answer = "--error TEXT" if error is not None else "JSON"
        message = f"give KEY {answer}, or ID WAIT {answer}; an answer is a value or an error"
        raise CallInvalid(message)
    if error is not None:
        return list(given), None
    *place, text = given
    try:
        return place, msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError):
        message = f"{text!r} is no JSON; quote it for the shell: true, 42, '\"words\"', '{{\"ok\": true}}'"
        raise CallInvalid(message) from None


async def _key_of(runtime: Runtime, given: str, name: str) -> str:
    session = (await find(runtime.store, given, others=True)).id
    return runtime.wait_token(session, await _named_wait(runtime, session, name))


async def _named_wait(runtime: Runtime, session: str, name: str) -> str:
    """The wait with this name, or whose last part this is."""
    names = [wait.name for wait in await runtime.waits(session)]
    for known in names:
        asked = approval_in(known)
        if asked is not None and name in {known, wait_label(known), asked.id}:
            raise ApprovalNotResolved(session, asked.id)
    if name in names:
        return name
    found = [known for known in names if wait_label(known) == name]
    if len(found) > 1:
        message = f"{session!r} has several waits called {name!r}: {', '.join(found)}; give the whole name"
        raise CallInvalid(message)
    if not found:
        raise WaitNotOpen(session, name, [wait_label(known) for known in names])
    return found[0]
