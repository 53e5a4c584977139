"""Two processes on one file: neither disturbs live tasks of the other, and what a killed one left is seen to once."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import task_workers
from tests.programs import Program

import holdfast as hf
from holdfast.messages import UserMessage
from holdfast.testing import check

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.programs import Process, Programs

    from holdfast.store import Notification

SCRIPT = Path(task_workers.__file__ or "")
PATIENCE = 20.0


class Place:
    """A store in a folder, and the processes that work on it."""

    def __init__(self, folder: Path, programs: Programs) -> None:
        self.folder = folder
        self.store = folder / "store.db"
        self._programs = programs
        self._started: dict[str, Process] = {}

    def start(self, name: str, *, ask: str | None = None) -> None:
        """A process that is ready, and has asked something if it should."""
        asked = [] if ask is None else ["ask", ask]
        program = Program(str(SCRIPT), (self.store, self.folder, name, *asked), self.folder)
        self._started[name] = self._programs.start(program)
        self.until(lambda: name in self.lines("ready"))

    def kill(self, name: str) -> None:
        self._started[name].kill()
        self._started[name].wait()

    def go(self) -> None:
        (self.folder / "go").touch()

    def lines(self, name: str) -> list[str]:
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []

    def runs(self) -> list[tuple[str, str]]:
        """Which tool ran in which process."""
        return [(line.split()[0], line.split()[1]) for line in self.lines("runs")]

    def keys(self, tool: str) -> set[str]:
        return {line.split()[2] for line in self.lines("runs") if line.startswith(f"{tool} ")}

    def until(self, condition: Callable[[], object]) -> None:
        end = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < end, "it did not come"
            time.sleep(0.01)

    def close(self) -> None:
        for process in self._started.values():
            if process.poll() is None:
                process.kill()
            process.wait()
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    stream.close()


@pytest.fixture
def place(tmp_path: Path, programs: Programs) -> Iterator[Place]:
    made = Place(tmp_path, programs)
    yield made
    made.close()


async def _told(place: Place, session: str, count: int) -> list[Notification]:
    """The notifications of a session when there are so many, and it has taken all of them."""
    async with hf.open_store(place.store) as store, asyncio.timeout(PATIENCE):
        while True:
            found = await store.notifications(session)
            if len(found) >= count and {notice.state for notice in found} == {"acknowledged"}:
                return found[::-1]
            await asyncio.sleep(0.02)


async def _kinds(place: Place, session: str, count: int) -> dict[str, str]:
    """How each tool was reported."""
    return {notice.title.split()[4]: notice.kind for notice in await _told(place, session, count)}


async def _looked_at(place: Place, session: str) -> tuple[list[Any], int]:
    """What is wrong with the store, and how often its session was told of a task."""
    async with hf.open(place.store, drive=False) as runtime:
        history = await runtime.session(session).history()
        words = [
            message.text for message in history if isinstance(message, UserMessage) and message.origin == "holdfast"
        ]
        return await check(runtime.store), sum(text.count("<notification ") for text in words)


async def test_the_tasks_of_a_killed_process_are_seen_to_by_one_that_lives(place: Place) -> None:
    place.start("one", ask="s")
    place.start("two")
    place.until(lambda: len(place.runs()) == 2)
    place.kill("one")
    place.until(lambda: ("looks", "two") in place.runs())
    place.go()
    assert await _kinds(place, "s", 2) == {"looks": "task_succeeded", "pays": "task_interrupted"}
    assert sorted(place.runs()) == [("looks", "one"), ("looks", "two"), ("pays", "one")]
    assert len(place.keys("looks")) == 1
    assert await _looked_at(place, "s") == ([], 2)


async def test_the_tasks_of_a_killed_process_are_seen_to_by_the_next_one(place: Place) -> None:
    place.start("one", ask="s")
    place.kill("one")
    place.go()
    place.start("two")
    assert await _kinds(place, "s", 2) == {"looks": "task_succeeded", "pays": "task_interrupted"}
    assert await _looked_at(place, "s") == ([], 2)


async def test_live_tasks_of_two_processes_are_left_alone(place: Place) -> None:
    place.start("one", ask="s1")
    place.start("two", ask="s2")
    async with hf.open(place.store, drive=False) as runtime:
        assert await runtime.recover() == []
    place.go()
    for session in ("s1", "s2"):
        assert await _kinds(place, session, 2) == {"looks": "task_succeeded", "pays": "task_succeeded"}
    assert sorted(place.runs()) == [("looks", "one"), ("looks", "two"), ("pays", "one"), ("pays", "two")]


async def test_the_death_of_one_process_does_not_disturb_the_tasks_of_the_other(place: Place) -> None:
    place.start("one", ask="s1")
    place.start("two", ask="s2")
    place.kill("one")
    place.until(lambda: place.runs().count(("looks", "two")) == 2)
    place.go()
    assert await _kinds(place, "s2", 2) == {"looks": "task_succeeded", "pays": "task_succeeded"}
    assert await _kinds(place, "s1", 2) == {"looks": "task_succeeded", "pays": "task_interrupted"}
    assert place.runs().count(("pays", "two")) == 1


async def test_a_task_is_cancelled_from_another_process(place: Place) -> None:
    place.start("one", ask="s")
    async with hf.open(place.store, drive=False) as runtime:
        for found in await runtime.tasks.list(session="s"):
            assert await runtime.tasks.cancel(found.id, "no longer wanted") == "requested"
    assert set((await _kinds(place, "s", 2)).values()) == {"task_cancelled"}


async def test_notifications_from_many_processes_are_told_once(place: Place) -> None:
    place.start("one", ask="s")
    place.start("two")
    place.go()
    await _told(place, "s", 2)
    async with hf.open(place.store, drive=False) as runtime:
        for number in range(10):
            await runtime.notify("s", f"n{number}")
    found = await _told(place, "s", 12)
    assert {notice.attempts for notice in found} == {1}
    assert await _looked_at(place, "s") == ([], 12)
