"""What every model provides: a name, and a stream that ends with the whole reply."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from holdfast.errors import StreamCut
from holdfast.messages import ModelReply, ModelRequest, StreamEnd, StreamEvent

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable


@runtime_checkable
class Model(Protocol):
    """Something that answers requests. It raises a `ModelError` when it can't."""

    @property
    def name(self) -> str:
        """``provider:model``, as it is recorded."""
        ...

    def stream(self, request: ModelRequest) -> AsyncIterator[StreamEvent]:
        """The reply as it comes; the last event is `StreamEnd` with the whole of it."""
        ...


async def respond(model: Model, request: ModelRequest) -> ModelReply:
    """The whole reply at once."""
    stream = model.stream(request)
    try:
        async for event in stream:
            if isinstance(event, StreamEnd):
                return event.reply
    finally:
        close: Callable[[], Awaitable[None]] | None = getattr(stream, "aclose", None)
        if close is not None:
            await close()
    raise StreamCut(model.name)
