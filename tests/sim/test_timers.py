"""Timers: due by the wall clock, waited for by the monotonic one. A jump changes when, never whether or how often."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.store import Store
from holdfast.testing import MemoryBackend, SimulatedClock, SimulatedLoop, simulate

HOUR = 3_600_000
DAY = 24 * HOUR


def _fires_after(jump_ms: int) -> float:
    """After how many seconds of real time a timer of one hour fires, when the clock jumps after ten minutes."""

    async def main(loop: SimulatedLoop) -> float:
        clock = SimulatedClock(loop)
        store = Store(MemoryBackend(clock=clock))
        await store.open_journal("j")
        due = clock.read().wall + HOUR
        await store.open_wait("j", "alarm", deadline=due)
        begun = loop.time()
        loop.call_later(600, lambda: setattr(clock, "skew_ms", jump_ms))
        assert await store.next_due() == due
        await store.until(due)
        (wait,) = await store.due()
        settled = await store.expire_wait("j", wait.name)
        assert settled.won
        assert not (await store.expire_wait("j", wait.name)).won, "it fired twice"
        assert await store.due() == []
        return loop.time() - begun

    return simulate(0, main)


def test_a_timer_fires_at_its_time() -> None:
    assert _fires_after(0) == pytest.approx(3_600, abs=1)


def test_a_clock_set_forward_past_the_time_lets_it_fire_within_half_a_minute() -> None:
    assert _fires_after(DAY) == pytest.approx(600, abs=31)


def test_a_clock_set_back_delays_it_and_it_still_fires_once() -> None:
    assert _fires_after(-HOUR) == pytest.approx(7_200, abs=1)


def test_thirty_days_pass_in_no_time() -> None:
    async def main(loop: SimulatedLoop) -> float:
        await asyncio.sleep(30 * 86_400)
        return loop.time()

    assert simulate(1, main) == 30 * 86_400
