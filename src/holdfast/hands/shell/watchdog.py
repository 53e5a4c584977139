"""A process that outlives this one for a moment, to kill what a kill would leave behind.

bubblewrap ends with its parent, but not at every point of its start: between making its first process and telling that
one to go on, it can be killed, and the first process then waits for ever. Nothing of the kernel binds that one to us: a
signal that it sends by itself does not end the first process of a namespace. So each process group is named to the
watchdog before bubblewrap is started in it. The watchdog reads from a pipe; when this process ends, the pipe ends,
and the watchdog kills the groups that are left.
"""

from __future__ import annotations

import os
import subprocess
import threading
from contextlib import suppress
from typing import Final

from holdfast.hands.shell.errors import SandboxFailed

_SCRIPT: Final = """
while read -r sign group; do
  if [ "$sign" = + ]; then
    groups="$groups $group"
  else
    rest=
    for each in $groups; do
      [ "$each" = "$group" ] || rest="$rest $each"
    done
    groups=$rest
  fi
done
for each in $groups; do
  kill -s KILL -- "-$each"
done
"""


class _Watchdog:
    def __init__(self) -> None:
        self.owner = os.getpid()
        self._process = subprocess.Popen(  # noqa: S603  our own script
            ["/bin/sh", "-c", _SCRIPT],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={},
            cwd="/",
            start_new_session=True,
            bufsize=0,
        )

    def say(self, line: str) -> bool:
        """Whether it was heard: somebody may have killed the watchdog."""
        assert self._process.stdin is not None  # noqa: S101  it was opened as a pipe
        try:
            self._process.stdin.write(line.encode())
        except BrokenPipeError:
            self._process.wait()
            return False
        return True


_lock: Final = threading.Lock()
_watchdog: _Watchdog | None = None
_groups: Final[set[int]] = set()


def watch(group: int) -> None:
    """Have this process group killed when this process ends, until `forget`."""
    global _watchdog  # noqa: PLW0603  one for the process; one of the process that forked us is not ours
    with _lock:
        if _watchdog is None or _watchdog.owner != os.getpid():
            _groups.clear()
            _watchdog = _started()
        _groups.add(group)
        if not _watchdog.say(f"+ {group}\n"):
            _watchdog = _started()
            _watchdog.say("".join(f"+ {each}\n" for each in _groups))


def forget(group: int) -> None:
    """Nothing of the group is left; its number may be given to another."""
    with _lock:
        _groups.discard(group)
        if _watchdog is not None and _watchdog.owner == os.getpid():
            with suppress(OSError):
                _watchdog.say(f"- {group}\n")


def _started() -> _Watchdog:
    try:
        return _Watchdog()
    except OSError as error:
        raise SandboxFailed(f"its watchdog could not be started ({error.strerror})") from error
