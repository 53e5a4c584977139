"""The file itself: what is not a store is refused untouched, what is made is private, and half a store opens."""

from __future__ import annotations

import grp
import os
import pwd
import shutil
import stat
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import apsw
import opening_scenario as scenario
import pytest
from forking import error_in
from killing import KILLED, MAKING

from holdfast import open_store
from holdfast.errors import StoreForeign, StoreRefused, StoreTooNew, StoreUnsafe, StoreUntrusted
from holdfast.store.paths import key_file
from holdfast.store.sqlite.backend import SqliteBackend
from holdfast.store.sqlite.files import MIN_SQLITE, check_filesystem, check_library
from holdfast.testing import check

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forking import Forks


async def _open(path: Path) -> None:
    async with open_store(path):
        pass


def _state(directory: Path) -> dict[str, tuple[int, int, bytes]]:
    """Every file below: mode, time of change, content."""
    return {
        str(path.relative_to(directory)): (
            path.stat().st_mode,
            path.stat().st_mtime_ns,
            path.read_bytes() if path.is_file() else b"",
        )
        for path in sorted(directory.rglob("*"))
    }


def _sqlite(path: Path, *statements: str) -> None:
    connection: Any = apsw.Connection(str(path))
    for statement in statements:
        connection.execute(statement)
    connection.close()


# ---- what is not ours ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["DELETE", "WAL"])
async def test_a_database_of_another_program_is_refused_untouched(mode: str, tmp_path: Path) -> None:
    _sqlite(tmp_path / "other.db", f"PRAGMA journal_mode = {mode}", "CREATE TABLE t (x)", "INSERT INTO t VALUES (1)")
    before = _state(tmp_path)
    with pytest.raises(StoreForeign, match="another program"):
        await _open(tmp_path / "other.db")
    assert _state(tmp_path) == before


@pytest.mark.parametrize(
    "content",
    [b"dear diary\n", b"x", b"SQLite format 3\x00", b"\x00" * 8_192, b"SQLite format 3\x00" + b"\x00" * 84],
    ids=["text", "one byte", "a torn header", "zeros", "a header of zeros"],
)
async def test_a_file_that_is_no_database_is_refused_untouched(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_bytes(content)
    before = _state(tmp_path)
    with pytest.raises(StoreForeign):
        await _open(tmp_path / "notes.txt")
    assert _state(tmp_path) == before


async def test_a_directory_is_refused_untouched(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_text("hello", encoding="ascii")
    before = _state(tmp_path)
    with pytest.raises(StoreForeign, match="directory"):
        await _open(tmp_path / "folder")
    assert _state(tmp_path) == before


async def test_a_store_of_a_newer_release_is_refused_untouched(tmp_path: Path) -> None:
    await _open(tmp_path / "store.db")
    _sqlite(tmp_path / "store.db", "PRAGMA user_version = 999")
    before = _state(tmp_path)
    with pytest.raises(StoreTooNew, match="999"):
        await _open(tmp_path / "store.db")
    assert _state(tmp_path) == before


async def test_a_newer_release_whose_mark_is_still_in_the_log_is_refused_and_keeps_its_data(tmp_path: Path) -> None:
    """A newer process was killed after it migrated: the file itself still bears the old version."""
    database = tmp_path / "store.db"
    await _open(database)
    writer: Any = apsw.Connection(str(database))
    writer.execute("CREATE TABLE newer (x); PRAGMA user_version = 999")
    log = Path(f"{database}-wal")
    copy = tmp_path / "copy"
    copy.mkdir()
    for made in (database, log, key_file(database)):
        shutil.copy(made, copy)
    writer.close()
    before = _bytes(copy / "store.db")
    with pytest.raises(StoreTooNew, match="999"):
        await _open(copy / "store.db")
    _sqlite(copy / "store.db", "SELECT * FROM newer")
    assert before[:16] == _bytes(copy / "store.db")[:16]


def _bytes(path: Path) -> bytes:
    return path.read_bytes()


async def test_a_name_that_leads_nowhere_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a file, not a directory", encoding="ascii")
    with pytest.raises(StoreRefused, match="not a directory"):
        await _open(tmp_path / "file" / "store.db")


# ---- who may see it --------------------------------------------------------------------------------------------------


@pytest.fixture
def open_umask() -> Iterator[None]:
    """The most permissive mask: what is private now is private because we say so."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("open_umask")
async def test_the_files_of_a_store_are_for_their_owner_alone(tmp_path: Path) -> None:
    async with open_store(tmp_path / "store.db") as store:
        await store.open_journal("j")
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in _listing(tmp_path)}
    assert modes == {"store.db": 0o600, "store.db-wal": 0o600, "store.db-shm": 0o600, "store.db.key": 0o600}


@pytest.mark.usefixtures("open_umask")
async def test_directories_that_are_made_are_for_their_owner_alone(tmp_path: Path) -> None:
    await _open(tmp_path / "a" / "b" / "store.db")
    modes = [stat.S_IMODE(_mode(tmp_path / name)) for name in ("a", "a/b")]
    assert modes == [0o700, 0o700]


async def test_a_directory_that_was_there_keeps_its_mode(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o755)
    await _open(shared / "store.db")
    assert stat.S_IMODE(_mode(shared)) == 0o755


async def _untrusted(path: Path) -> StoreUntrusted:
    with pytest.raises(StoreUntrusted) as raised:
        await _open(path)
    return raised.value


@pytest.mark.parametrize("suffix", ["", "-wal", "-journal"])
@pytest.mark.parametrize("mode", [0o644, 0o640, 0o606, 0o700])
async def test_a_file_that_others_can_get_at_is_refused_with_the_command_that_repairs_it(
    tmp_path: Path, suffix: str, mode: int
) -> None:
    path = tmp_path / "store.db"
    await _open(path)
    beside = tmp_path / f"store.db{suffix}"
    beside.touch(0o600)
    beside.chmod(mode)
    before = _state(tmp_path)
    refused = await _untrusted(path)
    assert refused.remedy == f"chmod 600 {beside}"
    assert _state(tmp_path) == before
    subprocess.run(refused.remedy, shell=True, check=True)  # noqa: S602, ASYNC221  what a person would do
    await _open(path)


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o772])
async def test_a_folder_that_others_can_write_to_is_refused_with_the_command_that_repairs_it(
    tmp_path: Path, mode: int
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(mode)
    refused = await _untrusted(shared / "store.db")
    assert refused.remedy.startswith(f"chmod go-w {shared}")
    assert _listing(shared) == []
    shared.chmod(_mode(shared) & ~0o022)
    await _open(shared / "store.db")


async def test_the_folder_of_the_file_counts_that_a_link_leads_to(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    await _open(shared / "store.db")
    shared.chmod(0o777)
    (tmp_path / "link.db").symlink_to(shared / "store.db")
    assert str(shared) in (await _untrusted(tmp_path / "link.db")).reason


async def test_a_folder_of_a_group_with_nobody_else_in_it_is_the_owners_own(tmp_path: Path) -> None:
    user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(os.getegid())
    if user.pw_name != group.gr_name or set(group.gr_mem) - {user.pw_name}:
        pytest.skip("this user has no group of its own")
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o775)
    await _open(shared / "store.db")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
@pytest.mark.parametrize("name", ["store.db", "."])
async def test_what_belongs_to_another_user_is_refused(tmp_path: Path, name: str) -> None:
    await _open(tmp_path / "store.db")
    os.chown(tmp_path / name, 12_345, -1)
    assert "belongs to another user" in (await _untrusted(tmp_path / "store.db")).reason


async def test_a_file_with_a_second_name_is_refused_with_the_command_that_finds_the_other(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    await _open(path)
    (tmp_path / "other").hardlink_to(path)
    refused = await _untrusted(path)
    assert "hard links" in refused.reason
    mount = next(folder for folder in path.parents if folder.is_mount())
    assert refused.remedy == f"find {mount} -xdev -inum {path.stat().st_ino}"
    (tmp_path / "other").unlink()
    await _open(path)


@pytest.mark.parametrize(
    ("made", "drop"),
    [
        ("CREATE TRIGGER sly AFTER INSERT ON waits BEGIN DELETE FROM rules; END", 'DROP TRIGGER "sly"'),
        ("CREATE VIEW sly AS SELECT * FROM waits", 'DROP VIEW "sly"'),
    ],
)
async def test_a_trigger_or_a_view_is_refused_with_the_command_that_repairs_it(
    tmp_path: Path, made: str, drop: str
) -> None:
    path = tmp_path / "store.db"
    await _open(path)
    _sqlite(path, made)
    refused = await _untrusted(path)
    assert refused.remedy == f"sqlite3 {path} '{drop}'"
    _sqlite(path, drop)
    await _open(path)


def _listing(directory: Path) -> list[Path]:
    return list(directory.iterdir())


def _mode(path: Path) -> int:
    return path.stat().st_mode


async def test_opening_leaves_nothing_but_the_store_behind(tmp_path: Path) -> None:
    await _open(tmp_path / "store.db")
    assert [path.name for path in sorted(_listing(tmp_path))] == ["store.db", "store.db.key"]


# ---- where it may live -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("vfs", ["unix-dotfile", "unix-none"])
async def test_a_new_store_is_refused_where_there_is_no_shared_memory(vfs: str, tmp_path: Path) -> None:
    """SQLite's own ways to use a file without shared memory stand for file systems that have none."""
    with pytest.raises(StoreUnsafe, match="write-ahead log"):
        await SqliteBackend.open(tmp_path / "store.db", vfs=vfs)


@pytest.mark.parametrize("vfs", ["unix-dotfile", "unix-none"])
async def test_a_store_that_was_moved_to_where_there_is_no_shared_memory_is_refused_untouched(
    vfs: str, tmp_path: Path
) -> None:
    await _open(tmp_path / "store.db")
    before = _bytes(tmp_path / "store.db")
    with pytest.raises(StoreUnsafe):
        await SqliteBackend.open(tmp_path / "store.db", vfs=vfs)
    assert _bytes(tmp_path / "store.db") == before


@pytest.mark.parametrize("version", [(3, 37, 0), (3, 51, 2), (3, 7)])
def test_a_library_that_can_corrupt_a_log_is_refused(version: tuple[int, ...]) -> None:
    reason = check_library(version)
    assert reason is not None
    assert ".".join(map(str, version)) in reason


@pytest.mark.parametrize("version", [MIN_SQLITE, (3, 54, 1), (4, 0, 0)])
def test_a_library_that_is_new_enough_is_taken(version: tuple[int, ...]) -> None:
    assert check_library(version) is None


@pytest.mark.parametrize(("kind", "name"), [(0x6969, "NFS"), (0xFF534D42, "CIFS"), (0x01021997, "9p")])
def test_a_network_file_system_is_refused_by_name(kind: int, name: str) -> None:
    assert name in (check_filesystem(kind, locks_work=True) or "")


@pytest.mark.parametrize("kind", [0xEF53, 0x01021994, 0x58465342, None])
def test_a_local_file_system_with_locks_is_taken(kind: int | None) -> None:
    assert check_filesystem(kind, locks_work=True) is None


def test_a_file_system_without_locks_is_refused() -> None:
    assert "locks" in (check_filesystem(0xEF53, locks_work=False) or "")


# ---- killed while it was made ----------------------------------------------------------------------------------------


async def test_a_kill_at_every_point_of_making_a_store_leaves_one_that_opens(
    workers: Forks, points: list[str], tmp_path: Path
) -> None:
    making = [point for point in points if point.startswith(MAKING)]
    assert {"store.created:1", "store.key_made:1", "store.migration.before_commit:1"} <= set(making)
    for number, point in enumerate(making):
        folder = tmp_path / str(number)
        status = workers.run(folder, HOLDFAST_CRASH_AT=point)
        assert status == KILLED, f"it was not killed at {point}: {error_in(folder)}"
        async with open_store(folder / scenario.STORE) as store:
            await store.open_journal("j")
            assert await check(store) == [], point
