"""The result of a call that comes later, from outside: what a tool gives in place of it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final, Generic, TypeVar

R = TypeVar("R")

LONGEST: Final = timedelta(days=7)
"""How long a call waits for its answer where the tool does not say."""


class NoDefault:
    """The mark of a deferral that ends as an error when nobody answers."""

    def __repr__(self) -> str:
        return "NO_DEFAULT"


NO_DEFAULT: Final = NoDefault()


class Deferred(Generic[R]):
    """A result that somebody outside gives later; a tool that has passed on the `key` returns it.

    ``-> Verdict | hf.Deferred[Verdict]`` says what the answer must be.
    """

    __slots__ = ("call", "default", "due", "key")

    def __init__(self, key: str, due: int, call: str, default: Any = NO_DEFAULT) -> None:  # noqa: ANN401
        self.key = key
        """What whoever answers has to show; the same after a crash. It is a secret like a password."""
        self.due = due
        """When it is too late, in wall milliseconds."""
        self.call = call
        """The call whose result it is."""
        self.default = default

    def __repr__(self) -> str:
        return f"Deferred(until {self.deadline.isoformat(timespec='seconds')})"

    @property
    def deadline(self) -> datetime:
        """When it is too late to answer."""
        return datetime.fromtimestamp(self.due / 1000, tz=UTC)
