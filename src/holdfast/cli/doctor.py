"""`holdfast doctor`: the health of a store, for people and for scripts."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003  typer looks at the annotation at run time
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.options import DEFAULT_STORE, FAILED, StoreOption, require_store
from holdfast.cli.output import ProgressLine, printable, stderr, stdout
from holdfast.clock import SystemClock
from holdfast.errors import HoldfastError
from holdfast.runtime.budgets import spend_of_record
from holdfast.store.sqlite.health import examine
from holdfast.store.sqlite.key import renew_key

if TYPE_CHECKING:
    from holdfast.store.sqlite.health import StoreHealth


def doctor(
    path: Annotated[
        Path | None,
        typer.Argument(metavar="[STORE]", help="The store file, if not the one of --store.", show_default=False),
    ] = None,
    *,
    store: StoreOption = DEFAULT_STORE,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    seconds: Annotated[
        float, typer.Option("--seconds", metavar="N", min=0, help="Stop after so long; the report names the rest.")
    ] = 300.0,
    new_key: Annotated[
        bool,
        typer.Option(
            "--new-key",
            help="Make another key for a store whose key is lost. Rules, and answers not used yet, are dropped.",
        ),
    ] = False,
) -> int:
    """Examine a store: versions, counts, leases, quarantined journals, spending, every checksum.

    Nothing is changed, and the store may be in use. Exit code 0 when all is well, 1 when there are problems.
    """
    if path is None:
        require_store(store)
        path = store
    if new_key:
        renew_key(path, SystemClock().read().wall)
        typer.echo(f"{path} has a new key; rules and answers that were not used yet are dropped, tokens are void")
    out, progress = stdout(), ProgressLine("checking journal {:,} of {:,}")
    try:
        health = examine(path, progress.show, spend_of_record, seconds=seconds)
    except HoldfastError as error:
        progress.clear()
        if as_json:
            out.json({"path": str(path), "healthy": False, "problems": [str(error)]})
        else:
            stderr().line(f"doctor: {printable(str(error))}")
        return FAILED
    progress.clear()
    if as_json:
        out.json(health)
    else:
        out.line(printable("\n".join(_lines(health))))
    return 0 if health.healthy else FAILED


def _lines(health: StoreHealth) -> list[str]:
    verdict = "healthy" if health.healthy else f"{health.problem_count:,} problem(s)"
    checksums = "all checksums right" if not health.checksum_failures else f"{health.checksum_failures:,} WRONG"
    lines = [
        f"{health.path}: {verdict}",
        _line("versions", f"holdfast {health.holdfast}, schema {health.schema}, SQLite {health.sqlite}"),
        _line("file", f"{_size(health.bytes)}, write-ahead log {_size(health.wal_bytes)}, mode {health.mode}"),
        _line("journals", _counted(health.journals)),
        _line("records", f"{health.records:,}, {checksums}"),
        _line("inbox", f"{health.pending_inputs:,} pending"),
        _line("waits", f"{health.open_waits:,} open{_due(health.next_due)}"),
        _line("notifications", _counted(health.notifications)),
        _line("memories", _memories(health)),
        _line("blobs", f"{health.blobs:,} ({_size(health.blob_bytes)})"),
        _line("leases", f"{len(health.leases):,} held"),
    ]
    lines += [
        _line("", f"{lease.journal}: epoch {lease.epoch}, {lease.holder}, {lease.state}")
        for lease in health.leases[:20]
    ]
    lines += [_line("quarantined", f"{len(health.quarantined):,}")] if health.quarantined else []
    lines += [_line("warning", warning) for warning in health.warnings]
    lines += [_line("problem", problem) for problem in health.problems]
    left = health.problem_count - len(health.problems)
    return lines + ([_line("", f"and {left:,} more")] if left else [])


def _line(name: str, text: str) -> str:
    return f"  {name:<13} {text}"


def _counted(counts: dict[str, int]) -> str:
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in counts.items())
    return f"{sum(counts.values()):,}" + (f" ({kinds})" if kinds else "")


def _memories(health: StoreHealth) -> str:
    if not health.memories:
        return "0"
    damaged = f"{health.memories_damaged:,} DAMAGED" if health.memories_damaged else "none damaged"
    return f"{health.memories:,} in {health.memory_scopes:,} scope(s), {damaged}"


def _due(at: int | None) -> str:
    if at is None:
        return ""
    seconds = (at - SystemClock().read().wall) / 1000
    return f", next due in {seconds:,.0f} s" if seconds > 0 else f", one is overdue by {-seconds:,.0f} s"


def _size(size: int) -> str:
    for power, unit in ((3, "GB"), (2, "MB"), (1, "kB")):
        if size >= 1000**power:
            return f"{size / 1000**power:.1f} {unit}"
    return f"{size} B"
