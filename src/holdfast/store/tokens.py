"""Wait tokens: bearer capabilities signed with the store's secret."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac

import msgspec

from holdfast.errors import WaitUnknown

_PREFIX = "hfw1"
_MAX_TOKEN = 4_096


def mint(secret: bytes, journal: str, name: str) -> str:
    """The token of a wait: the same for the same wait, at any time."""
    claim = msgspec.json.encode([journal, name])
    return f"{_PREFIX}.{_armour(claim)}.{_armour(_sign(secret, claim))}"


def is_token(text: str) -> bool:
    """Whether this looks like a token, good or bad."""
    return text.startswith(f"{_PREFIX}.")


def verify(secret: bytes, token: object) -> tuple[str, str]:
    """Journal and name of the wait that `token` stands for, or `WaitUnknown`."""
    if not isinstance(token, str) or len(token) > _MAX_TOKEN:
        raise WaitUnknown
    prefix, _, rest = token.partition(".")
    body, _, signature = rest.partition(".")
    try:
        claim, signed = _bare(body), _bare(signature)
    except (binascii.Error, ValueError):
        raise WaitUnknown from None
    if not hmac.compare_digest(signed, _sign(secret, claim)) or prefix != _PREFIX:
        raise WaitUnknown
    journal, name = msgspec.json.decode(claim, type=tuple[str, str])
    return journal, name


def _sign(secret: bytes, claim: bytes) -> bytes:
    return hmac.new(secret, b"holdfast:wait:1\n" + claim, hashlib.sha256).digest()


def _armour(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _bare(text: str) -> bytes:
    raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    if _armour(raw) != text:  # one token, one spelling: unused low bits must be zero
        raise ValueError(text)
    return raw
