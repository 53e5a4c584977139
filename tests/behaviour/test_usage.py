"""What a model call used: every try of it, every run of a model behind it, and numbers that can't be true."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from tests.behaviour.talk import SOON, until

import holdfast as hf
from holdfast.errors import ModelError
from holdfast.messages import Attempt, ModelPass, ModelReply, ModelRequest, Text, Usage, UserMessage, context_tokens
from holdfast.models import respond
from holdfast.models.retry import Retry
from holdfast.testing import CutStream, FakeProvider, HttpError, Stall, check, reply

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence
    from pathlib import Path

    from holdfast.models import Model
    from holdfast.testing.provider import ProviderFault

ANSWER = Usage(input=100, output=10)
CUT = Usage(input=100, output=1)
"""What a stream of Claude has told of its usage before it breaks off."""
PRICES = {"anthropic:*": hf.Price(input=1_000_000, output=1_000_000)}  # a dollar a token
REQUEST = ModelRequest(messages=(UserMessage("u", (Text("hi"),)),))


def claude(provider: FakeProvider, name: str = "claude-sonnet-4-6", attempts: int = 4) -> Model:
    retry = Retry(attempts=attempts, first=0.001, longest=0.002)
    return hf.model(f"anthropic:{name}", base_url=provider.url, api_key="not-a-real-key", retry=retry)


def serving(*faults: ProviderFault, answers: int = 2) -> FakeProvider:
    return FakeProvider([reply("All of it.", usage=ANSWER)] * answers, faults=list(faults), chunks=3)


# ---- tries that failed -----------------------------------------------------------------------------------------------


async def test_a_try_that_failed_counts_in_outcome_session_and_cost() -> None:
    async with serving(CutStream(after=2)) as provider:
        agent = hf.Agent("a", model=claude(provider))
        async with hf.open(None, agents=[agent], prices=PRICES) as runtime:
            outcome = await runtime.run(agent, "go", session="s")
            (line,) = await runtime.session("s").usage()
            assert await check(runtime.store) == []
    assert outcome.usage == ANSWER + CUT
    assert line.usage == outcome.usage
    assert line.cost == outcome.cost == outcome.usage.total


async def test_tries_that_all_failed_count_for_the_turn_that_failed() -> None:
    async with serving(CutStream(after=2), CutStream(after=2)) as provider:
        agent = hf.Agent("a", model=claude(provider, attempts=2))
        async with hf.open(None, agents=[agent], prices=PRICES) as runtime:
            outcome = await runtime.run(agent, "go", session="s")
            (line,) = await runtime.session("s").usage()
            assert await check(runtime.store) == []
    assert (outcome.status, outcome.code) == ("failed", "stream_cut")
    assert outcome.usage == CUT + CUT
    assert outcome.cost == outcome.usage.total
    assert line.usage == outcome.usage


async def test_they_count_the_same_when_the_store_is_read_again(tmp_path: Path) -> None:
    async with serving(CutStream(after=2), CutStream(after=2)) as provider:
        agent = hf.Agent("a", model=claude(provider, attempts=2))
        async with hf.open(tmp_path / "s.db", agents=[agent], prices=PRICES) as runtime:
            live = await runtime.run(agent, "go", session="s")
        async with hf.open(tmp_path / "s.db", agents=[agent], prices=PRICES) as runtime:
            (line,) = await runtime.session("s").usage()
    assert line.usage == live.usage == CUT + CUT


async def test_a_budget_of_tokens_is_used_up_by_tries_that_failed() -> None:
    async with serving(CutStream(after=2), CutStream(after=2), CutStream(after=2)) as provider:
        budget = hf.Limits(session=hf.Budget(tokens=350))
        agent = hf.Agent("a", model=claude(provider), limits=budget)
        async with hf.open(None, agents=[agent]) as runtime:
            assert (await runtime.run(agent, "go", session="s")).ok
            assert (await runtime.run(agent, "go", session="s")).status == "limit"


async def test_tries_of_a_model_that_was_given_up_count_at_its_own_price() -> None:
    async with serving(CutStream(after=2)) as broken, serving() as spare:
        first, second = claude(broken, "claude-opus-4-6", attempts=1), claude(spare)
        agent = hf.Agent("a", model=[first, second])
        prices = {
            "anthropic:claude-opus-4-6": hf.Price(input=2_000_000, output=2_000_000),
            "anthropic:claude-sonnet-4-6": hf.Price(input=1_000_000, output=1_000_000),
        }
        async with hf.open(None, agents=[agent], prices=prices) as runtime:
            outcome = await runtime.run(agent, "go")
    assert outcome.usage == ANSWER + CUT
    assert outcome.cost == ANSWER.total + 2 * CUT.total


async def test_tries_count_in_a_turn_that_is_cancelled_before_a_word_came() -> None:
    async with serving(CutStream(after=2), Stall(after=0)) as provider:
        agent = hf.Agent("a", model=claude(provider))
        async with hf.open(None, agents=[agent], prices=PRICES) as runtime:
            turn = await runtime.session("s", agent=agent).send("go")
            await until(lambda: len(provider.requests) == 2)
            await turn.cancel("enough")
            outcome = await turn.outcome(timeout=SOON)
            (line,) = await runtime.session("s").usage()
            assert await check(runtime.store) == []
    assert outcome.status == "cancelled"
    assert outcome.usage == line.usage
    assert outcome.usage.input >= CUT.input


async def test_tries_of_a_direct_question_that_failed_count_for_its_agent() -> None:
    async with serving(CutStream(after=2), HttpError(400)) as provider, hf.open(None, agents=[]) as runtime:
        with pytest.raises(ModelError):
            await runtime.complete(claude(provider), "One question?")
        assert await check(runtime.store) == []
        spent = await runtime.store.spent("anthropic:claude-sonnet-4-6")
    assert spent.input_tokens == CUT.input


# ---- several runs of models behind one reply -------------------------------------------------------------------------


def run_of(kind: str, input: int, output: int, model: str = "") -> dict[str, Any]:
    return {"type": kind, "input_tokens": input, "output_tokens": output, **({"model": model} if model else {})}


@asynccontextmanager
async def counting(usage: dict[str, Any]) -> AsyncGenerator[str, None]:
    """A server that answers each request with one message of Claude with this usage."""
    message = {"type": "message", "id": "m1", "model": "claude-sonnet-4-6", "stop_reason": "end_turn", "usage": usage}
    body = json.dumps({**message, "content": [{"type": "text", "text": "ok"}]}).encode()
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        await reader.readexactly(int(asked.partition("content-length: ")[2].partition("\r\n")[0]))
        writer.write(head + body)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


SUMMED = {
    "input_tokens": 23,
    "output_tokens": 10,
    "iterations": [run_of("compaction", 180, 35), run_of("message", 23, 10)],
}


async def outcome_of(usage: dict[str, Any], prices: dict[str, hf.Price] | None = None) -> hf.TurnOutcome:
    async with counting(usage) as url:
        model = hf.model("anthropic:claude-sonnet-4-6", base_url=url, api_key="not-a-real-key")
        agent = hf.Agent("a", model=model)
        async with hf.open(None, agents=[agent], prices=prices or PRICES) as runtime:
            return await runtime.run(agent, "go")


async def test_tokens_of_a_summary_at_the_provider_count_in_outcome_and_cost() -> None:
    outcome = await outcome_of(SUMMED)
    assert outcome.usage == Usage(input=203, output=45)
    assert outcome.cost == 248


async def test_a_run_of_another_model_costs_what_that_model_costs() -> None:
    runs = [run_of("message", 10, 1), run_of("advisor_message", 50, 5, "claude-opus-4-8"), run_of("message", 20, 2)]
    prices = {
        "anthropic:claude-sonnet-4-6": hf.Price(input=1_000_000, output=1_000_000),
        "anthropic:claude-opus-4-8": hf.Price(input=3_000_000, output=3_000_000),
    }
    outcome = await outcome_of({"input_tokens": 30, "output_tokens": 3, "iterations": runs}, prices)
    assert outcome.usage == Usage(input=80, output=8)
    assert outcome.cost == 33 + 3 * 55


async def test_one_run_alone_is_counted_once() -> None:
    outcome = await outcome_of({"input_tokens": 23, "output_tokens": 10, "iterations": [run_of("message", 23, 10)]})
    assert outcome.usage == Usage(input=23, output=10)


@pytest.mark.parametrize(
    ("attempts", "tokens"),
    [
        ((), 300),
        ((Attempt("m", "stream_cut", usage=Usage(200)), Attempt("m", usage=Usage(90, cache_read=10))), 100),
        ((Attempt("m", usage=Usage(300), passes=(ModelPass(Usage(277)), ModelPass(Usage(23)))),), 23),
        ((Attempt("m", usage=Usage(10, 5, 70, 20)),), 100),
    ],
    ids=["no ledger", "a try that failed", "a summary", "a cache"],
)
def test_how_full_the_context_is_tells_the_last_run_alone(attempts: Sequence[Attempt], tokens: int) -> None:
    assert context_tokens(ModelReply((), usage=Usage(300, 5), attempts=tuple(attempts))) == tokens


# ---- numbers that can't be true --------------------------------------------------------------------------------------


def frames(dialect: str, count: Any) -> list[dict[str, Any]]:
    match dialect:
        case "anthropic":
            return [{"type": "message_start", "message": {"id": "m", "usage": {"input_tokens": count}}}]
        case "responses":
            whole: dict[str, Any] = {"id": "r", "status": "completed", "output": [], "usage": {"input_tokens": count}}
            return [{"type": "response.completed", "response": whole}]
        case "chat":
            said = {"index": 0, "delta": {"content": "x"}, "finish_reason": "stop"}
            return [{"id": "c", "choices": [said], "usage": {"prompt_tokens": count}}]
        case _:
            said = {"content": {"parts": [{"text": "x"}]}, "finishReason": "STOP"}
            return [{"candidates": [said], "usageMetadata": {"promptTokenCount": count}}]


@pytest.mark.parametrize("count", [-1, 10**30, 1e300, 2**53], ids=str)
@pytest.mark.parametrize("dialect", ["anthropic", "responses", "chat", "google"])
async def test_a_count_that_can_not_be_true_is_an_error_and_not_a_number(dialect: str, count: float) -> None:
    asked = 0
    body = b"".join(b"data: %s\n\n" % json.dumps(frame).encode() for frame in frames(dialect, count))
    head = f"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {len(body)}\r\n\r\n".encode()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head + body)
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        model = hf.model("mine:m", base_url=url, dialect=dialect, api_key="not-a-real-key")
        with pytest.raises(ModelError, match="can't be true") as caught:
            await respond(model, REQUEST)
    assert (caught.value.kind, asked) == ("bad_usage", 1)


@pytest.mark.parametrize("count", [None, "many", True, [], 12.0])
async def test_what_is_no_number_counts_nothing(count: Any) -> None:
    outcome = await outcome_of({"input_tokens": 0, "output_tokens": count})
    assert outcome.usage.output == (12 if count == 12.0 else 0)
