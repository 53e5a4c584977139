"""The turn runner: performs the effects that the turn machine asks for, until the turn ends or has to wait."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast import errors, events
from holdfast.agent import Agent, agent_in_mode, narrow_agent, prepare
from holdfast.crashpoints import crash_point
from holdfast.effects import canonical, replay
from holdfast.effects.performer import JournalLedger, Performer
from holdfast.logs import log_event
from holdfast.policy.hooks import TurnContext
from holdfast.policy.limits import Consumption, OutOf, limits_under_mandate, taint_under
from holdfast.policy.rules import Taint
from holdfast.records import Cause, Done, EffectRequest, Ended, Parked, Record
from holdfast.runtime import authorization, model_call, programs, reconciliation, tool_call
from holdfast.runtime.budgets import SharedBudgets, spend_of_records
from holdfast.runtime.changes import call_name
from holdfast.runtime.deferrals import Deferrals
from holdfast.runtime.hooks import HookRunner, current_hooks
from holdfast.runtime.waits import ToolWaits
from holdfast.turns import environment, keys
from holdfast.turns.conversation import CheckpointOutcome, OpenTurn, decode_checkpoint
from holdfast.turns.machine import Ending, added, answer_of, go_on, poll, respond, start, used_up, with_last_step
from holdfast.turns.state import CallModel, Checkpoint, Finish, Inputs, Response, Results, RunTools, TurnState

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from holdfast.messages import UserMessage
    from holdfast.runtime import session_driver, tool_host


_log: Final = logging.getLogger("holdfast.runtime")
TURN_START_SUFFIX: Final = "/%begun"
"""Key suffix of the record with the decision of the `before_turn` hooks."""
_NO_INPUTS: Final = Inputs()
_reason_decoder: Final = msgspec.json.Decoder(str | None)


class TurnRunner:
    """Runs one turn from its beginning, or from the end of its records, while one agent has it.

    A `strict` run performs nothing and only follows the records. `until` is the effect after which, by the records, the
    agent handed the turn over.
    """

    def __init__(
        self,
        host: session_driver.SessionDrive,
        agent: Agent | None,
        turn: OpenTurn,
        ledger: JournalLedger,
        *,
        strict: bool = False,
        until: int = 0,
    ) -> None:
        self._other_mode = agent is not None and turn.mode not in {None, agent.mode}
        """The agent now has another mode than at the beginning of the turn."""
        agent = None if agent is None else agent_in_mode(agent, turn.mode)
        if agent is not None and turn.mandate is not None:
            agent = narrow_agent(agent, limits=limits_under_mandate(agent.limits, turn.mandate))
        self.session = host.session
        self.run = turn.run
        self.deadline = turn.deadline
        self.metadata: Mapping[str, Any] = turn.metadata
        self.stopped = False
        """The turn was cancelled, or its deadline has passed; the session driver sets it."""
        self.performer = Performer(ledger, replay.fold_history(turn.records), turn.run, strict=strict)
        self.performer.cause = turn.cause
        self._first = turn.position - turn.carried.steps
        """Number of model calls in the conversation before this turn."""
        self._host = host
        self.agent = agent
        """The agent; from `_define` on, as it is in this turn."""
        self._whole = agent
        """The agent with all tools that it may have."""
        self.turn = turn
        self._state: TurnState | None = None
        self._current: TurnState | None = None
        """State in which the turn waits for the effect under way."""
        self._strict = strict
        self._until = until
        parsed = [keys.parse_key(getattr(record, "key", "")) for record in turn.records]
        self._recorded = {key.number: key.name for key in parsed if key is not None}
        self._last = max(self._recorded, default=0)
        self._loop = asyncio.get_running_loop()
        self._budgets: SharedBudgets | None = None
        # After a handoff, an earlier agent may have had sub-agents.
        delegates = agent is not None and (bool(prepare(agent).sub_agents) or turn.handoffs > 0)
        if agent is not None and not strict and (delegates or agent.limits.beyond_turn):
            self._budgets = SharedBudgets(host, agent, turn, self.performer, delegates=delegates)
        hooks, guards = ((), ()) if agent is None else (agent.hooks, host.context.hooks)
        name, deps = "" if agent is None else agent.name, host.context.deps
        said = turn.said[0] if turn.said else None
        whose: TurnContext[Any] = TurnContext(host.session, name, turn.run, turn.metadata, deps, said)
        self._hook_runner = HookRunner(hooks, whose, host.show_late, guards=guards, clean=self.performer.redactor.text)
        self._taint = turn.taint if turn.mandate is None else taint_under(turn.mandate).joined(turn.taint)
        self._tainted = agent is not None and prepare(agent).tracks_taint
        """A rule of the agent depends on taint, so the runner tracks it."""
        self._programs: programs.Programs | None = None
        self.resumed = bool(turn.records)
        """An earlier process may have begun calls of this turn, or sent them to the background."""

    # ---- the parts, made when they are needed: an agent without tools needs few ----

    @cached_property
    def host(self) -> tool_host.ToolHost | None:
        """The runtime as tools see it (``ctx.host``)."""
        return self._host.tool_host

    @cached_property
    def _model_caller(self) -> model_call.ModelCaller:
        if self.agent is None:
            raise errors.InvariantBroken(f"the turn {self.run!r} can't be run without its agent")
        return model_call.ModelCaller(self._host, self.agent, self.turn, self.performer, self._hook_runner)

    @cached_property
    def _tool_batch(self) -> tool_call.ToolBatch:
        agent, host, runner = self.agent, self._host, self._call_runner
        if agent is not None and agent.mode == "code":
            find_limit, variables = self._find_exhausted, self.turn.variables
            self._programs = programs.Programs(host, agent, self.performer, runner, find_limit, variables)
        return tool_call.ToolBatch(host, self, runner, self._programs)

    @cached_property
    def _call_runner(self) -> tool_call.ToolCallRunner:
        agent, host = self.agent, self._host
        hooked = any(self._hook_runner.has(name) for name in ("before_tool", "after_tool", "on_error"))
        authorizer = None
        # A resumed turn may have recorded decisions of rules and hooks that the agent no longer has.
        if not self._strict and agent is not None and (prepare(agent).checks_calls or hooked or self.resumed):
            authorizer = authorization.Authorizer(host, agent, self.performer, self._hook_runner)
        return tool_call.ToolCallRunner(host, self, authorizer)

    @cached_property
    def deferrals(self) -> Deferrals:
        return Deferrals(self._host.waits, self.performer)

    @cached_property
    def waits(self) -> ToolWaits:
        return ToolWaits(self._host.waits, self.performer)

    # ---- running ----

    async def finish(self) -> Ending:
        """Run the turn to its end.

        Raises `TurnParked` when it has to wait, `TurnHandedOver` when another agent takes it over.
        """
        turn, budgets = self.turn, self._budgets
        if not self._strict:  # a replay check runs no tool, and its caller continues in this context
            current_hooks.set(self._hook_runner)
            if self._other_mode:
                self._require_mode()
        if turn.retry_of and turn.retry_of != turn.last and not turn.goes_on:
            message = f"the session went on after {turn.retry_of!r}, before its retry began; send the input again"
            return Ending("failed", "overtaken", message, "caller", **self._agent_fields())
        denied = await self._denied_by_hooks(turn)
        if denied is not None:
            return denied
        if self.agent is not None and (undefined := await self._define(self.agent, turn)) is not None:
            return undefined
        model_caller = self._model_caller
        self._take_in_taint(turn)
        if self.agent is not None and prepare(self.agent).offered_tools:
            _ = self._tool_batch  # ready before the reply comes
        rules, session = prepare(model_caller.agent).rules, model_caller.agent.limits.session
        if session is not None and session.steps is not None:  # the budget of the session may leave fewer steps
            rules = replace(rules, session_steps=session.steps - turn.used.steps)
        said = () if turn.goes_on else turn.said
        compacts = turn.compacts and not turn.goes_on
        state = start(turn.run, rules, turn.before, said, turn.position, self._last, compacts=compacts)
        if turn.goes_on:  # another agent handed the turn over
            state = go_on(msgspec.structs.replace(state, **msgspec.structs.asdict(turn.carried)), turn.goes_on)
        while True:
            self._current = state
            self._check_stopped()
            effect = poll(state)
            if budgets is not None and (out := await budgets.find_exhausted(state, effect, self._last)) is not None:
                state = self._state = respond(state, effect.id, out)
                continue
            match effect:
                case CallModel():
                    if self.performer.is_behind:
                        await self.performer.settle()
                    key = self._expect(effect.id, "model")
                    self.performer.iteration = 1 + effect.position - self._first
                    response: Response = (
                        await model_caller.compact(effect, key)
                        if effect.compacts
                        else await model_caller.respond(effect, key, self._find_exhausted)
                    )
                case RunTools():
                    self._expect(effect.id, "tools")
                    results = await self._tool_batch.perform(effect, self._taint)
                    self._check_stopped()
                    response = self._after_batch(effect, results)
                    self.performer.cause = Cause("effect", keys.effect_key(self.run, effect.id, "tools"))
                case Checkpoint():
                    response = _NO_INPUTS if self._is_passed(effect) else await self._checkpoint(effect)
                case Finish(ending=ending):
                    self.performer.check_complete()
                    return msgspec.structs.replace(ending, **self._agent_fields())
            state = self._state = respond(state, effect.id, response)

    async def _define(self, agent: Agent, turn: OpenTurn) -> Ending | None:
        """Take over the agent as functions, tool providers and the input define it for this turn.

        Returns the ending of the turn if they fail.
        """
        asked = turn.model is not None or turn.settings is not None
        recorded = self.resumed and bool(self.performer.below(turn.run, environment.MARK))
        if prepare(agent).choices is None and not asked and not recorded:
            return None
        from holdfast.runtime.definitions import DefinitionFailed, define_for_turn  # only where it is needed

        try:
            self.agent = await define_for_turn(agent, turn, self.performer, self._hook_runner.turn)
        except DefinitionFailed as failed:
            used = self.so_far() if turn.goes_on else self._agent_fields()
            return Ending("failed", failed.error.kind, failed.error.message, "code", **used)
        self.__dict__.pop("_model_caller", None)  # of the agent before
        self._tainted = prepare(self.agent).tracks_taint
        return None

    def _require_mode(self) -> None:
        """Raise `ModeUnavailable` if the agent, now defined for another mode, can't continue the turn in its mode."""
        agent = self.agent
        if agent is None or agent.mode == "tools":
            return
        try:
            _ = prepare(agent).stubs
            if agent.sandbox is None:
                from holdfast.sandbox.worker import require_programs  # only where it is needed

                require_programs()
        except (errors.StubsInvalid, errors.ProgramsUnavailable) as error:
            raise errors.ModeUnavailable(self.run, agent.name, agent.mode, str(error)) from error

    def _check_stopped(self) -> None:
        """Cancel a turn that is over but still runs, because a tool or a model swallowed the cancellation."""
        if self.stopped or self.performer.over:
            raise asyncio.CancelledError

    def _take_in_taint(self, turn: OpenTurn) -> None:
        """Take in the taint of earlier turns: the conversation, or its summary, holds the data they read."""
        if self._whole is not None and self._tainted and turn.heard:
            self._taint = self._taint.joined(prepare(self._whole).taint_of_tools(turn.heard, self._host.session))
        if turn.noticed:
            self._take_in_notification()
        self._take_in_inputs(turn.said)

    def _after_batch(self, effect: RunTools, results: Results) -> Results:
        if effect.id == self._until:
            self.performer.check_complete()
        if self._tool_batch.handed_over or effect.id == self._until:
            raise tool_call.TurnHandedOver
        if self.agent is not None and self._tainted:
            before = self._taint if self._programs is None else self._programs.taint
            numbered = enumerate(results.results, 1)
            keyed = [(keys.call_key(self.run, effect.id, n, result.name), result) for n, result in numbered]
            self._taint = self._call_runner.taint_after(self.agent, before, keyed)
        return results

    async def _find_exhausted(self, within: Consumption, ahead: Consumption) -> OutOf | None:
        """The limit without room for `ahead`, after the usage `within` of the effect under way."""
        state = self._current
        if state is None:
            return None
        used = state.used + within
        out = used_up(state.rules, used, ahead)
        if out is not None or self._budgets is None:
            return out
        return await self._budgets.find_exhausted_within(used, within, ahead)

    async def out_of_time(self) -> OutOf | None:
        """The budget of time that is used up, if any."""
        return None if self._budgets is None else await self._budgets.find_exhausted_time()

    def can_spill(self) -> bool:
        """True if one more call may go to the background."""
        most = None if self.agent is None else self.agent.limits.background
        used = 0 if self._state is None else self._state.used.background
        shared = None if self._budgets is None else self._budgets.tasks
        spilled = self._call_runner.spilled
        return (most is None or used + spilled < most) and (shared is None or spilled < shared)

    async def _denied_by_hooks(self, turn: OpenTurn) -> Ending | None:
        """Run the `before_turn` hooks, or read their recorded decision; returns an ending if one of them denied the
        turn.
        """
        known = self.performer.below(turn.run, TURN_START_SUFFIX)
        if not known and not turn.records and not self._strict:
            denied = await self._run_before_turn(turn)
        else:
            done = known[0].outcome if known else None
            denied = _reason_decoder.decode(bytes(done.value)) if isinstance(done, Done) else None
        used = self.so_far() if turn.goes_on else self._agent_fields()
        return None if denied is None else Ending("failed", "denied", denied, "caller", **used)

    async def _run_before_turn(self, turn: OpenTurn) -> str | None:
        """Run the `before_turn` hooks and record their decision; returns the reason of a denial."""
        reason: str | None = None
        hooked = self._hook_runner
        if turn.goes_on:  # only the new agent's own hooks have not seen the turn yet
            own = () if self.agent is None else self.agent.hooks
            hooked = HookRunner(own, hooked.turn, self._host.show_late, clean=self.performer.redactor.text)
        if hooked.has("before_turn"):
            decision = await hooked.before_turn()
            reason = None if decision is None else canonical.bounded(decision.reason)
            ask = EffectRequest("sample", "hook", canonical.digest_of_bytes("hook", turn.run.encode()))
            value = msgspec.Raw(msgspec.json.encode(reason))
            key = f"{turn.run}{TURN_START_SUFFIX}{f'.{turn.handoffs}' if turn.handoffs else ''}"
            await self.performer.record([Done(at=self.performer.now(), key=key, ask=ask, value=value)])
        if not turn.goes_on:
            await self._show_notifications(turn.said)
        return reason

    def _take_in_inputs(self, messages: Iterable[UserMessage]) -> None:
        for message in messages:
            taint = self.turn.taints.get(message.id)
            if taint is not None:
                self._taint = self._taint.joined(Taint.of(taint))
            elif message.origin == "holdfast":
                self._take_in_notification()

    def _take_in_notification(self) -> None:
        """Take in a notification without recorded taint (of an earlier release): any tool may have written it."""
        if self._whole is not None and self._tainted:
            self._taint = self._taint.joined(prepare(self._whole).taint_of_tools(dict.fromkeys(self._whole.tools, "")))

    async def _show_notifications(self, messages: Iterable[UserMessage]) -> None:
        if self._hook_runner.has("on_notification"):
            for message in messages:
                if message.origin == "holdfast":
                    await self._hook_runner.observe("on_notification", message.text)

    def _expect(self, number: int, name: keys.EffectName) -> str:
        """The key of an effect. Halts the turn if another effect is recorded under this number."""
        key = keys.effect_key(self.run, number, name)
        if number > self._last:
            return key
        recorded = self._recorded.get(number)
        if recorded is None and number < self._last and name != "checkpoint":
            recorded = "nothing"  # a checkpoint at which nothing entered leaves no record
        if recorded is not None and recorded != name:
            divergence = replay.diverge({"effect": recorded}, {"effect": name})
            raise self.performer.halt(errors.ReplayMismatch(key, divergence, self.turn.started.code))
        return key

    def _is_passed(self, effect: Checkpoint) -> bool:
        """True if a new checkpoint has nothing to do: no input and no note. Most are like that."""
        if effect.id <= self._last or effect.note is not None or effect.advice is not None:
            return False
        return self._host.quiet and not (self._budgets is not None and self._budgets.counts_steps)

    async def _checkpoint(self, effect: Checkpoint) -> Inputs:
        inputs = await self._inputs(effect)
        if inputs.messages:
            self.performer.cause = Cause("input", inputs.messages[-1].id.rpartition(".i")[2])
        elif inputs.told is not None:
            self.performer.cause = Cause("effect", keys.effect_key(self.run, effect.id, "checkpoint"))
        self._take_in_inputs(inputs.messages)
        return inputs

    async def _inputs(self, effect: Checkpoint) -> Inputs:
        key = self._expect(effect.id, "checkpoint")
        if effect.id in self._recorded:
            decision = self.performer.decide(key, _checkpoint_request(effect), replay.Repeat.FREE)
            if isinstance(decision, replay.UseRecorded) and isinstance(decision.outcome, Done):
                entered = decode_checkpoint(decision.outcome)
                return Inputs(tuple(self.turn.inputs[number] for number in entered.inputs), entered.note)
        if effect.id < self._last or self._strict:
            return _NO_INPUTS
        entering = await self._host.steering()
        budgets = self._budgets if entering or effect.moment == "after_work" else None
        if budgets is not None and budgets.counts_steps and await budgets.is_last_step():
            effect = msgspec.structs.replace(effect, advice=with_last_step(effect.advice))
        told = effect.told(entering=bool(entering))
        if entering or told is not None:
            records, messages = [record for record, _ in entering], tuple([message for _, message in entering])
            crash_point("turn.before_checkpoint")
            value = msgspec.json.encode(CheckpointOutcome(tuple([record.input for record in records]), told))
            led = Cause("input", str(records[-1].input)) if records else self.performer.cause
            step = self.performer.iteration or 0
            ask = msgspec.structs.replace(_checkpoint_request(effect), cause=led, iteration=step)
            self.performer.submit([Done(at=self.performer.now(), key=key, ask=ask, value=msgspec.Raw(value)), *records])
            await self._show_notifications(messages)
            return Inputs(messages, told)
        return _NO_INPUTS

    # ---- how it ends ----

    def answer(self, ending: Ending) -> str:
        if ending.answer is None or self._state is None:
            return ""
        return answer_of(self._state.thread, ending.answer)

    def so_far(self) -> dict[str, Any]:
        """Fields of the ending: steps and usage so far, and the unfinished answer."""
        counted = self._state or self.turn
        fields: dict[str, Any] = {"steps": counted.steps}
        usage, cost = counted.usage, counted.cost
        if self.agent is not None:
            caller = self._model_caller
            if self._state is not None and caller.compactor is not None:
                usage, cost = usage + caller.compactor.usage, added(cost, caller.compactor.cost)
            id, reply = caller.unfinished
            if reply is not None:
                if id:
                    fields = {"steps": counted.steps + 1} | ({"answer": id} if reply.parts else {})
                # The cost of a reply that was broken off is not known; of one that a hook held back it is.
                usage, cost = usage + reply.usage, added(cost, reply.cost)
        return {**fields, "usage": usage, "cost": cost, **self._agent_fields()}

    def _agent_fields(self) -> dict[str, Any]:
        return {"agent": None if self.agent is None else self.agent.name, "handoffs": self.turn.handoffs}

    def park(self, waits: tuple[str, ...]) -> Parked:
        crash_point("turn.before_park")
        parked = Parked(at=self.performer.now(), run=self.run, waits=waits)
        self.performer.submit([parked])
        return parked

    async def seal(self, ending: Ending, before: Sequence[Record] = (), trace: str = "") -> None:
        """Record the end of the turn, after the records `before`. Nothing can be recorded for it after that.

        `trace` is the traceback of the error that ended it, if there was one.
        """
        self.performer.flush()
        value = msgspec.Raw(msgspec.json.encode(ending))
        ended = Ended(at=self.performer.now(), run=self.run, status=ending.status, value=value, trace=trace)
        crash_point("turn.before_end")
        await self.performer.seal(*before, ended, spend=spend_of_records(before) if before else None)
        crash_point("turn.after_end")
        if _log.isEnabledFor(logging.INFO):
            log_event(
                *(_log, logging.INFO, "turn ended"),
                session=self.session,
                turn=self.run,
                status=ending.status,
                ms=ended.at - self.turn.started.at,
                steps=ending.steps,
                tokens_in=ending.usage.input + ending.usage.cache_read + ending.usage.cache_write,
                tokens_out=ending.usage.output,
                cost=ending.cost,
                code=ending.code or None,
                error=None if ending.status == "completed" else self.performer.redactor.text(ending.message) or None,
            )
        if self._hook_runner.has("after_turn"):
            self._host.context.turn_hooks.ended(self._hook_runner, ending)

    async def close(self) -> None:
        """End the performer, and break the reference cycles between this runner and its parts.

        Ended turns must not wait for the garbage collector: it would have much to do at once.
        """
        await self.performer.close("ended")
        self.__dict__.pop("_tool_batch", None)
        self.__dict__.pop("_call_runner", None)
        self._programs = None

    def has_settled(self, call: str) -> bool:
        """True if the call with this key has an outcome: then it can't be stopped any more."""
        return call in self._call_runner.settled or reconciliation.has_outcome(self.performer.past, call)

    def stop_call(self, call: str) -> None:
        """Stop the call with this key if it runs here; the request is among `SessionDrive.stopped_calls`."""
        self._call_runner.stop(call)

    def left_over(self) -> Iterator[Record]:
        """Outcomes for a stopped turn: the reply so far, and the running calls."""
        now = self.performer.now()
        if self.agent is not None:
            yield from self._model_caller.left_over(now)
        tool_batch = self._tool_batch
        if self._programs is not None and self._programs.running is not None:
            yield from self._programs.running.unanswered(now)
        yield from tool_batch.left_over(now, resumed=self._state is not None)

    # ---- used by tools ----

    def note(self, record: Record) -> None:
        self.performer.submit([record], patient=True)

    def progress(self, key: str, note: str | None, fraction: float | None) -> None:
        try:
            asyncio.get_running_loop()
        except RuntimeError:  # a plain function, in a thread
            self._loop.call_soon_threadsafe(self.progress, key, note, fraction)
            return
        parsed = keys.parse_key(key)
        if parsed is not None:
            fields = {"call": call_name(parsed), "tool": keys.tool_in_key(key), "note": note, "fraction": fraction}
            self._host.show(events.ToolCallProgress, self.run, fields)


def _checkpoint_request(checkpoint: Checkpoint) -> EffectRequest:
    content = canonical.digest_of_bytes("checkpoint", (checkpoint.note or "").encode())
    return EffectRequest("checkpoint", checkpoint.moment, content)
