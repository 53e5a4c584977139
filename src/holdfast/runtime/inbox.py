"""What waits for a session, and what it means for the turn that is open and for those that are queued. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.policy.spans import milliseconds
from holdfast.turns import Ending, keys
from holdfast.turns.conversation import Said, Stop

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from holdfast.agent import Agent
    from holdfast.policy.limits import OutOf
    from holdfast.store.contract import Input
    from holdfast.turns import OpenTurn


@dataclass(frozen=True, slots=True)
class Waiting:
    """An input that waits in the inbox."""

    input: Input
    said: Said | Stop

    @property
    def run(self) -> str:
        """The turn that it begins, if it begins one."""
        return keys.run_of(self.input.input)

    @property
    def notifies(self) -> bool:
        """Whether it tells of notifications."""
        return isinstance(self.said, Said) and self.said.origin == "holdfast"

    def deadline(self, agent: Agent | None, begun: int | None = None) -> int | None:
        """When the turn that it begins must have ended, if it begins at `begun`; None before, where that counts."""
        if not isinstance(self.said, Said):
            return None
        span = self.said.deadline_ms
        if span is None and agent is not None and agent.limits.deadline is not None:
            span = milliseconds(agent.limits.deadline)
        since = begun if self.said.deadline_from_start else self.input.at
        return None if span is None or since is None else since + span


@dataclass(frozen=True, slots=True)
class Interruption:
    """Why the running turn must stop, and who asked for it."""

    ending: Ending
    stop: Waiting | None = None


@dataclass(frozen=True, slots=True)
class Over:
    """A turn that ends before it begins, and the request that says so; or a request that comes too late."""

    ending: Ending
    stop: Waiting | None
    waiting: Waiting | None

    @property
    def gone(self) -> list[Waiting]:
        """What leaves the inbox with it."""
        return [found for found in (self.stop, self.waiting) if found is not None]


def interruption(inbox: Iterable[Waiting], turn: OpenTurn, now: int) -> Interruption | None:
    """Why the open turn must stop, if it must: somebody asked for it, or its time is up."""
    for found in inbox:
        if isinstance(found.said, Stop) and _means(found.said, turn):
            return Interruption(_cancelled(found.said.reason), found)
    if turn.deadline is not None and turn.deadline <= now:
        return Interruption(_too_late())
    return None


def over(inbox: Sequence[Waiting], turn: OpenTurn | None, agent: Agent | None, now: int) -> list[Over]:
    """Turns that end before they begin (cancelled, or too late), and requests to stop that change nothing."""
    queued = {found.run: found for found in inbox if isinstance(found.said, Said)}
    ends = [
        Over(_cancelled(found.said.reason), found, queued.pop(found.said.cancel, None))
        for found in inbox
        if isinstance(found.said, Stop) and not (turn is not None and _means(found.said, turn))
    ]
    for waiting in queued.values():
        due = waiting.deadline(agent)
        if due is not None and due <= now:
            ends.append(Over(_too_late(), None, waiting))
    return ends


def next_due(inbox: Iterable[Waiting], turn: OpenTurn | None, agent: Agent | None) -> int | None:
    """When the next deadline passes."""
    dues = [found.deadline(agent) for found in inbox]
    dues.append(None if turn is None else turn.deadline)
    return min((due for due in dues if due is not None), default=None)


def _means(stop: Stop, turn: OpenTurn) -> bool:
    """Whether a request to stop is about `turn`: by its name, or by that of an input that has entered it."""
    return stop.cancel == turn.run or keys.input_of(stop.cancel) in turn.inputs


def _cancelled(reason: str) -> Ending:
    return Ending("cancelled", "cancelled", reason)


def out_of_time(out: OutOf) -> Ending:
    """The end of a turn that a budget of time stops in the middle of an effect."""
    return Ending("limit", out.code, out.message, "limit", allowed=out.allowed, used=out.used)


def _too_late() -> Ending:
    return Ending("limit", "deadline", "the deadline of the turn has passed", "limit")
