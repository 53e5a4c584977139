"""The turn machine: state in, effect out; outcome in, next state out. No clock, no randomness, no I/O.

The n-th effect of a turn is always the same effect, so recovery just runs the machine over the recorded outcomes. An
outcome for another effect than the awaited one changes nothing. Two rules keep a turn on its recorded path when limits
have changed, or were unknown to the recording process. Budgets and the loop guard end a turn only before a new effect.
Advice at a checkpoint is an offer: the note that the model got is part of the outcome, and only that note counts.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec
from msgspec.structs import replace

from holdfast import errors, messages, records
from holdfast.policy import limits
from holdfast.turns.programs import answer_message
from holdfast.turns.results import is_background
from holdfast.turns.state import (
    CallModel,
    Checkpoint,
    Compacted,
    Effect,
    Finish,
    Inputs,
    ModelCallFailed,
    Replied,
    Response,
    Results,
    Rules,
    RunTools,
    Thread,
    Trace,
    TurnState,
    UsedUp,
    find_repetition,
    join_notes,
    make_step,
)

Blame = Literal["caller", "model", "tool", "code", "limit"]
"""The party that can act: the caller, the model or its provider, a tool, the host's code, or the owner of the limit."""


class Skipped(msgspec.Struct, frozen=True, array_like=True):
    """A call of the model that never began: the turn ended first."""

    call: str
    """Its name, as events have it: ``t3.2.1``."""
    tool: str


class Ending(msgspec.Struct, frozen=True, omit_defaults=True):
    """The end of a turn and its reason. The text of the answer is in the conversation."""

    status: records.EndStatus
    code: str = ""
    """The reason in one word, for programs: ``steps``, ``deadline``, ``refusal``, ``stream_cut``..."""
    message: str = ""
    """The reason in a sentence, for people."""
    blame: Blame | None = None
    answer: str | None = None
    """The id of the message that is the answer."""
    typed: bool = False
    """The answer is JSON of the requested type."""
    steps: int = 0
    usage: messages.Usage = messages.Usage()
    cost: float | None = None
    """In US dollars; None where a price is not known."""
    allowed: int | float | None = None
    """The limit, in the unit that `code` names: steps, tokens, dollars."""
    used: int | float | None = None
    """Usage of that limit."""
    skipped: tuple[Skipped, ...] = ()
    """Calls of the last reply that were not begun."""
    agent: str | None = None
    """The agent at the end of the turn; None if the turn never began."""
    handoffs: int = 0
    """Number of handoffs before the end."""


decode_ending: Final = msgspec.json.Decoder(Ending).decode

LAST_STEP: Final = (
    "This is the last step of this turn: sum up now. No more tool calls will be carried out. "
    "Answer with what you have, and say what is left to do."
)


def no_room(state: TurnState, id: int, ahead: limits.Consumption) -> limits.OutOf | None:
    """The budget of the turn without room for effect `id`; None for recorded effects."""
    rules = state.rules
    if id <= state.recorded:
        return None
    if rules.steps is not None and state.steps + ahead.steps > rules.steps:
        return limits.limit_reached("turn", "steps", rules.steps, state.steps)
    return None if rules.budget is None and rules.background is None else used_up(rules, state.used, ahead)


def used_up(rules: Rules, used: limits.Consumption, ahead: limits.Consumption) -> limits.OutOf | None:
    """The budget of a turn without room for `ahead`, after `used`. Steps are checked elsewhere."""
    budget = rules.budget
    out = None
    if budget is not None:
        if budget.cost_usd is not None and used.unpriced and rules.unpriced == "stop":
            return limits.price_unknown("turn", budget.cost_usd, used.cost_usd)
        out = limits.find_exceeded_limit(budget, used, ahead, "turn")
    return out if rules.background is None else out or limits.background_limit_reached(rules.background, used, ahead)


def last_step(state: TurnState) -> str | None:
    """The note for the model before the last step of the turn or the session; None before other steps."""
    rules, taken = state.rules, state.steps + 1
    return LAST_STEP if taken in (rules.steps, rules.session_steps) else None


def with_last_step(said: str | None) -> str:
    """The advice with the note about the last step, because a shared budget leaves one more step."""
    if said is None:
        return LAST_STEP
    return said if LAST_STEP in said else f"{said}\n\n{LAST_STEP}"


CUT_OFF: Final = (
    "Your reply was cut off by the output limit. Go on exactly where it stopped, without repeating any of it."
)
EMPTY: Final = "Your reply was empty. Answer, or call a tool."
MAX_EMPTY: Final = 2
"""Empty replies after which the turn fails."""


def start(
    run: str,
    rules: Rules,
    history: Thread,
    said: tuple[messages.UserMessage, ...],
    position: int,
    recorded: int = 0,
    *,
    compacts: bool = False,
) -> TurnState:
    """The first state of a turn with the inputs `said`. Effects up to `recorded` have outcomes in the journal.

    With `compacts` the turn only compacts the context.
    """
    thread = history.add(*said)
    return TurnState(run, rules, thread, CallModel(1, thread, position, compacts), position, recorded=recorded)


def poll(state: TurnState) -> Effect:
    """The effect to perform next; the same one until `respond` gets its outcome."""
    return state.awaited


def respond(state: TurnState, effect: int, response: Response) -> TurnState:
    """The state after the outcome of effect number `effect`."""
    awaited = state.awaited
    if effect != awaited.id:
        return state
    match response:
        case Replied() if type(awaited) is CallModel:
            if response.seen is not None:
                state = paid(replace(state, thread=response.seen), response.usage, response.cost)
            return _replied(state, awaited, response.reply)
        case Compacted(seen, usage, cost) if type(awaited) is CallModel and awaited.compacts:
            return _finish(paid(replace(state, thread=seen), usage, cost), "completed", "", "", None)
        case Results() if type(awaited) is RunTools:
            return _worked(state, awaited, response)
        case Inputs() if type(awaited) is Checkpoint:
            return _admitted(state, awaited, response)
        case ModelCallFailed(code, message, usage, cost) if type(awaited) is CallModel:
            blame = "caller" if code == "denied" else "model"  # a hook of the host did not want it
            return _finish(paid(state, usage, cost), "failed", code, message, blame)
        case UsedUp(out, usage, cost) if type(awaited) is CallModel:
            return _out(paid(state, usage, cost), out)
        case limits.OutOf() if not isinstance(awaited, Finish):
            return _refused(state, awaited, response)
        case _:
            raise errors.InvariantBroken(f"{response!r} is no outcome of {awaited!r}")


_STOPS: Final[dict[messages.FinishReason, tuple[str, str]]] = {
    "refusal": ("refusal", "the model declined to answer"),
    "content_filter": ("content_filter", "the provider's content filter stopped the reply"),
    "context_overflow": ("context_overflow", "the conversation does not fit into the model's context window"),
}


def added(cost: float | None, more: float | None) -> float | None:
    """The sum of two costs; None if one is unknown."""
    return None if cost is None or more is None else cost + more


def paid(state: TurnState, usage: messages.Usage, cost: float | None, steps: int = 0) -> TurnState:
    """The state with the usage of a model call, by default of one that is no step of the turn."""
    used = state.used + limits.Consumption(steps, usage.total, cost or 0.0, unpriced=cost is None)
    cost = added(state.cost, cost)
    return replace(state, steps=state.steps + steps, usage=state.usage + usage, cost=cost, used=used)


def _replied(state: TurnState, awaited: CallModel, reply: messages.ModelReply) -> TurnState:
    message = messages.message_of_reply(reply, f"{state.run}.{awaited.id}")
    state = paid(state, reply.usage, reply.cost, steps=1)
    thread = state.thread.add(message) if message.parts else state.thread
    state = replace(state, thread=thread, position=awaited.position + 1)
    if reply.finish in _STOPS:
        code, why = _STOPS[reply.finish]
        return _finish(state, "failed", code, messages.join_refusal(reply.parts) or why, "model", message)
    if reply.finish == "cancelled":
        return _finish(state, "cancelled", "cancelled", "", None, message)
    if calls := message.calls:
        effect, tasks = RunTools(awaited.id + 1, calls), state.rules.tasks
        background = sum([call.name in tasks for call in calls]) if tasks else 0
        # Tools are not begun if no step is left in which the model could read their results.
        out = no_room(state, effect.id, limits.use_of_calls(len(calls), background))
        return replace(state, awaited=effect) if out is None else _out(state, out, message)
    return _answered(state, awaited.id, message, reasoned=reply.usage.reasoning > 0)


def _answered(state: TurnState, id: int, message: messages.AssistantMessage, *, reasoned: bool) -> TurnState:
    """Decide about a reply without tool calls: the answer, or a reply that needs repair or continuation."""
    if message.finish == "output_limit":
        return _cut_off(state, id, message, reasoned=reasoned)
    if not message.text.strip() and not _after_tools(state, message):
        if state.empties >= MAX_EMPTY:
            return _finish(state, "failed", "empty_response", "the model gave no answer", "model")
        return _correct(replace(state, empties=state.empties + 1), id, EMPTY)
    answer = answer_of(state.thread, message.id) or message.text
    complaint = state.rules.check(answer) if state.rules.check else None
    if complaint is None:
        return _complete(state, id, message)
    if state.repairs >= state.rules.repairs:
        return _finish(state, "failed", "invalid_output", complaint, "model", message)
    return _correct(replace(state, repairs=state.repairs + 1), id, complaint)


def _complete(state: TurnState, id: int, message: messages.AssistantMessage) -> TurnState:
    """Complete the turn. Waiting inputs may still enter at a checkpoint if a step is left to answer them."""
    rules = state.rules
    if (rules.steps is not None and state.steps >= rules.steps) or no_room(state, id + 1, limits.ONE_STEP) is not None:
        return _finish(state, "completed", "", "", None, message)
    return replace(state, awaited=Checkpoint(id + 1, "before_completion", advice=last_step(state)))


def _cut_off(state: TurnState, id: int, message: messages.AssistantMessage, *, reasoned: bool) -> TurnState:
    """Continue after the output limit. A reply without text and reasoning means that the context is full."""
    if not message.parts and not reasoned:
        code, why = _STOPS["context_overflow"]
        return _finish(state, "failed", code, f"{why}: there was no room left for an answer", "model")
    if not message.text:
        why = "the model used up its output before it came to an answer"
        return _finish(state, "limit", "output_limit", why, "limit")
    if state.continuations >= state.rules.continuations:
        why = "the answer is longer than the output limit"
        return _finish(state, "limit", "output_limit", why, "limit", message)
    return _correct(replace(state, continuations=state.continuations + 1), id, CUT_OFF)


def _after_tools(state: TurnState, message: messages.AssistantMessage) -> bool:
    """True if an empty reply comes right after tool results: some models end their work in this way."""
    if state.rules.check is not None:
        return False
    said = [found for found in state.thread.tail(2) if found.id != message.id]
    return bool(said) and type(said[-1]) is messages.ToolMessage


def answer_of(thread: Thread, id: str) -> str:
    """The text of the answer that ends with message `id`, with earlier parts that the output limit cut off."""
    words: list[str] = []
    run = id.partition(".")[0]
    for message in thread.backwards():
        if not words and message.id != id:
            continue
        if type(message) is messages.ToolMessage or message.id.partition(".")[0] != run:
            break
        if type(message) is messages.AssistantMessage:
            if words and message.finish != "output_limit":
                break
            words.append(message.text)
    return "".join(reversed(words))


def _correct(state: TurnState, id: int, note: str) -> TurnState:
    """Send a note to the model, and count a step without progress."""
    return go_on(replace(state, stalls=state.stalls + 1), id + 1, note)


def _worked(state: TurnState, awaited: RunTools, done: Results) -> TurnState:
    results = done.results
    if len(results) != len(awaited.calls):
        raise errors.InvariantBroken(f"{len(results)} results for {len(awaited.calls)} calls")
    rules = state.rules
    progress = any([result.state == "ok" for result in results])  # noqa: C419  cheaper
    trace = state.trace
    if rules.repeats is not None:
        step = None if done.polled else make_step(awaited.calls, results, rules.polling)
        trace = trace.after(step, rules.repeats)
    background = state.used.background + sum(map(is_background, results))
    used = replace(state.used, tool_calls=state.used.tool_calls + len(results), background=background)
    state = replace(
        state,
        thread=state.thread.add(messages.ToolMessage(f"{state.run}.{awaited.id}", results)),
        stalls=0 if progress else state.stalls + 1,
        used=used if done.within is limits.NOTHING else used + done.within,
        trace=trace,
    )
    if done.answer is not None:
        message = answer_message(state.run, awaited.id, done.answer)
        return _complete(replace(state, thread=state.thread.add(message)), awaited.id, message)
    if done.out is not None:
        return _out(state, done.out)
    return go_on(state, awaited.id + 1)


def go_on(state: TurnState, id: int, note: str | None = None) -> TurnState:
    """The checkpoint `id` before the next step, or the end of the turn at a limit.

    A turn that another agent takes over continues here; limits keep counting.
    """
    rules = state.rules
    if rules.steps is not None and state.steps >= rules.steps:
        return _out(state, limits.limit_reached("turn", "steps", rules.steps, state.steps))
    if state.stalls >= rules.stalls:
        why = f"{state.stalls} model calls in a row led to nothing"
        return _out(state, limits.OutOf("no_progress", why, rules.stalls, state.stalls))
    found = find_repetition(state.trace, rules.repeats)
    out = no_room(state, id, limits.ONE_STEP)
    if out is None and found is not None and found.known and id > state.recorded:
        out = limits.OutOf("loop", found.ending, found.times, 2 * found.times)  # the model had a note, and repeats it
    if out is not None:
        return _out(state, out)
    advice = last_step(state)
    if found is not None and not found.known:
        advice = join_notes(found.advice, advice)
    return replace(state, awaited=Checkpoint(id, "after_work", note, advice))


def _admitted(state: TurnState, awaited: Checkpoint, inputs: Inputs) -> TurnState:
    entered = inputs.messages
    if awaited.moment == "before_completion" and not entered:
        answer = state.thread.last
        return _finish(state, "completed", "", "", None, answer if type(answer) is messages.AssistantMessage else None)
    text = awaited.note if inputs.told is None else inputs.told
    if text is None and not entered:
        return replace(state, awaited=CallModel(awaited.id + 1, state.thread, state.position))
    name = f"{state.run}.{awaited.id}"
    note = () if text is None else (messages.UserMessage(name, (messages.Text(text),), "holdfast"),)
    # New input may well ask for the same work again.
    trace = Trace() if entered else state.trace
    if not entered and text != awaited.note:  # the model heard the advice that was offered to it
        found = find_repetition(state.trace, state.rules.repeats)
        trace = state.trace if found is None else state.trace.told(found)
    state = replace(state, thread=state.thread.add(*note, *entered), trace=trace)
    return replace(state, awaited=CallModel(awaited.id + 1, state.thread, state.position))


def _refused(state: TurnState, awaited: CallModel | RunTools | Checkpoint, out: limits.OutOf) -> TurnState:
    """End the turn because a shared budget has no room for the effect. An existing answer still counts."""
    if isinstance(awaited, Checkpoint) and awaited.moment == "before_completion":
        return _admitted(state, awaited, Inputs())
    last = state.thread.last
    said = last if isinstance(awaited, RunTools) and isinstance(last, messages.AssistantMessage) else None
    return _out(state, out, said)


def _out(state: TurnState, out: limits.OutOf, said: messages.AssistantMessage | None = None) -> TurnState:
    """End the turn at a limit. Text that came with unstarted calls becomes the answer."""
    answer = said if said is not None and said.text.strip() else None
    return _finish(state, "limit", out.code, out.message, "limit", answer, (out.allowed, out.used))


def _finish(
    state: TurnState,
    status: records.EndStatus,
    code: str,
    message: str,
    blame: Blame | None,
    answer: messages.AssistantMessage | None = None,
    bound: tuple[float | None, float | None] = (None, None),
) -> TurnState:
    typed = status == "completed" and state.rules.check is not None
    said = answer.id if answer is not None and answer.parts else None
    ending = Ending(
        status, code, message, blame, said, typed, state.steps, state.usage, state.cost, *bound, _skipped(state)
    )
    return replace(state, awaited=Finish(state.awaited.id + 1, ending))


def _skipped(state: TurnState) -> tuple[Skipped, ...]:
    last, awaited = state.thread.last, state.awaited
    if type(last) is not messages.AssistantMessage:
        return ()
    batch = awaited.id if isinstance(awaited, RunTools) else awaited.id + 1
    return tuple(Skipped(f"{state.run}.{batch}.{number}", call.name) for number, call in enumerate(last.calls, 1))
