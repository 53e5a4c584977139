"""The contract of a model: a name, and a stream that ends with the whole reply."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

from holdfast.errors import StreamCut
from holdfast.messages import ModelReply, ModelRequest, StreamEnd, StreamEvent

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Sequence


@runtime_checkable
class Model(Protocol):
    """Answers requests, or raises a `ModelError`.

    A model whose replies survive a round trip through JSON may set `faithful = True`. The runtime writes and reads the
    replies of other models once before it acts on them.
    """

    @property
    def name(self) -> str:
        """``provider:model``, as it is recorded."""
        ...

    def stream(self, request: ModelRequest) -> AsyncIterator[StreamEvent]:
        """Stream the reply. The last event is `StreamEnd` with the whole reply."""
        ...


def stream_batches(model: Model, request: ModelRequest) -> AsyncGenerator[Sequence[StreamEvent], None]:
    """Stream a reply in batches. The caller has to close the stream.

    A model with an async generator `batches` yields all events of one piece of its answer at once, which is cheaper.
    Each event of another model is a batch.
    """
    batches = getattr(model, "batches", None)
    return _single_event_batches(model, request) if batches is None else batches(request)


async def _single_event_batches(model: Model, request: ModelRequest) -> AsyncGenerator[Sequence[StreamEvent], None]:
    stream: Any = model.stream(request)
    try:
        async for event in cast("AsyncIterator[StreamEvent]", stream):
            yield (event,)
    finally:
        close = getattr(stream, "aclose", None)
        if close is not None:
            await close()


async def flatten_batches(batches: AsyncGenerator[Sequence[StreamEvent], None]) -> AsyncGenerator[StreamEvent, None]:
    """Yield the events of batches one by one."""
    async with aclosing(batches) as stream:
        async for batch in stream:
            for event in batch:
                yield event


async def respond(model: Model, request: ModelRequest) -> ModelReply:
    """Return the whole reply."""
    async with aclosing(flatten_batches(stream_batches(model, request))) as stream:
        async for event in stream:
            if isinstance(event, StreamEnd):
                return event.reply
    raise StreamCut(model.name)
