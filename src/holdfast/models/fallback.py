"""Fallback: several models in a row, of which the first that works answers."""

from __future__ import annotations

import time
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.errors import InvalidArgument, ModelError, StreamCut
from holdfast.messages import StreamEnd, StreamNote, StreamReset, StreamStart, total_usage
from holdfast.models.contract import Model, flatten_batches, respond, stream_batches
from holdfast.models.json_values import clip_text
from holdfast.models.retry import attach_attempts, make_attempt

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from holdfast.messages import Attempt, ModelReply, ModelRequest, StreamEvent


NO_FALLBACK_KINDS: Final = frozenset({"context_overflow", "content_filter"})
"""Errors of the conversation, not of the model.

The turn shortens a conversation that is too long, and keeps its model; another model that happens to take it would hide
that, at a price. Content that one provider filters is not taken to another.
"""


class Fallback:
    """Calls the first model and, when all its attempts have failed, the next one.

    The reply, or the error if all fail, holds the attempts of all models.
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
        return await respond(self, request)

    def stream(self, request: ModelRequest) -> AsyncGenerator[StreamEvent, None]:
        """Stream the reply of the first model that works."""
        return flatten_batches(self.batches(request))

    async def batches(self, request: ModelRequest) -> AsyncGenerator[Sequence[StreamEvent], None]:
        attempts: list[Attempt] = []
        for number, model in enumerate(self.models, 1):
            begun = self._clock()
            shown = False
            failure: ModelError = StreamCut(model.name)
            try:
                async with aclosing(stream_batches(model, request)) as stream:
                    async for batch in stream:
                        if batch and isinstance(end := batch[-1], StreamEnd):
                            reply = _with_attempts(end.reply, model, attempts, self._clock() - begun)
                            yield [*batch[:-1], StreamEnd(reply)]
                            return
                        for event in batch:
                            # A reset takes back the text that the model showed.
                            shown = not isinstance(event, StreamReset) and (shown or not isinstance(event, _INVISIBLE))
                        yield batch
            except ModelError as error:
                failure = error
            if not failure.attempts:  # the model keeps no ledger
                entry = make_attempt(model.name, failure, self._clock() - begun, usage=failure.usage)
                failure.attempts = (entry,)
                if request.ledger is not None:
                    request.ledger.append(entry)
            attempts += failure.attempts
            if number == len(self.models) or failure.kind in NO_FALLBACK_KINDS:
                raise attach_attempts(failure, attempts)
            why = clip_text(f"{failure.kind}: {failure.message}", 300)
            note = StreamNote("fallback", f"{self.models[number].name} takes over from {model.name} after {why}")
            yield [StreamReset(why), note] if shown else [note]


_INVISIBLE: Final = (StreamStart, StreamNote)


def _with_attempts(reply: ModelReply, model: Model, before: list[Attempt], seconds: float) -> ModelReply:
    if not before:
        return reply
    own = reply.attempts or (make_attempt(model.name, None, seconds, usage=reply.usage),)
    usage = total_usage(before) + reply.usage
    return msgspec.structs.replace(reply, model=reply.model or model.name, usage=usage, attempts=(*before, *own))
