"""Who holds a lease, and whether that process is provably gone.

A process is known by its id *and* its start time, within one PID namespace of one boot. Only in the same namespace of
the same boot does its absence prove anything: a container sees other numbers, and another machine has its own.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from holdfast.clock import boot_id
from holdfast.store.contract import Owner


def this_process(boot: str) -> Owner:
    """A new owner identity for one opening of a store by this process, under the clock that names this `boot`."""
    pid = os.getpid()
    stat = _stat(pid)
    return Owner(
        instance=secrets.token_hex(6),
        pid=pid,
        started=stat[1] if stat else 0,
        namespace=_pid_namespace(),
        boot=boot,
    )


def is_gone(owner: Owner | None) -> bool:
    """True only if that very process certainly does not run any more."""
    if owner is None or not owner.started or not owner.boot:
        return False
    if owner.boot != boot_id() or owner.namespace != _pid_namespace():
        return False
    stat = _stat(owner.pid)
    if stat is None:
        return not Path(f"/proc/{owner.pid}").exists()
    state, started = stat
    return started != owner.started or state in "ZX"


def _stat(pid: int) -> tuple[str, int] | None:
    """State and start time (in ticks since boot) of a process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The name in parentheses may hold anything, also spaces and parentheses: count from the last one.
    fields = text.rpartition(")")[2].split()
    return fields[0], int(fields[19])


def _pid_namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""
