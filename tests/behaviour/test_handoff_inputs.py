"""What is said to a session that another agent took over: it is for the one who has the session now."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from tests.behaviour.background import talkative
from tests.behaviour.talk import SOON

import holdfast as hf
from holdfast.errors import RateExceeded
from holdfast.records import Done, EffectRequest, Handed
from holdfast.runtime.runtime import context_of
from holdfast.testing import ManualClock, call

if TYPE_CHECKING:
    from holdfast.store import Lease, Store

HOURLY = hf.Admission(per_window=1, window=timedelta(hours=1))


async def test_a_session_that_was_handed_over_takes_in_what_its_agent_now_takes_in() -> None:
    clerk = hf.Agent("clerk", model=talkative(), admission=HOURLY)
    desk = hf.Agent("desk", model=talkative(call("transfer_to_clerk", reason="x")), tools=[hf.handoff(clerk)])
    async with hf.open(None, agents=[desk, clerk], clock=ManualClock()) as runtime:
        session = runtime.session("s", agent=desk)
        await (await session.send("hi")).outcome(timeout=SOON)
        assert await session.agent() == "clerk"
        await (await session.send("more")).outcome(timeout=SOON)
        with pytest.raises(RateExceeded):
            await session.send("and more")


async def hand(store: Store, lease: Lease, head: int, by: str, to: str) -> int:
    """Record that a session was handed over."""
    key = f"t1/{head}"
    done = Done(at=1, key=key, ask=EffectRequest("tool_call", "x", "0" * 64), value=msgspec.Raw(b"1"))
    return await store.append(lease, [done, Handed(at=1, run="t1", key=key, agent=to, by=by)], head=head, checked=False)


async def test_what_is_said_in_the_moment_of_a_handoff_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    agents = [hf.Agent(name, model=talkative()) for name in ("a", "b", "c")]
    async with hf.open(None, agents=agents, drive=False) as runtime:
        await runtime.store.open_journal("s", "session", "a")
        lease = await runtime.store.claim("s")
        head = await hand(runtime.store, lease, 1, "a", "b")
        terms = context_of(runtime).sessions.terms

        async def late(agent: str) -> Any:
            """Between the look at who has the session and the accept, it is handed on."""
            monkeypatch.setattr(context_of(runtime).sessions, "terms", terms)
            await hand(runtime.store, lease, head, "b", "c")
            return await terms(agent)

        monkeypatch.setattr(context_of(runtime).sessions, "terms", late)
        await runtime.session("s").send("hello")
        assert (await runtime.store.input("s", 1)) is not None
