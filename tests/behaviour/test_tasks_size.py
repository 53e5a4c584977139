"""Background work costs what it is worth: results are stored once, prompts are bounded, reports have a flat cost."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest
from tests.behaviour.background import SESSION, agent_with, asked, ended_task, notices, the_task, told
from tests.behaviour.talk import asked as requests

import holdfast as hf
from holdfast.processes.lists import read_process
from holdfast.records import Done, EffectRequest, Ended, Intended, Progressed, Started
from holdfast.testing import ScriptedModel, call, text
from holdfast.tools.context import CallContext  # noqa: TC001  read from the signature

if TYPE_CHECKING:
    from pathlib import Path

MARK = "a-needle-that-is-nowhere-else"
FIVE_MB = 5_000_000


def _hay(size: int) -> str:
    """A text that does not compress into nothing, with a needle in its middle."""
    line = "".join(f"{number * 7919 % 100_003:05d} " for number in range(size // 12))
    return f"{line}{MARK} {line}"


def _bytes(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.iterdir() if path.name.startswith("s.db"))


async def _gave(folder: Path, size: int) -> hf.Agent:
    @hf.tool(read_only=True, background=True)
    async def gives() -> str:
        return _hay(size)

    agent = agent_with(gives)
    async with hf.open(folder / "s.db", agents=[agent]) as runtime:
        await asked(runtime, agent)
        await told(runtime.store)
    return agent


@pytest.mark.parametrize("size", [20_000, 200_000, FIVE_MB])
async def test_the_result_of_a_task_is_stored_once(tmp_path: Path, size: int) -> None:
    await _gave(tmp_path, size)
    assert _bytes(tmp_path).count(MARK.encode()) == 1


async def test_a_store_with_a_result_of_five_megabytes_is_not_much_larger(tmp_path: Path) -> None:
    await _gave(tmp_path, FIVE_MB)
    assert len(_bytes(tmp_path)) < 1.1 * FIVE_MB


async def test_a_result_of_five_megabytes_leaves_the_prompt_small(tmp_path: Path) -> None:
    agent = await _gave(tmp_path, FIVE_MB)
    assert max(sum(len(str(message)) for message in asked.messages) for asked in requests(agent)) < 10_000


async def _kept(reader: str) -> tuple[bytes | None, bytes]:
    """What the tools of the session `reader` find of a long result of the session, and the whole of it."""
    hosts: dict[str, Any] = {}

    @hf.tool(read_only=True, background=True)
    async def gives(ctx: CallContext) -> str:
        hosts[ctx.session] = ctx.host
        return _hay(FIVE_MB) if ctx.session == SESSION else "little"

    agent = agent_with(gives)
    async with hf.open(None, agents=[agent]) as runtime:
        for session in (SESSION, "another"):
            await asked(runtime, agent, session=session)
            await told(runtime.store, session)
        outcome = (await the_task(runtime)).outcome
        assert isinstance(outcome, Done)
        (blob,) = outcome.kept
        return await hosts[reader].kept(blob.digest), _hay(FIVE_MB).encode()


async def test_a_result_of_five_megabytes_can_be_read_by_a_tool_of_its_session() -> None:
    found, whole = await _kept(SESSION)
    assert found == whole


async def test_a_result_that_was_kept_is_not_read_by_another_session() -> None:
    found, _ = await _kept("another")
    assert found is None


@pytest.mark.parametrize("reads", [True, False])
async def test_a_notification_says_how_to_read_the_whole_where_the_agent_can(reads: bool) -> None:
    @hf.tool(background=True)
    async def much() -> str:
        return "x" * 10_000

    tools = [much, *(hf.tools.tasks() if reads else ())]
    agent = hf.Agent(
        "a", model=ScriptedModel([call(much), text("ok"), text("seen")]), tools=tools, policy=[hf.allow("*")]
    )
    async with hf.open(None, agents=[agent]) as runtime:
        await asked(runtime, agent)
        await ended_task(runtime)
        await told(runtime.store)
        (words,) = await notices(runtime)
        assert ("read_task" in words) is reads


# ---- reports ---------------------------------------------------------------------------------------------------------


async def test_ten_thousand_reports_in_a_row_are_few_records_and_little_time() -> None:
    took: list[float] = []

    @hf.tool(background=True)
    async def counts(ctx: hf.Context) -> str:
        begun = time.process_time()
        for number in range(10_000):
            ctx.progress(f"{number}", fraction=number / 10_000)
        took.append(time.process_time() - begun)
        return "done"

    agent = agent_with(counts)
    async with hf.open(None, agents=[agent]) as runtime:
        await asked(runtime, agent)
        task = await ended_task(runtime)
        assert task.reports < 100
        assert took[0] < 1.0


async def test_ten_thousand_recorded_reports_have_a_flat_cost(tmp_path: Path) -> None:
    """The last thousand takes no longer than the first, with room for a busy machine."""
    async with hf.open_store(tmp_path / "s.db", durability="process") as store:
        await store.open_journal("task-x", "process", "a", role="task", session=SESSION)
        lease = await store.claim("task-x", ttl_ms=60_000)
        ask = EffectRequest("tool_call", "slow", "0" * 64)
        head = await store.append(
            lease, [Intended(at=1, key="task/slow", ask=ask), Started(at=1, run="task")], head=lease.head
        )
        costs: list[float] = []
        for _ in range(10):
            begun = time.process_time()
            for number in range(10):
                futures: list[asyncio.Future[int]] = []
                for step in range(100):
                    record = Progressed(at=1, run="task", note=f"{number}.{step}")
                    futures.append(asyncio.ensure_future(store.append(lease, [record], head=head)))
                    head += 1
                await asyncio.gather(*futures)
            costs.append(time.process_time() - begun)
        await store.append(lease, [Ended(at=2, run="task", status="completed")], head=head)
        assert min(costs[-3:]) < 2 * min(costs[:3])
        task = await read_process(store, "task-x")
        assert (task.reports, task.status) == (10_000, "succeeded")
