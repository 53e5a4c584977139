"""Tools that answer later: `ctx.defer` gives a key, and the result of the call is what is given for it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from tests.behaviour.background import results
from tests.behaviour.talk import SOON, at_rest, until

import holdfast as hf
from holdfast.testing import ManualClock, ScriptedModel, call, check, text

if TYPE_CHECKING:
    from pathlib import Path


@dataclass
class Verdict:
    ok: bool
    why: str = ""


class Desk:
    """Whoever gets the keys."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.calls: list[str] = []
        self.deadlines: list[Any] = []

    def tool(self, name: str = "ask", **said: Any) -> hf.Tool[..., Any]:
        terms: dict[str, Any] = {key: said.pop(key) for key in ("timeout", "default") if key in said}

        @hf.tool(name, **said)
        async def asks(ctx: hf.Context) -> Any:
            pending = await ctx.defer(**terms)
            self.keys.append(pending.key)
            self.calls.append(ctx.key)
            self.deadlines.append(pending.deadline)
            return pending

        return asks


def _agent(*tools: hf.Tool[..., Any], script: Any = None) -> hf.Agent:
    model = ScriptedModel(script or [call(tools[0]), text("done"), text("next")])
    return hf.Agent("a", model=model, tools=list(tools), policy=[hf.allow("*")])


async def _waiting(runtime: hf.Runtime, agent: hf.Agent) -> hf.Turn:
    """A turn that waits for what its tool was promised."""
    turn = await runtime.session("s", agent=agent).send("x")
    await at_rest(runtime, "s")
    return turn


# ---- answers ---------------------------------------------------------------------------------------------------------


async def test_the_result_of_a_call_is_what_is_given_later() -> None:
    desk = Desk()
    agent = _agent(desk.tool())
    async with hf.open(None, agents=[agent]) as runtime:
        turn, session = await _waiting(runtime, agent), runtime.session("s")
        assert (await runtime.resolve(desk.keys[0], {"ok": True})).won
        await turn.outcome(timeout=SOON)
        assert [(result.state, result.content) for result in results(await session.history())] == [("ok", {"ok": True})]
        assert await check(runtime.store) == []


async def test_the_tool_is_not_called_again_when_the_answer_comes() -> None:
    desk = Desk()
    agent = _agent(desk.tool(idempotent=True))
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await _waiting(runtime, agent)
        await runtime.resolve(desk.keys[0], 1)
        await turn.outcome(timeout=SOON)
        assert len(desk.keys) == 1


async def test_a_parked_deferral_goes_on_in_another_process(tmp_path: Path) -> None:
    desk = Desk()
    agent = _agent(desk.tool())
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        await _waiting(runtime, agent)
    async with hf.open(tmp_path / "s.db", drive=False) as outside:
        assert (await outside.resolve(desk.keys[0], "later")).won
    agent = _agent(desk.tool())
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        await session.turn("t1").outcome(timeout=SOON)
        assert [result.content for result in results(await session.history())] == ["later"]
    assert len(desk.keys) == 1


async def test_an_answer_that_comes_before_the_tool_has_returned_counts() -> None:
    runtimes: list[hf.Runtime] = []

    @hf.tool
    async def quick(ctx: hf.Context) -> Any:
        pending = await ctx.defer()
        assert (await runtimes[0].resolve(pending.key, "at once")).won
        return pending

    agent = _agent(quick)
    async with hf.open(None, agents=[agent]) as runtime:
        runtimes.append(runtime)
        session = runtime.session("s", agent=agent)
        await (await session.send("x")).outcome(timeout=SOON)
        assert [result.content for result in results(await session.history())] == ["at once"]


async def test_the_first_answer_counts_and_the_second_is_told_so() -> None:
    desk = Desk()
    agent = _agent(desk.tool())
    async with hf.open(None, agents=[agent]) as runtime:
        turn, session = await _waiting(runtime, agent), runtime.session("s")
        settled = await asyncio.gather(*(runtime.resolve(desk.keys[0], number) for number in range(5)))
        assert [settlement.won for settlement in settled] == [True, False, False, False, False]
        await turn.outcome(timeout=SOON)
        late = await runtime.resolve(desk.keys[0], 9)
        assert (late.won, late.wait.payload) == (False, b"0")
        assert [result.content for result in results(await session.history())] == [0]


async def test_a_forged_key_answers_nothing() -> None:
    desk = Desk()
    agent = _agent(desk.tool())
    async with hf.open(None, agents=[agent]) as runtime:
        await _waiting(runtime, agent)
        head, _, signature = desk.keys[0].rpartition(".")
        forged = f"{head}.{signature[:-4]}AAAA"
        with pytest.raises(hf.errors.WaitUnknown):
            await runtime.resolve(forged, 1)
        assert (await runtime.resolve(desk.keys[0], 2)).won


async def test_a_failure_can_be_given_in_place_of_an_answer() -> None:
    desk = Desk()
    agent = _agent(desk.tool())
    async with hf.open(None, agents=[agent]) as runtime:
        turn, session = await _waiting(runtime, agent), runtime.session("s")
        assert (await runtime.resolve(desk.keys[0], error="the printer burns")).won
        await turn.outcome(timeout=SOON)
        (result,) = results(await session.history())
        assert (result.state, result.content) == ("error", "WaitFailed: the printer burns")


async def test_a_value_and_an_error_at_once_are_refused() -> None:
    async with hf.open(None) as runtime:
        with pytest.raises(hf.UsageError, match="not both"):
            await runtime.resolve("any", 1, error="no")


async def test_a_failure_can_be_given_to_a_tool_that_waits() -> None:
    tokens: list[str] = []

    @hf.tool(read_only=True)
    async def waits(ctx: hf.Context) -> str:
        tokens.append(ctx.wait_token("go"))
        try:
            return await ctx.wait("go")
        except hf.errors.WaitFailed as error:
            return f"no: {error.message}"

    agent = _agent(waits)
    async with hf.open(None, agents=[agent]) as runtime:
        turn, session = await _waiting(runtime, agent), runtime.session("s")
        await runtime.resolve(tokens[0], error="closed today")
        await turn.outcome(timeout=SOON)
        assert [result.content for result in results(await session.history())] == ["no: closed today"]


async def test_a_large_answer_is_kept_whole() -> None:
    desk = Desk()
    agent = _agent(desk.tool(output_limit=200_000))
    async with hf.open(None, agents=[agent]) as runtime:
        turn, session = await _waiting(runtime, agent), runtime.session("s")
        await runtime.resolve(desk.keys[0], "y" * 100_000)
        await turn.outcome(timeout=SOON)
        assert [len(result.content) for result in results(await session.history())] == [100_000]
        assert await check(runtime.store) == []


# ---- what an answer must be ------------------------------------------------------------------------------------------


def _typed(desk: Desk) -> hf.Tool[..., Any]:
    @hf.tool
    async def judge(ctx: hf.Context) -> Verdict | hf.Deferred[Verdict]:
        pending: hf.Deferred[Verdict] = await ctx.defer()
        desk.keys.append(pending.key)
        return pending

    return judge


async def test_an_answer_that_is_no_result_of_the_tool_is_refused_and_a_better_one_counts() -> None:
    desk = Desk()
    agent = _agent(_typed(desk))
    async with hf.open(None, agents=[agent]) as runtime:
        turn, session = await _waiting(runtime, agent), runtime.session("s")
        with pytest.raises(hf.errors.AnswerInvalid, match="'judge': ok"):
            await runtime.resolve(desk.keys[0], {"ok": "maybe"})
        assert (await runtime.resolve(desk.keys[0], {"ok": True})).won
        await turn.outcome(timeout=SOON)
        assert [result.content for result in results(await session.history())] == [{"ok": True}]


async def test_an_answer_taken_where_the_tool_is_not_known_is_checked_when_it_is_used(tmp_path: Path) -> None:
    desk = Desk()
    agent = _agent(_typed(desk))
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        turn, session = await _waiting(runtime, agent), runtime.session("s")
        async with hf.open(tmp_path / "s.db", drive=False, mirror=False) as outside:
            assert (await outside.resolve(desk.keys[0], "yes")).won
        await turn.outcome(timeout=SOON)
        (result,) = results(await session.history())
        assert result.state == "error"
        assert "AnswerInvalid: what was answered is no result of judge" in result.content


async def test_the_deferral_of_another_call_is_an_error() -> None:
    kept: list[Any] = []

    @hf.tool
    async def lazy(ctx: hf.Context) -> Any:
        kept.append(await ctx.defer())
        return kept[0]

    agent = _agent(lazy, script=[[call("lazy"), call("lazy")], text("done")])
    async with hf.open(None, agents=[agent]) as runtime:
        turn, session = await _waiting(runtime, agent), runtime.session("s")
        await runtime.resolve(kept[0].key, "mine")
        assert not (await runtime.resolve(kept[1].key, "yours")).won
        await turn.outcome(timeout=SOON)
        first, second = results(await session.history())
        assert first.content == "mine"
        assert "deferral of another call" in second.content


# ---- time ------------------------------------------------------------------------------------------------------------


async def test_a_deferral_tells_its_deadline() -> None:
    desk = Desk()
    clock = ManualClock()
    agent = _agent(desk.tool(timeout=timedelta(days=2)))
    async with hf.open(None, agents=[agent], clock=clock) as runtime:
        await _waiting(runtime, agent)
        assert desk.deadlines[0].timestamp() * 1000 == clock.read().wall + 2 * 86_400_000


@pytest.mark.parametrize(
    ("default", "state", "content"),
    [
        (None, "error", "WaitExpired: no answer came in time"),
        ({"default": "as usual"}, "ok", "as usual"),
        ({"default": None}, "ok", None),
    ],
    ids=["none", "text", "null"],
)
async def test_when_nobody_answers_the_result_is_an_error_or_the_default(
    default: dict[str, Any] | None, state: str, content: object
) -> None:
    desk = Desk()
    agent = _agent(desk.tool(timeout=0.05, **(default or {})))
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        await (await session.send("x")).outcome(timeout=SOON)
        assert [(result.state, result.content) for result in results(await session.history())] == [(state, content)]
        late = await runtime.resolve(desk.keys[0], 1)
        assert (late.won, late.wait.state) == (False, "expired")
        assert await check(runtime.store) == []


async def test_a_default_is_known_in_the_process_that_finds_the_time_is_up(tmp_path: Path) -> None:
    desk = Desk()
    clock = ManualClock()
    agent = _agent(desk.tool(timeout=60, default="nobody"))
    async with hf.open(tmp_path / "s.db", agents=[agent], clock=clock) as runtime:
        await _waiting(runtime, agent)
    clock.advance(61_000)
    agent = _agent(desk.tool(timeout=60, default="nobody"))
    async with hf.open(tmp_path / "s.db", agents=[agent], clock=clock) as runtime:
        session = runtime.session("s", agent=agent)
        await session.turn("t1").outcome(timeout=SOON)
        assert [result.content for result in results(await session.history())] == ["nobody"]


async def test_a_default_that_has_no_json_form_is_refused_where_it_is_given() -> None:
    agent = _agent(Desk().tool(default=object()))
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        await (await session.send("x")).outcome(timeout=SOON)
        (result,) = results(await session.history())
        assert result.state == "error"


# ---- ends ------------------------------------------------------------------------------------------------------------


async def test_cancelling_the_turn_closes_the_deferral() -> None:
    desk = Desk()
    agent = _agent(desk.tool())
    async with hf.open(None, agents=[agent]) as runtime:
        turn, session = await _waiting(runtime, agent), runtime.session("s")
        await turn.cancel("enough")
        await turn.outcome(timeout=SOON)
        late = await runtime.resolve(desk.keys[0], 1)
        assert (late.won, late.wait.state) == (False, "cancelled")
        assert [result.state for result in results(await session.history())] == ["unknown"]  # it has asked somebody
        assert await check(runtime.store) == []


async def test_cancelling_the_turn_closes_what_a_tool_waits_for() -> None:
    tokens: list[str] = []

    @hf.tool(read_only=True)
    async def waits(ctx: hf.Context) -> str:
        tokens.append(ctx.wait_token("go"))
        return await ctx.wait("go")

    agent = _agent(waits)
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await _waiting(runtime, agent)
        await turn.cancel("enough")
        await turn.outcome(timeout=SOON)
        assert not (await runtime.resolve(tokens[0], 1)).won


async def test_a_tool_that_fails_after_it_has_deferred_closes_it() -> None:
    keys: list[str] = []

    @hf.tool
    async def breaks(ctx: hf.Context) -> Any:
        keys.append((await ctx.defer()).key)
        message = "no post today"
        raise OSError(message)

    agent = _agent(breaks)
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        await (await session.send("x")).outcome(timeout=SOON)
        assert [result.content for result in results(await session.history())] == ["OSError: no post today"]
        assert not (await runtime.resolve(keys[0], 1)).won


# ---- several ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [{}, {"read_only": True}, {"idempotent": True}], ids=["acts", "reads", "idempotent"])
async def test_calls_side_by_side_are_all_asked_at_once_and_get_each_their_own_answer(kind: dict[str, Any]) -> None:
    desk = Desk()
    agent = _agent(desk.tool(**kind), script=[[call("ask"), call("ask"), call("ask")], text("done")])
    async with hf.open(None, agents=[agent]) as runtime:
        turn, session = await _waiting(runtime, agent), runtime.session("s")
        assert len(set(desk.keys)) == 3
        for key, place in reversed(list(zip(desk.keys, desk.calls, strict=True))):
            assert (await runtime.resolve(key, place)).won
            await asyncio.sleep(0)
        await turn.outcome(timeout=SOON)
        assert [result.content for result in results(await session.history())] == sorted(desk.calls)
        assert len(desk.keys) == 3
        assert await check(runtime.store) == []


async def test_a_call_in_the_background_can_be_deferred() -> None:
    desk = Desk()
    agent = _agent(desk.tool(background=True), script=[call("ask"), text("begun"), text("told")])
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        await (await session.send("x")).outcome(timeout=SOON)
        (line,) = await runtime.tasks.list(session="s")

        async def waits() -> bool:
            return (await runtime.tasks.task(line.id)).status == "waiting"

        await until(waits)
        assert (await runtime.resolve(desk.keys[0], "found it")).won

        async def told() -> bool:
            return getattr((await session.history())[-1], "text", "") == "told"

        await until(told)
        assert "found it" in getattr((await session.history())[-2], "text", "")
        assert await check(runtime.store) == []


async def test_cancelling_a_task_closes_its_deferral() -> None:
    desk = Desk()
    agent = _agent(desk.tool(background=True), script=[call("ask"), text("begun"), text("told")])
    async with hf.open(None, agents=[agent]) as runtime:
        await (await runtime.session("s", agent=agent).send("x")).outcome(timeout=SOON)
        (line,) = await runtime.tasks.list(session="s")

        async def stands(status: str) -> bool:
            return (await runtime.tasks.task(line.id)).status == status

        await until(lambda: stands("waiting"))
        await runtime.tasks.cancel(line.id, "enough")
        await until(lambda: stands("cancelled"))
        assert not (await runtime.resolve(desk.keys[0], 1)).won


async def test_a_sub_agent_can_wait_for_an_answer() -> None:
    desk = Desk()
    below = hf.Agent(
        "below", model=ScriptedModel([call("ask"), text("it is blue")]), tools=[desk.tool()], policy=[hf.allow("*")]
    )
    above = hf.Agent(
        "above",
        model=ScriptedModel([call("below", prompt="Which colour?"), text("blue")]),
        tools=[hf.agent_tool(below)],
        policy=[hf.allow("*")],
    )
    async with hf.open(None, agents=[above]) as runtime:
        turn = await runtime.session("s", agent=above).send("x")

        async def asked() -> bool:
            return bool(desk.keys)

        await until(asked)
        assert (await runtime.resolve(desk.keys[0], "blue")).won
        assert (await turn.outcome(timeout=SOON)).text == "blue"


@pytest.mark.parametrize(
    ("kind", "state"),
    [({}, "unknown"), ({"idempotent": True}, "unknown"), ({"read_only": True}, "cancelled")],
    ids=["acts", "idempotent", "reads"],
)
async def test_of_calls_that_wait_when_the_turn_is_cancelled_none_counts_as_not_begun(
    kind: dict[str, Any], state: str, tmp_path: Path
) -> None:
    desk = Desk()
    agent = _agent(desk.tool(**kind), script=[[call("ask"), call("ask"), call("ask")], text("done")])
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        await _waiting(runtime, agent)
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        turn = runtime.session("s", agent=agent).turn("t1")
        await turn.cancel("enough")
        await turn.outcome(timeout=SOON)
        assert [result.state for result in results(await runtime.session("s").history())] == [state] * 3
        assert [(await runtime.resolve(key, 1)).won for key in desk.keys] == [False] * 3
        assert await check(runtime.store) == []


async def test_an_answer_counts_although_the_tool_is_gone(tmp_path: Path) -> None:
    desk = Desk()
    agent = _agent(desk.tool())
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        await _waiting(runtime, agent)
    other = _agent(Desk().tool("other"), script=[call("ask"), text("done")])
    async with hf.open(tmp_path / "s.db", agents=[other]) as runtime:
        await runtime.resolve(desk.keys[0], {"still": "here"})
        session = runtime.session("s", agent=other)
        await session.turn("t1").outcome(timeout=SOON)
        assert [result.content for result in results(await session.history())] == [{"still": "here"}]


async def test_nobody_is_asked_again_about_a_call_that_waits_for_its_answer(tmp_path: Path) -> None:
    desk = Desk()
    agent = _agent(desk.tool(idempotent=True))
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        await _waiting(runtime, agent)
    script = ScriptedModel([call("ask"), text("done")])
    strict = hf.Agent("a", model=script, tools=[desk.tool(idempotent=True)], policy=[hf.ask("*")])
    async with hf.open(tmp_path / "s.db", agents=[strict]) as runtime:
        await runtime.resolve(desk.keys[0], 1)
        session = runtime.session("s", agent=strict)
        await session.turn("t1").outcome(timeout=SOON)
        assert [result.content for result in results(await session.history())] == [1]
        assert await runtime.approvals() == []


async def test_a_default_that_is_too_long_is_an_error_of_the_call_and_the_turn_goes_on() -> None:
    agent = _agent(Desk().tool(default="x" * 40_000))
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        assert (await (await session.send("x")).outcome(timeout=SOON)).text == "done"
        (result,) = results(await session.history())
        assert "PayloadTooLarge: the default" in result.content


async def test_a_deferral_from_before_a_restart_ends_with_a_call_that_does_without_it(tmp_path: Path) -> None:
    keys: list[str] = []
    deferred, blocked, reached = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @hf.tool("ask", idempotent=True)
    async def ask(ctx: hf.Context) -> str:
        if not keys:
            keys.append((await ctx.defer()).key)
            deferred.set()
            await asyncio.Event().wait()
        return "at once"

    @hf.tool("stay", idempotent=True)
    async def stay() -> str:
        reached.set()
        await blocked.wait()
        return "gone on"

    agent = _agent(ask, stay, script=[call(ask), call(stay), text("done")])
    async with hf.open(tmp_path / "s.db", agents=[agent], mirror=False) as runtime:
        turn = await runtime.session("s", agent=agent).send("x")
        await asyncio.wait_for(deferred.wait(), SOON)
        await runtime.close(grace=0)
    async with hf.open(tmp_path / "s.db", agents=[agent], mirror=False) as runtime:
        await asyncio.wait_for(reached.wait(), SOON)
        assert not (await runtime.resolve(keys[0], "too late")).won
        blocked.set()
        await runtime.session("s").turn(turn.id).outcome(timeout=SOON)
        assert await check(runtime.store) == []
