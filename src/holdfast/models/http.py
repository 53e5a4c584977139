"""A model behind HTTP: asks, reads the stream, asks again where that is of use, and says what it took.

The dialect knows what the bytes mean, the transport carries them, `retry` decides; here they come together. The key is
looked up for each try and goes into a header, nowhere else.
"""

from __future__ import annotations

import asyncio
import inspect
import random
import re
import time
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast import __version__
from holdfast.errors import InvalidArgument, ModelError, StreamCut
from holdfast.eventloop import PerLoop
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
    used_by,
)
from holdfast.models.contract import flatten_batches, respond
from holdfast.models.credentials import Credentials, redact_body, redact_error, redact_text, set_message
from holdfast.models.dialect import NO_STREAM, IdentityCache, clip_text
from holdfast.models.endpoints import check_headers
from holdfast.models.limits import CallGate, CallLimits, shared_gate
from holdfast.models.retry import (
    Retry,
    attach_attempts,
    delay_from_headers,
    explain_refused_delay,
    is_retryable,
    make_attempt,
    retry_advice,
    retry_delay,
)
from holdfast.models.settings import ModelParameters
from holdfast.models.sse import ArraySplitter, SseDecoder
from holdfast.models.transport import Timeouts, shared_transport

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence

    from holdfast.messages import Attempt, ModelPass, ModelRequest, Part, StreamEvent
    from holdfast.models.credentials import ApiKey, TokenProvider
    from holdfast.models.dialect import Dialect, Endpoint, Frame, ResponseReader, WireRequest
    from holdfast.models.transport import HttpResponse, Transport


MAX_RESPONSE: Final = 256 * 1024 * 1024
"""Longest body of an answer, in bytes."""
MAX_ERROR: Final = 64 * 1024
"""How much of the body of a refusal is read."""
_BOM: Final = b"\xef\xbb\xbf"
_HEAD: Final = 64
"""So many blanks at the beginning of a body leave no doubt what it is not."""
_SAID: Final = frozenset((TextChunk, ReasoningChunk, CallStart))
_PAGE: Final = re.compile(r"<(?:!doctype\s+html|html)\b.*?(?:</html\s*>|\Z)", re.IGNORECASE | re.DOTALL)
_TITLE: Final = re.compile(r"<title[^>]*>(.*?)</title", re.IGNORECASE | re.DOTALL)
_PAGE_BEGINS: Final = re.compile(
    rb"(?:\xef\xbb\xbf)?\s*(?:<\?xml[^>]*>\s*|<!--.*?-->\s*)*<(?:!doctype\s+html|html)\b", re.IGNORECASE | re.DOTALL
)
_EVENTS: Final = (b"data:", b"event:", b"id:", b"retry:", b":")
"""What server-sent events may begin with, and JSON never does."""


class BodyReader:
    """A body that is being read. Nothing but a cancellation is raised before `reply`.

    Its first bytes say what it is, whatever its headers say: server-sent events; or JSON, which is a stream as well
    where each element of an array is a frame (`arrays`), and is read at its end otherwise.
    """

    __slots__ = (
        "_arrays",
        "_chunks",
        "_decoder",
        "_failure",
        "_head",
        "_received",
        "_rest",
        "_unsure",
        "_until",
        "fold",
        "open",
    )

    def __init__(self, fold: ResponseReader, response: HttpResponse, rest: float, *, arrays: bool = False) -> None:
        self.fold = fold
        self.open = True
        self._arrays = arrays
        self._head: bytes | None = b""
        """The first bytes, while they do not say what the body is; None afterwards."""
        self._chunks = response.chunks()
        self._rest = rest
        self._until: float | None = None
        """When nobody waits any more for what may follow the provider's last word."""
        self._unsure = False
        """More of the reply came after what was taken for its last word: only the end of the body is its end."""
        self._decoder: SseDecoder | ArraySplitter | _Whole = SseDecoder()
        self._received = 0
        self._failure: ModelError | None = None

    async def events(self) -> list[StreamEvent]:
        """What the next piece of the body means."""
        events: list[StreamEvent] = []
        try:
            if self._until is None and not self.fold.complete:
                chunk = await self._more()
            else:
                chunk = await self._rest_of()
            if self._head is not None and chunk is not None:
                chunk = self._begun(chunk)
            frames = self._decoder.close() if chunk is None else self._decoder.feed(chunk)
            feed = self.fold.feed
            for frame in frames:
                if frame.data:
                    events += feed(frame)
            if self._until is not None and not self._unsure:
                self._unsure = any(type(event) in _SAID for event in events)
        except ModelError as error:
            # Half a frame at the end is nothing but a sign that the stream was cut; `reply` will say so. And what can't
            # be read after the provider's last word takes nothing away from the reply.
            if error.kind != "bad_frame" or (self.open and not self.fold.complete):
                self._failure = error
            self.open = False
        return events

    def _begun(self, chunk: bytes) -> bytes:
        """What there is to read as soon as the form of the body is known."""
        head = (self._head or b"") + chunk
        first = head.removeprefix(_BOM).lstrip()[:1]
        if len(head) < _HEAD and (not first or _BOM.startswith(head)):
            self._head = head
            return b""
        self._head = None
        if first == b"<" and is_web_page({}, head):
            raise ModelError(f"the answer is {describe_page(head)}", kind="web_page")
        if first in {b"{", b"["}:
            self._decoder = ArraySplitter() if self._arrays else _Whole()
        return head

    async def _rest_of(self) -> bytes | None:
        """The next piece after what was taken for the provider's last word, or None when nobody waits any more."""
        if self._unsure or not self.fold.complete:
            return await self._more()
        # One span for all that still comes: whoever only says that he is there does not hold up the reply.
        self._until = self._until or asyncio.get_running_loop().time() + self._rest
        try:
            async with asyncio.timeout_at(self._until):
                return await self._more()
        except TimeoutError:
            self.open = False
            return None

    async def _more(self) -> bytes | None:
        """The next piece, or None at the end."""
        try:
            chunk = await self._chunks.__anext__()
        except StopAsyncIteration:
            self.open = False
            return None
        except ModelError as error:
            # The reply may be whole nevertheless: its last frame was here, and what is missing is the end of the body.
            self._failure = error
            self.open = False
            return None
        self._received += len(chunk)
        if self._received > MAX_RESPONSE:
            raise _too_long(MAX_RESPONSE)
        return chunk

    @property
    def at_once(self) -> bool:
        """Whether the body can only be read at its end."""
        return type(self._decoder) is _Whole

    def reply(self) -> ModelReply:
        """The whole reply, or why there is none."""
        failure = self._failure
        if failure is not None and (self.at_once or failure.kind not in _OF_THE_WAY):
            raise failure
        try:
            return self._decoder.read(self.fold) if type(self._decoder) is _Whole else self.fold.finish()
        except StreamCut as cut:
            if failure is None:
                raise
            if failure.kind == "network":
                set_message(cut, f"{cut.message}: {failure.message}")
                raise
        raise failure


class _Whole:
    """A body that is read at its end."""

    __slots__ = ("_pieces",)

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def feed(self, chunk: bytes) -> list[Frame]:
        self._pieces.append(chunk)
        return []

    def close(self) -> list[Frame]:
        return []

    def read(self, fold: ResponseReader) -> ModelReply:
        return fold.read_body(b"".join(self._pieces))


_OF_THE_WAY: Final = frozenset({"network", "timeout"})
"""Failures of what carries the bytes; others are the provider's own words, or about them."""


async def read_whole_body(response: HttpResponse) -> bytes:
    """A body that is no stream."""
    pieces: list[bytes] = []
    size = 0
    async for chunk in response.chunks():
        size += len(chunk)
        if size > MAX_RESPONSE:
            raise _too_long(MAX_RESPONSE)
        pieces.append(chunk)
    return b"".join(pieces)


def reply_from_body(fold: ResponseReader, body: bytes) -> ModelReply:
    """The reply in a body that is said to be JSON. Some send events under that name."""
    if not body[:_HEAD].removeprefix(_BOM).lstrip().startswith(_EVENTS):
        return fold.read_body(body)
    decoder = SseDecoder()
    for frame in (*decoder.feed(body), *decoder.close()):
        if frame.data:
            fold.feed(frame)
    return fold.finish()


async def read_error_body(response: HttpResponse, rest: float) -> bytes:
    """The words of a refusal, as far as they come in time and are of use."""
    body = bytearray()
    try:
        async with asyncio.timeout(rest):
            async for chunk in response.chunks():
                body += chunk
                if len(body) > MAX_ERROR:
                    break
    except (ModelError, TimeoutError):
        pass  # the status says enough
    said = bytes(body[:MAX_ERROR])
    if not said[:_HEAD].removeprefix(_BOM).lstrip().startswith(_EVENTS):
        return said
    decoder = SseDecoder()  # a stream was asked for, and some refuse in the form of one
    return next((frame.data for frame in (*decoder.feed(said), *decoder.close()) if frame.data), said)


def is_web_page(headers: Mapping[str, str], body: bytes) -> bool:
    """Whether an answer is a web page, by its content type or by how it begins."""
    return "html" in headers.get("content-type", "").lower() or _PAGE_BEGINS.match(body[:MAX_ERROR]) is not None


def describe_page(body: bytes) -> str:
    """A web page in a few words: its title, where it has one."""
    found = _TITLE.search(body[:MAX_ERROR].decode("utf-8", "replace"))
    title = "" if found is None else " ".join(re.sub(r"<[^>]*>", " ", found[1]).split())
    return f"a web page ({clip_text(title, 100)!r})" if title else "a web page"


def replace_pages(text: str) -> str:
    """A message in which each web page that somebody put into it is named and not quoted."""
    if "<" not in text:
        return text
    return _PAGE.sub(lambda found: describe_page(found[0].encode("utf-8", "replace")), text)


def _too_long(limit: int) -> ModelError:
    return ModelError(f"the answer is larger than {limit:,} bytes", kind="bad_frame")


MAX_PAUSES: Final = 32
"""How often an answer that the provider interrupted is continued."""
_NO_USAGE: Final = Usage()
_REQUEST_IDS: Final = (
    "request-id",
    "x-request-id",
    "apim-request-id",
    "x-ms-request-id",
    "x-goog-request-id",
    "cf-ray",
)


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
        limits: CallLimits | CallGate = CallLimits(),  # noqa: B008
        timeouts: Timeouts = Timeouts(),  # noqa: B008
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        chance: Callable[[], float] = random.random,
        unsupported: Iterable[str] | None = None,
        efforts: Iterable[str] | None = None,
        token_provider: TokenProvider | None = None,
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
        self._credentials = Credentials(endpoint, api_key, token_provider)
        self._headers_now = headers
        self._adjusted = IdentityCache(ModelParameters(endpoint, model, unsupported, efforts).adjust)
        self._gates = PerLoop(partial(_gate, endpoint, limits))
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
        """What it says was read from JSON, so it reads back as it is after it was written down."""
        return type(self) is HttpModel

    async def respond(self, request: ModelRequest) -> ModelReply:
        """The whole reply at once."""
        return await respond(self, request)

    def stream(self, request: ModelRequest) -> AsyncGenerator[StreamEvent, None]:
        """The reply as it comes, over as many tries as it takes."""
        return flatten_batches(self.batches(request))

    async def batches(self, request: ModelRequest) -> AsyncGenerator[Sequence[StreamEvent], None]:
        """The same, with all that one piece of the answer means at once."""
        adjusted = self._adjusted(request.settings)
        if adjusted.notes:
            request = msgspec.structs.replace(request, settings=adjusted.settings)
        wire = self.dialect.encode_request(self.endpoint, self.model, request)
        if adjusted.notes or wire.notes or wire.dropped:
            yield _notes(adjusted.notes + wire.notes, wire.dropped)
        call = _CallState(self._clock(), request.ledger)
        while True:
            ask = _Attempt(self._clock())
            try:
                await self._ask(wire, call, ask)
                while ask.reading is not None and ask.reading.open:
                    batch = call.seen(await ask.reading.events(), ask)
                    if batch:
                        yield batch
                ask.settle()
            except ModelError as error:
                ask.failure = error
            except (asyncio.CancelledError, GeneratorExit):
                call.left(ask, self.name, self._clock())
                raise
            finally:
                ask.close()
            if ask.failure is not None:
                wait = self._failed(call, ask, ask.failure)
                if wait is None:
                    raise attach_attempts(ask.failure, call.attempts)
                yield call.reset(ask.failure, wait)
                await self._sleep(wait)
                continue
            whole = [] if ask.whole is None else call.seen(_events_of_reply(ask.whole, self.name), ask)
            reply = call.answered(ask, self.name, self._clock())
            if not ask.paused:
                yield [*whole, StreamEnd(reply)]
                return
            if whole:
                yield whole
            wire = self._continued(request, call)

    async def _ask(self, wire: WireRequest, call: _CallState, ask: _Attempt) -> None:
        """Send the request; then `ask` has the answer, or the stream in which it comes."""
        timeouts = self.timeouts if self.timeouts.total is None else self._timeouts_left(call, self.timeouts.total)
        ask.key = self._credentials.unasked() if not self._credentials.asked else await self._keyed(timeouts)
        if self._headers_now is not None:
            ask.headers = await self._dynamic_headers(self._headers_now, timeouts)
        place = self._gates.here()
        if not place.enter_now():
            await _entered(place, timeouts.total)
        ask.place = place
        ask.begun = self._clock()
        url = f"{self._base}{wire.path}"
        # The headers have no name here, so that nobody who collects the locals of a traceback finds the key.
        try:
            response = await self.transport.open(url, self._authorised(wire, ask), wire.body, timeouts)
        except (ModelError, asyncio.CancelledError) as error:
            raise error.with_traceback(None) from None  # the frames below hold the headers, and the key in them
        ask.response = response
        ask.url = url.partition("?")[0]  # a query may hold what nobody should read in a log
        if not 200 <= response.status < 300:
            raise await self._refused(response, ask)
        kind = response.headers.get("content-type", "").lower()
        if "html" in kind:
            page = describe_page(await read_error_body(response, self.timeouts.rest))
            raise ModelError(f"the answer is {page}", kind="web_page")
        fold = self.dialect.reader(self.endpoint, self.model)
        arrays = self.dialect.streams_json_arrays
        if "json" in kind and not arrays:
            body = await read_whole_body(response)
            if body[:1] == b"<" and is_web_page({}, body):
                raise ModelError(f"the answer is {describe_page(body)}", kind="web_page")
            ask.whole = ask.reply = reply_from_body(fold, body)
            ask.paused, ask.passes = fold.paused, fold.passes
        else:
            ask.reading = BodyReader(fold, response, self.timeouts.rest, arrays=arrays)

    async def _refused(self, response: HttpResponse, ask: _Attempt) -> ModelError:
        said = redact_body(await read_error_body(response, self.timeouts.rest), ask.key, *ask.headers.values())
        page = is_web_page(response.headers, said)
        if page:
            said = f"the answer is {describe_page(said)}".encode()
        error = self.dialect.classify_error(response.status, response.headers, said)
        if 300 <= response.status < 400:
            error = _redirected(error, response.headers.get("location", ""))
        elif page and response.status < 500 and error.kind in {"bad_request", "not_found"}:
            error.kind, error.retryable = "web_page", False
        if error.status is None:
            error.status = response.status
        if error.retry_after is None:
            error.retry_after = delay_from_headers(response.headers, time.time())
        return error

    def _failed(self, call: _CallState, ask: _Attempt, error: ModelError) -> float | None:
        """Enter a failure into the ledger; the pause before the next try, or None."""
        now = self._clock()
        redact_error(error, ask.key, *ask.headers.values())
        set_message(error, _advised(error, ask.url, self.name))
        if error.request_id is None:
            error.request_id = ask.request_id
        line = make_attempt(
            self.name,
            error,
            seconds=now - ask.begun,
            status=ask.status,
            request_id=ask.request_id,
            usage=error.usage or ask.usage,
        )
        call.note(line)
        call.failures += 1
        if call.failing_since is None:
            call.failing_since = now
        elapsed = now - call.failing_since
        told = None if ask.response is None else retry_advice(ask.response.headers)
        wait = retry_delay(
            self.retry, error, failures=call.failures, elapsed=elapsed, chance=self._chance(), advice=told
        )
        total = self.timeouts.total
        left = None if total is None else call.begun + total - now
        if wait is not None and left is not None and wait >= left:
            wait = None
        if wait is None and self._renews(call, error):
            call.renewed = True
            return 0.0
        if wait is None and call.failures < self.retry.attempts and is_retryable(error, told):
            why = explain_refused_delay(self.retry, error, elapsed=elapsed, left=left)
            set_message(error, f"{error.message} ({why})" if why else error.message)
        return wait

    def _renews(self, call: _CallState, error: ModelError) -> bool:
        """Whether to ask once more with another key: one that a function gave may have expired or been revoked."""
        spare = call.failures < self.retry.attempts and not call.renewed
        return spare and error.status == 401 and self._credentials.asked

    def _continued(self, request: ModelRequest, call: _CallState) -> WireRequest:
        """The provider paused in the middle of its turn: it gets back what it said, and goes on."""
        call.pauses += 1
        if call.pauses > MAX_PAUSES:
            message = f"{self.name} paused {call.pauses:,} times in one reply; the limit is {MAX_PAUSES:,}"
            raise attach_attempts(ModelError(message, kind="paused"), call.attempts)
        said = AssistantMessage(f"pause.{call.pauses}", call.kept)
        # What is kept with the conversation has no place for half a reply.
        asked = msgspec.structs.replace(request, messages=(*request.messages, said), wire=None)
        return self.dialect.encode_request(self.endpoint, self.model, asked)

    def _timeouts_left(self, call: _CallState, total: float) -> Timeouts:
        left = call.begun + total - self._clock()
        if left <= 0:
            raise ModelError(f"the call of {self.name} took longer than it may take", kind="timeout")
        return msgspec.structs.replace(self.timeouts, total=left)

    async def _keyed(self, timeouts: Timeouts) -> str:
        """The key; a function that gives none in time is as good as one that fails."""
        most = _patience(timeouts)
        try:
            async with asyncio.timeout(most):
                return await self._credentials.key()
        except TimeoutError:
            message = f"the function that gives the key for {self.endpoint.provider} took longer than {most:g} s"
            raise ModelError(message, kind="authentication") from None

    async def _dynamic_headers(self, source: Callable[[], object], timeouts: Timeouts) -> dict[str, str]:
        """The headers that somebody's function gives for this try."""
        most = _patience(timeouts)
        try:
            async with asyncio.timeout(most):
                given: Any = source()
                return check_headers(await given if inspect.isawaitable(given) else given)
        except TimeoutError:
            failed = f"took longer than {most:g} s"
        except InvalidArgument as error:
            failed = f"failed: {error}"
        except Exception as error:  # noqa: BLE001  somebody else's function
            failed = f"failed with {type(error).__name__}"
        # Raised out here, because what that function raised may tell more than anybody should read.
        raise ModelError(f"the function that gives the headers for {self.endpoint.provider} {failed}", kind="headers")

    def _authorised(self, wire: WireRequest, ask: _Attempt) -> dict[str, str]:
        return {**self._headers, **ask.headers, **wire.headers, **self._credentials.header(ask.key)}


class _Attempt:
    """One try while it runs."""

    key = ""
    url = ""
    """Where the question went, without the query."""
    headers: Mapping[str, str] = MappingProxyType({})
    """Those that a function gave for this try."""
    place: CallGate | None = None
    response: HttpResponse | None = None
    reading: BodyReader | None = None
    """The answer, where it comes as a stream."""
    whole: ModelReply | None = None
    """The answer, where it came at once."""
    usage: Usage | None = None
    reply: ModelReply | None = None
    paused = False
    passes: tuple[ModelPass, ...] = ()
    failure: ModelError | None = None

    def __init__(self, begun: float) -> None:
        self.begun = begun

    def settle(self) -> None:
        """The stream is at its end: there is a reply, or an error says why there is none."""
        if self.reading is not None:
            self.reply = self.reading.reply()
            self.paused, self.passes = self.reading.fold.paused, self.reading.fold.passes
            if self.reading.at_once:
                self.whole = self.reply

    def close(self) -> None:
        """Let go of the connection, and of the place among the calls at once."""
        if self.response is not None:
            self.response.close()
        if self.place is not None:
            self.place.leave()

    @property
    def status(self) -> int | None:
        return None if self.response is None else self.response.status

    @property
    def request_id(self) -> str | None:
        if self.response is None:
            return None
        headers = self.response.headers
        for name in _REQUEST_IDS:
            if (found := headers.get(name)) is not None:
                return redact_text(clip_text(found, 200), self.key)
        return None


class _CallState:
    """One question, over all its tries."""

    failures = 0
    """In a row."""
    failing_since: float | None = None
    renewed = False
    """Whether another key was asked for after a refusal."""
    pauses = 0
    kept: tuple[Part, ...] = ()
    """What the provider said before it paused."""
    usage = _NO_USAGE
    shown = False
    """Whether an observer has seen anything of the reply."""

    def __init__(self, begun: float, ledger: list[Attempt] | None) -> None:
        self.begun = begun
        self.attempts: list[Attempt] = []
        self.ledger = ledger
        """Where whoever asked reads of the tries also if there is no reply."""

    def seen(self, events: list[StreamEvent], ask: _Attempt) -> list[StreamEvent]:
        """Events of the fold as observers see them; what they tell is noted."""
        if self.kept:
            return self._seen_again(events, ask)
        for event in events:
            if type(event) is StreamUsage:
                ask.usage = event.usage
            if type(event) is not StreamStart:  # nobody has seen anything of the reply before
                self.shown = True
        return events

    def _seen_again(self, events: list[StreamEvent], ask: _Attempt) -> list[StreamEvent]:
        """The same after a pause: the reply goes on, and what was used before it counts, too."""
        shown: list[StreamEvent] = []
        for event in events:
            if type(event) is StreamUsage:
                ask.usage = event.usage
                shown.append(StreamUsage(self.usage + event.usage))
            elif type(event) is not StreamStart:
                shown.append(event)
        self.shown = self.shown or bool(shown)
        return shown

    def note(self, line: Attempt) -> None:
        """Enter a try into the ledger."""
        self.attempts.append(line)
        if self.ledger is not None:
            self.ledger.append(line)

    def left(self, ask: _Attempt, name: str, now: float) -> None:
        """Nobody waits for the answer any more. A question that was never sent is no try."""
        if ask.place is not None:
            status, request_id = ask.status, ask.request_id
            seconds = now - ask.begun
            line = make_attempt(
                name, None, seconds=seconds, status=status, request_id=request_id, usage=ask.usage, outcome="cancelled"
            )
            self.note(line)

    def reset(self, error: ModelError, wait: float) -> list[StreamEvent]:
        """What observers are told between two tries."""
        events: list[StreamEvent] = []
        why = clip_text(f"{error.kind}: {error.message}", 300)
        if self.shown:
            events.append(StreamReset(why))
        events.append(StreamNote("retry", f"try {self.failures + 1} in {wait:.1f} s after {why}"))
        if self.shown and self.kept:
            events += _events_of(self.kept)  # this much still counts
        self.shown = bool(self.kept)
        return events

    def answered(self, ask: _Attempt, name: str, now: float) -> ModelReply:
        """The reply so far, with who gave it and every try."""
        reply = ask.reply
        if reply is None:
            raise StreamCut(name)
        line = make_attempt(
            name,
            None,
            seconds=now - ask.begun,
            status=ask.status,
            request_id=ask.request_id,
            usage=reply.usage,
            outcome="paused" if ask.paused else "completed",
        )
        ignored = 0 if ask.reading is None else ask.reading.fold.ignored
        if ignored or ask.passes:
            line = msgspec.structs.replace(line, ignored=ignored, passes=ask.passes)
        self.note(line)
        self.failures = 0
        self.failing_since = None
        if ask.paused:
            self.kept += reply.parts
            self.usage += reply.usage
            return reply
        provider = name.partition(":")[0]
        return msgspec.structs.replace(
            reply,
            parts=self.kept + reply.parts if self.kept else reply.parts,
            usage=used_by(self.attempts) if len(self.attempts) > 1 else reply.usage,
            model=f"{provider}:{reply.model}" if reply.model else name,
            attempts=tuple(self.attempts),
        )


def _notes(changed: tuple[str, ...], dropped: int) -> list[StreamEvent]:
    """What is not sent as it was given."""
    notes: list[StreamEvent] = [StreamNote("settings_changed", "; ".join(changed))] if changed else []
    if dropped:
        notes.append(StreamNote("replay_dropped", f"{dropped} parts that another model or address made are left out"))
    return notes


def _redirected(error: ModelError, location: str) -> ModelError:
    """A redirect is not followed: it would carry the key elsewhere."""
    to = clip_text(location.partition("?")[0], 200)
    made = ModelError(f"a redirect to {to}" if to else "a redirect", kind="redirect", status=error.status)
    made.request_id = error.request_id
    return made


def _advised(error: ModelError, url: str, model: str) -> str:
    """What went wrong, with the address that was asked and what to check, where the address is the likely cause."""
    words = replace_pages(error.message)
    if not url:
        return words
    if error.kind in {"redirect", "web_page"}:
        return f"{words} (POST {url}: this is not the API; is base_url of {model} right?)"
    if error.status == 404:
        return f"{words} (POST {url}: is base_url right, and the name of {model}?)"
    return f"{words} (POST {url}: is base_url right?)" if error.status == 405 else words


def _patience(timeouts: Timeouts) -> float:
    """How long somebody's function may take."""
    return timeouts.connect if timeouts.total is None else min(timeouts.connect, timeouts.total)


def _gate(endpoint: Endpoint, limits: CallLimits | CallGate) -> CallGate:
    return limits if isinstance(limits, CallGate) else shared_gate(endpoint, limits)


async def _entered(place: CallGate, total: float | None) -> None:
    if total is None:
        await place.enter()
        return
    try:
        async with asyncio.timeout(total):
            await place.enter()
    except TimeoutError:
        raise ModelError("the call waited for its turn longer than it may take", kind="timeout") from None


def _events_of_reply(reply: ModelReply, name: str) -> list[StreamEvent]:
    """A reply that came at once, as if it had been streamed."""
    return [StreamStart(reply.model or name), *_events_of(reply.parts, grows=False), StreamUsage(reply.usage)]


def _events_of(parts: Iterable[Part], *, grows: bool = True) -> list[StreamEvent]:
    """Parts as they would have come. Arguments that did not grow come with the end of their call."""
    events: list[StreamEvent] = []
    for part in parts:
        if type(part) is ToolCall:
            events.append(CallStart(part.id, part.name))
            if grows:
                sent = encode(part.arguments).decode() if part.arguments is not None else part.malformed or ""
                events.append(CallChunk(part.id, sent))
            events.append(CallEnd(part))
        elif (type(part) is Text or type(part) is Refusal) and part.text:
            events.append(TextChunk(part.text))
        elif type(part) is Reasoning and part.text:
            events.append(ReasoningChunk(part.text))
    return events
