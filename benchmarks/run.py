"""`make bench`: every bar in one run. Exit code 1 when one is short."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from bars import report
from context import long_turn
from ground import appends, imports, long_journal, many_sessions, resume
from harness import harness
from models import over_http
from processes import processes
from turns import crowds, long_session, loop_alone, parked, redrive

from programs import programs

HERE = Path(__file__).parent


def main() -> int:
    # On the disk of the work tree: a file system in memory would make every sync free.
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=HERE) as name:
        folder = Path(name)
        print("measuring; this takes four to six minutes ", end="", file=sys.stderr, flush=True)
        bars = [*appends(folder), *long_journal(folder), *many_sessions(folder), *resume(folder), *imports()]
        bars += [*crowds(folder), *loop_alone(folder), *redrive(folder), *long_session(folder), *parked(folder)]
        bars += [*over_http(folder), *harness(folder), *long_turn(folder), *processes(folder), *programs()]
    return report(bars, HERE / "results.json")


if __name__ == "__main__":
    sys.exit(main())
