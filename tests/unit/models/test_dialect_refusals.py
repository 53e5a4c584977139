"""Refusals that are no matter of money, how long they ask to wait, and what of them may be repeated."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest
from tests.every import every

from holdfast.errors import ModelError
from holdfast.models.credentials import redact_error
from holdfast.models.dialect import Endpoint, Frame
from holdfast.models.errors import classify_error, classify_stream_error
from holdfast.models.registry import load_dialect
from holdfast.models.retry import delay_from_details, delay_from_message, delay_from_rate_limits

DIALECTS = ("anthropic", "chat", "google", "responses")
RESET = 1_794_757_800
DATE = "Sun, 15 Nov 2026 15:49:40 GMT"
"""Twenty seconds before."""

UPGRADE = "Rate limit reached on tokens per minute. Upgrade at https://console.example/settings/billing"
PAYMENT = "Rate limit reached. You can add a payment method at https://example.com/account/billing."
QUOTA = "You exceeded your current quota, please check your plan and billing details."


def refused(error: dict[str, Any], status: int = 429, **headers: str) -> ModelError:
    return classify_error(status, headers, json.dumps({"error": error}).encode())


# ---- money, or time --------------------------------------------------------------------------------------------------


@every(
    "error",
    [
        {"message": UPGRADE, "type": "tokens", "code": "rate_limit_exceeded"},
        {"message": PAYMENT, "type": "requests", "code": "rate_limit_exceeded"},
        {"message": UPGRADE},
        {"message": QUOTA, "code": 429, "status": "RESOURCE_EXHAUSTED"},
        {"message": f"{QUOTA} Please retry in 22.5s."},
        {"message": "Insufficient credits for more. Slow down.", "code": "rate_limit_exceeded"},
    ],
    ids=["address", "payment", "no code", "google", "with a wait", "code before words"],
)
def test_a_limit_that_passes_is_no_matter_of_money(error: dict[str, Any]) -> None:
    found = refused(error)
    assert (found.kind, found.retryable) == ("rate_limited", True)


@every(
    "error",
    [
        {"message": QUOTA, "type": "insufficient_quota", "code": "insufficient_quota"},
        {"message": QUOTA},
        {"message": "no", "code": "billing_hard_limit_reached"},
        {"message": "no", "details": [{"reason": "BILLING_DISABLED"}]},
        {"message": "Insufficient Balance"},
        {"message": "Your team has used all available credits or reached its monthly spending limit."},
        {"message": "Your prepayment credits are depleted.", "status": "RESOURCE_EXHAUSTED"},
    ],
    ids=["code", "quota", "billing code", "reason", "balance", "credits", "depleted"],
)
def test_what_only_money_helps_is_a_matter_of_money(error: dict[str, Any]) -> None:
    found = refused(error)
    assert (found.kind, found.retryable) == ("billing", False)


def test_a_limit_in_the_middle_of_a_stream_is_no_matter_of_money() -> None:
    found = classify_stream_error({"message": UPGRADE, "code": "rate_limit_exceeded"})
    assert (found.kind, found.retryable) == ("rate_limited", True)


# ---- how long --------------------------------------------------------------------------------------------------------


@every(
    ("words", "seconds"),
    [
        ("Please try again in 5.4s. More at", 5.4),
        ("Please retry in 22.516s.", 22.516),
        ("Please retry after 9 seconds.", 9),
        ("try again in 2 minutes", 120),
        ("try again in 1 hour 2 minutes 3 seconds", 3723),
        ("try again in 1h2m3.5s", 3723.5),
        ("retry in 250 milliseconds", 0.25),
        ("try again in 20ms", 0.02),
        ("try again in 7m12s", 432),
        ("try again in a moment", None),
        ("retry in 3 months", None),
    ],
)
def test_words_say_how_long_to_wait(words: str, seconds: float | None) -> None:
    assert delay_from_message(words) == seconds


def test_the_longest_delay_of_the_details_counts() -> None:
    assert (
        delay_from_details([{"retryDelay": "3s"}, {"retryDelay": "22.5s"}, {"retryDelay": 99}, {"retryDelay": "soon"}])
        == 22.5
    )


def test_the_chat_dialect_takes_the_longer_of_delay_and_words_that_google_tells() -> None:
    info = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "22s"}
    error = {"message": f"{QUOTA} Please retry in 22.5s.", "status": "RESOURCE_EXHAUSTED", "details": [info]}
    assert classify_error(429, {}, json.dumps([{"error": error}]).encode()).retry_after == 22.5


@every(
    ("headers", "seconds"),
    [
        ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "6m0s"}, 360),
        ({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "12ms"}, 0.012),
        ({"x-ratelimit-remaining-tokens-minute": "0", "x-ratelimit-reset-tokens-minute": "7.5"}, 7.5),
        ({"x-ratelimit-remaining": "0", "x-ratelimit-reset": str(RESET)}, 20),
        ({"x-ratelimit-remaining": "0", "x-ratelimit-reset": str(RESET * 1_000)}, 20),
        ({"x-ratelimit-remaining": "0", "x-ratelimit-reset": str(RESET - 90)}, 0),
        ({"x-ratelimit-remaining": "0", "x-ratelimit-reset": "tomorrow"}, None),
        ({"x-ratelimit-remaining": "0"}, None),
        ({"x-ratelimit-remaining-requests": "7", "x-ratelimit-reset-requests": "6m0s"}, None),
        (
            {
                "x-ratelimit-remaining-requests": "0",
                "x-ratelimit-reset-requests": "1s",
                "x-ratelimit-remaining-tokens": "0",
                "x-ratelimit-reset-tokens": "3s",
            },
            3,
        ),
    ],
)
def test_a_limit_that_is_used_up_says_when_it_is_lifted(headers: dict[str, str], seconds: float | None) -> None:
    assert delay_from_rate_limits(headers, DATE) == seconds


def test_a_moment_says_nothing_where_the_time_of_the_answer_is_not_told() -> None:
    assert delay_from_rate_limits({"x-ratelimit-remaining": "0", "x-ratelimit-reset": str(RESET)}) is None


@pytest.mark.parametrize("name", ["chat", "responses"])
def test_limits_in_the_headers_say_how_long_to_wait(name: str) -> None:
    headers = {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "8s"}
    body = b'{"error":{"message":"slow down","code":"rate_limit_exceeded"}}'
    assert classify_error(429, headers, body).retry_after == 8


@pytest.mark.parametrize("name", ["chat", "responses"])
def test_limits_say_nothing_about_another_failure(name: str) -> None:
    headers = {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "8s"}
    assert classify_error(500, headers, b"{}").retry_after is None


def test_limits_in_the_body_say_how_long_to_wait() -> None:
    limits = {"X-RateLimit-Limit": "20", "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": f"{RESET * 1_000}"}
    error = {"message": "Rate limit exceeded: free-models-per-min. ", "code": 429, "metadata": {"headers": limits}}
    assert refused(error, date=DATE).retry_after == 20


def test_what_the_header_asks_for_stands_above_the_limits() -> None:
    limits = {"x-ratelimit-remaining": "0", "x-ratelimit-reset": "50"}
    assert classify_error(429, {"retry-after": "2", **limits}, b"{}").retry_after == 2


# ---- what may be repeated --------------------------------------------------------------------------------------------

KEYS = ["Canary7Qx/f83+Zk2Lm9Wv4Rt6Yp1", "sk-canary7Qx.f83/Zk2+Lm9=Wv4Rt6Yp1", "AIzaCanary7Qxf83Zk2Lm9Wv4Rt/6Yp1"]


def said_in_stream(name: str, message: str, **more: str) -> ModelError:
    frame = {"type": "error", "error": {"message": message, "type": "invalid_request_error", **more}}
    reader = load_dialect(name).reader(Endpoint(provider="here", dialect=name, base_url="https://here"), "m")
    with pytest.raises(ModelError) as caught:
        reader.feed(Frame("error", json.dumps(frame).encode()))
    return caught.value


@every("key", KEYS, ids=["plain", "sk", "AIza"])
@every("name", DIALECTS)
def test_no_piece_of_a_key_is_left_of_an_error_in_a_stream_wherever_the_key_stands(name: str, key: str) -> None:
    pieces = [key[at : at + 6] for at in range(len(key) - 5)]
    for before in (0, 470, *range(955, 1_005, 3)):
        error = said_in_stream(name, f"{'x' * before} {key} tail", failed_generation="y")
        redact_error(error, key)
        assert not [piece for piece in pieces if piece in error.message]


def test_what_the_model_had_made_follows_all_that_was_said() -> None:
    message = said_in_stream("chat", "w" * 600, failed_generation="<call>").message
    assert message == f"{'w' * 600} The model had made: <call>"


# ---- words that can't be written -------------------------------------------------------------------------------------


NESTING: Final = (
    '{"error":{"message":%s}}',
    '{"error":{"metadata":{"raw":%s},"message":"x"}}',
    '{"error":%s}',
    '{"detail":%s}',
    '{"error":{"details":[%s],"message":"x"}}',
)
# What can just be read may be too deep to be written: where that begins depends on how deep the caller is.
DEPTHS: Final = range(840, 990)


@every("name", DIALECTS)
@every("shape", NESTING)
def test_an_error_that_is_nested_deeply_is_an_error_all_the_same(name: str, shape: str) -> None:
    _check_nested(name, shape, DEPTHS[::10])


@pytest.mark.torture
@every("name", DIALECTS)
@every("shape", NESTING)
def test_an_error_that_is_nested_to_any_depth_is_an_error_all_the_same(name: str, shape: str) -> None:
    _check_nested(name, shape, DEPTHS)


def _check_nested(name: str, shape: str, depths: range) -> None:
    for depth in depths:
        body = (shape % ("[" * depth + "]" * depth)).encode()
        assert classify_error(400, {}, body).status == 400
        reader = load_dialect(name).reader(Endpoint(provider="here", dialect=name, base_url="https://here"), "m")
        with pytest.raises(ModelError):
            reader.read_body(body)
