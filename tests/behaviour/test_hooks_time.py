"""Hooks and time: each has a limit, none delays what it only observes, and a known result stays known."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from tests.behaviour.approving import CALL, Shop, ended, sent
from tests.behaviour.background import SESSION
from tests.behaviour.hooking import OPEN, Seen, failures, said
from tests.behaviour.talk import SOON, until

import holdfast as hf
from holdfast.errors import InvalidArgument
from holdfast.testing import call, check, text

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.messages import ToolResult
    from holdfast.policy.hooks import Answer, Deny
    from holdfast.turns.machine import Ending

SHORT = 0.05


@pytest.fixture
def shop() -> Shop:
    return Shop()


class Hangs(hf.Hooks):
    """Does not come to an end in one of its methods."""

    timeout: ClassVar[Any] = SHORT

    def __init__(self, where: str, *, swallows: bool = False) -> None:
        self.reached = asyncio.Event()
        self.release = asyncio.Event()
        self._where = where
        self._swallows = swallows

    async def _hang(self, where: str) -> Any:
        if where != self._where:
            return
        self.reached.set()
        while not self.release.is_set():
            try:
                await self.release.wait()
            except asyncio.CancelledError:
                if not self._swallows:
                    raise

    async def before_turn(self, turn: hf.TurnContext) -> Deny | None:
        return await self._hang("before_turn")

    async def after_turn(self, turn: hf.TurnContext, ending: Ending) -> None:
        await self._hang("after_turn")

    async def before_model(self, asked: hf.HookRequest) -> Deny | None:
        return await self._hang("before_model")

    async def after_model(self, asked: hf.HookRequest, reply: hf.ModelReply) -> Deny | None:
        return await self._hang("after_model")

    async def before_tool(self, call: hf.HookCall) -> Deny | None:
        return await self._hang("before_tool")

    async def after_tool(self, call: hf.HookCall, result: ToolResult) -> Answer | None:
        return await self._hang("after_tool")

    async def on_error(self, turn: hf.TurnContext, error: Exception) -> None:
        await self._hang("on_error")


class Patient(Hangs):
    timeout: ClassVar[Any] = SOON * 10


# ---- a limit for each ------------------------------------------------------------------------------------------------


def test_a_hook_has_a_time_limit_that_nobody_needs_to_set() -> None:
    assert hf.Hooks().timeout == 30.0


@pytest.mark.parametrize("given", [0, -1, None, "1", True, float("nan")], ids=str)
def test_a_time_limit_that_is_none_is_refused_when_the_agent_is_made(shop: Shop, given: Any) -> None:
    class Wrong(hf.Hooks):
        timeout: ClassVar[Any] = given

    with pytest.raises(InvalidArgument, match=r"Wrong\.timeout"):
        shop.agent(hooks=[Wrong()])


@pytest.mark.parametrize("where", ["before_turn", "before_model", "after_model"])
async def test_a_hook_that_does_not_decide_in_time_denies_the_turn(shop: Shop, where: str) -> None:
    agent = shop.agent(policy=OPEN, hooks=[Hangs(where)])
    async with hf.open(None, agents=[agent]) as runtime:
        await sent(runtime, agent)
        outcome = await ended(runtime)
        assert (outcome.status, outcome.code) == ("failed", "denied")
        assert f"Hangs.{where} did not end within 0.05 s" in outcome.message


async def test_a_hook_that_does_not_decide_in_time_denies_the_call(shop: Shop) -> None:
    agent = shop.agent(policy=OPEN, hooks=[Hangs("before_tool")])
    async with hf.open(None, agents=[agent]) as runtime:
        (result,) = await said(runtime, agent)
        assert ("HookTimeout" in result.content, shop.done) == (True, [])


async def test_a_hook_that_does_not_look_at_a_result_in_time_withholds_it(shop: Shop) -> None:
    agent = shop.agent(policy=OPEN, hooks=[Hangs("after_tool")])
    async with hf.open(None, agents=[agent]) as runtime:
        (result,) = await said(runtime, agent)
        assert ("took effect" in result.content, "refunded" in result.content) == (True, False)


@pytest.mark.parametrize("where", ["before_tool", "after_turn"])
async def test_a_hook_that_takes_too_long_is_told(shop: Shop, where: str) -> None:
    agent = shop.agent(policy=OPEN, hooks=[Hangs(where)])
    async with hf.open(None, agents=[agent]) as runtime:
        assert await failures(runtime, lambda: said(runtime, agent)) == [("Hangs", where)]


async def test_a_hook_that_observes_and_takes_too_long_does_not_stop_the_turn(shop: Shop) -> None:
    agent = shop.agent(call("nonsense"), policy=OPEN, hooks=[Hangs("on_error")])
    async with hf.open(None, agents=[agent]) as runtime:
        await sent(runtime, agent)
        assert (await ended(runtime)).status == "completed"


async def test_a_hook_that_does_not_listen_when_its_time_is_up_is_left_behind(shop: Shop) -> None:
    hook = Hangs("before_tool", swallows=True)
    agent = shop.agent(policy=OPEN, hooks=[hook])
    async with hf.open(None, agents=[agent]) as runtime:
        (result,) = await said(runtime, agent)
        hook.release.set()
        assert "HookTimeout" in result.content


async def test_a_time_limit_may_be_a_timedelta(shop: Shop) -> None:
    class Quick(Hangs):
        timeout: ClassVar[Any] = timedelta(milliseconds=50)

    agent = shop.agent(policy=OPEN, hooks=[Quick("before_turn")])
    async with hf.open(None, agents=[agent]) as runtime:
        await sent(runtime, agent)
        assert (await ended(runtime)).code == "denied"


async def test_what_a_hook_puts_into_the_context_reaches_the_tools_of_its_turn(shop: Shop) -> None:
    who: ContextVar[str] = ContextVar("who", default="nobody")

    class Names(hf.Hooks):
        async def before_turn(self, turn: hf.TurnContext) -> Deny | None:
            who.set(turn.session)

    @hf.tool(read_only=True)
    async def asks() -> str:
        """Who is it?"""
        return who.get()

    agent = shop.agent(call("asks"), policy=OPEN, tools=[asks], hooks=[Names()])
    async with hf.open(None, agents=[agent]) as runtime:
        assert [result.content for result in await said(runtime, agent)] == [SESSION]


# ---- after a turn ----------------------------------------------------------------------------------------------------


async def test_an_outcome_does_not_wait_for_the_hooks_after_the_turn(shop: Shop) -> None:
    hook = Patient("after_turn")
    agent = shop.agent(text("hello"), policy=OPEN, hooks=[hook])
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await sent(runtime, agent)
        assert (await turn.outcome(timeout=SOON)).status == "completed"
        await asyncio.wait_for(hook.reached.wait(), SOON)
        await runtime.close(grace=0)


async def test_the_next_turn_does_not_wait_for_the_hooks_after_the_one_before(shop: Shop) -> None:
    hook = Patient("after_turn")
    agent = shop.agent(text("hello"), text("again"), policy=OPEN, hooks=[hook])
    async with hf.open(None, agents=[agent]) as runtime:
        await sent(runtime, agent)
        await asyncio.wait_for(hook.reached.wait(), SOON)
        second = await sent(runtime, agent, "more")
        assert (await second.outcome(timeout=SOON)).status == "completed"
        await runtime.close(grace=0)


async def test_the_hooks_after_the_turns_of_a_session_run_in_their_order(shop: Shop) -> None:
    class Slower(hf.Hooks):
        def __init__(self) -> None:
            self.ended: list[str] = []
            self.go = asyncio.Event()

        async def after_turn(self, turn: hf.TurnContext, ending: Ending) -> None:
            if turn.turn == "t1":
                await self.go.wait()
            self.ended.append(turn.turn)

    hook = Slower()
    agent = shop.agent(text("hello"), text("again"), policy=OPEN, hooks=[hook])
    async with hf.open(None, agents=[agent]) as runtime:
        await sent(runtime, agent)
        second = await sent(runtime, agent, "more")
        await second.outcome(timeout=SOON)
        hook.go.set()
        await until(lambda: len(hook.ended) == 2)
        assert hook.ended == ["t1", second.id]


async def test_a_runtime_that_is_closed_lets_the_hooks_after_a_turn_finish(shop: Shop) -> None:
    class Slow(hf.Hooks):
        ended = False

        async def after_turn(self, turn: hf.TurnContext, ending: Ending) -> None:
            await asyncio.sleep(0.1)
            self.ended = True

    hook = Slow()
    await hf.run(shop.agent(text("hello"), policy=OPEN, hooks=[hook]), "go")
    assert hook.ended


# ---- known results ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["after_tool", "on_error"])
async def test_a_deadline_that_passes_in_a_hook_does_not_make_a_known_result_unknown(
    shop: Shop, where: str, tmp_path: Path
) -> None:
    @hf.tool
    async def refund(order: str, cents: int) -> str:
        """Refund an order."""
        shop.done.append(order)
        if where == "on_error":
            raise RuntimeError("no money")
        return "refunded"

    class Errors(hf.Hooks):
        async def on_error(self, turn: hf.TurnContext, error: Exception) -> None:
            await asyncio.Event().wait()

    hook = Patient(where) if where == "after_tool" else Errors()
    agent = shop.agent(CALL, policy=OPEN, tools=[refund], hooks=[hook])
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        turn = await runtime.session(SESSION, agent=agent).send("go", deadline=0.5)
        assert (await turn.outcome(timeout=SOON)).code == "deadline"
        (result,) = [
            result for message in await runtime.session(SESSION).history() for result in getattr(message, "results", ())
        ]
        assert (result.state, shop.done) == ("error", ["7"])
        assert ("took effect" if where == "after_tool" else "no money") in result.content
        assert await check(runtime.store) == []


async def test_a_cancel_in_a_hook_does_not_make_a_known_result_unknown(shop: Shop) -> None:
    hook = Patient("after_tool")
    agent = shop.agent(policy=OPEN, hooks=[hook])
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await sent(runtime, agent)
        await asyncio.wait_for(hook.reached.wait(), SOON)
        await turn.cancel("enough")
        await turn.outcome(timeout=SOON)
        history = await runtime.session(SESSION).history()
        (result,) = [result for message in history for result in getattr(message, "results", ())]
        assert ("took effect" in result.content, "refunded" in result.content) == (True, False)


async def test_hooks_see_a_call_of_which_nobody_knows_what_became(shop: Shop, tmp_path: Path) -> None:
    reached = asyncio.Event()

    @hf.tool
    async def refund(order: str, cents: int) -> str:
        """Refund an order."""
        reached.set()
        await asyncio.Event().wait()
        return ""

    seen = Seen()
    agent = shop.agent(policy=OPEN, tools=[refund], hooks=[seen])
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        await sent(runtime, agent)
        await asyncio.wait_for(reached.wait(), SOON)
        await runtime.close(grace=0)
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        await ended(runtime)
    assert "after_tool unknown" in seen.log
    assert any("took effect" in line for line in seen.log if line.startswith("on_error"))


async def test_a_runtime_that_is_closed_leaves_no_hook_after_a_turn_running(shop: Shop) -> None:
    """Two turns of one session have ended, and the hook after the first does not come to an end."""
    begun, running = 0, set[int]()

    class Endless(hf.Hooks):
        async def after_turn(self, turn: hf.TurnContext, ending: Ending) -> None:
            nonlocal begun
            begun += 1
            mine = begun
            running.add(mine)
            try:
                await asyncio.Event().wait()
            finally:
                running.discard(mine)

    agent = shop.agent(text("one"), hooks=[Endless()])
    async with hf.open(None, agents=[agent]) as runtime:
        await runtime.run(agent, "go", session=SESSION)
        await runtime.run(agent, "go", session=SESSION)
        await until(lambda: bool(running))
        await runtime.close(grace=0)
    assert not running
