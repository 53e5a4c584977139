"""How every command ends: with the exit code of what it did, or with an error that is told in one line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from holdfast.cli.failures import explained

if TYPE_CHECKING:
    from collections.abc import Coroutine


def finish(work: Coroutine[None, None, int | None]) -> None:
    """Do the work of a command, and end with its exit code; 0 where it has none."""
    import asyncio  # noqa: PLC0415  `--help` needs no event loop

    with explained():
        code = asyncio.run(work)
    raise typer.Exit(code or 0)
