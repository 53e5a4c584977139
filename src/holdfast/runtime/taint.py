"""The taint of a conversation, of background work that notifications report, and of files that a tainted turn wrote."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING, Final

import msgspec

from holdfast import errors, names
from holdfast.agent import Agent, prepare
from holdfast.policy import limits, paths
from holdfast.policy.rules import CLEAN, Subject, Taint
from holdfast.processes import keys, lists
from holdfast.records import Done, Failed, InputTaint, Record
from holdfast.runtime.session_records import read_present
from holdfast.store.memories import TAINTED_FILES
from holdfast.turns.conversation import Conversation, answer_taint
from holdfast.turns.keys import DEFERRAL

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from holdfast.processes.state import ProcessState
    from holdfast.store import Notification, Store


MAX_SESSIONS: Final = 20
"""Sessions of one process whose taint is read. A process with more counts as having read everything."""
MAX_PROCESSES: Final = 20
"""The same for the processes whose results a process used."""
_DEFERRAL: Final = f"/{DEFERRAL}"


def taint_of(conversation: Conversation, agent: Agent, session: str) -> Taint:
    """The taint of a conversation."""
    taint = limits.taint_under(conversation.mandate).joined(conversation.taint)
    taint = taint.joined(prepare(agent).taint_of_tools(conversation.heard, session))
    return taint.joined(_full_taint("an earlier notification")) if conversation.noticed else taint


async def taint_of_session(store: Store, agents: Mapping[str, Agent], session: str) -> Taint:
    """The taint of a session; full taint if it can't be read or its agent is unknown here."""
    try:
        conversation = await read_present(store, session)
    except errors.HoldfastError:
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
        if names.is_process_journal(source):
            return await _taint_of_process(store, agents, source)
        if not names.is_task_id(source):
            return CLEAN
        state = await lists.read_process(store, source)
    except errors.HoldfastError:  # its journal is gone or can't be read
        return _full_taint(source)
    agent, call = agents.get(state.name or ""), state.call
    if isinstance(state.outcome, Done | Failed) and state.outcome.taint is not None:
        taint = Taint.of(state.outcome.taint)
    elif call is None or agent is None or call.tool not in agent.tools:
        return _full_taint(source)
    else:
        taint = CLEAN.after(prepare(agent).subject(call.tool), f"{call.tool}, the background call {source}")
    return _with_deferral_answers(taint, state.records, source)


async def _taint_of_process(store: Store, agents: Mapping[str, Agent], journal: str) -> Taint:
    """The taint of the agents of a process, and of the processes whose results it used, at any depth."""
    taint = CLEAN
    sessions: dict[str, None] = {}
    journals = [journal]
    for each in journals:  # it grows
        state = await lists.read_process(store, each)
        if state.registration is not None and state.registration.taint is not None:
            taint = taint.joined(Taint.of(state.registration.taint))
        taint = _with_deferral_answers(taint, state.history, each)
        sessions |= dict.fromkeys(
            msgspec.json.decode(bytes(record.value))["session"] for record in _process_effects(state.history, "agent")
        )
        journals += [found for found in map(keys.process_journal, _awaited_processes(state)) if found not in journals]
        if len(sessions) > MAX_SESSIONS or len(journals) > MAX_PROCESSES:
            return _full_taint(journal)
    for session in sessions:
        taint = taint.joined(await taint_of_session(store, agents, session))
    return taint


def _awaited_processes(state: ProcessState) -> dict[str, None]:
    found: dict[str, None] = {}
    for record in _process_effects(state.history, "await"):
        body = b"" if record.ask is None else bytes(record.ask.body)
        if not body:  # too large to be recorded
            return state.children
        found[msgspec.json.decode(body)["id"]] = None
    return found


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
    return Taint(untrusted_input=True, private_data=True, untrusted_by=by, private_by=by)


# ---- files that a tainted turn wrote ----

_WORKSPACE_KEY: Final = "workspace"
"""Key of the mark of the whole workspace, used when there are too many marks."""


class _FileMark(msgspec.Struct, frozen=True):
    path: str
    by: str


async def mark_written(store: Store, subject: Subject, by: str) -> None:
    """Mark the files that a call is about to write; `by` names the call and the source of its taint."""
    for path in _paths(subject):
        scope, key = _scope(subject), _key(path)
        if await store.memory_get(scope, key) is not None:
            continue
        try:
            await store.memory_put(scope, key, _encoded(path, by))
        except errors.MemoryFull:
            first = (await store.memory_list(scope))[0]
            await store.memory_delete(scope, first.key)
            await store.memory_put(scope, _WORKSPACE_KEY, _encoded(path, by))


async def writer_of(store: Store, subject: Subject) -> str | None:
    """The tainted record that wrote one of the files that a call reads, if any."""
    scope = _scope(subject)
    for path in _paths(subject):
        for key in (_key(path), _WORKSPACE_KEY):
            if (found := await store.memory_get(scope, key)) is not None:
                return _describe(found.value)
        if os.path.isdir(path) and (below := await _mark_below(store, scope, path)):  # noqa: PTH112, ASYNC240
            return below
    return None


async def _mark_below(store: Store, scope: str, folder: str) -> str | None:
    after = ""
    while page := await store.memory_list(scope, after=after):
        for entry in page:
            mark = _decoded(entry.value)
            if mark is None or mark.path.startswith(f"{folder.rstrip('/')}/"):
                return _describe(entry.value)
        after = page[-1].key
    return None


def _paths(subject: Subject) -> Iterator[str]:
    for name in subject.paths:
        for path in paths.paths_in(subject.args.get(name)):
            try:
                yield paths.real_path(path, subject.base)
            except (OSError, ValueError):  # the tool refuses it
                continue


def _scope(subject: Subject) -> str:
    return f"{TAINTED_FILES}{hashlib.sha256(os.fsencode(subject.base or '')).hexdigest()[:16]}"


def _key(path: str) -> str:
    return hashlib.sha256(os.fsencode(path)).hexdigest()[:40]


def _encoded(path: str, by: str) -> str:
    shown = path.encode("utf-8", "replace").decode()
    return msgspec.json.encode(_FileMark(shown, by)).decode()


def _decoded(value: str) -> _FileMark | None:
    try:
        return msgspec.json.decode(value, type=_FileMark)
    except msgspec.MsgspecError:
        return None


def _describe(value: str) -> str:
    mark = _decoded(value)
    return "a file that was marked as untrusted" if mark is None else f"the file {mark.path}, written by {mark.by}"
