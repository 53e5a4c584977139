"""While a runtime is open, notifications that are over are forgotten after a while, and those that are not stay."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.behaviour.talk import until

import holdfast as hf
from holdfast.testing import ManualClock

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.store import Store

MONTH: Final = 30 * 24 * 60 * 60 * 1000


async def _over(store: Store, count: int) -> None:
    """A session with so many notifications that were taken as read, and one that waits."""
    await store.open_journal("s", kind="session", agent="nobody")
    for n in range(count):
        found, _ = await store.notify("s", kind="task", title=f"{n}")
        await store.settle_notification(found.id, "acknowledged")
    await store.notify("s", kind="task", title="waits")


async def _titles(store: Store) -> list[str]:
    return [found.title for found in await store.notifications(limit=store.limits.page)]


async def test_what_was_finished_a_month_ago_is_forgotten_and_what_came_later_stays(tmp_path: Path) -> None:
    path, clock = tmp_path / "store.db", ManualClock()
    async with hf.open_store(path, clock=clock) as store:
        await _over(store, 3)
        clock.advance(MONTH)
        late, _ = await store.notify("s", kind="task", title="late")
        await store.settle_notification(late.id, "acknowledged")
    async with hf.open(path, clock=clock) as runtime:

        async def forgotten() -> bool:
            return await _titles(runtime.store) == ["late", "waits"]

        await until(forgotten)


async def test_one_run_forgets_a_page_and_the_next_tick_goes_on(tmp_path: Path) -> None:
    path, limits = tmp_path / "store.db", hf.StoreLimits(notification_kept_ms=1, page=2)
    async with hf.open_store(path) as store:
        await _over(store, 5)
    left: set[int] = set()
    async with hf.open(path, limits=limits) as runtime:

        async def forgotten() -> bool:
            states = await runtime.store.examine(
                lambda reader: [found.state for found, _ in reader.notifications.raw()]
            )
            left.add(states.count("acknowledged"))
            runtime.gate_changed()
            return states == ["queued"]

        await until(forgotten)
    assert left <= {5, 3, 1, 0}
