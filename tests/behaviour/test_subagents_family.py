"""What a family of agents uses together: counted on all levels, over turns, restarts and handoffs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.behaviour.stage import SOON, Stage
from tests.behaviour.talk import until

import holdfast as hf
from holdfast.messages import Usage
from holdfast.policy.limits import ROLE
from holdfast.records import Resumed
from holdfast.store import Store
from holdfast.store.contract import StoreLimits
from holdfast.store.sqlite.backend import MemoryBackend
from holdfast.testing import ScriptedModel, call, reply, text
from holdfast.turns.conversation import UserInput, decode_input

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.policy.limits import Mandate
    from holdfast.runtime.runtime import Runtime
    from holdfast.store import Journal

ALL = [hf.allow("*")]


def agent(name: str, script: Any, *, tools: Any = (), policy: Any = ALL, **options: Any) -> hf.Agent:
    return hf.Agent(name, model=ScriptedModel(script), tools=tools, policy=policy, **options)


def costs(part: Any, tokens: int) -> Any:
    """A reply that takes so many tokens."""
    return reply(part, usage=Usage(tokens - 1, 1))


async def kids(runtime: Runtime, session: str) -> list[Journal]:
    return await runtime.store.journals(role=ROLE, session=session)


async def mandate_of(runtime: Runtime, child: str) -> Mandate:
    found = await runtime.store.input(child, 1)
    assert found is not None
    said = decode_input(found.body)
    assert isinstance(said, UserInput)
    assert said.mandate is not None
    return said.mandate


# ---- rolled up -------------------------------------------------------------------------------------------------------


async def test_the_outcome_has_its_own_usage_and_that_of_the_whole_family() -> None:
    low = agent("low", [costs(text("done"), 100)])
    high = agent("high", [costs(call("low", prompt="Go."), 10), costs(text("x"), 20)], tools=[hf.agent_tool(low)])
    async with hf.open(None, agents=[high]) as runtime:
        outcome = await runtime.run("high", "Go.", session="s")
    assert (outcome.usage.total, outcome.children.total, outcome.total_usage.total) == (30, 100, 130)


async def test_the_cost_of_the_family_is_unknown_where_one_price_is() -> None:
    low = agent("low", [costs(text("done"), 1_000_000)])
    high = agent("high", [costs(call("low", prompt="Go."), 10), costs(text("x"), 20)], tools=[hf.agent_tool(low)])
    price = hf.Price(input=1, output=1)
    async with hf.open(None, agents=[high], prices={"scripted:model": price}) as runtime:
        outcome = await runtime.run("high", "Go.", session="s")
    assert outcome.cost is not None
    assert outcome.total_cost == pytest.approx(outcome.cost + 1.0)
    async with hf.open(None, agents=[high]) as runtime:
        outcome = await runtime.run("high", "Go.", session="s")
    assert outcome.total_cost is None


async def test_a_session_tells_what_it_used_in_all() -> None:
    low = agent("low", [costs(text("done"), 100)])
    high = agent("high", [costs(call("low", prompt="Go."), 10), costs(text("x"), 20)], tools=[hf.agent_tool(low)])
    async with hf.open(None, agents=[high]) as runtime:
        await runtime.run("high", "Go.", session="s")
        total = await runtime.session("s").total_usage()
    assert (total.calls, total.usage.total) == (3, 130)


async def test_a_process_that_knows_none_of_the_agents_counts_the_family_too(tmp_path: Path) -> None:
    low = agent("low", [costs(text("done"), 100)])
    high = agent("high", [call("low", prompt="Go."), text("x")], tools=[hf.agent_tool(low)])
    async with hf.open(tmp_path / "s.db", agents=[high]) as runtime:
        await runtime.run("high", "Go.", session="s")
    async with hf.open(tmp_path / "s.db", drive=False) as runtime:
        outcome = await runtime.session("s").turn("t1").outcome()
    assert outcome.children.total == 100


async def test_all_sub_agents_are_counted_however_many_there_are() -> None:
    low = agent("low", [costs(text("done"), 100)])
    asked = [call("low", prompt=f"Go {n}.") for n in range(7)]
    high = agent("high", [asked, text("x")], tools=[hf.agent_tool(low)])
    async with hf.open(None, agents=[high], limits=StoreLimits(page=2)) as runtime:
        outcome = await runtime.run("high", "Go.", session="s")
    assert outcome.children.total == 700


class Moving(Store):
    """A store in which a journal changes while it is being listed."""

    moves: str | None = None

    async def journals(self, **where: Any) -> list[Journal]:
        page = await super().journals(**where)
        if self.moves is not None and page and where.get("role") == ROLE:
            moved, self.moves = self.moves, None
            lease = await self.claim(moved)
            await self.append(lease, [Resumed(at=2**42, run="t1", by="somebody")], head=lease.head)
        return page


async def test_one_that_changes_while_they_are_listed_is_counted() -> None:
    low = agent("low", [costs(text("done"), 100)])
    asked = [call("low", prompt=f"Go {n}.") for n in range(3)]
    high = agent("high", [asked, text("x")], tools=[hf.agent_tool(low)])
    store = Moving(MemoryBackend(limits=StoreLimits(page=2)))
    async with store, hf.Runtime(store, [high]) as runtime:
        await runtime.run("high", "Go.", session="s")
        first, second = await store.journals(role=ROLE, session="s", limit=2)
        (last,) = await store.journals(role=ROLE, session="s", limit=2, before=second)
        await runtime.close()
        store.moves = last.id
        assert last not in (first, second)
        assert (await runtime.children.below("s")).total.usage.total == 300


async def test_what_goes_on_below_one_that_has_ended_is_still_counted(stage: Stage) -> None:
    ground = agent("ground", [costs(call("reads"), 100), costs(text("done"), 1_000)], tools=stage.tools())
    middle = agent("middle", [call("ground", prompt="Go."), text("on its way"), text("Heard.")])
    middle.tools["ground"] = hf.agent_tool(ground, background=True)
    top = agent("top", [call("middle", prompt="Go."), text("x")], tools=[hf.agent_tool(middle)])
    async with hf.open(None, agents=[top, ground], can_deliver=lambda _: False) as runtime:
        await runtime.run("top", "Go.", session="s")
        await asyncio.wait_for(stage.reached.wait(), SOON)
        before = (await runtime.children.below("s")).total.usage.total
        stage.go_on.set()
        (child,) = await kids(runtime, "s")

        async def ended() -> bool:
            return [line.status for line in await kids(runtime, child.id)] == ["completed"]

        await until(ended)
        after = (await runtime.children.below("s")).total.usage.total
    assert after - before == 1_000


# ---- budgets ---------------------------------------------------------------------------------------------------------


async def test_what_sub_agents_used_in_earlier_turns_counts_against_the_session() -> None:
    low = agent("low", [costs(text("done"), 900)])
    script = [costs(call("low", prompt="Go."), 10), costs(text("x"), 10), costs(text("y"), 10)]
    limits = hf.Limits(session=hf.Budget(tokens=915))
    high = agent("high", script, tools=[hf.agent_tool(low, budget=1.0)], limits=limits)
    async with hf.open(None, agents=[high]) as runtime:
        first = await runtime.run("high", "Go.", session="s")
        outcome = await runtime.run("high", "Go on.", session="s")
    assert first.ok
    assert (outcome.status, outcome.code, outcome.used) == ("limit", "session_tokens", 920)


async def test_what_was_promised_before_a_restart_is_not_there_after_it(tmp_path: Path, stage: Stage) -> None:
    low = agent("low", [call("reads"), text("done")], tools=stage.tools())
    script = [
        call("low", prompt="one"),
        text("x"),
        call("low", prompt="two"),
        text("x"),
        text("Heard."),
        text("Heard."),
    ]

    def high() -> hf.Agent:
        tools = [hf.agent_tool(low, background=True, budget=0.5)]
        return agent("high", script, tools=tools, limits=hf.Limits(session=hf.Budget(tokens=100_000)))

    async with hf.open(tmp_path / "s.db", agents=[high()]) as runtime:
        await runtime.run("high", "Go.", session="s")
        await asyncio.wait_for(stage.reached.wait(), SOON)
        await runtime.close(grace=0)
    async with hf.open(tmp_path / "s.db", agents=[high()]) as runtime:
        await runtime.run("high", "Go on.", session="s")

        async def both() -> bool:
            return len(await kids(runtime, "s")) == 2

        await until(both)
        shares = [(await mandate_of(runtime, line.id)).budget.tokens or 0 for line in await kids(runtime, "s")]
        await runtime.close(grace=0)
    assert sum(shares) < 76_000


async def test_what_is_promised_to_one_that_has_ended_is_held_as_long_as_those_below_it_work(stage: Stage) -> None:
    ground = agent("ground", [call("reads"), text("done")], tools=stage.tools())
    middle = agent("middle", [call("ground", prompt="Go."), text("on its way"), text("Heard.")])
    middle.tools["ground"] = hf.agent_tool(ground, background=True, budget=1.0)
    script = [call("middle", prompt="Go."), call("low", prompt="Go."), text("x")]
    tools = [hf.agent_tool(middle, budget=0.5), hf.agent_tool(agent("low", [text("done")]), budget=1.0)]
    top = agent("top", script, tools=tools, limits=hf.Limits(session=hf.Budget(tokens=100_000)))

    class Late(hf.Hooks):
        async def before_tool(self, call: hf.HookCall) -> None:
            if call.tool == "low":  # the one below the first is at work by then
                await asyncio.wait_for(stage.reached.wait(), SOON)

    async with hf.open(None, agents=[top, ground], hooks=[Late()]) as runtime:
        await runtime.run("top", "Go.", session="s")
        (line,) = [line for line in await kids(runtime, "s") if line.agent == "low"]
        share = (await mandate_of(runtime, line.id)).budget.tokens or 0
        stage.go_on.set()
    assert 40_000 < share < 51_000


# ---- one that is damaged ---------------------------------------------------------------------------------------------


async def test_a_sub_agent_that_is_damaged_does_not_keep_its_parent_from_going_on() -> None:
    low = agent("low", [costs(text("done"), 100)])
    script = [costs(call("low", prompt="Go."), 10), costs(text("x"), 10), costs(text("y"), 10)]
    limits = hf.Limits(session=hf.Budget(tokens=1_000_000))
    high = agent("high", script, tools=[hf.agent_tool(low)], limits=limits)
    async with hf.open(None, agents=[high], prices={"scripted:model": hf.Price(input=1, output=1)}) as runtime:
        first = await runtime.run("high", "Go.", session="s")
        (child,) = await kids(runtime, "s")
        await runtime.store.quarantine(child.id, "a test")
        again = await runtime.session("s").turn("t1").outcome(timeout=SOON)
        outcome = await (await runtime.session("s").send("Go on.")).outcome(timeout=SOON)
        total = await runtime.session("s").total_usage()
    assert first.total_cost is not None
    assert (total.usage.total, total.cost) == (30, None)
    assert (again.text, again.total_cost) == ("x", None)  # what it used nobody can say
    assert outcome.text == "y"


async def test_what_a_damaged_sub_agent_might_have_used_counts_as_used() -> None:
    low = agent("low", [costs(text("done"), 100)])
    script = [costs(call("low", prompt="Go."), 10), costs(text("x"), 10), costs(text("y"), 10)]
    limits = hf.Limits(session=hf.Budget(tokens=1_000))
    high = agent("high", script, tools=[hf.agent_tool(low, budget=1.0)], limits=limits)
    async with hf.open(None, agents=[high]) as runtime:
        await runtime.run("high", "Go.", session="s")
        (child,) = await kids(runtime, "s")
        await runtime.store.quarantine(child.id, "a test")
        outcome = await (await runtime.session("s").send("Go on.")).outcome(timeout=SOON)
    assert (outcome.status, outcome.code) == ("limit", "session_tokens")


async def test_a_parent_is_cancelled_also_when_a_sub_agent_is_damaged(stage: Stage) -> None:
    low = agent("low", [call("reads"), text("done")], tools=stage.tools())
    high = agent("high", [call("low", prompt="Go."), text("x")], tools=[hf.agent_tool(low)])
    async with hf.open(None, agents=[high]) as runtime:
        turn = await runtime.session("s", agent="high").send("Go.")
        await asyncio.wait_for(stage.reached.wait(), SOON)
        (child,) = await kids(runtime, "s")
        await runtime.store.quarantine(child.id, "a test")
        await turn.cancel("enough")
        assert (await turn.outcome(timeout=SOON)).status == "cancelled"
        stage.go_on.set()


# ---- handed over -----------------------------------------------------------------------------------------------------


async def test_a_sub_agent_works_for_who_asked_for_it_also_when_the_session_is_handed_over(stage: Stage) -> None:
    low = agent("low", [text("done")])
    other = agent("other", [text("?"), text("I have it.")])
    step = [call("low", prompt="Go."), call("transfer_to_other", reason="Yours.")]
    first = agent("first", [step], tools=[hf.agent_tool(low, background=True), hf.handoff(other)])
    async with hf.open(None, agents=[first]) as runtime:
        await runtime.run("first", "Go.", session="s")

        async def begun() -> bool:
            return len(await kids(runtime, "s")) == 1

        await until(begun)
        (line,) = await kids(runtime, "s")
        assert (await mandate_of(runtime, line.id)).above == ("first",)
    stage.go_on.set()


async def test_what_sub_agents_used_before_a_handoff_counts_against_the_limit_of_the_turn() -> None:
    low = agent("low", [costs(text("done"), 900)])
    other = agent("other", [text("?"), text("?"), text("I have it.")], limits=hf.Limits(tokens=500))
    script = [costs(call("low", prompt="Go."), 10), costs(call("transfer_to_other", reason="Yours."), 10)]
    first = agent("first", script, tools=[hf.agent_tool(low), hf.handoff(other)])
    async with hf.open(None, agents=[first]) as runtime:
        outcome = await runtime.run("first", "Go.", session="s")
    assert (outcome.status, outcome.code, outcome.used) == ("limit", "family_tokens", 920)


# ---- stopped while it begins -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("rounds", range(0, 60, 3))
async def test_wherever_a_parent_is_cancelled_no_sub_agent_goes_on(rounds: int) -> None:
    @hf.tool(read_only=True)
    async def hangs() -> str:
        await asyncio.Event().wait()
        return "never"

    low = agent("low", [call("hangs"), text("done")], tools=[hangs])
    high = agent("high", [call("low", prompt="Go."), text("x")], tools=[hf.agent_tool(low)])
    async with hf.open(None, agents=[high]) as runtime:
        turn = await runtime.session("s", agent="high").send("Go.")
        for _ in range(rounds):
            await asyncio.sleep(0)
        await turn.cancel("enough")
        assert (await turn.outcome(timeout=SOON)).status == "cancelled"

        async def stopped() -> bool:
            return all(line.status == "cancelled" for line in await kids(runtime, "s"))

        await until(stopped)


async def test_a_parent_that_is_too_late_takes_its_sub_agent_with_it(stage: Stage) -> None:
    low = agent("low", [call("reads"), text("done")], tools=stage.tools())
    high = agent("high", [call("low", prompt="Go."), text("x")], tools=[hf.agent_tool(low)])
    async with hf.open(None, agents=[high]) as runtime:
        turn = await runtime.session("s", agent="high").send("Go.", deadline=0.3)
        await asyncio.wait_for(stage.reached.wait(), SOON)
        outcome = await turn.outcome(timeout=SOON)
        assert (outcome.status, outcome.code) == ("limit", "deadline")

        async def ended() -> bool:
            return [line.status for line in await kids(runtime, "s")] in (["limit"], ["cancelled"])

        await until(ended)


async def test_what_a_sub_agent_asked_a_person_is_withdrawn_when_its_parent_is_cancelled() -> None:
    @hf.tool
    async def publish() -> str:
        return "published"

    rules = [hf.ask("publish"), hf.allow("*")]
    low = agent("low", [call("publish"), text("done")], tools=[publish], policy=rules)
    high = agent("high", [call("low", prompt="Go."), text("x")], tools=[hf.agent_tool(low)])
    async with hf.open(None, agents=[high]) as runtime:
        turn = await runtime.session("s", agent="high").send("Go.")
        await until(runtime.approvals)
        (asked,) = await runtime.approvals()
        await turn.cancel("enough")
        assert (await turn.outcome(timeout=SOON)).status == "cancelled"

        async def withdrawn() -> bool:
            return await runtime.approvals() == []

        await until(withdrawn)
        with pytest.raises(hf.errors.ApprovalUnknown):
            await runtime.approve(asked.id)


async def test_all_sub_agents_are_stopped_however_many_there_are_and_whatever_they_do_meanwhile() -> None:
    begun: set[str] = set()
    all_begun = asyncio.Event()

    @hf.tool(read_only=True)
    async def hangs(ctx: hf.Context) -> str:
        begun.add(ctx.session)
        if len(begun) == 9:
            all_begun.set()
        await asyncio.Event().wait()
        return "never"

    low = agent("low", [call("hangs"), text("done")], tools=[hangs])
    asked = [call("low", prompt=f"Go {n}.") for n in range(9)]
    high = agent("high", [asked, text("x")], tools=[hf.agent_tool(low, budget=0.1)])
    async with hf.open(None, agents=[high], limits=StoreLimits(page=2)) as runtime:
        turn = await runtime.session("s", agent="high").send("Go.")
        await asyncio.wait_for(all_begun.wait(), SOON)
        await turn.cancel("enough")
        assert (await turn.outcome(timeout=SOON)).status == "cancelled"

        async def stopped() -> bool:
            found = [await runtime.store.journal(id) for id in begun]
            return all(line.status == "cancelled" for line in found)

        await until(stopped)
