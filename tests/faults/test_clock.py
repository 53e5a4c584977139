"""Clocks that jump: they change when something happens, never whether or how often."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import workers

from holdfast import open_store
from holdfast.errors import Fenced, LeaseHeld
from holdfast.testing import ManualClock

if TYPE_CHECKING:
    from pathlib import Path

DAY = 24 * 3_600 * 1_000
TERM = 10_000
JUMPS = pytest.mark.parametrize("jump", [DAY, -DAY, 365 * DAY, -365 * DAY])


@JUMPS
async def test_a_jump_of_the_wall_clock_takes_no_live_lease_away(jump: int, tmp_path: Path) -> None:
    clock = ManualClock()
    async with open_store(tmp_path / "s.db", clock=clock) as one, open_store(tmp_path / "s.db", clock=clock) as two:
        await one.open_journal("j")
        lease = await one.claim("j", ttl_ms=TERM)
        clock.jump(jump)
        clock.advance(TERM - 1)
        with pytest.raises(LeaseHeld):
            await two.claim("j")
        assert await one.append(lease, [workers.record_of("j", 2)], head=1) == 2


@JUMPS
async def test_a_jump_of_the_wall_clock_makes_no_lease_last_longer(jump: int, tmp_path: Path) -> None:
    clock = ManualClock()
    async with open_store(tmp_path / "s.db", clock=clock) as one, open_store(tmp_path / "s.db", clock=clock) as two:
        await one.open_journal("j")
        lease = await one.claim("j", ttl_ms=TERM)
        clock.jump(jump)
        clock.advance(TERM)
        assert (await two.claim("j")).epoch == lease.epoch + 1
        with pytest.raises(Fenced):
            await one.append(lease, [workers.record_of("j", 2)], head=1)


@JUMPS
async def test_a_lease_that_is_renewed_after_a_jump_lasts_one_term(jump: int, tmp_path: Path) -> None:
    clock = ManualClock()
    async with open_store(tmp_path / "s.db", clock=clock) as one, open_store(tmp_path / "s.db", clock=clock) as two:
        await one.open_journal("j")
        lease = await one.claim("j", ttl_ms=TERM)
        clock.jump(jump)
        clock.advance(TERM // 2)
        await one.renew(lease)
        clock.advance(TERM - 1)
        with pytest.raises(LeaseHeld):
            await two.claim("j")
        clock.advance(1)
        assert (await two.claim("j")).epoch == 2


@pytest.mark.parametrize("jump", [0, DAY, -DAY, -365 * DAY])
async def test_a_lease_does_not_outlive_a_restart_of_the_machine_for_long(jump: int, tmp_path: Path) -> None:
    """After a restart the monotonic clock begins anew and the wall clock may be wrong: a term is still a term.

    The first opening stays open, as that of a machine that went down had no time to give its lease back.
    """
    clock = ManualClock()
    async with open_store(tmp_path / "s.db", clock=clock) as before:
        await before.open_journal("j")
        await before.claim("j", ttl_ms=TERM)
        clock.reboot("boot-2")
        clock.jump(jump)
        async with open_store(tmp_path / "s.db", clock=clock) as after:
            clock.advance(TERM)
            assert (await after.claim("j")).epoch == 2


# ---- deadlines of waits ----------------------------------------------------------------------------------------------


async def _open_wait(path: Path, clock: ManualClock) -> int:
    """A wait that is due in one hour."""
    deadline = clock.read().wall + 3_600_000
    async with open_store(path, clock=clock) as store:
        await store.open_journal("j")
        await store.open_wait("j", "w", deadline=deadline)
    return deadline


async def test_a_jump_forward_makes_a_wait_due_now_and_once(tmp_path: Path) -> None:
    clock = ManualClock()
    await _open_wait(tmp_path / "s.db", clock)
    async with open_store(tmp_path / "s.db", clock=clock) as store:
        assert await store.due() == []
        clock.jump(DAY)
        assert [wait.name for wait in await store.due()] == ["w"]
        assert [(await store.expire_wait("j", "w")).won for _ in range(3)] == [True, False, False]
        assert await store.due() == []


async def test_a_jump_back_makes_a_wait_due_later_and_once(tmp_path: Path) -> None:
    clock = ManualClock()
    deadline = await _open_wait(tmp_path / "s.db", clock)
    async with open_store(tmp_path / "s.db", clock=clock) as store:
        clock.jump(-DAY)
        clock.advance(3_600_000)
        assert await store.due() == []
        assert not (await store.expire_wait("j", "w")).won
        clock.advance(deadline - clock.read().wall)
        assert [wait.name for wait in await store.due()] == ["w"]
        assert [(await store.expire_wait("j", "w")).won for _ in range(2)] == [True, False]


async def test_an_expired_wait_stays_expired_when_the_clock_jumps_back(tmp_path: Path) -> None:
    clock = ManualClock()
    await _open_wait(tmp_path / "s.db", clock)
    async with open_store(tmp_path / "s.db", clock=clock) as store:
        clock.jump(DAY)
        await store.expire_wait("j", "w")
        clock.jump(-2 * DAY)
        late = await store.resolve(store.wait_token("j", "w"), "late")
        assert (late.won, late.wait.state) == (False, "expired")
        clock.jump(4 * DAY)
        assert await store.due() == []


async def test_a_resolved_wait_never_expires_wherever_the_clock_jumps(tmp_path: Path) -> None:
    clock = ManualClock()
    await _open_wait(tmp_path / "s.db", clock)
    async with open_store(tmp_path / "s.db", clock=clock) as store:
        assert (await store.resolve(store.wait_token("j", "w"), "yes")).won
        clock.jump(DAY)
        assert await store.due() == []
        settled = await store.expire_wait("j", "w")
        assert (settled.won, settled.wait.state) == (False, "resolved")


@JUMPS
async def test_opening_a_wait_again_after_a_jump_keeps_its_first_deadline(jump: int, tmp_path: Path) -> None:
    clock = ManualClock()
    deadline = await _open_wait(tmp_path / "s.db", clock)
    clock.jump(jump)
    async with open_store(tmp_path / "s.db", clock=clock) as store:
        assert (await store.open_wait("j", "w", deadline=clock.read().wall + 1)).deadline == deadline
        assert await store.next_due() == deadline
