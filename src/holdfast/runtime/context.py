"""The two contexts of a drive: `RuntimeContext`, shared by all drives, and `TurnHost`, a session as its turn sees it.

The third one, `ToolHost`, is what a tool may use of the runtime: see `runtime.tool_host`. The memory of a runtime with
its mirror, and the access to its secrets, are here as well.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import (
    Callable,  # noqa: TC003
    Mapping,  # noqa: TC003
)
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from holdfast.errors import Halted, HoldfastError, JournalCorrupt, RuleCorrupt, Suspended
from holdfast.messages import Message, ModelReply
from holdfast.models.prices import reply_cost
from holdfast.policy.approvals import Approved, Denied, Question, is_allowed_by_stored
from holdfast.policy.hooks import ToolDecision
from holdfast.policy.limits import OutOf
from holdfast.processes.state import Registration, TaskCall
from holdfast.records import Record
from holdfast.runtime.waits import JournalWaits
from holdfast.secrets.forms import schema_words
from holdfast.secrets.sources import SecretAccess, make_secrets
from holdfast.store.paths import memory_folder
from holdfast.triggers.definition import TriggerCommand
from holdfast.triggers.state import TriggerState
from holdfast.turns.compaction.apply import RecordedCompaction
from holdfast.turns.conversation import CancelRequest, CheckpointOutcome, UserInput
from holdfast.turns.machine import Ending
from holdfast.turns.programs import ChangedVariables

if TYPE_CHECKING:
    from holdfast.agent import Agent
    from holdfast.events import LiveEvent
    from holdfast.memory import Memory, Mirror
    from holdfast.messages import UserMessage
    from holdfast.models.prices import Price
    from holdfast.policy.hooks import Hooks
    from holdfast.policy.rules import Subject
    from holdfast.processes.sub_agents import SubAgents
    from holdfast.processes.tasks import Tasks
    from holdfast.records import Admitted
    from holdfast.runtime.changes import ChangeFeed
    from holdfast.runtime.hooks import AfterTurnHooks, HookRunner
    from holdfast.runtime.programs import Sandboxes
    from holdfast.runtime.session import Sessions
    from holdfast.runtime.session_driver import Turnstile
    from holdfast.runtime.tool_call import AuthorizedCall
    from holdfast.runtime.tool_execution import SpillableCall
    from holdfast.runtime.tool_host import ToolHost
    from holdfast.sandbox import Sandbox
    from holdfast.secrets.sources import SecretsInput
    from holdfast.store import Store
    from holdfast.turns.conversation import OpenTurn


_log: Final = logging.getLogger("holdfast.driver")
MISSING_TOOL_MS: Final = 24 * 3_600_000
"""Default time that a background call waits for a process that has its tool."""


class MirroredMemory:
    """The memory of a runtime, with its mirror beside the store at `path`; None: without a mirror.

    Most runtimes have no memory: the mirror and its dependencies (pydantic) are imported on first use.
    """

    def __init__(self, store: Store, path: Path | str | None) -> None:
        self._store = store
        self._path = None if path is None else Path(path)
        self._mirror: Mirror | None = None

    def memory(self, scope: str, by: str | None = None) -> Memory:
        """The memory of a scope."""
        from holdfast.memory.handle import Memory  # noqa: PLC0415

        return Memory(self._store, scope, by=by, changed=self._changed)

    async def begin(self) -> None:
        """Start the mirror if there is memory or a folder, and take in changes of its files."""
        if self._path is None:
            return
        if await asyncio.to_thread(memory_folder(self._path).exists) or await self._store.memory_scopes():
            self._start(self._path)

    def _start(self, path: Path) -> Mirror:
        from holdfast.memory.mirror import Mirror  # noqa: PLC0415

        if self._mirror is None:
            self._mirror = Mirror(self._store, memory_folder(path))
            self._mirror.start()
        return self._mirror

    def _changed(self) -> None:
        if self._path is not None:
            self._start(self._path).changed()

    async def stop(self) -> None:
        """Write the last changes, and stop."""
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
    turnstile: Turnstile
    lease_ms: int
    prices: Mapping[str, Price]
    can_deliver: Callable[[str], bool]
    """The host's answer to: may notifications enter this session now?"""
    process: str
    """Name of this operating-system process in records."""
    memories: MirroredMemory
    secrets: SecretAccess
    hooks: tuple[Hooks, ...] = ()
    """Hooks of the runtime: they run for all agents, after the agent's own."""
    inline_budget: float | None = None
    """Seconds that a model waits for a tool call unless the tool or the agent says otherwise; None: no bound."""
    missing_tool_ms: int = MISSING_TOOL_MS
    """Time that a background call waits for a process that has its tool."""
    held_inputs: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    """Inputs (session, key) that must not begin a turn here yet: their `Control` has no room."""
    turn_hooks: AfterTurnHooks = field(init=False)
    tasks: Tasks = field(init=False)
    children: SubAgents = field(init=False)
    programs: Sandboxes = field(init=False)
    sessions: Sessions = field(init=False)


class TurnHost:
    """A session as its turn sees it: waits, budgets, rules, background tasks, and the events and inputs of the session.

    `SessionDrive` overrides the second half, which depends on the drive. A replay check uses it as it is here:
    without observers and inputs.
    """

    def __init__(self, context: RuntimeContext, session: str) -> None:
        self.context = context
        self.session = session
        self._agent: Agent | None = None
        """The agent that has the session, if this runtime has it."""
        self._open: OpenTurn | None = None
        """The turn under way."""
        self.show: Callable[[type[LiveEvent], str, dict[str, Any]], None] = _drop_event
        """Publish a live event."""

    @property
    def tool_host(self) -> ToolHost | None:
        """The runtime as tools see it (``ctx.host``); None in a replay check."""
        return None

    @cached_property
    def waits(self) -> JournalWaits:
        """The waits of the session."""
        return JournalWaits(self.context.store, self.session)

    # ---- rules, budgets and prices ----

    async def is_always_allowed(self, agent: str, subject: Subject) -> bool:
        """Whether a person has stored a rule that allows this call."""
        try:
            stored = await self.context.store.rules(agent)
        except RuleCorrupt as error:
            _log.error("%s; nothing is allowed by stored rules", error)
            return False
        return is_allowed_by_stored([rule.body for rule in stored], subject)

    def price(self, reply: ModelReply, asked: str) -> float | None:
        """Cost of a reply in US dollars, by the model that gave it or else the one that was asked; None if unknown."""
        return reply_cost(reply, asked, self.context.prices)

    async def quarantine(self, reason: str) -> JournalCorrupt:
        """Take the session out of use because its journal can't be trusted; returns the error to raise."""
        await self.context.store.quarantine(self.session, reason)
        return JournalCorrupt(self.session, 0, reason)

    # ---- programs and background tasks ----

    def sandbox(self, own: Sandbox | None) -> Sandbox:
        """The sandbox for programs: the agent's `own`, or that of the runtime."""
        return self.context.programs.given(own)

    async def task_for_call(self, key: str) -> str | None:
        """The id of the background task that carries out the call `key`, if there is one."""
        return await self.context.tasks.task_for_call(self.session, key)

    async def start_task(self, call: AuthorizedCall) -> str:
        """Carry out a call in the background; returns the id of the task once it is durable."""
        return await self.context.tasks.start(self.session, *self._names(), call)

    async def adopt_task(self, work: SpillableCall) -> str:
        """Let a call that is running go on in the background; returns the id of the task once it is durable."""
        return await self.context.tasks.adopt(self.session, *self._names(), work)

    async def stop_task(self, made: asyncio.Future[str]) -> None:
        """Cancel a task that is being made: its turn is stopped."""
        with suppress(HoldfastError):  # the task was not made
            await self.context.tasks.cancel(await made, "the turn that asked for it was stopped")

    def _names(self) -> tuple[str, str]:
        return "" if self._agent is None else self._agent.name, "" if self._open is None else self._open.run

    # ---- the drive under way: SessionDrive overrides these ----

    def after_turn(self, hooked: HookRunner, ending: Ending) -> None:
        """Run the `after_turn` hooks of a turn that has ended, without waiting for them."""

    @property
    def quiet(self) -> bool:
        """Whether nothing has come for the session that `steering` would have to look at."""
        return True

    async def steering(self) -> list[tuple[Admitted, UserMessage]]:
        """Take the inputs that enter the running turn now."""
        return []

    async def attend(self) -> None:
        """Look at all that has come for the session. Does not return if that stops the turn."""

    def mode_of(self, agent: str) -> str | None:  # noqa: ARG002
        """The mode of an agent that this session could be handed over to; None if it could not."""
        return None

    async def boundary(self) -> None:
        """Pass a point between two effects: other sessions may go first, and a closing runtime stops the drive here."""

    def listen(self, heard: Callable[[], None] | None) -> None:
        """Call `heard` whenever something comes for the session; None ends that."""

    def worked(self) -> tuple[int, int]:
        """Milliseconds of work on the session up to its last record of that, and the time of that record."""
        return 0, 0

    def let_run(self, ms: int | None) -> None:
        """Look at budgets of time again after so many milliseconds; None: no more."""


def _drop_event(kind: type[LiveEvent], run: str, fields: dict[str, Any]) -> None:
    """Drop a live event: a replay check has no observers."""


class RuntimeClosing(Exception):
    """The runtime is being closed: the drive stops here, and the next one goes on."""


def is_control_flow(error: BaseException) -> bool:
    """Whether an error stops the turn or the process, rather than being a failure of the code that raised it.

    A cancellation of the running task is control flow. One that only passed through an awaited future is a failure.
    """
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is None or task.cancelling() > 0
    return isinstance(error, Halted | Suspended | RuntimeClosing | KeyboardInterrupt | GeneratorExit)


def make_secret_access(store: Store, given: SecretsInput) -> SecretAccess:
    """Access to the secrets of the host; they are hidden in everything that is written to `store`."""
    access = SecretAccess(make_secrets(given), store.redactor)
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
    """Field names and tags of everything that we write as JSON: no secret may be one of these words."""
    records = (Record, ModelReply, Message, UserInput, CancelRequest, CheckpointOutcome, Ending, TaskCall, Registration)
    return schema_words(
        *records,
        TriggerState,
        TriggerCommand,
        Question,
        Approved,
        Denied,
        ToolDecision,
        RecordedCompaction,
        ChangedVariables,
        OutOf,
    )
