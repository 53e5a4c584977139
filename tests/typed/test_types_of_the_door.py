"""The types that users see, for basedpyright (`make types`) and for mypy (the test in `test_mypy.py`).

Each test runs as well: a value has the type that the checkers promise.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, assert_type

import holdfast as hf
from holdfast.testing import ScriptedModel, text


@dataclass
class Bank:
    refunds: int = 0


@dataclass
class Invoice:
    cents: int


@hf.tool
async def refund(ctx: hf.Context[Bank], order: str) -> str:
    """Refund an order."""
    ctx.deps.refunds += 1
    return order


@hf.tool(read_only=True)
async def find(email: str) -> list[str]:
    """Find orders."""
    return [email]


@hf.process
async def bill(ctx: hf.ProcessContext[Bank], customer: str, cents: int = 5) -> Invoice:
    assert_type(ctx.deps, Bank)
    read = await ctx.step("read", _read, customer)
    assert_type(read, int)
    written = await ctx.step("write", _write, Invoice(read))
    assert_type(written, Invoice)
    return Invoice(written.cents + cents)


@hf.process
async def bill_twice(ctx: hf.ProcessContext[Bank], customer: str) -> int:
    child = await ctx.start(bill, customer)
    first = await child.result()
    assert_type(first, Invoice)
    return first.cents * 2


async def _read(customer: str) -> int:
    return len(customer)


def _write(invoice: Invoice) -> Invoice:
    return invoice


def _model() -> ScriptedModel:
    return ScriptedModel([text('{"cents": 7}')])


async def test_an_agent_knows_its_dependencies_and_its_output() -> None:
    agent = hf.Agent("a", model=_model(), tools=[refund, find], output=Invoice, policy=[hf.allow("*")])
    assert_type(agent, hf.Agent[Bank, Invoice])
    declared = hf.Agent[Bank, Invoice]("b", model=_model(), tools=[refund], output=Invoice, policy=[hf.allow("*")])
    async with hf.open(None, agents=[agent, declared], deps=Bank()) as runtime:
        outcome = await runtime.run(agent, "how much?")
        assert_type(outcome, hf.TurnOutcome[Invoice])
        assert_type(outcome.value, Invoice | None)
        assert outcome.value == Invoice(7)


async def test_a_session_and_its_turns_know_the_output() -> None:
    agent = hf.Agent("a", model=_model(), output=Invoice)
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        assert_type(session, hf.Session[Invoice])
        turn = await session.send("how much?")
        assert_type(turn, hf.Turn[Invoice])
        outcome = await turn.outcome()
        assert_type(outcome.value, Invoice | None)
        assert outcome.value == Invoice(7)


async def test_an_agent_without_an_output_has_any_value() -> None:
    agent = hf.Agent("a", model=ScriptedModel([text("hi")]))
    outcome = await hf.run(agent, "hello")
    assert_type(outcome.value, Any | None)
    assert outcome.value is None


async def test_a_process_gives_the_value_that_it_declares() -> None:
    async with hf.open(None, processes=[bill, bill_twice], deps=Bank()) as runtime:
        process = await runtime.start(bill, "ada", cents=4)
        assert_type(process, hf.Process[Invoice])
        assert_type(await process.result(), Invoice)
        assert await process.result() == Invoice(7)
        named = await runtime.start(bill, "ada", id="p-1")
        assert_type(await named.result(), Invoice)
        assert await (await runtime.start(bill_twice, "ada")).result() == 16


async def test_memory_gives_the_type_that_is_asked_for() -> None:
    async with hf.open(None) as runtime:
        memory = runtime.memory("s")
        await memory.put("k", Invoice(7))
        entry = await memory.get("k", returns=Invoice)
        assert entry is not None
        assert_type(entry.value, Invoice)
        assert entry.value == Invoice(7)
        plain = await memory.get("k")
        assert plain is not None
        assert_type(plain.value, Any)


async def test_a_direct_question_gives_the_type_that_is_asked_for() -> None:
    async with hf.open(None) as runtime:
        answer = await runtime.complete(_model(), "how much?", output=Invoice)
        assert_type(answer, Invoice)
        assert answer == Invoice(7)
        said = await runtime.complete(ScriptedModel([text("hi")]), "hello")
        assert_type(said, str)


async def test_a_tool_can_be_called_as_its_function() -> None:
    assert_type(await find("a@example.org"), list[str])


class Shelf:
    def __call__(self, wanted: str | list[str], place: tuple[str, int] = ("top", 1)) -> list[Invoice]:
        return [Invoice(len(wanted) + place[1])]


def test_an_object_is_a_tool_that_can_be_called_as_it_is_and_a_partial_is_one_in_a_list() -> None:
    search = hf.tool(Shelf())
    assert_type(search(["a", "b"], place=("low", 2)), list[Invoice])
    top = hf.tool("search_top")(partial(search_shelf, shelf="top"))
    agent = hf.Agent(
        "a", model=_model(), tools=[search, partial(search_shelf, shelf="low"), top], policy=[hf.allow("*")]
    )
    assert list(agent.tools) == ["Shelf", "search_shelf", "search_top"]


def search_shelf(wanted: str, shelf: str) -> Invoice:
    return Invoice(len(wanted) + len(shelf))


class BankShelf:
    name = "shelf"

    async def list(self, ctx: hf.TurnContext[Bank]) -> list[hf.ProvidedTool]:
        assert_type(ctx.deps, Bank)
        return [hf.ProvidedTool("count", read_only=True)]

    async def call(self, ctx: hf.Context[Bank], tool: hf.ProvidedTool, arguments: dict[str, Any]) -> int:
        assert_type(ctx.deps, Bank)
        return ctx.deps.refunds


def instruct(turn: hf.TurnContext[Bank]) -> str:
    assert_type(turn.input, hf.UserMessage | None)
    return f"{turn.deps.refunds} refunds so far."


async def test_functions_and_providers_that_define_a_turn_know_the_dependencies() -> None:
    provider: hf.ToolProvider[Bank] = BankShelf()
    model = ScriptedModel([text('{"cents": 7}')])
    agent = hf.Agent[Bank, Invoice](
        "a",
        model=model,
        instructions=["Be brief.", instruct],
        tools=[provider, refund],
        output=Invoice,
        policy=[hf.allow("*")],
    )
    chosen = hf.Agent(
        "b",
        model=model,
        instructions=lambda turn: turn.session,
        tools=[hf.toolset(BankShelf(), find).filter(lambda _, tool: tool.read_only).prefix("x_")],
    )
    async with hf.open(None, agents=[agent, chosen], deps=Bank(3)) as runtime:
        outcome = await runtime.run(agent, "how much?", settings=hf.Settings(seed=1))
        assert_type(outcome.value, Invoice | None)
        assert outcome.value == Invoice(7)
    assert model.requests[0].instructions.startswith("Be brief.\n\n3 refunds so far.")
