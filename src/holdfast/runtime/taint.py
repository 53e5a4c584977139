"""The taint of a conversation, and of the background work that notifications report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.agent import prepare
from holdfast.errors import HoldfastError
from holdfast.policy.mandates import taint_under
from holdfast.policy.rules import CLEAN, Taint
from holdfast.processes.lists import read_process, read_task
from holdfast.processes.run import AwaitedTurn
from holdfast.processes.state import is_process_journal, is_task_id, process_journal
from holdfast.records import Done, Failed, InputTaint
from holdfast.runtime.session_records import read_conversation
from holdfast.turns.conversation import answer_taint
from holdfast.turns.keys import DEFERRAL

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from holdfast.agent import Agent
    from holdfast.processes.state import ProcessState
    from holdfast.records import Record
    from holdfast.store import Notification, Store
    from holdfast.turns import Conversation


MAX_SESSIONS: Final = 20
"""Sessions of one process whose taint is read. A process with more counts as having read everything."""
MAX_PROCESSES: Final = 20
"""The same for the processes whose results it used."""
_DEFERRAL: Final = f"/{DEFERRAL}"


def taint_of(conversation: Conversation, agent: Agent, session: str) -> Taint:
    """The taint of a conversation."""
    taint = taint_under(conversation.mandate).joined(conversation.taint)
    taint = taint.joined(prepare(agent).taint_of_tools(conversation.heard, session))
    return taint.joined(_full_taint("an earlier notification")) if conversation.noticed else taint


async def taint_of_session(store: Store, agents: Mapping[str, Agent], session: str) -> Taint:
    """The taint of a session; full taint if it can't be read or its agent is not here."""
    try:
        conversation = await read_conversation(store, session)
    except HoldfastError:
        return _full_taint(session)
    agent = agents.get(conversation.agent or "")
    return _full_taint(session) if agent is None else taint_of(conversation, agent, session)


async def taint_of_notices(
    store: Store, agents: Mapping[str, Agent], notifications: Sequence[Notification]
) -> InputTaint:
    """The taint of the background work that notifications report. Notifications of the host have none."""
    taint = CLEAN
    for source in dict.fromkeys(found.source for found in notifications):
        if source is not None:
            taint = taint.joined(await _taint_of_work(store, agents, source))
    return taint.as_input


async def _taint_of_work(store: Store, agents: Mapping[str, Agent], source: str) -> Taint:
    try:
        if is_task_id(source):
            return await _taint_of_task(store, agents, source)
        if is_process_journal(source):
            return await _taint_of_process(store, agents, source)
    except HoldfastError:  # its journal is gone or can't be read
        return _full_taint(source)
    return CLEAN


async def _taint_of_task(store: Store, agents: Mapping[str, Agent], task: str) -> Taint:
    state = await read_task(store, task)
    if isinstance(state.outcome, Done | Failed) and state.outcome.taint is not None:
        return _with_deferral_answers(Taint.of(state.outcome.taint), state.records, task)
    agent = agents.get(state.agent or "")
    if state.call is None or agent is None or state.call.tool not in agent.tools:
        return _full_taint(task)
    taint = CLEAN.after(prepare(agent).subject(state.call.tool), f"{state.call.tool}, the background call {task}")
    return _with_deferral_answers(taint, state.records, task)


async def _taint_of_process(store: Store, agents: Mapping[str, Agent], journal: str) -> Taint:
    """The taint of the agents of a process, and of the processes whose results it used, at any depth."""
    taint = CLEAN
    sessions: dict[str, None] = {}
    journals = [journal]
    for each in journals:  # it grows
        state = await read_process(store, each)
        if state.registration is not None and state.registration.taint is not None:
            taint = taint.joined(Taint.of(state.registration.taint))
        taint = _with_deferral_answers(taint, state.records, each)
        sessions |= dict.fromkeys(_asked_sessions(state.records))
        journals += [found for found in map(process_journal, _awaited_processes(state)) if found not in journals]
        if len(sessions) > MAX_SESSIONS or len(journals) > MAX_PROCESSES:
            return _full_taint(journal)
    for session in sessions:
        taint = taint.joined(await taint_of_session(store, agents, session))
    return taint


def _asked_sessions(records: Iterable[Record]) -> Iterator[str]:
    for record in _process_effects(records, "agent"):
        yield msgspec.json.decode(bytes(record.value), type=AwaitedTurn).session


def _awaited_processes(state: ProcessState) -> dict[str, None]:
    found: dict[str, None] = {}
    for record in _process_effects(state.records, "await"):
        body = b"" if record.ask is None else bytes(record.ask.body)
        if not body:  # too large to be recorded
            return state.children
        found[msgspec.json.decode(body, type=_Awaited).id] = None
    return found


class _Awaited(msgspec.Struct):
    id: str


def _process_effects(records: Iterable[Record], target: str) -> Iterator[Done]:
    for record in records:
        if not isinstance(record, Done) or record.ask is None:
            continue
        if (record.ask.kind, record.ask.target) == ("process", target):
            yield record


def _with_deferral_answers(taint: Taint, records: Iterable[Record], journal: str) -> Taint:
    for record in records:
        if isinstance(record, Done) and record.key.endswith(_DEFERRAL):
            taint = taint.joined(answer_taint(record.key.removesuffix(_DEFERRAL), journal))
    return taint


def _full_taint(by: str) -> Taint:
    """The taint of work whose reads are unknown."""
    return Taint(untrusted_input=True, private_data=True, untrusted_by=by, private_by=by)


"""The key of the mark of a workspace as a whole."""
