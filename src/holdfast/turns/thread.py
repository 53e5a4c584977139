"""A conversation as a value: messages in order, and one digest that stands for all of them.

The digest is a chain, so adding a message costs the same whether it is the tenth or the ten-thousandth.
"""

from __future__ import annotations

import hashlib
from typing import Final

import msgspec

from holdfast.messages import Message, encode

_START: Final = hashlib.sha256(b"holdfast:1:thread\n").digest()


class Thread(msgspec.Struct, frozen=True):
    """Messages, oldest first."""

    messages: tuple[Message, ...] = ()
    chain: bytes = _START

    def add(self, *messages: Message) -> Thread:
        """This conversation, and what was said next."""
        chain = self.chain
        for message in messages:
            chain = hashlib.sha256(chain + encode(message)).digest()
        return Thread(self.messages + messages, chain)

    @property
    def last(self) -> Message | None:
        """What was said last."""
        return self.messages[-1] if self.messages else None
