"""What was said in a session, and what the model was asked."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Protocol, cast

from tests.patience import PATIENCE

import holdfast as hf
from holdfast.testing import ScriptedModel

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.messages import Message

SOON = PATIENCE


def asked(agent: hf.Agent) -> list[hf.ModelRequest]:
    """What the model was asked."""
    model = agent.model
    assert isinstance(model, ScriptedModel)
    return model.requests


def pairs_are_whole(messages: Sequence[Message]) -> bool:
    """Whether each batch of calls is followed by the results of just those calls."""
    wanted: list[str] = []
    for message in messages:
        got = [result.call_id for result in message.results] if isinstance(message, hf.ToolMessage) else []
        if got != wanted:
            return False
        wanted = [made.id for made in message.calls] if isinstance(message, hf.AssistantMessage) else []
    return not wanted


def states(messages: Sequence[Message]) -> list[str]:
    """How the calls ended."""
    return [result.state for message in messages if isinstance(message, hf.ToolMessage) for result in message.results]


async def until(condition: Callable[[], Awaitable[object] | object]) -> None:
    """Wait for something that can only be asked for, be it that the answer takes time or not."""
    async with asyncio.timeout(PATIENCE):
        while not await _answer(condition()):  # what is awaited is in the store, or in another process
            await asyncio.sleep(0.005)


async def _answer(given: Awaitable[object] | object) -> object:
    return await cast("Awaitable[object]", given) if isinstance(given, Awaitable) else given


class Standing(Protocol):
    """A turn, a session or a process."""

    async def status(self) -> str: ...


async def is_now(what: Standing, status: str) -> bool:
    """Whether it has this status."""
    return await what.status() == status


async def at_rest(runtime: hf.Runtime, *sessions: str) -> None:
    """Wait until these sessions wait for somebody, and nobody drives anything."""

    async def rests() -> bool:
        waiting = [await is_now(runtime.session(session), "waiting") for session in sessions]
        return all(waiting) and not runtime.active

    await until(rests)
