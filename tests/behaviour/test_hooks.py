"""Hooks: they see what happens around a turn, can only make it stricter, and decide once."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from tests.behaviour.approving import ASKING, CALL, Shop, asked_once, ended, parked, sent, told
from tests.behaviour.background import SESSION
from tests.behaviour.talk import SOON, asked, pairs_are_whole, until

import holdfast as hf
from holdfast.errors import InvalidArgument
from holdfast.testing import call, check, error, text

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

    from holdfast.messages import ModelReply, ToolResult
    from holdfast.policy.hooks import Answer, Deny, ModelDecision, ToolDecision
    from holdfast.runtime.runtime import Runtime
    from holdfast.turns import Ending

OPEN = (hf.allow("*"),)


@pytest.fixture
def shop() -> Shop:
    return Shop()


class Seen(hf.Hooks):
    """Writes down what it sees, and lets everything be."""

    def __init__(self, log: list[str] | None = None, mark: str = "") -> None:
        self.log = [] if log is None else log
        self._mark = mark

    def see(self, what: str) -> None:
        self.log.append(self._mark + what)

    async def before_turn(self, turn: hf.HookTurn) -> Deny | None:
        self.see("before_turn")

    async def after_turn(self, turn: hf.HookTurn, ending: Ending) -> None:
        self.see(f"after_turn {ending.status}")

    async def before_model(self, asked: hf.HookRequest) -> ModelDecision | None:
        self.see("before_model")

    async def after_model(self, asked: hf.HookRequest, reply: ModelReply) -> Deny | None:
        self.see("after_model")

    async def before_tool(self, call: hf.HookCall) -> ToolDecision | None:
        self.see(f"before_tool {call.tool}")

    async def after_tool(self, call: hf.HookCall, result: ToolResult) -> Answer | None:
        self.see(f"after_tool {result.state}")

    async def on_notification(self, turn: hf.HookTurn, text: str) -> None:
        self.see("on_notification")

    async def on_error(self, turn: hf.HookTurn, error: Exception) -> None:
        self.see(f"on_error {error}")


class Before(hf.Hooks):
    """Decides about calls as a test says, and counts how often it was asked."""

    def __init__(self, decide: Callable[[hf.HookCall], Any], tool: str = "refund") -> None:
        self.calls: list[hf.HookCall] = []
        self._decide = decide
        self._tool = tool

    async def before_tool(self, call: hf.HookCall) -> ToolDecision | None:
        if call.tool != self._tool:
            return None
        self.calls.append(call)
        return self._decide(call)


class After(hf.Hooks):
    """Makes something else of results."""

    def __init__(self, make: Callable[[hf.HookCall, ToolResult], Any]) -> None:
        self.seen: list[ToolResult] = []
        self._make = make

    async def after_tool(self, call: hf.HookCall, result: ToolResult) -> Answer | None:
        self.seen.append(result)
        return self._make(call, result)


def raises(*_: object) -> Any:
    raise RuntimeError("the hook is broken")


async def said(runtime: Runtime, agent: hf.Agent) -> list[ToolResult]:
    """What the model reads of its calls, in a turn of its own."""
    await sent(runtime, agent)
    return await told(runtime)


async def failures(runtime: Runtime, act: Callable[[], Awaitable[object]]) -> list[tuple[str, str]]:
    """The hooks that are told to have failed while something is done."""
    found: list[tuple[str, str]] = []
    subscription = runtime.on(hf.HookFailed, lambda event: found.append((event.hook, event.where)))
    await act()

    async def is_told() -> bool:
        return bool(found)

    await until(is_told)
    await subscription.stop()
    return found


# ---- seeing ----------------------------------------------------------------------------------------------------------


async def test_hooks_see_a_turn_from_its_beginning_to_its_end(shop: Shop) -> None:
    seen = Seen()
    agent = shop.agent(policy=OPEN, hooks=[seen])
    async with hf.open(None, agents=[agent]) as runtime:
        await said(runtime, agent)
    model = ["before_model", "after_model"]
    tool = ["before_tool refund", "after_tool ok"]
    assert seen.log == ["before_turn", *model, *tool, *model, "after_turn completed"]


async def test_hooks_of_the_runtime_come_before_those_of_the_agent_each_in_their_order(shop: Shop) -> None:
    log: list[str] = []
    agent = shop.agent(text("hello"), policy=OPEN, hooks=[Seen(log, "3 "), Seen(log, "4 ")])
    async with hf.open(None, agents=[agent], hooks=[Seen(log, "1 "), Seen(log, "2 ")]) as runtime:
        await sent(runtime, agent)
        await ended(runtime)
    begun = [line for line in log if line.endswith("before_turn")]
    assert begun == ["1 before_turn", "2 before_turn", "3 before_turn", "4 before_turn"]


async def test_a_hook_sees_the_call_and_the_turn_around_it(shop: Shop) -> None:
    hook = Before(lambda call: None)
    agent = shop.agent(policy=OPEN, hooks=[hook])
    async with hf.open(None, agents=[agent]) as runtime:
        await said(runtime, agent)
        (seen,) = hook.calls
        assert (seen.turn.session, seen.turn.agent, seen.turn.turn) == (SESSION, "shop", "t1")
        assert (seen.tool, seen.arguments, bool(seen.idempotency_key)) == ("refund", {"order": "7", "cents": 900}, True)


async def test_a_hook_that_changes_what_it_sees_changes_nothing(shop: Shop) -> None:
    def meddle(call: hf.HookCall) -> None:
        call.arguments["cents"] = 1

    agent = shop.agent(policy=OPEN, hooks=[Before(meddle)])
    async with hf.open(None, agents=[agent]) as runtime:
        await said(runtime, agent)
        assert shop.done == [("7", 900)]


async def test_a_call_of_a_tool_that_is_not_there_is_no_matter_for_hooks(shop: Shop) -> None:
    seen = Seen()
    agent = shop.agent(call("nonsense"), policy=OPEN, hooks=[seen])
    async with hf.open(None, agents=[agent]) as runtime:
        assert [result.state for result in await said(runtime, agent)] == ["error"]
        assert not any(line.startswith("before_tool") for line in seen.log)


async def test_a_hook_is_asked_once_about_each_call_of_a_step(shop: Shop) -> None:
    hook = Before(lambda call: None)
    agent = shop.agent([CALL, CALL, CALL], policy=OPEN, hooks=[hook])
    async with hf.open(None, agents=[agent]) as runtime:
        await said(runtime, agent)
        assert len({seen.call_id for seen in hook.calls}) == len(hook.calls) == 3


@pytest.mark.parametrize("given", [None, "hook", [1], [hf.Hooks], hf.Hooks()], ids=str)
async def test_what_is_no_list_of_hooks_is_refused(shop: Shop, given: Any) -> None:
    with pytest.raises(InvalidArgument):
        shop.agent(hooks=given)
    with pytest.raises(InvalidArgument):
        async with hf.open(None, hooks=given):
            pass


# ---- denying ---------------------------------------------------------------------------------------------------------


async def test_a_hook_may_deny_a_call(shop: Shop) -> None:
    agent = shop.agent(policy=OPEN, hooks=[Before(lambda call: call.deny("not on a Sunday"))])
    async with hf.open(None, agents=[agent]) as runtime:
        (result,) = await said(runtime, agent)
        assert (result.state, shop.done) == ("error", [])
        assert "not on a Sunday" in result.content


async def test_after_a_denial_no_other_hook_is_asked(shop: Shop) -> None:
    second = Before(lambda call: None)
    agent = shop.agent(policy=OPEN, hooks=[Before(lambda call: call.deny("no")), second])
    async with hf.open(None, agents=[agent]) as runtime:
        await said(runtime, agent)
        assert second.calls == []


async def test_a_second_hook_may_deny_what_the_first_lets_pass(shop: Shop) -> None:
    hooks = [Before(lambda call: call.ask("sure?")), Before(lambda call: call.deny("no"))]
    agent = shop.agent(policy=OPEN, hooks=hooks)
    async with hf.open(None, agents=[agent]) as runtime:
        assert [result.state for result in await said(runtime, agent)] == ["error"]
        assert shop.done == []


@pytest.mark.parametrize("answer", [True, "allow", "yes", 1, {"allow": True}], ids=str)
async def test_a_hook_has_no_way_to_allow(shop: Shop, answer: object) -> None:
    agent = shop.agent(policy=[hf.deny("refund")], hooks=[Before(lambda call: answer)])
    async with hf.open(None, agents=[agent]) as runtime:
        assert [result.state for result in await said(runtime, agent)] == ["error"]
        assert shop.done == []


async def test_a_hook_that_asks_does_not_soften_a_deny(shop: Shop) -> None:
    agent = shop.agent(policy=[hf.deny("refund")], hooks=[Before(lambda call: call.ask("may it?"))])
    async with hf.open(None, agents=[agent]) as runtime:
        assert [result.state for result in await said(runtime, agent)] == ["error"]
        assert await runtime.approvals() == []


async def test_a_hook_that_lets_pass_does_not_answer_what_the_policy_asks(shop: Shop) -> None:
    agent = shop.agent(hooks=[Before(lambda call: call.replace(call.arguments))])
    async with hf.open(None, agents=[agent]) as runtime:
        await asked_once(runtime, agent)
        assert shop.done == []


async def test_what_a_hook_returns_that_is_no_decision_denies_and_is_told(shop: Shop) -> None:
    agent = shop.agent(policy=OPEN, hooks=[Before(lambda call: True)])
    async with hf.open(None, agents=[agent]) as runtime:
        assert await failures(runtime, lambda: said(runtime, agent)) == [("Before", "before_tool")]
        assert shop.done == []


async def test_a_hook_that_raises_where_it_decides_denies(shop: Shop) -> None:
    agent = shop.agent(policy=OPEN, hooks=[Before(raises)])
    async with hf.open(None, agents=[agent]) as runtime:
        (result,) = await said(runtime, agent)
        assert (result.state, shop.done) == ("error", [])
        assert "Before.before_tool" in result.content


async def test_a_hook_that_raises_where_it_decides_is_told(shop: Shop) -> None:
    agent = shop.agent(policy=OPEN, hooks=[Before(raises)])
    async with hf.open(None, agents=[agent]) as runtime:
        assert await failures(runtime, lambda: said(runtime, agent)) == [("Before", "before_tool")]


async def test_a_hook_that_wants_to_leave_the_process_denies(shop: Shop) -> None:
    def leave(call: hf.HookCall) -> None:
        raise SystemExit(3)

    agent = shop.agent(policy=OPEN, hooks=[Before(leave)])
    async with hf.open(None, agents=[agent]) as runtime:
        assert [result.state for result in await said(runtime, agent)] == ["error"]
        assert shop.done == []


async def test_a_call_that_a_hook_denies_does_not_hold_up_the_others(shop: Shop) -> None:
    agent = shop.agent([CALL, call("note", text="x")], policy=OPEN, hooks=[Before(raises)])
    async with hf.open(None, agents=[agent]) as runtime:
        assert [result.state for result in await said(runtime, agent)] == ["error", "ok"]
        assert shop.done == ["x"]


async def test_a_hook_may_deny_a_call_that_would_go_to_the_background(shop: Shop) -> None:
    agent = shop.agent(policy=OPEN, tools=[shop.refund(background=True)], hooks=[Before(lambda call: call.deny("no"))])
    async with hf.open(None, agents=[agent]) as runtime:
        assert [result.state for result in await said(runtime, agent)] == ["error"]
        assert (await runtime.tasks.list(), shop.done) == ([], [])


# ---- replacing arguments ---------------------------------------------------------------------------------------------


def halved(call: hf.HookCall) -> Any:
    return call.replace({**call.arguments, "cents": call.arguments["cents"] // 2})


async def test_a_hook_may_replace_arguments(shop: Shop) -> None:
    agent = shop.agent(policy=OPEN, hooks=[Before(halved)])
    async with hf.open(None, agents=[agent]) as runtime:
        await said(runtime, agent)
        assert shop.done == [("7", 450)]


async def test_the_next_hook_sees_the_replaced_arguments(shop: Shop) -> None:
    second = Before(halved)
    agent = shop.agent(policy=OPEN, hooks=[Before(halved), second])
    async with hf.open(None, agents=[agent]) as runtime:
        await said(runtime, agent)
        assert (second.calls[0].arguments["cents"], shop.done) == (450, [("7", 225)])


@pytest.mark.parametrize(("limit", "done"), [(500, [("7", 450)]), (400, [])])
async def test_the_policy_judges_the_replaced_arguments(shop: Shop, limit: int, done: list[Any]) -> None:
    policy = [hf.deny("refund", when={"cents": {"above": limit}}), hf.allow("refund")]
    agent = shop.agent(policy=policy, hooks=[Before(halved)])
    async with hf.open(None, agents=[agent]) as runtime:
        await said(runtime, agent)
        assert shop.done == done


async def test_a_person_is_shown_the_replaced_arguments(shop: Shop) -> None:
    agent = shop.agent(hooks=[Before(halved)])
    async with hf.open(None, agents=[agent]) as runtime:
        shown = await asked_once(runtime, agent)
        await runtime.approve(shown.id)
        await ended(runtime)
        assert (shown.arguments["cents"], shop.done) == (450, [("7", 450)])


async def test_replaced_arguments_that_do_not_fit_are_not_run(shop: Shop) -> None:
    agent = shop.agent(policy=OPEN, hooks=[Before(lambda call: call.replace({"cents": "many"}))])
    async with hf.open(None, agents=[agent]) as runtime:
        assert [result.state for result in await said(runtime, agent)] == ["error"]
        assert shop.done == []


async def test_a_call_in_the_background_runs_with_the_replaced_arguments(shop: Shop) -> None:
    agent = shop.agent(policy=OPEN, tools=[shop.refund(background=True)], hooks=[Before(halved)])
    async with hf.open(None, agents=[agent]) as runtime:
        await said(runtime, agent)

        async def is_done() -> bool:
            return bool(shop.done)

        await until(is_done)
        assert shop.done == [("7", 450)]


ODD: dict[str, Any] = {
    "an object": object(),
    "a set": {1, 2},
    "no number": float("nan"),
    "bytes": b"\xff",
    "half a character": "\ud800",
    "a large number": 1 << 80,
    "a date": datetime(2030, 1, 1, tzinfo=UTC),
    "itself": [],
}
ODD["itself"].append(ODD["itself"])


@pytest.mark.parametrize("value", ODD.values(), ids=ODD)
async def test_arguments_of_a_hook_that_are_no_json_are_a_denial(shop: Shop, value: object) -> None:
    # FINDING: runtime/authorising.py `_note` and `_hooks`: what is recorded is what msgspec makes of a decision, what
    # is used is the object itself. NaN, a set, bytes or a date are recorded as something else than what is bound.
    agent = shop.agent(policy=OPEN, hooks=[Before(lambda call: call.replace({"order": value}))])
    async with hf.open(None, agents=[agent]) as runtime:
        assert [result.state for result in await said(runtime, agent)] == ["error"]
        assert shop.done == []


async def test_large_arguments_of_a_hook_reach_the_tool(shop: Shop, tmp_path: Path) -> None:
    order = "x" * 300_000
    agent = shop.agent(policy=OPEN, hooks=[Before(lambda call: call.replace({"order": order}))])
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        assert [result.state for result in await said(runtime, agent)] == ["ok"]
        assert (shop.done, await check(runtime.store)) == ([(order, 100)], [])


async def test_arguments_of_a_hook_that_are_too_large_to_be_recorded_are_a_denial(shop: Shop, tmp_path: Path) -> None:
    agent = shop.agent(policy=OPEN, hooks=[Before(lambda call: call.replace({"order": "x" * 40_000_000}))])
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        await sent(runtime, agent)
        await ended(runtime)
        assert shop.done == []


# ---- answering without calling ---------------------------------------------------------------------------------------


async def test_a_hook_may_answer_in_place_of_a_tool(shop: Shop) -> None:
    agent = shop.agent(policy=OPEN, hooks=[Before(lambda call: call.answer({"from": "the cache"}))])
    async with hf.open(None, agents=[agent]) as runtime:
        (result,) = await said(runtime, agent)
        assert (result.state, result.content, shop.done) == ("ok", {"from": "the cache"}, [])


async def test_an_answer_of_a_hook_leaves_a_store_without_fault(shop: Shop, tmp_path: Path) -> None:
    agent = shop.agent(policy=OPEN, hooks=[Before(lambda call: call.answer(None))])
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        await said(runtime, agent)
        assert await check(runtime.store) == []


@pytest.mark.parametrize("value", ODD.values(), ids=ODD)
async def test_an_answer_of_a_hook_that_is_no_json_ends_no_turn(shop: Shop, value: object) -> None:
    # FINDING: runtime/authorising.py `_hooks`: `encode_value(value)` raises for what msgspec can write and we can't
    # keep (NaN, a set, ...); the turn fails, and the call has no result of its own.
    agent = shop.agent(policy=OPEN, hooks=[Before(lambda call: call.answer(value))])
    async with hf.open(None, agents=[agent]) as runtime:
        await sent(runtime, agent)
        assert (await ended(runtime)).status == "completed"
        assert shop.done == []


async def test_a_large_answer_of_a_hook_reaches_the_model(shop: Shop, tmp_path: Path) -> None:
    value = ["x" * 1_000] * 300
    agent = shop.agent(policy=OPEN, hooks=[Before(lambda call: call.answer(value))])
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        (result,) = await said(runtime, agent)
        assert (result.content, await check(runtime.store)) == (value, [])


# ---- asking ----------------------------------------------------------------------------------------------------------


async def test_a_hook_may_ask_a_person(shop: Shop) -> None:
    agent = shop.agent(policy=OPEN, hooks=[Before(lambda call: call.ask("it is late"))])
    async with hf.open(None, agents=[agent]) as runtime:
        shown = await asked_once(runtime, agent)
        assert (shown.why, shop.done) == ("it is late", [])


@pytest.mark.parametrize(("answer", "done"), [("approve", [("7", 900)]), ("deny", [])])
async def test_what_a_hook_asks_is_answered_like_anything_else(shop: Shop, answer: str, done: list[Any]) -> None:
    agent = shop.agent(policy=OPEN, hooks=[Before(lambda call: call.ask("it is late"))])
    async with hf.open(None, agents=[agent]) as runtime:
        await getattr(runtime, answer)((await asked_once(runtime, agent)).id)
        await ended(runtime)
        assert shop.done == done


async def test_where_the_policy_asks_too_a_person_also_sees_why_the_hook_asks(shop: Shop) -> None:
    # FINDING: runtime/authorising.py `_authorise`: the hook's reason is dropped where the policy asks as well.
    agent = shop.agent(hooks=[Before(lambda call: call.ask("it is late"))])
    async with hf.open(None, agents=[agent]) as runtime:
        assert "it is late" in (await asked_once(runtime, agent)).why


async def test_of_two_hooks_that_ask_a_person_sees_both_reasons(shop: Shop) -> None:
    # FINDING: runtime/authorising.py `_hooks`: the last reason takes the place of those before.
    hooks = [Before(lambda call: call.ask("it is late")), Before(lambda call: call.ask("it is much"))]
    agent = shop.agent(policy=OPEN, hooks=hooks)
    async with hf.open(None, agents=[agent]) as runtime:
        why = (await asked_once(runtime, agent)).why
        assert "it is late" in why
        assert "it is much" in why


# ---- once ------------------------------------------------------------------------------------------------------------


async def test_a_hook_is_not_asked_again_when_a_parked_turn_goes_on(shop: Shop) -> None:
    hook = Before(lambda call: None)
    agent = shop.agent(hooks=[hook])
    async with hf.open(None, agents=[agent]) as runtime:
        await runtime.approve((await asked_once(runtime, agent)).id)
        await ended(runtime)
        assert len(hook.calls) == 1


async def test_a_hook_is_not_asked_again_after_a_restart(shop: Shop, tmp_path: Path) -> None:
    hook = Before(lambda call: call.ask("sure?"))
    agent = shop.agent(policy=OPEN, hooks=[hook])
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        shown = await asked_once(runtime, agent)
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        await runtime.approve(shown.id)
        await ended(runtime)
        assert (len(hook.calls), shop.done) == (1, [("7", 900)])


async def test_a_hook_that_decides_otherwise_after_a_restart_changes_nothing(shop: Shop, tmp_path: Path) -> None:
    agent = shop.agent(hooks=[Before(halved)])
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        shown = await asked_once(runtime, agent)
    other = shop.agent(hooks=[Before(lambda call: call.replace({"order": "other"}))])
    async with hf.open(tmp_path / "s.db", agents=[other]) as runtime:
        await runtime.approve(shown.id)
        await ended(runtime)
        assert shop.done == [("7", 450)]


def held(shop: Shop, begun: asyncio.Event) -> hf.Tool[..., Any]:
    """A call that may be repeated, and that is left in the middle the first time."""

    @hf.tool(idempotent=True)
    async def refund(order: str, cents: int = 100) -> str:
        """Refund an order."""
        shop.done.append((order, cents))
        if not begun.is_set():
            begun.set()
            await asyncio.Event().wait()
        return "refunded"

    return refund


async def test_a_call_that_is_repeated_after_a_crash_has_the_arguments_that_were_decided(
    shop: Shop, tmp_path: Path
) -> None:
    begun, hook = asyncio.Event(), Before(halved)
    agent = shop.agent(policy=OPEN, tools=[held(shop, begun)], hooks=[hook])
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        await sent(runtime, agent)
        await asyncio.wait_for(begun.wait(), SOON)
        await runtime.close(grace=0)
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        await ended(runtime)
        assert (shop.done, len(hook.calls)) == ([("7", 450), ("7", 450)], 1)


async def _asked_by_a_hook(shop: Shop, path: Path) -> hf.Approval:
    """A call that a hook asks about, in a process that is gone."""
    agent = shop.agent(policy=OPEN, hooks=[Before(lambda call: call.ask("sure?"))])
    async with hf.open(path, agents=[agent]) as runtime:
        return await asked_once(runtime, agent)


@pytest.mark.parametrize("answer", ["deny", "expire"])
async def test_what_a_person_denied_is_not_done_although_the_hook_that_asked_is_gone(
    shop: Shop, answer: str, tmp_path: Path
) -> None:
    # FINDING: runtime/authorising.py `_hooks` looks at recorded decisions only where somebody wrote `before_tool`: in a
    # process without the hook what it asked (or denied) is forgotten, and the denied call is made.
    shown = await _asked_by_a_hook(shop, tmp_path / "s.db")
    async with hf.open(tmp_path / "s.db", drive=False) as other:
        if answer == "deny":
            await other.deny(shown.id, "no")
        else:
            (wait,) = await other.waits(SESSION)
            await other.store.cancel_wait(SESSION, wait.name)
    async with hf.open(tmp_path / "s.db", agents=[shop.agent(policy=OPEN)]) as runtime:
        await ended(runtime)
        assert shop.done == []


# ---- the turn and the model ------------------------------------------------------------------------------------------


class Turns(hf.Hooks):
    """Denies turns."""

    def __init__(self, decide: Callable[[hf.HookTurn], Any]) -> None:
        self.count = 0
        self._decide = decide

    async def before_turn(self, turn: hf.HookTurn) -> Deny | None:
        self.count += 1
        return self._decide(turn)


class Models(hf.Hooks):
    """Decides about questions to the model, and about replies."""

    def __init__(
        self,
        before: Callable[[hf.HookRequest], Any] = lambda _: None,
        after: Callable[[hf.HookRequest, ModelReply], Any] = lambda *_: None,
    ) -> None:
        self._before = before
        self._after = after

    async def before_model(self, asked: hf.HookRequest) -> ModelDecision | None:
        return self._before(asked)

    async def after_model(self, asked: hf.HookRequest, reply: ModelReply) -> Deny | None:
        return self._after(asked, reply)


async def how_it_ended(agent: hf.Agent) -> hf.TurnOutcome:
    async with hf.open(None, agents=[agent]) as runtime:
        await sent(runtime, agent)
        return await ended(runtime)


DENIALS: dict[str, hf.Hooks] = {
    "before_turn": Turns(lambda turn: turn.deny("closed today")),
    "before_model": Models(lambda asked: asked.deny("closed today")),
    "after_model": Models(after=lambda asked, reply: hf.HookTurn("", "", "").deny("closed today")),
}


@pytest.mark.parametrize("hooks", DENIALS.values(), ids=DENIALS)
async def test_a_denied_turn_ends_as_failed_and_says_why(shop: Shop, hooks: hf.Hooks) -> None:
    outcome = await how_it_ended(shop.agent(policy=OPEN, hooks=[hooks]))
    assert (outcome.status, outcome.code) == ("failed", "denied")
    assert "closed today" in outcome.message
    assert shop.done == []


BROKEN: dict[str, hf.Hooks] = {
    "before_turn": Turns(raises),
    "before_model": Models(raises),
    "after_model": Models(after=raises),
}


@pytest.mark.parametrize("hooks", BROKEN.values(), ids=BROKEN)
async def test_a_hook_that_raises_before_or_after_the_model_denies(shop: Shop, hooks: hf.Hooks) -> None:
    outcome = await how_it_ended(shop.agent(policy=OPEN, hooks=[hooks]))
    assert (outcome.status, outcome.code) == ("failed", "denied")


async def test_the_model_of_a_denied_turn_is_not_asked(shop: Shop) -> None:
    agent = shop.agent(policy=OPEN, hooks=[Turns(lambda turn: turn.deny("no"))])
    await how_it_ended(agent)
    assert asked(agent) == []


async def test_the_session_goes_on_after_a_denied_turn(shop: Shop) -> None:
    hooks = Turns(lambda turn: turn.deny("no") if turn.turn == "t1" else None)
    agent = shop.agent(text("hello"), policy=OPEN, hooks=[hooks])
    async with hf.open(None, agents=[agent]) as runtime:
        await sent(runtime, agent)
        await ended(runtime)
        second = await sent(runtime, agent, "again")
        assert (await second.outcome(timeout=SOON)).status == "completed"


async def test_before_turn_is_asked_once_also_when_the_process_dies_in_the_first_model_call(
    shop: Shop, tmp_path: Path
) -> None:
    # FINDING: runtime/performing.py `_begun`: what before_turn decided is not recorded; a turn that was left before its
    # first outcome asks it again.
    reached = asyncio.Event()

    async def hangs(request: hf.ModelRequest) -> Any:
        if not reached.is_set():
            reached.set()
            await asyncio.Event().wait()
        return text("hello")

    hooks = Turns(lambda turn: None)
    agent = shop.agent(hangs, policy=OPEN, hooks=[hooks])
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        await sent(runtime, agent)
        await asyncio.wait_for(reached.wait(), SOON)
        await runtime.close(grace=0)
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        await ended(runtime)
        assert hooks.count == 1


async def test_a_hook_may_answer_in_place_of_the_model(shop: Shop) -> None:
    agent = shop.agent(policy=OPEN, hooks=[Models(lambda asked: asked.answer("from the cache"))])
    outcome = await how_it_ended(agent)
    assert (outcome.status, outcome.text, asked(agent)) == ("completed", "from the cache", [])


async def test_a_hook_sees_what_the_model_is_about_to_be_asked(shop: Shop) -> None:
    seen: list[str] = []

    def look(question: hf.HookRequest) -> None:
        message = question.request.messages[0]
        seen.append(message.text if isinstance(message, hf.UserMessage) else "")

    await how_it_ended(shop.agent(text("hello"), policy=OPEN, hooks=[Models(look)]))
    assert seen == ["go"]


async def test_a_reply_that_a_hook_denies_makes_no_call_and_is_not_in_the_history(shop: Shop) -> None:
    agent = shop.agent(policy=OPEN, hooks=[DENIALS["after_model"]])
    async with hf.open(None, agents=[agent]) as runtime:
        await sent(runtime, agent)
        await ended(runtime)
        history = await runtime.session(SESSION).history()
        assert [type(message) for message in history] == [hf.UserMessage]


# ---- after a call ----------------------------------------------------------------------------------------------------


async def test_a_hook_may_put_something_else_in_the_place_of_a_result(shop: Shop) -> None:
    agent = shop.agent(policy=OPEN, hooks=[After(lambda call, result: call.answer("withheld"))])
    async with hf.open(None, agents=[agent]) as runtime:
        (result,) = await said(runtime, agent)
        assert (result.content, shop.done) == ("withheld", [("7", 900)])


async def test_a_replaced_result_is_the_only_one_that_is_recorded(shop: Shop, tmp_path: Path) -> None:
    agent = shop.agent(policy=OPEN, hooks=[After(lambda call, result: call.answer("withheld"))])
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        await said(runtime, agent)
        assert await check(runtime.store, canaries=[b"refunded 900"]) == []


async def test_the_next_hook_sees_the_result_that_the_one_before_has_made(shop: Shop) -> None:
    # FINDING: runtime/hooking.py `after_tool`: each hook is shown the first result, and the last one counts; what one
    # hook has taken out the next one puts back.
    second = After(lambda call, result: call.answer(f"{result.content}!"))
    agent = shop.agent(policy=OPEN, hooks=[After(lambda call, result: call.answer("withheld")), second])
    async with hf.open(None, agents=[agent]) as runtime:
        (result,) = await said(runtime, agent)
        assert result.content == "withheld!"


async def test_a_hook_that_raises_after_a_call_withholds_its_result(shop: Shop) -> None:
    agent = shop.agent(policy=OPEN, hooks=[After(raises)])
    async with hf.open(None, agents=[agent]) as runtime:
        (result,) = await said(runtime, agent)
        assert result.state == "error"
        assert "refunded" not in result.content
        assert "took effect" in result.content


async def test_what_one_hook_withholds_by_raising_no_other_restores(shop: Shop) -> None:
    # FINDING: runtime/hooking.py `after_tool`: a denial is not final; the next hook that says something takes its place.
    agent = shop.agent(policy=OPEN, hooks=[After(raises), After(lambda call, result: call.answer(result.content))])
    async with hf.open(None, agents=[agent]) as runtime:
        (result,) = await said(runtime, agent)
        assert (result.state, "refunded" in str(result.content)) == ("error", False)


async def test_a_hook_sees_how_a_call_failed_and_may_say_something_else(shop: Shop) -> None:
    @hf.tool
    async def refund(order: str, cents: int) -> str:
        """Refund an order."""
        raise RuntimeError("no money")

    hook = After(lambda call, result: call.answer("try tomorrow"))
    agent = shop.agent(policy=OPEN, tools=[refund], hooks=[hook])
    async with hf.open(None, agents=[agent]) as runtime:
        (result,) = await said(runtime, agent)
        assert ([seen.state for seen in hook.seen], result.content) == (["error"], "try tomorrow")


@pytest.mark.parametrize("value", ODD.values(), ids=ODD)
async def test_a_result_of_a_hook_that_is_no_json_is_withheld(shop: Shop, value: object) -> None:
    agent = shop.agent(policy=OPEN, hooks=[After(lambda call, result: call.answer(value))])
    async with hf.open(None, agents=[agent]) as runtime:
        (result,) = await said(runtime, agent)
        assert (result.state, shop.done) == ("error", [("7", 900)])


async def test_a_result_is_not_made_something_else_twice(shop: Shop, tmp_path: Path) -> None:
    hook = After(lambda call, result: call.answer(f"({result.content})"))
    agent = shop.agent([call("note", text="x"), CALL], hooks=[hook])
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        shown = await asked_once(runtime, agent)
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        await runtime.approve(shown.id)
        assert [result.content for result in await told(runtime)] == ["(noted x)", "(refunded 900)"]


# ---- observing -------------------------------------------------------------------------------------------------------


class Broken(hf.Hooks):
    """Raises where it only observes."""

    async def after_turn(self, turn: hf.HookTurn, ending: Ending) -> None:
        raises()

    async def on_error(self, turn: hf.HookTurn, error: Exception) -> None:
        raises()

    async def on_notification(self, turn: hf.HookTurn, text: str) -> None:
        raises()


async def test_a_hook_that_raises_where_it_observes_is_told_and_the_turn_goes_on(shop: Shop) -> None:
    @hf.tool(read_only=True)
    async def fails() -> str:
        """Fail."""
        raise RuntimeError("no")

    agent = shop.agent(call("fails"), policy=OPEN, tools=[fails], hooks=[Broken()])
    async with hf.open(None, agents=[agent]) as runtime:
        found = await failures(runtime, lambda: said(runtime, agent))
        assert ("Broken", "on_error") in found
        assert (await ended(runtime)).status == "completed"


async def test_a_hook_that_raises_over_a_notification_does_not_keep_it_from_the_model(shop: Shop) -> None:
    agent = shop.agent(text("hello"), policy=OPEN, hooks=[Broken()])
    async with hf.open(None, agents=[agent]) as runtime:
        await sent(runtime, agent)
        await ended(runtime)
        await runtime.notify(SESSION, "the parcel is here")
        assert (await ended(runtime, turn="t2")).status == "completed"
        assert "the parcel is here" in str(asked(agent)[-1].messages)


async def test_a_notification_is_told_once(shop: Shop) -> None:
    seen = Seen()
    agent = shop.agent(text("hello"), policy=OPEN, hooks=[seen])
    async with hf.open(None, agents=[agent]) as runtime:
        await sent(runtime, agent)
        await ended(runtime)
        await runtime.notify(SESSION, "the parcel is here")
        await ended(runtime, turn="t2")
        assert seen.log.count("on_notification") == 1


async def test_a_call_that_fails_is_told_once(shop: Shop) -> None:
    @hf.tool
    async def refund(order: str, cents: int) -> str:
        """Refund an order."""
        raise RuntimeError("no money")

    seen = Seen()
    agent = shop.agent([CALL, call("note", text="x")], policy=[hf.ask("note"), hf.allow("*")], hooks=[seen])
    agent = shop.agent(
        [CALL, call("note", text="x")],
        policy=[hf.ask("note"), hf.allow("*")],
        tools=[refund, shop.note()],
        hooks=[seen],
    )
    async with hf.open(None, agents=[agent]) as runtime:
        await runtime.approve((await asked_once(runtime, agent)).id)
        await ended(runtime)
        errors = [line for line in seen.log if line.startswith("on_error")]
        assert len(errors) == 1
        assert "no money" in errors[0]


async def test_a_model_that_fails_is_told_once(shop: Shop) -> None:
    seen = Seen()
    await how_it_ended(shop.agent(error("overloaded"), policy=OPEN, hooks=[seen]))
    errors = [line for line in seen.log if line.startswith("on_error")]
    assert len(errors) == 1
    assert "overloaded" in errors[0]


@pytest.mark.parametrize("answer", ["approve", "deny"])
async def test_the_end_of_a_turn_that_was_parked_is_told_once(shop: Shop, answer: str) -> None:
    seen = Seen()
    agent = shop.agent(hooks=[seen])
    async with hf.open(None, agents=[agent]) as runtime:
        await getattr(runtime, answer)((await asked_once(runtime, agent)).id)
        await ended(runtime)

        async def is_told() -> bool:
            return "after_turn completed" in seen.log

        await until(is_told)
        assert [line for line in seen.log if line.startswith("after_turn")] == ["after_turn completed"]


async def test_the_beginning_of_a_turn_that_was_parked_is_told_once(shop: Shop, tmp_path: Path) -> None:
    seen = Seen()
    agent = shop.agent(hooks=[seen])
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        shown = await asked_once(runtime, agent)
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        await runtime.approve(shown.id)
        await ended(runtime)
        assert seen.log.count("before_turn") == 1


async def test_the_end_of_a_cancelled_turn_is_told(shop: Shop) -> None:
    seen = Seen()
    agent = shop.agent(hooks=[seen])
    async with hf.open(None, agents=[agent]) as runtime:
        await asked_once(runtime, agent)
        await runtime.session(SESSION).cancel("enough")
        await ended(runtime)

        async def is_told() -> bool:
            return "after_turn cancelled" in seen.log

        await until(is_told)


async def test_the_end_of_a_denied_turn_is_told(shop: Shop) -> None:
    seen = Seen()
    agent = shop.agent(policy=OPEN, hooks=[Turns(lambda turn: turn.deny("no")), seen])
    async with hf.open(None, agents=[agent]) as runtime:
        await sent(runtime, agent)
        await ended(runtime)

        async def is_told() -> bool:
            return seen.log == ["after_turn failed"]

        await until(is_told)


# ---- a hook that takes its time --------------------------------------------------------------------------------------


class Slow(hf.Hooks):
    """Does not come to a decision."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()

    async def before_tool(self, call: hf.HookCall) -> ToolDecision | None:
        self.reached.set()
        await asyncio.Event().wait()


async def test_a_turn_can_be_cancelled_while_a_hook_thinks(shop: Shop) -> None:
    hook = Slow()
    agent = shop.agent(policy=OPEN, hooks=[hook])
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await sent(runtime, agent)
        await asyncio.wait_for(hook.reached.wait(), SOON)
        await turn.cancel("enough")
        assert (await turn.outcome(timeout=SOON)).status == "cancelled"
        assert shop.done == []
        assert pairs_are_whole(await runtime.session(SESSION).history())


def names(hooks: Sequence[hf.Hooks]) -> list[str]:
    return [hook.name for hook in hooks]


async def test_a_hook_has_the_name_of_its_class() -> None:
    assert names([Seen(), Slow()]) == ["Seen", "Slow"]


async def test_hooks_and_a_policy_that_asks_go_together_in_one_step(shop: Shop) -> None:
    hook = Before(lambda call: call.deny("no") if call.arguments["order"] == "2" else None)
    calls = [call("refund", order="1"), call("refund", order="2"), call("refund", order="3")]
    agent = shop.agent(calls, policy=ASKING, hooks=[hook])
    async with hf.open(None, agents=[agent]) as runtime:
        await sent(runtime, agent)
        first, second = await parked(runtime, 2)
        await runtime.approve(first.id)
        await runtime.approve(second.id)
        assert [result.state for result in await told(runtime)] == ["ok", "error", "ok"]
        assert sorted(shop.done) == [("1", 100), ("3", 100)]
