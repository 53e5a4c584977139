"""What is told about a call that has ended: what hooks make of its result, and what a person had changed before."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.effects.values import encode_value
from holdfast.errors import EffectFailed, EffectUnknown, HoldfastError
from holdfast.messages import ToolResult
from holdfast.policy.hooks import Answer, Deny
from holdfast.records import Done, ErrorInfo, Failed, Unknown
from holdfast.runtime.hooking import seen
from holdfast.turns.answers import result_of

if TYPE_CHECKING:
    from holdfast.effects.performer import Performer
    from holdfast.records import Outcome
    from holdfast.runtime.call import Call
    from holdfast.runtime.hooking import Hooked

DENIED: Final = "Denied"
"""The kind of error with which a call ends that must not be made, or whose result is withheld."""
EDITED: Final = "A person changed the arguments before this call was made. It was made with:"
_CUT_OFF: Final = "the turn was stopped before the hooks had decided about it"


class Amending:
    """Amends the outcomes of one turn's calls before they are recorded."""

    def __init__(self, performer: Performer, hooked: Hooked) -> None:
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
        note = f"{EDITED} {msgspec.json.encode(call.call.arguments).decode()}"
        if isinstance(outcome, Done):
            return await self._as_done(call, outcome, {"note": note, "result": await self._value(outcome)})
        error = ErrorInfo(outcome.error.kind, f"{outcome.error.message}\n{note[:2_000]}")
        return msgspec.structs.replace(outcome, error=error)

    async def _hooks(self, call: Call, outcome: Done | Failed | Unknown) -> Done | Failed | Unknown:
        decision = await self._hooked.after_tool(
            seen(self._hooked.turn, call, self._performer), await self._result(call, outcome)
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
    error = ErrorInfo(DENIED, f"{said} {reason}")
    return Failed(at=outcome.at, key=outcome.key, ask=outcome.ask, error=error, ms=outcome.ms, taint=outcome.taint)
