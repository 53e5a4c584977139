"""Approvals: a call waits for a person, for as long as it takes, and holds nothing meanwhile."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from tests.behaviour.approving import CALL, Shop, asked_once, ended, parked, sent, the_wait, told
from tests.behaviour.background import SESSION
from tests.behaviour.talk import asked, until

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


# ---- sizes -----------------------------------------------------------------------------------------------------------


async def test_a_call_with_large_arguments_is_asked_about_and_made(shop: Shop, tmp_path: Path) -> None:
    order = "x" * 500_000
    agent = shop.agent(call("refund", order=order))
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        shown = await asked_once(runtime, agent)
        await runtime.approve(shown.id)
        await ended(runtime)
        assert (shown.arguments["order"], shop.done) == (order, [(order, 100)])


async def test_a_call_that_is_too_large_to_be_asked_about_is_denied(shop: Shop, tmp_path: Path) -> None:
    agent = shop.agent(call("refund", order="x" * 2_000_000))
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        await sent(runtime, agent)
        assert (await ended(runtime)).status == "completed"
        assert shop.done == []


async def test_edited_arguments_may_be_as_large_as_an_answer(shop: Shop, tmp_path: Path) -> None:
    order = "x" * (hf.StoreLimits().input_bytes - 200)
    agent = shop.agent()
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        shown = await asked_once(runtime, agent)
        await runtime.approve(shown.id, arguments={"order": order})
        await ended(runtime)
        assert shop.done == [(order, 100)]


async def test_edited_arguments_that_are_too_large_for_an_answer_are_refused(shop: Shop, tmp_path: Path) -> None:
    agent = shop.agent()
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        shown = await asked_once(runtime, agent)
        with pytest.raises(hf.HoldfastError):
            await runtime.approve(shown.id, arguments={"order": "x" * 2_000_000})
        assert [each.id for each in await runtime.approvals()] == [shown.id]
