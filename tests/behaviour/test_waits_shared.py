"""Waits and signals with two runtimes on one file: the first answer counts, whoever gives it, and none is lost."""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from tests.behaviour.talk import SOON, until

import holdfast as hf
from holdfast import crashpoints
from holdfast.messages import ToolMessage
from holdfast.testing import ScriptedModel, call, check, text

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator
    from pathlib import Path

tokens: list[str] = []


@hf.tool
async def waits(ctx: hf.Context) -> Any:
    """Wait for somebody."""
    tokens.append(ctx.wait_token("go"))
    return await ctx.wait("go", timeout=60)


@hf.tool
async def defers(ctx: hf.Context) -> Any:
    """Let somebody answer."""
    pending = await ctx.defer()
    tokens.append(pending.key)
    return pending


@hf.process
async def listens(ctx: hf.ProcessContext, count: int) -> list[Any]:
    return [await ctx.wait("n", timeout=60) for _ in range(count)]


def _agent(tool: hf.Tool[..., Any]) -> hf.Agent:
    tokens.clear()
    return hf.Agent("a", model=ScriptedModel([call(tool), text("done")]), tools=[tool], policy=[hf.allow("*")])


async def _raced(path: Path, tool: hf.Tool[..., Any]) -> None:
    """Ten answers from each of two runtimes at once: one counts, and that is the result."""
    agent = _agent(tool)
    async with hf.open(path, agents=[agent]) as runtime, hf.open(path, drive=False, mirror=False) as other:
        session = runtime.session("s", agent=agent)
        turn = await session.send("x")

        async def parked() -> bool:
            return await other.session("s").status() == "waiting"

        await until(parked)
        answers = [(where, number) for number in range(10) for where in (runtime, other)]
        settled = await asyncio.gather(
            *(where.resolve(tokens[0], [where is other, number]) for where, number in answers)
        )
        winners = [[where is other, number] for (where, number), one in zip(answers, settled, strict=True) if one.won]
        assert len(winners) == 1
        assert len({one.wait.payload for one in settled}) == 1
        await turn.outcome(timeout=SOON)
        results = [
            result
            for message in await session.history()
            if isinstance(message, ToolMessage)
            for result in message.results
        ]
        assert [result.content for result in results] == winners
        assert await check(other.store) == []


async def test_of_the_answers_of_two_runtimes_to_a_tool_that_waits_one_counts(tmp_path: Path) -> None:
    await _raced(tmp_path / "s.db", waits)


async def test_of_the_answers_of_two_runtimes_to_a_deferred_call_one_counts(tmp_path: Path) -> None:
    await _raced(tmp_path / "s.db", defers)


async def test_an_answer_that_another_runtime_gives_before_the_tool_waits_is_kept(tmp_path: Path) -> None:
    gate = asyncio.Event()

    @hf.tool
    async def late(ctx: hf.Context) -> Any:
        tokens.append(ctx.wait_token("go"))
        await gate.wait()
        return await ctx.wait("go")

    agent = _agent(late)
    path = tmp_path / "s.db"
    async with hf.open(path, agents=[agent]) as runtime, hf.open(path, drive=False, mirror=False) as other:
        session = runtime.session("s", agent=agent)
        turn = await session.send("x")

        async def begun() -> bool:
            await asyncio.sleep(0)
            return bool(tokens)

        await until(begun)
        assert (await other.resolve(tokens[0], "early")).won
        assert not (await runtime.resolve(tokens[0], "second")).won
        gate.set()
        await turn.outcome(timeout=SOON)
        message = (await session.history())[-2]
        assert isinstance(message, ToolMessage)
        assert [result.content for result in message.results] == ["early"]


async def test_every_signal_of_two_runtimes_answers_one_wait_of_a_process(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    async with hf.open(path, processes=[listens]) as runtime, hf.open(path, drive=False, mirror=False) as other:
        process = await runtime.start(listens, 20, id="p")
        far = other.processes.handle("p")
        sent = [(process if number % 2 else far).signal("n", number) for number in range(20)]
        await asyncio.gather(*sent)
        assert sorted(await process.result(timeout=SOON)) == list(range(20))
        assert await check(other.store) == []


async def test_signals_of_another_runtime_are_kept_until_the_process_begins(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    async with hf.open(path, processes=[listens], drive=False) as other:
        process = await other.start(listens, 3, id="p")
        for number in range(3):
            await process.signal("n", number)
    async with hf.open(path, processes=[listens]) as runtime:
        assert await runtime.processes.handle("p").result(timeout=SOON) == [0, 1, 2]


# ---- answers that come just before somebody is parked ----------------------------------------------------------------


@contextmanager
def _answered_at(point: str, path: Path, answer: Callable[[hf.Runtime], Awaitable[object]]) -> Generator[None]:
    """Another runtime answers at the moment in which execution comes to `point` for the first time."""
    left = [point]

    async def from_outside() -> None:
        async with hf.open(path, drive=False, mirror=False) as other:
            await answer(other)

    def reached(name: str) -> None:
        if name in left:
            left.remove(name)
            thread = threading.Thread(target=asyncio.run, args=(from_outside(),))
            thread.start()
            thread.join(SOON)

    crashpoints.arm(reached)
    try:
        yield
    finally:
        crashpoints.arm(None)


async def test_a_signal_of_another_runtime_just_before_a_process_is_parked_wakes_it(tmp_path: Path) -> None:
    path = tmp_path / "s.db"

    async def answer(other: hf.Runtime) -> None:
        await other.processes.handle("p").signal("n", "in time")

    async with hf.open(path, processes=[listens]) as runtime:
        with _answered_at("process.before_park", path, answer):
            process = await runtime.start(listens, 1, id="p")
            assert await process.result(timeout=SOON) == ["in time"]


@pytest.mark.parametrize("tool", [waits, defers], ids=["waits", "deferred"])
async def test_an_answer_of_another_runtime_just_before_a_task_is_parked_wakes_it(
    tmp_path: Path, tool: hf.Tool[..., Any]
) -> None:
    path = tmp_path / "s.db"
    agent = _agent(hf.tool(tool.name, background=True)(tool.function))

    async def answer(other: hf.Runtime) -> None:
        assert (await other.resolve(tokens[0], "in time")).won

    async with hf.open(path, agents=[agent]) as runtime:
        with _answered_at("task.before_park", path, answer):
            await runtime.session("s", agent=agent).send("x")

            async def ended() -> bool:
                lines = await runtime.tasks.list(session="s")
                return bool(lines) and (await runtime.tasks.task(lines[0].id)).status == "succeeded"

            await until(ended)


@pytest.mark.parametrize("tool", [waits, defers], ids=["waits", "deferred"])
async def test_an_answer_of_another_runtime_just_before_a_turn_is_parked_wakes_it(
    tmp_path: Path, tool: hf.Tool[..., Any]
) -> None:
    path = tmp_path / "s.db"
    agent = _agent(tool)

    async def answer(other: hf.Runtime) -> None:
        assert (await other.resolve(tokens[0], "in time")).won

    async with hf.open(path, agents=[agent]) as runtime:
        with _answered_at("turn.before_park", path, answer):
            turn = await runtime.session("s", agent=agent).send("x")
            assert (await turn.outcome(timeout=SOON)).text == "done"
