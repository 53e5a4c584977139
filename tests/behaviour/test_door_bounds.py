"""Bounds and refusals at the door: how many calls run at once, who may be told, and what could not be stopped."""

from __future__ import annotations

import asyncio
import subprocess
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from tests.behaviour.background import SESSION, Held, agent_with, asked, result, the_task
from tests.behaviour.talk import SOON, until

import holdfast as hf
from holdfast.errors import GateInvalid, InvalidNumber, NotASession
from holdfast.testing import ScriptedModel, call, text

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator


@pytest.fixture
def free() -> Iterator[threading.Event]:
    """Lets threads go that a test has left hanging."""
    made = threading.Event()
    yield made
    made.set()


async def test_a_gate_that_gives_more_than_one_answer_is_refused_when_it_is_given() -> None:
    async def several(session: str) -> AsyncGenerator[bool]:
        yield bool(session)

    gate: Any = several
    with pytest.raises(GateInvalid, match="generator"):
        async with hf.open(None, can_deliver=gate):
            pass


async def test_a_task_can_not_be_notified() -> None:
    held = Held()
    agent = agent_with(held.tool())
    async with hf.open(None, agents=[agent]) as runtime:
        await asked(runtime, agent)
        task = await the_task(runtime)
        with pytest.raises(NotASession):
            await runtime.notify(task.id, "hello")
        held.go.set()


@pytest.mark.parametrize("count", [0, -1, "many"])
async def test_a_bound_that_can_not_be_meant_is_refused(count: Any) -> None:
    with pytest.raises(InvalidNumber, match="max_calls"):
        async with hf.open(None, max_calls=count):
            pass


async def test_so_many_calls_run_at_once_as_the_host_says() -> None:
    inside, most = 0, 0

    @hf.tool(read_only=True)
    async def crowds(number: int) -> int:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        for _ in range(5):
            await asyncio.sleep(0)
        inside -= 1
        return number

    agent = agent_with(crowds, script=[[call(crowds, number=number) for number in range(6)]])
    async with hf.open(None, agents=[agent], max_calls=2) as runtime:
        assert (await asked(runtime, agent)).status == "completed"
    assert most == 2


async def test_a_tool_that_runs_another_agent_does_not_keep_its_calls_out() -> None:
    @hf.tool(read_only=True)
    async def inner() -> str:
        return "deep"

    child = hf.Agent("child", model=agent_with(inner).model, tools=[inner])

    @hf.tool(read_only=True)
    async def outer() -> str:
        return (await runtime.run(child, "go")).status

    agent = agent_with(outer)
    async with hf.open(None, agents=[agent, child], max_calls=1) as runtime:
        assert (await asked(runtime, agent)).status == "completed"
        assert (await result(runtime)).content == "completed"


async def test_the_model_is_told_when_a_thread_could_not_be_stopped(free: threading.Event) -> None:
    @hf.tool(read_only=True, timeout=0.1)
    def hangs() -> str:
        free.wait(2 * SOON)
        return "never"

    agent = agent_with(hangs)
    async with hf.open(None, agents=[agent]) as runtime:
        await asked(runtime, agent)
        assert "could not be stopped" in str((await result(runtime)).content)


async def test_the_model_is_not_told_so_when_it_was_stopped() -> None:
    @hf.tool(read_only=True, timeout=0.1)
    async def hangs() -> str:
        await asyncio.Event().wait()
        return "never"

    agent = agent_with(hangs)
    async with hf.open(None, agents=[agent]) as runtime:
        await asked(runtime, agent)
        assert "and was stopped" in str((await result(runtime)).content)


async def test_a_tool_that_does_not_listen_loses_its_processes_all_the_same() -> None:
    begun: list[subprocess.Popen[bytes]] = []
    over = asyncio.Event()

    @hf.tool(read_only=True, timeout=0.2)
    async def stubborn() -> str:
        begun.append(subprocess.Popen(["sleep", "60"]))  # noqa: ASYNC220  what a careless tool does
        while not over.is_set():
            with suppress(asyncio.CancelledError):
                await over.wait()
        return "at last"

    agent = hf.Agent("a", model=ScriptedModel([call(stubborn), text("ok")]), tools=[stubborn])
    async with hf.open(None, agents=[agent]) as runtime:
        await asked(runtime, agent, session=SESSION)

        async def is_gone() -> bool:
            return begun[0].poll() == -9

        await until(is_gone)
        over.set()
