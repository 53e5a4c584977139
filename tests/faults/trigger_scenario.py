"""A month of a cron trigger, by two workers that can be killed anywhere.

March of 2026 in Rome: on the 29th the time of the trigger does not exist. The clock goes on by itself and jumps; how
far it has come is kept beside the store. What the trigger starts is an input to a session of its own, and stays there.
Run as a script it serves requests (folder, crash point) with a real process each.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final
from zoneinfo import ZoneInfo

from forking import patiently, serve

import holdfast as hf
from holdfast.store import open_store
from holdfast.testing import ManualClock, ScriptedModel
from holdfast.triggers.schedules import to_wall

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.runtime.runtime import Runtime

NAME: Final = "digest"
JOURNAL: Final = f"trigger/{NAME}"
START: Final = to_wall(datetime(2026, 3, 1, tzinfo=UTC))
HOUR: Final = 3_600_000
DAYS: Final = 31
STEP: Final = 12 * HOUR
JUMPS: Final = {5: 30 * HOUR, 9: -30 * HOUR, 20: 3 * HOUR, 21: -3 * HOUR, 40: -50 * HOUR, 44: 50 * HOUR}
"""On these steps the clock jumps, by so many milliseconds."""
AGENT: Final = hf.Agent("writer", model=ScriptedModel([]))


def expected() -> dict[str, str]:
    """Every start of the month, by its key, and the day that it is about."""
    first = datetime(2026, 3, 1, 2, 30, tzinfo=ZoneInfo("Europe/Rome"))
    moments = {first + timedelta(day) for day in range(DAYS)}  # by the local clock
    named = {_key(moment.astimezone(UTC)): moment.date().isoformat() for moment in moments}
    del named[_key(datetime(2026, 3, 29, 1, 30, tzinfo=UTC))]  # half past two does not exist on this day
    return named | {_key(datetime(2026, 3, 29, 1, tzinfo=UTC)): "2026-03-29"}


def _key(moment: datetime) -> str:
    return f"trigger/{NAME}/1/at/{moment.strftime('%Y-%m-%dT%H:%M:%SZ')}"


class Month:
    """The steps of the month: which one is next is kept in a file, so that another process goes on from it."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "step.txt"
        self.step = int(self._path.read_text()) if self._path.exists() else 0
        jumped = sum(jump for at, jump in JUMPS.items() if at <= self.step)
        passed = min(self.step, 2 * DAYS) * STEP
        self.clock = ManualClock(START + passed + jumped, mono=1_000_000 + passed)

    def advance(self) -> bool:
        """One step further; whether the month goes on."""
        self.step += 1
        new = self._path.with_suffix(".new")
        new.write_text(str(self.step))
        new.replace(self._path)
        if self.goes_on:  # else the first day of the next month would be due
            self.clock.advance(STEP)
            self.clock.jump(JUMPS.get(self.step, 0))
        return self.goes_on

    @property
    def goes_on(self) -> bool:
        return self.step <= 2 * DAYS


async def work(folder: Path) -> None:
    """The whole month, from wherever an earlier process was, by two workers that share the file."""
    month, path = Month(folder), folder / "store.db"
    async with (
        open_store(path, durability="process", clock=month.clock) as first,
        open_store(path, durability="process", clock=month.clock) as second,
        hf.Runtime(first, [AGENT], drive=False) as one,
        hf.Runtime(second, [AGENT], drive=False) as two,
    ):
        await asyncio.gather(*(_declared(runtime) for runtime in (one, two)))
        going = month.goes_on
        while going:
            # As the engine does: what is due is expired, and whoever is free drives.
            for wait in await first.due():
                await first.expire_wait(wait.journal, wait.name)
            await asyncio.gather(*(_driven(runtime) for runtime in (one, two)))
            going = month.advance()


async def _declared(runtime: Runtime) -> None:
    source = hf.cron("30 2 * * *", tz="Europe/Rome", misfire="all")
    await runtime.every(NAME, source, AGENT, prompt="For {date}")


async def _driven(runtime: Runtime) -> None:
    """One look of a worker: it drives what has work, as the engine of a runtime would."""
    if not any(found.journal == JOURNAL for found in await runtime.store.work()):
        return
    drive = runtime.triggers.drive_of(JOURNAL)
    assert drive is not None
    await drive.run()


def _once(folder: Path, _: dict[str, str]) -> None:
    asyncio.run(patiently(work(folder)))


if __name__ == "__main__":
    serve(_once)
