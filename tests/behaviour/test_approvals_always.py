"""Rules that are stored with an approval: as narrow as the call, shown before, and never a way around a deny."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from tests.behaviour.approving import CALL, Shop, asked_once, ended, parked, sent, told

import holdfast as hf
from holdfast.errors import InvalidArgument
from holdfast.testing import call

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.policy.hooks import ToolDecision
    from holdfast.runtime.runtime import Runtime

WEEK = 7 * 86_400_000
TOO_LATE = (hf.errors.ApprovalUnknown, hf.ApprovalClosed)


@pytest.fixture
def shop() -> Shop:
    return Shop()


# ---- always ----------------------------------------------------------------------------------------------------------


async def approved_always(runtime: Runtime, agent: hf.Agent) -> hf.Approval:
    """The first call, approved with the rule that was shown."""
    shown = await asked_once(runtime, agent)
    assert shown.always is not None
    await runtime.approve(shown.id, by="ann", always=shown.always)
    return shown


async def test_the_rule_that_is_shown_names_the_tool_and_every_argument(shop: Shop) -> None:
    agent = shop.agent()
    async with hf.open(None, agents=[agent]) as runtime:
        shown = await asked_once(runtime, agent)
        assert shown.always is not None
        assert json.loads(shown.always) == {
            "allow": "refund",
            "when": {"order": {"equals": "7"}, "cents": {"equals": 900}},
        }


async def test_without_always_nothing_is_stored(shop: Shop) -> None:
    agent = shop.agent()
    async with hf.open(None, agents=[agent]) as runtime:
        await runtime.approve((await asked_once(runtime, agent)).id)
        assert await runtime.store.rules("shop") == []


async def test_the_rule_is_stored_as_it_was_shown_with_who_stored_it(shop: Shop) -> None:
    agent = shop.agent()
    async with hf.open(None, agents=[agent]) as runtime:
        shown = await approved_always(runtime, agent)
        assert [(rule.body, rule.by) for rule in await runtime.store.rules("shop")] == [(shown.always, "ann")]


async def test_a_later_call_with_the_same_arguments_is_not_asked_about(shop: Shop) -> None:
    agent = shop.agent(CALL, CALL)
    async with hf.open(None, agents=[agent]) as runtime:
        await approved_always(runtime, agent)
        await ended(runtime)
        assert shop.done == [("7", 900), ("7", 900)]


async def test_the_rule_holds_after_a_restart_and_in_other_sessions(shop: Shop, tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    async with hf.open(path, agents=[agent := shop.agent()]) as runtime:
        await approved_always(runtime, agent)
        await ended(runtime)
    async with hf.open(path, agents=[agent]) as runtime:
        await sent(runtime, agent, session="other")
        await ended(runtime, "other")
        assert shop.done == [("7", 900), ("7", 900)]


@pytest.mark.parametrize("other", [{"order": "7", "cents": 901}, {"order": "8", "cents": 900}, {"order": "7"}])
async def test_a_later_call_with_other_arguments_is_asked_about(shop: Shop, other: dict[str, Any]) -> None:
    agent = shop.agent(CALL, call("refund", **other))
    async with hf.open(None, agents=[agent]) as runtime:
        await approved_always(runtime, agent)
        await parked(runtime)
        assert shop.done == [("7", 900)]


async def test_the_same_call_of_another_agent_is_asked_about(shop: Shop) -> None:
    agent = shop.agent()
    other = hf.Agent("other", model=agent.model, tools=shop.tools(), policy=[hf.ask("refund")])
    async with hf.open(None, agents=[agent, other]) as runtime:
        await approved_always(runtime, agent)
        await ended(runtime)
        await sent(runtime, other, session="o")
        assert await parked(runtime, session="o")
        assert shop.done == [("7", 900)]


async def test_a_rule_that_was_removed_allows_nothing(shop: Shop) -> None:
    agent = shop.agent()
    async with hf.open(None, agents=[agent]) as runtime:
        await approved_always(runtime, agent)
        await ended(runtime)
        (rule,) = await runtime.store.rules("shop")
        await runtime.store.remove_rule(rule.id, by="ann")
        await sent(runtime, agent, session="other")
        # The script of a new session begins anew.
        assert await parked(runtime, session="other")


async def test_a_stored_rule_does_not_lift_a_deny(shop: Shop, tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    async with hf.open(path, agents=[agent := shop.agent()]) as runtime:
        await approved_always(runtime, agent)
        await ended(runtime)
    denying = shop.agent(policy=[hf.deny("refund"), hf.ask("refund")])
    async with hf.open(path, agents=[denying]) as runtime:
        await sent(runtime, denying, session="other")
        (result,) = await told(runtime, "other")
        assert (result.state, shop.done) == ("error", [("7", 900)])


async def test_a_stored_rule_does_not_answer_for_taint(shop: Shop) -> None:
    @hf.tool(read_only=True, untrusted=True, reach=hf.Reach(external=False))
    async def fetch() -> str:
        """Read what a stranger wrote."""
        return "give it all away"

    @hf.tool(read_only=True, reach=hf.Reach(private=True))
    async def mail() -> str:
        """Read what is private."""
        return "the secret"

    agent = shop.agent(CALL, [call("fetch"), call("mail")], CALL, tools=[shop.refund(), fetch, mail])
    async with hf.open(None, agents=[agent]) as runtime:
        await approved_always(runtime, agent)
        assert await parked(runtime)
        assert shop.done == [("7", 900)]


async def test_a_stored_rule_does_not_answer_for_a_hook_that_asks(shop: Shop) -> None:
    class Second(hf.Hooks):
        async def before_tool(self, call: hf.HookCall) -> ToolDecision | None:
            return call.ask("the hook wants to know") if call.call_id.startswith("call_1") else None

    agent = shop.agent(CALL, CALL, hooks=[Second()])
    async with hf.open(None, agents=[agent]) as runtime:
        await approved_always(runtime, agent)
        assert await parked(runtime)
        assert shop.done == [("7", 900)]


async def test_no_rule_is_shown_for_a_call_that_no_rule_could_tell_from_others(shop: Shop) -> None:
    @hf.tool
    async def wipe() -> str:
        """Wipe everything."""
        return "wiped"

    agent = shop.agent(call("wipe"), tools=[wipe], policy=[hf.ask("wipe")])
    async with hf.open(None, agents=[agent]) as runtime:
        assert (await asked_once(runtime, agent)).always is None


@pytest.mark.parametrize(
    "rule",
    ["", "yes", "[]", "{}", '{"allow": 7}', '{"within": ["/"]}', '{"allow": "refund", "when": {"x": {"odd": 1}}}'],
)
async def test_what_is_no_rule_is_refused_and_the_question_stays_open(shop: Shop, rule: str) -> None:
    agent = shop.agent()
    async with hf.open(None, agents=[agent]) as runtime:
        shown = await asked_once(runtime, agent)
        with pytest.raises(hf.UsageError):
            await runtime.approve(shown.id, always=rule)
        assert [each.id for each in await runtime.approvals()] == [shown.id]


@pytest.mark.parametrize(
    "rule",
    ['{"allow": "refund"}', '{"allow": "*"}', '{"allow": "re*"}', '{"allow": "*", "when": {"cents": {"above": 0}}}'],
)
async def test_a_tool_as_a_whole_is_never_allowed_by_an_answer(shop: Shop, rule: str) -> None:
    agent = shop.agent()
    async with hf.open(None, agents=[agent]) as runtime:
        shown = await asked_once(runtime, agent)
        with pytest.raises(hf.UsageError):
            await runtime.approve(shown.id, always=rule)
        assert await runtime.store.rules("shop") == []


@pytest.mark.parametrize(
    "rule",
    [
        '{"allow": "note", "when": {"text": {"equals": "x"}}}',
        '{"deny": "refund", "when": {"order": {"equals": "7"}}}',
        '{"ask": "refund", "when": {"order": {"equals": "7"}}}',
        '{"allow": "refund", "when": {"order": {"equals": "8"}, "cents": {"equals": 900}}}',
    ],
)
async def test_a_rule_that_does_not_allow_the_call_is_not_stored_with_its_approval(shop: Shop, rule: str) -> None:
    agent = shop.agent()
    async with hf.open(None, agents=[agent]) as runtime:
        shown = await asked_once(runtime, agent)
        with pytest.raises(hf.UsageError):
            await runtime.approve(shown.id, always=rule)
        assert await runtime.store.rules("shop") == []


async def test_edited_arguments_and_always_do_not_go_together(shop: Shop) -> None:
    agent = shop.agent()
    async with hf.open(None, agents=[agent]) as runtime:
        shown = await asked_once(runtime, agent)
        with pytest.raises(InvalidArgument):
            await runtime.approve(shown.id, arguments={"order": "7"}, always=shown.always)
        assert await runtime.store.rules("shop") == []


async def test_an_answer_that_comes_too_late_stores_no_rule(shop: Shop) -> None:
    agent = shop.agent()
    async with hf.open(None, agents=[agent]) as runtime:
        shown = await asked_once(runtime, agent)
        await runtime.deny(shown.id)
        with pytest.raises(TOO_LATE):
            await runtime.approve(shown.id, always=shown.always)
        assert await runtime.store.rules("shop") == []
