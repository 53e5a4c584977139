"""The scripted model: what it says depends on the place in the conversation, and on nothing else."""

from __future__ import annotations

import asyncio
import time
from datetime import date
from typing import TYPE_CHECKING, Any

import pytest
from tests.every import every

from holdfast.errors import InvalidArgument, InvalidNumber, InvalidValue, ModelError, StreamCut
from holdfast.messages import (
    AssistantMessage,
    CallChunk,
    CallEnd,
    CallStart,
    ModelReply,
    ModelRequest,
    Reasoning,
    ReasoningChunk,
    Refusal,
    StreamEnd,
    StreamStart,
    StreamUsage,
    Text,
    TextChunk,
    ToolCall,
    Usage,
    UserMessage,
)
from holdfast.models import Model, respond
from holdfast.testing import ScriptedModel, call, cut, delayed, error, refusal, reply, simulate, stream, text
from holdfast.tools import tool

if TYPE_CHECKING:
    from holdfast.messages import StreamEvent
    from holdfast.testing import SimulatedLoop
    from holdfast.testing.scripted import ScriptItem, ScriptReply


def at(position: int | None, *messages: Any) -> ModelRequest:
    return ModelRequest(messages=messages or (UserMessage("u", (Text("hello"),)),), position=position)


async def events_of(item: ScriptItem, position: int = 0) -> list[StreamEvent]:
    model = ScriptedModel([text("before")] * position + [item])
    return [event async for event in model.stream(at(position))]


async def reply_to(item: ScriptItem) -> ModelReply:
    return await ScriptedModel([item]).respond(at(0))


def test_it_is_a_model() -> None:
    assert isinstance(ScriptedModel([]), Model)


# ---- the place in the conversation -----------------------------------------------------------------------------------


async def test_the_script_of_the_design_is_followed() -> None:
    script = ScriptedModel(
        [
            call("find_order", email="a@b.c"),
            [call("refund", order_id="7", cents=100), call("notify")],
            text("Done."),
        ]
    )
    replies = [await respond(script, at(position)) for position in range(3)]
    assert [[one.name for one in made.calls] or made.text for made in replies] == [
        ["find_order"],
        ["refund", "notify"],
        "Done.",
    ]


async def test_the_same_place_is_answered_the_same_way_again() -> None:
    model = ScriptedModel([text("one"), text("two")])
    assert [(await respond(model, at(1))).text for _ in range(3)] == ["two"] * 3


async def test_without_a_position_the_earlier_replies_are_counted() -> None:
    model = ScriptedModel([text("one"), text("two")])
    asked = at(None, UserMessage("u", (Text("hi"),)), AssistantMessage("a", (Text("one"),)))
    assert (await respond(model, asked)).text == "two"


async def test_past_the_end_of_the_script_is_an_error_that_names_the_place() -> None:
    with pytest.raises(ModelError, match="it has 1 replies and is asked at 3") as caught:
        await respond(ScriptedModel([text("one")]), at(3))
    assert (caught.value.kind, caught.value.retryable) == ("script_over", False)


async def test_the_ids_of_calls_come_from_their_place() -> None:
    events = await events_of(["Let me see.", call("a"), call("b")], position=4)
    assert [event.id for event in events if isinstance(event, CallStart)] == ["call_4_0", "call_4_1"]


# ---- what can be said ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("item", ["Hi.", text("Hi."), ["Hi."], reply("Hi."), (text("Hi."),)], ids=repr)
async def test_a_text_is_streamed_as_a_provider_would(item: ScriptItem) -> None:
    made = ModelReply((Text("Hi."),), "stop", Usage(input=10, output=1), "scripted:model")
    assert await events_of(item) == [
        StreamStart("scripted:model"),
        TextChunk("Hi."),
        StreamUsage(made.usage),
        StreamEnd(made),
    ]


async def test_a_call_is_streamed_as_a_provider_would() -> None:
    asked = ToolCall("call_0_0", "refund", {"cents": 100})
    assert (await events_of(call("refund", cents=100)))[1:-2] == [
        CallStart("call_0_0", "refund"),
        CallChunk("call_0_0", '{"cents":100}'),
        CallEnd(asked),
    ]


async def test_a_reply_with_calls_ends_for_them() -> None:
    assert (await reply_to(["Let me see.", call("a")])).finish == "tool_calls"


async def test_a_tool_stands_for_its_name() -> None:
    @tool
    def find_order(email: str) -> str:
        return email

    assert call(find_order, email="x").tool == "find_order"


async def test_an_argument_may_be_called_tool() -> None:
    assert (await reply_to(call("use", tool="hammer"))).calls[0].arguments == {"tool": "hammer"}


async def test_the_arguments_of_a_call_are_json() -> None:
    assert call("book", day=date(2026, 1, 2)).arguments == {"day": "2026-01-02"}


def test_arguments_without_a_json_form_are_refused() -> None:
    with pytest.raises(InvalidValue, match="a set has no JSON form"):
        call("book", days={1, 2})


async def test_a_stream_has_its_chunks_and_its_whole() -> None:
    events = await events_of(stream("Hel", "lo"))
    assert events[1:3] == [TextChunk("Hel"), TextChunk("lo")]
    assert isinstance(events[-1], StreamEnd)
    assert events[-1].reply.parts == (Text("Hello"),)


async def test_a_refusal_ends_as_one() -> None:
    made = await reply_to(refusal("No."))
    assert (made.parts, made.finish) == ((Refusal("No."),), "refusal")


async def test_thoughts_can_be_part_of_a_reply() -> None:
    events = await events_of([Reasoning("Hm."), "Yes."])
    assert events[1:3] == [ReasoningChunk("Hm."), TextChunk("Yes.")]


async def test_a_malformed_call_is_streamed_as_it_came() -> None:
    events = await events_of(ToolCall("x", "refund", None, malformed='{"cents": '))
    assert events[2] == CallChunk("x", '{"cents": ')


async def test_how_a_reply_ends_and_what_it_costs_can_be_given() -> None:
    made = await reply_to(reply("Hi", finish="output_limit", usage=Usage(input=7, output=3)))
    assert (made.finish, made.usage) == ("output_limit", Usage(input=7, output=3))


async def test_a_whole_reply_is_given_as_it_is() -> None:
    made = ModelReply((Text("x"),), "stop", Usage(1, 2), "other:model")
    assert await reply_to(made) == made


async def test_a_reply_may_be_empty() -> None:
    made = await reply_to([])
    assert (made.parts, made.finish) == ((), "stop")


async def test_a_cut_stream_has_its_words_and_no_end() -> None:
    assert await events_of(cut("Hel")) == [StreamStart("scripted:model"), TextChunk("Hel")]


async def test_a_cut_stream_is_no_reply() -> None:
    with pytest.raises(StreamCut):
        await reply_to(cut("Hel"))


async def test_an_error_is_a_model_error() -> None:
    with pytest.raises(ModelError, match="overloaded") as caught:
        await reply_to(error("overloaded", kind="overloaded", retryable=True))
    assert (caught.value.kind, caught.value.retryable) == ("overloaded", True)


async def test_an_exception_is_raised() -> None:
    with pytest.raises(ConnectionResetError):
        await reply_to(ConnectionResetError())


def test_a_delay_is_waited_for() -> None:
    async def timed(loop: SimulatedLoop) -> tuple[str, float]:
        before = loop.time()
        made = await reply_to(delayed(3, text("late")))
        return made.text, loop.time() - before

    words, took = simulate(1, timed)
    assert (words, took >= 3) == ("late", True)


# ---- functions -------------------------------------------------------------------------------------------------------


async def test_a_reply_may_be_a_function_of_the_request() -> None:
    assert (await reply_to(lambda request: f"{len(request.messages)} message")).text == "1 message"


async def test_a_reply_may_be_an_async_function() -> None:
    async def answer(_request: ModelRequest) -> ScriptReply:
        await asyncio.sleep(0)
        return [call("a"), call("b")]

    assert [one.id for one in (await reply_to(answer)).calls] == ["call_0_0", "call_0_1"]


async def test_a_function_may_give_an_error() -> None:
    with pytest.raises(ModelError, match="busy"):
        await reply_to(lambda _request: error("busy"))


async def test_the_whole_script_may_be_a_function() -> None:
    model = ScriptedModel(lambda request: f"answer {request.position}")
    assert [(await respond(model, at(position))).text for position in (0, 7)] == ["answer 0", "answer 7"]


async def test_what_a_function_gives_is_checked() -> None:
    def wrong(_request: ModelRequest) -> Any:
        return 3

    with pytest.raises(InvalidArgument, match="what the script's function gave 3 is not valid"):
        await reply_to(wrong)


# ---- the rest --------------------------------------------------------------------------------------------------------


async def test_every_request_is_kept() -> None:
    model = ScriptedModel([text("one"), text("two")])
    asked = [at(0), at(1)]
    for one in asked:
        await respond(model, one)
    assert model.requests == asked


async def test_no_more_requests_are_kept_than_asked_for() -> None:
    model = ScriptedModel(lambda _request: "x", keep=2)
    for position in range(5):
        await respond(model, at(position))
    assert [request.position for request in model.requests] == [3, 4]


async def test_a_request_past_the_end_is_kept_too() -> None:
    model = ScriptedModel([])
    with pytest.raises(ModelError):
        await respond(model, at(0))
    assert len(model.requests) == 1


async def test_it_says_its_name() -> None:
    assert (await ScriptedModel(["x"], name="scripted:other").respond(at(0))).model == "scripted:other"


@every("script", ["hello", 3, None, [3], [[3]], [ValueError], [{"a": 1}], [reply(3)]], ids=repr)  # pyright: ignore[reportArgumentType]  # a wrong script on purpose
def test_a_script_that_can_not_be_followed_is_refused_at_once(script: Any) -> None:
    with pytest.raises(InvalidArgument):
        ScriptedModel(script)


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), True, "1"])
def test_a_delay_that_can_not_be_meant_is_refused(seconds: Any) -> None:
    with pytest.raises(InvalidNumber):
        delayed(seconds, text("x"))


async def test_a_reply_costs_little_whatever_the_length_of_the_conversation() -> None:
    model = ScriptedModel([[call("a", n=1), call("b", n=2), call("c", n=3)]] * 100)
    asked = [at(position, *[UserMessage("u", (Text("x"),))] * 1_000) for position in range(100)]

    async def once() -> float:
        begin = time.process_time()
        for request in asked:
            async for _ in model.stream(request):
                pass
        return (time.process_time() - begin) / len(asked)

    assert min([await once() for _ in range(5)]) < 100e-6
