"""Record what a model said and play it back: the same words, without network and key; asked otherwise, it says so."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from tests.every import every

import holdfast as hf
from holdfast.errors import (
    InvalidArgument,
    ModelError,
    ModelUnknown,
    RecordingDiffers,
    RecordingEnded,
    RecordingInvalid,
    StreamCut,
)
from holdfast.messages import (
    AssistantMessage,
    ModelReply,
    ModelRequest,
    Settings,
    StreamEnd,
    StreamEvent,
    Text,
    ToolCall,
    ToolMessage,
    ToolResult,
    ToolSpec,
    UserMessage,
)
from holdfast.models.endpoints import resolve_endpoint
from holdfast.models.http import HttpModel
from holdfast.models.recorded import RecordedModel, json_differences
from holdfast.models.redaction import RecordingRedactor
from holdfast.models.registry import load_dialect
from holdfast.models.retry import Retry
from holdfast.testing import CutStream, FakeProvider, HttpError, ScriptedModel, call, reply, text

if TYPE_CHECKING:
    from holdfast.testing import ProviderRequest

KEY = "canary-5f2c9a7e41d0"
BELOW = {"anthropic": "", "openai": "/v1", "openai-chat": "/v1", "google": ""}
PROVIDERS = list(BELOW)
WORK = [reply("Let me look. ", call("look", item="box"), call("look", item="bag")), text("Both are empty.")]
TOOL = ToolSpec("look", "Look into something.", {"type": "object", "properties": {"item": {"type": "string"}}})


def real(provider: FakeProvider, name: str = "anthropic", **options: Any) -> HttpModel:
    place = resolve_endpoint(name, base_url=provider.url + BELOW[name])
    return HttpModel(place, "model-1", load_dialect(place.dialect), api_key=KEY, **options)


def asking(words: str = "What is in there?", **options: Any) -> ModelRequest:
    return ModelRequest(messages=(UserMessage("m1", (Text(words),)),), tools=(TOOL,), **options)


async def events(model: RecordedModel, request: ModelRequest) -> list[StreamEvent]:
    return [event async for event in model.stream(request)]


def written(path: Path) -> str:
    return path.read_text()


def whole(path: Path) -> dict[str, Any]:
    return json.loads(written(path))


def exchanges(path: Path) -> list[Any]:
    return whole(path)["exchanges"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "talk.json"


@pytest.fixture
async def recorded(path: Path) -> Path:
    """A recording of one question to Anthropic."""
    async with FakeProvider(WORK) as provider:
        await RecordedModel(path, real(provider), mode="record").respond(asking())
    return path


# ---- there and back --------------------------------------------------------------------------------------------------


def _timeless(found: list[StreamEvent]) -> list[StreamEvent]:
    """Events without how long each try took."""
    return [
        StreamEnd(msgspec.structs.replace(event.reply, attempts=())) if isinstance(event, StreamEnd) else event
        for event in found
    ]


@pytest.mark.parametrize("name", PROVIDERS)
async def test_what_is_played_back_is_what_was_said_event_for_event(path: Path, name: str) -> None:
    async with FakeProvider(WORK, chunks=5) as provider:
        model = real(provider, name)
        said = await events(RecordedModel(path, model, mode="record"), asking())
    assert _timeless(await events(RecordedModel(path, model), asking())) == _timeless(said)


@pytest.mark.parametrize("name", PROVIDERS)
async def test_a_whole_turn_with_tools_is_played_back_without_the_provider(path: Path, name: str) -> None:
    looked: list[str] = []

    @hf.tool(read_only=True)
    def look(item: str) -> str:
        """Look into something."""
        looked.append(item)
        return "empty"

    async def ask(model: RecordedModel) -> hf.TurnOutcome:
        return await hf.run(hf.Agent("keeper", model=model, tools=[look], policy=[hf.allow("*")]), "What is in there?")

    async with FakeProvider(WORK) as provider:
        first = await ask(RecordedModel(path, real(provider, name), mode="record"))
    again = RecordedModel(path)
    second = await ask(again)
    assert (second.status, second.text, second.usage) == (first.status, first.text, first.usage)
    assert second.text == "Both are empty."
    assert again.left == 0


async def test_a_recorded_model_has_the_name_of_the_model_in_the_file(recorded: Path) -> None:
    assert RecordedModel(recorded).name == "anthropic:model-1"


async def test_a_recording_can_be_played_back_as_a_model_that_is_named(recorded: Path) -> None:
    model = RecordedModel(recorded, "anthropic:model-1")
    assert (await model.respond(asking())).calls[0].name == "look"


async def test_playing_back_needs_no_key(recorded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    assert (await RecordedModel(recorded).respond(asking())).text == "Let me look. "


async def test_auto_records_where_there_is_no_file_and_plays_it_back_afterwards(path: Path) -> None:
    async with FakeProvider(WORK) as provider:
        for _ in range(3):
            await RecordedModel(path, real(provider), mode="auto").respond(asking())
        assert len(provider.requests) == 1


async def test_record_writes_an_old_file_anew(recorded: Path) -> None:
    async with FakeProvider([text("Something else.")]) as provider:
        await RecordedModel(recorded, real(provider), mode="record").respond(asking())
    assert (await RecordedModel(recorded).respond(asking())).text == "Something else."


async def test_failed_tries_are_recorded_and_played_back_without_their_pauses(path: Path) -> None:
    faults = [HttpError(429, retry_after=0.01), HttpError(529)]
    quick = Retry(first=0.001)
    async with FakeProvider(WORK, faults=faults) as provider:
        first = await RecordedModel(path, real(provider, retry=quick), mode="record").respond(asking())
    _ask_to_wait(path, seconds=100)  # the test would time out if anybody did
    again = await RecordedModel(path).respond(asking())
    outcomes = [attempt.outcome for attempt in first.attempts]
    assert [attempt.outcome for attempt in again.attempts] == outcomes == ["rate_limited", "overloaded", "completed"]


def _ask_to_wait(path: Path, seconds: int) -> None:
    recording = json.loads(written(path))
    recording["exchanges"][0]["response"]["headers"]["retry-after"] = str(seconds)
    path.write_text(json.dumps(recording))


async def test_a_stream_that_was_cut_is_cut_in_the_same_place_when_it_is_played_back(path: Path) -> None:
    async with FakeProvider(WORK, faults=[CutStream(2)], chunks=5) as provider:
        model = real(provider, retry=Retry(attempts=1))
        with pytest.raises(StreamCut):
            await RecordedModel(path, model, mode="record").respond(asking())
    with pytest.raises(StreamCut):
        await RecordedModel(path, model).respond(asking())


async def test_a_call_that_was_left_in_the_middle_is_recorded_as_far_as_it_came(path: Path) -> None:
    async with FakeProvider(WORK, chunks=5, pace=0.01) as provider:
        stream: Any = RecordedModel(path, real(provider), mode="record").stream(asking())
        await anext(stream)
        await stream.aclose()
    assert len(exchanges(path)) == 1


async def test_each_exchange_is_in_the_file_as_soon_as_it_has_ended(path: Path) -> None:
    async with FakeProvider(WORK) as provider:
        model = RecordedModel(path, real(provider), mode="record")
        for number in (1, 2, 3):
            await model.respond(asking(f"Question {number}"))
            assert len(exchanges(path)) == number


async def test_nothing_but_the_recording_is_left_in_its_folder(recorded: Path) -> None:
    assert list(recorded.parent.iterdir()) == [recorded]


# ---- the file --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "api"),
    [
        ("anthropic", "anthropic.messages"),
        ("openai", "openai.responses"),
        ("openai-chat", "openai.chat"),
        ("google", "google.streamGenerateContent"),
    ],
)
async def test_the_file_says_who_spoke_and_how(path: Path, name: str, api: str) -> None:
    async with FakeProvider(WORK) as provider:
        await RecordedModel(path, real(provider, name), mode="record").respond(asking())
    recording = whole(path)
    assert {key: recording[key] for key in ("format", "id", "provider", "kind", "apis", "features")} == {
        "format": "recording/1",
        "id": f"{name}/talk",
        "provider": name,
        "kind": "http",
        "apis": [api],
        "features": ["stream"],
    }


async def test_an_exchange_has_the_fields_of_the_format(recorded: Path) -> None:
    (exchange,) = exchanges(recorded)
    assert set(exchange["request"]) == {"method", "host", "path", "query", "headers", "body"}
    assert set(exchange["response"]) == {"status", "headers", "sse"}
    assert exchange["request"]["body"]["model"] == "model-1"


async def test_only_headers_on_the_list_are_written(path: Path) -> None:
    async with FakeProvider(WORK, faults=[HttpError(429, retry_after=0.01)]) as provider:
        place = resolve_endpoint("anthropic", base_url=provider.url, headers={"x-team": "blue", "openai-beta": "b"})
        model = HttpModel(place, "model-1", load_dialect("anthropic"), api_key=KEY, retry=Retry(first=0.001))
        await RecordedModel(path, model, mode="record").respond(asking())
    first = exchanges(path)[0]
    assert set(first["request"]["headers"]) <= {"content-type", "accept", "anthropic-version", "openai-beta"}
    assert "openai-beta" in first["request"]["headers"]
    assert set(first["response"]["headers"]) <= {"content-type", "retry-after", "date"}
    assert "retry-after" in first["response"]["headers"]


async def test_a_refusal_in_json_is_kept_as_json(path: Path) -> None:
    async with FakeProvider(WORK, faults=[HttpError(400, message="no")]) as provider:
        with pytest.raises(ModelError):
            await RecordedModel(path, real(provider), mode="record").respond(asking())
    response = exchanges(path)[0]["response"]
    assert response["status"] == 400
    assert isinstance(response["body"], dict)


# ---- secrets ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PROVIDERS)
async def test_a_key_is_not_in_the_file(path: Path, name: str) -> None:
    async with FakeProvider(WORK) as provider:
        await RecordedModel(path, real(provider, name), mode="record").respond(asking())
        assert any(KEY in value for value in provider.requests[0].headers.values())
    assert KEY not in written(path)


async def test_a_key_that_the_provider_repeats_is_not_in_the_file(path: Path) -> None:
    def echo(request: ProviderRequest) -> HttpError:
        return HttpError(401, message=f"bad key {KEY}, sent as {request.headers['x-api-key']}")

    async with FakeProvider(WORK, faults=echo) as provider:
        with pytest.raises(ModelError):
            await RecordedModel(path, real(provider), mode="record").respond(asking())
    assert KEY not in written(path)
    assert "REDACTED" in written(path)


async def test_a_key_with_characters_that_json_escapes_is_not_in_the_file(path: Path) -> None:
    key = 'ab"cd\\ef/gh+12'
    async with FakeProvider([text(f"You sent {key}")]) as provider:
        place = resolve_endpoint("openai-chat", base_url=f"{provider.url}/v1")
        model = HttpModel(place, "model-1", load_dialect("chat"), api_key=key)
        await RecordedModel(path, model, mode="record").respond(asking())
    said = (await RecordedModel(path).respond(asking())).text
    assert "cd" not in said
    assert "REDACTED" in said


@pytest.mark.parametrize(
    "shape",
    [
        *("sk-proj-abcdefgh12345678", "sk-ant-api03-AbCdEf123456", "sk-abc******************wxyz"),
        *("AIzaSyA1234567890abcdefghijk", "AKIAABCDEFGHIJKLMNOP", "ghp_abcdefghijklmnop1234"),
        *("gsk_abcdefghijklmnop1234", "hf_abcdefghijklmnop12345", "eyJhbGciOiJIUzI1.eyJzdWIiOiIxMjM0.c2lnbmF0dXJl"),
    ],
)
async def test_what_has_the_shape_of_a_key_is_not_in_the_file(path: Path, shape: str) -> None:
    async with FakeProvider([text(f"Yours is {shape}.")]) as provider:
        await RecordedModel(path, real(provider), mode="record").respond(asking(f"I have {shape}"))
    assert shape not in written(path)


async def test_a_request_with_the_shape_of_a_key_in_it_is_still_the_recorded_one(path: Path) -> None:
    request = asking("I have sk-proj-abcdefgh12345678")
    async with FakeProvider(WORK) as provider:
        await RecordedModel(path, real(provider), mode="record").respond(request)
    assert (await RecordedModel(path).respond(request)).text == "Let me look. "


async def test_words_that_only_look_a_little_like_keys_stay(path: Path) -> None:
    words = "sk-learn-pipelines, risk-abcdefgh12345, task-sk-abcdefgh1234"
    async with FakeProvider([text(words)]) as provider:
        await RecordedModel(path, real(provider), mode="record").respond(asking())
    assert (await RecordedModel(path).respond(asking())).text == words


# ---- secrets in what is asked ----------------------------------------------------------------------------------------

HIDDEN = "hidden-77aa31f0"
ANTHROPIC_MCP = {"type": "url", "name": "shop", "url": "https://mcp.example/sse", "authorization_token": HIDDEN}
OPENAI_MCP = {"type": "mcp", "server_label": "shop", "server_url": "https://mcp.example/sse"}


async def _kept(path: Path, name: str, request: ModelRequest, said: str = "Let me look.") -> Any:
    """The body of the request as it is in the file, once it was found that the file plays it back."""
    async with FakeProvider([text(said)] * 2) as provider:
        await RecordedModel(path, real(provider, name), mode="record").respond(request)
        assert HIDDEN in provider.requests[0].body.decode()
    assert HIDDEN not in written(path)
    assert (await RecordedModel(path).respond(request)).text
    return exchanges(path)[0]["request"]["body"]


async def test_the_token_of_a_server_that_the_provider_calls_is_not_in_the_file(path: Path) -> None:
    body = await _kept(path, "anthropic", asking(settings=Settings(extra={"mcp_servers": [ANTHROPIC_MCP]})))
    assert body["mcp_servers"] == [ANTHROPIC_MCP | {"authorization_token": "REDACTED"}]


async def test_headers_in_a_request_are_kept_by_a_list_of_harmless_ones(path: Path) -> None:
    headers = {"Authorization": f"Bearer {HIDDEN}", "X-Shop": HIDDEN, "Accept": "text/plain"}
    extra = {"tools": [OPENAI_MCP | {"headers": headers}]}
    body = await _kept(path, "openai", asking(settings=Settings(extra=extra)))
    (server,) = [tool for tool in body["tools"] if tool["type"] == "mcp"]
    assert server["headers"] == {"Authorization": "REDACTED", "X-Shop": "REDACTED", "Accept": "text/plain"}


async def test_parameters_of_addresses_in_a_request_are_kept_by_a_list_of_harmless_ones(path: Path) -> None:
    url = f"https://mcp.example/sse?api-version=2&key={HIDDEN}&own={HIDDEN}#token={HIDDEN}"
    body = await _kept(path, "openai", asking(settings=Settings(extra={"tools": [OPENAI_MCP | {"server_url": url}]})))
    (server,) = [tool for tool in body["tools"] if tool["type"] == "mcp"]
    assert server["server_url"] == "https://mcp.example/sse?api-version=2&key=REDACTED&own=REDACTED#token=REDACTED"


async def test_a_password_before_the_host_of_an_address_is_not_in_the_file(path: Path) -> None:
    body = await _kept(path, "anthropic", asking(f"Look at postgres://me:{HIDDEN}@db.example/shop."))
    assert "postgres://REDACTED@db.example/shop." in json.dumps(body)


async def test_a_secret_in_the_arguments_of_a_call_is_not_in_the_file(path: Path) -> None:
    said = ToolCall("c1", "log_in", {"user": "me", "password": HIDDEN})
    messages = (
        *asking().messages,
        AssistantMessage("m2", (said,)),
        ToolMessage("m3", (ToolResult("c1", "log_in", f'{{"access_token": "{HIDDEN}"}}'),)),
    )
    body = await _kept(path, "openai-chat", ModelRequest(messages=messages))
    assert json.loads(body["messages"][1]["tool_calls"][0]["function"]["arguments"]) == {
        "user": "me",
        "password": "REDACTED",
    }


async def test_a_secret_of_a_request_that_the_reply_repeats_is_not_in_the_file(path: Path) -> None:
    settings = Settings(extra={"mcp_servers": [ANTHROPIC_MCP]})
    await _kept(path, "anthropic", asking(settings=settings), said=f"I was given {HIDDEN}.")
    assert (await RecordedModel(path).respond(asking(settings=settings))).text == "I was given REDACTED."


async def test_a_secret_that_is_known_later_is_taken_out_of_what_was_written_before(path: Path) -> None:
    first = asking(f"It is {HIDDEN}")
    second = asking(settings=Settings(extra={"mcp_servers": [ANTHROPIC_MCP]}))
    async with FakeProvider([text(f"So it is {HIDDEN}.")]) as provider:
        model = RecordedModel(path, real(provider), mode="record")
        await model.respond(first)
        await model.respond(second)
    assert HIDDEN not in written(path)
    again = RecordedModel(path)
    assert [(await again.respond(request)).text for request in (first, second)] == ["So it is REDACTED."] * 2


async def test_a_recording_with_a_secret_that_somebody_else_left_in_it_can_be_played_back(path: Path) -> None:
    request = asking(settings=Settings(extra={"mcp_servers": [ANTHROPIC_MCP]}))
    await _kept(path, "anthropic", request)
    _leave(path, '"authorization_token": "another"')
    assert (await RecordedModel(path).respond(request)).text


def _leave(path: Path, field: str) -> None:
    path.write_text(written(path).replace('"authorization_token": "REDACTED"', field))


async def test_what_surrounds_a_secret_is_still_compared(path: Path) -> None:
    await _kept(path, "anthropic", asking(f"Is postgres://me:{HIDDEN}@db.example up?"))
    with pytest.raises(RecordingDiffers):
        await RecordedModel(path).respond(asking(f"Is postgres://me:{HIDDEN}@db.example down?"))


async def test_numbers_of_tokens_and_schemas_with_secret_names_stay(path: Path) -> None:
    fields = {"password": {"type": "string", "description": "Yours."}, "headers": {"type": "object"}}
    tool = ToolSpec("log_in", "Log in.", {"type": "object", "properties": fields})
    request = ModelRequest(messages=asking().messages, tools=(tool,), settings=Settings(max_output_tokens=77))
    async with FakeProvider(WORK) as provider:
        await RecordedModel(path, real(provider), mode="record").respond(request)
        sent = provider.requests[0].json
    assert exchanges(path)[0]["request"]["body"] == sent


@every(
    "name",
    [
        *("authorization", "Authorization", "authorization_token", "api_key", "apiKey", "apikey", "x-api-key", "token"),
        *("access_token", "refresh_token", "password", "secret", "client_secret", "clientSecret", "cookie"),
        *("Set-Cookie", "GITHUB_TOKEN", "AWS_SECRET_ACCESS_KEY", "private_key", "credentials", "Proxy-Authorization"),
    ],
)
def test_these_names_call_their_value_a_secret(name: str) -> None:
    assert RecordingRedactor().request({"a": [{name: "x"}]}) == {"a": [{name: "REDACTED"}]}


@every(
    "name",
    [
        *("max_tokens", "max_output_tokens", "maxOutputTokens", "tokens", "token_count", "input_tokens", "author"),
        *("budget_tokens", "prompt_cache_key", "thoughtSignature", "signature", "key", "tokenizer", "secretary"),
        *("encrypted_content", "id", "cache_control"),
    ],
)
def test_these_names_do_not(name: str) -> None:
    assert RecordingRedactor().request({"a": [{name: "x"}]}) == {"a": [{name: "x"}]}


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ("Basic dXNlcjpwYXNzd29yZDEyMw==", "Basic REDACTED"),
        ("https://x.example/a?b=1&sig=abc%2F1&c=2", "https://x.example/a?b=1&sig=REDACTED&c=2"),
        (r'{"url":"https:\/\/me:pw@x.example\/a?b=1\u0026X-Amz-Signature=abc"}', None),
        ("a basic understanding, and the bearer of it", "a basic understanding, and the bearer of it"),
        ("https://x.example/a@b?q=word", "https://x.example/a@b?q=word"),
    ],
)
def test_what_a_provider_says_keeps_all_but_secrets(said: str, kept: str | None) -> None:
    wanted = r'{"url":"https:\/\/REDACTED@x.example\/a?b=1\u0026X-Amz-Signature=REDACTED"}' if kept is None else kept
    assert RecordingRedactor().text(said) == wanted


def test_a_pair_of_a_name_and_a_value_is_a_field_of_that_name() -> None:
    pairs = [{"name": "Authorization", "value": "x"}, {"name": "Colour", "value": "x"}]
    assert RecordingRedactor().request(pairs) == [{"name": "Authorization", "value": "REDACTED"}, pairs[1]]


def test_a_value_under_a_secret_name_loses_everything_it_says() -> None:
    value = {"credentials": {"user": "me", "pin": 1234, "old": None, "on": True, "new": "", "more": ["x"]}}
    kept = {"user": "REDACTED", "pin": "REDACTED", "old": None, "on": True, "new": "", "more": ["REDACTED"]}
    assert RecordingRedactor().request(value) == {"credentials": kept}


def test_of_a_text_that_is_too_deep_to_look_through_nothing_is_kept() -> None:
    deep = '{"a":' * 600 + '{"password":"x"}' + "}" * 600
    assert RecordingRedactor().request({"text": deep}) == {"text": "REDACTED"}


def test_a_name_that_stands_twice_hides_no_secret() -> None:
    assert "sk-proj" not in RecordingRedactor().request('{"a": "sk-proj-abcdefgh12345678", "a": "b"}')


@pytest.mark.parametrize(
    "value",
    [
        {"password": "x", "url": "https://a:b@c.example/?q=1&token=2", "headers": {"x": "y"}},
        '{"password": "x", "deep": "{\\"token\\": \\"y\\"}"}',
        "sk-proj-abcdefgh12345678 and Bearer abcdefgh12345678abcd",
    ],
)
def test_redacting_again_changes_nothing(value: Any) -> None:
    secrets = RecordingRedactor()
    once = secrets.request(value)
    assert secrets.request(once) == once


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
@pytest.mark.parametrize("escaped", [True, False])
def test_redacting_what_somebody_redacted_elsewhere_gives_the_same_text(
    separators: tuple[str, str],
    escaped: bool,
) -> None:
    def words(password: str) -> str:
        value = {"user": "Bj\u00f6rn", "password": password, "deep": [1]}
        return json.dumps(value, separators=separators, ensure_ascii=escaped)

    assert (
        RecordingRedactor().request(words("x")) == words("REDACTED") == RecordingRedactor().request(words("REDACTED"))
    )


def test_a_secret_name_that_stands_twice_hides_no_value() -> None:
    assert (
        RecordingRedactor().request('{"password":"one","password":"REDACTED"}')
        == '{"password":"REDACTED","password":"REDACTED"}'
    )


def test_a_plain_word_in_a_secret_is_no_secret_elsewhere() -> None:
    secrets = RecordingRedactor()
    secrets.learn("https://x.example", {}, b'{"token": "12 password"}')
    assert secrets.text("your password, not 12 password") == "your password, not REDACTED"


def test_of_json_that_is_cut_the_values_of_secret_names_are_not_kept() -> None:
    assert RecordingRedactor().request('{"user":"bob","password":"hun\\') == '{"user":"bob","password":"REDACTED'


async def test_a_repr_shows_the_file_and_the_model_and_no_key(path: Path) -> None:
    async with FakeProvider(WORK) as provider:
        shown = repr(RecordedModel(path, real(provider), mode="record"))
    assert shown == f"RecordedModel({str(path)!r}, 'anthropic:model-1', mode='record')"


# ---- asked otherwise -------------------------------------------------------------------------------------------------


async def test_another_question_is_an_error_that_says_where_it_differs(recorded: Path) -> None:
    with pytest.raises(RecordingDiffers, match="Something new") as caught:
        await RecordedModel(recorded).respond(asking("Something new"))
    assert caught.value.kind == "recording_differs"
    assert caught.value.number == 1
    assert len(caught.value.differences) == 1
    assert "messages[0].content" in caught.value.differences[0]


async def test_a_missing_and_a_new_field_are_both_named(recorded: Path) -> None:
    request = ModelRequest(messages=asking().messages, settings=Settings(temperature=0.5))
    with pytest.raises(RecordingDiffers) as caught:
        await RecordedModel(recorded).respond(request)
    words = "; ".join(caught.value.differences)
    assert "tools is missing" in words
    assert "temperature is new: 0.5" in words


async def test_another_length_of_the_conversation_is_told(recorded: Path) -> None:
    longer = (*asking().messages, *asking("And there?").messages)
    with pytest.raises(RecordingDiffers, match="messages"):
        await RecordedModel(recorded).respond(ModelRequest(messages=longer, tools=(TOOL,)))


async def test_a_request_that_differs_is_not_tried_again(recorded: Path) -> None:
    with pytest.raises(RecordingDiffers) as caught:
        await RecordedModel(recorded).respond(asking("Something new"))
    assert not caught.value.retryable


async def test_the_exchange_is_still_there_after_a_request_that_differed(recorded: Path) -> None:
    model = RecordedModel(recorded)
    with pytest.raises(RecordingDiffers):
        await model.respond(asking("Something new"))
    assert (await model.respond(asking())).text == "Let me look. "


def test_json_in_a_text_is_compared_by_what_it_says() -> None:
    assert list(json_differences({"a": '{"x": [1, 2]}'}, {"a": '{"x":[1,2]}'})) == []
    assert list(json_differences({"a": '{"x": [1, 2]}'}, {"a": '{"x":[1,3]}'})) == ["a.x[1] is 3, it was 2"]


async def test_a_request_to_another_kind_of_endpoint_differs(recorded: Path) -> None:
    with pytest.raises(RecordingDiffers, match="the path"):
        await RecordedModel(recorded, "openai:model-1").respond(asking())


async def test_differences_are_only_noted_where_that_was_asked_for(recorded: Path) -> None:
    model = RecordedModel(recorded, check=False)
    assert (await model.respond(asking("Something new"))).text == "Let me look. "
    ((number, words),) = model.differences
    assert number == 1
    assert "Something new" in words


async def test_one_question_too_many_is_an_error(recorded: Path) -> None:
    model = RecordedModel(recorded)
    await model.respond(asking())
    with pytest.raises(RecordingEnded, match="has 1 exchanges, and request 2"):
        await model.respond(asking())


async def test_a_turn_that_asks_otherwise_fails_and_says_why(recorded: Path) -> None:
    outcome = await hf.run(hf.Agent("keeper", model=RecordedModel(recorded)), "Something new")
    assert outcome.status == "failed"
    assert outcome.code == "recording_differs"


# ---- wrong calls, wrong files ----------------------------------------------------------------------------------------


def test_a_file_that_is_not_there_is_named(path: Path) -> None:
    with pytest.raises(RecordingInvalid, match="does not exist; make it with mode='record'"):
        RecordedModel(path)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "Expecting"),
        ("[" * 100_000, "recursion"),
        ("[]", "Expected `object`"),
        ('{"format": "recording/2", "exchanges": []}', "Invalid enum value 'recording/2'"),
        ('{"exchanges": []}', "missing required field `format`"),
        ('{"format": "recording/1", "kind": "websocket", "frames": []}', "missing required field `exchanges`"),
        ('{"format": "recording/1", "exchanges": [1]}', "exchanges"),
        ('{"format": "recording/1", "exchanges": [{"request": null}]}', "missing required field `response`"),
        ('{"format": "recording/1", "exchanges": [{"response": {"status": "200"}}]}', "status"),
        ('{"format": "recording/1", "exchanges": [{"request": 7, "response": {"status": 200}}]}', "request"),
        ('{"format": "recording/1", "exchanges": [{"response": {"status": 200, "body_base64": "?"}}]}', "base64"),
        ('{"format": "recording/1", "apis": 7, "exchanges": []}', "apis"),
        (
            '{"format": "recording/1", "apis": ["cohere.chat"], "exchanges": []}',
            "not support cohere.chat",
        ),
        ('{"format": "recording/1", "exchanges": []}', "not support its protocol"),
    ],
)
def test_a_file_that_is_no_recording_is_refused(path: Path, content: str, reason: str) -> None:
    path.write_text(content)
    with pytest.raises(RecordingInvalid, match=reason):
        RecordedModel(path)


def test_a_file_that_is_no_text_is_refused(path: Path) -> None:
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RecordingInvalid):
        RecordedModel(path)


def test_a_folder_is_no_recording(tmp_path: Path) -> None:
    with pytest.raises(RecordingInvalid):
        RecordedModel(tmp_path)


def test_recording_needs_a_model(path: Path) -> None:
    with pytest.raises(InvalidArgument, match="the model to record"):
        RecordedModel(path, mode="record")


def test_a_model_without_http_can_not_be_recorded(path: Path) -> None:
    with pytest.raises(InvalidArgument, match="reached over HTTP"):
        RecordedModel(path, ScriptedModel([text("hi")]), mode="record")


def test_an_unknown_model_can_not_be_recorded(path: Path) -> None:
    with pytest.raises(ModelUnknown):
        RecordedModel(path, "nobody:model", mode="record")


def test_a_recording_in_a_folder_that_is_not_there_is_refused_before_anything_is_asked(tmp_path: Path) -> None:
    with pytest.raises(RecordingInvalid, match="folder"):
        RecordedModel(tmp_path / "nowhere" / "talk.json", "anthropic:model-1", mode="record")


def test_an_unknown_mode_is_refused(path: Path) -> None:
    mode: Any = "rewind"
    with pytest.raises(InvalidArgument, match="'replay', 'record' or 'auto'"):
        RecordedModel(path, mode=mode)


# ---- other people's recordings ---------------------------------------------------------------------------------------

FOLDER = Path(os.environ.get("HOLDFAST_RECORDINGS") or Path(__file__).parents[3] / "shared" / "recordings")
SPOKEN = {"anthropic.messages", "openai.chat", "openai.responses", "google.streamGenerateContent"}


def _spoken() -> list[Any]:
    found = [path for path in sorted(FOLDER.glob("*/*.json")) if SPOKEN & set(whole(path).get("apis", ()))]
    if not found:
        reason = f"no recordings at {FOLDER.name}; set HOLDFAST_RECORDINGS"
        return [pytest.param(None, id="none", marks=pytest.mark.skip(reason=reason))]
    return [pytest.param(path, id=f"{path.parent.name}/{path.stem}") for path in found]


@pytest.mark.parametrize("file", _spoken())
async def test_a_recording_of_real_traffic_can_be_played_back_to_its_end(file: Path) -> None:
    model = RecordedModel(file, check=False)
    while model.left:
        left = model.left
        try:
            await model.respond(asking())
        except ModelError as error:
            assert error.kind not in {"recording_differs", "model_error"}  # noqa: PT017  most of them just answer
        assert model.left < left


def _foreign(path: Path, response: dict[str, Any], **fields: Any) -> Path:
    recording: dict[str, Any] = {
        "format": "recording/1",
        "provider": "somebody",
        "apis": ["openai.chat"],
        "exchanges": [{"request": None, "response": {"status": 200, "headers": {}, **response}}],
        **fields,
    }
    path.write_text(json.dumps(recording))
    return path


_CHAT = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "Hello"}, "finish_reason": "stop"}]}


async def _said(path: Path) -> ModelReply:
    return await RecordedModel(path).respond(asking())


async def test_a_recording_of_an_unknown_provider_is_read_in_the_dialect_that_it_names(path: Path) -> None:
    assert (await _said(_foreign(path, {"body": _CHAT}))).text == "Hello"


async def test_a_body_may_be_given_as_text(path: Path) -> None:
    response = {"headers": {"content-type": "application/json"}, "body_text": json.dumps(_CHAT)}
    assert (await _said(_foreign(path, response))).text == "Hello"


async def test_a_body_may_be_given_as_base64(path: Path) -> None:
    body = base64.b64encode(json.dumps(_CHAT).encode()).decode()
    response = {"headers": {"content-type": "application/json"}, "body_base64": body}
    assert (await _said(_foreign(path, response))).text == "Hello"


async def test_a_request_that_was_not_recorded_is_not_compared(path: Path) -> None:
    model = RecordedModel(_foreign(path, {"body": _CHAT}))
    await model.respond(asking("Whatever"))
    assert model.differences == ()


def test_the_model_of_a_google_recording_is_in_its_path(path: Path) -> None:
    request: dict[str, Any] = {"path": "/v1beta/models/gemini-9%20x:streamGenerateContent", "body": {}}
    exchange: dict[str, Any] = {"request": request, "response": {"status": 200, "headers": {}, "sse": ""}}
    model = RecordedModel(_foreign(path, {}, provider="google", apis=["google.generateContent"], exchanges=[exchange]))
    assert model.name == "google:gemini-9 x"


# ---- endpoints of one's own ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flags", [None, ["max_tokens", "strict_tools"]])
@pytest.mark.parametrize("spoken", ["anthropic", "chat", "google", "responses"])
async def test_an_endpoint_of_ones_own_is_played_back_without_naming_it(
    path: Path, spoken: str, flags: list[str] | None
) -> None:
    if flags is not None and spoken != "chat":
        flags = sorted(load_dialect(spoken).flags)[-1:]
    request = asking(settings=Settings(max_output_tokens=9, effort="low"))
    async with FakeProvider(WORK) as provider:
        below = "/v1" if spoken in {"chat", "responses"} else ""
        below += "/v1beta" if flags == ["whole_url"] else ""
        model = hf.model("mine:m", base_url=provider.url + below, dialect=spoken, flags=flags, api_key=KEY)
        await RecordedModel(path, model, mode="record").respond(request)
    again = RecordedModel(path)
    assert (await again.respond(request)).text == "Let me look. "
    assert again.name == "mine:m"


async def test_a_known_endpoint_with_other_flags_is_played_back_without_naming_it(path: Path) -> None:
    request = asking(settings=Settings(max_output_tokens=9))
    async with FakeProvider(WORK) as provider:
        model = hf.model("groq:m", base_url=f"{provider.url}/v1", flags=["max_tokens"], api_key=KEY)
        await RecordedModel(path, model, mode="record").respond(request)
    assert (await RecordedModel(path).respond(request)).text == "Let me look. "


def test_a_flag_that_the_dialect_does_not_have_is_refused(path: Path) -> None:
    with pytest.raises(RecordingInvalid, match="the chat dialect has no flag nonsense"):
        RecordedModel(_foreign(path, {"body": _CHAT}, flags=["nonsense", "max_tokens"]))


def test_a_recording_that_does_not_say_who_spoke_can_be_played_back(path: Path) -> None:
    assert RecordedModel(_foreign(path, {"body": _CHAT}, provider="")).name.startswith("openai-chat:")


def test_a_provider_without_an_address_of_its_own_can_be_played_back(path: Path) -> None:
    assert RecordedModel(_foreign(path, {"body": _CHAT}, provider="azure")).name.startswith("azure:")
