"""Whether a turn may go on, and what its model had better know. Decisions over where the turn stands; pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.policy.limits import OutOf, Used, out_of, over, over_background, unknown_price
from holdfast.turns.repeating import repetition

if TYPE_CHECKING:
    from holdfast.turns.repeating import Trace
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
    return used_up(state, ahead)


def used_up(state: TurnState, ahead: Used) -> OutOf | None:
    """The budget of the turn that leaves no room for what lies ahead, steps aside."""
    return used_up_by(state.rules, state.used, ahead)


def used_up_by(rules: Rules, used: Used, ahead: Used) -> OutOf | None:
    """The same, after what was `used`."""
    if rules.budget.cost_usd is not None and used.unpriced and rules.unpriced == "stop":
        return unknown_price("turn", rules.budget.cost_usd, used.cost_usd)
    return over(rules.budget, used, ahead, "turn") or over_background(rules.background, used, ahead)


def looping(state: TurnState, id: int) -> OutOf | None:
    """The end of a turn that repeats itself, though it was told."""
    repeats = state.rules.repeats
    if repeats is None or id <= state.recorded:
        return None
    found = repetition(state.trace, repeats)
    return OutOf("loop", found.ending, repeats, 2 * repeats) if found is not None and found.known else None


def advice(state: TurnState) -> str | None:
    """What the model had better know before its next step."""
    repeats = state.rules.repeats
    found = None if repeats is None else repetition(state.trace, repeats)
    nudge = None if found is None or found.known else found.advice
    return "\n\n".join(said for said in (nudge, last_step(state)) if said) or None


def last_step(state: TurnState) -> str | None:
    """What the model is told before the last step of the turn, or of the session."""
    left = (state.rules.steps, state.rules.session_steps)
    return LAST_STEP if any(most is not None and state.steps == most - 1 for most in left) else None


def with_last_step(said: str | None) -> str:
    """What the model is told besides when a budget that the turn shares with others leaves one more step."""
    if said is None:
        return LAST_STEP
    return said if LAST_STEP in said else f"{said}\n\n{LAST_STEP}"


def heard(state: TurnState) -> Trace:
    """The trace after the model heard the advice that was offered to it."""
    repeats = state.rules.repeats
    found = None if repeats is None else repetition(state.trace, repeats)
    return state.trace if found is None else state.trace.told(found)
