"""What every model provides: a name, and a stream that ends with the whole reply."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

from holdfast.errors import StreamCut
from holdfast.messages import ModelReply, ModelRequest, StreamEnd, StreamEvent

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Sequence


@runtime_checkable
class Model(Protocol):
    """Something that answers requests. It raises a `ModelError` when it can't.

    One whose replies are the same after they were written as JSON and read again may say so, with `faithful = True`;
    those of others are written and read once before anybody acts on them.
    """

    @property
    def name(self) -> str:
        """``provider:model``, as it is recorded."""
        ...

    def stream(self, request: ModelRequest) -> AsyncIterator[StreamEvent]:
        """The reply as it comes; the last event is `StreamEnd` with the whole of it."""
        ...


def stream_batches(model: Model, request: ModelRequest) -> AsyncGenerator[Sequence[StreamEvent], None]:
    """The stream of a model, to be closed by whoever reads it.

    A model that has an async generator `batches` gives all that one piece of its answer means at once, which is
    cheaper; of others each event is a batch.
    """
    together = getattr(model, "batches", None)
    return _one_by_one(model, request) if together is None else together(request)


async def _one_by_one(model: Model, request: ModelRequest) -> AsyncGenerator[Sequence[StreamEvent], None]:
    stream: Any = model.stream(request)
    try:
        async for event in cast("AsyncIterator[StreamEvent]", stream):
            yield (event,)
    finally:
        close = getattr(stream, "aclose", None)
        if close is not None:
            await close()


async def flatten_batches(batches: AsyncGenerator[Sequence[StreamEvent], None]) -> AsyncGenerator[StreamEvent, None]:
    """The events of a stream one by one."""
    async with aclosing(batches) as stream:
        async for batch in stream:
            for event in batch:
                yield event


async def respond(model: Model, request: ModelRequest) -> ModelReply:
    """The whole reply at once."""
    async with aclosing(flatten_batches(stream_batches(model, request))) as stream:
        async for event in stream:
            if isinstance(event, StreamEnd):
                return event.reply
    raise StreamCut(model.name)
