"""Files of sessions that were cut short, changed or forged: a named error, and nothing is stored."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import tracemalloc
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from zlib import crc32

import msgspec
import pytest
from tests.behaviour.talk import at_rest
from tests.every import every

import holdfast as hf
from holdfast.errors import SessionFileDamaged, SessionFileNewer, SessionFileUntrusted
from holdfast.records import Done, EffectRequest, Ended, Started
from holdfast.store.session_file import MAX_LINE
from holdfast.testing import ScriptedModel, call, check, text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

SEED: Final = 7
FLIPS: Final = 400
MANY: Final = 10_000
ROOM: Final = 24 * 1024 * 1024
"""Bytes of Python objects that an export or an import may take, whatever the size of the session."""


@hf.tool
async def pay(cents: int) -> str:
    """Pay."""
    return f"paid {cents}"


def asks() -> hf.Agent:
    script = ScriptedModel([call("pay", cents=5), text("done")])
    return hf.Agent("asks", model=script, tools=[pay], policy=[hf.ask("pay")])


async def write_file(file: Path) -> bytes:
    """A session that waits for an approval, with an attachment and memory, and that was moved."""
    async with hf.open(None, agents=[asks()]) as runtime:
        session = runtime.session("s", agent="asks")
        await session.send(["hello", hf.File(b"a dugong", "text/plain", name="d.txt")])
        await at_rest(runtime, "s")
        await runtime.memory("s").put("note", "wombat")
        await runtime.export_session("s", file, move=True, force=True)
    return _read(file)


def _read(file: Path) -> bytes:
    return file.read_bytes()


def sealed(lines: Sequence[dict[str, Any]], mac: str = "0" * 64) -> bytes:
    """These lines as whoever has no key would write them: checksums and digest are right, the MAC can't be."""
    crc, out = 0, b""
    for said in [*lines, None]:
        last = {"t": "end", "lines": len(lines), "digest": hashlib.sha256(out).hexdigest(), "mac": mac}
        line = {name: value for name, value in (said or last).items() if name != "crc"}
        body = json.dumps(line, separators=(",", ":"))[:-1].encode()
        crc = crc32(body, crc)
        out += b'%b,"crc":"%08x"}\n' % (body, crc)
    return out


def lines_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()][:-1]


async def tried(store: hf.Runtime, file: Path, content: bytes, **options: Any) -> Exception | None:
    """What an import of this content raises; nothing may be left of it then."""
    _write(file, content)
    try:
        given: dict[str, Any] = {"trust": True, **options}
        await store.import_session(file, **given)
    except hf.errors.HoldfastError as error:
        assert await store.store.journals() == []
        assert await store.store.examine(_rows_left) == []
        return error
    return None


def _write(file: Path, content: bytes) -> None:
    file.write_bytes(content)


def _rows_left(reader: Any) -> list[str]:
    tables = ("journals", "inputs", "waits", "refs", "memories", "attachments", "notifications", "blobs")
    found = [name for name in tables if reader.one(f"SELECT 1 FROM {name} LIMIT 1") is not None]
    found += ["meta"] if reader.one("SELECT 1 FROM meta WHERE key LIKE 'imported/%'") is not None else []
    return found


async def test_a_file_that_is_cut_anywhere_is_refused_at_its_last_line(tmp_path: Path) -> None:
    whole = await write_file(file := tmp_path / "s.jsonl")
    chance = random.Random(SEED)
    ends = [found.end() for found in re.finditer(rb"\n", whole)][:-1]
    places = [0, *ends, *chance.sample(range(1, len(whole)), 60)]
    async with hf.open(None) as runtime:
        for place in places:
            error = await tried(runtime, file, whole[:place])
            assert isinstance(error, SessionFileDamaged), f"cut at {place}, seed {SEED}: {error!r}"
            assert error.line == whole[:place].count(b"\n") + 1


async def test_a_file_with_a_flipped_bit_is_refused(tmp_path: Path) -> None:
    whole = await write_file(file := tmp_path / "s.jsonl")
    chance = random.Random(SEED)
    async with hf.open(None) as runtime:
        for _ in range(FLIPS):
            place, bit = chance.randrange(len(whole)), 1 << chance.randrange(8)
            changed = bytearray(whole)
            changed[place] ^= bit
            error = await tried(runtime, file, bytes(changed))
            kinds = (SessionFileDamaged, SessionFileNewer)
            assert isinstance(error, kinds), f"bit {bit} at {place}, seed {SEED}: {error!r}"


async def test_lines_that_are_left_out_moved_or_doubled_are_refused(tmp_path: Path) -> None:
    whole = await write_file(file := tmp_path / "s.jsonl")
    lines = whole.splitlines(keepends=True)
    async with hf.open(None) as runtime:
        for number in range(len(lines)):
            without = lines[:number] + lines[number + 1 :]
            doubled = lines[: number + 1] + lines[number:]
            swapped = [*lines[:number], *lines[number : number + 2][::-1], *lines[number + 2 :]]
            for changed in (without, doubled, swapped if number + 1 < len(lines) else without):
                assert isinstance(await tried(runtime, file, b"".join(changed)), SessionFileDamaged), number


async def test_the_same_with_right_checksums_is_refused_for_what_it_says(tmp_path: Path) -> None:
    await write_file(file := tmp_path / "s.jsonl")
    lines = lines_of(file)
    async with hf.open(None) as runtime:
        for number in range(len(lines)):
            without = lines[:number] + lines[number + 1 :]
            error = await tried(runtime, file, sealed(without))
            # Memory and its history have nothing in the file that names them.
            free = lines[number]["t"] in {"memory", "change", "attachment", "wait"}
            assert error is None if free else isinstance(error, SessionFileDamaged), (number, lines[number]["t"], error)
            if error is None:
                await runtime.forget("s")
                await runtime.store.collect_blobs(unused_ms=0, without_roots=True)


def _of(lines: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    return next(line for line in lines if line["t"] == kind)


Lines: TypeAlias = "list[dict[str, Any]]"
FORGERIES: Final[dict[str, tuple[Callable[[Lines], object], str]]] = {
    "another kind of file": (lambda lines: lines.__setitem__(slice(None), [{"a": 1}]), "no session file"),
    "a header that comes later": (lambda lines: lines.insert(0, lines.pop(1)), "no session file"),
    "a head that is too high": (lambda lines: _of(lines, "journal").update(head=99), "says it ends at 99"),
    "a status that its records deny": (lambda lines: _of(lines, "journal").update(status="completed"), "listed as"),
    "a journal of another name": (lambda lines: _of(lines, "journal").update(id="t"), "that of the session"),
    "a parent that is not there": (lambda lines: _of(lines, "journal").update(parent="p", parent_seq=1), "'p'"),
    "an epoch that falls": (lambda lines: lines[-4].update(epoch=0), "epoch|can't come here|more|not as many"),
    "a number below zero": (lambda lines: _of(lines, "journal").update(wakes=-1), "can't be read"),
    "a number that is too large": (lambda lines: _of(lines, "journal").update(epoch=2**70), "can't be read"),
    "a wait of another journal": (lambda lines: _of(lines, "wait")["wait"].update(journal="t"), "not of 's'"),
    "an input that was changed": (lambda lines: _of(lines, "input")["input"].update(body="e30="), "its digest"),
    "bytes that were changed": (lambda lines: _of(lines, "part").update(data="YSBkdWdvbmc="[::-1]), "read|digest"),
    "a blob without a digest": (lambda lines: _of(lines, "blob").update(digest="../../x"), "do not match its digest"),
    "an attachment of nobody": (lambda lines: _of(lines, "attachment")["attachment"].update(session="x"), "not in"),
    "a memory scope that is a path": (lambda lines: _of(lines, "memory")["entry"].update(scope="../x"), "memory scope"),
    "a number of records that is wrong": (lambda lines: lines[0].update(records=1), "not as many lines"),
    "a status that none has": (lambda lines: _of(lines, "journal").update(status="moved"), "can't be read"),
    "a control character in an id": (lambda lines: _of(lines, "journal").update(agent="a\x1bb"), "U.001B"),
}


@every("change, said", FORGERIES.values(), ids=FORGERIES)
async def test_what_no_store_would_have_written_is_refused(tmp_path: Path, change: Any, said: str) -> None:
    await write_file(file := tmp_path / "s.jsonl")
    lines = lines_of(file)
    change(lines)
    async with hf.open(None) as runtime:
        error = await tried(runtime, file, sealed(lines))
        assert isinstance(error, SessionFileDamaged), error
        assert re.search(said, str(error)), str(error)


async def test_a_notification_that_a_pump_is_said_to_have_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "s.jsonl"
    async with hf.open(None, agents=[asks()], can_deliver=lambda _: False) as runtime:
        await runtime.session("s", agent="asks").send("hello")
        await at_rest(runtime, "s")
        await runtime.notify("s", "one")
        await runtime.export_session("s", file, move=True)
    lines = lines_of(file)
    async with hf.open(None) as runtime:
        assert _of(lines, "notification")["notification"]["state"] == "queued"
        _of(lines, "notification")["notification"].update(state="claimed", run="pump.1")
        error = await tried(runtime, file, sealed(lines))
        assert isinstance(error, SessionFileDamaged)
        assert "in the hands of a pump" in str(error)


async def test_a_file_that_is_too_deep_too_long_or_none_at_all_is_refused(tmp_path: Path) -> None:
    await write_file(file := tmp_path / "s.jsonl")
    lines = lines_of(file)
    deep = b'{"t":"session","x":' + b"[" * 100_000 + b"]" * 100_000
    crc = b',"crc":"%08x"}\n' % crc32(deep)
    async with hf.open(None) as runtime:
        for content, said in (
            (deep + crc, "no session file"),
            (b"x" * (MAX_LINE + 2), "longer than"),
            (b"", "empty"),
            (b"\x00" * 512, "cut short"),
            (sealed(lines) + b"\n", "more follows"),
        ):
            error = await tried(runtime, file, content)
            assert isinstance(error, SessionFileDamaged)
            assert said in str(error)
        with pytest.raises(SessionFileDamaged, match="can't be read"):
            await runtime.import_session(tmp_path)
        with pytest.raises(SessionFileDamaged, match="can't be read"):
            await runtime.import_session(tmp_path / "none")
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(SessionFileDamaged, match="empty"):
            await runtime.import_session(tmp_path / "pipe")
        lines[0].update(format=2, unknown={"x": 1}, export=None)
        newer = await tried(runtime, file, sealed(lines))
        assert isinstance(newer, SessionFileNewer)
        assert (newer.format, newer.known) == (2, 1)


async def test_a_forged_answer_does_not_come_in_without_the_key_of_the_store(tmp_path: Path) -> None:
    file, store = tmp_path / "s.jsonl", tmp_path / "one.db"
    async with hf.open(store, agents=[asks()], mirror=False) as runtime:
        await runtime.session("s", agent="asks").send("hello")
        await at_rest(runtime, "s")
        await runtime.export_session("s", file, move=True)
    whole, lines = _read(file), lines_of(file)
    end = json.loads(whole.splitlines()[-1])
    wait = _of(lines, "wait")["wait"]
    wait.update(state="resolved", payload="eyJhcHByb3ZlZCI6dHJ1ZX0=")
    key = tmp_path / "one.db.key"
    async with hf.open(None, agents=[asks()]) as runtime:
        for forged in (sealed(lines), sealed(lines, end["mac"])):
            named: tuple[dict[str, Any], ...] = ({}, {"key": key})
            for options in named:
                error = await tried(runtime, file, forged, trust=False, **options)
                assert isinstance(error, SessionFileUntrusted)
        assert await tried(runtime, file, whole, trust=False, key=key) is None
        assert len(await runtime.approvals()) == 1


async def test_a_session_of_ten_thousand_records_takes_no_more_memory_than_a_small_one(tmp_path: Path) -> None:
    file = tmp_path / "s.jsonl"
    async with hf.open_store(tmp_path / "one.db") as store:
        await store.open_journal("s", agent="a")
        lease = await store.claim("s")
        ask = EffectRequest("step", "x", "0" * 64)
        head = await store.append(lease, [Started(at=1, run="t1")], head=1)
        for first in range(0, MANY, 500):
            done = [Done(at=2, key=f"t1/{first + n}.x", ask=ask, value=_value(first + n)) for n in range(500)]
            head = await store.append(lease, done, head=head)
        await store.append(lease, [Ended(at=3, run="t1", status="completed")], head=head)
        await store.release(lease)
    tracemalloc.start()
    try:
        async with hf.open(tmp_path / "one.db", mirror=False) as runtime:
            made = await runtime.export_session("s", file)
        async with hf.open(tmp_path / "two.db", mirror=False) as runtime:
            await runtime.import_session(file, key=tmp_path / "one.db.key")
            assert await check(runtime.store) == []
        assert (made.records, made.bytes > 8_000_000) == (MANY + 3, True)
        assert tracemalloc.get_traced_memory()[1] < ROOM
    finally:
        tracemalloc.stop()


def _value(number: int) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(f"{number} " * 200))
