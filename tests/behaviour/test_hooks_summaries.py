"""Hooks see and decide about requests for summaries as about every other question to a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.behaviour.window import SUMMARY, Writer, agent_of, compactions, marks

import holdfast as hf
from holdfast.messages import Usage
from holdfast.runtime.replay_check import check_turns
from holdfast.testing import ScriptedModel, check, reply, text

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.messages import ModelReply
    from holdfast.policy.hooks import Deny, ModelDecision

OTHER = SUMMARY.replace("the key is 7", "the key is 8")


class Watching(hf.Hooks):
    """Writes down what it sees of summaries, and says of them what a test wants."""

    def __init__(
        self,
        before: Callable[[hf.HookRequest], ModelDecision | None] = lambda _: None,
        after: Callable[[hf.HookRequest], Deny | None] = lambda _: None,
    ) -> None:
        self.seen: list[str] = []
        self._before, self._after = before, after

    async def before_model(self, asked: hf.HookRequest) -> ModelDecision | None:
        if asked.kind != "summary":
            return None
        self.seen.append("before")
        return self._before(asked)

    async def after_model(self, asked: hf.HookRequest, reply: ModelReply) -> Deny | None:
        if asked.kind != "summary":
            return None
        self.seen.append(f"after {reply.text == SUMMARY}")
        return self._after(asked)


def writer() -> Writer:
    return Writer(12, summary=reply(text(SUMMARY), usage=Usage(input=70, output=7)))


async def ran(runtime: Any, agent: hf.Agent) -> hf.TurnOutcome:
    return await runtime.run(agent, "go", session="s")


async def test_hooks_see_requests_for_summaries_and_their_replies() -> None:
    hooks = Watching()
    agent = agent_of(writer(), hooks=[hooks])
    async with hf.open(None, agents=[agent]) as runtime:
        assert (await ran(runtime, agent)).status == "completed"
    assert hooks.seen == ["before", "after True"]


async def test_a_request_of_a_turn_says_that_it_is_one() -> None:
    kinds: list[str] = []

    class Kinds(hf.Hooks):
        async def before_model(self, asked: hf.HookRequest) -> ModelDecision | None:
            kinds.append(asked.kind)

    agent = agent_of(writer(), hooks=[Kinds()])
    async with hf.open(None, agents=[agent]) as runtime:
        await ran(runtime, agent)
    assert (kinds.count("turn"), kinds.count("summary")) == (13, 1)


async def test_a_summary_that_a_hook_denies_is_not_asked_for() -> None:
    model = writer()
    agent = agent_of(model, hooks=[Watching(before=lambda asked: asked.deny("not to this model"))])
    async with hf.open(None, agents=[agent]) as runtime:
        outcome = await ran(runtime, agent)
        (made, *_) = await compactions(runtime.store)
        assert (outcome.status, model.summarised) == ("completed", [])
        assert (made.plan.way, "not to this model" in made.failure) == ("drop", True)
        assert "summary" not in marks(await runtime.session("s").context())


async def test_a_hook_may_give_the_summary_itself() -> None:
    model = writer()
    agent = agent_of(model, hooks=[Watching(before=lambda asked: asked.answer(OTHER))])
    async with hf.open(None, agents=[agent]) as runtime:
        await ran(runtime, agent)
        (made, *_) = await compactions(runtime.store)
        assert (model.summarised, made.summary, made.model, made.cost) == ([], OTHER, "hook", 0.0)


async def test_a_summary_of_a_hook_is_checked_as_any_other() -> None:
    agent = agent_of(writer(), hooks=[Watching(before=lambda asked: asked.answer("no headings"))])
    async with hf.open(None, agents=[agent]) as runtime:
        await ran(runtime, agent)
        assert (await compactions(runtime.store))[0].summary is None


async def test_a_summary_that_must_not_be_used_is_paid_for() -> None:
    agent = agent_of(writer(), hooks=[Watching(after=lambda asked: asked.deny("it tells too much"))])
    async with hf.open(None, agents=[agent]) as runtime:
        await ran(runtime, agent)
        (made, *_) = await compactions(runtime.store)
        assert (made.summary, "it tells too much" in made.failure) == (None, True)
        assert made.usage == Usage(input=70, output=7)


async def test_a_hook_that_fails_denies_the_summary_and_not_the_turn() -> None:
    def broken(_: hf.HookRequest) -> None:
        raise RuntimeError("broken")

    model = writer()
    agent = agent_of(model, hooks=[Watching(before=broken)])
    async with hf.open(None, agents=[agent]) as runtime:
        assert (await ran(runtime, agent)).status == "completed"
        assert model.summarised == []


async def test_what_was_decided_about_a_summary_is_not_asked_again(tmp_path: Any) -> None:
    first = Watching(before=lambda asked: asked.answer(OTHER))
    agent = agent_of(writer(), hooks=[first])
    async with hf.open(tmp_path / "s.db", agents=[agent], mirror=False) as runtime:
        await ran(runtime, agent)
    second = Watching(before=lambda asked: asked.deny("no"))
    later = agent_of(writer(), hooks=[second])
    async with hf.open(tmp_path / "s.db", agents=[later], mirror=False) as runtime:
        found = await check_turns(runtime.store, "s", later)
        assert ([turn.verdict for turn in found], second.seen) == (["ok"], [])
        assert "the key is 8" in str(await runtime.session("s").context())


# ---- a summary that uses up the rest ---------------------------------------------------------------------------------

COSTLY = Usage(input=1_000)


@pytest.mark.parametrize(
    ("limits", "code"),
    [
        (hf.Limits(steps=None, tokens=500), "tokens"),
        (hf.Limits(steps=None, session=hf.Budget(tokens=500)), "session_tokens"),
        (hf.Limits(steps=None, daily=hf.Budget(tokens=500)), "daily_tokens"),
        (hf.Limits(steps=None, total=hf.Budget(tokens=500)), "total_tokens"),
    ],
    ids=["turn", "session", "day", "agent"],
)
async def test_after_a_summary_that_used_up_a_budget_the_model_is_not_asked(limits: hf.Limits, code: str) -> None:
    model = Writer(30, summary=reply(text(SUMMARY), usage=COSTLY))
    agent = agent_of(model, limits=limits)
    async with hf.open(None, agents=[agent]) as runtime:
        outcome = await ran(runtime, agent)
        assert (outcome.status, outcome.code) == ("limit", code)
        assert model.requests[-1] is model.summarised[0]
        assert outcome.usage.input == COSTLY.input
        assert [turn.verdict for turn in await check_turns(runtime.store, "s", agent)] == ["ok"]
        assert await check(runtime.store) == []


async def test_a_summary_of_unknown_price_ends_a_turn_whose_money_is_limited() -> None:
    prices = {"scripted:model": hf.Price(input=1, output=1)}
    model = Writer(30)
    small = Writer(summary=reply(text(SUMMARY), usage=COSTLY), name="nobody:knows")
    compaction = hf.Compaction(window=4_000, model=small)
    agent = agent_of(model, compaction=compaction, limits=hf.Limits(steps=None, cost_usd=5.0))
    async with hf.open(None, agents=[agent], prices=prices) as runtime:
        outcome = await ran(runtime, agent)
        assert (outcome.status, outcome.code, len(small.requests)) == ("limit", "cost_unknown", 1)


# ---- numbers that can't be ------------------------------------------------------------------------------------------


async def test_usage_below_zero_gives_nothing_back() -> None:
    said = [reply(text("one"), usage=Usage(input=50)), reply(text("two"), usage=Usage(input=-40, output=-9))]
    agent = hf.Agent("a", model=ScriptedModel(said))
    async with hf.open(None, agents=[agent]) as runtime:
        assert [(await ran(runtime, agent)).usage for _ in said] == [Usage(input=50), Usage()]
        assert sum(line.usage.total for line in await runtime.session("s").usage()) == 50
        assert (await runtime.store.spent("a")).input_tokens == 50


async def test_a_cost_below_zero_gives_nothing_back() -> None:
    made = hf.ModelReply((hf.Text("x"),), cost=-5.0)
    agent = hf.Agent("a", model=ScriptedModel([made]))
    async with hf.open(None, agents=[agent]) as runtime:
        assert (await ran(runtime, agent)).cost == 0.0
