"""Keys that durable functions give out, and answers that come by webhook."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
from typing import TYPE_CHECKING, Any, Final

import pytest
from tests.behaviour.talk import SOON, is_now, until

import holdfast as hf
from holdfast.errors.caller import TriggerInvalid
from holdfast.testing import ManualClock, ScriptedModel, call, check, text

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

SECRET: Final = "a secret of some length"  # noqa: S105
told: list[str] = []


@pytest.fixture(autouse=True)
def nobody_was_told() -> None:
    told.clear()


async def _tell(key: str) -> None:
    told.append(key)


@hf.process
async def asks(ctx: hf.ProcessContext, timeout: float = 60) -> Any:
    pending = await ctx.defer(timeout=timeout)
    await ctx.step("tell", _tell, pending.key)
    try:
        return await pending.answer()
    except hf.WaitExpired:
        return "nobody"
    except hf.errors.WaitFailed as error:
        return f"no: {error.message}"


# ---- durable functions -----------------------------------------------------------------------------------------------


async def test_a_durable_function_gets_what_is_given_for_its_key() -> None:
    async with hf.open(None, processes=[asks]) as runtime:
        process = await runtime.start(asks)
        await until(lambda: is_now(process, "waiting"))
        assert (await runtime.resolve(told[0], {"ok": True})).won
        assert not (await runtime.resolve(told[0], 2)).won
        assert await process.result(timeout=SOON) == {"ok": True}
        assert await check(runtime.store) == []


async def test_a_key_of_a_durable_function_outlives_the_process(tmp_path: Path) -> None:
    async with hf.open(tmp_path / "s.db", processes=[asks]) as runtime:
        process = await runtime.start(asks, id="p")
        await until(lambda: is_now(process, "waiting"))
    async with hf.open(tmp_path / "s.db", drive=False) as outside:
        await outside.resolve(told[0], 1)
    async with hf.open(tmp_path / "s.db", processes=[asks]) as runtime:
        assert await runtime.processes.handle("p").result(timeout=SOON) == 1
    assert len(told) == 1


async def test_an_answer_may_come_before_the_durable_function_waits_for_it() -> None:
    @hf.process
    async def slow(ctx: hf.ProcessContext) -> Any:
        pending = await ctx.defer()
        await ctx.step("tell", _tell, pending.key)
        await ctx.wait("go")
        return await pending.answer()

    async with hf.open(None, processes=[slow]) as runtime:
        process = await runtime.start(slow)
        await until(lambda: is_now(process, "waiting"))
        await runtime.resolve(told[0], "early")
        await process.signal("go")
        assert await process.result(timeout=SOON) == "early"


async def test_a_failure_reaches_the_durable_function() -> None:
    async with hf.open(None, processes=[asks]) as runtime:
        process = await runtime.start(asks)
        await until(lambda: is_now(process, "waiting"))
        await runtime.resolve(told[0], error="closed")
        assert await process.result(timeout=SOON) == "no: closed"


async def test_the_time_of_a_key_is_counted_from_when_it_was_given_out(tmp_path: Path) -> None:
    clock = ManualClock()
    async with hf.open(tmp_path / "s.db", processes=[asks], clock=clock) as runtime:
        process = await runtime.start(asks, id="p")
        await until(lambda: is_now(process, "waiting"))
    clock.advance(61_000)
    async with hf.open(tmp_path / "s.db", processes=[asks], clock=clock) as runtime:
        assert await runtime.processes.handle("p").result(timeout=SOON) == "nobody"
        assert not (await runtime.resolve(told[0], 1)).won


async def test_cancelling_a_process_closes_its_keys() -> None:
    async with hf.open(None, processes=[asks]) as runtime:
        process = await runtime.start(asks)
        await until(lambda: is_now(process, "waiting"))
        await process.cancel("enough")
        await until(lambda: is_now(process, "cancelled"))

        async def closed() -> bool:
            return not (await runtime.resolve(told[0], 1)).won

        await until(closed)


async def test_a_key_that_lost_a_race_is_closed() -> None:
    @hf.process
    async def hurried(ctx: hf.ProcessContext) -> int:
        pending = await ctx.defer()
        await ctx.step("tell", _tell, pending.key)
        return (await ctx.race(ctx.wait("stop"), pending.answer()))[0]

    async with hf.open(None, processes=[hurried]) as runtime:
        process = await runtime.start(hurried)
        await until(lambda: is_now(process, "waiting"))
        await process.signal("stop")
        assert await process.result(timeout=SOON) == 0
        assert not (await runtime.resolve(told[0], 1)).won


# ---- webhooks --------------------------------------------------------------------------------------------------------


def _agent() -> hf.Agent:
    @hf.tool
    async def order(ctx: hf.Context) -> int | hf.Deferred[int]:
        pending = await ctx.defer()
        told.append(pending.key)
        return pending

    model = ScriptedModel([call("order"), text("Ordered.")])
    return hf.Agent("a", model=model, tools=[order], policy=[hf.allow("*")])


def _signed(content: object, delivery: str) -> tuple[dict[str, str], bytes]:
    body = json.dumps(content).encode()
    made = hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
    return {"X-Hub-Signature-256": f"sha256={made}", "X-GitHub-Delivery": delivery}, body


async def _ordered(runtime: hf.Runtime, agent: hf.Agent) -> hf.Turn:
    source = hf.webhook("github", secret="env:ANSWERS")  # noqa: S106  a reference
    await runtime.every("answers", source, hf.Resolve(), answer="{payload}")
    turn = await runtime.session("s", agent=agent).send("x")

    async def parked() -> bool:
        return await runtime.session("s").status() == "waiting"

    await until(parked)
    return turn


async def _failures(runtime: hf.Runtime, count: int) -> Sequence[str]:
    async def enough() -> bool:
        return (await runtime.triggers.get("answers")).failed >= count

    await until(enough)
    return [one.why for one in (await runtime.triggers.get("answers")).recent]


async def test_a_signed_webhook_gives_the_result_of_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANSWERS", SECRET)
    agent = _agent()
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await _ordered(runtime, agent)
        headers, body = _signed({"key": told[0], "value": 900}, "d-1")
        assert (await runtime.deliver_webhook("answers", headers, body)).code == 202
        assert (await runtime.deliver_webhook("answers", headers, body)).status == "duplicate"
        assert (await turn.outcome(timeout=SOON)).text == "Ordered."


async def test_a_webhook_with_another_signature_answers_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANSWERS", SECRET)
    agent = _agent()
    async with hf.open(None, agents=[agent]) as runtime:
        await _ordered(runtime, agent)
        headers, body = _signed({"key": told[0], "value": 900}, "d-1")
        assert (await runtime.deliver_webhook("answers", headers, body + b" ")).code == 401
        assert (await runtime.resolve(told[0], 1)).won


async def test_what_a_webhook_can_not_answer_is_told_with_the_trigger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANSWERS", SECRET)
    agent = _agent()
    async with hf.open(None, agents=[agent]) as runtime:
        await _ordered(runtime, agent)
        wrong = [{"key": told[0], "value": "much"}, {"key": "hfw1.forged.key", "value": 1}, {"value": 1}, [1]]
        for number, content in enumerate(wrong):
            await runtime.deliver_webhook("answers", *_signed(content, f"d-{number}"))
        reasons = await _failures(runtime, len(wrong))
        assert [reason.partition(":")[0] for reason in reasons] == [
            "AnswerInvalid",
            "WaitUnknown",
            "TriggerInvalid",
            "TriggerInvalid",
        ]
        await runtime.resolve(told[0], 1)
        await runtime.deliver_webhook("answers", *_signed({"key": told[0], "value": 2}, "late"))
        assert any(reason.startswith("AnswerLate") for reason in await _failures(runtime, 5))


async def test_a_webhook_can_say_that_there_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANSWERS", SECRET)
    agent = _agent()
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await _ordered(runtime, agent)
        await runtime.deliver_webhook("answers", *_signed({"key": told[0], "error": "sold out"}, "d-1"))
        await turn.outcome(timeout=SOON)
        message = (await runtime.session("s").history())[-2]
        assert isinstance(message, hf.ToolMessage)
        assert message.results[0].content == "WaitFailed: sold out"


@pytest.mark.parametrize("given", [{}, {"key": "{payload.key}"}, {"answer": "{payload}", "value": 1}], ids=str)
async def test_a_trigger_that_answers_says_how(given: dict[str, Any]) -> None:
    async with hf.open(None) as runtime:
        with pytest.raises(TriggerInvalid, match="answer="):
            await runtime.every("answers", hf.event("answered"), hf.Resolve(), **given)


async def test_an_event_can_answer_from_places_of_its_own() -> None:
    agent = _agent()
    async with hf.open(None, agents=[agent]) as runtime:
        source, key, value = hf.event("paid"), "{payload.order.key}", "{payload.cents}"
        await runtime.every("answers", source, hf.Resolve(), key=key, value=value)
        turn = await runtime.session("s", agent=agent).send("x")

        async def asked() -> bool:
            await asyncio.sleep(0)
            return bool(told)

        await until(asked)
        await runtime.emit_event("paid", {"order": {"key": told[0]}, "cents": 900}, key="o-1")
        assert (await turn.outcome(timeout=SOON)).status == "completed"
