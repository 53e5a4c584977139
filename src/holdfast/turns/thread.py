"""A conversation as a value: messages in order, and one digest that stands for all of them.

The digest is a chain, and threads that grow from one another share their messages, so adding one costs the same whether
it is the tenth or the ten-thousandth.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

from holdfast.messages import encode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from holdfast.messages import Message


_START: Final = hashlib.sha256(b"holdfast:1:thread\n").digest()


class Thread:
    """Messages, oldest first. Immutable: adding to it gives another one."""

    __slots__ = ("_count", "_shared", "_wire", "chain")

    def __init__(
        self,
        shared: list[Message] | None = None,
        chain: bytes = _START,
        wire: dict[str, list[bytes]] | None = None,
    ) -> None:
        self._shared: list[Message] = [] if shared is None else shared
        self._wire: dict[str, list[bytes]] = {} if wire is None else wire
        self._count = len(self._shared)
        self.chain = chain
        """The digest of all messages."""

    def add(self, *messages: Message) -> Thread:
        """This conversation, and what was said next."""
        # The list only ever grows at its end; whoever does not stand at the end any more gets a list of its own.
        shared, wire = self._shared, self._wire
        if len(shared) != self._count:
            shared = shared[: self._count]
            wire = {key: kept[: self._count] for key, kept in wire.items()}
        shared += messages
        chain = self.chain
        for message in messages:
            chain = hashlib.sha256(chain + encode(message)).digest()
        return Thread(shared, chain, wire)

    def encoded(self, key: str, encode: Callable[[Message], bytes]) -> list[bytes]:
        """The bytes of all messages for `key`; each is encoded once, and kept for the threads that grow from this."""
        kept = self._wire.setdefault(key, [])
        kept += [encode(message) for message in self._shared[len(kept) : self._count]]
        return kept[: self._count]

    @property
    def messages(self) -> tuple[Message, ...]:
        """All of them."""
        return tuple(self._shared[: self._count])

    def tail(self, count: int) -> list[Message]:
        """The last ones, oldest first."""
        return self._shared[max(self._count - count, 0) : self._count]

    def backwards(self) -> Iterator[Message]:
        """The last one first."""
        return (self._shared[index] for index in range(self._count - 1, -1, -1))

    @property
    def last(self) -> Message | None:
        """What was said last."""
        return self._shared[self._count - 1] if self._count else None

    def __len__(self) -> int:
        return self._count

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Thread) and (self._count, self.chain) == (other._count, other.chain)

    def __hash__(self) -> int:
        return hash(self.chain)

    def __repr__(self) -> str:
        return f"Thread({self._count} messages, {self.chain.hex()[:12]})"
