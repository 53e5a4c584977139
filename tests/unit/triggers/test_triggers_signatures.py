"""Webhooks: who signed, when, and which delivery it is."""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.every import every

from holdfast.triggers.definition import WebhookSource, webhook
from holdfast.triggers.signatures import (
    MAX_BODY,
    SignatureVerdict,
    challenge_reply,
    check_signature,
    lower_headers,
    webhook_payload,
)

SECRET: Final = "It's a Secret to Everybody"  # noqa: S105  the example in GitHub's documentation
NOW: Final = 1_800_000_000_000
AT: Final = str(NOW // 1000)


@pytest.mark.parametrize("secret", ["whsec_", "whsec_ ", "", "   "])
def test_a_secret_without_a_key_refuses_everything(secret: str) -> None:
    signed = base64.b64encode(hmac.new(b"", f"msg_1.{AT}.{{}}".encode(), hashlib.sha256).digest()).decode()
    headers = {"webhook-id": "msg_1", "webhook-timestamp": AT, "webhook-signature": f"v1,{signed}"}
    source = webhook("standard", secret="env:X")  # noqa: S106
    assert check_signature(source, secret, headers, b"{}", NOW).refusal == "the webhook has no key to check it with"


def _hex(text: bytes, secret: str = SECRET) -> str:
    return hmac.new(secret.encode(), text, hashlib.sha256).hexdigest()


def _github(body: bytes) -> dict[str, str]:
    return {"X-Hub-Signature-256": f"sha256={_hex(body)}", "X-GitHub-Delivery": "72d3162e-cc78"}


def _stripe(body: bytes, at: str = AT) -> dict[str, str]:
    return {"Stripe-Signature": f"t={at},v1={'0' * 64},v1={_hex(at.encode() + b'.' + body)},v0=abc"}


def _slack(body: bytes, at: str = AT) -> dict[str, str]:
    signed = b"v0:" + at.encode() + b":" + body
    return {"X-Slack-Signature": f"v0={_hex(signed)}", "X-Slack-Request-Timestamp": at}


def _standard(body: bytes, at: str = AT) -> dict[str, str]:
    signed = b"msg_1." + at.encode() + b"." + body
    made = base64.b64encode(hmac.new(SECRET.encode(), signed, hashlib.sha256).digest()).decode()
    return {"Webhook-Id": "msg_1", "Webhook-Timestamp": at, "Webhook-Signature": f"v1,{made} v2,xyz"}


def _generic(body: bytes) -> dict[str, str]:
    return {"X-Signature-256": _hex(body), "X-Delivery-Id": "d-1"}


MAKERS: Final[dict[Any, Any]] = {
    "github": _github,
    "stripe": _stripe,
    "slack": _slack,
    "standard": _standard,
    "generic": _generic,
}
SCHEMES: Final = list(MAKERS)


def _judged(source: WebhookSource, headers: dict[str, str], body: bytes, now: int = NOW) -> SignatureVerdict:
    return check_signature(source, SECRET, lower_headers(headers), body, now)


def test_the_example_in_the_documentation_of_github_is_good() -> None:
    given_there = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
    headers = {"X-Hub-Signature-256": given_there, "X-GitHub-Delivery": "1"}
    assert _judged(webhook("github"), headers, b"Hello, World!").refusal == ""


def test_the_example_in_the_documentation_of_slack_is_good() -> None:
    body = (
        b"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V&channel_name="
        b"foobar&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text=&response_url=https%3A%2F%2F"
        b"hooks.slack.com%2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN&trigger_id="
        b"398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c"
    )
    headers = {
        "X-Slack-Signature": "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503",
        "X-Slack-Request-Timestamp": "1531420618",
    }
    found = check_signature(
        webhook("slack"), "8f742231b10e8888abcd99yyyzzz85a5", lower_headers(headers), body, 1_531_420_618_000
    )
    assert found.refusal == ""


@pytest.mark.parametrize("scheme", SCHEMES)
def test_what_is_signed_rightly_is_good_and_names_its_delivery(scheme: Any) -> None:
    body = b'{"id": "evt_1", "event_id": "Ev1"}'
    found = _judged(webhook(scheme), MAKERS[scheme](body), body)
    assert found.refusal == ""
    assert found.delivery in {"72d3162e-cc78", "evt_1", "Ev1", "msg_1", "d-1"}


@pytest.mark.parametrize("scheme", SCHEMES)
@given(body=st.binary(max_size=200), flip=st.integers(0, 10**6))
def test_one_bit_that_differs_is_refused(scheme: Any, body: bytes, flip: int) -> None:
    changed = bytearray(body or b"x")
    changed[flip % len(changed)] ^= 1 << flip % 8
    headers = MAKERS[scheme](body or b"x")
    assert _judged(webhook(scheme), headers, bytes(changed)).refusal == "the signature does not fit"


@pytest.mark.parametrize("scheme", SCHEMES)
def test_another_secret_is_refused(scheme: Any) -> None:
    found = check_signature(webhook(scheme), "another secret", lower_headers(MAKERS[scheme](b"{}")), b"{}", NOW)
    assert found.refusal == "the signature does not fit"


@pytest.mark.parametrize("scheme", SCHEMES)
@given(headers=st.dictionaries(st.text(max_size=30), st.text(max_size=60), max_size=6), body=st.binary(max_size=60))
def test_whatever_comes_is_judged_and_never_raises(scheme: Any, headers: dict[str, str], body: bytes) -> None:
    assert _judged(webhook(scheme), headers, body).refusal


@pytest.mark.parametrize("scheme", SCHEMES)
def test_headers_of_the_right_name_that_hold_nonsense_are_refused(scheme: Any) -> None:
    headers = dict.fromkeys(MAKERS[scheme](b"{}"), "v0=t=,v1=, sha256= ,,\u00e9\u20ac")
    assert _judged(webhook(scheme), headers, b"{}").refusal


@every("scheme", ["stripe", "slack", "standard"])
@every("away", [-301, 301, 10**6])
def test_a_request_that_is_old_or_from_the_future_is_refused_although_it_is_signed(scheme: Any, away: int) -> None:
    body = b"{}"
    found = _judged(webhook(scheme), MAKERS[scheme](body, str(NOW // 1000 - away)), body)
    assert "seconds away" in found.refusal


@pytest.mark.parametrize("scheme", ["github", "generic"])
def test_a_scheme_that_signs_no_time_says_so(scheme: Any) -> None:
    assert not _judged(webhook(scheme), MAKERS[scheme](b"{}"), b"{}").timed


def test_a_slack_command_without_an_id_is_named_by_what_was_signed() -> None:
    first = _judged(webhook("slack"), _slack(b"text=hi"), b"text=hi").delivery
    later = str(NOW // 1000 + 1)
    assert first != _judged(webhook("slack"), _slack(b"text=hi", later), b"text=hi").delivery
    assert first == _judged(webhook("slack"), _slack(b"text=hi"), b"text=hi").delivery


def test_a_body_that_is_too_long_is_refused_before_it_is_looked_at() -> None:
    body = b"x" * (MAX_BODY + 1)
    assert "bytes" in _judged(webhook("generic"), _generic(body), body).refusal


def test_headers_of_a_generic_webhook_can_be_chosen() -> None:
    source = webhook("generic", signature_header="X-Mine", id_header="X-Id")
    assert _judged(source, {"x-mine": f"sha256={_hex(b'{}')}", "X-ID": "7"}, b"{}") == SignatureVerdict("", "7")


def test_the_payload_is_json_or_a_form_or_a_text() -> None:
    form = {"content-type": "application/x-www-form-urlencoded; charset=utf-8"}
    assert webhook_payload({}, b'{"a": 1}') == {"a": 1}
    assert webhook_payload(form, b"text=hi&empty=") == {"text": "hi", "empty": ""}
    assert webhook_payload({}, b"plain") == "plain"


def test_the_challenge_of_slack_is_answered_and_of_nobody_else() -> None:
    said = {"type": "url_verification", "challenge": "abc"}
    assert challenge_reply(webhook("slack"), said) == "abc"
    assert challenge_reply(webhook("github"), said) is None
