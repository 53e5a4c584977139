"""Imports everything once, then forks a process for each program that it is asked to run.

It is asked through the socket that its argument numbers: a JSON object together with the standard streams of the new
process and a socket for its parent, which tells the id of the process and, when it has ended, its exit code. It stops
when nobody can ask any more.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import runpy
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from io import TextIOWrapper
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.importing import import_everything

ROOT = Path(__file__).parents[1]

LARGEST = 1 << 20
"""More than any environment has."""


def _serve(asked: socket.socket) -> dict[str, Any]:
    """Fork for each request. This returns in the forked processes, with the request of each."""
    while True:
        message, passed, _, _ = socket.recv_fds(asked, LARGEST, 4)
        if not message:
            sys.exit()
        _reap()
        if not os.fork():
            return _begin(asked, json.loads(message), passed)
        for number in passed:
            os.close(number)


def _reap() -> None:
    """Let those go that have told the end of their process."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _begin(asked: socket.socket, request: dict[str, Any], passed: list[int]) -> dict[str, Any]:
    """Fork once more, so that somebody waits for the process and nothing else; this returns in the process itself."""
    asked.close()
    told = socket.socket(fileno=passed.pop())
    process = os.fork()
    if process:
        for number in passed:
            os.close(number)
        told.sendall(f"{process}\n".encode())
        _, status = os.waitpid(process, 0)
        told.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
        os._exit(0)
    told.close()
    for stream, number in enumerate(passed):
        os.dup2(number, stream)
        os.close(number)
    return request


def _become(request: dict[str, Any]) -> None:
    """Be as a new interpreter would be."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(request["environment"])
    time.tzset()
    os.chdir(request["folder"])
    if request["new_session"]:
        os.setsid()
    out = sys.stdout
    assert isinstance(out, TextIOWrapper)
    out.reconfigure(line_buffering=out.isatty() and not out.write_through)


def _run(program: str, arguments: list[str]) -> None:
    sys.argv[:] = [program, *arguments]
    if not program.endswith(".py"):
        sys.path.insert(0, str(Path.cwd()))
        runpy.run_module(program, run_name="__main__", alter_sys=True)
        return
    file = Path.cwd() / program
    sys.path.insert(0, str(file.parent))
    main = sys.modules["__main__"] = ModuleType("__main__")
    main.__file__ = str(file)
    exec(compile(file.read_bytes(), str(file), "exec"), vars(main))  # noqa: S102  a program of the tests


def _end(code: int) -> None:
    """End as an interpreter does, but leave its memory to the system: to free it costs more than most programs."""
    vars(threading)["_shutdown"]()
    vars(atexit)["_run_exitfuncs"]()
    gc.collect()  # what complains when it goes, does so
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def main() -> None:
    """Serve; in a forked process, run its program."""
    sys.path.remove(str(ROOT))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # on a terminal it is meant for the tests
    import_everything()
    request = _serve(socket.socket(fileno=int(sys.argv[1])))
    _become(request)
    try:
        _run(request["program"], request["arguments"])
    except SystemExit as ending:
        if not isinstance(ending.code, int):
            raise
        code = ending.code
    else:
        code = 0
    _end(code)


if __name__ == "__main__":
    main()
