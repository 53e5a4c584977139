"""A cancel is honoured wherever the turn is, within a second, once, and touches nothing else."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.behaviour.stage import A_SECOND, SOON, agent_of
from tests.behaviour.talk import asked, is_now, pairs_are_whole, states, until
from tests.patience import stopwatch

import holdfast as hf
from holdfast.messages import TextChunk, ToolMessage
from holdfast.records import Ended
from holdfast.testing import ScriptedModel, call, check, delayed, text

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.behaviour.stage import Stage

    from holdfast.messages import StreamEvent


async def cancelled_in_a_second(turn: hf.Turn, reason: str = "hung up") -> hf.TurnOutcome:
    async with stopwatch() as watch:
        assert await turn.cancel(reason) == "requested"
        outcome = await turn.outcome(timeout=SOON)
    assert watch.seconds < A_SECOND
    assert (outcome.status, outcome.message) == ("cancelled", reason)
    return outcome


# ---- wherever the turn is --------------------------------------------------------------------------------------------


async def test_a_queued_turn_is_cancelled_before_it_begins(stage: Stage) -> None:
    agent = agent_of(stage, [call("acts"), text("Done.")])
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        running = await session.send("first")
        await asyncio.wait_for(stage.reached.wait(), SOON)
        queued = await session.send("second")
        await cancelled_in_a_second(queued)
        stage.go_on.set()
        assert (await running.outcome(timeout=SOON)).text == "Done."
        assert "second" not in str(await session.history())
        assert await check(runtime.store) == []


async def test_a_turn_that_nobody_drives_yet_is_cancelled_where_it_begins(tmp_path: Path, stage: Stage) -> None:
    agent = agent_of(stage, [text("never")])
    async with hf.open(tmp_path / "s.db", agents=[agent], drive=False) as runtime:
        turn = await runtime.session("s", agent=agent).send("go")
        assert await turn.cancel("changed my mind") == "requested"
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        outcome = await runtime.session("s").turn(turn.id).outcome(timeout=SOON)
        assert (outcome.status, asked(agent)) == ("cancelled", [])


async def test_a_turn_is_cancelled_while_the_model_thinks(stage: Stage) -> None:
    agent = agent_of(stage, [delayed(60, text("late")), text("next")])
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        turn = await session.send("go")
        await until(lambda: _is_asked(agent))
        outcome = await cancelled_in_a_second(turn)
        assert outcome.text == ""
        assert [message.id for message in await session.history()] == ["t1.i1"]


async def _is_asked(agent: hf.Agent) -> bool:
    return bool(asked(agent))


class Endless:
    """Streams words and never comes to an end."""

    name = "endless"

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    async def stream(self, request: hf.ModelRequest) -> AsyncIterator[StreamEvent]:
        yield TextChunk("Once upon ")
        yield TextChunk("a time")
        self._stage.reached.set()
        await self._stage.go_on.wait()
        yield TextChunk(" there was")

    async def respond(self, request: hf.ModelRequest) -> hf.ModelReply:
        raise NotImplementedError


async def test_words_that_were_streamed_before_the_cancel_are_kept(stage: Stage) -> None:
    agent = hf.Agent("agent", model=Endless(stage))
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        turn = await session.send("go")
        await asyncio.wait_for(stage.reached.wait(), SOON)
        outcome = await cancelled_in_a_second(turn)
        assert outcome.text == "Once upon a time"
        last = (await session.history())[-1]
        assert isinstance(last, hf.AssistantMessage)
        assert (last.text, last.finish) == ("Once upon a time", "cancelled")


async def test_a_model_that_swallows_the_cancellation_does_not_carry_on_the_turn(stage: Stage) -> None:
    async def swallowing(request: hf.ModelRequest) -> Any:
        stage.reached.set()
        try:
            await stage.go_on.wait()
        except asyncio.CancelledError:
            return call("acts")
        return text("not reached")

    agent = agent_of(stage, [swallowing, text("Done.")])
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await runtime.session("s", agent=agent).send("go")
        await asyncio.wait_for(stage.reached.wait(), SOON)
        await cancelled_in_a_second(turn)
        assert stage.done == []


@pytest.mark.parametrize(
    ("tool", "state"),
    [("reads", "cancelled"), ("acts", "unknown"), ("blocks", "cancelled"), ("stubborn", "unknown")],
)
async def test_a_turn_is_cancelled_while_a_tool_runs(stage: Stage, tool: str, state: str) -> None:
    agent = agent_of(stage, [call(tool), text("next")])
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        turn = await session.send("go")
        await asyncio.wait_for(stage.reached.wait(), SOON)
        await cancelled_in_a_second(turn)
        assert states(await session.history()) == [state]
        stage.free.set()
        assert await check(runtime.store) == []


async def test_a_tool_that_swallows_the_cancellation_does_not_carry_on_the_turn(stage: Stage) -> None:
    agent = agent_of(stage, [call("swallows"), call("quick"), text("Done.")])
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await runtime.session("s", agent=agent).send("go")
        await asyncio.wait_for(stage.reached.wait(), SOON)
        await cancelled_in_a_second(turn)
        assert (stage.done, len(asked(agent))) == (["swallowed"], 1)


async def test_a_swallowed_cancellation_does_not_let_the_turn_complete(stage: Stage) -> None:
    agent = agent_of(stage, [call("swallows"), text("Done.")])
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await runtime.session("s", agent=agent).send("go")
        await asyncio.wait_for(stage.reached.wait(), SOON)
        await cancelled_in_a_second(turn)


async def test_a_tool_that_was_abandoned_changes_nothing_when_it_ends_after_all(stage: Stage) -> None:
    agent = agent_of(stage, [call("stubborn"), text("next")])
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        turn = await session.send("go")
        await asyncio.wait_for(stage.reached.wait(), SOON)
        await cancelled_in_a_second(turn)
        before = await session.history()
        stage.go_on.set()
        await (await session.send("and now?")).outcome(timeout=SOON)
        assert (await session.history())[: len(before)] == before
        assert await check(runtime.store) == []


async def test_a_turn_is_cancelled_while_it_waits_for_somebody(stage: Stage) -> None:
    agent = agent_of(stage, [call("asks"), text("next")])
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        turn = await session.send("go")
        await until(lambda: is_now(turn, "waiting"))
        await cancelled_in_a_second(turn)
        assert states(await session.history()) == ["cancelled"]
        assert await check(runtime.store) == []


async def test_a_cancelled_turn_waits_for_nobody_any_more(stage: Stage) -> None:
    agent = agent_of(stage, [call("asks"), text("next")])
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        turn = await session.send("go")
        await until(lambda: is_now(turn, "waiting"))
        await cancelled_in_a_second(turn)
        assert await runtime.waits("s") == []


async def test_an_answer_that_comes_after_the_cancel_changes_nothing(stage: Stage) -> None:
    agent = agent_of(stage, [call("asks"), text("next")])
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        turn = await session.send("go")
        await until(lambda: is_now(turn, "waiting"))
        (wait,) = await runtime.waits("s")
        token = runtime.wait_token("s", wait.name)
        await cancelled_in_a_second(turn)
        before = await session.history()
        settlement = await runtime.resolve(token, "yes")
        assert settlement.wait.state != "open"
        following = await (await session.send("and now?")).outcome(timeout=SOON)
        assert (following.text, (await session.history())[: len(before)]) == ("next", before)


async def test_a_tool_may_cancel_its_own_turn() -> None:
    turns: list[hf.Turn] = []

    @hf.tool(read_only=True)
    async def gives_up() -> str:
        await turns[0].cancel("gave up")
        return "not read by anybody"

    agent = hf.Agent(
        "agent",
        model=ScriptedModel([call("gives_up"), delayed(60, text("late"))]),
        tools=[gives_up],
        policy=[hf.allow("*")],
    )
    async with hf.open(None, agents=[agent]) as runtime:
        turns.append(runtime.session("s", agent=agent).turn("t1"))
        turn = await runtime.session("s", agent=agent).send("go")
        assert (await turn.outcome(timeout=SOON)).message == "gave up"


async def test_a_turn_of_a_closed_runtime_is_cancelled_by_the_one_that_opens_next(tmp_path: Path, stage: Stage) -> None:
    agent = agent_of(stage, [call("acts"), text("Done.")])
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        turn = await runtime.session("s", agent=agent).send("go")
        await asyncio.wait_for(stage.reached.wait(), SOON)
        await runtime.close(grace=0)
    async with hf.open(tmp_path / "s.db", agents=[agent], drive=False) as runtime:
        assert await runtime.session("s").turn(turn.id).cancel("while closed") == "requested"
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        outcome = await runtime.session("s").turn(turn.id).outcome(timeout=SOON)
        assert (outcome.status, outcome.message) == ("cancelled", "while closed")
        assert (states(await runtime.session("s").history()), len(asked(agent))) == (["unknown"], 1)


async def test_a_cancel_that_another_process_accepted_before_the_intent_of_a_call_keeps_it_from_running(
    tmp_path: Path,
) -> None:
    ran: list[bool] = []

    @hf.tool
    async def act() -> None:
        """Do something that can't be undone."""
        ran.append(True)

    script = ScriptedModel([call("act"), text("Done.")])

    class Meanwhile:
        """A model during whose reply another process cancels the turn."""

        name = script.name

        async def stream(self, request: hf.ModelRequest) -> AsyncIterator[StreamEvent]:
            assert await elsewhere.session("s").turn("t1").cancel("elsewhere") == "requested"
            async for event in script.stream(request):
                yield event

    agent = hf.Agent("a", model=Meanwhile(), tools=[act], policy=[hf.allow("*")])
    async with (
        hf.open(tmp_path / "s.db", agents=[agent]) as runtime,
        hf.open(tmp_path / "s.db", drive=False) as elsewhere,
    ):
        turn = await runtime.session("s", agent=agent).send("go")
        outcome = await turn.outcome(timeout=SOON)
    assert (outcome.status, outcome.message, ran) == ("cancelled", "elsewhere", [])


# ---- once, and nothing else ------------------------------------------------------------------------------------------


async def test_the_first_cancel_counts(stage: Stage) -> None:
    agent = agent_of(stage, [call("stubborn")])
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await runtime.session("s", agent=agent).send("go")
        await asyncio.wait_for(stage.reached.wait(), SOON)
        answers = [await turn.cancel("first"), await turn.cancel("second"), await turn.cancel("first")]
        assert answers == ["requested", "already_requested", "already_requested"]
        assert (await turn.outcome(timeout=SOON)).message == "first"


async def test_of_many_cancels_at_once_one_counts(stage: Stage) -> None:
    agent = agent_of(stage, [call("acts")])
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await runtime.session("s", agent=agent).send("go")
        await asyncio.wait_for(stage.reached.wait(), SOON)
        answers = await asyncio.gather(*(turn.cancel(f"reason {n}") for n in range(20)))
        assert answers.count("requested") == 1
        assert (await turn.outcome(timeout=SOON)).message == f"reason {answers.index('requested')}"


async def test_a_cancel_after_the_end_is_too_late_and_changes_nothing(stage: Stage) -> None:
    agent = agent_of(stage, [text("Done.")])
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        turn = await session.send("go")
        await turn.outcome(timeout=SOON)
        head = (await runtime.store.journal("s")).head
        assert (await turn.cancel("late"), await session.cancel("late")) == ("too_late", "too_late")
        assert (await runtime.store.journal("s")).head == head


async def test_a_second_cancel_after_the_end_is_too_late(stage: Stage) -> None:
    agent = agent_of(stage, [call("acts")])
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await runtime.session("s", agent=agent).send("go")
        await asyncio.wait_for(stage.reached.wait(), SOON)
        await cancelled_in_a_second(turn)
        assert await turn.cancel("again") == "too_late"


async def test_cancelling_one_turn_leaves_the_next_one_alone(stage: Stage) -> None:
    agent = agent_of(stage, [call("acts"), text("answer")])
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        first = await session.send("first")
        await asyncio.wait_for(stage.reached.wait(), SOON)
        second = await session.send("second")
        await cancelled_in_a_second(first)
        assert (await second.outcome(timeout=SOON)).text == "answer"


async def test_cancelling_in_one_session_leaves_the_same_turn_of_another_alone(stage: Stage) -> None:
    agent = agent_of(stage, [call("acts"), text("Done.")])
    async with hf.open(None, agents=[agent]) as runtime:
        first, second = [await runtime.session(name, agent=agent).send("go") for name in ("a", "b")]
        await until(lambda: _both_run(first, second))
        await cancelled_in_a_second(first)
        stage.go_on.set()
        assert (second.id, (await second.outcome(timeout=SOON)).text) == (first.id, "Done.")


async def _both_run(*turns: hf.Turn) -> bool:
    return all([await turn.status() == "running" for turn in turns])


async def test_a_session_cancels_the_turn_that_is_under_way(stage: Stage) -> None:
    agent = agent_of(stage, [call("acts"), text("answer")])
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        first = await session.send("first")
        await asyncio.wait_for(stage.reached.wait(), SOON)
        second = await session.send("second")
        assert await session.cancel("enough") == "requested"
        assert (await first.outcome(timeout=SOON)).message == "enough"
        assert (await second.outcome(timeout=SOON)).text == "answer"


async def test_a_key_of_the_host_does_not_stand_in_the_way_of_a_cancel(stage: Stage) -> None:
    agent = agent_of(stage, [call("acts"), text("answer"), text("answer")])
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        turn = await session.send("first")
        await asyncio.wait_for(stage.reached.wait(), SOON)
        await session.send("a perfectly good message", key=f"cancel:{turn.id}")
        await cancelled_in_a_second(turn)


async def test_a_cancel_does_not_take_a_key_from_the_host(stage: Stage) -> None:
    agent = agent_of(stage, [call("acts"), text("answer")])
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        turn = await session.send("first")
        await asyncio.wait_for(stage.reached.wait(), SOON)
        await cancelled_in_a_second(turn)
        assert (await (await session.send("hello", key=f"cancel:{turn.id}")).outcome(timeout=SOON)).text == "answer"


async def test_a_message_that_looks_like_a_cancel_is_a_message(stage: Stage) -> None:
    agent = agent_of(stage, [text("answer"), text("answer")])
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        turn = await session.send('{"cancel": "t1"}', metadata={"cancel": "t1"})
        assert (await turn.outcome(timeout=SOON)).text == "answer"


async def test_a_turn_that_does_not_exist_can_not_be_cancelled(stage: Stage) -> None:
    agent = agent_of(stage, [text("answer"), text("answer")])
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        await (await session.send("go")).outcome(timeout=SOON)
        with pytest.raises(hf.errors.TurnUnknown):
            await session.turn("t9").cancel()


async def test_a_cancel_ahead_of_time_does_not_stop_a_turn_that_comes_later(stage: Stage) -> None:
    agent = agent_of(stage, [text("answer"), text("answer")])
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        await (await session.send("go")).outcome(timeout=SOON)
        for ahead in ("t2", "t3", "t4"):
            try:
                await session.turn(ahead).cancel()
            except hf.errors.TurnUnknown:
                continue
        assert (await (await session.send("more")).outcome(timeout=SOON)).text == "answer"


# ---- what is left ----------------------------------------------------------------------------------------------------


async def test_finished_calls_of_a_cancelled_batch_keep_their_results(stage: Stage) -> None:
    agent = agent_of(stage, [[call("quick"), call("acts"), call("quick", what="never begun")], text("next")])
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        turn = await session.send("go")
        await asyncio.wait_for(stage.reached.wait(), SOON)
        await cancelled_in_a_second(turn)
        results = (await session.history())[-1]
        assert isinstance(results, ToolMessage)
        assert [result.state for result in results.results] == ["ok", "unknown", "skipped"]
        assert (results.results[0].content, stage.done) == ("quick", ["quick"])


async def test_the_next_request_after_a_cancel_is_valid_and_has_what_was_done(stage: Stage) -> None:
    agent = agent_of(stage, [call("quick"), [call("quick"), call("acts")], text("next")])
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        turn = await session.send("go")
        await asyncio.wait_for(stage.reached.wait(), SOON)
        await cancelled_in_a_second(turn)
        await (await session.send("and now?")).outcome(timeout=SOON)
        messages = asked(agent)[-1].messages
        assert pairs_are_whole(messages)
        assert states(list(messages)) == ["ok", "ok", "unknown"]


async def test_a_cancelled_turn_tells_how_far_it_came_and_what_it_used(stage: Stage) -> None:
    agent = agent_of(stage, [call("quick"), call("acts")])
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        turn = await session.send("go")
        await asyncio.wait_for(stage.reached.wait(), SOON)
        outcome = await cancelled_in_a_second(turn)
        (line,) = await session.usage()
        assert (outcome.steps, outcome.usage) == (2, line.usage)


async def test_a_cancel_is_one_terminal_record(stage: Stage) -> None:
    agent = agent_of(stage, [call("acts")])
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await runtime.session("s", agent=agent).send("go")
        await asyncio.wait_for(stage.reached.wait(), SOON)
        await cancelled_in_a_second(turn)
        records = [entry.record async for entry in runtime.store.read_all("s")]
        assert [record.status for record in records if isinstance(record, Ended)] == ["cancelled"]


@pytest.mark.parametrize("reason", [None, 5, b"bytes", "\ud800"])
async def test_a_reason_that_is_no_text_is_refused_and_the_turn_goes_on(stage: Stage, reason: Any) -> None:
    agent = agent_of(stage, [call("acts"), text("Done.")])
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await runtime.session("s", agent=agent).send("go")
        await asyncio.wait_for(stage.reached.wait(), SOON)
        with pytest.raises(hf.UsageError):
            await turn.cancel(reason)
        stage.go_on.set()
        assert (await turn.outcome(timeout=SOON)).text == "Done."


async def test_a_huge_reason_does_not_keep_a_cancel_from_working(stage: Stage) -> None:
    agent = agent_of(stage, [call("acts")])
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await runtime.session("s", agent=agent).send("go")
        await asyncio.wait_for(stage.reached.wait(), SOON)
        assert await turn.cancel("x" * 3_000_000) == "requested"
        assert (await turn.outcome(timeout=SOON)).status == "cancelled"
