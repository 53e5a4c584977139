"""Attachments that come and go in parts: never in memory as a whole, and as exact as others."""

from __future__ import annotations

import asyncio
import hashlib
import tracemalloc
from typing import TYPE_CHECKING, Any

import apsw
import pytest

import holdfast as hf
from holdfast.errors import BlobCorrupt, InvalidArgument, PayloadTooLarge
from holdfast.store.sqlite.files import connect
from holdfast.testing import check

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from holdfast.runtime.runtime import Runtime

MIB = 1024 * 1024
LARGE = bytes(range(256)) * (10 * MIB // 256) + b"the end"


async def parts_of(body: bytes, size: int = 100_000, first: int = 0) -> AsyncGenerator[bytes]:
    for start in range(first, len(body), size):
        yield body[start : start + size]


async def got(runtime: Runtime, digest: str, **given: Any) -> bytes:
    return b"".join([part async for part in runtime.attachments.stream(digest, **given)])


def files_in(folder: Path) -> list[str]:
    return sorted(found.name for found in folder.iterdir())


@pytest.fixture(params=["file", "memory"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return tmp_path / "s.db" if request.param == "file" else None


async def test_what_comes_in_parts_is_the_same_as_what_comes_at_once(where: Path | None) -> None:
    async with hf.open(where) as runtime:
        put = await runtime.attachments.put(parts_of(LARGE), name="numbers.bin", session="s")
        assert (put.digest, put.size) == (hashlib.sha256(LARGE).hexdigest(), len(LARGE))
        assert await runtime.attachments.get(put) == LARGE
        assert await runtime.attachments.put(LARGE, session="s") == put
        assert await got(runtime, put.digest, session="s") == LARGE
        assert await check(runtime.store) == []


async def test_files_and_parts_are_not_held_in_memory(tmp_path: Path) -> None:
    larger = LARGE * 3
    (tmp_path / "large.bin").write_bytes(larger)
    async with hf.open(tmp_path / "s.db") as runtime:
        tracemalloc.start()
        try:
            put = await runtime.attachments.put(tmp_path / "large.bin")
            await runtime.attachments.put(parts_of(larger, first=1))
            async for part in runtime.attachments.stream(put):
                assert len(part) <= MIB
            assert tracemalloc.get_traced_memory()[1] < 16 * MIB
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"\x89PNG\r\n\x1a\n" + bytes(2 * MIB), "image/png"),
        ("gr\u00fc\u00df dich ".encode() * 200_000, "text/plain"),
        (b"words " * 400_000 + b"\xff", "application/octet-stream"),
        (b"PK\x03\x04" + bytes(2 * MIB) + b"[Content_Types].xml word/", "application/vnd.openxml"),
        (b"BM" + (2 * MIB).to_bytes(4, "little") + bytes(2 * MIB - 6), "image/bmp"),
    ],
    ids=["picture", "text", "almost text", "document", "bitmap"],
)
async def test_what_they_are_is_seen_as_if_they_had_come_at_once(body: bytes, kind: str) -> None:
    async with hf.open(None) as runtime:
        put = await runtime.attachments.put(parts_of(body, 99_999))
        assert put.media_type.startswith(kind)
        with pytest.raises(hf.errors.MediaTypeMismatch):
            await runtime.attachments.put(parts_of(body), media_type="application/pdf")


async def test_what_is_too_large_is_refused_before_all_of_it_has_come(where: Path | None) -> None:
    came = 0

    async def endless() -> AsyncGenerator[bytes]:
        nonlocal came
        while True:
            came += MIB
            yield bytes(MIB)

    async with hf.open(where, limits=hf.StoreLimits(attachment_bytes=3 * MIB)) as runtime:
        with pytest.raises(PayloadTooLarge):
            await runtime.attachments.put(endless())
        assert came < 6 * MIB
        assert await runtime.attachments.of() == []


async def test_parts_that_break_off_leave_nothing(tmp_path: Path) -> None:
    async def breaks() -> AsyncGenerator[bytes]:
        yield LARGE
        raise ConnectionError

    async with hf.open(tmp_path / "s.db") as runtime:
        files = files_in(tmp_path)
        with pytest.raises(ConnectionError):
            await runtime.attachments.put(breaks())
        assert await runtime.attachments.of() == []
        assert files_in(tmp_path) == files


@pytest.mark.parametrize("given", [["text"], [], [b""]], ids=["text", "nothing", "empty"])
async def test_parts_that_are_no_bytes_are_refused(given: list[Any]) -> None:
    async def parts() -> AsyncGenerator[Any]:
        for part in given:
            yield part

    async with hf.open(None) as runtime:
        with pytest.raises(InvalidArgument):
            await runtime.attachments.put(parts())


async def test_somebody_who_gives_up_waiting_does_no_harm(tmp_path: Path) -> None:
    async with hf.open(tmp_path / "s.db") as runtime:
        putting = asyncio.ensure_future(runtime.attachments.put(parts_of(LARGE)))
        while not putting.done():
            await asyncio.sleep(0)
            putting.cancel()
        await asyncio.wait({putting})
        assert (await runtime.attachments.put(parts_of(LARGE))).size == len(LARGE)
        assert await check(runtime.store) == []


async def test_what_is_another_sessions_is_not_given_in_parts_either() -> None:
    async with hf.open(None) as runtime:
        put = await runtime.attachments.put(b"mine", session="s")
        for digest in (put.digest, "0" * 64):
            with pytest.raises(hf.errors.AttachmentUnknown):
                await got(runtime, digest, session="other")
        with pytest.raises(hf.errors.AttachmentUnknown):
            await got(runtime, "0" * 64)


async def test_damaged_bytes_never_come_to_their_end(tmp_path: Path) -> None:
    async with hf.open(tmp_path / "s.db") as runtime:
        put = await runtime.attachments.put(LARGE)
    db = connect(tmp_path / "s.db", apsw.SQLITE_OPEN_READWRITE)
    db.execute("UPDATE blobs SET body = CAST(substr(body, 1, length(body) - 1) || x'00' AS BLOB)")
    db.close()
    came = 0
    async with hf.open(tmp_path / "s.db") as runtime:

        async def read() -> None:
            nonlocal came
            async for part in runtime.attachments.stream(put):
                came += len(part)

        with pytest.raises(BlobCorrupt):
            await read()
    assert 0 < came < len(LARGE)


async def test_secrets_are_hidden_in_what_comes_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANARY", "a-secret-value-4711")

    @hf.process
    async def lends(ctx: hf.ProcessContext) -> int:
        return len(ctx.secrets["CANARY"])

    async with hf.open(tmp_path / "s.db", processes=[lends], secrets={"CANARY": "env:CANARY"}) as runtime:
        await (await runtime.start(lends)).result()
        put = await runtime.attachments.put(parts_of(b"x" * 2 * MIB + b"a-secret-value-4711"))
        body = await got(runtime, put.digest)
        assert (b"a-secret-value-4711" in body, len(body)) == (False, put.size)
