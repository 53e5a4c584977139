"""A worker: one process in its sandbox, and the pipes to and from it.

An answer mostly comes within some ten microseconds. So the event loop itself waits for it, for a moment, if it has
little else to do; where it does not come, it is left to the loop to tell.
"""

from __future__ import annotations

import asyncio
import os
import select
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from holdfast.sandbox.events import PRINTED, printed
from holdfast.sandbox.wire import Malformed

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.sandbox.spawning import Spawned

_MOMENT: Final = 0.0002
"""How long the event loop waits for an answer by itself, in seconds."""
_FEW: Final = 16
_SLICE: Final = 0.0005
"""For how long a program is driven before others have their turn, in seconds."""
_CHUNK: Final = 65536
_SPARE: Final = 16 * 2**20
_AT_ONCE: Final = 8
"""How many chunks of an answer are read before others have their turn."""
_PRINTED: Final = bytes((PRINTED,))
_SELECTABLE: Final = 1024
_END_SECONDS: Final = 10.0


class WorkerGone(Exception):
    """The worker ended, no longer answers, or says what no worker says."""

    def __init__(self, *, timed_out: bool = False) -> None:
        super().__init__("timed out" if timed_out else "gone")
        self.timed_out = timed_out


class Worker:
    """One process for one program. `told` gets what the program prints."""

    __slots__ = (
        *("_asked", "_buffer", "_ended", "_gone", "_in", "_out", "_pidfd", "_quick", "_since", "_told", "_waiters"),
        *("_made", "_most", "closed", "status"),
    )

    def __init__(
        self, made: Spawned, memory: int, told: Callable[[bytes], None], gone: Callable[[Worker], None]
    ) -> None:
        """`gone` is told when nothing of it is left. What it says is not larger than all of its `memory`."""
        self.closed = False
        self.status: int | None = None
        """With which it ended by itself."""
        self._most = 2 * memory + _SPARE
        self._told = told
        self._gone = gone
        self._buffer = bytearray()
        self._since = time.monotonic()
        """When others had their turn."""
        self._asked: asyncio.Future[bytes] | None = None
        self._ended = False
        self._waiters: list[asyncio.Future[None]] = []
        self._made = made
        self._in, self._out, self._pidfd = made.writes, made.reads, made.pidfd
        self._quick = self._out < _SELECTABLE

    async def ask(self, request: bytes, seconds: float) -> bytes:
        """What it says next, behind its length, to this request or to one before. `WorkerGone` if not within so long.

        Requests that are sent ahead of their answers must be short: a worker that can't get rid of its answers reads
        nothing.
        """
        if self.closed:
            raise WorkerGone
        if time.monotonic() - self._since > _SLICE:
            await asyncio.sleep(0)
            self._since = time.monotonic()
            if self.closed:
                raise WorkerGone
        if request:
            try:
                sent = os.write(self._in, request)
            except BlockingIOError:
                sent = 0
            except OSError as error:
                raise WorkerGone from error
            if sent < len(request):
                await self._send(memoryview(request)[sent:], seconds)
        if self._buffer:
            answer = self._taken()
            if answer is not None:
                return answer
        if self._quick and _little_to_do():
            answer = self._at_once()
            if answer is not None:
                return answer
        return await self._later(seconds)

    def kill(self) -> None:
        """End the process, whatever it does. Who waits for an answer of it gets none."""
        if self.closed:
            return
        self.closed = True
        self._made.kill()
        if self._asked is not None and not self._asked.done():
            self._asked.set_exception(WorkerGone())
        asyncio.get_running_loop().add_reader(self._pidfd, self._reap)

    async def end(self) -> None:
        """Kill it, and wait until nothing of it is left."""
        self.kill()
        if self._ended:
            return
        gone = asyncio.get_running_loop().create_future()
        self._waiters.append(gone)
        await asyncio.wait((gone,), timeout=_END_SECONDS)

    async def ended(self, seconds: float) -> None:
        """Give it a moment to end by itself, and learn with which status it did."""
        loop = asyncio.get_running_loop()
        over = loop.create_future()
        loop.add_reader(self._pidfd, _settle, over)
        try:
            await asyncio.wait((over,), timeout=seconds)
        finally:
            if not self.closed:  # else it is being waited for already
                loop.remove_reader(self._pidfd)
        if over.done() and not self.closed:
            self.status = _status(self._pidfd)

    # ---- requests ----

    async def _send(self, rest: memoryview, seconds: float) -> None:
        """What the pipe does not take at once."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(seconds):
                while rest:
                    room = loop.create_future()
                    self._asked = room
                    loop.add_writer(self._in, _settle, room)
                    try:
                        await room
                    finally:
                        self._asked = None
                        if not self._ended:
                            loop.remove_writer(self._in)
                    rest = rest[os.write(self._in, rest[:_CHUNK]) :]
        except TimeoutError as error:
            raise WorkerGone(timed_out=True) from error
        except OSError as error:
            raise WorkerGone from error

    # ---- answers ----

    def _at_once(self) -> bytes | None:
        watched = (self._out,)
        for _ in range(_AT_ONCE):
            if not select.select(watched, (), (), _MOMENT)[0]:
                break
            answer = self._read() or self._read()  # it comes in two parts
            if answer is not None:
                return answer
        self._quick = False
        return None

    async def _later(self, seconds: float) -> bytes:
        loop = asyncio.get_running_loop()
        asked: asyncio.Future[bytes] = loop.create_future()
        self._asked = asked
        begun = loop.time()
        loop.add_reader(self._out, self._readable, asked)
        late = loop.call_later(seconds, self._time_is_up, asked)
        try:
            return await asked
        finally:
            self._asked = None
            late.cancel()
            self._since = time.monotonic()
            if not self._ended:
                loop.remove_reader(self._out)
            if loop.time() - begun < _MOMENT:
                self._quick = self._out < _SELECTABLE

    def _readable(self, asked: asyncio.Future[bytes]) -> None:
        try:
            answer = self._read()
        except WorkerGone as gone:
            if not asked.done():
                asked.set_exception(gone)
            return
        if answer is not None and not asked.done():
            asked.set_result(answer)

    @staticmethod
    def _time_is_up(asked: asyncio.Future[bytes]) -> None:
        if not asked.done():
            asked.set_exception(WorkerGone(timed_out=True))

    def _read(self) -> bytes | None:
        """The answer, if all of it has come."""
        try:
            chunk = os.read(self._out, _CHUNK)
        except BlockingIOError:
            return None
        except OSError as error:
            raise WorkerGone from error
        if not chunk:
            raise WorkerGone
        if not self._buffer and len(chunk) == int.from_bytes(chunk[:4], "little") + 4 and chunk[4:5] != _PRINTED:
            return chunk
        self._buffer += chunk
        return self._taken()

    def _taken(self) -> bytes | None:
        buffer = self._buffer
        while len(buffer) >= 4:
            size = int.from_bytes(buffer[:4], "little")
            if not 0 < size <= self._most:
                raise WorkerGone
            if len(buffer) < size + 4:
                return None
            frame = bytes(buffer[: size + 4])
            del buffer[: size + 4]
            if frame[4] != PRINTED:
                return frame
            try:
                self._told(printed(frame, 4))
            except Malformed as error:
                raise WorkerGone from error
        return None

    # ---- the end ----

    def _reap(self) -> None:
        """The process is gone: let the kernel forget it."""
        with suppress(ChildProcessError):
            if os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED | os.WNOHANG) is None:
                return
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._pidfd)
        loop.remove_reader(self._out)
        loop.remove_writer(self._in)
        self._ended = True
        self._made.close()
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            _settle(waiter)
        self._gone(self)


def _little_to_do() -> bool:
    """Whether the event loop has next to nothing else to do. One that does not show that is taken at its best."""
    return len(getattr(asyncio.get_running_loop(), "_ready", ())) < _FEW


def _settle(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _status(pidfd: int) -> int | None:
    """With which status a process has ended by itself; it is still there for whoever waits for it."""
    try:
        found = os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOWAIT | os.WNOHANG)
    except ChildProcessError:
        return None
    return found.si_status if found is not None and found.si_code == os.CLD_EXITED else None
