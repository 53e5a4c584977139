"""The names of processes: their ids, journals and runs, and the keys of their inputs, waits and calls. Pure."""

from __future__ import annotations

from typing import Final
from urllib.parse import unquote

from holdfast.effects.canonical import digest
from holdfast.effects.keys import segment
from holdfast.errors import InvalidId
from holdfast.names import PROCESS_PREFIX, check_id, check_name
from holdfast.records import PROCESS_RUN, TASK_RUN

PROCESS_ROLE: Final = "process"
"""The role of the journal of a durable function."""
TASK_ROLE: Final = TASK_RUN
"""The role of the journal of a background call."""
FIRST_RUN: Final = PROCESS_RUN
"""The run of the first attempt; the n-th is ``process.n``."""
CALL_KEY: Final = "holdfast/call"
"""Key of the first input of a process: its registration."""
ABANDON_KEY: Final = "holdfast/abandon"
"""Key of the input that abandons a process whose owner is gone."""
TRANSFER_PREFIX: Final = "holdfast/transfer/"
"""Prefix of the keys of transfer inputs, which give a process to another session."""
CHILD_PREFIX: Final = "holdfast/child/"
"""Prefix of the keys of inputs that put a work item below a process; the rest is its id."""
RESERVED_PREFIX: Final = "holdfast/"
"""Prefix of input keys that are reserved for Holdfast."""
PROGRESS_PREFIX: Final = "holdfast/progress/"
"""Prefix of the keys of inputs that report the progress of a work item."""
WORK_ITEM: Final = "external"
"""Name of work items in lists, where others have the name of their function."""
MAX_PROCESS_ID: Final = 160
"""Longest process id, in characters. Session and child ids are made from it."""


def check_process_id(id: object) -> str:
    """Return the id, or raise `InvalidId`."""
    checked = check_id("process", id)
    if len(checked) > MAX_PROCESS_ID:
        raise InvalidId("process", id, f"it has {len(checked)} characters, the limit is {MAX_PROCESS_ID}")
    return checked


def check_signal_key(key: object) -> str | None:
    """Return the key of a signal; `InvalidId` for keys that are reserved."""
    if key is None:
        return None
    checked = check_id("key", key)
    if checked.startswith(RESERVED_PREFIX):
        raise InvalidId("key", key, f"keys that begin with {RESERVED_PREFIX!r} are Holdfast's own")
    return checked


def process_journal(id: str) -> str:
    """The journal of a process."""
    return f"{PROCESS_PREFIX}{check_process_id(id)}"


def process_id_of(journal: str) -> str:
    """The process that a journal belongs to."""
    return journal.removeprefix(PROCESS_PREFIX)


def child_id(name: str, parent: str, key: str) -> str:
    """The id of the child that the effect `key` starts. Deterministic."""
    return f"{name[:100]}-{digest('child', [parent, key])[:20]}"


def retry_id(name: str, old: str, key: str) -> str:
    """The id of the retry of the journal `old` with this key. Deterministic."""
    return f"{name[:100]}-{digest('retry', [old, key])[:20]}"


def attempt_run(attempt: int) -> str:
    """The run of an attempt; they count from 1."""
    return FIRST_RUN if attempt == 1 else f"{FIRST_RUN}.{attempt}"


def attempt_of_run(run: str) -> int | None:
    """The number of the attempt; None if the run is not one."""
    if run == FIRST_RUN:
        return 1
    prefix, _, number = run.partition(".")
    return int(number) if prefix == FIRST_RUN and number.isascii() and number.isdigit() and len(number) <= 9 else None


def is_process_key(key: str) -> bool:
    """True if `key` is an effect or a run of a process."""
    return attempt_of_run(unquote(key.partition("/")[0])) is not None


def signal_prefix(run: str, name: str) -> str:
    """Prefix of the waits for signals called `name`."""
    return f"{segment(run)}/~signal/{segment(check_name('signal', name)[:100])}/"


def signal_wait(run: str, name: str, number: int) -> str:
    """The wait for the n-th signal of a name. The names sort by number."""
    return f"{signal_prefix(run, name)}{number:08d}"


def signal_name(wait: str) -> str:
    """The name of the signal that a wait is for."""
    return unquote(wait.split("/")[2])


def signal_number(wait: str) -> int:
    """The number of a wait for a signal."""
    return int(wait.rpartition("/")[2])


def timer_wait(key: str) -> str:
    """The wait of a sleep."""
    return key if len(key) <= 200 else f"{key[:150]}~{digest('wait', key)[:40]}"


STUCK_KIND: Final = "stuck"
"""Kind of the wait that records why a process is stuck. It is never answered."""


def stuck_wait(run: str, head: int) -> str:
    """The wait that records why a run got stuck at `head` records."""
    return f"{segment(run)}/%stuck-{head}"


def stuck_head(wait: str) -> int:
    """The number of records at which the run got stuck."""
    return int(wait.rpartition("-")[2])


def external_wait(run: str) -> str:
    """The wait whose answer ends external work."""
    return f"{segment(run)}/~outside"


def retry_wait(run: str) -> str:
    """The pause before an attempt."""
    return f"{segment(run)}/~pause"


def wait_label(wait: str) -> str:
    """A wait in words: the name of the signal, or its purpose."""
    run, _, rest = wait.partition("/")
    parts = rest.split("/")
    if parts[0] == "~signal" and len(parts) >= 3:
        return f"signal {unquote(parts[1])}"
    if parts[0] == "~outside":
        return "its completion from outside"
    if parts[0] == "~pause":
        return "the next attempt"
    return rest or run


def task_id(session: str, key: str) -> str:
    """The id of the task for the call `key` of a session. Deterministic."""
    return f"task-{digest('task', [session, key])[:20]}"


def host_call_key(key: str) -> str:
    """The key of a host call, apart from the calls of turns."""
    return f"host/{key}"


def task_key(tool: str) -> str:
    """The key of the call in the journal of its task."""
    return f"{TASK_RUN}/{segment(tool)}"
