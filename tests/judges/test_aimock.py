"""aimock deals out chaos in four dialects; a durable turn gets over it, or says what it met."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import holdfast as hf

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from holdfast.models.http import HttpModel

    Ask = Callable[[hf.Agent, str], Awaitable[hf.TurnOutcome]]
    Make = Callable[..., HttpModel]

pytestmark = pytest.mark.judges

PROVIDERS = {"openai-chat": "/v1", "openai": "/v1", "anthropic": "", "google": ""}
CHAOS = {
    "dropRate": {"server_error"},
    "malformedRate": {"bad_frame", "stream_cut"},  # half an array, where the dialect may come as one
    "disconnectRate": {"network"},
    "rateLimitRate": {"rate_limited"},
}


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_a_tool_is_called_and_its_result_is_told(provider: str, aimock: Any, make_model: Make, ask: Ask) -> None:
    ran: list[str] = []

    @hf.tool
    def weather(city: str) -> str:
        """The weather in a city."""
        ran.append(city)
        return "rain"

    agent = hf.Agent(
        "judged",
        model=make_model(provider, aimock.address + PROVIDERS[provider]),
        tools=[weather],
        policy=[hf.allow("*")],
    )
    outcome = await ask(agent, "What is the weather in Paris?")
    assert (outcome.text, ran) == ("It rains in Paris.", ["Paris"]), outcome


@pytest.mark.parametrize("fault", CHAOS)
@pytest.mark.parametrize("provider", PROVIDERS)
async def test_chaos_without_end_is_tried_a_few_times_and_named(
    provider: str, fault: str, aimock: Any, make_model: Make, ask: Ask
) -> None:
    await aimock.chaos(**{fault: 1.0})
    agent = hf.Agent("judged", model=make_model(provider, aimock.address + PROVIDERS[provider], attempts=2))
    outcome = await ask(agent, "How are things?")
    assert (outcome.status, len(await aimock.requests())) == ("failed", 2), outcome
    assert outcome.code in CHAOS[fault]


@pytest.mark.parametrize("fault", CHAOS)
@pytest.mark.parametrize("provider", PROVIDERS)
async def test_a_turn_gets_over_chaos_that_comes_and_goes(
    provider: str, fault: str, aimock: Any, make_model: Make, ask: Ask
) -> None:
    await aimock.chaos(**{fault: 0.5})
    model = make_model(provider, aimock.address + PROVIDERS[provider], attempts=30, first=0.01, longest=0.05)
    outcome = await ask(hf.Agent("judged", model=model), "How are things?")
    assert outcome.text == "All is well, and it will stay so for as long as anybody can tell.", outcome
