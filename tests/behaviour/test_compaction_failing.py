"""Room that can't be made as it should be: requests that are refused as too long, and summaries that can't be had."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.behaviour.talk import SOON, pairs_are_whole
from tests.behaviour.window import SUMMARY, WINDOW, Writer, agent_of, compactions, look, marks, size

import holdfast as hf
from holdfast.messages import Usage, decode_reply
from holdfast.records import Done
from holdfast.runtime.replay_check import check_turns
from holdfast.testing import ManualClock, call, check, error, reply, text
from holdfast.turns.compaction.plan import COOL_DOWN_MS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from holdfast.messages import ModelRequest
    from holdfast.policy.hooks import Deny
    from holdfast.runtime.runtime import Runtime
    from holdfast.turns.compaction.plan import RecordedCompaction

OVERFLOW = error("the prompt is too long", kind="context_overflow")
LARGE = hf.Compaction(window=1_000_000)
PRICES = {"scripted:model": hf.Price(input=1_000_000, output=1_000_000)}  # a dollar a token


def refusing(at: int, times: int, refusal: Any = OVERFLOW) -> Callable[[ModelRequest], Any]:
    """A provider that refuses the question at this place, so many times."""
    left = [times]

    def say(asked: ModelRequest) -> Any:
        if asked.position != at or not left[0]:
            return None
        left[0] -= 1
        return refusal

    return say


# ---- the provider says that it does not fit --------------------------------------------------------------------------


FINISH = reply(text(""), finish="context_overflow", usage=Usage(input=9))


@pytest.mark.parametrize("refusal", [OVERFLOW, FINISH], ids=["error", "finish"])
async def test_a_request_that_does_not_fit_is_made_shorter_and_sent_again(refusal: Any) -> None:
    model = Writer(12, say=refusing(10, 1, refusal))
    assert (await hf.run(agent_of(model, compaction=LARGE), "go")).text == "done"
    first, second = [request for request in model.asked if request.position == 10]
    assert len(second.messages) < len(first.messages)
    assert marks(second.messages) == ["summary"]


@pytest.mark.parametrize("compaction", [hf.Compaction(), hf.Compaction(enabled=False)], ids=["unknown", "off"])
async def test_so_it_is_where_nobody_looks_before(compaction: hf.Compaction) -> None:
    model = Writer(30, say=refusing(20, 1))
    assert (await hf.run(agent_of(model, compaction=compaction), "go")).text == "done"
    assert len(model.summarised) >= 1


@pytest.mark.parametrize("refusal", [OVERFLOW, FINISH], ids=["error", "finish"])
async def test_a_second_refusal_fails_the_turn_by_name(refusal: Any) -> None:
    model = Writer(12, say=refusing(10, 9, refusal))
    outcome = await hf.run(agent_of(model, compaction=LARGE), "go")
    assert (outcome.status, outcome.code, outcome.blame) == ("failed", "context_overflow", "model")
    assert len([request for request in model.asked if request.position == 10]) == 2


async def test_the_summary_for_nothing_is_paid_for_by_the_turn_that_failed() -> None:
    agent = agent_of(Writer(12, say=refusing(10, 2)), compaction=LARGE)
    async with hf.open(None, agents=[agent], prices=PRICES) as runtime:
        outcome = await runtime.run(agent, "go", session="s")
        lines = await runtime.session("s").usage()
        assert outcome.usage.total == sum(line.usage.total for line in lines)
        assert outcome.cost == sum(line.cost or 0 for line in lines)


async def test_the_next_turn_goes_on_after_one_that_did_not_fit() -> None:
    model = Writer(12, say=refusing(10, 2))
    agent = agent_of(model, compaction=LARGE)
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        assert not (await (await session.send("go")).outcome(timeout=SOON)).ok
        assert (await (await session.send("more")).outcome(timeout=SOON)).ok
        assert all(pairs_are_whole(request.messages) for request in model.asked)
        assert await check(runtime.store) == []


async def test_the_request_that_was_sent_again_is_the_recorded_one() -> None:
    agent = agent_of(Writer(12, say=refusing(10, 1)), compaction=LARGE)
    async with hf.open(None, agents=[agent]) as runtime:
        await runtime.run(agent, "go", session="s")
        assert [turn.verdict for turn in await check_turns(runtime.store, "s", agent)] == ["ok"]


async def test_the_try_that_did_not_fit_is_in_the_ledger_of_the_one_that_did() -> None:
    model = hf.Fallback([Writer(12, say=refusing(10, 1))])
    agent = agent_of(model, compaction=LARGE)
    async with hf.open(None, agents=[agent]) as runtime:
        await runtime.run(agent, "go", session="s")
        records = [entry.record for entry in await runtime.store.read("s")]
        said = [each for each in records if isinstance(each, Done) and each.key.endswith(".model")]
        replies = [decode_reply(bytes(each.value)) for each in said]
        (tried,) = [reply.attempts for reply in replies if reply.attempts]
        assert [line.outcome for line in tried] == ["context_overflow"]


async def test_an_input_that_is_too_long_by_itself_fails_by_name() -> None:
    model = Writer(say=lambda _: OVERFLOW)
    outcome = await hf.run(agent_of(model), "word " * 20_000)
    assert (outcome.status, outcome.code) == ("failed", "context_overflow")


async def test_a_hook_that_forbids_it_lets_the_turn_fail_by_name() -> None:
    class Never(hf.Hooks):
        async def before_compaction(self, turn: hf.TurnContext, messages: int, tokens: int) -> Deny | None:
            return turn.deny("no")

    agent = agent_of(Writer(12, say=refusing(10, 9)), hooks=[Never()], compaction=LARGE)
    assert (await hf.run(agent, "go")).code == "context_overflow"


# ---- no summary ------------------------------------------------------------------------------------------------------

BAD: dict[str, tuple[Any, str]] = {
    "empty": ("", "empty"),
    "headings alone": ("## Goal\n## Decisions\n## Facts\n## Files\n## Open points", "headings alone"),
    "no structure": ("All went well.", "has no Goal"),
    "too long": (SUMMARY.replace("Look.", "word " * 5_000), "may take"),
    "cut": (reply(text(SUMMARY), finish="output_limit"), "cut off"),
    "a call": (call(look, at=1), "tool_calls"),
    "refused": (error("no", kind="rate_limit"), "no"),
    "too long to be asked": (OVERFLOW, "too long"),
    "raises": (ValueError("broken"), "broken"),
}


@pytest.mark.parametrize("name", BAD)
async def test_without_a_summary_the_oldest_messages_go_and_the_turn_completes(name: str) -> None:
    summary, why = BAD[name]
    model = Writer(14, summary=summary)
    agent = agent_of(model)
    async with hf.open(None, agents=[agent]) as runtime:
        outcome = await runtime.run(agent, "go", session="s")
        assert (outcome.text, marks(model.asked[-1].messages)) == ("done", ["dropped"])
        (made,) = await compactions(runtime.store)
        assert (made.plan.way, made.summary) == ("drop", None)
        assert why in made.failure


async def test_a_summary_from_before_stays_when_the_next_one_fails() -> None:
    answers = [SUMMARY, SUMMARY]
    model = Writer(40, summary=lambda _: answers.pop(0) if answers else "")
    await hf.run(agent_of(model), "go")
    assert marks(model.asked[-1].messages) == ["summary", "dropped"]


async def test_every_request_fits_though_no_summary_can_be_had() -> None:
    model = Writer(120, summary="")
    agent = agent_of(model)
    assert (await hf.run(agent, "go")).text == "done"
    assert max(size(agent, request.messages) for request in model.asked) <= WINDOW * 3 // 4


async def test_a_summary_that_is_refused_is_paid_for_all_the_same() -> None:
    agent = agent_of(Writer(14, summary=reply(text("nonsense"), usage=Usage(input=7, output=2))))
    async with hf.open(None, agents=[agent]) as runtime:
        await runtime.run(agent, "go", session="s")
        line = next(line for line in await runtime.session("s").usage() if line.source == "direct")
        assert (line.calls, line.usage.total) == (2, 18)  # it was asked once more


async def test_a_summary_without_one_heading_is_repaired_and_used() -> None:
    answers = [SUMMARY.replace("## Files\nnone\n", ""), SUMMARY]
    model = Writer(14, summary=lambda _: answers.pop(0))
    agent = agent_of(model)
    async with hf.open(None, agents=[agent]) as runtime:
        await runtime.run(agent, "go", session="s")
        (made,) = await compactions(runtime.store)
    assert (made.plan.way, made.failure, made.calls) == ("summary", "", 2)
    (asked,) = model.repaired
    question, refused, complaint = asked.messages
    assert question == model.summarised[0].messages[0]
    assert "## Goal" in str(refused)
    assert "has no Files" in str(complaint)


async def test_a_summary_that_can_not_be_repaired_is_dropped_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    model = Writer(14, summary="All went well.")
    agent = agent_of(model)
    with caplog.at_level("WARNING", logger="holdfast.compaction"):
        async with hf.open(None, agents=[agent]) as runtime:
            await runtime.run(agent, "go", session="s")
            (made,) = await compactions(runtime.store)
    assert (made.plan.way, len(model.repaired)) == ("drop", 1)
    (line,) = caplog.messages
    assert line.startswith("session s: no summary could be had (")
    assert "has no Goal" in line
    assert f"{made.plan.gone} messages are dropped" in line


async def in_pieces(answers: Callable[[int], Any]) -> tuple[Writer, RecordedCompaction]:
    """A long conversation with a large window, whose first summary takes several questions."""
    asked = 0

    def summary(_: ModelRequest) -> Any:
        nonlocal asked
        asked += 1
        return answers(asked)

    model = Writer(60, summary=summary, say=refusing(59, 1))
    agent = agent_of(model, compaction=hf.Compaction(window=100_000, aim=0.01, recent=0.01, summary=400))
    async with hf.open(None, agents=[agent]) as runtime:
        await runtime.run(agent, "go", session="s")
        (made,) = await compactions(runtime.store)
    return model, made


@pytest.mark.parametrize("failing", [1, 2, 4])
async def test_a_piece_of_a_transcript_that_fails_does_not_take_the_summary_with_it(
    failing: int, caplog: pytest.LogCaptureFixture
) -> None:
    model, made = await in_pieces(lambda asked: error("no", kind="bad_request") if asked == failing else SUMMARY)
    assert len(model.summarised) == 4
    assert (made.plan.way, made.failure) == ("summary", "")
    assert made.plan.span is not None
    assert 0 < made.plan.gone < made.plan.span.count
    assert f"Of {made.plan.gone} messages that were said before, it tells nothing" in str(model.asked[-1].messages)
    assert f"tells nothing of {made.plan.gone} messages" in caplog.text


async def test_a_second_piece_that_fails_ends_the_summary_with_what_is_there() -> None:
    model, made = await in_pieces(lambda asked: SUMMARY if asked == 1 else error("no", kind="bad_request"))
    assert len(model.summarised) == 3
    assert (made.plan.way, made.summary) == ("summary", SUMMARY)


async def test_pieces_that_all_fail_leave_no_summary() -> None:
    _, made = await in_pieces(lambda _: error("no", kind="bad_request"))
    assert (made.plan.way, made.summary) == ("drop", None)


async def test_a_failure_that_may_pass_is_tried_once_more() -> None:
    model, made = await in_pieces(
        lambda asked: error("busy", kind="overloaded", retryable=True) if asked == 2 else SUMMARY
    )
    assert len(model.summarised) == 5
    assert (made.plan.way, made.plan.gone) == ("summary", 0)


async def test_a_turn_can_be_cancelled_while_it_is_summarised() -> None:
    reached = asyncio.Event()

    async def hang(_: ModelRequest) -> Any:
        reached.set()
        await asyncio.Event().wait()

    agent = agent_of(Writer(30, summary=hang))
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await runtime.session("s", agent=agent).send("go")
        async with asyncio.timeout(SOON):
            await reached.wait()
        await turn.cancel("enough")
        assert (await turn.outcome(timeout=SOON)).status == "cancelled"
        assert await check(runtime.store) == []


# ---- the breaker -----------------------------------------------------------------------------------------------------


async def asking(runtime: Runtime) -> int:
    """How many compactions of the session asked for a summary."""
    return len([made for made in await compactions(runtime.store) if made.calls])


class Broken:
    """A session whose summariser fails, on a clock that stands still, in one process after the other."""

    def __init__(self, path: Path) -> None:
        self.clock = ManualClock()
        self.summary = ""
        self.asked: list[int] = []
        """How many compactions asked for a summary, turn by turn."""
        self._path = path

    def agent(self, steps: int) -> tuple[hf.Agent, Writer]:
        model = Writer(steps, summary=lambda _: self.summary)
        return agent_of(model), model

    async def turn(self, steps: int = 60) -> None:
        agent, _ = self.agent(steps)
        async with hf.open(self._path, agents=[agent], clock=self.clock) as runtime:
            outcome = await (await runtime.session("s", agent=agent).send("go")).outcome(timeout=SOON)
            assert outcome.status == "completed"
            asked = await asking(runtime)
        self.asked.append(asked - sum(self.asked))


@pytest.fixture
def broken(tmp_path: Path) -> Broken:
    return Broken(tmp_path / "s.db")


async def test_after_three_failures_no_summary_is_asked_for(broken: Broken) -> None:
    await broken.turn()
    assert broken.asked == [3]


async def test_nor_in_the_next_turn_after_a_restart(broken: Broken) -> None:
    await broken.turn()
    await broken.turn()
    assert broken.asked == [3, 0]


async def test_nor_in_the_next_turn_of_the_same_process(broken: Broken) -> None:
    agent, _ = broken.agent(60)
    async with hf.open(None, agents=[agent], clock=broken.clock) as runtime:
        for _ in range(2):
            await runtime.run(agent, "go", session="s")
        assert await asking(runtime) == 3


async def test_nor_when_the_same_turn_goes_on_in_another_process(tmp_path: Path) -> None:
    reached = asyncio.Event()

    async def hang(asked: ModelRequest) -> Any:
        if asked.position == 60:
            reached.set()
            await asyncio.Event().wait()
        return reply(call(look, at=asked.position or 0), usage=Usage(output=1))

    clock = ManualClock()
    agent = agent_of(Writer(say=hang, summary=""))
    async with hf.open(tmp_path / "s.db", agents=[agent], clock=clock) as runtime:
        await runtime.session("s", agent=agent).send("go")
        async with asyncio.timeout(SOON):
            await reached.wait()
        await runtime.close(grace=0)
    clock.advance(60_000)  # the lease of the first process is over
    model = Writer(120, summary="")
    agent = agent_of(model)
    async with hf.open(tmp_path / "s.db", agents=[agent], clock=clock) as runtime:
        await runtime.session("s").turn("t1").outcome(timeout=SOON)
        assert len(await compactions(runtime.store)) > 4
    assert model.summarised == []


async def test_after_the_cool_down_one_is_tried(broken: Broken) -> None:
    await broken.turn()
    broken.clock.advance(COOL_DOWN_MS)
    await broken.turn()
    assert broken.asked == [3, 1]


async def test_if_that_fails_another_cool_down_begins(broken: Broken) -> None:
    for _ in range(3):
        await broken.turn()
        broken.clock.advance(COOL_DOWN_MS // 2 + 1)
    assert broken.asked == [3, 0, 1]
    await broken.turn()
    assert broken.asked[-1] == 0


async def test_one_that_succeeds_closes_it(broken: Broken) -> None:
    await broken.turn()
    broken.clock.advance(COOL_DOWN_MS)
    broken.summary = SUMMARY
    await broken.turn()
    broken.summary = ""
    await broken.turn()
    assert broken.asked[1] > 1
    assert broken.asked[2] == 3


async def paused(runtime: Runtime, agent: hf.Agent) -> list[hf.events.CompactionPaused]:
    turn = await runtime.session("s", agent=agent).send("go")
    return [event async for event in turn.events() if isinstance(event, hf.events.CompactionPaused)]


async def test_an_event_tells_that_summaries_are_paused(broken: Broken) -> None:
    agent, _ = broken.agent(60)
    async with hf.open(None, agents=[agent], clock=broken.clock) as runtime:
        (event,) = await paused(runtime, agent)
        assert event.failures == 3
        assert "empty" in event.reason


async def test_two_failures_pause_nothing(broken: Broken) -> None:
    agent, _ = broken.agent(22)
    async with hf.open(None, agents=[agent], clock=broken.clock) as runtime:
        assert await paused(runtime, agent) == []
        assert 0 < await asking(runtime) < 3
