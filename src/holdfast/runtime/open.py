"""Opening a runtime, and asking an agent once."""

from __future__ import annotations

import os
from collections import Counter
from contextlib import asynccontextmanager, contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Final, NoReturn, ParamSpec

from holdfast.engine.embedded import TICK
from holdfast.errors import RuntimeUnopened, TooManyRuntimes
from holdfast.eventloop import rare_collections
from holdfast.runtime.context import MISSING_TOOL_MS
from holdfast.runtime.runtime import CONCURRENCY, Runtime
from holdfast.runtime.session_driver import turnstiles
from holdfast.runtime.workspaces import check_workspaces
from holdfast.store import open_store
from holdfast.store.client import LEASE_MS
from holdfast.tools.functions import MAX_CALLS, limit_calls, watch_event_loop

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager
    from datetime import timedelta
    from pathlib import Path
    from types import TracebackType

    from holdfast.agent import Agent
    from holdfast.clock import Clock
    from holdfast.models.prices import Price
    from holdfast.policy.hooks import Hooks
    from holdfast.processes.definition import AnyProcess
    from holdfast.runtime.turn import TurnOutcome
    from holdfast.secrets.sources import SecretsInput
    from holdfast.store.contract import Durability
    from holdfast.store.limits import StoreLimits


MAX_RUNTIMES: Final = 16
"""Runtimes of one process that drive the same store. Each looks for work by itself and has a writer of its own."""
_drivers: Final = Counter[str]()


@contextmanager
def _count_driver(path: Path | str | None) -> Generator[None]:
    """Count a runtime that drives the store at `path`; refuse one too many."""
    if path is None:
        yield
        return
    store = os.path.realpath(path)
    if _drivers[store] >= MAX_RUNTIMES:
        raise TooManyRuntimes(store, MAX_RUNTIMES)
    _drivers[store] += 1
    try:
        yield
    finally:
        _drivers[store] -= 1
        if not _drivers[store]:
            del _drivers[store]


P = ParamSpec("P")


class RuntimeOpening:
    """A runtime that is opened by `async with`, and by nothing else."""

    def __init__(self, entered: AbstractAsyncContextManager[Runtime]) -> None:
        self._entered = entered

    async def __aenter__(self) -> Runtime:
        return await self._entered.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._entered.__aexit__(kind, error, trace)

    def __await__(self) -> NoReturn:
        raise RuntimeUnopened("await")

    def __enter__(self) -> NoReturn:
        raise RuntimeUnopened("with")

    def __exit__(self, *_: object) -> None:
        """Nothing was entered."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            raise RuntimeUnopened(name)


def _by_async_with(make: Callable[P, AbstractAsyncContextManager[Runtime]]) -> Callable[P, RuntimeOpening]:
    @wraps(make)
    def opening(*args: P.args, **options: P.kwargs) -> RuntimeOpening:
        return RuntimeOpening(make(*args, **options))

    return opening


@_by_async_with
@asynccontextmanager
async def open(  # noqa: PLR0913
    path: Path | str | None,
    *,
    agents: Sequence[Agent] = (),
    durability: Durability = "power",
    lease_ms: int = LEASE_MS,
    concurrency: int = CONCURRENCY,
    max_calls: int = MAX_CALLS,
    drive: bool = True,
    prices: Mapping[str, Price] | None = None,
    can_deliver: Callable[[str], bool] | None = None,
    mirror: bool = True,
    secrets: SecretsInput = None,
    hooks: Sequence[Hooks] = (),
    inline_budget: timedelta | float | None = None,
    limits: StoreLimits | None = None,
    clock: Clock | None = None,
    processes: Sequence[AnyProcess] = (),
    retention: timedelta | float | None = None,
    gate_interval: timedelta | float = TICK,
    missing_tool_deadline: timedelta | float = MISSING_TOOL_MS / 1000,
) -> AsyncGenerator[Runtime]:
    """Open the store at `path` (None: in memory) with the agents that may run on it, as an async context manager.

    Whatever was interrupted goes on at once. `drive=False` only looks and accepts: another process does the work.
    `can_deliver` is asked before notifications enter a session; call `runtime.gate_changed` when it may say otherwise.
    Without that call it is asked again every `gate_interval` (5 s) while something waits.
    A background call whose agent is here without the tool is left to a process that has it, until it has been left for
    `missing_tool_deadline` (24 hours).
    Memory is mirrored as files beside the store unless `mirror` is False. `hooks` see and decide what happens around
    all agents; they run after those of an agent, so that nothing is changed behind them. `inline_budget` is how long
    models wait for a call where neither the tool nor the agent says; 0.3 s suits a person who waits for
    each answer.
    `max_calls` tool calls run at once in this process, of all tools together; of several runtimes, the lowest counts.
    `secrets` are lent to tools as ``ctx.secrets["NAME"]`` and hidden wherever something is written; `processes` are the
    durable functions that may run. With `retention`, processes that ended so long ago are pruned while this is open,
    and what triggers recorded so long ago; without, all is kept.
    `prices` go before the known ones: ``{"provider:model": hf.Price(input=3, output=15)}``, dollars a million tokens.
    """
    if isinstance(agents, list | tuple):  # anything else is refused by the runtime
        check_workspaces(agents, path)  # before there is a file
    with rare_collections(), watch_event_loop(), limit_calls(max_calls), _count_driver(path if drive else None):
        async with (
            open_store(path, durability=durability, limits=limits, clock=clock) as store,
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
                retention=retention,
                gate_interval=gate_interval,
                missing_tool_deadline=missing_tool_deadline,
            ) as runtime,
        ):
            yield runtime


async def run(agent: Agent, prompt: str, *, deadline: timedelta | float | None = None) -> TurnOutcome:
    """Ask an agent once, on a store in memory: the same path as everywhere, and nothing stays."""
    await turnstiles.here().enter()  # many at once must not keep the loop from everything else while they open
    async with open(None, agents=[agent]) as runtime:
        return await runtime.run(agent, prompt, deadline=deadline)
