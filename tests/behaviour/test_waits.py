"""Waits: one-shot promises that outlive the process. Whoever comes first decides, and everybody learns the same."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from holdfast import open_store
from holdfast.errors import WaitUnknown
from holdfast.testing import ManualClock

if TYPE_CHECKING:
    from pathlib import Path

DAY = 86_400_000


async def test_an_approval_may_come_days_and_a_restart_later(tmp_path: Path) -> None:
    clock = ManualClock()
    async with open_store(tmp_path / "store.db", clock=clock) as store:
        await store.open_journal("refund-7")
        await store.open_wait("refund-7", "approval", deadline=clock.read().wall + 7 * DAY)
        token = store.wait_token("refund-7", "approval")
    clock.advance(3 * DAY)
    async with open_store(tmp_path / "store.db", clock=clock) as store:
        answer = await store.resolve(token, {"approved": True})
        assert answer.won
        assert answer.wait.payload == b'{"approved":true}'


async def test_the_first_answer_counts_and_the_second_learns_it(tmp_path: Path) -> None:
    async with open_store(tmp_path / "store.db") as one, open_store(tmp_path / "store.db") as two:
        await one.open_journal("refund-7")
        await one.open_wait("refund-7", "approval")
        token = one.wait_token("refund-7", "approval")
        answers = await asyncio.gather(one.resolve(token, "yes"), two.resolve(token, "no"))
        assert sorted(answer.won for answer in answers) == [False, True]
        assert answers[0].wait == answers[1].wait


async def test_an_answer_that_comes_before_the_question_is_not_lost(tmp_path: Path) -> None:
    async with open_store(tmp_path / "store.db") as store:
        await store.open_journal("refund-7")
        await store.resolve(store.wait_token("refund-7", "approval"), "yes")
    async with open_store(tmp_path / "store.db") as store:
        found = await store.open_wait("refund-7", "approval")
        assert (found.state, found.payload) == ("resolved", b'"yes"')


async def test_an_answer_after_the_deadline_is_too_late(tmp_path: Path) -> None:
    clock = ManualClock()
    async with open_store(tmp_path / "store.db", clock=clock) as store:
        await store.open_journal("refund-7")
        await store.open_wait("refund-7", "approval", deadline=clock.read().wall + DAY)
        clock.advance(DAY)
        answer = await store.resolve(store.wait_token("refund-7", "approval"), "yes")
        assert (answer.won, answer.wait.state) == (False, "expired")


async def test_a_timer_is_a_wait_that_nobody_answers(tmp_path: Path) -> None:
    clock = ManualClock()
    async with open_store(tmp_path / "store.db", clock=clock) as store:
        await store.open_journal("digest")
        await store.open_wait("digest", "sleep", deadline=clock.read().wall + DAY)
        assert await store.next_due() == clock.read().wall + DAY
    clock.advance(DAY)
    async with open_store(tmp_path / "store.db", clock=clock) as store:
        (due,) = await store.due()
        assert (await store.expire_wait(due.journal, due.name)).won
        assert await store.due() == []


async def test_a_revoked_token_looks_as_if_it_had_never_existed(tmp_path: Path) -> None:
    async with open_store(tmp_path / "store.db") as store:
        await store.open_journal("refund-7")
        await store.open_wait("refund-7", "approval")
        revoked = store.wait_token("refund-7", "approval")
        await store.revoke_waits("refund-7")
        told: list[str] = []
        for token in (revoked, revoked[:-1] + "x", store.wait_token("nowhere", "approval"), "nonsense"):
            with pytest.raises(WaitUnknown) as caught:
                await store.resolve(token, "yes")
            told.append(f"{caught.value!r} {vars(caught.value)}")
        assert len(set(told)) == 1
