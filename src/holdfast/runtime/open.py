"""`hf.open` opens a store with its agents; `hf.run` asks an agent once.

This module is quick to import: the runtime itself is loaded when one is opened.
"""

from __future__ import annotations

import atexit
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, NoReturn, ParamSpec, TypeVar

from holdfast.deps import NO_DEPS, provide_deps
from holdfast.errors import RuntimeUnopened
from holdfast.policy.limits import CONCURRENCY, LEASE_MS, MAX_CALLS, MISSING_TOOL_MS, TICK

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence
    from datetime import timedelta
    from pathlib import Path
    from types import TracebackType

    from holdfast.agent import Agent, OutputT
    from holdfast.clock import Clock
    from holdfast.deps import DepsSource
    from holdfast.messages import Settings
    from holdfast.models.prices import Price
    from holdfast.policy.hooks import Hooks
    from holdfast.processes.definition import AnyProcess
    from holdfast.runtime.runtime import Runtime
    from holdfast.runtime.turn import TurnOutcome
    from holdfast.secrets.sources import SecretsInput
    from holdfast.store.contract import Durability, StoreLimits
    from holdfast.telemetry import Telemetry


P = ParamSpec("P")
T = TypeVar("T")


class RuntimeOpening:
    """The result of `hf.open`, for `async with` or `await`. Any other use raises `RuntimeUnopened` with a hint."""

    def __init__(self, entered: AbstractAsyncContextManager[Runtime]) -> None:
        self._entered = entered

    async def __aenter__(self) -> Runtime:
        return await self._entered.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._entered.__aexit__(kind, error, trace)

    def __await__(self) -> Generator[Any, None, Runtime]:
        return self._open().__await__()

    async def _open(self) -> Runtime:
        """Open without a block: ``await runtime.close()`` closes the runtime and its store."""
        import asyncio  # a process that opens no runtime loads none of these

        from holdfast.eventloop import cancel_all, spawn
        from holdfast.runtime.runtime import close_after

        opened: asyncio.Future[Runtime] = asyncio.get_running_loop().create_future()
        closing = asyncio.Event()

        async def hold() -> None:
            async with self._entered as runtime:
                close_after(runtime, close)
                _unclosed[self] = str(runtime.store.path or "in memory")
                opened.set_result(runtime)
                await closing.wait()

        async def close() -> None:
            if asyncio.current_task() is not holder:  # otherwise its loop ends, and cancels it
                _unclosed.pop(self, None)
                closing.set()
                await holder

        # One task enters and leaves, as libraries with cancel scopes demand; cells of a notebook are different tasks.
        holder = spawn(hold())
        try:
            await asyncio.wait((opened, holder), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await cancel_all((holder,))
            raise
        if not opened.done():
            await holder  # raises what opening raised
        return opened.result()

    def __enter__(self) -> NoReturn:
        raise RuntimeUnopened("with")

    def __exit__(self, *_: object) -> None:
        """Never reached: `__enter__` raises."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            raise RuntimeUnopened(name)


_unclosed: Final[dict[RuntimeOpening, str]] = {}
"""The stores of the runtimes that were opened with `await`, until they are closed."""


@atexit.register
def _warn_of_unclosed() -> None:
    import logging  # rarely needed

    for store in _unclosed.values():
        logging.getLogger("holdfast.runtime").warning(
            "the runtime on the store %s was not closed: nothing is lost, and what it did not finish resumes when the "
            "store is opened again; end with 'await runtime.close()'",
            store,
        )


def _by_async_with(make: Callable[P, AbstractAsyncContextManager[Runtime]]) -> Callable[P, RuntimeOpening]:
    @wraps(make)
    def opening(*args: P.args, **options: P.kwargs) -> RuntimeOpening:
        return RuntimeOpening(make(*args, **options))

    return opening


@_by_async_with
@asynccontextmanager
async def open(
    path: Path | str | None,
    *,
    agents: Sequence[Agent[T, Any]] = (),
    durability: Durability = "power",
    lease_ms: int = LEASE_MS,
    concurrency: int = CONCURRENCY,
    max_calls: int = MAX_CALLS,
    drive: bool = True,
    prices: Mapping[str, Price] | None = None,
    can_deliver: Callable[[str], bool | Awaitable[bool]] | None = None,
    mirror: bool = True,
    secrets: SecretsInput = None,
    hooks: Sequence[Hooks] = (),
    inline_budget: timedelta | float | None = None,
    limits: StoreLimits | None = None,
    clock: Clock | None = None,
    processes: Sequence[AnyProcess] = (),
    deps: DepsSource[T] = NO_DEPS,
    retention: timedelta | float | None = None,
    session_retention: timedelta | float | None = None,
    gate_interval: timedelta | float = TICK,
    missing_tool_deadline: timedelta | float = MISSING_TOOL_MS / 1000,
    telemetry: Telemetry | None = None,
) -> AsyncGenerator[Runtime]:
    """Open the store at `path` (None: in memory) with the agents that may run on it, as an async context manager.

    In a notebook, ``runtime = await hf.open(...)`` opens it without a block; close it with ``await runtime.close()``.
    Opening resumes interrupted work at once. With `drive=False` the runtime only reads and accepts: another process
    does the work.

    `can_deliver`, plain or async, decides whether notifications may enter a session now; call `runtime.gate_changed`
    when its answer may have changed. It is asked again every `gate_interval` (5 s) while notifications wait. A
    background call whose agent lacks the tool here waits for a process that has it, up to `missing_tool_deadline` (24
    hours). Memory is mirrored as files next to the store unless `mirror` is False.

    `hooks` apply to all agents and run after the agent's own, so they see the final values. `inline_budget` is how long
    models wait for a tool call unless the tool or the agent sets another time; 0.3 s suits a person who waits for each
    answer. `max_calls` bounds the tool calls that run at once in this process; with several runtimes the lowest bound
    counts.

    `deps` is the value of ``ctx.deps`` in tools, hooks and processes, or an async context manager or a function that
    gives it. It is entered before work begins and left when the runtime has closed; it is never stored. A runtime
    that does not drive makes none.

    `secrets` are available to tools as ``ctx.secrets["NAME"]`` and hidden in all records and output; `processes` are
    the durable functions that may run. `retention` prunes older processes and trigger records while the runtime is
    open, `session_retention` sessions that have not changed for so long; without them all are kept. `prices` take
    precedence over the known ones: ``{"provider:model": hf.Price(input=3, output=15)}``, in dollars per million tokens.
    `telemetry` (`hf.telemetry.Telemetry`) exports spans of all turns, model calls, tool calls and processes that this
    runtime drives.
    """
    from holdfast.eventloop import rare_collections  # a process that opens no runtime loads none of these
    from holdfast.runtime.runtime import Runtime, check_workspaces, count_driver
    from holdfast.store import open_store
    from holdfast.tools.functions import limit_calls, watch_event_loop

    if isinstance(agents, list | tuple):  # `Runtime` refuses anything else
        check_workspaces(agents, path)  # before the file is created
    with rare_collections(), watch_event_loop(), limit_calls(max_calls), count_driver(path if drive else None):
        async with (
            open_store(path, durability=durability, limits=limits, clock=clock) as store,
            provide_deps(deps if drive else NO_DEPS) as provided,
            Runtime(
                store,
                agents,
                lease_ms=lease_ms,
                concurrency=concurrency,
                drive=drive,
                own_prices=prices,
                can_deliver=can_deliver,
                mirror=path if mirror and drive else None,
                secrets=secrets,
                hooks=hooks,
                inline_budget=inline_budget,
                processes=processes,
                deps=provided,
                process_retention=retention,
                session_retention=session_retention,
                gate_interval=gate_interval,
                missing_tool_deadline=missing_tool_deadline,
                telemetry=telemetry,
            ) as runtime,
        ):
            yield runtime


async def run(
    agent: Agent[T, OutputT],
    prompt: str,
    *,
    deadline: timedelta | float | None = None,
    deps: DepsSource[T] = NO_DEPS,
    model: str | None = None,
    settings: Settings | None = None,
) -> TurnOutcome[OutputT]:
    """Ask an agent once, on a temporary store in memory. `model` and `settings`: see `Session.send`."""
    from holdfast.runtime.runtime import openings  # a process that opens no runtime does not load it

    await openings.here().enter()
    async with open(None, agents=[agent], deps=deps) as runtime:
        return await runtime.run(agent, prompt, deadline=deadline, model=model, settings=settings)
