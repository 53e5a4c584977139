"""Triggers: agents that they ask, time that passes, and what they started."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from tests.behaviour.talk import until

import holdfast as hf
from holdfast.messages import UserMessage
from holdfast.testing import ScriptedModel, text
from holdfast.triggers.schedules import to_wall

if TYPE_CHECKING:
    from holdfast.messages import ModelRequest
    from holdfast.runtime.runtime import Runtime
    from holdfast.testing import ManualClock
    from holdfast.triggers.service import TriggerStatus

START: Final = to_wall(datetime(2026, 3, 28, 12, tzinfo=UTC))
HOUR: Final = 3_600_000
SECRET: Final = "a secret of some length"  # noqa: S105


def writer(name: str = "writer") -> hf.Agent:
    return hf.Agent(name, model=ScriptedModel(lambda _: text("Done.")))


class Slow:
    """An agent that answers when it may."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.reached = asyncio.Event()
        self.agent = hf.Agent("slow", model=ScriptedModel(self._say))

    async def _say(self, _: ModelRequest) -> Any:
        self.reached.set()
        await self.open.wait()
        return text("Done.")


def signed(body: bytes, delivery: str) -> dict[str, str]:
    """The headers of a request that the secret signs."""
    made = hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
    return {"X-Hub-Signature-256": f"sha256={made}", "X-GitHub-Delivery": delivery}


async def prompts(runtime: Runtime) -> list[str]:
    """What was said in all sessions."""
    found: list[str] = []
    for line in await runtime.sessions(limit=1_000):
        history = await runtime.session(line.id).history()
        found += [message.text for message in history if isinstance(message, UserMessage)]
    return sorted(found)


async def said(runtime: Runtime, count: int) -> list[str]:
    async def enough() -> bool:
        return len(await prompts(runtime)) >= count

    await until(enough)
    return await prompts(runtime)


async def started(runtime: Runtime, name: str, count: int) -> TriggerStatus:
    async def enough() -> bool:
        return (await runtime.triggers.get(name)).started >= count

    await until(enough)
    return await runtime.triggers.get(name)


def later(runtime: Runtime, clock: ManualClock, milliseconds: int) -> None:
    """Let time pass, and let the engine notice."""
    clock.advance(milliseconds)
    runtime.gate_changed()
