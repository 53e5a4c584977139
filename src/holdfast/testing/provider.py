"""A model provider on the loopback: it speaks the four dialects, follows a script, and misbehaves when it is told to.

Like the scripted model it answers by the position in the conversation, which it reads from the request. What a request
gets is planned without touching a socket; a connection only carries the plan out.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias, cast

import msgspec

from holdfast.errors import InvalidArgument, InvalidNumber, ModelError, UsageError
from holdfast.messages import ModelReply, ModelRequest, StreamEnd, Text, TextChunk
from holdfast.names import check_int
from holdfast.testing import dialects
from holdfast.testing.dialects import Streamed
from holdfast.testing.scripted import Cut, Delayed, Fault, ScriptedModel

if TYPE_CHECKING:
    from holdfast.testing.dialects import Asked, DialectName
    from holdfast.testing.scripted import ScriptFunction, ScriptItem


@dataclass(frozen=True, slots=True)
class HttpError:
    """An answer with an error status. `retry_after` is a number of seconds, or a text such as a date."""

    status: int
    retry_after: float | str | None = None
    message: str = "the provider was told to fail"
    code: str = ""

    def __post_init__(self) -> None:
        check_int("status", self.status, least=400, most=599)
        _check_line("retry_after", self.retry_after)


@dataclass(frozen=True, slots=True)
class Disconnect:
    """The connection ends before the first byte of an answer."""


@dataclass(frozen=True, slots=True)
class CutStream:
    """The answer ends after so many chunks, and never with the last frame.

    `clean`: as if it were whole, as far as HTTP can tell. Otherwise the connection breaks.
    """

    after: int
    clean: bool = True

    def __post_init__(self) -> None:
        check_int("after", self.after)


@dataclass(frozen=True, slots=True)
class Stall:
    """Silence after so many chunks (None: before the first byte), for some seconds or until somebody hangs up."""

    after: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        if self.after is not None:
            check_int("after", self.after)
        if self.seconds is not None:
            check_seconds("seconds", self.seconds)


@dataclass(frozen=True, slots=True)
class BadFrame:
    """A frame that is no JSON comes after so many chunks; the rest follows as if nothing had happened."""

    after: int = 0

    def __post_init__(self) -> None:
        check_int("after", self.after)


@dataclass(frozen=True, slots=True)
class ErrorFrame:
    """The status is 200, but after so many chunks the stream says that it failed, and ends."""

    after: int = 0
    status: int = 529
    message: str = "the provider was told to fail"

    def __post_init__(self) -> None:
        check_int("after", self.after)
        check_int("status", self.status, least=400, most=599)


ProviderFault: TypeAlias = HttpError | Disconnect | CutStream | Stall | BadFrame | ErrorFrame
FaultFunction: TypeAlias = "Callable[[ProviderRequest], ProviderFault | None]"
Faults: TypeAlias = "Iterable[ProviderFault] | Mapping[int, ProviderFault | Iterable[ProviderFault]] | FaultFunction"
_FAULTS: Final = (HttpError, Disconnect, CutStream, Stall, BadFrame, ErrorFrame)
_WANTED: Final = "HttpError, Disconnect, CutStream, Stall, BadFrame or ErrorFrame"


def _check_line(what: str, value: object) -> None:
    if isinstance(value, str) and not (value.isascii() and value.isprintable()):
        raise InvalidArgument(what, value, "printable ASCII in one line")
    if isinstance(value, int | float):
        check_seconds(what, value)


def check_seconds(what: str, value: object) -> float:
    """A span of time, or `InvalidNumber`."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise InvalidNumber(what, value, "it must be 0 seconds or more")
    return value


def _checked_fault(fault: object) -> ProviderFault:
    if not isinstance(fault, _FAULTS):
        raise InvalidArgument("fault", fault, _WANTED)
    return fault


class FaultPlan:
    """Which request meets which fault: each is met once, except those of a function."""

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
                self._at[check_int("position of a fault", position)] = deque(map(_checked_fault, listed))
        elif isinstance(given, Iterable) and not isinstance(given, str):
            self._next.extend(map(_checked_fault, cast("Iterable[object]", given)))
        else:
            raise InvalidArgument("faults", given, "a list of faults, faults by position, or a function of the request")

    def take(self, request: ProviderRequest) -> ProviderFault | None:
        if self._function is not None:
            found = self._function(request)
            return None if found is None else _checked_fault(found)
        here = self._at.get(request.asked.position)
        if here:
            return here.popleft()
        return self._next.popleft() if self._next else None


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


@dataclass(frozen=True, slots=True)
class Pause:
    """Nothing is sent for a while; None is for ever."""

    seconds: float | None


@dataclass(frozen=True, slots=True)
class Plan:
    """What goes out: a status, then bytes and pauses. With `close` the connection ends after them."""

    status: int
    steps: tuple[bytes | Pause, ...]
    close: bool = False

    @property
    def at_once(self) -> bool:
        """Nothing has to be waited for."""
        return not any(type(step) is Pause for step in self.steps)


def plan(asked: Asked, answer: Streamed, fault: ProviderFault | None, pace: float = 0.0) -> Plan:
    """What a request gets that has this answer, if all goes well, and meets this fault."""
    if isinstance(fault, HttpError):
        return refused(asked.dialect, fault)
    if isinstance(fault, Disconnect):
        return Plan(200, (), close=True)
    kind = "text/event-stream" if asked.form == "sse" else "application/json"
    head = f"content-type: {kind}\r\ntransfer-encoding: chunked\r\n\r\n".encode()
    writes = _faulty(asked, answer, fault)
    broken = isinstance(fault, CutStream) and not fault.clean
    steps: list[bytes | Pause] = []
    for number, write in enumerate(writes):
        if isinstance(write, Pause):
            steps.append(write)
            continue
        if number and pace and not isinstance(writes[number - 1], Pause):
            steps.append(Pause(pace))
        steps.append(_chunk(write))
    if not broken:
        _add(steps, b"0\r\n\r\n")
    if isinstance(fault, Stall) and fault.after is None:
        return Plan(200, (steps[0], *_headed(head, steps[1:])))
    return Plan(200, _headed(head, steps), close=broken)


def _faulty(asked: Asked, answer: Streamed, fault: ProviderFault | None) -> list[bytes | Pause]:
    """The chunks, with what is wrong about them."""
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


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _add(steps: list[bytes | Pause], data: bytes) -> None:
    """At the end of the last write, so that the end of a body is no packet of its own."""
    last = steps[-1] if steps else None
    if isinstance(last, bytes):
        steps[-1] = last + data
    else:
        steps.append(data)


def _headed(head: bytes, steps: list[bytes | Pause]) -> tuple[bytes | Pause, ...]:
    first = steps[0] if steps else None
    return (head + first, *steps[1:]) if isinstance(first, bytes) else (head, *steps)


def refused(dialect: DialectName, fault: HttpError) -> Plan:
    """An answer with an error status."""
    after = fault.retry_after
    seconds = None if isinstance(after, str) else after
    body = dialects.error_body(dialect, fault.status, fault.message, code=fault.code, retry=seconds)
    retry = "" if after is None else f"retry-after: {after if isinstance(after, str) else format(after, 'g')}\r\n"
    head = f"content-type: application/json\r\n{retry}content-length: {len(body)}\r\n\r\n"
    return Plan(fault.status, (head.encode() + body,))


def as_refusal(error: ModelError) -> HttpError:
    """How a provider tells what the script raises."""
    status = error.status or _STATUSES.get(error.kind) or (500 if error.retryable else 400)
    return HttpError(status, error.retry_after, error.message, _CODES.get(error.kind, ""))


@dataclass(slots=True)
class ProviderRequest:
    """A request as it came. Headers have small letters; what may hold a key is not in its `repr`."""

    number: int
    asked: Asked
    path: str = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)
    fault: ProviderFault | None = None
    """What it met."""

    @property
    def json(self) -> Any:  # noqa: ANN401  whatever was sent
        """The body."""
        return msgspec.json.decode(self.body)


_MOST_HEAD: Final = 64 * 1024
_MOST_BODY: Final = 64 * 1024 * 1024


class Connection(asyncio.Protocol):
    """Reads requests, one after the other, and sends what the provider planned for each."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._desk.connections += 1
        self._desk.open.add(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._transport = None
        if self._task is not None:
            self._task.cancel()
        self._desk.open.discard(self)

    async def abort(self) -> None:
        """Hang up, and wait until nothing is left of it."""
        task = self._task
        if self._transport is not None:
            self._transport.abort()
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._go_on()

    def _go_on(self) -> None:
        while self._task is None and self._transport is not None:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                if len(self._buffer) > _MOST_HEAD:
                    self._give_up(431, "the head is too long")
                return
            method, path, headers = _head(bytes(self._buffer[:end]))
            length = _length(headers)
            if not isinstance(length, int):
                self._give_up(*length)
                return
            whole = end + 4 + length
            if len(self._buffer) < whole:
                return
            body = bytes(self._buffer[end + 4 : whole])
            del self._buffer[:whole]
            self._serve(method, path, headers, body)

    def _serve(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> None:
        request = self._desk.understand(method, path, headers, body)
        if isinstance(request, Plan):
            self._send(request, b"")
            return
        planned = self._desk.ready(request)
        if planned is not None and planned.at_once:
            self._send(planned, _request_id(request))
            return
        self._task = asyncio.create_task(self._send_slowly(request, planned))
        self._task.add_done_callback(self._sent)

    def _send(self, planned: Plan, request_id: bytes) -> None:
        """All of a plan without pauses."""
        transport = self._transport
        if transport is None:
            return
        before = _status_line(planned.status) + request_id
        for step in planned.steps:
            if isinstance(step, bytes):
                transport.write(before + step)
                before = b""
        if planned.close:
            transport.close()

    async def _send_slowly(self, request: ProviderRequest, planned: Plan | None) -> None:
        """A plan that must be made first, or has pauses. It is cancelled when the client hangs up."""
        if planned is None:
            planned = await self._desk.plan(request)
        before = _status_line(planned.status) + _request_id(request)
        for step in planned.steps:
            if isinstance(step, Pause):
                await (asyncio.Event().wait() if step.seconds is None else asyncio.sleep(step.seconds))
            elif self._transport is not None:
                self._transport.write(before + step)
                before = b""
        if planned.close and self._transport is not None:
            self._transport.close()

    def _sent(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if (task.cancelled() or task.exception() is not None) and self._transport is not None:
            self._transport.abort()
        self._go_on()

    def _give_up(self, status: int, message: str) -> None:
        self._send(refused("chat", HttpError(status, message=message)), b"")
        if self._transport is not None:
            self._transport.close()
            self._transport = None


def _head(data: bytes) -> tuple[str, str, dict[str, str]]:
    first, *lines = data.decode("latin-1").split("\r\n")
    method, _, rest = first.partition(" ")
    split = (line.partition(":") for line in lines)
    return method, rest.partition(" ")[0], {name.strip().lower(): value.strip() for name, _, value in split}


def _length(headers: Mapping[str, str]) -> int | tuple[int, str]:
    """How long the body is, or the status and the words with which that is refused."""
    told = headers.get("content-length", "0")
    if "transfer-encoding" in headers or not (told.isascii() and told.isdigit()):
        return 411, "the length of the body must be told"
    return int(told) if len(told) <= 18 and int(told) <= _MOST_BODY else (413, "the body is too long")


def _status_line(status: int) -> bytes:
    return _STATUS_LINES.get(status) or f"HTTP/1.1 {status} Unusual\r\n".encode()


def _request_id(request: ProviderRequest) -> bytes:
    name = "request-id" if request.asked.dialect == "anthropic" else "x-request-id"
    return f"{name}: req_{request.number}\r\n".encode()


_STATUS_LINES: Final = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}

_MOST_KEPT: Final = 4_096


def _listed(script: object) -> tuple[ScriptItem, ...] | None:
    """The items of a script that is a list of them; it may be one that can be read once."""
    if callable(script) or isinstance(script, str) or not isinstance(script, Iterable):
        return None
    return tuple(cast("Iterable[ScriptItem]", script))


class Desk:
    """Decides what each request gets, for all connections."""

    def __init__(
        self,
        script: Iterable[ScriptItem] | ScriptFunction,
        faults: FaultPlan,
        *,
        chunks: int,
        pace: float,
        keep: int,
    ) -> None:
        listed = _listed(script)
        self._items = listed or ()
        self._script = ScriptedModel(script if listed is None else listed, name="fake:provider", keep=0)
        self._faults = faults
        self._chunks = chunks
        self._pace = pace
        self._keep = keep
        self._number = 0
        self._kept: dict[Asked, tuple[Streamed, Plan]] = {}
        self.requests: list[ProviderRequest] = []
        self.connections = 0
        self.open: set[Connection] = set()

    def understand(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> ProviderRequest | Plan:
        """The request, or what it gets because nobody can understand it."""
        dialect = dialects.dialect_of(path)
        if dialect is None:
            return refused("chat", HttpError(404, message=f"nothing is served at {path[:200]!r}"))
        if method != "POST":
            return refused(dialect, HttpError(405, message=f"{method} is not served here"))
        try:
            asked = dialects.asked(dialect, path, body)
        except msgspec.DecodeError as error:
            return refused(dialect, HttpError(400, message=f"the body is not valid: {error}"))
        self._number += 1
        request = ProviderRequest(self._number, asked, path, headers, body)
        self.requests.append(request)
        if len(self.requests) > self._keep:
            del self.requests[0]
        return request

    def ready(self, request: ProviderRequest) -> Plan | None:
        """The plan, if it is at hand. A fault is taken here, so that requests meet faults in the order they came."""
        asked = request.asked
        try:
            request.fault = self._faults.take(request)
        except Exception as error:  # noqa: BLE001  a function of a test may raise anything
            return refused(asked.dialect, HttpError(400, message=f"the function of the faults failed: {error!r}"))
        if isinstance(request.fault, HttpError | Disconnect):
            return plan(asked, Streamed((), b""), request.fault)
        kept = self._kept.get(asked)
        if kept is None:
            return None
        answer, planned = kept
        return planned if request.fault is None else plan(asked, answer, request.fault, self._pace)

    async def plan(self, request: ProviderRequest) -> Plan:
        """The plan, after the script was asked."""
        asked = request.asked
        try:
            answer, cut = await self._answer(asked)
        except ModelError as error:
            return refused(asked.dialect, as_refusal(error))
        except Exception as error:  # noqa: BLE001  a function of the script may raise anything
            return refused(asked.dialect, HttpError(400, message=f"the script failed: {error!r}"))
        planned = plan(asked, answer, None, self._pace)
        if self._is_fixed(asked.position):
            if len(self._kept) >= _MOST_KEPT:
                self._kept.clear()
            self._kept[asked] = (answer, planned)
        met = request.fault or (CutStream(len(answer.pieces)) if cut else None)
        return planned if met is None else plan(asked, answer, met, self._pace)

    async def _answer(self, asked: Asked) -> tuple[Streamed, bool]:
        """The answer of the script, and whether it is cut off."""
        request = ModelRequest(messages=(), position=asked.position)
        events = [event async for event in self._script.stream(request)]
        words = [event.text for event in events if isinstance(event, TextChunk)]
        last = events[-1]
        cut = not isinstance(last, StreamEnd)
        reply = ModelReply((Text("".join(words)),)) if cut else last.reply
        if asked.form == "whole":
            body = dialects.whole(asked, reply)
            return Streamed((body[: len(body) // 2],), body[len(body) // 2 :]), cut
        return dialects.streamed(asked, reply, words, self._chunks), cut

    def _is_fixed(self, position: int) -> bool:
        """The answer at this position depends on nothing else, and comes at once."""
        if position >= len(self._items):
            return False
        item = self._items[position]
        return not (callable(item) or isinstance(item, Delayed | Fault | Cut | BaseException))


class FakeProvider:
    """Serves a script (as `ScriptedModel` takes it) to whoever asks in one of the four dialects; see `url`.

    The dialect is known by the end of the path: ``/messages``, ``/responses``, ``/chat/completions``,
    ``:generateContent`` and ``:streamGenerateContent``. A reply is streamed in `chunks` pieces, or fewer where there is
    too little to cut (Google's calls never are), each a write of its own, `pace` seconds apart. Functions of the script
    are told the position alone.

    `faults` are met by one request each: a list by the next requests, whatever they ask, or a mapping by those at a
    position; a function of the request decides for each. `requests` has the last `keep` of those that were understood.
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
        self._desk = Desk(
            script,
            FaultPlan(faults),
            chunks=check_int("chunks", chunks, least=1),
            pace=check_seconds("pace", pace),
            keep=check_int("keep", keep),
        )
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self, port: int = 0) -> None:
        """Listen on the loopback; port 0 is any that is free."""
        if self._server is not None:
            raise UsageError("this provider is running already")
        loop = asyncio.get_running_loop()
        # Hundreds of conversations may begin at once: all of them must find room in the queue.
        self._server = await loop.create_server(lambda: Connection(self._desk), "127.0.0.1", port, backlog=1_024)

    async def close(self) -> None:
        """Hang up on everybody and stop listening."""
        server, self._server = self._server, None
        if server is None:
            return
        server.close()
        await asyncio.gather(*[connection.abort() for connection in tuple(self._desk.open)])
        await server.wait_closed()

    @property
    def url(self) -> str:
        """Where it listens, without a path."""
        if self._server is None:
            raise UsageError("this provider is not running; use it as `async with FakeProvider(...) as provider`")
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"http://{host}:{port}"

    @property
    def requests(self) -> list[ProviderRequest]:
        """What was asked, the last `keep` requests."""
        return self._desk.requests

    @property
    def connections(self) -> int:
        """Connections that were ever opened."""
        return self._desk.connections

    @property
    def open_connections(self) -> int:
        """Connections that are open now."""
        return len(self._desk.open)
