"""Several processes on one file: one writer a journal, nothing lost, and everybody is woken."""

from __future__ import annotations

import asyncio
import shutil
import signal
import subprocess
import time
from typing import TYPE_CHECKING

import pytest
import workers
from tests.patience import PATIENCE, processor_at_rest
from workers import Servant

from holdfast import open_store
from holdfast.errors import LeaseHeld
from holdfast.testing import check

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from holdfast.store import Lease, Store


async def _until(attempt: Callable[[], Awaitable[Lease]]) -> Lease:
    """Try to claim until it is given."""
    began = time.monotonic()
    while True:
        try:
            return await attempt()
        except LeaseHeld:
            if time.monotonic() - began > PATIENCE:
                raise
            await asyncio.sleep(0.02)


async def _heads(store: Store, *journals: str) -> list[int]:
    return [(await store.journal(journal)).head for journal in journals]


def test_two_processes_that_append_to_different_journals_lose_nothing(tmp_path: Path) -> None:
    database = tmp_path / "store.db"
    with Servant(database) as one, Servant(database) as two:
        for servant, journal in ((one, "a"), (two, "b")):
            servant.ask("open", journal=journal)
            servant.ask("claim", journal=journal)
        one.tell("append", journal="a", count=150, head=1)
        two.tell("append", journal="b", count=150, head=1)
        assert [one.answer().get("head"), two.answer().get("head")] == [151, 151]

    async def look() -> None:
        async with open_store(database) as store:
            assert await check(store) == []
            for journal in ("a", "b"):
                read = [entry.record async for entry in store.read_all(journal, after=1)]
                assert read == [workers.record_of(journal, seq) for seq in range(2, 152)]

    asyncio.run(look())


def test_two_processes_that_make_the_store_at_once_have_the_same_one(tmp_path: Path) -> None:
    database = tmp_path / "new" / "store.db"
    for number in range(3):
        path = database.with_name(f"store-{number}.db")
        running = [
            subprocess.Popen(workers.command("create", path), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for _ in range(4)
        ]
        said = [process.communicate(timeout=60) for process in running]
        assert len({out for out, _ in said}) == 1, said


def test_of_two_processes_that_claim_one_journal_one_wins(tmp_path: Path) -> None:
    with Servant(tmp_path / "store.db") as one, Servant(tmp_path / "store.db") as two:
        one.ask("open", journal="j")
        for round_number in range(10):
            journal = f"j{round_number}"
            one.ask("open", journal=journal)
            meeting = time.monotonic() + 0.05
            for servant in (one, two):
                servant.tell("meet", at=meeting)
                servant.tell("claim", journal=journal)
            for servant in (one, two):
                servant.answer()
            answers = [one.answer(), two.answer()]
            assert sorted(answer.get("error", "won") for answer in answers) == ["LeaseHeld", "won"], answers


def test_the_loser_learns_who_holds_the_lease(tmp_path: Path) -> None:
    with Servant(tmp_path / "store.db") as one, Servant(tmp_path / "store.db") as two:
        one.ask("open", journal="j")
        one.ask("claim", journal="j")
        refused = two.ask("claim", journal="j")
    assert refused["error"] == "LeaseHeld"
    assert refused["holder"] == one.hello["holder"]


async def test_a_holder_that_was_stopped_past_its_lease_is_fenced_off(tmp_path: Path) -> None:
    database = tmp_path / "store.db"
    async with open_store(database) as store:
        await store.open_journal("j")
        with Servant(database) as stopped:
            stopped.ask("claim", journal="j", ttl_ms=300)
            assert stopped.ask("append", journal="j", count=2, head=1)["head"] == 3
            stopped.signal(signal.SIGSTOP)
            stopped.wait_for_state("T")
            lease = await _until(lambda: store.claim("j"))
            assert await store.append(lease, [workers.record_of("j", 4)], head=3) == 4
            stopped.signal(signal.SIGCONT)
            refused = await asyncio.to_thread(stopped.ask, "append", journal="j", count=1, head=3)
        assert refused["error"] == "Fenced"
        assert refused["holder"] == store.owner.describe()
        assert store.owner.describe() in refused["text"]
        assert [entry.epoch async for entry in store.read_all("j")] == [0, 1, 1, 2]
        assert await check(store) == []


async def test_a_holder_that_is_stopped_within_its_lease_keeps_it(tmp_path: Path) -> None:
    database = tmp_path / "store.db"
    async with open_store(database) as store:
        await store.open_journal("j")
        with Servant(database) as stopped:
            stopped.ask("claim", journal="j", ttl_ms=60_000)
            stopped.signal(signal.SIGSTOP)
            stopped.wait_for_state("T")
            with pytest.raises(LeaseHeld):
                await store.claim("j")


@pytest.mark.parametrize("reaped", [False, True], ids=["a zombie", "gone"])
async def test_a_killed_holder_is_taken_over_at_once(reaped: bool, tmp_path: Path) -> None:
    database = tmp_path / "store.db"
    async with open_store(database) as store:
        await store.open_journal("j")
        with Servant(database) as holder:
            holder.ask("claim", journal="j", ttl_ms=600_000)
            with pytest.raises(LeaseHeld):
                await store.claim("j")
            holder.signal(signal.SIGKILL)
            holder.wait_for_state("Z")
            if reaped:
                holder.reap()
            lease = await store.claim("j")
    assert lease.epoch == 2


def test_one_key_from_two_processes_at_once_is_one_input(tmp_path: Path) -> None:
    database, rounds = tmp_path / "store.db", 10
    with Servant(database) as one, Servant(database) as two:
        one.ask("open", journal="j")
        for number in range(1, rounds + 1):
            meeting = time.monotonic() + 0.04
            for servant in (one, two):
                servant.tell("meet", at=meeting)
                servant.tell("accept", journal="j", key=f"k{number}", content={"n": number})
            for servant in (one, two):
                servant.answer()
            answers = [one.answer(), two.answer()]
            assert [answer.get("input") for answer in answers] == [number, number], answers
            assert sorted(answer["fresh"] for answer in answers) == [False, True], answers


def test_one_key_with_other_content_from_two_processes_at_once_is_a_conflict_for_one(tmp_path: Path) -> None:
    with Servant(tmp_path / "store.db") as one, Servant(tmp_path / "store.db") as two:
        one.ask("open", journal="j")
        meeting = time.monotonic() + 0.05
        for content, servant in enumerate((one, two)):
            servant.tell("meet", at=meeting)
            servant.tell("accept", journal="j", key="k", content=content)
        for servant in (one, two):
            servant.answer()
        assert sorted(servant.answer().get("error", "taken") for servant in (one, two)) == ["KeyConflict", "taken"]


# ---- waking each other -----------------------------------------------------------------------------------------------


async def test_a_commit_of_another_process_wakes_a_waiter_within_50_ms(tmp_path: Path) -> None:
    database, delays = tmp_path / "store.db", list[float]()
    async with open_store(database) as store:
        await store.open_journal("j")
        with Servant(database) as writer:
            writer.ask("claim", journal="j")
            await store.changed(store.version, timeout=0.2)
            for head in range(1, 12):
                delays.append(await _delay(store, writer, head))
    assert sorted(delays)[2] < 0.05, [f"{delay * 1000:.1f} ms" for delay in delays]


async def _delay(store: Store, writer: Servant, head: int) -> float:
    """From the acknowledgement in the other process until this one sees the record after having been woken.

    Other work on the machine makes some of them long; who is not woken finds the record only when a second is over.
    """
    version = store.version
    asked = asyncio.create_task(asyncio.to_thread(writer.ask, "stamp", journal="j", head=head))
    while (await store.journal("j")).head == head:
        seen = await store.changed(version, timeout=PATIENCE)
        assert seen > version or (await store.journal("j")).head == head, "a commit is there and nobody was woken"
        assert seen > version, "the other process did not commit in time"
        version = seen
    woken = time.monotonic()
    return woken - (await asked)["at"]


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
async def test_a_commit_on_a_slow_disk_wakes_a_waiter_within_50_ms(tmp_path: Path) -> None:
    """The log is written long before the commit takes effect: who looks at the first sign of it sees nothing yet."""
    database, delays = tmp_path / "store.db", list[float]()
    slow = ["strace", "-f", "-o", str(tmp_path / "log"), "-e", "trace=fdatasync"]
    async with open_store(database) as store:
        await store.open_journal("j")
        with Servant(database, under=[*slow, "-e", "inject=fdatasync:delay_enter=150000"]) as writer:
            writer.ask("claim", journal="j")
            await store.changed(store.version, timeout=0.3)
            for head in range(1, 6):
                delays.append(await _delay(store, writer, head))
    assert sorted(delays)[1] < 0.05, [f"{delay * 1000:.1f} ms" for delay in delays]


async def test_no_commit_of_another_process_is_missed(tmp_path: Path) -> None:
    """The waiter always gets to see the last record, without ever having polled."""
    database = tmp_path / "store.db"
    async with open_store(database) as store:
        await store.open_journal("j")
        with Servant(database) as writer:
            writer.ask("claim", journal="j")
            version = store.version
            writer.tell("append", journal="j", count=200, head=1)
            while await _heads(store, "j") != [201]:
                seen = await store.changed(version, timeout=PATIENCE)
                assert seen > version, "woken too late or never"
                version = seen


async def test_a_waiter_burns_no_cpu_while_nothing_happens(tmp_path: Path) -> None:
    async with open_store(tmp_path / "store.db") as store:
        await store.open_journal("j")
        await store.changed(store.version, timeout=0.3)  # let the echo of our own writes pass
        waiting = asyncio.create_task(store.changed(store.version, timeout=PATIENCE))
        await asyncio.sleep(0)
        assert await processor_at_rest() < 0.05
        waiting.cancel()
