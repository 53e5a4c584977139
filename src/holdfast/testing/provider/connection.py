"""One connection to the provider: it carries out what was planned."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, cast

from holdfast.testing.provider.faults import HttpError
from holdfast.testing.provider.planning import Pause, Plan, refused

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.testing.provider.desk import Desk
    from holdfast.testing.provider.requests import ProviderRequest

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
