"""What processes, their journals, runs and waits are called. Pure."""

from __future__ import annotations

from typing import Final
from urllib.parse import unquote

from holdfast.effects.canonical import digest
from holdfast.effects.envelope import segment
from holdfast.errors import InvalidId
from holdfast.names import check_id, check_name
from holdfast.records import PROCESS
from holdfast.store.decisions import STOP

ROLE: Final = "process"
"""The role of the journal of a durable function."""
RUN: Final = PROCESS
"""The run of the first attempt; the n-th is ``process.n``."""
CALL: Final = "holdfast/call"
"""The key of the input that a process begins with: its registration."""
CANCEL: Final = STOP
"""The key of the input that asks for a process to be cancelled."""
ABANDON: Final = "holdfast/abandon"
"""The key of the input that gives up a process whose owner is gone."""
TRANSFER: Final = "holdfast/transfer/"
"""What the keys of inputs begin with that give a process to another session."""
OWN_KEYS: Final = "holdfast/"
"""What keys of Holdfast itself begin with."""
MAX_ID: Final = 160
"""Longest id of a process, in characters: longer names are made of it."""

_PREFIX: Final = "process/"


def check_process_id(id: object) -> str:
    """The id itself, or `InvalidId`."""
    checked = check_id("process", id)
    if len(checked) > MAX_ID:
        raise InvalidId("process", id, f"it has {len(checked)} characters, the limit is {MAX_ID}")
    return checked


def check_signal_key(key: object) -> str | None:
    """The key of a signal, if it has one and the caller may choose it."""
    if key is None:
        return None
    checked = check_id("key", key)
    if checked.startswith(OWN_KEYS):
        raise InvalidId("key", key, f"keys that begin with {OWN_KEYS!r} are Holdfast's own")
    return checked


def journal_of(id: str) -> str:
    """The journal of a process."""
    return f"{_PREFIX}{check_process_id(id)}"


def id_of(journal: str) -> str:
    """The process that a journal belongs to."""
    return journal.removeprefix(_PREFIX)


def is_process_journal(journal: str) -> bool:
    """Whether a journal with this id is that of a process. No session is called like one."""
    return journal.startswith(_PREFIX)


def child_id(name: str, parent: str, key: str) -> str:
    """The id of the process that another one starts with its effect `key`: always the same one."""
    return f"{name[:100]}-{digest('child', [parent, key])[:20]}"


def run_of(attempt: int) -> str:
    """The run of an attempt; they count from 1."""
    return RUN if attempt == 1 else f"{RUN}.{attempt}"


def attempt_of(run: str) -> int | None:
    """Which attempt a run is; None when it is none."""
    if run == RUN:
        return 1
    prefix, _, number = run.partition(".")
    return int(number) if prefix == RUN and number.isascii() and number.isdigit() and len(number) <= 9 else None


def is_process_key(key: str) -> bool:
    """Whether the effect `key` is one of a process, or `key` is the run of one."""
    return attempt_of(unquote(key.partition("/")[0])) is not None


# ---- waits: they belong to a run, and end with it --------------------------------------------------------------------


def signal_prefix(run: str, name: str) -> str:
    """What the waits for signals called `name` begin with."""
    return f"{segment(run)}/~signal/{segment(check_name('signal', name)[:100])}/"


def signal_wait(run: str, name: str, number: int) -> str:
    """The wait that the n-th signal of a name answers. They sort in the order of their numbers."""
    return f"{signal_prefix(run, name)}{number:08d}"


def signal_of(wait: str) -> str:
    """The name of the signal that a wait is for."""
    return unquote(wait.split("/")[2])


def number_of(wait: str) -> int:
    """The number of a wait for a signal."""
    return int(wait.rpartition("/")[2])


def timer_wait(key: str) -> str:
    """The wait that ends when a sleep does."""
    return key if len(key) <= 200 else f"{key[:150]}~{digest('wait', key)[:40]}"


def turn_wait(key: str, look: int) -> str:
    """The wait for the turn of an agent; it is looked at again and again, in case nobody tells."""
    return f"{timer_wait(key)}~{look}"


STUCK: Final = "stuck"
"""The kind of the wait that says why a runtime has stopped a process. Nobody answers it."""


def stuck_wait(run: str, head: int) -> str:
    """The name of the wait that says why a run was stopped when its journal had `head` records."""
    return f"{segment(run)}/%stuck-{head}"


def stuck_head(wait: str) -> int:
    """How many records the journal had when the run was stopped."""
    return int(wait.rpartition("-")[2])


def external_wait(run: str) -> str:
    """The wait that ends a process which is carried out elsewhere."""
    return f"{segment(run)}/~outside"


def retry_wait(run: str) -> str:
    """The pause before an attempt."""
    return f"{segment(run)}/~pause"


def label_of(wait: str) -> str:
    """A wait as people are told of it: the name of the signal, or what else it is."""
    run, _, rest = wait.partition("/")
    parts = rest.split("/")
    if parts[0] == "~signal" and len(parts) >= 3:
        return f"signal {unquote(parts[1])}"
    if parts[0] == "~outside":
        return "its completion from outside"
    if parts[0] == "~pause":
        return "the next attempt"
    return rest or run
