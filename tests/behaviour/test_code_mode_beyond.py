"""Programs and what lies beyond them: results given from outside, agents that take over, budgets that are shared."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from tests.behaviour.background import SESSION, results, talkative
from tests.behaviour.coding import ASKING, Shop, program, said
from tests.behaviour.talk import at_rest
from tests.sandboxed import needs_sandbox

import holdfast as hf
from holdfast.agent import prepare
from holdfast.records import Cancelled, Handed, Unknown
from holdfast.runtime.replay_check import check_turns
from holdfast.testing import ManualClock, call, check, text

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.runtime.runtime import Runtime
    from holdfast.testing.scripted import ScriptItem

pytestmark = needs_sandbox


class Desk(Shop):
    """A shop that also asks somebody outside, who answers later."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.keys: list[str] = []
        self._options = options

    def tools(self) -> list[hf.Tool[..., Any]]:
        @hf.tool(**self._options)
        async def ask(ctx: hf.Context, what: str) -> Any:
            """Ask somebody outside."""
            pending: hf.Deferred[Any] = await ctx.defer()
            self.keys.append(pending.key)
            self.done.append(what)
            return pending

        return [*super().tools(), ask]


@pytest.fixture
def desk() -> Desk:
    return Desk()


async def read_by_model(runtime: Runtime) -> list[Any]:
    return [result.content for result in results(await runtime.session(SESSION).history())]


# ---- results that are given from outside -----------------------------------------------------------------------------


async def test_a_call_of_a_program_may_get_its_result_from_outside(desk: Desk) -> None:
    agent = desk.agent("a = await price('abc')\n[a, await ask('x')]")
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await runtime.session(SESSION, agent=agent).send("go")
        await at_rest(runtime, SESSION)
        await runtime.resolve(desk.keys[0], {"ok": True})
        await turn.outcome(timeout=10)
        ((read,), done) = await read_by_model(runtime), desk.done
        assert (read["value"], done) == ([3, {"ok": True}], ["abc", "x"])
        assert await check(runtime.store) == []


@pytest.mark.parametrize(
    "options", [{}, {"idempotent": True}, {"read_only": True}], ids=["acts", "idempotent", "reads"]
)
async def test_a_result_from_outside_may_come_after_a_restart(options: dict[str, Any], tmp_path: Path) -> None:
    desk = Desk(**options)
    agent = desk.agent("[await ask('x'), await price('abc')]")
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        await runtime.session(SESSION, agent=agent).send("go")
        await at_rest(runtime, SESSION)
    async with hf.open(tmp_path / "s.db", drive=False) as outside:
        await outside.resolve(desk.keys[0], "yes")
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        await runtime.session(SESSION).turn("t1").outcome(timeout=10)
        assert ((await read_by_model(runtime))[0]["value"], desk.done) == (["yes", 3], ["x", "abc"])
        assert await check(runtime.store) == []
        (found,) = await check_turns(runtime.store, SESSION, agent)
        assert found.verdict == "ok"


async def test_a_call_that_waits_for_its_result_does_not_hold_up_the_others_of_a_program(desk: Desk) -> None:
    source = "import asyncio\nawait asyncio.gather(ask('x'), ask('y'), price('abc'))"
    agent = desk.agent(source)
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await runtime.session(SESSION, agent=agent).send("go")
        await at_rest(runtime, SESSION)
        assert desk.done == ["x", "y", "abc"]
        for key, answer in zip(reversed(desk.keys), ("second", "first"), strict=True):
            await runtime.resolve(key, answer)
        await turn.outcome(timeout=10)
        assert (await read_by_model(runtime))[0]["value"] == ["first", "second", 3]


async def test_nobody_can_answer_for_a_program_that_has_ended(desk: Desk) -> None:
    agent = desk.agent("import asyncio\nawait asyncio.gather(ask('x'), broken('b'))")
    async with hf.open(None, agents=[agent]) as runtime:
        await said(runtime, agent)
        assert not (await runtime.resolve(desk.keys[0], "yes")).won
        entries = [entry.record async for entry in runtime.store.read_all(SESSION)]
        assert [record.key for record in entries if isinstance(record, Unknown)] == [
            "t1/2.tools/1.run_program/%call-1.ask"
        ]


async def test_of_a_call_that_was_asked_outside_nobody_knows_when_its_program_is_stopped_later(tmp_path: Path) -> None:
    desk = Desk(idempotent=True)
    agent = desk.agent("await ask('x')")
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        await runtime.session(SESSION, agent=agent).send("go")
        await at_rest(runtime, SESSION)
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        turn = runtime.session(SESSION).turn("t1")
        await turn.cancel("enough")
        await turn.outcome(timeout=10)
        assert "it is not known whether they took effect: ask." in (await read_by_model(runtime))[0]
        assert await check(runtime.store) == []


@pytest.mark.parametrize(
    ("kind", "end"),
    [({}, Unknown), ({"idempotent": True}, Unknown), ({"read_only": True}, Cancelled)],
    ids=["acts", "idempotent", "reads"],
)
async def test_a_call_that_was_asked_outside_has_an_outcome_of_its_own_when_its_program_is_stopped_later(
    kind: dict[str, Any], end: type[Unknown | Cancelled], tmp_path: Path
) -> None:
    desk = Desk(**kind)
    agent = desk.agent("await ask('x')")
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        await runtime.session(SESSION, agent=agent).send("go")
        await at_rest(runtime, SESSION)
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        turn = runtime.session(SESSION).turn("t1")
        await turn.cancel("enough")
        await turn.outcome(timeout=10)
        entries = [entry.record async for entry in runtime.store.read_all(SESSION)]
        (found,) = [record for record in entries if getattr(record, "key", "").endswith(".ask")][1:]
        assert type(found) is end
        assert ("not known" in (await read_by_model(runtime))[0]) is (end is Unknown)
        assert await check(runtime.store) == []


# ---- agents that take over -------------------------------------------------------------------------------------------

OVER = call("transfer_to_clerk", reason="It is about money.")


def clerk(shop: Shop, *script: ScriptItem, **options: Any) -> hf.Agent:
    said = script or (text("unused"), text("unused"), program("total + 1"), text("done"))
    return hf.Agent("clerk", model=talkative(*said), tools=shop.tools(), policy=ASKING, mode="code", **options)


def handing(shop: Shop, other: hf.Agent, *script: ScriptItem | str, **options: Any) -> hf.Agent:
    return shop.agent(*script, tools=[*shop.tools(), hf.handoff(other)], **options)


def test_the_model_hands_over_by_itself_and_no_program_can() -> None:
    agent = handing(Shop(), clerk(Shop()))
    assert [spec.name for spec in prepare(agent).tool_specs] == ["run_program", "transfer_to_clerk"]
    assert "transfer_to_clerk" not in prepare(agent).system_prompt


async def test_the_agent_that_takes_over_has_the_variables_of_programs_before() -> None:
    shop = Shop()
    other = clerk(shop)
    agent = handing(shop, other, "total = await price('abc')", OVER)
    async with hf.open(None, agents=[agent, other]) as runtime:
        outcome = await said(runtime, agent)
        assert (outcome.status, outcome.text) == ("completed", "done")
        assert (await read_by_model(runtime))[-1]["value"] == 4
        assert await check(runtime.store) == []


async def test_calls_of_programs_before_a_handoff_count_for_the_turn_after_it() -> None:
    shop = Shop()
    script = text("unused"), text("unused"), program("for n in range(9):\n    await price('b')")
    other = clerk(shop, *script, limits=hf.Limits(tool_calls=6))
    agent = handing(shop, other, "await price('a')\nawait price('a')", OVER)
    async with hf.open(None, agents=[agent, other]) as runtime:
        outcome = await said(runtime, agent)
        assert (outcome.code, outcome.agent, shop.done) == ("tool_calls", "clerk", ["a", "a", "b"])


async def test_what_a_program_took_in_goes_over_with_the_session() -> None:
    @hf.tool(read_only=True, untrusted=True)
    async def mail() -> str:
        """What a stranger wrote."""
        return "hello"

    shop = Shop()
    other = clerk(shop, text("unused"), text("done"))
    agent = shop.agent([program("await mail()"), OVER], tools=[mail, hf.handoff(other)], policy=None)
    async with hf.open(None, agents=[agent, other]) as runtime:
        await said(runtime, agent)
        entries = [entry.record async for entry in runtime.store.read_all(SESSION)]
        assert [record.untrusted for record in entries if isinstance(record, Handed)] == [True]


async def test_a_program_that_ended_the_turn_beside_a_handoff_has_the_last_word() -> None:
    shop = Shop()
    other = clerk(shop)
    agent = handing(shop, other, [program("await finish('enough')"), OVER])
    async with hf.open(None, agents=[agent, other]) as runtime:
        outcome = await said(runtime, agent)
        assert (outcome.text, outcome.agent) == ("enough", "shop")


# ---- budgets ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scope", ["session", "daily", "total"])
async def test_time_that_a_program_used_up_ends_the_turn_before_its_next_call(scope: str) -> None:
    clock = ManualClock()

    @hf.tool(read_only=True)
    async def work() -> str:
        """Work for a minute."""
        clock.advance(60_000)
        return "worked"

    limits: dict[str, Any] = {scope: hf.Budget(wall_time=timedelta(minutes=2.5))}
    agent = Shop().agent("for n in range(9):\n    await work()", tools=[work], limits=hf.Limits(**limits))
    async with hf.open(None, agents=[agent], clock=clock) as runtime:
        outcome = await said(runtime, agent)
        assert (outcome.code, outcome.allowed, outcome.used) == (f"{scope}_wall_time", 150.0, 180.0)
        assert await check(runtime.store) == []
