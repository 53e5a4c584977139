"""A trigger that gives the result of a call which was deferred: what a webhook brings is the answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

from holdfast.effects.canonical import canonical
from holdfast.errors import AnswerLate
from holdfast.errors.triggers import TriggerInvalid
from holdfast.names import check_string
from holdfast.runtime.answering import answer_of
from holdfast.triggers.definition import TargetName

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.runtime.runtime import Runtime

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
        given = _given(arguments)
        error = given.get(ERROR)
        value = None if error is not None else given[VALUE]
        settlement = await self._runtime.resolve(check_string(KEY, given[KEY]), value, error=error)
        # An interrupted start is repeated: what it finds is its own answer.
        if not settlement.won and settlement.wait.payload != canonical(answer_of(value, error)):
            raise AnswerLate(settlement.wait.state)
        return key

    async def is_over(self, ref: str) -> bool:  # noqa: ARG002
        return True

    async def over(self, ref: str) -> None:
        """It is over as soon as it was started."""


def _given(arguments: Mapping[str, Any]) -> dict[str, Any]:
    given: object = arguments[ANSWER] if ANSWER in arguments else dict(arguments)
    if not isinstance(given, dict) or set(cast("dict[str, Any]", given)) not in ({KEY, VALUE}, {KEY, ERROR}):
        raise TriggerInvalid("resolve", "an answer is an object with the key, and a value or an error")
    return cast("dict[str, Any]", given)
