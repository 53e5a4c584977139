"""One real process after the other, for little: a server that imports everything once, and forks a child per request.

The server reads a JSON object from each line of its standard input, waits for the child, and answers with its exit
status. It has no threads itself. A script that it is asked to play calls `serve` when it is run.
"""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import io
import json
import os
import subprocess
import sys
import time
import traceback
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Final, TypeAlias

from tests.importing import import_everything

from holdfast.testing import arm_from_environment

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    Work: TypeAlias = Callable[[Path, dict[str, str]], object]

PATIENCE = 60.0
"""For a process that is to come to its end by itself."""
HERE = Path(__file__).parent
ROOT = HERE.parents[1]


class ForkServer:
    """The process that forks the children of all scripts."""

    def __init__(self) -> None:
        known = [str(HERE), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        self._process = subprocess.Popen(
            [sys.executable, "-c", "import forking; forking.serve_scripts()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(known)},
        )

    def ask(self, request: dict[str, str]) -> int:
        """The exit status of the child that has served the request."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(timeout=PATIENCE)
        self._process.stdout.close()


@dataclass(frozen=True, slots=True)
class Forks:
    """Starts the children of a script, each on the store of a folder."""

    server: ForkServer
    script: str

    def run(self, folder: Path, **request: str) -> int:
        """The exit status of a child: 0 when its work is done, -9 when it was killed."""
        folder.mkdir(exist_ok=True)
        return self.server.ask({"script": self.script, "folder": str(folder), **request})


# ---- in the server ---------------------------------------------------------------------------------------------------

_works: Final[list[Work]] = []


def serve(work: Work) -> None:
    """Name the work that a script does for each request, in a child of its own, which a crash point may end."""
    _works.append(work)


def serve_scripts() -> None:
    """Serve each request with a child of its script, which is loaded once."""
    import_everything()
    loaded: dict[str, tuple[ModuleType, Work]] = {}
    for line in sys.stdin:
        request = json.loads(line)
        script = request.pop("script")
        if script not in loaded:
            loaded[script] = _load(script)
        pid = os.fork()
        if pid == 0:
            sys.modules["__main__"], work = loaded[script]
            os._exit(_child(work, request))
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _load(script: str) -> tuple[ModuleType, Work]:
    """Run a script as Python runs its main program, until it has named its work."""
    main = sys.modules["__main__"] = ModuleType("__main__")
    main.__file__ = script
    exec(compile(Path(script).read_bytes(), script, "exec"), vars(main))  # noqa: S102  a program of the tests
    gc.freeze()
    return main, _works.pop()


def _child(work: Work, request: dict[str, str]) -> int:
    os.environ.update({name: value for name, value in request.items() if name.startswith("HOLDFAST_")})
    arm_from_environment()
    folder = Path(request["folder"])
    try:
        work(folder, request)
    except BaseException:  # the test shows what happened in the child
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
