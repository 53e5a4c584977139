"""`Runtime.emit` and `Runtime.on`: requests with a receipt, and handlers that are called with events."""

from __future__ import annotations

import asyncio
import inspect
import logging
import secrets
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Self, cast, get_args

import msgspec

from holdfast import errors, eventloop, names
from holdfast.effects.canonical import digest
from holdfast.events import EVENTS, Event
from holdfast.messages import Settings  # noqa: TC001  a field of a struct
from holdfast.policy.rules import milliseconds
from holdfast.runtime.changes import follow_session, follow_store, session_cursor, store_cursor

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator
    from datetime import timedelta
    from types import TracebackType

    from holdfast.runtime.context import RuntimeContext
    from holdfast.runtime.turn import CancelStatus, Turn, TurnOutcome


_log: Final = logging.getLogger("holdfast.on")
MAX_ERRORS: Final = 100
"""Handler errors that a subscription keeps."""
STOP_WAIT: Final = 1.0
"""Time that a running handler gets to finish when its subscription is stopped, in seconds."""
MAX_QUEUED: Final = 64
"""Events of one session that may wait for the handler; then the subscription reads no further."""


class EmitRequest(msgspec.Struct, frozen=True):
    """A request to an agent. The same `client_request_id` with the same content is always the same request."""

    agent: Any
    """An Agent, or the name of one."""
    input: str
    session: str | None = None
    client_request_id: str | None = None
    metadata: dict[str, Any] | None = None
    model: str | None = None
    """The name of the model of the turn; None: that of the agent."""
    settings: Settings | None = None
    """Settings of the turn, which replace those of the agent."""

    @property
    def options(self) -> dict[str, Any]:
        """The request as arguments of `Session.send`."""
        return {"metadata": self.metadata, "model": self.model, "settings": self.settings}


class Control:
    """Bounds for several emitted requests: cancel all, a timeout for each, a limit on concurrent ones."""

    def __init__(self, *, timeout: timedelta | float | None = None, concurrency: int | None = None) -> None:
        if timeout is not None:
            milliseconds(timeout)
        if concurrency is not None:
            names.check_int("concurrency", concurrency, least=1)
        self.timeout = timeout
        self.cancelled = False
        self._reason = ""
        self._slots = None if concurrency is None else asyncio.Semaphore(concurrency)
        self._running: set[Emitted] = set()

    async def cancel(self, reason: str = "") -> None:
        """Cancel all running requests of this control; it accepts no new ones."""
        self.cancelled = True
        self._reason = reason
        for emitted in list(self._running):
            await emitted.cancel(reason)

    async def _emit(self, context: RuntimeContext, request: EmitRequest, name: str, key: str) -> Emitted:
        """Accept a request; if all slots are taken, wait until one is free and its turn can begin."""
        slots = self._slots
        # If requests may have to wait for a slot, the timeout counts from the start of the turn.
        session = context.sessions.handle(name, request.agent, from_start=slots is not None)
        if self.cancelled:
            raise errors.ControlCancelled(self._reason)
        begin: Callable[[], None] | None = None
        if slots is not None and slots.locked():
            begin = context.sessions.hold_back(name, key)
        elif slots is not None:
            await slots.acquire()
        try:
            turn = await session.send(request.input, key=key, deadline=self.timeout, **request.options)
        except BaseException:
            if begin is not None:
                begin()
            elif slots is not None:
                slots.release()
            raise
        emitted = Emitted(turn)
        self._running.add(emitted)
        if begin is not None:
            # The request is accepted: it begins when there is room even if the caller is cancelled here.
            await asyncio.shield(eventloop.spawn(self._begin_with_room(emitted, begin)))
            return emitted
        eventloop.spawn(self._until_ended(emitted))
        if self.cancelled:  # while the request was being accepted
            await emitted.cancel(self._reason)
        return emitted

    async def _begin_with_room(self, emitted: Emitted, begin: Callable[[], None]) -> None:
        if self.cancelled:  # while the request was being accepted: its turn must not take the room of others
            await emitted.cancel(self._reason)
        try:
            if self._slots is not None:
                await self._slots.acquire()
        finally:
            begin()
        eventloop.spawn(self._until_ended(emitted))
        if self.cancelled:
            raise errors.ControlCancelled(self._reason)

    async def _until_ended(self, emitted: Emitted) -> None:
        try:
            await emitted.outcome()
        except Exception as error:  # the caller that awaits the request gets the error
            _log.debug("%r can't be followed: %s", emitted, error)
        finally:
            self._running.discard(emitted)
            if self._slots is not None:
                self._slots.release()


class Emitted:
    """The receipt of an emitted request: the turn that answers it. Await it for the outcome."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self.session = turn.session
        self.turn = turn.id

    def __repr__(self) -> str:
        return f"Emitted({self.session!r}, {self.turn!r})"

    def __await__(self) -> Generator[Any, None, TurnOutcome]:
        return self._turn.outcome().__await__()

    async def outcome(self, *, timeout: float | None = None) -> TurnOutcome:
        return await self._turn.outcome(timeout=timeout)

    def events(self, after: int | str | None = None) -> AsyncGenerator[Event]:
        """Yield the events of the turn."""
        return self._turn.events(after)

    async def cancel(self, reason: str = "") -> CancelStatus:
        """Request that the turn is stopped."""
        return await self._turn.cancel(reason)


async def emit(context: RuntimeContext, request: EmitRequest, control: Control | None) -> Emitted:
    """Accept a request. If the control has no room, wait until the turn can begin."""
    if not isinstance(request, EmitRequest):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers may be untyped
        raise errors.InvalidArgument("request", request, "an EmitRequest")
    name = request.session
    if name is None and request.client_request_id is None:
        name = f"emit-{secrets.token_hex(6)}"
    elif name is None:  # the same session for the same request id
        agent = request.agent if isinstance(request.agent, str) else request.agent.name
        name = f"emit-{digest('emit', [agent, request.client_request_id])[:20]}"
    key = None if request.client_request_id is None else names.check_id("client_request_id", request.client_request_id)
    if control is not None:
        key = key or f"emit-{secrets.token_hex(8)}"
        return await control._emit(context, request, name, key)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    session = context.sessions.handle(name, request.agent)
    return Emitted(await session.send(request.input, key=key, **request.options))


@dataclass(slots=True)
class _SessionLane:
    """Events of one session that wait for the handler."""

    events: deque[Event] = field(default_factory=deque["Event"])
    room: asyncio.Event = field(default_factory=asyncio.Event)


class Subscription:
    """A handler that is called with events. Stop it, or use it as a context manager.

    Its errors never reach the turn: `errors` has the last ones with their events, `failures` counts them all, and each
    is logged.
    """

    def __init__(
        self,
        context: RuntimeContext,
        kind: Any,
        handler: Callable[[Any], Awaitable[None] | None],
        session: str | None,
        after: int | str | None,
        concurrency: int,
    ) -> None:
        self._kinds = _event_classes(kind)
        if not callable(handler):
            raise errors.InvalidArgument("handler", handler, "a function that takes an event")
        self._handler = handler
        self._events = _event_stream(context, session, after)
        self._slots = asyncio.Semaphore(names.check_int("concurrency", concurrency, least=1))
        self._lanes: dict[str, _SessionLane] = {}
        self._workers: set[asyncio.Task[None]] = set()
        self._task: asyncio.Task[None] | None = None
        self.errors: deque[tuple[Event, BaseException]] = deque(maxlen=MAX_ERRORS)
        self.error: Exception | None = None
        """The error that ended the subscription, if one did."""
        self.failures = 0
        self.handled = 0

    def start(self, forget: Callable[[Subscription], None]) -> None:
        """Begin to read events; `forget` is called at the end."""
        self._task = eventloop.spawn(self._listen())
        self._task.add_done_callback(lambda _: forget(self))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def finished(self) -> bool:
        """True if it has ended: by `stop`, by an error, or with the runtime."""
        return self._task is None or self._task.done()

    async def stop(self) -> None:
        """Call the handler no more; a running one may finish."""
        if self._task is None:
            return
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        for lane in self._lanes.values():
            lane.events.clear()
        workers = self._workers - {asyncio.current_task()}  # a handler may stop its own subscription
        if workers:
            _, left = await asyncio.wait(workers, timeout=STOP_WAIT)
            for worker in left:
                worker.cancel()

    async def _listen(self) -> None:
        try:
            async for event in self._events:
                if isinstance(event, self._kinds):
                    await self._dispatch(event)
        except errors.StoreClosed:
            return
        except Exception as error:  # `error` keeps it
            self.error = error
            _log.exception("a subscription has ended with an error")

    async def _dispatch(self, event: Event) -> None:
        """Put an event into the lane of its session; `concurrency` lanes run side by side."""
        while (lane := self._lanes.get(event.session)) is not None and len(lane.events) >= MAX_QUEUED:
            lane.room.clear()
            await lane.room.wait()
        if lane is None:
            await self._slots.acquire()
            lane = self._lanes[event.session] = _SessionLane()
            lane.events.append(event)
            worker = eventloop.spawn(self._work(event.session, lane))
            self._workers.add(worker)
            worker.add_done_callback(self._workers.discard)
        else:
            lane.events.append(event)

    async def _work(self, session: str, lane: _SessionLane) -> None:
        try:
            while lane.events:
                await self._call(lane.events.popleft())
                lane.room.set()
        finally:
            # No await between the last look at the lane and its removal: no event is lost in between.
            self._lanes.pop(session, None)
            lane.room.set()
            self._slots.release()

    async def _call(self, event: Event) -> None:
        try:
            called = self._handler(event)
            if inspect.isawaitable(called):
                await called
        except (Exception, asyncio.CancelledError, SystemExit, GeneratorExit) as error:
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and (task is None or task.cancelling()):
                raise
            self.failures += 1
            self.errors.append((event, error))
            _log.exception("a handler of %s failed", type(event).__name__)
        self.handled += 1


def _event_classes(kind: object) -> tuple[type, ...]:
    """The event classes of `kind`: one class, a tuple or union of classes, or all for Any."""
    if kind is Any:
        return EVENTS
    members = cast("tuple[Any, ...]", kind if isinstance(kind, tuple) else get_args(kind) or (kind,))
    wrong = [member for member in members if member not in EVENTS]
    if wrong or not members:
        raise errors.InvalidArgument("kind", wrong[0] if wrong else members, "an event class of holdfast, or Any")
    return members


def _event_stream(context: RuntimeContext, session: str | None, after: int | str | None) -> AsyncIterator[Event]:
    if session is not None:
        names.check_id("session", session)
        if after is not None and not (isinstance(after, str) and after.startswith("p")):
            cursor = session_cursor(after, session)
            return follow_session(context.changes, session, cursor)
    # A cursor that begins with "p" is that of an event that came "from now on".
    events = follow_store(context.changes, None if after is None else store_cursor(after, context.store))
    return events if session is None else _only_session(events, session)


async def _only_session(events: AsyncIterator[Event], session: str) -> AsyncIterator[Event]:
    async for event in events:
        if event.session == session:
            yield event
