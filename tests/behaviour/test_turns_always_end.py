"""Every turn ends in exactly one terminal record, whatever the model, the tools and the host do."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.behaviour.talk import SOON, pairs_are_whole

import holdfast as hf
from holdfast.messages import ToolCall
from holdfast.records import Ended
from holdfast.testing import ScriptedModel, call, check, cut, error, refusal, reply, stream, text

if TYPE_CHECKING:
    from holdfast.testing.scripted import ScriptItem


def shown(value: object) -> str:
    """A value in the name of a test."""
    return ascii(value)[:24]


class Odd(BaseException):
    """Not an `Exception`: what some libraries use for control flow."""


class Unshowable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words for it")


@hf.tool(read_only=True)
async def look(what: str = "") -> str:
    """Look."""
    return f"seen {what}"


@hf.tool
async def breaks(how: str) -> str:
    """Break in some way."""
    kinds: dict[str, BaseException] = {
        "error": ValueError("no"),
        "unshowable": Unshowable(),
        "group": ExceptionGroup("both", [ValueError("a"), KeyError("b")]),
        "odd": Odd("odd"),
        "odd group": BaseExceptionGroup("odd ones", [Odd("a")]),
        "exit": SystemExit(3),
        "cancelled": asyncio.CancelledError("from within"),
        "stop": StopAsyncIteration(),
        "timeout": TimeoutError("its own"),
    }
    raise kinds[how]


@hf.tool
def breaks_in_a_thread(how: str) -> str:
    """Break in some way, outside the event loop."""
    kinds: dict[str, BaseException] = {"error": ValueError("no"), "stop": StopIteration(), "odd": Odd("odd")}
    raise kinds[how]


@hf.tool
async def gives(what: str) -> Any:
    """Give back something that may have no JSON form."""
    deep: list[Any] = []
    for _ in range(500):
        deep = [deep]
    return {"object": object(), "nan": float("nan"), "surrogate": "\ud800", "deep": deep, "none": None}[what]


TOOLS = [look, breaks, breaks_in_a_thread, gives]


async def endings(runtime: hf.Runtime, session: str) -> list[Ended]:
    return [entry.record async for entry in runtime.store.read_all(session) if isinstance(entry.record, Ended)]


async def ending_of(script: list[ScriptItem], **options: Any) -> hf.TurnOutcome:
    """How a turn ends; checks on the way what is true of every ending."""
    agent = hf.Agent("agent", model=ScriptedModel(script), tools=TOOLS, policy=[hf.allow("*")], **options)
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        turn = await session.send("go")
        outcome = await turn.outcome(timeout=SOON)
        assert len(await endings(runtime, "s")) == 1
        assert pairs_are_whole(await session.history())
        assert await turn.status() == outcome.status
        assert await check(runtime.store) == []
        following = await (await session.send("and now?")).outcome(timeout=SOON)
        assert following.status in {"completed", "failed"}
    return outcome


@pytest.mark.parametrize(
    ("item", "status"),
    [
        (text("Done."), "completed"),
        (stream("Do", "ne."), "completed"),
        (refusal("I won't."), "failed"),
        (cut("half of"), "failed"),
        (cut(""), "failed"),
        (error("overloaded", retryable=True), "failed"),
        (ValueError("a bug in the model"), "failed"),
        (TimeoutError("too slow"), "failed"),
        (reply("no", finish="content_filter"), "failed"),
        (reply(finish="context_overflow"), "failed"),
        (reply(call("look"), finish="content_filter"), "failed"),
        (reply(call("look"), finish="refusal"), "failed"),
    ],
    ids=str,
)
async def test_a_turn_ends_once_whatever_the_model_says(item: ScriptItem, status: str) -> None:
    assert (await ending_of([item, text("next")])).status == status


async def test_a_model_that_raises_a_cancellation_of_its_own_fails_the_turn() -> None:
    outcome = await ending_of([asyncio.CancelledError("a lost connection"), text("next")])
    assert (outcome.status, outcome.blame) == ("failed", "model")


async def test_a_model_that_raises_no_exception_but_something_odd_fails_the_turn() -> None:
    outcome = await ending_of([Odd("odd"), text("next")])
    assert outcome.status == "failed"


@pytest.mark.parametrize("how", ["error", "unshowable", "group", "odd group", "exit", "cancelled", "stop", "timeout"])
async def test_a_tool_that_breaks_is_an_answer_to_the_model(how: str) -> None:
    outcome = await ending_of([call("breaks", how=how), text("Done."), text("next")])
    assert outcome.text == "Done."


@pytest.mark.parametrize("tool", ["breaks", "breaks_in_a_thread"])
async def test_a_tool_that_raises_no_exception_but_something_odd_does_not_strand_the_session(tool: str) -> None:
    outcome = await ending_of([call(tool, how="odd"), text("Done."), text("next")])
    assert outcome.status in {"completed", "failed"}


@pytest.mark.parametrize("how", ["error", "stop"])
async def test_a_tool_that_breaks_in_a_thread_is_an_answer_to_the_model(how: str) -> None:
    outcome = await ending_of([call("breaks_in_a_thread", how=how), text("Done."), text("next")])
    assert outcome.text == "Done."


@pytest.mark.parametrize("what", ["object", "nan", "surrogate", "deep", "none"])
async def test_a_tool_that_gives_what_has_no_json_form_is_an_answer_to_the_model(what: str) -> None:
    outcome = await ending_of([call("gives", what=what), text("Done."), text("next")])
    assert outcome.text == "Done."


def _deep(levels: int) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for _ in range(levels):
        made = {"what": made}
    return made


@pytest.mark.parametrize(
    "arguments",
    [{"what": float("inf")}, {"what": float("nan")}, {"what": 2**70}, {"what": "\ud800"}, _deep(100), _deep(5_000)],
    ids=["infinite", "not a number", "beyond 64 bits", "a lone surrogate", "nested 100 times", "nested 5,000 times"],
)
async def test_arguments_that_have_no_json_form_do_not_strand_the_session(arguments: dict[str, Any]) -> None:
    odd = ToolCall("c1", "look", arguments)
    outcome = await ending_of([reply(odd), text("Done."), text("next")])
    assert outcome.status in {"completed", "failed"}


@pytest.mark.parametrize(
    "name", ["", "../../etc/passwd", "a/b", "look ", "x" * 5_000, "\u202elook", "t1/2.tools", "\ud800", "\0"], ids=shown
)
async def test_a_tool_name_that_no_tool_can_have_is_an_answer_to_the_model(name: str) -> None:
    outcome = await ending_of([reply(ToolCall("c1", name, {})), text("Done."), text("next")])
    assert outcome.status in {"completed", "failed"}


async def test_a_model_that_only_calls_tools_ends_at_the_limit() -> None:
    agent = hf.Agent(
        "agent",
        model=ScriptedModel(lambda _: call("look")),
        tools=TOOLS,
        policy=[hf.allow("*")],
        limits=hf.Limits(steps=4),
    )
    outcome = await hf.run(agent, "go")
    assert (outcome.status, outcome.code, outcome.steps) == ("limit", "steps", 4)


async def test_a_script_that_is_over_is_a_failure_and_no_silence() -> None:
    outcome = await ending_of([call("look")])
    assert (outcome.status, outcome.code, outcome.blame) == ("failed", "script_over", "model")


async def test_an_agent_without_a_word_to_say_about_itself_still_answers() -> None:
    assert (await hf.run(hf.Agent("bare", model=ScriptedModel([text("hi")])), "hello")).text == "hi"


@pytest.mark.parametrize("delay", range(0, 60, 3))
async def test_a_turn_ends_once_whenever_the_cancel_comes(delay: int) -> None:
    script = [
        call("look"),
        [call("look", what="a"), call("look", what="b")],
        call("breaks", how="error"),
        text("Done."),
    ]
    agent = hf.Agent("agent", model=ScriptedModel(script), tools=TOOLS, policy=[hf.allow("*")])
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        turn = await session.send("go")
        for _ in range(delay):
            await asyncio.sleep(0)
        asked = await turn.cancel("stop")
        outcome = await turn.outcome(timeout=SOON)
        assert outcome.status in ({"completed"} if asked == "too_late" else {"completed", "cancelled"})
        assert len(await endings(runtime, "s")) == 1
        assert pairs_are_whole(await session.history())
        assert await check(runtime.store) == []
