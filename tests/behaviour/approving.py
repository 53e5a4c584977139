"""Calls that wait for a person: a shop whose refunds are asked about, and what it really did."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.behaviour.background import SESSION, results, talkative
from tests.behaviour.talk import SOON, until

import holdfast as hf
from holdfast.testing import call

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.messages import ToolResult
    from holdfast.policy.rules import Policy, Rule, Within
    from holdfast.runtime.runtime import Runtime
    from holdfast.runtime.turn import Turn
    from holdfast.store import Store
    from holdfast.store.contract import Wait
    from holdfast.testing.scripted import ScriptItem

ASKING = (hf.ask("refund"), hf.allow("*"))
"""Refunds are asked about, everything else is allowed."""
CALL = call("refund", order="7", cents=900)


class Shop:
    """Refunds, and looks things up. `done` is all that it ever did."""

    def __init__(self) -> None:
        self.done: list[Any] = []

    def refund(self, **options: Any) -> hf.Tool[..., Any]:
        @hf.tool(**options)
        async def refund(order: str, cents: int = 100) -> str:
            """Refund an order."""
            self.done.append((order, cents))
            return f"refunded {cents}"

        return refund

    def note(self) -> hf.Tool[..., Any]:
        @hf.tool
        async def note(text: str) -> str:
            """Write something down."""
            self.done.append(text)
            return f"noted {text}"

        return note

    def look(self) -> hf.Tool[..., Any]:
        @hf.tool(read_only=True)
        async def look(what: str = "stock") -> str:
            """Look something up."""
            self.done.append(what)
            return f"looked at {what}"

        return look

    def tools(self) -> list[hf.Tool[..., Any]]:
        return [self.refund(), self.note(), self.look()]

    def agent(
        self,
        *script: ScriptItem,
        policy: Policy | Sequence[Rule | Within] | None = ASKING,
        tools: Sequence[hf.Tool[..., Any]] | None = None,
        **options: Any,
    ) -> hf.Agent:
        """An agent that refunds an order, unless a script says otherwise, and has a word for whatever comes then."""
        given = self.tools() if tools is None else list(tools)
        return hf.Agent("shop", model=talkative(*(script or (CALL,))), tools=given, policy=policy, **options)


async def sent(runtime: Runtime, agent: hf.Agent, words: str = "go", *, session: str = SESSION) -> Turn:
    """Say something to a session."""
    return await runtime.session(session, agent=agent).send(words)


async def parked(runtime: Runtime, count: int = 1, *, session: str = SESSION) -> list[hf.Approval]:
    """What a session asks a person, when it asks so many things and nobody drives it."""
    found: list[hf.Approval] = []

    async def asks() -> bool:
        found[:] = await runtime.approvals(session)
        resting = await runtime.session(session).status() == "waiting" and not runtime.active
        return resting and len(found) == count

    await until(asks)
    return found


async def asked_once(runtime: Runtime, agent: hf.Agent, *, session: str = SESSION) -> hf.Approval:
    """Say something to a session; answers the one thing that it asks then."""
    await sent(runtime, agent, session=session)
    (found,) = await parked(runtime, session=session)
    return found


async def ended(runtime: Runtime, session: str = SESSION, turn: str = "t1") -> hf.TurnOutcome:
    """How a turn ended."""
    return await runtime.session(session).turn(turn).outcome(timeout=SOON)


async def told(runtime: Runtime, session: str = SESSION) -> list[ToolResult]:
    """What the model has read of its calls, when the turn is over."""
    await ended(runtime, session)
    return results(await runtime.session(session).history())


async def the_wait(store: Store, session: str = SESSION) -> Wait:
    """The one wait of a session in which a person is asked."""
    (found,) = [wait for wait in await store.waits(session) if wait.kind == "approval"]
    return found
