"""What a durable function waits for: a time, a signal, a child, the turn of an agent.

Each can say whether it has come. While the function is in memory they are looked at when something happens; when it has
nothing else to do it is parked, and asks again after it was woken.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from holdfast.effects.values import decode_value, encode_value
from holdfast.errors import BlobMissing, JournalMissing
from holdfast.processes.ids import id_of, turn_wait
from holdfast.processes.state import TERMINAL
from holdfast.records import ErrorInfo
from holdfast.runtime.awaiting import JournalWaits
from holdfast.runtime.outcome import TurnReader

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from holdfast.processes.state import ProcessState
    from holdfast.store import Store
    from holdfast.store.contract import Wait

TURN: Final = "turn"
"""The kind of the waits for turns of agents."""
AGAIN_MS: Final = 300_000
"""How long a process waits for a turn before it looks by itself, in case that whoever would tell it is gone."""


@dataclass(frozen=True, slots=True)
class Found:
    """It has come: a JSON value, or an error."""

    body: bytes = b"null"
    error: ErrorInfo | None = None


class Sought(Protocol):
    """Something that is waited for."""

    @property
    def label(self) -> str:
        """As the record says it: the name of a wait where there is one."""
        ...

    @property
    def due(self) -> int | None:
        """When to look again at the latest, in wall milliseconds."""
        ...

    async def begin(self) -> Found | None:
        """Ask for it; None while it has not come."""
        ...

    async def look(self) -> Found | None:
        """Look whether it has come."""
        ...

    async def withdraw(self) -> None:
        """Nobody waits for it any more."""
        ...


class Awaited:
    """A wait of the store: a timer, or a signal."""

    def __init__(
        self,
        store: Store,
        journal: str,
        name: str,
        deadline: int | None,
        resend: Callable[[bytes], Awaitable[None]] | None = None,
    ) -> None:
        self.label = name
        self.due = deadline
        self._store = store
        self._journal = journal
        self._resend = resend
        """What becomes of a signal that came for somebody who does not wait any more; None where this is a timer."""

    async def begin(self) -> Found | None:
        wait = await JournalWaits(self._store, self._journal).open_wait(self.label, self.due)
        self.due = wait.deadline  # the first one counts
        return self._found(wait)

    async def look(self) -> Found | None:
        wait = await self._store.wait(self._journal, self.label)
        if wait is None:
            return None
        if wait.state == "open" and wait.deadline is not None and wait.deadline <= self._store.clock.read().wall:
            wait = (await self._store.expire_wait(self._journal, self.label)).wait
        return self._found(wait)

    async def withdraw(self) -> None:
        wait = (await self._store.cancel_wait(self._journal, self.label)).wait
        if wait.state == "resolved" and self._resend is not None:
            await self._resend(wait.payload or b"null")

    def _found(self, wait: Wait) -> Found | None:
        if wait.state == "open":
            return None
        if wait.state == "resolved":
            return Found(wait.payload or b"null")
        if wait.state == "expired" and self._resend is None:
            return Found()
        return Found(error=ErrorInfo(wait.state, f"the wait was {wait.state}"))


class ChildEnded:
    """The end of a process that another one started."""

    due: int | None = None

    def __init__(self, store: Store, child: str, read: Callable[[str], Awaitable[ProcessState]]) -> None:
        self.label = child
        self._store = store
        self._read = read

    async def begin(self) -> Found | None:
        return await self.look()

    async def look(self) -> Found | None:
        try:
            line = await self._store.journal(self.label)
        except JournalMissing:
            return Found(error=ErrorInfo("ProcessUnknown", f"there is no process {id_of(self.label)!r}"))
        if line.status not in TERMINAL:
            return None
        return Found(encode_value(await how_it_ended(self._store, await self._read(self.label))))

    async def withdraw(self) -> None:
        """It goes on all the same."""


async def how_it_ended(store: Store, state: ProcessState) -> dict[str, Any]:
    """The end of a process as plain JSON."""
    if state.status == "completed":
        return {"status": "completed", "value": await value_of(store, state)}
    error = state.error
    return {
        "status": state.status,
        "kind": "" if error is None else error.kind,
        "message": "" if error is None else error.message,
    }


async def value_of(store: Store, state: ProcessState) -> Any:  # noqa: ANN401  whatever the function gave
    """What a process gave."""
    if state.blob is None:
        return decode_value(state.value or b"null")
    body = await store.blob(state.blob.digest)
    if body is None:
        raise BlobMissing(state.blob.digest)
    return decode_value(body)


class AwaitedTurn(msgspec.Struct, frozen=True):
    """The turn that a wait is about, as the wait says it."""

    session: str
    input: int


class TurnEnd:
    """The end of a turn. Whoever knows of it answers the wait; now and then the process looks by itself."""

    def __init__(
        self,
        store: Store,
        journal: str,
        key: str,
        turn: AwaitedTurn,
        watch: Callable[[str, str, AwaitedTurn], None],
    ) -> None:
        now = store.clock.read().wall
        self.due: int | None = now + AGAIN_MS
        self.label = turn_wait(key, now // AGAIN_MS)
        self._store = store
        self._journal = journal
        self._turn = turn
        self._watch = watch

    async def begin(self) -> Found | None:
        found = await self.look()
        if found is None:
            body = msgspec.json.encode(self._turn)
            await self._store.open_wait(self._journal, self.label, deadline=self.due, kind=TURN, body=body)
            self._watch(self._journal, self.label, self._turn)
        return found

    async def look(self) -> Found | None:
        reader = TurnReader(self._store, self._turn.session, self._turn.input, 0, known=True)
        ending = await reader.read()
        if ending is None:
            return None
        outcome = reader.outcome(ending, None)
        told = {
            "turn": outcome.turn,
            "status": outcome.status,
            "text": outcome.text,
            "value": outcome.value,
            "typed": ending.typed,
            "agent": ending.agent,
            "message": outcome.message or outcome.code,
        }
        return Found(encode_value(told))

    async def withdraw(self) -> None:
        await self._store.cancel_wait(self._journal, self.label)
