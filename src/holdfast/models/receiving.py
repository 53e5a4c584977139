"""Reading the body of an answer: a stream to its end, whatever the end is, or all of it within a limit."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from holdfast.errors import ModelError, StreamCut
from holdfast.models.credentials import say
from holdfast.models.sse import SseDecoder

if TYPE_CHECKING:
    from holdfast.messages import ModelReply, StreamEvent
    from holdfast.models.transport import Response
    from holdfast.models.wire import Fold

MAX_RESPONSE: Final = 256 * 1024 * 1024
"""Longest body of an answer, in bytes."""
MAX_ERROR: Final = 64 * 1024
"""How much of the body of a refusal is read."""


class Reading:
    """A stream that is being read. Nothing but a cancellation is raised before `reply`."""

    __slots__ = ("_chunks", "_decoder", "_failure", "_received", "_rest", "_until", "fold", "open")

    def __init__(self, fold: Fold, response: Response, rest: float) -> None:
        self.fold = fold
        self.open = True
        self._chunks = response.chunks()
        self._rest = rest
        self._until: float | None = None
        self._decoder = SseDecoder()
        self._received = 0
        self._failure: ModelError | None = None

    async def events(self) -> list[StreamEvent]:
        """What the next piece of the body means."""
        events: list[StreamEvent] = []
        try:
            chunk = await self._next()
            frames = self._decoder.close() if chunk is None else self._decoder.feed(chunk)
            for frame in frames:
                if frame.data:
                    events += self.fold.feed(frame)
        except ModelError as error:
            # Half a frame at the end is nothing but a sign that the stream was cut; `reply` will say so. And what can't
            # be read after the provider's last word takes nothing away from the reply.
            if error.kind != "bad_frame" or (self.open and not self.fold.complete):
                self._failure = error
            self.open = False
        return events

    async def _next(self) -> bytes | None:
        """The next piece, or None at the end."""
        try:
            if self.fold.complete:
                # One span for all that still comes: whoever only says that he is there does not hold up the reply.
                loop = asyncio.get_running_loop()
                self._until = self._until or loop.time() + self._rest
                async with asyncio.timeout_at(self._until):
                    chunk = await self._chunks.__anext__()
            else:
                chunk = await self._chunks.__anext__()
        except (StopAsyncIteration, TimeoutError):
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

    def reply(self) -> ModelReply:
        """The whole reply, or why there is none."""
        failure = self._failure
        if failure is not None and failure.kind not in _OF_THE_WAY:
            raise failure
        try:
            return self.fold.finish()
        except StreamCut as cut:
            if failure is None:
                raise
            if failure.kind == "network":
                say(cut, f"{cut.message}: {failure.message}")
                raise
        raise failure


_OF_THE_WAY: Final = frozenset({"network", "timeout"})
"""Failures of what carries the bytes; others are the provider's own words, or about them."""


async def whole_body(response: Response) -> bytes:
    """A body that is no stream."""
    pieces: list[bytes] = []
    size = 0
    async for chunk in response.chunks():
        size += len(chunk)
        if size > MAX_RESPONSE:
            raise _too_long(MAX_RESPONSE)
        pieces.append(chunk)
    return b"".join(pieces)


async def refusal_body(response: Response, rest: float) -> bytes:
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
    return bytes(body[:MAX_ERROR])


def _too_long(limit: int) -> ModelError:
    return ModelError(f"the answer is larger than {limit:,} bytes", kind="bad_frame")
