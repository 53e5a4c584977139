"""The context of a durable function: every effect goes through it and is recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from holdfast.effects.replay import Repeat
from holdfast.tools.definition import DEFERRAL_TIMEOUT

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from datetime import datetime, timedelta
    from uuid import UUID

    from holdfast.agent import Agent
    from holdfast.models import Model
    from holdfast.processes.definition import AnyProcess
    from holdfast.processes.lists import ProcessLine
    from holdfast.processes.run import ProcessRun
    from holdfast.secrets.sources import SecretAccess


class Child(Protocol):
    """A child process, as its parent sees it."""

    @property
    def id(self) -> str:
        """Its id."""
        ...

    async def result(self) -> Any:  # noqa: ANN401  whatever the function gave
        """Its result, as soon as it has ended. Nothing is held in memory meanwhile."""
        ...

    async def status(self) -> ProcessLine:
        """Its line in lists. A replay answers what the first call answered."""
        ...

    async def signal(self, name: str, value: object = None) -> None:
        """Send a signal that it waits for, or will wait for."""
        ...

    async def cancel(self, reason: str = "") -> None:
        """Ask for it to be cancelled."""
        ...


class Awaited(Protocol):
    """A deferral: a key that you pass on, and its answer."""

    @property
    def key(self) -> str:
        """The key for `runtime.resolve`. It stays the same after a crash."""
        ...

    @property
    def deadline(self) -> datetime:
        """When it is too late to answer."""
        ...

    async def answer(self, *, returns: type[Any] | None = None) -> Any:  # noqa: ANN401  whatever was answered
        """The answer for the key, as soon as it comes. Nothing is held in memory meanwhile."""
        ...


class ProcessContext:
    """The first argument of a durable function.

    Each call is recorded under a key that is a path: code in plain `asyncio.gather` or `TaskGroup` branches is told
    apart. A function that runs again after a crash gets its recorded answers until it is where it was. What is not
    asked for here (a request, a file, the clock) is done again each time.
    """

    __slots__ = ("_run",)

    def __init__(self, run: ProcessRun) -> None:
        self._run = run

    @property
    def id(self) -> str:
        """The id of the process."""
        return self._run.id

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1."""
        return self._run.attempt

    @property
    def idempotency_key(self) -> str:
        """Inside a step: a key that is the same for each repetition of that step. Outside: that of the process."""
        return self._run.idempotency_key()

    @property
    def secrets(self) -> SecretAccess:
        """``ctx.secrets["NAME"]``: hidden in all that is written."""
        return self._run.secrets

    async def step(
        self,
        name: str,
        function: Callable[..., Any],
        /,
        *args: object,
        repeat: Repeat = Repeat.KEYED,
        returns: type[Any] | None = None,
        **kwargs: object,
    ) -> Any:  # noqa: ANN401  whatever the function gives, after its way through JSON
        """Call `function(*args, **kwargs)` once and record its result.

        A step that was interrupted runs again with the same `idempotency_key`, unless `repeat` is `Repeat.NEVER`: then
        it ends as `EffectUnknown`. A plain function runs in a thread. The arguments are recorded: secrets are not for
        them. The value is of the type `returns`, or else of the one that the function declares to return.
        """
        return await self._run.step(name, function, args, kwargs, repeat, returns)

    async def sleep(self, span: timedelta | float) -> None:
        """Sleep for a timedelta or for seconds. Any process may go on afterwards."""
        await self._run.sleep(span)

    async def wait(
        self, name: str, timeout: timedelta | float | None = None, *, returns: type[Any] | None = None
    ) -> Any:  # noqa: ANN401  whatever was signalled
        """The next signal called `name`, also one that came before; `WaitExpired` when none comes in time."""
        return await self._run.wait(name, timeout, returns)

    async def defer(self, *, timeout: timedelta | float = DEFERRAL_TIMEOUT) -> Awaited:
        """Open a key that is answered once from outside, with `runtime.resolve(key, value)`.

        ``pending = await ctx.defer(timeout=timedelta(days=2))``, pass ``pending.key`` on in a step, and then
        ``await pending.answer()``: `WaitExpired` when nobody answered within `timeout` (7 days).
        """
        return await self._run.defer(timeout)

    async def gather(self, *work: Awaitable[Any]) -> list[Any]:
        """Run all at once; answers their values in order. All end before the first failure is raised.

        Each is a branch of its own.
        """
        return await self._run.gather(work)

    async def race(self, *work: Awaitable[Any]) -> tuple[int, Any]:
        """Run all at once; answers the index of the first to finish, and its value. The others are cancelled.

        Who was first is recorded: it stays so.
        """
        return await self._run.race(work)

    async def now(self) -> datetime:
        """The time in UTC. A replay answers what the first call answered."""
        return await self._run.sample("now")

    async def random(self) -> float:
        """A recorded random number from 0 to 1."""
        return await self._run.sample("random")

    async def uuid(self) -> UUID:
        """A recorded random UUID."""
        return await self._run.sample("uuid")

    async def version(self, name: str) -> bool:
        """Whether changed code may take its new path: False in a process that passed here before the change.

        ``if await ctx.version("send-by-post"): ... else: ...`` lets processes that run go on as they began.
        """
        return await self._run.version(name)

    async def start(self, process: AnyProcess | str, /, *args: Any, id: str | None = None, **kwargs: Any) -> Child:  # noqa: ANN401
        """Start another process, once."""
        return await self._run.start(process, args, kwargs, id)

    async def signal(self, id: str, name: str, value: object = None) -> None:
        """Signal another process, once."""
        await self._run.signal(id, name, value)

    async def run_agent(
        self,
        agent: Agent | str,
        prompt: str,
        *,
        session: str | None = None,
        deadline: timedelta | float | None = None,
    ) -> Any:  # noqa: ANN401  text, or a value of the agent's output
        """Ask an agent, in a session of its own unless you name one, and wait for its answer.

        The answer is text, or a value of the agent's `output` type. `AgentTurnFailed` when the turn did not complete.
        """
        return await self._run.run_agent(agent, prompt, session, deadline)

    async def complete(
        self,
        model: Model | str,
        prompt: str,
        *,
        output: Any = None,  # noqa: ANN401  a type or a schema
        instructions: str = "",
    ) -> Any:  # noqa: ANN401  text, or a value of the type that was asked for
        """Ask a model once, without a conversation. The reply is recorded with its usage."""
        return await self._run.complete(model, prompt, output, instructions)
