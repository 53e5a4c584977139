"""`holdfast notifications`: what is to be told later says when, and only a timer that has gone off says that it has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from holdfast.store import open_store
from holdfast.toolkits.timers import TIMER_KIND, TIMER_TITLE

if TYPE_CHECKING:
    from tests.behaviour.shell import Shell

HOUR = 3_600_000


async def _listed(shell: Shell, *, settled: Any = None, ahead: int = 2 * HOUR, **said: Any) -> str:
    """The line of the one notification that there is."""
    async with open_store(shell.folder / ".holdfast" / "holdfast.db") as store:
        await store.open_journal("s", kind="session")
        due = store.clock.read().wall + ahead
        given: dict[str, Any] = {
            "kind": TIMER_KIND,
            "title": TIMER_TITLE,
            "body": "water the plants\n(set to go off at noon)",
            **said,
        }
        found, _ = await store.notify("s", due=due, **given)
        if settled is not None:
            await store.settle_notification(found.id, settled)
    _, line = shell("notifications").stdout.splitlines()
    return line


async def test_a_timer_that_is_set_says_when_it_will_go_off_and_for_what(shell: Shell) -> None:
    line = await _listed(shell)
    assert "A timer: water the plants" in line
    assert "(goes off in 1 h 59 m)" in line
    assert "has gone off" not in line


async def test_a_timer_whose_time_has_come_says_that_it_has_gone_off(shell: Shell) -> None:
    line = await _listed(shell, ahead=-HOUR)
    assert line.endswith(TIMER_TITLE)


async def test_a_timer_that_was_cancelled_in_time_does_not_say_that_it_has_gone_off(shell: Shell) -> None:
    line = await _listed(shell, settled="cancelled")
    assert "A timer: water the plants" in line
    assert "gone off" not in line


@pytest.mark.parametrize("kind", ["host", "task_succeeded"])
async def test_whatever_is_told_later_says_when(shell: Shell, kind: str) -> None:
    line = await _listed(shell, kind=kind, title="The office opens")
    assert "The office opens (is told in 1 h 59 m)" in line
