"""The processes that a tool has started end with its call when it is stopped, whoever began them."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from tests import proc
from tests.behaviour.background import SESSION, agent_with, asked, result
from tests.behaviour.talk import SOON, until

import holdfast as hf
from holdfast.tools import abandoned
from holdfast.tools.functions import CallStopped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells which processes belong together")

TREE = "sleep 60 & echo $! >>pids; echo $$ >>pids; (sleep 60 & echo $! >>pids; wait) & wait"
"""A shell, a process of its own, and one below another shell."""
COUNT = 3


class Field:
    """A folder in which programs write down their numbers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started: list[asyncio.subprocess.Process] = []

    def pids(self) -> list[int]:
        told = self.folder / "pids"
        return [int(line) for line in told.read_text().split()] if told.exists() else []

    def alive(self) -> list[int]:
        return [pid for pid in self.pids() if proc.lives(pid)]

    async def begun(self) -> None:
        async def are_there() -> bool:
            return len(self.pids()) >= COUNT

        await until(are_there)

    async def all_gone(self) -> None:
        async def are_gone() -> bool:
            return not self.alive()

        await until(are_gone)
        for process in self.started:
            await asyncio.wait_for(process.wait(), SOON)  # the event loop hears of it a little later


@pytest.fixture
def field(tmp_path: Path) -> Iterator[Field]:
    made = Field(tmp_path)
    yield made
    for pid in made.alive():
        with suppress(ProcessLookupError):
            os.kill(pid, 9)


def _plain(field: Field, **how: Any) -> Callable[[], str]:
    def runs() -> str:
        subprocess.run(["/bin/sh", "-c", TREE], cwd=field.folder, check=False, **how)
        return "never"

    return runs


def _waits(field: Field, **how: Any) -> Callable[[], Any]:
    async def runs() -> str:
        process = await asyncio.create_subprocess_exec("/bin/sh", "-c", TREE, cwd=field.folder, **how)
        field.started.append(process)
        await process.wait()
        return "never"

    return runs


def _in_a_task(field: Field) -> Callable[[], Any]:
    async def runs() -> str:
        return await asyncio.ensure_future(_waits(field)())

    return runs


def _in_a_pool(field: Field) -> Callable[[], Any]:
    async def runs() -> str:
        return await asyncio.to_thread(_plain(field))

    return runs


HOW: dict[str, Callable[[Field], Callable[[], Any]]] = {
    "plain": _plain,
    "plain, in a session of its own": lambda field: _plain(field, start_new_session=True),
    "plain, with no environment": lambda field: _plain(field, env={}),
    "async": _waits,
    "async, in a session of its own": lambda field: _waits(field, start_new_session=True),
    "async, in a task": _in_a_task,
    "async, in a thread": _in_a_pool,
}


@pytest.mark.parametrize("how", HOW)
async def test_a_tool_whose_time_is_up_leaves_no_process_behind(field: Field, how: str) -> None:
    await _timed_out(field, how, 0.5)
    if len(field.pids()) < COUNT:  # on a busy machine they need more time to begin
        await _timed_out(field, how, SOON / 2)
    assert len(field.pids()) >= COUNT


async def _timed_out(field: Field, how: str, seconds: float) -> None:
    agent = agent_with(hf.tool("runs", read_only=True, timeout=seconds)(HOW[how](field)))
    async with hf.open(None, agents=[agent]) as runtime:
        assert (await asked(runtime, agent)).status == "completed"
        assert (await result(runtime)).state == "error"
        await field.all_gone()


@pytest.mark.parametrize("how", ["plain", "async"])
async def test_a_tool_whose_turn_is_cancelled_leaves_no_process_behind(field: Field, how: str) -> None:
    tool = hf.tool("runs")(HOW[how](field))
    agent = agent_with(tool)
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await runtime.session(SESSION, agent=agent).send("go")
        await field.begun()
        await turn.cancel("enough")
        await turn.outcome(timeout=SOON)
        await field.all_gone()


async def test_a_background_call_that_is_cancelled_leaves_no_process_behind(field: Field) -> None:
    tool = hf.tool("runs", background=True)(_waits(field))
    agent = agent_with(tool)
    async with hf.open(None, agents=[agent]) as runtime:
        await asked(runtime, agent)
        await field.begun()
        (line,) = await runtime.tasks.list()
        await runtime.tasks.cancel(line.id)
        await field.all_gone()


async def test_the_processes_of_another_call_are_left_alone(field: Field) -> None:
    brief = hf.tool("brief", read_only=True, timeout=1)(_waits(field))
    begun: list[asyncio.subprocess.Process] = []
    go = asyncio.Event()

    @hf.tool(read_only=True)
    async def other() -> str:
        begun.append(await asyncio.create_subprocess_exec("sleep", "60"))
        await go.wait()
        runs = begun[0].returncode is None
        begun[0].kill()
        await begun[0].wait()
        return f"still running: {runs}"

    agent = agent_with(brief, other)
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await runtime.session(SESSION, agent=agent).send("go")
        await field.begun()
        await field.all_gone()
        go.set()
        await turn.outcome(timeout=SOON)
        history = str(await runtime.session(SESSION).history())
        assert "still running: True" in history


async def test_a_tool_that_ends_in_time_keeps_what_it_has_started(field: Field) -> None:
    @hf.tool(read_only=True, timeout=5)
    def starts() -> str:
        process = subprocess.Popen(["sleep", "60"], cwd=field.folder)
        (field.folder / "pids").write_text(str(process.pid))
        process.returncode = 0  # nobody waits for it
        return "started"

    agent = agent_with(starts)
    async with hf.open(None, agents=[agent]) as runtime:
        await asked(runtime, agent)
    assert len(field.alive()) == 1


async def test_an_async_tool_may_end_its_processes_in_its_own_way_first(field: Field) -> None:
    ended: list[int | None] = []

    @hf.tool(read_only=True, timeout=1)
    async def polite() -> str:
        process = await asyncio.create_subprocess_exec("sleep", "60")
        try:
            await process.wait()
        except asyncio.CancelledError:
            process.terminate()
            ended.append(await process.wait())
            raise
        return "never"

    agent = agent_with(polite)
    async with hf.open(None, agents=[agent]) as runtime:
        await asked(runtime, agent)
    assert ended == [-15]


async def test_a_thread_that_was_given_up_starts_no_more_processes(field: Field) -> None:
    refused: list[BaseException] = []
    over = threading.Event()

    @hf.tool(read_only=True, timeout=1)
    def goes_on() -> str:
        subprocess.run(["sleep", "60"], check=False)
        try:
            subprocess.run(["sh", "-c", "echo $$ >pids"], cwd=field.folder, check=False)
        except CallStopped as error:
            refused.append(error)
        over.set()
        return "never"

    agent = agent_with(goes_on)
    async with hf.open(None, agents=[agent]) as runtime:
        await asked(runtime, agent)
        assert await asyncio.to_thread(over.wait, SOON)
    assert (len(refused), field.pids()) == (1, [])


async def test_a_thread_that_waits_for_a_process_ends_when_that_is_killed() -> None:
    @hf.tool(read_only=True, timeout=0.2)
    def hangs_in_a_process() -> str:
        subprocess.run(["sleep", "60"], check=False)
        return "never"

    agent = agent_with(hangs_in_a_process)
    async with hf.open(None, agents=[agent]) as runtime:
        await asked(runtime, agent)

        async def is_gone() -> bool:
            return "hangs_in_a_process" not in abandoned().running

        await until(is_gone)
