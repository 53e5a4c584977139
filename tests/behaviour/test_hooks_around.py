"""Hooks around a turn: before and after the model, after a call, and where they only observe."""
# ruff: noqa: ARG005  hooks take what they are given

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.behaviour.approving import CALL, Shop, asked_once, ended, sent, told
from tests.behaviour.background import SESSION
from tests.behaviour.hooking import ODD, OPEN, After, Models, Seen, Turns, failures, raises, said
from tests.behaviour.talk import SOON, asked, pairs_are_whole, until

import holdfast as hf
from holdfast.testing import call, check, error, text

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.policy.hooks import ToolDecision
    from holdfast.runtime.runtime import Runtime
    from holdfast.turns.machine import Ending


@pytest.fixture
def shop() -> Shop:
    return Shop()


# ---- the turn and the model ------------------------------------------------------------------------------------------


async def how_it_ended(agent: hf.Agent) -> hf.TurnOutcome:
    async with hf.open(None, agents=[agent]) as runtime:
        await sent(runtime, agent)
        return await ended(runtime)


DENIALS: dict[str, hf.Hooks] = {
    "before_turn": Turns(lambda turn: turn.deny("closed today")),
    "before_model": Models(lambda asked: asked.deny("closed today")),
    "after_model": Models(after=lambda asked, reply: hf.TurnContext("", "", "").deny("closed today")),
}


@pytest.mark.parametrize("hooks", DENIALS.values(), ids=DENIALS)
async def test_a_denied_turn_ends_as_failed_and_says_why(shop: Shop, hooks: hf.Hooks) -> None:
    outcome = await how_it_ended(shop.agent(policy=OPEN, hooks=[hooks]))
    assert (outcome.status, outcome.code, outcome.blame) == ("failed", "denied", "caller")
    assert "closed today" in outcome.message
    assert shop.done == []


BROKEN: dict[str, hf.Hooks] = {
    "before_turn": Turns(raises),
    "before_model": Models(raises),
    "after_model": Models(after=raises),
}


@pytest.mark.parametrize("hooks", BROKEN.values(), ids=BROKEN)
async def test_a_hook_that_raises_before_or_after_the_model_denies(shop: Shop, hooks: hf.Hooks) -> None:
    outcome = await how_it_ended(shop.agent(policy=OPEN, hooks=[hooks]))
    assert (outcome.status, outcome.code) == ("failed", "denied")


async def test_the_model_of_a_denied_turn_is_not_asked(shop: Shop) -> None:
    agent = shop.agent(policy=OPEN, hooks=[Turns(lambda turn: turn.deny("no"))])
    await how_it_ended(agent)
    assert asked(agent) == []


async def test_the_session_goes_on_after_a_denied_turn(shop: Shop) -> None:
    hooks = Turns(lambda turn: turn.deny("no") if turn.turn == "t1" else None)
    agent = shop.agent(text("hello"), policy=OPEN, hooks=[hooks])
    async with hf.open(None, agents=[agent]) as runtime:
        await sent(runtime, agent)
        await ended(runtime)
        second = await sent(runtime, agent, "again")
        assert (await second.outcome(timeout=SOON)).status == "completed"


async def test_before_turn_is_asked_once_also_when_the_process_dies_in_the_first_model_call(
    shop: Shop, tmp_path: Path
) -> None:
    reached = asyncio.Event()

    async def hangs(request: hf.ModelRequest) -> Any:
        if not reached.is_set():
            reached.set()
            await asyncio.Event().wait()
        return text("hello")

    hooks = Turns(lambda turn: None)
    agent = shop.agent(hangs, policy=OPEN, hooks=[hooks])
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        await sent(runtime, agent)
        await asyncio.wait_for(reached.wait(), SOON)
        await runtime.close(grace=0)
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        await ended(runtime)
        assert hooks.count == 1


async def test_a_hook_may_answer_in_place_of_the_model(shop: Shop) -> None:
    agent = shop.agent(policy=OPEN, hooks=[Models(lambda asked: asked.answer("from the cache"))])
    outcome = await how_it_ended(agent)
    assert (outcome.status, outcome.text, asked(agent)) == ("completed", "from the cache", [])


async def test_a_hook_sees_what_the_model_is_about_to_be_asked(shop: Shop) -> None:
    seen: list[str] = []

    def look(question: hf.HookRequest) -> None:
        message = question.request.messages[0]
        seen.append(message.text if isinstance(message, hf.UserMessage) else "")

    await how_it_ended(shop.agent(text("hello"), policy=OPEN, hooks=[Models(look)]))
    assert seen == ["go"]


async def test_a_reply_that_a_hook_denies_makes_no_call_and_is_not_in_the_history(shop: Shop) -> None:
    agent = shop.agent(policy=OPEN, hooks=[DENIALS["after_model"]])
    async with hf.open(None, agents=[agent]) as runtime:
        await sent(runtime, agent)
        await ended(runtime)
        history = await runtime.session(SESSION).history()
        assert [type(message) for message in history] == [hf.UserMessage]


# ---- after a call ----------------------------------------------------------------------------------------------------


async def test_a_hook_may_put_something_else_in_the_place_of_a_result(shop: Shop) -> None:
    agent = shop.agent(policy=OPEN, hooks=[After(lambda call, result: call.answer("withheld"))])
    async with hf.open(None, agents=[agent]) as runtime:
        (result,) = await said(runtime, agent)
        assert (result.content, shop.done) == ("withheld", [("7", 900)])


async def test_a_replaced_result_is_the_only_one_that_is_recorded(shop: Shop, tmp_path: Path) -> None:
    agent = shop.agent(policy=OPEN, hooks=[After(lambda call, result: call.answer("withheld"))])
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        await said(runtime, agent)
        assert await check(runtime.store, canaries=[b"refunded 900"]) == []


async def test_the_next_hook_sees_the_result_that_the_one_before_has_made(shop: Shop) -> None:
    second = After(lambda call, result: call.answer(f"{result.content}!"))
    agent = shop.agent(policy=OPEN, hooks=[After(lambda call, result: call.answer("withheld")), second])
    async with hf.open(None, agents=[agent]) as runtime:
        (result,) = await said(runtime, agent)
        assert result.content == "withheld!"


async def test_a_hook_that_raises_after_a_call_withholds_its_result(shop: Shop) -> None:
    agent = shop.agent(policy=OPEN, hooks=[After(raises)])
    async with hf.open(None, agents=[agent]) as runtime:
        (result,) = await said(runtime, agent)
        assert result.state == "error"
        assert "refunded" not in result.content
        assert "took effect" in result.content


async def test_what_one_hook_withholds_by_raising_no_other_restores(shop: Shop) -> None:
    agent = shop.agent(policy=OPEN, hooks=[After(raises), After(lambda call, result: call.answer(result.content))])
    async with hf.open(None, agents=[agent]) as runtime:
        (result,) = await said(runtime, agent)
        assert (result.state, "refunded" in str(result.content)) == ("error", False)


async def test_a_hook_sees_how_a_call_failed_and_may_say_something_else(shop: Shop) -> None:
    @hf.tool
    async def refund(order: str, cents: int) -> str:
        """Refund an order."""
        raise RuntimeError("no money")

    hook = After(lambda call, result: call.answer("try tomorrow"))
    agent = shop.agent(policy=OPEN, tools=[refund], hooks=[hook])
    async with hf.open(None, agents=[agent]) as runtime:
        (result,) = await said(runtime, agent)
        assert ([seen.state for seen in hook.seen], result.content) == (["error"], "try tomorrow")


@pytest.mark.parametrize("value", ODD.values(), ids=ODD)
async def test_a_result_of_a_hook_that_is_no_json_is_withheld(shop: Shop, value: object) -> None:
    agent = shop.agent(policy=OPEN, hooks=[After(lambda call, result: call.answer(value))])
    async with hf.open(None, agents=[agent]) as runtime:
        (result,) = await said(runtime, agent)
        assert (result.state, shop.done) == ("error", [("7", 900)])


async def test_a_result_is_not_made_something_else_twice(shop: Shop, tmp_path: Path) -> None:
    hook = After(lambda call, result: call.answer(f"({result.content})"))
    agent = shop.agent([call("note", text="x"), CALL], hooks=[hook])
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        shown = await asked_once(runtime, agent)
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        await runtime.approve(shown.id)
        assert [result.content for result in await told(runtime)] == ["(noted x)", "(refunded 900)"]


# ---- observing -------------------------------------------------------------------------------------------------------


class Broken(hf.Hooks):
    """Raises where it only observes."""

    async def after_turn(self, turn: hf.TurnContext, ending: Ending) -> None:
        raises()

    async def on_error(self, turn: hf.TurnContext, error: Exception) -> None:
        raises()

    async def on_notification(self, turn: hf.TurnContext, text: str) -> None:
        raises()


async def test_a_hook_that_raises_where_it_observes_is_told_and_the_turn_goes_on(shop: Shop) -> None:
    @hf.tool(read_only=True)
    async def fails() -> str:
        """Fail."""
        raise RuntimeError("no")

    agent = shop.agent(call("fails"), policy=OPEN, tools=[fails], hooks=[Broken()])
    async with hf.open(None, agents=[agent]) as runtime:
        found = await failures(runtime, lambda: said(runtime, agent))
        assert ("Broken", "on_error") in found
        assert (await ended(runtime)).status == "completed"


async def notified(runtime: Runtime, agent: hf.Agent) -> None:
    """Tell a session something, and wait until its model has answered that."""
    await sent(runtime, agent)
    await ended(runtime)
    await runtime.notify(SESSION, "the parcel is here")

    async def is_over() -> bool:
        rests = await runtime.session(SESSION).status() == "completed" and not runtime.active
        return rests and len(asked(agent)) == 2

    await until(is_over)


async def test_a_hook_that_raises_over_a_notification_does_not_keep_it_from_the_model(shop: Shop) -> None:
    agent = shop.agent(text("hello"), policy=OPEN, hooks=[Broken()])
    async with hf.open(None, agents=[agent]) as runtime:
        await notified(runtime, agent)
        assert "the parcel is here" in str(asked(agent)[-1].messages)


async def test_a_notification_is_told_once(shop: Shop) -> None:
    seen = Seen()
    agent = shop.agent(text("hello"), policy=OPEN, hooks=[seen])
    async with hf.open(None, agents=[agent]) as runtime:
        await notified(runtime, agent)
        assert seen.log.count("on_notification") == 1


async def test_a_call_that_fails_is_told_once(shop: Shop) -> None:
    @hf.tool
    async def refund(order: str, cents: int) -> str:
        """Refund an order."""
        raise RuntimeError("no money")

    seen = Seen()
    agent = shop.agent(
        [CALL, call("note", text="x")],
        policy=[hf.ask("note"), hf.allow("*")],
        tools=[refund, shop.note()],
        hooks=[seen],
    )
    async with hf.open(None, agents=[agent]) as runtime:
        await runtime.approve((await asked_once(runtime, agent)).id)
        await ended(runtime)
        errors = [line for line in seen.log if line.startswith("on_error")]
        assert len(errors) == 1
        assert "no money" in errors[0]


async def test_a_model_that_fails_is_told_once(shop: Shop) -> None:
    seen = Seen()
    await how_it_ended(shop.agent(error("overloaded"), policy=OPEN, hooks=[seen]))
    errors = [line for line in seen.log if line.startswith("on_error")]
    assert len(errors) == 1
    assert "overloaded" in errors[0]


async def test_a_hook_gets_the_error_of_the_model_itself(shop: Shop) -> None:
    raised = hf.ModelError("too many of us", kind="overloaded", retryable=True)
    told: list[Exception] = []

    class Notes(hf.Hooks):
        async def on_error(self, turn: hf.TurnContext, error: Exception) -> None:
            told.append(error)

    await how_it_ended(shop.agent(raised, policy=OPEN, hooks=[Notes()]))
    assert told == [raised]
    assert told[0].__traceback__ is not None


@pytest.mark.parametrize("answer", ["approve", "deny"])
async def test_the_end_of_a_turn_that_was_parked_is_told_once(shop: Shop, answer: str) -> None:
    seen = Seen()
    agent = shop.agent(hooks=[seen])
    async with hf.open(None, agents=[agent]) as runtime:
        await getattr(runtime, answer)((await asked_once(runtime, agent)).id)
        await ended(runtime)

        async def is_told() -> bool:
            return "after_turn completed" in seen.log

        await until(is_told)
        assert [line for line in seen.log if line.startswith("after_turn")] == ["after_turn completed"]


async def test_the_beginning_of_a_turn_that_was_parked_is_told_once(shop: Shop, tmp_path: Path) -> None:
    seen = Seen()
    agent = shop.agent(hooks=[seen])
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        shown = await asked_once(runtime, agent)
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        await runtime.approve(shown.id)
        await ended(runtime)
        assert seen.log.count("before_turn") == 1


async def test_the_end_of_a_cancelled_turn_is_told(shop: Shop) -> None:
    seen = Seen()
    agent = shop.agent(hooks=[seen])
    async with hf.open(None, agents=[agent]) as runtime:
        await asked_once(runtime, agent)
        await runtime.session(SESSION).cancel("enough")
        await ended(runtime)

        async def is_told() -> bool:
            return "after_turn cancelled" in seen.log

        await until(is_told)


async def test_the_end_of_a_denied_turn_is_told(shop: Shop) -> None:
    seen = Seen()
    agent = shop.agent(policy=OPEN, hooks=[Turns(lambda turn: turn.deny("no")), seen])
    async with hf.open(None, agents=[agent]) as runtime:
        await sent(runtime, agent)
        await ended(runtime)

        async def is_told() -> bool:
            return seen.log == ["after_turn failed"]

        await until(is_told)


# ---- a hook that takes its time --------------------------------------------------------------------------------------


class Slow(hf.Hooks):
    """Does not come to a decision."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()

    async def before_tool(self, call: hf.HookCall) -> ToolDecision | None:
        self.reached.set()
        await asyncio.Event().wait()


async def test_a_turn_can_be_cancelled_while_a_hook_thinks(shop: Shop) -> None:
    hook = Slow()
    agent = shop.agent(policy=OPEN, hooks=[hook])
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await sent(runtime, agent)
        await asyncio.wait_for(hook.reached.wait(), SOON)
        await turn.cancel("enough")
        assert (await turn.outcome(timeout=SOON)).status == "cancelled"
        assert shop.done == []
        assert pairs_are_whole(await runtime.session(SESSION).history())
