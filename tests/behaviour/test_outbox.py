"""An answer that was computed while its consumer was away is delivered once when it is back, or is known to be lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest
from tests.behaviour.background import SESSION, Held, agent_with, asked, notices, the_task, told

import holdfast as hf
from holdfast.processes.keys import CALL_KEY, task_id
from holdfast.processes.state import TaskCall
from holdfast.store import open_store
from holdfast.store.transaction import Quarantine

if TYPE_CHECKING:
    from pathlib import Path

    from tests.behaviour.shell import Shell

    from holdfast.store import Store

KEY = "t1/1.tools/1.quick"


@hf.tool(read_only=True, background=True)
async def quick() -> str:
    return "the answer"


async def _left_task(store: Store, session: str) -> str:
    """A task of a session that nobody has begun."""
    id = task_id(session, KEY)
    content = msgspec.to_builtins(TaskCall("quick", {}, "c1", "t1", KEY, "k"))
    await store.accept_into(id, "process", "a", content, key=CALL_KEY, role="task", session=session)
    return id


async def _carried_out(path: Path, id: str) -> None:
    """Let a task end in a process that drives no session."""
    async with hf.open(path, agents=[agent_with(quick)], drive=False) as runtime:
        await runtime.processes.settle(id)
        assert (await runtime.tasks.task(id)).status == "succeeded"


async def _quarantine(store: Store, session: str) -> None:
    await store._backend.submit(Quarantine(session, "its records are damaged"))  # pyright: ignore[reportPrivateUsage]  # a person's or a reader's finding


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "holdfast.db"


async def _interrupted(path: Path) -> str:
    """A session that rests, and its task, which has not ended; answers the id of the task."""
    held = Held()
    agent = agent_with(held.tool(read_only=True))
    async with hf.open(path, agents=[agent]) as runtime:
        await asked(runtime, agent)
        task = await the_task(runtime)
        await runtime.close(grace=0)
    return task.id


async def _ended_alone(path: Path, id: str) -> None:
    """The task ends in a process that drives no session."""
    held = Held()
    held.go.set()
    async with hf.open(path, agents=[agent_with(held.tool(read_only=True))], drive=False) as runtime:
        await runtime.processes.settle(id)


async def test_what_ends_while_nobody_drives_the_session_waits_for_it(path: Path) -> None:
    await _ended_alone(path, await _interrupted(path))
    async with hf.open(path, drive=False) as runtime:
        (notice,) = await runtime.store.notifications(SESSION)
        assert (notice.state, notice.kind, notice.attempts) == ("queued", "task_succeeded", 0)
        assert await notices(runtime) == []


async def test_it_is_delivered_once_when_the_session_is_driven_again(path: Path) -> None:
    await _ended_alone(path, await _interrupted(path))
    agent = agent_with(Held().tool(read_only=True))
    for _ in range(3):
        async with hf.open(path, agents=[agent]) as runtime:
            (notice,) = await told(runtime.store)
            said = await notices(runtime)
        assert (notice.state, len(said), said[0].count("the answer")) == ("acknowledged", 1, 1)


async def test_an_answer_for_a_session_that_is_not_there_is_recorded_with_the_reason(path: Path) -> None:
    async with open_store(path) as store:
        id = await _left_task(store, "ghost")
    await _carried_out(path, id)
    async with open_store(path) as store:
        (notice,) = await store.notifications("ghost")
        assert (notice.state, notice.source, notice.body) == ("dead", id, "the answer")
        assert "ghost" in (notice.reason or "")


async def test_an_answer_for_a_session_that_is_quarantined_is_recorded_with_the_reason(path: Path) -> None:
    async with open_store(path) as store:
        await store.open_journal(SESSION, "session", "a")
        id = await _left_task(store, SESSION)
        await _quarantine(store, SESSION)
    await _carried_out(path, id)
    async with open_store(path) as store:
        (notice,) = await store.notifications(SESSION)
        assert (notice.state, notice.source) == ("dead", id)
        assert "its records are damaged" in (notice.reason or "")


async def test_the_answer_itself_is_kept_in_the_task_however_it_is_delivered(path: Path) -> None:
    async with open_store(path) as store:
        id = await _left_task(store, "ghost")
    await _carried_out(path, id)
    async with hf.open(path, drive=False) as runtime:
        assert await runtime.tasks.result(await runtime.tasks.task(id)) == b'"the answer"'


async def test_what_can_not_be_delivered_is_in_the_inbox_with_its_reason(shell: Shell) -> None:
    path = shell.folder / ".holdfast" / "holdfast.db"
    async with open_store(path) as store:
        id = await _left_task(store, "ghost")
    await _carried_out(path, id)
    (item,) = shell.json("inbox")
    assert (item["kind"], item["session"]) == ("notification", "ghost")
    assert "was not told" in item["what"]


async def test_one_that_could_not_be_delivered_is_told_when_its_session_is_there_and_a_person_says_so(
    path: Path,
) -> None:
    async with open_store(path) as store:
        id = await _left_task(store, SESSION)
    await _carried_out(path, id)
    agent = agent_with(quick, script=[])
    async with hf.open(path, agents=[agent]) as runtime:
        await asked(runtime, agent)
        (dead,) = await runtime.store.notifications(SESSION, "dead")
        await runtime.store.settle_notification(dead.id, "queued")
        (notice,) = await told(runtime.store)
        assert (notice.state, len(await notices(runtime))) == ("acknowledged", 1)
