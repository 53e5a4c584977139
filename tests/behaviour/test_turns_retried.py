"""Second chances: an ended turn is tried again from where it stopped, or from one of its steps, and nothing twice."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.behaviour.talk import SOON, asked, pairs_are_whole, until

import holdfast as hf
from holdfast.testing import ScriptedModel, call, check, text

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.runtime.runtime import Runtime

DOWN = hf.ModelError("the model is down", kind="server_error")


class Shop:
    def __init__(self) -> None:
        self.refunds: list[str] = []
        self.begun = asyncio.Event()

    def agent(self, script: Any, **options: Any) -> hf.Agent:
        @hf.tool
        async def refund(ctx: hf.Context) -> str:
            self.refunds.append(ctx.idempotency_key)
            return "refunded"

        @hf.tool
        async def hangs() -> None:
            self.begun.set()
            await asyncio.Event().wait()

        return hf.Agent("shop", model=ScriptedModel(script), tools=[refund, hangs], policy=[hf.allow("*")], **options)


@pytest.fixture
def shop() -> Shop:
    return Shop()


async def _ended(runtime: Runtime, agent: hf.Agent, said: str = "refund it", **given: Any) -> hf.Turn:
    turn = await runtime.session("s", agent=agent).send(said, **given)
    await turn.outcome(timeout=SOON)
    return turn


def _texts(messages: Any) -> list[str]:
    return [message.text for message in messages if isinstance(message, hf.UserMessage)]


async def test_a_failed_turn_goes_on_with_the_results_that_it_had(shop: Shop) -> None:
    agent = shop.agent([call("refund"), DOWN, text("all is paid back")])
    async with hf.open(None, agents=[agent]) as runtime:
        failed = await _ended(runtime, agent)
        outcome = await (await failed.retry()).outcome(timeout=SOON)
        assert (outcome.status, outcome.text) == ("completed", "all is paid back")
        assert len(shop.refunds) == 1
        seen = asked(agent)[-1].messages
        assert pairs_are_whole(seen)
        assert _texts(seen)[0] == "refund it"
        assert await check(runtime.store) == []


async def test_a_retry_tells_the_model_why_the_turn_ended(shop: Shop) -> None:
    agent = shop.agent([DOWN, text("done")])
    async with hf.open(None, agents=[agent]) as runtime:
        await (await (await _ended(runtime, agent)).retry()).outcome(timeout=SOON)
        assert "ended early (server_error)" in _texts(asked(agent)[-1].messages)[-1]


async def test_a_turn_that_reached_a_limit_has_its_steps_anew(shop: Shop) -> None:
    agent = shop.agent([call("refund"), call("refund"), text("done")], limits=hf.Limits(steps=2))
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await _ended(runtime, agent)
        assert await turn.status() == "limit"
        assert (await (await turn.retry()).outcome(timeout=SOON)).text == "done"


async def test_a_cancelled_turn_shows_the_model_which_call_is_unknown_and_repeats_none(shop: Shop) -> None:
    agent = shop.agent([call("hangs"), text("I look first")])
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await runtime.session("s", agent=agent).send("go")
        await asyncio.wait_for(shop.begun.wait(), SOON)
        await turn.cancel()
        await turn.outcome(timeout=SOON)
        assert (await (await turn.retry()).outcome(timeout=SOON)).text == "I look first"
        results = [each for each in asked(agent)[-1].messages if isinstance(each, hf.ToolMessage)]
        assert [result.state for result in results[0].results] == ["unknown"]


async def test_a_retry_keeps_the_metadata_of_the_input(shop: Shop) -> None:
    agent = shop.agent([DOWN, text("done")])
    async with hf.open(None, agents=[agent]) as runtime:
        retry = await (await _ended(runtime, agent, metadata={"user": "ann"})).retry()
        accepted = [event async for event in retry.events() if isinstance(event, hf.events.InputAccepted)]
        assert [(event.metadata, event.retry_of) for event in accepted] == [({"user": "ann"}, "t1")]


async def test_the_same_key_is_the_same_retry(shop: Shop) -> None:
    agent = shop.agent([DOWN, text("done"), text("twice")])
    async with hf.open(None, agents=[agent]) as runtime:
        failed = await _ended(runtime, agent)
        first = await failed.retry(key="again")
        await first.outcome(timeout=SOON)
        assert (await failed.retry(key="again")).id == first.id
        assert len(asked(agent)) == 2


async def test_a_retry_that_failed_too_is_tried_again_itself(shop: Shop) -> None:
    agent = shop.agent([DOWN, DOWN, text("done")])
    async with hf.open(None, agents=[agent]) as runtime:
        first = await _ended(runtime, agent)
        second = await first.retry()
        await second.outcome(timeout=SOON)
        with pytest.raises(hf.errors.RetryRefused, match="'t2' comes after it"):
            await first.retry()
        assert (await (await second.retry()).outcome(timeout=SOON)).text == "done"


async def test_a_turn_that_runs_is_not_retried(shop: Shop) -> None:
    agent = shop.agent([call("hangs"), text("done")])
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await runtime.session("s", agent=agent).send("go")
        await asyncio.wait_for(shop.begun.wait(), SOON)
        with pytest.raises(hf.errors.RetryRefused, match="has not ended"):
            await turn.retry()


async def test_a_turn_that_completed_is_only_done_again_from_a_step(shop: Shop) -> None:
    agent = shop.agent([text("done")])
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await _ended(runtime, agent)
        with pytest.raises(hf.errors.RetryRefused, match=r"has completed; from_step=1"):
            await turn.retry()


async def test_a_turn_with_a_later_one_is_not_continued_out_of_order(shop: Shop) -> None:
    agent = shop.agent([DOWN, text("hello")])
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await _ended(runtime, agent)
        await _ended(runtime, agent, "something else")
        with pytest.raises(hf.errors.RetryRefused, match="'t2' comes after it"):
            await turn.retry()


async def test_of_two_retries_at_once_the_second_does_nothing(shop: Shop, tmp_path: Path) -> None:
    agent = shop.agent([DOWN, text("done"), text("twice")])
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        turn = await _ended(runtime, agent)
        retries = await asyncio.gather(turn.retry(key="a"), turn.retry(key="b"), return_exceptions=True)
        outcomes = [await retry.outcome(timeout=SOON) for retry in retries if isinstance(retry, hf.Turn)]
        assert [outcome.code for outcome in outcomes if not outcome.ok] in ([], ["overtaken"])
        assert len(asked(agent)) == 2


async def test_a_retry_is_done_after_a_restart(shop: Shop, tmp_path: Path) -> None:
    path, agent = tmp_path / "s.db", shop.agent([call("refund"), DOWN, text("done")])
    async with hf.open(path, agents=[agent]) as runtime:
        turn = await _ended(runtime, agent)
    async with hf.open(path, agents=[agent], drive=False) as runtime:
        retry = await runtime.session("s").turn(turn.id).retry()
    async with hf.open(path, agents=[agent]) as runtime:
        assert (await runtime.session("s").turn(retry.id).outcome(timeout=SOON)).text == "done"
        assert len(shop.refunds) == 1


async def test_a_turn_is_done_again_from_a_step_in_a_fork(shop: Shop) -> None:
    answers = ["done badly", "done well"]

    def answer(_: hf.ModelRequest) -> Any:
        return text(answers.pop(0))

    agent = shop.agent([call("refund"), answer])
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await _ended(runtime, agent)
        again = await turn.retry(from_step=2)
        outcome = await again.outcome(timeout=SOON)
        assert (outcome.text, len(shop.refunds)) == ("done well", 1)
        assert again.session.startswith("s~t1-")
        assert (await turn.outcome(timeout=SOON)).text == "done badly"
        assert await check(runtime.store) == []


async def test_from_the_first_step_a_turn_is_done_again_as_a_whole(shop: Shop) -> None:
    agent = shop.agent([call("refund"), text("done")])
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await _ended(runtime, agent)
        outcome = await (await turn.retry(from_step=1)).outcome(timeout=SOON)
        assert outcome.text == "done"
        assert len(set(shop.refunds)) == 2  # with another idempotency key: it is asked for again


async def test_the_same_key_is_the_same_fork(shop: Shop) -> None:
    agent = shop.agent([call("refund"), text("done")])
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await _ended(runtime, agent)
        first, second = await turn.retry(from_step=1, key="k"), await turn.retry(from_step=1, key="k")
        assert (first.session, first.id) == (second.session, second.id)
        with pytest.raises(hf.errors.KeyConflict):
            await turn.retry(from_step=2, key="k")


async def test_the_key_of_a_retry_in_the_session_is_refused_for_one_in_a_fork_and_the_other_way_round(
    shop: Shop,
) -> None:
    agent = shop.agent([DOWN, DOWN, text("done")])
    async with hf.open(None, agents=[agent]) as runtime:
        failed = await _ended(runtime, agent)
        fork = await failed.retry(from_step=1, key="fork")
        with pytest.raises(hf.errors.KeyConflict):
            await failed.retry(key="fork")
        again = await failed.retry(key="again")
        with pytest.raises(hf.errors.KeyConflict):
            await failed.retry(from_step=1, key="again")
        assert (await failed.retry(key="again")).id == again.id
        assert (await failed.retry(from_step=1, key="fork")).session == fork.session


async def test_a_step_that_the_turn_does_not_have_is_refused(shop: Shop) -> None:
    agent = shop.agent([text("done")])
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await _ended(runtime, agent)
        with pytest.raises(hf.errors.RetryRefused, match="no step 4, only 1"):
            await turn.retry(from_step=4)


async def test_calls_of_unknown_outcome_are_not_done_again_silently(shop: Shop) -> None:
    agent = shop.agent([call("hangs"), text("done")])
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await runtime.session("s", agent=agent).send("go")
        await asyncio.wait_for(shop.begun.wait(), SOON)
        await turn.cancel()
        await turn.outcome(timeout=SOON)
        with pytest.raises(hf.errors.RetryRefused, match=r"outcome of these is unknown.*t1/2.tools/1.hangs"):
            await turn.retry(from_step=1)
        shop.begun.clear()
        again = await turn.retry(from_step=1, repeat_unknown=True)
        await asyncio.wait_for(shop.begun.wait(), SOON)
        await again.cancel()


async def test_a_compaction_that_was_asked_for_is_not_retried(shop: Shop) -> None:
    agent = shop.agent([text("done")])
    async with hf.open(None, agents=[agent]) as runtime:
        await _ended(runtime, agent)
        compacted = await runtime.session("s").compact()
        await compacted.outcome(timeout=SOON)
        with pytest.raises(hf.errors.RetryRefused, match="only compacted"):
            await compacted.retry(from_step=1)


async def test_a_retry_has_the_deadline_of_the_turn_anew(shop: Shop) -> None:
    agent = shop.agent([call("hangs"), call("hangs"), text("done")])
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await _ended(runtime, agent, deadline=0.2)
        retry = await turn.retry()
        assert (await retry.outcome(timeout=SOON)).code == "deadline"
        assert len(asked(agent)) == 2


async def test_a_retry_goes_on_from_the_fold_of_a_long_session(shop: Shop, tmp_path: Path) -> None:
    def answer(request: hf.ModelRequest) -> Any:
        return DOWN if _texts(request.messages)[-1] == "fail" else text("done")

    path, agent = tmp_path / "s.db", shop.agent(answer)
    async with hf.open(path, agents=[agent]) as runtime:
        for number in range(30):
            await _ended(runtime, agent, f"hello {number}")
        turn = await _ended(runtime, agent, "fail")
        await until(lambda: _has_fold(runtime))
    async with hf.open(path, agents=[agent]) as runtime:
        assert (await (await runtime.session("s").turn(turn.id).retry()).outcome(timeout=SOON)).text == "done"


async def _has_fold(runtime: Runtime) -> bool:
    return await runtime.store.fold("s") is not None
