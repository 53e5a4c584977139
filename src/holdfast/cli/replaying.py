"""`holdfast replay --check`: do the recorded turns still fit the code?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from holdfast.cli.agent_references import chosen, recorded
from holdfast.cli.failures import FAILED, CallInvalid
from holdfast.cli.sessions import find, looking
from holdfast.cli.terminal import diff_line, printable, stdout
from holdfast.errors import TurnUnknown
from holdfast.runtime.checking import check_turns

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.cli.terminal import Terminal
    from holdfast.runtime.checking import TurnCheck


async def replay(  # noqa: PLR0913
    path: Path, given: str, agent: str | None, *, check: bool, as_json: bool, yes: bool = False
) -> int:
    """Drive the turns of a session again from its records; exit code 1 when one takes another way."""
    if not check:
        message = "replay performs nothing and only checks: say so with --check"
        raise CallInvalid(message)
    async with looking(path) as runtime:
        target = await find(runtime.store, given)
        reference = chosen(target.id, agent, await recorded(path, runtime.store, target.line), yes=yes)
        checks = await check_turns(runtime.store, target.id, reference.load())
    if target.turn is not None:
        checks = [found for found in checks if found.turn == target.turn]
        if not checks:
            raise TurnUnknown(target.id, target.turn)
    out = stdout()
    if as_json:
        out.line(msgspec.json.encode(checks).decode())
    else:
        for found in checks:
            out.write("".join(f"{text}\n" for text in _lines(out, found)))
        if not checks:
            out.line(f"{target.id} has no turns yet")
    return FAILED if any(found.verdict == "divergence" for found in checks) else 0


def _lines(out: Terminal, check: TurnCheck) -> list[str]:
    said = {
        "ok": "",
        "drift": ": a prompt has changed; the recorded answer is kept",
        "divergence": ": the code takes another way than the record",
    }
    lines = [f"{check.turn}  {out.status(check.verdict)} ({check.status or 'under way'}){said[check.verdict]}"]
    for finding in check.findings:
        lines.append(f"  {finding.key}")
        if finding.changes:
            lines += [f"    {diff_line(out, text)}" for text in finding.changes]
            continue
        for place in finding.divergence.first:
            lines += [
                out.paint(f"    - {place.path}: {printable(place.recorded)}", "red"),
                out.paint(f"    + {place.path}: {printable(place.asked)}", "green"),
            ]
        more = finding.divergence.total - len(finding.divergence.first)
        if more:
            lines.append(f"    and {more:,} more")
    return lines
