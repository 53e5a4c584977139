"""Approvals of several calls at once, in time and too late, and of turns that are stopped."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from tests.behaviour.approving import CALL, Shop, asked_once, ended, parked, sent, told
from tests.behaviour.background import SESSION
from tests.behaviour.talk import pairs_are_whole

import holdfast as hf
from holdfast.testing import ManualClock, call, check

if TYPE_CHECKING:
    from pathlib import Path

HOUR = 3_600_000
DAY = 24 * HOUR
WEEK = 7 * DAY


@pytest.fixture
def shop() -> Shop:
    return Shop()


# ---- several at once -------------------------------------------------------------------------------------------------

THREE = [call("refund", order="1"), call("refund", order="2"), call("refund", order="3")]


async def test_several_calls_of_one_step_wait_at_once(shop: Shop) -> None:
    agent = shop.agent(THREE)
    async with hf.open(None, agents=[agent]) as runtime:
        await sent(runtime, agent)
        shown = await parked(runtime, 3)
        assert sorted(each.arguments["order"] for each in shown) == ["1", "2", "3"]


@pytest.mark.parametrize("order", [("1", "2", "3"), ("3", "2", "1"), ("2", "3", "1")], ids="".join)
async def test_calls_of_one_step_are_answered_in_any_order(shop: Shop, order: tuple[str, ...]) -> None:
    agent = shop.agent(THREE)
    async with hf.open(None, agents=[agent]) as runtime:
        await sent(runtime, agent)
        ids = {shown.arguments["order"]: shown.id for shown in await parked(runtime, 3)}
        for left, number in zip((2, 1, 0), order, strict=True):
            await runtime.approve(ids[number])
            if left:
                await parked(runtime, left)
        await ended(runtime)
        assert shop.done == [(number, 100) for number in order]


async def test_the_results_of_a_step_come_in_the_order_of_its_calls(shop: Shop) -> None:
    agent = shop.agent(THREE)
    async with hf.open(None, agents=[agent]) as runtime:
        await sent(runtime, agent)
        ids = {shown.arguments["order"]: shown.id for shown in await parked(runtime, 3)}
        await runtime.deny(ids["3"], "c")
        await parked(runtime, 2)
        await runtime.approve(ids["2"])
        await parked(runtime)
        await runtime.deny(ids["1"], "a")
        assert [result.state for result in await told(runtime)] == ["error", "ok", "error"]
        assert pairs_are_whole(await runtime.session(SESSION).history())


async def test_an_approved_call_does_not_wait_for_the_others(shop: Shop) -> None:
    agent = shop.agent(THREE)
    async with hf.open(None, agents=[agent]) as runtime:
        await sent(runtime, agent)
        shown = await parked(runtime, 3)
        await runtime.approve(shown[1].id)
        await parked(runtime, 2)
        assert shop.done == [(shown[1].arguments["order"], 100)]


async def test_calls_that_need_no_approval_do_not_wait(shop: Shop) -> None:
    agent = shop.agent([CALL, call("look"), call("note", text="x")])
    async with hf.open(None, agents=[agent]) as runtime:
        await asked_once(runtime, agent)
        assert shop.done == ["stock", "x"]


async def test_calls_that_were_made_beside_one_that_waits_are_not_made_again(shop: Shop, tmp_path: Path) -> None:
    agent = shop.agent([call("note", text="x"), CALL, call("look")])
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        shown = await asked_once(runtime, agent)
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        await runtime.approve(shown.id)
        await ended(runtime)
        assert shop.done == ["x", "stock", ("7", 900)]


async def test_all_may_be_answered_before_anybody_drives_the_session(shop: Shop, tmp_path: Path) -> None:
    agent = shop.agent(THREE)
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        await sent(runtime, agent)
        shown = await parked(runtime, 3)
    async with hf.open(tmp_path / "s.db", drive=False) as other:
        await asyncio.gather(*(other.approve(each.id) for each in shown))
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        await ended(runtime)
        assert sorted(shop.done) == [("1", 100), ("2", 100), ("3", 100)]


async def test_two_calls_of_one_step_with_the_same_arguments_are_two_questions(shop: Shop) -> None:
    agent = shop.agent([CALL, CALL])
    async with hf.open(None, agents=[agent]) as runtime:
        await sent(runtime, agent)
        first, _ = await parked(runtime, 2)
        await runtime.approve(first.id)
        await parked(runtime)
        assert shop.done == [("7", 900)]


# ---- time ------------------------------------------------------------------------------------------------------------


async def test_a_question_stays_open_for_a_week(shop: Shop) -> None:
    agent = shop.agent()
    clock = ManualClock()
    async with hf.open(None, agents=[agent], clock=clock) as runtime:
        shown = await asked_once(runtime, agent)
        assert shown.expires == clock.read().wall + WEEK


async def test_a_rule_may_say_how_long_a_question_stays_open(shop: Shop) -> None:
    agent = shop.agent(policy=[hf.ask("refund", expires=timedelta(hours=1))])
    clock = ManualClock()
    async with hf.open(None, agents=[agent], clock=clock) as runtime:
        shown = await asked_once(runtime, agent)
        assert shown.expires == clock.read().wall + HOUR


async def test_a_question_that_nobody_answers_in_time_is_a_denial(shop: Shop) -> None:
    agent = shop.agent(policy=[hf.ask("refund", expires=0.05)])
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await sent(runtime, agent)
        await turn.outcome(timeout=5)
        (result,) = await told(runtime)
        assert (result.state, shop.done) == ("error", [])
        assert "no answer came in time" in result.content


async def test_a_question_that_expires_while_nobody_runs_is_a_denial(shop: Shop, tmp_path: Path) -> None:
    agent = shop.agent()
    clock = ManualClock()
    async with hf.open(tmp_path / "s.db", agents=[agent], clock=clock) as runtime:
        await asked_once(runtime, agent)
    clock.advance(WEEK)
    async with hf.open(tmp_path / "s.db", agents=[agent], clock=clock) as runtime:
        (result,) = await told(runtime)
        assert (result.state, shop.done) == ("error", [])


async def test_a_restart_does_not_give_a_question_more_time(shop: Shop, tmp_path: Path) -> None:
    agent = shop.agent()
    clock = ManualClock()
    async with hf.open(tmp_path / "s.db", agents=[agent], clock=clock) as runtime:
        before = await asked_once(runtime, agent)
    clock.advance(DAY)
    async with hf.open(tmp_path / "s.db", agents=[agent], clock=clock) as runtime:
        (after,) = await parked(runtime)
        assert after.expires == before.expires


async def test_of_two_questions_one_may_expire_and_the_other_be_approved(shop: Shop, tmp_path: Path) -> None:
    short = hf.ask("refund", when={"cents": {"above": 500}}, expires=timedelta(hours=1))
    agent = shop.agent([CALL, call("refund", order="8")], policy=[short, hf.ask("refund")])
    clock = ManualClock()
    async with hf.open(tmp_path / "s.db", agents=[agent], clock=clock) as runtime:
        await sent(runtime, agent)
        await parked(runtime, 2)
    clock.advance(HOUR)
    async with hf.open(tmp_path / "s.db", agents=[agent], clock=clock) as runtime:
        (left,) = await parked(runtime)
        await runtime.approve(left.id)
        assert [result.state for result in await told(runtime)] == ["error", "ok"]
        assert shop.done == [("8", 100)]


# ---- the turn is stopped ---------------------------------------------------------------------------------------------


async def test_a_turn_that_is_cancelled_while_it_waits_asks_nothing_any_more(shop: Shop) -> None:
    agent = shop.agent()
    async with hf.open(None, agents=[agent]) as runtime:
        await asked_once(runtime, agent)
        await runtime.session(SESSION).cancel("enough")
        await ended(runtime)
        assert await runtime.approvals() == []


async def test_an_approval_of_a_cancelled_turn_does_nothing(shop: Shop) -> None:
    agent = shop.agent()
    async with hf.open(None, agents=[agent]) as runtime:
        shown = await asked_once(runtime, agent)
        await runtime.session(SESSION).cancel("enough")
        await ended(runtime)
        with pytest.raises((hf.errors.ApprovalUnknown, hf.ApprovalClosed)):
            await runtime.approve(shown.id)
        assert shop.done == []


async def test_a_call_that_waited_when_its_turn_was_cancelled_is_told_as_not_begun(shop: Shop) -> None:
    agent = shop.agent()
    async with hf.open(None, agents=[agent]) as runtime:
        await asked_once(runtime, agent)
        await runtime.session(SESSION).cancel("enough")
        (result,) = await told(runtime)
        assert result.state in {"skipped", "cancelled"}


async def test_a_deadline_ends_a_turn_that_waits_for_a_person(shop: Shop) -> None:
    agent = shop.agent()
    async with hf.open(None, agents=[agent]) as runtime:
        await runtime.session(SESSION, agent=agent).send("go", deadline=0.15)
        await parked(runtime)
        outcome = await ended(runtime)
        assert (outcome.status, shop.done) == ("limit", [])
        assert await runtime.approvals() == []


async def test_a_question_does_not_outlive_a_cancelled_turn_in_a_store_on_disk(shop: Shop, tmp_path: Path) -> None:
    agent = shop.agent()
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        await asked_once(runtime, agent)
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        await runtime.session(SESSION).cancel("enough")
        await ended(runtime)
        assert (await runtime.approvals(), await check(runtime.store)) == ([], [])
