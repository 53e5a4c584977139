"""Webhook signatures: check signature and age of a request, and identify its delivery. Pure.

Signatures are compared in constant time, over the received bytes. The time counts only if it is signed.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast
from urllib.parse import parse_qsl

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.triggers.definition import WebhookSource


MAX_BODY: Final = 768 * 1024
"""Longest body of a request."""
MAX_SIGNATURES: Final = 16
"""Most signatures of one request to check."""
SIGNATURE_HEADER: Final = "x-signature-256"
ID_HEADER: Final = "x-delivery-id"
_ID: Final = re.compile(r"[\w:+=-][\w.:+=-]{0,119}", re.ASCII)
_DIGITS: Final = re.compile(r"\d{1,15}", re.ASCII)


class SignatureVerdict(NamedTuple):
    """The verdict on a request; `refusal` is empty if it is good."""

    refusal: str = ""
    delivery: str = ""
    """The id of the delivery; a repeated delivery has the same one."""
    timed: bool = False
    """The signature covers the time, so old requests can't be replayed."""


class _SignedParts(NamedTuple):
    text: bytes
    signatures: Sequence[bytes]
    """Candidate signatures; one must match."""
    at: int | None
    delivery: str
    base64: bool = False


def lower_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Headers with lower-case names."""
    return {str(name).lower(): str(value).strip() for name, value in headers.items()}


def check_signature(
    source: WebhookSource, secret: str, headers: Mapping[str, str], body: bytes, now: int
) -> SignatureVerdict:
    """Check a request. `headers` have lower-case names; `now` is wall milliseconds."""
    if len(body) > MAX_BODY:
        return SignatureVerdict(f"the body has {len(body):,} bytes, the limit is {MAX_BODY:,}")
    if not has_key(source, secret):
        return SignatureVerdict("the webhook has no key to check it with")
    signed = _READERS[source.scheme](source, headers, body)
    if isinstance(signed, str):
        return SignatureVerdict(signed)
    if not _is_signed(signed, _key(source, secret)):
        return SignatureVerdict("the signature does not fit")
    # Only a valid signature makes the time trustworthy.
    if signed.at is not None and abs(now - signed.at * 1000) > source.tolerance_ms:
        return SignatureVerdict(
            f"it is {abs(now // 1000 - signed.at):,} seconds away from now, {source.tolerance_ms // 1000:,} are allowed"
        )
    return SignatureVerdict("", signed.delivery, signed.at is not None)


def _is_signed(signed: _SignedParts, key: bytes) -> bool:
    made = hmac.new(key, signed.text, hashlib.sha256)
    wanted = base64.b64encode(made.digest()) if signed.base64 else made.hexdigest().encode()
    good = False
    for given in signed.signatures[:MAX_SIGNATURES]:
        good |= hmac.compare_digest(given, wanted)
    return good


def _key(source: WebhookSource, secret: str) -> bytes:
    if source.scheme == "standard" and secret.startswith("whsec_"):
        try:
            return base64.b64decode(secret.removeprefix("whsec_"), validate=True)
        except (binascii.Error, ValueError):
            return secret.encode()
    return secret.encode()


def has_key(source: WebhookSource, secret: str) -> bool:
    """True if the secret holds a key: more than a prefix or blanks."""
    return secret.strip() not in {"", "whsec_"} and bool(_key(source, secret).strip())


def _github(_: WebhookSource, headers: Mapping[str, str], body: bytes) -> _SignedParts | str:
    given = headers.get("x-hub-signature-256", "")
    if not given.startswith("sha256="):
        return "it has no header X-Hub-Signature-256"
    delivery = headers.get("x-github-delivery", "")
    if not _ID.fullmatch(delivery):
        return "it has no header X-GitHub-Delivery"
    return _SignedParts(body, [_bytes(given.removeprefix("sha256="))], None, delivery)


def _stripe(_: WebhookSource, headers: Mapping[str, str], body: bytes) -> _SignedParts | str:
    parts = [part.strip().partition("=") for part in headers.get("stripe-signature", "").split(",")]
    times = [value for name, _, value in parts if name == "t"]
    signatures = [_bytes(value) for name, _, value in parts if name == "v1"]
    if len(times) != 1 or not _DIGITS.fullmatch(times[0]) or not signatures:
        return "it has no header Stripe-Signature with t= and v1="
    found = _json(body)
    return _SignedParts(
        times[0].encode() + b"." + body, signatures, int(times[0]), _field_text(found, "id") or _digest(body)
    )


def _slack(_: WebhookSource, headers: Mapping[str, str], body: bytes) -> _SignedParts | str:
    at = headers.get("x-slack-request-timestamp", "")
    given = headers.get("x-slack-signature", "")
    if not _DIGITS.fullmatch(at) or not given.startswith("v0="):
        return "it has no headers X-Slack-Signature and X-Slack-Request-Timestamp"
    text = b"v0:" + at.encode() + b":" + body
    # A command or a button has no id, so the signed content identifies it.
    delivery = _field_text(_json(body), "event_id") or _digest(text)
    return _SignedParts(text, [_bytes(given.removeprefix("v0="))], int(at), delivery)


def _standard(_: WebhookSource, headers: Mapping[str, str], body: bytes) -> _SignedParts | str:
    delivery, at = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    given = [part.partition(",") for part in headers.get("webhook-signature", "").split()]
    signatures = [_bytes(value) for version, _, value in given if version == "v1"]
    if not _ID.fullmatch(delivery) or not _DIGITS.fullmatch(at) or not signatures:
        return "it has no headers webhook-id, webhook-timestamp and webhook-signature"
    text = delivery.encode() + b"." + at.encode() + b"." + body
    return _SignedParts(text, signatures, int(at), delivery, base64=True)


def _generic(source: WebhookSource, headers: Mapping[str, str], body: bytes) -> _SignedParts | str:
    header = source.signature_header or SIGNATURE_HEADER
    given = headers.get(header, "").removeprefix("sha256=")
    if not given:
        return f"it has no header {header}"
    delivery = headers.get(source.id_header or ID_HEADER, "")
    if delivery and not _ID.fullmatch(delivery):
        return f"its {source.id_header or ID_HEADER} can't name a delivery"
    return _SignedParts(body, [_bytes(given.lower())], None, delivery or _digest(body))


_READERS: Final = {"github": _github, "stripe": _stripe, "slack": _slack, "standard": _standard, "generic": _generic}


def webhook_payload(headers: Mapping[str, str], body: bytes) -> Any:  # any JSON value
    """The payload of a request: JSON, form fields, or text."""
    found = _json(body)
    if found is not None:
        return found
    text = body.decode("utf-8", errors="replace")
    if headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
        return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=1_000))
    return text


def challenge_reply(source: WebhookSource, payload: object) -> str | None:
    """The reply to Slack's challenge, with which it verifies an address; None for other requests."""
    if source.scheme != "slack" or not isinstance(payload, dict):
        return None
    said = cast("dict[str, Any]", payload)
    challenge = said.get("challenge")
    return challenge if said.get("type") == "url_verification" and isinstance(challenge, str) else None


def _json(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _field_text(found: object, field: str) -> str:
    value = cast("dict[str, Any]", found).get(field) if isinstance(found, dict) else None
    return value if isinstance(value, str) and _ID.fullmatch(value) else ""


def _digest(signed: bytes) -> str:
    return hashlib.sha256(signed).hexdigest()


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", errors="replace")
