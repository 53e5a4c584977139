"""Errors of providers: the same kinds in all dialects, also where codes, statuses and words disagree."""

from __future__ import annotations

import json
from typing import Any

from tests.every import every

from holdfast.models.attachments import is_text_type
from holdfast.models.errors import classify_error, classify_stream_error

BUSY = "Number of input tokens has exceeded your per-minute rate limit"


def _answered(status: int, /, **error: Any) -> str:
    return classify_error(status, {}, json.dumps({"error": error}).encode()).kind


def _streamed(**error: Any) -> tuple[str, bool]:
    found = classify_stream_error({"type": "error", "error": error})
    return found.kind, found.retryable


@every("said", [BUSY, "Too many tokens, please wait before trying again."])
def test_a_rate_limit_inside_a_stream_is_no_overflow_although_it_speaks_of_tokens(said: str) -> None:
    assert _streamed(type="rate_limit_error", message=said) == ("rate_limited", True)


@every(
    ("code", "said"),
    [
        ("api_error", "Internal validation failed"),
        ("server_error", "The backend has no permission for this shard"),
        ("internal_error", "upstream said bad_request"),
        ("server_error", "shard not_found"),
    ],
)
def test_a_server_error_inside_a_stream_is_retried_whatever_its_message_says(code: str, said: str) -> None:
    assert _streamed(type=code, message=said) == ("server_error", True)


def test_an_overflow_inside_a_stream_is_one_although_the_code_is_that_of_the_server() -> None:
    assert _streamed(type="api_error", message="prompt is too long: 210000 tokens")[0] == "context_overflow"


def test_a_body_that_a_gateway_finds_too_large_is_a_bad_request() -> None:
    assert classify_error(413, {}, b"Request Entity Too Large").kind == "bad_request"


@every(
    "error",
    [{"type": "request_too_large", "message": "Request exceeds the maximum size"}, {"message": "prompt is too long"}],
)
def test_a_conversation_that_the_provider_finds_too_large_is_an_overflow(error: dict[str, str]) -> None:
    assert _answered(413, **error) == "context_overflow"


def test_a_string_that_is_too_long_is_an_overflow_only_in_the_conversation() -> None:
    code = "string_above_max_length"
    too_long = "string too long. Expected a string with maximum length 1024"
    assert _answered(400, code=code, message=f"Invalid 'tools[0].function.description': {too_long}") == "bad_request"
    assert _answered(400, code=code, message=f"Invalid 'messages[3].content': {too_long}") == "context_overflow"
    assert _answered(400, code=code, message=f"Invalid 'input[0].content': {too_long}") == "context_overflow"


def test_an_overflow_that_a_local_server_reports_as_its_own_error_is_one() -> None:
    assert _answered(500, message="the request exceeds the available context size") == "context_overflow"


def test_a_missing_model_is_not_found_although_its_code_says_unavailable() -> None:
    assert _answered(404, code="model_unavailable", message="no such model") == "not_found"


@every("status", [403, 429])
def test_an_account_without_money_is_billing_although_the_provider_names_a_pause(status: int) -> None:
    said = {403: "Check the billing account of the project", 429: "Your prepayment credits are depleted"}[status]
    pause = [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "30s"}]
    assert _answered(status, status="RESOURCE_EXHAUSTED", message=said, details=pause) == "billing"


@every("said", ["Bearer  abcdefgh12345678 is not valid", "xAIzaSyA1234567890abcdef is not valid"])
def test_a_key_is_removed_wherever_it_stands_in_a_message(said: str) -> None:
    message = classify_error(401, {}, json.dumps({"error": {"message": said}}).encode()).message
    assert "abcdef" not in message


@every("kind", ["image/svg+xml", "model/gltf+json", "application/ld+json", "text/csv", "application/json; q=1"])
def test_files_of_these_types_are_text(kind: str) -> None:
    assert is_text_type(kind)


@every("kind", ["image/png", "application/pdf", "application/octet-stream", "audio/mpeg", "model/gltf"])
def test_files_of_these_types_are_not(kind: str) -> None:
    assert not is_text_type(kind)
