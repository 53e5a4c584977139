"""llmock breaks our calls and grades what we do then; its verdict must be clean, without as much as a warning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pydantic import BaseModel

import holdfast as hf

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from holdfast.models.http import HttpModel

    Ask = Callable[[hf.Agent, str], Awaitable[hf.TurnOutcome]]
    Make = Callable[..., HttpModel]

pytestmark = pytest.mark.judges


PROVIDERS = {
    "openai-chat": "/v1",
    "openai": "/v1",
    "anthropic": "/anthropic",
    "google": "/gemini",
    "groq": "/groq/openai/v1",
    "mistral": "/mistral/v1",
}

FAULTS: dict[str, dict[str, Any]] = {
    "429 with Retry-After": {"type": "fail", "status": 429, "retry_after": 1, "times": 2},
    "500": {"type": "fail", "status": 500, "times": 2},
    "529": {"type": "fail", "status": 529, "times": 2},
    "truncated": {"type": "stream_fault", "kind": "truncate", "after_chunks": 2},
    "truncated at once": {"type": "stream_fault", "kind": "truncate", "after_chunks": 0},
    "disconnected": {"type": "stream_fault", "kind": "disconnect", "after_chunks": 2},
    "disconnected twice": {"type": "stream_fault", "kind": "disconnect", "after_chunks": 1, "times": 2},
    "stalled": {"type": "stream_fault", "kind": "stall", "after_chunks": 2, "stall_seconds": 20},
    "malformed": {"type": "stream_fault", "kind": "malformed", "after_chunks": 2},
}


ANSWER = "All is well, " + ", ".join(f"and so is number {number}" for number in range(8)) + "."


class Invoice(BaseModel):
    number: int
    customer: str


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("provider", PROVIDERS)
async def test_a_durable_turn_gets_over_a_fault_and_the_verdict_is_clean(
    provider: str, fault: str, llmock: Any, make_model: Make, ask: Ask
) -> None:
    await llmock.script({"type": "reply", "text": ANSWER, "times": None}, FAULTS[fault])
    idle = 0.5 if fault == "stalled" else 10.0  # a busy machine is no stall
    agent = hf.Agent("judged", model=make_model(provider, llmock.address + PROVIDERS[provider], idle=idle))
    outcome = await ask(agent, "How are things?")
    assert (outcome.status, outcome.text) == ("completed", ANSWER), outcome
    await clean(llmock, faults=FAULTS[fault].get("times", 1))


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
@pytest.mark.parametrize("provider", PROVIDERS)
async def test_what_can_not_succeed_is_asked_once(
    provider: str, status: int, llmock: Any, make_model: Make, ask: Ask
) -> None:
    await llmock.script({"type": "fail", "status": status, "times": None})
    agent = hf.Agent("judged", model=make_model(provider, llmock.address + PROVIDERS[provider]))
    outcome = await ask(agent, "How are things?")
    assert (outcome.status, len(await llmock.requests())) == ("failed", 1), outcome
    await clean(llmock, faults=1)


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_an_outage_ends_the_turn_after_few_tries(provider: str, llmock: Any, make_model: Make, ask: Ask) -> None:
    await llmock.script({"type": "fail", "status": 503, "times": None})
    agent = hf.Agent("judged", model=make_model(provider, llmock.address + PROVIDERS[provider]))
    outcome = await ask(agent, "How are things?")
    assert (outcome.status, len(await llmock.requests())) == ("failed", 4), outcome
    await clean(llmock, faults=4)


@pytest.mark.parametrize("kind", ["malformed_arguments", "unknown_tool"])
@pytest.mark.parametrize("provider", PROVIDERS)
async def test_a_broken_tool_call_runs_nothing_and_the_turn_goes_on(
    provider: str, kind: str, llmock: Any, make_model: Make, ask: Ask
) -> None:
    ran: list[str] = []

    @hf.tool(read_only=True)
    def weather(city: str) -> str:
        """The weather in a city."""
        ran.append(city)
        return "rain"

    await llmock.script({"type": "tool_fault", "kind": kind})
    agent = hf.Agent(
        "judged",
        model=make_model(provider, llmock.address + PROVIDERS[provider]),
        tools=[weather],
        policy=[hf.allow("*")],
    )
    outcome = await ask(agent, "What is the weather in Paris?")
    # It would have called the tool in order, had it not broken the call; it does not count that as a fault.
    assert (outcome.status, ran, len(await llmock.requests())) == ("completed", [], 2), outcome
    await clean(llmock, faults=0)


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_a_tool_call_that_was_cut_off_runs_once(provider: str, llmock: Any, make_model: Make, ask: Ask) -> None:
    ran: list[str] = []

    @hf.tool
    def refund(order: str) -> str:
        """Give the money back."""
        ran.append(order)
        return "done"

    called = {"type": "reply", "tool_calls": [{"name": "refund", "arguments": {"order": "7"}}], "times": 2}
    # In the middle of the call; Google's comes in one piece, and there is nothing but the time before it.
    after = 0 if provider == "google" else 2
    await llmock.script(called, {"type": "stream_fault", "kind": "disconnect", "after_chunks": after})
    agent = hf.Agent(
        "judged",
        model=make_model(provider, llmock.address + PROVIDERS[provider]),
        tools=[refund],
        policy=[hf.allow("*")],
    )
    outcome = await ask(agent, "Refund order 7.")
    assert (outcome.status, ran) == ("completed", ["7"]), outcome
    await clean(llmock, faults=1)


@pytest.mark.parametrize("provider", ["openai-chat", "openai", "google"])
async def test_structured_output_survives_a_cut_stream(provider: str, llmock: Any, make_model: Make, ask: Ask) -> None:
    await llmock.script({"type": "stream_fault", "kind": "truncate", "after_chunks": 2})
    agent = hf.Agent("judged", model=make_model(provider, llmock.address + PROVIDERS[provider]), output=Invoice)
    outcome = await ask(agent, "The invoice, please.")
    assert (outcome.status, type(outcome.value)) == ("completed", Invoice), outcome
    await clean(llmock, faults=1)


async def clean(llmock: Any, *, faults: int) -> None:
    """The judge dealt out as many faults, and found nothing."""
    verdict = await llmock.verdict()
    assert (verdict["findings"], verdict["faults_injected"]) == ([], faults), verdict
