"""How a provider is asked to shorten a conversation, and where it is not asked."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest

from holdfast.errors import InvalidNumber
from holdfast.errors.world import NotOffered
from holdfast.messages import AssistantMessage, Message, ModelRequest, Reasoning, Settings, Text, UserMessage, encode
from holdfast.models.anthropic import CLEARING_BETA, COMPACTING_BETA, DIALECT, LEAST_COMPACTED
from holdfast.models.dialect import Endpoint, WireRequest
from holdfast.models.responses import context_management

CLAUDE: Final = Endpoint(provider="anthropic", dialect="anthropic", base_url="https://a")
SUMMARY: Final = {"type": "compaction", "content": "so far"}


def asked(model: str, at: int | None = 100_000, *before: Message) -> WireRequest:
    messages = (*before, UserMessage("u", (Text("hi"),)))
    return DIALECT.encode_request(CLAUDE, model, ModelRequest(messages=messages, settings=Settings(compact_at=at)))


def edits(model: str, at: int = 100_000) -> list[dict[str, Any]]:
    return json.loads(asked(model, at).body)["context_management"]["edits"]


def kinds(model: str, at: int = 100_000) -> list[str]:
    return [edit["type"] for edit in edits(model, at)]


@pytest.mark.parametrize("model", ["claude-sonnet-4-6", "claude-opus-5-0", "claude"])
def test_a_claude_that_sums_up_clears_first_and_then_sums_up(model: str) -> None:
    assert kinds(model) == ["clear_tool_uses_20250919", "compact_20260112"]


@pytest.mark.parametrize("model", ["claude-opus-4-0", "claude-haiku-4-5"])
def test_a_claude_that_does_not_sum_up_clears(model: str) -> None:
    assert kinds(model) == ["clear_tool_uses_20250919"]


def test_both_begin_at_the_number_that_was_given() -> None:
    triggers = [edit["trigger"] for edit in edits("claude-opus-5-0", 70_000)]
    assert triggers == [{"type": "input_tokens", "value": 70_000}] * 2


@pytest.mark.parametrize("model", ["m", "claude-3-7-sonnet"])
def test_older_models_and_those_of_other_makers_do_not_offer_it(model: str) -> None:
    with pytest.raises(NotOffered, match=rf"settings\.compact_at is not offered by {model}: .*leave compact_at out"):
        asked(model)


def test_a_number_below_what_a_summary_needs_is_refused() -> None:
    assert kinds("claude-opus-5-0", LEAST_COMPACTED)
    with pytest.raises(NotOffered, match="50,000 tokens"):
        asked("claude-opus-5-0", LEAST_COMPACTED - 1)


def test_a_claude_that_only_clears_takes_a_smaller_number() -> None:
    assert kinds("claude-haiku-4-5", 10_000) == ["clear_tool_uses_20250919"]


def test_a_request_has_the_headers_of_what_it_asks_for() -> None:
    both = asked("claude-opus-5-0", 60_000).headers["anthropic-beta"]
    assert both == f"{CLEARING_BETA},{COMPACTING_BETA}"
    assert asked("claude-haiku-4-5", 60_000).headers["anthropic-beta"] == CLEARING_BETA
    said = AssistantMessage("a", (Text("compaction"),))
    assert "anthropic-beta" not in asked("claude-opus-5-0", None, said).headers


def test_a_request_with_a_summary_of_earlier_has_its_header_also_where_none_is_asked_for() -> None:
    model = "claude-opus-5-0"
    said = AssistantMessage("a", (Reasoning("", SUMMARY, CLAUDE.route(model)), Text("so")))
    headers = asked(model, None, UserMessage("t", (Text("hi"),)), said).headers
    assert headers["anthropic-beta"] == COMPACTING_BETA


@pytest.mark.parametrize("provider", ["openai", "azure-responses"])
def test_those_who_document_it_are_asked_to_compact(provider: str) -> None:
    place = Endpoint(provider=provider, dialect="responses", base_url="https://x")
    assert context_management(place, "m", 9_000) == [{"type": "compaction", "compact_threshold": 9_000}]


@pytest.mark.parametrize("provider", ["xai", "mine"])
def test_others_who_speak_the_dialect_are_not_asked(provider: str) -> None:
    place = Endpoint(provider=provider, dialect="responses", base_url="https://x")
    with pytest.raises(NotOffered, match=r"not offered by .*:m: .*settings\.extra") as caught:
        context_management(place, "m", 9_000)
    assert (caught.value.kind, caught.value.retryable) == ("not_offered", False)


@pytest.mark.parametrize("at", [0, -1, 1.5, True, "100000"])
def test_the_setting_is_a_number_of_tokens(at: Any) -> None:
    with pytest.raises(InvalidNumber, match=r"settings\.compact_at"):
        Settings(compact_at=at)


def test_settings_without_it_are_recorded_as_before() -> None:
    assert encode(Settings()) == b"{}"
