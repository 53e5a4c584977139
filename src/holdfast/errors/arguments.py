"""What was given can't be meant."""

from __future__ import annotations

from typing import Final

from holdfast.errors.tree import UsageError, excerpt

_SHOWN: Final = frozenset((str, bytes, int, float, bool, type(None), list, tuple, dict, set))
"""Types that the excerpt of a value shows by itself."""


class InvalidId(UsageError):
    """An id that can't name a journal, a key, a wait or a step."""

    def __init__(self, what: str, value: object, reason: str) -> None:
        super().__init__(f"{what} {excerpt(value)} is not valid: {reason}")
        self.what = what
        self.value = value
        self.reason = reason


class InvalidNumber(UsageError):
    """A number that can't be meant: a time, a size, a place or a count."""

    def __init__(self, what: str, value: object, reason: str) -> None:
        super().__init__(f"{what} {excerpt(value)} is not valid: {reason}")
        self.what = what
        self.value = value
        self.reason = reason


class InvalidArgument(UsageError):
    """Something of the wrong kind was given."""

    def __init__(self, what: str, value: object, wanted: str) -> None:
        instead = "" if type(value) in _SHOWN else f", not a {type(value).__name__}"
        super().__init__(f"{what} {excerpt(value)} is not valid: {wanted} is wanted{instead}")
        self.what = what
        self.value = value
        self.wanted = wanted


class InvalidValue(UsageError):
    """A value that has no canonical JSON form."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"the value at {path} can't be recorded: {reason}; use plain JSON values")
        self.path = path
        self.reason = reason


class PayloadTooLarge(UsageError):
    """A payload over its limit."""

    def __init__(self, what: str, size: int, limit: int) -> None:
        elsewhere = "" if what in {"the attachment", "the blob"} else "store it as an attachment or "
        super().__init__(f"{what} is {size:,} bytes, the limit is {limit:,}; {elsewhere}raise the limit")
        self.what = what
        self.size = size
        self.limit = limit


class ResultTooLarge(PayloadTooLarge):
    """What a function returned is larger than what is kept of one result. The function ran to its end."""

    def __init__(self, what: str, size: int, limit: int) -> None:
        UsageError.__init__(
            self,
            f"it ran to its end, but what it gave can't be kept: {what} of {size:,} bytes, the limit is {limit:,}; "
            "return less, or raise StoreLimits(blob_bytes=)",
        )
        self.what = what
        self.size = size
        self.limit = limit
