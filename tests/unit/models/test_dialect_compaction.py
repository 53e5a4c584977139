"""`Settings.compact_at` on the wire: the provider shortens the conversation, and its summaries go back to it."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest

from holdfast.errors.world import NotOffered
from holdfast.messages import AssistantMessage, Message, ModelRequest, Reasoning, Settings, Text, UserMessage
from holdfast.models.dialect import Endpoint, WireRequest
from holdfast.models.registry import load_dialect

CLAUDE: Final = Endpoint(provider="anthropic", dialect="anthropic", base_url="https://a")
OPENAI: Final = Endpoint(provider="openai", dialect="responses", base_url="https://o")
AT: Final = Settings(compact_at=100_000)
HELLO: Final = UserMessage("u", (Text("hi"),))


def sent(place: Endpoint, model: str, *messages: Message, settings: Settings = AT) -> WireRequest:
    return load_dialect(place.dialect).encode_request(
        place, model, ModelRequest(messages=messages or (HELLO,), settings=settings)
    )


def body(place: Endpoint, model: str, *messages: Message, settings: Settings = AT) -> dict[str, Any]:
    return json.loads(sent(place, model, *messages, settings=settings).body)


def summed_up(place: Endpoint, model: str, item: dict[str, Any]) -> tuple[Message, ...]:
    said = AssistantMessage("a", (Reasoning("", item, place.route(model)), Text("so")))
    return HELLO, said, UserMessage("v", (Text("go on"),))


def test_a_claude_that_sums_up_is_asked_to_clear_and_to_sum_up() -> None:
    request = sent(CLAUDE, "claude-sonnet-4-6")
    trigger = {"type": "input_tokens", "value": 100_000}
    assert json.loads(request.body)["context_management"] == {
        "edits": [
            {"type": "clear_tool_uses_20250919", "trigger": trigger},
            {"type": "compact_20260112", "trigger": trigger},
        ]
    }
    assert request.headers["anthropic-beta"] == "context-management-2025-06-27,compact-2026-01-12"


def test_responses_are_asked_to_compact() -> None:
    assert body(OPENAI, "gpt-5.5")["context_management"] == [{"type": "compaction", "compact_threshold": 100_000}]


@pytest.mark.parametrize(("place", "model"), [(CLAUDE, "claude-sonnet-4-6"), (OPENAI, "gpt-5.5")])
def test_nothing_is_asked_for_without_the_setting(place: Endpoint, model: str) -> None:
    request = sent(place, model, settings=Settings())
    assert b"context_management" not in request.body
    assert "anthropic-beta" not in request.headers


@pytest.mark.parametrize("name", ["chat", "google"])
def test_a_dialect_that_has_no_field_for_it_refuses(name: str) -> None:
    place = Endpoint(provider="here", dialect=name, base_url="https://here")
    with pytest.raises(NotOffered, match=r"settings\.compact_at is not offered"):
        sent(place, "m")


@pytest.mark.parametrize(("place", "model"), [(CLAUDE, "claude-sonnet-4-6"), (OPENAI, "gpt-5.5")])
def test_extra_fields_go_before_the_setting(place: Endpoint, model: str) -> None:
    settings = Settings(compact_at=100_000, extra={"context_management": {"mine": 1}})
    assert body(place, model, settings=settings)["context_management"] == {"mine": 1}


def test_headers_of_ones_own_are_joined_with_those_that_are_needed_each_once() -> None:
    settings = Settings(compact_at=100_000, extra={"betas": ["mine", "compact-2026-01-12"]})
    said = sent(CLAUDE, "claude-sonnet-4-6", settings=settings).headers["anthropic-beta"]
    assert said == "context-management-2025-06-27,compact-2026-01-12,mine"


def test_a_summary_goes_back_to_claude_in_its_place() -> None:
    block = {"type": "compaction", "content": "so far"}
    messages = body(CLAUDE, "claude-opus-4-6", *summed_up(CLAUDE, "claude-opus-4-6", block))["messages"]
    assert messages[1]["content"][0] == block


def test_a_summary_of_earlier_keeps_its_header_when_no_more_are_asked_for() -> None:
    messages = summed_up(CLAUDE, "claude-opus-4-6", {"type": "compaction", "content": "so far"})
    request = sent(CLAUDE, "claude-opus-4-6", *messages, settings=Settings())
    assert request.headers["anthropic-beta"] == "compact-2026-01-12"


def test_a_compacted_item_goes_back_to_responses_in_its_place() -> None:
    item = {"type": "compaction", "id": "cmp_1", "encrypted_content": "blob"}
    assert body(OPENAI, "gpt-5.5", *summed_up(OPENAI, "gpt-5.5", item))["input"][1] == item


def test_a_summary_of_another_model_is_left_out_and_counted() -> None:
    messages = summed_up(CLAUDE, "claude-opus-4-6", {"type": "compaction", "content": "so far"})
    request = sent(CLAUDE, "claude-sonnet-4-6", *messages)
    assert request.dropped == 1
    assert b"so far" not in request.body
