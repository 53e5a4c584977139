"""Printing turns while they run: screens for each output format, and the follower that feeds them."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast import events
from holdfast.agent import parse_answer
from holdfast.cli.options import EXITS, INTERRUPTED, TERMINATED, WAITING, Format, hint
from holdfast.cli.output import duration, json_text, one_line, printable, reason_text, stderr, stdout
from holdfast.cli.sessions import approval_of_wait, open_waits, wait_label
from holdfast.errors import JournalMissing
from holdfast.eventloop import spawn
from holdfast.events import TERMINAL, InputAccepted, TurnStarted, TurnWaiting
from holdfast.messages import AssistantMessage
from holdfast.records import Admitted, Ended, Started
from holdfast.runtime.session_records import read_page
from holdfast.turns import keys
from holdfast.turns.conversation import UserInput, decode_input

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.events import Event
    from holdfast.runtime.runtime import Runtime
    from holdfast.runtime.turn import Turn, TurnOutcome
    from holdfast.store import Store


class Screen:
    """Prints a turn. This one prints only remarks."""

    def __init__(self) -> None:
        self._out = stdout()
        self._err = stderr()

    def event(self, event: Event) -> None:
        """Print an event of the turn."""

    def ended(self, outcome: TurnOutcome) -> None:
        """Print the outcome."""

    def waiting(self, session: str, turn: str, waits: tuple[str, ...]) -> None:
        """Print what the turn waits for."""

    def remark(self, text: str) -> None:
        """Print a remark beside the answer."""
        self._err.line(text)


class TextScreen(Screen):
    """Prints the answer. On a terminal it is streamed, with a line for each tool call on the error stream."""

    def __init__(self) -> None:
        super().__init__()
        self._printed = ""
        """The part of the present reply that is on the screen."""
        self._midline = False

    def event(self, event: Event) -> None:
        if self._out.live:
            self._print_reply(event)
        if self._err.live:
            self._print_calls(event)

    def _print_reply(self, event: Event) -> None:
        match event:
            case events.TextDelta():
                self._write(event.text)
                self._printed += event.text
            case events.ModelStarted() | events.TurnResumed():
                self._start_reply()
            case events.AttemptReset():
                self._start_reply()
                self.remark(f"the reply begins anew: {one_line(event.reason)}")
            case events.MessageCommitted(message=AssistantMessage() as message):
                if message.text.startswith(self._printed):
                    self._write(message.text[len(self._printed) :])
                else:  # some events were lost
                    self._start_reply()
                    self._write(message.text)
                self._start_reply()
            case _:
                pass

    def _print_calls(self, event: Event) -> None:
        match event:
            case events.MessageCommitted(message=AssistantMessage() as message):
                for call in message.calls:
                    asked = one_line(json_text(call.arguments), 80)
                    self.remark(f"-> {one_line(call.name, 40)} {asked}")
            case events.ToolCallProgress():
                share = "" if event.fraction is None else f" {event.fraction:.0%}"
                self.remark(f".. {event.tool}{share} {one_line(event.note or '', 80)}".rstrip())
            case events.HandedOff():
                self.remark(f"=> {one_line(event.agent, 40)} has the session: {one_line(event.reason, 80)}")
            case events.ToolCallFinished():
                self.remark(f"<- {event.tool} {event.state}, {duration(event.ms)}")
            case _:
                pass

    def _write(self, text: str) -> None:
        if text:
            self._out.write(printable(text))
            self._midline = not text.endswith("\n")

    def _start_reply(self) -> None:
        self._printed = ""
        self._end_line()

    def _end_line(self) -> None:
        if self._midline:
            self._out.write("\n")
            self._midline = False

    def ended(self, outcome: TurnOutcome) -> None:
        if not self._out.live and outcome.text:
            self._out.line(outcome.text)
        self._start_reply()
        if not outcome.ok:
            status, message = self._err.status(outcome.status), one_line(outcome.message, 500)
            self._err.line(reason_text(status, outcome.status, outcome.code, message))

    def waiting(self, session: str, turn: str, waits: tuple[str, ...]) -> None:  # noqa: ARG002  remarks say it
        self._start_reply()

    def remark(self, text: str) -> None:
        self._end_line()
        self._err.line(self._err.paint(text, "dim"))


class JsonScreen(Screen):
    """Prints one object at the end."""

    def ended(self, outcome: TurnOutcome) -> None:
        fields: dict[str, Any] = msgspec.to_builtins(msgspec.structs.replace(outcome, value=None))
        if outcome.value is not None:
            fields["value"] = parse_answer(outcome.text)  # the answer itself: its type may have no JSON form of its own
        self._out.json(fields)

    def waiting(self, session: str, turn: str, waits: tuple[str, ...]) -> None:
        labels = [{"name": name, "label": wait_label(name)} for name in waits]
        self._out.json({"session": session, "turn": turn, "status": "waiting", "waits": labels})


class EventScreen(Screen):
    """Prints every event as it comes, one JSON object to a line."""

    def event(self, event: Event) -> None:
        self._out.line(events.encode(event).decode())


class QuietScreen(Screen):
    """Prints one line for each turn to the log of a detached run."""

    def ended(self, outcome: TurnOutcome) -> None:
        self._err.line(f"{outcome.session}/{outcome.turn} {outcome.status} {one_line(outcome.message)}".rstrip())

    def waiting(self, session: str, turn: str, waits: tuple[str, ...]) -> None:
        self._err.line(f"{session}/{turn} waits for {', '.join(map(wait_label, waits))}")


SCREENS: Final = {Format.text: TextScreen, Format.json: JsonScreen, Format.events: EventScreen}


# ---- following a turn ------------------------------------------------------------------------------------------------


_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(slots=True)
class FollowResult:
    """The exit code of a turn, its open waits, and whether a signal stopped the follower."""

    code: int
    waits: tuple[str, ...] = ()
    left: bool = False


class TurnFollower:
    """Prints one turn. The first Ctrl-C cancels it, the second leaves at once; SIGTERM leaves it where it is."""

    def __init__(self, runtime: Runtime, turn: Turn, screen: Screen, path: Path, *, asks: bool = False) -> None:
        self._asks = asks
        """Whether the caller asks about approvals itself, so that no command is printed for them."""
        self._runtime = runtime
        self._turn = turn
        self._screen = screen
        self._path = path
        self._number = keys.input_number(turn.id)
        self._left: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._cancelling: asyncio.Task[object] | None = None

    async def follow(self, after: int, run: str | None = None) -> FollowResult:
        """Print the events behind record `after`. `run` is the turn, if its beginning was before that."""
        waits = await open_waits(self._runtime.store, self._turn.session)
        if waits:
            return self._waiting(waits)
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._interrupt if number is signal.SIGINT else self._leave)
        pump, outcome = spawn(self._pump(after, run)), spawn(self._turn.outcome())
        try:
            return await self._watch(pump, outcome)
        finally:
            tasks: list[asyncio.Task[Any] | None] = [pump, outcome, self._cancelling]
            for task in filter(None, tasks):
                task.cancel()
            await asyncio.gather(*filter(None, tasks), return_exceptions=True)
            for number in _SIGNALS:
                loop.remove_signal_handler(number)

    async def _watch(self, pump: asyncio.Task[tuple[str, ...]], outcome: asyncio.Task[TurnOutcome]) -> FollowResult:
        await asyncio.wait({pump, outcome, self._left}, return_when=asyncio.FIRST_COMPLETED)
        if self._left.done():
            self._screen.remark(f"{self._turn.id} was left where it is; go on with: {self._hint('resume')}")
            return FollowResult(TERMINATED, left=True)
        if pump.done() and (waits := pump.result()):
            return self._waiting(waits)
        ended = await outcome
        await asyncio.wait({pump}, timeout=5.0)  # for the last events
        self._screen.ended(ended)
        return FollowResult(EXITS[ended.status])

    async def _pump(self, after: int, run: str | None) -> tuple[str, ...]:
        """Print the events of the turn until it ends; returns the waits of the session if it was parked."""
        started: TurnStarted | None = None
        async for event in self._runtime.session(self._turn.session).events(after):
            if run is None and isinstance(event, InputAccepted) and event.input == self._number:
                run = event.turn
                if started is not None and started.turn == run:
                    self._screen.event(started)
            if isinstance(event, TurnStarted):
                started = event
            if run is not None and event.turn in {run, None}:
                self._screen.event(event)
                if event.turn == run and isinstance(event, TERMINAL):
                    return ()
            if isinstance(event, TurnWaiting):
                waits = await open_waits(self._runtime.store, self._turn.session)
                if waits:
                    return waits
        return ()

    def _waiting(self, waits: tuple[str, ...]) -> FollowResult:
        session = self._turn.session
        self._screen.waiting(session, self._turn.id, waits)
        if self._asks and all(approval_of_wait(name) is not None for name in waits):
            return FollowResult(WAITING, waits)
        for name in waits:
            owner = name.partition("/")[0]
            behind = "" if owner == self._turn.id else f" ({self._turn.id} comes after it)"
            approval = approval_of_wait(name)
            if approval is None:
                what, answer = repr(wait_label(name)), self._hint("resolve", wait_label(name), "JSON")
            else:
                what, answer = f"approval of {approval.tool}", hint(self._path, "approve", approval.id)
            self._screen.remark(f"{owner} waits for {what}{behind}; answer with: {answer}")
        self._screen.remark(f"then go on with: {self._hint('resume')}")
        return FollowResult(WAITING, waits)

    def _hint(self, command: str, *rest: str) -> str:
        return hint(self._path, command, self._turn.session, *rest)

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


# ---- turns that notifications started --------------------------------------------------------------------------------


async def remark_reason(screen: Screen, store: Store, session: str, turn: str) -> None:
    """Print the notifications that started a turn, in one line; nothing if an input started it."""
    number = keys.input_number(turn)
    # It is among the newest ones: the session has just taken it.
    newest = await store.notifications(session, limit=store.limits.page)
    found = [notice for notice in newest if notice.input == number][::-1]
    if not found:
        return
    parts = [f"notification {notice.id}, {one_line(notice.title, 80)}" for notice in found[:3]]
    if len(found) > len(parts):
        parts.append(f"and {len(found) - len(parts):,} more")
    screen.remark(f"{turn} began by itself: {'; '.join(parts)}")


class SelfStartedTurns:
    """The turns of one session that notifications started since record `head`; each is printed once."""

    def __init__(self, runtime: Runtime, session: str, path: Path, head: int) -> None:
        self._runtime = runtime
        self._session = session
        self._path = path
        self._head = head
        self._starts: dict[str, int] = {}
        """The record before the start of each turn."""
        self._ended: set[str] = set()
        self._seen: set[str] = set()
        self._pending: deque[str] = deque()

    def skip(self, turn: str) -> None:
        """Do not print this turn: it is printed elsewhere."""
        self._seen.add(turn)

    async def show(self, screen: Screen) -> FollowResult | None:
        """Print the next one, with the reason why it began; None if there is none now."""
        await self._read()
        while self._pending:
            turn = self._pending.popleft()
            if turn not in self._seen:
                self._seen.add(turn)
                return await self._show(turn, screen)
        return None

    async def _show(self, turn: str, screen: Screen) -> FollowResult:
        await remark_reason(screen, self._runtime.store, self._session, turn)
        handle = self._runtime.session(self._session).turn(turn)
        if turn not in self._ended:
            return await TurnFollower(self._runtime, handle, screen, self._path).follow(self._starts[turn], turn)
        async for event in self._runtime.session(self._session).events(self._starts[turn]):
            if event.turn == turn:
                screen.event(event)
                if isinstance(event, TERMINAL):
                    break
        outcome = await handle.outcome()
        screen.ended(outcome)
        return FollowResult(EXITS[outcome.status])

    async def _read(self) -> None:
        try:
            while page := await read_page(self._runtime.store, self._session, self._head):
                for seq, record in page:
                    match record:
                        case Started():
                            self._starts[record.run] = seq - 1
                        case Admitted() if record.run == keys.turn_id(record.input):  # else it enters a turn that runs
                            taken = decode_input(bytes(record.body))
                            if isinstance(taken, UserInput) and taken.origin == "holdfast":
                                self._pending.append(keys.turn_id(record.input))
                        case Ended():
                            self._ended.add(record.run)
                        case _:
                            pass
                self._head = page[-1][0]
        except JournalMissing:  # the session has no input yet
            return
