"""Before a call begins: hooks, then the policy, then a person where one of them wants that.

What was decided is recorded below the call, so that nothing is decided twice: not after a crash, not after days of
waiting. A call that was begun is never judged again. Whatever has changed since can only make things stricter: a
denial stands, an approval is good for the call that was approved and no other, and the policy of today denies today.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.effects.values import encode_value
from holdfast.policy.approvals import Approved, Denied, refusal
from holdfast.policy.hooks import Answer, Ask, Deny, Replace
from holdfast.policy.subject import CLEAN, Decision
from holdfast.records import Cancelled, Done, ErrorInfo
from holdfast.runtime.amending import DENIED, Amending
from holdfast.runtime.decided import HOOK, NOTHING, Decided, asked_hooks, noted, place_of_edit, recall
from holdfast.runtime.hooking import seen
from holdfast.runtime.questioning import Questioning
from holdfast.tools.definition import Complaint
from holdfast.tools.results import complained

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from holdfast.agent import Agent
    from holdfast.effects.performer import Performer
    from holdfast.policy.approvals import Question
    from holdfast.policy.hooks import ToolDecision
    from holdfast.policy.subject import Subject, Taint
    from holdfast.records import Outcome
    from holdfast.runtime.call import Call
    from holdfast.runtime.hooking import Hooked
    from holdfast.runtime.recording import Recorder
    from holdfast.runtime.surroundings import Surroundings


MAX_WHY: Final = 2_000
"""Longest reason of a decision that is kept, in characters."""
CHANGED: Final = "the call or its tool has changed since a person was asked about it"


class Authorising:
    """Decides about the calls of one turn."""

    def __init__(
        self, around: Surroundings, agent: Agent, performer: Performer, recorder: Recorder, hooked: Hooked
    ) -> None:
        self._around = around
        self._agent = agent
        self._performer = performer
        self._recorder = recorder
        self._hooked = hooked
        self._questions = Questioning(around, agent, performer, recorder)
        self._amending = Amending(performer, hooked)
        self._decided: dict[str, Decided] = {}
        self._noted = False
        """Whether decisions of hooks are on their way to the disk."""

    async def recall(self, keys: Iterable[str]) -> None:
        """Read what was decided about these calls before."""
        for key in keys:
            decided = await recall(self._performer, key)
            if decided is not NOTHING:
                self._decided[key] = decided

    def decided(self, key: str) -> Decided:
        """What was decided about a call before."""
        return self._decided.get(key, NOTHING)

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

    async def _check_answer(self, call: Call, known: Decided) -> None:
        """Use no answer from the journal that the sealed row of its question does not tell: somebody has forged it."""
        wait = None if known.answered is None else await self._around.find_wait(known.answered)
        forged = known.forged(wait, begun=not call.fresh)
        if forged is not None:
            raise await self._around.quarantine(f"{forged}: another program has written that")
        if wait is not None and wait.state == "revoked" and call.fresh and isinstance(known.answer, Approved):
            call.refused = ErrorInfo(DENIED, refusal(call.call.name, Denied("the approval was revoked")))

    async def _settle_hooks(self) -> None:
        """Wait until what hooks decided is durable: before that, none of the calls is made."""
        if self._noted:
            self._noted = False
            await self._recorder.settle()

    async def _authorise(self, call: Call, known: Decided, taint: Taint) -> None:
        why = await self._hooks(call, known)
        if known.edited and known.hooks is not None:  # the process before may have died before hooks had judged that
            await self._judge_edit(call, known)
        if call.refused is not None or call.given is not None:
            return
        if isinstance(known.answer, Denied):
            call.refused = ErrorInfo(DENIED, refusal(call.call.name, known.answer))
            return
        subject = self._agent.subject(call.call.name, call.call.arguments or {})
        decision = self._decide(subject, taint)
        if decision.verdict == "deny":
            call.refused = ErrorInfo(DENIED, f"{call.call.name} is not allowed here: {decision.why} ({decision.rule})")
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
        self, call: Call, known: Decided, question: Question, subject: Subject, decision: Decision, taint: Taint
    ) -> None:
        """Use the answer of a person to the call as it is, or ask for one."""
        if isinstance(known.answer, Approved) and known.answer.digest == question.digest:
            call.approved = True  # the process before this one did not get to the end of it
            return
        asked = self._questions.was_asked(question)
        # A question that was put to somebody is waited for, also where nobody would ask it any more.
        if decision.verdict == "allow" and not asked:
            return
        if not question.each and not known.asked and await self._around.always(self._agent.name, subject):
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
            await self._around.close_wait(question.wait)
            call.waits = ()
            call.refused = ErrorInfo(DENIED, f"{call.call.name} is not allowed here: {decision.why} ({decision.rule})")
            call.before += (Cancelled(at=self._performer.now(), key=question.wait),)
            return
        answer = await self._questions.answer(call, question, expires_ms, again=True)
        if answer is not None:
            call.waits = ()
            await self._act_on(call, answer, taint)
            await self._settle_hooks()

    def _close(self, call: Call, known: Decided) -> None:
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
                call.refused = ErrorInfo(DENIED, refusal(call.call.name, answer))
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
            call.refused = ErrorInfo(DENIED, said)
            return
        decision = self._decide(self._agent.subject(call.call.name, arguments), taint)
        if decision.verdict == "deny":
            said = f"{call.call.name} is not allowed with what a person wrote: {decision.why} ({decision.rule})"
            call.refused = ErrorInfo(DENIED, said)
            return
        await self._judge_edit(call, self.decided(call.key))

    # ---- hooks ----

    async def _judge_edit(self, call: Call, known: Decided) -> None:
        """Let hooks judge, once, arguments that a person wrote after they had seen the call."""
        place = place_of_edit(call.call.arguments or {})
        judged: Sequence[ToolDecision] = known.judged.get(place, ())
        if place not in known.judged and self._hooked.has("before_tool"):
            asked = await self._hooked.judge_edit(seen(self._hooked.turn, call, self._performer))
            judged, record = await noted(self._performer, call.key + place, asked_hooks(call.key), asked)
            self._recorder.submit([record], patient=True)
            self._noted = True
        for decision in judged:
            match decision:
                case Deny(reason):
                    call.refused = ErrorInfo(DENIED, f"{call.call.name} is not made with what a person wrote: {reason}")
                case Answer(value):
                    call.given = encode_value(value)
                case _:
                    pass  # a person was asked already

    async def _hooks(self, call: Call, known: Decided) -> str | None:
        """Let hooks decide; answers why a person is to be asked, where one wants that."""
        decided: Sequence[ToolDecision] = known.hooks or ()
        if known.hooks is None and self._hooked.has("before_tool"):
            asked = await self._hooked.before_tool(seen(self._hooked.turn, call, self._performer))
            decided, record = await noted(self._performer, call.key + HOOK, asked_hooks(call.key), asked)
            self._recorder.submit([record], patient=True)
            self._noted = True
        reasons: list[str] = []
        for decision in decided:
            match decision:
                case Deny(reason):
                    call.refused = ErrorInfo(DENIED, reason)
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
            call.refused = complained(bound)
        else:
            call.bound = bound


def _with(decision: Decision, why: str | None) -> Decision:
    """The decision, with what a hook wants to be asked."""
    if why is None:
        return decision
    if decision.verdict == "allow":
        return Decision("ask", "hook", why)
    return msgspec.structs.replace(decision, why=f"{decision.why}; {why}")
