"""Hooks before a call: they see it, can only make what happens stricter, and decide once."""
# ruff: noqa: ARG005  hooks take what they are given

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.behaviour.approving import ASKING, CALL, Shop, asked_once, ended, parked, sent, told
from tests.behaviour.background import SESSION
from tests.behaviour.hooking import ODD, OPEN, Before, Seen, failures, lets_be, raises, said
from tests.behaviour.talk import SOON, until

import holdfast as hf
from holdfast.errors import InvalidArgument
from holdfast.testing import call, check

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def shop() -> Shop:
    return Shop()


# ---- seeing ----------------------------------------------------------------------------------------------------------


async def test_hooks_see_a_turn_from_its_beginning_to_its_end(shop: Shop) -> None:
    seen = Seen()
    agent = shop.agent(policy=OPEN, hooks=[seen])
    async with hf.open(None, agents=[agent]) as runtime:
        await said(runtime, agent)
    model = ["before_model", "after_model"]
    tool = ["before_tool refund", "after_tool ok"]
    assert seen.log == ["before_turn", *model, *tool, *model, "after_turn completed"]


async def test_a_hook_sees_the_call_and_the_turn_around_it(shop: Shop) -> None:
    hook = Before(lets_be)
    agent = shop.agent(policy=OPEN, hooks=[hook])
    async with hf.open(None, agents=[agent]) as runtime:
        await said(runtime, agent)
        (seen,) = hook.calls
        assert (seen.turn.session, seen.turn.agent, seen.turn.turn) == (SESSION, "shop", "t1")
        assert (seen.tool, seen.arguments, bool(seen.idempotency_key)) == ("refund", {"order": "7", "cents": 900}, True)


async def test_a_hook_that_changes_what_it_sees_changes_nothing(shop: Shop) -> None:
    def meddle(call: hf.HookCall) -> None:
        call.arguments["cents"] = 1

    agent = shop.agent(policy=OPEN, hooks=[Before(meddle)])
    async with hf.open(None, agents=[agent]) as runtime:
        await said(runtime, agent)
        assert shop.done == [("7", 900)]


async def test_a_call_of_a_tool_that_is_not_there_is_no_matter_for_hooks(shop: Shop) -> None:
    seen = Seen()
    agent = shop.agent(call("nonsense"), policy=OPEN, hooks=[seen])
    async with hf.open(None, agents=[agent]) as runtime:
        assert [result.state for result in await said(runtime, agent)] == ["error"]
        assert not any(line.startswith("before_tool") for line in seen.log)


async def test_a_hook_is_asked_once_about_each_call_of_a_step(shop: Shop) -> None:
    hook = Before(lets_be)
    agent = shop.agent([CALL, CALL, CALL], policy=OPEN, hooks=[hook])
    async with hf.open(None, agents=[agent]) as runtime:
        await said(runtime, agent)
        assert len({seen.call_id for seen in hook.calls}) == len(hook.calls) == 3


@pytest.mark.parametrize(
    "given", [None, "hook", [1], [hf.Hooks], hf.Hooks()], ids=["none", "word", "number", "class", "one"]
)
async def test_what_is_no_list_of_hooks_is_refused(shop: Shop, given: Any) -> None:
    with pytest.raises(InvalidArgument):
        shop.agent(hooks=given)
    with pytest.raises(InvalidArgument):
        async with hf.open(None, hooks=given):
            pass


# ---- denying ---------------------------------------------------------------------------------------------------------


async def test_a_hook_may_deny_a_call(shop: Shop) -> None:
    agent = shop.agent(policy=OPEN, hooks=[Before(lambda call: call.deny("not on a Sunday"))])
    async with hf.open(None, agents=[agent]) as runtime:
        (result,) = await said(runtime, agent)
        assert (result.state, shop.done) == ("error", [])
        assert "not on a Sunday" in result.content


async def test_after_a_denial_no_other_hook_is_asked(shop: Shop) -> None:
    second = Before(lets_be)
    agent = shop.agent(policy=OPEN, hooks=[Before(lambda call: call.deny("no")), second])
    async with hf.open(None, agents=[agent]) as runtime:
        await said(runtime, agent)
        assert second.calls == []


async def test_a_second_hook_may_deny_what_the_first_lets_pass(shop: Shop) -> None:
    hooks = [Before(lambda call: call.ask("sure?")), Before(lambda call: call.deny("no"))]
    agent = shop.agent(policy=OPEN, hooks=hooks)
    async with hf.open(None, agents=[agent]) as runtime:
        assert [result.state for result in await said(runtime, agent)] == ["error"]
        assert shop.done == []


@pytest.mark.parametrize("answer", [True, "allow", "yes", 1, {"allow": True}], ids=str)
async def test_a_hook_has_no_way_to_allow(shop: Shop, answer: object) -> None:
    agent = shop.agent(policy=[hf.deny("refund")], hooks=[Before(lambda call: answer)])
    async with hf.open(None, agents=[agent]) as runtime:
        assert [result.state for result in await said(runtime, agent)] == ["error"]
        assert shop.done == []


async def test_a_hook_that_asks_does_not_soften_a_deny(shop: Shop) -> None:
    agent = shop.agent(policy=[hf.deny("refund")], hooks=[Before(lambda call: call.ask("may it?"))])
    async with hf.open(None, agents=[agent]) as runtime:
        assert [result.state for result in await said(runtime, agent)] == ["error"]
        assert await runtime.approvals() == []


async def test_a_hook_that_lets_pass_does_not_answer_what_the_policy_asks(shop: Shop) -> None:
    agent = shop.agent(hooks=[Before(lambda call: call.replace(call.arguments))])
    async with hf.open(None, agents=[agent]) as runtime:
        await asked_once(runtime, agent)
        assert shop.done == []


async def test_what_a_hook_returns_that_is_no_decision_denies_and_is_told(shop: Shop) -> None:
    agent = shop.agent(policy=OPEN, hooks=[Before(lambda call: True)])
    async with hf.open(None, agents=[agent]) as runtime:
        assert await failures(runtime, lambda: said(runtime, agent)) == [("Before", "before_tool")]
        assert shop.done == []


async def test_a_hook_that_raises_where_it_decides_denies(shop: Shop) -> None:
    agent = shop.agent(policy=OPEN, hooks=[Before(raises)])
    async with hf.open(None, agents=[agent]) as runtime:
        (result,) = await said(runtime, agent)
        assert (result.state, shop.done) == ("error", [])
        assert "Before.before_tool" in result.content


async def test_a_hook_that_raises_where_it_decides_is_told(shop: Shop) -> None:
    agent = shop.agent(policy=OPEN, hooks=[Before(raises)])
    async with hf.open(None, agents=[agent]) as runtime:
        assert await failures(runtime, lambda: said(runtime, agent)) == [("Before", "before_tool")]


async def test_a_hook_that_wants_to_leave_the_process_denies(shop: Shop) -> None:
    def leave(call: hf.HookCall) -> None:
        raise SystemExit(3)

    agent = shop.agent(policy=OPEN, hooks=[Before(leave)])
    async with hf.open(None, agents=[agent]) as runtime:
        assert [result.state for result in await said(runtime, agent)] == ["error"]
        assert shop.done == []


async def test_a_call_that_a_hook_denies_does_not_hold_up_the_others(shop: Shop) -> None:
    agent = shop.agent([CALL, call("note", text="x")], policy=OPEN, hooks=[Before(raises)])
    async with hf.open(None, agents=[agent]) as runtime:
        assert [result.state for result in await said(runtime, agent)] == ["error", "ok"]
        assert shop.done == ["x"]


async def test_a_hook_may_deny_a_call_that_would_go_to_the_background(shop: Shop) -> None:
    agent = shop.agent(policy=OPEN, tools=[shop.refund(background=True)], hooks=[Before(lambda call: call.deny("no"))])
    async with hf.open(None, agents=[agent]) as runtime:
        assert [result.state for result in await said(runtime, agent)] == ["error"]
        assert (await runtime.tasks.list(), shop.done) == ([], [])


# ---- replacing arguments ---------------------------------------------------------------------------------------------


def halved(call: hf.HookCall) -> Any:
    return call.replace({**call.arguments, "cents": call.arguments["cents"] // 2})


async def test_a_hook_may_replace_arguments(shop: Shop) -> None:
    agent = shop.agent(policy=OPEN, hooks=[Before(halved)])
    async with hf.open(None, agents=[agent]) as runtime:
        await said(runtime, agent)
        assert shop.done == [("7", 450)]


async def test_the_next_hook_sees_the_replaced_arguments(shop: Shop) -> None:
    second = Before(halved)
    agent = shop.agent(policy=OPEN, hooks=[Before(halved), second])
    async with hf.open(None, agents=[agent]) as runtime:
        await said(runtime, agent)
        assert (second.calls[0].arguments["cents"], shop.done) == (450, [("7", 225)])


@pytest.mark.parametrize(("limit", "done"), [(500, [("7", 450)]), (400, [])])
async def test_the_policy_judges_the_replaced_arguments(shop: Shop, limit: int, done: list[Any]) -> None:
    policy = [hf.deny("refund", when={"cents": {"above": limit}}), hf.allow("refund")]
    agent = shop.agent(policy=policy, hooks=[Before(halved)])
    async with hf.open(None, agents=[agent]) as runtime:
        await said(runtime, agent)
        assert shop.done == done


async def test_a_person_is_shown_the_replaced_arguments(shop: Shop) -> None:
    agent = shop.agent(hooks=[Before(halved)])
    async with hf.open(None, agents=[agent]) as runtime:
        shown = await asked_once(runtime, agent)
        await runtime.approve(shown.id)
        await ended(runtime)
        assert (shown.arguments["cents"], shop.done) == (450, [("7", 450)])


async def test_replaced_arguments_that_do_not_fit_are_not_run(shop: Shop) -> None:
    agent = shop.agent(policy=OPEN, hooks=[Before(lambda call: call.replace({"cents": "many"}))])
    async with hf.open(None, agents=[agent]) as runtime:
        assert [result.state for result in await said(runtime, agent)] == ["error"]
        assert shop.done == []


async def test_a_call_in_the_background_runs_with_the_replaced_arguments(shop: Shop) -> None:
    agent = shop.agent(policy=OPEN, tools=[shop.refund(background=True)], hooks=[Before(halved)])
    async with hf.open(None, agents=[agent]) as runtime:
        await said(runtime, agent)

        async def is_done() -> bool:
            return bool(shop.done)

        await until(is_done)
        assert shop.done == [("7", 450)]


@pytest.mark.parametrize("value", ODD.values(), ids=ODD)
async def test_arguments_of_a_hook_that_are_no_json_are_a_denial(shop: Shop, value: object) -> None:
    agent = shop.agent(policy=OPEN, hooks=[Before(lambda call: call.replace({"order": value}))])
    async with hf.open(None, agents=[agent]) as runtime:
        assert [result.state for result in await said(runtime, agent)] == ["error"]
        assert shop.done == []


async def test_large_arguments_of_a_hook_reach_the_tool(shop: Shop, tmp_path: Path) -> None:
    order = "x" * 300_000
    agent = shop.agent(policy=OPEN, hooks=[Before(lambda call: call.replace({"order": order}))])
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        assert [result.state for result in await said(runtime, agent)] == ["ok"]
        assert (shop.done, await check(runtime.store)) == ([(order, 100)], [])


async def test_arguments_of_a_hook_that_are_too_large_to_be_recorded_are_a_denial(shop: Shop, tmp_path: Path) -> None:
    agent = shop.agent(policy=OPEN, hooks=[Before(lambda call: call.replace({"order": "x" * 2_000_000}))])
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        await sent(runtime, agent)
        assert (await ended(runtime)).status == "completed"
        assert shop.done in ([], [("x" * 2_000_000, 100)])


# ---- answering without calling ---------------------------------------------------------------------------------------


async def test_a_hook_may_answer_in_place_of_a_tool(shop: Shop) -> None:
    agent = shop.agent(policy=OPEN, hooks=[Before(lambda call: call.answer({"from": "the cache"}))])
    async with hf.open(None, agents=[agent]) as runtime:
        (result,) = await said(runtime, agent)
        assert (result.state, result.content, shop.done) == ("ok", {"from": "the cache"}, [])


async def test_an_answer_of_a_hook_leaves_a_store_without_fault(shop: Shop, tmp_path: Path) -> None:
    agent = shop.agent(policy=OPEN, hooks=[Before(lambda call: call.answer(None))])
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        await said(runtime, agent)
        assert await check(runtime.store) == []


@pytest.mark.parametrize("value", ODD.values(), ids=ODD)
async def test_an_answer_of_a_hook_that_is_no_json_ends_no_turn(shop: Shop, value: object) -> None:
    agent = shop.agent(policy=OPEN, hooks=[Before(lambda call: call.answer(value))])
    async with hf.open(None, agents=[agent]) as runtime:
        await sent(runtime, agent)
        assert (await ended(runtime)).status == "completed"
        assert shop.done == []


async def test_a_large_answer_of_a_hook_reaches_the_model(shop: Shop, tmp_path: Path) -> None:
    value = ["x" * 1_000] * 300
    agent = shop.agent(policy=OPEN, hooks=[Before(lambda call: call.answer(value))])
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        (result,) = await said(runtime, agent)
        assert (result.content, await check(runtime.store)) == (value, [])


# ---- asking ----------------------------------------------------------------------------------------------------------


async def test_a_hook_may_ask_a_person(shop: Shop) -> None:
    agent = shop.agent(policy=OPEN, hooks=[Before(lambda call: call.ask("it is late"))])
    async with hf.open(None, agents=[agent]) as runtime:
        shown = await asked_once(runtime, agent)
        assert (shown.why, shop.done) == ("it is late", [])


@pytest.mark.parametrize(("answer", "done"), [("approve", [("7", 900)]), ("deny", [])])
async def test_what_a_hook_asks_is_answered_like_anything_else(shop: Shop, answer: str, done: list[Any]) -> None:
    agent = shop.agent(policy=OPEN, hooks=[Before(lambda call: call.ask("it is late"))])
    async with hf.open(None, agents=[agent]) as runtime:
        await getattr(runtime, answer)((await asked_once(runtime, agent)).id)
        await ended(runtime)
        assert shop.done == done


async def test_where_the_policy_asks_too_a_person_also_sees_why_the_hook_asks(shop: Shop) -> None:
    agent = shop.agent(hooks=[Before(lambda call: call.ask("it is late"))])
    async with hf.open(None, agents=[agent]) as runtime:
        assert "it is late" in (await asked_once(runtime, agent)).why


async def test_of_two_hooks_that_ask_a_person_sees_both_reasons(shop: Shop) -> None:
    hooks = [Before(lambda call: call.ask("it is late")), Before(lambda call: call.ask("it is much"))]
    agent = shop.agent(policy=OPEN, hooks=hooks)
    async with hf.open(None, agents=[agent]) as runtime:
        why = (await asked_once(runtime, agent)).why
        assert "it is late" in why
        assert "it is much" in why


# ---- once ------------------------------------------------------------------------------------------------------------


async def test_a_hook_is_not_asked_again_when_a_parked_turn_goes_on(shop: Shop) -> None:
    hook = Before(lets_be)
    agent = shop.agent(hooks=[hook])
    async with hf.open(None, agents=[agent]) as runtime:
        await runtime.approve((await asked_once(runtime, agent)).id)
        await ended(runtime)
        assert len(hook.calls) == 1


async def test_a_hook_is_not_asked_again_after_a_restart(shop: Shop, tmp_path: Path) -> None:
    hook = Before(lambda call: call.ask("sure?"))
    agent = shop.agent(policy=OPEN, hooks=[hook])
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        shown = await asked_once(runtime, agent)
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        await runtime.approve(shown.id)
        await ended(runtime)
        assert (len(hook.calls), shop.done) == (1, [("7", 900)])


async def test_a_hook_that_decides_otherwise_after_a_restart_changes_nothing(shop: Shop, tmp_path: Path) -> None:
    agent = shop.agent(hooks=[Before(halved)])
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        shown = await asked_once(runtime, agent)
    other = shop.agent(hooks=[Before(lambda call: call.replace({"order": "other"}))])
    async with hf.open(tmp_path / "s.db", agents=[other]) as runtime:
        await runtime.approve(shown.id)
        await ended(runtime)
        assert shop.done == [("7", 450)]


def held(shop: Shop, begun: asyncio.Event) -> hf.Tool[..., Any]:
    """A call that may be repeated, and that is left in the middle the first time."""

    @hf.tool(idempotent=True)
    async def refund(order: str, cents: int = 100) -> str:
        """Refund an order."""
        shop.done.append((order, cents))
        if not begun.is_set():
            begun.set()
            await asyncio.Event().wait()
        return "refunded"

    return refund


async def test_a_call_that_is_repeated_after_a_crash_has_the_arguments_that_were_decided(
    shop: Shop, tmp_path: Path
) -> None:
    begun, hook = asyncio.Event(), Before(halved)
    agent = shop.agent(policy=OPEN, tools=[held(shop, begun)], hooks=[hook])
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        await sent(runtime, agent)
        await asyncio.wait_for(begun.wait(), SOON)
        await runtime.close(grace=0)
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        await ended(runtime)
        assert (shop.done, len(hook.calls)) == ([("7", 450), ("7", 450)], 1)


async def _asked_by_a_hook(shop: Shop, path: Path) -> hf.Approval:
    """A call that a hook asks about, in a process that is gone."""
    agent = shop.agent(policy=OPEN, hooks=[Before(lambda call: call.ask("sure?"))])
    async with hf.open(path, agents=[agent]) as runtime:
        return await asked_once(runtime, agent)


@pytest.mark.parametrize("answer", ["deny", "expire"])
async def test_what_a_person_denied_is_not_done_although_the_hook_that_asked_is_gone(
    shop: Shop, answer: str, tmp_path: Path
) -> None:
    shown = await _asked_by_a_hook(shop, tmp_path / "s.db")
    async with hf.open(tmp_path / "s.db", drive=False) as other:
        if answer == "deny":
            await other.deny(shown.id, "no")
        else:
            (wait,) = await other.waits(SESSION)
            await other.store.cancel_wait(SESSION, wait.name)
    async with hf.open(tmp_path / "s.db", agents=[shop.agent(policy=OPEN)]) as runtime:
        await ended(runtime)
        assert shop.done == []


async def test_hooks_and_a_policy_that_asks_go_together_in_one_step(shop: Shop) -> None:
    hook = Before(lambda call: call.deny("no") if call.arguments["order"] == "2" else None)
    calls = [call("refund", order="1"), call("refund", order="2"), call("refund", order="3")]
    agent = shop.agent(calls, policy=ASKING, hooks=[hook])
    async with hf.open(None, agents=[agent]) as runtime:
        await sent(runtime, agent)
        first, second = await parked(runtime, 2)
        await runtime.approve(first.id)
        await runtime.approve(second.id)
        assert [result.state for result in await told(runtime)] == ["ok", "error", "ok"]
        assert sorted(shop.done) == [("1", 100), ("3", 100)]
