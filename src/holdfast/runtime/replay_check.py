"""Replay check: drives the turns of a session again from their records, to see if they still fit the code.

Nothing is performed. A turn that was cancelled, ran into its deadline or is under way ends where its records end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn, cast

import msgspec

from holdfast import errors, records
from holdfast.agent import Agent, prepare, team_of
from holdfast.deps import NO_DEPS
from holdfast.effects import performer, replay
from holdfast.policy.limits import beyond_turn
from holdfast.runtime import tool_call, turn_runner, waits
from holdfast.runtime.session_records import RecordedRequest, read_conversation, read_records, read_requests
from holdfast.turns import environment, keys
from holdfast.turns.conversation import Conversation, OpenTurn, ending_of_record
from holdfast.turns.machine import Ending

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.runtime.session_driver import SessionDrive
    from holdfast.store import Store


Verdict = Literal["ok", "drift", "divergence"]
_VERDICTS: Final[tuple[Verdict, ...]] = ("ok", "drift", "divergence")
"""From best to worst."""


class ReplayFinding(msgspec.Struct, frozen=True):
    """One difference between a turn and its records."""

    key: str
    divergence: replay.Divergence
    changes: tuple[str, ...] = ()
    """For a model call: the changes of instructions, tools, settings or model, as lines of a diff."""


class TurnCheck(msgspec.Struct, frozen=True):
    """The verdict on a turn, with all agents that worked on it.

    `drift`: a model call would send another request today; its recorded answer is kept. `divergence`: the turn would
    take other steps. `status` is the outcome of the turn; None while it runs.
    """

    turn: str
    verdict: Verdict
    status: records.EndStatus | None = None
    findings: tuple[ReplayFinding, ...] = ()


async def check_turns(store: Store, session: str, agent: Agent, others: Sequence[Agent] = ()) -> list[TurnCheck]:
    """Replay all turns of a session from their records; performs and writes nothing.

    In a session that was handed over, each agent is checked on its own part. `agent`, its sub-agents, its handoff
    targets and `others` are known; any other agent raises `AgentUnknown`.
    """
    line = await store.journal(session)
    team = {name: found for each in (*others, agent) for name, found in team_of(each).items()}
    if line.agent not in team:
        raise errors.JournalConflict(session, f"a session of agent {line.agent!r}", f"one of {agent.name!r}")
    conversation = await _before(store, line.parent, line.parent_seq)
    check = _Check(store, session, team)
    async for seq, record in read_records(store, session):
        turn = conversation.turn
        if isinstance(record, records.Handed) and turn is not None:
            await check.handed(conversation.agent, turn, record)
        if isinstance(record, records.Ended):
            if turn is not None and turn.run == record.run:
                await check.ended(conversation.agent, turn, ending_of_record(record))
            else:  # it was stopped before it began
                check.found.append(TurnCheck(record.run, "ok", record.status))
        conversation.add(seq, record)
    if conversation.turn is not None:
        await check.ended(conversation.agent, conversation.turn, None)
    return check.found


async def _before(store: Store, parent: str | None, at: int) -> Conversation:
    """The conversation before a fork; empty for other sessions."""
    if parent is None:
        return Conversation()
    conversation = await read_conversation(store, parent, upto=at)
    conversation.cut()
    return conversation


class _Check:
    def __init__(self, store: Store, session: str, team: Mapping[str, Agent]) -> None:
        self.found: list[TurnCheck] = []
        self._store = store
        self._session = session
        self._team = team
        self._before: list[TurnCheck] = []
        """Checks of agents that have handed the turn under way over."""
        self._requests: dict[str, RecordedRequest] | None = None
        """Requests to models by key; read when needed."""

    async def handed(self, agent: str | None, turn: OpenTurn, record: records.Handed) -> None:
        """Check the part of an agent that has handed its turn over."""
        key = keys.parse_key(record.key)
        self._before.append(await self._part(agent, turn, None, 0 if key is None else key.number))

    async def ended(self, agent: str | None, turn: OpenTurn, recorded: Ending | None) -> None:
        """Check a turn that has ended or is under way."""
        last = await self._part(agent, turn, recorded, 0)
        parts, self._before = [*self._before, last], []
        worst = max(parts, key=lambda part: _VERDICTS.index(part.verdict)).verdict
        findings = tuple(finding for part in parts if part.verdict == worst for finding in part.findings)
        self.found.append(TurnCheck(turn.run, worst, last.status, findings))

    async def _part(self, name: str | None, turn: OpenTurn, recorded: Ending | None, until: int) -> TurnCheck:
        agent = self._team.get(name or "")
        if agent is None:
            raise errors.AgentUnknown(name or "", tuple(self._team))
        ledger = performer.RecordedJournal(self._store, self._session, await self._store.birthplace(self._session))
        host = cast("SessionDrive", _ReplayHost(self._session))
        run = turn_runner.TurnRunner(host, agent, turn, ledger, strict=True, until=until)
        status = None if recorded is None else recorded.status
        try:
            ending = await _finish(run)
            finding = _compare(turn.run, recorded, ending)
            if until:
                finding = ReplayFinding(turn.run, replay.diverge({"handed over": True}, {"handed over": False}))
        except errors.Halted as halted:
            finding = _finding_of_halt(halted.reason, recorded, handed=bool(until))
        except tool_call.TurnHandedOver:
            finding = None
        finally:
            await run.close()
        if finding is not None:
            return TurnCheck(turn.run, "divergence", status, (finding,))
        found = run.performer.drifts
        agent = run.agent or agent  # as it is in this turn
        drifts = tuple(
            [ReplayFinding(drift.key, drift.divergence, await self._changes(drift.key, agent)) for drift in found]
        )
        return TurnCheck(turn.run, "drift" if drifts else "ok", status, drifts)

    async def _changes(self, key: str, agent: Agent) -> tuple[str, ...]:
        """Differences in the request of a model call; empty if the journal does not have the request."""
        if self._requests is None:
            self._requests = {found.key: found for found in await read_requests(self._store, self._session)}
        asked = self._requests.get(key)
        if asked is None or not asked.model:
            return ()
        request, today = asked.request, prepare(agent).environment
        settings: dict[str, Any] = msgspec.to_builtins(request.settings)
        before = environment.Environment(asked.model, request.instructions, request.tools, request.output, settings)
        found = environment.environment_changes(before, today)
        return tuple(found or ["conversation: what was said before this call is not the same"])


async def _finish(run: turn_runner.TurnRunner) -> Ending | None:
    """The ending of the turn in the replay; None if it would wait."""
    try:
        return await run.finish()
    except tool_call.TurnParked:
        return None
    except (errors.HoldfastError, tool_call.TurnHandedOver):
        raise
    except Exception as error:  # an error of the agent's code is the ending of such a turn
        return Ending("failed", type(error).__name__, str(error)[:2_000], "code", **run.so_far())


def _compare(turn: str, recorded: Ending | None, replayed: Ending | None) -> ReplayFinding | None:
    if recorded is None or _was_stopped(recorded):
        return None
    before, after = _compared_fields(recorded), None if replayed is None else _compared_fields(replayed)
    return None if before == after else ReplayFinding(turn, replay.diverge(before, after or {"status": "waiting"}))


def _finding_of_halt(reason: errors.HoldfastError, recorded: Ending | None, *, handed: bool) -> ReplayFinding | None:
    match reason:
        case errors.ReplayMismatch():
            return ReplayFinding(reason.key, reason.divergence)
        case errors.ReplayMiss():
            if not handed and (recorded is None or _was_stopped(recorded)):
                return None
            return ReplayFinding(reason.key, replay.diverge({"effect": None}, {"effect": reason.key}))
        case _:
            raise reason


def _was_stopped(ending: Ending) -> bool:
    beyond = ending.status == "limit" and (ending.code == "deadline" or beyond_turn(ending.code))
    return beyond or ending.status == "cancelled"


def _compared_fields(ending: Ending) -> dict[str, Any]:
    return {"status": ending.status, "code": ending.code, "answer": ending.answer, "steps": ending.steps}


class _ReplayHost:
    """Replaces the session drive in a replay check; performs nothing."""

    quiet = True
    tool_host = None

    def __init__(self, session: str) -> None:
        self.session = session
        self.stopped_calls: dict[str, object] = {}
        self.context = _NoRuntime()
        self.waits = waits.JournalWaits(cast("Store", self.context), session)

    def show(self, *_: object) -> None:
        """Drop a live event: a check has no observers."""

    show_late = show

    async def boundary(self) -> None:
        """Does nothing: a replay has no other work."""


class _NoRuntime:
    """Replaces `RuntimeContext` and its store in a replay check; any use of them is a bug."""

    hooks = ()
    inline_budget = None
    deps = NO_DEPS

    @property
    def store(self) -> _NoRuntime:
        return self

    def __getattr__(self, name: str) -> NoReturn:
        raise errors.InvariantBroken(f"a replay check must not use {name!r} of the runtime")
