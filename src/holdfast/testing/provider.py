"""A fake provider on loopback: it speaks the four dialects, follows a script, and injects faults.

Like the scripted model it answers by the position in the conversation, which it reads from the request. Responses are
planned without a socket; a connection only executes the plan.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import Any, Final, Self, TypeAlias, cast

import msgspec

from holdfast.errors import InvalidArgument, ModelError, UsageError
from holdfast.messages import ModelReply, ModelRequest, StreamEnd, Text, TextChunk
from holdfast.names import check_int, check_number
from holdfast.testing import dialects
from holdfast.testing.dialects import DialectName, RequestSummary, StreamedReply
from holdfast.testing.scripted import ScriptedModel, ScriptFunction, ScriptItem


class HttpError(msgspec.Struct, frozen=True):
    """A response with an error status. `retry_after` is a number of seconds, or a text such as a date."""

    status: int
    retry_after: float | str | None = None
    message: str = "the provider was told to fail"
    code: str = ""

    def __post_init__(self) -> None:
        check_int("status", self.status, least=400, most=599)
        after = self.retry_after
        if isinstance(after, str) and not (after.isascii() and after.isprintable()):
            raise InvalidArgument("retry_after", after, "printable ASCII in one line")
        if isinstance(after, int | float):
            check_number("retry_after", after)


class Disconnect(msgspec.Struct, frozen=True):
    """The connection ends before the first byte of the response."""


class CutStream(msgspec.Struct, frozen=True):
    """The response ends after `after` chunks, without its terminal frame.

    `clean`: HTTP ends regularly. Otherwise the connection breaks.
    """

    after: int
    clean: bool = True

    def __post_init__(self) -> None:
        check_int("after", self.after)


class Stall(msgspec.Struct, frozen=True):
    """Silence after `after` chunks (None: before the first byte), for `seconds` or until the client disconnects."""

    after: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        if self.after is not None:
            check_int("after", self.after)
        if self.seconds is not None:
            check_number("seconds", self.seconds)


class BadFrame(msgspec.Struct, frozen=True):
    """A frame that is not JSON after `after` chunks; the rest follows regularly."""

    after: int = 0

    def __post_init__(self) -> None:
        check_int("after", self.after)


class ErrorFrame(msgspec.Struct, frozen=True):
    """The status is 200, but after `after` chunks the stream reports an error and ends."""

    after: int = 0
    status: int = 529
    message: str = "the provider was told to fail"

    def __post_init__(self) -> None:
        check_int("after", self.after)
        check_int("status", self.status, least=400, most=599)


ProviderFault: TypeAlias = HttpError | Disconnect | CutStream | Stall | BadFrame | ErrorFrame
FaultFunction: TypeAlias = "Callable[[ProviderRequest], ProviderFault | None]"
Faults: TypeAlias = "Iterable[ProviderFault] | Mapping[int, ProviderFault | Iterable[ProviderFault]] | FaultFunction"


def _check_fault(fault: object) -> ProviderFault:
    if not isinstance(fault, ProviderFault):
        raise InvalidArgument("fault", fault, "HttpError, Disconnect, CutStream, Stall, BadFrame or ErrorFrame")
    return fault


class FaultPlan:
    """Assigns faults to requests: each fault once, except those of a function."""

    def __init__(self, faults: Faults) -> None:
        self._function: FaultFunction | None = None
        self._next: deque[ProviderFault] = deque()
        self._at: dict[int, deque[ProviderFault]] = {}
        given: object = faults
        if callable(faults):
            self._function = faults
        elif isinstance(given, Mapping):
            for position, some in cast("Mapping[object, object]", given).items():
                listed = cast("Iterable[object]", some) if isinstance(some, Iterable) else (some,)
                self._at[check_int("position of a fault", position)] = deque(map(_check_fault, listed))
        elif isinstance(given, Iterable) and not isinstance(given, str):
            self._next.extend(map(_check_fault, cast("Iterable[object]", given)))
        else:
            raise InvalidArgument("faults", given, "a list of faults, faults by position, or a function of the request")

    def take(self, request: ProviderRequest) -> ProviderFault | None:
        if self._function is not None:
            found = self._function(request)
            return None if found is None else _check_fault(found)
        waiting = self._at.get(request.asked.position) or self._next
        return waiting.popleft() if waiting else None


_STATUSES: Final = {
    "authentication": 401,
    "billing": 402,
    "permission": 403,
    "not_found": 404,
    "rate_limited": 429,
    "server_error": 500,
    "timeout": 504,
    "overloaded": 529,
}
_CODES: Final = {"context_overflow": "context_length_exceeded", "content_filter": "content_policy_violation"}


class Pause(msgspec.Struct, frozen=True):
    """A pause in a response; None: forever."""

    seconds: float | None


class ResponsePlan(msgspec.Struct, frozen=True):
    """A response: a status, then bytes and pauses. With `close` the connection ends after them."""

    status: int
    steps: tuple[bytes | Pause, ...]
    close: bool = False


def plan_response(
    asked: RequestSummary, answer: StreamedReply, fault: ProviderFault | None, pace: float = 0.0
) -> ResponsePlan:
    """Plan the response with this answer and this fault."""
    if isinstance(fault, HttpError):
        return plan_error(asked.dialect, fault)
    if isinstance(fault, Disconnect):
        return ResponsePlan(200, (), close=True)
    kind = "text/event-stream" if asked.form == "sse" else "application/json"
    head = f"content-type: {kind}\r\ntransfer-encoding: chunked\r\n\r\n".encode()
    broken = isinstance(fault, CutStream) and not fault.clean
    steps: list[bytes | Pause] = []
    for write in _steps_with_fault(asked, answer, fault):
        if isinstance(write, Pause):
            steps.append(write)
            continue
        if steps and pace and not isinstance(steps[-1], Pause):
            steps.append(Pause(pace))
        steps.append(b"%x\r\n%b\r\n" % (len(write), write))
    if not broken:  # as part of the last write, so that the end of a body is not a separate packet
        end = b"0\r\n\r\n"
        if steps and isinstance(steps[-1], bytes):
            end = cast("bytes", steps.pop()) + end
        steps.append(end)
    if isinstance(fault, Stall) and fault.after is None:
        return ResponsePlan(200, (steps[0], *_with_head(head, steps[1:])))
    return ResponsePlan(200, _with_head(head, steps), close=broken)


def _steps_with_fault(asked: RequestSummary, answer: StreamedReply, fault: ProviderFault | None) -> list[bytes | Pause]:
    """Insert a fault into the chunks of an answer."""
    pieces, ending = list(answer.pieces), answer.ending
    every: list[bytes] = [*pieces[:-1], pieces[-1] + ending] if pieces else [ending]
    match fault:
        case CutStream():
            return [*pieces[: fault.after]]
        case Stall():
            after = fault.after or 0
            return [*every[:after], Pause(fault.seconds), *every[after:]]
        case BadFrame():
            return [*every[: fault.after], dialects.bad_frame(asked), *every[fault.after :]]
        case ErrorFrame() if asked.form == "whole":
            return [dialects.error_body(asked.dialect, fault.status, fault.message)]
        case ErrorFrame():
            return [*pieces[: fault.after], dialects.error_frame(asked, fault.status, fault.message)]
        case _:
            return [*every]


def _with_head(head: bytes, steps: list[bytes | Pause]) -> tuple[bytes | Pause, ...]:
    first = steps[0] if steps else None
    return (head + first, *steps[1:]) if isinstance(first, bytes) else (head, *steps)


def plan_error(dialect: DialectName, fault: HttpError) -> ResponsePlan:
    """Plan an error response."""
    after = fault.retry_after
    seconds = None if isinstance(after, str) else after
    body = dialects.error_body(dialect, fault.status, fault.message, code=fault.code, retry=seconds)
    retry = "" if after is None else f"retry-after: {after if isinstance(after, str) else format(after, 'g')}\r\n"
    head = f"content-type: application/json\r\n{retry}content-length: {len(body)}\r\n\r\n"
    return ResponsePlan(fault.status, (head.encode() + body,))


@dataclass(slots=True)
class ProviderRequest:
    """A received request. Header names are in lower case; the `repr` leaves out all parts that may hold a key."""

    number: int
    asked: RequestSummary
    path: str = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)
    fault: ProviderFault | None = None
    """The injected fault."""

    @property
    def json(self) -> Any:  # any JSON value
        return msgspec.json.decode(self.body)


_MAX_HEAD: Final = 64 * 1024
_MAX_BODY: Final = 64 * 1024 * 1024


class ProviderConnection(asyncio.Protocol):
    """Reads requests one after the other, and executes the plan of each response."""

    def __init__(self, handler: RequestHandler) -> None:
        self._handler = handler
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._handler.connections += 1
        self._handler.open.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._task is not None:
            self._task.cancel()
        self._handler.open.discard(self)

    async def abort(self) -> None:
        """Disconnect, and wait for the running response to end."""
        task = self._task
        if self._transport is not None:
            self._transport.abort()
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._process_buffer()

    def _process_buffer(self) -> None:
        while self._task is None and self._transport is not None:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                if len(self._buffer) > _MAX_HEAD:
                    self._reject(431, "the head is too long")
                return
            first, *lines = self._buffer[:end].decode("latin-1").split("\r\n")
            method, _, rest = first.partition(" ")
            split = (line.partition(":") for line in lines)
            headers = {name.strip().lower(): value.strip() for name, _, value in split}
            length = headers.get("content-length", "0")
            if "transfer-encoding" in headers or not (length.isascii() and length.isdigit()):
                self._reject(411, "the length of the body must be told")
                return
            if len(length) > 18 or int(length) > _MAX_BODY:
                self._reject(413, "the body is too long")
                return
            whole = end + 4 + int(length)
            if len(self._buffer) < whole:
                return
            body = bytes(self._buffer[end + 4 : whole])
            del self._buffer[:whole]
            self._serve(method, rest.partition(" ")[0], headers, body)

    def _serve(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> None:
        request = self._handler.parse(method, path, headers, body)
        if isinstance(request, ResponsePlan):
            deque(self._send(request, b""))
            return
        planned = self._handler.ready(request)
        if planned is not None and not any(type(step) is Pause for step in planned.steps):
            deque(self._send(planned, _request_id(request)))
        else:
            self._task = asyncio.create_task(self._send_slowly(request, planned))
            self._task.add_done_callback(self._sent)

    def _send(self, planned: ResponsePlan, request_id: bytes) -> Iterator[Pause]:
        """Execute a plan up to its next pause."""
        before = (_STATUS_LINES.get(planned.status) or f"HTTP/1.1 {planned.status} Unusual\r\n".encode()) + request_id
        for step in planned.steps:
            if isinstance(step, Pause):
                yield step
            elif self._transport is not None:
                self._transport.write(before + step)
                before = b""
        if planned.close and self._transport is not None:
            self._transport.close()

    async def _send_slowly(self, request: ProviderRequest, planned: ResponsePlan | None) -> None:
        """Execute a plan that must be made first, or has pauses. A disconnect of the client cancels it."""
        if planned is None:
            planned = await self._handler.plan(request)
        for pause in self._send(planned, _request_id(request)):
            await (asyncio.Event().wait() if pause.seconds is None else asyncio.sleep(pause.seconds))

    def _sent(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if (task.cancelled() or task.exception() is not None) and self._transport is not None:
            self._transport.abort()
        self._process_buffer()

    def _reject(self, status: int, message: str) -> None:
        deque(self._send(plan_error("chat", HttpError(status, message=message)), b""))
        if self._transport is not None:
            self._transport.close()
            self._transport = None


def _request_id(request: ProviderRequest) -> bytes:
    name = "request-id" if request.asked.dialect == "anthropic" else "x-request-id"
    return f"{name}: req_{request.number}\r\n".encode()


_STATUS_LINES: Final = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}

_MAX_CACHED: Final = 4_096


@dataclass(slots=True, eq=False)
class RequestHandler:
    """Plans the responses of all connections."""

    script: ScriptedModel
    faults: FaultPlan
    chunks: int
    pace: float
    keep: int
    requests: list[ProviderRequest] = field(default_factory=list)
    connections: int = 0
    open: set[ProviderConnection] = field(default_factory=set)
    _number: int = 0
    _cache: dict[RequestSummary, tuple[StreamedReply, ResponsePlan]] = field(default_factory=dict)

    def parse(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> ProviderRequest | ResponsePlan:
        """Parse a request, or plan the error response to an invalid one."""
        dialect = dialects.dialect_of_path(path)
        if dialect is None:
            return plan_error("chat", HttpError(404, message=f"nothing is served at {path[:200]!r}"))
        if method != "POST":
            return plan_error(dialect, HttpError(405, message=f"{method} is not served here"))
        try:
            asked = dialects.summarize_request(dialect, path, body)
        except msgspec.DecodeError as error:
            return plan_error(dialect, HttpError(400, message=f"the body is not valid: {error}"))
        self._number += 1
        request = ProviderRequest(self._number, asked, path, headers, body)
        self.requests.append(request)
        if len(self.requests) > self.keep:
            del self.requests[0]
        return request

    def ready(self, request: ProviderRequest) -> ResponsePlan | None:
        """Return a plan that is cached. Faults are assigned here, in the order of the requests."""
        asked = request.asked
        try:
            request.fault = self.faults.take(request)
        except Exception as error:  # a function of a test may raise anything
            return plan_error(asked.dialect, HttpError(400, message=f"the function of the faults failed: {error!r}"))
        if isinstance(request.fault, HttpError | Disconnect):
            return plan_response(asked, StreamedReply((), b""), request.fault)
        kept = self._cache.get(asked)
        if kept is None:
            return None
        answer, planned = kept
        return planned if request.fault is None else plan_response(asked, answer, request.fault, self.pace)

    async def plan(self, request: ProviderRequest) -> ResponsePlan:
        """Ask the script, and plan the response."""
        asked = request.asked
        try:
            answer, cut = await self._answer(asked)
        except ModelError as error:
            status = error.status or _STATUSES.get(error.kind) or (500 if error.retryable else 400)
            failure = HttpError(status, error.retry_after, error.message, _CODES.get(error.kind, ""))
            return plan_error(asked.dialect, failure)
        except Exception as error:  # a function of the script may raise anything
            return plan_error(asked.dialect, HttpError(400, message=f"the script failed: {error!r}"))
        planned = plan_response(asked, answer, None, self.pace)
        if asked.position in self.script.fixed:
            if len(self._cache) >= _MAX_CACHED:
                self._cache.clear()
            self._cache[asked] = (answer, planned)
        met = request.fault or (CutStream(len(answer.pieces)) if cut else None)
        return planned if met is None else plan_response(asked, answer, met, self.pace)

    async def _answer(self, asked: RequestSummary) -> tuple[StreamedReply, bool]:
        """Return the answer of the script; True if it is cut off."""
        events = [event async for event in self.script.stream(ModelRequest(messages=(), position=asked.position))]
        words = [event.text for event in events if isinstance(event, TextChunk)]
        last = events[-1]
        cut = not isinstance(last, StreamEnd)
        reply = ModelReply((Text("".join(words)),)) if cut else last.reply
        if asked.form == "whole":
            body = dialects.encode_whole_reply(asked, reply)
            return StreamedReply((body[: len(body) // 2],), body[len(body) // 2 :]), cut
        return dialects.stream_reply(asked, reply, words, self.chunks), cut


class FakeProvider:
    """Serves a script (as of `ScriptedModel`) in the four dialects, at `url`.

    The end of the path selects the dialect: ``/messages``, ``/responses``, ``/chat/completions``, ``:generateContent``
    and ``:streamGenerateContent``. A reply is streamed in `chunks` pieces, or fewer if it is too short (Google's calls
    are never split), one write each, `pace` seconds apart. Functions of the script see only the position. Each of the
    `faults` hits one request: a list the next requests, a mapping those at a position; a function decides for each
    request. `requests` has the last `keep` valid requests.
    """

    def __init__(
        self,
        script: Iterable[ScriptItem] | ScriptFunction,
        *,
        faults: Faults = (),
        chunks: int = 1,
        pace: float = 0.0,
        keep: int = 1_000,
    ) -> None:
        self._handler = RequestHandler(
            ScriptedModel(script, name="fake:provider", keep=0),
            FaultPlan(faults),
            chunks=check_int("chunks", chunks, least=1),
            pace=check_number("pace", pace),
            keep=check_int("keep", keep),
        )
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self, port: int = 0) -> None:
        """Listen on loopback; port 0 is any free port."""
        if self._server is not None:
            raise UsageError("this provider is running already")
        connect = partial(ProviderConnection, self._handler)
        # Hundreds of conversations may begin at once.
        self._server = await asyncio.get_running_loop().create_server(connect, "127.0.0.1", port, backlog=1_024)

    async def close(self) -> None:
        server, self._server = self._server, None
        if server is None:
            return
        server.close()
        await asyncio.gather(*[connection.abort() for connection in tuple(self._handler.open)])
        await server.wait_closed()

    @property
    def url(self) -> str:
        """The address, without a path."""
        if self._server is None:
            raise UsageError("this provider is not running; use it as `async with FakeProvider(...) as provider`")
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"http://{host}:{port}"

    @property
    def requests(self) -> list[ProviderRequest]:
        """The last `keep` requests."""
        return self._handler.requests

    @property
    def connections(self) -> int:
        """Number of connections so far."""
        return self._handler.connections

    @property
    def open_connections(self) -> int:
        """Number of open connections."""
        return len(self._handler.open)
