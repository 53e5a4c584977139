"""Budgets and broken replies: the turn says why it stopped, who can act, and the session goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.every import every

import holdfast as hf
from holdfast.errors import ContextOverflow, HoldfastError
from holdfast.messages import Message, Reasoning, ToolMessage, Usage
from holdfast.testing import ScriptedModel, call, cut, error, refusal, reply, text

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.testing.scripted import ScriptItem


@hf.tool(read_only=True)
async def find() -> str:
    """Find something."""
    return "found"


@hf.tool
async def fails() -> str:
    """Fail."""
    raise ValueError("no")


async def run(script: Any, **limits: Any) -> tuple[hf.TurnOutcome, ScriptedModel]:
    model = ScriptedModel(script)
    agent = hf.Agent("agent", model=model, tools=[find, fails], policy=[hf.allow("*")], limits=hf.Limits(**limits))
    return await hf.run(agent, "go"), model


def notes(messages: tuple[Message, ...]) -> list[str]:
    """What Holdfast told the model."""
    return [found.text for found in messages if isinstance(found, hf.UserMessage) and found.origin == "holdfast"]


def always(item: ScriptItem) -> Callable[[hf.ModelRequest], Any]:
    return lambda _: item


# ---- budgets ---------------------------------------------------------------------------------------------------------


async def test_a_turn_takes_as_many_steps_as_it_may_and_no_more() -> None:
    outcome, model = await run(always(call("find")), steps=5)
    assert (outcome.status, outcome.code, outcome.blame) == ("limit", "steps", "limit")
    assert (outcome.steps, len(model.requests)) == (5, 5)


async def test_the_answer_may_come_with_the_last_step() -> None:
    outcome, _ = await run([call("find"), text("Done.")], steps=2)
    assert (outcome.status, outcome.text) == ("completed", "Done.")


async def test_the_results_of_the_last_step_are_in_the_history() -> None:
    agent = hf.Agent(
        "agent",
        model=ScriptedModel(always(call("find"))),
        tools=[find],
        policy=[hf.allow("*")],
        limits=hf.Limits(steps=1),
    )
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        await (await session.send("go")).outcome(timeout=5)
        assert isinstance((await session.history())[-1], ToolMessage)


async def test_a_turn_has_fifty_steps_unless_told_otherwise() -> None:
    outcome, _ = await run(always(call("find")), repeats=None)
    assert outcome.steps == hf.Limits().steps == 50


async def test_without_a_limit_of_steps_the_turn_goes_on() -> None:
    outcome, _ = await run([*([call("find")] * 80), text("Done.")], steps=None, repeats=None)
    assert (outcome.status, outcome.steps) == ("completed", 81)


async def test_steps_are_counted_anew_in_each_turn() -> None:
    model = ScriptedModel([call("find"), text("one"), call("find"), text("two")])
    agent = hf.Agent("agent", model=model, tools=[find], policy=[hf.allow("*")], limits=hf.Limits(steps=2))
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        outcomes = [await (await session.send("go")).outcome(timeout=5) for _ in range(2)]
        assert [outcome.text for outcome in outcomes] == ["one", "two"]


async def test_calls_that_only_fail_end_the_turn_after_twelve() -> None:
    outcome, model = await run(always(call("fails")), repeats=None)
    assert (outcome.status, outcome.code, len(model.requests)) == ("limit", "no_progress", 12)


async def test_one_call_that_works_is_progress() -> None:
    outcome, _ = await run([*([call("fails")] * 2), call("find"), *([call("fails")] * 2), text("Done.")], no_progress=3)
    assert outcome.status == "completed"


async def test_a_batch_of_which_one_call_works_is_progress() -> None:
    script = [*([[call("fails"), call("find")]] * 6), text("Done.")]
    outcome, _ = await run(script, no_progress=3, repeats=None)
    assert outcome.status == "completed"


async def test_calls_of_tools_that_are_not_there_are_no_progress() -> None:
    outcome, model = await run(always(call("nope")), no_progress=3)
    assert (outcome.code, len(model.requests)) == ("no_progress", 3)


async def test_usage_is_the_sum_of_all_steps() -> None:
    used = [reply(call("find"), usage=Usage(input=10, output=1)), reply("Done.", usage=Usage(input=20, output=2))]
    outcome, _ = await run(used)
    assert outcome.usage == Usage(input=30, output=3)


@every(
    "limits",
    [
        {"steps": 0},
        {"steps": -1},
        {"steps": 1.5},
        {"steps": "5"},
        {"steps": True},
        {"no_progress": 0},
        {"no_progress": None},
        {"repairs": -1},
        {"continuations": -1},
        {"deadline": "soon"},
        {"deadline": -1},
    ],
    ids=str,
)
def test_a_limit_that_can_not_be_meant_is_refused(limits: dict[str, Any]) -> None:
    with pytest.raises(hf.UsageError):
        hf.Limits(**limits)


# ---- the output limit ------------------------------------------------------------------------------------------------


async def test_an_answer_that_was_cut_off_is_continued_and_joined() -> None:
    outcome, model = await run([reply("Once upon ", finish="output_limit"), text("a time.")])
    assert (outcome.text, outcome.status) == ("Once upon a time.", "completed")
    assert len(notes(model.requests[-1].messages)) == 1


async def test_an_answer_is_continued_as_often_as_it_may_be() -> None:
    outcome, _ = await run([*(reply(f"{n} ", finish="output_limit") for n in range(3)), text("3")], continuations=3)
    assert outcome.text == "0 1 2 3"


async def test_an_answer_without_an_end_reaches_the_limit_and_is_kept_so_far() -> None:
    outcome, model = await run(always(reply("more ", finish="output_limit")), continuations=2)
    assert (outcome.status, outcome.code) == ("limit", "output_limit")
    assert (outcome.text, len(model.requests)) == ("more more more ", 3)


async def test_without_continuations_the_first_cut_is_the_limit() -> None:
    outcome, model = await run([reply("half", finish="output_limit")], continuations=0)
    assert (outcome.code, outcome.text, len(model.requests)) == ("output_limit", "half", 1)


async def test_no_word_at_all_within_the_output_limit_is_a_context_overflow() -> None:
    outcome, _ = await run([reply(finish="output_limit")])
    assert (outcome.status, outcome.code) == ("failed", "context_overflow")


async def test_a_reply_of_thoughts_alone_that_was_cut_off_ends_the_turn() -> None:
    outcome, _ = await run([reply(Reasoning("hm"), finish="output_limit"), text("unused")])
    assert outcome.status in {"failed", "limit"}


# ---- empty, refused, filtered ----------------------------------------------------------------------------------------


async def test_an_empty_reply_is_asked_for_again() -> None:
    outcome, model = await run([reply(), text("Here.")])
    assert (outcome.text, len(notes(model.requests[-1].messages))) == ("Here.", 1)


@pytest.mark.parametrize("item", [reply(), text(""), text("  \n"), reply(Reasoning("hm"))], ids=str)
async def test_empty_replies_fail_the_turn_in_the_end(item: Any) -> None:
    outcome, _ = await run(always(item))
    assert (outcome.status, outcome.code, outcome.blame) == ("failed", "empty_response", "model")


async def test_an_empty_text_is_not_sent_back_to_the_model() -> None:
    _, model = await run([text(""), text("Here.")])
    said = [found for found in model.requests[-1].messages if isinstance(found, hf.AssistantMessage)]
    assert [found for found in said if not found.text] == []


async def test_an_empty_reply_after_tools_is_how_some_models_say_that_they_are_done() -> None:
    outcome, _ = await run([call("find"), reply()])
    assert (outcome.status, outcome.text) == ("completed", "")


async def test_a_refusal_fails_the_turn_and_its_words_are_in_the_history() -> None:
    agent = hf.Agent("agent", model=ScriptedModel([refusal("I won't."), text("Sure.")]))
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        outcome = await (await session.send("go")).outcome(timeout=5)
        assert (outcome.status, outcome.code, outcome.blame) == ("failed", "refusal", "model")
        assert "I won't." in str(await session.history())
        assert (await (await session.send("please")).outcome(timeout=5)).text == "Sure."


async def test_a_content_filter_fails_the_turn() -> None:
    outcome, _ = await run([reply("Well, ", finish="content_filter")])
    assert (outcome.status, outcome.code, outcome.blame) == ("failed", "content_filter", "model")


@pytest.mark.parametrize(
    "item", [reply(finish="context_overflow"), ContextOverflow("too long"), error("too long", kind="context_overflow")]
)
async def test_a_context_overflow_fails_the_turn(item: Any) -> None:
    outcome, _ = await run([item])
    assert (outcome.status, outcome.code, outcome.blame) == ("failed", "context_overflow", "model")


# ---- errors ----------------------------------------------------------------------------------------------------------


async def test_an_error_of_the_provider_fails_the_turn_with_its_kind_and_words() -> None:
    outcome, _ = await run([error("try again later", kind="overloaded", retryable=True)])
    assert (outcome.status, outcome.code, outcome.message) == ("failed", "overloaded", "try again later")
    assert outcome.blame == "model"


async def test_a_stream_that_was_cut_is_no_answer() -> None:
    outcome, _ = await run([cut("half an ans")])
    assert (outcome.status, outcome.code, outcome.blame) == ("failed", "stream_cut", "model")


async def test_a_failed_model_call_leaves_no_half_message_in_the_history() -> None:
    agent = hf.Agent("agent", model=ScriptedModel([cut("half an ans"), text("Here.")]))
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        await (await session.send("go")).outcome(timeout=5)
        assert [message.id for message in await session.history()] == ["t1.i1"]
        assert (await (await session.send("again")).outcome(timeout=5)).text == "Here."


async def test_a_bug_in_the_model_fails_the_turn_by_its_name() -> None:
    outcome, _ = await run([ZeroDivisionError("oops")])
    assert (outcome.status, outcome.code, outcome.message) == ("failed", "ZeroDivisionError", "oops")


async def test_an_error_of_our_own_kind_from_a_model_fails_the_turn_and_not_the_session() -> None:
    agent = hf.Agent("agent", model=ScriptedModel([HoldfastError("odd"), text("Here.")]))
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        assert (await (await session.send("go")).outcome(timeout=5)).status == "failed"
        assert (await (await session.send("again")).outcome(timeout=5)).text == "Here."


async def test_an_error_of_our_own_kind_from_a_tool_is_an_answer_to_the_model() -> None:
    @hf.tool(read_only=True)
    async def looks_up() -> str:
        raise hf.errors.TurnUnknown("other", "t9")

    agent = hf.Agent(
        "agent", model=ScriptedModel([call("looks_up"), text("Done.")]), tools=[looks_up], policy=[hf.allow("*")]
    )
    assert (await hf.run(agent, "go")).text == "Done."


async def test_a_turn_that_failed_leaves_the_session_open() -> None:
    agent = hf.Agent("agent", model=ScriptedModel([error("down"), text("Here.")]))
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        assert (await (await session.send("go")).outcome(timeout=5)).ok is False
        assert (await (await session.send("again")).outcome(timeout=5)).ok is True
