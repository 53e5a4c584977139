"""Requests of `aiohttp` that are written at once, where it would start a task for each of them.

A task has to be made, scheduled, run and told of, which takes a tenth of a small request. From Python 3.12 on aiohttp
begins such a task in place, and then nothing of this is needed.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

import aiohttp
from aiohttp.http import StreamWriter

if TYPE_CHECKING:
    from aiohttp.client_reqrep import ClientResponse
    from aiohttp.connector import Connection

_AT_ONCE: Final = 32_768
"""A request of at most so many bytes is never held up on its way out: it fits what a connection buffers."""


class _AtOnce(aiohttp.ClientRequest):
    """Written before anybody waits for the answer."""

    async def send(self, conn: Connection) -> ClientResponse:
        protocol, body = conn.protocol, self._body
        size = None if body is None or self.proxy is not None or self._continue is not None else body.size
        if size is None or size > _AT_ONCE or protocol is None or protocol.writing_paused:
            return await super().send(conn)
        writer = StreamWriter(protocol, self.loop)
        await writer.write_headers(f"{self.method} {self.url.raw_path_qs} HTTP/1.1", self.headers)
        await self.write_bytes(writer, conn)
        self.response = self.response_class(
            self.method,
            self.original_url,
            writer=None,
            continue100=None,
            timer=self._timer,
            request_info=self.request_info,
            traces=self._traces,
            loop=self.loop,
            session=self.session,
            stream_writer=writer,
        )
        return self.response


# It is written for what aiohttp does inside, so it is used with the releases for which that is known.
KNOWN: Final = aiohttp.__version__.startswith("3.14.")
REQUEST: Final[type[aiohttp.ClientRequest]] = _AtOnce if KNOWN and sys.version_info < (3, 12) else aiohttp.ClientRequest
"""What a session makes its requests of."""
