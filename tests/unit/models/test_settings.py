"""Settings: what may be set at all, and what is sent of it to a model that does not take all of it."""

from __future__ import annotations

import math
from typing import Any, get_args

import pytest
from tests.every import every

import holdfast as hf
from holdfast.errors import InvalidArgument, InvalidNumber
from holdfast.messages import Effort, ModelRequest, Settings, StreamNote, Text, UserMessage
from holdfast.models.contract import settings_adjuster
from holdfast.models.dialect import Endpoint
from holdfast.models.registry import load_dialect
from holdfast.testing import FakeProvider, text

DIALECTS = ("anthropic", "responses", "chat", "google")
REQUEST = ModelRequest(messages=(UserMessage("u", (Text("hi"),)),))


# ---- when they are made ----------------------------------------------------------------------------------------------


@every(
    "wrong",
    [
        {"max_output_tokens": 0},
        {"max_output_tokens": "100"},
        {"max_output_tokens": True},
        {"temperature": "0.5"},
        {"temperature": -0.1},
        {"temperature": 2.1},
        {"temperature": math.nan},
        {"temperature": True},
        {"top_p": 1.5},
        {"top_p": math.inf},
        {"seed": 1.0},
        {"seed": 2**64},
        {"compact_at": 0},
    ],
    ids=str,
)
def test_a_number_that_can_not_be_meant_is_refused_when_settings_are_made(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidNumber, match=f"settings.{next(iter(wrong))}"):
        Settings(**wrong)


@every(
    "wrong",
    [
        {"effort": "huge"},
        {"effort": 3},
        {"tool_choice": "always"},
        {"tool_choice": None},
        {"parallel_tool_calls": 1},
        {"parallel_tool_calls": "no"},
        {"cache": None},
        {"stop": "END"},
        {"stop": ("",)},
        {"stop": (1,)},
        {"extra": ["top_k"]},
        {"extra": {1: 2}},
    ],
    ids=str,
)
def test_a_value_that_is_not_known_is_refused_when_settings_are_made(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=f"settings.{next(iter(wrong))}"):
        Settings(**wrong)


def test_what_can_be_meant_is_taken() -> None:
    given: dict[str, Any] = {"max_output_tokens": 1, "temperature": 2, "top_p": 0, "seed": -1, "stop": ["END"]}
    made = Settings(**given, effort="xhigh", tool_choice="required")
    assert (made.stop, made.temperature, made.effort) == (("END",), 2, "xhigh")


# ---- what a model takes ----------------------------------------------------------------------------------------------


def sent(model: str, settings: Settings, name: str = "anthropic", provider: str = "", **own: Any) -> Settings:
    endpoint = Endpoint(provider=provider or name, dialect=name, base_url="https://here")
    return settings_adjuster(endpoint, model, **own)(settings)[0]


@every("effort", get_args(Effort))
@every("model", ["claude-opus-4-7", "claude-sonnet-4-6", "claude-3-7-sonnet", "gpt-5.5", "gemini-3-pro", "m"])
@every("name", DIALECTS)
def test_every_effort_can_be_sent_in_every_dialect(name: str, model: str, effort: Effort) -> None:
    settings = sent(model, Settings(effort=effort), name)
    endpoint = Endpoint(provider=name, dialect=name, base_url="https://here")
    request = ModelRequest(messages=REQUEST.messages, settings=settings)
    assert load_dialect(name).encode_request(endpoint, model, request).body


CLAUDE = [
    ("claude-opus-4-8", "xhigh", "xhigh"),
    ("claude-opus-4-7", "max", "max"),
    ("claude-opus-4-6", "xhigh", "high"),
    ("claude-sonnet-4-6", "max", "max"),
    ("claude-sonnet-4-5", "max", "high"),
]
OPENAI = [
    ("o3", "none", "low"),
    ("o4-mini", "xhigh", "high"),
    ("gpt-5", "none", "minimal"),
    ("gpt-5-mini", "max", "high"),
    ("gpt-5-pro", "low", "high"),
    ("gpt-5.1", "minimal", "low"),
    ("gpt-5.1", "xhigh", "high"),
    ("gpt-5.1-codex-max", "xhigh", "xhigh"),
    ("gpt-5.2", "none", "none"),
    ("gpt-5.2", "max", "xhigh"),
    ("gpt-5.6-sol", "max", "max"),
    ("gpt-5-chat-latest", "max", "max"),
    ("my-model", "max", "max"),
]


@pytest.mark.parametrize(("model", "asked", "known"), CLAUDE)
def test_an_effort_that_a_claude_does_not_know_is_sent_as_the_nearest(model: str, asked: Any, known: str) -> None:
    assert sent(model, Settings(effort=asked)).effort == known


@every("name", ["responses", "chat"])
@every(("model", "asked", "known"), OPENAI)
def test_an_effort_that_a_model_of_openai_does_not_know_is_sent_as_the_nearest(
    name: str, model: str, asked: Any, known: str
) -> None:
    assert sent(model, Settings(effort=asked), name).effort == known


@pytest.mark.parametrize(
    ("provider", "asked", "known"),
    [("groq", "xhigh", "high"), ("groq", "minimal", "low"), ("openrouter", "max", "xhigh"), ("vllm", "max", "max")],
)
def test_an_effort_that_an_endpoint_does_not_know_is_sent_as_the_nearest(provider: str, asked: Any, known: str) -> None:
    assert sent("qwen-4", Settings(effort=asked), "chat", provider).effort == known


BOTH = Settings(temperature=0.5, top_p=0.9)


@every(
    ("model", "name", "left"),
    [
        ("claude-opus-4-7", "anthropic", (None, None)),
        ("claude-fable-5", "anthropic", (None, None)),
        ("anthropic/claude-4.7-opus", "chat", (None, None)),
        ("claude-sonnet-4-6", "anthropic", (0.5, None)),
        ("claude-opus-4-1-20250805", "anthropic", (0.5, None)),
        ("claude-3-7-sonnet-20250219", "anthropic", (0.5, 0.9)),
        ("other-maker", "anthropic", (0.5, 0.9)),
        ("o3-mini", "responses", (None, None)),
        ("gpt-5-mini", "chat", (None, None)),
        ("gpt-5-chat-latest", "chat", (0.5, 0.9)),
        ("gpt-5.2", "responses", (0.5, 0.9)),
        ("gpt-5.6", "responses", (None, None)),
        ("gpt-4.1", "responses", (0.5, 0.9)),
        ("gpt-oss-120b", "chat", (0.5, 0.9)),
        ("kimi-k2.5", "chat", (None, None)),
        ("gemini-3-pro", "google", (0.5, 0.9)),
    ],
)
def test_sampling_that_a_model_refuses_is_left_out(model: str, name: str, left: tuple[float | None, ...]) -> None:
    settings = sent(model, BOTH, name)
    assert (settings.temperature, settings.top_p) == left


def test_a_model_that_reasons_takes_a_temperature_when_it_is_told_not_to() -> None:
    assert sent("gpt-5.6", Settings(temperature=0.0, effort="none"), "responses").temperature == 0.0
    assert sent("gpt-5.2", Settings(temperature=0.0, effort="low"), "responses").temperature is None


@pytest.mark.parametrize(("name", "model"), [("anthropic", "claude-opus-4-7"), ("responses", "gpt-5")])
def test_what_is_said_about_a_model_counts_instead_of_the_table(name: str, model: str) -> None:
    own = sent(model, Settings(temperature=0.5, top_p=0.9, effort="max"), name, unsupported=["top_p"], efforts=["low"])
    assert (own.temperature, own.top_p, own.effort) == (0.5, None, "low")


def test_settings_that_a_model_takes_are_sent_as_they_are() -> None:
    settings = Settings(temperature=0.5, effort="low", stop=("END",), seed=1)
    assert sent("m", settings, "chat") is settings


@pytest.mark.parametrize(
    "wrong",
    [
        *({"unsupported": "temperature"}, {"unsupported": ["heat"]}, {"unsupported": list}, {"unsupported": 3}),
        *({"efforts": ["huge"]}, {"efforts": []}, {"efforts": list}),
    ],
    ids=str,
)
def test_a_table_of_ones_own_names_settings_and_efforts(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        hf.model("mine:m", base_url="http://127.0.0.1:1/v1", **wrong)


# ---- through the door ------------------------------------------------------------------------------------------------


async def notes_of(provider: FakeProvider, settings: Settings, **own: Any) -> list[str]:
    model: Any = hf.model("anthropic:claude-opus-4-7", base_url=provider.url, api_key="not-a-real-key", **own)
    request = ModelRequest(messages=REQUEST.messages, settings=settings)
    return [event.detail async for event in model.stream(request) if isinstance(event, StreamNote)]


async def test_what_is_left_out_is_told_in_a_note() -> None:
    async with FakeProvider([text("ok")]) as provider:
        (note,) = await notes_of(provider, Settings(temperature=0.5, seed=7))
        assert "temperature" not in provider.requests[0].json
    assert "temperature is left out: claude-opus-4-7 does not take it" in note
    assert "seed is left out" in note


async def test_a_table_of_ones_own_sends_what_the_known_one_leaves_out() -> None:
    async with FakeProvider([text("ok")]) as provider:
        assert await notes_of(provider, Settings(temperature=0.5), unsupported=[]) == []
        assert provider.requests[0].json["temperature"] == 0.5


async def test_a_temperature_that_thinking_forbids_is_told_in_a_note() -> None:
    async with FakeProvider([text("ok")]) as provider:
        (note,) = await notes_of(provider, Settings(temperature=0.5, effort="low"), unsupported=[])
    assert "temperature is left out: the provider takes none while the model thinks" in note


async def test_whoever_watches_a_turn_sees_what_was_left_out() -> None:
    async with FakeProvider([text("ok")]) as provider:
        model = hf.model("anthropic:claude-opus-4-7", base_url=provider.url, api_key="not-a-real-key")
        agent = hf.Agent("a", model=model, settings=Settings(temperature=0.5))
        async with hf.open(None, agents=[agent]) as runtime:
            turn = await runtime.session("s", agent=agent).send("hi")
            notes = [event async for event in turn.events() if isinstance(event, hf.events.ModelNote)]
    assert [note.what for note in notes] == ["settings_changed"]
