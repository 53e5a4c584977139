"""What sessions, background calls and durable functions wait for that only a person, or somebody outside, can give."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from holdfast.cli.sessions import approval_in, open_waits, wait_label
from holdfast.hands.agents import WAIT
from holdfast.processes.glance import TAIL, state_of
from holdfast.processes.ids import TRANSFER, id_of, is_process_journal, label_of, signal_of
from holdfast.runtime.process_journal import read_process
from holdfast.runtime.working import read_task
from holdfast.tasks.state import is_task_id
from holdfast.turns import keys

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.store import Journal, Store
    from holdfast.store.contract import Wait


class OpenWait(NamedTuple):
    """One of these waits."""

    name: str
    label: str
    """How people call it; the whole name where that would not say which."""
    answer: tuple[str, ...]
    """The command that answers it, up to the value."""
    deadline: int | None
    tool: str | None = None
    """The tool that asks."""


async def waits_of(store: Store, line: Journal) -> list[OpenWait]:
    """What a journal that waits waits for."""
    if is_process_journal(line.id):
        return await _of_process(store, line.id)
    if is_task_id(line.id):
        state = await read_task(store, line.id)
        tool = None if state.call is None else state.call.tool
        return await _asked(store, line.id, state.waits, tool)
    return await _asked(store, line.id, await open_waits(store, line.id), None) if line.kind == "session" else []


async def _asked(store: Store, journal: str, names: Iterable[str], tool: str | None) -> list[OpenWait]:
    """Those that tools ask for; what they wait for of others, or of people as approvals, is found elsewhere."""
    found = [wait for name in names if _is_for_people(name) and (wait := await _open(store, journal, name))]
    labels = [wait_label(wait.name) for wait in await store.waits(journal, state="open")] if found else []
    waits: list[OpenWait] = []
    for wait in found:
        label = wait_label(wait.name)
        called = label if labels.count(label) <= 1 else wait.name
        answer = ("resolve", journal, called)
        waits.append(OpenWait(wait.name, label, answer, wait.deadline, tool or _tool(wait.name)))
    return waits


def _is_for_people(name: str) -> bool:
    return approval_in(name) is None and name.rpartition("/")[2].partition("#")[0] != WAIT


async def _of_process(store: Store, journal: str) -> list[OpenWait]:
    glimpse = await store.glimpses([journal], prefix=TRANSFER, tail=TAIL)
    seen = bool(glimpse) and glimpse[0].tail is not None
    state = state_of(glimpse[0]) if seen else await read_process(store, journal)
    id = id_of(journal)
    waits: list[OpenWait] = []
    for name in state.waits:
        wait, label = await _open(store, journal, name), label_of(name)
        if wait is None:
            continue
        if label.startswith("signal "):
            waits.append(OpenWait(name, label, ("processes", "signal", id, signal_of(name)), wait.deadline))
        elif label.startswith("its completion"):
            waits.append(OpenWait(name, label, ("processes", "complete", id), wait.deadline))
        elif name.rpartition("/")[2] == keys.DEFERRAL:
            waits.append(OpenWait(name, wait_label(name), ("resolve", journal, name), wait.deadline))
    return waits


async def _open(store: Store, journal: str, name: str) -> Wait | None:
    """A wait that can still be answered."""
    wait = await store.wait(journal, name)
    late = wait is not None and wait.deadline is not None and wait.deadline <= store.clock.read().wall
    return None if wait is None or wait.state != "open" or late else wait


def _tool(name: str) -> str | None:
    """The tool below whose call a wait stands."""
    key = keys.parse(name)
    if key is None or not key.call:
        return None
    return name.split("/")[3 if key.nested else 2].partition(".")[2] or None
