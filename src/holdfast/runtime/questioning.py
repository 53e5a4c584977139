"""Asking a person about a call, and acting on the answer: exactly on what was asked, once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from holdfast.errors import PayloadTooLarge
from holdfast.policy.approvals import EXPIRES_MS, KIND, Approved, Denied, Question, read_answer
from holdfast.records import Ask, Cause, Done, Intended

if TYPE_CHECKING:
    from holdfast.agent import Agent
    from holdfast.effects.performer import Performer
    from holdfast.policy.subject import Decision, Subject
    from holdfast.runtime.call import Call
    from holdfast.runtime.recording import Recorder
    from holdfast.runtime.surroundings import Surroundings


class Questioning:
    """Asks on behalf of one turn."""

    def __init__(self, around: Surroundings, agent: Agent, performer: Performer, recorder: Recorder) -> None:
        self._around = around
        self._agent = agent
        self._performer = performer
        self._recorder = recorder

    def about(self, call: Call, subject: Subject, decision: Decision, *, each: bool) -> Question:
        """The question that the call as it is now would be.

        A question that an earlier release asked, without the version or the code of the tool, stays that question.
        """
        question = Question(
            session=self._around.session,
            agent=self._agent.name,
            effect=call.key,
            tool=call.call.name,
            definition=subject.digest,
            arguments=dict(subject.args),
            sandbox=None if call.tool is None else call.tool.reach.sandbox,
            rule=decision.rule,
            why=decision.why,
            asked=self._performer.now(),
            each=each,
            implementation=None if call.tool is None else call.tool.implementation,
        )
        older = msgspec.structs.replace(question, implementation=None)
        return older if self.was_asked(older) else question

    def was_asked(self, question: Question) -> bool:
        """Whether this very question is recorded."""
        return self._performer.recorded(question.wait) is not None

    async def answer(
        self, call: Call, question: Question, expires_ms: int | None, *, again: bool = False
    ) -> Approved | Denied | None:
        """What a person says to it; None while nobody has: then the call waits. `again`: it was asked here before."""
        name, now = question.wait, self._performer.now()
        body = msgspec.json.encode(question)
        try:
            wait = await self._around.open_wait(name, now + (expires_ms or EXPIRES_MS), kind=KIND, body=body)
        except PayloadTooLarge as error:
            return Denied(f"it is too large for a person to be asked about ({error.size:,} bytes)")
        cause, step = Cause("call", question.effect), self._performer.iteration or 0
        ask = Ask("await_event", name, question.digest, cause=cause, iteration=step)
        begun = again or self.was_asked(question)
        if wait.state == "open":
            if not begun:
                self._recorder.submit([Intended(at=now, key=name, ask=ask)])
            call.waits = (name,)
            call.question = question, expires_ms
            return None
        resolved = wait.state == "resolved"
        answer = read_answer(question, wait.payload) if resolved else Denied(_over(wait.state))
        used = await self._performer.succeeded(name, None if begun else ask, msgspec.json.encode(answer), 0.0)
        if not isinstance(used, Done):
            return Denied("the answer is too large to be kept")
        call.before += (msgspec.structs.replace(used, ms=0),)
        if resolved:
            call.consumes += (name,)
        return answer


def _over(state: str) -> str:
    return "nobody answered in time" if state == "expired" else f"the question was {state}"
