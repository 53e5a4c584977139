"""The replay decision: what the journal says about an effect that is asked for. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from holdfast.effects.divergence import Divergence, diverge
from holdfast.effects.envelope import scope_of
from holdfast.errors import InvariantBroken
from holdfast.records import Ask, Cancelled, Done, Ended, Failed, Grouped, Intended, Outcome, Record, Started, Unknown

if TYPE_CHECKING:
    from collections.abc import Iterable


class Repeat(Enum):
    """What may happen to an effect that was begun and has no outcome."""

    FREE = "free"
    """It only reads: perform it again. No intent is recorded."""
    KEYED = "keyed"
    """It is safe to repeat with the same idempotency key. No intent is recorded."""
    NEVER = "never"
    """It must not be repeated: an intent is recorded first, and an interrupted one ends as unknown."""


# Editing a prompt must not strand a running turn: these kinds keep what was recorded and warn.
KEEPS_RECORDED: Final = frozenset(("model_call", "direct"))


@dataclass(slots=True)
class Recorded:
    """All the journal has about one key."""

    intent: Intended | None = None
    outcome: Outcome | None = None
    asked: Ask | None = None

    def settle(self, outcome: Outcome) -> None:
        """The effect ended. A cancellation after that means that nobody got to see how."""
        self.asked = getattr(outcome, "ask", None) or self.asked
        self.outcome = outcome

    def ask(self) -> Ask:
        """What was asked at the time."""
        if self.intent is not None:
            return self.intent.ask
        asked = getattr(self.outcome, "ask", None) or self.asked
        if asked is None:
            message = f"{self.outcome!r} has neither an intent nor what was asked"
            raise InvariantBroken(message)
        return asked


@dataclass(slots=True)
class Past:
    """What was asked and answered so far: a fold of the journal.

    Each scope is sequential, so the keys asked in it have one order; `order` keeps it for the check that a replay asks
    for the same effects in the same order. `branches` has the name of each task that left a record, `abandoned` the
    groups whose caller was cancelled.
    """

    effects: dict[str, Recorded] = field(default_factory=dict[str, Recorded])
    groups: dict[str, Grouped] = field(default_factory=dict[str, Grouped])
    order: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    settled: dict[str, int] = field(default_factory=dict[str, int])
    branches: dict[str, dict[int, str]] = field(default_factory=dict[str, dict[int, str]])
    abandoned: set[str] = field(default_factory=set[str])
    started: dict[str, Started] = field(default_factory=dict[str, Started])
    ended: dict[str, Ended] = field(default_factory=dict[str, Ended])
    records: int = 0

    def add(self, record: Record) -> None:
        """Take the next record of the journal into account."""
        self.records += 1
        match record:
            case Cancelled() if record.key in self.groups:
                self.abandoned.add(record.key)
            case Done() | Failed() | Unknown() | Cancelled():
                self._recorded(record.key).settle(record)
                self.settled.setdefault(record.key, len(self.settled))
            case Intended():
                self._recorded(record.key).intent = record
            case Grouped():
                self.groups[record.key] = record
                self._in_scope(record.key)
            case Started():
                self.started[record.run] = record
            case Ended():
                self.ended[record.run] = record
            case _:
                pass

    def _recorded(self, key: str) -> Recorded:
        found = self.effects.get(key)
        if found is None:
            found = self.effects[key] = Recorded()
            self._in_scope(key)
        return found

    def _in_scope(self, key: str) -> None:
        scope = scope_of(key)
        keys = self.order.get(scope)
        if keys is None:
            keys = self.order[scope] = []
            self._note_branches(scope)
        keys.append(key)

    def _note_branches(self, scope: str) -> None:
        parent, slash, part = scope.rpartition("/")
        if not slash:
            return
        if part.startswith("~"):
            ordinal, _, name = part[1:].partition(".")
            self.branches.setdefault(parent, {})[int(ordinal)] = name
        self._note_branches(parent)


def fold(records: Iterable[Record]) -> Past:
    """The past that a journal tells."""
    past = Past()
    for record in records:
        past.add(record)
    return past


@dataclass(frozen=True, slots=True)
class Answer:
    """The outcome is recorded: use it. `drift` is set where the content differs and the kind keeps what it has."""

    outcome: Outcome
    drift: Divergence | None = None


@dataclass(frozen=True, slots=True)
class Begin:
    """Nothing is recorded: perform it, with an intent first where that is due."""

    intent: bool


@dataclass(frozen=True, slots=True)
class Again:
    """It was begun, has no outcome, and is safe to repeat with the same idempotency key."""


@dataclass(frozen=True, slots=True)
class SettleUnknown:
    """It was begun, has no outcome, and must not be repeated."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Something else was recorded under this key."""

    divergence: Divergence


@dataclass(frozen=True, slots=True)
class Miss:
    """Nothing is recorded, and this replay must not perform anything."""


Decision: TypeAlias = Answer | Begin | Again | SettleUnknown | Mismatch | Miss


_INTENDED: Final = Begin(intent=True)
_BEGUN: Final = Begin(intent=False)


def decide_effect(recorded: Recorded | None, ask: Ask, repeat: Repeat, *, strict: bool = False) -> Decision:
    """What to do about an effect that is asked for. What differs is looked at before how it ended."""
    if recorded is None:
        return Miss() if strict else _INTENDED if repeat is Repeat.NEVER else _BEGUN
    drift = _drift(recorded.ask(), ask)
    if drift is not None and not (_same_identity(recorded.ask(), ask) and ask.kind in KEEPS_RECORDED):
        return Mismatch(drift)
    if recorded.outcome is not None:
        return Answer(recorded.outcome, drift)
    if strict:
        return Miss()
    return SettleUnknown() if repeat is Repeat.NEVER else Again()


def _same_identity(recorded: Ask, asked: Ask) -> bool:
    # The key is the same, or we would not be looking at this record.
    return recorded.kind == asked.kind and recorded.target == asked.target


def _drift(recorded: Ask, asked: Ask) -> Divergence | None:
    if _same_identity(recorded, asked) and recorded.content == asked.content:
        return None
    return diverge(_comparable(recorded), _comparable(asked))


def _comparable(ask: Ask) -> dict[str, object]:
    body: object = msgspec.json.decode(ask.body) if ask.body else {"sha256": ask.content}
    return {"kind": ask.kind, "target": ask.target, "body": body}
