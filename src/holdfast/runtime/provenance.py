"""What sessions and background work have read: the taint of a conversation, and that of what a notification tells."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.errors import HoldfastError
from holdfast.policy.mandates import taint_under
from holdfast.policy.subject import CLEAN, InputTaint, Taint
from holdfast.processes.ids import is_process_journal
from holdfast.records import Done
from holdfast.runtime.process_journal import read_process
from holdfast.runtime.reading import read_conversation
from holdfast.runtime.seeking import AwaitedTurn
from holdfast.runtime.working import read_task
from holdfast.tasks import is_task_id
from holdfast.turns.conversation import answer_taint
from holdfast.turns.keys import DEFERRAL

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from holdfast.agent import Agent
    from holdfast.records import Record
    from holdfast.store import Notification, Store
    from holdfast.turns import Conversation

MAX_SESSIONS: Final = 20
"""Sessions of one process that are looked at. One that asked in more counts as having read everything."""
_DEFERRAL: Final = f"/{DEFERRAL}"


def taint_of(conversation: Conversation, agent: Agent, session: str) -> Taint:
    """What the conversation of an agent has taken in."""
    taint = taint_under(conversation.mandate).joined(conversation.taint)
    taint = taint.joined(agent.taint_of(conversation.heard, session))
    return taint.joined(_everything("an earlier notification")) if conversation.noticed else taint


async def taint_of_notices(
    store: Store, agents: Mapping[str, Agent], notifications: Sequence[Notification]
) -> InputTaint:
    """What the work has read that notifications tell of. Words of the host bring nothing."""
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
        return _everything(source)
    return CLEAN


async def _taint_of_task(store: Store, agents: Mapping[str, Agent], task: str) -> Taint:
    state = await read_task(store, task)
    agent = agents.get(state.agent or "")
    if state.call is None or agent is None or state.call.tool not in agent.tools:
        return _everything(task)
    taint = CLEAN.after(agent.subject(state.call.tool), f"{state.call.tool}, the background call {task}")
    return _with_answers(taint, state.records, task)


async def _taint_of_process(store: Store, agents: Mapping[str, Agent], journal: str) -> Taint:
    state = await read_process(store, journal)
    taint = CLEAN
    if state.registration is not None and state.registration.taint is not None:
        taint = Taint.of(state.registration.taint)
    sessions = dict.fromkeys(_sessions(state.records))
    if len(sessions) > MAX_SESSIONS:
        return _everything(journal)
    for session in sessions:
        conversation = await read_conversation(store, session)
        agent = agents.get(conversation.agent or "")
        taint = taint.joined(_everything(session) if agent is None else taint_of(conversation, agent, session))
    return _with_answers(taint, state.records, journal)


def _sessions(records: Iterable[Record]) -> Iterator[str]:
    """The sessions in which a process asked agents."""
    for record in records:
        if isinstance(record, Done) and record.ask is not None and (record.ask.kind, record.ask.target) == _ASKED:
            yield msgspec.json.decode(bytes(record.value), type=AwaitedTurn).session


_ASKED: Final = ("process", "agent")


def _with_answers(taint: Taint, records: Iterable[Record], journal: str) -> Taint:
    for record in records:
        if isinstance(record, Done) and record.key.endswith(_DEFERRAL):
            taint = taint.joined(answer_taint(record.key.removesuffix(_DEFERRAL), journal))
    return taint


def _everything(by: str) -> Taint:
    """Nobody can say what was read."""
    return Taint(untrusted_input=True, private_data=True, untrusted_by=by, private_by=by)
