"""Approvals: a call waits for a person, for as long as it takes, and holds nothing meanwhile."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from tests.behaviour.approving import CALL, Shop, asked_once, ended, parked, sent, the_wait, told
from tests.behaviour.background import SESSION
from tests.behaviour.talk import asked, pairs_are_whole, until

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


# ---- waiting ---------------------------------------------------------------------------------------------------------


async def test_a_call_that_is_asked_about_is_not_made(shop: Shop) -> None:
    agent = shop.agent()
    async with hf.open(None, agents=[agent]) as runtime:
        await asked_once(runtime, agent)
        assert shop.done == []


async def test_sessions_that_wait_for_a_person_have_no_task(shop: Shop) -> None:
    agent = shop.agent()
    async with hf.open(None, agents=[agent]) as runtime:
        await asked_once(runtime, agent, session="first")
        before = len(asyncio.all_tasks())
        for number in range(5):
            await asked_once(runtime, agent, session=f"s{number}")

        async def are_gone() -> bool:
            return len(asyncio.all_tasks()) <= before

        await until(are_gone)
        assert (runtime.active, await runtime.tasks.list()) == (0, [])


async def test_while_a_call_waits_nobody_holds_the_lease(shop: Shop, tmp_path: Path) -> None:
    agent = shop.agent()
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        await asked_once(runtime, agent)
        await runtime.store.release(await runtime.store.claim(SESSION))


async def test_what_is_shown_is_the_call_as_it_will_run(shop: Shop) -> None:
    agent = shop.agent(call("refund", order="7"))
    async with hf.open(None, agents=[agent]) as runtime:
        shown = await asked_once(runtime, agent)
        assert (shown.session, shown.agent, shown.tool) == (SESSION, "shop", "refund")
        assert shown.arguments == {"order": "7", "cents": 100}


async def test_what_is_shown_says_which_rule_asks(shop: Shop) -> None:
    agent = shop.agent()
    async with hf.open(None, agents=[agent]) as runtime:
        shown = await asked_once(runtime, agent)
        assert shown.rule.startswith("1: ask")


async def test_the_sandbox_of_a_tool_is_shown(shop: Shop) -> None:
    agent = shop.agent(tools=[shop.refund(reach=hf.Reach(sandbox="no network"))])
    async with hf.open(None, agents=[agent]) as runtime:
        assert (await asked_once(runtime, agent)).sandbox == "no network"


async def test_an_observer_is_told_that_a_person_is_asked(shop: Shop) -> None:
    agent = shop.agent()
    async with hf.open(None, agents=[agent]) as runtime:
        shown = await asked_once(runtime, agent)
        async for event in runtime.events(0):  # pragma: no branch
            if isinstance(event, hf.ApprovalRequested):
                assert shown.digest.startswith(event.wait.rpartition("-")[2])
                break


async def test_what_waits_is_listed_oldest_first(shop: Shop) -> None:
    agent = shop.agent()
    clock = ManualClock()
    async with hf.open(None, agents=[agent], clock=clock) as runtime:
        for session in ("b", "a", "c"):
            await asked_once(runtime, agent, session=session)
            clock.advance(10)
        assert [shown.session for shown in await runtime.approvals()] == ["b", "a", "c"]


async def test_what_one_session_asks_can_be_listed_alone(shop: Shop) -> None:
    agent = shop.agent()
    async with hf.open(None, agents=[agent]) as runtime:
        for session in ("a", "b"):
            await asked_once(runtime, agent, session=session)
        assert [shown.session for shown in await runtime.approvals("a")] == ["a"]


async def test_the_same_call_in_two_sessions_is_two_questions(shop: Shop) -> None:
    agent = shop.agent()
    async with hf.open(None, agents=[agent]) as runtime:
        shown = [await asked_once(runtime, agent, session=session) for session in ("a", "b")]
        assert len({each.id for each in shown}) == len({each.digest for each in shown}) == 2


# ---- going on --------------------------------------------------------------------------------------------------------


async def test_an_approved_call_is_made_once_as_it_was_shown(shop: Shop) -> None:
    agent = shop.agent()
    async with hf.open(None, agents=[agent]) as runtime:
        shown = await asked_once(runtime, agent)
        await runtime.approve(shown.id, by="ops")
        await ended(runtime)
        assert shop.done == [("7", 900)]


async def test_the_model_reads_the_result_of_an_approved_call_as_it_is(shop: Shop) -> None:
    agent = shop.agent()
    async with hf.open(None, agents=[agent]) as runtime:
        await runtime.approve((await asked_once(runtime, agent)).id)
        (result,) = await told(runtime)
        assert (result.state, result.content) == ("ok", "refunded 900")


async def test_an_answered_question_is_not_listed_any_more(shop: Shop) -> None:
    agent = shop.agent()
    async with hf.open(None, agents=[agent]) as runtime:
        await runtime.approve((await asked_once(runtime, agent)).id)
        assert await runtime.approvals() == []


async def test_an_approval_is_used_up_with_the_intent_of_its_call(shop: Shop, tmp_path: Path) -> None:
    agent = shop.agent()
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        await runtime.approve((await asked_once(runtime, agent)).id)
        await ended(runtime)
        wait = await the_wait(runtime.store)
        keys = {entry.seq: getattr(entry.record, "key", "") for entry in await runtime.store.read(SESSION)}
        assert keys[wait.consumed].startswith(wait.name.partition("/%approval-")[0])


async def test_a_store_with_approvals_has_no_fault(shop: Shop, tmp_path: Path) -> None:
    agent = shop.agent([CALL, call("refund", order="8"), call("refund", order="9")])
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        await sent(runtime, agent)
        first, second, third = await parked(runtime, 3)
        await runtime.approve(first.id)
        await runtime.deny(second.id, "no")
        await runtime.approve(third.id, arguments={"order": "9", "cents": 1})
        await ended(runtime)
        assert await check(runtime.store) == []


async def test_somebody_else_may_answer_while_the_first_process_lives(shop: Shop, tmp_path: Path) -> None:
    agent = shop.agent()
    async with (
        hf.open(tmp_path / "s.db", agents=[agent]) as runtime,
        hf.open(tmp_path / "s.db", drive=False) as other,
    ):
        await asked_once(runtime, agent)
        (shown,) = await other.approvals()
        await other.approve(shown.id)
        await ended(runtime)
        assert shop.done == [("7", 900)]


async def test_a_call_that_waits_still_waits_after_a_restart(shop: Shop, tmp_path: Path) -> None:
    agent = shop.agent()
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        before = await asked_once(runtime, agent)
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        (after,) = await parked(runtime)
        assert (after, shop.done) == (before, [])


async def test_an_answer_may_come_days_and_a_restart_later(shop: Shop, tmp_path: Path) -> None:
    agent = shop.agent()
    clock = ManualClock()
    async with hf.open(tmp_path / "s.db", agents=[agent], clock=clock) as runtime:
        shown = await asked_once(runtime, agent)
    clock.advance(5 * DAY)
    async with hf.open(tmp_path / "s.db", drive=False, clock=clock) as other:
        await other.approve(shown.id)
    clock.advance(5 * DAY)
    async with hf.open(tmp_path / "s.db", agents=[agent], clock=clock) as runtime:
        await ended(runtime)
        assert shop.done == [("7", 900)]


async def test_the_model_is_not_asked_again_when_a_parked_turn_goes_on(shop: Shop, tmp_path: Path) -> None:
    agent = shop.agent()
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        shown = await asked_once(runtime, agent)
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        await runtime.approve(shown.id)
        await ended(runtime)
        assert [request.position for request in asked(agent)] == [0, 1]


# ---- denying ---------------------------------------------------------------------------------------------------------


async def test_a_denied_call_is_not_made(shop: Shop) -> None:
    agent = shop.agent()
    async with hf.open(None, agents=[agent]) as runtime:
        await runtime.deny((await asked_once(runtime, agent)).id, "too much")
        await ended(runtime)
        assert shop.done == []


async def test_the_model_is_told_why_a_call_was_denied(shop: Shop) -> None:
    agent = shop.agent()
    async with hf.open(None, agents=[agent]) as runtime:
        await runtime.deny((await asked_once(runtime, agent)).id, "that is too much", by="ann")
        (result,) = await told(runtime)
        assert result.state == "error"
        assert "that is too much" in result.content
        assert "ann" in result.content


async def test_the_turn_goes_on_after_a_denial(shop: Shop) -> None:
    agent = shop.agent()
    async with hf.open(None, agents=[agent]) as runtime:
        await runtime.deny((await asked_once(runtime, agent)).id)
        outcome = await ended(runtime)
        assert (outcome.status, outcome.text) == ("completed", "word 1")


async def test_a_call_that_was_denied_is_asked_about_again_when_the_model_repeats_it(shop: Shop) -> None:
    agent = shop.agent(CALL, CALL)
    async with hf.open(None, agents=[agent]) as runtime:
        first = await asked_once(runtime, agent)
        await runtime.deny(first.id)
        (second,) = await parked(runtime)
        assert second.id != first.id
        assert shop.done == []


async def test_an_approval_is_good_for_one_call(shop: Shop) -> None:
    agent = shop.agent(CALL, CALL)
    async with hf.open(None, agents=[agent]) as runtime:
        first = await asked_once(runtime, agent)
        await runtime.approve(first.id)
        (second,) = await parked(runtime)
        assert second.id != first.id
        assert shop.done == [("7", 900)]


async def test_a_denied_call_is_not_made_although_the_policy_allows_it_by_then(shop: Shop, tmp_path: Path) -> None:
    # FINDING: runtime/authorising.py `_authorise`: where the policy no longer asks, what a person answered to the open
    # question is not looked at.
    path = tmp_path / "s.db"
    async with hf.open(path, agents=[agent := shop.agent()]) as runtime:
        shown = await asked_once(runtime, agent)
    async with hf.open(path, drive=False) as other:
        await other.deny(shown.id, "never")
    async with hf.open(path, agents=[shop.agent(policy=[hf.allow("*")])]) as runtime:
        await ended(runtime)
        assert shop.done == []


async def test_an_approved_call_is_not_made_where_the_policy_denies_it_by_then(shop: Shop, tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    async with hf.open(path, agents=[agent := shop.agent()]) as runtime:
        shown = await asked_once(runtime, agent)
    async with hf.open(path, drive=False) as other:
        await other.approve(shown.id)
    async with hf.open(path, agents=[shop.agent(policy=[hf.deny("refund"), hf.allow("*")])]) as runtime:
        await ended(runtime)
        assert shop.done == []


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
        assert "nobody answered in time" in result.content


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
        with pytest.raises((hf.ApprovalUnknown, hf.ApprovalClosed)):
            await runtime.approve(shown.id)
        assert shop.done == []


async def test_a_call_that_waited_when_its_turn_was_cancelled_is_told_as_not_begun(shop: Shop) -> None:
    # FINDING: runtime/calling.py `_left_before`: the first call of a turn that nobody resumed counts as one that may
    # have been made, also where it only waited for a person; then the model reads "unknown".
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


# ---- kinds of tools --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [{"read_only": True}, {"idempotent": True}, {}], ids=["reads", "idempotent", "acts"])
async def test_tools_of_every_kind_can_be_asked_about(shop: Shop, kind: dict[str, bool]) -> None:
    agent = shop.agent(tools=[shop.refund(**kind)])
    async with hf.open(None, agents=[agent]) as runtime:
        shown = await asked_once(runtime, agent)
        assert shop.done == []
        await runtime.approve(shown.id)
        await ended(runtime)
        assert shop.done == [("7", 900)]


@pytest.mark.parametrize("kind", [{"read_only": True}, {"idempotent": True}, {}], ids=["reads", "idempotent", "acts"])
async def test_the_approval_of_a_tool_of_any_kind_is_used_up(shop: Shop, kind: dict[str, bool], tmp_path: Path) -> None:
    agent = shop.agent(tools=[shop.refund(**kind)])
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        await runtime.approve((await asked_once(runtime, agent)).id)
        await ended(runtime)
        assert (await the_wait(runtime.store)).consumed


async def test_a_forked_session_does_not_carry_a_question_along(shop: Shop) -> None:
    agent = shop.agent()
    async with hf.open(None, agents=[agent]) as runtime:
        await asked_once(runtime, agent)
        await runtime.session(SESSION).fork(id="branch")
        assert [shown.session for shown in await runtime.approvals()] == [SESSION]
