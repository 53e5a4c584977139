"""One real process after the other, for little: a server that imports everything once, and forks a child per request.

The server is a script that calls `serve`. It reads a JSON object from each line of its standard input, waits for the
child, and answers with its exit status. It has no threads itself.
"""

from __future__ import annotations

import asyncio
import faulthandler
import io
import json
import os
import subprocess
import sys
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from tests.importing import import_everything

from holdfast.testing import arm_from_environment

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

PATIENCE = 60.0
"""For a process that is to come to its end by itself."""
ROOT = Path(__file__).parents[2]


class Forks:
    """Starts the children of a script, each on the store of a folder."""

    def __init__(self, script: str | Path) -> None:
        known = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        self._server = subprocess.Popen(
            [sys.executable, str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(known)},
        )

    def run(self, folder: Path, **request: str) -> int:
        """The exit status of a child: 0 when its work is done, -9 when it was killed."""
        folder.mkdir(exist_ok=True)
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps({"folder": str(folder), **request}) + "\n")
        self._server.stdin.flush()
        return int(self._server.stdout.readline())

    def close(self) -> None:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.close()
        self._server.wait(timeout=PATIENCE)
        self._server.stdout.close()


def serve(work: Callable[[Path, dict[str, str]], object]) -> None:
    """Do the work of each request in a child of its own, which a crash point of the request may end."""
    import_everything()
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            os._exit(_child(work, json.loads(line)))
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _child(work: Callable[[Path, dict[str, str]], object], request: dict[str, str]) -> int:
    os.environ.update({name: value for name, value in request.items() if name.startswith("HOLDFAST_")})
    arm_from_environment()
    folder = Path(request["folder"])
    try:
        work(folder, request)
    except BaseException:  # noqa: BLE001  the test shows what happened in the child
        (folder / "error.txt").write_text(traceback.format_exc())
        return 1
    return 0


async def patiently(work: Coroutine[None, None, None]) -> None:
    """Do the work; where it takes too long, tell where it stands, and whether it was busy or waited."""
    task = asyncio.ensure_future(work)
    done, _ = await asyncio.wait({task}, timeout=PATIENCE)
    if done:
        return task.result()
    stacks = io.StringIO()
    for each in asyncio.all_tasks():
        each.print_stack(file=stacks)
    faulthandler.dump_traceback(file=sys.stderr)
    message = f"not done in {PATIENCE} s, with {time.process_time():.1f} s of CPU\n{stacks.getvalue()}"
    raise TimeoutError(message)


def error_in(folder: Path) -> str:
    """What a child that failed has left behind."""
    path = folder / "error.txt"
    return path.read_text() if path.exists() else "no error was written"


def reached_in(trace: Path) -> list[str]:
    """Every crash point that a traced run has reached, in order, each with how often it was reached until then."""
    reached: Counter[str] = Counter()
    found: list[str] = []
    for name in trace.read_text().splitlines():
        reached[name] += 1
        found.append(f"{name}:{reached[name]}")
    return found
