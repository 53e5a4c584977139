"""Hooks of the runtime are guards: they run last, and nothing is changed behind them."""
# ruff: noqa: ARG005  hooks take what they are given

from __future__ import annotations

from typing import Any

import pytest
from tests.behaviour.approving import CALL, Shop, asked_once, ended, parked, sent, told
from tests.behaviour.hooking import OPEN, After, Before, Models, Seen, said

import holdfast as hf
from holdfast.testing import call, text


@pytest.fixture
def shop() -> Shop:
    return Shop()


def below(limit: int) -> Before:
    """Denies refunds above a limit."""
    return Before(lambda call: call.deny("too much") if call.arguments["cents"] > limit else None)


def sets(cents: int) -> Before:
    """Replaces the sum of a refund."""
    return Before(lambda call: call.replace({**call.arguments, "cents": cents}))


async def test_hooks_of_the_agent_run_first_and_those_of_the_runtime_last(shop: Shop) -> None:
    log: list[str] = []
    agent = shop.agent(text("hello"), policy=OPEN, hooks=[Seen(log, "1 "), Seen(log, "2 ")])
    async with hf.open(None, agents=[agent], hooks=[Seen(log, "3 "), Seen(log, "4 ")]) as runtime:
        await sent(runtime, agent)
        await ended(runtime)
    for name in ("before_turn", "before_model", "after_model", "after_turn completed"):
        assert [line for line in log if line.endswith(name)] == [f"{n} {name}" for n in (1, 2, 3, 4)]


async def test_a_guard_judges_the_arguments_that_a_hook_of_the_agent_wrote(shop: Shop) -> None:
    agent = shop.agent(policy=OPEN, hooks=[sets(5_000)])
    async with hf.open(None, agents=[agent], hooks=[below(1_000)]) as runtime:
        (result,) = await said(runtime, agent)
        assert ("too much" in result.content, shop.done) == (True, [])


async def test_a_hook_of_the_agent_does_not_undo_what_a_guard_replaced(shop: Shop) -> None:
    agent = shop.agent(policy=OPEN, hooks=[sets(5_000)])
    async with hf.open(None, agents=[agent], hooks=[sets(10)]) as runtime:
        await said(runtime, agent)
        assert shop.done == [("7", 10)]


async def test_a_guard_judges_again_what_a_later_guard_replaced(shop: Shop) -> None:
    agent = shop.agent(policy=OPEN)
    async with hf.open(None, agents=[agent], hooks=[below(1_000), sets(5_000)]) as runtime:
        (result,) = await said(runtime, agent)
        assert ("too much" in result.content, shop.done) == (True, [])


async def test_a_guard_whose_own_change_was_undone_denies(shop: Shop) -> None:
    agent = shop.agent(policy=OPEN)
    async with hf.open(None, agents=[agent], hooks=[sets(10), sets(5_000)]) as runtime:
        (result,) = await said(runtime, agent)
        assert ("Before.before_tool" in result.content, shop.done) == (True, [])


async def test_guards_that_agree_about_the_arguments_let_the_call_pass(shop: Shop) -> None:
    noted = Before(lambda call: call.replace({**call.arguments, "order": "8"}))
    agent = shop.agent(policy=OPEN)
    async with hf.open(None, agents=[agent], hooks=[sets(10), noted]) as runtime:
        await said(runtime, agent)
        assert shop.done == [("8", 10)]


async def test_a_guard_that_asks_about_a_later_change_asks_a_person(shop: Shop) -> None:
    large = Before(lambda call: call.ask("large") if call.arguments["cents"] > 1_000 else None)
    agent = shop.agent(policy=OPEN)
    async with hf.open(None, agents=[agent], hooks=[large, sets(5_000)]) as runtime:
        shown = await asked_once(runtime, agent)
        assert (shown.why, shown.arguments["cents"]) == ("large", 5_000)


async def test_a_guard_that_changes_what_it_sees_within_changes_nothing(shop: Shop) -> None:
    def meddle(call: hf.HookCall) -> None:
        call.arguments["lines"].append("more")

    @hf.tool
    async def refund(lines: list[str]) -> str:
        """Refund some lines."""
        shop.done.append(lines)
        return "done"

    agent = shop.agent(
        call("refund", lines=["a"]),
        policy=OPEN,
        tools=[refund],
        hooks=[Before(lambda call: call.replace({"lines": ["b"]}))],
    )
    async with hf.open(None, agents=[agent], hooks=[Before(meddle)]) as runtime:
        await said(runtime, agent)
        assert shop.done == [["b"]]


@pytest.mark.parametrize("where", ["runtime", "agent"])
async def test_a_hook_judges_the_arguments_that_a_person_wrote(shop: Shop, where: str) -> None:
    guard: list[hf.Hooks] = [below(1_000)]
    agent = shop.agent(hooks=guard if where == "agent" else [])
    async with hf.open(None, agents=[agent], hooks=guard if where == "runtime" else []) as runtime:
        shown = await asked_once(runtime, agent)
        await runtime.approve(shown.id, arguments={"order": "7", "cents": 5_000})
        (result,) = await told(runtime)
        assert ("too much" in result.content, shop.done) == (True, [])


async def test_arguments_that_a_person_wrote_and_hooks_accept_are_used(shop: Shop) -> None:
    agent = shop.agent(hooks=[sets(500)])
    async with hf.open(None, agents=[agent], hooks=[below(1_000)]) as runtime:
        await sent(runtime, agent)
        (shown,) = await parked(runtime)
        await runtime.approve(shown.id, arguments={"order": "8", "cents": 500})
        await ended(runtime)
        assert shop.done == [("8", 500)]


async def test_a_guard_has_the_last_word_about_a_result(shop: Shop) -> None:
    agent = shop.agent(policy=OPEN, hooks=[After(lambda call, result: call.answer("all of it"))])
    guard = After(lambda call, result: call.answer("withheld"))
    async with hf.open(None, agents=[agent], hooks=[guard]) as runtime:
        (result,) = await said(runtime, agent)
        assert ([seen.content for seen in guard.seen], result.content) == (["all of it"], "withheld")


async def test_a_guard_sees_what_a_hook_of_the_agent_answers_in_place_of_a_tool(shop: Shop) -> None:
    agent = shop.agent(policy=OPEN, hooks=[Before(lambda call: call.answer("from the cache"))])
    guard = After(lambda call, result: call.answer("withheld"))
    async with hf.open(None, agents=[agent], hooks=[guard]) as runtime:
        (result,) = await said(runtime, agent)
        assert ([seen.content for seen in guard.seen], result.content) == (["from the cache"], "withheld")


async def test_a_guard_sees_what_a_hook_of_the_agent_answers_in_place_of_the_model(shop: Shop) -> None:
    agent = shop.agent(policy=OPEN, hooks=[Models(lambda asked: asked.answer("from the cache"))])
    guard = Models(after=lambda asked, reply: asked.answer(f"{reply.text}, checked"))
    async with hf.open(None, agents=[agent], hooks=[guard]) as runtime:
        await sent(runtime, agent)
        assert (await ended(runtime)).text == "from the cache, checked"


# ---- calls that are not made -----------------------------------------------------------------------------------------

NOT_MADE: dict[str, dict[str, Any]] = {
    "denied by the policy": {"policy": [hf.deny("refund")]},
    "denied by a hook": {"policy": OPEN, "hooks": [Before(lambda call: call.deny("no"))]},
    "of no tool": {"script": call("nonsense"), "policy": OPEN},
    "with wrong arguments": {"script": call("refund", order=7, cents="many"), "policy": OPEN},
}


@pytest.mark.parametrize("how", NOT_MADE.values(), ids=NOT_MADE)
async def test_hooks_see_a_call_that_is_not_made(shop: Shop, how: dict[str, Any]) -> None:
    seen = Seen()
    given = {**how}
    agent = shop.agent(given.pop("script", CALL), **given)
    async with hf.open(None, agents=[agent], hooks=[seen]) as runtime:
        await said(runtime, agent)
    told = [line.split()[0] for line in seen.log if line.startswith(("after_tool error", "on_error"))]
    assert told == ["on_error", "after_tool"]
    assert shop.done == []


async def test_a_hook_may_say_something_else_about_a_call_that_was_denied(shop: Shop) -> None:
    agent = shop.agent(policy=[hf.deny("refund")], hooks=[After(lambda call, result: call.answer("ask the desk"))])
    async with hf.open(None, agents=[agent]) as runtime:
        (result,) = await said(runtime, agent)
        assert (result.content, shop.done) == ("ask the desk", [])
