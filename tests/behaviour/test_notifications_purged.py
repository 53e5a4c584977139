"""While a runtime is open, notifications that are over are forgotten after a while, and those that are not stay."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.behaviour.talk import until

import holdfast as hf

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.store import Store

SHORT: Final = 1
"""Milliseconds for which they are kept."""


async def _over(store: Store, count: int) -> None:
    """A session with so many notifications that were taken as read, and one that waits."""
    await store.open_journal("s", kind="session", agent="nobody")
    for n in range(count):
        found, _ = await store.notify("s", kind="task", title=f"{n}")
        await store.settle_notification(found.id, "acknowledged")
    await store.notify("s", kind="task", title="waits")


async def _titles(store: Store) -> list[str]:
    return [found.title for found in await store.notifications(limit=store.limits.page)]


async def test_finished_notifications_are_forgotten_when_a_runtime_opens(tmp_path: Path) -> None:
    path, limits = tmp_path / "store.db", hf.StoreLimits(notification_kept_ms=SHORT)
    async with hf.open_store(path) as store:
        await _over(store, 3)
    async with hf.open(path, limits=limits) as runtime:

        async def forgotten() -> bool:
            return await _titles(runtime.store) == ["waits"]

        await until(forgotten)


async def test_one_run_forgets_a_page_and_the_next_tick_goes_on(tmp_path: Path) -> None:
    path, limits = tmp_path / "store.db", hf.StoreLimits(notification_kept_ms=SHORT, page=2)
    async with hf.open_store(path) as store:
        await _over(store, 5)
    left: set[int] = set()
    async with hf.open(path, limits=limits) as runtime:

        async def forgotten() -> bool:
            states = await runtime.store.examine(lambda reader: [found.state for found, _ in reader.notifications.raw()])
            left.add(states.count("acknowledged"))
            runtime.gate_changed()
            return states == ["queued"]

        await until(forgotten)
    assert left <= {5, 3, 1, 0}


async def test_what_was_finished_a_moment_ago_stays_when_a_runtime_opens(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with hf.open_store(path) as store:
        await _over(store, 1)
        await store.memory_put("m", "gone", "x", expires=store.clock.read().wall)
    async with hf.open(path) as runtime:

        async def purged() -> bool:  # memory is seen to just before
            return not await runtime.store.examine(lambda reader: list(reader.memories.raw()))

        await until(purged)
        runtime.gate_changed()
        assert await _titles(runtime.store) == ["waits", "0"]
