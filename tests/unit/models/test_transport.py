"""Reading a response: the reader pauses in a quick stream, loses nothing by it, and never waits for the end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import aiohttp
import pytest

from holdfast.errors import ModelError
from holdfast.models.http import Timeouts
from holdfast.models.transport import READ_PAUSE, SMALL_PIECE, HttpExchange, TimeoutWatch
from holdfast.testing import SimulatedLoop, simulate

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence


class Protocol:
    """The connection of a body, as far as the body uses it."""

    connected = True

    def pause_reading(self) -> None: ...

    def resume_reading(self, resume_parser: bool = True) -> None: ...


class Response:
    """A response whose body comes piece by piece: each after a gap in seconds, the end with the last."""

    status = 200
    closed = False

    def __init__(self, gaps: Sequence[float], piece: bytes = b".", error: Exception | None = None) -> None:
        self.headers: dict[str, str] = {}
        self.content = aiohttp.StreamReader(cast("Any", Protocol()), 2**16, loop=asyncio.get_running_loop())
        self._task = asyncio.create_task(self._come(gaps, piece, error))

    async def _come(self, gaps: Sequence[float], piece: bytes, error: Exception | None) -> None:
        for gap in gaps:
            await asyncio.sleep(gap)
            self.content.feed_data(piece)
        if error is None:
            self.content.feed_eof()
        else:
            self.content.set_exception(error)

    def close(self) -> None:
        self.closed = True


def exchange_of(loop: SimulatedLoop, response: Response) -> HttpExchange:
    exchange = HttpExchange(loop, TimeoutWatch(loop), "http://127.0.0.1/", Timeouts())
    exchange.begin_response(cast("Any", response))
    return exchange


def read(*gaps: float, piece: bytes = b".") -> list[tuple[float, bytes]]:
    """The pieces as they are read, each with its time; the last one is the end."""

    async def reading(loop: SimulatedLoop) -> list[tuple[float, bytes]]:
        exchange = exchange_of(loop, Response(gaps, piece))
        begun = loop.time()
        pieces = [(loop.time() - begun, piece) async for piece in exchange.chunks()]
        exchange.close()
        return [*pieces, (loop.time() - begun, b"")]

    return simulate(1, reading)


def simulated(body: Callable[[SimulatedLoop], Awaitable[Any]]) -> Any:
    return simulate(1, cast("Any", body))


def test_the_pieces_of_a_quick_stream_are_read_together() -> None:
    pieces = read(*[0.001] * 100)
    assert sum(len(piece) for _, piece in pieces) == 100
    assert len(pieces) < 100 * 0.001 / READ_PAUSE + 4


def test_a_piece_of_a_quick_stream_is_read_within_one_pause() -> None:
    came = 0
    for at, piece in read(*[0.003] * 40):
        first = came + 1  # the oldest piece among those that are read now came first
        came += len(piece)
        assert at <= min(first, 40) * 0.003 + READ_PAUSE + 0.0001
    assert came == 40


def test_the_end_of_a_quick_stream_is_read_when_it_comes() -> None:
    for count in (2, 3, 4, 7, 50):
        assert abs(read(*[0.001] * count)[-1][0] - count * 0.001) < 0.0001, count


def test_a_stream_with_pauses_is_read_as_it_comes() -> None:
    pieces = read(*[0.02] * 20)
    assert [piece for _, piece in pieces] == [b"."] * 20 + [b""]
    for number, (at, _) in enumerate(pieces[:-1], 1):
        assert abs(at - number * 0.02) < 0.0001


def test_big_pieces_are_read_as_they_come() -> None:
    pieces = read(*[0.001] * 20, piece=bytes(SMALL_PIECE + 1))
    assert [len(piece) for _, piece in pieces] == [SMALL_PIECE + 1] * 20 + [0]


def test_pieces_before_an_error_are_read_before_it() -> None:
    async def failing(loop: SimulatedLoop) -> bytes:
        error = aiohttp.ClientPayloadError("the body is not complete")
        exchange = exchange_of(loop, Response([0.001] * 6, error=error))
        body = bytearray()

        async def read_all() -> None:
            nonlocal body
            async for piece in exchange.chunks():
                body += piece

        with pytest.raises(ModelError, match="not complete") as raised:
            await read_all()
        assert raised.value.kind == "network"
        assert raised.value.__context__ is None
        exchange.close()
        return bytes(body)

    assert simulated(failing) == b"......"


def test_a_cancelled_reader_stops_in_a_pause_and_leaves_no_timer() -> None:
    async def cancelling(loop: SimulatedLoop) -> None:
        exchange = exchange_of(loop, Response([0.001] * 5 + [0.02]))

        async def take() -> None:
            async for _ in exchange.chunks():
                pass

        task = asyncio.create_task(take())
        await asyncio.sleep(0.004)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()
        exchange.close()
        await asyncio.sleep(0.1)  # the pieces after it wake nobody

    simulated(cancelling)
