"""`holdfast rm`, `prune` and `backup`: forget one session, or all that ended long ago; copy the store."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from holdfast.cli import options
from holdfast.cli.options import Shell, flag, option
from holdfast.cli.output import ask_yes_no, one_line, printable, stdout
from holdfast.cli.sessions import edit_runtime, find_session, view_runtime

if TYPE_CHECKING:
    from holdfast.store.retention import Forgotten


async def rm(
    shell: Shell,
    session: options.SessionId,
    *,
    forks: Annotated[bool, flag("Also the sessions that were forked from it.", "--forks")] = False,
    memory: Annotated[
        list[str] | None,
        option(
            "SCOPE", "A scope of memory that goes with it, if not the one with its id; may be repeated.", "--memory"
        ),
    ] = None,
    keep_hash: Annotated[bool, flag("Refuse the id from now on; only a hash of it stays.", "--keep-hash")] = False,
    dry_run: options.DryRun = False,
    yes: Annotated[bool, flag("Do not ask.", "--yes", "-y")] = False,
) -> int:
    """Forget a session: its records, sub-agents, background work, inbox, attachments and memory.

    This can't be undone; on a terminal, it says what would go, and asks first. What the session spent stays counted for
    its agent. A process that drives it stops. Sessions that were forked from it read from it, so they must go first, or
    with it.
    """
    async with edit_runtime(shell.store) as runtime:
        found = (await find_session(runtime.store, session)).id
        forget = partial(runtime.forget, found, forks=forks, memory=memory or None, keep_hash=keep_hash)
        if not (yes or dry_run) and sys.stdin.isatty() and sys.stdout.isatty():
            stdout().lines(map(printable, _lines(await forget(dry_run=True))))
            if not ask_yes_no("Forget it for good?"):
                stdout().line("nothing was removed")
                return options.CANCELLED
        forgotten = await forget(dry_run=dry_run)
    shell.print(forgotten, lambda _: map(printable, _lines(forgotten)))
    return 0


def _lines(forgotten: Forgotten) -> list[str]:
    others = len(forgotten.journals) - 1
    files = "" if forgotten.dry_run else f", {forgotten.attachments:,} attachments and large values"
    verb = "would forget" if forgotten.dry_run else "forgot"
    what = f"{forgotten.records:,} records{files}, {forgotten.memories:,} entries of memory"
    lines = [f"{verb} {one_line(forgotten.session, 160)}: {what}"]
    if others:
        lines.append(f"  and {others:,} sessions and processes that belong to it")
        lines += [f"    {one_line(id, 160)}" for id in forgotten.journals[1:] if forgotten.dry_run]
    if not forgotten.dry_run and not forgotten.wiped:
        lines.append("  its bytes are still in the log, which another program reads; they go when that is done")
    return lines


async def prune(shell: Shell, *, older_than: options.OlderThan, dry_run: options.DryRun = False) -> None:
    """Forget the sessions that have not changed for so long, with all that belongs to them. Memory stays.

    Sessions that wait, run, or have something to do are kept, and those that others were forked from. For processes
    there is 'holdfast processes prune', for triggers 'holdfast triggers prune'.
    """
    age = options.parse_span("--older-than", older_than)
    async with edit_runtime(shell.store) as runtime:
        report = await runtime.prune_sessions(age, dry_run=dry_run)
    lines = [f"{'would forget' if dry_run else 'forgot'} {report.pruned:,}, kept {report.kept:,}"]
    lines += [f"  {id}" for id in report.sessions if dry_run]
    lines += [f"  kept {kept.id}: {one_line(kept.reason, 200)}" for kept in report.reasons]
    shell.print(report, lambda _: map(printable, lines))


async def backup(
    shell: Shell,
    file: Annotated[Path, options.argument("FILE", "The new file.")],
    *,
    without_key: Annotated[bool, flag("Leave out FILE.key, the key of the store.", "--without-key")] = False,
) -> int:
    """Copy one state of the store into a new file, while it is in use, and examine the copy.

    The exit code is 1 if the examination finds problems, which the store has as well; the copy is kept. Restore it by
    putting both files in the place of the store when nothing has it open.
    """
    async with view_runtime(shell.store) as runtime:
        made = await runtime.backup(file, with_key=not without_key)
    verdict = "healthy" if made.healthy else f"{len(made.problems):,} problem(s), as the store has"
    key = "" if made.key is None else f", key in {made.key}"
    journals = f"{made.journals:,} journal{'' if made.journals == 1 else 's'}"
    lines = [f"{made.path}: {journals}, {made.records:,} records, {verdict}{key}"]
    lines += [f"  problem {one_line(problem, 200)}" for problem in made.problems]
    shell.print(made, lambda _: map(printable, lines))
    return 0 if made.healthy else options.FAILED
