"""`holdfast run` and `holdfast resume`: ask an agent, or go on with what was asked."""

from __future__ import annotations

import asyncio
import errno
import importlib
import logging
import os
import signal
import stat
import subprocess
import sys
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from holdfast import events
from holdfast.agent import parse_answer, team_of
from holdfast.cli.agents import Reference, chosen, note, recorded
from holdfast.cli.approvals import Unasked, described, login, reason_of, title
from holdfast.cli.options import CallInvalid, Format, LogUnusable
from holdfast.cli.output import duration, one_line, printable, stderr, stdout
from holdfast.cli.profiles import prices
from holdfast.cli.sessions import find, find_session, last_turn, looking, new_id, open_waits, require_store, wait_label
from holdfast.cli.show import Follower, hint
from holdfast.errors import ApprovalClosed, ApprovalUnknown, JournalConflict, JournalMissing, UsageError
from holdfast.messages import AssistantMessage, ToolMessage, UserMessage
from holdfast.names import check_id
from holdfast.processes.tasks import ROLE
from holdfast.runtime import Runtime
from holdfast.runtime.runtime import LIVE
from holdfast.store import open_store

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator, Iterator
    from pathlib import Path

    from holdfast.agent import Agent
    from holdfast.cli.output import Terminal
    from holdfast.cli.sessions import Target
    from holdfast.cli.show import Followed
    from holdfast.events import Event
    from holdfast.messages import Message
    from holdfast.runtime import Turn, TurnOutcome
    from holdfast.runtime.approvals import Approval
    from holdfast.store import Store


class Screen(Protocol):
    """Where a turn is shown."""

    def event(self, event: Event) -> None:
        """Something happened in the turn."""
        ...

    def ended(self, outcome: TurnOutcome) -> None:
        """The turn has ended."""
        ...

    def waiting(self, session: str, turn: str, waits: tuple[str, ...]) -> None:
        """The turn can't go on until somebody answers."""
        ...

    def remark(self, text: str) -> None:
        """Something to tell beside the answer."""
        ...


def screen_for(format: Format) -> Screen:
    """The screen for an output format."""
    match format:
        case Format.text:
            return TextScreen(stdout(), stderr())
        case Format.json:
            return JsonScreen(stdout(), stderr())
        case Format.events:
            return EventScreen(stdout(), stderr())


class TextScreen:
    """The answer. On a terminal it comes as it is spoken, with a line for each tool call on the error stream."""

    def __init__(self, out: Terminal, err: Terminal) -> None:
        self._out = out
        self._err = err
        self._said = ""
        """The words of the present reply that are on the screen."""
        self._midline = False

    def event(self, event: Event) -> None:
        if self._out.live:
            self._speak(event)
        if self._err.live:
            self._tell(event)

    def _speak(self, event: Event) -> None:
        match event:
            case events.TextDelta():
                self._say(event.text)
                self._said += event.text
            case events.ModelStarted() | events.TurnResumed():
                self._begin_anew()
            case events.AttemptReset():
                self._begin_anew()
                self.remark(f"the reply begins anew: {one_line(event.reason)}")
            case events.MessageCommitted(message=AssistantMessage() as message):
                if message.text.startswith(self._said):
                    self._say(message.text[len(self._said) :])
                else:  # some of it was lost on the way
                    self._begin_anew()
                    self._say(message.text)
                self._begin_anew()
            case _:
                pass

    def _tell(self, event: Event) -> None:
        match event:
            case events.MessageCommitted(message=AssistantMessage() as message):
                for call in message.calls:
                    asked = one_line(msgspec.json.encode(call.arguments).decode(), 80)
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

    def _say(self, text: str) -> None:
        if text:
            self._out.write(self._out.clean(text))
            self._midline = not text.endswith("\n")

    def _begin_anew(self) -> None:
        self._said = ""
        self._end_line()

    def _end_line(self) -> None:
        if self._midline:
            self._out.write("\n")
            self._midline = False

    def ended(self, outcome: TurnOutcome) -> None:
        if not self._out.live and outcome.text:
            self._out.line(outcome.text)
        self._begin_anew()
        if not outcome.ok:
            told = (outcome.code, one_line(outcome.message, 500))
            why = ": ".join(part for part in told if part not in {"", outcome.status})
            said = self._err.status(outcome.status)
            self._err.line(f"{said}: {why}" if why else said)

    def waiting(self, session: str, turn: str, waits: tuple[str, ...]) -> None:  # noqa: ARG002  remarks say it
        self._begin_anew()

    def remark(self, text: str) -> None:
        self._end_line()
        self._err.line(self._err.paint(text, "dim"))


class JsonScreen:
    """One object at the end."""

    def __init__(self, out: Terminal, err: Terminal) -> None:
        self._out = out
        self._err = err

    def event(self, event: Event) -> None:
        pass

    def ended(self, outcome: TurnOutcome) -> None:
        told: dict[str, Any] = msgspec.to_builtins(msgspec.structs.replace(outcome, value=None))
        if outcome.value is not None:
            told["value"] = parse_answer(outcome.text)  # the answer itself: its type may have no JSON form of its own
        self._print(told)

    def waiting(self, session: str, turn: str, waits: tuple[str, ...]) -> None:
        self._print(
            {
                "session": session,
                "turn": turn,
                "status": "waiting",
                "waits": [{"name": name, "label": wait_label(name)} for name in waits],
            }
        )

    def _print(self, told: dict[str, Any]) -> None:
        self._out.line(msgspec.json.encode(told).decode())

    def remark(self, text: str) -> None:
        self._err.line(text)


class EventScreen:
    """Every event, one JSON object to a line, as it comes."""

    def __init__(self, out: Terminal, err: Terminal) -> None:
        self._out = out
        self._err = err

    def event(self, event: Event) -> None:
        self._out.line(events.encode(event).decode())

    def ended(self, outcome: TurnOutcome) -> None:
        pass

    def waiting(self, session: str, turn: str, waits: tuple[str, ...]) -> None:
        pass

    def remark(self, text: str) -> None:
        self._err.line(text)


class QuietScreen:
    """For a process that nobody watches: only how each turn ended, in its log."""

    def __init__(self, err: Terminal) -> None:
        self._err = err

    def event(self, event: Event) -> None:
        pass

    def ended(self, outcome: TurnOutcome) -> None:
        self._err.line(f"{outcome.session}/{outcome.turn} {outcome.status} {one_line(outcome.message)}".rstrip())

    def waiting(self, session: str, turn: str, waits: tuple[str, ...]) -> None:
        self._err.line(f"{session}/{turn} waits for {', '.join(map(wait_label, waits))}")

    def remark(self, text: str) -> None:
        self._err.line(text)


@dataclass(frozen=True, slots=True)
class Asked:
    """A call of `holdfast run`."""

    store: Path
    agent: str
    prompt: str
    session: str | None
    as_id: str | None
    key: str | None
    deadline: float | None
    steer: bool
    detach: bool
    format: Format


async def run(asked: Asked) -> int:
    """Ask the agent and show the answer; answers the exit code."""
    quiet_logs()
    if asked.key is not None and asked.session is None and asked.as_id is None:
        message = "--key is good within one session: name it with --session or --as"
        raise CallInvalid(message)
    reference = Reference.named(asked.agent)
    agent = reference.load()
    prompt = sys.stdin.read() if asked.prompt == "-" else asked.prompt
    async with opened(asked.store, asked.session) as store:
        session = await choose_session(store, asked.session, asked.as_id)
        await remember(asked.store, store, session, agent, reference)
        if asked.detach:
            return await _detach(store, asked, agent, session, prompt)
        async with Runtime(store, [agent], only=session, own_prices=prices()) as runtime:
            after = await _place(store, session, asked.key)
            turn = await _send(runtime, asked, agent, session, prompt)
            announce(session, turn.id)
            code = (await Follower(runtime, turn, screen_for(asked.format), asked.store).follow(after)).code
            if await _in_background(store, session):
                stderr().line(f"work goes on in the background: {hint(asked.store, 'resume', session)}")
            return code


@asynccontextmanager
async def opened(path: Path, session: str | None) -> AsyncGenerator[Store]:
    """The store, which is made if there is none; but a session to go on with can only be in one that is there."""
    if session is not None:
        require_store(path)
    async with open_store(path) as store:
        yield store


async def choose_session(store: Store, session: str | None, as_id: str | None) -> str:
    """The session that was meant: one that is there, one of this very name, or a new one."""
    if session is not None and as_id is not None:
        message = "--session continues a session, --as names one exactly: give one of them"
        raise CallInvalid(message)
    if session is not None:
        return (await find_session(store, session)).id
    return await new_id(store) if as_id is None else check_id("session", as_id)


async def remember(path: Path, store: Store, session: str, agent: Agent, reference: Reference) -> None:
    """Write down with which code a session is run, so that 'resume' finds it; not if the agent can't have it."""
    try:
        holder = (await store.journal(session)).agent
    except JournalMissing:
        holder = agent.name
    if holder in team_of(agent):
        note(path, session, reference)


def announce(session: str, turn: str | None = None) -> None:
    """On a terminal, say where the answer can be found again."""
    err = stderr()
    if err.live:
        err.line(err.paint(f"session {session}, {turn or '/help'}", "dim"))


async def _place(store: Store, session: str, key: str | None) -> int:
    """Behind which record the turn must be: the journal's end, unless it was asked before under this key."""
    try:
        line = await store.journal(session)
    except JournalMissing:
        return 0
    known = key is not None and await store.find_input(session, check_id("input key", key)) is not None
    return 0 if known else line.head


async def _send(runtime: Runtime, asked: Asked, agent: Agent, session: str, prompt: str) -> Turn:
    return await runtime.session(session, agent=agent).send(
        prompt, key=asked.key, steer=asked.steer, deadline=asked.deadline
    )


async def _detach(store: Store, asked: Asked, agent: Agent, session: str, prompt: str) -> int:
    with _log_of(asked.store) as log:  # before anything is accepted that no process would work on
        async with Runtime(store, [agent], drive=False) as runtime:
            turn = await _send(runtime, asked, agent, session, prompt)
        pid = _start(asked.store, session, log)
    if asked.format is Format.text:
        stdout().line(f"{session}/{turn.id}")
    else:
        told = {"session": session, "turn": turn.id, "pid": pid}
        stdout().line(msgspec.json.encode(told).decode())
    err = stderr()
    if err.live:
        watch = hint(asked.store, "logs", "-f", session)
        err.line(err.paint(f"process {pid} works on it; watch with: {watch}", "dim"))
    return 0


@contextmanager
def _log_of(store: Path) -> Generator[int]:
    """The log beside a store, open for more. A link or anything else that is no plain file is refused."""
    path = store.with_name(f"{store.name}.log")
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        log = os.open(path, flags, 0o600)
    except OSError as error:
        raise LogUnusable(path, "it is a link" if error.errno == errno.ELOOP else error.strerror or "") from error
    try:
        if not stat.S_ISREG(os.fstat(log).st_mode):
            raise LogUnusable(path, "it is no plain file")
        yield log
    finally:
        os.close(log)


def _start(store: Path, session: str, log: int) -> int:
    """A process of its own, in a session of its own: it survives the terminal. What it prints goes to the log.

    With -P: a file in the current folder must not stand in for a module of ours. Where the agent is found is recorded.
    """
    command = [sys.executable, "-P", "-m", "holdfast", "resume", "--unattended", "--store", str(store), "--yes"]
    started = subprocess.Popen(  # noqa: S603  our own program
        [*command, "--", session], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
    )
    started.returncode = 0  # nobody here waits for it
    return started.pid


async def resume(  # noqa: PLR0913
    path: Path, given: str, agent: str | None, format: Format, *, unattended: bool, detach: bool, yes: bool = False
) -> int:
    """Go on with a session until it has nothing left to do, or waits for somebody."""
    if unattended:
        handler = logging.StreamHandler()
        handler.setFormatter(_LogLines("%(asctime)s %(levelname)s %(message)s"))
        logging.basicConfig(level=logging.INFO, handlers=[handler])
    else:
        quiet_logs()
    async with looking(path) as found:
        target = await find(found.store, given)
        known = await recorded(path, found.store, target.line)
        idle = await last_turn(found.store, target.id) is None and not await _in_background(found.store, target.id)
    if idle:
        stderr().line(f"{target.id} has nothing to do")
        return 0
    reference = chosen(target.id, agent, known, yes=yes)
    loaded = reference.load()  # with `detach`, too: what is wrong with it is told here, not in the log
    if target.line.agent not in team_of(loaded):
        raise JournalConflict(target.id, f"a session of agent {target.line.agent!r}", f"one of {loaded.name!r}")
    if agent is not None:
        note(path, target.id, reference)
    if detach:
        with _log_of(path) as log:
            pid = _start(path, target.id, log)
        stderr().line(f"process {pid} goes on with {target.id}")
        return 0
    screen = QuietScreen(stderr()) if unattended else screen_for(format)
    return await _resume(path, target, loaded, screen, unattended=unattended)


async def _resume(path: Path, target: Target, agent: Agent, screen: Screen, *, unattended: bool) -> int:
    code = 0
    async with open_store(path) as store:
        # Before anything is done: what is left now may have ended before it is looked for again.
        head, left = (await store.journal(target.id)).head, await _left(store, target.id)
        async with Runtime(store, [agent], only=target.id, own_prices=prices()) as runtime:
            others = Unasked(runtime, target.id, path, head)
            while True:
                version = store.version
                followed = await others.show(screen)
                if followed is None:
                    # In the order in which work goes on, so that none slips through: what ends in the background begins
                    # a turn, and that may have ended before it was looked for.
                    busy = await _in_background(store, target.id)
                    left = left or await _left(store, target.id)
                    followed = await _follow(runtime, left, screen, path, others) or await others.show(screen)
                    left = None
                    if followed is None and not busy:
                        break
                if followed is None:
                    await store.changed(version, 0.5)
                    continue
                code = followed.code
                if followed.left:
                    break
                if followed.waits and not (unattended and await _answered(runtime.store, target.id)):
                    break
    return code


async def _in_background(store: Store, session: str) -> bool:
    """Whether tool calls of a session go on in the background, or it is still to hear how one ended."""
    for status in ("idle", "running"):  # in the order in which a task goes on
        if await store.journals(role=ROLE, session=session, status=status, limit=1):
            return True
    return bool(await store.next_notifications(session, 1))


@dataclass(frozen=True)
class _Left:
    """The last turn of a session that is left to do."""

    session: str
    turn: str
    head: int
    """Where the journal ended."""
    entered: bool
    """Whether its beginning is before that."""


async def _left(store: Store, session: str) -> _Left | None:
    head = (await store.journal(session)).head
    turn = await last_turn(store, session)
    if turn is None:
        return None
    queued = {found.input for found in await store.pending(session)}
    return _Left(session, turn, head, int(turn[1:]) not in queued)


async def _follow(runtime: Runtime, left: _Left | None, screen: Screen, path: Path, others: Unasked) -> Followed | None:
    """Follow a turn to its end; None when there is none."""
    if left is None:
        return None
    others.saw(left.turn)
    reason = await reason_of(runtime.store, left.session, left.turn)
    if reason is not None:
        screen.remark(reason)
    handle = runtime.session(left.session).turn(left.turn)
    return await Follower(runtime, handle, screen, path).follow(left.head, left.turn if left.entered else None)


async def _answered(store: Store, session: str) -> bool:
    """Wait for what a timer will end, if one will; False when only a person can."""
    while waits := await open_waits(store, session):
        version = store.version
        timers = [wait for wait in await store.waits(session) if wait.state == "open" and wait.deadline is not None]
        timers = [wait for wait in timers if wait.kind is None]  # what is asked of a person no timer answers in time
        if not timers:
            return False
        if waits == await open_waits(store, session):
            await store.changed(version, 1.0)
    return True


class _LogLines(logging.Formatter):
    """Lines of the log of detached runs, which somebody reads on a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def quiet_logs() -> None:
    """What the runtime has to say to operators is told here in another way."""
    logging.getLogger("holdfast").addHandler(logging.NullHandler())


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
