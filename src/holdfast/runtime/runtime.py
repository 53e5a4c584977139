"""One open store with its agents: recovers what was interrupted, drives what has work, lets others watch."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import shlex
import signal
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final, Self

import msgspec

from holdfast.agent import Agent, prepare
from holdfast.crashpoints import crash_point
from holdfast.engine.embedded import TICK, EmbeddedEngine
from holdfast.errors import (
    AgentInvalid,
    AgentMissing,
    AgentUnknown,
    ForeignLoop,
    InvalidArgument,
    InvalidId,
    JournalMissing,
    KeyConflict,
    RuntimeStopped,
)
from holdfast.eventloop import spawn
from holdfast.memory.mirror import MirroredMemory
from holdfast.models import prices
from holdfast.names import MAX_INT, check_id, check_int
from holdfast.policy.hooks import checked_hooks
from holdfast.policy.mandates import ROLE
from holdfast.policy.rules import milliseconds
from holdfast.processes import is_process_journal
from holdfast.processes.definition import ProcessDefinition
from holdfast.processes.lists import StuckProcess
from holdfast.processes.service import Processes
from holdfast.processes.state import is_task_id
from holdfast.processes.sub_agents import SubAgents
from holdfast.processes.tasks import Tasks
from holdfast.runtime.approvals import Approvals
from holdfast.runtime.attachments import Attachments
from holdfast.runtime.budgets import count_older_spending
from holdfast.runtime.changes import ChangeFeed, Cursor, LiveEventBuffers, follow_store, store_cursor
from holdfast.runtime.context import MISSING_TOOL_MS, RuntimeContext
from holdfast.runtime.deferrals import Resolve, ResolveTarget, check_answer
from holdfast.runtime.hooks import AfterTurnHooks
from holdfast.runtime.model_call import CompletionRequest, complete_once
from holdfast.runtime.programs import Sandboxes
from holdfast.runtime.retention import RetentionLoop
from holdfast.runtime.secrets import make_secret_access
from holdfast.runtime.session import REFUSALS, AdmissionGate, Session, check_shape, store_admission, turn_deadline_ms
from holdfast.runtime.session_driver import SessionDrive, check_gate, check_session_id, turnstiles, wall_milliseconds
from holdfast.runtime.session_records import RecordedRequest, read_requests
from holdfast.runtime.subscriptions import Emitted, Subscription, emit
from holdfast.runtime.waits import answer_payload
from holdfast.runtime.workspaces import check_workspaces
from holdfast.secrets.logs import redact_logs
from holdfast.store.client import LEASE_MS, MIN_LEASE_MS, Store
from holdfast.store.decisions import stop_key
from holdfast.triggers.definition import is_trigger_id
from holdfast.triggers.driver import process_adapter
from holdfast.triggers.service import Triggers
from holdfast.turns.conversation import Stop, deadline_wait, refs_of
from holdfast.turns.keys import run_of
from holdfast.turns.programs import is_pause

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
    from datetime import datetime, timedelta
    from pathlib import Path
    from types import TracebackType

    from holdfast.errors import HoldfastError
    from holdfast.events import Event
    from holdfast.memory import Memory
    from holdfast.models import Model
    from holdfast.models.prices import Price
    from holdfast.policy.hooks import Hooks
    from holdfast.processes.definition import AnyProcess
    from holdfast.processes.handle import Process, Signalled
    from holdfast.processes.tasks import RecoveredTask
    from holdfast.records import Status
    from holdfast.runtime.approvals import Approval
    from holdfast.runtime.drive import JournalDrive
    from holdfast.runtime.subscriptions import Control, EmitRequest
    from holdfast.runtime.turn import CancelStatus, TurnOutcome
    from holdfast.secrets.sources import SecretsInput
    from holdfast.store import Notification
    from holdfast.store.admission import RefusedInput
    from holdfast.store.contract import Journal, Receipt, Settlement, Wait, Work
    from holdfast.triggers.definition import Source, TriggerOptions
    from holdfast.triggers.service import Delivery, EventReceipt, Trigger
    from holdfast.turns.conversation import Said


_log: Final = logging.getLogger("holdfast.runtime")
CONCURRENCY: Final = 256
"""How many sessions one runtime drives at once."""
RESERVED_KEY_PREFIX: Final = "holdfast/"
"""What input keys of Holdfast itself begin with."""
_STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
LIVE: Final = 0.3
"""Seconds that a model waits for a call where a person waits for the model; the rest goes on in the background."""
CLOSE_GRACE: Final = 4.0
"""How long work may go on when the runtime is closed, in seconds."""


class Runtime:
    """One open store with the agents that may run on it.

    Use it as a context manager. Opening recovers whatever was interrupted and goes on with it; closing lets short work
    finish, leaves the rest where it is, and takes less than five seconds. The store itself stays open. `only` names
    the one session that is driven here.
    """

    def __init__(  # noqa: PLR0913
        self,
        store: Store,
        agents: Sequence[Agent],
        *,
        lease_ms: int = LEASE_MS,
        concurrency: int = CONCURRENCY,
        drive: bool = True,
        only: str | None = None,
        own_prices: Mapping[str, Price] | None = None,
        can_deliver: Callable[[str], bool] | None = None,
        mirror: Path | str | None = None,
        hooks: Sequence[Hooks] = (),
        inline_budget: timedelta | float | None = None,
        secrets: SecretsInput = None,
        processes: Sequence[AnyProcess] = (),
        retention: timedelta | float | None = None,
        gate_interval: timedelta | float = TICK,
        missing_tool_deadline: timedelta | float = MISSING_TOOL_MS / 1000,
    ) -> None:
        self.store = store
        self.redactor = store.redactor
        """What is hidden in all that is written, shown and logged here."""
        self._hiding = ExitStack()
        self.live_events = LiveEventBuffers()
        self.changes = ChangeFeed(store)
        self.agents: dict[str, Agent] = {}
        self._drives = drive
        self._engine: EmbeddedEngine | None = None
        if not isinstance(agents, list | tuple):
            raise InvalidArgument("agents", agents, "a list of agents")
        for agent in agents:
            self.register(agent)
        check_int("lease time", lease_ms, least=MIN_LEASE_MS)
        check_int("concurrency", concurrency, least=1)
        self._context = RuntimeContext(
            store,
            self.agents,
            self.changes,
            self.live_events,
            turnstiles.here(),
            lease_ms,
            own_prices or {},
            check_gate(can_deliver),
            f"pid {os.getpid()}",
            MirroredMemory(store, mirror),
            make_secret_access(store, secrets),
            checked_hooks(hooks),
            None if inline_budget is None else milliseconds(inline_budget) / 1000,
            milliseconds(missing_tool_deadline),
        )
        self.attachments = Attachments(store)
        """Files: put, get, list, collect."""
        self._approvals = Approvals(store, self.agents)
        self.gate = AdmissionGate(store, self.agents)
        """What sessions take in, and what was refused."""
        self.tasks = Tasks(self._context)
        """Background work: tool calls that go on after the model has had an answer."""
        self._context.tasks = self.tasks
        self._context.turn_hooks = AfterTurnHooks()
        self._context.programs = Sandboxes()
        self.children = self._context.children = SubAgents(self, self._context)
        """Sub-agents: sessions that work for others."""
        self.processes = Processes(self, self._context, processes)
        """Durable functions: those that run here, and what was started of them."""
        tick = milliseconds(gate_interval) / 1000
        if drive:
            self._engine = EmbeddedEngine(
                store, self._drive_of, self._stopped, concurrency, _is_background_journal, tick=tick
            )
        self.tasks.engine = self._engine
        self.processes.engine = self._engine
        self.triggers = self._made_triggers(lease_ms)
        """What starts work by itself: list, fire, enable, disable, remove, prune."""
        self._retaining = None if retention is None else RetentionLoop(self.processes, self.triggers, retention)
        self._only = only
        self._subscriptions: set[Subscription] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        """The event loop in which it was opened."""
        self._warned: set[str] = set()
        """Agents that sessions need and that are not here: each is told in the log once."""
        self._closed = False
        self._reading_prices: asyncio.Task[bool] | None = None

    def _made_triggers(self, lease_ms: int) -> Triggers:
        triggers = Triggers(self, lease_ms, None if self._engine is None else self._engine.poke)
        triggers.targets.adapters.append(process_adapter(self.processes, ProcessDefinition))
        triggers.targets.adapters.append(lambda given: ResolveTarget(self) if isinstance(given, Resolve) else None)
        return triggers

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._hiding.enter_context(redact_logs(self.redactor))
        self._reading_prices = spawn(asyncio.to_thread(prices.load_prices)) if self._buys() else None
        await self._context.memories.begin()
        await self.gate.open()
        if self._engine is not None:
            await count_older_spending(self.store)
            self._engine.start()
        await self.processes.begin()
        if self._retaining is not None and self._engine is not None:
            self._retaining.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self, *, grace: float = CLOSE_GRACE) -> None:
        """Take nothing new, let short work finish within `grace` seconds, leave the rest to whoever opens next."""
        if self._closed:
            return
        self._check_loop()
        self._closed = True
        until = asyncio.get_running_loop().time() + grace
        await self.triggers.stop()
        if self._retaining is not None:
            await self._retaining.stop()
        if self._engine is not None:
            await self._engine.stop(grace)
        await self._context.turn_hooks.close(until - asyncio.get_running_loop().time())
        await self._context.programs.close()
        await self.processes.close()
        await self.children.close()
        for subscription in list(self._subscriptions):
            await subscription.stop()
        await self._context.memories.stop()
        await self.changes.close()
        if self._reading_prices is not None:
            await asyncio.gather(self._reading_prices, return_exceptions=True)
        self._hiding.close()

    async def serve(self) -> None:
        """Work until the process is told to stop (SIGTERM or SIGINT): then close. A second signal leaves at once."""
        loop = asyncio.get_running_loop()
        told = asyncio.Event()

        def on_signal() -> None:
            if told.is_set():
                os._exit(130)
            told.set()

        for number in _STOP_SIGNALS:
            loop.add_signal_handler(number, on_signal)
        try:
            await told.wait()
            await self.close()
        finally:
            for number in _STOP_SIGNALS:
                loop.remove_signal_handler(number)

    def _buys(self) -> bool:
        """Whether an agent here asks a model that has a price."""
        return any(agent.model.name.partition(":")[0] in prices.PROVIDERS for agent in self.agents.values())

    def _check_open(self) -> None:
        """Nothing is begun by a runtime that is closed, nor from another event loop than its own."""
        self._check_loop()
        if self._closed:
            raise RuntimeStopped

    def _check_loop(self) -> None:
        if self._loop is not None and asyncio.get_running_loop() is not self._loop:
            raise ForeignLoop

    # ---- agents ----

    def register(self, agent: Agent) -> Agent:
        """Let `agent` run here."""
        if not isinstance(agent, Agent):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers may be untyped
            raise InvalidArgument("agent", agent, "an Agent")
        _ = agent.model  # a name that names no model is an error now, not at the first turn
        if self._drives and agent.mode == "code" and agent.sandbox is None:
            from holdfast.sandbox.worker import require_programs  # noqa: PLC0415  only where it is needed

            require_programs()  # what can't be run here is an error now, not in the middle of a turn
        known = self.agents.get(agent.name)
        if known is None:
            check_workspaces([agent], self.store.path)
            self.agents[agent.name] = agent
            if self._engine is not None:
                self._engine.wake()  # what was left alone until now can go on
        elif known is not agent:
            raise AgentInvalid(agent.name, "another agent has this name here; give one of them another name")
        for other in prepare(agent).other_agents if known is None else ():
            self.register(other)
        return agent

    def _agent_name(self, agent: Agent | str) -> str:
        if isinstance(agent, Agent):
            return self.register(agent).name
        check_id("agent", agent)
        if agent not in self.agents:
            raise AgentUnknown(agent, tuple(self.agents))
        return agent

    async def agent_of(self, session: str) -> Agent | None:
        """The agent of a session, if it may run here."""
        try:
            line = await self.store.journal(session)
        except JournalMissing:
            return None
        return self.agents.get(line.agent or "")

    async def agent_missing(self, session: str) -> AgentMissing | None:
        """Why nobody goes on with a session, if that is because its agent is not here. Others may have it, and do."""
        if self._engine is None or self._engine.drives(session):
            return None
        try:
            line = await self.store.journal(session)
        except JournalMissing:
            return None
        name = line.agent or ""
        if name in self.agents or await self.store.holder(session) is not None:
            return None
        self._warn_of(name, session)
        return AgentMissing(session, name, tuple(self.agents))

    def _warn_of(self, agent: str, session: str) -> None:
        if agent not in self._warned:
            self._warned.add(agent)
            told = "the session %r waits: this runtime does not have its agent %r, nor does a process that drives it"
            _log.warning(told, session, agent)

    async def without_agent(self) -> list[StuckProcess]:
        """Sessions with work that nobody does: their agents are not here, and no other process drives them."""
        found: list[StuckProcess] = []
        after = 0
        while self._engine is not None and (page := await self.store.work(after)):
            for work in page:
                held = work.holder is not None and not self.store.owner_gone(work.holder)
                if work.kind == "session" and not held and (name := work.agent or "") not in self.agents:
                    self._warn_of(name, work.journal)
                    helps = f"open the store with the agent {name!r}, or: holdfast cancel {shlex.quote(work.journal)}"
                    found.append(StuckProcess(work.journal, name, f"no agent {name!r} is here to go on with it", helps))
            after = page[-1].no
        return found

    # ---- sessions ----

    def session(self, id: str, *, agent: Agent | str | None = None, metadata: dict[str, Any] | None = None) -> Session:
        """The session with this id. Nothing is read or written yet; without `agent`, it must exist when it is used.

        `metadata` is what the host says about the session: a JSON object that is kept when the first input opens it,
        and that tools, hooks and lists can read. A session that is there must have been opened with the same.
        """
        return Session(self, id, None if agent is None else self._agent_name(agent), metadata)

    def session_for(
        self, id: str, agent: Agent | str, *, under: tuple[str, str] | None = None, from_start: bool = False
    ) -> Session:
        """A session in which something is said for a process (`under`: see `Store.accept_into`) or a `Control`.

        With `from_start` deadlines count from the start of the turn.
        """
        return Session(self, id, self._agent_name(agent), under=under, from_start=from_start)

    async def sessions(
        self, *, agent: str | None = None, status: Status | None = None, before: Journal | None = None, limit: int = 50
    ) -> list[Journal]:
        """Sessions, those that changed last first."""
        return await self.store.journals(kind="session", agent=agent, status=status, before=before, limit=limit)

    async def refusals(self, session: str | None = None, *, limit: int = 50) -> list[RefusedInput]:
        """Inputs that were not taken in, newest first: when, why, and how many of that session there were so far."""
        return await self.store.refusals(session, limit=limit)

    async def run(  # noqa: PLR0913
        self,
        agent: Agent | str,
        prompt: str,
        *,
        session: str | None = None,
        key: str | None = None,
        deadline: timedelta | float | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> TurnOutcome:
        """Ask and wait for the answer, in a session of its own unless one is named."""
        name = f"run-{secrets.token_hex(6)}" if session is None else session
        asked = self.session(name, agent=agent)
        # Who expects the end before the beginning need not look whether it has come already.
        with self.changes.expecting(name, MAX_INT, ends=True) as expected:
            turn = await asked.send(prompt, key=key, deadline=deadline, metadata=metadata)
            return await turn.outcome_expected(expected)

    async def accept(  # noqa: PLR0913
        self,
        session: str,
        agent: str,
        said: Said,
        key: str | None,
        *,
        youngest: str | None = None,
        under: tuple[str, str] | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> Receipt:
        """Take an input in, durably, and see to it that it is driven. `youngest`, `under`: see `accept_into`."""
        self._check_open()
        if key is not None and check_id("key", key).startswith(RESERVED_KEY_PREFIX):
            raise InvalidId("key", key, f"keys that begin with {RESERVED_KEY_PREFIX!r} are Holdfast's own")
        try:
            return await self._accept(session, agent, said, key, youngest, under, metadata)
        except REFUSALS as error:
            await self.gate.refused(session, agent, key, error)
            raise

    async def holder(self, session: str, agent: str) -> str:
        """Who has a session that was opened with `agent`: that one, or whoever has taken it over since."""
        known = self.agents.get(agent)
        if known is not None and not prepare(known).has_handoffs:
            return agent
        try:
            return (await self.store.journal(session)).agent or agent
        except JournalMissing:
            return agent

    async def _accept(  # noqa: PLR0913, PLR0917
        self,
        session: str,
        agent: str,
        said: Said,
        key: str | None,
        youngest: str | None,
        under: tuple[str, str] | None,
        metadata: dict[str, Any] | None,
    ) -> Receipt:
        body = msgspec.to_builtins(said)
        holder = await self.holder(session, agent)
        terms = await self.gate.terms(holder)
        if said.origin == "user" and not said.compact:
            check_shape(terms, session, said.parts)
        due = turn_deadline_ms(self.agents.get(holder), said)
        early = due is None and self._engine is not None
        accepting = self.store.accept_into(
            session,
            "session",
            agent,
            body,
            key=key,
            refs=refs_of(said),
            patient=early,
            role=None if said.mandate is None else ROLE,
            session=None if said.mandate is None else said.mandate.session,
            admission=store_admission(terms),
            youngest=youngest,
            under=under,
            metadata=metadata,
        )
        # The drive of a session that rests begins at once: its lease is claimed in the same commit.
        begun = early and self._engine is not None and self._engine.begin_early(session)
        receipt = await accepting
        if receipt.fresh and due is not None:
            # It counts also while the turn waits for its turn; then nobody drives the session.
            await self.store.open_wait(session, deadline_wait(run_of(receipt.input)), deadline=receipt.at + due)
        if self._engine is not None and not begun and (session, key) not in self._context.held_inputs:
            self._engine.poke(session)
        return receipt

    # ---- processes ----

    async def start(
        self,
        process: AnyProcess | str,
        /,
        *args: Any,  # noqa: ANN401  whatever the function takes
        id: str | None = None,
        session: str | None = None,
        **kwargs: Any,  # noqa: ANN401
    ) -> Process:
        """Start a durable function. When this returns it is durable, and will come to an end whatever happens.

        The same `id` with the same function and arguments is the same process, with others a `ProcessConflict`. The
        `session` it works for is told when it ends.
        """
        self._check_open()
        return await self.processes.start(process, args, kwargs, id=id, session=session)

    async def signal(self, id: str, name: str, value: object = None, *, key: str | None = None) -> Signalled:
        """Tell a process something that it waits for, or will wait for: once for each `key`."""
        self._check_open()
        return await self.processes.handle(id).signal(name, value, key=key)

    async def complete(
        self,
        model: Model | str,
        prompt: str,
        *,
        output: Any = None,  # noqa: ANN401  a type or a schema
        instructions: str = "",
        key: str | None = None,
    ) -> Any:  # noqa: ANN401
        """Ask a model once, without a conversation; text, or a value of the type `output`. Recorded, with its usage.

        The same `key` gives the recorded answer; a journal of its own keeps it.
        """
        self._check_open()
        return await complete_once(self._context, CompletionRequest(model, prompt, output, instructions), key)

    async def requests(self, journal: str) -> list[RecordedRequest]:
        """What models were asked in a journal: of a session, a process, or ``direct/KEY`` of `complete`.

        It is rebuilt from the records alone: no code of an agent is needed.
        """
        return await read_requests(self.store, journal)

    # ---- stopping and answering ----

    async def request_stop(self, session: str, run: str, reason: str) -> CancelStatus:
        """Ask for a turn to be cancelled, with all sub-agents for which it waits; the first request counts.

        When this returns the request is durable for each of them: none begins anything more, and no approval of theirs
        can be answered.
        """
        self._check_loop()
        body = msgspec.to_builtins(Stop(run, reason))
        try:
            fresh = (await self.store.accept(session, body, key=stop_key(run), urgent=True)).fresh
        except KeyConflict:
            fresh = False
        if self._engine is not None:
            self._engine.retry(session)
        crash_point("cancel.accepted")
        # From here on it begins no sub-agent. Whoever asked before may have been interrupted at this point.
        await self.children.stop_turn(session, run, reason)
        return "requested" if fresh else "already_requested"

    async def settle(self, session: str) -> None:
        """Carry out what was asked of a session that nobody drives: stop what is to be stopped."""
        await SessionDrive(self._context, session).run()

    async def resolve(self, key: str, value: object = None, *, error: str | None = None) -> Settlement:
        """Answer a wait, or give the result of a call that was deferred; with `error`, say that there is none, and why.

        The first answer counts, everybody learns the same: see `Settlement.won`. A key that was forged is a
        `WaitUnknown`; a value that is no result of the tool an `AnswerInvalid`, where that tool is known here.
        Approvals are for `approve` and `deny`.
        """
        answer = answer_payload(value, error)
        if error is None:
            await check_answer(self.store, self.agents, key, answer)
        settlement = await self.store.resolve(key, answer)
        if self._engine is not None:
            self._engine.poke(settlement.wait.journal)
        return settlement

    async def waits(self, session: str) -> list[Wait]:
        """What a session waits for somebody outside to answer."""
        found = await self.store.waits(session, state="open")
        timers = {deadline_wait(wait.name.partition("/")[0]) for wait in found}
        return [wait for wait in found if wait.name not in timers and not is_pause(wait.name)]

    def wait_token(self, session: str, name: str) -> str:
        """What `resolve` needs to answer a wait of a session."""
        return self.store.wait_token(session, name)

    # ---- approvals ----

    async def approvals(self, session: str | None = None) -> list[Approval]:
        """The calls that wait for a person, oldest first: of one session, or of all."""
        return await self._approvals.all(session)

    async def approve(
        self,
        id: str,
        *,
        by: str | None = None,
        arguments: dict[str, Any] | None = None,
        always: str | None = None,
        digest: str | None = None,
    ) -> Approval:
        """Let a call be made, once: exactly as it was shown, or with other `arguments`.

        `always` is a rule to be stored with the answer, such as `Approval.always` shows; calls that it allows are not
        asked about again. With `digest`, only if that is still what is asked. The first answer counts; one that comes
        late is an `ApprovalUnknown` or `ApprovalClosed`, and does nothing.
        """
        approved = await self._approvals.approve(id, by=by, arguments=arguments, always=always, digest=digest)
        if self._engine is not None:
            self._engine.poke(approved.session)
        return approved

    async def deny(self, id: str, reason: str = "", *, by: str | None = None) -> Approval:
        """Do not let a call be made; the model is told why, and the turn goes on."""
        denied = await self._approvals.deny(id, reason, by=by)
        if self._engine is not None:
            self._engine.poke(denied.session)
        return denied

    # ---- watching ----

    def events(self, after: int | str | None = None) -> AsyncGenerator[Event]:
        """What happens in all sessions, in the order of commit: from a cursor, or from now on (0: from the first)."""
        return self.follow(None if after is None else store_cursor(after, self.store))

    def follow(self, after: Cursor | None) -> AsyncGenerator[Event]:
        """All events behind a cursor, or behind what was asked of the store until now."""
        mark = self.store.mark() if after is None else None

        async def events() -> AsyncGenerator[Event]:
            with self.changes.until_closed():
                start = after if mark is None else Cursor(await mark)
                async for event in follow_store(self.store, self.changes, self.live_events, start or Cursor(0)):
                    yield event

        return events()

    def on(
        self,
        kind: Any,  # noqa: ANN401  an event class, several, or Any
        handler: Callable[[Any], Awaitable[None] | None],
        *,
        session: str | None = None,
        after: int | str | None = None,
        concurrency: int = 16,
    ) -> Subscription:
        """Call `handler` with each event of a kind: in order for each session, from a cursor or from now on.

        So many sessions are handled side by side; within one, an event waits until the one before was handled.
        """
        self._check_open()
        subscription = Subscription(self, kind, handler, session, after, concurrency)
        self._subscriptions.add(subscription)
        subscription.start(self._subscriptions.discard)
        return subscription

    def hold_back(self, session: str, key: str) -> Callable[[], None]:
        """Begin no turn with this input until what this gives is called. Other processes may."""
        engine, held = self._engine, self._context.held_inputs
        if engine is None:
            return lambda: None
        held[session, key] += 1
        engine.hold(session)

        def let_go() -> None:
            held[session, key] -= 1
            if held[session, key] <= 0:
                del held[session, key]
            engine.let_go(session)

        return let_go

    async def emit(self, request: EmitRequest, *, control: Control | None = None) -> Emitted:
        """Accept a request: the receipt names the turn at once; awaiting it gives the outcome."""
        return await emit(self, request, control)

    # ---- triggers ----

    def every(
        self,
        name: str,
        source: Source,
        target: object,
        /,
        *,
        options: TriggerOptions | None = None,
        **arguments: Any,  # noqa: ANN401  what the target takes
    ) -> Trigger:
        """Start `target` whenever `source` says so, once for each occurrence, also across restarts and processes.

        `source` is `hf.cron`, `hf.interval`, `hf.watch`, `hf.webhook` or `hf.event`; `target` an agent or a session
        (with ``prompt=``), or a process with its arguments. Texts may have places such as ``{date}``. Await what this
        returns to know that it is durable. The same name with another definition is its next revision.
        """
        return self.triggers.every(name, source, target, arguments, options)

    async def deliver_webhook(self, name: str, headers: Mapping[str, str], body: bytes) -> Delivery:
        """Hand a request to the trigger `name`: accepted, duplicate or refused, and the status to answer with."""
        return await self.triggers.deliver_webhook(name, headers, body)

    async def emit_event(self, name: str, payload: object = None, *, key: str | None = None) -> EventReceipt:
        """Tell an event to all triggers that want it, once for each `key`."""
        return await self.triggers.emit_event(name, payload, key=key)

    # ---- notifications ----

    async def notify(  # noqa: PLR0913
        self,
        session: str,
        title: str,
        body: str = "",
        *,
        key: str | None = None,
        priority: int = 0,
        at: datetime | None = None,
        expires: datetime | None = None,
        kind: str = "host",
    ) -> Notification:
        """Tell a session something: at its next safe point, or as a turn of its own when it rests.

        The same `key` with the same content is one notification. It is delivered from `at` on, until `expires`.
        """
        self._check_open()
        found, fresh = await self.store.notify(
            check_session_id(session),
            kind=kind,
            title=title,
            body=body,
            key=key,
            priority=priority,
            due=wall_milliseconds(at),
            expires=wall_milliseconds(expires),
        )
        if fresh and self._engine is not None and (at is None or found.due <= self.store.clock.read().wall):
            self._engine.poke(session)
        return found

    def memory(self, scope: str, *, by: str | None = None) -> Memory:
        """What is remembered in a scope: texts that outlive sessions, mirrored as files beside the store.

        `by` says who writes; it stands in the history.
        """
        return self._context.memories.memory(scope, by)

    def gate_changed(self, session: str | None = None) -> None:
        """What `can_deliver` says may have changed: of one session, or of any."""
        if self._engine is None:
            return
        if session is None:
            self._engine.tick()
        else:
            self._engine.poke(session, again=True)

    async def recover(self) -> list[RecoveredTask]:
        """See to the background work of processes that are gone: answers which tasks, and what becomes of them.

        Opening a runtime begins with that by itself; this tells about it. Work of processes that live is not touched.
        """
        found = await self.tasks.recover()
        if self._engine is not None:
            self._engine.wake()
        return found

    # ---- the engine ----

    def _drive_of(
        self,
        work: Work | str,
        stops_only: bool,  # noqa: FBT001
    ) -> JournalDrive | None:
        session = work if isinstance(work, str) else work.journal
        if is_trigger_id(session):
            return None if self._only is not None else self.triggers.drive_of(session)
        if is_process_journal(session):
            return self.processes.drive_of(work, self._only)
        if is_task_id(session):
            return self.tasks.drive_of(work, self._only)
        if self._only is not None and session != self._only and session not in self.children.mine:
            return None
        known = isinstance(work, str) or work.agent in self.agents
        if not known and not isinstance(work, str):
            self._warn_of(work.agent or "", session)
        return SessionDrive(self._context, session, stops_only=stops_only) if known else None

    def _stopped(self, journal: str) -> None:
        """The engine has given up a journal: whoever waits for it learns why."""
        self.changes.ended(journal)
        error = self.stuck(journal)
        if error is not None and is_process_journal(journal):
            self.processes.tell_stuck(journal, error)

    def stuck(self, session: str) -> HoldfastError | None:
        """Why a session is not driven here, if it can't be."""
        return None if self._engine is None else self._engine.stuck(session)

    @property
    def crowded(self) -> bool:
        """Whether others wait for the room that somebody takes who only waits: then nobody should, in memory."""
        return self._closed or (self._engine is not None and self._engine.crowded)

    @property
    def active(self) -> int:
        """How many sessions are being driven here."""
        return 0 if self._engine is None else self._engine.active


def _is_background_journal(journal: str) -> bool:
    return is_task_id(journal) or is_process_journal(journal) or is_trigger_id(journal)
