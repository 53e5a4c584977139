"""`holdfast export` and `import`: a session in a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from holdfast.cli import options
from holdfast.cli.options import Shell, flag, option
from holdfast.cli.output import one_line, printable, stderr
from holdfast.cli.sessions import edit_runtime, find_session, view_runtime
from holdfast.runtime.exports import STREAM
from holdfast.store import open_store

if TYPE_CHECKING:
    from holdfast.store.exports import SessionReport


_FILE: Final = "The file; - for the standard"


async def export(
    shell: Shell,
    session: options.SessionId,
    file: Annotated[str, options.argument("FILE", f"{_FILE} output.")],
    *,
    move: Annotated[
        bool, flag("The session goes on where the file is imported, and no more in this store.", "--move")
    ] = False,
    force: Annotated[bool, flag("Overwrite the file.", "--force")] = False,
    memory: Annotated[
        list[str] | None,
        option("SCOPE", "A scope of memory that goes along, if not the one with its id; may be repeated.", "--memory"),
    ] = None,
) -> None:
    """Write a session with everything that belongs to it, its forks too, into one file of JSON lines.

    A copy is made of a session at rest only. With --move a session in the middle of its work goes along as it is: it
    keeps its idempotency keys, and this store drives it no more. The file holds all that was said: keep it as you keep
    the store.
    """
    async with (edit_runtime if move else view_runtime)(shell.store) as runtime:
        found = (await find_session(runtime.store, session)).id
        made = await runtime.export_session(found, file, move=move, force=force, memory=memory or None)
    lines = _lines("moved" if made.move else "copied", made, f"into {file}")
    if file == STREAM:
        stderr().lines(map(printable, lines))
    else:
        shell.print(made, lambda _: map(printable, lines))


async def import_(
    shell: Shell,
    file: Annotated[str, options.argument("FILE", f"{_FILE} input.")],
    *,
    key: Annotated[
        Path | None, option("FILE", "The key of the store that wrote the file: the file STORE.key beside it.", "--key")
    ] = None,
    trust: Annotated[bool, flag("Import it though nothing proves which store wrote it.", "--trust")] = False,
    dry_run: Annotated[bool, flag("Only check the file.", "--dry-run")] = False,
) -> None:
    """Store the session of a file that 'holdfast export' wrote; makes the store if there is none.

    The file is read to its end and checked first, and then all of it is stored, or nothing. The same file again does
    nothing. What it holds decides what its agents do next, so give --trust only to a file that came to you safely.
    """
    from holdfast.runtime.runtime import Runtime

    async with open_store(shell.store) as store, Runtime(store, (), drive=False) as runtime:
        made = await runtime.import_session(file, key=key, trust=trust, dry_run=dry_run)
    verb = "would import" if dry_run else "imported"
    told = _lines(verb, made, f"from {file}")
    if not made.fresh:
        told = [f"{one_line(made.session, 160)} is here already, from this very file; nothing was done"]
    shell.print(made, lambda _: map(printable, told))


def _lines(verb: str, made: SessionReport, where: str) -> list[str]:
    what = f"{made.records:,} records, {made.blobs:,} attachments and large values"
    lines = [f"{verb} {one_line(made.session, 160)} {where}: {what}"]
    if len(made.journals) > 1:
        lines.append(f"  and {len(made.journals) - 1:,} sessions and processes that belong to it")
    return lines
