"""Turns that nobody asked for: a notification began them. Why they began, and what came of them."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from holdfast.cli.failures import EXITS
from holdfast.cli.following import Followed, Follower
from holdfast.cli.terminal import one_line
from holdfast.errors import JournalMissing
from holdfast.events import TERMINAL
from holdfast.records import Admitted, Ended, Started
from holdfast.runtime.reading import read_page
from holdfast.turns import keys
from holdfast.turns.conversation import Said, input_of

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.cli.screen import Screen
    from holdfast.runtime import Runtime
    from holdfast.store import Notification, Store

_TITLES: Final = 3
"""How many notifications are named."""


async def reason_of(store: Store, session: str, turn: str) -> str | None:
    """Why a turn began by itself, in one line; None when somebody asked for it."""
    number = keys.input_of(turn)
    # It is among the newest ones: the session was just told of it.
    newest = await store.notifications(session, limit=store.limits.page)
    found = [notice for notice in newest if notice.input == number][::-1]
    return None if not found else f"{turn} began by itself: {_named(found)}"


def _named(found: list[Notification]) -> str:
    shown = [f"notification {notice.id}, {one_line(notice.title, 80)}" for notice in found[:_TITLES]]
    left = len(found) - len(shown)
    return "; ".join([*shown, *([f"and {left:,} more"] if left else [])])


class Unasked:
    """The turns of one session that began by themselves since record `head`; each is shown once."""

    def __init__(self, runtime: Runtime, session: str, path: Path, head: int) -> None:
        self._runtime = runtime
        self._session = session
        self._path = path
        self._head = head
        self._begun: dict[str, int] = {}
        """Behind which record each turn began."""
        self._ended: set[str] = set()
        self._seen: set[str] = set()
        self._left: deque[str] = deque()

    def saw(self, turn: str) -> None:
        """A turn was shown elsewhere."""
        self._seen.add(turn)

    async def show(self, screen: Screen) -> Followed | None:
        """Show the next one, with the reason why it began; None when there is none now."""
        await self._read()
        while self._left:
            turn = self._left.popleft()
            if turn not in self._seen:
                self._seen.add(turn)
                return await self._shown(turn, screen)
        return None

    async def _shown(self, turn: str, screen: Screen) -> Followed:
        reason = await reason_of(self._runtime.store, self._session, turn)
        if reason is not None:
            screen.remark(reason)
        handle = self._runtime.session(self._session).turn(turn)
        if turn not in self._ended:
            return await Follower(self._runtime, handle, screen, self._path).follow(self._begun[turn], turn)
        async for event in self._runtime.session(self._session).events(self._begun[turn]):
            if event.turn == turn:
                screen.event(event)
                if isinstance(event, TERMINAL):
                    break
        outcome = await handle.outcome()
        screen.ended(outcome)
        return Followed(EXITS[outcome.status])

    async def _read(self) -> None:
        """Take in what was recorded since the last look."""
        try:
            while page := await read_page(self._runtime.store, self._session, self._head):
                for seq, record in page:
                    match record:
                        case Started():
                            self._begun[record.run] = seq - 1
                        case Admitted() if _begins(record):
                            self._left.append(keys.run_of(record.input))
                        case Ended():
                            self._ended.add(record.run)
                        case _:
                            pass
                self._head = page[-1][0]
        except JournalMissing:  # nothing was ever said
            return


def _begins(record: Admitted) -> bool:
    """Whether a notification begins a turn here, and does not enter one that runs."""
    if record.run is None or record.run != keys.run_of(record.input):
        return False
    said = input_of(bytes(record.body))
    return isinstance(said, Said) and said.origin == "holdfast"
