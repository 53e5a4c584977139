"""`timers()`: tools with which an agent is notified once at a later time, across restarts."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Final

from pydantic import Field

from holdfast import errors, names
from holdfast.tools.context import CallContext  # noqa: TC001  read from the signature
from holdfast.tools.definition import AnyTool, Reach, ToolRetry, tool
from holdfast.tools.results import format_duration, format_time

TIMER_KIND: Final = "timer"
"""The kind of notifications that are timers."""
TIMER_TITLE: Final = "A timer that you set has gone off"


@dataclass(frozen=True, slots=True)
class TimerLimits:
    """Limits of timers; durations in milliseconds."""

    most: int
    shortest: int
    longest: int


@dataclass(frozen=True, slots=True)
class TimerRequest:
    """A requested timer. Its text depends only on the arguments, so a repeated call is the same."""

    due: int
    body: str


def parse_timer(seconds: float | None, at: str, note: str, now: int) -> TimerRequest:
    """The timer that the arguments request; `ToolRetry` if they request none."""
    if (seconds is None) == (not at):
        raise ToolRetry(f"Give either seconds or at, and not both. It is now {format_time(now)}.")
    if seconds is not None:
        ahead = seconds * 1000
        return TimerRequest(now + round(ahead), f"{note}\n(set to go off after {format_duration(ahead)})")
    example = f"Write it like 2030-05-17T18:00:00+02:00; it is now {format_time(now)}."
    try:
        found = datetime.fromisoformat(at.strip())
    except ValueError:
        raise ToolRetry(f"{at[:80]!r} is no ISO 8601 date and time. {example}") from None
    if found.tzinfo is None:
        raise ToolRetry(f"{at[:80]!r} does not say in which time zone. {example}")
    return TimerRequest(round(found.timestamp() * 1000), f"{note}\n(set to go off at {at})")


def check_timer(asked: TimerRequest, waiting: int, now: int, limits: TimerLimits) -> str | None:
    """The reason for the model why this timer can't be set; None if it can."""
    ahead, today = asked.due - now, f"It is now {format_time(now)}."
    if ahead < limits.shortest:
        when = f"That is {format_duration(-ahead)} ago" if ahead < 0 else "That is too soon"
        return f"{when}. A timer goes off after {format_duration(limits.shortest)} at the earliest. {today}"
    if ahead > limits.longest:
        return f"That is too late. A timer goes off within {format_duration(limits.longest)}. {today}"
    if waiting >= limits.most:
        return f"{waiting:,} timers are set already, and no more are possible. Cancel some that are not needed."
    return None


def describe_distance(due: int, now: int) -> str:
    """The time from now until `due`."""
    return f"in {format_duration(due - now)}" if due > now else "due now"


MAX_NOTE: Final = 2_000
"""Longest note, in characters."""
_MAX_TIMERS: Final = 500
"""Most timers that a host may allow: other notifications need room, too."""
_REACH: Final = Reach(family="timers", external=False)
_TEN_YEARS: Final = 10 * 366 * 86_400.0


def timers(
    *, most: int = 50, shortest: float | timedelta = 1.0, longest: float | timedelta = 366 * 86_400.0
) -> tuple[AnyTool, ...]:
    """Tools that set, list and cancel timers of the session.

    A timer that goes off is a notification to the session, which begins a turn if it is idle. It goes off once, also
    across restarts; if no process ran at its time, it goes off when the next one starts.

    Args:
        most: Most pending timers of a session.
        shortest: Shortest time of a timer, in seconds or as a timedelta: each one costs a turn.
        longest: Longest time of a timer.
    """
    bounds = TimerLimits(
        names.check_int("most", most, least=1, most=_MAX_TIMERS),
        _duration_ms("shortest", shortest),
        _duration_ms("longest", longest),
    )
    if bounds.shortest > bounds.longest:
        raise errors.InvalidNumber("shortest", shortest, "it is above longest")

    @tool(idempotent=True, background=False, reach=_REACH)
    async def set_timer(
        ctx: CallContext,
        note: Annotated[str, Field(min_length=1, max_length=MAX_NOTE)],
        seconds: Annotated[float, Field(ge=0, le=_TEN_YEARS)] | None = None,
        at: Annotated[str, Field(max_length=100)] = "",
    ) -> str:
        """Be reminded at a time to come. A notification with your note comes then, also if this conversation rests.

        Give either seconds or at. To be reminded again and again, set the next timer when one has gone off.

        Args:
            ctx: The call.
            note: What you will have to know then: what to do, and why. You may have forgotten the rest.
            seconds: After how many seconds.
            at: At which time, in ISO 8601 with the time zone, such as 2030-05-17T18:00:00+02:00.
        """
        host = ctx.host
        key, now = f"{TIMER_KIND}/{ctx.idempotency_key}", host.now
        asked = parse_timer(seconds, at, note, now)
        refused = check_timer(asked, len(await host.reminders(TIMER_KIND)), now, bounds)
        if refused is not None:
            # A repeated call has set its timer before, when it was allowed; that one is among the newest.
            newest = await host.store.notifications(host.session, limit=host.store.limits.page)
            if all(found.key != key for found in newest):
                raise ToolRetry(refused)
        found = await host.remind(TIMER_KIND, TIMER_TITLE, asked.body, due=asked.due, key=key)
        return f"Timer {found.id} is set for {format_time(found.due)}, {describe_distance(found.due, now)}."

    return set_timer, list_timers, cancel_timer


def _duration_ms(what: str, given: float | timedelta) -> int:
    seconds = given.total_seconds() if isinstance(given, timedelta) else given
    if type(seconds) not in (int, float) or not 0 < seconds <= _TEN_YEARS:
        raise errors.InvalidNumber(what, given, "it must be a timedelta or seconds, above zero and below ten years")
    return max(1, round(seconds * 1000))


@tool(read_only=True, background=False, reach=_REACH)
async def list_timers(ctx: CallContext) -> str:
    """List your timers that have not gone off, the next one first: id, time and note.

    Args:
        ctx: The call.
    """
    now = ctx.host.now
    lines: list[str] = []
    for each in await ctx.host.reminders(TIMER_KIND):
        note = " ".join(each.body.split())
        shown = note if len(note) <= 200 else f"{note[:197]}..."
        lines.append(f"{each.id}: {format_time(each.due)}, {describe_distance(each.due, now)}: {shown}")
    return "\n".join([f"It is now {format_time(now)}.", *(lines or ["No timer is set."])])


@tool(idempotent=True, background=False, reach=_REACH)
async def cancel_timer(ctx: CallContext, id: Annotated[int, Field(ge=1)]) -> str:
    """Cancel a timer that has not gone off.

    Args:
        ctx: The call.
        id: The id of the timer.
    """
    if await ctx.host.forget_reminder(TIMER_KIND, id):
        return f"Timer {id} is cancelled."
    with suppress(errors.NotificationUnknown):
        found = await ctx.host.store.notification(id)
        if found.journal == ctx.host.session and found.kind == TIMER_KIND:
            is_late = found.state != "cancelled"
            return f"Too late: timer {id} has gone off ({found.state})." if is_late else f"Timer {id} is cancelled."
    raise ToolRetry(f"There is no timer {id}. list_timers tells which there are.")
