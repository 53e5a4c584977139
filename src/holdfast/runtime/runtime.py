"""`Runtime`: one open store with its agents. It resumes interrupted work, drives sessions, and serves observers.

This module also checks that no tool can reach the files of the store.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import shlex
import signal
from collections import Counter
from contextlib import ExitStack, contextmanager, suppress
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, ParamSpec, Self, TypeVar, overload

from holdfast import errors, eventloop
from holdfast.agent import Agent, OutputT, prepare, team_of
from holdfast.deps import NO_DEPS, check_deps, deps_of_context
from holdfast.engine.embedded import EmbeddedEngine
from holdfast.errors.caller import StoreInWorkspace
from holdfast.logs import log_event
from holdfast.models import Model, prices
from holdfast.names import (
    MAX_INT,
    check_id,
    check_int,
    is_process_journal,
    is_pump_id,
    is_session_id,
    is_task_id,
    is_trigger_id,
)
from holdfast.policy import limits, rules
from holdfast.policy.hooks import Hooks, check_hooks
from holdfast.processes import lists, service, sub_agents, tasks
from holdfast.runtime import (
    attachments,
    budgets,
    context,
    deferrals,
    exports,
    retention,
    session_driver,
    session_records,
)
from holdfast.runtime.approvals import Approval, Approvals
from holdfast.runtime.changes import ChangeFeed, follow_store, store_cursor
from holdfast.runtime.drive import JournalDrive, Turnstile, turnstiles
from holdfast.runtime.hooks import AfterTurnHooks
from holdfast.runtime.host_call import HostCall, HostCalls
from holdfast.runtime.model_call import CompletionRequest, complete_once
from holdfast.runtime.notifications import Notifications, PumpRecovery
from holdfast.runtime.programs import Sandboxes
from holdfast.runtime.session import AbortedCall, Session, Sessions
from holdfast.runtime.side_channel import open_side_channel
from holdfast.runtime.subscriptions import Control, EmitRequest, Emitted, Subscription, emit
from holdfast.runtime.waits import answer_payload
from holdfast.secrets.logs import redact_logs
from holdfast.store import client, paths
from holdfast.triggers.service import Delivery, EventReceipt, Trigger, Triggers
from holdfast.turns import conversation
from holdfast.turns.programs import is_pause

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence
    from datetime import datetime, timedelta
    from types import TracebackType

    from holdfast.events import Event
    from holdfast.memory import Memory
    from holdfast.messages import Settings
    from holdfast.processes import definition
    from holdfast.records import Status
    from holdfast.runtime.turn import TurnOutcome
    from holdfast.secrets.sources import SecretsInput
    from holdfast.store import Notification, inbox
    from holdfast.store.contract import Journal, Settlement, Wait, Work
    from holdfast.store.exports import SessionReport
    from holdfast.store.retention import Forgotten
    from holdfast.store.spending import Spend
    from holdfast.store.sqlite.backup import BackupReport
    from holdfast.telemetry import Telemetry
    from holdfast.tools.definition import AnyTool, Tool
    from holdfast.triggers.definition import Source, TriggerOptions


P = ParamSpec("P")
R = TypeVar("R")
_log: Final = logging.getLogger("holdfast.runtime")


def check_workspaces(agents: Sequence[Agent], store: Path | str | None) -> None:
    """Raise `StoreInWorkspace` if a tool of these agents, or of their sub-agents, can reach a file of the store.

    An agent that reaches the store could approve its own calls.
    """
    if not isinstance(store, str | Path) or "\0" in str(store):
        return  # in memory, or refused when it is opened
    places: tuple[str, ...] | None = None
    known = [agent for agent in agents if isinstance(agent, Agent)]  # pyright: ignore[reportUnnecessaryIsInstance]  # callers may be untyped
    team = [member for agent in known for member in team_of(agent).values()]
    for owner, tool in [(member, tool) for member in team for tool in member.tools.values()]:
        for workspace in tool.reach.workspaces:
            places = paths.real_places(store) if places is None else places
            for place in places:
                remedy = _find_remedy(workspace, place, os.path.realpath(store), hides_store=tool.reach.hides_store)
                if remedy is not None:
                    raise StoreInWorkspace(owner.name, tool.name, workspace, place, remedy)


def _find_remedy(workspace: str, place: str, store: str, *, hides_store: bool) -> str | None:
    """The remedy if a workspace contains a file of the store, or lies in its folder; None if neither is the case."""
    below = _names_below(place, workspace)
    if below is None:  # it may still be inside the folder of the mirror
        return None if _names_below(workspace, place) is None else "Give the tool another folder to work in"
    if not hides_store:
        return "Move the store out of that folder, or give the tool another one"
    # Only the top folder of the workspace: a command could rename the parent of a deeper one.
    if len(below) > 1 and below[0] == paths.FOLDER:
        return None
    folder = shlex.quote(f"{workspace}/{paths.FOLDER}")
    return (
        f"Move the store to {workspace}/{paths.FOLDER}/, which no toolkit reaches "
        f"(mkdir -m 700 -p {folder} && mv {shlex.quote(store)}* {folder}/), or out of that folder"
    )


def _names_below(path: str, folder: str) -> tuple[str, ...] | None:
    """The names that lead from `folder` to `path`; None if `path` is outside.

    Folders are compared by identity as well as by name: a bind mount, or a file system that ignores case, gives one
    folder several names.
    """
    names: list[str] = []
    while True:
        with suppress(OSError):
            if path == folder or os.path.samefile(path, folder):  # noqa: PTH121
                return tuple(reversed(names))
        above, name = os.path.split(path)
        if above == path:
            return None
        names.append(name)
        path = above


_STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
LIVE: Final = 0.3
"""An `inline_budget` for chats, in seconds: slower tool calls continue in the background."""
CLOSE_GRACE: Final = 4.0
"""Time that work gets to finish when the runtime is closed, in seconds."""


class Runtime:
    """One open store with the agents that may run on it; a context manager.

    Opening resumes interrupted work. Closing lets short work finish, leaves the rest for the next runtime, and takes
    less than five seconds; it closes the store only if ``await hf.open(...)`` opened both. `only` names the one session
    to drive.
    """

    def __init__(
        self,
        store: client.Store,
        agents: Sequence[Agent],
        *,
        lease_ms: int = limits.LEASE_MS,
        concurrency: int = limits.CONCURRENCY,
        drive: bool = True,
        only: str | None = None,
        own_prices: Mapping[str, prices.Price] | None = None,
        can_deliver: Callable[[str], bool | Awaitable[bool]] | None = None,
        mirror: Path | str | None = None,
        hooks: Sequence[Hooks] = (),
        inline_budget: timedelta | float | None = None,
        secrets: SecretsInput = None,
        processes: Sequence[definition.AnyProcess] = (),
        process_retention: timedelta | float | None = None,
        session_retention: timedelta | float | None = None,
        gate_interval: timedelta | float = limits.TICK,
        missing_tool_deadline: timedelta | float = limits.MISSING_TOOL_MS / 1000,
        telemetry: Telemetry | None = None,
        deps: object = NO_DEPS,
    ) -> None:
        self.store = store
        self.redactor = store.redactor
        """Hides secrets in everything that this runtime writes, shows and logs."""
        self._log_redaction = ExitStack()
        self.agents: dict[str, Agent] = {}
        self._drives = drive
        self._deps = deps
        self._engine: EmbeddedEngine | None = None
        if not isinstance(agents, list | tuple):
            raise errors.InvalidArgument("agents", agents, "a list of agents")
        for agent in agents:
            self.register(agent)
        check_int("lease time", lease_ms, least=client.MIN_LEASE_MS)
        check_int("concurrency", concurrency, least=1)
        self._context = context.RuntimeContext(
            store,
            self.agents,
            ChangeFeed(store),
            turnstiles.here(),
            lease_ms,
            own_prices or {},
            session_driver.check_gate(can_deliver),
            f"pid {os.getpid()}",
            context.MirroredMemory(store, mirror),
            context.make_secret_access(store, secrets),
            check_hooks(hooks),
            deps,
            None if inline_budget is None else rules.milliseconds(inline_budget) / 1000,
            rules.milliseconds(missing_tool_deadline),
        )
        self.attachments = attachments.Attachments(store)
        """Files: put, get, list, collect."""
        self._approvals = Approvals(store, self.agents)
        self._sessions = self._context.sessions = Sessions(self._context, self.register)
        self.tasks = self._context.tasks = tasks.Tasks(self._context)
        """Background calls: tool calls that continue after the model has had an answer."""
        self._calls = HostCalls(self._context)
        self._context.turn_hooks = AfterTurnHooks()
        self._context.programs = Sandboxes()
        self.children = self._context.children = sub_agents.SubAgents(self._context)
        """Sub-agents: sessions that work for others."""
        tick = rules.milliseconds(gate_interval) / 1000
        if drive:
            self._engine = EmbeddedEngine(store, self._drive_of, self._stopped, concurrency, tick=tick)
        self._context.engine = self._engine
        self.processes = self._context.processes = service.Processes(self._context, processes)
        """Durable functions and their runs."""
        self.triggers = Triggers(self, self._context)
        """Triggers: list, fire, enable, disable, remove, prune."""
        self.notifications = Notifications(self._context)
        """Notifications: list, settle, and pump those of a session yourself."""
        self._retention = tuple(
            None if kept is None else rules.milliseconds(kept) / 1000 for kept in (process_retention, session_retention)
        )
        self._pruning: asyncio.Task[None] | None = None
        self._only = only
        self._subscriptions: set[Subscription] = set()
        self._loading_prices: asyncio.Task[bool] | None = None
        self._close_rest: Callable[[], Awaitable[object]] | None = None
        if telemetry is not None:
            from holdfast.telemetry import make_tracer  # OpenTelemetry only where it is wanted

            self._context.changes.tracer = make_tracer(store, telemetry)

    async def __aenter__(self) -> Self:
        if self._close_rest is not None:
            return self  # ``async with await hf.open(...)``: it is open
        self._sessions.loop = asyncio.get_running_loop()
        if (watch := getattr(self.store.clock, "watch", None)) is not None:
            watch(self.store)  # a clock that tests advance
        self._log_redaction.enter_context(redact_logs(self.redactor))
        if any(agent.model.name.partition(":")[0] in prices.PROVIDERS for agent in self.agents.values()):
            self._loading_prices = eventloop.spawn(asyncio.to_thread(prices.load_prices))
        log_event(
            *(_log, logging.INFO, "store opened"),
            store=self.store.path or ":memory:",
            drives=self._drives,
            agents=len(self.agents),
            processes=len(self.processes.functions),
        )
        open_side_channel(self._context.changes, drives=self._engine is not None)
        if (tracer := self._context.changes.tracer) is not None:
            tracer.start()
        await self._context.memories.begin()
        await self._sessions.open()
        if self._engine is not None:
            await budgets.count_older_spending(self.store)
            if _log.isEnabledFor(logging.INFO):
                await self._log_recovery()
            self._engine.start()
        await self.processes.begin()
        if any(kept is not None for kept in self._retention) and self._engine is not None:
            pruning = retention.prune_regularly(self._context, self.processes, self.triggers, *self._retention)
            self._pruning = eventloop.spawn(pruning, upkeep=True)
        return self

    async def _log_recovery(self) -> None:
        """Log how much work of earlier processes this one finds."""
        found = [work.journal async for work, holder in lists.all_work(self.store) if holder is None]
        background = sum(is_process_journal(journal) or is_task_id(journal) for journal in found)
        sessions = sum(map(is_session_id, found))
        log_event(_log, logging.INFO, "recovered", count=len(found), sessions=sessions, processes=background)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self, *, grace: float = CLOSE_GRACE) -> None:
        """Accept nothing new, let short work finish within `grace` seconds, leave the rest to the next runtime."""
        if self._sessions.closed:
            return
        self._sessions.check_loop()
        self._sessions.closed = True
        log_event(_log, logging.INFO, "shutdown began", active=self.active, grace=grace)
        try:
            await self._stop(grace)
        finally:
            rest, self._close_rest = self._close_rest, None
            if rest is not None:
                await rest()

    async def _stop(self, grace: float) -> None:
        until = asyncio.get_running_loop().time() + grace
        await self.triggers.stop()
        self.notifications.stop()
        if self._pruning is not None:
            self._pruning.cancel()
            await asyncio.gather(self._pruning, return_exceptions=True)
        if self._engine is not None:
            await self._engine.stop(grace)
        await self.notifications.close()
        await self._context.turn_hooks.close(until - asyncio.get_running_loop().time())
        await self._context.programs.close()
        await self.processes.close()
        for subscription in list(self._subscriptions):
            await subscription.stop()
        if (tracer := self._context.changes.tracer) is not None:
            await tracer.close(max(until - asyncio.get_running_loop().time(), 0.5) / 2)
        await self._context.memories.stop()
        await self._context.changes.close()
        if self._loading_prices is not None:
            await asyncio.gather(self._loading_prices, return_exceptions=True)
        log_event(_log, logging.INFO, "shutdown ended", store=self.store.path or ":memory:")
        self._log_redaction.close()

    async def serve(self) -> None:
        """Work until SIGTERM or SIGINT, then close. A second signal exits at once."""
        loop = asyncio.get_running_loop()
        stopped = asyncio.Event()

        def on_signal() -> None:
            if stopped.is_set():
                os._exit(130)
            stopped.set()

        for number in _STOP_SIGNALS:
            loop.add_signal_handler(number, on_signal)
        try:
            await stopped.wait()
            await self.close()
        finally:
            for number in _STOP_SIGNALS:
                loop.remove_signal_handler(number)

    # ---- agents ----

    def register(self, agent: Agent) -> Agent:
        """Let `agent` run here."""
        if not isinstance(agent, Agent):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers may be untyped
            raise errors.InvalidArgument("agent", agent, "an Agent")
        _ = agent.model  # an unknown model name fails now, not at the first turn
        if self._drives and agent.mode == "code" and agent.sandbox is None:
            from holdfast.sandbox.worker import require_programs  # only where it is needed

            require_programs()  # a missing sandbox fails now, not in the middle of a turn
        known = self.agents.get(agent.name)
        if self._drives and known is None:
            for tool in agent.tools.values():
                check_deps(self._deps, tool.accepts.deps, f"the tool {tool.name!r} of the agent {agent.name!r}")
            for instruct in () if (choices := prepare(agent).choices) is None else choices.functions:
                check_deps(self._deps, deps_of_context(instruct), f"the instructions of the agent {agent.name!r}")
        if known is None:
            check_workspaces([agent], self.store.path)
            self.agents[agent.name] = agent
            if self._engine is not None:
                self._engine.wake()  # sessions of this agent can continue now
        elif known is not agent:
            raise errors.AgentInvalid(agent.name, "another agent has this name here; give one of them another name")
        for other in prepare(agent).other_agents if known is None else ():
            self.register(other)
        return agent

    # ---- sessions ----

    def session(
        self, id: str, *, agent: Agent[Any, OutputT] | str | None = None, metadata: dict[str, Any] | None = None
    ) -> Session[OutputT]:
        """The session with this id. Nothing is read or written yet; without `agent`, it must exist when it is used.

        `metadata` is a JSON object that tools, hooks and lists can read. The first input stores it; an existing session
        must have the same.
        """
        return self._sessions.handle(id, agent, metadata)

    async def sessions(
        self, *, agent: str | None = None, status: Status | None = None, before: Journal | None = None, limit: int = 50
    ) -> list[Journal]:
        """List sessions, the last changed first."""
        return await self.store.journals(kind="session", agent=agent, status=status, before=before, limit=limit)

    async def spent(self, agent: Agent[Any, Any] | str, *, day: date | None = None) -> Spend:
        """Everything that the sessions of an agent have used, in total or on one day (UTC): what `Limits` counts.

        It is counted with the records and costs one read, however many sessions there are.
        """
        name = agent.name if isinstance(agent, Agent) else agent
        return await self.store.spent(name, None if day is None else (day - date(1970, 1, 1)).days)

    async def forget(
        self,
        session: str,
        *,
        forks: bool = False,
        memory: Sequence[str] | None = None,
        keep_hash: bool = False,
        dry_run: bool = False,
    ) -> Forgotten:
        """Remove a session and everything that belongs to it, in one transaction, also while it runs.

        With it go its sub-agents, background work, waits, inbox, notifications, the attachments that no other session
        has, and the memory of its scope: the one with its id, or those named in `memory`. What it spent stays counted
        for its agent, without the id. Forks read from it, so they raise `SessionForked` unless `forks` go too. With
        `keep_hash` the ids are refused from now on; only a keyed hash of each is stored. docs/keeping.md says what is
        promised about the bytes on the disk.
        """
        self._sessions.check_loop()
        return await retention.forget_session(
            self._context, session, forks=forks, memory=memory, keep_hash=keep_hash, dry_run=dry_run
        )

    async def prune_sessions(
        self, older_than: timedelta | float, *, dry_run: bool = False, limit: int | None = None
    ) -> retention.SessionPruneReport:
        """Forget the sessions that have not changed for so long, at most `limit`. Memory stays.

        A session that waits, runs, or has something to do is kept, and so is one with a fork.
        """
        self._sessions.check_loop()
        return await retention.prune_sessions(self._context, older_than, dry_run=dry_run, limit=limit)

    async def backup(self, path: Path | str, *, with_key: bool = True) -> BackupReport:
        """Copy one state of the store into the new file `path`, and check the copy, while work goes on.

        `BackupRefused` if the file exists. The key file of the store goes along as ``PATH.key`` unless `with_key` is
        False: without it the copy is opened only with that key. A restored copy takes the place of the store: two that
        go on from one state would both do what is left to do.
        """
        self._sessions.check_loop()
        return await self.store.backup(path, budgets.spend_of_record, with_key=with_key)

    async def export_session(
        self,
        session: str,
        path: Path | str,
        *,
        move: bool = False,
        force: bool = False,
        memory: Sequence[str] | None = None,
    ) -> SessionReport:
        """Write a session with everything that belongs to it, its forks too, into the file `path` (``-``: the output).

        Without `move` the file is a copy, and the session must be at rest: `ExportRefused` if it runs, waits, or has
        something in its inbox. With `move` it goes on where the file is imported, in the middle of a turn too, with the
        same idempotency keys; here it can only be read from then on. After a crash, the same call writes the same file.
        `memory` names the scopes of memory that go along, by default the one with its id. An existing file stays
        (`ExportRefused`), unless `force` is set. docs/keeping.md says who must be kept from reading the file.
        """
        self._sessions.check_loop()
        return await exports.export_session(self._context, session, path, move=move, force=force, memory=memory)

    async def import_session(
        self, path: Path | str, *, key: Path | str | None = None, trust: bool = False, dry_run: bool = False
    ) -> SessionReport:
        """Store the session in a file of `export_session` (``-``: the input), all of it in one transaction.

        The file is checked to its end before anything is stored. What it holds decides what its agents do next, so it
        must prove which store wrote it: `SessionFileUntrusted`, unless this store did, or shares its key, or `key`
        names the key file of that store, or you `trust` the file. `ImportRefused` if a session or process with one of
        its ids is here; the same file again is no error and does nothing (`report.fresh` is False).
        """
        self._sessions.check_loop()
        return await exports.import_session(self._context, path, key=key, trust=trust, dry_run=dry_run)

    async def refusals(self, session: str | None = None, *, limit: int = 50) -> list[inbox.RefusedInput]:
        """List refused inputs, newest first: when, why, and how many of that session there were so far."""
        return await self.store.refusals(session, limit=limit)

    async def run(
        self,
        agent: Agent[Any, OutputT] | str,
        prompt: str,
        *,
        session: str | None = None,
        key: str | None = None,
        deadline: timedelta | float | None = None,
        metadata: dict[str, Any] | None = None,
        model: str | None = None,
        settings: Settings | None = None,
    ) -> TurnOutcome[OutputT]:
        """Send a prompt and wait for the outcome, in a new session unless `session` names one.

        `model` and `settings` are for this turn, in place of those of the agent: see `Session.send`.
        """
        name = f"run-{secrets.token_hex(6)}" if session is None else session
        check_id("session", name)
        # Expected before the input is accepted: the end can't be missed, and nothing has to be read.
        with self._context.changes.expecting(name, MAX_INT, ends=True) as expected:
            asked = self._sessions.handle(name, agent, expected=expected)
            options: dict[str, Any] = {"deadline": deadline, "metadata": metadata, "model": model, "settings": settings}
            return await (await asked.send(prompt, key=key, **options)).outcome()

    @overload
    async def call(
        self,
        tool: Tool[..., Awaitable[R]],
        arguments: dict[str, Any] | None = None,
        *,
        session: str,
        key: str | None = None,
        inline_budget: timedelta | float | None = None,
        notify: bool = False,
    ) -> HostCall[R]: ...

    @overload
    async def call(
        self,
        tool: Tool[..., R],
        arguments: dict[str, Any] | None = None,
        *,
        session: str,
        key: str | None = None,
        inline_budget: timedelta | float | None = None,
        notify: bool = False,
    ) -> HostCall[R]: ...

    @overload
    async def call(
        self,
        tool: str,
        arguments: dict[str, Any] | None = None,
        *,
        session: str,
        key: str | None = None,
        inline_budget: timedelta | float | None = None,
        notify: bool = False,
    ) -> HostCall[Any]: ...

    async def call(
        self,
        tool: AnyTool | str,
        arguments: dict[str, Any] | None = None,
        *,
        session: str,
        key: str | None = None,
        inline_budget: timedelta | float | None = None,
        notify: bool = False,
    ) -> HostCall[Any]:
        """Make one tool call outside a turn, with a tool of the session's agent: by the tool, or by its name.

        It runs under the policy, the hooks and the approvals of the agent, with the taint of the session, exactly once.
        When this returns, the call is durable, and has its result or goes on in the background. `inline_budget` bounds
        the wait (by default that of the tool, the agent or the runtime; without any, to the end), which also ends when
        the call needs an approval or an answer. See `HostCall.disposition`. The same `key` with the same content is the
        same call; with other content it raises `CallConflict`. With `notify` the session is notified of its end;
        otherwise the model does not learn of the call.
        """
        self._sessions.check_open()
        session = session_driver.check_session_id(session)
        given = {} if arguments is None else arguments
        return await self._calls.call(tool, given, session, key, inline_budget, notify=notify)

    # ---- processes ----

    @overload
    async def start(
        self, process: definition.ProcessDefinition[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> service.Process[R]: ...

    @overload
    async def start(
        self, process: definition.ProcessDefinition[..., R], /, *args: Any, id: str | None, **kwargs: Any
    ) -> service.Process[R]: ...

    @overload
    async def start(
        self, process: definition.ProcessDefinition[..., R], /, *args: Any, session: str | None, **kwargs: Any
    ) -> service.Process[R]: ...

    @overload
    async def start(self, process: str, /, *args: Any, **kwargs: Any) -> service.Process[Any]: ...

    async def start(
        self,
        process: Any,
        /,
        *args: Any,  # the function's arguments
        id: str | None = None,
        session: str | None = None,
        **kwargs: Any,
    ) -> service.Process[Any]:
        """Start a durable function. When this returns, the start is durable and the process will run to its end.

        The same `id` with the same function and arguments is the same process; with others it raises `ProcessConflict`.
        The `session` it works for gets a notification when it ends.
        """
        self._sessions.check_open()
        return await self.processes.start(process, args, kwargs, id=id, session=session)

    async def signal(self, id: str, name: str, value: object = None, *, key: str | None = None) -> service.Signalled:
        """Send a signal that a process waits for, or will wait for: once for each `key`."""
        self._sessions.check_open()
        return await self.processes.handle(id).signal(name, value, key=key)

    @overload
    async def complete(
        self, model: Model | str, prompt: str, *, output: type[R], instructions: str = "", key: str | None = None
    ) -> R: ...

    @overload
    async def complete(
        self, model: Model | str, prompt: str, *, output: None = None, instructions: str = "", key: str | None = None
    ) -> str: ...

    @overload
    async def complete(
        self, model: Model | str, prompt: str, *, output: Any, instructions: str = "", key: str | None = None
    ) -> Any: ...

    async def complete(
        self,
        model: Model | str,
        prompt: str,
        *,
        output: Any = None,  # a type or a schema
        instructions: str = "",
        key: str | None = None,
    ) -> Any:
        """Ask a model once, without a conversation; returns text, or a value of the type `output`.

        The answer and its usage are recorded in a separate journal; the same `key` returns the recorded answer.
        """
        self._sessions.check_open()
        return await complete_once(self._context, CompletionRequest(model, prompt, output, instructions), key)

    async def requests(self, journal: str) -> list[session_records.RecordedRequest]:
        """The model requests of a journal: of a session, a process, or ``direct/KEY`` of `complete`.

        They are rebuilt from the records alone, without the agents' code.
        """
        return await session_records.read_requests(self.store, journal)

    # ---- stopping and answering ----

    async def abort_calls(self, session: str, reason: str = "") -> list[AbortedCall]:
        """Cancel all tool calls of a session that are under way: those of its turn, and those in the background.

        The turn goes on, and the model reads how each of its calls ended; see `Turn.cancel_call`.
        """
        self._sessions.check_open()
        return await self._sessions.abort_calls(session_driver.check_session_id(session), reason)

    async def resolve(self, key: str, value: object = None, *, error: str | None = None) -> Settlement:
        """Answer a wait, or give the result of a deferred call; `error` reports a failure instead.

        The first answer counts, and all callers get it: see `Settlement.won`. A forged key raises `WaitUnknown`; a
        value that the tool can't return raises `AnswerInvalid`, if the tool is known here. Approvals are answered by
        `approve` and `deny`.
        """
        answer = answer_payload(value, error)
        if error is None:
            await deferrals.check_answer(self.store, self.agents, key, answer)
        settlement = await self.store.resolve(key, answer)
        self._context.poke(settlement.wait.journal)
        return settlement

    async def waits(self, session: str) -> list[Wait]:
        """The open waits of a session that `resolve` can answer."""
        found = await self.store.waits(session, state="open")
        timers = {conversation.deadline_wait(wait.name.partition("/")[0]) for wait in found}
        return [wait for wait in found if wait.name not in timers and not is_pause(wait.name)]

    def wait_token(self, session: str, name: str) -> str:
        """The key with which `resolve` answers a wait of a session."""
        return self.store.wait_token(session, name)

    # ---- approvals ----

    async def approvals(self, session: str | None = None) -> list[Approval]:
        """List the calls that wait for approval, oldest first: of one session, or of all."""
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
        """Let a call run once: exactly as it was shown, or with other `arguments`.

        `always` is a rule to store with the answer, such as `Approval.always`; calls that it allows need no approval
        any more. `digest` makes sure that the question is unchanged. The first answer counts; a late one raises
        `ApprovalUnknown` or `ApprovalClosed` and changes nothing.
        """
        approved = await self._approvals.approve(id, by, arguments, always, digest)
        self._context.poke(approved.host_call or approved.session)
        return approved

    async def deny(self, id: str, reason: str = "", *, by: str | None = None) -> Approval:
        """Refuse a call; the model gets the reason as its result, and the turn continues."""
        denied = await self._approvals.deny(id, reason, by)
        self._context.poke(denied.host_call or denied.session)
        return denied

    # ---- events ----

    def events(self, after: int | str | None = None) -> AsyncGenerator[Event]:
        """Yield the events of all sessions in commit order: after a cursor, or from now on (0: from the start)."""
        return follow_store(self._context.changes, None if after is None else store_cursor(after, self.store))

    def on(
        self,
        kind: Any,  # an event class, several, or Any
        handler: Callable[[Any], Awaitable[None] | None],
        *,
        session: str | None = None,
        after: int | str | None = None,
        concurrency: int = 16,
    ) -> Subscription:
        """Call `handler` with each event of a kind: in order for each session, from a cursor or from now on.

        Up to `concurrency` sessions are handled at once; within one, events are handled one by one.
        """
        self._sessions.check_open()
        subscription = Subscription(self._context, kind, handler, session, after, concurrency)
        self._subscriptions.add(subscription)
        subscription.start(self._subscriptions.discard)
        return subscription

    async def emit(self, request: EmitRequest, *, control: Control | None = None) -> Emitted:
        """Accept a request: the receipt names the turn at once; awaiting it gives the outcome."""
        return await emit(self._context, request, control)

    # ---- triggers ----

    def every(
        self,
        name: str,
        source: Source,
        target: object,
        /,
        *,
        options: TriggerOptions | None = None,
        **arguments: Any,  # the arguments of the target
    ) -> Trigger:
        """Start `target` at each occurrence of `source`, exactly once, also across restarts and processes.

        `source` is `hf.cron`, `hf.interval`, `hf.watch`, `hf.webhook` or `hf.event`; `target` is an agent or a session
        (with ``prompt=``), or a process with its arguments. Texts may have placeholders such as ``{date}``. The trigger
        is durable once you have awaited it. The same name with another definition is its next revision.
        """
        return self.triggers.every(name, source, target, arguments, options)

    async def deliver_webhook(self, name: str, headers: Mapping[str, str], body: bytes) -> Delivery:
        """Hand a request to the trigger `name`; returns accepted, duplicate or refused, and the HTTP status."""
        return await self.triggers.deliver_webhook(name, headers, body)

    async def emit_event(self, name: str, payload: object = None, *, key: str | None = None) -> EventReceipt:
        """Fire all triggers on the event `name`, once for each `key`."""
        return await self.triggers.emit_event(name, payload, key=key)

    # ---- notifications ----

    async def notify(
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
        payload: object = None,
    ) -> Notification:
        """Notify a session: at the next safe point of its turn, or as a new turn if it is idle.

        The same `key` with the same content is one notification. It is delivered from `at` on, until `expires`. The
        model reads title and body; `payload` is a JSON value for your application (`Notification.payload`).
        """
        self._sessions.check_open()
        found, fresh = await self.store.notify(
            session_driver.check_session_id(session),
            kind=kind,
            title=title,
            body=body,
            key=key,
            priority=priority,
            due=session_driver.wall_milliseconds(at),
            expires=session_driver.wall_milliseconds(expires),
            payload=payload,
        )
        if fresh and (at is None or found.due <= self.store.clock.read().wall):
            self._context.poke(session)
        return found

    def memory(self, scope: str, *, by: str | None = None) -> Memory:
        """The memory of a scope: texts that outlive sessions, mirrored as files next to the store.

        `by` names the writer in the history.
        """
        return self._context.memories.memory(scope, by)

    def gate_changed(self, session: str | None = None) -> None:
        """Ask `can_deliver` again, also for pumps: for one session, or for all."""
        self.notifications.gate_changed(session)
        if self._engine is None:
            return
        if session is None:
            self._engine.tick()
        else:
            self._engine.poke(session, again=True)

    async def recover(self) -> list[tasks.RecoveredTask]:
        """Recover the background calls of dead processes; returns each with the action taken.

        Opening a runtime does the same without a report. Calls of living processes are not touched.
        """
        found = await self.tasks.recover()
        if self._engine is not None:
            self._engine.wake()
        return found

    # ---- the engine ----

    def _drive_of(self, work: Work | str, stops_only: bool) -> JournalDrive | None:
        session = work if isinstance(work, str) else work.journal
        if is_pump_id(session):
            return PumpRecovery(self._context, session)
        if is_trigger_id(session):
            return None if self._only is not None else self.triggers.drive_of(session)
        if is_process_journal(session) or is_task_id(session):
            return self.processes.drive_of(work, self._only)
        if self._only is not None and session != self._only and session not in self.children.mine:
            return None
        known = isinstance(work, str) or work.agent in self.agents
        if not known and not isinstance(work, str):
            self._sessions.warn_missing(work.agent or "", session)
        return session_driver.SessionDrive(self._context, session, stops_only=stops_only) if known else None

    def _stopped(self, journal: str) -> None:
        """Report that the engine has given up a journal to the callers that wait for it."""
        self._context.changes.ended(journal)
        error = self._sessions.stuck(journal)
        if error is not None and is_process_journal(journal):
            self.processes.tell_stuck(journal, error)

    @property
    def active(self) -> int:
        """Number of sessions that are being driven."""
        return 0 if self._engine is None else self._engine.active


def close_after(runtime: Runtime, rest: Callable[[], Awaitable[object]]) -> None:
    """Let `runtime.close` call `rest` at its end, to close the resources of its opener."""
    runtime._close_rest = rest  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


def context_of(runtime: Runtime) -> context.RuntimeContext:
    """The inner parts of a runtime, for the command line and for tests."""
    return runtime._context  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


# ---- opening ----

MAX_RUNTIMES: Final = 16
"""Runtimes of one process that may drive the same store: each polls for work and has its own writer."""
_drivers: Final = Counter[str]()


@contextmanager
def count_driver(path: Path | str | None) -> Generator[None]:
    """Count a runtime that drives the store at `path` inside the block; raises `TooManyRuntimes`."""
    if path is None:
        yield
        return
    store = os.path.realpath(path)
    if _drivers[store] >= MAX_RUNTIMES:
        raise errors.TooManyRuntimes(store, MAX_RUNTIMES)
    _drivers[store] += 1
    try:
        yield
    finally:
        _drivers[store] -= 1
        if not _drivers[store]:
            del _drivers[store]


openings: Final = eventloop.PerLoop(lambda: Turnstile(3))
"""Opening a runtime takes about 2 ms of the event loop: only a few of many `hf.run` do so in one round."""
