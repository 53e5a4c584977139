"""A model behind HTTP: asks, reads the stream, asks again where that is of use, and says what it took.

The dialect knows what the bytes mean, the transport carries them, `retry` decides; here they come together. The key is
looked up for each try and goes into a header, nowhere else.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import random
import time
from contextlib import aclosing
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from holdfast import __version__
from holdfast.errors import InvalidArgument, ModelError, StreamCut
from holdfast.messages import (
    AssistantMessage,
    CallChunk,
    CallEnd,
    CallStart,
    ModelReply,
    Reasoning,
    ReasoningChunk,
    Refusal,
    StreamEnd,
    StreamNote,
    StreamReset,
    StreamStart,
    StreamUsage,
    Text,
    TextChunk,
    ToolCall,
    Usage,
    encode,
)
from holdfast.models.contract import respond
from holdfast.models.limits import CallLimits, Gate, gate
from holdfast.models.retry import Retry, attempt, blame, pause
from holdfast.models.sse import SseDecoder
from holdfast.models.transport import Timeouts, shared
from holdfast.models.waiting import asked_in_headers
from holdfast.models.wire import bounded

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable

    from holdfast.messages import Attempt, ModelRequest, Part, StreamEvent
    from holdfast.models.transport import Response, Transport
    from holdfast.models.wire import Dialect, Endpoint, Fold, Frame, WireRequest

ApiKey: TypeAlias = "str | Callable[[], str | Awaitable[str]]"

MAX_RESPONSE: Final = 256 * 1024 * 1024
"""Longest body of an answer, in bytes."""
MAX_ERROR: Final = 64 * 1024
"""How much of the body of a refusal is read."""
MAX_PAUSES: Final = 32
"""How often an answer that the provider interrupted is continued."""

_AUTH: Final = ("bearer", "x-api-key", "x-goog-api-key", "api-key", "none")
_REQUEST_IDS: Final = (
    "request-id",
    "x-request-id",
    "apim-request-id",
    "x-ms-request-id",
    "x-goog-request-id",
    "cf-ray",
)
_NO_KEY: Final = "[key]"
_SHORTEST_SECRET: Final = 8
"""What is shorter is a word such as ``EMPTY`` that local servers take for a key, and would be found everywhere."""


class HttpModel:
    """A model of one endpoint. It keeps no state of a conversation, and no key in sight."""

    def __init__(  # noqa: PLR0913
        self,
        endpoint: Endpoint,
        model: str,
        dialect: Dialect,
        *,
        api_key: ApiKey | None = None,
        transport: Transport | None = None,
        retry: Retry = Retry(),  # noqa: B008  frozen
        limits: CallLimits | Gate = CallLimits(),  # noqa: B008
        timeouts: Timeouts = Timeouts(),  # noqa: B008
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        chance: Callable[[], float] = random.random,
    ) -> None:
        if not endpoint.base_url.startswith(("http://", "https://")):
            raise InvalidArgument("base_url", endpoint.base_url, "an address that begins with http:// or https://")
        if endpoint.auth not in _AUTH:
            raise InvalidArgument("auth", endpoint.auth, f"one of {', '.join(_AUTH)}")
        self.name = f"{endpoint.provider}:{model}"
        self.endpoint = endpoint
        self.model = model
        self.dialect = dialect
        self.retry = retry
        self.timeouts = timeouts
        self.transport: Transport = shared() if transport is None else transport
        self._key = _key_source(endpoint, api_key)
        self._limits = limits
        self._clock = clock
        self._sleep = sleep
        self._chance = chance
        self._base = endpoint.base_url.rstrip("/")
        self._headers = {
            "content-type": "application/json",
            "accept": "text/event-stream",
            "accept-encoding": "identity",  # a compressed stream comes in lumps
            "user-agent": f"holdfast/{__version__}",
            **endpoint.headers,
        }

    def __repr__(self) -> str:
        return f"HttpModel({self.name!r})"

    async def respond(self, request: ModelRequest) -> ModelReply:
        """The whole reply at once."""
        return await respond(self, request)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamEvent, None]:
        """The reply as it comes, over as many tries as it takes."""
        wire = self.dialect.encode(self.endpoint, self.model, request)
        if wire.dropped:
            yield StreamNote("replay_dropped", f"{wire.dropped} parts that another model or address made are left out")
        call = _Call(self._clock())
        while True:
            ask = _Try(self._clock())
            failure: ModelError | None = None
            try:
                async with aclosing(self._ask(wire, call, ask)) as events:
                    async for event in events:
                        yield event
            except ModelError as error:
                failure = error
            if failure is not None:
                wait = self._failed(call, ask, failure)
                if wait is None:
                    raise blame(failure, call.attempts)
                for event in call.reset(failure, wait):
                    yield event
                await self._sleep(wait)
                continue
            reply = call.answered(ask, self.name, self._clock())
            if not ask.paused:
                yield StreamEnd(reply)
                return
            wire = self._continued(request, call)

    async def _ask(self, wire: WireRequest, call: _Call, ask: _Try) -> AsyncGenerator[StreamEvent, None]:
        """One try; when it ends without an error, `ask` has the reply."""
        timeouts = self._timeouts_left(call)
        place = self._limits if isinstance(self._limits, Gate) else gate(self.endpoint, self._limits)
        await _entered(place, timeouts.total)
        response: Response | None = None
        try:
            ask.begun = self._clock()
            url = f"{self._base}{wire.path}"
            # The headers have no name here, so that nobody who collects the locals of a traceback finds the key.
            try:
                response = await self.transport.open(url, await self._authorised(wire, ask), wire.body, timeouts)
            except ModelError as error:
                raise error.with_traceback(None) from None  # the frames below hold the headers, and the key in them
            ask.response = response
            if not 200 <= response.status < 300:
                raise await self._refused(response, ask)
            kind = response.headers.get("content-type", "")
            if "html" in kind:
                raise ModelError(f"{self.name} answered with a web page", kind="bad_frame", retryable=True)
            if "json" in kind:
                ask.reply = self.dialect.whole(self.endpoint, self.model, await _body(response, MAX_RESPONSE))
                for event in _events_of_reply(ask.reply, self.name):
                    seen = call.seen(event, ask)
                    if seen is not None:
                        yield seen
                return
            reading = _Reading(self.dialect.fold(self.endpoint, self.model), response)
            while reading.open:
                for frame in await reading.frames():
                    for event in reading.events(frame):
                        seen = call.seen(event, ask)
                        if seen is not None:
                            yield seen
            ask.reply = reading.reply()
            ask.paused = reading.fold.paused
        finally:
            if response is not None:
                response.close()
            place.leave()

    async def _refused(self, response: Response, ask: _Try) -> ModelError:
        body = bytearray()
        try:
            async for chunk in response.chunks():
                body += chunk
                if len(body) > MAX_ERROR:
                    break
        except ModelError:
            pass  # the status says enough
        said = bytes(body[:MAX_ERROR])
        if len(ask.key) >= _SHORTEST_SECRET:
            # Before anybody shortens it: half a key could not be found any more.
            said = said.replace(ask.key.encode(), _NO_KEY.encode())
        error = self.dialect.error(response.status, response.headers, said)
        if error.status is None:
            error.status = response.status
        if error.retry_after is None:
            error.retry_after = asked_in_headers(response.headers, time.time())
        return error

    def _failed(self, call: _Call, ask: _Try, error: ModelError) -> float | None:
        """Enter a failure into the ledger; the pause before the next try, or None."""
        now = self._clock()
        _scrub(error, ask.key)
        if error.request_id is None:
            error.request_id = ask.request_id
        line = attempt(
            self.name,
            error,
            seconds=now - ask.begun,
            status=ask.status,
            request_id=ask.request_id,
            usage=ask.usage,
        )
        call.attempts.append(line)
        call.failures += 1
        if call.failing_since is None:
            call.failing_since = now
        elapsed = now - call.failing_since
        wait = pause(self.retry, error, tried=call.failures, elapsed=elapsed, chance=self._chance())
        total = self.timeouts.total
        if wait is not None and total is not None and now + wait >= call.begun + total:
            return None
        return wait

    def _continued(self, request: ModelRequest, call: _Call) -> WireRequest:
        """The provider paused in the middle of its turn: it gets back what it said, and goes on."""
        call.pauses += 1
        if call.pauses > MAX_PAUSES:
            message = f"{self.name} paused {call.pauses:,} times in one reply; the limit is {MAX_PAUSES:,}"
            raise blame(ModelError(message, kind="paused"), call.attempts)
        said = AssistantMessage(f"pause.{call.pauses}", call.kept)
        # What is kept with the conversation has no place for half a reply.
        asked = msgspec.structs.replace(request, messages=(*request.messages, said), wire=None)
        return self.dialect.encode(self.endpoint, self.model, asked)

    def _timeouts_left(self, call: _Call) -> Timeouts:
        if self.timeouts.total is None:
            return self.timeouts
        left = call.begun + self.timeouts.total - self._clock()
        if left <= 0:
            raise ModelError(f"the call of {self.name} took longer than it may take", kind="timeout")
        return msgspec.structs.replace(self.timeouts, total=left)

    async def _authorised(self, wire: WireRequest, ask: _Try) -> dict[str, str]:
        headers = {**self._headers, **wire.headers}
        key = ask.key = await self._resolved()
        if key:
            if self.endpoint.auth in {"bearer", "none"}:
                headers["authorization"] = f"Bearer {key}"
            else:
                headers[self.endpoint.auth] = key
        return headers

    async def _resolved(self) -> str:
        """The key as it is now; empty where the endpoint needs none."""
        failed = ""
        key: object = None
        try:
            key = self._key()
            if inspect.isawaitable(key):
                key = await key
        except Exception as error:  # noqa: BLE001  somebody else's function
            failed = type(error).__name__
        if failed:  # raised out here, because what that function raised may tell more than anybody should read
            message = f"the function that gives the key for {self.endpoint.provider} failed with {failed}"
            raise ModelError(message, kind="authentication")
        if key is None:
            if not self.endpoint.keys or self.endpoint.auth == "none":
                return ""
            names = " or ".join(self.endpoint.keys)
            raise ModelError(
                f"no key for {self.endpoint.provider}: set {names}, or pass api_key", kind="authentication"
            )
        text = key.strip() if isinstance(key, str) else ""
        if not text or not text.isascii() or not text.isprintable() or " " in text:
            message = f"the key for {self.endpoint.provider} is not one word of plain characters"
            raise ModelError(message, kind="authentication")
        return text


class _Try:
    """One try while it runs."""

    __slots__ = ("begun", "key", "paused", "reply", "response", "usage")

    def __init__(self, begun: float) -> None:
        self.begun = begun
        self.key = ""
        self.response: Response | None = None
        self.usage: Usage | None = None
        self.reply: ModelReply | None = None
        self.paused = False

    @property
    def status(self) -> int | None:
        return None if self.response is None else self.response.status

    @property
    def request_id(self) -> str | None:
        if self.response is None:
            return None
        headers = self.response.headers
        found = next((headers[name] for name in _REQUEST_IDS if name in headers), None)
        return None if found is None else _without(bounded(found, 200), self.key)


class _Call:
    """One question, over all its tries."""

    __slots__ = ("attempts", "begun", "failing_since", "failures", "kept", "pauses", "shown", "usage")

    def __init__(self, begun: float) -> None:
        self.begun = begun
        self.attempts: list[Attempt] = []
        self.failures = 0
        """In a row."""
        self.failing_since: float | None = None
        self.pauses = 0
        self.kept: tuple[Part, ...] = ()
        """What the provider said before it paused."""
        self.usage = Usage()
        self.shown = False
        """Whether an observer has seen anything of the reply."""

    def seen(self, event: StreamEvent, ask: _Try) -> StreamEvent | None:
        """An event of the fold as observers see it, if they do; what it tells is noted."""
        kind = type(event)
        if kind is StreamStart:
            return None if self.kept else event
        self.shown = True
        if isinstance(event, StreamUsage):
            ask.usage = event.usage
            return StreamUsage(self.usage + event.usage) if self.kept else event
        return None if kind is StreamEnd else event

    def reset(self, error: ModelError, wait: float) -> list[StreamEvent]:
        """What observers are told between two tries."""
        events: list[StreamEvent] = []
        why = bounded(f"{error.kind}: {error.message}", 300)
        if self.shown:
            events.append(StreamReset(why))
        events.append(StreamNote("retry", f"try {self.failures + 1} in {wait:.1f} s after {why}"))
        if self.shown and self.kept:
            events += _events_of(self.kept)  # this much still counts
        self.shown = bool(self.kept)
        return events

    def answered(self, ask: _Try, name: str, now: float) -> ModelReply:
        """The reply so far, with who gave it and every try."""
        reply = ask.reply
        if reply is None:
            raise StreamCut(name)
        line = attempt(
            name,
            None,
            seconds=now - ask.begun,
            status=ask.status,
            request_id=ask.request_id,
            usage=reply.usage,
            outcome="paused" if ask.paused else "completed",
        )
        self.attempts.append(line)
        self.failures = 0
        self.failing_since = None
        if ask.paused:
            self.kept += reply.parts
            self.usage += reply.usage
            return reply
        provider = name.partition(":")[0]
        return msgspec.structs.replace(
            reply,
            parts=self.kept + reply.parts,
            usage=self.usage + reply.usage,
            model=f"{provider}:{reply.model}" if reply.model else name,
            attempts=tuple(self.attempts),
        )


class _Reading:
    """A stream that is being read to its end, whatever the end is."""

    __slots__ = ("_broken", "_chunks", "_decoder", "_received", "fold", "open")

    def __init__(self, fold: Fold, response: Response) -> None:
        self.fold = fold
        self.open = True
        self._chunks = response.chunks()
        self._decoder = SseDecoder()
        self._received = 0
        self._broken: ModelError | None = None

    async def frames(self) -> list[Frame]:
        """The next ones; at the end, what the decoder still holds."""
        try:
            chunk = await self._chunks.__anext__()
        except StopAsyncIteration:
            self.open = False
        except ModelError as error:
            # The reply may be whole nevertheless: its last frame was here, and what is missing is the end of the body.
            self._broken = error
            self.open = False
        else:
            self._received += len(chunk)
            if self._received > MAX_RESPONSE:
                raise _too_long(MAX_RESPONSE)
            return self._decoder.feed(chunk)
        return self._decoder.close()

    def events(self, frame: Frame) -> list[StreamEvent]:
        """What a frame means."""
        if not frame.data:
            return []
        try:
            return self.fold.feed(frame)
        except ModelError as error:
            # Half a frame at the end is nothing but a sign that the stream was cut; `reply` will say so.
            if self.open or error.kind != "bad_frame":
                raise
            return []

    def reply(self) -> ModelReply:
        """The whole reply, or why there is none."""
        broken = self._broken
        try:
            return self.fold.finish()
        except StreamCut as cut:
            if broken is None:
                raise
            if broken.kind == "network":
                _say(cut, f"{cut.message}: {broken.message}")
                raise
        raise broken


async def _entered(place: Gate, total: float | None) -> None:
    if total is None:
        await place.enter()
        return
    try:
        async with asyncio.timeout(total):
            await place.enter()
    except TimeoutError:
        raise ModelError("the call waited for its turn longer than it may take", kind="timeout") from None


async def _body(response: Response, limit: int) -> bytes:
    pieces: list[bytes] = []
    size = 0
    async for chunk in response.chunks():
        size += len(chunk)
        if size > limit:
            raise _too_long(limit)
        pieces.append(chunk)
    return b"".join(pieces)


def _too_long(limit: int) -> ModelError:
    return ModelError(f"the answer is larger than {limit:,} bytes", kind="bad_frame")


def _events_of_reply(reply: ModelReply, name: str) -> list[StreamEvent]:
    """A reply that came at once, as if it had been streamed."""
    return [StreamStart(reply.model or name), *_events_of(reply.parts), StreamUsage(reply.usage)]


def _events_of(parts: Iterable[Part]) -> list[StreamEvent]:
    events: list[StreamEvent] = []
    for part in parts:
        match part:
            case Text() | Refusal() if part.text:
                events.append(TextChunk(part.text))
            case Reasoning() if part.text:
                events.append(ReasoningChunk(part.text))
            case ToolCall():
                sent = encode(part.arguments).decode() if part.arguments is not None else part.malformed or ""
                events += [CallStart(part.id, part.name), CallChunk(part.id, sent), CallEnd(part)]
            case _:
                pass
    return events


# ---- the key ---------------------------------------------------------------------------------------------------------


def _key_source(endpoint: Endpoint, given: object) -> Callable[[], object]:
    """Where the key comes from at each call. A function, so that no repr of anything shows it."""
    if given is None:
        return lambda: next((found for name in endpoint.keys if (found := os.environ.get(name, "").strip())), None)
    if isinstance(given, str):
        return lambda: given
    if callable(given):
        return given
    raise InvalidArgument("api_key", type(given), "a string, or a function that gives one")


def _scrub(error: ModelError, key: str) -> None:
    """Take out the key, where a provider or a library repeats it."""
    _say(error, _without(error.message, key))
    if error.request_id is not None:
        error.request_id = _without(error.request_id, key)


def _without(text: str, key: str) -> str:
    if len(key) < _SHORTEST_SECRET:
        return text
    text = text.replace(key, _NO_KEY)
    # A text that was cut may end in the middle of it.
    end = text.removesuffix("...")
    for size in range(len(key) - 1, 3, -1):
        if end.endswith(key[:size]):
            return f"{end[:-size]}{_NO_KEY}..."
    return text


def _say(error: ModelError, message: str) -> None:
    error.message = message
    error.args = (message,)
