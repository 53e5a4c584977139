"""Requests: answers of a shape that can't be demanded, settings that go together, and types of media."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.every import every

from holdfast.messages import AssistantMessage, Attachment, ModelRequest, OutputSpec, Settings, Text, UserMessage
from holdfast.models.dialect import Endpoint
from holdfast.models.registry import load_dialect


def at(name: str, *flags: str) -> Endpoint:
    return Endpoint(provider="here", dialect=name, base_url="https://here", flags=frozenset(flags))


def sent(name: str, *flags: str, model: str = "m", **fields: Any) -> dict[str, Any]:
    request = ModelRequest(messages=(UserMessage("u", (Text("hi"),)),), **fields)
    return json.loads(load_dialect(name).encode_request(at(name, *flags), model, request).body)


@every("flags", [(), ("json_object",), ("schema_in_words",)])
@every(
    "schema",
    [{"type": "array", "items": {"type": "string"}}, {"anyOf": [{"type": "object"}, {"type": "null"}]}],
    ids=["list", "either"],
)
def test_an_answer_that_is_no_object_is_asked_for_in_words(schema: dict[str, Any], flags: tuple[str, ...]) -> None:
    body = sent("chat", *flags, output=OutputSpec("answer", schema), instructions="Be kind.")
    assert "response_format" not in body
    assert body["messages"][0]["content"].startswith("Be kind.\n\n")
    assert json.dumps(schema, separators=(",", ":")) in body["messages"][0]["content"]


def test_the_temperature_stays_where_a_model_is_told_not_to_think() -> None:
    body = sent("anthropic", model="claude-sonnet-4-6", settings=Settings(effort="none", temperature=0.0))
    assert (body["thinking"], body["temperature"]) == ({"type": "disabled"}, 0.0)


def test_a_model_that_thinks_is_sent_no_temperature() -> None:
    body = sent("anthropic", model="claude-sonnet-4-6", settings=Settings(effort="low", temperature=0.0))
    assert "temperature" not in body


@pytest.mark.parametrize("media_type", ["IMAGE/PNG", "image/png"])
def test_a_picture_is_one_however_its_type_is_written(media_type: str) -> None:
    message = UserMessage("u", (Attachment("d", media_type, 3),))
    request = ModelRequest(messages=(message,), files={"d": b"png"})
    body = json.loads(load_dialect("responses").encode_request(at("responses"), "m", request).body)
    assert body["input"][0]["content"][0]["type"] == "input_image"


ROLES = {"anthropic": "messages", "responses": "input", "chat": "messages", "google": "contents"}


@every("parts", [(), (Text(""),), (Text(" \n"),)], ids=["no part", "no text", "blanks"])
@every("name", ROLES)
def test_an_empty_message_of_the_user_keeps_its_place(name: str, parts: tuple[Text, ...]) -> None:
    messages = (UserMessage("u", parts), AssistantMessage("a", (Text("Hello?"),)), UserMessage("v", (Text("Yes."),)))
    body = json.loads(load_dialect(name).encode_request(at(name), "m", ModelRequest(messages=messages)).body)
    first, second, third = body[ROLES[name]]
    assert (first["role"], second["role"], third["role"]) == ("user", second["role"], "user")
    assert second["role"] in {"assistant", "model"}
    if name == "anthropic":
        assert [part["text"] for part in first["content"]] == ["(empty message)"]
    if name == "google":
        assert first["parts"][0]["text"]


@pytest.mark.parametrize("name", ["anthropic", "google"])
def test_an_empty_file_of_text_is_sent_as_such(name: str) -> None:
    message = UserMessage("u", (Attachment("d", "text/plain", 0, "notes.txt"),))
    body = load_dialect(name).encode_request(at(name), "m", ModelRequest(messages=(message,), files={"d": b""})).body
    assert b"(empty file)" in body
