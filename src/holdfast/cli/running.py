"""`holdfast run` and `holdfast resume`: ask an agent, or go on with what was asked."""

from __future__ import annotations

import errno
import logging
import os
import stat
import subprocess
import sys
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from holdfast.agent import team_of
from holdfast.cli.agent_references import Reference, chosen, note, recorded
from holdfast.cli.failures import CallInvalid, LogUnusable
from holdfast.cli.following import Follower, hint
from holdfast.cli.options import Format
from holdfast.cli.profiled import prices
from holdfast.cli.screen import QuietScreen, screen_for
from holdfast.cli.sessions import (
    find,
    find_session,
    last_turn,
    looking,
    new_id,
    open_waits,
    require_store,
)
from holdfast.cli.terminal import printable, stderr, stdout
from holdfast.cli.unasked import Unasked, reason_of
from holdfast.errors import JournalConflict, JournalMissing
from holdfast.names import check_id
from holdfast.runtime import Runtime
from holdfast.runtime.desk import ROLE
from holdfast.store import open_store

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator
    from pathlib import Path

    from holdfast.agent import Agent
    from holdfast.cli.following import Followed
    from holdfast.cli.screen import Screen
    from holdfast.cli.sessions import Target
    from holdfast.runtime import Turn
    from holdfast.store import Store


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


# ---- in the background -----------------------------------------------------------------------------------------------


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


# ---- going on --------------------------------------------------------------------------------------------------------


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
