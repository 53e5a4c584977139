"""Seals: MACs of waits and stored rules, under a key that is not in the store. Pure.

A checksum finds damage, and anybody can make one. A seal can only be made with the key, so a row that another program
has edited or added does not match its seal, and is not used.
"""

from __future__ import annotations

from hashlib import blake2b
from hmac import compare_digest
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from holdfast.store.rules.contract import StoredRule
    from holdfast.store.waits.contract import Wait

KEY_BYTES: Final = 32
_SEAL_BYTES: Final = 16
_encode: Final = msgspec.msgpack.Encoder().encode


class Seal:
    """Makes and checks the seals of one store."""

    __slots__ = ("_key", "_rows", "check")

    def __init__(self, key: bytes, store_id: bytes) -> None:
        self._key = blake2b(store_id, key=key, person=b"holdfast:store", digest_size=KEY_BYTES).digest()
        self._rows = self._derived(b"rows")
        self.check: Final = self._derived(b"check")
        """What the store keeps to tell whether a key is its own."""

    def _derived(self, purpose: bytes) -> bytes:
        return blake2b(purpose, key=self._key, person=b"holdfast:derive", digest_size=KEY_BYTES).digest()

    def token_key(self, covered: bytes | None) -> bytes:
        """The key of wait tokens: that of an older schema if the store has one, which is kept `covered`."""
        return self._derived(b"tokens") if covered is None else self.cover(covered)

    def cover(self, secret: bytes) -> bytes:
        """The token key of an older schema as the store may keep it; the same again uncovers it."""
        return bytes(one ^ other for one, other in zip(secret, self._derived(b"cover"), strict=True))

    def of_wait(self, wait: Wait) -> bytes:
        """The seal of a wait."""
        said = ("wait", wait.journal, wait.name, wait.state, wait.deadline, wait.payload, wait.opened, wait.kind)
        return self._of((*said, wait.body, wait.at, wait.consumed))

    def of_rule(self, rule: StoredRule) -> bytes:
        """The seal of a stored rule."""
        said = ("rule", rule.id, rule.agent, rule.body, rule.digest, rule.by, rule.at)
        return self._of((*said, rule.removed_by, rule.removed_at))

    def _of(self, said: tuple[object, ...]) -> bytes:
        return blake2b(_encode(said), key=self._rows, digest_size=_SEAL_BYTES).digest()

    def matches_wait(self, wait: Wait, mac: object) -> bool:
        """Whether a wait is as Holdfast wrote it."""
        return isinstance(mac, bytes) and compare_digest(self.of_wait(wait), mac)

    def matches_rule(self, rule: StoredRule, mac: object) -> bool:
        """Whether a stored rule is as Holdfast wrote it."""
        return isinstance(mac, bytes) and compare_digest(self.of_rule(rule), mac)
