"""JSON values as providers send them: read leniently, and never believed blindly. Pure."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Hashable
from typing import Any, Final, TypeGuard, cast

import msgspec

from holdfast.errors import ModelError

encode_json: Final = msgspec.json.Encoder().encode
JSON_ERRORS: Final = (ValueError, RecursionError)
"""Raised when foreign JSON is read or written."""
MAX_TOKEN_COUNT: Final = 1_000_000_000
"""More than any model reads or writes in one reply."""
_MAX_SECONDS: Final = 2**53 - 1
_decode: Final[Callable[[bytes | str], Any]] = msgspec.json.Decoder().decode
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def is_dict(value: Any) -> TypeGuard[dict[str, Any]]:  # any JSON value
    """True for an object."""
    return isinstance(value, dict)


def is_list(value: Any) -> TypeGuard[list[Any]]:  # any JSON value
    """True for an array."""
    return isinstance(value, list)


def as_dict(value: Any) -> dict[str, Any]:  # any JSON value
    """Return an object unchanged, any other value as an empty one."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def as_list(value: Any) -> list[Any]:  # any JSON value
    """Return an array unchanged, any other value as an empty one."""
    return cast("list[Any]", value) if isinstance(value, list) else []


def as_text(value: Any) -> str:  # any JSON value
    """Return a string unchanged, any other value as an empty one."""
    return value if isinstance(value, str) else ""


def token_count(value: Any) -> int:  # any JSON value
    """Read a count of tokens; 0 for any value that is not a number.

    An impossible count raises `ModelError`: it would use up every budget, or refund some.
    """
    if type(value) is int:  # as nearly always
        if 0 <= value <= MAX_TOKEN_COUNT:
            return value
    elif value is None or isinstance(value, bool) or not isinstance(value, int | float):
        return 0
    elif 0 <= value <= MAX_TOKEN_COUNT:
        return int(value)
    words = clip_text(to_json(value) or value, 40)
    raise ModelError(f"the provider counted {words} tokens, which can't be true", kind="bad_usage")


def unix_seconds(value: Any) -> int:  # any JSON value
    """Read a time in whole seconds; 0 for anything else."""
    return value if type(value) is int and 0 <= value <= _MAX_SECONDS else 0


def parse_arguments(text: str) -> tuple[dict[str, Any] | None, str | None]:
    """Return the arguments of a call; or None and the text if it is not a JSON object.

    Empty and null mean no arguments.
    """
    if not text.strip():
        return {}, None
    try:
        value = _decode(text)
    except JSON_ERRORS:
        return None, text
    if value is None:
        return {}, None
    return (value, None) if is_dict(value) else (None, text)


def arguments_from_value(value: Any) -> tuple[dict[str, Any] | None, str | None]:  # any JSON value
    """Like `parse_arguments`, for providers that send a value instead of its text."""
    if value is None or isinstance(value, dict):
        return as_dict(value), None
    return parse_arguments(value) if isinstance(value, str) else (None, to_json(value))


def to_json(value: Any) -> str:  # any JSON value
    """Write a value as JSON for people; empty if it has no JSON form or is nested too deeply."""
    try:
        return encode_json(value).decode()
    except JSON_ERRORS:
        return ""


def clip_text(text: Any, limit: int = 1_000) -> str:  # any JSON value
    """Make a provider's text printable and at most `limit` characters long."""
    words = text if isinstance(text, str) else str(text)
    words = words.encode("utf-8", "backslashreplace").decode()
    return words if len(words) <= limit else f"{words[:limit]}..."


def parse_json(data: bytes) -> Any:  # any JSON value
    """Parse a whole JSON text. Lone surrogates and invalid bytes become U+FFFD."""
    try:
        return _decode(data)
    except JSON_ERRORS:
        return repair_surrogates(_parse_leniently(data))


def _parse_leniently(data: bytes) -> Any:  # any JSON value
    """Parse JSON with lone surrogates in it. Slow: for data that the strict parser has refused."""
    try:
        text = data.decode("utf-8-sig", "replace")
        return json.loads(text, parse_constant=_parse_float, parse_float=_parse_float)
    except JSON_ERRORS as error:
        raise bad_frame(f"what came is no JSON: {clip_text(error, 200)}") from None


def _parse_float(text: str) -> float:
    number = float(text)
    if math.isfinite(number):
        return number
    raise ValueError(f"{text} is no number")


def repair_surrogates(value: Any, growing: frozenset[str] = frozenset()) -> Any:  # any JSON value
    """Replace lone surrogates in a value by U+FFFD, except in the texts of `growing` fields."""
    try:
        return _repair(value, growing)
    except RecursionError:
        raise bad_frame("what came is nested too deeply") from None


def _repair(value: Any, growing: frozenset[str], name: str = "") -> Any:  # any JSON value
    if isinstance(value, str):
        return value if name in growing else _join_surrogates(value)
    if is_list(value):
        return [_repair(item, growing) for item in value]
    if is_dict(value):
        return {_join_surrogates(name): _repair(item, growing, name) for name, item in value.items()}
    return value


def _join_surrogates(text: str) -> str:
    if _SURROGATE.search(text) is None:
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


class SurrogateJoiner:
    """Joins characters that a stream cut in two: the first half waits for the next piece of the same text.

    A reader parses each frame with `parse` and passes each piece of text through `join`. `join` costs nothing before
    the first frame with half a character. Such frames are rare: a character outside the basic plane must be written as
    two escapes and be cut between them.
    """

    __slots__ = ("_growing", "_waiting", "active")

    def __init__(self, growing: frozenset[str]) -> None:
        self._growing = growing
        """Fields whose text continues in later frames. In all others a lone surrogate becomes U+FFFD at once."""
        self.active = False
        """True if a frame had half a character. Before that, hot paths need not call `join`."""
        self._waiting: dict[Hashable, str] = {}

    def parse(self, data: bytes) -> Any:  # any JSON value
        """Parse a frame. Texts in growing fields may have lone surrogates, and must go through `join`."""
        try:
            return _decode(data)
        except JSON_ERRORS:
            return self.parse_leniently(data)

    def parse_leniently(self, data: bytes) -> Any:  # any JSON value
        """Parse a frame that the caller's own strict parser has refused."""
        value = repair_surrogates(_parse_leniently(data), self._growing)
        self.active = True
        return value

    def join(self, place: Hashable, text: str) -> str:
        """Return the next piece of the text at `place`, without a trailing half."""
        if not self.active:
            return text
        text = self._waiting.pop(place, "") + text
        if "\ud800" <= text[-1:] <= "\udbff":
            self._waiting[place] = text[-1]
            text = text[:-1]
        return _join_surrogates(text)

    def flush(self, place: Hashable) -> str:
        """Return U+FFFD if a half still waits at `place`, else nothing."""
        return "\ufffd" if self._waiting.pop(place, None) else ""

    def repair(self, value: Any) -> Any:  # any JSON value
        """Repair a value that is kept verbatim, although its fields are named like growing ones."""
        return repair_surrogates(value) if self.active else value


def to_text(value: Any) -> str:  # any JSON value
    """Return a text unchanged, any other value as JSON."""
    return value if isinstance(value, str) else encode_json(value).decode()


def bad_frame(message: str) -> ModelError:
    """Make the error for an unreadable response. Another attempt may bring a better one."""
    return ModelError(message, kind="bad_frame", retryable=True)
