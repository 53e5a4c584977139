"""A store that somebody has tampered with: one journal is quarantined, and every command goes on for the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import apsw
import pytest

import holdfast as hf
from holdfast.errors import StoreError
from holdfast.store.sqlite.health import examine
from holdfast.store.sqlite.rows import checksum, salt_of
from holdfast.testing import ScriptedModel, text

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.behaviour.shell import Shell

DEPTH = 200_000


def _tamper(path: Path, *statements: tuple[str, tuple[Any, ...]]) -> None:
    db: Any = apsw.Connection(str(path))
    # A hostile file need not keep to the types that its tables declare.
    db.execute("PRAGMA writable_schema = ON")
    db.execute(
        "UPDATE sqlite_schema SET sql = replace(replace(sql, ' STRICT', ''), ' NOT NULL', '') WHERE type = 'table'"
    )
    db.execute("UPDATE sqlite_schema SET sql = replace(sql, '\n), WITHOUT', '\n) WITHOUT') WHERE type = 'table'")
    db.close()
    db = apsw.Connection(str(path))
    for sql, values in statements:
        db.execute(sql, values)
    db.close()


def _with_record(path: Path, body: bytes) -> None:
    """Add a record to the journal `bad`, with a right checksum."""
    db: Any = apsw.Connection(str(path))
    no, head, epoch = db.execute("SELECT no, head, epoch FROM journals WHERE id = 'bad'").get
    db.close()
    crc = checksum(salt_of("bad"), head + 1, epoch, body)
    _tamper(
        path,
        (
            "INSERT INTO records (journal, seq, epoch, crc, body) VALUES (?, ?, ?, ?, ?)",
            (no, head + 1, epoch, crc, body),
        ),
        ("UPDATE journals SET head = head + 1 WHERE id = 'bad'", ()),
    )


def _deep(path: Path) -> None:
    nested = b"[" * DEPTH + b"]" * DEPTH
    _with_record(path, b'{"t":"done","at":1,"key":"t1/1","value":' + nested + b"}")


def _deep_input(path: Path) -> None:
    nested = b"[" * DEPTH + b"]" * DEPTH
    _with_record(path, b'{"t":"admitted","at":1,"input":1,"key":"k","body":' + nested + b"}")


def _set(column: str, value: object) -> Callable[[Path], None]:
    return lambda path: _tamper(path, (f"UPDATE journals SET {column} = ? WHERE id = 'bad'", (value,)))


def _set_input(column: str, value: object) -> Callable[[Path], None]:
    where = "WHERE journal = (SELECT no FROM journals WHERE id = 'bad')"
    return lambda path: _tamper(path, (f"UPDATE inputs SET {column} = ? {where}", (value,)))


def _own_parent(path: Path) -> None:
    _tamper(path, ("UPDATE journals SET parent = 'bad', parent_seq = 1 WHERE id = 'bad'", ()))


def _circle(path: Path) -> None:
    _tamper(
        path,
        ("UPDATE journals SET parent = 'accomplice', parent_seq = 1 WHERE id = 'bad'", ()),
        ("UPDATE journals SET parent = 'bad', parent_seq = 1 WHERE id = 'accomplice'", ()),
    )


NUMBERS = ("head", "created", "updated", "epoch", "expires", "term", "wakes", "seen", "parent_seq", "inputs", "base")
TEXTS = ("kind", "status", "agent", "role", "session", "parent", "owner", "quarantine")
DEEDS: dict[str, Callable[[Path], None]] = {
    "deep record": _deep,
    "deep input": _deep_input,
    "own parent": _own_parent,
    "circle": _circle,
    **{f"{column} is text": _set(column, "many") for column in NUMBERS},
    **{f"{column} is bytes": _set(column, b"\xff\x00") for column in (*NUMBERS, *TEXTS)},
    **{f"{column} is another word": _set(column, "banana") for column in ("kind", "status")},
    "head is huge": _set("head", 2**62),
    **{
        f"{column} of an input is bytes": _set_input(column, b"\xff\x00")
        for column in ("key", "digest", "at", "pending")
    },
    "body of an input is text": _set_input("body", "hello"),
}


SHOWN = ("deep record", "circle", "head is text", "status is another word")


@pytest.fixture
async def path(tmp_path: Path) -> Path:
    """A store with three sessions, each with one turn."""
    file = tmp_path / ".holdfast" / "holdfast.db"
    async with hf.open(file, agents=[_echo()]) as runtime:
        for session in ("bad", "accomplice", "good"):
            await runtime.run("echo", "hello", session=session)
    return file


def _echo() -> hf.Agent:
    return hf.Agent("echo", model=ScriptedModel(lambda _: text("you said hello")))


@pytest.mark.parametrize("deed", SHOWN)
def test_every_command_goes_on_for_the_other_sessions(shell: Shell, path: Path, deed: str) -> None:
    DEEDS[deed](path)
    for command in (("ps", "-a"), ("inbox",), ("show", "good"), ("logs", "good"), ("doctor",), ("show", "bad")):
        done = shell(*command)
        said = done.stdout + done.stderr
        assert "unexpected" not in said, (command, said)
        assert "Traceback" not in said, (command, said)
        if "good" in command or command[0] == "ps":
            assert (done.returncode, "good" in said or "hello" in said) == (0, True), (command, said)
        if command == ("show", "bad") and deed in {"deep record", "circle"}:
            assert "journal 'bad' is corrupt" in said, said
        if command[0] == "doctor":
            assert (done.returncode, "bad" in said) == (1, True), said


@pytest.mark.parametrize("deed", DEEDS)
async def test_a_runtime_lists_the_sessions_and_goes_on_with_the_others(path: Path, deed: str) -> None:
    DEEDS[deed](path)
    async with hf.open(path, agents=[_echo()]) as runtime:
        assert "good" in [line.id for line in await runtime.sessions()]
        assert (await runtime.run("echo", "hello", session="good")).text == "you said hello"


@pytest.mark.parametrize("deed", DEEDS)
async def test_the_doctor_names_the_journal(path: Path, deed: str) -> None:
    DEEDS[deed](path)
    assert any("bad" in line for line in examine(path).problems)


@pytest.mark.parametrize("deed", ["deep record", "own parent", "circle", "head is text"])
async def test_the_journal_is_quarantined_when_it_is_read(path: Path, deed: str) -> None:
    DEEDS[deed](path)
    async with hf.open(path, agents=[_echo()], drive=False) as runtime:
        with pytest.raises(StoreError):
            await runtime.session("bad").history()
        (line,) = [line for line in await runtime.sessions() if line.id == "bad"]
        assert line.quarantine is not None


@pytest.mark.parametrize("column", ["kind", "status", "epoch", "expires", "owner", "base"])
async def test_a_list_shows_a_journal_as_a_look_at_it_alone_does(path: Path, column: str) -> None:
    _set(column, b"\xff\x00")(path)
    async with hf.open_store(path) as store:
        (line,) = [line for line in await store.journals() if line.id == "bad"]
        assert line == await store.journal("bad")
        assert f"its column {column} holds" in (line.quarantine or "")


def test_the_doctor_has_a_time_limit_and_says_what_it_did_not_look_at(path: Path) -> None:
    found = examine(path, seconds=0)
    assert not found.healthy
    assert any(line.startswith("limit: ") and "journals" in line for line in found.problems)


def test_the_doctor_keeps_a_bounded_number_of_problems_in_memory(path: Path) -> None:
    db: Any = apsw.Connection(str(path))
    db.execute(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000)"
        " INSERT INTO refs (digest, journal, seq) SELECT 'gone' || i, 1, i FROM n"
    )
    db.close()
    found = examine(path)
    assert len(found.problems) <= 101
    assert any(line.startswith("limit: ") for line in found.problems)
