"""When a timer goes off, and what is said of it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from holdfast.hands.moments import moment, span

KIND: Final = "timer"
"""The kind of the notifications that are timers."""
TITLE: Final = "A timer that you set has gone off"


class TimeUnclear(Exception):
    """What was asked for is no time at which a timer can go off. The message is for the model."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Which timers may be set. Spans are milliseconds."""

    most: int
    shortest: int
    longest: int


@dataclass(frozen=True, slots=True)
class Asked:
    """A timer as it is wanted. What it says follows from the arguments alone, so that a repeated call is the same."""

    due: int
    body: str


def read(seconds: float | None, at: str, note: str, now: int) -> Asked:
    """The timer that the arguments of a call mean; `TimeUnclear` when they mean none."""
    if (seconds is None) == (not at):
        message = f"Give either seconds or at, and not both. It is now {moment(now)}."
        raise TimeUnclear(message)
    if seconds is not None:
        return Asked(now + round(seconds * 1000), f"{note}\n(set to go off after {span(seconds * 1000)})")
    return Asked(_wall(at, now), f"{note}\n(set to go off at {at})")


def _wall(at: str, now: int) -> int:
    example = f"Write it like 2030-05-17T18:00:00+02:00; it is now {moment(now)}."
    try:
        found = datetime.fromisoformat(at.strip())
    except ValueError:
        message = f"{at[:80]!r} is no ISO 8601 date and time. {example}"
        raise TimeUnclear(message) from None
    if found.tzinfo is None:
        message = f"{at[:80]!r} does not say in which time zone. {example}"
        raise TimeUnclear(message)
    return round(found.timestamp() * 1000)


def refusal(asked: Asked, waiting: int, now: int, bounds: Bounds) -> str | None:
    """Why this timer can't be set, for the model; None when it can."""
    ahead = asked.due - now
    if ahead < bounds.shortest:
        when = f"That is {span(-ahead)} ago" if ahead < 0 else "That is too soon"
        return f"{when}. A timer goes off after {span(bounds.shortest)} at the earliest. It is now {moment(now)}."
    if ahead > bounds.longest:
        return f"That is too late. A timer goes off within {span(bounds.longest)}. It is now {moment(now)}."
    if waiting >= bounds.most:
        return f"{waiting:,} timers are set already, and no more are possible. Cancel some that are not needed."
    return None


def line(id: int, due: int, body: str, now: int) -> str:
    """A timer in one line."""
    note = " ".join(body.split())
    shown = note if len(note) <= 200 else f"{note[:197]}..."
    return f"{id}: {moment(due)}, {away(due, now)}: {shown}"


def away(due: int, now: int) -> str:
    """How far a time is, from now."""
    return f"in {span(due - now)}" if due > now else "due now"
