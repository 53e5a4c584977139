"""A small window: a model that works until it is done and writes summaries, and what an agent with it was asked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import holdfast as hf
from holdfast.agent import prepare
from holdfast.messages import ToolMessage, Usage
from holdfast.records import Done
from holdfast.testing import ScriptedModel, call, reply, text
from holdfast.turns.compaction.budget import Estimator
from holdfast.turns.compaction.plan import decode_compaction, is_compaction, mark_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.messages import Message, ModelRequest
    from holdfast.store import Store
    from holdfast.testing.scripted import ScriptItem
    from holdfast.turns.compaction.plan import RecordedCompaction

WINDOW = 4_000
SUMMARY = "## Goal\nLook.\n## Decisions\nnone\n## Facts\nthe key is 7\n## Files\nnone\n## Open points\nnone"
SHORT, LONG = 150, 600
"""Words of a result: one that is never clipped, and one that is."""


@hf.tool(read_only=True)
async def look(at: int, words: int = SHORT) -> str:
    """Look."""
    return f"at {at}: " + "word " * words


class Writer(ScriptedModel):
    """Looks at so many places in each turn, then says that it is done; and writes the summaries that it is given."""

    def __init__(
        self,
        steps: int = 30,
        *,
        words: int = SHORT,
        summary: ScriptItem | Callable[[ModelRequest], Any] = SUMMARY,
        say: Callable[[ModelRequest], Any] | None = None,
        name: str = "scripted:model",
        keep: int = 1_000,
    ) -> None:
        super().__init__(self._answer, name=name, keep=keep)
        self._steps, self._words, self._summary, self._say = steps, words, summary, say

    def _answer(self, request: ModelRequest) -> Any:
        if request.position is None:
            return self._summary(request) if callable(self._summary) else self._summary
        said = None if self._say is None else self._say(request)
        if said is not None:
            return said
        if request.position % (self._steps + 1) < self._steps:
            return reply(call(look, at=request.position, words=self._words), usage=Usage(output=5))
        return reply(text("done"), usage=Usage(output=5))

    @property
    def asked(self) -> list[ModelRequest]:
        """What it was asked in turns."""
        return [request for request in self.requests if request.position is not None]

    @property
    def summarised(self) -> list[ModelRequest]:
        """What it was asked to summarise, without the questions after an answer that could not be used."""
        return [request for request in self.requests if request.position is None and len(request.messages) == 1]

    @property
    def repaired(self) -> list[ModelRequest]:
        """What it was asked after an answer that could not be used."""
        return [request for request in self.requests if request.position is None and len(request.messages) > 1]


def agent_of(model: hf.Model, *, compaction: hf.Compaction | None = None, **options: Any) -> hf.Agent:
    options.setdefault("tools", [look])
    options.setdefault("limits", hf.Limits(steps=None))
    return hf.Agent("a", model=model, compaction=compaction or hf.Compaction(window=WINDOW), **options)


def size(agent: hf.Agent, messages: Sequence[Message]) -> int:
    """Tokens of a request, about."""
    return prepare(agent).fixed_tokens + sum(map(Estimator().tokens, messages))


def marks(messages: Sequence[Message]) -> list[str]:
    """What stands for messages that are not there."""
    return [mark.kind for message in messages if (mark := mark_of(message)) is not None]


def clipped(messages: Sequence[Message]) -> list[str]:
    """The results that were cut short."""
    results = [result for message in messages if isinstance(message, ToolMessage) for result in message.results]
    return [str(result.content) for result in results if str(result.content).startswith("[Old result")]


async def compactions(store: Store, session: str = "s") -> list[RecordedCompaction]:
    """The compactions that a journal holds, oldest first."""
    found: list[RecordedCompaction] = []
    async for entry in store.read_all(session):
        record = entry.record
        if isinstance(record, Done) and is_compaction(record.key):
            body = bytes(record.value) if record.blob is None else await store.blob(record.blob.digest)
            assert body is not None
            found.append(decode_compaction(body))
    return found
