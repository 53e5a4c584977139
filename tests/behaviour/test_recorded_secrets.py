"""Secrets in what a model says, above all in the arguments of its calls: they are not in a recording of it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

import holdfast as hf
from holdfast.messages import ModelRequest, Text, UserMessage
from holdfast.models.endpoints import resolve_endpoint
from holdfast.models.http import HttpModel
from holdfast.models.recorded import RecordedModel
from holdfast.models.redaction import RecordingRedactor, redact_stream
from holdfast.models.registry import load_dialect
from holdfast.testing import FakeProvider, call, reply, text

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

    from holdfast.models.transport import HttpResponse, Timeouts, Transport

KEY = "canary-5f2c9a7e41d0"
BELOW = {"anthropic": "", "openai": "/v1", "openai-chat": "/v1", "google": ""}
PROVIDERS = list(BELOW)
WORK = [reply("Let me look. ", call("look", item="box"), call("look", item="bag"))]
ASKING = ModelRequest(messages=(UserMessage("m1", (Text("What is in there?"),)),))


def real(provider: FakeProvider, name: str) -> HttpModel:
    place = resolve_endpoint(name, base_url=provider.url + BELOW[name])
    return HttpModel(place, "model-1", load_dialect(place.dialect), api_key=KEY)


def written(path: Path) -> str:
    return path.read_text()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "talk.json"


PASSWORD = "hunter2-correct-horse-9"  # noqa: S105  nobody's
LETTERS = ("hunt", "er2-", "correct", "horse-9")


async def _log_in(path: Path, name: str, *, password: str = PASSWORD, chunks: int = 6) -> tuple[str, list[str]]:
    """Record a turn in which the model logs in, and play it back: how that ended, and what the tool was given."""
    given: list[str] = []

    @hf.tool
    def login(user: str, password: str) -> str:
        """Log in."""
        given.append(f"{user} {password}")
        return "in"

    async def ask(model: RecordedModel) -> hf.TurnOutcome:
        return await hf.run(hf.Agent("keeper", model=model, tools=[login], policy=[hf.allow("*")]), "Go in.")

    script = [call("login", user="bob", password=password), text("You are in.")]
    async with FakeProvider(script, chunks=chunks) as provider:
        await ask(RecordedModel(path, real(provider, name), mode="record"))
    outcome = await ask(RecordedModel(path))
    return f"{outcome.status} {outcome.code or ''}".strip(), given


@pytest.mark.parametrize("chunks", [1, 6])
@pytest.mark.parametrize("name", PROVIDERS)
async def test_a_turn_with_a_password_in_a_call_can_be_played_back(path: Path, name: str, chunks: int) -> None:
    status, given = await _log_in(path, name, chunks=chunks)
    assert (status, given) == ("completed", [f"bob {PASSWORD}", "bob REDACTED"])


@pytest.mark.parametrize("name", PROVIDERS)
async def test_no_piece_of_a_password_that_was_streamed_is_in_the_file(path: Path, name: str) -> None:
    await _log_in(path, name)
    assert [letters for letters in LETTERS if letters in written(path)] == []


@pytest.mark.parametrize("name", PROVIDERS)
async def test_a_password_too_short_to_be_looked_for_is_not_in_the_call(path: Path, name: str) -> None:
    status, given = await _log_in(path, name, password="q7z", chunks=3)  # noqa: S106
    assert (status, given[1]) == ("completed", "bob REDACTED")
    assert "q7z" not in written(path)


@pytest.mark.parametrize("name", PROVIDERS)
async def test_a_password_with_characters_that_json_escapes_is_not_in_the_file(path: Path, name: str) -> None:
    status, given = await _log_in(path, name, password='hunter2"correct\\horse\u00e9')  # noqa: S106
    assert (status, given[1]) == ("completed", "bob REDACTED")
    assert "horse" not in written(path)


@pytest.mark.parametrize("name", PROVIDERS)
async def test_a_password_in_the_last_call_of_a_recording_is_not_in_the_file(path: Path, name: str) -> None:
    said = reply(f"I will use {PASSWORD}. ", call("look", password=PASSWORD))
    async with FakeProvider([said], chunks=6) as provider:
        await RecordedModel(path, real(provider, name), mode="record").respond(ASKING)
    assert [letters for letters in LETTERS if letters in written(path)] == []
    again = await RecordedModel(path).respond(ASKING)
    assert (again.text, again.calls[0].arguments) == ("I will use REDACTED. ", {"password": "REDACTED"})


@pytest.mark.parametrize("name", PROVIDERS)
async def test_a_key_that_the_provider_repeats_in_pieces_is_not_in_the_file(path: Path, name: str) -> None:
    async with FakeProvider([text(f"You sent {KEY}, didn't you?")], chunks=12) as provider:
        await RecordedModel(path, real(provider, name), mode="record").respond(ASKING)
    assert (await RecordedModel(path).respond(ASKING)).text == "You sent REDACTED, didn't you?"


@pytest.mark.parametrize("name", PROVIDERS)
async def test_a_stream_without_secrets_is_written_as_it_came(path: Path, name: str) -> None:
    async with FakeProvider(WORK, chunks=5) as provider:
        model = real(provider, name)
        sent: list[bytes] = []
        model.transport = Listening(model.transport, sent)
        await RecordedModel(path, model, mode="record").respond(ASKING)
    assert json.loads(written(path))["exchanges"][0]["response"]["sse"].encode() == b"".join(sent)


class Listening:
    """A transport that notes the bytes of answers."""

    def __init__(self, transport: Transport, sent: list[bytes]) -> None:
        self._transport = transport
        self._sent = sent

    async def open(self, url: str, headers: Mapping[str, str], body: bytes, timeouts: Timeouts) -> HttpResponse:
        return Heard(await self._transport.open(url, headers, body, timeouts), self._sent)


class Heard:
    """A response whose bytes are noted."""

    def __init__(self, response: HttpResponse, sent: list[bytes]) -> None:
        self._response = response
        self._sent = sent
        self.status = response.status
        self.headers = response.headers

    async def chunks(self) -> AsyncIterator[bytes]:
        async for chunk in self._response.chunks():
            self._sent.append(chunk)
            yield chunk

    def close(self) -> None:
        self._response.close()


def test_calls_that_are_not_numbered_are_looked_through_one_by_one() -> None:
    def frame(password: str) -> str:
        function = {"name": "login", "arguments": json.dumps({"password": password})}
        return f"data: {json.dumps({'choices': [{'delta': {'tool_calls': [{'function': function}]}}]})}\n\n"

    kept = redact_stream(frame("one") + frame("two"), RecordingRedactor())
    told = [json.loads(line[5:]) for line in kept.splitlines() if line]
    functions = [each["choices"][0]["delta"]["tool_calls"][0]["function"] for each in told]
    assert [json.loads(function["arguments"]) for function in functions] == [{"password": "REDACTED"}] * 2


def test_arguments_in_pieces_under_a_path_are_looked_through() -> None:
    pieces = [{"jsonPath": f"$.{name}", "stringValue": said} for name in ("user", "password") for said in ("ab", "cd")]
    frames = [{"candidates": [{"content": {"parts": [{"functionCall": {"partialArgs": [each]}}]}}]} for each in pieces]
    kept = redact_stream("".join(f"data: {json.dumps(frame)}\r\n\r\n" for frame in frames), RecordingRedactor())
    told = [json.loads(line[5:]) for line in kept.splitlines() if line]
    parts = [each["candidates"][0]["content"]["parts"][0]["functionCall"]["partialArgs"][0] for each in told]
    assert [part["stringValue"] for part in parts] == ["ab", "cd", "REDACTED", ""]


def test_data_on_several_lines_stays_one_event() -> None:
    sse = ': hi\ndata: {"arguments":\ndata: "{\\"password\\": 7}"}\n\ndata: [DONE]\n\n'
    kept = redact_stream(sse, RecordingRedactor())
    assert kept == ': hi\ndata: {"arguments":"{\\"password\\": \\"REDACTED\\"}"}\n\ndata: [DONE]\n\n'
