"""`holdfast inbox --refused`: inputs that sessions did not take in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.cli.sessions import looking
from holdfast.cli.terminal import duration, one_line, stdout

if TYPE_CHECKING:
    from pathlib import Path

MOST: Final = 200


async def refused(path: Path, *, as_json: bool) -> int:
    """List the last ones, newest first."""
    async with looking(path) as runtime:
        found = await runtime.refusals(limit=MOST)
        now = runtime.store.clock.read().wall
    out = stdout()
    if as_json:
        out.line(msgspec.json.encode(found).decode())
        return 0
    for refusal in found:
        ago = duration(max(now - refusal.at, 0))
        head = out.paint(refusal.error, "bold")
        out.line(f"{head}  {one_line(refusal.journal, 60)}, {ago} ago, number {refusal.nth:,} of this session")
        out.line(f"  {one_line(refusal.message, 300)}")
    if not found:
        out.line("no input was refused")
    return 0
