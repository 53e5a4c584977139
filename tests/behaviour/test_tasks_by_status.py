"""`runtime.tasks.list(status=)`: chosen by the words that tasks show."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

import pytest
from tests.behaviour.background import SESSION, agent_with, asked, ended_task
from tests.behaviour.talk import until

import holdfast as hf
from holdfast.errors import InvalidId
from holdfast.processes.keys import task_id
from holdfast.processes.state import INTERRUPTED_ERROR, TaskStatus
from holdfast.records import Ended, ErrorInfo, Started

if TYPE_CHECKING:
    from holdfast.runtime.runtime import Runtime
    from holdfast.store import Store


async def _task_of(store: Store, name: str, *, kind: str | None) -> str:
    """A task that has failed with an error of this kind."""
    id = task_id(SESSION, name)
    await store.open_journal(id, "process", "a", role="task", session=SESSION)
    lease = await store.claim(id)
    error = None if kind is None else ErrorInfo(kind, "so it was")
    records = [Started(at=1, run="task"), Ended(at=2, run="task", status="failed", error=error)]
    await store.append(lease, records, head=lease.head)
    await store.release(lease)
    return id


async def _listed(runtime: Runtime, status: Any, **how: Any) -> list[str]:
    return [line.id for line in await runtime.tasks.list(status=status, **how)]


async def test_a_task_that_succeeded_is_found_by_that_word_and_by_no_other() -> None:
    @hf.tool(background=True)
    async def quick() -> str:
        return "done"

    made = agent_with(quick)
    async with hf.open(None, agents=[made]) as runtime:
        await asked(runtime, made)
        id = (await ended_task(runtime)).id
        found = {word: await _listed(runtime, word) for word in get_args(TaskStatus)}
        assert {word: ids for word, ids in found.items() if ids} == {"succeeded": [id]}


async def test_a_task_that_waits_for_somebody_is_found_by_that_word() -> None:
    @hf.tool(background=True)
    async def asks(ctx: hf.Context) -> str:
        return str(await ctx.wait("approval"))

    made = agent_with(asks)
    async with hf.open(None, agents=[made]) as runtime:
        await asked(runtime, made)

        async def waits() -> bool:
            return len(await _listed(runtime, "waiting")) == 1

        await until(waits)


@pytest.mark.parametrize(("word", "kind"), [("interrupted", INTERRUPTED_ERROR), ("failed", "OSError")])
async def test_what_failed_and_what_was_interrupted_are_told_apart(word: str, kind: str) -> None:
    async with hf.open(None) as runtime:
        ids = {found: await _task_of(runtime.store, found, kind=found) for found in (INTERRUPTED_ERROR, "OSError")}
        assert await _listed(runtime, word) == [ids[kind]]


async def test_a_rare_one_is_found_behind_many_others() -> None:
    async with hf.open(None) as runtime:
        rare = await _task_of(runtime.store, "rare", kind=INTERRUPTED_ERROR)
        for number in range(60):
            await _task_of(runtime.store, f"n{number}", kind="OSError")
        assert await _listed(runtime, "interrupted", limit=1) == [rare]


async def test_pages_of_a_word_go_on_behind_the_last_line() -> None:
    async with hf.open(None) as runtime:
        ids = [
            await _task_of(runtime.store, f"n{number}", kind=INTERRUPTED_ERROR if number % 2 else "OSError")
            for number in range(8)
        ]
        first = await runtime.tasks.list(status="interrupted", limit=2)
        rest = await runtime.tasks.list(status="interrupted", before=first[-1], limit=2)
        assert sorted(line.id for line in (*first, *rest)) == sorted(ids[1::2])


@pytest.mark.parametrize("word", ["completed", "idle", "", "SUCCEEDED", 7])
async def test_a_word_that_no_task_has_is_refused_and_the_words_are_named(word: Any) -> None:
    async with hf.open(None) as runtime:
        with pytest.raises(InvalidId, match="created, running, waiting, succeeded"):
            await runtime.tasks.list(status=word)
