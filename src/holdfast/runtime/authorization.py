"""Before a call begins: hooks, then the policy, then a person where one of them wants that.

What was decided is recorded below the call, so that nothing is decided twice: not after a crash, not after days of
waiting. A call that was begun is never judged again. Whatever has changed since can only make things stricter: a
denial stands, an approval is good for the call that was approved and no other, and the policy of today denies today.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.effects.canonical import check as check_json
from holdfast.effects.canonical import digest, digest_of_bytes
from holdfast.effects.values import encode_value
from holdfast.errors import EffectFailed, EffectUnknown, HoldfastError
from holdfast.messages import ToolResult
from holdfast.policy.approvals import MARK, Approved, Denied, approves, refusal
from holdfast.policy.hooks import Answer, Ask, Deny, Replace, ToolDecision
from holdfast.policy.rules import CLEAN, Decision
from holdfast.records import Cancelled, Done, ErrorInfo, Failed, Unknown
from holdfast.records import EffectRequest as Asked
from holdfast.runtime.approvals import ApprovalRequests
from holdfast.runtime.hooks import hook_call
from holdfast.tools.definition import Complaint
from holdfast.tools.results import error_for_complaint
from holdfast.turns.results import result_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from holdfast.agent import Agent
    from holdfast.effects.performer import Performer
    from holdfast.effects.replay import RecordedEffect
    from holdfast.messages import ToolCall
    from holdfast.policy.approvals import Question
    from holdfast.policy.rules import Subject, Taint
    from holdfast.records import Outcome
    from holdfast.runtime.context import TurnHost
    from holdfast.runtime.hooks import HookRunner
    from holdfast.runtime.recorder import Recorder
    from holdfast.runtime.tool_call import Call
    from holdfast.store.contract import Wait


HOOK_SUFFIX: Final = "/%hook"
"""What is put to the key of a call to name what hooks decided about it."""
_EDIT_SUFFIX: Final = f"{HOOK_SUFFIX}-edit-"
_decisions: Final = msgspec.json.Decoder(list[ToolDecision])
_answers: Final = msgspec.json.Decoder(Approved | Denied)


@dataclass(frozen=True, slots=True)
class RecordedDecisions:
    """What is known about one call."""

    hooks: tuple[ToolDecision, ...] | None = None
    """None: hooks were not asked yet."""
    judged: Mapping[str, tuple[ToolDecision, ...]] = field(default_factory=dict[str, "tuple[ToolDecision, ...]"])
    """What hooks decided about arguments that a person wrote, by `place_of_edit`."""
    answer: Approved | Denied | None = None
    """What a person answered, where that was used."""
    answered: str | None = None
    """The question to which that is the answer."""
    asked: tuple[str, ...] = ()
    """The questions that were put to a person."""
    open: tuple[str, ...] = ()
    """Those of them that nobody has answered yet, as far as it is recorded."""

    def call(self, call: ToolCall) -> ToolCall:
        """The call with the arguments that it is to be made with."""
        for decision in self.hooks or ():
            if isinstance(decision, Replace):
                call = msgspec.structs.replace(call, arguments=decision.arguments)
        if self.edited and isinstance(self.answer, Approved):
            call = msgspec.structs.replace(call, arguments=self.answer.arguments)
        return call

    @property
    def questioned(self) -> bool:
        """Whether a person was asked about it, or has answered."""
        return bool(self.asked) or self.answer is not None

    def forged(self, wait: Wait | None, *, begun: bool) -> str | None:
        """Why what the journal has of a person's answer can't be true; None where nothing speaks against it.

        `wait` is the sealed row of the question that was answered. An approval is recorded, used up and followed by the
        intent of its call in one commit, so a row that tells something else, or none at all, was not Holdfast's doing.
        """
        if begun and self.open:
            return f"a call was begun although nobody has answered {self.open[0]!r}"
        if begun and isinstance(self.answer, Denied):
            return f"a call was begun although {self.answered!r} was denied"
        if not isinstance(self.answer, Approved):
            return None  # a denial lets nothing run
        if wait is None:
            return f"{self.answered!r} counts as approved, and there is no such wait"
        used = wait.consumed and approves(wait.payload, self.answer.digest)
        if used or wait.state == "revoked":  # a wait that was revoked does not tell any more what it was
            return None
        return f"{self.answered!r} counts as approved, and its wait does not say so"

    @property
    def edited(self) -> bool:
        """Whether a person has changed its arguments."""
        return isinstance(self.answer, Approved) and self.answer.arguments is not None


NO_DECISIONS: Final = RecordedDecisions()


async def read_decisions(performer: Performer, key: str) -> RecordedDecisions:
    """What is recorded below the call `key`."""
    if key not in performer.past.order:
        return NO_DECISIONS
    hooks: dict[str, tuple[ToolDecision, ...]] = {}
    for found in performer.below(key, HOOK_SUFFIX):
        if isinstance(found.outcome, Done):
            decisions = tuple(_decisions.decode(await read_value(performer, found.outcome)))
            hooks[found.outcome.key.removeprefix(key)] = decisions
    questions = performer.below(key, MARK)
    used = _last(questions)
    answer = None if used is None else _answers.decode(await read_value(performer, used))
    intents = [(each.intent.key, each.outcome is None) for each in questions if each.intent is not None]
    return RecordedDecisions(
        hooks=hooks.get(HOOK_SUFFIX),
        judged={place: decisions for place, decisions in hooks.items() if place.startswith(_EDIT_SUFFIX)},
        answer=answer,
        answered=None if used is None else used.key,
        asked=tuple(key for key, _ in intents),
        open=tuple(key for key, is_open in intents if is_open),
    )


def _last(found: list[RecordedEffect]) -> Done | None:
    """The answer that was used last: a call that has changed meanwhile is asked about anew."""
    return next((each.outcome for each in reversed(found) if isinstance(each.outcome, Done)), None)


async def read_value(performer: Performer, done: Done) -> bytes:
    """The value of a record, wherever it is kept."""
    return bytes(done.value) if done.blob is None else await performer.large(done.blob)


def edit_suffix(arguments: dict[str, Any]) -> str:
    """What is put to the key of a call to name what hooks decided about these arguments, which a person wrote."""
    return _EDIT_SUFFIX + digest("edit", arguments)[:16]


def hook_ask(key: str) -> Asked:
    """What hooks are asked about the call `key`, as the journal has it."""
    return Asked("sample", "hook", digest_of_bytes("hook", key.encode()))


async def hook_record(
    performer: Performer, place: str, ask: Asked, decided: Sequence[ToolDecision]
) -> tuple[list[ToolDecision], Outcome]:
    """What hooks decided, as it can be recorded at `place`, and its record. What can't be is a denial."""
    try:
        plain = [_plain(decision) for decision in decided]
        # A secret among the arguments is no more than its name, also now: the call must be the same when it is made
        # again after a crash.
        body = performer.redactor.bytes(msgspec.json.encode(plain))
        outcome = await _recorded(performer, place, ask, body)
        known = _decisions.decode(body)
    except (HoldfastError, msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
        said = performer.redactor.text(str(error))[:500]
        known: list[ToolDecision] = [Deny(f"what a hook decided can't be recorded: {said}")]
        outcome = await _recorded(performer, place, ask, msgspec.json.encode(known))
    return known, outcome


async def _recorded(performer: Performer, place: str, ask: Asked, body: bytes) -> Outcome:
    outcome = await performer.succeeded(place, ask, body, 0.0)
    if not isinstance(outcome, Done):
        message = "it is too large"
        raise ValueError(message)  # noqa: TRY004  it is about a size
    return msgspec.structs.replace(outcome, ms=0)


def _plain(decision: ToolDecision) -> ToolDecision:
    """The decision with nothing in it but JSON."""
    match decision:
        case Replace(arguments):
            check_json(arguments)
            return decision
        case Answer(value):
            given: Any = msgspec.json.decode(encode_value(value))
            return Answer(given)
        case Deny(reason):
            return Deny(str(reason))
        case Ask(why):
            return Ask(str(why))


DENIED_ERROR: Final = "Denied"
"""The kind of error with which a call ends that must not be made, or whose result is withheld."""
EDITED_NOTE: Final = "A person changed the arguments before this call was made. It was made with:"
_CUT_OFF: Final = "the turn was stopped before the hooks had decided about it"


class ResultHooks:
    """Amends the outcomes of one turn's calls before they are recorded."""

    def __init__(self, performer: Performer, hooked: HookRunner) -> None:
        self._performer = performer
        self._hooked = hooked

    async def told(self, call: Call, outcome: Outcome) -> Outcome:
        """The outcome of a call as it is recorded: hooks see it, and may put something else in its place."""
        if not isinstance(outcome, Done | Failed | Unknown):
            return outcome
        told = outcome
        if self._hooked.has("after_tool") or self._hooked.has("on_error"):
            told = await self._seen(call, outcome)
        made = call.given is None and call.refused is None
        # A program gets what the call gave, as it is; whoever wrote the program is told at its end.
        if call.edited and made and not call.nested and isinstance(told, Done | Failed):
            return await self._edited(call, told)
        return told

    async def _seen(self, call: Call, outcome: Done | Failed | Unknown) -> Done | Failed | Unknown:
        """The outcome after its hooks. A turn that is stopped while they run records it as it is known, or withheld."""
        judged = self._hooked.has("after_tool")
        before, call.stopped = call.stopped, partial(_cut_off, call, outcome, judged)
        error = _error(call, outcome)
        if error is not None:
            await self._hooked.on_error(error)
        told = await self._hooks(call, outcome) if judged else outcome
        call.stopped = before
        return told

    async def _edited(self, call: Call, outcome: Done | Failed) -> Done | Failed:
        note = f"{EDITED_NOTE} {msgspec.json.encode(call.call.arguments).decode()}"
        if isinstance(outcome, Done):
            return await self._as_done(call, outcome, {"note": note, "result": await self._value(outcome)})
        error = ErrorInfo(outcome.error.kind, f"{outcome.error.message}\n{note[:2_000]}")
        return msgspec.structs.replace(outcome, error=error)

    async def _hooks(self, call: Call, outcome: Done | Failed | Unknown) -> Done | Failed | Unknown:
        decision = await self._hooked.after_tool(
            hook_call(self._hooked.turn, call, self._performer), await self._result(call, outcome)
        )
        if isinstance(outcome, Unknown):
            return outcome  # a hook can't say what became of it
        match decision:
            case Answer(given):
                return await self._as_done(call, outcome, given)
            case Deny(reason):
                return _withheld(call, outcome, reason)
            case None:
                return outcome

    async def _result(self, call: Call, outcome: Done | Failed | Unknown) -> ToolResult:
        if not isinstance(outcome, Done):
            return result_of(call.call, outcome)
        files = tuple(blob.digest for blob in outcome.refs)
        return ToolResult(call.call.id, call.call.name, await self._value(outcome), files=files)

    async def _value(self, outcome: Done) -> Any:  # noqa: ANN401  whatever a tool gave
        body = bytes(outcome.value) if outcome.blob is None else await self._performer.large(outcome.blob)
        return msgspec.json.decode(body)

    async def _as_done(self, call: Call, outcome: Done | Failed, value: object) -> Done | Failed:
        refs, kept = (outcome.refs, outcome.kept) if isinstance(outcome, Done) else ((), ())
        try:
            body = encode_value(value)
        except (HoldfastError, TypeError, ValueError, RecursionError) as error:
            return _withheld(
                call, outcome, f"what a hook returned can't be kept: {self._performer.redactor.text(str(error))[:500]}"
            )
        made = await self._performer.succeeded(outcome.key, outcome.ask, body, 0.0, refs, kept)
        if not isinstance(made, Done | Failed):
            return outcome
        return msgspec.structs.replace(made, ms=outcome.ms, taint=outcome.taint)


def _error(call: Call, outcome: Done | Failed | Unknown) -> EffectFailed | EffectUnknown | None:
    """What `on_error` hooks are told about a call that did not succeed."""
    match outcome:
        case Failed(error=error):
            return EffectFailed(call.call.name, error.kind, error.message)
        case Unknown():
            return EffectUnknown(call.key, call.call.name)
        case Done():
            return None


def _cut_off(call: Call, outcome: Done | Failed | Unknown, judged: bool, _: int) -> Outcome:  # noqa: FBT001
    """What is recorded of a call whose hooks were under way when the turn was stopped.

    A result that `after_tool` was to judge is withheld.
    """
    return _withheld(call, outcome, _CUT_OFF) if judged and not isinstance(outcome, Unknown) else outcome


def _withheld(call: Call, outcome: Done | Failed, reason: str) -> Failed:
    if call.refused is not None:
        said = "The call was not made. Why is withheld:"
    elif call.given is not None:
        said = "The call was not made: a hook answered in its place. The answer is withheld:"
    elif isinstance(outcome, Failed):
        said = "The call was made, and failed. Its error is withheld:"
    else:
        said = "The call was made, and took effect. Its result is withheld:"
    error = ErrorInfo(DENIED_ERROR, f"{said} {reason}")
    return Failed(at=outcome.at, key=outcome.key, ask=outcome.ask, error=error, ms=outcome.ms, taint=outcome.taint)


MAX_WHY: Final = 2_000
"""Longest reason of a decision that is kept, in characters."""
CHANGED: Final = "the call or its tool has changed since a person was asked about it"


class Authorizer:
    """Decides about the calls of one turn."""

    def __init__(
        self, host: TurnHost, agent: Agent, performer: Performer, recorder: Recorder, hooked: HookRunner
    ) -> None:
        self._host = host
        self._agent = agent
        self._performer = performer
        self._recorder = recorder
        self._hooked = hooked
        self._questions = ApprovalRequests(host, agent, performer, recorder)
        self._amending = ResultHooks(performer, hooked)
        self._decided: dict[str, RecordedDecisions] = {}
        self._noted = False
        """Whether decisions of hooks are on their way to the disk."""

    async def recall(self, keys: Iterable[str]) -> None:
        """Read what was decided about these calls before."""
        for key in keys:
            decided = await read_decisions(self._performer, key)
            if decided is not NO_DECISIONS:
                self._decided[key] = decided

    def decided(self, key: str) -> RecordedDecisions:
        """What was decided about a call before."""
        return self._decided.get(key, NO_DECISIONS)

    async def told(self, call: Call, outcome: Outcome) -> Outcome:
        """The outcome of a call as it is recorded."""
        return await self._amending.told(call, outcome)

    # ---- deciding ----

    async def authorise(self, calls: Iterable[Call], taint: Taint = CLEAN) -> None:
        """Settle for each call that has not begun whether it may: those that may not are refused, or wait."""
        for call in calls:
            if (known := self.decided(call.key)).questioned:
                await self._check_answer(call, known)
            if call.fresh and call.bound is not None and call.refused is None:
                await self._authorise(call, known, taint)
                self._close(call, known)
        await self._settle_hooks()

    async def _check_answer(self, call: Call, known: RecordedDecisions) -> None:
        """Use no answer from the journal that the sealed row of its question does not tell: somebody has forged it."""
        wait = None if known.answered is None else await self._host.waits.find(known.answered)
        forged = known.forged(wait, begun=not call.fresh)
        if forged is not None:
            raise await self._host.quarantine(f"{forged}: another program has written that")
        if wait is not None and wait.state == "revoked" and call.fresh and isinstance(known.answer, Approved):
            call.refused = ErrorInfo(DENIED_ERROR, refusal(call.call.name, Denied("the approval was revoked")))

    async def _settle_hooks(self) -> None:
        """Wait until what hooks decided is durable: before that, none of the calls is made."""
        if self._noted:
            self._noted = False
            await self._recorder.settle()

    async def _authorise(self, call: Call, known: RecordedDecisions, taint: Taint) -> None:
        why = await self._hooks(call, known)
        if known.edited and known.hooks is not None:  # the process before may have died before hooks had judged that
            await self._judge_edit(call, known)
        if call.refused is not None or call.given is not None:
            return
        if isinstance(known.answer, Denied):
            call.refused = ErrorInfo(DENIED_ERROR, refusal(call.call.name, known.answer))
            return
        subject = self._agent.subject(call.call.name, call.call.arguments or {})
        decision = self._decide(subject, taint)
        if decision.verdict == "deny":
            call.refused = ErrorInfo(
                DENIED_ERROR, f"{call.call.name} is not allowed here: {decision.why} ({decision.rule})"
            )
            return
        # What a person stored for a sub-agent does not answer what its parent wants to be asked.
        each = why is not None or decision.tainted or decision.rule.startswith("parent: ")
        decision = _with(decision, why)
        if decision.verdict != "allow" or known.questioned:
            question = self._questions.about(call, subject, decision, each=each)
            await self._consult(call, known, question, subject, decision, taint)

    def subject(self, call: Call) -> Subject:
        """A call as the policy sees it."""
        return self._agent.subject(call.call.name, call.call.arguments or {})

    def _decide(self, subject: Subject, taint: Taint) -> Decision:
        """What the policy says, in words without secrets that a model or a person may read."""
        decision = self._agent.decide(subject, taint)
        redactor = self._performer.redactor
        if not redactor.active and len(decision.why) <= MAX_WHY:
            return decision
        why, rule = redactor.text(decision.why), redactor.text(decision.rule)
        return msgspec.structs.replace(decision, why=why if len(why) <= MAX_WHY else f"{why[:MAX_WHY]}...", rule=rule)

    async def _consult(  # noqa: PLR0913, PLR0917
        self,
        call: Call,
        known: RecordedDecisions,
        question: Question,
        subject: Subject,
        decision: Decision,
        taint: Taint,
    ) -> None:
        """Use the answer of a person to the call as it is, or ask for one."""
        if isinstance(known.answer, Approved) and known.answer.digest == question.digest:
            call.approved = True  # the process before this one did not get to the end of it
            return
        asked = self._questions.was_asked(question)
        # A question that was put to somebody is waited for, also where nobody would ask it any more.
        if decision.verdict == "allow" and not asked:
            return
        if not question.each and not known.asked and await self._host.is_always_allowed(self._agent.name, subject):
            return
        if known.questioned and not asked:
            question = msgspec.structs.replace(question, why=f"{question.why}; {CHANGED}")
        await self._act_on(call, await self._questions.answer(call, question, decision.expires_ms), taint)

    async def reconsider(self, call: Call, taint: Taint) -> None:
        """Look whether a person has answered a question that was asked here: then the call waits no more."""
        if call.question is None:
            return
        question, expires_ms = call.question
        decision = self._decide(self._agent.subject(call.call.name, call.call.arguments or {}), taint)
        if decision.verdict == "deny":  # what the turn has read since counts, whatever a person says
            await self._host.waits.close_wait(question.wait)
            call.waits = ()
            call.refused = ErrorInfo(
                DENIED_ERROR, f"{call.call.name} is not allowed here: {decision.why} ({decision.rule})"
            )
            call.before += (Cancelled(at=self._performer.now(), key=question.wait),)
            return
        answer = await self._questions.answer(call, question, expires_ms, again=True)
        if answer is not None:
            call.waits = ()
            await self._act_on(call, answer, taint)
            await self._settle_hooks()

    def _close(self, call: Call, known: RecordedDecisions) -> None:
        """A question that is not asked any more is recorded as dropped: the call has changed, or nobody need ask."""
        settled = {record.key for record in call.before if isinstance(record, Done)}
        left = [key for key in known.open if key not in call.waits and key not in settled]
        call.before += tuple(Cancelled(at=self._performer.now(), key=key) for key in left)
        if call.waits and call.before:
            self._recorder.submit([*call.before])
            call.before = ()

    async def _act_on(self, call: Call, answer: Approved | Denied | None, taint: Taint) -> None:
        match answer:
            case Denied():
                call.refused = ErrorInfo(DENIED_ERROR, refusal(call.call.name, answer))
            case Approved(arguments=dict() as arguments):
                await self._edit(call, arguments, taint)
            case Approved():
                call.approved = True  # it runs as it was shown
            case None:
                pass  # it waits

    async def _edit(self, call: Call, arguments: dict[str, Any], taint: Taint) -> None:
        """A person wrote other arguments. What no person may allow, this one may not either."""
        call.edited = call.approved = True
        self._bind(call, arguments)
        if call.refused is not None:
            said = f"A person changed the arguments of this call, and they do not fit. {call.refused.message}"
            call.refused = ErrorInfo(DENIED_ERROR, said)
            return
        decision = self._decide(self._agent.subject(call.call.name, arguments), taint)
        if decision.verdict == "deny":
            said = f"{call.call.name} is not allowed with what a person wrote: {decision.why} ({decision.rule})"
            call.refused = ErrorInfo(DENIED_ERROR, said)
            return
        await self._judge_edit(call, self.decided(call.key))

    # ---- hooks ----

    async def _judge_edit(self, call: Call, known: RecordedDecisions) -> None:
        """Let hooks judge, once, arguments that a person wrote after they had seen the call."""
        place = edit_suffix(call.call.arguments or {})
        judged: Sequence[ToolDecision] = known.judged.get(place, ())
        if place not in known.judged and self._hooked.has("before_tool"):
            asked = await self._hooked.judge_edit(hook_call(self._hooked.turn, call, self._performer))
            judged, record = await hook_record(self._performer, call.key + place, hook_ask(call.key), asked)
            self._recorder.submit([record], patient=True)
            self._noted = True
        for decision in judged:
            match decision:
                case Deny(reason):
                    call.refused = ErrorInfo(
                        DENIED_ERROR, f"{call.call.name} is not made with what a person wrote: {reason}"
                    )
                case Answer(value):
                    call.given = encode_value(value)
                case _:
                    pass  # a person was asked already

    async def _hooks(self, call: Call, known: RecordedDecisions) -> str | None:
        """Let hooks decide; answers why a person is to be asked, where one wants that."""
        decided: Sequence[ToolDecision] = known.hooks or ()
        if known.hooks is None and self._hooked.has("before_tool"):
            asked = await self._hooked.before_tool(hook_call(self._hooked.turn, call, self._performer))
            decided, record = await hook_record(self._performer, call.key + HOOK_SUFFIX, hook_ask(call.key), asked)
            self._recorder.submit([record], patient=True)
            self._noted = True
        reasons: list[str] = []
        for decision in decided:
            match decision:
                case Deny(reason):
                    call.refused = ErrorInfo(DENIED_ERROR, reason)
                case Answer(value):
                    call.given = encode_value(value)
                case Replace(arguments):
                    if known.answer is None:  # else it is bound to what was decided last
                        self._bind(call, arguments)
                case Ask(why):
                    reasons.append(why)
        return "; ".join(reasons) if reasons else None

    def _bind(self, call: Call, arguments: dict[str, Any]) -> None:
        """Give a call other arguments."""
        call.call = msgspec.structs.replace(call.call, arguments=arguments)
        bound = None if call.tool is None else call.tool.bind(arguments)
        if isinstance(bound, Complaint):
            call.refused = error_for_complaint(bound)
        else:
            call.bound = bound


def _with(decision: Decision, why: str | None) -> Decision:
    """The decision, with what a hook wants to be asked."""
    if why is None:
        return decision
    if decision.verdict == "allow":
        return Decision("ask", "hook", why)
    return msgspec.structs.replace(decision, why=f"{decision.why}; {why}")
