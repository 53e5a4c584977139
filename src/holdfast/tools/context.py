"""What a tool may use while it runs."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.effects.boundary import Boundary, EffectContext

if TYPE_CHECKING:
    from datetime import timedelta

    from holdfast.effects.performer import Performer


class Caller(Protocol):
    """The turn on whose behalf a tool runs."""

    session: str
    run: str
    deadline: int | None
    stopped: bool
    performer: Performer

    def progress(self, key: str, note: str | None, fraction: float | None) -> None:
        """Tell observers how far the call is."""
        ...

    async def wait(self, key: str, name: str, occurrence: int, timeout: timedelta | float | None) -> Any:  # noqa: ANN401
        """The value that somebody outside gives; the turn is parked until then."""
        ...

    def token(self, key: str, name: str, occurrence: int) -> str:
        """What whoever answers a wait called `name` has to show."""
        ...


class Context(EffectContext):
    """One tool call: who asks, under which key, until when.

    `idempotency_key` is the same for every attempt and every re-drive of this call, and for no other call. `step` runs
    a part of the tool once: when the call is performed again after a crash or a wait, it answers what it had given.
    """

    __slots__ = ("_caller", "_scope", "_waits", "call_id", "session", "tool", "turn")

    def __init__(self, caller: Caller, key: str, call_id: str, tool: str, *, scope: str | None = None) -> None:
        super().__init__(Boundary(caller.performer), key)
        self._scope = key if scope is None else scope
        self._caller = caller
        self._waits: dict[str, int] = {}
        self.session = caller.session
        self.turn = caller.run
        self.call_id = call_id
        """The provider's id of the call."""
        self.tool = tool

    @property
    def cancelled(self) -> bool:
        """Whether the turn was stopped meanwhile: for functions that run in a thread and can't be interrupted."""
        return self._caller.stopped

    @property
    def deadline(self) -> datetime | None:
        """When the turn must have ended."""
        due = self._caller.deadline
        return None if due is None else datetime.fromtimestamp(due / 1000, tz=UTC)

    def progress(self, note: str | None = None, *, fraction: float | None = None) -> None:
        """Tell observers how far this call is. Not recorded."""
        self._caller.progress(self.key, note, fraction)

    async def wait(self, name: str, *, timeout: timedelta | float | None = None) -> Any:  # noqa: ANN401
        """Wait for somebody outside: for an approval, a webhook, another system. It may take days.

        Nothing is kept in memory meanwhile: the tool is left at this point, and when the answer is there it runs again
        from its beginning and gets the answer here. Put what must not happen twice before the wait into `step`.
        Raises `WaitExpired` when nobody answered within `timeout`.
        """
        occurrence = self._waits[name] = self._waits.get(name, 0) + 1
        return await self._caller.wait(self._scope, name, occurrence, timeout)

    def wait_token(self, name: str) -> str:
        """What `runtime.resolve(token, value)` needs to answer the next wait called `name`, before it begins."""
        return self._caller.token(self._scope, name, self._waits.get(name, 0) + 1)
