"""`holdfast run`, `resume` and `chat`: ask an agent, and print its turns while they run."""

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
from collections import deque
from collections.abc import AsyncGenerator, Generator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer

from holdfast import errors, eventloop, events, names
from holdfast.agent import Agent, parse_answer, team_of
from holdfast.cli import agents, options, profiles, sessions
from holdfast.cli.approvals import approval_title, describe_approval, login
from holdfast.cli.options import DEFAULT_STORE, CallInvalid, Format, flag, hint, option
from holdfast.cli.output import duration, json_text, one_line, printable, reason_text, stderr, stdout
from holdfast.deps import provide_deps
from holdfast.messages import AssistantMessage, ToolMessage, UserMessage
from holdfast.processes.keys import TASK_ROLE
from holdfast.records import Admitted, Ended, Started
from holdfast.runtime.approvals import Approval
from holdfast.runtime.runtime import LIVE, Runtime
from holdfast.runtime.session_records import read_page, read_present
from holdfast.runtime.turn import Turn, TurnOutcome
from holdfast.store import Store, open_store
from holdfast.turns import keys
from holdfast.turns.conversation import UserInput, decode_input

DetachOption = Annotated[bool, flag("Return at once; another process does the work.", "--detach", "-d")]


# ---- run -------------------------------------------------------------------------------------------------------------

_PROMPT: Final = "The prompt; '-' reads it from standard input. It alone is enough with the agent of a profile."


async def run(
    agent: options.AgentName,
    prompt: Annotated[str | None, typer.Argument(help=_PROMPT, show_default=False)] = None,
    *,
    session: options.Session = None,
    as_id: options.As = None,
    key: Annotated[
        str | None, option("KEY", "The same key with the same prompt is one turn, also if sent twice.")
    ] = None,
    output: options.Output = Format.text,
    detach: DetachOption = False,
    steer: Annotated[bool, flag("Enter the turn that is running, if there is one.", "--steer")] = False,
    deadline: Annotated[float | None, option("SECONDS", "The turn must end within this time.")] = None,
    store: options.Store = DEFAULT_STORE,
) -> int:
    """Ask an agent, and print its answer.

    The prompt is in the store before anything is done about it. If this process is killed, 'holdfast resume' continues
    from the same step. Ctrl-C cancels the turn; pressed again, it leaves at once.

    Exit codes: 0 completed, 1 failed, 2 wrong call, 3 waits for a person, 4 cancelled, 5 limit reached.
    """
    agent, prompt = profiles.agent_and_prompt(agent, prompt)
    silence_logs()
    if key is not None and session is None and as_id is None:
        raise CallInvalid("--key is good within one session: name it with --session or --as")
    reference = agents.AgentReference.parse(agent)
    loaded = reference.load()
    text = sys.stdin.read() if prompt == "-" else prompt
    err = stderr()
    async with open_session(store, session, as_id, loaded, reference) as (opened, id):
        if detach:
            with _open_log(store) as log:  # before anything is accepted that no process would work on
                async with Runtime(opened, [loaded], drive=False) as runtime:
                    handle = runtime.session(id, agent=loaded)
                    turn = await handle.send(text, key=key, steer=steer, deadline=deadline)
                pid = _start_detached(store, id, log)
            report = {"session": id, "turn": turn.id, "pid": pid}
            options.Printer(as_json=output is not Format.text).print(report, f"{id}/{turn.id}")
            if err.live:
                watch = hint(store, "logs", "-f", id)
                err.line(err.paint(f"process {pid} works on it; watch with: {watch}", "dim"))
            return 0
        async with open_driver(opened, loaded, reference, id) as runtime:
            after = await _head(opened, id)
            if after and key is not None and await opened.find_input(id, names.check_id("input key", key)) is not None:
                after = 0  # the key was used before: its turn begins anywhere
            turn = await runtime.session(id, agent=loaded).send(text, key=key, steer=steer, deadline=deadline)
            _announce(id, turn.id)
            code = (await TurnFollower(runtime, turn, SCREENS[output](), store).follow(after)).code
            if await _in_background(opened, id):
                err.line(f"work goes on in the background: {hint(store, 'resume', id)}")
            return code


@asynccontextmanager
async def open_driver(
    store: Store, agent: Agent, reference: agents.AgentReference, session: str, inline_budget: float | None = None
) -> AsyncGenerator[Runtime]:
    """Drive one session with its agent and the dependencies that the agent's module names."""
    prices = profiles.profile_prices()
    async with (
        provide_deps(reference.deps()) as deps,
        Runtime(store, [agent], only=session, own_prices=prices, inline_budget=inline_budget, deps=deps) as runtime,
    ):
        yield runtime


@asynccontextmanager
async def open_session(
    path: Path, session: str | None, as_id: str | None, agent: Agent, reference: agents.AgentReference
) -> AsyncGenerator[tuple[Store, str]]:
    """Open or create the store, and choose the session of --session or --as, or a new one.

    The reference of the agent is recorded for 'resume', unless the session belongs to another agent.
    """
    if session is not None:
        options.require_store(path)
        if as_id is not None:
            raise CallInvalid("--session continues a session, --as names one exactly: give one of them")
    async with open_store(path) as store:
        if session is not None:
            id = (await sessions.find_session(store, session)).id
        else:
            id = await sessions.new_session_id(store) if as_id is None else names.check_id("session", as_id)
        try:
            holder = (await store.journal(id)).agent
        except errors.JournalMissing:
            holder = agent.name
        if holder in team_of(agent):
            agents.record_reference(path, id, reference)
        yield store, id


def _announce(session: str, turn: str) -> None:
    """Print session and turn on a terminal, so that the user can find the answer again."""
    err = stderr()
    if err.live:
        err.line(err.paint(f"session {session}, {turn}", "dim"))


@contextmanager
def _open_log(store: Path) -> Generator[int]:
    """Open the log next to a store to append to it. Refuses links and all but plain files."""
    path = store.with_name(f"{store.name}.log")
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    problem = f"nothing is run in the background: its log {path} can't be used"
    try:
        log = os.open(path, flags, 0o600)
    except OSError as error:
        reason = "it is a link" if error.errno == errno.ELOOP else error.strerror
        raise CallInvalid(f"{problem}: {reason}; remove it") from error
    with os.fdopen(log, "wb", buffering=0):
        if not stat.S_ISREG(os.fstat(log).st_mode):
            raise CallInvalid(f"{problem}: it is no plain file; remove it")
        yield log


def _start_detached(store: Path, session: str, log: int) -> int:
    """Start `holdfast resume` as a process that survives the terminal and prints to the log; returns its pid.

    With -P, because a file in the current folder must not replace a module of ours.
    """
    command = [sys.executable, "-P", "-m", "holdfast", "resume", "--unattended", "--store", str(store), "--yes"]
    process = subprocess.Popen(  # noqa: S603  our own program
        [*command, "--", session], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
    )
    process.returncode = 0  # no warning that it still runs
    return process.pid


# ---- resume ----------------------------------------------------------------------------------------------------------


async def resume(
    id: options.TurnId,
    *,
    agent: options.Agent = None,
    yes: options.Yes = False,
    output: options.Output = Format.text,
    detach: DetachOption = False,
    unattended: Annotated[bool, typer.Option("--unattended", hidden=True)] = False,
    store: options.Store = DEFAULT_STORE,
) -> int:
    """Continue a session that was interrupted, queued or answered, until it has nothing left to do.

    Exit codes as for 'run', for the last turn.
    """
    if unattended:
        handler = logging.StreamHandler()
        handler.setFormatter(_LogFormatter("%(asctime)s %(levelname)s %(message)s"))
        logging.basicConfig(level=logging.INFO, handlers=[handler])
    else:
        silence_logs()
    async with sessions.view_runtime(store) as found:
        target = await sessions.find_target(found.store, id)
        recorded = await agents.recorded_reference(store, found.store, target.line)
        open_turn = await sessions.last_open_turn(found.store, target.id)
        idle = open_turn is None and not await _in_background(found.store, target.id)
    if idle:
        stderr().line(f"{target.id} has nothing to do")
        return 0
    reference = agents.choose_reference(target.id, agent, recorded, yes=yes)
    loaded = reference.load()  # also with `detach`: a broken agent is reported here, not in the log
    if target.line.agent not in team_of(loaded):
        raise errors.JournalConflict(target.id, f"a session of agent {target.line.agent!r}", f"one of {loaded.name!r}")
    if agent is not None:
        agents.record_reference(store, target.id, reference)
    if detach:
        with _open_log(store) as log:
            pid = _start_detached(store, target.id, log)
        stderr().line(f"process {pid} goes on with {target.id}")
        return 0
    screen = QuietScreen() if unattended else SCREENS[output]()
    return await _resume(store, target, loaded, reference, screen, unattended=unattended)


async def retry(
    id: options.TurnId,
    *,
    from_step: Annotated[
        int | None, option("N", "Do it again from its N-th model call on, in a fork of the session.", "--from", min=1)
    ] = None,
    key: Annotated[str | None, option("KEY", "The same key again is the same retry.")] = None,
    repeat_unknown: Annotated[
        bool, flag("With --from, also repeat calls with an unknown outcome.", "--repeat-unknown")
    ] = False,
    agent: options.Agent = None,
    yes: options.Yes = False,
    output: options.Output = Format.text,
    detach: DetachOption = False,
    store: options.Store = DEFAULT_STORE,
) -> int:
    """Try a turn again that failed, was cancelled or reached a limit, and print its answer.

    It goes on where it stopped, and nothing that was done is done again. Without /TURN it is the last turn.

    Exit codes as for 'run'.
    """
    silence_logs()
    async with sessions.edit_runtime(store) as runtime:
        target = await sessions.find_target(runtime.store, id)
        number = target.turn or (await read_present(runtime.store, target.id)).last
        turn = (
            await runtime.session(target.id)
            .turn(number)
            .retry(from_step=from_step, key=key, repeat_unknown=repeat_unknown)
        )
    _announce(turn.session, turn.id)
    return await resume(turn.session, agent=agent, yes=yes, output=output, detach=detach, store=store)


async def _resume(
    path: Path,
    target: sessions.TurnTarget,
    agent: Agent,
    reference: agents.AgentReference,
    screen: Screen,
    *,
    unattended: bool,
) -> int:
    """Print the turns of a session until nothing is left to do, or it waits for a person."""
    code = 0
    async with open_store(path) as store:
        # Read before anything is driven: the turn may end before the first look at it.
        head, left = (await store.journal(target.id)).head, await _read_unfinished(store, target.id)
        async with open_driver(store, agent, reference, target.id) as runtime:
            others = SelfStartedTurns(runtime, target.id, path, head)
            while True:
                version = store.version
                followed = await others.show(screen)
                if followed is None:
                    # In this order, so that no turn is missed: a background call that ends starts a turn, and that turn
                    # may end before the next look.
                    busy = await _in_background(store, target.id)
                    left = left or await _read_unfinished(store, target.id)
                    followed = await (others.show(screen) if left is None else others.follow(screen, *left))
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
    """True if tool calls of a session run in the background, or their notifications are not delivered yet."""
    for status in ("idle", "running"):  # in the order of a task's progress
        if await store.journals(role=TASK_ROLE, session=session, status=status, limit=1):
            return True
    return bool(await store.next_notifications(session, 1))


async def _read_unfinished(store: Store, session: str) -> tuple[str, int, str | None] | None:
    """The unfinished turn, the last record of the journal, and the turn again if it began before that."""
    head = (await store.journal(session)).head
    turn = await sessions.last_open_turn(store, session)
    if turn is None:
        return None
    queued = {found.input for found in await store.pending(session)}
    return turn, head, None if int(turn[1:]) in queued else turn


async def _answered(store: Store, session: str) -> bool:
    """Wait for the timers of the open waits; False if only a person can answer one."""
    version = store.version
    while await sessions.open_waits(store, session):
        waits = await store.waits(session, state="open")
        if all(wait.deadline is None or wait.kind is not None for wait in waits):  # an expired approval is no answer
            return False
        await store.changed(version, 1.0)
        version = store.version
    return True


class _LogFormatter(logging.Formatter):
    """Escapes the log of detached runs for terminals."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def silence_logs() -> None:
    """Keep warnings of the runtime off the terminal: the screens print the important ones."""
    logging.getLogger("holdfast").addHandler(logging.NullHandler())


# ---- printing turns -------------------------------------------------------------------------------------------------


class Screen:
    """Prints a turn. This one prints only remarks."""

    def __init__(self) -> None:
        self._out = stdout()
        self._err = stderr()

    def event(self, event: events.Event) -> None:
        """Print an event of the turn."""

    def ended(self, outcome: TurnOutcome) -> None:
        """Print the outcome."""

    def waiting(self, session: str, turn: str, waits: tuple[str, ...]) -> None:
        """Print the waits of the turn."""

    def remark(self, text: str) -> None:
        self._err.line(text)


class TextScreen(Screen):
    """Prints the answer. On a terminal it is streamed, with a line for each tool call on the error stream."""

    def __init__(self) -> None:
        super().__init__()
        self._printed = ""
        """The part of the present reply that is on the screen."""
        self._midline = False

    def event(self, event: events.Event) -> None:
        if self._out.live:
            self._print_reply(event)
        if self._err.live:
            self._print_calls(event)

    def _print_reply(self, event: events.Event) -> None:
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

    def _print_calls(self, event: events.Event) -> None:
        match event:
            case events.MessageCommitted(message=AssistantMessage() as message):
                for call in message.calls:
                    self.remark(f"-> {one_line(call.name, 40)} {one_line(json_text(call.arguments), 80)}")
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

    def waiting(self, session: str, turn: str, waits: tuple[str, ...]) -> None:  # remarks say it
        self._start_reply()

    def remark(self, text: str) -> None:
        self._end_line()
        self._err.line(self._err.paint(text, "dim"))


class JsonScreen(Screen):
    """Prints one object at the end."""

    def ended(self, outcome: TurnOutcome) -> None:
        fields: dict[str, Any] = msgspec.to_builtins(msgspec.structs.replace(outcome, value=None))
        if outcome.value is not None:
            fields["value"] = parse_answer(outcome.text)  # the answer itself: its type may have no JSON form
        self._out.json(fields)

    def waiting(self, session: str, turn: str, waits: tuple[str, ...]) -> None:
        labels = [{"name": name, "label": sessions.wait_label(name)} for name in waits]
        self._out.json({"session": session, "turn": turn, "status": "waiting", "waits": labels})


class EventScreen(Screen):
    """Prints every event as it comes, one JSON object to a line."""

    def event(self, event: events.Event) -> None:
        self._out.line(events.encode(event).decode())


class QuietScreen(Screen):
    """Prints one line for each turn to the log of a detached run."""

    def ended(self, outcome: TurnOutcome) -> None:
        self._err.line(f"{outcome.session}/{outcome.turn} {outcome.status} {one_line(outcome.message)}".rstrip())

    def waiting(self, session: str, turn: str, waits: tuple[str, ...]) -> None:
        self._err.line(f"{session}/{turn} waits for {', '.join(map(sessions.wait_label, waits))}")


SCREENS: Final = {Format.text: TextScreen, Format.json: JsonScreen, Format.events: EventScreen}


# ---- following a turn ------------------------------------------------------------------------------------------------


_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(slots=True)
class FollowResult:
    """The exit code of a turn, its open waits, and True if a signal stopped the follower."""

    code: int
    waits: tuple[str, ...] = ()
    left: bool = False


class TurnFollower:
    """Prints one turn. The first Ctrl-C cancels it, the second leaves at once; SIGTERM leaves without cancelling."""

    def __init__(self, runtime: Runtime, turn: Turn, screen: Screen, path: Path, *, asks: bool = False) -> None:
        self._asks = asks
        """True if the caller asks about approvals itself: then no command is printed for them."""
        self._runtime = runtime
        self._turn = turn
        self._screen = screen
        self._path = path
        self._number = keys.input_number(turn.id)
        self._left: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._cancelling: asyncio.Task[object] | None = None

    async def follow(self, after: int, run: str | None = None) -> FollowResult:
        """Print the events behind record `after`. `run` is the turn, if it began before that."""
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:  # before anything else: the turn may be under way
            loop.add_signal_handler(number, self._interrupt if number is signal.SIGINT else self._leave)
        pump, outcome = None, None
        try:
            waits = await self._open_waits()
            if waits:
                return self._waiting(waits)
            pump, outcome = eventloop.spawn(self._pump(after, run)), eventloop.spawn(self._turn.outcome())
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
            return FollowResult(options.TERMINATED, left=True)
        if pump.done() and (waits := pump.result()):
            return self._waiting(waits)
        ended = await outcome
        await asyncio.wait({pump}, timeout=5.0)  # for the last events
        self._screen.ended(ended)
        return FollowResult(options.EXITS[ended.status])

    async def _pump(self, after: int, run: str | None) -> tuple[str, ...]:
        """Print the events of the turn until it ends; returns the waits of the session if it was parked."""
        started: events.TurnStarted | None = None
        async for event in self._runtime.session(self._turn.session).events(after):
            if run is None and isinstance(event, events.InputAccepted) and event.input == self._number:
                run = event.turn
                if started is not None and started.turn == run:
                    self._screen.event(started)
            if isinstance(event, events.TurnStarted):
                started = event
            if run is not None and event.turn in {run, None}:
                self._screen.event(event)
                if event.turn == run and isinstance(event, events.TERMINAL):
                    return ()
            if isinstance(event, events.TurnWaiting):
                waits = await self._open_waits()
                if waits:
                    return waits
        return ()

    async def _open_waits(self) -> tuple[str, ...]:
        """The waits for a person; empty before a request to cancel has been carried out, as it may end them."""
        store, session = self._runtime.store, self._turn.session
        return () if await sessions.is_stop_requested(store, session) else await sessions.open_waits(store, session)

    def _waiting(self, waits: tuple[str, ...]) -> FollowResult:
        session = self._turn.session
        self._screen.waiting(session, self._turn.id, waits)
        if self._asks and all(sessions.approval_of_wait(name) is not None for name in waits):
            return FollowResult(options.WAITING, waits)
        for name in waits:
            owner = name.partition("/")[0]
            behind = "" if owner == self._turn.id else f" ({self._turn.id} comes after it)"
            approval = sessions.approval_of_wait(name)
            if approval is None:
                what, answer = repr(sessions.wait_label(name)), self._hint("resolve", sessions.wait_label(name), "JSON")
            else:
                what, answer = f"approval of {approval.tool}", hint(self._path, "approve", approval.id)
            self._screen.remark(f"{owner} waits for {what}{behind}; answer with: {answer}")
        self._screen.remark(f"then go on with: {self._hint('resume')}")
        return FollowResult(options.WAITING, waits)

    def _hint(self, command: str, *rest: str) -> str:
        return hint(self._path, command, self._turn.session, *rest)

    def _interrupt(self) -> None:
        if self._cancelling is None:
            self._screen.remark("cancelling (Ctrl-C again leaves at once)")
            self._cancelling = eventloop.spawn(self._turn.cancel("interrupted from the terminal"))
            return
        self._screen.remark(f"left at once; {self._turn.id} ends when the store is next opened: {self._hint('resume')}")
        sys.stdout.flush()
        os._exit(options.INTERRUPTED)  # running work here must not hold it up; the store survives that

    def _leave(self) -> None:
        if not self._left.done():
            self._left.set_result(None)


# ---- turns that notifications started --------------------------------------------------------------------------------


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

    async def show(self, screen: Screen) -> FollowResult | None:
        """Print the next turn; None if none is pending."""
        await self._read()
        while self._pending and self._pending[0] in self._seen:
            self._pending.popleft()
        if not self._pending:
            return None
        turn = self._pending.popleft()
        if turn not in self._ended:
            return await self.follow(screen, turn, self._starts[turn], turn)
        await self._remark_reason(screen, turn)
        session = self._runtime.session(self._session)
        async for event in session.events(self._starts[turn]):
            if event.turn == turn:
                screen.event(event)
                if isinstance(event, events.TERMINAL):
                    break
        outcome = await session.turn(turn).outcome()
        screen.ended(outcome)
        return FollowResult(options.EXITS[outcome.status])

    async def follow(self, screen: Screen, turn: str, after: int, run: str | None) -> FollowResult:
        """Print a turn that has not ended, with the reason why it began; see `TurnFollower.follow`."""
        await self._remark_reason(screen, turn)
        handle = self._runtime.session(self._session).turn(turn)
        return await TurnFollower(self._runtime, handle, screen, self._path).follow(after, run)

    async def _remark_reason(self, screen: Screen, turn: str) -> None:
        """Print the notifications that started a turn, in one line; nothing if an input started it."""
        self._seen.add(turn)
        number, store = keys.input_number(turn), self._runtime.store
        # It is one of the newest: the session has just taken it.
        newest = await store.notifications(self._session, limit=store.limits.page)
        found = [notice for notice in newest if notice.input == number][::-1]
        parts = [f"notification {notice.id}, {one_line(notice.title, 80)}" for notice in found[:3]]
        if len(found) > len(parts):
            parts.append(f"and {len(found) - len(parts):,} more")
        if parts:
            screen.remark(f"{turn} began by itself: {'; '.join(parts)}")

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
        except errors.JournalMissing:  # the session has no input yet
            return


# ---- chat ------------------------------------------------------------------------------------------------------------

_CHAT_HELP: Final = "/history shows what was said, /quit leaves (so does Ctrl-D); Ctrl-C stops an answer"
_QUESTION: Final = "make this call? yes, no [REASON], later: "
_PAUSE: Final = 0.01
_PATIENCE: Final = 1.0
"""Seconds that a notification may take to start its turn; admission may hold it back."""


def chat(
    agent: options.AgentName,
    *,
    session: options.Session = None,
    as_id: options.As = None,
    store: options.Store = DEFAULT_STORE,
) -> int:
    """Talk to an agent, line by line.

    /history shows the conversation, /quit leaves; Ctrl-C stops an answer. Lines may also come through a pipe.
    """
    silence_logs()
    reference, stack = agents.AgentReference.parse(agent), AsyncExitStack()
    opening = _open_chat(store, reference, reference.load(), session, as_id)
    with asyncio.Runner() as runner:
        talk = runner.run(stack.enter_async_context(opening))
        try:
            _announce(talk.session, "/help")
            if not runner.run(talk.go_on()):
                return talk.code
            for line in _input_lines():
                if not _handle_line(runner, talk, line):
                    break
        finally:
            runner.run(stack.aclose())
    return 0 if sys.stdin.isatty() else talk.code


@asynccontextmanager
async def _open_chat(
    path: Path, reference: agents.AgentReference, agent: Agent, session: str | None, as_id: str | None
) -> AsyncGenerator[ChatSession]:
    async with open_session(path, session, as_id, agent, reference) as (store, id):
        head = await _head(store, id)  # before anything is done
        async with open_driver(store, agent, reference, id, inline_budget=LIVE) as runtime:
            yield ChatSession(path, agent, runtime, id, head)


class ChatSession:
    """One conversation. The event loop runs only during an answer, so that the person can edit lines in between."""

    def __init__(self, path: Path, agent: Agent, runtime: Runtime, session: str, head: int) -> None:
        self._path = path
        self._agent = agent
        self._runtime = runtime
        self._others = SelfStartedTurns(runtime, session, path, head)
        self._asks = sys.stdin.isatty() and sys.stdout.isatty()
        """True if a person can answer approvals at this terminal."""
        self._waiting: tuple[Turn, int] | None = None
        """The turn that waits, and the record behind which it continues."""
        self.session = session
        self.code = 0
        """The exit code of the last turn."""

    async def say(self, text: str) -> bool:
        """Send one input, and print its turn; False if a signal ends the chat."""
        if not await self.go_on() or not await self._wait_until_idle():
            return False
        handle = self._runtime.session(self.session, agent=self._agent)
        head = await _head(self._runtime.store, self.session)
        turn = await handle.send(text)
        return await self._follow(turn, head, None) and await self._wait_until_idle()

    async def go_on(self) -> bool:
        """Ask about open approvals, and print the rest of a turn that waited for one."""
        store = self._runtime.store
        if self._waiting is None:
            head = await _head(store, self.session)
            waits = await sessions.open_waits(store, self.session) if head else ()
            if not waits or not self._asks or not await self._runtime.approvals(self.session):
                return True
            owner = waits[0].partition("/")[0]
            self._waiting = self._runtime.session(self.session).turn(owner), head
            if not await self._ask():
                return True
        elif await sessions.open_waits(store, self.session):
            return True
        turn, head = self._waiting
        return await self._follow(turn, head, turn.id)

    async def _follow(self, turn: Turn, head: int, run: str | None) -> bool:
        """Print a turn to its end, asking about its approvals; False if a signal ends the chat."""
        store = self._runtime.store
        while True:
            screen = TextScreen()
            followed = await TurnFollower(self._runtime, turn, screen, self._path, asks=self._asks).follow(head, run)
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
            if run is None and self._is_waiting():
                return True

    def _is_waiting(self) -> bool:
        return self._waiting is not None

    async def _ask(self) -> bool:
        """Ask about each approval of the session; False if one is left open, or the session has other waits."""
        while approvals := await self._runtime.approvals(self.session):
            if not await self._ask_about(approvals[0]):
                return False
        return not await sessions.open_waits(self._runtime.store, self.session)

    async def _ask_about(self, approval: Approval) -> bool:
        """Ask about one approval until it is answered, here or elsewhere; False if the person postpones it."""
        out, runtime = stdout(), self._runtime
        out.line(approval_title(out, approval))
        out.lines(describe_approval(out, approval, self._path, whole=True))
        while True:
            out.write(_QUESTION)
            typed = await self._read_answer(approval)
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
            except (errors.ApprovalClosed, errors.ApprovalUnknown) as error:
                out.line(str(error))
                return True

    async def _read_answer(self, approval: Approval) -> str | None:
        """Read the next typed line; None if the approval is answered elsewhere first."""
        loop, store = asyncio.get_running_loop(), self._runtime.store
        line: asyncio.Future[str] = loop.create_future()
        number = sys.stdin.fileno()

        def read() -> None:
            if not line.done():
                line.set_result(_read_line(number))

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

    async def _wait_until_idle(self) -> bool:
        """Wait until no work is left here, and print the turns that notifications start; False if a signal ends the
        chat.

        All leases must be released before the event loop stops.
        """
        store, seen, idle, notified = self._runtime.store, -1, 0.0, False
        while True:
            # In this order, so that no turn is missed: a notification starts a turn, and that turn may end before the
            # next look.
            version = store.version
            notified = await self._has_notification() if version != seen else notified
            active = self._runtime.active
            if version != seen or not active:
                followed = await self._others.show(TextScreen())
                if followed is not None:
                    if followed.left:
                        return False
                    continue
                seen = version
            if not active and (not notified or idle >= _PATIENCE):
                return True
            idle = 0.0 if active else idle + _PAUSE
            await asyncio.sleep(_PAUSE)  # no event reports that the leases are released

    async def _has_notification(self) -> bool:
        """True if a notification is about to start a turn."""
        store = self._runtime.store
        try:
            waits = (await store.journal(self.session)).status == "waiting"
            return not waits and bool(await store.next_notifications(self.session, 1))
        except errors.JournalMissing:  # the session has no input yet
            return False

    async def history(self) -> list[str]:
        try:
            messages = await self._runtime.session(self.session).history()
        except errors.JournalMissing:
            return []
        lines: list[str] = []
        for message in messages:
            match message:
                case UserMessage():
                    lines.append(f"{'you' if message.origin == 'user' else message.origin}: {message.text}")
                case AssistantMessage():
                    lines += [f"agent: {message.text}"] if message.text else []
                    lines += [f"  -> {call.name}" for call in message.calls]
                case ToolMessage():
                    lines += [f"  <- {result.name} {result.state}" for result in message.results]
        return lines


def _read_line(number: int) -> str:
    """Read one line and no byte more: the rest is for the line editor. The end of the input is "later"."""
    found = b""
    while not found.endswith(b"\n"):
        byte = os.read(number, 1)
        if not byte:
            return "later"
        found += byte
    return found.decode(errors="replace")


async def _head(store: Store, session: str) -> int:
    """The last record of a session; 0 if there is none."""
    try:
        return (await store.journal(session)).head
    except errors.JournalMissing:
        return 0


def _handle_line(runner: asyncio.Runner, chat: ChatSession, line: str) -> bool:
    """Run a command, or send an input; False if the chat ends."""
    out, err = stdout(), stderr()
    match line.strip():
        case "":
            return True
        case "/quit" | "/exit":
            return False
        case "/help":
            err.line(_CHAT_HELP)
        case "/history":
            out.lines(map(printable, runner.run(chat.history())))
        case word if word.startswith("/") and word[1:].isalpha():
            err.line(f"there is no command {word}; {_CHAT_HELP}")
        case text:
            try:
                return runner.run(chat.say(text))
            except errors.UsageError as error:
                if not sys.stdin.isatty():
                    raise
                err.line(f"{err.status('error')}: {error}")
    return True


def _input_lines() -> Iterator[str]:
    """Typed lines, with editing on a terminal, or lines from a pipe."""
    if not sys.stdin.isatty():
        while line := sys.stdin.readline():  # `yield from` would close standard input
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
