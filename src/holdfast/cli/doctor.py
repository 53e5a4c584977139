"""`holdfast doctor`: the health of a store, for people and for scripts."""

from __future__ import annotations

import sys
from pathlib import Path  # noqa: TC003  typer looks at the annotation at run time
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from holdfast.cli.options import DEFAULT_STORE, StoreMissing, StoreOption
from holdfast.cli.output import printable, stderr, stdout
from holdfast.clock import SystemClock
from holdfast.errors import HoldfastError

if TYPE_CHECKING:
    from holdfast.store.sqlite.health import HeldLease, StoreHealth


def doctor(
    store: Annotated[
        Path | None, typer.Argument(help="The store file, if not the one of --store.", show_default=False)
    ] = None,
    *,
    usual: StoreOption = DEFAULT_STORE,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    seconds: Annotated[
        float, typer.Option("--seconds", metavar="N", min=0, help="How long to look at the most; the rest is named.")
    ] = 300.0,
    new_key: Annotated[
        bool,
        typer.Option(
            "--new-key",
            help="Make another key for a store whose key is lost. Rules, and answers not used yet, are dropped.",
        ),
    ] = False,
) -> None:
    """Examine a store: versions, counts, leases, quarantined journals, spending, every checksum.

    Nothing is changed, and the store may be in use. Exit code 0 when all is well, 1 when there are problems.
    """
    from holdfast.runtime.budgets import spend_of_record  # noqa: PLC0415  apsw only when it is needed
    from holdfast.store.sqlite.files import renew_key  # noqa: PLC0415
    from holdfast.store.sqlite.health import examine  # noqa: PLC0415

    if store is None:
        store = usual
        if not store.exists():
            raise StoreMissing(store)
    if new_key:
        renew_key(store, SystemClock().read().wall)
        typer.echo(f"{store} has a new key; rules and answers that were not used yet are dropped, tokens are void")
    progress = _Progress()
    try:
        health = examine(store, progress, spend_of_record, seconds=seconds)
    except HoldfastError as error:
        progress.clear()
        if as_json:
            told = {"path": str(store), "healthy": False, "problems": [str(error)]}
            stdout().line(msgspec.json.encode(told).decode())
        else:
            stderr().line(f"doctor: {printable(str(error))}")
        raise typer.Exit(1) from error
    progress.clear()
    stdout().line(msgspec.json.encode(health).decode() if as_json else printable("\n".join(_lines(health))))
    raise typer.Exit(0 if health.healthy else 1)


class _Progress:
    """A line that grows on a terminal, and nothing elsewhere."""

    def __init__(self) -> None:
        self._shown = sys.stderr.isatty()

    def __call__(self, done: int, total: int) -> None:
        if self._shown and done % 100 == 0:
            sys.stderr.write(f"\rchecking journal {done:,} of {total:,} ")
            sys.stderr.flush()

    def clear(self) -> None:
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


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
        _line("memories", _remembered(health)),
        _line("blobs", f"{health.blobs:,} ({_size(health.blob_bytes)})"),
        _line("leases", f"{len(health.leases):,} held"),
    ]
    lines += [_line("", _held(held)) for held in health.leases[:20]]
    lines += [_line("quarantined", f"{len(health.quarantined):,}")] if health.quarantined else []
    lines += [_line("warning", warning) for warning in health.warnings]
    lines += [_line("problem", problem) for problem in health.problems]
    left = health.problem_count - len(health.problems)
    return lines + ([_line("", f"and {left:,} more")] if left else [])


def _line(name: str, text: str) -> str:
    return f"  {name:<13} {text}"


def _counted(counts: dict[str, int]) -> str:
    """How many there are, and how many of each kind."""
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in counts.items())
    return f"{sum(counts.values()):,}" + (f" ({kinds})" if kinds else "")


def _remembered(health: StoreHealth) -> str:
    if not health.memories:
        return "0"
    damaged = f"{health.memories_damaged:,} DAMAGED" if health.memories_damaged else "none damaged"
    return f"{health.memories:,} in {health.memory_scopes:,} scope(s), {damaged}"


def _held(held: HeldLease) -> str:
    return f"{held.journal}: epoch {held.epoch}, {held.holder}, {held.state}"


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
