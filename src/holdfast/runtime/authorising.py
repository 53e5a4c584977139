"""Before a call begins: hooks, then the policy, then a person where the policy wants one.

What was decided is recorded below the call, so that nothing is decided twice: not after a crash, not after days of
waiting. A call that was begun is never judged again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from holdfast.effects.canonical import digest_of_bytes
from holdfast.effects.values import encode_value
from holdfast.errors import EffectFailed, InvalidValue
from holdfast.messages import ToolResult
from holdfast.policy.approvals import EXPIRES_MS, KIND, MARK, Approved, Denied, Question, read_answer, refusal
from holdfast.policy.hooks import Answer, Deny, HookCall, Replace, ToolDecision
from holdfast.policy.hooks import Ask as HookAsk
from holdfast.policy.subject import CLEAN, Decision, Subject
from holdfast.records import Ask, Done, ErrorInfo, Failed, Intended
from holdfast.tools.definition import Complaint
from holdfast.tools.results import complained
from holdfast.turns.answers import result_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.agent import Agent
    from holdfast.effects.performer import Performer
    from holdfast.messages import ToolCall
    from holdfast.policy.subject import Taint
    from holdfast.records import Outcome
    from holdfast.runtime.hooking import Hooked
    from holdfast.runtime.invoking import Call
    from holdfast.runtime.recording import Recorder
    from holdfast.runtime.surroundings import Surroundings

HOOK: Final = "/%hook"
"""What is put to the key of a call to name what hooks decided about it."""
EDITED: Final = "A person changed the arguments before this call was made. It was made with:"
AFTER: Final = "The call was made, and took effect. Its result is withheld:"
DENIED: Final = "Denied"
"""The kind of error with which a call ends that must not be made."""

_decisions: Final = msgspec.json.Decoder(list[ToolDecision])
_answers: Final = msgspec.json.Decoder(Approved | Denied)


class Effective(NamedTuple):
    """A call as it was decided to be made."""

    call: ToolCall
    edited: bool
    """Whether a person changed it."""


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

    # ---- what was decided before ----

    def effective(self, key: str, call: ToolCall) -> Effective:
        """The call with the arguments that were decided upon, where that is recorded."""
        edited = False
        for decision in self._recorded_hooks(key) or ():
            if isinstance(decision, Replace):
                call = msgspec.structs.replace(call, arguments=decision.arguments)
        answer = self._recorded_answer(key)
        if isinstance(answer, Approved) and answer.arguments is not None:
            call, edited = msgspec.structs.replace(call, arguments=answer.arguments), True
        return Effective(call, edited)

    def _recorded_hooks(self, key: str) -> list[ToolDecision] | None:
        for found in self._performer.below(key, HOOK):
            if isinstance(found.outcome, Done):
                return _decisions.decode(bytes(found.outcome.value))
        return None

    def _recorded_answer(self, key: str) -> Approved | Denied | None:
        for found in self._performer.below(key, MARK):
            if isinstance(found.outcome, Done):
                return _answers.decode(bytes(found.outcome.value))
        return None

    # ---- deciding ----

    async def authorise(self, calls: Iterable[Call], taint: Taint = CLEAN) -> None:
        """Settle for each call that has not begun whether it may: those that may not are refused, or wait."""
        for call in calls:
            if call.fresh and call.bound is not None and call.refused is None:
                await self._authorise(call, taint)

    async def _authorise(self, call: Call, taint: Taint) -> None:
        why = await self._hooks(call)
        if call.refused is not None or call.given is not None:
            return
        if self._recorded_answer(call.key) is not None:
            return  # it was approved, and the process before this one did not get to it
        # Where a question is open, or was answered, that answer is used, and used up.
        asked = bool(self._performer.below(call.key, MARK))
        subject = self._agent.subject(call.call.name, call.call.arguments or {})
        decision = self._agent.decide(subject, taint)
        if why is not None and decision.verdict == "allow":
            decision = Decision("ask", "hook", why)
        answerable = why is None and not decision.tainted and not asked
        if decision.verdict == "deny":
            call.refused = ErrorInfo(DENIED, f"{call.call.name} is not allowed here: {decision.why} ({decision.rule})")
        elif decision.verdict == "ask" and not (answerable and await self._around.always(self._agent.name, subject)):
            # What is asked because of taint, or by a hook, is asked each time.
            await self._asked(call, subject, decision, taint, each=why is not None or decision.tainted)

    # ---- hooks ----

    async def _hooks(self, call: Call) -> str | None:
        """Let hooks decide; answers why a person is to be asked, where one wants that."""
        if not self._hooked.has("before_tool"):
            return None
        decided = self._recorded_hooks(call.key)
        if decided is None:
            decided = await self._hooked.before_tool(self._seen(call))
            self._note(call, decided)
        why: str | None = None
        for decision in decided:
            match decision:
                case Deny(reason):
                    call.refused = ErrorInfo(DENIED, reason)
                case Answer(value):
                    call.given = encode_value(value)
                case Replace(arguments):
                    self._bind(call, arguments)
                case HookAsk(asks):
                    why = asks
        return why

    def _note(self, call: Call, decided: list[ToolDecision]) -> None:
        try:
            # A secret among the arguments is no more than its name, also now: the call must be the same when it is
            # made again after a crash.
            body = self._performer.redactor.bytes(msgspec.json.encode(decided))
            decided[:] = _decisions.decode(body)
        except (msgspec.MsgspecError, TypeError, ValueError, InvalidValue) as error:
            decided[:] = [Deny(f"what a hook decided can't be recorded: {error}")]
            body = msgspec.json.encode(decided)
        ask = Ask("sample", "hook", digest_of_bytes("hook", call.key.encode()))
        self._recorder.submit(
            [Done(at=self._performer.now(), key=call.key + HOOK, ask=ask, value=msgspec.Raw(body))], patient=True
        )

    def _seen(self, call: Call) -> HookCall:
        arguments = msgspec.json.decode(msgspec.json.encode(call.call.arguments or {}))
        key = self._performer.idempotency_key(call.key)
        return HookCall(self._hooked.turn, call.call.name, arguments, call.call.id, key)

    def _bind(self, call: Call, arguments: dict[str, Any]) -> None:
        """Give a call other arguments."""
        call.call = msgspec.structs.replace(call.call, arguments=arguments)
        bound = None if call.tool is None else call.tool.bind(arguments)
        if isinstance(bound, Complaint):
            call.refused = complained(bound)
        else:
            call.bound = bound

    # ---- after ----

    async def told(self, call: Call, outcome: Outcome) -> Outcome:
        """The outcome of a call as it is recorded: with what hooks make of it, and what a person changed."""
        if call.given is not None or call.refused is not None or not isinstance(outcome, Done | Failed):
            return outcome
        if isinstance(outcome, Failed) and self._hooked.has("on_error"):
            await self._hooked.on_error(EffectFailed(call.call.name, outcome.error.kind, outcome.error.message))
        if self._hooked.has("after_tool"):
            outcome = await self._replaced(call, outcome)
        if call.edited and isinstance(outcome, Done):
            note = f"{EDITED} {msgspec.json.encode(call.call.arguments).decode()}"
            outcome = await self._as_done(outcome, {"note": note, "result": await self._value(outcome)})
        return outcome

    async def _replaced(self, call: Call, outcome: Done | Failed) -> Done | Failed:
        value = await self._value(outcome) if isinstance(outcome, Done) else None
        result = (
            result_of(call.call, outcome)
            if isinstance(outcome, Failed)
            else ToolResult(call.call.id, call.call.name, value, files=tuple(blob.digest for blob in outcome.refs))
        )
        decision = await self._hooked.after_tool(self._seen(call), result)
        match decision:
            case Answer(given):
                return await self._as_done(outcome, given)
            case Deny(reason):
                error = ErrorInfo(DENIED, f"{AFTER} {reason}")
                return Failed(at=outcome.at, key=outcome.key, ask=outcome.ask, error=error, ms=outcome.ms)
            case None:
                return outcome

    async def _value(self, outcome: Done) -> Any:  # noqa: ANN401  whatever a tool gave
        body = bytes(outcome.value) if outcome.blob is None else await self._performer.large(outcome.blob)
        return msgspec.json.decode(body)

    async def _as_done(self, outcome: Done | Failed, value: object) -> Done | Failed:
        refs, kept = (outcome.refs, outcome.kept) if isinstance(outcome, Done) else ((), ())
        try:
            body = encode_value(value)
        except InvalidValue as error:
            info = ErrorInfo(DENIED, f"{AFTER} what a hook returned can't be kept: {error}")
            return Failed(at=outcome.at, key=outcome.key, ask=outcome.ask, error=info, ms=outcome.ms)
        made = await self._performer.succeeded(outcome.key, outcome.ask, body, 0.0, refs, kept)
        return msgspec.structs.replace(made, ms=outcome.ms) if isinstance(made, Done | Failed) else outcome

    # ---- a person ----

    async def _asked(self, call: Call, subject: Subject, decision: Decision, taint: Taint, *, each: bool) -> None:
        """Ask a person, or act on what one has answered."""
        now = self._performer.now()
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
            asked=now,
            each=each,
        )
        name = question.wait
        expires = decision.expires_ms or EXPIRES_MS
        body = msgspec.json.encode(question)
        wait = await self._around.open_wait(name, now + expires, kind=KIND, body=body)
        ask = Ask("await_event", name, question.digest)
        begun = self._performer.recorded(name) is not None
        if wait.state == "open":
            if not begun:
                self._recorder.submit([Intended(at=now, key=name, ask=ask)])
            call.wait = name
            return
        resolved = wait.state == "resolved"
        answer = read_answer(question, wait.payload) if resolved else Denied(_over(wait.state))
        value = msgspec.Raw(msgspec.json.encode(answer))
        call.before.append(Done(at=now, key=name, ask=None if begun else ask, value=value))
        if resolved:
            call.consumes.append(name)
        if isinstance(answer, Denied):
            call.refused = ErrorInfo(DENIED, refusal(call.call.name, answer))
        elif answer.arguments is not None:
            self._edit(call, answer.arguments, taint)
        else:
            self._bind(call, question.arguments)

    def _edit(self, call: Call, arguments: dict[str, Any], taint: Taint) -> None:
        """A person wrote other arguments. What no person may allow, this one may not either."""
        call.edited = True
        self._bind(call, arguments)
        if call.refused is None:
            decision = self._agent.decide(self._agent.subject(call.call.name, arguments), taint)
            if decision.verdict == "deny":
                said = f"{call.call.name} is not allowed with what a person wrote: {decision.why} ({decision.rule})"
                call.refused = ErrorInfo(DENIED, said)


def _over(state: str) -> str:
    return "nobody answered in time" if state == "expired" else f"the question was {state}"
