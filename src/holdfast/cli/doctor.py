"""`holdfast doctor`: the health of a store, for people and for scripts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from holdfast import clock, errors
from holdfast.cli import options, output
from holdfast.runtime.budgets import spend_of_record
from holdfast.store.sqlite.health import StoreHealth, examine
from holdfast.store.sqlite.key import renew_key

_NEW_KEY: Final = "Make another key for a store whose key is lost. Rules, and answers not used yet, are dropped."


def doctor(
    shell: options.Shell,
    path: Annotated[Path | None, options.argument("[STORE]", "The store file, if not the one of --store.")] = None,
    *,
    seconds: Annotated[float, options.option("N", "Stop after so long; the report names the rest.", min=0)] = 300.0,
    new_key: Annotated[bool, options.flag(_NEW_KEY, "--new-key")] = False,
) -> int:
    """Examine a store: versions, counts, leases, quarantined journals, spending, every checksum.

    Nothing is changed, and the store may be in use. Exit code 0 when all is well, 1 when there are problems.
    """
    if path is None:
        options.require_store(shell.store)
        path = shell.store
    if new_key:
        renew_key(path, clock.wall_time())
        typer.echo(f"{path} has a new key; rules and answers that were not used yet are dropped, tokens are void")
    progress = output.ProgressLine("checking journal {:,} of {:,}")
    try:
        health = examine(path, progress.show, spend_of_record, seconds=seconds)
    except errors.HoldfastError as error:
        progress.clear()
        if shell.as_json:
            output.stdout().json({"path": str(path), "healthy": False, "problems": [str(error)]})
        else:
            output.stderr().line(f"doctor: {output.printable(str(error))}")
        return options.FAILED
    progress.clear()
    shell.print(health, lambda _: map(output.printable, _lines(health)))
    return 0 if health.healthy else options.FAILED


def _lines(health: StoreHealth) -> list[str]:
    verdict = "healthy" if health.healthy else f"{health.problem_count:,} problem(s)"
    checksums = "all checksums right" if not health.checksum_failures else f"{health.checksum_failures:,} WRONG"
    damaged = f"{health.memories_damaged:,} DAMAGED" if health.memories_damaged else "none damaged"
    memories = f"{health.memories:,} in {health.memory_scopes:,} scope(s), {damaged}" if health.memories else "0"
    left = health.problem_count - len(health.problems)
    facts = [
        ("versions", f"holdfast {health.holdfast}, schema {health.schema}, SQLite {health.sqlite}"),
        ("file", f"{_size(health.bytes)}, write-ahead log {_size(health.wal_bytes)}, mode {health.mode}"),
        ("journals", _count_kinds(health.journals)),
        ("records", f"{health.records:,}, {checksums}"),
        ("inbox", f"{health.pending_inputs:,} pending"),
        ("waits", f"{health.open_waits:,} open{_due(health.next_due)}"),
        ("notifications", _count_kinds(health.notifications)),
        ("memories", memories),
        ("blobs", f"{health.blobs:,} ({_size(health.blob_bytes)})"),
        ("leases", f"{len(health.leases):,} held"),
        *(("", f"{each.journal}: epoch {each.epoch}, {each.holder}, {each.state}") for each in health.leases[:20]),
        *([("quarantined", f"{len(health.quarantined):,}")] if health.quarantined else []),
        *(("warning", warning) for warning in health.warnings),
        *(("problem", problem) for problem in health.problems),
        *([("", f"and {left:,} more")] if left else []),
    ]
    return [f"{health.path}: {verdict}", *(f"  {name:<13} {text}" for name, text in facts)]


def _count_kinds(counts: dict[str, int]) -> str:
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in counts.items())
    return f"{sum(counts.values()):,}" + (f" ({kinds})" if kinds else "")


def _due(at: int | None) -> str:
    if at is None:
        return ""
    seconds = (at - clock.wall_time()) / 1000
    return f", next due in {seconds:,.0f} s" if seconds > 0 else f", one is overdue by {-seconds:,.0f} s"


def _size(size: int) -> str:
    for power, unit in ((3, "GB"), (2, "MB"), (1, "kB")):
        if size >= 1000**power:
            return f"{size / 1000**power:.1f} {unit}"
    return f"{size} B"
