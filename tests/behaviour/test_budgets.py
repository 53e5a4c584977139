"""What a session, a day and an agent may use: counted over turns, sessions and restarts, and never begun after it."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from tests.behaviour.talk import SOON, until
from tests.behaviour.window import Writer, agent_of, compactions, look
from typer.testing import CliRunner

import holdfast as hf
from holdfast.cli.app import app
from holdfast.messages import Usage
from holdfast.runtime.budgets import spend_of_record
from holdfast.runtime.replay_check import check_turns
from holdfast.store.audit import audit
from holdfast.store.spending import DAY_MS, Spend, day_of
from holdfast.testing import ManualClock, ScriptedModel, call, check, error, reply, text
from holdfast.turns.machine import LAST_STEP

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from holdfast.runtime.runtime import Runtime
    from holdfast.store import Store

PRICES = {"scripted:model": hf.Price(input=1_000_000, output=1_000_000)}  # a dollar a token
EACH = Usage(input=8, output=2)
HOLD = 0.02


def worker(calls: int = 1, *, name: str = "a", usage: Usage = EACH, **limits: Any) -> hf.Agent:
    """In each turn it looks so many times, one after the other, and is done."""

    def say(asked: hf.ModelRequest) -> Any:
        said = [type(message) for message in reversed(asked.messages)]
        looked = said[: said.index(hf.UserMessage)].count(hf.ToolMessage)
        words = text("done") if looked >= calls else call(look, at=asked.position or 0, words=1)
        return reply(words, usage=usage)

    return hf.Agent(name, model=ScriptedModel(say), tools=[look], limits=hf.Limits(**limits))


def asked(agent: hf.Agent) -> int:
    assert isinstance(agent.model, ScriptedModel)
    return len(agent.model.requests)


async def ran(runtime: Runtime, agent: hf.Agent, session: str = "s") -> hf.TurnOutcome:
    return await (await runtime.session(session, agent=agent).send("go")).outcome(timeout=SOON)


def told(outcome: hf.TurnOutcome) -> tuple[str, str, float | None, float | None]:
    return outcome.status, outcome.code, outcome.allowed, outcome.used


# ---- a session -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("budget", "end"),
    [
        (hf.Budget(tokens=30), ("limit", "session_tokens", 30, 30)),
        (hf.Budget(steps=3), ("limit", "session_steps", 3, 2)),
        (hf.Budget(tool_calls=1), ("limit", "session_tool_calls", 1, 1)),
        (hf.Budget(cost_usd=25.0), ("limit", "session_cost_usd", 25.0, 30.0)),
    ],
    ids=["tokens", "steps", "tool calls", "money"],
)
async def test_turns_of_a_session_use_one_budget(budget: hf.Budget, end: tuple[str, str, float, float]) -> None:
    agent = worker(session=budget)
    async with hf.open(None, agents=[agent], prices=PRICES) as runtime:
        assert (await ran(runtime, agent)).status == "completed"  # two steps, twenty tokens, one call
        outcome = await ran(runtime, agent)
        assert told(outcome) == end if budget.steps is None else told(outcome)[:3] == end[:3]


async def test_a_restart_does_not_begin_the_count_anew(tmp_path: Path) -> None:
    agent = worker(session=hf.Budget(tokens=30))
    outcomes: list[str] = []
    for _ in range(3):
        async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
            outcomes.append((await ran(runtime, agent)).status)
    assert outcomes == ["completed", "limit", "limit"]


async def test_nothing_is_begun_when_the_budget_is_used_up() -> None:
    agent = worker(session=hf.Budget(tokens=20))
    async with hf.open(None, agents=[agent]) as runtime:
        await ran(runtime, agent)
        before = asked(agent)
        outcome = await ran(runtime, agent)
        assert (outcome.steps, outcome.usage, asked(agent)) == (0, Usage(), before)


async def test_another_session_has_a_budget_of_its_own() -> None:
    agent = worker(session=hf.Budget(tokens=20))
    async with hf.open(None, agents=[agent]) as runtime:
        await ran(runtime, agent)
        assert (await ran(runtime, agent, "other")).status == "completed"


async def test_a_call_that_failed_is_no_step() -> None:
    script = [error("down"), text("one"), text("two")]
    agent = hf.Agent("a", model=ScriptedModel(script), limits=hf.Limits(session=hf.Budget(steps=2)))
    async with hf.open(None, agents=[agent]) as runtime:
        found = [(await ran(runtime, agent)).status for _ in range(4)]
    assert found == ["failed", "completed", "completed", "limit"]


async def test_a_turn_that_ended_so_fits_its_records() -> None:
    agent = worker(session=hf.Budget(tokens=30))
    async with hf.open(None, agents=[agent]) as runtime:
        for _ in range(3):
            await ran(runtime, agent)
        assert [turn.verdict for turn in await check_turns(runtime.store, "s", agent)] == ["ok", "ok", "ok"]
        assert await check(runtime.store) == []


async def test_calls_that_are_not_begun_have_a_result() -> None:
    agent = worker(session=hf.Budget(tool_calls=1))
    async with hf.open(None, agents=[agent]) as runtime:
        await ran(runtime, agent)
        await ran(runtime, agent)
        last = (await runtime.session("s").history())[-1]
        assert isinstance(last, hf.ToolMessage)
        assert [result.state for result in last.results] == ["skipped"]


async def test_summaries_use_the_tokens_of_the_session() -> None:
    model = Writer(30, summary=reply(text("nothing"), usage=Usage(input=1_000)))
    agent = agent_of(model, limits=hf.Limits(steps=None, session=hf.Budget(tokens=500)))
    outcome = await hf.run(agent, "go")
    assert (outcome.status, outcome.code) == ("limit", "session_tokens")
    assert len(model.summarised) == 1


# ---- a day, and all of it --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scope", ["daily", "total"])
@pytest.mark.parametrize(
    ("budget", "code"),
    [
        (hf.Budget(tokens=30), "tokens"),
        (hf.Budget(steps=3), "steps"),
        (hf.Budget(tool_calls=1), "tool_calls"),
        (hf.Budget(cost_usd=25.0), "cost_usd"),
    ],
    ids=["tokens", "steps", "tool calls", "money"],
)
async def test_sessions_of_an_agent_use_one_budget(scope: str, budget: hf.Budget, code: str) -> None:
    daily = scope == "daily"
    agent = worker(daily=budget if daily else None, total=None if daily else budget)
    async with hf.open(None, agents=[agent], prices=PRICES) as runtime:
        assert (await ran(runtime, agent, "one")).status == "completed"
        outcome = await ran(runtime, agent, "two")
        assert (outcome.status, outcome.code) == ("limit", f"{scope}_{code}")
        assert outcome.allowed == getattr(budget, code)


async def test_another_agent_has_a_budget_of_its_own() -> None:
    one, two = worker(total=hf.Budget(tokens=20)), worker(name="b", total=hf.Budget(tokens=20))
    async with hf.open(None, agents=[one, two]) as runtime:
        await ran(runtime, one, "one")
        assert (await ran(runtime, two, "two")).status == "completed"


async def test_a_runtime_says_what_the_sessions_of_an_agent_have_spent_in_all_and_on_a_day() -> None:
    clock, agent = ManualClock(), worker()
    async with hf.open(None, agents=[agent], prices=PRICES, clock=clock) as runtime:
        first = datetime.fromtimestamp(clock.read().wall / 1000, UTC).date()
        await ran(runtime, agent, "one")
        clock.advance(DAY_MS)
        await ran(runtime, agent, "two")
        await ran(runtime, agent, "three")
        found = [await runtime.spent(agent), await runtime.spent("a", day=first), await runtime.spent("nobody")]
        assert [spend.cost for spend in found] == [60.0, 20.0, 0.0]
        assert [spend.tool_calls for spend in found] == [3, 1, 0]


async def test_spending_has_no_cost_if_the_price_of_a_call_is_not_known() -> None:
    agent = worker()
    async with hf.open(None, agents=[agent]) as runtime:
        await ran(runtime, agent)
        spent = await runtime.spent(agent)
    assert (spent.cost, spent.unpriced, spent.input_tokens) == (None, 2, 16)


async def test_the_next_day_begins_anew_and_the_whole_goes_on() -> None:
    clock = ManualClock()
    agent = worker(daily=hf.Budget(tokens=20), total=hf.Budget(tokens=40))
    async with hf.open(None, agents=[agent], clock=clock) as runtime:
        found: list[str] = []
        for _ in range(3):
            found += [(await ran(runtime, agent)).code for _ in range(2)]
            clock.advance(DAY_MS)
    assert found == ["", "daily_tokens", "", "daily_tokens", "total_tokens", "total_tokens"]


async def test_the_budget_of_an_agent_is_counted_over_restarts(tmp_path: Path) -> None:
    agent = worker(daily=hf.Budget(tokens=30))
    found: list[str] = []
    for number in range(3):
        async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
            found.append((await ran(runtime, agent, f"s{number}")).code)
    assert found == ["", "daily_tokens", "daily_tokens"]


async def test_a_turn_stops_in_the_middle_when_another_session_used_the_rest() -> None:
    go_on, reached = asyncio.Event(), asyncio.Event()

    @hf.tool(read_only=True)
    async def hold() -> str:
        reached.set()
        await go_on.wait()
        return "held"

    def say(asked: hf.ModelRequest) -> Any:
        first = asked.messages[0]
        assert isinstance(first, hf.UserMessage)
        return reply(call(hold), usage=EACH) if first.text == "hold" else reply(text("x"), usage=Usage(input=30))

    agent = hf.Agent("a", model=ScriptedModel(say), tools=[hold], limits=hf.Limits(total=hf.Budget(tokens=30)))
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await runtime.session("one", agent=agent).send("hold")
        async with asyncio.timeout(SOON):
            await reached.wait()
        assert (await ran(runtime, agent, "two")).status == "completed"
        go_on.set()
        assert told(await turn.outcome(timeout=SOON)) == ("limit", "total_tokens", 30, 40)


async def test_without_a_known_price_a_budget_of_money_ends_the_turn() -> None:
    agent = worker(daily=hf.Budget(cost_usd=5.0))
    async with hf.open(None, agents=[agent]) as runtime:
        outcome = await ran(runtime, agent)
        assert (outcome.status, outcome.code, outcome.steps) == ("limit", "daily_cost_unknown", 1)


async def test_calls_without_a_known_price_may_be_free() -> None:
    agent = worker(daily=hf.Budget(cost_usd=5.0), unpriced="free")
    async with hf.open(None, agents=[agent]) as runtime:
        assert (await ran(runtime, agent)).status == "completed"


async def test_an_earlier_turn_without_a_price_does_not_close_the_session() -> None:
    agent = worker(session=hf.Budget(cost_usd=5.0))
    async with hf.open(None, agents=[agent]) as runtime:
        first = (await ran(runtime, agent)).code
        assert (first, (await ran(runtime, agent)).steps) == ("session_cost_unknown", 1)


# ---- the background --------------------------------------------------------------------------------------------------


class Spilling:
    """A tool that goes on in the background once the model has waited long enough for it."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()

    def tool(self) -> hf.Tool[..., Any]:
        @hf.tool(read_only=True, inline_budget=HOLD)
        async def slow(at: int) -> int:
            await self.go_on.wait()
            return at

        return slow


async def test_only_so_many_calls_go_on_in_the_background() -> None:
    spilling = Spilling()
    slow = spilling.tool()
    script = [[call(slow, at=1), call(slow, at=2)], text("done"), *[text("heard")] * 3]
    agent = hf.Agent("a", model=ScriptedModel(script), tools=[slow], limits=hf.Limits(background=1))
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await runtime.session("s", agent=agent).send("go")

        async def one_spilled() -> bool:
            return len(await runtime.tasks.list(session="s")) == 1

        await until(one_spilled)
        await asyncio.sleep(5 * HOLD)  # the other would be there by now
        assert await one_spilled()
        assert (await runtime.session("s").status()) == "running"
        spilling.go_on.set()
        assert (await turn.outcome(timeout=SOON)).status == "completed"


@pytest.mark.parametrize("scope", ["daily", "total"])
async def test_tasks_that_wait_to_be_begun_count(scope: str) -> None:
    go_on = asyncio.Event()

    @hf.tool(read_only=True, background=True)
    async def slow() -> str:
        await go_on.wait()
        return "done"

    limits: dict[str, Any] = {scope: hf.Budget(background=2)}
    model = ScriptedModel(lambda asked: text("ok") if asked.position else call(slow))
    agent = hf.Agent("a", model=model, tools=[slow], limits=hf.Limits(**limits))
    async with hf.open(None, agents=[agent], concurrency=1) as runtime:
        outcomes = [await ran(runtime, agent, f"s{number}") for number in range(3)]
        assert [outcome.code for outcome in outcomes] == ["", "", f"{scope}_background"]
        assert sorted(line.status for line in await runtime.tasks.list()) == ["idle", "running"]
        assert (await runtime.store.spent("a")).tasks == 2
        go_on.set()
        await until(lambda: all_idle(runtime))
        assert await runtime.store.examine(lambda reader: audit(reader, None, spend_of_record)) == []


# ---- what is counted is what is recorded -----------------------------------------------------------------------------


async def counted(store: Store) -> list[tuple[Any, Any, Spend]]:
    return await store.examine(lambda reader: sorted(reader.spending.raw(), key=repr))


async def all_idle(runtime: Runtime) -> bool:
    lines = await runtime.store.journals()
    return all(line.status not in {"running", "idle"} for line in lines)


async def mixed(runtime: Runtime, agent: hf.Agent, clock: ManualClock) -> None:
    """Tools, tasks, summaries, a failure and a cancelled reply, on two days."""
    await ran(runtime, agent)
    clock.advance(DAY_MS)
    turn = await runtime.session("s").send("fail")
    assert (await turn.outcome(timeout=SOON)).status == "failed"
    turn = await runtime.session("s").send("stop")
    assert await turn.cancel() == "requested"
    assert (await turn.outcome(timeout=SOON)).status == "cancelled"
    await until(lambda: all_idle(runtime))


async def test_what_is_counted_is_what_the_records_say() -> None:
    spilling = Spilling()
    slow = spilling.tool()

    def say(request: hf.ModelRequest) -> Any:
        words = [message.text for message in request.messages if isinstance(message, hf.UserMessage)]
        if request.position == 3:
            spilling.go_on.clear()
            return reply(call(slow, at=1), call(look, at=1), usage=EACH)
        if words[-1] == "stop":
            return asyncio.Event().wait()
        spilling.go_on.set()
        return error("no") if words[-1] == "fail" else None

    clock = ManualClock()
    agent = agent_of(Writer(25, say=say), tools=[look, slow])
    async with hf.open(None, agents=[agent], clock=clock, prices=PRICES) as runtime:
        await mixed(runtime, agent, clock)
        before = await counted(runtime.store)
        made = await compactions(runtime.store)
        await runtime.store.rebuild_spending(spend_of_record)
        assert await counted(runtime.store) == before
        assert await check(runtime.store) == []
        whole = await runtime.store.spent("a")
        assert any(found.calls for found in made)
        said = await runtime.session("s").history()
        results = [result for message in said if isinstance(message, hf.ToolMessage) for result in message.results]
        assert (whole.tasks, whole.tool_calls) == (1, len(results))
        lines = await runtime.session("s").usage()
        assert whole.input_tokens + whole.output_tokens == sum(line.usage.total for line in lines)
        assert (await runtime.store.spent("a", day_of(clock.read().wall))).model_calls < whole.model_calls


async def test_a_reply_that_was_broken_off_is_counted() -> None:
    reached = asyncio.Event()

    class Slow:
        name = "slow:model"

        async def stream(self, request: hf.ModelRequest) -> AsyncIterator[hf.StreamEvent]:
            yield hf.messages.StreamUsage(Usage(input=10, output=1))
            yield hf.messages.TextChunk("hel")
            reached.set()
            await asyncio.Event().wait()

    agent = hf.Agent("a", model=Slow())
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await runtime.session("s", agent=agent).send("go")
        async with asyncio.timeout(SOON):
            await reached.wait()
        await turn.cancel()
        await turn.outcome(timeout=SOON)
        assert (await runtime.store.spent("a")).input_tokens == 10
        assert await check(runtime.store) == []


async def test_a_call_that_was_broken_off_is_counted() -> None:
    reached = asyncio.Event()

    @hf.tool
    async def act() -> str:
        reached.set()
        await asyncio.Event().wait()
        return ""

    agent = hf.Agent("a", model=ScriptedModel([call(act)]), tools=[act], policy=[hf.allow("*")])
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await runtime.session("s", agent=agent).send("go")
        async with asyncio.timeout(SOON):
            await reached.wait()
        await turn.cancel()
        await turn.outcome(timeout=SOON)
        assert (await runtime.store.spent("a")).tool_calls == 1
        assert await check(runtime.store) == []


async def test_doctor_tells_of_spending_that_the_records_do_not_tell_of(tmp_path: Path) -> None:
    agent = worker()
    path = tmp_path / "s.db"
    async with hf.open(path, agents=[agent], mirror=False) as runtime:
        await ran(runtime, agent)
    sound = CliRunner().invoke(app, ["doctor", str(path)])
    async with hf.open_store(path) as store:
        position = await store.examine(lambda reader: reader.last_position())
        await store.replace_spending([("a", 5, Spend(tool_calls=9))], position=position)
    wrong = CliRunner().invoke(app, ["doctor", str(path)])
    assert (sound.exit_code, wrong.exit_code) == (0, 1)
    assert "its records say" in wrong.output


def notes(agent: hf.Agent) -> list[list[str]]:
    """What Holdfast had told the model by each of its questions."""
    assert isinstance(agent.model, ScriptedModel)
    return [
        [said.text for said in asked.messages if isinstance(said, hf.UserMessage) and said.origin == "holdfast"]
        for asked in agent.model.requests
    ]


@pytest.mark.parametrize("scope", ["session", "daily", "total"])
async def test_the_last_step_that_a_budget_leaves_is_announced(scope: str) -> None:
    options: dict[str, Any] = {scope: hf.Budget(steps=3)}
    agent = worker(calls=9, **options)
    async with hf.open(None, agents=[agent]) as runtime:
        outcome = await ran(runtime, agent)
        assert notes(agent) == [[], [], [LAST_STEP]]
        assert (outcome.code, outcome.steps) == (f"{scope}_steps", 3)
        assert [turn.verdict for turn in await check_turns(runtime.store, "s", agent)] == ["ok"]


async def test_what_other_sessions_used_brings_the_last_step_nearer() -> None:
    agent = worker(calls=3, daily=hf.Budget(steps=6))
    async with hf.open(None, agents=[agent]) as runtime:
        assert (await ran(runtime, agent, "one")).steps == 4
        assert (await ran(runtime, agent, "two")).code == "daily_steps"
        assert notes(agent) == [[], [], [], [], [], [LAST_STEP]]


async def test_a_last_step_by_two_budgets_is_announced_once() -> None:
    agent = worker(calls=9, steps=3, daily=hf.Budget(steps=3), total=hf.Budget(steps=3))
    async with hf.open(None, agents=[agent]) as runtime:
        await ran(runtime, agent)
        assert notes(agent)[-1] == [LAST_STEP]
