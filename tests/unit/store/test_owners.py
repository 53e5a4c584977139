"""Whether the holder of a lease is provably gone. A wrong yes would let two processes write."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
from tests import proc

from holdfast.clock import boot_id
from holdfast.store.lease import current_owner, is_gone

if TYPE_CHECKING:
    from collections.abc import Generator

    from holdfast.store import Owner

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc to tell processes apart")

_CHILD = """
import msgspec, sys
from holdfast.clock import boot_id
from holdfast.store.lease import current_owner
print(msgspec.json.encode(current_owner(boot_id())).decode(), flush=True)
sys.stdin.read()
"""


@contextmanager
def another_process() -> Generator[tuple[subprocess.Popen[bytes], Owner]]:
    """A process that says who it is and then waits."""
    from holdfast.store import Owner as Described

    child = subprocess.Popen([sys.executable, "-c", _CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        yield child, msgspec.json.decode(child.stdout.readline(), type=Described)
    finally:
        child.kill()
        child.wait(timeout=30)
        child.stdin.close()
        child.stdout.close()


def wait_for_state(pid: int, state: str) -> None:
    for _ in range(3_000):
        if proc.state(pid) == state:
            return
        time.sleep(0.01)
    pytest.fail(f"process {pid} never got into state {state}")


def test_current_owner_is_not_gone() -> None:
    assert not is_gone(current_owner(boot_id()))


def test_every_opening_is_another_owner() -> None:
    assert current_owner(boot_id()).instance != current_owner(boot_id()).instance


def test_nobody_is_not_gone() -> None:
    assert not is_gone(None)


def test_another_process_is_not_gone_while_it_runs_or_is_stopped() -> None:
    with another_process() as (child, owner):
        assert owner.pid == child.pid
        assert not is_gone(owner)
        child.send_signal(signal.SIGSTOP)
        wait_for_state(child.pid, "T")
        assert not is_gone(owner)
        child.send_signal(signal.SIGCONT)


def test_a_killed_process_is_gone_before_and_after_it_is_reaped() -> None:
    with another_process() as (child, owner):
        os.kill(child.pid, signal.SIGKILL)
        wait_for_state(child.pid, "Z")
        assert is_gone(owner)
        child.wait(timeout=30)
        assert is_gone(owner)


def test_a_number_that_was_given_to_another_process_is_not_that_process() -> None:
    me = current_owner(boot_id())
    assert is_gone(msgspec.structs.replace(me, started=me.started - 1))


@pytest.mark.parametrize(
    "unknown",
    [{"boot": "another boot"}, {"boot": ""}, {"namespace": "pid:[1]"}, {"namespace": ""}, {"started": 0}],
    ids=str,
)
def test_where_absence_proves_nothing_nobody_is_gone(unknown: dict[str, object]) -> None:
    with another_process() as (child, owner):
        child.kill()
        child.wait(timeout=30)
        assert is_gone(owner)
        assert not is_gone(msgspec.structs.replace(owner, **unknown))


@pytest.mark.parametrize("pid", [2**22 + 1, 2**40])
def test_a_number_that_no_process_can_have_is_gone(pid: int) -> None:
    assert is_gone(msgspec.structs.replace(current_owner(boot_id()), pid=pid))
