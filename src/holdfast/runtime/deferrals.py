"""Calls whose result is given later, from outside: their keys, how far they are, and what was answered.

A deferral is a wait that belongs to one call. It is opened, durably, before the tool gets its key: whoever has the key
can answer it from then on, and it is the same key when the call is performed again. With it stands the intent of the
call, also of one that is safe to repeat: somebody outside may act on it, and it must not end without an outcome. When
the tool has returned, that is recorded too, and the tool is not called again, whatever it says about repetition.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from holdfast.crashpoints import crash_point
from holdfast.effects.canonical import canonical, digest_of_bytes
from holdfast.effects.envelope import scope_of, segment
from holdfast.effects.values import encode_value
from holdfast.errors import AnswerInvalid, AnswerLate, AskAnswerInvalid, JournalMissing, PayloadTooLarge, Suspended
from holdfast.errors.caller import TriggerInvalid
from holdfast.names import check_string
from holdfast.policy.rules import milliseconds
from holdfast.processes.state import is_task_id
from holdfast.records import Cause, Done, EffectRequest, ErrorInfo, Failed, Intended
from holdfast.runtime.reconciliation import is_reconciliation_answer, is_reconciliation_wait
from holdfast.runtime.waits import answer_payload, failure_reason, wait_name
from holdfast.tools.definition import NO_DEFAULT, Deferred
from holdfast.triggers.definition import TargetName
from holdfast.turns.keys import DEFERRAL, RETURNED

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from datetime import timedelta

    from holdfast.agent import Agent
    from holdfast.effects.performer import Performer
    from holdfast.runtime.recorder import Recorder
    from holdfast.runtime.runtime import Runtime
    from holdfast.runtime.tool_call import Call
    from holdfast.runtime.waits import JournalWaits
    from holdfast.store import Store
    from holdfast.store.contract import Wait
    from holdfast.tools.definition import AnyTool


DEFERRAL_KIND: Final = "deferral"
"""What sort of wait it is."""
MAX_DEFAULT: Final = 32 * 1024
"""The longest value for when nobody answers, as JSON, in bytes."""
_DEFAULT: Final = "default"
_DEFERRAL: Final = f"/{DEFERRAL}"
_RETURNED: Final = f"/{RETURNED}"


@dataclass(frozen=True, slots=True)
class DeferralReply:
    """What came of a deferral: the JSON of a value, or an error."""

    body: bytes = b""
    error: ErrorInfo | None = None
    given: bool = True
    """Somebody outside has said so; otherwise its time was up, or it was closed."""


class Deferrals:
    """The deferrals of one turn, or of one task."""

    def __init__(self, waits: JournalWaits, performer: Performer, recorder: Recorder) -> None:
        self._waits = waits
        self._performer = performer
        self._recorder = recorder
        past = performer.past.effects
        self._before = {key.removesuffix(_DEFERRAL) for key in past if key.endswith(_DEFERRAL)}
        """Calls that were deferred before this drive began."""
        self._opened = {key for key in self._before if past[key + _DEFERRAL].outcome is None}
        """Calls that were deferred, here or before, and it is not known how that ended."""
        self._returned = {key.removesuffix(_RETURNED) for key in past if key.endswith(_RETURNED)}
        """Calls whose tool has come to its end, here or before, and only the answer was missing."""
        self._answered = {key for key in self._before if isinstance(past[key + _DEFERRAL].outcome, Done)}
        """Calls whose result somebody outside gave, here or before."""
        self.calls: dict[str, Call] = {}
        """Calls that were intended or begun here and have no outcome yet: their tools may defer them."""
        self._defaults: dict[str, bytes | None] = {}
        """Calls whose tool has returned here, with the value for when nobody answers."""

    async def defer(self, key: str, timeout: timedelta | float, default: object) -> Deferred[Any]:
        """The deferral of a call: the same one each time. When this returns it can be answered, whatever happens."""
        due = self._performer.now() + milliseconds(timeout)
        if default is not NO_DEFAULT and (size := len(encode_value(default))) > MAX_DEFAULT:
            raise PayloadTooLarge("the default", size, MAX_DEFAULT)  # what can't be written down is refused now
        below, known = _keys_of(key)
        await self._performer.admit()
        if not self.begun(key):
            deferral = Intended(at=self._performer.now(), key=below, ask=_ask(known, key))
            self._recorder.submit([*self._intent(key), deferral])
        self._opened.add(key)
        crash_point("defer.before_open")
        wait = await self._waits.open_wait(known, due, kind=DEFERRAL_KIND)
        await self._recorder.settle()
        crash_point("defer.after_open")
        return Deferred(self._waits.token(known), due if wait.deadline is None else wait.deadline, key, default)

    def opened(self, key: str) -> bool:
        """Whether the call was deferred, here or before, and it is not known how that ended."""
        return key in self._opened

    def answered(self, key: str) -> bool:
        """Whether the result of the call was given from outside."""
        return key in self._answered

    def _intent(self, key: str) -> Iterator[Intended]:
        call = self.calls.get(key)
        if call is not None and not call.intended:
            call.intended = True
            yield self._performer.intention(key, call.ask)

    def begun(self, key: str) -> bool:
        """Whether the call was deferred, here or before; it may have been interrupted since."""
        return key in self._opened or key in self._before

    def returned(self, key: str) -> bool:
        """Whether the tool has come to its end, and only the answer is missing."""
        if key in self._performer.past.order:
            self._performer.below(key, _DEFERRAL)  # a tool that has returned does not ask for these again
        return key in self._returned

    def hand_over(self, key: str, deferred: Deferred[Any]) -> None:
        """The tool has returned its deferral: from here on the call only waits."""
        default = None if deferred.default is NO_DEFAULT else encode_value(deferred.default)
        self._defaults[key] = default
        if key not in self._returned:
            self._returned.add(key)
            content, cause = digest_of_bytes("deferred", key.encode()), Cause("call", key)
            ask = EffectRequest("sample", "deferred", content, cause=cause)
            value = msgspec.Raw(b"{}" if default is None else msgspec.json.encode({_DEFAULT: msgspec.Raw(default)}))
            done = Done(at=self._performer.now(), key=key + _RETURNED, ask=ask, value=value)
            self._recorder.submit([done])
        crash_point("defer.returned")

    async def early(self, key: str) -> DeferralReply | None:
        """What was answered so far; None where nothing was, or the wait has ended without an answer."""
        wait = await self._look(key)
        return _reply(wait) if wait.state == "resolved" else None

    async def reply(self, key: str) -> DeferralReply:
        """What came of a deferral. The call is left here while that is open."""
        wait = await self._look(key)
        if wait.state == "open":
            self._performer.leave(key)
            raise Suspended(wait.name)
        self._settled(key, wait)
        if wait.state == "expired":
            default = await self._default(key)
            if default is not None:
                return DeferralReply(default, given=False)
        return _reply(wait)

    async def withdraw(self, key: str) -> None:
        """The call came to its end without its deferral: nobody can answer it any more.

        What is open when the turn ends is closed with that, by the store.
        """
        if self.opened(key):
            self._recorder.flush()  # its end stands before this in the order of commits
            self._opened.discard(key)
            await self._waits.close_wait(_keys_of(key)[1])

    async def _look(self, key: str) -> Wait:
        # It is there already, and its deadline with it; one whose time is up is ended by this.
        return await self._waits.open_wait(_keys_of(key)[1], self._performer.now(), kind=DEFERRAL_KIND)

    def _settled(self, key: str, wait: Wait) -> None:
        """Record how the wait ended, once; the value itself is that of the call."""
        self._opened.discard(key)
        recorded = self._performer.recorded(key + _DEFERRAL)
        if recorded is not None and recorded.outcome is not None:
            return
        now, below = self._performer.now(), key + _DEFERRAL
        if wait.state == "resolved":
            self._answered.add(key)
            self._recorder.submit([Done(at=now, key=below, value=msgspec.Raw(b"true"))], patient=True)
        else:
            info = ErrorInfo(wait.state, f"the wait was {wait.state}")
            self._recorder.submit([Failed(at=now, key=below, error=info)], patient=True)

    async def _default(self, key: str) -> bytes | None:
        if key in self._defaults:
            return self._defaults[key]
        recorded = self._performer.recorded(key + _RETURNED)
        if recorded is None or not isinstance(recorded.outcome, Done):
            return None
        outcome = recorded.outcome
        body = bytes(outcome.value) if outcome.blob is None else await self._performer.large(outcome.blob)
        said = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        return bytes(said[_DEFAULT]) if _DEFAULT in said else None


def _reply(wait: Wait) -> DeferralReply:
    match wait.state:
        case "resolved":
            failure = failure_reason(wait.payload)
            if failure is not None:
                return DeferralReply(error=ErrorInfo("WaitFailed", failure))
            return DeferralReply(wait.payload or b"null")
        case "expired":
            return DeferralReply(error=ErrorInfo("WaitExpired", "nobody answered in time"), given=False)
        case state:
            said = f"the wait for its answer was {state}; nobody can answer it any more"
            return DeferralReply(error=ErrorInfo("WaitEnded", said), given=False)


def _keys_of(key: str) -> tuple[str, str]:
    """The key of a deferral, and the name under which the store knows it."""
    below = key + _DEFERRAL
    return below, wait_name(below)


def _ask(known: str, key: str) -> EffectRequest:
    content = digest_of_bytes("wait", known.encode())
    return EffectRequest("await_event", known, content, cause=Cause("call", key))


async def check_answer(store: Store, agents: Mapping[str, Agent], key: str, value: object) -> None:
    """Refuse a value that is no result of the tool, where that tool is known here; otherwise it is checked later.

    Only while it would count: whoever comes too late learns that.
    """
    body = canonical(value)  # first: what is wrong with it must not depend on whether the key is good
    journal, name = store.wait_of(key)
    if is_reconciliation_wait(name):
        await _check_finding(store, agents, journal, name, value)
        return
    if not name.endswith(f"/{DEFERRAL}"):
        return
    tool = await _tool_of(store, agents, journal, name.removesuffix(f"/{DEFERRAL}"))
    if tool is not None and not await _is_over(store, journal, name):
        _check_result(tool, body)


async def _check_finding(store: Store, agents: Mapping[str, Agent], journal: str, name: str, value: object) -> None:
    """Refuse an answer that does not say what came of an interrupted call, or whose result does not fit its tool."""
    if await _is_over(store, journal, name):
        return
    tool = await _tool_of(store, agents, journal, scope_of(scope_of(name)))
    if not is_reconciliation_answer(value):
        if tool is not None and tool.on_interrupt != "ask":
            return  # its reconcile function waits for something under the same name
        raise AskAnswerInvalid(journal, name, value)
    if tool is not None and isinstance(value, dict) and "done" in value:
        _check_result(tool, canonical(cast("dict[str, object]", value)["done"]))


async def _is_over(store: Store, journal: str, name: str) -> bool:
    wait = await store.wait(journal, name)
    return wait is not None and wait.state != "open"


def _check_result(tool: AnyTool, body: bytes) -> None:
    from holdfast.tools.schema import check_result  # noqa: PLC0415  pydantic only when it is needed

    complaint = check_result(tool.function, body)
    if complaint is not None:
        raise AnswerInvalid(tool.name, complaint)


async def _tool_of(store: Store, agents: Mapping[str, Agent], journal: str, call: str) -> AnyTool | None:
    """The tool of the call with the key `call`, where its agent is known here."""
    try:
        agent = agents.get((await store.journal(journal)).agent or "")
    except JournalMissing:
        return None
    if agent is None:
        return None
    called = call.rpartition("/")[2]
    if is_task_id(journal):
        return next((tool for tool in agent.tools.values() if segment(tool.name) == called), None)
    return agent.tools.get(called.partition(".")[2])


KEY, VALUE, ERROR, ANSWER = "key", "value", "error", "answer"
_FORMS: Final = ({KEY, VALUE}, {KEY, ERROR}, {ANSWER})


@dataclass(frozen=True, slots=True)
class Resolve:
    """The target of a trigger that answers: ``every("answers", hf.webhook(...), hf.Resolve(), answer="{payload}")``.

    `answer` is an object with the `key` and a `value` or an `error`; or these are given as ``key=`` and ``value=`` or
    ``error=``, each from its own place in the payload.
    """


class ResolveTarget:
    """Answers what `hf.Resolve()` is given, as `runtime.resolve` does. One that comes too late has failed."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    @property
    def target_name(self) -> TargetName:
        return TargetName("resolve", "answers")

    def check(self, arguments: Mapping[str, Any]) -> None:
        if set(arguments) not in _FORMS:
            raise TriggerInvalid("resolve", "it takes key= and value=, key= and error=, or answer=")

    async def start(self, key: str, arguments: Mapping[str, Any]) -> str:
        given = _answer_fields(arguments)
        error = given.get(ERROR)
        value = None if error is not None else given[VALUE]
        settlement = await self._runtime.resolve(check_string(KEY, given[KEY]), value, error=error)
        # An interrupted start is repeated: what it finds is its own answer.
        if not settlement.won and settlement.wait.payload != canonical(answer_payload(value, error)):
            raise AnswerLate(settlement.wait.state)
        return key

    async def is_over(self, ref: str) -> bool:  # noqa: ARG002
        return True

    async def over(self, ref: str) -> None:
        """It is over as soon as it was started."""


def _answer_fields(arguments: Mapping[str, Any]) -> dict[str, Any]:
    given: object = arguments[ANSWER] if ANSWER in arguments else dict(arguments)
    if not isinstance(given, dict) or set(cast("dict[str, Any]", given)) not in ({KEY, VALUE}, {KEY, ERROR}):
        raise TriggerInvalid("resolve", "an answer is an object with the key, and a value or an error")
    return cast("dict[str, Any]", given)
