"""How a provider is asked to shorten a conversation, and where it is not asked."""

from __future__ import annotations

from typing import Any, Final

import pytest

from holdfast.errors import InvalidNumber
from holdfast.errors.world import NotOffered
from holdfast.messages import Settings, encode
from holdfast.models.anthropic import CLEARING_BETA, COMPACTING_BETA, LEAST_COMPACTED, context_edits, required_betas
from holdfast.models.dialect import Endpoint
from holdfast.models.responses import context_management

SUMMARY: Final = b'{"type":"compaction","content":"so far"},{"type":"text","text":"so"}'


def kinds(version: tuple[int, int], at: int = 100_000) -> list[str]:
    return [edit["type"] for edit in context_edits("claude", version, at).field["edits"]]


@pytest.mark.parametrize("version", [(4, 6), (5, 0), (99, 0)])
def test_a_claude_that_sums_up_clears_first_and_then_sums_up(version: tuple[int, int]) -> None:
    assert kinds(version) == ["clear_tool_uses_20250919", "compact_20260112"]


@pytest.mark.parametrize("version", [(4, 0), (4, 5)])
def test_a_claude_that_does_not_sum_up_clears(version: tuple[int, int]) -> None:
    assert kinds(version) == ["clear_tool_uses_20250919"]


def test_both_begin_at_the_number_that_was_given() -> None:
    edits = context_edits("claude", (5, 0), 70_000).field["edits"]
    assert [edit["trigger"] for edit in edits] == [{"type": "input_tokens", "value": 70_000}] * 2


@pytest.mark.parametrize("version", [(0, 0), (3, 7)])
def test_older_models_and_those_of_other_makers_do_not_offer_it(version: tuple[int, int]) -> None:
    with pytest.raises(NotOffered, match=r"settings\.compact_at is not offered by m: .*leave compact_at out"):
        context_edits("m", version, 100_000)


def test_a_number_below_what_a_summary_needs_is_refused() -> None:
    assert kinds((5, 0), LEAST_COMPACTED)
    with pytest.raises(NotOffered, match="50,000 tokens"):
        context_edits("claude", (5, 0), LEAST_COMPACTED - 1)


def test_a_claude_that_only_clears_takes_a_smaller_number() -> None:
    assert kinds((4, 5), 10_000) == ["clear_tool_uses_20250919"]


def test_a_request_has_the_headers_of_what_it_asks_for() -> None:
    assert required_betas(context_edits("claude", (5, 0), 60_000), [b""]) == (CLEARING_BETA, COMPACTING_BETA)
    assert required_betas(context_edits("claude", (4, 5), 60_000), [b""]) == (CLEARING_BETA,)
    assert required_betas(None, [b'{"type":"text","text":"compaction"}']) == ()


def test_a_request_with_a_summary_of_earlier_has_its_header_also_where_none_is_asked_for() -> None:
    assert required_betas(None, [b'{"type":"text","text":"hi"}', SUMMARY]) == (COMPACTING_BETA,)


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
