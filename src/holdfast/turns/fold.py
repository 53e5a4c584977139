"""The sealed form of a conversation between two turns: all that later turns need of it, without its history.

A fold is a cache of the journal, so it may be dropped at any time. One of another format, of another release or of a
damaged body is none: its reader folds the records instead. Pure.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from holdfast import __version__
from holdfast.clock import Stopwatch
from holdfast.errors import InvariantBroken
from holdfast.messages import Message  # noqa: TC001  the decoder needs these types
from holdfast.policy.limits import Mandate  # noqa: TC001
from holdfast.policy.rules import Taint  # noqa: TC001
from holdfast.turns.compaction.plan import Breaker  # noqa: TC001
from holdfast.turns.conversation import Conversation, Source, UsageTotal
from holdfast.turns.state import Thread

FORMAT: Final = f"2/{__version__}"
"""Format of the body, and of the meaning of its fields. Within a release, change the number with every change to how
records are folded."""


class _Body(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    format: str
    seq: int
    position: int
    steps: int
    agent: str | None
    last: str
    handoffs: int
    taint: Taint
    mandate: Mandate | None
    usage: tuple[tuple[str, Source, UsageTotal], ...]
    tool_calls: int
    background: int
    unpriced: int
    worked: int
    pinned: tuple[str, ...]
    breaker: Breaker
    heard: dict[str, str]
    noticed: bool
    variables: dict[str, Any]
    environments: dict[str, str]
    metadata: dict[str, Any]
    messages: tuple[Message, ...]
    """The context of the model."""
    chain: bytes
    size: int


_OTHER: Final = frozenset(("format", "usage", "worked", "pinned", "messages", "chain", "size"))
_SAME: Final = tuple(name for name in _Body.__struct_fields__ if name not in _OTHER)
"""The fields that a conversation has as they are."""


class _Header(msgspec.Struct):
    format: str


_decode: Final = msgspec.json.Decoder(_Body).decode
_decode_header: Final = msgspec.json.Decoder(_Header).decode
_encode: Final = msgspec.json.Encoder().encode


def encode_fold(conversation: Conversation) -> bytes:
    """The fold of a conversation between two turns."""
    if conversation.turn is not None or not conversation.whole:
        raise InvariantBroken(f"a fold of an open turn, or of a part of a session, at record {conversation.seq}")
    context = conversation.context
    body = _Body(
        format=FORMAT,
        usage=tuple((model, source, total) for (model, source), total in conversation.usage.items()),
        worked=conversation.watch.total,
        pinned=tuple(sorted(conversation.pinned)),
        messages=context.messages,
        chain=context.chain,
        size=context.size,
        **{name: getattr(conversation, name) for name in _SAME},
    )
    return _encode(body)


def decode_fold(body: bytes) -> Conversation | None:
    """The conversation of a fold, without its history; None if the fold is of another format or damaged."""
    try:
        if _decode_header(body).format != FORMAT:
            return None
        found = _decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError, RecursionError):
        return None
    conversation = Conversation()
    for name in _SAME:
        setattr(conversation, name, getattr(found, name))
    conversation.usage = {(model, source): total for model, source, total in found.usage}
    conversation.watch = Stopwatch(found.worked)
    conversation.pinned, conversation.fold_size = set(found.pinned), len(body)
    conversation.thread = Thread(list(found.messages), found.chain, size=found.size)
    conversation.has_history = False
    return conversation
