"""Every tool call the model made has exactly one result in the history, always, and the next request is valid."""

from __future__ import annotations

import asyncio
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest
from tests.behaviour.talk import SOON, pairs_are_whole

import holdfast as hf
from holdfast.effects.canonical import fits
from holdfast.messages import Message, ToolCall, ToolMessage, ToolResult
from holdfast.testing import ScriptedModel, call, check, reply, text

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path
    from types import FrameType

    from holdfast.testing.scripted import ScriptItem

HUGE = 200_000


class Shop:
    """Tools of every kind, and what they did."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.reached = asyncio.Event()
        self.go_on = asyncio.Event()
        self.free = threading.Event()
        self.most = 0
        self.now = 0

    def tools(self) -> list[hf.Tool[..., Any]]:
        @hf.tool(read_only=True)
        async def find(order: int = 1) -> dict[str, int]:
            self.done.append(f"find {order}")
            return {"order": order}

        @hf.tool(read_only=True)
        async def overlap() -> int:
            self.now += 1
            self.most = max(self.most, self.now)
            for _ in range(10):
                await asyncio.sleep(0)
            self.now -= 1
            return self.now

        @hf.tool
        async def refund(order: int) -> str:
            self.now += 1
            self.most = max(self.most, self.now)
            for _ in range(10):
                await asyncio.sleep(0)
            self.now -= 1
            self.done.append(f"refund {order}")
            return "refunded"

        @hf.tool
        async def fails(order: int = 1) -> str:
            self.done.append("fails")
            raise LookupError("no such order")

        @hf.tool
        async def wants_better() -> str:
            raise hf.ToolRetry("Give the number of the order.")

        @hf.tool(read_only=True, timeout=0.05)
        async def slow() -> str:
            await asyncio.sleep(60)
            return "late"

        @hf.tool(timeout=0.05)
        async def slow_refund() -> str:
            await asyncio.sleep(60)
            return "late"

        @hf.tool(read_only=True, timeout=0.05)
        def slow_thread() -> str:
            self.free.wait(SOON)
            return "late"

        @hf.tool(read_only=True, output_limit=10_000_000)
        async def huge(size: int = HUGE) -> str:
            return "é" * size

        @hf.tool
        async def hangs() -> str:
            self.reached.set()
            await self.go_on.wait()
            return "done"

        return [find, overlap, refund, fails, wants_better, slow, slow_refund, slow_thread, huge, hangs]


@pytest.fixture
async def shop() -> AsyncIterator[Shop]:
    made = Shop()
    yield made
    made.free.set()


def results_of(messages: list[Message] | tuple[Message, ...]) -> list[ToolResult]:
    return [result for message in messages if isinstance(message, ToolMessage) for result in message.results]


async def results(shop: Shop, *calls: Any, **options: Any) -> list[ToolResult]:
    """What a batch of calls comes to, as the model reads it in its next request."""
    model = ScriptedModel([reply(*calls), text("Done.")])
    agent = hf.Agent("agent", model=model, tools=shop.tools(), policy=[hf.allow("*")], **options)
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        outcome = await (await session.send("go")).outcome(timeout=SOON)
        assert outcome.text == "Done."
        assert pairs_are_whole(model.requests[-1].messages)
        assert results_of(await session.history()) == results_of(model.requests[-1].messages)
        assert await check(runtime.store) == []
    return results_of(model.requests[-1].messages)


# ---- what a call may come to -----------------------------------------------------------------------------------------


async def test_a_value_comes_back_as_the_json_it_is(shop: Shop) -> None:
    (result,) = await results(shop, call("find", order=7))
    assert (result.state, result.content) == ("ok", {"order": 7})


async def test_results_come_in_the_order_of_the_calls(shop: Shop) -> None:
    got = await results(shop, *(call("find", order=n) for n in (3, 1, 2)))
    assert [result.content["order"] for result in got] == [3, 1, 2]


async def test_a_tool_that_raises_tells_the_model_what_and_why(shop: Shop) -> None:
    (result,) = await results(shop, call("fails"))
    assert (result.state, result.content) == ("error", "LookupError: no such order")


async def test_a_tool_that_raises_is_not_called_again(shop: Shop) -> None:
    await results(shop, call("fails"))
    assert shop.done == ["fails"]


async def test_a_tool_may_ask_the_model_for_better_arguments_in_its_own_words(shop: Shop) -> None:
    (result,) = await results(shop, call("wants_better"))
    assert (result.state, result.content) == ("error", "Give the number of the order.")


async def test_a_failed_call_does_not_take_the_others_with_it(shop: Shop) -> None:
    got = await results(shop, call("find"), call("fails"), call("refund", order=5), call("nope"), call("find"))
    assert [result.state for result in got] == ["ok", "error", "ok", "error", "ok"]


async def test_a_tool_that_is_not_there_is_named_with_those_that_are(shop: Shop) -> None:
    (result,) = await results(shop, call("refnd", order=1))
    assert result.state == "error"
    assert "refnd" in result.content
    assert "refund" in result.content


async def test_arguments_that_are_no_json_object_are_told_to_the_model(shop: Shop) -> None:
    (result,) = await results(shop, ToolCall("c1", "refund", None, malformed='{"order": 1'))
    assert (result.state, shop.done) == ("error", [])
    assert "JSON" in result.content


@pytest.mark.parametrize("arguments", [{}, {"order": "many"}, {"order": None}, {"order": 1, "extra": 2}], ids=str)
async def test_arguments_that_do_not_fit_are_told_to_the_model_and_nothing_is_done(
    shop: Shop, arguments: dict[str, Any]
) -> None:
    (result,) = await results(shop, ToolCall("c1", "refund", arguments))
    assert (result.state, shop.done) == ("error", [])


async def test_a_read_that_takes_too_long_may_be_tried_again(shop: Shop) -> None:
    (result,) = await results(shop, call("slow"))
    assert result.state == "error"
    assert "0.05 s" in result.content


async def test_a_read_in_a_thread_that_takes_too_long_does_not_hold_up_the_turn(shop: Shop) -> None:
    (result,) = await results(shop, call("slow_thread"))
    assert result.state == "error"


async def test_of_an_act_that_takes_too_long_nobody_knows_whether_it_took_effect(shop: Shop) -> None:
    (result,) = await results(shop, call("slow_refund"))
    assert result.state == "unknown"


async def test_a_huge_result_reaches_the_model_whole_where_its_limit_allows(shop: Shop) -> None:
    (result,) = await results(shop, call("huge"))
    assert result.content == "é" * HUGE


async def test_huge_results_side_by_side_are_not_mixed_up(shop: Shop) -> None:
    got = await results(shop, *(call("huge", size=HUGE + n) for n in range(4)))
    assert [len(result.content) for result in got] == [HUGE + n for n in range(4)]


async def test_a_huge_result_is_there_after_a_restart(tmp_path: Path, shop: Shop) -> None:
    model = ScriptedModel([call("huge"), call("hangs"), text("Done.")])
    agent = hf.Agent("agent", model=model, tools=shop.tools(), policy=[hf.allow("*")])
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        turn = await runtime.session("s", agent=agent).send("go")
        await asyncio.wait_for(shop.reached.wait(), SOON)
        await runtime.close(grace=0)
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        assert (await runtime.session("s").turn(turn.id).outcome(timeout=SOON)).text == "Done."
        (result, _) = results_of(model.requests[-1].messages)
        assert result.content == "é" * HUGE


async def test_a_result_beyond_every_limit_is_an_error_and_not_the_end_of_the_session(shop: Shop) -> None:
    model = ScriptedModel([call("huge", size=HUGE), text("Done.")])
    agent = hf.Agent("agent", model=model, tools=shop.tools(), policy=[hf.allow("*")])
    async with hf.open(None, agents=[agent], limits=hf.StoreLimits(blob_bytes=100_000)) as runtime:
        outcome = await (await runtime.session("s", agent=agent).send("go")).outcome(timeout=SOON)
        (result,) = results_of(model.requests[-1].messages)
        assert (outcome.text, result.state) == ("Done.", "error")


async def test_huge_arguments_are_kept_as_they_are(shop: Shop) -> None:
    (result,) = await results(shop, ToolCall("c1", "fails", {"order": 1, "x" * 100_000: "y" * 100_000}))
    assert result.state == "error"


async def test_a_huge_error_is_cut_to_what_a_model_can_read() -> None:
    @hf.tool(read_only=True)
    async def shouts() -> str:
        raise ValueError("x" * 1_000_000)

    model = ScriptedModel([call("shouts"), text("Done.")])
    await hf.run(hf.Agent("agent", model=model, tools=[shouts], policy=[hf.allow("*")]), "go")
    (result,) = results_of(model.requests[-1].messages)
    assert len(result.content) < 10_000


# ---- what providers do -----------------------------------------------------------------------------------------------


async def test_calls_with_the_same_id_have_a_result_each(shop: Shop) -> None:
    same = [ToolCall("call_0", "find", {"order": n}) for n in (1, 2)]
    got = await results(shop, *same)
    assert [result.content for result in got] == [{"order": 1}, {"order": 2}]


async def test_an_id_that_comes_again_in_a_later_step_has_a_result_of_its_own(shop: Shop) -> None:
    script: list[ScriptItem] = [reply(ToolCall("call_0", "find", {"order": n})) for n in (1, 2)]
    model = ScriptedModel([*script, text("Done.")])
    await hf.run(hf.Agent("agent", model=model, tools=shop.tools(), policy=[hf.allow("*")]), "go")
    assert [result.content for result in results_of(model.requests[-1].messages)] == [{"order": 1}, {"order": 2}]


async def test_the_same_call_twice_in_a_batch_is_done_twice(shop: Shop) -> None:
    await results(shop, call("refund", order=1), call("refund", order=1))
    assert shop.done == ["refund 1", "refund 1"]


async def test_each_tool_is_executed_once_for_each_call(shop: Shop) -> None:
    await results(shop, call("find", order=1), call("refund", order=2), call("find", order=3))
    assert shop.done == ["find 1", "refund 2", "find 3"]


@pytest.mark.parametrize("id", ["x" * 10_000, "ü/..\n"], ids=["long", "odd"])
async def test_an_odd_id_is_answered_as_it_is(shop: Shop, id: str) -> None:
    (result,) = await results(shop, ToolCall(id, "find", {}))
    assert (result.call_id, result.state) == (id, "ok")


async def test_a_call_without_an_id_gets_one(shop: Shop) -> None:
    (result,) = await results(shop, ToolCall("", "find", {}))
    assert result.call_id
    assert result.state == "ok"


async def test_text_before_the_calls_stays_with_them(shop: Shop) -> None:
    model = ScriptedModel([["Let me look.", call("find")], text("Done.")])
    await hf.run(hf.Agent("agent", model=model, tools=shop.tools(), policy=[hf.allow("*")]), "go")
    said = model.requests[-1].messages[1]
    assert isinstance(said, hf.AssistantMessage)
    assert (said.text, len(said.calls)) == ("Let me look.", 1)


async def test_many_calls_at_once_all_have_a_result(shop: Shop) -> None:
    got = await results(shop, *(call("find", order=n) for n in range(200)))
    assert [result.content["order"] for result in got] == list(range(200))


# ---- side by side, or alone ------------------------------------------------------------------------------------------


async def test_reads_run_side_by_side(shop: Shop) -> None:
    await results(shop, *(call("overlap") for _ in range(5)))
    assert shop.most == 5


async def test_acts_run_alone_and_in_order(shop: Shop) -> None:
    await results(shop, call("overlap"), call("refund", order=1), call("refund", order=2), call("overlap"))
    assert (shop.most, shop.done) == (1, ["refund 1", "refund 2"])


# ---- however the turn ends -------------------------------------------------------------------------------------------


async def next_request(shop: Shop, script: list[ScriptItem], **options: Any) -> tuple[Message, ...]:
    """What the model is sent after a turn that did not complete."""
    model = ScriptedModel([*script, text("next")])
    agent = hf.Agent("agent", model=model, tools=shop.tools(), policy=[hf.allow("*")], **options)
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        first = await (await session.send("go")).outcome(timeout=SOON)
        assert first.status != "completed"
        assert (await (await session.send("and now?")).outcome(timeout=SOON)).text == "next"
    messages = model.requests[-1].messages
    assert pairs_are_whole(messages)
    return messages


async def test_after_a_limit_the_next_request_has_the_results(shop: Shop) -> None:
    messages = await next_request(shop, [call("find"), [call("find"), call("fails")]], limits=hf.Limits(steps=2))
    assert [result.state for result in results_of(messages)] == ["ok", "skipped", "skipped"]


async def test_after_a_failure_of_the_model_the_next_request_has_the_results(shop: Shop) -> None:
    messages = await next_request(shop, [call("refund", order=1), ValueError("broken")])
    assert [result.content for result in results_of(messages)] == ["refunded"]


@pytest.mark.parametrize("finish", ["refusal", "content_filter", "context_overflow"])
async def test_calls_of_a_reply_that_was_stopped_are_not_begun(shop: Shop, finish: Any) -> None:
    messages = await next_request(shop, [reply(call("refund", order=1), finish=finish)])
    assert ([result.state for result in results_of(messages)], shop.done) == (["skipped"], [])


async def test_after_an_interruption_each_call_has_one_result(tmp_path: Path, shop: Shop) -> None:
    script: list[ScriptItem] = [[call("find"), call("hangs"), call("find", order=2)], text("Done.")]
    model = ScriptedModel(script)
    agent = hf.Agent("agent", model=model, tools=shop.tools(), policy=[hf.allow("*")])
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        turn = await runtime.session("s", agent=agent).send("go")
        await asyncio.wait_for(shop.reached.wait(), SOON)
        await runtime.close(grace=0)
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        await runtime.session("s").turn(turn.id).outcome(timeout=SOON)
        assert await check(runtime.store) == []
    assert pairs_are_whole(model.requests[-1].messages)
    assert [result.state for result in results_of(model.requests[-1].messages)] == ["ok", "unknown", "ok"]
    assert shop.done == ["find 1", "find 2"]


async def test_a_tool_that_is_gone_after_a_restart_is_told_to_the_model(tmp_path: Path, shop: Shop) -> None:
    def script() -> ScriptedModel:
        return ScriptedModel([[call("find"), call("hangs"), call("find", order=2)], text("Done.")])

    agent = hf.Agent("agent", model=script(), tools=shop.tools(), policy=[hf.allow("*")])
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        turn = await runtime.session("s", agent=agent).send("go")
        await asyncio.wait_for(shop.reached.wait(), SOON)
        await runtime.close(grace=0)
    model = script()
    bare = hf.Agent("agent", model=model)
    async with hf.open(tmp_path / "s.db", agents=[bare]) as runtime:
        assert (await runtime.session("s").turn(turn.id).outcome(timeout=SOON)).text == "Done."
    assert [result.state for result in results_of(model.requests[-1].messages)] == ["ok", "unknown", "error"]


async def test_an_interrupted_call_that_can_be_looked_up_gets_its_real_result(tmp_path: Path) -> None:
    reached, paid = asyncio.Event(), list[str]()

    async def look_up(ctx: hf.Context, order: int) -> str:
        if ctx.idempotency_key not in paid:
            raise hf.NotDone
        return "paid before"

    @hf.tool(reconcile=look_up)
    async def pay(ctx: hf.Context, order: int) -> str:
        paid.append(ctx.idempotency_key)
        if len(paid) == 1:
            reached.set()
            await asyncio.Event().wait()
        return "paid now"

    model = ScriptedModel([call("pay", order=1), text("Done.")])
    agent = hf.Agent("agent", model=model, tools=[pay], policy=[hf.allow("*")])
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        turn = await runtime.session("s", agent=agent).send("go")
        await asyncio.wait_for(reached.wait(), SOON)
        await runtime.close(grace=0)
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        await runtime.session("s").turn(turn.id).outcome(timeout=SOON)
    (result,) = results_of(model.requests[-1].messages)
    assert (result.content, len(paid)) == ("paid before", 1)


async def test_an_interrupted_call_that_had_no_effect_is_done_under_the_same_key(tmp_path: Path) -> None:
    reached, keys = asyncio.Event(), list[str]()

    async def look_up(ctx: hf.Context, order: int) -> str:
        raise hf.NotDone

    @hf.tool(reconcile=look_up)
    async def pay(ctx: hf.Context, order: int) -> str:
        keys.append(ctx.idempotency_key)
        if len(keys) == 1:
            reached.set()
            await asyncio.Event().wait()
        return "paid now"

    model = ScriptedModel([call("pay", order=1), text("Done.")])
    agent = hf.Agent("agent", model=model, tools=[pay], policy=[hf.allow("*")])
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        turn = await runtime.session("s", agent=agent).send("go")
        await asyncio.wait_for(reached.wait(), SOON)
        await runtime.close(grace=0)
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        await runtime.session("s").turn(turn.id).outcome(timeout=SOON)
    (result,) = results_of(model.requests[-1].messages)
    assert (result.content, len(keys), len(set(keys))) == ("paid now", 2, 1)


async def test_a_long_list_is_looked_through_once() -> None:
    long, looks = list(range(2_000)), 0

    @hf.tool(read_only=True, output_limit=1_000)
    async def lists() -> list[int]:
        return long

    def count(frame: FrameType, event: str, _: object) -> None:
        nonlocal looks
        looks += event == "call" and frame.f_code is fits.__code__ and frame.f_locals["value"] is long

    agent = hf.Agent("a", model=ScriptedModel([call(lists), text("done")]), tools=[lists])
    async with hf.open(None, agents=[agent]) as runtime:
        sys.setprofile(count)
        try:
            assert (await runtime.run(agent, "go")).ok
        finally:
            sys.setprofile(None)
    assert looks == 1
