"""Journals: which there are, who advances them, and what can't be read."""

from __future__ import annotations

from holdfast.errors.tree import StoreError, UsageError


class KeyConflict(UsageError):
    """An idempotency key that was used before, with other content."""

    def __init__(self, journal: str, key: str) -> None:
        super().__init__(
            f"{journal!r} already accepted other content under the key {key!r}; a new input needs a new key"
        )
        self.journal = journal
        self.key = key


class JournalMissing(UsageError):
    """No journal has this id."""

    def __init__(self, journal: str) -> None:
        super().__init__(f"there is no {journal!r} in this store; name its agent to make it, or check the id")
        self.journal = journal


class StopRequested(UsageError):
    """Somebody has asked for this work to be stopped: it begins nothing more.

    `journal` is the session, task or process that is being stopped.
    """

    def __init__(self, journal: str) -> None:
        super().__init__(
            f"{journal!r} is being stopped and begins nothing more; start it again where it is still wanted"
        )
        self.journal = journal


class JournalPruned(JournalMissing):
    """A journal had this id, was over, and was pruned. Ids are never used again."""

    def __init__(self, journal: str, status: str, at: int, *, same: bool = False) -> None:
        UsageError.__init__(
            self, f"{journal!r} ended as {status} and was pruned; ids are never used again, choose another"
        )
        self.journal = journal
        self.status = status
        """How it ended."""
        self.at = at
        """When it was pruned, in wall milliseconds."""
        self.same = same
        """Whether it was begun with the very input that was offered now."""


class SiblingBegun(StoreError):
    """A journal with the same role for the same session was begun since somebody looked; nothing was written."""

    def __init__(self, journal: str, youngest: str) -> None:
        super().__init__(
            f"{journal!r} was not begun: {youngest!r} is the youngest now; look at what is left, and begin it then"
        )
        self.journal = journal
        self.youngest = youngest
        """The one that was begun last."""


class JournalInUse(UsageError):
    """The journal can't be pruned now: it is not over, or something still needs it."""

    def __init__(self, journal: str, reason: str) -> None:
        super().__init__(f"{journal!r} is kept: {reason}; prune it when it is over and nobody needs it")
        self.journal = journal
        self.reason = reason


class JournalConflict(UsageError):
    """The journal exists with another kind or agent."""

    def __init__(self, journal: str, recorded: str, asked: str, helps: str = "choose another id") -> None:
        super().__init__(f"journal {journal!r} was opened as {recorded}, not as {asked}; {helps}")
        self.journal = journal
        self.recorded = recorded
        self.asked = asked


class ForkPointMissing(UsageError):
    """A fork that would begin at a record which its parent does not have."""

    def __init__(self, journal: str, at: int, head: int) -> None:
        super().__init__(f"{journal!r} has no record {at:,} to fork at; it has the records 1 to {head:,}")
        self.journal = journal
        self.at = at
        self.head = head


class Fenced(StoreError):
    """The lease moved on: somebody else advances this journal now. What this writer computed was dropped."""

    def __init__(self, journal: str, epoch: int, current: int, holder: str | None) -> None:
        who = f"held by {holder}" if holder else "held by nobody"
        super().__init__(
            f"the lease on {journal!r} is no longer yours: you hold epoch {epoch}, the journal is at {current}, {who}"
        )
        self.journal = journal
        self.epoch = epoch
        self.current = current
        self.holder = holder


class LeaseHeld(StoreError):
    """Somebody else advances this journal."""

    def __init__(self, journal: str, holder: str, expires_in_ms: int) -> None:
        super().__init__(
            f"{journal!r} is being advanced by {holder}; its lease ends in {expires_in_ms / 1000:.1f} s unless renewed"
        )
        self.journal = journal
        self.holder = holder
        self.expires_in_ms = expires_in_ms


class HeadConflict(StoreError):
    """The journal is not where the writer thought it was."""

    def __init__(self, journal: str, expected: int, actual: int) -> None:
        super().__init__(f"{journal!r} ends at record {actual}, the writer expected {expected}; read it again")
        self.journal = journal
        self.expected = expected
        self.actual = actual


class JournalCorrupt(StoreError):
    """A record can't be trusted. The journal is quarantined; others go on."""

    def __init__(self, journal: str, seq: int, reason: str) -> None:
        super().__init__(
            f"journal {journal!r} is corrupt at record {seq}: {reason}; it is quarantined, the others go on. "
            "Restore it from a backup"
        )
        self.journal = journal
        self.seq = seq
        self.reason = reason


class JournalQuarantined(StoreError):
    """The journal was found corrupt before and is not advanced."""

    def __init__(self, journal: str, reason: str) -> None:
        super().__init__(f"journal {journal!r} is quarantined: {reason}; restore it from a backup")
        self.journal = journal
        self.reason = reason


class InboxFull(StoreError):
    """Too many inputs wait for this journal."""

    def __init__(self, journal: str, limit: int) -> None:
        super().__init__(f"{limit:,} inputs already wait for {journal!r}; let it catch up, or raise the limit")
        self.journal = journal
        self.limit = limit


class InputTaken(StoreError):
    """The input is already in its journal."""

    def __init__(self, journal: str, number: int) -> None:
        super().__init__(f"input {number} of {journal!r} does not wait any more; read the journal again")
        self.journal = journal
        self.input = number


class RecordUnreadable(StoreError):
    """A record of an unknown kind or of a newer format."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the record can't be read: {reason}; it may come from a newer release")
        self.reason = reason
