"""`holdfast attachments`: files that go with what is said: put, list, get, collect."""

from __future__ import annotations

import asyncio
import secrets
import sys
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path  # noqa: TC003  typer looks at the annotation at run time
from typing import TYPE_CHECKING, Annotated, BinaryIO, TypeAlias

import msgspec
import typer

from holdfast.cli.options import DEFAULT_STORE, CallInvalid, JsonOption, StoreOption, finish
from holdfast.cli.output import one_line, stdout
from holdfast.cli.sessions import changing, looking

if TYPE_CHECKING:
    from collections.abc import Generator

    from holdfast.messages import Attachment


app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Files that go with what is said. Their bytes are kept once, under their digest.",
)
WhoseOption: TypeAlias = Annotated[
    str | None, typer.Option("--session", "-S", metavar="ID", help="The whole id of the session that may read it.")
]


@app.command()
def put(  # noqa: PLR0913
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file.", show_default=False)],
    *,
    media_type: Annotated[
        str | None, typer.Option("--type", metavar="TYPE", help="What it is, such as image/png; it is checked.")
    ] = None,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="What it is called, if not as the file.")] = None,
    session: WhoseOption = None,
    as_json: JsonOption = False,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Keep a file; prints its digest. Without a session it can be sent to any, and is collected when nobody has."""
    finish(attaching_put(store, file, media_type, name, session, as_json=as_json))


@app.command("list")
def ls(
    session: Annotated[
        str | None, typer.Argument(metavar="[SESSION]", help="Whose; without one, those of none.", show_default=False)
    ] = None,
    *,
    as_json: JsonOption = False,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """List the attachments of a session, or those that nobody has sent yet."""
    finish(attaching_ls(store, session, as_json=as_json))


@app.command()
def get(
    digest: Annotated[str, typer.Argument(metavar="DIGEST", help="As 'list' shows it.", show_default=False)],
    *,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="Where to write it; else to standard output."),
    ] = None,
    session: WhoseOption = None,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Write the bytes of an attachment; with --session, only if that one may read it."""
    finish(attaching_get(store, digest, out, session))


@app.command()
def collect(
    *,
    hours: Annotated[
        float, typer.Option("--older-than", metavar="HOURS", help="Only what was last put so long ago.")
    ] = 24.0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count what would be deleted.")] = False,
    without_roots: Annotated[
        bool, typer.Option("--without-roots", help="Also where nothing at all is referred to.")
    ] = False,
    as_json: JsonOption = False,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Delete bytes that nobody refers to: no session, fork, task, process or input.

    Exit code 1, and nothing deleted, where it can't be seen what is needed.
    """
    finish(attaching_collect(store, hours, dry_run=dry_run, without_roots=without_roots, as_json=as_json))


async def attaching_put(  # noqa: PLR0913
    path: Path, file: Path, media_type: str | None, name: str | None, session: str | None, *, as_json: bool
) -> int:
    """Keep a file."""
    async with changing(path) as runtime:
        found = await runtime.attachments.put(file, media_type=media_type, name=name, session=session)
    stdout().line(_json(found) if as_json else found.digest)
    return 0


async def attaching_ls(path: Path, session: str | None, *, as_json: bool) -> int:
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


async def attaching_get(path: Path, digest: str, out: Path | None, session: str | None) -> int:
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


async def attaching_collect(path: Path, hours: float, *, dry_run: bool, without_roots: bool, as_json: bool) -> int:
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
