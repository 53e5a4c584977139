"""`holdfast attachments`: files that are sent to agents."""

from __future__ import annotations

import asyncio
import secrets
import sys
from collections.abc import Generator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Annotated, BinaryIO

from holdfast.cli import options, output, sessions
from holdfast.cli.options import DEFAULT_STORE, CallInvalid, CommandGroup, Shell, argument, flag, option
from holdfast.messages import Attachment

attachments = CommandGroup(
    no_args_is_help=True, help="Files that are sent to agents. The store keeps their bytes once, under their digest."
)
ReaderOption = Annotated[str | None, option("ID", "The whole id of the session that may read it.", "--session", "-S")]


@attachments.command()
async def put(
    shell: Shell,
    file: Annotated[Path, argument("FILE", "The file.")],
    *,
    media_type: Annotated[
        str | None, option("TYPE", "Its media type, such as image/png; it is checked.", "--type")
    ] = None,
    name: Annotated[str | None, option("NAME", "Its name, if not that of the file.")] = None,
    session: ReaderOption = None,
) -> None:
    """Store a file, and print its digest.

    Without --session, any session may be sent it, and 'collect' deletes it if none was.
    """
    async with sessions.edit_runtime(shell.store) as runtime:
        found = await runtime.attachments.put(file, media_type=media_type, name=name, session=session)
    shell.print(_fields(found), found.digest)


@attachments.command("list")
async def ls(
    shell: Shell,
    session: Annotated[str | None, argument("[SESSION]", "A session; without one, unsent attachments.")] = None,
) -> None:
    """List the attachments of a session, or those that were not sent to any session yet."""
    async with sessions.view_runtime(shell.store) as runtime:
        found = await runtime.attachments.of(session)

    def line(one: Attachment) -> str:
        text = f"{one.digest}  {one.size:>12,}  {output.one_line(one.media_type, 40)}"
        return f"{text}  {output.one_line(one.name or '', 80)}".rstrip()

    nothing = "no attachments" if session is None else f"no attachments of {output.one_line(session, 60)}"
    shell.print([_fields(one) for one in found], lambda _: map(line, found), nothing=nothing)


@attachments.command()
async def get(
    digest: Annotated[str, argument("DIGEST", "As 'list' prints it.")],
    *,
    out: Annotated[Path | None, option("FILE", "Write to this file instead of standard output.", "--out", "-o")] = None,
    session: ReaderOption = None,
    store: options.Store = DEFAULT_STORE,
) -> None:
    """Write the bytes of an attachment; with --session, only if that session may read it."""
    if out is None and sys.stdout.isatty():
        raise CallInvalid("a terminal shows no bytes; give --out FILE, or send the output somewhere")
    async with sessions.view_runtime(store) as runtime:
        parts = runtime.attachments.stream(digest, session=session)
        first = await anext(parts)  # an unknown digest must not leave an empty file
        with _open_target(out) as file:
            await asyncio.to_thread(file.write, first)
            async for part in parts:
                await asyncio.to_thread(file.write, part)
            file.flush()


@contextmanager
def _open_target(out: Path | None) -> Generator[BinaryIO]:
    """Open standard output or a file. A new file appears complete or not at all; an existing one keeps its inode."""
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
        raise CallInvalid(f"{out} can't be written: {error.strerror}") from error


@attachments.command()
async def collect(
    shell: Shell,
    *,
    hours: Annotated[float, option("HOURS", "Only what was last stored so long ago.", "--older-than")] = 24.0,
    dry_run: Annotated[bool, flag("Only count what would be deleted.", "--dry-run")] = False,
    without_roots: Annotated[
        bool, flag("Also if nothing in the store refers to any attachment.", "--without-roots")
    ] = False,
) -> None:
    """Delete bytes to which no session, fork, task, process or input refers.

    Exit code 1, and nothing deleted, if the references can't be read.
    """
    if not 0 <= hours <= 1_000_000:
        raise CallInvalid("--older-than wants hours from 0 to 1,000,000")
    async with sessions.edit_runtime(shell.store) as runtime:
        done = await runtime.attachments.collect(
            older_than=timedelta(hours=hours), dry_run=dry_run, without_roots=without_roots
        )
    shell.print(done, f"{'would delete' if dry_run else 'deleted'} {done.blobs:,} ({done.bytes:,} bytes)")


def _fields(found: Attachment) -> dict[str, object]:
    return {"digest": found.digest, "media_type": found.media_type, "size": found.size, "name": found.name}
