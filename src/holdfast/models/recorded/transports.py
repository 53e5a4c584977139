"""Transports: one writes what it carries to a file, the other answers from a file."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from holdfast.errors import RecordingDiffers, RecordingEnded
from holdfast.models.recorded.comparing import request_differences
from holdfast.models.recorded.format import (
    without_later_secrets,
    write,
    written_recording,
    written_request,
    written_response,
)
from holdfast.models.recorded.redaction import Secrets

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence
    from pathlib import Path

    from holdfast.models.recorded.format import Answer, Exchange
    from holdfast.models.transport import Response, Timeouts, Transport
    from holdfast.models.wire import Endpoint


class RecordingTransport:
    """Sends requests through another transport, and writes each exchange to a file as soon as it has ended."""

    def __init__(self, path: Path, transport: Transport, endpoint: Endpoint) -> None:
        self._path = path
        self._transport = transport
        self._endpoint = endpoint
        self._secrets = Secrets()
        self._exchanges: list[dict[str, Any] | None] = []
        """In the order of the requests; None where the response is still coming."""
        self._scrubbed = 0
        """How many secrets were known when all of them were last looked through."""

    async def open(self, url: str, headers: Mapping[str, str], body: bytes, timeouts: Timeouts) -> Response:
        """Ask, and keep the answer while it is read."""
        self._secrets.learn(url, headers, body)
        response = await self._transport.open(url, headers, body, timeouts)
        place = len(self._exchanges)
        self._exchanges.append(None)

        def ended(read: bytes) -> None:
            self._exchanges[place] = {
                "request": written_request(url, headers, body, self._secrets),
                "response": written_response(response.status, response.headers, read, self._secrets),
            }
            self._save()

        return _Copied(response, ended)

    def _save(self) -> None:
        while self._scrubbed < self._secrets.known:
            # What was learnt later may stand in what was written before.
            self._scrubbed = self._secrets.known
            self._exchanges = [
                None if exchange is None else without_later_secrets(exchange, self._secrets)
                for exchange in self._exchanges
            ]
        exchanges = [exchange for exchange in self._exchanges if exchange is not None]
        write(self._path, written_recording(self._path.stem, self._endpoint, exchanges))


class _Copied:
    """A response that keeps what was read of it."""

    def __init__(self, response: Response, ended: Callable[[bytes], None]) -> None:
        self._response = response
        self._ended: Callable[[bytes], None] | None = ended
        self._read: list[bytes] = []
        self._chunks: AsyncIterator[bytes]

    @property
    def status(self) -> int:
        return self._response.status

    @property
    def headers(self) -> Mapping[str, str]:
        return self._response.headers

    def chunks(self) -> AsyncIterator[bytes]:
        self._chunks = aiter(self._response.chunks())
        return self

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        try:
            chunk = await anext(self._chunks)
        except BaseException:
            self._end()
            raise
        self._read.append(chunk)
        return chunk

    def close(self) -> None:
        self._response.close()
        self._end()

    def _end(self) -> None:
        # Also when the connection broke: the recording then ends where the answer did, and is cut in the same place.
        ended, self._ended = self._ended, None
        if ended is not None:
            ended(b"".join(self._read))


class ReplayingTransport:
    """Answers request *n* with exchange *n* of a file; nothing goes out."""

    def __init__(self, path: Path, exchanges: Sequence[Exchange], *, check: bool = True) -> None:
        self.differences: list[tuple[int, str]] = []
        """Where requests were not those of the recording, when that is not checked: number and words."""
        self._path = path
        self._exchanges = exchanges
        self._check = check
        self._secrets = Secrets()
        self._served = 0

    @property
    def left(self) -> int:
        """Exchanges that nobody has asked for yet."""
        return len(self._exchanges) - self._served

    async def open(self, url: str, headers: Mapping[str, str], body: bytes, timeouts: Timeouts) -> Response:  # noqa: ARG002  part of the protocol
        """The next recorded answer. Raises `RecordingDiffers` or `RecordingEnded`."""
        number = self._served + 1
        if not self.left:
            raise RecordingEnded(self._path, number)
        exchange = self._exchanges[self._served]
        if exchange.request is not None:
            self._secrets.learn(url, headers, body)
            asked = written_request(url, headers, body, self._secrets)
            # Also the recorded one: it may come from somebody who took out less.
            found = tuple(request_differences(self._secrets.request(exchange.request), asked))
            if found and self._check:
                raise RecordingDiffers(self._path, number, found)
            self.differences += [(number, difference) for difference in found]
        self._served = number
        return _played(exchange.response)


class _Played(NamedTuple):
    """A response out of a file."""

    status: int
    headers: dict[str, str]
    body: bytes

    async def chunks(self) -> AsyncIterator[bytes]:
        if self.body:
            yield self.body

    def close(self) -> None:
        """There is nothing to let go."""


def _played(answer: Answer) -> _Played:
    headers = {name.lower(): value for name, value in answer.headers.items()}
    # The length and the pieces were those of the recorded connection.
    for name in ("transfer-encoding", "content-length", "content-encoding"):
        headers.pop(name, None)
    if answer.sse is not None:
        headers.setdefault("content-type", "text/event-stream")
        body = answer.sse.encode("utf-8", "surrogatepass")
    elif answer.body is not msgspec.UNSET:
        headers.setdefault("content-type", "application/json")
        body = json.dumps(answer.body).encode()
    elif answer.body_text is not None:
        body = answer.body_text.encode("utf-8", "surrogatepass")
    else:
        body = answer.body_base64
    return _Played(answer.status, headers, body)
