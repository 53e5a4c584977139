"""`hf.model(name, ...)`: what may be said beside the name, for endpoints of one's own and for those that are known."""

from __future__ import annotations

from typing import Any

import pytest

import holdfast as hf
from holdfast.errors import InvalidArgument, ModelError
from holdfast.messages import ModelRequest, Text, UserMessage
from holdfast.models import HttpModel, register
from holdfast.testing import FakeProvider, HttpError, ScriptedModel, text

QUESTION = ModelRequest(messages=(UserMessage("m1", (Text("Hello?"),)),), settings=hf.Settings(max_output_tokens=9))
NOWHERE = "http://127.0.0.1:9/v1"


def http(name: str = "mine:small", **options: Any) -> HttpModel:
    given: dict[str, Any] = {"base_url": NOWHERE} | options
    model = hf.model(name, **given)
    assert isinstance(model, HttpModel)
    return model


async def answer(model: hf.Model) -> str:
    async for event in model.stream(QUESTION):
        if isinstance(event, hf.StreamEnd):
            return event.reply.text
    return ""


@pytest.mark.parametrize(
    ("spoken", "path"),
    [
        ("anthropic", "/v1/messages"),
        ("responses", "/responses"),
        ("chat", "/chat/completions"),
        ("google", "/v1beta/models/small:streamGenerateContent?alt=sse"),
    ],
)
async def test_an_endpoint_of_ones_own_can_speak_any_dialect(spoken: str, path: str) -> None:
    async with FakeProvider([text("Hello.")]) as provider:
        assert await answer(http(base_url=provider.url, dialect=spoken)) == "Hello."
        assert provider.requests[0].path == path


async def test_flags_say_what_an_endpoint_does_differently() -> None:
    async with FakeProvider([text("Hello.")]) as provider:
        await answer(http(base_url=f"{provider.url}/v1", flags=["max_tokens"]))
        assert provider.requests[0].json["max_tokens"] == 9


async def test_headers_go_out_with_every_request() -> None:
    async with FakeProvider([text("Hello.")]) as provider:
        await answer(http(base_url=f"{provider.url}/v1", headers={"X-Team": "blue"}))
        assert provider.requests[0].headers["x-team"] == "blue"


async def test_a_retry_policy_is_followed() -> None:
    async with FakeProvider([text("Hello.")], faults=[HttpError(500)]) as provider:
        model = http(base_url=f"{provider.url}/v1", retry=hf.Retry(attempts=1))
        with pytest.raises(ModelError):
            await answer(model)
        assert len(provider.requests) == 1


def test_timeouts_are_those_that_were_given() -> None:
    assert http(timeouts=hf.Timeouts(idle=7)).timeouts.idle == 7


async def test_limits_are_those_that_were_given() -> None:
    async with FakeProvider([text("Hello.")]) as provider:
        # A second call would have to wait, and nobody may.
        limits = hf.CallLimits(per_minute=0.001, burst=1, waiting=0)
        model = http(base_url=f"{provider.url}/v1", limits=limits, retry=hf.Retry(attempts=1))
        assert await answer(model) == "Hello."
        with pytest.raises(ModelError) as caught:
            await answer(model)
        assert caught.value.kind == "overloaded"


def test_a_known_name_keeps_what_is_not_given() -> None:
    known, given = http("groq:m", base_url=None), http("groq:m", base_url=None, headers={"x-team": "blue"})
    assert given.endpoint.flags == known.endpoint.flags
    assert given.endpoint.base_url == known.endpoint.base_url
    assert (given.retry, given.timeouts) == (hf.Retry(), hf.Timeouts())


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("retry", 3, "a Retry"),
        ("retry", hf.Timeouts(), "a Retry"),
        ("timeouts", 30.0, "a Timeouts"),
        ("limits", 10, "a CallLimits"),
        ("dialect", "klingon", "one of anthropic, responses, chat, google"),
        ("flags", "max_tokens", "a list of words"),
        ("flags", 7, "a list of words"),
        ("flags", [7], "a list of words"),
        ("flags", ["max_tokenz"], "one of the chat dialect"),
        ("headers", {"a": "b\nc"}, "one line"),
        ("api_key", 7, "a string, or a function"),
        ("base_url", 7, "an address"),
    ],
)
def test_an_option_of_the_wrong_kind_is_refused_by_name(option: str, value: Any, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words) as caught:
        http(**{option: value})
    assert caught.value.what.startswith(("the flag", "the header", option))


def test_a_flag_of_another_dialect_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="anthropic dialect"):
        http(dialect="anthropic", flags=["max_tokens"])


OPTIONS: dict[str, Any] = {
    "base_url": NOWHERE,
    "api_key": "k",
    "dialect": "chat",
    "flags": [],
    "headers": {},
    "retry": hf.Retry(),
    "timeouts": hf.Timeouts(),
    "limits": hf.CallLimits(),
}


@pytest.mark.parametrize("option", OPTIONS)
def test_what_was_set_up_already_takes_no_options(option: str) -> None:
    register("ready-made", lambda _name: ScriptedModel([]))
    for model in (ScriptedModel([]), ["groq:a", "groq:b"], "ready-made:x"):
        with pytest.raises(InvalidArgument, match=f"where {option} is given"):
            hf.model(model, **{option: OPTIONS[option]})


async def test_vertex_takes_its_token_from_a_function_at_each_call() -> None:
    tokens = iter(["first", "second"])
    async with FakeProvider([text("Hello.")]) as provider:
        model = http("vertex:gemini-3-pro", base_url=f"{provider.url}/v1/p", api_key=lambda: next(tokens))
        await answer(model)
        await answer(model)
        assert [asked.headers["authorization"] for asked in provider.requests] == ["Bearer first", "Bearer second"]
        assert provider.requests[0].path.startswith("/v1/p/models/gemini-3-pro:streamGenerateContent")


@pytest.mark.parametrize("spoken", ["anthropic", "responses", "chat", "google"])
async def test_a_reply_can_be_asked_for_whole(spoken: str) -> None:
    async with FakeProvider([text("Hello.")]) as provider:
        assert await answer(http(base_url=provider.url, dialect=spoken, stream=False)) == "Hello."
        asked = provider.requests[0]
        assert (asked.asked.form, asked.headers["accept"]) == ("whole", "application/json")


def test_whole_replies_do_not_change_what_else_is_known_of_an_endpoint() -> None:
    usual, whole = http("groq:m", base_url=None), http("groq:m", base_url=None, stream=False)
    assert whole.endpoint.flags == usual.endpoint.flags | {"no_stream"}


def test_stream_is_a_yes_or_a_no() -> None:
    with pytest.raises(InvalidArgument, match="stream"):
        http(stream="no")
