"""Server-sent events: a stream of events for browsers and other readers over HTTP.

A web server sends what `sse_stream` yields with the media type ``text/event-stream``. Each event has its cursor as id,
so a reader that reconnects sends it as ``Last-Event-ID``, and any process on the store continues behind it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.errors import CursorInvalid, InvalidArgument, JournalMissing
from holdfast.eventloop import cancel_all
from holdfast.policy.rules import milliseconds

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from datetime import timedelta

    from holdfast.events import Event

_encode: Final = msgspec.json.Encoder().encode
_SPACES: Final = bytes.maketrans(b"\r\n", b"  ")


async def sse_stream(
    events: AsyncGenerator[Event],
    show: Callable[[Event], tuple[str, Any] | None] | None = None,
    *,
    heartbeat: timedelta | float = 15.0,
    retry: timedelta | float = 0.5,
) -> AsyncGenerator[bytes]:
    """Yield events in the format of server-sent events, and a comment whenever nothing was sent for `heartbeat`.

    `show` gives the name and the JSON data of an event for the reader, or None to leave it out; without it, all events
    are sent whole. `retry` is how long a browser waits before it reconnects. A slow reader holds up nobody: it gets a
    `Gap` where live events are missing. If the store has not reached the cursor (an older backup was restored), or the
    session is forgotten, the stream ends with an event ``reset`` and an empty id: browsers come back without one.
    Closing this stream closes `events`.
    """
    clock, seconds = asyncio.get_running_loop().time, milliseconds(heartbeat) / 1000
    coming: asyncio.Future[Event] | None = None
    try:
        yield f"retry: {milliseconds(retry)}\n\n".encode()
        due = clock() + seconds
        while True:
            coming = asyncio.ensure_future(anext(events)) if coming is None else coming
            await asyncio.wait((coming,), timeout=max(0.0, due - clock()))
            frame = None
            if coming.done():
                try:
                    event = coming.result()
                except StopAsyncIteration:
                    return
                except (CursorInvalid, JournalMissing):
                    yield b"id\nevent: reset\ndata: {}\n\n"
                    return
                coming, frame = None, _frame(event, show)
            if frame is not None or clock() >= due:
                yield frame or b":\n\n"
                due = clock() + seconds
    finally:
        if coming is not None:
            await cancel_all((coming,))
        await events.aclose()


def _frame(event: Event, show: Callable[[Event], tuple[str, Any] | None] | None) -> bytes | None:
    shown = (event.__struct_config__.tag, event) if show is None else show(event)
    if shown is None:
        return None
    name, data = shown
    if not isinstance(name, str) or not name or "\n" in name or "\r" in name:
        raise InvalidArgument("the name of a shown event", name, "one line of text")
    # Given JSON (`msgspec.Raw`) may have line breaks between its values, which would end the line.
    line = _encode(data).translate(_SPACES)
    return b"id: %b\nevent: %b\ndata: %b\n\n" % (event.cursor.encode(), name.encode(), line)
