"""A session that runs for long: what it costs to know how full it is, and when summaries are tried again."""

from __future__ import annotations

import pytest

from holdfast.errors import InvariantBroken
from holdfast.messages import AssistantMessage, Message, Text, ToolCall, ToolMessage, ToolResult, UserMessage
from holdfast.turns.compaction.budget import ContextBudget, Estimator, Gauge, Reported
from holdfast.turns.compaction.plan import Breaker, Plan, RecordedCompaction, View, apply, fallback, plan
from holdfast.turns.state import Thread

SUMMARY = (
    "## Goal\nAll of it.\n## Decisions\nnone\n## Facts\n" + "fact " * 800 + "\n## Files\nnone\n## Open points\nnone"
)
WINDOW = ContextBudget(window=32_000, reserve=4_000, fixed=1_500)


class Counted:
    """Counts what it is asked."""

    def __init__(self) -> None:
        self.asked = 0
        self._counter = Estimator()

    def tokens(self, message: Message, /) -> int:
        self.asked += 1
        return self._counter.tokens(message)


def step(n: int) -> list[Message]:
    call = ToolCall(f"c{n}", "read", {"path": f"src/file{n}.py"})
    result = ToolResult(call.id, "read", f"line {n}\n" * (20 + n * 37 % 400))
    return [
        AssistantMessage(f"t1.{3 * n}", (Text(f"I read file {n} now."), call), "tool_calls"),
        ToolMessage(f"t1.{3 * n + 1}", (result,)),
    ]


def compacted(view: View, made: Plan) -> View:
    return View(apply(view.thread, made, SUMMARY if made.way == "summary" else None), view.told)


def run(steps: int, *, summaries: bool = True) -> tuple[list[int], list[int], list[Plan]]:
    """One turn of so many steps: what was counted at each, the length of what the model saw, and the plans."""
    counter = Counted()
    whole = Thread().add(UserMessage("t1.i1", (Text("Read all of it, and tell me what is wrong."),)))
    view, gauge = View(), Gauge(counter, WINDOW.fixed)
    costs: list[int] = []
    lengths: list[int] = []
    plans: list[Plan] = []
    for n in range(1, steps + 1):
        before = counter.asked
        view = view.follow(whole)
        gauge = gauge.read(view.thread)
        if gauge.needs(WINDOW):
            made = plan(view.thread, WINDOW, counter, gauge.known, "t1.i1", reader="read_result")
            assert isinstance(made, Plan)
            used = made if summaries else fallback(view.thread, made)
            plans.append(used)
            view = compacted(view, used)
            gauge = gauge.read(view.thread)
        assert gauge.tokens <= WINDOW.room
        assert any(message.id == "t1.i1" for message in view.thread.messages[:3])
        costs.append(counter.asked - before)
        lengths.append(len(view.thread))
        whole = whole.add(*step(n))
    return costs, lengths, plans


@pytest.mark.parametrize("steps", [1_000, pytest.param(5_000, marks=pytest.mark.torture)])
def test_the_last_fifth_of_many_steps_costs_as_much_as_the_first(steps: int) -> None:
    costs, lengths, plans = run(steps)
    fifth = steps // 5
    first, last = sum(costs[fifth // 2 : fifth * 3 // 2]), sum(costs[4 * fifth :])
    assert last <= 1.1 * first
    assert max(lengths[4 * fifth :]) <= 1.2 * max(lengths[:fifth])
    assert {made.way for made in plans} == {"clip", "summary"}


def test_a_session_whose_summaries_all_fail_goes_on_at_the_same_cost() -> None:
    costs, lengths, plans = run(1_000, summaries=False)
    assert sum(costs[700:]) <= 1.2 * sum(costs[200:500])
    assert max(lengths[700:]) <= 1.2 * max(lengths[:300])
    assert {made.way for made in plans} == {"clip", "drop"}


def test_a_step_that_needs_no_compaction_counts_what_is_new() -> None:
    costs, _, plans = run(400)
    assert len(plans) < 60
    assert sorted(costs)[len(costs) * 3 // 4] == 2


# ---- the gauge -------------------------------------------------------------------------------------------------------


def talk(count: int) -> Thread:
    return Thread().add(*(UserMessage(f"t{n}.i{n}", (Text("How do you do?"),)) for n in range(1, count + 1)))


def test_a_gauge_adds_what_is_new() -> None:
    thread = talk(3)
    gauge = Gauge(Estimator(), 100).read(thread)
    more = UserMessage("t9.i9", (Text("And you?"),))
    assert gauge.read(thread.add(more)).tokens == gauge.tokens + Estimator().tokens(more)


def test_a_gauge_knows_instructions_and_tools() -> None:
    assert Gauge(Estimator(), 100).read(talk(0)).tokens == 100


def test_a_gauge_holds_to_what_was_reported_and_adds_what_came_since() -> None:
    gauge = Gauge(Estimator(), 100).read(talk(3)).reported(5_000)
    more = UserMessage("t9.i9", (Text("And you?"),))
    grown = gauge.read(talk(3).add(more))
    assert grown.tokens == 5_000 + Estimator().tokens(more)
    assert grown.known == Reported("t3.i3", 5_000)


def test_a_gauge_of_another_conversation_of_the_same_length_begins_anew() -> None:
    gauge = Gauge(Estimator(), 100).read(talk(3)).reported(5_000)
    other = Thread().add(UserMessage("x", (Text("Another."),)), *talk(3).messages[1:])
    assert gauge.read(other) == Gauge(Estimator(), 100).read(other) or gauge.read(other).known is None
    assert gauge.read(other).tokens < 5_000


def test_a_gauge_of_a_shorter_conversation_begins_anew() -> None:
    assert Gauge(Estimator()).read(talk(3)).reported(5_000).read(talk(2)).known is None


@pytest.mark.parametrize("tokens", [0, -1])
def test_a_provider_that_reports_nothing_changes_nothing(tokens: int) -> None:
    gauge = Gauge(Estimator()).read(talk(3))
    assert gauge.reported(tokens) is gauge


# ---- the view --------------------------------------------------------------------------------------------------------


def test_a_view_follows_the_conversation() -> None:
    assert View().follow(talk(3)).follow(talk(5)).thread == talk(5)


def test_a_view_of_a_conversation_that_has_shrunk_is_refused() -> None:
    with pytest.raises(InvariantBroken, match="has 2 now"):
        View().follow(talk(3)).follow(talk(2))


def test_a_view_built_again_from_its_records_is_the_same() -> None:
    whole = Thread().add(UserMessage("t1.i1", (Text("Read."),)), *(m for n in range(1, 120) for m in step(n)))
    made = plan(whole, WINDOW, Estimator(), None, "t1.i1")
    assert isinstance(made, Plan)
    more = step(300)
    live = compacted(View().follow(whole), made).follow(whole.add(*more))
    again = compacted(View().follow(whole.add(*more)), made)
    assert live.thread == again.thread


# ---- the breaker -----------------------------------------------------------------------------------------------------

MINUTE = 60_000


def after_failures(*times: int) -> Breaker:
    breaker = Breaker()
    for now in times:
        breaker = breaker.failed(now)
    return breaker


def test_two_failures_do_not_open_the_breaker() -> None:
    assert after_failures(1, 2).allows(3)


def test_three_failures_in_a_row_open_it() -> None:
    assert not after_failures(1, 2, 3).allows(4)


def test_a_success_between_begins_the_count_anew() -> None:
    worked = RecordedCompaction(plan=Plan(way="summary"), summary=SUMMARY)
    assert worked.breaker_after(after_failures(1, 2), 3).failed(4).failed(5).allows(6)


def test_it_allows_one_more_try_after_five_minutes() -> None:
    breaker = after_failures(1, 2, 3)
    assert not breaker.allows(5 * MINUTE + 2)
    assert breaker.allows(5 * MINUTE + 3)


def test_a_try_that_fails_opens_it_for_another_five_minutes() -> None:
    breaker = after_failures(1, 2, 3).failed(6 * MINUTE)
    assert not breaker.allows(11 * MINUTE - 1)
    assert breaker.allows(11 * MINUTE)


def test_a_try_that_succeeds_closes_it() -> None:
    worked = RecordedCompaction(plan=Plan(way="summary"), summary=SUMMARY)
    assert worked.breaker_after(after_failures(1, 2, 3), 4) == Breaker()


def test_a_clock_that_was_set_back_does_not_keep_it_open() -> None:
    assert after_failures(10 * MINUTE, 10 * MINUTE, 10 * MINUTE).allows(MINUTE)
