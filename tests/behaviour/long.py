"""A session with turns of every kind, and what a reader folds from its journal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import holdfast as hf
from holdfast.messages import ToolMessage, Usage, UserMessage
from holdfast.runtime import session_records
from holdfast.testing import ScriptedModel, call, error, reply, text

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

    from holdfast.messages import ModelRequest
    from holdfast.turns.conversation import Conversation

SUMMARY: Final = "## Goal\nLook.\n## Decisions\nnone\n## Facts\nthe key is 7\n## Files\nnone\n## Open points\nnone"
KINDS: Final = ("talk", "look", "fail", "filter", "pinned", "stranger", "told", "steered", "compact")
"""What a turn may be: each leaves something else in the state of its session."""
OF_READING: Final = {"pos", "unsaved", "fold_size", "has_history", "endings", "_seen", "_inputs"}
"""Attributes of a conversation that are about how it was read, or about its history."""


@hf.tool(read_only=True, untrusted=True)
async def look(words: int) -> str:
    """Look."""
    return "word " * words


def agent_of(asked: list[Any] | None = None, window: int = 2_500) -> hf.Agent:
    """Does what the last input says; `asked` gets the messages of each request."""

    def say(request: ModelRequest) -> Any:
        if asked is not None:
            asked.append(request.messages)
        if request.position is None:
            return reply(text(SUMMARY), usage=Usage(output=9))
        last = request.messages[-1]
        words = last.text if isinstance(last, UserMessage) else ""
        if words == "look":
            return reply(call(look, words=150), usage=Usage(output=5))
        if words in {"fail", "filter"}:
            return error("not now", kind="content_filter" if words == "filter" else "model_error")
        said = "done" if isinstance(last, ToolMessage) else f"{words} to you, {'word ' * 20}"
        return reply(text(said), usage=Usage(output=5))

    model = ScriptedModel(say, keep=0)
    return hf.Agent("a", model=model, tools=[look], compaction=hf.Compaction(window=window))


async def play(session: hf.Session, kind: str) -> str:
    """Play one turn of a kind; returns its status."""
    if kind == "compact":
        return (await (await session.compact()).outcome(timeout=20)).status
    options: dict[str, Any] = {
        "pinned": {"pin": True},
        "stranger": {"untrusted": True},
        "told": {"metadata": {"n": 7}},
        "steered": {"steer": True},
    }.get(kind, {})
    return (await (await session.send(kind, **options)).outcome(timeout=20)).status


async def play_all(session: hf.Session, kinds: Sequence[str]) -> list[str]:
    statuses: list[str] = []
    for number, kind in enumerate(kinds):
        # There is nothing to compact in a session that does not exist.
        statuses.append(await play(session, "talk" if not number and kind == "compact" else kind))
    return statuses


def fold_often(monkeypatch: pytest.MonkeyPatch, records: int = 1) -> None:
    """Save a fold after each turn, or after so many records."""
    monkeypatch.setattr(session_records, "FOLD_RECORDS", records)
    monkeypatch.setattr(session_records, "_RECORD_BYTES", 10**9)


def state_of(conversation: Conversation) -> dict[str, Any]:
    """Everything in a conversation that later turns may depend on. A new attribute is part of it by itself."""
    state = {name: value for name, value in vars(conversation).items() if name not in OF_READING}
    context = conversation.context
    state["thread"] = (context.messages, context.chain, context.size)
    state["watch"] = (conversation.watch.total, conversation.watch._run)  # pyright: ignore[reportPrivateUsage]
    state["used"] = conversation.used
    # Equal taints may differ in the record that they name.
    state["taint"] = repr(conversation.taint)
    return state
