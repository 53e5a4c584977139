"""The context of a tool call: the key, steps, waits, deferrals, attachments and secrets of one call.

Your tools get a `Context`. The runtime and the toolkits of Holdfast see the same object as a `CallContext`.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeAlias

from holdfast.deps import NO_DEPS, DepsT
from holdfast.effects.drive import Boundary, EffectContext
from holdfast.effects.keys import segment
from holdfast.effects.scopes import EffectScope, SuspensionGuard
from holdfast.errors import Suspended, UsageError
from holdfast.errors.caller import DepsMissing
from holdfast.errors.fields import ErrorFields
from holdfast.tools.definition import DEFERRAL_TIMEOUT, NO_DEFAULT, Deferred

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Callable
    from pathlib import Path

    from holdfast.messages import Attachment
    from holdfast.processes.tasks import TaskRun
    from holdfast.records import InputTaint
    from holdfast.runtime.tool_host import ToolHost
    from holdfast.runtime.turn_runner import TurnRunner
    from holdfast.secrets.sources import SecretAccess

    CallHost: TypeAlias = TurnRunner | TaskRun
    """The turn or background task for which a tool runs."""


class RuntimeMissing(ErrorFields, UsageError):
    """A tool that needs a runtime was called without one."""

    tool: str
    _message = "the tool {tool!r} works only for an agent of a runtime; give it to one and use hf.open"


class Context(EffectContext, Generic[DepsT]):
    """One tool call: its session, turn, key and deadline.

    `idempotency_key` is the same for every attempt and every re-drive of this call, and for no other call. `step` runs
    a part of the tool once: when the call runs again after a crash or a wait, the step returns its recorded result.
    """

    __slots__ = (
        *("_caller", "_idempotency", "_left", "_moving", "_place", "_suspension", "_taint", "_used", "_waits"),
        *("call_id", "session", "tool", "turn"),
    )

    def __init__(
        self,
        caller: CallHost,
        key: str,
        call_id: str,
        tool: str,
        *,
        scope: str | None = None,
        idempotency: str | None = None,
    ) -> None:
        super().__init__(Boundary(caller.performer), key)
        self._place = EffectScope(caller.performer, key if scope is None else scope, inside=True)
        self._idempotency = idempotency
        self._moving: asyncio.Future[None] | None = None
        self._used = False
        self._taint: InputTaint | None = None
        self._caller = caller
        self._waits: dict[str, int] = {}
        self._left: tuple[str, ...] | None = None
        """The waits at which the call is suspended."""
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

    async def step(self, name: str, function: Callable[..., Any], *args: object, **options: Any) -> Any:
        """Run a part of the tool once; when the call runs again, return the recorded result."""
        await self._enter()
        return await super().step(name, function, *args, **options)

    async def _enter(self) -> None:
        """Wait while the call moves, so that all its records go to one journal.

        A suspended call raises here: it runs again from its beginning.
        """
        if self._left is not None:
            await self._suspension.refuse(Suspended(*self._left))
        while self._moving is not None:
            await asyncio.shield(self._moving)
        self._used = True

    @property
    def metadata(self) -> dict[str, Any]:
        """Metadata of the session, overridden by that of the input that began the turn."""
        return dict(self._caller.metadata)

    @property
    def _host(self) -> ToolHost:
        caller = self._caller
        if caller.performer.over:
            raise caller.performer.abandoned()
        host = caller.host
        if host is None:
            raise RuntimeMissing(self.tool)
        return host

    @property
    def deps(self) -> DepsT:
        """The dependencies of the runtime: ``hf.open(..., deps=...)``."""
        deps = self._host.deps
        if deps is NO_DEPS:
            raise DepsMissing(f"the tool {self.tool!r}")
        return deps

    @property
    def secrets(self) -> SecretAccess:
        """The host's secrets: ``ctx.secrets["NAME"]`` is the current value, for this call alone."""
        return self._host.secrets

    @property
    def cancelled(self) -> bool:
        """True if the turn was stopped or its runtime closed. A sync function polls it: its thread can't be stopped."""
        return self._caller.stopped or self._caller.performer.cancelled

    @property
    def deadline(self) -> datetime | None:
        due = self._caller.deadline
        return None if due is None else datetime.fromtimestamp(due / 1000, tz=UTC)

    def progress(self, note: str | None = None, *, fraction: float | None = None) -> None:
        """Report progress to observers. Recorded only in the background."""
        if not self._caller.performer.over:
            self._caller.progress(self.key, note, fraction)

    async def wait(self, name: str, *, timeout: timedelta | float | None = None) -> Any:
        """Wait for an answer from outside: an approval, a webhook, another system. It may take days.

        The wait holds no memory: the runtime leaves the tool at this point, and runs it again from its beginning when
        the answer has come. Put effects before the wait that must not happen twice into `step`. Raises `WaitExpired` if
        no answer comes within `timeout`.
        """
        await self._enter()
        occurrence = self._waits[name] = self._waits.get(name, 0) + 1
        try:
            return await self._caller.waits.wait(self._place.path, name, occurrence, timeout)
        except Suspended as suspended:
            self._left, self._suspension = suspended.waits, SuspensionGuard()
            raise

    async def defer(
        self,
        *,
        timeout: timedelta | float = DEFERRAL_TIMEOUT,
        default: Any = NO_DEFAULT,  # any JSON value
    ) -> Deferred[Any]:
        """Let this call be answered later, from outside: pass on the `key`, and return the deferral.

        ``pending = await ctx.defer(timeout=timedelta(days=2))``, send ``pending.key`` to the other system, ``return
        pending``. `runtime.resolve(key, value)` gives the result, also before the tool has returned; the tool does not
        run again. The wait holds no memory. After `timeout` (7 days), the result is `default`, or an error. A call has
        one deferral: a second request returns the same.
        """
        await self._enter()
        return await self._caller.deferrals.defer(self.key, timeout, default)

    async def attach(
        self, data: bytes | Path | str | AsyncIterable[bytes], *, media_type: str | None = None, name: str | None = None
    ) -> Attachment:
        """Keep bytes, or the file at a path, for the session of this call; a tool may return it, like a `File`.

        Bytes may come in parts, as an async iterable. The first bytes show the media type; a different `media_type`
        raises `MediaTypeMismatch`.
        """
        return await self._host.attach(data, media_type, name)

    async def attachment(self, given: Attachment | str) -> bytes:
        """The bytes of an attachment, or of its digest, if the session of this call may read it.

        That is any attachment sent to it, made by its tools and tasks, or put for it. Any other raises
        `AttachmentUnknown`, existing or not.
        """
        return await self._host.attachment(given if isinstance(given, str) else given.digest)

    def wait_token(self, name: str) -> str:
        """The token for `runtime.resolve(token, value)` that answers the next wait called `name`, before it begins."""
        if self._caller.performer.over:
            raise self._caller.performer.abandoned()
        return self._caller.waits.token(self._place.path, name, self._waits.get(name, 0) + 1)


class CallContext(Context[Any]):
    """A context as the runtime and the tools of Holdfast use it."""

    __slots__ = ()

    # The slots of `Context`, under names that completion does not show to authors of tools.
    caller: CallHost = vars(Context)["_caller"]
    """The turn, or the background task to which the call has moved."""
    host: ToolHost = vars(Context)["_host"]
    """The runtime's services for Holdfast's own tools; `RuntimeMissing` if there is no runtime."""
    place: EffectScope = vars(Context)["_place"]
    """The scope in which effects of the call are recorded."""
    taint: InputTaint | None = vars(Context)["_taint"]
    """The taint of the result, if a tool of Holdfast sets it; None: the tool's definition decides."""
    used: bool = vars(Context)["_used"]
    """True if the call has used steps or waits, which are recorded where it began."""

    def hold(self) -> None:
        """Hold steps and waits while the call moves to the background."""
        self._moving = asyncio.get_running_loop().create_future()

    def release(self) -> None:
        """Release held steps and waits."""
        moving, self._moving = self._moving, None
        if moving is not None and not moving.done():
            moving.set_result(None)

    def move(self, caller: CallHost, key: str) -> None:
        """Continue the call for `caller`, under another key but with the same idempotency key."""
        self._idempotency = self.idempotency_key
        self._caller, self._boundary, self.key = caller, Boundary(caller.performer), key
        self._place.drive, self._place.path = caller.performer, key
        self.release()

    async def at_rest(self) -> None:
        """Wait while the call moves to the background."""
        while self._moving is not None:
            await asyncio.shield(self._moving)

    def waited(self, name: str) -> bool:
        """True if this call was suspended at its next wait called `name` before, and must reach it again."""
        below = f"{self._place.path}/{segment(name, self._waits.get(name, 0) + 1)}"
        return self._caller.performer.recorded(below) is not None
