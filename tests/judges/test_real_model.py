"""A real model: llama.cpp's server with SmolLM2, asked for structured output in each dialect that it speaks.

Its Chat endpoint takes our schema as it is. Its Responses endpoint overlooks ``text.format`` and has a field of its own
for the schema. Its Messages endpoint has none: there the schema is told in words, and the model has to find its way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pydantic import BaseModel

import holdfast as hf
from holdfast.messages import Settings, Text

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

pytestmark = pytest.mark.judges

PROVIDERS = {"llamacpp": "/v1", "openai-chat": "/v1", "openai": "/v1", "anthropic": ""}


class City(BaseModel):
    city: str
    big: bool


def model(provider: str, llama: str) -> hf.Model:
    return hf.model(f"{provider}:smollm2", base_url=llama + PROVIDERS[provider], api_key="nobody-asks")


def settings(tokens: int = 120, *, stop: tuple[str, ...] = (), extra: dict[str, Any] | None = None) -> Settings:
    return Settings(max_output_tokens=tokens, temperature=0.0, stop=stop, extra=extra)


@pytest.mark.parametrize(
    ("provider", "extra"),
    [("llamacpp", None), ("openai-chat", None), ("openai", {"json_schema": City.model_json_schema()})],
)
async def test_a_durable_turn_ends_with_a_value_of_the_type_that_was_asked_for(
    provider: str,
    extra: dict[str, Any] | None,
    llama: str,
    ask: Callable[[hf.Agent, str], Awaitable[hf.TurnOutcome]],
) -> None:
    agent = hf.Agent("guide", model=model(provider, llama), output=City, settings=settings(extra=extra))
    outcome = await ask(agent, "Which city is the capital of France, and is it big?")
    assert (outcome.status, type(outcome.value)) == ("completed", City), outcome


async def test_a_schema_told_in_words_leads_to_a_value_of_the_type(
    llama: str, ask: Callable[[hf.Agent, str], Awaitable[hf.TurnOutcome]]
) -> None:
    agent = hf.Agent("guide", model=model("anthropic", llama), output=dict[str, str], settings=settings(stop=("\n",)))
    outcome = await ask(agent, '{"city": "Paris"}')
    assert (outcome.status, outcome.value) == ("completed", {"city": "Paris"}), outcome


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
async def test_a_model_that_never_keeps_to_the_shape_is_named_and_not_asked_for_ever(
    provider: str, llama: str, ask: Callable[[hf.Agent, str], Awaitable[hf.TurnOutcome]]
) -> None:
    limits = hf.Limits(repairs=2)
    agent = hf.Agent(
        "poet", model=model(provider, llama), output=list[City], limits=limits, settings=settings(stop=(".",))
    )
    outcome = await ask(agent, "Write one sentence about the sea.")
    assert (outcome.status, outcome.code, outcome.steps) == ("failed", "invalid_output", 3), outcome


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_tokens_are_counted_and_the_answer_is_what_was_streamed(provider: str, llama: str) -> None:
    agent = hf.Agent("talker", model=model(provider, llama), settings=settings(16))
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        outcome = await (await session.send("Say hello.")).outcome(timeout=90)
        said = [m for m in await session.history() if isinstance(m, hf.AssistantMessage)]
    texts = [part.text for message in said for part in message.parts if isinstance(part, Text)]
    assert outcome.text == "".join(texts)
    assert outcome.usage.input + outcome.usage.cache_read > 0
    assert outcome.usage.output > 0


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_a_conversation_goes_on_in_its_second_turn(provider: str, llama: str) -> None:
    agent = hf.Agent("talker", model=model(provider, llama), settings=settings(200))
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        first = await (await session.send("Say hello in one word.")).outcome(timeout=90)
        second = await (await session.send("And in French?")).outcome(timeout=90)
    assert (first.status, second.status) == ("completed", "completed"), (first, second)


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_a_conversation_that_is_too_long_is_named_so(provider: str, llama: str) -> None:
    agent = hf.Agent("talker", model=model(provider, llama), settings=settings())
    outcome = await hf.run(agent, "word " * 6000)
    assert outcome.code == "context_overflow", outcome
