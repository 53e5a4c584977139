"""What a durable function lets somebody outside answer by a key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from holdfast.effects.values import decode_value
from holdfast.errors import WaitEnded, WaitExpired, WaitFailed
from holdfast.records import Done, Failed
from holdfast.runtime.answering import failure_in
from holdfast.runtime.awaiting import known_as
from holdfast.runtime.deferring import KIND
from holdfast.tools.deferral import Deferred
from holdfast.turns.keys import DEFERRAL

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from holdfast.records import Blob, Outcome
    from holdfast.store import Store

NAME: Final = "defer"
"""What the effect is called that opens one, and its target."""
ANSWER: Final = "deferred answer"
"""What the effect is called that waits for the answer."""


class AwaitedAnswer(Deferred[Any]):
    """A key that was given out by a durable function, and the answer to it."""

    __slots__ = ("_answer",)

    def __init__(self, key: str, due: int, name: str, answer: Callable[[type[Any] | None], Awaitable[Any]]) -> None:
        super().__init__(key, due, name)
        self._answer = answer

    async def answer(self, *, returns: type[Any] | None = None) -> Any:  # noqa: ANN401  whatever was answered
        """What was given for the key, as soon as it is; nothing is held in memory meanwhile.

        Raises `WaitExpired` when nobody answered in time, `WaitFailed` when somebody said that there is no answer.
        """
        return await self._answer(returns)


def name_of(key: str) -> str:
    """The wait of the deferral that was asked for under `key`."""
    return known_as(f"{key}/{DEFERRAL}")


async def opened(store: Store, journal: str, name: str, due: int) -> int:
    """Open the wait, which can be answered from then on; its deadline is the first that was given."""
    wait = await store.open_wait(journal, name, deadline=due, kind=KIND)
    return due if wait.deadline is None else wait.deadline


async def answer_in(outcome: Outcome, large: Callable[[Blob], Awaitable[bytes]], returns: type[Any] | None) -> Any:  # noqa: ANN401
    """What was answered, or the error that there is in place of it."""
    if isinstance(outcome, Done):
        body = bytes(outcome.value) if outcome.blob is None else await large(outcome.blob)
        failure = failure_in(body)
        if failure is not None:
            raise WaitFailed(ANSWER, failure)
        return decode_value(body, returns)
    state = outcome.error.kind if isinstance(outcome, Failed) else "cancelled"
    if state == "expired":
        raise WaitExpired(ANSWER)
    raise WaitEnded(ANSWER, state)
