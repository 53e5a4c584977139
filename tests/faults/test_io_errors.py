"""Disks that fail: the store says truthfully what became of each write, and goes on when the fault is over."""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import workers

from holdfast import open_store
from holdfast.errors import StoreError, StoreFull
from holdfast.testing import check

if TYPE_CHECKING:
    from collections.abc import Iterator

# strace counts the calls of each thread by itself; the low numbers belong to the thread that opens the store as well.
needs_strace = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")

_SHARED_MEMORY, _PAGE = 32_768, 4_096
_REPRO = "repro: python -m pytest tests/faults/test_io_errors.py -k {}"


@dataclass
class Told:
    """What a worker said about each of its writes."""

    acknowledged: set[int] = field(default_factory=set[int])
    refused: dict[int, str] = field(default_factory=dict[int, str])
    text: str = ""

    @property
    def tail(self) -> str:
        """The end of what it said, for a message."""
        return self.text[-2_000:]

    @property
    def ended(self) -> bool:
        return "\nEND " in self.text


def _told(done: subprocess.CompletedProcess[str]) -> Told:
    told = Told(text=f"{done.stdout}\n{done.stderr}")
    for line in done.stdout.splitlines():
        what, number, *rest = line.split()
        if what == "ACK":
            told.acknowledged.add(int(number))
        elif what == "REFUSED":
            told.refused[int(number)] = rest[0]
    return told


async def _make(database: Path, journal: str = "j") -> None:
    """A store that is there before the fault: the fault is about writing, not about making."""
    async with open_store(database) as store:
        await store.open_journal(journal)


async def _truth(database: Path, told: Told, journal: str = "j") -> None:
    """What was acknowledged is there, what was refused is not, and the store is whole."""
    async with open_store(database) as store:
        assert await check(store) == [], told.tail
        there = {entry.seq async for entry in store.read_all(journal)}
    assert told.acknowledged <= there, f"acknowledged and lost: {told.acknowledged - there}\n{told.tail}"
    # A number that was refused once may have been written by the next attempt; only the last word on it counts.
    gone = {n for n, kind in told.refused.items() if kind != "CommitUnknown" and n not in told.acknowledged}
    assert not gone & there, f"refused, yet there: {gone & there}\n{told.tail}"


def _inject(call: str, error: str, when: str, log: Path) -> list[str]:
    return ["strace", "-f", "-o", str(log), "-e", f"trace={call}", "-e", f"inject={call}:error={error}:when={when}"]


def _append(
    database: Path, under: list[str], records: int, readers: str, *, die: bool = False
) -> subprocess.CompletedProcess[str]:
    reads = readers == "with a reader"
    return workers.run(
        "appender", database, under=under, journal="j", records=records, read_first=reads, die_when_refused=die
    )


def _injected(log: Path) -> int:
    return log.read_text(encoding="utf-8").count("(INJECTED)")


@needs_strace
@pytest.mark.parametrize("when", [5, *(pytest.param(when, marks=pytest.mark.torture) for when in (4, 9, 14))])
@pytest.mark.parametrize("readers", ["alone", "with a reader"])
async def test_one_failed_sync_is_answered_truthfully_and_the_store_goes_on(
    when: int, readers: str, tmp_path: Path
) -> None:
    database = tmp_path / "store.db"
    await _make(database)
    under = _inject("fdatasync", "EIO", str(when), tmp_path / "log")
    told = _told(_append(database, under, 20, readers))
    assert _injected(tmp_path / "log"), "the fault never happened"
    assert told.ended, told.tail
    assert len(told.acknowledged) >= 18, f"it did not go on after the fault\n{told.tail}"
    await _truth(database, told)


@needs_strace
@pytest.mark.parametrize("when", [6, *(pytest.param(when, marks=pytest.mark.torture) for when in (5, 11))])
@pytest.mark.parametrize("readers", ["alone", "with a reader"])
async def test_syncs_that_fail_from_now_on_are_answered_truthfully(when: int, readers: str, tmp_path: Path) -> None:
    database = tmp_path / "store.db"
    await _make(database)
    under = _inject("fdatasync", "EIO", f"{when}+", tmp_path / "log")
    told = _told(_append(database, under, 12, readers))
    assert told.refused, f"no write was refused\n{told.tail}"
    assert set(told.refused.values()) <= {"StoreFailed", "StoreFull", "CommitUnknown"}, told.tail
    await _truth(database, told)


@needs_strace
@pytest.mark.parametrize("when", [4, pytest.param(7, marks=pytest.mark.torture)])
@pytest.mark.parametrize("readers", ["alone", "with a reader"])
async def test_a_write_that_was_refused_after_a_failed_sync_stays_away_when_the_process_dies_at_once(
    when: int, readers: str, tmp_path: Path
) -> None:
    """The failed commit is whole in the log, and only its sync failed: a restart must not find it there."""
    database = tmp_path / "store.db"
    await _make(database)
    under = _inject("fdatasync", "EIO", str(when), tmp_path / "log")
    told = _told(
        workers.run(
            "appender",
            database,
            under=under,
            journal="j",
            records=12,
            read_first=readers == "with a reader",
            die_when_refused=True,
        )
    )
    assert _injected(tmp_path / "log"), "the fault never happened"
    await _truth(database, told)


@needs_strace
@pytest.mark.torture
@pytest.mark.timeout(900)
@pytest.mark.parametrize("call", ["fdatasync", "pwrite64"])
@pytest.mark.parametrize("readers", ["alone", "with a reader"])
async def test_a_fault_at_every_call_is_answered_truthfully(call: str, readers: str, tmp_path: Path) -> None:
    for when in range(1, 40):
        for die in (False, True):
            database = tmp_path / f"{when}-{die}" / "store.db"
            await _make(database)
            under = _inject(call, "EIO", str(when), tmp_path / "log")
            done = workers.run(
                "appender",
                database,
                under=under,
                journal="j",
                records=10,
                read_first=readers == "with a reader",
                die_when_refused=die,
            )
            print(_REPRO.format(f"every_call # {call} {when} {die}"))
            await _truth(database, _told(done))


@needs_strace
@pytest.mark.parametrize("when", [30, 47])
async def test_no_room_in_the_middle_of_a_write_is_a_full_store_and_it_goes_on(when: int, tmp_path: Path) -> None:
    database = tmp_path / "store.db"
    await _make(database)
    under = _inject("pwrite64", "ENOSPC", str(when), tmp_path / "log")
    told = _told(workers.run("appender", database, under=under, journal="j", records=12))
    assert list(told.refused.values()) == ["StoreFull"], told.tail
    assert told.ended, told.tail
    assert len(told.acknowledged) == 11, told.tail
    await _truth(database, told)


# ---- a disk that is really full --------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1024k,mode=0700", "none", str(disk)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"a small file system can't be mounted here: {mounted.stderr.strip()}")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def _fill(disk: Path) -> Told:
    filler = disk / "filler"
    filler.write_bytes(bytes(400_000))
    (disk / "spare").write_bytes(bytes(100_000))
    done = workers.run("filler", disk / "store.db", journal="j", records=120, filler=str(filler))
    return _told(done)


async def test_a_full_disk_is_a_full_store_and_nothing_acknowledged_is_lost(small_disk: Path) -> None:
    told = _fill(small_disk)
    assert set(told.refused.values()) == {"StoreFull"}, told.tail
    (small_disk / "spare").unlink()  # room to open the store
    await _truth(small_disk / "store.db", told)


async def test_readers_live_while_the_disk_is_full(small_disk: Path) -> None:
    told = _fill(small_disk)
    lines = [line.split() for line in told.text.splitlines()]
    at = next(n for n, line in enumerate(lines) if line[:1] == ["REFUSED"])
    head = max(int(line[1]) for line in lines[:at] if line[:1] == ["ACK"])
    assert lines[at + 1][:2] == ["READ", str(head)], told.tail


async def test_writes_go_on_when_there_is_room_again(small_disk: Path) -> None:
    told = _fill(small_disk)
    before, _, after = told.text.partition("\nROOM ")
    assert "\nREFUSED " in before, told.tail
    assert after.count("\nACK ") >= 5, told.tail


async def test_opening_a_store_on_a_full_disk_says_that_it_is_full(small_disk: Path) -> None:
    database = small_disk / "store.db"
    await _make(database)
    _take_all_room(small_disk / "filler")
    with pytest.raises(StoreFull):
        async with open_store(database):
            pass


async def test_a_store_that_could_not_be_opened_on_a_full_disk_is_let_go_of(small_disk: Path) -> None:
    database = small_disk / "store.db"
    await _make(database)
    filler = small_disk / "filler"
    _take_all_room(filler)
    os.truncate(filler, filler.stat().st_size - _SHARED_MEMORY - _PAGE)
    with pytest.raises(StoreError) as caught:
        async with open_store(database):
            pass
    assert not _handles(database), f"still open after {caught.value}"


def _handles(database: Path) -> list[str]:
    """The files of this store that this process has open."""
    found: list[str] = []
    for handle in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the listing itself is a handle that is gone by now
            found.append(str(handle.readlink()))
    return [name for name in found if name.startswith(str(database))]


def _take_all_room(filler: Path) -> None:
    with filler.open("wb", buffering=0) as file:
        for size in (65_536, 4_096):
            with suppress(OSError):
                while True:
                    file.write(bytes(size))


# ---- writes that are cut short, and calls that are interrupted -------------------------------------------------------

_SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

typedef ssize_t (*pwrite_fn)(int, const void *, size_t, off64_t);
static long calls, halves, interruptions;

static ssize_t faulty(const char *name, int fd, const void *data, size_t size, off64_t at) {
    pwrite_fn real = (pwrite_fn)dlsym(RTLD_NEXT, name);
    long number = __sync_add_and_fetch(&calls, 1);
    if (number % 3 == 0) {
        __sync_add_and_fetch(&interruptions, 1);
        errno = EINTR;
        return -1;
    }
    if (number % 3 == 1 && size > 1) {
        __sync_add_and_fetch(&halves, 1);
        return real(fd, data, size / 2, at);
    }
    return real(fd, data, size, at);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) { return faulty("pwrite64", fd, data, size, at); }
ssize_t pwrite(int fd, const void *data, size_t size, off_t at) { return faulty("pwrite", fd, data, size, at); }

__attribute__((destructor)) static void report(void) {
    const char *path = getenv("SHIM_REPORT");
    FILE *file = path ? fopen(path, "w") : NULL;
    if (!file) return;
    fprintf(file, "%ld %ld", halves, interruptions);
    fclose(file);
}
"""


def _compile(source: Path, target: Path) -> None:
    command = ["gcc", "-O1", "-shared", "-fPIC", "-o", str(target), str(source), "-ldl"]
    subprocess.run(command, check=True, timeout=60)


@needs_gcc
async def test_short_and_interrupted_writes_are_invisible(tmp_path: Path) -> None:
    (tmp_path / "shim.c").write_text(_SHIM, encoding="ascii")
    shim, report, database = tmp_path / "shim.so", tmp_path / "report", tmp_path / "store.db"
    _compile(tmp_path / "shim.c", shim)
    env = {"LD_PRELOAD": str(shim), "SHIM_REPORT": str(report)}
    told = _told(workers.run("appender", database, env=env, journal="j", records=40))
    halves, interruptions = map(int, report.read_text(encoding="ascii").split())
    assert min(halves, interruptions) > 20, "the shim was not in the way"
    assert told.acknowledged == set(range(2, 42)), told.tail
    await _truth(database, told)
