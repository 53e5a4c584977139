"""`holdfast notifications`: what is to be told to sessions, and what became of it."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003  typer looks at the annotation at run time
from typing import TYPE_CHECKING, Annotated, Final, cast

import typer

from holdfast.cli.options import DEFAULT_STORE, FAILED, JsonOption, StoreOption, explained

if TYPE_CHECKING:
    from holdfast.cli.output import Terminal
    from holdfast.store import Store
    from holdfast.store.notifications import Notification, NotificationState, SettledByHand


_HEADINGS: Final = ["ID", "SESSION", "STATE", "KIND", "TRIES", "CHANGED", "TITLE"]
app = typer.Typer(invoke_without_command=True, rich_markup_mode=None)


@app.callback()
def notifications(  # noqa: PLR0913
    context: typer.Context,
    *,
    session: Annotated[
        str | None, typer.Option("--session", "-S", metavar="ID", help="Only those for this session; a cut id is fine.")
    ] = None,
    state: Annotated[
        str | None,
        typer.Option(metavar="STATE", help="Only queued, claimed, acknowledged, cancelled, expired or dead ones."),
    ] = None,
    limit: Annotated[int, typer.Option(metavar="N", min=1, help="How many at the most.")] = 50,
    as_json: JsonOption = False,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """List notifications, newest first.

    A notification waits (queued) until the session can be told, is carried into a turn (claimed), and is acknowledged
    when that turn ends well. After too many turns that did not end well it is dead.
    """
    if context.invoked_subcommand is not None:
        context.default_map = {"settle": {"store": store}}
        return
    import asyncio  # noqa: PLC0415

    with explained():
        asyncio.run(_list(store, session, state, limit, as_json=as_json))


@app.command()
def settle(
    number: Annotated[int, typer.Argument(metavar="ID", min=1, help="The notification.", show_default=False)],
    state: Annotated[
        str, typer.Argument(metavar="STATE", help="cancelled, acknowledged or queued.", show_default=False)
    ],
    *,
    # Without a variable of its own: what `notifications` has found to be the store is the default here.
    store: Annotated[Path, typer.Option("--store", "-s", metavar="PATH", help="The store file.")] = DEFAULT_STORE,
) -> None:
    """Settle a notification by hand: drop it, take it as read, or try one that is dead again.

    Exit code 0 when this has decided it, 1 when that came too late.
    """
    import asyncio  # noqa: PLC0415

    with explained():
        code = asyncio.run(_settle(store, number, state))
    raise typer.Exit(code)


async def _list(path: Path, session: str | None, state: str | None, limit: int, *, as_json: bool) -> None:
    from holdfast.cli.output import tell  # noqa: PLC0415
    from holdfast.cli.sessions import find_session, looking  # noqa: PLC0415

    async with looking(path) as runtime:
        journal = None if session is None else (await find_session(runtime.store, session, others=True)).id
        # The store refuses a word that is no state.
        found = await read_notifications(runtime.store, journal, cast("NotificationState | None", state), limit)
        now = runtime.store.clock.read().wall
    tell(found, lambda out: _rows(out, found, now), nothing="no notifications", as_json=as_json)


async def read_notifications(
    store: Store, journal: str | None, state: NotificationState | None, limit: int
) -> list[Notification]:
    """Notifications, newest first, also more than a page of them."""
    found: list[Notification] = []
    while len(found) < limit:
        size = min(limit - len(found), store.limits.page)
        page = await store.notifications(journal, state, before=found[-1] if found else None, limit=size)
        found += page
        if len(page) < size:
            break
    return found


async def _settle(path: Path, number: int, state: str) -> int:
    from holdfast.cli.output import stderr, stdout  # noqa: PLC0415
    from holdfast.cli.sessions import changing  # noqa: PLC0415

    async with changing(path) as runtime:
        found, decided = await runtime.store.settle_notification(number, cast("SettledByHand", state))
    if not decided:
        stderr().line(f"too late: notification {number} is {found.state} and stays so")
        return FAILED
    stdout().line(f"notification {number} is {found.state}")
    return 0


def _rows(out: Terminal, found: list[Notification], now: int) -> list[str]:
    from holdfast.cli.output import (  # noqa: PLC0415
        duration,
        one_line,
        status_table,
    )

    rows = [
        [
            str(line.id),
            one_line(line.journal, 24),
            line.state,
            one_line(line.kind, 24),
            str(line.attempts),
            f"{duration(max(now - line.updated, 0))} ago",
            _told(line, now),
        ]
        for line in found
    ]
    return status_table(out, _HEADINGS, rows)


def _told(line: Notification, now: int) -> str:
    """What it says, why it was not told yet, and when it will be."""
    from holdfast.cli.output import duration, one_line  # noqa: PLC0415
    from holdfast.toolkits.timers import TIMER_KIND  # noqa: PLC0415

    early = _is_early(line, now)
    timer = line.kind == TIMER_KIND and early
    notes = [one_line(line.reason, 100)] if line.reason and line.state in {"queued", "dead"} else []
    if line.state == "queued" and line.due > now:
        doing = "goes off" if timer else "is told" if early else "is told again"
        notes.append(f"{doing} in {duration(line.due - now)}")
    # The title of a timer is what is said when it has gone off.
    title = f"A timer: {one_line(line.body, 60)}" if timer else one_line(line.title, 60)
    return f"{title} ({'; '.join(notes)})" if notes else title


def _is_early(line: Notification, now: int) -> bool:
    """Whether its time has never come: not yet, or it was settled before."""
    return not line.attempts and line.due > (now if line.state == "queued" else line.updated)
