"""Reading a response: the pieces of a quick stream are read together, and no other waits."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

from holdfast.models.http import Timeouts
from holdfast.models.transport import READ_PAUSE, HttpExchange, TimeoutWatch
from holdfast.testing import SimulatedLoop, simulate

if TYPE_CHECKING:
    from collections.abc import Sequence


class Body:
    """A body of a response that comes piece by piece, as the HTTP client offers it."""

    def __init__(self, gaps: Sequence[float]) -> None:
        self.total_bytes = 0
        self._here = bytearray()
        self._left = len(gaps)
        self._news = asyncio.Event()
        self._task = asyncio.create_task(self._come(gaps))

    async def _come(self, gaps: Sequence[float]) -> None:
        for gap in gaps:
            await asyncio.sleep(gap)
            self._here += b"."
            self.total_bytes += 1
            self._left -= 1
            self._news.set()

    def is_eof(self) -> bool:
        return not self._left

    def read_nowait(self) -> bytes:
        piece, self._here = bytes(self._here), bytearray()
        return piece

    async def readany(self) -> bytes:
        while not self._here and self._left:
            self._news.clear()
            await self._news.wait()
        return self.read_nowait()


class Response:
    status = 200
    headers: dict[str, str]
    closed = False

    def __init__(self, body: Body) -> None:
        self.content = body
        self.headers = {}

    def close(self) -> None:
        self.closed = True


def read(*gaps: float) -> tuple[list[bytes], float]:
    """The pieces as they are read, and the time at which the last one is there."""

    async def reading(loop: SimulatedLoop) -> tuple[list[bytes], float]:
        exchange = HttpExchange(loop, TimeoutWatch(loop), "http://127.0.0.1/", Timeouts())
        exchange.begin_response(cast("Any", Response(Body(gaps))))
        pieces = [piece async for piece in exchange.chunks()]
        taken = loop.time()
        exchange.close()
        return pieces, taken

    return simulate(1, reading)


def test_the_pieces_of_a_quick_stream_are_read_together() -> None:
    pieces, _ = read(*[0.001] * 100)
    assert sum(map(len, pieces)) == 100
    assert len(pieces) < 100 * 0.001 / READ_PAUSE + 4


def test_a_stream_with_pauses_is_read_as_it_comes() -> None:
    pieces, taken = read(*[0.05] * 20)
    assert pieces == [b"."] * 20
    assert abs(taken - 20 * 0.05) < 0.001


def test_the_end_of_a_quick_stream_is_read_within_one_pause() -> None:
    _, taken = read(*[0.001] * 50)
    assert taken < 50 * 0.001 + READ_PAUSE + 0.001


def test_a_body_of_a_few_pieces_is_read_without_a_pause() -> None:
    pieces, taken = read(0.001, 0.001, 0.001)
    assert sum(map(len, pieces)) == 3
    assert taken < 0.004
