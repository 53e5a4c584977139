"""A model may answer anything: the turn ends, the session goes on, and what was said is kept as it was said."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import pytest
from pydantic import BaseModel
from tests.behaviour.talk import SOON

import holdfast as hf
from holdfast.messages import ModelReply, Reasoning, Refusal, StreamEnd, Text, ToolCall, ToolMessage, Usage
from holdfast.testing import FakeProvider, ScriptedModel, call, error, reply, text

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from holdfast.messages import StreamEvent


class Own:
    """A model of somebody's own: its first reply is as given, the others are in order."""

    name = "my:model"

    def __init__(self, first: Callable[[], Any]) -> None:
        self._first = first

    async def stream(self, request: hf.ModelRequest) -> AsyncIterator[StreamEvent]:
        yield StreamEnd(self._first() if request.position == 0 else ModelReply((Text("fine"),)))

    async def respond(self, request: hf.ModelRequest) -> ModelReply:
        raise NotImplementedError


def _nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth):
        value = {"a": value}
    return value


@hf.tool(read_only=True)
async def take(x: Any) -> str:
    """Take anything."""
    return "taken"


def _said(*parts: Any, **options: Any) -> Callable[[], ModelReply]:
    return lambda: ModelReply(cast("Any", parts), **options)


UNREADABLE: dict[str, Callable[[], Any]] = {
    "another finish": _said(Text("hi"), finish="length"),
    "no usage": _said(Text("hi"), usage=None),
    "half a token": _said(Text("hi"), usage=Usage(input=cast("int", 1.5))),
    "arguments that are a list": _said(ToolCall("1", "take", cast("Any", [1]))),
    "arguments without a bottom": _said(ToolCall("1", "take", {"x": _nested(3_000)})),
    "a lone surrogate": _said(Text("hi \ud800")),
    "a name with a lone surrogate": _said(ToolCall("1", "take\ud800", {})),
    "no id": _said(ToolCall(cast("str", None), "take", {"x": 1})),
    "no name": _said(ToolCall("1", cast("str", None), {"x": 1})),
    "no text": _said(Text(cast("str", None))),
    "no reply at all": lambda: "hello",
}
READABLE: dict[str, Callable[[], Any]] = {
    "more tokens than fit": _said(Text("hi"), usage=Usage(input=2**70)),
    "a large number": _said(ToolCall("1", "take", {"x": 2**80})),
    "no number": _said(ToolCall("1", "take", {"x": float("nan")})),
    "deep arguments": _said(ToolCall("1", "take", {"x": _nested(90)})),
    "deeper arguments": _said(ToolCall("1", "take", {"x": _nested(600)})),
    "a key that is no text": _said(ToolCall("1", "take", cast("Any", {1: 1}))),
    "usage that is no number": _said(Text("hi"), raw_usage={"a": float("nan")}),
    "no model": _said(Text("hi"), model=None),
    "nothing": _said(),
    "a list of parts": lambda: ModelReply(cast("Any", [Text("hi")])),
    "zeros": _said(ToolCall("1", "take\0", {"x\0": "\0"})),
}


async def _outcomes(first: Callable[[], Any]) -> list[str]:
    """How two turns end, of which the first meets the odd reply."""
    agent = hf.Agent("a", model=Own(first), tools=[take], policy=[hf.allow("*")])
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        found = [(await (await session.send("hi")).outcome(timeout=SOON)).status for _ in range(2)]
        assert len(await session.history()) >= 3
    return list(found)


@pytest.mark.parametrize("what", UNREADABLE)
async def test_a_reply_that_can_not_be_kept_fails_its_turn_and_no_other(what: str) -> None:
    assert await _outcomes(UNREADABLE[what]) == ["failed", "completed"]


@pytest.mark.parametrize("what", READABLE)
async def test_a_reply_that_is_odd_but_can_be_kept_is_an_answer(what: str) -> None:
    assert await _outcomes(READABLE[what]) == ["completed", "completed"]


async def test_a_reply_that_can_not_be_kept_is_blamed_on_the_model() -> None:
    agent = hf.Agent("a", model=Own(UNREADABLE["another finish"]))
    async with hf.open(None, agents=[agent]) as runtime:
        assert (await runtime.run(agent, "hi")).blame == "model"


async def test_a_session_with_a_reply_that_could_not_be_kept_opens_again(tmp_path: Path) -> None:
    agent = hf.Agent("a", model=Own(UNREADABLE["another finish"]))
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        await (await runtime.session("s", agent=agent).send("hi")).outcome(timeout=SOON)
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        assert [message.id for message in await runtime.session("s").history()] == ["t1.i1"]


@pytest.mark.parametrize("message", ["x" * 1_500_000, "bad \udce9 answer"], ids=["huge", "unprintable"])
@pytest.mark.parametrize("kind", ["model error", "bug"])
async def test_an_error_of_a_model_ends_the_turn_whatever_it_says(message: str, kind: str) -> None:
    model = ScriptedModel([error(message) if kind == "model error" else RuntimeError(message), text("fine")])
    agent = hf.Agent("a", model=model)
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        assert (await (await session.send("hi")).outcome(timeout=SOON)).status == "failed"
        assert len(model.requests) == 1


async def test_a_reply_too_large_to_keep_fails_the_turn_and_the_session_goes_on() -> None:
    agent = hf.Agent("a", model=ScriptedModel([text("m" * 2_000), text("fine")]))
    limits = hf.StoreLimits(inline_bytes=100, blob_bytes=1_000)
    async with hf.open(None, agents=[agent], limits=limits) as runtime:
        session = runtime.session("s", agent=agent)
        statuses = [(await (await session.send("hi")).outcome(timeout=SOON)).status for _ in range(2)]
        assert statuses == ["failed", "completed"]


# ---- what is the answer ----------------------------------------------------------------------------------------------


async def _answer(*script: Any, tools: tuple[Any, ...] = ()) -> hf.TurnOutcome:
    return await hf.run(hf.Agent("a", model=ScriptedModel(script), tools=tools, policy=[hf.allow("*")]), "x")


async def test_an_answer_that_was_cut_is_whole_though_somebody_spoke_in_between() -> None:
    ready, go_on = asyncio.Event(), asyncio.Event()

    async def first(request: hf.ModelRequest) -> Any:
        ready.set()
        await go_on.wait()
        return reply("The answer begins here", finish="output_limit")

    agent = hf.Agent("a", model=ScriptedModel([first, text(" and ends here.")]))
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        turn = await session.send("x")
        await asyncio.wait_for(ready.wait(), SOON)
        await session.send("by the way", steer=True)
        go_on.set()
        assert (await turn.outcome(timeout=SOON)).text == "The answer begins here and ends here."


async def test_an_answer_that_was_cut_is_whole_though_nothing_came_in_between() -> None:
    outcome = await _answer(reply("Half one", finish="output_limit"), text(""), text(" half two."))
    assert outcome.text == "Half one half two."


async def test_blanks_between_the_parts_of_an_answer_are_kept() -> None:
    outcome = await _answer(reply("Hello", Text(" "), "world", Text("\n\n"), "more"))
    assert outcome.text == "Hello world\n\nmore"


async def test_a_model_that_thinks_until_its_output_is_used_up_has_reached_a_limit() -> None:
    outcome = await _answer(reply(Reasoning("hmm"), finish="output_limit"))
    assert (outcome.status, outcome.code) == ("limit", "output_limit")


@pytest.mark.parametrize("dialect", ["anthropic", "responses", "chat", "google"])
async def test_a_model_that_shows_nothing_of_the_thoughts_that_used_up_its_output_has_reached_a_limit(
    dialect: str,
) -> None:
    thoughts = reply(finish="output_limit", usage=Usage(input=9, output=50, reasoning=50))
    async with FakeProvider([thoughts]) as provider:
        model = hf.model("mine:small", base_url=f"{provider.url}/v1", dialect=dialect)
        outcome = await hf.run(hf.Agent("a", model=model), "go")
    assert (outcome.status, outcome.code) == ("limit", "output_limit")


async def test_a_model_that_only_thinks_gave_no_answer() -> None:
    assert (await _answer(*[Reasoning("hmm")] * 3)).code == "empty_response"


async def test_a_call_beside_a_refusal_is_not_carried_out() -> None:
    ran: list[str] = []

    @hf.tool
    async def act() -> None:
        ran.append("act")

    outcome = await _answer(reply(call("act"), Refusal("no"), finish="refusal"), text("next"), tools=(act,))
    assert (outcome.code, ran) == ("refusal", [])


async def test_calls_without_an_id_of_their_own_get_one() -> None:
    calls = [ToolCall("", "take", {"x": 1}), ToolCall("", "take", {"x": 2}), *[ToolCall("x", "take", {"x": 3})] * 2]
    agent = hf.Agent("a", model=ScriptedModel([calls, text("done")]), tools=[take], policy=[hf.allow("*")])
    async with hf.open(None, agents=[agent]) as runtime:
        await runtime.run(agent, "x", session="s")
        history = await runtime.session("s").history()
        made = [found.id for message in history if isinstance(message, hf.AssistantMessage) for found in message.calls]
        got = [found.call_id for message in history if isinstance(message, ToolMessage) for found in message.results]
        assert (made, len(set(made))) == (got, 4)


# ---- typed answers ---------------------------------------------------------------------------------------------------


async def _typed(wanted: Any, *answers: str) -> hf.TurnOutcome:
    def answer(request: hf.ModelRequest) -> Any:
        return text(answers[min(request.position or 0, len(answers) - 1)])

    return await hf.run(hf.Agent("a", model=ScriptedModel(answer), output=wanted), "x")


@pytest.mark.parametrize("fence", ["```json\n5\n```", "```JSON\n5\n```", "```\n5\n```", "```json 5```"])
async def test_a_typed_answer_may_stand_in_a_fence(fence: str) -> None:
    assert (await _typed(int, fence)).value == 5


@pytest.mark.parametrize("depth", [5_000, 200_000])
async def test_a_typed_answer_without_a_bottom_is_the_models_mistake(depth: int) -> None:
    outcome = await _typed(list, "[" * depth)
    assert (outcome.code, outcome.blame) == ("invalid_output", "model")


async def test_a_validator_that_raises_anything_asks_the_model_again() -> None:
    class Choosy(BaseModel):
        n: int

        def model_post_init(self, context: Any, /) -> None:
            if self.n == 1:
                raise RuntimeError("not this one")

    assert (await _typed(Choosy, '{"n": 1}', '{"n": 2}')).value == Choosy(n=2)
