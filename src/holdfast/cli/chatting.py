"""`holdfast chat`: a conversation on the terminal, or line by line from a pipe."""

from __future__ import annotations

import asyncio
import importlib
import os
import signal
import sys
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final

from holdfast.cli.agent_references import Reference
from holdfast.cli.approving import login
from holdfast.cli.following import Follower, hint
from holdfast.cli.profiled import prices
from holdfast.cli.question import described, title
from holdfast.cli.running import announce, choose_session, opened, quiet_logs, remember
from holdfast.cli.screen import TextScreen
from holdfast.cli.sessions import open_waits
from holdfast.cli.terminal import stderr, stdout
from holdfast.cli.unasked import Unasked
from holdfast.errors import ApprovalClosed, ApprovalUnknown, JournalMissing, UsageError
from holdfast.messages import AssistantMessage, ToolMessage, UserMessage
from holdfast.runtime import Runtime
from holdfast.runtime.runtime import LIVE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from holdfast.agent import Agent
    from holdfast.messages import Message
    from holdfast.runtime import Turn
    from holdfast.runtime.approving import Approval
    from holdfast.store import Store

_HELP: Final = "/history shows what was said, /quit leaves (so does Ctrl-D); Ctrl-C stops an answer"
_QUESTION: Final = "make this call? yes, no [REASON], later: "
_PAUSE: Final = 0.01
_PATIENCE: Final = 1.0
"""How long a notification that is ready may take to begin its turn, in seconds; a gate may keep it back."""


class Talk:
    """One conversation. The event loop runs only while an answer is on its way, so that lines can be edited."""

    def __init__(self, path: Path, reference: Reference, agent: Agent) -> None:
        self._path = path
        self._reference = reference
        self._agent = agent
        self._stack = AsyncExitStack()
        self._runtime: Runtime
        self._others: Unasked
        self._asks = sys.stdin.isatty() and sys.stdout.isatty()
        """Whether there is somebody to ask about approvals."""
        self._waiting: tuple[Turn, int] | None = None
        """The turn that was left to wait, and the record behind which it goes on."""
        self.session = ""
        self.code = 0
        """How the last turn came out."""

    async def begin(self, session: str | None, as_id: str | None) -> None:
        """Open the store and the session."""
        store = await self._stack.enter_async_context(opened(self._path, session))
        try:
            self.session = await choose_session(store, session, as_id)
            await remember(self._path, store, self.session, self._agent, self._reference)
            runtime = Runtime(store, [self._agent], only=self.session, own_prices=prices(), inline_budget=LIVE)
            head = await _head(store, self.session)  # before anything is done
            self._runtime = await self._stack.enter_async_context(runtime)
            self._others = Unasked(runtime, self.session, self._path, head)
        except BaseException:
            await self._stack.aclose()
            raise

    async def say(self, text: str) -> bool:
        """One turn; False when the process was told to leave meanwhile."""
        if not await self.go_on() or not await self._rest():
            return False
        handle = self._runtime.session(self.session, agent=self._agent)
        head = await _head(self._runtime.store, self.session)
        turn = await handle.send(text)
        return await self._follow(turn, head, None) and await self._rest()

    async def go_on(self) -> bool:
        """Ask about approvals that are open, and show the rest of a turn that was left to wait for one."""
        store = self._runtime.store
        if self._waiting is None:
            head = await _head(store, self.session)
            waits = await open_waits(store, self.session) if head else ()
            if not waits or not self._asks or not await self._runtime.approvals(self.session):
                return True
            owner = waits[0].partition("/")[0]
            self._waiting = self._runtime.session(self.session).turn(owner), head
            if not await self._ask():
                return True
        elif await open_waits(store, self.session):
            return True
        turn, head = self._waiting
        return await self._follow(turn, head, turn.id)

    async def _follow(self, turn: Turn, head: int, run: str | None) -> bool:
        """Show a turn to its end; False when told to leave. What it asks a person for is asked here."""
        store = self._runtime.store
        while True:
            screen = TextScreen(stdout(), stderr())
            followed = await Follower(self._runtime, turn, screen, self._path, asks=self._asks).follow(head, run)
            self.code, self._waiting = followed.code, None
            if followed.left or not followed.waits:
                return not followed.left
            head = await _head(store, self.session)
            owner = followed.waits[0].partition("/")[0]
            before = self._runtime.session(self.session).turn(owner)
            self._waiting = before, head
            if not self._asks or not await self._ask():
                return True
            run = owner if owner == turn.id else None
            if run is None and not await self._follow(before, head, owner):
                return False
            if run is None and self._left():
                return True

    def _left(self) -> bool:
        return self._waiting is not None

    async def _ask(self) -> bool:
        """Ask about each approval of the session; False when one is left open, or something else is waited for."""
        while approvals := await self._runtime.approvals(self.session):
            if not await self._answered(approvals[0]):
                return False
        return not await open_waits(self._runtime.store, self.session)

    async def _answered(self, approval: Approval) -> bool:
        """Ask about one approval until it is answered, here or elsewhere; False when it is left for later."""
        out, runtime = stdout(), self._runtime
        lines = [title(out, approval, runtime.store.clock.read().wall)]
        lines += described(out, approval, self._path, whole=True)
        out.write("".join(f"{line}\n" for line in lines))
        while True:
            out.write(_QUESTION)
            typed = await self._typed(approval)
            if typed is None:
                out.line("\nit was answered elsewhere")
                return True
            word, _, reason = typed.strip().partition(" ")
            try:
                match word.lower():
                    case "y" | "yes":
                        await runtime.approve(approval.id, by=login(), digest=approval.digest)
                        return True
                    case "n" | "no":
                        await runtime.deny(approval.id, reason.strip(), by=login())
                        return True
                    case "l" | "later":
                        out.line(f"it waits; {hint(self._path, 'approve', approval.id)} answers it, too")
                        return False
                    case _:
                        continue
            except (ApprovalClosed, ApprovalUnknown) as error:
                out.line(str(error))
                return True

    async def _typed(self, approval: Approval) -> str | None:
        """The next line that is typed; None when the approval is answered elsewhere before."""
        loop, store = asyncio.get_running_loop(), self._runtime.store
        line: asyncio.Future[str] = loop.create_future()
        number = sys.stdin.fileno()

        def read() -> None:
            if not line.done():
                line.set_result(_line(number))

        def leave() -> None:
            if not line.done():
                stdout().line()
                line.set_result("later")

        loop.add_reader(number, read)
        loop.add_signal_handler(signal.SIGINT, leave)
        try:
            while not line.done():
                version = store.version
                if all(found.id != approval.id for found in await self._runtime.approvals(self.session)):
                    return line.result() if line.done() else None
                changed = asyncio.ensure_future(store.changed(version, None))
                await asyncio.wait({line, changed}, return_when=asyncio.FIRST_COMPLETED)
                changed.cancel()
                await asyncio.gather(changed, return_exceptions=True)
            return line.result()
        finally:
            loop.remove_reader(number)
            loop.remove_signal_handler(signal.SIGINT)

    async def _rest(self) -> bool:
        """Wait until nothing goes on here, and show the turns that begin by themselves; False when told to leave.

        The leases must be given back before the loop stands still.
        """
        store, seen, idle, about = self._runtime.store, -1, 0.0, False
        while True:
            # In the order in which work goes on, so that none slips through: what is to be told begins a turn, and that
            # may have ended before it was looked for.
            version = store.version
            about = await self._to_be_told() if version != seen else about
            active = self._runtime.active
            if version != seen or not active:
                followed = await self._others.show(TextScreen(stdout(), stderr()))
                if followed is not None:
                    if followed.left:
                        return False
                    continue
                seen = version
            if not active and (not about or idle >= _PATIENCE):
                return True
            idle = 0.0 if active else idle + _PAUSE
            await asyncio.sleep(_PAUSE)  # no event tells

    async def _to_be_told(self) -> bool:
        """Whether a turn is about to begin by itself."""
        store = self._runtime.store
        try:
            waits = (await store.journal(self.session)).status == "waiting"
            return not waits and bool(await store.next_notifications(self.session, 1))
        except JournalMissing:  # nothing was ever said
            return False

    async def history(self) -> list[str]:
        """What was said, as lines."""
        try:
            said = await self._runtime.session(self.session).history()
        except JournalMissing:
            return []
        return [line for message in said for line in _told(message)]

    async def end(self) -> None:
        """Let go of the store."""
        await self._stack.aclose()


def _line(number: int) -> str:
    """The line that a terminal has ready, and no byte more: the rest is for the line editor. "later" at the end."""
    found = b""
    while not found.endswith(b"\n"):
        byte = os.read(number, 1)
        if not byte:
            return "later"
        found += byte
    return found.decode(errors="replace")


async def _head(store: Store, session: str) -> int:
    """Where the journal of a session ends."""
    try:
        return (await store.journal(session)).head
    except JournalMissing:
        return 0


def chat(path: Path, reference: str, session: str | None, as_id: str | None) -> int:
    """Talk to an agent until the end of the input."""
    quiet_logs()
    named = Reference.named(reference)
    talk = Talk(path, named, named.load())
    with asyncio.Runner() as runner:
        runner.run(talk.begin(session, as_id))
        try:
            announce(talk.session)
            if not runner.run(talk.go_on()):
                return talk.code
            for line in _lines():
                if not _heed(runner, talk, line):
                    break
        finally:
            runner.run(talk.end())
    return 0 if sys.stdin.isatty() else talk.code


def _heed(runner: asyncio.Runner, talk: Talk, line: str) -> bool:
    """Do what a line says; False when it is the last one."""
    out, err = stdout(), stderr()
    match line.strip():
        case "":
            return True
        case "/quit" | "/exit":
            return False
        case "/help":
            err.line(_HELP)
        case "/history":
            out.write("".join(f"{out.clean(text)}\n" for text in runner.run(talk.history())))
        case word if word.startswith("/") and word[1:].isalpha():
            err.line(f"there is no command {word}; {_HELP}")
        case text:
            try:
                return runner.run(talk.say(text))
            except UsageError as error:
                if not sys.stdin.isatty():
                    raise
                err.line(f"{err.status('error')}: {error}")
    return True


def _lines() -> Iterator[str]:
    """What is typed, with editing on a terminal; or what comes through the pipe."""
    if not sys.stdin.isatty():
        while line := sys.stdin.readline():  # `yield from` would close it when the conversation ends before it does
            yield line
        return
    importlib.import_module("readline")  # makes input() a line editor
    while True:
        try:
            yield input("> ")
        except EOFError:
            stderr().line()
            return
        except KeyboardInterrupt:
            stderr().line("\n/quit leaves")


def _told(message: Message) -> Iterator[str]:
    match message:
        case UserMessage():
            yield f"{'you' if message.origin == 'user' else message.origin}: {message.text}"
        case AssistantMessage():
            if message.text:
                yield f"agent: {message.text}"
            for call in message.calls:
                yield f"  -> {call.name}"
        case ToolMessage():
            for result in message.results:
                yield f"  <- {result.name} {result.state}"
