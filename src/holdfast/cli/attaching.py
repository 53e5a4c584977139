"""What `holdfast attachments` does."""

from __future__ import annotations

import asyncio
import secrets
import sys
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, BinaryIO

import msgspec

from holdfast.cli.failures import CallInvalid
from holdfast.cli.sessions import changing, looking
from holdfast.cli.terminal import one_line, stdout

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from holdfast.messages import Attachment


async def put(  # noqa: PLR0913
    path: Path, file: Path, media_type: str | None, name: str | None, session: str | None, *, as_json: bool
) -> int:
    """Keep a file."""
    async with changing(path) as runtime:
        found = await runtime.attachments.put(file, media_type=media_type, name=name, session=session)
    stdout().line(_json(found) if as_json else found.digest)
    return 0


async def ls(path: Path, session: str | None, *, as_json: bool) -> int:
    """List attachments."""
    async with looking(path) as runtime:
        found = await runtime.attachments.of(session)
    out = stdout()
    if as_json:
        out.line(f"[{','.join(map(_json, found))}]")
        return 0
    for one in found:
        what, name = one_line(one.media_type, 40), one_line(one.name or "", 80)
        out.line(f"{one.digest}  {one.size:>12,}  {what}  {name}".rstrip())
    if not found:
        out.line("no attachments" if session is None else f"no attachments of {one_line(session, 60)}")
    return 0


async def get(path: Path, digest: str, out: Path | None, session: str | None) -> int:
    """Write the bytes of an attachment."""
    if out is None and sys.stdout.isatty():
        message = "a terminal shows no bytes; give --out FILE, or send the output somewhere"
        raise CallInvalid(message)
    async with looking(path) as runtime:
        parts = runtime.attachments.stream(digest, session=session)
        first = await anext(parts)  # what is not there must not leave an empty file
        with _opened(out) as file:
            await asyncio.to_thread(file.write, first)
            async for part in parts:
                await asyncio.to_thread(file.write, part)
            file.flush()
    return 0


@contextmanager
def _opened(out: Path | None) -> Generator[BinaryIO]:
    """Where the bytes go. A new file is there as a whole, or not at all; what is there stays what it is."""
    if out is None:
        yield sys.stdout.buffer
        return
    try:
        if out.exists():
            with out.open("wb") as file:
                yield file
            return
        beside = out.with_name(f".{out.name[:100]}.{secrets.token_hex(4)}")
        try:
            with beside.open("xb") as file:
                yield file
            beside.replace(out)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as error:
        message = f"{out} can't be written: {error.strerror}"
        raise CallInvalid(message) from error


async def collect(path: Path, hours: float, *, dry_run: bool, without_roots: bool, as_json: bool) -> int:
    """Delete what nobody refers to."""
    if not 0 <= hours <= 1_000_000:
        message = "--older-than wants hours from 0 to 1,000,000"
        raise CallInvalid(message)
    async with changing(path) as runtime:
        done = await runtime.attachments.collect(
            older_than=timedelta(hours=hours), dry_run=dry_run, without_roots=without_roots
        )
    if as_json:
        stdout().line(msgspec.json.encode(done).decode())
    else:
        stdout().line(f"{'would delete' if dry_run else 'deleted'} {done.blobs:,} ({done.bytes:,} bytes)")
    return 0


def _json(found: Attachment) -> str:
    told = {"digest": found.digest, "media_type": found.media_type, "size": found.size, "name": found.name}
    return msgspec.json.encode(told).decode()
