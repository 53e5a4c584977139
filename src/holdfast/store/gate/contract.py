"""What agents take in, what was refused, the commands that say so, and what a backend keeps of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from holdfast.store.command import Command

if TYPE_CHECKING:
    from collections.abc import Iterator

PER_JOURNAL: Final = 20
"""Refusals of one journal that are kept; older ones are only counted."""
IN_ALL: Final = 1_000
"""Refusals of all journals that are kept: whoever makes up names can't fill the store."""
MAX_MESSAGE: Final = 1_000


class Refusal(msgspec.Struct, frozen=True):
    """An input that was not taken in. Of the input itself nothing is kept."""

    id: int
    """Its number in the store: so many were refused so far."""
    journal: str
    agent: str | None
    key: str | None
    at: int
    """In wall milliseconds."""
    error: str
    """The name of the error that the caller got."""
    message: str
    nth: int
    """So many inputs of this journal were refused so far, as long as one of them is kept."""


class NoteRefusal(Command[Refusal], frozen=True):
    """Keep that an input was refused. The journal need not be there."""

    journal: str
    agent: str | None
    key: str | None
    error: str
    message: str

    def size(self) -> int:
        return len(self.message)


class SetTerms(Command[None], frozen=True):
    """Keep what an agent takes in, as JSON; None: nothing of its own."""

    agent: str
    body: str | None

    def size(self) -> int:
        return len(self.body or "")


# ---- what a backend provides -----------------------------------------------------------------------------------------


class GateRows(Protocol):
    """The gate inside a transaction."""

    def note(self, asked: NoteRefusal, at: int) -> Refusal:
        """Keep a refusal, and drop those that are too many."""
        ...

    def set_terms(self, agent: str, body: str | None, at: int) -> None: ...


class GateReader(Protocol):
    """The gate as it can be read."""

    def terms(self) -> dict[str, str]:
        """What agents take in, of all that have said something of their own."""
        ...

    def refusals(self, journal: str | None, limit: int) -> list[Refusal]:
        """Newest first."""
        ...

    def raw_texts(self) -> Iterator[str]:
        """All that is kept here."""
        ...
