"""A model behind HTTP: one call, from the request to the reply.

`HttpModel.batches` reads top to bottom: encode the request (`dialect`), get the key (`credentials`), wait for a slot
(`limits`), send (`transport`), read the body (`BodyReader`), and after a failure ask `retry` for the delay. The key is
looked up for each attempt and goes only into a header.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from holdfast import __version__
from holdfast import messages as msg
from holdfast.errors import InvalidArgument, ModelError, StreamCut
from holdfast.eventloop import PerLoop
from holdfast.models import credentials
from holdfast.models import retry as retries
from holdfast.models.contract import flatten_batches, respond, settings_adjuster
from holdfast.models.dialect import NO_STREAM, Dialect, Endpoint, Frame, IdentityCache, ResponseReader, WireRequest
from holdfast.models.endpoints import check_headers
from holdfast.models.errors import classify_error
from holdfast.models.json_values import clip_text
from holdfast.models.limits import CallGate, CallLimits, shared_gate
from holdfast.models.sse import ArraySplitter, SseDecoder
from holdfast.models.transport import HttpResponse, Timeouts, Transport, shared_transport

MAX_RESPONSE: Final = 256 * 1024 * 1024
"""Largest body of an answer, in bytes."""
MAX_ERROR: Final = 64 * 1024
"""Part of the body of an error response that is read, in bytes."""
MAX_PAUSES: Final = 32
"""Most continuations of a reply that the provider paused."""


class HttpModel:
    """A model of one endpoint. It keeps no conversation state, and shows no key."""

    def __init__(
        self,
        endpoint: Endpoint,
        model: str,
        dialect: Dialect,
        *,
        api_key: credentials.ApiKey | None = None,
        transport: Transport | None = None,
        retry: retries.Retry = retries.Retry(),  # noqa: B008  frozen
        limits: CallLimits | CallGate = CallLimits(),  # noqa: B008
        timeouts: Timeouts = Timeouts(),  # noqa: B008
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        chance: Callable[[], float] = random.random,
        unsupported: Iterable[str] | None = None,
        efforts: Iterable[str] | None = None,
        token_provider: credentials.TokenProvider | None = None,
        headers: Callable[[], object] | None = None,
    ) -> None:
        if not endpoint.base_url.startswith(("http://", "https://")):
            raise InvalidArgument("base_url", endpoint.base_url, "an address that begins with http:// or https://")
        self.name = f"{endpoint.provider}:{model}"
        self.endpoint = endpoint
        self.model = model
        self.dialect = dialect
        self.retry = retry
        self.timeouts = timeouts
        self.transport: Transport = shared_transport() if transport is None else transport
        self._credentials = credentials.Credentials(endpoint, api_key, token_provider)
        self._make_headers = headers
        self._adjust_settings = IdentityCache(settings_adjuster(endpoint, model, unsupported, efforts))
        self._gates = PerLoop(lambda: limits if isinstance(limits, CallGate) else shared_gate(endpoint, limits))
        self._clock = clock
        self._sleep = sleep
        self._chance = chance
        self._base = endpoint.base_url.rstrip("/")
        self._headers = {
            "content-type": "application/json",
            "accept": "application/json" if NO_STREAM in endpoint.flags else "text/event-stream",
            "accept-encoding": "identity",  # a compressed stream comes in lumps
            "user-agent": f"holdfast/{__version__}",
            **endpoint.headers,
        }

    def __repr__(self) -> str:
        return f"HttpModel({self.name!r})"

    @property
    def faithful(self) -> bool:
        """Replies come from JSON, so they survive encoding and decoding."""
        return type(self) is HttpModel

    async def respond(self, request: msg.ModelRequest) -> msg.ModelReply:
        return await respond(self, request)

    def stream(self, request: msg.ModelRequest) -> AsyncGenerator[msg.StreamEvent, None]:
        """Stream the reply, over as many attempts as it takes."""
        return flatten_batches(self.batches(request))

    async def batches(self, request: msg.ModelRequest) -> AsyncGenerator[Sequence[msg.StreamEvent], None]:
        """Stream the reply in batches: all events of one piece of the body at once."""
        settings, notes = self._adjust_settings(request.settings)
        if notes:
            request = msgspec.structs.replace(request, settings=settings)
        wire = self.dialect.encode_request(self.endpoint, self.model, request)
        if changes := notes + wire.notes:
            yield [msg.StreamNote("settings_changed", "; ".join(changes))]
        if wire.dropped:
            left_out = f"{wire.dropped} parts that another model or address made are left out"
            yield [msg.StreamNote("replay_dropped", left_out)]
        call = _CallState(self.name, self._clock(), request.ledger)
        while True:
            attempt = _HttpAttempt(self._clock())
            try:
                body = attempt.body = await self._send(wire, call, attempt)
                while body.open:
                    batch = call.observe(await body.read_events(), attempt)
                    if batch:
                        yield batch
                attempt.reply = body.reply()
            except ModelError as error:
                attempt.failure = error
            except (asyncio.CancelledError, GeneratorExit):
                if attempt.gate is not None:  # it was sent
                    call.record(attempt, self._clock(), usage=attempt.usage, outcome="cancelled")
                raise
            finally:
                attempt.close()
            if attempt.failure is not None:
                delay = self._record_failure(call, attempt, attempt.failure)
                if delay is None:
                    raise retries.attach_attempts(attempt.failure, call.attempts)
                yield call.retry_events(attempt.failure, delay)
                await self._sleep(delay)
                continue
            whole: list[msg.StreamEvent] = []
            if attempt.body is not None and attempt.body.is_whole and (reply := attempt.reply) is not None:
                shown = msg.part_events(reply.parts, chunks=False)
                whole = [msg.StreamStart(reply.model or self.name), *shown, msg.StreamUsage(reply.usage)]
                whole = call.observe(whole, attempt)
            paused, reply = call.record_reply(attempt, self._clock())
            if not paused:
                yield [*whole, msg.StreamEnd(reply)]
                return
            if whole:
                yield whole
            wire = self._encode_continuation(request, call)

    async def _send(self, wire: WireRequest, call: _CallState, attempt: _HttpAttempt) -> BodyReader:
        """Send the request; returns the body with the reply."""
        timeouts = self.timeouts
        limit = timeouts.connect
        if timeouts.total is not None:
            left = call.begun + timeouts.total - self._clock()
            if left <= 0:
                raise ModelError(f"the call of {self.name} took longer than it may take", kind="timeout")
            timeouts = msgspec.structs.replace(timeouts, total=left)
            limit = min(limit, left)
        attempt.key = await self._credentials.key(limit)
        if self._make_headers is not None:
            attempt.headers = await self._dynamic_headers(self._make_headers, limit)
        gate = self._gates.here()
        if not gate.try_enter():
            try:
                async with asyncio.timeout(timeouts.total):
                    await gate.enter()
            except TimeoutError:
                raise ModelError("the call waited for its turn longer than it may take", kind="timeout") from None
        attempt.gate = gate
        attempt.begun = self._clock()
        url = f"{self._base}{wire.path}"
        # The headers have no name here, so that tools that collect the locals of a traceback do not find the key.
        try:
            response = await self.transport.open(
                url,
                {**self._headers, **attempt.headers, **wire.headers, **self._credentials.header(attempt.key)},
                wire.body,
                timeouts,
            )
        except (ModelError, asyncio.CancelledError) as error:
            raise error.with_traceback(None) from None  # the frames below hold the headers with the key
        attempt.response = response
        attempt.url = url.partition("?")[0]  # a query may hold secrets
        if not 200 <= response.status < 300:
            raise await self._error_response(response, attempt)
        if "html" in response.headers.get("content-type", "").lower():
            raise _web_page(await _read_error_body(response, self.timeouts.rest))
        reader = self.dialect.reader(self.endpoint, self.model)
        return BodyReader(reader, response, self.timeouts.rest, arrays=self.dialect.streams_json_arrays)

    async def _error_response(self, response: HttpResponse, attempt: _HttpAttempt) -> ModelError:
        body = await _read_error_body(response, self.timeouts.rest)
        body = credentials.redact_body(body, attempt.key, *attempt.headers.values())
        is_page = _is_web_page(response.headers, body)
        if is_page:
            body = f"the answer is {_describe_page(body)}".encode()
        error = classify_error(response.status, response.headers, body)
        if 300 <= response.status < 400:
            # Redirects are not followed: that would carry the key elsewhere.
            target = clip_text(response.headers.get("location", "").partition("?")[0], 200)
            message = f"a redirect to {target}" if target else "a redirect"
            error = ModelError(message, kind="redirect", status=error.status, request_id=error.request_id)
        elif is_page and response.status < 500 and error.kind in {"bad_request", "not_found"}:
            error.kind, error.retryable = "web_page", False
        if error.retry_after is None:
            error.retry_after = retries.delay_from_headers(response.headers, time.time())
        return error

    def _record_failure(self, call: _CallState, attempt: _HttpAttempt, error: ModelError) -> float | None:
        """Enter a failure into the ledger; returns the delay before the next attempt, or None to give up."""
        now = self._clock()
        credentials.redact_error(error, attempt.key, *attempt.headers.values())
        credentials.set_message(error, _with_advice(error, attempt.url, self.name))
        if error.request_id is None:
            error.request_id = attempt.request_id
        call.record(attempt, now, error, usage=error.usage or attempt.usage)
        call.failures += 1
        if call.failing_since is None:
            call.failing_since = now
        elapsed = now - call.failing_since
        advice = None if attempt.response is None else retries.retry_advice(attempt.response.headers)
        delay = retries.retry_delay(
            self.retry, error, failures=call.failures, elapsed=elapsed, chance=self._chance(), advice=advice
        )
        total = self.timeouts.total
        left = None if total is None else call.begun + total - now
        if delay is not None and (left is None or delay < left):
            return delay
        if call.failures >= self.retry.attempts:
            return None
        if error.status == 401 and self._credentials.is_dynamic and not call.renewed_key:
            call.renewed_key = True  # the key may have expired: ask the function for another one, once
            return 0.0
        if retries.is_retryable(error, advice):
            why = retries.explain_refused_delay(self.retry, error, elapsed=elapsed, left=left)
            credentials.set_message(error, f"{error.message} ({why})" if why else error.message)
        return None

    def _encode_continuation(self, request: msg.ModelRequest, call: _CallState) -> WireRequest:
        """Send a paused reply back, so that the provider continues it."""
        call.pauses += 1
        if call.pauses > MAX_PAUSES:
            message = f"{self.name} paused {call.pauses:,} times in one reply; the limit is {MAX_PAUSES:,}"
            raise retries.attach_attempts(ModelError(message, kind="paused"), call.attempts)
        said = msg.AssistantMessage(f"pause.{call.pauses}", call.parts)
        # The conversation's encoded messages have no place for half a reply.
        request = msgspec.structs.replace(request, messages=(*request.messages, said), wire=None)
        return self.dialect.encode_request(self.endpoint, self.model, request)

    async def _dynamic_headers(self, make_headers: Callable[[], object], limit: float) -> dict[str, str]:
        what = f"the headers for {self.endpoint.provider}"
        given: Any = await credentials.call_host_function(make_headers, what, limit, kind="headers")
        try:
            return check_headers(given)
        except InvalidArgument as error:
            failed = str(error)
        raise ModelError(f"the function that gives {what} failed: {failed}", kind="headers")


@dataclass(repr=False, eq=False)  # a repr would show the key
class _HttpAttempt:
    begun: float
    key: str = ""
    url: str = ""
    """Address of the request, without the query."""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    """Headers from the host's function."""
    gate: CallGate | None = None
    """Set while the attempt holds a slot, from its sending on."""
    response: HttpResponse | None = None
    body: BodyReader | None = None
    usage: msg.Usage | None = None
    reply: msg.ModelReply | None = None
    failure: ModelError | None = None

    def close(self) -> None:
        """Release the connection and the slot in the gate."""
        if self.response is not None:
            self.response.close()
        if self.gate is not None:
            self.gate.leave()

    @property
    def request_id(self) -> str | None:
        found = None if self.response is None else retries.request_id_from(self.response.headers)
        return None if found is None else credentials.redact_text(found, self.key)


@dataclass(repr=False, eq=False)
class _CallState:
    """One call, over all its attempts."""

    model: str
    begun: float
    ledger: list[msg.Attempt] | None
    """The caller's list of attempts, which is filled even if there is no reply."""
    attempts: list[msg.Attempt] = field(default_factory=list)
    failures: int = 0
    """Failed attempts in a row."""
    failing_since: float | None = None
    renewed_key: bool = False
    """True if the key was renewed after a 401."""
    pauses: int = 0
    parts: tuple[msg.Part, ...] = ()
    """Parts of the reply before the provider paused."""
    usage: msg.Usage = field(default_factory=msg.Usage)
    """Usage before the provider paused."""
    shown: bool = False
    """True if observers have seen anything of the reply."""

    def observe(self, events: list[msg.StreamEvent], attempt: _HttpAttempt) -> list[msg.StreamEvent]:
        """Take note of events, and return those that observers see."""
        for event in events:
            if type(event) is msg.StreamUsage:
                attempt.usage = event.usage
            if type(event) is not msg.StreamStart:
                self.shown = True
        if self.parts:
            # The reply continues after a pause: it starts only once, and its usage includes that before the pause.
            events = [
                msg.StreamUsage(self.usage + event.usage) if type(event) is msg.StreamUsage else event
                for event in events
                if type(event) is not msg.StreamStart
            ]
        return events

    def retry_events(self, error: ModelError, delay: float) -> list[msg.StreamEvent]:
        """Return the events between two attempts: observers drop the failed one, but keep the text before a pause."""
        why = clip_text(f"{error.kind}: {error.message}", 300)
        note = msg.StreamNote("retry", f"try {self.failures + 1} in {delay:.1f} s after {why}")
        events: list[msg.StreamEvent] = [note]
        if self.shown:
            events = [msg.StreamReset(why), note, *msg.part_events(self.parts)]
        self.shown = bool(self.parts)
        return events

    def record(
        self,
        attempt: _HttpAttempt,
        now: float,
        error: ModelError | None = None,
        *,
        usage: msg.Usage | None,
        outcome: str = "completed",
    ) -> None:
        status = None if attempt.response is None else attempt.response.status
        entry = retries.make_attempt(self.model, error, now - attempt.begun, status, attempt.request_id, usage, outcome)
        if attempt.reply is not None and attempt.body is not None:
            reader = attempt.body.reader
            ignored = 0 if attempt.body.is_whole else reader.ignored
            entry = msgspec.structs.replace(entry, ignored=ignored, passes=reader.passes)
        self.attempts.append(entry)
        if self.ledger is not None:
            self.ledger.append(entry)

    def record_reply(self, attempt: _HttpAttempt, now: float) -> tuple[bool, msg.ModelReply]:
        """Enter a successful attempt into the ledger.

        Returns True if the provider paused, and the reply; a whole reply has the attempts.
        """
        reply = attempt.reply
        if reply is None or attempt.body is None:
            raise StreamCut(self.model)
        paused = attempt.body.reader.paused
        self.record(attempt, now, usage=reply.usage, outcome="paused" if paused else "completed")
        self.failures = 0
        self.failing_since = None
        if paused:
            self.parts += reply.parts
            self.usage += reply.usage
            return paused, reply
        provider = self.model.partition(":")[0]
        return paused, msgspec.structs.replace(
            reply,
            parts=self.parts + reply.parts,
            usage=msg.total_usage(self.attempts) if len(self.attempts) > 1 else reply.usage,
            model=f"{provider}:{reply.model}" if reply.model else self.model,
            attempts=tuple(self.attempts),
        )


def _with_advice(error: ModelError, url: str, model: str) -> str:
    """Return the message of an error, with the address and a hint if the address is the likely cause."""
    message = error.message
    if "<" in message:  # name web pages, and do not quote them
        message = _PAGE.sub(lambda found: _describe_page(found[0].encode("utf-8", "replace")), message)
    if not url:
        return message
    if error.kind in {"redirect", "web_page"}:
        return f"{message} (POST {url}: this is not the API; is base_url of {model} right?)"
    if error.status == 404:
        return f"{message} (POST {url}: is base_url right, and the name of {model}?)"
    return f"{message} (POST {url}: is base_url right?)" if error.status == 405 else message


# ---- reading a body ----

_BOM: Final = b"\xef\xbb\xbf"
_HEAD: Final = 64
"""A body that begins with so many blanks is neither events nor JSON nor a page."""
_CONTENT_EVENTS: Final = frozenset((msg.TextChunk, msg.ReasoningChunk, msg.CallStart))
_TRANSPORT_KINDS: Final = frozenset({"network", "timeout"})
_SSE_BEGINNINGS: Final = (b"data:", b"event:", b"id:", b"retry:", b":")
_PAGE: Final = re.compile(r"<(?:!doctype\s+html|html)\b.*?(?:</html\s*>|\Z)", re.IGNORECASE | re.DOTALL)
_PAGE_BEGINNING: Final = re.compile(
    rb"(?:\xef\xbb\xbf)?\s*(?:<\?xml[^>]*>\s*|<!--.*?-->\s*)*<(?:!doctype\s+html|html)\b", re.IGNORECASE | re.DOTALL
)
_TITLE: Final = re.compile(r"<title[^>]*>(.*?)</title", re.IGNORECASE | re.DOTALL)


class BodyReader:
    """Reads a body piece by piece. Only a cancellation is raised before `reply`.

    The first bytes decide the format, not the headers: server-sent events, or JSON. JSON is also a stream if each
    element of an array is a frame (`arrays`), and is parsed at its end otherwise.
    """

    def __init__(self, reader: ResponseReader, response: HttpResponse, patience: float, *, arrays: bool) -> None:
        self.reader = reader
        self.open = True
        self._arrays = arrays
        self.is_whole = "json" in response.headers.get("content-type", "").lower() and not arrays
        """True if the body is JSON that can only be parsed at its end."""
        self._pieces: list[bytes] = []
        """The body so far, if it is parsed at its end."""
        self._head: bytes | None = None if self.is_whole else b""
        """The first bytes, until the format is known; None afterwards."""
        self._chunks = response.chunks()
        self._patience = patience
        """Seconds to wait for the rest of the body after the terminal frame."""
        self._patient_until: float | None = None
        self._went_on = False
        """More of the reply came after the terminal frame: only the end of the body ends it."""
        self._decoder: SseDecoder | ArraySplitter = SseDecoder()
        self._received = 0
        self._failure: ModelError | None = None

    async def read_events(self) -> list[msg.StreamEvent]:
        """Read the next piece of the body, and return its events."""
        events: list[msg.StreamEvent] = []
        try:
            if self._patient_until is None and not self.reader.complete:
                chunk = await self._next_chunk()
            else:
                chunk = await self._next_chunk_after_end()
            if self._head is not None and chunk is not None:
                chunk = self._detect_format(chunk)
            while self.is_whole and chunk is not None:
                self._pieces.append(chunk)
                chunk = await self._next_chunk()
            frames = self._decoder.close() if chunk is None else self._decoder.feed(chunk)
            feed = self.reader.feed
            for frame in frames:
                if frame.data:
                    events += feed(frame)
            if self._patient_until is not None and not self._went_on:
                self._went_on = any(type(event) in _CONTENT_EVENTS for event in events)
        except ModelError as error:
            # Half a frame at the end only means that the stream was cut; `reply` will say so. Garbage after the
            # terminal frame does not invalidate the reply.
            if error.kind != "bad_frame" or (self.open and not self.reader.complete):
                self._failure = error
            self.open = False
        return events

    def reply(self) -> msg.ModelReply:
        """Return the whole reply, or raise the reason why it is missing."""
        failure = self._failure
        if failure is not None and (self.is_whole or failure.kind not in _TRANSPORT_KINDS):
            raise failure
        try:
            if not self.is_whole:
                return self.reader.finish()
            body = b"".join(self._pieces).removeprefix(_BOM)
            if body[:1] == b"<" and _is_web_page({}, body):
                raise _web_page(body)
            if not _begins_events(body):
                return self.reader.read_body(body)
            for frame in _all_frames(body):  # some servers send events under the name of JSON
                self.reader.feed(frame)
            return self.reader.finish()
        except StreamCut as cut:
            if failure is None:
                raise
            if failure.kind == "network":
                credentials.set_message(cut, f"{cut.message}: {failure.message}")
                raise
        raise failure

    def _detect_format(self, chunk: bytes) -> bytes:
        """Choose the decoder by the first bytes; returns the bytes to decode now."""
        head = (self._head or b"") + chunk
        body = head.removeprefix(_BOM)
        first = body.lstrip()[:1]
        if len(head) < _HEAD and (not first or _BOM.startswith(head)):
            self._head = head
            return b""
        self._head = None
        if first == b"<" and _is_web_page({}, head):
            raise _web_page(head)
        if first in {b"{", b"["}:
            self._decoder = ArraySplitter()
            self.is_whole = not self._arrays
        return body

    async def _next_chunk(self) -> bytes | None:
        try:
            chunk = await self._chunks.__anext__()
        except StopAsyncIteration:
            self.open = False
            return None
        except ModelError as error:
            # The reply may be whole: perhaps only the end of the body is missing.
            self._failure = error
            self.open = False
            return None
        self._received += len(chunk)
        if self._received > MAX_RESPONSE:
            raise ModelError(f"the answer is larger than {MAX_RESPONSE:,} bytes", kind="bad_frame")
        return chunk

    async def _next_chunk_after_end(self) -> bytes | None:
        """Read on after the terminal frame, for a short time: keep-alives must not delay the reply."""
        if self._went_on or not self.reader.complete:
            return await self._next_chunk()
        self._patient_until = self._patient_until or asyncio.get_running_loop().time() + self._patience
        try:
            async with asyncio.timeout_at(self._patient_until):
                return await self._next_chunk()
        except TimeoutError:
            self.open = False
            return None


async def _read_error_body(response: HttpResponse, patience: float) -> bytes:
    """Read the beginning of an error body, as far as it arrives in time."""
    body = bytearray()
    try:
        async with asyncio.timeout(patience):
            async for chunk in response.chunks():
                body += chunk
                if len(body) > MAX_ERROR:
                    break
    except (ModelError, TimeoutError):
        pass  # the status says enough
    said = bytes(body[:MAX_ERROR])
    # Some servers send the error as an event, because the client asked for a stream.
    return next((frame.data for frame in _all_frames(said)), said) if _begins_events(said) else said


def _begins_events(body: bytes) -> bool:
    return body[:_HEAD].removeprefix(_BOM).lstrip().startswith(_SSE_BEGINNINGS)


def _all_frames(body: bytes) -> list[Frame]:
    decoder = SseDecoder()
    return [frame for frame in (*decoder.feed(body.removeprefix(_BOM)), *decoder.close()) if frame.data]


def _is_web_page(headers: Mapping[str, str], body: bytes) -> bool:
    return "html" in headers.get("content-type", "").lower() or _PAGE_BEGINNING.match(body[:MAX_ERROR]) is not None


def _web_page(body: bytes) -> ModelError:
    return ModelError(f"the answer is {_describe_page(body)}", kind="web_page")


def _describe_page(body: bytes) -> str:
    found = _TITLE.search(body[:MAX_ERROR].decode("utf-8", "replace"))
    title = "" if found is None else " ".join(re.sub(r"<[^>]*>", " ", found[1]).split())
    return f"a web page ({clip_text(title, 100)!r})" if title else "a web page"
