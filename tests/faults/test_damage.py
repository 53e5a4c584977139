"""Damage to the file: every flipped bit in a record is found, that journal stops, and the others are served."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import apsw
import pytest
import workers

from holdfast import open_store
from holdfast.errors import HoldfastError, JournalCorrupt, JournalQuarantined, StoreDamaged, StoreError
from holdfast.records import encode
from holdfast.store.paths import key_file
from holdfast.testing import check

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.store import Store
    from holdfast.store.contract import Entry

JOURNALS = ("ant", "bee", "cat")
RECORDS = 12
_SEED = int(os.environ.get("TORTURE_SEED", "1"))


def _repro(name: str) -> str:
    return f"seed {_SEED}; repro: TORTURE_SEED={_SEED} python -m pytest tests/faults/test_damage.py -k {name}"


@pytest.fixture
def scratch() -> Iterator[Path]:
    """In memory: many stores are opened, and what is tested is not the disk."""
    base = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108
    with tempfile.TemporaryDirectory(dir=base) as name:
        yield Path(name)


@pytest.fixture
async def whole(scratch: Path) -> Path:
    """A closed store of three journals, all of it in one file."""
    database = scratch / "whole.db"
    async with open_store(database) as store:
        for journal in JOURNALS:
            await store.open_journal(journal)
            lease = await store.claim(journal)
            added = [workers.record_of(journal, seq) for seq in range(2, RECORDS + 1)]
            await store.append(lease, added, head=1)
            await store.release(lease)
    return database


def _damaged(whole: Path, flips: list[tuple[int, int]]) -> Path:
    """A copy with these (byte, bit) flipped."""
    body = bytearray(whole.read_bytes())
    for at, bit in flips:
        body[at] ^= 1 << bit
    return _written(whole, bytes(body))


def _written(whole: Path, body: bytes) -> Path:
    database = whole.with_name("damaged.db")
    for beside in whole.parent.glob("damaged.db*"):
        beside.unlink()
    database.touch(0o600)
    database.write_bytes(body)
    shutil.copy(key_file(whole), key_file(database))
    return database


def _content(database: Path) -> bytes:
    return database.read_bytes()


def _log_of(database: Path) -> Path:
    return Path(f"{database}-wal")


def _execute(database: Path, *statements: tuple[str, tuple[object, ...]]) -> None:
    """Change the file behind the store's back."""
    connection: Any = apsw.Connection(str(database))
    for sql, values in statements:
        connection.execute(sql, values)
    connection.close()


def _places(whole: Path) -> list[tuple[str, int, int, int]]:
    """Journal, sequence, offset and length of record bodies that lie in one piece in the file."""
    content = whole.read_bytes()
    found: list[tuple[str, int, int, int]] = []
    for journal in JOURNALS:
        for seq in range(2, RECORDS + 1):
            body = encode(workers.record_of(journal, seq))
            if content.count(body) == 1:
                found.append((journal, seq, content.index(body), len(body)))
    assert len(found) > len(JOURNALS) * 4, "the bodies were not found in the file"
    return found


async def _read(store: Store, journal: str) -> list[Entry]:
    return [entry async for entry in store.read_all(journal)]


def _flips(whole: Path, count: int) -> list[tuple[str, int, int, int]]:
    """Seeded flips: journal, sequence, byte, bit."""
    seed = random.Random(_SEED)
    places = _places(whole)
    chosen: list[tuple[str, int, int, int]] = []
    for _ in range(count):
        journal, seq, offset, length = seed.choice(places)
        chosen.append((journal, seq, offset + seed.randrange(length), seed.randrange(8)))
    return chosen


async def test_every_flipped_bit_in_a_record_is_found_and_stops_only_its_journal(whole: Path) -> None:
    for journal, seq, at, bit in _flips(whole, 120):
        async with open_store(_damaged(whole, [(at, bit)])) as store:
            with pytest.raises(JournalCorrupt) as caught:
                await _read(store, journal)
            assert (caught.value.journal, caught.value.seq) == (journal, seq), _repro("flipped_bit_in_a_record")
            for name in JOURNALS:
                line = await store.journal(name)
                assert (line.quarantine is not None) == (name == journal), _repro("flipped_bit_in_a_record")
                if name != journal:
                    assert len(await _read(store, name)) == RECORDS


async def test_a_quarantined_journal_is_neither_claimed_nor_appended_to(whole: Path) -> None:
    journal, _, at, bit = _flips(whole, 1)[0]
    async with open_store(_damaged(whole, [(at, bit)])) as store:
        lease = await store.claim(journal)
        with pytest.raises(JournalCorrupt):
            await _read(store, journal)
        with pytest.raises(JournalQuarantined):
            await store.append(lease, [workers.record_of(journal, RECORDS + 1)], head=RECORDS)
        await store.release(lease)
        with pytest.raises(JournalQuarantined):
            await store.claim(journal)


async def test_the_other_journals_of_a_damaged_store_can_be_written(whole: Path) -> None:
    journal, _, at, bit = _flips(whole, 1)[0]
    other = next(name for name in JOURNALS if name != journal)
    async with open_store(_damaged(whole, [(at, bit)])) as store:
        with pytest.raises(JournalCorrupt):
            await _read(store, journal)
        lease = await store.claim(other)
        assert await store.append(lease, [workers.record_of(other, RECORDS + 1)], head=RECORDS) == RECORDS + 1


async def test_a_quarantine_lasts_over_a_restart(whole: Path) -> None:
    journal, _, at, bit = _flips(whole, 1)[0]
    database = _damaged(whole, [(at, bit)])
    async with open_store(database) as store:
        with pytest.raises(JournalCorrupt):
            await _read(store, journal)
    async with open_store(database) as store:
        with pytest.raises(JournalQuarantined):
            await store.claim(journal)


async def test_an_audit_names_the_flipped_record(whole: Path) -> None:
    journal, seq, at, bit = _flips(whole, 1)[0]
    async with open_store(_damaged(whole, [(at, bit)])) as store:
        found = await check(store)
    assert [(violation.rule, violation.where) for violation in found] == [("checksum", f"{journal}/{seq}")]


# ---- rows that are gone, or in the wrong place -----------------------------------------------------------------------

_WHERE = " WHERE pos = (SELECT pos FROM records r JOIN journals j ON j.no = r.journal WHERE j.id = ? AND r.seq = ?)"
_DELETE = "DELETE FROM records" + _WHERE
_SET_BODY = "UPDATE records SET body = ?" + _WHERE
_SET_SEQ = "UPDATE records SET seq = ?" + _WHERE


@pytest.mark.parametrize("seq", [1, 5, RECORDS])
@pytest.mark.parametrize("how", ["read", "tail"])
async def test_a_missing_record_is_found(seq: int, how: str, whole: Path) -> None:
    _execute(whole, (_DELETE, ("bee", seq)))
    async with open_store(whole) as store:
        with pytest.raises(JournalCorrupt) as caught:
            await (store.read("bee") if how == "read" else store.tail("bee", RECORDS))
        assert caught.value.seq == seq
        assert (await store.journal("bee")).quarantine is not None
        assert len(await _read(store, "ant")) == RECORDS


@pytest.mark.parametrize("other", [("bee", 6), ("cat", 5)], ids=["of one journal", "of two journals"])
async def test_swapped_bodies_are_found(other: tuple[str, int], whole: Path) -> None:
    bodies: list[tuple[str, int, bytes]] = []
    for journal, seq in (("bee", 5), other):
        bodies.append((journal, seq, encode(workers.record_of(journal, seq))))
    (one, two) = bodies
    _execute(
        whole,
        (_SET_BODY, (two[2], one[0], one[1])),
        (_SET_BODY, (one[2], two[0], two[1])),
    )
    async with open_store(whole) as store:
        for journal, _, _ in bodies:
            with pytest.raises(JournalCorrupt):
                await _read(store, journal)


async def test_whole_rows_in_each_others_place_are_found(whole: Path) -> None:
    """Body and checksum travel together here: only a checksum that covers the place can tell."""
    _execute(
        whole,
        (_SET_SEQ, (999, "bee", 5)),
        (_SET_SEQ, (5, "bee", 6)),
        (_SET_SEQ, (6, "bee", 999)),
    )
    async with open_store(whole) as store:
        with pytest.raises(JournalCorrupt) as caught:
            await _read(store, "bee")
    assert caught.value.seq == 5


async def test_a_head_that_was_set_back_is_found_by_the_audit(whole: Path) -> None:
    _execute(whole, ("UPDATE journals SET head = 7 WHERE id = ?", ("bee",)))
    async with open_store(whole) as store:
        assert [violation.rule for violation in await check(store)] == ["head"]


# ---- damage anywhere -------------------------------------------------------------------------------------------------


async def _silent(database: Path, expected: dict[str, list[Any]]) -> str | None:
    """What is wrong with how this file answers: None when each read gives the truth or a named error."""
    try:
        async with open_store(database) as store:
            for journal, entries in expected.items():
                try:
                    read = [(entry.seq, entry.record) for entry in await _read(store, journal)]
                except HoldfastError:
                    continue
                if read != entries:
                    return f"{journal} reads as something else"
    except HoldfastError:
        return None
    except Exception as error:  # this is what the test looks for
        return f"{type(error).__name__}: {error}"
    return None


async def _expected(whole: Path) -> dict[str, list[Any]]:
    async with open_store(whole) as store:
        return {name: [(entry.seq, entry.record) for entry in await _read(store, name)] for name in JOURNALS}


async def _flip_anywhere(whole: Path, count: int) -> list[str]:
    expected, seed, size = await _expected(whole), random.Random(_SEED), len(_content(whole))
    wrong: list[str] = []
    for _ in range(count):
        # Half of them where it hurts most: in the headers and cell pointers at the beginning of a page.
        page = seed.randrange(size // 4_096) * 4_096
        at = page + seed.randrange(100 if page else 200) if seed.random() < 0.5 else seed.randrange(size)
        bit = seed.randrange(8)
        if (problem := await _silent(_damaged(whole, [(at, bit)]), expected)) is not None:
            wrong.append(f"byte {at}, bit {bit}: {problem}")
    return wrong


async def test_a_flipped_bit_anywhere_gives_the_truth_or_a_named_error(whole: Path) -> None:
    wrong = await _flip_anywhere(whole, 150)
    assert not wrong, "\n".join([*wrong[:10], _repro("bit_anywhere")])


@pytest.mark.torture
@pytest.mark.timeout(1_800)
async def test_many_flipped_bits_anywhere_give_the_truth_or_a_named_error(whole: Path) -> None:
    wrong = await _flip_anywhere(whole, 8_000)
    assert not wrong, "\n".join([*wrong[:20], _repro("many_flipped")])


async def test_a_truncated_file_gives_the_truth_or_a_named_error(whole: Path) -> None:
    expected, seed, content = await _expected(whole), random.Random(_SEED), _content(whole)
    pages = range(4_096, len(content), 4_096)
    sizes = [*pages, *(seed.randrange(1, len(content)) for _ in range(20))]
    problems = [(size, await _silent(_written(whole, content[:size]), expected)) for size in sizes]
    wrong = [f"cut to {size} of {len(content)} bytes: {problem}" for size, problem in problems if problem]
    assert not wrong, "\n".join([*wrong[:10], _repro("truncated")])


async def test_a_file_that_lost_its_second_half_is_not_served_as_if_nothing_had_happened(whole: Path) -> None:
    content = _content(whole)
    database = _written(whole, content[: len(content) // 8_192 * 4_096])
    with pytest.raises(StoreError):
        await _expected(database)


@pytest.mark.parametrize("owner", ["", "nonsense", "{}"])
async def test_a_damaged_row_of_another_writer_never_gives_a_raw_error(owner: str, whole: Path) -> None:
    """`writers` holds rows of processes that are gone: what they left must not keep everybody out for no reason."""
    expected = await _expected(whole)
    _execute(whole, ("INSERT INTO writers (instance, owner, batch) VALUES ('dead', ?, 0)", (owner,)))
    assert await _silent(whole, expected) is None


@pytest.mark.parametrize("owner", ["", "nonsense", "{}"])
async def test_a_damaged_holder_of_a_lease_never_gives_a_raw_error(owner: str, whole: Path) -> None:
    _execute(whole, ("UPDATE journals SET owner = ? WHERE id = 'bee'", (owner,)))
    async with open_store(whole) as store:
        with suppress(StoreError):
            await store.journal("bee")
        with suppress(StoreError):
            await store.claim("bee")
        assert (await store.claim("ant")).epoch == 2


@pytest.mark.parametrize("column", ["seq", "epoch", "crc", "body"])
async def test_a_record_whose_column_reads_as_null_is_corrupt(column: str, whole: Path) -> None:
    """One flipped bit in the head of a row makes a column NULL, whatever the schema says."""
    _allow_nulls(whole)
    _execute(whole, (f"UPDATE records SET {column} = NULL" + _WHERE, ("bee", 5)))
    async with open_store(whole) as store:
        with pytest.raises(JournalCorrupt):
            await _read(store, "bee")
        assert len(await _read(store, "ant")) == RECORDS


def _allow_nulls(database: Path) -> None:
    """Take the constraints out of the schema, as damage does not obey them either."""
    connection: Any = apsw.Connection(str(database))
    connection.execute("PRAGMA writable_schema = ON")
    connection.execute("UPDATE sqlite_schema SET sql = replace(sql, ' NOT NULL', '') WHERE name = 'records'")
    connection.close()


@pytest.mark.parametrize("key", ["store_id", "key_check"])
async def test_a_store_without_what_every_store_has_is_damaged(whole: Path, key: str) -> None:
    _execute(whole, ("DELETE FROM meta WHERE key = ?", (key,)))
    with pytest.raises(StoreDamaged):
        async with open_store(whole):
            pass


async def test_an_empty_file_with_a_log_beside_it_is_a_damaged_store(whole: Path) -> None:
    empty = whole.with_name("empty.db")
    empty.write_bytes(b"")
    shutil.copy(whole, whole.with_name("empty.db-wal"))
    with pytest.raises(StoreDamaged):
        async with open_store(empty):
            pass


async def test_a_log_with_flipped_bits_never_gives_a_wrong_record(scratch: Path) -> None:
    """Frames whose checksum fails end the log: what comes before them is served, and nothing that is wrong."""
    live = scratch / "live.db"
    seed = random.Random(_SEED)
    async with open_store(live) as store:
        for journal in JOURNALS:
            await store.open_journal(journal)
            lease = await store.claim(journal)
            for seq in range(2, RECORDS + 1):
                await store.append(lease, [workers.record_of(journal, seq)], head=seq - 1)
        content, log = _content(live), _content(_log_of(live))
    for _ in range(60):
        database = _written(live, content)
        damaged = bytearray(log)
        damaged[seed.randrange(len(log))] ^= 1 << seed.randrange(8)
        _log_of(database).touch(0o600)
        _log_of(database).write_bytes(bytes(damaged))
        async with open_store(database) as store:
            for line in await store.journals():
                for entry in await _read(store, line.id):
                    if entry.seq > 1:
                        assert entry.record == workers.record_of(line.id, entry.seq), _repro("log_with_flipped")
