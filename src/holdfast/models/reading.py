"""What the dialects share when they read: JSON of whatever shape, and characters that a stream cut in two. Pure.

Nothing that comes from outside is trusted to have a shape, so each of these functions takes anything. What they give
back can always be written as UTF-8, with one exception that `Halves` is made for.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from typing import TYPE_CHECKING, Any, Final, NoReturn, cast

import msgspec

from holdfast.errors import ModelError
from holdfast.models.wire import bounded

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping

UNREADABLE: Final = (ValueError, RecursionError)
"""What reading or writing JSON that comes from outside can raise."""
MOST_TOKENS: Final = 1_000_000_000
"""More than any model reads or writes in one reply."""
_LATEST: Final = 2**53 - 1

_decode: Final[Callable[[bytes | str], Any]] = msgspec.json.Decoder().decode
_HALF: Final = re.compile("[\ud800-\udfff]")
_REQUEST_IDS: Final = ("x-request-id", "request-id", "apim-request-id", "x-ms-request-id", "x-amzn-requestid")


# ---- values of whatever shape ----------------------------------------------------------------------------------------


def mapping(value: Any) -> dict[str, Any]:  # noqa: ANN401  whatever came
    """The object that came, or an empty one."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def listed(value: Any) -> list[Any]:  # noqa: ANN401  whatever came
    """The array that came, or an empty one."""
    return cast("list[Any]", value) if isinstance(value, list) else []


def worded(value: Any) -> str:  # noqa: ANN401  whatever came
    """The text that came, or none."""
    return value if isinstance(value, str) else ""


def counted(value: Any) -> int:  # noqa: ANN401  whatever came
    """The count of tokens that came; 0 for anything that is no number.

    One that can't be true is a `ModelError`: taken for true, it would use up every budget, or give some back.
    """
    if type(value) is int:  # as nearly always
        if 0 <= value <= MOST_TOKENS:
            return value
    elif value is None or isinstance(value, bool) or not isinstance(value, int | float):
        return 0
    elif math.isfinite(value) and 0 <= value <= MOST_TOKENS:
        return int(value)
    words = bounded(written(value) or value, 40)
    raise ModelError(f"the provider counted {words} tokens, which can't be true", kind="bad_usage")


def moment(value: Any) -> int:  # noqa: ANN401  whatever came
    """The time that came, in whole seconds; 0 for anything else."""
    return value if type(value) is int and 0 <= value <= _LATEST else 0


def arguments_in(text: str) -> tuple[dict[str, Any] | None, str | None]:
    """The arguments of a call, and what came instead where it was no JSON object. Nothing and null mean none."""
    if not text.strip():
        return {}, None
    try:
        value = _decode(text)
    except UNREADABLE:
        return None, text
    if value is None:
        return {}, None
    return (cast("dict[str, Any]", value), None) if isinstance(value, dict) else (None, text)


def arguments_of(value: Any) -> tuple[dict[str, Any] | None, str | None]:  # noqa: ANN401  whatever came
    """The same, where a provider sends a value instead of its text."""
    if value is None or isinstance(value, dict):
        return mapping(value), None
    return arguments_in(value) if isinstance(value, str) else (None, written(value))


def written(value: Any) -> str:  # noqa: ANN401  whatever came
    """A value as JSON, for somebody to read; nothing where it has no such form, or is nested too deeply."""
    try:
        return msgspec.json.encode(value).decode()
    except UNREADABLE:
        return ""


def made_id(*seed: str) -> str:
    """An id for a call that has none: always the same for the same seed, and like no other."""
    digest = hashlib.sha256()
    for piece in seed:
        digest.update(f"{len(piece)}:{piece}".encode("utf-8", "surrogatepass"))
    return f"call_{digest.hexdigest()[:24]}"


def request_id_in(headers: Mapping[str, str]) -> str | None:
    """The provider's own name for a request, from headers with names in lower case."""
    return next((bounded(headers[name], 200) for name in _REQUEST_IDS if headers.get(name)), None)


# ---- JSON ------------------------------------------------------------------------------------------------------------


def read(data: bytes) -> Any:  # noqa: ANN401  any JSON value
    """JSON that came whole. Halves of characters, and bytes that are no text, become U+FFFD."""
    try:
        return _decode(data)
    except UNREADABLE:
        return sound(read_loosely(data))


def read_loosely(data: bytes) -> Any:  # noqa: ANN401  any JSON value
    """JSON in which a text may have half a character. Slow: for what the strict reader has refused."""
    try:
        return json.loads(data.decode("utf-8-sig", "replace"), parse_constant=_no_number, parse_float=_finite)
    except UNREADABLE as error:
        message = f"what came is no JSON: {bounded(error, 200)}"
        raise ModelError(message, kind="bad_frame", retryable=True) from None


def sound(value: Any, growing: frozenset[str] = frozenset()) -> Any:  # noqa: ANN401  any JSON value
    """A value in which each half of a character is U+FFFD, but for texts in fields that are `growing`."""
    try:
        return _sound(value, growing)
    except RecursionError:
        raise ModelError("what came is nested too deeply", kind="bad_frame", retryable=True) from None


def _sound(value: Any, growing: frozenset[str]) -> Any:  # noqa: ANN401  any JSON value
    if isinstance(value, str):
        return whole_characters(value)
    if isinstance(value, list):
        return [_sound(item, growing) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {
            whole_characters(name): item if name in growing and isinstance(item, str) else _sound(item, growing)
            for name, item in cast("dict[str, Any]", value).items()
        }
    return value


def whole_characters(text: str) -> str:
    """Text in which two halves that meet are one character, and one without the other is U+FFFD."""
    if _HALF.search(text) is None:
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _no_number(text)


class Halves:
    """Characters that a stream cut in two: the first half waits here until the next piece of the same text comes.

    Whoever reads a stream reads each frame with `read` and passes each piece of text through `join`. That costs nothing
    before the first frame that has half a character, and such frames are rare: a character outside of the basic plane
    has to be written as two escapes, and to be cut between them.
    """

    __slots__ = ("_growing", "_waiting", "broken")

    def __init__(self, growing: frozenset[str]) -> None:
        self._growing = growing
        """The fields whose text goes on in later frames. In all others half a character is U+FFFD at once."""
        self.broken = False
        """Whether a frame had half a character. Before that a reader in a hurry need not call `join`."""
        self._waiting: dict[Hashable, str] = {}

    def read(self, data: bytes) -> Any:  # noqa: ANN401  any JSON value
        """A frame. Texts in growing fields may have halves of characters, and have to go through `join`."""
        try:
            return _decode(data)
        except UNREADABLE:
            return self.read_loosely(data)

    def read_loosely(self, data: bytes) -> Any:  # noqa: ANN401  any JSON value
        """The same, for a frame that a strict reader of the caller's has refused."""
        value = sound(read_loosely(data), self._growing)
        self.broken = True
        return value

    def join(self, place: Hashable, text: str) -> str:
        """The next piece of the text at `place`, as far as its characters are whole."""
        if not self.broken:
            return text
        text = self._waiting.pop(place, "") + text
        if "\ud800" <= text[-1:] <= "\udbff":
            self._waiting[place] = text[-1]
            text = text[:-1]
        return whole_characters(text)

    def kept(self, value: Any) -> Any:  # noqa: ANN401  any JSON value
        """A value that did not grow and is kept as it came, though it has fields that are called like growing ones."""
        return sound(value) if self.broken else value

    def left(self, place: Hashable) -> str:
        """What stands for a half at `place` whose other one never came; nothing where there is none."""
        return "\ufffd" if self._waiting.pop(place, None) else ""
