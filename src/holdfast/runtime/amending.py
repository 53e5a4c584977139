"""What is told about a call that has ended: what hooks make of its result, and what a person had changed before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.effects.values import encode_value
from holdfast.errors import EffectFailed, HoldfastError
from holdfast.messages import ToolResult
from holdfast.policy.hooks import Answer, Deny
from holdfast.records import Done, ErrorInfo, Failed
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
_AFTER: Final = "The call was made, and took effect. Its result is withheld:"


class Amending:
    """Amends the outcomes of one turn's calls before they are recorded."""

    def __init__(self, performer: Performer, hooked: Hooked) -> None:
        self._performer = performer
        self._hooked = hooked

    async def told(self, call: Call, outcome: Outcome) -> Outcome:
        """The outcome of a call as it is recorded."""
        if call.given is not None or call.refused is not None or not isinstance(outcome, Done | Failed):
            return outcome
        if isinstance(outcome, Failed) and self._hooked.has("on_error"):
            await self._hooked.on_error(EffectFailed(call.call.name, outcome.error.kind, outcome.error.message))
        if self._hooked.has("after_tool"):
            outcome = await self._hooks(call, outcome)
        # A program gets what the call gave, as it is; whoever wrote the program is told at its end.
        return await self._edited(call, outcome) if call.edited and not call.nested else outcome

    async def _edited(self, call: Call, outcome: Done | Failed) -> Done | Failed:
        note = f"{EDITED} {msgspec.json.encode(call.call.arguments).decode()}"
        if isinstance(outcome, Done):
            return await self._as_done(outcome, {"note": note, "result": await self._value(outcome)})
        error = ErrorInfo(outcome.error.kind, f"{outcome.error.message}\n{note[:2_000]}")
        return msgspec.structs.replace(outcome, error=error)

    async def _hooks(self, call: Call, outcome: Done | Failed) -> Done | Failed:
        decision = await self._hooked.after_tool(
            seen(self._hooked.turn, call, self._performer), await self._result(call, outcome)
        )
        match decision:
            case Answer(given):
                return await self._as_done(outcome, given)
            case Deny(reason):
                return _withheld(outcome, reason)
            case None:
                return outcome

    async def _result(self, call: Call, outcome: Done | Failed) -> ToolResult:
        if isinstance(outcome, Failed):
            return result_of(call.call, outcome)
        files = tuple(blob.digest for blob in outcome.refs)
        return ToolResult(call.call.id, call.call.name, await self._value(outcome), files=files)

    async def _value(self, outcome: Done) -> Any:  # noqa: ANN401  whatever a tool gave
        body = bytes(outcome.value) if outcome.blob is None else await self._performer.large(outcome.blob)
        return msgspec.json.decode(body)

    async def _as_done(self, outcome: Done | Failed, value: object) -> Done | Failed:
        refs, kept = (outcome.refs, outcome.kept) if isinstance(outcome, Done) else ((), ())
        try:
            body = encode_value(value)
        except (HoldfastError, TypeError, ValueError, RecursionError) as error:
            return _withheld(outcome, f"what a hook returned can't be kept: {str(error)[:500]}")
        made = await self._performer.succeeded(outcome.key, outcome.ask, body, 0.0, refs, kept)
        return msgspec.structs.replace(made, ms=outcome.ms) if isinstance(made, Done | Failed) else outcome


def _withheld(outcome: Done | Failed, reason: str) -> Failed:
    error = ErrorInfo(DENIED, f"{_AFTER} {reason}")
    return Failed(at=outcome.at, key=outcome.key, ask=outcome.ask, error=error, ms=outcome.ms)
