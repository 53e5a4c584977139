"""What a tool may use while it runs."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.effects.boundary import Boundary, EffectContext
from holdfast.effects.envelope import segment
from holdfast.effects.scopes import EffectScope
from holdfast.effects.suspension import SuspensionGuard
from holdfast.errors import Suspended
from holdfast.tools.definition import LONGEST, NO_DEFAULT

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Callable, Mapping
    from datetime import timedelta
    from pathlib import Path

    from holdfast.effects.performer import Performer
    from holdfast.messages import Attachment
    from holdfast.records import InputTaint, Record
    from holdfast.secrets.sources import Lender
    from holdfast.tools.definition import Deferred


class Caller(Protocol):
    """The turn on whose behalf a tool runs."""

    session: str
    run: str
    deadline: int | None
    stopped: bool
    performer: Performer
    metadata: Mapping[str, Any]
    """What the host said about the session and the input with which the turn began."""
    host: Any
    """What the tools of Holdfast itself may use of the runtime; None where there is none."""

    def progress(self, key: str, note: str | None, fraction: float | None) -> None:
        """Tell observers how far the call is."""
        ...

    def note(self, record: Record) -> None:
        """Record something about the call; nobody waits for it."""
        ...

    async def wait(self, key: str, name: str, occurrence: int, timeout: timedelta | float | None) -> Any:  # noqa: ANN401
        """The value that somebody outside gives; the turn is parked until then."""
        ...

    async def defer(self, key: str, timeout: timedelta | float, default: object) -> Deferred[Any]:
        """The deferral of a call."""
        ...

    def token(self, key: str, name: str, occurrence: int) -> str:
        """What whoever answers a wait called `name` has to show."""
        ...


class Context(EffectContext):
    """One tool call: who asks, under which key, until when.

    `idempotency_key` is the same for every attempt and every re-drive of this call, and for no other call. `step` runs
    a part of the tool once: when the call is performed again after a crash or a wait, it answers what it had given.
    """

    __slots__ = (
        *("_caller", "_idempotency", "_left", "_moving", "_suspension", "_waits", "call_id", "place", "session"),
        *("taint", "tool", "turn", "used"),
    )

    def __init__(  # noqa: PLR0913
        self,
        caller: Caller,
        key: str,
        call_id: str,
        tool: str,
        *,
        scope: str | None = None,
        idempotency: str | None = None,
    ) -> None:
        super().__init__(Boundary(caller.performer), key)
        self.place = EffectScope(caller.performer, key if scope is None else scope, inside=True)
        """Where what the call does is recorded."""
        self._idempotency = idempotency
        self._moving: asyncio.Future[None] | None = None
        self.used = False
        """Whether the call has asked for steps or waits, which are recorded where it began."""
        self.taint: InputTaint | None = None
        """What the result brings with it, where a tool of Holdfast knows that; None: what the definition says."""
        self._caller = caller
        self._waits: dict[str, int] = {}
        self._left: tuple[str, ...] | None = None
        """The waits at which the call was left."""
        self._suspension: SuspensionGuard
        self.session = caller.session
        self.turn = caller.run
        self.call_id = call_id
        """The provider's id of the call."""
        self.tool = tool

    @property
    def idempotency_key(self) -> str:
        """The same for every attempt and every re-drive of this call, and for no other call of any store."""
        return super().idempotency_key if self._idempotency is None else self._idempotency

    async def step(self, name: str, function: Callable[..., Any], *args: object, **options: Any) -> Any:  # noqa: ANN401
        """A part of the tool that runs once: performed again, the call gets what it had given."""
        await self._here()
        return await super().step(name, function, *args, **options)

    async def _here(self) -> None:
        """What is recorded of the call is recorded in one place: while it moves, it waits.

        A call that was left at a wait has nothing more to do: it runs again from its beginning.
        """
        if self._left is not None:
            await self._suspension.refuse(Suspended(*self._left))
        await self.at_rest()
        self.used = True

    async def at_rest(self) -> None:
        """Wait while the call moves."""
        while self._moving is not None:
            await asyncio.shield(self._moving)

    @property
    def metadata(self) -> dict[str, Any]:
        """What the host said about the session, and about the input with which the turn began; that one wins."""
        return dict(self._caller.metadata)

    @property
    def caller(self) -> Caller:
        """Who carries out the call now: a turn, or the background task to which it has moved."""
        return self._caller

    def hold(self) -> None:
        """The call is about to move: steps and waits are held until it has."""
        self._moving = asyncio.get_running_loop().create_future()

    def release(self) -> None:
        """It goes on, wherever it is."""
        moving, self._moving = self._moving, None
        if moving is not None and not moving.done():
            moving.set_result(None)

    def move(self, caller: Caller, key: str) -> None:
        """The call goes on elsewhere: on behalf of `caller`, under another key, and recognisable as before."""
        self._idempotency = self.idempotency_key
        self._caller, self._boundary, self.key = caller, Boundary(caller.performer), key
        self.place.drive, self.place.path = caller.performer, key
        self.release()

    @property
    def host(self) -> Any:  # noqa: ANN401  what a runtime offers is no matter of this layer
        """The runtime, as far as the tools of Holdfast itself need it."""
        if self._caller.performer.over:
            raise self._caller.performer.abandoned()
        return self._caller.host

    @property
    def secrets(self) -> Lender:
        """The secrets of the host: ``ctx.secrets["NAME"]`` is a value as it is now, for this call alone."""
        return self.host.secrets

    @property
    def cancelled(self) -> bool:
        """Whether the turn was stopped, or its runtime is closed: for functions in a thread, which can't be stopped."""
        return self._caller.stopped or self._caller.performer.cancelled

    @property
    def deadline(self) -> datetime | None:
        """When the turn must have ended."""
        due = self._caller.deadline
        return None if due is None else datetime.fromtimestamp(due / 1000, tz=UTC)

    def progress(self, note: str | None = None, *, fraction: float | None = None) -> None:
        """Tell observers how far this call is. Recorded where it goes on in the background, and there alone."""
        if not self._caller.performer.over:
            self._caller.progress(self.key, note, fraction)

    async def wait(self, name: str, *, timeout: timedelta | float | None = None) -> Any:  # noqa: ANN401
        """Wait for somebody outside: for an approval, a webhook, another system. It may take days.

        Nothing is kept in memory meanwhile: the tool is left at this point, and when the answer is there it runs again
        from its beginning and gets the answer here. Put what must not happen twice before the wait into `step`.
        Raises `WaitExpired` when nobody answered within `timeout`.
        """
        await self._here()
        occurrence = self._waits[name] = self._waits.get(name, 0) + 1
        try:
            return await self._caller.wait(self.place.path, name, occurrence, timeout)
        except Suspended as suspended:
            self._left, self._suspension = suspended.waits, SuspensionGuard()
            raise

    async def defer(
        self,
        *,
        timeout: timedelta | float = LONGEST,
        default: Any = NO_DEFAULT,  # noqa: ANN401  any JSON value
    ) -> Deferred[Any]:
        """Let somebody outside give the result of this call later: pass on its `key`, and return it.

        ``pending = await ctx.defer(timeout=timedelta(days=2))``, send ``pending.key`` somewhere, ``return pending``.
        The result is what `runtime.resolve(key, value)` gives, also if that comes before the tool has returned; the
        tool is not called again. Nothing is kept in memory meanwhile. When nobody has answered within `timeout` (7
        days), the result is `default`, or an error. One call has one deferral: asked for again, it is the same.
        """
        await self._here()
        return await self._caller.defer(self.key, timeout, default)

    async def attach(
        self, data: bytes | Path | str | AsyncIterable[bytes], *, media_type: str | None = None, name: str | None = None
    ) -> Attachment:
        """Keep bytes, or the file at a path, for the session of this call; a tool may return it, as it may a `File`.

        Bytes may come in parts, as an async iterable. What they are is seen by how they begin; a `media_type` that says
        something else is a `MediaTypeMismatch`.
        """
        return await self.host.attach(data, media_type, name)

    async def attachment(self, given: Attachment | str) -> bytes:
        """The bytes of an attachment, by itself or by its digest, if the session of this call may read it.

        What was sent to the session, what its tools and tasks gave, what was put for it. Anything else is an
        `AttachmentUnknown`, whether it is there or not.
        """
        return await self.host.attachment(given if isinstance(given, str) else given.digest)

    def waited(self, name: str) -> bool:
        """Whether this call was left at the next wait called `name` before: then it has to come there again."""
        below = f"{self.place.path}/{segment(name, self._waits.get(name, 0) + 1)}"
        return self._caller.performer.recorded(below) is not None

    def wait_token(self, name: str) -> str:
        """What `runtime.resolve(token, value)` needs to answer the next wait called `name`, before it begins."""
        if self._caller.performer.over:
            raise self._caller.performer.abandoned()
        return self._caller.token(self.place.path, name, self._waits.get(name, 0) + 1)
