"""Context editing: the provider clears old results of tools, and sums up what is old. Pure.

Both begin at the same number of tokens. Clearing needs no answer from us: the conversation is sent whole, and the
provider leaves results out before the model reads it. A summary comes back as a ``compaction`` block at the beginning
of a reply. It is kept as replay data and sent back like any other block; the provider then ignores what is before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from holdfast.errors.unoffered import NotOffered

if TYPE_CHECKING:
    from collections.abc import Sequence

CLEARING_BETA: Final = "context-management-2025-06-27"
COMPACTING_BETA: Final = "compact-2026-01-12"
LEAST_COMPACTED: Final = 50_000
"""Tokens below which the provider makes no summary."""

_CLEARS_FROM: Final = (4, 0)
_COMPACTS_FROM: Final = (4, 6)
_BLOCK: Final = b'{"type":"compaction"'


@dataclass(frozen=True, slots=True)
class Editing:
    """What is asked for: the field ``context_management``, and the headers without which it is refused."""

    field: dict[str, Any]
    betas: tuple[str, ...]


def editing(model: str, version: tuple[int, int], at: int) -> Editing:
    """How a Claude of this version is asked to shorten the conversation at so many tokens."""
    if version < _CLEARS_FROM:
        advice = "it needs Claude 4 or newer; leave compact_at out, or use another model"
        raise NotOffered("settings.compact_at", model, advice)
    trigger = {"type": "input_tokens", "value": at}
    edits = [{"type": "clear_tool_uses_20250919", "trigger": trigger}]
    if version < _COMPACTS_FROM:
        return Editing({"edits": edits}, (CLEARING_BETA,))
    if at < LEAST_COMPACTED:
        advice = f"it makes no summaries below {LEAST_COMPACTED:,} tokens; set it to that or more"
        raise NotOffered(f"settings.compact_at={at}", model, advice)
    edits.append({"type": "compact_20260112", "trigger": trigger})
    return Editing({"edits": edits}, (CLEARING_BETA, COMPACTING_BETA))


def betas_of(asked: Editing | None, pieces: Sequence[bytes]) -> tuple[str, ...]:
    """The headers that a request needs: for what it asks, and for summaries of earlier that are among its messages."""
    if asked is not None and COMPACTING_BETA in asked.betas:
        return asked.betas
    mine = () if asked is None else asked.betas
    # An agent may no longer ask for summaries; those that it has stay in its conversation.
    return (*mine, COMPACTING_BETA) if any(piece.startswith(_BLOCK) for piece in pieces) else mine
