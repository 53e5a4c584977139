"""A program that was forked is as one that was started: what it sees of itself, and what it leaves behind."""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING

import pytest
from tests.patience import PATIENCE
from tests.programs import Forked, Fresh, Program, run

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from tests.programs import Programs

SEEN = """
import gc, json, locale, os, signal, sys, threading, time
print(json.dumps({
    "arguments": sys.argv,
    "folder": os.getcwd(),
    "environment": dict(os.environ),
    "path": sys.path,
    "main": __name__,
    "file": __file__,
    "read": sys.stdin.read(),
    "streams": [[s.encoding, s.errors, s.line_buffering, s.isatty()] for s in (sys.stdin, sys.stdout, sys.stderr)],
    "signals": [str(signal.getsignal(s)) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE, signal.SIGCHLD)],
    "threads": [thread.name for thread in threading.enumerate()],
    "files": sorted(os.listdir("/proc/self/fd"))[:4],
    "zone": time.tzname,
    "locale": locale.getlocale(),
    "flags": str(sys.flags),
    "garbage": gc.isenabled(),
}))
"""
ENDINGS = {
    "the end": "print('done')",
    "a code": "import sys; sys.exit(3)",
    "words": "import sys; sys.exit('not today')",
    "an error": "raise ValueError('odd')",
    "an interrupt": "raise KeyboardInterrupt",
    "a signal": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "a thread": "import threading, time\nthreading.Thread(target=lambda: (time.sleep(0.05), print('last'))).start()",
    "a pool": "from concurrent.futures import ThreadPoolExecutor\nThreadPoolExecutor().submit(print, 'pool')",
    "a farewell": "import atexit; atexit.register(print, 'bye')",
    "at once": "import os; print('lost'); os._exit(4)",
}
COMMANDS = [["--version"], ["--help"], ["ps"], ["nothing"], ["run", "missing.py", "hello"], ["doctor", "missing.db"]]


@pytest.fixture(scope="module")
def forked() -> Generator[Programs]:
    made = Forked()
    yield made
    made.close()


def both(forked: Programs, program: Program) -> list[tuple[int, str, str]]:
    done = [run(programs, program) for programs in (Fresh(), forked)]
    return [(one.returncode, one.stdout, one.stderr) for one in done]


def test_a_forked_program_sees_what_a_started_one_sees(forked: Programs, tmp_path: Path) -> None:
    (tmp_path / "seen.py").write_text(SEEN, encoding="utf-8")
    environment = {**os.environ, "TZ": "Asia/Tokyo", "ODD": "\udcff"}
    program = Program("seen.py", ("a", "ü", ""), tmp_path, environment=environment, stdin="wörds\n" * 20_000)
    (_, started, _), (_, found, error) = both(forked, program)
    assert json.loads(found or "null") == json.loads(started), error


@pytest.mark.parametrize("code", ENDINGS.values(), ids=ENDINGS)
def test_a_forked_program_ends_as_a_started_one_ends(forked: Programs, code: str, tmp_path: Path) -> None:
    (tmp_path / "ending.py").write_text(code, encoding="utf-8")
    started, found = both(forked, Program("ending.py", (), tmp_path))
    assert found[:2] == started[:2]
    assert found[2].splitlines()[-1:] == started[2].splitlines()[-1:]  # a traceback begins elsewhere


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_a_forked_command_says_what_a_started_one_says(forked: Programs, arguments: list[str], tmp_path: Path) -> None:
    started, found = both(forked, Program("holdfast", tuple(arguments), tmp_path))
    assert found == started


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_a_signal_ends_a_forked_program(forked: Programs, number: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "waits.py").write_text("import time\nprint(flush=True)\ntime.sleep(60)", encoding="utf-8")
    process = forked.start(Program("waits.py", (), tmp_path))
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(number)
    process.communicate(timeout=PATIENCE)
    assert process.returncode == -number


def test_a_forked_program_has_the_id_that_is_told(forked: Programs, tmp_path: Path) -> None:
    (tmp_path / "id.py").write_text("import os; print(os.getpid())", encoding="utf-8")
    process = forked.start(Program("id.py", (), tmp_path))
    out, _ = process.communicate(timeout=PATIENCE)
    assert int(out) == process.pid


def test_forked_programs_run_at_the_same_time(forked: Programs, tmp_path: Path) -> None:
    (tmp_path / "meets.py").write_text("print(input())", encoding="utf-8")
    one, two = (forked.start(Program("meets.py", (), tmp_path, stdin=None)) for _ in range(2))
    for process, words in ((two, "second"), (one, "first")):
        assert process.stdin is not None
        with process.stdin:
            process.stdin.write(f"{words}\n")
        assert process.communicate(timeout=PATIENCE)[0] == f"{words}\n"
