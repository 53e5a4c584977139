"""Background work: a session whose model calls tools that a test holds, and what came of them."""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from tests.behaviour.talk import SOON, until

import holdfast as hf
from holdfast.messages import ToolMessage, ToolResult, UserMessage
from holdfast.testing import ScriptedModel, call, text
from holdfast.testing.scripted import position_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.messages import ModelRequest
    from holdfast.processes.state import ProcessState
    from holdfast.runtime.runtime import Runtime
    from holdfast.store import Notification, Store
    from holdfast.testing.scripted import ScriptItem

SESSION = "s"
BUDGET = 0.02
OVER = {"acknowledged", "cancelled", "expired", "dead"}


def talkative(*first: ScriptItem) -> ScriptedModel:
    """Says what is given, one thing after the other, and has a word for whatever comes then."""

    def say(request: ModelRequest) -> Any:
        position = position_of(request)
        return first[position] if position < len(first) else text(f"word {position}")

    return ScriptedModel(say)


def agent_with(*tools: hf.Tool[..., Any], script: Sequence[ScriptItem] | None = None, **options: Any) -> hf.Agent:
    """An agent that calls each of its tools once, at the same time, unless a script says otherwise."""
    first = [[call(tool) for tool in tools]] if script is None else list(script)
    return hf.Agent("a", model=talkative(*first), tools=list(tools), policy=[hf.allow("*")], **options)


class Held:
    """A tool that goes on until a test lets it."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.go = asyncio.Event()
        self.keys: list[str] = []
        self.ended: list[str] = []

    def tool(self, answer: Any = "the answer", **options: Any) -> hf.Tool[..., Any]:
        said: dict[str, Any] = {"inline_budget": BUDGET, **options}

        @hf.tool(**said)
        async def slow(ctx: hf.Context) -> Any:
            self.keys.append(ctx.idempotency_key)
            self.begun.set()
            try:
                await self.go.wait()
            except asyncio.CancelledError:
                self.ended.append("cancelled")
                raise
            self.ended.append("done")
            return answer

        return slow


class Stubborn:
    """A tool that does not listen when it is cancelled, until the test is over."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.free = False

    def tool(self, **options: Any) -> hf.Tool[..., Any]:
        @hf.tool(**options)
        async def stubborn() -> str:
            self.begun.set()
            while not self.free:
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(BUDGET)
            return "at last"

        return stubborn


async def asked(runtime: Runtime, agent: hf.Agent, words: str = "go", *, session: str = SESSION) -> hf.TurnOutcome:
    """Send something, and wait for the end of the turn."""
    return await (await runtime.session(session, agent=agent).send(words)).outcome(timeout=SOON)


async def the_task(runtime: Runtime, session: str = SESSION) -> ProcessState:
    """The one task of a session."""
    (found,) = await runtime.tasks.list(session=session)
    return await runtime.tasks.task(found.id)


async def ended_task(runtime: Runtime, session: str = SESSION) -> ProcessState:
    """The one task of a session, when it is over."""

    async def is_over() -> bool:
        found = await runtime.tasks.list(session=session)
        return bool(found) and (await runtime.tasks.task(found[0].id)).over

    await until(is_over)
    return await the_task(runtime, session)


async def told(store: Store, session: str = SESSION, count: int = 1) -> list[Notification]:
    """The notifications of a session, oldest first, when there are so many and all are over."""

    async def are_over() -> bool:
        found = await store.notifications(session)
        return len(found) >= count and {notice.state for notice in found} <= OVER

    await until(are_over)
    return (await store.notifications(session, limit=1_000))[::-1]


def results(messages: Sequence[Any]) -> list[ToolResult]:
    """The results that the model has read."""
    return [found for message in messages if isinstance(message, ToolMessage) for found in message.results]


async def result(runtime: Runtime, session: str = SESSION) -> ToolResult:
    """The one result that the model has read."""
    (found,) = results(await runtime.session(session).history())
    return found


def heard(messages: Sequence[Any]) -> list[str]:
    """What the runtime has told the model."""
    return [message.text for message in messages if isinstance(message, UserMessage) and message.origin == "holdfast"]


async def notices(runtime: Runtime, session: str = SESSION) -> list[str]:
    """What the runtime has told the model of a session."""
    return heard(await runtime.session(session).history())


def titles(notice: str) -> list[str]:
    """The titles in one text that tells of notifications, in their order."""
    return re.findall(r'title="(.*?)"', notice)
