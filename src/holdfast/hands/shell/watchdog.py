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


# It is no child of ours: nobody who counts or awaits the children of this process has to know of it.
_DETACH: Final = 'exec 3<&0; /bin/sh -c "$0" <&3 3<&- &'


class _Watchdog:
    def __init__(self) -> None:
        read, self._write = os.pipe()
        try:
            subprocess.run(  # noqa: S603  our own script
                ["/bin/sh", "-c", _DETACH, _SCRIPT],
                stdin=read,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={},
                cwd="/",
                start_new_session=True,
                check=True,
            )
        except BaseException:
            self.close()
            raise
        finally:
            os.close(read)

    def say(self, line: str) -> bool:
        """Whether it was heard: somebody may have killed the watchdog."""
        try:
            os.write(self._write, line.encode())
        except BrokenPipeError:
            return False
        return True

    def close(self) -> None:
        os.close(self._write)


_lock = threading.Lock()
_watchdog: _Watchdog | None = None
_groups: Final[set[int]] = set()


def _leave_to_parent() -> None:
    """After a fork: our copy of the pipe must not keep the parent's watchdog waiting when the parent ends."""
    global _lock, _watchdog  # noqa: PLW0603
    _lock = threading.Lock()  # another thread may have held it at the fork
    if _watchdog is not None:
        _watchdog.close()
        _watchdog = None
    _groups.clear()


os.register_at_fork(after_in_child=_leave_to_parent)


def watch(group: int) -> None:
    """Have this process group killed when this process ends, until `forget`."""
    global _watchdog  # noqa: PLW0603  one for the process
    with _lock:
        if _watchdog is None:
            _watchdog = _started()
        _groups.add(group)
        if not _watchdog.say(f"+ {group}\n"):
            _watchdog.close()
            _watchdog = _started()
            _watchdog.say("".join(f"+ {each}\n" for each in _groups))


def forget(group: int) -> None:
    """Nothing of the group is left; its number may be given to another."""
    with _lock:
        _groups.discard(group)
        if _watchdog is not None:
            with suppress(OSError):
                _watchdog.say(f"- {group}\n")


def _started() -> _Watchdog:
    try:
        return _Watchdog()
    except (OSError, subprocess.SubprocessError) as error:
        raise SandboxFailed(f"its watchdog could not be started ({error})") from error
