"""Deferrals: tool calls that are answered later, from outside. Each has a wait of its own.

The wait is durably open before the tool gets its key. A repeated call gets the same key. The intent of the call is
recorded with the deferral, also for a call that is safe to repeat: the outside may act on it, so it must not end
without an outcome. The return of the tool is recorded too. After that the tool is never called again, even if it is
repeatable.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from holdfast import errors, names
from holdfast.crashpoints import crash_point
from holdfast.effects.canonical import canonical, digest_of_bytes, encode_value
from holdfast.effects.keys import scope_of, segment
from holdfast.errors.caller import TriggerInvalid
from holdfast.policy.rules import milliseconds
from holdfast.records import Cause, Done, EffectRequest, ErrorInfo, Failed, Intended, Record
from holdfast.runtime.reconciliation import is_reconciliation_answer, is_reconciliation_wait
from holdfast.runtime.waits import DeferralSuspended, JournalWaits, answer_payload, failure_reason, wait_name
from holdfast.tools.definition import NO_DEFAULT, AnyTool, Deferred
from holdfast.triggers.definition import TargetName
from holdfast.turns.keys import DEFERRAL, RETURNED

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import timedelta

    from holdfast.agent import Agent
    from holdfast.effects.performer import Performer
    from holdfast.runtime.runtime import Runtime
    from holdfast.runtime.tool_call import RunningCall
    from holdfast.store import Store, contract


DEFERRAL_KIND: Final = "deferral"
"""The kind of the wait in the store."""
MAX_DEFAULT: Final = 32 * 1024
"""Longest default value as JSON, in bytes."""
_DEFAULT: Final = "default"
_DEFERRAL: Final = f"/{DEFERRAL}"
_RETURNED: Final = f"/{RETURNED}"


@dataclass(frozen=True, slots=True)
class DeferralReply:
    """The end of a deferral: with the JSON of a value, or with an error."""

    body: bytes = b""
    error: ErrorInfo | None = None
    answered: bool = True
    """The reply came from outside; otherwise the deferral expired or was closed."""


class Deferrals:
    """The deferrals of one turn, or of one background task. Each set has keys of calls."""

    def __init__(self, waits: JournalWaits, performer: Performer) -> None:
        self._waits = waits
        self._performer = performer
        past = performer.past.effects
        self.deferred = {key.removesuffix(_DEFERRAL) for key in past if key.endswith(_DEFERRAL)}
        """Calls that were deferred, in this drive or before; they may have been interrupted since."""
        self.open = {key for key in self.deferred if past[key + _DEFERRAL].outcome is None}
        """Deferred calls with an open wait, by the journal."""
        self.answered = {key for key in self.deferred if isinstance(past[key + _DEFERRAL].outcome, Done)}
        """Calls that were answered from outside."""
        self.open_calls: dict[str, RunningCall] = {}
        """Calls that have an intent or began in this drive, and have no outcome yet: their tools may defer them."""
        self.intended: set[str] = set()
        """Calls with an intent that was recorded because their tool deferred them."""
        self._returned = {key.removesuffix(_RETURNED) for key in past if key.endswith(_RETURNED)}
        """Calls whose tools have returned their deferrals."""
        self._defaults: dict[str, bytes | None] = {}
        """The default values of calls that returned in this drive."""

    async def defer(self, key: str, timeout: timedelta | float, default: object) -> Deferred[Any]:
        """Open the deferral of a call, or return the existing one. When this returns, it can be answered."""
        due = self._performer.now() + milliseconds(timeout)
        if default is not NO_DEFAULT and (size := len(encode_value(default))) > MAX_DEFAULT:
            raise errors.PayloadTooLarge("the default", size, MAX_DEFAULT)  # refuse now a value that can't be recorded
        name = _wait_of(key)
        await self._performer.admit()
        if key not in self.deferred:
            ask = EffectRequest("await_event", name, digest_of_bytes("wait", name.encode()), cause=Cause("call", key))
            records: list[Record] = [Intended(at=self._performer.now(), key=key + _DEFERRAL, ask=ask)]
            running = self.open_calls.get(key)
            if running is not None and not running.call.intended and key not in self.intended:
                self.intended.add(key)
                records.insert(0, self._performer.intention(key, running.call.ask))
            self._performer.submit(records)
        self.deferred.add(key)
        self.open.add(key)
        crash_point("defer.before_open")
        wait = await self._waits.open(name, due, kind=DEFERRAL_KIND)
        await self._performer.settle()
        crash_point("defer.after_open")
        return Deferred(self._waits.token(name), due if wait.deadline is None else wait.deadline, key, default)

    def tool_returned(self, key: str, deferred: Deferred[Any]) -> None:
        """Record that the tool has returned its deferral: from here on the call only waits."""
        default = None if deferred.default is NO_DEFAULT else encode_value(deferred.default)
        self._defaults[key] = default
        if key not in self._returned:
            self._returned.add(key)
            content, cause = digest_of_bytes("deferred", key.encode()), Cause("call", key)
            ask = EffectRequest("sample", "deferred", content, cause=cause)
            value = msgspec.Raw(b"{}" if default is None else msgspec.json.encode({_DEFAULT: msgspec.Raw(default)}))
            done = Done(at=self._performer.now(), key=key + _RETURNED, ask=ask, value=value)
            self._performer.submit([done])
        crash_point("defer.returned")

    def has_returned(self, key: str) -> bool:
        """True if the tool has returned its deferral, and only the answer is missing."""
        self._performer.below(key, _DEFERRAL)  # a tool that has returned does not ask for these again
        return key in self._returned

    async def has_answer(self, key: str) -> bool:
        return (await self._current(key)).state == "resolved"

    async def reply(self, key: str) -> DeferralReply:
        """The answer to a deferral, or its end without one.

        While it is open, raises `DeferralSuspended` and leaves the call.
        """
        wait = await self._current(key)
        if wait.state == "open":
            self._performer.leave(key)
            raise DeferralSuspended(wait.name)
        self.open.discard(key)
        recorded = self._performer.recorded(key + _DEFERRAL)
        if recorded is None or recorded.outcome is None:
            # The end of the wait is recorded once; the value itself is recorded with the call.
            now, ended = self._performer.now(), key + _DEFERRAL
            if wait.state == "resolved":
                self.answered.add(key)
                end: Record = Done(at=now, key=ended, value=msgspec.Raw(b"true"))
            else:
                end = Failed(at=now, key=ended, error=ErrorInfo(wait.state, f"the wait was {wait.state}"))
            self._performer.submit([end], patient=True)
        if wait.state == "resolved":
            failure = failure_reason(wait.payload)
            if failure is not None:
                return DeferralReply(error=ErrorInfo("WaitFailed", failure))
            return DeferralReply(wait.payload or b"null")
        if wait.state == "expired":
            default = await self._default(key)
            if default is not None:
                return DeferralReply(default, answered=False)
            return DeferralReply(error=ErrorInfo("WaitExpired", "no answer came in time"), answered=False)
        said = f"the wait for its answer was {wait.state}; it can't be answered any more"
        return DeferralReply(error=ErrorInfo("WaitEnded", said), answered=False)

    async def withdraw(self, key: str) -> None:
        """Close the deferral of a call that ended without it. The store closes those still open when a turn ends."""
        if key in self.open:
            self._performer.flush()  # the outcome of the call is committed before this
            self.open.discard(key)
            await self._waits.close(_wait_of(key))

    async def _current(self, key: str) -> contract.Wait:
        # The wait exists and keeps its deadline; this ends one that is overdue.
        return await self._waits.open(_wait_of(key), self._performer.now(), kind=DEFERRAL_KIND)

    async def _default(self, key: str) -> bytes | None:
        if key in self._defaults:
            return self._defaults[key]
        recorded = self._performer.recorded(key + _RETURNED)
        if recorded is None or not isinstance(recorded.outcome, Done):
            return None
        said = msgspec.json.decode(await self._performer.read_value(recorded.outcome), type=dict[str, msgspec.Raw])
        return bytes(said[_DEFAULT]) if _DEFAULT in said else None


def _wait_of(key: str) -> str:
    return wait_name(key + _DEFERRAL)


# ---- answers from outside ----


async def check_answer(store: Store, agents: Mapping[str, Agent], key: str, value: object) -> None:
    """Refuse an answer that its tool can't return, if this process has the tool; otherwise it is checked later.

    Late answers are not checked: they fail with an error that says so.
    """
    body = canonical(value)  # first: an error about the value must not depend on the validity of the key
    journal, name = store.wait_of(key)
    is_question = is_reconciliation_wait(name)
    if not is_question and not name.endswith(_DEFERRAL):
        return
    wait = await store.wait(journal, name)
    if wait is not None and wait.state != "open":
        return
    call = scope_of(scope_of(name)) if is_question else name.removesuffix(_DEFERRAL)
    tool = await _tool_of(store, agents, journal, call)
    if is_question:
        if not is_reconciliation_answer(value):
            if tool is not None and tool.on_interrupt != "ask":
                return  # its reconcile function waits for something under the same name
            raise errors.AskAnswerInvalid(journal, name, value)
        if not isinstance(value, dict) or "done" not in value:
            return
        body = canonical(cast("dict[str, object]", value)["done"])
    if tool is not None:
        from holdfast.tools.schema import check_result  # pydantic only when it is needed

        complaint = check_result(tool.function, body)
        if complaint is not None:
            raise errors.AnswerInvalid(tool.name, complaint)


async def _tool_of(store: Store, agents: Mapping[str, Agent], journal: str, call: str) -> AnyTool | None:
    """The tool of the call with the key `call`, if this process has its agent."""
    try:
        agent = agents.get((await store.journal(journal)).agent or "")
    except errors.JournalMissing:
        return None
    if agent is None:
        return None
    called = call.rpartition("/")[2]
    if names.is_task_id(journal):
        return next((tool for tool in agent.tools.values() if segment(tool.name) == called), None)
    return agent.tools.get(called.partition(".")[2])


@dataclass(frozen=True, slots=True)
class Resolve:
    """The target of a trigger that answers: ``every("answers", hf.webhook(...), hf.Resolve(), answer="{payload}")``.

    `answer` is an object with the `key` and a `value` or an `error`; or pass these as ``key=`` and ``value=`` or
    ``error=``, each with its own place in the payload.
    """


class ResolveTarget:
    """Resolves deferrals for `hf.Resolve()`, like `runtime.resolve`. A late answer is a failure."""

    target_name = TargetName("resolve", "answers")

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def check(self, arguments: Mapping[str, Any]) -> None:
        if set(arguments) not in ({"key", "value"}, {"key", "error"}, {"answer"}):
            raise TriggerInvalid("resolve", "it takes key= and value=, key= and error=, or answer=")

    async def start(self, key: str, arguments: Mapping[str, Any], *, untrusted: bool) -> str:
        given: object = arguments["answer"] if "answer" in arguments else dict(arguments)
        fields = cast("dict[str, Any]", given) if isinstance(given, dict) else {}
        if set(fields) not in ({"key", "value"}, {"key", "error"}):
            raise TriggerInvalid("resolve", "an answer is an object with the key, and a value or an error")
        error = fields.get("error")
        value = None if error is not None else fields["value"]
        settlement = await self._runtime.resolve(names.check_string("key", fields["key"]), value, error=error)
        # An interrupted start is repeated, and then finds its own answer.
        if not settlement.won and settlement.wait.payload != canonical(answer_payload(value, error)):
            raise errors.AnswerLate(settlement.wait.state)
        return key
