"""Input that was not taken in. Nothing is recorded but the refusal; the message says what the caller can do."""

from __future__ import annotations

from datetime import UTC, datetime

from holdfast.errors.arguments import InvalidArgument
from holdfast.errors.tree import UsageError


class EmptyInput(InvalidArgument):
    """Nothing was said."""

    def __init__(self, content: object = "") -> None:
        super().__init__("content", content, "text that is not empty, or a file")


class InputTooLarge(UsageError):
    """More was said at once than a session takes. `what` is ``characters``, ``parts`` or ``bytes``."""

    def __init__(self, session: str, what: str, size: int, limit: int) -> None:
        super().__init__(
            f"the input of {session!r} has {size:,} {what}, the limit is {limit:,}; send less at once, or raise the "
            "limit in Admission"
        )
        self.session = session
        self.what = what
        self.size = size
        self.limit = limit


class DuplicateInput(UsageError):
    """The same was said a moment ago. `key_of_first` and `at` (wall milliseconds) name the first."""

    def __init__(self, session: str, key_of_first: str | None, at: int) -> None:
        first = "" if key_of_first is None else f" under the key {key_of_first!r}"
        super().__init__(
            f"the same was said to {session!r}{first} at {_moment(at)}; wait for its answer, or say it later"
        )
        self.session = session
        self.key_of_first = key_of_first
        self.at = at


class RateExceeded(UsageError):
    """Too much was said in too short a time. From `retry_at` (wall milliseconds) on there is room again."""

    def __init__(self, session: str, per_window: int, window_ms: int, retry_at: int) -> None:
        super().__init__(
            f"{session!r} takes {per_window:,} inputs in {window_ms / 1000:g} s; try again at {_moment(retry_at)}"
        )
        self.session = session
        self.per_window = per_window
        self.window_ms = window_ms
        self.retry_at = retry_at


def _moment(at: int) -> str:
    try:
        return datetime.fromtimestamp(at / 1000, UTC).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):
        return f"{at} ms"
