"""Work items: a person or another system carries them out, in whichever process they hold the id or the token."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.behaviour.background import talkative
from tests.behaviour.talk import SOON, is_now, until

import holdfast as hf
from holdfast.errors import InvalidArgument, InvalidNumber, JournalMissing, ProcessConflict, ProcessInvalid, WaitUnknown
from holdfast.testing import check

if TYPE_CHECKING:
    from pathlib import Path


async def test_a_work_item_ends_with_the_value_of_whoever_completes_it() -> None:
    async with hf.open(None) as runtime:
        item = await runtime.processes.external(
            title="Call",
            instructions="Ask about 7.",
            tags=["phone"],
            requested_by="ada",
            metadata={"n": 1},
        )
        told = await item.item()
        assert (told.title, told.instructions, told.tags) == ("Call", "Ask about 7.", ("phone",))
        assert (told.requested_by, told.metadata) == ("ada", {"n": 1})
        assert await item.complete({"answer": "yes"}) is True
        assert await item.result(timeout=SOON) == {"answer": "yes"}
        assert await item.complete("again") is False
        assert await check(runtime.store) == []


async def test_a_work_item_that_failed_says_why() -> None:
    async with hf.open(None) as runtime:
        item = await runtime.processes.external(title="Call the customer")
        assert await item.fail("nobody picks up") is True
        with pytest.raises(hf.ProcessFailed, match="nobody picks up"):
            await item.result(timeout=SOON)


async def test_progress_is_listed_until_the_end_and_then_too_late() -> None:
    async with hf.open(None) as runtime:
        item = await runtime.processes.external(title="Count", tags=["a", "b"])
        await item.progress("begun", 0.1)
        assert await item.progress("half of it", 0.5) == "requested"
        await until(lambda: _notes(runtime, item.id, "half of it"))
        line = await item.line()
        assert (line.title, line.tags, line.note, line.fraction) == ("Count", ("a", "b"), "half of it", 0.5)
        assert line.status in {"running", "waiting"}
        await item.complete()
        await item.result(timeout=SOON)
        assert await item.progress("more") == "too_late"
        assert [event.what for event in await item.timeline()].count("progressed") == 2


async def _notes(runtime: hf.Runtime, id: str, note: str) -> bool:
    return [line.note for line in await runtime.processes.list() if line.id == id] == [note]


async def test_items_are_listed_by_tag_and_session() -> None:
    agent = hf.Agent("a", model=talkative(), tools=[])
    async with hf.open(None, agents=[agent]) as runtime:
        await runtime.run(agent, "hi", session="s")
        phone = await runtime.processes.external(title="Call", tags=["phone"], session="s")
        post = await runtime.processes.external(title="Write", tags=["post"])
        assert [line.id for line in await runtime.processes.list(tag="phone")] == [phone.id]
        assert [line.id for line in await runtime.processes.list(session="s")] == [phone.id]
        assert {line.id for line in await runtime.processes.list(name="external")} == {phone.id, post.id}


async def test_the_same_key_is_the_same_item_and_other_content_a_conflict() -> None:
    async with hf.open(None) as runtime:
        items = [await runtime.processes.external(title="Call", key="k", deadline=60) for _ in range(2)]
        assert items[0].id == items[1].id
        with pytest.raises(ProcessConflict):
            await runtime.processes.external(title="Write", key="k", deadline=60)


async def test_the_session_is_notified_of_the_end() -> None:
    agent = hf.Agent("a", model=talkative(), tools=[])
    async with hf.open(None, agents=[agent]) as runtime:
        await runtime.run(agent, "hi", session="s")
        item = await runtime.processes.external(title="Call the bank", session="s")
        await item.complete("they agree")
        await until(lambda: _said(runtime, "they agree"))
        assert await _said(runtime, "Call the bank")


async def _said(runtime: hf.Runtime, words: str) -> bool:
    return words in str(await runtime.session("s").history())


async def test_an_item_past_its_deadline_fails_and_nobody_completes_it_any_more() -> None:
    async with hf.open(None) as runtime:
        item = await runtime.processes.external(title="Call", deadline=0.05)
        with pytest.raises(hf.ProcessFailed, match="deadline"):
            await item.result(timeout=SOON)
        assert await item.complete("late") is False


async def test_a_cancelled_item_is_cancelled_and_a_completion_is_late() -> None:
    async with hf.open(None) as runtime:
        item = await runtime.processes.external(title="Call")
        assert await item.cancel("not needed") == "requested"
        await until(lambda: is_now(item, "cancelled"))
        assert await item.complete("done") is False


async def test_a_completion_that_was_acknowledged_before_the_cancel_is_seen_counts(tmp_path: Path) -> None:
    async with hf.open(tmp_path / "s.db", drive=False) as runtime:
        item = await runtime.processes.external(title="Call", key="k")
        assert await item.complete("done") is True
        assert await item.cancel("not needed") == "requested"
    async with hf.open(tmp_path / "s.db") as runtime:
        assert await runtime.processes.find_external(item.id).result(timeout=SOON) == "done"
        assert await check(runtime.store) == []


@pytest.mark.parametrize("round", range(6))
async def test_complete_against_cancel_gives_one_end_and_both_callers_know_it(tmp_path: Path, round: int) -> None:
    async with hf.open(tmp_path / "s.db") as one, hf.open(tmp_path / "s.db") as two:
        item = await one.processes.external(title="Call")
        calls: list[Any] = [item.complete("done"), two.processes.find_external(item.id).cancel("no")]
        answers = await asyncio.gather(*(calls if round % 2 else reversed(calls)))
        won = True in answers
        await until(lambda: _is_over(item))
        assert await item.status() == ("completed" if won else "cancelled")
        assert [event.what for event in await item.timeline()].count("completed") == int(won)
        assert await check(one.store) == []


async def _is_over(item: Any) -> bool:
    return await item.status() in {"completed", "cancelled"}


async def test_another_process_ends_an_item_with_its_token(tmp_path: Path) -> None:
    async with hf.open(tmp_path / "s.db") as runtime:
        item = await runtime.processes.external(title="Call")
        async with hf.open(tmp_path / "s.db", drive=False) as other:
            assert await other.processes.find_external(item.token).complete(7) is True
        assert await item.result(timeout=SOON) == 7
        with pytest.raises(WaitUnknown):
            runtime.processes.find_external("forged")


async def test_an_item_outlives_a_restart(tmp_path: Path) -> None:
    async with hf.open(tmp_path / "s.db") as runtime:
        id = (await runtime.processes.external(title="Call", tags=["phone"])).id
        await runtime.processes.find_external(id).progress("ringing")
    async with hf.open(tmp_path / "s.db") as runtime:
        await until(lambda: _notes(runtime, id, "ringing"))
        await runtime.processes.find_external(id).complete("yes")
        assert await runtime.processes.find_external(id).result(timeout=SOON) == "yes"


async def test_bad_items_are_named() -> None:
    @hf.process(name="external")
    async def taken(ctx: hf.ProcessContext) -> None: ...

    @hf.process
    async def other(ctx: hf.ProcessContext) -> None:
        await ctx.wait("never")

    async with hf.open(None, processes=[other]) as runtime:
        begin: Any = runtime.processes.external
        for wrong in ({"title": " "}, {"title": "x", "tags": "phone"}, {"title": "x", "metadata": [1]}):
            with pytest.raises(InvalidArgument):
                await begin(**wrong)
        with pytest.raises(JournalMissing):
            await begin(title="x", session="nobody")
        item = await begin(title="x")
        for fraction in (-1, 2, float("nan"), "half"):
            with pytest.raises(InvalidNumber):
                await item.progress("x", fraction)
        with pytest.raises(ProcessInvalid):
            runtime.processes.add(taken)
        started = await runtime.start(other, id="external-other")
        with pytest.raises(ProcessInvalid):
            await runtime.processes.find_external(started.id).progress("x")
        assert len(await runtime.processes.list(name="external")) == 1
