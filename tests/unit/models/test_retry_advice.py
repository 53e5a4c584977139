"""What a provider says itself about another try, and answers whose status says less than their words."""

from __future__ import annotations

import pytest

from holdfast.errors import ContextOverflow, ModelError
from holdfast.models.errors import classify_error
from holdfast.models.retry import Retry, is_retryable, retry_advice, retry_delay


@pytest.mark.parametrize(
    ("said", "told"), [("true", True), ("False", False), (" true ", True), ("", None), ("maybe", None)]
)
def test_a_header_says_whether_another_try_is_of_use(said: str, told: bool | None) -> None:
    assert retry_advice({"x-should-retry": said}) is told


def test_where_there_is_no_such_header_nothing_is_said() -> None:
    assert retry_advice({}) is None


@pytest.mark.parametrize("told", [True, False])
def test_what_the_provider_says_stands_above_what_would_be_tried_again_by_itself(told: bool) -> None:
    assert is_retryable(ModelError("no", kind="server_error", status=500, retryable=True), told) is told
    assert is_retryable(ModelError("no", kind="odd", status=418), told) is told


@pytest.mark.parametrize("status", [400, 401, 403, 404])
def test_a_refusal_for_good_is_not_tried_again_whatever_the_provider_says(status: int) -> None:
    assert not is_retryable(ModelError("no", kind="bad_request", status=status), True)


def test_a_conversation_that_is_too_long_is_not_sent_again_whatever_the_provider_says() -> None:
    assert not is_retryable(ContextOverflow("too long"), True)


def test_what_the_provider_says_does_not_lift_the_number_of_tries() -> None:
    error = ModelError("no", kind="server_error", status=500)
    policy = Retry(attempts=3)
    waits = [retry_delay(policy, error, failures=tried, elapsed=0, chance=0, advice=True) for tried in (1, 2, 3)]
    assert waits == [0.5, 1.0, None]


def test_a_call_that_the_provider_could_not_read_is_sampled_again_within_the_number_of_tries() -> None:
    body = b'{"error":{"message":"Failed to call a function.","type":"invalid_request_error","code":"tool_use_failed"}}'
    error = classify_error(400, {}, body)
    waits = [retry_delay(Retry(attempts=2), error, failures=tried, elapsed=0, chance=0) for tried in (1, 2)]
    assert waits == [0.5, None]


def test_a_request_that_is_refused_is_not_sent_again() -> None:
    error = classify_error(400, {}, b'{"error":{"message":"no","type":"invalid_request_error"}}')
    assert not is_retryable(error)
