"""What a durable function may use. Everything it does to the world goes through here, and is recorded."""

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
    """A process that another one started, as that one sees it."""

    @property
    def id(self) -> str:
        """Its id."""
        ...

    async def result(self) -> Any:  # noqa: ANN401  whatever the function gave
        """What it gave, as soon as it has ended; nothing is held in memory meanwhile."""
        ...

    async def status(self) -> ProcessLine:
        """How it stands, as it was when this was asked for the first time."""
        ...

    async def signal(self, name: str, value: object = None) -> None:
        """Answer what it waits for, or will wait for."""
        ...

    async def cancel(self, reason: str = "") -> None:
        """Ask for it to be cancelled."""
        ...


class Awaited(Protocol):
    """A key that was given out, and the answer to it."""

    @property
    def key(self) -> str:
        """What whoever answers has to show; the same after a crash."""
        ...

    @property
    def deadline(self) -> datetime:
        """When it is too late to answer."""
        ...

    async def answer(self, *, returns: type[Any] | None = None) -> Any:  # noqa: ANN401  whatever was answered
        """What was given for the key, as soon as it is; nothing is held in memory meanwhile."""
        ...


class ProcessContext:
    """What a durable function is given.

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
        """Which attempt this is; they count from 1."""
        return self._run.attempt

    @property
    def idempotency_key(self) -> str:
        """Within a step: the same for every time that step is run, and for no other. Else that of the process."""
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
        """Call `function(*args, **kwargs)` once and remember what it gave.

        A step that was interrupted runs again with the same `idempotency_key`, unless `repeat` is `Repeat.NEVER`: then
        it ends as `EffectUnknown`. A plain function runs in a thread. The arguments are recorded: secrets are not for
        them. The value is of the type `returns`, or else of the one that the function declares to return.
        """
        return await self._run.step(name, function, args, kwargs, repeat, returns)

    async def sleep(self, span: timedelta | float) -> None:
        """Go on after this time (a timedelta, or seconds), in whichever process is there then."""
        await self._run.sleep(span)

    async def wait(
        self, name: str, timeout: timedelta | float | None = None, *, returns: type[Any] | None = None
    ) -> Any:  # noqa: ANN401  whatever was signalled
        """The next signal called `name`, also one that came before; `WaitExpired` when none comes in time."""
        return await self._run.wait(name, timeout, returns)

    async def defer(self, *, timeout: timedelta | float = DEFERRAL_TIMEOUT) -> Awaited:
        """A key that somebody outside answers once, with `runtime.resolve(key, value)`: also before it is waited for.

        ``pending = await ctx.defer(timeout=timedelta(days=2))``, pass ``pending.key`` on in a step, and then
        ``await pending.answer()``: `WaitExpired` when nobody answered within `timeout` (7 days).
        """
        return await self._run.defer(timeout)

    async def gather(self, *work: Awaitable[Any]) -> list[Any]:
        """Do all at once; their values in the order given. All come to their end, then the first that failed is raised.

        Each is a branch of its own.
        """
        return await self._run.gather(work)

    async def race(self, *work: Awaitable[Any]) -> tuple[int, Any]:
        """Do all at once; which was first, from 0, and its value. The others are cancelled.

        Who was first is recorded: it stays so.
        """
        return await self._run.race(work)

    async def now(self) -> datetime:
        """The time, in UTC, as it was when this was asked for the first time."""
        return await self._run.sample("now")

    async def random(self) -> float:
        """A number from 0 to 1, always the same one."""
        return await self._run.sample("random")

    async def uuid(self) -> UUID:
        """A random UUID, always the same one."""
        return await self._run.sample("uuid")

    async def version(self, name: str) -> bool:
        """Whether changed code is to go the new way: False in a process that has passed here before the change.

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
        """Ask an agent, in a session of its own unless one is named; its answer, however long that takes.

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
