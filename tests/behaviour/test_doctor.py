"""`holdfast doctor`: tells the health of a store, changes nothing, and its exit code can be relied on."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Protocol

import apsw
import pytest
from tests.programs import Program, run

import holdfast as hf
from holdfast.effects.drive import drive
from holdfast.records import Parked, Started

if TYPE_CHECKING:
    from pathlib import Path

    from tests.programs import Done, Programs


class Doctor(Protocol):
    def __call__(self, *arguments: object) -> Done: ...


@pytest.fixture
def doctor(tmp_path: Path, programs: Programs) -> Doctor:
    """`holdfast doctor` with these arguments."""
    return lambda *arguments: run(programs, Program("holdfast", ("doctor", *arguments), tmp_path))


async def _echo(value: object) -> object:
    return value


@pytest.fixture
async def path(tmp_path: Path) -> Path:
    file = tmp_path / "store.db"
    async with hf.open_store(file) as store:
        for name in ("one", "two"):
            await drive(store, name, lambda ctx: ctx.step("say", _echo, "hello"))
        await store.open_journal("three", "session", "support")
        lease = await store.claim("three")
        await store.append(lease, [Started(at=1, run="t"), Parked(at=2, run="t", waits=("answer",))], head=lease.head)
        await store.open_wait("three", "answer", deadline=store.clock.read().wall + 3_600_000)
        await store.accept("three", "hi", key="k")
        await store.put_blob(b"bytes")
    return file


def _damage(path: Path, journal: str) -> None:
    db: Any = apsw.Connection(str(path))
    db.execute(
        "UPDATE records SET body = CAST(replace(CAST(body AS TEXT), 'hello', 'hallo') AS BLOB)"
        " WHERE journal = (SELECT no FROM journals WHERE id = ?)",
        (journal,),
    )
    db.close()


def test_a_healthy_store_is_reported_with_exit_code_0(doctor: Doctor, path: Path) -> None:
    done = doctor(path)
    assert done.returncode == 0, done.stdout
    assert "store.db: healthy" in done.stdout
    assert "3 (2 completed, 1 waiting)" in done.stdout
    assert "all checksums right" in done.stdout
    assert "1 pending" in done.stdout
    assert "1 open, next due in 3," in done.stdout


def test_the_report_as_json_has_everything_a_script_needs(doctor: Doctor, path: Path) -> None:
    done = doctor(path, "--json")
    report = json.loads(done.stdout)
    assert done.returncode == 0
    assert report["healthy"] is True
    assert report["journals"] == {"completed": 2, "waiting": 1}
    assert report["schema"] == 9
    assert report["leases"] == []
    assert report["quarantined"] == {}
    assert report["checksum_failures"] == 0
    assert report["problems"] == []
    assert {"wal_bytes", "sqlite", "holdfast", "records", "open_waits", "pending_inputs", "blobs"} <= set(report)


def test_the_store_is_not_changed(doctor: Doctor, path: Path) -> None:
    before = path.read_bytes()
    doctor(path)
    assert path.read_bytes() == before


def test_a_damaged_record_is_a_problem_with_exit_code_1(doctor: Doctor, path: Path) -> None:
    _damage(path, "two")
    done = doctor(path, "--json")
    report = json.loads(done.stdout)
    assert done.returncode == 1
    assert report["healthy"] is False
    assert report["checksum_failures"] >= 1
    assert all(problem.startswith("checksum: two/") for problem in report["problems"])
    assert "WRONG" in doctor(path).stdout


async def test_a_quarantined_journal_is_listed_with_its_reason(doctor: Doctor, path: Path) -> None:
    _damage(path, "two")
    async with hf.open_store(path) as store:
        with pytest.raises(hf.StoreError):
            await store.read("two")
    done = doctor(path)
    assert done.returncode == 1
    assert "quarantined: two: record" in done.stdout


async def test_a_store_in_use_can_be_examined_and_shows_who_holds_a_lease(doctor: Doctor, path: Path) -> None:
    async with hf.open_store(path) as store:
        await store.claim("three")
        report = json.loads(doctor(path, "--json").stdout)
    (lease,) = report["leases"]
    assert (lease["journal"], lease["epoch"], lease["state"]) == ("three", 2, "alive")


@pytest.mark.parametrize("content", [b"", b"hello, I am a text file", b"SQLite format 3\x00" + bytes(200)])
def test_a_file_that_is_no_store_is_said_to_be_none(doctor: Doctor, tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "other.db"
    file.write_bytes(content)
    done = doctor(file)
    assert done.returncode == 1
    assert "was not opened" in done.stderr
    assert "Traceback" not in done.stderr
    assert file.read_bytes() == content
    assert list(tmp_path.iterdir()) == [file]


def test_a_missing_file_is_said_to_be_missing_and_is_not_made(doctor: Doctor, tmp_path: Path) -> None:
    done = doctor(tmp_path / "nothing.db")
    assert done.returncode == 1
    assert "no such file" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_call_without_a_store_is_a_usage_error(doctor: Doctor) -> None:
    assert doctor().returncode == 2


def test_a_store_that_others_can_read_is_a_problem_with_the_command_that_repairs_it(doctor: Doctor, path: Path) -> None:
    path.chmod(0o644)
    done = doctor(path)
    assert done.returncode == 1
    assert f"chmod 600 {path}" in done.stdout
