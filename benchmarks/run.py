"""`make bench`: every bar in one run. Exit code 1 when one is short, or a part fails or does not finish in its time.

Each part runs in a process of its own, with a time limit: one that hangs is killed and named, and the others go on.
`python benchmarks/run.py PART...` runs only these parts and leaves `results.json` as it is; `--seconds N` gives each
part that much time instead of its own limit.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from bars import Bar, report
from context import long_turn
from ground import appends, imports, long_journal, many_sessions, resume
from harness import harness
from live import live
from models import over_http
from processes import processes
from turns import crowds, dialogue, endless_session, long_session, loop_alone, parked, redrive, runs, tracing

from programs import programs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Part:
    """Some bars that are measured together, and how many seconds that may take."""

    measure: Callable[[Path], Iterable[Bar]]
    seconds: float

    def run(self, name: str) -> list[Bar] | str:
        """Its bars, or why there are none."""
        # On the disk of the work tree: a file system in memory would make every sync free.
        with tempfile.TemporaryDirectory(prefix=".bench-", dir=HERE) as folder:
            command = [sys.executable, __file__, "--in", folder, name]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
            try:
                told, _ = process.communicate(timeout=self.seconds)
            except subprocess.TimeoutExpired:
                return f"did not finish within {self.seconds} s"
            finally:
                _kill_group(process)
        if process.returncode:
            return f"failed with exit code {process.returncode}; its traceback is above"
        return msgspec.json.decode(told, type=list[Bar])


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """End the part and every process that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


PARTS: dict[str, Part] = {
    "appends": Part(appends, 120),
    "long_journal": Part(long_journal, 120),
    "many_sessions": Part(many_sessions, 180),
    "resume": Part(resume, 60),
    "imports": Part(lambda _: imports(), 60),
    "crowds": Part(crowds, 240),
    "loop_alone": Part(loop_alone, 120),
    "tracing": Part(tracing, 180),
    "redrive": Part(redrive, 180),
    "long_session": Part(long_session, 240),
    "endless_session": Part(endless_session, 300),
    "runs": Part(runs, 120),
    "dialogue": Part(dialogue, 120),
    "parked": Part(parked, 300),
    "over_http": Part(over_http, 300),
    "harness": Part(harness, 300),
    "long_turn": Part(long_turn, 300),
    "processes": Part(processes, 300),
    "live": Part(live, 240),
    "programs": Part(lambda _: programs(), 180),
}


def main(names: list[str], seconds: float | None) -> int:
    if unknown := [name for name in names if name not in PARTS]:
        print(f"there is no part {', '.join(unknown)}; the parts are {', '.join(PARTS)}", file=sys.stderr)
        return 2
    bars: list[Bar] = []
    failures: list[str] = []
    print("measuring; all of it takes six to eight minutes", file=sys.stderr)
    for name in names or PARTS:
        print(f"{name} ", end="", file=sys.stderr, flush=True)
        begun = time.perf_counter()
        part = PARTS[name]
        found = (part if seconds is None else replace(part, seconds=seconds)).run(name)
        print(f" {time.perf_counter() - begun:.0f} s", file=sys.stderr, flush=True)
        if isinstance(found, str):
            failures.append(f"{name} {found}")
        else:
            bars += found
    return report(bars, None if names else HERE / "results.json", failures)


def measure(name: str, folder: Path) -> None:
    """Run one part here and write its bars to stdout as JSON: the side of the child."""
    told, sys.stdout = sys.stdout, sys.stderr
    bars = [asdict(bar) for bar in PARTS[name].measure(folder)]
    told.write(msgspec.json.encode(bars).decode())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Measure the speed bars.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"one of {', '.join(PARTS)}; all if none is named")
    parser.add_argument("--seconds", type=float, help="time limit of each part")
    parser.add_argument("--in", dest="folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.folder is not None:
        measure(given.parts[0], given.folder)
    else:
        sys.exit(main(given.parts, given.seconds))
