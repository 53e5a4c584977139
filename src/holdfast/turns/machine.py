"""The turn machine: state in, effect out; outcome in, next state out.

No clock, no randomness, no I/O. The n-th effect of a turn is always the same effect, so recovery is nothing but running
the machine over the outcomes that are recorded. An outcome for another effect than the one awaited changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from holdfast.errors import InvariantBroken
from holdfast.messages import (
    AssistantMessage,
    FinishReason,
    ModelReply,
    Text,
    ToolCall,
    ToolMessage,
    ToolResult,
    Usage,
    UserMessage,
    refusal_of,
)
from holdfast.turns.answers import said_in
from holdfast.turns.ending import Blame, Ending

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.records import EndStatus
    from holdfast.turns.thread import Thread

Moment = Literal["after_work", "before_completion"]

CUT_OFF: Final = (
    "Your reply was cut off by the output limit. Go on exactly where it stopped, without repeating any of it."
)
EMPTY: Final = "Your reply was empty. Answer, or call a tool."
MAX_EMPTY: Final = 2
"""How many empty replies a turn bears before it fails."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What bounds a turn. `check` says what is wrong with an answer; None when it has the shape that was asked for."""

    steps: int | None = 50
    stalls: int = 12
    repairs: int = 3
    continuations: int = 2
    check: Callable[[str], str | None] | None = None


# ---- effects ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CallModel:
    """Ask the model. `position` counts the model calls of the whole conversation before this one."""

    id: int
    thread: Thread
    position: int


@dataclass(frozen=True, slots=True)
class RunTools:
    """Perform these calls; their results come back in this order."""

    id: int
    calls: tuple[ToolCall, ...]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A safe point: input that came meanwhile may enter here. `note` is what Holdfast has to say to the model."""

    id: int
    moment: Moment
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Finish:
    """The turn has ended."""

    id: int
    ending: Ending


Effect: TypeAlias = CallModel | RunTools | Checkpoint | Finish


# ---- responses -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Replied:
    """The model answered."""

    reply: ModelReply


@dataclass(frozen=True, slots=True)
class ModelFailed:
    """The model could not answer."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Results:
    """What the calls came to, in their order."""

    results: tuple[ToolResult, ...]


@dataclass(frozen=True, slots=True)
class Inputs:
    """What entered at a checkpoint."""

    messages: tuple[UserMessage, ...] = ()


Response: TypeAlias = Replied | ModelFailed | Results | Inputs


# ---- the machine -----------------------------------------------------------------------------------------------------


class TurnState(msgspec.Struct, frozen=True):
    """Where a turn is. `awaited` is the effect whose outcome it needs next."""

    run: str
    rules: Rules
    thread: Thread
    awaited: Effect
    position: int = 0
    steps: int = 0
    stalls: int = 0
    repairs: int = 0
    continuations: int = 0
    empties: int = 0
    usage: Usage = Usage()
    cost: float | None = 0.0
    """None as soon as one call has no known price."""


def start(run: str, rules: Rules, history: Thread, said: tuple[UserMessage, ...], position: int) -> TurnState:
    """A turn that begins with what was said, after all that was said before."""
    thread = history.add(*said)
    return TurnState(run, rules, thread, CallModel(1, thread, position), position)


def poll(state: TurnState) -> Effect:
    """The effect that is awaited: the same one until its outcome comes."""
    return state.awaited


def respond(state: TurnState, effect: int, response: Response) -> TurnState:
    """The state after the outcome of effect number `effect`."""
    awaited = state.awaited
    if effect != awaited.id:
        return state
    match awaited, response:
        case CallModel(), Replied(reply):
            return _replied(state, awaited, reply)
        case CallModel(), ModelFailed(code, message):
            return _finish(state, "failed", code, message, "model")
        case RunTools(), Results(results):
            return _worked(state, awaited, results)
        case Checkpoint(), Inputs(messages):
            return _admitted(state, awaited, messages)
        case _:
            message = f"{response!r} is no outcome of {awaited!r}"
            raise InvariantBroken(message)


_STOPS: Final[dict[FinishReason, tuple[str, str]]] = {
    "refusal": ("refusal", "the model declined to answer"),
    "content_filter": ("content_filter", "the provider's content filter stopped the reply"),
    "context_overflow": ("context_overflow", "the conversation does not fit into the model's context window"),
}


def added(cost: float | None, more: float | None) -> float | None:
    """Both costs together; unknown when one of them is."""
    return None if cost is None or more is None else cost + more


def _replied(state: TurnState, awaited: CallModel, reply: ModelReply) -> TurnState:
    state = replace(
        state,
        position=awaited.position + 1,
        steps=state.steps + 1,
        usage=state.usage + reply.usage,
        cost=added(state.cost, reply.cost),
    )
    message = said_in(reply, f"{state.run}.{awaited.id}")
    if message.parts:
        state = replace(state, thread=state.thread.add(message))
    if reply.finish in _STOPS:
        code, why = _STOPS[reply.finish]
        return _finish(state, "failed", code, refusal_of(reply.parts) or why, "model", message)
    if reply.finish == "cancelled":
        return _finish(state, "cancelled", "cancelled", "", None, message)
    if calls := message.calls:
        return replace(state, awaited=RunTools(awaited.id + 1, calls))
    return _answered(state, awaited.id, message)


def _answered(state: TurnState, id: int, message: AssistantMessage) -> TurnState:
    """The model spoke and wants no tool: is that the answer?"""
    if message.finish == "output_limit":
        return _cut_off(state, id, message)
    if not message.text.strip() and not _after_tools(state, message):
        if state.empties >= MAX_EMPTY:
            return _finish(state, "failed", "empty_response", "the model gave no answer", "model")
        return _go_on(replace(state, empties=state.empties + 1), id, EMPTY)
    answer = answer_of(state.thread, message.id) or message.text
    complaint = state.rules.check(answer) if state.rules.check else None
    return _complete(state, id, message) if complaint is None else _repair(state, id, message, complaint)


def _complete(state: TurnState, id: int, message: AssistantMessage) -> TurnState:
    """The answer is there. What came meanwhile may still enter, if there is a step left in which to answer it."""
    if state.rules.steps is not None and state.steps >= state.rules.steps:
        return _finish(state, "completed", "", "", None, message)
    return replace(state, awaited=Checkpoint(id + 1, "before_completion"))


def _repair(state: TurnState, id: int, message: AssistantMessage, complaint: str) -> TurnState:
    if state.repairs >= state.rules.repairs:
        return _finish(state, "failed", "invalid_output", complaint, "model", message)
    return _go_on(replace(state, repairs=state.repairs + 1), id, complaint)


def _cut_off(state: TurnState, id: int, message: AssistantMessage) -> TurnState:
    """The output limit ended the reply. No word at all means that the context left no room for one."""
    if not message.parts:
        code, why = _STOPS["context_overflow"]
        return _finish(state, "failed", code, f"{why}: there was no room left for an answer", "model")
    if not message.text:
        why = "the model used up its output before it came to an answer"
        return _finish(state, "limit", "output_limit", why, "limit")
    if state.continuations >= state.rules.continuations:
        why = "the answer is longer than the output limit"
        return _finish(state, "limit", "output_limit", why, "limit", message)
    return _go_on(replace(state, continuations=state.continuations + 1), id, CUT_OFF)


def _after_tools(state: TurnState, message: AssistantMessage) -> bool:
    """An empty reply after the results of tools is how some models say that they are done."""
    if state.rules.check is not None:
        return False
    said = [found for found in state.thread.tail(2) if found.id != message.id]
    return bool(said) and type(said[-1]) is ToolMessage


def answer_of(thread: Thread, id: str) -> str:
    """The words of the answer that ends with message `id`, joined with those that the output limit had cut off."""
    words: list[str] = []
    run = id.partition(".")[0]
    for message in thread.backwards():
        if not words and message.id != id:
            continue
        if type(message) is ToolMessage or message.id.partition(".")[0] != run:
            break
        if type(message) is AssistantMessage:
            if words and message.finish != "output_limit":
                break
            words.append(message.text)
    return "".join(reversed(words))


def _go_on(state: TurnState, id: int, note: str) -> TurnState:
    """Tell the model something, unless it has been going nowhere for too long."""
    state = replace(state, stalls=state.stalls + 1)
    return _stopped(state) or replace(state, awaited=Checkpoint(id + 1, "after_work", note))


def _worked(state: TurnState, awaited: RunTools, results: tuple[ToolResult, ...]) -> TurnState:
    if len(results) != len(awaited.calls):
        message = f"{len(results)} results for {len(awaited.calls)} calls"
        raise InvariantBroken(message)
    progress = any(result.state == "ok" for result in results)
    state = replace(
        state,
        thread=state.thread.add(ToolMessage(f"{state.run}.{awaited.id}", results)),
        stalls=0 if progress else state.stalls + 1,
    )
    return _stopped(state) or replace(state, awaited=Checkpoint(awaited.id + 1, "after_work"))


def _stopped(state: TurnState) -> TurnState | None:
    """The turn's end, when a budget is used up."""
    rules = state.rules
    if rules.steps is not None and state.steps >= rules.steps:
        return _finish(state, "limit", "steps", f"the turn took {state.steps} steps, as many as it may", "limit")
    if state.stalls >= rules.stalls:
        why = f"{state.stalls} model calls in a row led to nothing"
        return _finish(state, "limit", "no_progress", why, "limit")
    return None


def _admitted(state: TurnState, awaited: Checkpoint, messages: tuple[UserMessage, ...]) -> TurnState:
    id = f"{state.run}.{awaited.id}"
    note = () if awaited.note is None else (UserMessage(id, (Text(awaited.note),), "holdfast"),)
    if awaited.moment == "before_completion" and not messages:
        answer = state.thread.last
        return _finish(state, "completed", "", "", None, answer if type(answer) is AssistantMessage else None)
    state = replace(state, thread=state.thread.add(*note, *messages))
    return replace(state, awaited=CallModel(awaited.id + 1, state.thread, state.position))


def _finish(  # noqa: PLR0913, PLR0917
    state: TurnState,
    status: EndStatus,
    code: str,
    message: str,
    blame: Blame | None,
    answer: AssistantMessage | None = None,
) -> TurnState:
    typed = status == "completed" and state.rules.check is not None
    said = answer.id if answer is not None and answer.parts else None
    ending = Ending(status, code, message, blame, said, typed, state.steps, state.usage, state.cost)
    return replace(state, awaited=Finish(state.awaited.id + 1, ending))
