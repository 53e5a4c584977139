"""The provider itself: it listens on the loopback."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Self

from holdfast.bounds import check_int
from holdfast.errors import UsageError
from holdfast.testing.provider.connection import Connection
from holdfast.testing.provider.desk import Desk
from holdfast.testing.provider.faults import FaultPlan, check_seconds

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.testing.provider.faults import Faults
    from holdfast.testing.provider.requests import ProviderRequest
    from holdfast.testing.scripted import ScriptFunction, ScriptItem


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
