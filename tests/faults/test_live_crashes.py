"""Processes that send or receive live events are killed or stopped: the others go on, and miss no record."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from tests.faults.live_workers import writer
from tests.patience import PATIENCE

import holdfast as hf
from holdfast.events import TERMINAL
from holdfast.runtime.runtime import context_of
from holdfast.store.paths import live_folder

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import AsyncGenerator, AsyncIterator, Callable

SCRIPT = Path(__file__).with_name("live_workers.py")


@asynccontextmanager
async def _worker(kind: str, path: Path) -> AsyncGenerator[Process]:
    """A process that has begun; it is killed at the end of the block."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(SCRIPT), kind, str(path)), stdout=pipe, env={**os.environ, "PYTHONPATH": _source_path()}
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            assert await process.stdout.readline() == b"ready\n"
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


def _source_path() -> str:
    return os.pathsep.join(sys.path)


async def _until(events: AsyncIterator[hf.Event], enough: Callable[[hf.Event], bool]) -> list[hf.Event]:
    found: list[hf.Event] = []
    async with asyncio.timeout(PATIENCE):
        async for event in events:
            found.append(event)
            if enough(event):
                break
    return found


def _written_by(process: Process | int) -> Callable[[hf.Event], bool]:
    """True for text that the model of this process wrote."""
    number = process if isinstance(process, int) else process.pid
    return lambda event: isinstance(event, hf.TextDelta) and f"{number}:" in event.text


async def test_a_reader_goes_on_when_the_driving_process_is_killed_and_another_takes_over(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    async with _worker("drive", path) as first, hf.open(path, drive=False) as web:
        events = web.session("s").events()
        seen = await _until(events, _written_by(first))
        first.kill()
        await first.wait()
        async with asyncio.timeout(PATIENCE):
            while context_of(web).changes.mirrors:  # nothing more can come from there
                await asyncio.sleep(0.005)
        async with _worker("drive", path) as second:
            seen += await _until(events, _written_by(second))
            assert any(isinstance(event, hf.events.TurnResumed) for event in seen)
            (tmp_path / "gate").touch()
            seen += await _until(events, lambda event: isinstance(event, TERMINAL))
            records = [event for event in seen if "~" not in event.cursor and not isinstance(event, hf.events.Gap)]
            again = await _until(web.session("s").events(), lambda event: isinstance(event, TERMINAL))
            assert records == [event for event in again if event in records]
            assert [event.seq for event in seen] == sorted(event.seq for event in seen)
        assert len(os.listdir(live_folder(path))) <= 1


async def test_the_driving_process_goes_on_when_a_reader_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    agent = writer(path)
    async with hf.open(path, agents=[agent]) as runtime:
        turn = await runtime.session("s", agent=agent).send("Write.")
        sender = context_of(runtime).changes.sender
        assert sender is not None
        async with _worker("follow", path) as reader:
            assert reader.stdout is not None
            async with asyncio.timeout(PATIENCE):
                while msgspec.json.decode(await reader.stdout.readline())["event"] != "text_delta":
                    pass
            assert len(sender.links) == 1
            reader.kill()
            await reader.wait()
        async with asyncio.timeout(PATIENCE):
            while sender.links:
                await asyncio.sleep(0.005)
        (tmp_path / "gate").touch()
        assert (await turn.outcome(timeout=PATIENCE)).ok


async def test_a_reader_that_is_stopped_costs_the_driving_process_a_bounded_amount(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    agent = writer(path)
    async with hf.open(path, agents=[agent]) as runtime:
        turn = await runtime.session("s", agent=agent).send("Write.")
        async with _worker("follow", path) as reader:
            assert reader.stdout is not None
            async with asyncio.timeout(PATIENCE):
                while msgspec.json.decode(await reader.stdout.readline())["event"] != "text_delta":
                    pass
                reader.send_signal(signal.SIGSTOP)
                await asyncio.sleep(0)
                (tmp_path / "gate").touch()
                assert (await turn.outcome()).ok
                reader.send_signal(signal.SIGCONT)
                kinds: list[str] = []
                while line := await reader.stdout.readline():
                    kinds.append(msgspec.json.decode(line)["event"])
            assert kinds[-1] == "turn_completed"


async def test_a_driving_process_that_is_stopped_holds_up_no_reader(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    async with _worker("drive", path) as driver, hf.open(path, drive=False) as web:
        await _until(web.session("s").events(), _written_by(driver))
        driver.send_signal(signal.SIGSTOP)
        agent = writer(path)
        (tmp_path / "gate").touch()
        async with hf.open(path, agents=[agent]) as other, hf.open(path, drive=False) as late:
            turn = await other.session("quick", agent=agent).send("Write.")
            seen = await _until(late.session("quick").turn(turn.id).events(), lambda event: isinstance(event, TERMINAL))
            assert isinstance(seen[-1], hf.TurnCompleted)
        driver.send_signal(signal.SIGCONT)
