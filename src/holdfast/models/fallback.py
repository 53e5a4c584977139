"""Several models in a row: the first that works answers."""

from __future__ import annotations

import time
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from holdfast.errors import InvalidArgument, ModelError, StreamCut
from holdfast.messages import StreamEnd, StreamNote, StreamReset, StreamStart
from holdfast.models.contract import Model, respond
from holdfast.models.retry import attempt, blame
from holdfast.models.wire import bounded

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence

    from holdfast.messages import Attempt, ModelReply, ModelRequest, StreamEvent

STAYS: Final = frozenset({"context_overflow", "content_filter"})
"""Failures that are about the conversation and not about who was asked.

A conversation that is too long is shortened by the turn, which keeps the model that was meant; sending all of it to
another one that happens to take it would hide that, at a price. What one provider filters out is not taken to another.
"""


class Fallback:
    """Asks the first model; when it fails for good, after all its own tries, the next one.

    The tries of all of them are in the reply, and in the error when none could answer.
    """

    def __init__(self, models: Sequence[Model], *, clock: Callable[[], float] = time.monotonic) -> None:
        if not isinstance(models, list | tuple) or not models:
            raise InvalidArgument("models", models, "a list of at least one model")
        for model in models:
            if not isinstance(model, Model):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers may be untyped
                raise InvalidArgument("model", model, "a model")
        self.models: tuple[Model, ...] = tuple(models)
        self.name = " | ".join(model.name for model in self.models)
        self._clock = clock

    def __repr__(self) -> str:
        return f"Fallback({self.name!r})"

    async def respond(self, request: ModelRequest) -> ModelReply:
        """The whole reply at once."""
        return await respond(self, request)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamEvent, None]:
        """The reply of the first model that gives one."""
        attempts: list[Attempt] = []
        for number, model in enumerate(self.models, 1):
            begun = self._clock()
            shown = False
            failure: ModelError = StreamCut(model.name)
            try:
                async with aclosing(_events(model, request)) as events:
                    async for event in events:
                        if isinstance(event, StreamEnd):
                            seconds = self._clock() - begun
                            yield StreamEnd(_answered(event.reply, model, attempts, seconds))
                            return
                        # A reset of its own takes back what it showed.
                        shown = not isinstance(event, StreamReset) and (shown or not isinstance(event, _QUIET))
                        yield event
            except ModelError as error:
                failure = error
            failed = attempt(model.name, failure, seconds=self._clock() - begun)
            attempts += failure.attempts or (failed,)
            if number == len(self.models) or failure.kind in STAYS:
                raise blame(failure, attempts)
            why = bounded(f"{failure.kind}: {failure.message}", 300)
            if shown:
                yield StreamReset(why)
            yield StreamNote("fallback", f"{self.models[number].name} takes over from {model.name} after {why}")


_QUIET: Final = (StreamStart, StreamNote)


async def _events(model: Model, request: ModelRequest) -> AsyncGenerator[StreamEvent, None]:
    """The stream of a model, let go at once when nobody reads on."""
    stream: Any = model.stream(request)
    try:
        async for event in cast("AsyncIterator[StreamEvent]", stream):
            yield event
    finally:
        close = getattr(stream, "aclose", None)
        if close is not None:
            await close()


def _answered(reply: ModelReply, model: Model, before: list[Attempt], seconds: float) -> ModelReply:
    if not before:
        return reply
    own = reply.attempts or (attempt(model.name, None, seconds=seconds, usage=reply.usage),)
    return msgspec.structs.replace(reply, model=reply.model or model.name, attempts=(*before, *own))
