"""What an answer from outside says: a value, or that there will be none, and why. Pure."""

from __future__ import annotations

from typing import Any, Final, cast

import msgspec

from holdfast.errors import InvalidArgument
from holdfast.names import check_text

FAILURE: Final = "$holdfast.error"
"""The one key of an answer that says why there is none."""
LONGEST: Final = 2_000
"""Longest reason, in characters."""


def answer_of(value: object, error: str | None) -> object:
    """The answer to write down, for a value or for an error; not for both."""
    if error is not None:
        if value is not None:
            raise InvalidArgument("error", error, "an answer is a value or an error, not both")
        if not check_text("error", error, LONGEST).strip():
            raise InvalidArgument("error", error, "words that say why there is no answer")
        return {FAILURE: error}
    if _failure(value) is not None:
        raise InvalidArgument("value", value, f"something else than an object with the key {FAILURE!r}; give error=")
    return value


def failure_in(payload: bytes | None) -> str | None:
    """Why there is no answer, if that is what the answer says."""
    if payload is None or FAILURE.encode() not in payload[: len(FAILURE) + 16]:
        return None
    return _failure(msgspec.json.decode(payload))


def _failure(value: object) -> str | None:
    if not isinstance(value, dict) or len(cast("dict[Any, Any]", value)) != 1:
        return None
    said: object = cast("dict[Any, Any]", value).get(FAILURE)
    return said if isinstance(said, str) else None
