"""`holdfast tasks cancel` on a task that has ended says that it had, and how."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from holdfast.processes.keys import task_id
from holdfast.processes.state import TaskCall, task_start_records
from holdfast.records import Ended, ErrorInfo, Started
from holdfast.store import open_store

if TYPE_CHECKING:
    from tests.behaviour.shell import Shell

    from holdfast.records import EndStatus


async def _ended(shell: Shell, status: EndStatus, error: ErrorInfo | None) -> str:
    id = task_id("s", "t1/1.tools/1.pay")
    sent = TaskCall("pay", {}, "c1", "t1", "t1/1.tools/1.pay", "k")
    async with open_store(shell.folder / ".holdfast" / "holdfast.db") as store:
        await store.open_journal(id, "process", "a", role="task", session="s")
        await store.accept(id, {"call": 1}, key="holdfast/call")
        lease = await store.claim(id)
        first = [*task_start_records(sent, 1, 1), Started(at=1, run="task")]
        await store.append(lease, [*first, Ended(at=2, run="task", status=status, error=error)], head=lease.head)
        await store.release(lease)
    return id


@pytest.mark.parametrize(
    ("status", "error", "said"),
    [
        ("failed", ErrorInfo("OSError", "no disk\n\x1b[2J"), "failed: OSError: no disk"),
        ("failed", ErrorInfo("interrupted", "it must not be repeated"), "interrupted: it must not be repeated"),
        ("cancelled", ErrorInfo("cancelled", "enough"), "cancelled: enough"),
        ("cancelled", ErrorInfo("cancelled", ""), "cancelled)"),
    ],
)
async def test_it_is_told_how_and_why_the_task_had_ended(
    shell: Shell, status: EndStatus, error: ErrorInfo, said: str
) -> None:
    id = await _ended(shell, status, error)
    done = shell("tasks", "cancel", id)
    assert (done.returncode, len(done.stdout.splitlines())) == (1, 1)
    assert done.stdout.startswith(f"too late: {id} had ended ({said}")
