"""`holdfast notifications`: the notifications for sessions, and their delivery."""

from __future__ import annotations

from typing import Annotated, cast

from holdfast.cli import options, output, sessions
from holdfast.cli.options import DEFAULT_STORE, FAILED, CommandGroup, Shell, argument, option
from holdfast.clock import wall_time
from holdfast.processes.lists import read_pages
from holdfast.store import Store
from holdfast.store.notifications import Notification, NotificationState, SettledByHand
from holdfast.toolkits.timers import TIMER_KIND

notifications = CommandGroup()


@notifications.listing()
async def list_notifications(
    shell: Shell,
    *,
    session: options.OfSession = None,
    state: Annotated[
        str | None, option("STATE", "Only queued, claimed, acknowledged, cancelled, expired or dead ones.")
    ] = None,
    limit: options.Limit = 50,
) -> None:
    """List notifications, newest first.

    A notification is queued until the session can take it, claimed while a turn or a pump has it, and acknowledged when
    the turn ends well or the host of the pump says so. After too many attempts that did not it is dead.
    """
    async with sessions.view_runtime(shell.store) as runtime:
        journal = None if session is None else (await sessions.find_session(runtime.store, session, others=True)).id
        # The store refuses an unknown state.
        found = await read_notifications(runtime.store, journal, cast("NotificationState | None", state), limit)
    columns: output.Columns[Notification] = {
        "ID": lambda line: str(line.id),
        "SESSION": lambda line: output.one_line(line.journal, 24),
        "STATE": lambda line: line.state,
        "KIND": lambda line: output.one_line(line.kind, 24),
        "TRIES": lambda line: str(line.attempts),
        "CHANGED": lambda line: output.ago(line.updated),
        "TITLE": _title,
    }
    shell.print_table(found, columns, nothing="no notifications")


@notifications.command()
async def settle(
    number: Annotated[int, argument("ID", "The notification.", min=1)],
    state: Annotated[str, argument("STATE", "cancelled, acknowledged or queued.")],
    *,
    store: options.Store = DEFAULT_STORE,
) -> int:
    """Settle a notification by hand: cancel it, mark it as read, or queue a dead one again.

    Exit code 0 if this decided it, 1 if it was too late.
    """
    async with sessions.edit_runtime(store) as runtime:
        found, decided = await runtime.store.settle_notification(number, cast("SettledByHand", state))
    if not decided:
        output.stderr().line(f"too late: notification {number} is {found.state} and stays so")
        return FAILED
    output.stdout().line(f"notification {number} is {found.state}")
    return 0


async def read_notifications(
    store: Store, journal: str | None, state: NotificationState | None, limit: int
) -> list[Notification]:
    """Read up to `limit` notifications, newest first."""
    found: list[Notification] = []
    async for each in read_pages(store.notifications, journal=journal, state=state, limit=limit):
        found.append(each)
        if len(found) == limit:
            break
    return found


def _title(line: Notification) -> str:
    """The title, with the reason of the last failure and the time of the next delivery."""
    now = wall_time()
    early = not line.attempts and line.due > (now if line.state == "queued" else line.updated)
    timer = line.kind == TIMER_KIND and early
    notes = [output.one_line(line.reason, 100)] if line.reason and line.state in {"queued", "claimed", "dead"} else []
    if line.state == "queued" and line.due > now:
        doing = "goes off" if timer else "is told" if early else "is told again"
        notes.append(f"{doing} in {output.duration(line.due - now)}")
    # The title of a timer says that it has gone off.
    title = f"A timer: {output.one_line(line.body, 60)}" if timer else output.one_line(line.title, 60)
    return f"{title} ({'; '.join(notes)})" if notes else title
