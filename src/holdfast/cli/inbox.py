"""`holdfast inbox`: what waits for a person, and the command that answers each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

import msgspec

from holdfast.cli.following import hint
from holdfast.cli.notifications import read_notifications
from holdfast.cli.openwaits import waits_of
from holdfast.cli.question import answers, described, title
from holdfast.cli.sessions import looking
from holdfast.cli.terminal import duration, one_line, printable, stderr, stdout
from holdfast.errors import HoldfastError, JournalMissing, JournalQuarantined
from holdfast.runtime.interrupted import is_ask

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from holdfast.cli.terminal import Terminal
    from holdfast.runtime.approving import Approval
    from holdfast.store import Journal, Store
    from holdfast.store.notifications.contract import Notification

_ANSWERS: Final = '{"done": ...}'
"""What a person may say about a call that was interrupted; also "not_done" and "unknown"."""
_MOST: Final = 1_000
"""Notifications that are shown."""


class Item(msgspec.Struct, frozen=True):
    """One thing that only a person can decide."""

    kind: Literal["approval", "wait", "unknown", "notification"]
    """May a call be made; a tool asks; nobody knows what became of a call; a notification was given up."""
    session: str
    what: str
    """It in one line."""
    since: int
    answer: str
    """The command that answers it."""
    wait: str | None = None
    tool: str | None = None
    deadline: int | None = None
    notification: int | None = None
    deny: str | None = None
    """The command that says no, of an approval."""
    approval: Approval | None = None
    """All of it."""


async def inbox(path: Path, *, as_json: bool) -> int:
    """List what waits for a person: approvals, oldest first; sessions that changed last first; then notifications."""
    async with looking(path) as runtime:
        store = runtime.store
        items = [_approval(found, path) for found in await runtime.approvals()]
        items += [item async for item in _waits(store, path)]
        now = store.clock.read().wall
        unsound = await store.examine(lambda reader: [rule.id for rule, sound in reader.rules.raw() if not sound])
        given_up = await read_notifications(store, None, "dead", _MOST)
        items += [_dead(found, path, again=await _may_try(store, found, now)) for found in given_up]
    for number in unsound:
        stderr().line(f"the stored rule {number} can't be trusted: another program has written it, or it is damaged;")
        stderr().line(f"  nothing is allowed by it. Remove it with: {hint(path, 'rules', 'rm', str(number))}")
    out = stdout()
    if as_json:
        out.line(msgspec.json.encode(items).decode())
    elif items:
        out.write("".join(f"{line}\n" for item in items for line in _lines(out, item, now, path)))
    else:
        out.line("nothing waits for a person")
    return 0


async def _waits(store: Store, path: Path) -> AsyncIterator[Item]:
    for kind in ("session", "process"):  # processes: background calls and durable functions that wait
        last: Journal | None = None
        while page := await store.journals(kind=kind, status="waiting", before=last, limit=store.limits.page):
            for line in page:
                for item in await _readable(store, line, path):
                    yield item
            last = page[-1]


async def _readable(store: Store, line: Journal, path: Path) -> list[Item]:
    """What one of them waits for. One that can't be trusted must not hide the others."""
    try:
        if line.quarantine is not None:
            raise JournalQuarantined(line.id, line.quarantine)
        return await _of_journal(store, line, path)
    except HoldfastError as error:
        stderr().line(f"{one_line(line.id)} can't be read: {one_line(str(error), 200)}")
        return []


async def _of_journal(store: Store, line: Journal, path: Path) -> list[Item]:
    items: list[Item] = []
    for wait in await waits_of(store, line):
        unknown = is_ask(wait.name)
        items.append(
            Item(
                kind="unknown" if unknown else "wait",
                session=line.id,
                what=f"what became of {wait.tool}: it was interrupted" if unknown else _asked(wait.label, wait.tool),
                since=line.updated,
                answer=hint(path, *wait.answer, _ANSWERS if unknown else "JSON"),
                wait=wait.name,
                tool=wait.tool,
                deadline=wait.deadline,
            )
        )
    return items


def _asked(label: str, tool: str | None) -> str:
    return label if tool is None else f"{label} ({tool} asks)"


async def _may_try(store: Store, found: Notification, now: int) -> bool:
    """Whether a notification that was given up could be queued again."""
    if found.expires is not None and found.expires <= now:
        return False
    try:
        return (await store.journal(found.journal)).quarantine is None
    except JournalMissing:
        return False


def _dead(found: Notification, path: Path, *, again: bool) -> Item:
    reason = f": {found.reason}" if found.reason else ""
    return Item(
        kind="notification",
        session=found.journal,
        what=f"{found.title} was not told{reason}",
        since=found.updated,
        answer=hint(path, "notifications", "settle", str(found.id), "queued" if again else "acknowledged"),
        notification=found.id,
    )


def _approval(found: Approval, path: Path) -> Item:
    approve, deny = answers(found, path)
    return Item(
        kind="approval",
        session=found.session,
        what=f"a call of {found.tool}",
        since=found.asked,
        answer=approve,
        tool=found.tool,
        deadline=found.expires,
        deny=deny,
        approval=found,
    )


def _lines(out: Terminal, item: Item, now: int, path: Path) -> list[str]:
    if item.approval is not None:
        shown = [title(out, item.approval, now), *described(out, item.approval, path, whole=False)]
        return [*shown, f"  {printable(item.answer)}", f"  {printable(item.deny or '')}"]
    ago = f"{duration(max(now - item.since, 0))} ago"
    left = "" if item.deadline is None else f", {duration(max(item.deadline - now, 0))} left"
    head = f"{item.kind}  {one_line(item.session, 60)}  {one_line(item.what, 200)}, {ago}{left}"
    return [head.replace(item.kind, out.paint(item.kind, "bold"), 1), f"  {printable(item.answer)}"]
