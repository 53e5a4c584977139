"""`RuntimeContext`: the parts of a runtime that all its drives share, with its memory and access to its secrets."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.deps import NO_DEPS
from holdfast.errors import Halted, Suspended
from holdfast.messages import Message, ModelReply
from holdfast.policy.approvals import Approved, Denied, Question
from holdfast.policy.hooks import Hooks, ToolDecision
from holdfast.policy.limits import MISSING_TOOL_MS, OutOf
from holdfast.processes.state import Registration, TaskCall
from holdfast.records import Record
from holdfast.runtime.session_records import RecentConversations
from holdfast.secrets import forms, sources
from holdfast.store.paths import memory_folder
from holdfast.triggers import definition, state
from holdfast.turns.compaction.plan import RecordedCompaction
from holdfast.turns.conversation import CancelRequest, CheckpointOutcome, UserInput
from holdfast.turns.machine import Ending
from holdfast.turns.programs import ChangedVariables

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from holdfast.agent import Agent
    from holdfast.engine.embedded import EmbeddedEngine
    from holdfast.memory import Memory, Mirror
    from holdfast.models.prices import Price
    from holdfast.processes import service, sub_agents
    from holdfast.processes.tasks import Tasks
    from holdfast.runtime import drive, session
    from holdfast.runtime.changes import ChangeFeed
    from holdfast.runtime.hooks import AfterTurnHooks
    from holdfast.runtime.programs import Sandboxes
    from holdfast.store import Store


class MirroredMemory:
    """The memory of a runtime, mirrored to files at `path`; None: no mirror.

    Most runtimes have no memory: the mirror and pydantic are imported on first use.
    """

    def __init__(self, store: Store, path: Path | str | None) -> None:
        self._store = store
        self._path = None if path is None else Path(path)
        self._mirror: Mirror | None = None

    def memory(self, scope: str, by: str | None = None) -> Memory:
        from holdfast.memory.handle import Memory

        return Memory(self._store, scope, by=by, changed=self._changed)

    @property
    def mirrored(self) -> bool:
        """True if this runtime has, or may start, a mirror."""
        return self._path is not None

    async def begin(self) -> None:
        """Start the mirror if the store has memory or the folder exists, and take in changes of its files."""
        if self._path is None:
            return
        if await asyncio.to_thread(memory_folder(self._path).exists) or await self._store.memory_scopes():
            self._start(self._path)

    def _start(self, path: Path) -> Mirror:
        from holdfast.memory.mirror import Mirror

        if self._mirror is None:
            self._mirror = Mirror(self._store, memory_folder(path))
            self._mirror.start()
        return self._mirror

    def _changed(self) -> None:
        if self._path is not None:
            self._start(self._path).changed()

    async def stop(self) -> None:
        if self._mirror is not None:
            with suppress(TimeoutError):  # another process has the folder and writes it, or the next one does
                async with asyncio.timeout(1):
                    await self._mirror.stop()


@dataclass(slots=True)
class RuntimeContext:
    """The parts of one runtime that all its drives share."""

    store: Store
    agents: Mapping[str, Agent]
    changes: ChangeFeed
    turnstile: drive.Turnstile
    lease_ms: int
    prices: Mapping[str, Price]
    can_deliver: Callable[[str], Awaitable[bool]]
    """The host's answer to: may notifications enter this session now?"""
    process: str
    """Name of this operating-system process in records."""
    memories: MirroredMemory
    secrets: sources.SecretAccess
    hooks: tuple[Hooks, ...] = ()
    """Hooks of the runtime: they run for all agents, after the agent's own."""
    deps: object = NO_DEPS
    """Dependencies from the host for tools, hooks and processes."""
    inline_budget: float | None = None
    """Seconds that a model waits for a tool call unless the tool or the agent sets another time; None: no bound."""
    missing_tool_ms: int = MISSING_TOOL_MS
    """Time that a background call waits for a process that has its tool."""
    held_inputs: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    """Inputs (session, key) that must not begin a turn here yet: their `Control` has no room."""
    conversations: RecentConversations = field(default_factory=RecentConversations)
    engine: EmbeddedEngine | None = None
    """None: another process drives."""
    turn_hooks: AfterTurnHooks = field(init=False)
    processes: service.Processes = field(init=False)
    tasks: Tasks = field(init=False)
    children: sub_agents.SubAgents = field(init=False)
    programs: Sandboxes = field(init=False)
    sessions: session.Sessions = field(init=False)

    def poke(self, journal: str) -> None:
        """Let the engine look at a journal that this process has changed."""
        if self.engine is not None:
            self.engine.poke(journal)


class RuntimeClosing(Exception):
    """The runtime is being closed: the drive stops here, and the next one continues."""


def is_control_flow(error: BaseException) -> bool:
    """True if an error stops the turn or the process; False if it is a failure of the code that raised it.

    A cancellation of the running task is control flow. One that only passed through an awaited future is a failure.
    """
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is None or task.cancelling() > 0
    return isinstance(error, Halted | Suspended | RuntimeClosing | KeyboardInterrupt | GeneratorExit)


def make_secret_access(store: Store, given: sources.SecretsInput) -> sources.SecretAccess:
    """Access to the secrets of the host; they are hidden in everything that is written to `store`."""
    access = sources.SecretAccess(sources.make_secrets(given), store.redactor)
    if given is not None:
        store.redactor.reserve(_journal_words())
        access.hide_environment()
    return access


def hide_secret(store: Store, name: str, value: str) -> None:
    """Hide a value that is not one of the host's secrets: the key of a webhook, say."""
    store.redactor.reserve(_journal_words())
    store.redactor.register(name, value)


@cache
def _journal_words() -> frozenset[str]:
    """Field names and tags of all JSON that we write: no secret may be one of these words."""
    records = (Record, ModelReply, Message, UserInput, CancelRequest, CheckpointOutcome, Ending, TaskCall, Registration)
    states = (state.TriggerState, definition.TriggerCommand, RecordedCompaction, ChangedVariables)
    return forms.schema_words(*records, *states, Question, Approved, Denied, ToolDecision, OutOf)
