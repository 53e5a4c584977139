"""Tools, processes and answers with types of every kind: values arrive as the function declares them."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, NotRequired, TypeAlias

import pytest
from pydantic import BaseModel, Field
from tests.behaviour.background import SESSION
from tests.behaviour.talk import SOON, until
from typing_extensions import TypedDict

import holdfast as hf
from holdfast.messages import Message, ToolMessage, ToolResult
from holdfast.testing import ScriptedModel, call, text

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from holdfast.policy.rules import Call


class Card(BaseModel):
    kind: Literal["card"]
    number: str


class Transfer(BaseModel):
    kind: Literal["transfer"]
    iban: str
    note: str | None


class Filter(BaseModel):
    word: str
    inside: list[Filter] = []


class Place(NamedTuple):
    shelf: str
    number: int = 1


class Label(TypedDict):
    title: str
    year: NotRequired[int]


@dataclass
class Order:
    titles: list[str]
    cents: int


Payment: TypeAlias = Annotated[Card | Transfer, Field(discriminator="kind")]
Given: TypeAlias = "list[tuple[Any, ...]]"


def tools_of(given: Given) -> list[hf.Tool[..., Any]]:
    """Tools that note what they are given."""

    @hf.tool
    def pay(by: Payment, order: Order) -> str:
        given.append((by, order))
        return "paid"

    @hf.tool
    def search(wanted: Filter, where: Place | None, limit: int | Literal["all", None] = 10) -> str:  # noqa: PYI061
        given.append((wanted, where, limit))
        return "found"

    @hf.tool
    def mark(label: Label, colours: tuple[int, str], note: str | list[str]) -> str:
        given.append((label, colours, note))
        return "marked"

    return [pay, search, mark]


def results(history: list[Message]) -> list[ToolResult]:
    return [result for message in history if isinstance(message, ToolMessage) for result in message.results]


def agent_of(given: Given, *calls: Any, policy: Any = None) -> hf.Agent:
    model = ScriptedModel([*calls, text("done")])
    return hf.Agent("shop", model=model, tools=tools_of(given), policy=policy or [hf.allow("*")])


CARD: dict[str, Any] = {"kind": "card", "number": "1"}
ORDER: dict[str, Any] = {"titles": ["Emma"], "cents": 900}
CALLS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "discriminated models": (call("pay", by=CARD, order=ORDER), (Card(kind="card", number="1"), Order(["Emma"], 900))),
    "recursive models": (
        call("search", wanted={"word": "a", "inside": [{"word": "b"}]}, where=["top"], limit="all"),
        (Filter(word="a", inside=[Filter(word="b")]), Place("top"), "all"),
    ),
    "nothing for what may be null": (call("search", wanted={"word": "a"}), (Filter(word="a"), None, 10)),
    "typed dicts and tuples": (
        call("mark", label={"title": "x"}, colours=[1, "red"], note="[]"),
        ({"title": "x"}, (1, "red"), "[]"),
    ),
    "JSON as text": (
        call("pay", by='{"kind": "transfer", "iban": "X", "note": null}', order='{"titles": ["Emma"], "cents": 900}'),
        (Transfer(kind="transfer", iban="X", note=None), Order(["Emma"], 900)),
    ),
    "JSON as text inside": (
        call("pay", by=CARD, order={"titles": '["Emma"]', "cents": 900}),
        (Card(kind="card", number="1"), Order(["Emma"], 900)),
    ),
}


@pytest.mark.parametrize("name", CALLS)
async def test_a_tool_gets_its_arguments_as_it_declares_them(name: str) -> None:
    given: Given = []
    sent, wanted = CALLS[name]
    async with hf.open(None, agents=[agent_of(given, sent)]) as runtime:
        outcome = await (await runtime.session(SESSION, agent="shop").send("go")).outcome(timeout=SOON)
    assert (outcome.status, given) == ("completed", [wanted])
    assert [type(value) for value in given[0]] == [type(value) for value in wanted]


async def test_a_text_that_is_no_object_is_told_to_the_model_and_nothing_is_called() -> None:
    given: Given = []
    async with hf.open(None, agents=[agent_of(given, call("pay", by=CARD, order='{"titles": '))]) as runtime:
        session = runtime.session(SESSION, agent="shop")
        await (await session.send("go")).outcome(timeout=SOON)
        (result,) = results(await session.history())
    assert (given, result.state) == ([], "error")
    assert "- order: Input should be an object" in result.content


async def test_a_policy_reads_the_object_that_a_text_holds() -> None:
    given: Given = []
    cents: list[int] = []

    def expensive(one: Call) -> bool:
        cents.append(one.args["order"]["cents"])
        return cents[-1] > 500

    agent = agent_of(
        given,
        call("pay", by=CARD, order='{"titles": [], "cents": 900}'),
        policy=[hf.deny("pay", when=expensive), hf.allow("*")],
    )
    async with hf.open(None, agents=[agent]) as runtime:
        await (await runtime.session(SESSION, agent="shop").send("go")).outcome(timeout=SOON)
    assert (given, set(cents)) == ([], {900})


async def test_what_a_person_approves_later_in_another_runtime_is_what_runs(tmp_path: Path) -> None:
    given: Given = []
    agents = [
        agent_of(
            given,
            call("pay", by=CARD, order='{"titles": ["Emma"], "cents": 900}'),
            policy=[hf.ask("pay"), hf.allow("*")],
        )
        for _ in range(2)
    ]
    async with hf.open(tmp_path / "s.db", agents=agents[:1]) as runtime:
        session = runtime.session(SESSION, agent="shop")
        await session.send("go")

        async def waits() -> bool:
            return await session.status() == "waiting" and not runtime.active

        await until(waits)
    async with hf.open(tmp_path / "s.db", agents=agents[1:]) as runtime:
        (approval,) = await runtime.approvals(SESSION)
        assert approval.arguments == {"by": CARD, "order": ORDER}
        await runtime.approve(approval.id, by="ops")
        outcome = await runtime.session(SESSION).turn("t1").outcome(timeout=SOON)
    assert (outcome.status, given) == ("completed", [(Card(kind="card", number="1"), Order(["Emma"], 900))])


# ---- partials and objects --------------------------------------------------------------------------------------------


@dataclass
class Catalogue:
    """Books by author."""

    books: dict[str, list[str]]
    asked: list[str] = field(default_factory=list[str])

    async def __call__(self, ctx: hf.Context, author: Annotated[str, "The name of the author"]) -> list[str]:
        """Find the books of an author."""
        self.asked.append(f"{ctx.session}: {author}")
        return self.books[author]


def credit(account: str, cents: int) -> str:
    """Credit an account."""
    return f"{account} +{cents}"


async def _told(agent: hf.Agent) -> list[Any]:
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session(SESSION, agent=agent)
        await (await session.send("go")).outcome(timeout=SOON)
        return [result.content for result in results(await session.history())]


async def test_partials_of_one_function_are_tools_of_their_own() -> None:
    ours: Callable[..., Any] = functools.partial(credit, account="ours")
    tools = [hf.tool("credit_ours", version="1")(ours), hf.tool("credit_theirs")(functools.partial(credit, "theirs"))]
    model = ScriptedModel([[call("credit_ours", cents=1), call("credit_theirs", cents=2)], text("done")])
    agent = hf.Agent("bank", model=model, tools=tools, policy=[hf.allow("*")])
    assert await _told(agent) == ["ours +1", "theirs +2"]


async def test_a_model_can_not_give_what_a_partial_binds() -> None:
    model = ScriptedModel([call("credit", cents=1, account="mine"), text("done")])
    agent = hf.Agent("bank", model=model, tools=[functools.partial(credit, account="ours")], policy=[hf.allow("*")])
    (told,) = await _told(agent)
    assert "- account: there is no such argument; there are: cents" in told


async def test_an_object_is_a_tool_and_gets_the_context() -> None:
    catalogue = Catalogue({"Austen": ["Emma"]})
    found = hf.tool("find_books", read_only=True)(catalogue)
    model = ScriptedModel([call("find_books", author="Austen"), text("done")])
    assert await _told(hf.Agent("library", model=model, tools=[found])) == [["Emma"]]
    assert catalogue.asked == [f"{SESSION}: Austen"]


# ---- processes and answers -------------------------------------------------------------------------------------------


async def test_a_process_gets_its_arguments_as_it_declares_them_after_a_restart(tmp_path: Path) -> None:
    given: Given = []

    @hf.process
    async def work(
        ctx: hf.ProcessContext,
        by: Payment,
        wanted: Filter,
        place: Place,
        label: Label,
        colours: tuple[int, str],
        size: Literal["s", 1, None],  # noqa: PYI061
    ) -> int:
        await ctx.wait("go")
        given.append((by, wanted, place, label, colours, size))
        return 1

    sent = (
        Transfer(kind="transfer", iban="X", note=None),
        Filter(word="a", inside=[Filter(word="b")]),
        Place("top", 2),
        Label(title="x"),
        (1, "red"),
        1,
    )
    async with hf.open(tmp_path / "s.db", processes=[work]) as runtime:
        started = await runtime.start(work, *sent, id="p")

        async def waits() -> bool:
            return (await started.status()) == "waiting" and not runtime.active

        await until(waits)
    async with hf.open(tmp_path / "s.db", processes=[work]) as runtime:
        await runtime.signal("p", "go")
        await runtime.processes.handle("p").result(timeout=SOON)
    assert given == [sent]
    assert [type(value) for value in given[0]] == [type(value) for value in sent]


@pytest.mark.parametrize(
    ("output", "answer", "value"),
    [
        (Payment, '{"kind": "card", "number": "1"}', Card(kind="card", number="1")),
        (Filter, '{"word": "a", "inside": [{"word": "b"}]}', Filter(word="a", inside=[Filter(word="b")])),
        (Place, '["top", 2]', Place("top", 2)),
        (tuple[int, str], '[1, "red"]', (1, "red")),
        (Literal["a", 1, None], "1", 1),  # noqa: PYI061
        (Label, '{"title": "x"}', {"title": "x"}),
    ],
    ids=str,
)
async def test_an_answer_comes_as_the_type_that_was_asked_for(output: Any, answer: str, value: Any) -> None:
    agent = hf.Agent("a", model=ScriptedModel([text(answer)]), output=output)
    outcome = await hf.run(agent, "go")
    assert (outcome.value, type(outcome.value)) == (value, type(value))
