"""The tools with which an agent sets itself timers.

A timer is a notification with a time: it is in the store before the call has ended, is delivered when its time has come
or at once if that has passed, and is acknowledged by the turn that was told of it.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Final

from pydantic import Field

from holdfast.bounds import check_int
from holdfast.errors import InvalidNumber, NotificationUnknown
from holdfast.hands.host import Host, host_of
from holdfast.hands.moments import moment
from holdfast.hands.timers.times import KIND, TITLE, Bounds, TimeUnclear, away, line, read, refusal
from holdfast.tools import ToolRetry, tool
from holdfast.tools.context import Context  # noqa: TC001  read from the signature
from holdfast.tools.reach import Reach

if TYPE_CHECKING:
    from holdfast.store import Notification
    from holdfast.tools import AnyTool

NOTE: Final = 2_000
"""Longest note, in characters."""
_MOST: Final = 500
"""Most timers that a host may allow: there is room for other notifications beside them."""
_REACH: Final = Reach(family="timers", external=False)
_YEARS: Final = 10 * 366 * 86_400.0


def timers(
    *, most: int = 50, shortest: float | timedelta = 1.0, longest: float | timedelta = 366 * 86_400.0
) -> tuple[AnyTool, ...]:
    """Tools that set, list and cancel timers of the session.

    At its time a timer is a notification to the session, which begins a turn if it rests. It goes off once, also over
    restarts; one whose time has passed while no process ran goes off when one does.

    Args:
        most: How many timers of a session may wait at once.
        shortest: How far ahead a timer must be at the least, in seconds or as a timedelta: each one costs a turn.
        longest: How far ahead it may be at the most.
    """
    bounds = Bounds(
        check_int("most", most, least=1, most=_MOST), _span("shortest", shortest), _span("longest", longest)
    )
    if bounds.shortest > bounds.longest:
        raise InvalidNumber("shortest", shortest, "it is above longest")
    return _setter(bounds), list_timers, cancel_timer


def _span(what: str, given: float | timedelta) -> int:
    seconds = given.total_seconds() if isinstance(given, timedelta) else given
    if type(seconds) not in (int, float) or not 0 < seconds <= _YEARS:
        raise InvalidNumber(what, given, "it must be a timedelta or seconds, above zero and below ten years")
    return max(1, round(seconds * 1000))


def _setter(bounds: Bounds) -> AnyTool:
    @tool(idempotent=True, background=False, reach=_REACH)
    async def set_timer(
        ctx: Context,
        note: Annotated[str, Field(min_length=1, max_length=NOTE)],
        seconds: Annotated[float, Field(ge=0, le=_YEARS)] | None = None,
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
        host = host_of(ctx)
        key, now = f"{KIND}/{ctx.idempotency_key}", host.now
        try:
            asked = read(seconds, at, note, now)
        except TimeUnclear as error:
            raise ToolRetry(str(error)) from None
        refused = refusal(asked, len(await host.reminders(KIND)), now, bounds)
        # A call that is performed again has set its timer before, and there was nothing against it then.
        if refused is not None and await _set_before(host, key) is None:
            raise ToolRetry(refused)
        found = await host.remind(KIND, TITLE, asked.body, due=asked.due, key=key)
        return f"Timer {found.id} is set for {moment(found.due)}, {away(found.due, now)}."

    return set_timer


@tool(read_only=True, background=False, reach=_REACH)
async def list_timers(ctx: Context) -> str:
    """List your timers that have not gone off, the next one first: id, time and note.

    Args:
        ctx: The call.
    """
    host = host_of(ctx)
    now = host.now
    found = [line(each.id, each.due, each.body, now) for each in await host.reminders(KIND)]
    return "\n".join([f"It is now {moment(now)}.", *(found or ["No timer is set."])])


@tool(idempotent=True, background=False, reach=_REACH)
async def cancel_timer(ctx: Context, id: Annotated[int, Field(ge=1)]) -> str:
    """Cancel a timer that has not gone off.

    Args:
        ctx: The call.
        id: The id of the timer.
    """
    host = host_of(ctx)
    if not await host.forget_reminder(KIND, id) and (state := await _state(host, id)) != "cancelled":
        return f"Too late: timer {id} has gone off ({state})."
    return f"Timer {id} is cancelled."


async def _state(host: Host, id: int) -> str:
    """What became of a timer of this session."""
    try:
        found = await host.store.notification(id)
    except NotificationUnknown:
        found = None
    if found is None or found.journal != host.session or found.kind != KIND:
        message = f"There is no timer {id}. list_timers tells which there are."
        raise ToolRetry(message)
    return found.state


async def _set_before(host: Host, key: str) -> Notification | None:
    """The timer that this call has set, if it was interrupted after that: it is among the newest ones."""
    newest = await host.store.notifications(host.session, limit=host.store.limits.page)
    return next((found for found in newest if found.key == key), None)
