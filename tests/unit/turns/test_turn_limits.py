"""What a turn, a session and an agent may use: the decisions, and what the turn machine makes of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
import pytest
from tests.every import every

from holdfast.errors import InvariantBroken, UsageError
from holdfast.messages import (
    AssistantMessage,
    ModelReply,
    Part,
    ResultState,
    Text,
    ToolCall,
    ToolResult,
    Usage,
    UserMessage,
)
from holdfast.policy.limits import (
    ONE_STEP,
    Budget,
    Consumption,
    Limits,
    OutOf,
    beyond_turn,
    find_exceeded_budget,
    use_of_calls,
)
from holdfast.processes.state import background_answer
from holdfast.turns.machine import EMPTY, LAST_STEP, Ending, Skipped, decode_ending, poll, respond, start
from holdfast.turns.state import (
    CallModel,
    Checkpoint,
    Finish,
    Inputs,
    Replied,
    Results,
    Rules,
    RunTools,
    Thread,
    TurnState,
)

if TYPE_CHECKING:
    from holdfast.turns.state import Response

SAID: Final = UserMessage("t1.i1", (Text("go"),))
STEER: Final = UserMessage("t1.i2", (Text("and also"),))
OUT: Final = OutOf("daily_tokens", "no more today", 100, 120)


def begin(rules: Rules | None = None, recorded: int = 0) -> TurnState:
    return start("t1", rules or Rules(), Thread(), (SAID,), 0, recorded)


def after(state: TurnState, *responses: Response) -> TurnState:
    for response in responses:
        state = respond(state, poll(state).id, response)
    return state


def says(*parts: Part, usage: Usage | None = None, cost: float | None = None) -> Replied:
    finish = "tool_calls" if any(isinstance(part, ToolCall) for part in parts) else "stop"
    return Replied(ModelReply(parts, finish, usage or Usage(1, 2), "m", cost=cost))


def calls(count: int = 1, name: str = "look", **reply: Any) -> Replied:
    return says(*(ToolCall(f"id{number}", name, {"at": number}) for number in range(count)), **reply)


def results(count: int = 1, content: Any = "found", state: ResultState = "ok") -> Results:
    return Results(tuple(ToolResult(f"id{number}", "look", content, state) for number in range(count)))


def ending(state: TurnState) -> Ending:
    effect = poll(state)
    assert isinstance(effect, Finish), effect
    return effect.ending


def reached(state: TurnState) -> tuple[str, str, float | None, float | None]:
    found = ending(state)
    return found.status, found.code, found.allowed, found.used


def checkpoint(state: TurnState) -> Checkpoint:
    effect = poll(state)
    assert isinstance(effect, Checkpoint), effect
    return effect


# ---- the last step ---------------------------------------------------------------------------------------------------


def test_the_last_step_is_announced() -> None:
    state = after(begin(Rules(steps=2)), calls(), results())
    assert checkpoint(state).advice == LAST_STEP


def test_no_other_step_is() -> None:
    state = after(begin(Rules(steps=3)), calls(), results())
    assert checkpoint(state).advice is None


def test_without_a_limit_none_is_the_last() -> None:
    assert checkpoint(after(begin(Rules(steps=None)), calls(), results())).advice is None


def test_it_is_announced_beside_what_there_is_to_say_anyway() -> None:
    found = checkpoint(after(begin(Rules(steps=2)), says(Text(""))))
    assert (found.note, found.told(entering=False)) == (EMPTY, f"{EMPTY}\n\n{LAST_STEP}")


def test_it_is_announced_to_an_answer_that_has_to_be_given_again() -> None:
    found = checkpoint(after(begin(Rules(steps=2)), says(Text("done"))))
    assert (found.told(entering=True), found.told(entering=False)) == (LAST_STEP, None)


def test_a_turn_that_is_over_hears_nothing() -> None:
    state = after(begin(Rules(steps=2)), says(Text("done")), Inputs())
    assert ending(state).status == "completed"


def test_an_announcement_that_is_not_recorded_was_not_made() -> None:
    state = after(begin(Rules(steps=2), recorded=4), calls(), results(), Inputs())
    assert len(state.thread) == 3


def test_tools_that_the_last_step_asks_for_are_not_begun() -> None:
    state = after(begin(Rules(steps=1)), calls(2))
    assert reached(state) == ("limit", "steps", 1, 1)


def test_the_ending_names_the_calls_that_were_not_begun() -> None:
    state = after(begin(Rules(steps=1)), calls(2))
    assert ending(state).skipped == (Skipped("t1.2.1", "look"), Skipped("t1.2.2", "look"))


def test_calls_that_have_results_were_begun() -> None:
    assert ending(after(begin(Rules(stalls=1)), calls(), results(state="error"))).skipped == ()


def test_the_words_beside_them_are_the_last_ones() -> None:
    state = after(begin(Rules(steps=1)), says(Text("So far: 3."), ToolCall("id", "look", {})))
    assert ending(state).answer == "t1.1"


def test_tools_of_a_last_step_that_were_begun_before_are_gone_on_with() -> None:
    state = after(begin(Rules(steps=1), recorded=2), calls())
    assert isinstance(poll(state), RunTools)


def test_and_then_the_steps_are_used_up() -> None:
    assert reached(after(begin(Rules(steps=1), recorded=2), calls(), results())) == ("limit", "steps", 1, 1)


# ---- tokens and money ------------------------------------------------------------------------------------------------


def tokens(count: int) -> Rules:
    return Rules(budget=Budget(tokens=count))


def money(dollars: float, **rules: Any) -> Rules:
    return Rules(budget=Budget(cost_usd=dollars), **rules)


def test_tools_are_not_begun_when_no_token_is_left_to_read_their_results() -> None:
    assert reached(after(begin(tokens(3)), calls())) == ("limit", "tokens", 3, 3)


def test_a_turn_goes_on_while_a_token_is_left() -> None:
    assert isinstance(poll(after(begin(tokens(4)), calls())), RunTools)


def test_all_tokens_count_that_went_in_and_out() -> None:
    state = after(begin(tokens(1_000)), calls(usage=Usage(1, 20, 300, 4_000, reasoning=15)))
    assert ending(state).used == 4_321


def test_tokens_of_all_steps_count_together() -> None:
    state = after(begin(tokens(5)), calls(), results(), Inputs(), calls())
    assert reached(state) == ("limit", "tokens", 5, 6)


def test_an_answer_is_an_answer_also_when_it_used_up_the_tokens() -> None:
    assert ending(after(begin(tokens(1)), says(Text("done")))).status == "completed"


def test_an_answer_that_has_to_be_repaired_needs_tokens() -> None:
    assert ending(after(begin(tokens(1)), says(Text("")))).code == "tokens"


def test_money_is_counted_by_what_the_replies_cost() -> None:
    state = after(begin(money(0.5)), calls(cost=0.25), results(), Inputs(), calls(cost=0.25))
    assert reached(state) == ("limit", "cost_usd", 0.5, 0.5)


def test_a_call_of_unknown_price_ends_a_turn_whose_money_is_limited() -> None:
    state = after(begin(money(5.0)), calls(cost=None))
    assert (ending(state).status, ending(state).code) == ("limit", "cost_unknown")


def test_an_answer_of_unknown_price_is_an_answer() -> None:
    assert ending(after(begin(money(5.0)), says(Text("done"), cost=None))).status == "completed"


def test_a_call_of_unknown_price_costs_nothing_where_that_was_said() -> None:
    state = after(begin(money(0.5, unpriced="free")), calls(cost=None), results(), Inputs(), calls(cost=0.5))
    assert reached(state) == ("limit", "cost_usd", 0.5, 0.5)


def test_without_a_limit_of_money_prices_do_not_matter() -> None:
    assert isinstance(poll(after(begin(), calls(cost=None))), RunTools)


# ---- tool calls, background ------------------------------------------------------------------------------------------


def test_a_batch_that_would_pass_the_limit_is_not_begun() -> None:
    rules = Rules(budget=Budget(tool_calls=3))
    state = after(begin(rules), calls(2), results(2), Inputs(), calls(2))
    assert reached(state) == ("limit", "tool_calls", 3, 2)


def test_a_batch_that_just_fits_is_run() -> None:
    assert isinstance(poll(after(begin(Rules(budget=Budget(tool_calls=3))), calls(3))), RunTools)


def test_a_turn_without_a_tool_call_left_may_still_answer() -> None:
    rules = Rules(budget=Budget(tool_calls=1))
    state = after(begin(rules), calls(), results(), Inputs(), says(Text("done")), Inputs())
    assert ending(state).status == "completed"


def test_calls_that_always_go_to_the_background_are_counted_ahead() -> None:
    rules = Rules(background=1, tasks=frozenset({"look"}))
    assert reached(after(begin(rules), calls(2))) == ("limit", "background", 1, 0)


def test_other_calls_are_not() -> None:
    rules = Rules(background=0, tasks=frozenset({"other"}))
    assert isinstance(poll(after(begin(rules), calls(2))), RunTools)


def test_calls_that_went_to_the_background_are_counted_by_their_results() -> None:
    task = background_answer(f"task-{'0' * 20}", "look", 3.0)
    state = after(begin(Rules(background=1)), calls(2), results(2, content=task))
    assert reached(state) == ("limit", "background", 1, 2)


@pytest.mark.parametrize("content", ["task", {"task": "task-1"}, {"task": f"task-{'0' * 20}"}, None, ["task"]], ids=str)
def test_other_results_are_not_taken_for_a_task(content: Any) -> None:
    state = after(begin(Rules(background=0)), calls(), results(content=content))
    assert isinstance(poll(state), Checkpoint)


# ---- what is recorded ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rules", [tokens(1), money(0.1), Rules(budget=Budget(tool_calls=0))], ids=repr)
def test_a_limit_that_was_set_later_does_not_undo_what_is_recorded(rules: Rules) -> None:
    state = after(begin(rules, recorded=4), calls(cost=1.0), results(), Inputs())
    assert isinstance(poll(state), CallModel)


@pytest.mark.parametrize("rules", [tokens(1), money(0.1), Rules(budget=Budget(tool_calls=0))], ids=repr)
def test_it_ends_the_turn_before_the_first_effect_that_is_new(rules: Rules) -> None:
    state = after(begin(rules, recorded=4), calls(cost=1.0), results(), Inputs(), calls(cost=1.0))
    assert ending(state).status == "limit"


def test_an_input_that_entered_before_completion_stays_entered() -> None:
    state = after(begin(tokens(1), recorded=3), says(Text("done")), Inputs((STEER,)))
    assert isinstance(poll(state), CallModel)


# ---- a budget beyond the turn ----------------------------------------------------------------------------------------


def test_a_model_call_for_which_nothing_is_left_ends_the_turn() -> None:
    assert reached(after(begin(), OUT)) == ("limit", "daily_tokens", 100, 120)


def test_tool_calls_for_which_nothing_is_left_end_the_turn_and_are_named() -> None:
    state = after(begin(), calls(2), OUT)
    assert [gone.call for gone in ending(state).skipped] == ["t1.2.1", "t1.2.2"]


def test_a_checkpoint_after_which_nothing_is_left_ends_the_turn() -> None:
    assert ending(after(begin(), calls(), results(), OUT)).code == "daily_tokens"


def test_an_answer_that_is_there_is_given() -> None:
    found = ending(after(begin(), says(Text("done")), OUT))
    assert (found.status, found.answer) == ("completed", "t1.1")


def test_a_turn_that_has_ended_can_not_be_out_of_anything() -> None:
    state = after(begin(), OUT)
    with pytest.raises(InvariantBroken):
        after(state, OUT)


def test_the_ending_can_be_read_again() -> None:
    found = ending(after(begin(), calls(2), OUT))
    assert decode_ending(msgspec.json.encode(found)) == found


def test_an_ending_that_was_recorded_before_limits_had_numbers_can_be_read() -> None:
    assert decode_ending(b'{"status":"limit","code":"steps","steps":5}').allowed is None


def test_the_words_of_an_answer_are_those_of_its_message() -> None:
    state = after(begin(), says(Text("Wait."), ToolCall("id", "look", {})), OUT)
    assert isinstance(state.thread.last, AssistantMessage)
    assert ending(state).answer == state.thread.last.id


# ---- which budget is exceeded ----------------------------------------------------------------------------------------


def test_nothing_is_exceeded_without_budgets() -> None:
    spent = Consumption(10**9, 10**9, 1e9, 10**9, 10**9, 10**9)
    assert find_exceeded_budget(Limits(), turn=spent, session=spent, day=spent, total=spent) is None


@every(
    ("name", "scope"), [("session", "session"), ("daily", "day"), ("total", "total")], ids=["session", "daily", "total"]
)
@every(
    ("budget", "spent", "code"),
    [
        (Budget(steps=5), Consumption(steps=5), "steps"),
        (Budget(tokens=50), Consumption(tokens=50), "tokens"),
        (Budget(cost_usd=0.5), Consumption(cost_usd=0.5), "cost_usd"),
        (Budget(tool_calls=5), Consumption(tool_calls=6), "tool_calls"),
    ],
    ids=["steps", "tokens", "cost_usd", "tool_calls"],
)
def test_a_budget_that_is_used_up_is_named_with_whose_it_is(
    name: str, scope: str, budget: Budget, spent: Consumption, code: str
) -> None:
    found = find_exceeded_budget(Limits(**{name: budget}), **{scope: spent})  # pyright: ignore[reportArgumentType]
    assert found is not None
    assert found.code == f"{name}_{code}"


def test_what_is_left_is_left() -> None:
    limits = Limits(session=Budget(steps=5, tokens=50, cost_usd=0.5, tool_calls=5))
    assert find_exceeded_budget(limits, session=Consumption(4, 49, 0.49, 5)) is None


def test_tools_need_a_step_in_which_their_results_are_read() -> None:
    limits = Limits(session=Budget(steps=5))
    assert find_exceeded_budget(limits, session=Consumption(5), ahead=use_of_calls(1)) is not None


def test_tool_calls_are_counted_ahead() -> None:
    limits = Limits(session=Budget(tool_calls=5))
    assert find_exceeded_budget(limits, session=Consumption(tool_calls=3), ahead=use_of_calls(2)) is None
    assert find_exceeded_budget(limits, session=Consumption(tool_calls=3), ahead=use_of_calls(3)) is not None


def test_a_model_call_needs_no_tool_call() -> None:
    assert find_exceeded_budget(Limits(daily=Budget(tool_calls=0)), ahead=ONE_STEP) is None


def test_a_call_of_unknown_price_in_this_turn_stops_it() -> None:
    found = find_exceeded_budget(Limits(daily=Budget(cost_usd=5)), turn=Consumption(unpriced=1))
    assert found is not None
    assert found.code == "daily_cost_unknown"


def test_a_call_of_unknown_price_in_an_earlier_turn_does_not() -> None:
    assert find_exceeded_budget(Limits(total=Budget(cost_usd=5)), total=Consumption(unpriced=9)) is None


def test_a_call_of_unknown_price_does_not_where_it_is_free() -> None:
    assert find_exceeded_budget(Limits(daily=Budget(cost_usd=5), unpriced="free"), turn=Consumption(unpriced=1)) is None


def test_the_message_says_the_limit_and_what_was_used() -> None:
    found = find_exceeded_budget(Limits(daily=Budget(cost_usd=2.5)), day=Consumption(cost_usd=2.75))
    assert found is not None
    assert "$2.75" in found.message
    assert "$2.50" in found.message


def test_uses_add_up() -> None:
    assert Consumption(1, 2, 3.0, 4, 5, 6) + Consumption(1, 1, 1.0, 1, 1, 1) == Consumption(2, 3, 4.0, 5, 6, 7)


@pytest.mark.parametrize(
    ("code", "beyond"),
    [("daily_tokens", True), ("session_cost_unknown", True), ("total_steps", True), ("loop", False)],
)
def test_a_budget_beyond_the_turn_is_known_by_its_code(code: str, *, beyond: bool) -> None:
    assert beyond_turn(code) is beyond


# ---- what can't be meant ---------------------------------------------------------------------------------------------


@every(
    "given",
    [
        {"tokens": 0},
        {"tokens": 1.5},
        {"cost_usd": 0},
        {"cost_usd": -1.0},
        {"cost_usd": float("nan")},
        {"cost_usd": float("inf")},
        {"cost_usd": True},
        {"cost_usd": "2"},
        {"tool_calls": -1},
        {"tool_calls": True},
        {"steps": 0},
    ],
    ids=str,
)
@every("kind", [Limits, Budget])
def test_a_number_that_can_not_be_meant_is_refused(kind: Any, given: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        kind(**given)


@every(
    "given",
    [
        {"background": -1},
        {"depth": -1},
        {"depth": None},
        {"repeats": 1},
        {"repeats": 0},
        {"repeats": 101},
        {"session": 5},
        {"daily": {"tokens": 5}},
        {"total": Limits()},
        {"unpriced": "never"},
        {"unpriced": None},
    ],
    ids=str,
)
def test_a_limit_that_can_not_be_meant_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Limits(**given)
