"""Whether a turn may go on, and what its model had better know. Decisions over where the turn stands; pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.policy.limits import OutOf, Used, out_of, over, over_background, unknown_price
from holdfast.turns.repeating import repetition
from holdfast.turns.state import joined

if TYPE_CHECKING:
    from holdfast.turns.repeating import Repetition, Trace
    from holdfast.turns.state import Rules, TurnState

LAST_STEP: Final = (
    "This is the last step of this turn: sum up now. No more tool calls will be carried out. "
    "Answer with what you have, and say what is left to do."
)


def no_room(state: TurnState, id: int, ahead: Used) -> OutOf | None:
    """The budget of the turn that leaves no room for effect `id`, which is new."""
    rules = state.rules
    if id <= state.recorded:
        return None
    if rules.steps is not None and state.steps + ahead.steps > rules.steps:
        return out_of("turn", "steps", rules.steps, state.steps)
    return None if rules.budget is None and rules.background is None else used_up(rules, state.used, ahead)


def used_up(rules: Rules, used: Used, ahead: Used) -> OutOf | None:
    """The budget of a turn that leaves no room for what lies ahead, after what was `used`; steps aside."""
    budget = rules.budget
    out = None
    if budget is not None:
        if budget.cost_usd is not None and used.unpriced and rules.unpriced == "stop":
            return unknown_price("turn", budget.cost_usd, used.cost_usd)
        out = over(budget, used, ahead, "turn")
    return out if rules.background is None else out or over_background(rules.background, used, ahead)


def looping(state: TurnState, id: int, found: Repetition) -> OutOf | None:
    """The end of a turn that repeats itself, though it was told, before effect `id`, which is new."""
    if not found.known or id <= state.recorded:
        return None
    return OutOf("loop", found.ending, found.times, 2 * found.times)


def advice(state: TurnState, found: Repetition | None) -> str | None:
    """What the model had better know before its next step."""
    last = last_step(state)
    return last if found is None or found.known else joined(found.advice, last)


def last_step(state: TurnState) -> str | None:
    """What the model is told before the last step of the turn, or of the session."""
    rules, taken = state.rules, state.steps + 1
    return LAST_STEP if taken in (rules.steps, rules.session_steps) else None


def with_last_step(said: str | None) -> str:
    """What the model is told besides when a budget that the turn shares with others leaves one more step."""
    if said is None:
        return LAST_STEP
    return said if LAST_STEP in said else f"{said}\n\n{LAST_STEP}"


def heard(state: TurnState) -> Trace:
    """The trace after the model heard the advice that was offered to it."""
    found = repetition(state.trace, state.rules.repeats)
    return state.trace if found is None else state.trace.told(found)
