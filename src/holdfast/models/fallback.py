"""Several models in a row: the first that works answers."""

from __future__ import annotations

import time
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.errors import InvalidArgument, ModelError, StreamCut
from holdfast.messages import StreamEnd, StreamNote, StreamReset, StreamStart, used_by
from holdfast.models.contract import Model, flatten_batches, respond, stream_batches
from holdfast.models.dialect import clip_text
from holdfast.models.retry import attach_attempts, make_attempt

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from holdfast.messages import Attempt, ModelReply, ModelRequest, StreamEvent


NO_FALLBACK_KINDS: Final = frozenset({"context_overflow", "content_filter"})
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

    def stream(self, request: ModelRequest) -> AsyncGenerator[StreamEvent, None]:
        """The reply of the first model that gives one."""
        return flatten_batches(self.batches(request))

    async def batches(self, request: ModelRequest) -> AsyncGenerator[Sequence[StreamEvent], None]:
        """The same, with all that one piece of the answer means at once."""
        attempts: list[Attempt] = []
        for number, model in enumerate(self.models, 1):
            begun = self._clock()
            shown = False
            failure: ModelError = StreamCut(model.name)
            try:
                async with aclosing(stream_batches(model, request)) as found:
                    async for batch in found:
                        end = batch[-1] if batch else None
                        if isinstance(end, StreamEnd):
                            reply = _answered(end.reply, model, attempts, self._clock() - begun)
                            yield [*batch[:-1], StreamEnd(reply)]
                            return
                        for event in batch:
                            # A reset of its own takes back what it showed.
                            shown = not isinstance(event, StreamReset) and (shown or not isinstance(event, _QUIET))
                        yield batch
            except ModelError as error:
                failure = error
            attempts += failure.attempts or _noted(request, model, failure, self._clock() - begun)
            if number == len(self.models) or failure.kind in NO_FALLBACK_KINDS:
                raise attach_attempts(failure, attempts)
            why = clip_text(f"{failure.kind}: {failure.message}", 300)
            note = StreamNote("fallback", f"{self.models[number].name} takes over from {model.name} after {why}")
            yield [StreamReset(why), note] if shown else [note]


def _noted(request: ModelRequest, model: Model, failure: ModelError, seconds: float) -> tuple[Attempt, ...]:
    """The one try of a model that keeps no ledger of its own."""
    line = make_attempt(model.name, failure, seconds=seconds, usage=failure.usage)
    if request.ledger is not None:
        request.ledger.append(line)
    return (line,)


_QUIET: Final = (StreamStart, StreamNote)


def _answered(reply: ModelReply, model: Model, before: list[Attempt], seconds: float) -> ModelReply:
    if not before:
        return reply
    own = reply.attempts or (make_attempt(model.name, None, seconds=seconds, usage=reply.usage),)
    usage = used_by(before) + reply.usage
    return msgspec.structs.replace(reply, model=reply.model or model.name, usage=usage, attempts=(*before, *own))
