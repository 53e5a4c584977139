"""What a turn needs from whoever drives it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import (
    Callable,  # noqa: TC003
    Mapping,  # noqa: TC003
)
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

from holdfast.errors import Halted, Suspended

if TYPE_CHECKING:
    from holdfast.agent import Agent
    from holdfast.errors import JournalCorrupt
    from holdfast.events import LiveEvent
    from holdfast.memory.mirror import Mirroring
    from holdfast.messages import ModelReply, UserMessage
    from holdfast.models.prices import Price
    from holdfast.policy.hooks import Hooks
    from holdfast.policy.limits import Used
    from holdfast.policy.rules import Subject
    from holdfast.processes.sub_agents import Children
    from holdfast.processes.tasks import Desk
    from holdfast.records import Admitted
    from holdfast.runtime.changes import Rings, Watch
    from holdfast.runtime.hooks import AfterTurnHooks, HookRunner
    from holdfast.runtime.programs import Sandboxes
    from holdfast.runtime.session_driver import Turnstile
    from holdfast.runtime.tool_call import Call, SpillableCall
    from holdfast.runtime.tool_host import Services
    from holdfast.sandbox import Sandbox
    from holdfast.secrets.sources import Lender
    from holdfast.store import Store
    from holdfast.store.contract import Wait
    from holdfast.store.spending import Spend
    from holdfast.turns import Ending


MISSING_TOOL_MS: Final = 24 * 3_600_000


@dataclass(slots=True)
class Surround:
    """What all drives of one runtime share."""

    store: Store
    agents: Mapping[str, Agent]
    watch: Watch
    rings: Rings
    turnstile: Turnstile
    lease_ms: int
    prices: Mapping[str, Price]
    can_deliver: Callable[[str], bool]
    """Whether the host lets notifications into a session now."""
    me: str
    """This process, as records name it."""
    mirroring: Mirroring
    lender: Lender
    hooks: tuple[Hooks, ...] = ()
    """What the host sees and decides, for all agents."""
    inline_budget: float | None = None
    """Seconds that a model waits for a call, where neither tool nor agent says; None: without end."""
    missing_tool_ms: int = MISSING_TOOL_MS
    """How long a background call is left to a process that has its tool, in milliseconds."""
    held_inputs: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    """Inputs by session and key that begin no turn here yet: emitted with a `Control` that has no room."""
    turn_hooks: AfterTurnHooks = field(init=False)
    desk: Desk = field(init=False)
    children: Children = field(init=False)
    programs: Sandboxes = field(init=False)


class Stopping(Exception):
    """The runtime is being closed; whoever opens the store next goes on from here."""


class Surroundings(Protocol):
    """The session around a turn: who watches, what comes in, what it waits for."""

    session: str
    host: Services | None
    """What the tools of Holdfast itself may use."""
    hooks: tuple[Hooks, ...]
    inline_budget: float | None

    def show(self, kind: type[LiveEvent], run: str, fields: dict[str, Any], /) -> None:
        """Show a live event to whoever watches."""
        ...

    def after_turn(self, hooked: HookRunner, ending: Ending) -> None:
        """Run the `after_turn` hooks of a turn that has ended; nothing waits for them."""
        ...

    @property
    def quiet(self) -> bool:
        """Whether nothing has come for the session that `steering` would have to look at."""
        ...

    async def steering(self) -> list[tuple[Admitted, UserMessage]]:
        """Inputs that want to enter the running turn now."""
        ...

    async def attend(self) -> None:
        """Look at what has come for the session so far; does not return if the turn is to be stopped because of it."""
        ...

    def mode_of(self, agent: str) -> str | None:
        """The mode of an agent that could have the session here; None for one that could not."""
        ...

    async def boundary(self) -> None:
        """A place between two effects: others may go first, and the drive may be stopped here."""
        ...

    def listen(self, heard: Callable[[], None] | None) -> None:
        """Have this told when something has come for the session, an answer for one; None: no more."""
        ...

    async def always(self, agent: str, subject: Subject) -> bool:
        """Whether a person has stored a rule that allows this call."""
        ...

    async def mark_written(self, subject: Subject, by: str) -> None:
        """Mark the files that a tainted call is about to write."""
        ...

    async def writer_of(self, subject: Subject) -> str | None:
        """The tainted record that wrote one of the files that a call reads."""
        ...

    async def open_wait(
        self, name: str, deadline: int | None, *, kind: str | None = None, body: bytes | None = None
    ) -> Wait:
        """The wait as it now is."""
        ...

    async def find_wait(self, name: str) -> Wait | None:
        """The wait as the store has it; None where there is none."""
        ...

    async def quarantine(self, reason: str) -> JournalCorrupt:
        """Take the session out of use, since its journal can't be trusted; answers the error that says so."""
        ...

    async def close_wait(self, name: str) -> None:
        """Nobody can answer a wait any more, if nobody has."""
        ...

    def token(self, name: str) -> str:
        """The secret that resolves a wait."""
        ...

    def sandbox(self, given: Sandbox | None) -> Sandbox:
        """Where programs run: in the one that was given, or in that of the runtime."""
        ...

    async def spent(self, agent: str, day: int | None) -> Spend:
        """What an agent has used on a day, or in all."""
        ...

    def worked(self) -> tuple[int, int]:
        """How many milliseconds the session was worked on, up to its last record of that; and when that was."""
        ...

    def let_run(self, ms: int | None) -> None:
        """How long the turn may go on before budgets of time are looked at again; None: as long as it takes."""
        ...

    async def below(self, run: str | None) -> Used:
        """What the sub-agents of a turn have used, or of all turns."""
        ...

    async def spilled(self, key: str) -> str | None:
        """The task in which the call `key` goes on in the background, if there is one."""
        ...

    async def start_task(self, call: Call) -> str:
        """Carry out a call in the background; answers the id of the task, when it is durable."""
        ...

    async def adopt_task(self, work: SpillableCall) -> str:
        """Let a call that is under way go on in the background; answers the id of the task, when it is durable."""
        ...

    async def stop_task(self, made: asyncio.Future[str]) -> None:
        """Cancel a task that is being made: the turn that asked for it is stopped."""
        ...

    def price(self, reply: ModelReply, asked: str) -> float | None:
        """What a reply cost, if anybody knows: by the name of who gave it, or of who was asked."""
        ...


def passes(error: BaseException) -> bool:
    """Whether an error is not about what was called: the turn is stopped, waits, or the process is to end.

    A cancellation that nobody asked us for is: something that it awaited was cancelled.
    """
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is None or task.cancelling() > 0
    return isinstance(error, Halted | Suspended | Stopping | KeyboardInterrupt | GeneratorExit)
