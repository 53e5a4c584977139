"""`holdfast cancel` and `fork`: acting on a session from outside, whoever drives it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.cli.failures import FAILED
from holdfast.cli.listing import read_line
from holdfast.cli.sessions import changing, find, find_session
from holdfast.cli.terminal import stdout
from holdfast.errors import TurnUnknown
from holdfast.runtime.reading import read_conversation
from holdfast.turns import keys
from holdfast.turns.conversation import Said, input_of

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.cli.sessions import Target
    from holdfast.runtime.runtime import Runtime

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
