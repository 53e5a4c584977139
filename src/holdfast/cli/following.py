"""Following one turn from the terminal until it ends, waits for somebody, or is left."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

from holdfast.cli.failures import EXITS, INTERRUPTED, TERMINATED, WAITING
from holdfast.cli.options import DEFAULT_STORE, ENVIRONMENT
from holdfast.cli.sessions import approval_in, open_waits, wait_label
from holdfast.events import TERMINAL, InputAccepted, RunStarted, TurnWaiting
from holdfast.spawning import spawn
from holdfast.turns import keys

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.cli.screen import Screen
    from holdfast.runtime import Runtime, Turn, TurnOutcome

_LAST_EVENTS: Final = 5.0
"""How long the last events of a turn that has ended may take to come, in seconds."""


@dataclass(slots=True)
class Followed:
    """How following a turn came out."""

    code: int
    waits: tuple[str, ...] = ()
    left: bool = False


class Follower:
    """Shows one turn. The first Ctrl-C cancels it, the second leaves at once; SIGTERM leaves it where it is."""

    def __init__(self, runtime: Runtime, turn: Turn, screen: Screen, path: Path, *, asks: bool = False) -> None:
        self._asks = asks
        """Whether a person is asked about approvals at once, and need not be told how to answer them."""
        self._runtime = runtime
        self._turn = turn
        self._screen = screen
        self._path = path
        self._number = keys.input_of(turn.id)
        self._left: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._cancelling: asyncio.Task[object] | None = None

    async def follow(self, after: int, run: str | None = None) -> Followed:
        """Show what happens behind record `after`. `run` is the turn, where its beginning was before that."""
        waits = await open_waits(self._runtime.store, self._turn.session)
        if waits:
            return self._waiting(waits)
        with self:
            pump = spawn(self._pump(after, run))
            outcome = spawn(self._turn.outcome())
            try:
                return await self._watch(pump, outcome)
            finally:
                tasks: list[asyncio.Task[Any]] = [
                    task for task in (pump, outcome, self._cancelling) if task is not None
                ]
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch(self, pump: asyncio.Task[tuple[str, ...]], outcome: asyncio.Task[TurnOutcome]) -> Followed:
        await asyncio.wait({pump, outcome, self._left}, return_when=asyncio.FIRST_COMPLETED)
        if self._left.done():
            self._screen.remark(f"{self._turn.id} was left where it is; go on with: {self._hint('resume')}")
            return Followed(TERMINATED, left=True)
        if pump.done() and (waits := pump.result()):
            return self._waiting(waits)
        ended = await outcome
        await asyncio.wait({pump}, timeout=_LAST_EVENTS)
        self._screen.ended(ended)
        return Followed(EXITS[ended.status])

    async def _pump(self, after: int, run: str | None) -> tuple[str, ...]:
        """Show the events of the turn until it ends; answers what the session waits for, if it was parked."""
        begun: RunStarted | None = None
        async for event in self._runtime.session(self._turn.session).events(after):
            if run is None and isinstance(event, InputAccepted) and event.input == self._number:
                run = event.turn
                if begun is not None and begun.turn == run:
                    self._screen.event(begun)
            if isinstance(event, RunStarted):
                begun = event
            if run is not None and event.turn in {run, None}:
                self._screen.event(event)
                if event.turn == run and isinstance(event, TERMINAL):
                    return ()
            if isinstance(event, TurnWaiting):
                waits = await open_waits(self._runtime.store, self._turn.session)
                if waits:
                    return waits
        return ()

    def _waiting(self, waits: tuple[str, ...]) -> Followed:
        session = self._turn.session
        self._screen.waiting(session, self._turn.id, waits)
        if self._asks and all(approval_in(name) is not None for name in waits):
            return Followed(WAITING, waits)
        for name in waits:
            owner = name.partition("/")[0]
            behind = "" if owner == self._turn.id else f" ({self._turn.id} comes after it)"
            asked = approval_in(name)
            if asked is None:
                what, answer = repr(wait_label(name)), self._hint("resolve", wait_label(name), "JSON")
            else:
                what, answer = f"approval of {asked.tool}", hint(self._path, "approve", asked.id)
            self._screen.remark(f"{owner} waits for {what}{behind}; answer with: {answer}")
        self._screen.remark(f"then go on with: {self._hint('resume')}")
        return Followed(WAITING, waits)

    def _hint(self, command: str, *rest: str) -> str:
        return hint(self._path, command, self._turn.session, *rest)

    # ---- signals ----

    def __enter__(self) -> Self:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self._interrupt)
        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._leave)
        return self

    def __exit__(self, *_: object) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.remove_signal_handler(number)

    def _interrupt(self) -> None:
        if self._cancelling is None:
            self._screen.remark("cancelling (Ctrl-C again leaves at once)")
            self._cancelling = spawn(self._turn.cancel("interrupted from the terminal"))
            return
        self._screen.remark(f"left at once; {self._turn.id} ends when the store is next opened: {self._hint('resume')}")
        sys.stdout.flush()
        os._exit(INTERRUPTED)  # whatever still runs here must not hold it up; the store bears it

    def _leave(self) -> None:
        if not self._left.done():
            self._left.set_result(None)


def hint(path: Path, command: str, *rest: str) -> str:
    """A command to type next, on the same store."""
    words = ["holdfast", command, *rest]
    if path != DEFAULT_STORE and not os.environ.get(ENVIRONMENT):
        words += ["--store", str(path)]
    return shlex.join(words)
