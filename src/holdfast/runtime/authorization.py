"""Authorization of tool calls before they begin: hooks, then the policy, then a person if either asks for one.

Decisions are recorded below the call, so none is taken twice: not after a crash, not after days of waiting. A call that
has begun is never judged again. Later changes only make decisions stricter: a denial stays, an approval is good for
exactly the approved call, and the current policy still denies.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec
from msgspec.structs import replace

from holdfast import errors
from holdfast.effects.canonical import digest, digest_of_bytes, encode_value
from holdfast.effects.replay import Perform
from holdfast.messages import ToolCall, ToolResult
from holdfast.policy import approvals
from holdfast.policy.approvals import Approved, Denied, Question
from holdfast.policy.hooks import Answer, Ask, Deny, Replace, ToolDecision
from holdfast.policy.rules import Decision, Subject, Taint, decide
from holdfast.records import Cancelled, Cause, Done, EffectRequest, ErrorInfo, Failed, Intended, Unknown
from holdfast.runtime.hooks import HookRunner, hook_call
from holdfast.runtime.taint import mark_written, writer_of
from holdfast.runtime.tool_call import AuthorizedCall, ParkedCall, PreparedCall, RunningCall, authorized
from holdfast.tools.definition import Complaint, subject_of
from holdfast.tools.results import error_for_complaint
from holdfast.turns import keys
from holdfast.turns.results import result_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from holdfast.agent import Agent
    from holdfast.effects.performer import Performer
    from holdfast.records import Outcome, Record
    from holdfast.runtime.context import RuntimeContext
    from holdfast.runtime.waits import JournalWaits
    from holdfast.store.contract import Wait


_log: Final = logging.getLogger("holdfast.policy")
HOOK_SUFFIX: Final = "/%hook"
"""Key suffix of the record with the decisions of hooks about a call."""
_EDIT_SUFFIX: Final = f"{HOOK_SUFFIX}-edit-"
DENIED_ERROR: Final = "Denied"
"""The kind of error of a denied call, or of a withheld result."""
EDITED_NOTE: Final = "A person changed the arguments before this call was made. It was made with:"
MAX_WHY: Final = 2_000
"""Longest reason of a decision, in characters."""
CHANGED: Final = "the call or its tool has changed since a person was asked about it"
_CUT_OFF: Final = "the turn was stopped before the hooks had decided about it"
_decisions: Final = msgspec.json.Decoder(list[ToolDecision])
_answers: Final = msgspec.json.Decoder(Approved | Denied)


class CallOwner(Protocol):
    """The session or the host call whose calls are judged."""

    @property
    def context(self) -> RuntimeContext: ...
    @property
    def session(self) -> str: ...
    @property
    def waits(self) -> JournalWaits: ...
    @property
    def host_call(self) -> str | None:
        """The id of the host call; None for the calls of a turn."""
        ...


class Authorizer:
    """Decides about the calls of one turn, or about one host call, before they begin and after their outcome."""

    def __init__(self, host: CallOwner, agent: Agent, performer: Performer, hooks: HookRunner) -> None:
        self._host = host
        self._agent = agent
        self._performer = performer
        self._hooks = hooks
        self._recorded: dict[str, RecordedDecisions] = {}
        self.beside: dict[str, tuple[Record, ...]] = {}
        """Records that are committed together with the outcome of a call, by its key."""
        self.tainted_files: dict[str, str] = {}
        """Calls that read a file written by a tainted record, with that record."""
        self.sees_errors = "on_error" in hooks.overridden
        self._judges = "after_tool" in hooks.overridden
        self._unsettled = False
        """True while decisions of hooks are not durable yet."""

    async def recall(self, calls: Iterable[str]) -> None:
        """Read the recorded decisions about the calls with these keys."""
        for key in calls:
            if key in self._performer.past.order:
                self._recorded[key] = await read_decisions(self._performer, key)

    def decisions(self, key: str) -> RecordedDecisions:
        return self._recorded.get(key, NO_DECISIONS)

    def _subject(self, call: PreparedCall) -> Subject:
        return subject_of(self._agent.tools[call.request.name], call.request.arguments or {})

    # ---- deciding ----

    async def authorize(self, calls: Iterable[PreparedCall], taint: Taint) -> list[AuthorizedCall | ParkedCall]:
        """Decide about each call that has not begun: make it, refuse it, answer it by a hook, or wait for a person."""
        states = [await self._authorize(call, taint) for call in calls]
        await self._settle_hooks()
        for state in states:
            await self._check_files(state, taint)
        return states

    async def _authorize(self, prepared: PreparedCall, taint: Taint) -> AuthorizedCall | ParkedCall:
        known, call = self.decisions(prepared.key), authorized(prepared)
        if known.questioned:
            # A recorded answer counts only if the sealed row of its question agrees; otherwise it was forged.
            wait = None if known.answered is None else await self._host.waits.find(known.answered)
            forged = known.forged(wait, begun=not call.fresh)
            if forged is not None:
                raise await self._quarantine(f"{forged}: another program has written that")
            if wait is not None and wait.state == "revoked" and call.fresh and isinstance(known.answer, Approved):
                call = _denied_by_person(call, Denied("the approval was revoked"))
        if not call.fresh or call.bound is None or call.refused is not None:
            return _declined(call)
        state = await self._decide(call, known, taint)
        call, waits = (state.call, state.waits) if isinstance(state, ParkedCall) else (state, ())
        if known.open:  # drop questions that are not asked any more: the call has changed, or the policy allows it
            answered = {record.key for record in call.before if isinstance(record, Done)}
            left = [key for key in known.open if key not in waits and key not in answered]
            dropped = (Cancelled(at=self._performer.now(), key=key) for key in left)
            call = replace(call, before=(*call.before, *dropped))
        if not isinstance(state, ParkedCall):
            return _declined(call)
        if call.before:
            self._performer.submit([*call.before])
            call = replace(call, before=())
        return replace(state, call=call)

    async def _check_files(self, call: AuthorizedCall | ParkedCall, taint: Taint) -> None:
        """Mark files that a tainted turn is about to write; taint the turn if it reads a marked file."""
        tool = None if isinstance(call, ParkedCall) or not call.is_made or not call.fresh else call.tool
        if isinstance(call, ParkedCall) or tool is None or not tool.reach.paths or tool.reach.base is None:
            return
        store, subject = self._host.context.store, self._subject(call)
        if not tool.read_only and taint.untrusted_input:
            name = keys.record_name(self._host.session, call.key)
            await mark_written(store, subject, f"{name}, after {taint.untrusted_by or 'untrusted input'}")
        elif tool.read_only and (by := await writer_of(store, subject)) is not None:
            self.tainted_files[call.key] = by
            ask = EffectRequest("sample", "taint", digest_of_bytes("taint", call.key.encode()))
            key, value = f"{call.key}/{keys.TAINTED}", msgspec.Raw(msgspec.json.encode(by))
            self.beside[call.key] = (Done(at=self._performer.now(), key=key, ask=ask, value=value),)

    async def _decide(
        self, call: AuthorizedCall, known: RecordedDecisions, taint: Taint
    ) -> AuthorizedCall | ParkedCall:
        call, why = await self._apply_hooks(call, known)
        if known.edited and known.hooks is not None:  # an earlier process may have died before hooks judged the edit
            call = await self._judge_edit(call, known)
        if not call.is_made:
            return call
        if isinstance(known.answer, Denied):
            return _denied_by_person(call, known.answer)
        subject = self._subject(call)
        decision = self._policy_decision(subject, taint)
        if decision.verdict == "deny":
            return _denied_by_policy(call, decision)
        # A rule that a person stored for a sub-agent does not answer a question of its parent's policy.
        each = why is not None or decision.tainted or decision.rule.startswith("parent: ")
        if why is not None and decision.verdict == "allow":
            decision = Decision("ask", "hook", why)
        elif why is not None:
            decision = replace(decision, why=f"{decision.why}; {why}")
        if decision.verdict == "allow" and not known.questioned:
            return call
        question = self._question(call, subject, decision, each=each)
        if isinstance(known.answer, Approved) and known.answer.digest == question.digest:
            return replace(call, approved=True)  # an earlier process did not finish the call
        asked = self._performer.recorded(question.wait) is not None
        # An open question is waited for, also where the policy would not ask any more.
        if decision.verdict == "allow" and not asked:
            return call
        if not each and not known.asked and await self._is_always_allowed(subject):
            return call
        if known.questioned and not asked:
            question = replace(question, why=f"{question.why}; {CHANGED}")
        return await self._ask(call, question, decision.expires_ms, taint, asked=asked)

    async def _is_always_allowed(self, subject: Subject) -> bool:
        """True if a person has stored a rule that allows this call."""
        try:
            stored = await self._host.context.store.rules(self._agent.name)
        except errors.RuleCorrupt as error:
            _log.error("%s; nothing is allowed by stored rules", error)
            return False
        return approvals.is_allowed_by_stored([rule.body for rule in stored], subject)

    async def _quarantine(self, reason: str) -> errors.JournalCorrupt:
        """Take the journal out of use because it can't be trusted; returns the error to raise."""
        journal = self._host.waits.journal
        await self._host.context.store.quarantine(journal, reason)
        return errors.JournalCorrupt(journal, 0, reason)

    def _question(self, call: AuthorizedCall, subject: Subject, decision: Decision, *, each: bool) -> Question:
        """The question about the current call.

        A question that an earlier release asked, without the implementation of the tool, stays that question.
        """
        question = Question(
            session=self._host.session,
            agent=self._agent.name,
            effect=call.key,
            tool=call.request.name,
            definition=subject.digest,
            arguments=dict(subject.args),
            sandbox=None if call.tool is None else call.tool.reach.sandbox,
            rule=decision.rule,
            why=decision.why,
            asked=self._performer.now(),
            each=each,
            implementation=None if call.tool is None else call.tool.implementation,
            host_call=self._host.host_call,
        )
        older = replace(question, implementation=None)
        return older if self._performer.recorded(older.wait) is not None else question

    async def _ask(
        self, call: AuthorizedCall, question: Question, expires_ms: int | None, taint: Taint, *, asked: bool
    ) -> AuthorizedCall | ParkedCall:
        """Ask a person, or apply the answer, which is recorded with the next commit of the call.

        `asked`: the question is already recorded.
        """
        name, now = question.wait, self._performer.now()
        body = msgspec.json.encode(question)
        try:
            due = now + (expires_ms or approvals.EXPIRES_MS)
            wait = await self._host.waits.open(name, due, kind=approvals.KIND, body=body)
        except errors.PayloadTooLarge as error:
            said = f"it is too large for a person to be asked about ({error.size:,} bytes)"
            return _denied_by_person(call, Denied(said))
        cause, step = Cause("call", question.effect), self._performer.iteration or 0
        ask = EffectRequest("await_event", name, question.digest, cause=cause, iteration=step)
        if wait.state == "open":
            if not asked:
                self._performer.submit([Intended(at=now, key=name, ask=ask)])
            return ParkedCall(call, (name,), question, expires_ms)
        resolved = wait.state == "resolved"
        closed = "no answer came in time" if wait.state == "expired" else f"the question was {wait.state}"
        answer = approvals.read_answer(question, wait.payload) if resolved else Denied(closed)
        used = await self._performer.succeeded(name, None if asked else ask, msgspec.json.encode(answer))
        if isinstance(used, Done):
            before = (*call.before, used)
            consumes = (*call.consumes, name) if resolved else call.consumes
            call = replace(call, before=before, consumes=consumes)
        else:
            answer = Denied("the answer is too large to be kept")
        return await self._apply_answer(call, answer, taint)

    async def reconsider(self, parked: ParkedCall, taint: Taint) -> AuthorizedCall | ParkedCall:
        """Check for a person's answer to a waiting call."""
        call, question = parked.call, parked.question
        if question is None:
            return parked
        decision = self._policy_decision(self._subject(call), taint)
        if decision.verdict == "deny":  # reads since then count, even if a person approves
            return _declined(_denied_by_policy(await self.withdraw(parked), decision))
        state = await self._ask(call, question, parked.expires_ms, taint, asked=True)
        if isinstance(state, ParkedCall):
            return state
        await self._settle_hooks()
        call = _declined(state)
        await self._check_files(call, taint)
        return call

    async def withdraw(self, parked: ParkedCall) -> AuthorizedCall:
        """Withdraw the question about a call that will not be made."""
        now = self._performer.now()
        dropped = tuple(Cancelled(at=now, key=wait) for wait in parked.waits)
        for wait in parked.waits:
            await self._host.waits.close(wait)
        return replace(parked.call, before=(*parked.call.before, *dropped))

    def _policy_decision(self, subject: Subject, taint: Taint) -> Decision:
        """The decision of the policy with secrets redacted: a model or a person may read it."""
        decision = decide(self._agent.policy, subject, taint)
        redactor = self._performer.redactor
        if not redactor.active and len(decision.why) <= MAX_WHY:
            return decision
        why, rule = redactor.text(decision.why), redactor.text(decision.rule)
        return replace(decision, why=why if len(why) <= MAX_WHY else f"{why[:MAX_WHY]}...", rule=rule)

    async def _apply_answer(self, call: AuthorizedCall, answer: Approved | Denied, taint: Taint) -> AuthorizedCall:
        if isinstance(answer, Denied):
            return _denied_by_person(call, answer)
        if answer.arguments is None:
            return replace(call, approved=True)  # it runs as it was shown
        # The person changed the arguments: rules that no approval overrides apply to the new ones too.
        call = _rebound(replace(call, edited=True, approved=True), answer.arguments)
        if call.refused is not None:
            said = f"A person changed the arguments of this call, and they do not fit. {call.refused.message}"
            return _denied(call, said)
        decision = self._policy_decision(self._subject(call), taint)
        if decision.verdict == "deny":
            said = f"{call.request.name} is not allowed with what a person wrote: {decision.why} ({decision.rule})"
            return _denied(call, said)
        return await self._judge_edit(call, self.decisions(call.key))

    # ---- hooks ----

    async def _settle_hooks(self) -> None:
        """Wait until decisions of hooks are durable; no call begins before that."""
        if self._unsettled:
            self._unsettled = False
            await self._performer.settle()

    async def _record_hooks(
        self, call: AuthorizedCall, suffix: str, decisions: Sequence[ToolDecision]
    ) -> Sequence[ToolDecision]:
        ask = EffectRequest("sample", "hook", digest_of_bytes("hook", call.key.encode()))
        known, record = await hook_record(self._performer, call.key + suffix, ask, decisions)
        self._performer.submit([record], patient=True)
        self._unsettled = True
        return known

    async def _apply_hooks(self, call: AuthorizedCall, known: RecordedDecisions) -> tuple[AuthorizedCall, str | None]:
        """Apply the decisions of hooks. The second value is the reason if a hook wants a person to decide."""
        decided: Sequence[ToolDecision] = known.hooks or ()
        if known.hooks is None and "before_tool" in self._hooks.overridden:
            decisions = await self._hooks.before_tool(hook_call(self._hooks.turn, call, self._performer))
            decided = await self._record_hooks(call, HOOK_SUFFIX, decisions)
        reasons = [decision.why for decision in decided if isinstance(decision, Ask)]
        for decision in decided:
            if isinstance(decision, Replace) and known.answer is None:  # else it is bound to those of the answer
                call = _rebound(call, decision.arguments)
            call = _denied_or_answered(call, decision)
        return call, "; ".join(reasons) if reasons else None

    async def _judge_edit(self, call: AuthorizedCall, known: RecordedDecisions) -> AuthorizedCall:
        """Let hooks judge, once, arguments that a person wrote after the hooks had seen the call."""
        suffix = _EDIT_SUFFIX + digest("edit", call.request.arguments or {})[:16]
        judged: Sequence[ToolDecision] = known.judged.get(suffix, ())
        if suffix not in known.judged and "before_tool" in self._hooks.overridden:
            decisions = await self._hooks.judge_edit(hook_call(self._hooks.turn, call, self._performer))
            judged = await self._record_hooks(call, suffix, decisions)
        for decision in judged:
            call = _denied_or_answered(call, decision, f"{call.request.name} is not made with what a person wrote: ")
        return call

    # ---- hooks that see results ----

    async def apply_result_hooks(
        self,
        call: AuthorizedCall,
        outcome: Outcome,
        open_calls: dict[str, RunningCall],
        raised: Exception | None = None,
    ) -> Outcome:
        """The outcome to record. A person's edit of the arguments is noted in the result.

        `raised` is the error of the tool, if it raised here.
        """
        if isinstance(outcome, Cancelled):
            return outcome
        if self._judges or self.sees_errors:
            # A turn that is stopped while the hooks run records the unchanged outcome, or withholds it if they judge
            # it.
            running = open_calls.get(call.key)
            if running is not None:
                stopped = outcome
                if self._judges and not isinstance(outcome, Unknown):
                    stopped = _withheld(call, outcome, _CUT_OFF)
                open_calls[call.key] = replace(running, outcome_if_stopped=stopped)
            if self.sees_errors and isinstance(outcome, Failed):
                error = outcome.error
                failure = raised or errors.EffectFailed(call.request.name, error.kind, error.message)
                await self._hooks.observe("on_error", failure)
            elif self.sees_errors and isinstance(outcome, Unknown):
                await self._hooks.observe("on_error", errors.EffectUnknown(call.key, call.request.name))
            if self._judges:
                outcome = await self._judged(call, outcome)
            if running is not None:
                open_calls[call.key] = running
        # A program gets the unchanged result; the model that wrote the program reads of the edit at its end.
        if call.edited and call.is_made and not call.nested and isinstance(outcome, Done | Failed):
            return await self._with_edit_note(call, outcome)
        return outcome

    async def _judged(self, call: AuthorizedCall, outcome: Done | Failed | Unknown) -> Done | Failed | Unknown:
        if isinstance(outcome, Done):
            files = tuple(blob.digest for blob in outcome.refs)
            result = ToolResult(call.request.id, call.request.name, await self._value(outcome), files=files)
        else:
            result = result_of(call.request, outcome)
        decision = await self._hooks.after_tool(hook_call(self._hooks.turn, call, self._performer), result)
        if isinstance(outcome, Unknown):
            return outcome  # a hook can't know the outcome
        match decision:
            case Answer(value):
                return await self._replaced(call, outcome, value)
            case Deny(reason):
                return _withheld(call, outcome, reason)
            case None:
                return outcome

    async def _with_edit_note(self, call: AuthorizedCall, outcome: Done | Failed) -> Done | Failed:
        note = f"{EDITED_NOTE} {msgspec.json.encode(call.request.arguments).decode()}"
        if isinstance(outcome, Done):
            return await self._replaced(call, outcome, {"note": note, "result": await self._value(outcome)})
        error = ErrorInfo(outcome.error.kind, f"{outcome.error.message}\n{note[:2_000]}")
        return replace(outcome, error=error)

    async def _value(self, outcome: Done) -> Any:  # any result of a tool
        return msgspec.json.decode(await self._performer.read_value(outcome))

    async def _replaced(self, call: AuthorizedCall, outcome: Done | Failed, value: object) -> Done | Failed:
        refs, kept = (outcome.refs, outcome.kept) if isinstance(outcome, Done) else ((), ())
        try:
            body = encode_value(value)
        except (errors.HoldfastError, TypeError, ValueError, RecursionError) as error:
            return _withheld(
                call, outcome, f"what a hook returned can't be kept: {self._performer.redactor.text(str(error))[:500]}"
            )
        made = await self._performer.succeeded(outcome.key, outcome.ask, body, 0.0, refs, kept)
        if not isinstance(made, Done | Failed):
            return outcome
        return replace(made, ms=outcome.ms, taint=outcome.taint)


def _denied(call: AuthorizedCall, message: str) -> AuthorizedCall:
    return replace(call, refused=ErrorInfo(DENIED_ERROR, message))


def _denied_by_person(call: AuthorizedCall, answer: Denied) -> AuthorizedCall:
    return _denied(call, approvals.refusal_text(call.request.name, answer))


def _denied_by_policy(call: AuthorizedCall, decision: Decision) -> AuthorizedCall:
    return _denied(call, f"{call.request.name} is not allowed here: {decision.why} ({decision.rule})")


def _denied_or_answered(call: AuthorizedCall, decision: ToolDecision, why: str = "") -> AuthorizedCall:
    match decision:
        case Deny(reason):
            return _denied(call, f"{why}{reason}")
        case Answer(value):
            return replace(call, answer=encode_value(value))
        case _:
            return call


def _declined(call: AuthorizedCall) -> AuthorizedCall:
    """Drop the intent of a fresh call that will not be made."""
    if call.is_made or not call.fresh:
        return call
    return replace(call, decision=Perform(intent=False))


def _rebound(call: AuthorizedCall, arguments: dict[str, Any]) -> AuthorizedCall:
    """The call with other arguments; refused if they don't fit its tool."""
    request = replace(call.request, arguments=arguments)
    bound = None if call.tool is None else call.tool.bind(arguments)
    if isinstance(bound, Complaint):
        return replace(call, request=request, refused=error_for_complaint(bound))
    return replace(call, request=request, bound=bound)


# ---- recorded decisions ----


@dataclass(frozen=True, slots=True)
class RecordedDecisions:
    """The decisions about one call that the journal has."""

    hooks: tuple[ToolDecision, ...] | None = None
    """None: hooks have not decided yet."""
    judged: Mapping[str, tuple[ToolDecision, ...]] = field(default_factory=dict[str, "tuple[ToolDecision, ...]"])
    """Decisions of hooks about arguments that a person wrote, by the suffix of their record."""
    answer: Approved | Denied | None = None
    """The answer of a person that was used."""
    answered: str | None = None
    """The key of the question that it answers."""
    asked: tuple[str, ...] = ()
    """Keys of all questions."""
    open: tuple[str, ...] = ()
    """Keys of questions without a recorded answer."""

    def applied_to(self, call: ToolCall) -> ToolCall:
        """The call with arguments from hooks or a person."""
        for decision in self.hooks or ():
            if isinstance(decision, Replace):
                call = replace(call, arguments=decision.arguments)
        if self.edited and isinstance(self.answer, Approved):
            call = replace(call, arguments=self.answer.arguments)
        return call

    @property
    def questioned(self) -> bool:
        """True if a question to a person about the call is recorded or answered."""
        return bool(self.asked) or self.answer is not None

    def forged(self, wait: Wait | None, *, begun: bool) -> str | None:
        """The reason why the recorded answer of a person must be forged; None if it agrees with `wait`.

        `wait` is the sealed row of the answered question. An approval is recorded, used up and followed by the intent
        of its call in one commit, so Holdfast never leaves a row that disagrees, or none.
        """
        if begun and self.open:
            return f"a call was begun without an answer to {self.open[0]!r}"
        if begun and isinstance(self.answer, Denied):
            return f"a call was begun although {self.answered!r} was denied"
        if not isinstance(self.answer, Approved):
            return None  # a denial lets nothing run
        if wait is None:
            return f"{self.answered!r} counts as approved, and there is no such wait"
        used = wait.consumed and approvals.is_approval_of(wait.payload, self.answer.digest)
        if used or wait.state == "revoked":  # a revoked wait has lost its answer
            return None
        return f"{self.answered!r} counts as approved, and its wait does not say so"

    @property
    def edited(self) -> bool:
        """True if a person changed the arguments."""
        return isinstance(self.answer, Approved) and self.answer.arguments is not None


NO_DECISIONS: Final = RecordedDecisions()


async def read_decisions(performer: Performer, key: str) -> RecordedDecisions:
    """Read the decisions that are recorded below the call `key`."""
    hooks: dict[str, tuple[ToolDecision, ...]] = {}
    for found in performer.below(key, HOOK_SUFFIX):
        if isinstance(found.outcome, Done):
            decisions = tuple(_decisions.decode(await performer.read_value(found.outcome)))
            hooks[found.outcome.key.removeprefix(key)] = decisions
    questions = performer.below(key, approvals.MARK)
    # The last used answer: a call that has changed meanwhile needs a new approval.
    used = next((each.outcome for each in reversed(questions) if isinstance(each.outcome, Done)), None)
    answer = None if used is None else _answers.decode(await performer.read_value(used))
    intents = [(each.intent.key, each.outcome is None) for each in questions if each.intent is not None]
    return RecordedDecisions(
        hooks=hooks.get(HOOK_SUFFIX),
        judged={place: decisions for place, decisions in hooks.items() if place.startswith(_EDIT_SUFFIX)},
        answer=answer,
        answered=None if used is None else used.key,
        asked=tuple(key for key, _ in intents),
        open=tuple(key for key, is_open in intents if is_open),
    )


async def hook_record(
    performer: Performer, key: str, ask: EffectRequest, decided: Sequence[ToolDecision]
) -> tuple[list[ToolDecision], Outcome]:
    """The decisions of hooks in their recorded form, and their record under `key`.

    Unrecordable decisions are a denial.
    """
    try:
        plain = [
            Answer(msgspec.json.decode(encode_value(decision.value))) if isinstance(decision, Answer) else decision
            for decision in decided
        ]
        # Secrets among the arguments are replaced by their names already now: the call must be the same after a crash.
        body = performer.redactor.bytes(msgspec.json.encode(plain))
        known = _decisions.decode(body)
        outcome = await performer.succeeded(key, ask, body)
        if isinstance(outcome, Done):
            return known, outcome
        said = "it is too large"
    except (errors.HoldfastError, msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
        said = performer.redactor.text(str(error))[:500]
    denied: list[ToolDecision] = [Deny(f"what a hook decided can't be recorded: {said}")]
    return denied, await performer.succeeded(key, ask, msgspec.json.encode(denied))


def _withheld(call: AuthorizedCall, outcome: Done | Failed, reason: str) -> Failed:
    if call.refused is not None:
        said = "The call was not made. Why is withheld:"
    elif call.answer is not None:
        said = "The call was not made: a hook answered in its place. The answer is withheld:"
    elif isinstance(outcome, Failed):
        said = "The call was made, and failed. Its error is withheld:"
    else:
        said = "The call was made, and took effect. Its result is withheld:"
    error = ErrorInfo(DENIED_ERROR, f"{said} {reason}")
    return Failed(at=outcome.at, key=outcome.key, ask=outcome.ask, error=error, ms=outcome.ms, taint=outcome.taint)
