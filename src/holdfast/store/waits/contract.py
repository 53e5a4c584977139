"""What a wait is, and the commands that move it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, get_args

import msgspec

from holdfast.store.command import Command
from holdfast.store.digests import blob_digest

if TYPE_CHECKING:
    from holdfast.store.rules.contract import AddRule, StoredRule

WaitState = Literal["open", "resolved", "expired", "cancelled", "revoked"]

WAIT_STATES: Final[tuple[str, ...]] = get_args(WaitState)


class Wait(msgspec.Struct, frozen=True):
    """A one-shot durable promise. `payload` is the JSON of its resolution."""

    journal: str
    name: str
    state: WaitState
    deadline: int | None = None
    payload: bytes | None = None
    opened: bool = True
    """False while a resolution is buffered for a wait that nobody has opened yet."""
    kind: str | None = None
    """What sort of question it is: "approval", say. Those that have one can be listed over all journals."""
    body: bytes | None = None
    """What is asked."""
    at: int = 0
    """When it was opened, in wall milliseconds; 0 while it is not, and for those of schema 3 and before."""
    consumed: int = 0
    """The record with which its resolution was used; 0 while it was not."""

    @property
    def digest(self) -> str | None:
        """SHA-256 of what is asked: what an answer may be about."""
        return None if self.body is None else blob_digest(self.body)


class Settlement(msgspec.Struct, frozen=True):
    """How an attempt to settle a wait went: the wait as it now is, and whether this attempt decided it."""

    wait: Wait
    won: bool
    rule: StoredRule | None = None
    """The rule that was asked for with the answer, if this attempt decided the wait."""


class OpenWait(Command[Wait], frozen=True):
    """Make the wait exist. One that is there already keeps its deadline, its question and its resolution."""

    journal: str
    name: str
    deadline: int | None
    kind: str | None = None
    body: bytes | None = None

    def size(self) -> int:
        return len(self.body or b"")


class SettleWait(Command[Settlement], frozen=True):
    """End the wait; the first to do so decides."""

    journal: str
    name: str
    state: Literal["resolved", "expired", "cancelled"]
    payload: bytes | None = None
    early: bool = True
    """A resolution may come before its wait is opened."""
    expect_digest: str | None = None
    """The answer is about the question with this digest, and about no other."""
    rule: AddRule | None = None
    """To be stored in the same commit, if this attempt decides the wait."""

    def size(self) -> int:
        return len(self.payload or b"") + (0 if self.rule is None else self.rule.size())


class SettleNext(Command[Settlement], frozen=True):
    """Resolve the first of numbered waits that can be: one that is open, or the one behind the last.

    With a `key`, once: the same payload under the same key again settles nothing.
    """

    journal: str
    prefix: str
    """What their names begin with; eight digits follow, from 1."""
    most: int
    """The highest number there may be."""
    payload: bytes
    key: str | None = None

    def size(self) -> int:
        return len(self.payload)


class RevokeWaits(Command[int], frozen=True):
    """Make waits worthless: one of them, or all of the journal's, also those to come."""

    journal: str
    name: str | None


class WaitFilter(msgspec.Struct, frozen=True):
    """Which open waits of all journals to list, newest first, of those that can still be answered at `now`.

    `before` is the (at, journal, name) of the last line of the page before.
    """

    kind: str
    now: int
    before: tuple[int, str, str] | None = None
